"""Rounds over dictionaries: refit all coefficients, judge penalties on held-out rows, propose and take columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.features.step_projection import Factor
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.scale import scale_rows
from dkl.kernels.step_tiles import SHARED_SUMS, STEP_FLOPS
from dkl.methods.rounds.candidates import CandidatePoints
from dkl.methods.rounds.dictionary import SampleSlopes
from dkl.methods.rounds.loop import Rounds, best_round, bordered, reason_to_end
from dkl.methods.rounds.problem import (
    HISTORY,
    RoundsProblem,
    RoundsState,
    candidate_map,
    columns_known,
    first_state,
    model_map,
)
from dkl.methods.rounds.sums import RefitTask, SearchTask, refit_block, row_codes, search_block
from dkl.methods.steps.atoms import (
    codes_bytes,
    histogram_bytes,
    most_parents,
    pair_bytes,
    parents_of,
    scored_atoms,
    sign_of,
    with_atoms,
    with_first_atoms,
)
from dkl.protocols.arrays import Rows
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record, RowSample
from dkl.solvers.block_pivoting import signed_minimum
from dkl.solvers.systems import solve_positive

# Rows of the sample that dictionaries propose on, at most.
SEARCHED_ROWS = 10_000
# The lightest penalty of a trial: a lighter one changes a system by less than rounding.
LEAST_PENALTY = 1e-6
# The penalty of the constant, so that a system without rows has a solution.
CONSTANT_PENALTY = 1e-6
# Newton steps on the same columns at most, once all columns are there.
SETTLING = 20
# Seconds of rounds in memory over the seconds of their counted operations, and operations for each number of the
# sampled rows before the first round: from fits with 100, 200 and 400 steps to 100,000 to 2 million rows of 28 and 30
# columns.
_PACE, _BEGINS = 1.7, 5e4


class RoundsDriver(Rounds[RoundsProblem, RoundsState]):
    """Rounds over dictionaries, with two passes each.

    The "refit" pass sums the system of the working model, which is solved for several penalties. The "search" pass
    evaluates these trials on held-out rows and, at the slopes of one of them, sums histograms for steps and the columns
    of candidate points. The atoms and points with the largest scores join.

    The first pass draws the rows that thresholds are computed from and that dictionaries propose on. If the problem is
    `in_memory`, all rounds run on these rows without further passes. Steps are scored by histograms of all rows; a
    point that a dictionary proposed on the sample is verified on all rows before it competes with them, by the same
    score.
    """

    history = HISTORY
    reported = ("n_features", "held_out_loss")

    def init(self, problem: RoundsProblem) -> RoundsState:
        """A model of the constant alone."""
        return first_state(problem)

    def stopped(self, problem: RoundsProblem, state: RoundsState, why: str) -> RoundsState | None:
        """The state with the best round so far as its last; None before one has found a column."""
        return replace(state, message=state.message or why) if state.best.shape[1] > 1 else None

    def memory(self, problem: RoundsProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sampled rows, the systems, the histograms, and the searched rows' features."""
        width, candidates = problem.n_features + 1, _most_candidates(problem)
        mapped = 8 * min(SEARCHED_ROWS, problem.search_rows) * (width + candidates)
        return {
            "rows to search on": 2 * problem.search_rows * row_bytes,
            "systems of the working model": 4 * 8 * width**2 + 3 * 8 * (width + candidates) * candidates,
            "histograms": 2 * most_parents(problem) * histogram_bytes(problem) if problem.depth else 0,
            "bins of the rows": codes_bytes(problem),
            "tables of pairs of columns": pair_bytes(problem),
            "features of searched rows": 2 * mapped if problem.dictionaries else 0,
        }

    def plan(self, problem: RoundsProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass that draws rows, and, unless rounds run in memory, the largest pass of each phase."""
        sample = [_sample_record(problem)]
        if problem.in_memory:
            return [(sample, 1)]
        rounds = _most_rounds(problem) + problem.patience + problem.settling
        return [(sample, 1), *(([record], rounds) for record in _largest_records(problem))]

    def planned(self, problem: RoundsProblem) -> RoundsState:
        """The model of the constant alone, with which further rounds begin."""
        return self.init(problem)

    def driving(self, problem: RoundsProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of rounds in memory: refits at a third of the cost of the largest, searches at half of it."""
        if not problem.in_memory:
            return 0.0
        refit, search = (
            record.cost(min(problem.search_rows, n_rows), problem.n_columns).flops
            for record in _largest_records(problem)
        )
        begins = _BEGINS * min(problem.search_rows, n_rows) * problem.n_columns
        return (begins + _PACE * _most_rounds(problem) * (refit / 3.0 + search / 2.0)) / flops_per_second

    def _sample(self, problem: RoundsProblem, state: RoundsState) -> RowSample | None:
        if state.phase != "sample" and not problem.dictionaries:
            return None
        return _sample_record(problem)

    def _sums(self, problem: RoundsProblem, state: RoundsState) -> BlockSum | None:
        return None if state.phase == "sample" else _record(problem, state)

    def _begun(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        rows = self._rows.drawn
        state = replace(with_first_atoms(problem, state, rows), phase="refit")
        some = rows.X[:SEARCHED_ROWS]
        units = [one.unit(scale_rows(some, one.scaler, problem.dtype)) for one in problem.dictionaries]
        state = replace(state, units=np.array(units, dtype=np.float64))
        return self._played(problem, state) if problem.in_memory else state

    def _played(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        """The state after all rounds on the sample, whose values are binned once if the bins take little memory."""
        rows = self._rows.drawn
        codes = row_codes(rows.X, state.atom_map(), state.bins) if codes_bytes(problem) else None
        while not state.message:
            record = _record(problem, state)
            operands, task = record.operands, record.operands["task"]
            if isinstance(task, SearchTask):
                operands = {**operands, "task": replace(task, codes=codes)}
            state = self.step(problem, state, [record.function(rows, operands)])
        return state

    def _judged(
        self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
    ) -> tuple[RoundsState, bool]:
        """With the trial of the lowest held-out loss as the model, and a line of history for it."""
        weight = float(sums["weight"])
        losses = sums["held_out"] / weight if weight > 0.0 else np.arange(len(state.trials), dtype=np.float64)
        best = int(np.argmin(losses))
        loss, penalty, coefficients = float(losses[best]), state.penalties[best], state.trials[best]
        line = np.array([[state.trials.shape[2] - 1, loss, penalty]])
        history = np.concatenate([state.history, line])
        is_best = best_round(_losses(history)) == len(history) - 1
        judged = replace(
            state,
            searched_at=float(state.penalties[-1]),
            coefficients=coefficients,
            # the chosen penalty comes last, since histograms and candidates are summed at the slopes of the last trial
            penalties=np.array([max(penalty / 3.0, LEAST_PENALTY), penalty * 3.0, penalty]),
            history=history,
            best=coefficients if is_best else state.best,
            best_sizes=state.known if is_best else state.best_sizes,
        )
        return judged, True

    def _extended(self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]) -> RoundsState:
        """With the atoms and points of the largest scores in the model; or with the message that ends the rounds."""
        why = why_to_stop(problem, state)
        atoms, chosen = ([], np.zeros(0, np.int64)) if why else _chosen(problem, state, sums)
        if not atoms and not len(chosen) and not _settles(problem, state):
            return replace(state, message=why or "no dictionary has a further column that lowers the loss")
        return replace(
            with_atoms(state, atoms),
            phase="refit",
            points=np.concatenate([state.points, state.candidates[chosen]]),
            source=np.concatenate([state.source, state.candidate_source[chosen]]),
            candidates=state.candidates[:0],
            candidate_source=state.candidate_source[:0],
        )

    def _refitted(self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]) -> RoundsState:
        """With the trials of the next pass: solutions w' of (G + D) w' = G w + g for each of the penalties in D."""
        known = columns_known(problem, state, *state.known)
        m, K = len(known), problem.n_models
        if problem.loss.is_square:
            gram, gradient = bordered(state.gram, known, sums["gram"]), np.zeros((m, K))
            gradient[known], gradient[~known] = state.gradient, sums["gradient"]
            right, start = gradient, state.coefficients
        else:
            gram, gradient, start = sums["gram"], sums["gradient"], np.zeros((K, m))
            start[:, known] = state.coefficients
            right = gram @ start.T + gradient
        return replace(
            state,
            phase="search",
            coefficients=start,
            trials=_solved_trials(problem, state, gram, right),
            gram=gram,
            gradient=gradient,
            known=np.array([state.n_atoms, len(state.points)]),
        )

    def _proposed(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        """With the candidates that each dictionary proposes for the slopes of the last trial on rows of the sample."""
        room = _room(problem, state) if problem.dictionaries else 0
        found, numbers = [np.zeros((0, problem.n_columns))], [np.zeros(0, np.int64)]
        if room > 0:
            sample = self._rows.drawn
            rows = sample.rows(np.arange(min(SEARCHED_ROWS, sample.n_rows)))
            y, weight, _ = problem.targets(rows)
            loss = problem.loss
            scores = map_rows(rows.X, model_map(problem, state), problem.dtype).astype(np.float64) @ state.trials[-1].T
            s = -loss.slope(y, scores) * weight[:, None]
            h = weight * loss.curvature(y, scores).max(axis=1)
            learned = np.flatnonzero(weight > 0.0)
            for number, dictionary in enumerate(problem.dictionaries if len(learned) else ()):
                X = scale_rows(rows.X[learned], dictionary.scaler, problem.dtype)
                count = max(1, room // dictionary.columns_a_point)
                # a large prime apart, so that the streams of two rounds, and of fits with neighbouring seeds, differ
                seed = (problem.seed + 7919 * len(state.history) + 104_729 * number) % 2**31
                points = dictionary.propose(SampleSlopes(X, s[learned], h[learned]), count, seed)
                found.append(points)
                numbers.append(np.full(len(points), number))
        return replace(state, candidates=np.concatenate(found), candidate_source=np.concatenate(numbers))


def _sample_record(problem: RoundsProblem) -> RowSample:
    """The sample that thresholds are computed from, and that dictionaries propose on."""
    return RowSample("rows to search on", problem.search_rows, problem.seed)


def _record(problem: RoundsProblem, state: RoundsState) -> BlockSum:
    """The record of the next pass."""
    feature_map, K, d = model_map(problem, state), problem.n_models, problem.n_columns
    m = feature_map.n_features
    operands: dict[str, Any] = {"targets": problem.targets, "feature_map": feature_map}
    each = mapping_flops(d, feature_map)
    if state.phase == "refit":
        known = columns_known(problem, state, *state.known)
        # the system of the squared error does not depend on the model: only the columns that joined are missing
        is_missing, start = ~known if problem.loss.is_square else np.ones(m, bool), np.zeros((K, m))
        if not problem.loss.is_square:
            start[:, known] = state.coefficients
        n_new = int(np.count_nonzero(is_missing))
        # without points the columns that joined are the last ones: a slice, which indexes without a copy
        new = np.flatnonzero(is_missing) if problem.dictionaries else slice(m - n_new, None)
        operands["task"] = RefitTask(problem.loss, start, new, problem.dtype)
        accumulators = {"gram": Accumulator((m, n_new)), "gradient": Accumulator((n_new, K))}
        each += 2.0 * m * n_new
        function = refit_block
    else:
        parents, candidates = parents_of(problem, state), candidate_map(problem, state)
        # candidates are compared with the working model's columns at the curvatures that its system was summed at
        base = None if problem.loss.is_square or candidates is None else state.coefficients
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
    nbytes = sum(accumulator.nbytes for accumulator in accumulators.values())

    def cost(rows: int, columns: int) -> Cost:
        return Cost(flops=each * rows, scratch_bytes=nbytes)

    return BlockSum(f"rounds: {state.phase}", function, accumulators, operands, cost=cost)


def _solved_trials(problem: RoundsProblem, state: RoundsState, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solutions of (G + D) w = right for each of the penalties, (T, K, m); the first columns are the atoms.

    Where columns have signs, it is the minimum of each model's quadratic over coefficients that have the signs of their
    atoms. Factors of atoms are never negative and rise in their columns: with coefficients of one sign so does the
    model. Columns that are no atoms have none.
    """
    m, signs = len(gram), None
    if problem.signs is not None:
        signs = np.zeros(m, np.int64)
        signs[: state.n_atoms] = [sign_of(columns, problem.signs) for columns in state.columns]
    trials = []
    for penalty in state.penalties:
        system = gram + np.diag(_column_penalties(m, penalty))
        if signs is None:
            trials.append(solve_positive(system.copy, right).T)
        else:
            trials.append(np.stack([signed_minimum(system, -one, signs) for one in right.T]))
    return np.stack(trials)


def _column_penalties(m: int, penalty: float) -> np.ndarray:
    """The penalties D of m columns; the first column is the constant."""
    penalties = np.full(m, penalty)
    penalties[0] = CONSTANT_PENALTY
    return penalties


def _room(problem: RoundsProblem, state: RoundsState) -> int:
    """Columns that the next round adds at most."""
    m = state.trials.shape[2]
    return min(max(problem.features_per_round, int(problem.growth * m)), problem.n_features + 1 - m)


def why_to_stop(problem: RoundsProblem, state: RoundsState) -> str:
    """Why rounds end: all columns are there, no gain on held-out rows for long, or enough rounds; empty to go on."""
    if _room(problem, state) < max((one.columns_a_point for one in problem.dictionaries), default=1):
        return "found as many as asked for"
    return reason_to_end(_losses(state.history), problem.patience, problem.rounds, len(state.history))


def _losses(history: np.ndarray) -> np.ndarray:
    """The held-out loss of each round."""
    return history[:, HISTORY.index("held_out_loss")]


def _settles(problem: RoundsProblem, state: RoundsState) -> bool:
    """Whether the working model takes a further Newton step on the same columns, which it does while steps gain."""
    sizes, losses = state.history[:, HISTORY.index("n_features")], _losses(state.history)
    has_gained = best_round(losses) == len(losses) - 1
    return not problem.loss.is_square and has_gained and np.sum(sizes == sizes[-1]) <= problem.settling


def _chosen(
    problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
) -> tuple[list[tuple[Factor, ...]], np.ndarray]:
    """The atoms and the candidates that this round takes: each time the one with the largest score a column."""
    candidates = verified_candidates(problem, state, sums, state.searched_at)
    steps = scored_atoms(problem, state, sums["histograms"]) if problem.depth else iter(())
    room, atoms, taken = _room(problem, state), list[tuple[Factor, ...]](), list[int]()
    step, scores = next(steps, None), candidates.scores()
    while room > 0:
        # a point with more columns than may still join is not taken
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
    problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray], penalty: float
) -> CandidatePoints:
    """The candidates with their system on all rows, minus the part that the working model's columns explain.

    With Phi those columns, w their last trial and s the negative slopes of the rows' losses there, the part of Q that
    they do not explain has the square Q'HQ - Q'HPhi (Phi'HPhi + D)^-1 Phi'HQ. Its slope is
    Q's - Q'HPhi (Phi'HPhi + D)^-1 (Phi's - D w): of other losses than the squared error a Newton step has not ended
    where Phi's is D w, and what is left to do on these columns is no merit of others.
    """
    if "cross" not in sums:
        return CandidatePoints(np.zeros((0, 0)), np.zeros((0, problem.n_models)), [])
    m = len(state.gram)
    beside, own = sums["cross"][:m], sums["cross"][m:]
    penalties = _column_penalties(m, penalty)
    shares = solve_positive((state.gram + np.diag(penalties)).copy, beside)
    explained = beside.T @ shares
    slopes = sums["gradient"][m:] - shares.T @ (sums["gradient"][:m] - penalties[:, None] * state.trials[-1].T)
    columns, start = [], 0
    for number, dictionary in enumerate(problem.dictionaries):
        count, width = int(np.count_nonzero(state.candidate_source == number)), dictionary.columns_a_point
        columns.append(start + np.arange(count)[:, None] + count * np.arange(width))
        start += count * width
    return CandidatePoints((own + own.T) / 2.0 - (explained + explained.T) / 2.0, slopes, columns)


def _most_candidates(problem: RoundsProblem) -> int:
    """Columns of all candidates of a round."""
    room = max(problem.features_per_round, int(problem.growth * problem.n_features))
    return room * len(problem.dictionaries)


def _most_rounds(problem: RoundsProblem) -> int:
    """Rounds that add columns, at most."""
    return -(-problem.n_features // problem.features_per_round)


def _largest_records(problem: RoundsProblem) -> list[BlockSum]:
    """The records of a refit and a search with all columns, of the dictionary whose points cost most."""
    state, width = first_state(problem), problem.n_features
    if not problem.dictionaries:
        m = width + 1
        columns, thresholds, kinds = (
            np.repeat(part, m, axis=0) for part in (state.columns, state.thresholds, state.kinds)
        )
        largest = replace(state, columns=columns, thresholds=thresholds, kinds=kinds)
    else:
        # Landmarks take most to be mapped; otherwise it is waves.
        parts = [one.columns_a_point for one in problem.dictionaries]
        dearest = int(np.argmin(parts))
        n_points, n_candidates = (n // parts[dearest] for n in (width, _most_candidates(problem)))
        m = 1 + n_points * parts[dearest]
        largest = replace(
            state,
            points=np.zeros((n_points, problem.n_columns)),
            source=np.full(n_points, dearest),
            candidates=np.zeros((n_candidates, problem.n_columns)),
            candidate_source=np.full(n_candidates, dearest),
        )
    largest = replace(largest, trials=np.zeros((len(state.penalties), problem.n_models, m)))
    return [_record(problem, replace(largest, phase=phase)) for phase in ("refit", "search")]
