"""Main effects as curves and interactions as maps, strongest first: what a model on sparse frequencies says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dkl.explain.columns import axis_of
from dkl.explain.effects import effects
from dkl.explain.model import output_labels
from dkl.plots.figure import CLASS_COLOURS, Display, diverging, panels, quiet
from dkl.plots.working import in_memory_rows, near_rows

_RESOLUTION = 120


@dataclass(frozen=True, eq=False)
class EffectsDisplay(Display):
    """The strongest effects of a model, a panel each: curves over one column, maps over two.

    Parameters
    ----------
    grids : sequence of tuple of ndarray
        The values of each effect's columns along its axes.
    values : sequence of ndarray
        Of shape (g, K) for one column, (g2, g1, K) for two.
    names : sequence of tuple of str
        Of the columns.
    strengths : sequence of float
        Standard deviations over the rows.
    rows : sequence of ndarray
        Values of the rows in each effect's columns, (n, 1) or (n, 2), drawn as a rug or as dots.
    labels : sequence of str
        Of the K outputs; empty for one.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.learners.kernel_machines import KernelRegressor
    >>> from dkl.learners.random_features import RandomFeatures
    >>> from dkl.plots import EffectsDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 1))
    >>> model = KernelRegressor(RandomFeatures(n_features=20, random_state=0), solver="newton", alpha=1e-4)
    >>> EffectsDisplay.from_estimator(model.fit(X, np.sin(X[:, 0])), X).names
    [('column 0',)]
    """

    grids: Sequence[tuple[np.ndarray, ...]]
    values: Sequence[np.ndarray]
    names: Sequence[tuple[str, ...]]
    strengths: Sequence[float]
    rows: Sequence[np.ndarray]
    labels: Sequence[str] = ()

    @classmethod
    def from_estimator(
        cls, model: Any, X: Any, *, n_effects: int = 8, output: int | None = None, names: Sequence[str] | None = None
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
        names : sequence of str, or None
            Of the columns.

        Returns
        -------
        EffectsDisplay

        Raises
        ------
        NotFittedError, TypeError, ValueError
            As `dkl.explain.effects`; ValueError also if there is no effect of one or two columns.
        """
        found = [effect for effect in effects(model, X, names=names) if len(effect.columns) <= 2][:n_effects]
        if not found:
            raise ValueError(
                "no frequency of the model lies on one or two columns alone, so there is no effect to draw; learn "
                "sparse frequencies: MarginFeatures(sparse_share=1.0)"
            )
        rows, _ = in_memory_rows(model, X)
        grids, values, points = [], [], []
        for effect in found:
            own = rows[:, list(effect.columns)]
            grid = tuple(axis_of(own[:, place], _RESOLUTION) for place in range(own.shape[1]))
            computed = effect(*np.meshgrid(*grid))
            grids.append(grid)
            values.append(computed if output is None else computed[..., [output]])
            points.append(own)
        labels = output_labels(model) if output is None else ()
        return cls(grids, values, [e.names for e in found], [e.strength for e in found], points, labels)

    @property
    def _n_panels(self) -> int:
        return len(self.values)

    def _new_axes(self) -> list[Any]:
        return panels(self._n_panels, size=(3.3, 2.9))

    def _draw(self, axes: Sequence[Any]) -> None:
        curves = [value for value in self.values if value.ndim == 2]
        limit = max((float(np.abs(value).max()) for value in curves), default=1.0)
        for place, ax in enumerate(axes):
            if self.values[place].ndim == 2:
                self._draw_curve(ax, place, 1.1 * limit)
            else:
                self._draw_map(ax, place)
            ax.set_title(f"{' × '.join(self.names[place])}   ({self.strengths[place]:.2g})", fontsize="medium")
            ax.set_xlabel(self.names[place][0])

    def _draw_curve(self, ax: Any, place: int, limit: float) -> None:
        """All curves have one scale, so that strengths compare; the rows are a histogram below."""
        grid, values = self.grids[place][0], self.values[place]
        own = self.rows[place][:, 0]
        counts, edges = np.histogram(own, bins=40, range=(grid[0], grid[-1]))
        height = 0.22 * 2.0 * limit * counts / max(counts.max(), 1)
        ax.bar(edges[:-1], height, np.diff(edges), bottom=-limit, align="edge", color="0.88", linewidth=0)
        ax.axhline(0.0, color="0.6", linewidth=0.8)
        labels = self.labels or [""] * values.shape[1]
        for k in range(values.shape[1]):
            ax.plot(grid, values[:, k], color=CLASS_COLOURS[k % len(CLASS_COLOURS)], linewidth=1.8, label=labels[k])
        ax.set(xlim=(grid[0], grid[-1]), ylim=(-limit, limit))
        if self.labels and place == 0:
            ax.legend(frameon=False, fontsize="small")
        quiet(ax)

    def _draw_map(self, ax: Any, place: int) -> None:
        draw_map(ax, self.grids[place], self.values[place][..., 0], self.rows[place])
        ax.set_ylabel(self.names[place][1])


def draw_map(ax: Any, grid: tuple[np.ndarray, ...], values: np.ndarray, rows: np.ndarray) -> None:
    """Values (g2, g1) over two columns in colours around 0, the rows (n, 2) as dots; veiled where there are none."""
    first, second = grid
    near = near_rows(np.stack(np.meshgrid(first, second), axis=-1), rows)
    # what the model says where there are no rows decides no colours
    limit = max(float(np.abs(values[near > 0.5]).max(initial=0.0)), 1e-12)
    drawn = ax.contourf(
        first, second, values, levels=np.linspace(-limit, limit, 17), cmap=diverging(0.72), extend="both"
    )
    drawn.set_edgecolor("face")
    veil = np.ones((*near.shape, 4))
    veil[..., 3] = 1.0 - near
    extent = (first[0], first[-1], second[0], second[-1])
    ax.imshow(veil, extent=extent, origin="lower", interpolation="bilinear", aspect="auto", zorder=2)
    points = rows[:600]
    ax.scatter(points[:, 0], points[:, 1], s=3, color="black", alpha=0.35, linewidth=0, zorder=3)
    ax.figure.colorbar(drawn, ax=ax, ticks=[-limit, 0.0, limit], format="%.3g", pad=0.02)
    ax.set(xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))
