"""Seconds that the records of a pass take, from a call on a few rows."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dkl.kernels.blas import one_blas_thread
from dkl.process import compiling_at_once
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Cost, Fold, Record, RowSample

# A call is timed on as many rows as it is expected to take so many seconds for, within these bounds.
_TRIAL_S, _LEAST_ROWS, _MOST_ROWS = 0.03, 64, 4_096
# A fit whose pass takes so many seconds soon compiles its kernels, and so does the call that is timed for it.
_COMPILED_S = 0.1
# Operations of a product of matrices that drawing a row takes as long as.
_SAMPLED = 50.0


class Seconds(NamedTuple):
    """Processor seconds of one thread.

    Parameters
    ----------
    shared : float
        Of what blocks can be worked on side by side for.
    serial : float
        Of the steps of a fold, which follow each other.
    """

    shared: float
    serial: float


def seconds_of_rows(record: Record, block: Block, n_rows: int, n_columns: int, flops_per_second: float) -> Seconds:
    """What `record` takes on all rows: a call on a few of them is timed.

    A plan has records whose arrays have the shapes of a fit and no values, or that lack what only a fit has: where one
    cannot be called on rows of these, its operations are counted instead, at the speed of a product of matrices.

    Parameters
    ----------
    record : BlockSum, Fold or RowSample
    block : Block
        One of the blocks of the rows.
    n_rows, n_columns : int
        Of all rows.
    flops_per_second : float
        Of a product of matrices, on one thread.
    """
    counted = seconds_counted(record, n_rows, n_columns, flops_per_second)
    if isinstance(record, RowSample):
        return counted
    fits = int(_TRIAL_S * n_rows / max(sum(counted), 1e-9))
    part = block.rows(np.arange(min(max(fits, _LEAST_ROWS), _MOST_ROWS, block.n_rows)))
    call: Any = _fold_call if isinstance(record, Fold) else _sum_call
    form = compiling_at_once() if sum(counted) > _COMPILED_S else nullcontext()
    try:
        with form, one_blas_thread(), np.errstate(all="ignore"):
            # the first call loads and compiles code
            call(record, part.rows(np.arange(min(_LEAST_ROWS, part.n_rows))))
            timed = min((call(record, part) for _ in range(2)), key=sum)
    except (ValueError, LookupError, ArithmeticError, TypeError, AttributeError, np.linalg.LinAlgError):
        return counted
    return Seconds(*(seconds / part.n_rows * n_rows for seconds in timed))


def seconds_counted(record: Record, n_rows: int, n_columns: int, flops_per_second: float) -> Seconds:
    """The same by the operations of the record, at the speed of a product of matrices."""
    # drawing a sample is a hash of three rounds a row, and a comparison with the largest key so far
    cost = Cost(_SAMPLED * n_rows) if isinstance(record, RowSample) else record.cost(n_rows, n_columns)
    return Seconds(cost.flops / flops_per_second, cost.serial_flops / flops_per_second)


def _sum_call(record: BlockSum, part: Block) -> Seconds:
    columns = {name: np.zeros(part.n_rows) for name in record.reads}
    part = replace(part, columns={**part.columns, **columns}) if columns else part
    # the clock of this thread alone hardly moves when other work runs on the machine
    started = time.thread_time()
    record.function(part, record.operands)
    return Seconds(time.thread_time() - started, 0.0)


def _fold_call(record: Fold, part: Block) -> Seconds:
    started = time.thread_time()
    piece = record.prepare(part, {**record.operands, "device": "cpu"}, 0)
    prepared = time.thread_time()
    if piece is not None:
        if record.arrange is not None:
            piece = record.arrange(piece, record.operands, part.index, 0)
        record.step(record.initial, piece, record.operands)
    return Seconds(prepared - started, time.thread_time() - prepared)
