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
from dkl.features.families import Gaussian, Laplacian, Matern
from dkl.features.scaling import ScalingKind
from dkl.linear import head
from dkl.machines.effort import Effort
from dkl.machines.settings import Knobs
from dkl.machines.suggest import DENSE_SCALINGS, GROWTH, MOST_ADVISED_FEATURES, Advice, columns_themselves
from dkl.methods.base import FeatureLearner
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.nystrom.ordered import ordered_names
from dkl.registry import learner_entry
from dkl.solvers.round_losses import ROUND_LOSSES

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
        return Contender(f"{kind} ({'; '.join([*kept, what])})", type(self.learner)(**{**self.given, **parameters}))

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
    return CombinedFeatures([part.learner for part in parts])


def joined(first: Contender, second: Contender, n_features: int | str = "auto") -> Contender:
    """A candidate with the features of both; a pinned number of features is shared by its kinds."""
    parts = [*first.parts, *second.parts]
    if n_features != "auto":
        share = Knobs(n_features=int(n_features) // len(parts))
        parts = [Contender(part.name, share.with_pinned(part.learner)) for part in parts]
    return Contender(f"{first.name} with {second.name}", combined(parts))


def contenders(
    dataset: Dataset, advice: Advice, effort: Effort, knobs: Knobs, loss: str | None = None
) -> list[Contender]:
    """The kinds of features that apply to a dataset, the simplest first.

    Parameters
    ----------
    dataset : Dataset
    advice : Advice
        Searched waves, with the scaling and the bandwidth that suit the rows.
    effort : Effort
    knobs : Knobs
        Parameters that the user has pinned. If the bandwidth is pinned, only kinds that have one are tried.
    loss : str or None
        Of the machine; waves do not descend by a loss of `ROUND_LOSSES`, which rounds take from the machine.
    """
    scaling = getattr(advice.features, "scaling", None)
    columns = columns_themselves(scaling)
    tried = [Contender("the columns themselves", columns)]
    # in wide sparse rows a search finds little, and columns chosen by targets would be scored on rows they were chosen
    # by
    searched = None if isinstance(advice.features, type(columns)) else advice.features
    given = {} if searched is None else searched.get_params(deep=False)
    size, family = min(given.get("n_features", effort.n_features), effort.n_features), given.get("family", Gaussian())
    drawn = learner_entry("random").learner_class(family, n_features=size, scaling=scaling)
    if has_columns_alone(dataset, knobs):
        return [Contender(tried[0].name, knobs.with_pinned(columns))]
    tried.append(Contender("random waves", drawn))
    has_unusual_kernel = isinstance(family, Laplacian) and knobs.sigma == "auto"
    if has_unusual_kernel:
        # a few rows prefer another kernel than the usual one; the random waves of both show whether all of them do
        of_usual = clone(drawn).set_params(family=Gaussian())
        tried.append(Contender("random waves of the Gaussian kernel", of_usual))
    waves: list[Contender] = []
    if searched is not None and (dataset.source.is_sparse or loss in ROUND_LOSSES):
        waves = [Contender("searched waves", clone(searched).set_params(n_features=size))]
    elif searched is not None:
        # Few waves that descend come nearer to smooth targets than many that are only searched: these took a sixth of
        # the seconds of 113 tables when both were tried, and won on six. Steps are relative to the length of a
        # frequency, so that all columns need one scale.
        most = effort.n_features // _DESCENDING
        fewer = {"n_features": min(size, most), "refine": "auto", "scaling": scaling or "standard"}
        # the descent leaves the kernel that it starts from
        of_kernel = Gaussian() if has_unusual_kernel else family
        waves = [Contender("refined waves", clone(searched).set_params(family=of_kernel, **fewer))]
    if not dataset.source.is_sparse and dataset.n_columns <= _MOST_COLUMNS_OF_STEPS:
        steps = learner_entry("steps").learner_class(bins=BINS, n_features=effort.n_features)
        tried.append(Contender("steps of columns and their products", steps))
    metrics: list[Contender] = []
    has_kernels = not dataset.source.is_sparse and dataset.n_columns <= _MOST_COLUMNS_OF_A_KERNEL
    may_scale = has_kernels and knobs.scaling == knobs.sigma == "auto" and not np.all(dataset.passthrough)
    if has_kernels:
        size = int(np.clip(dataset.n_rows // 2, 1, effort.n_features))
        kernel = learner_entry("nystrom").learner_class(
            Matern(0.5), n_features=size, sigma_factor=_MATERN_BANDWIDTH, scaling=scaling or "standard"
        )
        tried.append(Contender("a Matern kernel at landmarks", kernel))
        # a product over columns: rows that differ in few columns are similar, even if the differences are large
        product = clone(kernel).set_params(kernel=Laplacian(), sigma_factor=_LAPLACIAN_BANDWIDTH)
        # in quantiles it finds thresholds wherever rows are dense, as trees do
        in_quantiles = clone(product).set_params(scaling="quantile") if may_scale else product
        tried.append(Contender("a Laplacian kernel at landmarks", in_quantiles))
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
        first, second = scalings
        other = first if given["scaling"] == second else second
        found.append(contender.changed(f"scaling {other or 'none'}", scaling=other))
    if is_best and knobs.sigma == "auto" and contender.is_kernel:
        # without the rounding errors of products, so that a bandwidth that is reached in two ways is one candidate
        factors = [float(f"{by * given['sigma_factor']:.12g}") for by in (GROWTH, 1.0 / GROWTH)]
        found += [contender.changed(f"bandwidth x {factor:.3g}", sigma_factor=factor) for factor in factors]
    return found


def usual_advice() -> Advice:
    """The advice that plans assume before any row is read: the largest searched waves that are advised, scaled."""
    waves = learner_entry("margin").learner_class(Gaussian(), n_features=MOST_ADVISED_FEATURES, scaling="standard")
    return Advice(waves)
