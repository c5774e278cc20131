"""Rounds over several dictionaries: refit all coefficients, let each dictionary propose, take what is worth most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.features.step_projection import Factor
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.scale import scale_rows
from dkl.kernels.step_tiles import SHARED_SUMS, STEP_FLOPS
from dkl.methods.dictionaries.greedy_choice import CandidatePoints
from dkl.methods.dictionaries.problem import (
    CompetitionState,
    DictionaryProblem,
    candidate_map,
    columns_known,
    first_dictionary_state,
    model_map,
)
from dkl.methods.dictionaries.sampled_dictionaries import SampleSlopes
from dkl.methods.steps.driver import (
    LEAST_GAIN,
    RowCost,
    as_drawn,
    codes_bytes,
    column_penalties,
    histogram_bytes,
    most_parents,
    parents_of,
    played_in_memory,
    scored_atoms,
    settles,
    solved_trials,
    with_atoms,
    with_edges,
)
from dkl.methods.steps.problem import HISTORY
from dkl.methods.steps.sums import RefitTask, SearchTask, refit_block, search_block
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Record, RowSample
from dkl.solvers.systems import solve_positive

# rows of the sample that waves and landmarks are searched on
SEARCHED_ROWS = 10_000
# a lighter penalty is one of rounding
LEAST_PENALTY = 1e-6


class CompetitionDriver:
    """One pass for the system of the working model, one for its trials, the histograms and the candidates.

    The first pass draws the rows that edges are told from and that candidates are searched on. Where the problem is
    `in_memory`, all rounds are played on these rows at once. A candidate that was found on the sample is verified on
    all rows before it competes with steps, by the same score.
    """

    def __init__(self) -> None:
        self._rows: Block | None = None

    def init(self, problem: DictionaryProblem) -> CompetitionState:
        """The constant alone."""
        return first_dictionary_state(problem)

    def request(self, problem: DictionaryProblem, state: CompetitionState) -> Sequence[Record] | None:
        """The rows of the sample, the sums of a refit, or those of a search; None when the rounds have ended."""
        if state.phase == "done":
            return None
        sample = RowSample("rows to search on", problem.search_rows, problem.seed)
        if state.phase == "sample":
            return [sample]
        # A run that was broken off has lost the sample, which is drawn again beside the next sums.
        return [_record(problem, state), *([sample] if self._rows is None else [])]

    def step(self, problem: DictionaryProblem, state: CompetitionState, results: Sequence[Any]) -> CompetitionState:
        """The state after a pass."""
        if state.phase == "sample" or len(results) > 1:
            self._rows = as_drawn(results[-1], problem.search_rows)
        if state.phase == "sample":
            state = with_edges(problem, state, self._sample, problem.has_columns)
            some = self._sample.X[:SEARCHED_ROWS]
            units = [s.unit(scale_rows(some, s.scaler, problem.dtype)) for s in problem.sources]
            state = replace(state, units=np.array(units, dtype=np.float64))
            return played_in_memory(self, _record, problem, state, self._sample) if problem.in_memory else state
        if state.phase == "refit":
            return _proposed(problem, _refitted(problem, state, results[0]), self._sample)
        return _extended(problem, state, results[0])

    def plan(self, problem: DictionaryProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The drawing of rows; where the rounds read all rows, each kind of their passes at its largest."""
        sample = [RowSample("rows to search on", problem.search_rows, problem.seed)]
        if problem.in_memory:
            return [(sample, 1)]
        full = _largest(problem)
        rounds = -(-problem.n_features // problem.features_per_round) + problem.patience + problem.settling
        refit = _record(problem, replace(full, phase="refit"))
        return [(sample, 1), ([refit], rounds), ([_record(problem, replace(full, phase="search"))], rounds)]

    def memory(self, problem: DictionaryProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """The rows of the sample, the systems, the histograms, and what is mapped of the searched rows."""
        width, candidates = problem.n_features + 1, _most_candidates(problem)
        return {
            "rows to search on": 2 * problem.search_rows * row_bytes,
            "systems of the working model": 4 * 8 * width**2 + 3 * 8 * (width + candidates) * candidates,
            "histograms": 2 * most_parents(problem) * histogram_bytes(problem) if problem.has_steps else 0,
            "bins of the rows": codes_bytes(problem) if problem.has_steps else 0,
            "features of searched rows": 2 * 8 * min(SEARCHED_ROWS, problem.search_rows) * (width + candidates),
        }

    def metrics(self, problem: DictionaryProblem, state: CompetitionState) -> dict[str, float]:
        """Columns, and the loss on held-out rows."""
        if len(state.history) == 0:
            return {}
        last = state.history[-1]
        return {"features": float(last[0]), "held_out_loss": float(last[HISTORY.index("held_out_loss")])}

    @property
    def _sample(self) -> Block:
        """The rows themselves."""
        if self._rows is None:
            raise RuntimeError("no rows were drawn yet: a search was asked for before the pass of its sample")
        return self._rows


def _record(problem: DictionaryProblem, state: CompetitionState) -> BlockSum:
    """What the next pass reads."""
    feature_map, K, d = model_map(problem, state), problem.n_models, problem.n_columns
    m = feature_map.n_features
    operands: dict[str, Any] = {"targets": problem.targets, "feature_map": feature_map}
    each = mapping_flops(d, feature_map)
    if state.phase == "refit":
        known = columns_known(problem, state, *state.known)
        start = np.zeros((K, m))
        new = np.arange(m)
        if problem.loss.is_square:
            # its system does not depend on the model: only the columns of new atoms and points are missing
            new = np.flatnonzero(~known)
        else:
            start[:, known] = state.coefficients
        operands["task"] = RefitTask(problem.loss, start, new, problem.dtype)
        accumulators = {"gram": Accumulator((m, len(new))), "gradient": Accumulator((len(new), K))}
        each += 2.0 * m * len(new)
        function = refit_block
    else:
        parents = parents_of(problem, state) if problem.has_steps else np.zeros(0, np.int64)
        candidates = candidate_map(problem, state)
        base = None if problem.loss.is_square else state.coefficients
        operands["task"] = SearchTask(problem.loss, state.trials, parents, state.bins, problem.dtype, candidates, base)
        accumulators = {
            "held_out": Accumulator((len(state.trials),)),
            "weight": Accumulator(()),
            "histograms": Accumulator((len(parents), d, state.edges.shape[1], SHARED_SUMS + K)),
        }
        if candidates is not None:
            C = candidates.n_features
            accumulators |= {"cross": Accumulator((m + C, C)), "gradient": Accumulator((m + C, K))}
            each += mapping_flops(d, candidates) + 2.0 * (m + C) * (C + K)
        each += 2.0 * m * K * len(state.trials) + STEP_FLOPS * len(parents) * d * (1 + K)
        function = search_block
    cost = RowCost(each, sum(accumulator.nbytes for accumulator in accumulators.values()))
    return BlockSum(f"dictionaries: {state.phase}", function, accumulators, operands, cost=cost)


def _refitted(problem: DictionaryProblem, state: CompetitionState, sums: dict[str, np.ndarray]) -> CompetitionState:
    """With trials: the solutions of the working model's system (G + D) w' = G w + g for each of the penalties."""
    known = columns_known(problem, state, *state.known)
    m, K = len(known), problem.n_models
    if problem.loss.is_square:
        gram, gradient = np.zeros((m, m)), np.zeros((m, K))
        gram[np.ix_(known, known)], gradient[known] = state.gram, state.gradient
        gram[:, ~known], gram[~known, :] = sums["gram"], sums["gram"].T
        gradient[~known] = sums["gradient"]
        right, start = gradient, state.coefficients
    else:
        gram, gradient, start = sums["gram"], sums["gradient"], np.zeros((K, m))
        start[:, known] = state.coefficients
        right = gram @ start.T + gradient
    return replace(
        state,
        phase="search",
        coefficients=start,
        trials=solved_trials(problem, state, gram, right),
        gram=gram,
        gradient=gradient,
        known=np.array([state.n_atoms, len(state.points)]),
    )


def _room(problem: DictionaryProblem, state: CompetitionState) -> int:
    """Columns that a round adds at most."""
    m = state.trials.shape[2]
    return min(max(problem.features_per_round, int(problem.growth * m)), problem.n_features + 1 - m)


def _proposed(problem: DictionaryProblem, state: CompetitionState, sample: Block) -> CompetitionState:
    """With the candidates of each source: what it finds at the slopes of the last trial on rows of the sample."""
    room = _room(problem, state)
    found, numbers = [np.zeros((0, problem.n_columns))], [np.zeros(0, np.int64)]
    if problem.sources and room > 0:
        rows = sample.rows(np.arange(min(SEARCHED_ROWS, sample.n_rows)))
        y, weight, _ = problem.targets(rows)
        loss = problem.loss
        scores = map_rows(rows.X, model_map(problem, state), problem.dtype).astype(np.float64) @ state.trials[-1].T
        s = -loss.slope(y, scores) * weight[:, None]
        h = weight * loss.curvature(y, scores).max(axis=1)
        learned = np.flatnonzero(weight > 0.0)
        for number, source in enumerate(problem.sources if len(learned) else ()):
            X = scale_rows(rows.X[learned], source.scaler, problem.dtype)
            count = max(1, room // source.columns_a_point)
            # a large prime apart, so that the streams of two rounds, and of fits with neighbouring seeds, differ
            seed = (problem.seed + 7919 * len(state.history) + 104_729 * number) % 2**31
            points = source.propose(SampleSlopes(X, s[learned], h[learned]), count, seed)
            found.append(points)
            numbers.append(np.full(len(points), number))
    return replace(state, candidates=np.concatenate(found), candidate_source=np.concatenate(numbers))


def _extended(problem: DictionaryProblem, state: CompetitionState, sums: dict[str, np.ndarray]) -> CompetitionState:
    """With the best trial as the model, and what is worth most beside it; or at the end of the rounds."""
    judged = float(sums["weight"])
    losses = sums["held_out"] / judged if judged > 0.0 else np.arange(len(state.trials), dtype=np.float64)
    best = int(np.argmin(losses))
    loss, penalty, coefficients = float(losses[best]), state.penalties[best], state.trials[best]
    gained = loss < state.best_loss * (1.0 - LEAST_GAIN) or not np.isfinite(state.best_loss)
    searched_at = state.penalties[-1]
    line = np.array([[state.trials.shape[2] - 1, loss, penalty]])
    state = replace(
        state,
        coefficients=coefficients,
        # the penalty of this round comes last, since histograms and candidates are at the slopes of the last trial
        penalties=np.array([max(penalty / 3.0, LEAST_PENALTY), penalty * 3.0, penalty]),
        history=np.concatenate([state.history, line]),
        since=0 if gained else state.since + 1,
        best_loss=loss if gained else state.best_loss,
        best=coefficients if gained else state.best,
        best_sizes=state.known if gained else state.best_sizes,
    )
    why = _why_to_stop(problem, state)
    atoms, chosen = ([], np.zeros(0, np.int64)) if why else _chosen(problem, state, sums, searched_at)
    if not atoms and not len(chosen) and not settles(problem, state):
        return replace(state, phase="done", message=why or "no dictionary has a further column that lowers the loss")
    return replace(
        with_atoms(state, atoms) if atoms else state,
        phase="refit",
        points=np.concatenate([state.points, state.candidates[chosen]]),
        source=np.concatenate([state.source, state.candidate_source[chosen]]),
        candidates=state.candidates[:0],
        candidate_source=state.candidate_source[:0],
    )


def _why_to_stop(problem: DictionaryProblem, state: CompetitionState) -> str:
    """The rule by which rounds end; empty to go on."""
    if _room(problem, state) < max((source.columns_a_point for source in problem.sources), default=1):
        return "found as many as asked for"
    if state.since >= problem.patience:
        return f"no lower loss on held-out rows in {problem.patience} rounds"
    if problem.rounds is not None and len(state.history) > problem.rounds:
        return f"ended after {problem.rounds} rounds"
    return ""


def _chosen(
    problem: DictionaryProblem, state: CompetitionState, sums: dict[str, np.ndarray], penalty: float
) -> tuple[list[tuple[Factor, ...]], np.ndarray]:
    """The atoms and the candidates that this round takes: each time the one with the largest score a column."""
    candidates = verified_candidates(problem, state, sums, penalty)
    steps = scored_atoms(problem, state, sums["histograms"]) if problem.has_steps else iter(())
    room, atoms, taken = _room(problem, state), list[tuple[Factor, ...]](), list[int]()
    step, scores = next(steps, None), candidates.scores()
    while room > 0:
        # points of more columns than there is room for are not taken
        scores = np.where([len(columns) <= room for columns in candidates.points], scores, 0.0)
        best = float(scores.max(initial=0.0))
        if step is not None and step[0] >= best:
            atoms.append(step[1])
            room, step = room - 1, next(steps, None)
        elif best > 0.0:
            taken.append(int(np.argmax(scores)))
            candidates.take(taken[-1])
            room, scores = room - len(candidates.points[taken[-1]]), candidates.scores()
        else:
            break
    return atoms, np.array(taken, dtype=np.int64)


def verified_candidates(
    problem: DictionaryProblem, state: CompetitionState, sums: dict[str, np.ndarray], penalty: float
) -> CandidatePoints:
    """The candidates with their system on all rows, less what the working model's columns explain of it.

    With Phi those columns, w their last trial and s the negative slopes of the rows' losses there, the part of Q that
    they do not explain has the square Q'HQ - Q'HPhi (Phi'HPhi + D)^-1 Phi'HQ. Its slope is
    Q's - Q'HPhi (Phi'HPhi + D)^-1 (Phi's - D w): of other losses than the squared error a Newton step has not ended
    where Phi's is D w, and what is left to do on these columns is no merit of others.
    """
    if "cross" not in sums:
        return CandidatePoints(np.zeros((0, 0)), np.zeros((0, problem.n_models)), [])
    m = len(state.gram)
    beside, own = sums["cross"][:m], sums["cross"][m:]
    penalties = column_penalties(m, penalty)
    shares = solve_positive((state.gram + np.diag(penalties)).copy, beside)
    explained = beside.T @ shares
    slopes = sums["gradient"][m:] - shares.T @ (sums["gradient"][:m] - penalties[:, None] * state.trials[-1].T)
    columns, start = [], 0
    for number, source in enumerate(problem.sources):
        count, width = int(np.count_nonzero(state.candidate_source == number)), source.columns_a_point
        columns.append(start + np.arange(count)[:, None] + count * np.arange(width))
        start += count * width
    return CandidatePoints((own + own.T) / 2.0 - (explained + explained.T) / 2.0, slopes, columns)


def _most_candidates(problem: DictionaryProblem) -> int:
    """Columns of all candidates of a round."""
    room = max(problem.features_per_round, int(problem.growth * problem.n_features))
    return room * len(problem.sources)


def _largest(problem: DictionaryProblem) -> CompetitionState:
    """A state of as many columns as the rounds may find, of the dearest kind, for plans."""
    state, width = first_dictionary_state(problem), problem.n_features
    if not problem.sources:
        return replace(
            state,
            columns=np.repeat(state.columns, width + 1, axis=0),
            thresholds=np.repeat(state.thresholds, width + 1, axis=0),
            kinds=np.repeat(state.kinds, width + 1, axis=0),
            trials=np.zeros((len(state.penalties), problem.n_models, width + 1)),
        )
    # Landmarks take most to be mapped; otherwise it is waves.
    dearest = int(np.argmin([source.columns_a_point for source in problem.sources]))
    n_points = width // problem.sources[dearest].columns_a_point
    m = 1 + n_points * problem.sources[dearest].columns_a_point
    n_candidates = _most_candidates(problem) // problem.sources[dearest].columns_a_point
    return replace(
        state,
        points=np.zeros((n_points, problem.n_columns)),
        source=np.full(n_points, dearest),
        candidates=np.zeros((n_candidates, problem.n_columns)),
        candidate_source=np.full(n_candidates, dearest),
        trials=np.zeros((len(state.penalties), problem.n_models, m)),
    )
