"""Makes the page of one paper again: every script of the paper, with the arguments of its page, and one file of tables.

    python examples/papers/remake.py 004 --data DIR                 # landmarks and posteriors, whole; hours
    python examples/papers/remake.py 000 --quick                    # a minute: does the command still work?

OUTPUT/004.md holds the tables under the commands that made them, with the day and the commit; finished cells are kept
in OUTPUT, and a run that was broken off goes on. Papers are named by the numbers of the page, README.md.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

from cells import circumstances

# Each script of a paper, what makes its page (--data DIR where the script takes it) and the file that it writes.
PAPERS: dict[str, list[tuple[str, str, str]]] = {
    "000": [("table_1.py", "--seeds 5 --data", "table_1.md"), ("figure_1.py", "--seeds 3", "figure_1.md")],
    "001": [("figure_4.py", "--evaluations 105 --data", "figure_4.md")],
    "002": [("leverage_curves.py", "--most-rows 300000 --data", "curves.md")],
    "003": [("alignment.py", "--data", "alignment.md")],
    "004": [("landmarks.py", "--figures --data", "table_1_none.md"), ("posterior.py", "--data", "tables.md")],
}


def commands(paper: str, output: Path, data: Path | None, *, quick: bool) -> list[tuple[list[str], Path]]:
    """The arguments of each script, and where it leaves its tables."""
    made = []
    for script, given, table in PAPERS[paper]:
        folder = output / script.removesuffix(".py")
        arguments = ["--quick"] if quick else given.removesuffix("--data").split()
        if data is not None and not quick and given.endswith("--data"):
            arguments += ["--data", str(data)]
        made.append(([script, *arguments, "--output", str(folder)], folder / table))
    return made


def remake(paper: str, output: Path, data: Path | None = None, *, quick: bool = False) -> str:
    """Run the scripts one after the other; the page with all tables, which is written beside them.

    Raises
    ------
    subprocess.CalledProcessError
        If a script fails; what it has measured is kept.
    """
    text = []
    for arguments, table in commands(paper, output, data, quick=quick):
        subprocess.run([sys.executable, str(Path(__file__).with_name(arguments[0])), *arguments[1:]], check=True)
        text += [f"Made by: `python examples/papers/{shlex.join(arguments)}`", "", table.read_text(encoding="utf-8")]
    when = circumstances()
    page = "\n".join([f"# The tables of {paper}", "", f"{when['day']}, commit {when['commit']}.", "", *text])
    (output / f"{paper}.md").write_text(page, encoding="utf-8")
    return page


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", choices=list(PAPERS))
    parser.add_argument("--data", type=Path, help="folder of .npz files; else scikit-learn's and OpenML's sets")
    parser.add_argument("--output", type=Path, default=Path("papers"), help="folder of cells, tables and pictures")
    parser.add_argument("--quick", action="store_true", help="small: whether the commands work")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    remake(options.paper, options.output, options.data, quick=options.quick)


if __name__ == "__main__":
    main()
