"""The driver that refines frequencies and weights by Adam: an epoch is a fold over blocks, held-out rows choose one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection
from dkl.kernels.device import array_module
from dkl.linear.adam import AdamState, adam_steps
from dkl.linear.epochs import Epochs, EpochState, Stopping, held_out_record
from dkl.linear.minibatches import HeldOut, RowTargets
from dkl.linear.refinement_sums import (
    REFINED_LOSSES,
    Expansion,
    ExpansionGradients,
    RefinedLoss,
    ScaledMinibatch,
    refined_rows,
    refinement_minibatch,
)
from dkl.protocols.records import SINCOS_FLOPS, BlockSum, Cost, Fold, Record
from dkl.solvers.losses import namespace_of

# Operations that a step costs for each number of the model, about three nanoseconds: it reads five arrays and writes
# three.
_ADAM_FLOPS = 300.0
# Step length of the coefficients in that of the frequencies. The coefficients start at their optimum, which long steps
# leave: with equal steps the held-out loss of three classes on 20 pairs was 1.6 times as large after an epoch, and did
# not return below its start within eight.
_COEF_SHARE = 0.3


@dataclass(frozen=True)
class Refinement:
    """The loss, penalty and step parameters of a refinement.

    Parameters
    ----------
    loss : {"squared_hinge", "log_loss", "squared_error"}
    alpha : float
        The factor of the penalty ``alpha/2 |w|^2``, to which the mean loss is added.
    epochs : int
        The most epochs. A few epochs improve frequencies, many overfit.
    patience : int
        Epochs without a lower held-out loss before the refinement ends.
    epoch_rows : int or None
        An epoch steps through other random blocks each time, of at most this many rows, but at least one block; None is
        all blocks. Steps follow one another, so that more workers do not shorten an epoch.
    rate : float
        Adam's step length for frequencies, relative to the root mean square of a frequency's entries. On five tables,
        ten epochs at 0.03 lower the held-out loss further than thirty at 0.007.
    batch_rows : int
        Rows of one step.
    held_out : HeldOut
        Rows that judge each epoch and never train; with a share of 0 all epochs run, and the last one is kept.
    seed : int
        Determines the orders of blocks and rows.
    dtype : {"float32", "float64"}
    """

    loss: RefinedLoss = "squared_hinge"
    alpha: float = 1e-5
    epochs: int = 4
    patience: int = 2
    epoch_rows: int | None = None
    rate: float = 0.03
    batch_rows: int = 64
    held_out: HeldOut = field(default_factory=lambda: HeldOut(0.1))
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        if self.loss not in REFINED_LOSSES:
            raise ValueError(
                f"loss={self.loss!r} cannot be refined; the losses with a gradient are {sorted(REFINED_LOSSES)}"
            )


@dataclass(frozen=True, eq=False)
class RefineProblem:
    """A linear model on features, to be refined together with their frequencies.

    Parameters
    ----------
    feature_map : FeatureMap
        With pair or phase features.
    coef : ndarray of shape (K, n_features)
    intercept : ndarray of shape (K,)
    targets : RowTargets
    block_rows : ndarray of shape (n_blocks,)
        Rows of each block.
    options : Refinement
    """

    feature_map: FeatureMap
    coef: np.ndarray
    intercept: np.ndarray
    targets: RowTargets
    block_rows: np.ndarray
    options: Refinement = field(default_factory=Refinement)

    @property
    def expansion(self) -> Expansion:
        """The model before the refinement."""
        return Expansion.of(self.feature_map, self.coef, self.intercept, self.options.dtype)

    @property
    def first(self) -> AdamState:
        """The state of Adam at the given model."""
        return AdamState.begin(_values(self.expansion))

    @property
    def epochs(self) -> int:
        """The most epochs."""
        return self.options.epochs

    @property
    def stopping(self) -> Stopping:
        """When the refinement ends; its losses have no width."""
        return Stopping(self.options.loss, self.options.patience, epsilon=0.0)

    @property
    def held_out(self) -> HeldOut:
        """The rows that judge each epoch."""
        return self.options.held_out

    def model(self, state: Mapping[str, Any]) -> Expansion:
        """The expansion from the fields of an `AdamState`."""
        return _split(state["average"], self.coef.shape, self.feature_map)


def is_refinable(loss: str, *, has_classes: bool) -> bool:
    """Whether the descent has this loss: for numbers the squared error, for classes losses of margins with a slope."""
    return loss in REFINED_LOSSES and has_classes != (loss == "squared_error")


def check_refinable(problem: RefineProblem) -> None:
    """Raise ValueError unless loss, targets and model match."""
    classes, loss = problem.targets.classes, problem.options.loss
    if not is_refinable(loss, has_classes=classes is not None):
        kind = "targets" if classes is None else "classes"
        raise ValueError(f"loss={loss!r} has no meaning for {kind}; 'squared_error' is for targets, the others are not")
    n_models = len(problem.expansion.intercept)
    if classes is not None and n_models != (1 if len(classes) == 2 else len(classes)):
        raise ValueError(f"{len(classes)} classes need one model each, two need one in all; coef has {n_models} rows")


class RefineDriver(Epochs):
    """Epochs of Adam on frequencies and weights; held-out rows judge the model before the first and after each."""

    def plan(self, problem: RefineProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """All epochs, and one judging pass more."""
        state, epochs = self.init(problem), problem.epochs
        judging = [([self._judging(problem, state)], epochs + 1)] if problem.held_out.share > 0 else []
        return [*judging, ([self._epoch(problem, state)], epochs)]

    def _judges_next(self, problem: RefineProblem, state: EpochState) -> bool:
        return problem.held_out.share > 0 and len(state.losses) <= state.epoch

    def _judging(self, problem: RefineProblem, state: EpochState) -> BlockSum:
        options, expansion = problem.options, problem.model(state.model)
        return held_out_record(
            expansion.apply_to(problem.feature_map),
            expansion.coef,
            expansion.intercept,
            held_out=options.held_out,
            targets=problem.targets,
            dtype=options.dtype,
            stopping=problem.stopping,
        )

    def _epoch(self, problem: RefineProblem, state: EpochState) -> Fold:
        options, feature_map = problem.options, problem.feature_map
        size = refined_rows(feature_map, options.dtype)
        order = np.random.default_rng([options.seed, state.epoch]).permutation(len(problem.block_rows))
        if options.epoch_rows is not None:
            order = order[: max(1, np.searchsorted(np.cumsum(problem.block_rows[order]), options.epoch_rows, "right"))]
        values = state.model["values"]

        def cost(rows: int, columns: int) -> Cost:
            # two products with W, for the angles and the gradient; sines; two products with the coefficients
            a_row = 4.0 * columns * feature_map.n_frequencies + SINCOS_FLOPS * 2 * feature_map.n_frequencies
            a_row += 4.0 * problem.coef.size
            return Cost(
                0.0,
                2 * size * columns * values.itemsize,
                rows * (a_row + _ADAM_FLOPS * len(values) / options.batch_rows),
            )

        return Fold(
            name=f"refining, epoch {state.epoch + 1}",
            initial=AdamState(**state.model),
            step=adam_step,
            prepare=refinement_minibatch,
            pieces=lambda rows: -(-rows // size),
            operands={
                "feature_map": feature_map,
                "targets": problem.targets,
                "held_out": options.held_out,
                "seed": options.seed,
                "epoch": state.epoch,
                "dtype": options.dtype,
                "rates": _rates(problem),
                "shape": problem.coef.shape,
                "loss": options.loss,
                "alpha": options.alpha,
                "batch_rows": options.batch_rows,
            },
            order=order,
            share=float(problem.block_rows[order].sum() / max(problem.block_rows.sum(), 1)),
            piece_bytes=2 * size * feature_map.n_columns * values.itemsize,
            state_bytes=4 * values.nbytes,
            cost=cost,
        )


def adam_step(state: AdamState, minibatch: ScaledMinibatch, operands: Mapping[str, Any]) -> AdamState:
    """The state after steps on the batches of a minibatch; `state` is unchanged.

    Operands: "feature_map", "rates" (P,), "shape" (K, n_features), "loss", "alpha", "batch_rows".
    """
    feature_map, shape = operands["feature_map"], operands["shape"]
    rates = array_module(minibatch.rows.X).asarray(operands["rates"])

    def expansion_of(values: np.ndarray) -> Expansion:
        return _split(values, shape, feature_map)

    gradients = ExpansionGradients(feature_map, expansion_of(rates), loss=operands["loss"], alpha=operands["alpha"])

    def objective(batch: slice, expansion: Expansion) -> tuple[float, np.ndarray]:
        weight = None if minibatch.weight is None else minibatch.weight[batch]
        gradient = gradients(minibatch.rows.rows(batch), minibatch.targets[batch], weight, expansion)
        return 0.0, _values(gradient)

    return adam_steps(state, minibatch.rows.X, operands["batch_rows"], expansion_of, objective, lambda _: rates)[0]


def _values(expansion: Expansion) -> np.ndarray:
    """All numbers of a model in one vector: frequencies, coefficients, intercepts."""
    parts = [expansion.entries.ravel(), expansion.coef.ravel(), expansion.intercept]
    return namespace_of(expansion.coef).concat(parts)  # type: ignore[no-any-return]


def _split(values: np.ndarray, shape: tuple[int, int], feature_map: FeatureMap) -> Expansion:
    """The expansion whose numbers are in the vector of `_values`, as views."""
    K, width = shape
    projection = feature_map.projection
    # the vector holds the entries of W, then K x n_features coefficients, then K intercepts
    entries = values[: len(values) - K * width - K]
    if not isinstance(projection, SparseProjection):
        entries = entries.reshape(feature_map.n_frequencies, feature_map.n_columns)
    return Expansion(entries, values[len(values) - K * width - K : len(values) - K].reshape(shape), values[-K:])


def _rates(problem: RefineProblem) -> np.ndarray:
    """The step length of each number of a model, as a share of the size of such numbers, so that units do not matter.

    For an entry of a frequency it is `rate` times the root mean square of the entries of that frequency; for
    coefficients and intercepts `rate` times `_COEF_SHARE` times the root mean square of all coefficients.
    """
    expansion, feature_map = problem.expansion, problem.feature_map
    if isinstance(feature_map.projection, SparseProjection):
        owner = feature_map.projection.owners
    else:
        owner = np.repeat(np.arange(feature_map.n_frequencies), feature_map.n_columns)
    # the root mean square of the entries of each frequency w_j, but at least a thousandth of the largest one
    entries = expansion.entries.ravel().astype(np.float64)
    counts = np.maximum(np.bincount(owner, minlength=feature_map.n_frequencies), 1)
    lengths = np.sqrt(np.bincount(owner, entries**2, feature_map.n_frequencies) / counts)
    # a model of zeros has no scale; coefficients of length 1 are assumed
    size = np.sqrt(np.mean(expansion.coef.astype(np.float64) ** 2)) or 1.0 / np.sqrt(expansion.coef.shape[1])
    rest = np.full(expansion.coef.size + len(expansion.intercept), _COEF_SHARE * size)
    rates = np.concatenate([np.maximum(lengths, 1e-3 * lengths.max(initial=0.0))[owner], rest])
    return (problem.options.rate * rates).astype(expansion.entries.dtype)
