"""From weights on candidates to the features that a map keeps: a draw, estimator (5), or the support, estimator (6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from dkl.features.frequencies import stream

Estimator = Literal["auto", "draw", "support"]


@dataclass(frozen=True, eq=False)
class Choice:
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


def draw_features(weights: np.ndarray, n_draws: int, seed: int) -> Choice:
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
    edges = np.cumsum(weights)
    points = stream(seed, "choice").random(n_draws) * edges[-1]
    drawn = np.searchsorted(edges, points, side="right")
    index, counts = np.unique(np.minimum(drawn, np.flatnonzero(weights)[-1]), return_counts=True)
    return Choice(index.astype(np.int64), np.sqrt(counts / n_draws))


def keep_support(weights: np.ndarray) -> Choice:
    """Keep every feature of positive weight, with amplitude sqrt(weight).

    References
    ----------
    Sinha & Duchi 2016, equation (6).
    """
    index = np.flatnonzero(weights)
    return Choice(index.astype(np.int64), np.sqrt(weights[index] / weights[index].sum()))


def choose_features(weights: np.ndarray, n_kept: int | None, seed: int, *, estimator: Estimator = "auto") -> Choice:
    """At most `n_kept` features by the rule of the paper, or by the estimator that is named.

    "auto": the support (6) where it has at most `n_kept` features, else `n_kept` draws (5). "draw": always (5).
    "support": always (6), of the `n_kept` largest weights alone where the support is larger.

    Parameters
    ----------
    weights : ndarray of shape (D,)
    n_kept : int or None
        None keeps the support whatever its size.
    seed : int
        Of the draw.
    estimator : {"auto", "draw", "support"}

    References
    ----------
    Sinha & Duchi 2016, section 4: "(5) when D < nnz(q), (6) otherwise".
    """
    support = np.count_nonzero(weights)
    if n_kept is None or (estimator != "draw" and support <= n_kept):
        return keep_support(weights)
    if estimator == "support":
        return keep_support(_largest(weights, n_kept))
    return draw_features(weights, n_kept, seed)


def _largest(weights: np.ndarray, count: int) -> np.ndarray:
    """The weights with all but the `count` largest set to zero; of equal ones the first stay."""
    kept = np.argsort(-weights, kind="stable")[:count]
    largest = np.zeros_like(weights)
    largest[kept] = weights[kept]
    return largest
