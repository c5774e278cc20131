"""The global search in up to three dimensions: a grid of frequencies, and bounds on what its cells may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy import ndimage

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.nufft import ACCURACY, FrequencyGrid
from dkl.kernels.scale import scale_rows
from dkl.methods.frequency_search.peak_search import SearchOptions, distinct_peaks, search_peaks
from dkl.methods.peaks.driver import verification_record, verified_potentials
from dkl.methods.peaks.sums import PeakTargets, cell_sums
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample

# The largest |k_j| on each axis of the first grid, by the number of columns.
REACH = {1: 1_000, 2: 200, 3: 50}
# Cells that one pass refines at most, and steps of plain ascent from each local maximum.
_MOST_CELLS = 200_000
_POLISH = 30
# Operations of a matrix product that take as long as one row of a transform, by the number of columns, and as long as
# one point of its fine grid: measured on one thread.
_ROW_FLOPS = {1: 3e3, 2: 1.5e4, 3: 4e4}
_POINT_FLOPS = 200.0


@dataclass(frozen=True, eq=False)
class GridProblem:
    """A search for peaks of the targets' potential as data.

    Parameters
    ----------
    origin : FeatureMap
        Any pairs of the rows' one to three columns behind their scaler.
    targets : PeakTargets
    grid : FrequencyGrid
        The box that is searched, and the first cells: those around its points.
    center : ndarray of shape (d,)
        Near the middle of the scaled rows: the certificate is tighter, the nearer.
    n_peaks, n_candidates : int
    n_rows, sample_rows : int
        In all, and of the sample on which candidates are polished.
    tol : float
        The certificate wanted: no root of a normalised potential is higher than the best found by more than this.
    refinements : int
        Passes over cells that may hold more, at most.
    seed : int
    dtype : {"float32", "float64"}
        Of the verification.
    plain : ndarray of shape (p, d) or None
        Random draws: candidates that are verified as they are.
    """

    origin: FeatureMap
    targets: PeakTargets
    grid: FrequencyGrid
    center: np.ndarray
    n_peaks: int
    n_candidates: int
    n_rows: int
    sample_rows: int
    tol: float = 0.05
    refinements: int = 6
    seed: int = 0
    dtype: str = "float32"
    plain: np.ndarray | None = None

    @property
    def n_columns(self) -> int:
        return len(self.grid.spacing)

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The pairs of frequencies, amplitudes 1."""
        return replace(
            self.origin, projection=DenseProjection(points.astype(self.dtype)), amplitudes=np.ones(len(points))
        )


@dataclass(frozen=True, eq=False)
class GridState:
    """The state of the search between passes; roots are of potentials divided by (sum |s|)^2.

    Parameters
    ----------
    points : ndarray of shape (D, d)
        Candidates.
    verified : ndarray of shape (V,)
        Their pair potentials on all rows; empty before the last pass.
    cells : ndarray of shape (q, d)
        Middles of the cells that may hold more.
    level : int
        How often cells were halved.
    slack : float
        How much higher than in its middle a root can be in a cell of the first grid.
    unit : float
        sum |s|: the length of the vector of these sums where S has several columns.
    best, bound : float
        The highest root found; no root in the box is higher than `bound`.
    passes : int
    searched, finished : bool
    """

    points: np.ndarray
    verified: np.ndarray
    cells: np.ndarray
    level: int = 0
    slack: float = np.inf
    unit: float = 1.0
    best: float = 0.0
    bound: float = np.inf
    passes: int = 0
    searched: bool = False
    finished: bool = False


class GridDriver:
    """Lipschitz branch and bound over a box of frequencies, out of core.

    The first pass evaluates the potential on a grid, on all rows, by non-uniform fast transforms of blocks, which add
    up. The root of a potential changes within a cell by no more than sums of |s| |delta.(x - c)| say, so cells whose
    bound is below the best root and the tolerance hold nothing of interest; the others are cut into 2^d and evaluated
    by another pass, until none is left or `refinements` passes were made. Local maxima are polished on a row sample
    and verified on all rows by the last pass.

    Notes
    -----
    Measured on one thread: a row costs 0.03, 0.2 and 0.45 microseconds in the first grids of 1, 2 and 3 columns (1,001,
    80,601 and 520,251 frequencies), and 0.2 to 0.35 where a pass refines 500 to 20,000 cells in 3 columns. A pass over
    1e9 rows of 3 columns then takes 450 seconds of one core, in addition to reading.
    """

    def init(self, problem: GridProblem) -> GridState:
        """Nothing evaluated."""
        nothing = np.zeros((0, problem.n_columns))
        points = nothing if problem.plain is None else problem.plain.astype(np.float64)
        return GridState(points, np.zeros(0), nothing)

    def request(self, problem: GridProblem, state: GridState) -> Sequence[Record] | None:
        """The sums of the grid, of the cells that are left, or of the candidates."""
        if state.finished:
            return None
        if state.searched:
            return (verification_record(problem, problem.feature_map(state.points)),)
        return cell_record(problem, state), RowSample("rows to polish on", problem.sample_rows, problem.seed)

    def step(self, problem: GridProblem, state: GridState, results: Sequence[Any]) -> GridState:
        """Bound the potentials in the cells, and cut cells that may exceed the best; or store verified potentials."""
        state = replace(state, passes=state.passes + 1)
        if state.searched:
            return replace(state, verified=verified_potentials(results[0]), finished=True)
        state, left = _bounded(problem, state, results[0])
        exhausted = state.passes > problem.refinements or len(left) << problem.n_columns > _MOST_CELLS
        if len(left) and not exhausted:
            # the middles of the 2^d parts of each cell
            offsets = np.array(list(product((-0.25, 0.25), repeat=problem.n_columns)))
            offsets = offsets * problem.grid.spacing / 2**state.level
            parts = (left[:, None] + offsets).reshape(-1, problem.n_columns)
            return replace(state, cells=parts, level=state.level + 1)
        # Candidates ascend from the grid's local maxima on a row sample, and compete with the maxima themselves.
        sample: Block = results[1]
        whole = problem.sample_rows >= problem.n_rows
        S = problem.targets(sample) / (1.0 if whole else sample.weights[:, None])
        X = scale_rows(sample.X, problem.origin.scaler, "float64")
        # steps of a few first cells in all
        options = SearchOptions(chains=0, steps=1, stride=0.25, polish=_POLISH)
        sigma = float(np.sqrt(problem.n_columns) / np.linalg.norm(problem.grid.spacing))
        tops = state.points[0 if problem.plain is None else len(problem.plain) :]
        peaks = search_peaks(X, S / (np.abs(S).sum() or 1.0), sigma, options, problem.seed, extra_starts=tops)
        # an ascent may leave the box, of which alone the certificate speaks
        ends = problem.grid.spacing * (np.array(problem.grid.reach) + 0.5)
        inside = np.all(np.abs(peaks.frequencies) <= ends, axis=1)
        points = np.concatenate([state.points, peaks.frequencies[inside].astype(np.float64)])
        return replace(state, points=points, cells=state.cells[:0], searched=True)

    def memory(self, problem: GridProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the rows on which candidates ascend: as they came, and scaled in float64."""
        return {"searched rows": 3 * min(problem.sample_rows, n_rows) * row_bytes}

    def plan(self, problem: GridProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes of the grid, of the most refinements, and of the verification."""
        start = self.init(problem)
        sample = RowSample("rows to polish on", problem.sample_rows, problem.seed)
        cells = np.ones((1 << 10, problem.n_columns)) * problem.grid.spacing
        refined = cell_record(problem, replace(start, cells=cells, level=1))
        n_plain = 0 if problem.plain is None else len(problem.plain)
        points = np.zeros((n_plain + 3 * problem.n_candidates, problem.n_columns))
        last = verification_record(problem, problem.feature_map(points))
        return [((cell_record(problem, start), sample), 1), ((refined, sample), problem.refinements), ((last,), 1)]


def cell_record(problem: GridProblem, state: GridState) -> BlockSum:
    """The sums that bound the cells of a state: of the first grid at level 0."""
    K, d = problem.targets.n_columns, problem.n_columns
    first = state.level == 0
    size = problem.grid.size if first else len(state.cells)
    accumulators = {"features": Accumulator((2, size, K))}
    if first:
        accumulators |= {"variation": Accumulator((1 << (d - 1), K)), "absolutes": Accumulator((K,))}
    operands = {"problem": problem, "cells": None if first else state.cells}

    def cost(rows: int, columns: int) -> Cost:
        # the cost of a transform: for each row, and for each point of its fine grid and block
        per_block = _POINT_FLOPS * size * K
        flops = K * _ROW_FLOPS[d] * rows + per_block * max(1.0, rows / 65_536)
        return Cost(flops, 16 * K * (3 * size + rows) + 8 * rows * (4 * d + 2 * K))

    name = "frequency grid" if first else "frequency cells"
    # a fast transform of scattered points, which there is on the host alone
    return BlockSum(name, cell_sums, accumulators, operands, cost, on_host=True)


def _bounded(problem: GridProblem, state: GridState, sums: Mapping[str, np.ndarray]) -> tuple[GridState, np.ndarray]:
    """The state after an evaluation, and the middles of the cells that may hold more."""
    if "absolutes" in sums:
        # roots are divided by (sum |s|) of all columns of S
        unit = float(np.linalg.norm(sums["absolutes"])) or 1.0
        slack = float(np.max(np.linalg.norm(sums["variation"], axis=1))) / unit
        state = replace(state, slack=slack, unit=unit, cells=problem.grid.frequencies())
    roots = np.sqrt(np.sum(sums["features"] ** 2, axis=(0, 2))) / state.unit
    slack = state.slack / 2**state.level + ACCURACY
    # The best local maxima of the first grid, later the best cells, that are no near-duplicates; frequency 0 is none.
    positions = np.arange(len(roots))
    if state.level == 0:
        heights = roots.reshape(problem.grid.shape)
        positions = np.flatnonzero(heights == ndimage.maximum_filter(heights, size=3, mode="nearest"))
    positions = positions[np.any(state.cells[positions] != 0.0, axis=1)]
    # enough for distinct ones among them, and few enough to compare all with each other
    positions = positions[np.argsort(-roots[positions], kind="stable")[: 20 * problem.n_candidates]]
    tops = positions[distinct_peaks(state.cells[positions], roots[positions], problem.n_candidates)]
    # no root in a cell is higher than in its middle plus the slack, which halves with the cell
    best = max(state.best, float(roots.max(initial=0.0)))
    above = roots + slack > best + problem.tol
    bound = max(best + problem.tol, float((roots + slack)[above].max(initial=0.0)))
    points = np.concatenate([state.points, state.cells[tops]])
    kept = state.cells[above]
    return replace(state, points=points, best=best, bound=bound), kept
