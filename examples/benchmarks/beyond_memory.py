"""Rows from few to more than memory holds: seconds, area under the curve and memory, beside what others take.

    python examples/benchmarks/beyond_memory.py                                # smooth, step-like and linear made rows
    python examples/benchmarks/beyond_memory.py --data DIR --laws flights      # flights_3m.npz, six columns as a table
    python examples/benchmarks/beyond_memory.py --rows 1e7 --arms "dkl,dkl 200 waves,LightGBM 100"
    python examples/benchmarks/beyond_memory.py --quick                        # few rows, to see that all run

Made rows have 28 columns and two classes. "smooth": sums of cosines and products; "steps": products of up to three
thresholds; "lines": a weighted sum. They lie in a zarr store, written block by block. Each fit runs in a process of its
own with all cores, and nothing else runs beside; 100,000 further rows judge. Seconds are those of a fit from the store
to the model, with reading; memory is the most that the process held, with its imports. The code of dkl is compiled
before. A run that was broken off goes on where it was (`--output`).

The arms: `dkl` is `KernelClassifier()`, `dkl 1 GB` and `dkl 2 GB` the same with such a `memory_limit`; `dkl fast` has
`effort="fast"`, `dkl 200 waves` and `dkl 200 steps` are 200 features of `MarginFeatures` and `StepFeatures`, all three
with `memory_limit="1 GB"`. LightGBM has 100 trees, or 500 of up to 255 leaves; XGBoost 500 trees of depth 8, with all
rows in memory, or by its external memory from blocks.
"RBFSampler" is scikit-learn's with 500 waves at the median distance, and `SGDClassifier.partial_fit` in three epochs;
"Incremental" is dask-ml's, on the columns.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "papers"))

import numpy as np
from against_others import apart, tiny
from cells import Cell, Cells, circumstances, markdown, measured_when
from flights_as_a_table import CATEGORIES, split
from rich.console import Console
from sklearn.metrics import roc_auc_score

import dkl
from dkl.passes.memory import peak_bytes

LAWS, COLUMNS, ROWS_A_BLOCK, TESTED = ("smooth", "steps", "lines"), 28, 65_536, 100_000
SEEDED: dict[str, Any] = {"random_state": 0, "progress": False}
BOUNDED: dict[str, Any] = {**SEEDED, "memory_limit": "1 GB"}
Scores = Callable[[Any], np.ndarray]


def rows_of_block(law: str, block: int, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 28), float32, and classes 0 and 1 of a block; the law is the same in all blocks."""
    of_law, of_block = np.random.default_rng(7), np.random.default_rng([11, block])
    X = of_block.standard_normal((n_rows, COLUMNS)).astype(np.float32)
    if law == "smooth":
        score = np.cos(X[:, :8] @ of_law.standard_normal((8, 12)) * 0.7).sum(axis=1)
        score += X[:, 0] * X[:, 1] - X[:, 2] * X[:, 3]
    elif law == "steps":
        score = np.zeros(n_rows)
        for _ in range(20):
            columns = of_law.choice(COLUMNS, of_law.integers(1, 4), replace=False)
            inside = np.prod([X[:, column] > 0.5 * of_law.standard_normal() for column in columns], axis=0)
            score += of_law.standard_normal() * inside
    else:
        score = X @ of_law.standard_normal(COLUMNS) * 0.4
    center, spread = {"smooth": (0.6, 3.2), "steps": (0.0, 1.2), "lines": (0.0, 2.1)}[law]
    score = 1.2 * (score - center) / spread
    return X, (score + of_block.logistic(size=n_rows) > 0.0).astype(np.int8)


def stored(folder: Path, law: str, n_rows: int) -> Path:
    """The store of made rows, written block by block if it is not there."""
    import dask
    import dask.array as da

    store = folder / f"{law}-{n_rows}.zarr"
    if not store.exists():
        sizes = [min(ROWS_A_BLOCK, n_rows - start) for start in range(0, n_rows, ROWS_A_BLOCK)]
        blocks = [dask.delayed(rows_of_block, nout=2)(law, block, size) for block, size in enumerate(sizes)]
        X = [da.from_delayed(pair[0], (size, COLUMNS), np.float32) for pair, size in zip(blocks, sizes, strict=True)]
        y = [da.from_delayed(pair[1], (size,), np.int8) for pair, size in zip(blocks, sizes, strict=True)]
        dkl.create_dataset(store, da.concatenate(X), da.concatenate(y), classes=[0, 1])
    return store


def by_dkl(machine: dkl.KernelClassifier, rows: Any) -> Scores:
    return machine.fit(rows).decision_function


def in_memory(rows: Any) -> tuple[np.ndarray, np.ndarray]:
    return rows.X.compute(), rows.y.compute()


def blocks_of(rows: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows and classes block by block, for peers that take them so."""
    for X, y in zip(rows.X.blocks, rows.y.blocks, strict=True):
        yield X.compute(), y.compute()


def by_lightgbm(rows: Any, **options: Any) -> Scores:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(random_state=0, verbose=-1, **options).fit(*in_memory(rows))
    return partial(model.predict, raw_score=True)


TREES: dict[str, Any] = {"max_depth": 8, "eta": 0.1, "tree_method": "hist", "objective": "binary:logistic", "seed": 0}


def by_xgboost(rows: Any) -> Scores:
    import xgboost

    model = xgboost.train(TREES, xgboost.QuantileDMatrix(*in_memory(rows)), 500)
    return lambda X: model.predict(xgboost.DMatrix(X))


def by_xgboost_outside(rows: Any) -> Scores:
    import xgboost

    class Blocks(xgboost.DataIter):
        def __init__(self, folder: str) -> None:
            super().__init__(cache_prefix=f"{folder}/cache")
            self.reset()

        def next(self, input_data: Any) -> bool:
            X, y = next(self.left, (None, None))
            if X is None:
                return False
            input_data(data=X, label=y)
            return True

        def reset(self) -> None:
            self.left = blocks_of(rows)

    with tempfile.TemporaryDirectory() as folder:
        model = xgboost.train(TREES, xgboost.ExtMemQuantileDMatrix(Blocks(folder)), 500)
    return lambda X: model.predict(xgboost.DMatrix(X))


def by_sampler(rows: Any) -> Scores:
    from sklearn.kernel_approximation import RBFSampler
    from sklearn.linear_model import SGDClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    head, _ = next(blocks_of(rows))
    waves = make_pipeline(
        StandardScaler(), RBFSampler(gamma=0.5 / head.shape[1], n_components=500, random_state=0)
    ).fit(head)
    model = SGDClassifier(loss="log_loss", average=True, random_state=0)
    for _ in range(3):
        for X, y in blocks_of(rows):
            model.partial_fit(waves.transform(X), y, classes=[0, 1])
    return lambda X: model.decision_function(waves.transform(X))


def by_incremental(rows: Any) -> Scores:
    from dask_ml.wrappers import Incremental
    from sklearn.linear_model import SGDClassifier

    model = Incremental(SGDClassifier(loss="log_loss", average=True, random_state=0))
    model.fit(rows.X, rows.y, classes=[0, 1])
    return lambda X: np.asarray(model.estimator_.decision_function(X))


def of_features(features: Any) -> dkl.KernelClassifier:
    return dkl.KernelClassifier(features, solver="newton", **BOUNDED)


ARMS: dict[str, Callable[[Any], Scores]] = {
    "dkl": lambda rows: by_dkl(dkl.KernelClassifier(**SEEDED), rows),
    "dkl 1 GB": lambda rows: by_dkl(dkl.KernelClassifier(**BOUNDED), rows),
    "dkl 2 GB": lambda rows: by_dkl(dkl.KernelClassifier(memory_limit="2 GB", **SEEDED), rows),
    "dkl fast": lambda rows: by_dkl(dkl.KernelClassifier(effort="fast", **BOUNDED), rows),
    "dkl 200 waves": lambda rows: by_dkl(of_features(dkl.MarginFeatures(n_features=200, **BOUNDED)), rows),
    "dkl 200 steps": lambda rows: by_dkl(of_features(dkl.StepFeatures(n_features=200, **BOUNDED)), rows),
    "LightGBM 100": partial(by_lightgbm, n_estimators=100),
    "LightGBM 500": partial(by_lightgbm, n_estimators=500, num_leaves=255),
    "XGBoost": by_xgboost,
    "XGBoost outside": by_xgboost_outside,
    "RBFSampler": by_sampler,
    "Incremental": by_incremental,
}
# A limit of memory makes a difference where rows do not fit in it: these arms are among those that are asked for.
USUAL_ARMS = [arm for arm in ARMS if arm not in ("dkl 1 GB", "dkl 2 GB")]
# Flights are a table with categories, which these arms know by themselves.
OF_TABLES = ("dkl", "dkl fast", "LightGBM 100", "LightGBM 500")


def measured(store: str, arm: str, law: str, data: str | None, rows: int) -> Cell:
    """What a fit takes and how it ranks rows that it has not seen, in this process."""
    few = tiny()
    if arm.startswith("dkl"):
        # code is compiled before the clock starts
        dkl.KernelClassifier(effort="fast", progress=False, random_state=0).fit(few.X, few.y)
    if law == "flights":
        return _measured_flights(arm, None if data is None else Path(data), rows)
    train = dkl.open_dataset(store)
    clock, processor = time.perf_counter(), time.process_time()
    scores = ARMS[arm](train)
    taken = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor, "peak": peak_bytes()}
    X_test, y_test = rows_of_block(law, 1 << 20, min(TESTED, max(rows, 1_000)))
    return {**taken, "auc": roc_auc_score(y_test, np.asarray(scores(X_test)).ravel()), **circumstances()}


def _measured_flights(arm: str, data: Path | None, rows: int) -> Cell:
    table, late, test, y_test = split(data)
    X, y = table.iloc[:rows].astype(dict.fromkeys(CATEGORIES, "category")), late[:rows]
    test = test.astype({name: X[name].dtype for name in CATEGORIES})
    clock, processor = time.perf_counter(), time.process_time()
    if arm.startswith("dkl"):
        effort = "fast" if arm == "dkl fast" else "balanced"
        # the table is in memory: the limit is one of what stores take
        scores: Scores = dkl.KernelClassifier(effort=effort, random_state=0, progress=False).fit(X, y).decision_function
    else:
        from lightgbm import LGBMClassifier

        options = {"n_estimators": 100} if arm == "LightGBM 100" else {"n_estimators": 500, "num_leaves": 255}
        scores = partial(LGBMClassifier(random_state=0, verbose=-1, **options).fit(X, y).predict, raw_score=True)
    taken = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor, "peak": peak_bytes()}
    return {**taken, "auc": roc_auc_score(y_test, np.asarray(scores(test)).ravel()), **circumstances()}


def run(folder: Path, data: Path | None, laws: list[str], sizes: list[int], arms: list[str], timeout: float) -> str:
    """The tables, one a law; written to the folder too."""
    cells, texts = Cells(folder / "cells"), []
    for law in laws:
        known = [arm for arm in arms if law != "flights" or arm in OF_TABLES]
        wanted = {}
        for n_rows in sizes:
            store = "" if law == "flights" else str(stored(folder, law, n_rows))
            for arm in known:
                given = {
                    "store": store,
                    "arm": arm,
                    "law": law,
                    "data": None if data is None else str(data),
                    "rows": n_rows,
                }
                wanted[f"{law} {n_rows} {arm}"] = partial(apart, __file__, given, timeout, one_thread=False)
        found = cells.fill(wanted)
        lines = [[arm, *(shown(found[f"{law} {n_rows} {arm}"]) for n_rows in sizes)] for arm in known]
        heads = [law, *(f"{n_rows:,} rows" for n_rows in sizes)]
        texts.append(f"{markdown(heads, lines)}\n\n{measured_when(found.values())}")
    text = "\n\n".join(texts)
    (folder / "beyond_memory.md").write_text(text + "\n")
    return text


def shown(cell: Cell) -> str:
    if "auc" not in cell:
        return cell["error"]
    return f"{cell['auc']:.4f}, {cell['clock']:,.0f} s ({cell['processor']:,.0f}), {cell['peak'] / 1e9:.2f} GB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with flights_3m.npz, for --laws flights")
    parser.add_argument("--laws", default=",".join(LAWS), help="smooth, steps, lines, flights; separated by commas")
    parser.add_argument("--rows", default="1e5,1e6", help="numbers of rows, separated by commas")
    parser.add_argument("--arms", default=",".join(USUAL_ARMS), help="what is fitted")
    parser.add_argument("--timeout", type=float, default=7_200.0, help="seconds that a fit may take")
    parser.add_argument("--quick", action="store_true", help="few rows, to see that all run")
    parser.add_argument("--output", type=Path, default=Path("beyond_memory"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure)), default=float))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    laws, sizes = options.laws.split(","), [int(float(size)) for size in options.rows.split(",")]
    if options.quick:
        laws, sizes = ["smooth"], [2_000]
    text = run(options.output, options.data, laws, sizes, options.arms.split(","), options.timeout)
    Console().print(text, markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
