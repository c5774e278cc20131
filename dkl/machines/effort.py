"""The budget of a choice of features and the work of its steps, counted from rows and columns, without a clock."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from dkl.features.families import FiniteFamily
from dkl.linear import head
from dkl.methods.base import FeatureLearner

# Work is counted in nanoseconds of one core. The work of linear algebra follows from three rates; all other numbers
# were measured on tables of 2,000 to 8,000 rows and 5 to 70 columns.

# Nanoseconds of one operation: of a matrix product in single precision, in double precision, and of a triangular
# system.
_PRODUCTS, _EXACT_PRODUCTS, _SYSTEMS = 1.0 / 100.0, 1.0 / 50.0, 1.0 / 40.0
# Nanoseconds of a search for waves: at its beginning; for each row and feature; and what each column and each model
# adds for each row and feature.
_SEARCH_BEGINS, _SEARCH, _SEARCH_A_COLUMN, _SEARCH_A_MODEL = 1.5e8, 120.0, 2.0, 5.0
# Rounds of steps: the most regions whose histograms one round examines; nanoseconds for each row of a column's
# histogram; rows that cost as much as its bins; the share that each further model adds; and nanoseconds at the
# beginning of a round.
_REGIONS, _STEP, _STEP_BINS, _STEP_A_MODEL, _ROUND = 150, 0.4, 500, 0.25, 1.5e7
# Rounds of steps usually end with at most one atom for this many rows.
_ROWS_AN_ATOM = 8
# Nanoseconds of one cosine; of one kernel value at a landmark, and what each column adds to it; and of the passes of
# one trial on few rows, whatever its features.
_WAVE, _KERNEL, _KERNEL_A_COLUMN, _TRIAL = 3.0, 5.0, 0.2, 5e7
# Mapped rows of at most this many bytes stay in memory, so that all passes of one fit map them once.
_KEPT_BYTES = 1 << 29
# A learned metric: its usual rounds, its landmarks, the penalties compared in a round, and nanoseconds of the
# derivative of one kernel value.
_METRIC_ROUNDS, _METRIC_LANDMARKS, _METRIC_PENALTIES, _SLOPE = 5.0, 600, 13.0, 10.0
# Penalties that one comparison fits: of two losses, of any other loss, and where features are many.
_PENALTIES, _OTHER_PENALTIES, _FEW_PENALTIES = {"squared_error": 13, "squared_hinge": 5}, 8, 3
# With too many features for a Gram matrix, conjugate gradients are used: nanoseconds for each sparse row and model, and
# how often all rows are mapped.
_SPARSE, _WIDE_PRODUCTS = 1e5, 100.0
# Hessians that each model of the squared hinge forms: while penalties are compared, and in the last fit.
_HESSIANS_JUDGING, _HESSIANS_FITTING = 6.0, 4.0
# Hessians that each model of any other loss forms: for each penalty compared, and in the last fit.
_OTHER_HESSIANS_JUDGING, _OTHER_HESSIANS_FITTING = 5.0, 7.0
# The log loss of several classes, fitted jointly: passes for each penalty compared, and in the last fit; nanoseconds of
# a pass at its beginning, for each number read, for each number of a mapped row and for each probability; operations
# for each number of a mapped row and class, and for each entry of the factored Gram matrix.
_PASSES_JUDGING, _PASSES_FITTING = 20.0, 50.0
_PASS, _READ, _NUMBER, _PROBABILITY, _OF_ROWS, _OF_FACTORS = 2e6, 4.0, 1.2, 45.0, 6.0, 4.0
# Comparing scalings and bandwidths: nanoseconds for each pair of rows; for each triple of rows, which counts when rows
# are many; the share of the budget that may be spent on more rows than usual; and the most rows, whose matrices take
# 130 MB.
_ADVICE, _ADVICE_OF_MANY, _SHARE_OF_ADVICE, _MOST_ADVISED = 800.0, 1.4, 0.0035, 2_000
# The most rows of the sample; where memory allows more, one row for this many rows of the data.
_MOST_JUDGED, _ROWS_A_JUDGED_ONE = 20_000, 200
# With more features than this, only penalties near the one preferred by fewer features are compared.
MANY_FEATURES = 600
# Factor on the expected time of a trial, so that it ends within the limit.
_CAUTION = 1.3
# The measured pace of work is averaged with this many seconds at the counted pace, since short trials are slower.
_USUAL = 1.0


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
    folds : int
        Largest number of folds that candidates are scored on.
    n_features, most_features : int
        Features of the first candidate of a kind, and of the largest.
    most_bags : int
        Repetitions of the rounds of steps at most, each with other rows held out.
    """

    work: float
    work_a_value: float
    judged_rows: int
    advised_rows: int
    folds: int
    n_features: int
    most_features: int
    most_bags: int

    def advised(self, shape: Shape) -> int:
        """Rows on which scalings and bandwidths are compared; more than usual where the fit takes long anyway."""
        of_rows = self.allowed(shape) - self.work
        worth = int(np.cbrt(_SHARE_OF_ADVICE * of_rows / _ADVICE_OF_MANY))
        return max(self.advised_rows, min(worth, _MOST_ADVISED))

    def most_judged(self, n_rows: int, in_memory: int) -> int:
        """The most rows of the sample; with many rows, no more than fit in memory."""
        return max(_MOST_JUDGED, min(n_rows // _ROWS_A_JUDGED_ONE, in_memory))

    def advising(self, shape: Shape) -> float:
        """Work of comparing scalings and bandwidths, in counted nanoseconds."""
        n_rows = min(self.advised(shape), shape.n_rows)
        return max(_ADVICE * n_rows**2, _ADVICE_OF_MANY * n_rows**3)

    def allowed(self, shape: Shape) -> float:
        """The budget of a fit to rows of this shape, in counted nanoseconds."""
        return self.work + self.work_a_value * shape.n_rows * shape.n_columns * shape.n_models


EFFORTS = {
    "fast": Effort(
        9e8, 2e2, judged_rows=2_000, advised_rows=300, folds=2, n_features=200, most_features=400, most_bags=1
    ),
    "balanced": Effort(
        5e9, 3e3, judged_rows=5_000, advised_rows=600, folds=5, n_features=400, most_features=4_000, most_bags=1
    ),
    "best": Effort(
        2e11, 2e4, judged_rows=20_000, advised_rows=1_000, folds=5, n_features=500, most_features=8_000, most_bags=16
    ),
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
            return n * D * (_KERNEL + _KERNEL_A_COLUMN * d + D * _PRODUCTS)
        return n * D * (_WAVE + 2.0 * d * _PRODUCTS)

    def learning(self, learner: FeatureLearner) -> float:
        """Work of learning the features themselves, without the linear model."""
        n, d, K, D = self.n_rows, self.n_columns, self.n_models, self.features_of(learner)
        parameters = learner.get_params(deep=False)
        if parts := parameters.get("features"):
            return sum(self.learning(part) for part in parts)
        if D > head.MOST_FEATURES:
            return 0.0
        if "features_per_round" not in parameters:
            whitening = D**3 * 2.0 / 3.0 * _SYSTEMS if "landmarks" in parameters else 0.0
            return whitening + (self._metric() if parameters.get("metric") else 0.0)
        if "bins" in parameters:
            m, bags = min(parameters["n_features"], n / _ROWS_AN_ATOM), parameters["bags"]
            rounds = bags * (m / min(max(n / 60.0, 5.0), 25.0) + 8.0)
            looked_at = min(_REGIONS, m) * d * (n + _STEP_BINS) * (1.0 + _STEP_A_MODEL * (K - 1.0))
            return rounds * (_ROUND + _STEP * looked_at)
        return _SEARCH_BEGINS + n * D * (_SEARCH + _SEARCH_A_COLUMN * d + _SEARCH_A_MODEL * K)

    def _metric(self) -> float:
        """Work of learning a metric; a round has a Gram matrix, its linear systems, and gradients at every landmark."""
        landmarks = min(_METRIC_LANDMARKS, self.n_rows)
        # distances of rows to landmarks, the Gram matrix of all kernel values, and the gradients at the landmarks
        products = 2.0 * (2.0 * self.n_columns + landmarks + self.n_models * self.n_columns) * _EXACT_PRODUCTS
        similarities = 2.0 * _KERNEL + _SLOPE * self.n_models + products
        systems = _METRIC_PENALTIES * landmarks**3 / 3.0 * _SYSTEMS
        return _METRIC_ROUNDS * (self.n_rows * landmarks * similarities + systems)

    def judging(self, learner: FeatureLearner) -> float:
        """Work of one trial: learning the features, and comparing penalties on them."""
        return self.learning(learner) + self.comparing(learner)

    def comparing(self, learner: FeatureLearner, *, is_near: bool = False) -> float:
        """Work of comparing penalties on learned features; with `is_near`, only of those near a given penalty."""
        n_penalties = _PENALTIES.get(self.loss, _OTHER_PENALTIES)
        if is_near or self.features_of(learner) > MANY_FEATURES:
            n_penalties = min(n_penalties, _FEW_PENALTIES)
        if self._is_joint:
            return self._joint(learner, n_penalties, _PASSES_JUDGING * n_penalties)
        if self.loss == "squared_error":
            # one Hessian serves all penalties and models
            return self._steps(learner, 1.0, n_penalties, 1.3)
        if self.loss == "squared_hinge":
            return self._steps(learner, _HESSIANS_JUDGING * self.n_models, 3.0 * self.n_models * n_penalties, 4.0)
        hessians = _OTHER_HESSIANS_JUDGING * self.n_models * n_penalties
        return self._steps(learner, hessians, hessians, 4.0)

    def fitting(self, learner: FeatureLearner) -> float:
        """Work of the last fit: learning the features, and fitting the models at one penalty."""
        if self._is_joint:
            return self.learning(learner) + self._joint(learner, 1.0, _PASSES_FITTING)
        K, maps = self.n_models, 2.0 if self.loss == "squared_error" else 6.0
        steps = {"squared_error": 1.0, "squared_hinge": _HESSIANS_FITTING}.get(self.loss, _OTHER_HESSIANS_FITTING)
        hessians = steps if self.loss == "squared_error" else steps * K
        return self.learning(learner) + self._steps(learner, hessians, 2.0 * hessians, maps)

    @property
    def _is_joint(self) -> bool:
        """Whether one convex problem fits the models of all classes."""
        return self.loss == "log_loss" and self.n_models > 1

    def _joint(self, learner: FeatureLearner, n_penalties: float, passes: float) -> float:
        """Work of passes that fit all classes jointly, preconditioned by a Gram matrix factored for each penalty.

        Each pass computes the scores, their change along the step, and the gradients.
        """
        D = float(self.features_of(learner))
        products = _OF_ROWS * self.n_rows * D * _PRODUCTS + _OF_FACTORS * D**2 * _EXACT_PRODUCTS
        rows = self.n_rows * (_READ * self.n_columns + _NUMBER * D)
        one = _PASS + rows + self.n_models * (products + _PROBABILITY * self.n_rows)
        return self._steps(learner, 1.0, n_penalties, passes) + passes * one

    def _steps(self, learner: FeatureLearner, hessians: float, systems: float, maps: float) -> float:
        """Work of Newton steps from their Hessians, n D^2 each, linear systems, D^3/3 each, and maps of all rows."""
        D = float(self.features_of(learner))
        if D > head.MOST_FEATURES:
            # conjugate gradients map the rows again for every product
            return _TRIAL + self.n_models * self.n_rows * _SPARSE + _WIDE_PRODUCTS * self.mapping(learner)
        products = hessians * self.n_rows * D**2 * _PRODUCTS + systems * D**3 / 3.0 * _SYSTEMS
        parts = learner.get_params(deep=False).get("features") or [learner]
        keeps = self._is_joint or any("landmarks" in part.get_params(deep=False) for part in parts)
        maps = 1.0 if keeps and 4.0 * self.n_rows * D <= _KEPT_BYTES else maps
        return _TRIAL + maps * self.mapping(learner) + products


class Clock:
    """Whether the next trial would still end within a limit of time. Nothing else in a choice reads the clock.

    Parameters
    ----------
    limit : float or None
        Seconds from now; None is no limit.
    """

    def __init__(self, limit: float | None) -> None:
        self.limit, self._begun = limit, time.monotonic()
        self._work = 0.0
        self._tried: float | None = None

    def count(self, work: float) -> None:
        """Add counted work that has been done since the last call."""
        self._work += work

    def start_counting(self) -> None:
        """Measure the pace of work from now on."""
        self._tried = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def seconds_of(self, work: float) -> float:
        """Expected seconds of further counted work at the pace so far, with a margin."""
        seconds = time.monotonic() - (self._begun if self._tried is None else self._tried)
        return _CAUTION * work * (seconds + _USUAL) / (self._work + 1e9 * _USUAL)

    def allows(self, work: float) -> bool:
        """Whether further counted work is expected to end within the limit."""
        return self.limit is None or self.elapsed + self.seconds_of(work) <= self.limit
