"""CombinedFeatures: what several learners find, or several searches of one, as the columns of one linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from functools import partial
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap, combined_map
from dkl.methods.base import FeatureLearner
from dkl.methods.parameters import COMBINED, Constraints, check_parameters, estimator
from dkl.passes.loop import PlannedRun
from dkl.registry import learner_entry, learner_keys

# A prime apart, so that the streams of searches with neighbouring seeds differ.
_BETWEEN_SEEDS = 104_729
# Columns assumed for a learner that chooses its own number of features, when the sum of all learners is bounded.
_OF_ITS_OWN = 1_000


@estimator
class CombinedFeatures(FeatureLearner):
    """The features of several learners side by side, for one linear model on all of them.

    Each learner is fitted on the same rows by itself; `transform` has the columns of all of them, and a machine on it
    fits one coefficient vector for all. Waves, steps and landmarks err on different rows, and so do searches from
    different seeds: the model on all columns is often better than the best on some, and it stays one linear model, with
    one file and one graph.

    Parameters
    ----------
    features : sequence of feature learners and of their names
        ``[dkl.StepFeatures(), dkl.NystromFeatures(scaling="standard")]``; None is these two.
    searches : int
        Number of fits of each learner, with seeds of their own: other samples of the rows (where it has
        `max_rows`), other starts, and, where a machine withholds none, other rows held out.
    n_features : int or None
        Columns of all together at most: learners that ask for more get fewer, each the same share of its own. None
        leaves each its own.
    max_rows : int or None
        Rows at most of the sample that all learners see.
    class_weight : dict, "balanced" or None
        For those learners that have none of their own.
    dtype : {"float32", "float64"}
        Of the features; learners compute in their own.
    device, random_state, checkpoint, progress, memory_limit
        As of `RandomFeatures`; those that a learner has itself stay.

    Attributes
    ----------
    learners_ : list of feature learners
        As they were fitted: the first of all searches, then the second of all.
    feature_map_ : FeatureMap
        Their maps, the columns of L learners divided by sqrt(L).
    seed_, n_features_in_, stats_
        As of `RandomFeatures`.

    References
    ----------
    Breiman 1996, "Stacked regressions", for models of several kinds in one linear one.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> import dkl
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> both = dkl.CombinedFeatures([dkl.StepFeatures(n_features=30), dkl.RandomFeatures(scaling="standard")])
    >>> model = dkl.KernelClassifier(both, solver="newton", random_state=0).fit(X, y)
    >>> [type(learner).__name__ for learner in model.features_.learners_]
    ['StepFeatures', 'RandomFeatures']
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[Constraints] = COMBINED
    _supervised: ClassVar[bool] = True
    _searches: ClassVar[bool] = True
    _parts: ClassVar[tuple[str, ...]] = ()

    features: Sequence[FeatureLearner | str] | None = None
    searches: int = 1
    n_features: int | None = None
    _: KW_ONLY

    @property
    def feature_map_(self) -> FeatureMap:
        """The maps of all learners, their columns divided by the root of their number."""
        maps = [learner.feature_map_ for learner in self.learners_]
        return combined_map(maps, np.full(len(maps), 1.0 / np.sqrt(len(maps))))

    @property
    def validation_fraction(self) -> float:
        """The largest share of the rows that a learner holds out."""
        return max(getattr(learner, "validation_fraction", 0.1) for learner in self._given())

    def _replayed(self, dataset: Dataset) -> PlannedRun:
        """Those of every learner, one after the other."""
        check_parameters(self)
        self._check_rest()
        plan = PlannedRun(n_rows=dataset.n_rows)
        for learner in self._new(0):
            plan.passes.extend(learner.planned_passes(dataset))
            plan.held.append(learner.planned_memory(dataset))
            plan.driving.append(partial(learner.planned_driving, dataset))
        return plan

    def planned_features(self, dataset: Dataset) -> int:
        """Features at most of all learners."""
        return sum(learner.planned_features(dataset) for learner in self._new(0))

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """The largest maps that the learners can learn."""
        return combined_map([learner.planned_map(dataset) for learner in self._new(0)])

    def _check_rest(self) -> None:
        if self.features is not None and not len(self.features):
            raise ValueError("The 'features' parameter of CombinedFeatures must hold feature learners. It is empty.")
        for learner in self._given():
            if not isinstance(learner, FeatureLearner):
                raise ValueError(
                    f"The 'features' parameter of {type(self).__name__} must hold feature learners such as "
                    f"StepFeatures(), or their names. Got {learner!r} among them instead"
                )
            if getattr(learner, "monotone", None):
                raise ValueError(
                    f"a linear model on combined features has coefficients without signs, and {learner!r} would not "
                    "keep its word; fit it by itself and take its machine_"
                )

    def _given(self) -> list[Any]:
        """The learners that the parameter names, unfitted."""
        if self.features is None:
            steps, nystrom = (learner_entry(key).learner_class for key in ("steps", "nystrom"))
            return [steps(), nystrom(scaling="standard")]
        for name in self.features:
            if isinstance(name, str) and name not in learner_keys():
                raise ValueError(f"features: {name!r} is the name of no learner; they are {sorted(learner_keys())}")
        return [learner_entry(f).learner_class() if isinstance(f, str) else f for f in self.features]

    def named_learners(self) -> list[Any]:
        """The learners that `features` lists by name, as unfitted objects that replace the names in `features`.

        Nobody has given them parameters, so that a machine may.
        """
        given = self._given()
        named = (
            given
            if self.features is None
            else [learner for learner, told in zip(given, self.features, strict=True) if isinstance(told, str)]
        )
        self.features = given
        return named

    def _new(self, seed: int) -> list[Any]:
        """A new learner for each fit, with the seed, size and options of this one where it has none of its own."""
        given = self._given()
        sizes = [_size_of(learner) for learner in given]
        share = 1.0 if self.n_features is None else min(1.0, self.n_features / (self.searches * sum(sizes)))
        learners = []
        for number in range(self.searches * len(given)):
            learner, size = clone(given[number % len(given)]), sizes[number % len(given)]
            parameters = learner.get_params(deep=False)
            own: dict[str, Any] = {name: getattr(self, name) for name in ("device", "progress", "memory_limit")}
            own["random_state"] = (seed + number * _BETWEEN_SEEDS) % 2**31
            if self.class_weight is not None:
                own["class_weight"] = self.class_weight
            if self.checkpoint is not None:
                own["checkpoint"] = f"{str(self.checkpoint).rstrip('/')}/learner-{number}"
            changes = {name: value for name, value in own.items() if parameters.get(name) in (None, "auto")}
            if share < 1.0:
                changes["n_features"] = max(2, int(share * size))
            if self.searches > 1:
                # a seed of its own would make all searches alike
                changes["random_state"] = own["random_state"]
            learners.append(learner.set_params(**changes))
        return learners

    def put_together(self, learners: Sequence[FeatureLearner]) -> Self:
        """Set the fitted attributes from learners fitted to the same rows; parts of combined learners count one by one.

        Parameters
        ----------
        learners : sequence of fitted feature learners
        """
        parts = [part for learner in learners for part in getattr(learner, "learners_", [learner])]
        self.learners_, first = parts, parts[0]
        self.seed_, self.encoding_, self.n_features_in_ = first.seed_, first.encoding_, first.n_features_in_
        self.stats_ = [stats for part in parts for stats in part.stats_]
        return self

    def _learn(self, dataset: Dataset) -> None:
        if dataset.classes is not None:
            self.classes_ = dataset.classes
        learners = []
        for learner in self._new(self.seed_):
            learners.append(learner.fit_within(dataset, self._context))
            self.stats_.extend(learner.stats_)
        self.learners_ = learners


def _size_of(learner: FeatureLearner) -> int:
    """The number of columns that a learner may have."""
    size = learner.get_params(deep=False).get("n_features")
    return int(size) if isinstance(size, Integral) else _OF_ITS_OWN
