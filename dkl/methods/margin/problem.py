"""What fully corrective rounds are asked for, and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dkl.methods.frequency_search.frequency_space import FrequencySpace
from dkl.methods.rounds.sums import HeldTargets
from dkl.solvers.losses import HINGES, Loss, SquaredHingeLoss

# what a line of the history says of the model that a round evaluated, in the order of its columns in checkpoints
HISTORY = (
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


@dataclass(frozen=True)
class RoundSchedule:
    """How many features a round adds, and when rounds end.

    Parameters
    ----------
    first : int
        Points that an early round adds: few, since each of them changes what is looked for next.
    growth : float
        Later rounds add this share of what is there.
    late_growth : float
        And this one from `late` points on, where a round is dear.
    late : int
    candidates : float
        Candidates verified on all rows for each point added.
    rounds : int or None
        At most so many rounds.
    patience : int or None
        Stop after so many rounds without a lower loss on held-out rows; the best round's features are kept.
    tol : float or None
        Stop at this duality gap, relative to the objective.
    settling : int
        Newton steps after the last feature was added, at most.
    least_gain : float
        They end once a step has lowered the objective by no more than this share of it; 0 takes them all.
    sample_rounds : int
        Passes that search on the same rows.
    plain_share : float
        Share of a round's points that are random draws.
    most_searched : int or None
        Searched points in all; what follows is random draws.
    trusted : float
        Twice as many rows are sampled where verified potentials keep less than this share of the sampled ones.
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
    sample_rounds: int = 4
    plain_share: float = 0.0
    most_searched: int | None = None
    trusted: float = 0.3

    def addition(self, n_points: int, most: int) -> int:
        """Points that the next round adds to `n_points`."""
        # each point changes what is looked for next, so that early rounds add few; late ones cost more than they teach
        growth = self.growth if n_points < self.late else self.late_growth
        return min(max(self.first, int(growth * n_points)), most - n_points)

    def searched(self, wanted: int, n_searched: int) -> int:
        """How many of `wanted` points are searched for, where `n_searched` were already."""
        # the random share of a round is not searched for, nor what is beyond the most points that rows can bear
        most = wanted if self.most_searched is None else max(0, self.most_searched - n_searched)
        return min(most, wanted - int(self.plain_share * wanted))


@dataclass(frozen=True, eq=False)
class CorrectiveProblem:
    """Find features, and the best linear model on them, together.

    The working model minimises ``ridge D/2 |w|^2 + sum_i loss(y_i, w.phi(x_i) + b)`` over D unscaled points, with the
    losses of `dkl.solvers.round_losses`.

    Parameters
    ----------
    space : FrequencySpace
        Where features are looked for.
    targets : HeldTargets
    n_models : int
        K: one for two classes or a single target, one a class (or target) else.
    n_points : int
        Points to find at most.
    total_weight : float
        Of the rows that are learned from, about: it scales what is reported.
    loss : Loss
    ridge : float
        For each point that is there; heavy, so that rounds stay diverse.
    last_ridge : float or None
        What takes its place when all points are there; None keeps it.
    schedule : RoundSchedule
    sample_rows, most_rows : int
        Rows that are searched on: at first, and at most.
    seed : int
    dtype : {"float32", "float64"}
    start : ndarray or None
        Points that are there from the beginning.
    """

    space: FrequencySpace
    targets: HeldTargets
    n_models: int
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
        """The penalty of a point while points are looked for, or when all are there."""
        return self.ridge if self.last_ridge is None or not is_last else self.last_ridge

    @property
    def active(self) -> bool:
        """Whether Gram sums follow the rows with curvature: worth a matrix where there is one model."""
        return isinstance(self.loss, SquaredHingeLoss) and self.n_models == 1


@dataclass(frozen=True, eq=False)
class CorrectiveState:
    """Where the rounds stand.

    Attributes
    ----------
    points : ndarray of shape (m, ...)
        Chosen, in the order in which they were found.
    candidates : ndarray of shape (q, ...)
        To be verified by the next pass.
    sampled : ndarray of shape (q,)
        Their pair potentials on the rows of the search.
    coefficients : ndarray of shape (K, parts m + 1)
        The working model that the next pass evaluates, intercept last.
    base : ndarray of the same shape
        The point that it is a step from.
    base_loss : float
        The loss there; infinite where there is none.
    gram : ndarray of shape (parts m + 1, parts m + 1)
        Of the rows weighed by their curvature at `gram_at`, as a share of the largest, or of all rows in full.
    gram_at : ndarray of shape (1, parts m + 1), or (0, 0)
        The model whose rows these are; (0, 0) where `gram` is not known.
    history : ndarray of shape (rounds, len(HISTORY))
    searches : ndarray of shape (s, 3), int64
        Rows and age of the sample of each search, and how many points there were.
    plain : int
        Random draws among the candidates, the last ones: taken without being looked at.
    n_searched : int
        Points that were searched for.
    sample_rows, passes, settled : int
    kept : int
        Points of the round with the lowest held-out loss.
    limit : int
        Points to find at most: fewer than asked for once held-out rows have chosen.
    ended : str
        Why the search for points ended; empty before.
    message : str
        How it all ended; empty before.
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
    plain: int = 0
    n_searched: int = 0
    passes: int = 0
    settled: int = 0
    kept: int = 0
    limit: int = -1
    ended: str = ""
    message: str = ""

    # each pass judges the model and verifies candidates: their sums are enough to refit it
    phase: ClassVar[str] = "search"

    @property
    def n_points(self) -> int:
        return len(self.points)

    def series(self, name: str) -> np.ndarray:
        """A column of the history, one number a round; `name` is one of `HISTORY`."""
        return self.history[:, HISTORY.index(name)]

    @property
    def is_full(self) -> bool:
        """Whether all points are there, and the working model only settles."""
        return len(self.points) >= self.limit
