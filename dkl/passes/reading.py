"""The blocks of this process: read once, ahead of their use, retried after transient errors, and cached.

Derived data of blocks that several passes use, such as mapped rows, is cached too.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import dask
import numpy as np

from dkl.data.store.foreign import SHARED
from dkl.errors import located
from dkl.kernels.device import free_gpu_memory, givers, is_on_gpu, place, rows_on, wait_for_rows
from dkl.passes.transport import aligned, unpacked
from dkl.passes.work import Limits, ReadCounts, Ticket, Work
from dkl.process import KernelMissing, after_fork
from dkl.protocols.block import Block

Key = tuple[str, int]

# A failed read is repeated after 0.1, 0.2 and 0.4 s: network stores fail now and then.
READ_ATTEMPTS = 4
FIRST_PAUSE_S = 0.1
# Errors that repeating would not fix.
LASTING = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
# Approximate size of the Python objects around the arrays of a block.
OBJECT_BYTES = 4096
# Largest share of a GPU's free memory for rows that are kept for the next pass; tiles and sums need the rest.
GPU_SHARE = 0.5


def block_bytes(block: Block) -> int:
    """Bytes of a block in the memory of this process, including the Python objects around the arrays.

    Rows on a GPU do not count.
    """
    arrays = block.arrays[1:] if is_on_gpu(block.X) else block.arrays
    return sum(array.nbytes for array in (*arrays, *block.columns.values())) + OBJECT_BYTES


def gpu_row_bytes(limits: Limits, kept: int = 0) -> int:
    """Bytes of rows that this process may keep on its GPU.

    They are half of the GPU's free bytes, or `dkl.gpu-rows-bytes` where it is set, divided by the number of the
    machine's processes for each GPU, rounded up.

    Parameters
    ----------
    limits : Limits
    kept : int
        Bytes of rows that the process keeps there already.
    """
    free, n_gpus = free_gpu_memory()
    of_card = int(GPU_SHARE * (free + kept)) if limits.gpu_rows is None else limits.gpu_rows
    return of_card // -(-limits.sharing // n_gpus)


@dataclass
class CachedBlock:
    """A cached block, the number of the pass that last used it, and its bytes in this process and on the GPU."""

    block: Block
    nbytes: int
    used: int
    gpu_bytes: int = 0


class BlockCache:
    """Blocks for the next pass, up to a number of bytes. Not thread-safe: `BlockLoader` locks it.

    A pass reads all blocks, so that replacing the one used longest ago would always drop a block just before its next
    use. Blocks that the last two passes used stay, and others are read again if there is no room for them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, CachedBlock] = OrderedDict()
        self._pass = 0
        self.nbytes = 0
        self.gpu_bytes = 0

    def begin_pass(self) -> None:
        self._pass += 1

    def get(self, key: Key) -> Block | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.used = self._pass
        # entries are in the order of their last use, the one used longest ago first
        self._kept.move_to_end(key)
        return kept.block

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def put(self, key: Key, block: Block, capacity: int) -> None:
        """Cache `block` if there is room for it besides the blocks that are still in use."""
        nbytes = block_bytes(block)
        if key in self._kept or nbytes > capacity:
            return
        # blocks that the last two passes did not use are dropped; if the others leave no room, the new one is not
        # cached
        while self.nbytes + nbytes > capacity and self._oldest_is_stale(key[0]):
            self._drop_oldest()
        if self.nbytes + nbytes <= capacity:
            self._kept[key] = CachedBlock(block, nbytes, self._pass)
            self.nbytes += nbytes

    def put_on_gpu(self, key: Key, block: Block, capacity: int, most_gpu_bytes: int) -> None:
        """Cache a block whose rows are on the GPU, instead of the same block with its rows in this process."""
        nbytes, row_bytes = block_bytes(block), block.X.nbytes
        if row_bytes > most_gpu_bytes:
            return
        if (known := self._kept.get(key)) is not None:
            if known.gpu_bytes:
                return
            self._drop(key)
        while (self.gpu_bytes + row_bytes > most_gpu_bytes or self.nbytes + nbytes > capacity) and self._kept:
            if not self._oldest_is_stale(key[0]):
                return
            self._drop_oldest()
        if nbytes <= capacity:
            self._kept[key] = CachedBlock(block, nbytes, self._pass, row_bytes)
            self.nbytes, self.gpu_bytes = self.nbytes + nbytes, self.gpu_bytes + row_bytes

    def claim_on_gpu(self, key: Key, nbytes: int, most_gpu_bytes: int) -> bool:
        """Reserve GPU memory for data of a cached block, at most as much as its rows have; returns whether it fits."""
        kept = self._kept.get(key)
        if kept is None or not kept.gpu_bytes:
            return False
        if nbytes > 0 and (
            self.gpu_bytes + nbytes > most_gpu_bytes or kept.gpu_bytes + nbytes > 2 * kept.block.X.nbytes
        ):
            return False
        kept.gpu_bytes, self.gpu_bytes = kept.gpu_bytes + nbytes, self.gpu_bytes + nbytes
        return True

    def shrink_gpu(self, capacity: int) -> None:
        """Drop blocks whose rows are on the GPU, those used longest ago first, until the others fit."""
        for key in [key for key, kept in self._kept.items() if kept.gpu_bytes]:
            if self.gpu_bytes <= capacity:
                return
            self._drop(key)

    def _oldest_is_stale(self, fingerprint: str) -> bool:
        key, kept = next(iter(self._kept.items()))
        return key[0] != fingerprint or kept.used < self._pass - 1

    def shrink(self, capacity: int) -> None:
        while self.nbytes > capacity:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        kept = self._kept.pop(key)
        self.nbytes, self.gpu_bytes = self.nbytes - kept.nbytes, self.gpu_bytes - kept.gpu_bytes


class BlockLoader:
    """Returns the blocks of a pass; one for each process, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = BlockCache()
        # reads ahead that are in progress, or finished and not fetched yet
        self._pending: OrderedDict[Key, Future] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None
        # the token of the current pass, and the blocks that its tasks in this process have asked for
        self._started: tuple[str, set[int]] = ("", set())
        # blocks that several tasks take pieces of; the first task reads them for all
        self._shared: OrderedDict[int, Future] = OrderedDict()
        # bytes of rows that the GPU may keep, computed once in each pass
        self._most_gpu_bytes: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are cached for the next pass."""
        return self._cache.nbytes

    def fetch(self, work: Work, ticket: Ticket, *, as_kept: bool = False) -> tuple[Block, ReadCounts]:
        """The block, from the cache, from a read in progress, or from a new read.

        Its rows are in the memory of the process; with `as_kept` they are on the GPU if they are kept there.
        """
        key = (work.fingerprint, ticket.number)
        with self._lock:
            self._started_in(work).add(ticket.number)
            self._cache.shrink(work.limits.cache_bytes)
            if as_kept and self._cache.gpu_bytes:
                self._cache.shrink_gpu(self._gpu_capacity(work))
            block = self._cache.get(key)
            pending = self._pending.pop(key, None)
        if block is not None:
            if is_on_gpu(block.X) and not as_kept:
                wait_for_rows(block)
                block = replace(block, X=rows_on(block.X, "cpu"))
            return block, ReadCounts(1, block.n_rows, cache_hits=1)
        # outside the lock: a read may take seconds, and other threads have other blocks
        block, retries = _read(work, ticket) if pending is None else pending.result()
        # rows in memory that need no computing come with their ticket in every pass
        if work.fingerprint:
            with self._lock:
                self._cache.put(key, block, work.limits.cache_bytes)
        return block, ReadCounts(1, block.n_rows, block_bytes(block) if work.is_read else 0, retries=retries)

    def placed(self, work: Work, block: Block) -> Block:
        """A block on the device of the pass, where dense rows of stores stay if there is room.

        They are kept in their stored precision. The other arrays of the block stay in this process, in the cache.
        """
        if work.device == "cpu" or is_on_gpu(block.X):
            return block
        key, stays = (work.fingerprint, block.index), work.is_read and isinstance(block.X, np.ndarray)
        claim = partial(self._claim_on_gpu, key) if stays else None
        placed = place(block, work.device, staged=work.limits.staged, claim=claim)
        if stays and is_on_gpu(placed.X):
            with self._lock:
                self._cache.put_on_gpu(key, placed, work.limits.cache_bytes, self._gpu_capacity(work))
        return placed

    def _claim_on_gpu(self, key: Key, nbytes: int) -> bool:
        """Reserve GPU memory for data of a block; returns whether there is room."""
        with self._lock:
            return self._cache.claim_on_gpu(key, nbytes, self._most_gpu_bytes or 0)

    def _gpu_capacity(self, work: Work) -> int:
        """Bytes of rows that the GPU may keep in this pass."""
        if self._most_gpu_bytes is None:
            self._most_gpu_bytes = gpu_row_bytes(work.limits, self._cache.gpu_bytes)
        return self._most_gpu_bytes

    def give_up_gpu(self) -> bool:
        """Drop the rows on the GPU because its memory is needed: none are kept there for the rest of the pass."""
        with self._lock:
            self._most_gpu_bytes, had = 0, self._cache.gpu_bytes > 0
            self._cache.shrink_gpu(0)
            return had

    def share(self, work: Work, ticket: Ticket) -> tuple[Block, ReadCounts]:
        """The block for one of several tasks that use it shortly after each other; the first one reads it for all.

        As many blocks are kept for this as are in progress at once; a dropped one is read again.
        """
        with self._lock:
            self._started_in(work)
            # the first task reads; the others wait for the same future
            is_first = ticket.number not in self._shared
            read = self._shared.setdefault(ticket.number, Future())
            self._shared.move_to_end(ticket.number)
            if len(self._shared) > work.limits.tasks:
                self._shared.popitem(last=False)
        if is_first:
            try:
                read.set_result(self.fetch(work, ticket))
            except BaseException as error:
                # the others wait for this read, and must get its error
                if isinstance(error, KernelMissing):
                    # the tasks run again, and then read
                    with self._lock:
                        self._shared.pop(ticket.number, None)
                read.set_exception(error)
        block, reading = read.result()
        return block, reading if is_first else ReadCounts(1, block.n_rows)

    def read_ahead(self, work: Work, ticket: Ticket | None) -> None:
        """Start to read a block that will be fetched soon, unless as many reads are waiting as the pass allows."""
        if ticket is None or not work.is_read or work.limits.ahead == 0:
            return
        key = (work.fingerprint, ticket.number)
        with self._lock:
            if key in self._cache or key in self._pending or ticket.number in self._started_in(work):
                return
            if not self._make_room(work.limits):
                return
            if self._readers is None:
                self._readers = ThreadPoolExecutor(thread_name_prefix="dkl-read")
            self._pending[key] = self._readers.submit(_read, work, ticket)

    def _started_in(self, work: Work) -> set[int]:
        """The blocks that tasks of this pass have asked for in this process, which are not read ahead any more."""
        # the first task of a new pass in this process: blocks shared in the last one are of no use
        if self._started[0] != work.token:
            self._started, self._most_gpu_bytes = (work.token, set()), None
            self._shared.clear()
            if work.fingerprint:
                self._cache.begin_pass()
            SHARED.begin_pass(work.limits.tasks + work.limits.ahead)
        return self._started[1]

    def _make_room(self, limits: Limits) -> bool:
        """Whether one more read may wait.

        A finished read that nobody has fetched is dropped if its task may have run in another process.
        """
        if len(self._pending) < limits.ahead:
            return True
        done = (key for key, future in self._pending.items() if future.done())
        stale = next(done, None) if limits.processes > 1 else None
        return self._pending.pop(stale, None) is not None if stale else False

    def forget_pending(self) -> None:
        """Drop blocks that were read ahead and not used, because a pass has ended or failed."""
        with self._lock:
            # futures are cancelled outside the lock, which their callbacks may take
            pending = list(self._pending.values())
            self._pending.clear()
            self._shared.clear()
        for future in pending:
            future.cancel()

    def clear(self) -> None:
        """Drop the blocks read ahead and the cached ones."""
        self.forget_pending()
        with self._lock:
            self._cache.shrink(0)


LOADER = BlockLoader()
# reads of the parent's threads never finish in a forked child
after_fork(LOADER.__init__)  # type: ignore[misc]
givers.append(LOADER.give_up_gpu)


def blocks_of(
    work: Work, tickets: Sequence[Ticket], following: Sequence[Ticket] = (), *, as_kept: bool = False
) -> Iterator[tuple[Block, ReadCounts]]:
    """The blocks of `tickets` in order; the next ones (then those of `following`) are read while the caller works.

    With `as_kept` rows that a GPU keeps stay there.
    """
    coming, n_ahead = deque([*tickets, *following]), -(-work.limits.ahead // work.limits.tasks)
    for _ in tickets:
        block, reading = LOADER.fetch(work, coming.popleft(), as_kept=as_kept)
        for ticket in islice(coming, n_ahead):
            LOADER.read_ahead(work, ticket)
        yield block, reading


def _read(work: Work, ticket: Ticket) -> tuple[Block, int]:
    """The block, and how often reading it had to be repeated."""

    def load() -> Block:
        value = unpacked(ticket.value)
        if dask.is_dask_collection(value):
            # the task already runs in a thread of its own, so that the graph of one block needs no pool
            value = dask.get(value.__dask_graph__(), value.key)
        return aligned(work.reader.load(value))

    with located(f"block {ticket.number} of {work.place}"):
        for attempt in range(READ_ATTEMPTS - 1):
            try:
                return load(), attempt
            except LASTING:
                raise
            except OSError:
                time.sleep(FIRST_PAUSE_S * 2**attempt)
        # the last attempt raises its error
        return load(), READ_ATTEMPTS - 1


class PieceCache:
    """Data that further passes of the same name compute equally, up to a number of bytes; the first pieces are kept.

    All pieces are needed once before any of them is needed again, so that replacing pieces would not help.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._kept: dict[Hashable, Any] = {}
        self._capacity = self._left = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces that are kept, or have reserved room."""
        return self._capacity - self._left

    def get(self, name: str, key: Hashable) -> Any:
        """The piece, or None if it is not kept."""
        with self._lock:
            return self._kept.get(key) if name == self._name else None

    def claim(self, name: str, nbytes: int, capacity: int) -> bool:
        """Reserve room for `nbytes`; returns whether there was enough. Pieces of another name are dropped."""
        with self._lock:
            if name != self._name:
                self._name, self._capacity, self._left = name, capacity, capacity
                self._kept.clear()
            if nbytes > self._left:
                return False
            self._left -= nbytes
            return True

    def put(self, name: str, key: Hashable, piece: Any) -> None:
        """Keep a piece whose room was reserved."""
        with self._lock:
            if name == self._name:
                self._kept[key] = piece

    def clear(self) -> None:
        """Drop all pieces, as the passes that share them have ended."""
        with self._lock:
            self._name, self._capacity, self._left = "", 0, 0
            self._kept.clear()


PIECES = PieceCache()
after_fork(PIECES.__init__)  # type: ignore[misc]


@dataclass(frozen=True)
class Kept:
    """Keeps an array that a block function has computed, for later passes: see `dkl.protocols.records.Keeper`.

    Parameters
    ----------
    name : str
        Name of the passes that share it.
    block : int
        Number of the block.
    capacity : int
        Bytes that this process may keep of all blocks.
    key : bytes
        Identifies the rows of the block, if these differ between passes.
    """

    name: str
    block: int
    capacity: int
    key: bytes = b""

    def at(self, key: bytes) -> Kept:
        return replace(self, key=key)

    def get(self) -> Any:
        return PIECES.get(self.name, (self.block, self.key))

    def claim(self, nbytes: int) -> bool:
        return PIECES.claim(self.name, nbytes, self.capacity)

    def put(self, value: Any) -> None:
        PIECES.put(self.name, (self.block, self.key), value)
