"""A machine's search for further categories: numbers that are names (codes, years), and crosses of few values.

A column of whole numbers is a suspect if it has many values, each in several rows, and does not merely count the rows.
A name differs from a quantity in that neighbouring values predict little about a value. A suspect is therefore treated
as a category if the mean target of each value lowers the held-out squared error of a model that already has the number
itself and the mean targets of neighbouring values. A cross of two or three columns with few values has to lower the
held-out squared error of a model on its parts. Both follow from sums by value and fold; see `dkl.encodings.gains`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset
from dkl.data.ingest.column_rules import with_places
from dkl.data.ingest.encoding import TableEncoding
from dkl.encodings.categories import CategoryFit
from dkl.encodings.fitted import Made
from dkl.encodings.gains import ADOPTED_GAIN, clear_mean_gain, held_out_gains
from dkl.encodings.keys import CategoryKey, WholeNumbers, category_parts, dense_columns
from dkl.encodings.sums import CategorySum
from dkl.encodings.target_means import CategoryFolds, FoldTotals, fold_deviations
from dkl.kernels.tiles import spans
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import PlannedRun, Run, run_pass
from dkl.protocols.arrays import dense_rows
from dkl.protocols.records import RowSample

# The smallest number of rows that are searched: the held-out share of fewer rows is too small to judge the result.
_FEWEST_ROWS = 4_000
# The most rows, and the most bytes, of the sample whose values are counted.
_SAMPLE_ROWS, _SAMPLE_BYTES = 50_000, 32 * 2**20
# A column of numbers is tried as a category if it has more than FEW and at most _MOST_VALUES values, with at least
# _ROWS_A_VALUE rows for each on average.
FEW, _ROWS_A_VALUE, _MOST_VALUES = 32, 2.0, 1 << 15
# A column of consecutive numbers counts the rows, or is a time, if more than this share of its steps from row to row do
# not fall, or do not rise.
_MONOTONE = 0.9
# The smallest mean number of rows for each combination of values of a cross, and the most bytes of sums of a trial.
_ROWS_A_CELL, _TRIED_BYTES = 20, 32 * 2**20
# The most crosses that are tried (1,000 take a second), and the most columns in them, those with the fewest values.
_MOST_TRIED, _MOST_CROSSED = 1_000, 200
# The most crosses that are kept, and the most columns that they may add together.
_MOST_CROSSES, _MOST_NUMBERS = 8, 200
# An upper bound of the number of arrays, of one number for each code and fold, in memory while one gain is computed.
_COLUMNS_OF_GAINS = 64
# The number of codes whose moments are summed at once.
_AT_ONCE = 1 << 13
# Least-squares models of crosses, one for each target, that are fitted together: their moments take some 200 KiB.
_MODELS_AT_ONCE = 64


@dataclass(frozen=True)
class Found:
    """The result of the search: numbers to be treated as categories, and crosses.

    Parameters
    ----------
    made : Made
        Numbers and crosses that lower the held-out squared error; empty where none does.
    suspected : tuple of str
        All columns of whole numbers that look like names.
    """

    made: Made = field(default_factory=Made)
    suspected: tuple[str, ...] = ()

    def sentence(self, what: str, is_better: bool, before: float | None = None, after: float | None = None) -> str:
        """A sentence for a machine's reasons: what was tried, what was decided, and which parameter pins it.

        Parameters
        ----------
        what : {"taken", "crosses"}
            The field of `Made` that the sentence is about.
        is_better : bool
            Whether a plain model with these categories is better on held-out rows.
        before, after : float or None
            Scores on held-out rows without and with these categories; None where no model was fitted.
        """
        names = list(self.made.taken if what == "taken" else map(" x ".join, self.made.crosses))
        scores = "" if after is None else f" (score of plain models on held-out rows {after:.4f}, {before:.4f} without)"
        if what == "crosses":
            decided = "are taken as categories" if is_better else "were tried as categories, and gain too little"
            return f"Crosses: {spoken_names(names)} {decided}{scores}; categorical=[] tries none."
        looks = f"Suspects: {spoken_names(self.suspected)} may be names, not quantities"
        if is_better:
            return (
                f"{looks}; mean targets of the values of {spoken_names(names)} are columns beside the numbers{scores}. "
                f"categorical={names} takes the values for names alone, categorical=[] takes none."
            )
        return f"{looks}; taken as quantities, since held-out rows gain nothing{scores}. categorical=[...] takes names."


def more_categories(dataset: Dataset, held_out: HeldOut, run: Run, seed: int) -> Found:
    """Search for numbers and crosses that predict better as categories; empty for sparse rows and for few rows.

    Parameters
    ----------
    dataset : Dataset
    held_out : HeldOut
        The held-out rows, which no sum includes.
    run : Run
    seed : int
        Draws the sample.
    """
    if not _is_searched(dataset):
        return Found()
    suspects, few = whole_numbers(_sample(dataset, run, seed), dataset.encoding)
    parts = category_parts(dataset.encoding, [*suspects, *few])
    of_few = [name for name, part in parts.items() if not part.is_code and part.n_values <= FEW]
    if not suspects and len(of_few) < 2:
        return Found()
    trial = NumberTrial(dataset, CategoryFolds(held_out), False, 2**62, run)
    taken = trial.gaining_numbers({name: CategoryKey((parts[name],)) for name, _ in suspects})
    crosses = trial.gaining_crosses({name: CategoryKey((parts[name],)) for name in of_few})
    used = {*taken, *(name for cross in crosses for name in cross)}
    numbers = tuple(each for each in (*suspects, *few) if each[0] in used)
    return Found(Made((), crosses, numbers, taken), tuple(name for name, _ in suspects))


def plan_suspects(dataset: Dataset, plan: PlannedRun, seed: int) -> bool:
    """Record the passes of `more_categories` in a plan, with bounds of the sums and of what the driver holds.

    It is no replay, since no sample has both the most suspects and the most crosses: every number counts as either.
    Returns whether the rows are searched.
    """
    if not _is_searched(dataset):
        return False
    trial = NumberTrial(dataset, CategoryFolds(HeldOut(0.1)), False, 2**62, plan)
    plan.passes.append(([_sample_record(dataset, seed)], 1))
    plan.passes.append((trial.records(trial.sums_of_folds), 1))
    codes, folds = _planned_codes(trial), trial.folds.count
    # once in the search, and once more in the fit that uses the categories found
    for n_codes in codes:
        plan.passes.append((trial.records([CategorySum("any", None, 0, n_codes * len(trial.outputs))]), 2))
    # three times the sums: those of the search, those of the fit, and its tables; then the largest key's intermediates
    sums = 3 * 8 * folds * len(trial.outputs) * sum(codes)
    largest = min(max(codes), max(FEW**3, _MOST_VALUES))
    plan.holds({"sums of suspects": sums + 8 * folds * _COLUMNS_OF_GAINS * largest})
    return True


def _planned_codes(trial: NumberTrial) -> list[int]:
    """Upper bounds of the number of codes with sums: over all suspects, over all pairs, and over all triples."""
    dataset = trial.dataset
    numbers = sum(rule.kind in ("number", "boolean") for rule in dataset.encoding.rules)
    few = numbers + sum(rule.kind == "category" for rule in dataset.encoding.rules)
    values = min(min(dataset.n_rows, _SAMPLE_ROWS) / _ROWS_A_VALUE, _MOST_VALUES)
    cells = [min(dataset.n_rows / _ROWS_A_CELL, FEW**size) for size in (2, 3)]
    kinds = [numbers * (1 + values), *(comb(few, size) * (1 + of) for size, of in zip((2, 3), cells, strict=True))]
    return [max(int(min(codes, _TRIED_BYTES / (8 * trial.folds.count * len(trial.outputs)))), 1) for codes in kinds]


def _is_searched(dataset: Dataset) -> bool:
    """Whether the rows are searched: dense rows of a table with a target, of at least `_FEWEST_ROWS`."""
    is_table = isinstance(dataset.encoding, TableEncoding) and not dataset.encoding.array_dtype
    has_target = dataset.task is not None
    return is_table and has_target and not dataset.source.is_sparse and dataset.n_rows >= _FEWEST_ROWS


def whole_numbers(rows: np.ndarray, encoding: TableEncoding) -> tuple[list[WholeNumbers], list[WholeNumbers]]:
    """Two lists of a table's columns of whole numbers: those that look like names, and those with at most `FEW` values.

    Parameters
    ----------
    rows : ndarray of shape (n, d)
        In the order of the dataset.
    encoding : TableEncoding
    """
    suspects, few = [], []
    for rule, start in with_places(encoding.rules):
        if rule.kind not in ("number", "boolean"):
            continue
        values = dense_columns(rows, start, start + 1)[:, 0].astype(np.float64)
        # missing values are filled with a number that need not be whole
        values = values[values == np.floor(values)] if rule.fill is not None else values
        if not len(values) or not (values == np.floor(values)).all() or np.abs(values).max() >= 2**24:
            continue
        different = tuple(np.unique(values).astype(int).tolist())
        if len(different) <= FEW:
            if len(different) > 1:
                few.append((rule.name, different))
            continue
        # a counter of rows: all whole numbers between the smallest and the largest, in the order of the rows
        steps = np.diff(values)
        is_run = (
            different[-1] - different[0] < len(different) and max(np.mean(steps >= 0), np.mean(steps <= 0)) > _MONOTONE
        )
        if len(different) <= min(len(values) / _ROWS_A_VALUE, _MOST_VALUES) and not is_run:
            suspects.append((rule.name, different))
    return suspects, few


def _sample(dataset: Dataset, run: Run, seed: int) -> np.ndarray:
    """The sampled rows of the dataset in the order of their identities."""
    record = _sample_record(dataset, seed)
    (rows,) = run_pass(dataset.source, [record], publish=run.publish, memory_limit=run.memory_limit).results
    return dense_rows(rows.X[np.argsort(rows.row_id, kind="stable")])


def _sample_record(dataset: Dataset, seed: int) -> RowSample:
    """The record of the pass that draws the sample."""
    most = max(min(_SAMPLE_ROWS, _SAMPLE_BYTES // (dataset.n_columns * dataset.source.dtype.itemsize)), 1)
    return RowSample("rows to look for names in", min(most, dataset.n_rows), seed)


@dataclass(frozen=True, eq=False)
class NumberTrial(CategoryFit):
    """The trial of numbers and crosses as categories, by the sums that also give target means."""

    # the deviations of each pair, which many triples contain
    _of_pairs: dict[CategoryKey, np.ndarray] = field(default_factory=dict, init=False)

    @cached_property
    def totals(self) -> FoldTotals:
        self._sum(self.sums_of_folds)
        return super().totals

    def _summed(
        self, keys: dict[tuple[str, ...], CategoryKey], most: int | None = None
    ) -> dict[tuple[str, ...], CategoryKey]:
        """The keys that are `affordable` within `_TRIED_BYTES`, after their sums were computed."""
        fits = self.affordable(keys, _TRIED_BYTES, most)
        self._sum([each for key in fits.values() for each in self._sums_of(key)])
        return fits

    def gaining_numbers(self, suspects: dict[str, CategoryKey]) -> tuple[str, ...]:
        """The suspects whose values clearly improve predictions beyond the number and its neighbouring values."""
        totals, taken = self.totals, []
        for (name,), key in self._summed({(name,): key for name, key in suspects.items()}).items():
            weight, targets = self._cells(key, 0, key.size)
            priors = self._priors(key)
            gains = [
                value_gains(weight, targets[t], totals.only(t), float(priors[t]), key.parts[0].values)
                for t in range(self.n_targets)
            ]
            if clear_mean_gain(gains) > ADOPTED_GAIN:
                taken.append(name)
        return tuple(name for name in suspects if name in taken)

    def gaining_crosses(self, few: dict[str, CategoryKey]) -> tuple[tuple[str, ...], ...]:
        """The pairs and triples of columns of few values with the largest clear gains over their parts."""
        gains: dict[tuple[str, ...], float] = {}
        crossed: dict[tuple[str, ...], CategoryKey] = {}
        fewest = sorted(few, key=lambda name: few[name].size)[:_MOST_CROSSED]
        pairs = list(combinations([name for name in few if name in fewest], 2))
        for size in (2, 3):
            tried = pairs if size == 2 else _triples(pairs, crossed)
            keys = {names: CategoryKey(tuple(few[name].parts[0] for name in names)) for names in tried}
            enough = self.dataset.n_rows / _ROWS_A_CELL
            keys = {names: key for names, key in keys.items() if key.size <= enough}
            keys = self._summed(keys, _MOST_TRIED - len(gains))
            crossed |= keys
            gains |= self._cross_gains(list(keys), crossed)
        most = min(_MOST_CROSSES, _MOST_NUMBERS // len(self.outputs))
        best = sorted((names for names in gains if gains[names] > ADOPTED_GAIN), key=lambda names: -gains[names])[:most]
        return tuple(names for names in gains if names in best)

    def _of_pair(self, key: CategoryKey) -> np.ndarray:
        """The deviations of a pair, (F, T, V), with its best prior weight; computed once."""
        if key not in self._of_pairs:
            self._of_pairs[key] = self._deviations(key, self._priors(key))
        return self._of_pairs[key]

    def _of_parts(self, key: CategoryKey) -> list[np.ndarray]:
        """For each part of a cross the deviations of its values, (F, T, B + 1), from the sums of the cross."""
        weight, targets = self._cells(key, 0, key.size)
        shape = (len(weight), *(part.n_values for part in key.parts))
        own = []
        for place in range(1, len(shape)):
            others = tuple(axis for axis in range(1, len(shape)) if axis != place)
            # code 0, of missing values, is left out
            N, S = (np.zeros((*sums.shape[:-1], shape[place] + 1)) for sums in (weight, targets))
            N[:, 1:] = weight[:, 1:].reshape(shape).sum(axis=others)
            S[:, :, 1:] = targets[:, :, 1:].reshape(-1, *shape).sum(axis=tuple(axis + 1 for axis in others))
            own.append(fold_deviations(N, S, self.totals, np.ones(self.n_targets), first=0))
        return own

    def _cross_gains(
        self, crosses: Sequence[tuple[str, ...]], crossed: dict[tuple[str, ...], CategoryKey]
    ) -> dict[tuple[str, ...], float]:
        """The gain of each cross, all of pairs or all of triples; the models of several crosses are fitted together."""
        found: dict[tuple[str, ...], float] = {}
        for some in spans(len(crosses), max(_MODELS_AT_ONCE // self.n_targets, 1)):
            of_crosses = [self._cross_moments(names, crossed) for names in crosses[some]]
            per_target = []
            for t in range(self.n_targets):
                moments, answers = (np.stack(sums) for sums in zip(*(each[t] for each in of_crosses), strict=True))
                totals = self.totals.only(t)
                per_target.append(held_out_gains(moments, answers, totals.squares[0], totals))
            found |= {
                names: clear_mean_gain([gains[i] for gains in per_target]) for i, names in enumerate(crosses[some])
            }
        return found

    def _cross_moments(
        self, names: tuple[str, ...], crossed: dict[tuple[str, ...], CategoryKey]
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each target the moments (F, k, k) and answers (F, k) of one cross, as `held_out_gains` takes them.

        The k columns of its least-squares model are 1, the target means of the values of each of its columns and, of a
        triple, of each pair of them, and last the target means of the cross itself, whose gain is measured.
        """
        key = crossed[names]
        weight, targets = self._cells(key, 0, key.size)
        shape = (len(weight), *(part.n_values for part in key.parts))
        own = self._of_pair(key) if len(names) == 2 else self._deviations(key, self._priors(key))
        parts: list[tuple[tuple[int, ...], np.ndarray]] = [
            ((axis,), of_values) for axis, of_values in enumerate(self._of_parts(key), 1)
        ]
        for axes in combinations(range(1, len(shape)), 2) if len(names) > 2 else ():
            parts.append((axes, self._of_pair(crossed[tuple(names[axis - 1] for axis in axes)])))
        per_target = []
        for t in range(self.n_targets):
            columns = [np.ones(shape)]
            for along, deviations in parts:
                # a part's deviations are constant along the axes of the other columns
                own_shape = (len(weight), *(shape[axis] if axis in along else 1 for axis in range(1, len(shape))))
                columns.append(deviations[:, t, 1:].reshape(own_shape))
            columns.append(own[:, t, 1:].reshape(shape))
            u = np.stack([np.broadcast_to(column, shape).reshape(len(weight), -1) for column in columns], axis=2)
            per_target.append(_moments_of(weight[:, 1:], targets[t][:, 1:], u))
        return per_target


def _triples(
    pairs: Sequence[tuple[str, ...]], crossed: Mapping[tuple[str, ...], CategoryKey]
) -> Iterator[tuple[str, ...]]:
    """Triples of columns whose three pairs are all in `crossed`."""
    later: dict[str, list[str]] = {}
    for first, second in pairs:
        if (first, second) in crossed:
            later.setdefault(first, []).append(second)
    for first, of_first in later.items():
        for second in of_first:
            yield from ((first, second, third) for third in later.get(second, ()) if (first, third) in crossed)


def value_gains(
    weight: np.ndarray, target: np.ndarray, totals: FoldTotals, prior: float, values: tuple[int, ...]
) -> np.ndarray:
    """The held-out gains of the values' mean targets over a model on the number and the means of neighbouring values.

    A neighbourhood of width w is all values within w of a value, without itself, for w = 1, 3, 9, ... up to an eighth
    of all values.

    Parameters
    ----------
    weight, target : ndarray of shape (F, V + 1)
        N and S by fold and code; code 0 is a missing value.
    totals : FoldTotals
        The totals of this target alone.
    prior : float
        The prior weight of the means, in rows.
    values : tuple of int
        The number that each code stands for, from code 1 on.
    """
    V, a = weight.shape[1] - 1, np.array([prior])
    widths = [w for w in (3**k for k in range(20)) if w <= max(V // 8, 1)]
    own = fold_deviations(weight, target[None], totals, a, first=0)[:, 0, 1:]
    number = np.asarray(values, np.float64)
    columns = [np.ones_like(own), np.broadcast_to((number - number.mean()) / number.std(), own.shape)]
    for width in widths:
        N, S = (_neighbour_sums(sums[:, 1:], width) for sums in (weight, target))
        columns.append(fold_deviations(N, S[None], totals, a, first=1)[:, 0])
    u = np.stack([*columns, own], axis=2)
    return held_out_gains(*_moments_of(weight[:, 1:], target[:, 1:], u), totals.squares[0], totals)


def _neighbour_sums(sums: np.ndarray, width: int) -> np.ndarray:
    """For each value the sum over the `width` values on either side of it, without itself: (F, V)."""
    V = sums.shape[1]
    up_to = np.insert(np.cumsum(sums, axis=1), 0, 0.0, axis=1)
    places = np.arange(V)
    around = up_to[:, np.minimum(places + width + 1, V)] - up_to[:, np.maximum(places - width, 0)]
    return around - sums


def _moments_of(weight: np.ndarray, target: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The moments and answers, for `held_out_gains`, of k columns u (F, V, k) that are constant in each fold and code.

    Parameters
    ----------
    weight, target : ndarray of shape (F, V)
    """
    k = u.shape[2]
    moments, answers = np.zeros((len(u), k, k)), np.zeros((len(u), k))
    for part in spans(u.shape[1], _AT_ONCE):
        weighted = weight[:, part, None] * u[:, part]
        moments += weighted.swapaxes(1, 2) @ u[:, part]
        answers += np.einsum("fv,fvi->fi", target[:, part], u[:, part])
    return moments, answers
