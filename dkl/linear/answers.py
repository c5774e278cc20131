"""Predictions and scores of one chunk of rows: the functions that run in tasks, on workers.

A worker loads this module for decision values, labels, probabilities and losses. It imports neither scikit-learn, nor
pandas, nor Arrow: these hold 100 to 200 MB of a worker, where a chunk of rows holds a few.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from scipy import sparse
from scipy.special import expit, softmax

from dkl.data.checks import as_rows, check_rows, checked_weight, named_place, shown_value
from dkl.data.labels import as_targets, check_targets, numeric_targets, written_targets
from dkl.data.store.blocking import block_rows
from dkl.errors import located, refuse_non_finite
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import row_mapper
from dkl.kernels.threads import one_blas_thread
from dkl.linear.scores import TOO_LARGE, cached_rows, decision_values, scoring_cost
from dkl.process import give_back_memory
from dkl.protocols.block import Block
from dkl.protocols.records import Cost
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# Bytes of the encoded rows of a slice: with the 32 MiB of blocks, workers that answer rows of texts held 15 MiB more.
_SLICE_BYTES = 2 << 20
_FAR_OFF = (
    "its values are so large that their products with the frequencies of the model overflow. Compare its columns with "
    "those of fit, or leave the row out"
)


def _chunk(first_row: int) -> str:
    """The place of a row in errors; tasks know its number only within their chunk, or within a slice of it."""
    return f"a chunk of X, from whose {f'row {first_row:,}' if first_row else 'first row'} the row is counted"


def finite_rows(rows: Any) -> Any:
    """The checked rows of one chunk, sparse ones as csr_array.

    Raises
    ------
    ValueError
        For NaN, infinity or a masked entry, for which a model would otherwise predict as for any row.
    """
    rows = as_rows(rows)
    check_rows(rows)
    return rows


def encoded_chunk(encoding: Any, rows: Any, *, strict: bool, weight: Any = None) -> Any:
    """The raw rows of one chunk or partition as encoded columns; each encoding warns of the same difference once."""
    # loads Arrow, as the encoding has done
    from dkl.data.frames import encoded_by

    with located(_chunk(0)):
        return encoded_by(encoding, rows, strict=strict, weight=weight, model=encoding)


def answer_chunk(function: Any, rows: Any) -> np.ndarray:
    """`function` of the encoded rows of one chunk."""
    answers: np.ndarray = function(rows, 0)
    return answers


def answer_raw(function: Any, encoding: Any, rows: Any, *, strict: bool | None, weight: Any = None) -> np.ndarray:
    """`function` of the raw rows of one chunk or partition, of which a slice at a time is encoded.

    Parameters
    ----------
    function : callable
        (encoded rows of shape (n, d), number of the first row) to an array of n rows, each from its own row alone.
    encoding : TableEncoding
    rows : frame or ndarray
    strict : bool or None
        As of `dkl.data.frames.encoded_by`.
    weight : ndarray of shape (n,) or None
    """
    # loads Arrow, as the encoding has done
    from dkl.data.frames import encoded_slices

    n_rows, dtype = len(rows), encoding.dtype
    most = block_rows(encoding.n_columns * dtype.itemsize, n_rows, _SLICE_BYTES)
    with located(_chunk(0)):
        slices = encoded_slices(encoding, rows, dtype, most, strict=strict, weight=weight, model=encoding)
        answers = np.empty(0)
        for start, encoded in slices:
            found = function(encoded, start)
            if not start:
                answers = np.empty((n_rows, *found.shape[1:]), found.dtype)
            answers[start : start + len(found)] = found
    return answers


@dataclass(frozen=True, eq=False)
class Scorer:
    """A fitted linear model on features, as a function from rows to decision values.

    Parameters
    ----------
    feature_map : FeatureMap
    coef : ndarray of shape (K, m)
    intercept : ndarray of shape (K,)
    dtype : {"float32", "float64"}
    posterior : CoefficientPosterior or None
        If given, its `lengths` are the last column of the decision values.
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
        """Columns of the decision values."""
        return len(self.coef) + (self.posterior is not None)

    def __call__(self, rows: np.ndarray | sparse.csr_array) -> np.ndarray:
        """Decision values of encoded rows, (n, K) float64, on all cores of this process."""
        return self.score(rows, all_cores=True)

    def cost(self, rows: int, columns: int) -> Cost:
        """The cost of scoring a block, for a pass."""
        return scoring_cost(
            rows, columns, feature_map=self.feature_map, n_models=self.n_outputs, share=1.0, dtype=self.dtype
        )

    def score(self, rows: np.ndarray | sparse.csr_array, *, all_cores: bool = False) -> np.ndarray:
        """Decision values of encoded rows, (n, K) float64; in this thread alone unless `all_cores` is set."""
        # SciPy's sparse matrices multiply by `*`; its sparse arrays have NumPy's operators.
        rows = sparse.csr_array(rows) if sparse.issparse(rows) else rows
        span = cached_rows(self.feature_map, self.dtype)
        scores = decision_values(
            rows,
            self.feature_map,
            self.coef,
            self.intercept,
            dtype=self.dtype,
            span=span,
            all_cores=all_cores,
            posterior=self.posterior,
            alike=True,
        )
        if not np.isfinite(scores).all():
            # the error names the first row that overflows
            row = int(np.argmin(np.isfinite(scores).all(axis=1)))
            refuse_non_finite(scores[row], f"row {row} cannot be predicted: its decision value", _FAR_OFF)
        return scores


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """Rows whose decision values are already computed, so that a model predicts them without mapping.

    Parameters
    ----------
    scores : ndarray of shape (n, K) or (n, K + 1)
        Decision values by a `Scorer`; with a posterior the last column has the lengths.
    """

    scores: np.ndarray

    def of(self, scorer: Scorer) -> np.ndarray:
        """The decision values that the scorer would compute."""
        return self.scores[:, : scorer.n_outputs]


def score_block(block: Block, operands: Mapping[str, Any]) -> dict[str, Any]:
    """The decision values of a block, with the ids, targets, weights and requested row columns of its rows."""
    return {
        "scored": ScoredRows(operands["scorer"].score(block.X)),
        "row_id": block.row_id,
        "y": block.y,
        "weight": block.weights,
        "columns": {name: block.columns[name] for name in operands["columns"]},
    }


def score_chunk(rows: np.ndarray | sparse.sparray, first_row: int, *, scorer: Scorer) -> np.ndarray:
    """Decision values of one chunk, or of its rows from `first_row` on."""
    with located(_chunk(first_row)):
        return scorer.score(finite_rows(rows))


def map_chunk(rows: Any, first_row: int, *, feature_map: FeatureMap, precision: str) -> np.ndarray:
    """The features of one chunk, or of its rows from `first_row` on."""
    with one_blas_thread(), located(_chunk(first_row)):
        rows = finite_rows(rows)
        return row_mapper(rows, feature_map, precision, alike=True)(slice(0, rows.shape[0]))


def chosen_codes(scores: np.ndarray) -> np.ndarray:
    """The code of each row's predicted class: (n,) int64."""
    return (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)


def chosen_labels(scores: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """The predicted label of each row: (n,)."""
    return classes[chosen_codes(scores)]


def probabilities(scores: np.ndarray, multiplier: float | None) -> np.ndarray:
    """Class probabilities of shape (n, K) whose argmax is the predicted class.

    Parameters
    ----------
    scores : ndarray of shape (n, 1) or (n, K)
    multiplier : float or None
        The calibrated inverse temperature. None for the log loss, whose scores are log odds already (for K > 2 of one
        class against the rest, whose probabilities are normalised).
    """
    if scores.shape[1] == 1:
        # expit of both signs, since 1 - p would lose the digits of small probabilities
        positive = expit(scores[:, 0] * (1.0 if multiplier is None else multiplier))
        shares = np.column_stack([expit(-scores[:, 0] * (1.0 if multiplier is None else multiplier)), positive])
    elif multiplier is None:
        # the probabilities of one class against the rest need not sum to 1, so they are normalised
        shares = expit(scores)
        shares /= np.maximum(shares.sum(axis=1, keepdims=True), np.finfo(float).tiny)
    else:
        shares = softmax(multiplier * scores, axis=1)
    # where rounding makes a tie, the predicted class is raised by one bit, so that argmax agrees with `predict`
    codes = chosen_codes(scores)
    rows = np.flatnonzero(shares.argmax(axis=1) != codes)
    shares[rows, codes[rows]] = np.nextafter(shares[rows].max(axis=1), 2.0)
    return shares


def only_column(scores: np.ndarray) -> np.ndarray:
    """The single column of decision values, as a vector."""
    return scores[:, 0]


def means_of(scores: np.ndarray) -> np.ndarray:
    """The predictions (n, t), without the lengths in the last column of (n, t + 1)."""
    return scores[:, :-1]


def deviations_of(posterior: CoefficientPosterior, scores: np.ndarray) -> np.ndarray:
    """The standard deviations (n, t) that a posterior computes from the lengths in the last column."""
    return posterior.deviations(scores[:, -1])


def shaped(function: Any, vector: bool, scores: np.ndarray) -> np.ndarray:
    """`function(scores)`, an array of shape (n, t); with `vector` its only column, of shape (n,)."""
    values = function(scores)
    return only_column(values) if vector else values


def indexed(values: np.ndarray, row_id: np.ndarray, columns: str | Sequence[Any] | np.ndarray) -> Any:
    """Predictions of one block as a pandas Series or DataFrame, indexed by row id."""
    if "pandas" not in sys.modules:
        # pandas loads Arrow, 100 MB of a worker's memory; most of it is code that never runs, and is returned
        give_back_memory()
        import_module("pandas")
        give_back_memory()
    import pandas as pd

    index = pd.Index(row_id, name="row_id")
    if isinstance(columns, str):
        return pd.Series(values, index=index, name=columns)
    return pd.DataFrame(values, index=index, columns=list(columns))


def comparable(y: np.ndarray, predicted: np.ndarray, first_row: int = 0) -> np.ndarray:
    """Targets of the kind and shape of the predictions, so that the two can be compared."""
    if y.dtype.kind == "U" and y.ndim == 1 and predicted.dtype.kind == "f":
        y = written_targets(y, is_asked=True)
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


def comparable_chunk(
    y: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    model: np.ndarray,
    block_info: Mapping[int, Mapping[str, Any]] | None = None,
) -> np.ndarray:
    """`comparable` for one chunk; `model` is an empty array with the shape and dtype of the predictions.

    Targets of rows of weight 0 may be anything. If no row of the chunk counts, they become ones, which are valid
    targets of every loss.
    """
    first_row = _first_row(block_info)
    counted = None if weight is None else weight.ravel() != 0.0
    if counted is not None and not counted.any():
        return np.ones(y.shape, model.dtype)
    return comparable(as_targets(y, first_row=first_row, weight=counted), model, first_row)


def checked_chunk_weight(weight: np.ndarray, block_info: Mapping[int, Mapping[str, Any]] | None = None) -> np.ndarray:
    """The checked weights of one chunk; an error names the row by its number in the whole array."""
    return np.asarray(checked_weight(weight, len(weight), first_row=_first_row(block_info)))


def _first_row(block_info: Mapping[int, Mapping[str, Any]] | None) -> int:
    """The number of a chunk's first row in the whole array, from `dask.array.map_blocks`; 0 without it."""
    return 0 if block_info is None else int(block_info[0]["array-location"][0][0])


def check_log_targets(y: np.ndarray, loss: str, first_row: int = 0, place: str = "") -> None:
    """Raise ValueError for a target outside the domain of a loss with mean exp(f), naming its row.

    Parameters
    ----------
    y : ndarray of shape (n,) or (n, t)
    loss : {"poisson", "gamma"}
    first_row : int
        The number of the first row in the whole array.
    place : str
        The source of the rows, for the error.
    """
    wrong = np.argwhere(LOG_LINK[loss].unknown(y))
    if not len(wrong):
        return
    where = named_place("y", tuple(int(part) for part in wrong[0]), first_row) + place
    value = shown_value(y[tuple(wrong[0])])
    if loss == "poisson":
        raise ValueError(
            f"{where} is {value}: loss='poisson' is of counts and rates, which are at least 0; correct the target, or "
            "use loss='squared_error'"
        )
    raise ValueError(
        f"{where} is {value}: loss='gamma' is of sizes, which are above 0; leave rows of 0 out (whether there is one "
        "at all is another model), or use loss='poisson' or 'squared_error'"
    )


def log_losses(y: np.ndarray, mean: np.ndarray, *, loss: str) -> np.ndarray:
    """The loss of each row at its predicted mean; raises ValueError for a target outside the domain of the loss."""
    check_log_targets(y, loss)
    return np.asarray(LOG_LINK[loss].value(y, np.log(np.broadcast_to(mean, y.shape))))
