"""Which candidates a feature map keeps, given their weights: draws (estimator (5)) or the support (estimator (6))."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.features.frequencies import stream

Estimator = Literal["auto", "draw", "support"]


@dataclass(frozen=True, eq=False)
class FeatureChoice:
    """The candidates that a feature map keeps.

    Parameters
    ----------
    index : ndarray of shape (m,), int64
        Their positions among the candidates, ascending, each once.
    amplitudes : ndarray of shape (m,), float64
        The factor of each; the squares sum to 1.
    """

    index: np.ndarray
    amplitudes: np.ndarray


def drawn_positions(weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Positions with probability proportional to their weights, one for each random point in [0, 1), by inversion."""
    edges = np.cumsum(weights)
    drawn = np.searchsorted(edges, points * edges[-1], side="right")
    # a point that rounding has put on the last edge belongs to the last position with positive weight
    return np.minimum(drawn, np.searchsorted(edges, edges[-1]))


def draw_features(weights: np.ndarray, n_draws: int, seed: int) -> FeatureChoice:
    """Draw features independently from the weights; one drawn c times of n is kept once, with amplitude sqrt(c / n).

    Parameters
    ----------
    weights : ndarray of shape (D,)
        Probabilities (of any scale).
    n_draws : int
    seed : int

    References
    ----------
    Sinha & Duchi 2016, equation (5); Letarte, Morvant & Germain 2019, section 5.4.
    """
    drawn = drawn_positions(weights, stream(seed, "choice").random(n_draws))
    index, counts = np.unique(drawn, return_counts=True)
    return FeatureChoice(index.astype(np.int64), np.sqrt(counts / n_draws))


def keep_support(weights: np.ndarray) -> FeatureChoice:
    """The choice of every feature of positive weight, with amplitude sqrt(weight).

    References
    ----------
    Sinha & Duchi 2016, equation (6).
    """
    index = np.flatnonzero(weights)
    return FeatureChoice(index.astype(np.int64), np.sqrt(weights[index] / weights[index].sum()))


def block_means(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The mean value of the candidates of each block: the potential of the mean of their kernels.

    Parameters
    ----------
    values : ndarray of shape (D,)
    groups : ndarray of shape (D,), int64
        The block of each candidate, numbered from 0 without gaps.

    Returns
    -------
    ndarray of shape (n_blocks,)
    """
    return np.bincount(groups, values) / np.bincount(groups)


def choose_features(
    weights: np.ndarray,
    n_kept: int | None,
    seed: int,
    *,
    estimator: Estimator = "auto",
    groups: np.ndarray | None = None,
) -> FeatureChoice:
    """At most `n_kept` candidates, in whole blocks, by the rule of the paper or by the given estimator.

    "auto": the support (6) if it has at most `n_kept` candidates, else draws (5), as many as have at most `n_kept`
    candidates together. "draw": always (5). "support": always (6), restricted to the blocks of the largest weights if
    the support is larger.

    Parameters
    ----------
    weights : ndarray of shape (n_blocks,)
    n_kept : int or None
        The most candidates (not blocks) to keep; None keeps the support whatever its size.
    seed : int
        Determines the draw.
    estimator : {"auto", "draw", "support"}
    groups : ndarray of shape (D,), int64, or None
        The block of each candidate; candidates of a block are kept or left out as a whole. None is a block for each
        candidate.

    Returns
    -------
    FeatureChoice
        The weight of a block is divided evenly among its candidates.

    Raises
    ------
    ValueError
        If no block of positive weight has at most `n_kept` candidates.

    References
    ----------
    Sinha & Duchi 2016, section 4: "(5) when D < nnz(q), (6) otherwise".
    """
    are_single = groups is None or np.array_equal(groups, np.arange(len(groups)))
    sizes = np.ones(len(weights), np.int64) if groups is None or are_single else np.bincount(groups)
    if n_kept is None or (estimator != "draw" and sizes[weights > 0].sum() <= n_kept):
        blocks = keep_support(weights)
    elif estimator == "support":
        blocks = keep_support(_fitting(weights, sizes, n_kept))
    else:
        blocks = _fitting_draws(weights, sizes, n_kept, seed)
    if groups is None or are_single:
        return blocks
    # the squared amplitude of a block, its share of the weight, is divided evenly among its candidates
    amplitudes = np.zeros(len(sizes))
    amplitudes[blocks.index] = blocks.amplitudes / np.sqrt(sizes[blocks.index])
    index = np.flatnonzero(amplitudes[groups])
    return FeatureChoice(index, amplitudes[groups[index]])


def _fitting_draws(weights: np.ndarray, sizes: np.ndarray, room: int, seed: int) -> FeatureChoice:
    """As many draws of blocks as have at most `room` candidates, but no more than `room` draws; else the heaviest."""

    def overflows(n_draws: int) -> bool:
        return bool(sizes[draw_features(weights, n_draws, seed).index].sum() > room)

    drawn = draw_features(weights, room, seed)
    if sizes[drawn.index].sum() <= room:
        return drawn
    # the first draws do not depend on their number, so the largest number that fits is found by bisection
    n_draws = bisect_left(range(1, room), True, key=overflows)
    return draw_features(weights, n_draws, seed) if n_draws else keep_support(_fitting(weights, sizes, room))


def _fitting(weights: np.ndarray, sizes: np.ndarray, room: int) -> np.ndarray:
    """The weights of the heaviest blocks that together have at most `room` candidates; all others are set to zero."""
    # heaviest first; of equal weights the first ones
    order = np.argsort(-weights, kind="stable")[: np.count_nonzero(weights > 0.0)]
    # each block has at least one candidate
    n_whole = int(np.count_nonzero(np.cumsum(sizes[order[:room]]) <= room))
    kept = np.zeros_like(weights)
    kept[order[:n_whole]] = weights[order[:n_whole]]
    left = room - int(sizes[order[:n_whole]].sum())
    # smaller blocks may fit after one that does not
    for block in order[n_whole:] if left else ():
        if sizes[block] <= left:
            kept[block] = weights[block]
            left -= int(sizes[block])
    if not kept.any():
        raise ValueError(
            f"no block of candidates fits into {room} columns: the smallest that counts has "
            f"{sizes[weights > 0].min()}; allow more features, or weigh candidates singly"
        )
    return kept
