"""A column of a table file that holds the groups or the times of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from dkl.data.schema import HeldBy, RowColumn
from dkl.data.together.codes import group_codes, time_codes


class TogetherColumn:
    """What was seen of a group or time column, piece by piece.

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
        """Take the next rows of the input.

        Raises
        ------
        ValueError
            A value is missing, or is no time; its row is named.
        """
        self._codes(column, self.rows)
        self.rows += len(column)

    @property
    def known(self) -> RowColumn:
        """What a store keeps of it beside the codes."""
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
