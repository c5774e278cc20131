"""Coverage that was promised beside coverage that was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.stats import norm

from dkl.figure import CLASS_COLOURS, Axes, Display

_COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, eq=False)
class CoverageDisplay(Display):
    """The coverage of a model's intervals, or sets of classes, on rows that it has not seen.

    The share of rows whose targets are covered is drawn against the coverage that was asked for; points below the
    diagonal cover fewer rows than promised.

    Parameters
    ----------
    coverages : ndarray of shape (k,)
        Asked for, ascending.
    kept : mapping of str to ndarray of shape (k,)
        The share of rows that each kind of interval covers: "conformal", and "Gaussian" where the model has deviations.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.plots import CoverageDisplay
    >>> CoverageDisplay(np.array([0.5, 0.9]), {"conformal": np.array([0.49, 0.91])}).gap
    0.01
    """

    coverages: np.ndarray
    kept: Mapping[str, np.ndarray] = field(default_factory=dict)
    _size = (4.2, 3.6)

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: object,
        y: np.ndarray,
        *,
        coverages: Sequence[float] = _COVERAGES,
        groups: object = None,
    ) -> Self:
        """Count, on rows in memory, what the model covers.

        Parameters
        ----------
        model : fitted KernelRegressor of one target, or KernelClassifier
            With `conformal_`.
        X : array, scipy sparse matrix or data frame of shape (n, d)
            Rows that neither the fit nor `conformalize` has seen.
        y : array of shape (n,)
        coverages : sequence of float
        groups : array of shape (n,), or None
            Where `conformalize` had groups.

        Raises
        ------
        ValueError
            As `predict_interval`; several targets.
        """
        y, asked = np.asarray(y), np.sort(np.asarray(coverages, dtype=np.float64))
        if hasattr(model, "classes_"):
            places = np.searchsorted(model.classes_, y)
            rows = np.arange(len(y))
            shares = [model.predict_set(X, float(one), groups=groups)[rows, places].mean() for one in asked]
            return cls(asked, {"conformal": np.array(shares)})
        if y.ndim > 1:
            raise ValueError(f"y has {y.shape[1]} targets, and a picture shows one; pass a model of one target")
        y = y.astype(np.float64)
        ends = [model.predict_interval(X, float(c), groups=groups) for c in asked]
        kept = {"conformal": np.array([np.mean((low <= y) & (y <= high)) for low, high in (e.T for e in ends)])}
        if hasattr(model, "posterior_"):
            mean, std = model.predict(X, return_std=True)
            # the central interval of a normal distribution
            bounds = norm.ppf(0.5 + 0.5 * asked)
            kept["Gaussian"] = np.array([np.mean(np.abs(y - mean) <= bound * std) for bound in bounds])
        return cls(asked, kept)

    @property
    def gap(self) -> float:
        """The largest distance between what conformal intervals promise and what they keep."""
        return float(np.round(np.abs(np.asarray(self.kept["conformal"]) - self.coverages).max(), 12))

    def _draw(self, axes: Sequence[Axes]) -> None:
        ax = axes[0]
        ends = [self.coverages[0], self.coverages[-1]]
        ax.plot(ends, ends, color="0.6", linewidth=1.0, linestyle="--", label="as promised")
        for (name, shares), colour in zip(self.kept.items(), CLASS_COLOURS, strict=False):
            ax.plot(self.coverages, shares, marker="o", markersize=4, color=colour, label=name)
        ax.set(xlabel="coverage that is asked for", ylabel="share of rows that are covered")
        ax.legend()
