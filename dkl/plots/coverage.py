"""Coverage that was promised beside coverage that was kept, and errors beside the widths that should hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from scipy.stats import norm

from dkl.plots.figure import CLASS_COLOURS, Axes, Display

_COVERAGES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True, eq=False)
class CoverageDisplay(Display):
    """What a model's intervals, or its sets of classes, promise of rows that it has not seen, and what they keep.

    The left panel has the share of rows that are covered against the coverage that was asked for; what lies below the
    diagonal promises too much. The right panel has the errors of predictions against the half widths of their intervals
    of one coverage: rows above the line are missed. Of classes it has the shares of sets by their size.

    Parameters
    ----------
    coverages : ndarray of shape (k,)
        Asked for, ascending.
    kept : mapping of str to ndarray of shape (k,)
        The share of rows that each kind of interval covers: "conformal", and "Gaussian" where the model has deviations.
    half_widths : ndarray of shape (n,), or None
        Of the conformal intervals at `coverage`.
    errors : ndarray of shape (n,), or None
        The distance of each target from its prediction.
    set_sizes : ndarray of shape (n,), or None
        Classes in each set at `coverage`.
    coverage : float
        Of the right panel.

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
    half_widths: np.ndarray | None = None
    errors: np.ndarray | None = None
    set_sizes: np.ndarray | None = None
    coverage: float = 0.9
    _size = (4.2, 3.6)

    @classmethod
    def from_estimator(
        cls,
        model: Any,
        X: object,
        y: np.ndarray,
        *,
        coverage: float = 0.9,
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
        coverage : float
            Of the right panel.
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
            sizes = model.predict_set(X, coverage, groups=groups).sum(axis=1)
            return cls(asked, {"conformal": np.array(shares)}, set_sizes=sizes, coverage=coverage)
        if y.ndim > 1:
            raise ValueError(f"y has {y.shape[1]} targets, and a picture shows one; pass a model of one target")
        mean, y = np.asarray(model.predict(X)), y.astype(np.float64)
        ends = [model.predict_interval(X, float(c), groups=groups) for c in asked]
        kept = {"conformal": np.array([np.mean((low <= y) & (y <= high)) for low, high in (e.T for e in ends)])}
        if hasattr(model, "posterior_"):
            _, std = model.predict(X, return_std=True)
            # the central interval of a normal distribution
            bounds = norm.ppf(0.5 + 0.5 * asked)
            kept["Gaussian"] = np.array([np.mean(np.abs(y - mean) <= bound * std) for bound in bounds])
        ends = model.predict_interval(X, coverage, groups=groups)
        if mean.ndim > 1 or getattr(model, "_link", "") == "log":
            # intervals of quantiles and counts are not around the prediction
            mean = 0.5 * (ends[:, 0] + ends[:, 1])
        return cls(asked, kept, 0.5 * (ends[:, 1] - ends[:, 0]), np.abs(y - mean), coverage=coverage)

    @property
    def gap(self) -> float:
        """The largest distance between what conformal intervals promise and what they keep."""
        return float(np.round(np.abs(np.asarray(self.kept["conformal"]) - self.coverages).max(), 12))

    @property
    def _n_panels(self) -> int:
        return 1 + (self.half_widths is not None or self.set_sizes is not None)

    def _draw(self, axes: Sequence[Axes]) -> None:
        ax = axes[0]
        ends = [self.coverages[0], self.coverages[-1]]
        ax.plot(ends, ends, color="0.6", linewidth=1.0, linestyle="--", label="as promised")
        for (name, shares), colour in zip(self.kept.items(), CLASS_COLOURS, strict=False):
            ax.plot(self.coverages, shares, marker="o", markersize=4, color=colour, label=name)
        ax.set(xlabel="coverage that is asked for", ylabel="share of rows that are covered")
        ax.legend()
        if self.half_widths is not None and self.errors is not None:
            self._draw_errors(axes[1], self.half_widths, self.errors)
        elif self.set_sizes is not None:
            sizes, counts = np.unique(self.set_sizes, return_counts=True)
            axes[1].bar(sizes, counts / counts.sum(), color=CLASS_COLOURS[0], width=0.7)
            axes[1].set_xticks(sizes)
            axes[1].set(xlabel=f"classes in the set that covers {100 * self.coverage:g} %", ylabel="share of rows")

    def _draw_errors(self, ax: Axes, half_widths: np.ndarray, errors: np.ndarray) -> None:
        """Errors against half widths; those above the diagonal are missed."""
        missed = errors > half_widths
        for rows, colour, name in ((~missed, CLASS_COLOURS[0], "covered"), (missed, CLASS_COLOURS[1], "missed")):
            label = f"{name}: {100 * rows.mean():.1f} %"
            ax.plot(half_widths[rows], errors[rows], ".", markersize=3, alpha=0.6, color=colour, label=label)
        ends = np.array([half_widths.min(), half_widths.max()])
        if np.isfinite(ends).all():
            ax.plot(ends, ends, color="0.4", linewidth=1.0)
        ax.set_xlabel(f"half the width of the interval that covers {100 * self.coverage:g} %")
        ax.set_ylabel("distance of the target from its prediction")
        ax.legend()
