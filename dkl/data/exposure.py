"""What rows were counted over (years, customers, area): the rows of a fit as rates for one unit of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import dask
import dask.array as da
import numpy as np

from dkl.data.checks import check_order, did_you_mean, named_place, shown_value, spoken_names
from dkl.data.dataset import Dataset
from dkl.data.frames import is_frame
from dkl.data.other_frames import as_known_rows
from dkl.data.sources.in_memory import counted_of_given
from dkl.data.sources.rows import RowSource
from dkl.data.together.choosing import column_at, feature_values
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.rules import GivenColumn
from dkl.data.view import ColumnAlong, RowNote, RowStep, View
from dkl.protocols.block import Block

# The row column of exposures.
EXPOSURE = "given exposure"


class Exposure:
    """The exposure of the rows of a fit: values, or the name of a column, which is taken out: it is no feature.

    Parameters
    ----------
    beside : BesideFeatures
        The rows; a column is taken out of its X.
    given : str, array of shape (n,), or None

    Attributes
    ----------
    name : str or None
        What a fitted model keeps as `exposure_`: the name of the column, empty for values; None without exposure.

    Raises
    ------
    ValueError
        If no column has the name, or it holds no numbers.
    """

    def __init__(self, beside: BesideFeatures, given: Any) -> None:
        check_order(beside.X, given, "exposure")
        self._given = given
        self.name = given if isinstance(given, str) else None if given is None else ""
        if self.name and isinstance(beside.X, Dataset):
            beside.X = with_stored_exposure(beside.X, self.name)
            self._given = None
        elif self.name:
            self._given = exposure_of(beside.X, self.name)
            beside.leave_out(self.name)

    def beside(self, dataset: Dataset, has_exposure: bool, sample_weight: Any = None) -> Dataset:
        """The dataset with the exposures as a row column, where there are any.

        Parameters
        ----------
        dataset : Dataset
        has_exposure : bool
            Whether the loss has one.
        sample_weight : array of shape (n,) or None
            As given to `fit`: rows of weight 0 are not in the dataset.

        Raises
        ------
        ValueError
            If the loss has no exposure, or a value is missing or not above 0.
        """
        if self.name is not None and not has_exposure:
            raise ValueError(
                "exposure was given, and only the losses of counts and sizes have one: set loss='poisson' or "
                "loss='gamma', or leave exposure out"
            )
        return dataset if self._given is None else with_exposure(dataset, self._given, sample_weight)

    def remember(self, model: object) -> None:
        """Leave `exposure_` on a model where its fit has an exposure, and none where it has not."""
        vars(model).pop("exposure_", None)
        if self.name is not None:
            vars(model)["exposure_"] = self.name


class WeighsExposure(Protocol):
    """A model whose loss says whether exposure counts as weight."""

    @property
    def _exposure_weighs(self) -> bool: ...


@dataclass(frozen=True)
class _StoredExposure:
    """The exposures in one column of rows."""

    place: int

    def __call__(self, X: Any, row_id: np.ndarray) -> np.ndarray:
        return checked_exposure(column_at(X, self.place), len(row_id), row_id)


def with_stored_exposure(dataset: Dataset, name: str, *, stays: bool = False) -> Dataset:
    """The dataset with the exposures that one of its columns holds as a row column, read block by block with X.

    Parameters
    ----------
    dataset : Dataset
    name : str
    stays : bool
        Whether the column is a feature, too; it is taken out of X otherwise.

    Raises
    ------
    ValueError
        If no column has the name, or values of it were missing when the rows were written.
    """
    place, schema, encoding = exposure_place(dataset, name), dataset.schema, dataset.encoding
    source = View(dataset.source, ColumnAlong(EXPOSURE, _StoredExposure(place), None if stays else place))
    if stays:
        return dataset.with_rows(source, schema)
    if encoding is not None:
        (rule,) = (rule for rule in encoding.rules if name in rule.output_names)
        if rule.output_names != [name]:
            raise ValueError(
                f"exposure={name!r} is missing in {rule.missing:,} rows of {dataset.source.place}: every row needs its "
                "exposure, a number above 0. Leave these rows out, and write the rows again"
            )
        rules = tuple(other for other in encoding.rules if other is not rule)
        # later tables may hold it all the same
        encoding = replace(encoding, rules=rules, ignored=(*encoding.ignored, name))
    schema = replace(
        schema,
        n_columns=schema.n_columns - 1,
        column_names=[other for other in schema.column_names or () if other != name],
        encoding=encoding,
        passthrough=None if schema.passthrough is None else np.delete(schema.passthrough, place),
    )
    return dataset.with_rows(source, schema)


def exposure_of_fit(model: object, given: str | None = None) -> str | None:
    """The column of exposures that a fitted model asks further rows for; None where its fit had no exposure.

    Parameters
    ----------
    model : fitted regressor
    given : str or None
        Another name for it.

    Raises
    ------
    ValueError
        If the fit was given values, which no column of further rows is known to hold.
    """
    name: str | None = getattr(model, "exposure_", None) if given is None else given
    if name == "":
        raise ValueError(
            f"this {type(model).__name__} was fitted with exposures that were given as values: say what the rows were "
            "counted over, exposure=values, or the column of it, exposure='years'"
        )
    return name


def exposure_beside_fit(model: object, X: Any, given: Any = None) -> Any:
    """The exposures that targets of rows are compared under: those given, else the column that the fit had.

    Parameters
    ----------
    model : fitted regressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset
    given : str, array of shape (n,), or None

    Returns
    -------
    str, array of shape (n,), or None

    Raises
    ------
    ValueError
        If the fit had exposures, none are given, and the rows have no such column.
    """
    if given is not None or (name := exposure_of_fit(model)) is None:
        return given
    X = as_known_rows(X)
    columns = X.column_names if isinstance(X, Dataset) else X.columns if is_frame(X) else None
    if columns is None or name not in columns:
        raise ValueError(
            f"this {type(model).__name__} was fitted with exposure={name!r}, and X has no such column: give it, or one "
            "value a row, exposure=values"
        )
    return name


def with_exposure_of_fit(model: object, dataset: Dataset, given: str | None = None) -> Dataset:
    """The dataset with the exposures that a fitted model asks for as a row column, in place of the column of X.

    A dataset without the column stays as it is, and so does any for a model without exposure.

    Parameters
    ----------
    model : fitted estimator
    dataset : Dataset
    given : str or None
        The column, where it is not that of the fit; it has to be there.
    """
    name = getattr(model, "exposure_", None) if given is None else given
    if not name or (given is None and name not in (dataset.column_names or ())):
        return dataset
    return with_stored_exposure(dataset, name, stays=name in getattr(model, "feature_names_in_", ()))


def rows_with_exposure(model: Any, X: Any, y: object, sample_weight: object, exposure: Any) -> Dataset:
    """Further rows of a fitted machine, encoded as those of its fit, with the exposures as a row column.

    Parameters
    ----------
    model : fitted machine
    X, y, sample_weight
        As of its `fit`.
    exposure : str, array of shape (n,), or None
        A column of X, or the values; None leaves the rows without.
    """
    if isinstance(exposure, str) and isinstance(X, Dataset):
        # as a row column, which later steps keep
        rows: Dataset = model._rows(with_exposure_of_fit(model, X, exposure), y, sample_weight)
        return rows
    rows = model._rows(X, y, sample_weight)
    return rows if exposure is None else with_exposure(rows, exposure_of(X, exposure), sample_weight)


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
    counted = counted_of_given(source, sample_weight)
    if counted is None:
        values = checked_exposure(given, dataset.n_rows)
    else:
        places, n_given = counted
        values = checked_exposure(given, n_given, weight=np.bincount(places, minlength=n_given))[places]
    step = GivenColumn(EXPOSURE, np.split(values, np.cumsum(source.block_rows)[:-1]))
    return dataset.with_rows(View(source, step), dataset.schema)


def known_exposure(dataset: Dataset) -> dict[int, np.ndarray]:
    """The exposures of a dataset that has them as a row column, by the number of their block."""
    return {block.index: block.columns[EXPOSURE] for block in dataset.source.blocks_without_x((EXPOSURE,))}


def with_rates(model: WeighsExposure, dataset: Dataset) -> Dataset:
    """The rows of a fit with rates ``y / e`` in place of targets; as they are for a model without exposure.

    Where the loss counts exposure, a row of exposure e counts e times, the mean of all rows being 1.

    Parameters
    ----------
    model : regressor
        That has `exposure_` where the dataset has exposures as a row column.
    dataset : Dataset
    """
    if not hasattr(model, "exposure_"):
        return dataset
    # one read of the exposures, of which nothing but a digest a block is kept
    source, digests, weight, exposed = dataset.source, {}, 0.0, 0.0
    for block in source.blocks_without_x((EXPOSURE,)):
        exposure = block.columns[EXPOSURE]
        digests[block.index] = dask.base.tokenize(exposure)
        weight, exposed = weight + float(block.weights.sum()), exposed + float(block.weights @ exposure)
    # one over the weighted mean exposure, so that the total weight stays
    return _as_rates(dataset, _Exposed(digests, weight / exposed if model._exposure_weighs else None))


def with_planned_rates(dataset: Dataset, *, weighs: bool) -> Dataset:
    """The rows of `with_rates` for a plan, which reads no exposure: each counts as one.

    Parameters
    ----------
    dataset : Dataset
        With exposures as a row column.
    weighs : bool
        Whether exposure counts as weight.
    """
    return _as_rates(dataset, _Exposed({}, 1.0 if weighs else None))


def _as_rates(dataset: Dataset, step: _Exposed) -> Dataset:
    schema = replace(dataset.schema, has_weight=dataset.schema.has_weight or step.factor is not None)
    return dataset.with_rows(View(dataset.source, step), schema)


def further_rates(model: Any, X: Any, y: object, sample_weight: object, exposure: Any) -> Dataset:
    """Rows that a fitted machine goes on with, as `with_rates` has those of its fit; parameters of `partial_fit`.

    Raises
    ------
    ValueError
        If exposures are given and the fit had none, or it had some and there are none.
    """
    if exposure is not None and not hasattr(model, "exposure_"):
        raise ValueError(
            f"exposure was given, and this {type(model).__name__} was fitted without: give fit the exposure of its "
            "rows, or leave it out here"
        )
    return with_rates(model, rows_with_exposure(model, X, y, sample_weight, exposure_beside_fit(model, X, exposure)))


@dataclass(frozen=True)
class _ExposedBlock(RowNote):
    """Rates in place of the targets of one block, from its column of exposures."""

    factor: float | None
    needs = (EXPOSURE,)

    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with rates in place of targets, and their weights."""
        # rows that are not chosen may have no exposure
        exposure = np.ones(len(block.row_id))
        exposure[chosen] = block.columns[EXPOSURE][chosen]
        y = None
        if block.y is not None:
            y = np.asarray(block.y, dtype=np.float64)
            y = y / exposure.reshape((-1,) + (1,) * (y.ndim - 1))
        if self.factor is None:
            return replace(block, y=y)
        weight = np.ones(len(exposure)) if block.weight is None else block.weight
        return replace(block, y=y, weight=weight * exposure * self.factor)


@dataclass(frozen=True, eq=False)
class _Exposed(RowStep):
    """Rates in place of targets, whose exposures have these digests, and what weights are multiplied by."""

    digests: dict[int, str]
    factor: float | None

    @property
    def identity(self) -> str:
        return f"exposure {dask.base.tokenize(self.digests)} {self.factor}"

    def block_identity(self, index: int) -> str:
        """The targets and weights of the block depend on its own exposures."""
        return f"exposure {self.digests.get(index)} {self.factor}"

    def counts(self, before: RowSource) -> None:
        """Weights may be others, and are counted anew."""

    def at(self, index: int) -> _ExposedBlock:
        return _ExposedBlock(self.factor)


def exposure_of(X: Any, given: Any) -> Any:
    """The values that were given, or those of the column of a data frame that has the name.

    Raises
    ------
    ValueError
        If X is no data frame, or has no such column.
    """
    if not isinstance(given, str):
        return given
    X = as_known_rows(X)
    if not is_frame(X):
        raise ValueError(f"exposure={given!r} names a column, and X is no data frame: pass one value a row")
    if given not in X.columns:
        raise ValueError(_unknown(given, list(X.columns)))
    return X[given]


def exposure_values(X: Any, given: Any) -> Any:
    """`exposure_of` rows that may be a Dataset, too, whose column is then read."""
    if not (isinstance(given, str) and isinstance(X, Dataset)):
        return exposure_of(X, given)
    return feature_values(X.source, exposure_place(X, given))


def exposure_place(dataset: Dataset, name: str) -> int:
    """Which column of a dataset has the name.

    Raises
    ------
    ValueError
        If none has it.
    """
    names = list(dataset.column_names or ())
    if name not in names:
        raise ValueError(_unknown(name, names))
    return names.index(name)


def checked_exposure(
    values: Any, n_rows: int | None = None, row_id: np.ndarray | None = None, *, weight: Any = None
) -> np.ndarray:
    """Exposures in memory, (n_rows,) float64, all above 0; without `n_rows` as many as there are.

    Those of rows of weight 0, whatever they are, become 1.

    Raises
    ------
    ValueError
        If there are more or fewer of them than rows, or one is missing, infinite or not above 0; its row is named.
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
        # rows of a block are known by their ids
        row = int(wrong[0] if row_id is None else row_id[wrong[0]])
        raise ValueError(
            f"{named_place('exposure', (row,), 0)} is {shown_value(numbers[wrong[0]])}: an exposure is a "
            "number above 0, such as years or customers. A row that was exposed to nothing says nothing: leave it out"
        )
    return numbers


def multiplied(values: Any, X: Any, given: Any) -> Any:
    """Predictions for one unit as those of the rows' exposures.

    Parameters
    ----------
    values : ndarray or dask.array.Array of shape (n,) or (n, t)
    X : rows as of `predict`
    given : str or array of shape (n,)
        Exposures, or the name of a column of a data frame, or of a Dataset.
    """
    exposure = exposure_beside(values, X, given)
    return values * (exposure if values.ndim == 1 else exposure[:, None])


def exposure_beside(values: Any, X: Any, given: Any) -> Any:
    """The exposures (n,) of rows in the chunks of their predictions; `multiplied` says what the parameters are."""
    given = exposure_values(X, given)
    if not isinstance(values, da.Array):
        return checked_exposure(given, len(values))
    if hasattr(given, "to_dask_array"):
        # the chunks of a frame's column are those of its rows, whose numbers may be unknown
        return da.map_blocks(checked_exposure, given.to_dask_array(), dtype=np.float64, meta=np.empty(0))
    return da.from_array(checked_exposure(given, values.shape[0]), chunks=(values.chunks[0],))


def _unknown(name: str, columns: list[Any]) -> str:
    """What to say of a column that there is not."""
    return (
        f"exposure={name!r} names no column of X{did_you_mean(name, columns)}; the columns are {spoken_names(columns)}"
    )
