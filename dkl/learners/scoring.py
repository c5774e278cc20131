"""Accuracy and R^2 with weights, of rows in memory or of Dask collections and Datasets block by block."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from dkl.data.dataset import Dataset


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
        If there is no y to compare with, or one beside a Dataset.
    """
    y, weight = _targets(X, y, sample_weight)
    if not _is_lazy(predicted, y, weight):
        return float(accuracy_score(y, predicted, sample_weight=weight))
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
    y = _lazy(y, predicted).astype(float)
    weight = da.ones_like(y) if weight is None else _lazy(weight, predicted)
    weight = weight[:, None] if weight.ndim < y.ndim else weight
    total, first, second, error = dask.compute(
        *((weight * values).sum(axis=0) for values in (da.ones_like(y), y, y**2, (y - predicted) ** 2))
    )
    return float(np.mean(1.0 - error / (second - first**2 / total)))


def _targets(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    if not isinstance(X, Dataset):
        if y is None:
            raise ValueError("score requires y to be passed, but the target y is None")
        return y, sample_weight
    if y is not None or sample_weight is not None:
        raise ValueError("y or sample_weight was given beside a Dataset, whose own are used; pass the Dataset alone")
    if X.y is None:
        raise ValueError(f"{X!r} has no target to score against")
    return X.y, X.sample_weight


def _is_lazy(*values: Any) -> bool:
    return any(dask.is_dask_collection(value) for value in values)


def _lazy(values: Any, like: Any) -> da.Array:
    """The values as a Dask array in the chunks of `like` (those of a frame have no known sizes)."""
    if hasattr(values, "to_dask_array"):
        return values.to_dask_array()
    if isinstance(values, da.Array):
        return values
    values = np.asarray(values)
    return da.from_array(values, chunks=(like.chunks[0], *values.shape[1:]) if isinstance(like, da.Array) else "auto")
