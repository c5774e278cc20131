"""dkl.compare: fits every learner at every size to the same rows, and scores it on rows that none of them has seen.

Its result, a `Comparison`, has the scores and seconds of all of them, with advice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, clone

from dkl.data.dataset import Dataset
from dkl.data.together.messages import kind_of_split
from dkl.data.together.rows import GroupsAndTimes
from dkl.events import RequestKeeper
from dkl.features.families import Family
from dkl.features.scaling import ScalingKind
from dkl.figure import Axes
from dkl.linear.judge import Folds, ranked, score_error
from dkl.machines.kernel_machines import KernelClassifier, KernelMachine, KernelRegressor
from dkl.machines.settings import squared_loss
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import digest_of, effective_parameters, stage_checkpoint, stored_seed
from dkl.methods.density.joint_learner import JointFeatures
from dkl.methods.density.learner import TunedClassifier, TunedLearner, TunedRegressor
from dkl.model_selection.evaluation import judged, reads_blocks
from dkl.model_selection.folds import ValidationFold, fold_views
from dkl.model_selection.rivals import OUTSIDE
from dkl.model_selection.rivals import rivals as rivals_for
from dkl.model_selection.running import Outcomes, Trial, TrialFit, in_turn
from dkl.model_selection.trials import Trials
from dkl.model_selection.tuning import SeedChoice, quiet, rows_to_search
from dkl.plain_text import html_table, in_columns
from dkl.plots.score_curves import ComparisonDisplay
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
    sample_weight : str, array of shape (n,), or None
        Frequency weights, in fits and in scores, or their column of a data frame, which is then no feature.
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
    rows = GroupsAndTimes(X, groups, times)
    dataset = rows_to_search("compare", machine, rows, y, sample_weight, "auto", warns=test is None)
    sizes = checked_sizes(n_features)
    entries = entries_of(learners, max(sizes), dataset.task, family, scaling)
    if rivals or (rivals is None and learners is None):
        # Names of estimators that the user chose replace those of rivals.
        entries = {**rivals_for(dataset), **entries}
    # Only the argument is checked here; the folds themselves need the seed.
    Folds.of(folds, 0)
    if test is not None and not isinstance(test, Dataset):
        raise ValueError(f"test is a {type(test).__name__}; expected a Dataset, such as ds['test']")
    if machine is not None and not isinstance(machine, KernelMachine):
        raise ValueError(f"machine is {machine!r}; expected KernelClassifier() or KernelRegressor()")
    # Learners are compared as the features of a machine; what predicts is compared itself.
    on_features = machine or exact_machine(dataset.task)
    models = {
        name: clone(on_features).set_params(features=entry)
        if isinstance(entry, FeatureLearner) and not isinstance(entry, TunedLearner)
        else entry
        for name, entry in entries.items()
    }
    fingerprint = ""
    if checkpoint is not None:
        # The digest of everything that the scores depend on; it reads the rows' checksums. A generator cannot be
        # compared, and the seed drawn from it is stored in the checkpoint.
        of_models = [(name, effective_parameters(model)) for name, model in models.items()]
        of_rows = dataset.fingerprint, folds if test is None else test.fingerprint
        given_seed = random_state if isinstance(random_state, Integral) else None
        fingerprint = digest_of(of_models, sizes, of_rows, given_seed, __version__)
    seed = stored_seed(random_state, checkpoint, fingerprint)
    limits = {"device": device, "memory_limit": memory_limit}
    contestants = contestants_of({name: limited(quiet(model, seed), limits) for name, model in models.items()}, sizes)
    views = [ValidationFold(dataset, test)] if test is not None else fold_views(dataset, Folds.of(folds, seed))

    def run(jobs: Sequence[TrialFit], deadline: float) -> Outcomes:
        """Fits one after another, so that their times can be compared."""
        # The first fit of a process loads compiled code. It is done once more beforehand, so that this time is not
        # attributed to a contestant.
        for job in jobs[:1]:
            judged(job.trial.model, job.trial.parameters, views[job.fold], None)
        return in_turn(views, None, jobs, deadline)

    publish, place = RequestKeeper(resolve_progress(progress), "trials"), stage_checkpoint(checkpoint, "scores")
    trials = Trials(run, views, publish, place, fingerprint, total=len(contestants))
    with trials.under_way():
        trials.judge({number: contestant.trial for number, contestant in enumerate(contestants)})
    results = tuple(
        Compared(
            contestant.learner,
            contestant.n_features,
            trials.score(number),
            float(np.std(trials.scores(number))),
            # There was one fit for each fold; the time of one fit is compared.
            trials.seconds(number) / trials.n_folds,
            trials.error(number),
        )
        for number, contestant in enumerate(contestants)
        if not trials.missing(number)
    )
    return Comparison(
        rows=f"{dataset.n_rows:,} rows x {dataset.n_columns:,} columns",
        split=kind_of_split(dataset) if test is None else "the rows given as test",
        measure="accuracy" if dataset.task == "classification" else "R^2",
        n_test=float(trials.weights.sum()),
        results=results,
        message=f"{publish.request} after {len(trials.done)} of {len(contestants)} fits" if trials.ended else "",
    )


@dataclass(frozen=True, eq=False)
class Contestant:
    """One learner at one size.

    Parameters
    ----------
    learner : str
    n_features : int or None
    trial : Trial
        Its estimator, and the parameter that sets the size.
    """

    learner: str
    n_features: int | None
    trial: Trial


def limited(model: Estimator, limits: Mapping[str, object]) -> Estimator:
    """The model, with the device and the memory limit of a comparison (None for its own) if it is one of dkl."""
    parameters = model.get_params(deep=True) if reads_blocks(model) else {}
    # Nested estimators have limits of their own (`features__memory_limit`), which are all set.
    own = {name: limits.get(name.rpartition("__")[2]) for name in parameters}
    return model.set_params(**{name: value for name, value in own.items() if value is not None})


def contestants_of(models: Mapping[str, Estimator], sizes: Sequence[int]) -> list[Contestant]:
    """Each model at each size, small sizes first, so that a comparison that ends early has every learner at those.

    Estimators without a parameter for the size, such as boosted trees, are fitted once, before all others.
    """
    sized: dict[str, str] = {}
    for name, model in models.items():
        # A machine that chooses its features also chooses their number.
        parameters = {} if getattr(model, "features", None) == "auto" else model.get_params(deep=True)
        parameter = next((parameter for parameter in _SIZE_NAMES if parameter in parameters), None)
        if parameter is not None:
            sized[name] = parameter
    alone = [Contestant(name, None, Trial(model, {})) for name, model in models.items() if name not in sized]
    grown = [
        Contestant(name, size, Trial(models[name], {parameter: size}))
        for size in sizes
        for name, parameter in sized.items()
    ]
    return [*alone, *grown]


def exact_machine(task: str | None) -> KernelMachine:
    """A machine with exact Newton steps on the squared loss of the task, and a penalty chosen on held-out rows."""
    machine = KernelClassifier if task == "classification" else KernelRegressor
    return machine(solver="newton", loss=squared_loss(task), alpha="auto")


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


@dataclass(frozen=True)
class Compared:
    """The score and cost of one learner at one size.

    Parameters
    ----------
    learner : str
    n_features : int or None
        The requested number of columns; None for an estimator that has no such number.
    score : float
        Accuracy, or R^2 for regression, on held-out rows; NaN if the fit failed.
    deviation : float
        Standard deviation of the score between the folds; 0 for a single fold.
    seconds : float
        Mean time of one fit, learning of the features included.
    error : str
        The error of a failed fit, else empty.
    """

    learner: str
    n_features: int | None
    score: float
    deviation: float
    seconds: float
    error: str = ""

    def __str__(self) -> str:
        size = "" if self.n_features is None else f" with {self.n_features:,} features"
        return f"{self.learner}{size} ({self.score:.4f} in {self.seconds:.3g} s)"


@dataclass(frozen=True)
class Comparison:
    """The result of `dkl.compare`, which can be printed and plotted; `table` is a data frame.

    Parameters
    ----------
    rows : str
        A description of the rows.
    measure : {"accuracy", "R^2"}
    n_test : float
        The total weight of the scored rows.
    results : tuple of Compared
    message : str
        Why the comparison ended before all fits were done; empty if they all were.
    split : str
        How the scored rows were chosen.

    Raises
    ------
    RuntimeError
        If no result has a score.

    Examples
    --------
    >>> from dkl.model_selection.comparison import Compared, Comparison
    >>> plain, found = Compared("random", 400, 0.95, 0.0, 0.5), Compared("margin", 100, 0.951, 0.0, 3.0)
    >>> comparison = Comparison("1,000 rows", "accuracy", 200.0, (plain, found))
    >>> comparison.fewest_features.learner, comparison.fastest.learner
    ('margin', 'random')
    """

    rows: str
    measure: str
    n_test: float
    results: tuple[Compared, ...]
    message: str = ""
    split: str = ""

    def __post_init__(self) -> None:
        if not any(np.isfinite(result.score) for result in self.results):
            raise RuntimeError(f"no learner has a score: all fits failed; the first error: {self.results[0].error}")

    @property
    def n_features(self) -> tuple[int, ...]:
        """The sizes, ascending."""
        return tuple(sorted({result.n_features for result in self.results if result.n_features is not None}))

    @property
    def learners(self) -> tuple[str, ...]:
        """The names of the learners, in the given order."""
        return tuple(dict.fromkeys(result.learner for result in self.results))

    @property
    def best(self) -> Compared:
        """The result with the largest score; among equal scores the fastest."""
        by_time = sorted(self.results, key=lambda result: result.seconds)
        return by_time[ranked([result.score for result in by_time])[0]]

    @property
    def standard_error(self) -> float:
        """The standard error of the best score, for randomly drawn rows; see `dkl.linear.judge.score_error`."""
        return self.error_of(self.best.score)

    def error_of(self, score: float) -> float:
        """The standard error of a score on the held-out rows."""
        return score_error(score, self.n_test, is_share=self.measure == "accuracy")

    @property
    def level(self) -> float:
        """The best score minus one standard error: results above it are considered as good as the best."""
        # The one-standard-error rule (Breiman et al. 1984): scores within it differ by no more than the sampling error
        # of the test rows, so that the cheapest learner is preferable.
        return self.best.score - self.standard_error

    def reaching(self, level: float | None = None) -> tuple[Compared, ...]:
        """The results with at least a given score.

        Parameters
        ----------
        level : float or None
            The least score; None is the attribute `level`, one standard error below the best.
        """
        # the score of a failed fit is NaN, which is never included
        least = self.level if level is None else level
        return tuple(result for result in self.results if result.score >= least)

    def seconds_to(self, learner: str, level: float | None = None) -> float:
        """The shortest time in which a learner reached a score; infinite if it did not.

        Parameters
        ----------
        learner : str
        level : float or None
            As in `reaching`.
        """
        reaching = [result.seconds for result in self.reaching(level) if result.learner == learner]
        return min(reaching, default=float("inf"))

    @property
    def fewest_features(self) -> Compared:
        """The result with the fewest features among those of `reaching`; among equal ones the fastest."""
        return min(self.reaching(), key=lambda result: (result.n_features or float("inf"), result.seconds))

    @property
    def fastest(self) -> Compared:
        """The fastest result among those of `reaching`."""
        return min(self.reaching(), key=lambda result: result.seconds)

    @property
    def advice(self) -> str:
        """Two sentences: the best result, and the smallest and the fastest within a standard error of it."""
        return (
            f"Best: {self.best}. Within a standard error ({self.standard_error:.2g}) of it, the fewest features: "
            f"{self.fewest_features}; the least time: {self.fastest}."
        )

    @property
    def table(self) -> Any:
        """All results as a data frame with one row for each."""
        import pandas as pd

        return pd.DataFrame([asdict(result) for result in self.results])

    def scores(self, learner: str) -> list[float]:
        """The scores of one learner by size; NaN where there is none."""
        return self._by_size(learner, "score")

    def display(self, *, title: str | None = None, baseline: str = "random") -> ComparisonDisplay:
        """The scores against the number of features, and against the seconds of the fit.

        Parameters
        ----------
        title : str or None
            None is the description of the rows.
        baseline : str
            The learner that is drawn as the reference line.
        """
        # A learner whose fits all failed has no line; its errors are printed below the table.
        drawn = [name for name in self.learners if np.isfinite(self.scores(name)).any()]
        alone = [result for result in self.results if result.n_features is None and np.isfinite(result.score)]
        panel = "score"
        spread = {name: spread for name in drawn if any(spread := self._by_size(name, "deviation"))}
        is_bars = len(self.n_features) <= 1
        if is_bars:
            # Bars show the standard errors of their scores instead of deviations between folds.
            spread = {name: [self.error_of(score) for score in self.scores(name)] for name in drawn}
        seconds = {name: self._by_size(name, "seconds") for name in drawn}
        return ComparisonDisplay(
            self.n_features,
            {panel: {name: self.scores(name) for name in drawn}},
            measure=f"{self.measure} on {self.n_test:,.0f} held-out rows" if is_bars else self.measure,
            baseline=baseline,
            title=self.rows if title is None else title,
            spread={panel: spread},
            references={panel: {result.learner: result.score for result in alone}} if alone else {},
            seconds={panel: seconds},
            reference_seconds={panel: {result.learner: result.seconds for result in alone}},
            reference_spread={panel: {result.learner: self.error_of(result.score) for result in alone}},
            own=tuple(result.learner for result in alone if result.learner not in OUTSIDE),
        )

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> ComparisonDisplay:
        """Draw `display`; see `dkl.plots.ComparisonDisplay`."""
        return self.display().plot(ax)

    def cells(self) -> list[list[str]]:
        """The printed table as strings: the heads, then a row for each learner, with its seconds to reach `level`."""
        alone = ["as it is"] if self._alone() else []
        # None is the column of estimators without a size.
        sizes = [*self.n_features, None] if alone else [*self.n_features]
        head = ["learner", *(f"{size:,}" for size in self.n_features), *alone, "seconds to the best"]
        return [head, *(self._row(learner, sizes) for learner in self.learners)]

    def __repr__(self) -> str:
        table = in_columns(self.cells(), left=1)
        return "\n".join([f"{self.measure} by number of features, {self.rows}", *table, *self._lines])

    def _repr_html_(self) -> str:
        return html_table(self.cells()) + "".join(f"<p>{escape(line)}</p>" for line in self._lines)

    @property
    def _lines(self) -> list[str]:
        """The lines below the printed table: advice, kind of held-out rows, message and errors."""
        held = [f"Held out: {self.split}."] if self.split else []
        return [self.advice, *held, *([self.message] if self.message else []), *self.errors]

    def _row(self, learner: str, sizes: Sequence[int | None]) -> list[str]:
        scores = [f"{score:.4f}" if np.isfinite(score) else "" for score in self._by_size(learner, "score", sizes)]
        # Infinite if the learner did not reach the level; the cell is then empty.
        seconds = self.seconds_to(learner)
        return [learner, *scores, f"{seconds:.3g}" if np.isfinite(seconds) else ""]

    @property
    def errors(self) -> list[str]:
        """A line for each failed fit."""
        return [f"{result.learner}: {result.error}" for result in self.results if result.error]

    def _alone(self) -> dict[str, float]:
        """The scores of estimators without a size."""
        return {result.learner: result.score for result in self.results if result.n_features is None}

    def _by_size(self, learner: str, name: str, sizes: Sequence[int | None] | None = None) -> list[float]:
        """An attribute of a learner's results by size; NaN for sizes at which it was not fitted."""
        by_size = {result.n_features: getattr(result, name) for result in self.results if result.learner == learner}
        return [by_size.get(size, float("nan")) for size in (self.n_features if sizes is None else sizes)]
