"""Exposures, over which the targets of rows were counted (years, customers, area): targets become rates per unit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from dkl.data.checks import check_order, named_place, shown_value
from dkl.data.dataset import Dataset
from dkl.data.fewer_columns import without_columns
from dkl.data.frames import column_named, is_frame, no_column_message, weights_of
from dkl.data.other_frames import as_pandas_rows
from dkl.data.sources.in_memory import positions_among_given
from dkl.data.sources.rows import RowSource
from dkl.data.together.choosing import column_at, feature_values
from dkl.data.together.rows import GroupsAndTimes
from dkl.data.together.rules import GivenColumn
from dkl.data.view import BlockStep, ColumnAlong, Parts, RowStep, View
from dkl.protocols.block import Block

# Name of the row column of exposures in blocks.
EXPOSURE = "given exposure"


class Exposure:
    """The exposure of the rows of a fit: values, or the name of a column, which is then not a feature.

    Parameters
    ----------
    beside : GroupsAndTimes
        The rows; the column is removed from its X.
    given : str, array of shape (n,), or None
        Name of a column of the rows, or values.

    Attributes
    ----------
    name : str or None
        The attribute `exposure_` of a fitted model: name of the column, empty for values, None without exposure.

    Raises
    ------
    ValueError
        If no column has the name, or it holds no numbers.
    """

    def __init__(self, beside: GroupsAndTimes, given: Any) -> None:
        check_order(beside.X, given, "exposure")
        self._given = given
        self.name = given if isinstance(given, str) else None if given is None else ""
        if self.name and isinstance(beside.X, Dataset):
            beside.X = with_stored_exposure(beside.X, self.name)
            self._given = None
        elif self.name:
            self._given = exposure_values(beside.X, self.name)
            beside.leave_out(self.name)

    def with_exposures(self, dataset: Dataset, has_exposure: bool, sample_weight: Any = None) -> Dataset:
        """The dataset with given exposures as a row column; the dataset itself if it holds them, or there are none.

        Parameters
        ----------
        dataset : Dataset
        has_exposure : bool
            Whether the loss supports exposures.
        sample_weight : array of shape (n,) or None
            As given to `fit`: rows of weight 0 are not in the dataset.

        Raises
        ------
        ValueError
            If the loss does not support them, or a value is missing or not positive.
        """
        if self.name is not None and not has_exposure:
            raise ValueError(
                "exposure was given, and only the losses of counts and sizes have one: set loss='poisson' or "
                "loss='gamma', or leave exposure out"
            )
        return dataset if self._given is None else with_exposure(dataset, self._given, sample_weight)

    def remember(self, model: object) -> None:
        """Set `exposure_` on a model whose fit has an exposure; remove it from others."""
        vars(model).pop("exposure_", None)
        if self.name is not None:
            vars(model)["exposure_"] = self.name


@dataclass(frozen=True)
class _StoredExposure:
    """Reads the exposures of rows from one column; its repr is a part of fingerprints."""

    place: int

    def __call__(self, X: Any, row_id: np.ndarray) -> np.ndarray:
        return checked_exposure(column_at(X, self.place), len(row_id), row_id)


def with_stored_exposure(dataset: Dataset, name: str, *, stays: bool = False) -> Dataset:
    """The dataset with exposures from one of its columns as a row column, read block by block with X.

    Parameters
    ----------
    dataset : Dataset
    name : str
    stays : bool
        Whether the column is also a feature; otherwise it is removed from X.

    Raises
    ------
    ValueError
        If no column has the name, or it had missing values when the rows were written.
    """
    step = ColumnAlong(EXPOSURE, _StoredExposure(exposure_place(dataset, name)))
    exposed = dataset.with_rows(View(dataset.source, step), dataset.schema)
    if stays:
        return exposed
    for rule in getattr(dataset.encoding, "rules", ()):
        if name in rule.output_names and rule.output_names != [name]:
            raise ValueError(
                f"exposure={name!r} is missing in {rule.missing:,} rows of {dataset.source.place}: every row needs its "
                "exposure, a number above 0. Leave these rows out, and write the rows again"
            )
    return without_columns(exposed, [name])


def exposure_of_fit(model: object, given: str | None = None) -> str | None:
    """The column of exposures that a fitted model needs in further rows; None if its fit had no exposure.

    Parameters
    ----------
    model : fitted regressor
    given : str or None
        Another name for it.

    Raises
    ------
    ValueError
        If the fit had values instead of a column, so that the column is unknown.
    """
    name: str | None = getattr(model, "exposure_", None) if given is None else given
    if name == "":
        raise ValueError(
            f"this {type(model).__name__} was fitted with exposures that were given as values: say what the rows were "
            "counted over, exposure=values, or the column of it, exposure='years'"
        )
    return name


def exposure_for_scores(model: object, X: Any, given: Any = None) -> Any:
    """The exposures for a comparison of predictions with targets: `given`, else the column of the fit.

    Parameters
    ----------
    model : fitted regressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset
    given : str, array of shape (n,), or None

    Returns
    -------
    str, array of shape (n,), or None
        None if the fit had no exposures and none are given.

    Raises
    ------
    ValueError
        If `given` is None and the fit had exposures: for rows without their column, and after a fit that was given
        values, which names no column.
    """
    if given is not None or (name := exposure_of_fit(model)) is None:
        return given
    X = as_pandas_rows(X)
    columns = X.column_names if isinstance(X, Dataset) else X.columns if is_frame(X) else None
    if columns is None or name not in columns:
        raise ValueError(
            f"this {type(model).__name__} was fitted with exposure={name!r}, and X has no such column: give it, or one "
            "value a row, exposure=values"
        )
    return name


def with_exposure_of_fit(model: object, dataset: Dataset, given: str | None = None) -> Dataset:
    """The dataset with the exposures that a fitted model needs as a row column, instead of a column of X.

    A dataset without the column, or for a model without exposure, is returned unchanged.

    Parameters
    ----------
    model : fitted estimator
    dataset : Dataset
    given : str or None
        Another column than that of the fit, which must exist.
    """
    of_fit: str = getattr(model, "exposure_", None) or ""
    name = of_fit if given is None else given
    if not name or (given is None and name not in (dataset.column_names or ())):
        return dataset
    exposed = with_stored_exposure(dataset, name, stays=name in getattr(model, "feature_names_in_", ()))
    # the column of the fit is no feature, and would take the place of the given one where rows are checked
    return exposed if name == of_fit else without_columns(exposed, [of_fit])


def rows_with_exposure(model: Any, X: Any, y: object, sample_weight: object, exposure: Any) -> Dataset:
    """Further rows for a fitted machine, encoded like those of its fit, with the exposures as a row column.

    Parameters
    ----------
    model : fitted machine
    X, y, sample_weight
        As of its `fit`.
    exposure : str, array of shape (n,), or None
        A column of X, or values; None for rows without exposures.
    """
    if isinstance(exposure, str) and isinstance(X, Dataset):
        # before the rows are encoded, which would remove the column
        rows: Dataset = model._rows(with_exposure_of_fit(model, X, exposure), y, sample_weight)
        return rows
    sample_weight = weights_of(X, sample_weight)
    rows = model._rows(X, y, sample_weight)
    return rows if exposure is None else with_exposure(rows, exposure_values(X, exposure), sample_weight)


def with_exposure(dataset: Dataset, given: Any, sample_weight: Any = None) -> Dataset:
    """The dataset with the exposures of its rows as a row column.

    Parameters
    ----------
    dataset : Dataset
    given : array of shape (n,)
    sample_weight : array of shape (n,) or None
        Rows of weight 0 are not in the dataset, and their exposures are left out.
    """
    source = dataset.source
    counted = positions_among_given(source, sample_weight)
    if counted is None:
        values = checked_exposure(given, dataset.n_rows)
    else:
        places, n_given = counted
        values = checked_exposure(given, n_given, weight=np.bincount(places, minlength=n_given))[places]
    step = GivenColumn(EXPOSURE, np.split(values, np.cumsum(source.block_rows)[:-1]))
    return dataset.with_rows(View(source, step), dataset.schema)


def exposures_by_block(dataset: Dataset) -> dict[int, np.ndarray]:
    """The exposures of a dataset that has them as a row column, for each block number."""
    return {block.index: block.columns[EXPOSURE] for block in dataset.source.blocks_without_x((EXPOSURE,))}


def with_rates(model: Any, dataset: Dataset) -> Dataset:
    """The rows of a fit with rates ``y / e`` as targets, where e is the exposure.

    For a loss that weighs exposures, the weights are multiplied by e over its weighted mean, so that the total weight
    stays.

    Parameters
    ----------
    model : regressor
        The dataset is returned unchanged if it has no `exposure_`.
    dataset : Dataset
        With exposures as a row column if the model has `exposure_`.
    """
    if not hasattr(model, "exposure_"):
        return dataset
    # reads the exposures once, and keeps only a digest of each block
    source, digests, weight, exposed = dataset.source, {}, 0.0, 0.0
    for block in source.blocks_without_x((EXPOSURE,)):
        exposure = block.columns[EXPOSURE]
        digests[block.index] = dask.base.tokenize(exposure)
        weight, exposed = weight + float(block.weights.sum()), exposed + float(block.weights @ exposure)
    # weight / exposed is 1 / (weighted mean exposure)
    return _as_rates(dataset, _RatesStep(digests, weight / exposed if model._exposure_weighs else None))


def with_planned_rates(dataset: Dataset, *, weighs: bool) -> Dataset:
    """The rows of `with_rates` for a plan, which does not read exposures and assumes 1.

    Parameters
    ----------
    dataset : Dataset
        With exposures as a row column.
    weighs : bool
        Whether exposures multiply weights.
    """
    return _as_rates(dataset, _RatesStep({}, 1.0 if weighs else None))


def _as_rates(dataset: Dataset, step: _RatesStep) -> Dataset:
    schema = replace(dataset.schema, has_weight=dataset.schema.has_weight or step.factor is not None)
    return dataset.with_rows(View(dataset.source, step), schema)


def further_rates(model: Any, X: Any, y: object, sample_weight: object, exposure: Any) -> Dataset:
    """The rows of a call of `partial_fit` with rates as targets (`with_rates`).

    Raises
    ------
    ValueError
        If exposures are given and the fit had none, or the fit had some and none are given.
    """
    if exposure is not None and not hasattr(model, "exposure_"):
        raise ValueError(
            f"exposure was given, and this {type(model).__name__} was fitted without: give fit the exposure of its "
            "rows, or leave it out here"
        )
    return with_rates(model, rows_with_exposure(model, X, y, sample_weight, exposure_for_scores(model, X, exposure)))


@dataclass(frozen=True, eq=False)
class _RatesStep(RowStep, BlockStep):
    """The step that replaces targets by rates, using the row column of exposures.

    Parameters
    ----------
    digests : dict of int to str
        A digest of the exposures of each block, for identities.
    factor : float or None
        Weights are multiplied by exposure times this factor; None leaves them unchanged.
    """

    digests: dict[int, str]
    factor: float | None
    needs = (EXPOSURE,)

    @property
    def identity(self) -> str:
        return f"exposure {dask.base.tokenize(self.digests)} {self.factor}"

    def block_identity(self, index: int) -> str:
        """Depends only on the exposures of this block."""
        return f"exposure {self.digests.get(index)} {self.factor}"

    def counts(self, before: RowSource) -> None:
        """None: weights may change, so that counts must be computed again."""

    def applied(self, block: Block, chosen: np.ndarray, parts: Parts) -> tuple[Block, np.ndarray]:
        # rows that are not chosen may have invalid exposures
        exposure = np.ones(len(block.row_id))
        exposure[chosen] = block.columns[EXPOSURE][chosen]
        y = None
        if block.y is not None:
            y = np.asarray(block.y, dtype=np.float64)
            y = y / exposure.reshape((-1,) + (1,) * (y.ndim - 1))
        if self.factor is None:
            return replace(block, y=y), chosen
        weight = np.ones(len(exposure)) if block.weight is None else block.weight
        return replace(block, y=y, weight=weight * exposure * self.factor), chosen


def exposure_values(X: Any, given: Any) -> Any:
    """The exposures of rows: `given`, unless it is the name of a column of `X`, whose values are returned then.

    A column of a data frame is returned as it is. That of a Dataset of n rows is read from its store, (n,).

    Raises
    ------
    ValueError
        If `given` is a name and X has no such column.
    """
    if not isinstance(given, str):
        return given
    if isinstance(X, Dataset):
        return feature_values(X.source, exposure_place(X, given))
    return column_named(as_pandas_rows(X), given, "exposure")


def exposure_place(dataset: Dataset, name: str) -> int:
    """The position of the column with this name; ValueError if there is none."""
    names = list(dataset.column_names or ())
    if name not in names:
        raise ValueError(no_column_message(name, "exposure", names))
    return names.index(name)


def checked_exposure(
    values: Any, n_rows: int | None = None, row_id: np.ndarray | None = None, *, weight: Any = None
) -> np.ndarray:
    """Exposures in memory as (n_rows,) float64, all positive; `n_rows` is None for any number.

    Exposures of rows of weight 0 may have any value, and become 1.

    Raises
    ------
    ValueError
        If there are not `n_rows` of them, or one is missing, infinite or not positive, with its row.
    """
    values, weight = dask.compute(values, weight)
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("exposure holds values that are no numbers; pass one number above 0 a row") from error
    n_rows = len(values) if n_rows is None else n_rows
    if numbers.shape != (n_rows,):
        raise ValueError(f"exposure has shape {numbers.shape}, and there are {n_rows} rows; pass one number a row")
    if weight is not None:
        numbers = np.where(np.asarray(weight) == 0.0, 1.0, numbers)
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0.0)))
    if len(wrong):
        # rows of a block are identified by their ids
        row = int(wrong[0] if row_id is None else row_id[wrong[0]])
        raise ValueError(
            f"{named_place('exposure', (row,), 0)} is {shown_value(numbers[wrong[0]])}: an exposure is a "
            "number above 0, such as years or customers. A row that was exposed to nothing says nothing: leave it out"
        )
    return numbers


def exposures_of(values: Any, X: Any, given: Any) -> Any:
    """The exposures of rows in the chunks of their predictions, (n,) or, for predictions of two dimensions, (n, 1).

    Parameters
    ----------
    values : ndarray or dask.array.Array of shape (n,) or (n, t)
        The predictions.
    X : rows as of `predict`
    given : str or array of shape (n,)
        Exposures, or the name of a column of a data frame, or of a Dataset.
    """
    given = exposure_values(X, given)
    if not isinstance(values, da.Array):
        exposure: Any = checked_exposure(given, len(values))
    elif hasattr(given, "to_dask_array"):
        # a frame's column has the chunks of its rows, whose sizes may be unknown
        exposure = da.map_blocks(checked_exposure, given.to_dask_array(), dtype=np.float64, meta=np.empty(0))
    else:
        exposure = da.from_array(checked_exposure(given, values.shape[0]), chunks=(values.chunks[0],))
    return exposure if values.ndim == 1 else exposure[:, None]
