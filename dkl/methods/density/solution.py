"""The solution of a tuned problem: coefficients, density, and bounds on their distance from the optimum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkl.methods.density.density_step import frequency_squares
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.solvers.density_term import DensityTerm


@dataclass(frozen=True, eq=False)
class TunedSolution:
    """A model on the features of the reference kernel, with its learned density.

    Attributes
    ----------
    coef : ndarray of shape (K, m)
        For features of amplitude 1/sqrt(D): all cosines, then all sines.
    intercept : ndarray of shape (K,)
    density : ndarray of shape (D,) or (K, D)
        u, shared by all outputs, or one for each.
    objective : float
        Mean loss, lam/2 sum |w_j|^2/u_j and the penalty of the density.
    residual : float
        The largest of |gradient in w|, |gradient in b| and |u - max(u - gradient in u, floor)|.
    gap : float
        The objective minus the value of a feasible dual point: a bound on the distance from the minimum.
    message : str
        A sentence on how the solver ended.
    """

    coef: np.ndarray
    intercept: np.ndarray
    density: np.ndarray
    objective: float
    residual: float
    gap: float
    message: str

    @classmethod
    def of(cls, problem: TunedProblem, state: TunedState) -> TunedSolution:
        """The solution of a driver's present state."""
        return cls(
            coef=state.coefficients[:, :-1],
            intercept=state.coefficients[:, -1],
            density=state.density[0] if problem.shared else state.density,
            objective=state.objective,
            residual=state.residual,
            gap=state.gap,
            message=state.message,
        )


def ridge_value(coef: np.ndarray, density: np.ndarray, lam: float) -> float:
    """lam/2 sum |w_j|^2/u_j of (K, m) coefficients, u shared (D,) or one for each output (K, D); 0/0 counts as 0."""
    squares = squared_weights(coef, density)
    # where the density is 0 the weight is 0, too, and the limit of w^2 / u is 0
    if not np.all(density):
        squares = np.where(squares > 0.0, squares, 0.0)
        density = np.where(squares > 0.0, density, 1.0)
    return 0.5 * lam * float(np.sum(squares / density))


def squared_weights(coef: np.ndarray, density: np.ndarray) -> np.ndarray:
    """|w_j|^2 in the shape of the density: added over the outputs that share it."""
    if density.ndim == 1:
        return frequency_squares(coef.T, len(density))
    return np.stack([frequency_squares(row[:, None], density.shape[1]) for row in coef])


def optimality(
    penalty: DensityTerm,
    lam: float,
    point: tuple[np.ndarray, np.ndarray],
    duals: tuple[np.ndarray, np.ndarray],
) -> tuple[float, float]:
    """The residual of coefficients and a density, and their duality gap except the part of the data term.

    For a dual point with c_j = sum_i a_i z_ij the dual objective has the terms -u_j |c_j|^2 / (2 lam), minimised over
    u. So the gap is ``sum_j u_j |c_j - lam w_j/u_j|^2 / (2 lam)``, the distance of w from the best weights for this u,
    plus the excess of u over the best density for p_j = |c_j|^2 / (2 lam) in penalty minus u.p.

    Parameters
    ----------
    penalty : DensityTerm
    lam : float
    point : (ndarray of shape (K, m), ndarray of shape (D,) or (K, D))
        Coefficients and density.
    duals : (ndarray of shape (m, K), ndarray of shape (m, K))
        Minus the gradient of the mean loss in the coefficients, and the c of a feasible dual point.
    """
    coef, density = point
    descent, feasible = duals
    columns = np.tile(np.atleast_2d(density), coef.shape[1] // density.shape[-1])
    positive = np.where(columns > 0.0, columns, 1.0)
    # where u is 0, w is 0 too, and w / u has the limit for which the gradient vanishes
    ratios = np.where(columns > 0.0, coef / positive, descent.T / lam)
    ridge_gap = 0.5 * float(np.sum(columns * (feasible.T - lam * ratios) ** 2)) / lam
    # p_j = |c_j|^2 / (2 lam), the decrease of the dual objective for each unit of density
    p = squared_weights(feasible.T, density) / (2.0 * lam)
    linear = penalty.value(density) - float(np.sum(density * p))
    density_gap = max(0.0, linear - penalty.conjugate(p).value)
    gradient = penalty.gradient(density) - 0.5 * lam * squared_weights(ratios, density)
    residual = max(largest_size(descent.T - lam * ratios), penalty.residual(density, gradient))
    return residual, ridge_gap + density_gap


def largest_size(values: np.ndarray) -> float:
    """The largest absolute value; 0 without values."""
    return float(np.max(np.abs(values), initial=0.0))
