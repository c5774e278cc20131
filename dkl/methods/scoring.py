"""Weighted accuracy, R^2 and deviance of predictions: at once for rows in memory, by blocks for Dask and Datasets."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np
from sklearn.metrics import accuracy_score, d2_pinball_score, r2_score

from dkl.data.checks import check_order, check_total_weight, checked_weight, no_rows
from dkl.data.dataset import Dataset
from dkl.data.exposure import checked_exposure
from dkl.data.frames import RawParts, weights_of
from dkl.data.labels import as_targets
from dkl.data.sources.lazy import targets_in_chunks, weights_in_chunks
from dkl.linear.answers import check_log_targets, checked_chunk_weight, comparable, comparable_chunk, log_losses
from dkl.solvers.losses import LOG_LINK

Values = np.ndarray | da.Array


def accuracy(predicted: Values, X: object, y: object, sample_weight: object) -> float:
    """The weighted share of rows whose label is the predicted one.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,)
    X : object
        The rows of the predictions; a Dataset has its own y and weights.
    y : array of shape (n,) or None
    sample_weight : str, array of shape (n,), or None
        A name is a column of a data frame.

    Raises
    ------
    ValueError
        If there is no y, or one in addition to a Dataset, if the total weight is 0, or if labels or weights are
        missing, or of another number or kind than the predictions.
    """
    values, targets, weight = _checked_predictions(predicted, X, y, sample_weight)
    if not isinstance(values, da.Array):
        return float(accuracy_score(targets, values, sample_weight=weight))
    right = values == targets
    weight = da.ones_like(right, dtype=float) if weight is None else weight
    hits, total = dask.compute((right * weight).sum(), weight.sum())
    check_total_weight(total)
    return float(hits / total)


def r_squared(predicted: Values, X: object, y: object, sample_weight: object) -> float:
    """1 - (weighted squared error) / (weighted squared deviation of y); the mean over several targets.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,) or (n, t)
    X, y, sample_weight
        As in `accuracy`.
    """
    values, targets, weight = _checked_predictions(predicted, X, y, sample_weight)
    if not isinstance(values, da.Array):
        return float(r2_score(targets, values, sample_weight=weight))
    weight = da.ones_like(targets) if weight is None else weight
    weight = weight[:, None] if weight.ndim < targets.ndim else weight
    total, first = _weighted_sums(weight, da.ones_like(targets), targets)
    check_total_weight(total)
    # the mean is subtracted first: for targets far from 0 the squares would contain little else
    deviation, error = _weighted_sums(weight, (targets - first / total) ** 2, (targets - values) ** 2)
    # the R^2 of a constant target is 1 or 0, as in scikit-learn
    unexplained = np.where(deviation > 0.0, error / np.where(deviation > 0.0, deviation, 1.0), error > 0.0)
    return float(np.mean(1.0 - unexplained))


def mean_loss(
    predicted: Values, X: object, y: object, sample_weight: object, *, loss: str, exposure: Any = None
) -> tuple[float, float]:
    """The weighted mean loss of predicted means, and the loss of the best constant.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,) or (n, t)
        Means for one unit of exposure.
    X, y, sample_weight
        As in `accuracy`.
    loss : {"poisson", "gamma"}
        The loss is half the deviance.
    exposure : array of shape (n,) or None
        If given, the target of a row is the rate y / e, and for counts its weight is multiplied by e.

    Raises
    ------
    ValueError
        If a target is outside the domain of the loss, or y is missing.
    """
    values, targets, weight = _checked_predictions(predicted, X, y, sample_weight)
    lazy = isinstance(values, da.Array)
    if weight is None:
        weight = (da if lazy else np).ones_like(targets if targets.ndim == 1 else targets[:, 0])
    if exposure is not None:
        exposures = checked_exposure(exposure, values.shape[0], weight=weight)
        exposures = da.from_array(exposures, chunks=(values.chunks[0],)) if lazy else exposures
        targets = targets / (exposures if targets.ndim == 1 else exposures[:, None])
        weight = weight * exposures if LOG_LINK[loss].counts_exposure else weight
    weight = weight[:, None] if weight.ndim < targets.ndim else weight
    total, sums = dask.compute((weight + 0.0 * targets).sum(axis=0), (weight * targets).sum(axis=0))
    check_total_weight(total)
    lost = partial(log_losses, loss=loss)
    losses = [
        (weight * (da.map_blocks(lost, targets, mean, dtype=np.float64) if lazy else lost(targets, mean))).sum()
        for mean in (values, sums / total)
    ]
    own, constant = dask.compute(*losses)
    return float(own / np.sum(total)), float(constant / np.sum(total))


def explained(own: float, constant: float) -> float:
    """D^2, the share of the best constant's loss that a model removes, as R^2 does for squares."""
    if constant > 0.0:
        return 1.0 - own / constant
    return 1.0 if own <= 0.0 else 0.0


def quantile_score(
    predicted: Values, X: object, y: object, sample_weight: object, *, quantiles: Sequence[float]
) -> float:
    """1 - (pinball loss of predicted quantiles) / (pinball loss of the best constants), averaged over all quantiles.

    The best constants are quantiles of all targets, which are loaded into memory.

    Parameters
    ----------
    predicted : ndarray or dask.array.Array of shape (n,) or (n, t)
    X, y, sample_weight
        As in `accuracy`.
    quantiles : sequence of float
        The quantiles of each target, whose columns are consecutive.
    """
    # targets are checked against the first quantile of each
    first = predicted if predicted.ndim == 1 else predicted[:, :: len(quantiles)]
    first = first[:, 0] if first.shape[1:] == (1,) else first
    _, targets, weight = _checked_predictions(first, X, y, sample_weight)
    values, targets, weight = dask.compute(predicted, targets, weight)
    targets = np.repeat(np.reshape(targets, (len(targets), -1)), len(quantiles), axis=1)
    columns = np.reshape(values, targets.shape)
    levels = np.resize(quantiles, targets.shape[1])
    scores = [
        d2_pinball_score(targets[:, k], columns[:, k], sample_weight=weight, alpha=quantile)
        for k, quantile in enumerate(levels)
    ]
    return float(np.mean(scores))


def check_log_rows(dataset: Dataset, loss: str, *, of_fit: bool = True) -> None:
    """Raise ValueError for targets outside the domain of a loss with mean exp(f); reads the targets only.

    Targets of a fit must not be all 0, since their mean has no logarithm.
    """
    first_row, largest = 0, np.zeros(())
    for block in dataset.source.blocks_without_x():
        y = np.asarray(block.y, dtype=np.float64)
        check_log_targets(y, loss, first_row, f" of {dataset.source.place}")
        first_row, largest = first_row + len(y), np.maximum(largest, y.max(axis=0, initial=0.0))
    if of_fit and not np.all(largest > 0.0):
        raise ValueError(
            "y holds nothing but 0: loss='poisson' needs a count above 0, as the mean must have a logarithm"
        )


def _weighted_sums(weight: da.Array, *values: da.Array) -> list[np.ndarray]:
    """The weighted sums of each of the values over the rows."""
    return [np.asarray(total) for total in dask.compute(*((weight * part).sum(axis=0) for part in values))]


def _checked_predictions(predicted: Values, X: object, y: object, sample_weight: object) -> tuple[Any, Any, Any]:
    """Predictions, targets and weights, checked: arrays if all are in memory, else Dask arrays of equal chunks."""
    targets: Any = y
    weight: Any = weights_of(X, sample_weight)
    if isinstance(X, Dataset):
        if y is not None or sample_weight is not None:
            raise ValueError(
                "y or sample_weight was given beside a Dataset, whose own are used; pass the Dataset alone"
            )
        if X.y is None:
            raise ValueError(f"{X!r} has no target to score against")
        if not X.n_rows:
            raise ValueError(f"{X!r} has no rows to score")
        targets, weight = X.y, X.sample_weight
    elif y is not None:
        check_order(X, y, "y")
    else:
        raise ValueError("score requires y to be passed, but the target y is None")
    values: Any = predicted
    if isinstance(values, da.Array) and np.isnan(values.shape[0]):
        # Chunks of predictions for a Dask frame have unknown lengths, and could not be aligned with known ones: the
        # lengths are those of the frame's partitions.
        chunks = (tuple(RawParts.of(X).lengths), *values.chunks[1:])
        values = da.Array(values.dask, values.name, chunks, meta=values._meta)
    if not len(values):
        raise ValueError(f"there are no rows to score: {no_rows(values.shape)}")
    if not any(dask.is_dask_collection(part) for part in (values, targets, weight)):
        weight = checked_weight(weight, len(values))
        if weight is not None:
            check_total_weight(weight)
        return values, comparable(as_targets(targets, len(values), weight=weight), values), weight
    if not isinstance(values, da.Array):
        values = da.from_array(values, chunks=-1)
    weight = weights_in_chunks(weight, values.chunks[0])
    targets = targets_in_chunks(targets, values.chunks[0], weight)
    model = np.empty((0, *values.shape[1:]), values.dtype)
    beside = [] if weight is None else [weight.reshape(-1, *(1,) * (targets.ndim - 1))]
    meta = np.empty((0,) * targets.ndim, model.dtype)
    targets = da.map_blocks(comparable_chunk, targets, *beside, model=model, dtype=model.dtype, meta=meta)
    if weight is not None:
        weight = da.map_blocks(checked_chunk_weight, weight, dtype=np.float64, meta=np.empty(0))
    return values, targets, weight
