"""Positive definite systems: against NumPy, on all cores, and those that rounding left indefinite."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.threads import one_blas_thread
from dkl.solvers import systems
from dkl.solvers.systems import PenalisedSystems, map_systems, solve_positive, systems_at_once


def system(size: int, seed: int) -> np.ndarray:
    A = np.random.default_rng(seed).standard_normal((size, size + 3))
    return A @ A.T


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("right", [(7,), (7, 2)])
def test_a_solution_is_that_of_a_general_solver(order: str, right: tuple[int, ...]) -> None:
    A, b = system(7, 0), np.random.default_rng(1).standard_normal(right)
    found = solve_positive(lambda: np.array(np.triu(A), order=order), b)
    np.testing.assert_allclose(found, np.linalg.solve(A, b), rtol=1e-9)


def test_systems_on_all_cores_have_the_bits_of_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    size, count = 200, 12
    b = np.ones(size)

    def solved(seed: int) -> np.ndarray:
        return solve_positive(lambda: np.asfortranarray(system(size, seed)), b)

    with one_blas_thread():
        together = map_systems(solved, range(count), size)
        monkeypatch.setattr(systems, "_AT_ONCE_BYTES", 8 * size**2 - 1)
        assert systems_at_once(count, size) == 1
        alone = map_systems(solved, range(count), size)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("width", [10, 1_000, 2_000, 2_500, 5_000])
def test_systems_that_are_written_out_at_once_take_64_mib_at_most(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems, "usable_cores", lambda: 64)
    at_once = systems_at_once(100, width)
    assert at_once == 1 or at_once * 8 * width**2 <= 64 << 20


def test_a_system_that_is_not_quite_positive_gets_a_small_diagonal() -> None:
    A = system(5, 0)
    vector = np.linalg.eigh(A)[1][:, 0]
    A -= (np.linalg.eigvalsh(A)[0] + 1e-10) * np.outer(vector, vector)
    found = solve_positive(lambda: np.asfortranarray(A), A @ np.ones(5))
    np.testing.assert_allclose(A @ found, A @ np.ones(5), rtol=1e-6)


def test_what_is_not_finite_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="the rows or the weights are too large"):
        solve_positive(lambda: np.full((2, 2), np.nan, order="F"), np.ones(2))


@pytest.mark.parametrize("A", [-np.eye(3), np.zeros((3, 3)), np.diag([1.0, 1.0, -3.0])], ids=["-1", "0", "mixed"])
def test_a_system_without_curvature_is_an_error_and_no_endless_loop(A: np.ndarray) -> None:
    with pytest.raises(ValueError, match="curvature of the loss, summed over the rows, is negative or 0"):
        solve_positive(lambda: np.asfortranarray(A), np.ones(3))


def test_features_that_are_all_zero_have_the_penalty_as_their_system() -> None:
    gram = np.zeros((4, 4))
    gram[3, 3] = 20.0
    for penalty in (1e-3, 0.0):
        (x,) = PenalisedSystems().solve(packed(gram)[None], 20.0, 0, penalty, np.array([[0.0, 0.0, 0.0, 0.5]]))
        np.testing.assert_allclose(x, [0.0, 0.0, 0.0, 0.5], rtol=1e-6)


def packed(A: np.ndarray) -> np.ndarray:
    """The upper triangle, column by column."""
    return np.concatenate([A[: j + 1, j] for j in range(len(A))])


def test_each_right_side_has_the_solution_for_its_matrix_and_penalty() -> None:
    grams, generator = [system(7, 0), system(7, 1)], np.random.default_rng(2)
    which, penalties = np.array([0, 1, 1, 0, 0]), np.array([0.1, 0.1, 30.0, 0.1, 2.0])
    right, solver = generator.standard_normal((5, 7)), PenalisedSystems()
    rows = np.stack([packed(A) for A in grams])
    for _ in range(2):
        found = solver.solve(rows, 20.0, which, penalties, right)
        for number, penalty, b, x in zip(which, penalties, right, found, strict=True):
            # the intercept, which is the last, has no penalty
            expected = np.linalg.solve(grams[number] / 20.0 + penalty * np.diag([1.0] * 6 + [0.0]), b)
            np.testing.assert_allclose(x, expected, rtol=1e-9, atol=1e-11)


def test_an_intercept_beside_features_that_add_up_to_a_constant_is_no_error() -> None:
    phi = np.random.default_rng(0).random((50, 4))
    phi = np.column_stack([phi / phi.sum(axis=1, keepdims=True), np.ones(50)])
    right = phi.sum(axis=0)[None]
    (x,) = PenalisedSystems().solve(packed(phi.T @ phi)[None], 1.0, 0, 1e-9, right)
    np.testing.assert_allclose(phi @ x, 1.0, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_known_of_systems_saves_work_and_changes_no_bit(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single system is factored once, several without finding out again what their diagonals want."""
    A = system(6, 0)
    # indefinite by more than the first thing that is added
    A -= (np.linalg.eigvalsh(A)[0] + 1e-6 * A.trace() / 6) * np.eye(6)
    tries, factorise = [], systems.factorise
    monkeypatch.setattr(systems, "factorise", lambda matrix: tries.append(1) or factorise(matrix))
    grams, penalties = packed(A)[None], np.array([0.0, 1e-9])[np.arange(2) % count]
    solver, counts = PenalisedSystems(), []
    for right in np.random.default_rng(1).standard_normal((3, 2, 6)):
        expected = PenalisedSystems().solve(grams, 1.0, 0, penalties, right)
        tries.clear()
        np.testing.assert_array_equal(solver.solve(grams, 1.0, 0, penalties, right), expected)
        counts.append(len(tries))
    assert counts[0] > 3 * count
    assert counts[1:] == ([0, 0] if count == 1 else [2, 2])
    # other matrices are new to it
    other, right = packed(system(6, 2))[None], np.ones((2, 6))
    np.testing.assert_array_equal(
        solver.solve(other, 1.0, 0, penalties, right), PenalisedSystems().solve(other, 1.0, 0, penalties, right)
    )
