"""Spherical harmonics of row tiles by recurrences: one multiplication for each row and harmonic."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from dkl.features.feature_map import FeatureMap
from dkl.features.harmonic_projection import HarmonicProjection, HarmonicTerms
from dkl.kernels.compiled import njit
from dkl.kernels.refusals import refuse_later
from dkl.kernels.sincos import ELEMENTWISE, REDUCTION, dot
from dkl.kernels.tiles import RowTiles
from dkl.protocols.arrays import Array, Rows

# a harmonic of a row takes the time of about 50 operations of a matrix product, mostly to move numbers
HARMONIC_FLOPS = 50
# largest deviation of a row's length from 1; as rows are divided by their length anyway, this only detects mistakes
OFF_SPHERE = 1e-3
# numbers of a tile, which fit the caches
_TILE_VALUES = 1 << 19


def harmonic_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype, *, power: int) -> np.ndarray:
    """sum_i S[i, k] Y_j(x_i)^power, without amplitudes: float64 of shape (1, m, K)."""
    # The recurrences omit the norms of the harmonics, a factor for each that is the same in all rows; it is applied at
    # the end.
    coefficients = feature_map.projection_as(HarmonicProjection).terms.coefficients
    total = np.zeros((feature_map.n_frequencies, S.shape[1]))
    for rows, values in harmonic_tiles(X, feature_map, dtype):
        _add_sums(values, np.ascontiguousarray(S[rows].T, dtype=dtype), power, total)
    return (total * coefficients[:, None] ** power)[None]


def harmonic_maps(X: Rows, feature_map: FeatureMap, dtype: np.dtype) -> np.ndarray:
    """Y_j(x_i) with amplitudes, of shape (n, m) in C order."""
    amplitudes = (feature_map.amplitudes * feature_map.projection_as(HarmonicProjection).terms.coefficients).astype(
        dtype
    )
    out = np.empty((X.shape[0], feature_map.n_frequencies), dtype)
    for rows, values in harmonic_tiles(X, feature_map, dtype):
        _write(values, amplitudes, out[rows])
    return out


def harmonic_tiles(X: Rows, feature_map: FeatureMap, dtype: np.dtype) -> Iterator[tuple[slice, np.ndarray]]:
    """Tiles of rows with their harmonics (m, rows), without coefficients, in memory that the next tile overwrites."""
    projection = feature_map.projection_as(HarmonicProjection)
    terms = projection.terms
    step = _tile_rows(terms)
    tiles = RowTiles(X, feature_map, np.dtype(np.float64), dense=True, rows=step)
    # one buffer for the table of factors and the harmonics, reused for each tile so that it stays in the cache
    buffer = np.empty((terms.n_rows + terms.n_nodes) * tiles.step, dtype)
    for rows, tile in tiles:
        columns, radii = on_sphere(np, tile, projection, first=rows.start)
        values = buffer[: (terms.n_rows + terms.n_nodes) * len(tile)].reshape(-1, len(tile))
        table, nodes = values[: terms.n_rows], values[terms.n_rows :]
        _fill_table(np.ascontiguousarray(columns), radii, terms.azimuth, terms.chains, table)
        _multiply(table, terms.parent, terms.factor, terms.order, nodes)
        yield rows, nodes[: projection.n_frequencies]


def on_sphere(xp: ModuleType, rows: Array, projection: HarmonicProjection, *, first: int = 0) -> tuple[Any, Any]:
    """Columns of rows divided by their lengths, and the squared lengths of their first 1, ..., d columns: (d, n) each.

    Parameters
    ----------
    xp : array namespace of `rows`
    rows : array of shape (n, d), float64
    projection : HarmonicProjection
    first : int
        Number of the first row, for the message.

    Raises
    ------
    ValueError
        For a row off the sphere, or a row of length 0 if rows are to be divided by their lengths; for rows on a GPU it
        is raised once the host waits for results.
    """
    columns = xp.asarray(rows, dtype=xp.float64).T
    if xp is np:
        # a cumulative sum in one call: for a single row, a loop over the columns would take longer than everything else
        radii = np.square(columns, order="C")
        _cumulate_rows(radii)
    else:
        sums = [columns[0, :] ** 2]
        for column in range(1, columns.shape[0]):
            sums.append(sums[-1] + columns[column, :] ** 2)
        radii = xp.stack(sums)
    square = radii[-1, :]
    length = xp.sqrt(square)
    good = (length > 0.0) & xp.isfinite(length) if projection.project else xp.abs(length - 1.0) <= OFF_SPHERE

    def off_sphere() -> ValueError:
        worst = int(xp.argmin(xp.asarray(good, dtype=xp.int8)))
        row, norm = first + worst, float(length[worst])
        if projection.project:
            return ValueError(
                f"row {row} has length {norm:g}, so that it has no direction to be projected to; leave such rows out"
            )
        return ValueError(
            f"row {row} has length {norm:.6g}; spherical harmonics take rows on the unit sphere (length 1 within "
            f"{OFF_SPHERE}). Divide rows by their lengths, or ask for it: SphericalHarmonics(..., project=True). A "
            "scaling other than None or 'unit' takes rows off the sphere"
        )

    if getattr(xp, "__name__", "") == "cupy":
        # raised when the host waits for sums of these rows
        refuse_later(~good, off_sphere)
        return columns / xp.where(good, length, 1.0), radii / xp.where(good, square, 1.0)
    if not bool(xp.all(good)):
        raise off_sphere()
    return columns / length, radii / square


def harmonic_values(xp: ModuleType, rows: Array, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """Y_j(x_i) of scaled rows by operations of any array namespace, without amplitudes: of shape (n, m)."""
    projection = feature_map.projection_as(HarmonicProjection)
    terms = projection.terms
    columns, radii = on_sphere(xp, xp.asarray(rows, dtype=xp.float64), projection)
    # the table of factors: 1, the waves of the azimuth, and for each chain its polynomials in one column
    first, second = columns[0, :], columns[1, :]
    one, zero = xp.ones_like(first), xp.zeros_like(first)
    factors_of_rows, cosine, sine = [one], one, zero
    for _ in range(terms.azimuth):
        cosine, sine = first * cosine - second * sine, first * sine + second * cosine
        factors_of_rows += [cosine, sine]
    for k, order, count, _ in terms.chains.tolist():
        # p_n from p_(n-1) and p_(n-2): t p_n = a_(n+1) p_(n+1) + a_n p_(n-1), times powers of the radius
        before, now = zero, one
        for n in range(1, count + 1):
            down, up = _coupling(n - 1, order + 0.5 * (k - 1)), _coupling(n, order + 0.5 * (k - 1))
            before, now = now, (columns[k, :] * now - down * radii[k, :] * before) / up
            factors_of_rows.append(now)
    table = xp.stack(factors_of_rows)
    # The harmonics level by level: each is a factor of the table times a harmonic of the level above. `rank` is the
    # position of each node when levels are concatenated.
    rank = np.argsort(terms.order)
    levels = [xp.take(table, xp.asarray(terms.factor[terms.order[: terms.starts[1]]]), axis=0)]
    for start, stop in zip(terms.starts[1:-1], terms.starts[2:], strict=True):
        made = terms.order[start:stop]
        above = rank[terms.parent[made]] - (start - levels[-1].shape[0])
        factors = xp.take(table, xp.asarray(terms.factor[made]), axis=0)
        levels.append(factors * xp.take(levels[-1], xp.asarray(above), axis=0))
    values = xp.take(xp.concat(levels), xp.asarray(rank[: projection.n_frequencies]), axis=0)
    return xp.asarray((values * xp.asarray(terms.coefficients)[:, None]).T, dtype=dtype)


def _tile_rows(terms: HarmonicTerms) -> int:
    """A multiple of 16 from 16 to 512, such that the tile's table and harmonics fit the cache if possible."""
    rows = _TILE_VALUES // (terms.n_nodes + terms.n_rows)
    # fewer rows would make the inner loops too short, more would not fit the cache
    return min(512, max(16, rows // 16 * 16))


def _coupling(n: int, weight: float) -> float:
    """The coefficients of t p_n = a_(n+1) p_(n+1) + a_n p_(n-1) for orthonormal Gegenbauer polynomials; a_0 = 0."""
    if n == 0:
        return 0.0
    return float(0.5 * np.sqrt(n * (n + 2.0 * weight - 1.0) / ((n + weight) * (n + weight - 1.0))))


_coupling_compiled = njit()(_coupling)


@njit(nogil=True)
def _cumulate_rows(values: np.ndarray) -> None:
    """Each row becomes the sum of the rows up to it."""
    for k in range(1, len(values)):
        for i in range(values.shape[1]):
            values[k, i] += values[k - 1, i]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _fill_table(columns: np.ndarray, radii: np.ndarray, azimuth: int, chains: np.ndarray, table: np.ndarray) -> None:
    """The table of `HarmonicTerms` for the rows of a tile; recurrences run in float64."""
    n_rows = columns.shape[1]
    before, now = np.zeros(n_rows), np.ones(n_rows)
    table[0, :] = 1
    for degree in range(1, azimuth + 1):
        _multiply_complex(columns[0], columns[1], now, before)
        table[2 * degree - 1, :] = now
        table[2 * degree, :] = before
    for chain in range(chains.shape[0]):
        k, order, count, start = chains[chain]
        weight = order + 0.5 * (k - 1)
        before[:] = 0
        now[:] = 1
        for n in range(1, count + 1):
            down, up = _coupling_compiled(n - 1, weight), _coupling_compiled(n, weight)
            _next_polynomial(columns[k], radii[k], down, 1.0 / up, before, now)
            table[start + n - 1, :] = now


@njit(nogil=True, fastmath=ELEMENTWISE)
def _multiply_complex(x: np.ndarray, y: np.ndarray, cosine: np.ndarray, sine: np.ndarray) -> None:
    """(cosine + i sine) *= x + i y."""
    for i in range(len(x)):
        c, s = cosine[i], sine[i]
        cosine[i] = x[i] * c - y[i] * s
        sine[i] = x[i] * s + y[i] * c


@njit(nogil=True, fastmath=ELEMENTWISE)
def _next_polynomial(
    x: np.ndarray, radius: np.ndarray, down: float, scale: float, before: np.ndarray, now: np.ndarray
) -> None:
    """One step of the recurrence of orthonormal polynomials, times the powers of the radius."""
    for i in range(len(x)):
        following = (x[i] * now[i] - down * radius[i] * before[i]) * scale
        before[i] = now[i]
        now[i] = following


@njit(nogil=True, fastmath=ELEMENTWISE)
def _multiply(table: np.ndarray, parent: np.ndarray, factor: np.ndarray, order: np.ndarray, nodes: np.ndarray) -> None:
    """Compute every node from its factor and its parent."""
    # a harmonic is its parent, of lower degree, times one row of the table
    for node in order:
        row, above = factor[node], parent[node]
        # loops are inlined, as a call for each pair of short rows would cost as much as the products
        if above < 0:
            for i in range(nodes.shape[1]):
                nodes[node, i] = table[row, i]
        else:
            for i in range(nodes.shape[1]):
                nodes[node, i] = table[row, i] * nodes[above, i]


@njit(nogil=True)
def _add_sums(values: np.ndarray, weights: np.ndarray, power: int, total: np.ndarray) -> None:
    """total[j, k] += weights[k] . values[j]^power."""
    for j in range(values.shape[0]):
        for k in range(weights.shape[0]):
            total[j, k] += dot(weights[k], values[j]) if power == 1 else _dot_squares(values[j], weights[k])


@njit(nogil=True, fastmath=REDUCTION)
def _dot_squares(values: np.ndarray, w: np.ndarray) -> float:
    """w . values^2; additions may be reordered for vector code."""
    total = w.dtype.type(0)
    for i in range(len(w)):
        total += w[i] * values[i] * values[i]
    return total


@njit(nogil=True)
def _write(values: np.ndarray, amplitudes: np.ndarray, out: np.ndarray) -> None:
    """out[i, j] = amplitudes[j] values[j, i], in squares that stay in the cache."""
    # Harmonics are contiguous in `values`, features of a row in `out`: a transposition in blocks that stay in the cache
    # on both sides.
    side = 16
    for first in range(0, out.shape[1], side):
        last = min(first + side, out.shape[1])
        for start in range(0, out.shape[0], side):
            for i in range(start, min(start + side, out.shape[0])):
                for j in range(first, last):
                    out[i, j] = amplitudes[j] * values[j, i]
