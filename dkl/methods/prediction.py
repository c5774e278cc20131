"""From whatever rows `predict` is given to decision values: arrays at once, Dask collections and Datasets lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np
from scipy import sparse
from scipy.special import expit, softmax

from dkl.data.dataset import Dataset
from dkl.errors import located, refuse_non_finite
from dkl.features.feature_map import FeatureMap
from dkl.linear.scores import TOO_LARGE, cached_rows, decision_values
from dkl.methods.validation import (
    CHUNK,
    dask_rows,
    encoded_width,
    finite_rows,
    rows_like_those_of_fit,
    stored_rows,
    whole_rows,
)
from dkl.uncertainty.posterior import CoefficientPosterior

_FAR_OFF = (
    "its values are so large that their products with the frequencies of the model overflow. Compare its columns with "
    "those of fit, or leave the row out"
)


class EncodedModel(Protocol):
    """A fitted estimator that knows how many columns its rows have; `encoding_`, where it is, makes them of frames."""

    n_features_in_: int


@dataclass(frozen=True, eq=False)
class Scorer:
    """A fitted linear model on features: rows in, decision values out.

    Parameters
    ----------
    feature_map : FeatureMap
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    dtype : {"float32", "float64"}
    posterior : CoefficientPosterior or None
        Has its `lengths` come as a last column behind the decision values.
    """

    feature_map: FeatureMap
    coef: np.ndarray
    intercept: np.ndarray
    dtype: str
    posterior: CoefficientPosterior | None = None

    def __post_init__(self) -> None:
        refuse_non_finite(self.coef, "the coefficient of feature", TOO_LARGE)
        refuse_non_finite(self.intercept, "the intercept of output", TOO_LARGE)

    @property
    def n_outputs(self) -> int:
        """Columns of what comes out."""
        return len(self.coef) + (self.posterior is not None)

    def __call__(self, rows: np.ndarray | sparse.csr_array) -> np.ndarray:
        """Decision values of encoded rows: (n, K) float64, by all idle cores of this process."""
        return self.score(rows, together=True)

    def score(self, rows: np.ndarray | sparse.csr_array, *, together: bool = False) -> np.ndarray:
        """Decision values of encoded rows: (n, K) float64, in this thread alone, since tasks share the cores."""
        # SciPy's matrices multiply by `*`; arrays alone have the operators of NumPy.
        rows = sparse.csr_array(rows) if sparse.issparse(rows) else rows
        span = cached_rows(self.feature_map, self.dtype)
        scores = decision_values(
            rows,
            self.feature_map,
            self.coef,
            self.intercept,
            dtype=self.dtype,
            span=span,
            together=together,
            posterior=self.posterior,
            alike=True,
        )
        if not np.isfinite(scores).all():
            # The first row that overflows is named, by its number in what was given.
            row = int(np.argmin(np.isfinite(scores).all(axis=1)))
            refuse_non_finite(scores[row], f"row {row} cannot be predicted: its decision value", _FAR_OFF)
        return scores


def score_rows(model: EncodedModel, scorer: Scorer, X: object, *, strict: bool = False) -> Any:
    """Decision values of shape (n, K): an array for rows in memory, else a lazy dask.array.Array.

    Parameters
    ----------
    model : fitted KernelClassifier or KernelRegressor
        Its encoding takes raw frames to columns.
    scorer : Scorer
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset
    strict : bool
        Refuse raw rows that are unlike those of `fit`.

    Raises
    ------
    ValueError
        If the columns are not those of `fit`.
    """
    if not isinstance(X, Dataset) and not dask.is_dask_collection(X):
        return scorer(rows_like_those_of_fit(model, X, strict=strict))
    lazy = stored_rows(model, X) if isinstance(X, Dataset) else dask_rows(model, X, strict=strict)
    lazy = whole_rows(model, lazy, encoded_width(model))

    return da.map_blocks(
        _score_block,
        lazy,
        # one task holds the model, however many blocks there are
        scorer=dask.delayed(scorer, pure=True),
        dtype=np.float64,
        chunks=(lazy.chunks[0], (scorer.n_outputs,)),
        meta=np.empty((0, 0)),
    )


def _score_block(rows: np.ndarray | sparse.sparray, scorer: Scorer) -> np.ndarray:
    """Decision values of one chunk; a module-level function, since tasks name it on other processes."""
    rows = finite_rows(rows)
    with located(CHUNK):
        return scorer.score(rows)


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
    # The blocks of the predictions are those of the row ids, so that each pair makes one partition.
    parts = values.to_delayed().reshape(len(rows), -1)[:, 0]
    made = [dask.delayed(_indexed)(part, row_id, columns) for part, row_id in zip(parts, rows, strict=True)]
    meta = _indexed(np.empty((0, *values.shape[1:]), values.dtype), np.empty(0, np.int64), columns)
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(made, meta=meta, verify_meta=False)


def _indexed(values: np.ndarray, row_id: np.ndarray, columns: str | Sequence[Any] | np.ndarray) -> Any:
    """Predictions of one block as a pandas Series or DataFrame, indexed by row id."""
    import pandas as pd

    index = pd.Index(row_id, name="row_id")
    if isinstance(columns, str):
        return pd.Series(values, index=index, name=columns)
    return pd.DataFrame(values, index=index, columns=list(columns))


def chosen_codes(scores: np.ndarray) -> np.ndarray:
    """The code of the class that each row is given: (n,) int64."""
    return (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)


def probabilities(scores: np.ndarray, multiplier: float | None) -> np.ndarray:
    """Class probabilities of shape (n, K) whose argmax is the predicted class.

    Parameters
    ----------
    scores : ndarray of shape (n, 1) or (n, K)
    multiplier : float or None
        The calibrated inverse temperature; None for the log loss, whose scores are log odds already (one class against
        the rest, normalised, for K > 2).
    """
    if scores.shape[1] == 1:
        # expit of both signs, since 1 - p would lose the digits of small probabilities
        positive = expit(scores[:, 0] * (1.0 if multiplier is None else multiplier))
        shares = np.column_stack([expit(-scores[:, 0] * (1.0 if multiplier is None else multiplier)), positive])
    elif multiplier is None:
        # One model a class against the rest: their probabilities need not sum to 1, and are normalised.
        shares = expit(scores)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    else:
        shares = softmax(multiplier * scores, axis=1)
    # where rounding has made a tie, the predicted class gets the last bit more, so that argmax and `predict` agree
    codes = chosen_codes(scores)
    rows = np.flatnonzero(shares.argmax(axis=1) != codes)
    shares[rows, codes[rows]] = np.nextafter(shares[rows].max(axis=1), 2.0)
    return shares
