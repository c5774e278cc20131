"""Rules of one store or fit for the rows of another: a new store is encoded by them, or one with other rules is read.

Where a store has rules of its own, missing values become those of the fit, and columns whose encoded values have
another meaning are named for an error.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.checks import shown_value
from dkl.data.columns.numbers import NumberForm
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.given import GivenRows, GivenValues
from dkl.data.ingest.column_rules import ColumnRule, with_places
from dkl.data.ingest.encoding import TableEncoding
from dkl.data.schema import Schema
from dkl.data.sources.rows import RowSource
from dkl.data.store.changes import check_columns_alike, encoded_like
from dkl.data.view import NewColumns, Step, View
from dkl.plain_text import first_few
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block

# Columns that an error describes; further ones are counted.
_MOST_DESCRIBED = 3


def schema_like(like: Any) -> tuple[Schema, str]:
    """The schema whose rules the rows of a new store are encoded by, and its place in messages.

    That of a fitted model has the rules of its fit, and its classes.

    Parameters
    ----------
    like : Dataset, path or URL of a store, or fitted estimator

    Raises
    ------
    TypeError
        If it is none of these.
    """
    if isinstance(like, str | os.PathLike):
        like = open_dataset(like)
    if isinstance(like, Dataset):
        return like.schema, like.source.place
    if not hasattr(like, "feature_map_"):
        raise TypeError(f"like is {type(like).__name__}; expected a Dataset, the path of a store, or a fitted model")
    place = f"the fit of {type(like).__name__}"
    classes = getattr(like, "classes_", None)
    task: Any = "classification" if classes is not None else "regression" if hasattr(like, "predict") else None
    target = getattr(getattr(like, "provenance_", None), "target", "")
    schema = Schema(
        int(like.n_features_in_),
        np.dtype(np.float32),
        task=task,
        classes=classes,
        provenance={"target": target} if target else {},
    )
    fitted = getattr(like, "encoding_", None)
    # a fit puts numbers in place of the codes and the directions of the table
    table: TableEncoding | None = getattr(fitted, "table", fitted)
    if table is None:
        return schema, place
    table = table.with_all_directions()
    if exposure := getattr(like, "exposure_", ""):
        # it was a column of the rows, and is no feature
        table = replace(table, rules=(*table.rules, ColumnRule(exposure, "number")))
    of_table = replace(schema, n_columns=table.n_columns, dtype=table.dtype, is_sparse=table.is_sparse)
    return of_table.encoded_by(table), place


def table_schema_like(like: Any) -> Schema:
    """`schema_like` for raw rows of tables; ValueError if it has no rules for their columns."""
    schema, place = schema_like(like)
    if schema.encoding is None or schema.encoding.array_dtype:
        raise ValueError(
            f"like={place} has rows of arrays, and so no rules for the columns of tables; leave like= out, or encode "
            "the rows as those arrays were"
        )
    return schema


def check_left_to_rules(**given: Any) -> None:
    """Raise ValueError for an argument about columns or labels that is not its default, beside `like`."""
    for name, value in given.items():
        value = list(value) if isinstance(value, tuple) else value
        is_default = value in ("auto", "zeros") if isinstance(value, str) else np.size(value) == 0
        if value is not None and not is_default:
            raise ValueError(
                f"{name}={shown_value(value)} says how rows are encoded, and with like= they are encoded as there; "
                "give one of them"
            )


def dataset_like(wanted: Schema, place: str, X: GivenRows, y: GivenValues, sample_weight: GivenValues) -> Dataset:
    """Rows of any kind as a Dataset that is encoded by the rules of `schema_like`.

    Raises
    ------
    ValueError
        If the columns are others, a label is unknown, or X is a Dataset, which has rules of its own.
    """
    if isinstance(X, Dataset):
        raise ValueError(f"X is {X!r}, whose rows are encoded already; pass raw rows with like=, or leave like= out")
    source, schema = encoded_like(wanted, X, y, sample_weight)
    check_columns_alike(place, wanted, source, schema)
    if wanted.encoding is not None:
        schema = replace(schema, dtype=wanted.dtype).encoded_by(wanted.encoding)
    return Dataset(source, schema)


def filled_like_fit(fitted: Any, dataset: Dataset) -> Dataset:
    """The dataset with missing numbers filled as in a fit; the dataset itself if they are already.

    A store fills missing values with the means of its own rows, and flags them.

    Parameters
    ----------
    fitted : TableEncoding, FittedEncoding or None
        The encoding of the fit.
    dataset : Dataset
    """
    if fitted is None or not isinstance(dataset.encoding, TableEncoding):
        return dataset
    known = {rule.name: rule.filling for rule in fitted.rules}
    fills = []
    for rule, start in with_places(dataset.encoding.rules):
        is_number = rule.kind not in ("category", "code", "text") and (not rule.parts or "days" in rule.parts)
        filling = known.get(rule.name)
        if is_number and rule.flags_missing and filling not in (None, rule.filling):
            fills.append((start, start + rule.n_values, filling))
    if not fills:
        return dataset
    return dataset.with_rows(View(dataset.source, FilledOtherwise(tuple(fills))), dataset.schema)


@dataclass(frozen=True, eq=False)
class FilledOtherwise(Step, NewColumns):
    """Fills missing numbers, which the rows have a flag column for, with other values than before.

    Parameters
    ----------
    fills : tuple of (int, int, float)
        The column of each number, the column that flags its missing values, and their new value.
    """

    fills: tuple[tuple[int, int, float], ...]

    @property
    def identity(self) -> str:
        return f"missing values filled otherwise {self.fills}"

    def new_columns(self, block: Block) -> Rows:
        X = block.X
        if isinstance(X, np.ndarray):
            X = X.copy()
            for column, flag, value in self.fills:
                X[X[:, flag] != 0.0, column] = value
            return X
        entries = X.tocoo()
        rows, columns, values = entries.row, entries.col, entries.data
        for column, flag, value in self.fills:
            flagged = rows[(columns == flag) & (values != 0.0)]
            kept = (columns != column) | ~np.isin(rows, flagged)
            rows = np.concatenate([rows[kept], flagged])
            columns = np.concatenate([columns[kept], np.full(len(flagged), column, columns.dtype)])
            values = np.concatenate([values[kept], np.full(len(flagged), value, values.dtype)])
        filled = sparse.csr_array((values, (rows, columns)), shape=X.shape)
        filled.sort_indices()
        return filled

    def read_nbytes(self, before: RowSource) -> int:
        """The bytes of the whole block, and of its copy."""
        return before.read_nbytes + before.block_nbytes


def other_columns(fitted: Any, given: Any) -> str:
    """The columns of a dataset whose encoded values mean something else than in a fit, in words; empty for none.

    Parameters
    ----------
    fitted, given : TableEncoding, FittedEncoding or None
        Those of the fit, and of the dataset with target means in place of codes.
    """
    if fitted is None or given is None:
        return ""
    ours, theirs = ({rule.name: rule for rule in encoding.rules} for encoding in (fitted, given))
    described = []
    for name in {**ours, **theirs}:
        own, other = ours.get(name), theirs.get(name)
        if own is None or other is None:
            described.append(f"{name!r} (only in {'these rows' if own is None else 'the fit'})")
        elif _differ(own, other):
            described.append(f"{name!r} ({_in_words(own, other)})")
    if not described:
        return ""
    return (
        f"the encoding of {'; '.join(first_few(described, _MOST_DESCRIBED))} differs: each store learns rules of its "
        "own from its rows. Write them by the rules of the fit, dkl.ingest(files, store, like=model) or "
        "dkl.create_dataset(store, frame, y, like=model), in the shell dkl ingest --like MODEL; or append them to the "
        "store of the fit, dataset.append(frame, y), which encodes them by its rules; or pass them as a data frame "
        "or as files, which the model encodes itself"
    )


def _in_words(own: ColumnRule, other: ColumnRule) -> str:
    """The difference in words: the encoded columns that only one side has, or else the treatment on both sides."""
    if own.kind != other.kind or own.output_names == other.output_names:
        return f"{other.treatment}; in the fit {own.treatment}"
    names, ours = other.output_names, own.output_names
    further, lacking = [name for name in names if name not in ours], [name for name in ours if name not in names]
    parts = [("has", further), ("lacks", lacking)]
    return ", ".join(f"{verb} {' and '.join(first_few(some, _MOST_DESCRIBED))}" for verb, some in parts if some)


def _differ(own: ColumnRule, other: ColumnRule) -> bool:
    """Whether equal encoded values of a column mean different things by the rule of a fit and by another one."""
    if own.output_names != other.output_names:
        return True
    if own.kind != other.kind:
        # 0 and 1 are the same, be they numbers or booleans
        return not {own.kind, other.kind} <= {"number", "boolean"}
    if own.kind == "number" and other.form:
        units = [(form.before, form.after.lower()) for form in map(NumberForm.of, (own.form, other.form))]
        return units[0] != units[1]
    # Two known time zones shift all times against each other. Times without a zone are read in that of the fit, as in
    # data frames, so that they mean the same.
    return bool(own.zone and other.zone) and own.zone != other.zone
