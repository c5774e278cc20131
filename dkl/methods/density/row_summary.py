"""A summary of rows from which the squared error of any linear model follows: sums of them, or the rows if few."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.linalg import lapack

from dkl.methods.density.density_step import Form, ThinForm, WholeForm


class Centred(Protocol):
    """Rows less their means, on which the intercept needs no equation: what the solver works on."""

    @property
    def mean(self) -> np.ndarray:
        """The means of the columns, (m,)."""
        ...

    @property
    def center(self) -> np.ndarray:
        """The means of the targets, (K,)."""
        ...

    @property
    def variance(self) -> np.ndarray:
        """The variances of the targets, (K,)."""
        ...

    def form(self, lam: float) -> Form:
        """The data term with the coefficients eliminated."""
        ...

    def duals(self, weights: np.ndarray) -> np.ndarray:
        """Minus the gradient of the mean loss by coefficients (m, K), at them."""
        ...

    def output(self, k: int) -> Centred:
        """The same for output k alone."""
        ...


@dataclass(frozen=True, eq=False)
class SquaredSums:
    """Sums of rows; the sums of disjoint sets of rows add up.

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
        """The same of targets less their mean and over their deviation, with both (K,).

        Parameters
        ----------
        deviations : callable
            From means and variances (K,) what targets are divided by.
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
        # The best intercept for given weights is mean(y) - w.mean(phi). With it put in, the mean squared error is
        # w'Aw - 2 C'w + var(y), A and C the covariances of the features and with the targets.
        whole = self._whole()
        mean, center = whole[:-1, -1] / self.weight, self.cross[:, -1] / self.weight
        A = whole[:-1, :-1] / self.weight
        A -= np.outer(mean, mean)
        C = self.cross[:, :-1].T / self.weight - np.outer(mean, center)
        variance = np.maximum(self.squares / self.weight - center**2, 0.0)
        return CentredSums(A, C, mean, center, variance)

    def errors(self, coef: np.ndarray, intercept: np.ndarray) -> np.ndarray:
        """The mean squared error of K models on these rows: (K,)."""
        # sum_i s_i (y_i - f(x_i))^2 = sum y^2 - 2 sum y f + sum f^2, each of which the sums have: no row is read
        models = np.concatenate([coef, intercept[:, None]], axis=1)
        squares = np.sum(models * self.times(models), axis=1)
        total = self.squares - 2.0 * np.sum(models * self.cross, axis=1) + squares
        return np.maximum(total, 0.0) / self.weight

    @property
    def variances(self) -> np.ndarray:
        """The variance of each target, E[y^2] - E[y]^2, (K,)."""
        # The last column of the cross products belongs to the ones: it holds the sums of y.
        return np.maximum(self.squares / self.weight - (self.cross[:, -1] / self.weight) ** 2, 0.0)

    @property
    def means(self) -> np.ndarray:
        """The mean of (phi, 1), (m + 1,)."""
        return self.gram[-self.cross.shape[1] :] / self.weight

    def times(self, models: np.ndarray) -> np.ndarray:
        """sum_i s_i f_k(x_i) (phi_i, 1) of models (K, m + 1)."""
        return models @ self._whole()

    def _whole(self) -> np.ndarray:
        """sum_i s_i (phi_i, 1)(phi_i, 1)' written out, (m + 1, m + 1)."""
        # LAPACK unpacks the upper triangle; what lies below the diagonal is undefined
        upper = lapack.dtpttr(self.cross.shape[1], self.gram)[0]
        return upper + np.triu(upper, 1).T


@dataclass(frozen=True, eq=False)
class SquaredRows:
    """Rows themselves, which take less memory than their sums if they are fewer than half the columns.

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
            If there is no row, or they are not finite.
        """
        _check_rows(self.weight, np.isfinite(self.phi).all() and np.isfinite(self.targets).all())
        # rows less their means, times the roots of their shares: then A = BB' and C = Bt of the covariances
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


@dataclass(frozen=True, eq=False)
class CentredSums:
    """Weighted means, and covariances of the columns (A), with the targets (C), of the targets."""

    A: np.ndarray
    C: np.ndarray
    mean: np.ndarray
    center: np.ndarray
    variance: np.ndarray

    def form(self, lam: float) -> Form:
        """The data term with the coefficients eliminated."""
        return WholeForm(self.A, self.C, lam)

    def duals(self, weights: np.ndarray) -> np.ndarray:
        """Minus the gradient of the mean loss by coefficients (m, K), at them."""
        return self.C - self.A @ weights

    def output(self, k: int) -> CentredSums:
        """The same for output k alone."""
        output = slice(k, k + 1)
        return replace(self, C=self.C[:, output], center=self.center[output], variance=self.variance[output])


@dataclass(frozen=True, eq=False)
class CentredRows:
    """Weighted means, and rows (B transposed) and targets (t) less these, times the root of their share."""

    B: np.ndarray
    t: np.ndarray
    mean: np.ndarray
    center: np.ndarray
    variance: np.ndarray

    def form(self, lam: float) -> Form:
        """The data term with the coefficients eliminated."""
        return ThinForm(self.B, self.t, lam)

    def duals(self, weights: np.ndarray) -> np.ndarray:
        """Minus the gradient of the mean loss by coefficients (m, K), at them."""
        return self.B @ (self.t - self.B.T @ weights)

    def output(self, k: int) -> CentredRows:
        """The same for output k alone."""
        output = slice(k, k + 1)
        return replace(self, t=self.t[:, output], center=self.center[output], variance=self.variance[output])


def _check_rows(weight: float, finite: bool) -> None:
    """Raise ValueError where there is no row to fit on, or the features have overflowed."""
    if not finite:
        raise ValueError("the mapped rows or their sums are not finite; scale the rows (scaling='standard')")
    if not weight > 0.0:
        raise ValueError("no row is left to fit on: the weights of these rows sum to 0")
