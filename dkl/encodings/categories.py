"""Replaces columns of category codes in a fit by target means and counts, from passes that sum targets by value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.ingest.column_rules import with_places
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.other_rules import filled_like_fit
from dkl.data.view import View
from dkl.encodings.fitted import FittedEncoding, Made, code_places, named_rules
from dkl.encodings.gains import (
    ADOPTED_GAIN,
    centred_gains,
    clear_mean_gain,
    cross_moments,
    held_out_gains,
    slope_gains,
)
from dkl.encodings.keys import CategoryKey, category_parts
from dkl.encodings.row_matrices import Rows, RowsInFile
from dkl.encodings.source import CategoryNumbers
from dkl.encodings.sums import CategorySum, category_sums, sums_cost
from dkl.encodings.target_means import (
    PRIORS,
    CategoryFolds,
    FoldTotals,
    best_priors,
    fold_deviations,
    fold_numbers,
    held_by_time,
    names_of_targets,
    new_numbers,
    prior_losses,
    slope_deviations,
    within_sums,
)
from dkl.encodings.texts import texts_like_fit, with_texts
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.linear.judge import last_least
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import PlannedRun, Run, run_pass
from dkl.passes.room import room_of
from dkl.passes.session import backend_for
from dkl.protocols.records import Accumulator, BlockSum, Record

Names = TypeVar("Names", bound=tuple[str, ...])
T = TypeVar("T")

# The sums of one pass take at most _MOST_BYTES, and at most the memory of a process over _SHARE_OF_A_PASS, since a
# worker holds the sums of several blocks at the same time.
_MOST_BYTES, _SHARE_OF_A_PASS = 64 * 2**20, 64
# Sums and tables are written to files where they take more than the memory of a process divided by this.
_SHARE_IN_MEMORY = 4
# Bounds of the search for crosses, centred numbers and slopes, which do not depend on the memory limit: it needs
# _FEWEST_ROWS rows, tries at most _MOST_TRIED crosses, and as many pairs of a category and a number, with at most
# _MOST_VALUES values each and _TRIED_BYTES of sums together, and keeps at most _MOST_KEPT of each kind:
# of 2.25 million flights, eight crosses rank better (area .7937) than four (.7885).
_FEWEST_ROWS, _MOST_TRIED, _MOST_VALUES, _TRIED_BYTES = 1_000, 32, 1 << 17, 32 * 2**20
_MOST_KEPT = 8
# The largest number of value triples of a cross of three columns, and the most bytes of the sums of all such crosses.
# These are larger than for pairs, since only the few pairs that gain get a third column.
_MOST_TRIPLES, _TRIPLE_BYTES = 1 << 21, 256 * 2**20
# An upper bound of the number of arrays, each of the size of the sums, in memory while gains and tables are computed.
_WORKING_ARRAYS = 32
NOTHING = Made()


def with_categories(
    dataset: Dataset, held_out: HeldOut, run: Run, *, centres: bool = True, more: Made = NOTHING
) -> Dataset:
    """The rows with target means and counts in place of codes; the dataset itself if no column holds codes.

    Parameters
    ----------
    dataset : Dataset
    held_out : HeldOut
        The rows that are kept out of the fit to judge it: their targets enter the numbers of no other row.
    run : Run
        Runs the passes over the rows.
    centres : bool
        Whether columns "number minus the mean of the number in the row's category", and slopes of the target in a
        number by category, may be added.
    more : Made
        Numbers to be treated as categories, and crosses, which are added without a trial.

    Returns
    -------
    Dataset
        Its encoding is a `FittedEncoding`, which replaces the codes of new rows.
    """
    dataset = with_texts(dataset, held_out, run)
    if not dataset.schema.has_codes and not more:
        return dataset
    backend = backend_for(dataset.source, (), "cpu", run.memory_limit)
    try:
        allowed = room_of(backend.memories(()), run.memory_limit).nbytes
    finally:
        backend.close()
    return CategoryFit(dataset, CategoryFolds(held_out), centres, allowed, run, more).numbered()


def planned_categories(dataset: Dataset, allowed: int) -> tuple[Dataset, list[Record], dict[str, int], int]:
    """The plan of `with_categories`: the rows as later passes see them, its records, bytes in memory and in files.

    A replay has one choice of crosses; the plan has upper bounds over all choices.

    Parameters
    ----------
    dataset : Dataset
    allowed : int
        Bytes that a process may hold.
    """
    held_out, run = HeldOut(0.1), PlannedRun(n_rows=dataset.n_rows)
    dataset = with_texts(dataset, held_out, run)
    of_texts = [record for passes, _ in run.passes for record in passes]
    if not dataset.schema.has_codes:
        return dataset, of_texts, {}, 0
    planned, records, held, in_files = CategoryFit(dataset, CategoryFolds(held_out), True, allowed, run).planned()
    return planned, [*of_texts, *records], held, in_files


@dataclass(frozen=True, eq=False)
class CategoryFit:
    """The replacement of codes by numbers in one fit.

    Parameters
    ----------
    dataset : Dataset
        With columns of codes.
    folds : CategoryFolds
    centres : bool
    allowed : int
        Bytes that a process may hold.
    run : Run
    more : Made
        Numbers treated as categories, and crosses, that are used without a trial.
    """

    dataset: Dataset
    folds: CategoryFolds
    centres: bool
    allowed: int
    run: Run
    more: Made = NOTHING
    _sums: dict[str, Rows] = field(default_factory=dict, init=False)

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the numbers learned for each value: shares of classes (not the first) or target means; log count."""
        return (*names_of_targets(self.dataset.schema, "share of", "mean target"), "log count")

    @property
    def n_targets(self) -> int:
        return len(self.outputs) - 1

    @cached_property
    def codes(self) -> dict[str, CategoryKey]:
        """The columns of codes, by name."""
        parts = category_parts(self.dataset.encoding)
        return {name: CategoryKey((part,)) for name, part in parts.items() if part.is_code}

    @cached_property
    def added(self) -> dict[tuple[str, ...], CategoryKey]:
        """The categories of `more`: numbers treated as categories, and crosses, by the names of their columns."""
        parts, made = category_parts(self.dataset.encoding, self.more.numbers), self.more
        names = [*((name,) for name in made.taken), *made.crosses]
        return {several: CategoryKey(tuple(parts[name] for name in several)) for several in names}

    @cached_property
    def tried_crosses(self) -> dict[tuple[str, ...], CategoryKey]:
        """Pairs of a column of codes and another column of categories, those with the fewest pairs of values first."""
        parts = category_parts(self.dataset.encoding)
        names = list(parts)
        pairs: dict[tuple[str, ...], CategoryKey] = {
            (first, second): CategoryKey((parts[first], parts[second]))
            for first in self.codes
            for second in names
            if second != first and (not parts[second].is_code or names.index(first) < names.index(second))
        }
        return self._tried(pairs, min(_MOST_VALUES, self.dataset.n_rows), _TRIED_BYTES)

    def tried_triples(self, pairs: Iterable[tuple[str, ...]]) -> dict[tuple[str, ...], CategoryKey]:
        """Each pair with each third column of categories, those with the fewest triples of values first."""
        parts = category_parts(self.dataset.encoding)
        triples = {frozenset([*pair, third]): (*pair, third) for pair in pairs for third in parts if third not in pair}
        keys = {names: CategoryKey(tuple(parts[name] for name in names)) for names in triples.values()}
        return self._tried(keys, min(_MOST_TRIPLES, 2 * self.dataset.n_rows), _TRIPLE_BYTES)

    def _tried(
        self, keys: dict[tuple[str, ...], CategoryKey], values: int, nbytes: int
    ) -> dict[tuple[str, ...], CategoryKey]:
        """The smallest crosses, within bounds on the values of each and the bytes of all."""
        new = {names: key for names, key in keys.items() if key.size <= values and names not in self.added}
        return self.affordable(new, nbytes, _MOST_TRIED) if self._tries else {}

    def affordable(
        self, keys: dict[tuple[str, ...], CategoryKey], nbytes: int, most: int | None = None
    ) -> dict[tuple[str, ...], CategoryKey]:
        """The keys with the fewest codes, at most `most` of them, whose sums together take at most `nbytes`."""
        fits: dict[tuple[str, ...], CategoryKey] = {}
        held = 0
        for names, key in sorted(keys.items(), key=lambda item: item[1].size)[:most]:
            held += 8 * self.folds.count * key.size * len(self.outputs)
            if held > nbytes:
                break
            fits[names] = key
        return fits

    @cached_property
    def tried_numbers(self) -> dict[tuple[str, str], tuple[int, float]]:
        """Pairs of a column of codes and a column of numbers; for each the number's column in X and rough mean."""
        fits: dict[tuple[str, str], tuple[int, float]] = {}
        rules = with_places(self.dataset.encoding.rules)
        numbers = [(rule.name, start, float(rule.filling or 0.0)) for rule, start in rules if rule.kind == "number"]
        held = 0
        for name, key in self.codes.items():
            for number, place, shift in numbers if key.size <= min(_MOST_VALUES, self.dataset.n_rows) else ():
                held += 8 * self.folds.count * key.size * (2 + self.n_targets)
                if held <= _TRIED_BYTES and len(fits) < _MOST_TRIED:
                    fits[name, number] = place, shift
        return fits if self._tries and self.centres else {}

    @property
    def _tries(self) -> bool:
        return self.dataset.n_rows >= _FEWEST_ROWS and self.n_targets > 0

    @property
    def sums_of_folds(self) -> list[CategorySum]:
        """The sums of weights, of targets and of their squares in each fold."""
        sums = [CategorySum("weight", None, 0, 1)]
        for t in range(self.n_targets):
            sums += [CategorySum(f"target {t} power {k}", None, 0, 1, target=t, target_power=k) for k in (1, 2)]
        return sums

    @cached_property
    def own_sums(self) -> list[CategorySum]:
        """The sums for target means: `sums_of_folds`, and weights and targets of each column by value and fold."""
        return self.sums_of_folds + [
            each for key in (*self.codes.values(), *self.added.values()) for each in self._sums_of(key)
        ]

    @cached_property
    def tried_sums(self) -> list[CategorySum]:
        """The sums that decide which crosses, centred numbers and slopes improve predictions."""
        sums = [each for key in self.tried_crosses.values() for each in self._sums_of(key)]
        for (name, _), (place, shift) in self.tried_numbers.items():
            key = self.codes[name]
            one = CategorySum(f"number {place} of {key}", key, 0, key.size, power=1, number=place, shift=shift)
            sums += [one, replace(one, name=f"number {place} power 2 of {key}", power=2)]
            sums += [
                replace(one, name=f"number {place} target {t} of {key}", target=t, target_power=1)
                for t in range(self.n_targets)
            ]
        # the moments of a number itself, which all categories that it is tried with share
        for place, shift in dict.fromkeys(self.tried_numbers.values()):
            of_number = CategorySum("", None, 0, 1, number=place, shift=shift)
            sums += [replace(of_number, name=f"number {place} power {power}", power=power) for power in (1, 2)]
            sums += [
                replace(of_number, name=f"number {place} target {t}", power=1, target=t, target_power=1)
                for t in range(self.n_targets)
            ]
        return sums

    def _sums_of(self, key: CategoryKey) -> list[CategorySum]:
        """The weight and the targets of each code of a key."""
        sums = [CategorySum(f"weight of {key}", key, 0, key.size)]
        return sums + [
            CategorySum(f"target {t} of {key}", key, 0, key.size, target=t, target_power=1)
            for t in range(self.n_targets)
        ]

    def records(self, sums: list[CategorySum]) -> list[BlockSum]:
        """One record for each pass that computes the sums; the sums of a pass are bounded in bytes.

        A pass holds the sums of several blocks at the same time. Sums that exceed the bound, such as those of a column
        with a million values, are cut into ranges of codes, one pass each. The cuts change no bit of the results.
        """
        a_code = 8 * self.folds.count
        most = max(min(_MOST_BYTES, self.allowed // _SHARE_OF_A_PASS) // a_code, 1)
        parts: list[list[CategorySum]] = [[]]
        held = 0
        for each in sums:
            for first in range(0, each.last, most):
                piece = replace(each, first=first, last=min(first + most, each.last))
                held += piece.width
                if held > most and parts[-1]:
                    parts.append([])
                    held = piece.width
                parts[-1].append(piece)
        return [
            BlockSum(
                name="sums of categories",
                function=category_sums,
                accumulators={each.name: Accumulator((self.folds.count, each.width)) for each in part},
                operands={"sums": tuple(part), "folds": self.folds, "n_classes": self.dataset.schema.n_classes},
                cost=partial(sums_cost, part, self.n_targets),
                on_host=True,
            )
            for part in parts
            if part
        ]

    @cached_property
    def keys(self) -> list[CategoryKey]:
        """All columns and crosses whose sums a fit may need; an upper bound, with triples of all pairs."""
        triples = self.tried_triples(self.tried_crosses)
        return [*self.codes.values(), *self.added.values(), *self.tried_crosses.values(), *triples.values()]

    @cached_property
    def bytes(self) -> int:
        """An upper bound of the bytes of all sums and tables by fold: that of keeping all crosses and numbers tried."""
        a_code = self.folds.count * (8 * len(self.outputs) + self.dataset.source.dtype.itemsize * len(self.outputs))
        # three kinds of sums and two of tables; those with a target are one for each
        numbers = sum(8 * self.folds.count * self.codes[name].size for name, _ in self.tried_numbers)
        return sum(key.size for key in self.keys) * a_code + (3 + 2 * self.n_targets) * numbers

    @property
    def in_files(self) -> bool:
        """Whether sums and tables by fold are stored in files."""
        return self.bytes * _SHARE_IN_MEMORY > self.allowed

    @property
    def _make(self) -> Callable[[tuple[int, int], np.dtype], Rows]:
        return RowsInFile if self.in_files else np.zeros

    def planned(self) -> tuple[Dataset, list[BlockSum], dict[str, int], int]:
        """As `planned_categories`, without texts, and with as many crosses and centred numbers as a fit may keep."""
        triples = self.tried_triples(self.tried_crosses)
        # the last triples are the largest
        crosses = (*tuple(self.tried_crosses)[:_MOST_KEPT], *tuple(triples)[-_MOST_KEPT:])
        centred = tuple(self.tried_numbers)[:_MOST_KEPT]
        encoding, width = self.dataset.encoding, len(self.outputs)
        places = code_places(encoding, width, Made(centred, crosses, sloped=centred))
        widths = [places.n_numbers(k) for k in range(len(places.keys))]
        zero, dtype = np.zeros(1), self.dataset.source.dtype
        tables: list[Rows] = [
            np.broadcast_to(zero.astype(dtype), (self.folds.count * key.size, columns))
            for key, columns in zip(places.keys, widths, strict=True)
        ]
        fitted = FittedEncoding(
            encoding,
            self.outputs,
            tuple(np.broadcast_to(zero, (key.size, columns)) for key, columns in zip(places.keys, widths, strict=True)),
            (),
            centred,
            crosses,
            sloped=centred,
        )
        # bytes of the tables for new rows, a part of the model, and of the working arrays for one range of codes
        largest = min(max(key.size for key in self.keys), _MOST_VALUES)
        held = sum(8 * table.size for table in fitted.tables) + _WORKING_ARRAYS * 8 * self.folds.count * largest * width
        held += 0 if self.in_files else self.bytes
        of_triples = [each for key in triples.values() for each in self._sums_of(key)]
        records = [record for sums in (self.own_sums, self.tried_sums, of_triples) for record in self.records(sums)]
        numbered = _with_encoding(self.dataset, fitted, tuple(tables), self.folds)
        return numbered, records, {"tables of categories": held}, self.bytes if self.in_files else 0

    def numbered(self) -> Dataset:
        """The rows of the fit with numbers in place of codes."""
        self._sum(self.own_sums)
        priors = {key: self._priors(key) for key in (*self.codes.values(), *self.added.values())}
        self._sum(self.tried_sums)
        crosses = self._gaining_crosses(self.tried_crosses, priors)
        of_means = self._priors_of_numbers()
        centred = self._gaining_numbers(priors, of_means)
        sloped = self._gaining_slopes(priors, of_means)
        triples = self.tried_triples(crosses)
        self._sum([each for key in triples.values() for each in self._sums_of(key)])
        crosses |= self._gaining_crosses(triples, priors)
        tables, fitted, chosen, more = [], [], [], self.more
        added = list(self.added.values())
        taken, further = added[: len(more.taken)], added[len(more.taken) :]
        for key in [*self.codes.values(), *taken, *crosses.values(), *further]:
            of_key, slopes = (
                {self.tried_numbers[pair]: prior for pair, prior in kept.items() if self.codes[pair[0]] == key}
                for kept in (centred, sloped)
            )
            width = len(self.outputs) + len(of_key) + len(slopes) * self.n_targets
            table = self._make((self.folds.count * key.size, width), self.dataset.source.dtype)
            new = np.zeros((key.size, width))
            self._fill(key, priors[key], of_key, slopes, table, new)
            tables.append(table)
            fitted.append(new)
            chosen.append(np.concatenate([priors[key], *slopes.values(), *of_key.values()]))
        made = (tuple(centred), (*crosses, *more.crosses), more.numbers, more.taken, tuple(sloped))
        encoding = FittedEncoding(self.dataset.encoding, self.outputs, tuple(fitted), tuple(chosen), *made)
        return _with_encoding(self.dataset, encoding, tuple(tables), self.folds)

    def _sum(self, sums: list[CategorySum]) -> None:
        """Run the passes that compute `sums`, and store each as a matrix (V, F) of values by folds."""
        widths = {each.name: each.width for each in sums}
        for record in self.records(sums):
            run = self.run
            (found,) = run_pass(
                self.dataset.source, [record], publish=run.publish, memory_limit=run.memory_limit
            ).results
            for each in record.operands["sums"]:
                name, values = each.name, found[each.name].T
                if each.width == widths[name] and not self.in_files:
                    # the sum itself, not a copy
                    self._sums[name] = values
                    continue
                if name not in self._sums:
                    self._sums[name] = self._make((widths[name], self.folds.count), np.dtype(np.float64))
                self._sums[name][each.first : each.last] = values

    def _stored_sums(
        self, name: str, first: int = 0, last: int = 1, chosen: slice | np.ndarray = slice(None)
    ) -> np.ndarray:
        """The stored sum of that name for the V chosen ones of the codes `first` to `last` - 1: (F, V)."""
        return np.ascontiguousarray(self._sums[name][first:last][chosen].T)

    def _cells(
        self, key: CategoryKey, first: int, last: int, chosen: slice | np.ndarray = slice(None)
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights (F, V) and targets (T, F, V) of the chosen codes of a range."""
        weight = self._stored_sums(f"weight of {key}", first, last, chosen)
        targets = [self._stored_sums(f"target {t} of {key}", first, last, chosen) for t in range(self.n_targets)]
        return weight, np.stack(targets) if targets else np.empty((0, *weight.shape))

    def _filled(self, key: CategoryKey, first: int, last: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The codes from `first` to `last` - 1 that any row has but code 0, of missing values, and their `_cells`.

        Most combinations of values of a cross of many values have no row.
        """
        start = max(first, 1)
        filled = np.flatnonzero(self._sums[f"weight of {key}"][start:last].any(axis=1))
        return start + filled, *self._cells(key, start, last, filled)

    @property
    def _at_once(self) -> int:
        """The number of codes in one range. It depends on the number of targets alone, so that sums have equal bits."""
        return max((1 << 17) // len(self.outputs), 1)

    def _ranges(self, key: CategoryKey) -> Iterator[tuple[int, int]]:
        """Ranges (first, last) that cover the codes of a key."""
        for first in range(0, key.size, self._at_once):
            yield first, min(first + self._at_once, key.size)

    def _of_ranges(self, key: CategoryKey, function: Callable[[int, int], T]) -> list[T]:
        """``function(first, last)`` of each range of a key, in their order, computed by the cores of this process.

        As many ranges are computed at once as plans count the intermediate arrays of.
        """
        ranges, values = list(self._ranges(key)), []
        for some in spans(len(ranges), max(1, _MOST_VALUES // self._at_once)):
            values += Crew().map(lambda codes: function(*codes), ranges[some])
        return values

    @cached_property
    def totals(self) -> FoldTotals:
        """The sums of weights, targets and squares in each fold, from the stored sums."""
        T = range(self.n_targets)
        sums = [np.array([self._stored_sums(f"target {t} power {power}")[:, 0] for t in T]) for power in (1, 2)]
        targets, squares = (each.reshape(self.n_targets, self.folds.count) for each in sums)
        return FoldTotals(self._stored_sums("weight")[:, 0], targets, squares, held_by_time(self.dataset.source))

    def _totals_of(self, place: int) -> FoldTotals:
        """The totals by fold of a column of numbers, in the role of a target."""
        sums, squares = (self._stored_sums(f"number {place} power {power}")[:, 0] for power in (1, 2))
        return replace(self.totals, targets=sums[None], squares=squares[None])

    def _priors(self, key: CategoryKey) -> np.ndarray:
        """The prior weight of the means of a key with the least held-out loss, for each target: (T,)."""

        def losses(first: int, last: int) -> np.ndarray:
            _, weight, targets = self._filled(key, first, last)
            return prior_losses(weight, targets, self.totals, first=max(first, 1))

        return best_priors(np.sum(self._of_ranges(key, losses), axis=0))

    def _deviations(self, key: CategoryKey, priors: np.ndarray) -> np.ndarray:
        """The deviations of all codes of a key for rows of each fold, (F, T, V)."""
        return fold_deviations(*self._cells(key, 0, key.size), self.totals, priors, first=0)

    def _gaining_crosses(
        self, tried: dict[tuple[str, ...], CategoryKey], priors: dict[CategoryKey, np.ndarray]
    ) -> dict[tuple[str, ...], CategoryKey]:
        """The crosses that gain most on held-out rows.

        Their priors are added to `priors`, and the sums of the other crosses are deleted.
        """
        gains, of_crosses = {}, {}
        for names, key in tried.items():
            of_crosses[key] = self._priors(key)
            without_last = self._deviations(CategoryKey(key.parts[:-1]), priors[CategoryKey(key.parts[:-1])])
            gains[names] = clear_mean_gain(
                self._gains(key, of_crosses[key], without_last, self._last_column(key, priors))
            )
        kept = {names: tried[names] for names in _largest(gains)}
        priors |= {key: of_crosses[key] for key in kept.values()}
        for key in tried.values():
            for each in self._sums_of(key) if key not in priors else ():
                del self._sums[each.name]
        return kept

    def _last_column(self, key: CategoryKey, priors: dict[CategoryKey, np.ndarray]) -> np.ndarray:
        """The deviations of the last column of a cross for rows of each fold, (F, T, C + 1)."""
        last = CategoryKey(key.parts[-1:])
        if last in priors:
            return self._deviations(last, priors[last])
        # a one-hot column: its sums are the sums of the cross, added up over the values of the other columns
        shape = (self.folds.count, last.size - 1)
        N, S = np.zeros(shape), np.zeros((self.n_targets, *shape))
        for first, end in self._ranges(key):
            codes, weight, targets = self._filled(key, first, end)
            for total, part in zip([N, *S], [weight, *targets], strict=True):
                for of_fold, cells in zip(total, part, strict=True):
                    of_fold += np.bincount((codes - 1) % shape[1], cells, shape[1])
        N, S = np.insert(N, 0, 0.0, axis=1), np.insert(S, 0, 0.0, axis=2)
        return fold_deviations(N, S, self.totals, np.ones(self.n_targets), first=0)

    def _gains(
        self, key: CategoryKey, prior: np.ndarray, without_last: np.ndarray, last: np.ndarray
    ) -> list[np.ndarray]:
        """Held-out gains of a cross over its two parts, one array (n_folds,) for each target.

        The parts are the cross without its last column and the last column alone; `without_last` and `last` are their
        deviations, (F, T, V + 1) each.
        """
        T, F, n_last = self.n_targets, self.folds.count, last.shape[2] - 1

        def of_range(first: int, end: int) -> list[tuple[np.ndarray, np.ndarray]]:
            """The moments and answers of each target over a range of codes."""
            codes, weight, targets = self._filled(key, first, end)
            crossed = fold_deviations(weight, targets, self.totals, prior, first=max(first, 1))
            before, own = divmod(codes - 1, n_last)
            return [
                cross_moments(weight, targets[t], [without_last[:, t, 1 + before], last[:, t, 1 + own], crossed[:, t]])
                for t in range(T)
            ]

        moments, answers = np.zeros((T, F, 4, 4)), np.zeros((T, F, 4))
        for by_target in self._of_ranges(key, of_range):
            for t, (of_moments, of_answers) in enumerate(by_target):
                moments[t] += of_moments
                answers[t] += of_answers
        each: list[np.ndarray] = []
        for t in range(T):
            totals = self.totals.only(t)
            each.append(held_out_gains(moments[t], answers[t], totals.squares[0], totals))
        return each

    def _priors_of_numbers(self) -> dict[tuple[str, str], np.ndarray]:
        """For each tried pair (column of codes, column of numbers) the prior weight of the number's means: (1,)."""
        of_means = {}
        for (name, number), (place, _) in self.tried_numbers.items():
            key, totals = self.codes[name], self._totals_of(place)
            losses = [
                prior_losses(
                    self._stored_sums(f"weight of {key}", first, last),
                    self._stored_sums(f"number {place} of {key}", first, last)[None],
                    totals,
                    first=first,
                )
                for first, last in self._ranges(key)
            ]
            of_means[name, number] = best_priors(np.sum(losses, axis=0))
        return of_means

    def _of_number(self, key: CategoryKey, place: int, t: int) -> dict[str, np.ndarray]:
        """The sums of a category, a number and a target that `centred_gains` and `slope_gains` take."""
        names = {"weight": f"weight of {key}", "target": f"target {t} of {key}", "number": f"number {place} of {key}"}
        names["number square"], names["number target"] = (
            f"number {place} power 2 of {key}",
            f"number {place} target {t} of {key}",
        )
        sums = {which: self._stored_sums(name, 0, key.size) for which, name in names.items()}
        product = self._stored_sums(f"number {place} target {t}")[:, 0]
        return {**sums, "square": self._totals_of(place).squares[0], "product": product}

    def _mean_of_number(self, key: CategoryKey, place: int, prior: np.ndarray) -> np.ndarray:
        """The mean of a number in each category minus its mean, for rows of each fold: (F, V)."""
        weight, sums = (self._stored_sums(f"{what} of {key}", 0, key.size) for what in ("weight", f"number {place}"))
        return fold_deviations(weight, sums[None], self._totals_of(place), prior, first=0)[:, 0]

    def _gaining_numbers(
        self, priors: dict[CategoryKey, np.ndarray], of_means: dict[tuple[str, str], np.ndarray]
    ) -> dict[tuple[str, str], np.ndarray]:
        """The pairs (column of codes, column of numbers) whose centred number gains most, with their priors."""
        gains = {}
        for pair, prior in of_means.items():
            key, (place, _) = self.codes[pair[0]], self.tried_numbers[pair]
            mean, deviation = self._mean_of_number(key, place, prior), self._deviations(key, priors[key])
            gains[pair] = clear_mean_gain(
                [
                    centred_gains(self._of_number(key, place, t), deviation[:, t], mean, self.totals.only(t))
                    for t in range(self.n_targets)
                ]
            )
        return {pair: of_means[pair] for pair in _largest(gains)}

    def _gaining_slopes(
        self, priors: dict[CategoryKey, np.ndarray], of_means: dict[tuple[str, str], np.ndarray]
    ) -> dict[tuple[str, str], np.ndarray]:
        """The pairs (column of codes, column of numbers) whose slopes gain most on held-out rows, with their priors."""
        gains, of_slopes = {}, {}
        for pair, prior in of_means.items():
            key, (place, _) = self.codes[pair[0]], self.tried_numbers[pair]
            mean = self._totals_of(place).mean[0] + self._mean_of_number(key, place, prior)
            deviation = self._deviations(key, priors[key])
            best, per_target = [], []
            for t in range(self.n_targets):
                of_pair = self._of_number(key, place, t)
                slopes = self._slopes(of_pair, np.asarray(PRIORS))
                of_priors = slope_gains(of_pair, deviation[:, t], mean, slopes, self.totals.only(t))
                best.append(int(last_least(-of_priors.mean(axis=1, keepdims=True))[0]) if of_priors.size else -1)
                per_target.append(of_priors[best[-1]])
            of_slopes[pair] = np.asarray(PRIORS)[best]
            gain = clear_mean_gain(per_target)
            gains[pair] = gain if gain > ADOPTED_GAIN else 0.0
        return {pair: of_slopes[pair] for pair in _largest(gains)}

    def _slopes(self, of_pair: dict[str, np.ndarray], priors: np.ndarray, of_all: bool = False) -> np.ndarray:
        """The slopes by category at P prior weights, for rows of each fold, (P, F, V), or for new rows, (P, V)."""
        names = ("weight", "target", "number", "number square", "number target")
        folds = np.ones(self.folds.count) if of_all else self.totals.are_others
        N, S, X, Q, P = (folds @ of_pair[name] for name in names)
        squares, products = within_sums(N, S[None], X, Q, P[None])
        return slope_deviations(squares, products, N, priors)

    def _fill(
        self,
        key: CategoryKey,
        prior: np.ndarray,
        centred: dict[tuple[int, float], np.ndarray],
        sloped: dict[tuple[int, float], np.ndarray],
        table: Rows,
        new: np.ndarray,
    ) -> None:
        """Write the numbers of a key for rows of each fold into `table`, and those for new rows into `new`."""
        slopes, new_slopes = [], []
        for (place, _), each in sloped.items():
            for t in range(self.n_targets):
                of_number = self._of_number(key, place, t)
                slopes += [*self._slopes(of_number, each[t : t + 1])]
                new_slopes += [*self._slopes(of_number, each[t : t + 1], of_all=True)]

        def fill(first: int, last: int) -> None:
            """Write the numbers of a range of codes."""
            if centred:
                start, codes, (weight, targets) = first, np.arange(first, last), self._cells(key, first, last)
            else:
                # all numbers of a code that no row has are 0, but for means of numbers
                start, (codes, weight, targets) = max(first, 1), self._filled(key, first, last)
            of_folds = [fold_numbers(weight, targets, self.totals, prior, first=start)]
            of_new = [new_numbers(weight, targets, self.totals, prior, first=start)]
            of_folds += [each[:, codes, None] for each in slopes]
            of_new += [each[codes, None] for each in new_slopes]
            for (place, shift), of_mean in centred.items():
                totals, sums = self._totals_of(place), self._stored_sums(f"number {place} of {key}", first, last)[None]
                deviation = fold_deviations(weight, sums, totals, of_mean, first=first)
                of_folds.append(shift + totals.mean[0] + deviation.swapaxes(1, 2))
                means = new_numbers(weight, sums, totals, of_mean, first=first)[:, :1]
                of_new.append(shift + totals.mean_of_all[0] + means)
            new[codes] = np.concatenate(of_new, axis=1)
            numbers = np.zeros((last - first, table.shape[1]))
            for fold, of_fold in enumerate(np.concatenate(of_folds, axis=2)):
                numbers[codes - first] = of_fold
                table[fold * key.size + first : fold * key.size + last] = numbers

        self._of_ranges(key, fill)


def _largest(gains: dict[Names, float]) -> list[Names]:
    """The at most `_MOST_KEPT` entries with the largest positive gains, in the order of `gains`."""
    best = sorted((pair for pair in gains if gains[pair] > 0), key=lambda pair: -gains[pair])[:_MOST_KEPT]
    return [pair for pair in gains if pair in best]


def rows_like_fit(encoding: Any, dataset: Dataset) -> Dataset:
    """The dataset with the numbers that a fit has learned in place of codes, texts and missing values.

    Raises
    ------
    ValueError
        If these rows hold codes and those of fit had none, or if a column of codes is missing.
    """
    dataset = texts_like_fit(encoding, filled_like_fit(encoding, dataset))
    is_made = isinstance(encoding, FittedEncoding) and bool(encoding.made)
    if not dataset.schema.has_codes and not (is_made and isinstance(dataset.encoding, TableEncoding)):
        return dataset
    if not isinstance(encoding, FittedEncoding):
        names = [rule.name for rule in dataset.encoding.rules if rule.kind == "code"]
        raise ValueError(
            f"the columns {names} of {dataset.source.place} hold codes of categories, and the rows of fit had none; "
            "fit these rows, or hand over rows as those of fit were"
        )
    return _with_encoding(dataset, encoding, encoding.tables_for(dataset.encoding), None)


WHY_NO_UPDATE = (
    "fit all rows again: target means are of all rows, so that with any row that comes or goes the numbers in all "
    "blocks change, and no sums of blocks would serve again; a fit of the appended store equals a fresh one to the bit"
)


def refuse_codes(dataset: Dataset, asking: str, remedy: str) -> None:
    """Raise ValueError if columns hold codes or free text, for which the caller, named `asking`, learns no numbers."""
    if dataset.schema.has_codes:
        names = [rule.name for rule in dataset.encoding.rules if rule.kind in ("code", "text")]
        raise ValueError(
            f"the columns {names} of {dataset.source.place} hold codes of categories, or free text, of which {asking} "
            f"makes no numbers; {remedy}"
        )


def _with_encoding(
    dataset: Dataset, encoding: FittedEncoding, tables: tuple[Rows, ...], folds: CategoryFolds | None
) -> Dataset:
    """The dataset with numbers in place of codes; rows of a fit use the table of their fold, other rows the first."""
    # Codes are at the places of the dataset's own encoding, which may list other values than the encoding of the fit.
    places = code_places(dataset.encoding, len(encoding.outputs), encoding.made)
    rules = named_rules(dataset.encoding, encoding.outputs, encoding.made)
    names = [name for rule in rules for name in rule.output_names]
    schema = replace(
        dataset.schema,
        n_columns=places.n_made,
        encoding=None if folds is None else encoding,
        column_names=names,
        passthrough=None if folds is None else encoding.passthrough,
    )
    return dataset.with_rows(View(dataset.source, CategoryNumbers(places, tables, folds)), schema)
