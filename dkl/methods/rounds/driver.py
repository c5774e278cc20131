"""Rounds over dictionaries: refit all coefficients, judge penalties on held-out rows, propose and add columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from dkl.features.feature_map import FeatureMap, combined_map
from dkl.features.frequencies import further_seed
from dkl.features.step_projection import Factor
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.scale import scale_rows
from dkl.kernels.step_tiles import SHARED_SUMS, STEP_FLOPS, collected_bytes
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.methods.rounds.dictionary import CandidatePoints, SampleSlopes
from dkl.methods.rounds.loop import (
    BETWEEN_ROUNDS,
    GRAM_ROWS,
    GramChange,
    Histograms,
    Rounds,
    RoundTask,
    best_round,
    bordered,
    padded_models,
    reason_to_end,
    row_codes,
)
from dkl.methods.rounds.problem import (
    RoundsProblem,
    RoundsState,
    are_old_columns,
    candidate_map,
    first_state,
    model_map,
)
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
from dkl.process import usable_cores
from dkl.protocols.arrays import Rows
from dkl.protocols.records import BlockSum, Cost, Record, RowSample
from dkl.solvers.block_pivoting import signed_minimum
from dkl.solvers.systems import solve_positive

# The most rows of the sample on which dictionaries propose points.
SEARCHED_ROWS = 10_000
# The smallest penalty tried: a smaller one changes a system by less than rounding.
LEAST_PENALTY = 1e-6
# The penalty of the constant, so that a system without rows has a solution.
CONSTANT_PENALTY = 1e-6
# The most Newton steps with the same columns, once all columns have been added.
SETTLING = 20
# Rounds in memory take 1.7 times the seconds of their counted operations; before the first round there are this many
# operations for each number of the sampled rows: from fits with 100, 200 and 400 steps to 100,000 to 2 million rows of
# 28 and 30 columns.
_PACE, _BEGINS = 1.7, 5e4
# Least rows of a part of the sample that one thread sums, so that the trials of a choice, on some 16,000 rows, keep two
# cores at work: 100 steps on 28 columns keep the calling thread .65 of the time that it needs for all rows alone, at as
# many processor seconds. The most parts, and the most bytes of their sums.
_PART_ROWS, _MOST_PARTS, _PARTS_BYTES = 5_000, 8, 1 << 26


class RoundsDriver(Rounds[RoundsProblem, RoundsState]):
    """Rounds over dictionaries, with two passes each.

    The "refit" pass sums the linear system of the working model, which is solved for several penalties. The "search"
    pass evaluates these trials on held-out rows and, at the slopes of one of them, sums histograms for steps and the
    columns of candidate points. The atoms and points with the largest scores are added.

    The first pass samples the rows from which thresholds are computed and on which dictionaries propose. If the problem
    is `in_memory`, all rounds run on these rows without further passes. Steps are scored by histograms of all rows;
    points that dictionaries propose on the sample are verified on all rows, and compete with steps by the same score.
    """

    reported = ("n_features", "held_out_loss")
    pass_names: ClassVar[Mapping[str, str]] = {"refit": "rounds: refit", "search": "rounds: search"}

    def init(self, problem: RoundsProblem) -> RoundsState:
        """A model of the constant only."""
        return first_state(problem)

    def stopped(self, problem: RoundsProblem, state: RoundsState, why: str) -> RoundsState | None:
        """The state if a subscriber stops the rounds, with the best round so far; None before a column was added."""
        return replace(state, message=state.message or why) if state.best.shape[1] > 1 else None

    def memory(self, problem: RoundsProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sampled rows, the systems, the histograms, and the features of searched rows."""
        width, candidates = problem.n_features + 1, _most_candidates(problem)
        mapped = 8 * min(SEARCHED_ROWS, problem.search_rows) * (width + candidates)
        return {
            "rows to search on": 2 * problem.search_rows * row_bytes,
            "systems of the working model": 4 * 8 * width**2 + 3 * 8 * (width + candidates) * candidates,
            "histograms": 2 * most_parents(problem) * histogram_bytes(problem) if problem.depth else 0,
            "bins of the rows": codes_bytes(problem),
            "targets of the rows": 8 * (problem.n_models + 2) * problem.search_rows if problem.in_memory else 0,
            "tables of pairs of columns": pair_bytes(problem),
            "features of searched rows": 2 * mapped if problem.dictionaries else 0,
            "sums of parts of the rows": (self._n_parts(problem) - 1) * self._most_sum_bytes(problem),
            "rows collected by threads": self._n_parts(problem) * max(_collected_bytes(problem), _gram_bytes(problem)),
        }

    def plan(self, problem: RoundsProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The pass that samples rows, and, unless rounds run in memory, the largest pass of each phase."""
        sample = [_sample_record(problem)]
        if problem.in_memory:
            return [(sample, 1)]
        rounds = _most_rounds(problem) + problem.patience + problem.settling
        return [(sample, 1), *(([record], rounds) for record in self._largest_records(problem))]

    def planned(self, problem: RoundsProblem) -> RoundsState:
        """A model of the constant only, with which a plan continues."""
        return self.init(problem)

    def driving(self, problem: RoundsProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of rounds in memory: refits at a third of the cost of the largest, searches at half of it."""
        if not problem.in_memory:
            return 0.0
        refit, search = (
            record.cost(min(problem.search_rows, n_rows), problem.n_columns).flops
            for record in self._largest_records(problem)
        )
        begins = _BEGINS * min(problem.search_rows, n_rows) * problem.n_columns
        flops = begins + _PACE * _most_rounds(problem) * (refit / 3.0 + search / 2.0)
        return flops / min(usable_cores(), self._n_parts(problem)) / flops_per_second

    def _largest_records(self, problem: RoundsProblem) -> list[BlockSum]:
        """The records of a refit and a search with all columns, for the dictionary whose points cost most."""
        state, width = first_state(problem), problem.n_features
        if not problem.dictionaries:
            m = width + 1
            columns, thresholds, kinds = (
                np.repeat(part, m, axis=0) for part in (state.columns, state.thresholds, state.kinds)
            )
            largest = replace(state, columns=columns, thresholds=thresholds, kinds=kinds)
        else:
            # landmarks cost most to map, else waves
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
        trials = np.zeros((len(state.penalties), problem.n_models, m))
        search = replace(largest, phase="search", trials=trials, coefficients=trials[0])
        return [self._sums(problem, replace(largest, phase="refit")), self._sums(problem, search)]

    def _sample(self, problem: RoundsProblem, state: RoundsState) -> RowSample | None:
        if state.phase != "sample" and not problem.dictionaries:
            return None
        return _sample_record(problem)

    def _task(self, problem: RoundsProblem, state: RoundsState) -> tuple[RoundTask, FeatureMap]:
        feature_map, K = model_map(problem, state), problem.n_models
        m, is_square = feature_map.n_features, problem.loss.is_square
        if state.phase == "refit":
            is_old = are_old_columns(problem, state, *state.known)
            added, start, whole = np.flatnonzero(~is_old), np.zeros((K, m)), None
            new: np.ndarray | slice = slice(m, m)
            if is_square and is_old.any():
                # the system of the squared error does not depend on the model, so only its new columns are summed;
                # these are the last ones of a model without points
                new = added if problem.dictionaries else slice(m - len(added), m)
            else:
                start = padded_models(state.coefficients, is_old, m)
                whole = GramChange(slice(0, m), None, ((0, m),), GRAM_ROWS)
            return RoundTask(problem.loss, np.zeros((0, K, m)), new, problem.dtype, at=start, change=whole), feature_map
        candidates, parents = candidate_map(problem, state), parents_of(problem, state)
        feature_map = feature_map if candidates is None else combined_map([feature_map, candidates])
        wide, old = feature_map.n_features, np.arange(m)
        task = RoundTask(
            problem.loss,
            padded_models(state.trials.reshape(-1, m), old, wide).reshape(-1, K, wide),
            slice(m, wide),
            problem.dtype,
            # candidates use the curvatures at which the working model's system was summed, so that both fit together
            curved=None if is_square or candidates is None else padded_models(state.coefficients, old, wide),
            histograms=Histograms(parents, state.bins) if len(parents) else None,
        )
        return task, feature_map

    def _cost(self, problem: RoundsProblem, task: RoundTask, feature_map: FeatureMap) -> Callable[[int, int], Cost]:
        (n_trials, K, width), d = task.trials.shape, problem.n_columns
        products = task.n_new if task.change is None else width
        each = mapping_flops(d, feature_map) + 2.0 * width * (products + K * (1 + n_trials))
        if task.histograms is not None:
            each += STEP_FLOPS * len(task.histograms.parents) * d * (1 + K)
        scratch = sum(8 * math.prod(shape) for shape in task.shapes.values())
        scratch += _collected_bytes(problem) if n_trials else _gram_bytes(problem)
        return lambda rows, columns: Cost(flops=each * rows, scratch_bytes=scratch)

    def _first_state(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        rows = self._rows.block.drawn_from(problem.n_rows)
        state = replace(with_first_atoms(problem, state, rows), phase="refit")
        some = rows.X[:SEARCHED_ROWS]
        units = [one.unit(scale_rows(some, one.scaler, problem.dtype)) for one in problem.dictionaries]
        state = replace(state, units=np.array(units, dtype=np.float64))
        return self._state_after_rounds(problem, state) if problem.in_memory else state

    def _state_after_rounds(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        """The state after all rounds on the sample, of which each core sums a part.

        Targets are computed once, and values are binned once if bins fit in memory.
        """
        rows = self._rows.block.drawn_from(problem.n_rows)
        parts = [rows.rows(part) for part in spans(rows.n_rows, -(-rows.n_rows // self._n_parts(problem)))]
        targets = Crew().map(problem.targets, parts)
        codes: list[np.ndarray | None] = [None] * len(parts)
        if codes_bytes(problem):
            codes = Crew().map(lambda part: row_codes(part.X, state.atom_map(), state.bins), parts)
        while not state.message:
            record = self._sums(problem, state)

            def of_part(part: int, record: BlockSum = record) -> Mapping[str, np.ndarray]:
                task: RoundTask = record.operands["task"]
                if task.histograms is not None:
                    task = replace(task, histograms=replace(task.histograms, codes=codes[part]))
                operands = {**record.operands, "task": task, "targets": lambda block: targets[part]}
                return record.function(parts[part], operands)

            sums = Crew().map(of_part, range(len(parts)))
            total = {name: sum((one[name] for one in sums[1:]), start=first) for name, first in sums[0].items()}
            state = self.step(problem, state, [total])
        return state

    def _n_parts(self, problem: RoundsProblem) -> int:
        """The number of parts of the sample that threads sum, from the shapes alone; 1 if passes sum all rows."""
        most = min(problem.search_rows // _PART_ROWS, _MOST_PARTS) if problem.in_memory else 1
        return max(1, min(most, _PARTS_BYTES // self._most_sum_bytes(problem)))

    def _most_sum_bytes(self, problem: RoundsProblem) -> int:
        """Bytes of the sums of the largest record."""
        return max(
            sum(accumulator.nbytes for accumulator in record.accumulators.values())
            for record in self._largest_records(problem)
        )

    def _judged_state(
        self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
    ) -> tuple[RoundsState, bool]:
        """The state with the trial of the lowest held-out loss as its model, and a line of history for it."""
        weight = float(sums["held_weight"])
        losses = sums["held_out"] / weight if weight > 0.0 else np.arange(len(state.trials), dtype=np.float64)
        best = int(np.argmin(losses))
        loss, penalty, coefficients = float(losses[best]), state.penalties[best], state.trials[best]
        line = np.array([[state.trials.shape[2] - 1, loss, penalty]])
        state = replace(state, coefficients=coefficients, history=np.concatenate([state.history, line]))
        if best_round(state.series("held_out_loss")) == len(state.history) - 1:
            state = replace(state, best=coefficients, best_sizes=state.known)
        return state, True

    def _extended_state(
        self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
    ) -> RoundsState:
        """The state with the atoms and points of the largest scores added, or with the message that ends the rounds."""
        why = why_to_stop(problem, state)
        atoms, chosen = ([], np.zeros(0, np.int64)) if why else _best_columns(problem, state, sums)
        if not atoms and not len(chosen) and not _settles(problem, state):
            return replace(state, message=why or "no dictionary has a further column that lowers the loss")
        penalty = float(state.series("penalty")[-1])
        return replace(
            with_atoms(state, atoms),
            phase="refit",
            # the chosen penalty is the last one, since histograms and candidates are summed at the slopes of the last
            # trial
            penalties=np.array([max(penalty / 3.0, LEAST_PENALTY), penalty * 3.0, penalty]),
            points=np.concatenate([state.points, state.candidates[chosen]]),
            source=np.concatenate([state.source, state.candidate_source[chosen]]),
            candidates=state.candidates[:0],
            candidate_source=state.candidate_source[:0],
        )

    def _refitted_state(
        self, problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
    ) -> RoundsState:
        """The state with new trials: solutions w' of (G + D) w' = G w + g for each of the penalties in D."""
        is_old = are_old_columns(problem, state, *state.known)
        start, gradient = padded_models(state.coefficients, is_old, len(is_old)), sums["gradient"].T
        gram = sums["change_0"] if "change_0" in sums else bordered(state.gram, is_old, sums["cross"])
        # the system of the squared error is summed at the model 0, and all others at the present one
        right = gradient if problem.loss.is_square else gram @ start.T + gradient
        return replace(
            state,
            phase="search",
            coefficients=start,
            trials=_solved_trials(problem, state, gram, right),
            gram=gram,
            known=np.array([state.n_atoms, len(state.points)]),
        )

    def _state_with_candidates(self, problem: RoundsProblem, state: RoundsState) -> RoundsState:
        """The state with the points that each dictionary proposes for the slopes of the last trial, on sampled rows."""
        n_columns = _columns_to_add(problem, state) if problem.dictionaries else 0
        points_of, numbers = [np.zeros((0, problem.n_columns))], [np.zeros(0, np.int64)]
        if n_columns > 0:
            sample = self._rows.block.drawn_from(problem.n_rows)
            rows = sample.rows(np.arange(min(SEARCHED_ROWS, sample.n_rows)))
            y, weight, _ = problem.targets(rows)
            scores = map_rows(rows.X, model_map(problem, state), problem.dtype).astype(np.float64) @ state.trials[-1].T
            s = -problem.loss.slope(y, scores) * weight[:, None]
            h = weight * problem.loss.curvature(y, scores).max(axis=1)
            learned = np.flatnonzero(weight > 0.0)
            for number, dictionary in enumerate(problem.dictionaries if len(learned) else ()):
                X = scale_rows(rows.X[learned], dictionary.scaler, problem.dtype)
                count = max(1, n_columns // dictionary.columns_a_point)
                seed = further_seed(further_seed(problem.seed, number), len(state.history), BETWEEN_ROUNDS)
                points = dictionary.propose(SampleSlopes(X, s[learned], h[learned]), count, seed)
                points_of.append(points)
                numbers.append(np.full(len(points), number))
        return replace(state, candidates=np.concatenate(points_of), candidate_source=np.concatenate(numbers))


def _collected_bytes(problem: RoundsProblem) -> int:
    """Bytes of the rows that one thread collects for histograms."""
    shape = problem.n_columns, problem.bins, SHARED_SUMS + problem.n_models
    return collected_bytes(most_parents(problem), shape) if problem.depth else 0


def _gram_bytes(problem: RoundsProblem) -> int:
    """Bytes of the rows that one thread collects for products of all columns."""
    return GRAM_ROWS * (problem.n_features + 1) * np.dtype(problem.dtype).itemsize


def _sample_record(problem: RoundsProblem) -> RowSample:
    """The sample from which thresholds are computed, and on which dictionaries propose."""
    return RowSample("rows to search on", problem.search_rows, problem.seed)


def _solved_trials(problem: RoundsProblem, state: RoundsState, gram: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solutions of (G + D) w = right for each of the penalties, (T, K, m); the first columns are the atoms.

    With monotone columns it is the minimum of each model's quadratic over coefficients with the signs of their atoms.
    Factors of atoms are nonnegative and increase in their columns, so the model is monotone if coefficients have one
    sign. Columns other than atoms have no sign.
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


def _columns_to_add(problem: RoundsProblem, state: RoundsState) -> int:
    """The most columns that the next round may add."""
    m = state.trials.shape[2]
    return min(max(problem.features_per_round, int(problem.growth * m)), problem.n_features + 1 - m)


def why_to_stop(problem: RoundsProblem, state: RoundsState) -> str:
    """The reason to end: all columns found, too many rounds without a held-out gain, or too many in all; else ""."""
    if _columns_to_add(problem, state) < max((one.columns_a_point for one in problem.dictionaries), default=1):
        return "found as many as asked for"
    return reason_to_end(state.series("held_out_loss"), problem.patience, problem.rounds, len(state.history))


def _settles(problem: RoundsProblem, state: RoundsState) -> bool:
    """Whether a further Newton step on the same columns follows: while steps gain, and losses are not squares."""
    sizes, losses = state.series("n_features"), state.series("held_out_loss")
    has_gained = best_round(losses) == len(losses) - 1
    return not problem.loss.is_square and has_gained and np.sum(sizes == sizes[-1]) <= problem.settling


def _best_columns(
    problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]
) -> tuple[list[tuple[Factor, ...]], np.ndarray]:
    """The atoms and points that this round adds, greedily by the largest score for each column."""
    candidates = verified_candidates(problem, state, sums)
    steps = scored_atoms(problem, state, sums["histograms"]) if problem.depth else iter(())
    n_left, atoms, chosen = _columns_to_add(problem, state), list[tuple[Factor, ...]](), list[int]()
    step, scores = next(steps, None), candidates.scores()
    while n_left > 0:
        # a point with more columns than may still be added is skipped
        scores = np.where([len(columns) <= n_left for columns in candidates.points], scores, 0.0)
        best = float(scores.max(initial=0.0))
        if step is not None and step[0] >= best:
            atoms.append(step[1])
            n_left, step = n_left - 1, next(steps, None)
        elif best > 0.0:
            chosen.append(int(np.argmax(scores)))
            candidates.take(chosen[-1])
            n_left, scores = n_left - len(candidates.points[chosen[-1]]), candidates.scores()
        else:
            break
    return atoms, np.array(chosen, dtype=np.int64)


def verified_candidates(problem: RoundsProblem, state: RoundsState, sums: Mapping[str, np.ndarray]) -> CandidatePoints:
    """The candidates with their system on all rows, minus the part that the working model's columns explain.

    Phi are those columns, w their last trial and s the negative slopes of the rows' losses there. The part of Q that
    they do not explain has the square Q'HQ - Q'HPhi (Phi'HPhi + D)^-1 Phi'HQ and the slope Q's - Q'HPhi (Phi'HPhi +
    D)^-1 (Phi's - D w). For losses other than the squared error Phi's is not yet D w after a Newton step; the
    difference must not raise the score of candidates.
    """
    if "cross" not in sums:
        return CandidatePoints(np.zeros((0, 0)), np.zeros((0, problem.n_models)), [])
    m = len(state.gram)
    with_model, own = sums["cross"][:m], sums["cross"][m:]
    penalties = _column_penalties(m, state.penalties[-1])
    shares = solve_positive((state.gram + np.diag(penalties)).copy, with_model)
    explained = with_model.T @ shares
    gradient = sums["gradient"].T
    slopes = gradient[m:] - shares.T @ (gradient[:m] - penalties[:, None] * state.trials[-1].T)
    columns, start = [], 0
    for number, dictionary in enumerate(problem.dictionaries):
        count, width = int(np.count_nonzero(state.candidate_source == number)), dictionary.columns_a_point
        columns.append(start + np.arange(count)[:, None] + count * np.arange(width))
        start += count * width
    return CandidatePoints((own + own.T) / 2.0 - (explained + explained.T) / 2.0, slopes, columns)


def _most_candidates(problem: RoundsProblem) -> int:
    """The most columns of all candidates of a round."""
    n_columns = max(problem.features_per_round, int(problem.growth * problem.n_features))
    return n_columns * len(problem.dictionaries)


def _most_rounds(problem: RoundsProblem) -> int:
    """The most rounds that add columns."""
    return -(-problem.n_features // problem.features_per_round)
