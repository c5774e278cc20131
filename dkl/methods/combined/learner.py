"""CombinedFeatures: the features of several learners, or of several fits of one, as columns of one linear model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.features.feature_map import FeatureMap, combined_map
from dkl.features.frequencies import further_seed
from dkl.methods.base import FeatureLearner
from dkl.methods.parameters import COMBINED, Constraints, estimator
from dkl.passes.loop import PlannedRun
from dkl.registry import learner_entry, learner_keys

# Columns assumed for a learner that chooses its number of features, where the total of all learners is bounded.
_OF_ITS_OWN = 1_000


@estimator
class CombinedFeatures(FeatureLearner):
    """The features of several learners joined column by column, for one linear model on all of them.

    Each learner is fitted separately to the same rows; `transform` has the columns of all of them, and a machine fits
    one coefficient vector to all. Waves, steps and landmarks make different errors, and so do fits with different
    seeds: the joint model is often better than the best of its parts, and it stays one linear model, in one file and
    one graph.

    Parameters
    ----------
    features : sequence of feature learners and of their names
        ``[dkl.StepFeatures(), dkl.NystromFeatures(scaling="standard")]``; None means these two.
    searches : int
        Number of fits of each learner, with different seeds: different samples of the rows (with `max_rows`), different
        starts, and, unless a machine withholds rows, different held-out rows.
    n_features : int or None
        The most columns in total: learners that would exceed it get fewer features, each by the same factor. None
        leaves each learner its own number.
    max_rows : int or None
        The most rows of the sample, which all learners share.
    class_weight : dict, "balanced" or None
        Used for learners without their own.
    dtype : {"float32", "float64"}
        Of the features; learners compute in their own dtype.
    device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`; a learner's own values take precedence.

    Attributes
    ----------
    learners_ : list of feature learners
        The fitted learners: first one fit of each, then the second fits, and so on.
    feature_map_ : FeatureMap
        Their feature maps, with the columns of L learners divided by sqrt(L).
    seed_, n_features_in_, stats_
        As in `RandomFeatures`.

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
    scaling: ClassVar[None] = None  # type: ignore[misc]

    features: Sequence[FeatureLearner | str] | None = None
    searches: int = 1
    n_features: int | None = None
    _: KW_ONLY

    @property
    def feature_map_(self) -> FeatureMap:
        """The feature maps of all learners, their columns divided by the root of their number."""
        maps = [learner.feature_map_ for learner in self.learners_]
        return combined_map(maps, np.full(len(maps), 1.0 / np.sqrt(len(maps))))

    @property
    def validation_fraction(self) -> float:
        """The largest share of the rows that a learner holds out."""
        return max(getattr(learner, "validation_fraction", 0.1) for learner in self._unfitted_learners())

    @property
    def refine(self) -> bool:
        """Whether a learner refines its features, and so holds out a second share of the rows."""
        return any(getattr(learner, "refine", 0) for learner in self._unfitted_learners())

    def planned(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """A copy with planned copies of the learners, and their passes."""
        return self._replay(dataset)

    def planned_features(self, dataset: Dataset) -> int:
        """The most features of all learners together."""
        return sum(learner.planned_features(dataset) for learner in self._new(0))

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """The largest feature maps that the learners can have."""
        return combined_map([learner.planned_map(dataset) for learner in self._new(0)])

    def _check_rest(self) -> None:
        if self.features is not None and not len(self.features):
            raise ValueError("The 'features' parameter of CombinedFeatures must hold feature learners. It is empty.")
        for learner in self._unfitted_learners():
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

    def _unfitted_learners(self) -> list[Any]:
        """The learners of the parameter `features`, unfitted, with names replaced by learners."""
        if self.features is None:
            steps, nystrom = (learner_entry(key).learner_class for key in ("steps", "nystrom"))
            return [steps(), nystrom(scaling="standard")]
        for name in self.features:
            if isinstance(name, str) and name not in learner_keys():
                raise ValueError(f"features: {name!r} is the name of no learner; they are {sorted(learner_keys())}")
        return [learner_entry(f).learner_class() if isinstance(f, str) else f for f in self.features]

    def named_learners(self) -> list[Any]:
        """The learners that `features` lists by name, as unfitted objects that replace the names in `features`.

        They have default parameters, so that a machine may set some.
        """
        learners = self._unfitted_learners()
        named = (
            learners
            if self.features is None
            else [learner for learner, entry in zip(learners, self.features, strict=True) if isinstance(entry, str)]
        )
        self.features = learners
        return named

    def _new(self, seed: int) -> list[Any]:
        """Unfitted learners for all fits; options that they lack are those of this one, sizes fit its `n_features`."""
        templates = self._unfitted_learners()
        given = [learner.get_params(deep=False).get("n_features") for learner in templates]
        sizes = [int(size) if isinstance(size, Integral) else _OF_ITS_OWN for size in given]
        share = 1.0 if self.n_features is None else min(1.0, self.n_features / (self.searches * sum(sizes)))
        learners = []
        for number in range(self.searches * len(templates)):
            learner, size = clone(templates[number % len(templates)]), sizes[number % len(templates)]
            parameters = learner.get_params(deep=False)
            own: dict[str, Any] = {name: getattr(self, name) for name in ("device", "progress", "memory_limit")}
            own["random_state"] = further_seed(seed, number)
            if self.class_weight is not None:
                own["class_weight"] = self.class_weight
            if self.checkpoint is not None:
                own["checkpoint"] = f"{str(self.checkpoint).rstrip('/')}/learner-{number}"
            changes = {name: value for name, value in own.items() if parameters.get(name) in (None, "auto")}
            if share < 1.0:
                changes["n_features"] = max(2, int(share * size))
            if self.searches > 1:
                # a learner's own seed would make all its fits equal
                changes["random_state"] = own["random_state"]
            learners.append(learner.set_params(**changes))
        return learners

    def put_together(self, learners: Sequence[FeatureLearner]) -> Self:
        """Set the fitted attributes from learners fitted to the same rows; combined ones are split into their parts.

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
        self._take_targets(dataset)
        learners = []
        for learner in self._new(self.seed_):
            learners.append(self._running("").learn(learner, dataset, self._context))
            self.stats_.extend(learners[-1].stats_)
        self.learners_ = learners
