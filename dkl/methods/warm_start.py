"""`warm_start`: the start of a fit from the last one or from a working model, and checks that it matches the rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import numpy as np

from dkl.data.dataset import Dataset
from dkl.methods.validation import check_classes
from dkl.protocols.estimators import FittedFeatures


class WarmStarting(FittedFeatures, Protocol):
    """A learner with `warm_start`, which stores the columns and classes of its last fit."""

    warm_start: bool
    _fingerprint: str
    _terms: dict[str, str]


def has_start(learner: WarmStarting, dataset: Dataset, purpose: str) -> bool:
    """Whether `warm_start` is set and there is a last fit; ValueError if it had another number of columns."""
    if not (learner.warm_start and hasattr(learner, "feature_map_")):
        return False
    if learner.feature_map_.n_columns != dataset.n_columns:
        raise ValueError(
            f"warm_start=True {purpose} of {learner.feature_map_.n_columns} columns, and these rows have "
            f"{dataset.n_columns}; set warm_start=False"
        )
    return True


def has_begun(features: object, last: object) -> bool:
    """Whether a machine's features with `warm_start` have a last fit to continue.

    Features that were drawn at random in place of a search are no start for one.
    """
    if not getattr(features, "warm_start", False) or type(last) is not type(features):
        return False
    were_drawn = getattr(last, "plain_share", None) == 1.0 and getattr(features, "plain_share", None) != 1.0
    return not were_drawn


def working_start(features: FittedFeatures, n_models: int) -> np.ndarray | None:
    """The linear model that the learner fitted, (K, m + 1) with the intercept last; None if its shape does not fit."""
    model = getattr(features, "working_model_", None)
    if model is None:
        return None
    coef, intercept = model
    start = np.concatenate([np.atleast_2d(coef), np.reshape(intercept, (-1, 1))], axis=1)
    return start if start.shape == (n_models, features.feature_map_.n_features + 1) else None


def goes_on(learner: WarmStarting, dataset: Dataset, parameters: Iterable[str]) -> bool:
    """Whether `fit` continues the last fit; stores the parameters, and changes the checkpoint's fingerprint if so.

    Parameters
    ----------
    learner : FeatureLearner
        With `warm_start`.
    dataset : Dataset
        The rows of this fit.
    parameters : iterable of str
        Names of parameters that must have the values of the last fit.

    Raises
    ------
    ValueError
        If columns, classes or one of these parameters have changed.
    """
    now = {name: repr(getattr(learner, name)) for name in parameters}
    then, learner._terms = getattr(learner, "_terms", now), now
    if not has_start(learner, dataset, "goes on with frequencies"):
        return False
    check_classes(learner, dataset)
    if changed := [name for name, value in then.items() if now[name] != value]:
        learner._terms = then
        raise ValueError(
            "warm_start=True goes on with the frequencies of the last fit, and since then these have changed: "
            f"{', '.join(changed)}; set warm_start=False to begin anew"
        )
    # this fit starts from another state than the last one, so it needs another checkpoint
    learner._fingerprint += " after a fit" if learner._fingerprint else ""
    return True
