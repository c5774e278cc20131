"""Columns, and pairs of them, that predict the target nearly perfectly: most were written after it was known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.keys import dense_columns
from dkl.linear.fitting import Run
from dkl.passes.engine import run_pass
from dkl.protocols.records import RowSample

TOO_GOOD = "Too good"
"""The word that the sentence on such columns begins with; the shell says it whatever else it leaves out."""
# Values of a column are told apart by so many quantiles.
_BINS = 64
# Nearly perfect: the squared error that remains, as a share of that of the mean, or of the shares of the classes.
_REMAINS = 5e-3
# Rows that check what others say, at least: on fewer a column is right by chance.
_FEWEST = 25
_MOST_NAMED, _MOST_ROWS = 3, 2_000
# Pairs are asked of tables of at most so many columns (1,225 pairs, a tenth of a second or two), and where so many rows
# of either half are not of the most frequent target.
_MOST_PAIRED, _FEWEST_UNUSUAL = 50, 10


def perfect_columns(sample: Dataset, run: Run, seed: int) -> list[tuple[tuple[str, ...], float]]:
    """The columns whose bins, by themselves, tell the target of other rows; and the share that they tell, from 0 to 1.

    Where no column does, pairs of columns are asked, of tables with few enough of them.

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
    judge = _HalfOfRows.of(np.asarray(rows.y), sample.classes)
    if judge is None:
        return []
    columns = [dense_columns(rows.X, place, place + 1)[:, 0] for place in range(len(names))]
    shares = {
        name: judge.share(_quantile_bins(column, judge.half)) for name, column in zip(names, columns, strict=True)
    }
    found: list[tuple[tuple[str, ...], float]] = [
        ((name,), share) for name, share in shares.items() if share >= 1.0 - _REMAINS
    ]
    # a column that is perfect alone is so beside any other one
    return found or _perfect_pairs(names, columns, judge)


def _perfect_pairs(
    names: Sequence[str], columns: list[np.ndarray], judge: _HalfOfRows
) -> list[tuple[tuple[str, ...], float]]:
    """The pairs of columns that tell the target together: by their values, or by how much one is above the other."""
    if len(columns) > _MOST_PAIRED or judge.n_unusual < _FEWEST_UNUSUAL:
        return []
    codes = [np.unique(column, return_inverse=True) for column in columns]
    found: list[tuple[tuple[str, ...], float]] = []
    for first, second in combinations(range(len(columns)), 2):
        difference = columns[first] - columns[second]
        told = [judge.share(_quantile_bins(difference, judge.half, split_at=0.0))]
        n_first, n_second = len(codes[first][0]), len(codes[second][0])
        if n_first * n_second <= _BINS:
            told.append(judge.share(codes[first][1] * n_second + codes[second][1]))
        if max(told) >= 1.0 - _REMAINS:
            found.append(((names[first], names[second]), max(told)))
    return found


@dataclass(frozen=True, eq=False)
class _HalfOfRows:
    """Targets of sampled rows, of which one half says what bins mean, and the other checks it.

    Parameters
    ----------
    targets : ndarray of shape (n, K), float64
        Of classes their indicators.
    half : ndarray of shape (n,), bool
        The rows that say it.
    n_unusual : int
        Rows of either half, at least, whose target is not the most frequent one: of few a pair is right by chance.
    """

    targets: np.ndarray
    half: np.ndarray
    n_unusual: int

    @classmethod
    def of(cls, y: np.ndarray, classes: np.ndarray | None) -> _HalfOfRows | None:
        """Those of codes of classes, or of numbers; None where they are too few, or all alike."""
        half = np.arange(len(y)) % 2 == 0
        targets = y[:, None].astype(np.float64) if classes is None else np.eye(len(classes))[y]
        if min(half.sum(), (~half).sum()) < _FEWEST or not np.any(targets[~half] != targets[half].mean(axis=0)):
            return None
        values, counts = np.unique(y, return_counts=True)
        is_unusual = y != values[np.argmax(counts)]
        return cls(targets, half, int(min(is_unusual[half].sum(), is_unusual[~half].sum())))

    def share(self, bins: np.ndarray) -> float:
        """The share of the squared error of the mean that the means of bins take away on the other half."""
        half, targets, size = self.half, self.targets, int(bins.max()) + 1
        mean = targets[half].mean(axis=0)
        counts = np.bincount(bins[half], minlength=size)
        sums = np.array([np.bincount(bins[half], target, size) for target in targets[half].T])
        # a bin without rows says what all rows say
        means = np.where(counts > 0, sums / np.maximum(counts, 1), mean[:, None])
        remains = float(((targets[~half] - means[:, bins[~half]].T) ** 2).sum())
        return 1.0 - remains / float(((targets[~half] - mean) ** 2).sum())


def _quantile_bins(column: np.ndarray, half: np.ndarray, split_at: float | None = None) -> np.ndarray:
    """The bin of each value among the quantiles of half of the rows; with `split_at`, bins end below and at it."""
    edges = np.unique(np.quantile(column[half], np.linspace(0.0, 1.0, _BINS + 1)))
    if split_at is not None:
        edges = np.unique([*edges, split_at, np.nextafter(split_at, -np.inf)])
    # what lies beyond all values of the first half is in the bin that is nearest
    return np.minimum(np.searchsorted(edges, column), len(edges) - 1)


def planned_columns(sample: Dataset, seed: int) -> list[tuple[list[RowSample], int]]:
    """The pass that reads the rows; none where nothing is asked: of columns without names, single ones, sparse rows."""
    is_asked = sample.column_names is not None and sample.n_columns > 1 and not sample.source.is_sparse
    if not is_asked or sample.task is None or sample.schema.n_targets is not None:
        return []
    return [([RowSample("rows to look at columns alone", min(sample.n_rows, _MOST_ROWS), seed)], 1)]


def asked(found: list[tuple[tuple[str, ...], float]]) -> tuple[str, ...]:
    """The sentence on these columns for the reasons of a fit; none where there are none."""
    if not found:
        return ()
    is_pair = len(found[0][0]) > 1
    shown = ", ".join(
        f"{' and '.join(map(repr, names))} {'together give' if is_pair else 'alone gives'} {share:.3f}"
        for names, share in found[:_MOST_NAMED]
    )
    kind = "pairs" if is_pair else "columns"
    more = f", and {len(found) - _MOST_NAMED} more {kind}" if len(found) > _MOST_NAMED else ""
    question = "are both" if is_pair else "is it"
    remedy = "If one of them" if is_pair else "If it"
    return (
        f"{TOO_GOOD}: {shown}{more} (1 less the squared error that remains on other rows): {question} known when you "
        f"predict? {remedy} is written down afterwards, leave it out (drop, in the shell --drop) and fit again.",
    )
