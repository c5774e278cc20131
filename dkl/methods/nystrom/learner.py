"""NystromFeatures: the columns of a kernel at landmarks, for any kernel in closed form and any targets."""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.scaling import Scaler, ScalingChoice
from dkl.methods.base import FeatureLearner
from dkl.methods.metric.learner import LearnedMetricMixin, MetricKind
from dkl.methods.nystrom.driver import NystromDriver, NystromProblem
from dkl.methods.nystrom.landmarks import Landmarks, whitening_of
from dkl.methods.nystrom.ordered import ordered_columns, ordered_names
from dkl.methods.parameters import NYSTROM, Constraints, estimator
from dkl.methods.preparation.driver import PreparationProblem
from dkl.methods.room import check_matrices

# Rows that landmarks are chosen from: for each landmark, and at most. Uniform landmarks are the drawn rows themselves.
_ROWS_A_LANDMARK, _MOST_ROWS = 10, 20_000


@estimator
class NystromFeatures(LearnedMetricMixin, FeatureLearner):
    """A kernel, as the columns k(x, z) at landmarks z, whitened.

    A linear model on these columns is the kernel machine whose solution is a sum of kernels at the landmarks, with the
    kernel's own penalty. As many landmarks as different rows give the kernel machine itself.

    Parameters
    ----------
    kernel : Family or None
        Any family with a kernel in closed form; None is ``Matern(0.5)``, exp(-|x - z| / sigma), which does well on
        tables. Its `sigma` may be "median".
    n_features : int
        Landmarks at most; equal rows count once.
    landmarks : {"uniform", "kmeans", "leverage", "rpcholesky"}
        Rows drawn uniformly; centroids of k-means; rows by ridge leverage scores; rows by randomly pivoted Cholesky.
        All but the first look at ten rows for each landmark, at most 20,000.
    sigma_factor : float
        Multiplies the bandwidth.
    metric : {"diagonal", "full"} or None
        A learned metric: rounds fit a kernel model on 600 to 1,000 landmarks, take the mean of the outer
        products of its gradients as the metric of the next round, and end where held-out rows gain no more. "diagonal"
        is a factor for each column, "full" a d x d matrix, for dense rows of at most 5,000 columns. Learned with the
        targets, by squared errors for classes, too; for kernels of the distance (Gaussian, Matern of 0.5, 1.5, 2.5),
        and for Laplacian ones by rounds with Matern(0.5).
    validation_fraction : float
        The share of the rows held out to judge rounds of the metric.
    categories : {"one-hot", "ordered"}
        What the kernel sees of a table's categories of few values. "ordered": equally spaced ranks where the texts have
        an order, as single letters and texts with a number have ("18-24", "25-40"); others stay one-hot. Not beside a
        learned metric.
    scaling, max_rows
        As of `RandomFeatures`.
    class_weight : dict, "balanced" or None
    dtype, device, random_state, checkpoint, progress, memory_limit
        As of `RandomFeatures`. On a GPU similarities of the Gaussian, Laplacian and Matern (nu .5, 1.5, 2.5) are
        computed there, others on the host.

    Attributes
    ----------
    landmarks_ : ndarray of shape (l, d)
        In the units of the scaled rows, and in the metric.
    metric_ : ndarray of shape (d,) or (d, d), or None
        The root R of the learned metric: the kernel is one of |R'x - R'z| for scaled rows.
    ordered_ : tuple of str
        The columns of the table whose ranks are taken.
    metric_history_ : list of dict
        A line a round of the metric, the first one without it: loss on held-out rows, penalty.
    feature_map_ : FeatureMap
    family_, scaler_, seed_, n_features_in_, stats_
        As of `RandomFeatures`; `family_` is the kernel with its bandwidth.

    References
    ----------
    Williams & Seeger 2001, "Using the Nystrom method to speed up kernel machines"; El Alaoui & Mahoney 2015 for
    leverage scores; Chen, Epperly, Tropp & Webber 2023 for randomly pivoted Cholesky; Radhakrishnan, Beaglehole, Pandit
    & Belkin 2024, "Mechanism for feature learning in neural networks and backpropagation-free machine learning models",
    for the metric.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.nystrom.learner import NystromFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> NystromFeatures(n_features=60, scaling="standard", random_state=0).fit_transform(X).shape
    (569, 60)
    """

    _parameter_constraints: ClassVar[Constraints] = NYSTROM
    _parts: ClassVar[tuple[str, ...]] = ("kernel",)
    _metric_of_own_kernel: ClassVar[bool] = True

    kernel: Any = None
    n_features: int = 1_000
    landmarks: Landmarks = "uniform"
    _: KW_ONLY
    sigma_factor: float = 1.0
    metric: MetricKind | None = None
    validation_fraction: float = 0.2
    categories: Literal["one-hot", "ordered"] = "one-hot"
    scaling: ScalingChoice | None = None

    @property
    def landmarks_(self) -> np.ndarray:
        """The landmarks, of shape (l, d), in the units of the scaled rows."""
        return self.feature_map_.projection.dense()

    def planned_features(self, dataset: Dataset) -> int:
        """Landmarks at most: they are rows."""
        m = min(self.n_features, dataset.n_rows)
        check_matrices(self, m)
        return m

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A map of the largest number of landmarks."""
        m, d = min(self.n_features, dataset.n_rows), dataset.n_columns
        metric = self._moving(dataset)
        if self.metric is not None:
            metric = np.ones((d, d) if self.metric == "full" else d)
        width = d if metric is None else metric.shape[-1]
        # every column is the similarity to the last landmark, so that a plan times products with all of them: pages of
        # zeros that nobody writes to take no memory, and a plan holds a matrix for each candidate
        whitening = np.zeros((m, m))
        whitening[-1:] = 1.0
        projection = NystromProjection(self._planned_family(), np.zeros((m, width)), whitening, metric)
        return FeatureMap("nystrom", projection, np.ones(m))

    def _part(self, name: str) -> Any:
        """The kernel that the parameter names."""
        return self._prior()

    def _prior(self) -> Any:
        """The kernel, possibly without its bandwidth."""
        return Matern(0.5) if self.kernel is None else self.kernel

    def _learn(self, dataset: Dataset) -> None:
        self._class_weights(dataset)
        moving = self._moving(dataset)
        self.ordered_ = () if moving is None else ordered_names(dataset.encoding)
        scaler = self._prepare(dataset)
        if (sigma := getattr(self.family_, "sigma", None)) is not None:
            self.family_ = self.family_.with_bandwidth(float(sigma) * self.sigma_factor)
        self._learn_metric(dataset, scaler)
        metric = self.metric_ if moving is None else moving
        problem = replace(self._problem(dataset, self.family_, scaler, self.seed_), metric=metric)
        landmarks = self._run(NystromDriver(), problem, dataset, "landmarks").landmarks
        whitening = whitening_of(landmarks, self.family_)
        projection = NystromProjection(self.family_, landmarks, whitening, metric)
        self.feature_map_ = FeatureMap("nystrom", projection, np.ones(projection.n_frequencies), scaler=scaler)

    def _moving(self, dataset: Dataset) -> np.ndarray | None:
        """The matrix that scaled rows are multiplied by for the kernel; None if the kernel applies it, or for none."""
        if self.categories == "one-hot":
            return None
        if self.metric is not None:
            raise ValueError(
                f"categories='ordered' and metric={self.metric!r} both move the rows; take metric=None, or "
                "categories='one-hot'"
            )
        return ordered_columns(dataset.encoding, dataset.n_columns)

    def _preparation(self, dataset: Dataset, family: Any, seed: int) -> PreparationProblem:
        """The preparation, with the bandwidth of the rows as the kernel sees them."""
        return replace(super()._preparation(dataset, family, seed), moving=self._moving(dataset))

    def _problem(self, dataset: Dataset, kernel: Any, scaler: Scaler | None, seed: int) -> NystromProblem:
        looked_at = self.n_features
        if self.landmarks != "uniform":
            looked_at = max(looked_at, min(_ROWS_A_LANDMARK * looked_at, _MOST_ROWS))
        return NystromProblem(kernel, scaler, self.n_features, min(looked_at, dataset.n_rows), self.landmarks, seed)
