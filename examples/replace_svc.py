"""An SVC or SVR replaced in one line: scikit-learn's RBF-SVM, dkl and LightGBM on more and more rows.

    python examples/replace_svc.py --data DIR                            # flights, 10,000 and 100,000 rows
    python examples/replace_svc.py --data DIR --rows 1000000,10000000 --machines "LightGBM,dkl random 1000"
    python examples/replace_svc.py --data DIR --numbers                  # the minutes of their delay: SVR
    python examples/replace_svc.py --quick                               # rows that are drawn, no files

Each fit runs in a process of its own, on one thread, as examples/benchmarks/against_others.py says (which does the
measuring): test error and area under the curve, or root mean square and mean absolute error in deviations of the
targets; seconds and memory of the fit, choosing parameters included. DIR holds flights_3m.npz: three million flights,
501 sparse columns, is one late by a quarter of an hour or more, or how late (minutes cut to -30 and 120)? A quarter of
them is kept for the test; rows asked for beyond the others are these again (10,000,000 are 2,250,000 tiled), which
tells of time and memory, not of error. What is not finished within --timeout says so; a run that was broken off goes
on where it was.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parent / folder) for folder in ("benchmarks", "papers"))

from against_others import MACHINES, Plan, fill
from cells import Cell, Cells, markdown
from rich.console import Console

COMPARED = ("RBF-SVM", "dkl random 1000", "dkl margin 500", "LightGBM")
FLIGHTS, DRAWN = {"classes": "flights", "numbers": "delays"}, {"classes": "windmill", "numbers": "friedman"}


def run(plan: Plan, sizes: list[int], output: Path, targets: str = "classes") -> str:
    """The table of these sizes, of rows with "classes" or "numbers"; written to the folder too."""
    name = (FLIGHTS if plan.data else DRAWN)[targets]
    wanted = {
        f"{name} {machine} {size}{' quick' if plan.quick else ''}": (replace(plan, rows=size, tile=True), name, machine)
        for size in sizes
        for machine in plan.machines
    }
    found = list(fill(Cells(output / "cells"), wanted).values())
    lines = [found[start : start + len(plan.machines)] for start in range(0, len(found), len(plan.machines))]
    text = markdown(
        ["rows", *plan.machines],
        [[f"{size:,}", *map(shown, cells)] for size, cells in zip(sizes, lines, strict=True)],
    )
    (output / f"{name}.md").write_text(text + "\n")
    return text


def shown(cell: Cell) -> str:
    if "processor" not in cell:
        return cell["error"]
    numbers = "root_mean_square" in cell
    errors = "{root_mean_square:.4f}, {mean_absolute:.4f}" if numbers else "{wrong:.2f} %, {auc:.4f}"
    return f"{errors.format(**cell)}, {cell['processor']:,.1f} s, {cell['bytes'] / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with flights_3m.npz; without it, rows that are drawn")
    parser.add_argument("--numbers", action="store_true", help="numbers to be found instead of classes")
    parser.add_argument("--rows", default="10000,100000", help="training rows, separated by commas")
    parser.add_argument("--machines", default=",".join(COMPARED), help="names, separated by commas")
    parser.add_argument("--timeout", type=float, default=3_600.0, help="seconds that one fit may take")
    parser.add_argument("--quick", action="store_true", help="small machines on 1,000 rows, to see that all run")
    parser.add_argument("--output", type=Path, default=Path("replace_svc"))
    options = parser.parse_args()
    machines = tuple(options.machines.split(","))
    if unknown := set(machines) - set(MACHINES):
        parser.error(f"--machines has {sorted(unknown)}; there are {', '.join(MACHINES)}")
    sizes = [1_000] if options.quick else [int(size) for size in options.rows.split(",")]
    plan = Plan(options.data, None, options.timeout, options.quick, machines)
    targets = "numbers" if options.numbers else "classes"
    Console().print(run(plan, sizes, options.output, targets), markup=False, soft_wrap=True)


if __name__ == "__main__":
    main()
