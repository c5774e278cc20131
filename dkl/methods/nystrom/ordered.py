"""Categories with ordered texts, such as letters, sizes or ranges: one number in place of one-hot columns."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

# The fewest values of a category that are ranked: ranks of fewer say no more than one-hot columns.
_FEWEST = 3
# A number in a text.
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def text_order(texts: tuple[str, ...]) -> np.ndarray | None:
    """The rank of each text, int64; None for texts without a natural order.

    Single letters of one case are ordered by the alphabet, texts that each contain a number by the first one ("18-24",
    "grade 3").

    Parameters
    ----------
    texts : tuple of str
        Distinct texts.

    Examples
    --------
    >>> text_order(("10-20", "5-10", "20 or more"))
    array([1, 0, 2])
    >>> text_order(("red", "green", "blue")) is None
    True
    """
    if len(texts) < _FEWEST:
        return None
    if all(len(text) == 1 and text.isascii() and text.isalpha() for text in texts):
        cases = {text.islower() for text in texts}
        values = [float(ord(text)) for text in texts] if len(cases) == 1 else []
    else:
        numbers = [_NUMBER.search(text) for text in texts]
        values = [float(number.group()) for number in numbers if number is not None]
    if len(set(values)) < len(texts):
        return None
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")


def ordered_names(encoding: Any) -> tuple[str, ...]:
    """The categorical columns of a table whose texts have a natural order; empty for rows without a table."""
    rules = [] if encoding is None else encoding.rules
    return tuple(rule.name for rule in rules if rule.kind == "category" and text_order(rule.categories) is not None)


def ordered_columns(encoding: Any, n_columns: int) -> np.ndarray | None:
    """P of shape (d, d'): rows x become x P, with one number in place of the one-hot columns of each ordered category.

    The ranks of V values are equally spaced, with mean 0 and variance 1; a missing value, for which all one-hot columns
    are 0, is 0. All other columns stay.

    Parameters
    ----------
    encoding : TableEncoding, FittedEncoding or None
    n_columns : int
        d.

    Returns
    -------
    ndarray or None
        None if no category has an order.
    """
    names = ordered_names(encoding)
    if not names:
        return None
    columns, start = [], 0
    for rule in encoding.rules:
        width = len(rule.output_names)
        if rule.name in names:
            rank = np.asarray(text_order(rule.categories), np.float64)
            column = np.zeros(n_columns)
            column[start : start + len(rank)] = (rank - rank.mean()) / rank.std()
            columns.append(column)
        first = start + (len(rule.categories) if rule.name in names else 0)
        columns += list(np.eye(n_columns)[first : start + width])
        start += width
    return np.stack(columns, axis=1)
