"""Scores of atoms from histograms: the decrease of the objective by a Newton step on an atom and its parent."""

from __future__ import annotations

import numba
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
    parent p: S, N, n, S1, X1, X2 are the sums of s, h, 1, s z, h z and h z^2 over rows with z > t; S_p and N_p are all
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
    K = histograms.shape[2] - SHARED_SUMS
    z, h, s = values[:, :, None], histograms[:, :, 1:2], histograms[:, :, SHARED_SUMS:]
    # by bin: rows, h, h z, h z^2, then s and s z of each model
    sums = np.concatenate([histograms[:, :, :SHARED_SUMS], h * z, h * z**2, s, s * z], axis=2)
    scores = np.zeros((2, *thresholds.shape))
    allowed = np.zeros(len(histograms)) if signs is None else np.asarray(signs, np.float64)
    room = np.empty((2, sums.shape[2]))
    _write_scores(sums, thresholds, n_edges, allowed, (K, float(penalty), float(least)), room, scores)
    return scores


@numba.njit(nogil=True, cache=True, error_model="numpy")
def _write_scores(
    sums: np.ndarray,
    thresholds: np.ndarray,
    n_edges: np.ndarray,
    signs: np.ndarray,
    settings: tuple[int, float, float],
    room: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the scores of `split_scores`: each column's sums are added up from its last bin down to its first.

    `room` is for the sums over all bins and over those above an edge, (2, 3 + 2 K): to add whole arrays, or to ask for
    memory, takes several times as long to compile.
    """
    K, penalty, least = settings
    total, above = room[0], room[1]
    width = sums.shape[2]
    for j in range(sums.shape[0]):
        if np.isnan(signs[j]):
            continue
        for c in range(width):
            total[c], above[c] = 0.0, 0.0
        for edge in range(sums.shape[1] - 1, -1, -1):
            for c in range(width):
                total[c] += sums[j, edge, c]
        n_p, N_p = total[0], max(total[1], 2.3e-308)
        for edge in range(thresholds.shape[1] - 1, -1, -1):
            for c in range(width):
                above[c] += sums[j, edge + 1, c]
            n, N, X1, X2 = above[0], above[1], above[2], above[3]
            if edge >= n_edges[j] or n < least:
                continue
            t = thresholds[j, edge]
            c = X1 - t * N
            step, hinge = 0.0, 0.0
            for k in range(K):
                S, S1, S_p = above[4 + k], above[4 + K + k], total[4 + k]
                # slopes of the objective count if a step along them has the required sign
                slope, ramp = S - N / N_p * S_p, S1 - t * S - c / N_p * S_p
                step += slope**2 if signs[j] * slope >= 0.0 else 0.0
                hinge += ramp**2 if signs[j] * ramp >= 0.0 else 0.0
            if n_p - n >= least:
                out[0, j, edge] = step / (max(N * (1.0 - N / N_p), 0.0) + penalty)
            out[1, j, edge] = hinge / (max(X2 - 2.0 * t * X1 + t**2 * N - c**2 / N_p, 0.0) + penalty)
