"""Blocks of this process: read once, ahead of their use, tried again when the store hiccups, cached while they fit.

What passes make of them alike, such as mapped rows, is kept for the next pass, too.
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
from scipy import sparse

from dkl.data.store.foreign import SHARED
from dkl.errors import located
from dkl.kernels.device import free_gpu_memory, givers, is_on_gpu, place, rows_on, wait_for_rows
from dkl.passes.transport import aligned, unpacked
from dkl.passes.work import Limits, ReadCounts, Ticket, Work
from dkl.process import after_fork
from dkl.protocols.block import Block

Key = tuple[str, int]

# A read that failed is tried again after 0.1, 0.2 and 0.4 s: stores behind a network fail now and then.
READ_ATTEMPTS = 4
FIRST_PAUSE_S = 0.1
# These will not go away by waiting.
LASTING = (FileNotFoundError, PermissionError, FileExistsError, IsADirectoryError, NotADirectoryError)
# Of the Python objects around the arrays of a block, about.
OBJECT_BYTES = 4096
# Of what a GPU has left, so much at most holds rows for the next pass; tiles and sums need the rest.
GPU_SHARE = 0.5


def block_bytes(block: Block) -> int:
    """Bytes that a block holds, with those of the Python objects around the arrays (they count for tiny blocks).

    Rows on a GPU do not count.
    """
    X = block.X
    parts = [X.data, X.indices, X.indptr] if isinstance(X, sparse.csr_array) else [] if is_on_gpu(X) else [X]
    arrays = [*parts, block.y, block.weight, block.row_id, block.held, *block.columns.values()]
    return sum(array.nbytes for array in arrays if array is not None) + OBJECT_BYTES


def gpu_row_bytes(limits: Limits, kept: int = 0) -> int:
    """Bytes of rows that this process may keep on its GPU: of what the card may, its share among the processes there.

    Parameters
    ----------
    limits : Limits
    kept : int
        Bytes that the process keeps there already.
    """
    free, n_gpus = free_gpu_memory()
    of_card = int(GPU_SHARE * (free + kept)) if limits.gpu_rows is None else limits.gpu_rows
    return of_card // -(-limits.sharing // n_gpus)


@dataclass
class CachedBlock:
    """A block in the cache, with the number of the pass that used it last, and its bytes here and on the GPU."""

    block: Block
    nbytes: int
    used: int
    there: int = 0


class BlockCache:
    """Blocks for the next pass, up to a number of bytes. Not locked: `BlockLoader` is.

    A pass goes through all blocks, so dropping the one used longest ago for each that comes would drop every block
    just before its next use. What the last two passes used stays, and what does not fit beside it is read again.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, CachedBlock] = OrderedDict()
        self._pass = 0
        self.nbytes = 0
        self.there = 0

    def begin_pass(self) -> None:
        self._pass += 1

    def get(self, key: Key) -> Block | None:
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept.used = self._pass
        # The order is that of the last use: the first entry is the one used longest ago.
        self._kept.move_to_end(key)
        return kept.block

    def __contains__(self, key: Key) -> bool:
        return key in self._kept

    def put(self, key: Key, block: Block, capacity: int) -> None:
        """Keep `block` if it fits beside the blocks that are still of use."""
        nbytes = block_bytes(block)
        if key in self._kept or nbytes > capacity:
            return
        # Blocks that the last two passes did not use give way; those that they used stay, and the new one is not kept.
        while self.nbytes + nbytes > capacity and self._oldest_is_stale(key[0]):
            self._drop_oldest()
        if self.nbytes + nbytes <= capacity:
            self._kept[key] = CachedBlock(block, nbytes, self._pass)
            self.nbytes += nbytes

    def put_there(self, key: Key, block: Block, capacity: int, there_at_most: int) -> None:
        """Keep a block whose rows are on the GPU, in the place of one whose rows are here."""
        nbytes, there = block_bytes(block), block.X.nbytes
        if there > there_at_most:
            return
        if (known := self._kept.get(key)) is not None:
            if known.there:
                return
            self._drop(key)
        while (self.there + there > there_at_most or self.nbytes + nbytes > capacity) and self._kept:
            if not self._oldest_is_stale(key[0]):
                return
            self._drop_oldest()
        if nbytes <= capacity:
            self._kept[key] = CachedBlock(block, nbytes, self._pass, there)
            self.nbytes, self.there = self.nbytes + nbytes, self.there + there

    def claim_there(self, key: Key, nbytes: int, there_at_most: int) -> bool:
        """Whether so many bytes more are kept on the GPU beside the rows of a block, at most as many as these have."""
        kept = self._kept.get(key)
        if kept is None or not kept.there:
            return False
        if nbytes > 0 and (self.there + nbytes > there_at_most or kept.there + nbytes > 2 * kept.block.X.nbytes):
            return False
        kept.there, self.there = kept.there + nbytes, self.there + nbytes
        return True

    def shrink_there(self, capacity: int) -> None:
        """Let go of blocks whose rows are on the GPU, those used longest ago first, until the others fit."""
        for key in [key for key, kept in self._kept.items() if kept.there]:
            if self.there <= capacity:
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
        self.nbytes, self.there = self.nbytes - kept.nbytes, self.there - kept.there


class BlockLoader:
    """Hands out the blocks of a pass; one a process, shared by its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cache = BlockCache()
        # Reads ahead, under way or finished and not fetched yet.
        self._pending: OrderedDict[Key, Future] = OrderedDict()
        self._readers: ThreadPoolExecutor | None = None
        # The token of the pass at work, and the blocks that its tasks have asked for here.
        self._begun: tuple[str, set[int]] = ("", set())
        # Blocks that several tasks take pieces of, with the read that the first of them does for all.
        self._shared: OrderedDict[int, Future] = OrderedDict()
        # Bytes of rows that the GPU may keep, once a pass has asked.
        self._there_at_most: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks that are kept for the next pass."""
        return self._cache.nbytes

    def fetch(self, work: Work, ticket: Ticket, *, as_kept: bool = False) -> tuple[Block, ReadCounts]:
        """The block, from the cache, from a read under way, or read now.

        Its rows are in the memory of the process; with `as_kept` on the GPU where they are kept there.
        """
        key = (work.fingerprint, ticket.number)
        with self._lock:
            self._begun_in(work).add(ticket.number)
            self._cache.shrink(work.limits.cache_bytes)
            if as_kept and self._cache.there:
                self._cache.shrink_there(self._most_there(work))
            block = self._cache.get(key)
            pending = self._pending.pop(key, None)
        if block is not None:
            if is_on_gpu(block.X) and not as_kept:
                wait_for_rows(block)
                block = replace(block, X=rows_on(block.X, "cpu"))
            return block, ReadCounts(1, block.n_rows, cache_hits=1)
        # Outside of the lock: a read may take seconds, and other threads have blocks of their own.
        block, retries = _read(work, ticket) if pending is None else pending.result()
        # Rows in memory come with their ticket in every pass; a copy in the cache would be one too many.
        if work.is_read:
            with self._lock:
                self._cache.put(key, block, work.limits.cache_bytes)
        return block, ReadCounts(1, block.n_rows, block_bytes(block) if work.is_read else 0, retries=retries)

    def placed(self, work: Work, block: Block) -> Block:
        """A block of the pass on the device that it computes on, where dense rows of stores stay while they fit.

        They are kept in the precision that they are stored in. What else a block holds stays here, in the cache.
        """
        if work.device == "cpu" or is_on_gpu(block.X):
            return block
        key, stays = (work.fingerprint, block.index), work.is_read and isinstance(block.X, np.ndarray)
        claim = partial(self._claim_there, key) if stays else None
        there = place(block, work.device, staged=work.limits.staged, claim=claim)
        if stays and is_on_gpu(there.X):
            with self._lock:
                self._cache.put_there(key, there, work.limits.cache_bytes, self._most_there(work))
        return there

    def _claim_there(self, key: Key, nbytes: int) -> bool:
        """Whether so many bytes more may be kept on the GPU beside the rows of a block, which are then counted."""
        with self._lock:
            return self._cache.claim_there(key, nbytes, self._there_at_most or 0)

    def _most_there(self, work: Work) -> int:
        """Bytes of rows that the GPU may keep in this pass."""
        if self._there_at_most is None:
            self._there_at_most = gpu_row_bytes(work.limits, self._cache.there)
        return self._there_at_most

    def give_up_gpu(self) -> bool:
        """Let go of rows on the GPU, whose memory is needed: none are kept there for the rest of the pass."""
        with self._lock:
            self._there_at_most, had = 0, self._cache.there > 0
            self._cache.shrink_there(0)
            return had

    def share(self, work: Work, ticket: Ticket) -> tuple[Block, ReadCounts]:
        """The block for one of several tasks that take it shortly after each other; the first reads it for all.

        As many blocks are kept for that as are worked on at once. One that had to give way is read again.
        """
        with self._lock:
            self._begun_in(work)
            # Whoever comes first reads; the others wait for the same future.
            is_first = ticket.number not in self._shared
            read = self._shared.setdefault(ticket.number, Future())
            self._shared.move_to_end(ticket.number)
            if len(self._shared) > work.limits.tasks:
                self._shared.popitem(last=False)
        if is_first:
            try:
                read.set_result(self.fetch(work, ticket))
            except BaseException as error:
                # The others wait for this read: whatever ended it ends their wait, too.
                read.set_exception(error)
        block, reading = read.result()
        return block, reading if is_first else ReadCounts(1, block.n_rows)

    def read_ahead(self, work: Work, ticket: Ticket | None) -> None:
        """Begin to read a block that will be fetched soon; never more than the pass allows are waiting."""
        if ticket is None or not work.is_read or work.limits.ahead == 0:
            return
        key = (work.fingerprint, ticket.number)
        with self._lock:
            if key in self._cache or key in self._pending or ticket.number in self._begun_in(work):
                return
            if not self._make_room(work.limits):
                return
            if self._readers is None:
                self._readers = ThreadPoolExecutor(thread_name_prefix="dkl-read")
            self._pending[key] = self._readers.submit(_read, work, ticket)

    def _begun_in(self, work: Work) -> set[int]:
        """The blocks that tasks of this pass have asked for here: too late to read them ahead."""
        # The first task of a new pass in this process: what the last one shared is of no use to it.
        if self._begun[0] != work.token:
            self._begun, self._there_at_most = (work.token, set()), None
            self._shared.clear()
            self._cache.begin_pass()
            SHARED.begin_pass(work.limits.tasks + work.limits.ahead)
        return self._begun[1]

    def _make_room(self, limits: Limits) -> bool:
        """Whether one more read may wait.

        A finished one that nobody has fetched gives way where its task may have run in another process.
        """
        if len(self._pending) < limits.ahead:
            return True
        done = (key for key, future in self._pending.items() if future.done())
        stale = next(done, None) if limits.processes > 1 else None
        return self._pending.pop(stale, None) is not None if stale else False

    def forget_pending(self) -> None:
        """Drop what was read ahead and not used: a pass has ended or failed."""
        with self._lock:
            # Futures are cancelled outside of the lock: their callbacks may take it.
            pending = list(self._pending.values())
            self._pending.clear()
            self._shared.clear()
        for future in pending:
            future.cancel()

    def clear(self) -> None:
        """Empty the cache too."""
        self.forget_pending()
        with self._lock:
            self._cache.shrink(0)


LOADER = BlockLoader()
# What threads of the parent were reading never comes in its child.
after_fork(LOADER.__init__)  # type: ignore[misc]
givers.append(LOADER.give_up_gpu)


def blocks_of(
    work: Work, tickets: Sequence[Ticket], following: Sequence[Ticket] = (), *, as_kept: bool = False
) -> Iterator[tuple[Block, ReadCounts]]:
    """The blocks behind `tickets` in order, the next ones (at last `following`) read while the caller is busy.

    With `as_kept` the rows of those that a GPU keeps are there.
    """
    coming, n_ahead = deque([*tickets, *following]), -(-work.limits.ahead // work.limits.tasks)
    for _ in tickets:
        block, reading = LOADER.fetch(work, coming.popleft(), as_kept=as_kept)
        for ticket in islice(coming, n_ahead):
            LOADER.read_ahead(work, ticket)
        yield block, reading


def _read(work: Work, ticket: Ticket) -> tuple[Block, int]:
    """The block and how often reading it had to be repeated: a store over a network fails now and then."""

    def load() -> Block:
        value = unpacked(ticket.value)
        if dask.is_dask_collection(value):
            # The task already runs in a thread of its own; the graph of one block needs no pool beside it.
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
        # the last attempt raises what it meets
        return load(), READ_ATTEMPTS - 1


class PieceCache:
    """Pieces that further passes of one name make alike, up to a number of bytes: the first ones that come.

    All pieces are needed again before any of them is needed twice, so that none gives way to another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._name = ""
        self._kept: dict[Hashable, Any] = {}
        self._capacity = self._left = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces that are kept, or about to be."""
        return self._capacity - self._left

    def get(self, name: str, key: Hashable) -> Any:
        """The piece; None where it is not kept."""
        with self._lock:
            return self._kept.get(key) if name == self._name else None

    def claim(self, name: str, nbytes: int, capacity: int) -> bool:
        """Whether there is room for so many bytes, which are then taken; pieces of another name go."""
        with self._lock:
            if name != self._name:
                self._name, self._capacity, self._left = name, capacity, capacity
                self._kept.clear()
            if nbytes > self._left:
                return False
            self._left -= nbytes
            return True

    def put(self, name: str, key: Hashable, piece: Any) -> None:
        """Keep a piece whose room was claimed."""
        with self._lock:
            if name == self._name:
                self._kept[key] = piece

    def clear(self) -> None:
        """Forget all pieces: the passes that share them are done."""
        with self._lock:
            self._name, self._capacity, self._left = "", 0, 0
            self._kept.clear()


PIECES = PieceCache()
after_fork(PIECES.__init__)  # type: ignore[misc]


@dataclass(frozen=True)
class Kept:
    """What a block function keeps of its block between passes: see `dkl.protocols.records.Keeper`.

    Parameters
    ----------
    name : str
        Of the passes that share it.
    block : int
        The number of the block.
    capacity : int
        Bytes that this process may keep of all blocks.
    key : bytes
        Which rows of the block, where these differ between passes.
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
