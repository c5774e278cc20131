"""Makes the page of one paper again: the runs that the page names above its tables, and one file of tables.

    python examples/papers/remake.py 004 --data DIR                # landmarks and posteriors
    python examples/papers/remake.py 003 --data DIR --sets adult   # what the scripts of a paper take is handed on
    python examples/papers/remake.py 000 --quick                   # minutes: do the scripts still work?

OUTPUT/004.md holds the tables under the commands that made them, with the days and commits on which their cells were
measured. Finished cells are kept in OUTPUT, in a folder for each run (figure_4, figure_4_2, ...), as are the
evaluations of a search that was broken off: the command measures what is missing and reads the rest. Papers are named
by the numbers of the page, README.md; --quick runs each script of the paper once.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cells import Cells, measured_when

# The runs that make a paper's page: the script, its arguments (DIR is that of the command) and its file of tables.
# Runs of one script share no cell.
PAPERS: dict[str, list[tuple[str, str, str]]] = {
    "000": [
        ("table_1.py", "--data DIR --arms RBF-RF,LKRF,game,ours --sizes 100,500,1000 --seeds 1", "table_1.md"),
        ("table_1.py", "--data DIR --arms RBF-RF,LKRF,game,ours --sizes 2000 --seeds 1", "table_1.md"),
        ("figure_1.py", "--seeds 3", "figure_1.md"),
    ],
    "001": [
        ("figure_4.py", "--data DIR --machines RBF-SVM,MKL,FKL,tuned --evaluations 60", "figure_4.md"),
        ("figure_4.py", "--data DIR --machines TRF --repeats 1", "figure_4.md"),
        (
            "figure_4.py",
            "--data DIR --machines TRF --frequencies 200 --given lam=0.01,Lam=0.01,gamma=100,length_scale=0.05",
            "figure_4.md",
        ),
    ],
    "002": [("leverage_curves.py", "--data DIR", "curves.md")],
    "003": [
        ("alignment.py", "--data DIR", "alignment.md"),
        ("alignment.py", "--data DIR --only sizes --seeds 10", "alignment.md"),
    ],
    "004": [
        ("landmarks.py", "--figures --sets breast", "table_1.md"),
        ("landmarks.py", "--data DIR --quick --sets mnist17,mnist49,mnist56,farm", "table_1.md"),
        ("landmarks.py", "--data DIR --quick --sets farm --scaling unit", "table_1.md"),
        ("posterior.py", "--sets breast", "tables.md"),
        ("posterior.py", "--data DIR --sets farm --most 100", "tables.md"),
    ],
}


def commands(
    paper: str, output: Path, data: Path | None, *, quick: bool, further: Sequence[str] = ()
) -> list[tuple[list[str], Path]]:
    """The arguments of each run, and where it leaves its tables; of options given twice the last counts."""
    made, earlier_runs = [], Counter[str]()
    for script, given, table in PAPERS[paper]:
        earlier = earlier_runs[script]
        earlier_runs[script] += 1
        if quick and earlier:
            continue
        folder = output / (script.removesuffix(".py") + (f"_{earlier + 1}" if earlier else ""))
        arguments = ["--quick"] if quick else given.replace("--data DIR", "").split()
        if data is not None and not quick and "--data DIR" in given:
            arguments = ["--data", str(data), *arguments]
        made.append(([script, *arguments, *further, "--output", str(folder)], folder / table))
    return made


def named(arguments: Sequence[str]) -> str:
    """The command as a page names it: folders of the machine that ran it are left out."""
    shown = list(arguments)
    place = shown.index("--output")
    del shown[place : place + 2]
    if "--data" in shown:
        shown[shown.index("--data") + 1] = "DIR"
    return shlex.join(["python", f"examples/papers/{shown[0]}", *shown[1:]])


def remake(
    paper: str, output: Path, data: Path | None = None, *, quick: bool = False, further: Sequence[str] = ()
) -> str:
    """Run the scripts one after the other; the page with all tables, which is written beside them.

    Raises
    ------
    subprocess.CalledProcessError
        If a script fails; what it has measured is kept.
    """
    text = [f"# The tables of {paper}", ""]
    for arguments, table in commands(paper, output, data, quick=quick, further=further):
        subprocess.run([sys.executable, str(Path(__file__).with_name(arguments[0])), *arguments[1:]], check=True)
        when = measured_when(Cells(table.parent / "cells").all())
        text += [f"Made by: `{named(arguments)}`", "", f"Measured {when}.", "", table.read_text(encoding="utf-8")]
    page = "\n".join(text)
    (output / f"{paper}.md").write_text(page, encoding="utf-8")
    return page


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=list(PAPERS))
    parser.add_argument("--data", type=Path, help="folder of .npz files; else scikit-learn's and OpenML's sets")
    parser.add_argument("--output", type=Path, default=Path("papers"), help="folder of cells, tables and pictures")
    parser.add_argument("--quick", action="store_true", help="small: whether the commands work")
    options, further = parser.parse_known_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    remake(options.paper, options.output, options.data, quick=options.quick, further=further)


if __name__ == "__main__":
    main()
