"""Block functions of rounds: training and held-out weights, the working model's system, its trials, and candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.blas import product
from dkl.kernels.maps import row_mapper
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.step_tiles import SHARED_SUMS, TILE_ROWS, add_histograms, step_tiles, write_codes
from dkl.kernels.tiles import RowTiles
from dkl.methods.steps.binning import ColumnBins
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.solvers.losses import Loss


@dataclass(frozen=True)
class HeldTargets:
    """The targets of a block, with the weights of its training rows and of its held-out rows.

    Parameters
    ----------
    targets : NewtonTargets
    held : callable or None
        Row ids to a mask of the rows that are held out; None for none.
    left_out : callable or None
        Row ids to a mask of rows that neither learn nor judge; None for none.
    """

    targets: NewtonTargets
    held: Callable[[np.ndarray], np.ndarray] | None = None
    left_out: Callable[[np.ndarray], np.ndarray] | None = None

    def __call__(self, block: Block) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, K) targets, (n,) weights of rows that are learned from, (n,) weights of those held out."""
        targets, weight = self.targets(block)
        if self.held is None:
            return targets, weight, np.zeros_like(weight)
        mask = np.asarray(self.held(block.held_with), dtype=bool)
        if self.left_out is None:
            return targets, weight * ~mask, weight * mask
        return targets, weight * ~(mask | np.asarray(self.left_out(block.held_with), dtype=bool)), weight * mask


@dataclass(frozen=True, eq=False)
class RefitTask:
    """The parts of the working model's system that a "refit" pass sums.

    Parameters
    ----------
    loss : Loss
    coefficients : ndarray of shape (K, m), float64
        The model at which slopes and curvatures are taken.
    new : ndarray of int64, or slice
        The columns of the system that are not known yet.
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
        Coefficients; the last of them has the slopes that histograms sum.
    parents : ndarray of shape (P,), int64
        Atoms that are products of steps alone.
    bins : ColumnBins
    dtype : {"float32", "float64"}
    candidates : FeatureMap or None
        Columns of other dictionaries that are verified on all rows.
    base : ndarray of shape (K, m), or None
        The model at which curvatures h are taken: the one at which the working model's system was summed, so that these
        sums and the system are parts of one matrix. None for the last trial.
    codes : ndarray of shape (n, d), uint8, or None
        The bins of the block's values, if computed before, which takes as long as some twenty histograms.
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
        "gram" (m, new): sum h phi phi_new^T. "gradient" (new, K): sum s phi_new. Rows that are held out
        have no part in them.
    """
    task: RefitTask = operands["task"]
    feature_map: FeatureMap = operands["feature_map"]
    y, weight, _ = operands["targets"](block)
    loss, m = task.loss, feature_map.n_features
    n_new = len(np.arange(m)[task.new])
    gram, gradient = np.zeros((m, n_new)), np.zeros((n_new, y.shape[1]))
    for rows, _, phi in _tiles(block.X, feature_map, task.dtype):
        scores = phi.astype(np.float64) @ task.coefficients.T if task.coefficients.any() else np.zeros_like(y[rows])
        s = -loss.slope(y[rows], scores) * weight[rows, None]
        # one system for all models, with the largest curvature of a row as a bound on the curvature of each model
        h = weight[rows] * loss.curvature(y[rows], scores).max(axis=1)
        new = phi[:, task.new]
        gram += (phi * h[:, None].astype(phi.dtype)).T @ new
        gradient += product(new.T, s.astype(phi.dtype))
    return {"gram": gram, "gradient": gradient}


def search_block(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of a "search" pass over a block. Operands as of `refit_block`, with "task" a `SearchTask`.

    Returns
    -------
    dict of ndarray
        "held_out" (T,): the loss of each trial on rows that are held out, summed over models. "weight" (): of these
        rows. "histograms" (P, d, bins, 2 + K): of the rows of each parent that are learned from, as
        `dkl.kernels.step_tiles.add_histograms` adds them. With candidates psi, C columns: "cross" (m + C, C), the sum
        of h (phi, psi) psi^T, and "gradient" (m + C, K), the sum of s (phi, psi), at the slopes of the last trial.
    """
    task: SearchTask = operands["task"]
    feature_map: FeatureMap = operands["feature_map"]
    y, weight, held = operands["targets"](block)
    loss, (n_trials, K, m) = task.loss, task.trials.shape
    bins = task.bins
    histograms = np.zeros((len(task.parents), *bins.edges.shape, SHARED_SUMS + K))
    losses = np.zeros(n_trials)
    coefficients = task.trials.reshape(-1, m).T
    mapped = None if task.candidates is None else row_mapper(block.X, task.candidates, task.dtype)
    C = 0 if task.candidates is None else task.candidates.n_features
    cross, gradient = np.zeros((m + C, C)), np.zeros((m + C, K))
    for rows, X, phi in _tiles(block.X, feature_map, task.dtype):
        scores = (phi.astype(np.float64) @ coefficients).reshape(-1, n_trials, K)
        if held[rows].any():
            # a trial whose mean exp(f) overflows gets an infinite loss, and is not chosen
            with np.errstate(over="ignore"):
                losses += [held[rows] @ loss.value(y[rows], scores[:, i]).sum(axis=1) for i in range(n_trials)]
        s = -loss.slope(y[rows], scores[:, -1]) * weight[rows, None]
        curved = scores[:, -1] if task.base is None else phi.astype(np.float64) @ task.base.T
        h = weight[rows] * loss.curvature(y[rows], curved).max(axis=1)
        if mapped is not None:
            psi = mapped(rows)
            both = np.hstack([phi, psi])
            cross += (both * h[:, None].astype(phi.dtype)).T @ psi
            gradient += product(both.T, s.astype(phi.dtype))
        if not len(task.parents):
            continue
        if task.codes is None:
            codes = np.empty(X.shape, np.uint8)
            write_codes(X, bins.edges, bins.n_edges, codes)
        else:
            codes = task.codes[rows]
        for histogram, parent in zip(histograms, task.parents, strict=True):
            inside = np.flatnonzero((phi[:, parent] > 0.0) & (weight[rows] > 0.0))
            add_histograms(codes, inside, weight[rows], h, s, histogram)
    sums = {"held_out": losses, "weight": np.array(held.sum()), "histograms": histograms}
    return sums if mapped is None else {**sums, "cross": cross, "gradient": gradient}


def _tiles(X: Rows, feature_map: FeatureMap, dtype: str) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Tiles of raw rows, in float64, with their features; of maps of steps alone as `step_tiles`."""
    if feature_map.activation == "steps":
        yield from step_tiles(X, feature_map, dtype)
        return
    mapped = row_mapper(X, feature_map, dtype)
    for rows, tile in RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=TILE_ROWS):
        yield rows, tile, mapped(rows)
