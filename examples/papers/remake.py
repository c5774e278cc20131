"""Makes the page of one paper again: every script of the paper, with the arguments of its page, and one file of tables.

    python examples/papers/remake.py 004 --data DIR                 # landmarks and posteriors, whole; hours
    python examples/papers/remake.py 004 --data DIR --sets breast   # what the scripts of a paper take is handed on
    python examples/papers/remake.py 000 --quick                    # minutes: does the command still work?

OUTPUT/004.md holds the tables under the commands that made them, with the days and commits on which their cells were
measured; finished cells are kept in OUTPUT, and a run that was broken off goes on. Papers are named by the numbers of
the page, README.md.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from cells import Cells, measured_when

# Each script of a paper, what makes its page (--data DIR where the script takes it) and the file that it writes.
PAPERS: dict[str, list[tuple[str, str, str]]] = {
    "000": [("table_1.py", "--seeds 5 --data", "table_1.md"), ("figure_1.py", "--seeds 3", "figure_1.md")],
    "001": [("figure_4.py", "--evaluations 105 --data", "figure_4.md")],
    "002": [("leverage_curves.py", "--most-rows 300000 --data", "curves.md")],
    "003": [("alignment.py", "--data", "alignment.md")],
    "004": [("landmarks.py", "--figures --data", "table_1_none.md"), ("posterior.py", "--data", "tables.md")],
}


def commands(
    paper: str, output: Path, data: Path | None, *, quick: bool, further: Sequence[str] = ()
) -> list[tuple[list[str], Path]]:
    """The arguments of each script, and where it leaves its tables; of options given twice the last counts."""
    made = []
    for script, given, table in PAPERS[paper]:
        folder = output / script.removesuffix(".py")
        arguments = ["--quick"] if quick else given.removesuffix("--data").split()
        if data is not None and not quick and given.endswith("--data"):
            arguments += ["--data", str(data)]
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
