"""What a fit does about columns of codes: one pass for sums, then rows of numbers; and the same of rows to predict."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.fitted import FittedEncoding, code_places, named_rules
from dkl.encodings.source import CategorySource
from dkl.encodings.sums import category_sums
from dkl.encodings.target_means import CategoryFolds, by_time, fold_tables, new_table
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.passes.engine import run_pass
from dkl.protocols.records import Accumulator, BlockSum, Cost

# Of the sums of one pass, which a worker has of several blocks at a time.
_MOST_BYTES = 64 * 2**20


def with_categories(dataset: Dataset, held_out: HeldOut, run: Run) -> Dataset:
    """The rows with target means and counts in place of codes; the dataset itself where no column holds codes.

    Parameters
    ----------
    dataset : Dataset
    held_out : HeldOut
        Whatever judges rows of the fit: their targets enter the codes of no other row.
    run : Run
        How the one pass over the rows is run.

    Returns
    -------
    Dataset
        Its encoding is a `FittedEncoding`, which knows the codes of new rows.
    """
    if not dataset.schema.has_codes:
        return dataset
    folds = CategoryFolds(held_out)
    records = sums_records(dataset, folds)
    sums: dict[str, np.ndarray] = {}
    for record in records:
        sums |= run_pass(dataset.source, [record], publish=run.publish, memory_limit=run.memory_limit).results[0]
    is_by_time = by_time(next(block.held_with for block in dataset.source.blocks_without_x() if block.n_rows))
    outputs, fitted, tables = _outputs(dataset), [], []
    for c in range(len(records[0].operands["columns"])):
        weight = sums[f"weight {c}"]
        means = [sums[f"target {c} {t}"] for t in range(len(outputs) - 1)]
        targets = np.stack(means) if means else np.empty((0, *weight.shape))
        # rows are float32 or float64, and so are the numbers that they get
        tables.append(fold_tables(weight, targets, by_time=is_by_time).astype(dataset.source.dtype))
        fitted.append(new_table(weight, targets))
    return _numbered(dataset, FittedEncoding(dataset.encoding, outputs, tuple(fitted)), tuple(tables), folds)


def planned_categories(dataset: Dataset) -> tuple[Dataset, list[BlockSum], dict[str, int]]:
    """What a plan needs: the rows as later passes see them, the record of each first pass, and bytes of tables."""
    if not dataset.schema.has_codes:
        return dataset, [], {}
    folds = CategoryFolds(HeldOut(0.1))
    records, outputs = sums_records(dataset, folds), _outputs(dataset)
    sizes, width = records[0].operands["sizes"], len(outputs)
    zero = np.zeros(1)
    fitted = FittedEncoding(dataset.encoding, outputs, tuple(np.broadcast_to(zero, (size, width)) for size in sizes))
    tables = tuple(np.broadcast_to(zero, (folds.count, size, width)) for size in sizes)
    # sums, tables in float64 while one column is worked on, and those of all columns in the dtype of the rows
    held = sum(record.result_bytes for record in records) + sum(sizes) * width * (
        8 + folds.count * dataset.source.dtype.itemsize
    )
    held += 2 * 8 * max(sizes) * width * folds.count
    return _numbered(dataset, fitted, tables, folds), records, {"tables of categories": held}


def rows_like_fit(encoding: Any, dataset: Dataset) -> Dataset:
    """Rows of a dataset whose codes become numbers by the encoding of a fit; others as they are.

    Raises
    ------
    ValueError
        They hold codes, and those of fit had none, or a column of codes is missing.
    """
    if not dataset.schema.has_codes:
        return dataset
    if not isinstance(encoding, FittedEncoding):
        names = [rule.name for rule in dataset.encoding.rules if rule.kind == "code"]
        raise ValueError(
            f"the columns {names} of {dataset.source.place} hold codes of categories, and the rows of fit had none; "
            "fit these rows, or hand over rows as those of fit were"
        )
    return _numbered(dataset, encoding, encoding.tables_for(dataset.encoding), None)


def refuse_codes(dataset: Dataset, asking: str, remedy: str) -> None:
    """Raise ValueError where columns hold codes of categories, and what is `asking` has no fit that makes numbers."""
    if dataset.schema.has_codes:
        names = [rule.name for rule in dataset.encoding.rules if rule.kind == "code"]
        raise ValueError(
            f"the columns {names} of {dataset.source.place} hold codes of categories, of which {asking} makes no "
            f"numbers; {remedy}"
        )


def refuse_target_means(encoding: Any, written: str) -> None:
    """Raise TypeError for a model with target means, which what is to be `written` does not hold."""
    if isinstance(encoding, FittedEncoding):
        names = [rule.name for rule in encoding.table.rules if rule.kind == "code"]
        raise TypeError(
            f"the columns {names} have become target means and counts of their values, which {written} does not hold "
            "yet; model.save(store) keeps them, and model.predictor() answers rows in this process"
        )


def sums_records(dataset: Dataset, folds: CategoryFolds) -> list[BlockSum]:
    """The sums of weights and targets by value and fold of all columns of codes: one pass, or several of bounded size.

    A pass holds the sums of several blocks at a time, so that those of a million values are made one after the other.
    """
    encoding = dataset.encoding
    sizes = tuple(len(rule.categories) + 1 for rule in encoding.rules if rule.kind == "code")
    n_targets = len(_outputs(dataset)) - 1
    names = [
        (name, size)
        for c, size in enumerate(sizes)
        for name in (f"weight {c}", *(f"target {c} {t}" for t in range(n_targets)))
    ]
    parts: list[dict[str, Accumulator]] = [{}]
    held = 0
    for name, size in names:
        held += 8 * folds.count * size
        if held > _MOST_BYTES and parts[-1]:
            parts.append({})
            held = 8 * folds.count * size
        parts[-1][name] = Accumulator((folds.count, size))
    told = {
        "columns": code_places(encoding, 1).columns,
        "sizes": sizes,
        "folds": folds,
        "n_classes": dataset.schema.n_classes,
    }
    return [
        BlockSum(
            name="sums of categories",
            function=category_sums,
            accumulators=part,
            operands={**told, "names": tuple(part)},
            cost=_SumCost(len(part), len(sizes)),
        )
        for part in parts
    ]


def _outputs(dataset: Dataset) -> tuple[str, ...]:
    """What is learned of each value, by name: a class each, less one; the mean of each target; the count."""
    if dataset.classes is not None:
        means = [f"share of {label}" for label in dataset.classes[1:].tolist()]
    elif dataset.task is None:
        means = []
    else:
        several = dataset.schema.n_targets
        means = ["mean target"] if several is None else [f"mean target {t}" for t in range(several)]
    return (*means, "log count")


def _numbered(
    dataset: Dataset, encoding: FittedEncoding, tables: tuple[np.ndarray, ...], folds: CategoryFolds | None
) -> Dataset:
    """The dataset with numbers in place of codes: rows of a fit by their folds, others by the first."""
    # The codes lie where the dataset's own encoding has them, which may know other values than that of the fit.
    places = code_places(dataset.encoding, len(encoding.outputs))
    names = [name for rule in named_rules(dataset.encoding, encoding.outputs) for name in rule.output_names]
    schema = replace(
        dataset.schema,
        n_columns=places.n_made,
        encoding=None if folds is None else encoding,
        column_names=names,
        passthrough=None if folds is None else encoding.passthrough,
    )
    return dataset.with_rows(CategorySource(dataset.source, places, tables, folds), schema)


@dataclass(frozen=True)
class _SumCost:
    """What the sums of `n_sums` kinds over `n_columns` columns of codes cost: a few operations a row each."""

    n_sums: int
    n_columns: int

    def __call__(self, rows: int, columns: int) -> Cost:
        return Cost(20.0 * rows * self.n_sums, 64 * rows * self.n_columns)
