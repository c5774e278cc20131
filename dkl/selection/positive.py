"""Symmetric positive systems from sums of float32 products, which rounding may leave a little indefinite."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack


def solve_positive(form: Callable[[], np.ndarray], right: np.ndarray) -> np.ndarray:
    """The solution of a symmetric positive definite system by Cholesky; one that is not quite gets a growing diagonal.

    Parameters
    ----------
    form : callable
        Makes the matrix (m, m), in Fortran order, of which the upper triangle counts and which is overwritten: again
        for each try, so that no copy is kept.
    right : ndarray of shape (m,) or (m, r)

    Returns
    -------
    ndarray of the shape of `right`

    Raises
    ------
    ValueError
        If the matrix is not finite.
    """
    extra = 0.0
    while True:
        system = form()
        diagonal = np.einsum("ii->i", system)
        scale = diagonal.mean()
        if not np.isfinite(scale):
            raise ValueError(
                "the products of the mapped rows are not finite: the rows are too large. Scale them "
                "(scaling='standard' of the feature learner), or use dtype='float64'"
            )
        diagonal += extra
        factor, failed = lapack.dpotrf(system, lower=0, overwrite_a=1)
        if not failed:
            return lapack.dpotrs(factor, right, lower=0)[0]
        extra = 10.0 * extra if extra else 1e-9 * scale
