"""SphericalHarmonics: the finite family of harmonic polynomials on the sphere, their enumeration and their kernel."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from numbers import Integral
from typing import get_args

import numpy as np
from numpy.typing import DTypeLike
from scipy import special

from dkl.features.families import WithoutBandwidth, is_count
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.harmonic_projection import Blocks, HarmonicProjection

# The default number of harmonics, as in the paper: "it sufficed to examine the first 1000 coefficients".
FIRST = 1_000
# The most bytes (256 MiB) of multi-indices, and of arrays computed from them, of a family that is enumerated.
_MOST_BYTES = 1 << 28
# The largest `max_degree`: the recurrences of higher degrees would take longer than any fit.
_MOST_DEGREES = 10_000


def dimension(n_columns: int, degree: int) -> int:
    """N(d, l), the number of harmonics of one degree: C(d-1+l, l) - C(d+l-3, l-2), the second term 0 for l < 2.

    Parameters
    ----------
    n_columns : int
        d >= 2.
    degree : int
        l >= 0.

    References
    ----------
    Bullins, Zhang & Zhang 2018, appendix B.1 (where the extracted formula lost its binomials).

    Examples
    --------
    >>> [dimension(3, degree) for degree in range(4)]
    [1, 3, 5, 7]
    """
    below = math.comb(n_columns + degree - 3, degree - 2) if degree >= 2 else 0
    return math.comb(n_columns - 1 + degree, degree) - below


def multi_indices(n_columns: int, degree: int, first: int | None = None) -> np.ndarray:
    """The harmonics of one degree, in the order of (l_(d-2), ..., l_2, |l_1|), cosine before sine.

    Parameters
    ----------
    n_columns : int
        d >= 2.
    degree : int
    first : int or None
        The number of harmonics to return; None is all.

    Returns
    -------
    ndarray of shape (N(d, l), d - 1), int16
        (l_1, ..., l_(d-1)) with |l_1| <= l_2 <= ... <= l_(d-1) = l.

    Examples
    --------
    >>> multi_indices(3, 1).tolist()
    [[0, 1], [1, 1], [-1, 1]]
    """
    values = np.array([degree])
    levels = []
    # A tree, from the degree downwards: an entry l_k has the children l_(k-1) = 0 .. l_k. Cutting each level after
    # `first` entries does not change the first `first` leaves.
    for _ in range(n_columns - 2):
        parent, child = _children(values + 1)
        levels.append((values, parent[:first]))
        values = child[:first]
    # For l_1 > 0 there are two harmonics, a cosine and a sine; for l_1 = 0 there is one.
    parent, child = _children(np.where(values > 0, 2, 1))
    parent = parent[:first]
    index = np.empty((len(parent), n_columns - 1), dtype=np.int16)
    index[:, 0] = np.where(child[:first] == 1, -values[parent], values[parent])
    # From the leaves back to the root: the parent of each entry is the next one.
    for column, (values, above) in enumerate(reversed(levels), start=1):
        parent = above[parent]
        index[:, column] = values[parent]
    return index


def random_indices(n_columns: int, degrees: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """For each given degree one random harmonic, uniform on the N(d, l) of that degree, which are not enumerated.

    l_(k-1) = m has probability N(k, m) / N(k + 1, l_k), the share of harmonics that continue with it.

    Parameters
    ----------
    n_columns : int
        d >= 2.
    degrees : ndarray of shape (m,), int64
    generator : numpy.random.Generator

    Returns
    -------
    ndarray of shape (m, d - 1), int16
    """
    index = np.empty((len(degrees), n_columns - 1), dtype=np.int16)
    index[:, -1] = degrees
    for column in range(n_columns - 3, -1, -1):
        ways = np.array([float(dimension(column + 2, m)) for m in range(int(index[:, column + 1].max(initial=0)) + 1)])
        edges = np.cumsum(ways)
        # A uniform point on the counts of all children falls to each child by its share of the harmonics.
        points = generator.random(len(index)) * edges[index[:, column + 1]]
        index[:, column] = np.searchsorted(edges, points, side="right")
    index[:, 0] *= generator.choice(np.array([-1, 1], dtype=np.int16), len(index))
    return index


def _children(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For items with `counts` children each: the parent of every child, and its number among its parent's children."""
    parent = np.repeat(np.arange(len(counts)), counts)
    starts = np.cumsum(counts) - counts
    return parent, np.arange(len(parent)) - starts[parent]


def zonal(n_columns: int, degrees: int, t: np.ndarray) -> Iterator[np.ndarray]:
    """P_l(t), l = 0 .. degrees - 1, with P_l(1) = 1: the Gegenbauer polynomials of d dimensions (Legendre for d = 3).

    The mean of Y(x) Y(y) over the harmonics of degree l is P_l(x.y), by the addition theorem.

    References
    ----------
    Bullins, Zhang & Zhang 2018, equation (8), here with its sides divided by the area of the sphere.
    """
    before, now = np.zeros_like(t), np.ones_like(t)
    for degree in range(degrees):
        yield now
        scale = degree + n_columns - 2
        # The recurrence (l + d - 2) P_(l+1) = (2 l + d - 2) t P_l - l P_(l-1).
        before, now = now, t if degree == 0 else ((2 * degree + n_columns - 2) * t * now - degree * before) / scale


def harmonic_values(X: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Harmonics of rows on the sphere by separation of variables, each factor by SciPy.

    `dkl.kernels.maps.map_rows` computes the same values by recurrences, faster and for any rows.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        On the unit sphere.
    index : ndarray of shape (m, d - 1)
        See `HarmonicProjection`.

    Returns
    -------
    ndarray of shape (n, m), float64

    References
    ----------
    Higuchi 1987, (2.3) to (2.7); normalised for the probability measure.
    """
    X = np.asarray(X, dtype=np.float64)
    orders = np.abs(index.astype(np.int64))
    angle = np.arctan2(X[:, 1], X[:, 0])[:, None] * orders[:, 0]
    values = np.where(index[:, 0] < 0, np.sin(angle), np.cos(angle)) * np.where(index[:, 0] == 0, 1.0, math.sqrt(2.0))
    # Column by column outwards: radius is the length of the first k columns, and t and sine are those of the polar
    # angle k.
    radius = np.hypot(X[:, 0], X[:, 1])
    for k in range(2, X.shape[1]):
        inner, radius = radius, np.hypot(radius, X[:, k])
        t = np.divide(X[:, k], radius, out=np.ones_like(radius), where=radius > 0)
        sine = np.divide(inner, radius, out=np.zeros_like(radius), where=radius > 0)
        # sin^m C_(l-m)(cos) on the k-sphere, C the Gegenbauer polynomial of weight m + (k - 1) / 2, divided by its
        # norm: so that its mean square is 1 against a harmonic of degree m on the (k-1)-sphere.
        m, n = orders[:, k - 2], orders[:, k - 1] - orders[:, k - 2]
        weight = m + (k - 1) / 2.0
        log_square = math.log(math.pi) + (1.0 - 2.0 * weight) * math.log(2.0) - special.betaln(0.5, k / 2.0)
        log_square += special.gammaln(n + 2.0 * weight) - special.gammaln(n + 1.0) - 2.0 * special.gammaln(weight)
        polynomial = special.eval_gegenbauer(n, weight, t[:, None])
        values *= sine[:, None] ** m * polynomial * np.sqrt(n + weight) * np.exp(-0.5 * log_square)
    return values


@dataclass(frozen=True)
class SphericalHarmonics(WithoutBandwidth):
    """Real spherical harmonics on the unit sphere in any d >= 2, orthonormal for the probability measure.

    A finite family: learners enumerate it in one pass (``n_candidates=None``, `pool`) rather than draw from it. What
    counts as a feature is one column, one real harmonic of mean square 1. The kernel of a single harmonic depends on
    the choice of the poles; those of whole degrees, P_l(x.y), do not.

    Parameters
    ----------
    max_degree : int or None
        The largest degree; None leaves `n_harmonics` as the only bound.
    blocks : {"single", "pair", "degree"}
        Which harmonics share one learned weight: none; the two conjugates +-l_1 (the paper's pairs); or all N(d, l)
        harmonics of a degree, which makes every learned kernel rotation-invariant.
    project : bool
        Divide rows by their length first. Rows whose length is not 1 are an error otherwise.
    n_harmonics : int or None
        The number of harmonics, in the order of their degree; only whole blocks are included. None is all up to
        `max_degree`, or the first 1,000 if that is None too.

    References
    ----------
    Bullins, Zhang & Zhang 2018, theorem 2.2 and appendices A.3, B; Higuchi 1987.

    Examples
    --------
    >>> from dkl.features.harmonics import SphericalHarmonics
    >>> SphericalHarmonics(max_degree=30).pool(n_columns=3).n_features
    961
    """

    max_degree: int | None = None
    blocks: Blocks = "single"
    project: bool = False
    n_harmonics: int | None = None

    def validate(self) -> None:
        for name, value, least in (("max_degree", self.max_degree, 0), ("n_harmonics", self.n_harmonics, 1)):
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < least):
                raise ValueError(
                    f"SphericalHarmonics: {name} is {value!r}; it must be a whole number of at least {least}, or None"
                )
        if self.max_degree is not None and self.max_degree > _MOST_DEGREES:
            raise ValueError(
                f"SphericalHarmonics: max_degree is {self.max_degree}; it must be at most {_MOST_DEGREES:,}"
            )
        if self.blocks not in get_args(Blocks):
            raise ValueError(f"SphericalHarmonics: blocks is {self.blocks!r}; it must be one of {get_args(Blocks)}")
        if not isinstance(self.project, bool | np.bool_):
            raise ValueError(f"SphericalHarmonics: project is {self.project!r}; it must be True or False")

    def size(self, n_columns: int) -> int:
        """The number of harmonics of the family in `n_columns` dimensions, without enumerating them.

        Raises
        ------
        ValueError
            If a parameter has no meaning, or `n_columns` is below 2.
        """
        return sum(self._counts(n_columns))

    def is_enumerable(self, n_columns: int) -> bool:
        """Whether `pool` can list the harmonics in `n_columns` dimensions within its bound on memory."""
        return self.size(n_columns) * (2 * n_columns + 54) <= _MOST_BYTES

    def pool(self, n_columns: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """Every harmonic of the family once, with amplitudes of 1.

        Parameters
        ----------
        n_columns : int
            d.
        dtype : {"float32", "float64"}
            Ignored, since multi-indices are integers; part of the interface of families.

        Raises
        ------
        ValueError
            If the family is too large to enumerate in d dimensions, or has no whole block.
        """
        counts = self._counts(n_columns)
        if not self.is_enumerable(n_columns):
            raise ValueError(
                f"{self!r} has {sum(counts):,} harmonics in {n_columns} dimensions, more than can be enumerated; lower "
                "max_degree, or set n_harmonics"
            )
        index = np.concatenate([multi_indices(n_columns, degree, size) for degree, size in enumerate(counts)])
        projection = HarmonicProjection(index, self.blocks, bool(self.project))
        return FeatureMap("harmonics", projection, np.ones(len(index)))

    def draw(self, n_frequencies: int | None, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """Single harmonics drawn with replacement; without `n_frequencies` all of them, as by `pool`.

        The draw is uniform on the harmonics; for ``blocks="degree"`` it is uniform on the degrees, then within one.
        """
        if n_frequencies is None:
            return self.pool(n_columns, dtype)
        if not is_count(n_frequencies):
            raise ValueError(f"n_frequencies is {n_frequencies!r}; it must be a whole number of at least 1")
        generator, counts = stream(seed, "frequencies"), self._counts(n_columns)
        if self.is_enumerable(n_columns):
            drawn = generator.choice(sum(counts), int(n_frequencies), p=self._law(counts))
            index = self.pool(n_columns, dtype).projection.dense()[drawn]
        else:
            # Too many harmonics to list: draw the degree by its share of them, then one harmonic of that degree.
            sizes = np.ones(len(counts)) if self.blocks == "degree" else np.array(counts, dtype=np.float64)
            degrees = generator.choice(len(counts), int(n_frequencies), p=sizes / sizes.sum())
            index = random_indices(n_columns, degrees, generator)
        projection = HarmonicProjection(index, "single", bool(self.project))
        return FeatureMap("harmonics", projection, np.ones(len(index)))

    def feature_scale(self, n_columns: int) -> float:
        return 1.0

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        """The mean of Y(x) Y(y) over the harmonics as `draw` weighs them."""
        X, Y = (_unit(rows) for rows in (X, X if Y is None else Y))
        counts = self._counts(X.shape[1])
        shares, starts = self._law(counts), np.cumsum([0, *counts])
        kernel = np.zeros((len(X), len(Y)))
        for degree, values in enumerate(zonal(X.shape[1], len(counts), np.clip(X @ Y.T, -1.0, 1.0))):
            share = shares[starts[degree] : starts[degree + 1]].sum()
            # The addition theorem holds for whole degrees; for an incomplete last degree the harmonics are evaluated.
            if counts[degree] < dimension(X.shape[1], degree):
                index = multi_indices(X.shape[1], degree, counts[degree])
                values = harmonic_values(X, index) @ harmonic_values(Y, index).T / counts[degree]
            kernel += share * values
        return kernel

    def _law(self, counts: list[int]) -> np.ndarray:
        """The probability of each harmonic of the pool in `draw`."""
        if self.blocks == "degree":
            return np.repeat(1.0 / (len(counts) * np.asarray(counts, dtype=np.float64)), counts)
        return np.full(sum(counts), 1.0 / sum(counts))

    def _counts(self, n_columns: int) -> list[int]:
        """The number of harmonics of the family of each degree 0, 1, ..."""
        self.validate()
        if not isinstance(n_columns, Integral) or n_columns < 2:
            raise ValueError(f"spherical harmonics need rows of at least 2 columns; these have {n_columns}")
        most = FIRST if self.max_degree is None and self.n_harmonics is None else self.n_harmonics
        degrees = count() if self.max_degree is None else range(self.max_degree + 1)
        sizes = (dimension(n_columns, degree) for degree in degrees)
        return list(sizes) if most is None else _filled(sizes, int(most), self.blocks, n_columns)


def _filled(sizes: Iterator[int], most: int, blocks: Blocks, n_columns: int) -> list[int]:
    """The number of harmonics of each degree, at most `most` together, cut after a whole block in the last degree."""
    counts: list[int] = []
    for size in sizes:
        left = most - sum(counts)
        # With whole degrees as blocks, a degree that does not fit is left out.
        if left < size and blocks == "degree":
            break
        if left < size and blocks == "pair":
            # A pair is a cosine and then its sine: a cosine in the last place is left out, like its sine.
            ends_in_a_cosine = left > 0 and multi_indices(n_columns, len(counts), left)[left - 1, 0] > 0
            left -= int(ends_in_a_cosine)
        counts.append(min(size, max(left, 0)))
        if left <= size:
            break
    return [size for size in counts if size]


def _unit(rows: np.ndarray) -> np.ndarray:
    """Rows divided by their lengths, float64."""
    rows = np.atleast_2d(np.asarray(rows, dtype=np.float64))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)
