"""Loss, gradient and Hessian of linear models on mapped rows, as sums over a block: what a Newton step needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

import numba
import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection
from dkl.kernels.blas import product
from dkl.kernels.device import (
    array_module,
    beside_rows,
    is_on_gpu,
    line_losses_on_gpu,
    scores_on_gpu,
    tile_rows,
    together_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.maps import map_rows, map_spans, row_mapper
from dkl.kernels.moments import sum_in_order
from dkl.kernels.newton.gram import CurvedRows, GramSum, add_few, finished, packed_size
from dkl.kernels.products import line_scores, weighted_rows
from dkl.kernels.scale import keeps_zeros, scale_rows
from dkl.kernels.tiles import spans
from dkl.process import TwoForms
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import Keeper
from dkl.solvers.losses import SOFTMAX, namespace_of, newton_loss

NewtonLoss = Literal["squared_hinge", "squared_error", "log_loss", "huber", "pinball", "poisson", "gamma"]
# That of all classes together has a single loss a row, and no Hessian but that of the squared error.
JointLoss = Literal["softmax"]

# Bytes of mapped rows at once. Rows with curvature are few, and their products want as many of them as possible; the
# rows of a tile lie between the two bounds.
_TILE_BYTES = 1 << 24
_LEAST_ROWS, _MOST_ROWS = 1024, 8192
# The same of rows that are used at once, while they are in the cache of a core.
_CACHED_BYTES, _LEAST_CACHED = 1 << 21, 256
# Slopes and curvatures of a mean exp(f) at most, so that a step that is far too long still has sums in float32.
_STEEPEST = 1e30
# Blocks of fewer numbers go into double precision by a copy.
_FEW_NUMBERS = 1 << 20
# Models at most whose products compiled code makes in double precision, in one go through float32 rows, faster than
# BLAS of a copy in double precision (1.2 times as fast with 4 models, .75 times with 8, .2 to .4 times with 65), and
# than BLAS in single precision.
_FEW_MODELS, _FEW_ROUGH_MODELS = 6, 2
# Sparse rows that are multiplied at once: scores of all models are written out for them.
_SPARSE_ROWS = 8_192


@dataclass(frozen=True, eq=False)
class TrialSteps:
    """Where a pass evaluates g linear models: at ``coefficients + steps[:, j] * directions`` for every j.

    Parameters
    ----------
    coefficients, directions : ndarray of shape (g, m + 1), float64
        One model a row; the last entry is the intercept.
    steps : ndarray of shape (g, T), float64
        Gradient and Hessian are taken at ``steps[:, 0]``, the loss at all of them.
    """

    coefficients: np.ndarray
    directions: np.ndarray
    steps: np.ndarray

    @property
    def point(self) -> np.ndarray:
        """The g models that gradient and Hessian belong to."""
        return self.coefficients + self.steps[:, :1] * self.directions

    @cached_property
    def both(self) -> np.ndarray:
        """The coefficients, then the directions, (2 g, m + 1)."""
        return np.vstack([self.coefficients, self.directions])

    @cached_property
    def is_zero(self) -> bool:
        """Whether every score is 0 at every step, as in the first pass from zero."""
        return not (self.coefficients.any() or self.directions.any())


@dataclass(frozen=True, eq=False)
class NewtonOptions:
    """What a Newton pass computes beside the loss.

    Parameters
    ----------
    loss : {"squared_hinge", "squared_error", "log_loss", "huber", "pinball", "poisson", "gamma", "softmax"}
        "softmax" is the log loss of all classes together, whose models take the same steps, (1, T); its Hessian is that
        of the squared error.
    columns : (int, int) or None
        The columns of the Hessians to sum, or None for no Hessian.
    hessian_of : tuple of int
        The models (rows of the trial) whose Hessian is summed: one of those that share it.
    change : bool
        What the Hessians change by from those at the trial's coefficients, instead of the whole: only rows that have
        got or lost their curvature count.
    follows : tuple of bool
        Which Hessians are summed by what they differ by from the one before, which is little where models are nearly
        the same: few rows have curvature for one of them alone. Empty where none is.
    first_order : bool
        Loss and gradient too (one record of a pass has them, the others are further panels of the Hessians).
    dtype : {"float32", "float64"}
        Of the mapped rows and of the Hessians' products.
    exact : bool
        Scores and gradients in float64, whatever `dtype` is.
    rounded : bool
        A GPU may round mapped rows to the 10 bits of its tensor cores for the Hessians, which is enough for steps that
        exact gradients correct.
    epsilon : float
        Of the loss "huber"; of "pinball" the width of the parabola in place of its kink.
    quantiles : tuple of float or None
        Of the loss "pinball": the quantile that each model is of.
    """

    loss: NewtonLoss | JointLoss
    columns: tuple[int, int] | None = None
    hessian_of: tuple[int, ...] = (0,)
    change: bool = False
    follows: tuple[bool, ...] = ()
    first_order: bool = True
    dtype: str = "float32"
    exact: bool = True
    rounded: bool = False
    epsilon: float = 0.1
    quantiles: tuple[float, ...] | None = None


def design_tiles(X: Rows, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, Any]]:
    """Row tiles of the design matrix: mapped rows with a last column of ones, where the rows are.

    On the host each is written over the one before; on a GPU each is as large as its memory allows.
    """
    if is_on_gpu(X):
        xp = array_module(X)
        for rows in spans(X.shape[0], tile_rows(feature_map.n_features + 1, np.dtype(dtype).itemsize)):
            phi = map_rows(X[rows], feature_map, dtype)
            yield rows, xp.concat([phi, xp.ones((phi.shape[0], 1), dtype=phi.dtype)], axis=1)
        return
    step = design_rows(feature_map.n_features, dtype)
    room = np.ones((min(step, X.shape[0]), feature_map.n_features + 1), dtype)
    for rows, _ in map_spans(X, feature_map, dtype, step, room):
        yield rows, room[: rows.stop - rows.start]


def mapped_tiles(X: Rows, feature_map: FeatureMap, dtype: str, width: int = 0) -> Iterator[tuple[slice, Any]]:
    """Row tiles of mapped rows, of the size that products of columns want; those of a GPU are mapped there, and stay.

    On the host each is written over the one before; on a GPU each is as large as its memory allows, where so many
    numbers of a row as `width` says are in memory at once in float64.
    """
    if is_on_gpu(X):
        itemsize = np.dtype(dtype).itemsize
        for rows in spans(X.shape[0], tile_rows(max(feature_map.n_features, 8 * width // itemsize), itemsize)):
            yield rows, map_rows(X[rows], feature_map, dtype)
        return
    # Memory that is fresh for each tile would cost a fifth of the time of a map.
    step = newton_tile(feature_map.n_features, dtype)
    room = np.empty((min(step, X.shape[0]), feature_map.n_features), dtype)
    yield from map_spans(X, feature_map, dtype, step, room)


def model_scores(phi: Any, models: np.ndarray) -> Any:
    """``phi . w + b`` of mapped rows (n, m) and models (g, m + 1), (n, g), where the rows are; float64 on a GPU."""
    if is_on_gpu(phi):
        return scores_on_gpu(phi, array_module(phi).asarray(models, dtype=np.float64))
    return phi @ models[:, :-1].T.astype(phi.dtype, copy=False) + models[:, -1]


def weighted_sums(weights: Any, phi: Any) -> Any:
    """``sum_i weights_i (phi_i, 1)`` over mapped rows (n, m), where they are; float64 on a GPU.

    Parameters
    ----------
    weights : array of shape (..., n), where the rows are
    phi : array of shape (n, m), sparse, or on a GPU

    Returns
    -------
    array of shape (..., m + 1)
    """
    if is_on_gpu(phi):
        xp = array_module(phi)
        flat = xp.reshape(weights, (-1, len(phi)))
        sums = xp.concat([weighted_rows_on_gpu(flat, phi), flat.sum(axis=1)[:, None]], axis=1)
        return xp.reshape(sums, (*weights.shape[:-1], phi.shape[1] + 1))
    sums = product(weights.astype(phi.dtype), phi)
    return np.concatenate([sums, weights.sum(axis=-1)[..., None]], axis=-1)


def is_plain_sparse(X: Rows, feature_map: FeatureMap) -> bool:
    """Whether mapped rows are columns of these sparse rows, scaled by what keeps zeros, times an amplitude each."""
    is_columns = feature_map.activation == "identity" and isinstance(feature_map.projection, ColumnProjection)
    return is_columns and keeps_zeros(feature_map.scaler) and sparse.issparse(X)


def sparse_rows(X: sparse.csr_array, feature_map: FeatureMap, dtype: str) -> sparse.csr_array:
    """The mapped rows, of shape (n, m), for rows that are `is_plain_sparse`."""
    projection = feature_map.projection
    if not isinstance(projection, ColumnProjection):
        raise TypeError(f"a map of {type(projection).__name__} has no columns of its rows")
    columns, X = projection.columns, scale_rows(sparse.csr_array(X), feature_map.scaler, dtype)
    if not np.array_equal(columns, np.arange(X.shape[1])):
        X = X[:, columns]
    # each stored value times the amplitude of its column
    data = X.data * feature_map.amplitudes.astype(dtype)[X.indices]
    return sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)


def sparse_tiles(X: sparse.csr_array, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, sparse.csr_array]]:
    """Spans of rows, and the mapped rows of each."""
    for rows in spans(X.shape[0], _SPARSE_ROWS):
        yield rows, sparse_rows(X[rows], feature_map, dtype)


def _cached_tiles(
    X: Rows, feature_map: FeatureMap, dtype: str, curved: CurvedRows, kept: Keeper | None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Row tiles of mapped rows that stay in the cache while they are used; those with curvature stay in memory.

    They are those that an earlier pass has mapped, where it could keep them.
    """
    n_rows, m = X.shape[0], feature_map.n_features
    tiles = spans(n_rows, min(cached_tile(m, dtype), curved.most_rows))
    if kept is not None and (known := kept.get()) is not None:
        for rows in tiles:
            room = curved.free(rows.stop - rows.start)
            # a copy, since rows with curvature move together there
            room[:] = known[rows]
            yield rows, room
        return
    has_room = kept is not None and kept.claim(n_rows * m * np.dtype(dtype).itemsize)
    whole = np.empty((n_rows, m), dtype) if has_room else None
    mapped = row_mapper(X, feature_map, dtype)
    for rows in tiles:
        phi = mapped(rows, curved.free(rows.stop - rows.start))
        if whole is not None:
            whole[rows] = phi
        yield rows, phi
    if kept is not None and whole is not None:
        kept.put(whole)


def cached_tile(n_features: int, dtype: str) -> int:
    """Rows whose mapped form stays in the cache; follows from dtype and the number of features alone."""
    rows = _CACHED_BYTES // (n_features * np.dtype(dtype).itemsize)
    return int(np.clip(rows // _LEAST_CACHED * _LEAST_CACHED, _LEAST_CACHED, _MOST_ROWS))


def design_rows(n_features: int, dtype: str) -> int:
    """Rows of a tile of the design matrix: what stays in the cache, where that is not too few for the calls on them."""
    return max(_LEAST_ROWS, cached_tile(n_features, dtype))


def newton_tile(n_features: int, dtype: str) -> int:
    """Rows that are mapped at once; follows from dtype and the number of features alone."""
    rows = _TILE_BYTES // (n_features * np.dtype(dtype).itemsize)
    return int(np.clip(rows // _LEAST_ROWS * _LEAST_ROWS, _LEAST_ROWS, _MOST_ROWS))


def loss_sums(
    phi: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    trial: TrialSteps,
    options: NewtonOptions,
    n_rows: int | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums over rows of the loss at every step and of its gradient, and the curvature of the rows.

    The losses are those of `dkl.solvers.losses.newton_loss`; targets of classes are -1 and +1.

    Parameters
    ----------
    phi : array of shape (n, m), dense or sparse, on the host
        Mapped rows; the models' intercepts count beside them.
    targets : ndarray of shape (n, g)
    weight : ndarray of shape (n,) or (n, g)
        Of each row, or of each row for each model; rows of weight 0 have no curvature.
    trial : TrialSteps
    options : NewtonOptions
    n_rows : int or None
        Of the block that the rows are a tile of; None where they are all.

    Returns
    -------
    loss : ndarray of shape (g, T), float64
        Of the softmax (1, T).
    gradient : ndarray of shape (g, m + 1), float64
    curvature : ndarray of shape (n, g)
        Of each row at the first step, in units of the loss's (1 where a row has some, unless curvature varies), less
        what it was before, with `change`; 0 for rows of weight 0.
    """
    g = len(trial.coefficients)
    # the few steps of two classes are worth it, not the many of several
    compiles = g <= (_FEW_MODELS if options.exact else _FEW_ROUGH_MODELS) and options.loss != "softmax"
    is_large = compiles and _is_large(phi, n_rows or len(targets))
    wide = phi if is_large or not options.exact else phi.astype(np.float64)
    # Scores are linear in the step: those at every step of a line search come from two products with the mapped rows.
    if trial.is_zero:
        start, move = np.zeros((2, phi.shape[0], g))
    elif is_large:
        start, move = line_scores(phi, trial.coefficients, trial.directions)
    else:
        start, move = np.split(model_scores(wide, trial.both), [g], axis=1)
    # Weights of a row are the same for all models, or each model has its own: of folds, a model does not see one.
    weight = weight[:, None] if weight.ndim == 1 else weight
    weight = weight if weight.shape == targets.shape else np.broadcast_to(weight, targets.shape)
    if options.loss in ("squared_hinge", "squared_error"):
        losses, descent = np.zeros(trial.steps.shape), np.empty(targets.shape)
        curvature: np.ndarray = np.empty(targets.shape, np.int8)
        flags = options.loss == "squared_hinge", options.change
        numbers = (start, move, targets, weight, trial.steps), flags, (losses, descent, curvature)
        _LINE(start.size * trial.steps.shape[1], *numbers)
    elif options.loss == "softmax":
        losses, descent, curvature = _joint_losses(start, move, targets, weight, trial.steps)
    else:
        losses, descent, curvature = _table_losses(start, move, targets, weight, trial.steps, options)
    # The gradient is sum_i s_i L'(y_i, f_i) (phi_i, 1); `descent` has minus the slopes.
    return losses, -(weighted_rows(descent, phi) if is_large else weighted_sums(descent.T, wide)), curvature


def _is_large(phi: Any, n_rows: int) -> bool:
    """Whether a block has so many rows that the compiled products in double precision are worth their compilation."""
    return isinstance(phi, np.ndarray) and phi.dtype == np.float32 and n_rows * phi.shape[1] >= _FEW_NUMBERS


def _table_losses(
    start: np.ndarray,
    move: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    steps: np.ndarray,
    options: NewtonOptions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `_line_losses` writes, by the table of losses, of rows on the host."""
    loss, counted = newton_loss(options.loss, options.epsilon, options.quantiles), weight > 0.0
    losses = np.empty(steps.shape)
    # The mean exp(f) of a step that is far too long overflows: its loss is infinite, and the step is not taken.
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps.shape[1]):
            value = weight * loss.value(targets, start + steps[:, t] * move)
            losses[:, t] = np.sum(value, axis=0, where=counted)
        score = start + steps[:, 0] * move
        slope = np.where(counted, loss.slope(targets, score), 0.0)
        curvature = np.where(counted, loss.curvature(targets, score), 0.0)
        if options.change:
            curvature -= np.where(counted, loss.curvature(targets, start), 0.0)
    slope, curvature = (np.clip(values, -_STEEPEST, _STEEPEST) for values in (slope, curvature))
    return losses, -weight * slope, curvature / loss.curvature_unit


def _losses_on_gpu(
    scores: Any, targets: Any, weight: Any, trial: TrialSteps, options: NewtonOptions
) -> tuple[Any, Any, Any]:
    """What `dkl.kernels.device.line_losses_on_gpu` returns, of every loss; of the softmax the losses are (1, T)."""
    xp, g, steps = array_module(scores), targets.shape[1], trial.steps
    if options.loss in ("squared_hinge", "squared_error"):
        hinge = options.loss == "squared_hinge"
        return line_losses_on_gpu(scores, targets, weight, xp.asarray(steps), hinge=hinge, change=options.change)
    start, move, weight = scores[:, :g], scores[:, g:], weight + xp.zeros_like(targets)
    if options.loss == "softmax":
        codes, own = targets.argmax(axis=1), weight[:, 0]
        losses = xp.stack([own @ SOFTMAX.value(codes, start + length * move) for length in steps[0]])[None]
        slope = SOFTMAX.slope(codes, start + steps[0, 0] * move)
        return losses, xp.ascontiguousarray((-weight * slope).T), xp.ascontiguousarray(weight.T)
    loss = _loss_at(options, scores)
    # all steps at once, (T, n, g)
    at = start + xp.asarray(np.ascontiguousarray(steps.T)[:, None]) * move
    # a row that does not count may have no loss
    counts, none = weight > 0.0, xp.zeros_like(start)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = xp.where(counts, weight * loss.value(targets, at), 0.0).sum(axis=1).T
        slope = xp.where(counts, loss.slope(targets, at[0]), none)
        curvature = xp.where(counts, loss.curvature(targets, at[0]), none)
        if options.change:
            curvature = curvature - xp.where(counts, loss.curvature(targets, start), none)
    slope, curvature = (xp.clip(values, -_STEEPEST, _STEEPEST) for values in (slope, curvature))
    counted = weight * curvature / loss.curvature_unit
    return losses, xp.ascontiguousarray((-weight * slope).T), xp.ascontiguousarray(counted.T)


def _joint_losses(
    start: np.ndarray, move: np.ndarray, targets: np.ndarray, weight: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The same of the log loss of all classes together: (1, T), (n, K), and 1 for every row that counts."""
    codes, own, losses = targets.argmax(axis=1), weight[:, 0], np.empty(steps.shape)
    for t, step in enumerate(steps[0]):
        losses[0, t] = own @ SOFTMAX.value(codes, start + step * move)
    slope = SOFTMAX.slope(codes, start + steps[0, 0] * move)
    return losses, -weight * slope, weight > 0.0


# Compiled code warns of nothing either.
@np.errstate(over="ignore", invalid="ignore")
def _few_line_losses(
    at: tuple[np.ndarray, ...], flags: tuple[bool, bool], out: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """`_line_losses` in NumPy."""
    start, move, y, w, steps = at
    losses, descent, curvature = out
    hinge, change = flags
    for t in range(steps.shape[1]):
        score = start + steps[:, t] * move
        slack = 1.0 - y * score if hinge else y - score
        slack = np.where(slack > 0.0, slack, 0.0) if hinge else slack
        losses[:, t] = sum_in_order(w * slack * slack if hinge else 0.5 * w * slack * slack, losses[:, t])
        if t == 0:
            descent[:] = 2.0 * w * slack * y if hinge else w * slack
            curvature[:] = (w > 0.0) & (slack > 0.0) if hinge else w > 0.0
            if change:
                curvature -= (w > 0.0) & (y * start < 1.0) if hinge else w > 0.0


def _many_line_losses(
    at: tuple[np.ndarray, ...], flags: tuple[bool, bool], out: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """`_line_losses` of arrays of one kind: it would be compiled for each combination of layouts."""
    # Copied unless C-ordered, contiguous and writeable; the weights of many models are one column seen many times.
    _line_losses(tuple(np.require(numbers, np.float64, ["C", "W"]) for numbers in at), flags, out)


@numba.njit(nogil=True, cache=True)
def _line_losses(
    at: tuple[np.ndarray, ...], flags: tuple[bool, bool], out: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """Add the losses at scores ``start + step * move``; write minus the slopes, and the curvatures, at the first.

    All three are tuples: `at` has start and move (n, g), the targets, the weights (n, g) and the steps (g, T).
    """
    start, move, targets, weight, steps = at
    losses, descent, curvature = out
    hinge, change = flags
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w = targets[i, k], weight[i, k]
            for t in range(steps.shape[1]):
                score = start[i, k] + steps[k, t] * move[i, k]
                slack = max(0.0, 1.0 - y * score) if hinge else y - score
                losses[k, t] += w * slack * slack if hinge else 0.5 * w * slack * slack
                if t == 0:
                    descent[i, k] = 2.0 * w * slack * y if hinge else w * slack
                    # A row of the squared hinge has curvature where its slack is positive; every row of the squared
                    # error has.
                    before = change and w > 0.0 and (y * start[i, k] < 1.0 or not hinge)
                    curvature[i, k] = np.int8(w > 0.0 and (slack > 0.0 or not hinge)) - np.int8(before)


# Compiling takes .6 s.
_LINE = TwoForms(_few_line_losses, _many_line_losses, 5_000_000)


def newton_sums(
    X: Rows,
    targets: Any,
    weight: Any,
    feature_map: FeatureMap,
    trial: TrialSteps,
    options: NewtonOptions,
    kept: Keeper | None = None,
) -> dict[str, np.ndarray]:
    """The sums of a Newton pass over rows X: "loss" and "gradient" (if asked for) and "hessian" (likewise).

    Parameters
    ----------
    X : array of shape (n, d)
    targets : array of shape (n, g)
        Of rows on a GPU it may be there too, in any dtype, and so may the weights be.
    weight : array of shape (n,) or (n, g)
        None for rows on a GPU that all weigh 1.
    feature_map : FeatureMap
    trial : TrialSteps
    options : NewtonOptions
    kept : Keeper or None
        Where mapped rows are kept for the next pass.

    Returns
    -------
    dict of ndarray
        "loss" (g, T) and "gradient" (g, m + 1); "hessian" (h, size) with the packed columns of h Hessians, divided by
        the loss's unit of curvature.
    """
    if is_on_gpu(X):
        return _newton_sums_on_gpu(X, targets, weight, feature_map, trial, options)
    g, width = trial.coefficients.shape
    sums: dict[str, np.ndarray] = {}
    if options.first_order:
        sums = {"loss": np.zeros(trial.steps.shape), "gradient": np.zeros((g, width))}
    if options.columns is not None:
        sums["hessian"] = np.zeros((len(options.hessian_of), packed_size(*options.columns)))
    hessians = [GramSum(options.columns, out) for out in sums["hessian"]] if options.columns is not None else []
    n_rows, m = X.shape[0], feature_map.n_features
    in_memory = bool(hessians or not is_plain_sparse(X, feature_map))
    held = min(n_rows, newton_tile(m, options.dtype) if hessians else cached_tile(m, options.dtype))
    curved = CurvedRows(hessians, np.empty((held if in_memory else 0, m), options.dtype))
    if in_memory:
        tiles = _cached_tiles(X, feature_map, options.dtype, curved, kept)
    else:
        tiles = sparse_tiles(X, feature_map, options.dtype)
    following = np.flatnonzero(options.follows) if hessians else np.zeros(0, np.int64)
    for rows, phi in tiles:
        tile_weight = weight[rows]
        losses, gradient, curvature = loss_sums(phi, targets[rows], tile_weight, trial, options, n_rows)
        if options.first_order:
            sums["loss"] += losses
            sums["gradient"] += gradient
        if hessians:
            # The Hessian is a sum over the rows with curvature alone, near the optimum a small part of all rows.
            of = list(options.hessian_of)
            own = (tile_weight[:, None] if weight.ndim == 1 else tile_weight[:, of]) * curvature[:, of]
            own[:, following] -= own[:, following - 1]
            curved.add(phi, own)
    curved.finish()
    for number in following:
        sums["hessian"][number] += sums["hessian"][number - 1]
    return sums


def _newton_sums_on_gpu(
    X: Any,
    targets: Any,
    weight: Any,
    feature_map: FeatureMap,
    trial: TrialSteps,
    options: NewtonOptions,
) -> dict[str, np.ndarray]:
    """`newton_sums` of rows on a GPU: scores, losses and slopes are made there too, and the host waits once at the end.

    Rows with a change of curvature, which are few, are picked there, too.
    """
    xp, g = array_module(X), len(trial.coefficients)
    # sent once, not with every tile
    sent, y = None if trial.is_zero else xp.asarray(trial.both), xp.asarray(targets, dtype=np.float64)
    ones = weight is None or (isinstance(weight, np.ndarray) and bool(np.all(weight == 1.0)))
    counts = xp.ones((len(targets), 1))
    if weight is not None and not ones:
        counts = xp.asarray(weight.reshape(len(targets), -1), dtype=np.float64)
    size = 0 if options.columns is None else packed_size(*options.columns)
    found = np.zeros((0 if options.columns is None else len(options.hessian_of), size))
    grams = [GramSum(options.columns, out, rounded=options.rounded) for out in found if options.columns is not None]
    # the rows of the squared error all count by their weights, whatever the model is
    all_alike = options.loss == "squared_error" and not options.change and ones
    sums: dict[str, Any] = {}
    # products of a tile are summed in double precision, or a few rows at a time
    for rows in spans(X.shape[0], tile_rows(feature_map.n_features, np.dtype(options.dtype).itemsize)):
        phi = map_rows(X[rows], feature_map, options.dtype)
        scores = xp.zeros((len(phi), 2 * g)) if sent is None else scores_on_gpu(phi, sent)
        losses, descent, counted = _losses_on_gpu(scores, y[rows], counts[rows], trial, options)
        if options.first_order:
            gradient = xp.concat([weighted_rows_on_gpu(descent, phi), descent.sum(axis=1)[:, None]], axis=1)
            tile = {"loss": losses, "gradient": -gradient}
            sums = {name: value + sums[name] if sums else value for name, value in tile.items()}
        changed, changes = [], []
        for number, gram in enumerate(grams):
            follows = bool(options.follows) and options.follows[number]
            own = counted[options.hessian_of[number]]
            own = own - counted[options.hessian_of[number - 1]] if follows else own
            if options.change or follows:
                changed.append(gram)
                changes.append(own)
            else:
                gram.add(phi, None if all_alike else own)
        add_few(changed, phi, changes)
    here = finished(sums, grams)
    if options.first_order and not sums:
        # no rows: none of the block counts for any model
        here = {"loss": np.zeros(trial.steps.shape), "gradient": np.zeros(trial.coefficients.shape)}
    for number in range(len(grams)):
        if options.follows and options.follows[number]:
            found[number] += found[number - 1]
    return {**here, "hessian": found} if grams else here


def newton_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`newton_sums` of a block: the function of a Newton pass's records.

    Operands: "feature_map", "trial", "options", "targets" (a `NewtonTargets`); "kept" where mapped rows may be kept.
    """
    targets: NewtonTargets = operands["targets"]
    X, asked = block.X, (operands["feature_map"], operands["trial"], operands["options"])
    if is_on_gpu(X):
        some, values, weight = beside_rows(block, "newton step", targets.of_seen_rows)
        return newton_sums(X if some is None else X[some], values, weight, *asked)
    some, values, weight = targets.of_seen_rows(block)
    kept = operands.get("kept")
    if some is not None:
        X, kept = X[some], None if kept is None else kept.at(blake2b(some.tobytes()).digest())
    return newton_sums(X, values, np.ones(len(values)) if weight is None else weight, *asked, kept)


def curvature_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The products of Hessians with a vector for each model, over a block: what conjugate gradients need of a Hessian.

    Operands: "feature_map", "point" and "searches" (g, m + 1), "targets" (a `NewtonTargets`), "options".

    Returns
    -------
    dict of ndarray
        "product" (g, m + 1): sum_i s_i c_i (phi_i, 1) (phi_i, 1).p, where c_i is the curvature of the loss at the
        point, in units of the loss's. Of the softmax c_i and (phi_i, 1).p are those of all K models, a matrix and a
        vector.
    """
    targets, feature_map, options = operands["targets"], operands["feature_map"], operands["options"]
    point, searches = operands["point"], operands["searches"]
    some, values, weight = beside_rows(block, "newton step", targets.of_seen_rows)
    X = block.X if some is None else block.X[some]
    product: Any = np.zeros(searches.shape)
    tiles = sparse_tiles if is_plain_sparse(X, feature_map) else mapped_tiles
    for rows, phi in tiles(X, feature_map, options.dtype):
        xp = array_module(X)
        share = model_scores(phi, searches)
        if options.loss != "squared_error":
            y = xp.asarray(values[rows], dtype=np.float64)
            share = _curved(y, model_scores(phi, point), share, options)
        if weight is not None:
            each = xp.reshape(weight[rows], (share.shape[0], -1))
            # a row of weight 0 may have no loss
            share = xp.where(each > 0.0, each * share, 0.0)
        # sums of a GPU stay there until the last one
        product = xp.asarray(product) + weighted_sums(share.T, phi)
    return together_on_host({"product": product})


def _curved(targets: Any, scores: Any, moves: Any, options: NewtonOptions) -> Any:
    """Moves (n, g) of the scores times the curvatures of the rows at these scores, in units of the loss's."""
    if options.loss == "softmax":
        return SOFTMAX.curved(scores, moves)
    loss = _loss_at(options, scores)
    with np.errstate(over="ignore", invalid="ignore"):
        curvature = loss.curvature(targets, scores)
    return array_module(scores).clip(curvature / loss.curvature_unit, -_STEEPEST, _STEEPEST) * moves


def _loss_at(options: NewtonOptions, scores: Any) -> Any:
    """The loss of these options, whose quantiles lie where the scores do."""
    loss: Any = newton_loss(options.loss, options.epsilon, options.quantiles)
    if options.quantiles is None or not is_on_gpu(scores):
        return loss
    return replace(loss, quantile=array_module(scores).asarray(loss.quantile))


@dataclass(frozen=True, eq=False)
class NewtonTargets:
    """Targets and weights of a block for g linear models.

    Parameters
    ----------
    models : ndarray of shape (g,), int64
        Class codes set against the rest, or columns of regression targets.
    n_classes : int or None
        K for classes, None for regression.
    class_weight : ndarray of shape (K,) or None
    center, scale : ndarray of shape (t,) or None
        Regression targets become ``(y - center) / scale``.
    kept : callable or None
        What rows are held out with (n,) to a mask of the rows that count; None for all.
    folds : callable or None
        What rows are held out with (n,) to the fold of each row, -1 for rows that all models see, -2 for rows that
        none does.
    fold : ndarray of shape (g,), int64, or None
        The fold whose rows a model does not see, -1 for a model that sees all.
    inside : bool
        A model sees the rows of its fold alone instead, -1 for those of no fold.
    """

    models: np.ndarray
    n_classes: int | None
    class_weight: np.ndarray | None = None
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    kept: Callable[[np.ndarray], np.ndarray] | None = None
    folds: Callable[[np.ndarray], np.ndarray] | None = None
    fold: np.ndarray | None = None
    inside: bool = False

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """The targets (n_b, g) and the weights (n_b,) of a block, where its targets are."""
        weight, xp = block.weights, namespace_of(block.y)
        if self.kept is not None:
            weight = weight * xp.asarray(self.kept(block.held_with))
        if self.n_classes is not None:
            if self.class_weight is not None:
                weight = weight * xp.take(xp.asarray(self.class_weight), block.y)
            # One class against the rest: targets -1 and +1, which a GPU keeps as single bytes.
            one = 1.0 if xp is np else xp.ones(1, np.int8)
            return xp.where(xp.asarray(block.y)[:, None] == xp.asarray(self.models), one, -one), weight
        targets = xp.reshape(xp.asarray(block.y, dtype=np.float64), (block.n_rows, -1))
        center = 0.0 if self.center is None else xp.asarray(self.center)
        scale = 1.0 if self.scale is None else xp.asarray(self.scale)
        return xp.take((targets - center) / scale, xp.asarray(self.models), axis=1), weight

    def of_seen_rows(self, block: Block) -> tuple[np.ndarray | None, np.ndarray, np.ndarray | None]:
        """The rows that some model sees, with their targets and weights.

        Returns
        -------
        some : ndarray of shape (k,), int64, or None
            The positions of these rows; None for all.
        targets : ndarray of shape (k, g)
        weight : array of shape (k,), or (k, g) where models see other rows, or None
            None where all are 1, as far as that is known without looking at numbers on a GPU.
        """
        sampled, some = getattr(self.folds, "samples", False), None
        seen = self.seen(block.row_id if sampled else block.held_with)
        if seen is not None:
            # Rows that no model sees are left out before they are mapped.
            some = np.flatnonzero(seen.any(axis=1))
            if len(some) < block.n_rows:
                block, seen = block.without_x(some), seen[some]
            else:
                some = None
        values, weight = self(block)
        all_seen = seen is None or bool(seen.all())
        if is_on_gpu(weight):
            plain = block.weight is None and self.class_weight is None and self.kept is None
            ones = plain and all_seen
            return (
                some,
                values,
                None if ones else weight if all_seen else weight[:, None] * array_module(weight).asarray(seen),
            )
        weight = weight if all_seen else weight[:, None] * seen
        return some, values, None if np.all(weight == 1.0) else weight

    def seen(self, held_with: np.ndarray) -> np.ndarray | None:
        """Which rows each model sees, (n_b, g), or None where all see all."""
        if self.folds is None or self.fold is None:
            return None
        # Fold -1 is for rows that every model sees, -2 for rows held out from all of them.
        folds = self.folds(held_with)[:, None]
        if self.inside:
            return folds == self.fold
        return (folds > -2) & ((folds != self.fold) | (folds < 0))
