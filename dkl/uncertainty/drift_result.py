"""What `dkl.drift` found, as a person and a program read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from dkl.plain_text import plain_text
from dkl.plots.column_shares import DriftDisplay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# A page lists so many columns; the picture shows as many.
_LISTED = 12


@dataclass(frozen=True, eq=False)
class ColumnDrift:
    """How far apart one column is in two samples.

    Parameters
    ----------
    name : str
    distance : float
        The largest difference between the shares of rows up to an edge, from 0 to 1.
    p_value : float
        Adjusted for the number of columns.
    means : (float, float)
        In the first sample and in the second.
    edges : ndarray of shape (bins - 1,)
        A value above an edge lies beyond it.
    shares : (ndarray, ndarray), each of shape (bins,)
        The share of each sample's rows in each bin.
    """

    name: str
    distance: float
    p_value: float
    means: tuple[float, float]
    edges: np.ndarray
    shares: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Drift:
    """What `dkl.drift` found; print it, plot it, or take its numbers.

    Parameters
    ----------
    p_value : float
        How likely samples of one law are so far apart, seen through the kernel.
    squared_discrepancy : float
        MMD^2, the squared distance of the mean features; for equal laws about (1/n_a + 1/n_b) times their variance.
    alpha : float
        The level below which samples and columns are said to differ.
    weights : (float, float)
        The rows of the two samples, or their total weights.
    sigma : float or None
        The bandwidth of the kernel, after scaling.
    n_features : int
    columns : tuple of ColumnDrift
        In the order of the rows' columns.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> rows = np.random.default_rng(0).normal(size=(1_000, 2))
    >>> found = dkl.drift(rows[:500], rows[500:] * [1.0, 2.0])
    >>> found.alike, found.differing[0].name
    (False, 'column 1')
    """

    p_value: float
    squared_discrepancy: float
    alpha: float
    weights: tuple[float, float]
    sigma: float | None
    n_features: int
    columns: tuple[ColumnDrift, ...]

    @property
    def alike(self) -> bool:
        """Whether the two samples, all columns together, could be of one law at the level alpha."""
        return self.p_value >= self.alpha

    @property
    def differing(self) -> tuple[ColumnDrift, ...]:
        """The columns that differ at the level alpha, the most different one first."""
        found = [column for column in self.columns if column.p_value < self.alpha]
        return tuple(sorted(found, key=lambda column: (-column.distance, column.p_value)))

    @property
    def facts(self) -> Mapping[str, Any]:
        """All numbers as JSON values, every column among them."""
        return {
            "alike": self.alike,
            "p_value": self.p_value,
            "squared_discrepancy": self.squared_discrepancy,
            "alpha": self.alpha,
            "weights": list(self.weights),
            "sigma": self.sigma,
            "n_features": self.n_features,
            "columns": [
                {
                    "name": column.name,
                    "differs": column.p_value < self.alpha,
                    "distance": column.distance,
                    "p_value": column.p_value,
                    "means": list(column.means),
                }
                for column in self.columns
            ],
        }

    def plot(self, ax: Axes | None = None) -> DriftDisplay:
        """Draw how far apart the columns are, the most different ones on top.

        Parameters
        ----------
        ax : matplotlib Axes or None
            None makes a new figure.

        Returns
        -------
        DriftDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        shown = self._ranked[:_LISTED]
        display = DriftDisplay(
            [column.name for column in shown],
            np.array([column.distance for column in shown]),
            np.array([column.p_value < self.alpha for column in shown]),
            self._verdict,
        )
        return display.plot(ax)

    def __repr__(self) -> str:
        head, *rows = self._cells()
        widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
        table = [
            "  ".join([f"{name:<{widths[0]}}", *(f"{cell:>{w}}" for cell, w in zip(cells, widths[1:], strict=True))])
            for name, *cells in (head, *rows)
        ]
        return plain_text("\n".join([self._verdict, self._which, *table, *self._rest]))

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        lines = "".join(f"<p>{escape(line)}</p>" for line in (self._verdict, self._which))
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        # Names of columns come from files, so all cells are escaped.
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest)
        return f"{lines}<table><tr>{top}</tr>{body}</table>{rest}"

    @property
    def _ranked(self) -> list[ColumnDrift]:
        """All columns, the differing ones first."""
        differing = self.differing
        others = [column for column in self.columns if column.p_value >= self.alpha]
        return [*differing, *sorted(others, key=lambda column: (column.p_value, -column.distance))]

    @property
    def _verdict(self) -> str:
        """What is said of all columns together."""
        n_a, n_b = (f"{weight:,.6g}" if weight < 1e6 else f"{weight:,.0f}" for weight in self.weights)
        chance = f"p = {self.p_value:.2g}, level {self.alpha:g}"
        if self.alike:
            return f"{n_a} and {n_b} rows are not told apart ({chance})"
        return f"{n_a} and {n_b} rows differ ({chance})"

    @property
    def _which(self) -> str:
        """What is said of the columns one by one."""
        found = len(self.differing)
        if found:
            return f"{found} of {len(self.columns)} columns differ, each seen alone (p values adjusted after Holm)"
        if self.alike:
            return f"none of the {len(self.columns)} columns differs, each seen alone"
        return f"none of the {len(self.columns)} columns differs, each seen alone: they differ together"

    @property
    def _rest(self) -> list[str]:
        """A line on the columns that are not listed."""
        more = len(self.columns) - _LISTED
        return [f"and {more:,} more columns"] if more > 0 else []

    def _cells(self) -> list[list[str]]:
        """The table of columns, its head first."""
        rows = [
            [
                column.name,
                f"{column.distance:.3f}",
                f"{column.p_value:.2g}",
                *(f"{mean:.6g}" for mean in column.means),
                "differs" if column.p_value < self.alpha else "",
            ]
            for column in self._ranked[:_LISTED]
        ]
        return [["column", "distance", "p", "mean of a", "mean of b", ""], *rows]
