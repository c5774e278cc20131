"""The choice of a machine without settings: columns, features, loss, penalty and calibration, from held-out rows.

The guide's page on how the machine chooses states the rule, in the same order. `choose` returns a `Chosen`.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import dask
import numpy as np
from sklearn.base import clone

from dkl.data.dataset import Dataset
from dkl.encodings.suspects import planned_suspects, suspect_memory
from dkl.errors import gives_hints
from dkl.events import Event, StopRequested
from dkl.features.scaling import ScalingKind
from dkl.kernels.blas import one_blas_thread
from dkl.linear import head
from dkl.linear.fitting import LinearProblem, Run, calibration_passes
from dkl.linear.head import most_log_loss_features
from dkl.linear.judge import PenaltyChoice, agreed, gains
from dkl.linear.newton import chosen_penalty_memory, chosen_penalty_passes
from dkl.machines.columns import (
    CATEGORY_TRIALS,
    ColumnChoice,
    Columns,
    looks_for_categories,
    perfect_columns,
    planned_columns,
    too_good,
)
from dkl.machines.contenders import (
    GROWTH,
    Contender,
    contenders,
    has_columns_alone,
    is_kernel,
    is_learned,
    joined,
    landmarks_of,
    usual_advice,
    variants,
)
from dkl.machines.contest import BEHIND, ENOUGH_ROWS, FEWEST_ROWS, MOST_SPENT, RIVALS, Race, Tried
from dkl.machines.effort import EFFORTS, MANY_FEATURES, Clock
from dkl.machines.suggest import (
    DENSE_SCALINGS,
    SPARSE_SCALINGS,
    Advice,
    RowsAlikeError,
    advice_memory,
    advise,
)
from dkl.machines.trials import Bench, Judged, Sample, Terms, gathered_bytes, planned_gathering
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import stage_checkpoint
from dkl.progress import in_notebook
from dkl.protocols.driver import Passes, largest_held
from dkl.protocols.records import RowSample

LOG = logging.getLogger("dkl")

# Fewest rows for five folds with a row each.
_LEAST_ROWS = 5
# Held-out loss of labels, relative to the best constant, at which no variant is tried: all are predicted right, and
# clearly.
_NO_LOSS = 1e-3
# Ratio of the C near which the penalties of the log loss are compared to the best C of squares, as its curvature is
# smaller.
_C_OVER_SQUARES = 10.0
# Most folds on which the two losses are compared: one loss gains more over another than kinds of features do.
_FOLDS = 2
# Shares of the budget that variants leave for the log loss: of two classes; of several, which also limits the work of
# asking for it before variants; and the most for comparing a rival by it.
_SHARE_OF_TWO_CLASSES, _SHARE_OF_SEVERAL_CLASSES, _SHARE_OF_A_RIVAL = 0.4, 0.15, 0.06
# Relative fall of the log loss of probabilities of two classes at which its work is reserved before all variants; for
# several classes it is the fall that one fold can show.
_CLEARLY_BETTER = 0.09
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
        return Choice(bench, ColumnChoice(bench).chosen(dataset)).chosen(clock)


class Choice:
    """The choice on rows whose columns have been chosen."""

    def __init__(self, bench: Bench, columns: Columns) -> None:
        self._bench, self._columns, self._terms, self._run = bench, columns, bench.terms, bench.run
        self._rows = columns.dataset

    def chosen(self, clock: Clock) -> Chosen:
        """Advise, try candidates, compare losses, grow the winner, choose its penalty; see the page of the guide."""
        terms, rows, columns = self._terms, self._rows, self._columns
        if rows.total_weight < FEWEST_ROWS:
            return self._plainest(f"{rows.n_rows} rows are too few to choose by")
        try:
            judged_rows = 0 if has_columns_alone(rows, terms.knobs) else terms.budget.advised(terms.shape(rows))
            advice = advise(rows, self._run, terms.seed, judged_rows)
        except RowsAlikeError:
            return self._plainest("the rows do not differ")
        first = contenders(rows, advice, terms.budget, terms.knobs)
        sample = self._bench.sample(rows, columns.own_columns, judging_seed=columns.judging_seed)
        log_loss = LogLoss(self._bench, sample, rows, columns.own_columns)
        race = _race(terms, first, columns, sample, advice.scalings, log_loss)
        trials = Trials(self._bench, sample, race, log_loss, clock)
        trials.run_all()
        won, grown, expected, known = race.winner, None, 1.0, None
        if not trials.cut_short and race.plan is None:
            won, grown, expected = race.settled()
            ahead, known = log_loss.ahead(race, won, trials.pilots)
            if ahead != won:
                won, (end, grown) = ahead, race.end_of(ahead)
                expected = end / race.loss(won)
        choices = race.choices[won][: race.rounds]
        judged = [trials.pilots[won, fold] for fold in range(race.rounds)]
        learner = race.contenders[won].learner
        by_log_loss, of_loss = log_loss.taken(race, learner, judged, expected, known)
        loss = terms.settings.loss if by_log_loss is None else "log_loss"
        choices = choices if by_log_loss is None else by_log_loss
        if grown is not None:
            # comparing losses and fitting by the log loss take work, so that fewer landmarks may be affordable
            whole = terms.shape(rows, None if by_log_loss is None else loss)
            race.fitting = lambda contender: whole.fitting(contender.learner)
            grown = race.largest(race.contenders[won], landmarks_of(race.contenders[won]))
        penalty, temperature, shift = self._settled((judged[0][0], choices[0]), choices, sample)
        return Chosen(
            columns,
            (grown or race.contenders[won]).learner,
            loss,
            penalty,
            temperature,
            shift,
            race.sentence(won, grown, self._measure, f"; {race.ended.partition(':')[0]}" if trials.cut_short else ""),
            self._reasons(race, won, grown, sample, of_loss, advice),
            race.table(won),
        )

    @property
    def _measure(self) -> str:
        """The name of the scores in the summary."""
        return "accuracy" if self._rows.classes is not None else self._score_name("R^2")

    def _score_name(self, of_squares: str) -> str:
        """The name of 1 minus the held-out loss by which candidates are compared."""
        loss = self._terms.judging_loss.replace("_", " ").removesuffix(" loss")
        return of_squares if loss == "squared error" else f"1 less the mean {loss} loss"

    def _reasons(
        self,
        race: Race,
        won: int,
        grown: Contender | None,
        sample: Sample,
        of_loss: tuple[str, ...],
        advice: Advice,
    ) -> tuple[str, ...]:
        """Sentences on the features, their loss, rows and scalings, columns that are too good, and chosen columns."""
        measure = self._score_name("R^2 of the scores")
        measure += "" if self._rows.classes is None else ", not the share of right rows"
        of_features = race.reasons(sample.rows.n_rows, won, grown, measure=measure)
        alone = too_good(perfect_columns(sample.rows, self._run, self._terms.seed))
        return (*of_features, *of_loss, *advice.reasons[:3], *alone, *self._columns.reasons)

    def _plainest(self, why: str) -> Chosen:
        """The plainest features, if candidates cannot be compared; folds of the rows choose the penalty alone.

        Raises
        ------
        ValueError
            If there are fewer rows than folds.
        """
        terms, rows, columns = self._terms, self._rows, self._columns
        if rows.n_rows < _LEAST_ROWS:
            raise ValueError(
                f"n_samples = {rows.n_rows}: a machine that chooses for itself holds rows out, and needs at least "
                f"{_LEAST_ROWS} rows; give it features and alpha, as in {terms.name}('random', alpha=0.1)"
            )
        plainest = contenders(rows, usual_advice(), terms.budget, terms.knobs)[0]
        chosen = Chosen(
            columns,
            plainest.learner,
            terms.settings.loss,
            summary=f"Chose {plainest.name}: {why}.",
            reasons=(f"Features: {plainest.name}; {why}.", *columns.reasons),
        )
        sample = self._bench.sample(rows, columns.own_columns, EFFORTS["best"], columns.judging_seed)
        judged: dict[int, Judged] = {}
        for fold in range(len(sample.folds)):
            # with so few rows a fold may lack a class
            with suppress(ValueError):
                judged[fold] = self._bench.trial(plainest.learner, sample, fold, f"0-{fold}")
        if not judged:
            return chosen
        first = min(judged)
        judging = replace(sample, folds=sample.folds[first:])
        settled = self._settled(judged[first], [choice for _, choice in judged.values()], judging)
        return replace(chosen, penalty=settled[0], temperature=settled[1], shift=settled[2])

    def _settled(
        self, first: Judged, choices: Sequence[PenaltyChoice], sample: Sample
    ) -> tuple[PenaltyChoice | None, float | None, np.ndarray | None]:
        """The penalty that the folds agree on, for all rows; temperature and shift. All None for stochastic steps."""
        settings = self._terms.settings
        if settings.solver != "newton":
            return None, None, None
        calibration = self._bench.calibration(first, sample) if settings.calibrate else (None, None)
        agreed_on = agreed(choices)
        # keeps the C of the sample, the factor on the sum of the losses; alpha is relative to their mean
        share = sample.rows.total_weight / self._rows.total_weight
        return replace(agreed_on, alphas=agreed_on.alphas * share), *calibration


def _race(
    terms: Terms,
    first: list[Contender],
    columns: Columns,
    sample: Sample,
    scalings: tuple[ScalingKind | None, ...],
    log_loss: LogLoss | None = None,
) -> Race:
    """The candidates of a choice, with the work that each trial and each last fit is counted for."""
    whole, judged, rows = terms.shape(columns.dataset), terms.shape(sample.rows), sample.rows
    advising = 0.0 if has_columns_alone(columns.dataset, terms.knobs) else terms.budget.advising(whole)
    return Race(
        list(first),
        len(sample.folds),
        terms.allowed(columns.dataset, columns.own_columns),
        # the race asks for the work of every candidate before each trial
        judging=cache(lambda contender: judged.judging(contender.learner)),
        joining=cache(lambda contender: judged.comparing(contender.learner)),
        fitting=cache(lambda contender: whole.fitting(contender.learner)),
        vary=lambda contender, is_best: variants(
            contender, terms.budget, terms.knobs, rows.n_rows, is_best=is_best, scalings=scalings
        ),
        join=joined,
        of_losses=None if log_loss is None else log_loss.kept_work,
        judging_rows=sample.folds[0].share * rows.total_weight if sample.folds else ENOUGH_ROWS,
        plan=terms.trials,
        spent=columns.spent + advising,
        most_landmarks=min(terms.budget.most_features, columns.dataset.n_rows)
        if terms.knobs.n_features == "auto"
        else 0,
        enough=_NO_LOSS if rows.classes is not None else 0.0,
    )


class Trials:
    """Runs the trials of a race until it ends, the time is up, or a subscriber or Ctrl-C ends them.

    The log loss is asked for once, before the first variant.
    """

    def __init__(self, bench: Bench, sample: Sample, race: Race, log_loss: LogLoss, clock: Clock) -> None:
        self._bench, self._sample, self._race, self._log_loss = bench, sample, race, log_loss
        self._terms, self._run, self._clock = bench.terms, bench.run, clock
        self.pilots: dict[tuple[int, int], Judged] = {}
        self.cut_short = ""

    def run_all(self) -> None:
        """Run the trials; a resumed fit ends them after the same trials as before, at any time."""
        race, ending = self._race, stage_checkpoint(self._terms.checkpoint, "choice")
        saved = None if ending is None else ending.load(self._run.fingerprint)
        if saved is not None:
            race.plan, self._clock = saved.values["trials"], Clock(None)
        self._run_each()
        if self.cut_short:
            limit = " and no time_limit give" if self._terms.time_limit is not None else " gives"
            race.ended = f"{self.cut_short}: trials={race.tried}{limit} the same model"
            if ending is not None:
                ending.save({}, {"trials": race.tried}, fingerprint=self._run.fingerprint)

    def _run_each(self) -> None:
        race, clock, n_kinds = self._race, self._clock, len(self._race.contenders)
        clock.start_counting()
        asked_work: float | None = None
        self._publish(Event("started", "choice"))
        requested = ""
        while (trial := race.next()) is not None and not requested:
            number, _ = trial
            work = race.trial_work(number)
            if race.tried and not clock.allows(work + race.fitting(race.contenders[number])):
                race.leave_out(number)
                self.cut_short = f"since time_limit={self._terms.time_limit:g} left no time for others"
                continue
            try:
                if number >= n_kinds and asked_work is None:
                    best = race.winner
                    judged = [self.pilots[best, done] for done in range(race.rounds)]
                    asked_work = self._log_loss.ask(race.contenders[best].learner, judged)
                    race.spent += asked_work
                    clock.count(asked_work)
                    if not race.affords(number):
                        race.leave_out(number)
                        continue
                self._run_one(*trial)
            except KeyboardInterrupt:
                if race.leader is None or not ends_trials():
                    raise
                self.cut_short = f"since Ctrl-C ended the trials after {len(race.tried)}"
                best_name = race.contenders[race.leader].name
                message = (
                    f"Ctrl-C ended the trials: the best so far is fitted, {best_name}. Ctrl-C again stops the fit."
                )
                self._publish(Event("note", "choice", detail={"message": message}))
                break
            clock.count(work)
            requested = self._publish(self._progress(number)) if race.leader is not None else ""
            self.cut_short = f"since {requested}" if requested else self.cut_short
        self._publish(Event("finished", "choice", len(race.tried), len(race.tried), seconds=clock.elapsed))
        if self.cut_short and asked_work is not None and max(race.tried) < n_kinds:
            # a fit with these `trials` does not ask for the log loss
            race.spent, self._log_loss.verdict = race.spent - asked_work, "open"

    def _run_one(self, number: int, fold: int) -> None:
        """Learn a candidate's features without the rows of a fold, and record its scores there."""
        race, pilots = self._race, self.pilots
        contender = race.contenders[number]
        try:
            parts = [pilots[part, fold][0] for part in race.joined_of(number, fold)]
            known = None if (same := race.metric_of(number, fold)) is None else pilots[same, fold][0]
            fitted = (pilot for (one, _), (pilot, _) in pilots.items() if one == number)
            drawn = None if contender.learner._supervised else next(fitted, None)
            # wide columns in another scaling are not more of the same features: all penalties are compared again
            size = self._terms.shape(self._sample.rows).features_of(contender.learner)
            many = MANY_FEATURES < size <= head.MOST_FEATURES
            near = race.preferred(number) if many else None
            judged = self._bench.trial(
                contender.learner,
                self._sample,
                fold,
                f"{number}-{fold}",
                near=near,
                parts=parts,
                known=known,
                drawn=drawn,
            )
        except ValueError as error:
            LOG.info("%s are left out of the choice: %s", contender.name, error)
            race.record(number, None)
            race.why = race.why or str(error)
        else:
            race.record(number, judged[1], judged[0].feature_map_.n_features)
            pilots[number, fold] = judged

    def _publish(self, event: Event) -> str:
        """Publish an event; returns why a subscriber ends the trials, empty if none does."""
        try:
            self._run.publish(event)
        except StopRequested as request:
            return str(request) or "a subscriber ended the trials"
        return ""

    def _progress(self, number: int) -> Event:
        """The event after a trial: its score, the best so far, and the most seconds that remain."""
        race, clock = self._race, self._clock
        left, best = clock.seconds_of(max(race.allowed - race.spent, 0.0)), race.leader
        if clock.limit is not None:
            left = min(left, max(clock.limit - clock.elapsed, 0.0))
        detail = {
            "kind": race.contenders[number].name,
            "score": race.shown_score(number) if race.choices[number] else None,
            "loss": race.choices[number][-1].loss if race.choices[number] else None,
            "best": "" if best is None else race.contenders[best].name,
            "best_score": None if best is None else race.shown_score(best),
            "seconds_left": left,
        }
        return Event("advanced", "choice", len(race.tried), race.most_trials(), seconds=clock.elapsed, detail=detail)


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


Compared = tuple[list[PenaltyChoice], float]
"""The scores of the penalties of the log loss on each fold, and the log loss of the best one's probabilities."""


class LogLoss:
    """Decides whether the log loss replaces the squared error, by which candidates are compared.

    Parameters
    ----------
    bench : Bench
    sample : Sample
        The rows that trials use.
    dataset : Dataset
        All rows, for the last fit.
    own_columns : int or None
        As in `Terms.allowed`.

    Attributes
    ----------
    verdict : {"open", "declined", "promising", "clearly better"}
        The comparison on the best kind of features before variants are tried; "open" if it was not made.
    """

    def __init__(self, bench: Bench, sample: Sample, dataset: Dataset, own_columns: int | None = None) -> None:
        self._bench, self._terms, self._sample = bench, bench.terms, sample
        self._judged, self._whole = bench.terms.shape(sample.rows, "log_loss"), bench.terms.shape(dataset, "log_loss")
        self._by_squares, self._allowed = bench.terms.shape(dataset), bench.terms.allowed(dataset, own_columns)
        self._is_binary = dataset.schema.n_classes == 2
        self._most_features = most_log_loss_features(dataset.schema.n_classes or 1)
        self._is_possible = may_take_log_loss(bench.terms, dataset)
        self.verdict: Literal["open", "declined", "promising", "clearly better"] = "open"
        # comparisons made before variants, reused in the end if the same features win
        self._compared: dict[tuple[FeatureLearner, ...], Compared] = {}
        self._of_squares: dict[tuple[FeatureLearner, ...], float] = {}

    def kept_work(self, contender: Contender, n_folds: int) -> float:
        """Work that variants leave for a promising log loss on a candidate's features."""
        if self.verdict not in ("promising", "clearly better"):
            return 0.0
        work = self._further_work(contender.learner, n_folds)
        most = _SHARE_OF_TWO_CLASSES if self._is_binary else _SHARE_OF_SEVERAL_CLASSES
        is_kept = self.verdict == "clearly better" or work <= most * self._allowed
        return work if is_kept else 0.0

    def _further_work(self, learner: FeatureLearner, n_folds: int) -> float:
        """Work of comparing the penalties of the log loss, and of a fit by it beyond one by squares."""
        more = self._whole.fitting(learner) - self._by_squares.fitting(learner)
        return self.comparing(learner, n_folds) + float(more)

    def comparing(self, learner: FeatureLearner, n_folds: int) -> float:
        """Work of comparing the penalties of the log loss on a learner's features."""
        return min(n_folds, self._n_folds) * self._judged.comparing(learner, is_near=True)

    @property
    def _n_folds(self) -> int:
        """Number of folds on which the losses are compared."""
        return 1 if self.verdict == "clearly better" else _FOLDS

    def ask(self, learner: FeatureLearner, judged: Sequence[Judged]) -> float:
        """Set the verdict from the best kind of features before its variants are tried; returns the work this took.

        With the squared error, a class that lies between others rarely has the largest score; the log loss then gains
        more than additional features. If the comparison would take too much work, the verdict stays "open". `judged`
        holds the features and their penalties by squared error, from the first fold on.
        """
        # for several classes only a gain that one fold can show counts
        judged = judged[: _FOLDS if self._is_binary else 1]
        size, larger = learner.get_params(deep=False).get("n_features"), clone(learner)
        if size is not None:
            larger.set_params(n_features=int(GROWTH * size))
        if not (self._is_possible and self._has_hessian(learner)):
            return 0.0
        work = self.comparing(learner, len(judged))
        if (
            work > _SHARE_OF_SEVERAL_CLASSES * self._allowed
            or self._further_work(larger, 1) > MOST_SPENT * self._allowed
        ):
            return 0.0
        _, least = self.compared(judged, "asked")
        squared = self._log_loss_of_squares(judged)
        clearly = _CLEARLY_BETTER if self._is_binary else BEHIND[0]
        is_clear, is_better = gains(least, squared, clearly), gains(least, squared)
        self.verdict = "clearly better" if is_clear else "promising" if is_better else "declined"
        return work

    def _has_hessian(self, learner: FeatureLearner) -> bool:
        """Whether the features are few enough for a Hessian, and for the gradient of all classes."""
        return bool(self._whole.features_of(learner) <= self._most_features)

    def compared(self, judged: Sequence[Judged], stage: str) -> Compared:
        """Compare the penalties of the log loss on the first folds, near the best penalty of squares."""
        pilots = tuple(pilot for pilot, _ in judged)
        if pilots not in self._compared:
            near = near_squares([choice for _, choice in judged])
            choices = [
                self._bench.penalties(pilot, self._sample, fold, f"{stage}-log_loss-{fold}", "log_loss", near)
                for fold, pilot in enumerate(pilots)
            ]
            own = list(zip(pilots, choices, strict=True))
            self._compared[pilots] = choices, self._bench.log_loss(own, self._sample)
        return self._compared[pilots]

    def _log_loss_of_squares(self, judged: Sequence[Judged]) -> float:
        """The log loss of the probabilities by squared error on the first folds."""
        pilots = tuple(pilot for pilot, _ in judged)
        if pilots not in self._of_squares:
            self._of_squares[pilots] = self._bench.log_loss(judged, self._sample)
        return self._of_squares[pilots]

    def ahead(self, race: Race, won: int, pilots: dict[tuple[int, int], Judged]) -> tuple[int, Compared | None]:
        """Among candidates near the best, the one with the least log loss, if the log loss is clearly better.

        The log loss ranks features in another order than the squared error. It compares as many candidates as the
        budget allows, and also returns the scores of the one with the least log loss, if that was compared.
        """
        if self.verdict != "clearly better":
            return won, None
        found, last_work = dict[int, Compared](), 0.0
        for number in (won, *race.rivals(won)):
            learner = race.contenders[number].learner
            comparing = self.comparing(learner, 1)
            # any of the candidates may win and be fitted
            fitting = max(last_work, self._whole.fitting(learner))
            # the winner is compared even if that is not cheap
            is_cheap = number == won or comparing <= _SHARE_OF_A_RIVAL * race.allowed
            is_affordable = race.spent + comparing + fitting <= race.allowed and self._has_hessian(learner)
            if is_cheap and is_affordable:
                found[number] = self.compared([pilots[number, 0]], f"rival-{number}")
                race.spent, last_work = race.spent + comparing, fitting
            elif number == won:
                return won, None
        ahead = min(found, key=lambda number: found[number][1])
        return ahead, found[ahead]

    def taken(
        self,
        race: Race,
        learner: FeatureLearner,
        judged: Sequence[Judged],
        expected: float,
        compared: Compared | None = None,
    ) -> tuple[list[PenaltyChoice] | None, tuple[str, ...]]:
        """Whether the last fit uses the log loss: if its probabilities are better on held-out rows.

        Parameters
        ----------
        race : Race
            Its remaining work must suffice; the comparison is added to its `spent`.
        learner : FeatureLearner
            The features that won.
        judged : sequence of (FeatureLearner, PenaltyChoice)
            One for each fold, by the squared error.
        expected : float
            Factor that more landmarks are expected to leave of the squared error, if they take all remaining work; the
            log loss is used only if it is lower by more than this gain.
        compared : tuple or None
            As returned by `compared`, if the log loss was already compared.

        Returns
        -------
        choices : list of PenaltyChoice or None
            The scores of its penalties on each fold; None for the squared error.
        reasons : tuple of str
        """
        judged = judged[: self._n_folds]
        if not self._is_possible or self.verdict == "declined":
            return None, ()
        is_compared = compared is not None or tuple(pilot for pilot, _ in judged) in self._compared
        work = 0.0 if is_compared else self.comparing(learner, len(judged))
        remaining = race.allowed - race.spent
        if not self._has_hessian(learner) or work + self._whole.fitting(learner) > remaining:
            return None, ()
        race.spent += work
        choices, least = compared or self.compared(judged, "told")
        squared = self._log_loss_of_squares(judged)
        if not gains(least, squared, 1.0 - expected):
            return None, ()
        reason = (
            f"Loss: log loss; the log loss of probabilities on held-out rows is {least:.4f} then, {squared:.4f} with "
            "the squared error."
        )
        return choices, (reason,)


def may_take_log_loss(terms: Terms, dataset: Dataset) -> bool:
    """Whether the log loss may replace the squared error on these rows; wide ones have no Hessian."""
    return terms.takes_log_loss and bool(dataset.schema.n_classes) and not has_columns_alone(dataset, terms.knobs)


def near_squares(choices: Sequence[PenaltyChoice]) -> PenaltyChoice:
    """The penalty near which those of the log loss are compared, from the best one of the squared error."""
    squares = agreed(choices)
    return replace(squares, strengths=_C_OVER_SQUARES * squares.strengths)


class PlannedChoice:
    """Upper bounds on what a choice takes, before any row is read, from the race of a fit with all its variants."""

    def __init__(self, terms: Terms, dataset: Dataset) -> None:
        self._terms, self._dataset = terms, dataset
        self._sample = terms.sample(dataset)
        kinds = contenders(dataset, usual_advice(), terms.budget, terms.knobs)
        scalings = SPARSE_SCALINGS if dataset.source.is_sparse else DENSE_SCALINGS
        columns = Columns(dataset, dataset.n_columns, 0.0, None, ())
        # one-hot columns are the same in any scaling
        self._race = _race(terms, kinds, columns, self._sample, () if np.all(dataset.passthrough) else scalings)
        self._tried = self._race.reachable()
        self._takes_log_loss = may_take_log_loss(terms, dataset)

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
        costliest = max((*self._tried, *race.grown(self._tried)), key=lambda one: race.fitting(one)).learner
        largest: dict[tuple[type, bool], FeatureLearner] = {}
        for learner in (contender.learner for contender in self._tried):
            kind = type(learner), bool(learner.get_params(deep=False).get("metric"))
            if kind not in largest or shape.features_of(learner) > shape.features_of(largest[kind]):
                largest[kind] = learner
        return [*(learner for learner in largest.values() if learner is not costliest), costliest]

    @property
    def rows_in_memory(self) -> dict[str, int]:
        """Bytes of the sample, which is in memory for the whole fit; empty if it is not."""
        nbytes = gathered_bytes(self._sample.rows)
        return {"rows to try features on": nbytes} if nbytes else {}

    def stages(self, weights: np.ndarray | None) -> list[tuple[Passes, dict[str, int]]]:
        """The passes of all trials of each candidate that the race can reach, and the bytes between them."""
        terms, dataset, rows, n_folds = self._terms, self._dataset, self._sample.rows, len(self._sample.folds)
        by_time = dataset.schema.held_by == "time"
        passes: list[Any] = planned_suspects(dataset, terms.seed) if looks_for_categories(terms, dataset) else []
        looks = bool(passes)
        # the sample is read for the race, twice for leaving columns out, and for each trial of texts and categories
        of_texts = 2 * sum(rule.kind == "text" for rule in getattr(dataset.encoding, "rules", ()))
        passes += planned_gathering(rows, terms.seed) * (3 + of_texts + (CATEGORY_TRIALS if looks else 0))
        passes += planned_columns(rows, terms.seed)
        stages: list[tuple[Passes, dict[str, int]]] = []
        for place, contender in enumerate(self._tried):
            pilot = terms.new_learner(contender.learner, "pilot")
            judging = chosen_penalty_passes(self._problem(contender.learner, terms.judging_loss, weights), rows.n_rows)
            is_plainest = place == 0
            # texts, and columns that run ahead in time, are tried with the plainest kind; categories also with a plain
            # kernel
            times = n_folds + (of_texts + 2 * by_time if is_plainest else 0)
            is_plain = (is_plainest or is_kernel(contender)) and not is_learned(contender)
            times += CATEGORY_TRIALS if looks and is_plain else 0
            learning = [(records, calls * times) for records, calls in pilot.planned_passes(rows)]
            stages.append((learning, {**pilot.planned_memory(rows), **self.rows_in_memory}))
            passes += [(records, calls * times) for records, calls in judging]
        if by_time:
            # a pass looks for columns that run ahead in time, and another reads rows for the calibration
            passes.append(([RowSample("rows in order of time", rows.n_rows, terms.seed)], 2))
        if self._takes_log_loss:
            problem = self._log_loss()
            calibrating = calibration_passes(problem)
            compared = [*chosen_penalty_passes(problem, rows.n_rows), *calibrating, *calibrating]
            # before variants and in the end, on each fold; and on one fold of the winner and its rivals
            passes += [(records, calls * (2 * n_folds + RIVALS + 1)) for records, calls in compared]
        return [*stages, (passes, {**self._memory(), **self.rows_in_memory})]

    def _memory(self) -> dict[str, int]:
        """Bytes between passes: the largest of penalties, on the largest features, of advice, and of categories."""
        terms, dataset, rows = self._terms, self._dataset, self._sample.rows
        size, advised = terms.shape(rows).features_of, terms.budget.advised(terms.shape(dataset))
        largest = max(self._tried, key=lambda contender: size(contender.learner)).learner
        problem = self._problem(largest, terms.judging_loss)
        stage_bytes = [chosen_penalty_memory(problem, rows.n_rows), advice_memory(min(advised, dataset.n_rows))]
        if looks_for_categories(terms, dataset):
            stage_bytes.append(suspect_memory(dataset))
        if self._takes_log_loss:
            stage_bytes.append(chosen_penalty_memory(self._log_loss(), rows.n_rows))
        return largest_held(stage_bytes)

    def _problem(self, learner: FeatureLearner, loss: str, weights: np.ndarray | None = None) -> LinearProblem:
        """The problem of comparing penalties on a learner's features."""
        pilot = self._terms.new_learner(learner, "pilot")
        return replace(self._terms.planned_problem(pilot, self._sample.rows, weights), loss=loss, alpha="auto")

    def _log_loss(self) -> LinearProblem:
        """The problem of comparing penalties of the log loss, on the most features for which the budget allows it."""
        size, allowed = self._terms.shape(self._sample.rows).features_of, self._terms.allowed(self._dataset)
        judged, whole = (self._terms.shape(rows, "log_loss") for rows in (self._sample.rows, self._dataset))
        most_features = most_log_loss_features(self._dataset.schema.n_classes or 1)
        affordable = [
            contender.learner
            for contender in self._tried
            if size(contender.learner) <= most_features
            and judged.comparing(contender.learner, is_near=True) + whole.fitting(contender.learner) <= allowed
        ]
        squares = PenaltyChoice(np.ones(1), np.ones(1), np.zeros((0, 0)), np.ones(1))
        problem = self._problem(max(affordable or [self._tried[0].learner], key=size), "log_loss")
        return replace(problem, choice=near_squares([squares]))
