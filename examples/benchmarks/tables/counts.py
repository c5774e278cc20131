"""Counts beside LightGBM's Poisson objective: the mean deviance of test rows, without settings and with ids.

``python examples/benchmarks/tables/counts.py --data FOLDER`` fits the sets of counts in a folder that `table_sets`
describes. ``--ids NAME`` says which column holds names although its values are numbers, such as persons: these become
target means. ``pip install lightgbm`` brings LightGBM.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import mean_poisson_deviance
from table_sets import Rows, read_sets

import dkl


def lightgbm(rows: Rows, seed: int) -> np.ndarray:
    """100 trees of the Poisson objective; texts as its categories."""
    from lightgbm import LGBMRegressor

    texts = [name for name in rows.X if not pd.api.types.is_numeric_dtype(rows.X[name])]
    X, X_test = (part.astype(dict.fromkeys(texts, "category")) for part in (rows.X, rows.X_test))
    model = LGBMRegressor(objective="poisson", random_state=seed, n_jobs=1, verbose=-1)
    return np.asarray(model.fit(X, rows.y).predict(X_test))


def machine(ids: list[str] | None) -> Callable[[Rows, int], np.ndarray]:
    """The machine that chooses for itself, with these columns as names."""

    def predicted(rows: Rows, seed: int) -> np.ndarray:
        model = dkl.KernelRegressor(loss="poisson", categorical=ids, random_state=seed, progress=False)
        return np.asarray(model.fit(rows.X, rows.y).predict(rows.X_test))

    return predicted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--sets", default="visits", help="names, separated by commas")
    parser.add_argument("--ids", default="zper", help="columns of names, separated by commas; empty for none")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    ids = [name for name in given.ids.split(",") if name]
    arms: dict[str, Any] = {
        "the mean": lambda rows, _: np.full(len(rows.y_test), rows.y.mean()),
        "LightGBM, Poisson": lightgbm,
        "dkl, no settings but the loss": machine(None),
    }
    if ids:
        arms[f"dkl, {', '.join(ids)} as names"] = machine(ids)
    print("| rows | model | mean deviance of test rows | processor seconds |")
    print("|---|---|---|---|")
    for table in [read_sets(given.data)[name] for name in given.sets.split(",")]:
        for name, arm in arms.items():
            found, started = [], time.process_time()
            for seed in table.seeds(given.seeds):
                rows = table.split(seed)
                found.append(mean_poisson_deviance(rows.y_test, np.maximum(arm(rows, seed), 1e-9)))
            seconds = (time.process_time() - started) / len(found)
            print(f"| {table.name} | {name} | {np.mean(found):.3f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
