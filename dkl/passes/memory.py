"""The memory that a pass takes in one process, added up before the first task, and limits that keep it in bounds."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import numpy as np
from dask.utils import format_bytes, parse_bytes

from dkl.errors import MemoryLimitError
from dkl.kernels.device import Device, gpu_bytes, staging_bytes, why_no_gpu
from dkl.passes.reading import OBJECT_BYTES, gpu_row_bytes
from dkl.passes.room import Room
from dkl.passes.tasks import AT_ONCE_ON_GPU, narrowed
from dkl.passes.tree_sum import root, task_level
from dkl.passes.work import Limits
from dkl.protocols.records import BlockSum, Fold, Record, RowSample
from dkl.protocols.source import BlockSource

LARGEST_ACCUMULATOR = 64 << 20
# Of what a process may take, so much at most holds blocks for the next pass.
CACHE_SHARE = 0.25
# Without a setting a worker with much memory still holds "a few blocks": what a block costs to read again is small.
LARGEST_DEFAULT_CACHE = 512 << 20
ROW_OBJECT_BYTES = 24
# Arrays come and go in sizes that differ, between blocks that stay in the cache: a process was seen to hold 1.24 times
# what its arrays and objects hold.
ALLOCATOR_GAPS = 0.15
# Pieces of a fold that a thread of a cluster makes before they are stepped through.
PIECES_A_THREAD = 3


@dataclass(frozen=True)
class MemoryProjection:
    """Bytes that a pass holds at its peak in one process, item by item.

    Parameters
    ----------
    items : mapping of str to int
    room : Room or None
        What the process holds before the pass, and the lines that it must stay below.
    limits : Limits
        Blocks at once, blocks ahead and bytes of cache that the sum was made for.
    """

    items: dict[str, int] = field(default_factory=dict)
    room: Room | None = None
    limits: Limits = field(default_factory=Limits)

    @property
    def total(self) -> int:
        return sum(self.items.values())

    @property
    def fits(self) -> bool:
        return self.room is None or self.total <= self.room.nbytes

    def __repr__(self) -> str:
        rows = [*self.items.items(), ("sum", self.total)]
        if self.room is not None:
            rows.append(("room", self.room.nbytes))
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {format_bytes(nbytes):>11}" for name, nbytes in rows)


def memory_within(
    source: BlockSource, records: Sequence[Record], limits: Limits, *, in_driver: bool, room: Room
) -> MemoryProjection:
    """The sum for given limits, each item an upper bound."""
    # The largest block counts: any task may get it.
    rows = int(source.block_rows.max(initial=0))
    fold = records[0] if records and isinstance(records[0], Fold) else None
    # few blocks keep few tasks at work, but for a fold, which cuts each of them into pieces
    tasks = min(limits.tasks, max(source.n_blocks, 1)) if fold is None else limits.tasks
    costs = [record.cost(rows, source.n_columns) for record in records if not isinstance(record, RowSample)]
    scratch = max((cost.scratch_bytes for cost in costs), default=0)
    items = {
        f"blocks at work ({tasks})": tasks * source.block_nbytes,
        f"blocks read ahead ({limits.ahead})": limits.ahead * source.block_nbytes,
        "temporaries of reading": (tasks + limits.ahead) * source.read_nbytes,
        "scratch of block functions": tasks * scratch,
        "operands": sum(operand_bytes(record) for record in records),
    }
    if fold is not None:
        # the worker that steps is sent two pieces of others, one of them for a moment as it comes and aligned
        pieces = 2 * limits.tasks + 1 if in_driver else PIECES_A_THREAD * limits.tasks + 3
        items |= {
            f"mapped pieces ({pieces})": pieces * fold.piece_bytes,
            "states of the fold": 3 * fold.state_bytes,
        }
    else:
        low, top = task_level(source.n_blocks), root(source.n_blocks).level
        items["sums of tasks"] = tasks * sum(_tree_bytes(source, record, 0, low) for record in records)
        if in_driver:
            # In a tree one node a level waits for its sibling, beside the one that arrives and what both merge into.
            arriving = min(2 * tasks, source.n_blocks)
            waiting = arriving * sum(result_bytes(source, record, low) for record in records)
            items["sums of the tree"] = waiting + sum(_tree_bytes(source, record, low, top) for record in records)
    kept = kept_bytes(source, records)
    if kept or fold is not None:
        items["cache of mapped pieces"] = min(limits.piece_bytes, kept)
    items["cache of blocks"] = min(limits.cache_bytes, whole_bytes(source))
    if limits.staged:
        items["pinned memory on the way to a GPU"] = limits.staged
    items["gaps that the allocator leaves"] = math.floor(ALLOCATOR_GAPS * sum(items.values()))
    return MemoryProjection(items, room, limits)


def blocks_ahead(device: Device, *, is_inline: bool, cores: int, n_threads: int) -> int:
    """Blocks that are read ahead of each that is worked on in a process with so many cores and threads that work.

    A GPU is through with one block before the next is decoded, so that all cores decode.
    """
    return 0 if is_inline else 1 if device == "cpu" else max(2, -(-cores // n_threads) - 1)


def device_items(source: BlockSource, records: Sequence[Record], limits: Limits) -> dict[str, int]:
    """Bytes that a pass holds at its peak on the GPU of one process, item by item, each an upper bound."""
    moved = [record for record in records if isinstance(record, BlockSum) and not record.on_host]
    rows = int(source.block_rows.max(initial=0))
    tiles = gpu_bytes([record.operands for record in moved], rows, source.n_columns)
    items = {
        "blocks": limits.tasks * source.block_nbytes if moved else 0,
        "tiles and frequencies": min(limits.tasks, AT_ONCE_ON_GPU) * tiles if moved else 0,
        # Of a packed triangle the whole square is there, and beside it the products of one tile.
        "sums": limits.tasks * sum(3 * record.result_bytes for record in moved),
    }
    if moved and source.stored_nbytes:
        # A driver without a GPU does not know what those of its workers have left: they keep all rows at most.
        # Beside rows their targets stay, which take as many bytes at most.
        kept, there = 2 * whole_bytes(source), replace(limits, gpu_rows=gpu_rows_setting())
        items["rows kept for the next pass"] = kept if why_no_gpu() else min(kept, gpu_row_bytes(there))
    if records and isinstance(records[0], Fold):
        items["pieces"] = 3 * limits.tasks * records[0].piece_bytes
    return items


def _tree_bytes(source: BlockSource, record: Record, low: int, top: int) -> int:
    """Bytes of one record's values in a tree from the nodes of one level up to those of another, at its peak."""
    if low == top and isinstance(record, BlockSum):
        # a single sum, which nothing is merged with, and a copy of it on its way
        return 2 * record.result_bytes
    sizes = [result_bytes(source, record, level) for level in range(low, top + 1)]
    # While two nodes are merged, one of each higher level waits for its sibling.
    merging = [2 * below + above + sum(sizes[at + 1 : -1]) for at, (below, above) in enumerate(pairwise(sizes))]
    # In the end a sample is put in order, and copied into memory that is aligned.
    last = 3 if isinstance(record, RowSample) else 2
    return max([*merging, last * sizes[-1]])


def result_bytes(source: BlockSource, record: Record, level: int) -> int:
    """Bytes of one value of a record for a node of `level`."""
    if isinstance(record, BlockSum):
        return record.result_bytes
    if isinstance(record, RowSample):
        longest = int(source.block_rows.max(initial=0))
        row = source.block_nbytes / max(longest, 1) + ROW_OBJECT_BYTES
        reached = min(longest << level, int(source.block_rows.sum()))
        # Of rows without weights only those below a key leave their block. The keys are exponential, so that a share
        # 1 - exp(-key) of the rows is below it; their number is binomial, and this is a bound that holds but for one
        # time in 1e15 (see `dkl.protocols.sampling.sure_key`).
        sample = narrowed(record, source)
        below = sample.below if isinstance(sample, RowSample) else math.inf
        early = -math.expm1(-below) * reached
        return math.ceil(row * min(record.most_rows, reached, early + 12.0 * math.sqrt(early) + 72.0))
    return record.state_bytes


def operand_bytes(record: Record) -> int:
    """Bytes of a record's operands, arrays counted without being copied."""
    if isinstance(record, RowSample):
        return 0
    # Protocol 5 hands arrays over as buffers, which are counted and not copied.
    buffers: list[Any] = []
    operands = dict(record.operands)
    try:
        head = pickle.dumps(operands, protocol=5, buffer_callback=buffers.append)
    except (pickle.PicklingError, AttributeError, TypeError):
        # Functions and classes of a notebook; cloudpickle, which asks about every object, takes five times as long.
        buffers.clear()
        head = cloudpickle.dumps(operands, protocol=5, buffer_callback=buffers.append)
    return len(head) + sum(buffer.raw().nbytes for buffer in buffers)


def least_memory(source: BlockSource, records: Sequence[Record], room: Room, *, in_driver: bool) -> MemoryProjection:
    """The projection with one block at a time, none ahead and no cache: a pass cannot do with less."""
    check_accumulators(records)
    return memory_within(source, records, Limits(1, 0, 0), in_driver=in_driver, room=room)


def fit_limits(
    source: BlockSource,
    records: Sequence[Record],
    *,
    n_threads: int,
    room: Room,
    cached: bool = True,
    ahead: int = 1,
    in_driver: bool = True,
    device: Device = "cpu",
) -> MemoryProjection:
    """The projection with the most blocks in flight, at most `ahead` read ahead of each, that fits into the room.

    What costs least goes first: the cache (blocks are read again), then reading ahead, then blocks worked on at
    once. Numbers do not change with it: tiles and the tree follow from the data's shape alone.

    Raises
    ------
    MemoryLimitError
        If not even one block at a time fits; the message holds the sum.
    """
    check_accumulators(records)
    pieces = kept_bytes(source, records)
    cache = cache_bytes(room.nbytes) if cached or pieces else 0
    choices = [(tasks, tasks * each) for tasks in range(n_threads, 0, -1) for each in range(ahead, -1, -1)]
    for tasks, waiting in choices:
        bare = memory_within(source, records, Limits(tasks, waiting, 0), in_driver=in_driver, room=room)
        if bare.fits:
            if device != "cpu":
                # As much as has room: without any CuPy copies rows block by block on the stream that computes.
                staged = staging_bytes(tasks, int((room.nbytes - bare.total) / (1.0 + ALLOCATOR_GAPS)))
                limits = Limits(tasks, waiting, 0, staged=staged)
                bare = memory_within(source, records, limits, in_driver=in_driver, room=room)
            if not cache:
                return bare
            # What is left goes to the cache, less the gaps that the allocator leaves between its blocks.
            left = math.floor((room.nbytes - bare.total) / (1.0 + ALLOCATOR_GAPS))
            # Blocks first: a byte of them saves as much time as many bytes of mapped rows.
            whole = min(cache, left)
            blocks = min(whole, whole_bytes(source) if pieces else whole) if cached else 0
            limits = replace(bare.limits, cache_bytes=blocks, piece_bytes=whole - blocks if pieces else 0)
            return memory_within(source, records, limits, in_driver=in_driver, room=room)
    raise refusal(source, records, least_memory(source, records, room, in_driver=in_driver))


def refusal(source: BlockSource, records: Sequence[Record], least: MemoryProjection) -> MemoryLimitError:
    """The error of a pass that needs more than its room, with the sum and the limits and blocks that would do."""
    room, smaller = least.room, ""
    if room is None:
        raise TypeError("a projection without a room refuses nothing")
    rows, gaps = int(source.block_rows.max(initial=0)), 1.0 + ALLOCATOR_GAPS
    of_blocks = gaps * sum(nbytes for name, nbytes in least.items.items() if name.startswith(("blocks", "temporaries")))
    left = room.nbytes - (least.total - of_blocks)
    if source.stored_nbytes and of_blocks and (most := math.floor(rows * left / of_blocks)) > 0:
        smaller = f", or blocks of at most {most:,} rows (rows_a_block of dkl.create_dataset)"
    return MemoryLimitError(
        f"the pass {pass_name(records)!r} over {source.place} needs {format_bytes(least.total)} with one block at a "
        f"time, and may take {format_bytes(room.nbytes)}: {room.refusal(least.total)}{smaller}. Fewer features need "
        f"less:\n{least!r}"
    )


def check_accumulators(records: Sequence[Record]) -> None:
    """Refuse one accumulator of more than 64 MiB: its maker cuts it into tiles, each a BlockSum of its own."""
    for record in records:
        for name, accumulator in record.accumulators.items() if isinstance(record, BlockSum) else ():
            if accumulator.nbytes > LARGEST_ACCUMULATOR:
                raise MemoryLimitError(
                    f"the accumulator {name!r} of {record.name!r} has {format_bytes(accumulator.nbytes)} (shape "
                    f"{tuple(accumulator.shape)}); at most {format_bytes(LARGEST_ACCUMULATOR)} are summed as one. "
                    "Use fewer features; a record of your own is to tile the output, one BlockSum a tile"
                )


def kept_bytes(source: BlockSource, records: Sequence[Record]) -> int:
    """Bytes of all that a pass makes of its blocks and that is worth keeping for the next one: pieces, mapped rows."""
    fold = records[0] if records else None
    if isinstance(fold, Fold):
        each = fold.piece_bytes if fold.kept_as else 0
        return each and each * sum(fold.pieces(int(rows)) for rows in source.block_rows if rows)
    # records of one name share what is kept
    rows = {record.kept_as: record.kept_row_bytes for record in records if isinstance(record, BlockSum)}
    return int(source.block_rows.sum()) * sum(each for name, each in rows.items() if name)


def whole_bytes(source: BlockSource) -> int:
    """Bytes of all blocks, decoded, with the objects around them."""
    longest = int(source.block_rows.max(initial=0))
    # As if all blocks were as dense as the largest one.
    rows = math.ceil(source.block_nbytes * (int(np.sum(source.block_rows)) / longest)) if longest else 0
    return rows + int(np.count_nonzero(source.block_rows)) * OBJECT_BYTES


def cache_bytes(allowed: int) -> int:
    """`dask.config` "dkl.cache-bytes", else a quarter of what is allowed and at most 512 MiB."""
    setting = dask.config.get("dkl.cache-bytes", None)
    return min(int(allowed * CACHE_SHARE), LARGEST_DEFAULT_CACHE) if setting is None else parse_bytes(setting)


def gpu_rows_setting() -> int | None:
    """`dask.config` "dkl.gpu-rows-bytes": bytes of rows that each GPU keeps for the next pass; None for half of it."""
    setting = dask.config.get("dkl.gpu-rows-bytes", None)
    return None if setting is None else parse_bytes(setting)


def pass_name(records: Sequence[Record]) -> str:
    """What a person sees of a pass: the names of its records."""
    return " + ".join(dict.fromkeys(record.name for record in records))


def peak_bytes() -> int:
    """The most that this process ever held, from its own start on."""
    # On Linux `ru_maxrss` may begin with the peak of the process that started this one; VmHWM is of this one alone.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
