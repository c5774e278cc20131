"""Sums of exp(i w.x) over a grid of frequencies for rows of one to three columns, by non-uniform fast transforms."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from itertools import product

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.sums import feature_sums
from dkl.kernels.tiles import checked_weights
from dkl.protocols.arrays import Rows, dense_rows

__all__ = ["grid_sums", "scattered_sums", "variation_sums"]

MOST_COLUMNS = 3
# The error of a transform relative to sum |s| (measured: below 6e-5), and the ratio of its fine grid to the grid of
# frequencies by number of columns: 2 is faster if that grid is small.
ACCURACY = 1e-4
_OVERSAMPLING = {1: 2.0, 2: 2.0, 3: 1.25}
# Points of the fine grid above which sums at scattered frequencies are computed directly; points that each direction
# has in addition to those that the extents need, for the spreading of rows.
_MOST_FINE = 1 << 22
_KERNEL_WIDTH = 8


@dataclass(frozen=True, eq=False)
class FrequencyGrid:
    """The frequencies spacing * k for whole numbers |k_j| <= reach_j; of each pair +-w the one with k_0 >= 0.

    Parameters
    ----------
    spacing : ndarray of shape (d,), float64
    reach : tuple of int
        d numbers.
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
        """The frequencies at flat positions, or all in C order: float64 of shape (N, d)."""
        places = np.unravel_index(np.arange(self.size) if index is None else index, self.shape)
        lowest = np.array([0, *(-reach for reach in self.reach[1:])])
        return (np.stack(places, axis=1) + lowest) * self.spacing


def why_no_nufft() -> str | None:
    """Why no transform can be computed, or None if it can."""
    if importlib.util.find_spec("finufft") is None:
        return "finufft is not installed (pip install 'dkl[finufft]')"
    return None


def grid_sums(X: Rows, S: np.ndarray, grid: FrequencyGrid) -> np.ndarray:
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
        As in `dkl.kernels.sums.feature_sums`, with an error of at most 1e-4 sum_i |S[i, k]|.

    Notes
    -----
    A transform of type 1 (Barnett, Magland & af Klinteberg 2019, FINUFFT) in float32 on one thread. Angles are whole
    multiples of spacing * x, so that distant rows are wrapped around exactly.
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    # frequencies are whole multiples of the spacing, so that angles may be reduced to one turn, where they keep their
    # digits
    angles = np.remainder(X * grid.spacing + np.pi, 2.0 * np.pi) - np.pi
    modes = tuple(2 * reach + 1 for reach in grid.reach)
    if len(X) == 0:
        return np.zeros((2, grid.size, S.shape[1]))
    sums = _transform(1, angles, S, modes if len(modes) > 1 else modes[0])
    # a transform gives all signs of k_0; of each pair +-w the grid has the one with k_0 >= 0
    sums = sums.reshape(S.shape[1], *modes)[:, grid.reach[0] :].reshape(S.shape[1], -1)
    return np.stack([sums.real.T, sums.imag.T]).astype(np.float64)


def scattered_sums(X: Rows, S: np.ndarray, W: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i S[i, k] (cos, sin)(w.x_i) at any frequencies, by a transform of type 3, or directly if rows are far apart.

    Parameters
    ----------
    X, S
        As in `grid_sums`.
    W : ndarray of shape (q, d), float64
    center : ndarray of shape (d,)
        Near the middle of the rows: the cost grows with their distance from it.

    Returns
    -------
    ndarray of shape (2, q, K), float64
        The error is at most 1e-4 sum_i |S[i, k]|.
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    apart = X - center
    # the size of a type 3 transform's grid is the product of the extents of rows and frequencies
    finer = _OVERSAMPLING[W.shape[1]]
    extents = np.abs(apart).max(axis=0, initial=0.0) * (W.max(axis=0) - W.min(axis=0)) / 2.0
    fine_points = float(np.prod(finer * (2.0 / np.pi * extents * finer + _KERNEL_WIDTH)))
    if len(X) == 0 or fine_points > _MOST_FINE:
        return feature_sums(X, S, FeatureMap("cos-sin", DenseProjection(W), np.ones(len(W))))
    # exp(i w.x) = exp(i w.(x - c)) exp(i w.c): a phase for each sum restores the middle c of the rows
    sums = _transform(3, apart, S, W).reshape(S.shape[1], -1) * np.exp(1j * (W @ center))
    return np.stack([sums.real.T, sums.imag.T]).astype(np.float64)


def variation_sums(X: Rows, S: np.ndarray, half: np.ndarray, center: np.ndarray) -> np.ndarray:
    """sum_i |S[i, k]| |delta.(x_i - c)| for the corners delta = (+-half_j) of a cell, one of each pair +-delta.

    The largest bounds the difference of |sum_i S[i, k] exp(i w.x_i)| anywhere in the cell from its value at the centre,
    since it is convex in delta.

    Parameters
    ----------
    X, S
        As in `grid_sums`.
    half, center : ndarray of shape (d,)

    Returns
    -------
    ndarray of shape (2^(d-1), K), float64
    """
    X, S = _dense(X), checked_weights(S, X.shape[0])
    # a convex function on a cell is largest at a corner; delta and -delta have the same value
    corners = np.array([(1.0, *signs) for signs in product((1.0, -1.0), repeat=X.shape[1] - 1)]) * half
    return np.abs((X - center) @ corners.T).T @ np.abs(S)


def _dense(X: Rows) -> np.ndarray:
    """Dense float64 rows; ValueError for too many columns."""
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"non-uniform fast transforms are for rows of at most {MOST_COLUMNS} columns; these have {X.shape[1]}"
        )
    return np.asarray(dense_rows(X), dtype=np.float64)


def _transform(kind: int, points: np.ndarray, S: np.ndarray, wanted: tuple[int, ...] | int | np.ndarray) -> np.ndarray:
    """A transform of all weight columns: to a grid of `wanted` modes (type 1), or to frequencies (type 3)."""
    finufft = importlib.import_module("finufft")
    transform = getattr(finufft, f"nufft{points.shape[1]}d{kind}")
    if isinstance(wanted, np.ndarray):
        targets: tuple[object, ...] = tuple(np.ascontiguousarray(w, np.float32) for w in wanted.T)
    else:
        targets = (wanted,)
    columns = [np.ascontiguousarray(x, np.float32) for x in points.T]
    weights = np.ascontiguousarray(S.T, np.complex64)
    # one thread: tasks of a pass use every core already, and the bits must not depend on the number of threads
    options = {"eps": ACCURACY, "isign": 1, "nthreads": 1, "upsampfac": _OVERSAMPLING[points.shape[1]]}
    return transform(*columns, weights, *targets, **options)
