"""Held-out gains of crosses over their single columns, and of a number's mean and slope by category over the number.

A gain is the share by which a further column lowers the held-out squared error of least squares on few columns. Models
are fitted to the rows of some folds and judged on another fold. All columns are linear in the number in each category
and fold, so that all moments follow from sums by category and fold.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkl.encodings.target_means import FoldTotals
from dkl.linear.judge import is_clear

LEAST_GAIN, _ERRORS = 1e-3, 2.0
"""A mean gain over folds is clear if it is _ERRORS standard errors above LEAST_GAIN, a share of the squared error."""
ADOPTED_GAIN = 0.01
"""The least fall of the held-out squared error, as a share of it, for which further columns are adopted: target means
of the single values of a number (the error with those of neighbouring values is compared), target means of a cross of
numbers (with those of its parts), and slopes. Slopes that lower it by .005, as on adult, change which features the
machine chooses, and its predictions become no better."""


def clear_gain(gains: np.ndarray) -> float:
    """The mean of the gains of folds, (n_folds,), if it is clear; else 0."""
    return float(gains.mean()) if is_clear(gains - LEAST_GAIN, _ERRORS) else 0.0


def clear_mean_gain(per_target: Sequence[np.ndarray]) -> float:
    """`clear_gain` of the mean over targets; a target with gains for fewer folds than others is left out."""
    most = max((len(gains) for gains in per_target), default=0)
    whole = [gains for gains in per_target if len(gains) == most]
    return clear_gain(np.mean(whole, axis=0)) if whole else 0.0


def held_out_gains(moments: np.ndarray, answers: np.ndarray, squares: np.ndarray, totals: FoldTotals) -> np.ndarray:
    """The share by which the last column lowers each fold's squared error, in models of other folds: (..., F - 1).

    Parameters
    ----------
    moments : ndarray of shape (..., F, k, k)
        sum w u u' over the rows of each fold, u the columns of a row; leading axes are for several sets of columns.
    answers : ndarray of shape (..., F, k)
        sum w u y.
    squares : ndarray of shape (F,)
        sum w y^2.
    totals : FoldTotals
        Says which folds the model for each fold is fitted to; a fold without any is left out of the result.
    """
    folds = np.flatnonzero(totals.are_others.any(axis=1) & (squares > 0.0))
    folds = folds[folds > 0]
    if not len(folds):
        return np.zeros((*answers.shape[:-2], 0))
    in_others = totals.are_others[folds]
    A = (in_others @ moments.reshape(*answers.shape[:-1], -1)).reshape(*answers.shape[:-2], -1, *moments.shape[-2:])
    b = in_others @ answers
    # columns of unit length, so that what counts as singular does not depend on units
    length = np.sqrt(np.maximum(np.einsum("...ii->...i", A), np.finfo(np.float64).tiny))
    errors = []
    for k in (b.shape[-1] - 1, b.shape[-1]):
        unit = length[..., :k]
        # least squares of all folds at once
        cosines = A[..., :k, :k] / (unit[..., :, None] * unit[..., None, :])
        inverses = np.linalg.pinv(cosines, rcond=1e-9, hermitian=True)
        w = np.einsum("...ij,...j->...i", inverses, b[..., :k] / unit) / unit
        own = np.einsum("...i,...ij,...j->...", w, moments[..., folds, :k, :k], w)
        errors.append(squares[folds] - 2.0 * np.einsum("...i,...i->...", w, answers[..., folds, :k]) + own)
    return (errors[0] - errors[1]) / np.maximum(errors[0], np.finfo(np.float64).tiny)


def cross_moments(
    weight: np.ndarray, target: np.ndarray, columns: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Moments of some cells of a cross for `held_out_gains`, (F, 4, 4) and (F, 4); moments of several parts add up.

    Parameters
    ----------
    weight, target : ndarray of shape (F, V)
        N and S of one target by fold and cell.
    columns : sequence of three ndarray of shape (F, V)
        The deviations of the cross without its last column, of its last column, and of the cross itself, for rows of
        each fold. The first column of a row is 1.
    """
    u = np.stack([np.ones(weight.shape), *columns], axis=2)
    return np.einsum("fv,fvi,fvj->fij", weight, u, u, optimize=True), np.einsum("fv,fvi->fi", target, u)


def centred_gains(
    sums: dict[str, np.ndarray], deviation: np.ndarray, mean: np.ndarray, totals: FoldTotals
) -> np.ndarray:
    """The held-out gains of a number's mean in the row's category, in a model with the number and the category's mean.

    Parameters
    ----------
    sums : dict of ndarray
        "weight", "target" and "number": sums of w, w y and w x by fold and category, (F, V); "square" and "product":
        of w x^2 and w x y by fold, (F,).
    deviation, mean : ndarray of shape (F, V)
        The category's means of target and of number, for rows of each fold, minus the means of all rows.
    totals : FoldTotals
        The totals of this target alone.
    """
    return held_out_gains(*_moments_of_means(sums, deviation, mean), totals.squares[0], totals)


def _moments_of_means(
    sums: dict[str, np.ndarray], deviation: np.ndarray, mean: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The moments (F, 4, 4) and answers (F, 4) of the columns 1, the number, and the two of `centred_gains`."""
    N, S, X = sums["weight"], sums["target"], sums["number"]
    columns, one = [deviation, mean], np.ones_like(N)
    # moments of (1, x, deviation, mean): constants in a category and fold multiply N, or X where the other factor is x
    constant = [one, *columns]
    moments = np.empty((len(N), 4, 4))
    places = [0, 2, 3]
    for i, u in zip(places, constant, strict=True):
        moments[:, 1, i] = moments[:, i, 1] = (X * u).sum(axis=1)
        for j, v in zip(places, constant, strict=True):
            moments[:, i, j] = (N * u * v).sum(axis=1)
    moments[:, 1, 1] = sums["square"]
    answers = np.stack([(S * u).sum(axis=1) for u in constant], axis=1)
    return moments, np.insert(answers, 1, sums["product"], axis=1)


def slope_gains(
    sums: dict[str, np.ndarray], deviation: np.ndarray, mean: np.ndarray, slopes: np.ndarray, totals: FoldTotals
) -> np.ndarray:
    """The shares by which a column of slopes lowers the held-out squared error of least squares, for P sets of slopes.

    The column is the slope of the row's category times (the number minus its mean in that category). The model without
    it has four columns: 1, the number, and the category's means of the target and of the number.

    Parameters
    ----------
    sums : dict of ndarray
        As in `centred_gains`; and "number square" and "number target": of w x^2 and w x y by fold and category, (F, V).
    deviation, mean : ndarray of shape (F, V)
        The category's mean of the target minus the mean of all rows, and the category's mean of the number, from which
        no mean is subtracted, for rows of each fold.
    slopes : ndarray of shape (P, F, V)
        The category's slopes, for rows of each fold.
    totals : FoldTotals
        The totals of this target alone.

    Returns
    -------
    ndarray of shape (P, n_folds)
    """
    N, S, X = sums["weight"], sums["target"], sums["number"]
    Q, P = sums["number square"], sums["number target"]
    base, of_base = _moments_of_means(sums, deviation, mean)
    gains = []
    for s in slopes:
        # the column is s x + o
        o = -s * mean
        sum_by_category, with_number = s * X + o * N, s * Q + o * X
        own = [sum_by_category, with_number, deviation * sum_by_category, mean * sum_by_category]
        moments, answers = np.zeros((len(N), 5, 5)), np.zeros((len(N), 5))
        moments[:, :4, :4], answers[:, :4] = base, of_base
        moments[:, 4, :4] = moments[:, :4, 4] = np.stack([each.sum(axis=1) for each in own], axis=1)
        moments[:, 4, 4] = (s * with_number + o * sum_by_category).sum(axis=1)
        answers[:, 4] = (s * P + o * S).sum(axis=1)
        gains.append(held_out_gains(moments, answers, totals.squares[0], totals))
    return np.array(gains)
