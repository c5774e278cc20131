"""Base of learners that search for frequencies: prepared rows, and the strategies behind `solver` and `method`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Family, FiniteFamily, check_unit
from dkl.features.scaling import Scaler
from dkl.linear.target_statistics import TargetScale
from dkl.methods.base import FeatureLearner
from dkl.methods.fit_context import FitContext
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencySpace
from dkl.methods.frequency_search.harmonic_search import finite_space
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.preparation.bandwidth import pair_bytes
from dkl.passes.loop import ColumnStore
from dkl.protocols.driver import BETWEEN_PASSES, Driver, largest_held
from dkl.protocols.source import rows_within

P = TypeVar("P")
S = TypeVar("S")
Start = TypeVar("Start", contravariant=True)
Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """Rows whose scaler and bandwidth are known, so that frequencies can be searched for.

    Parameters
    ----------
    dataset : Dataset
    family : Family
        With its bandwidth.
    scaler : Scaler or None
    seed : int
    dtype : {"float32", "float64"}
        Of mapped rows.
    class_weight : ndarray of shape (K,) or None
        Factors of the rows' weights.
    target_scale : TargetScale or None
        Mean and deviation of targets that are numbers; None for classes.
    context : FitContext
        Settings of a machine for this fit.
    metric : ndarray of shape (d,) or (d, d), or None
        The root of a learned metric that frequencies are searched in.
    """

    dataset: Dataset
    family: Family
    scaler: Scaler | None
    seed: int
    dtype: str
    class_weight: np.ndarray | None
    target_scale: TargetScale | None
    context: FitContext
    metric: np.ndarray | None = None

    @property
    def total_weight(self) -> float:
        """The total weight of the rows, with the factors of their classes."""
        return weight_of(self.dataset, self.class_weight)

    def within(self, nbytes: int) -> int:
        """The number of rows that fit into `nbytes`."""
        return rows_within(nbytes, self.dataset.source)

    def frequency_space(self, name: str, options: SearchOptions, chains_a_peak: float = 0.0) -> FrequencySpace:
        """All of R^d for families of pairs, and the pool of a finite family.

        Parameters
        ----------
        name : str
            Of the learner, for the error.
        options : SearchOptions
        chains_a_peak : float
            Chains for each wanted point; the number in `options` is a lower bound.

        Raises
        ------
        ValueError
            As `check_searchable`.
        """
        check_searchable(name, self.family)
        d = self.dataset.n_columns
        if isinstance(self.family, FiniteFamily):
            return finite_space(self.family, d, self.scaler, self.dtype)
        # points are kept and climb in single precision, whatever the features are computed in
        check_unit(float(getattr(self.family, "sigma", 1.0)), np.float32)
        # one drawn pair says what all of them are: the search replaces its frequency
        origin = replace(self.family.draw(1, d, 0, self.dtype), scaler=self.scaler)
        return FourierSpace(origin, self.family, options, chains_a_peak, metric=self.metric)


class SearchStrategy(Protocol[P, S, Start]):
    """One of several ways in which a learner can search, with the learner's parameters in the sense it gives them.

    P is what its driver solves, S the driver's state, and Start what a warm start goes on from.

    A learner whose parameters mean something else for each value of one of them (`solver` of MarginFeatures, `method`
    of PeakFeatures) has a private class for each, with this protocol, and knows no more of them.
    """

    stage: ClassVar[str]

    def check(self) -> None:
        """Raise an error where the parameters have no meaning together; needs no rows."""
        ...

    def driver(self) -> Driver[P, S]:
        """The rounds."""
        ...

    def problem(self, rows: PreparedRows, start: Start | None) -> P:
        """The problem on these rows, from a start or from nothing (None); ValueError if parameters do not suit them."""
        ...

    def columns(self, problem: P, start: Start | None) -> ColumnStore | None:
        """The row columns that the driver keeps; None where it needs none."""
        ...

    def fitted(self, rows: PreparedRows, problem: P, state: S) -> Mapping[str, object]:
        """The learner's fitted attributes after the rounds, by name."""
        ...


class SearchingLearner(FeatureLearner):
    """A learner that leaves the search to a strategy; a subclass says to which, and what comes before and after."""

    _supervised: ClassVar[bool] = True

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """What the rounds hold at most, and before them the distances of rows that the bandwidth is found by."""
        before = pair_bytes(dataset.n_rows) if self._prior().needs_bandwidth else 0
        return largest_held([super().planned_memory(dataset), {BETWEEN_PASSES: before}])

    def _strategy(self) -> SearchStrategy[Any, Any, Any]:
        """The strategy that the parameters ask for."""
        raise TypeError(f"{type(self).__name__} does not say how it searches")

    def _with_parameters(self, kind: type[Kind]) -> Kind:
        """A strategy of some class, with those parameters of the learner that it has fields for."""
        return kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(kind)})  # type: ignore[arg-type]

    def _prepared(self, dataset: Dataset, scaler: Scaler | None, scale: TargetScale | None) -> PreparedRows:
        """The rows of a fit, with what the passes before the search have found."""
        # class weights for targets that are numbers are refused here
        weights = self._class_weights(dataset)
        metric = getattr(self, "metric_", None)
        return PreparedRows(
            dataset, self.family_, scaler, self.seed_, self.dtype, weights, scale, self._context, metric
        )


def check_searchable(name: str, family: Family) -> None:
    """Raise ValueError for a family that has neither pairs to search for nor a finite pool."""
    if not isinstance(family, FiniteFamily) and family.with_bandwidth(1.0).draw(1, 1, 0).activation != "cos-sin":
        raise ValueError(
            f"{name} looks for cosine-sine pairs, or among the features of a finite family, and {family!r} has "
            "neither; use Gaussian(), or SphericalHarmonics(...) for rows on the unit sphere"
        )


def weight_of(dataset: Dataset, class_weight: np.ndarray | None) -> float:
    """The total weight of the rows, with the factors (K,) of their classes."""
    return dataset.total_weight if class_weight is None else float(class_weight @ np.asarray(dataset.class_weights))
