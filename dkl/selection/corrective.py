"""Fully corrective rounds: a pass finds where the working model errs; the best features join; a Newton step refits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.blocks.blas import one_blas_thread
from dkl.blocks.corrective import CorrectiveLoss, CorrectiveRound, HeldTargets, corrective_block, row_duals
from dkl.blocks.records import SINCOS_FLOPS, Accumulator, BlockSum, Cost, Record, RowSample
from dkl.features.feature_map import FeatureMap
from dkl.selection.grounds import Ground
from dkl.selection.peak_search import grown_sample, pair_potentials
from dkl.selection.searched_rows import SearchedRows
from dkl.selection.working_model import WorkingModel, refit

HISTORY = (
    "n_features",
    "loss",
    "held_out_loss",
    "duality_gap",
    "potential",
    "sampled_potential",
    "support",
    "margin",
    "sample_rows",
)

_PANEL_BYTES = 1 << 26


@dataclass(frozen=True)
class Schedule:
    """How many features a round adds, and when rounds end.

    Parameters
    ----------
    first : int
        Points that an early round adds: few, since each of them changes what is looked for next.
    growth : float
        Later rounds add this share of what is there.
    candidates : float
        Candidates verified on all rows for each point added.
    rounds : int or None
        At most so many rounds.
    patience : int or None
        Stop after so many rounds without a lower loss on held-out rows; the best round's features are kept.
    tol : float or None
        Stop at this duality gap, relative to the objective.
    settling : int
        Newton steps after the last feature was added.
    sample_rounds : int
        Passes that search on the same rows.
    trusted : float
        Twice as many rows are sampled where verified potentials keep less than this share of the sampled ones.
    """

    first: int = 3
    growth: float = 0.15
    candidates: float = 2.0
    rounds: int | None = None
    patience: int | None = None
    tol: float | None = None
    settling: int = 2
    sample_rounds: int = 4
    trusted: float = 0.3

    def addition(self, n_points: int, most: int) -> int:
        """Points that the next round adds to `n_points`."""
        return min(max(self.first, int(self.growth * n_points)), most - n_points)


@dataclass(frozen=True, eq=False)
class CorrectiveProblem:
    """Find features, and the best linear model on them, together.

    The working model minimises ``ridge D/2 |w|^2 + sum_i loss(y_i, w.phi(x_i) + b)`` over D unscaled points.

    Parameters
    ----------
    ground : Ground
        Where features are looked for.
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, one a class (or target) else.
    n_points : int
        Points to find at most.
    total_weight : float
        Of the rows that are learned from, about: it scales what is reported.
    loss : {"squared_hinge", "log_loss", "squared_error"}
    ridge : float
        For each point that is there; heavy, so that rounds stay diverse.
    schedule : Schedule
    sample_rows, most_rows : int
        Rows that are searched on: at first, and at most.
    seed : int
    dtype : {"float32", "float64"}
    start : ndarray or None
        Points that are there from the beginning.
    """

    ground: Ground
    targets: HeldTargets
    n_models: int
    n_points: int
    total_weight: float
    loss: CorrectiveLoss = "squared_hinge"
    ridge: float = 40.0
    schedule: Schedule = Schedule()
    sample_rows: int = 10_000
    most_rows: int = 100_000
    seed: int = 0
    dtype: str = "float32"
    start: np.ndarray | None = None

    @property
    def parts(self) -> int:
        return self.ground.columns_a_point

    @property
    def active(self) -> bool:
        """Whether Gram sums follow the rows with curvature: worth a matrix where there is one model."""
        return self.loss == "squared_hinge" and self.n_models == 1


@dataclass(frozen=True, eq=False)
class CorrectiveState:
    """Where the rounds stand.

    Attributes
    ----------
    points : ndarray of shape (m, ...)
        Chosen, in the order in which they were found.
    candidates : ndarray of shape (q, ...)
        To be verified by the next pass.
    sampled : ndarray of shape (q,)
        Their pair potentials on the rows of the search.
    coefficients : ndarray of shape (K, parts m + 1)
        The working model that the next pass evaluates, intercept last.
    base : ndarray of the same shape
        The point that it is a step from.
    base_loss : float
        The loss there; infinite where there is none.
    gram : ndarray of shape (parts m + 1, parts m + 1)
        Of the rows with curvature at `gram_at`, or of all rows.
    gram_at : ndarray of shape (1, parts m + 1), or (0, 0)
        The model whose rows these are; (0, 0) where `gram` is not known.
    history : ndarray of shape (rounds, len(HISTORY))
    sample_rows, passes, settled : int
    kept : int
        Points of the round with the lowest held-out loss.
    message : str
        How it ended; empty before.
    """

    points: np.ndarray
    candidates: np.ndarray
    sampled: np.ndarray
    coefficients: np.ndarray
    base: np.ndarray
    base_loss: float
    gram: np.ndarray
    gram_at: np.ndarray
    history: np.ndarray
    sample_rows: int
    passes: int = 0
    settled: int = 0
    kept: int = 0
    message: str = ""

    @property
    def n_points(self) -> int:
        return len(self.points)


class CorrectiveDriver:
    """Column generation for a kernel machine (ALGORITHMS section 3): one pass a round.

    A pass evaluates the working model on all rows: its loss, the potentials of the candidates under its dual, and the
    Gram columns that a Newton step on old and new features needs. It also draws the sample of the next search.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 2, with the dual of the best machine on the
    features so far in place of one projected step (fully corrective Frank-Wolfe).
    """

    def __init__(self) -> None:
        self._rows = SearchedRows()

    def init(self, problem: CorrectiveProblem) -> CorrectiveState:
        """No feature but those given, and candidates that nobody searched for."""
        ground = problem.ground
        points = ground.none if problem.start is None else problem.start
        width = problem.parts * len(points) + 1
        count = max(2, int(problem.schedule.candidates * problem.schedule.first))
        candidates = ground.start(count, problem.seed)
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
            sample_rows=problem.sample_rows,
            kept=len(points),
        )

    def request(self, problem: CorrectiveProblem, state: CorrectiveState) -> Sequence[Record] | None:
        """The round's sums, and the rows of the next search where there will be one."""
        if state.message:
            return None
        records: list[Record] = [round_record(problem, state)]
        sample = sample_record(problem, state)
        if state.n_points < problem.n_points and not self._rows.has(sample):
            records.append(sample)
        return records

    def step(self, problem: CorrectiveProblem, state: CorrectiveState, results: Sequence[Any]) -> CorrectiveState:
        """Choose among the verified candidates, refit, and search the next ones."""
        with one_blas_thread():
            sums = results[0]
            if len(results) > 1:
                self._rows.keep(sample_record(problem, state), results[1])
            state = replace(state, passes=state.passes + 1)
            state = _with_gram(problem, state, sums)
            if _went_up(problem, state, sums):
                return replace(state, coefficients=(state.base + state.coefficients) / 2.0)
            state = _noted(problem, state, sums)
            message = _ending(problem, state)
            if message:
                return replace(state, message=message)
            return _searched(problem, _extended(problem, state, sums), self._rows)

    def plan(self, problem: CorrectiveProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """Rounds of half the final size, and the last ones."""
        counts = planned_sizes(problem)
        half, last = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        passes = [(half[-1] if half else 0, len(half)), (last[-1], len(last) + 1 + problem.schedule.settling)]
        return [(_planned(problem, size), count) for size, count in passes if count]


def planned_sizes(problem: CorrectiveProblem) -> list[int]:
    """Points that are there before each round."""
    sizes = [0 if problem.start is None else len(problem.start)]
    while sizes[-1] < problem.n_points:
        sizes.append(sizes[-1] + problem.schedule.addition(sizes[-1], problem.n_points))
    most = problem.schedule.rounds
    return sizes if most is None else sizes[: most + 1]


def sample_record(problem: CorrectiveProblem, state: CorrectiveState) -> RowSample:
    """The rows that are searched on after this pass: fresh ones every few rounds, and whenever more are wanted."""
    age = state.passes // problem.schedule.sample_rounds
    return RowSample("rows to search on", state.sample_rows, problem.seed, age)


def round_record(problem: CorrectiveProblem, state: CorrectiveState) -> BlockSum:
    """The sums of the pass that evaluates a state's working model and verifies its candidates."""
    old, new = column_numbers(problem.parts, state.n_points, len(state.candidates))
    width = len(old) + len(new)
    need_old = problem.active or state.gram_at.size == 0
    panels = _panels(len(old)) if need_old else ()
    round_ = CorrectiveRound(
        loss=problem.loss,
        coefficients=_widened(state.coefficients, old, width),
        old=old,
        new=new,
        active=problem.active,
        previous=_widened(state.gram_at, old, width) if problem.active and state.gram_at.size else None,
        panels=panels,
        dtype=problem.dtype,
    )
    K = problem.n_models
    per_model = ("loss", "dual", "curvature", "absolutes", "squares", "support")
    accumulators = {name: Accumulator((K,)) for name in per_model}
    accumulators |= {"gradient": Accumulator((K, width)), "held_out": Accumulator((2,))}
    accumulators["cross"] = Accumulator((width, len(new)))
    for j, (start, stop) in enumerate(panels):
        accumulators[f"change_{j}"] = Accumulator((stop - start, len(old) - start))
    feature_map = _joined(problem, state)

    def cost(rows: int, columns: int) -> Cost:
        mapping = feature_map.n_frequencies * (2.0 * columns + SINCOS_FLOPS)
        products = 4.0 * K * width + 2.0 * width * len(new) + (len(old) ** 2 if panels else 0)
        return Cost(rows * (mapping + products), 4 * 1024 * 6 * width)

    operands = {"feature_map": feature_map, "round": round_, "targets": problem.targets}
    return BlockSum("corrective round", corrective_block, accumulators, operands, cost)


def column_numbers(parts: int, n_old: int, n_new: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns of `n_old` points and the intercept, and of `n_new` points after them, in the map of both."""
    n = n_old + n_new
    starts = n * np.arange(parts)[:, None]
    old = (starts + np.arange(n_old)).ravel()
    new = (starts + n_old + np.arange(n_new)).ravel()
    return np.append(old, parts * n), new


def _joined(problem: CorrectiveProblem, state: CorrectiveState) -> FeatureMap:
    return problem.ground.feature_map(np.concatenate([state.points, state.candidates]))


def _widened(coefficients: np.ndarray, old: np.ndarray, width: int) -> np.ndarray:
    out = np.zeros((len(coefficients), width))
    out[:, old] = coefficients
    return out


def _panels(width: int) -> tuple[tuple[int, int], ...]:
    """Rows of an upper triangle cut so that no accumulator exceeds 64 MiB."""
    panels, start = [], 0
    while start < width:
        stop = min(width, start + max(1, _PANEL_BYTES // (8 * (width - start))))
        panels.append((start, stop))
        start = stop
    return tuple(panels)


def _with_gram(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> CorrectiveState:
    """With the Gram matrix brought to the rows of the model that the pass evaluated."""
    at = state.coefficients[:1]
    panels = [sums[f"change_{j}"] for j in range(sum(name.startswith("change_") for name in sums))]
    if not panels:
        return replace(state, gram_at=at)
    gram, start = state.gram.copy(), 0
    for panel in panels:
        stop = start + len(panel)
        upper = np.triu(panel)
        gram[start:stop, start:] += upper
        gram[start:, start:stop] += upper.T
        gram[np.arange(start, stop), np.arange(start, stop)] -= np.diagonal(upper)
        start = stop
    return replace(state, gram=gram, gram_at=at)


def _went_up(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> bool:
    """Whether the step to the evaluated model was too long."""
    if not np.isfinite(state.base_loss) or np.allclose(state.base, state.coefficients, rtol=1e-4, atol=0.0):
        return False
    ridge = problem.ridge * max(1, state.n_points)
    before = state.base_loss + _penalty(state.base, ridge)
    return bool(np.sum(sums["loss"]) + _penalty(state.coefficients, ridge) > before * (1.0 + 1e-6))


def _penalty(coefficients: np.ndarray, ridge: float) -> float:
    return 0.5 * ridge * float(np.sum(coefficients[:, :-1] ** 2))


def _noted(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> CorrectiveState:
    """With a line of history for the evaluated model."""
    loss = float(np.sum(sums["loss"]))
    ridge = problem.ridge * max(1, state.n_points)
    objective = loss + _penalty(state.coefficients, ridge)
    potentials = _potentials(problem, state, sums)
    dual = float(np.sum(sums["dual"])) - potentials.max(initial=0.0) / (2.0 * problem.ridge)
    normal = pair_potentials(potentials, sums["absolutes"], sums["squares"])
    judged, weight = sums["held_out"]
    held = judged / weight if weight > 0.0 else np.nan
    length = np.sqrt(max(1, state.n_points) * float(np.sum(state.coefficients[:, :-1] ** 2)))
    line = {
        "n_features": problem.parts * state.n_points,
        "loss": loss / problem.total_weight,
        "held_out_loss": held,
        "duality_gap": (objective - dual) / objective if objective > 0.0 else 0.0,
        "potential": normal.max(initial=0.0),
        "sampled_potential": state.sampled.max(initial=0.0),
        "support": float(np.mean(sums["support"])) / problem.total_weight,
        "margin": 1.0 / length if length > 0.0 else np.inf,
        "sample_rows": state.sample_rows,
    }
    history = np.vstack([state.history, [line[name] for name in HISTORY]])
    best = len(history) - 1 == _best_round(history)
    kept = state.n_points if best or np.isnan(held) else state.kept
    return replace(state, history=history, kept=kept, base_loss=loss)


def _best_round(history: np.ndarray) -> int:
    losses = history[:, HISTORY.index("held_out_loss")]
    return len(history) - 1 if np.isnan(losses).all() else int(np.nanargmin(losses))


def _potentials(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> np.ndarray:
    """Of chosen points and candidates on all rows, (m + q,)."""
    squares = np.sum(sums["gradient"][:, :-1] ** 2, axis=0)
    return squares.reshape(problem.parts, -1).sum(axis=0)


def _ending(problem: CorrectiveProblem, state: CorrectiveState) -> str:
    """Why this was the last round; empty if it was not."""
    schedule, rounds = problem.schedule, len(state.history)
    gap = state.history[-1, HISTORY.index("duality_gap")]
    if state.settled >= schedule.settling:
        return f"found all {problem.n_points} points in {rounds} rounds; estimated duality gap {gap:.1e}"
    if schedule.tol is not None and state.n_points and gap <= schedule.tol:
        return f"the estimated duality gap fell to {gap:.1e} with {state.n_points} points"
    if schedule.patience is not None and rounds - 1 - _best_round(state.history) >= schedule.patience:
        return f"no lower loss on held-out rows in {schedule.patience} rounds; {state.kept} points were best"
    if schedule.rounds is not None and rounds > schedule.rounds:
        return f"ended after {schedule.rounds} rounds with {state.n_points} points"
    if state.n_points < problem.n_points and len(state.candidates) == 0:
        return f"there are no more than {state.n_points} points to choose from"
    return ""


def _extended(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> CorrectiveState:
    """With the best candidates among the points, and the working model refitted on all of them."""
    chosen = _chosen(problem, state, sums)
    model = WorkingModel(state.coefficients, state.gram, problem.loss, problem.active, problem.ridge)
    coefficients, base, gram = refit(model, sums, chosen, parts=problem.parts, total_weight=problem.total_weight)
    points = np.concatenate([state.points, state.candidates[chosen]])
    settled = state.settled + (state.n_points >= problem.n_points)
    verified = _potentials(problem, state, sums)[state.n_points :]
    rows = state.sample_rows
    if len(chosen):
        normal = pair_potentials(verified, sums["absolutes"], sums["squares"])
        rows = grown_sample(
            rows, state.sampled[chosen], normal[chosen], most=problem.most_rows, least=problem.schedule.trusted
        )
    at = _spread(state.gram_at, state.n_points, len(chosen), problem.parts)
    return replace(
        state,
        points=points,
        coefficients=coefficients,
        base=base,
        gram=gram,
        gram_at=at,
        sample_rows=rows,
        settled=settled,
    )


def _chosen(problem: CorrectiveProblem, state: CorrectiveState, sums: dict[str, np.ndarray]) -> np.ndarray:
    """Positions of the candidates that this round adds: none in the first, whose candidates nobody searched for."""
    if len(state.history) == 1 or state.n_points >= problem.n_points:
        return np.zeros(0, np.int64)
    potentials = _potentials(problem, state, sums)[state.n_points :]
    k = problem.schedule.addition(state.n_points, problem.n_points)
    room = problem.n_points - state.n_points
    return problem.ground.distinct(state.candidates, potentials, k, room=room)


def _spread(coefficients: np.ndarray, n_old: int, n_new: int, parts: int) -> np.ndarray:
    """A model of the old points as one of the old and `n_new` further ones."""
    old, _ = column_numbers(parts, n_old, n_new)
    return _widened(coefficients, old, parts * (n_old + n_new) + 1)


def _searched(problem: CorrectiveProblem, state: CorrectiveState, rows: SearchedRows) -> CorrectiveState:
    """With new candidates, from the duals of the refitted model on the rows of the sample."""
    if state.n_points >= problem.n_points:
        return state
    X, S = sample_duals(problem, state, rows)
    wanted = problem.schedule.addition(state.n_points, problem.n_points)
    count = max(wanted, int(np.ceil(problem.schedule.candidates * wanted)))
    if len(S) == 0:
        return replace(state, candidates=problem.ground.none, sampled=np.zeros(0))
    seed = (problem.seed + 7919 * state.passes) % 2**31
    room = problem.n_points - state.n_points
    candidates, potentials = problem.ground.search(X, S, count, seed, room=room)
    normal = pair_potentials(potentials, np.abs(S).sum(axis=0), np.square(S).sum(axis=0))
    return replace(state, candidates=candidates, sampled=normal)


def sample_duals(problem: CorrectiveProblem, state: CorrectiveState, rows: SearchedRows) -> tuple[Any, np.ndarray]:
    """Scaled rows of the sample and their duals (r, K), of the rows that have one: only these pull."""
    sample = rows.block
    targets, weight, _ = problem.targets(sample)
    coefficients = state.coefficients[:, :-1].reshape(problem.n_models, problem.parts, -1)
    scores = rows.scores(state.points, coefficients, problem.ground.feature_map, problem.dtype)
    # rows were drawn by their own weights already
    S = row_duals(scores + state.coefficients[:, -1], targets, problem.loss) * (weight / sample.weights)[:, None]
    pulling = np.flatnonzero(np.any(S != 0.0, axis=1))
    S, total = S[pulling], np.abs(S).sum()
    scaled = rows.scaled(problem.ground.feature_map(problem.ground.none), problem.dtype)
    return scaled[pulling], S / (total if total > 0.0 else 1.0)


def _planned(problem: CorrectiveProblem, size: int) -> list[Record]:
    """The records of a round that has `size` points, by points nobody searched for."""
    ground = problem.ground
    wanted = max(1, problem.schedule.addition(size, problem.n_points))
    points = ground.start(size, problem.seed)
    candidates = ground.start(max(2, int(np.ceil(problem.schedule.candidates * wanted))), problem.seed)
    width = problem.parts * len(points) + 1
    coefficients = np.zeros((problem.n_models, width))
    state = replace(
        CorrectiveDriver().init(problem),
        points=points,
        candidates=candidates,
        coefficients=coefficients,
        gram_at=coefficients[:1],
    )
    sample = RowSample("rows to search on", problem.sample_rows, problem.seed)
    return [round_record(problem, state), sample]
