"""Seconds that the records of a pass take, estimated from calls on a few rows."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.process import compiling_at_once
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Cost, Fold, Record, RowSample

# Seconds that a timed call is expected to take, which determine its number of rows, within these bounds.
_TRIAL_S, _LEAST_ROWS, _MOST_ROWS = 0.03, 64, 4_096
# Ratio of the rows in the larger and the smaller of two timed calls.
_FEWER = 4
# Expected seconds of a pass from which on its kernels are compiled, in a fit and for the timed calls.
_COMPILED_S = 0.1
# Bytes that replace everything in a processor's cache.
_CACHE_BYTES = 32 << 20
# Operations of a matrix product that take as long as sampling a row.
_SAMPLED = 50.0


class Seconds(NamedTuple):
    """Processor seconds of one thread.

    Parameters
    ----------
    shared : float
        Part that blocks share, so that several threads can work on it.
    serial : float
        Part of the steps of a fold, which are sequential.
    again : float
        The part of `shared` that remains in a pass that finds what an earlier one has kept of each block.
    found : bool
        Whether even the first of these passes finds it, because equal passes came before.
    """

    shared: float
    serial: float
    again: float
    found: bool = False

    @property
    def in_all(self) -> float:
        return self.shared + self.serial


class TimedRows:
    """A block on which a plan times records, a few rows at a time, to estimate their seconds on all rows.

    The arrays of a plan's records have the shapes of a fit without its values, or are missing: if a record cannot be
    called on the rows, its operations are counted instead, at the speed of a matrix product.

    Parameters
    ----------
    block : Block
        A block of the rows.
    n_rows, n_columns : int
        Numbers for all rows.
    flops_per_second : float
        Speed of a matrix product on one thread.
    """

    def __init__(self, block: Block, n_rows: int, n_columns: int, flops_per_second: float) -> None:
        self._block, self._shape = block, (n_rows, n_columns, flops_per_second)
        # for each name under which records share kept data: the rows of their calls, and the kept data
        self._rows: dict[str, int] = {}
        # seconds of records by name, counted seconds and kept data: the stages and folds of a fit differ in values only
        self._timed: dict[Hashable, Seconds] = {}
        self._kept: dict[Hashable, Any] = {}

    def seconds(self, record: Record) -> Seconds:
        """The seconds of `record` on all rows, from timed calls of two sizes on a few rows.

        The part of a call that is independent of its rows counts once for each call of a pass, and the rest once for
        each row.
        """
        counted = seconds_counted(record, *self._shape)
        if isinstance(record, RowSample):
            return counted
        alike = record.name, counted, record.kept_as
        if alike in self._timed:
            # the first of these records has left its data for all later ones
            return self._timed[alike]._replace(found=self._timed[alike].found or bool(record.kept_as))
        seconds = self._timed[alike] = self._on_few_rows(record, counted)
        return seconds

    def _on_few_rows(self, record: BlockSum | Fold, counted: Seconds) -> Seconds:
        """The seconds of a record from timed calls; `counted` if it cannot be called on the rows."""
        in_all, n_rows = counted.in_all, math.ceil(visited_share(record) * self._shape[0])
        pieces = max(record.pieces(self._block.n_rows), 1) if isinstance(record, Fold) else 1
        calls = pieces * n_rows / self._block.n_rows
        fits = max(int(_TRIAL_S * n_rows / max(in_all, 1e-9)), _LEAST_ROWS)
        most = -(-self._block.n_rows // pieces)
        rows = min(fits, _MOST_ROWS, most)
        if record.kept_as:
            rows = self._rows.get(record.kept_as, rows)
        form = compiling_at_once() if in_all > _COMPILED_S else nullcontext()
        try:
            with form, one_blas_thread(), np.errstate(all="ignore"):
                # the first call loads and compiles code
                self._of_rows(record, min(_LEAST_ROWS, rows))
                fewer = -(-rows // _FEWER)
                few, many = self._of_rows(record, fewer), self._of_rows(record, rows)
                # most of a call should be spent on its rows, as that part is multiplied by thousands
                while rows < most and many.in_all < min(_TRIAL_S, 2.0 * few.in_all):
                    few, fewer, rows = many, rows, min(_FEWER * rows, most)
                    many = self._of_rows(record, rows)
        except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, np.linalg.LinAlgError):
            return counted
        if record.kept_as:
            self._rows[record.kept_as] = rows
        parts = []
        for of_few, of_many in zip(few[:3], many[:3], strict=True):
            # the part that is independent of the rows
            fixed = min(max(of_many - rows * (of_many - of_few) / max(rows - fewer, 1), 0.0), of_many)
            parts.append(calls * fixed + n_rows * (of_many - fixed) / rows)
        shared, serial, again = parts
        return Seconds(shared, serial, again, many.found)

    def _of_rows(self, record: BlockSum | Fold, n_rows: int) -> Seconds:
        """The shorter of two calls on some rows; if they keep data, also of two calls that find it."""
        part = self._block.rows(np.arange(n_rows))
        if isinstance(record, Fold):
            return min((_fold_call(record, part) for _ in range(2)), key=lambda each: each.in_all)
        seconds = min(_sum_call(record, part) for _ in range(2))
        if not record.kept_as:
            return Seconds(seconds, 0.0, seconds)
        keeper = _Keeper(self._kept, (record.kept_as, n_rows))
        keeping = replace(record, operands={**record.operands, "kept": keeper})
        _sum_call(keeping, part)
        found = keeper.found
        return Seconds(seconds, 0.0, min(_sum_call(keeping, part) for _ in range(2)), found)


@dataclass
class _Keeper:
    """A `Keeper` for the calls of a plan, without a limit."""

    kept: dict[Hashable, Any]
    name: Hashable
    key: bytes = b""
    found: bool = False

    def at(self, key: bytes) -> _Keeper:
        self.key = key
        return self

    def get(self) -> Any:
        value = self.kept.get((self.name, self.key))
        self.found = self.found or value is not None
        return value

    def claim(self, nbytes: int) -> bool:
        return True

    def put(self, value: Any) -> None:
        self.kept[self.name, self.key] = value


def visited_share(record: Record) -> float:
    """The share of all rows that a record is computed on: 1, or that of the blocks which a fold visits."""
    return record.share if isinstance(record, Fold) else 1.0


def seconds_counted(record: Record, n_rows: int, n_columns: int, flops_per_second: float) -> Seconds:
    """The seconds of a record counted from its operations, at the speed of a matrix product."""
    # sampling costs a hash of three rounds for each row, and a comparison with the largest key so far
    n_rows = math.ceil(visited_share(record) * n_rows)
    cost = Cost(_SAMPLED * n_rows) if isinstance(record, RowSample) else record.cost(n_rows, n_columns)
    shared = cost.flops / flops_per_second
    # the pieces of a fold are kept completely; for another record its operations do not show what remains
    return Seconds(shared, cost.serial_flops / flops_per_second, 0.0 if isinstance(record, Fold) else shared)


def _sum_call(record: BlockSum, part: Block) -> float:
    # one number for each row replaces columns of any width
    columns = {name: np.zeros((part.n_rows, 1)) for name in record.reads}
    part = replace(part, columns={**part.columns, **columns}) if columns else part
    # the clock of this thread hardly depends on other work on the machine
    started = time.thread_time()
    record.function(part, record.operands)
    return time.thread_time() - started


def _fold_call(record: Fold, part: Block) -> Seconds:
    started = time.thread_time()
    piece = record.prepare(part, {**record.operands, "device": "cpu"}, 0)
    prepared = time.thread_time()
    # empties the cache: in a fit other pieces are made before this one is used, which is then read from memory
    np.ones(_CACHE_BYTES, np.int8)
    stepping = time.thread_time()
    if piece is not None:
        if record.arrange is not None:
            piece = record.arrange(piece, record.operands, part.index, 0)
        record.step(record.initial, piece, record.operands)
    return Seconds(prepared - started, time.thread_time() - stepping, 0.0)
