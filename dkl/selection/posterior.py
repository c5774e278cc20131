"""The pseudo-posterior of candidate features: empirical losses from class sums, and weights that fall with the loss."""

from __future__ import annotations

import math

import numpy as np

from dkl.selection.alignment import class_alignments


def pair_losses(sums: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The empirical loss of the kernel cos(w.(x - x')) of each candidate over all pairs of different rows.

    L(w) = 1/(n(n-1)) sum_{i != j} (1 - s_ij cos(w.(x_i - x_j)))/2, s_ij = 1 within a class and -1 across: the class
    sums give it as n/(2(n-1)) - v/(2n(n-1)), v the alignment with the diagonal.

    Parameters
    ----------
    sums : ndarray of shape (2, m, K)
        Sums of cos(w.x) and sin(w.x) over the rows of each class.
    totals : ndarray of shape (K,)
        The weight of each class; n is their sum.

    Returns
    -------
    ndarray of shape (m,)

    Raises
    ------
    ValueError
        If the rows weigh 1 or less in all, so that there are no pairs.

    References
    ----------
    Letarte, Morvant & Germain 2019, equations (7), (8) and proposition 8.
    """
    n = float(totals.sum())
    if not n > 1.0:
        raise ValueError(f"the loss of a feature needs pairs of rows, but the weights of all rows sum to {n:g}")
    return n / (2.0 * (n - 1.0)) - class_alignments(sums, totals) / (2.0 * n * (n - 1.0))


def pseudo_posterior(losses: np.ndarray, beta: float, n: float) -> np.ndarray:
    """Q proportional to exp(-beta sqrt(n) L) under a uniform prior, computed from logarithms.

    Parameters
    ----------
    losses : ndarray of shape (m,)
    beta : float
        >= 0: 0 is the prior; the larger, the more weight the best candidates have.
    n : float
        Rows, or the sum of their weights.

    Returns
    -------
    ndarray of shape (m,)

    Raises
    ------
    ValueError
        If `beta` is negative or not finite.

    References
    ----------
    Letarte, Morvant & Germain 2019, equation (19).
    """
    if not (math.isfinite(beta) and beta >= 0.0):
        raise ValueError(f"beta must be a finite number >= 0, got {beta!r}")
    exponents = -beta * math.sqrt(n) * (losses - losses.min())
    weights = np.exp(exponents)
    return weights / weights.sum()
