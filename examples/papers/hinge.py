"""Linear machines of the hinge without an intercept, by dual coordinate descent on mapped rows in single precision.

The steps are those of liblinear (Hsieh et al. 2008), which scikit-learn's LinearSVC runs with 16 bytes for each number
of a row. Here a number has 4, and a row is read in one go: hundreds of thousands of mapped rows fit in memory, and a
pass over them is several times as fast.
"""

from __future__ import annotations

import numba
import numpy as np

# a difference of projected gradients below which rows are optimal, liblinear's own
_TOLERANCE = 1e-4


def hinge_weights(
    Z: np.ndarray, signs: np.ndarray, cost: float, epochs: int, *, tol: float = _TOLERANCE, seed: int = 0
) -> np.ndarray:
    """The w, (D,), that minimises |w|^2 / 2 + cost sum_i max(0, 1 - signs_i w.z_i), or where so many epochs end.

    Parameters
    ----------
    Z : ndarray of shape (n, D), float32
        Mapped rows.
    signs : ndarray of shape (n,)
        -1 or +1.
    cost : float
        C: 1 / (lambda n) of a penalty lambda |w|^2 / 2 beside the mean loss.
    epochs : int
        Passes over the rows that are not at a bound of their dual weight.
    tol : float
    seed : int
        Of the order in which rows are visited.
    """
    Z = np.ascontiguousarray(Z, dtype=np.float32)
    squares = np.einsum("ij,ij->i", Z, Z, dtype=np.float64)
    return _descended(Z, signs.astype(np.float64), squares, cost, epochs, tol, np.random.default_rng(seed))


@numba.njit(nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _descended(Z, signs, squares, cost, epochs, tol, random):  # type: ignore[no-untyped-def]
    """w = sum_i a_i y_i z_i, each dual weight a_i in [0, cost] moved to its best in turn, in a new order each epoch.

    The projected gradient of a_i is y_i w.z_i - 1, of which a bound of a_i leaves one sign. A row at a bound whose
    gradient points outwards by more than any gradient of the last epoch is set aside until all others are optimal.
    """
    n = len(Z)
    w, a, order = np.zeros(Z.shape[1]), np.zeros(n), np.arange(n)
    active, least_before, most_before = n, -np.inf, np.inf
    for _ in range(epochs):
        least, most = np.inf, -np.inf
        for place in range(active):
            other = random.integers(place, active)
            order[place], order[other] = order[other], order[place]
        place = 0
        while place < active:
            i = order[place]
            gradient = signs[i] * _product(Z, i, w) - 1.0
            if (a[i] == 0.0 and gradient > most_before) or (a[i] == cost and gradient < least_before):
                active -= 1
                order[place], order[active] = order[active], order[place]
                continue
            place += 1
            projected = gradient
            if a[i] == 0.0:
                projected = min(gradient, 0.0)
            elif a[i] == cost:
                projected = max(gradient, 0.0)
            least, most = min(least, projected), max(most, projected)
            if abs(projected) > 1e-12 and squares[i] > 0.0:
                moved = min(max(a[i] - gradient / squares[i], 0.0), cost)
                step, a[i] = (moved - a[i]) * signs[i], moved
                for j in range(len(w)):
                    w[j] += step * Z[i, j]
        if most - least <= tol:
            if active == n:
                break
            active, least_before, most_before = n, -np.inf, np.inf
            continue
        most_before = most if most > 0.0 else np.inf
        least_before = least if least < 0.0 else -np.inf
    return w


@numba.njit(nogil=True, inline="always", fastmath={"reassoc", "contract", "nsz"})
def _product(Z, i, w):  # type: ignore[no-untyped-def]
    """w.z_i."""
    total = 0.0
    for j in range(len(w)):
        total += w[j] * Z[i, j]
    return total
