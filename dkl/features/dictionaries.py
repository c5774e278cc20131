"""What `MarginFeatures(family=[...])` lists beside families of waves: dictionaries, and the list as one family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.families import Coordinates, FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.features.scaling import Scaler
from dkl.features.step_projection import MOST_FACTORS


class ListedDictionary:
    """A dictionary that stands in a list beside families of waves: its parameters, and what is searched for them.

    A subclass is a frozen dataclass. One that has a bandwidth to be found says so by `needs_bandwidth`, gets it by
    `with_bandwidth`, and has it as `sigma` from then on.
    """

    # whether its columns need double precision, as similarities to rows near each other do
    is_double: ClassVar[bool] = False

    @property
    def needs_bandwidth(self) -> bool:
        """Whether a bandwidth has to be found in the rows."""
        return False

    def validate(self) -> None:
        """Raise ValueError if a parameter has no meaning."""

    def with_bandwidth(self, sigma: float) -> Self:
        """A copy for rows whose median distance is `sigma`."""
        return self

    def draw(self, n_features: int, n_columns: int, dtype: DTypeLike) -> FeatureMap:
        """A map of so many columns, for plans: nothing is drawn, rounds look for them."""
        zeros = DenseProjection(np.zeros((n_features, n_columns), dtype))
        return FeatureMap("cos", zeros, np.ones(n_features), phases=np.zeros(n_features))

    def searched(self, scaler: Scaler | None, metric: np.ndarray | None) -> Any:
        """What rounds ask: a `dkl.methods.rounds.dictionary.Dictionary`.

        Parameters
        ----------
        scaler : Scaler or None
            Of the rows.
        metric : ndarray of shape (d,) or (d, d), or None
            Scaled rows are multiplied by it before the dictionary sees them. It is 0 in columns that must not be looked
            at, since the model has to be monotone in them.
        """
        raise TypeError(f"{type(self).__name__} does not say how it is searched: give it a method `searched`")


@dataclass(frozen=True)
class Steps(ListedDictionary):
    """Steps of columns, hinges and products of them, as a dictionary among others.

    Parameters
    ----------
    depth : {1, 2, 3}
        Factors of an atom at most.
    bins : int
        Thresholds of a column at most, 2 to 255.

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
    """Several dictionaries as the family of one learner; what a list of them stands for.

    Parameters
    ----------
    families : tuple
        `Steps` at most once, `Coordinates` at most once, `Landmarks`, families of cosine-sine pairs, and finite
        families such as `SphericalHarmonics`, whose features are taken one by one.
    """

    families: tuple[Any, ...]

    @classmethod
    def of(cls, families: Sequence[Any]) -> Dictionaries:
        """Of a list."""
        return cls(tuple(families))

    @property
    def steps(self) -> Steps | None:
        """The steps among them."""
        return next((family for family in self.families if isinstance(family, Steps)), None)

    @property
    def has_columns(self) -> bool:
        """Whether the columns themselves are among them."""
        return any(isinstance(family, Coordinates) for family in self.families)

    @property
    def others(self) -> list[Any]:
        """Those that are searched on a sample of the rows: dictionaries and families of waves, in their order."""
        return [family for family in self.families if not isinstance(family, Steps | Coordinates)]

    @property
    def is_double(self) -> bool:
        """Whether columns of one of them need double precision."""
        return any(isinstance(family, ListedDictionary) and family.is_double for family in self.others)

    @property
    def needs_bandwidth(self) -> bool:
        """Whether one of them does."""
        return any(family.needs_bandwidth for family in self.others)

    def validate(self) -> None:
        """Raise ValueError for no dictionary, one that is none, and steps or columns twice."""
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
        """Those that need one for rows whose median distance is `sigma`; others as they are."""
        return Dictionaries(
            tuple(family.with_bandwidth(sigma) if family.needs_bandwidth else family for family in self.families)
        )

    @property
    def sigma(self) -> float:
        """The bandwidth of the first waves; where there are none, of the first dictionary that has one."""
        own = [family for family in self.others if hasattr(family, "sigma")]
        waves = [family for family in own if not isinstance(family, ListedDictionary)]
        return float((waves or own)[0].sigma)

    def stretched(self, ratio: float) -> Dictionaries:
        """Those that have a bandwidth with `ratio` times theirs, others as they are."""
        return Dictionaries(
            tuple(
                family.with_bandwidth(float(family.sigma) * ratio) if hasattr(family, "sigma") else family
                for family in self.families
            )
        )

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """A map of the largest size that so many columns may take: nothing is drawn, rounds look for them."""
        self.validate()
        listed = [family for family in self.others if isinstance(family, ListedDictionary)]
        return (listed or [ListedDictionary()])[0].draw(n_frequencies, n_columns, dtype)

    def feature_scale(self, n_columns: int) -> float:
        """Columns come in their own units."""
        return 1.0
