"""Cholesky factors by tiles: against NumPy, with the bits of one core, and what has none."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels import threads
from dkl.solvers import cholesky
from dkl.solvers.cholesky import factorise, inverse_bytes, inverse_diagonal, inverse_panels, solve_factor


def system(size: int, seed: int = 0) -> np.ndarray:
    """Positive definite, in Fortran order."""
    A = np.random.default_rng(seed).standard_normal((size, size + 3))
    return np.asfortranarray(A @ A.T)


def upper_only(A: np.ndarray) -> np.ndarray:
    """What is below the diagonal must not be read."""
    return np.asfortranarray(np.where(np.tri(len(A), k=-1, dtype=bool), np.nan, A))


@pytest.mark.parametrize("size", [1, 4, 7, 8, 13, 40])
def test_the_factor_is_the_one_of_numpy(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(cholesky, "_TILE", 4)
    monkeypatch.setattr(cholesky, "_ALONE", 4)
    A = system(size)
    R = upper_only(A)
    assert factorise(R)
    np.testing.assert_allclose(np.triu(R), np.linalg.cholesky(A).T, rtol=1e-9, atol=1e-12)


def test_tiles_of_the_size_that_is_used_give_the_factor_too() -> None:
    A = system(cholesky._ALONE + 5)
    R = upper_only(A)
    assert factorise(R)
    np.testing.assert_allclose(np.triu(R).T @ np.triu(R), A, rtol=1e-9, atol=1e-9)


def test_the_bits_do_not_depend_on_how_many_cores_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(threads, "usable_cores", lambda cores=cores: cores)
        threads._threads.cache_clear()
        R = system(1300)
        assert factorise(R)
        found.append((np.triu(R), inverse_diagonal(R)))
    threads._threads.cache_clear()
    for R, inverse in found[1:]:
        np.testing.assert_array_equal(R, found[0][0])
        np.testing.assert_array_equal(inverse, found[0][1])


@pytest.mark.parametrize("place", [0, 3, 4, 11])
def test_a_matrix_that_is_not_positive_has_no_factor(monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    monkeypatch.setattr(cholesky, "_TILE", 4)
    monkeypatch.setattr(cholesky, "_ALONE", 4)
    A = system(12)
    A[place, place] = -1.0
    assert not factorise(A)


@pytest.mark.parametrize("size", [1, 6, 7, 20])
def test_the_diagonal_of_the_inverse_is_that_of_numpy(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(cholesky, "_COLUMNS", 3)
    A = system(size)
    R = upper_only(np.linalg.cholesky(A).T)
    np.testing.assert_allclose(inverse_diagonal(R), np.diag(np.linalg.inv(A)), rtol=1e-9)
    assert 0 < inverse_bytes(size) <= 8 * size**2


def test_systems_of_a_factor_are_solved_in_place() -> None:
    R = np.triu(system(9))
    B = np.asfortranarray(np.random.default_rng(1).standard_normal((9, 4)))
    expected = np.linalg.solve(R.T, B)
    solve_factor(upper_only(R), B)
    np.testing.assert_allclose(B, expected, rtol=1e-9)


@pytest.mark.parametrize("size", [1, 4, 11, 12])
def test_panels_are_the_columns_of_the_inverse_without_their_zeros(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(cholesky, "_PANEL", 4)
    R = np.linalg.cholesky(system(size)).T
    panels, first = inverse_panels(upper_only(np.asfortranarray(R)).T.copy().T, np.float64), 0
    for panel in panels:
        whole = np.linalg.inv(R)[:, first : len(panel)]
        np.testing.assert_allclose(panel, whole[: len(panel)], rtol=1e-9, atol=1e-12)
        assert not whole[len(panel) :].any()
        first = len(panel)
    assert first == size
