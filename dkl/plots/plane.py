"""Rows of two columns: the weight of each, and what a model decides between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.explain.along import draw_veil, near_rows
from dkl.figure import RESOLUTION, Axes, Display, bare, class_colour, diverging, pyplot
from dkl.plots.fitted_rows import Fitted, in_memory_rows, working_dual

_MOST_POINTS = 4_000
_MARGIN = 0.05


@dataclass(frozen=True, eq=False)
class WeightedRowsDisplay(Display):
    """Rows of two columns, each as large and as solid as its weight: where a learner still looks.

    Bullins, Zhang & Zhang 2018, figure 1a, the first row of panels.

    Parameters
    ----------
    X : ndarray of shape (n, 2)
    codes : ndarray of shape (n,), int
        The class of each row.
    weights : ndarray of shape (n,)
        Not negative, of any scale.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import WeightedRowsDisplay
    >>> WeightedRowsDisplay(np.zeros((2, 2)), np.array([0, 1]), np.array([1.0, 0.5])).weights.sum()
    np.float64(1.5)
    """

    X: np.ndarray
    codes: np.ndarray
    weights: np.ndarray
    title: str = ""

    @classmethod
    def from_estimator(cls, model: Fitted, X: object, y: object, *, reweighted: bool = True, title: str = "") -> Self:
        """Weigh rows by the dual of a fitted model.

        Parameters
        ----------
        model : fitted feature learner or Kernel machine
        X : array, Dask collection or Dataset of shape (n, 2)
        y : array of shape (n,), or None for a Dataset
        reweighted : bool
            False: all rows weigh the same.
        title : str

        Returns
        -------
        WeightedRowsDisplay

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If X does not have two columns.
        """
        check_is_fitted(model)
        rows, targets = in_memory_rows(model, X, y)
        _check_two_columns(rows)
        # Of several classes a row has a weight in each problem of one class against the others; they are added.
        weights = np.abs(working_dual(model, rows, targets, reweighted=reweighted)).sum(axis=1)
        return cls(rows, np.unique(targets, return_inverse=True)[1], weights, title)

    def _draw(self, axes: Sequence[Axes]) -> None:
        ax = axes[0]
        # Rows are drawn in ascending order of their weights, so that the heavy ones lie on top.
        order = np.argsort(self.weights)[-_MOST_POINTS:]
        # One row of an enormous weight must not make all others invisible: the 99 % quantile is drawn as the largest.
        share = self.weights[order] / max(float(np.quantile(self.weights, 0.99)), 1e-300)
        share = np.clip(share, 0.0, 1.0)
        # Colours with a transparency of their own for each row.
        colours = np.array([_rgb(code) for code in self.codes[order]])
        rgba = np.column_stack([colours, 0.28 + 0.67 * share])
        ax.scatter(self.X[order, 0], self.X[order, 1], s=2.5 + 18.0 * share, c=rgba, linewidth=0)
        bare(ax)
        ax.spines[:].set_visible(False)
        ax.set_title(self.title)


@dataclass(frozen=True, eq=False)
class DecisionDisplay(Display):
    """The decisions of a model over two columns: the boundary, and for two classes the contours of the margin.

    Bullins, Zhang & Zhang 2018, figure 1a, the last row of panels.

    Parameters
    ----------
    horizontal, vertical : ndarray of shape (h,), (v,)
        Values of the two columns.
    decision : ndarray of shape (v, h), or (v, h, K) for K > 2 classes
        Decision values.
    near : ndarray of shape (v, h)
        1 where there are rows, down to 0 far from all of them: there the picture fades, the model only guesses.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.machines.kernel_machines import KernelClassifier
    >>> from dkl.methods.random_features import RandomFeatures
    >>> from dkl.plots import DecisionDisplay
    >>> from dkl.testing.synthetic import windmill
    >>> X, y = windmill(300)
    >>> model = KernelClassifier(RandomFeatures(n_features=50, random_state=0), random_state=0).fit(X, y)
    >>> DecisionDisplay.from_estimator(model, X, y, resolution=30).decision.shape
    (30, 30)
    """

    horizontal: np.ndarray
    vertical: np.ndarray
    decision: np.ndarray
    near: np.ndarray
    title: str = ""

    @classmethod
    def from_estimator(cls, model: Any, X: object, y: object, *, resolution: int = RESOLUTION, title: str = "") -> Self:
        """Evaluate a fitted classifier on a grid that covers the rows.

        Parameters
        ----------
        model : fitted KernelClassifier, or any classifier with ``decision_function``
        X : array, Dask collection or Dataset of shape (n, 2)
        y : array of shape (n,), or None for a Dataset
        resolution : int
            Points along an axis.
        title : str

        Returns
        -------
        DecisionDisplay

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        ValueError
            If X does not have two columns.
        """
        check_is_fitted(model)
        rows, _ = in_memory_rows(model, X, y)
        _check_two_columns(rows)
        low, high = rows.min(axis=0), rows.max(axis=0)
        # Rows at the edge are drawn whole.
        low, high = low - _MARGIN * (high - low), high + _MARGIN * (high - low)
        horizontal, vertical = (np.linspace(low[c], high[c], resolution) for c in (0, 1))
        grid = np.stack(np.meshgrid(horizontal, vertical), axis=-1)
        values = np.asarray(model.decision_function(grid.reshape(-1, 2)))
        decision = values.reshape(*grid.shape[:2], *values.shape[1:])
        return cls(horizontal, vertical, decision, near_rows(grid, rows), title)

    def _draw(self, axes: Sequence[Axes]) -> None:
        ax = axes[0]
        if self.decision.ndim == 2:
            self._draw_margins(ax)
        else:
            self._draw_classes(ax)
        draw_veil(ax, self.near, self._extent, zorder=2.5)
        bare(ax)
        ax.spines[:].set_visible(False)
        ax.set_title(self.title)

    @property
    def _extent(self) -> tuple[float, float, float, float]:
        return self.horizontal[0], self.horizontal[-1], self.vertical[0], self.vertical[-1]

    def _draw_margins(self, ax: Axes) -> None:
        """Two classes: filled contours of the decision, the margins dashed, the boundary solid."""
        # The margins are at -1 and 1: as much again is shown beyond them.
        levels = np.linspace(-2.0, 2.0, 17)
        filled = ax.contourf(
            self.horizontal, self.vertical, self.decision, levels=levels, cmap=diverging(0.76), extend="both"
        )
        # Without it, the white gaps between filled contours would show in vector files.
        filled.set_edgecolor("face")
        ax.contour(
            self.horizontal,
            self.vertical,
            self.decision,
            levels=[-1.0, 0.0, 1.0],
            colors="black",
            linestyles=["dashed", "solid", "dashed"],
            linewidths=[0.6, 1.3, 0.6],
        )

    def _draw_classes(self, ax: Axes) -> None:
        """More classes: the colour of the largest value, paler where the second is near."""
        ordered = np.sort(self.decision, axis=2)
        # The lead of the winning class, at most 2, the distance between the margins of two classes.
        lead = np.clip(ordered[..., -1] - ordered[..., -2], 0.0, 2.0) / 2.0
        # Ties go to the first class, as in `predict`.
        winner = self.decision.argmax(axis=2)
        colours = np.array([_rgb(code) for code in range(self.decision.shape[2])])[winner]
        strength = (0.25 + 0.6 * lead)[..., None]
        image = 1.0 - strength * (1.0 - colours)
        ax.imshow(image, extent=self._extent, origin="lower", interpolation="bilinear", aspect="auto")
        for code in range(self.decision.shape[2]):
            # The boundary of a class is where it is as large as the best of the others.
            others = np.delete(self.decision, code, axis=2).max(axis=2)
            ax.contour(
                self.horizontal, self.vertical, self.decision[..., code] - others, [0.0], colors="black", linewidths=0.8
            )


def _rgb(code: int) -> tuple[float, float, float]:
    """The colour of a class as numbers, for pictures that mix it with white."""
    pyplot()
    from matplotlib.colors import to_rgb

    return to_rgb(class_colour(code))


def _check_two_columns(X: np.ndarray) -> None:
    """Raise ValueError, with the displays for wider rows, where X does not have two columns."""
    if X.shape[1] != 2:
        raise ValueError(
            f"X has {X.shape[1]} columns and this picture is of a plane: give rows of two columns; of wider rows "
            "LandscapeDisplay shows a plane of frequencies and EffectsDisplay the effects of columns"
        )
