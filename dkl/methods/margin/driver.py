"""Fully corrective rounds: a pass finds where the working model errs; the best features join; a Newton step refits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dkl.kernels.blas import one_blas_thread
from dkl.methods.frequency_search.peak_search import grown_sample, pair_potentials
from dkl.methods.frequency_search.searched_rows import KEPT_BYTES, SearchedRows
from dkl.methods.margin.problem import HISTORY, CorrectiveProblem, CorrectiveState
from dkl.methods.margin.round import most_candidates, round_record, sample_record, spread, trimmed, with_gram
from dkl.methods.margin.working_model import WorkingSystem, refit
from dkl.methods.rounds.loop import Rounds
from dkl.protocols.arrays import Rows
from dkl.protocols.records import BlockSum, Record, RowSample
from dkl.solvers.systems import systems_at_once

# operations for each searched row and point: climbing from several starts, and the duals of each round, of features
# that are kept in memory and of those that are mapped anew
_SEARCHING, _SEARCHING_ANEW = 1e4, 2.3e4


class CorrectiveDriver(Rounds[CorrectiveProblem, CorrectiveState]):
    """Column generation for a kernel machine: one pass a round.

    A pass evaluates the working model on all rows: its loss, the potentials of the candidates under its dual, and the
    Gram columns that a Newton step on old and new features needs. It also draws the sample of the next search.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 2, with the dual of the best machine on the
    features so far in place of one projected step (fully corrective Frank-Wolfe).

    Parameters
    ----------
    kept_bytes : int
        Features of the searched rows that stay in memory between rounds, at most.
    """

    history = HISTORY
    heard = ("n_features", "loss", "held_out_loss", "duality_gap")

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._rows = SearchedRows(kept_bytes)

    def init(self, problem: CorrectiveProblem) -> CorrectiveState:
        """No feature but those given, and candidates that nobody searched for."""
        space = problem.space
        points = space.none if problem.start is None else problem.start
        width = problem.parts * len(points) + 1
        count = max(2, int(problem.schedule.candidates * problem.schedule.first))
        candidates = space.start(count, problem.seed)
        empty = np.zeros((problem.n_models, width))
        return CorrectiveState(
            points=points,
            candidates=candidates,
            sampled=np.zeros(len(candidates)),
            coefficients=empty,
            base=empty,
            base_loss=np.inf,
            gram=np.zeros((width, width)),
            gram_at=np.zeros((0, 0)),
            history=np.zeros((0, len(HISTORY))),
            searches=np.zeros((0, 3), np.int64),
            sample_rows=problem.sample_rows,
            kept=len(points),
            limit=max(problem.n_points, len(points)),
        )

    def step(self, problem: CorrectiveProblem, state: CorrectiveState, results: Sequence[Any]) -> CorrectiveState:
        """Choose among the verified candidates, refit, and search the next ones."""
        with one_blas_thread():
            return super().step(problem, state, results)

    def stopped(self, problem: CorrectiveProblem, state: CorrectiveState, why: str) -> CorrectiveState | None:
        """The state with the points so far as its last; None before the first."""
        if state.n_points == 0:
            return None
        return replace(state, message=state.message or _message(state, why))

    def memory(self, problem: CorrectiveProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """The rows of the search with their features, the ascent, and the Gram matrix with its factor and its sums."""
        width, searched = problem.parts * problem.n_points + 1, min(problem.most_rows, n_rows)
        rows = self._rows.most_bytes(searched, row_bytes, width - 1, problem.dtype)
        most = max(_most_verified(problem, size) for size in planned_sizes(problem))
        ascent = problem.space.search_bytes(searched, most)
        solved = systems_at_once(problem.n_models, width)
        return {**rows, "chains that climb": ascent, "Gram matrices": (4 + solved) * 8 * width * width}

    def driving(self, problem: CorrectiveProblem, n_rows: int) -> float:
        """Operations of the searches, as fits on 10,000 to 200,000 searched rows took them."""
        searched = min(problem.most_rows, n_rows)
        kept = self._rows.most_bytes(searched, 0, problem.parts * problem.n_points, problem.dtype)
        is_kept = problem.parts * problem.n_points * searched * 4 <= kept["features of searched rows"]
        return (_SEARCHING if is_kept else _SEARCHING_ANEW) * searched * problem.n_points

    def plan(self, problem: CorrectiveProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """Rounds up to half the final size, and the last ones; steps that have to be halved come on top."""
        counts, space = planned_sizes(problem), problem.space
        half, last = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        settling = 1 + problem.schedule.settling
        # the best round on held-out rows may be one with fewer points, and these settle again
        tail = settling * (1 if problem.schedule.patience is None else 2)
        sample = RowSample("rows to search on", problem.sample_rows, problem.seed)
        passes: list[tuple[Sequence[Record], int]] = []
        for sizes, calls in [(half, len(half)), (last, len(last) + tail)]:
            if not sizes:
                continue
            # The largest pass of these: no round has more points or more candidates, and of both together there are
            # as many as there is room for. Points that nobody searched for take as much room as those of a search.
            most = max(_most_verified(problem, size) for size in sizes)
            points = space.start(sizes[-1], problem.seed)
            candidates = space.start(min(most, most_candidates(problem.parts, sizes[-1])), problem.seed)
            model = np.zeros((problem.n_models, problem.parts * len(points) + 1))
            largest = replace(
                self.init(problem), points=points, candidates=candidates, coefficients=model, gram_at=model[:1]
            )
            passes.append(([round_record(problem, largest), sample], calls))
        return passes

    def _sample(self, problem: CorrectiveProblem, state: CorrectiveState) -> RowSample | None:
        searches = not state.is_full and _wanted(problem, state)[0] > 0
        return sample_record(problem, state) if searches else None

    def _sums(self, problem: CorrectiveProblem, state: CorrectiveState) -> BlockSum:
        return round_record(problem, state)

    def _judged(
        self, problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray]
    ) -> tuple[CorrectiveState, bool]:
        """With the evaluated model in the history; a step that went up is halved, and the search may end."""
        state = with_gram(problem, replace(state, passes=state.passes + 1), sums)
        # the objective of the working model before the last Newton step, and where that step has led
        before = state.base_loss + _penalty(problem, state, state.base)
        now = float(np.sum(sums["loss"])) + _penalty(problem, state, state.coefficients)
        has_moved = not np.allclose(state.base, state.coefficients, rtol=1e-4, atol=0.0)
        if np.isfinite(before) and has_moved and now > before * (1.0 + 1e-6):
            # A convex loss is lower on the way: half the step is evaluated by the next pass, until it gains.
            return replace(state, coefficients=(state.base + state.coefficients) / 2.0), False
        state = _recorded(problem, state, sums, now)
        if not state.is_full:
            why = why_to_stop(problem, state)
        elif not _has_settled(problem, state, before, now):
            why = ""
        elif problem.schedule.patience is not None and not state.ended and state.kept != state.n_points:
            # the points of the best round settle anew, and end the rounds
            why = "held-out rows were best served by fewer"
        else:
            return replace(state, message=_message(state, state.ended or "found as many as asked for")), True
        if not why:
            return state, True
        left = trimmed(problem, state, why)
        # the sums are those of the larger model: the next pass evaluates what is left of it
        return left, left.n_points == state.n_points

    def _extended(
        self, problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray]
    ) -> CorrectiveState:
        """With the best candidates among the points, and the working model refitted on all of them."""
        # positions of the candidates that join: none in the first round, whose candidates nobody searched for
        joining = np.zeros(0, np.int64)
        if len(state.history) > 1 and not state.is_full:
            n_searched = len(state.candidates) - state.plain
            potentials = _potentials(problem, sums)[state.n_points :][:n_searched]
            k, _ = _wanted(problem, state)
            room = state.limit - state.n_points
            best = problem.space.distinct(state.candidates[:n_searched], potentials, k, room=room)
            # random draws are taken as they come: their potentials are not what they were drawn for
            joining = np.concatenate([best, np.arange(n_searched, len(state.candidates))])
        ridge = problem.ridge_of(state.n_points + len(joining) >= state.limit)
        model = WorkingSystem(state.coefficients, state.gram, problem.loss, problem.active, ridge)
        coefficients, base, gram = refit(model, sums, joining, parts=problem.parts, total_weight=problem.total_weight)
        points = np.concatenate([state.points, state.candidates[joining]])
        verified = _potentials(problem, sums)[state.n_points :]
        rows = state.sample_rows
        searched = joining[joining < len(state.candidates) - state.plain]
        if len(searched):
            # where potentials on all rows fall behind those of the sample, the search has followed its noise
            normal = pair_potentials(verified, sums["absolutes"], sums["squares"])
            rows = grown_sample(
                rows, state.sampled[searched], normal[searched], most=problem.most_rows, least=problem.schedule.trusted
            )
        left = np.delete(np.arange(len(state.candidates)), joining)
        if len(points) >= state.limit and problem.space.draws_plainly:
            # the highest says as much as all, and the last passes cost less
            left = left[np.argsort(-verified[left], kind="stable")[:1]]
        return replace(
            state,
            points=points,
            # those that do not join still bound what no feature may exceed
            candidates=state.candidates[left],
            sampled=state.sampled[left[left < len(state.sampled)]],
            plain=0,
            coefficients=coefficients,
            base=base,
            gram=gram,
            gram_at=spread(state.gram_at, state.n_points, len(joining), problem.parts),
            sample_rows=rows,
            n_searched=state.n_searched + len(searched),
            settled=state.settled + state.is_full,
        )

    def _proposed(self, problem: CorrectiveProblem, state: CorrectiveState) -> CorrectiveState:
        """With new candidates: from the duals of the refitted model on the rows of the sample, and random draws."""
        room = state.limit - state.n_points
        if room <= 0:
            return state
        # a large prime apart, so that the streams of two rounds, and of fits with neighbouring seeds, differ
        seed = (problem.seed + 7919 * state.passes) % 2**31
        wanted, drawn = _wanted(problem, state)
        candidates, sampled = problem.space.none, np.zeros(0)
        if wanted:
            count, _, age = self._rows.key
            state = replace(state, searches=np.vstack([state.searches, [count, age, state.n_points]]))
            X, S, weight = sample_duals(problem, state, self._rows)
            count = max(wanted, int(np.ceil(problem.schedule.candidates * wanted)))
            if len(S):
                candidates, potentials = problem.space.search(X, S, count, seed, room=room, weight=weight)
                squares = np.sum(S**2 if weight is None else S**2 / weight[:, None], axis=0)
                sampled = pair_potentials(potentials, np.abs(S).sum(axis=0), squares)
            elif state.n_points == 0:
                # nothing to learn, and a map has at least one feature
                candidates, sampled = problem.space.start(1, seed), np.zeros(1)
        # where all points are random draws, they are those of `RandomFeatures`
        is_first = state.n_points == 0 and problem.schedule.plain_share == 1.0
        random = problem.space.plain(drawn, problem.seed if is_first else seed)
        return replace(state, candidates=np.concatenate([candidates, random]), sampled=sampled, plain=len(random))


def why_to_stop(problem: CorrectiveProblem, state: CorrectiveState) -> str:
    """Why the search for points ends, so that the model on those that are there settles; empty to go on.

    It ends as soon as

    - the estimated duality gap, as a share of the objective, is at most `tol`; or
    - the loss on held-out rows has not been lower for `patience` rounds; or
    - `rounds` rounds were made (the first pass is none: it adds no point); or
    - nothing is left to choose from, as in a finite family whose features are all taken.
    """
    schedule, rounds = problem.schedule, len(state.history)
    gap = state.series("duality_gap")[-1]
    if schedule.tol is not None and state.n_points and gap <= schedule.tol:
        return f"the estimated duality gap fell to {gap:.1e}"
    since_best = rounds - 1 - _best_round(state.series("held_out_loss"))
    if schedule.patience is not None and state.n_points and since_best >= schedule.patience:
        return f"no lower loss on held-out rows in {schedule.patience} rounds"
    if schedule.rounds is not None and rounds - 1 > schedule.rounds:
        return f"ended after {schedule.rounds} rounds"
    return "" if len(state.candidates) else "there are no more points to choose from"


def _has_settled(problem: CorrectiveProblem, state: CorrectiveState, before: float, now: float) -> bool:
    """Whether the model on all points is done: `settling` Newton steps, or one of a share of at most `least_gain`.

    `before` and `now` are the objective before the last step and after it.
    """
    schedule = problem.schedule
    gains_little = state.settled > 0 and before - now <= schedule.least_gain * before
    return state.settled >= schedule.settling or (schedule.least_gain > 0.0 and gains_little)


def planned_sizes(problem: CorrectiveProblem) -> list[int]:
    """How many points there are before each round."""
    sizes = [0 if problem.start is None else len(problem.start)]
    while sizes[-1] < problem.n_points:
        sizes.append(sizes[-1] + _addition(problem, sizes[-1], problem.n_points))
    most = problem.schedule.rounds
    return sizes if most is None else sizes[: most + 1]


def _penalty(problem: CorrectiveProblem, state: CorrectiveState, coefficients: np.ndarray) -> float:
    """ridge m / 2 |w|^2 of the m points' coefficients; the intercept, which comes last, is free."""
    ridge = problem.ridge_of(state.is_full) * max(1, state.n_points)
    return 0.5 * ridge * float(np.sum(coefficients[:, :-1] ** 2))


def _recorded(
    problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray], objective: float
) -> CorrectiveState:
    """With a line of history for the evaluated model, whose penalised loss is `objective`."""
    loss = float(np.sum(sums["loss"]))
    potentials = _potentials(problem, sums)
    # The dual of the machine over all features: sum of -conjugate, less the largest potential over 2 ridge. Only
    # candidates and chosen points bound that potential from below, so that the gap is an estimate.
    dual = float(np.sum(sums["dual"])) - potentials.max(initial=0.0) / (2.0 * problem.ridge_of(state.is_full))
    # at this intercept, which only in the end is the one at which the duals sum to zero
    dual -= float(np.sum(state.coefficients[:, -1] * sums["gradient"][:, -1]))
    normal = pair_potentials(potentials, sums["absolutes"], sums["squares"])
    held_out, weight = sums["held_out"]
    held_out_loss = held_out / weight if weight > 0.0 else np.nan
    # |u| of the machine on features of amplitude 1 / sqrt(m): the margin is its inverse
    length = np.sqrt(max(1, state.n_points) * float(np.sum(state.coefficients[:, :-1] ** 2)))
    line = {
        "n_features": problem.parts * state.n_points,
        "loss": loss / problem.total_weight,
        "held_out_loss": held_out_loss,
        "duality_gap": (objective - dual) / objective if objective > 0.0 else 0.0,
        "potential": normal.max(initial=0.0),
        "sampled_potential": state.sampled.max(initial=0.0),
        "support": float(np.mean(sums["support"])) / problem.total_weight,
        "margin": 1.0 / length if length > 0.0 else np.inf,
        "sample_rows": state.sample_rows,
    }
    state = replace(state, history=np.vstack([state.history, [line[name] for name in HISTORY]]), base_loss=loss)
    is_best = len(state.history) - 1 == _best_round(state.series("held_out_loss"))
    return replace(state, kept=state.n_points if is_best or np.isnan(held_out_loss) else state.kept)


def _best_round(losses: np.ndarray) -> int:
    """The round with the lowest loss on held-out rows; the last where none are held out."""
    return len(losses) - 1 if np.isnan(losses).all() else int(np.nanargmin(losses))


def _potentials(problem: CorrectiveProblem, sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """v = sum over models and columns of (sum_i s_i phi_j(x_i))^2, of chosen points and candidates, (m + q,)."""
    squares = np.sum(sums["gradient"][:, :-1] ** 2, axis=0)
    return squares.reshape(problem.parts, -1).sum(axis=0)


def _message(state: CorrectiveState, why: str) -> str:
    """How the rounds ended, for the user."""
    gap = state.series("duality_gap")[-1]
    return f"{why}: {state.n_points} points in {len(state.history)} rounds, estimated duality gap {gap:.1e}"


def _wanted(problem: CorrectiveProblem, state: CorrectiveState) -> tuple[int, int]:
    """Points that the next round searches for, and those that it draws: all that are missing once none is searched."""
    room = state.limit - state.n_points
    # the schedule bounds how many are searched for in all; what is drawn at random needs no rounds of its own, unless
    # held-out rows are asked after each
    wanted = _addition(problem, state.n_points, state.limit)
    searched = problem.schedule.searched(wanted, state.n_searched)
    if not problem.space.draws_plainly:
        return wanted, 0
    at_once = wanted
    if problem.schedule.patience is None:
        at_once = min(room, most_candidates(problem.parts, state.n_points))
    return searched, (wanted - searched if searched else at_once)


def _addition(problem: CorrectiveProblem, n_points: int, limit: int) -> int:
    """Points that a round adds to `n_points`: no more than the Gram columns of all their candidates have room for."""
    most = most_candidates(problem.parts, n_points) / problem.schedule.candidates
    return min(problem.schedule.addition(n_points, limit), max(1, int(most)))


def sample_duals(
    problem: CorrectiveProblem, state: CorrectiveState, rows: SearchedRows
) -> tuple[Rows, np.ndarray, np.ndarray | None]:
    """Scaled rows of the sample that have a dual, their dual weights S (r, K), and how often they repeat.

    S_ik = -c_i loss'(y_ik, f_k(x_i)), divided by the sum of all |S_ik|: the weights of the rows in the potential that
    is searched. None for the repetitions means that each counts once.
    """
    sample = rows.block
    targets, weight, _ = problem.targets(sample)
    on_these = np.all(state.searches[:, :2] == state.searches[-1, :2], axis=1)
    scores = rows.scores(
        state.coefficients[:, :-1].reshape(problem.n_models, problem.parts, -1),
        lambda span: problem.space.feature_map(state.points[span]),
        state.searches[on_these, 2],
        problem.dtype,
    )
    duals = -problem.loss.slope(targets, scores + state.coefficients[:, -1])
    repeats = rows.repeats * (weight / sample.weights)
    S = duals * repeats[:, None]
    # rows beyond the margin have no slope and no say: leaving them out makes the search cheaper, and changes no sum
    with_dual = np.flatnonzero(np.any(S != 0.0, axis=1))
    total = np.abs(S).sum() or 1.0
    scaled = rows.scaled(problem.space.feature_map(problem.space.none), problem.dtype)
    repeats = repeats[with_dual]
    return scaled[with_dual], S[with_dual] / total, None if np.all(repeats == 1.0) else repeats


def _most_verified(problem: CorrectiveProblem, size: int) -> int:
    """Points that a round may verify beside `size` chosen ones: where none is searched for, all that are missing."""
    schedule, missing = problem.schedule, problem.n_points - size
    wanted = max(schedule.first, _addition(problem, size, problem.n_points))
    searched = int(np.ceil(schedule.candidates * wanted))
    draws_all = problem.space.draws_plainly and (schedule.most_searched is not None or schedule.plain_share == 1.0)
    return max(searched, min(missing, most_candidates(problem.parts, size))) if draws_all else searched
