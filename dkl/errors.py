"""The exceptions that dkl raises beyond Python's own, and the one way to say where a failure happened."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


class StoreError(ValueError):
    """A store is absent, incomplete, of a newer format, or not of the kind that was asked for."""


class CorruptChunkError(StoreError):
    """A chunk of a store does not hold the bytes that were written there."""


class StoreReplacedError(StoreError):
    """A store was moved, deleted or replaced since it was opened; opening it again shows what is there now."""


class MemoryLimitError(MemoryError):
    """A computation cannot be kept below the memory it was allowed; the message holds the sum."""


class ClusterError(RuntimeError):
    """The Dask cluster lost what a pass needs (all workers, the scheduler) and did not recover in time."""


class RowError(ValueError):
    """A value of one row is wrong.

    Parameters
    ----------
    message : str
    row : int
        The number of the row among all that are read, from 0.
    """

    # the default is for pickle, which sets the row afterwards
    def __init__(self, message: str, row: int = 0) -> None:
        super().__init__(message)
        self.row = row


class ColumnError(ValueError):
    """The values of one column are wrong.

    Parameters
    ----------
    message : str
        With "column 3" for the column of the number 3.
    column : int
        The number of the column among the encoded ones, from 0.
    """

    # the default is for pickle, which sets the column afterwards
    def __init__(self, message: str, column: int = 0) -> None:
        super().__init__(message)
        self.column = column


class TableDifferenceWarning(UserWarning):
    """Rows are unlike those of fit (values that are missing, categories, columns) and are answered all the same."""


class DklHint(UserWarning):
    """Another setting, or another way to hold rows out, may suit the rows better; nothing is wrong with the fit.

    Each hint is given once a process, by the fit that the user calls and none inside it, and not where "auto" decides.
    ``warnings.filterwarnings("ignore", category=dkl.DklHint)`` turns them off.

    Parameters
    ----------
    message : str
        What may suit the rows better, and how it is asked for.
    in_shell : str
        The same with options of the shell; empty where the message says the same there.

    Examples
    --------
    >>> import warnings
    >>> import dkl
    >>> with warnings.catch_warnings():
    ...     warnings.filterwarnings("ignore", category=dkl.DklHint)  # no hint is shown in this block
    ...     warnings.warn("another bandwidth may suit the rows better", dkl.DklHint)
    """

    def __init__(self, message: str, in_shell: str = "") -> None:
        super().__init__(message)
        self.in_shell = in_shell


# What was hinted at in this process. It has no lock: a hint that two threads give at once harms nobody.
_HINTED: set[str] = set()
_HINTS: ContextVar[bool] = ContextVar("hints", default=True)


def hint(message: str, topic: str = "", in_shell: str = "") -> None:
    """Give a hint, unless one on the same topic was given in this process, or a search fits many models here.

    Parameters
    ----------
    message : str
    topic : str
        Empty is the message itself.
    in_shell : str
        As of `DklHint`.

    Warns
    -----
    DklHint
    """
    if not _HINTS.get() or (topic or message) in _HINTED:
        return
    _HINTED.add(topic or message)
    warnings.warn(DklHint(message, in_shell), stacklevel=users_level())


@contextmanager
def without_hints() -> Iterator[None]:
    """No hints inside the block: fits of a search, of folds, of learners beside each other."""
    token = _HINTS.set(False)
    try:
        yield
    finally:
        _HINTS.reset(token)


def gives_hints() -> bool:
    """Whether the fit under way is one that a user calls, and none of a search."""
    return _HINTS.get()


def users_level() -> int:
    """The stack level of the caller's own code, for a warning of the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    # scikit-learn's callbacks, and its searches, stand between the user and a fit.
    ours = ("dkl", "sklearn", "joblib")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ours:
        level, frame = level + 1, frame.f_back
    return level


def warn_user(*sentences: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning for each sentence, at the line of the caller's own code."""
    for sentence in sentences:
        warnings.warn(sentence, category, stacklevel=users_level())


class Problems:
    """Collects the faults of some input, so that one error lists all of them.

    Parameters
    ----------
    words : callable
        Puts a message into the words of the caller.
    place : callable or None
        Adds to an error where it happened, as a note.

    Examples
    --------
    >>> problems = Problems()
    >>> for name in ("age", "town"):
    ...     with problems.collected():
    ...         raise ValueError(f"column '{name}' holds no value")
    >>> problems.raise_all()
    Traceback (most recent call last):
    ...
    ValueError: column 'age' holds no value
    column 'town' holds no value
    """

    MOST = 10
    """So many are listed; the others are counted."""

    def __init__(
        self, words: Callable[[str], str] = str, place: Callable[[ValueError | TypeError], None] | None = None
    ) -> None:
        self._errors: list[Exception] = []
        self._words, self._place = words, place

    def __bool__(self) -> bool:
        return bool(self._errors)

    def add(self, error: ValueError | TypeError) -> None:
        """Take one problem, or several as lines of one message."""
        if self._place is not None:
            self._place(error)
        self._errors.append(error)

    @contextmanager
    def collected(self) -> Iterator[None]:
        """Take the ValueError or TypeError that ends the block."""
        try:
            yield
        except (ValueError, TypeError) as error:
            self.add(error)

    def raise_all(self, remark: str = "") -> None:
        """Raise the only error, or one error that lists all of them; do nothing if there is none.

        The only error keeps its type, and its message goes through `words`.

        Parameters
        ----------
        remark : str
            Added to what is raised: a note of the only error, the last line of a list.
        """
        if not self._errors:
            return
        if len(self._errors) == 1:
            (error,) = self._errors
            if error.args and self._words is not str:
                error.args = (self._words(str(error.args[0])), *error.args[1:])
            if remark:
                error.add_note(remark)
            raise error
        # A note says where an error happened (see `located`). In a list of errors it has to stand in its own line.
        lines: list[str] = []
        for error in self._errors:
            *first, last = str(error).split("\n")
            notes = ", ".join(getattr(error, "__notes__", ()))
            lines += [*first, f"{last} ({notes})" if notes else last]
        # A file with ten thousand wrong rows needs an error, not a log.
        shown = lines[: self.MOST] + ([f"and {len(lines) - self.MOST} more"] if len(lines) > self.MOST else [])
        # A list that mixes both kinds is about values: a ValueError is what callers of a check expect.
        kind = TypeError if all(isinstance(error, TypeError) for error in self._errors) else ValueError
        raise kind("\n".join([*map(self._words, shown), *([remark] if remark else [])])) from self._errors[0]


def refuse_non_finite(values: ArrayLike, what: str, cause: str) -> None:
    """Raise ValueError for NaN or infinity in what was computed: what and where it is, and what is likely behind it.

    >>> import numpy as np
    >>> refuse_non_finite(np.array([1.0, np.inf]), "the scale of column", "its values are too large")
    Traceback (most recent call last):
        ...
    ValueError: the scale of column 1 is inf: its values are too large
    """
    # commands that compute nothing have no use for NumPy
    import numpy as np

    values = np.asarray(values)
    if np.isfinite(values).all():
        return
    place = np.argwhere(~np.isfinite(values))[0]
    # Columns and features lie along the last axis: its index is the one that a user knows.
    where = "".join(f" {index}" for index in place[-1:])
    raise ValueError(f"{what}{where} is {values[tuple(place)]}: {cause}")


@contextmanager
def columns_named(names: Sequence[str] | None) -> Iterator[None]:
    """Put the name of the column, if columns have names, in place of its number in a `ColumnError` that passes.

    >>> try:
    ...     with columns_named(["age", "size"]):
    ...         raise ColumnError("column 1 holds -1", 1)
    ... except ColumnError as error:
    ...     print(error)
    column 'size' holds -1
    """
    try:
        yield
    except ColumnError as error:
        if names is not None:
            named = f"column {names[error.column]!r}"
            error.args = (str(error).replace(f"column {error.column}", named, 1),)
        raise


@contextmanager
def located(place: str) -> Iterator[None]:
    """Add `place` to an exception that passes through, once: the innermost place stays.

    The exception keeps its type and message; the place is a note, so a traceback ends with it.

    >>> try:
    ...     with located("block 3 of 'rows.zarr'"):
    ...         raise ValueError("y[17] is NaN")
    ... except ValueError as error:
    ...     print(error.__notes__)
    ["at block 3 of 'rows.zarr'"]
    """
    try:
        yield
    except Exception as error:
        # The innermost block knows best: an outer one would only name the whole pass.
        if not any(note.startswith("at ") for note in getattr(error, "__notes__", ())):
            error.add_note(f"at {place}")
        raise
