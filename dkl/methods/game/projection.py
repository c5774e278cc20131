"""Projection onto the SVM dual's feasible set {0 <= alpha <= C, sum_i c_i y_i alpha_i = 0}: a root, by reductions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dkl.methods.game.sums import breakpoint_sums, feasible

Projection = Literal["exact", "alternating"]

# Trial multipliers of one reduction, for each dual block.
N_EDGES = 1024
# Distances, in widths of the bracket, of trial multipliers on both sides of the root of a straight line.
_CLOSE = 0.5 ** np.arange(1, 45)
# Limit on the reductions of one projection in memory, which cost little.
_MOST_REDUCTIONS = 60


@dataclass(frozen=True, eq=False)
class Multipliers:
    """The state of the search for K multipliers, one for each dual block.

    Parameters
    ----------
    edges : ndarray of shape (K, M)
        Multipliers that the next reduction evaluates, ascending.
    values : ndarray of shape (K,)
        The best estimates of the multipliers.
    found : ndarray of shape (K,), bool
    """

    edges: np.ndarray
    values: np.ndarray
    found: np.ndarray


def first_edges(center: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Trial multipliers (K, M): evenly spaced within `spread` of a guess, and denser near the guess."""
    return np.stack([_edges(c - s, c + s, c) for c, s in zip(center, spread, strict=True)])


def narrow(edges: np.ndarray, sums: Mapping[str, np.ndarray], upper: float) -> Multipliers:
    """The multipliers, or narrower edges around those that are not exact yet.

    The projection is clip(a - mu y, 0, upper) with sum_i c_i y_i alpha_i(mu) = 0, a monotone piecewise linear function
    of mu. A reduction gives its value at every edge and the number of breakpoints between neighbouring edges; if the
    root lies between edges without a breakpoint, it is exact.

    Parameters
    ----------
    edges : ndarray of shape (K, M)
    sums : mapping
        The sums of `dkl.methods.game.sums.breakpoint_sums` over all rows.
    upper : float

    Returns
    -------
    Multipliers
    """
    blocks = [
        _narrow_block(
            edges[k],
            {name: s[..., k, :] for name, s in sums.items() if s.ndim == 2 and name != "ends"},
            upper * sums["positive"][k],
            sums["ends"][:, k],
        )
        for k in range(len(edges))
    ]
    return Multipliers(
        edges=np.stack([finer for finer, _, _ in blocks]),
        values=np.array([multiplier for _, multiplier, _ in blocks]),
        found=np.array([is_exact for _, _, is_exact in blocks]),
    )


def _narrow_block(
    edges: np.ndarray, sums: Mapping[str, np.ndarray], target: float, ends: np.ndarray
) -> tuple[np.ndarray, float, bool]:
    """The next edges for one dual block, the best estimate of its multiplier, and whether that is exact."""
    # g(mu) = sum_i c_i clip(mu - l_i, 0, upper) at the edges, from slopes and moments of the breakpoints before each
    slopes, moments = np.cumsum(sums["slopes"])[:-1], np.cumsum(sums["moments"])[:-1]
    heights = slopes * edges - moments
    # the bin in which g reaches target = upper times the weight of the rows with y = 1; g is monotone but for rounding
    j = int(np.searchsorted(np.maximum.accumulate(heights), target))
    low = (-ends[0], 0.0, 0.0) if j == 0 else (edges[j - 1], heights[j - 1], slopes[j - 1])
    high = (ends[1], np.inf) if j == len(edges) else (edges[j], heights[j])
    if sums["breaks"][j] == 0 or not np.isfinite(ends).all():
        # without a breakpoint inside, the function is a straight line there, and its root is exact
        root = low[0] + (target - low[1]) / low[2] if low[2] > 0.0 else low[0]
        return edges, float(root), True
    # regula falsi: the next edges are densest near the root of a straight line across the bin
    start, stop = float(low[0]), float(max(high[0], low[0]))
    rise = high[1] - low[1]
    share = (target - low[1]) / rise if np.isfinite(rise) and rise > 0.0 else 0.5
    guess = start + float(np.clip(share, 0.0, 1.0)) * (stop - start)
    if stop - start <= 8.0 * np.finfo(np.float64).eps * max(abs(start), abs(stop), np.finfo(np.float64).tiny):
        return edges, guess, True
    return _edges(start, stop, guess), guess, False


def _edges(start: float, stop: float, guess: float) -> np.ndarray:
    """Edges of a bracket: evenly spaced, and denser on both sides of a guess."""
    close = (stop - start) * _CLOSE
    # a breakpoint at an end of the bracket is not inside it; the last edge but one excludes it
    inner = np.concatenate([guess - close, [guess], guess + close, [start, np.nextafter(stop, -np.inf), stop]])
    even = np.linspace(start, stop, N_EDGES - len(inner))
    return np.sort(np.clip(np.concatenate([even, inner]), start, stop))


def project_dual(
    values: np.ndarray, signs: np.ndarray, weight: np.ndarray, upper: float
) -> tuple[np.ndarray, np.ndarray]:
    """The projection of rows in memory, and its multipliers; the distributed projection computes the same.

    Parameters
    ----------
    values, signs : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
        A row of weight 2 counts as two rows, in distances and in the constraint.
    upper : float

    Returns
    -------
    alpha : ndarray of shape (n, K)
        Column k is the nearest point to values[:, k] of {0 <= alpha <= upper, sum_i c_i y_ik alpha_i = 0}.
    multipliers : ndarray of shape (K,)

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.game.projection import project_dual
    >>> signs = np.array([[1.0], [1.0], [-1.0]])
    >>> alpha, _ = project_dual(np.ones((3, 1)), signs, np.ones(3), upper=1.0)
    >>> alpha[:, 0].round(12).tolist()
    [0.5, 0.5, 1.0]
    """
    size = np.maximum(np.abs(values).max(axis=0, initial=0.0), upper)
    search = Multipliers(first_edges(np.zeros(values.shape[1]), 2.0 * size), np.zeros(1), np.zeros(1, bool))
    for _ in range(_MOST_REDUCTIONS):
        search = narrow(search.edges, breakpoint_sums(values, signs, weight, upper, search.edges), upper)
        if search.found.all():
            break
    return feasible(values, signs, upper, search.values[None]), search.values


def keep_found(search: Multipliers, earlier: Multipliers) -> Multipliers:
    """The new state, in which multipliers that were exact before are unchanged."""
    # each dual block has its own projection; an exact multiplier is kept while those of other blocks are refined
    return replace(
        search,
        values=np.where(earlier.found, earlier.values, search.values),
        found=search.found | earlier.found,
    )
