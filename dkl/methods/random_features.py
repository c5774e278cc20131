"""RandomFeatures: plain random Fourier features, the baseline of all other learners."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Family
from dkl.features.nystrom_projection import in_metric
from dkl.features.projections import DenseProjection
from dkl.methods.base import FeatureLearner
from dkl.methods.metric.learner import LearnedMetricMixin, MetricKind
from dkl.methods.parameters import estimator, family_of
from dkl.methods.room import check_room


@estimator
class RandomFeatures(LearnedMetricMixin, FeatureLearner):
    """Features drawn from the distribution of a family, independent of the targets; or drawn in a learned metric.

    Parameters
    ----------
    family : Family or None
        Distribution of the frequencies; None is ``Gaussian()`` with the median bandwidth.
    n_features : int
        The most output columns; a cosine-sine pair has two.
    metric : {"diagonal", "full"} or None
        Draw the frequencies in a metric that is learned from the targets, by rounds of a kernel model (Matern(0.5), at
        most 1,000 landmarks) as in `NystromFeatures`.
    scaling : {None, "auto", "standard", "minmax", "unit", "quantile", "counts"}
        How columns are scaled first; the median bandwidth is that of scaled rows. "auto" is "standard", and None for
        sparse rows. "counts", for counts of words and other numbers that are not negative, takes log(1 + x) and
        divides each row by its length.
    max_rows : int or None
        Use at most this many rows for scaler and bandwidth.
    class_weight : dict, "balanced" or None
        Weights of the classes for a learned metric; ignored without one.
    dtype : {"float32", "float64"}
        Of frequencies and features.
    device : {"auto", "cpu", "gpu", "mixed"}
        "auto" uses GPUs if all workers have one; with "mixed" each worker uses what it has.
    random_state : int, RandomState or None
        An integer gives the same features on every machine; the seed used is `seed_`.
    checkpoint : str or None
        Where the state is stored between passes.
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may use; a fit that needs more is refused.

    Attributes
    ----------
    feature_map_ : FeatureMap
    family_ : Family
        With its bandwidth.
    frequencies_ : ndarray of shape (m, d)
    metric_, metric_history_
        As in `NystromFeatures`.
    scaler_ : Scaler or None
    seed_ : int
    n_features_in_ : int
    stats_ : list of PassStats
    provenance_ : Provenance
        Rows, bytes, memory and versions of the fit, which `dkl.report` prints. Every fitted model has it, except a
        learner within a machine.

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

    family: Family | None = None
    n_features: int = 1_000
    _: KW_ONLY
    metric: MetricKind | None = None

    def _check_rest(self) -> None:
        self._n_frequencies(family_of(self))

    def _learn(self, dataset: Dataset) -> None:
        # a pair of cosine and sine has two columns, so half as many frequencies are drawn
        size = self._n_frequencies(family_of(self))
        # the plan, which refuses too many features, covers only rows that are not in memory
        check_room(self, size, dataset.n_columns, n_mapped=dataset.n_rows)
        scaler = self._prepare(dataset)
        self._learn_metric(dataset, scaler)
        if self._plan:
            # frequencies are drawn without reading rows
            return
        drawn = self.family_.draw(size, dataset.n_columns, self.seed_, self.dtype)
        # m frequencies with amplitude c / sqrt(m) make phi(x).phi(y) the mean of m unbiased estimates of k(x, y)
        amplitude = self.family_.feature_scale(dataset.n_columns) / np.sqrt(size)
        if self.metric_ is not None:
            # w.(R'x) = (R w).x, and R is symmetric
            moved = in_metric(np.asarray(drawn.projection.dense(), dtype=np.float64), self.metric_)
            drawn = replace(drawn, projection=DenseProjection(moved.astype(self.dtype)))
        self.feature_map_ = replace(drawn, amplitudes=np.full(size, amplitude), scaler=scaler)
