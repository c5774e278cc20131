"""The binary tree over absolute block numbers in which every sum of a pass is added up, whoever computes which node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

# A pass has at most so many tasks of several blocks each: every task costs the driver some time of its own.
MOST_TASKS = 1024
# Up to so many tasks there are as many as blocks; beyond, up to 2^SHORT_LEVEL blocks go into one.
FEW_TASKS = 128
SHORT_LEVEL = 3

V = TypeVar("V")


@dataclass(frozen=True, order=True)
class Node:
    """Node (level, index) covers the blocks index * 2**level up to (index + 1) * 2**level."""

    level: int
    index: int

    @property
    def parent(self) -> Node:
        return Node(self.level + 1, self.index // 2)

    @property
    def sibling(self) -> Node:
        # numbers 2 i and 2 i + 1, which differ in their last bit, have one parent
        return Node(self.level, self.index ^ 1)

    def blocks(self, n_blocks: int) -> range:
        """The numbers of the blocks that it covers, of `n_blocks` in all."""
        return range(self.index << self.level, min((self.index + 1) << self.level, n_blocks))

    def descendants(self, level: int, n_blocks: int) -> list[Node]:
        """The nodes of `level`, at or below this one, that make it up."""
        first = self.index << (self.level - level)
        last = min((self.index + 1) << (self.level - level), count_nodes(n_blocks, level))
        return [Node(level, index) for index in range(first, last)]


def count_nodes(n_blocks: int, level: int) -> int:
    """How many nodes of 2^level blocks cover all blocks."""
    return -(-n_blocks >> level)


def task_level(n_blocks: int) -> int:
    """The level of the nodes that one task sums; a function of the number of blocks alone.

    One block a task up to 128 blocks; then up to 8 blocks a task, so that reading the next one overlaps with
    computing; then as many as keep the tasks at 1,024.
    """
    level = 0
    while count_nodes(n_blocks, level) > (FEW_TASKS if level < SHORT_LEVEL else MOST_TASKS):
        level += 1
    return level


def nodes_of_level(n_blocks: int, level: int) -> Iterator[Node]:
    """The nodes of one level, in the order of their blocks."""
    return (Node(level, index) for index in range(count_nodes(n_blocks, level)))


class TreeSum(Generic[V]):
    """Adds up the nodes of one tree in its fixed order, in whatever order they arrive.

    A node is merged with its sibling as soon as both are there, so a run of nodes in order holds at most one partial
    result a level. `None` stands for a node without rows; merging it changes nothing.

    Floating-point addition is not associative. Since which two sums are added, and which of them stands on the left,
    follows from the numbers of the blocks alone, the total has the same bits however the blocks were shared out, and
    whichever of them had to be read again after a worker's death.
    """

    def __init__(self, merge: Callable[[V, V], V], n_blocks: int, top: Node) -> None:
        self._merge = merge
        self._n_blocks = n_blocks
        self._top = top
        self._waiting: dict[Node, V | None] = {}
        self.total: V | None = None

    def add(self, node: Node, value: V | None) -> None:
        """Take the sum of one node, and go up the tree as far as siblings are there."""
        while node != self._top:
            sibling = node.sibling
            # The last node of a level may have no sibling: it is its parent's sum as it stands.
            if sibling.index < count_nodes(self._n_blocks, node.level):
                if sibling not in self._waiting:
                    self._waiting[node] = value
                    return
                other = self._waiting.pop(sibling)
                left, right = (value, other) if node < sibling else (other, value)
                if left is None or right is None:
                    value = right if left is None else left
                else:
                    value = self._merge(left, right)
            node = node.parent
        self.total = value


def root(n_blocks: int) -> Node:
    """The lowest node that covers all blocks."""
    level = 0
    while count_nodes(n_blocks, level) > 1:
        level += 1
    return Node(level, 0)
