"""What the sums of a ridge fit say of its coefficients: how far off they may be, and with them each prediction."""

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
    """The coefficients w of a ridge model given the rows: Gaussian, with covariance ``noise^2 (G + lam I)^-1``.

    The prior is ``w ~ N(0, noise^2 / lam I)``, the noise of the targets is Gaussian and the same for all rows; features
    and targets are centred, and the intercept counts as known. All targets share the Gram matrix.

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
        """The posterior by the sums of the mapped rows.

        Parameters
        ----------
        packed : ndarray of shape ((m + 1) (m + 2) / 2,)
            The upper triangle of ``sum_i s_i (phi_i, 1) (phi_i, 1)^T``, column by column.
        lam : float
            The penalty beside the sum of the squares, `Ridge`'s alpha.
        noise : ndarray of shape (t,)
        """

        def regularised() -> np.ndarray:
            gram, _, _ = centred_gram(packed)
            np.einsum("ii->i", gram)[:] += lam
            return gram

        factor, _ = lapack.dtrttp(factor_positive(regularised))
        width = n_columns(packed)
        return cls(packed[-width:-1] / packed[-1], factor, np.asarray(noise, dtype=np.float64))

    def lengths(self, phi: np.ndarray) -> np.ndarray:
        """``(phi - center)^T (G + lam I)^-1 (phi - center)`` of mapped rows (n, m), float32 or float64: (n,) float64.

        It is the variance of a row's predicted mean in units of the noise's: ``|(phi - center)^T R^-1|^2``, half a
        product of n x m with m x m, in the precision of the rows. Rounding them has changed the length by as much as a
        product in that precision changes it.
        """
        panels = self.prepared(phi.dtype)
        centred = phi - self.center.astype(phi.dtype)
        lengths = np.zeros(len(phi))
        for panel in panels:
            # R^-1 is upper triangular: its columns j to e hold nothing but 0 below row e
            whitened = centred[:, : len(panel)] @ panel
            lengths += np.einsum("ij,ij->i", whitened, whitened)
        return lengths

    def prepared(self, dtype: DTypeLike) -> tuple[np.ndarray, ...]:
        """R^-1 for rows of a precision, made on the first call: m^3 / 3 operations, on all idle cores.

        Several threads that share the rows of one call have it made before they begin.
        """
        dtype = np.dtype(dtype)
        if dtype not in self._panels:
            self._panels[dtype] = inverse_panels(lapack.dtpttr(len(self.center), self.factor)[0], dtype)
        return self._panels[dtype]

    def deviations(self, lengths: np.ndarray) -> np.ndarray:
        """The deviation of a new target of rows by their `lengths` (n,), noise included: (n, t)."""
        return np.sqrt(1.0 + lengths)[:, None] * self.noise

    def inverse_factor(self) -> np.ndarray:
        """R^-1, (m, m): rows are whitened by a product with it, where there is no solver of triangular systems."""
        triangle, _ = lapack.dtpttr(len(self.center), self.factor)
        return np.triu(lapack.dtrtri(triangle)[0])

    def describe(self) -> str:
        """The noise of each target, in words."""
        return f"{', '.join(f'{noise:.4g}' for noise in self.noise)} (deviation of y that no feature explains)"

    def validate(self) -> None:
        """Raise ValueError where the parts do not go together, or have no meaning."""
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
        """What `prepared` has made, by its precision."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # Tasks are sent the packed factor alone, and invert it where they run.
        return {name: value for name, value in vars(self).items() if name != "_panels"}
