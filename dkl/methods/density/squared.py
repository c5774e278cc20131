"""Tuned random features with half squared error, from sums of one pass: solved, and judged by folds, with no other."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dkl.kernels.blas import one_blas_thread
from dkl.methods.density.density_step import DensityFit, tuned_density
from dkl.methods.density.forms import Form
from dkl.methods.density.row_summary import Centred, Squared
from dkl.methods.density.solution import TunedSolution, certified
from dkl.solvers.density_term import DensityTerm

# of the objective: what the last step on the density may still promise
_EXACT = 1e-14
_JUDGED = 1e-7


@dataclass(frozen=True, eq=False)
class HeldOutErrors:
    """How models that were fitted without a fold predict it.

    Attributes
    ----------
    errors : ndarray of shape (F, K)
        The mean squared error on each fold.
    weights : ndarray of shape (F,)
        The weight of each fold's rows.
    densities : tuple of ndarray
        Those that the folds' models were fitted with: a start for hyper-parameters nearby.
    """

    errors: np.ndarray
    weights: np.ndarray
    densities: tuple[np.ndarray, ...]

    @property
    def mean(self) -> float:
        """Over all rows, and over outputs."""
        return float(np.average(self.errors.mean(axis=1), weights=self.weights))


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
        Of rows mapped with amplitudes 1/sqrt(D).
    penalty : DensityTerm
    lam : float
    start : ndarray of shape (D,) or (K, D), or None
        A density to start from; the problem is convex, so that it saves steps and changes nothing.
    shared : bool
        One density for all outputs, or one each.
    tol : float
        Newton steps on the density end with one that promises to lower the objective by no more than this share.

    Returns
    -------
    TunedSolution

    References
    ----------
    Shilton et al. 2022, equation (22), with Lambda before the second penalty.
    """
    rows = sums.centred()
    begins = _starts(penalty, start, sums.n_outputs, shared)
    with one_blas_thread():
        if shared:
            return _certified(rows, penalty, _fitted(rows, penalty, lam, begins[0], tol))
        outputs = [rows.output(k) for k in range(sums.n_outputs)]
        fits = [_fitted(one, penalty, lam, begin, tol) for one, begin in zip(outputs, begins, strict=True)]
        return stacked([_certified(one, penalty, fit) for one, fit in zip(outputs, fits, strict=True)])


def cross_validate(
    folds: Sequence[Squared],
    penalty: DensityTerm,
    lam: float,
    *,
    starts: Sequence[np.ndarray] | None = None,
    shared: bool = True,
    tol: float = _JUDGED,
) -> HeldOutErrors:
    """Fit without each fold and predict it, from the sums of the folds alone: no row is read.

    Parameters
    ----------
    folds : sequence of SquaredSums or of SquaredRows
        At least two, each with rows.
    penalty, lam, shared, tol
        As of `solve_squared`.
    starts : sequence of ndarray or None
        A density for each fold to start from, such as the `densities` of a cross-validation nearby.

    Returns
    -------
    HeldOutErrors

    Raises
    ------
    ValueError
        If there are fewer than two folds, or one without rows.
    """
    empty = [place for place, fold in enumerate(folds) if not fold.weight > 0.0]
    if len(folds) < 2 or empty:
        what = f"fold {empty[0]} has no rows" if empty else f"there is {len(folds)} fold"
        raise ValueError(f"cross-validation needs two folds or more with rows in each, but {what}; take fewer folds")
    errors, densities = [], []
    with one_blas_thread():
        for place, fold in enumerate(folds):
            rest = reduce(operator.add, [*folds[:place], *folds[place + 1 :]])
            begins = _starts(penalty, None if starts is None else starts[place], fold.n_outputs, shared)
            coef, intercept, density = _predicting(rest, penalty, lam, begins, tol)
            errors.append(fold.errors(coef, intercept))
            densities.append(density)
    return HeldOutErrors(np.array(errors), np.array([fold.weight for fold in folds]), tuple(densities))


def stacked(each: Sequence[TunedSolution]) -> TunedSolution:
    """Models with a density each as one solution: the problems are independent, so that objectives and gaps add."""
    return TunedSolution(
        coef=np.concatenate([one.coef for one in each]),
        intercept=np.concatenate([one.intercept for one in each]),
        density=np.stack([one.density for one in each]),
        objective=sum(one.objective for one in each),
        residual=max(one.residual for one in each),
        gap=sum(one.gap for one in each),
        message=max(each, key=lambda one: one.gap).message,
    )


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A data term, the density that fits it, and lam."""

    form: Form
    fit: DensityFit

    @property
    def columns(self) -> np.ndarray:
        """u of every column, (m, 1)."""
        return np.tile(self.fit.density, len(self.pulls) // len(self.fit.density))[:, None]

    @property
    def pulls(self) -> np.ndarray:
        """w / u, (m, K)."""
        return self.fit.points[0].pulls

    @property
    def weights(self) -> np.ndarray:
        """w, (m, K)."""
        return self.columns * self.pulls


def _starts(penalty: DensityTerm, start: np.ndarray | None, n_outputs: int, shared: bool) -> np.ndarray:
    """A density to start from for each problem, (1, D) or (K, D)."""
    begin = penalty.start() if start is None else np.asarray(start, dtype=np.float64)
    if shared:
        return np.atleast_2d(begin).mean(axis=0, keepdims=True)
    return np.broadcast_to(begin, (n_outputs, begin.shape[-1]))


def _fitted(rows: Centred, penalty: DensityTerm, lam: float, start: np.ndarray, tol: float) -> _Fitted:
    form = rows.form(lam)
    return _Fitted(form, tuned_density([form], penalty, start, offset=0.5 * float(rows.variance.sum()), tol=tol))


def _predicting(
    sums: Squared, penalty: DensityTerm, lam: float, starts: np.ndarray, tol: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Coefficients, intercepts and densities, without a certificate."""
    rows = sums.centred()
    if len(starts) == 1:
        found = _fitted(rows, penalty, lam, starts[0], tol)
        return found.weights.T, rows.center - rows.mean @ found.weights, found.fit.density
    each = [_fitted(rows.output(k), penalty, lam, start, tol) for k, start in enumerate(starts)]
    weights = np.hstack([one.weights for one in each])
    return weights.T, rows.center - rows.mean @ weights, np.stack([one.fit.density for one in each])


def _certified(rows: Centred, penalty: DensityTerm, found: _Fitted) -> TunedSolution:
    """The model with its residual and its gap, in which the data term has no share: the dual point is its gradient."""
    u, weights = found.fit.density, found.weights
    duals = rows.duals(weights)
    residual, gap = certified(penalty, found.form.lam, (weights.T, u), (duals, duals))
    return TunedSolution(
        coef=weights.T,
        intercept=rows.center - rows.mean @ weights,
        density=u,
        objective=found.fit.value,
        residual=residual,
        gap=gap,
        message=f"solved from the sums of one pass in {found.fit.steps} Newton steps on the density",
    )
