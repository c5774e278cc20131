"""Effects: what a model on sparse frequencies says of single columns, and of few together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from dkl.blocks.blas import one_blas_thread
from dkl.blocks.scale import scale_rows
from dkl.explain.columns import encoded_names
from dkl.explain.model import model_of, rows_to_explain, wave_amplitudes
from dkl.features.scaling import Scaler

MOST_ROWS = 5_000
_TILE = 1_024


@dataclass(frozen=True, eq=False)
class Effect:
    """The part of a model that depends on a few columns alone: a main effect, or an interaction.

    ``f_T(x) = Re sum_j a_j prod_{c in T} (exp(i w_jc x_c) - psi_c(w_jc))`` with psi_c(w) the mean of exp(i w x_c) over
    the rows: of mean zero in each of its columns, so that an interaction holds no main effect.

    Parameters
    ----------
    columns : tuple of int
        T.
    names : tuple of str
        Of the columns.
    strength : float
        Standard deviation over the rows, in units of the decision values (of the targets for numbers).
    frequencies : ndarray of shape (m, |T|), float64
        w, in the scaled columns.
    means : ndarray of shape (m, |T|), complex
        psi.
    coefficients : ndarray of shape (m, K), complex
        a.
    width : int
        d, the columns of a row.
    scaler : Scaler or None

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import Effect
    >>> wave = Effect((0,), ("a",), 1.0, np.array([[2.0]]), np.zeros((1, 1)), np.array([[-1.0j]]), 1)
    >>> np.round(wave(np.array([0.0, np.pi / 4])).ravel(), 6)
    array([0., 1.])
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    strength: float
    frequencies: np.ndarray
    means: np.ndarray
    coefficients: np.ndarray
    width: int
    scaler: Scaler | None = None

    def __call__(self, *values: np.ndarray) -> np.ndarray:
        """The effect of values of its columns, unscaled: one array a column, of one shape; (..., K) comes back."""
        shape = np.broadcast_shapes(*(np.shape(value) for value in values))
        rows = np.zeros((int(np.prod(shape)), self.width))
        for column, value in zip(self.columns, values, strict=True):
            rows[:, column] = np.broadcast_to(value, shape).ravel()
        return self.of_scaled(scale_rows(rows, self.scaler, "float64")).reshape(*shape, -1)

    def of_scaled(self, rows: np.ndarray) -> np.ndarray:
        """The effect of each of the scaled rows (n, d), of shape (n, K)."""
        out = np.empty((len(rows), self.coefficients.shape[1]))
        for start in range(0, len(rows), _TILE):
            part = rows[start : start + _TILE, list(self.columns)]
            waves = np.exp(1j * part[:, None, :] * self.frequencies) - self.means
            out[start : start + _TILE] = (waves.prod(axis=2) @ self.coefficients).real
        return out

    def __repr__(self) -> str:
        return f"<effect of {' x '.join(self.names)}: strength {self.strength:.3g}, {len(self.means)} frequencies>"


def effects(model: Any, X: Any, *, most_columns: int = 3, names: Sequence[str] | None = None) -> list[Effect]:
    """The effects of a fitted machine, strongest first.

    A model on sparse frequencies is a sum of functions of few columns. It is taken apart by the functional analysis of
    variance under the product of the columns' own distributions, which for Fourier features is a formula, not a fit.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
        On Fourier features; frequencies on more than `most_columns` columns belong to no effect.
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        The rows whose means are taken; at most 5,000 are used.
    most_columns : int
        The most columns of an effect, 1 to 3.
    names : sequence of str, or None
        Of the columns; None takes those that the model was fitted with.

    Returns
    -------
    list of Effect

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    TypeError
        If its features are not Fourier features.
    ValueError
        If there is not one name a column.

    References
    ----------
    Hoeffding 1948; Bullins, Zhang & Zhang 2018 for the features.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import effects
    >>> from dkl.learners.kernel_machines import KernelRegressor
    >>> from dkl.learners.random_features import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(200, 1))
    >>> model = KernelRegressor(RandomFeatures(n_features=20, random_state=0), solver="newton", alpha=1e-4)
    >>> [effect.names for effect in effects(model.fit(X, np.sin(X[:, 0])), X)]
    [('column 0',)]
    """
    machine = model_of(model)
    feature_map, a = machine.feature_map, wave_amplitudes(machine)
    if a is None:
        raise TypeError(
            f"the features are {feature_map.activation!r}; effects are read off Fourier features, such as those of "
            "MarginFeatures"
        )
    labels, rows = encoded_names(model, names), _scaled_rows(model, X, feature_map.scaler)
    groups = _groups(sparse.csr_array(feature_map.projection.dense()), a, rows, most_columns)
    found = []
    with one_blas_thread():
        strengths = _strengths(groups, rows)
    for columns, strength in strengths.items():
        parts = [group.part(columns) for group in groups if group.holds(columns)]
        w, means, coefficients = (np.concatenate(pieces) for pieces in zip(*parts, strict=True))
        shown = tuple(labels[column] for column in columns)
        found.append(Effect(columns, shown, strength, w, means, coefficients, rows.shape[1], feature_map.scaler))
    return sorted(found, key=lambda effect: -effect.strength)


def supports(frequencies: Any) -> dict[tuple[int, ...], np.ndarray]:
    """The frequencies by the columns on which they have entries.

    Parameters
    ----------
    frequencies : array or sparse matrix of shape (m, d)

    Returns
    -------
    dict of tuple of int to ndarray of int
        The numbers of the frequencies on these columns alone, ascending.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import supports
    >>> supports(np.array([[0.0, 2.0], [1.0, 1.0], [0.0, 3.0]]))
    {(1,): array([0, 2]), (0, 1): array([1])}
    """
    rows = sparse.csr_array(frequencies)
    rows.eliminate_zeros()
    rows.sort_indices()
    groups: dict[tuple[int, ...], list[int]] = {}
    for number in range(rows.shape[0]):
        columns = tuple(rows.indices[rows.indptr[number] : rows.indptr[number + 1]].tolist())
        groups.setdefault(columns, []).append(number)
    return {columns: np.array(numbers) for columns, numbers in groups.items()}


@dataclass(frozen=True, eq=False)
class _Group:
    """The frequencies on the same columns: w (m, k), psi (m, k) and a (m, K)."""

    columns: tuple[int, ...]
    w: np.ndarray
    psi: np.ndarray
    a: np.ndarray

    def holds(self, columns: tuple[int, ...]) -> bool:
        return set(columns) <= set(self.columns)

    def part(self, columns: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """What these frequencies give to the effect of `columns`: w, psi, and a times psi of the other columns."""
        inside = np.isin(self.columns, columns)
        return self.w[:, inside], self.psi[:, inside], self.a * self.psi[:, ~inside].prod(axis=1)[:, None]

    def shares(self, rows: np.ndarray) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """What they give to each effect, (n, K), at scaled rows."""
        waves = [_waves(rows[:, c], self.w[:, place]) - self.psi[:, place] for place, c in enumerate(self.columns)]
        for size in range(1, len(self.columns) + 1):
            for places in combinations(range(len(self.columns)), size):
                columns = tuple(self.columns[place] for place in places)
                product = waves[places[0]]
                for place in places[1:]:
                    product = product * waves[place]
                a = self.part(columns)[2]
                yield columns, product.real @ a.real - product.imag @ a.imag


def _groups(frequencies: sparse.csr_array, a: np.ndarray, rows: np.ndarray, most_columns: int) -> list[_Group]:
    found = []
    for columns, index in supports(frequencies).items():
        if 0 < len(columns) <= most_columns:
            w = frequencies[index][:, list(columns)].toarray().astype(np.float64)
            psi = np.stack([_characteristic(rows[:, c], w[:, place]) for place, c in enumerate(columns)], axis=1)
            found.append(_Group(columns, w, psi, a[index]))
    return found


def _strengths(groups: Sequence[_Group], rows: np.ndarray) -> dict[tuple[int, ...], float]:
    """The standard deviation of each effect over the rows."""
    sums: dict[tuple[int, ...], np.ndarray] = {}
    for start in range(0, len(rows), _TILE):
        values: dict[tuple[int, ...], np.ndarray] = {}
        for group in groups:
            for columns, share in group.shares(rows[start : start + _TILE]):
                values[columns] = values.get(columns, 0.0) + share
        for columns, value in values.items():
            sums[columns] = sums.get(columns, 0.0) + np.stack([value.sum(axis=0), np.square(value).sum(axis=0)])
    return {
        columns: float(np.sqrt(np.maximum(second / len(rows) - np.square(first / len(rows)), 0.0).sum()))
        for columns, (first, second) in sums.items()
    }


def _waves(values: np.ndarray, w: np.ndarray) -> np.ndarray:
    """exp(i w x) of each value (n,) and frequency (m,)."""
    angles = values[:, None] * w
    out = np.empty(angles.shape, complex)
    out.real, out.imag = np.cos(angles), np.sin(angles)
    return out


def _characteristic(values: np.ndarray, w: np.ndarray) -> np.ndarray:
    """psi: the mean of exp(i w x) over the values, one a frequency."""
    total = np.zeros(len(w), complex)
    for start in range(0, len(values), _TILE):
        total += _waves(values[start : start + _TILE], w).sum(axis=0)
    return total / len(values)


def _scaled_rows(estimator: Any, X: Any, scaler: Scaler | None) -> np.ndarray:
    """At most 5,000 rows as the frequencies see them, float64."""
    rows = rows_to_explain(estimator, X).thin(MOST_ROWS, 0).X.compute()
    return scale_rows(rows.toarray() if sparse.issparse(rows) else rows, scaler, "float64")
