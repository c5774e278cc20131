"""Markov chains on the multi-indices of harmonics, for degrees with too many of them to evaluate all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.harmonic_projection import HarmonicProjection
from dkl.features.harmonics import SphericalHarmonics, random_indices
from dkl.features.scaling import Scaler
from dkl.methods.frequency_search.frequency_space import FrequencyPool, FrequencySpace, potentials_of
from dkl.protocols.arrays import Rows

Potential = Callable[[np.ndarray], np.ndarray]


# Inverse temperatures of the first and the last step of a chain, in units of 1 / sum s^2, where sum s^2 is the expected
# potential for random labels.
_HOTTEST, _COLDEST = 0.25, 4.0


def walk(
    potential: Potential, start: np.ndarray, max_degree: int, betas: np.ndarray, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Metropolis chains on all harmonics up to a degree, distributed as exp(beta v) for constant beta.

    A step adds +-1 to one entry, or to all entries from one on, or exchanges cosine and sine.

    Parameters
    ----------
    potential : callable
        Maps multi-indices (c, d - 1) to v (c,).
    start : ndarray of shape (c, d - 1), int16
    max_degree : int
    betas : ndarray of shape (steps,)
        Inverse temperatures.
    generator : numpy.random.Generator

    Returns
    -------
    last, best : ndarray of shape (c, d - 1)
        The last index of each chain, and the visited one with the highest potential.
    height : ndarray of shape (c,)
        The highest potential of each chain.

    References
    ----------
    Bullins, Zhang & Zhang 2018, appendix A.3: "a discrete Markov chain which mixes to lambda proportional to
    exp(beta v)".
    """
    now, heights_now = start.copy(), potential(start)
    best, height = now.copy(), heights_now.copy()
    for beta in betas:
        proposed = _proposals(now, generator)
        # absolute entries of a multi-index ascend, and the last one, the degree, is bounded
        sizes = np.abs(proposed)
        valid = (proposed[:, 1:] >= sizes[:, :-1]).all(axis=1) & (sizes[:, -1] <= max_degree)
        proposed[~valid] = now[~valid]
        heights = potential(proposed)
        # Metropolis: a higher potential is always accepted, a lower one with probability exp(beta (v' - v))
        accepted = valid & (np.log(generator.random(len(now))) < beta * (heights - heights_now))
        now[accepted], heights_now[accepted] = proposed[accepted], heights[accepted]
        higher = heights > height
        best[higher], height[higher] = proposed[higher], heights[higher]
    return now, best, height


def _proposals(index: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """A symmetric move of each chain: the reverse move is equally likely, so that acceptance needs no correction."""
    count, width = index.shape
    # of four equally likely kinds, two change a single entry, one all entries from one on, and one the sign; all random
    # numbers are drawn in any case, so that a chain's random stream does not depend on its path
    kind = generator.integers(0, 4, size=(count,))
    first = generator.integers(0, width, size=(count,))
    columns = np.arange(width)
    tail = (kind == 1) & (first > 0)
    moved = np.where(tail[:, None], columns >= first[:, None], columns == first[:, None])
    steps = 2 * generator.integers(0, 2, size=(count,)) - 1
    proposed = (index + moved * steps[:, None]).astype(np.int16)
    flipped = kind == 3
    proposed[flipped] = index[flipped]
    # the sign of the first entry distinguishes sine from cosine
    proposed[flipped, 0] *= -1
    return proposed


@dataclass(frozen=True, eq=False)
class HarmonicSpace(FrequencySpace):
    """All harmonics up to a degree, searched by chains; points are multi-indices, int16 of shape (m, d - 1).

    Harmonics of neighbouring indices are orthogonal functions, so a chain moves towards a peak only if other harmonics
    there have a high potential, too. Prefer enumeration where it is possible.

    Parameters
    ----------
    origin : FeatureMap
        Any harmonics on the rows' columns, with their scaler; only its type is used.
    max_degree : int
    chains, steps : int
        The number of chains, at least, and of steps of each.
    dtype : {"float32", "float64"}
    """

    origin: FeatureMap
    max_degree: int
    chains: int = 200
    steps: int = 100
    dtype: str = "float32"

    @property
    def columns_a_point(self) -> int:
        return 1

    @property
    def none(self) -> np.ndarray:
        return np.zeros((0, self.origin.n_columns - 1), np.int16)

    @property
    def scaler(self) -> Scaler | None:
        return self.origin.scaler

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        kind: Any = self.origin.projection
        # rows from `propose` have a further column of zeros
        index = np.asarray(points[:, : self.origin.n_columns - 1], dtype=np.int16)
        projection = HarmonicProjection(index, "single", kind.project)
        return replace(self.origin, projection=projection, amplitudes=np.ones(len(points)))

    def start(self, count: int, seed: int) -> np.ndarray:
        generator = stream(seed, "harmonics")
        return random_indices(self.origin.n_columns, generator.integers(0, self.max_degree + 1, count), generator)

    def search(
        self,
        X: Rows,
        S: np.ndarray,
        count: int,
        seed: int,
        *,
        room: int | None = None,
        weight: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        chains = max(self.chains, 2 * count)
        # temperatures are in units of sum s^2, the expected potential for random labels
        chance = float(np.square(S).sum()) or 1.0

        def potential(index: np.ndarray) -> np.ndarray:
            # chains may meet, so each index is evaluated once
            distinct, position = np.unique(index, axis=0, return_inverse=True)
            return potentials_of(self.feature_map(distinct), X, S, self.dtype)[position.reshape(-1)] / chance

        begin, betas = self.start(chains, seed), np.geomspace(_HOTTEST, _COLDEST, self.steps)
        _, best, height = walk(potential, begin, self.max_degree, betas, stream(seed, "walk"))
        kept = self.distinct(best, height, count)
        return best[kept], height[kept] * chance

    def distinct(self, points: np.ndarray, potentials: np.ndarray, k: int, *, room: int | None = None) -> np.ndarray:
        order = np.argsort(-potentials, kind="stable")
        _, first = np.unique(points[order], axis=0, return_index=True)
        return order[np.sort(first)[:k]].astype(np.int64)


def finite_space(family: FiniteFamily, n_columns: int, scaler: Scaler | None, dtype: str) -> FrequencySpace:
    """The pool of a finite family, or, with too many single harmonics to enumerate, chains on their indices.

    Raises
    ------
    ValueError
        If there are too many blocks of harmonics to enumerate.
    """
    if not isinstance(family, SphericalHarmonics) or family.blocks != "single" or family.is_enumerable(n_columns):
        return FrequencyPool(replace(family.pool(n_columns, dtype), scaler=scaler), dtype)
    origin = replace(family.draw(1, n_columns, 0), scaler=scaler)
    return HarmonicSpace(origin, int(family.max_degree or 0), dtype=dtype)
