"""The problem of learning kernel weights jointly with a linear model, and the state of its solver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dkl.features.feature_map import columns_of
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.solvers.divergence_ball import DivergenceBall

# A density below this share of the mean, or a prior's coefficient below this share of the largest, counts as zero.
_NONE = 1e-7


@dataclass(frozen=True, eq=False)
class JointProblem(TunedProblem):
    """Minimise ``mean loss + lam/2 sum_m |w_m|^2/u_m`` over w, intercepts b and u = D q in the divergence ball.

    With lam = 1/(C N) and the hinge it is C N times smaller than the minimum over q of the maximum over
    0 <= alpha <= C, alpha.y = 0, of alpha.1 - alpha' Y K_q Y alpha / 2. Losses of several outputs are added: half
    squared errors of targets, hinges of classes against the rest, all with one q.

    The ball takes the place of the penalty on the density, so that this is equation (22) on all candidates.

    Parameters
    ----------
    feature_map : FeatureMap
        D candidates at amplitudes 1/sqrt(D), times the scale of the family's features.
    targets, total_weight, loss, lam
        As in `TunedProblem`.
    penalty : DivergenceBall
        The ball for D frequencies.
    tol, max_passes, dtype, n_rows
        As in `TunedProblem`.
    start : tuple of ndarray or None
        Candidates (s,), their models (K, m + 1) and density (1, s): the solution on similar rows, as a start.
    most_working : int
        The most candidates that are solved for at once.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", equation (9).
    """

    penalty: DivergenceBall
    tol: float = 1e-3
    max_passes: int = 200
    dtype: str = "float32"
    start: Any = None
    most_working: int = 2_000

    @property
    def largest_working(self) -> np.ndarray:
        """The largest set of working candidates, for plans."""
        return np.arange(min(self.most_working, self.feature_map.n_frequencies))

    def restricted_to(self, working: np.ndarray, goal: float) -> TunedProblem:
        """The problem on some candidates, with the relative gap `goal` to end at."""
        return replace(
            self,
            feature_map=self.feature_map.take(working),
            penalty=self.penalty.within(len(working)),
            tol=goal,
            start=None,
        )


@dataclass(frozen=True, eq=False)
class JointState(TunedState):
    """A `TunedState` on the working candidates; it is `ended` while the sums of all candidates are needed.

    Attributes
    ----------
    working : ndarray of shape (s,), int64
        The candidates that may have weight, ascending.
    goal : float
        The relative gap at which solving on them ends.
    bound : float
        The largest dual objective so far, a lower bound of the minimum.
    rounds : tuple of dict
        "passes", "objective", "gap", "working" and "support" for each evaluation of all candidates.
    done : bool
    """

    working: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    goal: float = 1.0
    bound: float = -float("inf")
    rounds: tuple[Mapping[str, float], ...] = ()
    done: bool = False

    @property
    def has_density(self) -> np.ndarray:
        """Which working candidates have weight, (s,); none before the first solution."""
        u = self.density[0]
        return (u > _NONE * u.mean()) & self.coefficients.any()

    @property
    def has_past(self) -> np.ndarray:
        """Which working candidates the rows' priors depend on, (s,); without these, dual weights would start again."""
        past = np.zeros_like(self.coefficients) if self.past is None else np.abs(self.past)
        largest = past[:, :-1].max(axis=0).reshape(-1, len(self.working)).max(axis=0)
        return largest > _NONE * largest.max(initial=0.0)

    @property
    def standing(self) -> str:
        """A clause on how many candidates have weight and how far the minimum can be."""
        support = int(self.rounds[-1]["support"])
        return (
            f"after {self.passes} passes {support} candidates have weight, and the objective is at most "
            f"{100.0 * self.gap / max(self.objective, 1e-300):.2g} % above the minimum"
        )

    def moved_to(self, working: np.ndarray) -> JointState:
        """The same point with other working candidates; new ones have zero weight and density."""
        index = np.searchsorted(working, self.working)
        kept = np.flatnonzero(np.isin(self.working, working))
        size, parts = len(self.working), (self.coefficients.shape[1] - 1) // len(self.working)
        # the columns of the remaining candidates, among the old ones and the new; the intercept is last
        old = np.append(columns_of(kept, size, parts), -1)
        new = np.append(columns_of(index[kept], len(working), parts), -1)
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
