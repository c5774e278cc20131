"""The global search: it finds the highest peak of a box, and its certificate holds everywhere in it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.kernels.nufft import FrequencyGrid, why_no_nufft
from dkl.methods.peaks.driver import PeakTargets
from dkl.methods.peaks.grid_driver import GridDriver, GridProblem, GridState
from dkl.passes.checkpoint import decode_state, encode_state
from tests.methods.test_peaks import blocks_of, result_of

pytestmark = pytest.mark.skipif(why_no_nufft() is not None, reason="finufft is an extra")


def play(problem: GridProblem, blocks: Any) -> tuple[GridState, list[str]]:
    driver, passes = GridDriver(), []
    state = driver.init(problem)
    while records := driver.request(problem, state):
        state = driver.step(problem, state, [result_of(record, blocks) for record in records])
        state = decode_state(GridState, *encode_state(state))
        passes.append(records[0].name)
    return state, passes


def problem_of(X: np.ndarray, y: np.ndarray, reach: int, width: float = 6.0, **others: Any) -> GridProblem:
    d, K = X.shape[1], int(y.max()) + 1
    shares = np.bincount(y) / len(y)
    grid = FrequencyGrid(np.full(d, width / reach), (reach,) * d)
    targets = PeakTargets(K, None, shares)
    origin = Gaussian(1.0).draw(1, d, 0)
    return GridProblem(origin, targets, grid, X.mean(axis=0), 3, 6, len(X), 500, **others)


def roots(X: np.ndarray, y: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Roots of potentials over the sum of absolute weights."""
    S = np.eye(int(y.max()) + 1)[y] - np.bincount(y) / len(y)
    S = S[:, :1] if S.shape[1] == 2 else S
    # cosine and sine apart: NumPy's exp of complex numbers takes ten times as long
    angles = X @ W.T
    F = S.T @ np.cos(angles) + 1j * (S.T @ np.sin(angles))
    return np.linalg.norm(F, axis=0) / np.linalg.norm(np.abs(S).sum(axis=0))


def rows(d: int, n: int = 1_500) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, d)) + 1.0
    return X, (np.sin(X @ np.array([4.0, -3.0, 2.0])[:d]) + 0.3 * np.sin(X[:, 0]) > 0.1).astype(np.int64)


@pytest.mark.parametrize(("d", "reach", "refinements"), [(1, 30, 8), (2, 20, 1), (3, 12, 0), (3, 12, 8)])
def test_the_certificate_holds_everywhere_in_the_box(d: int, reach: int, refinements: int) -> None:
    X, y = rows(d)
    problem = problem_of(X, y, reach, refinements=refinements, tol=0.03)
    state, passes = play(problem, blocks_of(X, y))
    W = np.random.default_rng(1).uniform(-6.0, 6.0, (4_000, d))
    assert roots(X, y, W).max() <= state.bound
    assert state.bound <= 1.0 or refinements == 0
    assert len(passes) <= refinements + 2
    if refinements == 8:
        assert state.bound <= state.best + problem.tol * 1.001
        assert state.best <= roots(X, y, state.points).max() + 1e-4


def test_the_certificate_of_a_coarse_grid_holds_where_the_grid_misses_the_peak() -> None:
    X, y = rows(2)
    problem = problem_of(X, y, 3, refinements=0, tol=1e-3)
    state, _ = play(problem, blocks_of(X, y))
    grid = np.stack(np.meshgrid(*[np.arange(-3, 4) * 2.0] * 2), axis=-1).reshape(-1, 2)
    W = np.random.default_rng(1).uniform(-6.0, 6.0, (4_000, 2))
    highest = roots(X, y, W).max()
    # by more than the tolerance, which alone would not make up for it
    assert roots(X, y, grid).max() + problem.tol < highest
    assert highest <= state.bound


@pytest.mark.parametrize(("d", "reach"), [(1, 40), (2, 24)])
def test_the_highest_peak_is_the_global_one(d: int, reach: int) -> None:
    X, y = rows(d)
    problem = problem_of(X, y, reach)
    state, passes = play(problem, blocks_of(X, y))
    assert passes[0] == "frequency grid"
    assert passes[-1] == "verification"
    best = state.points[np.argmax(state.verified)]
    W = np.random.default_rng(1).uniform(-6.0, 6.0, (6_000, d))
    assert roots(X, y, best[None])[0] >= roots(X, y, W).max() - 1e-3
    np.testing.assert_allclose(np.abs(best), [4.0, 3.0, 2.0][:d], atol=0.15)


def test_several_classes_have_one_potential() -> None:
    X, y = rows(2)
    y = y + (X[:, 1] > 1.5)
    problem = problem_of(X, y, 20, refinements=6)
    state, _ = play(problem, blocks_of(X, y))
    W = np.random.default_rng(1).uniform(-6.0, 6.0, (4_000, 2))
    assert roots(X, y, W).max() <= state.bound


def test_rows_far_out_loosen_the_certificate_and_nothing_else() -> None:
    X, y = rows(2)
    X[:3] = 1e4
    problem = problem_of(X, y, 20, refinements=2)
    state, _ = play(problem, blocks_of(X, y))
    W = np.random.default_rng(1).uniform(-6.0, 6.0, (4_000, 2))
    assert roots(X, y, W).max() <= state.bound
    assert state.verified.max() > 0.3


def test_polished_candidates_stay_in_the_box() -> None:
    X, y = rows(2)
    problem = problem_of(X, y, 10, width=2.0)
    state, _ = play(problem, blocks_of(X, y))
    assert np.abs(state.points).max() <= 2.0 * (1 + 0.5 / 10) + 1e-6


def test_the_plan_holds_the_largest_records() -> None:
    X, y = rows(3)
    problem = problem_of(X, y, 12)
    plan = GridDriver().plan(replace(problem, refinements=4))
    assert [calls for _, calls in plan] == [1, 4, 1]
    assert plan[0][0][0].cost(1_000, 3).flops > plan[2][0][0].cost(1_000, 3).flops
