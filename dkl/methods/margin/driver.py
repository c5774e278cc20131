"""Fully corrective rounds: a pass evaluates model and candidates; the best are added; Newton refits all coefficients.

First the problem, the schedule of the rounds and their state between passes; then the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from dkl.features.feature_map import FeatureMap, columns_of
from dkl.features.frequencies import further_seed
from dkl.kernels.maps import design_rows
from dkl.methods.frequency_search.frequency_space import FrequencySpace, forming_seconds, search_seconds
from dkl.methods.frequency_search.peak_search import grown_sample, pair_potentials
from dkl.methods.frequency_search.searched_rows import KEPT_BYTES, SearchedRows
from dkl.methods.rounds.loop import (
    BETWEEN_ROUNDS,
    GramChange,
    HeldTargets,
    Rounds,
    RoundTask,
    WithHistory,
    best_round,
    bordered,
    padded_models,
    reason_to_end,
)
from dkl.process import usable_cores
from dkl.protocols.arrays import Rows
from dkl.protocols.records import LARGEST_ACCUMULATOR, SINCOS_FLOPS, Cost, Record, RowSample
from dkl.solvers.line_search import falls_enough
from dkl.solvers.losses import HINGES, Loss, SquaredHingeLoss
from dkl.solvers.systems import map_systems, solve_positive, systems_at_once

# The sample grows if potentials on it are not confirmed on all rows: averaged over the rounds of four fits of a million
# rows it had .28 to .60 of the most rows it may have.
_USUAL_SAMPLE = 0.45
# The number of passes whose searches share a sample of rows.
_SAMPLE_PASSES = 4
# The sample doubles if verified potentials fall below this share of the sampled ones.
_TRUSTED = 0.3
# With several models, the Hessian of each is approximated by the common Gram matrix times this factor and the model's
# mean curvature, which is nearly an upper bound. With factors of 2 to 4, ten classes of digits converge as well as with
# a matrix for each. So models whose mean curvatures differ by a factor of less than 2 can share a factorisation.
_CURVATURE_MARGIN = 3.0
# Rows of the first search: this share of all, but at least this number.
_FIRST_SAMPLE, _SAMPLED_SHARE = 10_000, 0.05
# Chains that climb for each candidate of a round.
CHAINS_A_CANDIDATE = 2.0
# Steps of a chain. Longer ascents improve the features on at least _MANY_ROWS rows. Up to LOW_DIMENSION columns there
# is less noise to fit and peaks are farther apart, so ascents are long, too.
_STEPS, _LONG_STEPS, _MANY_ROWS, LOW_DIMENSION = 5, 20, 200_000, 10
# Rounds before a descent, which moves all waves afterwards: with four the area under the curve is the same to 1e-4 on a
# million smooth rows, in .6 of the seconds, and held-out errors of 18 tables are level.
ROUNDS_BEFORE_DESCENT = 4
# The intercept's penalty as a share of a coefficient's; nonzero only against rounding.
_INTERCEPT = 1e-6


def first_sample(n_rows: int) -> int:
    """The rows on which the first rounds of n rows search, unless memory allows fewer."""
    return max(_FIRST_SAMPLE, int(_SAMPLED_SHARE * n_rows))


def ascent_steps(total_weight: float, n_columns: int) -> int:
    """The steps of a chain: more where there are many rows or few columns."""
    return _LONG_STEPS if total_weight >= _MANY_ROWS or n_columns <= LOW_DIMENSION else _STEPS


@dataclass(frozen=True)
class RoundSchedule:
    """The number of features that each round adds, and the rules that end the rounds.

    Parameters
    ----------
    first : int
        Points that an early round adds; few, since each point changes the potential that is searched next.
    growth : float
        Later rounds add this share of the present points.
    late_growth : float
        The share from `late` points on, where a round costs more.
    late : int
    candidates : float
        Candidates verified on all rows for each point added.
    rounds : int or None
        The most rounds; None sets no limit.
    patience : int or None
        Rounds without a gain on held-out rows after which the search ends with the points of the best round; see
        `dkl.methods.rounds.loop.best_round`. None sets no limit.
    tol : float or None
        Stop at this duality gap, relative to the objective.
    settling : int
        The most Newton steps after the last feature was added.
    least_gain : float
        These steps end when one lowers the objective by at most this share of it; 0 performs all of them.
    plain_share : float
        Share of a round's points that are random draws.
    most_searched : int or None
        The most points found by searches; further points are random draws.
    """

    first: int = 3
    growth: float = 0.15
    late_growth: float = 0.15
    late: int = 150
    candidates: float = 1.5
    rounds: int | None = None
    patience: int | None = None
    tol: float | None = None
    settling: int = 2
    least_gain: float = 0.0
    plain_share: float = 0.0
    most_searched: int | None = None

    def addition(self, n_points: int, most: int) -> int:
        """The number of points that the next round adds to `n_points`."""
        # early rounds add few points, since each changes the potential that is searched next; late rounds cost more
        growth = self.growth if n_points < self.late else self.late_growth
        return min(max(self.first, int(growth * n_points)), most - n_points)

    def searched(self, wanted: int, n_searched: int) -> int:
        """The number of `wanted` points to search for, after `n_searched` earlier ones; others are random."""
        # neither the random share of a round, nor points beyond `most_searched`, are searched for
        most = wanted if self.most_searched is None else max(0, self.most_searched - n_searched)
        return min(most, wanted - int(self.plain_share * wanted))


@dataclass(frozen=True, eq=False)
class CorrectiveProblem:
    """The joint search for features and the linear model on them.

    The working model minimises ``ridge D/2 |w|^2 + sum_i loss(y_i, w.phi(x_i) + b)`` over D unscaled points, with the
    losses of `dkl.solvers.round_losses`.

    Parameters
    ----------
    space : FrequencySpace
        The set of features to search.
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, else one for each class (or target).
    n_rows : int
        The number of rows that samples are drawn from.
    n_points : int
        The most points to find.
    total_weight : float
        The approximate weight of the training rows, which scales reported losses.
    loss : Loss
    ridge : float
        The penalty for each present point; strong, so that rounds find different features.
    last_ridge : float or None
        The penalty for each point once all points are found; None for `ridge`.
    schedule : RoundSchedule
    sample_rows, most_rows : int
        Sizes of the searched sample: the first and the largest.
    seed : int
    dtype : {"float32", "float64"}
    start : ndarray or None
        Points of the first model.
    """

    space: FrequencySpace
    targets: HeldTargets
    n_models: int
    n_rows: int
    n_points: int
    total_weight: float
    loss: Loss = HINGES["squared_hinge"]
    ridge: float = 80.0
    last_ridge: float | None = None
    schedule: RoundSchedule = RoundSchedule()
    sample_rows: int = 10_000
    most_rows: int = 100_000
    seed: int = 0
    dtype: str = "float32"
    start: np.ndarray | None = None

    @property
    def parts(self) -> int:
        return self.space.columns_a_point

    def ridge_of(self, is_last: bool) -> float:
        """The penalty for each point, during the search or after it."""
        return self.ridge if self.last_ridge is None or not is_last else self.last_ridge

    @property
    def active(self) -> bool:
        """Whether Gram sums weight rows by curvature, as for a single model of the squared hinge."""
        return isinstance(self.loss, SquaredHingeLoss) and self.n_models == 1


@dataclass(frozen=True, eq=False)
class CorrectiveState(WithHistory):
    """The state of fully corrective rounds between passes.

    Attributes
    ----------
    points : ndarray of shape (m, ...)
        The chosen points, in the order in which they were found.
    candidates : ndarray of shape (q, ...)
        The points that the next pass verifies.
    sampled : ndarray of shape (s,)
        The pair potentials of the first s of them on the rows of the search that found them, 0 before any search. The
        others are random draws, which are added whatever their potentials are.
    coefficients : ndarray of shape (K, parts m + 1)
        The working model that the next pass evaluates, intercept last.
    base : ndarray of the same shape
        The model before its last Newton step.
    base_loss : float
        The loss of that model; infinite before it was evaluated.
    gram : ndarray of shape (parts m + 1, parts m + 1)
        The Gram matrix of the columns. Rows have their weights, times their curvatures at `gram_at` if the problem is
        `active`.
    gram_at : ndarray of shape (1, parts m + 1), or (0, 0)
        The model whose curvatures weight `gram`; (0, 0) before `gram` was summed.
    history : ndarray of shape (rounds, len(names))
        One line for each evaluated model.
    searches : ndarray of shape (s, 3), int64
        For each search: size and age of its sample, and the number of points at that time.
    n_searched : int
        Points found by searches.
    sample_rows, passes, settled : int
    limit : int
        The most points; lowered to those of the best round when held-out rows have ended the search.
    ended : str
        Why the search for points ended; empty during it.
    message : str
        Why the rounds ended; empty before.
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
    searches: np.ndarray
    sample_rows: int
    n_searched: int = 0
    passes: int = 0
    settled: int = 0
    limit: int = -1
    ended: str = ""
    message: str = ""

    # in the order of checkpoints
    names: ClassVar[tuple[str, ...]] = (
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
    # each pass both judges the model and verifies candidates, so its sums suffice to refit
    phase: ClassVar[str] = "search"

    @property
    def n_points(self) -> int:
        return len(self.points)

    @property
    def is_full(self) -> bool:
        """Whether all points are found, so that only Newton steps follow."""
        return len(self.points) >= self.limit


class CorrectiveDriver(Rounds[CorrectiveProblem, CorrectiveState]):
    """Column generation for a kernel machine, with one pass for each round.

    A pass evaluates the working model on all rows: its loss, the potentials of the candidates under its dual weights,
    and the Gram columns for a Newton step on old and new features (`_sums`). It also draws the sample of the next
    search (`_sample`). After it `Rounds.step` judges the model (`_judged_state`), adds the best candidates and refits
    (`_extended_state`), and searches the next candidates on the sample (`_state_with_candidates`).

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 2, with the dual of the best model on the present
    features in place of one projected step (fully corrective Frank-Wolfe).

    Parameters
    ----------
    kept_bytes : int
        The most bytes of the searched rows' features that stay in memory between rounds.
    """

    reported = ("n_features", "loss", "held_out_loss", "duality_gap")
    pass_names: ClassVar[Mapping[str, str]] = {"search": "corrective round"}

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._rows = SearchedRows(kept_bytes)

    def init(self, problem: CorrectiveProblem) -> CorrectiveState:
        """The given points or none, and random candidates."""
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
            history=np.zeros((0, len(CorrectiveState.names))),
            searches=np.zeros((0, 3), np.int64),
            sample_rows=problem.sample_rows,
            limit=max(problem.n_points, len(points)),
        )

    def stopped(self, problem: CorrectiveProblem, state: CorrectiveState, why: str) -> CorrectiveState | None:
        """The state with the present points, if a subscriber stops the rounds; None before the first point."""
        if state.n_points == 0:
            return None
        return replace(state, message=state.message or _message(state, why))

    def memory(self, problem: CorrectiveProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the searched rows with their features, the ascent, and the Gram matrix with its factor and sums."""
        width, searched = problem.parts * problem.n_points + 1, min(problem.most_rows, n_rows)
        rows = self._rows.most_bytes(searched, row_bytes, width - 1, problem.dtype)
        most = max(_most_verified(problem, size) for size in planned_sizes(problem))
        ascent = problem.space.search_bytes(searched, most)
        solved = systems_at_once(problem.n_models, width)
        return {**rows, "chains that climb": ascent, "Gram matrices": (4 + solved) * 8 * width * width}

    def driving(self, problem: CorrectiveProblem, n_rows: int, few: Rows, flops_per_second: float) -> float:
        """Seconds of the searches, and of the dual weights of the searched rows in each round."""
        sizes, schedule = planned_sizes(problem), problem.schedule
        wanted: list[int] = []
        for size, after in pairwise(sizes):
            wanted.append(schedule.searched(after - size, sum(wanted)))
        n_searches = np.count_nonzero(wanted)
        if not n_searches:
            return 0.0
        count = int(np.ceil(max(1.0, schedule.candidates) * sum(wanted) / n_searches))
        searching = search_seconds(problem.space, few, problem.n_models, count)
        # features are computed again for each sample, and in each round if they do not stay in memory
        rows = min(n_rows, max(problem.sample_rows, round(_USUAL_SAMPLE * problem.most_rows)))
        width, mean = problem.parts * problem.n_points, float(np.mean(sizes)) / problem.n_points
        kept = self._rows.most_bytes(rows, 0, width, problem.dtype)["features of searched rows"]
        every = _SAMPLE_PASSES if 4 * width * rows <= kept else 1
        forming = forming_seconds(problem.space.feature_map(problem.space.start(problem.n_points, 0)), few)
        return n_searches * rows * (searching + mean * forming / every) / usable_cores()

    def plan(self, problem: CorrectiveProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """The largest pass of rounds up to half the final size, and of later ones; halved steps are not counted."""
        counts, space = planned_sizes(problem), problem.space
        half, last = counts[: len(counts) // 2], counts[len(counts) // 2 :]
        settling = 1 + problem.schedule.settling
        # the best round on held-out rows may have fewer points, on which further Newton steps follow
        tail = settling * (1 if problem.schedule.patience is None else 2)
        sample = _sample_record(problem, self.init(problem))
        passes: list[tuple[Sequence[Record], int]] = []
        for sizes, calls in [(half, len(half)), (last, len(last) + tail)]:
            if not sizes:
                continue
            # the largest pass: the most points, and the most candidates whose Gram columns take at most 64 MiB
            most = max(_most_verified(problem, size) for size in sizes)
            points = space.start(sizes[-1], problem.seed)
            candidates = space.start(min(most, most_candidates(problem.parts, sizes[-1])), problem.seed)
            model = np.zeros((problem.n_models, problem.parts * len(points) + 1))
            largest = replace(
                self.init(problem), points=points, candidates=candidates, coefficients=model, gram_at=model[:1]
            )
            passes.append(([self._sums(problem, largest), sample], calls))
        return passes

    def _sample(self, problem: CorrectiveProblem, state: CorrectiveState) -> RowSample | None:
        searches = not state.is_full and _candidate_counts(problem, state)[0] > 0
        return _sample_record(problem, state) if searches else None

    def _task(self, problem: CorrectiveProblem, state: CorrectiveState) -> tuple[RoundTask, FeatureMap]:
        """The sums that evaluate a state's working model and verify its candidates."""
        old, new = column_numbers(problem.parts, state.n_points, len(state.candidates))
        width = len(old) + len(new)
        # A Gram matrix of all rows is constant; one weighted by curvature follows the model. Its upper triangle of
        # len(old) columns is cut into panels of rows of at most 64 MiB.
        panels, start = [], 0
        changes = problem.active or state.gram_at.size == 0
        while changes and start < len(old):
            stop = min(len(old), start + max(1, LARGEST_ACCUMULATOR // (8 * (len(old) - start))))
            panels.append((start, stop))
            start = stop
        is_weighted = problem.active and state.gram_at.size > 0
        previous = padded_models(state.gram_at, old, width) if is_weighted else None
        task = RoundTask(
            problem.loss,
            padded_models(state.coefficients, old, width)[None],
            new,
            problem.dtype,
            curvature_unit=problem.loss.largest_curvature if problem.active else None,
            has_intercept=True,
            has_dual=True,
            change=GramChange(old, previous, tuple(panels)) if panels else None,
        )
        return task, problem.space.feature_map(np.concatenate([state.points, state.candidates]))

    def _cost(self, problem: CorrectiveProblem, task: RoundTask, feature_map: FeatureMap) -> Callable[[int, int], Cost]:
        (_, K, width), itemsize = task.trials.shape, np.dtype(problem.dtype).itemsize
        n_old, panels = width - task.n_new, () if task.change is None else task.change.panels
        products = 4.0 * K * width + 2.0 * width * task.n_new + (n_old**2 if panels else 0)
        product = max(((stop - start) * (n_old - start) for start, stop in panels), default=0)

        def cost(rows: int, columns: int) -> Cost:
            mapping = feature_map.n_frequencies * (2.0 * columns + SINCOS_FLOPS)
            tile = min(rows, design_rows(width - 1, problem.dtype)) * width
            return Cost(rows * (mapping + products), itemsize * (6 * tile + product))

        return cost

    def _judged_state(
        self, problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray]
    ) -> tuple[CorrectiveState, bool]:
        """The state with a line of history for the evaluated model; or with half of a step that raised the loss."""
        state = _with_gram(replace(state, passes=state.passes + 1), sums)
        # the objective of the working model before the last Newton step, and after it
        before = state.base_loss + _penalty(problem, state, state.base)
        now = float(np.sum(sums["loss"])) + _penalty(problem, state, state.coefficients)
        has_moved = not np.allclose(state.base, state.coefficients, rtol=1e-4, atol=0.0)
        if has_moved and not falls_enough(now, before, 0.0, rounding=1e-6):
            # a convex loss decreases along the step, so half of it is evaluated next, and again, until the objective
            # falls
            return replace(state, coefficients=(state.base + state.coefficients) / 2.0), False
        state = _state_with_history(problem, state, sums, now)
        if not state.is_full:
            why = why_to_stop(problem, state)
        elif not _has_settled(problem, state, before, now):
            why = ""
        elif not state.ended and _kept_points(problem, state) != state.n_points:
            # the model on the points of the best round takes further steps, and then the rounds end
            why = "held-out rows were best served by fewer"
        else:
            return replace(state, message=_message(state, state.ended or "found as many as asked for")), True
        if not why:
            return state, True
        left = _best_round_state(problem, state, why)
        # the sums belong to the larger model, so the next pass evaluates the model on the remaining points
        return left, left.n_points == state.n_points

    def _extended_state(
        self, problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray]
    ) -> CorrectiveState:
        """The state with the best candidates added to the points, and the working model refitted on all of them."""
        verified = _potentials(problem, sums)[state.n_points :]
        n_searched = len(state.sampled)
        # positions of the candidates to add: none in the first round, whose candidates are random
        joining = np.zeros(0, np.int64)
        if len(state.history) > 1 and not state.is_full:
            k, _ = _candidate_counts(problem, state)
            n_left = state.limit - state.n_points
            best = problem.space.distinct(state.candidates[:n_searched], verified[:n_searched], k, room=n_left)
            # random draws are added whatever their potentials are
            joining = np.concatenate([best, np.arange(n_searched, len(state.candidates))])
        coefficients, base, gram = _newton_step(problem, state, sums, joining)
        points = np.concatenate([state.points, state.candidates[joining]])
        rows, searched = state.sample_rows, joining[joining < n_searched]
        if len(searched):
            # potentials much lower on all rows than on the sample mean that the search fits noise of the sample
            on_all = pair_potentials(verified[searched], sums["absolutes"], sums["squares"])
            rows = grown_sample(rows, state.sampled[searched], on_all, most=problem.most_rows, least=_TRUSTED)
        left = np.delete(np.arange(len(state.candidates)), joining)
        if len(points) >= state.limit and problem.space.draws_plainly:
            # the duality gap needs only the largest potential, and the last passes cost less with one candidate
            left = left[np.argsort(-verified[left], kind="stable")[:1]]
        return replace(
            state,
            points=points,
            # candidates that are not added still bound the potential of all features from below
            candidates=state.candidates[left],
            sampled=state.sampled[left[left < len(state.sampled)]],
            coefficients=coefficients,
            base=base,
            gram=gram,
            # the pass has updated the Gram matrix to the model before the step
            gram_at=base[:1],
            sample_rows=rows,
            n_searched=state.n_searched + len(searched),
            settled=state.settled + state.is_full,
        )

    def _state_with_candidates(self, problem: CorrectiveProblem, state: CorrectiveState) -> CorrectiveState:
        """The state with new candidates: peaks of the potential of the model's dual on the sample, and random draws."""
        n_left = state.limit - state.n_points
        if n_left <= 0:
            return state
        seed = further_seed(problem.seed, state.passes, BETWEEN_ROUNDS)
        wanted, drawn = _candidate_counts(problem, state)
        candidates, sampled = problem.space.none, np.zeros(0)
        if wanted:
            count, _, age = self._rows.key
            state = replace(state, searches=np.vstack([state.searches, [count, age, state.n_points]]))
            X, S, weight = sample_duals(problem, state, self._rows)
            count = max(wanted, int(np.ceil(problem.schedule.candidates * wanted)))
            if len(S):
                candidates, potentials = problem.space.search(X, S, count, seed, room=n_left, weight=weight)
                squares = np.sum(S**2 if weight is None else S**2 / weight[:, None], axis=0)
                sampled = pair_potentials(potentials, np.abs(S).sum(axis=0), squares)
            elif state.n_points == 0:
                # no row has a dual weight, but a feature map needs at least one feature
                candidates, sampled = problem.space.start(1, seed), np.zeros(1)
        # if all points are random, they equal those of `RandomFeatures`
        is_first = state.n_points == 0 and problem.schedule.plain_share == 1.0
        random = problem.space.plain(drawn, problem.seed if is_first else seed)
        return replace(state, candidates=np.concatenate([candidates, random]), sampled=sampled)


def _newton_step(
    problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray], joining: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One Newton step of the working model on its points and on the candidates at positions `joining`.

    Returns
    -------
    coefficients, base : ndarray of shape (K, width)
        The model after the step, and the one before it on the same columns, 0 for new ones.
    gram : ndarray of shape (width, width)
    """
    parts, n_old, n_candidates = problem.parts, state.n_points, len(state.candidates)
    n, n_points = n_old + n_candidates, n_old + len(joining)
    width = parts * n_points + 1
    # The sums of the pass have a column for each old point and candidate. `columns` are the positions there of the
    # columns of the new model: its points, old and joining, and then the intercept. `is_old` marks those among them
    # that the old model has, too.
    kept = np.concatenate([np.arange(n_old), n_old + joining])
    columns = np.append(columns_of(kept, n, parts), parts * n)
    is_old = np.append(np.tile(kept < n_old, parts), True)
    base = padded_models(state.coefficients, is_old, width)
    # the Gram matrix: that of the old columns, bordered by the products with the new ones
    new_columns = sums["cross"][np.ix_(columns, columns_of(joining, n_candidates, parts).ravel())]
    gram = bordered(state.gram, is_old, new_columns)
    # the penalty is ridge m |w|^2 / 2 for m points
    ridge = np.full(width, problem.ridge_of(n_points >= state.limit) * max(1, n_points))
    ridge[-1] *= _INTERCEPT
    gradient = sums["gradient"][:, columns] - ridge * base
    # System and right side are divided by the loss's largest curvature, which the Gram matrix does not contain. For one
    # model, or for squares, the Hessian is then the Gram matrix itself; for several models each has a share of it. The
    # loss of a mean exp(f) has no largest curvature; its mean curvature determines the step.
    bound = problem.loss.largest_curvature
    largest = bound if np.isfinite(bound) else 1.0
    shares = np.ones(len(gradient))
    if not (problem.active or problem.loss.is_square):
        of_each = _CURVATURE_MARGIN * (sums["curvature"] / largest) / problem.total_weight
        with np.errstate(divide="ignore"):
            _, group = np.unique(np.round(np.log2(of_each)), return_inverse=True)
        shares = np.minimum(bound / largest, (np.bincount(group, of_each) / np.bincount(group))[group])
    direction = np.empty(gradient.shape)

    def solve(share: float) -> None:
        """(share gram + diag(ridge))^-1 gradient, both divided by the largest curvature, for all models of a share."""

        def system() -> np.ndarray:
            # the matrix is symmetric; its transpose is in the memory order of LAPACK
            matrix = (share * gram).T
            np.einsum("ii->i", matrix)[...] += ridge / largest
            return matrix

        direction[shares == share] = solve_positive(system, gradient[shares == share].T / largest).T

    map_systems(solve, np.unique(shares), width)
    return base + direction, base, gram


def why_to_stop(problem: CorrectiveProblem, state: CorrectiveState) -> str:
    """The reason to end the search for points, after which the model on them converges; empty to continue.

    The search ends if

    - the estimated duality gap, as a share of the objective, is at most `tol`; or
    - no round has gained on held-out rows for `patience` rounds; or
    - `rounds` rounds are done (the first pass, which adds no point, does not count); or
    - no candidates are left, as in a finite family whose features are all chosen.
    """
    schedule, gap = problem.schedule, state.series("duality_gap")[-1]
    if schedule.tol is not None and state.n_points and gap <= schedule.tol:
        return f"the estimated duality gap fell to {gap:.1e}"
    patience = schedule.patience if state.n_points else None
    why = reason_to_end(state.series("held_out_loss"), patience, schedule.rounds, len(state.history) - 1)
    return why or ("" if len(state.candidates) else "there are no more points to choose from")


def _has_settled(problem: CorrectiveProblem, state: CorrectiveState, before: float, now: float) -> bool:
    """Whether the model on all points has converged: by `settling` Newton steps, or one that gains too little.

    `before` and `now` are the objective before and after the last step.
    """
    schedule = problem.schedule
    gains_little = state.settled > 0 and before - now <= schedule.least_gain * before
    return state.settled >= schedule.settling or (schedule.least_gain > 0.0 and gains_little)


def planned_sizes(problem: CorrectiveProblem) -> list[int]:
    """The planned number of points before each round."""
    sizes = [0 if problem.start is None else len(problem.start)]
    while sizes[-1] < problem.n_points:
        sizes.append(sizes[-1] + _addition(problem, sizes[-1], problem.n_points))
    most = problem.schedule.rounds
    return sizes if most is None else sizes[: most + 1]


def _penalty(problem: CorrectiveProblem, state: CorrectiveState, coefficients: np.ndarray) -> float:
    """The penalty ridge m / 2 |w|^2 on the coefficients of m points; the intercept, which is last, has none."""
    ridge = problem.ridge_of(state.is_full) * max(1, state.n_points)
    return 0.5 * ridge * float(np.sum(coefficients[:, :-1] ** 2))


def _state_with_history(
    problem: CorrectiveProblem, state: CorrectiveState, sums: Mapping[str, np.ndarray], objective: float
) -> CorrectiveState:
    """The state with a line of history for the evaluated model, whose penalised loss is `objective`."""
    loss = float(np.sum(sums["loss"]))
    potentials = _potentials(problem, sums)
    # The dual objective over all features: sum of -conjugate, minus the largest potential over 2 ridge. Only candidates
    # and chosen points are evaluated, so the largest potential, and with it the gap, is underestimated.
    dual = float(np.sum(sums["dual"])) - potentials.max(initial=0.0) / (2.0 * problem.ridge_of(state.is_full))
    # for this intercept; the duals sum to zero only at the optimal one
    dual -= float(np.sum(state.coefficients[:, -1] * sums["gradient"][:, -1]))
    normal = pair_potentials(potentials, sums["absolutes"], sums["squares"])
    weight = float(sums["held_weight"])
    held_out_loss = float(sums["held_out"][0]) / weight if weight > 0.0 else np.nan
    # |u| of the model on features with amplitude 1 / sqrt(m); the margin is its inverse
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
    return replace(state, history=np.vstack([state.history, [line[name] for name in state.names]]), base_loss=loss)


def _kept_points(problem: CorrectiveProblem, state: CorrectiveState) -> int:
    """The number of points of the best round on held-out rows; all of them without `patience`."""
    if problem.schedule.patience is None:
        return state.n_points
    sizes = state.series("n_features") // problem.parts
    # if the best model has no points, the first ones are kept, since a feature map needs some
    best = int(sizes[best_round(state.series("held_out_loss"))])
    return best or int(sizes[sizes > 0].min(initial=state.n_points))


def _potentials(problem: CorrectiveProblem, sums: Mapping[str, np.ndarray]) -> np.ndarray:
    """v = sum over models and columns of (sum_i s_i phi_j(x_i))^2, of chosen points and candidates, (m + q,)."""
    squares = np.sum(sums["gradient"][:, :-1] ** 2, axis=0)
    return squares.reshape(problem.parts, -1).sum(axis=0)


def _message(state: CorrectiveState, why: str) -> str:
    """A sentence on how the rounds ended."""
    gap = state.series("duality_gap")[-1]
    return f"{why}: {state.n_points} points in {len(state.history)} rounds, estimated duality gap {gap:.1e}"


def _candidate_counts(problem: CorrectiveProblem, state: CorrectiveState) -> tuple[int, int]:
    """The numbers of points that the next round searches for and draws; all missing ones are drawn without a search."""
    n_left = state.limit - state.n_points
    # the schedule bounds the total of searched points; random draws need no further rounds, unless held-out rows judge
    # each round
    wanted = _addition(problem, state.n_points, state.limit)
    searched = problem.schedule.searched(wanted, state.n_searched)
    if not problem.space.draws_plainly:
        return wanted, 0
    at_once = wanted
    if problem.schedule.patience is None:
        at_once = min(n_left, most_candidates(problem.parts, state.n_points))
    return searched, (wanted - searched if searched else at_once)


def _addition(problem: CorrectiveProblem, n_points: int, limit: int) -> int:
    """Points that a round adds to `n_points`; the Gram columns of their candidates take at most 64 MiB."""
    most = most_candidates(problem.parts, n_points) / problem.schedule.candidates
    return min(problem.schedule.addition(n_points, limit), max(1, int(most)))


def sample_duals(
    problem: CorrectiveProblem, state: CorrectiveState, rows: SearchedRows
) -> tuple[Rows, np.ndarray, np.ndarray | None]:
    """The scaled rows of the sample with nonzero dual weights, these weights S (r, K), and the rows' repetitions.

    S_ik = -c_i loss'(y_ik, f_k(x_i)), divided by the sum of all |S_ik|: the weights of the rows in the potential to
    search. Repetitions are None if each row counts once.
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
    repeats = sample.drawn_from(problem.n_rows).weights * (weight / sample.weights)
    S = duals * repeats[:, None]
    # rows with a margin above 1 have zero slope: leaving them out makes the search cheaper, and changes no sum
    with_dual = np.flatnonzero(np.any(S != 0.0, axis=1))
    total = np.abs(S).sum() or 1.0
    scaled = rows.scaled(problem.space.feature_map(problem.space.none), problem.dtype)
    repeats = repeats[with_dual]
    return scaled[with_dual], S[with_dual] / total, None if np.all(repeats == 1.0) else repeats


def _most_verified(problem: CorrectiveProblem, size: int) -> int:
    """The most candidates that a round verifies, with `size` chosen points; all missing ones if it searches none."""
    schedule, missing = problem.schedule, problem.n_points - size
    wanted = max(schedule.first, _addition(problem, size, problem.n_points))
    searched = int(np.ceil(schedule.candidates * wanted))
    draws_all = problem.space.draws_plainly and (schedule.most_searched is not None or schedule.plain_share == 1.0)
    return max(searched, min(missing, most_candidates(problem.parts, size))) if draws_all else searched


def _sample_record(problem: CorrectiveProblem, state: CorrectiveState) -> RowSample:
    """The sample to search after this pass: new rows every few passes, and whenever the sample grows."""
    age = state.passes // _SAMPLE_PASSES
    return RowSample("rows to search on", state.sample_rows, problem.seed, age)


def most_candidates(parts: int, n_old: int) -> int:
    """The number of candidates whose Gram columns with `n_old` points take at most 64 MiB; at least one."""
    # q candidates have parts^2 q (n_old + q) numbers: the larger root of a quadratic equation, minus one against
    # rounding
    numbers = LARGEST_ACCUMULATOR / (8 * parts**2)
    return max(1, int((np.sqrt(n_old**2 + 4.0 * numbers) - n_old) / 2.0) - 1)


def column_numbers(parts: int, n_old: int, n_new: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns of `n_old` points with the intercept, and of `n_new` further points, in the joint feature map."""
    n = n_old + n_new
    # the last column of the design matrix is the intercept's ones
    old = np.append(columns_of(np.arange(n_old), n, parts), parts * n)
    return old, columns_of(np.arange(n_old, n), n, parts).ravel()


def _best_round_state(problem: CorrectiveProblem, state: CorrectiveState, ended: str) -> CorrectiveState:
    """The state with only the points of the best round on held-out rows (all without `patience`), and no search."""
    kept = _kept_points(problem, state)
    columns, _ = column_numbers(problem.parts, kept, state.n_points - kept)
    return replace(
        state,
        points=state.points[:kept],
        coefficients=state.coefficients[:, columns],
        base=state.base[:, columns],
        gram=state.gram[np.ix_(columns, columns)],
        gram_at=state.gram_at[:, columns],
        base_loss=state.base_loss if kept == state.n_points else np.inf,
        limit=kept,
        settled=0,
        ended=ended,
    )


def _with_gram(state: CorrectiveState, sums: Mapping[str, np.ndarray]) -> CorrectiveState:
    """The state with its Gram matrix updated to the curvatures of the model that the pass evaluated."""
    at = state.coefficients[:1]
    panels = [sums[f"change_{j}"] for j in range(sum(name.startswith("change_") for name in sums))]
    if not panels:
        return replace(state, gram_at=at)
    gram, start = state.gram.copy(), 0
    for panel in panels:
        stop = start + len(panel)
        # panels are valid on and above the diagonal; both triangles use these entries, the diagonal once
        upper = np.triu(panel)
        gram[start:stop, start:] += upper
        gram[start:, start:stop] += upper.T
        gram[np.arange(start, stop), np.arange(start, stop)] -= np.diagonal(upper)
        start = stop
    return replace(state, gram=gram, gram_at=at)
