"""Converts targets (labels of any type, numbers) into the arrays of blocks: codes of sorted classes, or float64."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from numbers import Integral, Real
from typing import Literal

import numpy as np

from dkl.data.checks import (
    ALL_WEIGHTLESS,
    WITHOUT_TARGET,
    checked_weight,
    named_place,
    plain_array,
    shown_value,
    spoken,
)
from dkl.data.given import GivenValues
from dkl.data.schema import Task
from dkl.errors import hint

TaskChoice = Literal["auto", "classification", "regression"]


# Largest magnitude of a target in a regression: the sum of the squares of 1e8 larger ones may exceed 1e308, the largest
# float64.
LARGEST_TARGET = 1e150
# Number of distinct whole numbers above which a hint says that they are taken for labels, as more are rarely labels.
_USUAL_CLASSES = 50


def as_targets(
    y: GivenValues, n_rows: int | None = None, *, first_row: int = 0, weight: np.ndarray | None = None
) -> np.ndarray:
    """`y` as an array of plain values: shape (n,), or (n, t) for several targets; (n, 1) is flattened.

    Objects become strings or numbers if all are such.

    Parameters
    ----------
    y : array, series, data frame or list
    n_rows : int or None
        The required number of rows.
    first_row : int
        The number of the first row in messages.
    weight : ndarray of shape (n,) or None
        Rows of weight 0 may have any target, which is replaced by that of a row with positive weight.

    Raises
    ------
    ValueError
        For a wrong length or shape, complex numbers, and objects that are missing or neither strings nor numbers.
    TypeError
        For dates, bytes or a sparse matrix.
    """
    values = plain_array(y, "y")
    # data frames and some readers have a target of shape (n, 1)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    check_target_shape(values.shape, n_rows)
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: y has dtype {values.dtype}")
    if weight is not None:
        values = _with_neighbours_of_weightless(values, weight)
    if values.dtype.kind in "OT":
        values = _plain_objects(values.astype(object, copy=False), first_row)
    if values.dtype.kind == "S":
        raise TypeError(f"y holds bytes such as {shown_value(values.flat[0])}; labels are texts: np.char.decode(y)")
    if values.dtype.kind not in "fiubU":
        raise TypeError(f"y has dtype {values.dtype}; expected labels (strings, integers, booleans) or real numbers")
    return values if values.dtype.kind == "U" else values.astype(values.dtype.newbyteorder("="), copy=False)


def check_target_shape(shape: tuple[int, ...], n_rows: int | None = None) -> None:
    """Raise ValueError unless `shape` is (n_rows,) or (n_rows, t) with t > 0."""
    if len(shape) not in (1, 2):
        raise ValueError(f"y has shape {shape}; expected (n_rows,) or (n_rows, n_targets)")
    if 0 in shape[1:]:
        raise ValueError(f"y has shape {shape}, which is no target at all; expected (n_rows,) or (n_rows, n_targets)")
    if n_rows is not None and shape[0] != n_rows:
        raise ValueError(f"y has {shape[0]} rows and X has {n_rows}; they must be as many")


def _with_neighbours_of_weightless(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Values in which rows of weight 0 have the value of the last earlier row with positive weight, else of the first.

    Zeros if no row has a positive weight.
    """
    counted = np.flatnonzero(weight)
    if not len(counted) or len(counted) == len(weight):
        return values if len(counted) else np.zeros(values.shape)
    return values[counted[np.maximum(np.searchsorted(counted, np.arange(len(values)), side="right") - 1, 0)]]


def _plain_objects(values: np.ndarray, first_row: int) -> np.ndarray:
    """Python objects as an array of texts, booleans, int64 or float64; ValueError if they mix texts and numbers."""
    types = set(map(type, values.flat))
    kinds = {_value_kind(each) for each in types}
    if kinds == {"texts"}:
        return values.astype(np.str_)
    if kinds == {"booleans"}:
        return values.astype(np.bool_)
    if not kinds <= {"booleans", "numbers"}:
        # missing values are the most frequent error, and reported first
        places = list(np.ndindex(values.shape))
        for place in places:
            given = values[place]
            is_nan = isinstance(given, Real) and given != given
            if given is None or type(given).__name__ in ("NAType", "NaTType") or is_nan:
                raise ValueError(
                    f"Input y: {named_place('y', place, first_row)} is {shown_value(given)}, so its target is missing; "
                    f"give it one, or {WITHOUT_TARGET}"
                )
        first = places[0]
        for place in places:
            kind, value = _value_kind(type(values[place])), shown_value(values[place])
            if kind not in ("texts", "booleans", "numbers"):
                raise ValueError(
                    f"{named_place('y', place, first_row)} is {value}, of type {kind}; labels are texts, whole numbers "
                    "or booleans: y.astype(str) makes texts of other values"
                )
            if kind != _value_kind(type(values[first])):
                raise ValueError(
                    f"y mixes kinds of values: {named_place('y', first, first_row)} is {shown_value(values[first])} "
                    f"and {named_place('y', place, first_row)} is {value}; labels must all be texts or all be numbers"
                )
    # floats if any value is not an integer; booleans among numbers are 0 and 1
    if not all(issubclass(each, Integral | np.bool_) for each in types):
        return values.astype(np.float64)
    try:
        return values.astype(np.int64)
    except OverflowError as error:
        place = next(p for p in np.ndindex(values.shape) if not -(2**63) <= int(values[p]) < 2**63)
        where, value = named_place("y", place, first_row), shown_value(values[place])
        raise ValueError(
            f"{where} is {value}, an integer beyond 64 bits; pass labels as texts, and quantities as floats"
        ) from error


def _value_kind(type_of_value: type) -> str:
    """The word for values of a Python type in messages: texts, booleans, numbers, or the type's own name."""
    # bool is a subclass of int, and must be checked before numbers
    for kind, types in (("texts", (str,)), ("booleans", (bool, np.bool_)), ("numbers", (Real, Decimal))):
        if issubclass(type_of_value, types):
            return kind
    return type_of_value.__name__


def guess_task(y: np.ndarray) -> Task:
    """Classification for strings, booleans, integers and whole floats in one column, as in scikit-learn.

    `y` may be the values of one block: the task of all rows is regression if that of any block is.
    """
    if y.ndim == 2:
        return "regression"
    # integers are labels unless the user chooses task="regression"
    if y.dtype.kind != "f":
        return "classification"
    return "classification" if bool(np.all(~np.isfinite(y) | (y == np.trunc(y)))) else "regression"


def task_without_values(shape: tuple[int, ...], task: TaskChoice, classes: GivenValues) -> Task | None:
    """The task by the user's choice, given classes and the shape of the targets; None if it follows from their values.

    Raises
    ------
    ValueError
        For labels of two dimensions.
    """
    if task == "auto" and classes is None:
        return "regression" if len(shape) == 2 else None
    # with given classes the targets are labels, also if they are fractions
    chosen: Task = "classification" if task == "auto" else task
    if chosen == "classification" and len(shape) == 2:
        raise ValueError(f"y has shape {shape}; labels must be of one dimension: one class a row")
    return chosen


def check_targets(y: np.ndarray, *, first_row: int = 0) -> None:
    """Raise ValueError for NaN and infinity, with the first such row."""
    if y.dtype.kind != "f" or np.isfinite(y).all():
        return
    place = tuple(np.argwhere(~np.isfinite(y))[0])
    # infinity is a target, though a wrong one: no row with it is left out
    remedy = f"; {WITHOUT_TARGET}" if np.isnan(y[place]) else ""
    raise ValueError(
        f"Input y: {named_place('y', place, first_row)} is {spoken(y[place])}; targets must be finite{remedy}"
    )


def read_targets(
    y: GivenValues, n_rows: int | None = None, *, first_row: int = 0, weight: np.ndarray | None = None
) -> np.ndarray:
    """`as_targets`, followed by `check_targets`."""
    values = as_targets(y, n_rows, first_row=first_row, weight=weight)
    check_targets(values, first_row=first_row)
    return values


def block_targets(
    y: GivenValues, n_rows: int, classes: np.ndarray | None, weight: np.ndarray | None, *, first_row: int
) -> np.ndarray:
    """The targets of a block: codes of `classes`, or float64 numbers if `classes` is None.

    Raises
    ------
    ValueError
        As `read_targets`, and `encode_labels` or `numeric_targets`.
    """
    values = read_targets(y, n_rows, first_row=first_row, weight=weight)
    if classes is None:
        return numeric_targets(values, first_row=first_row)
    return encode_labels(values, classes, first_row=first_row, weight=weight)


def counted_labels(
    y: GivenValues, weight: GivenValues, task: TaskChoice, n_rows: int, *, first_row: int
) -> tuple[np.ndarray, np.ndarray, int] | None:
    """The distinct labels of a part of the rows, from those that count, their weights, and the number of these rows.

    None if the targets are no labels.

    Raises
    ------
    ValueError
        As `read_targets`, and for invalid weights.
    """
    weight = checked_weight(weight, n_rows, first_row=first_row)
    values = read_targets(y, n_rows, first_row=first_row, weight=weight)
    if task == "auto" and guess_task(values) == "regression":
        return None
    labels, codes = np.unique(labels_that_count(values, weight), return_inverse=True)
    weights = None if weight is None else weight[weight != 0]
    return labels, np.bincount(codes, weights, len(labels)), len(codes)


def joined_classes(labels: Iterable[np.ndarray], *, n_weightless: int = 0) -> np.ndarray:
    """The `sorted_classes` from the distinct labels of all parts of the rows."""
    # a part without rows that count does not determine the type of the labels
    there = [of_part for of_part in labels if len(of_part)]
    return sorted_classes(np.concatenate(there or [np.empty(0)]), n_weightless=n_weightless)


def labels_that_count(y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """The labels of the rows whose weight is not 0; labels of other rows are not classes."""
    return y if weight is None else y[weight != 0]


def encode_labels(
    y: np.ndarray, classes: np.ndarray, *, first_row: int = 0, weight: np.ndarray | None = None
) -> np.ndarray:
    """Positions of labels in the sorted `classes`: (n,) int64; rows of weight 0 may have any label.

    Raises
    ------
    ValueError
        For a label that is not among the classes, with its row.
    """
    if weight is not None and not weight.any():
        return np.zeros(len(y), np.int64)
    if (classes.dtype.kind in "US") != (y.dtype.kind in "US"):
        raise ValueError(
            f"labels have dtype {y.dtype} and the known classes have dtype {classes.dtype}: {shown_classes(classes)}"
        )
    known, labels = classes, y
    if classes.dtype.kind == y.dtype.kind == "b":
        # NumPy's search does not support booleans
        known, labels = classes.astype(np.uint8), y.astype(np.uint8)
    # a label beyond the last class gets its position, and differs from it in the comparison below
    codes = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    unknown = known[codes] != labels
    # rows of weight 0 may have unknown labels
    wrong = np.flatnonzero(unknown if weight is None else unknown & (weight != 0))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"y[{first_row + row}] is {y[row].item()!r}, which is not one of the {len(classes)} known classes: "
            f"{shown_classes(classes)}"
        )
    return codes.astype(np.int64, copy=False)


def shown_classes(classes: np.ndarray) -> str:
    """The first ten class labels, as a list in messages."""
    shown = ", ".join(repr(label) for label in classes[:10].tolist())
    return shown if len(classes) <= 10 else f"{shown}, ..."


def target_codes(
    y: np.ndarray, task: TaskChoice, classes: GivenValues, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None, Task]:
    """The targets of blocks (codes or numbers), the sorted classes (None for regression), and the task.

    Raises
    ------
    ValueError
        For NaN or infinity, labels of two dimensions, or an unknown label.
    """
    if y.dtype.kind == "U" and y.ndim == 1 and classes is None and task != "classification":
        y = written_targets(y, is_asked=task == "regression", weight=weight)
    check_targets(y)
    decided = task_without_values(y.shape, task, classes) or guess_task(y)
    if decided == "regression":
        return numeric_targets(y), None, decided
    counted = labels_that_count(y, weight) if classes is None else classes
    labels = sorted_classes(counted, n_weightless=len(y) - len(counted) if classes is None else 0)
    if task == "auto" and classes is None and y.dtype.kind in "iuf" and len(labels) > _USUAL_CLASSES:
        hint(
            f"y holds {len(labels):,} different whole numbers, which are taken for labels, each a class of its own. To "
            "predict numbers, give the features to a regressor, as in KernelRegressor(StepFeatures()), or pass "
            "task='regression' where that is a parameter",
            "whole numbers as labels",
            in_shell=f"the target holds {len(labels):,} different whole numbers, which are taken for labels, each a "
            "class of its own: --task regression takes them for numbers",
        )
    return encode_labels(y, labels, weight=weight), labels, decided


def written_targets(y: np.ndarray, *, is_asked: bool, weight: np.ndarray | None = None) -> np.ndarray:
    """Texts of numbers as float64; other texts unchanged.

    Texts of whole numbers are labels, and unchanged, unless `is_asked`. Rows of weight 0 are ignored.

    Parameters
    ----------
    y : ndarray of n texts
    is_asked : bool
        Whether the user chose a regression.
    weight : ndarray of shape (n,) or None

    Raises
    ------
    ValueError
        If most texts are numbers and some are not, or they are dates; with the first such text.
    """
    # few targets need pyarrow
    import pyarrow as pa
    import pyarrow.compute as pc

    from dkl.data.columns.numbers import NumberForm
    from dkl.data.columns.target_texts import TargetTexts
    from dkl.data.columns.text_statistics import TextStatistics

    # rows of weight 0 count as missing
    values = pa.array(y.tolist(), pa.string(), mask=None if weight is None else weight == 0.0)
    column = pa.chunked_array([values])
    statistics = TextStatistics.of(column, pc.value_counts(column.drop_null()), 0)
    texts = TargetTexts("y", statistics, as_labels="" if is_asked else "task='classification'")
    texts.check_no_dates()
    reading = texts.reading
    if not is_asked and (reading is None or reading.statistics.is_whole):
        return y
    form = texts.form_of_numbers(hint)
    if form is None:
        return y
    numbers = NumberForm.of(form).numbers(values)
    return numbers if weight is None else _with_neighbours_of_weightless(numbers, weight)


def numeric_targets(y: np.ndarray, *, first_row: int = 0) -> np.ndarray:
    """Targets of a regression as float64.

    Raises
    ------
    ValueError
        For strings, an integer that float64 does not represent exactly, and numbers whose squares have sums beyond
        float64; with the first such row.
    """
    if y.dtype.kind in "US":
        raise ValueError(f"y holds labels such as {str(y.flat[0])!r}; regression needs numbers (see KernelClassifier)")
    numbers = np.ascontiguousarray(y, dtype=np.float64)
    if y.dtype.kind in "iu" and y.dtype.itemsize == 8:
        with np.errstate(invalid="ignore"):
            # an integer that changes when converted to float64 and back was rounded
            lost = np.argwhere(numbers.astype(y.dtype) != y)
        if len(lost):
            place = tuple(lost[0])
            raise ValueError(
                f"{named_place('y', place, first_row)} is {y[place]}, an integer that float64 does not hold (beyond "
                "2**53 most are not): subtract a number from all targets, or pass them as floats"
            )
    if np.abs(numbers).max(initial=0.0) > LARGEST_TARGET:
        place = tuple(np.argwhere(np.abs(numbers) > LARGEST_TARGET)[0])
        raise ValueError(
            f"{named_place('y', place, first_row)} is {numbers[place]:g}; targets of a regression are at most "
            f"{LARGEST_TARGET:g} in magnitude, since sums of their squares must be numbers of float64. Divide all "
            "targets by a large number"
        )
    return numbers


def sorted_classes(labels: GivenValues, *, n_weightless: int = 0) -> np.ndarray:
    """The distinct labels in order.

    Parameters
    ----------
    labels : array of shape (n,)
    n_weightless : int
        Rows of weight 0, whose labels were left out.

    Raises
    ------
    ValueError
        If there is only one, or none since no row has a positive weight.
    """
    if np.ndim(labels) != 1 or (isinstance(labels, list | tuple) and not labels):
        raise ValueError(f"classes is {shown_value(labels)}; expected all labels that y may hold, in a list")
    classes = np.unique(as_targets(labels))
    if not len(classes):
        raise ValueError(ALL_WEIGHTLESS)
    if len(classes) < 2:
        others = f", in the rows that count ({n_weightless:,} others have the weight 0)" if n_weightless else ""
        raise ValueError(
            f"y has one class, {shown_classes(classes)}{others}; at least two are needed to learn from. "
            "create_dataset and partial_fit take classes=, which names all where rows lack some"
        )
    return classes
