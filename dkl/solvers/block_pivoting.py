"""Minimises a convex quadratic whose variables have a common lower bound, or of which some have a prescribed sign."""

from __future__ import annotations

from functools import partial

import numpy as np

from dkl.solvers.interior_point import minimise_quadratic
from dkl.solvers.systems import solve_positive

__all__ = ["bounded_minimum", "signed_minimum"]

# The number of consecutive exchanges without fewer violations after which the interior-point method takes over.
_PATIENCE = 3
# Gradients below this share of the largest one are treated as rounding errors.
_ROUNDING = 1e-14


def bounded_minimum(Q: np.ndarray, q: np.ndarray, floor: float, free: np.ndarray | None = None) -> np.ndarray:
    """The x >= floor that minimises ``x'Qx/2 + q'x``, exact up to rounding.

    Block principal pivoting: in each step all variables at the floor with a negative gradient become free, and all free
    ones below the floor are set to it. If this stops making progress, as for a nearly singular Q, an interior-point
    method computes the minimum.

    Parameters
    ----------
    Q : ndarray of shape (D, D)
        Symmetric, positive semidefinite.
    q : ndarray of shape (D,)
    floor : float
    free : ndarray of shape (D,), bool, or None
        The variables above the floor at the start, such as those in the solution of a similar problem; None is all.

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
        # The stationary point in the free variables, with the others at 0.
        z = np.zeros(len(q))
        if free.any():
            index = np.flatnonzero(free)
            z[index] = -solve_positive(partial(_part_of, Q, index), shifted[index])
        # The optimality conditions: free variables are not negative, nor is the gradient at variables that are 0.
        wrong = np.where(free, z < 0.0, Q @ z + shifted < -noise)
        count = int(wrong.sum())
        if count == 0:
            return floor + z
        if count < fewest:
            fewest, patience = count, _PATIENCE
        # Exchanges without progress may lead to one with progress, but they may also cycle.
        elif patience > 0:
            patience -= 1
        else:
            return floor + minimise_quadratic(Q, -shifted).point
        free ^= wrong


def signed_minimum(Q: np.ndarray, q: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The x that minimises ``x'Qx/2 + q'x`` with ``signs_j x_j >= 0``; where a sign is 0 the variable is free.

    Given the variables x_s with a sign, the free ones are ``x_f = -Q_ff^-1 (q_f + Q_fs x_s)``. Eliminating
    them leaves a problem in x_s with the Schur complement ``Q_ss - Q_sf Q_ff^-1 Q_fs``.

    Parameters
    ----------
    Q : ndarray of shape (D, D)
        Symmetric, positive definite.
    q : ndarray of shape (D,)
    signs : ndarray of shape (D,)
        -1, 0 or 1.

    Returns
    -------
    ndarray of shape (D,)

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.block_pivoting import signed_minimum
    >>> signed_minimum(np.eye(3), np.array([-3.0, 1.0, 1.0]), np.array([0, 1, -1]))
    array([ 3.,  0., -1.])
    """
    free, bound, x = np.flatnonzero(signs == 0), np.flatnonzero(signs), np.zeros(len(q))
    Q_fs = Q[np.ix_(free, bound)]
    # The free variables at x_s = 0, and their dependence on x_s, by one factorisation.
    solved = np.zeros((len(free), 1 + len(bound)))
    if len(free):
        solved = solve_positive(partial(_part_of, Q, free), np.asfortranarray(np.column_stack([q[free], Q_fs])))
    if len(bound):
        s = signs[bound].astype(np.float64)
        left = Q[np.ix_(bound, bound)] - Q_fs.T @ solved[:, 1:]
        slope = q[bound] - Q_fs.T @ solved[:, 0]
        # In the variables s x, with s the signs, the constraint is s x >= 0.
        x[bound] = s * bounded_minimum((left + left.T) / 2.0 * np.outer(s, s), s * slope, 0.0)
    x[free] = -solved[:, 0] - solved[:, 1:] @ x[bound]
    return x


def _part_of(Q: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The rows and columns of a symmetric matrix at `index`, in Fortran order: a copy that may be overwritten."""
    return Q[np.ix_(index, index)].T
