"""Table files as rows of a dataset: what is staged, what is found on the way, and how staged rows are encoded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from dkl.data.checks import spoken_names
from dkl.data.column_rules import Missing
from dkl.data.encoding import Layout, TableEncoding, decide_encoding
from dkl.data.packing import NumberPacking
from dkl.data.paths import InputFile
from dkl.data.schema import Schema, Task
from dkl.data.shuffle import NumberedBatch
from dkl.data.staging import ROW
from dkl.data.statistics import TableStatistics, table_statistics
from dkl.data.tables import TableFormat, common_schema, file_tables, probed
from dkl.data.targets import SplitColumn, Target, TargetSummary, WeightSummary


@dataclass(frozen=True)
class TableChoices:
    """What the user says of the columns; see `dkl.ingest`."""

    target: str | None = None
    weight: str | None = None
    drop: Collection[str] = ()
    task: Literal["auto"] | Task = "auto"
    categorical: Collection[str] = ()
    missing: Missing = "auto"
    unknown: Literal["zeros", "error"] = "zeros"
    layout: Layout = "auto"
    split: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("task", ("auto", "classification", "regression")),
            ("unknown", ("zeros", "error")),
            ("layout", ("auto", "dense", "sparse")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected one of {allowed}")
        if isinstance(self.missing, str) and self.missing not in ("auto", "mean", "error"):
            raise ValueError(f"missing is {self.missing!r}; expected 'auto', 'mean', 'error' or a number")
        for name in ("drop", "categorical"):
            if isinstance(getattr(self, name), str):
                raise TypeError(f"{name} is the text {getattr(self, name)!r}; expected names in a list")

    @property
    def beside(self) -> list[str]:
        """The columns that are no features."""
        return [name for name in (self.target, self.weight, self.split) if name is not None]


class TableRows:
    """Rows of table files.

    Parameters
    ----------
    files : list of InputFile
    reader : TableFormat
    choices : TableChoices
    """

    def __init__(self, files: list[InputFile], reader: TableFormat, choices: TableChoices) -> None:
        probes = probed(files, reader)
        _check_roles(probes[0].schema.names, choices)
        as_text = [name for name in (*choices.categorical, choices.split) if name and name != choices.weight]
        self._schema = common_schema(probes, drop=choices.drop, as_text=as_text)
        self._files, self._reader, self._choices = files, reader, choices
        self._packing = NumberPacking(self._schema)
        self.staged_bytes = sum(probe.staged_bytes for probe in probes)
        self._seen: TableStatistics | None = None
        self._target = TargetSummary(choices.target) if choices.target else None
        self._weight = WeightSummary(choices.weight) if choices.weight else None
        self.split = SplitColumn(choices.split) if choices.split else None
        self._decided: tuple[TableEncoding, Target | None] | None = None

    @property
    def _features(self) -> list[str]:
        return [name for name in self._schema.names if name not in self._choices.beside]

    def tables(self) -> Iterator[tuple[pa.Table, int]]:
        """All rows as they are to be staged, with the bytes of input that each table accounts for."""
        row = 0
        for table, n_bytes in file_tables(self._files, self._reader, self._schema):
            self._look_at(table, row)
            row += table.num_rows
            yield self._packing.pack(table), n_bytes

    def _look_at(self, table: pa.Table, row: int) -> None:
        features = table.select(self._features)
        seen = table_statistics(features, categorical=self._choices.categorical, first_row=row)
        self._seen = seen if self._seen is None else self._seen.merge(seen)
        counted = None if self._weight is None else self._weight.add(table.column(self._weight.name))
        if self._target is not None:
            self._target.add(table.column(self._target.name), counted)
        if self.split is not None:
            self.split.add(table.column(self.split.name))

    def decide(self) -> Schema:
        """The schema of the dataset, once all rows were seen."""
        if self._seen is None:
            raise ValueError(f"the input has no rows: {[file.name for file in self._files]}")
        if self._weight is not None:
            self._weight.check()
        target = self._target.decide(self._choices.task) if self._target is not None else None
        encoding = self._encoding(self._seen)
        self._decided = encoding, target
        return Schema(
            n_columns=encoding.n_columns,
            dtype=encoding.dtype,
            is_sparse=encoding.is_sparse,
            task=target.task if target else None,
            classes=target.classes if target else None,
            column_names=encoding.column_names,
            encoding=encoding,
            passthrough=encoding.passthrough,
            has_weight=self._weight is not None,
        )

    def _encoding(self, seen: TableStatistics) -> TableEncoding:
        choices = self._choices
        return decide_encoding(
            seen,
            categorical=[name for name in choices.categorical if name not in choices.beside],
            missing=choices.missing,
            unknown=choices.unknown,
            layout=choices.layout,
            ignored=[*choices.beside, *choices.drop],
        )

    def encode(self, table: pa.Table) -> NumberedBatch:
        """The rows of a staged table as (X, codes or targets, weights, row numbers)."""
        if self._decided is None:
            raise RuntimeError("decide() comes before encode()")
        encoding, target = self._decided
        table = self._packing.unpack(table)
        X = encoding.transform(table.select(self._features))
        y = target.encode(table.column(self._choices.target)) if target is not None else None
        weight = None
        if self._weight is not None:
            weight = table.column(self._weight.name).cast(pa.float64()).to_numpy()
        if self.split is not None:
            self.split.place(table.column(self.split.name), weight)
        return X, y, weight, table.column(ROW).to_numpy()


def _check_roles(names: list[str], choices: TableChoices) -> None:
    for role in ("target", "weight", "split"):
        name = getattr(choices, role)
        if name is not None and name not in names:
            raise ValueError(f"{role}='{name}' is no column; the columns are {spoken_names(names)}")
        if name is not None and name in choices.drop:
            raise ValueError(f"{role}='{name}' is also in drop")
    if len(set(choices.beside)) < len(choices.beside):
        raise ValueError(f"target, weight and split are different columns; got {choices.beside}")
    absent = sorted(set(choices.categorical) - set(names))
    if absent:
        raise ValueError(f"categorical names columns that are not there: {absent}; the columns are {names}")
