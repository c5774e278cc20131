"""The interior-point minimum is that of an active-set solver, and its gap is a bound."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from dkl.solvers.interior_point import minimise_quadratic


@pytest.mark.parametrize("rank", [12, 5])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_minimum_is_that_of_an_active_set_solver(rank: int, scale: float) -> None:
    rng = np.random.default_rng(rank)
    R, t = rng.standard_normal((rank, 12)), scale * rng.standard_normal(rank)
    x, distance = nnls(R, t)
    found = minimise_quadratic(R.T @ R, R.T @ t)
    expected = 0.5 * distance**2 - 0.5 * float(t @ t)
    assert expected < 0.0
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    np.testing.assert_allclose(R @ found.point, R @ x, rtol=0, atol=1e-6 * scale)
    assert (found.point >= 0.0).all()
    assert (found.multipliers >= 0.0).all()


@pytest.mark.parametrize("decades", [4, 12, 18])
def test_the_gap_closes_whatever_the_condition(decades: int) -> None:
    rng = np.random.default_rng(decades)
    Q, _ = np.linalg.qr(rng.standard_normal((80, 80)))
    Q[:, 0] = np.abs(Q[:, 0])
    A = (Q * np.logspace(0, -decades, 80)) @ Q.T + np.full((80, 80), 1e-3)
    b = rng.random(80) ** 4
    found = minimise_quadratic(A, b)
    assert found.steps < 40
    assert 0.0 <= found.gap <= 1e-12 * abs(found.value)
    # no step from the point lowers the value below the bound
    for _ in range(200):
        tried = np.maximum(found.point * (1.0 + 1e-4 * rng.standard_normal(80)) + 1e-6 * rng.random(80), 0.0)
        assert 0.5 * tried @ A @ tried - b @ tried >= found.value - found.gap


def test_nothing_pulls_away_from_zero() -> None:
    found = minimise_quadratic(np.eye(3), np.array([-1.0, 0.0, -2.0]))
    assert found.point.tolist() == [0.0, 0.0, 0.0]
    assert (found.value, found.gap) == (0.0, 0.0)


def test_a_matrix_with_negative_eigenvalues_is_refused() -> None:
    with pytest.raises(FloatingPointError, match="not convex"):
        minimise_quadratic(np.array([[1.0, 3.0], [3.0, 1.0]]) - 4.0 * np.eye(2), np.ones(2))


@pytest.mark.parametrize("size", [1e-160, 1e-200, 1e-300])
def test_numbers_whose_products_are_zero_end_it(size: float) -> None:
    found = minimise_quadratic(np.array([[2.0, 1.0], [1.0, 2.0]]), size * np.array([1.0, 3.0]))
    assert np.isfinite(found.point).all()
    assert 0.0 <= found.gap < 1e-300
