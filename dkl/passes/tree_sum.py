"""The binary tree over absolute block numbers in which every sum of a pass is added up, whoever computes which node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

MOST_SPANS = 1024
FEW_SPANS = 128
SHORT_SPAN_LEVEL = 3

Merge = Callable[[Any, Any], Any]


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
        return Node(self.level, self.index ^ 1)

    def blocks(self, n_blocks: int) -> range:
        return range(self.index << self.level, min((self.index + 1) << self.level, n_blocks))

    def descendants(self, level: int, n_blocks: int) -> list[Node]:
        """The nodes of `level`, at or below this one, that make it up."""
        first = self.index << (self.level - level)
        last = min((self.index + 1) << (self.level - level), count_nodes(n_blocks, level))
        return [Node(level, index) for index in range(first, last)]


def count_nodes(n_blocks: int, level: int) -> int:
    """How many nodes of 2^level blocks cover all blocks."""
    return -(-n_blocks >> level)


def span_level(n_blocks: int) -> int:
    """The level of the nodes that one task sums; a function of the number of blocks alone.

    One block a task up to 128 blocks; then up to 8 blocks a task, so that reading the next one overlaps with
    computing; then as many as keep the tasks at 1,024.
    """
    level = 0
    while count_nodes(n_blocks, level) > (FEW_SPANS if level < SHORT_SPAN_LEVEL else MOST_SPANS):
        level += 1
    return level


def spans(n_blocks: int, level: int) -> Iterator[Node]:
    """The nodes of one level, in the order of their blocks."""
    return (Node(level, index) for index in range(count_nodes(n_blocks, level)))


class TreeSum:
    """Adds up the nodes of one tree in its fixed order, in whatever order they arrive.

    A node is merged with its sibling as soon as both are there, so a run of nodes in order holds at most one partial
    result a level. `None` stands for a node without rows; merging it changes nothing.
    """

    def __init__(self, merge: Merge, n_blocks: int, top: Node) -> None:
        self._merge = merge
        self._n_blocks = n_blocks
        self._top = top
        self._waiting: dict[Node, Any] = {}
        self.total: Any = None

    def add(self, node: Node, value: Any) -> None:
        while node != self._top:
            sibling = node.sibling
            if sibling.index < count_nodes(self._n_blocks, node.level):
                if sibling not in self._waiting:
                    self._waiting[node] = value
                    return
                other = self._waiting.pop(sibling)
                value = self._joined(value, other) if node < sibling else self._joined(other, value)
            node = node.parent
        self.total = value

    def _joined(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            return right if left is None else left
        return self._merge(left, right)


def root(n_blocks: int) -> Node:
    """The lowest node that covers all blocks."""
    level = 0
    while count_nodes(n_blocks, level) > 1:
        level += 1
    return Node(level, 0)
