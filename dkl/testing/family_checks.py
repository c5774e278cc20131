"""Checks a family: the frequencies that it draws, their features and its closed-form kernel agree."""

from __future__ import annotations

import numpy as np

from dkl.features.families import Family
from dkl.features.feature_map import FeatureMap
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_sums
from dkl.testing.require import require, same_bits

# How far the mean of products of features may be from the kernel; six standard errors fail once in 10^9 comparisons.
_STANDARD_ERRORS = 6.0


def check_family(family: Family, *, n_columns: int = 3, n_frequencies: int = 20_000, seed: int = 0) -> None:
    """Raise AssertionError if `family` breaks a promise that learners rely on.

    Parameters
    ----------
    family : Family
        A bandwidth of "median" is replaced by 1.5.
    n_columns : int
        The number of columns d of the rows in the check.
    n_frequencies : int
        The number of draws in the estimate of the kernel.
    seed : int

    Raises
    ------
    AssertionError
        Naming the promise and what was found instead.

    Examples
    --------
    >>> from dkl.features.families import Gaussian
    >>> from dkl.testing.family_checks import check_family
    >>> check_family(Gaussian(sigma=2.0))
    """
    family.validate()
    if family.needs_bandwidth:
        family = family.with_bandwidth(1.5)
        require(not family.needs_bandwidth, "with_bandwidth(sigma) returns a family that needs no bandwidth")
    # Distances of a few bandwidths, so that kernels take all values between 0 and 1.
    rows = np.random.default_rng(seed).normal(size=(40, n_columns))
    if isinstance(family, SphericalHarmonics):
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    # A draw is a plain map of the requested shape, and depends on the seed alone.
    name = type(family).__name__
    small = family.draw(7, n_columns, seed)
    require(isinstance(small, FeatureMap), f"{name}.draw returns a FeatureMap, not {type(small).__name__}")
    require(small.n_columns == n_columns, f"{name}.draw: the map takes {small.n_columns} columns, not {n_columns}")
    require(small.n_frequencies == 7, f"{name}.draw(7, ...) gives {small.n_frequencies} frequencies")
    require(bool(np.all(small.amplitudes == 1.0)), f"{name}.draw: candidates have amplitude 1, not {small.amplitudes}")
    require(small.scaler is None, f"{name}.draw: a family does not scale; learners do")
    frequencies = small.projection.dense()
    require(bool(np.isfinite(frequencies).all()), f"{name}.draw: frequencies are finite")
    again = family.draw(7, n_columns, seed)
    require(same_bits(again.projection.dense(), frequencies), f"{name}.draw: the same seed gives the same bits")
    if small.activation != "identity":
        other = family.draw(7, n_columns, seed + 1).projection.dense()
        require(not np.array_equal(other, frequencies), f"{name}.draw: another seed gives other frequencies")
    # A fit in float32 and one in float64 are of the same frequencies, so that their results can be compared.
    double = family.draw(7, n_columns, seed, np.float64).projection.dense()
    gap = float(np.max(np.abs(double - frequencies) / (1.0 + np.abs(double))))
    require(gap < 1e-6, f"{name}.draw: float32 frequencies are the float64 ones, rounded; they differ by {gap:.1e}")
    # sum_i s_i <phi(x_i), w> = <sum_i s_i phi(x_i), w>: the block sums and the map are of the same features.
    drawn = family.draw(16, n_columns, seed, np.float64)
    weights = np.random.default_rng(seed + 1).normal(size=(len(rows), 2))
    mapped = map_rows(rows, drawn, "float64")
    sums = feature_sums(rows, weights, drawn, "float64").reshape(-1, 2)
    gap = float(np.max(np.abs(mapped.T @ weights - sums)) / np.max(np.abs(sums)))
    require(gap < 1e-12, f"{name}: block sums equal sums of mapped rows; they differ by {gap:.1e}")
    # The mean of products of features is the kernel, within the standard error that the products themselves show.
    few = rows[:8]
    drawn = family.draw(n_frequencies, n_columns, seed, np.float64)
    phi = map_rows(few, drawn, "float64").reshape(len(few), drawn.columns_a_frequency, -1)
    # One product of features for each draw: their mean is the estimate, and their deviation over sqrt(draws) its error.
    products = family.feature_scale(n_columns) ** 2 * np.einsum("ipm,jpm->ijm", phi, phi)
    estimate, error = products.mean(axis=2), products.std(axis=2) / np.sqrt(n_frequencies)
    kernel = family.kernel(few, few)
    require(np.allclose(kernel, kernel.T, rtol=1e-12, atol=1e-12), f"{name}.kernel is symmetric")
    smallest = float(np.linalg.eigvalsh(kernel)[0])
    require(
        smallest > -1e-9 * np.trace(kernel), f"{name}.kernel is positive; its smallest eigenvalue is {smallest:.1e}"
    )
    # Where all products are equal, as those of a row with itself, the standard error is 0 and only rounding is allowed.
    excess = np.abs(estimate - kernel) / (error + 1e-9 * (1.0 + np.abs(kernel)))
    require(
        bool(np.max(excess) < _STANDARD_ERRORS),
        f"{name}: the closed-form kernel is the mean of products of features; {n_frequencies} draws are "
        f"{np.max(excess):.1f} standard errors off",
    )
