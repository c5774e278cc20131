"""What a machine without settings does before it is fitted: it lets kinds of features race on held-out rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from dkl.data.checks import spoken_names
from dkl.data.dataset import Dataset
from dkl.data.fewer_columns import without_columns
from dkl.encodings.categories import NOTHING
from dkl.encodings.fitted import FittedEncoding, Made, category_reasons
from dkl.encodings.suspects import more_categories, planned_suspects, suspect_memory
from dkl.encodings.texts import has_scores, with_texts
from dkl.events import Event, StopRequested
from dkl.linear.fitting import LinearProblem, Run
from dkl.linear.head import MOST_FEATURES
from dkl.linear.judge import PenaltyChoice, gains, judging_folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.newton import chosen_penalty_memory, chosen_penalty_passes
from dkl.machines.columns_ahead import columns_ahead
from dkl.machines.columns_alone import asked, perfect_columns, planned_columns
from dkl.machines.contenders import (
    Contender,
    contenders,
    has_kernel,
    is_kernel,
    is_learned,
    joined,
    landmarks_of,
    usual_advice,
    variants,
)
from dkl.machines.contest import ENOUGH_ROWS, FEWEST_ROWS, JUDGING_SHARE, MOST_JOINED, RIVALS, Race, Tried
from dkl.machines.effort import EFFORTS, MANY_FEATURES, Clock, Effort, Shape
from dkl.machines.judged_rows import gathered, gathered_bytes, most_gathered, planned_gathering
from dkl.machines.loss_choice import Judged, LossChoosingMixin, On, near_squares
from dkl.machines.machine_plan import calibration_passes
from dkl.machines.stopping import ends_trials
from dkl.machines.suggest import RowsAlikeError, advice_memory, advise
from dkl.machines.usual_time import UsualTime, looks_curved, usual_time
from dkl.methods.base import FeatureLearner
from dkl.methods.checkpoints import stage_checkpoint
from dkl.methods.fit_context import FitContext
from dkl.methods.validation import numbered_rows, record_columns
from dkl.protocols.block import Block
from dkl.protocols.driver import largest_held
from dkl.protocols.records import RowSample

LOG = logging.getLogger("dkl")

# The kinds may take so much of the work that is left beside the last fit; the rest is for variants of the best.
_SHARE_OF_KINDS = 0.7
# Whether something is better taken for a category is told by so many trials of plain models, before and with numbers
# and crosses, for at most so much of the work.
_TRIALS, _SHARE_OF_CATEGORIES = 4, 0.25
# Work is allowed for so many numbers a column of a table.
_MOST_NUMBERS = 3
# The folds of a cross-validation hold a row each.
_LEAST_ROWS = 5
# Columns are left out where the loss on the newest rows falls by so much without them.
_CLEARLY = 0.01
# The loss of labels, relative to that of the best constant, from which on all rows are told right and clearly so.
_NO_LOSS = 1e-3
# Crosses have to do so much better: kernels find them, too, with more rows than are tried on.
_CLEARLY_CROSSED = 0.15
# Landmarks of the kernel that crosses are judged by.
_LARGE_KERNEL = 1_000


class ChoosingMixin(LossChoosingMixin):
    """How a machine chooses its features; the machine makes learners and linear problems."""

    effort: str
    time_limit: float | None
    trials: Sequence[int] | None
    validation_fraction: float
    checkpoint: Any
    categorical: Sequence[str] | None
    seed_: int
    reasons_: tuple[str, ...]
    summary_: str
    _task: ClassVar[Any]
    _advised: FeatureLearner
    # What the last race has found; empty where there was none.
    _tried_kinds: tuple[Tried, ...] = ()
    # The seed of the rows that judge, where target means of the others were taken without them.
    _judging_seed: int | None
    # What is said of columns that the last fit left out.
    _left_out: tuple[str, ...] = ()
    # Columns before anything was made of categories.
    _own_columns: int = 2**62
    # The work of telling what is better taken for a category.
    _spent_before: float = 0.0
    # What is said of numbers that may be names, and of crosses.
    _suspected: tuple[str, ...] = ()
    _judging_rows: Any
    _learner: Any
    _planned_problem: Any
    _problem_on: Any
    _new_features: Any
    _unfitted: Any
    _settle: Any

    def _choose_features(
        self, dataset: Dataset, weights: np.ndarray | None, run: Run, clock: Clock
    ) -> PenaltyChoice | None:
        """Set the features that do best on held-out rows, and why; the penalty too, if exact steps will use one.

        Each contender is learned without the rows of a fold, and judged on these by the same exact linear model.
        """
        effort = EFFORTS[self.effort]
        if dataset.total_weight < FEWEST_ROWS:
            return self._without_a_race(dataset, weights, run, f"{dataset.n_rows} rows are too few to choose by")
        try:
            advice = advise(dataset, run, self.seed_, effort.advised(self._shape(dataset)))
        except RowsAlikeError:
            return self._without_a_race(dataset, weights, run, "the rows do not differ")
        tried = contenders(dataset, advice, effort, self._knobs)
        sample, folds = self._gathered_sample(dataset, effort, run)
        on = (sample, weights, run)
        race = self._race(tried, dataset, sample, folds)
        # a fit that resumes ends its trials where the first one did, whatever the clock says now
        ending = stage_checkpoint(self.checkpoint, "choice")
        saved = None if ending is None else ending.load(run.fingerprint)
        if saved is not None:
            race.plan, clock = saved.values["trials"], Clock(None)
        pilots, cut_short = self._raced(race, folds, on, dataset, clock)
        if cut_short:
            limit = " and no time_limit give" if self.time_limit is not None else " gives"
            race.ended = f"{cut_short}: trials={race.tried}{limit} the same model"
            if ending is not None:
                ending.save({}, {"trials": race.tried}, fingerprint=run.fingerprint)
        won, grown, expected, known = race.winner, None, 1.0, None
        if not cut_short and race.plan is None:
            won, grown, expected = race.settled()
            ahead, known = self._ahead_by_log_loss(race, won, pilots, folds[0], on, dataset)
            if ahead != won:
                won, (end, grown) = ahead, race.end_of(ahead)
                expected = end / race.loss(won)
        self._advised = race.contenders[won].learner
        of_categories = category_reasons(dataset.encoding)
        choices = race.choices[won][: race.rounds]
        judged = [pilots[won, fold] for fold in range(race.rounds)]
        left = race.allowed - race.spent
        told = self._better_loss(judged, folds[: race.rounds], on, dataset, left, expected, known)
        if grown is not None:
            # telling, and steps by another loss, take work, so that there may be fewer landmarks
            race.spent += told.work
            whole = self._shape(dataset)
            race.fitting = lambda contender: whole.fitting(contender.learner)
            grown = race.largest(race.contenders[won], landmarks_of(race.contenders[won]))
        choices = choices if told.choices is None else told.choices
        of_loss = (told.reason,) if told.reason else ()
        self._advised = (grown or race.contenders[won]).learner
        self.summary_ = race.sentence(
            won, grown, self._measure(), f"; {race.ended.partition(':')[0]}" if cut_short else ""
        )
        loss = self._judging_loss()["loss"].replace("_", " ").removesuffix(" loss")
        measure = "R^2 of the scores" if loss == "squared error" else f"1 less the mean {loss} loss"
        measure += "" if dataset.classes is None else ", not the share of right rows"
        reasons = *race.reasons(sample.n_rows, won, grown, measure=measure), *of_loss, *advice.reasons[:3]
        alone = asked(perfect_columns(sample, run, self.seed_))
        self.reasons_ = (*reasons, *alone, *of_categories, *self._suspected, *self._left_out)
        self._tried_kinds = race.table(won)
        return self._settled_penalty((pilots[won, 0][0], choices[0]), choices, folds[0], on, dataset)

    def _measure(self) -> str:
        """The unit of the scores that a person is shown."""
        if self._task == "classification":
            return "accuracy"
        loss = self._judging_loss()["loss"].replace("_", " ").removesuffix(" loss")
        return "R^2" if loss == "squared error" else f"1 less the mean {loss} loss"

    def _raced(
        self, race: Race, folds: list[HeldOut], on: On, dataset: Dataset, clock: Clock
    ) -> tuple[dict[tuple[int, int], Judged], str]:
        """Run the trials that a race asks for, one after the other; losses are asked before the first variant.

        Returns
        -------
        pilots : dict of (int, int) to (FeatureLearner, PenaltyChoice)
            What each contender has learned without the rows of each fold, and how penalties do there.
        cut_short : str
            Why some of them were left out, by the clock or by whoever looks on; empty for none.
        """
        pilots, n_kinds = dict[tuple[int, int], Judged](), len(race.contenders)
        clock.start_counting()
        cut_short, asking = "", None
        self._log_loss = "open"
        run = on[2]
        self._tell_of_choice(run, Event("started", "choice"))
        requested = ""
        while (trial := race.next()) is not None and not requested:
            number = trial[0]
            work = race.trial_work(number)
            if race.tried and not clock.allows(work + race.fitting(race.contenders[number])):
                race.leave_out(number)
                cut_short = f"since time_limit={self.time_limit:g} left no time for others"
                continue
            loss = self.loss_
            try:
                if number >= n_kinds and asking is None:
                    best = race.winner
                    plain = [pilots[best, done] for done in range(race.rounds)]
                    learner = race.contenders[best].learner
                    asking = self._ask_log_loss(learner, plain, folds[: race.rounds], on, dataset)
                    race.spent += asking
                    clock.count(asking)
                    if not race.affords(number):
                        race.leave_out(number)
                        continue
                self._run_trial(race, trial, pilots, folds, on)
            except KeyboardInterrupt:
                if race.leader is None or not ends_trials():
                    raise
                # the losses may have been compared
                self.loss_ = loss
                cut_short = f"since Ctrl-C ended the trials after {len(race.tried)}"
                best_name = race.contenders[race.leader].name
                said = f"Ctrl-C ended the trials: the best so far is fitted, {best_name}. Ctrl-C again stops the fit."
                self._tell_of_choice(run, Event("note", "choice", detail={"message": said}))
                break
            clock.count(work)
            requested = self._tell_of_choice(run, _after_trial(race, number, clock)) if race.leader is not None else ""
            cut_short = f"since {requested}" if requested else cut_short
        self._tell_of_choice(run, Event("finished", "choice", len(race.tried), len(race.tried), seconds=clock.elapsed))
        if cut_short and asking is not None and max(race.tried) < n_kinds:
            # a fit that is given these trials does not ask either
            race.spent, self._log_loss = race.spent - asking, "open"
        return pilots, cut_short

    def _run_trial(
        self,
        race: Race,
        trial: tuple[int, int],
        pilots: dict[tuple[int, int], Judged],
        folds: list[HeldOut],
        on: On,
    ) -> None:
        """Learn a contender's features without the rows of a fold, and tell the race how they do there."""
        number, fold = trial
        contender = race.contenders[number]
        self._advised = contender.learner
        try:
            learned = [pilots[part, fold][0] for part in race.joined_of(number, fold)]
            known = None if (same := race.metric_of(number, fold)) is None else pilots[same, fold][0]
            many = self._shape(on[0]).features_of(contender.learner) > MANY_FEATURES
            near = race.preferred(number) if many else None
            pilot, choice = self._tried(folds[fold], on, f"{number}-{fold}", near, learned, known)
        except ValueError as error:
            LOG.info("%s are left out of the choice: %s", contender.name, error)
            race.tell(number, None)
            race.why = race.why or str(error)
        else:
            race.tell(number, choice, pilot.feature_map_.n_features)
            pilots[number, fold] = pilot, choice

    def _tell_of_choice(self, run: Run, event: Event) -> str:
        """Publish where the choice is; why a subscriber wants it to end, empty where none does."""
        try:
            run.publish(event)
        except StopRequested as request:
            return str(request) or "a subscriber ended the trials"
        return ""

    def _without_columns_ahead(self, dataset: Dataset, weights: np.ndarray | None, run: Run) -> Dataset:
        """The rows without columns whose newest values no older row has, where a linear model does better without them.

        Only rows of tables that are held out by time have such columns. The newest rows judge.
        """
        self._left_out, self._judging_seed = (), None
        is_table = dataset.encoding is not None and not dataset.encoding.array_dtype
        if dataset.schema.held_by != "time" or not is_table or dataset.total_weight < FEWEST_ROWS:
            return dataset
        effort = EFFORTS[self.effort]
        sample, folds = self._judged_sample(dataset, effort)
        ahead = columns_ahead(sample, folds[0], run, self.seed_)
        # what becomes of codes is not known yet
        codes = [rule.name for rule in dataset.encoding.rules if rule.kind == "code"]
        if not ahead or len(ahead) + len(codes) == dataset.n_columns:
            return dataset
        losses = []
        for stage, names in (("with", codes), ("without", [*codes, *ahead])):
            rows = gathered(without_columns(sample, names), run, self.seed_)
            self._advised = contenders(rows, usual_advice(), effort, self._knobs)[0].learner
            _, choice = self._tried(folds[0], (rows, weights, run), f"columns-{stage}")
            losses.append(choice.loss)
        if not gains(losses[1], losses[0], _CLEARLY):
            return dataset
        self._left_out = (
            f"Columns: {spoken_names(ahead)} left out, since most of the newest rows lie beyond all older ones there, "
            f"and later rows will: a linear model without them has the score {1.0 - losses[1]:.4f} on the newest rows, "
            f"with them {1.0 - losses[0]:.4f}. by_time=False keeps them, and holds rows out at random.",
        )
        fewer = without_columns(dataset, ahead)
        self.encoding_ = fewer.encoding
        record_columns(self, fewer)
        return fewer

    def _numbered(self, dataset: Dataset, run: Run, more: Made = NOTHING) -> Dataset:
        """The rows with numbers in place of categories."""
        numbered = numbered_rows(self, dataset, self._judging_rows(dataset), run, more)
        # Target means of the rows that judge were left out of the codes of all others: no other rows may judge then.
        is_numbered = numbered is not dataset or has_scores(numbered.encoding)
        self._judging_seed = self.seed_ if is_numbered else None
        # of several trials the last one counts
        self.encoding_ = numbered.encoding
        record_columns(self, numbered)
        return numbered

    def _with_chosen_columns(self, dataset: Dataset, weights: np.ndarray | None, run: Run) -> Dataset:
        """The rows with numbers in place of codes, and beside what held-out rows say is better taken for a category.

        The latter where the machine chooses for itself, and nobody has said what is categorical. A machine that chooses
        leaves columns out, too, that run ahead of older rows.
        """
        if self._chooses:
            dataset = self._without_columns_ahead(dataset, weights, run)
        self._suspected, self._own_columns, self._spent_before = (), dataset.n_columns, 0.0
        if self._chooses:
            dataset = self._with_gaining_texts(dataset, weights, run)
        if dataset.encoding is not None and not dataset.encoding.array_dtype:
            # a column of classes has many of numbers, most of them 0
            self._own_columns = min(self._own_columns, _MOST_NUMBERS * len(dataset.encoding.rules))
        if not self._chooses or not self._asks_for_categories(dataset):
            return self._numbered(dataset, run)
        found = more_categories(dataset, self._judging_rows(dataset), run, self.seed_)
        rows, made = self._numbered(dataset, run), NOTHING
        for what in ("taken", "crosses"):
            if not (names := getattr(found.made, what)):
                continue
            tried = replace(made, numbers=found.made.numbers, **{what: names})
            other = self._numbered(dataset, run, tried)
            is_better, before, after = self._compared(rows, other, weights, run, what)
            self._suspected += (found.told(what, is_better, before, after),)
            if is_better:
                made, rows = tried, other
        if found.suspected and not found.made.taken:
            self._suspected += (found.told("taken", False),)
        if not found.made:
            # these rows were the last ones that were numbered
            return rows
        # what a model knows of its columns is that of the rows that it is fitted to
        return self._numbered(dataset, run, made)

    def _with_gaining_texts(self, dataset: Dataset, weights: np.ndarray | None, run: Run) -> Dataset:
        """The rows with the columns that a fit makes of free text, without texts that held-out rows gain nothing by."""
        made = with_texts(dataset, self._judging_rows(dataset), run)
        if made is dataset:
            return dataset
        of_texts = {rule.name: rule.output_names for rule in made.encoding.rules if rule.kind == "text"}
        # what becomes of codes is not known yet
        codes = [rule.name for rule in made.encoding.rules if rule.kind == "code"]
        effort = EFFORTS[self.effort]
        for name, columns in of_texts.items():
            if made.total_weight < FEWEST_ROWS or len(codes) + len(columns) == made.n_columns:
                continue
            scores = [
                self._plain_score(
                    *self._gathered_sample(without_columns(made, left_out), effort, run),
                    weights,
                    run,
                    f"text {list(of_texts).index(name)}",
                    "columns",
                    stage,
                )
                for stage, left_out in (("without", [*codes, *columns]), ("with", codes))
            ]
            stays = gains(1.0 - scores[1], 1.0 - scores[0], _CLEARLY)
            taken = "a score by its words and their directions are columns"
            taken = taken if stays else "it is left out, since it gains nothing"
            self._suspected += (
                f"Text: {name!r} is free text; {taken} (score of a linear model on held-out rows {scores[1]:.4f} with "
                f"it, {scores[0]:.4f} without).",
            )
            made = made if stays else without_columns(made, columns)
        self.encoding_ = made.encoding
        record_columns(self, made)
        return made

    def _asks_for_categories(self, dataset: Dataset) -> bool:
        """Whether nobody has said what is categorical, and plain models may tell it for a small share of the work."""
        effort = EFFORTS[self.effort]
        kinds = contenders(dataset, usual_advice(), effort, self._knobs)
        judged = replace(self._shape(dataset), n_rows=min(dataset.n_rows, effort.judged_rows))
        trials = sum(judged.judging(kind.learner) for kind in (kinds[0], next(filter(is_kernel, kinds), kinds[-1])))
        return self.categorical is None and _TRIALS * trials <= _SHARE_OF_CATEGORIES * effort.allowed(judged)

    def _compared(
        self, rows: Dataset, other: Dataset, weights: np.ndarray | None, run: Run, what: str
    ) -> tuple[bool, float, float]:
        """Whether plain models do better on other columns of the rows, on held-out ones of a sample; their best scores.

        They are the columns themselves and a kernel that is a product over columns, which knows by itself which rows
        share values: of crosses a large one, which is asked only where the columns themselves gain enough.
        """
        least = _CLEARLY_CROSSED if what == "crosses" else _CLEARLY
        before = after = -np.inf
        effort = EFFORTS[self.effort]
        judged, others = (self._gathered_sample(each, effort, run) for each in (rows, other))
        for kind in ("columns", "kernel"):
            before = max(before, self._plain_score(*judged, weights, run, what, kind, "before"))
            after = max(after, self._plain_score(*others, weights, run, what, kind, "with"))
            is_better = gains(1.0 - after, 1.0 - before, least)
            if what == "crosses" and not is_better:
                break
        return is_better, before, after

    def _plain_score(
        self,
        sample: Dataset,
        folds: list[HeldOut],
        weights: np.ndarray | None,
        run: Run,
        what: str,
        kind: str,
        stage: str,
    ) -> float:
        """The score of the columns themselves, or of a kernel, on held-out rows of a sample."""
        effort = EFFORTS[self.effort]
        kinds = contenders(sample, usual_advice(), effort, self._knobs)
        chosen = kinds[0]
        if kind == "kernel":
            # a learned metric is no part of a plain kernel; where there is none the last kind stands for it
            kernels = [one for one in kinds if is_kernel(one) and not is_learned(one)]
            chosen = (kernels or kinds)[-1]
            if kernels and what == "crosses" and self._knobs.n_features == "auto":
                size = min(_LARGE_KERNEL, effort.most_features)
                chosen = chosen.changed(f"up to {size:,}", n_features=size)
        self._advised = chosen.learner
        self._spent_before += self._shape(sample).judging(chosen.learner)
        is_numbered = isinstance(sample.encoding, FittedEncoding) or has_scores(sample.encoding)
        self._judging_seed = self.seed_ if is_numbered else None
        _, choice = self._tried(folds[0], (sample, weights, run), f"{stage}-{what}-{kind}")
        return choice.score

    def _without_a_race(self, dataset: Dataset, weights: np.ndarray | None, run: Run, why: str) -> PenaltyChoice | None:
        """Take the plainest features; folds of the rows choose the penalty alone.

        Raises
        ------
        ValueError
            For fewer rows than folds.
        """
        if dataset.n_rows < _LEAST_ROWS:
            raise ValueError(
                f"n_samples = {dataset.n_rows}: a machine that chooses for itself holds rows out, and needs at least "
                f"{_LEAST_ROWS} rows; give it features and alpha, as in {type(self).__name__}('random', alpha=0.1)"
            )
        plainest = contenders(dataset, usual_advice(), EFFORTS[self.effort], self._knobs)[0]
        self._advised = plainest.learner
        self.summary_ = f"Chose {plainest.name}: {why}."
        self.reasons_ = (
            f"Features: {plainest.name}; {why}.",
            *category_reasons(dataset.encoding),
            *self._suspected,
            *self._left_out,
        )
        self._tried_kinds = ()
        sample, folds = self._gathered_sample(dataset, EFFORTS["best"], run)
        judged = []
        for number, fold in enumerate(folds):
            # a fold of so few rows may have none
            with suppress(ValueError):
                judged.append((*self._tried(fold, (sample, weights, run), f"0-{number}"), fold))
        if not judged:
            return None
        pilot, choice, fold = judged[0]
        on = (sample, weights, run)
        return self._settled_penalty((pilot, choice), [choice for _, choice, _ in judged], fold, on, dataset)

    def _race(self, tried: list[Contender], dataset: Dataset, sample: Dataset, folds: list[HeldOut]) -> Race:
        """The race of these contenders within what the effort allows."""
        effort = EFFORTS[self.effort]
        whole = self._shape(dataset)
        judged = self._shape(sample)
        # one-hot columns are what they are in any scaling
        scales = not (sample.source.is_sparse or np.all(sample.passthrough))
        return Race(
            list(tried),
            len(folds),
            self._allowed(dataset),
            judging=lambda contender: judged.judging(contender.learner),
            joining=lambda contender: judged.telling(contender.learner),
            fitting=lambda contender: whole.fitting(contender.learner),
            vary=lambda contender, is_best: variants(
                contender, effort, self._knobs, sample.n_rows, is_best=is_best, scales=scales
            ),
            join=joined,
            of_losses=lambda contender, n_folds: self._work_of_losses(contender.learner, n_folds, dataset, sample),
            judging_rows=folds[0].share * sample.total_weight if folds else ENOUGH_ROWS,
            plan=self.trials,
            spent=self._spent_before + effort.advising(whole),
            most_landmarks=min(effort.most_features, dataset.n_rows) if self._knobs.n_features == "auto" else 0,
            enough=_NO_LOSS if sample.classes is not None else 0.0,
        )

    def _allowed(self, dataset: Dataset) -> float:
        """The work that the effort allows, which columns made of categories do not add to."""
        shape = self._shape(dataset)
        return EFFORTS[self.effort].allowed(replace(shape, n_columns=min(self._own_columns, shape.n_columns)))

    def _shape(self, dataset: Dataset) -> Shape:
        """What the work on these rows follows from."""
        n_classes = dataset.schema.n_classes
        n_models = dataset.schema.n_targets or 1 if n_classes is None else 1 if n_classes == 2 else n_classes
        return Shape(dataset.n_rows, dataset.n_columns, n_models, self._judging_loss()["loss"])

    def _judged_sample(self, dataset: Dataset, effort: Effort) -> tuple[Dataset, list[HeldOut]]:
        """The rows that kinds of features are tried on, all of them where they are few, and the folds that judge."""
        n_rows = self._judged_rows(dataset, effort)
        sample = dataset if dataset.n_rows <= n_rows else dataset.thin(n_rows, self.seed_)
        held_out = HeldOut(max(JUDGING_SHARE, self.validation_fraction), self.seed_)
        folds = judging_folds(held_out, sample.total_weight, sample.source.most_folds)
        enough = int(np.ceil(ENOUGH_ROWS / (folds[0].share * sample.total_weight)))
        return sample, folds[: min(effort.folds, enough)]

    def _gathered_sample(self, dataset: Dataset, effort: Effort, run: Run) -> tuple[Dataset, list[HeldOut]]:
        """`_judged_sample`, its rows in memory where that is worth it."""
        sample, folds = self._judged_sample(dataset, effort)
        return gathered(sample, run, self.seed_), folds

    def _judged_rows(self, dataset: Dataset, effort: Effort) -> int:
        """The rows that kinds are tried on at most: more than `effort` says where trying all of them on more is cheap.

        What gains most by further rows is not the best on few.
        """
        shape, n_rows = self._shape(dataset), effort.judged_rows
        kinds = [one.learner for one in contenders(dataset, usual_advice(), effort, self._knobs) if not is_learned(one)]
        left = self._allowed(dataset) - max(shape.fitting(learner) for learner in kinds)
        most = min(dataset.n_rows, effort.most_judged(dataset.n_rows, most_gathered(dataset)))
        while (more := min(2 * n_rows, most)) > n_rows:
            if sum(replace(shape, n_rows=more).judging(learner) for learner in kinds) > _SHARE_OF_KINDS * left:
                break
            n_rows = more
        return n_rows

    def _tried(
        self,
        fold: HeldOut,
        on: tuple[Dataset, np.ndarray | None, Run],
        stage: str,
        near: PenaltyChoice | None = None,
        learned: Sequence[FeatureLearner] = (),
        known: FeatureLearner | None = None,
    ) -> tuple[FeatureLearner, PenaltyChoice]:
        """The features learned without the rows of a fold, and how the penalties do on these.

        Those of other features side by side need not be `learned` again, nor the metric that is `known`. Those
        penalties are tried that are `near` the one which fewer of the kind have preferred, if that is known.
        """
        pilot = self._learner(f"pilot-{stage}")
        if learned:
            pilot.put_together(learned)
        else:
            context = FitContext(fold, for_machine=True, is_pilot=True, hints=False, judging_seed=self._judging_seed)
            if known is not None and known.metric_ is not None:
                context = replace(context, metric=(known.metric_, known.family_.sigma / known.sigma_factor))
            pilot.fit_within(on[0], context)
        return pilot, self._told_penalties(pilot, fold, on, stage, near)

    def _planned_choice(
        self, dataset: Dataset, weights: np.ndarray | None
    ) -> tuple[list[tuple[list[Any], dict[str, int]]], dict[str, int], list[FeatureLearner]]:
        """The stages of choosing the features, as of `planned_stages`; leaves the costliest as those to be planned for.

        Returns
        -------
        stages : list of (passes, held)
        rows : dict of int
            Bytes of the rows that stay in memory for the rest of the fit.
        others : list of learner
            What else may be fitted in the end.
        """
        effort = EFFORTS[self.effort]
        sample, folds = self._judged_sample(dataset, effort)
        by_time = dataset.schema.held_by == "time"
        passes: list[Any] = planned_suspects(dataset, self.seed_) if self._asks_for_categories(dataset) else []
        looks = bool(passes)
        # for the race, to leave columns out, and before and after each of two kinds of columns that may be better taken
        of_texts = 2 * sum(rule.kind == "text" for rule in getattr(dataset.encoding, "rules", ()))
        passes += planned_gathering(sample, self.seed_) * (3 + of_texts + (_TRIALS if looks else 0))
        passes += planned_columns(sample, self.seed_)
        tried, stages = self._all_that_may_be_tried(dataset, sample), []
        rows = {"rows to try features on": nbytes} if (nbytes := gathered_bytes(sample)) else {}
        for place, contender in enumerate(tried):
            self._advised = contender.learner
            pilot = self._learner("pilot")
            problem = replace(self._planned_problem(pilot, sample, weights), **self._judging_loss())
            judging = chosen_penalty_passes(problem, sample.n_rows)
            # the plainest kind also says whether columns that run ahead of older rows are left out
            times = len(folds) + (2 if by_time and place == 0 else 0)
            # and whether free text stays, with it and without
            times += of_texts if place == 0 else 0
            # whether numbers and crosses are better taken for categories is told by plain models, before and after
            times += _TRIALS if looks and (place == 0 or is_kernel(contender)) and not is_learned(contender) else 0
            found = [(records, calls * times) for records, calls in pilot.planned_passes(sample)]
            stages.append((found, {**pilot.planned_memory(sample), **rows}))
            passes += [(records, calls * times) for records, calls in judging]
        if by_time:
            # these columns are looked for, and rows to calibrate on are read
            passes.append(([RowSample("rows in order of time", sample.n_rows, self.seed_)], 2))
        judging_held = self._planned_judging(dataset, sample, tried)
        if self._may_take_log_loss(dataset):
            problem = self._planned_log_loss(tried, dataset, sample)
            judging = chosen_penalty_passes(problem, sample.n_rows)
            told = [*judging, *calibration_passes(problem), *calibration_passes(problem)]
            # before variants of a kind, and in the end; and on a fold of what is near the best, and of that
            passes += [(records, calls * (2 * len(folds) + RIVALS + 1)) for records, calls in told]
        stages.append((passes, {**judging_held, **rows}))
        *others, self._advised = self._may_win(dataset, sample, tried)
        return stages, rows, others

    def usual_time(
        self, dataset: Dataset, block: Block | None, *, slots: int, flops_per_second: float
    ) -> UsualTime | None:
        """What a fit on these rows takes as a rule, told from their number and one block; None for given features.

        Parameters
        ----------
        dataset : Dataset
        block : Block or None
            None where none was read: more than lines is expected then.
        slots : int
            Blocks that are computed on at once.
        flops_per_second : float
            Of a product of matrices, on one thread.
        """
        if not self._chooses or dataset.total_weight < FEWEST_ROWS:
            return None
        unfitted, has_codes = self._unfitted(), dataset.schema.has_codes
        unfitted._settle(dataset)
        is_curved = block is None or has_codes or looks_curved(block, dataset.schema.n_classes)
        usual = usual_time(
            self.effort,
            unfitted._shape(dataset),
            has_codes=has_codes,
            is_curved=is_curved,
            slots=slots,
            flops_per_second=flops_per_second,
        )
        return usual if self.time_limit is None else replace(usual, seconds=min(usual.seconds, self.time_limit))

    def _planned_log_loss(self, tried: list[Contender], dataset: Dataset, sample: Dataset) -> LinearProblem:
        """The problem of telling the penalties of the log loss apart, on the most features that it is asked for.

        These are no more than it takes the products of all pairs of, and no more than the effort allows.
        """
        size, allowed = self._shape(sample).features_of, self._allowed(dataset)
        judged, whole = (replace(self._shape(rows), loss="log_loss") for rows in (sample, dataset))
        able = [
            contender.learner
            for contender in tried
            if size(contender.learner) <= MOST_FEATURES
            and judged.telling(contender.learner, is_near=True) + whole.fitting(contender.learner) <= allowed
        ]
        self._advised, self.loss_ = max(able or [tried[0].learner], key=size), "log_loss"
        squares = PenaltyChoice(np.ones(1), np.ones(1), np.zeros((0, 0)), np.ones(1))
        problem = replace(self._planned_problem(self._learner("pilot"), sample, None), **self._judging_loss())
        return replace(problem, choice=near_squares([squares]))

    def _planned_last(self, problem: LinearProblem, dataset: Dataset) -> LinearProblem:
        """The problem of the last fit, whose penalty a race has chosen; for a plan any penalty will do."""
        if not self._chooses or dataset.total_weight < FEWEST_ROWS:
            return problem
        return replace(problem, choice=PenaltyChoice(np.ones(1), np.ones(1), np.zeros((0, 0))))

    def _planned_judging(self, dataset: Dataset, sample: Dataset, tried: list[Contender]) -> dict[str, int]:
        """Bytes beside the passes: to tell penalties apart on the largest features that are tried, or of suspects."""
        self._advised = max(tried, key=lambda contender: self._shape(sample).features_of(contender.learner)).learner
        problem = replace(self._planned_problem(self._learner("pilot"), sample, None), **self._judging_loss())
        advised = EFFORTS[self.effort].advised(self._shape(dataset))
        held = [chosen_penalty_memory(problem, sample.n_rows), advice_memory(min(advised, dataset.n_rows))]
        if self._asks_for_categories(dataset):
            held.append(suspect_memory(dataset))
        if self._may_take_log_loss(dataset):
            held.append(chosen_penalty_memory(self._planned_log_loss(tried, dataset, sample), sample.n_rows))
        return largest_held(held)

    def _all_that_may_be_tried(self, dataset: Dataset, sample: Dataset) -> list[Contender]:
        """Every kind, and every variant that a race may come to, as far as the effort allows its fit."""
        effort = EFFORTS[self.effort]
        known = {contender.key: contender for contender in contenders(dataset, usual_advice(), effort, self._knobs)}
        race = self._race(list(known.values()), dataset, sample, [])
        waiting = list(known.values())
        while waiting:
            for contender in race.vary(waiting.pop(), True):
                factor = contender.learner.get_params(deep=False).get("sigma_factor", 1.0)
                fits = race.judging(contender) + race.fitting(contender) <= race.allowed and 0.1 < factor < 10.0
                if fits and contender.key not in known:
                    known[contender.key] = contender
                    waiting.append(contender)
        # the costliest that may be joined stand for all
        fitting = sorted(known.values(), key=lambda contender: race.fitting(contender))
        pairs = (joined(first, second) for second in reversed(fitting) for first in reversed(fitting))
        several = (pair for pair in pairs if race.judging(pair) + race.fitting(pair) <= race.allowed)
        return [*known.values(), *islice(several, MOST_JOINED)]

    def _costliest(self, dataset: Dataset, sample: Dataset, tried: list[Contender]) -> FeatureLearner:
        """Of all that may win, with all landmarks that they may have in the end, the features that take most work."""
        race = self._race([], dataset, sample, [])
        kernels = [contender for contender in tried if has_kernel(contender)]
        grown = [race.largest(contender, 1) or contender for contender in kernels]
        return max((*tried, *grown), key=lambda contender: race.fitting(contender)).learner

    def _may_win(self, dataset: Dataset, sample: Dataset, tried: list[Contender]) -> list[FeatureLearner]:
        """Of each kind of learner the features that are most, then the costliest ones: any of them may be fitted.

        What takes most work need not hold most memory: rounds that search for waves hold rows, landmarks hold none.
        """
        costliest, size = self._costliest(dataset, sample, tried), self._shape(dataset).features_of
        largest: dict[tuple[type, bool], FeatureLearner] = {}
        for learner in (contender.learner for contender in tried):
            kind = type(learner), bool(learner.get_params(deep=False).get("metric"))
            if kind not in largest or size(learner) > size(largest[kind]):
                largest[kind] = learner
        return [*(learner for learner in largest.values() if learner is not costliest), costliest]

    def _learners_of(self, advised: list[FeatureLearner]) -> Iterator[FeatureLearner]:
        """The learners that would fit these features to all rows, one after the other."""
        before = self._advised
        for learner in advised:
            self._advised = learner
            yield self._new_features("features")
        self._advised = before


def _after_trial(race: Race, number: int, clock: Clock) -> Event:
    """What is told after a trial: its score, the best so far, and the seconds that are left at most."""
    left, best = clock.seconds_of(max(race.allowed - race.spent, 0.0)), race.leader
    if clock.limit is not None:
        left = min(left, max(clock.limit - clock.elapsed, 0.0))
    detail = {
        "kind": race.contenders[number].name,
        "score": race.shown_score(number) if race.choices[number] else None,
        "best": "" if best is None else race.contenders[best].name,
        "best_score": None if best is None else race.shown_score(best),
        "seconds_left": left,
    }
    return Event("advanced", "choice", len(race.tried), race.most_trials(), seconds=clock.elapsed, detail=detail)
