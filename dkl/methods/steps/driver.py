"""Fully corrective rounds on steps: refit all coefficients, judge them on held-out rows, add the best atoms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from dkl.features.step_projection import HINGE, STEP, Factor, StepProjection
from dkl.kernels.step_tiles import SHARED_SUMS, STEP_FLOPS
from dkl.methods.steps.binning import ColumnBins, column_bins
from dkl.methods.steps.pairs import rows_looked_at, steps_on_pairs, table_bytes
from dkl.methods.steps.problem import HISTORY, StepProblem, StepState, first_state
from dkl.methods.steps.scores import split_scores
from dkl.methods.steps.sums import RefitTask, SearchTask, refit_block, row_codes, search_block
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.block_pivoting import signed_minimum
from dkl.solvers.systems import solve_positive

State = TypeVar("State", bound=StepState)

# rounds in memory are slower than their operations are counted, and end before all atoms are there
_PACE = 0.8

# atoms whose regions are searched for a further factor, at most, and the memory that their histograms may take
_PARENTS, _HISTOGRAM_BYTES = 150, 64 << 20
# the bins of all values of rows in memory are kept up to so many bytes
_CODES_BYTES = 256 << 20
# atoms of one parent that a round takes at most, and rows on each side of a threshold at least
_OF_A_PARENT, _LEAST_ROWS = 6, 20
# in scores, the penalty of an atom: it keeps steps of few rows from standing above the others
SCORE_PENALTY = 10.0
# the constant is not penalised, but a system of no rows has to have a solution
CONSTANT_PENALTY = 1e-6
# a round has gained where the held-out loss falls by this share
LEAST_GAIN = 1e-4
# steps on the same columns, at most, until a working model has settled
SETTLING = 20
# where all columns together are at most this share of the atoms, they come first, as straight lines
_COLUMNS_SHARE = 1 / 3


class StepDriver:
    """The rounds: one pass for the system of the working model, one for its trials and the histograms of the rows.

    The first pass draws the rows that edges are told from. Where the problem is `in_memory`, all rounds are played on
    these rows at once.
    """

    def init(self, problem: StepProblem) -> StepState:
        """The constant alone."""
        return first_state(problem)

    def request(self, problem: StepProblem, state: StepState) -> Sequence[Record] | None:
        """The rows for the edges, the sums of a refit, or those of a search; None when the rounds have ended."""
        if state.phase == "done":
            return None
        if state.phase == "sample":
            return [RowSample("rows for the edges", problem.search_rows, problem.seed)]
        return [self._record(problem, state)]

    def step(self, problem: StepProblem, state: StepState, results: Sequence[Any]) -> StepState:
        """The state after a pass."""
        (result,) = results
        if state.phase == "refit":
            return _refitted(problem, state, result)
        if state.phase == "search":
            return _extended(problem, state, result)
        rows = as_drawn(result, problem.search_rows)
        state = with_edges(problem, state, rows)
        if problem.depth > 1:
            y, learned, _ = problem.targets(rows)
            room = problem.n_features + 1 - state.n_atoms
            atoms = steps_on_pairs(rows.X, np.asarray(y, np.float64), learned, state.bins)[:room]
            state = with_atoms(state, atoms) if atoms else state
        return played_in_memory(self, self._record, problem, state, rows) if problem.in_memory else state

    def plan(self, problem: StepProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The drawing of rows; where the rounds read all rows, each kind of their passes at its largest."""
        sample = [RowSample("rows for the edges", problem.search_rows, problem.seed)]
        if problem.in_memory:
            return [(sample, 1)]
        full = self._largest(problem)
        rounds = -(-problem.n_features // problem.features_per_round) + problem.patience + problem.settling
        refit = self._record(problem, replace(full, phase="refit"))
        return [(sample, 1), ([refit], rounds), ([self._record(problem, replace(full, phase="search"))], rounds)]

    def memory(self, problem: StepProblem, row_bytes: int) -> dict[str, int]:
        """The rows of the sample, the system of the working model, and the histograms of a search."""
        width = problem.n_features + 1
        parents = most_parents(problem)
        return {
            "rows for the edges": 2 * problem.search_rows * row_bytes,
            "systems of the working model": 4 * 8 * width**2,
            "histograms": 2 * parents * histogram_bytes(problem),
            "bins of the rows": codes_bytes(problem),
            "tables of pairs of columns": pair_bytes(problem),
        }

    def driving(self, problem: StepProblem) -> float:
        """Operations of rounds that are played in memory: systems of a third, and searches of half the largest size."""
        if not problem.in_memory:
            return 0.0
        full, n, d = self._largest(problem), problem.search_rows, problem.n_columns
        rounds = -(-problem.n_features // problem.features_per_round)
        refit, search = (
            self._record(problem, replace(full, phase=phase)).cost(n, d).flops for phase in ("refit", "search")
        )
        return _PACE * rounds * (refit / 3.0 + search / 2.0)

    def metrics(self, problem: StepProblem, state: StepState) -> dict[str, float]:
        """Atoms, and the loss on held-out rows."""
        if len(state.history) == 0:
            return {}
        return {
            "features": state.n_atoms - 1,
            "held_out_loss": float(state.history[-1, HISTORY.index("held_out_loss")]),
        }

    def _record(self, problem: StepProblem, state: StepState) -> BlockSum:
        """What the next round reads."""
        m, K, d = state.n_atoms, problem.n_models, problem.n_columns
        operands: dict[str, Any] = {"targets": problem.targets, "feature_map": state.feature_map()}
        if state.phase == "refit":
            # the system of the squared error does not depend on the model: only the columns of new atoms are missing
            first = len(state.gram) if problem.loss.is_square else 0
            start = np.zeros((K, m))
            if not problem.loss.is_square:
                start[:, : state.coefficients.shape[1]] = state.coefficients
            operands["task"] = RefitTask(problem.loss, start, slice(first, None), problem.dtype)
            accumulators = {"gram": Accumulator((m, m - first)), "gradient": Accumulator((m - first, K))}
            each = 2.0 * m * (m - first) + STEP_FLOPS * m
            function = refit_block
        else:
            parents = parents_of(problem, state)
            operands["task"] = SearchTask(problem.loss, state.trials, parents, state.bins, problem.dtype)
            bins = state.edges.shape[1]
            accumulators = {
                "held_out": Accumulator((len(state.trials),)),
                "weight": Accumulator(()),
                "histograms": Accumulator((len(parents), d, bins, SHARED_SUMS + K)),
            }
            each = 2.0 * m * K * len(state.trials) + STEP_FLOPS * (m + len(parents) * d * (1 + K))
            function = search_block
        cost = RowCost(each, sum(accumulator.nbytes for accumulator in accumulators.values()))
        return BlockSum(f"steps: {state.phase}", function, accumulators, operands, cost=cost)

    def _largest(self, problem: StepProblem) -> StepState:
        """A state of as many atoms as the rounds may find, for plans."""
        state, width = first_state(problem), problem.n_features + 1
        return replace(
            state,
            columns=np.repeat(state.columns, width, axis=0),
            thresholds=np.repeat(state.thresholds, width, axis=0),
            kinds=np.repeat(state.kinds, width, axis=0),
            trials=np.zeros((len(state.penalties), problem.n_models, width)),
        )


def played_in_memory(driver: Any, record_of: Callable[..., BlockSum], problem: Any, state: State, rows: Block) -> State:
    """The state after all rounds on one block, whose values are coded once where that takes little memory."""
    codes = None
    if codes_bytes(problem):
        codes = row_codes(rows.X, state.feature_map(), state.bins)
    while state.phase != "done":
        record = record_of(problem, state)
        operands, task = record.operands, record.operands["task"]
        if isinstance(task, SearchTask):
            operands = {**operands, "task": replace(task, codes=codes)}
        state = driver.step(problem, state, [record.function(rows, operands)])
    return state


class RowCost:
    """The cost of a block: so many operations a row, and the sums beside the temporaries."""

    def __init__(self, each: float, nbytes: int) -> None:
        self._each, self._nbytes = each, nbytes

    def __call__(self, rows: int, columns: int) -> Cost:
        return Cost(flops=self._each * rows, scratch_bytes=self._nbytes)


def as_drawn(sample: Block, asked: int) -> Block:
    """The rows with the weights that they count by: those of a sample were drawn by their weights already."""
    return replace(sample, weight=None) if sample.n_rows >= asked else sample


def with_edges(problem: StepProblem, state: State, rows: Block, columns: bool | None = None) -> State:
    """With the bins of the columns, and all columns as straight lines; None: where they are few beside the atoms."""
    bins = problem.given_bins
    if bins is None:
        _, learned, _ = problem.targets(rows)
        used = rows.rows(learned > 0.0) if (learned > 0.0).any() else rows
        bins = column_bins(used.X, used.weights, problem.bins)
    state = replace(
        state,
        phase="refit",
        edges=bins.edges,
        n_edges=bins.n_edges,
        low=bins.low,
        high=bins.high,
        center=bins.center,
        scale=bins.scale,
        values=bins.values,
    )
    varying = np.flatnonzero(bins.n_edges)
    if not (len(varying) <= _COLUMNS_SHARE * problem.n_features if columns is None else columns):
        return state
    return with_atoms(state, [((int(j), float(bins.low[j]), HINGE),) for j in varying])


def _refitted(problem: StepProblem, state: StepState, sums: dict[str, np.ndarray]) -> StepState:
    """With trials: the solutions of the working model's system for each of the penalties.

    A Newton step from w is (G + D) w' = G w + g, with G = sum h phi phi^T, g = sum s phi and D the penalties; from the
    model of no coefficients it is the ridge model itself, where the loss is the squared error.
    """
    m, K = state.n_atoms, problem.n_models
    if problem.loss.is_square:
        known = len(state.gram)
        gram, gradient = np.zeros((m, m)), np.concatenate([state.gradient, sums["gradient"]])
        gram[:known, :known] = state.gram
        gram[:, known:], gram[known:, :] = sums["gram"], sums["gram"].T
        right = gradient
    else:
        gram, gradient = sums["gram"], sums["gradient"]
        start = np.zeros((K, m))
        start[:, : state.coefficients.shape[1]] = state.coefficients
        right = gram @ start.T + gradient
    trials = solved_trials(problem, state, gram, right)
    keeps = problem.loss.is_square
    return replace(
        state,
        phase="search",
        trials=trials,
        gram=gram if keeps else state.gram,
        gradient=gradient if keeps else state.gradient,
    )


def solved_trials(problem: StepProblem, state: StepState, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solutions of (G + D) w = right for each of the penalties, (T, K, m); the first columns are the atoms.

    Where columns have signs, it is the minimum of each model's quadratic over coefficients that have the signs of their
    atoms. Factors of atoms are never negative and rise in their columns: with coefficients of one sign so does the
    model. Columns that are no atoms have none.
    """
    m, signs = len(gram), None
    if problem.signs is not None:
        signs = np.zeros(m, np.int64)
        signs[: state.n_atoms] = [_sign_of(columns, problem.signs) for columns in state.columns]
    trials = []
    for penalty in state.penalties:
        system = gram + np.diag(column_penalties(m, penalty))
        if signs is None:
            trials.append(solve_positive(system.copy, right).T)
        else:
            trials.append(np.stack([signed_minimum(system, -one, signs) for one in right.T]))
    return np.stack(trials)


def column_penalties(m: int, penalty: float) -> np.ndarray:
    """D: of each of m columns; the first one is the constant."""
    penalties = np.full(m, penalty)
    penalties[0] = CONSTANT_PENALTY
    return penalties


def _sign_of(columns: np.ndarray, signs: np.ndarray) -> int:
    """The sign of an atom on some columns, 0 where they ask for none; no atom has columns of both signs.

    A column of -1 stands for a factor that is not there.
    """
    asked = signs[columns[columns >= 0]]
    return int(np.sign(asked.sum()))


def _extended(problem: StepProblem, state: StepState, sums: dict[str, np.ndarray]) -> StepState:
    """With the best trial as the model, and the atoms that are worth most beside it; or at the end of the rounds."""
    judged = float(sums["weight"])
    losses = sums["held_out"] / judged if judged > 0.0 else np.arange(len(state.trials), dtype=np.float64)
    best = int(np.argmin(losses))
    loss, penalty, coefficients = float(losses[best]), state.penalties[best], state.trials[best]
    gained = loss < state.best_loss * (1.0 - LEAST_GAIN) or not np.isfinite(state.best_loss)
    line = np.array([[state.n_atoms - 1, loss, penalty]])
    state = replace(
        state,
        coefficients=coefficients,
        # the penalty of this round comes last, since histograms are those of the last trial
        penalties=np.array([penalty / 3.0, penalty * 3.0, penalty]),
        history=np.concatenate([state.history, line]),
        since=0 if gained else state.since + 1,
        best_loss=loss if gained else state.best_loss,
        best=coefficients if gained else state.best,
    )
    why = why_to_stop(problem, state)
    atoms = [] if why else _best_atoms(problem, state, sums["histograms"])
    if not atoms and not settles(problem, state):
        return replace(state, phase="done", message=why or "no further step has enough rows on both sides")
    return replace(with_atoms(state, atoms) if atoms else state, phase="refit")


def why_to_stop(problem: StepProblem, state: StepState) -> str:
    """The rule by which rounds end: enough atoms, or too long without a gain on held-out rows; empty to go on."""
    if state.n_atoms - 1 >= problem.n_features:
        return "found as many as asked for"
    if state.since >= problem.patience:
        return f"no lower loss on held-out rows in {problem.patience} rounds"
    return ""


def settles(problem: StepProblem, state: StepState) -> bool:
    """Whether the working model takes a further step on the columns that it has: as long as that gains."""
    sizes = state.history[:, HISTORY.index("n_features")]
    return not problem.loss.is_square and state.since == 0 and np.sum(sizes == sizes[-1]) <= problem.settling


def _best_atoms(problem: StepProblem, state: StepState, histograms: np.ndarray) -> list[tuple[Factor, ...]]:
    """The atoms that this round adds, best first."""
    room = min(problem.features_per_round, problem.n_features + 1 - state.n_atoms)
    return [atom for _, atom in islice(scored_atoms(problem, state, histograms), room)]


def scored_atoms(
    problem: StepProblem, state: StepState, histograms: np.ndarray
) -> Iterator[tuple[float, tuple[Factor, ...]]]:
    """New atoms with their scores, best first: at most one for a parent and column, and six for a parent."""
    parents, bins = parents_of(problem, state), state.bins
    edges = np.where(np.isfinite(bins.edges), bins.edges, 0.0)
    # histograms have a bin more than there are thresholds; the last column of edges is never one
    thresholds = ((np.clip(edges, bins.low[:, None], bins.high[:, None]) - bins.center[:, None]) / bins.scale[:, None])[
        :, :-1
    ]
    n_edges = np.minimum(bins.n_edges, thresholds.shape[1])
    atoms = StepProjection(state.columns, state.thresholds, state.kinds, state.high).factors
    known = {_key(factors) for factors in atoms}
    there = _known_edges(known, [_key(atoms[parent]) for parent in parents], bins)
    # the best edge of each parent and column: its score, and which of the steps and hinges it is
    scores, places = np.empty((2, len(parents), problem.n_columns))
    for row, (parent, histogram) in enumerate(zip(parents, histograms, strict=True)):
        signs = None if problem.signs is None else _signs_within(state.columns[parent], problem.signs)
        of_kinds = split_scores(
            histogram, bins.values, thresholds, n_edges, penalty=SCORE_PENALTY, least=_LEAST_ROWS, signs=signs
        )
        for place in there.get(row, ()):
            of_kinds[place] = 0.0
        flat = np.moveaxis(of_kinds, 1, 0).reshape(problem.n_columns, -1)
        # Hinges from below all rows of a parent are one function there, up to a step. The one that begins next to
        # these rows is taken, not that of rounding; of steps with no row between them the first.
        scores[row] = flat.max(axis=1)
        tied = flat >= scores[row][:, None] * (1.0 - 1e-9)
        first, last = tied.argmax(axis=1), flat.shape[1] - 1 - tied[:, ::-1].argmax(axis=1)
        places[row] = np.where(first >= thresholds.shape[1], last, first)
    taken: dict[int, int] = {}
    for best in np.argsort(-scores, axis=None, kind="stable"):
        row, j = divmod(int(best), problem.n_columns)
        if not scores[row, j] > 0.0:
            break
        parent, (kind, edge) = int(parents[row]), divmod(int(places[row, j]), thresholds.shape[1])
        atom = (*atoms[parent], (j, float(bins.edges[j, edge]), HINGE if kind else STEP))
        if _key(atom) in known or taken.get(parent, 0) >= _OF_A_PARENT:
            continue
        known.add(_key(atom))
        taken[parent] = taken.get(parent, 0) + 1
        yield float(scores[row, j]), atom


def _known_edges(
    known: set[frozenset[Factor]], parents: list[frozenset[Factor]], bins: ColumnBins
) -> dict[int, list[tuple[int, int, int]]]:
    """By the row of a parent the (kind, column, edge) of its further factors that give an atom which is there already.

    A parent's own step on the column is left aside, since of two steps the higher one decides.
    """
    rows: dict[tuple[frozenset[Factor], int | None], list[int]] = {}
    for row, parent in enumerate(parents):
        rows.setdefault((parent, None), []).append(row)
        for factor in parent:
            rows.setdefault((parent - {factor}, factor[0]), []).append(row)
    places: dict[int, list[tuple[int, int, int]]] = {}
    for atom in known:
        for factor in atom:
            (j, t, kind), rest = factor, atom - {factor}
            edge = int(np.searchsorted(bins.edges[j], t))
            for row in [*rows.get((rest, None), ()), *(rows.get((rest, j), ()) if kind == STEP else ())]:
                if edge < bins.edges.shape[1] - 1:
                    places.setdefault(row, []).append((int(kind != STEP), j, edge))
    return places


def _signs_within(columns: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """The sign of an atom made of a parent and each column, (d,); NaN, worth nothing, where the two contradict."""
    of_parent = _sign_of(columns, signs)
    return np.where(signs * of_parent < 0, np.nan, np.sign(signs + of_parent))


def parents_of(problem: StepProblem, state: StepState) -> np.ndarray:
    """The constant and the latest products of fewer steps than an atom may have, (P,) int64, in their order."""
    factors = np.count_nonzero(state.columns >= 0, axis=1)
    able = np.flatnonzero((factors < problem.depth) & (state.kinds == STEP).all(axis=1))
    return np.concatenate([able[:1], able[1:][1 - most_parents(problem) :]]) if most_parents(problem) > 1 else able[:1]


def most_parents(problem: StepProblem) -> int:
    """Atoms whose regions a round searches at most."""
    return int(np.clip(_HISTOGRAM_BYTES // histogram_bytes(problem), 1, _PARENTS))


def codes_bytes(problem: StepProblem) -> int:
    """Of the bins that are kept of rows in memory."""
    nbytes = problem.search_rows * problem.n_columns
    return nbytes if problem.in_memory and nbytes <= _CODES_BYTES else 0


def pair_bytes(problem: StepProblem) -> int:
    """Of the tables of all pairs of columns and of what is made of them, where there are any."""
    if problem.depth == 1 or not rows_looked_at(problem.search_rows, problem.n_columns, problem.n_models):
        return 0
    return 4 * table_bytes(problem.n_columns, problem.n_models)


def histogram_bytes(problem: StepProblem) -> int:
    """Of one parent."""
    return 8 * problem.n_columns * problem.bins * (SHARED_SUMS + problem.n_models)


def with_atoms(state: State, atoms: list[tuple[Factor, ...]]) -> State:
    """With further atoms behind those that are there."""
    new = StepProjection.of_factors(atoms, state.high)
    return replace(
        state,
        columns=np.concatenate([state.columns, new.columns]),
        thresholds=np.concatenate([state.thresholds, new.thresholds]),
        kinds=np.concatenate([state.kinds, new.kinds]),
    )


def _key(factors: tuple[Factor, ...]) -> frozenset[Factor]:
    """What two atoms that are the same function share: of steps on one column the highest threshold decides."""
    highest: dict[int, float] = {}
    for j, t, kind in factors:
        if kind == STEP:
            highest[j] = max(t, highest.get(j, -np.inf))
    hinges = [factor for factor in factors if factor[2] == HINGE]
    return frozenset([*((j, t, int(STEP)) for j, t in highest.items()), *hinges])
