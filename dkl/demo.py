"""The main job on real rows, within a minute: every learner against plain random features of the same size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.reading import is_store
from dkl.events import Event, Subscriber, ignore
from dkl.features.families import Gaussian
from dkl.learners.aligned import AlignedFeatures
from dkl.learners.kernel_machines import KernelClassifier, KernelRegressor
from dkl.learners.landmarks import LandmarkFeatures
from dkl.learners.leverage import LeverageFeatures
from dkl.learners.margin import MarginFeatures
from dkl.learners.peaks import PeakFeatures
from dkl.learners.posterior import PosteriorFeatures
from dkl.learners.random_features import RandomFeatures
from dkl.plots.comparison import ComparisonDisplay

BASELINE = "RandomFeatures"
MEDIAN, NARROW = "median bandwidth", "bandwidth 3 times too narrow"
NARROW_FACTOR = 1.0 / 3.0
# few, so that forty fits end within a minute; the default takes more on so few rows
EPOCHS = 8
SPLITS = {"train": 0.75, "test": 0.25}


@dataclass(frozen=True)
class Score:
    """One fitted model.

    Parameters
    ----------
    learner : str
        The class name of the feature learner.
    setting : str
        Which bandwidth.
    n_features : int
        Columns that were asked for.
    score : float
        Accuracy, or R^2 for regression, on the test rows.
    seconds : float
        Of learning and fitting.
    """

    learner: str
    setting: str
    n_features: int
    score: float
    seconds: float


@dataclass(frozen=True)
class DemoResult:
    """What the demo found.

    Parameters
    ----------
    dataset : str
        A line about the rows.
    measure : {"accuracy", "R^2"}
    scores : tuple of Score
    """

    dataset: str
    measure: str
    scores: tuple[Score, ...]

    def display(self) -> ComparisonDisplay:
        """The scores as a picture."""
        sizes = sorted({score.n_features for score in self.scores})
        settings = list(dict.fromkeys(score.setting for score in self.scores))
        learners = list(dict.fromkeys(score.learner for score in self.scores))
        table = {(s.setting, s.learner, s.n_features): s.score for s in self.scores}
        lines = {
            setting: {learner: [table[setting, learner, size] for size in sizes] for learner in learners}
            for setting in settings
        }
        return ComparisonDisplay(sizes, lines, measure=f"test {self.measure}", baseline=BASELINE, title=self.dataset)


def digits_dataset(store: str | Path) -> Dataset:
    """scikit-learn's handwritten digits (1,797 rows, 64 columns, 10 classes) as a store with splits."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    dataset = create_dataset(str(store), images.astype(np.float32), labels, shuffle=True, overwrite=True)
    return dataset.split(SPLITS, seed=0)


def own_dataset(data: str, target: str | None, store: str | Path) -> Dataset:
    """The user's rows: a store that is there, or files that are ingested into `store`; with train and test splits.

    Raises
    ------
    ValueError
        If the rows have no target.
    """
    from dkl.data.ingest import ingest

    if data.rstrip("/").endswith(".zarr") or is_store(data):
        dataset = open_dataset(data)
    else:
        dataset = ingest(data, str(store), target=target, overwrite=True, progress=False)
    if dataset.task is None:
        raise ValueError(f"the rows of {data!r} have no target to learn; name its column: --target NAME")
    if {"train", "test"} <= set(dataset.splits):
        return dataset
    return dataset.split(SPLITS, seed=0, name="demo", write=False)


def compare(
    dataset: Dataset,
    *,
    n_features: Sequence[int] = (50, 100, 200),
    candidates_a_feature: int = 20,
    seed: int = 0,
    publish: Subscriber = ignore,
) -> DemoResult:
    """Fit every learner at every size, with the median bandwidth and with one three times too narrow, and score.

    Parameters
    ----------
    dataset : Dataset
        With splits "train" and "test".
    n_features : sequence of int
        Columns of the mapped rows.
    candidates_a_feature : int
        Candidates are this number times the largest of `n_features`.
    seed : int
    publish : callable
        Told after each fit.

    Returns
    -------
    DemoResult
    """
    train, test = dataset["train"], dataset["test"]
    pool = candidates_a_feature * max(n_features)
    sigma = _median_bandwidth(train, seed)
    jobs = [
        (setting, learner, size)
        for setting, bandwidth in ((MEDIAN, sigma), (NARROW, NARROW_FACTOR * sigma))
        for learner in learners(Gaussian(bandwidth), pool, seed, train.task)
        for size in n_features
    ]
    started, scores = time.perf_counter(), []
    for done, (setting, make, size) in enumerate(jobs, 1):
        scores.append(_score(make(size), setting, size, (train, test), seed))
        publish(Event("advanced", "demo", done, len(jobs), seconds=time.perf_counter() - started))
    measure = "accuracy" if dataset.task == "classification" else "R^2"
    return DemoResult(f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns", measure, tuple(scores))


def learners(
    family: Any, n_candidates: int, seed: int, task: str | None = "classification"
) -> list[Callable[[int], Any]]:
    """Every learner of features that has a meaning for the task, as functions of their number; the baseline first."""
    given: dict[str, Any] = {"scaling": "standard", "random_state": seed, "progress": False}

    def random(size: int) -> Any:
        return RandomFeatures(family, n_features=size, **given)

    def aligned(size: int) -> Any:
        return AlignedFeatures(family, n_candidates, size, **given)

    def posterior(size: int) -> Any:
        return PosteriorFeatures(family, n_candidates, size, **given)

    def landmarks(size: int) -> Any:
        return LandmarkFeatures(family, size, **given)

    def leverage(size: int) -> Any:
        return LeverageFeatures(family, n_features=size, **given)

    def peaks(size: int) -> Any:
        return PeakFeatures(family, n_features=size, **given)

    def margin(size: int) -> Any:
        return MarginFeatures(family, n_features=size, **given)

    of_classes = [posterior, landmarks] if task == "classification" else []
    return [random, aligned, *of_classes, leverage, peaks, margin]


def _median_bandwidth(train: Dataset, seed: int) -> float:
    """The bandwidth that all learners share: found once, so that settings differ in nothing else."""
    learner = RandomFeatures(Gaussian("median"), n_features=2, scaling="standard", random_state=seed, progress=False)
    return float(learner.fit(train).family_.sigma)


def _score(learner: Any, setting: str, size: int, rows: tuple[Dataset, Dataset], seed: int) -> Score:
    machine = KernelClassifier if rows[0].task == "classification" else KernelRegressor
    started = time.perf_counter()
    model = machine(features=learner, epochs=EPOCHS, random_state=seed, progress=False).fit(rows[0])
    seconds = time.perf_counter() - started
    return Score(type(learner).__name__, setting, size, float(model.score(rows[1])), round(seconds, 3))
