"""The positive temperature that turns decision values into probabilities, and a constant a class where base rates move.

The temperature follows from sums over all held-out rows at a grid of temperatures, the constants from scores in memory.
"""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri, logsumexp

from dkl.linear.sums import MULTIPLIERS

# How sure it has to be that constants of classes do not gain by chance.
_SURE = 0.99


def best_multiplier(
    label: np.ndarray, uniform: np.ndarray, total_weight: float, multipliers: np.ndarray = MULTIPLIERS
) -> float:
    """The inverse temperature a that minimises the log loss of ``softmax(a * scores)``.

    Scores and labels can be separable, which would send a to infinity; so each row counts as uncertain to the degree
    that Platt (1999) gives it, ``2 / (N + 2)`` of its weight spread over all labels.

    Parameters
    ----------
    label, uniform : ndarray of shape (3, T)
        Sums of loss, slope and curvature in log a (`dkl.linear.sums.calibration_sums`).
    total_weight : float
        N, of the rows that were summed.
    multipliers : ndarray of shape (T,)
        Ascending.

    Returns
    -------
    float
        Positive and finite; the end of the grid where the loss still falls there.

    Notes
    -----
    The loss is convex in a, so its slope in log a changes sign once; the root is that of the cubic through slopes and
    curvatures at both ends of the interval.
    """
    doubt = 2.0 / (total_weight + 2.0)
    _, slope, curvature = (1.0 - doubt) * label + doubt * uniform
    rising = np.flatnonzero(slope > 0.0)
    if len(rising) == 0:
        return float(multipliers[-1])
    last = int(rising[0])
    if last == 0:
        return float(multipliers[0])
    ends = slice(last - 1, last + 1)
    log_a = np.log(multipliers[ends])
    width = log_a[1] - log_a[0]
    values, slopes = slope[ends], curvature[ends] * width
    # Bisection for where in [0, 1] the cubic with these values and slopes at both ends is zero: values[0] <= 0 and
    # values[1] > 0.
    low, high = 0.0, 1.0
    for _ in range(60):
        t = 0.5 * (low + high)
        value = (
            (1 + 2 * t) * (1 - t) ** 2 * values[0]
            + t**2 * (3 - 2 * t) * values[1]
            + t * (1 - t) ** 2 * slopes[0]
            + t**2 * (t - 1) * slopes[1]
        )
        low, high = (t, high) if value <= 0.0 else (low, t)
    return float(np.exp(log_a[0] + width * (0.5 * (low + high))))


def least_log_loss(label: np.ndarray, uniform: np.ndarray, total_weight: float) -> float:
    """The mean log loss at the best inverse temperature, of rows that are as uncertain as for `best_multiplier`.

    Parameters
    ----------
    label, uniform, total_weight
        As of `best_multiplier`.

    Returns
    -------
    float

    Notes
    -----
    Between the points of the grid it is the least value of the parabola through the best one.
    """
    doubt = 2.0 / (total_weight + 2.0)
    loss, slope, curvature = (1.0 - doubt) * label + doubt * uniform
    best = int(np.argmin(loss))
    fall = 0.5 * slope[best] ** 2 / curvature[best] if curvature[best] > 0.0 else 0.0
    return float((loss[best] - fall) / total_weight)


def slope_and_shifts(scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray] | None:
    """The a and b that minimise the log loss of ``softmax(a * scores + b)``; None where no b is worth it.

    Rows are uncertain as in `best_multiplier`. The constants are worth it where twice the fall of the loss, beside that
    with the best a alone, is more than chance would bring in one of a hundred samples (a likelihood ratio test with
    K - 1 degrees of freedom).

    Parameters
    ----------
    scores : ndarray of shape (n, K)
        Decision values; for two classes 0 and the decision value.
    codes : ndarray of shape (n,), int64
    weight : ndarray of shape (n,)

    Returns
    -------
    slope : float
        a, positive.
    shifts : ndarray of shape (K,)
        b, of mean 0.

    References
    ----------
    Platt 1999, "Probabilistic outputs for support vector machines"; for several classes the "bias-corrected
    temperature scaling" of Alexandari, Kundaje & Shrikumar 2020.
    """
    # workers find temperatures without it, and it is large
    from scipy.optimize import minimize

    n_classes = scores.shape[1]
    doubt = 2.0 / (weight.sum() + 2.0)
    shares = doubt / n_classes + (1.0 - doubt) * np.eye(n_classes)[codes]

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        # one class has no constant of its own: only differences count
        z = at[0] * scores + np.append(0.0, at[1:])
        total = logsumexp(z, axis=1)
        excess = weight[:, None] * (np.exp(z - total[:, None]) - shares)
        gradient = np.append((excess * scores).sum(), excess[:, 1:].sum(axis=0))
        return float(weight @ (total - (shares * z).sum(axis=1))), gradient

    def with_slope_alone(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(np.append(at, np.zeros(n_classes - 1)))
        return value, gradient[:1]

    # in units of the scores, so that the first step has a sensible length
    start = np.array([1.0 / max(float(np.abs(scores).max(initial=0.0)), np.finfo(np.float64).tiny)])
    alone = minimize(with_slope_alone, start, jac=True, method="BFGS")
    both = minimize(loss, np.append(alone.x, np.zeros(n_classes - 1)), jac=True, method="BFGS")
    if both.x[0] <= 0.0 or 2.0 * (alone.fun - both.fun) <= chdtri(n_classes - 1, 1.0 - _SURE):
        return None
    shifts = np.append(0.0, both.x[1:])
    return float(both.x[0]), shifts - shifts.mean()
