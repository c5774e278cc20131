"""Tables as they come: dkl beside boosted trees, an explainable boosting machine, an SVM and a linear model.

    python examples/benchmarks/tables/suite.py --data FOLDER
    python examples/benchmarks/tables/suite.py --data FOLDER --sets adult,ames --arms lightgbm,dkl --seeds 2

FOLDER has raw tables as Parquet and a sets.json, whose form table_sets.py says. Every arm is fitted to the same splits:
one a seed, a single one where rows have a time. Each fit is a line of --out as soon as it ends; a rerun goes on where
the last one was broken off, and --retry fits what was refused or failed once more. --page has a row a set (of the sets
and arms that were asked for): scores, their differences to LightGBM on the same splits, standard errors, processor
seconds and memory; then ranks and signs over the sets.

`pip install 'dkl[benchmark]'` installs all that it compares with; what is not installed the default arms leave out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.extend(str(folder) for folder in (HERE, HERE.parent, HERE.parents[1] / "papers"))

from table_arms import ARMS, REFERENCE  # noqa: E402
from table_fits import Job, Line, Worker  # noqa: E402
from table_page import page  # noqa: E402
from table_sets import SCORES, TableSet, read_sets  # noqa: E402

# ours, whose processor seconds are the budget of what is tuned, and what it may take where it has no fit
OURS = "dkl"
ALLOWED_SECONDS, ALLOWED_TIMES = 5.0, 5.0


class Results:
    """Lines of a file, one JSON object a fit; of several for one fit the last one counts.

    Parameters
    ----------
    path : Path
        Made with the first line. A last line that was only half written is taken away.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, {}
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, newline, half = text.rpartition("\n")
        if half:
            path.write_text(whole + newline, encoding="utf-8")
        for number, told in enumerate(whole.splitlines(), 1):
            try:
                line = json.loads(told)
                self.lines[line["set"], line["seed"], line["arm"]] = line
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(f"line {number} of {path} is not one of this suite's ({error!r})") from None

    def add(self, line: Line) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.lines[line["set"], line["seed"], line["arm"]] = line

    def check_rows(self, tables: Sequence[TableSet]) -> None:
        """Refuse to mix fits to other rows into these."""
        digests = {table.name: table.digest for table in tables}
        for (name, _, _), line in self.lines.items():
            if name in digests and line["digest"] != digests[name]:
                raise ValueError(f"{self.path} has fits to other rows of set {name!r}: give another file as --out")


@dataclass(frozen=True)
class Suite:
    """What is fitted to what.

    Parameters
    ----------
    tables : tuple of TableSet
    arms : tuple of str
    n_seeds : int
        Splits of a set whose rows have no time.
    timeout : float
        Seconds of one fit on the clock.
    retry : bool
        Whether fits that were refused or failed are tried again.
    """

    tables: tuple[TableSet, ...]
    arms: tuple[str, ...]
    n_seeds: int = 5
    timeout: float = 3_600.0
    retry: bool = False

    def missing(self, arm: str, results: Results) -> Iterator[Job]:
        """The fits of this arm that have no line, or one that is tried again."""
        for table in self.tables:
            for seed in table.seeds(self.n_seeds):
                line = results.lines.get((table.name, seed, arm))
                if line is None or (self.retry and line["status"] in ("refused", "failed")):
                    yield Job(table, seed, arm, budget(table.name, seed, results) if ARMS[arm].has_budget else 0.0)

    def run(self, results: Results) -> None:
        """Fit what is missing, arm by arm."""
        results.check_rows(self.tables)
        for arm in (name for name in ARMS if name in self.arms):
            with Worker(arm, self.timeout) as worker:
                for job in self.missing(arm, results):
                    line = worker.measure(job)
                    results.add(line)
                    print(f"{arm}, {job.table.name}, seed {job.seed}: {told(line)}", flush=True)


def budget(name: str, seed: int, results: Results) -> float:
    """The processor seconds of ours on this split; where it has no fit those that it may take beside LightGBM's."""
    ours, reference = (results.lines.get((name, seed, arm), {}) for arm in (OURS, REFERENCE))
    return ours.get("seconds", ALLOWED_SECONDS + ALLOWED_TIMES * reference.get("seconds", 0.0))


def told(line: Line) -> str:
    """A line in words."""
    if line["status"] != "ok":
        return f"{line['status']}, {line['message']}"
    figures = ", ".join(f"{SCORES[name].name} {figure:.4f}" for name, figure in line["figures"].items())
    return f"{figures}; {line['seconds']:.2f} s, {line['megabytes']:.0f} MB"


def chosen(parser: argparse.ArgumentParser, option: str, value: str | None, known: Sequence[str]) -> list[str]:
    """The names of an option, in the order of those that there are."""
    names = known if value is None else value.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option} has {', '.join(map(repr, unknown))}; there are {', '.join(known)}")
    return [name for name in known if name in names]


def chosen_arms(parser: argparse.ArgumentParser, value: str | None) -> list[str]:
    """The arms that were asked for, or all that are installed."""
    names = chosen(parser, "--arms", value, list(ARMS))
    absent = [name for name in names if importlib.util.find_spec(ARMS[name].module) is None]
    if absent and value is not None:
        packages = sorted({ARMS[name].package for name in absent})
        parser.error(f"--arms has {', '.join(absent)}, for which this needs: pip install {' '.join(packages)}")
    for name in absent:
        print(f"{name} is left out: pip install {ARMS[name].package}")
    return [name for name in names if name not in absent]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of Parquet files with a sets.json")
    parser.add_argument("--sets", help="names, separated by commas; all of them if not given")
    parser.add_argument("--arms", help=f"names, separated by commas: {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, default=5, help="splits of a set whose rows have no time")
    parser.add_argument("--score", choices=SCORES, help="what judges the sets that have it, in place of their own")
    parser.add_argument("--timeout", type=float, default=3_600.0, help="seconds of one fit")
    parser.add_argument("--retry", action="store_true", help="try again what was refused or failed")
    parser.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parser.add_argument("--page", type=Path, default=Path("results.md"))
    options = parser.parse_args(arguments)
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    try:
        known, results = read_sets(options.data), Results(options.out)
        tables = tuple(known[name] for name in chosen(parser, "--sets", options.sets, list(known)))
        results.check_rows(tables)
    except ValueError as error:
        parser.error(str(error))
    arms = tuple(chosen_arms(parser, options.arms))
    try:
        Suite(tables, arms, options.seeds, options.timeout, options.retry).run(results)
    finally:
        # of a run that is broken off, too, what it found
        options.page.write_text(page(results.lines, tables, arms, options.seeds, options.score), encoding="utf-8")
        print(f"{options.page} has what is known so far")


if __name__ == "__main__":
    main()
