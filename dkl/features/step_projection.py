"""StepProjection: products of steps and hinges of single columns, in the role of a projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from dkl.features.projections import ArrayProjection, Projection

STEP: Literal[0] = 0
HINGE: Literal[1] = 1
# The largest number of factors in an atom: interactions of up to three columns.
MOST_FACTORS = 3

Factor = tuple[int, float, int]
"""One factor of an atom: its column j, its threshold t, and whether it is a step or a hinge."""


@dataclass(frozen=True, eq=False)
class StepProjection(ArrayProjection):
    """m atoms, each a product of at most three factors of single columns.

    A step is 1 where ``x[j] > t`` and 0 elsewhere; a hinge is ``max(0, min(x[j], high[j]) - t)``. An atom counts as one
    frequency of a feature map.

    Parameters
    ----------
    columns : ndarray of shape (m, 3), int32
        The column j of each factor; -1 where an atom has fewer than three, which then come first.
    thresholds : ndarray of shape (m, 3), float64
        t, in the units of the column; 0 where there is no factor.
    kinds : ndarray of shape (m, 3), int8
        0 for a step, 1 for a hinge.
    high : ndarray of shape (d,), float64
        The mean of each column's last bin in the fit. Hinges are constant above it, so that a model does not
        extrapolate.
    """

    columns: np.ndarray
    thresholds: np.ndarray
    kinds: np.ndarray
    high: np.ndarray

    @classmethod
    def of_factors(cls, atoms: Sequence[Sequence[Factor]], high: np.ndarray) -> Self:
        """The atoms that are the products of the given factors, at most three each."""
        shape = (len(atoms), MOST_FACTORS)
        columns, thresholds, kinds = np.full(shape, -1, np.int32), np.zeros(shape), np.zeros(shape, np.int8)
        for a, factors in enumerate(atoms):
            for f, factor in enumerate(factors):
                columns[a, f], thresholds[a, f], kinds[a, f] = factor
        return cls(columns, thresholds, kinds, high)

    @property
    def factors(self) -> list[tuple[Factor, ...]]:
        """The one to three factors of each atom."""
        # lists, which are much faster than arrays for reading single numbers
        parts = (self.columns.tolist(), self.thresholds.tolist(), self.kinds.tolist())
        return [
            tuple(factor for factor in zip(*atom, strict=True) if factor[0] >= 0) for atom in zip(*parts, strict=True)
        ]

    @property
    def n_frequencies(self) -> int:
        """Atoms."""
        return len(self.columns)

    @property
    def n_columns(self) -> int:
        return len(self.high)

    def dense(self) -> np.ndarray:
        """A 0-1 matrix of shape (m, d): 1 where the atom depends on the column."""
        matrix = np.zeros((self.n_frequencies, self.n_columns))
        atoms, factors = np.nonzero(self.columns >= 0)
        matrix[atoms, self.columns[atoms, factors]] = 1.0
        return matrix

    def take(self, index: np.ndarray) -> StepProjection:
        return StepProjection(self.columns[index], self.thresholds[index], self.kinds[index], self.high)

    def joined(self, other: Projection) -> StepProjection:
        """These atoms, then those of `other`.

        Raises
        ------
        ValueError
            If `other` holds no steps, or clips its columns elsewhere.
        """
        if not isinstance(other, StepProjection) or not np.array_equal(self.high, other.high):
            raise ValueError("steps are joined with steps whose columns are clipped at the same values only")
        return StepProjection(
            np.concatenate([self.columns, other.columns]),
            np.concatenate([self.thresholds, other.thresholds]),
            np.concatenate([self.kinds, other.kinds]),
            self.high,
        )

    def described(self, names: list[str] | None = None) -> list[str]:
        """Each atom as a person writes it: ``"age > 42.5 and (income - 1000)+"``.

        Parameters
        ----------
        names : list of str or None
            Names of the columns; None writes ``x[j]``.
        """
        columns = [f"x[{j}]" for j in range(self.n_columns)] if names is None else names
        return [
            " and ".join(
                f"{columns[j]} > {t:.6g}" if kind == STEP else f"({columns[j]} - {t:.6g})+" for j, t, kind in atom
            )
            for atom in self.factors
        ]
