"""Driver: a method as a state machine on what passes return. Needs no Dask, so a test can play the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dkl.protocols.records import Record

P = TypeVar("P", contravariant=True)
S = TypeVar("S")
BETWEEN_PASSES = "steps between passes"
"""The item of what a driver holds that is not there while a pass runs."""


class Driver(Protocol[P, S]):
    """The four functions that `dkl.passes.loop` needs of a method.

    The state is a small frozen dataclass of plain arrays, numbers, strings and None: a checkpoint is the state, and
    resuming is loading it. A method of many rounds has a fifth, ``metrics(problem, state) -> dict of float``: where it
    stands, by name, for the progress line. One that can end early has ``stopped(problem, state, why)``: a state that
    asks for no more and says why it ended, or None while there is no result.

    A plan records the passes of `plan` and goes on with ``planned(problem)``, a state as large as the last one may be,
    if the driver has that: those have on whose result later passes depend. One that holds much beside its state says
    so by ``memory(problem, n_rows, row_bytes) -> dict of int``: at most so many bytes, item by item, for so many rows
    of so many bytes each; the item `BETWEEN_PASSES` is there only while no pass runs. One that computes long outside
    the passes has ``driving(problem, n_rows, few, flops_per_second) -> float``: its seconds, told from a few made rows
    of the same kind, (r, d), and from what a thread of this machine does of a product of matrices.
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


def bytes_beside(held: Mapping[str, int]) -> int:
    """Bytes that a driver holds while its passes run, of all that it holds."""
    return sum(held.values()) - held.get(BETWEEN_PASSES, 0)


def with_passes(held: Mapping[str, int], passes: int) -> int:
    """The peak of a process that drives a fit and runs its passes, which take at most `passes` bytes."""
    return bytes_beside(held) + max(passes, held.get(BETWEEN_PASSES, 0))


def largest_held(stages: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The most that a driver holds in stages that follow each other: while passes run, and between them."""
    largest: Mapping[str, int] = max(stages, key=bytes_beside) if stages else {}
    items = dict(largest)
    beside, in_all = bytes_beside(items), max((sum(stage.values()) for stage in stages), default=0)
    return items | ({BETWEEN_PASSES: in_all - beside} if in_all > beside else {})
