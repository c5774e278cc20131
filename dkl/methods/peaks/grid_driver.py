"""Global search in up to three dimensions: a grid of frequencies, and bounds on the potential within its cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from scipy import ndimage

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.nufft import ACCURACY, FrequencyGrid, grid_sums, scattered_sums, variation_sums
from dkl.kernels.scale import scale_rows
from dkl.methods.frequency_search.peak_search import SearchOptions, distinct_peaks, search_peaks
from dkl.methods.peaks.driver import PeakTargets, verification_record, verified_potentials
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample

# The largest |k_j| on each axis of the first grid, by the number of columns.
REACH = {1: 1_000, 2: 200, 3: 50}
# Limit on the cells that one pass refines; steps of noise-free ascent from each local maximum.
_MOST_CELLS = 200_000
_POLISH_STEPS = 30
# Operations of a matrix product that take as long as one row of a transform, by the number of columns, and as long as
# one point of its fine grid; measured on one thread.
_ROW_FLOPS = {1: 3e3, 2: 1.5e4, 3: 4e4}
_POINT_FLOPS = 200.0


@dataclass(frozen=True, eq=False)
class GridProblem:
    """A global search for peaks of the targets' potential, as data.

    Parameters
    ----------
    origin : FeatureMap
        A map with any frequencies of the rows' one to three columns, and with their scaler.
    targets : PeakTargets
    grid : FrequencyGrid
        The box to search, and the first cells: those around its points.
    center : ndarray of shape (d,)
        A point near the middle of the scaled rows; the nearer, the tighter is the certificate.
    n_peaks, n_candidates : int
    n_rows, sample_rows : int
        All rows, and those of the sample on which candidates are polished.
    tol : float
        Largest difference between the bound and the best root of a normalised potential: the wanted accuracy.
    refinements : int
        Limits the passes that halve cells.
    seed : int
    dtype : {"float32", "float64"}
        Precision of the verification.
    plain : ndarray of shape (p, d) or None
        Random draws, candidates that are verified without a search.
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
        """Cosine-sine pairs of these frequencies, amplitudes 1."""
        return replace(
            self.origin, projection=DenseProjection(points.astype(self.dtype)), amplitudes=np.ones(len(points))
        )


@dataclass(frozen=True, eq=False)
class GridState:
    """The state of the search between passes; roots are of potentials divided by (sum |s|)^2.

    Parameters
    ----------
    points : ndarray of shape (D, d)
        Candidate frequencies.
    verified : ndarray of shape (V,)
        Pair potentials of candidates on all rows; empty before the last pass.
    cells : ndarray of shape (q, d)
        Centres of the cells that may contain a root above the best one by more than `tol`.
    level : int
        How often the cells were halved.
    slack : float
        Bound on the difference between a root in a cell of the first grid and the root at the cell's centre.
    unit : float
        sum |s|, or the norm of these sums if S has several columns.
    best, bound : float
        The highest root found, and the upper bound on all roots in the box.
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
    """Lipschitz branch and bound over a box of frequencies, on any number of rows.

    The first pass evaluates the potential on a grid, on all rows, by non-uniform fast transforms of blocks, whose
    results add up. Within a cell the root of the potential differs from that at the centre by at most sums of |s|
    |delta.(x - c)|, so that cells whose bound is below the best root plus the tolerance are discarded. The others are
    cut into 2^d and evaluated by another pass, until none is left or `refinements` passes were made. Local maxima are
    polished on a row sample and verified on all rows by the last pass.

    Notes
    -----
    Measured on one thread: a row costs 0.03, 0.2 and 0.45 microseconds in the first grids of 1, 2 and 3 columns (1,001,
    80,601 and 520,251 frequencies), and 0.2 to 0.35 in passes that refine 500 to 20,000 cells in 3 columns. A pass over
    1e9 rows of 3 columns then takes 450 seconds of one core, in addition to reading.
    """

    def init(self, problem: GridProblem) -> GridState:
        """The state before the first pass."""
        none = np.zeros((0, problem.n_columns))
        points = none if problem.plain is None else problem.plain.astype(np.float64)
        return GridState(points, np.zeros(0), none)

    def request(self, problem: GridProblem, state: GridState) -> Sequence[Record] | None:
        """The sums of the grid, of the remaining cells, or of the candidates."""
        if state.finished:
            return None
        if state.searched:
            return (verification_record(problem.targets, problem.feature_map(state.points), problem.dtype),)
        return cell_record(problem, state), RowSample("rows to polish on", problem.sample_rows, problem.seed)

    def step(self, problem: GridProblem, state: GridState, results: Sequence[Any]) -> GridState:
        """Bound the potentials in the cells, and cut cells that may exceed the best; or store verified potentials."""
        state = replace(state, passes=state.passes + 1)
        if state.searched:
            return replace(state, verified=verified_potentials(results[0]), finished=True)
        state, remaining = _state_and_open_cells(problem, state, results[0])
        exhausted = state.passes > problem.refinements or len(remaining) << problem.n_columns > _MOST_CELLS
        if len(remaining) and not exhausted:
            # the centres of the 2^d parts of each cell
            offsets = np.array(list(product((-0.25, 0.25), repeat=problem.n_columns)))
            offsets = offsets * problem.grid.spacing / 2**state.level
            parts = (remaining[:, None] + offsets).reshape(-1, problem.n_columns)
            return replace(state, cells=parts, level=state.level + 1)
        # Candidates are the grid's local maxima, and the points to which these ascend on a row sample.
        sample: Block = results[1]
        # S contains the rows' weights: those by which the sample was drawn are divided out
        S = problem.targets(sample) / (sample.weights / sample.drawn_from(problem.n_rows).weights)[:, None]
        X = scale_rows(sample.X, problem.origin.scaler, "float64")
        # steps as long as a few of the first cells
        options = SearchOptions(chains=0, steps=1, stride=0.25, polish=_POLISH_STEPS)
        sigma = float(np.sqrt(problem.n_columns) / np.linalg.norm(problem.grid.spacing))
        starts = state.points[0 if problem.plain is None else len(problem.plain) :]
        peaks = search_peaks(X, S / (np.abs(S).sum() or 1.0), sigma, options, problem.seed, extra_starts=starts)
        # the certificate holds inside the box, so that peaks outside it are dropped
        limits = problem.grid.spacing * (np.array(problem.grid.reach) + 0.5)
        inside = np.all(np.abs(peaks.frequencies) <= limits, axis=1)
        points = np.concatenate([state.points, peaks.frequencies[inside].astype(np.float64)])
        return replace(state, points=points, cells=state.cells[:0], searched=True)

    def memory(self, problem: GridProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the rows on which candidates ascend: stored, and scaled in float64."""
        return {"searched rows": 3 * min(problem.sample_rows, n_rows) * row_bytes}

    def plan(self, problem: GridProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes of the grid, of all refinements, and of the verification."""
        start = self.init(problem)
        sample = RowSample("rows to polish on", problem.sample_rows, problem.seed)
        cells = np.ones((1 << 10, problem.n_columns)) * problem.grid.spacing
        refined = cell_record(problem, replace(start, cells=cells, level=1))
        n_plain = 0 if problem.plain is None else len(problem.plain)
        points = np.zeros((n_plain + 3 * problem.n_candidates, problem.n_columns))
        last = verification_record(problem.targets, problem.feature_map(points), problem.dtype)
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
    # the fast transform of scattered points exists on the host only
    return BlockSum(name, cell_sums, accumulators, operands, cost, on_host=True)


def cell_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums of exp(i w.x) over a block at the first grid (operand "cells" is None) or at the centres of other cells.

    Operands: "problem" (a `GridProblem`), "cells".
    """
    problem = operands["problem"]
    X, S = scale_rows(block.X, problem.origin.scaler, "float64"), problem.targets(block)
    if operands["cells"] is not None:
        return {"features": scattered_sums(X, S, operands["cells"], problem.center)}
    variation = variation_sums(X, S, problem.grid.spacing / 2.0, problem.center)
    return {"features": grid_sums(X, S, problem.grid), "variation": variation, "absolutes": np.abs(S).sum(axis=0)}


def _state_and_open_cells(
    problem: GridProblem, state: GridState, sums: Mapping[str, np.ndarray]
) -> tuple[GridState, np.ndarray]:
    """The state after an evaluation, and the centres of the cells that may exceed the best root."""
    if "absolutes" in sums:
        # roots are divided by (sum |s|) over all columns of S
        unit = float(np.linalg.norm(sums["absolutes"])) or 1.0
        slack = float(np.max(np.linalg.norm(sums["variation"], axis=1))) / unit
        state = replace(state, slack=slack, unit=unit, cells=problem.grid.frequencies())
    roots = np.sqrt(np.sum(sums["features"] ** 2, axis=(0, 2))) / state.unit
    slack = state.slack / 2**state.level + ACCURACY
    # The best local maxima of the first grid, later the best cells, without near-duplicates and frequency 0.
    positions = np.arange(len(roots))
    if state.level == 0:
        heights = roots.reshape(problem.grid.shape)
        positions = np.flatnonzero(heights == ndimage.maximum_filter(heights, size=3, mode="nearest"))
    positions = positions[np.any(state.cells[positions] != 0.0, axis=1)]
    # enough to contain n_candidates distinct ones, and few enough for pairwise comparison
    positions = positions[np.argsort(-roots[positions], kind="stable")[: 20 * problem.n_candidates]]
    tops = positions[distinct_peaks(state.cells[positions], roots[positions], problem.n_candidates)]
    # no root in a cell is above that at its centre by more than the slack, which halves with the cell
    best = max(state.best, float(roots.max(initial=0.0)))
    above = roots + slack > best + problem.tol
    bound = max(best + problem.tol, float((roots + slack)[above].max(initial=0.0)))
    points = np.concatenate([state.points, state.cells[tops]])
    kept = state.cells[above]
    return replace(state, points=points, best=best, bound=bound), kept
