"""k-means on rows in memory, and the step from the sums of a round to new centres."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dkl.features.frequencies import stream
from dkl.methods.landmarks.kmeans_sums import Centers, cluster_sums, square_distances, square_lengths
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block

# A round changes little when the sum of squared distances falls by less than this share of it.
STILL = 1e-4


def spread_seeds(X: Rows, weights: np.ndarray, count: int, seed: int, *, name: str = "k-means") -> np.ndarray:
    """Rows far from each other to start from: greedy k-means++.

    Each next row is the best of 2 + log(count) candidates drawn with probabilities proportional to weight times squared
    distance from the rows chosen before.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d), float64
    weights : ndarray of shape (n,)
    count : int
    seed : int
    name : str
        The name of the random stream.

    Returns
    -------
    ndarray of int64
        At most `count` positions; fewer where there are fewer rows that differ.

    References
    ----------
    Arthur & Vassilvitskii 2007, "k-means++: the advantages of careful seeding", and the greedy form of its section 5.
    """
    generator = stream(seed, name)
    trials = 2 + int(np.log(max(count, 1)))
    squares = square_lengths(X)

    def draw(masses: np.ndarray, n_draws: int) -> np.ndarray:
        """Rows with probabilities proportional to these masses: where random numbers fall among their sums."""
        edges = np.cumsum(masses)
        rows = np.searchsorted(edges, generator.random(n_draws) * edges[-1], side="right")
        # rounding may lead behind the last row that has any mass
        return np.minimum(rows, np.flatnonzero(masses)[-1])

    def distances_to(rows: np.ndarray) -> np.ndarray:
        points = X[rows]
        distances = square_distances(X, points if isinstance(points, np.ndarray) else points.toarray(), squares)
        # rounding leaves a row some distance from itself, from which it would be drawn again
        distances[rows, np.arange(len(rows))] = 0.0
        return distances

    seeds = [int(draw(weights, 1)[0])]
    closest = distances_to(np.array(seeds))[:, 0]
    while len(seeds) < count and weights @ closest > 0.0:
        drawn = draw(weights * closest, trials)
        nearer = np.minimum(closest[:, None], distances_to(drawn))
        # of the candidates the one that leaves the smallest sum of squared distances
        best = int(np.argmin(weights @ nearer))
        closest = nearer[:, best]
        seeds.append(int(drawn[best]))
    return np.array(seeds, dtype=np.int64)


def moved_centers(centers: Centers, sums: Mapping[str, np.ndarray]) -> Centers:
    """The centres at the means of the rows that went to them; one that got none stays."""
    # the sums come in panels of centres, whose names say where they begin
    points = np.concatenate([sums[f"points{panel.start}"] for panel in centers.panels])
    mass = sums["mass"].sum(axis=1)[:, None]
    return replace(centers, points=np.where(mass > 0.0, points / np.where(mass > 0.0, mass, 1.0), centers.points))


def lloyd(centers: Centers, rows: Block, most: int) -> tuple[Centers, np.ndarray, int]:
    """Rounds of k-means on rows in memory until they change little.

    Parameters
    ----------
    centers : Centers
    rows : Block
    most : int
        Rounds at most.

    Returns
    -------
    centers : Centers
    mass : ndarray of shape (L, K)
        The weight by class of what went to each centre in the last round.
    rounds : int

    References
    ----------
    Lloyd 1982, "Least squares quantization in PCM".
    """
    before, mass = np.inf, np.zeros((len(centers.points), centers.n_classes))
    for number in range(1, most + 1):
        sums = cluster_sums(rows, {"centers": centers})
        centers, mass, inertia = moved_centers(centers, sums), sums["mass"], float(sums["inertia"])
        # the sum of squared distances never rises: once it hardly falls, more rounds gain nothing
        if inertia >= (1.0 - STILL) * before:
            return centers, mass, number
        before = inertia
    return centers, mass, most
