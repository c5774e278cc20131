"""What rows were counted over (years, customers, area): the rows of a fit as rates for one unit of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from dkl.data.checks import named_place, shown_value, spoken_names
from dkl.data.dataset import Dataset
from dkl.data.frames import is_frame
from dkl.data.other_frames import as_known_rows
from dkl.data.sources.selected import narrowed
from dkl.data.together.choosing import feature_values
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.rules import GivenColumn
from dkl.protocols.block import Block

# The row column of exposures.
_COLUMN = "given exposure"


class Exposure:
    """The exposure of the rows of a fit: values, or the name of a column.

    A column of a data frame is taken out of the rows, since it is no feature. A column of a Dataset is read and stays.

    Parameters
    ----------
    beside : BesideFeatures
        The rows; a column is taken out of its X.
    given : str, array of shape (n,), or None

    Raises
    ------
    ValueError
        If no column has the name.
    """

    def __init__(self, beside: BesideFeatures, given: Any) -> None:
        self.given = given
        if isinstance(given, str) and not isinstance(beside.X, Dataset):
            self.given = exposure_of(beside.X, given)
            beside.leave_out(given)

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
        if self.given is None:
            return dataset
        if not has_exposure:
            raise ValueError(
                "exposure was given, and only the losses of counts and sizes have one: set loss='poisson' or "
                "loss='gamma', or leave exposure out"
            )
        return with_exposure(dataset, self.given, sample_weight)


def with_exposure(dataset: Dataset, given: Any, sample_weight: Any = None) -> Dataset:
    """The dataset with the exposures of its rows as a row column.

    Parameters
    ----------
    dataset : Dataset
    given : array of shape (n,), or str
        Values, or the name of a column of the dataset.
    sample_weight : array of shape (n,) or None
        Rows of weight 0 are not in the dataset, and their exposures are left out.
    """
    source = dataset.source
    if isinstance(given, str):
        values = checked_exposure(exposure_values(dataset, given), dataset.n_rows)
    else:
        weight = dask.compute(sample_weight)[0]
        kept = None if weight is None else np.asarray(weight).ravel() != 0
        values = checked_exposure(given, dataset.n_rows if kept is None else len(kept))
        values = values if kept is None else values[kept]
    step = GivenColumn(_COLUMN, np.split(values, np.cumsum(source.block_rows)[:-1]))
    noted = narrowed(source, step, source.block_rows, n_classes=dataset.schema.n_classes, counts=source.counts)
    return dataset.with_rows(noted, dataset.schema)


def known_exposure(dataset: Dataset) -> dict[int, np.ndarray]:
    """The exposures of a dataset that `with_exposure` has made, by the number of their block."""
    return {block.index: block.columns[_COLUMN] for block in dataset.source.blocks_without_x((_COLUMN,))}


def with_rates(dataset: Dataset, weighs: bool) -> Dataset:
    """A dataset that `with_exposure` has made with rates ``y / e`` in place of targets.

    Parameters
    ----------
    dataset : Dataset
    weighs : bool
        Whether a row of exposure e counts e times, the mean of all rows being 1.
    """
    source, factor = dataset.source, None
    if weighs:
        # one over the weighted mean exposure, so that the total weight stays
        blocks = [(block.weights, block.columns[_COLUMN]) for block in source.blocks_without_x((_COLUMN,))]
        factor = float(sum(weight.sum() for weight, _ in blocks) / sum(weight @ part for weight, part in blocks))
    digests = {index: dask.base.tokenize(part) for index, part in known_exposure(dataset).items()}
    step, schema = _Exposed(digests, factor), replace(dataset.schema, has_weight=dataset.schema.has_weight or weighs)
    return dataset.with_rows(narrowed(source, step, source.block_rows, n_classes=None), schema)


@dataclass(frozen=True)
class _ExposedBlock:
    """Rates in place of the targets of one block, from its column of exposures."""

    factor: float | None
    needs: tuple[str, ...] = (_COLUMN,)
    provides: tuple[str, ...] = ()

    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with rates in place of targets, and their weights."""
        # rows that are not chosen may have no exposure
        exposure = np.ones(len(block.row_id))
        exposure[chosen] = block.columns[_COLUMN][chosen]
        y = None
        if block.y is not None:
            y = np.asarray(block.y, dtype=np.float64)
            y = y / exposure.reshape((-1,) + (1,) * (y.ndim - 1))
        if self.factor is None:
            return replace(block, y=y)
        weight = np.ones(len(exposure)) if block.weight is None else block.weight
        return replace(block, y=y, weight=weight * exposure * self.factor)


@dataclass(frozen=True, eq=False)
class _Exposed:
    """Rates in place of targets, whose exposures have these digests, and what weights are multiplied by."""

    digests: dict[int, str]
    factor: float | None

    @property
    def identity(self) -> str:
        return f"exposure {dask.base.tokenize(self.digests)} {self.factor}"

    def block_identity(self, index: int) -> str:
        """The targets and weights of the block depend on its own exposures."""
        return f"exposure {self.digests.get(index)} {self.factor}"

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


def checked_exposure(values: Any, n_rows: int | None = None, row_id: np.ndarray | None = None) -> np.ndarray:
    """Exposures in memory, (n_rows,) float64, all above 0; without `n_rows` as many as there are.

    Raises
    ------
    ValueError
        If there are more or fewer of them than rows, or one is missing, infinite or not above 0; its row is named.
    """
    (values,) = dask.compute(values)
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("exposure holds values that are no numbers; pass one number above 0 a row") from error
    n_rows = len(values) if n_rows is None else n_rows
    if numbers.shape != (n_rows,):
        raise ValueError(f"exposure has shape {numbers.shape}, and there are {n_rows} rows; pass one number a row")
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
    return f"exposure={name!r} names no column of X; the columns are {spoken_names(columns)}"
