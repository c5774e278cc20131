"""Kernel alignment of candidate features with the targets, and the weights in a divergence ball that maximise it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def class_alignments(
    sums: np.ndarray, totals: np.ndarray, *, center: bool = False, similarity: np.ndarray | None = None
) -> np.ndarray:
    """The alignment of each candidate with class labels, the vector v of (4).

    With F_k the sum of the feature over the rows of class k, v = 2 sum_k |F_k|^2 - |sum_k F_k|^2: for two classes this
    is (sum_i y_i phi(x_i))^2 with y in {-1, 1}, for more the similarity of two rows is 1 in one class and -1 across
    (Letarte, Morvant & Germain 2019, proposition 8). For any similarity S of two labels, v = sum_kl S_kl F_k.F_l.

    Parameters
    ----------
    sums : ndarray of shape (parts, m, K)
        Sums of the features over the rows of each class: cosines and sines for pairs, one part otherwise.
    totals : ndarray of shape (K,)
        The weight of each class.
    center : bool
        Centre the indicators of the classes first: F_k becomes F_k - p_k F, with p the shares of the classes and F the
        sum over all classes, and v is 2 sum_k |F_k - p_k F|^2.
    similarity : ndarray of shape (K, K) or None
        S, symmetric; None is 1 within a class and -1 across.

    Returns
    -------
    ndarray of shape (m,)
        Negative values are possible where S has negative eigenvalues.

    References
    ----------
    Sinha & Duchi 2016, equation (4), and S as before lemma 1 (section 3).
    """
    whole = sums.sum(axis=2)
    if similarity is not None:
        if center:
            sums = sums - whole[:, :, None] * (totals / totals.sum())
        return ((sums @ similarity) * sums).sum(axis=(0, 2))
    if center:
        # The sum over the rows of class k minus its expectation if classes and features were independent.
        deviations = sums - whole[:, :, None] * (totals / totals.sum())
        return 2.0 * np.square(deviations).sum(axis=(0, 2))
    return 2.0 * np.square(sums).sum(axis=(0, 2)) - np.square(whole).sum(axis=0)


def regression_alignments(sums: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The alignment of each candidate with centred targets: |sum_i (y_i - mean(y)) phi(x_i)|^2, summed over targets.

    Parameters
    ----------
    sums : ndarray of shape (parts, m, t + 1)
        Sums of the features with the weights [y, 1], t targets.
    totals : ndarray of shape (t + 1,)
        Sums of [y, 1] themselves.

    Returns
    -------
    ndarray of shape (m,)
    """
    means = totals[:-1] / totals[-1]
    # sum (y - mean) phi = sum y phi - mean sum phi.
    return np.square(sums[:, :, :-1] - means * sums[:, :, -1:]).sum(axis=(0, 2))


def class_diagonal(
    squares: np.ndarray, totals: np.ndarray, *, center: bool = False, similarity: np.ndarray | None = None
) -> np.ndarray:
    """The terms i = j of `class_alignments`, which equation (4) includes and an unbiased estimate leaves out.

    Parameters
    ----------
    squares : ndarray of shape (parts, m, K)
        Sums of the squared features over the rows of each class.
    totals : ndarray of shape (K,)
        The weight of each class.
    center, similarity
        As in `class_alignments`.

    Returns
    -------
    ndarray of shape (m,)
    """
    if similarity is not None:
        # (e_k - p)'S(e_k - p) for centred indicators e_k - p; without centring e_k'S e_k.
        marks = np.eye(len(totals)) - (totals / totals.sum() if center else 0.0)
        return (squares * ((marks @ similarity) * marks).sum(axis=1)).sum(axis=(0, 2))
    if not center:
        return squares.sum(axis=(0, 2))
    shares = totals / totals.sum()
    # The similarity of a row with itself, 2 |e_k - p|^2, for centred indicators e_k - p.
    similarity = 2.0 * (1.0 - 2.0 * shares + np.square(shares).sum())
    return (squares * similarity).sum(axis=(0, 2))


def regression_diagonal(squares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """The terms i = j of `regression_alignments`.

    Parameters
    ----------
    squares : ndarray of shape (parts, m, 2 t + 1)
        Sums of the squared features with the weights [y^2, y, 1].
    totals : ndarray of shape (t + 1,)
        Sums of [y, 1].

    Returns
    -------
    ndarray of shape (m,)
    """
    means = totals[:-1] / totals[-1]
    return (squares @ np.concatenate([np.ones(len(means)), -2.0 * means, [means @ means]])).sum(axis=0)


def maximise_alignment(v: np.ndarray, rho: float, k: float = 2.0) -> np.ndarray:
    """The weights q on the simplex with D_f(q || 1/D) <= rho that maximise q.v.

    The divergence has f(t) = t^k - 1. The solution is proportional to [v - eta]_+^(1/(k-1)), and its divergence falls
    with eta, so that only the number eta has to be found. For k = 2 it has a closed form on a given support, and a few
    reductions of the support find the right one; for other k it is a bracketed root. The paper bisects on a multiplier.

    Parameters
    ----------
    v : ndarray of shape (D,)
        Alignments, of any sign and scale.
    rho : float
        Radius of the ball, >= 0: 0 gives uniform weights. With t exact ties at the largest alignment, the bound has no
        effect from (D/t)^(k-1) - 1 on, and q is uniform on the ties.
    k : float
        Order of the divergence, > 1. No weights have a divergence above D^(k-1) - 1, which is small for k near 1.

    Returns
    -------
    q : ndarray of shape (D,)

    Raises
    ------
    ValueError
        If `v` is not a finite vector, `rho` is negative or `k` at most 1.

    References
    ----------
    Sinha & Duchi 2016, equation (8), algorithm 1 and lemma 4, for k >= 2; Letarte, Morvant & Germain 2019, equations
    (17) and (18), for every k > 1.

    Examples
    --------
    >>> import numpy as np
    >>> maximise_alignment(np.array([3.0, 1.0, 1.0, 0.0]), rho=1.0).round(3)
    array([0.667, 0.167, 0.167, 0.   ])
    """
    v = np.asarray(v, dtype=np.float64)
    if v.ndim != 1 or len(v) == 0 or not np.isfinite(v).all():
        raise ValueError(f"v must be a vector of at least one finite alignment, got shape {v.shape}")
    if not rho >= 0.0:
        raise ValueError(f"rho must be a number >= 0 (0 gives uniform weights), got {rho!r}")
    if not k > 1.0:
        raise ValueError(f"k must be a number > 1, got {k!r}")
    size, top = len(v), v.max()
    spread = top - v.min()
    if rho == 0.0 or spread == 0.0:
        return np.full(size, 1.0 / size)
    # The solution does not change when alignments are shifted or scaled; here they are scaled to [-1, 0].
    heights = (v - top) / spread
    ties = heights == 0.0
    if math.log1p(rho) >= (k - 1.0) * math.log(size / ties.sum()):
        # If uniform weights on the best candidates lie in the ball, they are the maximum.
        return ties / ties.sum()
    weights = _weights_by_elimination(heights, rho) if k == 2.0 else _weights_by_root(heights, rho, k)
    return weights / weights.sum()


def _weights_by_elimination(heights: np.ndarray, rho: float) -> np.ndarray:
    """The weights for k = 2: eta in closed form for a support, from which candidates below eta are removed repeatedly.

    The eta of a support with too many candidates is too low, so that no candidate of the solution is ever removed. A
    few repetitions are enough.
    """
    size, support = len(heights), heights
    while True:
        # With weights proportional to v - eta on the support, D_f = rho is a quadratic equation in eta; eta is
        # mean - gap.
        mean = support.mean()
        gap = math.sqrt(size * support.var() / (len(support) * rho + (len(support) - size)))
        kept = support[support > mean - gap]
        # The true support is larger than size / (1 + rho); a smaller one is due to rounding.
        if len(kept) == len(support) or len(kept) * (1.0 + rho) <= size:
            return np.maximum((heights - mean) + gap, 0.0)
        support = kept


def _weights_by_root(heights: np.ndarray, rho: float, k: float) -> np.ndarray:
    """The weights for any k, by the root of log D_f - log rho as a function of log(-eta); they stay in the ball."""

    def excess(log_gap: float) -> float:
        distance = divergence(_powers(heights, math.exp(log_gap), k), k)
        return min(math.log(max(distance, 1e-300)), 700.0) - math.log(rho)

    # The larger -eta is, the more candidates have weight, and the smaller is the divergence.
    low, high = 0.0, 0.0
    while excess(high) > 0.0:
        high += 2.0
    while excess(low) <= 0.0 and low > -700.0:
        low -= 2.0
    if excess(low) <= 0.0:
        return _powers(heights, math.exp(low), k)
    # The computed root may lie inside or outside the ball: growing steps from it find a value on each side.
    root = _root(excess, low, high, xtol=1e-14, rtol=1e-15)
    inside, outside, step = root, root, 1e-14
    while excess(inside) > 0.0 or excess(outside) <= 0.0:
        inside, outside = (inside + step if excess(inside) > 0.0 else inside), max(low, outside - step)
        step *= 2.0
    return _mixed(_powers(heights, math.exp(inside), k), _powers(heights, math.exp(outside), k), rho, k)


def _mixed(inside: np.ndarray, outside: np.ndarray, rho: float, k: float) -> np.ndarray:
    """The mixture of the weights on both sides of the ball's surface that lies on it.

    Where eta is close to one of the alignments, neighbouring floats of eta give very different weights.
    """

    def excess(share: float) -> float:
        return divergence((1.0 - share) * inside + share * outside, k) - rho

    if excess(0.0) >= 0.0 or excess(1.0) <= 0.0:
        return inside
    share = _root(excess, 0.0, 1.0, xtol=1e-12)
    return (1.0 - share) * inside + share * outside


def _powers(heights: np.ndarray, gap: float, k: float) -> np.ndarray:
    """The weights proportional to [v - eta]_+^(1/(k-1)) for eta = -gap."""
    raised = np.maximum(heights + gap, 0.0)
    # For k < 2 the exponent is above 1 and may be large; dividing by the best candidate avoids overflow, and weights
    # that are all 0.
    weights = (raised / gap if k < 2.0 else raised) ** (1.0 / (k - 1.0))
    return weights / weights.sum()


def divergence(q: np.ndarray, k: float = 2.0) -> float:
    """D_f(q || 1/D) = mean((D q)^k) - 1 of weights that sum to 1.

    It is computed as the mean of (D q)^k - 1 - k (D q - 1), whose terms are not negative, so that small divergences are
    accurate.

    References
    ----------
    Sinha & Duchi 2016, section 2.
    """
    ratio = np.asarray(q, dtype=np.float64) * len(q)
    if k == 2.0:
        return float(np.square(ratio - 1.0).mean())
    with np.errstate(divide="ignore", over="ignore"):
        return float((np.expm1(k * np.log(ratio)) - k * (ratio - 1.0)).mean())


def effective_features(q: np.ndarray) -> float:
    """The effective number of features, 1 / sum(q^2); D / (1 + rho) where the bound is active and k = 2."""
    return float(1.0 / np.square(q).sum())


def _root(function: Callable[[float], float], low: float, high: float, **tolerances: float) -> float:
    """The root of a function between `low` and `high`, by Brent's method."""
    # imported here, since workers load this module and never need SciPy's solvers, which take 15 MB
    from scipy.optimize import brentq

    return brentq(function, low, high, **tolerances)
