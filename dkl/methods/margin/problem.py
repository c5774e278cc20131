"""The problem of fully corrective rounds, their schedule, and their state between passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dkl.methods.frequency_search.frequency_space import FrequencySpace
from dkl.methods.rounds.loop import WithHistory
from dkl.methods.rounds.sums import HeldTargets
from dkl.solvers.losses import HINGES, Loss, SquaredHingeLoss


@dataclass(frozen=True)
class RoundSchedule:
    """The number of features that each round adds, and the rules that end the rounds.

    Parameters
    ----------
    first : int
        Points that an early round adds; few, since each point changes the potential that is searched next.
    growth : float
        Later rounds add this share of the present points.
    late_growth : float
        The share from `late` points on, where a round costs more.
    late : int
    candidates : float
        Candidates verified on all rows for each point added.
    rounds : int or None
        The most rounds; None sets no limit.
    patience : int or None
        Rounds without a gain on held-out rows after which the search ends with the points of the best round; see
        `dkl.methods.rounds.loop.best_round`. None sets no limit.
    tol : float or None
        Stop at this duality gap, relative to the objective.
    settling : int
        The most Newton steps after the last feature was added.
    least_gain : float
        These steps end when one lowers the objective by at most this share of it; 0 performs all of them.
    plain_share : float
        Share of a round's points that are random draws.
    most_searched : int or None
        The most points found by searches; further points are random draws.
    """

    first: int = 3
    growth: float = 0.15
    late_growth: float = 0.15
    late: int = 150
    candidates: float = 1.5
    rounds: int | None = None
    patience: int | None = None
    tol: float | None = None
    settling: int = 2
    least_gain: float = 0.0
    plain_share: float = 0.0
    most_searched: int | None = None

    def addition(self, n_points: int, most: int) -> int:
        """The number of points that the next round adds to `n_points`."""
        # early rounds add few points, since each changes the potential that is searched next; late rounds cost more
        growth = self.growth if n_points < self.late else self.late_growth
        return min(max(self.first, int(growth * n_points)), most - n_points)

    def searched(self, wanted: int, n_searched: int) -> int:
        """The number of `wanted` points to search for, after `n_searched` earlier ones; others are random."""
        # neither the random share of a round, nor points beyond `most_searched`, are searched for
        most = wanted if self.most_searched is None else max(0, self.most_searched - n_searched)
        return min(most, wanted - int(self.plain_share * wanted))


@dataclass(frozen=True, eq=False)
class CorrectiveProblem:
    """The joint search for features and the linear model on them.

    The working model minimises ``ridge D/2 |w|^2 + sum_i loss(y_i, w.phi(x_i) + b)`` over D unscaled points, with the
    losses of `dkl.solvers.round_losses`.

    Parameters
    ----------
    space : FrequencySpace
        The set of features to search.
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, else one for each class (or target).
    n_rows : int
        The number of rows that samples are drawn from.
    n_points : int
        The most points to find.
    total_weight : float
        The approximate weight of the training rows, which scales reported losses.
    loss : Loss
    ridge : float
        The penalty for each present point; strong, so that rounds find different features.
    last_ridge : float or None
        The penalty for each point once all points are found; None for `ridge`.
    schedule : RoundSchedule
    sample_rows, most_rows : int
        Sizes of the searched sample: the first and the largest.
    seed : int
    dtype : {"float32", "float64"}
    start : ndarray or None
        Points of the first model.
    """

    space: FrequencySpace
    targets: HeldTargets
    n_models: int
    n_rows: int
    n_points: int
    total_weight: float
    loss: Loss = HINGES["squared_hinge"]
    ridge: float = 80.0
    last_ridge: float | None = None
    schedule: RoundSchedule = RoundSchedule()
    sample_rows: int = 10_000
    most_rows: int = 100_000
    seed: int = 0
    dtype: str = "float32"
    start: np.ndarray | None = None

    @property
    def parts(self) -> int:
        return self.space.columns_a_point

    def ridge_of(self, is_last: bool) -> float:
        """The penalty for each point, during the search or after it."""
        return self.ridge if self.last_ridge is None or not is_last else self.last_ridge

    @property
    def active(self) -> bool:
        """Whether Gram sums weight rows by curvature, as for a single model of the squared hinge."""
        return isinstance(self.loss, SquaredHingeLoss) and self.n_models == 1


@dataclass(frozen=True, eq=False)
class CorrectiveState(WithHistory):
    """The state of fully corrective rounds between passes.

    Attributes
    ----------
    points : ndarray of shape (m, ...)
        The chosen points, in the order in which they were found.
    candidates : ndarray of shape (q, ...)
        The points that the next pass verifies.
    sampled : ndarray of shape (s,)
        The pair potentials of the first s of them on the rows of the search that found them, 0 before any search. The
        others are random draws, which are added whatever their potentials are.
    coefficients : ndarray of shape (K, parts m + 1)
        The working model that the next pass evaluates, intercept last.
    base : ndarray of the same shape
        The model before its last Newton step.
    base_loss : float
        The loss of that model; infinite before it was evaluated.
    gram : ndarray of shape (parts m + 1, parts m + 1)
        The Gram matrix of the columns, with rows weighted by `gram_weights` at `gram_at`, or by their own weights.
    gram_at : ndarray of shape (1, parts m + 1), or (0, 0)
        The model whose curvatures weight `gram`; (0, 0) before `gram` was summed.
    history : ndarray of shape (rounds, len(names))
        One line for each evaluated model.
    searches : ndarray of shape (s, 3), int64
        For each search: size and age of its sample, and the number of points at that time.
    n_searched : int
        Points found by searches.
    sample_rows, passes, settled : int
    limit : int
        The most points; lowered to those of the best round when held-out rows have ended the search.
    ended : str
        Why the search for points ended; empty during it.
    message : str
        Why the rounds ended; empty before.
    """

    points: np.ndarray
    candidates: np.ndarray
    sampled: np.ndarray
    coefficients: np.ndarray
    base: np.ndarray
    base_loss: float
    gram: np.ndarray
    gram_at: np.ndarray
    history: np.ndarray
    searches: np.ndarray
    sample_rows: int
    n_searched: int = 0
    passes: int = 0
    settled: int = 0
    limit: int = -1
    ended: str = ""
    message: str = ""

    # in the order of checkpoints
    names: ClassVar[tuple[str, ...]] = (
        "n_features",
        "loss",
        "held_out_loss",
        "duality_gap",
        "potential",
        "sampled_potential",
        "support",
        "margin",
        "sample_rows",
    )
    # each pass both judges the model and verifies candidates, so its sums suffice to refit
    phase: ClassVar[str] = "search"

    @property
    def n_points(self) -> int:
        return len(self.points)

    @property
    def is_full(self) -> bool:
        """Whether all points are found, so that only Newton steps follow."""
        return len(self.points) >= self.limit
