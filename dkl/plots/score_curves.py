"""Scores against the number of features, and against time: the curves of a learner beside its rivals'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from dkl.plots.figure import CLASS_COLOURS, Display, panels, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# So many names find room between the lines of a panel; more of them stand beside the last panel.
_MOST_INSIDE = 5


@dataclass(frozen=True)
class ComparisonDisplay(Display):
    """Scores of several learners against the number of features, one panel a setting.

    Parameters
    ----------
    n_features : sequence of int
        The sizes, ascending.
    scores : mapping of str to mapping of str to sequence of float
        ``scores[setting][learner]`` holds one score a size; NaN where there is none.
    measure : str
        What the scores are, for the axis: ``"accuracy"``.
    baseline : str or None
        The learner that is drawn as the line to beat.
    title : str
    spread : mapping of str to mapping of str to sequence of float
        ``spread[setting][learner]`` holds a half-width a size, a deviation over seeds say; drawn as a band.
    references : mapping of str to mapping of str to float
        ``references[setting][name]`` is a score without features: a horizontal line (an RBF-SVM, boosted trees).
    along : str
        What the sizes are of, where not of the features: ``"rows"``.
    seconds : mapping of str to mapping of str to sequence of float
        ``seconds[setting][learner]`` holds what each score took: one more panel for a setting, scores against time.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> from dkl.plots import ComparisonDisplay
    >>> scores = {"median bandwidth": {"RandomFeatures": [0.8, 0.9], "AlignedFeatures": [0.9, 0.95]}}
    >>> ComparisonDisplay([50, 100], scores, baseline="RandomFeatures").baseline
    'RandomFeatures'
    """

    n_features: Sequence[int]
    scores: Mapping[str, Mapping[str, Sequence[float]]]
    measure: str = "score"
    baseline: str | None = None
    title: str = ""
    spread: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)
    references: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    along: str = "features"
    seconds: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)

    @property
    def _n_panels(self) -> int:
        return len(self.scores) + len(self.seconds)

    def _new_axes(self) -> list[Axes]:
        # All panels share the scale of the scores, unless each has references of its own that could lie anywhere.
        axes = panels(self._n_panels, size=(4.6, 3.8), sharey=bool(self.seconds) or not self.references)
        if self.title:
            axes[0].figure.suptitle(self.title)
        return axes

    def _draw(self, axes: Sequence[Axes]) -> None:
        for panel, setting in zip(axes, self.scores, strict=False):
            self._draw_setting(panel, setting)
        for panel, setting in zip(axes[len(self.scores) :], self.seconds, strict=True):
            self._draw_times(panel, setting)
        axes[0].set_ylabel(self.measure)
        self._draw_legends(axes)

    def _draw_legends(self, axes: Sequence[Axes]) -> None:
        """One legend for all panels, which show the same learners; one a panel where each has its own references."""
        lines = axes[0].get_legend_handles_labels()
        if self.seconds or (len(lines[0]) > _MOST_INSIDE and not self.references):
            axes[-1].legend(*lines, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
            return
        for panel in axes if self.references else axes[-1:]:
            panel.legend(frameon=False, loc="best", fontsize="small")

    def _draw_setting(self, panel: Axes, setting: str) -> None:
        """Scores against the number of features, on a logarithmic axis: sizes are multiples of each other."""
        panel.set_prop_cycle(color=CLASS_COLOURS)
        for learner, values in self.scores[setting].items():
            self._draw_line(panel, setting, learner, values)
        for place, (name, value) in enumerate(self.references.get(setting, {}).items()):
            panel.axhline(value, color="0.6", linewidth=1.0, linestyle=(":", "-.", "--")[place % 3], label=name)
        panel.set_xscale("log")
        # Only sizes with a score have a tick: a comparison that was ended early has none for the largest.
        scored = np.isfinite(np.array(list(self.scores[setting].values()), dtype=float)).any(axis=0)
        sizes = [size for size, there in zip(self.n_features, scored, strict=True) if there]
        panel.set_xticks(sizes, [f"{n:,}" if isinstance(n, Integral) else f"{n:g}" for n in sizes])
        panel.minorticks_off()
        panel.set_xlabel(self.along)
        panel.set_title(setting, fontsize="medium")
        quiet(panel)

    def _draw_times(self, panel: Axes, setting: str) -> None:
        """Scores against the seconds of the fit: of two learners the upper left one is better."""
        panel.set_prop_cycle(color=CLASS_COLOURS)
        for learner, times in self.seconds[setting].items():
            panel.plot(times, self.scores[setting][learner], label=learner, **self._style(learner))
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        # 1 and 3 of each decade: seconds are read off more easily than powers of ten.
        ticks = [tick for tick in np.outer(10.0 ** np.arange(-4, 7), [1, 3]).ravel() if low <= tick <= high]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set_xlabel("seconds to learn and fit")
        panel.set_title(f"{setting}: time" if len(self.scores) > 1 else "score against time", fontsize="medium")
        quiet(panel)

    def _style(self, learner: str) -> dict[str, Any]:
        """How the line of a learner is drawn; the baseline is grey and dashed, since it is there to be beaten."""
        plain = {"color": "0.45", "linestyle": "--"} if learner == self.baseline else {}
        return {"marker": "o", "markersize": 4.5, **plain}

    def _draw_line(self, panel: Axes, setting: str, learner: str, values: Sequence[float]) -> None:
        """The scores of a learner, with a band of their deviations."""
        middle, sizes = np.asarray(values, dtype=float), np.asarray(self.n_features)
        # A size that only other settings have is no gap in this line.
        there = np.isfinite(middle)
        (line,) = panel.plot(sizes[there], middle[there], label=learner, **self._style(learner))
        # The band is a deviation over seeds or folds, where it is known.
        widths = self.spread.get(setting, {}).get(learner)
        if widths is not None:
            low, high = (middle + side * np.asarray(widths, dtype=float) for side in (-1.0, 1.0))
            panel.fill_between(sizes[there], low[there], high[there], color=line.get_color(), alpha=0.15, lw=0)
