"""Positive definite systems: against NumPy, on all cores, and those that rounding left indefinite."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.blas import one_blas_thread
from dkl.solvers import positive_definite as positive
from dkl.solvers.positive_definite import KnownSystems, map_systems, solve_positive, systems_at_once


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
        monkeypatch.setattr(positive, "_AT_ONCE_BYTES", 8 * size**2 - 1)
        assert systems_at_once(count, size) == 1
        alone = map_systems(solved, range(count), size)
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_system_that_is_not_quite_positive_gets_a_small_diagonal() -> None:
    A = system(5, 0)
    vector = np.linalg.eigh(A)[1][:, 0]
    A -= (np.linalg.eigvalsh(A)[0] + 1e-10) * np.outer(vector, vector)
    found = solve_positive(lambda: np.asfortranarray(A), A @ np.ones(5))
    np.testing.assert_allclose(A @ found, A @ np.ones(5), rtol=1e-6)


def test_what_is_not_finite_is_an_error_with_the_remedy() -> None:
    with pytest.raises(ValueError, match="the rows are too large"):
        solve_positive(lambda: np.full((2, 2), np.nan, order="F"), np.ones(2))


@pytest.mark.parametrize("is_only", [True, False])
def test_systems_that_are_known_have_the_bits_of_new_ones(is_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single system is factored once, several without finding out again what their diagonals want."""
    A = system(6, 0)
    # indefinite by more than the first thing that is added
    A -= (np.linalg.eigvalsh(A)[0] + 1e-6 * A.trace() / 6) * np.eye(6)
    tries, whole = [], positive.factorise
    monkeypatch.setattr(positive, "factorise", lambda matrix: tries.append(1) or whole(matrix))
    known, counts = KnownSystems(), []
    for right in np.random.default_rng(1).standard_normal((3, 6, 2)):
        expected = solve_positive(A.copy, right)
        tries.clear()
        np.testing.assert_array_equal(known.solve(A, (0, 1.0), A.copy, right, is_only=is_only), expected)
        counts.append(len(tries))
    assert counts[0] > 3
    assert counts[1:] == ([0, 0] if is_only else [1, 1])
    # another matrix is new to it
    other, b = system(6, 2), np.ones((6, 1))
    np.testing.assert_array_equal(
        known.solve(other, (0, 1.0), other.copy, b, is_only=True), solve_positive(other.copy, b)
    )
