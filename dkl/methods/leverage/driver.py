"""Ridge leverage scores of candidate features from their Gram matrix or from a kernel matrix of rows; resampling.

Phi is the M candidates' features over sqrt(M n): a row for each column of the features, a column for each of n data
rows, so that Phi^T Phi is K / n with the kernel matrix K. The scores of the columns are r = diag(Phi Phi^T (Phi Phi^T +
mu I)^-1), and a frequency's score is the sum over its columns (Sun, Gilbert & Tewari 2018, section 3). They do not
depend on targets. `GramDriver` sums Phi Phi^T over all rows; `RowsDriver` computes the kernel matrix of a sample of
rows, which is smaller if there are fewer rows than columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import on_host
from dkl.kernels.gram import gram_scratch, packed_panels, packed_size
from dkl.kernels.maps import map_rows, mapping_flops, newton_tile
from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import spans
from dkl.methods.choice import FeatureChoice, choose_features
from dkl.methods.leverage.sums import gram_block
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.cholesky import factorise, inverse_bytes, inverse_diagonal, solve_factor

# Largest system that is solved exactly, in at most half a minute and 1 GiB.
EXACT_SIZE = 8_000
# Panels of `LARGEST_ACCUMULATOR` bytes that one pass sums.
PANELS_A_PASS = 2
# Bytes of the sampled rows' features that one core has in memory at once, and rows in one product of these.
_TILE_BYTES = 1 << 25
_TILE_ROWS = 512
# Time of products and solutions in tiles, as a multiple of that of one large product with as many operations: between
# the 0.9 and 1.7 that were measured on two machines.
_TILED_SLOWDOWN = 1.25


@dataclass(frozen=True, eq=False)
class Leverage:
    """Leverage scores of a pool.

    Parameters
    ----------
    scores : ndarray of shape (M,)
        The score of each frequency; exact, or slightly too small.
    missed : float
        Upper bound on what all scores together lack; 0 for exact ones.
    """

    scores: np.ndarray
    missed: float = 0.0

    @property
    def degrees_of_freedom(self) -> float:
        """d(mu) = tr(K/n (K/n + mu I)^-1), the sum of the scores; at most `missed` below the exact value."""
        return float(self.scores.sum())

    @property
    def error(self) -> float:
        """A bound on the total variation between the probabilities of the resampling and the exact ones."""
        return self.missed / (self.degrees_of_freedom + self.missed) if self.missed > 0.0 else 0.0


@dataclass(frozen=True, eq=False)
class LeverageProblem:
    """The candidates whose leverage scores are computed, and the rows that they are computed on.

    Parameters
    ----------
    candidates : FeatureMap
        Its amplitudes are c / sqrt(M), so that the products of features sum to the kernel.
    mu : float
        The ridge, on the scale of the kernel matrix over n.
    n_rows : int
        Rows that the scores are computed on.
    is_sample : bool
        Whether these are a sample of more rows.
    seed : int
        Seed of the row sample and of the dictionary.
    dtype : {"float32", "float64"}
        Precision of the features; sums and solutions are float64.
    """

    candidates: FeatureMap
    mu: float
    n_rows: int
    is_sample: bool = False
    seed: int = 0
    dtype: str = "float32"


@dataclass(frozen=True, eq=False)
class GramState:
    """The panels of the packed Gram matrix of all candidates, with a last column for the intercept."""

    panels: tuple[np.ndarray, ...] = ()


class GramDriver:
    """Scores from the Gram matrix of the features over all rows, summed block by block."""

    def init(self, problem: LeverageProblem) -> GramState:
        """The state before the first pass."""
        return GramState()

    def request(self, problem: LeverageProblem, state: GramState) -> Sequence[Record] | None:
        """The next panels of the matrix, at most 128 MiB."""
        panels = self._panels(problem)[len(state.panels) :][:PANELS_A_PASS]
        return [gram_record(problem.candidates, panel, problem.dtype) for panel in panels] or None

    def step(self, problem: LeverageProblem, state: GramState, results: Sequence[Any]) -> GramState:
        """The state with the panels of the last pass added."""
        return GramState((*state.panels, *(result["gram"] for result in results)))

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes over panels; each is counted like the last, which is the largest."""
        panels = self._panels(problem)
        records = [gram_record(problem.candidates, panel, problem.dtype) for panel in panels[-PANELS_A_PASS:]]
        return [(records, -(-len(panels) // PANELS_A_PASS))]

    def leverage(self, problem: LeverageProblem, state: GramState, mu: float) -> Leverage:
        """The scores at `mu`, from the stored matrix."""
        packed, columns = np.concatenate(state.panels), problem.candidates.n_features
        # the last number is the sum of the weights: Phi has the rows over sqrt(n)
        packed /= packed[-1]
        scores = scores_of_gram(packed[: packed_size(0, columns)], columns, mu)
        return Leverage(scores.reshape(problem.candidates.columns_a_frequency, -1).sum(axis=0))

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the packed panels, their concatenation, the unpacked matrix, and columns of its inverse."""
        columns = problem.candidates.n_features
        matrix = 8 * columns**2 + inverse_bytes(columns)
        return {
            "candidates": problem.candidates.projection.nbytes,
            "Gram matrix of the candidates": 16 * packed_size(0, columns + 1) + matrix,
        }

    def _panels(self, problem: LeverageProblem) -> list[tuple[int, int]]:
        """The columns of each panel; the very last column is the intercept's, with the sum of the weights."""
        return list(packed_panels(problem.candidates.n_features + 1, LARGEST_ACCUMULATOR))


@dataclass(frozen=True, eq=False)
class RowsState:
    """The sampled rows.

    Parameters
    ----------
    rows : tuple of ndarray
        Dense rows (L, d), or data, indices and indptr of sparse ones; empty before the pass.
    weight : ndarray of shape (L,) or None
    """

    rows: tuple[Any, ...] = ()
    weight: np.ndarray | None = None


class RowsDriver:
    """Scores from the kernel matrix of a sample of rows, by the push-through identity; one pass draws the sample.

    A sample of all rows keeps their weights. A smaller one is drawn in proportion to the weights, and its rows count
    equally.
    """

    def init(self, problem: LeverageProblem) -> RowsState:
        """The state before the first pass."""
        return RowsState()

    def request(self, problem: LeverageProblem, state: RowsState) -> Sequence[Record] | None:
        """The sample; None once it has been drawn."""
        return None if state.rows else [self._sample(problem)]

    def step(self, problem: LeverageProblem, state: RowsState, results: Sequence[Any]) -> RowsState:
        """The state with the sampled rows."""
        block: Block = results[0]
        X: Any = block.X
        # a checkpoint stores plain arrays: a sparse matrix becomes its three
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (np.asarray(X),)
        return RowsState(rows, None if problem.is_sample else block.weight)

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The single pass."""
        return [([self._sample(problem)], 1)]

    def leverage(self, problem: LeverageProblem, state: RowsState, mu: float) -> Leverage:
        """The scores at `mu`, from the sampled rows."""
        X: Any = state.rows[0]
        if len(state.rows) > 1:
            shape = len(state.rows[2]) - 1, problem.candidates.n_columns
            X = sparse.csr_array(state.rows, shape=shape)
        scores = scores_of_rows(X, state.weight, problem.candidates, mu, dtype=problem.dtype)
        return Leverage(scores.sum(axis=0))

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sampled rows and their kernel matrix, and on each core of a tile of features and solutions."""
        tile = min(_TILE_BYTES, 8 * problem.n_rows * problem.candidates.n_features)
        return {
            "candidates": problem.candidates.projection.nbytes,
            "sampled rows": problem.n_rows * row_bytes,
            "their kernel matrix": 8 * problem.n_rows**2,
            "tiles of their features": 4 * usable_cores() * tile,
        }

    def driving(self, problem: LeverageProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of the kernel matrix and of a float64 solution for each feature, on all cores."""
        n, m = float(problem.n_rows), float(problem.candidates.n_features)
        return _TILED_SLOWDOWN * 2.0 * (2.0 * n * n * m + n**3 / 3.0) / (usable_cores() * flops_per_second)

    def _sample(self, problem: LeverageProblem) -> RowSample:
        """The record of the row sample."""
        return RowSample("row sample", problem.n_rows, problem.seed)


def scores_of_gram(packed: np.ndarray, size: int, mu: float) -> np.ndarray:
    """diag(A (A + mu I)^-1) = 1 - mu diag((A + mu I)^-1) by Cholesky.

    Parameters
    ----------
    packed : ndarray of shape (size (size + 1) / 2,), float64
        The upper triangle of A, column by column.
    size : int
    mu : float
        Positive.

    Returns
    -------
    ndarray of shape (size,)

    Raises
    ------
    ValueError
        If A is not finite, or A + mu I not positive definite because of rounding.

    References
    ----------
    Sun, Gilbert & Tewari 2018, section 3, step 4; Bach 2017, section 4.2.
    """
    # A (A + mu I)^-1 = I - mu (A + mu I)^-1, so that only the diagonal of the inverse is computed
    system, _ = lapack.dtpttr(size, packed)
    return np.clip(1.0 - mu * inverse_diagonal(cholesky(system, mu)), 0.0, 1.0)


def scores_of_rows(
    X: Rows, weight: np.ndarray | None, candidates: FeatureMap, mu: float, *, dtype: str = "float32"
) -> np.ndarray:
    """diag(Phi (Phi^T Phi + mu I)^-1 Phi^T): the same scores from the kernel matrix of the rows (push-through).

    Parameters
    ----------
    X : array of shape (L, d)
    weight : ndarray of shape (L,) or None
        Frequency weights; None counts rows equally.
    candidates : FeatureMap
        The M candidates.
    mu : float
    dtype : {"float32", "float64"}
        Precision of the features.

    Returns
    -------
    ndarray of shape (columns a frequency, M)

    Raises
    ------
    ValueError
        As in `scores_of_gram`.
    """
    n_rows: int = X.shape[0]
    shares = np.sqrt(np.full(n_rows, 1.0 / n_rows) if weight is None else weight / weight.sum())
    step = max(1, _TILE_BYTES // (8 * n_rows * candidates.columns_a_frequency))
    parts, tiles = list(spans(candidates.n_frequencies, step)), list(spans(n_rows, _TILE_ROWS))

    def features(part: slice, rows: slice = slice(None)) -> np.ndarray:
        mapped = map_rows(X[rows], candidates.take(np.arange(part.start, part.stop)), dtype)
        return on_host(mapped).astype(np.float64) * shares[rows, None]

    # the lower triangle of K/n = Phi^T Phi, summed over parts of the features, so that Phi is never in memory as a
    # whole
    kernel = np.zeros((n_rows, n_rows))
    for part in parts:
        mapped = np.concatenate(Crew().map(partial(features, part), tiles))

        def add(rows: slice, mapped: np.ndarray = mapped) -> None:
            kernel[rows, : rows.stop] += mapped[rows] @ mapped[: rows.stop].T

        Crew().map(add, tiles)
    # its transpose is the upper triangle in Fortran order, which LAPACK factorises in place
    factor = cholesky(kernel.T, mu)

    def scores_of_part(part: slice) -> np.ndarray:
        # with K/n + mu I = U^T U the scores are the squared lengths of the columns of U^-T Phi^T
        solved = np.asfortranarray(features(part))
        solve_factor(factor, solved)
        return np.einsum("ij,ij->j", solved, solved).reshape(candidates.columns_a_frequency, -1)

    return np.concatenate(Crew().map(scores_of_part, parts), axis=1)


def cholesky(system: np.ndarray, mu: float) -> np.ndarray:
    """The upper Cholesky factor of a symmetric matrix plus mu on its diagonal, in place; reads the upper triangle.

    Parameters
    ----------
    system : ndarray of shape (m, m), float64, Fortran order
    """
    # the trace is the sum of all squares, so that it is finite only if all features are
    trace = float(np.trace(system))
    if not np.isfinite(trace):
        raise ValueError(
            "the products of the features are not finite: the rows are too large. Scale them (scaling='standard')"
        )
    np.einsum("ii->i", system)[:] += mu
    if not factorise(system):
        raise ValueError(
            f"mu is {mu!r}, which is lost in rounding beside the Gram matrix of the features (its trace is "
            f"{trace:.3g}); give a larger one, or use dtype='float64'"
        )
    return system


def resample(scores: np.ndarray, groups: np.ndarray, n_kept: int, seed: int, *, weighted: bool = True) -> FeatureChoice:
    """Draw frequencies with replacement in proportion to their scores.

    Parameters
    ----------
    scores : ndarray of shape (M,)
    groups : ndarray of shape (M,), int64
        Frequencies with the same group number are drawn together.
    n_kept : int
        Number of draws; fewer frequencies remain if some are drawn twice.
    seed : int
    weighted : bool
        Amplitudes 1/sqrt(p M) on what is drawn with probability p, whose kernel is the pool's in expectation. False
        gives equal amplitudes, as in the paper: the kernel whose spectrum is the pool's spectrum times the scores.

    Returns
    -------
    FeatureChoice
        The squares of the amplitudes sum to 1; with `weighted` only in expectation.

    Raises
    ------
    ValueError
        If all scores are 0.

    References
    ----------
    Sun, Gilbert & Tewari 2018, section 3, step 5; Bach 2017, section 4.2.
    """
    shares, sizes = np.bincount(groups, scores), np.bincount(groups)
    if not shares.sum() > 0.0:
        raise ValueError(
            "no candidate feature has any leverage: all candidate features are 0 on the rows (is X all zeros?), or mu "
            "is too large; leverages are those of ridge regression with the penalty mu"
        )
    # p of each group
    shares = shares / shares.sum()
    choice = choose_features(shares, n_kept, seed, estimator="draw", groups=groups)
    if not weighted:
        return choice
    # in expectation sum_j 1{j drawn} phi_j phi_j' / (p_j M) is the mean over the pool
    drawn = groups[choice.index]
    return FeatureChoice(choice.index, choice.amplitudes * np.sqrt(sizes[drawn] / (len(scores) * shares[drawn])))


def gram_record(feature_map: FeatureMap, columns: tuple[int, int], dtype: str) -> BlockSum:
    """The record of one panel, from a column to one past its last, of a packed Gram matrix."""

    def cost(rows: int, n_columns: int) -> Cost:
        # products in float64 count twice
        packed = packed_size(*columns)
        scratch = gram_scratch(feature_map.n_features, columns, 8, tile=newton_tile(feature_map.n_features, "float64"))
        return Cost(rows * (mapping_flops(n_columns, feature_map) + 4.0 * packed), scratch)

    return BlockSum(
        name="Gram matrix",
        function=gram_block,
        accumulators={"gram": Accumulator((packed_size(*columns),))},
        operands={"feature_map": feature_map, "columns": columns, "dtype": dtype},
        cost=cost,
    )
