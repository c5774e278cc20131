"""One measured process of `dkl.bench.peak_memory`: writes a dataset, or learns and fits, and says what it held."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import psutil

from dkl.passes.memory import peak_bytes

# The shape of the rows, how many are made and written at a time, and the size of what is learned.
N_COLUMNS = 512
ROWS_AT_ONCE = 16_384
N_CANDIDATES, N_FEATURES = 1_024, 256


def load_everything() -> int:
    """Import what ingestion, learning and fitting import, and return the bytes that this process then holds."""
    import dask_ml.wrappers  # noqa: F401
    import distributed  # noqa: F401
    import pandas  # noqa: F401
    import sklearn.linear_model  # noqa: F401

    return psutil.Process().memory_info().rss


def tiled_digits(n_rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows of 512 columns: eight images of one digit (scikit-learn's digits) side by side, with noise of their own."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    # The images of each digit by number, to draw from.
    of_label = [np.flatnonzero(labels == label) for label in range(10)]
    generator = np.random.default_rng(seed)
    for start in range(0, n_rows, ROWS_AT_ONCE):
        y = generator.integers(0, 10, min(ROWS_AT_ONCE, n_rows - start))
        X = generator.standard_normal((len(y), N_COLUMNS), dtype=np.float32)
        # Noise makes every row different, so that compression cannot make the dataset small.
        X *= 0.3
        for label, known in enumerate(of_label):
            rows = np.flatnonzero(y == label)
            chosen = generator.choice(known, (len(rows), N_COLUMNS // images.shape[1]))
            X[rows] += images[chosen].reshape(len(rows), N_COLUMNS)
        yield X, y


def write(store: str, gigabytes: float) -> dict[str, object]:
    """Write a dataset of this size, some thousand rows at a time."""
    from dkl.data.schema import Schema
    from dkl.data.store.writer import DatasetWriter

    loaded, started = load_everything(), time.perf_counter()
    n_rows = max(1, round(gigabytes * 1e9 / (4 * N_COLUMNS)))
    schema = Schema(
        n_columns=N_COLUMNS, dtype=np.dtype(np.float32), task="classification", classes=np.arange(10), shuffle_seed=0
    )
    with DatasetWriter(store, schema, n_rows=n_rows) as writer:
        for X, y in tiled_digits(n_rows, seed=0):
            writer.write(X, y)
    seconds = round(time.perf_counter() - started, 2)
    return {"rows": n_rows, "columns": N_COLUMNS, "peak": peak_bytes() - loaded, "seconds": seconds}


def fit(store: str, n_workers: int) -> dict[str, object]:
    """Learn aligned features and fit a classifier on the store, on worker processes or on threads of this one."""
    from distributed import Client, LocalCluster

    from dkl.data.dataset import open_dataset
    from dkl.features.families import Gaussian
    from dkl.machines.kernel_machines import KernelClassifier
    from dkl.methods.aligned.learner import AlignedFeatures

    with ExitStack() as stack:
        client = None
        if n_workers:
            cluster = LocalCluster(n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=None)
            client = stack.enter_context(Client(stack.enter_context(cluster)))
        # What each process holds after its imports, from which its peak is counted.
        loaded = {} if client is None else client.run(load_everything)
        own, started = load_everything(), time.perf_counter()
        options: Any = {"progress": False, "random_state": 0}
        learner = AlignedFeatures(Gaussian(), N_CANDIDATES, N_FEATURES, scaling="standard", **options)
        KernelClassifier(features=learner, epochs=1, **options).fit(open_dataset(store))
        seconds = round(time.perf_counter() - started, 2)
        peaks = {"driver": peak_bytes() - own}
        reached = {} if client is None else client.run(peak_bytes)
        for number, address in enumerate(sorted(reached)):
            peaks[f"worker {number}"] = reached[address] - loaded[address]
    return {"peaks": peaks, "seconds": seconds}


def main() -> None:
    """`write STORE GIGABYTES` or `fit STORE WORKERS`; what was measured goes to standard output as JSON."""
    job, store, *numbers = sys.argv[1:]
    measured = write(store, float(numbers[0])) if job == "write" else fit(store, int(numbers[0]))
    sys.stdout.write(json.dumps(measured) + "\n")


if __name__ == "__main__":
    main()
