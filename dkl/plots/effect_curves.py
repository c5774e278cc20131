"""Main effects as curves and interactions as maps, strongest first: what a model on sparse frequencies says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from dkl.explain.along import draw_bands, draw_curves, draw_pair, places_of
from dkl.explain.column_groups import Axis, Groups, axis_on, columns_of
from dkl.explain.effects import effects
from dkl.explain.model import output_labels
from dkl.figure import Axes, Display
from dkl.plots.fitted_rows import in_memory_rows
from dkl.protocols.estimators import FittedModel

# Values along the axis of a number: of a curve, and of each axis of a map.
_RESOLUTION, _MAP_RESOLUTION = 120, 60


@dataclass(frozen=True, eq=False)
class EffectsDisplay(Display):
    """The strongest effects of a model, a panel each: curves over one column, maps over two, dots over categories.

    Parameters
    ----------
    grids : sequence of tuple of Axis
        The values of each effect's columns.
    values : sequence of ndarray
        Of shape (g, K) for one column, (g1, g2, K) for two.
    strengths : sequence of float
        Standard deviations over the rows.
    labels : sequence of str
        Of the K outputs; empty for one.
    deviations : sequence of ndarray
        Of the values between bags, in their shapes: a band around each curve; empty for models without bags.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> from dkl.plots import EffectsDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 1))
    >>> model = KernelRegressor(RandomFeatures(n_features=20, random_state=0), solver="newton", alpha=1e-4)
    >>> EffectsDisplay.from_estimator(model.fit(X, np.sin(X[:, 0])), X).names
    [('column 0',)]
    """

    grids: Sequence[tuple[Axis, ...]]
    values: Sequence[np.ndarray]
    strengths: Sequence[float]
    labels: Sequence[str] = ()
    deviations: Sequence[np.ndarray] = ()
    _size = (3.3, 2.9)

    @classmethod
    def from_estimator(
        cls,
        model: FittedModel,
        X: object,
        *,
        n_effects: int = 8,
        output: int | None = None,
        names: Sequence[str] | None = None,
        groups: Groups | None = None,
    ) -> Self:
        """Take the strongest effects of one and two columns from a fitted machine.

        Parameters
        ----------
        model : fitted KernelClassifier or KernelRegressor on Fourier features
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        n_effects : int
            Panels, at most.
        output : int or None
            The class or target whose effects are drawn; None draws all as curves, and the first as maps.
        names, groups
            As of `dkl.explain.effects`.

        Returns
        -------
        EffectsDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As `dkl.explain.effects`; ValueError also if there is no effect of one or two columns.
        """
        strongest = effects(model, X, names=names, groups=groups)
        # Effects of three columns and more cannot be drawn; the strongest come first.
        drawn = [effect for effect in strongest if len(effect.columns) <= 2][:n_effects]
        if not drawn:
            raise ValueError(
                "no frequency of the model lies on one or two columns alone, so there is no effect to draw; learn "
                "sparse frequencies: MarginFeatures(sparse_share=1.0)"
            )
        rows, _ = in_memory_rows(model, X)
        known, grids, values, deviations = columns_of(model, names, groups), [], [], []
        for effect in drawn:
            most = _RESOLUTION if len(effect.columns) == 1 else _MAP_RESOLUTION
            grid = tuple(axis_on(known, g, rows[:, known.members[g]], most) for g in effect.columns)
            # An effect takes an array a column and combines them as NumPy broadcasts: (g,) for a curve, (g1, 1) and
            # (1, g2) for a map. A category has a pattern of several encoded columns for each of its values.
            values_of_axes = []
            for place, axis in enumerate(grid):
                along = axis.patterns[:, 0] if axis.patterns.shape[1] == 1 else axis.patterns
                values_of_axes.append(along if len(grid) == 1 else np.expand_dims(along, 1 - place))
            computed = effect(*values_of_axes)
            grids.append(grid)
            values.append(computed if output is None else computed[..., [output]])
            if effect.bag_coefficients is not None:
                spread = effect.deviations(*values_of_axes)
                deviations.append(spread if output is None else spread[..., [output]])
        labels = output_labels(model) if output is None else ()
        return cls(grids, values, [effect.strength for effect in drawn], labels, deviations)

    @property
    def names(self) -> list[tuple[str, ...]]:
        """The columns of each effect."""
        return [tuple(axis.name for axis in grid) for grid in self.grids]

    @property
    def _n_panels(self) -> int:
        return len(self.values)

    def _draw(self, axes: Sequence[Axes]) -> None:
        # Maps have colours of their own; only curves share the axis.
        curves = [value for value in self.values if value.ndim == 2]
        limit = 1.1 * max((float(np.abs(value).max()) for value in curves), default=1.0)
        for place, (ax, grid, values) in enumerate(zip(axes, self.grids, self.values, strict=True)):
            if len(grid) == 1:
                self._draw_curve(ax, grid[0], values, limit)
                if self.deviations:
                    draw_bands(ax, grid[0], values, self.deviations[place])
            else:
                draw_pair(ax, grid, values[..., 0])
            ax.set_title(f"{' × '.join(self.names[place])}   ({self.strengths[place]:.2g})")
        if self.labels and len(self.grids[0]) == 1:
            axes[0].legend()

    def _draw_curve(self, ax: Axes, axis: Axis, values: np.ndarray, limit: float) -> None:
        """All curves have one scale, so that strengths compare; the rows are a histogram below."""
        if axis.numbers is None:
            counts = np.bincount(axis.nearest(), minlength=len(axis.labels))
            edges = np.arange(len(axis.labels) + 1) - 0.5
        else:
            places = places_of(axis)
            counts, edges = np.histogram(axis.rows[:, axis.varying[0]], bins=40, range=(places[0], places[-1]))
        # The histogram takes the lower part of the picture; only its shape says something.
        height = 0.44 * limit * counts / max(counts.max(), 1)
        ax.bar(edges[:-1], height, np.diff(edges), bottom=-limit, align="edge", color="0.88", linewidth=0)
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        draw_curves(ax, axis, values, self.labels)
        ax.set_ylim(-limit, limit)
