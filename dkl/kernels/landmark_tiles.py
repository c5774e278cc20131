"""Similarities to landmarks, by cosines or by a kernel in closed form, a tile of rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.features.landmark_projection import SharedLandmarkProjection, Similarities
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.compiled import njit
from dkl.kernels.products import DenseForm, Product
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION, write_cosines, write_waves
from dkl.kernels.tiles import RowTiles, spans
from dkl.process import TwoForms
from dkl.protocols.arrays import Array, Rows

# Operations of a product that take as long as a distance, its square root and its exponential, in addition to those for
# each column of a row.
KERNEL_FLOPS = 40
NYSTROM_ROWS = 1024
# Landmarks whose distances fit the first cache, together with the columns that are added to them.
_LANDMARKS_AT_ONCE = 512
# Columns multiplied at once: with fewer, more products with the zeros of a triangular matrix are left out (with 128 the
# products of 400 and 1,000 columns take .70 and .77 of their time with 512).
_PANEL = 128
# Largest noise of single precision in features, whose length is about 1.
_NOISE = 5e-4
# Landmarks up to which double precision hardly takes longer than single.
_FEW_LANDMARKS = 256


class KernelValues:
    """k(x, z) of rows x and fixed landmarks z.

    Kernels of one norm of x - y are computed in `dtype`, after the mean of the landmarks is subtracted from both, so
    that a common offset loses no digits: in single precision the error is a few roundings of the row's own length, in
    bandwidths. Other kernels are `kernel.kernel`, in double precision.

    Parameters
    ----------
    kernel : Family
        Its bandwidth must be known.
    landmarks : ndarray of shape (l, d)
    dtype : dtype
        dtype of the result.
    """

    def __init__(self, kernel: Any, landmarks: np.ndarray, dtype: np.dtype) -> None:
        self.kernel, self.landmarks, self.dtype = kernel, landmarks, dtype
        self.norm = getattr(kernel, "norm", None)
        if self.norm is not None:
            self._centre, self._scale = landmarks.mean(axis=0), 1.0 / float(kernel.sigma)
            self._columns = np.ascontiguousarray(self._in_bandwidths(landmarks).T)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Of shape (n, l), for rows (n, d)."""
        if self.norm is None:
            values: np.ndarray = self.kernel.kernel(rows, self.landmarks)
        else:
            distances = np.zeros((len(rows), len(self.landmarks)), self.dtype)
            moved = self._in_bandwidths(rows)
            _DISTANCES(distances.size * moved.shape[1], moved, self._columns, self.norm == "l2", distances)
            values = self.kernel.of_distances(np.sqrt(distances, out=distances) if self.norm == "l2" else distances)
        return values.astype(self.dtype, copy=False)

    def _in_bandwidths(self, rows: np.ndarray) -> np.ndarray:
        """Rows minus the mean of the landmarks, in bandwidths; columns of zeros pad them to a multiple of four."""
        n, d = rows.shape
        moved = np.zeros((n, -(-d // 4) * 4), self.dtype)
        moved[:, :d] = (rows - self._centre) * self._scale
        return moved


class NystromProduct:
    """The features k(x, Z) A of rows, with amplitudes; everything that depends on the map alone is computed once.

    The entries of A are large if the kernel matrix is nearly singular, and single precision adds noise in proportion;
    it is used if `nystrom_precision` finds this noise small compared with the features. Columns of A that end in zeros,
    as in a triangular matrix, are multiplied without these.

    Parameters
    ----------
    feature_map : FeatureMap
        A map with a `NystromProjection`.
    dtype : dtype
        dtype of the features.
    alike : bool
        Whether the bits of a row are to be independent of the other rows.
    """

    def __init__(self, feature_map: FeatureMap, dtype: np.dtype, *, alike: bool = False) -> None:
        projection = feature_map.projection_as(NystromProjection)
        self.feature_map, self.projection, self.dtype = feature_map, projection, dtype
        is_large = len(projection.landmarks) > _FEW_LANDMARKS
        self.precision = (
            nystrom_precision(projection, feature_map.amplitudes, dtype) if is_large else np.dtype(np.float64)
        )
        self.similarities = KernelValues(projection.kernel, projection.landmarks, self.precision)
        self.panels: list[tuple[slice, int, Callable[[np.ndarray], np.ndarray]]] = []
        for columns in spans(projection.n_frequencies, _PANEL):
            panel = projection.whitening[:, columns] * feature_map.amplitudes[columns]
            filled = np.flatnonzero(panel.any(axis=1))
            last = int(filled[-1]) + 1 if len(filled) else 0
            self.panels.append((columns, last, _multiplier(panel[:last], self.precision, alike)))
        metric = projection.metric
        self.moved: Callable[[np.ndarray], np.ndarray] = projection.moved
        if alike and metric is not None and metric.ndim == 2:
            self.moved = _multiplier(metric, np.dtype(np.float64), alike)

    def __call__(self, X: Rows, buffer: np.ndarray | None = None) -> np.ndarray:
        """The features, of shape (n, m); written to the first rows and columns of `buffer`, if given."""
        n_features = self.projection.n_frequencies
        out = np.empty((X.shape[0], n_features), self.dtype) if buffer is None else buffer[: X.shape[0]]
        for rows, tile in RowTiles(X, self.feature_map, np.dtype(np.float64), dense=True, rows=NYSTROM_ROWS):
            similarities = self.similarities(self.moved(tile))
            for columns, last, times_panel in self.panels:
                out[rows, columns] = times_panel(similarities[:, :last])
        return out[:, :n_features]


def nystrom_precision(projection: NystromProjection, amplitudes: np.ndarray, dtype: DTypeLike) -> np.dtype:
    """The precision of similarities and of their products with A, for features in `dtype`."""
    # similarities, of at most 1, are rounded by eps, which adds a noise of eps |A| to the features of a row
    noise = np.finfo(np.float32).eps * np.linalg.norm(projection.whitening * amplitudes)
    return np.dtype(np.float32 if np.dtype(dtype) == np.float32 and noise <= _NOISE else np.float64)


def _multiplier(matrix: np.ndarray, dtype: np.dtype, alike: bool) -> Callable[[np.ndarray], np.ndarray]:
    """A function that multiplies rows by a matrix; with `alike` the bits of a row are independent of the other rows."""
    if not alike or matrix.size == 0:
        matrix = np.ascontiguousarray(matrix, dtype=dtype)
        return lambda rows: rows @ matrix
    form, columns = DenseForm(matrix.T, dtype, alike=True), slice(0, matrix.shape[1])
    return lambda rows: form(rows, columns)


class SimilarityProduct:
    """The similarities of spans of the rows of a block; everything that depends on the map alone is computed once."""

    def __init__(self, X: Rows, feature_map: FeatureMap, dtype: np.dtype, *, alike: bool = False) -> None:
        waves = wave_map(feature_map)
        self.product = Product(X, waves, dtype, alike=alike)
        self.n_similarities, self.dtype = feature_map.n_frequencies, dtype
        self.parts = list(spans(waves.n_frequencies, self.product.step))
        projection, amplitudes = _projection(feature_map), feature_map.amplitudes
        if isinstance(projection, SharedLandmarkProjection):
            self.add: _OwnFrequencies | _SharedFrequencies = _SharedFrequencies(
                projection.mixing * amplitudes[:, None], self.parts, dtype, alike
            )
        else:
            self.add = _OwnFrequencies(projection.weights * amplitudes[projection.owners], projection.starts, dtype)

    def __call__(self, rows: slice) -> np.ndarray:
        """Similarities with amplitudes, of shape (rows, n_L)."""
        out = np.zeros((rows.stop - rows.start, self.n_similarities), self.dtype)
        for part, tile in self.product.tiles.within(rows):
            # a similarity is a sum over frequencies, of which each span adds a part, so that tiles of angles stay small
            for chosen in self.parts:
                self.add(self.product(tile, chosen), chosen, out[part])
        return out


class _OwnFrequencies:
    """Adds the cosines of each landmark's own frequencies, which are contiguous, to its similarity."""

    def __init__(self, weights: np.ndarray, starts: np.ndarray, dtype: np.dtype) -> None:
        self.weights, self.starts = weights.astype(dtype), starts

    def __call__(self, z: np.ndarray, chosen: slice, values: np.ndarray) -> None:
        # the landmark of the first frequency of the span, which may begin among that landmark's frequencies
        first = int(np.searchsorted(self.starts, chosen.start, side="right")) - 1
        _add_cosines(z, self.weights, self.starts, chosen.start, first, values)


class _SharedFrequencies:
    """Adds the contribution of waves of some shared frequencies to every similarity."""

    def __init__(self, mixing: np.ndarray, parts: list[slice], dtype: np.dtype, alike: bool) -> None:
        # The mixing matrix has the weights of all cosines, then those of all sines; a span of frequencies needs its
        # columns of both halves.
        cosines, sines = np.split(mixing.astype(dtype), 2, axis=1)
        self.forms = {
            part.start: DenseForm(np.concatenate([cosines[:, part], sines[:, part]], axis=1), dtype, alike=alike)
            for part in parts
        }

    def __call__(self, z: np.ndarray, chosen: slice, values: np.ndarray) -> None:
        width = z.shape[1]
        waves = np.empty((len(z), 2 * width), z.dtype)
        write_waves(z, np.ones(width, z.dtype), 0, waves, True)
        values += self.forms[chosen.start](waves, slice(0, values.shape[1]))


def similarity_values(xp: ModuleType, z: Array, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """The similarities (n, n_L) from angles z (n, m), phases included, by operations of any array namespace."""
    projection = _projection(feature_map)
    amplitudes = xp.asarray(feature_map.amplitudes, dtype=dtype)
    if isinstance(projection, SharedLandmarkProjection):
        waves = xp.concat([xp.cos(z), xp.sin(z)], axis=1)
        return xp.matmul(waves, xp.asarray(projection.mixing, dtype=dtype).T) * amplitudes
    # A table of the frequencies of each landmark, as wide as the longest list: the gathered cosines are summed along
    # it.
    lengths = np.diff(projection.starts)
    places = np.minimum(projection.starts[:-1, None] + np.arange(lengths.max()), len(projection.weights))
    # shorter lists are padded with the index of a column of zeros
    places[np.arange(lengths.max()) >= lengths[:, None]] = len(projection.weights)
    cosines = xp.cos(z) * xp.asarray(projection.weights, dtype=dtype)
    padded = xp.concat([cosines, xp.zeros((z.shape[0], 1), dtype=dtype)], axis=1)
    gathered = xp.take(padded, xp.asarray(places.ravel()), axis=1)
    return xp.sum(xp.reshape(gathered, (z.shape[0], *places.shape)), axis=2) * amplitudes


def wave_map(feature_map: FeatureMap) -> FeatureMap:
    """The map to the waves of which the similarities to landmarks are linear combinations, with the same scaler.

    If each landmark has its own frequencies, it is a "cos" map of one cosine for each of them, times its weight. If all
    landmarks share their frequencies, it is a "cos-sin" map with amplitudes 1.
    """
    projection = _projection(feature_map)
    if isinstance(projection, SharedLandmarkProjection):
        # mixing needs plain cosines and sines: the weights are in the mixing matrix
        ones = np.ones(projection.frequencies.n_frequencies)
        return FeatureMap("cos-sin", projection.frequencies, ones, scaler=feature_map.scaler)
    return FeatureMap(
        "cos", projection.frequencies, projection.weights, phases=projection.phases, scaler=feature_map.scaler
    )


def on_waves(feature_map: FeatureMap, coef: np.ndarray) -> np.ndarray:
    """The coefficients (..., n_L) of a linear form of similarities as coefficients on its `wave_map`."""
    return _projection(feature_map).on_waves(coef * feature_map.amplitudes)


def _projection(feature_map: FeatureMap) -> Similarities:
    """The similarities of a map of landmarks; TypeError for another map."""
    if not isinstance(feature_map.projection, Similarities):
        raise TypeError(f"a map of landmarks needs a LandmarkProjection, not {type(feature_map.projection).__name__}")
    return feature_map.projection


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_cosines(
    z: np.ndarray, weights: np.ndarray, starts: np.ndarray, begin: int, first: int, out: np.ndarray
) -> None:
    """Add the cosines of angles z (n, F), frequencies `begin` on, to their similarities, `first` on."""
    width = z.shape[1]
    buffer = np.empty(width, z.dtype)
    for i in range(z.shape[0]):
        # all cosines of a row at once: those of one landmark are too few for vector code
        write_cosines(z[i], weights[begin : begin + width], buffer)
        landmark, j = first, 0
        while j < width:
            stop = min(starts[landmark + 1] - begin, width)
            out[i, landmark] += _sum(buffer[j:stop])
            landmark, j = landmark + 1, stop


@njit(nogil=True, fastmath=REDUCTION)
def _sum(values: np.ndarray) -> float:
    """The sum; additions may be reordered for vector code."""
    total = values.dtype.type(0)
    for k in range(len(values)):
        total += values[k]
    return total


def _few_distances(X: np.ndarray, columns: np.ndarray, squared: bool, out: np.ndarray) -> None:
    """out[i, l] += sum_j |X[i, j] - columns[j, l]|, or its square; the number of columns must be a multiple of four."""
    # rows whose differences fit the cache
    for rows in spans(len(X), 32):
        for j in range(0, X.shape[1], 4):
            gaps = [X[rows, j + k, None] - columns[j + k] for k in range(4)]
            p, q, r, s = [gap * gap if squared else np.abs(gap) for gap in gaps]
            out[rows] += (p + q) + (r + s)


# without flags that let the compiler fuse or reorder operations, so that the bits equal those of NumPy
@njit(nogil=True)
def _many_distances(X: np.ndarray, columns: np.ndarray, squared: bool, out: np.ndarray) -> None:
    """As in `_few_distances`."""
    for first in range(0, out.shape[1], _LANDMARKS_AT_ONCE):
        last = first + _LANDMARKS_AT_ONCE
        for i in range(len(X)):
            for j in range(0, X.shape[1], 4):
                # four columns at once: the sums are loaded and stored a quarter as often
                a, b = columns[j, first:last], columns[j + 1, first:last]
                c, d = columns[j + 2, first:last], columns[j + 3, first:last]
                _add_four(X[i, j : j + 4], (a, b, c, d), squared, out[i, first:last])


@njit(nogil=True)
def _add_four(
    row: np.ndarray, columns: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray], squared: bool, out: np.ndarray
) -> None:
    """Add the differences between four numbers of a row and those of landmarks to their sums.

    A separate function whose arguments are views, as only then the compiler vectorises its loops.
    """
    x, y, z, w = row[0], row[1], row[2], row[3]
    a, b, c, d = columns
    if squared:
        for at in range(len(out)):
            p, q, r, s = x - a[at], y - b[at], z - c[at], w - d[at]
            out[at] += (p * p + q * q) + (r * r + s * s)
    else:
        for at in range(len(out)):
            out[at] += (abs(x - a[at]) + abs(y - b[at])) + (abs(z - c[at]) + abs(w - d[at]))


# Numbers that NumPy processes in one to two and a half seconds; compiling takes about one.
_DISTANCES = TwoForms(_few_distances, _many_distances, 1_000_000_000)
