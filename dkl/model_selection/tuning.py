"""dkl.tune: hyper-parameters of a model by cross-validation, where to look next by a Gaussian process or halving."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from sklearn.base import clone, is_classifier, is_regressor

from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.data.labels import TaskChoice
from dkl.data.together.rows import BesideFeatures, held_rows
from dkl.data.together.telling import kind_of_split, warn_of_random_folds
from dkl.linear.judge import Folds, ranked
from dkl.methods.checkpoints import digest_of, stage_checkpoint, stored_seed, what_counts
from dkl.methods.validation import check_target, without_splits
from dkl.model_selection.evaluation import Scoring, fitted_to, reads_blocks, with_parameters
from dkl.model_selection.folds import ValidationFold, fold_views
from dkl.model_selection.proposals import Acquisition, Proposer
from dkl.model_selection.running import Runner, runner_for
from dkl.model_selection.search_loop import Budget, Journal, search
from dkl.model_selection.space import Space, space_of
from dkl.model_selection.trial_record import Record, table
from dkl.model_selection.tuned_trials import OnSums, needs_no_pass
from dkl.progress import Choice, resolve_progress
from dkl.protocols.estimators import Estimator
from dkl.version import __version__

# eta of the paper: two thirds of the trials end with each rung.
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

    After `n_initial` trials spread over the space, each next one is where a Gaussian process on the scores so far has
    the largest upper confidence bound. The same seed gives the same trials, on any number of workers.

    One pass serves all trials of a `TunedRegressor` with ``solver="full"`` whose `space` names no more than lam, Lam,
    gamma, length_scale, meta_kernel, density_floor, center and shared_density: sums by fold tell what each would
    predict. Frequencies and scalings are then those of all rows.

    Parameters
    ----------
    model : estimator
        Any machine of dkl, or any classifier or regressor of scikit-learn (whose rows are then held in memory).
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    y : array of shape (n,) or (n, t), or None
        Those of a Dataset are its own.
    groups, times : str, array of shape (n,), or None
        As of `KernelClassifier.fit`: no group is in two folds; by time each fold is judged by models of older rows.
    space : mapping of str to range or choice
        By the name of a parameter, nested ones included (``"features__n_features"``). A range is ``(low, high)``,
        ``(low, high, "log")``, ``(low, high, "int")`` or ``(low, high, "log-int")``; a list holds values.
    n_trials : int or None
        Sets of parameters that are tried; None leaves the end to `timeout`. With `halving` those that are begun with.
    timeout : float or None
        Seconds after which no further fit is begun, of this call.
    folds : int or float
        So many folds, chosen by a hash of the row id, by group or by time; a share such as 0.2 holds out so much
        of the rows once.
    scoring : str, callable or None
        None is the model's `score`; else the name of a scikit-learn scorer, or ``scoring(model, dataset) -> float``,
        the larger the better. A trial's score is the mean over its folds, each by the weight of its rows.
    acquisition : {"ucb", "random"}
        "random": no process, points drawn at random throughout.
    kappa : float
        How many standard deviations the upper confidence bound is above the mean; the larger, the more is explored.
    n_initial : int
    parallel : int
        Trials that are proposed together and judged at the same time: whole fits on the workers of the current
        `distributed` client, else in threads. With 1, fits follow each other and share all workers.
    halving : tuple (name, least, most) or (name, least, most, factor) or None
        Successive halving: all trials with parameter `name` (``"epochs"``) at `least`, the best of them, one in
        `factor` (3), at `factor` times as much, and so on up to `most`. Trials are then a Latin hypercube.
    sample_weight : array of shape (n,) or None
        Frequency weights, in fits and in scores.
    refit : bool
        Fit the best parameters to all rows.
    random_state : int, RandomState or None
        Of the trials, the folds, and of the model where its own is None.
    checkpoint : str or None
        Folder or URL where every outcome is kept: a search that was broken off goes on with the same trials, and a
        finished one goes on where `n_trials` is larger.
    progress : bool, callable or None
        A function that raises `dkl.StopRequested` ends the search with the trials so far; with a `checkpoint` the next
        call goes on from there.

    Returns
    -------
    Tuning
        With ``best_params_``, ``best_score_``, ``best_model_``, ``trials`` (a data frame) and ``plot()``.

    Raises
    ------
    ValueError
        For a budget of zero, a parameter that the model does not have, a range without values, a fold without rows;
        before anything is fitted.
    StoreError
        If the checkpoint belongs to another search.
    RuntimeError
        If the first `n_initial` trials all fail (one that fails is recorded with its error), or none ends in time.

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
    # All that can be wrong with the arguments is said before a row is read.
    settings.check(model)
    started = time.monotonic()
    # Whole numbers may be classes or amounts: what the model is decides, where the rows do not say.
    task: TaskChoice = "classification" if is_classifier(model) else "regression" if is_regressor(model) else "auto"
    # Folds are views of these rows, so that a machine's own choice of categories is theirs.
    categorical = getattr(model, "categorical", None)
    beside = BesideFeatures(X, groups, times)
    if getattr(model, "drop_missing_target", False):
        beside, y, sample_weight = beside.with_targets(y, sample_weight)
    dataset = rows_to_search("tune", beside, y, sample_weight, task, categorical=categorical)
    settings = settings.seeded(model, dataset)
    model = quiet(model, settings.seed)
    tuning = settings.run(model, dataset, started)
    if refit:
        # The scores are of models that saw all rows but a fold; the model that is handed out has seen all.
        tuning.best_model_ = fitted_to(with_parameters(model, tuning.best_params_), dataset)
    return tuning


@dataclass(frozen=True, eq=False)
class Search:
    """How a search is done: the parameters of `tune`, and the seed and the fingerprint that `seeded` finds."""

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
        """The rungs of a search by halving."""
        return None if self.halving is None else ladder_of(self.halving)

    def check(self, model: Estimator) -> None:
        """Refuse what has no meaning.

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
        """The search with its seed, that of the checkpoint where there is one, and with the fingerprint of the run."""
        fingerprint = "" if self.checkpoint is None else self._fingerprint(model, dataset)
        seed = stored_seed(self.random_state, self.checkpoint, fingerprint)
        return replace(self, seed=seed, fingerprint=fingerprint)

    def _fingerprint(self, model: Estimator, dataset: Dataset) -> str:
        """The digest of all that the trials follow from: what a checkpoint has to agree with."""
        # The numbers of trials and seconds are left out: a larger budget goes on with the same trials. With halving
        # the first rung has as many trials as are asked for, so there the number belongs to it.
        settings = (space_of(self.space), self.folds, self.acquisition, self.kappa, self.n_initial, self.parallel)
        begun = None if self.halving is None else (self.halving, self.n_trials)
        seed = self.random_state if isinstance(self.random_state, Integral) else None
        scoring = self.scoring
        if callable(scoring):
            scoring = getattr(scoring, "__qualname__", type(scoring).__name__)
        return digest_of(what_counts(model), settings, begun, scoring, seed, dataset.fingerprint, __version__)

    def run(self, model: Estimator, dataset: Dataset, started: float) -> Tuning:
        """The search itself, from its seed on, until `timeout` seconds after the time `started`."""
        ladder, space = self.ladder, space_of(self.space)
        n_initial = self.n_initial if ladder is None else int(self.n_trials or 0)
        proposer = Proposer(space, self.seed, n_initial, self.acquisition, float(self.kappa))
        budget = Budget(self.n_trials, float("inf") if self.timeout is None else started + self.timeout)
        folds = Folds.of(self.folds, self.seed)
        views = fold_views(dataset, folds)
        record = Record.of(views, stage_checkpoint(self.checkpoint, "trials"), self.fingerprint)
        runner = self._runner(model, dataset, folds, views)
        # The number of fits of halving is not known beforehand: failed trials shorten the rungs.
        total = (self.n_trials or 0) if ladder is None else 0
        journal = Journal(record, runner, resolve_progress(self.progress), total)
        with journal.under_way():
            if ladder is None:
                parameters = search(proposer, journal, budget, parallel=self.parallel)
            else:
                parameters = search_by_halving(proposer, journal, budget, ladder)
        ended = journal.request if journal.ended else ""
        resource = None if ladder is None else ladder.name
        return tuning_of(
            journal.record, parameters, space, split=kind_of_split(dataset), resource=resource, ended=ended
        )

    def _runner(self, model: Estimator, dataset: Dataset, folds: Folds, views: Sequence[ValidationFold]) -> Runner:
        """Where the fits run: on the sums of one pass where the space allows it, else fit by fit."""
        names, scoring = space_of(self.space).dimensions, self.scoring
        # Sums by fold serve models of all other folds; by time a fold is judged by models of the older ones alone.
        # Target means are another fit's in each fold.
        searches_alone = self.halving is None and dataset.schema.held_by != "time" and not dataset.schema.has_codes
        if searches_alone and not callable(scoring) and needs_no_pass(model, names, scoring, len(views)):
            return OnSums.of(model, dataset, folds, scoring)
        return runner_for(model, views, self.scoring, self.parallel)


def check_names(model: Estimator, space: Space, ladder: Ladder | None, scoring: Scoring) -> None:
    """Refuse a space of parameters that the model does not have.

    Raises
    ------
    ValueError
        With the name, and those that there are.
    """
    if not hasattr(model, "get_params") or not hasattr(model, "fit"):
        raise ValueError(f"model is {model!r}; expected an estimator, such as dkl.KernelClassifier()")
    # Feature learners have no score: whether features are good is seen by a model on them.
    if not hasattr(model, "score") and not callable(scoring):
        raise ValueError(
            f"{type(model).__name__} has no score to search by: put it into a machine, "
            f"KernelClassifier(features={type(model).__name__}()), and name its parameters 'features__rho'"
        )
    known = model.get_params(deep=True)
    for name in (*space.dimensions, *(() if ladder is None else (ladder.name,))):
        # `features__n_features` may belong to an estimator that another part of the space puts in for `features`.
        if name not in known and name.rpartition("__")[0] not in space.dimensions:
            hint = ""
            if "__" in name and isinstance(known.get(name.partition("__")[0]), str):
                outer = name.partition("__")[0]
                hint = f"; {outer} is {known[outer]!r}, a name: give the estimator itself, so that it has parameters"
            raise ValueError(
                f"space names {name!r}, and {type(model).__name__} has no such parameter{hint}. It has "
                f"{', '.join(sorted(known))}"
            )
    if ladder is not None and ladder.name in space.dimensions:
        raise ValueError(f"{ladder.name!r} is the resource of halving; take it out of the space")


def rows_to_search(
    asking: str,
    beside: BesideFeatures,
    y: object,
    sample_weight: object,
    task: TaskChoice,
    *,
    categorical: Sequence[str] | None = None,
    warns: bool = True,
) -> Dataset:
    """The rows as one Dataset with a target, for the function `asking`; `categorical` is a machine's parameter.

    Raises
    ------
    ValueError
        Without a target.
    """

    def made() -> Dataset:
        """The rows without what keeps some of them together."""
        dataset = as_dataset(beside.X, y, sample_weight, task=task, categorical=categorical or (), looks=True)
        check_target(asking, dataset)
        return dataset

    dataset = without_splits(held_rows(beside.noted_of(made, sample_weight)))
    if warns:
        warn_of_random_folds(dataset, asking)
    return dataset


def quiet(model: Estimator, seed: int) -> Estimator:
    """A copy that tells of no progress, keeps no checkpoint of its own, and draws from the seed of the search."""
    given = clone(model).get_params(deep=True)
    changed: dict[str, Any] = {}
    for name, value in given.items():
        kind = name.rpartition("__")[2]
        # A seed that the user gave stays; all other randomness follows from the seed of the search.
        if kind == "random_state" and value is None:
            changed[name] = seed
        elif kind in ("progress", "checkpoint") and reads_blocks(model):
            # A checkpoint of the model would be shared by all trials, and their progress bars would hide that of the
            # search.
            changed[name] = False if kind == "progress" else None
    return clone(model).set_params(**changed)


@dataclass(frozen=True)
class Ladder:
    """The rungs of a search by halving.

    Parameters
    ----------
    name : str
        The parameter that is the resource: ``"epochs"``.
    amounts : tuple of int
        Of each rung, ascending.
    factor : float
        One in so many trials is promoted to the next rung.
    """

    name: str
    amounts: tuple[int, ...]
    factor: float

    def survivors(self, count: int) -> int:
        """How many of `count` trials are promoted."""
        return max(1, int(count / self.factor))


def ladder_of(given: object) -> Ladder:
    """The rungs that ``halving=(name, least, most)`` or ``(name, least, most, factor)`` asks for.

    Raises
    ------
    ValueError
        For anything else, or amounts that do not rise.
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
    # Rounded up, so that each rung has at least one unit more; the last one has exactly what was asked for.
    while (following := math.ceil(amounts[-1] * step)) < int(most):
        amounts.append(following)
    return Ladder(name, (*amounts, int(most)), step)


def search_by_halving(
    proposer: Proposer, journal: Journal, budget: Budget, ladder: Ladder
) -> dict[int, dict[str, Any]]:
    """Judge the trials rung by rung.

    A rung begins when all of the one below is judged, and ranks it by score, of equals the first: the same trials
    are promoted however many workers there are, and wherever the search is taken up again. Each rung fits anew with
    more of the resource, so that a trial's score is that of a plain fit; with a factor of 3 this costs half as much
    again as going on would.

    Parameters
    ----------
    proposer : Proposer
        Its initial design is the lowest rung.
    journal : Journal
    budget : Budget
    ladder : Ladder

    Returns
    -------
    dict of int to dict
        The parameters of all trials, by number: those of the lowest rung come first.

    References
    ----------
    Jamieson & Talwalkar 2016, "Non-stochastic best arm identification and hyperparameter optimization".
    """
    empty = np.empty((0, proposer.space.width))
    # No score is known yet, so the first rung is the Latin hypercube of the proposer.
    points = proposer.propose(empty, np.empty(0), proposer.n_initial)
    running = [proposer.space.decode(point) for point in points]
    trials: dict[int, dict[str, Any]] = {}
    for amount in ladder.amounts:
        # A promoted trial is a new one with a number of its own, since it is fitted anew: the record keeps both scores.
        rung = {len(trials) + place: {**values, ladder.name: amount} for place, values in enumerate(running)}
        trials |= rung
        # A rung that was not judged whole cannot be ranked: who is promoted would depend on the order of the workers.
        if not journal.judge(rung, budget.deadline):
            break
        best = ranked([journal.record.score(trial) for trial in rung])[: ladder.survivors(len(rung))]
        running = [running[place] for place in best]
        if not running:
            break
    return trials


if TYPE_CHECKING:
    from matplotlib.axes import Axes


@dataclass(eq=False)
class Tuning:
    """The result of `dkl.tune`.

    Attributes
    ----------
    best_params_ : dict
        Of the trial with the largest score; of equal ones the first.
    best_score_ : float
        Its mean over the rows of all folds.
    best_index_ : int
        Its number.
    best_model_ : estimator or None
        Fitted to all rows with them; None with ``refit=False``.
    trials : pandas.DataFrame
        One row a trial: score, deviation between the folds, seconds, error (empty where none), the parameters.
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
    """The result of a search.

    Parameters
    ----------
    record : Record
    parameters : mapping of int to mapping
        Of all trials that were begun, by number.
    space : Space
    split : str
        By what rows were held out.
    resource : str or None
        The parameter that halving gave more and more of: the best trial is one of those with most of it.
    ended : str
        Why the search was ended early; empty where it was not.

    Raises
    ------
    RuntimeError
        If no trial has a score.
    """
    done = {trial: dict(values) for trial, values in parameters.items() if not record.missing(trial)}
    scored = {trial: score for trial in done if np.isfinite(score := record.score(trial))}
    if not scored:
        # The first error is usually that of all of them.
        errors = [error for trial in done if (error := record.error(trial))]
        cause = f"all of {len(done)} failed; the first said: {errors[0]}" if errors else "none ended before the timeout"
        raise RuntimeError(f"no trial has a score: {cause}")
    # Scores with different amounts of a resource (epochs) do not compare: the best trial is one of the highest rung
    # that any trial has reached.
    most = None if resource is None else max(done[trial][resource] for trial in scored)
    final = [trial for trial in scored if resource is None or done[trial][resource] == most]
    # Of equal scores the earlier trial is taken, so that the result does not depend on the order of a dict.
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
