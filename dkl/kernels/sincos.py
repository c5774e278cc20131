"""Cosine and sine of angles in turns: a subtraction and two polynomials, compiled to vector code."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import types
from numba.extending import overload

from dkl.kernels.compiled import njit

# No flag that lets the compiler assume finite numbers: the clamp in `cos_sin` must see NaN.
ELEMENTWISE = {"contract", "nsz"}
# Lets the compiler reorder sums over the rows of a tile for vector lanes.
REDUCTION = {"contract", "nsz", "reassoc"}

# a radian, in turns
TURN = 1.0 / (2.0 * np.pi)

# Interpolants in u = r^2 at the Chebyshev nodes of [0, 1/4]: errors 2e-7 (float32) and 1e-17 (float64) before rounding.
_COS32 = tuple(
    np.float32(c)
    for c in (
        0.9999999889445764,
        -19.73920446657614,
        64.93911592834654,
        -85.45011342750612,
        60.16742979196077,
        -25.966884612677383,
        6.527705963151927,
    )
)
_SIN32 = tuple(
    np.float32(c)
    for c in (
        6.283184911827347,
        -41.34158830218002,
        81.59991361943376,
        -76.61414030094792,
        41.3413653854803,
        -12.468818618387557,
    )
)
_COS64 = (
    1.0,
    -19.739208802178716,
    64.93939402266825,
    -85.45681720669127,
    60.24464137178173,
    -26.42625678121189,
    7.903536340077173,
    -1.7143904138098518,
    0.28200407958316315,
    -0.03637490036340231,
    0.003758590561310354,
    -0.0002900600501912893,
)
_SIN64 = (
    6.283185307179586,
    -41.34170224039975,
    81.60524927607364,
    -76.70585975297274,
    42.058693942058134,
    -15.094642523739662,
    3.8199519658163408,
    -0.7181176612406465,
    0.10420677657784852,
    -0.011964299447466884,
    0.0010156363080426269,
)


def cos_sin(z: float) -> tuple[float, float]:
    """cos(2 pi z) and sin(2 pi z), to 1e-6 in float32 and 2e-15 in float64, for one number of either type.

    An angle so large that its fraction of a turn is lost gives the cosine of a whole turn; an infinite or undefined one
    gives -1 and about 0. For any input the result is finite and in [-1, 1] (up to rounding).
    """
    raise TypeError("cos_sin runs in compiled code only; cos_sin_rows takes arrays")


@overload(cos_sin, jit_options={"fastmath": ELEMENTWISE})
def _cos_sin(z: float) -> Callable[[float], tuple[object, object]]:
    """The function that Numba compiles for `cos_sin` of a number of this type; all three have the same annotations."""
    return _cos_sin32 if z == types.float32 else _cos_sin64


def _cos_sin32(z: float) -> tuple[np.floating, np.floating]:
    """`cos_sin` with the polynomials for float32: every constant is of that type, or the loop would be in float64."""
    half = np.float32(0.5)
    # r in [-1/2, 1/2] is the angle without whole turns
    r = z - np.floor(z + half)
    # comparisons with NaN are false, so that an undefined angle becomes half a turn
    r = r if r <= half else half
    u = r * r
    c0, c1, c2, c3, c4, c5, c6 = _COS32
    s0, s1, s2, s3, s4, s5 = _SIN32
    c = c0 + u * (c1 + u * (c2 + u * (c3 + u * (c4 + u * (c5 + u * c6)))))
    s = r * (s0 + u * (s1 + u * (s2 + u * (s3 + u * (s4 + u * s5)))))
    return c, s


def _cos_sin64(z: float) -> tuple[float, float]:
    """`cos_sin` with the longer polynomials for float64, each nested in two halves."""
    r = z - np.floor(z + 0.5)
    r = r if r <= 0.5 else 0.5
    u = r * r
    c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 = _COS64
    s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10 = _SIN64
    c = c6 + u * (c7 + u * (c8 + u * (c9 + u * (c10 + u * c11))))
    c = c0 + u * (c1 + u * (c2 + u * (c3 + u * (c4 + u * (c5 + u * c)))))
    s = s5 + u * (s6 + u * (s7 + u * (s8 + u * (s9 + u * s10))))
    s = r * (s0 + u * (s1 + u * (s2 + u * (s3 + u * (s4 + u * s)))))
    return c, s


@njit(nogil=True, fastmath=ELEMENTWISE)
def cos_sin_rows(z: np.ndarray, c: np.ndarray, s: np.ndarray) -> None:
    """Write the cosines and sines of a vector of turns; the three must not overlap, which would prevent vector code."""
    for i in range(len(z)):
        c[i], s[i] = cos_sin(z[i])


@njit(nogil=True, fastmath=ELEMENTWISE)
def add_multiple(x: np.ndarray, factor: float, out: np.ndarray) -> None:
    """out += factor x."""
    for i in range(len(out)):
        out[i] += x[i] * factor


@njit(nogil=True, fastmath=REDUCTION)
def dot(x: np.ndarray, y: np.ndarray) -> float:
    """x.y in their own precision; additions may be reordered for vector code."""
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@njit(nogil=True, fastmath=REDUCTION)
def _weighted_sum(z: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """w . (cos, sin)(2 pi z), for one column of weights, without storing the waves."""
    cosines = w.dtype.type(0)
    sines = w.dtype.type(0)
    for i in range(len(w)):
        c, s = cos_sin(z[i])
        cosines += w[i] * c
        sines += w[i] * s
    return cosines, sines


@njit(nogil=True, fastmath=REDUCTION)
def _dots(c: np.ndarray, s: np.ndarray, w: np.ndarray) -> tuple[float, float]:
    """w . (c, s), both products in one loop."""
    cosines = w.dtype.type(0)
    sines = w.dtype.type(0)
    for i in range(len(w)):
        cosines += w[i] * c[i]
        sines += w[i] * s[i]
    return cosines, sines


@njit(nogil=True, fastmath=ELEMENTWISE)
def add_sums(z: np.ndarray, weights: np.ndarray, buffer: np.ndarray, total: np.ndarray, j: int) -> None:
    """Add the sums of frequency j over the rows of a tile: total[:, k, j] += weights[k] . (cos, sin)(2 pi z).

    Partial sums are of the dtype of the tile, `total` (2, K, m) is float64; `buffer` (2, rows) is overwritten.
    """
    if weights.shape[0] == 1:
        cosines, sines = _weighted_sum(z, weights[0])
        total[0, 0, j] += cosines
        total[1, 0, j] += sines
        return
    # for several columns of weights the waves are computed once, stored in the first cache, and weighted by each
    cos_sin_rows(z, buffer[0], buffer[1])
    for k in range(weights.shape[0]):
        cosines, sines = _dots(buffer[0], buffer[1], weights[k])
        total[0, k, j] += cosines
        total[1, k, j] += sines


@njit(nogil=True, fastmath=REDUCTION)
def weighted_sum_of_two(x: np.ndarray, y: np.ndarray, u: float, v: float, w: np.ndarray) -> tuple[float, float]:
    """w . (cos, sin)(2 pi (u x + v y)), for rows of two columns, without storing angles."""
    cosines = w.dtype.type(0)
    sines = w.dtype.type(0)
    for i in range(len(w)):
        c, s = cos_sin(x[i] * u + y[i] * v)
        cosines += w[i] * c
        sines += w[i] * s
    return cosines, sines


def write_waves(z: np.ndarray, amplitudes: np.ndarray, first: int, out: np.ndarray, paired: bool) -> None:
    """Write the features of angles z (n, F), in radians, to columns first .. of out; the sines too if `paired`."""
    # two kernels, as one with a flag would be compiled with both parts
    (_write_rows_of_pairs if paired else _write_rows_of_cosines)(z, amplitudes, first, out)


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write_rows_of_cosines(z: np.ndarray, amplitudes: np.ndarray, first: int, out: np.ndarray) -> None:
    """`write_waves` without sines."""
    width = z.shape[1]
    a = amplitudes[first : first + width]
    for i in range(z.shape[0]):
        write_cosines(z[i], a, out[i, first : first + width])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write_rows_of_pairs(z: np.ndarray, amplitudes: np.ndarray, first: int, out: np.ndarray) -> None:
    """`write_waves` with the sines, which follow all cosines."""
    m, width = len(amplitudes), z.shape[1]
    a = amplitudes[first : first + width]
    for i in range(z.shape[0]):
        _write_pairs(z[i], a, out[i, first : first + width], out[i, m + first : m + first + width])


@njit(nogil=True, fastmath=ELEMENTWISE)
def write_cosines(z: np.ndarray, a: np.ndarray, cosines: np.ndarray) -> None:
    """cosines = a cos z."""
    turn = z.dtype.type(TURN)
    for j in range(len(z)):
        c, _ = cos_sin(turn * z[j])
        cosines[j] = a[j] * c


@njit(nogil=True, fastmath=ELEMENTWISE)
def _write_pairs(z: np.ndarray, a: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> None:
    """cosines = a cos z, sines = a sin z."""
    turn = z.dtype.type(TURN)
    for j in range(len(z)):
        c, s = cos_sin(turn * z[j])
        cosines[j] = a[j] * c
        sines[j] = a[j] * s
