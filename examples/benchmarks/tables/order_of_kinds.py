"""The order in which the automatic machine would best try its kinds of features, learned from tables.

    python examples/benchmarks/tables/order_of_kinds.py --data FOLDER --out kinds.jsonl

fits the machine without settings to the first split of each set in FOLDER (as `suite.py` reads them) and writes, for
each kind that it tries, the loss on the first fold and the processor seconds of that trial: a line a set, so that a
rerun goes on where the last one was broken off. Then an order is learned on every other set: the next kind is always
the one that lowers the mean logarithm of the least loss so far most. It is judged on the sets between them, and the
other way round, beside the order in which the machine tries the kinds today.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from table_sets import TableSet, read_sets

import dkl

# a kind that a set has not tried is as bad as this multiple of its least loss
UNTRIED = 10.0


def trials(table: TableSet) -> dict[str, tuple[float, float]]:
    """For each kind that a fit tries its loss on the first fold, and the processor seconds of that trial."""
    found, rows, before = dict[str, tuple[float, float]](), table.split(0), [time.process_time()]

    def note(event: Any) -> None:
        if event.name != "choice":
            return
        now, kind = time.process_time(), event.detail.get("kind", "")
        # variants name what they vary in brackets, or the kinds that are joined; one kind has its scaling there
        is_kind = " (" not in re.sub(r" \(scaling \w+\)$", "", kind) and " with " not in kind
        if event.kind == "advanced" and is_kind and kind not in found and event.detail["loss"] is not None:
            found[re.sub("scaling .*[)]", "other scaling)", kind)] = event.detail["loss"], now - before[0]
        before[0] = now

    kind = dkl.KernelRegressor if table.has_numbers else dkl.KernelClassifier
    kind(random_state=0, progress=note).fit(rows.X, rows.y)
    return found


def ratios(losses: Sequence[dict[str, tuple[float, float]]], kinds: Sequence[str]) -> np.ndarray:
    """The loss of each kind on each set over the least loss there, (sets, kinds)."""
    table = np.array([[each[kind][0] if kind in each else np.nan for kind in kinds] for each in losses])
    table = table / np.nanmin(table, axis=1, keepdims=True)
    return np.where(np.isnan(table), UNTRIED, np.minimum(table, UNTRIED))


def learned(table: np.ndarray) -> list[int]:
    """Columns in the order in which each lowers the mean logarithm of the least ratio so far most."""
    order: list[int] = []
    least = np.full(len(table), UNTRIED)
    while len(order) < table.shape[1]:
        left = [column for column in range(table.shape[1]) if column not in order]
        after = [np.log(np.minimum(least, table[:, column])).mean() for column in left]
        order.append(left[int(np.argmin(after))])
        least = np.minimum(least, table[:, order[-1]])
    return order


def lines(table: np.ndarray, seconds: np.ndarray, order: Sequence[int], kinds: Sequence[str]) -> Iterator[str]:
    """A line a kind of an order: how far the least loss so far is from the least of all, and the seconds so far."""
    for number, column in enumerate(order, 1):
        least, spent = table[:, order[:number]].min(axis=1), seconds[:, order[:number]].sum(axis=1).mean()
        above, near = 100.0 * (np.exp(np.log(least).mean()) - 1.0), int((least < 1.01).sum())
        yield f"| {number}. {kinds[column]} | {above:.2f} % | {near} of {len(table)} | {spent:.2f} s |"


def compared(losses: Sequence[dict[str, tuple[float, float]]]) -> Iterator[str]:
    """The page: all sets in today's order, then both halves by the order that the other one has taught."""
    kinds = list(dict.fromkeys(kind for each in losses for kind in each))
    table = ratios(losses, kinds)
    seconds = np.array([[each.get(kind, (0.0, 0.0))[1] for kind in kinds] for each in losses])
    parts = [("of today", list(range(len(kinds))), slice(None))]
    if len(table) > 1:
        halves = slice(0, None, 2), slice(1, None, 2)
        parts += [("learned on the others", learned(table[other]), own) for own, other in (halves, halves[::-1])]
    for name, order, rows in parts:
        yield f"| order {name} | least loss above the least of all | sets within 1 % of it | processor seconds so far |"
        yield "| --- | --- | --- | --- |"
        yield from lines(table[rows], seconds[rows], order, kinds)
        yield ""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Parquet files with a sets.json")
    parser.add_argument("--sets", help="names, separated by commas; all of them if not given")
    parser.add_argument("--out", type=Path, default=Path("kinds.jsonl"))
    given = parser.parse_args(arguments)
    tables = read_sets(given.data)
    known: dict[str, Any] = {}
    if given.out.exists():
        known = {one["set"]: one["kinds"] for one in map(json.loads, given.out.read_text().splitlines())}
    for name in given.sets.split(",") if given.sets else tables:
        if name not in known:
            known[name] = trials(tables[name])
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"set": name, "kinds": known[name]}) + "\n")
    print("\n".join(compared([known[name] for name in sorted(known)])))


if __name__ == "__main__":
    main()
