"""The binary tree over absolute block numbers in which every sum of a pass is added, wherever nodes are computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

# Limits the tasks with several blocks, since every task costs the driver some time.
MOST_TASKS = 1024
# Number of blocks up to which each has a task of its own; of more blocks up to 2^SHORT_LEVEL share a task.
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
        # numbers 2 i and 2 i + 1, which differ in their last bit, have the same parent
        return Node(self.level, self.index ^ 1)

    def blocks(self, n_blocks: int) -> range:
        """The numbers of its blocks, of `n_blocks` in total."""
        return range(self.index << self.level, min((self.index + 1) << self.level, n_blocks))

    def descendants(self, level: int, n_blocks: int) -> list[Node]:
        """The nodes of `level` that this one consists of."""
        first = self.index << (self.level - level)
        last = min((self.index + 1) << (self.level - level), count_nodes(n_blocks, level))
        return [Node(level, index) for index in range(first, last)]


def count_nodes(n_blocks: int, level: int) -> int:
    """The number of nodes of 2^level blocks that cover all blocks."""
    return -(-n_blocks >> level)


def task_level(n_blocks: int) -> int:
    """The level of the nodes that one task sums, which depends on the number of blocks alone.

    One block for each task up to 128 blocks; then up to 8 blocks, so that reading the next one overlaps with computing;
    then as many as limit the tasks to 1,024.
    """
    level = 0
    while count_nodes(n_blocks, level) > (FEW_TASKS if level < SHORT_LEVEL else MOST_TASKS):
        level += 1
    return level


def nodes_of_level(n_blocks: int, level: int) -> Iterator[Node]:
    """The nodes of one level, in the order of their blocks."""
    return (Node(level, index) for index in range(count_nodes(n_blocks, level)))


class TreeSum(Generic[V]):
    """Adds the nodes of one tree in its fixed order, independently of the order in which they arrive.

    A node is merged with its sibling as soon as both have arrived, so that consecutive nodes need at most one partial
    result on each level. `None` is a node without rows, whose merge changes nothing.

    Floating-point addition is not associative. Which two sums are added, and in which order, depends on the numbers of
    the blocks alone, so that the total has the same bits for any distribution of the blocks, also if some had to be
    read again after a worker's death.
    """

    def __init__(self, merge: Callable[[V, V], V], n_blocks: int, top: Node) -> None:
        self._merge = merge
        self._n_blocks = n_blocks
        self._top = top
        self._waiting: dict[Node, V | None] = {}
        self.total: V | None = None

    def add(self, node: Node, value: V | None) -> None:
        """Add the sum of one node, and merge upwards as far as siblings have arrived."""
        while node != self._top:
            sibling = node.sibling
            # the last node of a level may have no sibling, and then is its parent's sum
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
    return Node(max(n_blocks - 1, 0).bit_length(), 0)
