"""Solves and cross-validates tuned random features with half squared error from the sums of one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dkl.kernels.threads import one_blas_thread
from dkl.methods.density.density_step import DensityFit, Form, ThinForm, WholeForm, tuned_density
from dkl.methods.density.solution import TunedSolution, optimality
from dkl.solvers.density_term import DensityTerm
from dkl.solvers.squared_sums import Centred, CentredSums, Squared, without_each

# Newton steps on the density end when the next one promises to lower the objective by less than this share of it: for a
# final model, and for one that only judges hyper-parameters on a fold.
_EXACT = 1e-14
_JUDGED = 1e-7


def solve_squared(
    sums: Squared,
    penalty: DensityTerm,
    lam: float,
    start: np.ndarray | None = None,
    *,
    shared: bool = True,
    tol: float = _EXACT,
) -> TunedSolution:
    """Minimise the mean half squared error plus lam/2 sum |w_j|^2/u_j plus the penalty of u, over w, b and u.

    Parameters
    ----------
    sums : SquaredSums or SquaredRows
        Sums over rows mapped with amplitudes 1/sqrt(D).
    penalty : DensityTerm
    lam : float
    start : ndarray of shape (D,) or (K, D), or None
        The initial density; the problem is convex, so that it affects only the number of steps.
    shared : bool
        Whether all outputs share one density.
    tol : float
        Newton steps on the density end with one that promises to lower the objective by at most this share.

    Returns
    -------
    TunedSolution

    References
    ----------
    Shilton et al. 2022, equation (22), with Lambda before the second penalty.
    """
    rows = sums.centred()
    starts = _starts(penalty, start, sums.n_outputs, shared)
    with one_blas_thread():
        if shared:
            return SquaredFit.of(rows, penalty, lam, starts[0], tol).solution(penalty)
        fits = [SquaredFit.of(rows.output(k), penalty, lam, begin, tol) for k, begin in enumerate(starts)]
        return stacked([fit.solution(penalty) for fit in fits])


def cross_validate(
    folds: Sequence[Squared], penalty: DensityTerm, lam: float, *, shared: bool = True, tol: float = _JUDGED
) -> np.ndarray:
    """The mean squared errors on each fold of models fitted without it, (F, K), from sums without a pass.

    Parameters
    ----------
    folds : sequence of SquaredSums or of SquaredRows
        At least two, each with rows.
    penalty, lam, shared, tol
        As in `solve_squared`.
    """
    errors = []
    with one_blas_thread():
        for fold, rest in zip(folds, without_each(folds), strict=True):
            rows = rest.centred()
            # models that only predict a fold need no gap
            outputs = [rows] if shared else [rows.output(k) for k in range(fold.n_outputs)]
            fits = [SquaredFit.of(part, penalty, lam, penalty.start(), tol) for part in outputs]
            weights = np.hstack([fit.weights for fit in fits])
            errors.append(fold.errors(weights.T, rows.center - rows.mean @ weights))
    return np.array(errors)


def stacked(each: Sequence[TunedSolution]) -> TunedSolution:
    """Models with a density each as one solution; the problems are independent, so objectives and gaps add up."""
    return TunedSolution(
        coef=np.concatenate([part.coef for part in each]),
        intercept=np.concatenate([part.intercept for part in each]),
        density=np.stack([part.density for part in each]),
        objective=sum(part.objective for part in each),
        residual=max(part.residual for part in each),
        gap=sum(part.gap for part in each),
        message=max(each, key=lambda part: part.gap).message,
    )


@dataclass(frozen=True, eq=False)
class SquaredFit:
    """The density, and the weights for it, with the least tuned squared error on some rows.

    Parameters
    ----------
    rows : Centred
    lam : float
    fit : DensityFit
        The result of the Newton steps on the density.
    """

    rows: Centred
    lam: float
    fit: DensityFit

    @classmethod
    def of(cls, rows: Centred, penalty: DensityTerm, lam: float, start: np.ndarray, tol: float) -> SquaredFit:
        """Newton steps on the density from `start` (D,); half the targets' variance is the objective's constant."""
        offset = 0.5 * float(rows.variance.sum())
        return cls(rows, lam, tuned_density([_form(rows, lam)], penalty, start, offset=offset, tol=tol))

    @property
    def weights(self) -> np.ndarray:
        """w, (m, K)."""
        return self.fit.weights[0]

    def solution(self, penalty: DensityTerm) -> TunedSolution:
        """The model with its residual and duality gap.

        The dual point is the gradient of the data term at this model: only the penalties contribute to the gap.
        """
        weights = self.weights
        duals = self.rows.duals(weights)
        residual, gap = optimality(penalty, self.lam, (weights.T, self.fit.density), (duals, duals))
        return TunedSolution(
            coef=weights.T,
            intercept=self.rows.center - self.rows.mean @ weights,
            density=self.fit.density,
            objective=self.fit.value,
            residual=residual,
            gap=gap,
            message=f"solved from the sums of one pass in {self.fit.steps} Newton steps on the density",
        )


def _starts(penalty: DensityTerm, start: np.ndarray | None, n_outputs: int, shared: bool) -> np.ndarray:
    """The initial density of each problem: (1, D) if the outputs share one, else (K, D)."""
    begin = penalty.start() if start is None else np.asarray(start, dtype=np.float64)
    if shared:
        return np.atleast_2d(begin).mean(axis=0, keepdims=True)
    return np.broadcast_to(begin, (n_outputs, begin.shape[-1]))


def _form(rows: Centred, lam: float) -> Form:
    """The data term without coefficients, in the smaller of the dimensions of columns and rows."""
    return WholeForm(rows.A, rows.C, lam) if isinstance(rows, CentredSums) else ThinForm(rows.B, rows.t, lam)
