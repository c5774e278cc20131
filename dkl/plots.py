"""Pictures: data in attributes, drawn by `.plot(ax=None)`; matplotlib is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ComparisonDisplay:
    """Scores of several learners against the number of features, one panel a setting.

    Parameters
    ----------
    n_features : sequence of int
        The sizes, ascending.
    scores : mapping of str to mapping of str to sequence of float
        ``scores[setting][learner]`` holds one score a size.
    measure : str
        What the scores are, for the axis: ``"accuracy"``.
    baseline : str or None
        The learner that is drawn as the line to beat.
    title : str

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

    def plot(self, ax: Any = None) -> ComparisonDisplay:
        """Draw the panels into `ax` (one matplotlib Axes a setting), or into a new figure.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        axes = self._new_axes() if ax is None else list(ax) if isinstance(ax, Sequence) else [ax]
        for panel, (setting, lines) in zip(axes, self.scores.items(), strict=True):
            self._draw(panel, setting, lines)
        axes[0].set_ylabel(self.measure)
        axes[-1].legend(frameon=False, loc="lower right")
        object.__setattr__(self, "axes_", axes)
        object.__setattr__(self, "figure_", axes[0].figure)
        return self

    def save(self, path: str | Path) -> Path:
        """Draw into a new figure and write it to `path` (PNG, SVG, PDF: by the suffix)."""
        figure = self.plot().figure_  # type: ignore[attr-defined]
        figure.savefig(path, dpi=150)
        _pyplot().close(figure)
        return Path(path)

    def _new_axes(self) -> list[Any]:
        figure, axes = _pyplot().subplots(
            1, len(self.scores), figsize=(4.6 * len(self.scores), 3.8), sharey=True, squeeze=False, layout="constrained"
        )
        if self.title:
            figure.suptitle(self.title)
        return list(axes[0])

    def _draw(self, panel: Any, setting: str, lines: Mapping[str, Sequence[float]]) -> None:
        for learner, values in lines.items():
            plain = learner == self.baseline
            style = {"color": "0.45", "linestyle": "--"} if plain else {}
            panel.plot(self.n_features, values, marker="o", label=learner, **style)
        panel.set_xscale("log")
        panel.set_xticks(list(self.n_features), [str(n) for n in self.n_features])
        panel.minorticks_off()
        panel.set_xlabel("features")
        panel.set_title(setting, fontsize="medium")
        panel.grid(alpha=0.3)


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("a picture needs matplotlib, which is not installed: pip install 'dkl[plots]'") from error
    return plt
