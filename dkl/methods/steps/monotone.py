"""`monotone={"age": 1}` as signs of encoded columns."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset


def monotone_signs(monotone: Mapping[int | str, int] | None, dataset: Dataset, n_models: int) -> np.ndarray | None:
    """The sign of each encoded column, 0 where there is none: int64 of shape (d,); None for no columns at all.

    Raises
    ------
    ValueError
        For a column that is not there, a sign that is none, and several classes.
    """
    if not monotone:
        return None
    if dataset.classes is not None and n_models > 1:
        raise ValueError(
            f"monotone has a meaning for numbers and two classes, and the targets are {n_models} classes; fit each "
            "against the rest, or leave monotone out"
        )
    signs, names = np.zeros(dataset.n_columns, np.int64), dataset.column_names
    for column, sign in monotone.items():
        if sign not in (1, -1) or isinstance(sign, bool):
            raise ValueError(f"monotone[{column!r}] is {sign!r}; it must be 1 (the model rises) or -1 (it falls)")
        if isinstance(column, str):
            if names is None or column not in names:
                known = f"they are {spoken_names(names)}" if names else "they have no names: give their numbers"
                raise ValueError(f"monotone: there is no column {column!r} of numbers; {known}")
            signs[list(names).index(column)] = sign
        elif isinstance(column, Integral) and not isinstance(column, bool) and 0 <= column < len(signs):
            signs[int(column)] = sign
        else:
            raise ValueError(f"monotone: there is no column {column!r}; there are {len(signs)}, counted from 0")
    return signs
