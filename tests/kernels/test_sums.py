"""Block sums at size: precision, tiles, fast paths, bits, dtypes of rows, memory, and what is refused."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from threadpoolctl import threadpool_limits

from dkl.features.families import Coordinates, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection, StructuredProjection
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_squares, feature_sums
from tests.kernels.cases import DTYPES, FAMILIES, FOURIER, PRECISION, STORAGES, holey_rows, stored, weighted_map


def numpy_sums(X: np.ndarray, S: np.ndarray, feature_map: FeatureMap) -> np.ndarray:
    z = np.asarray(X, np.float64) @ feature_map.projection.dense().astype(np.float64).T
    return np.stack([np.cos(z).T @ S, np.sin(z).T @ S]) * feature_map.amplitudes[:, None]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_dot_test_ties_sums_to_maps(family: str, storage: str, dtype: str) -> None:
    """sum_i s_i <phi(x_i), w> = <sum_i s_i phi(x_i), w>."""
    rng = np.random.default_rng(3)
    X, s = holey_rows(1000, 11), rng.standard_normal(1000)
    feature_map = weighted_map(FAMILIES[family], 70, 11, dtype, "standard")
    features = map_rows(stored(X, storage), feature_map, dtype).astype(np.float64)
    w = rng.standard_normal(feature_map.n_features)
    summed = feature_sums(stored(X, storage), s, feature_map, dtype)[:, :, 0].reshape(-1)
    scale = np.abs(features).max() * np.abs(w).sum() * np.sqrt(len(X))
    assert abs(s @ (features @ w) - summed @ w) < PRECISION[dtype] * scale


@pytest.mark.parametrize("family", ["gaussian", "structured"])
@pytest.mark.parametrize("d", [2, 30, 300])
def test_the_error_of_a_float32_sum_is_below_its_bound(d: int, family: str) -> None:
    rng = np.random.default_rng(0)
    X, S = rng.standard_normal((16_384, d), dtype=np.float32), rng.choice([-1.0, 1.0], (16_384, 1))
    feature_map = replace(FAMILIES[family], sigma=float(np.sqrt(d))).draw(96, d, 0)  # type: ignore[type-var]
    error = np.abs(feature_sums(X, S, feature_map) - numpy_sums(X, S, feature_map)).max()
    assert error < 1e-5 * np.sqrt(len(X))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 63, 65, 767, 768, 769, 1537])
def test_ragged_tiles_of_rows_lose_nothing(n: int, storage: str) -> None:
    X, S = holey_rows(n, 6), np.random.default_rng(1).standard_normal((n, 2))
    for family in ("gaussian", "structured"):
        feature_map = weighted_map(FAMILIES[family], 33, 6, "float64")
        found = feature_sums(stored(X, storage), S, feature_map, "float64")
        np.testing.assert_allclose(found, numpy_sums(X, S, feature_map), rtol=0, atol=1e-10)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("m", [1, 2, 511, 513, 767, 769, 1537])
def test_ragged_tiles_of_frequencies_lose_nothing(m: int, storage: str) -> None:
    X, S = holey_rows(50, 6), np.random.default_rng(1).standard_normal((50, 2))
    for family in ("gaussian", "structured"):
        feature_map = weighted_map(FAMILIES[family], m, 6, "float64")
        found = feature_sums(stored(X, storage), S, feature_map, "float64")
        np.testing.assert_allclose(found, numpy_sums(X, S, feature_map), rtol=0, atol=1e-11)
        mapped = map_rows(stored(X, storage), feature_map, "float64")
        np.testing.assert_allclose(mapped.sum(axis=0), feature_sums(X, np.ones(50), feature_map, "float64").ravel())


@pytest.mark.parametrize("d", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("columns", [1, 2])
def test_kernels_of_few_columns_equal_the_general_one(d: int, columns: int) -> None:
    """Zero columns change nothing, but send the rows to the general kernel."""
    rng = np.random.default_rng(d)
    X, S = rng.standard_normal((900, d)), rng.standard_normal((900, columns))
    W = rng.standard_normal((40, d))
    narrow = FeatureMap("cos-sin", DenseProjection(W), np.ones(40))
    wide = FeatureMap("cos-sin", DenseProjection(np.pad(W, ((0, 0), (0, 5)))), np.ones(40))
    expected = feature_sums(np.pad(X, ((0, 0), (0, 5))), S, wide, "float64")
    np.testing.assert_allclose(feature_sums(X, S, narrow, "float64"), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", FOURIER)
def test_one_weight_column_equals_a_column_among_several(family: str) -> None:
    X, S = holey_rows(800, 6), np.random.default_rng(1).standard_normal((800, 3))
    feature_map = weighted_map(FAMILIES[family], 50, 6, "float64")
    together = feature_sums(X, S, feature_map, "float64")
    for k in range(3):
        alone = feature_sums(X, S[:, k], feature_map, "float64")
        np.testing.assert_allclose(alone[:, :, 0], together[:, :, k], rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["structured", "structured phase", "structured ramp"])
def test_structured_frequencies_equal_the_matrix_that_they_stand_for(family: str, dtype: str) -> None:
    X, S = holey_rows(300, 70), np.random.default_rng(1).standard_normal((300, 2))
    structured = weighted_map(FAMILIES[family], 300, 70, dtype, "standard")
    dense = replace(structured, projection=DenseProjection(structured.projection.dense()))
    tolerance = PRECISION[dtype] * np.sqrt(300) * 20
    for function in (feature_sums, lambda *a: feature_squares(a[0], a[1][:, 0], *a[2:])):
        found, expected = function(X, S, structured, dtype), function(X, S, dense, dtype)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max() / 50))
    np.testing.assert_allclose(map_rows(X, structured, dtype), map_rows(X, dense, dtype), rtol=0, atol=tolerance)


def test_a_lazily_taken_part_of_structured_frequencies_is_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.features.projections.FORMED_BYTES", 0)
    X, S = holey_rows(200, 70), np.random.default_rng(1).standard_normal((200, 1))
    whole = weighted_map(FAMILIES["structured"], 500, 70, "float64")
    index = np.array([499, 3, 3, 130, 0, 257])
    part = whole.take(index)
    assert isinstance(part.projection, StructuredProjection)
    expected = feature_sums(X, S, whole, "float64")[:, index]
    np.testing.assert_allclose(feature_sums(X, S, part, "float64"), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ["float16", "uint8", "int64", "bool", ">f4", ">f8", "fortran", "strided"])
def test_rows_of_any_real_dtype_and_layout_are_taken(kind: str) -> None:
    counts = np.random.default_rng(0).integers(0, 3, (300, 6))
    X: Any = counts.astype(float)
    if kind == "fortran":
        given = np.asfortranarray(X)
    elif kind == "strided":
        given = np.repeat(X, 2, axis=1)[:, ::2]
    else:
        given = (counts > 0 if kind == "bool" else counts).astype(kind)
        X = given.astype(float)
    S = np.ones((300, 1))
    for family in ("gaussian", "coordinates"):
        feature_map = weighted_map(FAMILIES[family], 20, 6, "float32", "standard")
        expected = feature_sums(X, S, feature_map)
        np.testing.assert_array_equal(feature_sums(given, S, feature_map), expected)
        np.testing.assert_array_equal(map_rows(given, feature_map), map_rows(X, feature_map))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("d", [2, 7])
def test_the_bits_do_not_depend_on_the_call_or_the_thread(d: int, storage: str) -> None:
    X, S = stored(holey_rows(3000, d), storage), np.random.default_rng(1).standard_normal((3000, 2))
    feature_map = weighted_map(FAMILIES["gaussian"], 800, d, "float32")
    with threadpool_limits(1):
        first = feature_sums(X, S, feature_map), map_rows(X, feature_map)
        with ThreadPoolExecutor(4) as pool:
            sums = [pool.submit(feature_sums, X, S, feature_map) for _ in range(8)]
            maps = [pool.submit(map_rows, X, feature_map) for _ in range(2)]
        for expected, others in zip(first, (sums, maps), strict=True):
            for other in others:
                np.testing.assert_array_equal(other.result(), expected)


@pytest.mark.parametrize("family", ["gaussian", "structured", "phase"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_huge_rows_give_finite_sums_and_features_or_are_refused_by_name(dtype: str, family: str) -> None:
    X = np.full((20, 5), 1e30)
    X[3:6] = 1e300
    X[7] = 5e-324
    feature_map = weighted_map(FAMILIES[family], 40, 5, dtype)
    for given in (X, sparse.csr_array(X)):
        assert np.isfinite(feature_sums(given, np.ones(20), feature_map, dtype)).all()
        if dtype == "float32":
            with pytest.raises(ValueError, match="row 3, column 0: scaled, the value is larger than float32 holds"):
                map_rows(given, feature_map, dtype)
        else:
            assert (np.abs(map_rows(given, feature_map, dtype)) <= 1.5 * (1 + 1e-6)).all()


def test_no_array_of_rows_by_frequencies_is_made() -> None:
    X, S = holey_rows(20_000, 40), np.ones((20_000, 1))
    feature_map = weighted_map(FAMILIES["gaussian"], 2_000, 40, "float32")
    feature_sums(X[:100], S[:100], feature_map)
    tracemalloc.start()
    feature_sums(X, S, feature_map)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8e6 < 20_000 * 2_000 * 4 / 10


def test_wide_sparse_rows_stay_sparse_when_they_are_centred() -> None:
    rng = np.random.default_rng(0)
    X = sparse.random_array((200, 30_000), density=2e-4, format="csr", rng=rng)
    feature_map = weighted_map(Gaussian(3.0), 16, 30_000, "float64", "standard")
    tracemalloc.start()
    found = feature_sums(X, np.ones(200), feature_map, "float64")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200 * 30_000 * 8 / 2
    np.testing.assert_allclose(found, feature_sums(X.toarray(), np.ones(200), feature_map, "float64"), atol=1e-9)


REFUSED = {
    "one dimension": (np.ones(5), np.ones(5), "two-dimensional array; X has shape (5,)"),
    "other columns": (np.ones((3, 4)), np.ones(3), "rows have 4 columns, but the feature map takes 5"),
    "complex": (np.ones((3, 5), complex), np.ones(3), "X has dtype complex128"),
    "objects": (np.ones((3, 5), object), np.ones(3), "X has dtype object"),
    "other rows": (np.ones((3, 5)), np.ones(4), "the weight columns S have shape (4, 1); 3 rows need shape (3, K)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_rows_is_refused(case: str) -> None:
    X, S, message = REFUSED[case]
    for family in ("gaussian", "coordinates"):
        feature_map = weighted_map(FAMILIES[family], 4, 5, "float32")
        with pytest.raises((ValueError, TypeError)) as caught:
            feature_sums(X, S, feature_map)
        assert message in str(caught.value)


def test_other_arithmetic_is_refused() -> None:
    feature_map = weighted_map(Coordinates(), 4, 5, "float32")
    with pytest.raises(ValueError, match="'float32' or 'float64'"):
        feature_sums(np.ones((3, 5)), np.ones(3), feature_map, "float16")


def test_quantile_scaling_of_wide_sparse_rows_is_refused() -> None:
    X = sparse.csr_array((3, 5_000))
    feature_map = weighted_map(Coordinates(), 4, 5_000, "float32", "quantile")
    with pytest.raises(ValueError, match=r"scaling by quantiles .* have 5000 columns .* scaling='unit'"):
        feature_sums(X, np.ones(3), feature_map)
