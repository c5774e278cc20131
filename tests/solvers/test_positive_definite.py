"""Positive definite systems: against NumPy, on all cores, and those that rounding left indefinite."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.blas import one_blas_thread
from dkl.solvers import positive_definite as positive
from dkl.solvers.positive_definite import map_systems, solve_positive, systems_at_once


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
