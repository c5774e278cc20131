"""Targets as they come (labels of any kind, numbers) and as blocks hold them (codes of sorted classes, float64)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from dkl.data.checks import spoken
from dkl.data.schema import Task

TaskChoice = Literal["auto", "classification", "regression"]

ALL_WEIGHTLESS = "sample_weight is zero for all rows, and rows of weight 0 are left out; at least one must count"

# beyond it, the squares of a hundred million targets have no sum in float64
LARGEST_TARGET = 1e150


def as_targets(y: Any, n_rows: int | None = None) -> np.ndarray:
    """`y` as an array of plain values: shape (n,), or (n, t) for several targets; (n, 1) is flattened.

    Objects become strings or numbers, where they all are.

    Raises
    ------
    ValueError
        Wrong length or shape, complex, or objects that are neither strings nor numbers.
    """
    values = np.asarray(y)
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim not in (1, 2):
        raise ValueError(f"y has shape {values.shape}; expected (n_rows,) or (n_rows, n_targets)")
    if n_rows is not None and len(values) != n_rows:
        raise ValueError(f"y has {len(values)} rows and X has {n_rows}; they must be as many")
    if values.dtype.kind == "c":
        raise ValueError(f"Complex data not supported: y has dtype {values.dtype}")
    if values.dtype == object:
        values = _plain_objects(values)
    if values.dtype.kind not in "fiubUS":
        raise TypeError(f"y has dtype {values.dtype}; expected labels (strings, integers, booleans) or real numbers")
    return values if values.dtype.kind in "US" else values.astype(values.dtype.newbyteorder("="), copy=False)


def _plain_objects(values: np.ndarray) -> np.ndarray:
    kinds = {str if isinstance(v, str) else bool if isinstance(v, bool | np.bool_) else float for v in values.flat}
    if kinds == {str}:
        return values.astype(np.str_)
    if kinds == {bool}:
        return values.astype(np.bool_)
    try:
        numbers = values.astype(np.float64)
    except (TypeError, ValueError) as error:
        row = next(i for i, v in enumerate(values) if not isinstance(v, str) or len(kinds) > 1)
        raise ValueError(
            f"y mixes kinds of values: y[{row}] is {values[row]!r}; labels must all be strings or all be numbers, "
            "and none may be missing"
        ) from error
    whole = all(isinstance(v, int | np.integer) for v in values.flat)
    return numbers.astype(np.int64) if whole else numbers


def guess_task(y: np.ndarray) -> Task:
    """Classification for strings, booleans, integers and whole floats of one column, as scikit-learn decides.

    `y` may be the values of one block: the task of all rows is regression when that of one block is.
    """
    if y.ndim == 2:
        return "regression"
    if y.dtype.kind != "f":
        return "classification"
    return "classification" if bool(np.all(~np.isfinite(y) | (y == np.trunc(y)))) else "regression"


def check_targets(y: np.ndarray, *, first_row: int = 0) -> None:
    """Refuse NaN and infinity.

    Raises
    ------
    ValueError
        Naming the first such row.
    """
    if y.dtype.kind != "f" or np.isfinite(y).all():
        return
    place = np.argwhere(~np.isfinite(y))[0]
    where = ", ".join(str(int(p) + (first_row if axis == 0 else 0)) for axis, p in enumerate(place))
    raise ValueError(
        f"Input y: y[{where}] is {spoken(y[tuple(place)])}; targets must be finite. Drop rows without a target"
    )


def labels_that_count(y: np.ndarray, weight: np.ndarray | None) -> np.ndarray:
    """The labels of rows whose weight is not 0: a class whose rows are not there is no class."""
    return y if weight is None else y[weight != 0]


def encode_labels(
    y: np.ndarray, classes: np.ndarray, *, first_row: int = 0, weight: np.ndarray | None = None
) -> np.ndarray:
    """Positions of labels in the sorted `classes`: (n,) int64; rows of weight 0 may have any label.

    Raises
    ------
    ValueError
        A label is not among the classes; it and its row are named.
    """
    known, labels = _comparable(classes, y)
    codes = np.minimum(np.searchsorted(known, labels), len(known) - 1)
    unknown = known[codes] != labels
    wrong = np.flatnonzero(unknown if weight is None else unknown & (weight != 0))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"y[{first_row + row}] is {y[row].item()!r}, which is not one of the {len(classes)} known classes: "
            f"{shown_classes(classes)}"
        )
    return codes.astype(np.int64, copy=False)


def _comparable(classes: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if (classes.dtype.kind in "US") != (y.dtype.kind in "US"):
        raise ValueError(
            f"labels have dtype {y.dtype} and the known classes have dtype {classes.dtype}: {shown_classes(classes)}"
        )
    return (classes.astype(np.uint8), y.astype(np.uint8)) if classes.dtype.kind == y.dtype.kind == "b" else (classes, y)


def shown_classes(classes: np.ndarray, most: int = 10) -> str:
    """Class labels as a message lists them, cut after the first few."""
    shown = ", ".join(repr(label) for label in classes[:most].tolist())
    return shown if len(classes) <= most else f"{shown}, ..."


def target_codes(
    y: np.ndarray, task: TaskChoice, classes: Any, weight: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray | None, Task]:
    """Targets as blocks hold them, the sorted classes (None for regression), and the task.

    Raises
    ------
    ValueError
        NaN or infinity, labels of two dimensions, an unknown label.
    """
    check_targets(y)
    chosen: Task = guess_task(y) if task == "auto" and classes is None else "classification" if task == "auto" else task
    if chosen == "regression":
        return numeric_targets(y), None, chosen
    if y.ndim == 2:
        raise ValueError(f"y has shape {y.shape}; labels must be of one dimension: one class a row")
    labels = sorted_classes(labels_that_count(y, weight) if classes is None else classes)
    return encode_labels(y, labels, weight=weight), labels, chosen


def numeric_targets(y: np.ndarray, *, first_row: int = 0) -> np.ndarray:
    """Targets of a regression as float64.

    Raises
    ------
    ValueError
        Strings, and numbers whose squares, or sums of them, float64 does not hold; the first such row is named.
    """
    if y.dtype.kind in "US":
        raise ValueError(f"y holds labels such as {str(y.flat[0])!r}; regression needs numbers (see KernelClassifier)")
    values = np.ascontiguousarray(y, dtype=np.float64)
    if np.abs(values).max(initial=0.0) > LARGEST_TARGET:
        place = np.argwhere(np.abs(values) > LARGEST_TARGET)[0]
        where = ", ".join(str(int(p) + (first_row if axis == 0 else 0)) for axis, p in enumerate(place))
        raise ValueError(
            f"y[{where}] is {values[tuple(place)]:g}; targets of a regression are at most {LARGEST_TARGET:g} in "
            "magnitude, since sums of their squares must be numbers of float64. Divide all targets by a large number"
        )
    return values


def sorted_classes(labels: Any) -> np.ndarray:
    """The distinct labels in order.

    Raises
    ------
    ValueError
        There is only one, or none: no row counts.
    """
    classes = np.unique(as_targets(labels))
    if not len(classes):
        raise ValueError(ALL_WEIGHTLESS)
    if len(classes) < 2:
        raise ValueError(
            f"y has one class, {shown_classes(classes)}; at least two are needed to learn from. "
            "Pass classes= where these rows lack some"
        )
    return classes
