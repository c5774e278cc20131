"""A hundred million flights from a store: what a fit takes, beside what `dkl.forecast` expects it to take.

    python examples/benchmarks/at_scale.py --data DIR                       # 1e6, 1e7 and 1e8 rows; stores of 5 GB
    python examples/benchmarks/at_scale.py --data DIR --rows 1000000 --fits "plain 300"
    python examples/benchmarks/at_scale.py --data DIR --rows 1000000 --billion  # what 1e9 rows cost: a forecast
    python examples/benchmarks/at_scale.py --quick                          # a windmill in the plane, no files

DIR holds flights_3m.npz. Of its flights four fifths are drawn from with replacement, and every number of a row that is
drawn gets Gaussian noise of a twentieth of its column's deviation: a smoothed bootstrap. So there are as many rows as
wanted, all different and of a real kind, and there is no more to learn from them than from 2.4 million flights. The
other fifth, as it is, judges: will a flight be late by a quarter of an hour or more?

"plain 300" is a squared hinge on 300 random features, "searched 50" one on 50 features that `MarginFeatures` searches
for, both by Newton steps with a given penalty. Each fit runs in a process of its own. Seconds are those of the clock,
and of the processor over all threads; memory is the most that the process held above imports. A run that was broken off
goes on where it was (`--output`).

`--billion` fits nothing: `dkl.plan` times the passes on a few of the rows, and its `at` says what a billion rows take
on 1, 16 and 256 cores.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).resolve().parents[1] / "papers")]

import dask
import dask.array as da
import numpy as np
from against_others import apart, forget_peak, tiny
from cells import Cell, Cells, circumstances, markdown, measured_when
from dask.utils import format_bytes
from rich.console import Console
from sets import rows_of
from sklearn.metrics import roc_auc_score

import dkl
from dkl.bench.memory_job import load_everything
from dkl.events import Event
from dkl.passes.memory import peak_bytes

LATE = 15
NOISE = 0.05
ROWS_A_CHUNK = 65_536
MANY_ROWS, CORES = 10**9, (1, 16, 256)


def real_flights(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Twelve numbers a flight, whether it was late, and which flights are held out."""
    with np.load(path) as stored:
        minute = np.cumsum(stored["minute_diff"], dtype=np.int64)
        day = (np.datetime64(str(stored["start"]), "m") + minute.astype("timedelta64[m]")).astype("datetime64[D]")
        late = stored["delay"] >= LATE
        ends, distance = (stored["origin"], stored["destination"]), stored["distance"]
    held_out = np.random.default_rng(0).random(len(late)) < 0.2
    # The time of the day, the day of the week and of the year, as places on circles; the hour also as it is.
    turns = minute % 1_440 / 1_440, (day.astype(int) + 3) % 7 / 7, (day - day[0]).astype(int) / 365
    columns = [
        minute % 1_440 / 60,
        *(wave(2 * np.pi * turn) for turn in turns for wave in (np.cos, np.sin)),
        distance / 1_000,
    ]
    for end in ends:
        # Of an airport: the logarithm of its flights, and which share was late; held-out flights do not count.
        flights = np.bincount(end[~held_out], minlength=end.max() + 1)
        shares = (np.bincount(end[~held_out], late[~held_out], end.max() + 1) + late.mean()) / (flights + 1)
        columns += [np.log1p(flights)[end], shares[end]]
    return np.stack(columns, axis=1).astype(np.float32), late.astype(np.int8), held_out


def drawn_rows(chunk: int, X: np.ndarray, deviations: np.ndarray, rows: int) -> np.ndarray:
    """A chunk of the smoothed bootstrap."""
    generator = np.random.default_rng([1, chunk])
    drawn = X[generator.integers(len(X), size=rows)]
    return drawn + NOISE * deviations * generator.standard_normal(drawn.shape, dtype=np.float32)


def drawn_labels(chunk: int, y: np.ndarray, rows: int) -> np.ndarray:
    """The labels of `drawn_rows`."""
    return y[np.random.default_rng([1, chunk]).integers(len(y), size=rows)]


def drawn_store(folder: Path, flights: tuple[np.ndarray, np.ndarray], n_rows: int) -> Path:
    """The store of so many rows, written if it is not there; a larger one begins with the rows of a smaller."""
    store = folder / f"rows-{n_rows}.zarr"
    if not store.exists():
        X, y = flights
        sizes = [min(ROWS_A_CHUNK, n_rows - start) for start in range(0, n_rows, ROWS_A_CHUNK)]
        # The flights go into the graph once, not once a chunk.
        X_once, y_once, deviations = dask.delayed(X), dask.delayed(y), X.std(axis=0)
        draw, label = dask.delayed(drawn_rows), dask.delayed(drawn_labels)
        rows = [
            da.from_delayed(draw(chunk, X_once, deviations, size), (size, X.shape[1]), np.float32)
            for chunk, size in enumerate(sizes)
        ]
        labels = [da.from_delayed(label(chunk, y_once, size), (size,), y.dtype) for chunk, size in enumerate(sizes)]
        dkl.create_dataset(store, da.concatenate(rows), da.concatenate(labels), classes=[0, 1])
    return store


def machine(features: str, n_features: int, progress: Any = False) -> Any:
    """A squared hinge of features that are drawn ("plain") or searched for ("searched"), with a given penalty."""
    options: dict[str, Any] = {"random_state": 0, "progress": progress}
    learner = (dkl.RandomFeatures if features == "plain" else dkl.MarginFeatures)(n_features=n_features, **options)
    return dkl.KernelClassifier(learner, loss="squared_hinge", solver="newton", alpha=1e-6, **options)


def measured(folder: str, n_rows: int, fit: str) -> Cell:
    """What a fit takes in this process, what was expected, and how it ranks real flights that it has not seen."""
    load_everything()
    features, size = fit.split()
    few = tiny()
    machine(features, 20).fit(few.X, few.y)  # code is compiled before the clock starts
    rows, test = (dkl.open_dataset(Path(folder, f"{name}.zarr")) for name in (f"rows-{n_rows}", "test"))
    planned = dkl.plan(machine(features, int(size)), rows)
    decoded = passes = 0

    def watch(event: Event) -> None:
        nonlocal decoded, passes
        if event.kind == "finished" and event.name != "rounds":
            decoded, passes = decoded + event.detail.get("bytes", 0), passes + 1
            print(f"{event.name}: {event.seconds:,.0f} s", file=sys.stderr, flush=True)

    model = machine(features, int(size), progress=watch)
    held, clock, processor = forget_peak(), time.perf_counter(), time.process_time()
    model.fit(rows)
    taken = {"processor": time.process_time() - processor, "clock": time.perf_counter() - clock}
    taken |= {"bytes": peak_bytes() - held, "decoded": decoded, "passes": passes}
    scores = model.decision_function(test.X.compute())
    taken |= {"expected": planned.expected_seconds, "n_slots": planned.slots}
    return {**taken, "n_rows": n_rows, "auc": roc_auc_score(test.y.compute(), scores), **circumstances()}


def run(folder: Path, flights: tuple[np.ndarray, np.ndarray, np.ndarray], sizes: list[int], fits: list[str]) -> str:
    """The table; written to the folder too."""
    X, y, held_out = flights
    if not (folder / "test.zarr").exists():
        dkl.create_dataset(folder / "test.zarr", X[held_out], y[held_out], classes=[0, 1])
    for n_rows in sizes:
        drawn_store(folder, (X[~held_out], y[~held_out]), n_rows)
    wanted = {
        f"{fit} {n_rows}": partial(apart, __file__, {"folder": str(folder), "n_rows": n_rows, "fit": fit}, 86_400.0)
        for fit in fits
        for n_rows in sizes
    }
    found = Cells(folder / "cells").fill(wanted)
    heads = ["fit and rows", "seconds", "expected", "processor seconds", "passes", "decoded", "memory", "AUC"]
    text = markdown(heads, [[name, *shown(cell)] for name, cell in found.items()])
    (folder / "at_scale.md").write_text(text + "\n")
    return text


def of_many_rows(store: Path, fits: list[str]) -> str:
    """What fits of a billion rows are expected to take, by the number of cores."""
    lines = []
    for fit in fits:
        features, size = fit.split()
        planned = dkl.plan(machine(features, int(size)), dkl.open_dataset(store))
        for cores in CORES:
            seconds = planned.at(MANY_ROWS, cores).expected_seconds
            lines.append([fit, f"{cores}", f"{seconds / 60:,.1f} min", f"{cores * seconds / 3_600:,.2f}"])
    return markdown(["fit", "cores", "expected", "core-hours"], lines)


def shown(cell: Cell) -> list[str]:
    if "auc" not in cell:
        return [cell["error"]]
    seconds = [f"{cell[name]:,.1f}" for name in ("clock", "expected", "processor")]
    return [
        *seconds,
        str(cell["passes"]),
        *(format_bytes(cell[name]) for name in ("decoded", "bytes")),
        f"{cell['auc']:.4f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with flights_3m.npz; without it, rows of a windmill")
    parser.add_argument("--rows", type=int, nargs="*", default=[10**6, 10**7, 10**8])
    parser.add_argument("--fits", default="plain 300,searched 50")
    parser.add_argument("--billion", action="store_true", help="plan 1e9 rows by the first of --rows")
    parser.add_argument("--quick", action="store_true", help="few rows, to see that all run")
    parser.add_argument("--output", type=Path, default=Path("at_scale"))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure))))
        return
    options.output.mkdir(parents=True, exist_ok=True)
    if options.data is None or options.quick:
        drawn = rows_of("windmill", None)
        flights = (drawn.X.astype(np.float32), (drawn.y > 0).astype(np.int8), np.arange(len(drawn.y)) % 5 == 0)
    else:
        flights = real_flights(options.data / "flights_3m.npz")
    sizes = [2_000, 4_000] if options.quick else options.rows
    fits = ["plain 20"] if options.quick else options.fits.split(",")
    if options.billion:
        X, y, held_out = flights
        store = drawn_store(options.output, (X[~held_out], y[~held_out]), sizes[0])
        text = f"{of_many_rows(store, fits)}\n\n{measured_when([circumstances()])}"
        Console().print(text, markup=False, soft_wrap=True)
        return
    Console().print(run(options.output, flights, sizes, fits), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
