"""Stochastic gradient steps by scikit-learn's rule, row after row: compiled, or by kernels on a GPU."""

from __future__ import annotations

import numpy as np

from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION
from dkl.protocols.arrays import Array

__all__ = ["sgd_rows"]

# scikit-learn's bound on slopes
_STEEPEST = 1e12
# Losses by number, in the order of `_slope`.
COMPILED_LOSSES = (
    "hinge",
    "squared_hinge",
    "modified_huber",
    "log_loss",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "poisson",
    "gamma",
    "pinball",
    "softmax",
)


def sgd_rows(
    X: Array, Y: np.ndarray, S: np.ndarray, models: SGDModels, *, rule: SGDRule, order: np.ndarray | None = None
) -> SGDModels:
    """The models after a step on each row, in order; on a GPU with a thread block for each model.

    Results equal scikit-learn's up to rounding. With penalty "l1" and averaging scikit-learn omits the shrinking from
    the mean of the iterates; this pair raises an error here. scikit-learn has no steps of these losses: "pinball" is
    for the quantile `epsilon`; a step of "poisson" and "gamma" changes the score of its own row by at most 1, since
    their slopes grow like exp(f); those of "softmax" change the models of all classes by the probabilities of the row,
    in one thread block on a GPU. Rows on a GPU are copied to the host for rules that do not suit it.

    Parameters
    ----------
    X : array of shape (n, m)
        Dense rows of any array namespace, including NumPy and CuPy, in the dtype of the coefficients.
    Y : ndarray of shape (n, K)
        Targets of each model; -1 and 1 for classes.
    S : ndarray of shape (n, K)
        Weights of the rows, times those of the classes.
    models : SGDModels
        On the host; for a rule that suits it, also with the rows on a GPU, where the result stays then.
    rule : SGDRule
    order : ndarray of shape (n,), int64, or None
        For rows on the host the row of X for each step, so that no row is copied; None takes all in their order.

    Raises
    ------
    ValueError
        If iterates are to be averaged under an l1 penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.sgd.steps import sgd_rows
    >>> from dkl.kernels.sgd.rule import SGDModels, SGDRule
    >>> zeros = SGDModels(np.zeros((1, 2)), np.zeros(1), np.zeros((1, 2)), np.zeros(1))
    >>> rule = SGDRule("squared_error", penalty=None, learning_rate="constant", eta0=0.5)
    >>> sgd_rows(np.eye(2), np.ones((2, 1)), np.ones((2, 1)), zeros, rule=rule).coef
    array([[0.5 , 0.25]])
    """
    if rule.average and rule.penalties[0]:
        raise ValueError(
            f"average={rule.average!r} with penalty={rule.penalty!r}: the mean of truncated iterates is not offered; "
            "set average=False or penalty='l2'"
        )
    if device.is_on_gpu(X) and rule.suits_gpu:
        return device.sgd_rows(X, Y, S, models, rule)
    # rows on a GPU or of another namespace are copied to NumPy's
    X, Y, S = (device.on_host(values) for values in (X, Y, S))
    # copies, which are overwritten by the new models
    coef, mean = (np.array(values, X.dtype, order="C") for values in (models.coef, models.average_coef))
    b, mean_b = (np.array(values, np.float64) for values in (models.intercept, models.average_intercept))
    Y, S = (np.ascontiguousarray(values, np.float64) for values in (Y, S))
    order = np.arange(len(X)) if order is None else order
    steps = rule.step_lengths(models.clock, len(order))
    numbers = (*rule.penalties, rule.epsilon, rule.intercept_rate, float(models.clock), float(rule.average))
    kinds = COMPILED_LOSSES.index(rule.loss), int(rule.sparse)
    scratch = np.zeros_like(coef), np.empty(len(coef)), np.empty(len(coef))
    _walk_rows((np.ascontiguousarray(X), order), (Y, S), steps, (coef, mean, b, mean_b), scratch, numbers, kinds)
    return SGDModels(coef, b, mean, mean_b, models.clock + len(order))


@njit(nogil=True)
def _walk_rows(
    drawn: tuple[np.ndarray, np.ndarray],
    targets: tuple[np.ndarray, np.ndarray],
    steps: np.ndarray,
    models: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    scratch: tuple[np.ndarray, np.ndarray, np.ndarray],
    numbers: tuple[float, float, float, float, float, float],
    kinds: tuple[int, int],
) -> None:
    """A step of all models on each row; `drawn` has the rows X and their order, `targets` has Y and S.

    `models` has coefficients, their means, intercepts and the means of these, which are overwritten; `scratch` has
    zeros of the shape of the coefficients, and two arrays of a number for each model. No array is made here and no
    function of whole arrays is called: with them the compiler took 2.1 s for 1.2 s, and the process kept 24 MB for 14.
    """
    (X, order), (Y, S) = drawn, targets
    coef, mean, intercepts, mean_intercepts = models
    l1, l2, epsilon, intercept_rate, clock, first_averaged = numbers
    loss, sparse = kinds
    # of the softmax loss the step in each model depends on the scores of all
    is_joint, is_bounded = loss == 10, loss == 7 or loss == 8
    # `debt` is the total l1 penalty so far, `owed` what each coefficient has had of it (Tsuruoka et al. 2009)
    owed, scores, shares = scratch
    total, debt = 1.0, 0.0
    for i in range(len(order)):
        # the row's number; a view of the row, or of a model, would take as long as ten columns
        r, eta = order[i], steps[i]
        square = _squared_length(X, r) if is_bounded else 0.0
        if is_joint:
            for k in range(len(coef)):
                scores[k] = _dot(coef, k, X, r) + intercepts[k]
            # minus the largest score, so that none overflows
            largest = scores[0]
            for k in range(1, len(coef)):
                largest = max(largest, scores[k])
            total = 0.0
            for k in range(len(coef)):
                shares[k] = np.exp(scores[k] - largest)
                total += shares[k]
        shrink = max(0.0, 1.0 - eta * l2)
        debt += l1 * eta
        for k in range(len(coef)):
            y = Y[i, k]
            score = scores[k] if is_joint else _dot(coef, k, X, r) + intercepts[k]
            if is_joint:
                step = -eta * (shares[k] / total - (1.0 if y > 0.0 else 0.0))
            else:
                step = -eta * min(max(_slope(loss, y, score, epsilon), -_STEEPEST), _STEEPEST)
            step *= S[i, k]
            if is_bounded:
                longest = 1.0 / (square + 1.0)
                step = min(max(step, -longest), longest)
            # a slope may be finite for a score that is NaN: the coefficients become NaN too
            step = score if np.isnan(score) else step
            # the l2 penalty shrinks all coefficients first, then the row is added
            _shrink_and_add(coef, k, shrink, step, X, r)
            intercepts[k] += intercept_rate * step
            if 0.0 < first_averaged <= clock:
                share = 1.0 / (clock - first_averaged + 1.0)
                _shrink_and_add(mean, k, 1.0 - share, share, coef, k)
                mean_intercepts[k] += share * (intercepts[k] - mean_intercepts[k])
            if l1 > 0.0:
                _truncate(coef, owed, k, debt, X, r, sparse)
        clock += 1.0


@njit(nogil=True, fastmath=REDUCTION)
def _dot(W: np.ndarray, k: int, X: np.ndarray, r: int) -> float:
    """The product of row k of W and row r of X, in their precision."""
    total = W.dtype.type(0)
    for j in range(W.shape[1]):
        total += W[k, j] * X[r, j]
    return np.float64(total)


@njit(nogil=True, fastmath=REDUCTION)
def _squared_length(X: np.ndarray, r: int) -> float:
    """The squared length of row r, in float64."""
    total = 0.0
    for j in range(X.shape[1]):
        total += np.float64(X[r, j]) * np.float64(X[r, j])
    return total


@njit(nogil=True, fastmath=ELEMENTWISE)
def _shrink_and_add(W: np.ndarray, k: int, shrink: float, step: float, X: np.ndarray, r: int) -> None:
    """W_k = shrink W_k + step X_r."""
    a, b = W.dtype.type(shrink), W.dtype.type(step)
    for j in range(W.shape[1]):
        W[k, j] = a * W[k, j] + b * X[r, j]


@njit(nogil=True)
def _truncate(W: np.ndarray, owed: np.ndarray, k: int, debt: float, X: np.ndarray, r: int, sparse: int) -> None:
    """Move each coefficient towards 0, but not beyond, by the part of the l1 penalty that it has not had yet."""
    for j in range(W.shape[1]):
        if sparse and X[r, j] == 0.0:
            continue
        before = W[k, j]
        if before > 0.0:
            W[k, j] = max(0.0, before - (owed[k, j] + debt))
        elif before < 0.0:
            W[k, j] = min(0.0, before + (debt - owed[k, j]))
        owed[k, j] += W[k, j] - before


@njit(nogil=True)
def _slope(loss: int, y: float, p: float, epsilon: float) -> float:
    """The slope of `COMPILED_LOSSES[loss]` at score p, as in `dkl.solvers.losses`."""
    if loss == 0:
        return -y if y * p <= 1.0 else 0.0
    if loss == 1:
        return -2.0 * y * max(0.0, 1.0 - y * p)
    if loss == 2:
        return -4.0 * y if y * p < -1.0 else -2.0 * y * max(0.0, 1.0 - y * p)
    if loss == 3:
        return -y / (1.0 + np.exp(y * p))
    if loss == 4:
        return p - y
    if loss == 5:
        return min(max(p - y, -epsilon), epsilon)
    if loss == 6:
        return 1.0 if p - y > epsilon else (-1.0 if y - p > epsilon else 0.0)
    if loss == 7:
        return np.exp(p) - y
    if loss == 8:
        return 1.0 - y * np.exp(-p)
    return (1.0 if p >= y else 0.0) - epsilon
