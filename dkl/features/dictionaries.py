"""The entries of `MarginFeatures(family=[...])` other than families of waves, and the list itself as one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.families import Coordinates, FiniteFamily, WithoutBandwidth
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.features.scaling import Scaler
from dkl.features.step_projection import MOST_FACTORS


class ListedDictionary(WithoutBandwidth):
    """Base class of dictionaries that a list of families may contain: their parameters, without the search.

    A subclass is a frozen dataclass. If its bandwidth is to be found from the rows, `needs_bandwidth` is true, and
    `with_bandwidth` returns a copy whose bandwidth is the attribute `sigma`.
    """

    # whether its features need double precision; whitened similarities to landmarks near each other do
    is_double: ClassVar[bool] = False

    def draw(self, n_features: int, n_columns: int, dtype: DTypeLike) -> FeatureMap:
        """A map with `n_features` features of the right size, for plans only: its entries are zeros."""
        zeros = DenseProjection(np.zeros((n_features, n_columns), dtype))
        return FeatureMap("cos", zeros, np.ones(n_features), phases=np.zeros(n_features))

    def searched(self, scaler: Scaler | None, metric: np.ndarray | None) -> Any:
        """The `dkl.methods.rounds.dictionary.Dictionary` that rounds search, with these parameters.

        Parameters
        ----------
        scaler : Scaler or None
            The scaling of the rows.
        metric : ndarray of shape (d,) or (d, d), or None
            Scaled rows X are replaced by ``X * metric`` or, for a matrix, ``X @ metric`` before the dictionary sees
            them. Its entry, or row, is 0 for a column of X that the dictionary must not use, because the model has to
            be monotone in it. A matrix need not be symmetric.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is searched: give it a method `searched`")


@dataclass(frozen=True)
class Steps(ListedDictionary):
    """Steps of columns, hinges and products of them, as a dictionary among others.

    Parameters
    ----------
    depth : {1, 2, 3}
        The largest number of factors in a product.
    bins : int
        The largest number of thresholds of a column, from 2 to 255.

    Examples
    --------
    >>> import dkl
    >>> learner = dkl.MarginFeatures(family=[dkl.Gaussian(), dkl.Steps(depth=2)])
    """

    depth: int = 3
    bins: int = 64

    def validate(self) -> None:
        if self.depth not in range(1, MOST_FACTORS + 1):
            raise ValueError(f"Steps: depth is {self.depth!r}; it must be 1, 2 or {MOST_FACTORS}")
        if self.bins not in range(2, 256):
            raise ValueError(f"Steps: bins is {self.bins!r}; it must be a whole number from 2 to 255")


@dataclass(frozen=True)
class Dictionaries:
    """Several dictionaries as the family of one learner, made from the list that a user gives.

    Parameters
    ----------
    families : tuple
        `Steps` at most once, `Coordinates` at most once, `Landmarks`, families of cosine-sine pairs, and finite
        families such as `SphericalHarmonics`, whose features are chosen one by one.
    """

    families: tuple[Any, ...]

    @classmethod
    def of(cls, families: Sequence[Any]) -> Dictionaries:
        """The dictionaries of a list."""
        return cls(tuple(families))

    @property
    def steps(self) -> Steps | None:
        """The `Steps` in the list, or None."""
        return next((family for family in self.families if isinstance(family, Steps)), None)

    @property
    def has_columns(self) -> bool:
        """Whether `Coordinates`, the columns themselves, are in the list."""
        return any(isinstance(family, Coordinates) for family in self.families)

    @property
    def others(self) -> list[Any]:
        """The entries that are searched on a sample of the rows: all but `Steps` and `Coordinates`, in their order."""
        return [family for family in self.families if not isinstance(family, Steps | Coordinates)]

    @property
    def is_double(self) -> bool:
        """Whether the features of any entry need double precision."""
        return any(isinstance(family, ListedDictionary) and family.is_double for family in self.others)

    @property
    def needs_bandwidth(self) -> bool:
        """Whether any entry needs a bandwidth from the rows."""
        return any(family.needs_bandwidth for family in self.others)

    def validate(self) -> None:
        """Raise ValueError for an empty list, an entry that is no dictionary, or `Steps` or `Coordinates` twice."""
        if not self.families:
            raise ValueError("family is an empty list; list dictionaries such as dkl.Gaussian() and dkl.Steps()")
        for family in self.families:
            if not hasattr(family, "validate"):
                raise ValueError(
                    f"family lists {family!r}, which is no dictionary; take families of waves such as dkl.Gaussian(), "
                    "dkl.Steps(), dkl.Landmarks() and dkl.Coordinates()"
                )
            family.validate()
            if not isinstance(family, ListedDictionary | Coordinates | FiniteFamily):
                drawn = family.with_bandwidth(1.0).draw(1, 1, 0)
                if drawn.activation != "cos-sin":
                    raise ValueError(
                        f"family lists {family!r}, whose features are neither cosine-sine pairs nor finitely many: "
                        "list Gaussian, Laplacian, Cauchy, Matern or SphericalHarmonics"
                    )
        for kind in (Steps, Coordinates):
            if sum(isinstance(family, kind) for family in self.families) > 1:
                raise ValueError(f"family lists {kind.__name__} more than once")

    def with_bandwidth(self, sigma: float) -> Dictionaries:
        """A copy in which the entries without a bandwidth have that of rows whose median distance is `sigma`."""
        return Dictionaries(
            tuple(family.with_bandwidth(sigma) if family.needs_bandwidth else family for family in self.families)
        )

    @property
    def sigma(self) -> float:
        """The bandwidth of the first family of waves or, where there is none, of the first dictionary with one."""
        own = [family for family in self.others if hasattr(family, "sigma")]
        waves = [family for family in own if not isinstance(family, ListedDictionary)]
        return float((waves or own)[0].sigma)

    def stretched(self, ratio: float) -> Dictionaries:
        """A copy in which every bandwidth is multiplied by `ratio`."""
        return Dictionaries(
            tuple(
                family.with_bandwidth(float(family.sigma) * ratio) if hasattr(family, "sigma") else family
                for family in self.families
            )
        )

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """The map of these features that takes the most bytes, for plans only; nothing is drawn."""
        self.validate()
        listed = [family for family in self.others if isinstance(family, ListedDictionary)]
        return (listed or [ListedDictionary()])[0].draw(n_frequencies, n_columns, dtype)

    def feature_scale(self, n_columns: int) -> float:
        """1: features keep their own units."""
        return 1.0
