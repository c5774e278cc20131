"""Graphs of Dask that compute the rows of one block, without the tasks of the other blocks of an array."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import Task as DaskTask
from dask.core import get_dependencies, istask
from dask.delayed import Delayed


def culled(ticket: Delayed, graph: Mapping[Any, Any] | None = None) -> Delayed:
    """The Delayed with a graph of the tasks that it needs alone, found in time proportional to their number.

    `dask.optimize` visits every task of the array that a block is cut from.

    Parameters
    ----------
    ticket : Delayed
    graph : mapping or None
        The tasks by their keys, as a dict that has been made once for many Delayed of one array; None makes it from the
        graph of `ticket`.
    """
    graph, needed, wanted = graph or ticket.__dask_graph__(), {}, [ticket.key]
    while wanted:
        key = wanted.pop()
        # a key that is not in the graph is a value, or a future of the scheduler
        if key not in needed and key in graph:
            needed[key] = graph[key]
            wanted += get_dependencies(graph, key)
    return Delayed(ticket.key, needed)


def one_task(name: str, function: Callable[[], Any]) -> Delayed:
    """The result of a function as a Delayed of a single task, under a name of its own."""
    key = f"{name}-{uuid.uuid4().hex}"
    return Delayed(key, {key: DaskTask(key, function)})


def share_no_task(tickets: Sequence[Delayed]) -> bool:
    """Whether worker processes can compute each Delayed by itself, without Dask's scheduler.

    They cannot if two of them need the same task, which would be computed twice, or if one needs a future: that result
    is in the memory of a cluster, and only its scheduler knows where.

    Parameters
    ----------
    tickets : sequence of Delayed
        Each with the graph of its own tasks alone, as `culled` returns it.
    """
    from distributed import futures_of

    if futures_of(tickets):
        return False
    graphs = [dict(ticket.__dask_graph__()) for ticket in tickets]
    # values (arrays cut from one in memory) are in several graphs at no cost; only tasks would be computed again
    tasks = Counter(key for graph in graphs for key, node in graph.items() if istask(node))
    if any(count > 1 for count in tasks.values()):
        return False
    # a graph is complete if it contains everything its tasks need; futures are keys of the scheduler
    return all(
        getattr(node, "dependencies", frozenset()) <= graph.keys() for graph in graphs for node in graph.values()
    )


def neighbours_and_ends(n: int) -> list[int]:
    """At most five positions below n: the first two, two in the middle, and the last.

    They are looked at in place of all n: neighbours show whether a chunk was cut in two, and the first and the last
    whether one task makes all of them.
    """
    return sorted({*range(n)[:2], *range(n)[n // 2 :][:2], *range(n)[-1:]})


def are_separate(chunks: Sequence[Delayed]) -> bool:
    """`share_no_task` of all chunks, judged from `neighbours_and_ends`."""
    return share_no_task([chunks[place] for place in neighbours_and_ends(len(chunks))])
