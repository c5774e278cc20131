"""The columns that a machine without settings fits on: which are left out, and what becomes of texts and categories.

Each decision compares one or two plain models on held-out rows, with and without the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset
from dkl.data.fewer_columns import without_columns
from dkl.encodings.categories import NOTHING, with_categories
from dkl.encodings.fitted import FittedEncoding, Made, category_reasons
from dkl.encodings.keys import dense_columns
from dkl.encodings.suspects import more_categories
from dkl.encodings.texts import has_scores, with_texts
from dkl.linear.fitting import Run
from dkl.linear.judge import gains
from dkl.linear.minibatches import HeldOut
from dkl.machines.contenders import contenders, is_kernel, is_learned, usual_advice
from dkl.machines.contest import BEHIND, FEWEST_ROWS, JUDGING_SHARE, LARGE_KERNEL
from dkl.machines.trials import Bench, Sample, Terms
from dkl.passes.engine import run_pass
from dkl.protocols.records import RowSample

# Share of its loss that a plain model must lose by a change of columns.
_CLEARLY = 0.01
# Trials of the plainest kind, and of a kernel, that categories take at most, and the share of the budget for them.
CATEGORY_TRIALS, _SHARE_OF_CATEGORIES = 4, 0.25
# Encoded columns for each column of the table up to which further ones allow more work.
_MOST_NUMBERS = 3
# Share of the newest rows that lie beyond all older values of a column, above which it may be left out.
_MOST_BEYOND = 0.5

TOO_GOOD = "Too good"
"""The first words of the sentence on columns that predict the target almost perfectly; the shell always shows it."""
# Quantile bins of a column that its values are compared in.
_BINS = 64
# Share of the squared error of the mean (of classes: of their indicators) up to which a prediction is almost perfect.
_REMAINS = 5e-3
# Rows of either half, below which a column is right by chance, and rows that are looked at.
_FEWEST, _MOST_ROWS = 25, 2_000
# Columns that are named.
_MOST_NAMED = 3
# Columns of a table up to which pairs are looked at (1,225 pairs take a tenth of a second or two), and rows of either
# half without the most frequent target, below which pairs are right by chance.
_MOST_PAIRED, _FEWEST_UNUSUAL = 50, 10


@dataclass(frozen=True)
class Columns:
    """The rows with the columns that the features will see.

    Parameters
    ----------
    dataset : Dataset
    own_columns : int
        Columns before any was made from categories: only these allow further work.
    spent : float
        Counted work of the trials of categories, texts and crosses.
    judging_seed : int or None
        As of `Sample`.
    reasons : tuple of str
        A sentence for each decision.
    """

    dataset: Dataset
    own_columns: int
    spent: float
    judging_seed: int | None
    reasons: tuple[str, ...]


class ColumnChoice:
    """Decides on columns by trials of plain models."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._terms, self._run = bench, bench.terms, bench.run
        self._seed, self._spent = bench.terms.seed, 0.0
        self._reasons: list[str] = []

    def chosen(self, dataset: Dataset) -> Columns:
        """Leave out columns that run ahead in time, then texts that gain nothing, then number categories."""
        dataset, left_out = self._without_columns_ahead(dataset)
        self._own_columns = dataset.n_columns
        plain = self._with_gaining_texts(dataset)
        if plain.encoding is not None and not plain.encoding.array_dtype:
            # a column of classes has many encoded ones, most of them 0
            self._own_columns = min(self._own_columns, _MOST_NUMBERS * len(plain.encoding.rules))
        rows = self._with_categories(plain) if looks_for_categories(self._terms, plain) else self._numbered(plain)
        # target means of other rows leave the judging rows out: no others may judge then
        is_numbered = rows is not plain or has_scores(rows.encoding)
        seed = self._seed if is_numbered else None
        reasons = (*category_reasons(rows.encoding), *self._reasons, *left_out)
        return Columns(rows, self._own_columns, self._spent, seed, reasons)

    def _without_columns_ahead(self, dataset: Dataset) -> tuple[Dataset, tuple[str, ...]]:
        """The rows of a table without columns whose newest values no older row has, if that gains on the newest rows.

        Only rows that are held out by time have such columns.
        """
        is_table = dataset.encoding is not None and not dataset.encoding.array_dtype
        if dataset.schema.held_by != "time" or not is_table or dataset.total_weight < FEWEST_ROWS:
            return dataset, ()
        sample = self._terms.sample(dataset)
        ahead = columns_ahead(sample.rows, sample.folds[0], self._run, self._seed)
        # codes and words are not numbered yet
        raw = [name for rule in dataset.encoding.rules if rule.kind in ("code", "text") for name in rule.output_names]
        if not ahead or len(ahead) + len(raw) == dataset.n_columns:
            return dataset, ()
        losses = []
        for stage, names in (("with", raw), ("without", [*raw, *ahead])):
            rows = self._bench.gathered(without_columns(sample.rows, names))
            plainest = contenders(rows, usual_advice(), self._terms.budget, self._terms.knobs)[0].learner
            _, choice = self._bench.trial(plainest, replace(sample, rows=rows), 0, f"columns-{stage}")
            losses.append(choice.loss)
        if not gains(losses[1], losses[0], _CLEARLY):
            return dataset, ()
        left_out = (
            f"Columns: {spoken_names(ahead)} left out, since most of the newest rows lie beyond all older ones there, "
            f"and later rows will: a linear model without them has the score {1.0 - losses[1]:.4f} on the newest rows, "
            f"with them {1.0 - losses[0]:.4f}. by_time=False keeps them, and holds rows out at random.",
        )
        return without_columns(dataset, ahead), left_out

    def _with_gaining_texts(self, dataset: Dataset) -> Dataset:
        """The rows with columns computed from free text, without texts by which a plain model gains nothing."""
        made = with_texts(dataset, self._judging_rows, self._run)
        if made is dataset:
            return dataset
        of_texts = {rule.name: rule.output_names for rule in made.encoding.rules if rule.kind == "text"}
        # codes are not numbered yet
        codes = [rule.name for rule in made.encoding.rules if rule.kind == "code"]
        for place, (name, columns) in enumerate(of_texts.items()):
            if made.total_weight < FEWEST_ROWS or len(codes) + len(columns) == made.n_columns:
                continue
            without, with_it = (
                self._plain_score(self._sample(without_columns(made, left_out)), f"text {place}", "columns", stage)
                for stage, left_out in (("without", [*codes, *columns]), ("with", codes))
            )
            stays = gains(1.0 - with_it, 1.0 - without, _CLEARLY)
            decided = "a score by its words and their directions are columns"
            decided = decided if stays else "it is left out, since it gains nothing"
            self._reasons.append(
                f"Text: {name!r} is free text; {decided} (score of a linear model on held-out rows {with_it:.4f} with "
                f"it, {without:.4f} without)."
            )
            made = made if stays else without_columns(made, columns)
        return made

    def _with_categories(self, dataset: Dataset) -> Dataset:
        """The rows with numbers in place of codes, and target means of further numbers and crosses, if these gain."""
        found = more_categories(dataset, self._judging_rows, self._run, self._seed)
        rows, made = self._numbered(dataset), NOTHING
        for what in ("taken", "crosses"):
            if not (names := getattr(found.made, what)):
                continue
            tried = replace(made, numbers=found.made.numbers, **{what: names})
            other = self._numbered(dataset, tried)
            is_better, before, after = self._compared(rows, other, what)
            self._reasons.append(found.told(what, is_better, before, after))
            if is_better:
                made, rows = tried, other
        if found.suspected and not found.made.taken:
            self._reasons.append(found.told("taken", False))
        return rows

    def _numbered(self, dataset: Dataset, more: Made = NOTHING) -> Dataset:
        """The rows with target means and counts in place of codes."""
        return with_categories(dataset, self._judging_rows, self._run, more=more)

    @property
    def _judging_rows(self) -> HeldOut:
        """The rows that judge anything in this fit."""
        return HeldOut(max(self._terms.validation_fraction, JUDGING_SHARE), self._seed)

    def _sample(self, dataset: Dataset) -> Sample:
        """The rows that plain models are compared on."""
        is_numbered = isinstance(dataset.encoding, FittedEncoding) or has_scores(dataset.encoding)
        seed = self._seed if is_numbered else None
        return self._bench.sample(dataset, self._own_columns, judging_seed=seed)

    def _compared(self, rows: Dataset, other: Dataset, what: str) -> tuple[bool, float, float]:
        """Whether plain models do better on other columns of the rows, and the best scores before and after.

        The models are a linear one on the columns, and a kernel that is a product over columns, which finds by itself
        which rows share values: a large one for crosses, fitted only where the linear model gains enough.
        """
        # kernels find crosses by themselves on more rows than these: they must gain as much as one fold can show
        least = BEHIND[0] if what == "crosses" else _CLEARLY
        before = after = -np.inf
        judged, others = self._sample(rows), self._sample(other)
        for kind in ("columns", "kernel"):
            before = max(before, self._plain_score(judged, what, kind, "before"))
            after = max(after, self._plain_score(others, what, kind, "with"))
            is_better = gains(1.0 - after, 1.0 - before, least)
            if what == "crosses" and not is_better:
                break
        return is_better, before, after

    def _plain_score(self, sample: Sample, what: str, kind: str, stage: str) -> float:
        """The score of a linear model on the columns, or of a kernel, on the first fold of a sample."""
        terms = self._terms
        kinds = contenders(sample.rows, usual_advice(), terms.budget, terms.knobs)
        chosen = kinds[0]
        if kind == "kernel":
            # without a metric to learn; the last kind where there is no kernel
            kernels = [one for one in kinds if is_kernel(one) and not is_learned(one)]
            chosen = (kernels or kinds)[-1]
            if kernels and what == "crosses" and terms.knobs.n_features == "auto":
                size = min(LARGE_KERNEL, terms.budget.most_features)
                chosen = chosen.changed(f"up to {size:,}", n_features=size)
        self._spent += terms.shape(sample.rows).judging(chosen.learner)
        return self._bench.trial(chosen.learner, sample, 0, f"{stage}-{what}-{kind}")[1].score


def looks_for_categories(terms: Terms, dataset: Dataset) -> bool:
    """Whether trials of further categories are open to the machine and take a small share of the budget."""
    kinds = contenders(dataset, usual_advice(), terms.budget, terms.knobs)
    judged = replace(terms.shape(dataset), n_rows=min(dataset.n_rows, terms.budget.judged_rows))
    trials = sum(judged.judging(kind.learner) for kind in (kinds[0], next(filter(is_kernel, kinds), kinds[-1])))
    return terms.finds_categories and CATEGORY_TRIALS * trials <= _SHARE_OF_CATEGORIES * terms.budget.allowed(judged)


def columns_ahead(sample: Dataset, newest: HeldOut, run: Run, seed: int) -> list[str]:
    """The encoded columns of numbers that lie beyond the values of all older rows in more than half of the newest ones.

    Such are the days of a date, or the month in the rows of one year: a model of older rows has never seen these
    values, and extends whatever trend it has found. The weekday of a date recurs, and is not ahead. A flag of missing
    values goes with its number.

    Parameters
    ----------
    sample : Dataset
        Rows of a table that are held out by time; one pass reads all of them.
    newest : HeldOut
        The newest rows, which judge.
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


def perfect_columns(sample: Dataset, run: Run, seed: int) -> list[tuple[tuple[str, ...], float]]:
    """The columns that predict the target of other rows almost perfectly, each with its R^2 there.

    Most of them were written after the target was known. Where there is none, pairs of columns are looked at, in tables
    with few enough columns. A column predicts by the mean target (for classes: the mean indicators) of its quantile
    bins, on one half of the rows, and its R^2 is that on the other half. The only column of a table is left out.

    Parameters
    ----------
    sample : Dataset
        Rows in memory, or few enough to be read in one pass.
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
    shares = {name: judge.share(_quantile_bins(column)) for name, column in zip(names, columns, strict=True)}
    found: list[tuple[tuple[str, ...], float]] = [
        ((name,), share) for name, share in shares.items() if share >= 1.0 - _REMAINS
    ]
    # a pair with a column that is perfect alone says nothing more
    return found or _perfect_pairs(names, columns, judge)


def _perfect_pairs(
    names: Sequence[str], columns: list[np.ndarray], judge: _HalfOfRows
) -> list[tuple[tuple[str, ...], float]]:
    """The pairs of columns that predict the target almost perfectly: by their values, or by their difference."""
    if len(columns) > _MOST_PAIRED or judge.n_unusual < _FEWEST_UNUSUAL:
        return []
    codes = [np.unique(column, return_inverse=True) for column in columns]
    found: list[tuple[tuple[str, ...], float]] = []
    for first, second in combinations(range(len(columns)), 2):
        difference = columns[first] - columns[second]
        shares = [judge.share(_quantile_bins(difference, split_at=0.0))]
        n_first, n_second = len(codes[first][0]), len(codes[second][0])
        if n_first * n_second <= _BINS:
            shares.append(judge.share(codes[first][1] * n_second + codes[second][1]))
        if max(shares) >= 1.0 - _REMAINS:
            found.append(((names[first], names[second]), max(shares)))
    return found


@dataclass(frozen=True, eq=False)
class _HalfOfRows:
    """Targets of sampled rows: means by bin are taken on every other row, and checked on those between them.

    Parameters
    ----------
    learned, checked : ndarray of shape (n / 2, K), float64
        Targets less the means of the learned ones; for classes their indicators, of two classes those of the second.
    n_unusual : int
        Rows of either half, at least, whose target is not the most frequent one: with few of them a pair is right by
        chance.
    """

    learned: np.ndarray
    checked: np.ndarray
    n_unusual: int

    @classmethod
    def of(cls, y: np.ndarray, classes: np.ndarray | None) -> _HalfOfRows | None:
        """The halves of rows with codes of classes or numbers; None where they are too few, or all alike."""
        targets = y[:, None].astype(np.float64) if classes is None else np.eye(len(classes))[y]
        if classes is not None and len(classes) == 2:
            # the other class errs alike
            targets = targets[:, 1:]
        if len(y) // 2 < _FEWEST:
            return None
        mean = targets[::2].mean(axis=0)
        learned, checked = targets[::2] - mean, targets[1::2] - mean
        if not checked.any():
            return None
        values, counts = np.unique(y, return_counts=True)
        is_unusual = y != values[np.argmax(counts)]
        return cls(learned, checked, int(min(is_unusual[::2].sum(), is_unusual[1::2].sum())))

    @cached_property
    def _of_mean(self) -> float:
        """The squared error of the mean on the rows that are checked."""
        return float((self.checked**2).sum())

    def share(self, bins: np.ndarray) -> float:
        """R^2 on the other half of the mean target by bin; a bin without rows predicts the mean of all."""
        learned, checked, size = bins[::2], bins[1::2], int(bins.max()) + 1
        counts = np.maximum(np.bincount(learned, minlength=size), 1)
        means = np.stack([np.bincount(learned, target, size) / counts for target in self.learned.T], axis=1)
        return 1.0 - float(((self.checked - means[checked]) ** 2).sum()) / self._of_mean


def _quantile_bins(column: np.ndarray, split_at: float | None = None) -> np.ndarray:
    """The bin of each value among the quantiles of every other row; `split_at` is a bin of its own."""
    ordered = np.sort(column[::2]).astype(np.float64)
    places = np.arange(len(ordered))
    edges = np.unique(np.interp(np.linspace(0.0, len(ordered) - 1.0, _BINS + 1), places, ordered))
    if split_at is not None:
        edges = np.unique(np.append(edges, (split_at, np.nextafter(split_at, -np.inf))))
    # a value beyond all of the first half is in the nearest bin
    return np.minimum(np.searchsorted(edges, column), len(edges) - 1)


def planned_columns(sample: Dataset, seed: int) -> list[tuple[list[RowSample], int]]:
    """The pass that reads the rows; none for columns without names, a single column, and sparse rows."""
    is_possible = sample.column_names is not None and sample.n_columns > 1 and not sample.source.is_sparse
    if not is_possible or sample.task is None or sample.schema.n_targets is not None:
        return []
    return [([RowSample("rows to look at columns alone", min(sample.n_rows, _MOST_ROWS), seed)], 1)]


def too_good(found: list[tuple[tuple[str, ...], float]]) -> tuple[str, ...]:
    """The sentence on such columns for the reasons of a fit; none where there are none."""
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
