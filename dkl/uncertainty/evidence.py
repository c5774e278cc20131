"""The penalty and the noise of a ridge model by maximum evidence, the marginal density of the targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from dkl.solvers.squared_sums import SquaredSums, centred_gram

# The range of penalties relative to the largest eigenvalue: from the rounding errors of sums of products in this
# precision to penalties that make all coefficients practically 0.
_LOWEST = {"float32": 1e-9, "float64": 1e-14}
_HIGHEST = 1e6
# The number of penalties in each decade of the grid, whose best one is then refined.
_A_DECADE = 8


@dataclass(frozen=True, eq=False)
class Evidence:
    """The evidence as a function of the penalty, from the eigendecomposition of the Gram matrix G.

    With the prior ``w ~ N(0, s^2 / lam I)`` and, for each penalty, the noise s of largest density, the evidence of
    centred features and targets is

        log p(y) = -(n log(2 pi s^2) + n + logdet(G + lam I) - m log lam) / 2,   s^2 = (|y - f|^2 + lam |w|^2) / n.

    Several targets share the penalty, and each has its own noise; their evidences are added.

    Parameters
    ----------
    eigenvalues : ndarray of shape (m,)
        The eigenvalues of G, not negative.
    products : ndarray of shape (m, t)
        The sums of features times targets, in the basis of the eigenvectors of G.
    squares : ndarray of shape (t,)
        The sums of the squared targets.
    weight : float
        n, the sum of the weights of the rows.

    References
    ----------
    MacKay 1992, Bayesian interpolation, section 4; Bishop 2006, Pattern Recognition and Machine Learning, (3.86).
    """

    eigenvalues: np.ndarray
    products: np.ndarray
    squares: np.ndarray
    weight: float

    @classmethod
    def of_sums(cls, sums: SquaredSums) -> Evidence:
        """The evidence from sums over rows that need not be centred."""
        gram, center, weight = centred_gram(sums.gram)
        level = sums.cross[:, -1] / weight
        # sum_i s_i (phi_i - mean) y_i, and sum_i s_i (y_i - level)^2
        centred = sums.cross[:, :-1].T - np.outer(center, sums.cross[:, -1])
        squares = sums.squares - weight * level**2
        eigenvalues, vectors = eigh(gram, lower=False, overwrite_a=True, check_finite=False, driver="evd")
        projected = vectors.T @ centred
        # c_j^2 <= e_j |y|^2 by Cauchy and Schwarz: eigenvalues below that, or below 0, are rounding errors
        least = np.max(projected**2 / np.maximum(squares, np.finfo(np.float64).tiny), axis=1)
        return cls(np.maximum(eigenvalues, least), projected, squares, weight)

    def noise_variance(self, lam: float) -> np.ndarray:
        """s^2 of each target at a penalty: (t,)."""
        # |y - f|^2 + lam |w|^2 = |y|^2 - c^T (G + lam I)^-1 c
        fitted = np.sum(self.products**2 / (self.eigenvalues + lam)[:, None], axis=0)
        floor = 1e-15 * self.squares + np.finfo(np.float64).tiny
        return np.maximum(self.squares - fitted, floor) / self.weight

    def log_density(self, lam: float) -> float:
        """log p(y) at a penalty, with the noise of largest density."""
        n, t, m = self.weight, len(self.squares), len(self.eigenvalues)
        spread = np.sum(np.log(self.eigenvalues + lam)) - m * np.log(lam)
        return float(-0.5 * (np.sum(n * np.log(2.0 * np.pi * self.noise_variance(lam)) + n) + t * spread))

    def slope(self, lam: float) -> float:
        """The derivative of `log_density` by log lam: 0 where lam |w|^2 / s^2 is gamma, the degrees of freedom."""
        shrunk = self.eigenvalues + lam
        gamma = np.sum(self.eigenvalues / shrunk)
        lengths = np.sum((self.products / shrunk[:, None]) ** 2, axis=0)
        return float(0.5 * (len(self.squares) * gamma - np.sum(lam * lengths / self.noise_variance(lam))))

    def best_penalty(self, dtype: str = "float64") -> float:
        """The penalty lam with the largest evidence, for an objective with the sum of squares, as `Ridge`'s alpha.

        For targets that do not depend on the features, the evidence increases with the penalty without end, and for
        targets without noise it decreases. These get the ends of the range: a million times the largest eigenvalue, or
        the rounding errors of `dtype`.

        Parameters
        ----------
        dtype : {"float32", "float64"}
            The precision of the mapped rows whose products were summed.
        """
        largest = float(self.eigenvalues.max(initial=0.0)) or 1.0
        low, high = np.log10(_LOWEST[dtype]), np.log10(_HIGHEST)
        # The evidence may have several maxima: the search starts at the best penalty of a grid.
        grid = largest * 10.0 ** np.linspace(low, high, int(_A_DECADE * (high - low)) + 1)
        best = int(np.argmax([self.log_density(lam) for lam in grid]))
        below, above = grid[max(best - 1, 0)], grid[min(best + 1, len(grid) - 1)]
        if self.slope(below) <= 0.0 or self.slope(above) >= 0.0:
            return float(grid[best])
        # imported here, since workers load this module and never need SciPy's solvers, which take 15 MB
        from scipy.optimize import brentq

        return float(np.exp(brentq(lambda step: self.slope(np.exp(step)), np.log(below), np.log(above), xtol=1e-10)))
