"""The budget of a choice of features and the work of its steps, counted from rows and columns, without a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import numpy as np

from dkl.features.families import FiniteFamily
from dkl.linear import head
from dkl.linear.judge import NEIGHBOURS, OTHER_PENALTIES, PENALTIES
from dkl.machines.suggest import JUDGED_ROWS
from dkl.methods.base import FeatureLearner
from dkl.methods.metric.learner import LEAST_LANDMARKS
from dkl.methods.refining import descent
from dkl.methods.rounds.learner import columns_a_round
from dkl.methods.steps.atoms import PARENTS
from dkl.passes.memory import LARGEST_DEFAULT_CACHE

# Work is counted in nanoseconds of one core. These costs were measured on tables of 2,000 to 8,000 rows and 5 to 70
# columns, on two cores with AVX2.

# Nanoseconds of one operation of linear algebra: in single precision (Gram matrices, maps), and in double precision
# (triangular systems and factors).
SINGLE, _DOUBLE = 1.0 / 100.0, 1.0 / 40.0
# Nanoseconds of one cosine or kernel value; and of one number that a compiled loop adds to a distance or a histogram.
_VALUE, _NUMBER = 4.0, 0.35
# Nanoseconds of the passes of one trial, whatever its features; and of the beginning of a round of steps.
_TRIAL, _ROUND = 5e7, 1.5e7
# Nanoseconds of a search for waves, at its beginning and for each row and feature.
_SEARCH_BEGINS, _SEARCH = 1.5e8, 160.0
# Nanoseconds of the steps of gradient descent for each row, beside the map of its features: 10,000 and 20,000 rows of 8
# to 100 columns, with 50 to 800 features.
_DESCENT = 1_200.0
# Rows for each atom that rounds of steps usually end with; usual rounds of a learned metric.
_ROWS_AN_ATOM, _METRIC_ROUNDS = 8, 5
# Passes that fit several classes by the log loss at one penalty, and the nanoseconds of one probability in them.
_PASSES, _PROBABILITY = 30.0, 45.0
# Comparing scalings and bandwidths: nanoseconds for each triple of rows; the share of the budget that may be spent on
# more rows than usual; and the most rows, whose matrices take 130 MB.
_ADVICE, _SHARE_OF_ADVICE, MOST_ADVISED = 1.4, 0.0035, 2_000
# The most rows of the sample; where memory allows more, one row for this many rows of the data.
MOST_JUDGED, _ROWS_A_JUDGED_ONE = 20_000, 200
# Share of the sample that is held out for each trial (with few rows, for each of five folds).
JUDGING_SHARE = 0.2
# Factor on the expected time of a trial, so that it ends within the limit; the measured pace of work is averaged with
# this many seconds at the counted pace, since short trials are slower.
_CAUTION, _USUAL = 1.3, 1.0


@dataclass(frozen=True)
class Effort:
    """The budget of a machine, and the sizes that its choice begins with.

    Parameters
    ----------
    work, work_a_value : float
        Counted nanoseconds of the whole fit: a constant, and a term for each number of the table and model.
    judged_rows : int
        Rows of the sample that candidates are tried on, at least; more where trying them all is cheap.
    advised_rows : int
        Rows on which scalings and bandwidths are compared, at least.
    n_features, most_features : int
        Features of the first candidate of a kind, and of the largest.
    folds : int
        Largest number of folds that candidates are scored on.
    most_bags : int
        Repetitions of the rounds of steps at most, each with other rows held out.
    """

    work: float
    work_a_value: float
    judged_rows: int
    advised_rows: int
    n_features: int
    most_features: int
    folds: int = round(1.0 / JUDGING_SHARE)
    most_bags: int = 1

    def advised(self, shape: Shape) -> int:
        """Rows on which scalings and bandwidths are compared; more than usual where the fit takes long anyway."""
        of_rows = self.allowed(shape) - self.work
        worth = int(np.cbrt(_SHARE_OF_ADVICE * of_rows / _ADVICE))
        return max(self.advised_rows, min(worth, MOST_ADVISED))

    def most_judged(self, n_rows: int, in_memory: int) -> int:
        """The most rows of the sample; with many rows, no more than fit in memory."""
        return max(MOST_JUDGED, min(n_rows // _ROWS_A_JUDGED_ONE, in_memory))

    def advising(self, shape: Shape) -> float:
        """Work of comparing scalings and bandwidths, in counted nanoseconds."""
        return _ADVICE * min(self.advised(shape), shape.n_rows) ** 3

    def allowed(self, shape: Shape) -> float:
        """The budget of a fit to rows of this shape, in counted nanoseconds."""
        return self.work + self.work_a_value * shape.n_rows * shape.n_columns * shape.n_models


EFFORTS = {
    "fast": Effort(1e9, 2e2, judged_rows=2_000, advised_rows=300, n_features=200, most_features=400, folds=2),
    "balanced": Effort(5e9, 3e3, judged_rows=5_000, advised_rows=600, n_features=400, most_features=4_000),
    "best": Effort(2e11, 2e4, MOST_JUDGED, advised_rows=JUDGED_ROWS, n_features=500, most_features=8_000, most_bags=16),
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
        parameters = learner.get_params(deep=False)
        if parts := parameters.get("features"):
            return sum(self.features_of(part) for part in parts)
        size, family = parameters.get("n_features"), parameters.get("family")
        if size is None or (family is not None and isinstance(family, FiniteFamily)):
            return self.n_columns if size is None else min(int(size), self.n_columns)
        return min(int(size), self.n_rows) if "landmarks" in parameters else int(size) * parameters.get("bags", 1)

    def mapping(self, learner: FeatureLearner) -> float:
        """Work of mapping all rows to features once."""
        parameters = learner.get_params(deep=False)
        if parts := parameters.get("features"):
            return sum(self.mapping(part) for part in parts)
        n, d, D = self.n_rows, self.n_columns, self.features_of(learner)
        if parameters.get("n_features", D) is None:
            # the features are the columns themselves
            return 0.0
        if "landmarks" in parameters:
            # whitening multiplies by a triangular matrix
            return n * D * (_VALUE + _NUMBER * d + D * SINGLE)
        return n * D * (_VALUE + 2.0 * d * SINGLE)

    def learning(self, learner: FeatureLearner) -> float:
        """Work of learning the features themselves, without the linear model."""
        n, d, K, D = self.n_rows, self.n_columns, self.n_models, self.features_of(learner)
        parameters = learner.get_params(deep=False)
        if parts := parameters.get("features"):
            return sum(self.learning(part) for part in parts)
        if D > head.MOST_FEATURES:
            return 0.0
        if "features_per_round" not in parameters:
            whitening = D**3 * 2.0 / 3.0 * _DOUBLE if "landmarks" in parameters else 0.0
            return whitening + (self._metric() if parameters.get("metric") else 0.0)
        if "bins" in parameters:
            atoms, bags = min(parameters["n_features"], n / _ROWS_AN_ATOM), parameters["bags"]
            # a bin, whose gain is computed for each model, takes as long as four rows
            histograms = min(PARENTS, atoms) * d * (n + 4.0 * parameters["bins"]) * K
            return bags * (atoms / columns_a_round(n) + parameters["patience"]) * (_ROUND + _NUMBER * histograms)
        return _SEARCH_BEGINS + n * D * _SEARCH + self._refining(learner)

    def _refining(self, learner: FeatureLearner) -> float:
        """Work of gradient descent on searched frequencies: in each epoch, its steps and a map of the rows."""
        planned = descent(learner.get_params(deep=False).get("refine", 0), self.n_rows)
        visited = replace(self, n_rows=min(self.n_rows, planned.epoch_rows or self.n_rows))
        return planned.epochs * (visited.n_rows * _DESCENT + visited.mapping(learner))

    def _metric(self) -> float:
        """Work of learning a metric; a round has a Gram matrix, its linear systems, and gradients at every landmark."""
        n, d, K, landmarks = self.n_rows, self.n_columns, self.n_models, min(LEAST_LANDMARKS, self.n_rows)
        # kernel values and their derivatives, distances, the Gram matrix of all values, and the gradients
        values = n * landmarks * (2.0 * (1.0 + K) * _VALUE + 2.0 * (2.0 * d + landmarks + K * d) * _DOUBLE)
        systems = len(PENALTIES["squared_error"]) * landmarks**3 / 3.0 * _DOUBLE
        return _METRIC_ROUNDS * (values + systems)

    def trial_work(self, learner: FeatureLearner, is_near: bool = False) -> float:
        """Work of one trial: learning the features, and comparing penalties on them."""
        return self.learning(learner) + self.comparing(learner, is_near)

    def comparing(self, learner: FeatureLearner, is_near: bool = False) -> float:
        """Work of comparing penalties on learned features; with `is_near`, only of those near a given penalty."""
        n_penalties = NEIGHBOURS if is_near else len(PENALTIES.get(self.loss, OTHER_PENALTIES))
        return _TRIAL + self._fits_at_penalties(learner, n_penalties)

    def fitting(self, learner: FeatureLearner) -> float:
        """Work of the last fit: learning the features, and fitting the models at one penalty."""
        return _TRIAL + self.learning(learner) + self._fits_at_penalties(learner, 1)

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
        # a pass computes the scores of all classes, their change along the step, and the gradients
        one_pass = K * n * (6.0 * D * SINGLE + _PROBABILITY)
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
        return _CAUTION * work * (seconds + _USUAL) / (self._work + 1e9 * _USUAL)

    def allows(self, work: float) -> bool:
        """Whether further counted work is expected to end within the limit."""
        return self.limit is None or self.elapsed + self.seconds_of(work) <= self.limit
