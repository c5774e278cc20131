"""What a learned spectral density says: the kernel that it is the spectrum of, and its value off the frequencies."""

from __future__ import annotations

import numpy as np

from dkl.kernels.tiles import spans
from dkl.methods.density.meta_kernels import MetaKernel
from dkl.methods.density.penalty import MetaSpectrum

# The cosines, or the values of the meta-kernel, that stand at once, in bytes.
_TILE_BYTES = 1 << 26


def shift_kernel(shifts: np.ndarray, W: np.ndarray, density: np.ndarray | None = None) -> np.ndarray:
    """k(delta) = mean_j u_j cos(w_j.delta), the learned kernel between rows that differ by delta; k(0) = mean(u).

    Parameters
    ----------
    shifts : ndarray of shape (n, d)
        delta, in the units of the (scaled) columns.
    W : ndarray of shape (D, d)
    density : ndarray of shape (D,) or (K, D), or None
        u; None is 1 throughout, the reference kernel as the frequencies render it.

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
    # sines cancel: the density is taken to be even, so that the kernel is real
    parts = [np.cos(W @ shifts[rows].T) for rows in spans(len(shifts), _step(len(W)))]
    return np.concatenate([u @ part for part in parts], axis=-1) / len(W) if parts else np.zeros((*u.shape[:-1], 0))


def density_at(
    points: np.ndarray, W: np.ndarray, density: np.ndarray, kernel: MetaKernel, spectrum: MetaSpectrum, *, gamma: float
) -> np.ndarray:
    """mu(w) = kappa(w, W) (G + gamma D I)^-1 u, the density at any frequency as the meta-kernel continues it.

    At the frequencies it is the smoothed u, not u; between them it may be negative, where no constraint holds it.

    Parameters
    ----------
    points : ndarray of shape (m, d)
        w.
    W : ndarray of shape (D, d)
    density : ndarray of shape (D,) or (K, D)
        u.
    kernel : MetaKernel
    spectrum : MetaSpectrum
        Of `kernel` on `W`.
    gamma : float

    Returns
    -------
    ndarray of shape (m,) or (K, m), float64

    References
    ----------
    Shilton, Gupta, Rana, Venkatesh & Venkatesh 2022, equation (14).
    """
    # (G + gamma D I)^-1 u in the eigenvectors of G: no system is solved
    coefficients = spectrum.scaled(1.0 / (spectrum.values + gamma * len(W)), np.asarray(density, dtype=np.float64))
    parts = [kernel.gram(W, points[tile]) for tile in spans(len(points), _step(len(W)))]
    return np.concatenate([coefficients @ part for part in parts], axis=-1)


def steepest_direction(W: np.ndarray, density: np.ndarray) -> np.ndarray:
    """The unit vector along which the learned kernel falls fastest at 0, -k'' = mean_j u_j (w_j.v)^2: (d,).

    Parameters
    ----------
    W : ndarray of shape (D, d)
    density : ndarray of shape (D,) or (K, D)
        Those of several classes are added.
    """
    u = np.atleast_2d(density).sum(axis=0)
    direction = np.linalg.eigh((W * u[:, None]).T @ W)[1][:, -1]
    # an eigenvector's sign is arbitrary: the largest entry is positive
    return direction * np.sign(direction[np.argmax(np.abs(direction))])


def _step(n_frequencies: int) -> int:
    """How many rows of a tile have so many bytes."""
    return max(1, _TILE_BYTES // (8 * n_frequencies))
