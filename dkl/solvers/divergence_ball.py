"""Densities in a divergence ball about the uniform one: the best for a linear and for a quadratic function."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from dkl.solvers.density_term import Conjugate
from dkl.solvers.interior_point import scaled_factor, share_to_bound
from dkl.solvers.kernel_alignment import divergence, maximise_alignment

_MOST_STEPS = 60
# The mean product of multipliers and what they bound at which the method ends, relative to the largest gradient.
_TOL = 1e-12
# A density of exactly 0 is raised by this share of the mean before its neighbourhood is looked at.
_RAISED = 0.1
# The radius of a ball is never 0, so that the room inside it has a multiplier.
_LEAST_RADIUS = 1e-300
# What stands for a density of 0, as a share of the mean.
_FLOOR = 1e-8


@dataclass(frozen=True)
class DivergenceBall:
    """u >= 0 with mean(u) = `mean` and mean((u / mean)^k) - 1 <= rho: without penalty inside, forbidden outside.

    It stands where `dkl.methods.density.penalty.DensityPenalty` does in the problem of tuned random features, which is
    then that of Sinha & Duchi 2016, (9).

    Parameters
    ----------
    n_frequencies : int
    rho : float
        >= 0; 0 fixes u at its mean.
    k : float
        >= 2.
    mean : float

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", section 2.

    Examples
    --------
    >>> from dkl.solvers.divergence_ball import DivergenceBall
    >>> ball = DivergenceBall(10, rho=4.0)
    >>> ball.within(4)
    DivergenceBall(n_frequencies=4, rho=1.0, k=2.0, mean=2.5)
    """

    n_frequencies: int
    rho: float
    k: float = 2.0
    mean: float = 1.0

    @property
    def floor(self) -> float:
        """What stands for 0, where curvatures would be quotients of rounding."""
        return _FLOOR * self.mean

    @property
    def fixed(self) -> bool:
        """Whether it holds a single point."""
        return self.rho <= 0.0 or self.n_frequencies == 1

    @property
    def least(self) -> int:
        """The fewest frequencies that a density of the ball can be positive on."""
        return max(1, int(np.ceil(self.n_frequencies * (1.0 + self.rho) ** (-1.0 / (self.k - 1.0)) - 1e-9)))

    def within(self, size: int) -> DivergenceBall:
        """The densities of the ball that are 0 but for `size` of the frequencies."""
        share = size / self.n_frequencies
        rho = (1.0 + self.rho) * share ** (self.k - 1.0) - 1.0
        return DivergenceBall(size, max(0.0, rho), self.k, self.mean / share)

    def start(self) -> np.ndarray:
        """The centre."""
        return np.full(self.n_frequencies, self.mean)

    def inside(self, u: np.ndarray) -> np.ndarray:
        """A density (D,) near u that is in the ball, and positive."""
        if self.fixed:
            return self.start()
        x = self._feasible(u / u.mean())
        return self.mean * (x if x.all() else x + _RAISED * (1.0 - x))

    def value(self, u: np.ndarray) -> float:
        """0: a density of the ball has no penalty."""
        return 0.0

    def gradient(self, u: np.ndarray) -> np.ndarray:
        """0 everywhere, of the shape of u."""
        return np.zeros_like(u)

    def residual(self, u: np.ndarray, gradient: np.ndarray) -> float:
        """How far a linear function with this gradient falls within the ball."""
        return max(0.0, float(np.sum(gradient * u)) - self.conjugate(-gradient).value)

    def conjugate(self, p: np.ndarray) -> Conjugate:
        """min of -u.p over the ball, for p of shape (D,) or (1, D): what `maximise_alignment` finds."""
        u = self.mean * len(p.ravel()) * maximise_alignment(p.ravel(), self.rho, self.k).reshape(p.shape)
        return Conjugate(-float(np.sum(u * p)), u, 0.0)

    def quadratic_minimum(self, curvature: np.ndarray, gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The density of the ball where the second-order model of a convex function about u is least.

        Parameters
        ----------
        curvature : ndarray of shape (D, D)
            Positive semidefinite.
        gradient, u : ndarray of shape (D,)
        """
        Q, q = self.mean**2 * curvature, self.mean * (gradient - curvature @ u)
        # No density has a larger divergence than one that is positive on a single frequency, D^(k-1) - 1.
        with np.errstate(over="ignore"):
            rho = min(self.rho, float(np.float64(self.n_frequencies) ** (self.k - 1.0)))
        try:
            return self.mean * self._feasible(minimise_in_ball(Q, q, max(rho, _LEAST_RADIUS), self.k))
        except FloatingPointError:
            # Nothing but rounding is left of the curvature: the density that is known is as good as any.
            return u

    def _feasible(self, x: np.ndarray) -> np.ndarray:
        """x of mean 1, drawn towards 1 until its divergence is at most rho: that is convex, and 0 there."""
        x = np.maximum(x, 0.0)
        x = x / x.mean()
        distance = divergence(x / len(x), self.k)
        return x if distance <= self.rho else 1.0 + self.rho / distance * (x - 1.0)


@dataclass(frozen=True, eq=False)
class _Point:
    """x >= 0 and the room that is left in the ball, with their multipliers z and mu, and that of the mean."""

    x: np.ndarray
    z: np.ndarray
    room: float
    mu: float
    eta: float

    def moved(self, length: float, by: _Point) -> _Point:
        """This point with a share of a move."""
        return _Point(
            self.x + length * by.x,
            self.z + length * by.z,
            self.room + length * by.room,
            self.mu + length * by.mu,
            self.eta + length * by.eta,
        )

    @property
    def product(self) -> float:
        """The mean of the products that are 0 at the optimum."""
        return (float(self.x @ self.z) + self.room * self.mu) / (len(self.x) + 1)


def minimise_in_ball(Q: np.ndarray, q: np.ndarray, rho: float, k: float) -> np.ndarray:
    """The least x'Qx/2 + q.x over x >= 0 of mean 1 with mean(x^k) - 1 <= rho: Mehrotra's predictor and corrector."""
    n, slopes = len(q), Q.sum(axis=1) + q
    # Where the gradient at the centre is constant, the centre is the minimum; otherwise problems are brought to one
    # scale.
    scale = float(np.abs(slopes - slopes.mean()).max())
    if scale == 0.0:
        return np.ones(n)
    Q, q = Q / scale, q / scale
    # The centre of the ball is the start: every density 1, all room left, and multipliers that make each product 1.
    at = _Point(np.ones(n), np.ones(n), n * rho, 1.0 / (n * rho), -float(slopes.mean()) / scale)
    for _ in range(_MOST_STEPS):
        system = _System(Q, q, n * rho, k, at)
        # The predictor aims at products of 0. How much of the way it goes says how far the corrector has to stay from
        # the bounds (Mehrotra's cubic rule), and what its own products are says by how much the linear model misses.
        ahead = system.direction(-at.x * at.z, -at.room * at.mu)
        centring = at.product * min(1.0, max(0.0, at.moved(_length(at, ahead), ahead).product) / at.product) ** 3
        products = centring - at.x * at.z - ahead.x * ahead.z
        move = system.direction(products, centring - at.room * at.mu - ahead.room * ahead.mu)
        moved = at.moved(_length(at, move), move)
        if not np.isfinite(moved.product):
            break
        at = moved
        if at.product <= _TOL:
            break
    return at.x


def _length(at: _Point, move: _Point) -> float:
    """The step that keeps everything positive, at most 1."""
    values, change = (np.concatenate([point.x, point.z, [point.room, point.mu]]) for point in (at, move))
    return share_to_bound(values, change)


class _System:
    """The Newton equations of the optimality conditions at a point, factorised."""

    def __init__(self, Q: np.ndarray, q: np.ndarray, radius: float, k: float, at: _Point) -> None:
        x = at.x
        # The gradient of sum(x^k - 1 - k (x - 1)), the form in which `divergence` sums: nothing cancels near the
        # centre.
        self.normal = k * (x ** (k - 1.0) - 1.0)
        self.at = at
        self.slope = Q @ x + q + at.eta + at.mu * self.normal - at.z
        self.off_mean = float(np.sum(x - 1.0))
        self.outside = len(x) * divergence(x / len(x), k) + at.room - radius
        # Q plus the diagonal mu k (k - 1) x^(k-2) + z / x is the matrix of the equations once z and room are
        # eliminated.
        self.root = 1.0 / np.sqrt(at.mu * k * (k - 1.0) * x ** (k - 2.0) + at.z / x)
        self.factor = scaled_factor(Q, self.root)
        self.borders = self._solved(np.stack([np.ones(len(x)), self.normal], axis=1))

    def direction(self, products: np.ndarray, product: float) -> _Point:
        """The move that changes x z by `products` and room mu by `product`, to first order."""
        at, normal = self.at, self.normal
        # The two constraints, mean and divergence, border the matrix: their multipliers come from a system of two
        # numbers.
        inner = self._solved(products / at.x - self.slope)
        border = np.stack([np.ones(len(normal)), normal])
        matrix = border @ self.borders
        matrix[1, 1] += at.room / at.mu
        right = border @ inner + np.array([self.off_mean, self.outside + product / at.mu])
        eta, mu = np.linalg.solve(matrix, right)
        x = inner - self.borders @ np.array([eta, mu])
        return _Point(x, (products - at.z * x) / at.x, (product - at.room * mu) / at.mu, float(mu), float(eta))

    def _solved(self, right: np.ndarray) -> np.ndarray:
        """The inverse of the inner matrix times some vectors."""
        root = self.root if right.ndim == 1 else self.root[:, None]
        return root * cho_solve(self.factor, root * right, check_finite=False)
