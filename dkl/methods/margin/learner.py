"""MarginFeatures: features searched where the model on the present ones has the largest error, and its solvers.

A solver says what the parameters mean: it makes the problem of the rounds, and the fitted attributes from their last
state. `CorrectiveSolver` is that of a single family, `DictionarySolver` that of a list; the game is in `methods/game`.

From `fit` to a sine, in a round of a single family (`tests/test_architecture.py` checks that these functions exist):

    methods/base.py: FeatureLearner.fit
    methods/margin/learner.py: MarginFeatures._learn, CorrectiveSolver.problem
    methods/margin/driver.py: CorrectiveDriver
    methods/rounds/loop.py: Rounds.request, Rounds.step, round_block, round_sums
    passes/loop.py: Run.drive, run_pass, sum_blocks
    kernels/maps.py: design_tiles, row_mapper
    kernels/sincos.py: write_waves

Between two passes `FourierSpace.search` (`methods/frequency_search/frequency_space.py`) finds the next candidates on
sampled rows, by the ascents of `search_peaks` on the potential of `landscape` (both `peak_search.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, replace
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.dictionaries import Dictionaries, ListedDictionary, Steps
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap, combined_map, shares_of_lengths
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.threads import one_blas_thread
from dkl.linear.minibatches import HeldOut
from dkl.linear.refinement_driver import is_refinable
from dkl.linear.target_statistics import TargetScale, target_units
from dkl.methods.bounds_mixin import CertifiedMargins
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool, FrequencySpace
from dkl.methods.frequency_search.learner import PreparedRows, SearchingLearner, SearchStrategy
from dkl.methods.frequency_search.peak_search import LEAST_COLUMNS, SearchOptions
from dkl.methods.frequency_search.searched_rows import KEPT_BYTES
from dkl.methods.game.learner import GameSolver
from dkl.methods.margin.driver import (
    CHAINS_A_CANDIDATE,
    LOW_DIMENSION,
    ROUNDS_BEFORE_DESCENT,
    CorrectiveDriver,
    CorrectiveProblem,
    CorrectiveState,
    RoundSchedule,
    ascent_steps,
    first_sample,
)
from dkl.methods.metric.learner import LearnedMetricMixin, MetricKind
from dkl.methods.modelled import WorkingModelMixin
from dkl.methods.nystrom.driver import whitening_of
from dkl.methods.parameters import MARGIN, Constraints, estimator, family_of, kept_frequencies
from dkl.methods.refining import refine_learner
from dkl.methods.room import check_room
from dkl.methods.rounds.dictionary import Dictionary
from dkl.methods.rounds.driver import RoundsDriver
from dkl.methods.rounds.learner import WorkingLoss, monotone_signs, rounds_problem
from dkl.methods.rounds.loop import HeldTargets
from dkl.methods.rounds.problem import RoundsProblem, model_map
from dkl.methods.scoring import check_log_rows
from dkl.methods.warm_start import has_start
from dkl.passes.loop import PlanEndsError, PlannedRun, check_reach
from dkl.passes.memory import CACHE_SHARE
from dkl.passes.room import own_room
from dkl.solvers.losses import LOG_LINK
from dkl.solvers.round_losses import ROUND_EPSILON, ROUND_QUANTILES

Solver = Literal["corrective", "game"]
# The most rows of the first search, and their bytes.
_MOST_SAMPLED, _SAMPLE_BYTES = 400_000, 64 << 20
# The most points with n_features="auto", and its patience in rounds.
AUTO_FEATURES, _AUTO_PATIENCE = 2_000, 5
# Chains of a search, and the length of their first step in units of sqrt(d) / sigma.
_CHAINS, _STRIDE = 20, 0.2
# Share of the chains that move on neighbourhoods of correlated columns, and the number of points from which they are
# used: on held-out rows of MNIST 1,000 features improve by it (4 v 9 0.1 %, ten digits 0.4 to 0.6), the first hundred
# do not.
_NEAR_SHARE, _NEAR_FROM = 0.85, 50
# Up to LOW_DIMENSION columns peaks are farther apart, so the first step is at least _LEAST_STRIDE / sqrt(d).
_LEAST_STRIDE = 1.4
# On few rows an ascent fits noise. Below _FEW rows for each column, of which at most LOW_DIMENSION count, half of the
# features are random draws, and the number of searched ones is bounded by a share of the rows; below _VERY_FEW searched
# points are the best of many starts, without ascent.
_FEW, _VERY_FEW = 500, 150
_FEW_SHARE, _VERY_FEW_SHARE = 1 / 10, 1 / 20
# The bound on searched features for numeric targets, as a share of the rows: a number has more information than a
# label.
_NUMBERS_SHARE = 3 / 10
# Random starts of which a search on very few rows keeps the best.
_STARTS = 200
# Growth of a late round with several classes, which find equally good features in fewer, larger rounds; one model does
# not.
_LATE_GROWTH = 0.35
# For n rows below this number the last model's penalty is multiplied by n / _ENOUGH_ROWS.
_ENOUGH_ROWS = 10_000
# The last steps under the log loss and with several classes use an upper bound of the curvature: they are shorter than
# Newton's, and approach the model of `LogisticRegression` or `LinearSVC` gradually. They end when one lowers the
# objective by less than _LEAST_GAIN of it, or after _SETTLING_STEPS passes.
_SETTLING_STEPS = 30
_LEAST_GAIN = {
    **dict.fromkeys(("log_loss", "softmax", "huber", "poisson", "gamma"), 1e-7),
    **dict.fromkeys(("squared_hinge", "pinball"), 1e-6),
}
# The C for C=None, 1/80.
_C = 0.0125
# C multiplies the whole square of an error, as in `LinearSVR`, which is twice the loss of that name.
_C_OF = {"squared_error": 2.0}
# All rounds run on rows in memory, without further passes, if these take at most this many bytes, and are at most
# `RoundsProblem.search_rows`.
_IN_MEMORY_BYTES = 256 << 20


@estimator
class MarginFeatures(CertifiedMargins, WorkingModelMixin, LearnedMetricMixin, SearchingLearner):
    """Few features for a given accuracy: each one is searched where the model on the others has the largest error.

    Rounds alternate between the dual weights s of a linear model on the present features, and the peaks of their
    Fourier potential |sum_i s_i exp(i w.x_i)|^2 over all frequencies w. A round reads all rows once. Peaks are searched
    on a sample of the rows with nonzero dual weights, and every candidate is verified on all rows before it is added.

    Parameters
    ----------
    family : Family, list of dictionaries, or None
        ``Gaussian()`` (None) searches all of R^d, from starts scaled by its bandwidth; a finite family such as
        ``SphericalHarmonics`` is evaluated as a whole. In a list such as ``[dkl.Gaussian(), dkl.Steps(),
        dkl.Landmarks()]`` families of waves, steps, kernels at landmarks, ``SphericalHarmonics`` and ``Coordinates()``
        compete: each round adds those columns, from any of them, for which a Newton step lowers the objective most,
        given the present columns. Held-out rows then choose the penalty and the end, so `C`, `tol` and `refine` do not
        apply.
    n_features : int or "auto"
        The most output columns; a cosine-sine pair has two. "auto" stops when the held-out loss no longer falls.
    solver : {"corrective", "game"}
        "corrective": the working model is refitted after each round by a Newton step on block sums. "game": the paper's
        projected gradient steps on the dual weights, which are stored next to the rows. The game has no regression,
        since its box is that of the hinge's dual, and its theorems bound a margin. For numbers use "corrective", whose
        rounds search the same potential of the residuals.
    loss : str or None
        For classes "squared_hinge" (None), "log_loss" or "squared_error", each of one class against the rest, "softmax"
        for more than two classes jointly, and "hinge" (None in the game); in a list of dictionaries None is "log_loss"
        for two classes, else "squared_error". For numbers "squared_error" (None), "huber" (the squared error up to an
        error of `epsilon`), "pinball" (a model for each of the `quantiles` of each target); "poisson" for counts and
        "gamma" for positive sizes, whose mean is exp(f), and whose targets are not standardised.
    epsilon : float
        The width of "huber", in standard deviations of y.
    quantiles : sequence of float
        Only for "pinball".
    C : float or None
        The C of ``|u|^2/2 + C sum loss`` on the features that `transform` returns, with a free intercept, as in
        `LinearSVC`, `LogisticRegression` and, for the game, `SVC`. For "squared_error" the sum is that of squared
        errors, as in ``LinearSVR(loss="squared_epsilon_insensitive")``, of targets divided by their standard deviation:
        `Ridge` then has ``alpha = 1/(2C)``. None is 1 for the game, and 1/80 for rounds, since a strong penalty keeps
        features diverse; once all are found on n < 10,000 rows, the last model has 125/n. For a much larger C the last
        model may end before its optimum (with several classes after 30 further passes); `duality_gap_` bounds the
        difference.
    rounds : int or None
        The most rounds; None sets no limit.
    features_per_round : int or None
        Columns that a round adds. None adds 6 at first, later 15 % of the present ones, and for more than two classes
        35 % from 300 columns on (the game: up to 20); with `refine` a quarter of `n_features`.
    tol : float or None
        Stop at this duality gap, relative to the objective.
    patience : int or None
        Stop after this number of rounds in a row that do not lower the held-out loss by more than 1e-4 of the lowest
        one before. The features of the best round are kept.
    validation_fraction : float
        The share of the rows held out for `patience` and ``n_features="auto"``.
    chains : int or None
        Points that ascend in parallel; None is 3 for each point that a round adds, but at least 20 (the game: 100).
    steps, stride, noise : int, float, float or None
        Parameters of the ascent: the number of steps, the length of the first one times sqrt(d)/sigma, and the length
        of the Langevin noise relative to it. None is 5 (20 from 200,000 rows on), 0.2 and 0 (the game: as in
        `PeakFeatures`).
    sparse_share : float
        The share of the chains that move on 1 to 3 columns: readable main effects and interactions. From the 50th
        frequency on, most of the others move on 10 to 150 correlated columns, if dense rows of at least 300 columns
        have such (pixels, signals), and ascend 14 steps.
    plain_share : float or None
        The share of random draws among the features of a round. None is 0, and 0.5 on few rows, where a search fits
        noise: below 5,000 rows at most n/10 features are searched for, below 1,500 n/20, and without ascent (for
        numeric targets 3n/10). There a machine with alpha="auto" draws all features (1.0), unless a search lowers the
        held-out loss.
    search_rows : int or None
        Rows of the sample; None is 10,000 or a 20th of all, and more if verified potentials are much lower than sampled
        ones.
    max_norm : float or None
        The longest length of a frequency.
    projection : {"exact", "alternating"}
        Only for the game: projection onto the feasible dual weights, or the paper's ten alternations.
    dynamics : {"no-regret", "excessive-gap"}
        Only for the game on a finite family.
    metric : {"diagonal", "full"} or None
        Search frequencies in a metric, which is learned first, as in `RandomFeatures`; for families with a bandwidth,
        and not for the game. In a list it applies to waves and landmarks: steps and columns do not depend on units, and
        harmonics ignore it.
    monotone : mapping of int or str to {1, -1}, or None
        Columns, by name or number, in which the working model must increase (1) or decrease (-1), for a list of
        dictionaries with `Steps` or `Coordinates`: these guarantee it, as in `StepFeatures`, and waves and landmarks
        use only the other columns.
    refine : int or "auto"
        Epochs of gradient descent on frequencies and weights at the end, of which the best on held-out rows is kept.
        "auto" is at most ten, ended by three in a row without a lower held-out loss; fewer on more than 200,000 rows,
        so that they step through two million rows in all: at least two epochs, each on blocks of at most a million
        rows, drawn anew. Steps follow one another, so that more workers do not shorten them.
    warm_start : bool
        Start with the features of the last fit and add more. The game continues with the dual weights of the same rows,
        for `rounds` more rounds, or as many as further features need (a finite family: 200).
    scaling, max_rows
        As in `RandomFeatures`; `max_rows` bounds the rows of all passes.
    class_weight : dict, "balanced" or None
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`. With `checkpoint`, an interrupted fit resumes after its last round, to the same bits.

    Attributes
    ----------
    feature_map_ : FeatureMap
    frequencies_ : ndarray or csr_array of shape (m, d)
    weights_ : ndarray of shape (m,)
        The share of each in the working model, or the dual measure of the game; sums to 1.
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        The working model on the features, in units of the targets.
    loss_ : str
        The loss of the working model (rounds only).
    history_ : list of dict
        One line for each round: features, loss, held-out loss, gap, potentials, support, margin.
    duality_gap_ : float
        Of the last round with a single family, relative to the objective; an estimate unless `certified_`, since a
        search can only bound the largest potential from below.
    certified_ : bool
    refinement_ : list of float
        The held-out loss of each epoch, with `refine`.
    dual_ : dask.array.Array
        The dual weights of all rows, as a lazy array (game only).
    points_ : ndarray of shape (m, ...)
        The start of a further fit with `warm_start`: frequencies, or their numbers in the pool of a finite family
        (rounds only).
    bounds_ : Bounds
        Guarantees of the game; empty for rounds. See `error_bound` for the probability of error.
    message_ : str
        Why the rounds ended.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`; `classes_` for labels only.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithms 1 to 3.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.margin.learner import MarginFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = MarginFeatures(n_features=40, scaling="standard", random_state=0).fit(X, y)
    >>> learner.transform(X).shape
    (569, 40)
    >>> bool(learner.machine_.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = MARGIN
    _supervised: ClassVar[bool] = True  # type: ignore[misc]
    _searches: ClassVar[bool] = True  # type: ignore[misc]

    family: Any = None
    n_features: int | Literal["auto"] = 500  # type: ignore[assignment]
    solver: Solver = "corrective"
    _: KW_ONLY
    loss: str | None = None
    epsilon: float = ROUND_EPSILON
    quantiles: Sequence[float] = ROUND_QUANTILES
    C: float | None = None
    rounds: int | None = None
    features_per_round: int | None = None
    tol: float | None = None
    patience: int | None = None
    validation_fraction: float = 0.1
    chains: int | None = None
    steps: int | None = None
    stride: float | None = None
    noise: float | None = None
    sparse_share: float = 0.25
    plain_share: float | None = None
    search_rows: int | None = None
    max_norm: float | None = None
    projection: str = "exact"
    dynamics: str = "no-regret"
    metric: MetricKind | None = None
    monotone: Mapping[int | str, int] | None = None
    refine: int | str = 0
    warm_start: bool = False

    def _check_room(self, dataset: Dataset) -> None:
        if self.n_features != "auto":
            size = self._n_frequencies(family_of(self))
            check_room(self, size, dataset.n_columns, n_points=size)

    def _replay(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """The planned passes, followed by those of the refinement of a feature map of the largest size."""
        learner, plan = super()._replay(dataset)
        if self.refine:
            rows = learner._used(dataset)
            learner._plan, learner.feature_map_ = plan, self.planned_map(rows)
            with suppress(PlanEndsError):
                refine_learner(learner, rows)
            learner._plan = None
        return learner, plan

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A feature map of the largest size that `fit` can learn."""
        if self.n_features != "auto":
            return super().planned_map(dataset)
        return copy.copy(self).set_params(n_features=AUTO_FEATURES).planned_map(dataset)

    def _check_rest(self) -> None:
        self._strategy().check()
        if self.refine and self._planned_family().draw(1, 2, 0).activation != "cos-sin":
            raise ValueError(
                f"refine={self.refine!r} moves the frequencies of cosine-sine pairs, and {family_of(self)!r} has none; "
                "set refine=0"
            )
        family = family_of(self)
        if self.metric is not None and self.solver != "corrective":
            raise ValueError(
                f"metric={self.metric!r} is for features that are searched by rounds: take solver='corrective', or "
                "metric=None"
            )
        if self.metric is not None and isinstance(family, Dictionaries) and not family.others:
            raise ValueError(
                f"metric={self.metric!r} moves the rows of waves and landmarks, and {list(family.families)!r} has "
                "neither: steps and columns are the same in any units; list dkl.Gaussian() or dkl.Landmarks() beside "
                "them, or take metric=None"
            )
        if self.n_features != "auto":
            self._n_frequencies(family_of(self))

    def _strategy(self) -> SearchStrategy:
        """The solver, which defines what the parameters mean; the other methods do not depend on it."""
        if not isinstance(family_of(self), Dictionaries):
            if self.monotone is not None:
                raise ValueError(
                    "monotone is for a list of dictionaries with steps or columns, since waves rise and fall; take "
                    "family=[dkl.Steps(), dkl.Gaussian()], or StepFeatures(monotone=...)"
                )
            return GameSolver(self) if self.solver == "game" else CorrectiveSolver(self)
        if self.solver != "corrective" or self.warm_start:
            given = "warm_start=True" if self.warm_start else f"solver={self.solver!r}"
            raise ValueError(f"{given} is for a single family; a list of them takes solver='corrective' from the start")
        return DictionarySolver(self)

    def _learn(self, dataset: Dataset) -> None:
        solver: Any = self._strategy()
        # the plan, which refuses too many features, covers only rows that are not in memory
        self._check_room(dataset)
        start = self._start(dataset, solver)
        if self._plan is None:
            # parameters that do not match these rows, and a folder that not all workers can reach, are refused before
            # any pass, since those before the search may take hours
            columns = solver.columns(super()._replay(dataset)[1].problems[-1], None)
            if columns is not None:
                check_reach(columns.store)
            if self.loss in LOG_LINK:
                check_log_rows(dataset, str(self.loss))
        scaler = self._prepare(dataset)
        self._learn_metric(dataset, scaler)
        for name in ("points_", "dual_", "_played", "duality_gap_", "loss_"):
            self.__dict__.pop(name, None)
        self._take_targets(dataset)
        rows = self._prepared(dataset, scaler, target_units(dataset, self._running("targets")))
        self.total_weight_ = rows.total_weight
        problem = solver.problem(rows, start)
        self._run(
            solver.driver(),
            problem,
            dataset,
            solver.stage,
            None if self._plan else solver.columns(problem, start),
            keep=lambda learner, state: learner.__dict__.update(solver.fitted(rows, problem, state)),
        )
        if self.refine and self._plan is None:
            refine_learner(self, dataset)
            self.points_ = np.asarray(self.feature_map_.projection.dense(), dtype=np.float32)

    def _start(self, dataset: Dataset, solver: Any) -> Any:
        """The start from the last fit with `warm_start`: its points, or the game with its dual weights.

        Raises
        ------
        ValueError
            If the last fit had other columns, or the game had other rows.
        """
        if not has_start(self, dataset, "adds to features"):
            return None
        # this fit needs another checkpoint than the last one
        self._fingerprint += f" after {len(self.history_)} rounds" if self._fingerprint else ""
        start, self.seed_ = solver.continued(vars(self), dataset, self.seed_)
        return start


class CorrectiveSolver(SearchStrategy):
    """`solver="corrective"` of MarginFeatures: the working model is refitted after each round.

    With a smaller `memory_limit` fewer features stay between rounds; the bits are the same.
    """

    stage: ClassVar[str] = "rounds"

    def driver(self) -> CorrectiveDriver:
        """The driver, which may store features of the searched rows in half the memory that passes use to cache blocks.

        The rows of a search and the ascent on them, 128 MiB, are subtracted first.
        """
        left = max(0, own_room(self.given.memory_limit).nbytes - 2 * _SAMPLE_BYTES)
        return CorrectiveDriver(min(KEPT_BYTES, int(CACHE_SHARE * left) // 2))

    def continued(self, last: Mapping[str, Any], dataset: Dataset, drawn: int) -> tuple[np.ndarray | None, int]:
        """The points of the last fit, to which further ones are added (None after a game), and the seed.

        It is the newly drawn seed, since further rounds must draw other numbers.
        """
        return last.get("points_"), drawn

    def problem(self, rows: PreparedRows, start: np.ndarray | None) -> CorrectiveProblem:
        """The problem on these rows; raises ValueError for a loss that does not match the targets."""
        dataset = rows.dataset
        space = self._frequency_space(rows)
        held_out = self._held_out(rows)
        loss = self._loss(dataset)
        targets = loss.targets(dataset, self._target_units(rows, loss.name), rows.class_weight)
        n_models = len(targets.models)
        most = max(1_000, min(_MOST_SAMPLED, rows.within(_SAMPLE_BYTES)))
        first = self.given.search_rows or min(first_sample(dataset.n_rows), most)
        # |u|^2 / 2 + C sum loss on features of amplitude 1 / sqrt(m) is ridge m |w|^2 / 2 + sum loss on unscaled ones
        ridge = 1.0 / (_C_OF.get(loss.name, 1.0) * (_C if self.given.C is None else self.given.C))
        # a strong penalty keeps features diverse during the search, but on few rows it is too strong for predictions
        last_ridge = ridge * (min(1.0, rows.total_weight / _ENOUGH_ROWS) if self.given.C is None else 1.0)
        return CorrectiveProblem(
            space=space,
            targets=HeldTargets(targets, None if held_out is None else held_out.mask),
            n_models=n_models,
            n_rows=dataset.n_rows,
            n_points=self._n_points(rows, space),
            total_weight=rows.total_weight * (1.0 - (0.0 if held_out is None else held_out.share)),
            loss=loss.table,
            ridge=last_ridge if self.given.n_features == "auto" else ridge,
            last_ridge=last_ridge,
            schedule=self._schedule(rows, space, n_models, loss.name),
            sample_rows=first,
            most_rows=max(first, most),
            seed=rows.seed,
            dtype=rows.dtype,
            start=start,
        )

    def fitted(self, rows: PreparedRows, problem: CorrectiveProblem, state: CorrectiveState) -> dict[str, Any]:
        """The points as a feature map with amplitudes 1 / sqrt(m), and the model on it, in units of the targets.

        A feature of a finite set that was found c times occurs once, with amplitude sqrt(c / m) (Bullins, Zhang & Zhang
        2018, appendix A.3).
        """
        loss, points = self._loss(rows.dataset), state.points
        if isinstance(problem.space, FourierSpace):
            # searches in R^d never find a point twice
            first = position = np.arange(len(points))
            counts = np.ones(len(points))
        else:
            _, first, position, repeats = np.unique(points, True, True, True, axis=0)
            order = np.argsort(first)
            first, counts = first[order], repeats[order].astype(np.float64)
            position = np.argsort(order)[position.reshape(-1)]
        # coefficients of a feature found several times add up: (K, parts, distinct points)
        by_point = state.coefficients[:, :-1].reshape(problem.n_models, problem.parts, -1)[:, :, : len(points)]
        merged = np.zeros((len(first), problem.n_models, problem.parts))
        np.add.at(merged, position, by_point.transpose(2, 0, 1))
        coefficients = merged.transpose(1, 2, 0)
        amplitudes = np.sqrt(counts / max(1, len(points)))
        coef = (coefficients / amplitudes).reshape(problem.n_models, -1)
        units = self._target_units(rows, loss.name)
        coef, intercept = loss.in_own_units(coef, state.coefficients[:, -1], units)
        return {
            "feature_map_": replace(problem.space.feature_map(points[first]), amplitudes=amplitudes),
            "weights_": shares_of_lengths(coefficients),
            "coef_": coef,
            "intercept_": intercept,
            "loss_": loss.name,
            "history_": state.lines(),
            "duality_gap_": float(state.series("duality_gap")[-1]),
            # the gap is an estimate, since a search bounds the largest potential from below only
            "certified_": False,
            "message_": state.message,
            "points_": points,
        }

    def _loss(self, dataset: Dataset) -> WorkingLoss:
        """The loss of the working model; raises ValueError if it does not match the targets."""
        loss = WorkingLoss.of(self.given, dataset, of_classes="squared_hinge")
        if self.given.refine and not is_refinable(loss.name, has_classes=dataset.classes is not None):
            of_classes = " of classes" if dataset.classes is not None else ""
            raise ValueError(
                f"refine={self.given.refine!r} descends on the squared error of numbers, or on the squared hinge or "
                f"the log loss of each class against the rest, and loss={loss.name!r}{of_classes} is none of them; "
                "take one, or set refine=0"
            )
        return loss

    @staticmethod
    def _target_units(rows: PreparedRows, loss: str) -> TargetScale | None:
        """Mean and deviation of the targets; None for classes, and for losses with mean exp(f)."""
        return None if loss in LOG_LINK else rows.target_scale

    def _held_out(self, rows: PreparedRows) -> HeldOut | None:
        """The rows that a machine withholds, which judge the rounds, too; else those for patience or refinement."""
        needs_rows = self.given.patience is not None or self.given.n_features == "auto" or bool(self.given.refine)
        return rows.context.left_out(self.given.validation_fraction, rows.seed, needs_rows=needs_rows)

    def _n_points(self, rows: PreparedRows, space: FrequencySpace) -> int:
        """The most points to find; a finite family has no more than all of its own."""
        if self.given.n_features == "auto":
            most = AUTO_FEATURES // space.columns_a_point
        else:
            most = kept_frequencies("MarginFeatures", self.given.n_features, rows.family)
        return min(most, space.pool.n_frequencies) if isinstance(space, FrequencyPool) else most

    def _schedule(self, rows: PreparedRows, space: FrequencySpace, n_models: int, loss: str) -> RoundSchedule:
        """The schedule of the rounds: how many points they add, how many of these are searched, and when they end."""
        dataset, context, given = rows.dataset, rows.context, self.given
        few = _are_fewer(dataset, _FEW)
        share = (0.5 if few else 0.0) if given.plain_share is None else given.plain_share
        schedule = RoundSchedule(rounds=given.rounds, patience=given.patience, tol=given.tol, plain_share=share)
        # for one model of the squared hinge steps are Newton's own, and a machine fits its own model
        settles = not (loss == "squared_hinge" and (n_models == 1 or context.for_machine))
        if loss in _LEAST_GAIN and settles:
            schedule = replace(schedule, settling=_SETTLING_STEPS, least_gain=_LEAST_GAIN[loss])
        if few and given.plain_share is None:
            share_of_labels = _VERY_FEW_SHARE if _are_fewer(dataset, _VERY_FEW) else _FEW_SHARE
            searched_share = _NUMBERS_SHARE if dataset.classes is None else share_of_labels
            schedule = replace(schedule, most_searched=max(1, int(searched_share * dataset.total_weight)))
        if given.n_features == "auto" and given.patience is None:
            schedule = replace(schedule, patience=_AUTO_PATIENCE)
        if context.withheld is not None and schedule.patience is None:
            # the machine that withholds rows fits its own model
            schedule = replace(schedule, settling=0)
        each = given.features_per_round
        if each is None and given.refine and isinstance(given.n_features, Integral):
            each = -(-int(given.n_features) // ROUNDS_BEFORE_DESCENT)
        if each is not None:
            first = max(1, each // space.columns_a_point)
            return replace(schedule, first=first, growth=0.0, late_growth=0.0)
        # with patience a round is a unit of progress, so rounds stay small
        several = dataset.classes is not None and n_models > 1 and not few
        return replace(schedule, late_growth=_LATE_GROWTH) if several and schedule.patience is None else schedule

    def _frequency_space(self, rows: PreparedRows) -> FrequencySpace:
        """The set of features to search, with longer ascents on more rows."""
        dataset, given = rows.dataset, self.given
        d, very_few = dataset.n_columns, _are_fewer(dataset, _VERY_FEW)
        steps = 1 if very_few else ascent_steps(dataset.total_weight, d)
        # finding correlated columns takes memory, and is useful for many dense rows with many columns
        has_neighbours = not (_are_fewer(dataset, _FEW) or dataset.source.is_sparse or d < LEAST_COLUMNS)
        options = SearchOptions(
            chains=(_STARTS if very_few else _CHAINS) if given.chains is None else given.chains,
            steps=steps if given.steps is None else given.steps,
            stride=max(_STRIDE, _LEAST_STRIDE / np.sqrt(d)) if given.stride is None else given.stride,
            noise=0.0 if given.noise is None else given.noise,
            sparse_share=given.sparse_share,
            near_share=_NEAR_SHARE if has_neighbours else 0.0,
            near_steps=max(SearchOptions.near_steps, steps) if given.steps is None else given.steps,
            max_norm=given.max_norm,
        )
        space = rows.frequency_space("MarginFeatures", options, CHAINS_A_CANDIDATE if given.chains is None else 0.0)
        if not isinstance(space, FourierSpace):
            return space
        return replace(space, near_room=max(0, self._n_points(rows, space) - _NEAR_FROM))


def _are_fewer(dataset: Dataset, rows_a_column: int) -> bool:
    """Whether there are fewer rows than this number for each column, of which at most LOW_DIMENSION count."""
    return dataset.total_weight < rows_a_column * min(dataset.n_columns, LOW_DIMENSION)


class DictionarySolver(CorrectiveSolver):
    """`family=[...]` of MarginFeatures: atoms of several dictionaries compete in each round.

    The penalty is chosen on held-out rows in each round.
    """

    stage: ClassVar[str] = "dictionaries"

    def check(self) -> None:
        """Raise ValueError for parameters that do not apply to a list of families."""
        for name, neutral in {"C": None, "tol": None, "refine": 0}.items():
            if (value := getattr(self.given, name)) != neutral:
                raise ValueError(
                    f"{name}={value!r} has no meaning with a list of families: held-out rows choose the "
                    f"penalty and the end; leave {name} out"
                )

    def driver(self) -> Any:
        """The driver of the rounds."""
        return RoundsDriver()

    def problem(self, rows: PreparedRows, start: Any) -> Any:
        """The problem on these rows; raises ValueError for a loss that does not match the targets."""
        dataset = rows.dataset
        family: Any = rows.family
        family.validate()
        loss = WorkingLoss.of(self.given, dataset)
        targets = loss.targets(dataset, loss.units(rows.target_scale), rows.class_weight)
        held_out = rows.context.judging(self.given.validation_fraction, rows.seed)
        most = min(RoundsProblem.search_rows, max(1_000, rows.within(_IN_MEMORY_BYTES)))
        steps = family.steps or Steps()
        signs = monotone_signs(self.given.monotone, dataset, len(targets.models))
        free = None if signs is None else signs == 0
        if free is not None and family.steps is None and not family.has_columns:
            raise ValueError(
                "monotone is a promise that steps and columns can keep, and waves and landmarks cannot: these take "
                "part on the other columns; list dkl.Steps() or dkl.Coordinates() beside them"
            )
        if free is not None and family.others and not free.any():
            raise ValueError(
                f"monotone names all {dataset.n_columns} columns, so that none is left for {family.others[0]!r}; list "
                "dkl.Steps() and dkl.Coordinates() alone"
            )
        return rounds_problem(
            dataset,
            HeldTargets(targets, held_out.mask),
            loss,
            total_weight=rows.total_weight,
            features_per_round=self.given.features_per_round,
            search_rows=self.given.search_rows or most,
            for_machine=rows.context.for_machine,
            n_features=AUTO_FEATURES if self.given.n_features == "auto" else int(self.given.n_features),
            dictionaries=tuple(self._dictionary(rows, one, free) for one in family.others),
            depth=0 if family.steps is None else steps.depth,
            bins=steps.bins,
            has_columns=True if family.has_columns else False if family.steps is None else None,
            in_memory=dataset.n_rows <= (self.given.search_rows or most),
            patience=RoundsProblem.patience if self.given.patience is None else self.given.patience,
            seed=rows.seed,
            dtype="float64" if family.is_double else rows.dtype,
            signs=signs,
            rounds=self.given.rounds,
            growth=0.1 if self.given.features_per_round is None else 0.0,
        )

    def fitted(self, rows: PreparedRows, problem: Any, state: Any) -> dict[str, Any]:
        """The fitted attributes of the best round on held-out rows: its feature map, and the working model.

        Chosen landmarks are whitened. All m columns are divided by sqrt(m), and l whitened ones among them multiplied
        by sqrt(l), so that a column of each kind has a mean square of about 1 / m.
        """
        n_atoms, n_points = (int(size) for size in state.best_sizes)
        n_atoms = min(state.n_atoms, max(n_atoms, 1))
        best = replace(
            state,
            columns=state.columns[:n_atoms],
            thresholds=state.thresholds[:n_atoms],
            kinds=state.kinds[:n_atoms],
            points=state.points[:n_points],
            source=state.source[:n_points],
        )
        whole, coefficients = model_map(problem, best), state.best
        if whole.n_features < 2:
            raise ValueError(
                "no column of any dictionary lowers the loss on the rows that are held out, so there is nothing to "
                "learn; check the columns, or allow more rows (max_rows)"
            )
        m = whole.n_features - 1
        maps: list[FeatureMap] = []
        factors, coef = [], []
        for part, own in whole.split(coefficients):
            if part.activation == "steps":
                # the first atom is the constant, whose coefficient is the intercept
                kept = np.arange(1, part.n_features)
                if len(kept) == 0:
                    continue
                part, own = part.take(kept), own[:, kept]
            factor = 1.0 / np.sqrt(m)
            if isinstance(part.projection, NystromProjection):
                # whitened kernels k(x, Z) A with A = L^-T have the coefficients A^-1 w for the same model
                whitening = whitening_of(part.projection.landmarks, part.projection.kernel)
                with one_blas_thread():
                    own = np.linalg.solve(whitening, (own * part.amplitudes).T).T
                projection = replace(part.projection, whitening=whitening)
                part = replace(part, projection=projection, amplitudes=np.ones(part.n_features))
                factor *= np.sqrt(part.n_features)
            maps.append(part)
            factors.append(factor)
            coef.append(own / factor)
        loss = WorkingLoss.of(self.given, rows.dataset)
        units = loss.units(rows.target_scale)
        weights, intercept = loss.in_own_units(np.concatenate(coef, axis=1), coefficients[:, 0], units)
        feature_map = combined_map(maps, np.array(factors))
        return {
            "feature_map_": feature_map,
            "weights_": shares_of_lengths((weights * feature_map.amplitudes)[:, None]),
            "coef_": weights,
            "intercept_": intercept,
            "loss_": loss.name,
            "history_": state.lines(),
            "certified_": False,
            "message_": f"{state.message}: {m} columns in {len(state.history)} rounds",
        }

    def _dictionary(self, rows: PreparedRows, family: Any, free: np.ndarray | None) -> Dictionary:
        """One of the dictionaries, restricted to the columns without a sign in `monotone`."""
        metric = rows.metric
        if free is not None:
            if isinstance(family, FiniteFamily):
                raise ValueError(
                    f"monotone is a promise that steps and columns can keep, and each feature of {family!r} depends on "
                    "all columns; list dkl.Steps(), dkl.Coordinates(), waves or landmarks alone"
                )
            # a metric that is 0 in the columns with a sign
            metric = free.astype(np.float64) if metric is None else (metric.T * free).T
        if isinstance(family, ListedDictionary):
            return family.searched(rows.scaler, metric)
        return self._frequency_space(replace(rows, family=family, metric=metric))
