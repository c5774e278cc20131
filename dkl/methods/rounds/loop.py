"""The loop of rounds that add features to a model, and the sums of their passes.

In each round a pass over all rows evaluates the model and the proposed features; the model is judged on held-out rows,
the best of the proposed features join it, its coefficients are fitted again, and the next features are proposed.

First the loop, then what a pass sums (`RoundTask`), and the block function that sums it (`round_sums`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels import generic
from dkl.kernels.device import (
    array_module,
    beside_rows,
    dense_tiles,
    histograms_on_gpu,
    is_on_gpu,
    scores_on_gpu,
    sums_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.gram import rows_at, signed_products, summed_product
from dkl.kernels.maps import design_tiles, map_rows, row_mapper
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.step_tiles import SHARED_SUMS, TILE_ROWS, HistogramSums, row_tiles, step_tiles, write_codes
from dkl.kernels.threads import one_blas_thread, product
from dkl.linear.judge import last_gain, rounds_without_gain
from dkl.methods.frequency_search.searched_rows import SearchedRows
from dkl.methods.steps.binning import ColumnBins
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.losses import Loss, namespace_of

__all__ = ["round_sums"]

# A frozen dataclass with `targets`, a `HeldTargets`.
P = TypeVar("P", bound=Any)
# A frozen dataclass `WithHistory`, with `phase` (the purpose of the next pass) and `message` (why the rounds ended).
S = TypeVar("S", bound=Any)

# A round gains if it lowers the held-out loss by more than this share of the lowest one before it.
LEAST_GAIN = 1e-4
# The step between the seeds of two rounds; another one than between dictionaries, whose seeds would meet otherwise.
BETWEEN_ROUNDS = 7_919
# The rows of a product of all columns with themselves: four tiles.
GRAM_ROWS = 4 * TILE_ROWS


class WithHistory:
    """A state whose `history`, of shape (rounds, len(names)), has a line for each round, with the columns `names`."""

    names: ClassVar[tuple[str, ...]]
    history: np.ndarray

    def series(self, name: str) -> np.ndarray:
        """A column of the history, one number for each round."""
        return self.history[:, self.names.index(name)]

    def lines(self) -> list[dict[str, float]]:
        """The lines of the history, one for each round, as numbers by the names of the columns."""
        return [dict(zip(self.names, map(float, line), strict=True)) for line in self.history]


class Rounds(ABC, Generic[P, S]):
    """The loop of rounds that add columns to a model where its loss is steepest; a subclass judges, chooses and refits.

    The `phase` of a state names its next pass: "sample" only samples rows, "search" evaluates the model and verifies
    candidates, and "refit" sums the system with the new columns, in subclasses that need a pass for it.
    """

    # names of the columns of the history that progress reports
    reported: ClassVar[tuple[str, ...]]
    # the name of the pass of each phase, for plans and progress
    pass_names: ClassVar[Mapping[str, str]]

    def __init__(self) -> None:
        self._rows = SearchedRows()

    def request(self, problem: P, state: S) -> Sequence[Record] | None:
        """The sums of the next pass, and the sample of the next search unless it is in memory; None at the end."""
        if state.message:
            return None
        sample = self._missing(problem, state)
        records = [] if state.phase == "sample" else [self._sums(problem, state)]
        return records if sample is None else [*records, sample]

    @one_blas_thread()
    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        """Judge the model, add the best candidates, refit, and propose the next ones."""
        if (sample := self._missing(problem, state)) is not None:
            self._rows.keep(sample, results[-1])
        if state.phase == "sample":
            return self._first_state(problem, state)
        if state.phase == "refit":
            return self._state_with_candidates(problem, self._refitted_state(problem, state, results[0]))
        state, is_judged = self._judged_state(problem, state, results[0])
        if state.message or not is_judged:
            return state
        state = self._extended_state(problem, state, results[0])
        return state if state.message or state.phase == "refit" else self._state_with_candidates(problem, state)

    def metrics(self, problem: P, state: S) -> dict[str, float]:
        """The numbers of the last round that progress reports, unless they are NaN or infinite."""
        if len(state.history) == 0:
            return {}
        last = {name: float(state.series(name)[-1]) for name in self.reported}
        return {name: value for name, value in last.items() if np.isfinite(value)}

    def _missing(self, problem: P, state: S) -> RowSample | None:
        """The sample that the next search needs, if it is not in memory.

        A resumed run has lost its sample, which is drawn again in the pass of the next sums.
        """
        sample = self._sample(problem, state)
        return None if sample is None or self._rows.has(sample) else sample

    @abstractmethod
    def _sample(self, problem: P, state: S) -> RowSample | None:
        """The sample that is searched after the next pass; None if there is no search."""

    def _sums(self, problem: P, state: S) -> BlockSum:
        """The sums of the next pass, unless its phase is "sample"."""
        task, feature_map = self._task(problem, state)
        accumulators = {name: Accumulator(shape) for name, shape in task.shapes.items()}
        operands = {"targets": problem.targets, "feature_map": feature_map, "task": task}
        cost = self._cost(problem, task, feature_map)
        return BlockSum(self.pass_names[state.phase], round_block, accumulators, operands, cost)

    @abstractmethod
    def _task(self, problem: P, state: S) -> tuple[RoundTask, FeatureMap]:
        """The sums of the next pass, and the map of its columns: those of the model, then those of the candidates."""

    @abstractmethod
    def _cost(self, problem: P, task: RoundTask, feature_map: FeatureMap) -> Callable[[int, int], Cost]:
        """The cost of such a pass for a block of (rows, columns)."""

    def _first_state(self, problem: P, state: S) -> S:
        """The state after the phase "sample"."""
        raise TypeError(f"{type(self).__name__} does not begin with rows")

    @abstractmethod
    def _judged_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> tuple[S, bool]:
        """The state with a line of history for the model; and whether candidates may join before the next pass."""

    @abstractmethod
    def _extended_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """The state with the best candidates in the model: refitted, or in the phase "refit"."""

    def _refitted_state(self, problem: P, state: S, sums: Mapping[str, np.ndarray]) -> S:
        """The state with the model refitted on all columns, after the phase "refit"."""
        raise TypeError(f"{type(self).__name__} refits without a pass")

    @abstractmethod
    def _state_with_candidates(self, problem: P, state: S) -> S:
        """The state with new candidates, searched on the sample at the slopes of the refitted model."""


def best_round(losses: np.ndarray) -> int:
    """The round whose model is kept: the last that gained on held-out rows; without held-out rows the newest.

    Parameters
    ----------
    losses : ndarray of shape (rounds,)
        Held-out losses, NaN if no row is held out.
    """
    return len(losses) - 1 if np.isnan(losses).all() else last_gain(losses, LEAST_GAIN)


def reason_to_end(losses: np.ndarray, patience: int | None, rounds: int | None, n_rounds: int) -> str:
    """The reason to end after these held-out losses, or after `n_rounds` rounds; empty to continue.

    Parameters
    ----------
    losses : ndarray of shape (rounds,)
        As for `best_round`.
    patience : int or None
        Rounds without a gain after which the search ends; None sets no such limit.
    rounds : int or None
        The most rounds; None sets no limit.
    n_rounds : int
    """
    is_judged = not np.isnan(losses).all()
    if patience is not None and is_judged and rounds_without_gain(losses, LEAST_GAIN) >= patience:
        return f"no lower loss on held-out rows in {patience} rounds"
    return f"ended after {rounds} rounds" if rounds is not None and n_rounds > rounds else ""


def bordered(gram: np.ndarray, is_old: np.ndarray, new_columns: np.ndarray) -> np.ndarray:
    """The symmetric Gram matrix of m columns, from that of the old ones and the products with the new ones.

    Parameters
    ----------
    gram : ndarray of shape (k, k)
        The Gram matrix of the old columns.
    is_old : ndarray of shape (m,), bool
    new_columns : ndarray of shape (m, m - k)
    """
    whole = np.empty((len(is_old), len(is_old)))
    whole[np.ix_(is_old, is_old)] = gram
    whole[np.ix_(is_old, ~is_old)], whole[np.ix_(~is_old, is_old)] = (
        new_columns[is_old],
        new_columns[is_old].T,
    )
    # float32 products above the diagonal differ by rounding from those below it
    lower = np.tril(new_columns[~is_old])
    whole[np.ix_(~is_old, ~is_old)] = lower + np.tril(lower, -1).T
    return whole


def padded_models(coefficients: np.ndarray, old: np.ndarray, width: int) -> np.ndarray:
    """Models (K, k) of old columns, their numbers or a mask of them, as models of `width` columns: 0 for new ones."""
    out = np.zeros((len(coefficients), width))
    out[:, old] = coefficients
    return out


@dataclass(frozen=True)
class HeldTargets:
    """The targets of a block, with the weights of its training rows and of its held-out rows.

    Parameters
    ----------
    targets : NewtonTargets
    held : callable or None
        Maps row ids to a mask of held-out rows; None for none.
    left_out : callable or None
        Maps row ids to a mask of rows that neither train nor judge; None for none.
    """

    targets: NewtonTargets
    held: Callable[[np.ndarray], np.ndarray] | None = None
    left_out: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Targets (n, K), weights (n,) of training rows, weights (n,) of held-out rows; 0 for all other rows."""
        (targets, weight), xp = self.targets(block), namespace_of(block.y)
        if self.held is None:
            return targets, weight, xp.zeros_like(weight)
        mask = xp.asarray(self.held(block.held_with), dtype=bool)
        if self.left_out is None:
            return targets, weight * ~mask, weight * mask
        return targets, weight * ~(mask | xp.asarray(self.left_out(block.held_with), dtype=bool)), weight * mask


@dataclass(frozen=True, eq=False)
class Histograms:
    """The histograms of a pass, from which steps are scored.

    Parameters
    ----------
    parents : ndarray of shape (P,), int64
        Atoms that are products of steps only, which further steps may extend.
    bins : ColumnBins
    codes : ndarray of shape (n, d), uint8, or None
        The bins of the block's values, if already computed; computing them takes as long as about twenty histograms.
    """

    parents: np.ndarray
    bins: ColumnBins
    codes: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class GramChange:
    """The change of the Gram matrix of the working model's columns since it was last summed.

    Parameters
    ----------
    old : ndarray of int64, or slice
        These columns, intercept included.
    previous : ndarray of shape (1, m) or None
        The model whose curvatures weight the present matrix; None before it was summed, so that all rows are added.
    panels : tuple of (int, int)
        The rows, from the first number to before the second, of each part in which the upper triangle is summed; a part
        has the columns from its first row on.
    rows : int
        The most changed rows that are collected over several tiles for one product; those of one tile always are.
    """

    old: np.ndarray | slice
    previous: np.ndarray | None
    panels: tuple[tuple[int, int], ...]
    rows: int = 1024


@dataclass(frozen=True, eq=False)
class RoundTask:
    """The sums of a pass over m columns: those of the working model, and new ones.

    Parameters
    ----------
    loss : Loss
    trials : ndarray of shape (T, K, m), float64
        The models that held-out rows judge, 0 in the columns of candidates; T is 0 in a pass that only refits.
    new : ndarray of int64, or slice
        The columns whose products with all columns are summed: those of candidates, or those that the system of the
        working model lacks.
    dtype : {"float32", "float64"}
        Of mapped rows and products.
    at : ndarray of shape (K, m), or None
        The model at whose scores slopes are computed; None is the last trial.
    curved : ndarray of shape (K, m), or None
        The model at whose scores curvatures are computed: that of the working model's system, so that products of new
        columns are parts of the same matrix. None is the model of the slopes.
    curvature_unit : float or None
        Products weight rows by their curvature, the largest over the models, divided by this unit; None only by their
        own weights.
    has_intercept : bool
        Whether the last column is ones, in addition to those of the feature map. Scores of such models, whose columns
        are of one size and strongly penalised, are computed in `dtype`, and all others in double precision.
    has_dual : bool
        Whether to sum loss, dual and slopes over the training rows, for the single trial.
    change : GramChange or None
    histograms : Histograms or None
    """

    loss: Loss
    trials: np.ndarray
    new: np.ndarray | slice
    dtype: str = "float32"
    at: np.ndarray | None = None
    curved: np.ndarray | None = None
    curvature_unit: float | None = 1.0
    has_intercept: bool = False
    has_dual: bool = False
    change: GramChange | None = None
    histograms: Histograms | None = None

    @property
    def n_new(self) -> int:
        """The number of columns whose products are summed."""
        return len(np.arange(self.trials.shape[2])[self.new])

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the sums, by name."""
        (n_trials, K, m), shapes = self.trials.shape, dict[str, tuple[int, ...]]()
        if n_trials:
            shapes |= {"held_out": (n_trials,), "held_weight": ()}
        if self.has_dual:
            shapes |= dict.fromkeys(("loss", "dual", "curvature", "absolutes", "squares", "support"), (K,))
        if self.has_dual or self.n_new or self.change is not None:
            shapes |= {"gradient": (K, m), "cross": (m, self.n_new)}
        if self.change is not None:
            n = len(np.arange(m)[self.change.old])
            shapes |= {f"change_{j}": (stop - start, n - start) for j, (start, stop) in enumerate(self.change.panels)}
        if self.histograms is not None:
            bins = self.histograms.bins.edges.shape
            shapes["histograms"] = (len(self.histograms.parents), *bins, SHARED_SUMS + K)
        return shapes


def row_codes(X: Rows, feature_map: FeatureMap, bins: ColumnBins) -> np.ndarray:
    """The bins of all values of a block, uint8 of shape (n, d)."""
    codes = np.empty(X.shape, np.uint8)
    for rows, tile in row_tiles(X, feature_map):
        write_codes(tile, bins.edges, bins.n_edges, codes[rows])
    return codes


def round_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`round_sums` of a block. Operands: "targets" (a `HeldTargets`), "feature_map", "task"."""
    targets = beside_rows(block, "rounds", operands["targets"])
    return round_sums(block.X, targets, operands["feature_map"], operands["task"])


def round_sums(X: Rows, targets: tuple[Any, ...], feature_map: FeatureMap, task: RoundTask) -> dict[str, np.ndarray]:
    """The sums of a round over rows X.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    targets : tuple
        As returned by `HeldTargets`; for rows on a GPU they may be there, in any dtype.
    feature_map : FeatureMap
    task : RoundTask

    Returns
    -------
    dict of ndarray
        w is the weight of a row, s minus the slope of its loss (its dual weight), and h its weight in products, as
        `curvature_unit` says. "held_out" (T,): the loss of each trial on held-out rows, summed over models;
        "held_weight" (): the weight of these rows. "gradient" (K, m): sum w s phi. "cross" (m, new): sum h phi
        phi_new^T. With `has_dual` "loss", "dual", "curvature", "absolutes", "squares", "support" (K,): sums of the
        loss, of minus its conjugate, of its curvature, of |w s|, of w s^2, and of the rows with s != 0. "change_0",
        ...: the change of sum h phi phi^T of the old columns. "histograms" (P, d, bins, 2 + K): of the training rows of
        each parent, as `dkl.kernels.step_tiles.HistogramSums` sums them.
    """
    loss, xp, (n_trials, K, m) = task.loss, array_module(X), task.trials.shape
    all_y, all_weight, all_held = (xp.asarray(part, dtype=np.float64) for part in targets)
    # these are added to in place, and all others tile by tile
    shapes = task.shapes
    own = {name: shape for name, shape in shapes.items() if name.startswith(("change", "histograms"))}
    sums: dict[str, Any] = {name: xp.zeros(shape) for name, shape in own.items()}
    changed = None if task.change is None else _ChangedRows(task, task.change, sums)
    histograms = None
    if task.histograms is not None and xp is np:
        histograms = HistogramSums(task.histograms.parents, task.histograms.bins.n_edges, sums["histograms"])
    for rows, scaled, phi in _tiles(X, feature_map, task):
        y, weight, held = all_y[rows], all_weight[rows], all_held[rows]
        of_trials = _scores(phi, task.trials.reshape(-1, m), task).reshape(len(y), n_trials, K)
        scores = of_trials[:, -1] if task.at is None else _scores(phi, task.at, task)
        # a trial that is too long may have an infinite mean exp(f), and so an infinite loss, which is not chosen
        with np.errstate(over="ignore"):
            if task.has_dual:
                losses, slopes, curvatures, conjugates = loss.parts(y, scores)
                judged = [losses]
            else:
                slopes, curvatures = loss.derivatives(y, scores)
                if task.curved is not None:
                    curvatures = loss.curvature(y, _scores(phi, task.curved, task))
                # on a GPU, testing whether rows are held out would wait for it
                is_judged = is_on_gpu(phi) or held.any()
                judged = [loss.value(y, of_trials[:, trial]) for trial in range(n_trials if is_judged else 0)]
        # s = -loss'(y, f): the signed dual weight of a row, whose potential is searched for peaks
        duals, h = -slopes, _product_weights(weight, curvatures, task)
        weighted = weight[:, None] * duals
        tile: dict[str, Any] = {}
        if judged:
            tile["held_out"] = xp.stack([(held @ each).sum() for each in judged])
            tile["held_weight"] = xp.asarray(held.sum())
        if task.has_dual:
            tile |= {
                "loss": weight @ losses,
                # the dual of the loss at this slope
                "dual": -(weight @ conjugates),
                "curvature": weight @ curvatures,
                "absolutes": abs(weighted).sum(axis=0),
                # a row of weight w stands for w rows, each paired with itself
                "squares": weight @ duals**2,
                "support": weight @ (duals != 0.0),
            }
        if "gradient" in shapes:
            tile["gradient"] = _weighted_rows(weighted.T, phi)
        if task.n_new:
            tile["cross"] = _cross(phi, h, task)
        # tiles are added in float64; sums on a GPU stay there until the end
        for name, value in tile.items():
            if name in sums:
                sums[name] += value
            else:
                sums[name] = value if value.dtype == np.float64 else value.astype(np.float64)
        if changed is not None:
            changed.add(phi, y, weight, h)
        if (parts := task.histograms) is None:
            continue
        if histograms is None:
            by_row = xp.concat([weight[:, None], h[:, None], weighted], axis=1)
            edges = parts.bins.edges, parts.bins.n_edges
            sums["histograms"] += histograms_on_gpu(scaled, edges, (phi, parts.parents), by_row)
        else:
            histograms.add(_codes(parts, rows, scaled), phi, weight, h, weighted)
    if changed is not None:
        changed.multiply()
    if histograms is not None:
        histograms.finish()
    missing = {name: np.zeros(shape) for name, shape in shapes.items() if name not in sums}
    return {**sums_on_host(sums), **missing}


def _codes(task: Histograms, rows: slice, X: np.ndarray) -> np.ndarray:
    """The bins of a tile of rows, (n, d) uint8."""
    if task.codes is not None:
        return task.codes[rows]
    codes = np.empty(X.shape, np.uint8)
    write_codes(X, task.bins.edges, task.bins.n_edges, codes)
    return codes


def _cross(phi: Any, h: Any, task: RoundTask) -> Any:
    """sum h phi phi_new^T over rows with weights h (n,), of shape (m, new), on their device."""
    xp = array_module(phi)
    counted, shares = phi, h[:, None].astype(phi.dtype)
    if xp is np and len(counting := np.flatnonzero(h)) < len(phi):
        # on a GPU, finding the rows with weight would wait for it, so the others stay with weight 0
        counted, shares = rows_at(phi, counting), shares[counting]
    return summed_product(counted.T, _columns(counted, task.new) * shares)


def _columns(phi: Any, numbers: np.ndarray | slice) -> Any:
    """Some columns of mapped rows, on their device; those of a slice are no copy."""
    xp = array_module(phi)
    return phi[:, numbers] if isinstance(numbers, slice) else xp.take(phi, xp.asarray(numbers), axis=1)


def _product_weights(weight: Any, curvatures: Any, task: RoundTask) -> Any:
    """The weights (n,) of rows in products, for weights (n,) and curvatures (n, K)."""
    if task.curvature_unit is None:
        return weight
    # for the squared hinge 1 within the margin and 0 beyond: a Newton step only needs the active rows
    return weight * (curvatures.max(axis=1) / task.curvature_unit)


def _scores(phi: Any, models: np.ndarray, task: RoundTask) -> Any:
    """The scores (n, g), float64, of models (g, m) on rows of the columns, on their device."""
    xp = array_module(phi)
    if not models.any():
        return xp.zeros((phi.shape[0], len(models)))
    if is_on_gpu(phi):
        # the kernel adds a further number of each model, its intercept, which is among the columns here
        return scores_on_gpu(phi, xp.asarray(np.column_stack([models, np.zeros(len(models))])))
    dtype = phi.dtype if task.has_intercept else np.float64
    return (phi.astype(dtype, copy=False) @ models.T.astype(dtype, copy=False)).astype(np.float64, copy=False)


def _weighted_rows(weights: Any, phi: Any) -> Any:
    """Sums of rows of the columns with weights (K, n), on their device."""
    if is_on_gpu(phi):
        return weighted_rows_on_gpu(weights, phi)
    return product(weights.astype(phi.dtype), phi)


class _ChangedRows:
    """Sums h phi phi^T of the old columns over rows whose weight h in it has changed since the model `previous`.

    Few rows of a tile change, while each product has the size of the matrix: rows of several tiles share one product.
    """

    def __init__(self, task: RoundTask, change: GramChange, sums: Mapping[str, Any]) -> None:
        self._task, self._change = task, change
        self._totals = [sums[f"change_{j}"] for j in range(len(change.panels))]
        self._n_rows, self._rows, self._weights = 0, np.empty((0, 0)), np.empty(0)

    def add(self, phi: Any, y: Any, weight: Any, h: Any) -> None:
        """Collect the rows of a tile whose weight in the matrix, now h, has changed."""
        xp, previous, change = array_module(phi), self._change.previous, h
        if previous is not None:
            curvatures = self._task.loss.curvature(y, _scores(phi, previous, self._task))
            change = h - _product_weights(weight, curvatures, self._task)
        if xp is not np:
            # finding the changed rows would wait for the GPU, so all rows of the tile are multiplied
            self._add_products(_columns(phi, self._change.old), change)
            return
        if not len(self._rows):
            # no later tile has more rows than the first
            room = max(self._change.rows, len(phi))
            self._rows, self._weights = np.empty((room, self._totals[0].shape[1]), phi.dtype), np.empty(room)
        rows = np.flatnonzero(change)
        if self._n_rows + len(rows) > self._change.rows:
            self.multiply()
        place = slice(self._n_rows, self._n_rows + len(rows))
        self._rows[place], self._weights[place] = _columns(rows_at(phi, rows), self._change.old), change[rows]
        self._n_rows = place.stop

    def multiply(self) -> None:
        """Add the products of the rows collected so far to the parts of the matrix."""
        if self._n_rows:
            self._add_products(self._rows[: self._n_rows], self._weights[: self._n_rows])
        self._n_rows = 0

    def _add_products(self, phi: Any, weight: Any) -> None:
        """Add the outer products of rows (n, old), times the changes of their weights; the rows are overwritten."""
        if len(self._totals) == 1:
            # one symmetric product, at half the cost, with signs for added and removed rows
            self._totals[0] += signed_products(phi, weight, overwrite=True)
            return
        weighted = phi * array_module(phi).asarray(weight.astype(phi.dtype))[:, None]
        for total, (start, stop) in zip(self._totals, self._change.panels, strict=True):
            total += summed_product(weighted[:, start:stop].T, phi[:, start:])


def _tiles(X: Rows, feature_map: FeatureMap, task: RoundTask) -> Iterator[tuple[slice, Any, Any]]:
    """Tiles of scaled rows in float64 (None beside an intercept), with their columns, on their device."""
    dtype = task.dtype
    if task.has_intercept:
        yield from ((rows, None, phi) for rows, phi in design_tiles(X, feature_map, dtype))
        return
    if is_on_gpu(X):
        for rows, tile in dense_tiles(X, feature_map, np.dtype(np.float64), width=feature_map.n_features):
            phi = map_rows(tile, feature_map, dtype)
            yield rows, generic.scaled(array_module(tile), tile, feature_map.scaler, np.float64), phi
        return
    if feature_map.activation == "steps":
        yield from step_tiles(X, feature_map, dtype)
        return
    mapped = row_mapper(X, feature_map, dtype)
    for rows, tile in row_tiles(X, feature_map):
        yield rows, tile, mapped(rows)
