"""Fits on workers with small memory limits: what each worker held at most, beside what was promised before the fit.

    python deploy/small_workers.py [--rows 2e6] [--columns 30] [--limits 350MB,500MB,700MB,1GB,2GB] [--workers 1,2,4]
        [--learners margin,...] [--store FOLDER]

Each cell is a fit in a fresh `LocalCluster`. It ends with the model, every worker below its promise and below the bytes
at which Dask would act, or with a refusal before the first pass, whose limit is tried at once.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import cloudpickle
import numpy as np
from dask.utils import format_bytes
from distributed import Client, LocalCluster

import dkl
from dkl.passes.memory import peak_bytes

if TYPE_CHECKING:
    from dkl.data.dataset import Dataset

ROWS_AT_ONCE = 65_536
OPTIONS: dict[str, Any] = {"random_state": 0, "progress": False}


def _head(features: Any, **options: Any) -> Any:
    return dkl.KernelClassifier(features, **{"solver": "newton", **options}, **OPTIONS)


LEARNERS: dict[str, Callable[[], Any]] = {
    "aligned": lambda: _head(dkl.AlignedFeatures(n_candidates=2_000, n_features=200)),
    "peaks": lambda: _head(dkl.PeakFeatures(n_features=100)),
    "posterior": lambda: _head(dkl.PosteriorFeatures(n_candidates=2_000, n_features=200)),
    "landmarks": lambda: _head(dkl.LandmarkFeatures(n_landmarks=20, n_candidates=200)),
    "margin": lambda: _head(dkl.MarginFeatures(n_features=100)),
    "game": lambda: _head(dkl.MarginFeatures(n_features=50, solver="game")),
    "tuned": lambda: dkl.TunedClassifier(n_features=200, **OPTIONS),
    "stochastic": lambda: _head(dkl.AlignedFeatures(n_candidates=2_000, n_features=200), solver="sgd", epochs=2),
    "without settings": lambda: dkl.KernelClassifier(**OPTIONS),
}


@dataclass(frozen=True)
class Cell:
    """One fit.

    Parameters
    ----------
    learner, limit : str
    n_workers : int
    held, added, line : int
        Bytes that a worker held before the fit, that the plan promised to add at most, and at which Dask would act.
    loaded, peak : int
        The most that any worker held until the fit, while it loaded dkl, and until the end of the fit.
    seconds : float
    restarts : int
        Workers that are other processes after the fit than before it.
    acts : int
        Log records of Dask that say that a worker was paused, or its memory high.
    compiled : tuple of str
        Kernels that a worker compiled, since it found them in no cache: each takes memory that a plan may not expect.
    refused : str
        The error, where nothing was fitted.
    """

    learner: str
    n_workers: int
    limit: str
    held: int = 0
    added: int = 0
    line: int = 0
    loaded: int = 0
    peak: int = 0
    seconds: float = 0.0
    restarts: int = 0
    acts: int = 0
    compiled: tuple[str, ...] = ()
    refused: str = ""

    @property
    def enough(self) -> str:
        """The limit that a refusal names."""
        found = re.search(r"a limit of '([^']+)' for each worker", self.refused)
        return found.group(1) if found else ""

    @property
    def faults(self) -> list[str]:
        """What was promised and not kept."""
        broken = {
            "a peak above the promise": self.peak > self.held + self.added,
            "a peak above the line": self.peak > self.line,
            "a worker that is another process": bool(self.restarts),
            "a worker that Dask acted on": bool(self.acts),
            "a refusal that names no limit": not self.enough,
        }
        asked = list(broken)[:-1] if not self.refused else list(broken)[-1:]
        return [name for name in asked if broken[name]]


def write_rows(store: str | Path, n_rows: int, n_columns: int, *, rows_a_block: int | None = None) -> Dataset:
    """Rows whose two classes follow a sum of 40 cosines; written block by block."""
    # Workers that this script starts load it as their main module: what writes is for the driver alone.
    from dkl.data.schema import Schema
    from dkl.data.store.writer import DatasetWriter

    generator = np.random.default_rng(0)
    W, b = generator.normal(size=(40, n_columns)) * 1.5 / np.sqrt(n_columns), generator.uniform(0.0, 2 * np.pi, 40)
    schema = Schema(n_columns=n_columns, dtype=np.dtype(np.float32), task="classification", classes=np.arange(2))
    size = {"n_rows": n_rows} if rows_a_block is None else {"rows_a_block": rows_a_block}
    with DatasetWriter(store, schema, **size) as writer:
        for start in range(0, n_rows, ROWS_AT_ONCE):
            X = generator.normal(size=(min(ROWS_AT_ONCE, n_rows - start), n_columns)).astype(np.float32)
            scores = np.cos(X @ W.T + b).sum(axis=1)
            y = (generator.random(len(X)) < 1.0 / (1.0 + np.exp(-scores))).astype(int)
            writer.write(X, y)
    return dkl.open_dataset(store)


def run_cell(dataset: Dataset, learner: str, n_workers: int, limit: str) -> Cell:
    """Fit on fresh workers of such a limit, and measure them."""
    with (
        LocalCluster(n_workers=n_workers, threads_per_worker=1, memory_limit=limit, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.wait_for_workers(n_workers, timeout=60)
        # workers write their messages to an error output of their own, so that these are counted there
        client.run(_listen)
        before, estimator, started = client.run(os.getpid), LEARNERS[learner](), time.perf_counter()
        try:
            planned = dkl.plan(estimator, dataset)
            loaded = client.run(peak_bytes)
            estimator.fit(dataset)
        except MemoryError as error:
            return Cell(learner, n_workers, limit, seconds=time.perf_counter() - started, refused=str(error))
        seconds, room = time.perf_counter() - started, planned.room
        peaks, after, acts = client.run(peak_bytes), client.run(os.getpid), client.run(_heard)
        compiled = {name for names in client.run(_compiled).values() for name in names}
    if room is None:
        raise RuntimeError(f"the plan of {learner!r} has no room")
    return Cell(
        learner,
        n_workers,
        limit,
        held=room.held,
        added=max(kind.memory.total for kind in planned.passes),
        line=room.lowest.at,
        loaded=max(loaded.values()),
        peak=max(peaks.values()),
        seconds=seconds,
        restarts=len(set(after.values()) - set(before.values())),
        acts=sum(acts.values()),
        compiled=tuple(sorted(compiled)),
    )


# Workers get these functions by their text: to load this file they would load all that a driver does.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def _listen() -> None:
    """In a worker: keep what Dask says of its memory from now on."""

    class Kept(logging.Handler):
        said: ClassVar[list[str]] = []

        def emit(self, record: logging.LogRecord) -> None:
            self.said.append(record.getMessage())

    logging.getLogger("distributed.worker.memory").addHandler(Kept())


def _heard() -> int:
    """How often that was that a worker was paused, or its memory high."""
    handlers = logging.getLogger("distributed.worker.memory").handlers
    said = [text for handler in handlers for text in getattr(handler, "said", ())]
    return sum(any(word in text for word in ("Pausing", "Unmanaged memory", "memory budget")) for text in said)


def _compiled() -> list[str]:
    """The kernels that this process has compiled."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("dkl.")]
    values = [value for module in modules for value in vars(module).values() if hasattr(value, "nopython_signatures")]
    # what the driver has compiled is missing first, and read from the cache then
    return [value.__name__ for value in values if value.stats.cache_misses.keys() - value.stats.cache_hits.keys()]


def cells(dataset: Dataset, learners: Sequence[str], workers: Sequence[int], limits: Sequence[str]) -> Iterator[Cell]:
    """Every cell of the table, one by one; a refusal is followed by a fit with the limit that it names."""
    for learner in learners:
        for n_workers in workers:
            for limit in limits:
                cell = run_cell(dataset, learner, n_workers, limit)
                yield cell
                if cell.enough:
                    yield run_cell(dataset, learner, n_workers, cell.enough)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table as Markdown, a line as soon as its cell has ended; 1 if any promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=2e6)
    parser.add_argument("--columns", type=int, default=30)
    parser.add_argument("--limits", default="350MB,500MB,700MB,1GB,2GB")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--learners", default=",".join(LEARNERS))
    parser.add_argument("--store", default="")
    options = parser.parse_args(arguments)
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        store = options.store or f"{folder}/rows.zarr"
        exists = Path(store).exists()
        dataset = dkl.open_dataset(store) if exists else write_rows(store, int(options.rows), options.columns)
        print("| learner | workers | limit | held | promised | seen | Dask acts at | s | |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)
        asked = options.learners.split(","), list(map(int, options.workers.split(","))), options.limits.split(",")
        for cell in cells(dataset, *asked):
            if cell.refused:
                figures, note = ["", "", "", ""], f"refused: enough is {cell.enough or 'unknown'}"
            else:
                numbers = cell.held, cell.held + cell.added, cell.peak, cell.line
                figures, note = [format_bytes(number) for number in numbers], ", ".join(cell.faults)
            broken += bool(cell.faults)
            row = [cell.learner, str(cell.n_workers), cell.limit, *figures, f"{cell.seconds:.0f}", note]
            print("| " + " | ".join(row) + " |", flush=True)
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
