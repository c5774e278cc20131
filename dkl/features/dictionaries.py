"""What `MarginFeatures(family=[...])` lists beside families of waves: steps and landmarks, and the list as a family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.families import Coordinates, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.projections import DenseProjection
from dkl.features.step_projection import MOST_FACTORS


@dataclass(frozen=True)
class Steps:
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
        """Raise ValueError if a parameter has no meaning."""
        if self.depth not in range(1, MOST_FACTORS + 1):
            raise ValueError(f"Steps: depth is {self.depth!r}; it must be 1, 2 or {MOST_FACTORS}")
        if self.bins not in range(2, 256):
            raise ValueError(f"Steps: bins is {self.bins!r}; it must be a whole number from 2 to 255")


@dataclass(frozen=True)
class Landmarks:
    """Kernels k(., z) at landmarks z, rows among those of the fit, as a dictionary among others.

    Parameters
    ----------
    kernel : Family
        With a kernel in closed form.
    sigma_factor : float
        Multiplies a bandwidth that is "median": kernels at single landmarks want to be narrower than waves.

    Examples
    --------
    >>> import dkl
    >>> learner = dkl.MarginFeatures(family=[dkl.Steps(), dkl.Landmarks(dkl.Matern(0.5))])
    """

    kernel: Any = field(default_factory=lambda: Matern(0.5))
    sigma_factor: float = 0.5

    def validate(self) -> None:
        """Raise ValueError if a parameter has no meaning."""
        if not hasattr(self.kernel, "kernel"):
            raise ValueError(f"Landmarks: kernel is {self.kernel!r}; it must be a family such as Matern(0.5)")
        if not (isinstance(self.sigma_factor, float | int) and 0.0 < self.sigma_factor < np.inf):
            raise ValueError(f"Landmarks: sigma_factor is {self.sigma_factor!r}; it must be a positive number")
        self.kernel.validate()


@dataclass(frozen=True)
class Dictionaries:
    """Several dictionaries as the family of one learner; what a list of them stands for.

    Parameters
    ----------
    families : tuple
        `Steps` at most once, `Coordinates` at most once, `Landmarks`, and families of cosine-sine pairs.
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
        """Landmarks and families of waves, in their order."""
        return [family for family in self.families if not isinstance(family, Steps | Coordinates)]

    @property
    def needs_bandwidth(self) -> bool:
        """Whether one of them does."""
        return any(_kernel_of(family).needs_bandwidth for family in self.others)

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
            if not isinstance(family, Steps | Coordinates | Landmarks):
                drawn = family.with_bandwidth(1.0).draw(1, 1, 0)
                if drawn.activation != "cos-sin":
                    raise ValueError(
                        f"family lists {family!r}, whose features are no cosine-sine pairs; waves that are searched "
                        "for are those of Gaussian, Laplacian, Cauchy or Matern"
                    )
        for kind in (Steps, Coordinates):
            if sum(isinstance(family, kind) for family in self.families) > 1:
                raise ValueError(f"family lists {kind.__name__} more than once")

    def with_bandwidth(self, sigma: float) -> Dictionaries:
        """Those that need one with the bandwidth `sigma`, landmarks with a share of it; others as they are."""
        families = []
        for family in self.families:
            if isinstance(family, Landmarks) and family.kernel.needs_bandwidth:
                families.append(replace(family, kernel=family.kernel.with_bandwidth(sigma * family.sigma_factor)))
            elif not isinstance(family, Steps | Landmarks) and family.needs_bandwidth:
                families.append(family.with_bandwidth(sigma))
            else:
                families.append(family)
        return Dictionaries(tuple(families))

    @property
    def sigma(self) -> float:
        """The bandwidth of the first waves; where there are none that of the first kernel, over its `sigma_factor`."""
        waves = [family for family in self.others if not isinstance(family, Landmarks)]
        return float(waves[0].sigma if waves else self.others[0].kernel.sigma / self.others[0].sigma_factor)

    def stretched(self, ratio: float) -> Dictionaries:
        """Those that have a bandwidth with `ratio` times theirs, others as they are."""
        families = []
        for family in self.families:
            own = _kernel_of(family)
            wider = own.with_bandwidth(float(own.sigma) * ratio) if hasattr(own, "sigma") else own
            families.append(replace(family, kernel=wider) if isinstance(family, Landmarks) else wider)
        return Dictionaries(tuple(families))

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """A map of the largest size that so many columns may take: nothing is drawn, rounds look for them."""
        self.validate()
        landmarks = [family.kernel for family in self.others if isinstance(family, Landmarks)]
        if landmarks:
            m = n_frequencies
            projection = NystromProjection(landmarks[0], np.zeros((m, n_columns)), np.zeros((m, m)))
            return FeatureMap("nystrom", projection, np.ones(m))
        zeros = DenseProjection(np.zeros((n_frequencies, n_columns), dtype))
        return FeatureMap("cos", zeros, np.ones(n_frequencies), phases=np.zeros(n_frequencies))

    def feature_scale(self, n_columns: int) -> float:
        """Columns come in their own units."""
        return 1.0


def _kernel_of(family: Any) -> Any:
    """The family whose bandwidth is asked for."""
    return family.kernel if isinstance(family, Landmarks) else family
