"""Approximate leverage scores of large pools on many rows, from the span of some of the candidates.

With P the projection on the span of a dictionary of features, A^ = Phi P Phi^T <= A = Phi Phi^T has low rank. As f(A) =
A (A + mu I)^-1 is operator monotone, the scores diag f(A^) are never too large; and since f is concave, tr f(A) - tr
f(A^) <= tr f(A - A^) (Rotfel'd 1969) <= sum_j f((A - A^)_jj), which is computed and bounds the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh, solve_triangular

from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import mapping_flops, newton_tile
from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import spans
from dkl.methods.leverage.driver import EXACT_SIZE, PANELS_A_PASS, Leverage, LeverageProblem, cholesky, gram_record
from dkl.methods.leverage.sums import cross_gram_block, squares_block
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost, Record
from dkl.solvers.squared_sums import unpacked

# Columns of the dictionary: its Gram matrix fits one accumulator, and its eigenvectors take some seconds.
DICTIONARY_COLUMNS = 2_000
# Eigenvalues of the dictionary's Gram matrix below this fraction of the largest are rounding errors.
_SMALLEST = 1e-10


@dataclass(frozen=True, eq=False)
class DictionaryState:
    """The span of the dictionary, and the sums of the two sweeps over the pool so far.

    Parameters
    ----------
    basis : ndarray of shape (s, k) or None
        Maps products with the dictionary's s columns to coordinates in their span; None before the first pass.
    squares : ndarray of shape (parts, M)
        A_jj, the mean squares of the features; for features that the first sweep has passed (A - A^)_jj, the part
        outside the span.
    total : float
        Total weight of all rows.
    outer : ndarray of shape (k, k)
        B B^T of the coordinates B of all features in the span, summed in the first sweep.
    scores : ndarray of shape (parts, M)
        Scores that the second sweep has computed.
    sweep, panel : int
        The next panel to read; after the last panel of the second sweep the scores are complete.
    """

    basis: np.ndarray | None = None
    squares: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    total: float = 0.0
    outer: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    scores: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    sweep: int = 0
    panel: int = 0


class DictionaryDriver:
    """Scores within the span of a random dictionary, by two sweeps over panels of candidates, with an error bound.

    The first pass sums the dictionary's Gram matrix and all squares. The first sweep sums B B^T of the candidates'
    coordinates B in the span; the second solves for the scores, which needs the complete sum.
    """

    def init(self, problem: LeverageProblem) -> DictionaryState:
        """The state before the first pass."""
        return DictionaryState()

    def request(self, problem: LeverageProblem, state: DictionaryState) -> Sequence[Record] | None:
        """The dictionary's Gram matrix and all squares, or the next panels of a sweep."""
        if state.basis is None:
            return self._first_records(problem)
        return None if state.sweep == 2 else self._sweep_records(problem, state.panel)

    def step(self, problem: LeverageProblem, state: DictionaryState, results: Sequence[Any]) -> DictionaryState:
        """The span after the first pass; after later ones the sums of the first sweep, or the scores of the second."""
        if state.basis is None:
            gram, squares = results[0]["gram"], results[1]["squares"]
            size, total = problem.candidates.take(dictionary_of(problem)).n_features, float(gram[-1])
            # the last column of the packed triangle is that of the constant feature; its last number is the sum of
            # weights
            basis = dictionary_basis(unpacked(gram[: packed_size(0, size)] / total))
            outer, scores = np.zeros((basis.shape[1],) * 2), np.zeros_like(squares)
            return DictionaryState(basis, squares / total, total, outer, scores)
        all_panels = candidate_panels(problem)
        panels = all_panels[state.panel :][: len(results)]
        squares, outer, scores = state.squares.copy(), state.outer, state.scores.copy()
        with one_blas_thread():
            factor = cholesky(np.array(outer, order="F"), problem.mu) if state.sweep else None
            for panel, result in zip(panels, results, strict=True):
                # B = Lambda^(-1/2) U' Psi phi / n: the coordinates of the panel's features in the dictionary's span
                coordinates = state.basis.T @ result["cross"] / state.total
                if factor is None:
                    inside = np.einsum("ij,ij->j", coordinates, coordinates).reshape(len(squares), -1)
                    squares[:, panel] = np.maximum(squares[:, panel] - inside, 0.0)
                    outer = outer + coordinates @ coordinates.T
                else:
                    # diag(B^T (B B^T + mu I)^-1 B), with the Cholesky factor U^T U of the matrix
                    solved = solve_triangular(factor, coordinates, trans="T", check_finite=False)
                    scores[:, panel] = np.einsum("ij,ij->j", solved, solved).reshape(len(scores), -1)
        is_last = state.panel + len(results) == len(all_panels)
        return replace(
            state,
            squares=squares,
            outer=outer,
            scores=scores,
            sweep=state.sweep + is_last,
            panel=0 if is_last else state.panel + len(results),
        )

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The first pass, and the passes of both sweeps."""
        sweeps = 2 * -(-len(candidate_panels(problem)) // PANELS_A_PASS)
        return [(self._first_records(problem), 1), (self._sweep_records(problem, 0), sweeps)]

    def leverage(self, problem: LeverageProblem, state: DictionaryState, mu: float) -> Leverage:
        """The scores and their error bound, at the mu of the sweeps.

        Raises
        ------
        ValueError
            If `mu` is not that of the problem.
        """
        if mu != problem.mu:
            raise ValueError(
                f"the scores of this pool were approximated at mu={problem.mu!r}, and another mu needs the rows again: "
                f"fit with it, or with n_rows of at most {EXACT_SIZE:,}, for which scores at any mu are kept"
            )
        # sum_j f((A - A^)_jj), f(a) = a / (a + mu): an upper bound on what the scores lack in total
        missed = np.sum(state.squares / (state.squares + mu))
        return Leverage(state.scores.sum(axis=0), float(missed))

    def memory(self, problem: LeverageProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the dictionary's Gram matrix with its eigenvectors, of panels, and of two numbers a column."""
        columns = problem.candidates.columns_a_frequency * len(dictionary_of(problem))
        panels = (2 * PANELS_A_PASS + 2) * LARGEST_ACCUMULATOR
        return {
            "candidates": problem.candidates.projection.nbytes,
            "span of the dictionary": 6 * 8 * columns**2 + panels,
            "scores of the candidates": 32 * problem.candidates.n_features,
        }

    def _first_records(self, problem: LeverageProblem) -> list[Record]:
        """The dictionary's Gram matrix with the sum of the weights, and the squares of all candidates' features."""
        candidates = problem.candidates
        dictionary = candidates.take(dictionary_of(problem))
        squares = BlockSum(
            name="squares",
            function=squares_block,
            accumulators={"squares": Accumulator((candidates.columns_a_frequency, candidates.n_frequencies))},
            operands={"feature_map": candidates, "dtype": problem.dtype},
            cost=partial(squares_cost, feature_map=candidates),
        )
        return [gram_record(dictionary, (0, dictionary.n_features + 1), problem.dtype), squares]

    def _sweep_records(self, problem: LeverageProblem, first: int) -> list[Record]:
        """Records of the weighted sums over rows of dictionary features times candidate features, one for each panel.

        The panels are those from number `first` on, at most `PANELS_A_PASS` of them, so that their sums fit in memory.
        """
        records: list[Record] = []
        dictionary = problem.candidates.take(dictionary_of(problem))
        for panel in candidate_panels(problem)[first:][:PANELS_A_PASS]:
            candidates = problem.candidates.take(np.arange(panel.start, panel.stop))
            record = BlockSum(
                name="products with the dictionary",
                function=cross_gram_block,
                accumulators={"cross": Accumulator((dictionary.n_features, candidates.n_features))},
                operands={"first": dictionary, "second": candidates, "dtype": problem.dtype},
                cost=partial(cross_gram_cost, first=dictionary, second=candidates),
            )
            records.append(record)
        return records


def dictionary_of(problem: LeverageProblem) -> np.ndarray:
    """The indices of the dictionary's frequencies among the candidates, ascending, drawn without replacement."""
    m = problem.candidates.n_frequencies
    size = min(m, DICTIONARY_COLUMNS // problem.candidates.columns_a_frequency)
    return np.sort(stream(problem.seed, "dictionary").choice(m, size, replace=False))


def dictionary_basis(gram: np.ndarray) -> np.ndarray:
    """U Lambda^(-1/2) of the eigenvectors whose eigenvalue is not rounding error, of shape (s, k)."""
    with one_blas_thread():
        values, vectors = eigh(gram, overwrite_a=True, check_finite=False)
    # nearly equal features make eigenvalues of 0, whose eigenvectors are rounding errors
    kept = values > _SMALLEST * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])


def candidate_panels(problem: LeverageProblem) -> list[slice]:
    """Panels of candidates whose products with the dictionary take at most 64 MiB each."""
    parts = problem.candidates.columns_a_frequency
    step = max(1, LARGEST_ACCUMULATOR // (8 * parts * parts * len(dictionary_of(problem))))
    return list(spans(problem.candidates.n_frequencies, step))


def squares_cost(rows: int, columns: int, *, feature_map: FeatureMap) -> Cost:
    """The cost of the squares of a block, which is essentially that of mapping its rows."""
    return Cost(rows * mapping_flops(columns, feature_map), 16 << 20)


def cross_gram_cost(rows: int, columns: int, *, first: FeatureMap, second: FeatureMap) -> Cost:
    """The cost of mapping a block's rows twice, and of float64 products, which count twice."""
    width = first.n_features + second.n_features
    mapping = mapping_flops(columns, first) + mapping_flops(columns, second)
    products = 8 * first.n_features * second.n_features
    flops = rows * (mapping + 4.0 * first.n_features * second.n_features)
    return Cost(flops, 12 * newton_tile(width, "float64") * width + products)
