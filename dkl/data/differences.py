"""Differences of rows from those that an encoding was learned from, where the rows are accepted anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np

from dkl.data.checks import spoken_names
from dkl.errors import TableDifferenceWarning, warn_user

# Warnings that each model has given, so that the same rows are reported once to predict, score and predict_proba.
_GIVEN: WeakKeyDictionary[object, set[str]] = WeakKeyDictionary()
# Warnings of one model that are remembered; a service that answers ever other rows has its memory bounded by it.
_REMEMBERED = 100


@dataclass
class _Difference:
    """A difference in a column: the number of rows, the first one, and its description."""

    rows: int
    first_row: int
    sentence: str


@dataclass
class Differences:
    """Differences from the rows of fit, counted for each column over all tables of one call, and reported once.

    Parameters
    ----------
    strict : bool
        Raise an error instead of accepting such rows.
    option : str
        The caller's name for `strict`; empty if there is no such option.
    """

    strict: bool = False
    option: str = "strict=True"
    _rows: int = 0
    _columns: dict[tuple[str, str], _Difference] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._columns or self._names)

    def see(self, rows: int) -> None:
        """Count the rows of another table."""
        self._rows += rows

    def add(self, name: str, rows: np.ndarray, first_row: int, sentence: str, kind: str) -> None:
        """Add the rows of a table, by their positions, that differ in a column."""
        if not len(rows):
            return
        known = self._columns.get((name, kind))
        if known is None:
            self._columns[name, kind] = _Difference(len(rows), first_row + int(rows[0]), sentence)
        else:
            known.rows += len(rows)

    def add_names(self, known: Sequence[str], given: Sequence[str], ignored: Sequence[str]) -> None:
        """Record unknown columns of a table, and whether the known ones, all of which it has, are in another order."""
        expected, beside = set(known), set(ignored)
        further = [name for name in given if name not in expected and name not in beside]
        if further:
            self._names["further"] = f"further columns are left out: {spoken_names(sorted(further))}"
        if [name for name in given if name in expected] != list(known):
            self._names["order"] = "the columns come in another order, and are taken by their names"

    def lines(self) -> list[str]:
        """A sentence for each difference, with its count."""
        counted = [
            f"column '{name}' {found.sentence}: {found.rows} of {self._rows} rows, the first is row {found.first_row}"
            for (name, _), found in self._columns.items()
        ]
        return [*counted, *self._names.values()]

    def say(self, model: object = None) -> None:
        """Report the differences, in one warning or an error.

        Parameters
        ----------
        model : object
            The model that the rows are for, which gives the same warning once; None always warns.

        Raises
        ------
        ValueError
            If `strict`.
        """
        if not self:
            return
        if self.strict:
            raise ValueError("\n".join([f"rows are unlike those of fit, which {self.option} refuses:", *self.lines()]))
        refuses = f" ({self.option} refuses them)" if self.option else ""
        text = f"rows are unlike those of fit, and are taken all the same{refuses}:"
        text = "\n".join([text, *self.lines()])
        given = set() if model is None else _GIVEN.setdefault(model, set())
        if text in given:
            return
        warn_user(text, category=TableDifferenceWarning)
        if len(given) < _REMEMBERED:
            given.add(text)
