"""The problem of tuned random features, and where its solver stands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.sums import Smoothing
from dkl.solvers.density_term import DensityTerm

TunedLoss = Literal["squared_error", "hinge", "squared_hinge"]

# products in float32 err by some 1e-8 of the largest eigenvalue; further passes correct that while lam is larger
_SINGLE_ABOVE = 1e-6


@dataclass(frozen=True, eq=False)
class TunedProblem:
    """Minimise ``mean loss + lam/2 sum_j |w_j|^2/u_j + Lam/2 (u - c)'H(u - c)`` over w, intercepts b and u >= floor.

    Losses of several outputs are added: half squared errors of targets, hinges of classes against the rest. With a
    shared density |w_j|^2 adds over outputs, too: the problem is jointly convex either way.

    Parameters
    ----------
    feature_map : FeatureMap
        D frequencies at amplitudes 1/sqrt(D).
    targets : NewtonTargets
        Of K outputs.
    total_weight : float
        N, the sum of the weights s, class weights included.
    loss : {"squared_error", "hinge", "squared_hinge"}
        Half the squared error; the hinge; its square.
    lam : float
    penalty : DensityTerm
    tol : float
        Done when the duality gap is below this share of the objective. The squared error is always solved to rounding.
    max_passes : int
    shared : bool
        One density for all outputs, or one each.
    dtype : {"float32", "float64"}
        Of the mapped rows and the products of their pairs; below lam = 1e-6 these are float64 anyhow.
    n_rows : int or None
        Lets few rows be solved in their own number of dimensions.
    deviations : callable or None
        Of targets of the squared error that are in units of other rows: what to divide them by, from their means and
        variances (K,); they are solved for in these units. None takes them as they are.
    start : tuple of ndarray or None
        Models (K, m + 1) and density (1, D) or (K, D) that hinges start from: a solution on much the same rows.

    References
    ----------
    Shilton, Gupta, Rana, Venkatesh & Venkatesh 2022, equation (22), with Lambda before the second penalty.
    """

    feature_map: FeatureMap
    targets: NewtonTargets
    total_weight: float
    loss: TunedLoss
    lam: float
    penalty: DensityTerm
    tol: float = 1e-4
    max_passes: int = 100
    shared: bool = True
    dtype: str = "float64"
    n_rows: int | None = None
    deviations: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    start: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def n_outputs(self) -> int:
        """K."""
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """Coefficients of a model, the intercept included."""
        return self.feature_map.n_features + 1

    @property
    def product_dtype(self) -> str:
        """Of mapped rows and products of pairs."""
        return self.dtype if self.lam >= _SINGLE_ABOVE else "float64"

    @property
    def n_densities(self) -> int:
        """1, or K."""
        return 1 if self.shared else self.n_outputs


@dataclass(frozen=True, eq=False)
class TunedState:
    """Where the solver stands.

    Attributes
    ----------
    coefficients : ndarray of shape (K, m + 1)
        The accepted models, the intercept last.
    density : ndarray of shape (1, D) or (K, D)
    moves, density_moves : ndarray of their shapes
        Where the next step leads.
    step : float
        The share of the moves that the next pass tries first.
    promise : float
        What the whole step changes the objective by, if the model that it minimises were exact.
    width, ahead, past, reach, follows
        Of the smoothed hinge, as of `dkl.methods.density.sums.Smoothing`.
    lam : float
        Of the model at hand: a small one is approached from above.
    share : float
        The rows that count: at first a sample where there are many.
    objective, residual, gap : float
        At the accepted point: see `dkl.methods.density.solution.TunedSolution`.
    history : tuple of dict
        "objective", "residual", "gap", "width" and "share" of each accepted point.
    passes : int
    ended : bool
    message : str
    was_stopped : bool
        On request, before its time.
    gram, cross, squares : ndarray or None
        The sums of the squared error, where further passes correct its gradient.
    """

    coefficients: np.ndarray
    density: np.ndarray
    moves: np.ndarray
    density_moves: np.ndarray
    step: float = 1.0
    promise: float = 0.0
    width: float = 1.0
    ahead: float = 1.0
    past: np.ndarray | None = None
    reach: float = 0.0
    follows: bool = False
    lam: float = 1.0
    share: float = 1.0
    objective: float = float("inf")
    residual: float = float("inf")
    gap: float = float("inf")
    history: tuple[Mapping[str, float], ...] = field(default=())
    passes: int = 0
    ended: bool = False
    message: str = "nothing was read yet"
    was_stopped: bool = False
    gram: np.ndarray | None = None
    cross: np.ndarray | None = None
    squares: np.ndarray | None = None

    @property
    def fresh(self) -> bool:
        """Whether no row was read yet."""
        return not self.history

    @property
    def smoothing(self) -> Smoothing:
        """How the hinge is made smooth."""
        past = np.zeros_like(self.coefficients) if self.past is None else self.past
        return Smoothing(self.width, self.ahead, past, self.reach, self.follows)

    def noted(self) -> tuple[Mapping[str, float], ...]:
        """The history with the accepted point."""
        names = ("objective", "residual", "gap", "width", "share")
        return (*self.history, {name: float(getattr(self, name)) for name in names})
