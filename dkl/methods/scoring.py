"""Accuracy and R^2 with weights, of rows in memory or of Dask collections and Datasets block by block."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
from sklearn.metrics import accuracy_score, r2_score

from dkl.data.checks import check_total_weight, checked_weight, named_place, no_rows, shown_value
from dkl.data.dataset import Dataset
from dkl.data.labels import as_targets, check_targets, numeric_targets
from dkl.data.sources.lazy import targets_beside, weights_beside


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
        If there is no y to compare with, or one beside a Dataset, if there are no rows or none counts, or if labels or
        weights are missing, of another number, or of another kind.
    """
    predicted, y, weight = _beside(predicted, X, y, sample_weight)
    if not isinstance(predicted, da.Array):
        return float(accuracy_score(y, predicted, sample_weight=weight))
    right = predicted == y
    weight = da.ones_like(right, dtype=float) if weight is None else weight
    hits, total = dask.compute((right * weight).sum(), weight.sum())
    check_total_weight(total)
    return float(hits / total)


def r_squared(predicted: Any, X: Any, y: Any, sample_weight: Any) -> float:
    """1 - (weighted squared error) / (weighted squared deviation of y); the mean over several targets.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,) or (n, t)
    X, y, sample_weight
        As of `accuracy`.
    """
    predicted, y, weight = _beside(predicted, X, y, sample_weight)
    if not isinstance(predicted, da.Array):
        return float(r2_score(y, predicted, sample_weight=weight))
    weight = da.ones_like(y) if weight is None else weight
    weight = weight[:, None] if weight.ndim < y.ndim else weight
    total, first = _summed(weight, da.ones_like(y), y)
    check_total_weight(total)
    # the mean goes first: of targets far from 0, the squares hold nothing but it
    deviation, error = _summed(weight, (y - first / total) ** 2, (y - predicted) ** 2)
    # of a constant target all is explained or nothing, as in scikit-learn
    unexplained = np.where(deviation > 0.0, error / np.where(deviation > 0.0, deviation, 1.0), error > 0.0)
    return float(np.mean(1.0 - unexplained))


def _summed(weight: da.Array, *values: da.Array) -> list[np.ndarray]:
    """The weighted sums over the rows."""
    return [np.asarray(one) for one in dask.compute(*((weight * one).sum(axis=0) for one in values))]


def _beside(predicted: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Any]:
    """Predictions, targets and weights, all checked: arrays where all of them are, else Dask arrays of equal chunks."""
    y, weight = _targets(X, y, sample_weight)
    predicted = _sized(predicted, X)
    if not len(predicted):
        raise ValueError(f"there are no rows to score: {no_rows(predicted.shape)}")
    if not _is_lazy(predicted, y, weight):
        weight = checked_weight(weight, len(predicted))
        if weight is not None:
            check_total_weight(weight)
        return predicted, _comparable(as_targets(y, len(predicted)), predicted), weight
    if not isinstance(predicted, da.Array):
        predicted = da.from_array(predicted, chunks=-1)
    y, weight = targets_beside(y, predicted.chunks[0]), weights_beside(weight, predicted.chunks[0])
    model = np.empty((0, *predicted.shape[1:]), predicted.dtype)
    y = da.map_blocks(_comparable_block, y, model=model, dtype=model.dtype, meta=np.empty((0,) * y.ndim, model.dtype))
    if weight is not None:
        weight = da.map_blocks(_weight_block, weight, dtype=np.float64, meta=np.empty(0))
    return predicted, y, weight


def _comparable(y: np.ndarray, predicted: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Targets that predictions can be compared with: labels of their kind, or as many numbers a row."""
    check_targets(y, first_row=first_row)
    if y.shape[1:] != predicted.shape[1:]:
        raise ValueError(
            f"y has shape {y.shape}, and the model predicts {predicted.shape[1:] or 'one value'} a row; score it with "
            "targets of that shape"
        )
    if (y.dtype.kind == "U") != (predicted.dtype.kind == "U"):
        holds, finds = ("texts", "numbers")[:: 1 if y.dtype.kind == "U" else -1]
        raise ValueError(
            f"{named_place('y', (0,), first_row)} is {shown_value(y.flat[0])}: y holds {holds}, and the model predicts "
            f"{finds}; score it with targets like those of fit"
        )
    return numeric_targets(y, first_row=first_row) if predicted.dtype.kind == "f" else y


def _comparable_block(y: np.ndarray, model: np.ndarray, block_info: Any = None) -> np.ndarray:
    first_row = int(block_info[0]["array-location"][0][0])
    return _comparable(as_targets(y, first_row=first_row), model, first_row)


def _weight_block(weight: np.ndarray, block_info: Any = None) -> np.ndarray:
    first_row = int(block_info[0]["array-location"][0][0])
    return np.asarray(checked_weight(weight, len(weight), first_row=first_row))


def _targets(X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    if not isinstance(X, Dataset):
        if y is None:
            raise ValueError("score requires y to be passed, but the target y is None")
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
