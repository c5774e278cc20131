"""Spherical harmonics by their multi-indices, in the role of a projection, and the recurrences between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from dkl.features.projections import Projection

Blocks = Literal["single", "pair", "degree"]


@dataclass(frozen=True, eq=False)
class HarmonicTerms:
    """A plan for the evaluation of harmonics as products of factors; products that several share are computed once.

    Node j is ``table[factor[j]]``, times node ``parent[j]`` where that is not negative. The first m nodes are the
    harmonics themselves; the intermediate products that they need follow.

    The table has the rows [1, C_1, S_1, ..., C_a, S_a] with C_l + i S_l = (x_1 + i x_2)^l, then for each chain (k, m)
    the rows n = 1 .. count of r^n p_n(x_(k+1) / r), r = |(x_1, ..., x_(k+1))|, where p_n are the polynomials that are
    orthonormal on [-1, 1] for the probability weight proportional to (1 - t^2)^(m + k/2 - 1) (Gegenbauer).

    Parameters
    ----------
    parent, factor : ndarray of shape (n_nodes,), int64
    order : ndarray of shape (n_nodes,), int64
        The nodes by levels: those without a parent, then those whose parent is one of the former, and so on.
    starts : ndarray of shape (n_levels + 1,), int64
        Where each level starts in `order`, and its end.
    azimuth : int
        a, the largest l of C_l and S_l.
    chains : ndarray of shape (n_chains, 4), int64
        k, m, count, and the table row of n = 1.
    coefficients : ndarray of shape (m,), float64
        The factor that makes each harmonic one of mean square 1.
    """

    parent: np.ndarray
    factor: np.ndarray
    order: np.ndarray
    starts: np.ndarray
    azimuth: int
    chains: np.ndarray
    coefficients: np.ndarray

    @property
    def n_nodes(self) -> int:
        return len(self.parent)

    @cached_property
    def n_rows(self) -> int:
        """Rows of the table."""
        return 1 + 2 * self.azimuth + int(self.chains[:, 2].sum())


@dataclass(frozen=True, eq=False)
class HarmonicProjection:
    """m real spherical harmonics in d dimensions by their multi-indices.

    A row (l_1, ..., l_(d-1)) has |l_1| <= l_2 <= ... <= l_(d-1); the last entry (its absolute value, for d = 2) is the
    degree. l_1 > 0 goes with the cosine of the azimuth, l_1 < 0 with the sine: the real and imaginary part of the
    paper's complex harmonics, whose conjugates are the pairs +-l_1.

    Parameters
    ----------
    index : ndarray of shape (m, d - 1), int16
    blocks : {"single", "pair", "degree"}
        Which harmonics are chosen together: none, the two of +-l_1, or all of one degree.
    project : bool
        Divide rows by their length; rows off the unit sphere are an error otherwise.

    References
    ----------
    Higuchi 1987, "Symmetric tensor spherical harmonics on the N-sphere", equations (2.3) to (2.7).
    """

    index: np.ndarray
    blocks: Blocks = "single"
    project: bool = False

    @property
    def n_frequencies(self) -> int:
        return len(self.index)

    @property
    def n_columns(self) -> int:
        return self.index.shape[1] + 1

    @property
    def nbytes(self) -> int:
        """Bytes of the indices, and of `terms`."""
        return self.index.nbytes + 4 * 8 * self.n_frequencies

    @property
    def degrees(self) -> np.ndarray:
        """The degree of each harmonic, int64 of shape (m,)."""
        return np.abs(self.index[:, -1].astype(np.int64))

    @cached_property
    def groups(self) -> np.ndarray:
        """The number of each harmonic's block, int64 of shape (m,); blocks are numbered by their first harmonic."""
        if self.blocks == "single":
            return np.arange(self.n_frequencies)
        # Harmonics of one block agree in their degree, or in all indices but for the sign of l_1.
        keys = self.degrees[:, None] if self.blocks == "degree" else np.abs(self.index)
        _, first, group = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        return np.argsort(np.argsort(first))[group.reshape(-1)]

    def dense(self) -> np.ndarray:
        """The multi-indices, of shape (m, d - 1), since there is no matrix W."""
        return self.index

    def take(self, index: np.ndarray) -> HarmonicProjection:
        return HarmonicProjection(self.index[index], self.blocks, self.project)

    def joined(self, other: Projection) -> HarmonicProjection:
        """These harmonics, then those of `other`.

        Raises
        ------
        ValueError
            If `other` holds no harmonics, or blocks or projection of rows differ.
        """
        if not isinstance(other, HarmonicProjection) or (self.blocks, self.project) != (other.blocks, other.project):
            raise ValueError("harmonics are joined with harmonics that have the same `blocks` and `project`")
        return HarmonicProjection(np.concatenate([self.index, other.index]), self.blocks, self.project)

    @cached_property
    def terms(self) -> HarmonicTerms:
        """The plan by which `dkl.kernels` evaluates the harmonics; computed once."""
        nodes, parent = _with_ancestors(self.index.astype(np.int64))
        last = _last_step(nodes)
        chains, factor = _factors(nodes, last)
        # The level of a node is its number of ancestors; a level is computed after all lower ones.
        levels = np.zeros(len(parent), dtype=np.int64)
        above = parent
        while (above >= 0).any():
            levels += above >= 0
            above = np.where(above >= 0, parent[above], -1)
        return HarmonicTerms(
            parent=parent,
            factor=factor,
            order=np.argsort(levels, kind="stable"),
            starts=np.concatenate([[0], np.cumsum(np.bincount(levels))]),
            azimuth=int(np.abs(nodes[:, 0]).max(initial=0)),
            chains=chains,
            coefficients=_coefficients(self.index),
        )


def _steps(nodes: np.ndarray) -> np.ndarray:
    """Whether l_k > l_(k-1), for k = 2 .. d - 1: bool (n, d - 2). Where it is not, that factor is a constant."""
    return nodes[:, 1:] > np.abs(nodes[:, :-1])


def _last_step(nodes: np.ndarray) -> np.ndarray:
    """The column of the last l_k with l_k > l_(k-1), 0 where there is none: int64 of shape (n,)."""
    steps = _steps(nodes)
    if not steps.shape[1]:
        return np.zeros(len(nodes), dtype=np.int64)
    # The last True of each row, counted from the end.
    last = steps.shape[1] - np.argmax(steps[:, ::-1], axis=1)
    return np.where(steps.any(axis=1), last, 0)


def _shortened(nodes: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The harmonic of lower degree that is left when the factor of each node's last step is divided out."""
    before = np.abs(np.take_along_axis(nodes, np.maximum(last - 1, 0)[:, None], axis=1))
    return np.where(np.arange(nodes.shape[1]) >= last[:, None], before, nodes)


def _with_ancestors(nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The nodes followed by all intermediate products, and the position of each one's parent (-1 for none)."""
    generations = [nodes]
    while True:
        last = _last_step(generations[-1])
        parents = _shortened(generations[-1], last)[last > 0]
        # A parent of degree 0 is the constant 1 and is left out: the node is its factor alone.
        parents = np.unique(parents[parents.any(axis=1)], axis=0)
        if not len(parents):
            break
        generations.append(parents)
    every = np.concatenate(generations)
    last = _last_step(every)
    parents = _shortened(every, last)
    # Each parent is one of the nodes: equal rows get one number, and the first row with it is the node.
    _, first, number = np.unique(np.concatenate([every, parents]), axis=0, return_index=True, return_inverse=True)
    position = first[number.reshape(-1)[len(every) :]]
    return every, np.where((last > 0) & parents.any(axis=1), position, -1)


def _factors(nodes: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The chains of the table (see `HarmonicTerms`), and the row of the table that is the factor of each node."""
    azimuth = int(np.abs(nodes[:, 0]).max(initial=0))
    rows = np.arange(len(nodes))
    order = np.abs(nodes[rows, np.maximum(last - 1, 0)])
    count = nodes[rows, last] - order
    moved = last > 0
    keys = np.stack([last + 1, order], axis=1)
    # Nodes whose last step is in the same column k and starts at the same order m share a chain, as long as the longest
    # of them needs it.
    pairs, chain = np.unique(keys[moved], axis=0, return_inverse=True)
    chain = chain.reshape(-1)
    longest = np.zeros(len(pairs), dtype=np.int64)
    np.maximum.at(longest, chain, count[moved])
    starts = 1 + 2 * azimuth + np.concatenate([[0], np.cumsum(longest)[:-1]]).astype(np.int64)[: len(pairs)]
    chains = np.concatenate([pairs, longest[:, None], starts[:, None]], axis=1).reshape(-1, 4)
    # A node without a step is a wave of the azimuth alone: C_l for l_1 = l > 0, S_l for l_1 = -l, and 1 for 0.
    factor = np.where(nodes[:, 0] > 0, 2 * nodes[:, 0] - 1, -2 * nodes[:, 0])
    factor[moved] = starts[chain] + count[moved] - 1
    return chains, factor


def _coefficients(index: np.ndarray) -> np.ndarray:
    """The root of [2 if l_1 != 0] times prod_k ((k + 1)/2)_m / (k/2)_m with m = |l_(k-1)|, in rising factorials."""
    orders = np.abs(index.astype(np.int64))[:, :-1]
    total = np.where(index[:, 0] != 0, 2.0, 1.0)
    steps = np.arange(int(orders.max(initial=0)))
    for column in range(orders.shape[1]):
        k = column + 2
        # (k/2)_m is a product of m factors: those of all m are one cumulative product.
        ratios = np.concatenate([[1.0], np.cumprod((k + 1 + 2.0 * steps) / (k + 2.0 * steps))])
        total = total * ratios[orders[:, column]]
    return np.sqrt(total)
