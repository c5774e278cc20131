"""Steps of rows: maps, sums, bins and histograms are their definitions, on dense and sparse rows and off the host."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import StepProjection
from dkl.kernels.generic import mapped
from dkl.kernels.maps import map_rows
from dkl.kernels.step_tiles import TILE_ROWS, HistogramSums, collected_rows, write_codes
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.kernels.tiles import spans
from tests.definitions import steps as definitions

# more rows than atoms go over at once, and not a multiple of these
N, D_IN, M = 153, 5, 12


def rows() -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((N, D_IN)).astype(np.float32)
    X[np.random.default_rng(1).random(X.shape) < 0.4] = 0.0
    return X


def some_map() -> FeatureMap:
    """Atoms of none to three factors, thresholds that are values of rows, and hinges that are clipped."""
    rng, X = np.random.default_rng(2), rows().astype(np.float64)
    factors = rng.integers(0, 4, M)
    columns = np.where(np.arange(3) < factors[:, None], rng.integers(0, D_IN, (M, 3)), -1).astype(np.int32)
    thresholds = np.where(columns >= 0, X[rng.integers(0, N, (M, 3)), np.maximum(columns, 0)], 0.0)
    kinds = np.zeros((M, 3), np.int8)
    hinged = np.flatnonzero(factors > 0)[::2]
    kinds[hinged, factors[hinged] - 1] = 1
    return FeatureMap("steps", StepProjection(columns, thresholds, kinds, np.full(D_IN, 0.8)), rng.uniform(0.5, 2.0, M))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_maps_and_sums_are_their_definitions(form: type, dtype: str) -> None:
    X, steps, S = form(rows()), some_map(), np.random.default_rng(3).standard_normal((N, 2))
    expected = definitions.atoms(X, steps)
    tight = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(map_rows(X, steps, dtype), expected, rtol=tight, atol=tight)
    np.testing.assert_allclose(feature_sums(X, S, steps, dtype)[0], expected.T @ S, rtol=1e-4, atol=100 * tight)
    squares = feature_squares(X, S[:, 0], steps, dtype)[0]
    np.testing.assert_allclose(squares, (expected**2).T @ S[:, 0], rtol=1e-4, atol=100 * tight)


def test_what_a_device_computes_is_the_definition() -> None:
    (phi,) = mapped(np, rows(), some_map(), np.float64)
    np.testing.assert_allclose(phi, definitions.atoms(rows(), some_map()), rtol=1e-12, atol=1e-12)


def test_a_value_at_a_threshold_lies_below_it() -> None:
    steps = StepProjection(
        np.array([[0, -1, -1]], np.int32), np.full((1, 3), 0.1), np.zeros((1, 3), np.int8), np.ones(1)
    )
    # 0.1 in float32 is larger than 0.1 in float64: rows are compared as they are stored
    X = np.array([[0.1], [np.float32(0.1)], [0.0]])
    assert map_rows(X, FeatureMap("steps", steps, np.ones(1))).ravel().tolist() == [0.0, 1.0, 0.0]


def test_the_code_of_a_value_counts_the_edges_below_it() -> None:
    X = rows().astype(np.float64)
    edges = np.sort(np.random.default_rng(4).standard_normal((D_IN, 7)), axis=1)
    n_edges, codes = np.array([7, 0, 1, 3, 6]), np.empty(X.shape, np.uint8)
    write_codes(X, edges, n_edges, codes)
    expected = [[definitions.code(x, edges[j], n_edges[j]) for j, x in enumerate(row)] for row in X]
    assert codes.tolist() == expected


@pytest.mark.parametrize("n_models", [1, 3])
def test_histograms_are_sums_over_the_rows_inside(n_models: int) -> None:
    """Columns have many, two and one bin, parents few, most and all rows; there are more rows than are collected."""
    rng = np.random.default_rng(5)
    n_edges, n = np.array([6, 1, 0]), 3 * TILE_ROWS + collected_rows(3)
    codes = rng.integers(0, n_edges + 1, (n, 3)).astype(np.uint8)
    phi = (rng.random((n, 4)) < [0.1, 0.9, 1.0, 0.0]).astype(np.float32)
    weight, h, S = rng.integers(0, 3, n).astype(float), rng.random(n), rng.standard_normal((n, n_models))
    parents = np.array([1, 0, 2, 3])
    found = np.zeros((len(parents), 3, 7, 2 + n_models))
    sums = HistogramSums(parents, n_edges, found)
    for rows in spans(n, TILE_ROWS):
        sums.add(codes[rows], phi[rows], weight[rows], h[rows], S[rows])
    sums.finish()
    for histogram, parent in zip(found, parents, strict=True):
        inside = (phi[:, parent] > 0.0) & (weight > 0.0)
        for j in range(3):
            for k, numbers in enumerate([weight, h, *S.T]):
                expected = np.bincount(codes[inside, j], numbers[inside], 7)
                np.testing.assert_allclose(histogram[j, :, k], expected, rtol=1e-9, atol=1e-9)


def test_atoms_read_as_sentences() -> None:
    columns = np.array([[0, 1, -1], [1, -1, -1]], np.int32)
    kinds = np.array([[0, 1, 0], [0, 0, 0]], np.int8)
    steps = StepProjection(columns, np.array([[42.5, 1000.0, 0.0], [2.0, 0.0, 0.0]]), kinds, np.ones(2))
    assert steps.described(["age", "income"]) == ["age > 42.5 and (income - 1000)+", "income > 2"]
    assert steps.joined(steps).take(np.array([3])).described() == ["x[1] > 2"]
    with pytest.raises(ValueError, match="clipped at the same values"):
        steps.joined(StepProjection(columns, np.zeros((2, 3)), kinds, np.zeros(2)))
