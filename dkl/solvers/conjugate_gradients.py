"""One step of conjugate gradients for several positive definite systems at the same time."""

from __future__ import annotations

import numpy as np


def conjugate_step(
    solutions: np.ndarray, residuals: np.ndarray, searches: np.ndarray, products: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """One step: ``a = r.r / p.Ap``, ``x += a p``, ``r' = r - a Ap``, ``p = r' + (r'.r' / r.r) p``.

    Parameters
    ----------
    solutions, residuals, searches, products : ndarray of shape (g, m)
        x, r = b - A x, p and A p of each system; at the start x = 0 and r = p = b.

    Returns
    -------
    solutions, residuals, searches : ndarray of shape (g, m)
    moved : ndarray of shape (g,), bool
        False where the step has length 0, because the curvature along p is not positive.

    References
    ----------
    Nocedal & Wright 2006, algorithm 5.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.conjugate_gradients import conjugate_step
    >>> b = np.array([[2.0, 0.0]])
    >>> x, r, _, _ = conjugate_step(np.zeros((1, 2)), b, b, 4.0 * b)
    >>> x, r
    (array([[0.5, 0. ]]), array([[0., 0.]]))
    """
    square, curvature = np.einsum("gj,gj->g", residuals, residuals), np.einsum("gj,gj->g", searches, products)
    length = np.where(curvature > 0.0, square / np.where(curvature > 0.0, curvature, 1.0), 0.0)
    solutions = solutions + length[:, None] * searches
    residuals = residuals - length[:, None] * products
    left = np.einsum("gj,gj->g", residuals, residuals)
    searches = residuals + (left / np.maximum(square, np.finfo(np.float64).tiny))[:, None] * searches
    return solutions, residuals, searches, length != 0.0
