"""Sums at many frequencies for rows of few columns: within their stated error of the definition, wherever rows lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dkl.kernels import nufft
from dkl.kernels.nufft import ACCURACY, FrequencyGrid, grid_sums, scattered_sums, variation_sums
from dkl.kernels.sums import feature_sums
from tests.definitions import blocks as definitions

with_finufft = pytest.mark.skipif(nufft.why_no_nufft() is not None, reason="finufft is an extra")

GRIDS = {
    1: FrequencyGrid(np.array([0.3]), (9,)),
    2: FrequencyGrid(np.array([0.3, 0.1]), (4, 3)),
    3: FrequencyGrid(np.array([0.3, 0.1, 0.5]), (3, 2, 2)),
}


def case(d: int, n: int = 40, outputs: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d)) + 3.0
    X[0] = 500.0
    return X, rng.standard_normal((n, outputs))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_grid_lists_half_of_its_frequencies(d: int) -> None:
    grid = GRIDS[d]
    W = grid.frequencies()
    assert len(W) == grid.size == np.prod(grid.shape)
    both = {tuple(np.round(w / grid.spacing).astype(int)) for w in np.concatenate([W, -W])}
    assert len(both) == np.prod([2 * reach + 1 for reach in grid.reach])
    np.testing.assert_array_equal(grid.frequencies(np.array([0, grid.size - 1])), W[[0, -1]])


@with_finufft
@pytest.mark.parametrize("storage", ["dense", "sparse"])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_grid_sums_are_their_definition(d: int, storage: str) -> None:
    X, S = case(d)
    given: Any = sparse.csr_array(X) if storage == "sparse" else X
    found, expected = grid_sums(given, S, GRIDS[d]), definitions.grid_sums(X, S, GRIDS[d])
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < ACCURACY * np.abs(S).sum(axis=0).max()


@with_finufft
@pytest.mark.parametrize("far", [False, True])
@pytest.mark.parametrize("d", [1, 2, 3])
def test_scattered_sums_are_their_definition_also_where_rows_lie_far_out(
    d: int, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed_directly: list[bool] = []

    def counted(*args: Any) -> np.ndarray:
        formed_directly.append(True)
        return feature_sums(*args)

    monkeypatch.setattr(nufft, "feature_sums", counted)
    X, S = case(d)
    X = X if far else X[1:]
    S = S[-len(X) :]
    W, center = np.random.default_rng(1).uniform(-4, 4, (30, d)), np.full(d, 2.5)
    found, expected = scattered_sums(X, S, W, center), definitions.scattered_sums(X, S, W, center)
    assert far == bool(formed_directly) or d < 3
    assert np.abs(found - expected).max() < ACCURACY * np.abs(S).sum(axis=0).max()


@with_finufft
def test_blocks_add_up_and_no_rows_are_nothing() -> None:
    X, S = case(2, 300)
    parts = [grid_sums(X[rows], S[rows], GRIDS[2]) for rows in (slice(0, 100), slice(100, 100), slice(100, None))]
    assert not parts[1].any()
    assert np.abs(sum(parts) - grid_sums(X, S, GRIDS[2])).max() < 2 * ACCURACY * np.abs(S).sum(axis=0).max()
    assert not scattered_sums(X[:0], S[:0], np.ones((3, 2)), np.zeros(2)).any()


@with_finufft
def test_the_same_rows_give_the_same_bits() -> None:
    X, S = case(3, 5_000)
    assert grid_sums(X, S, GRIDS[3]).tobytes() == grid_sums(X.copy(), S.copy(), GRIDS[3]).tobytes()


@pytest.mark.parametrize("d", [1, 2, 3])
def test_variations_are_their_definition_and_bound_what_sums_change_within_a_cell(d: int) -> None:
    X, S = case(d)
    half, center = np.array([0.2, 0.05, 0.1])[:d], np.array([2.0, 3.0, 4.0])[:d]
    found = variation_sums(X, S, half, center)
    np.testing.assert_allclose(found, definitions.variation_sums(X, S, half, center), rtol=1e-12)
    rng = np.random.default_rng(0)
    w, inside = rng.standard_normal(d), rng.uniform(-1, 1, (200, d)) * half

    def roots(W: np.ndarray) -> np.ndarray:
        return np.abs(S.T @ np.exp(1j * X @ W.T))

    assert np.all(np.abs(roots(w + inside) - roots(w[None])) <= found.max(axis=0)[:, None])


def test_rows_of_many_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="for rows of at most 3 columns; these have 4"):
        variation_sums(np.ones((5, 4)), np.ones(5), np.ones(4), np.zeros(4))
