"""Driver: a method as a state machine on the results of passes. Needs no Dask, so that a test can play the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from dkl.protocols.records import Record

P = TypeVar("P", contravariant=True)
S = TypeVar("S")
Passes = Sequence[tuple[Sequence[Record], int]]
"""The passes of a plan: the records of each kind of pass, and how often it runs at most."""
BETWEEN_PASSES = "steps between passes"
"""Name of the item in a driver's memory whose bytes are in use between passes only, never while a pass runs."""


class Driver(Protocol[P, S]):
    """The four functions that `dkl.passes.loop` needs of a method, and five that a method may add.

    The state is a small frozen dataclass of plain arrays, numbers, strings and None: a checkpoint is the state, and
    resuming is loading it. The optional functions are

    - ``metrics(problem, state) -> dict of float``: the values that the progress line shows after each round.
    - ``stopped(problem, state, why) -> state or None``: a final state that requests no further pass and records why
      the method ended early; None while there is no result to end with.
    - ``planned(problem) -> state``: a state as large as the final one may be, for a plan, which records the passes of
      `plan` and runs none. Drivers on whose result later passes depend have it.
    - ``memory(problem, n_rows, row_bytes) -> dict of int``: an upper bound of the bytes that the driver holds besides
      its state, by item, for `n_rows` rows of `row_bytes` bytes each. The item `BETWEEN_PASSES` is in use only while
      no pass runs.
    - ``driving(problem, n_rows, few, flops_per_second) -> float``: the seconds that the driver computes outside the
      passes, from a few made rows (r, d) of the same kind and from the operations a second of a matrix product on one
      thread.
    """

    def init(self, problem: P) -> S:
        """The state before any row was read."""
        ...

    def request(self, problem: P, state: S) -> Sequence[Record] | None:
        """The records of the next pass with their operands, or None when the method is done."""
        ...

    def step(self, problem: P, state: S, results: Sequence[Any]) -> S:
        """The state after a pass, given the result of each record (BlockSum: {name: array}; RowSample: Block)."""
        ...

    def plan(self, problem: P) -> Passes:
        """For each kind of pass its records, with their shapes, and an upper bound of how often it runs."""
        ...


def bytes_beside(held: Mapping[str, int]) -> int:
    """Bytes that a driver holds while its passes run: the sum of all items but `BETWEEN_PASSES`."""
    return sum(held.values()) - held.get(BETWEEN_PASSES, 0)


def with_passes(held: Mapping[str, int], passes: int) -> int:
    """Peak bytes of a process that both drives a fit and runs its passes, which take at most `passes` bytes."""
    return bytes_beside(held) + max(passes, held.get(BETWEEN_PASSES, 0))


def largest_held(stages: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The memory of a driver that works through several stages: the items of the largest stage.

    The item `BETWEEN_PASSES` is raised so that the sum of all items is the largest total of any stage.
    """
    largest: Mapping[str, int] = max(stages, key=bytes_beside) if stages else {}
    items = dict(largest)
    in_passes, peak = bytes_beside(items), max((sum(stage.values()) for stage in stages), default=0)
    return items | ({BETWEEN_PASSES: peak - in_passes} if peak > in_passes else {})
