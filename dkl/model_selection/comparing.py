"""dkl.compare: every learner at every size on the same rows, scored on rows that none of them has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dkl.data.dataset import Dataset
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.telling import kind_of_split
from dkl.features.scaling import ScalingKind
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.machine import KernelMachine
from dkl.machines.suggest import exact_steps
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import digest_of, stage_checkpoint, stored_seed, what_counts
from dkl.methods.density.joint_learner import JointFeatures
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.density.tuned_learner import TunedLearner
from dkl.model_selection.comparison import Compared, Comparison
from dkl.model_selection.evaluation import judged, reads_blocks
from dkl.model_selection.folds import RowFolds, ValidationFold, fold_views
from dkl.model_selection.running import InTurn, Outcomes, TrialFit
from dkl.model_selection.search_loop import Journal
from dkl.model_selection.trials import Record
from dkl.model_selection.tuning import quiet, rows_to_search
from dkl.progress import resolve_progress
from dkl.registry import LEARNERS, learner_classes
from dkl.version import __version__

SIZES = (50, 200, 800)
_SIZE_NAMES = ("features__n_features", "features__n_landmarks", "n_features")


def compare(
    X: Any,
    y: Any = None,
    *,
    groups: Any = None,
    times: Any = None,
    learners: Sequence[str] | Mapping[str, Any] | None = None,
    n_features: Sequence[int] = SIZES,
    family: Any = None,
    scaling: ScalingKind | None = "standard",
    machine: Any = None,
    test: Dataset | None = None,
    folds: int | float = 0.2,
    sample_weight: Any = None,
    device: str | None = None,
    memory_limit: Any = None,
    random_state: Any = None,
    checkpoint: Any = None,
    progress: Any = None,
) -> Comparison:
    """Fit every learner at every size on the same rows and score it on others: which one to take?

    Each fit runs alone, so that its time is its own, on all workers of the current `distributed` client. The answer
    holds for these rows and for the learners as they are given, by default with their defaults.

    Parameters
    ----------
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or None
        Those of a Dataset are its own.
    groups, times : str, array of shape (n,), or None
        As of `KernelClassifier.fit`: rows are held out by whole groups, or the newest of them, and the result says so.
    learners : sequence of str, mapping of str to estimator, or None
        Names as of `KernelClassifier`, and "tuned"; or estimators by the names that they are to have: feature
        learners, machines of dkl, or any classifier or regressor of scikit-learn, which is fitted once to rows in
        memory. None is all learners that have a meaning for the targets.
    n_features : sequence of int
        Columns of the mapped rows (landmarks of `LandmarkFeatures`).
    family : Family or None
        Of learners by name; None is theirs.
    scaling : {None, "standard", "minmax", "unit", "quantile"}
        Of learners by name.
    machine : KernelClassifier or KernelRegressor, or None
        What is fitted to the features. None is exact Newton steps with the squared loss, and a penalty chosen on
        held-out rows.
    test : Dataset or None
        The rows that are scored.
    folds : int or float
        Without `test`: the rows to score are so many folds in turn, or such a share, chosen by a hash of the row id.
    sample_weight : array of shape (n,) or None
        Frequency weights, in fits and in scores.
    device : {"auto", "cpu", "gpu", "mixed"} or None
    memory_limit : int, str or None
        Of each fit; None leaves learners their own.
    random_state : int, RandomState or None
        Of the folds, and of the learners where their own is None.
    checkpoint : str or None
        Folder or URL where every score is kept: a comparison that was broken off goes on.
    progress : bool, callable or None
        A function that raises `dkl.StopRequested` ends the comparison with the fits so far.

    Returns
    -------
    Comparison
        Prints as a table with advice; with ``table`` (a data frame), ``fewest_features``, ``fastest`` and ``plot()``.

    Raises
    ------
    ValueError
        For a learner that is not known or has no meaning for the targets, no sizes, rows without a target; before
        anything is fitted.
    StoreError
        If the checkpoint belongs to another comparison.
    RuntimeError
        If all fits fail; what fails beside others is kept with its error.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dkl
    >>> X, y = load_iris(return_X_y=True)
    >>> found = dkl.compare(X, y, learners=["random", "aligned"], n_features=[10, 40], folds=3, random_state=0)
    >>> len(found.results), bool(found.best.score > 0.9)
    (4, True)
    """
    dataset = rows_to_search("compare", BesideFeatures(X, groups, times), y, sample_weight, "auto", warns=test is None)
    sizes = checked_sizes(n_features)
    entries = entries_of(learners, max(sizes), dataset.task, family, scaling)
    compared = ComparedRows(dataset, test, folds, machine, {"device": device, "memory_limit": memory_limit})
    compared.check()
    fingerprint = "" if checkpoint is None else compared.fingerprint(entries, sizes, random_state)
    seed = stored_seed(random_state, checkpoint, fingerprint)
    contestants = compared.contestants(entries, sizes, seed)
    views = compared.views(seed)
    record = Record.of(views, stage_checkpoint(checkpoint, "scores"), fingerprint)
    journal = Journal(record, EachAlone(contestants, views), resolve_progress(progress), len(contestants))
    with journal.under_way():
        journal.judge({number: {} for number in range(len(contestants))}, float("inf"))
    return Comparison(
        rows=f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns",
        split=kind_of_split(dataset) if test is None else "the rows given as test",
        measure="accuracy" if dataset.task == "classification" else "R^2",
        n_test=float(record.weights.sum()),
        results=tuple(one.result(record, n) for n, one in enumerate(contestants) if not record.missing(n)),
        message=f"{journal.request} after {len(record.done)} of {len(contestants)} fits" if journal.ended else "",
    )


@dataclass(frozen=True, eq=False)
class Contestant:
    """One learner at one size, as an estimator that is not fitted.

    Parameters
    ----------
    learner : str
    n_features : int or None
    model : estimator
    """

    learner: str
    n_features: int | None
    model: Any

    def result(self, record: Record, number: int) -> Compared:
        """What the record holds of it."""
        seconds = record.seconds(number) / record.n_folds
        deviation = float(np.std(record.scores(number)))
        return Compared(
            self.learner, self.n_features, record.score(number), deviation, seconds, error=record.error(number)
        )


@dataclass(frozen=True, eq=False)
class EachAlone:
    """Judges contestants one after another, so that their times are their own.

    Parameters
    ----------
    contestants : sequence of Contestant
    folds : sequence of Fold
    """

    contestants: Sequence[Contestant]
    folds: Sequence[ValidationFold]

    def run(self, jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """See `Runner`."""
        for job in jobs[:1]:
            # the first fit of a process loads compiled code, which is no learner's own time: it is made once more
            judged(self.contestants[job.trial].model, {}, self.folds[job.fold], None)
        for trial, own in groupby(jobs, key=lambda job: job.trial):
            yield from InTurn(self.contestants[trial].model, self.folds, None).run(list(own), deadline)


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """The rows that learners are compared on, and what all fits share.

    Parameters
    ----------
    dataset : Dataset
    test, folds, machine
        As of `compare`.
    limits : mapping of str to object
        The device and the memory limit of each fit; None leaves models their own.
    """

    dataset: Dataset
    test: Dataset | None
    folds: int | float
    machine: Any
    limits: Mapping[str, Any]

    def check(self) -> None:
        """Refuse what has no meaning.

        Raises
        ------
        ValueError
            With the argument and what is expected.
        """
        RowFolds.of(self.folds, 0)
        if self.test is not None and not isinstance(self.test, Dataset):
            raise ValueError(f"test is a {type(self.test).__name__}; expected a Dataset, such as ds['test']")
        if self.machine is not None and not isinstance(self.machine, KernelMachine):
            raise ValueError(f"machine is {self.machine!r}; expected KernelClassifier() or KernelRegressor()")

    def views(self, seed: int) -> list[ValidationFold]:
        """What is fitted and what is scored, fold by fold."""
        if self.test is not None:
            return [ValidationFold(self.dataset, self.test)]
        return fold_views(self.dataset, RowFolds.of(self.folds, seed))

    def contestants(self, entries: Mapping[str, Any], sizes: Sequence[int], seed: int) -> list[Contestant]:
        """All that is fitted, the small sizes first."""
        models = {name: self._limited(quiet(self._model(entry), seed)) for name, entry in entries.items()}
        sized = {name: named for name, model in models.items() if (named := _size_name(model)) is not None}
        alone = [Contestant(name, None, model) for name, model in models.items() if name not in sized]
        grown = [
            Contestant(name, size, clone(models[name]).set_params(**{named: size}))
            for size in sizes
            for name, named in sized.items()
        ]
        return [*alone, *grown]

    def fingerprint(self, entries: Mapping[str, Any], sizes: Sequence[int], random_state: Any) -> str:
        """Of all that the scores follow from."""
        models = [(name, what_counts(self._model(entry))) for name, entry in entries.items()]
        rows = (self.dataset.fingerprint, self.folds if self.test is None else self.test.fingerprint)
        seed = random_state if isinstance(random_state, Integral) else None
        return digest_of(models, tuple(sizes), rows, seed, __version__)

    def _limited(self, model: Any) -> Any:
        """With the device and the memory limit, in models of dkl."""
        known = model.get_params(deep=True) if reads_blocks(model) else {}
        limits = {name: self.limits.get(name.rpartition("__")[2]) for name in known}
        return model.set_params(**{name: value for name, value in limits.items() if value is not None})

    def _model(self, entry: Any) -> Any:
        """A machine on the features of `entry`, or `entry` where it predicts itself."""
        if not isinstance(entry, FeatureLearner) or isinstance(entry, TunedLearner):
            return entry
        return clone(self.machine or exact_machine(self.dataset.task)).set_params(features=entry)


def exact_machine(task: str | None) -> KernelMachine:
    """Newton steps with the squared loss of the task, and a penalty chosen on held-out rows."""
    machine = KernelClassifier if task == "classification" else KernelRegressor
    return machine(**exact_steps(task))


def entries_of(
    learners: Sequence[str] | Mapping[str, Any] | None,
    largest: int,
    task: str | None,
    family: Any,
    scaling: ScalingKind | None,
) -> dict[str, Any]:
    """The estimators that are compared, by name.

    Parameters
    ----------
    learners : sequence of str, mapping of str to estimator, or None
    largest : int
        Of the sizes: pools of candidates are a multiple of it.
    task : {"classification", "regression"}
    family, scaling
        As of `compare`.

    Raises
    ------
    ValueError
        For a name that is none, one that has no meaning for the task, what is no estimator, or none at all.
    """
    if isinstance(learners, Mapping):
        strangers = [name for name, entry in learners.items() if not isinstance(entry, BaseEstimator)]
        if strangers or not learners:
            raise ValueError(
                f"learners holds no estimator at {strangers}; expected such as {{'margin': MarginFeatures()}}"
            )
        return dict(learners)
    known = learners_for(task)
    names = list(known) if learners is None else list(learners)
    wrong = [name for name in names if name not in known]
    if wrong or not names or isinstance(learners, str):
        raise ValueError(f"learners is {learners!r}; expected some of {list(known)}, those for {task}, or estimators")
    return {name: _entry(known[name], largest, family, scaling) for name in names}


def learners_for(task: str | None) -> dict[str, type[FeatureLearner]]:
    """Every learner that has a meaning for the task, by name, the plain one first."""
    if task == "classification":
        return {**learner_classes(), "tuned": TunedClassifier}
    return {**learner_classes(entry for entry in LEARNERS if not entry.needs_classes), "tuned": TunedRegressor}


def checked_sizes(n_features: Sequence[int]) -> tuple[int, ...]:
    """The sizes, ascending, each once.

    Raises
    ------
    ValueError
        If one is no whole number of at least 1, or there is none.
    """
    sizes = tuple(np.ravel(n_features).tolist())
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"n_features is {n_features!r}; expected whole numbers of at least 1, such as (50, 200, 800)")
    return tuple(sorted(set(sizes)))


def _entry(learner: type[FeatureLearner], largest: int, family: Any, scaling: ScalingKind | None) -> Any:
    entry = learner(scaling=scaling)
    if family is not None:
        entry.set_params(family=family)
    # one pool for all sizes, as `dkl fit` draws it
    candidates = {known.name: known.compared_candidates for known in LEARNERS}.get(learner.__name__)
    if candidates is not None:
        entry.set_params(n_candidates=candidates * largest)
    if learner is JointFeatures:
        # half the passes, and scores that are the same within their error
        entry.set_params(tol=0.01)
    return entry


def _size_name(model: Any) -> str | None:
    """The parameter that says how many columns the features have; None for a model without one."""
    known = model.get_params(deep=True)
    return next((name for name in _SIZE_NAMES if name in known), None)
