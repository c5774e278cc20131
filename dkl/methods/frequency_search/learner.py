"""The base of learners that search frequencies: prepared rows, and the strategies behind `solver` and `method`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

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
from dkl.methods.parameters import weight_of
from dkl.methods.preparation.bandwidth import pair_bytes
from dkl.passes.loop import ColumnStore, PlannedRun
from dkl.protocols.driver import BETWEEN_PASSES, Driver
from dkl.protocols.source import rows_within


@dataclass(frozen=True, eq=False)
class PreparedRows:
    """Rows with scaler and bandwidth, ready for a search of frequencies.

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
        Weights of the classes, which multiply the weights of rows.
    target_scale : TargetScale or None
        Mean and deviation of numeric targets; None for classes.
    context : FitContext
        Settings of a machine for this fit.
    metric : ndarray of shape (d,) or (d, d), or None
        The root of a learned metric in which frequencies are searched.
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
        """The total weight of the rows, including class weights."""
        return weight_of(self.dataset, self.class_weight)

    def within(self, nbytes: int) -> int:
        """The number of rows that fit into `nbytes`."""
        return rows_within(nbytes, self.dataset.source)

    def frequency_space(self, name: str, options: SearchOptions, chains_a_peak: float = 0.0) -> FrequencySpace:
        """All of R^d for families of pairs, and the pool of a finite family.

        Parameters
        ----------
        name : str
            The learner's class, for the error.
        options : SearchOptions
        chains_a_peak : float
            Chains for each requested point; the number in `options` is a lower bound.

        Raises
        ------
        ValueError
            As in `check_searchable`.
        """
        check_searchable(name, self.family)
        d = self.dataset.n_columns
        if isinstance(self.family, FiniteFamily):
            return finite_space(self.family, d, self.scaler, self.dtype)
        # points are stored and optimised in single precision, whatever the dtype of features
        check_unit(float(getattr(self.family, "sigma", 1.0)), np.float32)
        # a single pair, as the template of all others; the search replaces its frequency
        origin = replace(self.family.draw(1, d, 0, self.dtype), scaler=self.scaler)
        return FourierSpace(origin, self.family, options, chains_a_peak, metric=self.metric)


class SearchStrategy(ABC):
    """One of several ways in which a learner can search; it defines what the learner's parameters mean.

    If the meaning of parameters depends on one of them (`solver` of MarginFeatures, `method` of PeakFeatures), the
    learner has a strategy for each of its values.

    Parameters
    ----------
    given : SearchingLearner
        The learner, of which only parameters are read.
    """

    # the name of its states in a checkpoint
    stage: ClassVar[str]

    def __init__(self, given: Any) -> None:
        self.given = given

    def check(self) -> None:  # noqa: B027
        """Raise an error for parameters that exclude each other; needs no rows."""

    @abstractmethod
    def driver(self) -> Driver[Any, Any]:
        """The driver of the rounds."""

    @abstractmethod
    def problem(self, rows: PreparedRows, start: Any) -> Any:
        """The problem on these rows, with a start or None; raises ValueError if parameters do not match the rows."""

    def columns(self, problem: Any, start: Any) -> ColumnStore | None:
        """The row columns that the driver stores; None if there are none."""
        return None

    @abstractmethod
    def fitted(self, rows: PreparedRows, problem: Any, state: Any) -> dict[str, Any]:
        """The learner's fitted attributes after the rounds, by name."""


class SearchingLearner(FeatureLearner):
    """A learner that delegates the search to a strategy; a subclass chooses it, and adds what surrounds it."""

    _supervised: ClassVar[bool] = True

    def _replay(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """The planned passes, with the bytes of the distances from which the bandwidth is computed before them."""
        learner, plan = super()._replay(dataset)
        if self._prior().needs_bandwidth:
            plan.holds({BETWEEN_PASSES: pair_bytes(dataset.n_rows)})
        return learner, plan

    def _strategy(self) -> SearchStrategy:
        """The strategy that the parameters select."""
        raise TypeError(f"{type(self).__name__} does not say how it searches")

    def _prepared(self, dataset: Dataset, scaler: Scaler | None, scale: TargetScale | None) -> PreparedRows:
        """The rows of a fit, with the results of the passes before the search."""
        # class weights for numeric targets are refused here
        weights = self._class_weights(dataset)
        metric = getattr(self, "metric_", None)
        return PreparedRows(
            dataset, self.family_, scaler, self.seed_, self.dtype, weights, scale, self._context, metric
        )


def check_searchable(name: str, family: Family) -> None:
    """Raise ValueError for a family with neither cosine-sine pairs nor a finite pool."""
    if not isinstance(family, FiniteFamily) and family.with_bandwidth(1.0).draw(1, 1, 0).activation != "cos-sin":
        raise ValueError(
            f"{name} looks for cosine-sine pairs, or among the features of a finite family, and {family!r} has "
            "neither; use Gaussian(), or SphericalHarmonics(...) for rows on the unit sphere"
        )
