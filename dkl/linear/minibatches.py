"""Minibatches of mapped rows in shuffled order, prepared in parallel while stochastic steps use earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.device import array_module, arrived, is_on_gpu, on_host, sent
from dkl.kernels.gram import rows_at
from dkl.kernels.maps import row_tile
from dkl.protocols.arrays import as_columns
from dkl.protocols.block import Block
from dkl.protocols.held_together import places
from dkl.solvers.losses import namespace_of

# A minibatch stays far below the 64 MiB of a tile, since several exist at once, and since an estimator that takes one
# step for each minibatch converges more smoothly with small ones.
_TILE_ROWS = 4096
_RAW_BYTES = 64 << 20
# The random orders of the rows of the last blocks, half a megabyte each, and the most of them: the minibatches of a
# block are computed shortly after each other.
_ORDERS: WeakKeyDictionary[Block, tuple[Any, np.ndarray]] = WeakKeyDictionary()
_MOST_ORDERS = 8


@dataclass(frozen=True, eq=False)
class Minibatch:
    """Mapped rows with their targets and weights.

    Parameters
    ----------
    phi : ndarray or CuPy array of shape (n, m)
        Mapped rows (the rows themselves where there is no feature map), centred; on the device that mapped them. Sent
        to another process, they go to its GPU, or to its memory where it has none.
    y : array of shape (n,) or (n, t)
        Labels or targets; numbers are on the device of phi; of shape (n, 0) if the rows have none.
    weight : array of shape (n,) or None
    order : ndarray of shape (n,), int64, or None
        The order in which steps use the rows; None is the stored order.
    """

    phi: Any
    y: np.ndarray
    weight: np.ndarray | None
    order: np.ndarray | None = None

    def __reduce__(self) -> tuple[Callable[..., Minibatch], tuple[Any, ...]]:
        return _received_minibatch, (*map(sent, (self.phi, self.y, self.weight)), self.order)

    @property
    def ordered(self) -> Minibatch:
        """The minibatch with its rows sorted into `order`."""
        if self.order is None:
            return self
        order, order_there = self.order, array_module(self.phi).asarray(self.order)

        def reordered(part: Any) -> Any:
            return None if part is None else rows_at(part, order_there if is_on_gpu(part) else order)

        return Minibatch(reordered(self.phi), reordered(self.y), reordered(self.weight))


@dataclass(frozen=True)
class HeldOut:
    """The held-out rows: a share of all rows, by a hash, by group or by time (`dkl.protocols.held_together`).

    Parameters
    ----------
    share : float
        0 holds out nothing.
    seed : int
    first : float
        Where the share begins on the circle [0, 1) of hashes; with a share of 0.2, the values 0, 0.2, ... are five
        folds.
    """

    share: float = 0.0
    seed: int = 0
    first: float = 0.0

    def mask(self, held_with: np.ndarray) -> np.ndarray:
        """Which rows are held out, (n,) bool, independent of the blocks."""
        return self.fraction(held_with) < self.share

    def rest(self, held_with: np.ndarray) -> np.ndarray:
        """Which rows are not held out, (n,) bool."""
        return ~self.mask(held_with)

    def fraction(self, held_with: np.ndarray) -> np.ndarray:
        """The distance in [0, 1) of each row's hash from the beginning of the share: (n,) float64."""
        return (places(held_with, self.seed) - self.first) % 1.0


@dataclass(frozen=True, eq=False)
class RowTargets:
    """The conversion of a block's y and weights into the targets and weights that an estimator receives.

    Parameters
    ----------
    classes : ndarray of shape (K,) or None
        Labels in place of class codes.
    class_weight : ndarray of shape (K,) or None
    weight_scale : float
        The number of rows over the sum of their weights, which makes the mean weight 1.
    center, scale : float or ndarray of shape (t,)
        Regression targets become ``(y - center) / scale``.
    n_quantiles : int
        Each regression target is repeated for this many models.
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
        """Labels (n,), standardised targets (n,) or one for each model (n, K), or (n, 0) if the rows have no target."""
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
        return xp.repeat(as_columns(targets), self.n_quantiles, axis=1)

    def signed(self, block: Block) -> np.ndarray:
        """The targets of each linear model, (n, K): `signs` of classes, else standardised targets."""
        if self.classes is not None:
            return signs(namespace_of(block.y).asarray(block.y), len(self.classes))
        return as_columns(namespace_of(block.y).asarray(self.targets(block), dtype=np.float64))


def signs(codes: np.ndarray, n_classes: int) -> np.ndarray:
    """-1 and +1 for class codes (n,), on their device: (n, K), one class against the rest, or (n, 1) of two classes."""
    xp = namespace_of(codes)
    models = xp.ones(1) if n_classes == 2 else xp.arange(n_classes)
    return xp.where(xp.asarray(codes)[:, None] == models, 1.0, -1.0)


def minibatch_rows(feature_map: FeatureMap | None, dtype: str, row_bytes: int = 0) -> int:
    """Rows of a minibatch, from dtype and features alone, so that the fitted bits never depend on memory.

    Parameters
    ----------
    feature_map : FeatureMap or None
    dtype : {"float32", "float64"}
        Of mapped rows.
    row_bytes : int
        The bytes of a row, where there is no feature map.
    """
    if feature_map is None:
        return max(1, min(_TILE_ROWS, _RAW_BYTES // max(row_bytes, 1)))
    return min(_TILE_ROWS, row_tile(feature_map, dtype))


def fitted_rows(block: Block, held_out: HeldOut) -> np.ndarray:
    """The positions of the rows that are not held out, (n,) int64."""
    return np.flatnonzero(held_out.rest(block.held_with)) if held_out.share > 0.0 else np.arange(block.n_rows)


def shuffled_rows(block: Block, held_out: HeldOut, seeds: tuple[int, ...]) -> np.ndarray:
    """`fitted_rows` in a random order, which is computed once for all minibatches of a block."""
    key, known = (held_out, seeds), _ORDERS.get(block)
    if known is not None and known[0] == key:
        return known[1]
    order = np.random.default_rng(seeds).permutation(fitted_rows(block, held_out))
    if len(_ORDERS) >= _MOST_ORDERS:
        _ORDERS.clear()
    _ORDERS[block] = key, order
    return order


def _received_minibatch(
    phi: tuple[Any, bool], y: tuple[Any, bool], weight: tuple[Any, bool], order: np.ndarray | None
) -> Minibatch:
    """The minibatch in the process that receives it."""
    return Minibatch(arrived(*phi), arrived(*y), arrived(*weight), order)
