"""What an atom is worth beside its parent: the decrease of the objective by a Newton step on it, from histograms."""

from __future__ import annotations

import numpy as np

from dkl.kernels.step_tiles import SHARED_SUMS


def split_scores(
    histograms: np.ndarray,
    values: np.ndarray,
    thresholds: np.ndarray,
    n_edges: np.ndarray,
    *,
    penalty: float,
    least: float,
    signs: np.ndarray | None = None,
) -> np.ndarray:
    """Scores of the steps and of the hinges at every edge of every column, within one parent.

    With s the negative slopes of the rows' losses, h their curvatures, z the mean of a row's bin in place of the column
    (so that the sums of a bin are enough), and sums over the rows of the
    parent p: S, N, n, S1, X1 and X2 are those of s, h, 1, s z, h z and h z^2 over rows with z > t; S_p and N_p are all
    of the parent's; c = X1 - t N. Then

        step:   (S - (N/N_p) S_p)^2 / (N (1 - N/N_p) + nu)
        hinge:  (S1 - t S - (c/N_p) S_p)^2 / (X2 - 2 t X1 + t^2 N - c^2/N_p + nu),

    for the part of the atom that its parent does not explain, summed over the models.

    Parameters
    ----------
    histograms : ndarray of shape (d, bins, 2 + K), float64
        As `dkl.kernels.step_tiles.add_histograms` adds them.
    values : ndarray of shape (d, bins), float64
        z of each bin, standardised.
    thresholds : ndarray of shape (d, bins - 1), float64
        The edges in the units of z.
    n_edges : ndarray of shape (d,), int64
    penalty : float
        nu.
    least : float
        Rows that must lie above a threshold, and for steps below it.
    signs : ndarray of shape (d,) or None
        -1 or 1 where coefficients of the column's atoms have this sign: a Newton step the other way is worth nothing.
        0 for any sign, NaN for none.

    Returns
    -------
    ndarray of shape (2, d, bins - 1)
        Steps, then hinges; 0 where too few rows are on a side.
    """
    z, h, s = values[:, :, None], histograms[:, :, 1:2], histograms[:, :, SHARED_SUMS:]
    # by bin: rows, h, h z, h z^2, then s and s z of each model
    sums = np.concatenate([histograms[:, :, :SHARED_SUMS], h * z, h * z**2, s, s * z], axis=2)
    above = np.cumsum(sums[:, ::-1], axis=1)[:, ::-1]
    total, above = above[:, :1], above[:, 1:]
    n, N, X1, X2 = np.moveaxis(above[:, :, :4], 2, 0)
    S, S1 = np.split(above[:, :, 4:], 2, axis=2)
    n_p, N_p = total[:, :, 0], np.maximum(total[:, :, 1], np.finfo(np.float64).tiny)
    S_p = np.split(total[:, :, 4:], 2, axis=2)[0]
    is_edge = np.arange(thresholds.shape[1]) < n_edges[:, None]
    t = np.where(is_edge, thresholds, 0.0)

    numerator = np.sum(_allowed(S - (N / N_p)[:, :, None] * S_p, signs) ** 2, axis=2)
    steps = numerator / (np.maximum(N * (1.0 - N / N_p), 0.0) + penalty)
    c = X1 - t * N
    numerator = np.sum(_allowed(S1 - t[:, :, None] * S - (c / N_p)[:, :, None] * S_p, signs) ** 2, axis=2)
    hinges = numerator / (np.maximum(X2 - 2.0 * t * X1 + t**2 * N - c**2 / N_p, 0.0) + penalty)
    enough = is_edge & (n >= least)
    return np.stack([np.where(enough & (n_p - n >= least), steps, 0.0), np.where(enough, hinges, 0.0)])


def _allowed(slopes: np.ndarray, signs: np.ndarray | None) -> np.ndarray:
    """Slopes (d, bins - 1, K) of the objective, 0 where a step along them would have the wrong sign."""
    # A comparison with NaN, which stands for no sign at all, is false.
    return slopes if signs is None else np.where(signs[:, None, None] * slopes >= 0.0, slopes, 0.0)
