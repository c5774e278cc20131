"""Gram matrices of mapped rows: packed triangles of sum_i weight_i (phi_i, 1) (phi_i, 1)^T, on the CPU and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dkl.kernels.compiled import njit
from dkl.kernels.device import (
    add_picked_products,
    array_module,
    is_on_gpu,
    packed_on_gpu,
    rounded_product,
    sums_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.threads import product
from dkl.kernels.tiles import spans
from dkl.process import TwoForms
from dkl.protocols.records import LARGEST_ACCUMULATOR

# Limits the rows of a GPU's sums in float32: longer sums would lose digits.
PRODUCT_ROWS = 8192
# The most features whose whole packed Gram matrix, with the constant feature, is one accumulator: m features have
# (m + 1)(m + 2) / 2 numbers of 8 bytes.
MOST_IN_ONE_GRAM = math.isqrt(LARGEST_ACCUMULATOR // 4) - 2


def packed_size(start: int, stop: int) -> int:
    """Numbers in columns start .. stop - 1 of an upper triangle, packed column by column down to the diagonal."""
    return (stop * (stop + 1) - start * (start + 1)) // 2


def gram_scratch(
    n_features: int,
    columns: tuple[int, int],
    itemsize: int,
    *,
    tile: int,
    n_sums: int = 1,
    has_both_signs: bool = False,
) -> int:
    """Bytes that `GramSum`s of a block on the host hold at most, beside their sums.

    Parameters
    ----------
    n_features : int
        m.
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1.
    itemsize : int
        Bytes of a mapped number.
    tile : int
        The most rows that are added at once.
    n_sums : int
        Sums with weights of their own.
    has_both_signs : bool
        Whether some rows of a product may have positive and others negative weights.
    """
    start, stop = columns
    is_whole = start == 0 and stop > n_features
    # A tile of more rows than features is multiplied at once, in copies of its features. The whole matrix takes one
    # copy: rows times the square roots of their weights. A panel of columns takes two: the rows whose weight is not 0,
    # and these rows times their weights.
    copies = (1 if is_whole else 2) if tile > n_features else 0
    # Each sum collects up to n_features rows of smaller tiles, and multiplies them in place; a panel needs a copy.
    waiting = n_features * (n_sums + (0 if is_whole else 1))
    products = min(stop, n_features) - min(start, n_features)
    products *= 2 if has_both_signs and is_whole else 1
    return itemsize * n_features * ((1 + copies) * tile + waiting + products)


def packed_panels(width: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Panels of columns of a packed float64 triangle, each of at most `nbytes` bytes or of a single column."""
    start = 0
    while start < width:
        # most triangles fit as a whole
        stop = width if 8 * packed_size(start, width) <= nbytes else start + 1
        while stop < width and 8 * packed_size(start, stop + 1) <= nbytes:
            stop += 1
        yield start, stop
        start = stop


def add_hessian(
    phi: np.ndarray, weight: np.ndarray, columns: tuple[int, int], out: np.ndarray, *, overwrite: bool = False
) -> None:
    """Add columns of the upper triangle of sum_i weight_i (phi_i, 1) (phi_i, 1)^T to `out`, packed.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    weight : ndarray of shape (n,)
        Positive, negative or zero.
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1 columns; the last one is that of the intercept.
    out : ndarray of shape (packed_size(start, stop),), float64
    overwrite : bool
        Whether the mapped rows may be changed, which saves a copy of them.
    """
    start, stop = columns
    m = phi.shape[1]
    if stop > m:
        # the column of the intercept: sums of the features, then the sum of the weights
        border = product(weight.astype(phi.dtype), phi)
        out[-m - 1 : -1] += border
        out[-1] += weight.sum()
    # All columns at once cost half a general product, as a symmetric one; of a panel, only the rows down to its last
    # column are computed.
    if start == 0 and stop > m:
        _add_packed(signed_products(phi, weight, overwrite=overwrite), start, out)
    elif start < m:
        used = np.flatnonzero(weight)
        phi, weight = (phi, weight) if len(used) == len(phi) else (phi[used], weight[used])
        weighted = phi if np.all(weight == 1.0) else phi * weight.astype(phi.dtype)[:, None]
        _add_packed(weighted[:, start : min(stop, m)].T @ phi[:, : min(stop, m)], start, out)


class GramSum:
    """Columns of the upper triangle of sum_i weight_i (phi_i, 1) (phi_i, 1)^T over tiles of rows, packed.

    Few rows of many tiles in memory are collected, so that products by `add_hessian` have as many rows as columns.
    Products of rows on a GPU are computed there in the rows' precision and added there in float64; only their total is
    copied to the host.

    Parameters
    ----------
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1 columns; the last one is that of the intercept.
    out : ndarray of shape (packed_size(start, stop),), float64
        The sums are added to it, by `finish` at the latest.
    rounded : bool
        Whether a GPU may round float32 rows to the 10 bits of its tensor cores.
    """

    def __init__(self, columns: tuple[int, int], out: np.ndarray, *, rounded: bool = False) -> None:
        self._columns, self._out, self._rounded = columns, out, rounded
        self._waiting, self._weights, self._n_waiting = np.empty((0, 0)), np.empty(0), 0
        self._on_gpu_sums: dict[str, Any] = {}

    def add(self, phi: Any, weight: Any) -> None:
        """Add the products of mapped rows (n, m), with weights (n,) that may be negative or zero.

        For rows on a GPU the weights may be on it too, or None if all are 1.
        """
        if is_on_gpu(phi):
            self._add_on_gpu(phi, weight)
            return
        used, most = np.flatnonzero(weight), phi.shape[1]
        end = self._n_waiting + len(used)
        # at most as many rows as features wait, which take as much memory as the sum
        if end > most:
            self._multiply_waiting()
            end = len(used)
        if len(used) > most:
            add_hessian(phi, weight, self._columns, self._out)
        elif len(used):
            if not len(self._waiting):
                self._waiting, self._weights = np.empty((most, most), phi.dtype), np.empty(most)
            # written in place, in a mode that needs no copy: a second array of this size would exist otherwise
            np.take(phi, used, axis=0, out=self._waiting[self._n_waiting : end], mode="clip")
            self._weights[self._n_waiting : end] = weight[used]
            self._n_waiting = end

    def _multiply_waiting(self) -> None:
        """Add the products of the waiting rows."""
        if self._n_waiting:
            rows, weights = self._waiting[: self._n_waiting], self._weights[: self._n_waiting]
            add_hessian(rows, weights, self._columns, self._out, overwrite=True)
        self._n_waiting = 0

    def _add_on_gpu(self, phi: Any, weight: Any) -> None:
        """Add the products of rows on a GPU, without copying them to the host."""
        xp, (start, stop), m = array_module(phi), self._columns, phi.shape[1]
        if isinstance(weight, np.ndarray):
            # weights on the host show which rows to select, without waiting for the GPU
            used = np.flatnonzero(weight)
            if len(used) < len(weight):
                phi, weight = rows_at(phi, used), weight[used]
            if not len(used):
                return
            weight = None if np.all(weight == 1.0) else xp.asarray(weight, dtype=np.float64)
        weighted = phi if weight is None else phi * weight.astype(phi.dtype)[:, None]
        left, right = weighted[:, start : min(stop, m)].T, phi[:, : min(stop, m)]
        rounded = self._rounded and phi.dtype == np.float32
        products = rounded_product(left, right).astype(np.float64) if rounded else summed_product(left, right)
        parts: dict[str, Any] = {"products": products}
        if stop > m:
            # the column of the intercept: sums of the features, then the sum of the weights
            weight = xp.ones(len(phi)) if weight is None else weight.astype(np.float64)
            parts["border"] = xp.concat([weighted_rows_on_gpu(weight[None], phi)[0], weight.sum()[None]])
        self._add_to_gpu_sums(parts)

    def add_picked(self, phi: Any, picked: tuple[Any, Any, Any], border: Any) -> None:
        """Add the products of the picked rows on a GPU; `picked` as in `add_picked_products`.

        `border` (m + 1,) holds the sums of the features and of the weights.
        """
        xp, (start, stop), m = array_module(phi), self._columns, phi.shape[1]
        last = min(stop, m)
        if "products" not in self._on_gpu_sums:
            self._on_gpu_sums["products"] = xp.zeros((max(last - start, 0), last))
        add_picked_products(phi, picked, (start, last), self._on_gpu_sums["products"])
        if stop > m:
            self._add_to_gpu_sums({"border": border})

    def _add_to_gpu_sums(self, parts: dict[str, Any]) -> None:
        """Add sums to those on the GPU."""
        for name, part in parts.items():
            if name in self._on_gpu_sums:
                self._on_gpu_sums[name] += part
            else:
                self._on_gpu_sums[name] = part

    def on_gpu(self) -> dict[str, Any]:
        """The sums that are on a GPU, to be copied to the host with others and then given to `take`."""
        products = self._on_gpu_sums.get("products")
        if products is not None and products.ndim == 2:
            self._on_gpu_sums["products"] = packed_on_gpu(products, self._columns[0])
        return self._on_gpu_sums

    def take(self, parts: dict[str, np.ndarray]) -> None:
        """Add the sums of `on_gpu`, which are on the host now."""
        self._on_gpu_sums = {}
        if "products" in parts:
            self._out[: len(parts["products"])] += parts["products"]
        if "border" in parts:
            self._out[-len(parts["border"]) :] += parts["border"]

    def finish(self) -> None:
        """Add waiting rows, and sums that are still on a GPU, to `out`."""
        self._multiply_waiting()
        self.take(sums_on_host(self.on_gpu()))


def add_few(grams: Sequence[GramSum], phi: Any, weights: Sequence[Any]) -> None:
    """Add rows on a GPU to each sum, for weights (n,) of which few are not 0: rows of weight 0 cost next to nothing.

    The number of other rows is not copied to the host.
    """
    if not grams:
        return
    xp, of_sums = array_module(phi), array_module(phi).stack(list(weights))
    is_picked = of_sums != 0.0
    # rows of weights other than 0 first, in their order
    order = xp.argsort(~is_picked, axis=1, kind="stable").astype(np.int32)
    counts = is_picked.sum(axis=1).astype(np.int32)
    borders = xp.concat([weighted_rows_on_gpu(of_sums, phi), of_sums.sum(axis=1)[:, None]], axis=1)
    for number, gram in enumerate(grams):
        gram.add_picked(phi, (of_sums[number], order[number], counts[number : number + 1]), borders[number])


def finished(sums: dict[str, Any], grams: Sequence[GramSum]) -> dict[str, Any]:
    """The named sums on the host, after finishing those of the Gram matrices: a GPU copies all of them in one wait."""
    parts = {(number, name): part for number, gram in enumerate(grams) for name, part in gram.on_gpu().items()}
    on_host: dict[Any, Any] = sums_on_host({**sums, **parts})  # type: ignore[dict-item]
    for number, gram in enumerate(grams):
        gram.take({name: on_host.pop((number, name)) for name in gram.on_gpu()})
        gram.finish()
    return on_host


class CurvedRows:
    """Collects the mapped rows of a block that have curvature, until there are enough for efficient products.

    Rows are mapped a few at a time, so that they stay in the cache while losses and gradients are summed; a product
    needs as many rows as possible.

    Parameters
    ----------
    hessians : sequence of GramSum
        The sums that the products are added to.
    buffer : ndarray of shape (rows, m)
        Buffer that rows in memory are mapped to, and collected in.
    """

    def __init__(self, hessians: Sequence[GramSum], buffer: np.ndarray) -> None:
        self._hessians = hessians
        self._buffer = buffer
        self._weights = np.empty((len(buffer), len(hessians)))
        self._n_collected = 0

    @property
    def most_rows(self) -> int:
        """The largest number of rows for `free`."""
        return max(1, len(self._buffer))

    def free(self, n_rows: int) -> np.ndarray:
        """The part of the buffer for the next rows, of shape (n_rows, m)."""
        if self._n_collected + n_rows > len(self._buffer):
            self._multiply()
        return self._buffer[self._n_collected : self._n_collected + n_rows]

    def add(self, phi: np.ndarray, weights: np.ndarray) -> None:
        """Add rows (n, m) from `free`, with weights (n, h) that may be negative or zero."""
        curved = np.flatnonzero(weights.any(axis=1))
        end = self._n_collected + len(curved)
        if len(curved) < len(phi):
            weights, phi[: len(curved)] = weights[curved], phi[curved]
        self._weights[self._n_collected : end] = weights
        self._n_collected = end

    def finish(self) -> None:
        """Add all collected rows to the sums."""
        self._multiply()
        for hessian in self._hessians:
            hessian.finish()

    def _multiply(self) -> None:
        """Add the collected rows to the sums, and empty the buffer."""
        if self._n_collected:
            for hessian, own in zip(self._hessians, self._weights[: self._n_collected].T, strict=True):
                hessian.add(self._buffer[: self._n_collected], own)
        self._n_collected = 0


def summed_product(left: Any, right: Any) -> Any:
    """The product of (p, n) and (n, q), on their device; on a GPU products of spans of the n rows add up in float64."""
    if not is_on_gpu(left):
        return product(left, right)
    xp, total = array_module(left), None
    for rows in spans(right.shape[0], PRODUCT_ROWS):
        part = xp.matmul(left[:, rows], right[rows]).astype(np.float64)
        total = part if total is None else total + part
    return xp.zeros((left.shape[0], right.shape[1])) if total is None else total


def signed_products(phi: Any, weight: np.ndarray, *, overwrite: bool = False) -> Any:
    """phi^T diag(weight) phi, of shape (m, m), by half the work of a product; on the device of phi.

    With `overwrite` rows on the host may be changed, which saves a copy of them.
    """
    if is_on_gpu(phi):
        return summed_product((phi * array_module(phi).asarray(weight.astype(phi.dtype))[:, None]).T, phi)
    products: Any = None
    # NumPy uses BLAS's symmetric product, without the interpreter's lock, only if an array is multiplied by its own
    # transpose. So rows are multiplied by the square roots of their weights, and those of negative weight, which lost
    # their curvature, are subtracted as a separate product.
    for sign in (1.0, -1.0):
        rows = np.flatnonzero(sign * weight > 0.0)
        if not len(rows):
            continue
        is_own = overwrite or len(rows) < len(phi)
        signed, size = phi if len(rows) == len(phi) else phi[rows], sign * weight[rows]
        if not np.all(size == 1.0):
            signed = np.multiply(signed, np.sqrt(size).astype(phi.dtype)[:, None], out=signed if is_own else None)
        part = signed.T @ signed
        if products is None:
            products = part if sign > 0.0 else np.negative(part, out=part)
        else:
            products -= part
    return np.zeros((phi.shape[1],) * 2, phi.dtype) if products is None else products


def _add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """Add entries (j, 0 .. start + j) of `products` to `out`, row after row."""
    _PACKED(products.size, products, start, out)


def _few_add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """`_add_packed` in NumPy."""
    first = 0
    for width, row in enumerate(products, start + 1):
        out[first : first + width] += row[:width]
        first += width


@njit(nogil=True)
def _many_add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """`_add_packed` without the interpreter's lock, which NumPy would take for every row."""
    first = 0
    for j in range(len(products)):
        for i in range(start + j + 1):
            out[first + i] += products[j, i]
        first += start + j + 1


# NumPy takes 1.3 microseconds a row, and the interpreter's lock for each.
_PACKED = TwoForms(_few_add_packed, _many_add_packed, 60_000_000)


def rows_at(phi: Any, numbers: np.ndarray) -> Any:
    """Some rows of mapped ones, on their device."""
    xp = array_module(phi)
    return phi[numbers] if xp is np else xp.take(phi, xp.asarray(numbers), axis=0)
