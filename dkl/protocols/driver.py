"""Driver: a method as a state machine on what passes return. Needs no Dask, so a test can play the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from dkl.protocols.records import Record

P = TypeVar("P", contravariant=True)
S = TypeVar("S")


class Driver(Protocol[P, S]):
    """The four functions that `dkl.passes.loop` needs of a method.

    The state is a small frozen dataclass of plain arrays, numbers, strings and None: a checkpoint is the state, and
    resuming is loading it. A method of many rounds has a fifth, ``metrics(problem, state) -> dict of float``: where it
    stands, by name, for the progress line. One that holds much beside its state says so by a sixth, ``memory(problem,
    row_bytes) -> dict of int``: at most so many bytes, item by item, for rows of so many bytes each. One that can end
    early has ``stopped(problem, state, why)``: a state that asks for no more and says why it ended, or None while there
    is no result.
    """

    def init(self, problem: P) -> S:
        """The state before any row was read."""
        ...

    def request(self, problem: P, state: S) -> Sequence[Record] | None:
        """The records of the next pass with their operands, or None when the method is done."""
        ...

    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        """The state after that pass: `results` holds one entry a record (BlockSum: {name: array}; RowSample: Block)."""
        ...

    def plan(self, problem: P) -> Sequence[tuple[Sequence[Record], int]]:
        """Each kind of pass once, its records with their shapes, and an upper bound of how often it runs."""
        ...
