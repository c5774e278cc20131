"""Activations: the functions of one linear form of a row whose values are features, with their table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np


@dataclass(frozen=True)
class Activation(ABC):
    """A function of the linear form z = w.x + b of a row and a frequency; its values are features.

    A subclass is a frozen dataclass. Feature maps hold one of ours by its name in `ACTIVATIONS`, and any other as an
    object, so that workers receive it and model files name its class. Maps, sums, predictors and ONNX graphs compute
    `values`, in the functions of NumPy, CuPy or the graph, on tiles of linear forms. Waves alone have compiled kernels
    (`dkl.kernels.sincos`, CUDA sources) that compute the same numbers faster.
    """

    # whether values are cosines, or pairs of cosines and sines, which have compiled kernels
    is_wave: ClassVar[bool] = False
    # NumPy functions of one array that give the single value of z, one applied to the result of the other; pipelines
    # of scikit-learn consist of them. None if there are no such functions, and `to_sklearn` is refused.
    numpy_functions: ClassVar[tuple[Callable[[np.ndarray], np.ndarray], ...] | None] = None

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The name of each value, as in "cos(age)"; a frequency has one column of features for each."""

    @abstractmethod
    def values(self, xp: ModuleType, z: Any) -> Sequence[Any]:
        """The features without amplitudes, one array of shape (n, m) for each of `names`.

        Parameters
        ----------
        xp : array namespace of `z`
            That of a graph has the functions of `dkl.export.onnx_graph.SymbolNamespace` only.
        z : array of shape (n, m)
            The linear forms w.x + b of n rows and m frequencies.
        """

    def slopes(self, xp: ModuleType, z: Any) -> Sequence[Any] | None:
        """The derivatives of `values` in z; None if they have none, or none is known: then no gradients are offered."""
        return None


@dataclass(frozen=True)
class Pair(Activation):
    """cos z and sin z, the real and the imaginary part of exp(i z)."""

    names = ("cos", "sin")
    is_wave = True

    def values(self, xp: ModuleType, z: Any) -> Sequence[Any]:
        return [xp.cos(z), xp.sin(z)]

    def slopes(self, xp: ModuleType, z: Any) -> Sequence[Any] | None:
        return [-xp.sin(z), xp.cos(z)]


@dataclass(frozen=True)
class Cosine(Activation):
    """cos z."""

    names = ("cos",)
    is_wave = True

    def values(self, xp: ModuleType, z: Any) -> Sequence[Any]:
        return [xp.cos(z)]

    def slopes(self, xp: ModuleType, z: Any) -> Sequence[Any] | None:
        return [-xp.sin(z)]


@dataclass(frozen=True)
class Ramp(Activation):
    """H(z) z^order: a step (0 at z = 0), a ramp, a squared ramp.

    Parameters
    ----------
    order : {0, 1, 2}
    """

    order: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (("step", "relu", "relu2")[self.order],)

    def values(self, xp: ModuleType, z: Any) -> Sequence[Any]:
        zero = xp.zeros_like(z)
        if self.order == 0:
            return [xp.where(z > 0, xp.ones_like(z), zero)]
        # numbers that are not positive are replaced before squaring, so that they cannot overflow
        positive = xp.where(z > 0, z, zero)
        return [positive if self.order == 1 else positive * positive]

    def slopes(self, xp: ModuleType, z: Any) -> Sequence[Any] | None:
        return None if self.order == 0 else [self.order * Ramp(self.order - 1).values(xp, z)[0]]


@dataclass(frozen=True)
class Identity(Activation):
    """z itself: columns, and other linear forms."""

    names = ("",)
    numpy_functions = ()

    def values(self, xp: ModuleType, z: Any) -> Sequence[Any]:
        return [z]

    def slopes(self, xp: ModuleType, z: Any) -> Sequence[Any] | None:
        return [xp.ones_like(z)]


ACTIVATIONS: dict[str, Activation] = {
    "cos-sin": Pair(),
    "cos": Cosine(),
    "arc-cosine": Ramp(),
    "identity": Identity(),
}
"""The activations that feature maps and model files hold by name; the order of an "arc-cosine" map is its own."""


def function_of(activation: str | Activation, order: int = 0) -> Activation | None:
    """The function of one linear form that a feature map's activation stands for.

    None for maps whose features are no such function: harmonics, similarities, products of steps, combinations.
    """
    found = activation if isinstance(activation, Activation) else ACTIVATIONS.get(activation)
    return replace(found, order=order) if isinstance(found, Ramp) else found
