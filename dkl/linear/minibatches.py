"""What a stochastic step sees: minibatches of mapped rows in a shuffled order, made in parallel ahead of the steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import array_module, arrived, is_on_gpu, on_host, sent
from dkl.kernels.maps import row_tile
from dkl.kernels.newton.gram import rows_at
from dkl.protocols.block import Block
from dkl.protocols.held_together import places
from dkl.solvers.losses import namespace_of

# A minibatch stays well below the 64 MiB that a tile may have: several are alive at once, made ahead of the steps, and
# an estimator that takes a whole minibatch as one step moves more finely with small ones.
_TILE_ROWS = 4096
_RAW_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Mapped rows with their targets and weights.

    Parameters
    ----------
    phi : ndarray or CuPy array of shape (n, m)
        Mapped rows (the rows themselves where there is no feature map), less the centre; on the device that mapped
        them. Another process gets them on its own device, and on the host where it has no GPU.
    y : array of shape (n,) or (n, t)
        Labels or targets, where the rows are if they are numbers; of shape (n, 0) where the rows have none.
    weight : array of shape (n,) or None
    order : ndarray of shape (n,), int64, or None
        In which order the rows are stepped through; None is as they stand.
    """

    phi: Any
    y: np.ndarray
    weight: np.ndarray | None
    order: np.ndarray | None = None

    def __reduce__(self) -> tuple[Callable[..., Minibatch], tuple[Any, ...]]:
        return _arrived, (*map(sent, (self.phi, self.y, self.weight)), self.order)

    @property
    def ordered(self) -> Minibatch:
        """The same, its rows standing in their order."""
        if self.order is None:
            return self
        order, order_there = self.order, array_module(self.phi).asarray(self.order)

        def reordered(part: Any) -> Any:
            return None if part is None else rows_at(part, order_there if is_on_gpu(part) else order)

        return Minibatch(reordered(self.phi), reordered(self.y), reordered(self.weight))


@dataclass(frozen=True)
class HeldOut:
    """The rows kept from fitting: a share of all rows, by a hash, by group or by time (`dkl.protocols.held_together`).

    Parameters
    ----------
    share : float
        0 holds out nothing.
    seed : int
    first : float
        Where the share begins on the circle of hashes: 0, 0.2, 0.4, ... are the folds of a cross-validation.
    """

    share: float = 0.0
    seed: int = 0
    first: float = 0.0

    def mask(self, held_with: np.ndarray) -> np.ndarray:
        """Which rows are held out: (n,) bool, the same whatever the blocks are."""
        return self.fraction(held_with) < self.share

    def fraction(self, held_with: np.ndarray) -> np.ndarray:
        """How far behind the beginning of the share the place of each row is, in [0, 1): (n,) float64."""
        return (places(held_with, self.seed) - self.first) % 1.0


@dataclass(frozen=True, eq=False)
class RowTargets:
    """How the y and the weights of a block become what an estimator is given.

    Parameters
    ----------
    classes : ndarray of shape (K,) or None
        Labels in place of class codes.
    class_weight : ndarray of shape (K,) or None
    weight_scale : float
        n over the sum of all weights: the mean loss is over the weights, whatever their unit.
    center, scale : float or ndarray of shape (t,)
        Regression targets become ``(y - center) / scale``.
    n_quantiles : int
        So many models are of each regression target.
    """

    classes: np.ndarray | None = None
    class_weight: np.ndarray | None = None
    weight_scale: float = 1.0
    center: float | np.ndarray = 0.0
    scale: float | np.ndarray = 1.0
    n_quantiles: int = 1

    def weights(self, block: Block) -> np.ndarray | None:
        """Weights of mean 1, or None where all of them are 1."""
        if self.class_weight is not None:
            xp = namespace_of(block.y)
            return block.weights * xp.take(xp.asarray(self.class_weight), block.y) * self.weight_scale
        return None if block.weight is None else block.weight * self.weight_scale

    def targets(self, block: Block) -> np.ndarray:
        """Labels (n,), standardised targets (n,) or one a model (n, K), or (n, 0) where the rows have no target."""
        if block.y is None:
            return np.empty((block.n_rows, 0))
        if self.classes is not None:
            if is_on_gpu(block.y) and self.classes.dtype.kind in "iufb":
                return array_module(block.y).take(array_module(block.y).asarray(self.classes), block.y)
            return self.classes[on_host(block.y)]
        xp = namespace_of(block.y)
        targets = (block.y - xp.asarray(self.center)) / xp.asarray(self.scale)
        if self.n_quantiles == 1:
            return targets
        return xp.repeat(xp.reshape(targets, (block.n_rows, -1)), self.n_quantiles, axis=1)

    def signed(self, block: Block) -> np.ndarray:
        """The targets of each linear model, (n, K): `signs` of classes, else standardised targets."""
        if self.classes is not None:
            return signs(namespace_of(block.y).asarray(block.y), len(self.classes))
        return namespace_of(block.y).asarray(self.targets(block), dtype=np.float64).reshape(block.n_rows, -1)


def signs(codes: np.ndarray, n_classes: int) -> np.ndarray:
    """-1 and +1 of class codes (n,), where these are: (n, K) one class against the rest, or (n, 1) of two classes."""
    xp = namespace_of(codes)
    models = xp.ones(1) if n_classes == 2 else xp.arange(n_classes)
    return xp.where(xp.asarray(codes)[:, None] == models, 1.0, -1.0)


def minibatch_rows(feature_map: FeatureMap | None, dtype: str, row_bytes: int = 0) -> int:
    """The rows of a minibatch; they follow from dtype and features alone, so that the bits never depend on the memory.

    Parameters
    ----------
    feature_map : FeatureMap or None
    dtype : {"float32", "float64"}
        Of mapped rows.
    row_bytes : int
        The bytes of a row that is not mapped.
    """
    if feature_map is None:
        return max(1, min(_TILE_ROWS, _RAW_BYTES // max(row_bytes, 1)))
    return min(_TILE_ROWS, row_tile(feature_map, dtype))


def _arrived(
    phi: tuple[Any, bool], y: tuple[Any, bool], weight: tuple[Any, bool], order: np.ndarray | None
) -> Minibatch:
    """The minibatch in the process that it was sent to."""
    return Minibatch(arrived(*phi), arrived(*y), arrived(*weight), order)
