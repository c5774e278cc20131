"""Accuracy and R^2 with weights, of rows in memory or of Dask collections and Datasets block by block."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from dkl.data.dataset import Dataset
from dkl.data.soundness import check_unmasked


def accuracy(predicted: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """The weighted share of rows whose label is the predicted one.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,)
    X : object
        What was predicted from; a Dataset has its own y and weights.
    y, sample_weight : array of shape (n,) or None

    Raises
    ------
    ValueError
        If there is no y to compare with, or one beside a Dataset, or a Dataset has no rows.
    """
    y, weight = _targets(X, y, sample_weight)
    if not _is_lazy(predicted, y, weight):
        return float(accuracy_score(y, predicted, sample_weight=weight))
    predicted = _sized(predicted, X)
    right = predicted == _lazy(y, predicted)
    weight = 1.0 if weight is None else _lazy(weight, predicted)
    hits, total = dask.compute((right * weight).sum(), (weight * da.ones_like(right, dtype=float)).sum())
    return float(hits / total)


def r_squared(predicted: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """1 - (weighted squared error) / (weighted squared deviation of y); the mean over several targets.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,) or (n, t)
    X, y, sample_weight
        As of `accuracy`.
    """
    y, weight = _targets(X, y, sample_weight)
    if not _is_lazy(predicted, y, weight):
        return float(r2_score(y, predicted, sample_weight=weight))
    predicted = _sized(predicted, X)
    y = _lazy(y, predicted).astype(float)
    weight = da.ones_like(y) if weight is None else _lazy(weight, predicted)
    weight = weight[:, None] if weight.ndim < y.ndim else weight
    total, first = _summed(weight, da.ones_like(y), y)
    # the mean goes first: of targets far from 0, the squares hold nothing but it
    deviation, error = _summed(weight, (y - first / total) ** 2, (y - predicted) ** 2)
    # of a constant target all is explained or nothing, as in scikit-learn
    unexplained = np.where(deviation > 0.0, error / np.where(deviation > 0.0, deviation, 1.0), error > 0.0)
    return float(np.mean(1.0 - unexplained))


def _summed(weight: da.Array, *values: da.Array) -> list[np.ndarray]:
    """The weighted sums over the rows."""
    return [np.asarray(one) for one in dask.compute(*((weight * one).sum(axis=0) for one in values))]


def _targets(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    if not isinstance(X, Dataset):
        if y is None:
            raise ValueError("score requires y to be passed, but the target y is None")
        check_unmasked(y, "y")
        check_unmasked(sample_weight, "sample_weight")
        return y, sample_weight
    if y is not None or sample_weight is not None:
        raise ValueError("y or sample_weight was given beside a Dataset, whose own are used; pass the Dataset alone")
    if X.y is None:
        raise ValueError(f"{X!r} has no target to score against")
    if not X.n_rows:
        raise ValueError(f"{X!r} has no rows to score")
    return X.y, X.sample_weight


def _is_lazy(*values: Any) -> bool:
    return any(dask.is_dask_collection(value) for value in values)


def _lazy(values: Any, like: Any) -> da.Array:
    """The values as a Dask array of known sizes, in the chunks of `like` where they have none of their own."""
    if dask.is_dask_collection(values):
        return _sized(values.to_dask_array() if hasattr(values, "to_dask_array") else values, values)
    values = np.asarray(values)
    return da.from_array(values, chunks=(like.chunks[0], *values.shape[1:]) if isinstance(like, da.Array) else "auto")


def _sized(values: Any, rows: Any) -> Any:
    """A Dask array that knows how many rows its chunks have: as many as the parts of `rows`, which it was made from.

    What comes from a Dask frame does not know it, and cannot be compared with what does.
    """
    if not isinstance(values, da.Array) or not np.isnan(values.shape[0]):
        return values
    parts = rows.to_delayed()
    if isinstance(parts, np.ndarray):
        parts = parts.reshape(len(parts), -1)[:, 0]
    counts = dask.compute(*(dask.delayed(_n_rows)(part) for part in parts))
    return da.Array(values.dask, values.name, (counts, *values.chunks[1:]), meta=values._meta)


def _n_rows(part: Any) -> int:
    return int(part.shape[0])
