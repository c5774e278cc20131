"""Stochastic gradient steps by the rule of scikit-learn's SGD estimators, as a pure function of a state.

Workers import this module, and it imports no scikit-learn, which takes 100 MB of a process with what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkl.kernels.device import array_module, on_host, together_on_host
from dkl.kernels.refusals import refuse_later
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sgd.steps import sgd_rows
from dkl.kernels.tiles import spans
from dkl.linear.minibatches import Minibatch, signs
from dkl.solvers.losses import LOG_LINK, SOFTMAX, loss_of, namespace_of

CLASSIFICATION_LOSSES = ("hinge", "squared_hinge", "log_loss", "modified_huber", "softmax")
REGRESSION_LOSSES = ("squared_error", "epsilon_insensitive", "huber", "pinball", *LOG_LINK)

# eta_t = eta_0 (1 + t / t_0)^-0.75, t_0 = 0.2 / (alpha eta_0), with eta_0 = 4 / (mean squared length of a centred row):
# measured on MNIST and adult. Losses that curve are stable only while eta * curvature * weight * (length^2 + 1) < 2 for
# every row, the one for the intercept.
_FIRST_STEP = {
    "epsilon_insensitive": 1.0,
    # where few targets lie, long steps smear outer quantiles: of 0.03 to 1 this does best from 600 to 30,000 rows
    "pinball": 0.1,
    # it bends twice as much as the log loss of one class
    "softmax": 2.0,
}
# The log loss, whose curvature is at most 1/4, is below this bound: for it that stability does not matter.
_LEAST_CURVATURE = 1.0
POWER = 0.75
_DECAY = 0.2
# Iterates late in the run count more: polynomial-decay averaging (Shamir & Zhang 2013, section 4).
_AVERAGING = 8.0
# The rows between two iterates of the average; a call of partial_fit costs as much as some hundred rows.
_FEW_ROWS, _SMALL_BATCH, _LARGE_BATCH = 65_536, 256, 1_024


@dataclass(frozen=True, eq=False)
class SGDState:
    """A linear model under way.

    Attributes
    ----------
    coef : ndarray of shape (K, m)
        The last iterate; K is 1 for two classes and for regression.
    intercept : ndarray of shape (K,)
        For centred rows, as `average_intercept`.
    average_coef, average_intercept : ndarray, float64
        What the model is: the average of the iterates.
    clock : float
        Rows stepped through and the schedule's first ones, which the step length follows.
    batches : int
        Iterates in the average.
    """

    coef: np.ndarray
    intercept: np.ndarray
    average_coef: np.ndarray
    average_intercept: np.ndarray
    clock: float = 1.0
    batches: int = 0


@dataclass(frozen=True)
class StepSchedule:
    """The step length ``eta0 / t^0.75`` with t counted from `clock` on.

    Parameters
    ----------
    eta0 : float
    clock : float
        Rows that count as seen before the first one.
    """

    eta0: float
    clock: float


def step_schedule(loss: str, *, alpha: float, square_length: float, largest: float) -> StepSchedule:
    """Step lengths that follow from the rows' lengths and the penalty.

    Parameters
    ----------
    loss : str
        As of `loss_of`, or "softmax".
    alpha : float
        Of the penalty ``alpha/2 |w|^2`` beside the mean loss.
    square_length : float
        Mean ``weight^2 * squared length`` of a centred row, where the mean weight is 1.
    largest : float
        The largest ``weight * (squared length + 1)`` of a row, where the mean weight is 1; of a log link times the
        curvature of the row, which no bound is known of.
    """
    first_step = _FIRST_STEP.get(loss, 4.0) / (square_length or 1.0)
    if loss in LOG_LINK:
        curvature = 1.0
    else:
        curvature = (SOFTMAX if loss == "softmax" else loss_of(loss)).largest_curvature
    if curvature >= _LEAST_CURVATURE:
        first_step = 1.0 / (curvature * largest)
    clock = max(1.0, np.floor(_DECAY / (alpha * first_step)))
    return StepSchedule(float(first_step * clock**POWER), float(clock))


def first_state(n_models: int, n_features: int, *, dtype: str, clock: float = 1.0) -> SGDState:
    """All coefficients zero."""
    shape = (n_models, n_features)
    return SGDState(np.zeros(shape, dtype), np.zeros(n_models, dtype), np.zeros(shape), np.zeros(n_models), clock)


def batch_rows(n_rows: float) -> int:
    """Rows that one call of `partial_fit` steps through, in a fit on `n_rows` rows."""
    return _SMALL_BATCH if n_rows <= _FEW_ROWS else _LARGE_BATCH


def sgd_step(state: SGDState, minibatch: Minibatch, operands: Mapping[str, Any]) -> SGDState:
    """The state after what `partial_fit` does on the rows of a minibatch, batch by batch; `state` stays as it is.

    The steps are compiled; minibatches on a GPU are stepped through there, a launch a batch.

    Operands: "rules" (an `SGDRule` for each of the K models), "classes" (or None), "batch_rows".
    """
    rules = operands["rules"]
    # rows in memory are stepped through in their order as they stand
    minibatch = minibatch if isinstance(minibatch.phi, np.ndarray) else minibatch.ordered
    xp = array_module(minibatch.phi)
    Y, S = rows_by_model(operands["classes"], minibatch.y, minibatch.weight)
    order = np.arange(len(Y)) if minibatch.order is None else minibatch.order
    # the means of the iterates are ours, and the rule's untouched
    first = xp.asarray(state.coef), xp.asarray(state.intercept)
    models = SGDModels(*first, *first, state.clock)
    # copies, which the means of this state are written over
    coef, intercept = xp.array(state.average_coef), xp.array(state.average_intercept)
    batches = state.batches
    for rows in spans(len(Y), operands["batch_rows"]):
        if isinstance(minibatch.phi, np.ndarray):
            drawn = order[rows]
            models = steps_by_rule(minibatch.phi, Y[drawn], S[drawn], models, rules, order=drawn)
        else:
            models = steps_by_rule(minibatch.phi[rows, :], Y[rows], S[rows], models, rules)
        batches += 1
        share = (1.0 + _AVERAGING) / (batches + _AVERAGING)
        coef += share * (models.coef - coef)
        intercept += share * (models.intercept - intercept)
    # models on a GPU stay there from batch to batch: the host waits once
    here: dict[str, Any] = together_on_host(
        {"coef": models.coef, "intercept": models.intercept, "average_coef": coef, "average_intercept": intercept}
    )
    if xp is not np:
        # sums came together in double precision
        here["coef"] = here["coef"].astype(models.coef.dtype)
    refuse_overflow(SGDModels(**here), len(Y))
    here["intercept"] = np.asarray(here["intercept"], dtype=state.intercept.dtype)
    return SGDState(**here, clock=state.clock + len(Y), batches=batches)


def steps_by_rule(
    X: Any, Y: np.ndarray, S: np.ndarray, models: SGDModels, rules: Sequence[SGDRule], order: np.ndarray | None = None
) -> SGDModels:
    """`sgd_rows` of models that have a rule each; the rule of all of them, where it is one, takes them together."""
    if all(rule == rules[0] for rule in rules):
        return sgd_rows(X, Y, S, models, rule=rules[0], order=order)
    names, parts = SGDModels.arrays(), []
    for k, rule in enumerate(rules):
        own = slice(k, k + 1)
        alone = replace(models, **{name: getattr(models, name)[own] for name in names})
        parts.append(sgd_rows(X, Y[:, own], S[:, own], alone, rule=rule, order=order))
    joined = {name: array_module(parts[0].coef).concat([getattr(part, name) for part in parts]) for name in names}
    return SGDModels(**joined, clock=parts[0].clock)


def rows_by_model(
    classes: np.ndarray | None,
    y: np.ndarray,
    sample_weight: ArrayLike | None = None,
    class_weight: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and weights of each linear model, (n, K), for labels or (without classes) targets y (n,) or (n, K).

    They are where y is.

    Raises
    ------
    ValueError
        If a label is not among the classes; of labels on a GPU when the host waits for what is made of them.
    """
    xp = namespace_of(y)
    if classes is None:
        Y = xp.reshape(xp.asarray(y, dtype=np.float64), (len(y), -1))
    else:
        known = xp.asarray(classes)
        codes = xp.clip(xp.searchsorted(known, y), 0, len(classes) - 1)

        def unknown() -> ValueError:
            labels, found = np.asarray(on_host(y)), classes[on_host(codes)]
            row = int(np.flatnonzero(found != labels)[0])
            return ValueError(f"y[{row}] is {labels[row]!r}, which is not among the classes {classes.tolist()}")

        is_unknown = known[codes] != y
        if xp is not np:
            refuse_later(is_unknown, unknown)
        elif is_unknown.any():
            raise unknown()
        Y = signs(codes, len(classes))
    S = xp.ones_like(Y)
    if classes is not None and class_weight is not None:
        # One class against the rest leaves the rest at weight 1, as in scikit-learn.
        negative, positive = (class_weight[:1], class_weight[1:]) if len(classes) == 2 else (1.0, class_weight)
        S = np.where(Y > 0, positive, negative)
    if sample_weight is None:
        return Y, S
    return Y, S * (on_host(sample_weight) if xp is np else xp.asarray(sample_weight))[:, None]


def refuse_overflow(models: SGDModels, n_rows: int) -> None:
    """Raise ValueError where steps on so many rows have led to coefficients that are no numbers."""
    if not (np.isfinite(models.coef).all() and np.isfinite(models.intercept).all()):
        raise ValueError(
            f"coefficients overflow in steps on {n_rows} rows; scale the rows, or take a smaller eta0 or a larger alpha"
        )
