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
from dkl.protocols.block import Block


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

    def on(self, dataset: Dataset, weighs: bool | None, sample_weight: Any = None) -> Dataset:
        """The dataset with rates ``y / e`` in place of targets.

        Parameters
        ----------
        dataset : Dataset
        weighs : bool or None
            Whether a row of exposure e counts e times, the mean of all rows being 1; None for losses without exposure.
        sample_weight : array of shape (n,) or None
            As given to `fit`: rows of weight 0 are not in the dataset.

        Raises
        ------
        ValueError
            If the loss has no exposure, or a value is missing or not above 0.
        """
        if self.given is None:
            return dataset
        if weighs is None:
            raise ValueError(
                "exposure was given, and only the losses of counts and sizes have one: set loss='poisson' or "
                "loss='gamma', or leave exposure out"
            )
        source = dataset.source
        if isinstance(self.given, str):
            values = checked_exposure(exposure_values(dataset, self.given), dataset.n_rows)
        else:
            weight = dask.compute(sample_weight)[0]
            kept = None if weight is None else np.asarray(weight).ravel() != 0
            values = checked_exposure(self.given, dataset.n_rows if kept is None else len(kept))
            values = values if kept is None else values[kept]
        parts = np.split(values, np.cumsum(source.block_rows)[:-1])
        step = _Exposed(parts, self._factor(source, parts) if weighs else None)
        schema = replace(dataset.schema, has_weight=dataset.schema.has_weight or weighs)
        return dataset.with_rows(narrowed(source, step, source.block_rows, n_classes=None), schema)

    @staticmethod
    def _factor(source: Any, parts: list[np.ndarray]) -> float:
        """One over the weighted mean exposure: what exposures are multiplied by, so that the total weight stays."""
        weights = [block.weights for block in source.blocks_without_x()]
        total = sum(weight.sum() for weight in weights)
        return float(total / sum(weight @ part for weight, part in zip(weights, parts, strict=True)))


@dataclass(frozen=True, eq=False)
class _ExposedBlock:
    """The exposures of the rows of one block, which travel with its ticket."""

    values: np.ndarray
    factor: float | None
    needs: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()

    def note(self, block: Block, chosen: np.ndarray) -> Block:
        """The block with rates in place of targets, and their weights."""
        exposure = np.ones(len(block.row_id))
        exposure[chosen] = self.values
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
    """The exposures of all rows, one array a block, and what they are multiplied by where they weigh."""

    values: list[np.ndarray]
    factor: float | None

    @property
    def identity(self) -> str:
        digests = [dask.base.tokenize(part) for part in self.values]
        return f"exposure {dask.base.tokenize(digests)} {self.factor}"

    def block_identity(self, index: int) -> str:
        """The targets and weights of the block depend on its own exposures."""
        return f"exposure {dask.base.tokenize(self.values[index])} {self.factor}"

    def at(self, index: int) -> _ExposedBlock:
        return _ExposedBlock(self.values[index], self.factor)


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
    names = list(X.column_names or ())
    if given not in names:
        raise ValueError(_unknown(given, names))
    return feature_values(X.source, names.index(given))


def checked_exposure(values: Any, n_rows: int) -> np.ndarray:
    """Exposures in memory, (n_rows,) float64, all above 0.

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
    if numbers.shape != (n_rows,):
        raise ValueError(f"exposure has shape {numbers.shape}, and there are {n_rows} rows; pass one number a row")
    wrong = np.flatnonzero(~(np.isfinite(numbers) & (numbers > 0.0)))
    if len(wrong):
        raise ValueError(
            f"{named_place('exposure', (int(wrong[0]),), 0)} is {shown_value(numbers[wrong[0]])}: an exposure is a "
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
    given = exposure_values(X, given)
    if not isinstance(values, da.Array):
        exposure: Any = checked_exposure(given, len(values))
    elif hasattr(given, "to_dask_array"):
        # the chunks of a frame's column are those of its rows, whose numbers may be unknown
        exposure = da.map_blocks(_checked_block, given.to_dask_array(), dtype=np.float64, meta=np.empty(0))
    else:
        exposure = da.from_array(checked_exposure(given, values.shape[0]), chunks=(values.chunks[0],))
    return values * (exposure if values.ndim == 1 else exposure[:, None])


def _checked_block(values: np.ndarray) -> np.ndarray:
    """The exposures of one chunk; a module-level function, since tasks name it on other processes."""
    return checked_exposure(values, len(values))


def _unknown(name: str, columns: list[Any]) -> str:
    """What to say of a column that there is not."""
    return f"exposure={name!r} names no column of X; the columns are {spoken_names(columns)}"
