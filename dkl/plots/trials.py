"""The trials of a search: how the best score rose, and where in the range of each parameter the good ones lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from dkl.figure import CLASS_COLOURS, Axes, Display


@dataclass(frozen=True, eq=False)
class TrialsDisplay(Display):
    """The score of each trial in their order, and against each parameter.

    Parameters
    ----------
    scores : ndarray of shape (n,)
        NaN for a trial that failed.
    parameters : mapping of str to sequence
        The values of each parameter, one a trial.
    logarithmic : sequence of str
        The parameters that are seen on a logarithmic scale.
    measure : str
        What the scores are, for the axis.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import TrialsDisplay
    >>> TrialsDisplay(np.array([0.5, 0.7, 0.6]), {"alpha": [1.0, 0.1, 0.01]}, ["alpha"]).best
    array([0.5, 0.7, 0.7])
    """

    scores: np.ndarray
    parameters: Mapping[str, Sequence[Any]]
    logarithmic: Sequence[str] = ()
    measure: str = "score"
    _size = (3.4, 2.8)
    _layout: ClassVar[Mapping[str, Any]] = {"sharey": True}

    @classmethod
    def from_tuning(cls, tuning: Any, *, measure: str = "score") -> Self:
        """Take the trials of what `dkl.tune` returned.

        Parameters
        ----------
        tuning : Tuning
        measure : str
        """
        dimensions = tuning.space.dimensions
        values = {name: tuning.trials[name].tolist() for name in dimensions}
        # What was searched on a logarithmic scale is seen on one.
        logarithmic = [name for name, dimension in dimensions.items() if getattr(dimension, "log", False)]
        return cls(tuning.trials["score"].to_numpy(), values, logarithmic, measure)

    @property
    def best(self) -> np.ndarray:
        """The best score up to each trial, (n,)."""
        return np.fmax.accumulate(self.scores)

    @property
    def _n_panels(self) -> int:
        return 1 + len(self.parameters)

    def _draw(self, axes: Sequence[Axes]) -> None:
        # A failed trial has no score, and yet took its place and its time: it is drawn as a line.
        failed = ~np.isfinite(self.scores)
        trials = np.arange(len(self.scores))
        axes[0].step(trials, self.best, where="post", color=CLASS_COLOURS[0], label="best so far")
        axes[0].plot(trials, self.scores, "o", color="0.6", markersize=3.5, label="trial")
        for trial in trials[failed]:
            axes[0].axvline(trial, color=CLASS_COLOURS[1], linewidth=0.8, alpha=0.6)
        axes[0].set(xlabel="trial (a line: failed)" if failed.any() else "trial", ylabel=self.measure)
        axes[0].legend(loc="lower right")
        for ax, (name, values) in zip(axes[1:], self.parameters.items(), strict=True):
            self._draw_parameter(ax, name, values)

    def _draw_parameter(self, ax: Axes, name: str, values: Sequence[Any]) -> None:
        """The scores over the values of one parameter; the best trial is a star."""
        # True and False are choices, though Python takes them for numbers.
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        places = values if numeric else [str(value) for value in values]
        # The later a trial, the darker its dot: so the picture shows where the search went.
        ax.scatter(places, self.scores, c=np.arange(len(self.scores)), cmap="Blues", edgecolors="0.4", s=18, vmin=-5)
        # Failed trials have the score NaN, and cannot be the best.
        top = int(np.nanargmax(self.scores))
        ax.scatter([places[top]], [self.scores[top]], marker="*", s=90, color=CLASS_COLOURS[1], zorder=3)
        if name in self.logarithmic:
            ax.set_xscale("log")
            ax.tick_params(axis="x", which="both", labelsize="small")
        ax.set_xlabel(name)
