"""Steps of columns, hinges and their products as atoms of rounds: the first atoms, and the scores of further ones."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dkl.features.step_projection import HINGE, STEP, Factor, StepProjection
from dkl.kernels.compiled import njit
from dkl.kernels.step_tiles import SHARED_SUMS
from dkl.kernels.threads import Crew
from dkl.methods.rounds.dictionary import SCORE_PENALTY
from dkl.methods.rounds.problem import RoundsProblem, RoundsState
from dkl.methods.steps.binning import ColumnBins, column_bins
from dkl.methods.steps.pairs import rows_of_tables, steps_on_pairs, table_bytes
from dkl.protocols.block import Block

# The most atoms that are extended by a further factor in a round, and the most bytes of their histograms.
PARENTS, _HISTOGRAM_BYTES = 150, 64 << 20
# The bins of rows in memory are stored if they take at most this many bytes, else computed in each round.
_CODES_BYTES = 256 << 20
# The most atoms with the same parent that one round adds, and the least weight on each side of a threshold.
_OF_A_PARENT, _LEAST_ROWS = 6, 20
# All columns are added first, as linear terms, if they are at most this share of the requested atoms.
_COLUMNS_SHARE = 1 / 3


def with_first_atoms(problem: RoundsProblem, state: RoundsState, rows: Block) -> RoundsState:
    """The state with the bins of the columns, linear terms of columns if they are few, and steps on entangled pairs."""
    y, weight, _ = problem.targets(rows)
    bins = problem.given_bins
    if bins is None:
        used = rows.rows(weight > 0.0) if (weight > 0.0).any() else rows
        bins = column_bins(used.X, used.weights, problem.bins)
    state = replace(state, **vars(bins))
    varying = np.flatnonzero(bins.n_edges)
    is_few = len(varying) <= _COLUMNS_SHARE * problem.n_features
    if is_few if problem.has_columns is None else problem.has_columns:
        state = with_atoms(state, [((int(j), float(bins.low[j]), HINGE),) for j in varying])
    if problem.depth > 1:
        n_left = problem.n_features + 1 - state.n_atoms
        state = with_atoms(state, steps_on_pairs(rows.X, np.asarray(y, np.float64), weight, bins)[:n_left])
    return state


def sign_of(columns: np.ndarray, signs: np.ndarray) -> int:
    """The sign of an atom's coefficient, 0 if free; no atom has columns with opposite signs.

    A column of -1 stands for an absent factor.
    """
    required = signs[columns[columns >= 0]]
    return int(np.sign(required.sum()))


def scored_atoms(
    problem: RoundsProblem, state: RoundsState, histograms: np.ndarray
) -> Iterator[tuple[float, tuple[Factor, ...]]]:
    """New atoms with their scores, best first: at most one for a parent and column, and six for a parent."""
    parents, bins = parents_of(problem, state), state.bins
    edges = np.where(np.isfinite(bins.edges), bins.edges, 0.0)
    # histograms have one bin more than there are thresholds, so the last edge of a column is never one
    thresholds = ((np.clip(edges, bins.low[:, None], bins.high[:, None]) - bins.center[:, None]) / bins.scale[:, None])[
        :, :-1
    ]
    n_edges = np.minimum(bins.n_edges, thresholds.shape[1])
    atoms = StepProjection(state.columns, state.thresholds, state.kinds, state.high).factors
    known = {_key(factors) for factors in atoms}
    repeated = _repeated_factors(known, [_key(atoms[parent]) for parent in parents], bins)
    # the best edge of each parent and column: its score, and its position among steps and hinges
    scores, places = np.empty((2, len(parents), problem.n_columns))

    def score(row: int) -> None:
        signs = None if problem.signs is None else _signs_within(state.columns[parents[row]], problem.signs)
        by_kind = split_scores(
            histograms[row], bins.values, thresholds, n_edges, penalty=SCORE_PENALTY, least=_LEAST_ROWS, signs=signs
        )
        for place in repeated.get(row, ()):
            by_kind[place] = 0.0
        flat = by_kind.transpose(1, 0, 2).reshape(problem.n_columns, -1)
        # all hinges that begin below the rows of a parent are one function there, up to a step; of equal scores the
        # hinge that begins closest to these rows is chosen, and of steps without rows between them the first
        scores[row] = flat.max(axis=1)
        tied = flat >= scores[row][:, None] * (1.0 - 1e-9)
        first, last = tied.argmax(axis=1), flat.shape[1] - 1 - tied[:, ::-1].argmax(axis=1)
        places[row] = np.where(first >= thresholds.shape[1], last, first)

    Crew().map(score, range(len(parents)))
    n_of_parent: dict[int, int] = {}
    for best in np.argsort(-scores, axis=None, kind="stable"):
        row, j = divmod(int(best), problem.n_columns)
        if not scores[row, j] > 0.0:
            break
        parent, (kind, edge) = int(parents[row]), divmod(int(places[row, j]), thresholds.shape[1])
        atom = (*atoms[parent], (j, float(bins.edges[j, edge]), HINGE if kind else STEP))
        if _key(atom) in known or n_of_parent.get(parent, 0) >= _OF_A_PARENT:
            continue
        known.add(_key(atom))
        n_of_parent[parent] = n_of_parent.get(parent, 0) + 1
        yield float(scores[row, j]), atom


def _repeated_factors(
    known: set[frozenset[Factor]], parents: list[frozenset[Factor]], bins: ColumnBins
) -> dict[int, list[tuple[int, int, int]]]:
    """For each parent (by position) the (kind, column, edge) of further factors that would repeat an existing atom.

    A parent's own step on the column is ignored, since of two steps on a column the higher one decides.
    """
    rows: dict[tuple[frozenset[Factor], int | None], list[int]] = {}
    for row, parent in enumerate(parents):
        rows.setdefault((parent, None), []).append(row)
        for factor in parent:
            rows.setdefault((parent - {factor}, factor[0]), []).append(row)
    places: dict[int, list[tuple[int, int, int]]] = {}
    # Python lists, whose single numbers are read much faster than those of arrays
    edges, last = bins.edges.tolist(), bins.edges.shape[1] - 1
    for atom in known:
        for factor in atom:
            (j, t, kind), rest = factor, atom - {factor}
            with_rest, with_own = rows.get((rest, None), ()), rows.get((rest, j), ()) if kind == STEP else ()
            if (with_rest or with_own) and (edge := bisect_left(edges[j], t)) < last:
                for row in (*with_rest, *with_own):
                    places.setdefault(row, []).append((int(kind != STEP), j, edge))
    return places


def _signs_within(columns: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The sign of a parent's atom extended by each column, (d,); NaN where signs contradict, so that its score is 0."""
    of_parent = sign_of(columns, signs)
    return np.where(signs * of_parent < 0, np.nan, np.sign(signs + of_parent))


def parents_of(problem: RoundsProblem, state: RoundsState) -> np.ndarray:
    """The constant, and the latest products of fewer steps than an atom may have: (P,) int64, in order."""
    factors = np.count_nonzero(state.columns >= 0, axis=1)
    able = np.flatnonzero((factors < problem.depth) & (state.kinds == STEP).all(axis=1))
    return np.concatenate([able[:1], able[1:][1 - most_parents(problem) :]]) if most_parents(problem) > 1 else able[:1]


def most_parents(problem: RoundsProblem) -> int:
    """The most atoms for which a round computes histograms."""
    return int(np.clip(_HISTOGRAM_BYTES // histogram_bytes(problem), 1, PARENTS))


def codes_bytes(problem: RoundsProblem) -> int:
    """Bytes of the stored bins of rows in memory; 0 if they are computed in each round."""
    nbytes = problem.search_rows * problem.n_columns
    return nbytes if problem.in_memory and problem.depth and nbytes <= _CODES_BYTES else 0


def pair_bytes(problem: RoundsProblem) -> int:
    """Bytes of the tables of all pairs of columns and of intermediate arrays; 0 without tables."""
    if problem.depth < 2 or not rows_of_tables(problem.search_rows, problem.n_columns, problem.n_models):
        return 0
    return 4 * table_bytes(problem.n_columns, problem.n_models)


def histogram_bytes(problem: RoundsProblem) -> int:
    """Bytes of the histograms of one parent."""
    return 8 * problem.n_columns * problem.bins * (SHARED_SUMS + problem.n_models)


def with_atoms(state: RoundsState, atoms: list[tuple[Factor, ...]]) -> RoundsState:
    """The state with further atoms appended."""
    if not atoms:
        return state
    new = StepProjection.of_factors(atoms, state.high)
    return replace(
        state,
        columns=np.concatenate([state.columns, new.columns]),
        thresholds=np.concatenate([state.thresholds, new.thresholds]),
        kinds=np.concatenate([state.kinds, new.kinds]),
    )


# each round needs the keys of all atoms, most of which it had in the round before
@lru_cache(1 << 14)
def _key(factors: tuple[Factor, ...]) -> frozenset[Factor]:
    """A key that is equal for atoms that are the same function: of steps on one column only the highest counts."""
    highest: dict[int, float] = {}
    for j, t, kind in factors:
        if kind == STEP:
            highest[j] = max(t, highest.get(j, -np.inf))
    hinges = [factor for factor in factors if factor[2] == HINGE]
    return frozenset([*((j, t, int(STEP)) for j, t in highest.items()), *hinges])


def split_scores(
    histograms: np.ndarray,
    values: np.ndarray,
    thresholds: np.ndarray,
    n_edges: np.ndarray,
    *,
    penalty: float,
    least: float,
    signs: np.ndarray | None = None,
) -> np.ndarray:
    """Scores of the steps and of the hinges at every edge of every column, within one parent.

    s are the negative slopes of the rows' losses, h their curvatures, and z the mean of a row's bin in place of the
    column, so that the sums of each bin suffice. Within the parent p, S, N, n, S1, X1, X2 are the sums of s, h, 1, s z,
    h z and h z^2 over rows with z > t; S_p and N_p are the sums of s and h over all rows of the parent; c = X1 - t N.
    Then

        step:   (S - (N/N_p) S_p)^2 / (N (1 - N/N_p) + nu)
        hinge:  (S1 - t S - (c/N_p) S_p)^2 / (X2 - 2 t X1 + t^2 N - c^2/N_p + nu),

    which is for the part of the atom that its parent does not explain, summed over the models.

    Parameters
    ----------
    histograms : ndarray of shape (d, bins, 2 + K), float64
        As summed by `dkl.kernels.step_tiles.HistogramSums`.
    values : ndarray of shape (d, bins), float64
        z of each bin, standardised.
    thresholds : ndarray of shape (d, bins - 1), float64
        The edges in the units of z.
    n_edges : ndarray of shape (d,), int64
    penalty : float
        nu.
    least : float
        The least weight of rows above a threshold, and for steps below it.
    signs : ndarray of shape (d,) or None
        -1 or 1 if coefficients of the column's atoms must have this sign: a Newton step in the other direction has a
        score of 0. 0 allows any sign, NaN none.

    Returns
    -------
    ndarray of shape (2, d, bins - 1)
        Steps, then hinges; 0 if a side has too few rows.
    """
    scores = np.zeros((2, *thresholds.shape))
    allowed = np.zeros(len(histograms)) if signs is None else np.asarray(signs, np.float64)
    buffer = np.empty((2, 2 * histograms.shape[2]))
    _write_scores((histograms, values), thresholds, n_edges, allowed, (float(penalty), float(least)), buffer, scores)
    return scores


@njit(nogil=True, error_model="numpy")
def _write_scores(
    bins: tuple[np.ndarray, np.ndarray],
    thresholds: np.ndarray,
    n_edges: np.ndarray,
    signs: np.ndarray,
    settings: tuple[float, float],
    buffer: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the scores of `split_scores`: the sums of each column are accumulated from its last bin to its first.

    `bins` are the histograms and the value of each bin. `buffer` (2, 4 + 2 K) is for the sums over all bins and over
    those above an edge: adding whole arrays, or allocating memory here, takes several times as long to compile.
    """
    (histograms, values), (penalty, least) = bins, settings
    total, above = buffer[0], buffer[1]
    width = histograms.shape[2]
    K = width - SHARED_SUMS
    for j in range(histograms.shape[0]):
        if np.isnan(signs[j]):
            continue
        for c in range(2 * width):
            total[c], above[c] = 0.0, 0.0
        for edge in range(histograms.shape[1] - 1, -1, -1):
            for c in range(width):
                total[c] += histograms[j, edge, c]
        n_p, N_p, X2 = total[0], max(total[1], 2.3e-308), 0.0
        for edge in range(thresholds.shape[1] - 1, -1, -1):
            z = values[j, edge + 1]
            for c in range(width):
                above[c] += histograms[j, edge + 1, c]
                above[width + c] += histograms[j, edge + 1, c] * z
            X2 += histograms[j, edge + 1, 1] * (z * z)
            n, N, X1 = above[0], above[1], above[width + 1]
            if edge >= n_edges[j] or n < least:
                continue
            t = thresholds[j, edge]
            c = X1 - t * N
            step, hinge = 0.0, 0.0
            for k in range(K):
                S, S1, S_p = above[SHARED_SUMS + k], above[width + SHARED_SUMS + k], total[SHARED_SUMS + k]
                # a slope only counts if a step along it has the required sign
                slope, ramp = S - N / N_p * S_p, S1 - t * S - c / N_p * S_p
                step += slope**2 if signs[j] * slope >= 0.0 else 0.0
                hinge += ramp**2 if signs[j] * ramp >= 0.0 else 0.0
            if n_p - n >= least:
                out[0, j, edge] = step / (max(N * (1.0 - N / N_p), 0.0) + penalty)
            out[1, j, edge] = hinge / (max(X2 - 2.0 * t * X1 + t**2 * N - c**2 / N_p, 0.0) + penalty)
