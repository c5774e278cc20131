"""The driver of stochastic fits: an epoch is a fold over the blocks, and the loss of held-out rows stops it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import on_host, rows_on
from dkl.kernels.maps import mapping_flops
from dkl.linear.judge import last_gain, rounds_without_gain
from dkl.linear.minibatches import HeldOut, Minibatch, RowTargets, minibatch_rows
from dkl.linear.scores import scoring_cost
from dkl.linear.sgd import SGDState
from dkl.linear.sums import held_out_loss, reordered_minibatch, shuffled_minibatch, stored_minibatch
from dkl.linear.temperature import MULTIPLIERS, best_multiplier
from dkl.protocols.records import Accumulator, BlockSum, Cost, Fold, Record

# Relative fall of the lowest held-out loss that counts as progress: without it patience would never end on a loss that
# falls by rounding errors.
_TOLERANCE = 1e-4
# A step costs 2e4 operations for each row and model, and 36 for each coefficient, in matrix operations at 100 GFLOP/s:
# .2 microseconds and .36 nanoseconds. Plans add these to the cost of products.
_ROW_FLOPS, _COEFFICIENT_FLOPS = 2e4, 36.0
# The epoch that usually has the lowest held-out loss: 2 to 5 of 5 in twenty fits of 1.1 and 2 million rows.
_USUAL_BEST = 3


@dataclass(frozen=True, eq=False)
class EpochProblem:
    """A model, the rows it is fitted to, and the stochastic epochs that fit it.

    Parameters
    ----------
    step : callable
        ``step(state, minibatch, operands) -> state``, pure: `dkl.linear.sgd.sgd_step`, or the `partial_fit` of an
        estimator.
    step_operands : mapping
        Operands of `step`.
    first : frozen dataclass
        The state before the first epoch; with early stopping it has `average_coef` and `average_intercept`.
    feature_map : FeatureMap or None
    targets : RowTargets
    n_blocks : int
    epochs : int
        The number of epochs; with early stopping the largest number.
    center : ndarray of shape (m,) or None
        The mean of the features, subtracted from mapped rows. It does not change the optimum, but steps reach it
        sooner.
    seed : int
        Determines the orders of blocks and rows.
    shuffle_blocks, shuffle_rows : bool
    held_out : HeldOut
        Rows that are left out of the fit.
    stopping : Stopping or None
        None runs all epochs.
    dtype : {"float32", "float64"}
        Of mapped rows.
    row_flops : float or None
        Operations that stepping through one row costs; None is the cost of `dkl.linear.sgd.sgd_step`.
    row_bytes : int
        The bytes of a row where there is no feature map.
    token : str
        Identifies the minibatches of this fit, which workers keep; results do not depend on it.
    """

    step: Callable[[Any, Any, Mapping[str, Any]], Any]
    step_operands: Mapping[str, Any]
    first: Any
    feature_map: FeatureMap | None
    targets: RowTargets
    n_blocks: int
    epochs: int
    center: np.ndarray | None = None
    seed: int = 0
    shuffle_blocks: bool = True
    shuffle_rows: bool = True
    held_out: HeldOut = field(default_factory=HeldOut)
    stopping: Stopping | None = None
    dtype: str = "float32"
    row_flops: float | None = None
    row_bytes: int = 0
    token: str = field(default_factory=lambda: uuid4().hex)


@dataclass(frozen=True)
class Stopping:
    """Early stopping: end when the held-out loss has not fallen for `patience` epochs, and keep the best model.

    Parameters
    ----------
    loss : str
        A loss of `dkl.solvers.losses.loss_of`, or "softmax". The model must be one of mapped rows.
    patience : int
        Epochs without progress before stopping.
    epsilon : float or ndarray of shape (K,)
        The width of "epsilon_insensitive" and "huber"; for "pinball" the quantile of each model.
    calibrated : bool
        For classes: whether the held-out rows also calibrate the temperature of probabilities.
    """

    loss: str
    patience: int
    epsilon: Any = 0.1
    calibrated: bool = False


@dataclass(frozen=True, eq=False)
class EpochState:
    """The state of a fit between epochs.

    Attributes
    ----------
    model, best : dict
        Fields of the model's state; `best` is the one with the lowest held-out loss so far.
    epoch : int
        Epochs done.
    losses : tuple of float
        The mean held-out loss after each epoch.
    ended : str
        Why the epochs ended early, if a subscriber stopped them; else empty.
    multiplier : float or None
        The calibrated inverse temperature of the best model; None if not requested.
    """

    model: dict[str, Any]
    best: dict[str, Any] | None = None
    epoch: int = 0
    losses: tuple[float, ...] = field(default=())
    ended: str = ""
    multiplier: float | None = None

    @property
    def stale(self) -> int:
        """Epochs since the held-out loss was last lowered by more than a ten-thousandth."""
        return rounds_without_gain(self.losses, _TOLERANCE)

    def judged(self, sums: Mapping[str, np.ndarray], held_out: HeldOut) -> EpochState:
        """The state after a pass has summed loss and weight of the held-out rows; it keeps the best model so far.

        Raises
        ------
        ValueError
            If no row is held out.
        """
        weight = float(sums["weight"][0])
        if weight == 0.0:
            raise ValueError(
                f"no row is held out: a share of {held_out.share:g} of so few rows; use a larger validation_fraction"
            )
        losses = (*self.losses, float(sums["loss"][0]) / weight)
        if last_gain(losses) < len(losses) - 1:
            return replace(self, losses=losses)
        multiplier = None
        if "counted" in sums:
            multiplier = best_multiplier(sums["label"], sums["uniform"], float(sums["counted"][0]))
        return replace(self, losses=losses, best=self.model, multiplier=multiplier)

    @property
    def result(self) -> dict[str, Any]:
        """The best model if held-out rows have judged the epochs, else the last one."""
        return self.best or self.model


@dataclass(frozen=True, eq=False)
class EstimatorState:
    """An estimator with `partial_fit`, partly fitted."""

    estimator: Any


def estimator_step(state: EstimatorState, minibatch: Minibatch, operands: Mapping[str, Any]) -> EstimatorState:
    """The state after `partial_fit` of a copy on a minibatch; `state` is unchanged, so that a task can be retried.

    Operands: "fit_options" (further keywords of `partial_fit`).
    """
    # a fold passes its state between processes, and a retried task must find the earlier one unchanged
    estimator: Any = copy.deepcopy(state.estimator)
    minibatch = minibatch.ordered
    weight = {} if minibatch.weight is None else {"sample_weight": on_host(minibatch.weight)}
    y = None if minibatch.y.shape[1:] == (0,) else on_host(minibatch.y)
    estimator.partial_fit(rows_on(minibatch.phi, "cpu"), y, **weight, **operands["fit_options"])
    return EstimatorState(estimator)


class Epochs(ABC):
    """Runs epochs of stochastic steps; with early stopping a pass over the held-out rows judges the model after each.

    A problem has `first`, the state of the steps before the first epoch, the most `epochs`, `held_out`, and `stopping`,
    a `Stopping` or None, which runs all epochs.
    """

    def init(self, problem: Any) -> EpochState:
        """The state before the first epoch."""
        return EpochState(fields_of(problem.first))

    def request(self, problem: Any, state: EpochState) -> Sequence[Record] | None:
        """The next epoch, or the pass that judges the last one; None when the epochs or the patience are used up."""
        if state.ended:
            return None
        if self._judges_next(problem, state):
            return [self._judging(problem, state)]
        is_stale = problem.stopping is not None and state.stale >= problem.stopping.patience
        return None if state.epoch >= problem.epochs or is_stale else [self._epoch(problem, state)]

    def step(self, problem: Any, state: EpochState, results: Sequence[Any]) -> EpochState:
        """After an epoch, the state with its model; after a judging pass, with its loss and the best model."""
        (result,) = results
        if not self._judges_next(problem, state):
            return replace(state, model=fields_of(result), epoch=state.epoch + 1)
        return state.judged(result, problem.held_out)

    def stopped(self, problem: Any, state: EpochState, why: str) -> EpochState | None:
        """The state if a subscriber stops it: with the best judged or the last epoch; None before either."""
        return replace(state, ended=why) if state.epoch or state.best is not None else None

    @abstractmethod
    def _judges_next(self, problem: Any, state: EpochState) -> bool:
        """Whether the held-out rows must judge the model before the next epoch."""

    @abstractmethod
    def _judging(self, problem: Any, state: EpochState) -> BlockSum:
        """The record that judges the averaged model of the last epoch on the held-out rows."""

    @abstractmethod
    def _epoch(self, problem: Any, state: EpochState) -> Fold:
        """The fold of the next epoch: every block once in a random order, in minibatches of shuffled rows."""


class EpochDriver(Epochs):
    """Epochs of any stochastic steps on mapped rows."""

    def plan(self, problem: EpochProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """All epochs, and as many judging passes; with early stopping the usual number is smaller."""
        state, epoch = self.init(problem), self._epoch(problem, self.init(problem))
        if problem.stopping is None:
            return [([epoch], problem.epochs)]
        usual = _USUAL_BEST + problem.stopping.patience
        records = (epoch, self._judging(problem, state))
        return [([replace(record, usual_calls=usual)], problem.epochs) for record in records]

    def planned(self, problem: EpochProblem) -> EpochState:
        """The initial state, whose model has the size of the final one."""
        return self.init(problem)

    def _judges_next(self, problem: EpochProblem, state: EpochState) -> bool:
        return problem.stopping is not None and len(state.losses) < state.epoch

    def _judging(self, problem: EpochProblem, state: EpochState) -> BlockSum:
        # only models of mapped, centred rows can be scored
        if problem.stopping is None or problem.center is None or problem.feature_map is None:
            raise ValueError("early stopping needs a model of mapped, centred rows")
        coef, intercept = uncentred(type(problem.first)(**state.model), problem.center)
        return held_out_record(
            problem.feature_map,
            coef,
            intercept,
            held_out=problem.held_out,
            targets=problem.targets,
            dtype=problem.dtype,
            stopping=problem.stopping,
        )

    def _epoch(self, problem: EpochProblem, state: EpochState) -> Fold:
        feature_map = problem.feature_map
        rows_each = minibatch_rows(feature_map, problem.dtype, problem.row_bytes)
        row_bytes = problem.row_bytes
        if feature_map is not None:
            row_bytes = feature_map.n_features * np.dtype(problem.dtype).itemsize
        minibatch_bytes = rows_each * row_bytes

        order = np.arange(problem.n_blocks)
        if problem.shuffle_blocks:
            # the order depends on seed and epoch alone, so that a resumed fit follows the same one
            order = np.random.default_rng([problem.seed, state.epoch]).permutation(problem.n_blocks)

        row_flops = problem.row_flops
        if row_flops is None:
            coef = state.model.get("coef")
            n_models, n_features = (1, 0) if coef is None else coef.shape
            row_flops = n_models * (_ROW_FLOPS + _COEFFICIENT_FLOPS * n_features)

        def cost(rows: int, columns: int) -> Cost:
            # mapping uses all cores, steps run one after the other; shuffling copies a minibatch
            mapping = 0.0 if feature_map is None else mapping_flops(columns, feature_map)
            return Cost(rows * mapping, 2 * minibatch_bytes, rows * row_flops)

        return Fold(
            name=f"epoch {state.epoch + 1}",
            initial=type(problem.first)(**state.model),
            step=problem.step,
            prepare=shuffled_minibatch if problem.shuffle_rows else stored_minibatch,
            pieces=lambda rows: -(-rows // rows_each),
            operands={
                **problem.step_operands,
                "feature_map": feature_map,
                "center": None if problem.center is None else problem.center.astype(problem.dtype),
                "targets": problem.targets,
                "held_out": problem.held_out,
                "dtype": problem.dtype,
                "minibatch_rows": rows_each,
                "seed": problem.seed,
                "epoch": state.epoch,
            },
            order=order,
            piece_bytes=minibatch_bytes,
            # workers keep mapped rows for all epochs
            kept_as=problem.token if feature_map is not None and problem.epochs > 1 else "",
            arrange=reordered_minibatch if problem.shuffle_rows else None,
            state_bytes=sum(getattr(value, "nbytes", 8) for value in state.model.values()),
            cost=cost,
        )


def epochs_message(problem: EpochProblem, state: EpochState) -> str:
    """A sentence on why the epochs ended."""
    if state.epoch >= problem.epochs:
        return f"all {state.epoch} epochs are done"
    done = f"after {state.epoch} of {problem.epochs} epochs"
    return f"{state.ended} {done}" if state.ended else f"the held-out loss no longer falls {done}"


class Averaged(Protocol):
    """The state of stochastic steps whose model is an average of iterates."""

    @property
    def average_coef(self) -> np.ndarray:
        """Of shape (K, m), for centred rows."""
        ...

    @property
    def average_intercept(self) -> np.ndarray:
        """Of shape (K,), for centred rows."""
        ...


def uncentred(state: Averaged, center: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients and intercepts for uncentred rows: ``w.(phi - c) + b = w.phi + (b - w.c)``."""
    return state.average_coef, state.average_intercept - state.average_coef @ center.astype(np.float64)


def centred(coef: np.ndarray, intercept: np.ndarray, center: np.ndarray, *, dtype: str, clock: float) -> SGDState:
    """The state from which steps on centred rows continue a model of uncentred rows."""
    moved = intercept + coef @ center.astype(np.float64)
    return SGDState(coef.astype(dtype), moved.astype(dtype), coef.astype(np.float64), moved, clock)


def fields_of(state: Any) -> dict[str, Any]:
    """The fields of a state that is a dataclass, by name; `dataclasses.asdict` would copy its arrays."""
    return {part.name: getattr(state, part.name) for part in fields(state)}


def held_out_record(
    feature_map: FeatureMap,
    coef: np.ndarray,
    intercept: np.ndarray,
    *,
    held_out: HeldOut,
    targets: RowTargets,
    dtype: str,
    stopping: Stopping,
) -> BlockSum:
    """The record of a pass that sums the loss of a model over the held-out rows.

    Parameters
    ----------
    feature_map : FeatureMap
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    held_out : HeldOut
    targets : RowTargets
    dtype : {"float32", "float64"}
    stopping : Stopping
    """
    operands = {
        "feature_map": feature_map,
        "coef": coef,
        "intercept": intercept,
        "held_out": held_out,
        "targets": targets,
        "dtype": dtype,
        "loss": stopping.loss,
        "epsilon": stopping.epsilon,
        "calibrated": stopping.calibrated,
    }
    cost = partial(scoring_cost, feature_map=feature_map, n_models=len(coef), share=held_out.share, dtype=dtype)
    accumulators = {"loss": Accumulator((1,)), "weight": Accumulator((1,))}
    if stopping.calibrated:
        accumulators |= {name: Accumulator((3, len(MULTIPLIERS))) for name in ("label", "uniform")}
        accumulators["counted"] = Accumulator((1,))
    return BlockSum("held-out loss", held_out_loss, accumulators, operands, cost=cost)
