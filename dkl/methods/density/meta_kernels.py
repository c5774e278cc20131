"""Meta-kernels: kernels between frequencies, which determine how smooth a learned spectral density is to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Protocol, runtime_checkable

import numpy as np

from dkl.features.families import Gaussian, Matern, is_positive


@runtime_checkable
class MetaKernel(Protocol):
    """The interface of a meta-kernel for `dkl.methods.density.penalty`: a frozen dataclass with two methods."""

    def validate(self) -> None:
        """Raise ValueError for an invalid parameter."""
        ...

    def gram(self, W: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
        """kappa(w_i, v_j), float64 of shape (len(W), len(V)); positive semidefinite if V is W."""
        ...


class _Smooth:
    """A meta-kernel in closed form; with `even` it is kappa_e of section 3.1, the kernel of the even densities."""

    even: bool

    def validate(self) -> None:
        _check_positive(self, "length_scale")
        if not isinstance(self.even, bool | np.bool_):
            raise ValueError(f"{type(self).__name__}: even is {self.even!r}; it must be True or False")

    def gram(self, W: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
        self.validate()
        W, V = _frequencies(W, V)
        # the density of a real kernel is even: kappa_e(w, v) = (kappa(w, v) + kappa(w, -v)) / 2
        gram = self._values(W, V)
        if self.even:
            gram += self._values(W, -V)
            gram *= 0.5
        return gram

    def _values(self, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        raise TypeError(f"{type(self).__name__} does not say what its kernel is")


@dataclass(frozen=True)
class RBFMetaKernel(_Smooth):
    """kappa(w, v) = exp(-|w - v|^2 / (2 length_scale^2)), for very smooth densities; the paper's choice.

    Parameters
    ----------
    length_scale : float
        In the units of frequencies, which are those of 1 / (scaled columns).
    even : bool
        Use (kappa(w, v) + kappa(w, -v)) / 2, as the density of a real kernel is even (section 3.1).

    References
    ----------
    Shilton, Gupta, Rana, Venkatesh & Venkatesh 2022, "TRF: Learning Kernels with Tuned Random Features", section 6.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.density.meta_kernels import RBFMetaKernel
    >>> RBFMetaKernel(length_scale=2.0).gram(np.array([[0.0], [2.0]])).round(3).tolist()
    [[1.0, 0.607], [0.607, 1.0]]
    """

    length_scale: float = 1.0
    even: bool = False

    def _values(self, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        return Gaussian(sigma=self.length_scale).kernel(W, V)


@dataclass(frozen=True)
class MaternMetaKernel(_Smooth):
    """The Matern kernel of smoothness nu, for rougher densities; it tends to `RBFMetaKernel` for large nu.

    Parameters
    ----------
    length_scale : float
        As in `RBFMetaKernel`.
    nu : float
        Smoothness, positive, as in `dkl.Matern`.
    even : bool
        As in `RBFMetaKernel`.

    Examples
    --------
    >>> import dkl
    >>> dkl.TunedClassifier(meta_kernel=dkl.MaternMetaKernel(length_scale=2.0, nu=2.5)).meta_kernel.nu
    2.5
    """

    length_scale: float = 1.0
    nu: float = 1.5
    even: bool = False

    def validate(self) -> None:
        super().validate()
        _check_positive(self, "nu")

    def _values(self, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        return Matern(nu=self.nu, sigma=self.length_scale).kernel(W, V)


@dataclass(frozen=True)
class PolynomialMetaKernel(_Smooth):
    """kappa(w, v) = (constant + w.v / length_scale^2)^degree, for densities that are polynomials in w.

    With a positive constant the function 1 is in the space, so that the reference density can be reproduced exactly:
    mu-hat = 1 (footnote 1 of the paper). ``even=True`` removes the odd powers.

    Parameters
    ----------
    degree : int
        At least 1.
    constant : float
        Positive: with 0 no linear combination of the features is the function 1.
    length_scale : float
        As in `RBFMetaKernel`.
    even : bool
        As in `RBFMetaKernel`.

    Examples
    --------
    >>> import dkl
    >>> dkl.TunedClassifier(meta_kernel=dkl.PolynomialMetaKernel(degree=3)).meta_kernel.degree
    3
    """

    degree: int = 2
    constant: float = 1.0
    length_scale: float = 1.0
    even: bool = False

    def validate(self) -> None:
        super().validate()
        if not isinstance(self.degree, Integral) or isinstance(self.degree, bool) or self.degree < 1:
            raise ValueError(
                f"PolynomialMetaKernel: degree is {self.degree!r}; it must be a whole number of at least 1"
            )
        _check_positive(self, "constant")

    def _values(self, W: np.ndarray, V: np.ndarray) -> np.ndarray:
        return (self.constant + W @ V.T / self.length_scale**2) ** self.degree


@dataclass(frozen=True)
class DeltaMetaKernel:
    """kappa(w, v) = 1 if w = v, else 0: densities of frequencies are independent, as in Fourier kernel learning.

    References
    ----------
    Bazavan, Li & Sminchisescu 2012, "Fourier kernel learning"; section 2.1 of Shilton et al. 2022.

    Examples
    --------
    >>> import dkl
    >>> dkl.TunedRegressor(meta_kernel=dkl.DeltaMetaKernel()).meta_kernel
    DeltaMetaKernel()
    """

    def validate(self) -> None:
        """Do nothing, as there are no parameters."""

    def gram(self, W: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
        """1 for pairs of equal rows, else 0."""
        W, V = _frequencies(W, V)
        # equal rows get the same number, even if they are in W twice
        names = np.unique(np.concatenate([W, V]), axis=0, return_inverse=True)[1].ravel()
        return (names[: len(W), None] == names[len(W) :]).astype(np.float64)


@dataclass(frozen=True)
class SumMetaKernel:
    """A weighted sum of meta-kernels, for example of a smooth and a rough one.

    Parameters
    ----------
    kernels : tuple of MetaKernel
    weights : tuple of float, or None
        Positive, one for each kernel; None gives each the weight 1.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.density.meta_kernels import DeltaMetaKernel, RBFMetaKernel, SumMetaKernel
    >>> SumMetaKernel((RBFMetaKernel(), DeltaMetaKernel()), (1.0, 0.5)).gram(np.zeros((1, 2))).tolist()
    [[1.5]]
    """

    kernels: tuple[MetaKernel, ...]
    weights: tuple[float, ...] | None = None

    def validate(self) -> None:
        """Raise ValueError if there are no kernels, or a weight is not positive."""
        if not isinstance(self.kernels, Sequence) or not self.kernels:
            raise ValueError(
                f"SumMetaKernel: kernels is {self.kernels!r}; it must be a tuple of at least one meta-kernel"
            )
        for kernel in self.kernels:
            _checked_kernel(kernel)
        if self.weights is None:
            return
        if len(self.weights) != len(self.kernels) or not all(is_positive(weight) for weight in self.weights):
            raise ValueError(
                f"SumMetaKernel: weights is {self.weights!r}; it must hold a positive finite number for each of the "
                f"{len(self.kernels)} kernels"
            )

    def gram(self, W: np.ndarray, V: np.ndarray | None = None) -> np.ndarray:
        """The weighted sum of the kernels' values."""
        self.validate()
        weights = self.weights or (1.0,) * len(self.kernels)
        # in place, so that two matrices are in memory at once instead of one for each kernel
        gram = weights[0] * self.kernels[0].gram(W, V)
        for weight, kernel in zip(weights[1:], self.kernels[1:], strict=True):
            gram += weight * kernel.gram(W, V)
        return gram


NAMED = {
    "rbf": RBFMetaKernel,
    "matern": MaternMetaKernel,
    "polynomial": PolynomialMetaKernel,
    "delta": DeltaMetaKernel,
}


def as_meta_kernel(kernel: str | MetaKernel, length_scale: float = 1.0) -> MetaKernel:
    """The meta-kernel for a name or an object, with its parameters checked.

    Parameters
    ----------
    kernel : {"rbf", "matern", "polynomial", "delta"} or MetaKernel
        "matern" has smoothness 3/2, "polynomial" degree 2.
    length_scale : float
        For a name only: an object has its own, and "delta" ignores it unchecked.

    Returns
    -------
    MetaKernel

    Raises
    ------
    ValueError
        If the name is unknown, the object is not a meta-kernel, or a parameter is invalid.

    Examples
    --------
    >>> from dkl.methods.density.meta_kernels import as_meta_kernel
    >>> as_meta_kernel("matern", length_scale=0.5)
    MaternMetaKernel(length_scale=0.5, nu=1.5, even=False)
    """
    if isinstance(kernel, str) and kernel in NAMED:
        kernel = NAMED[kernel]() if kernel == "delta" else NAMED[kernel](length_scale=length_scale)
    return _checked_kernel(kernel)


def _checked_kernel(kernel: object) -> MetaKernel:
    """The object itself; ValueError if it is not a meta-kernel with valid parameters."""
    # a class has the methods, but no parameters
    if isinstance(kernel, type) or not isinstance(kernel, MetaKernel):
        raise ValueError(
            f"meta_kernel is {kernel!r}; it must be one of {sorted(NAMED)}, or an object with validate() and gram(W, "
            "V), such as RBFMetaKernel(length_scale=1.0)"
        )
    kernel.validate()
    return kernel


def _check_positive(kernel: _Smooth, name: str) -> None:
    """Raise ValueError if a parameter is not a positive finite number."""
    value = getattr(kernel, name)
    if not is_positive(value):
        raise ValueError(f"{type(kernel).__name__}: {name} is {value!r}; it must be a positive finite number")


def _frequencies(W: np.ndarray, V: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Both as float64 matrices with the same number of columns."""
    # always float64: eigenvalues of smooth meta-kernels are below the rounding errors of float32
    W = np.asarray(W, dtype=np.float64)
    V = W if V is None else np.asarray(V, dtype=np.float64)
    if W.ndim != 2 or V.ndim != 2 or W.shape[1] != V.shape[1]:
        raise ValueError(f"frequencies of shapes {W.shape} and {V.shape}: both must be matrices of the same columns")
    return W, V
