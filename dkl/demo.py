"""The main job on real rows: the machine beside models of scikit-learn, or every learner beside plain features."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.store.location import is_store
from dkl.data.together.choosing import check_one_kind, chosen_rows_together
from dkl.data.together.telling import warn_of_random_folds
from dkl.features.families import Family, Gaussian
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.machine import KernelMachine
from dkl.methods.random_features import RandomFeatures
from dkl.model_selection.comparing import compare as compare_learners
from dkl.model_selection.comparing import entries_of, learners_for
from dkl.model_selection.comparison import Compared, Comparison
from dkl.model_selection.evaluation import fitted_to, score_of
from dkl.model_selection.rivals import LINEAR, rivals
from dkl.plots.score_curves import ComparisonDisplay
from dkl.progress import Choice
from dkl.protocols.estimators import Estimator
from dkl.registry import learner_keys

BASELINE = "RandomFeatures"
MEDIAN, NARROW = "median bandwidth", "bandwidth 3 times too narrow"
NARROW_FACTOR = 1.0 / 3.0
# So few that fifty fits end within minutes; by default a machine takes more steps on so few rows.
EPOCHS = 8
SPLITS = {"train": 0.75, "test": 0.25}


def written_digits(store: str | Path) -> Dataset:
    """scikit-learn's handwritten digits (1,797 rows, 64 columns, ten classes): a store with splits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    dataset = create_dataset(str(store), images.astype(np.float32), labels, shuffle=True, overwrite=True)
    return dataset.split(SPLITS, seed=0)


def beside_rivals(
    dataset: Dataset, *, seed: int = 0, said: Callable[[Compared], None] = lambda compared: None
) -> tuple[Comparison, KernelMachine]:
    """The machine that chooses for itself, with the least effort, beside scikit-learn's models; one fit each.

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
    own.set_params(effort="fast", random_state=seed, progress=False)
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


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Parameters
    ----------
    dataset : str
        A line about the rows.
    settings : dict of str to Comparison
        By the bandwidth that all learners have.
    """

    dataset: str
    settings: dict[str, Comparison]

    @property
    def measure(self) -> str:
        """Of the scores: accuracy or R^2."""
        return self.settings[MEDIAN].measure

    def display(self) -> ComparisonDisplay:
        """The scores as a picture."""
        lines = {
            setting: {learner: comparison.scores(learner) for learner in comparison.learners}
            for setting, comparison in self.settings.items()
        }
        # Both settings were compared at the same sizes.
        sizes = self.settings[MEDIAN].n_features
        return ComparisonDisplay(sizes, lines, measure=f"test {self.measure}", baseline=BASELINE, title=self.dataset)


def digits_dataset(store: str | Path) -> Dataset:
    """scikit-learn's handwritten digits (1,797 rows, 64 columns, 10 classes) as a store with splits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    dataset = create_dataset(str(store), images.astype(np.float32), labels, shuffle=True, overwrite=True)
    return dataset.split(SPLITS, seed=0)


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

    if data.rstrip("/").endswith(".zarr") or is_store(data):
        dataset = open_dataset(data)
    else:
        check_one_kind(by_group, by_time)
        dataset = ingest(data, str(store), target=target, group=by_group, time=by_time, overwrite=True, progress=False)
    source, schema = chosen_rows_together(dataset.source, dataset.schema, by_group, by_time)
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
) -> DemoResult:
    """Fit every learner at every size, with the median bandwidth and with one three times too narrow, and score.

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
    DemoResult
    """
    train, test = dataset["train"], dataset["test"]
    # All learners share one bandwidth, the median distance of scaled rows, so that the settings differ in nothing else.
    # Three times too narrow is a usual mistake, and shows which learners depend on a good guess.
    learner = RandomFeatures(Gaussian("median"), n_features=2, scaling="standard", random_state=seed, progress=False)
    sigma = float(learner.fit(train).family_.sigma)
    machine = KernelClassifier if train.task == "classification" else KernelRegressor
    settings = {
        setting: compare_learners(
            train,
            learners=learners(Gaussian(bandwidth), max(n_features), train.task),
            n_features=n_features,
            machine=machine(epochs=EPOCHS),
            test=test,
            random_state=seed,
            device=device,
            memory_limit=memory_limit,
            progress=progress,
        )
        for setting, bandwidth in ((MEDIAN, sigma), (NARROW, NARROW_FACTOR * sigma))
    }
    return DemoResult(f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns", settings)


def learners(family: Family, largest: int, task: str | None = "classification") -> dict[str, Estimator]:
    """Every learner of features that has a meaning for the task, for sizes up to `largest`; the baseline first."""
    # Tuned machines predict by themselves and have no place among features under one machine.
    names = [name for name in learners_for(task) if name in learner_keys()]
    return {type(entry).__name__: entry for entry in entries_of(names, largest, task, family, "standard").values()}
