"""Learning a kernel's weights together with the machine on it as data: the problem, and the state of its solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.loss_table import TUNED_LOSSES, LossRow, TunedLoss
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.solvers.divergence_ball import DivergenceBall

# A density below this share of the mean, or a coefficient of a prior below this share of the largest, counts as none.
_NONE = 1e-7


@dataclass(frozen=True, eq=False)
class JointProblem:
    """Minimise ``mean loss + lam/2 sum_m |w_m|^2/u_m`` over w, intercepts b and u = D q in the divergence ball.

    With lam = 1/(C N) and the hinge it is C N times smaller than the minimum over q of the maximum over
    0 <= alpha <= C, alpha.y = 0, of alpha.1 - alpha' Y K_q Y alpha / 2. Losses of several outputs are added: half
    squared errors of targets, hinges of classes against the rest, all with one q.

    Parameters
    ----------
    pool : FeatureMap
        D candidates at amplitudes 1/sqrt(D), times the scale of the family's features.
    targets : NewtonTargets
        Of K outputs.
    total_weight : float
        N, the sum of the rows' weights, class weights included.
    loss : {"squared_error", "hinge", "squared_hinge"}
    lam : float
    ball : DivergenceBall
        Of D frequencies.
    tol : float
        Done when the duality gap is below this share of the objective.
    max_passes : int
    most_working : int
        The most candidates that are solved on at once.
    dtype : {"float32", "float64"}
    n_rows : int or None
    start : tuple of ndarray or None
        Candidates (s,), their models (K, m + 1) and density (1, s) to start from: a solution on much the same rows.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", equation (9).
    """

    pool: FeatureMap
    targets: NewtonTargets
    total_weight: float
    loss: TunedLoss
    lam: float
    ball: DivergenceBall
    tol: float = 1e-3
    max_passes: int = 200
    most_working: int = 2_000
    dtype: str = "float32"
    n_rows: int | None = None
    start: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    @property
    def loss_row(self) -> LossRow:
        """The loss's row of the table."""
        return TUNED_LOSSES[self.loss]

    @property
    def n_outputs(self) -> int:
        """K."""
        return len(self.targets.models)

    @property
    def largest_working(self) -> np.ndarray:
        """The most candidates that are solved on at once, for plans."""
        return np.arange(min(self.most_working, self.pool.n_frequencies))

    def on(self, working: np.ndarray, goal: float) -> TunedProblem:
        """The problem on some of the candidates, to be solved to a gap of `goal` of the objective."""
        # equation (9) on these candidates is equation (22) with the ball in the place of the penalty of the density
        return TunedProblem(
            self.pool.take(working),
            self.targets,
            self.total_weight,
            self.loss,
            self.lam,
            self.ball.within(len(working)),
            tol=goal,
            max_passes=self.max_passes,
            # further passes would correct sums of float32 products of the squared error: float64 is solved at once
            dtype="float64" if self.loss_row.takes_one_pass else self.dtype,
            n_rows=self.n_rows,
        )


@dataclass(frozen=True, eq=False)
class JointState(TunedState):
    """A `TunedState` on the working candidates; it is `ended` while it waits for the sums of all candidates.

    Attributes
    ----------
    working : ndarray of shape (s,), int64
        The candidates that may have weight, ascending.
    goal : float
        The gap (of the objective) that solving on them ends at.
    bound : float
        The largest dual objective so far: the minimum is not below it.
    rounds : tuple of dict
        "passes", "objective", "gap", "working" and "support" for each pricing of all candidates.
    done : bool
    """

    working: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    goal: float = 1.0
    bound: float = -float("inf")
    rounds: tuple[Mapping[str, float], ...] = ()
    done: bool = False

    @property
    def has_density(self) -> np.ndarray:
        """Which working candidates have weight, (s,); none before anything was solved."""
        u = self.density[0]
        return (u > _NONE * u.mean()) & self.coefficients.any()

    @property
    def has_past(self) -> np.ndarray:
        """Which working candidates the rows' priors depend on, (s,): without them dual weights would begin anew."""
        past = np.zeros_like(self.coefficients) if self.past is None else np.abs(self.past)
        largest = past[:, :-1].max(axis=0).reshape(-1, len(self.working)).max(axis=0)
        return largest > _NONE * largest.max(initial=0.0)

    @property
    def standing(self) -> str:
        """How many candidates have weight and how far the minimum can be, in words."""
        support = int(self.rounds[-1]["support"])
        return (
            f"after {self.passes} passes {support} candidates have weight, and the objective is at most "
            f"{100.0 * self.gap / max(self.objective, 1e-300):.2g} % above the minimum"
        )

    def columns(self, n_candidates: int, parts: int) -> np.ndarray:
        """The columns of the working candidates in the map of all candidates, (parts s,)."""
        return (n_candidates * np.arange(parts)[:, None] + self.working).ravel()

    def moved_to(self, working: np.ndarray) -> JointState:
        """The same point with other working candidates: new ones have neither weight nor density."""
        index = np.searchsorted(working, self.working)
        kept = np.flatnonzero(np.isin(self.working, working))
        size, parts = len(self.working), (self.coefficients.shape[1] - 1) // len(self.working)
        # the columns of the candidates that stay, among the old ones and the new; the intercept is the last
        old = np.append((size * np.arange(parts)[:, None] + kept).ravel(), -1)
        new = np.append((len(working) * np.arange(parts)[:, None] + index[kept]).ravel(), -1)
        coefficients = np.zeros((len(self.coefficients), parts * len(working) + 1))
        past, density = np.zeros_like(coefficients), np.zeros((1, len(working)))
        coefficients[:, new] = self.coefficients[:, old]
        if self.past is not None:
            past[:, new] = self.past[:, old]
        density[:, index[kept]] = self.density[:, kept]
        return replace(
            self,
            working=working,
            coefficients=coefficients,
            past=past,
            density=density,
            moves=np.zeros_like(coefficients),
            density_moves=np.zeros_like(density),
        )
