"""RandomFeatures: plain random Fourier features, the baseline that every other learner is measured against."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Family
from dkl.features.scaling import ScalingChoice
from dkl.methods.base import FeatureLearner
from dkl.methods.parameters import (
    COMMON,
    ClassWeight,
    Constraints,
    Progress,
    RandomState,
    StorePath,
    family_of,
    kept_frequencies,
)
from dkl.methods.room import check_room


class RandomFeatures(FeatureLearner):
    """Features drawn from the prior of a family, whatever the targets are.

    Parameters
    ----------
    family : Family or None
        Law of the frequencies; None is ``Gaussian()`` with the median bandwidth.
    n_features : int
        Output columns, an upper bound: a cosine-sine pair takes two.
    scaling : {None, "auto", "standard", "minmax", "unit", "quantile"}
        How columns are scaled first; the bandwidth is the median after scaling. "auto" is "standard", and None for
        sparse rows.
    max_rows : int or None
        Scaler and bandwidth from this many rows at most.
    class_weight : None
        Taken for the sake of one interface; the targets are not looked at.
    dtype : {"float32", "float64"}
        Of frequencies and features.
    device : {"auto", "cpu", "gpu", "mixed"}
        "auto" takes GPUs if all workers have one; with "mixed" each worker takes what it has.
    random_state : int, RandomState or None
        A number gives the same features on every machine; the seed used is `seed_`.
    checkpoint : str or None
        Where the state is kept between passes.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes a process may use; a plan that cannot be kept is refused.

    Attributes
    ----------
    feature_map_ : FeatureMap
    family_ : Family
        With its bandwidth.
    frequencies_ : ndarray of shape (m, d)
    scaler_ : Scaler or None
    seed_ : int
    n_features_in_ : int
    stats_ : list of PassStats
    provenance_ : Provenance
        The rows of the fit, what was read and held, versions; `dkl.report` prints it. Every fitted model has it, a
        learner within a machine does not.

    References
    ----------
    Rahimi & Recht 2007, "Random features for large-scale kernel machines".

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X, y = load_iris(return_X_y=True)
    >>> RandomFeatures(n_features=50, random_state=0).fit_transform(X).shape
    (150, 50)
    """

    _parameter_constraints: ClassVar[Constraints] = COMMON

    n_features: int

    def __init__(
        self,
        family: Family | None = None,
        n_features: int = 1_000,
        *,
        scaling: ScalingChoice | None = None,
        max_rows: int | None = None,
        class_weight: ClassWeight = None,
        dtype: str = "float32",
        device: str = "auto",
        random_state: RandomState = None,
        checkpoint: StorePath = None,
        progress: Progress = None,
        memory_limit: int | str | None = None,
    ) -> None:
        self.family = family
        self.n_features = n_features
        self.scaling = scaling
        self.max_rows = max_rows
        self.class_weight = class_weight
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress
        self.memory_limit = memory_limit

    def _planned_method(self, dataset: Dataset) -> list[tuple[Any, int]]:
        """None: frequencies are drawn without the rows."""
        check_room(self, kept_frequencies(type(self).__name__, self.n_features, family_of(self)), dataset.n_columns)
        return []

    def _check_rest(self) -> None:
        kept_frequencies(type(self).__name__, self.n_features, family_of(self))

    def _learn(self, dataset: Dataset) -> None:
        scaler = self._prepare(dataset)
        # A pair of cosine and sine has two columns, so that half as many frequencies are drawn.
        size = kept_frequencies(type(self).__name__, self.n_features, self.family_)
        drawn = self.family_.draw(size, dataset.n_columns, self.seed_, self.dtype)
        # m frequencies of amplitude c / sqrt(m) make phi(x).phi(y) the mean of m kernels, whose mean is k(x, y)
        amplitude = self.family_.feature_scale(dataset.n_columns) / np.sqrt(size)
        self.feature_map_ = replace(drawn, amplitudes=np.full(size, amplitude), scaler=scaler)
