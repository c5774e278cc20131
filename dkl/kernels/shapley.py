"""Exact Shapley values of the columns in a sum of waves or of products, for independent columns."""

from __future__ import annotations

import numpy as np

from dkl.kernels.compiled import njit
from dkl.kernels.sincos import ELEMENTWISE, cos_sin_rows

__all__ = ["product_contributions", "wave_contributions"]

# Frequencies of a tile, which for each column fits the cache.
LANES = 128


def wave_contributions(angles: np.ndarray, psi: np.ndarray, amplitudes: np.ndarray, n_nodes: int) -> np.ndarray:
    """Shapley values of G columns in Re sum_j a_j prod_g exp(i angle_jg); the mean psi_jg replaces a left-out one.

    Averaged over all orders in which columns are added, the value of column g is the integral over t from 0 to 1 of
    ``(p_g - psi_g) prod_{h != g} (psi_h + t (p_h - psi_h))``, p = exp(i angle): a polynomial of degree G - 1, which
    ceil(G / 2) Gauss-Legendre nodes integrate exactly (Owen 1972, the multilinear extension of a game).

    Parameters
    ----------
    angles : ndarray of shape (n, G, m), float64
        Radians.
    psi : ndarray of shape (G, m), complex
        The mean of exp(i angle) over the background, for each column.
    amplitudes : ndarray of shape (m, K), complex
    n_nodes : int
        Nodes of the integral.

    Returns
    -------
    ndarray of shape (n, G, K), float64

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.shapley import wave_contributions
    >>> found = wave_contributions(np.array([[[0.0], [np.pi]]]), np.zeros((2, 1)), np.ones((1, 1)), n_nodes=1)
    >>> found.ravel()
    array([-0.5, -0.5])
    """
    out = np.zeros((*angles.shape[:2], amplitudes.shape[1]))
    nodes, weights = np.polynomial.legendre.leggauss(n_nodes)
    # the Gauss-Legendre rule of [-1, 1], moved to [0, 1]
    rule = (nodes + 1.0) / 2.0, weights / 2.0
    for start in range(0, angles.shape[2], LANES):
        chosen = slice(start, start + LANES)
        tile = np.ascontiguousarray(angles[:, :, chosen]) / (2.0 * np.pi)
        _add(tile, _parts(psi[:, chosen]), _parts(amplitudes[chosen].T), rule, out)
    return out


def product_contributions(factors: np.ndarray, means: np.ndarray) -> np.ndarray:
    """Shapley values of the three columns in a product with a factor of each; the mean replaces a left-out factor.

    With delta = f - mu the product is a sum over sets T of columns, prod_{T} delta prod_{not T} mu, and the term of a
    set is shared equally by its columns. The value of column 1 is

        delta_1 (mu_2 mu_3 + (delta_2 mu_3 + mu_2 delta_3) / 2 + delta_2 delta_3 / 3).

    Parameters
    ----------
    factors : ndarray of shape (n, m, 3), float64
        f of m products at n rows; products of fewer columns have factors of 1 and means of 1.
    means : ndarray of shape (m, 3), float64
        mu, over the background.

    Returns
    -------
    ndarray of shape (n, m, 3), float64

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.kernels.shapley import product_contributions
    >>> product_contributions(np.array([[[1.0, 1.0, 1.0]]]), np.array([[0.5, 0.2, 1.0]])).ravel()
    array([0.3, 0.6, 0. ])
    """
    delta, out = factors - means, np.empty(factors.shape)
    for s in range(3):
        second, third = (s + 1) % 3, (s + 2) % 3
        alone = means[:, second] * means[:, third]
        in_pairs = delta[..., second] * means[:, third] + means[:, second] * delta[..., third]
        out[..., s] = delta[..., s] * (alone + in_pairs / 2.0 + delta[..., second] * delta[..., third] / 3.0)
    return out


def _parts(values: np.ndarray) -> np.ndarray:
    """Real and imaginary parts of (r, L), of shape (r, 2, L), in one layout: Numba compiles `_add` for each layout."""
    return np.ascontiguousarray(np.stack([values.real, values.imag], axis=1))


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add(
    angles: np.ndarray,
    psi: np.ndarray,
    a: np.ndarray,
    rule: tuple[np.ndarray, np.ndarray],
    out: np.ndarray,
) -> None:
    """Add the contributions of one tile of frequencies, angles (n, G, L) in turns, to out (n, G, K)."""
    n, G, L = angles.shape
    # products of the columns before each one, of those after it, and their sums over nodes; real parts, then imaginary
    delta, before, total = np.empty((G, 2, L)), np.empty((G + 1, 2, L)), np.empty((G, 2, L))
    factor, after = np.empty((G, 2, L)), np.empty((2, 2, L))
    before[0, 0] = 1.0
    before[0, 1] = 0.0
    for i in range(n):
        total[:] = 0.0
        for g in range(G):
            # delta_g = p_g - psi_g, the change of a wave when column g is added
            cos_sin_rows(angles[i, g], delta[g, 0], delta[g, 1])
            delta[g] -= psi[g]
        for node in range(len(rule[0])):
            t = rule[0][node]
            for g in range(G):
                # factor g at this node, psi_g + t delta_g, and the products of the factors before each column
                _between(psi[g].ravel(), delta[g].ravel(), t, factor[g].ravel())
                _multiply(before[g], factor[g], before[g + 1])
            # from the last column backwards the product of the factors after each: before times after is the product of
            # all others, without a division by factors that may be 0
            after[G % 2, 0] = rule[1][node]
            after[G % 2, 1] = 0.0
            for g in range(G - 1, -1, -1):
                _add_product(before[g], after[(g + 1) % 2], total[g])
                _multiply(after[(g + 1) % 2], factor[g], after[g % 2])
        for g in range(G):
            for k in range(out.shape[2]):
                # the integral over t is the sum over nodes; delta_g and the amplitudes are the same at all of them
                out[i, g, k] += _real_sum(total[g], delta[g], a[k])


# One output and few inputs each: with more the compiler cannot exclude that they overlap, and does not vectorise.
@njit(nogil=True, fastmath=ELEMENTWISE)
def _between(x: np.ndarray, step: np.ndarray, t: float, out: np.ndarray) -> None:
    """out = x + t step."""
    for j in range(len(out)):
        out[j] = x[j] + t * step[j]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _multiply(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """out = x y, complex numbers (2, L)."""
    _difference(x[0], y[0], x[1], y[1], out[0])
    _sum(x[0], y[1], x[1], y[0], out[1])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _difference(x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
    """out = x y - u v."""
    for j in range(len(out)):
        out[j] = x[j] * y[j] - u[j] * v[j]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _sum(x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
    """out = x y + u v."""
    for j in range(len(out)):
        out[j] = x[j] * y[j] + u[j] * v[j]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_product(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """out += x y, complex numbers (2, L)."""
    _add_difference(x[0], y[0], x[1], y[1], out[0])
    _add_sum(x[0], y[1], x[1], y[0], out[1])


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_difference(x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
    """out += x y - u v."""
    for j in range(len(out)):
        out[j] += x[j] * y[j] - u[j] * v[j]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _add_sum(x: np.ndarray, y: np.ndarray, u: np.ndarray, v: np.ndarray, out: np.ndarray) -> None:
    """out += x y + u v."""
    for j in range(len(out)):
        out[j] += x[j] * y[j] + u[j] * v[j]


@njit(nogil=True, fastmath=ELEMENTWISE)
def _real_sum(total: np.ndarray, delta: np.ndarray, a: np.ndarray) -> float:
    """Re sum a delta total."""
    share = 0.0
    for j in range(a.shape[1]):
        real = delta[0, j] * total[0, j] - delta[1, j] * total[1, j]
        imag = delta[0, j] * total[1, j] + delta[1, j] * total[0, j]
        share += a[0, j] * real - a[1, j] * imag
    return share
