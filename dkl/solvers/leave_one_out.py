"""Kernel ridge regression with each row left out once, for many penalties, from one eigendecomposition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class LeftOut:
    """What the other rows say of each row.

    Parameters
    ----------
    predictions : ndarray of shape (P, m, K)
        Of a row by the machine that is fitted to all others, for each penalty.
    degrees_of_freedom : ndarray of shape (P,)
        Effective degrees of freedom, the trace of K (K + penalty I)^-1.
    """

    predictions: np.ndarray
    degrees_of_freedom: np.ndarray


def left_out_ridge(kernel: np.ndarray, Y: np.ndarray, penalties: np.ndarray) -> LeftOut:
    """The predictions of kernel ridge regression for each row, fitted without it.

    With G = K + penalty I the residual of row i, left out, is (G^-1 Y)_i / (G^-1)_ii: no machine is fitted again.

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
    # Rounding may leave eigenvalues a little below 0, which a small penalty would not outweigh.
    values = np.maximum(values, 0.0)
    rotated, squares = vectors.T @ Y, vectors**2
    inverse = 1.0 / (values + penalties[:, None])
    # For each penalty, G^-1 Y over the diagonal of G^-1, both from the eigenvectors: no matrix is formed again.
    residuals = [
        (vectors @ (reciprocals[:, None] * rotated)) / (squares @ reciprocals)[:, None] for reciprocals in inverse
    ]
    return LeftOut(Y - np.stack(residuals), (values * inverse).sum(axis=1))
