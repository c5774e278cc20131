"""Stochastic gradient steps by the rule of scikit-learn's SGD estimators, as a pure function of a state.

Workers import this module, so it does not import scikit-learn, which with its dependencies takes 100 MB of a process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dkl.kernels.device import array_module, on_host, sums_on_host
from dkl.kernels.refusals import refuse_later
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sgd.steps import sgd_rows
from dkl.kernels.tiles import spans
from dkl.linear.adam import averaging_share
from dkl.linear.minibatches import Minibatch, signs
from dkl.protocols.arrays import as_columns
from dkl.solvers.losses import LOG_LINK, SOFTMAX, loss_of, namespace_of

# The step length is eta_t = eta_0 (1 + t / t_0)^-0.75 with t_0 = 0.2 / (alpha eta_0). By default eta_0 is 4 / (mean
# squared length of a centred row): measured on MNIST and adult. Losses with curvature are stable only while eta *
# curvature * weight * (length^2 + 1) < 2 for every row, where the 1 is for the intercept.
_FIRST_STEP = {
    "epsilon_insensitive": 1.0,
    # long steps blur outer quantiles, where targets are few: of 0.03 to 1 this does best from 600 to 30,000 rows
    "pinball": 0.1,
    # its curvature is twice that of the log loss of one class
    "softmax": 2.0,
}
# A loss of lower curvature is stable anyway, such as the log loss with at most 1/4.
_LEAST_CURVATURE = 1.0
# The exponent and the factor of t_0 in the rule of step lengths above.
POWER, _DECAY = 0.75, 0.2
# Rows between two iterates of the average; the overhead of a call of partial_fit is that of some hundred rows.
_FEW_ROWS, _SMALL_BATCH, _LARGE_BATCH = 65_536, 256, 1_024


@dataclass(frozen=True, eq=False)
class SGDState:
    """The iterate of a linear model between minibatches, and the average of its iterates.

    Attributes
    ----------
    coef : ndarray of shape (K, m)
        The last iterate; K is 1 for two classes and for regression.
    intercept : ndarray of shape (K,)
        For centred rows, like `average_intercept`.
    average_coef, average_intercept : ndarray, float64
        The average of the iterates, which is the fitted model.
    clock : float
        Rows stepped through, plus those that the schedule begins with; step lengths depend on it.
    batches : int
        The number of iterates in the average.
    """

    coef: np.ndarray
    intercept: np.ndarray
    average_coef: np.ndarray
    average_intercept: np.ndarray
    clock: float = 1.0
    batches: int = 0


@dataclass(frozen=True)
class StepSchedule:
    """The step length ``eta0 / t^0.75``, where t counts rows and starts at `clock`.

    Parameters
    ----------
    eta0 : float
    clock : float
        The value of t at the first row.
    """

    eta0: float
    clock: float


def step_schedule(loss: str, *, alpha: float, square_length: float, largest: float) -> StepSchedule:
    """Step lengths from the squared lengths of the rows, the curvature of the loss and the penalty.

    Parameters
    ----------
    loss : str
        As in `loss_of`, or "softmax".
    alpha : float
        The factor of the penalty ``alpha/2 |w|^2``, to which the mean loss is added.
    square_length : float
        Mean ``weight^2 * squared length`` of the centred rows, for a mean weight of 1.
    largest : float
        The largest ``weight * (squared length + 1)`` of a row, for a mean weight of 1; with a log link it is multiplied
        by the curvature of the row's loss, which has no general bound.
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
    """The state with all coefficients zero."""
    shape = (n_models, n_features)
    return SGDState(np.zeros(shape, dtype), np.zeros(n_models, dtype), np.zeros(shape), np.zeros(n_models), clock)


def batch_rows(n_rows: float) -> int:
    """Rows that one call of `partial_fit` steps through, for a fit on `n_rows` rows."""
    return _SMALL_BATCH if n_rows <= _FEW_ROWS else _LARGE_BATCH


def sgd_step(state: SGDState, minibatch: Minibatch, operands: Mapping[str, Any]) -> SGDState:
    """The state after steps on the rows of a minibatch, as by `partial_fit` on each batch; `state` is unchanged.

    The steps are compiled. Minibatches on a GPU are processed there, with one kernel launch for each batch.

    Operands: "rules" (an `SGDRule` for each of the K models), "classes" (or None), "batch_rows".
    """
    rules = operands["rules"]
    # rows on the host keep their place, and steps read them in the given order
    minibatch = minibatch if isinstance(minibatch.phi, np.ndarray) else minibatch.ordered
    xp = array_module(minibatch.phi)
    Y, S = rows_by_model(operands["classes"], minibatch.y, minibatch.weight)
    order = np.arange(len(Y)) if minibatch.order is None else minibatch.order
    # the average is computed here, so the rule's own averages are not used
    first = xp.asarray(state.coef), xp.asarray(state.intercept)
    models = SGDModels(*first, *first, state.clock)
    # copies, since the averages are updated in place
    coef, intercept = xp.array(state.average_coef), xp.array(state.average_intercept)
    batches = state.batches
    for rows in spans(len(Y), operands["batch_rows"]):
        if isinstance(minibatch.phi, np.ndarray):
            drawn = order[rows]
            models = steps_by_rule(minibatch.phi, Y[drawn], S[drawn], models, rules, order=drawn)
        else:
            models = steps_by_rule(minibatch.phi[rows, :], Y[rows], S[rows], models, rules)
        batches += 1
        share = averaging_share(batches)
        coef += share * (models.coef - coef)
        intercept += share * (models.intercept - intercept)
    # models on a GPU stay there from batch to batch: the host waits only here
    here: dict[str, Any] = sums_on_host(
        {"coef": models.coef, "intercept": models.intercept, "average_coef": coef, "average_intercept": intercept}
    )
    if xp is not np:
        # they were copied to the host in double precision
        here["coef"] = here["coef"].astype(models.coef.dtype)
    refuse_overflow(SGDModels(**here), len(Y))
    here["intercept"] = np.asarray(here["intercept"], dtype=state.intercept.dtype)
    return SGDState(**here, clock=state.clock + len(Y), batches=batches)


def steps_by_rule(
    X: Any, Y: np.ndarray, S: np.ndarray, models: SGDModels, rules: Sequence[SGDRule], order: np.ndarray | None = None
) -> SGDModels:
    """`sgd_rows` for models with a rule each; models with equal rules are stepped in a single call."""
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
    """Targets and weights of each linear model, (n, K), from labels or (without classes) targets y (n,) or (n, K).

    Both are on the device of y.

    Raises
    ------
    ValueError
        If a label is not among the classes; for labels on a GPU it is raised once the host waits for results.
    """
    xp = namespace_of(y)
    if classes is None:
        Y = as_columns(xp.asarray(y, dtype=np.float64))
    else:
        all_classes = xp.asarray(classes)
        codes = xp.clip(xp.searchsorted(all_classes, y), 0, len(classes) - 1)

        def unknown() -> ValueError:
            labels, nearest = np.asarray(on_host(y)), classes[on_host(codes)]
            row = int(np.flatnonzero(nearest != labels)[0])
            return ValueError(f"y[{row}] is {labels[row]!r}, which is not among the classes {classes.tolist()}")

        is_unknown = all_classes[codes] != y
        if xp is not np:
            refuse_later(is_unknown, unknown)
        elif is_unknown.any():
            raise unknown()
        Y = signs(codes, len(classes))
    S = xp.ones_like(Y)
    if classes is not None and class_weight is not None:
        # the weight of a class applies to its own model; the rows of the rest have weight 1 there, as in scikit-learn
        negative, positive = (class_weight[:1], class_weight[1:]) if len(classes) == 2 else (1.0, class_weight)
        S = np.where(Y > 0, positive, negative)
    if sample_weight is None:
        return Y, S
    return Y, S * (on_host(sample_weight) if xp is np else xp.asarray(sample_weight))[:, None]


def refuse_overflow(models: SGDModels, n_rows: int) -> None:
    """Raise ValueError if steps on these rows have led to coefficients that are not finite."""
    if not (np.isfinite(models.coef).all() and np.isfinite(models.intercept).all()):
        raise ValueError(
            f"coefficients overflow in steps on {n_rows} rows; scale the rows, or take a smaller eta0 or a larger alpha"
        )
