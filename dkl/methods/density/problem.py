"""The problem of tuned random features (Shilton et al. 2022, equation (22)), and the state that its drivers carry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.loss_table import TUNED_LOSSES, LossRow, TunedLoss
from dkl.methods.density.sums import Smoothing
from dkl.solvers.density_term import DensityTerm

# Products in float32 err by some 1e-8 of the largest eigenvalue; further passes correct that while lam is larger.
_SINGLE_ABOVE = 1e-6
# Matrices in memory at once. m x m: the packed sums of each Hessian, the matrix and its factor, and those of one
# curvature. D x D: those of the penalty and of the curvature, and their factor.
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
        Done when the duality gap is below this share of the objective. The squared error is always solved to rounding.
    max_passes : int
    shared : bool
        One density for all outputs, or one each.
    dtype : {"float32", "float64"}
        Of the mapped rows and the products of their pairs; below lam = 1e-6 these are float64 anyhow.
    n_rows : int or None
        Lets few rows be solved in their own number of dimensions.
    deviations : callable or None
        For targets of the squared error that are in units of other rows, as sums that were kept have them: from their
        means and variances (K,), what to divide them by. They are solved for in these units. None takes targets as
        they are.
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
    def loss_row(self) -> LossRow:
        """The loss's row of the table."""
        return TUNED_LOSSES[self.loss]

    @property
    def n_outputs(self) -> int:
        """K."""
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
        """1 where all outputs share a density, else K."""
        return 1 if self.shared else self.n_outputs

    def memory(self, n_hessians: int) -> dict[str, int]:
        """Bytes of the matrices of pairs of columns, for `n_hessians` Hessians, and of pairs of frequencies."""
        return {
            "matrices of columns": matrix_bytes(self.width - 1, n_hessians),
            "matrices of frequencies": _MATRICES_DENSITY * 8 * self.penalty.n_frequencies**2,
        }


def matrix_bytes(n_columns: int, n_hessians: int) -> int:
    """Bytes of the matrices of pairs of columns at most, with `n_hessians` Hessians at once."""
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
        The share of the moves that the next pass tries first.
    promise : float
        What the whole step would change the objective by if the second-order model that it minimises were exact.
    width, ahead, past, reach, follows
        How the hinge is smoothed: see `dkl.methods.density.sums.Smoothing`.
    lam : float
        The lam that the next step is for: a small one is approached from above.
    share : float
        The share of the rows that count: where there are many, the first steps see a subsample.
    objective, residual, gap : float
        The fields of the accepted point: see `dkl.methods.density.solution.TunedSolution`.
    history : tuple of dict
        "objective", "residual", "gap", "width" and "share" of each accepted point.
    passes : int
    ended : bool
    message : str
    was_stopped : bool
        Whether it was ended on request, before its time.
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

    @classmethod
    def begin(cls, problem: TunedProblem) -> TunedState:
        """Weights of 0 and the density of the reference kernel, or the problem's start, before any pass."""
        # the reference kernel, u = c, costs no penalty; where c lies below the floor, the floor costs the least
        models = np.zeros((problem.n_outputs, problem.width))
        density = np.tile(problem.penalty.start(), (problem.n_densities, 1))
        if problem.start is not None:
            models, density = problem.start
        return cls(models, density, np.zeros_like(models), np.zeros_like(density))

    @property
    def fresh(self) -> bool:
        """Whether no row was read yet."""
        return not self.history

    @property
    def smoothing(self) -> Smoothing:
        """How the hinge is made smooth."""
        # the prior is 0 for all rows until it first follows the model
        past = np.zeros_like(self.coefficients) if self.past is None else self.past
        return Smoothing(self.width, self.ahead, past, self.reach, self.follows)

    @property
    def metrics(self) -> dict[str, float]:
        """Objective and gap of the accepted point, for the progress line."""
        return {} if self.fresh else {"objective": float(self.objective), "gap": float(self.gap)}

    def noted(self) -> TunedState:
        """The same state with a line for the accepted point in its history."""
        names = ("objective", "residual", "gap", "width", "share")
        return replace(self, history=(*self.history, {name: float(getattr(self, name)) for name in names}))
