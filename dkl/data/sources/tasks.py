"""Rows that Dask computes, by graphs of their own: what a task computes for one block, without the rest of an array."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dask._task_spec import Task as DaskTask
from dask.core import get_dependencies, istask
from dask.delayed import Delayed


def culled(ticket: Delayed, graph: Mapping[Any, Any] | None = None) -> Delayed:
    """The ticket with only the tasks of its block; `dask.optimize` would process those of all other blocks too."""
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
    """Whether each of these culled tickets can be computed on its own: without a future, and without a common task."""
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


def are_separate(chunks: Sequence[Delayed]) -> bool:
    """Whether culled chunks share no task and hold no future, judged from at most five of them."""
    # neighbours show whether chunks share a task, the two ends whether all of them do
    middle = len(chunks) // 2
    return share_no_task(list({chunk.key: chunk for chunk in (*chunks[:2], *chunks[middle:][:2], chunks[-1])}.values()))
