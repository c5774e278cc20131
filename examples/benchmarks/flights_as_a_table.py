"""Flights as the table that they are, up to ten million from a store: steps on target means, beside LightGBM.

    python examples/benchmarks/flights_as_a_table.py --data DIR --rows 100000,1000000  # DIR has flights_3m.npz
    python examples/benchmarks/flights_as_a_table.py --data DIR --rows 10000000 --machines "dkl 200"
    python examples/benchmarks/flights_as_a_table.py --quick  # rows that are drawn, no files

Six columns: hour, weekday, month, origin and destination, which are categories, and the distance. Is a flight late by a
quarter of an hour or more? A quarter of the flights is kept for the test, as in examples/replace_svc.py; rows asked for
beyond the others are these again, and all copies of a flight are one group, so that none of them judges, or enters the
target mean of, another. "dkl M" is `StepFeatures(n_features=M)`, whose working model ranks the test rows: its fit reads
the store block by block, with at most 1 GB (`memory_limit`), and finds the crosses of categories by itself. LightGBM
holds the same table in memory, with its own treatment of categories, and stops when held-out rows gain no more, after
2,000 trees at most. Each fit runs in a process of its own on one thread. Memory is what it took above imports, and for
LightGBM above the rows.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "papers"))

import dask
import numpy as np
import pandas as pd
import pyarrow as pa
from against_others import HELD_OUT, apart, parts_of, tiny
from cells import Cell, Cells, circumstances, markdown
from from_a_store import clocked
from rich.console import Console
from sets import rows_of
from sklearn.metrics import roc_auc_score

import dkl
from dkl.bench.memory_job import load_everything

MACHINES = ("dkl 200", "LightGBM")
CATEGORIES = ["hour", "weekday", "month", "origin", "destination"]
MOST_TESTED, ROWS_A_BATCH, QUICK_ROWS = 200_000, 100_000, 3_000


def flights(data: Path | None) -> tuple[pd.DataFrame, np.ndarray]:
    """The table, and which flights are late; without a folder so few rows of the same form, drawn."""
    if data is None:
        generator = np.random.default_rng(0)
        sizes = {"hour": 24, "weekday": 7, "month": 6, "origin": 60, "destination": 60}
        table = pd.DataFrame({name: generator.integers(0, most, 4 * QUICK_ROWS) for name, most in sizes.items()})
        table["distance"] = generator.integers(100, 3_000, len(table)).astype(np.float32)
        odds = generator.normal(size=(24, 60))[table.hour, table.origin]
        return table, (odds + generator.logistic(size=len(table)) > 1.0).astype(int)
    rows = rows_of("flights", data)
    columns = rows.X.indices.reshape(len(rows.y), -1)
    ends = np.cumsum([1, 24, 7, 12, *_airports(data)])
    table = pd.DataFrame({name: columns[:, 1 + k] - ends[k] for k, name in enumerate(CATEGORIES)})
    table["distance"] = rows.X.data.reshape(columns.shape)[:, 0] * np.float32(1_000.0)
    return table, rows.y


def _airports(data: Path) -> tuple[int, int]:
    with np.load(data / "flights_3m.npz") as stored:
        return len(stored["origin_names"]), len(stored["destination_names"])


def split(data: Path | None) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    """Training rows, and at most `MOST_TESTED` of the quarter that is kept: table, targets, table, targets."""
    table, late = flights(data)
    train, test, y, y_test = parts_of(np.arange(len(late)), late, test_size=0.25)
    test, y_test = test[:MOST_TESTED], y_test[:MOST_TESTED]
    return table.iloc[train].reset_index(drop=True), y, table.iloc[test].reset_index(drop=True), y_test


def stored(folder: Path, data: Path | None, rows: int) -> Path:
    """The store of so many rows, written if it is not there; rows beyond those that there are come again."""
    store = folder / f"{'flights' if data else 'drawn'}-{rows}.zarr"
    if not store.exists():
        table, late, _, _ = split(data)
        batches = _batches(table, late, rows)
        first = next(batches)
        reader = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
        dkl.ingest(reader, str(store), target="late", group="flight", categorical=CATEGORIES)
    return store


def _batches(table: pd.DataFrame, late: np.ndarray, rows: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, rows, ROWS_A_BATCH):
        flight = np.arange(start, min(rows, start + ROWS_A_BATCH)) % len(late)
        # a label, since whole numbers 0 and 1 may be quantities
        batch = table.iloc[flight].assign(flight=flight, late=np.array(["no", "yes"])[late[flight]])
        yield pa.RecordBatch.from_pandas(batch, preserve_index=False)


def measured(store: str, machine: str, data: str | None, rows: int) -> Cell:
    """What a fit takes and how it ranks rows that it has not seen, in this process."""
    dask.config.set(scheduler="synchronous")
    load_everything()
    folder = None if data is None else Path(data)
    name, *size = machine.split()
    rank, cell = stepped(store, int(size[0])) if name == "dkl" else boosted(folder, rows)
    _, _, test, y_test = split(folder)
    return {**cell, "auc": roc_auc_score(y_test, rank(test)), "n_rows": rows, **circumstances()}


def stepped(store: str, n_features: int) -> tuple[Any, Cell]:
    few = tiny()
    dkl.StepFeatures(n_features=10, random_state=0).fit(few.X, few.y)  # code is compiled before the clock starts
    learner = dkl.StepFeatures(n_features=n_features, random_state=0, memory_limit="1 GB", progress=False)
    dataset = dkl.open_dataset(store)
    cell = clocked(lambda: learner.fit(dataset))
    crosses = [" x ".join(cross) for cross in learner.encoding_.crosses]
    return learner.machine_.decision_function, {**cell, "crosses": crosses}


def boosted(data: Path | None, rows: int) -> tuple[Any, Cell]:
    from lightgbm import LGBMClassifier, early_stopping

    table, late, _, _ = split(data)
    again = np.arange(rows) % len(late)
    X, y = table.iloc[again].astype(dict.fromkeys(CATEGORIES, "category")), late[again]
    X, X_held, y, y_held = parts_of(X, y, test_size=HELD_OUT)
    model = LGBMClassifier(n_estimators=2_000, n_jobs=1, random_state=0, verbose=-1)
    stop = early_stopping(50, verbose=False)
    cell = clocked(lambda: model.fit(X, y, eval_X=X_held, eval_y=y_held, callbacks=[stop]))

    def rank(test: pd.DataFrame) -> np.ndarray:
        known = {name: pd.CategoricalDtype(X[name].cat.categories) for name in CATEGORIES}
        return model.predict(test.astype(known), raw_score=True)

    return rank, {**cell, "trees": int(model.n_estimators_)}


def run(output: Path, data: Path | None, sizes: list[int], machines: tuple[str, ...]) -> str:
    """The table; written to the folder too."""
    wanted = {}
    for rows in sizes:
        store = stored(output, data, rows)
        for machine in machines:
            given = {"store": str(store), "machine": machine, "data": None if data is None else str(data), "rows": rows}
            wanted[f"{store.stem} {machine}"] = partial(apart, __file__, given, 36_000.0)
    found = list(Cells(output / "cells").fill(wanted).values())
    lines = [found[start : start + len(machines)] for start in range(0, len(found), len(machines))]
    text = markdown(
        ["rows", *machines],
        [[f"{rows:,}", *map(shown, cells)] for rows, cells in zip(sizes, lines, strict=True)],
    )
    (output / "flights_as_a_table.md").write_text(text + "\n")
    return text


def shown(cell: Cell) -> str:
    if "auc" not in cell:
        return cell["error"]
    return f"{cell['auc']:.4f}, {cell['processor']:,.1f} s, {cell['bytes'] / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with flights_3m.npz; without it, rows that are drawn")
    parser.add_argument("--rows", default="100000,1000000", help="training rows, separated by commas")
    parser.add_argument("--machines", default=",".join(MACHINES), help="LightGBM, and dkl with a number of features")
    parser.add_argument("--quick", action="store_true", help="few rows, to see that all run")
    parser.add_argument("--output", type=Path, default=Path("flights_as_a_table"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure))))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    sizes = [QUICK_ROWS] if options.quick else [int(size) for size in options.rows.split(",")]
    machines = tuple(options.machines.split(","))
    Console().print(run(options.output, options.data, sizes, machines), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
