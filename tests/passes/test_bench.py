"""The measurements of passes run, small, as a test."""

from __future__ import annotations

import pytest

from dkl.bench.busy import busy_ratios
from dkl.bench.passes import Measure, pass_ratios


def test_the_measurements_run_and_say_whether_a_promise_is_kept():
    found = list(pass_ratios(n_rows=600, n_columns=5, n_frequencies=16, n_tiny=500, repeats=1))
    assert [measure.unit for measure in found] == ["ms", "MB", "", ""]
    assert all(measure.value >= 0 for measure in found)
    assert Measure("speed", 0.9, 0.8).kept
    assert not Measure("speed", 0.7, 0.8).kept
    assert Measure("ms", 0.7, 1.0, at_least=False).kept


@pytest.mark.slow
def test_beside_a_busy_process_no_path_takes_twice_its_time_with_one_blas_thread():
    found = {measure.name: measure.value for measure in busy_ratios()}
    assert len(found) == 13
    assert max(found.values()) <= 2.0, found
