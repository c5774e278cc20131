"""Importance as bars, dependence as curves and maps, contributions as steps from the mean to the prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dkl.explain.contributions import Contributions, contributions
from dkl.explain.dependence import PartialDependence, partial_dependence
from dkl.explain.importance import Importance, importance
from dkl.plots.along import draw_curves, draw_pair, draw_rug
from dkl.plots.figure import CLASS_COLOURS, Axes, Display
from dkl.protocols.estimators import FittedModel


@dataclass(frozen=True, eq=False)
class ImportanceDisplay(Display):
    """The most important columns of a model as bars, the longest on top.

    Parameters
    ----------
    importance : Importance
    most : int
        Bars at most.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import Importance
    >>> from dkl.plots import ImportanceDisplay
    >>> ImportanceDisplay(Importance(("age", "size"), np.array([[1.0], [3.0]]), None, "slope")).shown
    ['size', 'age']
    """

    importance: Importance
    most: int = 20
    _size = (4.8, 4.0)

    @classmethod
    def from_estimator(cls, model: FittedModel, X: object, *, most: int = 20, **options: Any) -> Self:
        """Measure and draw: `options` are those of `dkl.explain.importance`."""
        return cls(importance(model, X, **options), most)

    @property
    def shown(self) -> list[str]:
        """The columns that have a bar."""
        return [self.importance.names[g] for g in self.importance.order[: self.most]]

    def _draw(self, axes: Sequence[Axes]) -> None:
        (ax,) = axes
        order = self.importance.order[: self.most]
        places = np.arange(len(order))
        ax.barh(places, self.importance.strengths[order], color=CLASS_COLOURS[0], height=0.7)
        # The energy by frequencies is another measure of the same importance: where both agree, trust is well placed.
        if self.importance.energy is not None:
            ax.plot(self.importance.energy[order], places, "|", color="black", markersize=10, label="by frequencies")
            ax.legend(loc="lower right")
        ax.set_yticks(places, self.shown)
        ax.invert_yaxis()
        ax.set_xlabel(f"change of the prediction ({self.importance.measure})")


@dataclass(frozen=True, eq=False)
class DependenceDisplay(Display):
    """Partial dependence, a panel each: a curve over a number, dots over categories, a map over two numbers.

    A category beside another column has a curve for each of its values.

    Parameters
    ----------
    dependences : sequence of PartialDependence
    output : int
        Of several outputs, the one that is drawn where there is a pair; curves of single columns show all.
    interaction : bool
        Draw what a pair does together beyond what each column does.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> len(dkl.plots.DependenceDisplay.from_estimator(model, X, [0, 1]).plot().axes_)
    2
    """

    dependences: Sequence[PartialDependence]
    output: int = 0
    interaction: bool = False
    _size = (3.5, 3.0)

    @classmethod
    def from_estimator(cls, model: FittedModel, X: object, columns: Any, **options: Any) -> Self:
        """Compute and draw: `columns` and `options` are those of `dkl.explain.partial_dependence`."""
        dependence = partial_dependence(model, X, columns, **options)
        return cls(dependence if isinstance(dependence, list) else [dependence])

    @property
    def _n_panels(self) -> int:
        return len(self.dependences)

    def _draw(self, axes: Sequence[Axes]) -> None:
        for ax, dependence in zip(axes, self.dependences, strict=True):
            if len(dependence.axes) == 2:
                # Colours of a map are around 0: what the pair does together, or how far it is from the mean.
                joint = dependence.values - dependence.mean
                if self.interaction and dependence.interaction is not None:
                    joint = dependence.interaction
                draw_pair(ax, dependence.axes, joint[..., self.output])
                if any(axis.numbers is None for axis in dependence.axes):
                    ax.set_ylabel(f"{dependence.unit}, {'interaction' if self.interaction else 'less its mean'}")
                continue
            draw_curves(ax, dependence.axes[0], dependence.values, dependence.outputs)
            draw_rug(ax, dependence.axes[0])
            ax.set_ylabel(f"{dependence.unit}, mean over the rows")
            # Several outputs would have a line each at other heights, which nobody could tell apart.
            for mean in dependence.mean if len(dependence.mean) == 1 else ():
                ax.axhline(mean, color="0.6", linewidth=0.8)
            if dependence.outputs:
                ax.legend()


@dataclass(frozen=True, eq=False)
class ContributionsDisplay(Display):
    """The prediction of one row, column by column: steps from the mean prediction, the largest on top.

    Parameters
    ----------
    contributions : Contributions
    row : int
    output : int
    most : int
        Columns with a step of their own; the others share one.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> parts = dkl.explain.contributions(model, X[:3], X)
    >>> len(dkl.plots.ContributionsDisplay(parts, row=2).plot().axes_)
    1
    """

    contributions: Contributions
    row: int = 0
    output: int = 0
    most: int = 12
    _size = (5.4, 4.0)

    def __post_init__(self) -> None:
        n_rows, _, n_outputs = self.contributions.values.shape
        for name, number, size in (("row", self.row, n_rows), ("output", self.output, n_outputs)):
            if not -size <= number < size:
                raise IndexError(f"{name} is {number}, and there are contributions to {size:,} {name}s, from 0 on")

    @classmethod
    def from_estimator(
        cls, model: FittedModel, rows: object, background: object, *, row: int = 0, **options: Any
    ) -> Self:
        """Compute and draw: `options` are those of `dkl.explain.contributions`."""
        return cls(contributions(model, rows, background, **options), row)

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Each column with its value, and what it contributes; what is left comes last."""
        # Columns are ordered by size, whatever the sign: a large step down matters as much as one up.
        own = self.contributions.values[self.row, :, self.output]
        order = np.argsort(-np.abs(own), kind="stable")
        shown = [(self.contributions.label(self.row, int(g)), float(own[g])) for g in order[: self.most]]
        rest = order[self.most :]
        return [*shown, (f"{len(rest)} others", float(own[rest].sum()))] if len(rest) else shown

    def _draw(self, axes: Sequence[Axes]) -> None:
        (ax,) = axes
        labels, values = zip(*self.steps, strict=True)
        base = float(self.contributions.base[self.output])
        # The steps add up from the bottom, where the mean prediction stands, to the prediction on top.
        ends = base + np.cumsum(values[::-1])[::-1]
        places = np.arange(len(values))
        # Steps up and steps down have the colours of the two classes.
        colours = [CLASS_COLOURS[1] if value > 0 else CLASS_COLOURS[0] for value in values]
        ax.barh(places, values, left=ends - np.array(values), color=colours, height=0.7)
        for place, value, end in zip(places, values, ends, strict=True):
            ax.annotate(
                f"{value:+.3g}",
                (max(end, end - value), place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        ax.axvline(base, color="0.6", linewidth=0.8)
        ax.set_yticks(places, labels)
        ax.invert_yaxis()
        # matplotlib would otherwise put the foot of a bar at the edge of the picture.
        ax.use_sticky_edges = False
        ax.margins(x=0.15)
        outputs = self.contributions.outputs
        # a single output with a name of its own has it as its unit
        output = f" of {outputs[self.output]}" if len(outputs) > 1 else ""
        unit = f"{self.contributions.unit}{output}"
        ax.set_xlabel(f"{unit}: mean {base:.4g}, in this row {float(ends[0]):.4g}")
