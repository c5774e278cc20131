"""Checks a feature learner: the promises that scikit-learn's own checks do not cover."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError

from dkl.data.coerce import as_dataset
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows_on_all_cores
from dkl.protocols.estimators import FittedFeatures
from dkl.testing.require import require, same_bits


class CheckedLearner(FittedFeatures, Protocol):
    """A feature learner with the attributes that only its checks need."""

    dtype: str

    def get_feature_names_out(self) -> np.ndarray:
        """A name for each output column."""
        ...


def check_learner(learner: CheckedLearner, *, n_rows: int = 400) -> None:
    """Raise AssertionError if `learner` breaks a promise that models and users rely on.

    It is cloned and fitted a few times on scikit-learn's digits: give it few candidates and features.

    Parameters
    ----------
    learner : FeatureLearner
        Unfitted; its clones have `random_state=0`.
    n_rows : int
        The number of rows of the fits.

    Raises
    ------
    AssertionError
        Naming the promise and what was found instead.

    Examples
    --------
    >>> from dkl.methods.random_features import RandomFeatures
    >>> from dkl.testing.learners import check_learner
    >>> check_learner(RandomFeatures(n_features=20))
    """
    images, labels = load_digits(return_X_y=True)
    X, y = images[:n_rows].astype(np.float32), labels[:n_rows]
    learner = clone(learner).set_params(random_state=0)
    # scikit-learn clones estimators by their parameters, which a fit must therefore leave as they are.
    before = repr(learner.get_params())
    try:
        clone(learner).transform(X)
    except NotFittedError:
        pass
    else:
        raise AssertionError("transform before fit raises sklearn.exceptions.NotFittedError")
    fitted = clone(learner).fit(X, y)
    require(repr(learner.get_params()) == before, "fit does not change parameters")
    name = type(fitted).__name__
    size = "n_landmarks" if "n_landmarks" in fitted.get_params(deep=False) else "n_features"
    # transform applies the feature map, which has at most the requested number of columns, each with a name.
    require(isinstance(fitted.feature_map_, FeatureMap), f"{name}.fit leaves feature_map_, a FeatureMap")
    mapped = fitted.transform(X)
    require(mapped.shape == (len(X), fitted.feature_map_.n_features), f"{name}.transform has shape {mapped.shape}")
    # The size is an upper bound: repeats of a frequency merge, and a cosine-sine pair is two columns.
    asked = fitted.get_params()[size]
    require(
        not isinstance(asked, int) or mapped.shape[1] <= asked,
        f"{name}: {mapped.shape[1]} columns for {size}={asked}",
    )
    expected = map_rows_on_all_cores(X, fitted.feature_map_, fitted.dtype)
    require(same_bits(mapped, expected), f"{name}.transform applies feature_map_")
    require(bool(np.isfinite(mapped).all()), f"{name}.transform is finite")
    names = fitted.get_feature_names_out()
    require(
        len(names) == mapped.shape[1], f"{name}.get_feature_names_out names {len(names)} of {mapped.shape[1]} columns"
    )
    require(fitted.n_features_in_ == X.shape[1], f"{name}.n_features_in_ is the number of columns of X")
    # A second fit has the bits of the first, and so has one on a Dataset of the same rows.
    again = clone(fitted).fit(X, y).transform(X)
    require(same_bits(again, mapped), f"{name}: the same random_state gives the same bits")
    dataset = as_dataset(X, y)
    of_dataset = clone(fitted).fit(dataset)
    require(same_bits(of_dataset.transform(X), mapped), f"{name}: a Dataset of the same rows gives the same bits")
    # Rows of a Dataset may not fit in memory, so that their features are lazy.
    lazy = of_dataset.transform(dataset)
    require(hasattr(lazy, "dask"), f"{name}.transform(dataset) is a lazy Dask array, not {type(lazy).__name__}")
    require(same_bits(np.asarray(lazy.compute()), mapped), f"{name}: lazy features equal those of arrays")
    # Rows and parameters without a meaning are refused with a ValueError.
    spoiled = X.copy()
    spoiled[3, 5] = np.inf
    # Each attempt must be refused before anything is computed of it.
    for what, attempt in (
        ("infinity in X at fit", lambda: clone(fitted).fit(spoiled, y)),
        ("infinity in X at transform", lambda: fitted.transform(spoiled)),
        ("a missing column at transform", lambda: fitted.transform(X[:, :-1])),
        (f"{size}=0", lambda: clone(fitted).set_params(**{size: 0}).fit(X, y)),
    ):
        try:
            attempt()
        except ValueError:
            continue
        raise AssertionError(f"{name}: {what} raises ValueError")
