"""The Newton step of the working model, from Gram sums, onto the features that it has and those just chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dkl.methods.margin.sums import CorrectiveLoss
from dkl.solvers.losses import loss_of
from dkl.solvers.positive_definite import map_systems, solve_positive

# the curvature of a model among several is taken as its mean times this on all rows: a bound, nearly, that keeps one
# Gram matrix for all of them (with 2 to 4 ten classes of digits come as far as with a matrix each)
_CURVATURE_MARGIN = 3.0
# the intercept is free but for rounding
_INTERCEPT = 1e-6


@dataclass(frozen=True, eq=False)
class WorkingSystem:
    """A linear model on points, and the Gram matrix of their columns.

    Parameters
    ----------
    coefficients : ndarray of shape (K, parts m + 1)
        Intercept last.
    gram : ndarray of shape (parts m + 1, parts m + 1)
        Of the rows weighed by their curvature, as a share of the loss's largest (`active`), or of all rows in full.
    loss : {"squared_hinge", "log_loss", "squared_error"}
    active : bool
    ridge : float
        A point.
    """

    coefficients: np.ndarray
    gram: np.ndarray
    loss: CorrectiveLoss
    active: bool
    ridge: float


def refit(
    model: WorkingSystem, sums: Mapping[str, np.ndarray], chosen: np.ndarray, *, parts: int, total_weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One Newton step on the model's points and the chosen candidates.

    Parameters
    ----------
    model : WorkingModel
    sums : mapping
        "gradient", "cross" and "curvature" of the round, as `dkl.methods.margin.sums.corrective_sums` returns them.
    chosen : ndarray of int64
        Positions among the candidates.
    parts : int
        Columns of a point.
    total_weight : float
        Of all rows.

    Returns
    -------
    coefficients, base : ndarray of shape (K, width)
        The stepped model, and the one before it on the same columns, 0 for new ones.
    gram : ndarray of shape (width, width)
    """
    n_old = (model.coefficients.shape[1] - 1) // parts
    n_candidates = sums["cross"].shape[1] // parts
    width = parts * (n_old + len(chosen)) + 1
    columns, is_new = _columns(parts, n_old, n_candidates, chosen)
    base = np.zeros((len(model.coefficients), width))
    base[:, ~is_new] = model.coefficients
    gram = _gram(model.gram, sums["cross"], columns, is_new, _positions(parts, n_candidates, chosen))
    ridge = np.full(width, model.ridge * max(1, n_old + len(chosen)))
    ridge[-1] *= _INTERCEPT
    pull = sums["gradient"][:, columns] - ridge * base
    # the system and its right side over the loss's largest curvature, which the Gram matrix is without
    largest = loss_of(model.loss).largest_curvature
    shares = _curvature_shares(model, sums["curvature"] / largest, total_weight)

    def solved(model: int) -> np.ndarray:
        return _solve(gram, ridge / largest, shares[model], pull[model] / largest)

    steps = map_systems(solved, range(len(pull)), width)
    return base + np.array(steps), base, gram


def _columns(parts: int, n_old: int, n_candidates: int, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The columns, among those of the round, of old and chosen points in the order of the new map, intercept last."""
    n = n_old + n_candidates
    kept = np.concatenate([np.arange(n_old), n_old + chosen])
    columns = (n * np.arange(parts)[:, None] + kept).ravel()
    is_new = np.tile(kept >= n_old, parts)
    return np.append(columns, parts * n), np.append(is_new, False)


def _positions(parts: int, n_candidates: int, chosen: np.ndarray) -> np.ndarray:
    """The columns of the chosen points among those of the candidates."""
    return (n_candidates * np.arange(parts)[:, None] + chosen).ravel()


def _gram(
    old: np.ndarray, cross: np.ndarray, columns: np.ndarray, is_new: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    gram = np.empty((len(columns),) * 2)
    gram[np.ix_(~is_new, ~is_new)] = old
    block = cross[np.ix_(columns, positions)]
    gram[:, is_new] = block
    gram[np.ix_(is_new, ~is_new)] = block[~is_new].T
    return gram


def _curvature_shares(model: WorkingSystem, curvature: np.ndarray, total_weight: float) -> np.ndarray:
    """What each model's Hessian is as a multiple of the Gram matrix and the loss's largest curvature.

    `curvature` (K,) is summed over the rows, as a share of the largest too.
    """
    if model.active or model.loss == "squared_error":
        return np.ones(len(curvature))
    return np.minimum(1.0, _CURVATURE_MARGIN * curvature / total_weight)


def _solve(gram: np.ndarray, ridge: np.ndarray, share: float, pull: np.ndarray) -> np.ndarray:
    """(share gram + diag(ridge))^-1 pull."""

    def system() -> np.ndarray:
        # symmetric: its transpose is the same matrix in the order that LAPACK works in
        matrix = (share * gram).T
        np.einsum("ii->i", matrix)[...] += ridge
        return matrix

    return solve_positive(system, pull)
