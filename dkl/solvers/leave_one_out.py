"""Leave-one-out predictions of kernel ridge regression for many penalties, from one eigendecomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class LeftOut:
    """The leave-one-out predictions of `left_out_ridge`.

    Parameters
    ----------
    predictions : ndarray of shape (P, m, K)
        For each penalty the prediction for each row by the model fitted to all other rows.
    degrees_of_freedom : ndarray of shape (P,)
        Effective degrees of freedom, the trace of K (K + penalty I)^-1.
    """

    predictions: np.ndarray
    degrees_of_freedom: np.ndarray


def left_out_ridge(kernel: np.ndarray, Y: np.ndarray, penalties: np.ndarray) -> LeftOut:
    """The predictions of kernel ridge regression for each row, fitted without it.

    With G = K + penalty I the residual of row i in the fit without it is (G^-1 Y)_i / (G^-1)_ii; no fit is repeated.

    Parameters
    ----------
    kernel : ndarray of shape (m, m)
        Symmetric, positive semi-definite.
    Y : ndarray of shape (m, K)
    penalties : ndarray of shape (P,)
        Positive.

    Returns
    -------
    LeftOut

    References
    ----------
    Rasmussen & Williams 2006, "Gaussian processes for machine learning", (5.12).
    """
    values, vectors = np.linalg.eigh(kernel)
    # Rounding may make eigenvalues slightly negative; with a small penalty the sums would be negative, too.
    values = np.maximum(values, 0.0)
    rotated, squares = vectors.T @ Y, vectors**2
    inverse = 1.0 / (values + penalties[:, None])
    # For each penalty, G^-1 Y divided by the diagonal of G^-1, both from the eigenvectors.
    residuals = [
        (vectors @ (reciprocals[:, None] * rotated)) / (squares @ reciprocals)[:, None] for reciprocals in inverse
    ]
    return LeftOut(Y - np.stack(residuals), (values * inverse).sum(axis=1))
