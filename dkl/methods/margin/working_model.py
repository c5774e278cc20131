"""The Newton step of the working model, from Gram sums, onto the features that it has and those just chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dkl.solvers.losses import Loss
from dkl.solvers.systems import map_systems, solve_positive

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
    loss : Loss
    active : bool
    ridge : float
        A point.
    """

    coefficients: np.ndarray
    gram: np.ndarray
    loss: Loss
    active: bool
    ridge: float


def refit(
    system: WorkingSystem, sums: Mapping[str, np.ndarray], joining: np.ndarray, *, parts: int, total_weight: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One Newton step on the model's points and the joining candidates.

    Parameters
    ----------
    system : WorkingSystem
    sums : mapping
        "gradient", "cross" and "curvature" of the round, as `dkl.methods.margin.sums.corrective_sums` returns them.
    joining : ndarray of int64
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
    n_old = (system.coefficients.shape[1] - 1) // parts
    n_candidates = sums["cross"].shape[1] // parts
    n, n_points = n_old + n_candidates, n_old + len(joining)
    width = parts * n_points + 1
    # The round's map has the columns of all candidates: `columns` are those of old and joining points among them, in
    # the order of the new map (all cosines, then all sines, the intercept last), and `is_new` those that join.
    kept = np.concatenate([np.arange(n_old), n_old + joining])
    columns = np.append((n * np.arange(parts)[:, None] + kept).ravel(), parts * n)
    is_new = np.append(np.tile(kept >= n_old, parts), False)
    base = np.zeros((len(system.coefficients), width))
    base[:, ~is_new] = system.coefficients
    # the Gram matrix: what is known of the old columns, and the new ones' as rows and as columns
    gram = np.empty((width, width))
    gram[np.ix_(~is_new, ~is_new)] = system.gram
    new_columns = sums["cross"][np.ix_(columns, (n_candidates * np.arange(parts)[:, None] + joining).ravel())]
    gram[:, is_new] = new_columns
    gram[np.ix_(is_new, ~is_new)] = new_columns[~is_new].T
    # the penalty is ridge m |w|^2 / 2 for m points
    ridge = np.full(width, system.ridge * max(1, n_points))
    ridge[-1] *= _INTERCEPT
    gradient = sums["gradient"][:, columns] - ridge * base
    # The system and its right side are divided by the loss's largest curvature, which the Gram matrix is without. Of
    # one model, or of squares, the Hessian is then the Gram matrix itself; of several models each has a share of it.
    # That of a mean exp(f) has no largest one: its mean alone says how long a step may be.
    bound = system.loss.largest_curvature
    largest = bound if np.isfinite(bound) else 1.0
    shares = np.ones(len(gradient))
    if not (system.active or system.loss.is_square):
        shares = np.minimum(bound / largest, _CURVATURE_MARGIN * (sums["curvature"] / largest) / total_weight)

    def solved(k: int) -> np.ndarray:
        """(share_k gram + diag(ridge))^-1 gradient_k, all divided by the largest curvature."""

        def system() -> np.ndarray:
            # symmetric: its transpose is the same matrix in the order that LAPACK works in
            matrix = (shares[k] * gram).T
            np.einsum("ii->i", matrix)[...] += ridge / largest
            return matrix

        return solve_positive(system, gradient[k] / largest)

    steps = map_systems(solved, range(len(gradient)), width)
    return base + np.array(steps), base, gram
