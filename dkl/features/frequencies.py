"""Draws frequencies: as independent rows, orthogonal rows, or products of signs and Walsh-Hadamard transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dkl.features.projections import DenseProjection, StructuredProjection, padded_width

RowSampler = Callable[[np.random.Generator, tuple[int, int]], np.ndarray]
RadialMixture = Callable[[np.random.Generator, int], np.ndarray]

# How many numbers are drawn in float64 at once (2 MiB), so that float32 frequencies need no second array of their size.
_CHUNK = 1 << 18


def stream(seed: int, name: str) -> np.random.Generator:
    """The random generator for one purpose ("frequencies", "phases", "radii", "signs") under one seed.

    Each purpose has a stream of its own, so that frequencies do not depend on whether phases are drawn as well.
    """
    # The name is the key of a child of the seed's sequence, which makes its numbers independent of all other streams.
    key = tuple(name.encode())
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def further_seed(seed: int, number: int, step: int = 104_729) -> int:
    """The seed of one of several random draws (fits, dictionaries, rounds) that belong to a single seed of the user.

    Parameters
    ----------
    seed : int
        That of draw 0.
    number : int
        Which draw it is.
    step : int
        The difference between the seeds of two successive draws: a large prime, so that the draws of seeds 0 and 1 of
        a user have no seed in common.

    Returns
    -------
    int
        Below 2^31, as NumPy's older generators and scikit-learn ask for.
    """
    return (seed + step * number) % 2**31


def independent(sample: RowSampler, shape: tuple[int, int], seed: int, dtype: np.dtype) -> DenseProjection:
    """Independent rows, drawn one after the other: the first m rows do not depend on how many follow.

    Drawn in float64 a few rows at a time and rounded to `dtype`, so float32 frequencies are the float64 ones, rounded.
    """
    generator = stream(seed, "frequencies")
    matrix = np.empty(shape, dtype)
    step = max(1, _CHUNK // shape[1])
    for start in range(0, shape[0], step):
        rows = matrix[start : start + step]
        rows[...] = sample(generator, rows.shape)
    return DenseProjection(matrix)


def orthogonal(mixture: RadialMixture, shape: tuple[int, int], seed: int, dtype: np.dtype) -> DenseProjection:
    """Blocks of d rows that are mutually orthogonal, each row with the length it would have by itself.

    Directions are Haar distributed within a block (the Q of a Gaussian matrix, signs fixed by R). Yu et al. 2016,
    "Orthogonal random features", section 3.
    """
    n_frequencies, width = shape
    generator = stream(seed, "frequencies")
    lengths = radii(mixture, n_frequencies, width, seed)
    matrix = np.empty(shape, dtype)
    for start in range(0, n_frequencies, width):
        rows = matrix[start : start + width]
        # The Q of a Gaussian matrix is Haar distributed once the signs of R's diagonal are moved into it: LAPACK fixes
        # these signs by its own rule.
        q, r = np.linalg.qr(generator.standard_normal((width, len(rows))))
        rows[...] = (q * np.where(np.diag(r) < 0, -1.0, 1.0)).T * lengths[start : start + width, None]
    return DenseProjection(matrix)


def structured(mixture: RadialMixture, shape: tuple[int, int], seed: int, dtype: np.dtype) -> StructuredProjection:
    """Rows of products of sign diagonals and Walsh-Hadamard transforms; only the signs and lengths are stored.

    Lengths follow the law of p columns, p the padded width: the first d columns of such a row then have the law of d
    columns, since Gaussian and Student vectors keep their law under marginalisation.
    """
    n_frequencies, width = shape
    padded = padded_width(width)
    n_blocks = -(-n_frequencies // padded)
    # Each bit is a sign: 0 is -1 and 1 is +1.
    bits = stream(seed, "signs").integers(0, 2, size=(n_blocks, 3, padded), dtype=np.int8)
    return StructuredProjection(
        signs=2 * bits - 1,
        radii=radii(mixture, n_frequencies, padded, seed),
        width=width,
        dtype=np.dtype(dtype),
    )


def radii(mixture: RadialMixture, n_frequencies: int, width: int, seed: int) -> np.ndarray:
    """Lengths of isotropic rows of `width` columns: a chi variable times the family's radial mixture."""
    generator = stream(seed, "radii")
    # The length of a standard normal vector of `width` entries.
    lengths = np.sqrt(generator.chisquare(width, n_frequencies))
    return lengths * mixture(generator, n_frequencies)
