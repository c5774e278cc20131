"""dkl.tune: searches hyper-parameters of a model by cross-validation, with a Gaussian process or successive halving."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.messages import kind_of_split, warn_of_random_folds
from dkl.data.together.rows import GroupsAndTimes, held_rows
from dkl.events import RequestKeeper
from dkl.figure import Axes
from dkl.linear.judge import Folds, ranked
from dkl.methods.checkpoints import digest_of, effective_parameters, stage_checkpoint, stored_seed
from dkl.methods.validation import check_target, without_splits
from dkl.model_selection.evaluation import Scoring, fitted_to, reads_blocks, with_parameters
from dkl.model_selection.folds import fold_views
from dkl.model_selection.proposals import Proposer
from dkl.model_selection.running import Trial, runner_for
from dkl.model_selection.space import Space, space_of
from dkl.model_selection.trials import Trials
from dkl.model_selection.tuned_trials import needs_no_pass, on_sums
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
    sample_weight : str, array of shape (n,), or None
        Frequency weights, in fits and in scores, or their column of a data frame, which is then no feature.
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
    # Arguments are checked before any row is read.
    searched, ladder = space_of(space), None if halving is None else ladder_of(halving)
    check_names(model, searched, ladder, scoring)
    # Only the argument is checked here; the folds themselves need the seed.
    Folds.of(folds, 0)
    check_budget(n_trials=n_trials, n_initial=n_initial, parallel=parallel, timeout=timeout, halves=ladder is not None)
    if not (isinstance(kappa, Real) and kappa >= 0):
        raise ValueError(f"kappa is {kappa!r}; expected a number of at least 0")
    deadline = float("inf") if timeout is None else time.monotonic() + timeout
    # Whole numbers may be classes or amounts; if the rows do not say, the kind of the model decides.
    task: TaskChoice = "classification" if is_classifier(model) else "regression" if is_regressor(model) else "auto"
    dataset = rows_to_search("tune", model, GroupsAndTimes(X, groups, times), y, sample_weight, task)
    fingerprint = ""
    if checkpoint is not None:
        # The digest of everything that the trials depend on. The budgets `n_trials` and `timeout` are left out, since a
        # larger budget continues with the same trials. With halving `n_trials` is included, since the first rung has
        # that many trials.
        settings = searched, folds, kappa, n_initial, parallel
        rungs = None if halving is None else (halving, n_trials)
        given_seed = random_state if isinstance(random_state, Integral) else None
        measure = getattr(scoring, "__qualname__", type(scoring).__name__) if callable(scoring) else scoring
        of_rows = dataset.fingerprint
        fingerprint = digest_of(effective_parameters(model), settings, rungs, measure, given_seed, of_rows, __version__)
    seed = stored_seed(random_state, checkpoint, fingerprint)
    model, parts = quiet(model, seed), Folds.of(folds, seed)
    views = fold_views(dataset, parts)
    takes_sums = ladder is None and needs_no_pass(model, dataset, searched.dimensions, scoring, n_folds=len(views))
    trials = Trials(
        on_sums(model, dataset, parts, scoring) if takes_sums else runner_for(views, scoring, parallel),
        views,
        RequestKeeper(resolve_progress(progress), "trials"),
        stage_checkpoint(checkpoint, "trials"),
        fingerprint,
        # With halving the number of trials is not known beforehand, since failed trials shorten the rungs.
        total=(n_trials or 0) if ladder is None else 0,
        deadline=deadline,
    )
    n_first = n_initial if ladder is None else int(n_trials or 0)
    proposer = Proposer(searched, seed, n_first, float(kappa))
    with trials.under_way():
        if ladder is None:
            search(model, proposer, trials, n_trials, parallel=parallel)
        else:
            search_by_halving(model, proposer, trials, ladder)
    resource = None if ladder is None else ladder.name
    tuning = tuning_of(trials, searched, split=kind_of_split(dataset), resource=resource)
    if refit:
        # Scores come from models fitted without a fold; the returned model is fitted to all rows.
        tuning.best_model_ = fitted_to(with_parameters(model, tuning.best_params_), dataset)
    return tuning


def check_budget(*, n_trials: int | None, n_initial: int, parallel: int, timeout: float | None, halves: bool) -> None:
    """Raise ValueError for a search without an end, or for numbers without a meaning."""
    if n_trials is None and timeout is None:
        raise ValueError("the search has no end: give n_trials=50, say, or timeout=3600 (seconds), or both")
    if halves and n_trials is None:
        raise ValueError("halving needs to know how many trials it begins with: give n_trials")
    for name, value in (("n_trials", n_trials), ("n_initial", n_initial), ("parallel", parallel)):
        if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
            raise ValueError(f"{name} is {value!r}; expected a whole number of at least 1")
    if timeout is not None and not (isinstance(timeout, Real) and timeout > 0):
        raise ValueError(f"timeout is {timeout!r}; expected a number of seconds above 0")


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
    model: Estimator | None,
    rows: GroupsAndTimes,
    y: object,
    sample_weight: object,
    task: TaskChoice,
    *,
    warns: bool = True,
) -> Dataset:
    """The rows as one Dataset with a target; `asking` is the calling function in errors.

    The parameters `categorical` and `drop_missing_target` of a machine apply here, since folds are views of these rows.

    Raises
    ------
    ValueError
        Without a target.
    """
    sample_weight = rows.weights(sample_weight)
    if getattr(model, "drop_missing_target", False):
        rows, y, sample_weight = rows.with_targets(y, sample_weight)
    categorical = getattr(model, "categorical", None) or ()

    def made() -> Dataset:
        """The rows as a Dataset, without groups and times."""
        dataset = as_dataset(rows.X, y, sample_weight, task=task, categorical=categorical, finds_missing=True)
        check_target(asking, dataset)
        return dataset

    dataset = without_splits(held_rows(rows.with_columns_of(made, sample_weight)))
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


def search(model: Estimator, proposer: Proposer, trials: Trials, n_trials: int | None, *, parallel: int) -> None:
    """Propose and evaluate trials in batches until there are `n_trials`, or the time is up.

    Batch b has the trials from ``b parallel`` to ``(b + 1) parallel - 1`` and depends on the scores of all earlier
    batches alone. The trials are therefore the same for any number of workers, and in a search that is continued.

    Parameters
    ----------
    model : estimator
    proposer : Proposer
    trials : Trials
    n_trials : int or None
        None leaves the end to the deadline of the trials.
    parallel : int
        The number of trials in a batch.

    Raises
    ------
    RuntimeError
        If the first trials all fail.
    """
    points: list[np.ndarray] = []
    space, most = proposer.space, math.inf if n_trials is None else n_trials
    while len(points) < most and time.monotonic() <= trials.deadline:
        first, count = len(points), int(min(parallel, most - len(points)))
        scores = np.array([trials.score(trial) for trial in range(first)])
        # Proposals depend on the scores of earlier batches alone, not on the order in which workers finish.
        points.extend(proposer.propose(np.reshape(points, (first, space.width)), scores, count))
        batch = {number: Trial(model, space.decode(points[number])) for number in range(first, len(points))}
        if not trials.judge(batch) or len(batch) < count:
            break
        errors = [trials.error(trial) for trial in range(len(points))]
        # If all of the first trials fail, the cause is the model or the rows rather than the parameters.
        if len(errors) >= proposer.n_initial and all(errors):
            raise RuntimeError(
                f"the first {len(errors)} trials all failed, so the search was given up; the first error: {errors[0]}"
            )


def search_by_halving(model: Estimator, proposer: Proposer, trials: Trials, ladder: Ladder) -> None:
    """Evaluate the trials rung by rung.

    A rung begins when all trials of the one below have been evaluated, and takes the best of them (among equal scores
    the first). The same trials are therefore promoted for any number of workers, and in a search that is continued.
    Each rung fits from the start with more of the resource, so that a trial's score is that of an ordinary fit; with a
    factor of 3 this costs half as much again as continuing the earlier fits.

    Parameters
    ----------
    model : estimator
    proposer : Proposer
        Its initial design is the first rung.
    trials : Trials
    ladder : Ladder

    References
    ----------
    Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".
    """
    empty = np.empty((0, proposer.space.width))
    # Without scores the proposer returns its Latin hypercube.
    points = proposer.propose(empty, np.empty(0), proposer.n_initial)
    running = [proposer.space.decode(point) for point in points]
    for amount in ladder.amounts:
        # A promoted trial is fitted again as a new trial with its own number, so that the record has both scores.
        first = len(trials.begun)
        rung = {first + place: Trial(model, {**values, ladder.name: amount}) for place, values in enumerate(running)}
        # An incomplete rung is not ranked, since the promoted trials would depend on the order of the workers.
        if not trials.judge(rung):
            break
        n_promoted = max(1, int(len(rung) / ladder.factor))
        best = ranked([trials.score(trial) for trial in rung])[:n_promoted]
        running = [running[place] for place in best]
        if not running:
            break


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


def tuning_of(trials: Trials, space: Space, *, split: str, resource: str | None = None) -> Tuning:
    """The result of a search, from its trials.

    Parameters
    ----------
    trials : Trials
    space : Space
    split : str
        How rows were held out.
    resource : str or None
        The resource of halving; only trials with the largest amount of it can be the best.

    Raises
    ------
    RuntimeError
        If no trial has a score.
    """
    done = {number: dict(trial.parameters) for number, trial in trials.begun.items() if not trials.missing(number)}
    scored = {trial: score for trial in done if np.isfinite(score := trials.score(trial))}
    if not scored:
        # usually all trials have the same error
        errors = [error for trial in done if (error := trials.error(trial))]
        cause = (
            f"all of {len(done)} failed; the first error: {errors[0]}" if errors else "none ended before the timeout"
        )
        raise RuntimeError(f"no trial has a score: {cause}")
    # Scores with different amounts of a resource (epochs) cannot be compared: the best trial is one of the highest
    # rung that has a score.
    most = None if resource is None else max(done[trial][resource] for trial in scored)
    final = [trial for trial in scored if resource is None or done[trial][resource] == most]
    # Among equal scores the earlier trial is chosen.
    best = final[ranked([scored[trial] for trial in final])[0]]
    failed = len(done) - len(scored)
    message = f"{len(done)} trials of {trials.n_folds} fold{'s' if trials.n_folds > 1 else ''} of {split}"
    return Tuning(
        best_params_=done[best],
        best_score_=scored[best],
        best_index_=best,
        trials=table(trials, done),
        fold_scores_=np.array([trials.scores(trial) for trial in done]),
        space=space,
        message=(f"{trials.publish.request} after " if trials.ended else "")
        + message
        + (f", {failed} failed" if failed else ""),
    )


def table(trials: Trials, parameters: Mapping[int, Mapping[str, Any]]) -> Any:
    """The trials as a data frame: score, deviation between folds, seconds, error, and a column for each parameter.

    Parameters
    ----------
    trials : Trials
    parameters : mapping of int to mapping
        The parameters of each evaluated trial, by its number.
    """
    import pandas as pd

    rows = [
        {
            "score": trials.score(trial),
            "deviation": float(np.std(trials.scores(trial))),
            "seconds": trials.seconds(trial),
            "error": trials.error(trial),
            # Objects, such as a family or an estimator, appear by their repr.
            **{
                name: value if isinstance(value, int | float | str | bool | None) else repr(value)
                for name, value in values.items()
            },
        }
        for trial, values in parameters.items()
    ]
    return pd.DataFrame(rows, index=pd.Index(list(parameters), name="trial"))
