"""The memory that a pass takes in one process, computed before the first task, and limits that bound it."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import cloudpickle
import dask
import numpy as np
from dask.utils import format_bytes, parse_bytes

from dkl.errors import MemoryLimitError
from dkl.kernels.device import Device, gpu_bytes, staging_bytes, why_no_gpu
from dkl.passes.reading import OBJECT_BYTES, gpu_row_bytes
from dkl.passes.room import Room
from dkl.passes.tree_sum import root, task_level
from dkl.passes.work import AT_ONCE_ON_GPU, Limits
from dkl.protocols.records import LARGEST_ACCUMULATOR, BlockSum, Fold, Record, RowSample
from dkl.protocols.sampling import narrowed
from dkl.protocols.source import BlockSource

# Largest share of the memory of a process for blocks that are kept for the next pass.
CACHE_SHARE = 0.25
# Limits the cache without a setting, also for workers with much memory, since reading a block again costs little.
LARGEST_DEFAULT_CACHE = 512 << 20
ROW_OBJECT_BYTES = 24
# Arrays of different sizes are allocated and freed between cached blocks: a process has held 1.24 times the bytes of
# its arrays and objects.
ALLOCATOR_GAPS = 0.15
# Pieces of a fold that each thread of a cluster makes ahead of their steps, where there is memory for them.
PIECES_A_THREAD = 3


@dataclass(frozen=True)
class MemoryProjection:
    """Peak bytes of a pass in one process, by item.

    Parameters
    ----------
    items : mapping of str to int
    room : Room or None
        The memory of the process before the pass, and the limits on it.
    limits : Limits
        Blocks at once, blocks ahead and bytes of caches that the sum is for.
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


def _items_of_work(
    source: BlockSource, records: Sequence[Record], limits: Limits, *, in_driver: bool
) -> dict[str, int]:
    """The items of a pass, each an upper bound, that do not depend on the limits of caches."""
    # computed for the largest block, which any task may get
    rows = int(source.block_rows.max(initial=0))
    fold = records[0] if records and isinstance(records[0], Fold) else None
    # few blocks keep few tasks busy, but a fold cuts each of them into pieces
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
        # the worker that steps receives two pieces of others, and one of them is held twice while it is aligned
        pieces = 2 * limits.tasks + 1 if in_driver else limits.pieces * limits.tasks + 3
        items |= {
            f"mapped pieces ({pieces})": pieces * fold.piece_bytes,
            "states of the fold": 3 * fold.state_bytes,
        }
    else:
        low, top = task_level(source.n_blocks), root(source.n_blocks).level
        items["sums of tasks"] = tasks * sum(_tree_bytes(source, record, 0, low) for record in records)
        if in_driver:
            # one node of each level of a tree waits for its sibling, in addition to the arriving node and the merged
            # one
            arriving = min(2 * tasks, source.n_blocks)
            waiting = arriving * sum(result_bytes(source, record, low) for record in records)
            items["sums of the tree"] = waiting + sum(_tree_bytes(source, record, low, top) for record in records)
    return items


def _with_caches(
    work: Mapping[str, int], source: BlockSource, records: Sequence[Record], limits: Limits, room: Room
) -> MemoryProjection:
    """The projection of the items of work together with caches of these limits."""
    items, kept = dict(work), kept_bytes(source, records)
    if kept or (records and isinstance(records[0], Fold)):
        items["cache of mapped pieces"] = min(limits.piece_bytes, kept)
    items["cache of blocks"] = min(limits.cache_bytes, whole_bytes(source))
    if limits.staged:
        items["pinned memory on the way to a GPU"] = limits.staged
    items["gaps that the allocator leaves"] = math.floor(ALLOCATOR_GAPS * sum(items.values()))
    if room.process.compiler:
        caches = sum(nbytes for name, nbytes in items.items() if name.startswith("cache"))
        of_caches = math.floor((1.0 + ALLOCATOR_GAPS) * caches)
        items["the compiler, in place of caches"] = max(0, room.process.compiler - of_caches)
    return MemoryProjection(items, room, limits)


def blocks_ahead(device: Device, *, is_inline: bool, cores: int, n_threads: int) -> int:
    """Blocks that are read ahead for each block in progress, for a process with this number of cores and threads.

    A GPU finishes a block before the next is decoded, so that all cores decode.
    """
    return 0 if is_inline else 1 if device == "cpu" else max(2, -(-cores // n_threads) - 1)


def device_items(source: BlockSource, records: Sequence[Record], limits: Limits) -> dict[str, int]:
    """Peak bytes of a pass on the GPU of one process, by item, each an upper bound."""
    moved = [record for record in records if isinstance(record, BlockSum) and not record.on_host]
    rows = int(source.block_rows.max(initial=0))
    tiles = gpu_bytes([record.operands for record in moved], rows, source.n_columns)
    items = {
        "blocks": limits.tasks * source.block_nbytes if moved else 0,
        "tiles and frequencies": min(limits.tasks, AT_ONCE_ON_GPU) * tiles if moved else 0,
        # the whole square of a packed triangle, and the products of one tile
        "sums": limits.tasks * sum(3 * record.result_bytes for record in moved),
    }
    if moved and source.stored_nbytes:
        # A driver without a GPU does not know the free memory of its workers' GPUs: they keep at most all rows. Their
        # targets stay too, which take at most as many bytes.
        kept, there = 2 * whole_bytes(source), replace(limits, gpu_rows=gpu_rows_setting())
        items["rows kept for the next pass"] = kept if why_no_gpu() else min(kept, gpu_row_bytes(there))
    if records and isinstance(records[0], Fold):
        items["pieces"] = 3 * limits.tasks * records[0].piece_bytes
    return items


def _tree_bytes(source: BlockSource, record: Record, low: int, top: int) -> int:
    """Peak bytes of one record's values in a tree from the nodes of one level up to those of another."""
    if low == top and isinstance(record, BlockSum):
        # a single sum, which is not merged, and its copy during the transfer
        return 2 * record.result_bytes
    sizes = [result_bytes(source, record, level) for level in range(low, top + 1)]
    # while two nodes are merged, one of each higher level waits for its sibling
    merging = [2 * below + above + sum(sizes[at + 1 : -1]) for at, (below, above) in enumerate(pairwise(sizes))]
    # at the end a sample is sorted, and copied into aligned memory
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
        # Only rows with keys below a bound leave their block, if there are no weights. The keys are exponential, so
        # that a share 1 - exp(-key) of the rows is below it; their number is binomial, and this bound on it fails once
        # in 1e15 passes (see `dkl.protocols.sampling.sure_key`).
        sample = narrowed(record, source)
        below = sample.below if isinstance(sample, RowSample) else math.inf
        early = -math.expm1(-below) * reached
        return math.ceil(row * min(record.most_rows, reached, early + 12.0 * math.sqrt(early) + 72.0))
    return record.state_bytes


# Bytes of the operands of records that are still in use: a plan and a pass ask for them at each number of blocks.
_OPERAND_BYTES: WeakKeyDictionary[Record, int] = WeakKeyDictionary()


class _Counted(pickle.Pickler):
    """Counts the bytes of arrays, which the pickle itself does not contain.

    Arrays that are no contiguous buffers would be copied even with `buffer_callback`: such are the models of a plan,
    one number broadcast to the size of all coefficients.
    """

    nbytes = 0

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not np.ndarray or value.dtype.hasobject:
            return NotImplemented
        self.nbytes += value.nbytes
        return np.empty, (value.shape, value.dtype)


def operand_bytes(record: Record) -> int:
    """Bytes of a record's operands; arrays are counted without a copy."""
    if isinstance(record, RowSample):
        return 0
    if record not in _OPERAND_BYTES:
        _OPERAND_BYTES[record] = _pickled_bytes(dict(record.operands))
    return _OPERAND_BYTES[record]


def _pickled_bytes(operands: dict[str, Any]) -> int:
    head = BytesIO()
    counted = _Counted(head, protocol=5)
    try:
        counted.dump(operands)
    except (pickle.PicklingError, AttributeError, TypeError):
        # functions and classes of a notebook; cloudpickle takes five times as long, as it examines every object
        buffers: list[pickle.PickleBuffer] = []
        pickled = cloudpickle.dumps(operands, protocol=5, buffer_callback=buffers.append)
        return len(pickled) + sum(buffer.raw().nbytes for buffer in buffers)
    return head.tell() + counted.nbytes


def least_memory(
    source: BlockSource, records: Sequence[Record], room: Room, *, in_driver: bool, least_ahead: int = 0
) -> MemoryProjection:
    """The projection with one block at a time, `least_ahead` ahead and no cache, which is the minimum for a pass."""
    check_accumulators(records)
    limits = Limits(1, least_ahead, 0)
    return _with_caches(_items_of_work(source, records, limits, in_driver=in_driver), source, records, limits, room)


def fit_limits(
    source: BlockSource,
    records: Sequence[Record],
    *,
    n_threads: int,
    room: Room,
    cached: bool = True,
    others_stay: bool = False,
    keeps: bool = True,
    ahead: int = 1,
    least_ahead: int = 0,
    in_driver: bool = True,
    device: Device = "cpu",
) -> MemoryProjection:
    """The projection with the most blocks in progress, and then the most (up to `ahead`) read ahead, that fits `room`.

    At least `least_ahead` are read ahead: where rows are sent, that many wait for each block in progress.

    The cheapest memory is given up first: the cache (blocks are read again), then reading ahead, then pieces of a fold
    that are made ahead, then blocks in progress. Results do not depend on it: tiles and the tree depend on the shape of
    the data alone.

    `cached` keeps blocks of this pass for the next one. `others_stay` keeps blocks of other rows that earlier passes
    have cached, in memory that the projection, which does not count them, leaves free. With `keeps=False` nothing is
    kept for the next pass, neither blocks nor pieces or mapped rows.

    Raises
    ------
    MemoryLimitError
        If not even one block at a time fits; the message contains the sum.
    """
    check_accumulators(records)
    pieces = kept_bytes(source, records)
    cache = cache_bytes(room.nbytes) if keeps and (cached or others_stay or pieces) else 0
    each_ahead = range(max(ahead, least_ahead), least_ahead - 1, -1)
    with_steps = [(each, PIECES_A_THREAD) for each in each_ahead]
    if records and isinstance(records[0], Fold):
        with_steps += [(least_ahead, fewer) for fewer in range(PIECES_A_THREAD - 1, 0, -1)]
    choices = [(tasks, tasks * each, made) for tasks in range(n_threads, 0, -1) for each, made in with_steps]
    for tasks, waiting, made in choices:
        limits = Limits(tasks, waiting, 0, pieces=made)
        work = _items_of_work(source, records, limits, in_driver=in_driver)
        bare = _with_caches(work, source, records, limits, room)
        if bare.fits:
            if device != "cpu":
                # as much pinned memory as fits: without it CuPy copies rows on the stream that computes, block by block
                staged = staging_bytes(tasks, int((room.nbytes - bare.total) / (1.0 + ALLOCATOR_GAPS)))
                bare = _with_caches(work, source, records, replace(limits, staged=staged), room)
            if not cache:
                return bare
            # the cache gets the rest, without the allocator's gaps; the compiler can take its memory from the cache
            left = math.floor((room.nbytes - bare.total + room.process.compiler) / (1.0 + ALLOCATOR_GAPS))
            # blocks first: a byte of them saves as much time as many bytes of mapped rows
            whole = min(cache, left)
            blocks = min(whole, whole_bytes(source) if pieces else whole) if cached else 0
            limits = replace(bare.limits, cache_bytes=blocks, piece_bytes=whole - blocks if pieces else 0)
            projection = _with_caches(work, source, records, limits, room)
            if others_stay:
                return replace(projection, limits=replace(limits, cache_bytes=max(0, whole - pieces)))
            return projection
    least = least_memory(source, records, room, in_driver=in_driver, least_ahead=least_ahead)
    raise refusal(source, records, least)


def narrowest_limits(
    source: BlockSource, records: Sequence[Record], room: Room, *, in_driver: bool, least_ahead: int, device: Device
) -> MemoryProjection:
    """The least limits, for a pass that may take all bytes up to those at which Dask pauses a worker.

    It has one block at a time, reads none ahead that need not wait, makes as many pieces of a fold ahead as fit, and
    keeps nothing for the next pass.

    Raises
    ------
    MemoryLimitError
        If it does not fit.
    """
    return fit_limits(
        source,
        records,
        n_threads=1,
        room=room,
        keeps=False,
        ahead=0,
        least_ahead=least_ahead,
        in_driver=in_driver,
        device=device,
    )


def refusal(source: BlockSource, records: Sequence[Record], least: MemoryProjection) -> MemoryLimitError:
    """The error for a pass that needs more than its room, with the sum, and limits and blocks that would suffice."""
    room, smaller = least.room, ""
    if room is None:
        raise TypeError("a projection without a room refuses nothing")
    rows, gaps = int(source.block_rows.max(initial=0)), 1.0 + ALLOCATOR_GAPS
    of_blocks = gaps * sum(nbytes for name, nbytes in least.items.items() if name.startswith(("blocks", "temporaries")))
    left = room.nbytes - (least.total - of_blocks)
    if source.stored_nbytes and of_blocks and (most := math.floor(rows * left / of_blocks)) > 0:
        smaller = f", or blocks of at most {most:,} rows (rows_a_block of dkl.create_dataset)"
    elif source.base.read_nbytes > source.base.block_nbytes:
        smaller = ", or smaller chunks: blocks are cut from them"
    return MemoryLimitError(
        f"the pass {pass_name(records)!r} over {source.place} needs {format_bytes(least.total)} with one block at a "
        f"time, and may take {format_bytes(room.nbytes)}: {room.refusal(least.total)}{smaller}. Fewer features need "
        f"less:\n{least!r}"
    )


def check_accumulators(records: Sequence[Record]) -> None:
    """Raise MemoryLimitError for an accumulator of more than 64 MiB, which should be cut into several BlockSums."""
    for record in records:
        for name, accumulator in record.accumulators.items() if isinstance(record, BlockSum) else ():
            if accumulator.nbytes > LARGEST_ACCUMULATOR:
                raise MemoryLimitError(
                    f"the accumulator {name!r} of {record.name!r} has {format_bytes(accumulator.nbytes)} (shape "
                    f"{tuple(accumulator.shape)}); at most {format_bytes(LARGEST_ACCUMULATOR)} are summed as one. "
                    "Use fewer features; a record of your own is to tile the output, one BlockSum a tile"
                )


def kept_bytes(source: BlockSource, records: Sequence[Record]) -> int:
    """Bytes of everything that a pass computes from its blocks and keeps for the next one: pieces, mapped rows."""
    fold = records[0] if records else None
    if isinstance(fold, Fold):
        each = fold.piece_bytes if fold.kept_as else 0
        return each and each * sum(fold.pieces(int(rows)) for rows in source.block_rows if rows)
    # records with the same name share what is kept
    rows = {record.kept_as: record.kept_row_bytes for record in records if isinstance(record, BlockSum)}
    return int(source.block_rows.sum()) * sum(each for name, each in rows.items() if name)


def whole_bytes(source: BlockSource) -> int:
    """Bytes of all blocks, decoded, including the objects around them."""
    longest = int(source.block_rows.max(initial=0))
    # as if all blocks were as dense as the largest one
    rows = math.ceil(source.block_nbytes * (int(np.sum(source.block_rows)) / longest)) if longest else 0
    return rows + int(np.count_nonzero(source.block_rows)) * OBJECT_BYTES


def cache_bytes(allowed: int) -> int:
    """`dask.config` "dkl.cache-bytes", else a quarter of `allowed`, but at most 512 MiB."""
    setting = dask.config.get("dkl.cache-bytes", None)
    return min(int(allowed * CACHE_SHARE), LARGEST_DEFAULT_CACHE) if setting is None else parse_bytes(setting)


def gpu_rows_setting() -> int | None:
    """`dask.config` "dkl.gpu-rows-bytes": bytes of rows that each GPU keeps for the next pass; None for half of it."""
    setting = dask.config.get("dkl.gpu-rows-bytes", None)
    return None if setting is None else parse_bytes(setting)


def pass_name(records: Sequence[Record]) -> str:
    """The name of a pass in events: the names of its records."""
    return " + ".join(dict.fromkeys(record.name for record in records))


def peak_bytes() -> int:
    """The peak memory of this process since its start."""
    # on Linux `ru_maxrss` may include the peak of the parent process; VmHWM is that of this one alone
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
