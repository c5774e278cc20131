"""The columns that a machine without settings fits on: which are left out, and what becomes of texts and categories.

Each decision compares one or two plain models on held-out rows, with and without the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import comb
from typing import Any

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
from dkl.linear.judge import ENOUGH_ROWS, gains
from dkl.linear.minibatches import HeldOut
from dkl.machines.contenders import BINS, Contender
from dkl.machines.contest import EQUAL_LOSS, FEWEST_ROWS, SIDE_SHARE
from dkl.machines.effort import JUDGING_SHARE
from dkl.machines.trials import Bench, Sample, Terms, gathered
from dkl.plain_text import first_few
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample

# Least relative fall of a plain model's held-out loss for which a change of columns is adopted.
_CLEARLY = 0.01
# The same for crosses, which kernels find by themselves on more rows.
_OF_CROSSES = 0.1
# What may become categories, in this order; each is tried with the simplest learner and with a kernel.
_CHANGES = ("taken", "crosses")
CATEGORY_TRIALS = 2 * len(_CHANGES)
# The budget grows with the encoded columns, but counts at most this many for each column of the table.
_MOST_NUMBERS = 3

TOO_GOOD = "Too good"
"""The first words of the sentence on columns that predict the target almost perfectly; the shell always shows it."""
# Columns or pairs that the warning names; further ones are counted.
_MOST_NAMED = 3
# Pairs are examined only where each half has at least this many rows without the most frequent target: with fewer,
# pairs look perfect by chance.
_FEWEST_UNUSUAL = 10


@dataclass(frozen=True)
class Columns:
    """The rows with the columns on which the machine learns features.

    Parameters
    ----------
    dataset : Dataset
    own_columns : int
        Encoded columns that the budget is computed from; columns computed from categories do not enlarge it.
    spent : float
        Work already done by the trials of categories, texts and crosses, in counted nanoseconds.
    judging_seed : int or None
        See `Sample`.
    reasons : tuple of str
        A sentence for each decision.
    """

    dataset: Dataset
    own_columns: int
    spent: float
    judging_seed: int | None
    reasons: tuple[str, ...]


class ColumnChoice:
    """Decides by trials of plain models which columns the machine fits on."""

    def __init__(self, bench: Bench) -> None:
        self._bench, self._terms, self._run = bench, bench.terms, bench.run
        self._seed, self._spent = bench.terms.seed, 0.0
        self._reasons: list[str] = []

    def chosen(self, dataset: Dataset) -> Columns:
        """Leave out columns that run ahead in time, then texts that gain nothing; then put numbers for categories."""
        dataset, left_out = self._without_columns_ahead(dataset)
        self._own_columns = dataset.n_columns
        plain = self._with_gaining_texts(dataset)
        if plain.encoding is not None and not plain.encoding.array_dtype:
            # one column of the table may be many encoded ones, most of their entries 0: they must not enlarge the
            # budget
            self._own_columns = min(self._own_columns, _MOST_NUMBERS * len(plain.encoding.rules))
        rows = (
            self._with_categories(plain)
            if looks_for_categories(self._terms, plain)
            else self._with_category_numbers(plain)
        )
        # target means were computed without the held-out rows, so every later comparison must hold out the same ones
        is_numbered = rows is not plain or has_scores(rows.encoding)
        seed = self._seed if is_numbered else None
        reasons = (*category_reasons(rows.encoding), *self._reasons, *left_out)
        return Columns(rows, self._own_columns, self._spent, seed, reasons)

    def _without_columns_ahead(self, dataset: Dataset) -> tuple[Dataset, tuple[str, ...]]:
        """The rows of a table without the columns that run ahead in time, if a linear model does better without them.

        A column runs ahead where its newest values lie outside the range of the older ones. Only rows that are held out
        by time can have such columns.
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
            rows = gathered(without_columns(sample.rows, names), self._run, self._seed)
            simplest = self._terms.contenders(rows)[0].learner
            _, choice = self._bench.trial(simplest, replace(sample, rows=rows), 0, f"columns-{stage}")
            losses.append(choice.loss)
        if not gains(losses[1], losses[0], _CLEARLY):
            return dataset, ()
        left_out = (
            f"Columns: {spoken_names(ahead)} left out, since most of the newest rows lie beyond all older ones there, "
            f"and later rows will: a linear model without them has the score {1.0 - losses[1]:.4f} on the newest rows, "
            f"with them {1.0 - losses[0]:.4f}. by_time=False keeps them, and holds rows out at random.",
        )
        why = "left out, since most of the newest rows lie beyond all older ones"
        return without_columns(dataset, ahead, why), left_out

    def _with_gaining_texts(self, dataset: Dataset) -> Dataset:
        """The rows with scores of free-text columns; a text whose scores do not improve a linear model is left out."""
        scored = with_texts(dataset, self._judging_rows, self._run)
        if scored is dataset:
            return dataset
        of_texts = {rule.name: rule.output_names for rule in scored.encoding.rules if rule.kind == "text"}
        # codes are not numbered yet
        codes = [rule.name for rule in scored.encoding.rules if rule.kind == "code"]
        for place, (name, columns) in enumerate(of_texts.items()):
            if scored.total_weight < FEWEST_ROWS or len(codes) + len(columns) == scored.n_columns:
                continue
            without, with_it = (
                self._plain_score(self._sample(without_columns(scored, left_out)), f"text {place}", "columns", stage)
                for stage, left_out in (("without", [*codes, *columns]), ("with", codes))
            )
            stays = gains(1.0 - with_it, 1.0 - without, _CLEARLY)
            scores = f"(score of a linear model on held-out rows {with_it:.4f} with it, {without:.4f} without)"
            decided = "a score by its words and their directions are columns"
            decided = decided if stays else "it is left out, since it gains nothing"
            self._reasons.append(f"Text: {name!r} is free text; {decided} {scores}.")
            why = f"free text, left out, since it gains nothing {scores}"
            scored = scored if stays else without_columns(scored, columns, why)
        return scored

    def _with_categories(self, dataset: Dataset) -> Dataset:
        """The rows with target means for codes; numbers and crosses become categories, too, where a trial gains."""
        suspects = more_categories(dataset, self._judging_rows, self._run, self._seed)
        rows, adopted = self._with_category_numbers(dataset), NOTHING
        for change in _CHANGES:
            if not (names := getattr(suspects.made, change)):
                continue
            tried = replace(adopted, numbers=suspects.made.numbers, **{change: names})
            other = self._with_category_numbers(dataset, tried)
            is_better, before, after = self._comparison(rows, other, change)
            self._reasons.append(suspects.sentence(change, is_better, before, after))
            if is_better:
                adopted, rows = tried, other
        if suspects.suspected and not suspects.made.taken:
            self._reasons.append(suspects.sentence("taken", False))
        return rows

    def _with_category_numbers(self, dataset: Dataset, more: Made = NOTHING) -> Dataset:
        """The rows with target means and counts in place of codes."""
        return with_categories(dataset, self._judging_rows, self._run, more=more)

    @property
    def _judging_rows(self) -> HeldOut:
        """The rows held out in every comparison of this fit."""
        return HeldOut(max(self._terms.validation_fraction, JUDGING_SHARE), self._seed)

    def _sample(self, dataset: Dataset) -> Sample:
        """The sample of the rows on which plain models are compared."""
        is_numbered = isinstance(dataset.encoding, FittedEncoding) or has_scores(dataset.encoding)
        seed = self._seed if is_numbered else None
        return self._bench.sample(dataset, self._own_columns, judging_seed=seed)

    def _comparison(self, rows: Dataset, other: Dataset, change: str) -> tuple[bool, float, float]:
        """Whether plain models do better on changed columns, and the best score before and after the change.

        The models are a linear one on the columns, and a kernel that is a product over columns, which finds by itself
        which rows share values. For crosses the kernel is a large one, fitted only where the linear model gains enough.
        """
        least = _OF_CROSSES if change == "crosses" else _CLEARLY
        before = after = -np.inf
        judged, others = self._sample(rows), self._sample(other)
        for kind in ("columns", "kernel"):
            before = max(before, self._plain_score(judged, change, kind, "before"))
            after = max(after, self._plain_score(others, change, kind, "with"))
            is_better = gains(1.0 - after, 1.0 - before, least)
            if change == "crosses" and not is_better:
                break
        return is_better, before, after

    def _plain_score(self, sample: Sample, change: str, kind: str, stage: str) -> float:
        """The score of one plain model on the first fold: a linear one on the columns, or a kernel."""
        terms = self._terms
        columns, kernel = _plain_models(terms, sample.rows, change)
        chosen = kernel if kind == "kernel" else columns
        self._spent += terms.shape(sample.rows).trial_work(chosen.learner)
        return self._bench.trial(chosen.learner, sample, 0, f"{stage}-{change}-{kind}")[1].score


def _plain_models(terms: Terms, dataset: Dataset, change: str) -> tuple[Contender, Contender]:
    """The plain models that compare columns with and without a change: a linear one on them, and a kernel."""
    candidates = terms.contenders(dataset)
    # a kernel without a learned metric; where no kernel is a candidate, the last candidate
    kernels = [one for one in candidates if one.is_kernel and not one.is_learned]
    kernel = (kernels or candidates)[-1]
    if kernels and change == "crosses" and terms.knobs.n_features == "auto":
        size = min(2 * terms.budget.n_features, terms.budget.most_features)
        kernel = kernel.changed(f"up to {size:,}", n_features=size)
    return candidates[0], kernel


def looks_for_categories(terms: Terms, dataset: Dataset) -> bool:
    """Whether numbers and crosses are tried as categories: if the user left it open and the trials are cheap."""
    judged = replace(terms.shape(dataset), n_rows=min(dataset.n_rows, terms.budget.least_judged))
    # each model is tried with and without each change
    trials = 2 * sum(
        judged.trial_work(one.learner) for change in _CHANGES for one in _plain_models(terms, dataset, change)
    )
    return terms.finds_categories and trials <= SIDE_SHARE * terms.budget.allowed(judged)


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
    return run.read(sample.source, [record], lambda passed: _ahead(passed.results[0], newest, sample.encoding), [])


def _ahead(rows: Block, newest: HeldOut, encoding: Any) -> list[str]:
    """`columns_ahead` of the rows of a table."""
    is_new = newest.mask(rows.held_with)
    if is_new.all() or not is_new.any():
        return []
    ahead, first = [], 0
    for rule in encoding.rules:
        if rule.kind == "number" or "days" in rule.parts:
            values = dense_columns(rows.X, first, first + 1)[:, 0]
            older, new = values[~is_new], values[is_new]
            is_beyond = (new < older.min()) | (new > older.max())
            if is_beyond.sum() > len(new) / 2:
                has_cycles = len(rule.parts) > 1
                ahead += rule.output_names[:1] if has_cycles else rule.output_names
        first += len(rule.output_names)
    return ahead


Perfect = Sequence[tuple[tuple[str, ...], float]]
"""Columns, or pairs of columns, that predict the target of other rows almost perfectly, each with its R^2 there."""


def perfect_columns(sample: Dataset, run: Run, seed: int) -> Perfect:
    """The columns that predict the target almost perfectly, or pairs of columns where no single one does.

    Most of them were written after the target was known. A column predicts by the mean target (for classes: the mean
    indicators) of its quantile bins, on one half of some rows, and its R^2 is that on the other half; almost perfect
    ones are within `EQUAL_LOSS` of 1. Pairs are looked at where they are no more than the rows. The only column of a
    table is left out, and with too few rows for any comparison all are; of several targets nothing is said.

    Parameters
    ----------
    sample : Dataset
        Rows in memory, or few enough to be read in one pass.
    run : Run
    seed : int
    """
    names = sample.column_names or ()
    if len(names) < 2 or sample.source.is_sparse or sample.task is None or sample.schema.n_targets is not None:
        return []
    record = RowSample("rows to look at columns alone", min(sample.n_rows, 2 * ENOUGH_ROWS), seed)
    return run.read(
        sample.source, [record], lambda passed: _perfect_in_sample(passed.results[0], names, sample.classes), []
    )


def _perfect_in_sample(
    rows: Block, names: Sequence[str], classes: np.ndarray | None
) -> list[tuple[tuple[str, ...], float]]:
    """The columns of sampled rows that are almost perfect alone, or pairs of columns where no single one is."""
    judge = _HalfOfRows.of(np.asarray(rows.y), classes)
    if judge is None:
        return []
    columns = [dense_columns(rows.X, place, place + 1)[:, 0] for place in range(len(names))]
    scores = {name: judge.r_squared(_quantile_bins(column)) for name, column in zip(names, columns, strict=True)}
    perfect: list[tuple[tuple[str, ...], float]] = [
        ((name,), score) for name, score in scores.items() if score >= 1.0 - EQUAL_LOSS
    ]
    # a pair with a column that is perfect alone says nothing more
    return perfect or _perfect_pairs(names, columns, judge)


def _perfect_pairs(
    names: Sequence[str], columns: list[np.ndarray], judge: _HalfOfRows
) -> list[tuple[tuple[str, ...], float]]:
    """The pairs of columns that predict the target almost perfectly, by both values or by their difference."""
    # of more pairs than rows some look perfect by chance; 1,225 pairs take a tenth of a second or two
    if comb(len(columns), 2) > len(columns[0]) or judge.n_unusual < _FEWEST_UNUSUAL:
        return []
    codes = [np.unique(column, return_inverse=True) for column in columns]
    perfect: list[tuple[tuple[str, ...], float]] = []
    for first, second in combinations(range(len(columns)), 2):
        difference = columns[first] - columns[second]
        scores = [judge.r_squared(_quantile_bins(difference, split_at=0.0))]
        n_first, n_second = len(codes[first][0]), len(codes[second][0])
        if n_first * n_second <= BINS:
            scores.append(judge.r_squared(codes[first][1] * n_second + codes[second][1]))
        if max(scores) >= 1.0 - EQUAL_LOSS:
            perfect.append(((names[first], names[second]), max(scores)))
    return perfect


@dataclass(frozen=True, eq=False)
class _HalfOfRows:
    """Targets of sampled rows in two halves: the mean target of each bin is computed on one, and checked on the other.

    Parameters
    ----------
    learned, checked : ndarray of shape (n / 2, K), float64
        Targets of every second row, and of the rows between them, less the mean of the former; classes as indicators,
        of two classes the second alone.
    n_unusual : int
        Rows without the most frequent target, in the half that has fewer of them.
    """

    learned: np.ndarray
    checked: np.ndarray
    n_unusual: int

    @classmethod
    def of(cls, y: np.ndarray, classes: np.ndarray | None) -> _HalfOfRows | None:
        """The two halves of the rows; None where there are too few rows, or all checked targets are equal."""
        targets = y[:, None].astype(np.float64) if classes is None else np.eye(len(classes))[y]
        if classes is not None and len(classes) == 2:
            # the indicators of two classes have equal errors
            targets = targets[:, 1:]
        if len(y) < FEWEST_ROWS:
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
        """The squared error of predicting the mean, over the checked half."""
        return float((self.checked**2).sum())

    def r_squared(self, bins: np.ndarray) -> float:
        """R^2 on the checked half, where a row's bin predicts its mean target; a bin without rows predicts the mean."""
        learned, checked, size = bins[::2], bins[1::2], int(bins.max()) + 1
        counts = np.maximum(np.bincount(learned, minlength=size), 1)
        means = np.stack([np.bincount(learned, target, size) / counts for target in self.learned.T], axis=1)
        return 1.0 - float(((self.checked - means[checked]) ** 2).sum()) / self._of_mean


def _quantile_bins(column: np.ndarray, split_at: float | None = None) -> np.ndarray:
    """The bin of each value between the quantiles of every second row; `split_at` has a bin of its own."""
    ordered = np.sort(column[::2]).astype(np.float64)
    places = np.arange(len(ordered))
    edges = np.unique(np.interp(np.linspace(0.0, len(ordered) - 1.0, BINS + 1), places, ordered))
    if split_at is not None:
        edges = np.unique(np.append(edges, (split_at, np.nextafter(split_at, -np.inf))))
    # a value beyond the range of the first half belongs to the outermost bin
    return np.minimum(np.searchsorted(edges, column), len(edges) - 1)


def too_good(perfect: Perfect) -> tuple[str, ...]:
    """The warning about columns that predict the target almost perfectly; empty without such columns."""
    if not perfect:
        return ()
    is_pair = len(perfect[0][0]) > 1

    def text_of(found: tuple[tuple[str, ...], float]) -> str:
        return f"{' and '.join(map(repr, found[0]))} {'together give' if is_pair else 'alone gives'} {found[1]:.3f}"

    shown = ", ".join(first_few(perfect, _MOST_NAMED, "pairs" if is_pair else "columns", text_of))
    question = "are both" if is_pair else "is it"
    remedy = "If one of them" if is_pair else "If it"
    return (
        f"{TOO_GOOD}: {shown} (1 less the squared error that remains on other rows): {question} known when you "
        f"predict? {remedy} is written down afterwards, leave it out (drop, in the shell --drop) and fit again.",
    )
