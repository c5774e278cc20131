"""What one read of the blocks computes, as data: a pass is a tuple of these frozen records and nothing else.

The three kinds are enough for every method of the library. `dkl.passes` knows only them: it adds up their bytes before
the first task, reads every block once for all of them, and reduces in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import numpy as np

from dkl.protocols.block import Block

# a sine or cosine takes as long as about 25 operations of a matrix product
SINCOS_FLOPS = 25


@dataclass(frozen=True)
class Cost:
    """What one call on a block costs: floating-point operations, bytes of temporaries alive at once.

    Operations that take longer than those of a matrix product count for as many of these as they take the time of;
    `serial_flops` are the ones of a fold's steps, which no second thread can share.
    """

    flops: float = 0.0
    scratch_bytes: int = 0
    serial_flops: float = 0.0


@dataclass(frozen=True)
class Accumulator:
    """A result that combines over blocks, by adding or by the larger value; shape and dtype are known beforehand."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    combine: Literal["add", "max"] = "add"

    @property
    def nbytes(self) -> int:
        # A product of Python's integers: NumPy's would overflow for shapes that are only refused afterwards.
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def zero(self) -> np.ndarray:
        return np.zeros(self.shape, self.dtype)


def no_cost(rows: int, columns: int) -> Cost:
    """The cost of a call that a plan may neglect."""
    return Cost()


class Keeper(Protocol):
    """What a block function keeps of its block between passes that share a name, as far as there is room."""

    def at(self, key: bytes) -> Keeper:
        """The same for some rows of the block, which the key tells apart from others."""

    def get(self) -> Any:
        """What an earlier pass has kept; None where it kept nothing."""

    def claim(self, nbytes: int) -> bool:
        """Whether so many bytes may be kept: they are this block's then."""

    def put(self, value: Any) -> None:
        """Keep a value for which there was room, once it is whole."""


@dataclass(frozen=True, eq=False)
class BlockSum:
    """Sums over all rows of a block function.

    Parameters
    ----------
    name : str
        What a person sees on the dashboard: ``"potentials"``.
    function : callable
        ``function(block, operands) -> {name: array}`` with one array an accumulator (summed over blocks) and one of
        n_b rows a written column. A module-level function, pure: a retry is harmless.
    accumulators : mapping of str to Accumulator
    operands : mapping
        Arrays and small frozen objects, the same for every block; sent once a pass.
    cost : callable
        ``cost(rows, columns) -> Cost`` of one call.
    reads : tuple of str
        Row columns (length n, e.g. the game's alpha) handed to the function in ``block.columns``.
    writes : mapping of str to dtype name
        Row columns that the function returns beside the accumulators.
    needs_x : bool
        False where the function looks at targets, weights, row ids and row columns alone: a pass whose records are all
        of that kind reads no X.
    on_host : bool
        Whether the function works on the host whatever the pass computes on: its blocks are not moved.
    kept_as : str
        A name that passes share whose function makes something costly of each block alike, such as mapped rows: a
        process keeps as many bytes of it as it has room for, by the `Keeper` that the function finds as the operand
        "kept". Empty where nothing is worth keeping; no bit depends on it.
    kept_row_bytes : int
        Bytes of it, a row.
    usual_calls : int or None
        How often passes of this record run as a rule, which stop when they have settled; None for as often as they may.
    """

    name: str
    function: Callable[[Block, Mapping[str, Any]], Mapping[str, np.ndarray]]
    accumulators: Mapping[str, Accumulator]
    operands: Mapping[str, Any] = field(default_factory=dict)
    cost: Callable[[int, int], Cost] = no_cost
    reads: tuple[str, ...] = ()
    writes: Mapping[str, str] = field(default_factory=dict)
    needs_x: bool = True
    on_host: bool = False
    kept_as: str = ""
    kept_row_bytes: int = 0
    usual_calls: int | None = None

    @property
    def result_bytes(self) -> int:
        # What one task returns, and each node of the tree holds.
        return sum(accumulator.nbytes for accumulator in self.accumulators.values())


@dataclass(frozen=True, eq=False)
class RowSample:
    """The k rows with the smallest hash of (seed, round, row id): the same rows however the work was divided.

    A row of weight w comes with the key of an exponential race, -log(u)/w, so that weights act as repetitions in
    expectation. The result is a `Block` of at most k rows in ascending order of the key, with the row columns that
    `reads` names. With `n_classes` it is k rows of each of so many classes, of a smaller class all.

    `below` is the engine's: rows of blocks without weights whose key is not below it do not leave their block.
    """

    name: str
    k: int
    seed: int
    round: int = 0
    reads: tuple[str, ...] = ()
    n_classes: int | None = None
    below: float = math.inf

    @property
    def most_rows(self) -> int:
        """Rows of the result at most."""
        return self.k * (self.n_classes or 1)


@dataclass(frozen=True, eq=False)
class Fold:
    """An ordered, pure (state, piece) -> state over the blocks: stochastic fitting, refinement.

    Parameters
    ----------
    name : str
    initial : object
        The first state, picklable; `step` never changes it in place.
    step : callable
        ``step(state, piece, operands) -> state``: returns a new state.
    prepare : callable
        ``prepare(block, operands, number) -> piece or None``: the expensive, order-free part (mapping a row tile), run
        in parallel a bounded number of pieces ahead of the steps, each piece by itself. None where the block has fewer
        pieces. The block is on the host; "device" among the operands says where the pass computes, so that a piece
        moves its own rows alone.
    pieces : callable
        ``pieces(rows) -> int``: the most pieces that a block of so many rows has.
    operands : mapping
    order : ndarray of int or None
        Absolute block numbers in the order of the fold; None is ascending.
    piece_bytes : int
        The largest piece (at most 64 MiB).
    kept_as : str
        A name that folds share whose pieces are alike, such as the epochs of a fit: a process keeps as many of them as
        it has room for, which are then made, and their blocks read, but once. Empty where no piece is worth keeping.
    arrange : callable or None
        ``arrange(piece, operands, block, number) -> piece``: what differs between folds that share pieces, done to
        each piece after it was made or kept; cheap, and pure.
    cost : callable
        Of preparing and stepping through one block.
    usual_calls : int or None
        As of `BlockSum`.
    """

    name: str
    initial: Any
    step: Callable[[Any, Any, Mapping[str, Any]], Any]
    prepare: Callable[[Block, Mapping[str, Any], int], Any]
    pieces: Callable[[int], int]
    operands: Mapping[str, Any] = field(default_factory=dict)
    order: np.ndarray | None = None
    piece_bytes: int = 0
    kept_as: str = ""
    arrange: Callable[[Any, Mapping[str, Any], int, int], Any] | None = None
    state_bytes: int = 0
    cost: Callable[[int, int], Cost] = no_cost
    usual_calls: int | None = None


Record = BlockSum | RowSample | Fold


def of_share(record: Record, share: float) -> Record:
    """The record, for plans, of passes whose blocks come with this share of their rows."""
    if not isinstance(record, BlockSum):
        return record
    return replace(
        record,
        function=partial(_of_some_rows, record.function, share),
        cost=lambda rows, columns: record.cost(math.ceil(share * rows), columns),
    )


def _of_some_rows(function: Callable, share: float, block: Block, operands: Mapping[str, Any]) -> Any:
    """What a block function returns for the first rows of a block."""
    return function(block.rows(np.arange(math.ceil(share * block.n_rows))), operands)
