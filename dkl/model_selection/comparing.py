"""dkl.compare: fits every learner at every size to the same rows, and scores it on rows that none of them has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from numbers import Integral

import numpy as np
from sklearn.base import BaseEstimator, clone

from dkl.data.dataset import Dataset
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.telling import kind_of_split
from dkl.events import RequestKeeper
from dkl.features.families import Family
from dkl.features.scaling import ScalingKind
from dkl.linear.judge import Folds
from dkl.machines.kernel_machines import KernelClassifier, KernelMachine, KernelRegressor
from dkl.machines.suggest import exact_steps
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import digest_of, effective_parameters, stage_checkpoint, stored_seed
from dkl.methods.density.joint_learner import JointFeatures
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.density.tuned_learner import TunedLearner
from dkl.model_selection.comparison import Compared, Comparison
from dkl.model_selection.evaluation import judged, reads_blocks
from dkl.model_selection.folds import ValidationFold, fold_views
from dkl.model_selection.rivals import rivals as rivals_for
from dkl.model_selection.running import InTurn, Outcomes, TrialFit
from dkl.model_selection.search_loop import Journal
from dkl.model_selection.trial_record import Record
from dkl.model_selection.tuning import SeedChoice, quiet, rows_to_search
from dkl.progress import Choice, resolve_progress
from dkl.protocols.estimators import Estimator
from dkl.registry import LEARNERS, learner_classes
from dkl.version import __version__

# The default numbers of features: each is four times the one before, evenly spaced on a logarithmic axis.
SIZES = (50, 200, 800)
# The name of the machine without settings, which chooses its features.
AUTO = "auto"
# The parameters that set the number of columns of mapped rows; the first that an estimator has is used. Machines pass
# it on to their features, and each landmark is one column.
_SIZE_NAMES = ("features__n_features", "features__n_landmarks", "n_features")


def compare(
    X: object,
    y: object = None,
    *,
    groups: object = None,
    times: object = None,
    learners: Sequence[str] | Mapping[str, Estimator] | None = None,
    n_features: Sequence[int] = SIZES,
    family: Family | None = None,
    scaling: ScalingKind | None = "standard",
    machine: KernelMachine | None = None,
    rivals: bool | None = None,
    test: Dataset | None = None,
    folds: int | float = 0.2,
    sample_weight: object = None,
    device: str | None = None,
    memory_limit: int | str | None = None,
    random_state: SeedChoice = None,
    checkpoint: str | None = None,
    progress: Choice = None,
) -> Comparison:
    """Fit every learner at every size to the same rows and compare their scores on held-out rows.

    Fits run one after another, so that their times can be compared, on all workers of the current `distributed` client.
    The result holds for these rows and for the learners with the given parameters, by default their defaults.

    Parameters
    ----------
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or None
        The targets; None if X is a Dataset, which has its own.
    groups, times : str, array of shape (n,), or None
        As in `KernelClassifier.fit`: whole groups, or the newest rows, are held out, and the result says so.
    learners : sequence of str, mapping of str to estimator, or None
        Names as in `KernelClassifier` ("auto" is the machine that chooses its features, fitted once), and "tuned"; or
        a mapping of names to estimators: feature learners, machines of dkl, or any classifier or regressor of
        scikit-learn, which is fitted once to rows in memory. None is "auto" and all learners for these targets.
    n_features : sequence of int
        The sizes: numbers of columns of the mapped rows (of landmarks for `LandmarkFeatures`).
    family : Family or None
        The family of learners given by name; None is their default.
    scaling : {None, "standard", "minmax", "unit", "quantile", "counts"}
        The scaling of learners given by name.
    machine : KernelClassifier or KernelRegressor, or None
        The model that is fitted to the features. None is exact Newton steps with the squared loss, and a penalty chosen
        on held-out rows.
    rivals : bool or None
        Also fit scikit-learn's linear model, boosted trees, and for up to 10,000 rows an SVM, with their defaults; only
        for rows that fit in memory. None is True without `learners`.
    test : Dataset or None
        The rows that are scored; None holds out some of X.
    folds : int or float
        Without `test`: the number of folds, each of which is scored once, or a share of the rows that is scored. Rows
        are chosen by a hash of the row id.
    sample_weight : array of shape (n,) or None
        Frequency weights, in fits and in scores.
    device : {"auto", "cpu", "gpu", "mixed"} or None
    memory_limit : int, str or None
        The limit of each fit; None leaves learners their own.
    random_state : int, SeedChoice or None
        Seed of the folds, and of learners whose own is None.
    checkpoint : str or None
        Folder or URL where every score is stored, so that an interrupted comparison can continue.
    progress : bool, callable or None
        A function that raises `dkl.StopRequested` ends the comparison with the fits so far.

    Returns
    -------
    Comparison
        Prints as a table with advice; with ``table`` (a data frame), ``fewest_features``, ``fastest`` and ``plot()``.

    Raises
    ------
    ValueError
        For an unknown learner or one that cannot fit the targets, no sizes, or rows without a target; before anything
        is fitted.
    StoreError
        If the checkpoint belongs to another comparison.
    RuntimeError
        If all fits fail; if some fail, the result has their errors.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> import dkl
    >>> X, y = load_iris(return_X_y=True)
    >>> found = dkl.compare(X, y, learners=["random", "aligned"], n_features=[10, 40], folds=3, random_state=0)
    >>> len(found.results), bool(found.best.score > 0.9)
    (4, True)
    """
    rows = BesideFeatures(X, groups, times)
    if getattr(machine, "drop_missing_target", False):
        rows, y, sample_weight = rows.with_targets(y, sample_weight)
    dataset = rows_to_search("compare", rows, y, sample_weight, "auto", warns=test is None)
    sizes = checked_sizes(n_features)
    entries = entries_of(learners, max(sizes), dataset.task, family, scaling)
    if rivals or (rivals is None and learners is None):
        # Names of estimators that the user chose replace those of rivals.
        entries = {**rivals_for(dataset), **entries}
    compared = ComparedRows(dataset, test, folds, machine, {"device": device, "memory_limit": memory_limit})
    compared.check()
    # The fingerprint reads the rows' checksums, so that it is computed only for a checkpoint.
    fingerprint = "" if checkpoint is None else compared.fingerprint(entries, sizes, random_state)
    seed = stored_seed(random_state, checkpoint, fingerprint)
    contestants = compared.contestants(entries, sizes, seed)
    views = compared.views(seed)
    record = Record.of(views, stage_checkpoint(checkpoint, "scores"), fingerprint)
    journal = Journal(
        record, EachAlone(contestants, views), RequestKeeper(resolve_progress(progress), "trials"), len(contestants)
    )
    with journal.under_way():
        # Each contestant is one trial of a search that sets no parameters.
        journal.judge({number: {} for number in range(len(contestants))}, float("inf"))
    return Comparison(
        rows=f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns",
        split=kind_of_split(dataset) if test is None else "the rows given as test",
        measure="accuracy" if dataset.task == "classification" else "R^2",
        n_test=float(record.weights.sum()),
        results=tuple(entry.result(record, n) for n, entry in enumerate(contestants) if not record.missing(n)),
        message=f"{journal.publish.request} after {len(record.done)} of {len(contestants)} fits"
        if journal.ended
        else "",
    )


@dataclass(frozen=True, eq=False)
class Contestant:
    """One learner at one size, as an unfitted estimator.

    Parameters
    ----------
    learner : str
    n_features : int or None
    model : estimator
    """

    learner: str
    n_features: int | None
    model: Estimator

    def result(self, record: Record, number: int) -> Compared:
        """The score, deviation and seconds of contestant `number`, from the record."""
        # There was one fit for each fold; the time of one fit is compared.
        seconds = record.seconds(number) / record.n_folds
        deviation = float(np.std(record.scores(number)))
        return Compared(
            self.learner, self.n_features, record.score(number), deviation, seconds, error=record.error(number)
        )


@dataclass(frozen=True, eq=False)
class EachAlone:
    """Fits and scores contestants one after another, so that their times can be compared.

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
            # The first fit of a process loads compiled code. It is done once more beforehand, so that this time is not
            # attributed to a contestant.
            judged(self.contestants[job.trial].model, {}, self.folds[job.fold], None)
        # Jobs are ordered by trial, so that each group has all folds of one contestant.
        for trial, own in groupby(jobs, key=lambda job: job.trial):
            yield from InTurn(self.contestants[trial].model, self.folds, None).run(list(own), deadline)


@dataclass(frozen=True, eq=False)
class ComparedRows:
    """The rows on which learners are compared, and the settings that all fits share.

    Parameters
    ----------
    dataset : Dataset
    test, folds, machine
        As in `compare`.
    limits : mapping of str to object
        The device and the memory limit of each fit; None leaves models their own.
    """

    dataset: Dataset
    test: Dataset | None
    folds: int | float
    machine: KernelMachine | None
    limits: Mapping[str, object]

    def check(self) -> None:
        """Raise ValueError for arguments without a meaning.

        Raises
        ------
        ValueError
            With the argument and what is expected.
        """
        # Only the argument is checked here; the folds themselves need the seed.
        Folds.of(self.folds, 0)
        if self.test is not None and not isinstance(self.test, Dataset):
            raise ValueError(f"test is a {type(self.test).__name__}; expected a Dataset, such as ds['test']")
        if self.machine is not None and not isinstance(self.machine, KernelMachine):
            raise ValueError(f"machine is {self.machine!r}; expected KernelClassifier() or KernelRegressor()")

    def views(self, seed: int) -> list[ValidationFold]:
        """The rows that are fitted and those that are scored, for each fold."""
        if self.test is not None:
            return [ValidationFold(self.dataset, self.test)]
        return fold_views(self.dataset, Folds.of(self.folds, seed))

    def contestants(self, entries: Mapping[str, Estimator], sizes: Sequence[int], seed: int) -> list[Contestant]:
        """All contestants, small sizes first, so that a comparison that ends early has every learner at small sizes."""
        models = {name: self._limited(quiet(self._model(entry), seed)) for name, entry in entries.items()}
        # Estimators without such a parameter, such as boosted trees, are fitted once.
        sized: dict[str, str] = {}
        for name, model in models.items():
            # A machine that chooses its features also chooses their number.
            parameters = {} if getattr(model, "features", None) == "auto" else model.get_params(deep=True)
            parameter = next((parameter for parameter in _SIZE_NAMES if parameter in parameters), None)
            if parameter is not None:
                sized[name] = parameter
        alone = [Contestant(name, None, model) for name, model in models.items() if name not in sized]
        grown = [
            Contestant(name, size, clone(models[name]).set_params(**{parameter: size}))
            for size in sizes
            for name, parameter in sized.items()
        ]
        return [*alone, *grown]

    def fingerprint(self, entries: Mapping[str, Estimator], sizes: Sequence[int], random_state: SeedChoice) -> str:
        """The digest of everything that the scores depend on: models, sizes, rows, seed and version."""
        models = [(name, effective_parameters(self._model(entry))) for name, entry in entries.items()]
        rows = (self.dataset.fingerprint, self.folds if self.test is None else self.test.fingerprint)
        # A generator cannot be compared; the seed drawn from it is stored in the checkpoint.
        seed = random_state if isinstance(random_state, Integral) else None
        return digest_of(models, tuple(sizes), rows, seed, __version__)

    def _limited(self, model: Estimator) -> Estimator:
        """The model, with the device and the memory limit of the comparison if it is one of dkl."""
        parameters = model.get_params(deep=True) if reads_blocks(model) else {}
        # Nested estimators have limits of their own (`features__memory_limit`), which are all set.
        limits = {name: self.limits.get(name.rpartition("__")[2]) for name in parameters}
        return model.set_params(**{name: value for name, value in limits.items() if value is not None})

    def _model(self, entry: Estimator) -> Estimator:
        """A machine on the features of `entry`, or `entry` itself if it predicts."""
        if not isinstance(entry, FeatureLearner) or isinstance(entry, TunedLearner):
            return entry
        return clone(self.machine or exact_machine(self.dataset.task)).set_params(features=entry)


def exact_machine(task: str | None) -> KernelMachine:
    """A machine with exact Newton steps on the squared loss of the task, and a penalty chosen on held-out rows."""
    machine = KernelClassifier if task == "classification" else KernelRegressor
    return machine(**exact_steps(task))


def entries_of(
    learners: Sequence[str] | Mapping[str, Estimator] | None,
    largest: int,
    task: str | None,
    family: Family | None,
    scaling: ScalingKind | None,
) -> dict[str, Estimator]:
    """The estimators that are compared, by name.

    Parameters
    ----------
    learners : sequence of str, mapping of str to estimator, or None
    largest : int
        The largest size; pools of candidates are a multiple of it.
    task : {"classification", "regression"}
    family, scaling
        As in `compare`.

    Raises
    ------
    ValueError
        For an unknown name, a learner that is not for the task, an object that is no estimator, or no learner at all.
    """
    if isinstance(learners, Mapping):
        # Estimators may come from any library that follows scikit-learn's interface.
        wrong = [name for name, entry in learners.items() if not isinstance(entry, BaseEstimator)]
        if wrong or not learners:
            raise ValueError(f"learners holds no estimator at {wrong}; expected such as {{'margin': MarginFeatures()}}")
        return dict(learners)
    by_name = learners_for(task)
    names = [AUTO, *by_name] if learners is None else list(learners)
    wrong = [name for name in names if name not in by_name and name != AUTO]
    if wrong or not names or isinstance(learners, str):
        raise ValueError(
            f"learners is {learners!r}; expected some of {[AUTO, *by_name]}, those for {task}, or estimators"
        )
    compared_candidates = {entry.name: entry.compared_candidates for entry in LEARNERS}
    entries: dict[str, Estimator] = {}
    for name in names:
        if name == AUTO:
            entries[name] = KernelClassifier() if task == "classification" else KernelRegressor()
            continue
        learner = by_name[name]()
        # Step features have neither a scaling nor a family, since thresholds do not depend on units.
        parameters = learner.get_params(deep=False)
        if "scaling" in parameters:
            learner.set_params(scaling=scaling)
        if family is not None and "family" in parameters:
            learner.set_params(family=family)
        # All sizes have the pool that `dkl fit` draws for the largest one: with smaller pools for smaller sizes the
        # curves would show two effects at once.
        candidates = compared_candidates.get(type(learner).__name__)
        if candidates is not None:
            learner.set_params(n_candidates=candidates * largest)
        if isinstance(learner, JointFeatures):
            # A looser tolerance halves the number of passes, with equal scores within their standard errors.
            learner.set_params(tol=0.01)
        entries[name] = learner
    return entries


def learners_for(task: str | None) -> dict[str, type[FeatureLearner]]:
    """The classes of all learners for the task, by name, `RandomFeatures` first."""
    if task == "classification":
        return {**learner_classes(), "tuned": TunedClassifier}
    return {**learner_classes(entry for entry in LEARNERS if not entry.needs_classes), "tuned": TunedRegressor}


def checked_sizes(n_features: Sequence[int]) -> tuple[int, ...]:
    """The distinct sizes, ascending.

    Raises
    ------
    ValueError
        If one is not a whole number of at least 1, or there is none.
    """
    sizes = tuple(np.ravel(n_features).tolist())
    if not sizes or not all(isinstance(size, int) and size >= 1 for size in sizes):
        raise ValueError(f"n_features is {n_features!r}; expected whole numbers of at least 1, such as (50, 200, 800)")
    return tuple(sorted(set(sizes)))
