"""Block functions of rounds: the working model's system, held-out losses of its trials, histograms, and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels import generic
from dkl.kernels.blas import product
from dkl.kernels.device import (
    array_module,
    beside_rows,
    dense_tiles,
    histograms_on_gpu,
    in_float64,
    is_on_gpu,
    together_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.maps import map_rows, row_mapper
from dkl.kernels.newton.gram import summed_product
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.step_tiles import SHARED_SUMS, TILE_ROWS, add_histograms, step_tiles, write_codes
from dkl.kernels.tiles import RowTiles
from dkl.methods.steps.binning import ColumnBins
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import Loss, namespace_of


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
class RefitTask:
    """The parts of the working model's system that a "refit" pass sums.

    Parameters
    ----------
    loss : Loss
    coefficients : ndarray of shape (K, m), float64
        The model at which slopes and curvatures are computed.
    new : ndarray of int64, or slice
        The columns of the system that are not summed yet.
    dtype : {"float32", "float64"}
    """

    loss: Loss
    coefficients: np.ndarray
    new: np.ndarray | slice
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class SearchTask:
    """The sums of a "search" pass: losses of trials on held-out rows, histograms for atoms, columns of candidates.

    Parameters
    ----------
    loss : Loss
    trials : ndarray of shape (T, K, m), float64
        Coefficients; histograms are summed at the slopes of the last of them.
    parents : ndarray of shape (P,), int64
        Atoms that are products of steps only, which further steps may extend.
    bins : ColumnBins
    dtype : {"float32", "float64"}
    candidates : FeatureMap or None
        Columns of other dictionaries, to be verified on all rows.
    base : ndarray of shape (K, m), or None
        The model at which curvatures h are computed: that of the working model's system, so that both are parts of one
        matrix. None is the last trial.
    codes : ndarray of shape (n, d), uint8, or None
        The bins of the block's values, if already computed; computing them takes as long as about twenty histograms.
    """

    loss: Loss
    trials: np.ndarray
    parents: np.ndarray
    bins: ColumnBins
    dtype: str = "float32"
    candidates: FeatureMap | None = None
    base: np.ndarray | None = None
    codes: np.ndarray | None = None


def row_codes(X: Rows, feature_map: FeatureMap, bins: ColumnBins) -> np.ndarray:
    """The bins of all values of a block, uint8 of shape (n, d)."""
    codes = np.empty(X.shape, np.uint8)
    for rows, tile in RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=TILE_ROWS):
        write_codes(tile, bins.edges, bins.n_edges, codes[rows])
    return codes


def refit_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of a Newton step of the working model. Operands: "feature_map", "targets", "task" (a `RefitTask`).

    Returns
    -------
    dict of ndarray
        "gram" (m, new): sum h phi phi_new^T. "gradient" (new, K): sum s phi_new. Held-out rows are not included.
    """
    task: RefitTask = operands["task"]
    feature_map: FeatureMap = operands["feature_map"]
    (y, weight, _), xp = in_float64(beside_rows(block, "rounds", operands["targets"])), array_module(block.X)
    loss, m = task.loss, feature_map.n_features
    columns = task.new if isinstance(task.new, slice) else xp.asarray(task.new)
    n_new = len(np.arange(m)[task.new])
    gram, gradient = xp.zeros((m, n_new)), xp.zeros((n_new, y.shape[1]))
    for rows, _, phi in _tiles(block.X, feature_map, task.dtype):
        scores = _scores(phi, task.coefficients) if task.coefficients.any() else xp.zeros_like(y[rows])
        s, h = slopes_and_curvatures(loss, y[rows], scores, weight[rows])
        new = phi[:, columns]
        gram += summed_product((phi * h[:, None].astype(phi.dtype)).T, new)
        gradient += _sums_by(s, new)
    return together_on_host({"gram": gram, "gradient": gradient})


def slopes_and_curvatures(
    loss: Loss, targets: Any, scores: Any, weight: Any, curved: Any = None
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted negative slopes s (n, K) of rows at their scores, and weighted curvatures h (n,) at scores `curved`.

    There is one system for all models, so a row has its largest curvature over the models, as an upper bound.
    """
    s = -loss.slope(targets, scores) * weight[:, None]
    return s, weight * loss.curvature(targets, scores if curved is None else curved).max(axis=1)


def _scores(phi: Any, models: np.ndarray) -> Any:
    """Scores (n, g) in float64 of features (n, m) under models (g, m), on the device of the features."""
    return phi.astype(np.float64) @ array_module(phi).asarray(models).T


def _sums_by(s: Any, phi: Any) -> Any:
    """sum_i s_ik phi_ij, (m, K), for rows (n, m) and weights (n, K), on their device."""
    if not is_on_gpu(phi):
        return product(phi.T, s.astype(phi.dtype))
    return weighted_rows_on_gpu(s.T, phi).T


def search_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of a "search" pass over a block. Operands: as in `refit_block`, with "task" a `SearchTask`.

    Returns
    -------
    dict of ndarray
        "held_out" (T,): the loss of each trial on held-out rows, summed over models. "weight" (): the weight of these
        rows. "histograms" (P, d, bins, 2 + K): of the training rows of each parent, as
        `dkl.kernels.step_tiles.add_histograms` sums them. With candidates psi, C columns: "cross" (m + C, C), the sum
        of h (phi, psi) psi^T, and "gradient" (m + C, K), the sum of s (phi, psi), at the slopes of the last trial.
    """
    task: SearchTask = operands["task"]
    feature_map: FeatureMap = operands["feature_map"]
    (y, weight, held), xp = in_float64(beside_rows(block, "rounds", operands["targets"])), array_module(block.X)
    loss, (n_trials, K, m) = task.loss, task.trials.shape
    bins = task.bins
    histograms = xp.zeros((len(task.parents), *bins.edges.shape, SHARED_SUMS + K))
    losses = xp.zeros(n_trials)
    coefficients = task.trials.reshape(-1, m)
    mapped = None if task.candidates is None else row_mapper(block.X, task.candidates, task.dtype)
    C = 0 if task.candidates is None else task.candidates.n_features
    cross, gradient = xp.zeros((m + C, C)), xp.zeros((m + C, K))
    for rows, X, phi in _tiles(block.X, feature_map, task.dtype):
        scores = _scores(phi, coefficients).reshape(-1, n_trials, K)
        # on a GPU, testing whether rows are held out would wait for it
        if is_on_gpu(phi) or held[rows].any():
            # a trial whose mean exp(f) overflows has an infinite loss, and is not chosen
            with np.errstate(over="ignore"):
                trials = [loss.value(y[rows], scores[:, i]).sum(axis=1) for i in range(n_trials)]
            losses += xp.stack([held[rows] @ each for each in trials])
        curved = None if task.base is None else _scores(phi, task.base)
        s, h = slopes_and_curvatures(loss, y[rows], scores[:, -1], weight[rows], curved)
        if mapped is not None:
            psi = mapped(rows)
            both = xp.concat([phi, psi], axis=1)
            cross += summed_product((both * h[:, None].astype(phi.dtype)).T, psi)
            gradient += _sums_by(s, both)
        if not len(task.parents):
            continue
        if is_on_gpu(phi):
            sums = xp.concat([weight[rows, None], h[:, None], s], axis=1)
            histograms += histograms_on_gpu(X, (bins.edges, bins.n_edges), (phi, task.parents), sums)
            continue
        if task.codes is None:
            codes = np.empty(X.shape, np.uint8)
            write_codes(X, bins.edges, bins.n_edges, codes)
        else:
            codes = task.codes[rows]
        for histogram, parent in zip(histograms, task.parents, strict=True):
            inside = np.flatnonzero((phi[:, parent] > 0.0) & (weight[rows] > 0.0))
            add_histograms(codes, inside, weight[rows], h, s, histogram)
    totals = {"held_out": losses, "weight": xp.asarray(held.sum()), "histograms": histograms}
    return together_on_host(totals if mapped is None else {**totals, "cross": cross, "gradient": gradient})


def _tiles(X: Rows, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, Any, Any]]:
    """Tiles of scaled rows in float64, with their features, on their device; maps of steps only use `step_tiles`."""
    if is_on_gpu(X):
        for rows, tile in dense_tiles(X, feature_map, np.dtype(np.float64), width=feature_map.n_features):
            phi = map_rows(tile, feature_map, dtype)
            yield rows, generic.scaled(array_module(tile), tile, feature_map.scaler, np.float64), phi
        return
    if feature_map.activation == "steps":
        yield from step_tiles(X, feature_map, dtype)
        return
    mapped = row_mapper(X, feature_map, dtype)
    for rows, tile in RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=TILE_ROWS):
        yield rows, tile, mapped(rows)
