"""The main job, on real rows and on many made ones, beside models of scikit-learn; or every learner at once."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.store.overwriting import means_store
from dkl.data.together.choosing import check_one_kind, with_held_by
from dkl.data.together.messages import warn_of_random_folds
from dkl.errors import MemoryLimitError
from dkl.figure import CLASS_COLOURS, Axes, Display
from dkl.machines.kernel_machines import KernelClassifier, KernelMachine, KernelRegressor
from dkl.methods.margin.learner import MarginFeatures
from dkl.model_selection.comparison import Compared, Comparison, learners_for
from dkl.model_selection.comparison import compare as compare_learners
from dkl.model_selection.evaluation import fitted_to, score_of
from dkl.model_selection.rivals import LINEAR, SVM, TREES, rivals
from dkl.passes.loading import load
from dkl.passes.memory import peak_bytes
from dkl.progress import Choice
from dkl.registry import learner_keys

# Bytes that the process of the fit may hold: it was seen to hold 302 MB with its libraries and 345 MB while it fitted.
# Where its libraries alone hold so much that the fit is refused within the first limit, it is made within the second.
WAVES, MEMORY_LIMITS = "100 searched waves", ("400 MB", "500 MB")
# Made rows: ten columns, two classes. An SVM is fitted to so few that it takes a second, to tell how its time grows.
MADE_ROWS, SVM_ROWS, TESTED = (3_000, 30_000, 300_000), (4_000, 8_000, 16_000), 20_000
_BLOCK = 20_000

# So few that fifty fits end within minutes; by default a machine takes more steps on so few rows.
EPOCHS = 8
SPLITS = {"train": 0.75, "test": 0.25}


def digits_dataset(store: str | Path) -> Dataset:
    """scikit-learn's handwritten digits (1,797 rows, 64 columns, ten classes): a store with splits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    dataset = create_dataset(str(store), images.astype(np.float32), labels, shuffle=True, overwrite=True)
    return dataset.split(SPLITS, seed=0)


def beside_rivals(
    dataset: Dataset, *, seed: int = 0, said: Callable[[Compared], None] = lambda compared: None
) -> tuple[Comparison, KernelMachine]:
    """The machine that chooses for itself beside scikit-learn's models; one fit each.

    Parameters
    ----------
    dataset : Dataset
        With splits "train" and "test".
    seed : int
    said : callable
        Called with each score as soon as it is there.

    Returns
    -------
    Comparison
    KernelClassifier or KernelRegressor
        Fitted.
    """
    train, test = dataset["train"], dataset["test"]
    own: KernelMachine = KernelClassifier() if train.task == "classification" else KernelRegressor()
    own.set_params(random_state=seed, progress=False)
    results: list[Compared] = []
    for name, model in {**rivals(train, seed=seed), type(own).__name__: own}.items():
        started = time.perf_counter()
        # boosted trees start a thread a core, which wait for each other wherever another process is at work
        with threadpool_limits(1, "openmp"):
            fitted_to(model, train)
        seconds = time.perf_counter() - started
        results.append(Compared(name, None, float(score_of(model, test, None)), 0.0, seconds))
        said(results[-1])
    rows = f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns"
    measure = "accuracy" if train.task == "classification" else "R^2"
    return Comparison(rows, measure, test.total_weight, tuple(results)), own


def verdict(comparison: Comparison, own: str) -> str:
    """A sentence that says which of the models to take: the machine `own`, or one that does as well or better."""
    fastest, error = comparison.fastest.learner, f"a standard error ({comparison.standard_error:.2g})"
    level = [result.learner for result in comparison.reaching()]
    if own not in level:
        return f"Take the {comparison.best.learner}: on these rows {own} stays more than {error} behind it."
    if len(level) == 1:
        return f"Take {own}: it is ahead of all others by more than {error}."
    if LINEAR in level:
        return f"Take the {LINEAR}: nothing gains more than {error} over it, and it is the easiest to read."
    others = ", ".join(name for name in level if name != own)
    if fastest == own:
        return f"Take {own}: it takes the least time of those that are level within {error}, which are {others}, too."
    return (
        f"Take {own}, or {others}: they are level within {error}. On so few rows {fastest} takes the least time; {own} "
        "goes on where rows no longer fit into memory."
    )


def smooth_rows(n_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Made rows (n, 10), float32, and classes 0 and 1: the sign of a sum of four sine waves with noise."""
    directions = 0.5 * np.random.default_rng(7).standard_normal((10, 4))
    draw = np.random.default_rng(seed)
    X = draw.standard_normal((n_rows, 10)).astype(np.float32)
    return X, (np.sin(X @ directions).sum(axis=1) + draw.logistic(scale=0.15, size=n_rows) > 0.0).astype(np.int8)


@dataclass(frozen=True)
class Grown:
    """One model on made rows.

    Parameters
    ----------
    learner : str
    n_rows : int
    error : float
        The share of 20,000 further rows whose class is not predicted.
    seconds : float
        Of the processor, which the fit took: they do not depend on what else the machine does.
    nbytes : int
        The most memory that the process held; 0 where it was not a process of its own.
    memory_limit : str
        Of that process.
    """

    learner: str
    n_rows: int
    error: float
    seconds: float
    nbytes: int = 0
    memory_limit: str = ""


def grown(seed: int = 0) -> Iterator[Grown]:
    """Fits to synthetic rows of growing number: an SVM on few, boosted trees, 100 searched waves of dkl from a store.

    The most rows are learned by a process of its own that may use 400 MB in all; the others have them in memory.

    Parameters
    ----------
    seed : int
    """
    X, y = smooth_rows(MADE_ROWS[-1], 1)
    X_test, y_test = smooth_rows(TESTED, 2)
    estimators = {SVM: SVC(random_state=seed), TREES: HistGradientBoostingClassifier(random_state=seed)}
    for name, sizes in ((SVM, SVM_ROWS), (TREES, MADE_ROWS)):
        for n_rows in sizes:
            started = time.process_time()
            with threadpool_limits(1, "openmp"):
                model = estimators[name].fit(X[:n_rows], y[:n_rows])
            seconds = time.process_time() - started
            # an SVM answers slowly, too
            few = slice(TESTED // 10 if name == SVM else TESTED)
            yield Grown(name, n_rows, float(np.mean(model.predict(X_test[few]) != y_test[few])), seconds)
    with tempfile.TemporaryDirectory() as folder:
        stores = [str(Path(folder) / f"{n_rows}.zarr") for n_rows in MADE_ROWS]
        for store, n_rows in zip(stores, MADE_ROWS, strict=True):
            create_dataset(store, X[:n_rows], y[:n_rows], rows_a_block=_BLOCK)
        del X, y
        # the first fit compiles what was not compiled before: its time is taken the second time
        waves_of_store(stores[0], seed)
        yield from (waves_of_store(store, seed) for store in stores[:-1])
        # it loads its libraries as a worker does, step by step: at once they take more than the fit
        loading: dict[str, Any] = {"initializer": load, "initargs": ([__name__],)}
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), **loading) as process:
            for memory_limit in MEMORY_LIMITS:
                limited = process.submit(waves_of_store, stores[-1], seed, memory_limit)
                # refused before the first pass
                if isinstance(limited.exception(), MemoryLimitError) and memory_limit != MEMORY_LIMITS[-1]:
                    continue
                nbytes = process.submit(peak_bytes).result()
                yield replace(limited.result(), nbytes=nbytes, memory_limit=memory_limit)
                return


def waves_of_store(store: str, seed: int, memory_limit: str | None = None) -> Grown:
    """100 searched waves and a linear model on them, from a store; the whole process stays within a limit."""
    common: dict[str, Any] = {"random_state": seed, "progress": False, "memory_limit": memory_limit}
    dataset = open_dataset(store)
    started = time.process_time()
    # a wave is two columns, a cosine and a sine
    features = MarginFeatures(n_features=200, **common)
    model = KernelClassifier(features, solver="newton", **common).fit(dataset)
    seconds = time.process_time() - started
    X_test, y_test = smooth_rows(TESTED, 2)
    error = float(np.mean(model.predict(X_test) != y_test))
    return Grown(WAVES, dataset.n_rows, error, seconds)


def extrapolated_seconds(fits: Sequence[Grown], n_rows: int) -> float:
    """The seconds that as many rows would take, by the power law through the logarithms of rows and seconds."""
    sizes, seconds = (np.log([getattr(fit, name) for fit in fits]) for name in ("n_rows", "seconds"))
    exponent, factor = np.polyfit(sizes, seconds, 1)
    return float(np.exp(factor + exponent * np.log(n_rows)))


def verdict_on_many(fits: Sequence[Grown]) -> str:
    """A sentence or two on the most made rows."""
    n_rows = MADE_ROWS[-1]
    waves, trees = (next(fit for fit in fits if (fit.learner, fit.n_rows) == (name, n_rows)) for name in (WAVES, TREES))
    hours = extrapolated_seconds([fit for fit in fits if fit.learner == SVM], n_rows) / 3_600.0
    long = f"{hours:.1f} h" if hours > 1.0 else f"{60.0 * hours:.0f} min"
    less = "less than" if waves.error < trees.error else "no less than"
    return (
        f"On {n_rows:,} rows of this law {WAVES} err on {100 * waves.error:.1f} % of new rows, {less} {TREES} "
        f"({100 * trees.error:.1f} %).\nTheir process held {waves.nbytes / 1e6:.0f} MB at most, of the "
        f"{waves.memory_limit} that it may hold; an {SVM} would take about {long}."
    )


@dataclass(frozen=True)
class GrowthDisplay(Display):
    """Seconds and error against the number of rows, a line a model; the SVM's seconds go on as they would grow.

    Parameters
    ----------
    fits : sequence of Grown
    """

    fits: Sequence[Grown]
    title = "made rows of a smooth law"
    _size = (4.6, 3.8)
    _is_titled = True

    @property
    def _n_panels(self) -> int:
        return 2

    def _draw(self, axes: Sequence[Axes]) -> None:
        for name, colour in zip((WAVES, TREES, SVM), CLASS_COLOURS, strict=False):
            fits = [fit for fit in self.fits if fit.learner == name]
            rows = [fit.n_rows for fit in fits]
            for panel, values in zip(axes, ([fit.seconds for fit in fits], [fit.error for fit in fits]), strict=True):
                panel.plot(rows, values, "o-", color=colour, markersize=4.5, label=name)
            if name == SVM:
                ends = [rows[-1], MADE_ROWS[-1]]
                axes[0].plot(ends, [extrapolated_seconds(fits, end) for end in ends], ":", color=colour)
        for panel, label in zip(axes, ("processor seconds of the fit", "share of errors on new rows"), strict=True):
            panel.set(xscale="log", xlabel="rows", ylabel=label)
        axes[0].set_yscale("log")
        axes[1].set_ylim(bottom=0.0)
        axes[1].legend()


def own_dataset(
    data: str, target: str | None, store: str | Path, *, by_group: str | None = None, by_time: str | None = None
) -> Dataset:
    """The user's rows: a store that is there, or files that are ingested into `store`; with train and test splits.

    Splits that are there stay. Others are drawn, by group or by time where that is asked for or known.

    Raises
    ------
    ValueError
        If the rows have no target.
    """
    from dkl.data.ingest.ingest import ingest

    if means_store(data):
        dataset = open_dataset(data)
    else:
        check_one_kind(by_group, by_time)
        dataset = ingest(data, str(store), target=target, group=by_group, time=by_time, overwrite=True, progress=False)
    source, schema = with_held_by(dataset.source, dataset.schema, by_group, by_time)
    dataset = dataset.with_rows(source, schema)
    if dataset.task is None:
        raise ValueError(f"the rows of {data!r} have no target to learn; name its column: --target NAME")
    if {"train", "test"} <= set(dataset.splits):
        return dataset
    warn_of_random_folds(dataset, "the split into train and test")
    # The user's own store is left as it is: these splits exist in memory alone.
    return dataset.split(SPLITS, seed=0, name="demo", write=False)


def compare(
    dataset: Dataset,
    *,
    n_features: Sequence[int] = (50, 100, 200),
    seed: int = 0,
    device: str | None = None,
    memory_limit: int | str | None = None,
    progress: Choice = None,
) -> Comparison:
    """Fit every learner of features that has a meaning for the task at every size, and score it.

    Parameters
    ----------
    dataset : Dataset
        With splits "train" and "test".
    n_features : sequence of int
        Columns of the mapped rows.
    seed : int
    device, memory_limit, progress
        As of `dkl.compare`.

    Returns
    -------
    Comparison
    """
    train, test = dataset["train"], dataset["test"]
    machine = KernelClassifier if train.task == "classification" else KernelRegressor
    return compare_learners(
        train,
        # tuned machines predict by themselves and have no place among features under one machine
        learners=[name for name in learners_for(train.task) if name in learner_keys()],
        n_features=n_features,
        machine=machine(epochs=EPOCHS),
        test=test,
        random_state=seed,
        device=device,
        memory_limit=memory_limit,
        progress=progress,
    )
