"""Whether the texts of a target are numbers or class labels: one rule for arrays and for columns of files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dkl.data.checks import WITHOUT_TARGET
from dkl.data.columns.deciding import Marks, ambiguous_mark_warning
from dkl.data.columns.text_statistics import Reading, TextStatistics
from dkl.errors import RowError


@dataclass(frozen=True, eq=False)
class TargetTexts:
    """The texts of a target, with what error messages about them name.

    Parameters
    ----------
    name : str
        Of the target in messages, such as "y".
    statistics : TextStatistics
    marks : Marks
        The decimal marks of numbers in texts.
    as_labels : str
        The caller's option for labels, for messages; empty if it was not taken on purpose.
    """

    name: str
    statistics: TextStatistics
    marks: Marks = field(default_factory=Marks)
    as_labels: str = ""

    @property
    def reading(self) -> Reading | None:
        """The way to read the texts as numbers; None if they are labels."""
        reading = self.statistics.reading(self.marks.decimal, self.marks.default)
        return None if reading is None or reading.kind != "number" else reading

    @property
    def instead_of_dates(self) -> str:
        """The end of an error about a target of dates or times: it is to be turned into numbers, or called labels."""
        labels = f", or say that they are labels: {self.as_labels}" if self.as_labels else ""
        return f"turn them into numbers, such as the days from a day{labels}"

    def check_no_dates(self) -> None:
        """Raise RowError for the first date or time if nearly all texts are dates or times."""
        if dates := self.statistics.first_dates:
            row, text = dates[0]
            raise RowError(f"{self.name} holds dates or times ({text!r} in row {row}): {self.instead_of_dates}", row)

    def form_of_numbers(self, say: Callable[[str], None]) -> str | None:
        """The form in which all texts write numbers, see `NumberForm`; None if they are labels in any task.

        Parameters
        ----------
        say : callable
            Tells the user that another decimal mark would read as many numbers.

        Raises
        ------
        ValueError
            For the first text that is not a number if nearly all are.
        """
        texts, reading = self.statistics, self.reading
        if reading is None:
            # texts of plain digits have no reading, as they are labels unless the task is regression
            if texts.count and texts.digits_only == texts.count:
                return ""
            return None
        if unread := sorted((*reading.first_unread, *texts.first_missing_mark)):
            written = f" written as {reading.form}" if reading.form else ""
            row, text = unread[0]
            raise RowError(
                f"{self.name} is {text!r} in row {row}, and its other values are numbers{written}: correct it, or say "
                f"that the text means missing ({self.marks.nulls}), and {WITHOUT_TARGET}",
                row,
            )
        if reading.is_ambiguous:
            say(ambiguous_mark_warning(self.name, reading, self.marks))
        return reading.form
