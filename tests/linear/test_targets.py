"""Mean and deviation of targets: as of repeated rows, and 1 where only rounding varies."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.linear.target_statistics import target_record, target_scale


@pytest.mark.parametrize("t", [1, 3])
def test_the_scale_of_weighted_targets_is_that_of_repeated_rows(t: int) -> None:
    rng = np.random.default_rng(0)
    y, weight = 1e6 + rng.standard_normal((500, t)), rng.integers(0, 4, 500)
    data = as_dataset(rng.standard_normal((500, 2)), y[:, 0] if t == 1 else y, sample_weight=weight.astype(float))
    found, repeated = target_scale(data.source, t), np.repeat(y, weight, axis=0)
    np.testing.assert_allclose(found.center, repeated.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.scale, repeated.std(axis=0), rtol=1e-6)


def test_a_constant_target_has_deviation_one() -> None:
    y = np.column_stack([np.full(100, 0.1), np.zeros(100), np.arange(100.0)])
    found = target_scale(as_dataset(np.ones((100, 1)), y).source, 3)
    np.testing.assert_array_equal(found.scale[:2], 1.0)
    assert found.scale[2] == pytest.approx(np.arange(100.0).std())


def test_the_pass_reads_no_rows() -> None:
    assert not target_record(2).needs_x
