"""Loss, gradient and Hessian of linear models on mapped rows, as sums over a block, for Newton steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection
from dkl.kernels.compiled import njit
from dkl.kernels.device import (
    array_module,
    beside_rows,
    is_on_gpu,
    line_losses_on_gpu,
    scores_on_gpu,
    sums_on_host,
    tile_rows,
    weighted_rows_on_gpu,
)
from dkl.kernels.gram import CurvedRows, GramSum, add_few, finished, packed_size
from dkl.kernels.maps import cached_tile, map_rows, mapped_tiles, newton_tile, row_mapper
from dkl.kernels.moments import sum_in_order
from dkl.kernels.products import line_scores, weighted_rows
from dkl.kernels.scale import keeps_zeros, scale_rows
from dkl.kernels.threads import product
from dkl.kernels.tiles import spans
from dkl.process import TwoForms
from dkl.protocols.arrays import Rows, as_columns
from dkl.protocols.block import Block
from dkl.protocols.records import Keeper
from dkl.solvers.losses import SOFTMAX, namespace_of, newton_loss

# Bound on the slopes and curvatures of losses with a mean exp(f), so that sums in float32 are finite for steps that are
# far too long.
_LARGEST_SLOPE = 1e30
# Blocks of fewer numbers are copied to float64.
_FEW_NUMBERS = 1 << 20
# Largest number of models whose products of float32 rows are formed by compiled code in float64: compared with BLAS on
# a float64 copy (1.2 times as fast with 4 models, .75 times with 8, .2 to .4 times with 65), and with BLAS in float32.
_FEW_MODELS, _FEW_SINGLE_MODELS = 6, 2
# Number of sparse rows in a tile, for which the dense scores of all models are in memory.
_SPARSE_ROWS = 8_192


@dataclass(frozen=True, eq=False)
class TrialSteps:
    """The points at which a pass evaluates g linear models: ``coefficients + steps[:, j] * directions`` for every j.

    Parameters
    ----------
    coefficients, directions : ndarray of shape (g, m + 1), float64
        One model in each row; the last entry is the intercept.
    steps : ndarray of shape (g, T), float64
        Gradient and Hessian are evaluated at ``steps[:, 0]``, the loss at all steps.
    """

    coefficients: np.ndarray
    directions: np.ndarray
    steps: np.ndarray

    @cached_property
    def moves(self) -> bool:
        """Whether some direction is not zero, so that steps of other lengths lead to other points."""
        return bool(self.directions.any())

    @cached_property
    def both(self) -> np.ndarray:
        """The coefficients, then the directions if they move, (2 g, m + 1) or (g, m + 1)."""
        return np.vstack([self.coefficients, self.directions]) if self.moves else self.coefficients

    @cached_property
    def is_zero(self) -> bool:
        """Whether every score is 0 at every step, as in the first pass from zero."""
        return not (self.moves or self.coefficients.any())


@dataclass(frozen=True, eq=False)
class NewtonOptions:
    """The sums of a Newton pass, and the precision of their arithmetic.

    Parameters
    ----------
    loss : str
        One with exact steps in the table `LOSSES` of `dkl.registry`, or "softmax".
        "softmax" is the log loss of all classes together, whose models have the same steps, (1, T); its Hessian is
        replaced by that of the squared error.
    columns : (int, int) or None
        The columns of the Hessians that are summed; None for no Hessian.
    hessian_of : tuple of int
        The models (rows of the trial) whose Hessians are summed; models that share a Hessian are listed once.
    change : bool
        Whether to sum the changes of the Hessians since the trial's coefficients: only rows whose curvature has changed
        are used.
    follows : tuple of bool
        For each Hessian whether it is summed as the difference to the one before, for which few rows are needed if the
        two models are similar. Empty for none.
    first_order : bool
        Whether to sum loss and gradient; only one record of a pass does, the others have further columns of Hessians.
    dtype : {"float32", "float64"}
        dtype of the mapped rows and of the Hessians' products.
    exact : bool
        Whether scores and gradients are computed in float64 for any `dtype`.
    rounded : bool
        Whether a GPU may round mapped rows to the 10 bits of its tensor cores for the Hessians; exact gradients correct
        the resulting steps.
    epsilon : float
        Parameter of the loss "huber"; for "pinball" the width of the parabola that replaces its kink.
    quantiles : tuple of float or None
        The quantile of each model, for the loss "pinball".
    """

    loss: str
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


def model_scores(phi: Any, models: np.ndarray) -> Any:
    """``phi . w + b`` for mapped rows (n, m) and models (g, m + 1): (n, g), on the rows' device, float64 on a GPU."""
    if is_on_gpu(phi):
        return scores_on_gpu(phi, array_module(phi).asarray(models, dtype=np.float64))
    return phi @ models[:, :-1].T.astype(phi.dtype, copy=False) + models[:, -1]


def weighted_sums(weights: Any, phi: Any) -> Any:
    """``sum_i weights_i (phi_i, 1)`` over mapped rows (n, m), on the device of the rows; float64 on a GPU.

    Parameters
    ----------
    weights : array of shape (..., n), on the device of the rows
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
    """Whether the mapped rows are columns of sparse rows, scaled without changing zeros, times amplitudes."""
    is_columns = feature_map.activation == "identity" and isinstance(feature_map.projection, ColumnProjection)
    return is_columns and keeps_zeros(feature_map.scaler) and sparse.issparse(X)


def sparse_rows(X: sparse.csr_array, feature_map: FeatureMap, dtype: str) -> sparse.csr_array:
    """The mapped rows, of shape (n, m), for rows that are `is_plain_sparse`."""
    columns, X = (
        feature_map.projection_as(ColumnProjection).columns,
        scale_rows(sparse.csr_array(X), feature_map.scaler, dtype),
    )
    if not np.array_equal(columns, np.arange(X.shape[1])):
        X = X[:, columns]

    data = X.data * feature_map.amplitudes.astype(dtype)[X.indices]
    return sparse.csr_array((data, X.indices, X.indptr), shape=X.shape)


def sparse_tiles(X: sparse.csr_array, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, sparse.csr_array]]:
    """Row tiles of the mapped rows, for rows that are `is_plain_sparse`."""
    for rows in spans(X.shape[0], _SPARSE_ROWS):
        yield rows, sparse_rows(X[rows], feature_map, dtype)


def _cached_tiles(
    X: Rows, feature_map: FeatureMap, dtype: str, curved: CurvedRows, kept: Keeper | None
) -> Iterator[tuple[slice, np.ndarray]]:
    """Row tiles of mapped rows that fit into the cache, in the memory of `curved`, which keeps rows with curvature.

    Rows are copied from those that an earlier pass has kept, if it has; otherwise they are mapped, and kept if there is
    memory.
    """
    n_rows, m = X.shape[0], feature_map.n_features
    tiles = spans(n_rows, min(cached_tile(m, dtype), curved.most_rows))
    if kept is not None and (known := kept.get()) is not None:
        for rows in tiles:
            buffer = curved.free(rows.stop - rows.start)
            # a copy, since `curved` moves rows with curvature
            buffer[:] = known[rows]
            yield rows, buffer
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
        Mapped rows.
    targets : ndarray of shape (n, g)
    weight : ndarray of shape (n,) or (n, g)
        Weights of rows, possibly different for each model; rows of weight 0 have no curvature.
    trial : TrialSteps
    options : NewtonOptions
    n_rows : int or None
        Number of rows of the block, if the rows are a tile of it; None if they are all.

    Returns
    -------
    loss : ndarray of shape (g, T), float64
        For the softmax (1, T).
    gradient : ndarray of shape (g, m + 1), float64
    curvature : ndarray of shape (n, g)
        The curvature of each row at the first step, divided by the loss's unit of curvature, so that it is 0 or 1 for
        piecewise quadratic losses; with `change`, minus the curvature at the trial's coefficients. 0 for rows of weight
        0.
    """
    g = len(trial.coefficients)
    # compiled products are faster for few models only, and not used for the softmax
    compiles = g <= (_FEW_MODELS if options.exact else _FEW_SINGLE_MODELS) and options.loss != "softmax"
    is_large = compiles and _is_large(phi, n_rows or len(targets))
    wide = phi if is_large or not options.exact else phi.astype(np.float64)
    # scores are linear in the step, so that two products with the mapped rows give the scores at all steps
    if trial.is_zero:
        start, move = np.zeros((2, phi.shape[0], g))
    elif is_large:
        start, move = line_scores(phi, trial.coefficients, trial.directions)
    else:
        start, move = np.split(model_scores(wide, trial.both), [g], axis=1)
        move = move if trial.moves else np.zeros_like(start)
    # with folds each model has its own weights, 0 for rows of the fold that it does not see
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
    """Whether a block is so large that the compiled products in float64 are worth their compilation."""
    return isinstance(phi, np.ndarray) and phi.dtype == np.float32 and n_rows * phi.shape[1] >= _FEW_NUMBERS


def _table_losses(
    start: np.ndarray,
    move: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    steps: np.ndarray,
    options: NewtonOptions,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_line_losses` for all losses in the table `dkl.solvers.losses`, for rows on the host."""
    loss, counted = _loss_at(options, start), weight > 0.0
    losses = np.empty(steps.shape)
    # exp(f) overflows for a step that is far too long; its loss is infinite, so that the step is rejected
    with np.errstate(over="ignore", invalid="ignore"):
        for t in range(steps.shape[1]):
            value = weight * loss.value(targets, start + steps[:, t] * move)
            losses[:, t] = np.sum(value, axis=0, where=counted)
        at_first = loss.derivatives(targets, start + steps[:, 0] * move)
        slope, curvature = (np.where(counted, values, 0.0) for values in at_first)
        if options.change:
            curvature -= np.where(counted, loss.curvature(targets, start), 0.0)
    slope, curvature = (np.clip(values, -_LARGEST_SLOPE, _LARGEST_SLOPE) for values in (slope, curvature))
    return losses, -weight * slope, curvature / loss.curvature_unit


def _losses_on_gpu(
    scores: Any, targets: Any, weight: Any, trial: TrialSteps, options: NewtonOptions
) -> tuple[Any, Any, Any]:
    """`dkl.kernels.device.line_losses_on_gpu` for all losses; losses of the softmax have shape (1, T)."""
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
    # the loss of a row of weight 0 may be undefined
    counts, none = weight > 0.0, xp.zeros_like(start)
    with np.errstate(over="ignore", invalid="ignore"):
        losses = xp.where(counts, weight * loss.value(targets, at), 0.0).sum(axis=1).T
        slope, curvature = (xp.where(counts, values, none) for values in loss.derivatives(targets, at[0]))
        if options.change:
            curvature = curvature - xp.where(counts, loss.curvature(targets, start), none)
    slope, curvature = (xp.clip(values, -_LARGEST_SLOPE, _LARGEST_SLOPE) for values in (slope, curvature))
    counted = weight * curvature / loss.curvature_unit
    return losses, xp.ascontiguousarray((-weight * slope).T), xp.ascontiguousarray(counted.T)


def _joint_losses(
    start: np.ndarray, move: np.ndarray, targets: np.ndarray, weight: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`_line_losses` for the softmax: losses (1, T), minus slopes (n, K), curvature 1 for rows of positive weight."""
    codes, own, losses = targets.argmax(axis=1), weight[:, 0], np.empty(steps.shape)
    for t, step in enumerate(steps[0]):
        losses[0, t] = own @ SOFTMAX.value(codes, start + step * move)
    slope = SOFTMAX.slope(codes, start + steps[0, 0] * move)
    return losses, -weight * slope, weight > 0.0


# no warnings, like compiled code
@np.errstate(over="ignore", invalid="ignore")
def _few_line_losses(
    at: tuple[np.ndarray, ...], flags: tuple[bool, bool], out: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """`_line_losses` in NumPy, for so few scores that compiling the loop would take longer."""
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
    """`_line_losses` on C-contiguous, writeable arrays, so that it is not compiled for each combination of layouts.

    Other arrays, such as weights that are broadcast to several models, are copied.
    """
    _line_losses(tuple(np.require(numbers, np.float64, ["C", "W"]) for numbers in at), flags, out)


@njit(nogil=True)
def _line_losses(
    at: tuple[np.ndarray, ...], flags: tuple[bool, bool], out: tuple[np.ndarray, np.ndarray, np.ndarray]
) -> None:
    """Add the losses at scores ``start + step * move``; write minus the slopes and the curvatures at the first step.

    Parameters
    ----------
    at : tuple
        start, move, targets and weights, (n, g) each, and the steps (g, T).
    flags : tuple of bool
        Whether the loss is the squared hinge instead of the squared error, and whether the curvatures are written less
        those at `start`.
    out : tuple
        The losses (g, T), minus the slopes (n, g), and the curvatures (n, g).
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
                    # a row has curvature for the squared hinge if its slack is positive, for the squared error always
                    before = change and w > 0.0 and (y * start[i, k] < 1.0 or not hinge)
                    curvature[i, k] = np.int8(w > 0.0 and (slack > 0.0 or not hinge)) - np.int8(before)


# Number of scores (rows times models times steps) from which on the compiled form is used; compiling takes .6 s.
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
    """The sums of a Newton pass over rows X: "loss" and "gradient", and "hessian", as chosen in `options`.

    Parameters
    ----------
    X : array of shape (n, d)
    targets : array of shape (n, g)
        For rows on a GPU, targets (of any dtype) and weights may be on the GPU or the host.
    weight : array of shape (n,) or (n, g), or None
        None for rows on a GPU with weight 1.
    feature_map : FeatureMap
    trial : TrialSteps
    options : NewtonOptions
    kept : Keeper or None
        Keeps mapped rows for the next pass.

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
            # only rows with curvature enter the Hessian; near the optimum these are few
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
    """`newton_sums` for rows on a GPU, where everything is computed; the host waits only once, at the end.

    For changes of Hessians the GPU selects the few rows whose curvature has changed.
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
    # for the squared error all rows have the same curvature, for every model
    all_alike = options.loss == "squared_error" and not options.change and ones
    sums: dict[str, Any] = {}
    # products of a tile are summed in float64, or over a few rows at a time
    for rows in spans(X.shape[0], tile_rows(feature_map.n_features, np.dtype(options.dtype).itemsize)):
        phi = map_rows(X[rows], feature_map, options.dtype)
        scores = xp.zeros((len(phi), 2 * g)) if sent is None else scores_on_gpu(phi, sent)
        scores = scores if scores.shape[1] == 2 * g else xp.concat([scores, xp.zeros_like(scores)], axis=1)
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
        # no row of the block is seen by any model
        here = {"loss": np.zeros(trial.steps.shape), "gradient": np.zeros(trial.coefficients.shape)}
    for number in range(len(grams)):
        if options.follows and options.follows[number]:
            found[number] += found[number - 1]
    return {**here, "hessian": found} if grams else here


def newton_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """`newton_sums` of a block: the block function of a Newton pass.

    Operands: "feature_map", "trial", "options", "targets" (a `NewtonTargets`), and "kept" if mapped rows may be kept.
    """
    targets: NewtonTargets = operands["targets"]
    X, of_pass = block.X, (operands["feature_map"], operands["trial"], operands["options"])
    if is_on_gpu(X):
        some, values, weight = beside_rows(block, "newton step", targets.of_seen_rows)
        return newton_sums(X if some is None else X[some], values, weight, *of_pass)
    some, values, weight = targets.of_seen_rows(block)
    kept = operands.get("kept")
    if some is not None:
        X, kept = X[some], None if kept is None else kept.at(blake2b(some.tobytes()).digest())
    return newton_sums(X, values, np.ones(len(values)) if weight is None else weight, *of_pass, kept)


def curvature_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The products of Hessians with one vector for each model, over a block, for conjugate gradients.

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
            # the curvature of a row of weight 0 may be undefined
            share = xp.where(each > 0.0, each * share, 0.0)
        # on a GPU the sum stays there until the last tile
        product = xp.asarray(product) + weighted_sums(share.T, phi)
    return sums_on_host({"product": product})


def _curved(targets: Any, scores: Any, moves: Any, options: NewtonOptions) -> Any:
    """Moves (n, g) of the scores times the curvatures of the rows at these scores, in units of the loss's."""
    if options.loss == "softmax":
        return SOFTMAX.curved(scores, moves)
    loss = _loss_at(options, scores)
    with np.errstate(over="ignore", invalid="ignore"):
        curvature = loss.curvature(targets, scores)
    return array_module(scores).clip(curvature / loss.curvature_unit, -_LARGEST_SLOPE, _LARGEST_SLOPE) * moves


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
        The class code of each model, which is fitted against all other classes, or the column of regression targets.
    n_classes : int or None
        K for classes, None for regression.
    class_weight : ndarray of shape (K,) or None
    center, scale : ndarray of shape (t,) or None
        Regression targets become ``(y - center) / scale``.
    kept : callable or None
        A function of `Block.held_with` (n,) that returns a mask of the rows to use; None for all.
    folds : callable or None
        A function of `Block.held_with` (n,) that returns the fold of each row, -1 for rows that all models see, -2 for
        rows that none sees.
    fold : ndarray of shape (g,), int64, or None
        The fold whose rows each model does not see; -1 for a model that sees all.
    inside : bool
        Whether a model sees only the rows of its fold instead; -1 for the rows of no fold.
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

    @property
    def share(self) -> float:
        """The share of all rows that some model sees, if the folds have one; else 1."""
        return float(getattr(self.folds, "share", 1.0))

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """The targets (n_b, g) and the weights (n_b,) of a block, on the device of its targets."""
        weight, xp = block.weights, namespace_of(block.y)
        if self.kept is not None:
            weight = weight * xp.asarray(self.kept(block.held_with))
        if self.n_classes is not None:
            if self.class_weight is not None:
                weight = weight * xp.take(xp.asarray(self.class_weight), block.y)
            # targets are +1 for the class of the model and -1 for others; a GPU stores them in single bytes
            one = 1.0 if xp is np else xp.ones(1, np.int8)
            return xp.where(xp.asarray(block.y)[:, None] == xp.asarray(self.models), one, -one), weight
        targets = as_columns(xp.asarray(block.y, dtype=np.float64))
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
        weight : array of shape (k,), or (k, g) if models see different rows, or None
            None if all are 1; on a GPU only if that is known without reading the weights.
        """
        sampled, some = getattr(self.folds, "samples", False), None
        seen = self.seen(block.row_id if sampled else block.held_with)
        if seen is not None:
            # rows that no model sees need not be mapped
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
        """Whether each model sees each row, (n_b, g) bool; None if all models see all rows."""
        if self.folds is None or self.fold is None:
            return None
        # fold -1 has the rows that every model sees, -2 those that none sees
        folds = self.folds(held_with)[:, None]
        if self.inside:
            return folds == self.fold
        return (folds > -2) & ((folds != self.fold) | (folds < 0))
