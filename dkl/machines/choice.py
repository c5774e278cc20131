"""The choice of a machine without settings: columns, features, loss, penalty and calibration, from held-out rows.

The guide's page on how the machine chooses states the rule. `choose` returns a `Chosen`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice

import dask
import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.suspects import plan_suspects
from dkl.errors import gives_hints
from dkl.events import Event, RequestKeeper
from dkl.features.scaling import ScalingKind
from dkl.kernels.threads import one_blas_thread
from dkl.linear import head
from dkl.linear.fitting import Run
from dkl.linear.head import most_log_loss_features
from dkl.linear.judge import ENOUGH_ROWS, MOST_FOLDS, NEIGHBOURS, PenaltyChoice, comparing_loss, gains, mean_over_folds
from dkl.machines.columns import (
    CATEGORY_TRIALS,
    ColumnChoice,
    Columns,
    columns_ahead,
    looks_for_categories,
    perfect_columns,
    too_good,
)
from dkl.machines.contenders import Contender, has_columns_alone, joined, variants
from dkl.machines.contest import (
    EQUAL_LOSS,
    FEWEST_ROWS,
    SIDE_SHARE,
    Candidate,
    Ended,
    Race,
)
from dkl.machines.effort import Clock
from dkl.machines.reasons import Tried, reasons_of, sentence_of, shown_score, tried_table
from dkl.machines.suggest import (
    DENSE_SCALINGS,
    SPARSE_SCALINGS,
    Advice,
    RowsAlikeError,
    advise,
)
from dkl.machines.trials import Bench, Judged, Sample, Terms, gathered, gathered_bytes
from dkl.methods.base import FeatureLearner, replayed_once
from dkl.methods.checkpoints import stage_checkpoint
from dkl.passes.loop import PlanEndsError, PlannedRun
from dkl.progress import in_notebook
from dkl.solvers.losses import loss_of

LOG = logging.getLogger("dkl")

# Libraries that call many fits: if a frame of one is on the stack, Ctrl-C stops the whole fit.
_SEARCHES = ("sklearn", "joblib", "optuna", "dask", "distributed", "dask_ml")


@dataclass(frozen=True, eq=False)
class Chosen:
    """The result of a choice.

    Parameters
    ----------
    columns : Columns
        The rows with the columns that the features use.
    features : FeatureLearner
        Not fitted.
    loss : str
        Loss of the last linear fit.
    penalty : PenaltyChoice or None
        Penalty of the last fit by Newton steps; None for stochastic steps, or if no fold could be scored.
    temperature : float or None
        Divisor of decision values for probabilities; None if no rows were left to calibrate on.
    shift : ndarray of shape (K,) or None
        Added to the intercepts of the last model.
    summary : str
        The choice in a sentence.
    reasons : tuple of str
    tried : tuple of Tried
        Each candidate with its score, the chosen one first; empty if there were too few rows to compare any.
    """

    columns: Columns
    features: FeatureLearner
    loss: str
    penalty: PenaltyChoice | None = None
    temperature: float | None = None
    shift: np.ndarray | None = None
    summary: str = ""
    reasons: tuple[str, ...] = ()
    tried: tuple[Tried, ...] = ()


def choose(terms: Terms, dataset: Dataset, weights: np.ndarray | None, run: Run, clock: Clock) -> Chosen:
    """Choose columns, features, loss, penalty and calibration.

    Parameters
    ----------
    terms : Terms
    dataset : Dataset
        All rows of the fit.
    weights : ndarray of shape (K,) or None
        Factor on the weights of each class.
    run : Run
    clock : Clock
        Ends the trials at the time limit, if there is one.

    Raises
    ------
    ValueError
        If there are fewer rows than folds, or no candidate can be fitted.
    """
    bench = Bench(terms, weights, run)
    # Trials use few rows: most of several BLAS threads would wait at small products, and rounding would depend on their
    # number.
    with one_blas_thread():
        columns = ColumnChoice(bench).chosen(dataset)
        rows = columns.dataset
        if rows.total_weight < FEWEST_ROWS:
            return simplest(bench, columns, f"{rows.n_rows} rows are too few to choose by")
        try:
            advice = advise(rows, run, terms.seed, terms.advised_rows(rows))
        except RowsAlikeError:
            return simplest(bench, columns, "the rows do not differ")
        return Choice(bench, columns, advice, clock).chosen()


class Choice:
    """The choice on rows whose columns have been chosen."""

    def __init__(self, bench: Bench, columns: Columns, advice: Advice, clock: Clock) -> None:
        self._bench, self._columns, self._advice, self._clock = bench, columns, advice, clock
        self._terms, self._run, self._rows = bench.terms, bench.run, columns.dataset
        self._publish = RequestKeeper(bench.run.publish, "trials")
        self._sample = bench.sample(self._rows, columns.own_columns, judging_seed=columns.judging_seed)
        self._log_loss = LogLoss(bench, self._sample, self._rows, columns.own_columns)
        first = self._terms.contenders(self._rows, advice)
        constants = held_out_variances(self._sample) if self._score_name() == "R^2" else ()
        self._race = race_of(self._terms, first, columns, self._sample, advice.scalings, self._log_loss, constants)
        self._has_asked, self._cut_short = False, ""

    def chosen(self) -> Chosen:
        """Try candidates, compare losses, grow the winner, choose its penalty; see the page of the guide."""
        race, terms = self._race, self._terms
        self._run_trials()
        won, grown, expected = race.winner, None, 1.0
        if not self._cut_short and race.plan is None:
            won, grown, expected = race.winner_after_growth()
        by_log_loss, of_loss = self._log_loss.taken(race, won, expected)
        loss = terms.settings.loss if by_log_loss is None else "log_loss"
        choices = won.choices[: race.rounds] if by_log_loss is None else [by_log_loss]
        if grown is not None:
            # comparing losses and fitting by the log loss take work, so that fewer landmarks may be affordable
            whole = terms.shape(self._rows, None if by_log_loss is None else loss)
            race.fitting = lambda contender: whole.fitting(contender.learner)
            grown = race.largest(won.contender, won.contender.landmarks)
        penalty, temperature, shift = settled(
            self._bench, (won.pilots[0], choices[0]), choices, self._sample, self._rows
        )
        if grown is not None and penalty is not None:
            # The i-th eigenvalue of the Gram matrix of a rough kernel is about proportional to 1 / i, so that a penalty
            # proportional to 1 / D shrinks the D-th feature by the same share whatever D is.
            penalty = replace(penalty, alphas=penalty.alphas * (won.contender.landmarks / grown.landmarks))
        name, stopped = self._score_name(), f"; {race.ended.partition(':')[0]}" if self._cut_short else ""
        judged = "the newest rows" if self._rows.schema.held_by == "time" else "held-out rows"
        return Chosen(
            self._columns,
            (grown or won.contender).learner,
            loss,
            penalty,
            temperature,
            shift,
            sentence_of(
                race, won, grown, "accuracy" if self._rows.classes is not None else name, stopped, judged=judged
            ),
            self._reasons(won, grown, of_loss),
            tried_table(race, won),
        )

    def _run_trials(self) -> None:
        """Run the trials until the race ends, the time is up, or a subscriber or Ctrl-C ends them.

        A resumed fit ends them after the same trials as before, at any time.
        """
        race, terms, ending = self._race, self._terms, stage_checkpoint(self._terms.checkpoint, "choice")
        saved = None if ending is None else ending.load(self._run.fingerprint)
        if saved is not None:
            race.plan, self._clock = saved.values["trials"], Clock(None)
        self._clock.start_counting()
        self._publish(Event("started", "choice"))
        with suppress(Ended):
            for one, fold in race.trials():
                self._try(one, fold)
        self._publish(Event("finished", "choice", len(race.tried), len(race.tried), seconds=self._clock.elapsed))
        if not self._cut_short:
            return
        limit = " and no time_limit give" if terms.time_limit is not None else " gives"
        race.ended = f"{self._cut_short}: trials={race.tried}{limit} the same model"
        if ending is not None:
            ending.save({}, {"trials": race.tried}, fingerprint=self._run.fingerprint)

    def _try(self, one: Candidate, fold: int) -> None:
        """One trial, if the time suffices for it and the last fit; before the first variant ask for the log loss."""
        race, clock, work = self._race, self._clock, self._race.trial_work(one)
        if race.tried and not clock.allows(work + race.fitting(one.contender)):
            one.left_out = "takes more time"
            self._cut_short = f"since time_limit={self._terms.time_limit:g} left no time for others"
            return
        try:
            if one.parents and not self._has_asked:
                # the race comes back to this variant if the work that is now reserved leaves enough for it
                asking = self._log_loss.ask(race.winner, race.rounds)
                self._has_asked, race.spent = True, race.spent + asking
                clock.count(asking)
                return
            self._try_features(one, fold)
        except KeyboardInterrupt:
            if race.leader is None or not ends_trials():
                raise
            self._cut_short = f"since Ctrl-C ended the trials after {len(race.tried)}"
            best = race.leader.contender.name
            message = f"Ctrl-C ended the trials: the best so far is fitted, {best}. Ctrl-C again stops the fit."
            self._publish(Event("note", "choice", detail={"message": message}))
            raise Ended from None
        clock.count(work)
        if race.leader is not None:
            self._publish(self._progress(one))
            if self._publish.request:
                self._cut_short = f"since {self._publish.request}"
                raise Ended

    def _try_features(self, one: Candidate, fold: int) -> None:
        """Learn a candidate's features without the rows of a fold, and record its scores there."""
        learner = one.contender.learner
        # wide columns in another scaling are not more of the same features: all penalties are compared again
        is_wide = self._terms.shape(self._sample.rows).features_of(learner) > head.MOST_FEATURES
        try:
            pilot, choice = self._bench.trial(
                learner,
                self._sample,
                fold,
                f"{one.number}-{fold}",
                near=None if is_wide else one.preferred,
                parts=one.learned_parts(fold),
                known=one.with_metric(fold),
                drawn=None if learner._supervised else next(iter(one.pilots), None),
            )
        except ValueError as error:
            LOG.info("%s are left out of the choice: %s", one.contender.name, error)
            self._race.record(one, None)
            self._race.why = self._race.why or str(error)
        else:
            self._race.record(one, choice, pilot)

    def _progress(self, one: Candidate) -> Event:
        """The event after a trial: its score, the best so far, and the most seconds that remain."""
        race, clock = self._race, self._clock
        left, best = clock.seconds_of(max(race.allowed - race.spent, 0.0)), race.leader
        if clock.limit is not None:
            left = min(left, max(clock.limit - clock.elapsed, 0.0))
        detail = {
            "kind": one.contender.name,
            "score": shown_score(race, one) if one.choices else None,
            "loss": one.choices[-1].loss if one.choices else None,
            "best": "" if best is None else best.contender.name,
            "best_score": None if best is None else shown_score(race, best),
            "seconds_left": left,
        }
        return Event("advanced", "choice", len(race.tried), race.most_trials(), seconds=clock.elapsed, detail=detail)

    def _score_name(self) -> str:
        """The name of 1 minus the held-out loss by which candidates are compared."""
        loss = comparing_loss(self._terms.judging_loss, has_classes=self._rows.classes is not None)
        if loss == "squared_error":
            return "R^2"
        return f"1 less the mean {loss.replace('_', ' ').removesuffix(' loss')} loss"

    def _reasons(self, won: Candidate, grown: Contender | None, of_loss: tuple[str, ...]) -> tuple[str, ...]:
        """Sentences on the features, their loss, rows and scalings, doubtful columns, and chosen columns."""
        measure, rows = self._score_name(), self._sample.rows
        measure += "" if rows.classes is None else ", not the share of right rows"
        of_features = reasons_of(self._race, rows.n_rows, won, grown, measure=measure)
        doubts = too_good(perfect_columns(rows, self._run, self._terms.seed))
        return (*of_features, *of_loss, *self._advice.reasons, *doubts, *self._columns.reasons)


def held_out_variances(sample: Sample) -> tuple[float, ...]:
    """For each fold the variance of its held-out targets, divided by the variance of the targets of all sampled rows.

    Of several targets it is the mean ratio. Candidates are fitted to targets of variance 1, so that this is the mean
    squared error of predicting each held-out row by the mean of its fold: what R^2 compares with. Rows held out by time
    may vary much less than all rows, or much more.
    """
    blocks = list(sample.rows.source.blocks_without_x())
    y = np.concatenate([np.reshape(np.asarray(block.y, np.float64), (block.n_rows, -1)) for block in blocks])
    weights = np.concatenate([block.weights for block in blocks])
    held_with = np.concatenate([block.held_with for block in blocks])

    def variance(rows: np.ndarray) -> np.ndarray:
        # 0 for a fold without rows
        total = max(float(weights[rows].sum()), np.finfo(float).tiny)
        mean = weights[rows] @ y[rows] / total
        return weights[rows] @ np.square(y[rows] - mean) / total

    whole = variance(np.ones(len(y), bool))
    masks = [fold.mask(held_with) for fold in sample.folds]
    return tuple(float(np.mean(variance(rows) / np.where(whole > 0.0, whole, 1.0))) for rows in masks)


def simplest(bench: Bench, columns: Columns, why: str) -> Chosen:
    """The simplest features, if candidates cannot be compared; folds of the rows choose the penalty alone.

    Raises
    ------
    ValueError
        If there are fewer rows than folds.
    """
    terms, rows = bench.terms, columns.dataset
    # each fold takes a row at least
    if rows.n_rows < MOST_FOLDS:
        raise ValueError(
            f"n_samples = {rows.n_rows}: a machine that chooses for itself holds rows out, and needs at least "
            f"{MOST_FOLDS} rows; give it features and alpha, as in {terms.name}('random', alpha=0.1)"
        )
    columns_alone = terms.contenders(rows)[0]
    chosen = Chosen(
        columns,
        columns_alone.learner,
        terms.settings.loss,
        summary=f"Chose {columns_alone.name}: {why}.",
        reasons=(f"Features: {columns_alone.name}; {why}.", *columns.reasons),
    )
    sample = bench.sample(rows, columns.own_columns, MOST_FOLDS, columns.judging_seed)
    judged: dict[int, Judged] = {}
    for fold in range(len(sample.folds)):
        # with so few rows a fold may lack a class
        with suppress(ValueError):
            judged[fold] = bench.trial(columns_alone.learner, sample, fold, f"0-{fold}")
    if not judged:
        return chosen
    first = min(judged)
    judging = replace(sample, folds=sample.folds[first:])
    penalty, temperature, shift = settled(
        bench, judged[first], [choice for _, choice in judged.values()], judging, rows
    )
    return replace(chosen, penalty=penalty, temperature=temperature, shift=shift)


def settled(
    bench: Bench, first: Judged, choices: Sequence[PenaltyChoice], sample: Sample, rows: Dataset
) -> tuple[PenaltyChoice | None, float | None, np.ndarray | None]:
    """The penalty that the folds agree on, for all rows; temperature and shift. All None for stochastic steps."""
    settings = bench.terms.settings
    if settings.solver != "newton":
        return None, None, None
    calibration = bench.calibration(first, sample) if settings.calibrate else (None, None)
    mean = mean_over_folds(choices)
    # keeps the C of the sample, the factor on the sum of the losses; alpha is relative to their mean
    return replace(mean, alphas=mean.alphas * (sample.rows.total_weight / rows.total_weight)), *calibration


def race_of(
    terms: Terms,
    first: list[Contender],
    columns: Columns,
    sample: Sample,
    scalings: tuple[ScalingKind | None, ...],
    log_loss: LogLoss | None = None,
    constants: tuple[float, ...] = (),
) -> Race:
    """The candidates of a choice, with the work that each trial and each last fit is counted for."""
    whole, judged, rows = terms.shape(columns.dataset), terms.shape(sample.rows), sample.rows
    advising = 0.0 if has_columns_alone(columns.dataset, terms.knobs) else terms.budget.advising(whole)
    return Race(
        list(first),
        len(sample.folds),
        terms.allowed(columns.dataset, columns.own_columns),
        # the race asks for the work of every candidate before each trial
        judging=cache(lambda contender, is_near: judged.trial_work(contender.learner, is_near)),
        comparing=cache(
            lambda contender, is_near: judged.comparing(contender.learner, NEIGHBOURS if is_near else None)
        ),
        fitting=cache(lambda contender: whole.fitting(contender.learner)),
        vary=lambda contender, is_best: variants(
            contender, terms.budget, terms.knobs, rows.n_rows, is_best=is_best, scalings=scalings
        ),
        # each of the two parts has a column at least
        join=partial(joined, n_features=terms.knobs.n_features) if terms.knobs.n_features != 1 else None,
        of_losses=None if log_loss is None else log_loss.kept_work,
        judging_rows=sample.folds[0].share * rows.total_weight if sample.folds else ENOUGH_ROWS,
        plan=terms.trials,
        spent=columns.spent + advising,
        most_landmarks=min(terms.budget.most_features, columns.dataset.n_rows)
        if terms.knobs.n_features == "auto"
        else 0,
        enough=EQUAL_LOSS if rows.classes is not None else 0.0,
        constants=constants,
    )


def ends_trials() -> bool:
    """Whether Ctrl-C ends the trials, and fits the best candidate, instead of the whole fit.

    True if a person called the fit, in the main thread of a terminal or notebook, unless dask.config
    "dkl.interrupt-keeps-best" is False.
    """
    if not dask.config.get("dkl.interrupt-keeps-best", True):
        return False
    if threading.current_thread() is not threading.main_thread() or not (in_notebook() or _in_terminal()):
        return False
    # searches of dkl turn off the hints of their fits
    return gives_hints() and not _in_search()


def _in_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _in_search() -> bool:
    """Whether another library calls the fit; frames of scikit-learn's callbacks do not count."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _SEARCHES and not module.startswith("sklearn.callback"):
            return True
        frame = frame.f_back
    return False


Compared = tuple[PenaltyChoice, float, float]
"""The scores of the log loss's penalties; the log loss of its probabilities, and of those by squares."""


class LogLoss:
    """Decides whether the last fit minimises the log loss, or the squared error like the trials.

    Parameters
    ----------
    bench : Bench
    sample : Sample
        The rows that trials use.
    dataset : Dataset
        All rows, for the last fit.
    own_columns : int or None
        As in `Terms.allowed`.
    """

    def __init__(self, bench: Bench, sample: Sample, dataset: Dataset, own_columns: int | None = None) -> None:
        self._bench, self._sample, self._budget = bench, sample, bench.terms.allowed(dataset, own_columns)
        self._sample_shape, self._shape = (bench.terms.shape(rows, "log_loss") for rows in (sample.rows, dataset))
        self._squares_shape = bench.terms.shape(dataset)
        self._most_features = most_log_loss_features(dataset.schema.n_classes or 1)
        self._is_possible = may_take_log_loss(bench.terms, dataset)
        self._is_promising = False
        # The best C of the log loss over that of squares, on the candidate that was asked of: it hardly depends on the
        # features, so that only this penalty is fitted on others.
        self._ratio: float | None = None
        self._comparisons: dict[Candidate, Compared] = {}

    def kept_work(self, contender: Contender) -> float:
        """Work that variants leave for a promising log loss, beyond a fit of a contender by the squared error."""
        if not self._is_promising:
            return 0.0
        learner = contender.learner
        more = self._shape.fitting(learner) - self._squares_shape.fitting(learner)
        return min(SIDE_SHARE * self._budget, self._comparing(learner) + more)

    def _comparing(self, learner: FeatureLearner) -> float:
        """Work of a comparison on learned features."""
        return self._sample_shape.comparing(learner, NEIGHBOURS if self._ratio is None else 1)

    def ask(self, one: Candidate, rounds: int) -> float:
        """Compare the losses on the best kind of features before its variants are tried; returns the work this took.

        With the squared error, a class that lies between others rarely has the largest score; the log loss then gains
        more than additional features.
        """
        work = self._comparing(one.contender.learner)
        if not self.can_fit(one, work) or work > SIDE_SHARE * self._budget:
            return 0.0
        choice, least, squared = self.compared(one, rounds)
        squares = near_squares(one.choices[:rounds])
        self._ratio = float(choice.strengths[choice.best] / squares.strengths[squares.best])
        self._is_promising = gains(least, squared)
        return work

    def can_fit(self, one: Candidate, spent: float) -> bool:
        """Whether the features are few enough for a Hessian, and the last fit is within the budget after this work."""
        learner = one.contender.learner
        is_small = self._shape.features_of(learner) <= self._most_features
        return self._is_possible and is_small and spent + self._shape.fitting(learner) <= self._budget

    def compared(self, one: Candidate, rounds: int) -> Compared:
        """Compare the penalties of the log loss on the first fold, near the best penalty of squares on all folds."""
        if one not in self._comparisons:
            pilot, by_squares, near = one.pilots[0], one.choices[0], near_squares(one.choices[:rounds])
            if self._ratio is not None:
                strength = near.strengths[[near.best]] * self._ratio
                near = replace(near, alphas=np.ones(1), scores=np.zeros(1), strengths=strength, rule="auto")
            choice = self._bench.penalties(pilot, self._sample, 0, f"{one.number}-log_loss", "log_loss", near)
            least, squared = (self._bench.log_loss([(pilot, each)], self._sample) for each in (choice, by_squares))
            self._comparisons[one] = choice, least, squared
        return self._comparisons[one]

    def taken(self, race: Race, won: Candidate, expected: float) -> tuple[PenaltyChoice | None, tuple[str, ...]]:
        """Whether the last fit uses the log loss: if its probabilities are better on held-out rows.

        Parameters
        ----------
        race : Race
            Its remaining work must suffice; the comparison is added to its `spent`.
        won : Candidate
        expected : float
            Factor that more landmarks are expected to leave of the held-out loss, if they take all remaining work; the
            log loss is used only if it is lower by more than this gain.

        Returns
        -------
        choice : PenaltyChoice or None
            The scores of its penalties; None for the squared error.
        reasons : tuple of str
        """
        work = 0.0 if won in self._comparisons else self._comparing(won.contender.learner)
        if not self.can_fit(won, race.spent + work) or work > SIDE_SHARE * self._budget:
            return None, ()
        race.spent += work
        choice, least, squared = self.compared(won, race.rounds)
        if not gains(least, squared, 1.0 - expected):
            return None, ()
        reason = (
            f"Loss: log loss; the log loss of probabilities on held-out rows is {least:.4f} then, {squared:.4f} with "
            "the squared error."
        )
        return choice, (reason,)


def may_take_log_loss(terms: Terms, dataset: Dataset) -> bool:
    """Whether the log loss may replace the squared error on these rows; wide ones have no Hessian."""
    return terms.takes_log_loss and bool(dataset.schema.n_classes) and not has_columns_alone(dataset, terms.knobs)


def near_squares(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The penalty near which those of the log loss are compared: the best C of squares over its curvature at 0."""
    squares = mean_over_folds(choices)
    return replace(squares, strengths=squares.strengths / loss_of("log_loss").largest_curvature)


class PlannedChoice:
    """Upper bounds on what a choice takes, before any row is read, from the race of a fit with all its variants.

    The trials are replays. Which of them a race runs depends on losses, so that no replay of the race itself is a
    bound: every candidate is planned that it can reach for any losses, by its own rules of variants and of the budget.
    """

    def __init__(self, terms: Terms, dataset: Dataset, weights: np.ndarray | None) -> None:
        self._terms, self._dataset, self._weights = terms, dataset, weights
        # too few rows to compare candidates have the simplest one alone, as in `simplest`
        is_alone = dataset.total_weight < FEWEST_ROWS
        self._sample = terms.sample(dataset, most_folds=MOST_FOLDS if is_alone else None)
        kinds = terms.contenders(dataset)
        scalings = SPARSE_SCALINGS if dataset.source.is_sparse else DENSE_SCALINGS
        columns = Columns(dataset, dataset.n_columns, 0.0, None, ())
        # one-hot columns are the same in any scaling
        self._race = race_of(terms, kinds, columns, self._sample, () if np.all(dataset.passthrough) else scalings)
        self._takes_log_loss = not is_alone and may_take_log_loss(terms, dataset)
        with replayed_once():
            self._tried = self._replayed(kinds[:1] if is_alone else self._reachable())

    def _reachable(self) -> list[Contender]:
        """Every candidate that trials can reach within the budget, for any losses."""
        race = self._race

        def affordable(contender: Contender) -> bool:
            return race.judging(contender, False) + race.fitting(contender) <= race.allowed

        # the first kind is tried at any cost
        first, *others = race.contenders
        known = {contender.key: contender for contender in (first, *filter(affordable, others))}
        waiting = list(known.values())
        while waiting:
            for contender in race.vary(waiting.pop(), True):
                fits = affordable(contender) and 0.1 < contender.given.get("sigma_factor", 1.0) < 10.0
                if fits and contender.key not in known:
                    known[contender.key] = contender
                    waiting.append(contender)
        # the costliest pairs represent all
        costliest = sorted(known.values(), key=race.fitting)[::-1]
        join = race.join
        pairs = () if join is None else (join(first, second) for second in costliest for first in costliest)
        return [*known.values(), *islice(filter(affordable, pairs), len(race.contenders))]

    def _replayed(self, reachable: list[Contender]) -> list[tuple[Candidate, PlannedRun, int]]:
        """A trial of each candidate, its passes, and the number of candidates with the same ones.

        Candidates that differ in their bandwidth alone have the same passes. Those that cannot be fitted are left out,
        as in a race.

        Raises
        ------
        ValueError
            If none can be fitted.
        """
        alike: dict[str, list[Contender]] = {}
        for contender in reachable:
            has_bandwidth = "sigma_factor" in contender.given
            usual = contender.changed("bandwidth", sigma_factor=1.0) if has_bandwidth else contender
            alike.setdefault(usual.key, []).append(contender)
        tried, why = [], None
        for number, contenders_alike in enumerate(alike.values()):
            run = PlannedRun(n_rows=self._sample.rows.n_rows)
            try:
                pilot, choice = self._bench(run).trial(contenders_alike[0].learner, self._sample, 0, "pilot")
            except ValueError as error:
                why = why or error
            else:
                one = Candidate(number, contenders_alike[0], choices=[choice], pilots=[pilot])
                tried.append((one, run, len(contenders_alike)))
        if why is not None and not tried:
            raise why
        return tried

    @property
    def loss(self) -> str:
        """The loss of the last fit that takes the most passes."""
        return "log_loss" if self._takes_log_loss else self._terms.settings.loss

    def may_win(self) -> list[FeatureLearner]:
        """Of each kind of learner the features of largest size; last the candidate whose last fit takes the most work.

        Any of them may be fitted in the end. The costliest need not take the most memory: searches for waves hold rows
        in memory, landmarks do not.
        """
        shape = self._terms.shape(self._dataset, self.loss if self._takes_log_loss else None)
        race = replace(self._race, fitting=lambda contender: shape.fitting(contender.learner))
        # kernels may have the most landmarks of the last fit
        reachable = [one.contender for one, _, _ in self._tried]
        grown = [race.largest(one, 1) or one for one in reachable if one.has_kernel]
        costliest = max((*reachable, *grown), key=race.fitting).learner
        largest: dict[tuple[type, bool, bool], FeatureLearner] = {}
        for learner in (contender.learner for contender in reachable):
            given = learner.get_params(deep=False)
            kind = type(learner), bool(given.get("metric")), bool(given.get("refine"))
            if kind not in largest or shape.features_of(learner) > shape.features_of(largest[kind]):
                largest[kind] = learner
        return [*(learner for learner in largest.values() if learner is not costliest), costliest]

    @property
    def rows_in_memory(self) -> dict[str, int]:
        """Bytes of the sample, which is in memory for the whole fit; empty if it is not."""
        nbytes = gathered_bytes(self._sample.rows)
        return {"rows to try features on": nbytes} if nbytes else {}

    def trials(self) -> PlannedRun:
        """All trials of each candidate that the race can reach, and what else a choice reads."""
        terms, dataset, rows = self._terms, self._dataset, self._sample.rows
        plan, by_time = PlannedRun(n_rows=rows.n_rows), dataset.schema.held_by == "time"
        is_searched = looks_for_categories(terms, dataset) and plan_suspects(dataset, plan, terms.seed)
        plan.end_stage()
        of_categories = CATEGORY_TRIALS if is_searched else 0
        # texts are tried with and without their scores
        of_texts = 2 * sum(rule.kind == "text" for rule in getattr(dataset.encoding, "rules", ()))
        with suppress(PlanEndsError):
            advise(dataset, plan, terms.seed, terms.advised_rows(dataset))
        reading = PlannedRun(n_rows=rows.n_rows)
        gathered(rows, reading, terms.seed)
        # the sample is read for the race, twice for leaving columns out, and for each trial of texts and categories
        plan.add(reading, times=3 + of_texts + of_categories)
        perfect_columns(rows, plan, terms.seed)
        if by_time:
            columns_ahead(rows, self._sample.folds[0], plan, terms.seed)
        # a task of a trial has no more rows than the sample
        share = min(rows.n_rows / max(int(dataset.source.block_rows.max(initial=1)), 1), 1.0)
        for one, trial, n_alike in self._tried:
            # texts, and columns that run ahead in time, are tried with the simplest kind; categories also with a plain
            # kernel
            is_simplest, contender = one.number == 0, one.contender
            of_columns = of_categories if (is_simplest or contender.is_kernel) and not contender.is_learned else 0
            times = n_alike * (len(self._sample.folds) + of_columns) + (of_texts + 2 * by_time if is_simplest else 0)
            plan.add(trial, times, share=share)

        def n_features(one: Candidate) -> int:
            return judged.features_of(one.contender.learner)

        bench = self._bench(plan)
        log_loss = LogLoss(bench, self._sample, dataset)
        judged = terms.shape(rows, "log_loss")
        tried = [one for one, _, _ in self._tried]
        # a single penalty is compared at least
        able = [one for one in tried if log_loss.can_fit(one, judged.comparing(one.contender.learner, 1))]
        # losses are compared before variants are tried, and of another candidate in the end
        if self._takes_log_loss and able:
            one = max(able, key=n_features)
            for compared in (one, replace(one)):
                log_loss.compared(compared, 1)
        largest = max(tried, key=n_features)
        settled(bench, (largest.pilots[0], largest.choices[0]), largest.choices, self._sample, dataset)
        return plan

    def _bench(self, run: PlannedRun) -> Bench:
        return Bench(self._terms, self._weights, run)
