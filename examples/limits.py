"""The limits: what a fit takes in memory and time, by rows and columns; promised by dkl.plan, and measured.

    python examples/limits.py                              # remakes examples/limits.md
    python examples/limits.py --rows 1e5 --numbers 1e7     # measures fits of up to so many rows and numbers

The fit: 500 random features of Gaussian numbers, then a ridge by one Newton step (their Gram matrix), from a store, in
a process of its own on one thread. `dkl.plan` promises memory and operations for any size from the shape of the rows
alone; they become seconds at the speed of a matrix product here, in processor seconds, which other work on the machine
hardly moves.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

sys.path.extend(str(Path(__file__).resolve().parent / folder) for folder in ("benchmarks", "papers"))

import dask
import dask.array as da
import numpy as np
from against_others import apart, forget_peak
from cells import Cell, Cells, circumstances, markdown, measured_when
from dask.utils import format_bytes, format_time

import dkl
from dkl.bench.memory_job import load_everything
from dkl.passes.memory import peak_bytes
from dkl.planning import product_rate

ROWS = tuple(10**power for power in range(4, 9))
COLUMNS = (10, 100, 1_000)
FEATURES, BLOCK = 500, 65_536
MANY_ROWS = 100_000
PAGE = Path(__file__).with_name("limits.md")


def machine() -> dkl.KernelRegressor:
    """The model whose fit is promised and measured."""
    features = dkl.RandomFeatures(dkl.Gaussian(sigma="median"), FEATURES, random_state=0)
    return dkl.KernelRegressor(features, solver="newton", random_state=0, progress=False)


def rows(n_rows: int, n_columns: int) -> tuple[da.Array, da.Array]:
    """Numbers that are made when they are read, and a target that bends along one column."""
    X = da.random.default_rng(0).standard_normal((n_rows, n_columns), dtype=np.float32, chunks=(BLOCK, n_columns))
    return X, da.sin(2.0 * X[:, 0])


def promised(n_rows: int, n_columns: int) -> Cell:
    """What `dkl.plan` says, without blocks that are kept where there is room; no row is made.

    The first Newton step reads, maps and sums all rows: it is the fit.
    """
    with dask.config.set({"scheduler": "synchronous", "dkl.cache-bytes": 0}):
        plan = dkl.plan(machine(), *rows(n_rows, n_columns))
    flops = sum(one.flops for one in plan.passes if one.calls == 1)
    return {"bytes": plan.peak_bytes, "flops": flops}


def measured(n_rows: int, n_columns: int) -> Cell:
    """Processor seconds and peak memory of the fit above imports, here, and what the store's plan promised."""
    dask.config.set(scheduler="synchronous")
    with tempfile.TemporaryDirectory() as folder:
        dataset = dkl.create_dataset(f"{folder}/rows.zarr", *rows(n_rows, n_columns))
        machine().fit(*(part[:200].compute() for part in rows(n_rows, n_columns)))  # code is compiled and imported
        load_everything()
        plan = dkl.plan(machine(), dataset)
        held, processor = forget_peak(), time.process_time()
        machine().fit(dataset)
        found = {"time": time.process_time() - processor, "bytes": peak_bytes() - held, "promised": plan.peak_bytes}
        return {**found, **circumstances()}


def said(cell: Cell | None, name: str, text: Callable[[Any], str]) -> str:
    """A quantity of a fit, or why there is none."""
    return "" if cell is None else cell.get("error") or text(cell[name])


def page(
    folder: Path, most: tuple[float, float], sizes: tuple[int, ...] = ROWS, columns: tuple[int, ...] = COLUMNS
) -> str:
    """The page of limits; fits of at most so many rows, and numbers in them, are run."""
    shapes = list(product(sizes, columns))
    cells = Cells(folder)
    found = cells.fill({f"{n} x {d} promised": partial(promised, n, d) for n, d in shapes})
    plans = dict(zip(shapes, found.values(), strict=True))
    run = [(n, d) for n, d in shapes if n <= most[0] and n * d <= most[1]]
    alone = {f"{n} x {d} measured": partial(apart, __file__, {"n_rows": n, "n_columns": d}, 3_600.0) for n, d in run}
    fits = dict(zip(run, cells.fill(alone).values(), strict=True))
    speed = product_rate()
    plans = {shape: {**plan, "time": plan["flops"] / speed} for shape, plan in plans.items()}

    def table(name: str, text: Callable[[Cell], str], cells: dict[tuple[int, int], Cell]) -> str:
        """One quantity by rows and columns; an empty cell where no fit was run."""
        lines = [[f"{n:,}", *(said(cells.get((n, d)), name, text) for d in columns)] for n in sizes]
        return markdown(["rows", *(f"{n_columns:,} columns" for n_columns in columns)], lines)

    return f"""# Limits

This page says what a fit takes, so that you can tell whether yours will fit into your machine. The fit is {FEATURES}
random features and a ridge regression on them, in float32.

- **To know it of your own fit**, print `dkl.plan(model, ds)` before you run it.
- **If a process takes too much memory**, give `memory_limit=`. What cannot be done within it is refused before the
  first row is read, with a limit that would do.
- **If a fit takes too long**, take fewer features or more workers: the time grows with rows x features x (columns +
  features), and is divided by the workers.
- **If you want more than 5,000 features**, take `solver="sgd"`. Newton steps hold features x features numbers in
  double precision, 200 MB at 5,000 features.
- **For the disk**, count rows x columns x 4 bytes, less what compression saves: 10^8 rows of 1,000 columns are 400 GB.

Made by: `python examples/limits.py --rows {most[0]:.0f} --numbers {most[1]:.0f}`, which runs fits of at most so
many rows and numbers in them ({measured_when(fits.values())}).

## Memory of a process

`dkl.plan` promises these bytes, above what Python and its libraries hold, for rows that are made when they are read,
without those that are kept:

{table("bytes", format_bytes, plans)}

Memory follows the columns and the features, and hardly the rows, since a process works on a few blocks of at most
65,536 rows. A process also keeps blocks that it has
read or computed for the next pass, up to a quarter of its memory and at most 512 MiB; a plan counts them where
`dask.config.set({{"dkl.cache-bytes": 0}})` does not forbid it. Predictions go
tile by tile, and what they hold does not grow with the rows either. Fits from a store took{stored(fits)}:

{table("bytes", format_bytes, fits)}

## Time

The arithmetic alone would take these times on one thread of this machine ({speed / 1e9:.0f} GFLOP/s, the speed of a
bare matrix product):

{table("time", format_time, plans)}

The fits from a store took these processor seconds:

{table("time", format_time, fits)}

{beyond(plans, fits)}What comes on top of the arithmetic are cosines, reading, a last pass that corrects the rounding
of the first one, and what every fit does once. A fit may also make further passes; `dkl.plan` says how many at most.
"""


def beyond(plans: dict[tuple[int, int], Cell], fits: dict[tuple[int, int], Cell]) -> str:
    """How much longer than their arithmetic the fits of many rows took."""
    times = [
        fit["time"] / plans[shape]["time"] for shape, fit in fits.items() if shape[0] >= MANY_ROWS and "time" in fit
    ]
    if not times:
        return ""
    longer = f"{min(times):.1f} to {max(times):.1f} times as long as their arithmetic"
    return f"Fits of {MANY_ROWS:,} rows and more took {longer}. "


def stored(fits: dict[tuple[int, int], Cell]) -> str:
    """How much of the memory that was promised for their stores fits took."""
    shares = [100 * fit["bytes"] / fit["promised"] for fit in fits.values() if "promised" in fit]
    return f" {min(shares):.0f} to {max(shares):.0f} % of the memory that the plan promised" if shares else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e7, help="the most rows of a fit that is run")
    parser.add_argument(
        "--numbers", type=float, default=1e9, help="and the most rows x columns, which are written first"
    )
    parser.add_argument("--output", type=Path, default=Path("limits"), help="where what was measured is kept")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measured(**json.loads(options.measure))))
        return
    PAGE.write_text(page(options.output, (options.rows, options.numbers)))


if __name__ == "__main__":
    main()
