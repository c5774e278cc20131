"""Gram matrices of mapped rows: packed triangles of sum_i weight_i (phi_i, 1) (phi_i, 1)^T, on the CPU and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numba
import numpy as np

from dkl.kernels.blas import product
from dkl.kernels.device import (
    add_picked_products,
    array_module,
    is_on_gpu,
    packed_on_gpu,
    rounded_product,
    together_on_host,
    weighted_rows_on_gpu,
)
from dkl.kernels.tiles import spans
from dkl.process import TwoForms

# Rows of which a GPU adds up products in float32, at most: a longer sum would lose digits.
PRODUCT_ROWS = 8192


def packed_size(start: int, stop: int) -> int:
    """Numbers in columns start .. stop - 1 of an upper triangle, packed column by column down to the diagonal."""
    return (stop * (stop + 1) - start * (start + 1)) // 2


def packed_panels(width: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Columns of a packed triangle of float64, cut so that a panel has at most so many bytes, or one column."""
    start = 0
    while start < width:
        stop = start + 1
        while stop < width and 8 * packed_size(start, stop + 1) <= nbytes:
            stop += 1
        yield start, stop
        start = stop


def add_hessian(phi: np.ndarray, weight: np.ndarray, columns: tuple[int, int], out: np.ndarray) -> None:
    """Add columns of the upper triangle of sum_i weight_i (phi_i, 1) (phi_i, 1)^T to `out`, packed.

    Parameters
    ----------
    phi : ndarray of shape (n, m)
    weight : ndarray of shape (n,)
        Of either sign.
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1 columns; the last one belongs to the intercept.
    out : ndarray of shape (packed_size(start, stop),), float64
    """
    start, stop = columns
    m = phi.shape[1]
    # All columns at once: a symmetric product costs half of a general one. Of a panel, only the rows down to its last
    # column are formed.
    if start == 0 and stop > m:
        _add_packed(signed_products(phi, weight), start, out)
    elif start < m:
        used = np.flatnonzero(weight)
        phi, weight = (phi, weight) if len(used) == len(phi) else (phi[used], weight[used])
        weighted = phi if np.all(weight == 1.0) else phi * weight.astype(phi.dtype)[:, None]
        _add_packed(weighted[:, start : min(stop, m)].T @ phi[:, : min(stop, m)], start, out)
    if stop > m:
        # The column of the intercept: sums of the features, and last the sum of the weights.
        border = product(weight.astype(phi.dtype), phi)
        out[-m - 1 : -1] += border
        out[-1] += weight.sum()


class GramSum:
    """Columns of the upper triangle of sum_i weight_i (phi_i, 1) (phi_i, 1)^T over tiles of rows, packed.

    Rows in memory are added by `add_hessian`, the few of many tiles together: each product is as large as the sum. Of
    rows on a GPU the products are made there in their own precision and added up there in float64, and only the sum of
    all of them comes to the host.

    Parameters
    ----------
    columns : (int, int)
        Columns start .. stop - 1 of the m + 1 columns; the last one belongs to the intercept.
    out : ndarray of shape (packed_size(start, stop),), float64
        What is added to, by `finish` at the latest.
    rounded : bool
        A GPU may round float32 rows to the 10 bits of its tensor cores.
    """

    def __init__(self, columns: tuple[int, int], out: np.ndarray, *, rounded: bool = False) -> None:
        self._columns, self._out, self._rounded = columns, out, rounded
        self._waiting: list[tuple[np.ndarray, np.ndarray]] = []
        self._there: dict[str, Any] = {}

    def add(self, phi: Any, weight: Any) -> None:
        """Add the products of mapped rows (n, m), of weights (n,) of either sign or zero.

        Of rows on a GPU the weights may be there too, or None where all are 1.
        """
        if is_on_gpu(phi):
            self._add_on_gpu(phi, weight)
            return
        used = np.flatnonzero(weight)
        # As many rows as there are features may wait: they take as much memory as the sum.
        if sum(len(rows) for rows, _ in self._waiting) + len(used) > phi.shape[1]:
            self._multiply_waiting()
        if len(used) > phi.shape[1]:
            add_hessian(phi, weight, self._columns, self._out)
        elif len(used):
            self._waiting.append((phi[used], weight[used]))

    def _multiply_waiting(self) -> None:
        """Add the products of the rows that wait."""
        if self._waiting:
            rows, weights = zip(*self._waiting, strict=True)
            self._waiting = []
            add_hessian(np.concatenate(rows), np.concatenate(weights), self._columns, self._out)

    def _add_on_gpu(self, phi: Any, weight: Any) -> None:
        """Add the products of rows on a GPU there."""
        xp, (start, stop), m = array_module(phi), self._columns, phi.shape[1]
        if isinstance(weight, np.ndarray):
            # on the host it is known which rows count, without a wait
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
            # The column of the intercept: sums of the features, and last the sum of the weights.
            weight = xp.ones(len(phi)) if weight is None else weight.astype(np.float64)
            parts["border"] = xp.concat([weighted_rows_on_gpu(weight[None], phi)[0], weight.sum()[None]])
        self._add_there(parts)

    def add_picked(self, phi: Any, picked: tuple[Any, Any, Any], border: Any) -> None:
        """Add the products of the rows on a GPU that were picked, as `add_picked_products` takes them.

        `border` (m + 1,) has the sums of the features and of the weights.
        """
        xp, (start, stop), m = array_module(phi), self._columns, phi.shape[1]
        last = min(stop, m)
        if "products" not in self._there:
            self._there["products"] = xp.zeros((max(last - start, 0), last))
        add_picked_products(phi, picked, (start, last), self._there["products"])
        if stop > m:
            self._add_there({"border": border})

    def _add_there(self, parts: dict[str, Any]) -> None:
        """Add sums to those that are on the GPU."""
        for name, part in parts.items():
            if name in self._there:
                self._there[name] += part
            else:
                self._there[name] = part

    def on_gpu(self) -> dict[str, Any]:
        """The sums that are still on a GPU, for `take` once they are on the host: several sums then come together."""
        products = self._there.get("products")
        if products is not None and products.ndim == 2:
            self._there["products"] = packed_on_gpu(products, self._columns[0])
        return self._there

    def take(self, parts: dict[str, np.ndarray]) -> None:
        """Add what `on_gpu` had, which is on the host now."""
        self._there = {}
        if "products" in parts:
            self._out[: len(parts["products"])] += parts["products"]
        if "border" in parts:
            self._out[-len(parts["border"]) :] += parts["border"]

    def finish(self) -> None:
        """Bring the rows that wait, and what is still on a GPU, into the sum."""
        self._multiply_waiting()
        self.take(together_on_host(self.on_gpu()))


def add_few(grams: Sequence[GramSum], phi: Any, weights: Sequence[Any]) -> None:
    """Add rows on a GPU to each sum by weights (n,) there of which few are not 0: the others cost next to nothing.

    How many these are the host does not ask.
    """
    if not grams:
        return
    xp, of_sums = array_module(phi), array_module(phi).stack(list(weights))
    is_picked = of_sums != 0.0
    # those rows first, in their order
    order = xp.argsort(~is_picked, axis=1, kind="stable").astype(np.int32)
    counts = is_picked.sum(axis=1).astype(np.int32)
    borders = xp.concat([weighted_rows_on_gpu(of_sums, phi), of_sums.sum(axis=1)[:, None]], axis=1)
    for number, gram in enumerate(grams):
        gram.add_picked(phi, (of_sums[number], order[number], counts[number : number + 1]), borders[number])


def finished(sums: dict[str, Any], grams: Sequence[GramSum]) -> dict[str, Any]:
    """The named sums on the host, with those of the Gram matrices finished: of a GPU all come together, in one wait."""
    parts = {(number, name): part for number, gram in enumerate(grams) for name, part in gram.on_gpu().items()}
    here: dict[Any, Any] = together_on_host({**sums, **parts})  # type: ignore[dict-item]
    for number, gram in enumerate(grams):
        gram.take({name: here.pop((number, name)) for name in gram.on_gpu()})
        gram.finish()
    return here


class CurvedRows:
    """The mapped rows of a block that have curvature, kept until there are enough of them for products worth making.

    Rows are mapped a few at a time, which stay in the cache while losses and gradients are summed; a product wants as
    many as possible.

    Parameters
    ----------
    hessians : sequence of GramSum
        What the products are added to.
    room : ndarray of shape (rows, m)
        Where rows in memory are mapped to, and kept.
    """

    def __init__(self, hessians: Sequence[GramSum], room: np.ndarray) -> None:
        self._hessians = hessians
        self._room = room
        self._weights = np.empty((len(room), len(hessians)))
        self._kept = 0

    @property
    def most_rows(self) -> int:
        """The most rows that `free` has a place for."""
        return max(1, len(self._room))

    def free(self, n_rows: int) -> np.ndarray:
        """The place that the next rows are mapped to, of shape (n_rows, m)."""
        if self._kept + n_rows > len(self._room):
            self._multiply()
        return self._room[self._kept : self._kept + n_rows]

    def add(self, phi: Any, weights: np.ndarray) -> None:
        """Add rows (n, m), in the place that `free` has given or on a GPU, of weights (n, h) of either sign or zero."""
        if is_on_gpu(phi):
            for hessian, own in zip(self._hessians, weights.T, strict=True):
                hessian.add(phi, own)
            return
        curved = np.flatnonzero(weights.any(axis=1))
        end = self._kept + len(curved)
        if len(curved) < len(phi):
            weights, phi[: len(curved)] = weights[curved], phi[curved]
        self._weights[self._kept : end] = weights
        self._kept = end

    def finish(self) -> None:
        """Bring all rows into the sums."""
        self._multiply()
        for hessian in self._hessians:
            hessian.finish()

    def _multiply(self) -> None:
        """Hand the rows that are kept to the sums."""
        if self._kept:
            for hessian, own in zip(self._hessians, self._weights[: self._kept].T, strict=True):
                hessian.add(self._room[: self._kept], own)
        self._kept = 0


def summed_product(left: Any, right: Any) -> Any:
    """The product of matrices (p, n) and (n, q) on a GPU, in float64: of a few of the n rows in their own precision."""
    xp, total = array_module(left), None
    for rows in spans(right.shape[0], PRODUCT_ROWS):
        product = xp.matmul(left[:, rows], right[rows]).astype(np.float64)
        total = product if total is None else total + product
    return xp.zeros((left.shape[0], right.shape[1])) if total is None else total


def signed_products(phi: Any, weight: np.ndarray) -> Any:
    """phi^T diag(weight) phi, of shape (m, m), by half the work of a product; on a GPU it stays there."""
    if is_on_gpu(phi):
        return summed_product((phi * array_module(phi).asarray(weight.astype(phi.dtype))[:, None]).T, phi)
    products = np.zeros((phi.shape[1],) * 2, phi.dtype)
    # NumPy takes the symmetric product of BLAS, without the interpreter's lock, where an array is multiplied with its
    # own transpose only. So weights go in as square roots: those below zero, of rows that lost their curvature, are
    # subtracted by a product of their own.
    for sign, combine in ((1.0, np.add), (-1.0, np.subtract)):
        rows = np.flatnonzero(sign * weight > 0.0)
        if len(rows):
            size = sign * weight[rows]
            signed = phi if len(rows) == len(phi) else phi[rows]
            signed = signed if np.all(size == 1.0) else signed * np.sqrt(size).astype(phi.dtype)[:, None]
            combine(products, signed.T @ signed, out=products)
    return products


def _add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """Add entries (j, 0 .. start + j) of `products` to `out`, row after row."""
    _PACKED(products.size, products, start, out)


def _few_add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """`_add_packed` in NumPy."""
    first = 0
    for width, row in enumerate(products, start + 1):
        out[first : first + width] += row[:width]
        first += width


@numba.njit(nogil=True, cache=True)
def _many_add_packed(products: np.ndarray, start: int, out: np.ndarray) -> None:
    """`_add_packed` without the interpreter's lock, which would be taken for every row."""
    first = 0
    for j in range(len(products)):
        for i in range(start + j + 1):
            out[first + i] += products[j, i]
        first += start + j + 1


# NumPy takes 1.3 microseconds a row, and the interpreter's lock for each.
_PACKED = TwoForms(_few_add_packed, _many_add_packed, 60_000_000)


def rows_at(phi: Any, numbers: np.ndarray) -> Any:
    """Some rows of mapped ones, wherever these are."""
    xp = array_module(phi)
    return phi[numbers] if xp is np else xp.take(phi, xp.asarray(numbers), axis=0)
