"""Minimises linear and quadratic functions over the densities in a divergence ball about the uniform density."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from dkl.solvers.density_term import MinusConjugate
from dkl.solvers.interior_point import scaled_factor, share_to_bound
from dkl.solvers.kernel_alignment import divergence, maximise_alignment

# The most steps of the interior-point method.
_MOST_STEPS = 60
# The interior-point method ends when the mean product of multipliers and bounded variables, with gradients scaled to at
# most 1, falls below this.
_TOL = 1e-12
# The share by which a density with zeros is moved towards the uniform one, so that it becomes positive.
_RAISED = 0.1
# The smallest radius of a ball: with a radius of 0 the slack of its constraint would have no multiplier.
_LEAST_RADIUS = 1e-300
# The positive value that replaces a density of 0, as a share of the mean.
_FLOOR = 1e-8


@dataclass(frozen=True)
class DivergenceBall:
    """The densities u >= 0 with mean(u) = `mean` and mean((u / mean)^k) - 1 <= rho, as a `DensityTerm`.

    In place of `dkl.methods.density.penalty.DensityPenalty` it turns the problem of tuned random features into that of
    Sinha & Duchi 2016, (9).

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
        """The positive value that replaces 0, where curvatures would be quotients of rounding errors."""
        return _FLOOR * self.mean

    @property
    def fixed(self) -> bool:
        """Whether the ball contains a single density."""
        return self.rho <= 0.0 or self.n_frequencies == 1

    @property
    def least(self) -> int:
        """The smallest number of frequencies on which a density of the ball can be positive."""
        return max(1, int(np.ceil(self.n_frequencies * (1.0 + self.rho) ** (-1.0 / (self.k - 1.0)) - 1e-9)))

    def within(self, size: int) -> DivergenceBall:
        """The ball of the densities that are 0 outside `size` given frequencies, on these frequencies."""
        share = size / self.n_frequencies
        rho = (1.0 + self.rho) * share ** (self.k - 1.0) - 1.0
        return DivergenceBall(size, max(0.0, rho), self.k, self.mean / share)

    def start(self) -> np.ndarray:
        """The centre of the ball, the uniform density."""
        return np.full(self.n_frequencies, self.mean)

    def inside(self, u: np.ndarray) -> np.ndarray:
        """A positive density (D,) of the ball near u."""
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
        """How far the linear function with this gradient falls from u to its minimum over the ball."""
        return max(0.0, float(np.sum(gradient * u)) - self.minus_conjugate(-gradient).value)

    def minus_conjugate(self, p: np.ndarray) -> MinusConjugate:
        """The minimum of -u.p over the ball, for p of shape (D,) or (1, D), by `maximise_alignment`."""
        u = self.mean * len(p.ravel()) * maximise_alignment(p.ravel(), self.rho, self.k).reshape(p.shape)
        return MinusConjugate(-float(np.sum(u * p)), u, 0.0)

    def quadratic_minimum(self, curvature: np.ndarray, gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The density of the ball that minimises the second-order model, about u, of a convex function.

        Parameters
        ----------
        curvature : ndarray of shape (D, D)
            Positive semidefinite.
        gradient, u : ndarray of shape (D,)
        """
        Q, q = self.mean**2 * curvature, self.mean * (gradient - curvature @ u)
        # The largest divergence is that of a density on a single frequency, D^(k-1) - 1.
        with np.errstate(over="ignore"):
            rho = min(self.rho, float(np.float64(self.n_frequencies) ** (self.k - 1.0)))
        try:
            return self.mean * self._feasible(minimise_in_ball(Q, q, max(rho, _LEAST_RADIUS), self.k))
        except FloatingPointError:
            # The curvature is smaller than rounding errors: keep the present density.
            return u

    def _feasible(self, x: np.ndarray) -> np.ndarray:
        """x scaled to mean 1 and moved towards the uniform density until its divergence is at most rho."""
        x = np.maximum(x, 0.0)
        x = x / x.mean()
        distance = divergence(x / len(x), self.k)
        return x if distance <= self.rho else 1.0 + self.rho / distance * (x - 1.0)


@dataclass(frozen=True, eq=False)
class _Point:
    """A primal-dual point: x >= 0 and the slack of the ball, with multipliers z and mu, and eta of the mean."""

    x: np.ndarray
    z: np.ndarray
    slack: float
    mu: float
    eta: float

    def moved(self, length: float, by: _Point) -> _Point:
        """This point plus `length` times the step `by`."""
        return _Point(
            self.x + length * by.x,
            self.z + length * by.z,
            self.slack + length * by.slack,
            self.mu + length * by.mu,
            self.eta + length * by.eta,
        )

    @property
    def product(self) -> float:
        """The mean of the products of variables and multipliers, which are 0 at the optimum."""
        return (float(self.x @ self.z) + self.slack * self.mu) / (len(self.x) + 1)


def minimise_in_ball(Q: np.ndarray, q: np.ndarray, rho: float, k: float) -> np.ndarray:
    """The x >= 0 of mean 1 with mean(x^k) - 1 <= rho that minimises x'Qx/2 + q.x, by Mehrotra's method."""
    n, slopes = len(q), Q.sum(axis=1) + q
    # If the gradient at the centre is constant, the centre is the minimum; otherwise gradients are scaled to at most 1.
    scale = float(np.abs(slopes - slopes.mean()).max())
    if scale == 0.0:
        return np.ones(n)
    Q, q = Q / scale, q / scale
    # Start at the centre of the ball, with multipliers that make each product 1.
    at = _Point(np.ones(n), np.ones(n), n * rho, 1.0 / (n * rho), -float(slopes.mean()) / scale)
    for _ in range(_MOST_STEPS):
        system = _System(Q, q, n * rho, k, at)
        # The predictor aims at products of 0. The products that it reaches set the target of the corrector (Mehrotra's
        # cubic rule), and the products of its changes correct the linearisation.
        ahead = system.direction(-at.x * at.z, -at.slack * at.mu)
        centring = at.product * min(1.0, max(0.0, at.moved(_length(at, ahead), ahead).product) / at.product) ** 3
        products = centring - at.x * at.z - ahead.x * ahead.z
        move = system.direction(products, centring - at.slack * at.mu - ahead.slack * ahead.mu)
        moved = at.moved(_length(at, move), move)
        if not np.isfinite(moved.product):
            break
        at = moved
        if at.product <= _TOL:
            break
    return at.x


def _length(at: _Point, move: _Point) -> float:
    """The longest share of `move`, at most 1, that keeps all variables and multipliers positive."""
    values, change = (np.concatenate([point.x, point.z, [point.slack, point.mu]]) for point in (at, move))
    return share_to_bound(values, change)


class _System:
    """The Newton equations of the optimality conditions at a point, factorised."""

    def __init__(self, Q: np.ndarray, q: np.ndarray, radius: float, k: float, at: _Point) -> None:
        x = at.x
        # The gradient of sum(x^k - 1 - k (x - 1)), the form that `divergence` sums, without cancellation near the
        # centre.
        self.normal = k * (x ** (k - 1.0) - 1.0)
        self.at = at
        self.slope = Q @ x + q + at.eta + at.mu * self.normal - at.z
        self.off_mean = float(np.sum(x - 1.0))
        self.outside = len(x) * divergence(x / len(x), k) + at.slack - radius
        # Eliminating z and slack leaves the matrix Q plus the diagonal mu k (k - 1) x^(k-2) + z / x.
        self.root = 1.0 / np.sqrt(at.mu * k * (k - 1.0) * x ** (k - 2.0) + at.z / x)
        self.factor = scaled_factor(Q, self.root)
        self.borders = self._solved(np.stack([np.ones(len(x)), self.normal], axis=1))

    def direction(self, products: np.ndarray, product: float) -> _Point:
        """The Newton step that changes x z by `products` and slack mu by `product`, to first order."""
        at, normal = self.at, self.normal
        # The constraints on mean and divergence border the matrix; their multipliers solve a 2 x 2 system.
        inner = self._solved(products / at.x - self.slope)
        border = np.stack([np.ones(len(normal)), normal])
        matrix = border @ self.borders
        matrix[1, 1] += at.slack / at.mu
        right = border @ inner + np.array([self.off_mean, self.outside + product / at.mu])
        eta, mu = np.linalg.solve(matrix, right)
        x = inner - self.borders @ np.array([eta, mu])
        return _Point(x, (products - at.z * x) / at.x, (product - at.slack * mu) / at.mu, float(mu), float(eta))

    def _solved(self, right: np.ndarray) -> np.ndarray:
        """The inverse of the matrix without borders times the columns of `right`."""
        root = self.root if right.ndim == 1 else self.root[:, None]
        return root * cho_solve(self.factor, root * right, check_finite=False)
