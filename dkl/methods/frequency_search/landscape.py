"""Potentials of frequencies on rows in memory, and their gradients: the objective of a search, by two products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.products import sparse_row_product
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION, TURN, add_multiple, cos_sin, cos_sin_rows
from dkl.kernels.sums import add_sparse_sums
from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import cache_tile, checked_dtype, checked_weights, spans
from dkl.protocols.arrays import Array, Rows

# Rows of a tile; the most spans of rows that cores share, and the fewest tiles of a span.
_ROWS, _MOST_SPANS, _LEAST_TILES = 512, 32, 2
# Bytes in memory at once: of the cosines and sines of all rows, and of the gradients of spans.
_WAVE_BYTES = _GRADIENT_BYTES = 1 << 26
# Chains evaluated at once on sparse rows, so that their frequencies and gradients stay in the second-level cache: a
# multiple of _LANES, the chains by which compiled loops proceed.
_SPARSE_CHAINS, _LANES = 320, 32
# Tasks for each core into which chains on few columns are divided, since their times differ.
_SHARES = 3


class Landscape(Protocol):
    """The potential v_j = sum_k |sum_i S[i, k] exp(i w_j.x_i)|^2 on rows in memory, prepared for many evaluations."""

    def __call__(self, W: Array) -> tuple[Array, Array]:
        """The potentials of frequencies, (c,) float64, and their gradients, of the shape of W in the landscape's dtype.

        W is of shape (c, d), one frequency a row; (c, q) where the landscape has `columns`, with gradients of 0 for no
        column.
        """
        ...

    def potentials(self, W: Array) -> Array:
        """The potentials without their gradients, at half the cost."""
        ...


def landscape(X: Rows, S: Array, dtype: DTypeLike = "float32", *, columns: np.ndarray | None = None) -> Landscape:
    """The potential of rows and weights, as an object that shares the preparation of all evaluations.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d)
        Scaled rows; evaluations run where they are.
    S : array of shape (n, K) or (n,)
        Weight columns.
    dtype : {"float32", "float64"}
        Of the arithmetic within a tile of rows; tiles are added in float64.
    columns : ndarray of shape (c, q), int64, or None
        Frequencies with few nonzero columns: W[j, a] belongs to column columns[j, a] of X, -1 is none. Their cost does
        not depend on d. The columns of a frequency must be distinct.

    Returns
    -------
    Landscape

    Notes
    -----
    No temporary is larger than two arrays of n x c numbers (in parts of at most 64 MiB; of sparse rows there is none),
    whatever d is. The bits do not depend on the number of cores.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 1, line 5.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.frequency_search.landscape import landscape
    >>> v, gradient = landscape(np.eye(2), np.array([1.0, -1.0]))(np.array([[0.0, np.pi]]))
    >>> v.round(3), gradient.round(3)
    (array([4.]), array([[0., 0.]], dtype=float32))
    """
    dtype = checked_dtype(dtype)
    if device.is_on_gpu(X):
        return device.DeviceLandscape(X, S, dtype, columns)
    if columns is not None:
        return _Columns(X, S, columns, dtype)
    return _SparseRows(X, S, dtype) if sparse.issparse(X) else _DenseRows(X, S, dtype)


def ascent_bytes(n_rows: int, n_columns: int, n_chains: int) -> int:
    """The most bytes of a landscape in addition to its rows: waves of chains, gradients of spans, and their sum."""
    waves = min(8 * n_rows * n_chains, max(_WAVE_BYTES, 8 * 16 * n_rows))
    gradient = 4 * n_chains * n_columns
    return waves + 3 * min(_MOST_SPANS * gradient, max(_GRADIENT_BYTES, gradient))


class _Tiles:
    """Rows with all columns, divided into spans for the cores and tiles for the cache."""

    X: Rows
    S: np.ndarray

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.tile = cache_tile(_ROWS, self.X.shape[1], dtype)
        self.crew = Crew()

    def spans(self, most: int = _MOST_SPANS) -> list[slice]:
        """Spans of whole tiles, one for a core; they depend on shapes only, so that bits do not depend on cores."""
        n = self.X.shape[0]
        tiles = -(-n // (max(1, min(_MOST_SPANS, most)) * self.tile))
        return list(spans(n, max(_LEAST_TILES, tiles) * self.tile))

    def tiles(self, rows: slice) -> list[slice]:
        """The tiles of a span."""
        return [slice(rows.start + t.start, rows.start + t.stop) for t in spans(rows.stop - rows.start, self.tile)]

    def gradient(self, work: Callable[[slice], np.ndarray], n_chains: int) -> np.ndarray:
        """Twice the sum of the gradients that `work` computes for spans; at most `_GRADIENT_BYTES` at once."""
        most = _GRADIENT_BYTES // (self.X.shape[1] * n_chains * self.dtype.itemsize)
        return 2.0 * np.asarray(np.sum(self.crew.map(work, self.spans(most)), axis=0, dtype=np.float64))


class _DenseRows(_Tiles):
    """The potential over all columns: a product for the angles and one for the gradient, on row tiles in the cache."""

    X: np.ndarray

    def __init__(self, X: Rows, S: Array, dtype: np.dtype) -> None:
        self.X = np.ascontiguousarray(X, dtype=dtype)
        # a single column would be a matrix-vector product, whose bits depend on its place in memory
        S = checked_weights(S, self.X.shape[0])
        self.S = np.ascontiguousarray(np.pad(S, ((0, 0), (0, max(0, 2 - S.shape[1])))), dtype=dtype)
        super().__init__(dtype)
        self._waves = np.empty((2, 0), dtype)

    def __call__(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, gradient = np.empty(len(W)), np.empty(W.shape, self.dtype)
        for chains in self._panels(len(W)):
            waves, sums = self._project(W[chains])
            v[chains] = _squares(sums)
            gradient[chains] = self._gradients(waves, sums)
        return v, gradient

    def potentials(self, W: np.ndarray) -> np.ndarray:
        """v without the gradient."""
        return np.concatenate([_squares(self._project(W[chains])[1]) for chains in self._panels(len(W))])

    def _panels(self, n_chains: int) -> list[slice]:
        """Ranges of chains that are evaluated at once, multiples of 16, whose waves take at most `_WAVE_BYTES`."""
        most = _WAVE_BYTES // (2 * max(self.X.shape[0], 1) * self.dtype.itemsize)
        return list(spans(n_chains, max(16, most // 16 * 16)))

    def _buffer(self, n_chains: int) -> np.ndarray:
        """A buffer for cosines and sines of all rows, (2, n, c), reused by every evaluation."""
        size = self.X.shape[0] * n_chains
        if self._waves.shape[1] < size:
            self._waves = np.empty((2, size), self.dtype)
        return self._waves[:, :size].reshape(2, self.X.shape[0], n_chains)

    def _project(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cosines and sines (2, n, c) and their sums with the weights (2, K, c), float64."""
        turns = _in_turns(W, self.dtype)
        waves = self._buffer(len(W))

        def work(rows: slice) -> np.ndarray:
            """The sums of a span: angles by a product, then cosines and sines in their place."""
            sums = np.zeros((2, self.S.shape[1], len(W)))
            of_tile = np.empty(sums.shape, self.dtype)
            for tile in self.tiles(rows):
                cosines, sines, weights = waves[0, tile], waves[1, tile], self.S[tile].T
                np.dot(self.X[tile], turns, out=cosines)
                _sincos_in_place(cosines.reshape(-1), sines.reshape(-1))
                np.dot(weights, cosines, out=of_tile[0])
                np.dot(weights, sines, out=of_tile[1])
                sums += of_tile
            return sums

        return waves, np.sum(self.crew.map(work, self.spans()), axis=0)

    def _gradients(self, waves: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """The gradient (c, d); the cosines are overwritten by the factor that each row's x_i has in it."""
        # dv/dw = 2 sum_i x_i sum_k S_ik (Q_k cos(w.x_i) - C_k sin(w.x_i)), with C and Q the sums of cosines and sines
        shape, ends = (sums.shape[2], self.X.shape[1]), sums.astype(self.dtype)

        def work(rows: slice) -> np.ndarray:
            """Half the gradient of a span."""
            total, of_tile = np.zeros(shape, self.dtype), np.empty(shape, self.dtype)
            for tile in self.tiles(rows):
                # cos(w.x_i) becomes sum_k S_ik (Q_k cos(w.x_i) - C_k sin(w.x_i)), the factor of x_i
                cosines, weights = waves[0, tile], self.S[tile]
                real, imaginary = np.dot(weights, ends[0]), np.dot(weights, ends[1])
                _factors_in_place(
                    cosines.reshape(-1), waves[1, tile].reshape(-1), real.reshape(-1), imaginary.reshape(-1)
                )
                total += np.dot(cosines.T, self.X[tile], out=of_tile)
            return total

        return self.gradient(work, shape[0])


class _SparseRows(_Tiles):
    """The same for sparse rows; it computes their few products twice, so that no array has n rows."""

    X: sparse.csr_array

    def __init__(self, X: Rows, S: Array, dtype: np.dtype) -> None:
        self.X = sparse.csr_array(X).astype(dtype)
        self.S = np.ascontiguousarray(checked_weights(S, self.X.shape[0]), dtype=dtype)
        super().__init__(dtype)

    def __call__(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, gradient = np.empty(len(W)), np.empty(W.shape, self.dtype)
        for chains in spans(len(W), _SPARSE_CHAINS):
            turns, width = self._padded(W[chains]), chains.stop - chains.start
            sums = self._project(turns)
            v[chains] = _squares(sums)[:width]
            gradient[chains] = self._gradients(turns, sums)[:width]
        return v, gradient

    def potentials(self, W: np.ndarray) -> np.ndarray:
        """v without the gradient."""
        return _squares(self._project(self._padded(W)))[: len(W)]

    def _padded(self, W: np.ndarray) -> np.ndarray:
        """Frequencies as columns, in turns, padded by zero columns to a multiple of _LANES."""
        return _in_turns(np.pad(W, ((0, -len(W) % _LANES), (0, 0))), self.dtype)

    def _project(self, turns: np.ndarray) -> np.ndarray:
        """The sums of waves with the weights (2, K, c), float64."""

        def work(rows: slice) -> np.ndarray:
            """The sums of a span."""
            sums = np.zeros((2, self.S.shape[1], turns.shape[1]))
            for tile in self.tiles(rows):
                add_sparse_sums(*self._entries(tile), np.ascontiguousarray(self.S[tile].T), turns, sums)
            return sums

        return np.sum(self.crew.map(work, self.spans()), axis=0)

    def _gradients(self, turns: np.ndarray, sums: np.ndarray) -> np.ndarray:
        """The gradient (c, d)."""
        ends = sums.astype(self.dtype)

        def work(rows: slice) -> np.ndarray:
            """Half the gradient of a span, (d, c)."""
            total = np.zeros(turns.shape, self.dtype)
            _add_sparse_gradients(self._entries(rows), turns, self.S[rows], ends, total)
            return total

        return self.gradient(work, turns.shape[1]).T

    def _entries(self, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The stored entries of some rows: data, columns, and the start of each row."""
        return self.X.data, self.X.indices, self.X.indptr[rows.start : rows.stop + 1]


class _Columns:
    """The potential of frequencies with few columns each: no matrix product, each chain is computed separately."""

    def __init__(self, X: Rows, S: Array, columns: np.ndarray, dtype: np.dtype) -> None:
        # only columns that some frequency uses are copied, each contiguously; -1 stays no column
        used, numbers = np.unique(columns[columns >= 0], return_inverse=True)
        self.numbers = np.full(columns.shape, -1)
        self.numbers[columns >= 0] = numbers
        dense = sparse.csc_array(X)[:, used].toarray() if sparse.issparse(X) else np.asarray(X)[:, used]
        self.rows = np.ascontiguousarray(dense.T, dtype=dtype)
        self.S = np.ascontiguousarray(checked_weights(S, X.shape[0]).T, dtype=dtype)
        self.crew = Crew()

    def potentials(self, W: np.ndarray) -> np.ndarray:
        """v; its gradient costs little in addition."""
        return self(W)[0]

    def __call__(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        v, gradient = np.empty(len(W)), np.zeros(W.shape)
        turns = (W * TURN).astype(self.rows.dtype)

        def work(chains: slice) -> None:
            """v and gradient of some chains, in place."""
            out = v[chains], gradient[chains]
            buffer = np.empty((3, self.rows.shape[1]), self.rows.dtype)
            _potentials_on_columns(self.rows, self.S, self.numbers[chains], turns[chains], buffer, out)

        # no sum runs over chains, so their division into tasks changes no bit
        self.crew.map(work, list(spans(len(W), max(1, -(-len(W) // (_SHARES * usable_cores()))))))
        return v, gradient.astype(self.rows.dtype)


def _in_turns(W: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Frequencies as columns (d, c), in turns."""
    return np.ascontiguousarray((W * TURN).T, dtype=dtype)


def _squares(sums: np.ndarray) -> np.ndarray:
    """v = sum_k C_k^2 + Q_k^2 of sums (2, K, c)."""
    return np.sum(sums**2, axis=(0, 1))


@njit(nogil=True, fastmath=ELEMENTWISE)
def _sincos_in_place(z: np.ndarray, sines: np.ndarray) -> None:
    """Overwrite angles, in turns, by their cosines, and write their sines."""
    for i in range(len(z)):
        z[i], sines[i] = cos_sin(z[i])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _factors_in_place(cosines: np.ndarray, sines: np.ndarray, real: np.ndarray, imaginary: np.ndarray) -> None:
    """Overwrite the cosines by cos imaginary - sin real, element by element."""
    for i in range(len(cosines)):
        cosines[i] = cosines[i] * imaginary[i] - sines[i] * real[i]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_sparse_gradients(
    X: tuple[np.ndarray, np.ndarray, np.ndarray], W: np.ndarray, S: np.ndarray, sums: np.ndarray, total: np.ndarray
) -> None:
    """total (d, c) += outer products of sparse rows and their factors in half the gradient; W (d, c) is in turns."""
    data, indices, indptr = X
    m = W.shape[1]
    z, cosines, sines, factors = np.empty(m, W.dtype), np.empty(m, W.dtype), np.empty(m, W.dtype), np.empty(m, W.dtype)
    for i in range(len(S)):
        sparse_row_product(data, indices, indptr[i], indptr[i + 1], W, 0, z)
        cos_sin_rows(z, cosines, sines)
        factors[:] = 0
        for k in range(S.shape[1]):
            for j in range(m):
                factors[j] += S[i, k] * (cosines[j] * sums[1, k, j] - sines[j] * sums[0, k, j])
        for entry in range(indptr[i], indptr[i + 1]):
            x, column = data[entry], indices[entry]
            for j in range(m):
                total[column, j] += factors[j] * x


@njit(nogil=True)
def _potentials_on_columns(
    rows: np.ndarray,
    S: np.ndarray,
    numbers: np.ndarray,
    W: np.ndarray,
    buffer: np.ndarray,
    out: tuple[np.ndarray, np.ndarray],
) -> None:
    """v and its gradient for frequencies W (c, q), in turns, on rows (u, n) of few columns; weights S (K, n).

    `buffer` (3, n) is overwritten; filling it in one statement, or allocating it here, would take longer to compile.
    """
    v, gradient = out
    z, cosines, sines = buffer[0], buffer[1], buffer[2]
    for j in range(len(W)):
        for i in range(len(z)):
            z[i] = 0
        for a in range(W.shape[1]):
            if numbers[j, a] >= 0:
                add_multiple(rows[numbers[j, a]], W[j, a], z)
        cos_sin_rows(z, cosines, sines)
        for i in range(len(z)):
            z[i] = 0
        v[j] = 0.0
        for k in range(len(S)):
            real, imaginary = _long_dot(S[k], cosines), _long_dot(S[k], sines)
            v[j] += real * real + imaginary * imaginary
            _add_factors(cosines, sines, S[k], (real, imaginary), z)
        for a in range(W.shape[1]):
            if numbers[j, a] >= 0:
                gradient[j, a] = 2.0 * _long_dot(rows[numbers[j, a]], z)


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_factors(
    cosines: np.ndarray, sines: np.ndarray, s: np.ndarray, sums: tuple[float, float], out: np.ndarray
) -> None:
    """out_i += s_i (Q cos_i - C sin_i), the factor of x_i in half the gradient of one chain."""
    real, imaginary = out.dtype.type(sums[0]), out.dtype.type(sums[1])
    for i in range(len(out)):
        out[i] += s[i] * (cosines[i] * imaginary - sines[i] * real)


@njit(nogil=True)
def _long_dot(x: np.ndarray, y: np.ndarray) -> float:
    """x.y, with a sum for each tile of rows, added in float64."""
    total = 0.0
    for start in range(0, len(x), _ROWS):
        total += _dot(x[start : start + _ROWS], y[start : start + _ROWS])
    return total


@njit(nogil=True, fastmath=REDUCTION)
def _dot(x: np.ndarray, y: np.ndarray) -> float:
    """x.y of one tile, in its own precision and in the fastest order."""
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total
