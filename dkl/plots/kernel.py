"""A learned kernel beside its reference: the kernel along a direction, and the spectral density behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.features.families import Family
from dkl.figure import Axes, Display, class_colour
from dkl.methods.density.spectral import shift_kernel, steepest_direction

# Distances at which the kernels are evaluated.
_POINTS = 241
# Periods of a typical frequency that the first panel shows.
_PERIODS = 1.5
# Groups of frequencies of similar length, of which the second panel shows the mean density.
_BINS = 12


@dataclass(frozen=True, eq=False)
class KernelDisplay(Display):
    """The learned kernel k(delta) / k(0) beside the reference, and the density u of each frequency against its length.

    Parameters
    ----------
    distances : ndarray of shape (m,)
        Along `direction`, in the units of the (scaled) columns.
    learned : ndarray of shape (K, m)
        k at these distances, K > 1 where each class has a density of its own.
    reference : ndarray of shape (m,)
        The reference kernel there: in closed form where the family is known, else of the same frequencies with u = 1.
    lengths : ndarray of shape (D,)
        |w_j|.
    density : ndarray of shape (K, D)
        u_j.
    names : sequence of str
        One a density.
    direction : ndarray of shape (d,)
        A unit vector.
    title : str

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import KernelDisplay
    >>> W = np.random.default_rng(0).standard_normal((500, 2))
    >>> KernelDisplay.from_density(W, 1.0 + np.square(W[:, 0])).direction.round(1).tolist()
    [1.0, 0.0]
    """

    distances: np.ndarray
    learned: np.ndarray
    reference: np.ndarray
    lengths: np.ndarray
    density: np.ndarray
    names: Sequence[str]
    direction: np.ndarray
    title: str = ""
    _size = (4.4, 3.4)
    _is_titled = True

    @classmethod
    def from_estimator(cls, model: Any, *, title: str = "") -> Self:
        """Take the density of a fitted model.

        Parameters
        ----------
        model : fitted TunedClassifier or TunedRegressor
            Or anything with ``frequencies_`` and ``density_``.
        title : str

        Returns
        -------
        KernelDisplay

        Raises
        ------
        NotFittedError
            If it is not fitted.
        TypeError
            If it has learned no density.
        """
        check_is_fitted(model)
        if not hasattr(model, "density_"):
            raise TypeError(f"{type(model).__name__} learns no spectral density; TunedClassifier and TunedRegressor do")
        # The density may be one for all classes or one for each; only the latter is named after them.
        classes, density = getattr(model, "classes_", ()), model.density_
        is_of_classes = np.ndim(density) == 2 and len(classes) == len(density)
        return cls.from_density(
            model.frequencies_,
            density,
            family=getattr(model, "family_", None),
            names=[str(label) for label in classes] if is_of_classes else None,
            title=title,
        )

    @classmethod
    def from_density(
        cls,
        W: np.ndarray,
        density: np.ndarray,
        *,
        family: Family | None = None,
        names: Sequence[str] | None = None,
        title: str = "",
    ) -> Self:
        """Evaluate the kernel of a density along the direction in which it falls fastest.

        Parameters
        ----------
        W : ndarray of shape (D, d)
        density : ndarray of shape (D,) or (K, D)
        family : Family or None
            Of the reference kernel, with a bandwidth; None takes the same frequencies with u = 1.
        names : sequence of str, or None
            One a density.
        title : str

        Returns
        -------
        KernelDisplay
        """
        W, u = np.asarray(W, dtype=np.float64), np.atleast_2d(np.asarray(density, dtype=np.float64))
        v = steepest_direction(W, u)
        # A period is 2 pi over the component of the frequency along the direction; the median one is typical.
        typical = float(np.median(np.abs(W @ v)))
        far = _PERIODS * 2.0 * np.pi / typical if typical > 0.0 else 1.0
        # A shift-invariant kernel depends on delta = x - x' alone: k(delta) = mean_j u_j cos(w_j.delta) (Bochner).
        distances = np.linspace(0.0, far, _POINTS)
        shifts = distances[:, None] * v
        reference = shift_kernel(shifts, W) if family is None else family.kernel(shifts, np.zeros((1, len(v))))[:, 0]
        given = [f"density {k}" for k in range(len(u))] if names is None else list(names)
        return cls(distances, shift_kernel(shifts, W, u), reference, np.linalg.norm(W, axis=1), u, given, v, title)

    @property
    def _n_panels(self) -> int:
        return 2

    def _draw(self, axes: Sequence[Axes]) -> None:
        self._draw_kernels(axes[0])
        self._draw_densities(axes[1])

    def _draw_kernels(self, ax: Axes) -> None:
        """The kernels over the distance, each divided by its value at 0, which the legend says."""
        ax.axhline(0.0, color="0.7", linewidth=0.8)
        ax.plot(self.distances, self.reference / self.reference[0], color="0.45", linestyle="--", label="reference")
        for place, (values, name) in enumerate(zip(self.learned, self.names, strict=True)):
            # k(0) is the mean of the densities: the size of the learned kernel, which the curves do not show.
            label = f"learned{f', {name}' if len(self.names) > 1 else ''} (k(0) = {values[0]:.3g})"
            ax.plot(self.distances, values / values[0], color=class_colour(place), linewidth=1.6, label=label)
        ax.set(xlabel="distance", ylabel="k(δ) / k(0)", xlim=(0.0, self.distances[-1]))
        ax.legend()

    def _draw_densities(self, ax: Axes) -> None:
        """The density of each frequency over its length, with means of frequencies of similar length as a line."""
        ax.axhline(1.0, color="0.45", linestyle="--", linewidth=1.0, label="reference")
        for place, (u, name) in enumerate(zip(self.density, self.names, strict=True)):
            ax.scatter(self.lengths, u, s=8, alpha=0.45, linewidth=0, color=class_colour(place))
            label = f"mean{f', {name}' if len(self.names) > 1 else ''}"
            # Groups of equally many frequencies, so that each mean is equally certain.
            groups = np.array_split(np.argsort(self.lengths, kind="stable"), min(_BINS, len(self.lengths)))
            means = np.array([[self.lengths[g].mean(), u[g].mean()] for g in groups])
            ax.plot(means[:, 0], means[:, 1], color=class_colour(place), linewidth=1.6, label=label)
        # Densities over more than a decade and a half are read off a logarithmic axis, unless one of them is 0.
        spread = self.density[self.density > 0.0]
        if spread.size == self.density.size and spread.max() > 30.0 * spread.min():
            ax.set_yscale("log")
        ax.set(xlabel="|w|", ylabel="u")
        ax.legend()
