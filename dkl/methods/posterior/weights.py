"""The pseudo-posterior of candidate features: empirical losses from class sums, and weights from these losses."""

from __future__ import annotations

import math

import numpy as np

from dkl.solvers.kernel_alignment import class_alignments


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
        If the total weight of the rows is at most 1, so that there are no pairs.

    References
    ----------
    Letarte, Morvant & Germain 2019, equations (7), (8) and proposition 8.
    """
    n = float(totals.sum())
    if not n > 1.0:
        raise ValueError(f"the loss of a feature needs pairs of rows, but the weights of all rows sum to {n:g}")
    # n(n - 1) pairs of 1/2 each, minus half their agreement; the n pairs of a row with itself have agreement 1
    return n / (2.0 * (n - 1.0)) - class_alignments(sums, totals) / (2.0 * n * (n - 1.0))


def landmark_losses(
    sums: np.ndarray, totals: np.ndarray, angles: np.ndarray, codes: np.ndarray, *, centroids: bool = False
) -> np.ndarray:
    """The empirical loss of each candidate cos(w.(x_l - x)) around its landmark.

    L = 1/(n - 1) sum_{j != l} (1 - s_lj cos(w.(x_l - x_j)))/2. With a_k = cos(w.x_l) C_k + sin(w.x_l) Q_k it is 1/2 -
    (2 a_(y_l) - sum_k a_k - 1)/(2 (n - 1)). For a centroid, which is not one of the rows, it is the mean over all n
    rows.

    Parameters
    ----------
    sums : ndarray of shape (2, L, D, K), or (2, 1, D, K) for frequencies that all landmarks share
        Sums of cos(w.x) and sin(w.x), for the D frequencies of each of L landmarks, over the rows of each class.
    totals : ndarray of shape (K,)
        The weight of each class; n is their sum.
    angles : ndarray of shape (L, D)
        w.x_l, radians.
    codes : ndarray of shape (L,), int64
        The class of each landmark.
    centroids : bool

    Returns
    -------
    ndarray of shape (L, D)

    Raises
    ------
    ValueError
        If the total weight of the rows is at most 1, so that a landmark has no other rows.

    References
    ----------
    Letarte, Morvant & Germain 2019, equation (10).
    """
    n = float(totals.sum())
    if not n > 1.0:
        raise ValueError(f"the loss around a landmark needs other rows, but the weights of all rows sum to {n:g}")
    # shared frequencies have index 0 for every landmark
    own = np.arange(len(codes)) % sums.shape[1]
    # s_lj is 1 within the class of the landmark and -1 outside: twice the sums of its class minus the sums of all
    C, Q = (2.0 * part[own, :, codes] - part.sum(axis=2)[own] for part in sums)
    agreement = np.cos(angles) * C + np.sin(angles) * Q
    if centroids:
        # a centroid is not a row, so no pair with itself is subtracted
        return 0.5 - agreement / (2.0 * n)
    return 0.5 - (agreement - 1.0) / (2.0 * (n - 1.0))


def pseudo_posterior(losses: np.ndarray, beta: float, n: float) -> np.ndarray:
    """Q proportional to exp(-beta sqrt(n) L) under a uniform prior, computed from logarithms.

    Parameters
    ----------
    losses : ndarray of shape (..., m)
        Several posteriors at once: one for each row of the last axis.
    beta : float
        >= 0; 0 is the prior, and larger values concentrate the weights on the best candidates.
    n : float
        Rows, or the sum of their weights.

    Returns
    -------
    ndarray of shape (..., m)
        Each posterior sums to 1.

    Raises
    ------
    ValueError
        If `beta` is negative or not finite.

    References
    ----------
    Letarte, Morvant & Germain 2019, equations (12) and (19).
    """
    if not (math.isfinite(beta) and beta >= 0.0):
        raise ValueError(f"beta must be a finite number >= 0, got {beta!r}")
    # the smallest loss is subtracted, so that the largest weight is exp(0) before normalisation
    exponents = -beta * math.sqrt(n) * (losses - losses.min(axis=-1, keepdims=True))
    weights = np.exp(exponents)
    return weights / weights.sum(axis=-1, keepdims=True)


def minimised_t(beta: float, n: float) -> float:
    """The t of the PAC-Bayesian bounds that the pseudo-posterior minimises: beta sqrt(n), or sqrt(n) for beta = 0."""
    return (beta or 1.0) * math.sqrt(n)
