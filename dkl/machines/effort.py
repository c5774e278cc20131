"""The budget of a choice of features and the work of its steps, counted from rows and columns, without a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from dkl.features.families import is_finite
from dkl.linear import head
from dkl.linear.judge import ENOUGH_ROWS, LEAST_SEEN, MOST_FOLDS, NEIGHBOURS, OTHER_PENALTIES, PENALTIES
from dkl.machines.suggest import JUDGED_ROWS
from dkl.methods.base import FeatureLearner
from dkl.methods.margin.driver import (
    CHAINS_A_CANDIDATE,
    ROUNDS_BEFORE_DESCENT,
    RoundSchedule,
    ascent_steps,
    first_sample,
)
from dkl.methods.metric.driver import MetricProblem
from dkl.methods.metric.learner import LEAST_LANDMARKS
from dkl.methods.refining import descent
from dkl.methods.rounds.learner import columns_a_round
from dkl.methods.steps.atoms import PARENTS
from dkl.passes.memory import LARGEST_DEFAULT_CACHE

# Work is counted in nanoseconds of one core, from the operations and values of each step. The costs were measured on
# 450 trials of 21 tables of 750 to 250,000 rows and 4 to 309 columns, on two cores with AVX2. The trials of a table
# take .7 to 1.5 times their count, 1.0 in the median.

# Nanoseconds of one operation of linear algebra: in single precision (Gram matrices, maps), and in double precision
# (triangular systems and factors).
SINGLE, _DOUBLE = 1.0 / 100.0, 1.0 / 40.0
# Nanoseconds of one cosine, of which a value of a kernel or of a step takes two; and of one number that a compiled loop
# adds to a distance or a histogram.
_VALUE, _NUMBER = 3.0, 0.1
# Nanoseconds of a pass over few rows, with what the driver computes after it; a trial has two.
_PASS = 5e6
# Nanoseconds of the steps of gradient descent for each row, beside the maps of its features: steps of 64 rows, of 8 to
# 100 columns, with 50 to 800 features.
_DESCENT = 1_200.0
# Models that are added to a bin of a histogram in the time in which the bin of a row is found.
_MODELS_A_BIN = 16.0
# Of several classes fitted by the log loss: passes at one penalty; nanoseconds of each pass and the step after it,
# whatever its rows are; and nanoseconds of each probability that it computes.
_PASSES, _STEP, _PROBABILITY = 30.0, 2e6, 24.0
# Nanoseconds for each triple of rows on which scalings and bandwidths are compared: of seven kernels, each with an
# eigendecomposition of some 8 n^3 operations.
_ADVICE = 7 * 8 * _DOUBLE
# Share of the budget's constant part for comparing scalings and bandwidths by leave-one-out errors: 246, 421 and 1,000
# rows by effort. With 600 rows it was 6 % of the seconds of 24 tables with more than twice the budget.
_ADVICE_SHARE = 0.035
# Features of the first candidate of each kind, or landmarks; half of the most of an effort, if these are fewer.
_FIRST_FEATURES = 400
# The sample has one row for this many rows of the data where that is more than `LEAST_SEEN`, from four million rows on,
# and fits in memory.
_ROWS_A_JUDGED_ONE = 200
# Share of the sample that is held out for each trial: with few rows, for each of five folds.
JUDGING_SHARE = 1.0 / MOST_FOLDS
# Share of the budget for trials of kinds and folds, and the most that is reserved for a last fit with more landmarks;
# and share of a limit of time: the other fifth is a margin for errors of the count.
MOST_SPENT = 0.8
# Seconds at the counted pace of work with which the measured pace is averaged, since short trials are slower, and the
# first of a process compiles.
_USUAL = 1.0


@dataclass(frozen=True)
class Effort:
    """The budget of a machine, and the largest size and number of folds that its choice tries.

    Parameters
    ----------
    work, work_a_value : float
        Counted nanoseconds of the whole fit: a constant, and a term for each number of the table and model.
    most_features : int
        Features of the largest candidate of a kind, of all bags together.
    folds : int
        Largest number of folds that candidates are scored on.
    least_judged : int
        Rows of the sample, unless there are fewer; it has more where trying all kinds on them is cheap.
    """

    work: float
    work_a_value: float
    most_features: int
    folds: int = MOST_FOLDS
    least_judged: int = MOST_FOLDS * ENOUGH_ROWS

    @property
    def advised_rows(self) -> int:
        """Rows on which scalings and bandwidths are compared: as many as a share of the work pays for."""
        return min(int(np.cbrt(_ADVICE_SHARE * self.work / _ADVICE)), JUDGED_ROWS)

    @property
    def n_features(self) -> int:
        """Features of the first candidate of a kind, which can grow."""
        return min(_FIRST_FEATURES, self.most_features // 2)

    def most_judged(self, n_rows: int, in_memory: int) -> int:
        """The most rows of the sample; with many rows, no more than fit in memory."""
        return max(LEAST_SEEN, min(n_rows // _ROWS_A_JUDGED_ONE, in_memory))

    def advising(self, shape: Shape) -> float:
        """Work of comparing scalings and bandwidths, in counted nanoseconds."""
        return _ADVICE * min(self.advised_rows, shape.n_rows) ** 3

    def allowed(self, shape: Shape) -> float:
        """The budget of a fit to rows of this shape, in counted nanoseconds."""
        return self.work + self.work_a_value * shape.n_rows * shape.n_columns * shape.n_models


# On 181 splits of 113 tables the losses with a balanced effort of 2.25 s are .3 % +- .4 larger than with 3 s and with
# searched waves beside refined ones, in .69 of the seconds. The least effort has the seconds that it took before work
# was counted by operations. With 1,600 rows (800 for each of two folds) it had .7 % more loss on ten tables than with
# 2,000.
EFFORTS = {
    "fast": Effort(6e8, 2e2, most_features=400, folds=2, least_judged=2_000),
    "balanced": Effort(2.25e9, 2e3, most_features=4_000),
    "best": Effort(2e11, 2e4, most_features=8_000),
}


@dataclass(frozen=True)
class Shape:
    """Rows, columns, models and loss of a fit, from which its work is counted in nanoseconds of one core.

    Parameters
    ----------
    n_rows, n_columns, n_models : int
        n, d, and K linear models side by side.
    loss : str
        The loss that the linear models minimise by Newton steps.
    """

    n_rows: int
    n_columns: int
    n_models: int
    loss: str

    def features_of(self, learner: FeatureLearner) -> int:
        """The largest number of features D that a learner can have on these rows."""
        parameters = vars(learner)
        if parts := parameters.get("features"):
            return sum(self.features_of(part) for part in parts)
        size, family = parameters.get("n_features"), parameters.get("family")
        if size is None or is_finite(family):
            return self.n_columns if size is None else min(int(size), self.n_columns)
        return min(int(size), self.n_rows) if "landmarks" in parameters else int(size) * parameters.get("bags", 1)

    def mapping(self, learner: FeatureLearner) -> float:
        """Work of mapping all rows to features once."""
        parameters = vars(learner)
        if parts := parameters.get("features"):
            return sum(self.mapping(part) for part in parts)
        n, d, D = self.n_rows, self.n_columns, self.features_of(learner)
        if parameters.get("n_features", D) is None:
            # the features are the columns themselves
            return 0.0
        if "landmarks" in parameters:
            # whitening multiplies by a triangular matrix
            return n * D * (2.0 * _VALUE + _NUMBER * d + D * SINGLE)
        if "bins" in parameters:
            return n * D * 2.0 * _VALUE
        return n * D * (_VALUE + 2.0 * d * SINGLE)

    def learning(self, learner: FeatureLearner) -> float:
        """Work of learning the features themselves, without the linear model."""
        n, d, K, D = self.n_rows, self.n_columns, self.n_models, self.features_of(learner)
        parameters = vars(learner)
        if parts := parameters.get("features"):
            return sum(self.learning(part) for part in parts)
        if D > head.MOST_FEATURES:
            return 0.0
        if "features_per_round" not in parameters:
            whitening = D**3 * 2.0 / 3.0 * _DOUBLE if "landmarks" in parameters else 0.0
            return whitening + (self._metric() if parameters.get("metric") else 0.0)
        if "bins" in parameters:
            rows, bins, bags = min(n, parameters["search_rows"] or n), parameters["bins"], parameters["bags"]
            # usual rounds end before there is an atom for two rows
            atoms = min(parameters["n_features"], rows / 2.0)
            histograms = min(PARENTS, atoms) * d * (_NUMBER * rows + 2.0 * _VALUE * bins) * (1.0 + K / _MODELS_A_BIN)
            # in each round half of the atoms on average
            rounds = bags * (atoms / columns_a_round(n) + parameters["patience"])
            return rounds * (_PASS + rows * atoms * _VALUE + histograms)
        return self._searching(learner) + self._refining(learner)

    def _searching(self, learner: FeatureLearner) -> float:
        """Work of the rounds that search for waves: ascents on a sample, and passes that map all rows."""
        n, d, D = self.n_rows, self.n_columns, self.features_of(learner)
        if vars(learner).get("refine"):
            rounds, maps = float(ROUNDS_BEFORE_DESCENT), (ROUNDS_BEFORE_DESCENT + 1) / 2.0
        else:
            # points grow e-fold in 1 / growth rounds, some four times; all maps cost 1 / growth times the last one
            maps = 1.0 / RoundSchedule.growth
            rounds = 4.0 * maps
        # chains for each candidate, candidates for each point, and half a point (cosine and sine) for each feature
        chains = CHAINS_A_CANDIDATE * RoundSchedule.candidates * D / 2.0
        climbing = chains * ascent_steps(n, d) * min(n, first_sample(n)) * (2.0 * _VALUE + 4.0 * d * SINGLE)
        return rounds * _PASS + climbing + maps * self.mapping(learner) + n * D**2 * SINGLE

    def _refining(self, learner: FeatureLearner) -> float:
        """Work of gradient descent on searched frequencies: in each epoch its steps, which map each row, and a pass.

        The gradient takes as long as the map.
        """
        planned = descent(vars(learner).get("refine", 0), self.n_rows)
        visited = replace(self, n_rows=min(self.n_rows, planned.epoch_rows or self.n_rows))
        return planned.epochs * (2.0 * _PASS + visited.n_rows * _DESCENT + 2.0 * visited.mapping(learner))

    def _metric(self) -> float:
        """Work of learning a metric; a round has a Gram matrix, its linear systems, and gradients at every landmark."""
        n, d, K, landmarks = self.n_rows, self.n_columns, self.n_models, min(LEAST_LANDMARKS, self.n_rows)
        # kernel values and distances in both passes of a round, the Gram matrix, and the gradients
        values = n * landmarks * (4.0 * _VALUE + (4.0 * d + landmarks + 2.0 * K * d) * _DOUBLE)
        # the ridge of the round before with its neighbours, and the one of the gradients
        systems = (NEIGHBOURS + 1) * landmarks**3 / 3.0 * _DOUBLE
        return MetricProblem.rounds * (2.0 * _PASS + values + systems)

    def trial_work(self, learner: FeatureLearner, is_near: bool = False) -> float:
        """Work of one trial: learning the features, and comparing penalties on them, or only those near a given one."""
        return self.learning(learner) + self.comparing(learner, NEIGHBOURS if is_near else None)

    def comparing(self, learner: FeatureLearner, n_penalties: int | None = None) -> float:
        """Work of comparing penalties on learned features; None compares all of the loss."""
        n_penalties = n_penalties or len(PENALTIES.get(self.loss, OTHER_PENALTIES))
        return 2.0 * _PASS + self._fits_at_penalties(learner, n_penalties)

    def fitting(self, learner: FeatureLearner) -> float:
        """Work of the last fit: learning the features, and fitting the models at one penalty."""
        return 2.0 * _PASS + self.learning(learner) + self._fits_at_penalties(learner, 1)

    def _fits_at_penalties(self, learner: FeatureLearner, n_penalties: int) -> float:
        """Work of fitting models at several penalties: Hessians, n D^2 each, linear systems, D^3 / 3 each, and maps."""
        n, K, D = self.n_rows, self.n_models, float(self.features_of(learner))
        # Newton steps: the first one, and as many as usually follow
        usual = 1 + head.USUAL_STEPS.get(self.loss, head.USUAL_OTHERS)[0]
        if D > head.MOST_FEATURES:
            # conjugate gradients map the rows again for every product with the Hessian, 4 n D operations for each model
            return usual * head.USUAL_PRODUCTS * (self.mapping(learner) + 4.0 * n * D * K * SINGLE)
        is_joint = self.loss == "log_loss" and K > 1
        # one Hessian of the squared error serves all penalties and models, as does the metric of jointly fitted classes
        steps = 0 if self.loss == "squared_error" or is_joint else usual
        hessians, passes = max(1.0, steps * K * n_penalties), _PASSES * n_penalties if is_joint else 0.0
        # mapped rows that fit in the cache stay there, so that all passes of one fit map them once
        maps = 1.0 if 4.0 * n * D <= LARGEST_DEFAULT_CACHE else 2.0 + steps + passes
        products = hessians * n * D**2 * SINGLE + max(hessians, n_penalties) * D**3 / 3.0 * _DOUBLE
        # a pass computes the scores of all classes and the gradients
        one_pass = _STEP + K * n * (4.0 * D * SINGLE + _PROBABILITY)
        return maps * self.mapping(learner) + products + passes * one_pass


class Clock:
    """Whether the next trial would still end within a limit of time. Nothing else in a choice reads the clock.

    Parameters
    ----------
    limit : float or None
        Seconds from now; None is no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit, self._start_time = limit, time.monotonic()
        self._work = 0.0
        self._trials_start_time: float | None = None

    def count(self, work: float) -> None:
        """Add counted work that has been done since the last call."""
        self._work += work

    def start_counting(self) -> None:
        """Measure the pace of work from now on."""
        self._trials_start_time = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._start_time

    def seconds_of(self, work: float) -> float:
        """Expected seconds of further counted work at the pace so far, with a margin."""
        seconds = time.monotonic() - (self._start_time if self._trials_start_time is None else self._trials_start_time)
        return work / MOST_SPENT * (seconds + _USUAL) / (self._work + 1e9 * _USUAL)

    def allows(self, work: float) -> bool:
        """Whether further counted work is expected to end within the limit."""
        return self.limit is None or self.elapsed + self.seconds_of(work) <= self.limit
