"""Turns two samples of rows into Datasets with the same columns; the encoding of raw rows is learned from both."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import pyarrow as pa

from dkl.data.checks import as_rows, check_rows, lacks_values, no_rows, spoken_names
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.fewer_columns import without_columns
from dkl.data.frames import (
    RawParts,
    check_names,
    encoded_by,
    in_words_of_frames,
    is_frame,
    is_raw,
    may_lack_values,
)
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.column_rules import ColumnRule, decide_rule
from dkl.data.ingest.columns import array_table, as_table
from dkl.data.ingest.encoding import Layout, TableEncoding, decide_encoding
from dkl.data.ingest.statistics import TableStatistics, statistics_of
from dkl.data.other_frames import as_pandas_rows
from dkl.data.sources.versions import VersionSource
from dkl.data.view import View
from dkl.encodings.fitted import Made, code_places
from dkl.encodings.keys import CategoryKey, CategoryPart, category_parts
from dkl.encodings.source import CategoryNumbers
from dkl.encodings.sums import CategorySum, category_sums, sums_cost
from dkl.encodings.target_means import CategoryFolds
from dkl.errors import Problems, located, warn_user
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import run_pass
from dkl.protocols.records import Accumulator, BlockSum
from dkl.uncertainty.drift_statistics import LEAST_EXPECTED

_NAMES = ("a", "b")
# How columns of names that differ in (almost) every row are compared all the same: nothing of `drift` says so.
_NAMES_IN_A_STORE = "compare with a store that takes them for categories: create_dataset('a.zarr', a, categorical={})"


def compared_samples(
    a: GivenRows | Dataset, b: GivenRows | Dataset, weights: Sequence[GivenValues], run: Run
) -> tuple[Dataset, Dataset]:
    """Both samples as Datasets with the same columns.

    The encoding of raw rows is learned from both samples. With that of one sample, only the other could have unknown
    categories, so that samples of the same distribution would seem to differ.

    Raises
    ------
    ValueError
        If the columns differ, or a sample has fewer than two rows.
    """
    if len(weights) != 2:
        raise ValueError(f"sample_weights holds {len(weights)} arrays; expected two, of a and of b: (weights_a, None)")
    for rows, weight, name in zip((a, b), weights, _NAMES, strict=True):
        if isinstance(rows, Dataset) and weight is not None:
            raise ValueError(
                f"sample_weights were given for {name}, which is a Dataset and has its own; pass None for it"
            )
    given = [as_rows(rows) if isinstance(rows, list | tuple) else as_pandas_rows(rows) for rows in (a, b)]
    stored = [rows for rows in given if isinstance(rows, Dataset)]
    raw = [(rows, weight) for rows, weight in zip(given, weights, strict=True) if not isinstance(rows, Dataset)]
    rules: TableEncoding | None = None
    if raw:
        rules = _rules_beside(stored[0], *raw[0]) if stored else _rules_of_both(given, weights)
    datasets: list[Dataset] = []
    for rows, weight, name in zip(given, weights, _NAMES, strict=True):
        with located(_place(name)):
            datasets.append(_coded_as(rows, rules) if isinstance(rows, Dataset) else _encoded(rows, weight, rules))
    for dataset, name in zip(datasets, _NAMES, strict=True):
        if dataset.n_rows < 2 or not dataset.total_weight > 1.0:
            raise ValueError(
                f"{name} has {dataset.n_rows} rows of total weight {dataset.total_weight:g}; samples are compared by "
                "how much their rows vary, which takes at least two rows in each"
            )
    _check_same_columns(*datasets)
    if raw or not all(map(_holds_known_rows, stored)):
        datasets = [_without_texts(dataset) for dataset in datasets] if stored else datasets
        _say_texts(stored)
    # the rules of a store do not change when rows are appended, whose names they may lack
    has_grown = any(dataset.version > 0 for dataset in stored)
    return _without_rare_names(datasets, run) if has_grown else (datasets[0], datasets[1])


def _place(name: str) -> str:
    return f"{name}, a sample of rows given to drift"


def _holds_known_rows(dataset: Dataset) -> bool:
    """Whether the rules of a store were learned from all rows of the dataset, none of them appended later."""
    base = dataset.source.base
    if not isinstance(base, VersionSource):
        return True
    return bool((np.flatnonzero(dataset.source.block_rows) < base.parts[0].n_blocks).all())


def _text_columns(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    """The encoded columns of each column of free text."""
    encoding = dataset.encoding
    rules = encoding.rules if isinstance(encoding, TableEncoding) else ()
    return {rule.name: tuple(rule.output_names) for rule in rules if rule.kind == "text"}


def _without_texts(dataset: Dataset) -> Dataset:
    """The rows without free text, whose directions fit the texts that they were learned from better than any others.

    Raises
    ------
    ValueError
        There is no other column.
    """
    texts = [name for names in _text_columns(dataset).values() for name in names]
    if texts and len(texts) == dataset.n_columns:
        raise ValueError(
            f"a and b hold free text alone, {spoken_names(list(_text_columns(dataset)))}, whose directions a store has "
            "learned from some of the rows that are compared and not from the others; give both as data frames"
        )
    return without_columns(dataset, texts)


def _say_texts(stored: Sequence[Dataset]) -> None:
    """Warn of columns that are not compared."""
    texts = list(_text_columns(stored[0])) if stored else []
    if texts:
        warn_user(
            f"the free text of {spoken_names(texts)} is not compared: its directions were learned from the rows of a "
            "store, and fit them better than rows that came later; to compare texts, give both samples as data frames"
        )


def _rules_beside(dataset: Dataset, raw: Any, weight: GivenValues) -> TableEncoding | None:
    """The rules of a Dataset for raw rows beside it; columns of codes get the names that these rows hold, too."""
    rules: TableEncoding | None = dataset.encoding
    if rules is None or not rules.has_codes or not is_frame(raw):
        return rules
    codes = [rule.name for rule in rules.rules if rule.kind == "code"]
    further: dict[str, tuple[str, ...]] = {}
    for column in _statistics(raw, weight, codes).columns:
        if column.kind == "category":
            # raises ValueError for too many different values
            further[column.name] = tuple(column.categories or decide_rule(column, "auto").categories)

    def extended(rule: ColumnRule) -> ColumnRule:
        return replace(rule, categories=tuple(sorted({*rule.categories, *further.get(rule.name, ())})))

    return replace(rules, rules=tuple(extended(rule) if rule.kind == "code" else rule for rule in rules.rules))


def _rules_of_both(given: Sequence[Any], weights: Sequence[GivenValues]) -> TableEncoding | None:
    """The rules of two samples of raw rows, learned from both; None where columns are numbers as they are.

    A column whose kind differs between the samples gets the rule of `a`, and so do all if `b` lacks a column; the error
    is then raised when `b` is encoded.
    """
    are_frames = all(map(is_frame, given))
    are_arrays = all(isinstance(rows, np.ndarray | da.Array) and rows.ndim == 2 for rows in given)
    if not are_frames and not (are_arrays and any(map(_lacks_values, given, weights))):
        return None
    found: list[TableStatistics] = []
    problems = Problems(in_words_of_frames)
    for rows, weight, name in zip(given, weights, _NAMES, strict=True):
        with problems.collected(), located(_place(name)):
            found.append(_statistics(rows, weight, [column.name for column in found[0].columns] if found else None))
    problems.raise_all()
    first, second = found
    both = first
    if len(second.columns) == len(first.columns):
        pairs = zip(first.columns, second.columns, strict=True)
        columns = tuple(
            mine.merge(theirs) if len({mine.kind, theirs.kind} - {"empty"}) < 2 else mine for mine, theirs in pairs
        )
        both = TableStatistics(columns, first.rows + second.rows, first.sample.merge(second.sample))
    with problems.collected():
        layout: Layout = "auto" if are_frames else "dense"
        rules = decide_encoding(both, layout=layout, without="X.drop(columns={})", with_names=_NAMES_IN_A_STORE)
    problems.raise_all()
    return rules if are_frames else replace(rules, array_dtype=np.result_type(*(rows.dtype for rows in given)).str)


def _lacks_values(rows: Any, weight: GivenValues) -> bool:
    """Whether values are missing in an array of rows, those of weight 0 left aside; a Dask array is read for it."""
    if not lacks_values(rows) and not may_lack_values(rows):
        return False
    return RawParts.of(rows, weight).learned(lambda parts: any(map(lacks_values, parts)))


def _statistics(rows: Any, weight: GivenValues, only: Collection[str] | None = None) -> TableStatistics:
    """The statistics of the columns of raw rows that count, or of some columns, in the order of `only`.

    Raises
    ------
    ValueError, TypeError
        If there is no row, an infinite value, or a column that cannot be encoded.
    """
    if is_frame(rows):
        check_names(rows)
    return RawParts.of(rows, weight).learned(partial(_statistics_of, only=only))


def _statistics_of(raw: Iterable[Any], only: Collection[str] | None) -> TableStatistics:
    def chosen(table: pa.Table) -> pa.Table:
        return table if only is None else table.select([name for name in only if name in table.column_names])

    found = statistics_of(map(chosen, map(_table, raw)))
    if found is None or not found.rows:
        raise ValueError(no_rows((0, 0 if found is None else len(found.columns))))
    for column in found.columns:
        if column.infinite is not None:
            # raises ValueError here, where the number of the row is that in the sample
            decide_rule(column, "auto")
    return found


def _table(rows: Any) -> pa.Table:
    """Raw rows in memory as a table."""
    if is_frame(rows):
        return as_table(rows)
    check_rows(rows, may_lack=True)
    return array_table(as_rows(rows))


def _encoded(rows: GivenRows, weight: GivenValues, rules: TableEncoding | None) -> Dataset:
    """The rows as a Dataset, encoded by `rules` if they are raw."""
    if rules is None or not is_raw(rules, rows):
        return as_dataset(rows, sample_weight=weight)
    made = as_dataset(encoded_by(rules, rows, weight=weight), sample_weight=weight)
    return made.with_rows(made.source, made.schema.encoded_by(rules))


def _check_same_columns(a: Dataset, b: Dataset) -> None:
    """Raise ValueError if the columns of two samples have different names, numbers, kinds or codes."""
    remedy = "give both as data frames, or encode both by one rule: ds.encoding.transform(frame)"
    known = a.column_names, b.column_names
    if known[0] is not None and known[1] is not None and known[0] != known[1]:
        lacking = [name for name in known[0] if name not in known[1]]
        further = [name for name in known[1] if name not in known[0]]
        what = [f"b lacks {spoken_names(lacking)}"] * bool(lacking) + [f"a lacks {spoken_names(further)}"] * bool(
            further
        )
        raise ValueError(f"the columns of a and b differ: {', '.join(what) or 'their order is another'}; {remedy}")
    if a.n_columns != b.n_columns:
        raise ValueError(
            f"a has {a.n_columns} columns and b has {b.n_columns}; samples of the same columns are compared"
        )
    if a.source.is_sparse != b.source.is_sparse:
        kinds = ("sparse", "dense") if a.source.is_sparse else ("dense", "sparse")
        raise ValueError(
            f"a is {kinds[0]} and b is {kinds[1]}; pass both of one kind, such as scipy.sparse.csr_array(X)"
        )
    codes = [
        [] if ds.encoding is None else [rule for rule in ds.encoding.rules if rule.kind == "code"] for ds in (a, b)
    ]
    if codes[0] != codes[1]:
        raise ValueError(
            f"the columns {[rule.name for rule in codes[0] or codes[1]]} hold codes of categories, which mean other "
            f"values in a than in b; {remedy}"
        )
    words = [
        [] if ds.encoding is None else [each.digest for each in getattr(ds.encoding, "directions", ())] for ds in (a, b)
    ]
    if words[0] != words[1]:
        raise ValueError(
            f"the columns {list(_text_columns(a) or _text_columns(b))} hold directions of free text, which mean other "
            f"words in a than in b; {remedy}"
        )


def _coded_as(dataset: Dataset, rules: TableEncoding | None) -> Dataset:
    """The rows of a Dataset with codes changed to those of `rules` for the same categories."""
    own_rules = dataset.encoding
    if rules is None or rules == own_rules:
        return dataset
    codes = {
        rule.name: np.append(0, 1 + np.searchsorted(rule.categories, own.categories))
        for rule, own in zip(rules.rules, own_rules.rules, strict=True)
        if rule.kind == "code"
    }
    return dataset.with_rows(_recoded(dataset, codes).source, dataset.schema.encoded_by(rules))


def _recoded(dataset: Dataset, codes: Mapping[str, np.ndarray]) -> Dataset:
    """The rows with other codes; `codes` has, by column name, the new code of each old one, (V + 1,)."""
    places = code_places(dataset.encoding, 1, Made())
    tables = tuple(codes[name][:, None] for name in _code_parts(dataset))
    return dataset.with_rows(View(dataset.source, CategoryNumbers(places, tables, None)), dataset.schema)


def _code_parts(dataset: Dataset) -> dict[str, CategoryPart]:
    """The columns of codes by name, in their order."""
    encoding = dataset.encoding
    parts = {} if not isinstance(encoding, TableEncoding) else category_parts(encoding)
    return {name: part for name, part in parts.items() if part.is_code}


def _without_rare_names(datasets: Sequence[Dataset], run: Run) -> tuple[Dataset, Dataset]:
    """The samples with code 0 for rare categories, in columns where some rows have an unknown category.

    Rows appended to a store may have categories that its encoding does not know, while the rows from which the encoding
    was learned have none. Merged with rare categories, which might as well have been unknown, they can be compared.
    """
    a, b = datasets
    record = names_record(a)
    if record is None:
        return a, b
    counts_a, counts_b = (
        name_counts(run_pass(each.source, (record,), publish=run.publish, memory_limit=run.memory_limit).results[0])
        for each in datasets
    )
    smaller_share = min(a.total_weight, b.total_weight) / (a.total_weight + b.total_weight)
    codes, has_rare = {}, False
    for name, part in _code_parts(a).items():
        both = counts_a[part.start] + counts_b[part.start]
        is_rare = (both[0] > 0.0) & (both * smaller_share < LEAST_EXPECTED)
        codes[name] = np.where(is_rare, 0, np.arange(len(both)))
        has_rare |= bool(is_rare[1:].any())
    return (_recoded(a, codes), _recoded(b, codes)) if has_rare else (a, b)


def names_record(dataset: Dataset) -> BlockSum | None:
    """The record of a pass that sums the weights of rows by category; None if no column holds codes.

    Its results are arrays (F, V + 1) by the number of the column in the dataset, as a string.
    """
    folds = CategoryFolds(HeldOut(0.0))
    sums = tuple(
        CategorySum(str(part.start), CategoryKey((part,)), 0, part.n_values + 1)
        for part in _code_parts(dataset).values()
    )
    return (
        None
        if not sums
        else BlockSum(
            "rows of each name",
            category_sums,
            {each.name: Accumulator((folds.count, each.width)) for each in sums},
            {"sums": sums, "folds": folds, "n_classes": dataset.schema.n_classes},
            cost=partial(sums_cost, sums, 0),
            on_host=True,
        )
    )


def name_counts(result: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """The result of `names_record`: by the number of the column, the weight of the rows with each code, (V + 1,)."""
    return {int(column): counts.sum(axis=0) for column, counts in result.items()}
