"""What a plan adds up before anything is drawn: frequencies that no memory holds are refused by their sum."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from dask.utils import format_bytes

from dkl.errors import MemoryLimitError
from dkl.features.families import FiniteFamily
from dkl.methods.parameters import columns_a_frequency
from dkl.passes.memory import allowed_bytes

_NUMBER = 8
# a plan may draw that much, and then says the sum of each pass item by item
_DRAWN = 128 << 20
# bytes a frequency has where only signs and a length are kept of it
_STRUCTURED = 3 + _NUMBER


class Planned(Protocol):
    """A learner whose plan draws frequencies."""

    dtype: str
    memory_limit: int | str | None

    def _planned_family(self) -> Any: ...


def check_room(learner: Planned, n_frequencies: int | None, n_columns: int, *, n_points: int = 0) -> None:
    """Refuse more frequencies, or points of d columns, than the learner may hold; nothing is drawn for that.

    Parameters
    ----------
    learner : feature learner
        With its family, its `dtype` and its `memory_limit`.
    n_frequencies : int or None
        None is all of a finite family, which are few.
    n_columns : int
        d.
    n_points : int
        Landmarks, or the starting points of a search.

    Raises
    ------
    MemoryLimitError
        With the sum.
    """
    family = learner._planned_family()
    allowed = allowed_bytes(learner.memory_limit, None)
    entries = n_columns * np.dtype(learner.dtype).itemsize
    each = _STRUCTURED if getattr(family, "sampling", "") == "structured" else entries
    if hasattr(family, "share"):
        # sparse frequencies: each of their entries is kept with the number of its column
        each = 2 * round(entries * family.share)
    drawn = 0 if n_frequencies is None or isinstance(family, FiniteFamily) else int(n_frequencies)
    # beside a frequency its amplitude, and a coefficient of each of its features
    frequencies = drawn * (each + _NUMBER + _NUMBER * columns_a_frequency(family))
    needed = frequencies + int(n_points) * n_columns * _NUMBER
    if needed > max(allowed, _DRAWN):
        what = [f"{drawn:,} frequencies"] * bool(drawn) + [f"{int(n_points):,} points"] * bool(n_points)
        raise MemoryLimitError(
            f"{type(learner).__name__} would hold {' and '.join(what)} of {n_columns:,} columns: {needed:,} bytes "
            f"({format_bytes(needed)}) in one process, which may take {format_bytes(allowed)}. Ask for fewer features, "
            "candidates or landmarks, take sampling='structured', or allow more by memory_limit"
        )
