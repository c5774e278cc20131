"""Columns whose newest values no older row has, such as the days of a date or the month of rows of one year.

A model of older rows has never seen such values, and what it says of them goes on with whatever trend it has found.
"""

from __future__ import annotations

import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.keys import dense_columns
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.passes.engine import run_pass
from dkl.protocols.records import RowSample

# A column runs ahead where so many of the newest rows lie beyond all older ones.
_MOST_BEYOND = 0.5


def columns_ahead(sample: Dataset, newest: HeldOut, run: Run, seed: int) -> list[str]:
    """The encoded columns of numbers that lie beyond the values of all older rows in more than half of the newest ones.

    Of a date that is its days: the weekday and what else recurs is not ahead. A flag of missing values goes with its
    number.

    Parameters
    ----------
    sample : Dataset
        Rows of a table, held out by time; one pass reads all of them.
    newest : HeldOut
        The rows that judge.
    run : Run
    seed : int
    """
    record = RowSample("rows to look for columns ahead", sample.n_rows, seed)
    (rows,) = run_pass(sample.source, [record], publish=run.publish, memory_limit=run.memory_limit).results
    is_new = newest.mask(rows.held_with)
    if is_new.all() or not is_new.any():
        return []
    ahead, first = [], 0
    for rule in sample.encoding.rules:
        if rule.kind == "number" or "days" in rule.parts:
            values = dense_columns(rows.X, first, first + 1)[:, 0]
            older, new = values[~is_new], values[is_new]
            if np.mean((new < older.min()) | (new > older.max())) > _MOST_BEYOND:
                has_cycles = len(rule.parts) > 1
                ahead += rule.output_names[:1] if has_cycles else rule.output_names
        first += len(rule.output_names)
    return ahead
