"""Calibration of probabilities: the temperature of decision values, and a shift for each class where base rates change.

The temperature follows from sums over all held-out rows on a grid of temperatures, the shifts from scores in memory.
"""

from __future__ import annotations

import numpy as np
from scipy.special import chdtri, logsumexp

from dkl.linear.sums import MULTIPLIERS

# Confidence with which shifts of classes must improve the loss, to be used.
_SURE = 0.99


def best_multiplier(
    label: np.ndarray, uniform: np.ndarray, total_weight: float, multipliers: np.ndarray = MULTIPLIERS
) -> float:
    """The inverse temperature a that minimises the log loss of ``softmax(a * scores)``.

    Scores may separate the labels, and a would tend to infinity. So each row has the uncertain label of Platt (1999):
    ``2 / (N + 2)`` of its weight is spread over all labels.

    Parameters
    ----------
    label, uniform : ndarray of shape (3, T)
        Sums of loss, slope and curvature in log a, at the true and at uniform labels
        (`dkl.linear.sums.calibration_sums`).
    total_weight : float
        N, the total weight of the summed rows.
    multipliers : ndarray of shape (T,)
        Ascending.

    Returns
    -------
    float
        Positive and finite; an end of the grid if the loss still falls there.

    Notes
    -----
    The loss is convex in a, so its slope in log a changes sign once. The root is that of the cubic which has the slopes
    and curvatures at both ends of the interval.
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
    # bisection for the zero in [0, 1] of the cubic with these values and slopes at its ends, where values[0] <= 0 <
    # values[1]
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
    """The mean log loss at the best inverse temperature, with the uncertain labels of `best_multiplier`.

    Parameters
    ----------
    label, uniform, total_weight
        As in `best_multiplier`.

    Returns
    -------
    float

    Notes
    -----
    Between grid points it is the minimum of the parabola at the best one.
    """
    doubt = 2.0 / (total_weight + 2.0)
    loss, slope, curvature = (1.0 - doubt) * label + doubt * uniform
    best = int(np.argmin(loss))
    fall = 0.5 * slope[best] ** 2 / curvature[best] if curvature[best] > 0.0 else 0.0
    return float((loss[best] - fall) / total_weight)


def slope_and_shifts(scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> tuple[float, np.ndarray] | None:
    """The a and b that minimise the log loss of ``softmax(a * scores + b)``; None where b improves it too little.

    Labels are uncertain as in `best_multiplier`. The shifts b must lower twice the loss, relative to the best a alone,
    by more than chance would in 99 of 100 samples (a likelihood ratio test with K - 1 degrees of freedom).

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
    # a large import that workers, which only compute temperatures, do not need
    from scipy.optimize import minimize

    n_classes = scores.shape[1]
    doubt = 2.0 / (weight.sum() + 2.0)
    shares = doubt / n_classes + (1.0 - doubt) * np.eye(n_classes)[codes]

    def loss(at: np.ndarray) -> tuple[float, np.ndarray]:
        # the first class has no shift, since only differences matter
        z = at[0] * scores + np.append(0.0, at[1:])
        total = logsumexp(z, axis=1)
        excess = weight[:, None] * (np.exp(z - total[:, None]) - shares)
        gradient = np.append((excess * scores).sum(), excess[:, 1:].sum(axis=0))
        return float(weight @ (total - (shares * z).sum(axis=1))), gradient

    def with_slope_alone(at: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = loss(np.append(at, np.zeros(n_classes - 1)))
        return value, gradient[:1]

    # in units of the scores, so that the first step has a suitable length
    start = np.array([1.0 / max(float(np.abs(scores).max(initial=0.0)), np.finfo(np.float64).tiny)])
    alone = minimize(with_slope_alone, start, jac=True, method="BFGS")
    both = minimize(loss, np.append(alone.x, np.zeros(n_classes - 1)), jac=True, method="BFGS")
    if both.x[0] <= 0.0 or 2.0 * (alone.fun - both.fun) <= chdtri(n_classes - 1, 1.0 - _SURE):
        return None
    shifts = np.append(0.0, both.x[1:])
    return float(both.x[0]), shifts - shifts.mean()
