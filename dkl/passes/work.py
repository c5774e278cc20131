"""What a task needs beside its blocks: the records, the reader, and the limits of a process; sent to a process once."""

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
    """How much one process may hold.

    Parameters
    ----------
    tasks : int
        Blocks that are computed on at once.
    ahead : int
        Blocks that are read ahead of them.
    cache_bytes : int
        Blocks kept for the next pass.
    piece_bytes : int
        Pieces of a fold kept for the next one that shares them.
    staged : int
        Pinned memory by way of which rows come to the GPU; 0 leaves that to CuPy.
    gpu_rows : int or None
        Bytes of rows that each GPU keeps for the next pass; None for a share of what it has left.
    sharing : int
        Processes on the machine, which share what its GPUs keep.
    processes : int
        All those of the pass.
    """

    # Limits change how much is in flight, never what is computed: no bit depends on them.
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
    """The same for every task of a pass.

    Parameters
    ----------
    token : str
        Of the pass.
    records : sequence of Record
    reader : BlockReader
    n_blocks : int
    fingerprint : str
        Of the source; empty where rows are not read (hashing rows in memory takes a read of them).
    place : str
        Of the source.
    is_read : bool
        Whether tasks read (or compute) their blocks, which is worth doing ahead and caching; rows in memory come
        with the ticket.
    limits : Limits
    device : str
    columns : RowColumns or None
        Where the records' row columns are read and written.
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
    """One block to be read: its absolute number and what `BlockReader.load` takes.

    A tuple, since Dask replaces the futures that it finds in tuples by their results.
    """

    number: int
    value: Any


@dataclass(frozen=True)
class ReadCounts:
    """What reading some blocks came to; `noted` is what the process took from stores meanwhile."""

    blocks: int = 0
    rows: int = 0
    bytes: int = 0
    cache_hits: int = 0
    retries: int = 0
    noted: Noted = field(default_factory=Noted)

    def __add__(self, other: ReadCounts) -> ReadCounts:
        # Counts of two tasks, or of two siblings of the tree, add up field by field.
        return ReadCounts(
            self.blocks + other.blocks,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.cache_hits + other.cache_hits,
            self.retries + other.retries,
            self.noted + other.noted,
        )
