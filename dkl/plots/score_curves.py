"""Scores against the number of features and against time, as curves; of a single size as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from dkl.figure import CLASS_COLOURS, Axes, Display, pyplot

# So many names find room between the lines of a panel; more of them stand beside the last panel.
_MOST_INSIDE = 5
# Of scores without features, in the panel of times.
_MARKS = ("s", "D", "^", "v", "P", "X")


def _line_styles() -> Any:
    """The colours of lines, each solid first, then dotted and dash-dotted, so that no two of 24 lines look alike."""
    cycler = pyplot().cycler
    return cycler(linestyle=("-", ":", "-.")) * cycler(color=CLASS_COLOURS)


@dataclass(frozen=True)
class ComparisonDisplay(Display):
    """Scores of several learners against the number of features, one panel a setting; bars where there is one size.

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
    reference_seconds : mapping of str to mapping of str to float
        ``reference_seconds[setting][name]`` is what a score without features took.
    reference_spread : mapping of str to mapping of str to float
        ``reference_spread[setting][name]`` is the half-width of a score without features; drawn on bars.
    own : sequence of str
        References whose bars have a colour, since they are not there to be beaten.

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
    reference_seconds: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reference_spread: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    own: Sequence[str] = ()
    _is_titled = True

    @property
    def is_bars(self) -> bool:
        """Whether there is one size at most, so that no curve could be drawn."""
        return len(self.n_features) <= 1

    @property
    def _n_panels(self) -> int:
        return len(self.scores) + len(self.seconds)

    def _new_axes(self, **options: Any) -> list[Axes]:
        if self.is_bars:
            rows = max(len(self._bars(setting)) for setting in self.scores)
            return super()._new_axes(size=(4.8, 1.3 + 0.34 * rows), **options)
        # All panels share the scale of the scores, unless each has references of its own that could lie anywhere.
        return super()._new_axes(size=(4.6, 3.8), sharey=bool(self.seconds) or not self.references, **options)

    def _draw(self, axes: Sequence[Axes]) -> None:
        scores, times = axes[: len(self.scores)], axes[len(self.scores) :]
        if self.is_bars:
            for panel, setting in zip(scores, self.scores, strict=True):
                self._draw_bars(panel, setting)
            for panel, setting in zip(times, self.seconds, strict=True):
                self._draw_bars_of_time(panel, setting)
            return
        for panel, setting in zip(scores, self.scores, strict=True):
            self._draw_setting(panel, setting)
        for panel, setting in zip(times, self.seconds, strict=True):
            self._draw_times(panel, setting)
        axes[0].set_ylabel(self.measure)
        self._draw_legends(axes)

    def _bars(self, setting: str) -> list[tuple[str, float, float, float, str]]:
        """Name, score, half-width, seconds and colour of each bar of a setting, the best score on top."""
        bars = []
        for learner, values in self.scores[setting].items():
            width, seconds = (
                known.get(setting, {}).get(learner, [np.nan])[0] if values else np.nan
                for known in (self.spread, self.seconds)
            )
            colour = "0.6" if learner == self.baseline else CLASS_COLOURS[0]
            bars.append((learner, values[0] if values else np.nan, width, seconds, colour))
        for name, value in self.references.get(setting, {}).items():
            width, seconds = (
                known.get(setting, {}).get(name, np.nan) for known in (self.reference_spread, self.reference_seconds)
            )
            bars.append((name, value, width, seconds, CLASS_COLOURS[0] if name in self.own else "0.6"))
        return sorted((bar for bar in bars if np.isfinite(bar[1])), key=lambda bar: bar[1])

    def _draw_bars(self, panel: Axes, setting: str) -> None:
        """A bar a learner, with its half-width and its score; the axis begins where the differences can be seen."""
        names, scores, widths, _, colours = zip(*self._bars(setting), strict=True)
        places, half = np.arange(len(names)), np.nan_to_num(np.array(widths))
        low, high = (np.array(scores) - half).min(), (np.array(scores) + half).max()
        begin = 0.0 if low <= 0.0 else np.floor(20.0 * (low - 0.5 * (high - low))) / 20.0
        begin = min(begin, low) if low < 0.0 else max(begin, 0.0)
        panel.barh(places, np.array(scores) - begin, left=begin, xerr=half, color=colours, height=0.7, ecolor="0.25")
        for place, score, beyond in zip(places.tolist(), scores, half.tolist(), strict=True):
            panel.text(max(score + beyond, 0.0), place, f"  {score:.3f}", va="center", fontsize="small")
        # Room for the numbers behind the longest bar.
        panel.set_xlim(begin, high + 0.18 * (high - begin))
        panel.set_yticks(places, names)
        panel.set_xlabel(f"{self.measure} (the axis begins at {begin:g})" if begin else self.measure)
        # the size that all learners have, where it is known
        size = f", {self.n_features[0]:,} {self.along}" if len(self.n_features) else ""
        panel.set_title(f"{setting}{size}")

    def _draw_bars_of_time(self, panel: Axes, setting: str) -> None:
        """The seconds of each bar of the scores, in the same order, as dots on a logarithmic axis."""
        names, _, _, seconds, colours = zip(*self._bars(setting), strict=True)
        panel.scatter(seconds, np.arange(len(names)), c=colours, s=36)
        panel.set_yticks(np.arange(len(names)), names)
        panel.set_ylim(-0.6, len(names) - 0.4)
        self._time_axis(panel, setting)

    def _draw_legends(self, axes: Sequence[Axes]) -> None:
        """One legend for all panels, which show the same learners; one a panel where each has its own references."""
        lines = axes[0].get_legend_handles_labels()
        if self.seconds or (len(lines[0]) > _MOST_INSIDE and not self.references):
            # References are marks in the panel of times, and lines in the others: the marks say both.
            handles, labels = axes[-1].get_legend_handles_labels()
            known = dict(zip(lines[1], lines[0], strict=True)) | dict(zip(labels, handles, strict=True))
            axes[-1].legend(list(known.values()), list(known), loc="center left", bbox_to_anchor=(1.0, 0.5))
            return
        for panel in axes if self.references else axes[-1:]:
            panel.legend(loc="best")

    def _draw_setting(self, panel: Axes, setting: str) -> None:
        """Scores against the number of features, on a logarithmic axis: sizes are multiples of each other."""
        panel.set_prop_cycle(_line_styles())
        for learner, values in self.scores[setting].items():
            self._draw_line(panel, setting, learner, values)
        for place, (name, value) in enumerate(self.references.get(setting, {}).items()):
            panel.axhline(value, color="0.6", linewidth=1.0, linestyle=(":", "-.", "--")[place % 3], label=name)
            if name in self.reference_seconds.get(setting, {}):
                # The mark that the reference has in the panel of times names its line.
                panel.scatter([min(self.n_features)], [value], marker=_MARKS[place % len(_MARKS)], color="0.35", s=40)
        panel.set_xscale("log")
        # Only sizes with a score have a tick: a comparison that was ended early has none for the largest.
        scored = np.isfinite(np.array(list(self.scores[setting].values()), dtype=float)).any(axis=0)
        sizes = [size for size, there in zip(self.n_features, scored, strict=True) if there]
        panel.set_xticks(sizes, [f"{n:,}" if isinstance(n, Integral) else f"{n:g}" for n in sizes])
        panel.minorticks_off()
        panel.set(title=setting, xlabel=f"number of {self.along}" if self.along == "features" else self.along)

    def _draw_times(self, panel: Axes, setting: str) -> None:
        """Scores against the seconds of the fit: of two learners the upper left one is better."""
        panel.set_prop_cycle(_line_styles())
        for learner, times in self.seconds[setting].items():
            values = self.scores[setting][learner]
            # by their seconds, not their sizes: a larger fit that took less time would draw the line backwards
            order = np.argsort(times, kind="stable")
            (line,) = panel.plot(
                np.asarray(times)[order], np.asarray(values)[order], label=learner, **self._style(learner)
            )
            for size, seconds, score in zip(self.n_features, times, values, strict=True):
                if np.isfinite(score):
                    # The size stands at its point, since along this axis nothing else says it.
                    panel.annotate(
                        f"{size:,}" if isinstance(size, Integral) else f"{size:g}",
                        (seconds, score),
                        (3, 3),
                        textcoords="offset points",
                        fontsize="x-small",
                        color=line.get_color(),
                    )
        for place, (name, seconds) in enumerate(self.reference_seconds.get(setting, {}).items()):
            score = self.references[setting][name]
            panel.plot([seconds], [score], _MARKS[place % len(_MARKS)], color="0.35", markersize=7, label=name)
        self._time_axis(panel, setting)

    def _time_axis(self, panel: Axes, setting: str) -> None:
        """Seconds on a logarithmic axis."""
        panel.set_xscale("log")
        low, high = panel.get_xlim()
        # 1 and 3 of each decade: seconds are read off more easily than powers of ten.
        ticks = [tick for tick in np.outer(10.0 ** np.arange(-4, 7), [1, 3]).ravel() if low <= tick <= high]
        panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        panel.minorticks_off()
        panel.set(title=f"{setting}: time" if len(self.scores) > 1 else "time", xlabel="seconds to learn and fit")

    def _style(self, learner: str) -> dict[str, Any]:
        """Line style and colour of a learner; the baseline is grey and dashed."""
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
