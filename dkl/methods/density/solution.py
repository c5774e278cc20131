"""The solution of a tuned problem: coefficients, density, and bounds on their distance from the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dkl.methods.density.density_step import frequency_squares
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.loss_table import TunedLoss
from dkl.methods.density.penalty import DensityPenalty
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.solvers.density_term import DensityTerm
from dkl.solvers.losses import loss_of


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
            density=problem.density_of(state.density),
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
    columns, ratios = _ratios(coef, density, descent.T / lam)
    ridge_gap = 0.5 * float(np.sum(columns * (feasible.T - lam * ratios) ** 2)) / lam
    # p_j = |c_j|^2 / (2 lam), the decrease of the dual objective for each unit of density
    p = squared_weights(feasible.T, density) / (2.0 * lam)
    linear = penalty.value(density) - float(np.sum(density * p))
    density_gap = max(0.0, linear - penalty.minus_conjugate(p).value)
    return _residual(penalty, lam, density, ratios, descent.T), ridge_gap + density_gap


def _ratios(coef: np.ndarray, density: np.ndarray, limit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The density of each column, and w / u of coefficients (K, m): both of shape (1 or K, m).

    Where u is 0, w is 0 too, and w / u has the limit for which the gradient vanishes, minus the gradient of the mean
    loss over lam.
    """
    columns = np.tile(np.atleast_2d(density), coef.shape[1] // density.shape[-1])
    return columns, np.where(columns > 0.0, coef / np.where(columns > 0.0, columns, 1.0), limit)


def _residual(penalty: DensityTerm, lam: float, density: np.ndarray, ratios: np.ndarray, descent: np.ndarray) -> float:
    """The largest violation of the optimality conditions of coefficients and density.

    `ratios` are w / u, and `descent` minus the gradient of the mean loss in the coefficients, both (K, m).
    """
    gradient = penalty.gradient(density) - 0.5 * lam * squared_weights(ratios, density)
    return max(largest_size(descent - lam * ratios), penalty.residual(density, gradient))


def balance_of_sides(mass: np.ndarray) -> np.ndarray:
    """Factors that scale the dual weights of both classes, with sums `mass` (..., 2, K), to the smaller sum."""
    return np.divide(mass.min(axis=-2, keepdims=True), mass, out=np.zeros_like(mass), where=mass > 0.0)


def largest_size(values: np.ndarray) -> float:
    """The largest absolute value; 0 without values."""
    return float(np.max(np.abs(values), initial=0.0))


def judged(
    sums: Mapping[str, np.ndarray], model: TunedModel, loss: TunedLoss, lam: float, penalty: DensityPenalty
) -> TunedSolution:
    """Objective, residual and gap of a model from the sums of `judging_record`.

    The dual point has the slopes of the losses, with each sign scaled so that they sum to 0; for the hinge, whose slope
    jumps, it is the best of several widths over which the jump is spread.

    Parameters
    ----------
    sums : mapping of str to ndarray
    model : TunedModel
    loss : {"squared_error", "hinge", "squared_hinge"}
    lam : float
    penalty : DensityPenalty
    """
    weight = float(sums["weight"][0])
    u = model.density[0] if len(model.density) == 1 else model.density
    objective = float(sums["loss"][0]) / weight + ridge_value(model.coef, u, lam) + penalty.value(u)
    mass, linear, squares, dual_sums = (sums[name] / weight for name in ("mass", "linear", "squares", "dual_sums"))
    scale = balance_of_sides(mass)
    # c_j = sum_i a_i z_ij of the feasible dual point of each width, (W, K, m)
    feasible = np.einsum("wsk,wskj->wkj", scale, dual_sums[..., :-1])
    # minus the conjugates of the losses at the scaled duals, summed over the rows: a y - conjugate_square a^2
    data = np.sum(scale * linear - loss_of(loss).conjugate_square * scale**2 * squares, axis=(1, 2))
    bounds = [
        value + penalty.minus_conjugate(squared_weights(c, u) / (2.0 * lam)).value
        for value, c in zip(data, feasible, strict=True)
    ]
    # the first width has the slope itself: both signs together are minus the gradient of the mean loss
    descent = dual_sums[0].sum(axis=0)
    _, ratios = _ratios(model.coef, u, descent[:, :-1] / lam)
    residual = _residual(penalty, lam, u, ratios, descent[:, :-1])
    return TunedSolution(
        coef=model.coef,
        intercept=model.intercept,
        density=u,
        objective=objective,
        residual=max(residual, largest_size(descent[:, -1])),
        gap=max(0.0, objective - max(bounds)),
        message="",
    )
