"""The posterior distribution of the coefficients of a ridge fit, and the deviations of predictions that follow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy.linalg import lapack

from dkl.solvers.cholesky import inverse_panels
from dkl.solvers.squared_sums import centred_gram, n_columns
from dkl.solvers.systems import factor_positive


@dataclass(frozen=True, eq=False)
class CoefficientPosterior:
    """The Gaussian posterior of the coefficients w of a ridge model, with covariance ``noise^2 (G + lam I)^-1``.

    The prior is ``w ~ N(0, noise^2 / lam I)``, and the noise of the targets is Gaussian with the same deviation for all
    rows. Features and targets are centred; the uncertainty of the intercept is neglected. All targets share the Gram
    matrix.

    Parameters
    ----------
    center : ndarray of shape (m,)
        The weighted mean of the mapped rows.
    factor : ndarray of shape (m (m + 1) / 2,)
        The upper triangular Cholesky factor R of the regularised Gram matrix, ``R^T R = G + lam I``, column by column.
    noise : ndarray of shape (t,)
        The standard deviation of the noise of each target, in its own units.

    References
    ----------
    Bishop 2006, Pattern Recognition and Machine Learning, (3.53), (3.54) and (3.59).
    """

    center: np.ndarray
    factor: np.ndarray
    noise: np.ndarray

    @classmethod
    def of_gram(cls, packed: np.ndarray, lam: float, noise: np.ndarray) -> CoefficientPosterior:
        """The posterior from the sums of mapped rows.

        Parameters
        ----------
        packed : ndarray of shape ((m + 1) (m + 2) / 2,)
            The upper triangle of ``sum_i s_i (phi_i, 1) (phi_i, 1)^T``, column by column.
        lam : float
            The penalty in an objective with the sum of squares, as `Ridge`'s alpha.
        noise : ndarray of shape (t,)
        """

        def regularised() -> np.ndarray:
            gram, _, _ = centred_gram(packed)
            diagonal = np.einsum("ii->i", gram)
            # rounding leaves the sum of squares of a constant feature around its mean slightly below 0
            diagonal[:] = np.maximum(diagonal, 0.0) + lam
            return gram

        factor, _ = lapack.dtrttp(factor_positive(regularised))
        width = n_columns(packed)
        return cls(packed[-width:-1] / packed[-1], factor, np.asarray(noise, dtype=np.float64))

    def lengths(self, phi: np.ndarray) -> np.ndarray:
        """``(phi - center)^T (G + lam I)^-1 (phi - center)`` of mapped rows (n, m), float32 or float64: (n,) float64.

        This is the variance of a row's predicted mean in units of the noise variance, ``|(phi - center)^T R^-1|^2``:
        half a product of n x m with m x m, in the precision of the rows, whose rounding has an effect of the same size.
        """
        panels = self.prepared(phi.dtype)
        centred = phi - self.center.astype(phi.dtype)
        lengths = np.zeros(len(phi))
        for panel in panels:
            # R^-1 is upper triangular: its columns j to e are 0 below row e
            whitened = centred[:, : len(panel)] @ panel
            lengths += np.einsum("ij,ij->i", whitened, whitened)
        return lengths

    def prepared(self, dtype: DTypeLike) -> tuple[np.ndarray, ...]:
        """R^-1 in a precision, computed on the first call with m^3 / 3 operations, on all idle cores.

        It is called before several threads share the rows of a call, so that it is computed once.
        """
        dtype = np.dtype(dtype)
        if dtype not in self._panels:
            self._panels[dtype] = inverse_panels(lapack.dtpttr(len(self.center), self.factor)[0], dtype)
        return self._panels[dtype]

    def deviations(self, lengths: np.ndarray) -> np.ndarray:
        """The standard deviation of a new target, noise included, from the `lengths` (n,) of rows: (n, t)."""
        return np.sqrt(1.0 + lengths)[:, None] * self.noise

    def inverse_factor(self) -> np.ndarray:
        """R^-1, (m, m), for code that whitens rows by one product, instead of a product for each panel."""
        panels, m = self.prepared(np.float64), len(self.center)
        return np.hstack([np.pad(panel, ((0, m - len(panel)), (0, 0))) for panel in panels])

    def describe(self) -> str:
        """A description: the noise of each target."""
        return f"{', '.join(f'{noise:.4g}' for noise in self.noise)} (deviation of y that no feature explains)"

    def validate(self) -> None:
        """Raise ValueError if the arrays are inconsistent, or the noise or the factor are not positive."""
        m = len(self.center)
        if self.factor.shape != (m * (m + 1) // 2,) or not np.all(self.noise >= 0.0):
            raise ValueError(
                f"a posterior on {m} features has a factor of {m * (m + 1) // 2} numbers and noise of at least 0; it "
                f"holds {self.factor.shape} and {self.noise!r:.80}; the file is damaged"
            )
        if not np.all(self.factor[np.cumsum(np.arange(1, m + 1)) - 1] > 0.0):
            raise ValueError("the factor of a posterior has a diagonal that is not positive; the file is damaged")

    @cached_property
    def _panels(self) -> dict[np.dtype, tuple[np.ndarray, ...]]:
        """The cache of `prepared`, by precision."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks receive only the packed factor, and invert it on the worker.
        return {name: value for name, value in vars(self).items() if name != "_panels"}
