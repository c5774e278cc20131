"""LearnedMetricMixin, for learners with `metric=`: runs the rounds that learn the metric."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.dictionaries import Dictionaries
from dkl.features.families import Matern
from dkl.features.nystrom_projection import in_metric
from dkl.features.radial import has_radial_slope
from dkl.features.scaling import Scaler
from dkl.linear.target_statistics import TargetScale, model_targets, target_units
from dkl.methods.base import FeatureLearner
from dkl.methods.metric.driver import MetricDriver, MetricProblem
from dkl.methods.preparation.bandwidth import median_distance
from dkl.methods.rounds.loop import HeldTargets

MetricKind = Literal["diagonal", "full"]

# The most landmarks of the rounds, and the most columns of a full metric.
_LANDMARKS, _MOST_COLUMNS = 1_000, 5_000
# The fewest landmarks, since gradients at few are mostly noise: with 400 no column of puma32h stood out in half of the
# draws.
LEAST_LANDMARKS = 600
# Share of the rows held out to judge the rounds, for learners without `validation_fraction`.
_JUDGES = 0.2


class LearnedMetricMixin(FeatureLearner):
    """A learner whose kernel, or distribution of frequencies, may be in a learned metric.

    For a Laplacian kernel, and for waves of any family, the metric is learned with Matern(0.5), on 600 and 1,000
    landmarks: on puma32h a Gaussian kernel with the median bandwidth is too smooth to show which columns matter, and
    its rounds gain nothing.
    """

    # whether the rounds use the learner's own kernel and its number of landmarks
    _metric_of_own_kernel: ClassVar[bool] = False

    metric: MetricKind | None
    n_features: Any

    @property
    def _supervised(self) -> bool:  # type: ignore[override]
        """Whether the fit needs targets, which a metric does."""
        return self.metric is not None

    @property
    def _searches(self) -> bool:  # type: ignore[override]
        """Whether the features fit the rows of the fit too well to be judged on them, which a metric does."""
        return self.metric is not None

    def _learn_metric(self, dataset: Dataset, scaler: Scaler | None) -> None:
        """Learn `metric_` and `metric_history_`, and set the bandwidth of `family_` in the metric."""
        self.metric_: np.ndarray | None = None
        self.metric_history_: list[dict[str, float]] = []
        if self.metric is None:
            return
        if self._context.metric is not None:
            self.metric_, sigma = self._context.metric
            self.family_ = self.family_.with_bandwidth(float(getattr(self, "sigma_factor", 1.0)) * sigma)
            return
        scale = target_units(dataset, self._running("targets"))
        problem = self._metric_problem(dataset, scaler, scale)
        state = self._run(MetricDriver(), problem, dataset, "metric")
        self.metric_history_ = state.lines()
        self.metric_, family = state.best_metric, self.family_
        if isinstance(family, Dictionaries):
            self.family_ = family.stretched(state.best_sigma / family.sigma)
        elif self._metric_of_own_kernel and family.norm == "l1":
            # the same multiple of the median distance as in scaled columns
            moved = in_metric(state.landmarks, self.metric_)
            apart, before = (median_distance(rows, metric="cityblock") for rows in (moved, state.landmarks))
            self.family_ = family.with_bandwidth(float(family.sigma) * apart / before)
        else:
            self.family_ = family.with_bandwidth(state.best_sigma)

    def _metric_problem(self, dataset: Dataset, scaler: Scaler | None, scale: TargetScale | None) -> MetricProblem:
        """The problem of learning the metric.

        Raises
        ------
        ValueError
            For kernels without a gradient in closed form, families without a bandwidth, and a full metric for sparse
            rows or many columns.
        """
        kernel: Any = self.family_
        n_landmarks = int(self.n_features) if self._metric_of_own_kernel else _LANDMARKS
        if self._metric_of_own_kernel and getattr(kernel, "norm", None) == "l1":
            # this kernel is not differentiable at the columns of landmarks, so another one learns the metric
            kernel, n_landmarks = Matern(0.5), LEAST_LANDMARKS
        elif not self._metric_of_own_kernel:
            if not hasattr(kernel, "sigma"):
                raise ValueError(
                    f"metric={self.metric!r} needs a family with a bandwidth, which {kernel!r} is not; take "
                    "Gaussian(), Laplacian(), Cauchy() or Matern(), or metric=None"
                )
            kernel = Matern(0.5).with_bandwidth(float(kernel.sigma))
        if not has_radial_slope(kernel):
            raise ValueError(
                f"metric={self.metric!r} needs a kernel of the distance with a gradient in closed form, which "
                f"{kernel!r} is not; take Gaussian(), Laplacian() or Matern(0.5, 1.5 or 2.5), or metric=None"
            )
        if self.metric == "full" and (dataset.source.is_sparse or dataset.n_columns > _MOST_COLUMNS):
            rows = "sparse rows" if dataset.source.is_sparse else f"{dataset.n_columns:,} columns"
            raise ValueError(
                f"metric='full' is a matrix of columns times columns, for dense rows of at most {_MOST_COLUMNS:,}; "
                f"for {rows} take metric='diagonal'"
            )
        held_out = self._context.judging(getattr(self, "validation_fraction", _JUDGES), self.seed_)
        targets = model_targets(dataset, scale, self._class_weights(dataset))
        return MetricProblem(
            kernel=kernel,
            scaler=scaler,
            targets=HeldTargets(targets, held_out.mask),
            n_models=len(targets.models),
            n_columns=dataset.n_columns,
            n_landmarks=int(min(np.clip(n_landmarks, LEAST_LANDMARKS, _LANDMARKS), dataset.n_rows)),
            is_full=self.metric == "full",
            seed=self.seed_,
        )
