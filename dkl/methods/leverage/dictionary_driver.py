"""Leverage scores of pools that are large beside any sample of rows: from the span of some of the candidates.

With P the projection on the span of a dictionary of features, A^ = Phi P Phi^T <= A = Phi Phi^T has low rank. As
f(A) = A (A + mu I)^-1 is operator monotone, the scores diag f(A^) are never too large; and since f is concave,
tr f(A) - tr f(A^) <= tr f(A - A^) (Rotfel'd 1969) <= sum_j f((A - A^)_jj), which is known: the error is certified.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import eigh, lapack, solve_triangular

from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.maps import mapping_flops
from dkl.kernels.normal_equations import newton_tile, packed_size
from dkl.kernels.tiles import spans
from dkl.methods.leverage.driver import Leverage, LeverageProblem, cholesky, gram_record
from dkl.methods.leverage.sums import cross_gram_block, squares_block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

# columns of the dictionary: its Gram matrix takes one accumulator, and its eigenvectors seconds
DICTIONARY_COLUMNS = 2_000
_PANEL_BYTES = 1 << 26
_PANELS_A_PASS = 2
# directions of the dictionary whose share is below this are rounding
_SMALLEST = 1e-10


@dataclass(frozen=True, eq=False)
class DictionaryState:
    """Where the two sweeps over the pool stand.

    Parameters
    ----------
    basis : ndarray of shape (s, k) or None
        Takes products with the dictionary's s columns to coordinates in their span; None before the first pass.
    squares : ndarray of shape (parts, M)
        Mean squares of the features; what lies outside the span, once a feature has been swept.
    total : float
        The weight of all rows.
    outer : ndarray of shape (k, k)
        Of the coordinates of all features, summed in the first sweep.
    scores : ndarray of shape (parts, M)
        Found in the second sweep.
    sweep, panel : int
        The next panel to read; the second sweep's last one ends the search.
    """

    basis: np.ndarray | None = None
    squares: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    total: float = 0.0
    outer: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    scores: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    sweep: int = 0
    panel: int = 0


class DictionaryDriver:
    """Scores within the span of a random dictionary, by two sweeps of panels of products; the error is certified."""

    def init(self, problem: LeverageProblem) -> DictionaryState:
        """Nothing read."""
        return DictionaryState()

    def request(self, problem: LeverageProblem, state: DictionaryState) -> Sequence[Record] | None:
        """The dictionary's Gram matrix and all squares, or the next panels of a sweep."""
        if state.basis is None:
            return _first_records(problem)
        return None if state.sweep == 2 else _sweep_records(problem, state.panel)

    def step(self, problem: LeverageProblem, state: DictionaryState, results: Sequence[Any]) -> DictionaryState:
        """Add what the panels say."""
        if state.basis is None:
            return _begun(problem, results)
        panels = _panels(problem)[state.panel :][: len(results)]
        with one_blas_thread():
            # the sum is complete after the first sweep
            factor = cholesky(np.array(state.outer, order="F"), problem.mu) if state.sweep else None
            for panel, result in zip(panels, results, strict=True):
                coordinates = state.basis.T @ result["cross"] / state.total
                if factor is None:
                    state = _measured(state, panel, coordinates)
                else:
                    state = _scored(state, panel, coordinates, factor)
        ended = state.panel + len(results) == len(_panels(problem))
        return replace(state, sweep=state.sweep + ended, panel=0 if ended else state.panel + len(results))

    def plan(self, problem: LeverageProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The first pass, and the passes of both sweeps."""
        sweeps = 2 * -(-len(_panels(problem)) // _PANELS_A_PASS)
        return [(_first_records(problem), 1), (_sweep_records(problem, 0), sweeps)]

    def leverage(self, problem: LeverageProblem, state: DictionaryState, mu: float) -> Leverage:
        """The scores and their certificate, at the mu of the sweeps.

        Raises
        ------
        ValueError
            For another `mu`.
        """
        if mu != problem.mu:
            raise ValueError(
                f"the scores of this pool were approximated at mu={problem.mu!r}, and another mu needs the rows again: "
                "fit with it, or with n_rows of at most 8,000, for which scores at any mu are kept"
            )
        missed = np.sum(state.squares / (state.squares + mu))
        return Leverage(state.scores.sum(axis=0), float(missed))

    def memory(self, problem: LeverageProblem, row_bytes: int) -> dict[str, int]:
        """The dictionary's Gram matrix with its eigenvectors, panels with their coordinates, two numbers a column."""
        columns = problem.candidates.columns_a_frequency * len(dictionary_of(problem))
        panels = (2 * _PANELS_A_PASS + 2) * _PANEL_BYTES
        return {
            "span of the dictionary": 6 * 8 * columns**2 + panels,
            "scores of the candidates": 32 * problem.candidates.n_features,
        }


def dictionary_of(problem: LeverageProblem) -> np.ndarray:
    """The places of the dictionary's frequencies among the candidates, ascending: a draw without replacement."""
    m = problem.candidates.n_frequencies
    size = min(m, DICTIONARY_COLUMNS // problem.candidates.columns_a_frequency)
    return np.sort(stream(problem.seed, "dictionary").choice(m, size, replace=False))


def dictionary_basis(gram: np.ndarray) -> np.ndarray:
    """U Lambda^(-1/2) of the eigenvectors that are more than rounding, of shape (s, k)."""
    with one_blas_thread():
        values, vectors = eigh(gram, overwrite_a=True, check_finite=False)
    kept = values > _SMALLEST * values[-1]
    return vectors[:, kept] / np.sqrt(values[kept])


def _begun(problem: LeverageProblem, results: Sequence[Any]) -> DictionaryState:
    gram, squares = results[0]["gram"], results[1]["squares"]
    size, total = problem.candidates.take(dictionary_of(problem)).n_features, float(gram[-1])
    matrix, _ = lapack.dtpttr(size, gram[: packed_size(0, size)] / total)
    basis = dictionary_basis(np.triu(matrix) + np.triu(matrix, 1).T)
    empty = np.zeros_like(squares)
    return DictionaryState(basis, squares / total, total, np.zeros((basis.shape[1],) * 2), empty)


def _measured(state: DictionaryState, panel: slice, coordinates: np.ndarray) -> DictionaryState:
    """First sweep: the outer product of the coordinates, and what of each feature lies outside the span."""
    squares = state.squares.copy()
    inside = np.einsum("ij,ij->j", coordinates, coordinates).reshape(len(squares), -1)
    squares[:, panel] = np.maximum(squares[:, panel] - inside, 0.0)
    return replace(state, squares=squares, outer=state.outer + coordinates @ coordinates.T)


def _scored(state: DictionaryState, panel: slice, coordinates: np.ndarray, factor: np.ndarray) -> DictionaryState:
    """Second sweep: diag(B^T (B B^T + mu I)^-1 B) of the coordinates B."""
    scores = state.scores.copy()
    solved = solve_triangular(factor, coordinates, trans="T", check_finite=False)
    scores[:, panel] = np.einsum("ij,ij->j", solved, solved).reshape(len(scores), -1)
    return replace(state, scores=scores)


def _panels(problem: LeverageProblem) -> list[slice]:
    """Candidates cut so that their products with the dictionary are within 64 MiB."""
    parts = problem.candidates.columns_a_frequency
    step = max(1, _PANEL_BYTES // (8 * parts * parts * len(dictionary_of(problem))))
    return list(spans(problem.candidates.n_frequencies, step))


def _first_records(problem: LeverageProblem) -> list[Record]:
    candidates = problem.candidates
    dictionary = candidates.take(dictionary_of(problem))
    squares = BlockSum(
        name="squares",
        function=squares_block,
        accumulators={"squares": Accumulator((candidates.columns_a_frequency, candidates.n_frequencies))},
        operands={"feature_map": candidates, "dtype": problem.dtype},
        cost=partial(_mapping_cost, feature_map=candidates),
    )
    return [gram_record(dictionary, (0, dictionary.n_features + 1), problem.dtype), squares]


def _sweep_records(problem: LeverageProblem, place: int) -> list[Record]:
    dictionary = problem.candidates.take(dictionary_of(problem))
    chosen = _panels(problem)[place:][:_PANELS_A_PASS]
    panels = [problem.candidates.take(np.arange(panel.start, panel.stop)) for panel in chosen]
    return [
        BlockSum(
            name="products with the dictionary",
            function=cross_gram_block,
            accumulators={"cross": Accumulator((dictionary.n_features, panel.n_features))},
            operands={"first": dictionary, "second": panel, "dtype": problem.dtype},
            cost=partial(_cross_cost, first=dictionary, second=panel),
        )
        for panel in panels
    ]


def _mapping_cost(rows: int, columns: int, *, feature_map: FeatureMap) -> Cost:
    return Cost(rows * mapping_flops(columns, feature_map), 16 << 20)


def _cross_cost(rows: int, columns: int, *, first: FeatureMap, second: FeatureMap) -> Cost:
    """Mapping, and products that count twice, since they are float64."""
    width = first.n_features + second.n_features
    mapping = mapping_flops(columns, first) + mapping_flops(columns, second)
    products = 8 * first.n_features * second.n_features
    flops = rows * (mapping + 4.0 * first.n_features * second.n_features)
    return Cost(flops, 12 * newton_tile(width, "float64") * width + products)
