"""Frequencies with a few entries each: the same features as of the matrix that they stand for, from fewer numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection, SparseProjection
from dkl.kernels.few_entries import has_few_entries
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_squares, feature_sums
from tests.definitions import blocks as definitions
from tests.kernels.cases import (
    DTYPES,
    PRECISION,
    SCALINGS,
    STORAGES,
    assert_same_rows,
    holey_rows,
    scalable,
    scaler,
    stored,
)

D_IN = 40
KINDS = {
    "pairs": FeatureMap("cos-sin", DenseProjection(np.zeros((0, D_IN))), np.zeros(0)),
    "phase": FeatureMap("cos", DenseProjection(np.zeros((0, D_IN))), np.zeros(0), phases=np.zeros(0)),
    "ramp": FeatureMap("arc-cosine", DenseProjection(np.zeros((0, D_IN))), np.zeros(0), order=1),
}


def mixed_rows(m: int, seed: int = 0, d: int = D_IN) -> tuple[np.ndarray, np.ndarray]:
    """Frequencies of 0 to 3 entries, every fifth with all of them, in no order; and their supports."""
    rng = np.random.default_rng(seed)
    supports = np.zeros((m, d), bool)
    for j in range(m):
        supports[j, rng.choice(d, d if j % 5 == 2 else j % 4, replace=False)] = True
    return rng.standard_normal((m, d)) / np.sqrt(np.maximum(1, supports.sum(axis=1, keepdims=True))), supports


def sparse_map(kind: str, m: int = 90, dtype: str = "float64", scaling: str | None = None) -> FeatureMap:
    rows, supports = mixed_rows(m)
    projection = SparseProjection.from_rows(rows.astype(dtype), supports)
    phases = None if KINDS[kind].phases is None else np.linspace(0.0, 6.0, m)
    amplitudes = np.linspace(0.5, 1.5, m)
    return replace(
        KINDS[kind], projection=projection, amplitudes=amplitudes, phases=phases, scaler=scaler(scaling, D_IN)
    )


def dense_twin(feature_map: FeatureMap) -> FeatureMap:
    return replace(feature_map, projection=DenseProjection(feature_map.projection.dense()))


def test_both_ways_of_computing_are_in_play() -> None:
    projection = sparse_map("pairs").projection
    assert isinstance(projection, SparseProjection)
    few = has_few_entries(projection)
    np.testing.assert_array_equal(few, np.arange(90) % 5 != 2)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_sums_squares_and_maps_are_their_definitions(kind: str, storage: str) -> None:
    X, S = holey_rows(19, D_IN), np.random.default_rng(1).standard_normal((19, 2))
    feature_map = sparse_map(kind, 23, scaling="standard")
    given = stored(X, storage)
    close: dict[str, Any] = {"rtol": 0, "atol": 1e-11}
    np.testing.assert_allclose(map_rows(given, feature_map, "float64"), definitions.map_rows(X, feature_map), **close)
    sums = definitions.feature_sums(X, S, feature_map)
    np.testing.assert_allclose(feature_sums(given, S, feature_map, "float64"), sums, **close)
    squares = definitions.feature_squares(X, S[:, 0], feature_map)
    np.testing.assert_allclose(feature_squares(given, S[:, 0], feature_map, "float64"), squares, **close)


# All pairs of a kind, a storage, a scaling and a precision, in half of their products.
PAIRS = [
    (kind, storage, scaling, DTYPES[(i + j + k) % 2])
    for i, kind in enumerate(KINDS)
    for j, storage in enumerate(STORAGES)
    for k, scaling in enumerate(SCALINGS)
]


@pytest.mark.parametrize(("kind", "storage", "scaling", "dtype"), PAIRS)
def test_they_equal_the_matrix_that_they_stand_for(kind: str, storage: str, scaling: str | None, dtype: str) -> None:
    X, S = scalable(holey_rows(1100, D_IN), scaling), np.random.default_rng(1).standard_normal((1100, 3))
    feature_map = sparse_map(kind, 150, dtype, scaling)
    given, twin = stored(X, storage), dense_twin(feature_map)
    mapped = map_rows(given, twin, dtype)
    tolerance = 4 * PRECISION[dtype] * max(1.0, float(np.abs(mapped).max())) ** 2
    np.testing.assert_allclose(map_rows(given, feature_map, dtype), mapped, rtol=0, atol=tolerance)
    functions: list[Callable[[FeatureMap], Any]] = [
        lambda one: feature_sums(given, S, one, dtype),
        lambda one: feature_sums(given, S[:, 0], one, dtype),
        lambda one: feature_squares(given, S[:, 0], one, dtype),
    ]
    for function in functions:
        np.testing.assert_allclose(function(feature_map), function(twin), rtol=0, atol=tolerance * np.sqrt(1100))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_features_of_a_row_do_not_depend_on_the_rows_beside_it(dtype: str, storage: str) -> None:
    X, feature_map = stored(holey_rows(1500, D_IN), storage), sparse_map("pairs", 300, dtype, "standard")
    by_blas = storage == "dense" and dtype == "float32"
    with threadpool_limits(1):
        mapped = map_rows(X, feature_map, dtype)
        for chosen in (slice(0, 1), slice(3, 20), slice(700, 1500)):
            assert_same_rows(map_rows(X[chosen], feature_map, dtype), mapped[chosen], atol=2e-5 if by_blas else 0.0)


def test_wide_sparse_rows_are_never_written_out() -> None:
    """200,000 columns: a tile of dense rows of them would not fit, nor a dense W."""
    rng, d, m = np.random.default_rng(0), 200_000, 300
    X = sparse.random_array((700, d), density=2e-4, rng=rng, format="csr")
    supports = sparse.random_array((m, d), density=1e-5, rng=rng, format="csr")
    feature_map = FeatureMap("cos-sin", SparseProjection.from_matrix(supports), np.ones(m))
    z = (X @ supports.T).toarray()
    expected = np.stack([np.cos(z).sum(axis=0), np.sin(z).sum(axis=0)])
    started = time.perf_counter()
    np.testing.assert_allclose(feature_sums(X, np.ones(700), feature_map)[:, :, 0], expected, rtol=1e-5, atol=1e-3)
    mapped = map_rows(X, feature_map)
    np.testing.assert_allclose(mapped, np.hstack([np.cos(z), np.sin(z)]), rtol=0, atol=1e-5)
    assert time.perf_counter() - started < 10.0
