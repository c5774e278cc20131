"""The minimum of a convex quadratic over numbers that may not fall below a floor."""

from __future__ import annotations

from functools import partial

import numpy as np

from dkl.solvers.interior_point import minimise_quadratic
from dkl.solvers.positive_definite import solve_positive

__all__ = ["bounded_minimum"]

# How often a whole exchange may leave as many numbers on the wrong side as before, until another method takes over.
_PATIENCE = 3
# A gradient below this share of the largest one is rounding, and its sign means nothing.
_ROUNDING = 1e-14


def bounded_minimum(Q: np.ndarray, q: np.ndarray, floor: float, free: np.ndarray | None = None) -> np.ndarray:
    """The x >= floor that minimises ``x'Qx/2 + q'x``, exact up to rounding.

    Block principal pivoting: numbers at the floor with a negative gradient and free ones below the floor change sides,
    all at once while that helps. Where it does not, as for a Q that is nearly singular, an interior-point method ends.

    Parameters
    ----------
    Q : ndarray of shape (D, D)
        Symmetric, positive semidefinite.
    q : ndarray of shape (D,)
    floor : float
    free : ndarray of shape (D,), bool, or None
        A guess of the numbers above the floor, such as those of a problem nearby.

    Returns
    -------
    ndarray of shape (D,)

    References
    ----------
    Portugal, Judice & Vicente 1994, "A comparison of block pivoting and interior-point algorithms for linear least
    squares problems with nonnegative variables".

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.block_pivoting import bounded_minimum
    >>> bounded_minimum(np.eye(2), np.array([-3.0, 1.0]), 1.0)
    array([3., 1.])
    """
    # In z = x - floor >= 0 the problem is z'Qz/2 + shifted'z.
    shifted = q + floor * Q.sum(axis=1)
    noise = _ROUNDING * max(float(np.abs(shifted).max(initial=0.0)), np.finfo(float).tiny)
    free = np.ones(len(q), bool) if free is None else free.copy()
    fewest, patience = len(q) + 1, _PATIENCE
    while True:
        # The stationary point among the free numbers; the others stand at 0.
        z = np.zeros(len(q))
        if free.any():
            index = np.flatnonzero(free)
            z[index] = -solve_positive(partial(_part_of, Q, index), shifted[index])
        # A free number must not be negative, and at a number that stands at 0 the gradient must not be.
        wrong = np.where(free, z < 0.0, Q @ z + shifted < -noise)
        count = int(wrong.sum())
        if count == 0:
            return floor + z
        if count < fewest:
            fewest, patience = count, _PATIENCE
        # An exchange that does not help may be the way to one that does, but whole exchanges may also go round in a
        # circle.
        elif patience > 0:
            patience -= 1
        else:
            return floor + minimise_quadratic(Q, -shifted).point
        free ^= wrong


def _part_of(Q: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The rows and columns of a symmetric matrix at `index`, in Fortran order: a copy that may be overwritten."""
    return Q[np.ix_(index, index)].T
