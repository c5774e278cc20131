"""The Fourier potential over a plane of frequencies, with the learned features on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy import sparse
from sklearn.utils.validation import check_is_fitted

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.features.scaling import Scaler
from dkl.figure import Axes, Display
from dkl.kernels.sums import feature_sums
from dkl.plots.fitted_rows import Fitted, in_memory_rows, working_dual

# The map reaches this much further than the features, so that peaks which were not chosen are seen too.
_MARGIN = 1.25


@dataclass(frozen=True, eq=False)
class LandscapeDisplay(Display):
    """The potential ``v(w) = |sum_i s_i exp(i w.x_i)|^2 / (sum_i |s_i|)^2`` over two columns, features on top.

    Bullins, Zhang & Zhang 2018, figure 1a and 1b. Frequencies with entries in these two columns alone are shown.

    Parameters
    ----------
    horizontal, vertical : ndarray of shape (h,), (v,)
        Frequencies along the two axes, radians a unit of the scaled columns.
    potential : ndarray of shape (v, h)
        Between 0 and 1.
    frequencies : ndarray of shape (m, 2)
        Learned ones; both w and -w are drawn.
    newest : int
        The number of frequencies, from the end, that are drawn as the newest.
    names : tuple of str
        Of the two columns.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import LandscapeDisplay
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> display = LandscapeDisplay.from_rows(X, np.sign(np.sin(3.0 * X[:, 0])), limit=6.0, resolution=41)
    >>> row, column = np.unravel_index(display.potential.argmax(), display.potential.shape)
    >>> abs(float(np.round(display.horizontal[column]))), abs(float(np.round(display.vertical[row])))
    (3.0, 0.0)
    """

    horizontal: np.ndarray
    vertical: np.ndarray
    potential: np.ndarray
    frequencies: np.ndarray
    newest: int = 0
    names: tuple[str, str] = ("ω₁", "ω₂")
    title: str = ""

    @classmethod
    def from_rows(
        cls,
        X: np.ndarray,
        s: np.ndarray,
        *,
        frequencies: np.ndarray | sparse.csr_array | None = None,
        newest: int = 0,
        columns: tuple[int, int] = (0, 1),
        limit: float | None = None,
        resolution: int = 201,
        scaler: Scaler | None = None,
        names: tuple[str, str] | None = None,
        title: str = "",
    ) -> Self:
        """Compute the potential of rows in memory on a grid.

        Parameters
        ----------
        X : array of shape (n, d)
        s : ndarray of shape (n,) or (n, K)
            Signed weights: labels -1 and +1, a dual, residuals; the potentials of K columns are added.
        frequencies : array or sparse matrix of shape (m, d), or None
        newest : int
            How many of the last frequencies are the newest.
        columns : pair of int
            The plane of frequencies that is drawn.
        limit : float or None
            The grid spans -limit to limit; None reaches beyond all frequencies.
        resolution : int
            Points along an axis.
        scaler : Scaler or None
            Of the rows.
        names : pair of str or None
        title : str

        Returns
        -------
        LandscapeDisplay

        Raises
        ------
        ValueError
            If a column does not exist, or neither a limit nor a frequency says how far to look.
        """
        d = X.shape[1]
        if max(columns) >= d or min(columns) < 0 or columns[0] == columns[1]:
            raise ValueError(f"columns is {columns}; it must name two different columns of the {d} that X has")
        # A frequency with entries in other columns lies outside the plane that is drawn.
        shown, new = np.zeros((0, 2)), 0
        if frequencies is not None:
            is_sparse = sparse.issparse(frequencies)
            dense = np.asarray(sparse.csr_array(frequencies).toarray() if is_sparse else frequencies)
            inside = np.count_nonzero(np.delete(dense, list(columns), axis=1), axis=1) == 0
            shown = dense[inside][:, list(columns)].astype(float)
            new = int(inside[len(dense) - newest :].sum()) if newest else 0
        if limit is None:
            if len(shown) == 0:
                raise ValueError(
                    f"no frequency lies on columns {columns} alone, so nothing says how far to look; give limit=, in "
                    "radians a unit of the scaled columns, or other columns"
                )
            # The quantile, not the maximum: a few frequencies far out do not decide what is seen.
            limit = _MARGIN * float(np.quantile(np.abs(shown).max(axis=1), 0.98))
        axis = np.linspace(-limit, limit, resolution)
        potential = _grid_potential(X, s, (columns, axis, scaler))
        if names is None:
            below = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
            first, second = (f"ω{column + 1}".translate(below) for column in columns)
            names = (first, second)
        return cls(axis, axis, potential, shown, new, names, title)

    @classmethod
    def from_estimator(
        cls,
        model: Fitted,
        X: object,
        y: object,
        *,
        reweighted: bool = True,
        newest: int | None = None,
        columns: tuple[int, int] = (0, 1),
        limit: float | None = None,
        resolution: int = 201,
        title: str = "",
    ) -> Self:
        """The landscape that a fitted learner or machine leaves.

        Parameters
        ----------
        model : fitted feature learner or Kernel machine
            Of Fourier features.
        X, y : array, Dask collection or Dataset (y None)
            Rows; at most 20,000 of them are used.
        reweighted : bool
            By the dual of the model's decision values (a learner's `machine_`), where it has them; else by the labels.
        newest : int or None
            How many of the last frequencies are the newest; None takes those of the last round, by ``history_``.
        columns, limit, resolution, title
            As of `from_rows`.

        Returns
        -------
        LandscapeDisplay

        Raises
        ------
        NotFittedError
            If the model is not fitted.
        TypeError
            If its features are not Fourier features.
        """
        check_is_fitted(model)
        feature_map = model.feature_map_
        if not feature_map.is_fourier:
            raise TypeError(
                f"the features are {feature_map.activation!r}; a landscape of frequencies needs Fourier features "
                "(for harmonics see SphereDisplay, for steps EffectsDisplay)"
            )
        rows, targets = in_memory_rows(model, X, y)
        if newest is None:
            # The frequencies of the last round that added any, by the learner's history of columns.
            learner: Fitted = getattr(model, "features_", model)
            added = np.diff([entry.get("n_features", 0) for entry in getattr(learner, "history_", [])])
            columns_added = int(added[added > 0][-1]) if (added > 0).any() else 0
            newest = columns_added // learner.feature_map_.columns_a_frequency
        return cls.from_rows(
            rows,
            working_dual(model, rows, targets, reweighted=reweighted),
            frequencies=feature_map.projection.dense(),
            newest=newest,
            columns=columns,
            limit=limit,
            resolution=resolution,
            scaler=feature_map.scaler,
            title=title,
        )

    def _draw(self, axes: Sequence[Axes]) -> None:
        from matplotlib.colors import PowerNorm

        ax = axes[0]
        limit_x, limit_y = self.horizontal[-1], self.vertical[-1]
        # Colours go with |sum_i s_i exp(i w.x_i)| rather than its square, so that small peaks, which a learner will
        # find next, are seen beside the large ones.
        square_root = PowerNorm(0.5, vmin=0.0, vmax=max(float(self.potential.max()), 1e-300))
        ax.imshow(
            self.potential,
            extent=(-limit_x, limit_x, -limit_y, limit_y),
            origin="lower",
            cmap="bone",
            norm=square_root,
            interpolation="bicubic",
            aspect="equal" if limit_x == limit_y else "auto",
        )
        # The scale of the colours is that of this picture, so the highest value is said.
        highest = f"highest {self.potential.max():.2g}"
        ax.text(0.02, 0.98, highest, transform=ax.transAxes, color="white", va="top", fontsize="small")
        # The newest ones are drawn last and larger, on top of those that were there.
        old = len(self.frequencies) - self.newest
        _scatter(ax, self.frequencies[:old], color="#ff5fd2", size=10)
        _scatter(ax, self.frequencies[old:], color="#35f0ff", size=30)
        ax.set(xlim=(-limit_x, limit_x), ylim=(-limit_y, limit_y), xlabel=self.names[0], ylabel=self.names[1])
        ax.set_title(self.title)


def _scatter(ax: Axes, frequencies: np.ndarray, *, color: str, size: float) -> None:
    """Frequencies as dots, both w and -w, which are the same feature."""
    if len(frequencies):
        both = np.vstack([frequencies, -frequencies])
        ax.scatter(both[:, 0], both[:, 1], s=size, color=color, edgecolor="black", linewidth=0.4, zorder=3)


def _grid_potential(
    X: np.ndarray, s: np.ndarray, grid: tuple[tuple[int, int], np.ndarray, Scaler | None]
) -> np.ndarray:
    """v on the square of `axis` x `axis`; half of it is computed, since v(-w) = v(w)."""
    columns, axis, scaler = grid
    # The sums at -w are the conjugates of those at w, so half of the grid is computed and the other half mirrored.
    half = axis[: len(axis) // 2 + len(axis) % 2]
    first, second = np.meshgrid(axis, half)
    # A scaler needs all columns of the rows; without one the two that are drawn are enough.
    W = np.zeros((first.size, X.shape[1] if scaler is not None else 2), np.float32)
    W[:, list(columns) if scaler is not None else [0, 1]] = np.column_stack([first.ravel(), second.ravel()])
    rows = X if scaler is not None else X[:, list(columns)]
    feature_map = FeatureMap("cos-sin", DenseProjection(W), np.ones(len(W)), scaler=scaler)
    # The potential is |sum_i s_i phi(x_i)|^2 over (sum_i |s_i|)^2, the cosine and the sine part together.
    S = np.atleast_2d(np.asarray(s, np.float64).T).T
    sums = feature_sums(rows, S / np.abs(S).sum(), feature_map)
    lower = np.square(sums).sum(axis=(0, 2)).reshape(first.shape)
    upper = lower[::-1, ::-1]
    return np.vstack([lower, upper[len(axis) % 2 :]])
