"""One fit of an arm to one split of a set: measured in a warm process of the arm's own, on one thread.

A `Worker` is such a process. It fits its arm to small tables of the same kinds first, so that imports and compiled code
are there before a clock starts, then to one split after the other. A process that takes too long, or dies, is replaced.
"""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
import pandas as pd
from against_others import forget_peak
from cells import circumstances
from sklearn.metrics import roc_auc_score
from table_arms import ARMS, Fit
from table_sets import Rows, TableSet

from dkl.passes.memory import peak_bytes

Line = dict[str, Any]

# blocks of test rows, one after the other, that the delete-a-block jackknife leaves out
BLOCKS = 20
ONE_THREAD = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL", "NUMBA")}
WARM_ROWS, WARM_BUDGET = 400, 0.5
START_SECONDS = 600.0


@dataclass(frozen=True)
class Job:
    """One fit: a set, the seed of its split and of the arm, and the arm's processor seconds where it is given some."""

    table: TableSet
    seed: int
    arm: str
    budget: float = 0.0


@dataclass(frozen=True, eq=False)
class Predicted:
    """What a model says of test rows.

    Parameters
    ----------
    y, values : ndarray of shape (n,)
        Targets and predictions.
    deviation : float or None
        The standard deviation of the training targets, where they are numbers.
    ranking : ndarray of shape (n,) or None
        Larger for rows that are likelier to be of the second of two classes.
    shares : ndarray of shape (n,) or None
        The probability of each row's own class.
    """

    y: np.ndarray
    values: np.ndarray
    deviation: float | None = None
    ranking: np.ndarray | None = None
    shares: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> Predicted:
        parts = {name: getattr(self, name) for name in ("y", "values", "ranking", "shares")}
        return replace(self, **{name: part[rows] for name, part in parts.items() if part is not None})

    def figures(self) -> dict[str, float]:
        """The scores of `table_sets.SCORES` that these predictions have; errors of numbers are in deviations."""
        if self.deviation is not None:
            errors = (self.values - self.y) / self.deviation
            return {"rmse": float(np.sqrt(np.mean(errors**2))), "mae": float(np.mean(np.abs(errors)))}
        found = {"accuracy": float(np.mean(self.values == self.y))}
        if self.ranking is not None and len(np.unique(self.y)) == 2:
            found["auc"] = float(roc_auc_score(self.y, self.ranking))
        if self.shares is not None:
            found["log_loss"] = float(-np.mean(np.log(np.clip(self.shares, np.finfo(np.float64).eps, 1.0))))
        return found

    def without_blocks(self) -> dict[str, list[float]]:
        """Each figure without the first twentieth of the rows, without the second, and so on."""
        rows = np.arange(len(self.y))
        left = [self.take(np.setdiff1d(rows, block)).figures() for block in np.array_split(rows, BLOCKS)]
        return {name: [figures[name] for figures in left] for name in left[0] if all(name in one for one in left)}


def predicted(model: Any, rows: Rows, has_numbers: bool) -> Predicted:
    """What a fitted model says of the test rows."""
    values = np.asarray(model.predict(rows.X_test))
    if has_numbers:
        return Predicted(rows.y_test, values, deviation=float(np.std(rows.y)) or 1.0)
    classes, ranking, shares = np.array(list(model.classes_)), None, None
    if hasattr(model, "predict_proba"):
        probabilities = np.asarray(model.predict_proba(rows.X_test), np.float64)
        # a class that no training row had is given nothing
        own = rows.y_test[:, None] == classes
        shares = np.where(own, probabilities, 0.0).sum(axis=1)
        ranking = probabilities[:, 1] if len(classes) == 2 else None
    if len(classes) == 2 and hasattr(model, "decision_function"):
        ranking = np.asarray(model.decision_function(rows.X_test), np.float64)
    return Predicted(rows.y_test, values, ranking=ranking, shares=shares)


def processor_seconds() -> float:
    """Of this process and of the children that ended, in the program and in the system."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measured(job: Job) -> Line:
    """What one fit takes and how well it predicts, or why there is none, in this process."""
    arm, table = ARMS[job.arm], job.table
    rows = table.split(job.seed)
    sizes = {"n_rows": len(rows.y), "n_columns": rows.X.shape[1], "n_test": len(rows.y_test)}
    if arm.most_rows is not None and len(rows.y) > arm.most_rows:
        return {**sizes, "status": "left out", "message": f"more than {arm.most_rows:,} training rows"}
    if arm.only_labels and table.has_numbers:
        return {**sizes, "status": "left out", "message": "numbers to predict"}
    fit = Fit(table.has_numbers, table.time is not None, job.seed, job.budget)
    gc.collect()
    held, clock, processor = forget_peak(), time.perf_counter(), processor_seconds()
    try:
        model = arm.make(fit).fit(rows.X, rows.y)
        processor, clock = processor_seconds() - processor, time.perf_counter() - clock
        megabytes = (peak_bytes() - held) / 1e6
        found = predicted(model, rows, table.has_numbers)
    except Exception as error:
        # what an arm does not take it says by these; whatever else is raised is a fault of the arm or of the machine
        status = "refused" if isinstance(error, ValueError | TypeError) else "failed"
        return {**sizes, "status": status, "message": f"{type(error).__name__}: {error}"}
    costs = {"seconds": processor, "clock": clock, "megabytes": megabytes}
    by_block = {"without_block": found.without_blocks()} if table.time else {}
    given = {"budget": job.budget} if arm.has_budget else {}
    return {**sizes, "status": "ok", "figures": found.figures(), **costs, **given, **by_block}


def small_tables() -> Iterator[tuple[Rows, bool]]:
    """Rows with texts, gaps and whole numbers for each kind of target, and whether that is numbers."""
    generator = np.random.default_rng(0)
    numbers = generator.normal(size=(WARM_ROWS, 3))
    frame = pd.DataFrame(numbers, columns=["a", "b", "c"]).astype({"b": np.float32})
    frame["whole"] = generator.integers(0, 9, WARM_ROWS)
    frame["text"] = generator.choice(["red", "green", "blue"], WARM_ROWS)
    frame.loc[::7, "a"], frame.loc[::5, "text"] = np.nan, None
    target = numbers[:, 2] + (frame["text"] == "red").to_numpy()
    for X in (frame, frame[["b", "c"]]):
        for y in (target, np.where(target > 0, "yes", "no"), np.digitize(target, [0.0, 1.0])):
            half = WARM_ROWS // 2
            yield Rows(X[:half], y[:half], X[half:].reset_index(drop=True), y[half:]), y is target


def warm(arm: str) -> None:
    """Fit the arm to small tables and predict, so that all that is loaded or compiled once is there."""
    for rows, has_numbers in small_tables():
        if has_numbers and ARMS[arm].only_labels:
            continue
        model = ARMS[arm].make(Fit(has_numbers, budget=WARM_BUDGET, is_warming=True)).fit(rows.X, rows.y)
        predicted(model, rows, has_numbers)


def serve(arm: str, pipe: Any) -> None:
    """The worker's process: say hello once warm, then measure what is asked for until nothing is."""
    warnings.simplefilter("ignore")
    dask.config.set(scheduler="synchronous")
    warm(arm)
    version = importlib.import_module(ARMS[arm].module).__version__
    pipe.send(f"{ARMS[arm].package} {version}")
    while (job := pipe.recv()) is not None:
        pipe.send(measured(job))


class Worker:
    """A warm process of one arm, started when it is first asked, and again after it was ended.

    Parameters
    ----------
    arm : str
    timeout : float
        Seconds of one fit on the clock.
    """

    def __init__(self, arm: str, timeout: float) -> None:
        self.arm, self.timeout, self.process = arm, timeout, None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self._end()

    def measure(self, job: Job) -> Line:
        """The line of one fit: a process that dies or takes too long is a failure of this fit alone."""
        if self.process is None:
            self._start()
        line = self._answer(self.timeout, f"not within {self.timeout:,.0f} s", job)
        named = {"set": job.table.name, "seed": job.seed, "arm": job.arm, "digest": job.table.digest}
        return {**named, **line, "version": self.version, **circumstances()}

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=serve, args=(self.arm, other))
        with _environment(ONE_THREAD):
            self.process.start()
        other.close()
        hello = self._answer(START_SECONDS, f"did not start within {START_SECONDS:,.0f} s")
        if not isinstance(hello, str):
            raise RuntimeError(f"the process of arm {self.arm!r} could not fit small tables: {hello['message']}")
        self.version = hello

    def _answer(self, timeout: float, too_late: str, job: Job | None = None) -> Any:
        """What the process says, of this job if there is one, or how it failed."""
        try:
            if job is not None:
                self.pipe.send(job)
            if self.pipe.poll(timeout):
                return self.pipe.recv()
            message = too_late
        except (EOFError, ConnectionError):
            self.process.join()
            message = f"the process ended (exit code {self.process.exitcode})"
        self._end()
        return {"status": "failed", "message": message}

    def _end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        self.process = None


@contextmanager
def _environment(names: dict[str, str]) -> Iterator[None]:
    """These environment variables for processes that are started meanwhile: threads are counted when libraries load."""
    before = dict(os.environ)
    os.environ.update(names)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
