"""Target, weight, split, group and time columns: what they hold, found in one read, and how it is stored."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.columns.deciding import Marks, alike_names, few_zeros, open_mark, several_ways
from dkl.data.columns.numbers import NumberForm
from dkl.data.columns.seen import Reading, TextStatistics
from dkl.data.ingest.columns import column_kind, numbers, texts, why_unusable
from dkl.data.missing_targets import REMEDY
from dkl.data.schema import HeldBy, RowColumn, Task
from dkl.data.together.codes import group_codes, time_codes
from dkl.errors import RowError, users_level

AUTO_CLASSES = 1_000
ROWS_A_CLASS = 20
"""More distinct whole numbers than `AUTO_CLASSES`, or fewer rows for each of them than this, may be quantities."""
MAX_CLASSES = 65_536
MAX_SPLITS = 254


@dataclass(frozen=True, eq=False)
class Target:
    """How a target column is held: codes of sorted labels, or float64 numbers.

    Parameters
    ----------
    task : {"classification", "regression"}
    classes : ndarray of shape (K,) or None
        Sorted labels: texts, booleans or int64 (whole floats count as integers).
    form : str
        How texts write the numbers, see `dkl.data.columns.numbers.NumberForm`; empty without marks of their own.
    """

    task: Task
    classes: np.ndarray | None
    form: str = ""

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """int64 codes (positions in `classes`) or float64 values of shape (n,); of rows of weight 0 any code."""
        if self.classes is None:
            return written_numbers(column, self.form) if column_kind(column.type) == "category" else numbers(column)
        if self.classes.dtype.kind == "U":
            codes = pc.index_in(texts(column), value_set=pa.array(self.classes.tolist(), pa.string()))
            return pc.fill_null(codes, 0).to_numpy().astype(np.int64)
        codes = np.searchsorted(self.classes.astype(np.float64), numbers(column)).astype(np.int64)
        return np.minimum(codes, len(self.classes) - 1)


def written_numbers(column: pa.ChunkedArray, form: str) -> np.ndarray:
    """The numbers that texts write in a form, (n,); NaN where one writes none."""
    return (NumberForm.of(form) if form else NumberForm()).numbers(texts(column).combine_chunks())


class TargetSummary:
    """What was seen of a target column, piece by piece.

    Parameters
    ----------
    name : str
        The column, for messages.
    marks : Marks
        How texts write numbers.
    is_named : bool
        Its values are names, whatever they look like.
    """

    def __init__(self, name: str, marks: Marks | None = None, *, is_named: bool = False) -> None:
        self.name = name
        self._marks, self._is_named = marks or Marks(), is_named
        self._texts = TextStatistics(0)
        self.rows = 0
        self.kind = "empty"
        self._labels: Counter[Any] = Counter()
        self._fractional: float | None = None
        self._largest = 0.0

    def add(self, column: pa.ChunkedArray, counted: np.ndarray | None = None) -> None:
        """Take the next rows.

        Parameters
        ----------
        column : ChunkedArray
        counted : ndarray of shape (n,) or None
            Which rows have a weight above 0; the others' labels are no classes.

        Raises
        ------
        ValueError
            A label is missing or infinite; its row is named.
        TypeError
            The column holds dates, lists or bytes.
        """
        kind = column_kind(column.type)
        if kind is None:
            raise TypeError(f"target: {why_unusable(self.name, column.type)}")
        if kind in ("date", "time", "duration"):
            raise TypeError(f"target '{self.name}' holds dates or times ({column.type}): {self._instead_of_dates}")
        # Types are those of the whole input, so that this is a type that changes from file to file.
        if self.kind not in ("empty", kind):
            raise TypeError(f"target '{self.name}' holds {self.kind} values up to row {self.rows}, then {kind} values")
        if kind == "category":
            values = texts(column)
            self._check_there(np.asarray(values.is_null().to_numpy()))
            if not self._is_named:
                self._texts = self._texts.merge(TextStatistics.of(values, pc.value_counts(values), self.rows))
            # A class whose rows all have weight 0 is no class.
            values = values if counted is None else values.filter(pa.array(counted))
            labels = _counted(values) if len(self._labels) <= MAX_CLASSES else {}
            if wrong := sorted(label for label in labels if "\0" in label):
                raise ValueError(f"target '{self.name}' holds a NUL character in the label {wrong[0]!r}; remove it")
            self._labels.update(labels)
        else:
            values = self._checked(numbers(column))
            self._add_numbers(values if counted is None else values[counted])
        self.kind = kind
        self.rows += len(column)
        # texts of numbers may be as many as there are rows
        if len(self._labels) > MAX_CLASSES and kind == "category" and self._reading is None:
            raise ValueError(
                f"target '{self.name}' has more than {MAX_CLASSES} different texts; classes are fewer. Is it the "
                f"column to predict?"
            )

    @property
    def _reading(self) -> Reading | None:
        """The numbers that the texts write; None where they are labels."""
        reading = self._texts.reading(self._marks.decimal, self._marks.usual)
        return None if reading is None or reading.kind != "number" else reading

    @property
    def _instead_of_dates(self) -> str:
        return f"turn it into numbers, such as the days from a day, or into labels, categorical=['{self.name}']"

    def _checked(self, values: np.ndarray) -> np.ndarray:
        """The numbers, none of them missing or infinite."""
        self._check_there(np.isnan(values))
        infinite = np.flatnonzero(np.isinf(values))
        if len(infinite):
            row = self.rows + int(infinite[0])
            raise RowError(f"target '{self.name}' is {values[infinite[0]]} in row {row}; it must be finite", row)
        return values

    def _add_numbers(self, values: np.ndarray) -> None:
        """Note what decides the task: the first fraction, else the distinct numbers, as long as they may be classes."""
        fractional = values[values != np.trunc(values)]
        if len(fractional) and self._fractional is None:
            self._fractional = float(fractional[0])
        self._largest = max(self._largest, float(np.abs(values).max(initial=0.0)))
        # Beyond, the numbers are quantities, or too many: gathering all of them would take memory without a bound.
        if self._fractional is None and len(self._labels) <= MAX_CLASSES:
            self._labels.update(np.unique(values).tolist())

    def _check_there(self, missing: np.ndarray) -> None:
        if missing.any():
            row = self.rows + int(np.flatnonzero(missing)[0])
            raise RowError(
                f"target '{self.name}' is missing (NaN) in row {row}; give the row a target, or {REMEDY}", row
            )

    def decide(self, task: Literal["auto"] | Task) -> Target:
        """Classification for texts, booleans and whole numbers, regression for fractions, as scikit-learn decides.

        Raises
        ------
        ValueError
            One class; texts for regression; fractions for classification; whole numbers with so many values that the
            task has to be said.
        """
        reading = self._reading if self.kind == "category" else None
        if dates := self._texts.first_dates:
            row, text = dates[0]
            raise RowError(
                f"target '{self.name}' holds dates or times ({text!r} in row {row}): {self._instead_of_dates}", row
            )
        if (self._task(reading) if task == "auto" else task) == "regression":
            if self.kind == "category":
                return Target("regression", None, self._form_of_numbers())
            return Target("regression", None)
        self._check_classes()
        # Sorted, so that codes do not depend on the order in which labels were met.
        labels = sorted(self._labels)
        if self.kind == "category":
            return Target("classification", np.array(labels, np.str_))
        dtype = np.bool_ if self.kind == "boolean" else np.int64
        return Target("classification", np.array(labels).astype(dtype))

    def doubts(self, target: Target) -> list[str]:
        """Sentences on labels that may be numbers or times, or the same as others."""
        if target.classes is None or self.kind != "category":
            return []
        called, otherwise = f"target '{self.name}'", f"or say that they {{}}: categorical=['{self.name}']"
        ways = several_ways(called, self._texts, otherwise.format("are labels"))
        alike = alike_names(called, self._labels, otherwise.format("do not"), are_meant=self._is_named or bool(ways))
        zeros = few_zeros(called, self._texts, otherwise.format("are labels"))
        return [*([ways] if ways else []), *zeros, *alike]

    def _form_of_numbers(self) -> str:
        """The form in which all texts write numbers.

        Raises
        ------
        ValueError
            Some write none; the first is named.
        """
        # whole numbers in texts are labels unless a regression is asked for
        reading = self._reading
        if reading is None and not self._is_named and self._texts.whole == self._texts.count:
            return ""
        if reading is None:
            ways = several_ways(f"target '{self.name}'", self._texts)
            raise ValueError(ways or f"target '{self.name}' holds texts, and task='regression' needs numbers")
        if strange := sorted((*reading.named, *self._texts.marked)):
            written = f" written as {reading.form}" if reading.form else ""
            row, text = strange[0]
            raise RowError(
                f"target '{self.name}' is {text!r} in row {row}, and its other values are numbers{written}: correct "
                "it, or "
                f"say that the text means missing ({self._marks.nulls}), and {REMEDY}",
                row,
            )
        if reading.is_open:
            warnings.warn(
                open_mark(f"target '{self.name}'", reading, self._marks), UserWarning, stacklevel=users_level()
            )
        return reading.form

    def _task(self, reading: Reading | None = None) -> Task:
        """The task that the values tell; whole numbers of which there are many may be either, and are asked about."""
        if self._fractional is not None or (reading is not None and not reading.figures.is_whole):
            return "regression"
        # Many different whole numbers may be counts as well as codes. A wrong guess would learn a thousand classes, or
        # a line through postcodes.
        is_number = self.kind == "number" or reading is not None
        ambiguous = is_number and len(self._labels) > min(AUTO_CLASSES, max(20, self.rows // ROWS_A_CLASS))
        if ambiguous:
            raise ValueError(
                f"target '{self.name}' holds {min(len(self._labels), MAX_CLASSES)} or more different whole numbers in "
                f"{self.rows} rows: say task='regression' if they are quantities, task='classification' if labels; "
                "counts "
                "are quantities, for loss='poisson' in the fit"
            )
        return "classification"

    def _check_classes(self) -> None:
        """Refuse labels that can be no classes."""
        if self._fractional is not None:
            raise ValueError(
                f"target '{self.name}' holds fractions ({self._fractional:g}), not labels; use task='regression'"
            )
        if len(self._labels) > MAX_CLASSES:
            raise ValueError(f"target '{self.name}' has more than {MAX_CLASSES} classes; use task='regression'")
        if self._largest > 2**53:
            raise ValueError(
                f"target '{self.name}' holds labels up to {self._largest:.0f}, beyond 2**53, where float64 takes "
                f"neighbours for one; read them as texts: categorical=['{self.name}']"
            )
        if len(self._labels) < 2:
            raise ValueError(
                f"target '{self.name}' has one class only, {next(iter(self._labels), None)!r}, in {self.rows} rows; "
                f"classification needs two or more"
            )


def _counted(values: pa.ChunkedArray) -> dict[str, int]:
    """How often each text occurs."""
    counted = pc.value_counts(values)
    return dict(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


class WeightSummary:
    """What was seen of a weight column, piece by piece.

    Parameters
    ----------
    name : str
        The column, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self.total = 0.0

    def add(self, column: pa.ChunkedArray) -> np.ndarray:
        """Take the next rows; which of them count is a bool array (n,).

        Raises
        ------
        ValueError
            A weight is negative, missing, infinite or no number; its row is named.
        """
        if column_kind(column.type) not in ("number", "boolean"):
            raise ValueError(f"weight '{self.name}' holds {column.type} values; weights are numbers")
        values = numbers(column)
        # NaN fails both comparisons, and is a wrong weight like any other.
        wrong = np.flatnonzero(~((values >= 0) & (values < np.inf)))
        if len(wrong):
            row = self.rows + int(wrong[0])
            raise RowError(
                f"weight '{self.name}' is {values[wrong[0]]:g} in row {row}; weights must be finite and at least 0", row
            )
        self.rows += len(values)
        self.total += float(values.sum())
        return values > 0

    def check(self) -> None:
        """Raise a ValueError when no row counts."""
        if self.total <= 0:
            raise ValueError(f"weight '{self.name}' is 0 in all {self.rows} rows; at least one must be positive")


class SplitColumn:
    """A column that says which split each row belongs to.

    Parameters
    ----------
    name : str
        The column, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self._names: Counter[str] = Counter()
        self._codes: list[np.ndarray] = []

    def add(self, column: pa.ChunkedArray) -> None:
        """Take the next rows of the input.

        Raises
        ------
        ValueError
            A name is missing, or there are more than `MAX_SPLITS`.
        """
        values = texts(column)
        if values.null_count:
            row = self.rows + int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise RowError(
                f"split column '{self.name}' is missing in row {row}; every row needs the name of its split", row
            )
        self._names.update(_counted(values))
        if len(self._names) > MAX_SPLITS:
            raise ValueError(f"split column '{self.name}' has more than {MAX_SPLITS} values; is it the right column?")
        self.rows += len(values)

    def doubts(self) -> list[str]:
        """A sentence on splits whose names may mean the same."""
        return alike_names(f"split column '{self.name}'", self._names)

    def place(self, column: pa.ChunkedArray) -> None:
        """Note the splits of rows in their final order."""
        names = pa.array(sorted(self._names), pa.string())
        codes = pc.index_in(texts(column), value_set=names).to_numpy().astype(np.uint8)
        self._codes.append(codes)

    def masks(self) -> dict[str, np.ndarray]:
        """For each split whether a row is in it: bool (n_rows,), all rows having been placed."""
        codes = np.concatenate(self._codes)
        return {name: codes == code for code, name in enumerate(sorted(self._names))}


class TogetherColumn:
    """The codes of a group or time column of the input, which is read piece by piece.

    Parameters
    ----------
    name : str
    role : {"group", "time"}
    """

    def __init__(self, name: str, role: HeldBy) -> None:
        self.name, self.role = name, role
        self.rows = 0
        self._kind: Any = "group"
        self._names: Counter[str] = Counter()

    def add(self, column: pa.ChunkedArray) -> None:
        """Take the next rows of the input.

        Raises
        ------
        ValueError
            A value is missing, or is no time; its row is named.
        """
        self._codes(column, self.rows)
        if self.role == "group" and len(self._names) <= MAX_CLASSES:
            self._names.update(_counted(texts(column)))
        self.rows += len(column)

    def doubts(self) -> list[str]:
        """Warnings of groups whose names differ by blanks or capitals alone; none of more than `MAX_CLASSES` groups."""
        return alike_names(f"group column '{self.name}'", self._names) if len(self._names) <= MAX_CLASSES else []

    @property
    def known(self) -> RowColumn:
        """Name, kind and role of the column, which the store keeps beside the codes."""
        return RowColumn(self.name, self._kind, self.role)

    def codes(self, column: pa.ChunkedArray) -> np.ndarray:
        """Rows in their final order: (n,) int64."""
        return self._codes(column, 0)

    def _codes(self, column: pa.ChunkedArray, first_row: int) -> np.ndarray:
        values, called = column.to_pandas(), f"{self.role} column '{self.name}'"
        if self.role == "group":
            return group_codes(values, len(values), called, first_row=first_row)
        codes, self._kind = time_codes(values, len(values), called, first_row=first_row)
        return codes
