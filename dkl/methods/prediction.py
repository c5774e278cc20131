"""From whatever rows `predict` is given to decision values: arrays at once, Dask collections and Datasets lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np

from dkl.data.dataset import Dataset
from dkl.linear.answers import ScoredRows, Scorer, indexed, score_chunk
from dkl.methods.validation import dask_rows, encoded_width, rows_like_those_of_fit, stored_rows, whole_rows


class EncodedModel(Protocol):
    """A fitted estimator that knows how many columns its rows have; `encoding_`, where it is, makes them of frames."""

    n_features_in_: int


def score_rows(model: EncodedModel, scorer: Scorer, X: object, *, strict: bool = False) -> Any:
    """Decision values of shape (n, K): an array for rows in memory, else a lazy dask.array.Array.

    Parameters
    ----------
    model : fitted KernelClassifier or KernelRegressor
        Its encoding takes raw frames to columns.
    scorer : Scorer
    X : array, scipy sparse matrix, data frame, Dask collection, Dataset or ScoredRows
    strict : bool
        Raise an error for raw rows that differ from the rows of `fit`.

    Raises
    ------
    ValueError
        If the columns are not the columns of `fit`.
    """
    if isinstance(X, ScoredRows):
        return X.of(scorer)
    if not isinstance(X, Dataset) and not dask.is_dask_collection(X):
        return scorer(rows_like_those_of_fit(model, X, strict=strict))
    lazy = stored_rows(model, X) if isinstance(X, Dataset) else dask_rows(model, X, strict=strict)
    lazy = whole_rows(model, lazy, encoded_width(model))

    return da.map_blocks(
        score_chunk,
        lazy,
        # one task holds the model, however many blocks there are
        scorer=dask.delayed(scorer, pure=True),
        dtype=np.float64,
        chunks=(lazy.chunks[0], (scorer.n_outputs,)),
        meta=np.empty((0, 0)),
    )


def blockwise(
    function: Callable[[np.ndarray], np.ndarray],
    scores: np.ndarray | da.Array,
    *,
    dtype: type | np.dtype,
    columns: int | None = None,
) -> Any:
    """`function(scores)` at once for an array, block by block for a Dask array.

    Parameters
    ----------
    function : callable
        (n, K) array to (n,) or (n, columns).
    scores : ndarray or dask.array.Array
    dtype : dtype
        Of what comes out.
    columns : int or None
        None for a vector.
    """
    if not isinstance(scores, da.Array):
        return function(scores)
    if columns is None:
        return da.map_blocks(function, scores, dtype=dtype, drop_axis=1, meta=np.empty(0, dtype))
    chunks = (scores.chunks[0], (columns,))
    return da.map_blocks(function, scores, dtype=dtype, chunks=chunks, meta=np.empty((0, 0), dtype))


def with_row_id(values: Any, X: object, columns: str | Sequence[Any] | np.ndarray) -> Any:
    """Predictions of a Dataset as a lazy Dask Series or DataFrame indexed by row id; others as they are.

    Parameters
    ----------
    values : ndarray or dask.array.Array of shape (n,) or (n, K)
    X : object
        What `predict` was given.
    columns : str or sequence
        The name of the series, or the names of the columns.
    """
    if not isinstance(X, Dataset):
        return values
    import dask.dataframe as dd

    rows = X.row_id.to_delayed().ravel()
    # Predictions have the blocks of the row ids, so that each pair makes one partition.
    parts = values.to_delayed().reshape(len(rows), -1)[:, 0]
    made = [dask.delayed(indexed)(part, row_id, columns) for part, row_id in zip(parts, rows, strict=True)]
    meta = indexed(np.empty((0, *values.shape[1:]), values.dtype), np.empty(0, np.int64), columns)
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(made, meta=meta, verify_meta=False)
