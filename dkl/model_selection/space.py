"""The space of hyper-parameters: ranges and choices by name, and their coordinates in the unit cube of a search."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import numpy as np

_SCALES = ("linear", "log", "int", "log-int")


@dataclass(frozen=True)
class Interval:
    """A range of numbers, on a linear or logarithmic scale, whole numbers or real ones.

    Parameters
    ----------
    low, high : float
        The ends, both included.
    log, whole : bool
        Whether the scale is logarithmic, and whether values are whole numbers.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    width: int = 1

    @classmethod
    def of(cls, name: str, low: float, high: float, scale: str | None = None) -> Interval:
        """The range from low to high on a scale; without a scale it is "int" if both ends are of integer type.

        Parameters
        ----------
        name : str
            The name of the parameter in errors.
        low, high : float
        scale : {"linear", "log", "int", "log-int"} or None

        Raises
        ------
        ValueError
            If the scale is unknown, or the ends are not valid for it.
        """
        if scale is None:
            scale = "int" if isinstance(low, Integral) and isinstance(high, Integral) else "linear"
        if scale not in _SCALES:
            expected = ", ".join(map(repr, _SCALES))
            raise ValueError(f"space[{name!r}] has the scale {scale!r}; expected one of {expected}")
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"space[{name!r}] goes from {low!r} to {high!r}; expected two finite numbers, the lower first"
            )
        log, whole = scale.startswith("log"), scale.endswith("int")
        # A logarithmic range needs positive ends; one of whole numbers may start at 1.
        if log and low <= 0:
            raise ValueError(f"space[{name!r}] begins at {low!r}, and a logarithmic range needs positive numbers")
        if whole and not (float(low).is_integer() and float(high).is_integer()):
            raise ValueError(f"space[{name!r}] goes from {low!r} to {high!r}; the scale {scale!r} needs whole numbers")
        return cls(float(low), float(high), log, whole)

    @property
    def size(self) -> float:
        """The number of values; infinite for real numbers."""
        return self.high - self.low + 1.0 if self.whole else math.inf

    def decode(self, coordinates: np.ndarray) -> float | int:
        """The value at a coordinate in [0, 1]."""
        value = float(self._from_scale(coordinates)[0])
        return int(value) if self.whole else value

    def rounded(self, coordinates: np.ndarray) -> np.ndarray:
        """Coordinates (n, 1), each replaced by the common one of all coordinates with the same value."""
        return self._to_scale(self._from_scale(coordinates)) if self.whole else coordinates

    def _from_scale(self, places: np.ndarray) -> np.ndarray:
        """The values at coordinates in [0, 1]."""
        low, high = self._ends
        values = low + np.asarray(places) * (high - low)
        values = np.exp(values) if self.log else values
        # The ends are half a unit further out, so that by rounding each whole number has an equal share of the range.
        return np.clip(np.floor(values + 0.5) if self.whole else values, self.low, self.high)

    def _to_scale(self, values: np.ndarray) -> np.ndarray:
        """The coordinates in [0, 1] of values."""
        low, high = self._ends
        return np.clip(((np.log(values) if self.log else values) - low) / (high - low), 0.0, 1.0)

    @property
    def _ends(self) -> tuple[float, float]:
        """The values at the coordinates 0 and 1, or their logarithms on a logarithmic scale."""
        margin = 0.5 if self.whole else 0.0
        low, high = self.low - margin, self.high + margin
        return (math.log(low), math.log(high)) if self.log else (low, high)


@dataclass(frozen=True)
class Choice:
    """One of several values without an order: each has a coordinate, and the value with the largest one is chosen.

    Parameters
    ----------
    values : tuple
    """

    values: tuple[Any, ...]

    @property
    def width(self) -> int:
        """The number of coordinates: one for each value, or 0 for a single value."""
        return len(self.values) if len(self.values) > 1 else 0

    @property
    def size(self) -> float:
        """The number of values."""
        return len(self.values)

    def decode(self, coordinates: np.ndarray) -> Any:
        """The value with the largest coordinate."""
        return self.values[int(np.argmax(coordinates))] if self.width else self.values[0]

    def rounded(self, coordinates: np.ndarray) -> np.ndarray:
        """Coordinates (n, width), each row replaced by 1 for the chosen value and 0 for others."""
        # These corners of the cube all have the same distance from each other, since a choice has no order.
        return np.eye(self.width)[np.argmax(coordinates, axis=1)] if self.width else coordinates


Dimension = Interval | Choice


@dataclass(frozen=True)
class Space:
    """Named dimensions, in the given order.

    Parameters
    ----------
    dimensions : dict of str to Dimension

    Examples
    --------
    >>> from dkl.model_selection.space import space_of
    >>> space = space_of({"alpha": (1e-6, 1e-2, "log"), "loss": ["hinge", "log_loss"]})
    >>> chosen = space.decode([0.5, 0.0, 1.0])
    >>> round(chosen["alpha"], 6), chosen["loss"]
    (0.0001, 'log_loss')
    """

    dimensions: Mapping[str, Dimension]

    @property
    def width(self) -> int:
        """The number of coordinates of a point."""
        return sum(dimension.width for dimension in self.dimensions.values())

    @property
    def size(self) -> float:
        """The number of different sets of values."""
        return math.prod(dimension.size for dimension in self.dimensions.values())

    def decode(self, point: Sequence[float] | np.ndarray) -> dict[str, Any]:
        """The values at a point of the cube."""
        return {name: dimension.decode(part) for name, dimension, part in self._parts(np.atleast_2d(point), first=True)}

    def rounded(self, points: np.ndarray) -> np.ndarray:
        """Points (n, width) of the cube, rounded so that points that decode to the same parameter values are equal."""
        # Points from gradient ascents may lie outside the cube by a rounding error.
        points = np.clip(np.atleast_2d(points), 0.0, 1.0)
        parts = [dimension.rounded(part) for _, dimension, part in self._parts(points)]
        return np.concatenate(parts, axis=1) if parts else points

    def _parts(self, points: np.ndarray, first: bool = False) -> list[tuple[str, Dimension, np.ndarray]]:
        """Each dimension with its part of the coordinates of all points, or of the first point if `first`."""
        edges = np.cumsum([0, *(dimension.width for dimension in self.dimensions.values())])
        places = zip(self.dimensions.items(), edges[:-1], edges[1:], strict=True)
        rows = points[0] if first else points
        return [(name, dimension, rows[..., start:end]) for (name, dimension), start, end in places]


def space_of(given: Mapping[str, Any] | Space) -> Space:
    """The space that a dict describes.

    Parameters
    ----------
    given : mapping of str to range or choice
        ``(low, high)`` is a range, of whole numbers if both ends are; ``(low, high, scale)`` is a range with the scale
        "linear", "log", "int" or "log-int"; a list has the values to choose from.

    Raises
    ------
    ValueError
        For anything else, an empty range or choice, or a logarithmic range that is not positive; with the name.
    """
    if isinstance(given, Space):
        return given
    if not isinstance(given, Mapping) or not given:
        raise ValueError(
            f"space is {given!r}; expected a dict of ranges and lists, such as {{'alpha': (1e-8, 1e-2, 'log')}}"
        )
    dimensions: dict[str, Dimension] = {}
    for name, value in ((str(key), value) for key, value in given.items()):
        # bool is a subclass of int, but (False, True) is not a range.
        ends = value[:2] if isinstance(value, tuple) and len(value) in (2, 3) else ()
        if isinstance(value, Interval | Choice):
            # Programs that build a space may give objects of the classes themselves.
            dimensions[name] = value
        elif isinstance(value, list) and value:
            dimensions[name] = Choice(tuple(value))
        elif isinstance(value, list):
            raise ValueError(f"space[{name!r}] is an empty list; expected the values to choose from")
        elif ends and all(isinstance(end, Real) and not isinstance(end, bool) for end in ends):
            dimensions[name] = Interval.of(name, *value)
        else:
            raise ValueError(
                f"space[{name!r}] is {value!r}; expected a range (low, high), (low, high, scale) with scale one of "
                f"{', '.join(map(repr, _SCALES))}, or a list of values"
            )
    return Space(dimensions)
