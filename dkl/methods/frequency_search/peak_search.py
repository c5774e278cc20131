"""Peaks of a Fourier potential on rows in memory: ascents from many starts at once, and the best distinct points.

First the potential and its gradient by two products (`landscape`), then the ascents on it (`search_peaks`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.features.frequencies import stream
from dkl.kernels import device
from dkl.kernels.compiled import njit
from dkl.kernels.device import Device, array_module, normal_source, on_host, rows_on
from dkl.kernels.moments import dense_sums
from dkl.kernels.products import sparse_row_product
from dkl.kernels.sincos import ELEMENTWISE, TURN, add_multiple, cos_sin, cos_sin_rows, dot
from dkl.kernels.sums import add_sparse_sums
from dkl.kernels.threads import Crew, usable_cores
from dkl.kernels.tiles import cache_tile, checked_dtype, checked_weights, spans
from dkl.protocols.arrays import Array, Rows
from dkl.solvers.line_search import falls_enough

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
    >>> from dkl.methods.frequency_search.peak_search import landscape
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
        total += dot(x[start : start + _ROWS], y[start : start + _ROWS])
    return total


# functions of points u (c, q): heights (c,) and gradients (c, q); the nearest points within the bound; other heights
Gradient = Callable[[Array], tuple[Array, Array]]
Bounded = Callable[[Array], Array]
Judge = Callable[[Array], Array]

# Pairs of steps and gradient differences that the quasi-Newton method stores.
_MEMORY = 6
# The least product of such a pair, and the length added to that of every row: divisors that would be 0 otherwise.
_LEAST = 1e-30
# Factors on the step length of plain ascent, after a step that gained and after one that did not.
_LONGER, _SHORTER = 1.3, 0.5
# The most columns of a chain on a few columns: main effects and interactions that a person can interpret.
_MOST_COLUMNS = 3
# The most by which the lengths of two equal peaks differ, as a share of the length of the higher one.
_EQUAL_LENGTHS = 0.2
Method = Literal["langevin", "quasi-newton"]
# The fewest and the most columns of a neighbourhood.
NARROWEST, WIDEST = 10, 150
# Rows with fewer columns that vary have no neighbourhoods.
LEAST_COLUMNS = 2 * WIDEST
# The most rows whose correlations define neighbourhoods.
_CORRELATED_ROWS = 2_048
# A column whose standard deviation is a smaller share of the largest one belongs to no neighbourhood.
_LEAST_DEVIATION = 0.1
# Neighbourhoods are used if the median, over columns, of the correlation with the _NEIGHBOUR-th nearest column is at
# least _RELATED: pixels of digits have .7; histograms of gradients have .24, where neighbourhoods gained nothing clear,
# and one-hot columns .13, where they cost accuracy.
_NEIGHBOUR, _RELATED = 4, 0.4


@dataclass(frozen=True)
class SearchOptions:
    """Settings of a search for peaks; lengths are relative to the bandwidth, so that they suit any data.

    Parameters
    ----------
    chains : int
        Points that ascend in parallel.
    steps : int
        Evaluations of potential and gradient by each chain.
    stride : float
        Length of the first step: times sqrt(d) / sigma for chains over all columns, twice this number on standardised
        columns for the others. Later steps are shorter, down to zero (for quasi-Newton: length of the longest step).
    noise : float
        Length of the Langevin noise relative to the step (1 is the paper's rule); 0 is plain ascent.
    sparse_share : float
        Share of the chains that move on one to three columns.
    near_share : float
        Share of the other chains that move on 10 to 150 correlated columns; only for dense rows with enough columns.
    near_steps : int
        Evaluations by each of these chains, which have fewer directions.
    polish : int
        Evaluations of plain ascent afterwards, which only accepts higher points.
    max_norm : float or None
        The longest length of a frequency.
    method : {"langevin", "quasi-newton"}
        Gradient steps of given length with noise, or limited-memory BFGS steps.
    start : float
        Variance of the starts over all columns, times 1 / sigma^2 for each column (1.5 in the paper).
    held_out : float
        Share of the rows that chains do not use: the potential on these rows decides which point of a chain is its
        best, so that overfitted points are not chosen. With 0, all rows serve both purposes.
    support_only : bool
        Whether to ascend only on rows with nonzero weights: the others add nothing to a potential, but without them its
        last digits differ.
    device : {"cpu", "gpu"}
        Where to search.
    """

    chains: int = 100
    steps: int = 20
    stride: float = 0.1
    noise: float = 0.0
    sparse_share: float = 0.5
    near_share: float = 0.0
    near_steps: int = 14
    polish: int = 0
    max_norm: float | None = None
    method: Method = "langevin"
    start: float = 0.5
    held_out: float = 0.0
    support_only: bool = False
    device: Device = "cpu"


@dataclass(frozen=True, eq=False)
class Peaks:
    """The best points of a search, one entry for each chain.

    Parameters
    ----------
    frequencies : ndarray of shape (c, d), float32
        The highest point that each chain visited.
    potentials : ndarray of shape (c,), float64
        On the rows of the search, or on held-out ones, scaled to all rows.
    supports : ndarray of shape (c, d), bool, or None
        The nonzero columns that each frequency may have; None if all have all.
    """

    frequencies: np.ndarray
    potentials: np.ndarray
    supports: np.ndarray | None

    def take(self, index: np.ndarray) -> Peaks:
        """The given peaks only, in the order of `index`."""
        supports = None if self.supports is None else self.supports[index]
        return Peaks(self.frequencies[index], self.potentials[index], supports)


def search_peaks(
    X: Rows,
    S: Array,
    sigma: float,
    options: SearchOptions,
    seed: int,
    *,
    extra_starts: np.ndarray | None = None,
    weight: np.ndarray | None = None,
) -> Peaks:
    """The highest point of v(w) = sum_k |sum_i S[i, k] exp(i w.x_i)|^2 that each of many chains visits.

    Parameters
    ----------
    X : ndarray, csr_array or CuPy array of shape (n, d)
        Scaled rows of a sample. A constant added to a column changes nothing.
    S : array of shape (n, K) or (n,)
        Weight columns; v is quadratic in their scale.
    sigma : float
        The bandwidth, such as the median distance between rows.
    options : SearchOptions
    seed : int
    extra_starts : ndarray of shape (e, d) or None
        Starts of further chains.
    weight : ndarray of shape (n,) or None
        Repetitions of each row, which S already includes; they determine the deviations of columns. None is one each.

    Returns
    -------
    Peaks
        First the chains over all columns, then `extra_starts`, then those on correlated columns and on a few columns;
        peaks may coincide.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", Algorithm 1 and appendix A.1. The step has a given length
    instead of following the gradient's, which differs by orders of magnitude between data sets; both step and noise
    shrink to zero.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.frequency_search.peak_search import SearchOptions, distinct_peaks, search_peaks
    >>> X = np.random.default_rng(0).standard_normal((2_000, 3))
    >>> s = np.sign(np.sin(3.0 * X[:, 1])) / len(X)
    >>> found = search_peaks(X, s, 2.4, SearchOptions(polish=10), seed=0)
    >>> best = distinct_peaks(found.frequencies, found.potentials, 1)
    >>> np.abs(found.frequencies[best]).round(0)
    array([[0., 3., 0.]], dtype=float32)
    """
    rows = _SplitRows.of(rows_on(X, options.device), S, options, weight)
    # chains on a few columns are counted first, then those on correlated columns; the rest move on all columns
    few = _few_columns(rows, options, seed)
    near = _near_columns(rows, options, seed, options.chains - (0 if few is None else len(few.W)))
    n_dense = options.chains - sum(len(group.W) for group in (few, near) if group is not None)
    groups = [_all_columns(rows, sigma, options, seed, n_dense, extra_starts), near, few]
    frequencies, heights, supports = [], [], []
    for group in groups:
        if group is None:
            continue
        W, v = group.ascend(options, seed)
        frequencies.append(group.on_all_columns(W, X.shape[1]))
        heights.append(v)
        # 1 at each column that a frequency may use, even where its entry is 0
        supports.append(group.on_all_columns(np.ones(group.W.shape, np.float32), X.shape[1]) > 0)
    narrow = near is not None or few is not None
    return Peaks(np.concatenate(frequencies), np.concatenate(heights), np.concatenate(supports) if narrow else None)


def distinct_peaks(frequencies: np.ndarray, potentials: np.ndarray, k: int, cosine: float = 0.9) -> np.ndarray:
    """The k highest peaks of which no two are nearly equal; w and -w count as equal.

    Parameters
    ----------
    frequencies : ndarray of shape (c, d)
    potentials : ndarray of shape (c,)
    k : int
    cosine : float
        Two peaks are equal if the cosine between their directions is at least this in absolute value, and their lengths
        differ by at most a fifth of that of the higher one.

    Returns
    -------
    ndarray of int64
        At most k positions, highest first.
    """
    norms = np.linalg.norm(frequencies.astype(np.float64), axis=1)
    # greedily, highest first: each is compared with those already chosen
    kept: list[int] = []
    for j in np.argsort(-np.asarray(potentials), kind="stable"):
        if len(kept) == k:
            break
        others = norms[kept]
        along = np.abs(frequencies[kept] @ frequencies[j]) >= cosine * others * norms[j]
        if not np.any(along & (np.abs(norms[j] - others) <= _EQUAL_LENGTHS * others)):
            kept.append(int(j))
    return np.array(kept, dtype=np.int64)


def sample_size(n_candidates: int, accuracy: float = 0.05, failure: float = 0.05) -> int:
    """Rows that suffice for the normalised potentials of `n_candidates` fixed candidates to be within `accuracy`.

    n >= 8 log(2 K / failure) / accuracy^2: theorem 4.4 of Bullins, Zhang & Zhang 2018 for K candidates that do not
    depend on the rows. One row changes a potential, divided by n^2 and with weights of at most 1, by at most 4 / n, so
    this is McDiarmid's inequality and a union bound. (In addition v / n^2 has a bias of (1 - v) / n, which
    `pair_potentials` removes.)

    Parameters
    ----------
    n_candidates : int
    accuracy : float
    failure : float
        Probability that one of the potentials has a larger error.

    Raises
    ------
    ValueError
        If an argument is out of range.
    """
    if not (n_candidates >= 1 and accuracy > 0.0 and 0.0 < failure < 1.0):
        raise ValueError(
            "a sample size needs n_candidates >= 1, accuracy > 0 and 0 < failure < 1; got "
            f"n_candidates={n_candidates!r}, accuracy={accuracy!r}, failure={failure!r}"
        )
    return int(np.ceil(8.0 * np.log(2.0 * n_candidates / failure) / accuracy**2))


def pair_potentials(potentials: np.ndarray, absolutes: np.ndarray, squares: np.ndarray) -> np.ndarray:
    """Normalised potentials over pairs of different rows: (v - sum s^2) / sum over i != j of |s_i s_j|.

    A potential of n rows includes the n pairs of a row with itself, which are the same for all frequencies and have a
    larger share in a smaller sample. Without them potentials of a sample and of all rows are comparable.

    Parameters
    ----------
    potentials : ndarray of shape (c,)
    absolutes, squares : ndarray of shape (K,)
        sum |s_ik| and sum s_ik^2 over the rows, for each weight column k.

    Returns
    -------
    ndarray of shape (c,)
        At most 1; negative where the rows have no pairs, as rows whose weights sum to at most 1.
    """
    # sum over i != j of |s_i s_j| = (sum |s_i|)^2 - sum s_i^2, summed over the weight columns
    pairs = np.sum(np.square(absolutes) - squares)
    # no pairs are fewer than the rounding of their sum, by which quotients stay finite and keep their order
    limits = np.finfo(np.float64)
    least = max(limits.eps * float(np.sum(np.square(absolutes))), float(limits.tiny))
    return (potentials - np.sum(squares)) / max(float(pairs), least)


def grown_sample(n_sampled: int, sampled: np.ndarray, verified: np.ndarray, *, most: int, least: float = 0.5) -> int:
    """Rows of the next search: twice as many if the peaks of this one are much lower on all rows.

    Parameters
    ----------
    n_sampled : int
        Rows of this search.
    sampled, verified : ndarray of shape (k,)
        Pair potentials of its best peaks, on its own rows and on all rows.
    most : int
        The most rows.
    least : float
        The share of its sampled potential that the median peak must have on all rows.
    """
    on_all = np.median(verified) if len(verified) else 0.0
    on_sample = np.median(sampled) if len(sampled) else 0.0
    return min(most, n_sampled if on_all >= least * on_sample else 2 * n_sampled)


@dataclass(frozen=True, eq=False)
class _SplitRows:
    """The rows on which chains ascend, and those that judge their points (None: the same rows).

    `scale` converts potentials on the judging rows to the scale of all rows; `weight` has the repetitions of the
    ascended rows; `support_only` leaves out those without weights.
    """

    X: Rows
    S: np.ndarray
    judges: tuple[Rows, np.ndarray] | None
    scale: float = 1.0
    weight: np.ndarray | None = None
    support_only: bool = False

    @classmethod
    def of(cls, X: Rows, S: Array, options: SearchOptions, weight: np.ndarray | None) -> _SplitRows:
        """The last rows judge; they are a random share, since the rows of a sample are ordered by a hash."""
        S = np.asarray(S, dtype=np.float64)
        n_ascended = len(S) - round(options.held_out * len(S))
        if n_ascended == len(S):
            return cls(X, S, None, weight=weight, support_only=options.support_only)
        theirs = np.abs(S[n_ascended:]).sum()
        # a potential is at most (sum |s|)^2
        scale = float(np.abs(S).sum() / theirs) ** 2 if theirs > 0.0 else 1.0
        own_weight = None if weight is None else weight[:n_ascended]
        judges = X[n_ascended:], S[n_ascended:]
        return cls(X[:n_ascended], S[:n_ascended], judges, scale, own_weight, options.support_only)

    @cached_property
    def scales(self) -> np.ndarray:
        """The standard deviation of each column."""
        return column_scales(self.X, self.weight)

    @cached_property
    def searched_rows(self) -> tuple[Rows, np.ndarray]:
        """The rows on which chains ascend, and their weights."""
        support = np.flatnonzero((self.S != 0.0).reshape(len(self.S), -1).any(axis=1))
        if not self.support_only or not 0 < len(support) < len(self.S):
            return self.X, self.S
        return self.X[array_module(self.X).asarray(support)], self.S[support]

    def judge(self, columns: np.ndarray | None = None) -> Judge | None:
        """The function from W to potentials on the held-out rows."""
        if self.judges is None:
            return None
        held_out = landscape(*self.judges, columns=columns)
        return lambda W: self.scale * held_out.potentials(W)


@dataclass(frozen=True, eq=False)
class _Group:
    """Chains of one kind; they move in coordinates u = w * scale, in which step lengths are measured.

    Parameters
    ----------
    rows : _SplitRows
        Their potential is what chains ascend.
    W : array of shape (c, d), or (c, q) with `columns`
        The starts.
    stride : float
        Length of the first step, in u.
    n_moving : int or array of shape (c, 1)
        The number of coordinates in which each chain moves.
    scale : array of shape (c, q) or (c, 1), or 1
    columns : ndarray of shape (c, q), int64, or None
        The columns of each chain, -1 for none; None is all.
    steps : int or None
        Evaluations by each chain; None is the number in the options.
    """

    rows: _SplitRows
    W: Array
    stride: float
    n_moving: int | Array
    scale: float | Array = 1.0
    columns: np.ndarray | None = None
    steps: int | None = None

    def ascend(self, options: SearchOptions, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """The best frequency that each chain visits, float32, and its potential, float64; on the host."""
        ascended = landscape(*self.rows.searched_rows, columns=self.columns)
        judge, max_norm = self.rows.judge(self.columns), options.max_norm

        def gradient(u: Array) -> tuple[Array, Array]:
            """v(u / scale) and its gradient in u."""
            v, slopes = ascended(u / self.scale)
            return v, slopes / self.scale

        def bounded(u: Array) -> Array:
            """Shorten frequencies that are too long, in their directions."""
            if max_norm is None:
                return u
            norms = row_norms(u / self.scale)
            return u * (max_norm / norms.clip(max_norm, None))

        slope = Slope(gradient, bounded, None if judge is None else lambda u: judge(u / self.scale))
        start, steps = bounded(self.W * self.scale), self.steps or options.steps
        if options.method == "quasi-newton":
            quasi_newton(slope, start, steps, self.stride)
        else:
            langevin(slope, start, steps, self.stride, noise=self._noise(options.noise, seed))
        if options.polish:
            # from the best visited points, with steps as long as the last ones of the ascent
            polished(slope, slope.best_points, options.polish, self.stride / steps)
        best = on_host(slope.best_points / self.scale)
        return best.astype(np.float32), on_host(slope.best_heights).astype(np.float64)

    def _noise(self, length: float, seed: int) -> Callable[[], Array] | None:
        """A source of noise with the given root mean square length, in each chain's own columns."""
        if not length:
            return None
        xp, W, draw = array_module(self.W), self.W, normal_source(self.W, seed)
        # q independent standard normal numbers have length sqrt(q)
        size = xp.asarray(length / xp.sqrt(xp.asarray(self.n_moving, dtype=W.dtype)), dtype=W.dtype)
        if self.columns is not None:
            size = size * xp.asarray(self.columns >= 0, dtype=W.dtype)
        return lambda: size * draw(W.shape)

    def on_all_columns(self, W: np.ndarray, width: int) -> np.ndarray:
        """Frequencies on all columns, (c, d), float32, from the entries in the chains' columns."""
        if self.columns is None:
            return W
        wide = np.zeros((len(W), width), np.float32)
        chains, slots = np.nonzero(self.columns >= 0)
        wide[chains, self.columns[chains, slots]] = W[chains, slots]
        return wide


def _all_columns(
    rows: _SplitRows, sigma: float, options: SearchOptions, seed: int, n_chains: int, extra: np.ndarray | None
) -> _Group | None:
    """Chains that move in all columns."""
    if n_chains == 0 and extra is None:
        return None
    d, xp = rows.X.shape[1], array_module(rows.X)
    draws = stream(seed, "starts").standard_normal((n_chains, d), dtype=np.float32)
    W = xp.asarray(draws * np.float32(np.sqrt(options.start) / sigma))
    if extra is not None:
        W = xp.concatenate([W, xp.asarray(extra, dtype=xp.float32)])
    # a random frequency of the kernel has length about sqrt(d) / sigma; steps are a share of it
    return _Group(rows, W, options.stride * np.sqrt(d) / sigma, d)


def _few_columns(rows: _SplitRows, options: SearchOptions, seed: int) -> _Group | None:
    """Chains on one to three columns that are not constant; None without any."""
    n_chains = round(options.chains * options.sparse_share)
    scales = rows.scales if n_chains else np.zeros(0)
    free = np.flatnonzero(scales > 0.0)
    if len(free) == 0:
        return None
    generator, xp = stream(seed, "columns"), array_module(rows.X)
    width = min(_MOST_COLUMNS, len(free))
    counts = generator.integers(1, width + 1, n_chains)
    columns = np.stack([generator.choice(free, width, replace=False) for _ in counts])
    columns[np.arange(width) >= counts[:, None]] = -1
    # coordinates for standardised columns, since sigma, a distance over all columns, is no scale for a few of them
    scale = np.where(columns >= 0, scales[columns], 1.0).astype(np.float32)
    draws = generator.standard_normal(columns.shape, dtype=np.float32) * (columns >= 0)
    W = draws / (scale * np.sqrt(counts[:, None], dtype=np.float32))
    moving = xp.asarray(counts[:, None])
    return _Group(rows, xp.asarray(W), 2.0 * options.stride, moving, xp.asarray(scale), columns)


def _near_columns(rows: _SplitRows, options: SearchOptions, seed: int, n_others: int) -> _Group | None:
    """Chains on neighbourhoods of correlated columns; None if there are none."""
    n_chains = round(options.near_share * n_others)
    if n_chains == 0 or hasattr(rows.X, "toarray"):
        return None
    scales, xp = rows.scales, array_module(rows.X)
    columns = neighbourhoods(rows.X, scales, n_chains, seed)
    if columns is None:
        return None
    counts = np.count_nonzero(columns >= 0, axis=1)[:, None]
    # the root mean square distance between two rows in these columns
    sigma = np.sqrt(2.0 * np.sum(np.where(columns >= 0, scales[columns] ** 2, 0.0), axis=1, keepdims=True))
    draws = stream(seed, "near starts").standard_normal(columns.shape, dtype=np.float32) * (columns >= 0)
    W = draws * (np.sqrt(options.start) / sigma).astype(np.float32)
    # in these coordinates the first step of every chain has the same length
    scale = xp.asarray((sigma / np.sqrt(counts)).astype(np.float32))
    return _Group(rows, xp.asarray(W), options.stride, xp.asarray(counts), scale, columns, options.near_steps)


def column_scales(X: Rows, weight: np.ndarray | None = None) -> np.ndarray:
    """Standard deviations of columns of (weighted) rows, (d,), float64; 0 for columns that vary only by rounding."""
    if isinstance(X, np.ndarray):
        weight = np.ones(len(X)) if weight is None else np.asarray(weight, dtype=np.float64)
        mean, square = dense_sums(X, weight) / weight.sum()
    elif weight is not None:
        share = array_module(X).asarray(weight / weight.sum())
        squares = X.multiply(X) if hasattr(X, "multiply") else X * X
        mean, square = on_host(X.T @ share), on_host(squares.T @ share)
    elif sparse.issparse(X) or hasattr(X, "toarray"):
        mean = np.asarray(on_host(X.mean(axis=0)), dtype=np.float64).ravel()
        square = np.asarray(on_host(X.multiply(X).mean(axis=0)), dtype=np.float64).ravel()
    else:
        mean = on_host(X.mean(axis=0, dtype=np.float64))
        square = on_host((X * X).mean(axis=0, dtype=np.float64))
    # E x^2 - (E x)^2 has rounding errors of the size of either term; a column below these is constant
    variance = square - mean**2
    return np.sqrt(np.where(variance > 1e-7 * square, variance, 0.0))


def neighbourhoods(X: Rows, scales: np.ndarray, count: int, seed: int) -> np.ndarray | None:
    """Randomly drawn columns, each with the columns of the strongest correlation with it.

    Parameters
    ----------
    X : ndarray or CuPy array of shape (n, d)
    scales : ndarray of shape (d,)
        Deviations of its columns.
    count : int
        The number of columns to draw.
    seed : int

    Returns
    -------
    ndarray of shape (count, WIDEST), int64, or None
        The drawn column first, then its neighbours; -1 for no column. Sizes range from `NARROWEST` to `WIDEST`, evenly
        on a logarithmic scale. None if fewer than `LEAST_COLUMNS` columns vary, or correlations are weak.
    """
    free = np.flatnonzero(scales >= _LEAST_DEVIATION * scales.max(initial=0.0))
    if len(free) < LEAST_COLUMNS or scales[free[0]] == 0.0:
        return None
    generator = stream(seed, "neighbourhoods")
    centres = generator.choice(len(free), count)
    sizes = np.exp(generator.uniform(np.log(NARROWEST), np.log(WIDEST + 1), count)).astype(np.int64)
    rows = on_host(X[:: -(-X.shape[0] // _CORRELATED_ROWS)])[:, free]
    # |covariance| with each column over that column's deviation: the correlation times the deviation of the centre
    at_centres = rows[:, centres]
    covariances = (at_centres - at_centres.mean(axis=0)).T @ rows / len(rows)
    strengths = np.abs(covariances) / scales[free]
    # the column itself comes first
    strengths[np.arange(count), centres] = np.inf
    order = np.argsort(-strengths, axis=1, kind="stable")[:, :WIDEST]
    fourth = strengths[np.arange(count), order[:, _NEIGHBOUR]] / scales[free[centres]]
    if np.median(fourth) < _RELATED:
        return None
    columns = free[order]
    columns[np.arange(WIDEST) >= sizes[:, None]] = -1
    return columns


class Slope:
    """The function to maximise, which stores the best point that each chain has visited; points are rows u (c, q).

    Arrays are on the device of the rows.

    Parameters
    ----------
    gradient : callable
        u -> (heights (c,), gradients (c, q)).
    bounded : callable
        u -> the nearest points within the bound.
    judge : callable or None
        u -> heights (c,) that decide which point is the best, if other than the maximised ones (such as on held-out
        rows).

    """

    def __init__(self, gradient: Gradient, bounded: Bounded, judge: Judge | None = None) -> None:
        self._gradient = gradient
        self.bounded = bounded
        self._judge = judge
        self._best: Array | None = None
        self._height: Array | None = None

    def __call__(self, u: Array) -> tuple[Array, Array]:
        """Heights and gradients at u; updates the best points."""
        v, gradient = self._gradient(u)
        # the ascent follows v, while the best point is the one with the greatest height on rows that it does not use
        height = v if self._judge is None else self._judge(u)
        if self._best is None or self._height is None:
            self._best, self._height = u, height
        else:
            xp, higher = array_module(u), height > self._height
            self._best = xp.where(higher[:, None], u, self._best)
            self._height = xp.where(higher, height, self._height)
        return v, gradient

    @property
    def best_points(self) -> Array:
        """The best point of each chain, (c, q)."""
        return _best_values(self._best)

    @property
    def best_heights(self) -> Array:
        """The heights there, (c,)."""
        return _best_values(self._height)


def _best_values(values: Array | None) -> Array:
    """Values at the best points; raises RuntimeError before the first evaluation."""
    if values is None:
        raise RuntimeError("the ascent has no best points yet: evaluate it once before they are asked for")
    return values


def row_norms(rows: Array) -> Array:
    """Lengths of rows, of shape (c, 1); never 0."""
    return array_module(rows).sqrt((rows * rows).sum(axis=1, keepdims=True)) + _LEAST


def langevin(slope: Slope, u: Array, steps: int, stride: float, *, noise: Callable[[], Array] | None = None) -> None:
    """Steps along the gradient of given length, decayed to zero, with noise.

    Parameters
    ----------
    slope : Slope
        Stores the best point visited.
    u : array of shape (c, q)
        The starts.
    steps : int
        Evaluations.
    stride : float
        Length of the first step; step t is (1 - t / steps) times as long.
    noise : callable or None
        Draws (c, q) numbers, in units of the step.

    Notes
    -----
    Bullins, Zhang & Zhang 2018, Algorithm 1: w + zeta grad v + sqrt(2 zeta / xi) z (the paper omits the root). Here
    zeta = length / |grad v| and, for noise of relative length r in q columns, xi = 2 q / (r^2 zeta |grad v|^2).
    """
    for t in range(steps - 1):
        gradient = slope(u)[1]
        # of length 1 whatever the gradient's length, since potentials differ by orders of magnitude between data sets
        move = gradient / row_norms(gradient)
        if noise is not None:
            move = move + noise()
        u = slope.bounded(u + u.dtype.type(stride * (1.0 - t / steps)) * move)
    slope(u)


def polished(slope: Slope, u: Array, steps: int, length: float) -> None:
    """Plain ascent: a step that gains is accepted, and the next one is longer; otherwise the length is halved.

    Parameters
    ----------
    slope, u, steps
        As in `langevin`.
    length : float
        The length of the first step.
    """
    xp = array_module(u)
    lengths = xp.full((len(u), 1), length, dtype=u.dtype)
    height, gradient = slope(u)
    # each chain has its own length, and one evaluation serves all chains
    for _ in range(steps - 1):
        trial = slope.bounded(u + lengths * gradient / row_norms(gradient))
        v, ahead = slope(trial)
        gains = (v > height)[:, None]
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        height = xp.maximum(height, v)
        lengths = lengths * xp.where(gains, u.dtype.type(_LONGER), u.dtype.type(_SHORTER))


def quasi_newton(slope: Slope, u: Array, steps: int, longest: float) -> None:
    """Limited-memory BFGS from every start; a step that gains too little is halved and tried again.

    Parameters
    ----------
    slope, u, steps
        As in `langevin`.
    longest : float
        The longest step; the first has half this length.
    """
    xp = array_module(u)
    v, gradient = slope(u)
    # in units of the first gradient, since heights differ by orders of magnitude between data sets, and may underflow
    unit = 1 / row_norms(gradient)
    v, gradient, share, pairs = v * unit[:, 0], gradient * unit, xp.ones_like(unit), _Pairs((), (), ())
    move = _of_length(gradient, longest / 2)
    for _ in range(steps - 1):
        trial = slope.bounded(u + share * move)
        height, ahead = slope(trial)
        height, ahead = height * unit[:, 0], ahead * unit
        promised = (share * move * gradient).sum(axis=1)
        gains = falls_enough(-height, -v, -promised)[:, None]
        pairs = pairs.joined(xp.where(gains, trial - u, 0), xp.where(gains, gradient - ahead, 0))
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        v = xp.where(gains[:, 0], height, v)
        # the quasi-Newton move if it ascends, cut to the longest length; otherwise a step along the gradient
        newton = pairs.newton_direction(gradient)
        ascends = (newton * gradient).sum(axis=1, keepdims=True) > 0
        bounded = newton * (u.dtype.type(longest) / row_norms(newton)).clip(None, 1)
        move = xp.where(gains, xp.where(ascends, bounded, _of_length(gradient, longest / 2)), move)
        share = xp.where(gains, u.dtype.type(1), share / 2)


def _of_length(move: Array, length: float) -> Array:
    """Moves of the same directions and a given length."""
    return move * (move.dtype.type(length) / row_norms(move))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The last steps of each chain, the gradient's falls along them, and 1 / (step . fall), or 0 if not concave."""

    steps: tuple[Array, ...]
    changes: tuple[Array, ...]
    inverses: tuple[Array, ...]

    def joined(self, step: Array, change: Array) -> _Pairs:
        """The memory with one more pair and without the oldest; zeros for chains that did not move."""
        xp = array_module(step)
        product = (step * change).sum(axis=1, keepdims=True)
        # if the curvature along the step is not clearly positive, the pair would make the inverse Hessian indefinite
        sound = product > (1e-6 * row_norms(step) * row_norms(change)).clip(_LEAST, None)
        inverse = xp.where(sound, 1 / xp.where(sound, product, 1), 0).astype(step.dtype)
        kept = slice(-_MEMORY + 1, None)
        return _Pairs((*self.steps[kept], step), (*self.changes[kept], change), (*self.inverses[kept], inverse))

    def newton_direction(self, gradient: Array) -> Array:
        """Minus the inverse Hessian by these pairs, times the gradient (Nocedal & Wright 2006, algorithm 7.4)."""
        xp, move, shares = array_module(gradient), gradient, []
        memory = list(zip(self.steps, self.changes, self.inverses, strict=True))
        # the recursion starts from the identity times gamma = s.y / y.y of the latest valid pair
        factor = xp.ones_like(move[:, :1])
        for _, change, inverse in memory:
            size = inverse * (change * change).sum(axis=1, keepdims=True)
            factor = xp.where(size > 0, 1 / xp.where(size > 0, size, 1), factor)
        for step, change, inverse in reversed(memory):
            shares.append(inverse * (step * move).sum(axis=1, keepdims=True))
            move = move - shares[-1] * change
        move = move * factor
        for (step, change, inverse), share in zip(memory, reversed(shares), strict=True):
            move = move + step * (share - inverse * (change * move).sum(axis=1, keepdims=True))
        return move
