"""Flights from a store: features searched for on 2.4 million rows, memory as promised, and LightGBM on the same rows.

    python examples/benchmarks/from_a_store.py --data DIR       # flights_3m.npz
    python examples/benchmarks/from_a_store.py --quick          # a windmill in the plane, no files

The rows become a store once, four fifths of them to learn on (shuffled). `MarginFeatures` with its defaults reads them
block by block; its working model is judged on the others. LightGBM, 100 trees, holds the same rows in memory. Each fit
runs in a process of its own on one thread; memory is what it took above imports, and for LightGBM above the rows.
A run that was broken off goes on where it was (`--output`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "papers"))

import dask
import numpy as np
from against_others import apart, forget_peak, tiny
from cells import Cell, Cells, markdown
from dask.utils import format_bytes
from rich.console import Console
from sets import rows_of
from sklearn.metrics import roc_auc_score

import dkl
from dkl.bench.memory_job import load_everything
from dkl.passes.memory import peak_bytes

MACHINES = ("dkl 300", "dkl 1000", "LightGBM")
QUICK_ROWS = 2_000


def stored(folder: Path, data: Path | None, quick: bool) -> Path:
    """The store of all rows, written if it is not there."""
    name = "flights" if data else "windmill"
    store = folder / f"{name}{'-quick' if quick else ''}.zarr"
    if not store.exists():
        rows = rows_of(name, data)
        most = QUICK_ROWS if quick else len(rows.y)
        dkl.create_dataset(str(store), rows.X[:most], rows.y[:most], shuffle=True).split({"train": 0.8, "test": 0.2})
    return store


def measured(store: str, machine: str) -> Cell:
    """What a fit takes and how it ranks rows that it has not seen, in this process."""
    dask.config.set(scheduler="synchronous")
    load_everything()
    dataset = dkl.open_dataset(store)
    name, *size = machine.split()
    fit = partial(searched, n_features=int(size[0])) if name == "dkl" else boosted
    fitted, cell = fit(dataset["train"])
    y_test = dataset["test"].y.compute()
    scores = np.asarray(fitted(dataset["test"])).ravel()
    return {**cell, "n_rows": dataset["train"].n_rows, "auc": roc_auc_score(y_test, scores)}


def searched(train: Any, n_features: int) -> tuple[Any, Cell]:
    few = tiny()
    dkl.MarginFeatures(n_features=20, random_state=0).fit(few.X, few.y)  # code is compiled before the clock starts
    learner = dkl.MarginFeatures(n_features=n_features, random_state=0, progress=False)
    promised = dkl.plan(learner, train).peak_bytes
    cell = clocked(lambda: learner.fit(train))
    return learner.machine_.decision_function, {**cell, "promised": promised}


def boosted(train: Any) -> tuple[Any, Cell]:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(n_estimators=100, n_jobs=1, random_state=0, verbose=-1)
    X, y = train.X.compute(), train.y.compute()
    cell = clocked(lambda: model.fit(X, y))
    return lambda test: model.predict(test.X.compute(), raw_score=True), cell


def clocked(fit: Any) -> Cell:
    held, clock, processor = forget_peak(), time.perf_counter(), time.process_time()
    fit()
    taken = {"processor": time.process_time() - processor, "clock": time.perf_counter() - clock}
    return {**taken, "bytes": peak_bytes() - held}


def run(output: Path, data: Path | None, quick: bool, machines: tuple[str, ...]) -> str:
    """The table; written to the folder too."""
    store = stored(output, data, quick)
    wanted = {
        f"{store.stem} {machine}": partial(apart, __file__, {"store": str(store), "machine": machine}, 36_000.0)
        for machine in machines
    }
    found = Cells(output / "cells").fill(wanted).values()
    heads = ["machine", "AUC", "processor seconds", "memory", "promised"]
    text = markdown(heads, [[machine, *shown(cell)] for machine, cell in zip(machines, found, strict=True)])
    (output / "from_a_store.md").write_text(text + "\n")
    return text


def shown(cell: Cell) -> list[str]:
    if "auc" not in cell:
        return [cell["error"], "", "", ""]
    promised = format_bytes(cell["promised"]) if "promised" in cell else ""
    return [f"{cell['auc']:.4f}", f"{cell['processor']:,.1f}", format_bytes(cell["bytes"]), promised]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with flights_3m.npz; without it, rows of a windmill")
    parser.add_argument("--machines", default=",".join(MACHINES), help="LightGBM, and dkl with a number of features")
    parser.add_argument("--quick", action="store_true", help="few rows, to see that all run")
    parser.add_argument("--output", type=Path, default=Path("from_a_store"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure))))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    machines = tuple(options.machines.split(","))
    Console().print(run(options.output, options.data, options.quick, machines), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
