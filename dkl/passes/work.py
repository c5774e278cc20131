"""What a task needs besides its blocks: records, the reader, and the limits of a process; sent once to a process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dkl.data.store.ledger import Noted
from dkl.kernels.device import Device
from dkl.passes.row_columns import RowColumns
from dkl.protocols.records import Record
from dkl.protocols.source import BlockReader


@dataclass(frozen=True)
class Limits:
    """Limits on what one process holds.

    Parameters
    ----------
    tasks : int
        Blocks in progress at once.
    ahead : int
        Blocks that are read ahead of them.
    cache_bytes : int
        Bytes of blocks kept for the next pass.
    piece_bytes : int
        Bytes of pieces of a fold kept for the next one that shares them.
    staged : int
        Bytes of pinned memory through which rows are copied to the GPU; 0 leaves the copies to CuPy.
    gpu_rows : int or None
        Bytes of rows that each GPU keeps for the next pass; None for a share of its free memory.
    sharing : int
        Processes of the machine, which share the memory of its GPUs.
    processes : int
        All processes of the pass.
    """

    # limits change how much is in progress, but never a bit of the results
    tasks: int = 1
    ahead: int = 1
    cache_bytes: int = 0
    piece_bytes: int = 0
    staged: int = 0
    gpu_rows: int | None = None
    sharing: int = 1
    processes: int = 1


@dataclass(frozen=True, eq=False)
class Work:
    """What all tasks of a pass share.

    Parameters
    ----------
    token : str
        Identity of the pass.
    records : sequence of Record
    reader : BlockReader
    n_blocks : int
    fingerprint : str
        Fingerprint of the source; empty if rows are not read (hashing rows in memory would take a read of them).
    place : str
        Place of the source.
    is_read : bool
        Whether tasks read (or compute) their blocks, so that reading ahead and caching save time; rows in memory are
        sent with the ticket.
    limits : Limits
    device : str
    columns : RowColumns or None
        The row columns that records read and write.
    """

    token: str
    records: Sequence[Record]
    reader: BlockReader
    n_blocks: int
    fingerprint: str
    place: str
    is_read: bool
    limits: Limits = field(default_factory=Limits)
    device: Device = "cpu"
    columns: RowColumns | None = None


class Ticket(NamedTuple):
    """One block to be read: its absolute number and the argument of `BlockReader.load`.

    A tuple, in which Dask replaces futures by their results.
    """

    number: int
    value: Any


@dataclass(frozen=True)
class ReadCounts:
    """Counts of reading some blocks; `noted` lists what the process read from stores meanwhile."""

    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    cache_hits: int = 0
    retries: int = 0
    noted: Noted = field(default_factory=Noted)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        # counts of two tasks, or of two siblings of the tree, are added field by field
        return ReadCounts(
            self.blocks + other.blocks,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.cache_hits + other.cache_hits,
            self.retries + other.retries,
            self.noted + other.noted,
        )
