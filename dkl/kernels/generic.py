"""The block arithmetic in array-API operations, for GPUs where a CUDA kernel of its own is not worth it."""

from __future__ import annotations

from functools import cache
from hashlib import blake2b
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike

from dkl.errors import ColumnError
from dkl.features.feature_map import CombinedProjection, FeatureMap
from dkl.features.landmark_projection import Similarities
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.projections import ColumnProjection, Projection, SparseProjection, StructuredProjection
from dkl.features.scaling import Scaler
from dkl.features.step_projection import HINGE, StepProjection
from dkl.kernels.cuda_source import kernel_source
from dkl.kernels.harmonic_tiles import harmonic_values
from dkl.kernels.landmark_tiles import nystrom_precision, similarity_values, wave_map
from dkl.kernels.refusals import refuse_later
from dkl.kernels.scale import linear_part, negative_count, normal_scores, quantile_knots
from dkl.protocols.arrays import Array

# threads of a block
THREADS = 128

# The arrays of projections and scalers on a device. They are kept as long as the projection object: on a worker during
# a pass, and longer if the next pass has the same object. Objects are not compared by their values, since reading a
# matrix for that takes longer than sending it.
_placed: WeakKeyDictionary[Projection | Scaler, dict[str, Any]] = WeakKeyDictionary()


def placed_matrix(xp: ModuleType, projection: Projection, dtype: DTypeLike) -> Any:
    """The matrix W of a projection, (m, d), on the device of `xp`; it is sent once, not with every tile of rows."""
    # in the export of a graph `xp` is not a module and arrays are symbols
    if xp is np or not isinstance(xp, ModuleType):
        return xp.asarray(projection.dense(), dtype=dtype)
    matrices = _placed.setdefault(projection, {})
    kind = f"{xp.__name__} {dtype}"
    if kind not in matrices:
        matrices[kind] = _written_out(xp, projection, dtype)
    return matrices[kind]


def _written_out(xp: ModuleType, projection: Projection, dtype: DTypeLike) -> Any:
    """W on the device of `xp`; only the entries of a sparse W are sent to a GPU."""
    if xp.__name__ != "cupy" or not isinstance(projection, SparseProjection):
        return xp.asarray(projection.dense(), dtype=dtype)
    W = xp.zeros((projection.n_frequencies, projection.n_columns), dtype=dtype)
    rows = projection.owners
    # the entries of a projection are distinct, so that assignment is enough
    W[xp.asarray(rows), xp.asarray(projection.indices)] = xp.asarray(projection.data, dtype=dtype)
    return W


def placed_steps(xp: ModuleType, projection: StepProjection) -> tuple[Any, ...]:
    """Columns, thresholds, kinds and upper ends of steps on the device of `xp`; sent once, not with every tile."""
    tables = _placed.setdefault(projection, {})
    if "steps" not in tables:
        kinds = projection.kinds == HINGE
        whole = [np.ascontiguousarray(table, dtype=np.int32) for table in (projection.columns, kinds)]
        real = [np.ascontiguousarray(table, dtype=np.float64) for table in (projection.thresholds, projection.high)]
        columns, hinges, thresholds, high = map(xp.asarray, (*whole, *real))
        tables["steps"] = (columns, thresholds, hinges, high)
    return tables["steps"]


def forget_matrices() -> None:
    """Free all arrays on devices, to have their memory for something else."""
    _placed.clear()


def mapped(xp: ModuleType, X: Array, feature_map: FeatureMap, dtype: DTypeLike) -> list[Any]:
    """The parts of phi of dense rows, amplitudes included: one or two arrays (n, m).

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d)
    feature_map : FeatureMap
    dtype : dtype object of `xp`
    """
    amplitudes = xp.asarray(feature_map.amplitudes, dtype=dtype)
    if isinstance(feature_map.projection, CombinedProjection):
        of_parts = [phi for part in feature_map.projection.maps for phi in mapped(xp, X, part, dtype)]
        return [xp.concat(of_parts, axis=1) * amplitudes]
    if feature_map.activation == "harmonics":
        # the recurrences divide by the lengths of rows, and need float64 for results of any dtype
        rows = scaled(xp, X, feature_map.scaler, xp.float64)
        return [harmonic_values(xp, rows, feature_map, dtype) * amplitudes]
    if isinstance(feature_map.projection, StepProjection):
        rows = scaled(xp, X, feature_map.scaler, xp.float64)
        return [xp.asarray(step_values(xp, rows, feature_map.projection), dtype=dtype) * amplitudes]
    if isinstance(feature_map.projection, NystromProjection):
        rows, nystrom = scaled(xp, X, feature_map.scaler, xp.float64), feature_map.projection
        if getattr(xp, "__name__", "") == "cupy" and getattr(nystrom.kernel, "is_elementary", False):
            precision = _precision(nystrom, feature_map.amplitudes, dtype)
            return [xp.asarray(_nystrom_values(xp, rows, nystrom, precision), dtype=dtype) * amplitudes]
        # other kernels use SciPy: their similarities are computed on the host, and the result is sent to the device
        host = rows.get() if hasattr(rows, "get") else np.asarray(rows)
        similarities = nystrom.kernel.kernel(nystrom.moved(host), nystrom.landmarks)
        return [xp.asarray(similarities @ nystrom.whitening, dtype=dtype) * amplitudes]
    rows = scaled(xp, X, feature_map.scaler, dtype)
    if isinstance(feature_map.projection, Similarities):
        return [similarity_values(xp, angles(xp, rows, wave_map(feature_map), dtype), feature_map, dtype)]
    if feature_map.function is None:
        raise TypeError(f"features {feature_map.activation!r} are not a function of one linear form")
    return [phi * amplitudes for phi in feature_map.function.values(xp, angles(xp, rows, feature_map, dtype))]


def _precision(nystrom: NystromProjection, amplitudes: np.ndarray, dtype: DTypeLike) -> np.dtype:
    """`nystrom_precision`, which reads a whole matrix; computed once for given amplitudes, not with every tile."""
    known = _placed.setdefault(nystrom, {})
    key = f"precision {dtype} {blake2b(amplitudes.tobytes()).hexdigest()}"
    if key not in known:
        known[key] = nystrom_precision(nystrom, amplitudes, dtype)
    return known[key]


def launch(xp: ModuleType, name: str, dtype: str, n_threads: int, operands: tuple[Any, ...]) -> None:
    """Run a kernel of `kernel_source` with at least `n_threads` threads in one dimension."""
    grid = (-(-n_threads // THREADS),)
    compiled(xp, kernel_source(name, dtype), name)(grid, (THREADS,), operands)


@cache
def compiled(xp: ModuleType, source: str, name: str) -> Any:
    """A kernel of CUDA source, compiled when it is first called."""
    return xp.RawKernel(source, name)


def _nystrom_values(xp: ModuleType, rows: Array, nystrom: NystromProjection, precision: np.dtype) -> Any:
    """k(x, Z) A of scaled rows (n, d) on a GPU, of shape (n, m), in a precision."""
    matrices = _placed.setdefault(nystrom, {})
    if f"nystrom {precision}" not in matrices:
        # subtracting the mean of the landmarks from rows and landmarks keeps digits that a common offset would take
        centre, sigma = nystrom.landmarks.mean(axis=0), float(nystrom.kernel.sigma)
        columns = np.ascontiguousarray(((nystrom.landmarks - centre) / sigma).T, dtype=precision)
        metric = None if nystrom.metric is None else xp.asarray(nystrom.metric)
        whitening = xp.asarray(nystrom.whitening, dtype=precision)
        matrices[f"nystrom {precision}"] = (metric, xp.asarray(centre), xp.asarray(columns), whitening)
    metric, centre, columns, whitening = matrices[f"nystrom {precision}"]
    if metric is not None:
        rows = rows * metric if metric.ndim == 1 else xp.matmul(rows, metric)
    moved = xp.ascontiguousarray((rows - centre) * (1.0 / float(nystrom.kernel.sigma)), dtype=precision)
    (d, n_landmarks), n = columns.shape, moved.shape[0]
    distances = xp.empty((n, n_landmarks), dtype=precision)
    if n:
        sizes = (np.int32(n), np.int32(n_landmarks), np.int32(d), np.int32(nystrom.kernel.norm == "l2"))
        operands = (moved, columns, distances, *sizes)
        launch(xp, "distances", precision.name, n * n_landmarks, operands)
    return xp.matmul(nystrom.kernel.of_distances(distances), whitening)


def step_values(xp: ModuleType, rows: Array, projection: StepProjection) -> Any:
    """The products of steps and hinges of scaled rows, of shape (n, m), float64."""
    values = xp.ones((rows.shape[0], projection.n_frequencies), dtype=xp.float64)
    for factor in range(projection.columns.shape[1]):
        column, t = projection.columns[:, factor], projection.thresholds[:, factor]
        x = xp.take(rows, xp.asarray(np.maximum(column, 0)), axis=1)
        above = xp.asarray(x > xp.asarray(t), dtype=xp.float64)
        is_hinge = projection.kinds[:, factor] == HINGE
        if is_hinge.any():
            high = xp.asarray(projection.high[np.maximum(column, 0)])
            length = xp.where(x > high, high, x) - xp.asarray(t)
            above = xp.where(xp.asarray(is_hinge), above * length, above)
        values = xp.where(xp.asarray(column >= 0), values * above, values)
    return values


def slopes(xp: ModuleType, z: Array, feature_map: FeatureMap, outer: Array) -> Any:
    """The derivative of outer . phi with respect to each angle z (n, m), for coefficients outer (parts, m): (n, m).

    For several models, with outer (parts, K, 1, m), it is (K, n, m).
    """
    if feature_map.is_fourier:
        # (a cos z + b sin z)' = b cos z - a sin z, where a map of cosines has no b: no array of -sin z
        down = outer[0] * xp.sin(z)
        return -down if len(outer) == 1 else outer[1] * xp.cos(z) - down
    derivatives = None if feature_map.function is None else feature_map.function.slopes(xp, z)
    if derivatives is None:
        raise TypeError(f"features {feature_map.activation!r} have no derivative")
    total = outer[0] * derivatives[0]
    for own, derivative in zip(outer[1:], derivatives[1:], strict=True):
        total = total + own * derivative
    return total


def angles(xp: ModuleType, rows: Array, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """W x + phases of scaled rows, of shape (n, m)."""
    z = projected(xp, rows, feature_map.projection, dtype)
    return z if feature_map.phases is None else z + xp.asarray(feature_map.phases, dtype=dtype)


def projected(xp: ModuleType, rows: Array, projection: Projection, dtype: DTypeLike) -> Any:
    """W x of scaled rows, of shape (n, m)."""
    if isinstance(projection, ColumnProjection):
        return xp.take(rows, xp.asarray(projection.columns), axis=1)
    if isinstance(projection, StructuredProjection):
        return _structured_product(xp, rows, projection, dtype)
    # in true float32, since the shorter format of tensor cores is too coarse for the cosine of a large angle
    return xp.matmul(rows, placed_matrix(xp, projection, dtype).T)


def scaled(xp: ModuleType, X: Array, scaler: Scaler | None, dtype: DTypeLike) -> Any:
    """Rows scaled in float64 and cast to `dtype`."""
    if scaler is None:
        return xp.asarray(X, dtype=dtype)
    # in float64, since float32 would lose the digits of a column with a large mean and a small spread
    X = xp.asarray(X, dtype=xp.float64)
    if scaler.kind == "counts":
        return xp.asarray(_scaled_counts(xp, X, scaler), dtype=dtype)
    if getattr(xp, "__name__", "") == "cupy":
        return _scaled_on_gpu(xp, X, scaler, np.dtype(dtype))
    if scaler.kind == "quantile":
        return xp.asarray(quantile_scores(xp, X, scaler), dtype=dtype)
    center, factor = linear_part(scaler)
    return xp.asarray((X - xp.asarray(center)) * xp.asarray(factor), dtype=dtype)


def _scaled_counts(xp: ModuleType, X: Array, scaler: Scaler) -> Any:
    """Logarithms of counts, scaled to rows of unit length, like `dkl.kernels.scale.scale_dense_counts`."""
    passes = xp.asarray(scaler.passthrough)[None, :]
    counts = xp.where(passes, xp.zeros_like(X), X)
    if getattr(xp, "__name__", "") == "cupy":

        def negative() -> ColumnError:
            values = counts.get()
            row, column = np.argwhere(values < 0.0)[0]
            return negative_count(int(column), values[row, column])

        refuse_later(counts < 0.0, negative)
        logs = xp.log1p(xp.where(counts > 0.0, counts, xp.zeros_like(X)))
    else:
        logs = xp.log1p(counts)
    squares = xp.sum(logs * logs, axis=1)[:, None]
    lengths = xp.where(squares > 0.0, xp.sqrt(squares), xp.ones_like(squares))
    return xp.where(passes, X, logs / lengths)


def _scaled_on_gpu(xp: ModuleType, X: Array, scaler: Scaler, dtype: np.dtype) -> Any:
    """`scaled` rows by a single CUDA kernel; for quantiles the general code takes many calls for each column."""
    table = _placed.setdefault(scaler, {})
    if "scaling" not in table:
        if scaler.kind == "quantile":
            knots = np.ascontiguousarray(quantile_knots(scaler).T)
            center, factor = np.zeros(scaler.n_columns), np.where(scaler.passthrough, 1.0, 0.0)
        else:
            knots, (center, factor) = np.zeros((0, 0)), linear_part(scaler)
        scores = normal_scores(knots.shape[1]) if knots.size else np.zeros(0)
        numbers = [np.ascontiguousarray(one, dtype=np.float64) for one in (center, factor, knots, scores)]
        table["scaling"] = [*map(xp.asarray, numbers), knots.shape[1]]
    *numbers, n_knots = table["scaling"]
    out, sizes = xp.empty(X.shape, dtype=dtype), map(np.int32, (*X.shape, n_knots))
    if out.size:
        launch(xp, "scale", dtype.name, out.size, (xp.ascontiguousarray(X), *numbers, out, *sizes))
    return out


def _structured_product(xp: ModuleType, rows: Array, projection: StructuredProjection, dtype: DTypeLike) -> Array:
    """z = radii * (H S1 H S2 H S3 x) / p^(3/2) for each block of a `StructuredProjection`."""
    n, width, padded = rows.shape[0], projection.width, projection.padded
    rows = xp.concat([rows, xp.zeros((n, padded - width), dtype=dtype)], axis=1) if padded > width else rows
    outputs = []
    for signs in projection.signs:
        block = rows
        for diagonal in (2, 1, 0):
            block = block * xp.asarray(signs[diagonal], dtype=dtype)
            # the Walsh-Hadamard transform H: stages of sums and differences of entries at distances 1, 2, 4, ...
            half = 1
            while half < padded:
                pairs = xp.reshape(block, (n, padded // (2 * half), 2, half))
                even, odd = pairs[:, :, 0, :], pairs[:, :, 1, :]
                block = xp.reshape(xp.stack([even + odd, even - odd], axis=2), (n, padded))
                half *= 2
        outputs.append(block)
    products = xp.take(xp.concat(outputs, axis=1), xp.asarray(projection.numbers()), axis=1)
    return products * xp.asarray(projection.radii / padded**1.5, dtype=dtype)


def quantile_scores(xp: ModuleType, X: Array, scaler: Scaler) -> Any:
    """Each column through its empirical distribution to normal scores, as `dkl.kernels.scale.scale_rows` in float64.

    Parameters
    ----------
    xp : array namespace of `X`
    X : array of shape (n, d), float64
    scaler : Scaler
        Of kind "quantile", with q knots a column.
    """
    knots = quantile_knots(scaler)
    scores, last = xp.asarray(normal_scores(len(knots))), len(knots) - 1
    # column by column, filled up with infinities to one less than a power of two, which halving needs: (d, 2^k - 1)
    length = (1 << len(knots).bit_length()) - 1
    filled = np.pad(knots.T, ((0, 0), (0, length - len(knots))), constant_values=np.inf)
    # the knots of column j stand at j * length of one flat table
    flat, base = xp.asarray(filled.ravel()), xp.asarray(np.arange(len(filled)) * length)

    def looked_up(table: Any, places: Any) -> Any:
        return xp.reshape(xp.take(table, xp.reshape(places, (-1,))), X.shape)

    def counted(*, strict: bool) -> Any:
        """For each number the count of its column's knots that are less than it (or equal to it, unless `strict`)."""
        # Bisection in a fixed number of steps, as a graph needs it: there are 2^k - 1 knots, infinities among them.
        place, step = xp.zeros_like(xp.asarray(X, dtype=xp.int64)) + base, (length + 1) // 2
        while step:
            probe = looked_up(flat, place + (step - 1))
            is_below = probe < X if strict else probe <= X
            place = place + xp.asarray(is_below, dtype=xp.int64) * step
            step //= 2
        return place - base

    left, right = counted(strict=True), counted(strict=False)
    # Each number lies between two knots of its column; before the first and after the last one both are the same.
    below, above = xp.clip(left - 1, 0, last), xp.clip(left, 0, last)
    low, high = looked_up(flat, below + base), looked_up(flat, above + base)
    gap = high - low
    # Between knots the score is interpolated. Equal knots have no gap, and any divisor will do: such numbers are ties.
    share = (X - low) / xp.where(gap > 0, gap, xp.ones_like(gap))
    start, stop = looked_up(scores, below), looked_up(scores, above)
    between = start + xp.clip(share, 0.0, 1.0) * (stop - start)
    # Several knots at one value mean that many rows have it: its score is the middle of theirs.
    tied = 0.5 * (stop + looked_up(scores, xp.clip(right - 1, 0, last)))
    scaled = xp.where(right > left, tied, between)
    return xp.where(xp.asarray(scaler.passthrough)[None, :], X, scaled)
