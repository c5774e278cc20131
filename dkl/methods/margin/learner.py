"""MarginFeatures: features searched for where the machine on those found so far errs most."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Protocol, TypeVar

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
from dkl.methods.parameters import COMMON, MARGIN, Constraints, estimator, family_of, kept_frequencies
from dkl.methods.refining import refine_learner
from dkl.methods.room import check_room
from dkl.methods.scoring import check_log_rows
from dkl.methods.warm_start import has_start
from dkl.passes.loop import PlanEndsError, PlannedRun, check_reach
from dkl.solvers.losses import LOG_LINK
from dkl.solvers.round_losses import ROUND_EPSILON, ROUND_QUANTILES

Solver = Literal["corrective", "game"]
P = TypeVar("P")
S = TypeVar("S")
T = TypeVar("T")


class MarginSolver(SearchStrategy[P, S, T], Protocol[P, S, T]):
    """A strategy behind `solver`, with the start that it takes from the last fit with `warm_start`."""

    goes_on_from: ClassVar[str]

    def start(self, last: T | None, dataset: Dataset) -> T | None:
        """The start of rounds on these rows, from the attribute `goes_on_from` of the last fit."""
        ...

    def seed(self, start: T | None, drawn: int) -> int:
        """The seed of the rounds, where `drawn` was drawn for them."""
        ...


SOLVERS: dict[Solver, type[MarginSolver[Any, Any, Any]]] = {"corrective": CorrectiveSolver, "game": GameSolver}


@estimator
class MarginFeatures(CertifiedMargins, WorkingModelMixin, LearnedMetricMixin, SearchingLearner):
    """The fewest features for a given accuracy: each is searched for where the machine on the others errs most.

    Rounds alternate between the dual of a linear machine on the features so far, and the peaks of the Fourier potential
    of that dual: |sum_i s_i exp(i w.x_i)|^2 over all frequencies w. A round reads all rows once. Peaks are searched on
    a sample of the rows with a dual weight, and every candidate is verified on all rows before it is taken.

    Parameters
    ----------
    family : Family, list of dictionaries, or None
        ``Gaussian()`` (None) searches all of R^d, from starts of its bandwidth; a finite family such as
        ``SphericalHarmonics`` is weighed as a whole. In a list, ``[dkl.Gaussian(), dkl.Steps(), dkl.Landmarks()]``,
        families of waves, steps, kernels at landmarks, ``SphericalHarmonics`` and ``Coordinates()`` compete: each round
        takes the columns, of any of them, that lower the objective most by a Newton step on the part of them that the
        present columns do not explain. Held-out rows choose the penalty and the end, so that `C`, `tol` and `refine`
        have no meaning then.
    n_features : int or "auto"
        Output columns, an upper bound: a cosine-sine pair takes two. "auto" stops where held-out rows gain no more.
    solver : {"corrective", "game"}
        "corrective": the working model is refitted after each round by a Newton step on block sums. "game": the paper's
        projected gradient steps on the dual weights, which are stored next to the rows. It has no regression: its game
        is for the margin, its box is that of the hinge's dual, and its theorems bound a margin. For numbers take
        "corrective", whose rounds search the same potential of the residuals.
    loss : str or None
        Of classes "squared_hinge" (None), "log_loss", "squared_error", each class against the rest, "softmax" of more
        than two classes together, and "hinge" (None in the game); None in a list of dictionaries is "log_loss" for two
        classes, else "squared_error". Of numbers "squared_error" (None), "huber" (the square up to an error of
        `epsilon`), "pinball" (the `quantiles` of each target, a model each); "poisson" of counts and "gamma" of sizes,
        whose mean is exp(f), and neither standardises them.
    epsilon : float
        Of "huber", in deviations of y.
    quantiles : sequence of float
        Of "pinball".
    C : float or None
        Of the machine ``|u|^2/2 + C sum loss`` on the features that `transform` returns, with a free intercept: what
        `LinearSVC`, `LogisticRegression` and, for the game, `SVC` mean by C. Of "squared_error" the sum is that of the
        squares of the errors, as in ``LinearSVR(loss="squared_epsilon_insensitive")``, of targets in units of their
        deviation: `Ridge` has ``alpha = 1/(2C)`` there. None is 1 for the game, and for rounds 1/80, where a heavy
        penalty keeps features diverse; once all are found on n rows, fewer than 10,000, the last model has 125/n.
        For a C much larger than that the last model may end short of its optimum (of several classes, after 30 further
        passes): `duality_gap_` says by how much at most.
    rounds : int or None
        Rounds at most; None for as many as the features take.
    features_per_round : int or None
        Columns that a round adds. None adds 6 at first, 15 % of what is there later, and for more than two classes 35 %
        from 300 columns on (the game: up to 20).
    tol : float or None
        Stop at this duality gap, relative to the objective.
    patience : int or None
        Stop after this number of rounds in a row without a gain on held-out rows: without a loss that is lower, by more
        than 1e-4 of it, than the lowest before. The features of the best round are kept.
    validation_fraction : float
        The share of the rows held out for `patience` and ``n_features="auto"``.
    chains : int or None
        Points that ascend at once; None is 3 for each point that a round adds, at least
        20 (the game: 100).
    steps, stride, noise : int, float, float or None
        Of the ascent: the number of steps, the length of the first one times sqrt(d)/sigma, and the length of the
        Langevin noise relative to it. None is 5 (20 from 200,000 rows on), 0.2 and 0 (the game: as in `PeakFeatures`).
    sparse_share : float
        The share of the chains that live on 1 to 3 columns: main effects and interactions that a person can read.
        From the 50th frequency on, most of the others live on 10 to 150 columns that go together, where dense rows of
        300 columns or more have such (pixels, signals), and ascend 14 steps.
    plain_share : float or None
        The share of random draws among the features of a round. None is 0, and on few rows, where a search
        follows the noise, 0.5: below 5,000 rows at most n/10 are searched for, below 1,500 n/20, and without ascent
        (of rows with numbers 3n/10). There a machine with alpha="auto" draws all of them (1.0) unless a search gains
        on held-out rows.
    search_rows : int or None
        Rows of the sample; None is 10,000 or a 20th of all, and more where the verified potentials fall behind the
        sampled ones.
    max_norm : float or None
        No frequency becomes longer.
    projection : {"exact", "alternating"}
        Of the game: onto the dual weights that are feasible, or the paper's ten alternations.
    dynamics : {"no-regret", "excessive-gap"}
        Of the game on a finite family.
    metric : {"diagonal", "full"} or None
        Frequencies are searched for in a learned metric, which is found first, as of `RandomFeatures`; of families
        with a bandwidth, and not in the game. In a list it applies to waves and landmarks: steps and columns do not
        depend on units, and harmonics ignore it.
    monotone : mapping of int or str to {1, -1}, or None
        Columns, by name or number, in which the working model has to rise (1) or fall (-1), for a list of dictionaries
        with `Steps` or `Coordinates`: these keep the promise, as in `StepFeatures`, and waves and landmarks look at
        the other columns only.
    refine : int
        Epochs of joint descent on frequencies and weights at the end, stopped early on held-out rows.
    warm_start : bool
        Begin with the features of the last fit and add to them. The game goes on with the dual weights of the same
        rows: `rounds` more, or as many as further features take (a finite family: 200).
    scaling, max_rows
        As of `RandomFeatures`; `max_rows` bounds the rows of all passes.
    class_weight : dict, "balanced" or None
    dtype, device, random_state, checkpoint, progress, memory_limit
        As of `RandomFeatures`. With `checkpoint` a killed fit goes on from its last round, to the same bits.

    Attributes
    ----------
    feature_map_ : FeatureMap
    frequencies_ : ndarray or csr_array of shape (m, d)
    weights_ : ndarray of shape (m,)
        The share of each in the working model, or the learned dual measure (game); sums to 1.
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        The working model on the features, in the targets' own units.
    loss_ : str
        Of the working model (rounds only).
    history_ : list of dict
        One line a round: features, loss, held-out loss, gap, potentials, support, margin.
    duality_gap_ : float
        Of the last round of a single family, relative; an estimate unless `certified_`, since a search bounds
        potentials from below only.
    certified_ : bool
    refinement_ : list of float
        The held-out loss of each epoch, with `refine`.
    dual_ : dask.array.Array
        The dual weights of all rows, lazily (game only).
    points_ : ndarray of shape (m, ...)
        What `warm_start` begins with: frequencies, or their numbers in the pool of a finite family (rounds only).
    bounds_ : Bounds
        What the game guarantees; empty for rounds. `error_bound` bounds the probability of error.
    message_ : str
        How it ended.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As of `RandomFeatures`; `classes_` for labels only.

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
    refine: int = 0
    warm_start: bool = False
    scaling: ScalingChoice | None = None

    def _check_room(self, dataset: Dataset) -> None:
        if self.n_features != "auto":
            size = kept_frequencies(type(self).__name__, self.n_features, family_of(self))
            check_room(self, size, dataset.n_columns, n_points=size)

    def _replayed(self, dataset: Dataset) -> PlannedRun:
        """As of every learner; then the refinement, of a map of the largest size."""
        plan = super()._replayed(dataset)
        if self.refine:
            learner = self._unfitted()
            learner._plan, learner.feature_map_ = plan, self.planned_map(dataset)
            with suppress(PlanEndsError):
                refine_learner(learner, dataset)
        return plan

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A map of the largest size that `fit` can learn."""
        if self.n_features != "auto":
            return super().planned_map(dataset)
        return copy.copy(self).set_params(n_features=AUTO_FEATURES).planned_map(dataset)

    def _check_rest(self) -> None:
        self._strategy().check()
        if self.refine and self._planned_family().draw(1, 2, 0).activation != "cos-sin":
            raise ValueError(
                f"refine={self.refine} moves the frequencies of cosine-sine pairs, and {family_of(self)!r} has none; "
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
            kept_frequencies(type(self).__name__, self.n_features, family_of(self))

    def _strategy(self) -> MarginSolver[Any, Any, Any]:
        """The solver, which gives the parameters their sense: nothing below depends on which one it is."""
        if not isinstance(family_of(self), Dictionaries):
            if self.monotone is not None:
                raise ValueError(
                    "monotone is for a list of dictionaries with steps or columns, since waves rise and fall; take "
                    "family=[dkl.Steps(), dkl.Gaussian()], or StepFeatures(monotone=...)"
                )
            return self._with_parameters(SOLVERS[self.solver])
        if self.solver != "corrective" or self.warm_start:
            given = "warm_start=True" if self.warm_start else f"solver={self.solver!r}"
            raise ValueError(f"{given} is for a single family; a list of them takes solver='corrective' from the start")
        return self._with_parameters(DictionarySolver)

    def _learn(self, dataset: Dataset) -> None:
        solver = self._strategy()
        # a fit of rows in memory is not planned before
        self._check_room(dataset)
        start = self._start(dataset, solver)
        if self._plan is None:
            # Parameters that have no meaning for these rows are refused before any pass, and a folder that not all
            # workers see: the passes before the search may take hours.
            columns = solver.columns(super()._replayed(dataset).problems[-1], None)
            if columns is not None:
                check_reach(columns.store)
            if self.loss in LOG_LINK:
                check_log_rows(dataset, str(self.loss))
        scaler = self._prepare(dataset)
        self._learn_metric(dataset, scaler)
        for name in ("points_", "dual_", "_played", "duality_gap_", "loss_"):
            self.__dict__.pop(name, None)
        if dataset.task == "classification":
            self.classes_ = dataset.classes
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

    def _start(self, dataset: Dataset, solver: MarginSolver[Any, Any, Any]) -> Any:
        """The points of the last fit, or the game that it played, with `warm_start`.

        Raises
        ------
        ValueError
            If they are of rows with other columns, or the game of other rows.
        """
        if not has_start(self, dataset, "adds to features"):
            return None
        # a checkpoint of the last fit does not hold this one
        self._fingerprint += f" after {len(self.history_)} rounds" if self._fingerprint else ""
        start = solver.start(getattr(self, solver.goes_on_from, None), dataset)
        self.seed_ = solver.seed(start, self.seed_)
        return start
