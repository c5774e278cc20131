"""The one positive temperature that turns decision values into probabilities, from sums at a grid of temperatures."""

from __future__ import annotations

import numpy as np

# Half octaves: wide enough for any scale of decision values, narrow enough to interpolate to 1e-4.
MULTIPLIERS = 2.0 ** np.arange(-20.0, 20.5, 0.5)


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
