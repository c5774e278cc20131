"""Sets of tables in a folder: what `sets.json` says of each, its raw rows, and how they are split.

`sets.json` is one object, from a set's name to what is known of it; the rows of a set lie beside it in `NAME.parquet`,
one column a feature, as they came (texts, dates, gaps), and one column for the target:

    {"prices": {"target": "price", "task": "regression", "split": null},
     "delays": {"target": "late", "task": "classification", "split": "time:date", "score": "log_loss"}}

- `target`: the name of the column that is predicted; it has no missing values.
- `task`: "classification", "regression" or "count" (numbers too, 0, 1, 2, ...).
- `split`: null, or "time:COLUMN" for rows that have a time.
- `score`, if given, judges the set in place of that of its kind (`SCORES` has the names).

Further keys (rows, columns, classes, ...) are notes for readers.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

TASKS = ("classification", "regression", "count")
TEST_SHARE = 0.25


@dataclass(frozen=True)
class Score:
    """A figure that judges predictions on test rows.

    Parameters
    ----------
    name : str
        As pages have it.
    is_loss : bool
        Whether less is better.
    tasks : tuple of str
        Those that it can judge.
    """

    name: str
    is_loss: bool
    tasks: tuple[str, ...]

    def loss(self, figure: float) -> float:
        """What is lost: the figure itself, or what it lacks of 1."""
        return figure if self.is_loss else 1.0 - figure


SCORES = {
    "accuracy": Score("accuracy", False, TASKS[:1]),
    "auc": Score("AUC", False, TASKS[:1]),
    "log_loss": Score("log loss", True, TASKS[:1]),
    "rmse": Score("RMSE", True, TASKS[1:]),
    "mae": Score("mean absolute error", True, TASKS[1:]),
}


@dataclass(frozen=True, eq=False)
class Rows:
    """Raw rows: data frames and targets (labels, or numbers as float64) of a training and a test part."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray


@dataclass(frozen=True)
class TableSet:
    """One table and what is predicted from it.

    Parameters
    ----------
    name : str
    path : Path
        The Parquet file.
    target : str
    task : str
    time : str or None
        The column that orders the rows, where the split is by time.
    score : str or None
        What judges the set, where `sets.json` says it.
    """

    name: str
    path: Path
    target: str
    task: str
    time: str | None = None
    score: str | None = None

    @property
    def has_numbers(self) -> bool:
        """Whether targets are numbers to be found, not labels."""
        return self.task != "classification"

    @cached_property
    def digest(self) -> str:
        """What tells these rows and this split from others of the same name."""
        told = json.dumps([self.target, self.task, self.time]).encode()
        return hashlib.sha256(told + self.path.read_bytes()).hexdigest()[:12]

    def seeds(self, n_seeds: int) -> range:
        """A split each; there is one where rows have a time."""
        return range(1 if self.time else n_seeds)

    def split(self, seed: int) -> Rows:
        """A quarter of the rows is for testing: the last one where rows have a time, else one that the seed draws."""
        frame = pd.read_parquet(self.path)
        absent = [column for column in (self.target, self.time) if column and column not in frame]
        if absent:
            raise ValueError(f"{self.path} has no column {absent[0]!r}, which sets.json names for set {self.name!r}")
        if frame[self.target].isna().any():
            row = int(np.flatnonzero(frame[self.target].isna())[0])
            raise ValueError(f"{self.path}: the target {self.target!r} is missing in row {row}; leave such rows out")
        n_rows = len(frame)
        if self.time:
            frame = frame.sort_values(self.time, kind="stable").reset_index(drop=True)
            is_test = np.arange(n_rows) >= int((1 - TEST_SHARE) * n_rows)
        else:
            drawn = np.random.default_rng(seed).permutation(n_rows)[: int(TEST_SHARE * n_rows)]
            is_test = np.isin(np.arange(n_rows), drawn)
        targets = frame.pop(self.target)
        # labels are an array of texts or of whole numbers, not of Python objects
        y = targets.to_numpy(np.float64) if self.has_numbers else np.array(targets.tolist())
        X, X_test = (frame[mask].reset_index(drop=True) for mask in (~is_test, is_test))
        return Rows(X, y[~is_test], X_test, y[is_test])


def read_sets(folder: Path) -> dict[str, TableSet]:
    """The sets that `sets.json` names, in its order.

    Raises
    ------
    ValueError
        There is no `sets.json`, it is none, or a file that it needs is not there.
    """
    path = folder / "sets.json"
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"there is no {path}: --data is a folder of Parquet files with a sets.json, whose form is in table_sets.py"
        ) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(told, dict) or not told:
        raise ValueError(f"{path} must hold an object, from the names of sets to what is known of them")
    return {name: _table_set(folder, name, info) for name, info in told.items()}


def _table_set(folder: Path, name: str, info: object) -> TableSet:
    place = f"{folder / 'sets.json'}, set {name!r}"
    absent = [key for key in ("target", "task", "split") if not isinstance(info, dict) or key not in info]
    if not isinstance(info, dict) or absent:
        raise ValueError(f"{place}: {', '.join(map(repr, absent))} must be given")
    if info["task"] not in TASKS:
        raise ValueError(f"{place}: task is {info['task']!r}; it must be one of {', '.join(TASKS)}")
    kind, _, time = (info["split"] or "").partition(":")
    if info["split"] is not None and (kind != "time" or not time):
        raise ValueError(f"{place}: split is {info['split']!r}; it must be null or 'time:COLUMN'")
    possible = [score for score, told in SCORES.items() if info["task"] in told.tasks]
    if info.get("score") not in (None, *possible):
        raise ValueError(f"{place}: score is {info['score']!r}; for {info['task']} there are {', '.join(possible)}")
    path = folder / f"{name}.parquet"
    if not path.exists():
        raise ValueError(f"{place}: there is no {path}")
    return TableSet(name, path, info["target"], info["task"], time or None, info.get("score"))
