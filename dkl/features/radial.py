"""Slopes of kernels that depend on the distance, for gradients of models on landmarks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dkl.features.families import Gaussian, Matern


def has_radial_slope(kernel: Any) -> bool:
    """Whether `radial_slope` has a formula for a kernel."""
    return isinstance(kernel, Gaussian) or (isinstance(kernel, Matern) and kernel.nu in (0.5, 1.5, 2.5))


def radial_slope(kernel: Any, distances: np.ndarray) -> np.ndarray:
    """k'(r) / r of a kernel k(|x - z|), at distances r: the gradient in x is this times (x - z).

    Parameters
    ----------
    kernel : Gaussian or Matern
        Matern with smoothness 0.5, 1.5 or 2.5; the bandwidth is a number.
    distances : array of any shape, on the host or on a GPU

    Returns
    -------
    array of the same shape
        0 at distance 0, where Matern(0.5) has a cone and no gradient.

    Raises
    ------
    TypeError
        For another kernel.
    """
    if not has_radial_slope(kernel):
        raise TypeError(f"{kernel!r} has no slope in closed form; take Gaussian or Matern(0.5, 1.5 or 2.5)")
    sigma = float(kernel.sigma)
    if isinstance(kernel, Gaussian):
        return -np.exp(-0.5 * (distances / sigma) ** 2) / sigma**2
    r = np.sqrt(2.0 * kernel.nu) * distances / sigma
    if kernel.nu == 1.5:
        return -3.0 / sigma**2 * np.exp(-r)
    if kernel.nu == 2.5:
        return -5.0 / (3.0 * sigma**2) * (1.0 + r) * np.exp(-r)
    apart = distances > 0.0
    # at distance 0 the divisor is 1 and the result 0
    return -np.exp(-r) / ((distances + ~apart) * sigma) * apart
