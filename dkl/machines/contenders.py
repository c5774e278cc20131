"""The table of candidates: kinds of features with their first size, scaling and bandwidth, and their variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.features.families import Coordinates, Gaussian, Laplacian, Matern
from dkl.features.scaling import ScalingKind
from dkl.kernels.moments import moments_of, moments_record, refuse_lost_squares
from dkl.linear import head
from dkl.machines.effort import Effort
from dkl.machines.settings import Knobs
from dkl.methods.base import FeatureLearner
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.nystrom.ordered import ordered_names
from dkl.passes.loop import PassResult, Run
from dkl.registry import learner_entry
from dkl.solvers.round_losses import ROUND_LOSSES

# Factor on the number of features in a larger variant, and on the bandwidth of a wider kernel; its inverse for a
# narrower one.
GROWTH = 2.5
# The two scalings that are compared of dense rows, and of sparse rows without negative numbers: neither of the latter
# makes something other than 0 of a zero. The first one is that of the first candidates.
DENSE_SCALINGS: tuple[ScalingKind | None, ...] = ("standard", "quantile")
SPARSE_SCALINGS: tuple[ScalingKind | None, ...] = (None, "counts")
# Most sparse columns for searched waves: with more of them a search over directions gains little.
_MOST_COLUMNS_OF_A_SEARCH = 5_000
# Most columns for kernels at landmarks, since distances in more columns are nearly equal; and for steps, whose
# histograms take memory and time.
_MOST_COLUMNS_OF_A_KERNEL, _MOST_COLUMNS_OF_STEPS = 500, 2_000
# Fewest columns for which a metric is learned; with fewer, hardly any column is irrelevant, and there is no gain.
_COLUMNS_OF_A_METRIC = 8
# Bandwidths in units of the median distance: of a Matern kernel, which gains most from more landmarks at this one; of a
# product over columns, which at a large bandwidth is a sum of effects of few columns; and of the product in a learned
# metric, which leaves few columns.
_MATERN_BANDWIDTH, _LAPLACIAN_BANDWIDTH, _BANDWIDTH_IN_A_METRIC = 0.5, 4.0, 2.0
# Features of the first candidates for each one of waves that descend: of 100, 200 and 400 that do, 100 err least on two
# of eight tables and on a made law, and at most 6 % more than the best on five others.
_DESCENDING = 4
# Quantile bins of a column for steps, instead of the default 64: the loss is less, and the time is the same.
BINS = 128
# Factor on the bags of steps, each with other held-out rows: the mean of more bags has less variance.
_MORE_BAGS = 4


class RowsAlikeError(ValueError):
    """All rows are equal, so that no kernel can distinguish them."""


@dataclass(frozen=True)
class Contender:
    """A candidate: a kind of features with parameters.

    Parameters
    ----------
    name : str
        The name in the reasons.
    learner : FeatureLearner
        Not fitted.
    """

    name: str
    learner: FeatureLearner

    def changed(self, what: str, **parameters: Any) -> Contender:
        """The same kind with other parameters; `what` describes the change in the reasons."""
        kind, _, others = self.name.removesuffix(")").partition(" (")
        # a later size or bandwidth replaces an earlier one in the name
        kept = [other for other in others.split("; ") if other and other.split()[0] != what.split()[0]]
        return Contender(f"{kind} ({'; '.join([*kept, what])})", clone(self.learner).set_params(**parameters))

    @cached_property
    def given(self) -> dict[str, Any]:
        """The parameters of the learner."""
        return self.learner.get_params(deep=False)

    @cached_property
    def key(self) -> str:
        """A string that is equal for candidates with equal learners."""
        return f"{type(self.learner).__name__} {sorted((name, repr(value)) for name, value in self.given.items())}"

    @property
    def size(self) -> int | None:
        """The most features, of one bag for learners with several; None where all columns are features."""
        return self.given.get("n_features")

    @property
    def parts(self) -> list[Contender]:
        """The kinds of features that it combines; itself if it is a single kind."""
        return [Contender("", learner) for learner in self.given.get("features") or [self.learner]]

    @property
    def is_searched(self) -> bool:
        """Whether its features are searched waves."""
        return "family" in self.given and "features_per_round" in self.given

    @property
    def is_drawn(self) -> bool:
        """Whether its features are random waves."""
        return "family" in self.given and not self.learner._supervised

    @property
    def is_kernel(self) -> bool:
        """Whether its features are similarities to landmarks only."""
        return "landmarks" in self.given

    @property
    def has_kernel(self) -> bool:
        """Whether some of its features are similarities to landmarks."""
        return any(part.is_kernel for part in self.parts)

    @property
    def is_learned(self) -> bool:
        """Whether its features are similarities in a learned metric."""
        return self.given.get("metric") is not None

    def shares_metric(self, other: Contender) -> bool:
        """Whether both learn the same metric from the same rows: in one scaling, by rounds without their kernel."""
        same = all(self.given.get(name) == other.given.get(name) for name in ("metric", "scaling", "kernel"))
        # kernels of other norms learn the metric from their own gradients
        return self.is_learned and same and self.given["kernel"].norm == "l1"

    @property
    def landmarks(self) -> int:
        """The number of landmarks of its largest kernel."""
        return max(int(part.given["n_features"]) for part in self.parts if part.is_kernel)

    def with_landmarks(self, size: int) -> Contender:
        """The candidate with `size` landmarks: in each of its kernels, if it combines several kinds of features."""
        if "features" not in self.given:
            return self.changed(f"up to {size:,}", n_features=size)
        grown = [part.with_landmarks(size) if part.is_kernel else part for part in self.parts]
        return Contender(f"{self.name}, of {size:,} landmarks", combined(grown))


def combined(parts: Sequence[Contender]) -> CombinedFeatures:
    """The learner of the features of several kinds, side by side."""
    return CombinedFeatures([clone(part.learner) for part in parts])


def joined(first: Contender, second: Contender, n_features: int | str = "auto") -> Contender:
    """A candidate with the features of both; a pinned number of features is shared by its kinds."""
    parts = [*first.parts, *second.parts]
    if n_features != "auto":
        share = Knobs(n_features=int(n_features) // len(parts))
        parts = [Contender(part.name, share.with_pinned(part.learner)) for part in parts]
    return Contender(f"{first.name} with {second.name}", combined(parts))


def contenders(dataset: Dataset, effort: Effort, knobs: Knobs, loss: str | None = None) -> list[Contender]:
    """The kinds of features that apply to a dataset, the plainest first.

    Parameters
    ----------
    dataset : Dataset
    effort : Effort
    knobs : Knobs
        Parameters that the user has pinned. If the bandwidth is pinned, only kinds that have one are tried.
    loss : str or None
        Of the machine; waves do not descend by a loss of `ROUND_LOSSES`, which rounds take from the machine.
    """
    is_sparse = dataset.source.is_sparse
    scaling = (SPARSE_SCALINGS if is_sparse else DENSE_SCALINGS)[0]
    # of few rows at most half become landmarks, and each wave has four rows to be fitted to
    n_landmarks, n_waves = (int(np.clip(dataset.n_rows // each, 1, effort.n_features)) for each in (2, 4))
    # a ball of radius 0 gives all columns the same weight
    columns = learner_entry("aligned").learner_class(
        Coordinates(), n_candidates=None, n_features=None, rho=0.0, scaling=scaling
    )
    tried = [Contender("the columns themselves", columns)]
    if has_columns_alone(dataset, knobs):
        return [Contender(tried[0].name, knobs.with_pinned(columns))]
    tried.append(
        Contender(
            "random waves", learner_entry("random").learner_class(Gaussian(), n_features=n_waves, scaling=scaling)
        )
    )
    may_scale = not is_sparse and knobs.scaling == knobs.sigma == "auto" and not np.all(dataset.passthrough)
    if may_scale:
        # columns in one unit, such as the pixels of a picture, may tell more by those that vary most
        tried.append(tried[-1].changed("scaling none", scaling=None))
    waves = []
    if not is_sparse or dataset.n_columns <= _MOST_COLUMNS_OF_A_SEARCH:
        searched = learner_entry("margin").learner_class(Gaussian(), n_features=n_waves, scaling=scaling)
        waves.append(Contender("searched waves", searched))
        if not is_sparse and loss not in ROUND_LOSSES:
            # Few waves that descend come nearer to smooth targets than many that are only searched; a quarter of the
            # features is the plainer model, so that they come first.
            n_refined = min(n_landmarks, effort.n_features // _DESCENDING)
            refined = clone(searched).set_params(n_features=n_refined, refine="auto")
            waves.insert(0, Contender("refined waves", refined))
    if not is_sparse and dataset.n_columns <= _MOST_COLUMNS_OF_STEPS:
        steps = learner_entry("steps").learner_class(bins=BINS, n_features=effort.n_features)
        tried.append(Contender("steps of columns and their products", steps))
    metrics: list[Contender] = []
    has_kernels = not is_sparse and dataset.n_columns <= _MOST_COLUMNS_OF_A_KERNEL
    if has_kernels:
        kernel = learner_entry("nystrom").learner_class(
            Matern(0.5), n_features=n_landmarks, sigma_factor=_MATERN_BANDWIDTH, scaling=scaling
        )
        tried.append(Contender("a Matern kernel at landmarks", kernel))
        # a product over columns: rows that differ in few columns are similar, even if the differences are large
        product = clone(kernel).set_params(kernel=Laplacian(), sigma_factor=_LAPLACIAN_BANDWIDTH)
        tried.append(Contender("a Laplacian kernel at landmarks", product))
        if may_scale:
            # in quantiles it finds thresholds wherever rows are dense, as trees do
            other = clone(product).set_params(scaling=_other_scaling(product.scaling, DENSE_SCALINGS))
            tried.append(Contender(f"a Laplacian kernel at landmarks (scaling {other.scaling})", other))
        if ordered_names(dataset.encoding):
            ranks = clone(product).set_params(categories="ordered")
            tried.append(Contender("a Laplacian kernel of ordered categories at landmarks", ranks))
        if dataset.n_columns >= _COLUMNS_OF_A_METRIC:
            # the metric finds the few relevant columns among many
            learned = clone(product).set_params(metric="diagonal", sigma_factor=_BANDWIDTH_IN_A_METRIC)
            metrics.append(Contender("a Laplacian kernel in a learned metric", learned))
    tried += [*waves, *metrics]
    if knobs.sigma != "auto":
        tried = [contender for contender in tried if knobs.bandwidth_of(contender.learner)]
    return [Contender(contender.name, knobs.with_pinned(contender.learner)) for contender in tried]


def scalings_of(dataset: Dataset, run: Run) -> tuple[ScalingKind | None, ...]:
    """The two scalings that held-out rows may decide between, after one pass; empty where none changes the rows.

    Parameters
    ----------
    dataset : Dataset
        All rows of sparse ones: a negative number in any of them excludes the scaling of counts.
    run : Run

    Raises
    ------
    RowsAlikeError
        If all rows are equal.
    ColumnError
        If float64 does not hold the squares of a column.
    """
    is_sparse, passthrough = dataset.source.is_sparse, dataset.passthrough

    def found(passed: PassResult) -> tuple[ScalingKind | None, ...]:
        moments = moments_of(passed.results[0])
        if np.all(moments.low == moments.high):
            raise RowsAlikeError(f"all {dataset.n_rows:,} rows are equal: there is nothing to predict from")
        if not is_sparse:
            # a candidate that is not scaled would take such a column for a constant
            refuse_lost_squares(moments, "column", ~passthrough)
        may_scale = not is_sparse or bool(np.all((moments.low >= 0.0) | passthrough))
        return usual_scalings(dataset) if may_scale else ()

    record = moments_record(dataset.n_columns, is_sparse=is_sparse)
    return run.read(dataset.source, [record], found, usual_scalings(dataset))


def usual_scalings(dataset: Dataset) -> tuple[ScalingKind | None, ...]:
    """The two scalings of rows without negative numbers; empty where all columns are 0 and 1 by encoding."""
    if np.all(dataset.passthrough):
        return ()
    return SPARSE_SCALINGS if dataset.source.is_sparse else DENSE_SCALINGS


def has_columns_alone(dataset: Dataset, knobs: Knobs) -> bool:
    """Whether the columns themselves are the only kind: of sparse rows with too many columns for a Hessian.

    Waves and kernels are left out there: the frequencies of waves take n_features numbers of memory for each column,
    all rows are nearly equally far from each other, and features that join waves and columns are dense rows, with every
    zero of the sparse ones in memory.
    """
    return dataset.source.is_sparse and dataset.n_columns > head.MOST_FEATURES and knobs.sigma == "auto"


def variants(
    contender: Contender,
    effort: Effort,
    knobs: Knobs,
    n_rows: int,
    *,
    is_best: bool = True,
    scalings: tuple[ScalingKind | None, ...] = DENSE_SCALINGS,
) -> list[Contender]:
    """The variants of a candidate: more features, more repetitions; for the best also other scalings and bandwidths.

    Parameters
    ----------
    contender : Contender
    effort : Effort
    knobs : Knobs
        A pinned parameter is not varied.
    n_rows : int
        Of the sample.
    is_best : bool
    scalings : tuple of (str or None)
        The two that are compared; empty where none changes the rows.
    """
    given, size = contender.given, contender.given["n_features"]
    found: list[Contender] = []
    bags = given.get("bags", 1)
    # landmarks are rows; other features than twice the rows say nothing new
    most = min(effort.most_features // bags, n_rows if contender.is_kernel else max(2 * n_rows, effort.n_features))
    if knobs.n_features == "auto" and size is not None and size < most:
        larger = min(int(GROWTH * size), most)
        found.append(contender.changed(f"up to {larger:,}", n_features=larger))
    more = _MORE_BAGS * bags
    if knobs.n_features == "auto" and "bags" in given and more * size <= effort.most_features:
        found.append(contender.changed(f"bags {more}", bags=more))
    # On rows far from all others waves and straight lines give any number, unless the scaling is bounded. A bandwidth
    # that was found in one scaling means nothing in another.
    has_bandwidth = isinstance(getattr(given.get("family"), "sigma", None), Real)
    may_scale = knobs.scaling == "auto" and "scaling" in given and len(scalings) > 1
    # only the first of a kernel's bandwidths is tried in the other scaling
    is_first = " (" not in contender.name
    if is_best and may_scale and not has_bandwidth and (is_first or not contender.is_kernel):
        other = _other_scaling(given["scaling"], scalings)
        found.append(contender.changed(f"scaling {other or 'none'}", scaling=other))
    if is_best and knobs.sigma == "auto" and contender.is_kernel:
        # without the rounding errors of products, so that a bandwidth that is reached in two ways is one candidate
        factors = [float(f"{by * given['sigma_factor']:.12g}") for by in (GROWTH, 1.0 / GROWTH)]
        found += [contender.changed(f"bandwidth x {factor:.3g}", sigma_factor=factor) for factor in factors]
    return found


def _other_scaling(scaling: str | None, scalings: tuple[ScalingKind | None, ...]) -> ScalingKind | None:
    """The other one of the two scalings."""
    first, second = scalings
    return first if scaling == second else second
