"""Functions on the unit sphere of R^3, harmonics above all, as shaded globes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from dkl.figure import RESOLUTION, Axes, Display, class_colour, diverging

# Elevation and azimuth of the viewer in degrees, and the direction from which the light comes, to the viewer's eye.
_VIEW = (25.0, -50.0)
_LIGHT = np.array([-0.45, 0.5, 0.74])


@dataclass(frozen=True, eq=False)
class SphereDisplay(Display):
    """Functions on the sphere seen from one side, a globe each.

    Bullins, Zhang & Zhang 2018, figure 1c.

    Parameters
    ----------
    values : sequence of ndarray of shape (r, r)
        Of each function at the pixels of the disc that faces the viewer; NaN outside.
    titles : sequence of str
    rows : ndarray of shape (n, 3)
        On the unit sphere; those in front are drawn on the first globe.
    codes : ndarray of shape (n,), int
        Classes of the rows.
    view : tuple of float
        Elevation and azimuth of the viewer, degrees.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> from dkl.plots import SphereDisplay
    >>> display = SphereDisplay.from_functions({"height": lambda X: X[:, 2]}, resolution=21)
    >>> display.values[0].shape
    (21, 21)
    """

    values: Sequence[np.ndarray]
    titles: Sequence[str]
    rows: np.ndarray = field(default_factory=lambda: np.zeros((0, 3)))
    codes: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    view: tuple[float, float] = _VIEW
    _size = (2.6, 2.95)
    _layout: ClassVar[Mapping[str, Any]] = {"columns": 5}

    @classmethod
    def from_functions(
        cls,
        functions: dict[str, Callable[[np.ndarray], np.ndarray]],
        *,
        rows: np.ndarray | None = None,
        y: np.ndarray | None = None,
        view: tuple[float, float] = _VIEW,
        resolution: int = RESOLUTION,
    ) -> Self:
        """Evaluate functions of rows on the sphere.

        Parameters
        ----------
        functions : dict of title to callable
            Each takes unit vectors (k, 3) to values (k,): a model's ``decision_function``, a harmonic.
        rows : ndarray of shape (n, 3), or None
            Drawn on a globe of their own, the first.
        y : ndarray of shape (n,), or None
            Their labels.
        view : pair of float
            Elevation and azimuth, degrees.
        resolution : int
            Pixels along the diameter.

        Returns
        -------
        SphereDisplay

        Raises
        ------
        ValueError
            If the rows do not have three columns.
        """
        pixels, inside = _front(view, resolution)
        values, titles = [_image(inside, function(pixels)) for function in functions.values()], list(functions)
        if rows is not None:
            if np.ndim(rows) != 2 or np.shape(rows)[1] != 3:
                raise ValueError(
                    f"rows has shape {np.shape(rows)}; a globe needs rows on the unit sphere of R^3, of 3 columns"
                )
            # The globe of the rows is white: the value 0 everywhere.
            values, titles = [_image(inside, 0.0), *values], ["rows", *titles]
        points = np.zeros((0, 3)) if rows is None else np.asarray(rows, float)
        codes = np.zeros(len(points), int) if y is None else np.unique(y, return_inverse=True)[1]
        return cls(values, titles, points, codes, view)

    @property
    def _n_panels(self) -> int:
        return len(self.values)

    def _draw(self, axes: Sequence[Axes]) -> None:
        for place, (ax, values, title) in enumerate(zip(axes, self.values, self.titles, strict=True)):
            ax.imshow(_shaded(values), extent=(-1, 1, -1, 1), origin="lower", interpolation="antialiased")
            # A thin line around the disc hides the steps of its edge.
            angle = np.linspace(0.0, 2.0 * np.pi, 361)
            ax.plot(np.cos(angle), np.sin(angle), color="0.25", linewidth=1.2)
            if place == 0 and len(self.rows):
                self._draw_rows(ax)
            ax.set_axis_off()
            ax.set(xlim=(-1.02, 1.02), ylim=(-1.02, 1.02), aspect="equal")
            ax.set_title(title, pad=8)

    def _draw_rows(self, ax: Axes) -> None:
        """The rows on the side of the sphere that faces the viewer, by their classes."""
        turned = self.rows @ _axes_of(self.view).T
        front = turned[:, 2] > 0.0
        for code in np.unique(self.codes):
            points = turned[front & (self.codes == code)]
            ax.scatter(points[:, 0], points[:, 1], s=7, color=class_colour(code), linewidth=0)


def _image(inside: np.ndarray, values: np.ndarray | float) -> np.ndarray:
    """Values at the pixels inside of a disc as a picture, which is NaN outside."""
    image = np.full(inside.shape, np.nan)
    image[inside] = np.ravel(values)
    return image


def _axes_of(view: tuple[float, float]) -> np.ndarray:
    """The viewer's right, up and towards, a row each."""
    elevation, azimuth = np.deg2rad(view)
    towards = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    return np.array([right, np.cross(towards, right), towards])


def _front(view: tuple[float, float], resolution: int) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors at the pixels of the disc that faces the viewer, and which pixels they are."""
    axis = np.linspace(-1.0, 1.0, resolution)
    across, up = np.meshgrid(axis, axis)
    # A point of the unit sphere at (across, up) is sqrt(1 - across^2 - up^2) towards the viewer.
    depth = 1.0 - across**2 - up**2
    inside = depth > 0.0
    turned = np.column_stack([across[inside], up[inside], np.sqrt(depth[inside])])
    vectors = turned @ _axes_of(view)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), inside


def _shaded(values: np.ndarray) -> np.ndarray:
    """The colours of a globe with light from the upper left, (r, r, 4)."""
    inside = np.isfinite(values)
    # A harmonic has narrow peaks: a few of its largest values may be cut off, so that the rest has colours.
    scale = max(float(np.quantile(np.abs(values[inside]), 0.995)), 1e-12)
    rgba = diverging()(np.where(inside, 0.5 + 0.42 * np.clip(values / scale, -1.0, 1.0), 0.5))
    axis = np.linspace(-1.0, 1.0, len(values))
    across, up = np.meshgrid(axis, axis)
    depth = np.sqrt(np.clip(1.0 - across**2 - up**2, 0.0, 1.0))
    # Lambert's law: the brightness of a matt surface is the cosine between its normal, which is the point itself, and
    # the light.
    light = np.clip(np.stack([across, up, depth], axis=-1) @ _LIGHT, 0.0, 1.0)
    rgba[..., :3] = np.clip(rgba[..., :3] * (0.55 + 0.5 * light)[..., None], 0.0, 1.0)
    # Outside the disc the picture is transparent.
    rgba[..., 3] = inside
    return rgba
