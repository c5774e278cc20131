"""Ridge leverage scores of candidate features, through the smaller of their number and the number of rows; resampling.

Phi holds the features of the M candidates over sqrt(M), a line for each column of the features, and over sqrt(n), a
column for each of n rows, so that Phi^T Phi is the kernel matrix K over n. The scores of the columns are
r = diag(Phi Phi^T (Phi Phi^T + mu I)^-1), and a frequency's score is the sum over its columns (Sun, Gilbert & Tewari
2018, section 3). No targets come in. `GramDriver` takes Phi Phi^T, summed over all rows; `RowsDriver` the kernel matrix
of a sample of rows, where there are fewer rows than columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy import sparse
from scipy.linalg import lapack

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import on_host
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.newton.gram import packed_panels, packed_size
from dkl.kernels.normal_equations import newton_tile
from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import spans
from dkl.methods.choice import FeatureChoice, choose_blocks
from dkl.methods.leverage.sums import gram_block
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.driver import Driver
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.cholesky import factorise, inverse_bytes, inverse_diagonal, solve_factor

# A packed Gram matrix is summed in panels of columns: bytes of a panel, and panels of a pass.
_PANEL_BYTES = 1 << 26
_PANELS_A_PASS = 2
# Bytes of the sampled rows' features in memory at once, and the rows of one product with them.
_TILE_BYTES = 1 << 25
_ROWS = 512
# Products of tiles and solutions take so many times as long as one large product of as many operations: .9 and 1.7
# times were seen on two machines.
_PACE = 1.25


@dataclass(frozen=True, eq=False)
class Leverage:
    """Scores of a pool.

    Parameters
    ----------
    scores : ndarray of shape (M,)
        The score of each frequency; exact, or a little too small.
    missed : float
        By how much all scores together are too small at most; 0 for exact ones.
    """

    scores: np.ndarray
    missed: float = 0.0

    @property
    def degrees_of_freedom(self) -> float:
        """d(mu) = tr(K/n (K/n + mu I)^-1), the sum of the scores; at most `missed` below it."""
        return float(self.scores.sum())

    @property
    def error(self) -> float:
        """A bound on the total variation between the law of the resampling and the exact one."""
        return self.missed / (self.degrees_of_freedom + self.missed) if self.missed > 0.0 else 0.0


@dataclass(frozen=True, eq=False)
class LeverageProblem:
    """The candidates whose leverage scores are to be computed, and the rows for them.

    Parameters
    ----------
    candidates : FeatureMap
        With amplitudes c / sqrt(M): the products of features have the kernel for their sum.
    mu : float
        The ridge, on the scale of the kernel matrix over n.
    n_rows : int
        The rows that the scores are computed on.
    is_sample : bool
        Whether there are more rows than these.
    seed : int
        Draws the sample of rows, and the dictionary.
    dtype : {"float32", "float64"}
        The precision of the features; sums and solutions are float64.
    """

    candidates: FeatureMap
    mu: float
    n_rows: int
    is_sample: bool = False
    seed: int = 0
    dtype: str = "float32"


S = TypeVar("S")


class ScoreDriver(Driver[LeverageProblem, S], Protocol[S]):
    """An algorithm for scores: its passes, and the scores at a given mu from their results."""

    def leverage(self, problem: LeverageProblem, state: S, mu: float) -> Leverage:
        """The scores at `mu`; no pass."""
        ...

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes that the driver holds at most in addition to the passes, item by item."""
        ...


@dataclass(frozen=True, eq=False)
class GramState:
    """The panels of the packed Gram matrix of all candidates, with a last column for the intercept."""

    panels: tuple[np.ndarray, ...] = ()


class GramDriver:
    """Scores from the Gram matrix of the features over all rows of the source, by block sums."""

    def init(self, problem: LeverageProblem) -> GramState:
        """No panel yet."""
        return GramState()

    def request(self, problem: LeverageProblem, state: GramState) -> Sequence[Record] | None:
        """The next panels of the matrix, 128 MiB at most."""
        panels = self._panels(problem)[len(state.panels) :][:_PANELS_A_PASS]
        return [gram_record(problem.candidates, panel, problem.dtype) for panel in panels] or None

    def step(self, problem: LeverageProblem, state: GramState, results: Sequence[Any]) -> GramState:
        """The state with the panels of a pass added."""
        return GramState((*state.panels, *(result["gram"] for result in results)))

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The passes over panels, each as large as the last."""
        panels = self._panels(problem)
        records = [gram_record(problem.candidates, panel, problem.dtype) for panel in panels[-_PANELS_A_PASS:]]
        return [(records, -(-len(panels) // _PANELS_A_PASS))]

    def leverage(self, problem: LeverageProblem, state: GramState, mu: float) -> Leverage:
        """The scores at `mu`, from the stored matrix."""
        packed, columns = np.concatenate(state.panels), problem.candidates.n_features
        # the last number is the sum of the weights: Phi has the rows over sqrt(n)
        packed /= packed[-1]
        scores = scores_of_gram(packed[: packed_size(0, columns)], columns, mu)
        return Leverage(scores.reshape(problem.candidates.columns_a_frequency, -1).sum(axis=0))

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the packed panels, their joined copy, the unpacked matrix, and columns of its inverse."""
        columns = problem.candidates.n_features
        matrix = 8 * columns**2 + inverse_bytes(columns)
        return {
            "candidates": problem.candidates.projection.nbytes,
            "Gram matrix of the candidates": 16 * packed_size(0, columns + 1) + matrix,
        }

    def _panels(self, problem: LeverageProblem) -> list[tuple[int, int]]:
        """The columns of each panel; the last column of all is the intercept's, which brings the sum of the weights."""
        return list(packed_panels(problem.candidates.n_features + 1, _PANEL_BYTES))


@dataclass(frozen=True, eq=False)
class RowsState:
    """The sampled rows.

    Parameters
    ----------
    rows : tuple of ndarray
        Of shape (L, d), or data, indices and indptr of sparse ones; empty before the pass.
    weight : ndarray of shape (L,) or None
    """

    rows: tuple[Any, ...] = ()
    weight: np.ndarray | None = None


class RowsDriver:
    """Scores from the kernel matrix of a sample of rows, by the push-through identity; one pass takes the sample.

    A sample that is all of the rows keeps their weights. In a smaller one rows of larger weight are more likely, and
    count alike.
    """

    def init(self, problem: LeverageProblem) -> RowsState:
        """No sample yet."""
        return RowsState()

    def request(self, problem: LeverageProblem, state: RowsState) -> Sequence[Record] | None:
        """The sample; None once it is there."""
        return None if state.rows else [self._sample(problem)]

    def step(self, problem: LeverageProblem, state: RowsState, results: Sequence[Any]) -> RowsState:
        """Keep the rows."""
        block: Block = results[0]
        X: Any = block.X
        # a checkpoint holds plain arrays: a sparse matrix is its three
        rows = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (np.asarray(X),)
        return RowsState(rows, None if problem.is_sample else block.weight)

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """One pass."""
        return [([self._sample(problem)], 1)]

    def leverage(self, problem: LeverageProblem, state: RowsState, mu: float) -> Leverage:
        """The scores at `mu`, from the kept rows."""
        X: Any = state.rows[0]
        if len(state.rows) > 1:
            shape = len(state.rows[2]) - 1, problem.candidates.n_columns
            X = sparse.csr_array(state.rows, shape=shape)
        scores = scores_of_rows(X, state.weight, problem.candidates, mu, dtype=problem.dtype)
        return Leverage(scores.sum(axis=0))

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the matrix, and for each core of a tile of features and its solutions."""
        tile = min(_TILE_BYTES, 8 * problem.n_rows * problem.candidates.n_features)
        return {
            "candidates": problem.candidates.projection.nbytes,
            "sampled rows": problem.n_rows * row_bytes,
            "their kernel matrix": 8 * problem.n_rows**2,
            "tiles of their features": 4 * usable_cores() * tile,
        }

    def driving(self, problem: LeverageProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of the kernel matrix and of a solution for each feature, in double precision, on all cores."""
        n, m = float(problem.n_rows), float(problem.candidates.n_features)
        return _PACE * 2.0 * (2.0 * n * n * m + n**3 / 3.0) / (usable_cores() * flops_per_second)

    def _sample(self, problem: LeverageProblem) -> RowSample:
        """The record of the pass."""
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
        If A + mu I is not positive definite to rounding, or A not finite.

    References
    ----------
    Sun, Gilbert & Tewari 2018, section 3, step 4; Bach 2017, section 4.2.
    """
    # A (A + mu I)^-1 = I - mu (A + mu I)^-1: the diagonal of the inverse is all that is needed
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
        Frequency weights.
    candidates : FeatureMap
        M frequencies.
    mu : float
    dtype : {"float32", "float64"}
        The precision of the features.

    Returns
    -------
    ndarray of shape (columns a frequency, M)

    Raises
    ------
    ValueError
        As `scores_of_gram`.
    """
    n_rows: int = X.shape[0]
    shares = np.sqrt(np.full(n_rows, 1.0 / n_rows) if weight is None else weight / weight.sum())
    step = max(1, _TILE_BYTES // (8 * n_rows * candidates.columns_a_frequency))
    parts, tiles = list(spans(candidates.n_frequencies, step)), list(spans(n_rows, _ROWS))

    def features(part: slice, rows: slice = slice(None)) -> np.ndarray:
        mapped = map_rows(X[rows], candidates.take(np.arange(part.start, part.stop)), dtype)
        return on_host(mapped).astype(np.float64) * shares[rows, None]

    # the lower triangle of K/n = Phi^T Phi, summed over parts of the features: Phi itself never stands whole
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
    """The upper factor of a symmetric matrix plus mu on its diagonal, in its place; the upper triangle is read.

    Parameters
    ----------
    system : ndarray of shape (m, m), float64, Fortran order
    """
    # the trace is the sum of all squares: any entry that is not finite makes it so
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
        Frequencies of one group are drawn together.
    n_kept : int
        How many draws there are; no more frequencies are kept.
    seed : int
    weighted : bool
        Amplitudes 1/sqrt(p M) on what is drawn with probability p: the kernel of the pool in expectation. False leaves
        them alike, as the paper does: the kernel whose spectrum is the pool's spectrum times the scores.

    Returns
    -------
    FeatureChoice
        The squares of the amplitudes sum to 1; with `weighted` their expectations do.

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
    choice = choose_blocks(shares, groups, n_kept, seed, estimator="draw")
    if not weighted:
        return choice
    # in expectation sum_j 1{j drawn} phi_j phi_j' / (p_j M) is the mean over the pool
    drawn = groups[choice.index]
    return FeatureChoice(choice.index, choice.amplitudes * np.sqrt(sizes[drawn] / (len(scores) * shares[drawn])))


def gram_record(feature_map: FeatureMap, columns: tuple[int, int], dtype: str) -> BlockSum:
    """The record of one panel of a packed Gram matrix."""
    return BlockSum(
        name="Gram matrix",
        function=gram_block,
        accumulators={"gram": Accumulator((packed_size(*columns),))},
        operands={"feature_map": feature_map, "columns": columns, "dtype": dtype},
        cost=GramCost(feature_map, columns),
    )


@dataclass(frozen=True, eq=False)
class GramCost:
    """The cost of mapping the rows, and of products that count twice, since they are float64.

    Parameters
    ----------
    feature_map : FeatureMap
    columns : (int, int)
        Of the panel.
    """

    feature_map: FeatureMap
    columns: tuple[int, int]

    def __call__(self, rows: int, columns: int) -> Cost:
        width, packed = self.feature_map.n_features, packed_size(*self.columns)
        tile = 3 * 8 * newton_tile(width, "float64") * width
        products = 8 * width * (self.columns[1] - self.columns[0])
        return Cost(rows * (mapping_flops(columns, self.feature_map) + 4.0 * packed), tile + products)
