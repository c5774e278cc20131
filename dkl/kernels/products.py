"""z = W x for tiles of rows on a CPU, for any W and rows, from which maps, gradients and ramps are computed.

Also products of mapped rows with linear models, exact to double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy import sparse

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import ColumnProjection, SparseProjection, StructuredProjection, formed
from dkl.kernels.compiled import njit
from dkl.kernels.few_entries import FewEntries, has_few_entries
from dkl.kernels.hadamard import LANES, HadamardPlan, structured_product
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION
from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import RowTiles, even_step, spans
from dkl.process import TwoForms
from dkl.protocols.arrays import Rows, dense_rows

# Least and most rows of a tile, its most frequencies, and its number of angles in between: threads pass the
# interpreter's lock on at every call, so that with few frequencies a tile has more rows.
_LEAST_PRODUCT_ROWS, PRODUCT_ROWS = 512, 4096
PRODUCT_FREQUENCIES = 768
_ANGLES = _LEAST_PRODUCT_ROWS * PRODUCT_FREQUENCIES
# BLAS uses other kernels for small products and at ragged edges, with other last bits. With at least these numbers of
# rows, and of rows times frequencies, in multiples of 4 and 16, a row's features do not depend on other rows. No shape
# suffices for float32 in OpenBLAS on AVX2, whose kernel rounds the first six of twelve rows differently from the
# others: if equal bits are required there (by predictions, not by fits), products are computed in float64.
_LEAST_ROWS = 16
_LEAST_ANGLES = 2048
_ROW_EDGE = 4
_EDGE = 16


class Product:
    """Angles or linear forms of the rows of a block, for a tile and a span of frequencies at a time.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    feature_map : FeatureMap
        Its scaler is applied; amplitudes and activation are not.
    dtype : dtype
    factor : float
        Factor on the scaled rows and the phases.
    alike : bool
        Whether the bits of a row are to be independent of the other rows; see `DenseForm`.

    Attributes
    ----------
    tiles : RowTiles
    offset : ndarray of shape (m,) or None
        Added to every row: factor * phases, minus W times the centre that was not subtracted from sparse rows.
    """

    def __init__(
        self, X: Rows, feature_map: FeatureMap, dtype: np.dtype, *, factor: float = 1.0, alike: bool = False
    ) -> None:
        projection = feature_map.projection
        structured = isinstance(projection, StructuredProjection)
        rows = LANES if structured else product_rows(feature_map.n_frequencies)
        self.tiles = RowTiles(X, feature_map, dtype, factor=factor, dense=structured, rows=rows)
        # phases, and the centre of sparse rows times W, are the same for all rows, and are added to each product
        offset = None if feature_map.phases is None else factor * feature_map.phases
        if self.tiles.constant is not None:
            shift = formed(projection) @ self.tiles.constant
            offset = -shift if offset is None else offset - shift
        self.offset = None if offset is None else offset.astype(dtype)
        keeps_sparse = self.tiles.keeps_sparse
        self._form: Callable[[Rows, slice], np.ndarray]
        if isinstance(projection, StructuredProjection):
            self._form = _Structured(projection, dtype)
        elif isinstance(projection, ColumnProjection):
            self._form = _Columns(projection)
        elif isinstance(projection, SparseProjection) and has_few_entries(projection).any():
            self._form = _FewEntriesAndOthers(projection, dtype, keeps_sparse=keeps_sparse, alike=alike)
        elif keeps_sparse:
            self._form = _Sparse(projection.dense(), dtype)
        else:
            self._form = DenseForm(projection.dense(), dtype, alike=alike)
        # transforms of structured frequencies, and columns of frequencies with few entries, are computed once for all
        # frequencies
        whole = isinstance(self._form, _Structured | _FewEntriesAndOthers)
        self.step = feature_map.n_frequencies if whole else _step(feature_map.n_frequencies)

    def __call__(self, tile: Rows, chosen: slice) -> np.ndarray:
        """z of a tile and a span of frequencies, of shape (rows, frequencies), new and in C order."""
        z = self._form(tile, chosen)
        if self.offset is not None:
            z += self.offset[chosen]
        return z


def product_rows(n_frequencies: int) -> int:
    """Rows of a tile, which depend on the number of frequencies alone."""
    rows = _ANGLES // max(1, n_frequencies) // _EDGE * _EDGE
    return max(_LEAST_PRODUCT_ROWS, min(rows, PRODUCT_ROWS))


def _step(n_frequencies: int) -> int:
    """Frequencies of a tile, in even spans: BLAS would use another kernel for a narrow one at the end."""
    return max(1, even_step(n_frequencies, PRODUCT_FREQUENCIES, _EDGE))


@cache
def single_rows_are_alike() -> bool:
    """Whether the bits of a row in a float32 BLAS product are independent of its position: not in OpenBLAS on AVX2."""
    rng = np.random.default_rng(0)
    W, row = (rng.normal(size=shape).astype(np.float32) for shape in ((2 * _EDGE, 100), (1, 100)))
    with one_blas_thread():
        products = np.dot(np.ascontiguousarray(np.broadcast_to(row, (_LEAST_PRODUCT_ROWS, 100))), W.T)
    return bool((products == products[0]).all())


def alike_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype for products whose rows must have the same bits at any position."""
    return np.dtype(np.float64) if dtype == np.float32 and not single_rows_are_alike() else dtype


class DenseForm:
    """Rows times the transpose of a matrix (F, d); the bits of a row are independent of the other rows.

    In float32 by OpenBLAS on AVX2 they depend on them, within rounding; `alike` computes in float64 there, which takes
    longer.
    """

    def __init__(self, W: np.ndarray, dtype: np.dtype, *, alike: bool = False) -> None:
        self.n_frequencies, self.dtype = len(W), dtype
        dtype = alike_dtype(dtype) if alike else dtype
        # Frequencies of zeros fill the last multiple of _EDGE; with the least rows the product is large enough for
        # BLAS's main kernel.
        padded = max(1, -(-len(W) // _EDGE)) * _EDGE
        least = max(_LEAST_ROWS, -(-_LEAST_ANGLES // padded))
        self.least_rows = least + -least % _ROW_EDGE
        W = W.astype(dtype, copy=False)
        self.W = W if len(W) == padded else np.concatenate([W, np.zeros((padded - len(W), W.shape[1]), dtype)])

    def __call__(self, tile: np.ndarray, chosen: slice) -> np.ndarray:
        rows, width = len(tile), chosen.stop - chosen.start
        # Rows in whole multiples of _ROW_EDGE are one product; the few others are another one, padded with rows of
        # zeros, so that BLAS uses the same kernel for every row.
        even = rows - rows % _ROW_EDGE if rows >= self.least_rows else 0
        W = self.W[chosen.start : chosen.stop if chosen.stop < self.n_frequencies else len(self.W)]
        z, tile = np.empty((rows, len(W)), W.dtype), tile.astype(W.dtype, copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            if even:
                np.dot(tile[:even], W.T, out=z[:even])
            if even < rows:
                # padding is added to the few remaining rows, not to a copy of the whole tile
                missing = np.zeros((self.least_rows - (rows - even), tile.shape[1]), tile.dtype)
                z[even:] = np.dot(np.concatenate([tile[even:], missing]), W.T)[: rows - even]
            return np.ascontiguousarray(z[:, :width], dtype=self.dtype)


class _Columns:
    """The chosen columns of a tile, dense: the forms of coordinates."""

    def __init__(self, projection: ColumnProjection) -> None:
        self.columns = projection.columns

    def __call__(self, tile: Rows, chosen: slice) -> np.ndarray:
        columns = self.columns[chosen]
        # neighbouring columns are a slice, which a sparse matrix extracts without a table of all columns
        is_span = len(columns) > 0 and bool(np.all(np.diff(columns) == 1))
        part = tile[:, columns[0] : columns[-1] + 1] if is_span else tile[:, columns]
        return np.ascontiguousarray(dense_rows(part))


class _Structured:
    """Products with structured frequencies, by Walsh-Hadamard transforms; all frequencies at once."""

    def __init__(self, projection: StructuredProjection, dtype: np.dtype) -> None:
        self.plan = HadamardPlan(projection, dtype).arrays
        self.n_frequencies = projection.n_frequencies

    def __call__(self, tile: np.ndarray, chosen: slice) -> np.ndarray:
        out = np.empty((len(tile), self.n_frequencies), tile.dtype)
        structured_product(tile, self.plan, out)
        return out


class _FewEntriesAndOthers:
    """Frequencies with few entries from these, the others by a product with all columns; all of them at once."""

    def __init__(self, projection: SparseProjection, dtype: np.dtype, *, keeps_sparse: bool, alike: bool) -> None:
        few = has_few_entries(projection)
        self.n_frequencies = len(few)
        self.few = FewEntries(projection, np.flatnonzero(few), dtype)
        self.rest = np.flatnonzero(~few)
        if len(self.rest):
            W = projection.take(self.rest).dense()
            self.form_rest: _Sparse | DenseForm = (
                _Sparse(W, dtype) if keeps_sparse else DenseForm(W, dtype, alike=alike)
            )

    def __call__(self, tile: Rows, chosen: slice) -> np.ndarray:
        out = np.empty((tile.shape[0], self.n_frequencies), tile.dtype)
        self.few.write(tile, out)
        for part in spans(len(self.rest), _step(len(self.rest))):
            values = self.form_rest(tile, part)
            _COLUMNS(values.size, values, self.rest[part], out)
        return out


def _write_columns(values: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    out[:, places] = values


@njit(nogil=True)
def _write_columns_compiled(values: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[i, places[j]] = values[i, j]


# NumPy takes 1.5 ns a number, two to three times as long as compiled code; compiling takes 0.2 s.
_COLUMNS = TwoForms(_write_columns, _write_columns_compiled, 200_000_000)


class _Sparse:
    """Sparse rows times the transpose of a dense matrix."""

    def __init__(self, W: np.ndarray, dtype: np.dtype) -> None:
        self.W = np.ascontiguousarray(W.T, dtype=dtype)

    def __call__(self, tile: sparse.csr_array, chosen: slice) -> np.ndarray:
        out = np.empty((tile.shape[0], chosen.stop - chosen.start), tile.dtype)
        _sparse_product(tile.data, tile.indices, tile.indptr, self.W, chosen.start, out)
        return out


@njit(nogil=True, fastmath=ELEMENTWISE)
def sparse_row_product(
    data: np.ndarray, indices: np.ndarray, start: int, stop: int, W: np.ndarray, first: int, out: np.ndarray
) -> None:
    """out = the product of one sparse row (its entries start .. stop) with columns first .. of W (d, m).

    Indexes W itself: a view of each of its rows would cost more than a short row does.
    """
    out[:] = 0
    for entry in range(start, stop):
        factor, row = data[entry], indices[entry]
        for j in range(len(out)):
            # an index that may be negative would prevent vector code
            out[j] += W[row, np.uintp(first) + np.uintp(j)] * factor


@njit(nogil=True, fastmath=ELEMENTWISE)
def _sparse_product(
    data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, W: np.ndarray, first: int, out: np.ndarray
) -> None:
    """out = sparse rows times columns first .. of W (d, m), row by row."""
    for i in range(len(out)):
        sparse_row_product(data, indices, indptr[i], indptr[i + 1], W, first, out[i])


def line_scores(phi: np.ndarray, coefficients: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores of g models at their coefficients, and what a step of length 1 adds to them, both (n, g).

    Products and sums are float64, without a copy of the rows, which would take longer than the products.

    Parameters
    ----------
    phi : ndarray of shape (n, m), float32
        Mapped rows; intercepts are separate.
    coefficients, directions : ndarray of shape (g, m + 1), float64
        The intercept last.
    """
    start, move = np.empty((2, len(phi), len(coefficients)))
    _write_line_scores(phi, np.ascontiguousarray(coefficients), np.ascontiguousarray(directions), start, move)
    return start, move


def weighted_rows(weights: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """sum_i weights_ik (phi_i, 1) for each of g models, in float64 as in `line_scores`.

    Parameters
    ----------
    weights : ndarray of shape (n, g), float64
    phi : ndarray of shape (n, m), float32

    Returns
    -------
    ndarray of shape (g, m + 1)
    """
    sums = np.zeros((weights.shape[1], phi.shape[1]))
    _add_weighted_rows(np.ascontiguousarray(weights), phi, sums)
    return np.concatenate([sums, weights.sum(axis=0)[:, None]], axis=1)


@njit(nogil=True, fastmath=REDUCTION)
def _two_dots(x: np.ndarray, v: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """x.v and x.w in float64, for x in float32; v and w may be longer than x."""
    first = second = 0.0
    for j in range(len(x)):
        wide = np.float64(x[j])
        first += wide * v[j]
        second += wide * w[j]
    return first, second


@njit(nogil=True)
def _write_line_scores(
    phi: np.ndarray, coefficients: np.ndarray, directions: np.ndarray, start: np.ndarray, move: np.ndarray
) -> None:
    """Write (phi, 1) coefficients^T to `start` and (phi, 1) directions^T to `move`, both (n, g), row by row."""
    last = phi.shape[1]
    for i in range(len(phi)):
        for k in range(len(coefficients)):
            first, second = _two_dots(phi[i], coefficients[k], directions[k])
            start[i, k] = first + coefficients[k, last]
            move[i, k] = second + directions[k, last]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_four_rows(phi: np.ndarray, weights: tuple[float, float, float, float], out: np.ndarray) -> None:
    """out += weights . phi of four rows: each sum is read and written once for all four."""
    first, second, third, fourth = phi[0], phi[1], phi[2], phi[3]
    a, b, c, d = weights
    for j in range(len(out)):
        low = np.float64(first[j]) * a + np.float64(second[j]) * b
        high = np.float64(third[j]) * c + np.float64(fourth[j]) * d
        out[j] += low + high


@njit(nogil=True)
def _add_weighted_rows(weights: np.ndarray, phi: np.ndarray, out: np.ndarray) -> None:
    """out += weights^T phi of weights (n, g), rows (n, m) and out (g, m)."""
    whole = len(phi) - len(phi) % 4
    for i in range(0, whole, 4):
        for k in range(len(out)):
            four = weights[i, k], weights[i + 1, k], weights[i + 2, k], weights[i + 3, k]
            _add_four_rows(phi[i : i + 4], four, out[k])
    for i in range(whole, len(phi)):
        for k in range(len(out)):
            for j in range(phi.shape[1]):
                out[k, j] += weights[i, k] * np.float64(phi[i, j])
