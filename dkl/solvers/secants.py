"""Directions of limited-memory BFGS: a metric, corrected by the curvatures that the last steps have shown."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def known_secants(
    moves: np.ndarray, changes: np.ndarray, move: np.ndarray, change: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray]:
    """The last `most` steps and the changes of the gradient along them, after adding one step.

    A step along which the curvature is not positive is left out; for a convex objective this is a rounding error.

    Parameters
    ----------
    moves, changes : ndarray of shape (p, w)
    move, change : ndarray of shape (w,)
    most : int
    """
    if move @ change <= 0.0:
        return moves, changes
    return np.vstack([moves, move])[-most:], np.vstack([changes, change])[-most:]


def secant_direction(
    gradient: np.ndarray,
    moves: np.ndarray,
    changes: np.ndarray,
    solve: Callable[[np.ndarray], np.ndarray],
    *,
    scales: bool = True,
) -> np.ndarray:
    """The approximate inverse Hessian of p secants times a gradient (Nocedal & Wright 2006, algorithm 7.4).

    Parameters
    ----------
    gradient : ndarray of shape (w,)
    moves, changes : ndarray of shape (p, w)
        Steps and the changes of the gradient along them, the oldest first.
    solve : callable
        Multiplies a vector (w,) by the inverse of the metric, the Hessian before corrections (in Nocedal & Wright a
        multiple of the identity).
    scales : bool
        Whether to rescale the metric by the curvature along the last step.

    Returns
    -------
    ndarray of shape (w,)
        Minus this is the next direction.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.secants import secant_direction
    >>> nothing = np.zeros((0, 2))
    >>> secant_direction(np.array([2.0, 4.0]), nothing, nothing, lambda vector: vector / 2.0)
    array([1., 2.])
    """
    curvatures = np.einsum("pw,pw->p", moves, changes)
    direction, shares = gradient.copy(), np.zeros(len(moves))
    for p in reversed(range(len(moves))):
        shares[p] = moves[p] @ direction / curvatures[p]
        direction -= shares[p] * changes[p]
    direction = solve(direction)
    if scales and len(moves):
        direction *= curvatures[-1] / (changes[-1] @ solve(changes[-1]))
    for p in range(len(moves)):
        direction += (shares[p] - changes[p] @ direction / curvatures[p]) * moves[p]
    return direction
