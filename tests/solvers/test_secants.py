"""Secant directions are those of the BFGS update written out as a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.solvers.secants import known_secants, secant_direction


@pytest.mark.parametrize("n_steps", [0, 1, 4])
@pytest.mark.parametrize("scales", [False, True])
def test_directions_are_those_of_updated_inverses(n_steps: int, scales: bool) -> None:
    """H' = (I - r s y^T) H (I - r y s^T) + r s s^T with r = 1 / y.s, from the inverse of the metric."""
    rng, w = np.random.default_rng(n_steps), 6
    metric = (root := rng.normal(size=(w, w))) @ root.T + np.eye(w)
    hessian = (root := rng.normal(size=(w, w))) @ root.T + np.eye(w)
    moves = rng.normal(size=(n_steps, w))
    changes, gradient = moves @ hessian, rng.normal(size=w)
    inverse = np.linalg.inv(metric)
    if scales and n_steps:
        inverse *= (moves[-1] @ changes[-1]) / (changes[-1] @ inverse @ changes[-1])
    for s, y in zip(moves, changes, strict=True):
        r = 1.0 / (y @ s)
        left = np.eye(w) - r * np.outer(s, y)
        inverse = left @ inverse @ left.T + r * np.outer(s, s)
    found = secant_direction(gradient, moves, changes, lambda right: np.linalg.solve(metric, right), scales=scales)
    np.testing.assert_allclose(found, inverse @ gradient, rtol=1e-9)
    if n_steps:
        # the last step is explained: the inverse takes its change of the gradient back to it
        back = secant_direction(
            changes[-1], moves, changes, lambda right: np.linalg.solve(metric, right), scales=scales
        )
        np.testing.assert_allclose(back, moves[-1], rtol=1e-9)


def test_the_last_steps_are_kept_and_those_that_curve_down_are_not() -> None:
    moves, changes = np.eye(3)[:2], 2.0 * np.eye(3)[:2]
    more = known_secants(moves, changes, np.eye(3)[2], 2.0 * np.eye(3)[2], most=2)
    for kept, expected in zip(more, (np.eye(3)[1:], 2.0 * np.eye(3)[1:]), strict=True):
        np.testing.assert_array_equal(kept, expected)
    same = known_secants(moves, changes, np.eye(3)[2], -np.eye(3)[2], most=2)
    assert same[0] is moves
    assert same[1] is changes
