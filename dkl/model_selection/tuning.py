"""dkl.tune: searches hyper-parameters of a model by cross-validation, with a Gaussian process or successive halving."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.rows import BesideFeatures, held_rows
from dkl.data.together.telling import kind_of_split, warn_of_random_folds
from dkl.events import RequestKeeper
from dkl.linear.judge import Folds, ranked
from dkl.methods.checkpoints import digest_of, effective_parameters, stage_checkpoint, stored_seed
from dkl.methods.validation import check_target, without_splits
from dkl.model_selection.evaluation import Scoring, fitted_to, reads_blocks, with_parameters
from dkl.model_selection.folds import ValidationFold, fold_views
from dkl.model_selection.proposals import Acquisition, Proposer
from dkl.model_selection.running import Runner, runner_for
from dkl.model_selection.search_loop import Budget, Journal, search
from dkl.model_selection.space import Space, space_of
from dkl.model_selection.trial_record import Record, table
from dkl.model_selection.tuned_trials import OnSums, needs_no_pass
from dkl.plots.figure import Axes
from dkl.progress import Choice, resolve_progress
from dkl.protocols.estimators import Estimator
from dkl.version import __version__

# eta of the paper: one trial in three is promoted to the next rung.
_FACTOR = 3
SeedChoice = int | np.random.RandomState | None


def tune(
    model: Estimator,
    X: object,
    y: object = None,
    *,
    groups: Any = None,
    times: Any = None,
    space: Mapping[str, Any],
    n_trials: int | None = 50,
    timeout: float | None = None,
    folds: int | float = 5,
    scoring: Scoring = None,
    acquisition: Acquisition = "ucb",
    kappa: float = 1.0,
    n_initial: int = 5,
    parallel: int = 1,
    halving: tuple[Any, ...] | None = None,
    sample_weight: object = None,
    refit: bool = True,
    random_state: SeedChoice = None,
    checkpoint: str | None = None,
    progress: Choice = None,
) -> Tuning:
    """Search for the hyper-parameters of a model by Bayesian optimisation of its cross-validated score.

    The first `n_initial` trials are spread over the space. Each further trial is the point where a Gaussian process on
    the scores so far has the largest upper confidence bound. The same seed gives the same trials, on any number of
    workers.

    All trials of a `TunedRegressor` with ``solver="full"`` need only one pass if `space` names no other parameters than
    lam, Lam, gamma, length_scale, meta_kernel, density_floor, center and shared_density, since their errors follow from
    sums by fold. Frequencies and scalings are then those of all rows.

    Parameters
    ----------
    model : estimator
        Any machine of dkl, or any classifier or regressor of scikit-learn (whose rows are then held in memory).
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or (n, t), or None
        The targets; None if X is a Dataset, which has its own.
    groups, times : str, array of shape (n,), or None
        As in `KernelClassifier.fit`: no group is in two folds; with times, each fold is scored by models of older rows.
    space : mapping of str to range or choice
        By the name of a parameter, nested ones included (``"features__n_features"``). A range is ``(low, high)``,
        ``(low, high, "log")``, ``(low, high, "int")`` or ``(low, high, "log-int")``; a list has the values to choose
        from.
    n_trials : int or None
        The number of sets of parameters; None leaves the end to `timeout`. With `halving` the number in the first rung.
    timeout : float or None
        Seconds after which this call begins no further fit.
    folds : int or float
        The number of folds, chosen by a hash of the row id, by group or by time; a share such as 0.2 holds out this
        share of the rows once.
    scoring : str, callable or None
        None is the model's `score`; else the name of a scikit-learn scorer, or a function ``scoring(model, dataset) ->
        float``; larger is better. A trial's score is the mean over its folds, weighted by the rows of each.
    acquisition : {"ucb", "random"}
        "random" draws all trials at random, without a process.
    kappa : float
        The number of standard deviations by which the upper confidence bound exceeds the mean; a larger value explores
        more.
    n_initial : int
        The number of first trials, a Latin hypercube.
    parallel : int
        The number of trials that are proposed together and evaluated at the same time: each fit on one worker of the
        current `distributed` client, or in a thread. With 1, fits run one after another, each on all workers.
    halving : tuple (name, least, most) or (name, least, most, factor) or None
        Successive halving: all trials run with the parameter `name` (such as ``"epochs"``) at `least`; the best, one in
        `factor` (3), run again with `factor` times as much, and so on up to `most`. Trials are a Latin hypercube.
    sample_weight : array of shape (n,) or None
        Frequency weights, in fits and in scores.
    refit : bool
        Whether to fit the model with the best parameters to all rows.
    random_state : int, RandomState or None
        Seed of the trials and the folds, and of the model if its own is None.
    checkpoint : str or None
        Folder or URL where every outcome is stored: an interrupted search continues with the same trials, and a
        finished one continues if `n_trials` is larger.
    progress : bool, callable or None
        A function that raises `dkl.StopRequested` ends the search with the trials so far; with a `checkpoint` the next
        call continues from there.

    Returns
    -------
    Tuning
        With ``best_params_``, ``best_score_``, ``best_model_``, ``trials`` (a data frame) and ``plot()``.

    Raises
    ------
    ValueError
        For a budget of zero, a parameter that the model does not have, an empty range, or a fold without rows; before
        anything is fitted.
    StoreError
        If the checkpoint belongs to another search.
    RuntimeError
        If the first `n_initial` trials all fail, or none ends in time. A single failed trial is recorded with its
        error.

    References
    ----------
    Shilton, Gupta, Rana & Venkatesh 2022, "Tuned random features", section 6 (GP-UCB, 105 evaluations, 10 folds).

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from dkl.machines.kernel_machines import KernelClassifier
    >>> from dkl.methods.random_features import RandomFeatures
    >>> from dkl.model_selection.tuning import tune
    >>> X, y = load_iris(return_X_y=True)
    >>> machine = KernelClassifier(RandomFeatures(scaling="standard"), solver="newton", loss="squared_hinge")
    >>> space = {"alpha": (1e-6, 1e-1, "log"), "features__n_features": (20, 200, "log-int")}
    >>> tuning = tune(machine, X, y, space=space, n_trials=8, folds=3, random_state=0)
    >>> bool(tuning.best_score_ > 0.9), len(tuning.trials)
    (True, 8)
    """
    settings = Search(
        space=space,
        n_trials=n_trials,
        timeout=timeout,
        folds=folds,
        scoring=scoring,
        acquisition=acquisition,
        kappa=kappa,
        n_initial=n_initial,
        parallel=parallel,
        halving=halving,
        random_state=random_state,
        checkpoint=checkpoint,
        progress=progress,
    )
    # Arguments are checked before any row is read.
    settings.check(model)
    started = time.monotonic()
    # Whole numbers may be classes or amounts; if the rows do not say, the kind of the model decides.
    task: TaskChoice = "classification" if is_classifier(model) else "regression" if is_regressor(model) else "auto"
    # Folds are views of these rows, so that a machine's `categorical` has to apply here.
    categorical = getattr(model, "categorical", None)
    rows = BesideFeatures(X, groups, times)
    if getattr(model, "drop_missing_target", False):
        rows, y, sample_weight = rows.with_targets(y, sample_weight)
    dataset = rows_to_search("tune", rows, y, sample_weight, task, categorical=categorical)
    settings = settings.seeded(model, dataset)
    model = quiet(model, settings.seed)
    tuning = settings.run(model, dataset, started)
    if refit:
        # Scores come from models fitted without a fold; the returned model is fitted to all rows.
        tuning.best_model_ = fitted_to(with_parameters(model, tuning.best_params_), dataset)
    return tuning


@dataclass(frozen=True, eq=False)
class Search:
    """The settings of a search: the parameters of `tune`, and the seed and the fingerprint, which `seeded` sets."""

    space: Mapping[str, Any]
    n_trials: int | None
    timeout: float | None
    folds: int | float
    scoring: Scoring
    acquisition: Acquisition
    kappa: float
    n_initial: int
    parallel: int
    halving: tuple[Any, ...] | None
    random_state: SeedChoice
    checkpoint: str | None
    progress: Choice
    seed: int = 0
    fingerprint: str = ""

    @property
    def ladder(self) -> Ladder | None:
        """The rungs of successive halving; None without `halving`."""
        return None if self.halving is None else ladder_of(self.halving)

    def check(self, model: Estimator) -> None:
        """Raise ValueError for settings without a meaning.

        Raises
        ------
        ValueError
            With the argument, what is wrong with it, and what is expected.
        """
        check_names(model, space_of(self.space), self.ladder, self.scoring)
        # Only the argument is checked here; the folds themselves need the seed.
        Folds.of(self.folds, 0)
        if self.n_trials is None and self.timeout is None:
            raise ValueError("the search has no end: give n_trials=50, say, or timeout=3600 (seconds), or both")
        if self.halving is not None and self.n_trials is None:
            raise ValueError("halving needs to know how many trials it begins with: give n_trials")
        for name in ("n_trials", "n_initial", "parallel"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
                raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
        if self.timeout is not None and not (isinstance(self.timeout, Real) and self.timeout > 0):
            raise ValueError(f"timeout is {self.timeout!r}; expected a number of seconds above 0")
        if self.acquisition not in ("ucb", "random"):
            raise ValueError(f"acquisition is {self.acquisition!r}; expected 'ucb' or 'random'")
        if not (isinstance(self.kappa, Real) and self.kappa >= 0):
            raise ValueError(f"kappa is {self.kappa!r}; expected a number of at least 0")

    def seeded(self, model: Estimator, dataset: Dataset) -> Self:
        """The search with its seed, which a checkpoint stores, and with the fingerprint of the run."""
        fingerprint = "" if self.checkpoint is None else self._fingerprint(model, dataset)
        seed = stored_seed(self.random_state, self.checkpoint, fingerprint)
        return replace(self, seed=seed, fingerprint=fingerprint)

    def _fingerprint(self, model: Estimator, dataset: Dataset) -> str:
        """The digest of everything that the trials depend on, by which a checkpoint is recognised."""
        # The budgets `n_trials` and `timeout` are left out, since a larger budget continues with the same trials. With
        # halving `n_trials` is included, since the first rung has that many trials.
        settings = (space_of(self.space), self.folds, self.acquisition, self.kappa, self.n_initial, self.parallel)
        begun = None if self.halving is None else (self.halving, self.n_trials)
        seed = self.random_state if isinstance(self.random_state, Integral) else None
        scoring = self.scoring
        if callable(scoring):
            scoring = getattr(scoring, "__qualname__", type(scoring).__name__)
        return digest_of(effective_parameters(model), settings, begun, scoring, seed, dataset.fingerprint, __version__)

    def run(self, model: Estimator, dataset: Dataset, started: float) -> Tuning:
        """Run the search, until `timeout` seconds after the time `started`."""
        ladder, space = self.ladder, space_of(self.space)
        n_initial = self.n_initial if ladder is None else int(self.n_trials or 0)
        proposer = Proposer(space, self.seed, n_initial, self.acquisition, float(self.kappa))
        budget = Budget(self.n_trials, float("inf") if self.timeout is None else started + self.timeout)
        folds = Folds.of(self.folds, self.seed)
        views = fold_views(dataset, folds)
        record = Record.of(views, stage_checkpoint(self.checkpoint, "trials"), self.fingerprint)
        runner = self._runner(model, dataset, folds, views)
        # With halving the number of trials is not known beforehand, since failed trials shorten the rungs.
        total = (self.n_trials or 0) if ladder is None else 0
        journal = Journal(record, runner, RequestKeeper(resolve_progress(self.progress), "trials"), total)
        with journal.under_way():
            if ladder is None:
                parameters = search(proposer, journal, budget, parallel=self.parallel)
            else:
                parameters = search_by_halving(proposer, journal, budget, ladder)
        ended = journal.publish.request if journal.ended else ""
        resource = None if ladder is None else ladder.name
        return tuning_of(
            journal.record, parameters, space, split=kind_of_split(dataset), resource=resource, ended=ended
        )

    def _runner(self, model: Estimator, dataset: Dataset, folds: Folds, views: Sequence[ValidationFold]) -> Runner:
        """The runner of the fits: on the sums of one pass if the space allows it, else single fits."""
        names, scoring = space_of(self.space).dimensions, self.scoring
        # `OnSums` fits models to all other folds; with times, models are fitted to older folds alone. Target means
        # would have to be learned again for each fold.
        searches_alone = self.halving is None and dataset.schema.held_by != "time" and not dataset.schema.has_codes
        if searches_alone and not callable(scoring) and needs_no_pass(model, names, scoring, len(views)):
            return OnSums.of(model, dataset, folds, scoring)
        return runner_for(model, views, self.scoring, self.parallel)


def check_names(model: Estimator, space: Space, ladder: Ladder | None, scoring: Scoring) -> None:
    """Raise ValueError if the space has parameters that the model does not have.

    Raises
    ------
    ValueError
        With the name, and the names of the model's parameters.
    """
    if not hasattr(model, "get_params") or not hasattr(model, "fit"):
        raise ValueError(f"model is {model!r}; expected an estimator, such as dkl.KernelClassifier()")
    # Feature learners have no score; they need a model on their features.
    if not hasattr(model, "score") and not callable(scoring):
        raise ValueError(
            f"{type(model).__name__} has no score to search by: put it into a machine, "
            f"KernelClassifier(features={type(model).__name__}()), and name its parameters 'features__rho'"
        )
    parameters = model.get_params(deep=True)
    for name in (*space.dimensions, *(() if ladder is None else (ladder.name,))):
        # `features__n_features` may be a parameter of an estimator that the space sets for `features`.
        if name not in parameters and name.rpartition("__")[0] not in space.dimensions:
            hint = ""
            if "__" in name and isinstance(parameters.get(name.partition("__")[0]), str):
                outer = name.partition("__")[0]
                hint = (
                    f"; {outer} is {parameters[outer]!r}, a name: give the estimator itself, so that it has parameters"
                )
            raise ValueError(
                f"space names {name!r}, and {type(model).__name__} has no such parameter{hint}. It has "
                f"{', '.join(sorted(parameters))}"
            )
    if ladder is not None and ladder.name in space.dimensions:
        raise ValueError(f"{ladder.name!r} is the resource of halving; take it out of the space")


def rows_to_search(
    asking: str,
    rows: BesideFeatures,
    y: object,
    sample_weight: object,
    task: TaskChoice,
    *,
    categorical: Sequence[str] | None = None,
    warns: bool = True,
) -> Dataset:
    """The rows as one Dataset with a target; `asking` is the calling function in errors.

    `categorical` is the parameter of machines.

    Raises
    ------
    ValueError
        Without a target.
    """

    def made() -> Dataset:
        """The rows without what keeps some of them together."""
        dataset = as_dataset(rows.X, y, sample_weight, task=task, categorical=categorical or (), looks=True)
        check_target(asking, dataset)
        return dataset

    dataset = without_splits(held_rows(rows.noted_of(made, sample_weight)))
    if warns:
        warn_of_random_folds(dataset, asking)
    return dataset


def quiet(model: Estimator, seed: int) -> Estimator:
    """A copy without progress and checkpoint, whose random states of None become the seed of the search."""
    given = clone(model).get_params(deep=True)
    changed: dict[str, Any] = {}
    for name, value in given.items():
        kind = name.rpartition("__")[2]
        # A seed given by the user is kept.
        if kind == "random_state" and value is None:
            changed[name] = seed
        elif kind in ("progress", "checkpoint") and reads_blocks(model):
            # All trials would share a checkpoint of the model, and their progress bars would hide that of the search.
            changed[name] = False if kind == "progress" else None
    return clone(model).set_params(**changed)


@dataclass(frozen=True)
class Ladder:
    """The rungs of successive halving.

    Parameters
    ----------
    name : str
        The parameter that is the resource, such as ``"epochs"``.
    amounts : tuple of int
        The value of the parameter in each rung, ascending.
    factor : float
        One trial in `factor` is promoted to the next rung.
    """

    name: str
    amounts: tuple[int, ...]
    factor: float


def ladder_of(given: object) -> Ladder:
    """The rungs for ``halving=(name, least, most)`` or ``(name, least, most, factor)``.

    Raises
    ------
    ValueError
        For anything else, or amounts that do not increase.
    """
    if not isinstance(given, tuple) or len(given) not in (3, 4) or not isinstance(given[0], str):
        raise ValueError(
            f"halving is {given!r}; expected (name, least, most) or (name, least, most, factor), such as "
            "('epochs', 1, 27)"
        )
    name, least, most = given[:3]
    factor = given[3] if len(given) == 4 else _FACTOR
    if not (isinstance(least, Integral) and isinstance(most, Integral) and 1 <= int(least) < int(most)):
        raise ValueError(f"halving goes from {least!r} to {most!r} {name}; expected whole numbers, the lower first")
    if not (isinstance(factor, Real) and float(factor) > 1.0):
        raise ValueError(f"halving has the factor {factor!r}; expected a number above 1")
    amounts, step = [int(least)], float(factor)
    # Rounded up, so that each rung has at least one unit more; the last one has exactly `most`.
    while (following := math.ceil(amounts[-1] * step)) < int(most):
        amounts.append(following)
    return Ladder(name, (*amounts, int(most)), step)


def search_by_halving(
    proposer: Proposer, journal: Journal, budget: Budget, ladder: Ladder
) -> dict[int, dict[str, Any]]:
    """Evaluate the trials rung by rung.

    A rung begins when all trials of the one below have been evaluated, and takes the best of them (among equal scores
    the first). The same trials are therefore promoted for any number of workers, and in a search that is continued.
    Each rung fits from the start with more of the resource, so that a trial's score is that of an ordinary fit; with a
    factor of 3 this costs half as much again as continuing the earlier fits.

    Parameters
    ----------
    proposer : Proposer
        Its initial design is the first rung.
    journal : Journal
    budget : Budget
    ladder : Ladder

    Returns
    -------
    dict of int to dict
        The parameters of all trials by number; those of the first rung come first.

    References
    ----------
    Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".
    """
    empty = np.empty((0, proposer.space.width))
    # Without scores the proposer returns its Latin hypercube.
    points = proposer.propose(empty, np.empty(0), proposer.n_initial)
    running = [proposer.space.decode(point) for point in points]
    trials: dict[int, dict[str, Any]] = {}
    for amount in ladder.amounts:
        # A promoted trial is fitted again as a new trial with its own number, so that the record has both scores.
        rung = {len(trials) + place: {**values, ladder.name: amount} for place, values in enumerate(running)}
        trials |= rung
        # An incomplete rung is not ranked, since the promoted trials would depend on the order of the workers.
        if not journal.judge(rung, budget.deadline):
            break
        n_promoted = max(1, int(len(rung) / ladder.factor))
        best = ranked([journal.record.score(trial) for trial in rung])[:n_promoted]
        running = [running[place] for place in best]
        if not running:
            break
    return trials


@dataclass(eq=False)
class Tuning:
    """The result of `dkl.tune`.

    Attributes
    ----------
    best_params_ : dict
        The parameters of the best trial, the one with the largest score (among equal scores the first).
    best_score_ : float
        Its mean score over the rows of all folds.
    best_index_ : int
        Its number.
    best_model_ : estimator or None
        The model with these parameters, fitted to all rows; None with ``refit=False``.
    trials : pandas.DataFrame
        One row for each trial: score, deviation between folds, seconds, error (empty if none), the parameters.
    fold_scores_ : ndarray of shape (n_trials, n_folds)
    space : Space
    message : str
        How the search ended.
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_index_: int
    trials: Any
    fold_scores_: np.ndarray
    space: Space
    message: str
    best_model_: Any = field(default=None)

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Any:
        """Draw the trials: the score of each, and against every parameter; see `dkl.plots.TrialsDisplay`."""
        from dkl.plots.trials import TrialsDisplay

        return TrialsDisplay.from_tuning(self).plot(ax)

    def __repr__(self) -> str:
        shown = {
            name: f"{value:.6g}" if isinstance(value, float) else repr(value)
            for name, value in self.best_params_.items()
        }
        best = ", ".join(f"{name}={value}" for name, value in shown.items())
        return f"Tuning: {self.message}; best score {self.best_score_:.6g} in trial {self.best_index_} with {best}"

    def _repr_html_(self) -> str:
        # A notebook shows the best trials first, and the failed ones, whose score is NaN, at the end.
        ordered = self.trials.sort_values("score", ascending=False, kind="stable", na_position="last")
        return f"<p>{escape(repr(self))}</p>{ordered.to_html(max_rows=12, float_format='{:.5g}'.format)}"


def tuning_of(
    record: Record,
    parameters: Mapping[int, Mapping[str, Any]],
    space: Space,
    *,
    split: str = "single rows, drawn at random",
    resource: str | None = None,
    ended: str = "",
) -> Tuning:
    """The result of a search, from its record.

    Parameters
    ----------
    record : Record
    parameters : mapping of int to mapping
        The parameters of all trials that have begun, by number.
    space : Space
    split : str
        How rows were held out.
    resource : str or None
        The resource of halving; only trials with the largest amount of it can be the best.
    ended : str
        Why the search ended early; empty if it did not.

    Raises
    ------
    RuntimeError
        If no trial has a score.
    """
    done = {trial: dict(values) for trial, values in parameters.items() if not record.missing(trial)}
    scored = {trial: score for trial in done if np.isfinite(score := record.score(trial))}
    if not scored:
        # usually all trials have the same error
        errors = [error for trial in done if (error := record.error(trial))]
        cause = (
            f"all of {len(done)} failed; the first error: {errors[0]}" if errors else "none ended before the timeout"
        )
        raise RuntimeError(f"no trial has a score: {cause}")
    # Scores with different amounts of a resource (epochs) cannot be compared: the best trial is one of the highest
    # rung that has a score.
    most = None if resource is None else max(done[trial][resource] for trial in scored)
    final = [trial for trial in scored if resource is None or done[trial][resource] == most]
    # Among equal scores the earlier trial is chosen, so that the result does not depend on the order of a dict.
    final.sort()
    best = final[ranked([scored[trial] for trial in final])[0]]
    failed = len(done) - len(scored)
    message = f"{len(done)} trials of {record.n_folds} fold{'s' if record.n_folds > 1 else ''} of {split}"
    return Tuning(
        best_params_=done[best],
        best_score_=scored[best],
        best_index_=best,
        trials=table(record, done),
        fold_scores_=np.array([record.scores(trial) for trial in done]),
        space=space,
        message=(f"{ended} after " if ended else "") + message + (f", {failed} failed" if failed else ""),
    )
