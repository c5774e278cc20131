"""The penalty on a spectral density: Lam/2 (u - c)'H(u - c) above a floor, from one spectrum of the meta-kernel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import eigh

from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import spans
from dkl.methods.density.meta_kernels import DeltaMetaKernel, MetaKernel, as_meta_kernel
from dkl.solvers.block_pivoting import bounded_minimum
from dkl.solvers.density_term import LEAST_DENSITY, MinusConjugate
from dkl.solvers.interior_point import minimise_quadratic
from dkl.solvers.losses import namespace_of

# D x D float64 matrices in memory at once: eigenvectors and the work array of eigh, or eigenvectors, H and its factor.
_MATRICES = 3
# Bytes of the rows of a meta-kernel's matrix that are computed at once.
_TILE_BYTES = 1 << 22
# The most bytes of these matrices, whatever the memory of the process.
MOST_BYTES = 8 << 30
# Newton steps on the cubic of `eliminate`, which starts near the root and converges quadratically.
_CUBIC_STEPS = 8


@dataclass(frozen=True, eq=False)
class MetaSpectrum:
    """The eigenvalues and eigenvectors of G = kappa(W, W), equation (15), for any gamma, Lam and floor.

    Parameters
    ----------
    values : ndarray of shape (D,)
        Ascending, clipped at 0.
    vectors : ndarray of shape (D, D) or None
        As columns; None for G = I, whose eigenvectors are not needed.
    """

    values: np.ndarray
    vectors: np.ndarray | None

    @property
    def n_frequencies(self) -> int:
        """D."""
        return len(self.values)

    def scaled(self, factors: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """V diag(factors) V' applied to each row of `vectors`, float64 of its shape (D,) or (K, D)."""
        if self.vectors is None:
            return factors * vectors
        return (factors * (vectors @ self.vectors)) @ self.vectors.T


class Elimination(NamedTuple):
    """The best density for given weights if each frequency has its own, as `DensityPenalty.eliminate` computes it.

    Parameters
    ----------
    density : ndarray of the shape of the squares
    value : float
        sum_j lam |w_j|^2 / (2 u_j) + Lam/2 (u - c)'H(u - c) at this density.
    slope : ndarray of the shape of the squares
        Its derivative in |w_j|^2: lam / (2 u_j), infinite where u_j is 0.
    """

    density: np.ndarray
    value: float
    slope: np.ndarray


@dataclass(frozen=True, eq=False)
class DensityPenalty:
    """Lam/2 (u - c)'H(u - c) over u >= floor, H = (G + gamma D I)^-1 G (G + gamma D I)^-1.

    G is the meta-kernel between the frequencies. H is small along densities that are smooth for the meta-kernel, so
    that these cost little. ``dataclasses.replace(penalty, gamma=..., Lam=...)`` reuses the spectrum. Densities are
    (D,), or (K, D) if each class has its own; their penalties are added.

    Parameters
    ----------
    spectrum : MetaSpectrum
    gamma : float
        Positive; larger values smooth the density more.
    Lam : float
        Positive; ``inf`` fixes the density at `center`, so that the model has plain random features.
    floor : float
        >= 0: 1 is the paper's constraint, a small number gives its (17)-(18), 0 Fourier kernel learning.
    center : float
        The density without penalty: 1 is the reference kernel, 0 Fourier kernel learning.

    Raises
    ------
    ValueError
        If a number is out of its range.

    References
    ----------
    Shilton, Gupta, Rana, Venkatesh & Venkatesh 2022, equations (15) and (22); the paper prints lambda for Lam there.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.density.penalty import DensityPenalty, meta_spectrum
    >>> penalty = DensityPenalty(meta_spectrum(np.array([[0.0], [1.0]]), "rbf"), gamma=0.5, Lam=2.0)
    >>> penalty.value(np.array([1.0, 1.0])), penalty.minus_conjugate(np.zeros(2)).density.tolist()
    (0.0, [1.0, 1.0])
    """

    spectrum: MetaSpectrum
    gamma: float
    Lam: float
    floor: float = 1.0
    center: float = 1.0

    def __post_init__(self) -> None:
        _check_number("gamma", self.gamma, "a positive finite number", positive=True)
        _check_number("Lam", self.Lam, "a positive number, or float('inf') for the reference kernel", positive=True)
        _check_number("density_floor", self.floor, "a finite number of at least 0")
        _check_number("center", self.center, "a finite number of at least 0")
        if self.fixed and not 0.0 < self.center >= self.floor:
            raise ValueError(
                f"Lam=inf fixes the density at center={self.center:g}, which is not positive or lies below "
                f"density_floor={self.floor:g}; give a finite Lam, or center=1.0"
            )

    @property
    def n_frequencies(self) -> int:
        """D."""
        return self.spectrum.n_frequencies

    @property
    def fixed(self) -> bool:
        """Whether the density is fixed at the centre."""
        return math.isinf(self.Lam)

    @property
    def separable(self) -> bool:
        """Whether H is a multiple of the identity, so that `eliminate` has a closed form for each frequency."""
        return self.spectrum.vectors is None

    @cached_property
    def curvatures(self) -> np.ndarray:
        """The eigenvalues of H, t / (t + gamma D)^2, in the order of the eigenvalues t of G: (D,)."""
        t = self.spectrum.values
        return t / np.square(t + self.gamma * self.n_frequencies)

    @cached_property
    def matrix(self) -> np.ndarray:
        """H itself, (D, D): for solvers that factorise; `times` needs none."""
        if self.spectrum.vectors is None:
            return np.diag(self.curvatures)
        # V diag(h) V' as a product with its own transpose is exactly symmetric
        half = self.spectrum.vectors * np.sqrt(self.curvatures)
        return half @ half.T

    def times(self, e: np.ndarray) -> np.ndarray:
        """H e for each row of e, (D,) or (K, D)."""
        return self.spectrum.scaled(self.curvatures, namespace_of(e).asarray(e, dtype=np.float64))

    def start(self) -> np.ndarray:
        """The initial density, (D,): the centre, but at least the floor."""
        return np.full(self.n_frequencies, max(self.center, self.floor))

    def inside(self, u: np.ndarray) -> np.ndarray:
        """A feasible and positive density near u (D,)."""
        if self.fixed:
            return self.start()
        # a density of 0 would have no gradient; the problem is convex, so that any other start will do
        return np.maximum(np.where(u > 0.0, u, 1.0), max(self.floor, LEAST_DENSITY))

    def residual(self, u: np.ndarray, gradient: np.ndarray) -> float:
        """max |u - max(u - gradient, floor)|; 0 for a fixed density."""
        if self.fixed:
            return 0.0
        return float(np.max(np.abs(u - np.maximum(u - gradient, self.floor)), initial=0.0))

    def quadratic_minimum(self, curvature: np.ndarray, gradient: np.ndarray, u: np.ndarray) -> np.ndarray:
        """The density that minimises the penalty plus a second-order model of the rest of the objective.

        Parameters
        ----------
        curvature : ndarray of shape (D, D)
            Of the rest of the objective, at u.
        gradient : ndarray of shape (D,)
            Of the whole objective.
        u : ndarray of shape (D,)
        """
        floor = max(self.floor, LEAST_DENSITY)
        # second-order model: g'(v - u) + (v - u)'Q(v - u)/2 over v, so that its linear term is g - Qu
        whole = curvature + self.Lam * self.matrix
        return bounded_minimum(whole, gradient - whole @ u, floor, u > floor)

    def value(self, u: np.ndarray) -> float:
        """The penalty of a density, (D,) or (K, D)."""
        if self.fixed:
            return math.inf if (np.asarray(u, dtype=np.float64) - self.center).any() else 0.0
        return float(self._quadratic(np.asarray(u, dtype=np.float64)))

    def _quadratic(self, u: np.ndarray) -> Any:
        """Lam/2 (u - c)'H(u - c) of a density that is not fixed, an array of no dimension on the density's device."""
        e = u - self.center
        # (u - c)'H(u - c) = sum_i h_i (v_i'(u - c))^2 in the eigenvectors v_i: no matrix of H is formed
        along = e if self.spectrum.vectors is None else e @ self.spectrum.vectors
        return 0.5 * self.Lam * (self.curvatures * np.square(along)).sum()

    def gradient(self, u: np.ndarray) -> np.ndarray:
        """Lam H (u - c), of the shape of `u`; zero where the density is fixed."""
        xp = namespace_of(u)
        e = xp.asarray(u, dtype=np.float64) - self.center
        return xp.zeros_like(e) if self.fixed else self.Lam * self.times(e)

    def minus_conjugate(self, p: np.ndarray) -> MinusConjugate:
        """min over u >= floor of P(u) - u.p, P(u) = Lam/2 (u - c)'H(u - c): minus the conjugate of the penalty P at p.

        It is the last term of the dual objective, where p_j = |sum_i a_i z_ij|^2 / (2 lam) for the dual weights a_i of
        the rows and the features z_ij of frequency j. c is the centre; the value is a lower bound of the minimum.

        Parameters
        ----------
        p : ndarray of shape (D,) or (K, D)
            For a density of each class, one row for each class.

        Returns
        -------
        MinusConjugate
        """
        p = np.asarray(p, dtype=np.float64)
        if p.ndim == 2:
            rows = [self.minus_conjugate(row) for row in p]
            return MinusConjugate(
                sum(row.value for row in rows), np.stack([row.density for row in rows]), sum(row.gap for row in rows)
            )
        if self.fixed:
            u = self.start()
            return MinusConjugate(-float(u @ p), u, 0.0)
        if self.spectrum.vectors is None:
            # for each frequency the vertex of its parabola, but at least the floor
            u = np.maximum(self.floor, self.center + p / (self.Lam * self.curvatures))
            return MinusConjugate(self.value(u) - float(u @ p), u, 0.0)
        # a quadratic program over x = u - floor >= 0, its linear term in units of Lam
        lift = np.full_like(p, self.floor - self.center)
        with one_blas_thread():
            program = minimise_quadratic(self.matrix, p / self.Lam - self.times(lift))
        at_floor = self.value(self.center + lift) - self.floor * float(p.sum())
        gap = self.Lam * program.gap
        return MinusConjugate(self.Lam * program.value + at_floor - gap, self.floor + program.point, gap)

    def eliminate(self, squares: np.ndarray, lam: float) -> Elimination:
        """The best density for given weights, in closed form; only for a `DeltaMetaKernel`.

        With centre and floor 0 (Fourier kernel learning) u_j = (lam |w_j|^2 / (2 Lam h))^(1/3) with h = 1 / (1 + gamma
        D)^2, and the value is 1.5 (Lam h)^(1/3) sum_j (lam |w_j|^2 / 2)^(2/3). Solvers in the weights alone need it,
        since the gradient in u is singular at 0.

        Parameters
        ----------
        squares : ndarray of shape (D,) or (K, D)
            |w_j|^2, added over the outputs that share a density.
        lam : float

        Returns
        -------
        Elimination

        Raises
        ------
        ValueError
            If the meta-kernel couples frequencies.
        """
        if not self.separable:
            raise ValueError(
                "eliminate: the meta-kernel couples frequencies, so the best density has no closed form; "
                "it has one for meta_kernel='delta'"
            )
        xp = namespace_of(squares)
        half = 0.5 * lam * xp.asarray(squares, dtype=np.float64)
        # a fixed density is the centre, which is at least the floor, and has no penalty
        u = self.center + 0.0 * half if self.fixed else np.maximum(self.floor, self._free_density(half))
        # a frequency without weight costs no ridge, whatever its density
        with np.errstate(divide="ignore", invalid="ignore"):
            ridge = xp.where(half > 0.0, half / u, 0.0)
            slope = 0.5 * lam / u
        return Elimination(u, ridge.sum() + (0.0 if self.fixed else self._quadratic(u)), slope)

    def _free_density(self, half: np.ndarray) -> np.ndarray:
        """The root of u^2 (u - c) = lam |w|^2 / (2 Lam h) at or above the centre."""
        target = half / (self.Lam * self.curvatures)
        # the start is beyond the root, where the cubic is convex, so that Newton steps decrease to it; for c = 0 it is
        # the root
        u = self.center + np.cbrt(target)
        for _ in range(_CUBIC_STEPS):
            slope = u * (3.0 * u - 2.0 * self.center)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = namespace_of(u).where(slope > 0.0, (u * u * (u - self.center) - target) / slope, 0.0)
            u = np.maximum(u - step, self.center)
        return u


def density_bytes(n_frequencies: int) -> int:
    """Peak memory of the penalty on D coupled frequencies: several D x D matrices of float64."""
    return _MATRICES * 8 * n_frequencies**2


def meta_spectrum(W: np.ndarray, meta_kernel: str | MetaKernel, *, length_scale: float = 1.0) -> MetaSpectrum:
    """The spectrum of the meta-kernel on the frequencies: one eigendecomposition, of cost D^3, for each length scale.

    Parameters
    ----------
    W : ndarray of shape (D, d)
    meta_kernel : {"rbf", "matern", "polynomial", "delta"} or MetaKernel
    length_scale : float
        The length scale of a meta-kernel given by name; an object has its own.

    Returns
    -------
    MetaSpectrum

    Raises
    ------
    ValueError
        If W is not a finite matrix, or the meta-kernel is invalid.
    MemoryError
        If the matrices of D x D would not fit.
    """
    kernel = as_meta_kernel(meta_kernel, length_scale)
    W = np.asarray(W, dtype=np.float64)
    if W.ndim != 2 or not len(W) or not np.isfinite(W).all():
        raise ValueError(f"W has shape {W.shape}; it must be a matrix of at least one frequency, all numbers finite")
    if isinstance(kernel, DeltaMetaKernel):
        return MetaSpectrum(np.ones(len(W)), None)
    check_density_size(len(W))
    gram = np.empty((len(W), len(W)))
    for rows in spans(len(W), max(1, _TILE_BYTES // (8 * len(W)))):
        with np.errstate(over="ignore", invalid="ignore"):
            part = kernel.gram(W[rows], W)
        # a user's meta-kernel may return anything, so its result is checked
        if np.shape(part) != gram[rows].shape:
            raise ValueError(f"{kernel!r}: gram of frequencies {gram[rows].shape} has shape {np.shape(part)}")
        if not np.isfinite(part).all():
            raise ValueError(
                f"{kernel!r} is not finite on these frequencies; its length scale is far from their lengths"
            )
        gram[rows] = part
    with one_blas_thread():
        # the transpose of a symmetric C-ordered matrix has LAPACK's order, so that it works in place
        values, vectors = eigh(gram.T, overwrite_a=True, check_finite=False, driver="evd")
    # G is positive semidefinite, so negative eigenvalues are rounding errors
    return MetaSpectrum(np.maximum(values, 0.0), vectors)


def check_density_size(n_frequencies: int, most_bytes: int = MOST_BYTES) -> None:
    """Raise MemoryError, with the estimate and a remedy, for more coupled frequencies than fit."""
    needed = density_bytes(n_frequencies)
    if needed > most_bytes:
        fits = math.isqrt(most_bytes // (_MATRICES * 8))
        raise MemoryError(
            f"the density of {n_frequencies:,} frequencies needs {needed / 2**30:.1f} GiB for the meta-kernel's matrix "
            f"and its spectrum, above the limit of {most_bytes / 2**30:.1f} GiB; take at most {fits:,} frequencies, or "
            "meta_kernel='delta', which needs no matrix"
        )


def _check_number(name: str, value: float, expected: str, positive: bool = False) -> None:
    """Raise ValueError where a value is no number from 0 on; Lam alone may be infinite."""
    real = isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    infinite = name == "Lam"
    if not real or value < 0.0 or (positive and value == 0.0) or (math.isinf(value) and not infinite):
        raise ValueError(f"{name} is {value!r}; it must be {expected}")
