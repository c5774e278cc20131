"""MarginFeatures: features searched where the model on the present ones has the largest error."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.dictionaries import Dictionaries
from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import ScalingChoice
from dkl.linear.target_statistics import target_units
from dkl.methods.bounds_mixin import CertifiedMargins
from dkl.methods.frequency_search.learner import SearchingLearner, SearchStrategy
from dkl.methods.game.learner import GameSolver
from dkl.methods.margin.dictionary_rounds import DictionarySolver
from dkl.methods.margin.rounds import AUTO_FEATURES, CorrectiveSolver
from dkl.methods.metric.learner import LearnedMetricMixin, MetricKind
from dkl.methods.modelled import WorkingModelMixin
from dkl.methods.parameters import COMMON, MARGIN, Constraints, estimator, family_of
from dkl.methods.refining import refine_learner
from dkl.methods.room import check_room
from dkl.methods.scoring import check_log_rows
from dkl.methods.warm_start import has_start
from dkl.passes.loop import PlanEndsError, PlannedRun, check_reach
from dkl.solvers.losses import LOG_LINK
from dkl.solvers.round_losses import ROUND_EPSILON, ROUND_QUANTILES

Solver = Literal["corrective", "game"]


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
        35 % from 300 columns on (the game: up to 20).
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

    _parameter_constraints: ClassVar[Constraints] = {**COMMON, **MARGIN}
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
    scaling: ScalingChoice | None = None

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
            return self._with_parameters(GameSolver if self.solver == "game" else CorrectiveSolver)
        if self.solver != "corrective" or self.warm_start:
            given = "warm_start=True" if self.warm_start else f"solver={self.solver!r}"
            raise ValueError(f"{given} is for a single family; a list of them takes solver='corrective' from the start")
        return self._with_parameters(DictionarySolver)

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
