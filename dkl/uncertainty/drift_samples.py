"""Two samples of rows as Datasets of the same columns, which are learned from both alike."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import pyarrow as pa

from dkl.data.checks import as_rows, check_rows, checked_weight, no_rows, spoken_names
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.frames import check_names, encoded_by, in_words_of_frames, is_frame, is_raw, lacks_values
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.column_rules import ColumnRule, decide_rule
from dkl.data.ingest.columns import array_table, as_table
from dkl.data.ingest.encoding import TableEncoding, decide_encoding
from dkl.data.ingest.statistics import TableStatistics, merged, table_statistics
from dkl.data.missing_targets import rows_of
from dkl.data.other_frames import as_known_rows
from dkl.data.view import View
from dkl.encodings.fitted import Made, code_places
from dkl.encodings.keys import CategoryKey, CategoryPart, category_parts
from dkl.encodings.row_matrices import RowsInMemory
from dkl.encodings.source import CategoryNumbers
from dkl.encodings.sums import CategorySum, category_sums
from dkl.encodings.target_means import CategoryFolds
from dkl.errors import Problems, located
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.passes.engine import run_pass
from dkl.protocols.records import Accumulator, BlockSum, Cost
from dkl.uncertainty.drift_statistics import LEAST_EXPECTED

_NAMES = ("a", "b")


def compared_samples(
    a: GivenRows | Dataset, b: GivenRows | Dataset, weights: Sequence[GivenValues], run: Run
) -> tuple[Dataset, Dataset]:
    """Both samples as Datasets with the same columns.

    The rules of raw rows are learned from both samples: those of one sample know all of its names and not all of the
    other's, so that samples of one law would be told apart by them.

    Raises
    ------
    ValueError
        If the columns differ, or one of them has fewer than two rows.
    """
    if len(weights) != 2:
        raise ValueError(f"sample_weights holds {len(weights)} arrays; expected two, of a and of b: (weights_a, None)")
    for rows, weight, name in zip((a, b), weights, _NAMES, strict=True):
        if isinstance(rows, Dataset) and weight is not None:
            raise ValueError(
                f"sample_weights were given for {name}, which is a Dataset and has its own; pass None for it"
            )
    counted = [_counted(as_known_rows(rows), weight) for rows, weight in zip((a, b), weights, strict=True)]
    given, weights = [rows for rows, _ in counted], [weight for _, weight in counted]
    stored, raw = ([rows for rows in given if isinstance(rows, Dataset) is is_stored] for is_stored in (True, False))
    rules: TableEncoding | None = None
    if raw:
        rules = _rules_beside(stored[0], raw[0]) if stored else _rules_of_both(given)
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
    # the rules of a store do not change when rows are appended, whose names they may lack
    has_grown = any(dataset.version > 0 for dataset in stored)
    return _without_rare_names(datasets, run) if has_grown else (datasets[0], datasets[1])


def _counted(rows: Any, weight: GivenValues) -> tuple[Any, GivenValues]:
    """Raw rows in memory without those of weight 0, which would have a say in the rules else."""
    if weight is None or isinstance(rows, Dataset) or dask.is_dask_collection(rows) or dask.is_dask_collection(weight):
        return rows, weight
    counts = np.asarray(checked_weight(weight, np.shape(rows)[0])) > 0.0
    return (rows, weight) if counts.all() or not counts.any() else (rows_of(rows, counts), rows_of(weight, counts))


def _place(name: str) -> str:
    return f"{name}, a sample of rows given to drift"


def _rules_beside(dataset: Dataset, raw: Any) -> TableEncoding | None:
    """The rules of a Dataset for raw rows beside it; columns of codes get the names that these rows hold, too."""
    rules: TableEncoding | None = dataset.encoding
    if rules is None or not rules.has_codes or not is_frame(raw):
        return rules
    codes = [rule.name for rule in rules.rules if rule.kind == "code"]
    further: dict[str, tuple[str, ...]] = {}
    for column in _statistics(raw, codes).columns:
        if column.kind == "category":
            # more values than can be told apart are refused here
            further[column.name] = tuple(column.categories or decide_rule(column, "auto").categories)

    def extended(rule: ColumnRule) -> ColumnRule:
        return replace(rule, categories=tuple(sorted({*rule.categories, *further.get(rule.name, ())})))

    return replace(rules, rules=tuple(extended(rule) if rule.kind == "code" else rule for rule in rules.rules))


def _rules_of_both(given: Sequence[Any]) -> TableEncoding | None:
    """The rules of two samples of raw rows, learned from both; None where columns are numbers as they are.

    A column of one kind in `a` and of another in `b` has the rule of `a`, and so have all where `b` lacks one: what is
    wrong is said when `b` is encoded.
    """
    are_frames = all(map(is_frame, given))
    are_arrays = all(isinstance(rows, np.ndarray | da.Array) and rows.ndim == 2 for rows in given)
    if not are_frames and not (are_arrays and any(map(lacks_values, given))):
        return None
    found: list[TableStatistics] = []
    problems = Problems(in_words_of_frames)
    for rows, name in zip(given, _NAMES, strict=True):
        with problems.collected(), located(_place(name)):
            found.append(_statistics(rows, [column.name for column in found[0].columns] if found else None))
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
        rules = decide_encoding(both, layout="auto" if are_frames else "dense", without="X.drop(columns={})")
    problems.raise_all()
    return rules if are_frames else replace(rules, array_dtype=np.result_type(*(rows.dtype for rows in given)).str)


def _statistics(rows: Any, only: Collection[str] | None = None) -> TableStatistics:
    """The statistics of the columns of raw rows, or of some of them, in the order of `only`.

    Raises
    ------
    ValueError, TypeError
        No row, an infinite value, or a column that cannot be encoded.
    """
    parts: list[TableStatistics] = []
    row = 0
    for table in _tables(rows):
        names = table.column_names if only is None else [name for name in only if name in table.column_names]
        of_part = table_statistics(table.select(names), first_row=row)
        parts = [merged([*parts, of_part])]
        row += table.num_rows
    if not row:
        raise ValueError(no_rows((0, np.shape(rows)[1])))
    for column in parts[0].columns:
        if column.infinite is not None:
            # refused here, where the row is that of the sample
            decide_rule(column, "auto")
    return parts[0]


def _tables(rows: Any) -> Iterator[pa.Table]:
    """Raw rows as tables, a partition or chunk at a time."""
    if is_frame(rows):
        check_names(rows)
        yield from map(
            as_table, (part.compute() for part in rows.partitions) if hasattr(rows, "partitions") else [rows]
        )
        return
    if isinstance(rows, np.ndarray):
        check_rows(rows, may_lack=True)
        yield array_table(rows)
        return
    for part in rows.rechunk({1: -1}).to_delayed().ravel():
        yield array_table(as_rows(part.compute()))


def _encoded(rows: GivenRows, weight: GivenValues, rules: TableEncoding | None) -> Dataset:
    """Raw rows as a Dataset, encoded by the rules where they are raw to these."""
    if rules is None or not is_raw(rules, rows):
        return as_dataset(rows, sample_weight=weight)
    made = as_dataset(encoded_by(rules, rows), sample_weight=weight)
    return made.with_rows(made.source, made.schema.encoded_by(rules))


def _check_same_columns(a: Dataset, b: Dataset) -> None:
    """Raise ValueError where the columns of two samples do not mean the same."""
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


def _coded_as(dataset: Dataset, rules: TableEncoding | None) -> Dataset:
    """The rows of a Dataset with the codes that other rules have for the same names."""
    known = dataset.encoding
    if rules is None or rules == known:
        return dataset
    codes = {
        rule.name: np.append(0, 1 + np.searchsorted(rule.categories, own.categories))
        for rule, own in zip(rules.rules, known.rules, strict=True)
        if rule.kind == "code"
    }
    return dataset.with_rows(_recoded(dataset, codes).source, dataset.schema.encoded_by(rules))


def _recoded(dataset: Dataset, codes: Mapping[str, np.ndarray]) -> Dataset:
    """The rows with other codes in columns of codes: by name what becomes of each code, (V + 1,)."""
    places = code_places(dataset.encoding, 1, Made())
    tables = tuple(RowsInMemory(codes[name][:, None]) for name in _code_parts(dataset))
    return dataset.with_rows(View(dataset.source, CategoryNumbers(places, tables, None)), dataset.schema)


def _code_parts(dataset: Dataset) -> dict[str, CategoryPart]:
    """Where the columns of codes are, by name and in their order."""
    encoding = dataset.encoding
    parts = {} if not isinstance(encoding, TableEncoding) else category_parts(encoding)
    return {name: part for name, part in parts.items() if part.is_code}


def _without_rare_names(datasets: Sequence[Dataset], run: Run) -> tuple[Dataset, Dataset]:
    """The samples with one code, 0, for names that are rare in both together, where some rows have no known name.

    Rows that were appended to a store may hold names that its rules do not know, of which no row has one that these
    were learned from: together with rare names, which other rows might as well have lacked, they can be compared.
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
    """The record of a pass that counts the rows of each name; None where no column holds codes.

    Its results are arrays (F, V + 1) by the number of the column among those of the dataset, as texts.
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
            cost=lambda rows, columns: Cost(20.0 * rows * len(sums), 64 * rows * len(sums)),
        )
    )


def name_counts(result: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
    """What `names_record` has counted: the weight of the rows with each code, (V + 1,), by the number of the column."""
    return {int(column): counts.sum(axis=0) for column, counts in result.items()}
