"""Summaries of rows from which the squared error of any linear model follows: sums of products, or few rows themselves.

Cross-validated penalties, evidence, variances and tuned densities follow from these sums by algebra, whether the sums
are over the blocks of one store, over blocks added or dropped later, or over the rows of several sites.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeVar

import numpy as np
from scipy.linalg import lapack


def squared_losses(gram: np.ndarray, cross: np.ndarray, squares: np.ndarray, models: np.ndarray) -> np.ndarray:
    """The summed squared errors of linear models on rows, ``sum y^2 - 2 w.sum y phi + w.(sum phi phi') w``: (K, ...).

    Parameters
    ----------
    gram : ndarray of shape (m, m)
        sum_i s_i phi_i phi_i^T.
    cross : ndarray of shape (K, m)
        sum_i s_i y_ik phi_i.
    squares : ndarray of shape (K,)
        sum_i s_i y_ik^2.
    models : ndarray of shape (K, ..., m)
        Coefficients of any number of models for each target.
    """
    squares = squares.reshape(-1, *(1,) * (models.ndim - 2))
    linear = np.einsum("k...j,kj->k...", models, cross)
    return squares - 2.0 * linear + np.einsum("k...j,k...j->k...", models @ gram, models)


@dataclass(frozen=True, eq=False)
class SquaredSums:
    """Sums of products over rows; sums of disjoint sets of rows are added with ``+``.

    Parameters
    ----------
    gram : ndarray of shape ((m + 1)(m + 2) / 2,), float64
        The upper triangle of sum_i s_i (phi_i, 1)(phi_i, 1)^T, packed column by column.
    cross : ndarray of shape (K, m + 1)
        sum_i s_i y_ik (phi_i, 1).
    squares : ndarray of shape (K,)
        sum_i s_i y_ik^2.
    """

    gram: np.ndarray
    cross: np.ndarray
    squares: np.ndarray

    @property
    def weight(self) -> float:
        """sum_i s_i."""
        return float(self.gram[-1])

    @property
    def n_outputs(self) -> int:
        """K."""
        return len(self.cross)

    def __add__(self, other: SquaredSums) -> SquaredSums:
        return SquaredSums(self.gram + other.gram, self.cross + other.cross, self.squares + other.squares)

    def standardised(
        self, deviations: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[SquaredSums, np.ndarray, np.ndarray]:
        """The sums for standardised targets (y - mean) / scale, and mean and scale, (K,) each.

        Parameters
        ----------
        deviations : callable
            Returns scale (K,), given the means and variances (K,) of the targets.
        """
        # the last column of the packed triangle holds sum_i s_i (phi_i, 1), the products with the constant feature
        columns = self.gram[-self.cross.shape[1] :]
        center = self.cross[:, -1] / self.weight
        squares = np.maximum(self.squares - center * self.cross[:, -1], 0.0)
        scale = deviations(center, squares / self.weight)
        cross = (self.cross - center[:, None] * columns) / scale[:, None]
        return SquaredSums(self.gram, cross, squares / scale**2), center, scale

    def centred(self) -> CentredSums:
        """Means and covariances of the columns and the targets.

        Raises
        ------
        ValueError
            If there is no row, or the sums are not finite.
        """
        _check_rows(self.weight, np.isfinite(self.cross).all() and np.isfinite(self.gram).all())
        # With the best intercept, mean(y) - w.mean(phi), the mean squared error is w'Aw - 2 C'w + var(y): A is the
        # covariance matrix of the features, C their covariances with the targets.
        whole = self.whole
        mean, center = whole[:-1, -1] / self.weight, self.cross[:, -1] / self.weight
        A = whole[:-1, :-1] / self.weight
        A -= np.outer(mean, mean)
        C = self.cross[:, :-1].T / self.weight - np.outer(mean, center)
        variance = np.maximum(self.squares / self.weight - center**2, 0.0)
        return CentredSums(A, C, mean, center, variance)

    def errors(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The mean squared error of K models on these rows: (K,)."""
        models = np.concatenate([coef, intercept[:, None]], axis=1)
        return np.maximum(squared_losses(self.whole, self.cross, self.squares, models), 0.0) / self.weight

    def losses(self, models: np.ndarray, dtype: str) -> np.ndarray | None:
        """The summed squared errors of models (K, ..., m + 1) on these rows, (K, ...).

        None if one is at most ten times the rounding error of its terms, which are sums of products in `dtype`, so that
        it has no accurate digit.
        """
        whole, sizes = self.whole, np.abs(models)
        losses = squared_losses(whole, self.cross, self.squares, models)
        rounding = np.finfo(dtype).eps * np.einsum("k...j,k...j->k...", sizes @ np.abs(whole), sizes)
        return None if np.any(losses <= 10.0 * rounding) else losses

    @property
    def variances(self) -> np.ndarray:
        """The variance of each target, E[y^2] - E[y]^2, (K,)."""
        # The last column of the cross products belongs to the constant feature, and holds the sums of y.
        return np.maximum(self.squares / self.weight - (self.cross[:, -1] / self.weight) ** 2, 0.0)

    @property
    def whole(self) -> np.ndarray:
        """sum_i s_i (phi_i, 1)(phi_i, 1)' as a full matrix (m + 1, m + 1) in Fortran order, as LAPACK needs it."""
        return np.asfortranarray(unpacked(self.gram))


@dataclass(frozen=True, eq=False)
class SquaredRows:
    """Mapped rows, in place of their sums: they take less memory if there are fewer than m / 2 of them.

    Parameters
    ----------
    phi : ndarray of shape (n, m), float64
        Mapped rows.
    targets : ndarray of shape (n, K)
    weights : ndarray of shape (n,)
    """

    phi: np.ndarray
    targets: np.ndarray
    weights: np.ndarray

    @property
    def weight(self) -> float:
        """sum_i s_i."""
        return float(self.weights.sum())

    @property
    def n_outputs(self) -> int:
        """K."""
        return self.targets.shape[1]

    def __add__(self, other: SquaredRows) -> SquaredRows:
        mine, others = ((rows.phi, rows.targets, rows.weights) for rows in (self, other))
        return SquaredRows(*(np.concatenate(pair) for pair in zip(mine, others, strict=True)))

    def centred(self) -> CentredRows:
        """The rows minus their means, times the square roots of their shares of the weight.

        Raises
        ------
        ValueError
            If there is no row, or rows or targets are not finite.
        """
        _check_rows(self.weight, np.isfinite(self.phi).all() and np.isfinite(self.targets).all())
        # centred rows times the square roots of their shares of the weight, so that A = BB' and C = Bt are covariances
        share = self.weights / self.weight
        mean, center = share @ self.phi, share @ self.targets
        root = np.sqrt(share)[:, None]
        t = root * (self.targets - center)
        return CentredRows((root * (self.phi - mean)).T, t, mean, center, np.sum(t**2, axis=0))

    def errors(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The mean squared error of K models on these rows: (K,)."""
        misfit = self.targets - self.phi @ coef.T - intercept
        return self.weights @ misfit**2 / self.weight

    @property
    def variances(self) -> np.ndarray:
        """The weighted variance of each target, (K,)."""
        mean = self.weights @ self.targets / self.weight
        return self.weights @ (self.targets - mean) ** 2 / self.weight


Squared = SquaredSums | SquaredRows
S = TypeVar("S", bound=Squared)


def without_each(folds: Sequence[S]) -> Iterator[S]:
    """The sums without each fold in turn, computed by adding the other folds, never by subtraction."""
    for number in range(len(folds)):
        yield reduce(operator.add, [*folds[:number], *folds[number + 1 :]])


@dataclass(frozen=True, eq=False)
class CentredSums:
    """Weighted means of features and targets, and covariances: A of the features, C of features with targets."""

    A: np.ndarray
    C: np.ndarray
    mean: np.ndarray
    center: np.ndarray
    variance: np.ndarray

    def duals(self, weights: np.ndarray) -> np.ndarray:
        """Minus the gradient of the mean loss by coefficients (m, K), at them."""
        return self.C - self.A @ weights

    def output(self, k: int) -> CentredSums:
        """The same for output k alone."""
        output = slice(k, k + 1)
        return replace(self, C=self.C[:, output], center=self.center[output], variance=self.variance[output])


@dataclass(frozen=True, eq=False)
class CentredRows:
    """Weighted means, and centred rows (B transposed) and targets (t) times the roots of their shares of the weight."""

    B: np.ndarray
    t: np.ndarray
    mean: np.ndarray
    center: np.ndarray
    variance: np.ndarray

    def duals(self, weights: np.ndarray) -> np.ndarray:
        """Minus the gradient of the mean loss by coefficients (m, K), at them."""
        return self.B @ (self.t - self.B.T @ weights)

    def output(self, k: int) -> CentredRows:
        """The same for output k alone."""
        output = slice(k, k + 1)
        return replace(self, t=self.t[:, output], center=self.center[output], variance=self.variance[output])


# Centred summaries, for which the best intercept follows from the coefficients.
Centred = CentredSums | CentredRows


def _check_rows(weight: float, finite: bool) -> None:
    """Raise ValueError if there is no row to fit on, or if features have overflowed."""
    if not finite:
        raise ValueError("the mapped rows or their sums are not finite; scale the rows (scaling='standard')")
    if not weight > 0.0:
        raise ValueError("no row is left to fit on: the weights of these rows sum to 0")


def n_columns(packed: np.ndarray) -> int:
    """The number of columns of a symmetric matrix whose packed triangle is given."""
    return int(np.sqrt(2.0 * len(packed)))


def mirrored(upper: np.ndarray) -> np.ndarray:
    """The symmetric matrix (m, m) with this upper triangle; entries below the diagonal are not read.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.squared_sums import mirrored
    >>> mirrored(np.array([[1.0, 2.0], [np.nan, 3.0]])).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    upper = np.triu(upper)
    return upper + np.triu(upper, 1).T


def unpacked(packed: np.ndarray) -> np.ndarray:
    """The symmetric matrix (m, m) whose upper triangle is packed column by column in m (m + 1) / 2 numbers."""
    return mirrored(lapack.dtpttr(n_columns(packed), packed)[0])


def centred_gram(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """The products of centred features from those of the features themselves, for Newton steps.

    Parameters
    ----------
    packed : ndarray of shape ((m + 1) (m + 2) / 2,)
        The upper triangle of ``sum_i s_i (phi_i, 1) (phi_i, 1)^T``, column by column.

    Returns
    -------
    gram : ndarray of shape (m, m), Fortran order
        The upper triangle of ``sum_i s_i phi_i phi_i^T - N mean mean^T``.
    center : ndarray of shape (m,)
        The mean.
    weight : float
        N, the sum of the weights.
    """
    # the last column of the matrix: the sums of the features, then the sum of the weights
    m = n_columns(packed) - 1
    border, weight = packed[-m - 1 : -1], float(packed[-1])
    center = border / weight
    gram, _ = lapack.dtpttr(m, packed[: -m - 1])
    for j in range(m):
        gram[: j + 1, j] -= border[j] * center[: j + 1]
    return gram, center, weight
