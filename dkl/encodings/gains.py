"""Whether a cross of two categories, or a number less the mean of its category, predicts what the parts do not.

Both are judged by held-out squared errors of least squares on few columns, which follow from sums by category and fold:
a model is fitted to the rows of some folds and judged on those of another one. The columns of a row are constant in its
category and fold, but for the number itself, so that all moments are sums over categories.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dkl.encodings.target_means import FoldTotals

LEAST_GAIN = 1e-3
"""Of the squared error: a gain is clear where the mean over folds less two standard errors is above this."""


def clear_gain(gains: np.ndarray) -> float:
    """The mean gain over folds, (n_folds,), where it is clear; else 0."""
    if len(gains) < 2:
        return 0.0
    error = gains.std(ddof=1) / np.sqrt(len(gains))
    return float(gains.mean()) if gains.mean() - 2.0 * error > LEAST_GAIN else 0.0


def clear_mean_gain(per_target: Sequence[np.ndarray]) -> float:
    """`clear_gain` of the mean over targets, of those that every fold has rows of."""
    most = max((len(gains) for gains in per_target), default=0)
    whole = [gains for gains in per_target if len(gains) == most]
    return clear_gain(np.mean(whole, axis=0)) if whole else 0.0


def held_out_gains(moments: np.ndarray, answers: np.ndarray, squares: np.ndarray, totals: FoldTotals) -> np.ndarray:
    """By which share the last column lowers the squared error on each fold, by models of other folds: (at most F - 1,).

    Parameters
    ----------
    moments : ndarray of shape (F, k, k)
        sum w u u' over the rows of each fold, u the columns of a row.
    answers : ndarray of shape (F, k)
        sum w u y.
    squares : ndarray of shape (F,)
        sum w y^2.
    totals : FoldTotals
        It says which folds models of a fold are fitted to; a fold without any is left out.
    """
    gains = []
    for fold in range(1, len(moments)):
        others = totals.others(fold)
        if not others or not squares[fold] > 0:
            continue
        A, b = moments[others].sum(axis=0), answers[others].sum(axis=0)
        # columns of unit length, so that what counts as singular does not depend on units
        length = np.sqrt(np.maximum(np.diagonal(A), np.finfo(np.float64).tiny))
        errors = []
        for k in (len(b) - 1, len(b)):
            scaled = A[:k, :k] / np.outer(length[:k], length[:k])
            w = np.linalg.lstsq(scaled, b[:k] / length[:k], rcond=1e-9)[0] / length[:k]
            errors.append(squares[fold] - 2.0 * w @ answers[fold, :k] + w @ moments[fold, :k, :k] @ w)
        gains.append((errors[0] - errors[1]) / max(errors[0], np.finfo(np.float64).tiny))
    return np.array(gains)


def cross_gains(
    weight: np.ndarray, target: np.ndarray, own: tuple[np.ndarray, np.ndarray], crossed: np.ndarray, totals: FoldTotals
) -> np.ndarray:
    """The held-out gains of the mean of pairs of values beside the means of both values, on the rows that have both.

    Parameters
    ----------
    weight, target : ndarray of shape (F, A B + 1)
        N and S of one target by fold and pair; the first of them, of rows without a pair, does not count.
    own : (ndarray of shape (F, A + 1), ndarray of shape (F, B + 1))
        The deviations of the values of each column for rows of each fold.
    crossed : ndarray of shape (F, A B + 1)
        Those of the pairs.
    totals : FoldTotals
        Of this target alone.
    """
    first, second = own[0][:, 1:], own[1][:, 1:]
    shape = (len(weight), first.shape[1], second.shape[1])
    columns = [np.ones(shape), first[:, :, None], second[:, None, :], crossed[:, 1:].reshape(shape)]
    u = np.stack([np.broadcast_to(column, shape).reshape(len(weight), -1) for column in columns], axis=2)
    moments = np.einsum("fv,fvi,fvj->fij", weight[:, 1:], u, u, optimize=True)
    answers = np.einsum("fv,fvi->fi", target[:, 1:], u)
    return held_out_gains(moments, answers, totals.squares[0], totals)


def centred_gains(
    sums: dict[str, np.ndarray], deviation: np.ndarray, mean: np.ndarray, totals: FoldTotals
) -> np.ndarray:
    """The held-out gains of the mean of a number in the row's category, beside the number and the mean target there.

    Parameters
    ----------
    sums : dict of ndarray
        "weight", "target" and "number": sums of w, w y and w x by fold and category, (F, V); "square" and "product":
        of w x^2 and w x y by fold, (F,).
    deviation, mean : ndarray of shape (F, V)
        Of target and of number, for rows of each fold, less the means of all rows.
    totals : FoldTotals
        Of this target alone.
    """
    N, S, X = sums["weight"], sums["target"], sums["number"]
    columns, one = [deviation, mean], np.ones_like(N)
    # moments of (1, x, deviation, mean): what is constant in a category and fold multiplies N, or X beside x
    constant = [one, *columns]
    moments = np.empty((len(N), 4, 4))
    places = [0, 2, 3]
    for i, u in zip(places, constant, strict=True):
        moments[:, 1, i] = moments[:, i, 1] = (X * u).sum(axis=1)
        for j, v in zip(places, constant, strict=True):
            moments[:, i, j] = (N * u * v).sum(axis=1)
    moments[:, 1, 1] = sums["square"]
    answers = np.stack([(S * u).sum(axis=1) for u in constant], axis=1)
    answers = np.insert(answers, 1, sums["product"], axis=1)
    return held_out_gains(moments, answers, totals.squares[0], totals)
