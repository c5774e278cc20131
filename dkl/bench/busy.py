"""The time of every path over rows beside another busy process, by itself and with one BLAS thread throughout.

Tasks that call a BLAS of several threads were seen to take thirty times as long beside one busy process.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import dask.array as da
import numpy as np
from sklearn.base import clone

from dkl.bench.passes import Measure
from dkl.data.create import create_dataset
from dkl.explain.contributions import contributions
from dkl.explain.importance import importance
from dkl.kernels.threads import one_blas_thread
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.random_features import RandomFeatures

# What is promised: no path takes more than so many times its time with one BLAS thread.
MOST_TIMES = 2.0
# Fits and explanations take long enough on few rows.
_FITTED_ROWS, _EXPLAINED_ROWS = 5_000, 50


def busy_ratios(
    *, n_rows: int = 200_000, n_columns: int = 20, n_features: int = 500, repeats: int = 9
) -> Iterator[Measure]:
    """Beside a busy process, the time of each path over its time with one BLAS thread: medians, interleaved.

    Parameters
    ----------
    n_rows, n_columns, n_features : int
    repeats : int
    """
    # A thread of BLAS that waits for another one spins; on a core that a busy process shares it waits for whole time
    # slices.
    with tempfile.TemporaryDirectory(prefix="dkl-bench-") as folder, busy_process():
        for name, call in paths_over_rows(folder, n_rows, n_columns, n_features).items():
            contexts: dict[str, Callable[[], AbstractContextManager[None]]] = {
                "as it is": nullcontext,
                "one thread": one_blas_thread,
            }
            # The first call compiles; then both take turns, so that a slow minute of the machine meets both.
            call()
            seconds: dict[str, list[float]] = {way: [] for way in contexts}
            for _ in range(repeats):
                for way, context in contexts.items():
                    start = time.perf_counter()
                    with context():
                        call()
                    seconds[way].append(time.perf_counter() - start)
            yield Measure(
                f"{name} beside a busy process, times its time with one BLAS thread",
                float(np.median(seconds["as it is"]) / np.median(seconds["one thread"])),
                MOST_TIMES,
                at_least=False,
            )


@contextmanager
def busy_process() -> Iterator[None]:
    """Another process that does nothing but use a core."""
    # A process, not a thread: the interpreter's lock would slow a thread down, and with it what is measured.
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        busy.kill()
        busy.wait()


def paths_over_rows(folder: str, n_rows: int, n_columns: int, n_features: int) -> Mapping[str, Callable[[], object]]:
    """Every way that a user's call takes over rows: fits, explanations, scores, lazy and direct predictions."""
    from dask_ml.wrappers import ParallelPostFit

    X = np.random.default_rng(0).standard_normal((n_rows, n_columns), dtype=np.float32)
    y = X[:, 0] * X[:, 1] > 0
    rows = create_dataset(f"{folder}/rows.zarr", X, y)
    # Sixteen blocks: more tasks than cores, as rows out of memory would have.
    lazy = da.from_array(X, chunks=(max(1, n_rows // 16), n_columns))
    few, labels = X[:_FITTED_ROWS], y[:_FITTED_ROWS]
    features = RandomFeatures(n_features=n_features, random_state=0)
    machine: Any = KernelClassifier(features, loss="log_loss", random_state=0)
    exact: Any = KernelClassifier(features, loss="squared_hinge", solver="newton", alpha=1e-3, random_state=0)
    model = machine.fit(few, labels)
    predictor = model.predictor()
    return {
        "fit by stochastic steps": lambda: clone(machine).set_params(epochs=2).fit(few, labels),
        "fit by Newton steps": lambda: clone(exact).fit(few, labels),
        "importance": lambda: importance(model, rows),
        "contributions": lambda: contributions(model, few[:_EXPLAINED_ROWS], few[:_EXPLAINED_ROWS]),
        "predictor": lambda: predictor.decision_function(X),
        "score": lambda: model.score(rows),
        "predict": lambda: model.predict(rows).compute(),
        "predict_proba": lambda: model.predict_proba(rows).compute(),
        "decision_function": lambda: model.decision_function(lazy).compute(),
        "transform": lambda: model.features_.transform(rows).sum().compute(),
        "ParallelPostFit": lambda: ParallelPostFit(model).predict(lazy).compute(),
        "predict in memory": lambda: model.predict(X),
        "transform in memory": lambda: model.features_.transform(X),
    }
