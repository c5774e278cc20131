"""Adds given groups and times to datasets, and the rules by which fits hold out their rows together."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, Self, TypeVar

import numpy as np

from dkl.data.checks import check_order
from dkl.data.frames import column_named, is_frame, weights_of
from dkl.data.missing_targets import kept_rows, rows_of
from dkl.data.other_frames import as_pandas_rows
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import positions_among_given
from dkl.data.sources.lazy import is_lazy
from dkl.data.sources.rows import RowSource
from dkl.data.together.choosing import check_one_kind, with_held_by, with_values
from dkl.data.together.codes import group_codes, time_codes
from dkl.data.together.rules import held_source
from dkl.errors import Problems


class HasRows(Protocol):
    """The part of `Dataset` that this module uses; it cannot import the class, whose module imports this one."""

    @property
    def source(self) -> RowSource: ...

    @property
    def schema(self) -> Schema: ...

    def with_rows(self, source: RowSource, schema: Schema) -> Self: ...


D = TypeVar("D", bound=HasRows)


class GroupsAndTimes:
    """Rows with their groups and times: values, or the names of columns of a data frame.

    A group column is removed from the frame. A time remains a feature, as scores of the held-out newest rows show
    whether it helps.

    Parameters
    ----------
    X : rows as of `fit`
    groups, times : str, array of shape (n,), or None
    by_group, by_time : str or None
        Parameters of a machine: columns of a frame, or of a Dataset.

    Attributes
    ----------
    X : rows
        Without columns that are not features.
    removed : tuple of str
        Names of the removed columns.
    row_id : ndarray of shape (n,), int64, or None
        The original numbers of the rows, if some were dropped.
    """

    def __init__(
        self, X: Any, groups: Any = None, times: Any = None, by_group: str | None = None, by_time: Any = None
    ) -> None:
        check_one_kind(by_group, by_time)
        # False means that a machine must not choose a time itself
        by_time = by_time or None
        X = as_pandas_rows(X)
        self._column_names = by_group, by_time
        arguments = ["by_group" if groups is None else "groups", "by_time" if times is None else "times"]
        if is_frame(X):
            groups, times = _first_given(groups, by_group, "group"), _first_given(times, by_time, "time")
            self._column_names = None, None
        self.X = X
        self.removed: tuple[str, ...] = ()
        self.row_id: np.ndarray | None = None
        self._given: dict[str, tuple[Any, str | None]] = {}
        problems = Problems()
        for role, values, argument in zip(("group", "time"), (groups, times), arguments, strict=True):
            with problems.collected():
                if values is not None:
                    self._given[role] = self._values_and_name(role, values, argument)
        problems.raise_all()
        if not is_frame(X) and not hasattr(X, "schema") and (by_group, by_time) != (None, None) and not self._given:
            name, value = ("by_group", by_group) if by_group is not None else ("by_time", by_time)
            raise ValueError(
                f"{name}={value!r} names a column, and X has none by name: pass a data frame, a Dataset that has the "
                f"column, or one value a row, fit(X, y, {'groups' if name == 'by_group' else 'times'}=values)"
            )

    @classmethod
    def like(cls, schema: Schema, X: Any, groups: Any, times: Any) -> GroupsAndTimes:
        """Further rows for a store: with given groups and times, else the columns of a frame with the store's names."""
        X = as_pandas_rows(X)
        given = {"group": groups, "time": times}
        for role, known in schema.row_columns.items():
            if given[role] is None and is_frame(X) and known.name in X.columns:
                given[role] = known.name
        return cls(X, given["group"], given["time"])

    def _values_and_name(self, role: str, values: Any, argument: str) -> tuple[Any, str | None]:
        """Values and their name (None for given values); a group column is removed from the frame."""
        if not isinstance(values, str):
            check_order(self.X, values, argument)
            return values, None
        of_dataset = f"; for a column of a Dataset, KernelClassifier(by_{role}={values!r})"
        column = column_named(self.X, values, argument, of_dataset)
        if role == "group":
            self.leave_out(values)
        return column, values

    def weights(self, given: Any) -> Any:
        """The weights of the rows; a column of the data frame that `given` names is removed from it."""
        weights = weights_of(self.X, given)
        if weights is not given:
            self.leave_out(given)
        return weights

    def leave_out(self, name: str) -> None:
        """Remove a column from the data frame; later tables may contain it."""
        self.X, self.removed = self.X.drop(columns=[name]), (*self.removed, name)

    def with_targets(self, y: Any, sample_weight: Any) -> tuple[GroupsAndTimes, Any, Any]:
        """Drop rows without a target, with a warning that counts them; returns the remaining rows, targets and weights.

        Raises
        ------
        ValueError, TypeError
            As for `dkl.data.missing_targets.kept_rows`.
        """
        for name, values in (("y", y), ("sample_weight", sample_weight)):
            check_order(self.X, values, name)
        kept = None if hasattr(self.X, "schema") else kept_rows(self.X, y)
        if kept is None:
            return self, y, sample_weight
        remaining = copy.copy(self)
        remaining.X, remaining.row_id = rows_of(self.X, kept), np.flatnonzero(kept)
        remaining._given = {role: (rows_of(values, kept), name) for role, (values, name) in self._given.items()}
        return remaining, rows_of(y, kept), rows_of(sample_weight, kept)

    def with_columns_of(self, made: Callable[[], D], sample_weight: Any = None) -> D:
        """The dataset that `made` returns, with the groups and times as row columns.

        If `made` raises an error, wrong groups and times are looked for as well, and one error lists all problems.
        """
        problems = Problems()
        try:
            dataset = made()
        except (ValueError, TypeError) as error:
            problems.add(error)
            for role, (values, name) in self._given.items() if not is_lazy(self.X) else ():
                codes = group_codes if role == "group" else time_codes
                with problems.collected():
                    codes(values, np.shape(self.X)[0], name or f"{role}s")
            problems.raise_all()
            raise
        return self.with_columns(dataset, sample_weight)

    def with_rule(self, dataset: D, sample_weight: Any = None) -> D:
        """The dataset with groups and times, and with the rule by which rows are held out by either.

        Raises
        ------
        ValueError
            For a wrong number of values, a missing value, an unknown name, or rows of a single group or time.
        """
        return held_rows(self.with_columns(dataset, sample_weight))

    def with_columns(self, dataset: D, sample_weight: Any = None) -> D:
        """The dataset with the groups and times as row columns."""
        source, schema = self.columns_added(dataset.source, dataset.schema, sample_weight)
        return dataset if schema is dataset.schema else dataset.with_rows(source, schema)

    def columns_added(self, source: RowSource, schema: Schema, sample_weight: Any = None) -> tuple[RowSource, Schema]:
        """The source and the schema with the groups and times as row columns; the schema's `held_by` names one of them.

        Columns of a table that became groups are ignored in later tables.
        """
        counted = positions_among_given(source, sample_weight) if self._given else None
        kept, n_given = (None, None) if counted is None else counted
        # the last one determines how rows are held out: by group if both are given
        problems = Problems()
        for role in [role for role in ("time", "group") if role in self._given]:
            values, name = self._given[role]
            with problems.collected():
                source, schema = with_values(source, schema, role, values, name, kept, n_given)  # type: ignore[arg-type]
        problems.raise_all()
        source, schema = with_held_by(source, schema, *self._column_names)
        if self.removed and schema.encoding is not None:
            # later tables may contain these columns
            encoding = replace(schema.encoding, ignored=(*schema.encoding.ignored, *self.removed))
            schema = replace(schema, encoding=encoding)
        return source, schema


def _first_given(values: Any, named: str | None, role: str) -> Any:
    """`values`, or else the column `named`; ValueError if both are given and differ."""
    if values is not None and named is not None and not (isinstance(values, str) and values == named):
        raise ValueError(f"{role}s were given to fit, and by_{role}={named!r} names a column of X; give one of them")
    return named if values is None else values


def held_rows(dataset: D) -> D:
    """The dataset with the rule by which rows are held out by group or time; unchanged without groups and times.

    Raises
    ------
    ValueError
        If all rows have the same group, or the same time.
    """
    source = held_source(dataset.source, dataset.schema)
    return dataset if source is dataset.source else dataset.with_rows(source, dataset.schema)
