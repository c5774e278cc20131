"""Stochastic gradient steps by scikit-learn's rule, row after row: compiled, or as one kernel on a GPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numba
import numpy as np

from dkl.kernels import device
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION
from dkl.protocols.arrays import Array
from dkl.solvers.losses import LOG_LINK, SOFTMAX, loss_of

__all__ = ["sgd_rows"]

# scikit-learn's bound on slopes
_STEEPEST = 1e12
# Losses by number, in the order of `_slope`; numbers of the passive-aggressive rules, 0 for other rules.
_LOSSES = (
    "hinge",
    "perceptron",
    "squared_hinge",
    "modified_huber",
    "log_loss",
    "squared_error",
    "huber",
    "epsilon_insensitive",
    "squared_epsilon_insensitive",
    "poisson",
    "gamma",
    "pinball",
    "softmax",
)
_PASSIVE = {"pa1": 1, "pa2": 2}


def sgd_rows(
    X: Array, Y: np.ndarray, S: np.ndarray, models: SGDModels, *, rule: SGDRule, order: np.ndarray | None = None
) -> SGDModels:
    """The models after a step on each row, in order; on a GPU in one launch, with a thread block for each model.

    Results equal scikit-learn's up to rounding. With penalty "l1" and averaging scikit-learn omits the shrinking from
    the mean of the iterates; this pair raises an error here. scikit-learn has no steps of these losses: "pinball" is
    for the quantile `epsilon`; a step of "poisson" and "gamma" changes the score of its own row by at most 1, since
    their slopes grow like exp(f); those of "softmax" change the models of all classes by the probabilities of the row,
    in one thread block on a GPU.

    Parameters
    ----------
    X : array of shape (n, m)
        Dense rows of any array namespace, including NumPy and CuPy, in the dtype of the coefficients.
    Y : ndarray of shape (n, K)
        Targets of each model; -1 and 1 for classes.
    S : ndarray of shape (n, K)
        Weights of the rows, times those of the classes.
    models : SGDModels
        On the host, or with the rows on a GPU; the result is on the same device.
    rule : SGDRule
    order : ndarray of shape (n,), int64, or None
        For NumPy rows the row of X for each step, so that no row is copied; None takes all in their order.

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
    if device.is_on_gpu(X):
        return device.sgd_rows(X, Y, S, models, rule)
    if not isinstance(X, np.ndarray):
        coef, b, mean, mean_b = map(np.asarray, _in_order(X.__array_namespace__(), X, (Y, S), models, rule))
        return SGDModels(coef, b, mean, mean_b, models.clock + X.shape[0])
    # copies, which are overwritten by the new models
    coef, mean = (np.array(values, X.dtype, order="C") for values in (models.coef, models.average_coef))
    b, mean_b = (np.array(values, np.float64) for values in (models.intercept, models.average_intercept))
    Y, S = (np.ascontiguousarray(values, np.float64) for values in (Y, S))
    order = np.arange(len(X)) if order is None else order
    steps = rule.step_lengths(models.clock, len(order))
    numbers = (*rule.penalties, rule.epsilon, rule.intercept_rate, float(models.clock), float(rule.average))
    kinds = _LOSSES.index(rule.loss), _PASSIVE.get(rule.learning_rate, 0), int(rule.sparse)
    walk = _walk_rows_jointly if rule.loss == "softmax" else _walk_rows
    walk((np.ascontiguousarray(X), order), Y, S, steps, (coef, mean, b, mean_b), numbers, kinds)
    return SGDModels(coef, b, mean, mean_b, models.clock + len(order))


@numba.njit(nogil=True, cache=True)
def _walk_rows(
    drawn: tuple[np.ndarray, np.ndarray],
    Y: np.ndarray,
    S: np.ndarray,
    steps: np.ndarray,
    models: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    numbers: tuple[float, float, float, float, float, float],
    kinds: tuple[int, int, int],
) -> None:
    """`_in_order`, model after model; `drawn` has the rows X and their order.

    `models` has coefficients, their means, intercepts and the means of these, which are overwritten.
    """
    X, order = drawn
    coef, mean, intercepts, mean_intercepts = models
    l1, l2, epsilon, intercept_rate, first_clock, first_averaged = numbers
    loss, passive, sparse = kinds
    # models are processed one after the other, so that one array serves all: see `_in_order`
    owed = np.zeros(coef.shape[1], coef.dtype)
    for k in range(len(coef)):
        w, clock, debt = coef[k], first_clock, 0.0
        owed[:] = 0.0
        for i in range(len(order)):
            x, y, eta = X[order[i]], Y[i, k], steps[i]
            score = _dot(w, x) + intercepts[k]
            if passive == 0:
                step = -eta * min(max(_slope(loss, y, score, epsilon), -_STEEPEST), _STEEPEST)
            else:
                square = _squared_length(x)
                if passive == 1 and square == 0.0:
                    continue
                missing = max(0.0, 1.0 - y * score if loss == 0 else abs(y - score) - epsilon)
                towards = y if loss == 0 else (-1.0 if y < score else 1.0)
                step = towards * (min(missing / square, eta) if passive == 1 else missing / (square + 0.5 / eta))
            step *= S[i, k]
            if loss == 9 or loss == 10:
                longest = 1.0 / (_squared_length(x) + 1.0)
                step = min(max(step, -longest), longest)
            # a slope may be finite for a score that is NaN: the coefficients become NaN too
            step = score if np.isnan(score) else step
            # the l2 penalty shrinks all coefficients first, then the row is added
            _shrink_and_add(w, max(0.0, 1.0 - eta * l2), step, x)
            intercepts[k] += intercept_rate * step
            if 0.0 < first_averaged <= clock:
                share = 1.0 / (clock - first_averaged + 1.0)
                _shrink_and_add(mean[k], 1.0 - share, share, w)
                mean_intercepts[k] += share * (intercepts[k] - mean_intercepts[k])
            if l1 > 0.0:
                debt += l1 * eta
                _truncate(w, owed, debt, x, sparse)
            clock += 1.0


@numba.njit(nogil=True, cache=True)
def _walk_rows_jointly(
    drawn: tuple[np.ndarray, np.ndarray],
    Y: np.ndarray,
    S: np.ndarray,
    steps: np.ndarray,
    models: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    numbers: tuple[float, float, float, float, float, float],
    kinds: tuple[int, int, int],
) -> None:
    """`_walk_rows` for the softmax loss: the scores of a row under all models determine its step in each."""
    X, order = drawn
    coef, mean, intercepts, mean_intercepts = models
    l1, l2, _, intercept_rate, clock, first_averaged = numbers
    sparse, debt = kinds[2], 0.0
    owed, scores = np.zeros_like(coef), np.empty(len(coef))
    for i in range(len(order)):
        x, eta = X[order[i]], steps[i]
        for k in range(len(coef)):
            scores[k] = _dot(coef[k], x) + intercepts[k]
        top = scores.max()
        # minus the largest score, so that none overflows
        shares = np.exp(scores - top)
        total = shares.sum()
        debt += l1 * eta
        for k in range(len(coef)):
            w = coef[k]
            step = -eta * (shares[k] / total - (1.0 if Y[i, k] > 0.0 else 0.0)) * S[i, k]
            step = scores[k] if np.isnan(scores[k]) else step
            # as in `_walk_rows`: a compiled function for both takes two to five times as long for 20 columns
            _shrink_and_add(w, max(0.0, 1.0 - eta * l2), step, x)
            intercepts[k] += intercept_rate * step
            if 0.0 < first_averaged <= clock:
                share = 1.0 / (clock - first_averaged + 1.0)
                _shrink_and_add(mean[k], 1.0 - share, share, w)
                mean_intercepts[k] += share * (intercepts[k] - mean_intercepts[k])
            if l1 > 0.0:
                _truncate(w, owed[k], debt, x, sparse)
        clock += 1.0


@numba.njit(nogil=True, cache=True, fastmath=REDUCTION)
def _dot(w: np.ndarray, x: np.ndarray) -> float:
    """w.x, in the precision of w."""
    total = w.dtype.type(0)
    for j in range(len(w)):
        total += w[j] * x[j]
    return np.float64(total)


@numba.njit(nogil=True, cache=True, fastmath=REDUCTION)
def _squared_length(x: np.ndarray) -> float:
    """x.x in float64."""
    total = 0.0
    for j in range(len(x)):
        total += np.float64(x[j]) * np.float64(x[j])
    return total


@numba.njit(nogil=True, cache=True, fastmath=ELEMENTWISE)
def _shrink_and_add(w: np.ndarray, shrink: float, step: float, x: np.ndarray) -> None:
    """w = shrink w + step x."""
    a, b = w.dtype.type(shrink), w.dtype.type(step)
    for j in range(len(w)):
        w[j] = a * w[j] + b * x[j]


@numba.njit(nogil=True, cache=True)
def _truncate(w: np.ndarray, owed: np.ndarray, debt: float, x: np.ndarray, sparse: int) -> None:
    """Move each coefficient towards 0, but not beyond, by the part of the l1 penalty that it has not had yet."""
    for j in range(len(w)):
        if sparse and x[j] == 0.0:
            continue
        before = w[j]
        if before > 0.0:
            w[j] = max(0.0, before - (owed[j] + debt))
        elif before < 0.0:
            w[j] = min(0.0, before + (debt - owed[j]))
        owed[j] += w[j] - before


@numba.njit(nogil=True, cache=True)
def _slope(loss: int, y: float, p: float, epsilon: float) -> float:
    """The slope of `_LOSSES[loss]` at score p, as in `dkl.solvers.losses`."""
    if loss == 0:
        return -y if y * p <= 1.0 else 0.0
    if loss == 1:
        return -y if y * p <= 0.0 else 0.0
    if loss == 2:
        return -2.0 * y * max(0.0, 1.0 - y * p)
    if loss == 3:
        return -4.0 * y if y * p < -1.0 else -2.0 * y * max(0.0, 1.0 - y * p)
    if loss == 4:
        return -y / (1.0 + np.exp(y * p))
    if loss == 5:
        return p - y
    inside = min(max(p - y, -epsilon), epsilon)
    if loss == 6:
        return inside
    if loss == 7:
        return 1.0 if p - y > epsilon else (-1.0 if y - p > epsilon else 0.0)
    if loss == 8:
        return 2.0 * (p - y - inside)
    if loss == 9:
        return np.exp(p) - y
    if loss == 10:
        return 1.0 - y * np.exp(-p)
    return (1.0 if p >= y else 0.0) - epsilon


def _in_order(
    xp: ModuleType, X: Array, by_row: tuple[np.ndarray, np.ndarray], models: SGDModels, rule: SGDRule
) -> tuple[Any, ...]:
    """The coefficients and intercepts after a step on each row, and the means of both over the steps."""
    Y, S = (xp.asarray(values, dtype=xp.float64) for values in by_row)
    coef, mean = (xp.asarray(values, dtype=X.dtype) for values in (models.coef, models.average_coef))
    b, mean_b = (xp.asarray(values, dtype=xp.float64) for values in (models.intercept, models.average_intercept))
    # `debt` is the total l1 penalty so far, `owed` what each coefficient has had of it (Tsuruoka et al. 2009)
    (l1, l2), clock, owed, debt = rule.penalties, models.clock, xp.zeros_like(coef), 0.0
    for i, eta in enumerate(map(float, rule.step_lengths(models.clock, X.shape[0]))):
        x, score = X[i, :], xp.asarray(xp.matmul(coef, X[i, :]), dtype=xp.float64) + b
        step = _unit_step(xp, (Y[i, :], score, x), rule, eta)
        if step is None:
            continue
        step = step * S[i, :]
        if rule.loss in LOG_LINK:
            longest = 1.0 / (float(xp.sum(xp.asarray(x, dtype=xp.float64) ** 2)) + 1.0)
            step = xp.clip(step, -longest, longest)
        # a slope may be finite for a score that is NaN: the coefficients become NaN too
        step = xp.where(xp.isnan(score), score, step)
        # the l2 penalty shrinks all coefficients first, then the row is added
        coef = coef * max(0.0, 1.0 - eta * l2) + xp.asarray(step, dtype=X.dtype)[:, None] * x[None, :]
        b = b + rule.intercept_rate * step
        if 0 < rule.average <= clock:
            # the running mean of the iterates from step `average` on
            share = 1.0 / (clock - rule.average + 1.0)
            mean, mean_b = mean + share * (coef - mean), mean_b + share * (b - mean_b)
        if l1:
            debt += l1 * eta
            # each coefficient moves towards 0 by the part that it has not had yet, and stops there
            down = xp.clip(coef - (owed + debt), 0.0, None)
            up = xp.clip(coef + (debt - owed), None, 0.0)
            shrunk = xp.where(coef > 0, down, xp.where(coef < 0, up, coef))
            shrunk = xp.where(x[None, :] != 0, shrunk, coef) if rule.sparse else shrunk
            coef, owed = shrunk, owed + (shrunk - coef)
        clock += 1.0
    return coef, b, mean, mean_b


def _unit_step(xp: ModuleType, row: tuple[Array, Array, Array], rule: SGDRule, eta: float) -> Array | None:
    """The factor of a row (y, score, x) of weight 1 in each model's step; None if a passive rule skips the row."""
    y, score, x = row
    if rule.loss == "softmax":
        return -eta * (SOFTMAX.shares(score) - xp.where(y > 0.0, xp.ones_like(y), xp.zeros_like(y)))
    if not rule.is_passive:
        # exp(f) of a very large score is infinite, which the clipped slope handles
        with np.errstate(over="ignore"):
            return -eta * xp.clip(loss_of(rule.loss, rule.epsilon).slope(y, score), -_STEEPEST, _STEEPEST)
    # passive-aggressive steps (Crammer et al. 2006) bring the loss of the row to 0, bounded (pa1) or damped (pa2)
    square = float(xp.sum(xp.asarray(x, dtype=xp.float64) ** 2))
    if rule.learning_rate == "pa1" and square == 0.0:
        return None
    hinged = rule.loss == "hinge"
    loss = xp.clip(1 - y * score if hinged else xp.abs(y - score) - rule.epsilon, 0.0, None)
    towards = y if hinged else xp.where(y < score, -xp.ones_like(y), xp.ones_like(y))
    if rule.learning_rate == "pa1":
        return towards * xp.clip(loss / square, None, eta)
    return towards * loss / (square + 0.5 / eta)
