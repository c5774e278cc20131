"""The records of a pass: a pass is a tuple of these frozen descriptions of what one read of the blocks computes.

The three kinds are enough for every method of the library. `dkl.passes` knows only them: it adds up their bytes before
the first task, reads every block once for all of them, and reduces in a fixed order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal, Protocol

import numpy as np

from dkl.protocols.block import Block

# a sine or cosine takes as long as about 25 operations of a matrix product
SINCOS_FLOPS = 25
# The most bytes of one accumulator, which a pass holds and sends whole, once for each block in flight: methods cut
# larger sums into panels, each an accumulator of its own.
LARGEST_ACCUMULATOR = 64 << 20


@dataclass(frozen=True)
class Cost:
    """The cost of one call on a block: floating-point operations, and bytes of temporaries alive at the same time.

    The unit is an operation of a matrix product; a slower operation counts as the number of them that take as long.
    `serial_flops` is the part of them in the steps of a fold, which threads cannot share.
    """

    flops: float = 0.0
    scratch_bytes: int = 0
    serial_flops: float = 0.0


@dataclass(frozen=True)
class Accumulator:
    """A result that is combined over blocks, as a sum or a maximum; its shape and dtype are fixed before the pass."""

    shape: tuple[int, ...]
    dtype: str = "float64"
    combine: Literal["add", "max"] = "add"

    @property
    def nbytes(self) -> int:
        # A product of Python's integers: NumPy's would overflow for shapes that are only refused afterwards.
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def zero(self) -> np.ndarray:
        return np.zeros(self.shape, self.dtype)


@dataclass(frozen=True, eq=False)
class FewNumbers:
    """The value of an accumulator of which a block fills few numbers: a block function may return it for an array.

    Its sum with another one has the bits of the sum of both arrays.

    Parameters
    ----------
    shape : tuple of int
        Of the array.
    places : ndarray of shape (k,), int64
        Positions in the flattened array, ascending; at all others it is 0.
    values : ndarray of shape (k,), float64
    """

    shape: tuple[int, ...]
    places: np.ndarray
    values: np.ndarray

    @classmethod
    def counted(cls, shape: tuple[int, ...], place: np.ndarray, weights: Iterable[np.ndarray]) -> list[FewNumbers]:
        """The sums of each of several weights (n,) at the places (n,), as `numpy.bincount` adds them up."""
        # the place of a row and its number in one integer, which NumPy sorts several times as fast as it sorts both
        bits = len(place).bit_length()
        ordered = np.sort((place << bits) | np.arange(len(place)))
        rows, is_first = ordered & ((1 << bits) - 1), _are_first(ordered >> bits)
        places, number = ordered[is_first] >> bits, np.cumsum(is_first) - 1
        return [cls(shape, places, np.bincount(number, each[rows], len(places))) for each in weights]

    def added(self, other: FewNumbers) -> FewNumbers:
        """The sum of both."""
        places, values = (np.concatenate(pair) for pair in ((self.places, other.places), (self.values, other.values)))
        # a stable sort merges the two ascending parts, and leaves the own number of a place before the other one's
        order = np.argsort(places, kind="stable")
        places, values = places[order], values[order]
        is_first = _are_first(places)
        total, of_other = values[is_first], ~is_first
        total[(np.cumsum(is_first) - 1)[of_other]] += values[of_other]
        return FewNumbers(self.shape, places[is_first], total)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The array."""
        array = np.zeros(math.prod(self.shape), dtype or self.values.dtype)
        array[self.places] = self.values
        return array.reshape(self.shape)

    @property
    def are_few(self) -> bool:
        """Whether there is at most one number for eight of the array: they take a quarter of its bytes, or less."""
        return 8 * len(self.places) <= math.prod(self.shape)


def _are_first(places: np.ndarray) -> np.ndarray:
    """Whether each of the ascending places differs from the one before it."""
    return np.append(np.ones(min(len(places), 1), bool), places[1:] != places[:-1])


def no_cost(rows: int, columns: int) -> Cost:
    """No cost, for calls that a plan may neglect."""
    return Cost()


class Keeper(Protocol):
    """A cache of values computed from one block, for the later passes of the same name, as far as memory allows."""

    def at(self, key: bytes) -> Keeper:
        """The cache for some rows of the block; `key` identifies them."""

    def get(self) -> Any:
        """The value that an earlier pass has put; None where there is none."""

    def claim(self, nbytes: int) -> bool:
        """Reserve `nbytes` bytes for this block: True if there is room for them."""

    def put(self, value: Any) -> None:
        """Store a complete value, for which `claim` has reserved the bytes."""


@dataclass(frozen=True, eq=False)
class BlockSum:
    """The sums of a block function over all blocks: `run_pass` calls it on every block and adds the results.

    Parameters
    ----------
    name : str
        Shown on Dask's dashboard: ``"potentials"``.
    function : callable
        ``function(block, operands) -> {name: array}``: one array, or `FewNumbers` of it, for each accumulator (combined
        over blocks) and one array of n_b rows for each written column. A pure function at module level, so that a retry
        is harmless.
    accumulators : mapping of str to Accumulator
    operands : mapping
        Arrays and small frozen objects, the same for every block; sent once a pass.
    cost : callable
        ``cost(rows, columns) -> Cost`` of one call.
    reads : tuple of str
        Row columns (length n, e.g. the game's alpha) handed to the function in ``block.columns``.
    writes : mapping of str to dtype name
        Row columns that the function returns in addition to the accumulators.
    needs_x : bool
        False where the function looks at targets, weights, row ids and row columns alone: a pass whose records are all
        of that kind reads no X.
    on_host : bool
        Whether the function works on the host whatever the pass computes on: its blocks are not moved.
    kept_as : str
        The name under which passes share a costly intermediate result of each block, such as mapped rows. The function
        finds a `Keeper` for it as the operand "kept", and a process keeps as much as its memory allows. Empty where
        nothing is kept; results have the same bits either way.
    kept_row_bytes : int
        Bytes of that intermediate result for each row.
    usual_calls : int or None
        The usual number of passes of this record, where rounds end by convergence before the plan's upper bound; None
        means the upper bound itself.
    """

    name: str
    function: Callable[[Block, Mapping[str, Any]], Mapping[str, Any]]
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

    @cached_property
    def result_bytes(self) -> int:
        # the size of the result of one task, and of each node in the tree of sums; plans ask for it at each level
        return sum(accumulator.nbytes for accumulator in self.accumulators.values())

    @property
    def planned(self) -> dict[str, np.ndarray]:
        """Sums with which a plan goes on, which has no rows: all are one."""
        return {name: np.ones(each.shape, each.dtype) for name, each in self.accumulators.items()}


@dataclass(frozen=True, eq=False)
class RowSample:
    """The k rows with the smallest hash of (seed, round, row id), which do not depend on how the work is divided.

    A row of weight w comes with the key of an exponential race, -log(u)/w, so that weights act as repetitions in
    expectation. The result is a `Block` of at most k rows in ascending order of the key, with the row columns that
    `reads` names. With `n_classes` it is k rows of each of the classes 0 .. n_classes - 1, or all of a smaller class.

    `below` is set by `dkl.passes`: rows of blocks without weights whose key is not below it are left out at once.
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
        """The largest number of rows in the result."""
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
        ``pieces(rows) -> int``: the largest number of pieces of a block of `rows` rows.
    operands : mapping
    order : ndarray of int or None
        Absolute block numbers in the order of the fold; None is ascending.
    share : float
        For plans: the share of all rows that the blocks in `order` have.
    piece_bytes : int
        Bytes of the largest piece (at most 64 MiB).
    kept_as : str
        The name under which folds share equal pieces, such as the epochs of a fit. A process keeps as many pieces as
        its memory allows; these are prepared, and their blocks read, only once. Empty where no piece is kept.
    arrange : callable or None
        ``arrange(piece, operands, block, number) -> piece``: applied to each piece, kept or new, before its step, for
        what differs between folds that share pieces, such as the order of rows. Cheap and pure.
    cost : callable
        ``cost(rows, columns) -> Cost`` of preparing the pieces of one block and stepping through them.
    usual_calls : int or None
        As in `BlockSum`.
    """

    name: str
    initial: Any
    step: Callable[[Any, Any, Mapping[str, Any]], Any]
    prepare: Callable[[Block, Mapping[str, Any], int], Any]
    pieces: Callable[[int], int]
    operands: Mapping[str, Any] = field(default_factory=dict)
    order: np.ndarray | None = None
    share: float = 1.0
    piece_bytes: int = 0
    kept_as: str = ""
    arrange: Callable[[Any, Mapping[str, Any], int, int], Any] | None = None
    state_bytes: int = 0
    cost: Callable[[int, int], Cost] = no_cost
    usual_calls: int | None = None


Record = BlockSum | RowSample | Fold


def often(record: Record, times: int) -> Record:
    """The record, for plans, of passes that run `times` times as often as a rule."""
    if isinstance(record, RowSample) or record.usual_calls is None:
        return record
    return replace(record, usual_calls=times * record.usual_calls)


def of_share(record: Record, share: float) -> Record:
    """The record, for plans, of a sum over the first rows of each block, this share of them; others are unchanged."""
    if share >= 1.0 or not isinstance(record, BlockSum):
        return record
    return replace(
        record,
        function=partial(_of_some_rows, record.function, share),
        cost=lambda rows, columns: record.cost(math.ceil(share * rows), columns),
    )


def _of_some_rows(function: Callable, share: float, block: Block, operands: Mapping[str, Any]) -> Any:
    """The result of a block function for the first `share` of the rows of a block."""
    return function(block.rows(np.arange(math.ceil(share * block.n_rows))), operands)
