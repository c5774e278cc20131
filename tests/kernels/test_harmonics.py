"""Harmonics of row blocks: their definition, ragged tiles, bits, memory, other devices, and rows off the sphere."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import array_api_strict
import numpy as np
import pytest
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels import generic
from dkl.kernels.harmonic_tiles import OFF_SPHERE
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.sums import feature_squares, feature_sums
from tests.definitions import blocks as definitions
from tests.kernels.cases import DTYPES, PRECISION, SCALINGS, STORAGES, scalable, scaler, stored


def harmonics(family: SphericalHarmonics, d: int) -> FeatureMap:
    """Every third harmonic of a family, with unequal amplitudes."""
    pool = family.pool(d)
    index = np.arange(0, pool.n_features, 3)
    return pool.take(index, np.linspace(0.5, 1.5, len(index)))


def sphere(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    rows[::4, : d // 2] = 0.0
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("d", "degree"), [(2, 9), (3, 6), (4, 3), (7, 2)])
def test_sums_squares_and_maps_are_their_definitions(d: int, degree: int, storage: str, dtype: str) -> None:
    X, S = np.concatenate([sphere(5, d), np.eye(d)]), np.random.default_rng(1).standard_normal((5 + d, 3))
    feature_map = harmonics(SphericalHarmonics(degree), d)
    features = definitions.map_rows(X, feature_map)
    tolerance = PRECISION[dtype] * float(np.abs(features).max()) ** 2
    mapped = map_rows(stored(X, storage), feature_map, dtype)
    assert mapped.dtype == dtype
    assert mapped.flags.c_contiguous
    np.testing.assert_allclose(mapped, features, rtol=0, atol=tolerance)
    sums = feature_sums(stored(X, storage), S, feature_map, dtype)
    np.testing.assert_allclose(sums, definitions.sums_of(features, S, feature_map), rtol=0, atol=4 * tolerance)
    squares = feature_squares(stored(X, storage), S[:, 0], feature_map, dtype)
    expected = definitions.squares_of(features, S[:, 0], feature_map)
    np.testing.assert_allclose(squares, expected, rtol=0, atol=8 * tolerance)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("storage", STORAGES)
def test_rows_are_scaled_before_they_are_projected(storage: str, scaling: str | None) -> None:
    # a row of zeros has no place on the sphere
    X = scalable(3.0 * sphere(15, 4), scaling) + (scaling == "counts")
    feature_map = replace(harmonics(SphericalHarmonics(3, project=True), 4), scaler=scaler(scaling, 4))
    found = map_rows(stored(X, storage), feature_map, "float64")
    np.testing.assert_allclose(found, definitions.map_rows(X, feature_map), rtol=0, atol=1e-11)
    xp = array_api_strict
    (other,) = generic.mapped(xp, xp.asarray(X), feature_map, xp.float64)
    np.testing.assert_allclose(np.asarray(other), found, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 511, 513, 1100])
def test_ragged_tiles_lose_nothing_and_a_row_does_not_feel_its_neighbours(n: int) -> None:
    X, S = sphere(max(n, 1), 6)[:n], np.random.default_rng(1).standard_normal((n, 2))
    for family in (SphericalHarmonics(2), SphericalHarmonics(6)):
        feature_map = harmonics(family, 6)
        mapped = map_rows(X, feature_map, "float64")
        np.testing.assert_allclose(feature_sums(X, S, feature_map, "float64")[0], mapped.T @ S, atol=1e-9)
        for dtype in DTYPES:
            whole = map_rows(X, feature_map, dtype)
            for i in {0, n // 2, n - 1} & set(range(n)):
                np.testing.assert_array_equal(map_rows(X[i : i + 1], feature_map, dtype)[0], whole[i])


def test_one_weight_column_equals_a_column_among_several() -> None:
    X, S = sphere(700, 5), np.random.default_rng(1).standard_normal((700, 3))
    feature_map = harmonics(SphericalHarmonics(5), 5)
    together = feature_sums(X, S, feature_map)
    for k in range(3):
        np.testing.assert_array_equal(feature_sums(X, S[:, k], feature_map)[:, :, 0], together[:, :, k])


def test_no_array_of_rows_by_harmonics_is_made() -> None:
    X, S = sphere(20_000, 3), np.ones((20_000, 1))
    pool = SphericalHarmonics(30).pool(3)
    feature_sums(X[:100], S[:100], pool)
    tracemalloc.start()
    feature_sums(X, S, pool)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 < 20_000 * 961 * 4 / 8


def test_a_plan_prices_harmonics_by_their_number_whatever_the_dimension() -> None:
    low, high = SphericalHarmonics(n_harmonics=100).pool(3), SphericalHarmonics(n_harmonics=100).pool(784)
    assert mapping_flops(3, low) == mapping_flops(784, high) > 0


ON = sphere(40, 3)


def off(row: int, factor: float) -> np.ndarray:
    X = ON.copy()
    X[row] *= factor
    return X


REFUSED: dict[str, tuple[Any, bool, str]] = {
    "long": (off(17, 1.5), False, "row 17 has length 1.5; spherical harmonics take rows on the unit sphere"),
    "short": (off(39, 0.99), False, "row 39 has length 0.99"),
    "remedy": (off(2, 2.0), False, "SphericalHarmonics(..., project=True)"),
    "zero": (off(3, 0.0), False, "row 3 has length 0"),
    "no direction": (off(5, 0.0), True, "row 5 has length 0, so that it has no direction"),
    "nan": (off(7, np.nan), False, "row 7 has length nan"),
    "nan, projected": (off(8, np.nan), True, "row 8 has length nan"),
    "infinite": (off(9, np.inf), True, "row 9 has length"),
    "sparse": (sparse.csr_array(off(20, 3.0)), False, "row 20 has length 3"),
    "a later tile": (np.concatenate([np.tile(ON, (50, 1)), off(11, 2.0)]), False, "row 2011 has length 2"),
    "columns": (np.ones((3, 4)), True, "rows have 4 columns, but the feature map takes 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rows_off_the_sphere_are_refused_by_their_number(case: str) -> None:
    X, project, message = REFUSED[case]
    pool = SphericalHarmonics(2, project=project).pool(3)
    for call in (lambda: map_rows(X, pool), lambda: feature_sums(X, np.ones(X.shape[0]), pool)):
        with pytest.raises(ValueError) as caught:
            call()
        assert message in str(caught.value)


def test_a_row_that_is_nearly_on_the_sphere_counts_by_its_direction() -> None:
    pool, projected = (SphericalHarmonics(12, project=project).pool(3) for project in (False, True))
    expected = map_rows(ON, pool, "float64")
    for factor in (1 + 0.9 * OFF_SPHERE, 1 - 0.9 * OFF_SPHERE):
        np.testing.assert_allclose(map_rows(ON * factor, pool, "float64"), expected, atol=1e-12)
    for factor in (1e-150, 0.3, 1e150):
        np.testing.assert_allclose(map_rows(ON * factor, projected, "float64"), expected, atol=1e-12)
