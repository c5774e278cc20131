"""Gram matrices of features, by panels and between two maps, against their double loops."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.gram import packed_panels, packed_size
from dkl.methods.leverage.sums import cross_gram_sums, gram_sums
from tests.definitions import leverage as definitions
from tests.kernels.cases import DTYPES, FAMILIES, PRECISION, STORAGES, holey_rows, scaler, stored, weighted_map

N, D_IN = 19, 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", ["gaussian", "phase", "structured", "ramp", "coordinates"])
def test_gram_sums_are_their_definition(family: str, storage: str, dtype: str) -> None:
    X, weight = holey_rows(N, D_IN), np.random.default_rng(0).random(N)
    first = weighted_map(FAMILIES[family], 5, D_IN, dtype, "standard")
    second = weighted_map(FAMILIES["gaussian"], 3, D_IN, dtype)
    tolerance = 4 * PRECISION[dtype] * N * 16.0
    columns = 2, first.n_features + 1
    found = gram_sums(stored(X, storage), weight, first, columns, dtype)
    np.testing.assert_allclose(found, definitions.gram_sums(X, weight, first, columns), rtol=0, atol=tolerance)
    found = cross_gram_sums(stored(X, storage), weight, first, second, dtype)
    np.testing.assert_allclose(found, definitions.cross_gram_sums(X, weight, first, second), rtol=0, atol=tolerance)


def test_panels_are_the_packed_triangle_column_by_column() -> None:
    feature_map = weighted_map(FAMILIES["gaussian"], 6, D_IN, "float64")
    X, weight = holey_rows(N, D_IN), np.ones(N)
    whole = gram_sums(X, weight, feature_map, (0, 13), "float64")
    panels = list(packed_panels(13, 8 * 20))
    assert [start for start, _ in panels[1:]] == [stop for _, stop in panels[:-1]]
    assert len(panels) > 4
    assert all(packed_size(*panel) <= 20 or panel[1] - panel[0] == 1 for panel in panels)
    cut = np.concatenate([gram_sums(X, weight, feature_map, panel, "float64") for panel in panels])
    np.testing.assert_allclose(cut, whole, rtol=1e-13, atol=1e-13)
    assert whole[-1] == N


def test_many_rows_are_added_tile_by_tile() -> None:
    feature_map = weighted_map(FAMILIES["gaussian"], 4, D_IN, "float64")
    rng = np.random.default_rng(1)
    X, weight = rng.standard_normal((20_000, D_IN)), rng.random(20_000)
    whole = gram_sums(X, weight, feature_map, (0, 9), "float64")
    parts = [gram_sums(X[rows], weight[rows], feature_map, (0, 9), "float64") for rows in (slice(7), slice(7, None))]
    np.testing.assert_allclose(sum(parts), whole, rtol=1e-12, atol=1e-9)


def test_scalers_are_applied() -> None:
    feature_map = weighted_map(FAMILIES["gaussian"], 4, D_IN, "float64", "minmax")
    assert feature_map.scaler is not None
    assert scaler("minmax", D_IN) is not None
    X = holey_rows(N, D_IN)
    found = cross_gram_sums(X, np.ones(N), feature_map, feature_map, "float64")
    expected = definitions.cross_gram_sums(X, np.ones(N), feature_map, feature_map)
    np.testing.assert_allclose(found, expected, atol=1e-12)
