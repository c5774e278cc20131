"""What people would take instead, on the same rows: LightGBM, an exact RBF-SVM and xRFM beside dkl.

    python examples/benchmarks/against_others.py --data DIR              # adult, mnist49, auto_truck, census
    python examples/benchmarks/against_others.py --sets breast --quick   # scikit-learn's breast cancer, no files

Each fit runs in a process of its own, on one thread. The table says the share of test rows that are wrong, the
processor seconds of the whole fit (choosing its parameters is a part of it), and the most memory that the fit took
above rows and imports. All get the same rows (20,000 test rows at most), columns divided by their largest value:

- LightGBM: its defaults, up to 2,000 trees; it stops when 50 more gain nothing on a tenth of the rows, held out;
- RBF-SVM: scikit-learn's SVC, C of 1 or 10 by three folds (of 10,000 rows at most), then all training rows;
- xRFM: its defaults, judged on a tenth of the rows, held out; leaves of 5,000 rows at most, since it solves a system
  of the rows of a leaf;
- dkl: Newton steps and a penalty chosen on held-out rows, on 1,000 random features and on 500 that are searched for.

Where the targets are numbers, their regressors take the same steps. A run that was broken off goes on where it was
(`--output`). `pip install 'dkl[benchmark]'` installs all of them; the table says what is not installed.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / "papers"))

import dask
import numpy as np
from cells import Cell, Cells, circumstances, markdown
from rich.console import Console
from scipy import sparse
from sets import Rows, rows_of
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.preprocessing import MaxAbsScaler

from dkl.bench.memory_job import peak_bytes

SETS = ("adult", "mnist49", "auto_truck", "census")
SVM_COSTS, SVM_JUDGED = (1.0, 10.0), 10_000
XRFM_LEAF = 5_000
MOST_TESTED = 20_000
HELD_OUT = 0.1


@dataclass(frozen=True)
class Fitted:
    """What predicts, and what ranks rows of two classes where the machine can."""

    predict: Callable[[Any], np.ndarray]
    rank: Callable[[Any], np.ndarray] | None = None


def are_numbers(y: np.ndarray) -> bool:
    """Whether targets are numbers to be found, not labels."""
    return np.issubdtype(y.dtype, np.floating)


def parts_of(X: Any, y: np.ndarray, **sizes: Any) -> list[Any]:
    """Two parts of rows, by class where there are classes: X, X of the other, y, y of the other."""
    return train_test_split(X, y, random_state=0, stratify=None if are_numbers(y) else y, **sizes)


def lightgbm(rows: Rows, quick: bool) -> Fitted:
    from lightgbm import LGBMClassifier, LGBMRegressor, early_stopping

    X, X_held, y, y_held = parts_of(rows.X, rows.y, test_size=HELD_OUT)
    kind = LGBMRegressor if are_numbers(rows.y) else LGBMClassifier
    model = kind(n_estimators=50 if quick else 2_000, n_jobs=1, random_state=0, verbose=-1)
    stop = early_stopping(50, verbose=False)
    model.fit(X, y, eval_X=X_held, eval_y=y_held, callbacks=[stop])
    return Fitted(model.predict, None if are_numbers(rows.y) else partial(model.predict, raw_score=True))


def rbf_svm(rows: Rows, quick: bool) -> Fitted:
    from sklearn.svm import SVC, SVR

    machine = (SVR if are_numbers(rows.y) else SVC)(cache_size=500)
    search = GridSearchCV(machine, {"C": SVM_COSTS}, cv=3, refit=False)
    search.fit(*(part[:SVM_JUDGED] for part in (rows.X, rows.y)))
    model = machine.set_params(**search.best_params_).fit(rows.X, rows.y)
    return Fitted(model.predict, getattr(model, "decision_function", None))


def xrfm(rows: Rows, quick: bool) -> Fitted:
    import torch
    from xrfm import xRFM

    torch.set_num_threads(1)
    X, X_held, y, y_held = parts_of(rows.X, rows.y, test_size=HELD_OUT)
    tensors = [torch.tensor(dense(part), dtype=torch.float32) for part in (X, X_held)]
    labels = [torch.tensor(part, dtype=torch.long) for part in (y, y_held)]
    model = xRFM(max_leaf_size=XRFM_LEAF, tuning_metric="accuracy", device="cpu", random_state=0, verbose=False)
    model.fit(tensors[0], labels[0], tensors[1], labels[1])

    def predict(X_new: Any) -> np.ndarray:
        pieces = np.array_split(np.arange(X_new.shape[0]), 1 + X_new.shape[0] // XRFM_LEAF)
        parts = [model.predict(torch.tensor(dense(X_new[piece]), dtype=torch.float32)) for piece in pieces]
        return np.concatenate([np.asarray(part).ravel() for part in parts])

    return Fitted(predict)


def dkl_machine(rows: Rows, quick: bool, learner: str, n_features: int) -> Fitted:
    import dkl
    from dkl.registry import learner_entry

    features = learner_entry(learner).learner_class(
        n_features=min(n_features, 100) if quick else n_features, random_state=0
    )
    kind, loss = (
        (dkl.KernelRegressor, "squared_error") if are_numbers(rows.y) else (dkl.KernelClassifier, "squared_hinge")
    )
    model = kind(features, loss=loss, solver="newton", alpha="auto", random_state=0).fit(rows.X, rows.y)
    return Fitted(model.predict, getattr(model, "decision_function", None))


MACHINES: dict[str, Callable[[Rows, bool], Fitted]] = {
    "LightGBM": lightgbm,
    "RBF-SVM": rbf_svm,
    "xRFM": xrfm,
    "dkl random 1000": partial(dkl_machine, learner="random", n_features=1_000),
    "dkl margin 500": partial(dkl_machine, learner="margin", n_features=500),
}
NEEDED = {"LightGBM": "lightgbm", "xRFM": "xrfm"}


def dense(X: Any) -> np.ndarray:
    return X.toarray() if sparse.issparse(X) else np.asarray(X)


def rows_for(name: str, data: Path | None, most: int | None, tile: bool = False) -> Rows:
    """Scaled rows with labels 0, 1, ... or numbers of deviation 1; a quarter of a set without test rows becomes them.

    With tile, rows that are asked for beyond those of the set are its rows again.
    """
    rows = rows_of(name, data)
    if not rows.has_test:
        X, X_test, y, y_test = parts_of(rows.X, rows.y, test_size=0.25)
        rows = Rows(X, y, X_test, y_test)
    (X, y), (X_test, y_test) = drawn(rows.X, rows.y, most), drawn(rows.X_test, rows.y_test, MOST_TESTED)
    if tile and most and most > len(y):
        again = np.arange(most) % len(y)
        X, y = X[again], y[again]
    scaler = MaxAbsScaler().fit(X)
    if are_numbers(y):
        y, y_test = y / y.std(), y_test / y.std()
    else:
        labels, y = np.unique(y, return_inverse=True)
        y_test = np.searchsorted(labels, y_test)
    return Rows(scaler.transform(X), y, scaler.transform(X_test), y_test)


def drawn(X: Any, y: np.ndarray, most: int | None) -> tuple[Any, np.ndarray]:
    """So many rows at most, drawn by class."""
    if most is None or len(y) <= most:
        return X, y
    X, _, y, _ = parts_of(X, y, train_size=most)
    return X, y


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Parameters
    ----------
    data : Path or None
        The folder of the sets' files.
    rows : int or None
        Training rows at most, drawn by class.
    timeout : float
        Seconds of one fit on the clock.
    quick : bool
        Small machines, to see that all of them run.
    machines : tuple of str
    tile : bool
        Rows beyond those of the set are its rows again.
    """

    data: Path | None
    rows: int | None
    timeout: float
    quick: bool
    machines: tuple[str, ...] = tuple(MACHINES)
    tile: bool = False

    def measure(self, name: str, machine: str) -> Cell:
        """One fit in a process of its own, on one thread."""
        given = {"name": name, "machine": machine, "rows": self.rows, "quick": self.quick, "tile": self.tile}
        return apart(__file__, given, self.timeout, *(["--data", str(self.data)] if self.data else []))


def fill(cells: Cells, wanted: dict[str, tuple[Plan, str, str]]) -> dict[str, Cell]:
    """The cells of (plan, set, machine) by name; of a machine that is not installed what to do, which is not kept."""
    modules = {key: NEEDED.get(machine, "sklearn") for key, (_, _, machine) in wanted.items()}
    absent = [key for key, module in modules.items() if importlib.util.find_spec(module) is None]
    present = {key: partial(plan.measure, *what) for key, (plan, *what) in wanted.items() if key not in absent}
    found = cells.fill(present) | {key: {"error": f"not run: pip install {modules[key]}"} for key in absent}
    return {key: found[key] for key in wanted}


def apart(script: str, given: dict[str, Any], timeout: float, *options: str, one_thread: bool = True) -> Cell:
    """What `script --measure GIVEN` prints last, from a process of its own, on one thread or all cores."""
    libraries = ("OMP", "OPENBLAS", "MKL", "NUMBA") if one_thread else ()
    threads = {f"{library}_NUM_THREADS": "1" for library in libraries}
    command = [sys.executable, script, "--measure", json.dumps(given), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env={**os.environ, **threads})
    except subprocess.TimeoutExpired:
        return {"error": f"not within {timeout:,.0f} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["failed"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def measured(name: str, machine: str, data: Path | None, rows: int | None, quick: bool, tile: bool = False) -> Cell:
    """What one fit takes, in this process."""
    dask.config.set(scheduler="synchronous")
    found = rows_for(name, data, rows, tile)
    # imports and compiled code are there before the clock starts
    small = tiny(are_numbers(found.y))
    MACHINES[machine](small, True).predict(small.X_test)
    held, clock, processor = forget_peak(), time.perf_counter(), time.process_time()
    model = MACHINES[machine](found, quick)
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    taken = peak_bytes() - held
    sizes = {"n_rows": len(found.y), "n_columns": found.X.shape[1], "n_test": len(found.y_test)}
    noted = {**sizes, **circumstances()}
    return {"processor": processor, "clock": clock, "bytes": taken, **noted, **judged(model, found)}


def judged(model: Fitted, rows: Rows) -> Cell:
    """Percent of test rows that are wrong and the area under the curve, or the errors of numbers in deviations."""
    predicted = np.asarray(model.predict(rows.X_test))
    if are_numbers(rows.y):
        error = predicted - rows.y_test
        return {"root_mean_square": float(np.sqrt(np.mean(error**2))), "mean_absolute": float(np.mean(np.abs(error)))}
    ranked = len(np.unique(rows.y)) == 2 and model.rank is not None
    area = {"auc": roc_auc_score(rows.y_test, model.rank(rows.X_test))} if ranked else {}
    return {"wrong": 100 * float(np.mean(predicted != rows.y_test)), **area}


def forget_peak() -> int:
    """What the process holds now; its peak, where Linux can forget it, is counted from here on."""
    if Path("/proc/self/clear_refs").exists():
        # what reading the rows has freed would be taken again unseen
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def tiny(numbers: bool = False) -> Rows:
    generator = np.random.default_rng(0)
    X = generator.random((200, 4))
    y = X[:, 0] if numbers else (X[:, 0] > 0.5).astype(int)
    return Rows(X[:150], y[:150], X[150:], y[150:])


def table(cells: dict[str, dict[str, Cell]]) -> str:
    """One row a set, one column a machine; the least error of each set in bold."""
    machines = list(next(iter(cells.values())))
    lines = []
    for name, found in cells.items():
        best = min((cell["wrong"] for cell in found.values() if "wrong" in cell), default=0.0)
        size = next((f"{c['n_rows']:,} x {c['n_columns']:,}" for c in found.values() if "wrong" in c), "")
        lines.append([f"{name}, {size}", *(shown(found[machine], best) for machine in machines)])
    return markdown(["rows", *machines], lines)


def shown(cell: Cell, best: float) -> str:
    if "wrong" not in cell:
        return cell["error"]
    wrong = f"{cell['wrong']:.2f}"
    wrong = f"**{wrong}**" if cell["wrong"] == best else wrong
    return f"{wrong} %, {cell['processor']:,.1f} s, {cell['bytes'] / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with adult.npz, mnist.npz, cifar_auto_truck.npz, ...")
    parser.add_argument("--sets", default=",".join(SETS), help="names, separated by commas")
    parser.add_argument("--machines", default=",".join(MACHINES), help="names, separated by commas")
    parser.add_argument("--rows", type=int, default=10_000, help="training rows at most, 0 for all")
    parser.add_argument("--timeout", type=float, default=3_600.0, help="seconds that one fit may take")
    parser.add_argument("--quick", action="store_true", help="small machines, to see that all of them run")
    parser.add_argument("--output", type=Path, default=Path("benchmarks"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure), data=options.data)))
        return
    machines = tuple(options.machines.split(","))
    if unknown := set(machines) - set(MACHINES):
        parser.error(f"--machines has {sorted(unknown)}; there are {', '.join(MACHINES)}")
    plan = Plan(options.data, options.rows or None, options.timeout, options.quick, machines)
    Console().print(run(plan, options.sets.split(","), options.output), markup=False, soft_wrap=True)


def run(plan: Plan, names: list[str], output: Path) -> str:
    """The table of these sets; written to the folder too."""
    cells = Cells(output / f"cells-{plan.rows or 'all'}{'-quick' if plan.quick else ''}")
    found = fill(cells, {f"{name} {machine}": (plan, name, machine) for name in names for machine in plan.machines})
    text = table({name: {machine: found[f"{name} {machine}"] for machine in plan.machines} for name in names})
    (output / "against_others.md").write_text(text + "\n")
    return text


if __name__ == "__main__":
    main()
