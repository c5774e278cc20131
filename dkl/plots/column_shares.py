"""How far apart two samples of rows are, column by column: the picture of `dkl.drift`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.figure import CLASS_COLOURS, Axes, Display


@dataclass(frozen=True, eq=False)
class DriftDisplay(Display):
    """A bar for each column: how far apart two samples are there.

    Parameters
    ----------
    names : sequence of str
        The columns, from the top down.
    distances : ndarray of shape (d,)
        From 0, the same shares of rows up to every edge, to 1.
    differs : ndarray of shape (d,), bool
        The columns that are said to differ, which have the stronger colour.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import DriftDisplay
    >>> DriftDisplay(["age", "income"], np.array([0.3, 0.02]), np.array([True, False])).names
    ['age', 'income']
    """

    names: Sequence[str]
    distances: np.ndarray
    differs: np.ndarray
    title: str = ""

    def _new_axes(self, **options: Any) -> list[Axes]:
        return super()._new_axes(size=(5.6, 1.4 + 0.28 * len(self.names)), **options)

    def _draw(self, axes: Sequence[Axes]) -> None:
        (ax,) = axes
        places = np.arange(len(self.names))
        for differs, colour, label in ((True, CLASS_COLOURS[1], "differs"), (False, "0.7", "does not")):
            shown = self.differs == differs
            # A legend names only what is in the picture.
            if shown.any():
                ax.barh(places[shown], self.distances[shown], color=colour, label=label)
        ax.set_yticks(places, self.names)
        ax.invert_yaxis()
        ax.set_xlim(0.0, max(1.05 * float(self.distances.max(initial=0.0)), 0.05))
        ax.set(title=self.title, xlabel="largest difference of shares of rows")
        ax.legend(loc="lower right")
