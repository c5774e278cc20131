"""Cells of a table: results that are measured once and kept, so that a run which was broken off goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Cell = dict[str, Any]


def cell_progress(**options: Any) -> Progress:
    """A bar with what is being measured and how many of how many are done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, **options)


class Cells:
    """Results by name, one JSON file each: a file that is there holds a whole cell, and runs side by side share them.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    def path(self, name: str) -> Path:
        return self.folder / f"{quote(name, safe=' =,.:+()')}.json"

    def __contains__(self, name: str) -> bool:
        return self.path(name).exists()

    def __getitem__(self, name: str) -> Cell:
        try:
            return json.loads(self.path(name).read_text())
        except FileNotFoundError:
            raise KeyError(name) from None

    def trials(self, name: str) -> Trials:
        """The evaluations of the search that leads to this cell; they go with its end."""
        return Trials(self.path(name).with_suffix(".trials"))

    def __call__(self, name: str, measure: Callable[[], Mapping[str, Any]]) -> Cell:
        """The cell of this name, measured if it is not there; with its seconds, the day, the commit and the load."""
        if name not in self:
            started = time.perf_counter()
            cell = {**circumstances(), "seconds": 0.0, **measure()}
            cell["seconds"] = cell["seconds"] or time.perf_counter() - started
            half = self.path(name).with_suffix(".part")
            half.write_text(json.dumps(cell, indent=1, default=float))
            half.replace(self.path(name))
            self.path(name).with_suffix(".trials").unlink(missing_ok=True)
        return self[name]

    def all(self) -> list[Cell]:
        """Every cell that has been measured, in the order of their files' names."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def fill(self, wanted: Mapping[str, Callable[[], Mapping[str, Any]]]) -> dict[str, Cell]:
        """All of these, in their order, with a bar over those that are missing."""
        with cell_progress() as progress:
            missing = [name for name in wanted if name not in self]
            task = progress.add_task("cells", total=len(missing))
            for name in missing:
                progress.update(task, description=name)
                self(name, wanted[name])
                progress.advance(task)
        return {name: self[name] for name in wanted}


class Trials:
    """Scores of the evaluations of a search in their order, each kept in a file as soon as it is there.

    Parameters
    ----------
    path : Path or None
        A line an evaluation: the score and the processor's seconds. None keeps nothing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.known: list[tuple[float, float]] = [tuple(json.loads(line)) for line in lines]
        self.asked = 0

    @property
    def processor(self) -> float:
        """Processor seconds of all evaluations."""
        return sum(seconds for _, seconds in self.known)

    def __call__(self, measure: Callable[[], float]) -> float:
        """The score of the next evaluation, measured if it is not known."""
        if self.asked == len(self.known):
            started = time.process_time()
            score = float(measure())
            self.known.append((score, time.process_time() - started))
            if self.path is not None:
                half = self.path.with_suffix(".half")
                half.write_text("".join(f"{json.dumps(each)}\n" for each in self.known))
                half.replace(self.path)
        self.asked += 1
        return self.known[self.asked - 1][0]


def circumstances() -> Cell:
    """The day, the commit where git knows one, and how many processes wanted a core in the last minute."""
    asked = [shutil.which("git"), "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True).stdout.strip() if asked[0] else ""
    return {"day": time.strftime("%Y-%m-%d"), "commit": commit, "load": psutil.getloadavg()[0]}


def measured_when(cells: Iterable[Cell]) -> str:
    """The days, commits and loads of these cells in words; what was measured before they were noted is left out."""
    noted = [cell for cell in cells if "load" in cell]
    if not noted:
        return "not noted when"
    days, commits = (", ".join(sorted({cell[name] for cell in noted} - {""})) for name in ("day", "commit"))
    loads = [cell["load"] for cell in noted]
    return f"{days}, commit {commits or 'unknown'}, load {min(loads):.0f} to {max(loads):.0f}"


def report(text: str, path: Path, *pictures: Callable[[], object]) -> str:
    """Write the tables and print them, then draw: numbers need no matplotlib, and no picture that fails takes them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(text, flush=True)
    if pictures and find_spec("matplotlib") is None:
        print("No pictures: matplotlib is not installed.")
        return text
    for draw in pictures:
        draw()
    return text


def markdown(heads: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    rows = [heads, ["---"] * len(heads), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
