"""`predict`, `decision_function` and `score` of fitted models, for classes and for numbers, on whatever rows are given:
arrays at once, Dask collections and Datasets lazily."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from dkl.data.dataset import Dataset
from dkl.data.frames import weights_of
from dkl.errors import columns_named
from dkl.linear.answers import ScoredRows, Scorer, chosen_labels, indexed, only_column, score_chunk
from dkl.methods.scoring import accuracy, r_squared
from dkl.methods.validation import column_names_of, lazy_answers, rows_like_those_of_fit
from dkl.solvers.losses import answered


class _Scored:
    """A linear model on features, `_scorer`; the attribute that `_fitted_by` names exists only after a whole fit."""

    _fitted_by: ClassVar[str]
    _scorer: Any
    n_features_in_: int

    def _scores(self, X: object, strict: bool = False, weight: object = None) -> Any:
        """(n, K) decision values, lazy for Dask collections and Datasets; of anything for rows of weight 0."""
        return score_rows(self, self._scorer, X, strict=strict, weight=weight)

    def predictor(self) -> Any:
        """The model as a light function of encoded rows in memory: one row in tens of microseconds.

        Returns
        -------
        dkl.export.predictor.Predictor
            With `predict`, `decision_function` and `predict_proba` of a row (d,) or of rows (n, d). It is a copy: later
            fits of the model do not change it.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        from dkl.export.predictor import Predictor

        model: Any = self
        return Predictor.of(model)


class ClassPredictions(ClassifierMixin, _Scored):
    """`predict`, `decision_function` and `score` for classifiers."""

    classes_: np.ndarray

    def predict(self, X: object, *, strict: bool = False) -> Any:
        """The label of each row.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Raise an error for raw rows that differ from the rows of `fit`, instead of predicting with a warning.

        Returns
        -------
        ndarray of shape (n,)
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series indexed by row id.
        """
        check_is_fitted(self, self._fitted_by)
        return with_row_id(self._labels(X, strict), X, "prediction")

    def decision_function(self, X: object, *, strict: bool = False) -> Any:
        """Decision values.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Raise an error for raw rows that differ from the rows of `fit`, instead of predicting with a warning.

        Returns
        -------
        ndarray of shape (n,) for two classes, else (n, K)
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame that is
            indexed by row id, and whose columns are the labels. Parquet has texts as names of columns: write numbered
            classes by ``.rename(columns=str).to_parquet(...)``.
        """
        check_is_fitted(self, self._fitted_by)
        # Two classes have one model, whose decision value is positive for the second class.
        scores = self._scores(X, strict)
        if scores.shape[1] == 1:
            return with_row_id(blockwise(only_column, scores, dtype=np.float64), X, "decision")
        return with_row_id(scores, X, self.classes_)

    def score(self, X: object, y: object = None, sample_weight: object = None) -> float:
        """Accuracy: the weighted share of rows whose label is predicted.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y : array of shape (n,) or None
        sample_weight : str, array of shape (n,), or None
            Weights, or the column of a data frame that has them. A Dataset has targets and weights of its own.
        """
        check_is_fitted(self, self._fitted_by)
        return accuracy(self._labels(X, weight=sample_weight), X, y, sample_weight)

    def _labels(self, X: object, strict: bool = False, weight: object = None) -> Any:
        """The predicted labels (n,), lazy for Dask collections and Datasets."""
        classes = self.classes_
        chosen = partial(chosen_labels, classes=classes)
        return blockwise(chosen, self._scores(X, strict, weight), dtype=classes.dtype)


class NumberPredictions(RegressorMixin, _Scored):
    """`predict` and `score` for regressors; `_has_one_target` says whether y had one dimension at `fit`."""

    _has_one_target: Callable[[], bool]

    def __sklearn_tags__(self) -> Tags:
        tags: Tags = super().__sklearn_tags__()
        # scikit-learn's checks fit several targets if this is set
        tags.target_tags.multi_output = True
        return tags

    @property
    def _link(self) -> str:
        """The link function from scores to predictions; see `dkl.solvers.losses.answered`."""
        return ""

    @property
    def _quantiles(self) -> tuple[float, ...]:
        """The quantiles that each target's outputs predict; empty if there is at most one."""
        return ()

    def predict(self, X: object, *, strict: bool = False) -> Any:
        """The target of each row, in its own units.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        strict : bool
            Raise an error for raw rows that differ from the rows of `fit`, instead of predicting with a warning.

        Returns
        -------
        ndarray of shape (n,), or (n, t) for several targets
            For a Dask collection a lazy dask.array.Array; for a Dataset a lazy Dask Series or DataFrame indexed by row
            id.
        """
        check_is_fitted(self, self._fitted_by)
        values = self._values(X, strict)
        return with_row_id(values, X, "prediction" if values.ndim == 1 else output_names(self, values.shape[1]))

    def score(self, X: object, y: object = None, sample_weight: object = None) -> float:
        """R^2, the share of the targets' variance that is predicted; its mean for several targets.

        Parameters
        ----------
        X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        y : array of shape (n,) or None
        sample_weight : str, array of shape (n,), or None
            Weights, or the column of a data frame that has them. A Dataset has targets and weights of its own.
        """
        check_is_fitted(self, self._fitted_by)
        return r_squared(self._values(X, weight=sample_weight), X, y, sample_weight)

    def _values(self, X: object, strict: bool = False, weight: object = None) -> Any:
        """The predicted numbers, (n,) if y had one dimension at `fit`; lazy for Dask collections and Datasets."""
        scores = self._scores(X, strict, weight)
        if self._link:
            answer = partial(answered, link=self._link, n_quantiles=len(self._quantiles))
            scores = blockwise(answer, scores, dtype=np.float64, columns=scores.shape[1])
        return blockwise(only_column, scores, dtype=np.float64) if self._has_one_target() else scores


def output_names(model: NumberPredictions, n_outputs: int) -> list[str]:
    """Column names of several outputs: the number of the target, the quantile, or both in this order."""
    quantiles = sorted(model._quantiles)
    if len(quantiles) in (0, n_outputs):
        return [f"prediction_{name:g}" for name in quantiles or range(n_outputs)]
    return [f"prediction_{t}_{q:g}" for t in range(n_outputs // len(quantiles)) for q in quantiles]


def score_rows(model: Any, scorer: Scorer, X: object, *, strict: bool = False, weight: object = None) -> Any:
    """Decision values of shape (n, K): an array for rows in memory, else a lazy dask.array.Array.

    Parameters
    ----------
    model : fitted KernelClassifier or KernelRegressor
        Its encoding turns raw frames into columns.
    scorer : Scorer
    X : array, scipy sparse matrix, data frame, Dask collection, Dataset or ScoredRows
    strict : bool
        Raise an error for raw rows that differ from the rows of `fit`.
    weight : str, array of shape (n,), or None
        Rows of weight 0 may hold anything: their decision values are those of rows of zeros. A name is a column of a
        data frame. A Dataset has none.

    Raises
    ------
    ValueError
        If the columns are not the columns of `fit`.
    """
    if isinstance(X, ScoredRows):
        return X.of(scorer)
    weight = weights_of(X, weight)
    if not isinstance(X, Dataset) and not dask.is_dask_collection(X):
        encoded = rows_like_those_of_fit(model, X, strict=strict, weight=weight)
        with columns_named(column_names_of(model)):
            return scorer(encoded)
    score = partial(score_chunk, scorer=scorer)
    return lazy_answers(model, X, score, scorer.n_outputs, np.float64, strict=strict, weight=weight)


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
        The dtype of the result.
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
    """Predictions of a Dataset as a lazy Dask Series or DataFrame indexed by row id; of other rows unchanged.

    Parameters
    ----------
    values : ndarray or dask.array.Array of shape (n,) or (n, K)
    X : object
        The argument of `predict`.
    columns : str or sequence
        The name of the series, or the names of the columns.
    """
    if not isinstance(X, Dataset):
        return values
    import dask.dataframe as dd

    rows = X.row_id.to_delayed().ravel()
    # predictions have the blocks of the row ids, so each pair makes one partition
    parts = values.to_delayed().reshape(len(rows), -1)[:, 0]
    frames = [dask.delayed(indexed)(part, row_id, columns) for part, row_id in zip(parts, rows, strict=True)]
    meta = indexed(np.empty((0, *values.shape[1:]), values.dtype), np.empty(0, np.int64), columns)
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_delayed(frames, meta=meta, verify_meta=False)
