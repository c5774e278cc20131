"""The problem of tuned random features (Shilton et al. 2022, equation (22)), and the state of its drivers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.loss_table import TUNED_LOSSES, LossRow, TunedLoss
from dkl.methods.density.sums import Smoothing
from dkl.solvers.density_term import DensityTerm

# Errors of float32 products are about 1e-8 of the largest eigenvalue: steps on margin losses have them if lam is at
# least this.
_SINGLE_ABOVE = 1e-6
# Matrices in memory at once: m x m for each Hessian (its packed sums, the matrix, its factor, and those of one
# curvature) and in common; D x D for the penalty, the curvature, and their factor.
_MATRICES_EACH, _MATRICES_SHARED, _MATRICES_DENSITY = 4, 3, 5


@dataclass(frozen=True, eq=False)
class TunedProblem:
    """Minimise ``mean loss + lam/2 sum_j |w_j|^2/u_j + Lam/2 (u - c)'H(u - c)`` over w, intercepts b and u >= floor.

    u_j is the density of frequency j relative to the reference kernel's, w_j are the weights of its cosine and its
    sine. Losses of several outputs are added: half squared errors of targets, hinges of classes against the rest. With
    a shared density |w_j|^2 is summed over the outputs, too. Either way the problem is jointly convex.

    Parameters
    ----------
    feature_map : FeatureMap
        D frequencies at amplitudes 1/sqrt(D).
    targets : NewtonTargets
        The targets of K outputs.
    total_weight : float
        N, the sum of the weights s, class weights included.
    loss : {"squared_error", "hinge", "squared_hinge"}
        A row of `dkl.methods.density.loss_table`: half the squared error, the hinge, or its square.
    lam : float
    penalty : DensityTerm
    tol : float
        Relative duality gap at which the fit ends. The squared error is always solved to rounding.
    max_passes : int
    shared : bool
        Whether all outputs share one density.
    dtype : {"float32", "float64"}
        Of mapped rows and of the products of their pairs; for the squared error and below lam = 1e-6 these are float64
        in any case.
    n_rows : int or None
        None if unknown. The squared error of few rows is minimised in the dimension of the rows.
    deviations : callable or None
        For the squared error on stored sums, whose targets may be in units of other rows: computes from the targets'
        means and variances (K,) the divisor that standardises them. None uses targets as they are.
    start : tuple of ndarray or None
        Models (K, m + 1) and density (1, D) or (K, D) from which hinges start: a solution on similar rows.

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
    def loss_row(self) -> LossRow:
        """The row of the loss table."""
        return TUNED_LOSSES[self.loss]

    @property
    def n_outputs(self) -> int:
        """K, the number of outputs."""
        return len(self.targets.models)

    @property
    def width(self) -> int:
        """m + 1, the coefficients of a model with its intercept."""
        return self.feature_map.n_features + 1

    @property
    def product_dtype(self) -> str:
        """The precision of mapped rows and of the products of their pairs."""
        return self.dtype if self.lam >= _SINGLE_ABOVE else "float64"

    @property
    def n_densities(self) -> int:
        """The number of densities: 1 if all outputs share one, else K."""
        return 1 if self.shared else self.n_outputs

    def density_of(self, density: np.ndarray) -> np.ndarray:
        """The density of a state in the shape of its penalty's argument: (D,) if all outputs share it, else (K, D)."""
        return density[0] if self.shared else density

    def memory(self, n_hessians: int) -> dict[str, int]:
        """Bytes of the matrices of pairs of columns, for `n_hessians` Hessians, and of pairs of frequencies."""
        return {
            "matrices of columns": matrix_bytes(self.width - 1, n_hessians),
            "matrices of frequencies": _MATRICES_DENSITY * 8 * self.penalty.n_frequencies**2,
        }


def matrix_bytes(n_columns: int, n_hessians: int) -> int:
    """The most bytes of the matrices of pairs of columns, with `n_hessians` Hessians."""
    return (_MATRICES_SHARED + _MATRICES_EACH * n_hessians) * 8 * n_columns**2


@dataclass(frozen=True, eq=False)
class TunedState:
    """The state of the solver between passes.

    Attributes
    ----------
    coefficients : ndarray of shape (K, m + 1)
        The accepted models, the intercept last.
    density : ndarray of shape (1, D) or (K, D)
        u.
    moves, density_moves : ndarray of their shapes
        The direction of the next step.
    step : float
        The share of the step that the next pass tries first.
    promise : float
        The change of the objective by the whole step, if the second-order model were exact.
    width, ahead, past, reach, follows
        The smoothing of the hinge: see `dkl.methods.density.sums.Smoothing`.
    lam : float
        The lam of the next step, since a small one is approached from above.
    share : float
        The share of rows used; with many rows the first steps use a subsample.
    objective, residual, gap : float
        The fields of the accepted point: see `dkl.methods.density.solution.TunedSolution`.
    history : tuple of dict
        "objective", "residual", "gap", "width" and "share" of each accepted point.
    passes : int
    ended : bool
    message : str
    was_stopped : bool
        Whether a subscriber has stopped the fit.
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

    @classmethod
    def begin(cls, problem: TunedProblem) -> TunedState:
        """Weights of 0 and the density of the reference kernel, or the problem's start, before any pass."""
        # the centre, the density of the reference kernel, costs no penalty; if it is below the floor, the floor costs
        # least
        models = np.zeros((problem.n_outputs, problem.width))
        density = np.tile(problem.penalty.start(), (problem.n_densities, 1))
        if problem.start is not None:
            models, density = problem.start
        return cls(models, density, np.zeros_like(models), np.zeros_like(density))

    @property
    def fresh(self) -> bool:
        """Whether no pass was done yet."""
        return not self.history

    @property
    def smoothing(self) -> Smoothing:
        """The smoothing of the hinge."""
        # the prior is 0 for all rows until it first follows the model
        past = np.zeros_like(self.coefficients) if self.past is None else self.past
        return Smoothing(self.width, self.ahead, past, self.reach, self.follows)

    @property
    def metrics(self) -> dict[str, float]:
        """Objective and gap of the accepted point, for the progress line."""
        return {} if self.fresh else {"objective": float(self.objective), "gap": float(self.gap)}

    def with_history(self) -> TunedState:
        """The state with the accepted point appended to its history."""
        names = ("objective", "residual", "gap", "width", "share")
        return replace(self, history=(*self.history, {name: float(getattr(self, name)) for name in names}))
