"""Target, weight, split, group and time columns: checked and summarized while they are read, and encoded afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.checks import WITHOUT_TARGET
from dkl.data.columns.deciding import Marks
from dkl.data.columns.numbers import NumberForm
from dkl.data.columns.target_texts import TargetTexts
from dkl.data.columns.text_statistics import TextStatistics
from dkl.data.ingest.columns import column_kind, numbers, texts, why_unusable
from dkl.data.labels import shown_classes
from dkl.data.schema import HeldBy, RowColumn, Schema, Task
from dkl.data.together.codes import group_codes, time_codes
from dkl.errors import RowError, warn_user

AUTO_CLASSES = 1_000
ROWS_A_CLASS = 20
"""The user must choose the task if a target of whole numbers has more than `AUTO_CLASSES` distinct values, or fewer
rows than `ROWS_A_CLASS` for each on average: they may be labels or quantities."""
MAX_CLASSES = 65_536
MAX_SPLITS = 254


@dataclass(frozen=True, eq=False)
class Target:
    """The encoding of a target column: codes of sorted labels, or float64 numbers.

    Parameters
    ----------
    task : {"classification", "regression"}
    classes : ndarray of shape (K,) or None
        Sorted labels: texts, booleans or int64 (whole floats count as integers).
    form : str
        The form of numbers in texts, see `dkl.data.columns.numbers.NumberForm`; empty if they have no marks.
    """

    task: Task
    classes: np.ndarray | None
    form: str = ""

    def encode(self, column: pa.ChunkedArray) -> np.ndarray:
        """int64 codes (positions in `classes`) or float64 values of shape (n,); rows of weight 0 may have any code."""
        if self.classes is None:
            if column_kind(column.type) != "category":
                return numbers(column)
            return NumberForm.of(self.form).numbers(texts(column).combine_chunks())
        if self.classes.dtype.kind == "U":
            codes = pc.index_in(texts(column), value_set=pa.array(self.classes.tolist(), pa.string()))
            return pc.fill_null(codes, 0).to_numpy().astype(np.int64)
        codes = np.searchsorted(self.classes.astype(np.float64), numbers(column)).astype(np.int64)
        return np.minimum(codes, len(self.classes) - 1)


class TargetSummary:
    """A summary of a target column, updated table by table, from which the task and the classes follow.

    Parameters
    ----------
    name : str
        The column, for messages.
    marks : Marks
        The decimal marks of numbers in texts.
    is_named : bool
        Whether the column is declared categorical.
    """

    def __init__(self, name: str, marks: Marks | None = None, *, is_named: bool = False) -> None:
        self.name = name
        self._marks, self._is_named = marks or Marks(), is_named
        self._texts = TextStatistics(0)
        self.rows = 0
        self.kind = "empty"
        self._labels: set[Any] = set()
        self._fractional: float | None = None
        self._largest = 0.0

    def add(self, column: pa.ChunkedArray, counted: np.ndarray | None = None) -> None:
        """Add the next rows.

        Parameters
        ----------
        column : ChunkedArray
        counted : ndarray of shape (n,), bool, or None
            Whether each row has a positive weight; labels of other rows are not classes.

        Raises
        ------
        ValueError
            For a missing or infinite label, with its row.
        TypeError
            If the column holds dates, lists or bytes.
        """
        kind = column_kind(column.type)
        if kind is None:
            raise TypeError(f"target: {why_unusable(self.name, column.type)}")
        if kind in ("date", "time", "duration"):
            raise TypeError(
                f"target '{self.name}' holds dates or times ({column.type}): {self._written.instead_of_dates}"
            )
        # all tables of a file have the same type, so that the type differs between files
        if self.kind not in ("empty", kind):
            raise TypeError(f"target '{self.name}' holds {self.kind} values up to row {self.rows}, then {kind} values")
        if kind == "category":
            values = texts(column)
            self._check_present(np.asarray(values.is_null().to_numpy()))
            if not self._is_named:
                self._texts = self._texts.merge(TextStatistics.of(values, pc.value_counts(values), self.rows))
            # labels that occur only in rows of weight 0 are not classes
            values = values if counted is None else values.filter(pa.array(counted))
            labels = pc.unique(values).to_pylist() if len(self._labels) <= MAX_CLASSES else []
            if wrong := sorted(label for label in labels if "\0" in label):
                raise ValueError(f"target '{self.name}' holds a NUL character in the label {wrong[0]!r}; remove it")
            self._labels.update(labels)
        else:
            values = numbers(column)
            self._check_present(np.isnan(values))
            if len(infinite := np.flatnonzero(np.isinf(values))):
                row = self.rows + int(infinite[0])
                raise RowError(f"target '{self.name}' is {values[infinite[0]]} in row {row}; it must be finite", row)
            values = values if counted is None else values[counted]
            fractional = values[values != np.trunc(values)]
            if len(fractional) and self._fractional is None:
                self._fractional = float(fractional[0])
            self._largest = max(self._largest, float(np.abs(values).max(initial=0.0)))
            # after a fraction, or too many distinct numbers, they are not classes and need not be collected
            if self._fractional is None and len(self._labels) <= MAX_CLASSES:
                self._labels.update(np.unique(values).tolist())
        self.kind = kind
        self.rows += len(column)
        # texts that write numbers may all be distinct
        if len(self._labels) > MAX_CLASSES and kind == "category" and self._written.reading is None:
            raise ValueError(
                f"target '{self.name}' has more than {MAX_CLASSES} different texts; classes are fewer. Is it the "
                f"column to predict?"
            )

    @property
    def _written(self) -> TargetTexts:
        """The texts, and what they mean; none are collected if the column is declared categorical."""
        return TargetTexts(f"target '{self.name}'", self._texts, self._marks, f"categorical=['{self.name}']")

    def _check_present(self, missing: np.ndarray) -> None:
        if missing.any():
            row = self.rows + int(np.flatnonzero(missing)[0])
            raise RowError(
                f"target '{self.name}' is missing (NaN) in row {row}; give the row a target, or {WITHOUT_TARGET}", row
            )

    def decide(self, task: Literal["auto"] | Task) -> Target:
        """The encoding of the target for a task.

        "auto" is classification for texts, booleans and whole numbers, and regression for fractions, as in
        scikit-learn.

        Raises
        ------
        ValueError
            For a single class, texts in a regression, fractions in a classification, and whole numbers with so many
            distinct values that the user must choose the task.
        """
        self._written.check_no_dates()
        if (self._task() if task == "auto" else task) == "regression":
            form = self._written.form_of_numbers(warn_user) if self.kind == "category" else ""
            if form is None:
                raise ValueError(f"target '{self.name}' holds texts, and task='regression' needs numbers")
            return Target("regression", None, form)
        # raise ValueError for labels that cannot be classes
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
        # sorted, so that codes do not depend on the order of the rows
        labels = sorted(self._labels)
        if self.kind == "category":
            return Target("classification", np.array(labels, np.str_))
        dtype = np.bool_ if self.kind == "boolean" else np.int64
        return Target("classification", np.array(labels).astype(dtype))

    def decide_like(self, like: Schema) -> Target:
        """The encoding of the target with the task and the classes of another store, or of a fit.

        Labels that are not among its classes are further classes, with a warning: a score counts them as errors.

        Raises
        ------
        ValueError
            For texts where the classes are numbers, numbers in another unit, and as `decide`.
        """
        if like.classes is None:
            target = self.decide(like.task or "auto")
            forms = [NumberForm.of(form) for form in (target.form, like.provenance.get("target_form", target.form))]
            if len({(form.before, form.after.lower()) for form in forms}) > 1:
                raise ValueError(
                    f"target '{self.name}' holds numbers written as {forms[0]}, and those of like= are written as "
                    f"{forms[1]}; write them alike"
                )
            return target
        labels = {int(label) if isinstance(label, float) else label for label in self._labels}
        further = sorted(labels - set(like.classes.tolist()))
        if not further and self._fractional is None:
            return Target("classification", like.classes)
        called = f"target '{self.name}' holds {shown_classes(np.array(further or [self._fractional]))}"
        known = f"the classes of like= are {shown_classes(like.classes)}"
        if self._fractional is not None or (self.kind == "category") != like.has_text_labels:
            raise ValueError(f"{called}, and {known}; write the labels as they are written there")
        warn_user(f"{called}, and {known}; they are taken for further classes, which a score counts as errors")
        return Target("classification", np.array(sorted([*like.classes.tolist(), *further])))

    def _task(self) -> Task:
        """The task that follows from the values; ValueError for whole numbers with too many distinct values."""
        reading = self._written.reading if self.kind == "category" else None
        if self._fractional is not None or (reading is not None and not reading.statistics.is_whole):
            return "regression"
        # many distinct whole numbers may be counts or codes; a wrong guess would fit a thousand classes to counts, or a
        # regression to postcodes
        is_number = self.kind == "number" or reading is not None
        ambiguous = is_number and len(self._labels) > min(AUTO_CLASSES, max(20, self.rows // ROWS_A_CLASS))
        if ambiguous:
            raise ValueError(
                f"target '{self.name}' holds {min(len(self._labels), MAX_CLASSES)} or more different whole numbers in "
                f"{self.rows} rows: say task='regression' if they are quantities, task='classification' if labels; "
                "counts are quantities, which a fit takes with the loss 'poisson'"
            )
        return "classification"


class WeightSummary:
    """A summary of a weight column, updated table by table.

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
        """Add the next rows; returns whether each has a positive weight: (n,) bool.

        Raises
        ------
        ValueError
            For a weight that is negative, missing, infinite or not a number, with its row.
        """
        if column_kind(column.type) not in ("number", "boolean"):
            raise ValueError(f"weight '{self.name}' holds {column.type} values; weights are numbers")
        values = numbers(column)
        # NaN fails both comparisons
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
        """Raise a ValueError if all weights are 0."""
        if self.total <= 0:
            raise ValueError(f"weight '{self.name}' is 0 in all {self.rows} rows; at least one must be positive")


class SplitColumn:
    """A column with the name of each row's split.

    Parameters
    ----------
    name : str
        The column, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = 0
        self._names: set[str] = set()
        self._codes: list[np.ndarray] = []

    def add(self, column: pa.ChunkedArray) -> None:
        """Add the next rows of the input.

        Raises
        ------
        ValueError
            If a name is missing, or there are more than `MAX_SPLITS` names.
        """
        values = texts(column)
        if values.null_count:
            row = self.rows + int(np.flatnonzero(values.is_null().to_numpy())[0])
            raise RowError(
                f"split column '{self.name}' is missing in row {row}; every row needs the name of its split", row
            )
        self._names.update(pc.unique(values).to_pylist())
        if len(self._names) > MAX_SPLITS:
            raise ValueError(f"split column '{self.name}' has more than {MAX_SPLITS} values; is it the right column?")
        self.rows += len(values)

    def place(self, column: pa.ChunkedArray) -> None:
        """Record the splits of the next rows in their final order."""
        names = pa.array(sorted(self._names), pa.string())
        codes = pc.index_in(texts(column), value_set=names).to_numpy().astype(np.uint8)
        self._codes.append(codes)

    def masks(self) -> dict[str, np.ndarray]:
        """For each split whether each row is in it, (n_rows,) bool, after `place` was called for all rows."""
        codes = np.concatenate(self._codes)
        return {name: codes == code for code, name in enumerate(sorted(self._names))}


class GroupOrTimeColumn:
    """The codes of a group or time column of the input, which is read table by table.

    Parameters
    ----------
    name : str
    role : {"group", "time"}
    """

    def __init__(self, name: str, role: HeldBy) -> None:
        self.name, self.role = name, role
        self.rows = 0
        self._kind: Any = "group"

    def add(self, column: pa.ChunkedArray) -> None:
        """Check the next rows of the input.

        Raises
        ------
        ValueError
            For a missing value, or one that is not a time, with its row.
        """
        self.codes(column, self.rows)
        self.rows += len(column)

    @property
    def known(self) -> RowColumn:
        """Name, kind and role of the column, for the store's metadata."""
        return RowColumn(self.name, self._kind, self.role)

    def codes(self, column: pa.ChunkedArray, first_row: int = 0) -> np.ndarray:
        """The codes of rows, (n,) int64; `first_row` is the first row's number in errors."""
        values, called = column.to_pandas(), f"{self.role} column '{self.name}'"
        if self.role == "group":
            return group_codes(values, len(values), called, first_row=first_row)
        codes, self._kind = time_codes(values, len(values), called, first_row=first_row)
        return codes
