"""The rounds of a learner as curves: what went down, what went up, and where it stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.figure import CLASS_COLOURS, Axes, Display
from dkl.plots.fitted_rows import Fitted

# The quantities of a round that belong into one panel: its title, whether it is seen on a logarithmic scale, its lines.
_Panel = tuple[str, bool, tuple[str, ...]]
# What a user reads: whether the model gets better on held-out rows, and whether the search has come to its end. Each
# question has several measures, of which the first that a history has is drawn.
_READ: tuple[tuple[_Panel, ...], ...] = (
    (
        ("loss", False, ("held_out_loss", "validation_loss", "train_loss", "loss")),
        ("objective", False, ("objective",)),
        ("value of the game", False, ("upper", "lower")),
    ),
    (
        ("score", False, ("validation_score", "score")),
        ("error", False, ("held_out_error", "error")),
    ),
    (
        ("duality gap", True, ("relative_gap", "duality_gap", "gap")),
        ("residual of the optimality conditions", True, ("residual",)),
        ("potential", True, ("potential", "sampled_potential")),
    ),
)
# What the horizontal axis counts, the first that every entry of the history has.
_AXIS = ("n_features", "round", "epoch")
_LABELS = {"n_features": "number of features"}


@dataclass(frozen=True, eq=False)
class HistoryDisplay(Display):
    """The curves of `history_`: whether rounds still gain, on held-out rows where there are any, and when they end.

    There are three panels at most: the loss, the score or error, and the gap, residual or potential.

    Parameters
    ----------
    history : sequence of dict of str to number
        One a round; what a round does not say is a gap in its curve.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> from dkl.plots import HistoryDisplay
    >>> HistoryDisplay([{"round": 1, "potential": 0.2}, {"round": 2, "potential": 0.1}]).panels
    [('potential', True, ('potential',))]
    """

    history: Sequence[Mapping[str, Any]]
    title: str = ""
    _size = (3.6, 2.6)
    _is_titled = True

    @classmethod
    def from_estimator(cls, learner: Fitted, *, title: str = "") -> Self:
        """Take the history of a fitted learner, or of a machine's features.

        Parameters
        ----------
        learner : fitted estimator with ``history_``, or a Kernel machine on one
        title : str

        Returns
        -------
        HistoryDisplay

        Raises
        ------
        NotFittedError
            If it is not fitted.
        TypeError
            If it keeps no history.
        """
        check_is_fitted(learner)
        # A machine has a history of its own where it fits in epochs; else its features may have one.
        with_history = learner if hasattr(learner, "history_") else getattr(learner, "features_", learner)
        if not hasattr(with_history, "history_"):
            raise TypeError(f"{type(with_history).__name__} learns in one pass and keeps no history_ to draw")
        return cls(list(with_history.history_), title)

    @property
    def panels(self) -> list[_Panel]:
        """Title, logarithmic or not, and the quantities of each panel that there is something to draw in."""
        known = {name for entry in self.history for name in entry if np.isfinite(self._values(name)).any()}
        drawn = []
        for measures in _READ:
            kept = ((title, log, tuple(name for name in names if name in known)) for title, log, names in measures)
            # A metric that stays the same in all rounds says nothing as a curve.
            changing = (panel for panel in kept if any(self._changes(name) for name in panel[2]))
            drawn += list(changing)[:1]
        return drawn

    @property
    def _n_panels(self) -> int:
        return len(self.panels)

    def _new_axes(self, **options: Any) -> list[Axes]:
        if not self.panels:
            raise ValueError("the history holds no number of those that are drawn, such as a loss or a gap")
        return super()._new_axes(**options)

    def _draw(self, axes: Sequence[Axes]) -> None:
        label = next((name for name in _AXIS if self._goes_up(name)), "round")
        # A history without a count of its rounds is counted here.
        rounds = np.array([entry.get(label, place + 1) for place, entry in enumerate(self.history)], dtype=float)
        for ax, (title, log, names) in zip(axes, self.panels, strict=True):
            for name, colour in zip(names, CLASS_COLOURS, strict=False):
                self._draw_line(ax, rounds, name, colour)
            # A gap of 0 (a solver that has ended exactly) has no place on a logarithmic axis.
            positive = log and all((self._values(name)[np.isfinite(self._values(name))] > 0.0).all() for name in names)
            ax.set_yscale("log" if positive else "linear")
            ax.set(title=title, xlabel=_LABELS.get(label, label))
            # Rounds and features are counted: half of one means nothing.
            ax.locator_params(axis="x", integer=True)
            if len(names) == 1:
                ax.set_ylabel(names[0].replace("_", " "))
            if len(names) > 1:
                ax.legend()

    def _draw_line(self, ax: Axes, rounds: np.ndarray, name: str, colour: str) -> None:
        """One metric over the rounds that have it."""
        values = self._values(name)
        there = np.isfinite(values)
        marker = "o" if there.sum() <= 30 else ""
        ax.plot(
            rounds[there],
            values[there],
            color=colour,
            marker=marker,
            markersize=3.0,
            linewidth=1.4,
            label=name.replace("_", " "),
        )

    def _goes_up(self, name: str) -> bool:
        """Whether every round says this number, and each a larger one than the one before."""
        values = self._values(name)
        return bool(np.isfinite(values).all() and len(values) and (np.diff(values) > 0.0).all())

    def _changes(self, name: str) -> bool:
        """Whether a metric has different values, or a single one, which is drawn as a dot."""
        values = self._values(name)
        return len(values) == 1 or bool(np.ptp(values[np.isfinite(values)]) > 0.0)

    def _values(self, name: str) -> np.ndarray:
        """A metric round by round; NaN where a round does not say it, or says no number."""
        values = [entry.get(name) for entry in self.history]
        return np.array([float(value) if isinstance(value, Real) else np.nan for value in values])
