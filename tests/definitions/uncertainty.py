"""The definitions behind deviations, evidence and conformal intervals, as loops and by general solvers."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from scipy.optimize import brentq
from scipy.stats import multivariate_normal


def posterior(phi: np.ndarray, y: np.ndarray, weight: np.ndarray, lam: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean feature, covariance of the coefficients in units of the noise's variance, and the noise's deviation."""
    n, m = weight.sum(), phi.shape[1]
    center, level = np.zeros(m), 0.0
    for i in range(len(phi)):
        center += weight[i] * phi[i] / n
        level += weight[i] * y[i] / n
    gram, products = lam * np.eye(m), np.zeros(m)
    for i in range(len(phi)):
        for j in range(m):
            products[j] += weight[i] * (phi[i, j] - center[j]) * (y[i] - level)
            for k in range(m):
                gram[j, k] += weight[i] * (phi[i, j] - center[j]) * (phi[i, k] - center[k])
    covariance = np.linalg.inv(gram)
    w = covariance @ products
    squares = sum(weight[i] * (y[i] - level - (phi[i] - center) @ w) ** 2 for i in range(len(phi)))
    return center, covariance, math.sqrt((squares + lam * w @ w) / n)


def log_evidence(phi: np.ndarray, y: np.ndarray, lam: float, noise: float) -> float:
    """The logarithm of the density of y, with the coefficients integrated out; features and y are centred here."""
    phi, y = phi - phi.mean(axis=0), y - y.mean()
    covariance = noise**2 * (np.eye(len(y)) + phi @ phi.T / lam)
    return float(multivariate_normal(np.zeros(len(y)), covariance).logpdf(y))


def order_statistic(scores: np.ndarray, coverage: str) -> float:
    """The ceil((n + 1) coverage)-th smallest of n scores, by sorting; infinite where it is above n."""
    k = math.ceil((len(scores) + 1) * Fraction(coverage))
    return sorted(scores)[k - 1] if k <= len(scores) else math.inf


def deviance_residual(y: float, mean: float, loss: str) -> float:
    """The square root of twice the log likelihood that a mean loses to the target itself."""
    if loss == "poisson":
        gain = (y * math.log(y / mean) if y > 0.0 else 0.0) - (y - mean)
    else:
        gain = (y - mean) / mean - math.log(y / mean)
    return math.sqrt(max(2.0 * gain, 0.0))


def within_residual(mean: float, radius: float, loss: str) -> tuple[float, float]:
    """The smallest and the largest target whose deviance residual is at most the radius, by bisection."""

    def beyond(log_ratio: float) -> float:
        return deviance_residual(mean * math.exp(log_ratio), mean, loss) - radius

    low = 0.0 if beyond(-700.0) <= 0.0 else mean * math.exp(brentq(beyond, -700.0, 0.0, xtol=1e-14))
    return low, mean * math.exp(brentq(beyond, 0.0, 40.0, xtol=1e-14))


def outside_quantiles(y: float, quantiles: list[float]) -> float:
    """How far a target is outside of the lowest and the highest quantile, (6) of Romano, Patterson & Candes."""
    return max(min(quantiles) - y, y - max(quantiles))
