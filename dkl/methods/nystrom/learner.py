"""NystromFeatures: kernel columns k(x, z) at landmarks z, for any kernel in closed form and any targets."""

from __future__ import annotations

import mmap
from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.methods.base import FeatureLearner
from dkl.methods.metric.learner import LearnedMetricMixin, MetricKind
from dkl.methods.nystrom.driver import Landmarks, NystromDriver, NystromProblem, whitening_of
from dkl.methods.nystrom.ordered import ordered_columns, ordered_names
from dkl.methods.parameters import estimator
from dkl.methods.preparation.driver import PreparationProblem
from dkl.methods.room import check_matrices

# Rows from which landmarks are chosen: for each landmark, and at most. Uniform landmarks are the sampled rows.
_ROWS_A_LANDMARK, _MOST_ROWS = 10, 20_000


def unwritten_zeros(size: int) -> np.ndarray:
    """A float64 matrix of `size` rows and columns of zeros, whose pages take no memory until they are written.

    A plan has such a matrix for each number of landmarks that may be tried, and never writes to it. `numpy.zeros`
    writes to all pages if the C library reuses memory that the process has freed.

    Raises
    ------
    MemoryError
        If the system has no such range of addresses.
    """
    try:
        pages = mmap.mmap(-1, 8 * size * size)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"a matrix of {size:,} x {size:,} numbers takes {8 * size**2 / 2**30:,.1f} GiB") from error
    return np.frombuffer(pages).reshape(size, size)


@estimator
class NystromFeatures(LearnedMetricMixin, FeatureLearner):
    """Whitened kernel columns k(x, z) at landmarks z.

    A linear model on these columns is the kernel machine restricted to sums of kernels at the landmarks, with the
    kernel's own norm as penalty. With all distinct rows as landmarks it is the kernel machine itself.

    Parameters
    ----------
    kernel : Family or None
        Any family whose kernel has a closed form; None is ``Matern(0.5)``, exp(-|x - z| / sigma), which works well on
        tables. Its `sigma` may be "median".
    n_features : int
        The most landmarks; equal rows count once.
    landmarks : {"uniform", "kmeans", "leverage", "rpcholesky"}
        Rows drawn uniformly; centroids of k-means; rows by ridge leverage scores; rows by randomly pivoted Cholesky.
        All but the first choose from ten rows for each landmark, at most 20,000.
    sigma_factor : float
        Factor of the bandwidth.
    metric : {"diagonal", "full"} or None
        Learn a metric: rounds fit a kernel model on 600 to 1,000 landmarks, use the mean outer product of its gradients
        as the metric of the next round, and end when the held-out loss no longer falls. "diagonal" is a factor for each
        column, "full" a d x d matrix, for dense rows of at most 5,000 columns. It is learned from the targets by
        squared errors, for classes, too; for kernels of the distance (Gaussian, Matern of 0.5, 1.5, 2.5), and for
        Laplacian ones by rounds with Matern(0.5).
    validation_fraction : float
        Share of the rows held out to judge the rounds of the metric.
    categories : {"one-hot", "ordered"}
        Encoding of a table's categories with few values. "ordered": equally spaced ranks if the texts have an order,
        such as single letters and texts with a number ("18-24", "25-40"); other categories stay one-hot. Not with a
        learned metric.
    scaling, max_rows
        As in `RandomFeatures`.
    class_weight : dict, "balanced" or None
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`. On a GPU the Gaussian, Laplacian and Matern kernels (nu .5, 1.5, 2.5) are computed
        there, others on the host.

    Attributes
    ----------
    landmarks_ : ndarray of shape (l, d)
        In units of the scaled rows, and in the metric.
    metric_ : ndarray of shape (d,) or (d, d), or None
        The root R of the learned metric: the kernel depends on |R'x - R'z| for scaled rows.
    ordered_ : tuple of str
        The columns of the table that are encoded by ranks.
    metric_history_ : list of dict
        A line for each round of the metric, of which the first has none: held-out loss, penalty.
    feature_map_ : FeatureMap
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`; `family_` is the kernel with its bandwidth.

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

    @property
    def landmarks_(self) -> np.ndarray:
        """The landmarks, of shape (l, d), in the units of the scaled rows."""
        return self.feature_map_.projection.dense()

    def planned_features(self, dataset: Dataset) -> int:
        """The most landmarks: at most as many as rows."""
        m = min(self.n_features, dataset.n_rows)
        check_matrices(self, m)
        return m

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A map with the largest number of landmarks."""
        m, d = min(self.n_features, dataset.n_rows), dataset.n_columns
        metric = self._ranks(dataset)
        if self.metric is not None:
            metric = np.ones((d, d) if self.metric == "full" else d)
        width = d if metric is None else metric.shape[-1]
        # every column is the kernel at the last landmark, so that a plan times products with all columns
        whitening = unwritten_zeros(m)
        whitening[-1:] = 1.0
        projection = NystromProjection(self._planned_family(), np.zeros((m, width)), whitening, metric)
        return FeatureMap("nystrom", projection, np.ones(m))

    def _part(self, name: str) -> Any:
        """The kernel, the only parameter with parameters of its own."""
        return self._prior()

    def _prior(self) -> Any:
        """The kernel, possibly without a bandwidth."""
        return Matern(0.5) if self.kernel is None else self.kernel

    def _learn(self, dataset: Dataset) -> None:
        self._class_weights(dataset)
        moving = self._ranks(dataset)
        self.ordered_ = () if moving is None else ordered_names(dataset.encoding)
        scaler = self._prepare(dataset)
        if (sigma := getattr(self.family_, "sigma", None)) is not None:
            self.family_ = self.family_.with_bandwidth(float(sigma) * self.sigma_factor)
        self._learn_metric(dataset, scaler)
        metric = self.metric_ if moving is None else moving
        n_sampled = self.n_features
        if self.landmarks != "uniform":
            n_sampled = max(n_sampled, min(_ROWS_A_LANDMARK * n_sampled, _MOST_ROWS))
        problem = NystromProblem(
            self.family_,
            scaler,
            self.n_features,
            dataset.n_rows,
            min(n_sampled, dataset.n_rows),
            self.landmarks,
            self.seed_,
            metric,
        )
        landmarks = self._run(NystromDriver(), problem, dataset, "landmarks").landmarks
        whitening = whitening_of(landmarks, self.family_)
        projection = NystromProjection(self.family_, landmarks, whitening, metric)
        self.feature_map_ = FeatureMap("nystrom", projection, np.ones(projection.n_frequencies), scaler=scaler)

    def _ranks(self, dataset: Dataset) -> np.ndarray | None:
        """The matrix that encodes ordered categories, by which scaled rows are multiplied; None without such."""
        if self.categories == "one-hot":
            return None
        if self.metric is not None:
            raise ValueError(
                f"categories='ordered' and metric={self.metric!r} both move the rows; take metric=None, or "
                "categories='one-hot'"
            )
        return ordered_columns(dataset.encoding, dataset.n_columns)

    def _preparation(self, dataset: Dataset) -> PreparationProblem:
        """The preparation, with the bandwidth of rows whose ordered categories are ranks."""
        return replace(super()._preparation(dataset), moving=self._ranks(dataset))
