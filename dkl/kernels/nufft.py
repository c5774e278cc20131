"""Sums of exp(i w.x) at a whole grid of frequencies for rows of one to three columns: non-uniform fast transforms."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.sums import feature_sums
from dkl.kernels.tiles import checked_weights

__all__ = ["grid_sums", "scattered_sums", "variation_sums"]

MOST_COLUMNS = 3
# error of a transform relative to sum |s| (measured: below 6e-5), and how much finer than the frequencies its grid is:
# twice is faster where that grid is small
ACCURACY = 1e-4
_FINER = {1: 2.0, 2: 2.0, 3: 1.25}
# points of the fine grid of a transform to scattered frequencies, beyond which sums are formed directly
_MOST_FINE = 1 << 22
_KERNEL_WIDTH = 8


@dataclass(frozen=True, eq=False)
class FrequencyGrid:
    """The frequencies spacing * k for whole numbers |k_j| <= reach_j; of each pair +-w one, k_0 >= 0.

    Parameters
    ----------
    spacing : ndarray of shape (d,), float64
    reach : tuple of int
        d of them.
    """

    spacing: np.ndarray
    reach: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.reach[0] + 1, *(2 * reach + 1 for reach in self.reach[1:]))

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def frequencies(self, index: np.ndarray | None = None) -> np.ndarray:
        """Those at flat positions, or all in C order: float64 of shape (N, d)."""
        places = np.unravel_index(np.arange(self.size) if index is None else index, self.shape)
        lowest = np.array([0, *(-reach for reach in self.reach[1:])])
        return (np.stack(places, axis=1) + lowest) * self.spacing


def why_no_nufft() -> str | None:
    """Why no transform can be computed, or None if it can."""
    if importlib.util.find_spec("finufft") is None:
        return "finufft is not installed (pip install 'dkl[finufft]')"
    return None


def grid_sums(X: Any, S: Any, grid: FrequencyGrid) -> np.ndarray:
    """sum_i S[i, k] (cos, sin)(w.x_i) at all frequencies of a grid, at a cost that hardly grows with their number.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), d <= 3
        Scaled rows.
    S : array of shape (n, K) or (n,)
    grid : FrequencyGrid

    Returns
    -------
    ndarray of shape (2, N, K), float64
        As `dkl.kernels.sums.feature_sums`, within 1e-4 sum_i |S[i, k]|.

    Notes
    -----
    A transform of type 1 (Barnett, Magland & af Klinteberg 2019, FINUFFT) in float32 on one thread. Angles are whole
    multiples of spacing * x, so rows far out only wrap around.
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    angles = np.remainder(X * grid.spacing + np.pi, 2.0 * np.pi) - np.pi
    modes = tuple(2 * reach + 1 for reach in grid.reach)
    if len(X) == 0:
        return np.zeros((2, grid.size, S.shape[1]))
    found = _call(1, angles, S, modes if len(modes) > 1 else modes[0])
    found = found.reshape(S.shape[1], *modes)[:, grid.reach[0] :].reshape(S.shape[1], -1)
    return np.stack([found.real.T, found.imag.T]).astype(np.float64)


def scattered_sums(X: Any, S: Any, W: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i S[i, k] (cos, sin)(w.x_i) at any frequencies: a transform of type 3, or direct sums where rows lie far out.

    Parameters
    ----------
    X, S
        As of `grid_sums`.
    W : ndarray of shape (q, d), float64
    center : ndarray of shape (d,)
        Near the middle of the rows: the cost grows with their distance from it.

    Returns
    -------
    ndarray of shape (2, q, K), float64
        Within 1e-4 sum_i |S[i, k]|.
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    apart = X - center
    if len(X) == 0 or _fine_points(apart, W) > _MOST_FINE:
        return feature_sums(X, S, FeatureMap("cos-sin", DenseProjection(W), np.ones(len(W))))
    found = _call(3, apart, S, W).reshape(S.shape[1], -1) * np.exp(1j * (W @ center))
    return np.stack([found.real.T, found.imag.T]).astype(np.float64)


def variation_sums(X: Any, S: Any, half: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i |S[i, k]| |delta.(x_i - c)| for the corners delta = (+-half_j) of a cell, one of each pair +-delta.

    The largest bounds how far |sum_i S[i, k] exp(i w.x_i)| is from its value at the middle of the cell anywhere in it:
    the sum is convex in delta.

    Parameters
    ----------
    X, S
        As of `grid_sums`.
    half, center : ndarray of shape (d,)

    Returns
    -------
    ndarray of shape (2^(d-1), K), float64
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    corners = np.array([(1.0, *signs) for signs in product((1.0, -1.0), repeat=X.shape[1] - 1)]) * half
    return np.abs((X - center) @ corners.T).T @ np.abs(S)


def _dense(X: Any) -> np.ndarray:
    """Rows of few columns, written out in float64."""
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"non-uniform fast transforms are for rows of at most {MOST_COLUMNS} columns; these have {X.shape[1]}"
        )
    return np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=np.float64)


def _call(kind: int, points: np.ndarray, S: np.ndarray, wanted: Any) -> np.ndarray:
    """A transform of all weight columns at once."""
    finufft = importlib.import_module("finufft")
    transform = getattr(finufft, f"nufft{points.shape[1]}d{kind}")
    targets = (wanted,) if kind == 1 else tuple(np.ascontiguousarray(w, np.float32) for w in wanted.T)
    columns = [np.ascontiguousarray(x, np.float32) for x in points.T]
    weights = np.ascontiguousarray(S.T, np.complex64)
    options = {"eps": ACCURACY, "isign": 1, "nthreads": 1, "upsampfac": _FINER[points.shape[1]]}
    return transform(*columns, weights, *targets, **options)


def _fine_points(apart: np.ndarray, W: np.ndarray) -> float:
    """Points of the grid that a transform of type 3 works on: they follow the extents of rows and frequencies."""
    extents = np.abs(apart).max(axis=0) * (W.max(axis=0) - W.min(axis=0)) / 2.0
    return float(np.prod(_FINER[W.shape[1]] * (2.0 / np.pi * extents * _FINER[W.shape[1]] + _KERNEL_WIDTH)))
