"""Stochastic gradient steps by scikit-learn's rule, row after row: in array operations, on a GPU in one kernel."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from dkl.kernels import device
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.protocols.arrays import Array
from dkl.solvers.losses import loss_of

__all__ = ["sgd_rows"]

# what scikit-learn clips slopes to
_STEEPEST = 1e12


def sgd_rows(X: Array, Y: np.ndarray, S: np.ndarray, models: SGDModels, *, rule: SGDRule) -> SGDModels:
    """The models after a step on each row, in order; on a GPU in one launch, a thread block a model.

    Results are scikit-learn's within rounding. A deviation: with penalty "l1" and averaging scikit-learn leaves the
    shrinking out of the mean of the iterates, so that this pair is refused.

    Parameters
    ----------
    X : array of shape (n, m)
        Dense rows of any array namespace, NumPy's and CuPy's too, in the dtype of the coefficients.
    Y : ndarray of shape (n, K)
        Targets of each model; -1 and 1 for classes.
    S : ndarray of shape (n, K)
        Weights of the rows, those of the classes included.
    models : SGDModels
        On the host; so is what is returned.
    rule : SGDRule

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
    xp = X.__array_namespace__()
    coef, b, mean, mean_b = map(np.asarray, _in_order(xp, X, (Y, S), models, rule))
    return SGDModels(coef, b, mean, mean_b, models.clock + X.shape[0])


def _in_order(
    xp: ModuleType, X: Array, by_row: tuple[np.ndarray, np.ndarray], models: SGDModels, rule: SGDRule
) -> tuple[Any, ...]:
    """The coefficients and intercepts after a step on each row, and the means of both over the steps."""
    Y, S = (xp.asarray(values, dtype=xp.float64) for values in by_row)
    coef, mean = (xp.asarray(values, dtype=X.dtype) for values in (models.coef, models.average_coef))
    b, mean_b = (xp.asarray(values, dtype=xp.float64) for values in (models.intercept, models.average_intercept))
    # `debt` is what the l1 penalty has come to, and `owed` what each coefficient has paid of it (Tsuruoka et al. 2009).
    (l1, l2), clock, owed, debt = rule.penalties, models.clock, xp.zeros_like(coef), 0.0
    for i, eta in enumerate(map(float, rule.step_lengths(models.clock, X.shape[0]))):
        x, score = X[i, :], xp.asarray(xp.matmul(coef, X[i, :]), dtype=xp.float64) + b
        step = _unit_step(xp, (Y[i, :], score, x), rule, eta)
        if step is None:
            continue
        # a slope may take no notice of a score that has overflown: the coefficients shall show it
        step = xp.where(xp.isnan(score), score, step * S[i, :])
        # The l2 penalty shrinks all coefficients first, then the row is added.
        coef = coef * max(0.0, 1.0 - eta * l2) + xp.asarray(step, dtype=X.dtype)[:, None] * x[None, :]
        b = b + rule.intercept_rate * step
        if 0 < rule.average <= clock:
            # The running mean of the iterates from step `average` on.
            share = 1.0 / (clock - rule.average + 1.0)
            mean, mean_b = mean + share * (coef - mean), mean_b + share * (b - mean_b)
        if l1:
            debt += l1 * eta
            # Each coefficient moves towards 0 by what it has not paid yet, and stops there.
            down = xp.clip(coef - (owed + debt), 0.0, None)
            up = xp.clip(coef + (debt - owed), None, 0.0)
            shrunk = xp.where(coef > 0, down, xp.where(coef < 0, up, coef))
            shrunk = xp.where(x[None, :] != 0, shrunk, coef) if rule.sparse else shrunk
            coef, owed = shrunk, owed + (shrunk - coef)
        clock += 1.0
    return coef, b, mean, mean_b


def _unit_step(xp: ModuleType, row: tuple[Array, Array, Array], rule: SGDRule, eta: float) -> Array | None:
    """The multiple of a row (y, score, x) of weight 1 that each model takes; None where a passive rule skips it."""
    y, score, x = row
    if not rule.is_passive:
        return -eta * xp.clip(loss_of(rule.loss, rule.epsilon).slope(y, score), -_STEEPEST, _STEEPEST)
    # Passive-aggressive steps (Crammer et al. 2006): as long as brings the loss of the row to 0, bounded (pa1) or
    # damped (pa2).
    square = float(xp.sum(xp.asarray(x, dtype=xp.float64) ** 2))
    if rule.learning_rate == "pa1" and square == 0.0:
        return None
    hinged = rule.loss == "hinge"
    loss = xp.clip(1 - y * score if hinged else xp.abs(y - score) - rule.epsilon, 0.0, None)
    towards = y if hinged else xp.where(y < score, -xp.ones_like(y), xp.ones_like(y))
    if rule.learning_rate == "pa1":
        return towards * xp.clip(loss / square, None, eta)
    return towards * loss / (square + 0.5 / eta)
