"""Graphs of the blocks of a Dask collection: which of them a task can compute by itself, as it reads a store."""

from __future__ import annotations

from collections import Counter

import cloudpickle
import numpy as np
from dask.core import get_dependencies, istask
from dask.delayed import Delayed

from dkl.protocols.source import BlockSource

LARGEST_GRAPH_BYTES = 1 << 16


def culled(ticket: Delayed) -> Delayed:
    """The ticket with the tasks that its block needs; `dask.optimize` would look at those of all other blocks too."""
    graph, needed, wanted = ticket.__dask_graph__(), {}, [ticket.key]
    while wanted:
        key = wanted.pop()
        # What is no key of the graph is a value, or a future of the scheduler.
        if key not in needed and key in graph:
            needed[key] = graph[key]
            wanted += get_dependencies(graph, key)
    return Delayed(ticket.key, needed)


def stand_alone(source: BlockSource) -> bool:
    """Whether the graphs of the blocks go to the tasks that need the blocks, judged by five of them at most.

    They are small, they hold no future of a cluster, and no two of them hold the same task: what blocks share (a mean
    of all rows, a chunk cut in two) would be computed for each anew.
    """
    from distributed import futures_of

    # Neighbours show whether blocks share a chunk, the two ends whether all of them share a task.
    blocks = np.flatnonzero(source.block_rows)
    middle = len(blocks) // 2
    looked_at = {int(index) for index in (*blocks[:2], *blocks[middle : middle + 2], *blocks[-1:])}
    tickets = [culled(source.ticket(index)) for index in sorted(looked_at)]
    graphs = [dict(ticket.__dask_graph__()) for ticket in tickets]
    if futures_of(tickets):
        return False
    # Values (arrays cut out of one in memory) are in several graphs and cost nothing; only tasks would be computed
    # anew.
    tasks = Counter(key for graph in graphs for key, node in graph.items() if istask(node))
    if any(count > 1 for count in tasks.values()):
        return False
    # A graph is whole if it holds all that its tasks take; a future is a key of the scheduler's.
    for graph in graphs:
        if not all(getattr(node, "dependencies", frozenset()) <= graph.keys() for node in graph.values()):
            return False
    # A graph that holds rows as values would send them through the scheduler.
    return all(len(cloudpickle.dumps(ticket)) <= LARGEST_GRAPH_BYTES for ticket in tickets)
