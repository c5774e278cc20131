"""The kernel of a learned spectral density."""

from __future__ import annotations

import numpy as np

from dkl.kernels.tiles import spans

# Bytes of the cosines that are in memory at once.
_TILE_BYTES = 1 << 26


def shift_kernel(shifts: np.ndarray, W: np.ndarray, density: np.ndarray | None = None) -> np.ndarray:
    """k(delta) = mean_j u_j cos(w_j.delta), the learned kernel between rows that differ by delta; k(0) = mean(u).

    Parameters
    ----------
    shifts : ndarray of shape (n, d)
        delta, in units of the (scaled) columns.
    W : ndarray of shape (D, d)
    density : ndarray of shape (D,) or (K, D), or None
        u; None is 1 everywhere, the approximation of the reference kernel by these frequencies.

    Returns
    -------
    ndarray of shape (n,) or (K, n), float64

    References
    ----------
    Shilton, Gupta, Rana, Venkatesh & Venkatesh 2022, equation (5).

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.density.spectral import shift_kernel
    >>> shift_kernel(np.zeros((1, 2)), np.ones((2, 2)), np.array([1.0, 2.0])).tolist()
    [1.5]
    """
    W = np.asarray(W, dtype=np.float64)
    u = np.ones(len(W)) if density is None else np.asarray(density, dtype=np.float64)
    shifts = np.asarray(shifts, dtype=np.float64)
    # the density is even, so that the sines cancel and the kernel is real
    tiles = spans(len(shifts), max(1, _TILE_BYTES // (8 * len(W))))
    parts = [np.cos(W @ shifts[rows].T) for rows in tiles]
    return np.concatenate([u @ part for part in parts], axis=-1) / len(W) if parts else np.zeros((*u.shape[:-1], 0))


def steepest_direction(W: np.ndarray, density: np.ndarray) -> np.ndarray:
    """The unit vector along which the learned kernel decreases fastest at 0, -k'' = mean_j u_j (w_j.v)^2: (d,).

    Parameters
    ----------
    W : ndarray of shape (D, d)
    density : ndarray of shape (D,) or (K, D)
        The densities of several classes are added.
    """
    u = np.atleast_2d(density).sum(axis=0)
    direction = np.linalg.eigh((W * u[:, None]).T @ W)[1][:, -1]
    # the sign of an eigenvector is arbitrary; its largest entry is made positive
    return direction * np.sign(direction[np.argmax(np.abs(direction))])
