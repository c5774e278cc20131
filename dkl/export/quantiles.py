"""Scaling by quantiles of all columns at once, in operations that a graph has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.kernels.scale import normal_scores


def with_quantiles(xp: Any, X: Any, feature_map: FeatureMap) -> tuple[Any, FeatureMap]:
    """Rows scaled by quantiles, and the map without that scaler; others as they are.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
    """
    scaler = feature_map.scaler
    if scaler is None or scaler.kind != "quantile":
        return X, feature_map
    return quantile_scores(xp, xp.asarray(X, dtype=xp.float64), scaler), replace(feature_map, scaler=None)


def quantile_scores(xp: Any, X: Any, scaler: Scaler) -> Any:
    """Each column through its empirical distribution to normal scores, as `dkl.kernels.scale.scale_rows` in float64.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d), float64
    scaler : Scaler
        Of kind "quantile", with q knots a column.
    """
    knots = np.asarray(scaler.knots)
    scores = normal_scores(len(knots))
    # column by column, filled up with infinities to one less than a power of two, which halving needs: (d, 2^k - 1)
    length = (1 << len(knots).bit_length()) - 1
    knots = np.pad(knots.T, ((0, 0), (0, length - len(knots))), constant_values=np.inf)
    last = len(scores) - 1
    # the knots of column j stand at j * length of one flat table
    flat, base = knots.ravel(), np.arange(len(knots)) * knots.shape[1]
    left = _count(xp, X, flat, base, knots.shape[1], strict=True)
    right = _count(xp, X, flat, base, knots.shape[1], strict=False)
    # Each number lies between two knots of its column; before the first and after the last one both are the same.
    below, above = xp.clip(left - 1, 0, last), xp.clip(left, 0, last)
    low, high = xp.take(flat, below + base), xp.take(flat, above + base)
    gap = high - low
    # Between knots the score is interpolated. Equal knots have no gap, and any divisor will do: such numbers are ties.
    share = (X - low) / xp.where(gap > 0, gap, xp.ones_like(gap))
    start, stop = xp.take(scores, below), xp.take(scores, above)
    between = start + xp.clip(share, 0.0, 1.0) * (stop - start)
    # Several knots at one value mean that many rows have it: its score is the middle of theirs.
    tied = 0.5 * (stop + xp.take(scores, xp.clip(right - 1, 0, last)))
    scaled = xp.where(right > left, tied, between)
    return xp.where(scaler.passthrough[None, :], X, scaled)


def _count(xp: Any, X: Any, flat: np.ndarray, base: np.ndarray, length: int, *, strict: bool) -> Any:
    """How many knots of its column lie below each number (or at it, unless `strict`), by halving."""
    # Bisection in a fixed number of steps, as a graph needs it: there are 2^k - 1 knots, infinities among them.
    place, step = base, (length + 1) // 2
    while step:
        probe = xp.take(flat, place + (step - 1))
        is_below = probe < X if strict else probe <= X
        place = place + xp.asarray(is_below, dtype=np.dtype("int64")) * step
        step //= 2
    return place - base
