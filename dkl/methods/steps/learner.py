"""StepFeatures: thresholds of columns, hinges and their products, found where the model's errors are large."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import further_seed
from dkl.features.step_projection import MOST_FACTORS, Factor, StepProjection
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.linear.target_statistics import TargetScale, target_units
from dkl.methods.base import FeatureLearner
from dkl.methods.modelled import WorkingModelMixin
from dkl.methods.parameters import STEPS, Constraints, estimator, weight_of
from dkl.methods.rounds.driver import RoundsDriver
from dkl.methods.rounds.learner import WorkingLoss, monotone_signs, rounds_problem
from dkl.methods.rounds.loop import HeldTargets
from dkl.methods.rounds.problem import RoundsProblem, RoundsState, first_state
from dkl.methods.scoring import check_log_rows
from dkl.methods.steps.atoms import with_atoms
from dkl.protocols.held_together import are_times
from dkl.solvers.losses import LOG_LINK
from dkl.solvers.round_losses import ROUND_EPSILON, ROUND_QUANTILES


@estimator
class StepFeatures(WorkingModelMixin, FeatureLearner):
    """Steps, hinges and their products as columns of a linear model: the functions that trees can learn.

    An atom is a product of at most `depth` factors, each a step ``x[j] > t`` or, as the last one, a hinge ``max(0, x[j]
    - t)``. Rounds alternate between refitting the coefficients of all atoms, with a penalty chosen on held-out rows,
    and adding the atoms that lower the loss most: these follow from histograms, by column and threshold, of the rows
    inside each present product. Held-out rows also decide when to stop.

    The first round starts with all columns as linear terms, if these are at most a third of `n_features`, and with
    steps on pairs of columns that explain the targets only jointly: inside such a step the next round finds the effect
    of the other column, which no single step shows.

    Rows need no scaling, and the features are readable: each column of `transform` is a sentence of `atoms_`.

    Parameters
    ----------
    depth : {1, 2, 3}
        The most factors of an atom: 1 for main effects only, 2 for pairs of columns.
    bins : int
        The most thresholds of a column.
    n_features : int
        The most atoms; fewer if the held-out loss no longer falls.
    loss : str or None
        The loss of the working model. None is "log_loss" for two classes, and "squared_error" for numbers and for
        several classes. For classes "log_loss", "squared_error" and "squared_hinge", each of one class against the
        rest, and "softmax" for more than two jointly. For numbers "squared_error", "huber" (the squared error up to an
        error of `epsilon`), "pinball" (a model for each of the `quantiles` of each target), "poisson" for counts and
        "gamma" for positive sizes.
    epsilon : float
        The width of "huber", in standard deviations of y.
    quantiles : sequence of float
        Only for "pinball".
    monotone : mapping of int or str to {1, -1}, or None
        Columns, by name or number, in which the working model must increase (1) or decrease (-1): coefficients of all
        atoms on such a column have that sign. With two classes it is the score of the second one. A machine on the
        features would have unsigned coefficients, and refuses; use `machine_`.
    features_per_round : int or None
        None adds one for every 60 rows, at least 5 and at most 25.
    search_rows : int or None
        Size of the sample for rounds and thresholds, which the driver keeps in memory. With None the rounds read all
        rows, in two passes each.
    patience : int
        Stop after this number of rounds in a row that do not lower the held-out loss by more than 1e-4 of it.
    validation_fraction : float
        Share of the rows held out for this.
    bags : int
        How often the rounds run, each time with different rows held out. The features are the atoms of all runs, at
        most `n_features` of each, and the working model is the mean of their models: it predicts better than a single
        one, and `dkl.explain.effects` of `machine_` shows how much they differ.
    max_rows, class_weight, dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`.

    Attributes
    ----------
    atoms_ : list of str
        Each feature as a text, ``"age > 42.5 and (income - 1000)+"``.
    feature_map_ : FeatureMap
    coef_, intercept_ : ndarray of shape (K, n_features) and (K,)
        The working model on the features, in units of the targets.
    bag_coef_ : ndarray of shape (bags, K, n_features)
        Coefficients of each run, whose mean is `coef_`.
    loss_ : str
        The loss of the working model.
    history_ : list of dict
        One line for each round, run after run: features, held-out loss, penalty.
    message_ : str
        Why the rounds ended.
    seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`; `classes_` for labels only.

    References
    ----------
    Friedman 1991, "Multivariate adaptive regression splines"; Lou, Caruana, Gehrke & Hooker 2013, "Accurate
    intelligible models with pairwise interactions", for tables of all pairs of columns; Ke et al. 2017, "LightGBM", for
    the histograms; Bullins, Zhang & Zhang 2018 for rounds that refit all coefficients.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.steps.learner import StepFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = StepFeatures(depth=2, random_state=0).fit(X, y)
    >>> bool(learner.machine_.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = STEPS
    _supervised: ClassVar[bool] = True
    _searches: ClassVar[bool] = True
    _parts: ClassVar[tuple[str, ...]] = ()
    scaling: ClassVar[None] = None  # type: ignore[misc]

    depth: int = 3
    bins: int = 64
    n_features: int = 800
    _: KW_ONLY
    loss: str | None = None
    epsilon: float = ROUND_EPSILON
    quantiles: Sequence[float] = ROUND_QUANTILES
    monotone: Mapping[int | str, int] | None = None
    features_per_round: int | None = None
    search_rows: int | None = 200_000
    patience: int = 8
    validation_fraction: float = 0.2
    bags: int = 1

    @property
    def atoms_(self) -> list[str]:
        """Each feature as a text about the columns."""
        names = getattr(self, "feature_names_in_", None)
        if self.encoding_ is not None:
            names = self.encoding_.column_names
        return self._steps.described(None if names is None else [str(name) for name in names])

    @property
    def frequencies_(self) -> np.ndarray:
        """The columns that each atom depends on, as zeros and ones of shape (m, d)."""
        return self._steps.dense()

    @property
    def _steps(self) -> StepProjection:
        return self.feature_map_.projection_as(StepProjection)

    def planned_features(self, dataset: Dataset) -> int:
        """The most atoms, over all runs."""
        return self.bags * self.n_features

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A map of the largest number of atoms, each of three factors."""
        factors = np.zeros((self.planned_features(dataset), MOST_FACTORS))
        steps = StepProjection(factors.astype(np.int32), factors, factors.astype(np.int8), np.zeros(dataset.n_columns))
        return FeatureMap("steps", steps, np.ones(len(factors)))

    def _learn(self, dataset: Dataset) -> None:
        self._take_targets(dataset)
        loss = WorkingLoss.of(self, dataset)
        if loss.name in LOG_LINK and self._plan is None:
            check_log_rows(dataset, loss.name)
        scale = loss.units(target_units(dataset, self._running("targets")))
        problem = self._problem(dataset, scale, self.seed_)
        states = list[RoundsState]()
        for bag in range(self.bags):
            # hinges of all bags end at the same values, so that their atoms belong to one feature map
            own = replace(
                problem,
                targets=self._bag_targets(problem.targets.targets, bag, self.seed_),
                given_bins=states[0].bins if states else None,
            )
            last = self._run(
                RoundsDriver(),
                own,
                dataset,
                f"rounds of bag {bag}" if bag else "rounds",
                keep=lambda learner, state: learner._keep_result(problem, [*states, state], loss, scale),
            )
            states.append(last)

    def _problem(self, dataset: Dataset, scale: TargetScale | None, seed: int) -> RoundsProblem:
        """The problem of the rounds, from the parameters.

        Raises
        ------
        ValueError
            For a loss that does not match the targets.
        """
        weights, loss = self._class_weights(dataset), WorkingLoss.of(self, dataset)
        targets = loss.targets(dataset, scale, weights)
        return rounds_problem(
            dataset,
            self._bag_targets(targets, 0, seed),
            loss,
            total_weight=weight_of(dataset, weights),
            features_per_round=self.features_per_round,
            search_rows=self.search_rows or RoundsProblem.search_rows,
            # a machine fits its own model
            for_machine=self._context.for_machine,
            n_features=self.n_features,
            depth=self.depth,
            bins=self.bins,
            in_memory=self.search_rows is not None,
            patience=self.patience,
            seed=seed,
            dtype=self.dtype,
            signs=monotone_signs(self.monotone, dataset, len(targets.models)),
        )

    def _bag_targets(self, targets: NewtonTargets, bag: int, seed: int) -> HeldTargets:
        """The targets with this bag's held-out rows: consecutive shares, drawn anew after each row was held out."""
        context, share = self._context, self.validation_fraction
        judging = context.judging(share, seed)
        lap, part = divmod(bag, max(1, int(1.0 / share)))
        own = HeldOut(share, further_seed(seed, lap), part * share)
        rows = BagRows(judging, own, judging is context.withheld or context.judging_seed is not None)
        return HeldTargets(targets, rows.judges, rows.left_out if self.bags > 1 else None)

    def _keep_result(
        self, problem: RoundsProblem, states: Sequence[RoundsState], loss: WorkingLoss, units: TargetScale | None
    ) -> None:
        """Set the fitted attributes: the atoms of all bags' best rounds, divided by sqrt(m), and their coefficients."""
        places: dict[tuple[Factor, ...], int] = {}
        places_of = []
        for state in states:
            if state.n_atoms == 1:
                raise ValueError(
                    "no column takes two values on the rows that are learned from, so there is no step to find; "
                    "check the columns, or allow more rows (max_rows, search_rows)"
                )
            # the first atom is the constant, whose coefficient is the intercept
            atoms = state.projection(np.arange(1, max(2, state.best.shape[1]))).factors
            places_of.append(np.array([places.setdefault(atom, len(places)) for atom in atoms]))
        m = len(places)
        coef, intercept = np.zeros((len(states), problem.n_models, m)), np.zeros((len(states), problem.n_models))
        for bag, (state, own) in enumerate(zip(states, places_of, strict=True)):
            coef[bag][:, own[: state.best.shape[1] - 1]], intercept[bag] = state.best[:, 1:], state.best[:, 0]
        joint, first = with_atoms(first_state(problem), list(places)), states[0]
        joint_map = replace(joint, high=first.high, scale=first.scale).atom_map(np.arange(1, m + 1))
        root = np.sqrt(m)
        self.feature_map_ = replace(joint_map, amplitudes=joint_map.amplitudes / root)
        coef, intercept = loss.in_own_units(coef * root, intercept, units)
        self.bag_coef_, self.coef_, self.intercept_ = coef, coef.mean(axis=0), intercept.mean(axis=0)
        self.loss_ = loss.name
        self.history_ = [line for state in states for line in state.lines()]
        bags = f" of {len(states)} bags" if len(states) > 1 else ""
        self.message_ = f"{first.message}: {m} atoms in {len(self.history_)} rounds{bags}"


@dataclass(frozen=True, eq=False)
class BagRows:
    """The held-out rows that judge a bag, and the rows that it leaves out, so that bags differ.

    Each bag is judged on its own share of the rows. If the held-out rows are fixed (a machine withholds rows, target
    means exclude their targets, or the newest rows judge), they judge all bags, and each bag also leaves out its own
    share.

    Parameters
    ----------
    judging : HeldOut
        The held-out rows if they are fixed.
    own : HeldOut
        The share of rows of this bag.
    is_given : bool
    """

    judging: HeldOut
    own: HeldOut
    is_given: bool

    def judges(self, held_with: np.ndarray) -> np.ndarray:
        """A mask (n,) of the held-out rows."""
        return (self.judging if self.is_given or are_times(held_with) else self.own).mask(held_with)

    def left_out(self, held_with: np.ndarray) -> np.ndarray:
        """A mask (n,) of the rows that this bag leaves out, among which may be held-out rows."""
        if self.is_given or are_times(held_with):
            return self.own.mask(held_with)
        return np.zeros(len(held_with), bool)
