"""How well class probabilities fit held-out rows at many temperatures: sums over a block."""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp, softmax


def calibration_sums(
    scores: np.ndarray, codes: np.ndarray, weight: np.ndarray, multipliers: np.ndarray
) -> dict[str, np.ndarray]:
    """Sums of the log loss of ``softmax(a * scores)`` and of its first two derivatives in log a, for each a.

    Parameters
    ----------
    scores : ndarray of shape (n, K)
        Decision values; for two classes 0 and the decision value.
    codes : ndarray of shape (n,), int64
    weight : ndarray of shape (n,)
    multipliers : ndarray of shape (T,)
        Inverse temperatures a.

    Returns
    -------
    dict
        "label" and "uniform", each of shape (3, T), float64: loss, slope and curvature against the rows' own labels,
        and against labels drawn uniformly, which a prior on the temperature needs.
    """
    label, uniform = np.zeros((3, len(multipliers))), np.zeros((3, len(multipliers)))
    own = np.arange(len(codes)), codes
    for place, multiplier in enumerate(multipliers):
        z = multiplier * scores
        p = softmax(z, axis=1)
        mean = np.sum(p * z, axis=1)
        curvature = np.sum(p * (z - mean[:, None]) ** 2, axis=1)
        total = logsumexp(z, axis=1)
        for sums, expected in ((label, z[own]), (uniform, z.mean(axis=1))):
            slope = mean - expected
            sums[:, place] = weight @ np.stack([total - expected, slope, slope + curvature], axis=1)
    return {"label": label, "uniform": uniform}
