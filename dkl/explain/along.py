"""Values along the axis of a column, and over two: curves and maps, dots where a column is a category."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.spatial import cKDTree

from dkl.explain.column_groups import Axis
from dkl.figure import Axes, class_colour, diverging


def places_of(axis: Axis) -> np.ndarray:
    """Positions of the values along an axis, (g,): the numbers themselves, or 0, 1, 2, ... for categories."""
    # Categories have no order of their own, so they stand at equal distances.
    return np.arange(len(axis.labels)) if axis.numbers is None else axis.numbers


def draw_curves(ax: Axes, axis: Axis, values: np.ndarray, labels: Sequence[str]) -> None:
    """Values (g, K) along a number as curves, at each category as dots."""
    places, is_number = places_of(axis), axis.numbers is not None
    for k in range(values.shape[1]):
        colour, label = class_colour(k), labels[k] if labels else None
        ax.plot(places, values[:, k], "-" if is_number else "o", color=colour, linewidth=1.8, label=label)
    if is_number:
        ax.set_xlim(places[0], places[-1])
    else:
        ax.set_xticks(places, axis.labels, rotation=45 if len(places) > 4 else 0)
        ax.set_xlim(-0.5, len(places) - 0.5)
    ax.set_xlabel(axis.name)


def draw_bands(ax: Axes, axis: Axis, values: np.ndarray, deviations: np.ndarray) -> None:
    """Values (g, K) less and plus their deviations as bands of the curves' colours, at categories as bars."""
    places = places_of(axis)
    for k in range(values.shape[1]):
        colour, low, high = (
            class_colour(k),
            *(values[:, k] + s * deviations[:, k] for s in (-1, 1)),
        )
        if axis.numbers is None:
            ax.vlines(places, low, high, color=colour, linewidth=1.2)
        else:
            ax.fill_between(places, low, high, color=colour, alpha=0.2, linewidth=0)


def draw_pair(ax: Axes, axes: Sequence[Axis], values: np.ndarray) -> None:
    """Values (g1, g2) over two columns: a map of two numbers, else a curve for each value of a category."""
    first, second = axes
    if first.numbers is not None and second.numbers is not None:
        rows = np.column_stack([axis.rows[:, axis.varying[0]] for axis in axes])
        draw_map(ax, (first.numbers, second.numbers), values.T, rows)
        ax.set(xlabel=first.name, ylabel=second.name)
        return
    if first.numbers is None and second.numbers is not None:
        # The number goes along the axis, and the category has a curve for each of its values.
        values, first, second = values.T, second, first
    draw_curves(ax, first, values, tuple(f"{second.name} = {label}" for label in second.labels))
    draw_rug(ax, first)
    ax.legend()


def draw_rug(ax: Axes, axis: Axis) -> None:
    """Some of the rows as ticks at the foot; none for a category."""
    if axis.numbers is not None:
        # A few hundred rows show where they lie as well as all of them, and the file of the picture stays small.
        ticks = axis.rows[:600, axis.varying[0]]
        ax.plot(ticks, np.zeros(len(ticks)), "|", color="0.5", transform=ax.get_xaxis_transform(), markersize=6)


def draw_veil(ax: Axes, near: np.ndarray, extent: tuple[float, float, float, float], *, zorder: float) -> None:
    """A white layer, opaque where there are no rows, fades the part of a picture that is a guess.

    `near` says of each point of the grid (g2, g1) how near the rows are, as `near_rows` does.
    """
    veil = np.ones((*near.shape, 4))
    veil[..., 3] = 1.0 - near
    ax.imshow(veil, extent=extent, origin="lower", interpolation="bilinear", aspect="auto", zorder=zorder)


def draw_map(ax: Axes, grid: tuple[np.ndarray, ...], values: np.ndarray, rows: np.ndarray) -> None:
    """Values (g2, g1) over two columns in colours around 0, the rows (n, 2) as dots; veiled where there are none."""
    first, second = grid
    near = near_rows(np.stack(np.meshgrid(first, second), axis=-1), rows)
    # Far from all rows a model may say anything: only values near rows decide the range of the colours.
    limit = max(float(np.abs(values[near > 0.5]).max(initial=0.0)), 1e-12)
    drawn = ax.contourf(
        first, second, values, levels=np.linspace(-limit, limit, 17), cmap=diverging(0.72), extend="both"
    )
    drawn.set_edgecolor("face")
    draw_veil(ax, near, (first[0], first[-1], second[0], second[-1]), zorder=2)
    points = rows[:600]
    ax.scatter(points[:, 0], points[:, 1], s=3, color="black", alpha=0.35, linewidth=0, zorder=3)
    ax.figure.colorbar(drawn, ax=ax, ticks=[-limit, 0.0, limit], format="%.3g", pad=0.02)
    ax.set(xlim=(first[0], first[-1]), ylim=(second[0], second[-1]))


def near_rows(grid: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Nearness of each grid point to the rows: 1 among them, 0 from twice the usual distance between rows on.

    Parameters
    ----------
    grid : ndarray of shape (v, h, d)
    X : ndarray of shape (n, d)

    Returns
    -------
    ndarray of shape (v, h)
    """
    spread = np.maximum(np.ptp(X, axis=0), 1e-300)
    tree = cKDTree(X / spread)
    # The distance to the tenth neighbour, of nine rows in ten: rows far away from all others do not make the picture
    # clear around them.
    apart = np.quantile(tree.query(X / spread, k=min(10, len(X)))[0][:, -1], 0.9)
    away = tree.query(grid.reshape(-1, grid.shape[-1]) / spread)[0].reshape(grid.shape[:2])
    return np.clip(2.0 - away / max(float(apart), 1e-300), 0.0, 1.0)
