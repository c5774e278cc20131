"""Columns that predict the target nearly perfectly by themselves: most of them were written after it was known."""

from __future__ import annotations

import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.keys import dense_columns
from dkl.linear.fitting import Run
from dkl.passes.engine import run_pass
from dkl.protocols.records import RowSample

# Values of a column are told apart by so many quantiles.
_BINS = 64
# Nearly perfect: the squared error that remains, as a share of that of the mean, or of the shares of the classes.
_REMAINS = 5e-3
# Rows that check what others say, at least: on fewer a column is right by chance.
_FEWEST = 25
_MOST_NAMED, _MOST_ROWS = 3, 2_000


def perfect_columns(sample: Dataset, run: Run, seed: int) -> list[tuple[str, float]]:
    """The columns whose bins, by themselves, tell the target of other rows; and the share that they tell, from 0 to 1.

    Bins are quantiles of half of the rows; what each says is the mean of its targets (of classes: of their indicators),
    and it is checked on the other half. Columns of one table of a single column are none: there is nothing else to
    learn from.

    Parameters
    ----------
    sample : Dataset
        Rows in memory, or few enough to be read at once.
    run : Run
    seed : int
    """
    names = sample.column_names
    if names is None or not planned_columns(sample, seed):
        return []
    (([record], _),) = planned_columns(sample, seed)
    (rows,) = run_pass(sample.source, [record], publish=run.publish, memory_limit=run.memory_limit).results
    y = np.asarray(rows.y)
    targets = y[:, None].astype(np.float64) if sample.classes is None else np.eye(len(sample.classes))[y]
    half = np.arange(len(y)) % 2 == 0
    errors = targets[~half] - targets[half].mean(axis=0)
    whole = float((errors**2).sum())
    if min(half.sum(), (~half).sum()) < _FEWEST or not whole > 0.0:
        return []
    found = []
    for place, name in enumerate(names):
        column = dense_columns(rows.X, place, place + 1)[:, 0]
        edges = np.unique(np.quantile(column[half], np.linspace(0.0, 1.0, _BINS + 1)))
        # what lies beyond all values of the first half is in the bin that is nearest
        bins = np.minimum(np.searchsorted(edges, column), len(edges) - 1)
        counts = np.bincount(bins[half], minlength=len(edges))
        sums = np.array([np.bincount(bins[half], target, len(edges)) for target in targets[half].T])
        # a bin without rows says what all rows say
        means = np.where(counts > 0, sums / np.maximum(counts, 1), targets[half].mean(axis=0)[:, None])
        remains = float(((targets[~half] - means[:, bins[~half]].T) ** 2).sum()) / whole
        if remains <= _REMAINS:
            found.append((name, 1.0 - remains))
    return found


def planned_columns(sample: Dataset, seed: int) -> list[tuple[list[RowSample], int]]:
    """The pass that reads the rows; none where nothing is asked: of columns without names, single ones, sparse rows."""
    is_asked = sample.column_names is not None and sample.n_columns > 1 and not sample.source.is_sparse
    if not is_asked or sample.task is None or sample.schema.n_targets is not None:
        return []
    return [([RowSample("rows to look at columns alone", min(sample.n_rows, _MOST_ROWS), seed)], 1)]


def asked(found: list[tuple[str, float]]) -> tuple[str, ...]:
    """The sentence on these columns for the reasons of a fit; none where there are none."""
    if not found:
        return ()
    shown = ", ".join(f"{name!r} alone gives {share:.3f}" for name, share in found[:_MOST_NAMED])
    more = f", and {len(found) - _MOST_NAMED} more columns" if len(found) > _MOST_NAMED else ""
    return (
        f"Too good: {shown}{more} (1 less the squared error that remains on other rows): is it known when you predict? "
        "If it is written down afterwards, leave it out (drop, in the shell --drop) and fit again.",
    )
