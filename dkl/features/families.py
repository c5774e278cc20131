"""Families of features phi(x; w): the distribution of the frequencies, the activation, the kernel in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import ClassVar, Literal, Protocol, Self, get_args, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike
from scipy import special
from scipy.spatial import distance

from dkl.features import frequencies
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection, Projection

Sampling = Literal["iid", "orthogonal", "structured"]
Pairing = Literal["cos-sin", "phase"]
Bandwidth = float | Literal["median"]
Norm = Literal["l1", "l2"]


class Family(Protocol):
    """The contract of a family with learners; `dkl.testing` checks it."""

    @property
    def needs_bandwidth(self) -> bool:
        """Whether sigma is to be found from the rows ("median") before frequencies can be drawn."""
        ...

    def validate(self) -> None:
        """Raise ValueError if a parameter has no meaning."""
        ...

    def with_bandwidth(self, sigma: float) -> Family:
        """A copy with the bandwidth `sigma`; a family without one returns itself."""
        ...

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """A map of drawn frequencies with amplitudes 1 and no scaler, with the same bits on every machine."""
        ...

    def feature_scale(self, n_columns: int) -> float:
        """c such that c^2 E[phi(x; w) . phi(y; w)] = k(x, y)."""
        ...

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        """k(x, y) in closed form, float64 of shape (len(X), len(Y))."""
        ...


@runtime_checkable
class FiniteFamily(Family, Protocol):
    """A family of finitely many features: learners weigh all of them in one pass rather than draw."""

    def pool(self, n_columns: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """Every feature once, with amplitudes 1 and no scaler; `FeatureMap.groups` numbers those chosen together."""
        ...


def is_finite(family: object) -> bool:
    """Whether a family is a `FiniteFamily`; a plan asks thousands of times, and `isinstance` tries all methods."""
    return hasattr(family, "pool")


class WithoutBandwidth:
    """Base class of families whose features do not depend on a bandwidth."""

    @property
    def needs_bandwidth(self) -> bool:
        """Whether the bandwidth has to be found from the rows."""
        return False

    def validate(self) -> None:
        """Raise ValueError if a parameter has no meaning."""

    def with_bandwidth(self, sigma: float) -> Self:
        """A copy for rows whose median distance is `sigma`."""
        return self


class _Drawn:
    """Draws W by the parameter `sampling`; base class of all families whose frequencies are vectors."""

    sampling: Sampling
    isotropic: ClassVar[bool] = True

    def _check_sampling(self) -> None:
        name = type(self).__name__
        if self.sampling not in get_args(Sampling):
            raise ValueError(f"{name}: sampling is {self.sampling!r}; it must be one of {get_args(Sampling)}")
        # Orthogonal and structured directions are uniform on the sphere, and Laplace and Cauchy vectors point along the
        # axes more often.
        if self.sampling != "iid" and not self.isotropic:
            raise ValueError(
                f"{name}: sampling={self.sampling!r} needs frequencies whose direction is uniform, and those of {name} "
                "are not; use sampling='iid', or a Gaussian or Matern family"
            )

    def _rows(self, generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        """Independent frequencies at bandwidth 1, float64 of that shape."""
        # Isotropic kernels are mixtures of Gaussians: a Gaussian direction times a random length.
        return generator.standard_normal(shape) * self._mixture(generator, shape[0])[:, None]

    def _mixture(self, generator: np.random.Generator, size: int) -> np.ndarray:
        """Factors (size,) that turn Gaussian vectors into frequencies of an isotropic family at bandwidth 1."""
        return np.ones(size)

    def _projection(self, shape: tuple[int, int], seed: int, dtype: DTypeLike, factor: float) -> Projection:
        """Frequencies at bandwidth 1 times `factor`, drawn by `sampling`."""

        def rows(generator: np.random.Generator, part: tuple[int, int]) -> np.ndarray:
            return self._rows(generator, part) * factor

        def mixture(generator: np.random.Generator, size: int) -> np.ndarray:
            return self._mixture(generator, size) * factor

        # Frequencies of a kernel with bandwidth sigma are those of bandwidth 1, divided by sigma: that is `factor`.
        dtype = np.dtype(dtype)
        if self.sampling == "iid":
            return frequencies.independent(rows, shape, seed, dtype)
        if self.sampling == "orthogonal":
            return frequencies.orthogonal(mixture, shape, seed, dtype)
        return frequencies.structured(mixture, shape, seed, dtype)


def check_unit(sigma: float, dtype: DTypeLike) -> None:
    """Raise ValueError if `dtype` cannot hold rows of the size of sigma, or frequencies of the size of 1 / sigma."""
    limits = np.finfo(dtype)
    if not 10.0 * float(limits.tiny) <= sigma <= 0.1 * float(limits.max):
        raise ValueError(
            f"sigma is {sigma:g}: {limits.dtype} does not hold rows of that size, or frequencies of its inverse. Scale "
            "the columns (scaling='standard'), or multiply them by what brings them near 1"
        )


class _Fourier(_Drawn):
    """A shift-invariant family: phi is a cosine-sine pair or a cosine with a uniform phase (Rahimi & Recht 2007)."""

    sigma: Bandwidth
    pairing: Pairing
    # The norm of x - y that the kernel is a function of (`of_distances`); None for a function of more than one norm.
    norm: ClassVar[Norm | None] = None

    @property
    def is_elementary(self) -> bool:
        """Whether `of_distances` uses NumPy's universal functions alone, so that it also takes arrays on a GPU."""
        return False

    @property
    def needs_bandwidth(self) -> bool:
        return isinstance(self.sigma, str)

    def validate(self) -> None:
        name = type(self).__name__
        is_word = isinstance(self.sigma, str) and self.sigma == "median"
        if not (is_word or is_positive(self.sigma)):
            raise ValueError(f"{name}: sigma is {self.sigma!r}; it must be a positive finite number or 'median'")
        if self.pairing not in get_args(Pairing):
            raise ValueError(f"{name}: pairing is {self.pairing!r}; it must be one of {get_args(Pairing)}")
        self._check_sampling()

    def with_bandwidth(self, sigma: float) -> Self:
        family = replace(self, sigma=float(sigma))  # type: ignore[type-var]
        family.validate()
        return family

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        self.validate()
        shape = _checked_shape(n_frequencies, n_columns)
        check_unit(self._bandwidth(), dtype)
        projection = self._projection(shape, seed, dtype, 1.0 / self._bandwidth())
        if self.pairing == "cos-sin":
            return FeatureMap("cos-sin", projection, np.ones(shape[0]))
        # E[2 cos(w.x + b) cos(w.y + b)] over a uniform phase b is cos(w.(x - y)): one column for each frequency is
        # enough.
        phases = frequencies.stream(seed, "phases").uniform(0.0, 2.0 * np.pi, shape[0])
        return FeatureMap("cos", projection, np.ones(shape[0]), phases=phases)

    def feature_scale(self, n_columns: int) -> float:
        return 1.0 if self.pairing == "cos-sin" else float(np.sqrt(2.0))

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        X, Y = _pair(X, Y)
        return self._unit_kernel(X / self._bandwidth(), Y / self._bandwidth())

    def _unit_kernel(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The kernel at bandwidth 1."""
        if self.norm is None:
            raise TypeError(f"{type(self).__name__} does not say what its kernel is")
        return self.of_distances(distance.cdist(X, Y, "cityblock" if self.norm == "l1" else "euclidean"))

    def of_distances(self, distances: np.ndarray) -> np.ndarray:
        """The kernel at bandwidth 1 of distances in `norm`, elementwise; in the precision of the distances."""
        raise TypeError(f"{type(self).__name__} is no function of one distance")

    def _bandwidth(self) -> float:
        if isinstance(self.sigma, str):
            raise ValueError(
                f"{type(self).__name__}: sigma is {self.sigma!r}, which a learner finds from the rows; "
                "give a number, or call with_bandwidth(sigma) first"
            )
        return float(self.sigma)


@dataclass(frozen=True)
class Gaussian(_Fourier):
    """k(x, y) = exp(-|x - y|^2 / (2 sigma^2)); frequencies N(0, I / sigma^2).

    Parameters
    ----------
    sigma : float or "median"
        Bandwidth, in the units of the (scaled) columns; "median" is the median distance between rows.
    sampling : {"iid", "orthogonal", "structured"}
        Independent rows; blocks of orthogonal rows; or rows of products of signs and Walsh-Hadamard transforms.
    pairing : {"cos-sin", "phase"}
        Two columns a frequency, or one cosine with a uniform phase.

    Examples
    --------
    >>> from dkl.features.families import Gaussian
    >>> Gaussian(sigma=2.0).draw(100, n_columns=5, seed=0).n_features
    200
    """

    sigma: Bandwidth = "median"
    sampling: Sampling = "iid"
    pairing: Pairing = "cos-sin"
    norm: ClassVar[Norm | None] = "l2"
    is_elementary = True

    def of_distances(self, distances: np.ndarray) -> np.ndarray:
        return np.exp(-0.5 * np.square(distances))


@dataclass(frozen=True)
class Laplacian(_Fourier):
    """k(x, y) = exp(-|x - y|_1 / sigma); frequencies Cauchy distributed, column by column.

    Parameters
    ----------
    sigma : float or "median"
        As for `Gaussian`.
    sampling : {"iid"}
        Independent rows only, since the frequencies are not isotropic.
    pairing : {"cos-sin", "phase"}
        As for `Gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> dkl.Laplacian(sigma=1.0).kernel(np.array([[0.0, 0.0], [1.0, 1.0]])).round(3)
    array([[1.   , 0.135],
           [0.135, 1.   ]])
    """

    sigma: Bandwidth = "median"
    sampling: Sampling = "iid"
    pairing: Pairing = "cos-sin"
    isotropic: ClassVar[bool] = False
    norm: ClassVar[Norm | None] = "l1"
    is_elementary = True

    def _rows(self, generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        # The Fourier transform of exp(-|t|) is the Cauchy density, and that of 1 / (1 + t^2) the Laplace density.
        return generator.standard_cauchy(shape)

    def of_distances(self, distances: np.ndarray) -> np.ndarray:
        return np.exp(-distances)


@dataclass(frozen=True)
class Cauchy(_Fourier):
    """k(x, y) = prod_c 1 / (1 + ((x_c - y_c) / sigma)^2); frequencies Laplace distributed, column by column.

    Parameters
    ----------
    sigma : float or "median"
        As for `Gaussian`.
    sampling : {"iid"}
        Independent rows only, since the frequencies are not isotropic.
    pairing : {"cos-sin", "phase"}
        As for `Gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> dkl.Cauchy(sigma=1.0).kernel(np.array([[0.0, 0.0], [1.0, 1.0]])).round(3)
    array([[1.  , 0.25],
           [0.25, 1.  ]])
    """

    sigma: Bandwidth = "median"
    sampling: Sampling = "iid"
    pairing: Pairing = "cos-sin"
    isotropic: ClassVar[bool] = False

    def _rows(self, generator: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
        return generator.laplace(size=shape)

    def _unit_kernel(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        kernel = np.ones((len(X), len(Y)))
        # A product over columns, one at a time: no array of all pairs and columns.
        for x, y in zip(X.T, Y.T, strict=True):
            kernel /= 1.0 + np.square(x[:, None] - y)
        return kernel


@dataclass(frozen=True)
class Matern(_Fourier):
    """The Matern kernel of smoothness nu; frequencies are a multivariate Student t with 2 nu degrees of freedom.

    k = 2^(1 - nu) / Gamma(nu) r^nu K_nu(r) with r = sqrt(2 nu) |x - y| / sigma (Rasmussen & Williams 2006, (4.14)):
    nu = 1/2 is exp(-|x - y| / sigma), nu -> infinity the Gaussian.

    Parameters
    ----------
    nu : float
        Smoothness, positive.
    sigma, sampling, pairing
        As for `Gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> dkl.Matern(nu=0.5, sigma=1.0).kernel(np.array([[0.0, 0.0], [3.0, 4.0]])).round(4)
    array([[1.    , 0.0067],
           [0.0067, 1.    ]])
    """

    nu: float
    sigma: Bandwidth = "median"
    sampling: Sampling = "iid"
    pairing: Pairing = "cos-sin"
    norm: ClassVar[Norm | None] = "l2"

    def validate(self) -> None:
        if not is_positive(self.nu):
            raise ValueError(f"Matern: nu is {self.nu!r}; the smoothness must be a positive finite number")
        super().validate()

    def _mixture(self, generator: np.random.Generator, size: int) -> np.ndarray:
        # A Gaussian vector divided by the root of an independent chi^2 / (2 nu) is a Student vector: the spectral law
        # of Matern.
        return np.sqrt(2.0 * self.nu / generator.chisquare(2.0 * self.nu, size))

    @property
    def is_elementary(self) -> bool:
        # for other smoothness the kernel needs a Bessel function of SciPy, which takes arrays on the host only
        return self.nu in (0.5, 1.5, 2.5)

    def of_distances(self, distances: np.ndarray) -> np.ndarray:
        r = float(np.sqrt(2.0 * self.nu)) * distances
        # For half-odd nu the kernel is exp(-r) times a polynomial, ten times as fast as the Bessel function.
        if self.nu == 0.5:
            return np.exp(-r)
        if self.nu == 1.5:
            return (1.0 + r) * np.exp(-r)
        if self.nu == 2.5:
            return (1.0 + r + r**2 / 3.0) * np.exp(-r)
        return self._bessel_kernel(r)

    def _bessel_kernel(self, r: np.ndarray) -> np.ndarray:
        """2^(1 - nu) / Gamma(nu) r^nu K_nu(r) for any nu."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            # In logarithms: r^nu is tiny where K_nu(r) is huge, and kve is K_nu(r) exp(r), which does not vanish for
            # large r.
            log_bessel = np.log(special.kve(self.nu, r)) - r
            log_kernel = (1.0 - self.nu) * np.log(2.0) - special.gammaln(self.nu) + self.nu * np.log(r) + log_bessel
        # K_nu overflows where r is much smaller than nu; there the kernel is a Gaussian up to terms of order 1/nu
        near = np.exp(-(r**2) / (4.0 * max(self.nu - 1.0, 1.0)))
        return np.where(np.isfinite(log_bessel), np.exp(log_kernel), near)


@dataclass(frozen=True)
class ArcCosine(_Drawn, WithoutBandwidth):
    """phi(x) = H(w.x) (w.x)^order, w ~ N(0, I): the arc-cosine kernels of Cho & Saul 2009, equation (1).

    k(x, y) = |x|^order |y|^order J_order(angle) / pi. A step, a ramp and a squared ramp for order 0, 1 and 2.

    Parameters
    ----------
    order : {0, 1, 2}
    sampling : {"iid", "orthogonal", "structured"}
        As for `Gaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> dkl.ArcCosine(order=1).kernel(np.array([[1.0, 0.0], [0.0, 1.0]])).round(3)
    array([[1.   , 0.318],
           [0.318, 1.   ]])
    """

    order: int = 1
    sampling: Sampling = "iid"

    def validate(self) -> None:
        if self.order not in (0, 1, 2) or isinstance(self.order, bool):
            raise ValueError(f"ArcCosine: order is {self.order!r}; it must be 0, 1 or 2")
        self._check_sampling()

    def draw(self, n_frequencies: int, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        self.validate()
        shape = _checked_shape(n_frequencies, n_columns)
        projection = self._projection(shape, seed, dtype, 1.0)
        return FeatureMap("arc-cosine", projection, np.ones(shape[0]), order=self.order)

    def feature_scale(self, n_columns: int) -> float:
        return float(np.sqrt(2.0))

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        X, Y = _pair(X, Y)
        norms = np.linalg.norm(X, axis=1)[:, None] * np.linalg.norm(Y, axis=1)
        # Rounding may take the cosine of an angle beyond 1; a row of length 0 has no angle, and its kernel is 0.
        cosine = np.clip(np.divide(X @ Y.T, norms, out=np.zeros_like(norms), where=norms > 0), -1.0, 1.0)
        angular = _ARC_COSINE[self.order](np.arccos(cosine), cosine)
        return np.where(norms > 0, norms**self.order * angular / np.pi, 0.0)


_ARC_COSINE: tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], ...] = (
    lambda angle, cosine: np.pi - angle,
    lambda angle, cosine: np.sin(angle) + (np.pi - angle) * cosine,
    lambda angle, cosine: 3.0 * np.sin(angle) * cosine + (np.pi - angle) * (1.0 + 2.0 * cosine**2),
)


@dataclass(frozen=True)
class Coordinates(WithoutBandwidth):
    """phi(x) = x_w, w uniform on the columns: the linear kernel k(x, y) = x.y, sparse rows included.

    Sinha & Duchi 2016, section 4.2. ``n_frequencies=None`` takes each column once.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> bool(np.allclose(dkl.Coordinates().kernel(X), X @ X.T))
    True
    """

    def draw(self, n_frequencies: int | None, n_columns: int, seed: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        if n_frequencies is None:
            columns = np.arange(n_columns)
        else:
            size, _ = _checked_shape(n_frequencies, n_columns)
            # Drawn with replacement, like frequencies, so that the kernel is the mean over draws.
            columns = frequencies.stream(seed, "frequencies").integers(0, n_columns, size)
        return FeatureMap("identity", ColumnProjection(columns, n_columns), np.ones(len(columns)))

    def pool(self, n_columns: int, dtype: DTypeLike = np.float32) -> FeatureMap:
        """Each column once, with amplitudes of 1."""
        return self.draw(None, n_columns, 0, dtype)

    def feature_scale(self, n_columns: int) -> float:
        return float(np.sqrt(n_columns))

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        X, Y = _pair(X, Y)
        return X @ Y.T


def is_positive(value: object) -> bool:
    """Whether a parameter is a positive, finite real number; True counts as no number."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0.0 < float(value) < np.inf


def is_count(value: object) -> bool:
    """Whether a parameter is a whole number of at least 1; True counts as no number."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def _checked_shape(n_frequencies: int, n_columns: int) -> tuple[int, int]:
    """The shape of W as Python integers; ValueError if one is not a whole number of at least 1."""
    for name, value in (("n_frequencies", n_frequencies), ("n_columns", n_columns)):
        if not is_count(value):
            raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1")
    return int(n_frequencies), int(n_columns)


def _pair(X: np.ndarray, Y: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Both arguments of a kernel as float64 rows of the same columns; without Y the kernel is of X with itself."""
    X = np.atleast_2d(np.asarray(X, dtype=np.float64))
    Y = X if Y is None else np.atleast_2d(np.asarray(Y, dtype=np.float64))
    if X.shape[1] != Y.shape[1]:
        raise ValueError(f"X has {X.shape[1]} columns and Y has {Y.shape[1]}; a kernel needs the same columns in both")
    return X, Y
