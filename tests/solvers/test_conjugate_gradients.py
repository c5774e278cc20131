"""Conjugate gradients solve several systems at once, each in as many steps as it has unknowns."""

from __future__ import annotations

import numpy as np

from dkl.solvers.conjugate_gradients import conjugate_step


def test_as_many_steps_as_unknowns_solve_each_system() -> None:
    rng, n = np.random.default_rng(0), 5
    roots = rng.normal(size=(3, n, n))
    systems = roots @ roots.transpose(0, 2, 1) + np.eye(n)
    b = rng.normal(size=(3, n))
    x, r, p = np.zeros_like(b), b, b
    for _ in range(n):
        x, r, p, moved = conjugate_step(x, r, p, np.einsum("gij,gj->gi", systems, p))
        assert moved.all()
        np.testing.assert_allclose(r, b - np.einsum("gij,gj->gi", systems, x), atol=1e-10)
    np.testing.assert_allclose(x, np.linalg.solve(systems, b[..., None])[..., 0], rtol=1e-8)


def test_a_system_without_curvature_does_not_move() -> None:
    b = np.array([[1.0, 2.0]])
    x, _, _, moved = conjugate_step(np.zeros_like(b), b, b, np.zeros_like(b))
    assert not moved.any()
    np.testing.assert_array_equal(x, 0.0)
