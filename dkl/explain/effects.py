"""Effects: what a model on sparse frequencies says of single columns, and of few together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from dkl.explain.column_groups import Columns, Groups, columns_of
from dkl.explain.model import model_of, rows_to_explain, wave_amplitudes
from dkl.explain.sums import ColumnWaves
from dkl.explain.wave_pass import dense, part_of
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.features.scaling import Scaler
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.scale import scale_rows
from dkl.kernels.tiles import spans

MOST_ROWS = 5_000
_TILE = 1_024


@dataclass(frozen=True, eq=False)
class Effect:
    """The part of a model that depends on a few columns alone: a main effect, or an interaction.

    ``f_T(x) = Re sum_j a_j prod_{c in T} (exp(i w_jc . x_c) - psi_c(w_jc))`` with psi_c(w) the mean of exp(i w . x_c)
    over the rows: of mean zero in each of its columns, so that an interaction holds no main effect. x_c is a number, or
    all encoded columns of a category.

    Parameters
    ----------
    columns : tuple of int
        T.
    names : tuple of str
        Of the columns.
    strength : float
        Standard deviation over the rows, in units of the decision values (of the targets for numbers).
    waves : tuple of Part
        exp(i w . x_c) for each of the columns, m frequencies each.
    means : ndarray of shape (m, |T|), complex
        psi.
    coefficients : ndarray of shape (m, K), complex
        a.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import effects
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(200, 1))
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), solver="newton", alpha=1e-6)
    >>> (effect,) = effects(model.fit(X, np.sin(X[:, 0])), X)
    >>> values = effect(np.array([0.0, 1.0])).ravel()
    >>> round(float(values[1] - values[0]), 2)
    0.84
    """

    columns: tuple[int, ...]
    names: tuple[str, ...]
    strength: float
    waves: tuple[ColumnWaves, ...]
    means: np.ndarray
    coefficients: np.ndarray

    def __call__(self, *values: Any) -> np.ndarray:
        """The effect of values of its columns, unscaled: one array a column, of one shape; (..., K) comes back.

        The values of a column that is encoded as k have k numbers each: an array of shape (..., k).
        """
        wide = [self._encoded(place, value) for place, value in enumerate(values)]
        shape = np.broadcast_shapes(*(value.shape[:-1] for value in wide))
        rows = [np.broadcast_to(value, (*shape, value.shape[-1])).reshape(-1, value.shape[-1]) for value in wide]
        out = np.empty((len(rows[0]), self.coefficients.shape[1]))
        for tile in spans(len(out), _TILE):
            product = np.ones(1)
            for part, psi, own in zip(self.waves, self.means.T, rows, strict=True):
                product = product * (_turned(part.angles(own[tile])) - psi)
            out[tile] = (product @ self.coefficients).real
        return out.reshape(*shape, -1)

    def _encoded(self, place: int, value: Any) -> np.ndarray:
        value, width = np.asarray(value, dtype=np.float64), len(self.waves[place].columns)
        if width > 1 and value.shape[-1:] != (width,):
            raise ValueError(
                f"{self.names[place]!r} is encoded as {width} columns; give its values as an array of shape "
                f"(..., {width}), not {value.shape}"
            )
        return value if width > 1 else value[..., None]

    def __repr__(self) -> str:
        return f"<effect of {' x '.join(self.names)}: strength {self.strength:.3g}, {len(self.means)} frequencies>"


def effects(
    model: Any,
    X: Any,
    *,
    most_columns: int = 3,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
) -> list[Effect]:
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
    names, groups
        As of `dkl.explain.importance`: encoded columns that are one have effects together.

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
        As `dkl.explain.importance`.

    References
    ----------
    Hoeffding 1948; Bullins, Zhang & Zhang 2018 for the features.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import effects
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
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
    known = columns_of(model, names, groups)
    rows = _scaled_rows(model, X, feature_map.scaler)
    own = [rows[:, members] for members in known.members]
    with one_blas_thread():
        found = _groups(feature_map, a, known, own, most_columns)
        strengths = _strengths(found, own)
    return [
        _effect(feature_map, known, columns, strengths[columns], [group for group in found if group.holds(columns)])
        for columns in sorted(strengths, key=lambda columns: -strengths[columns])
    ]


def _effect(
    feature_map: FeatureMap, known: Columns, columns: tuple[int, ...], strength: float, groups: Sequence[_Group]
) -> Effect:
    frequencies = np.concatenate([group.frequencies for group in groups])
    means, a = (np.concatenate(pieces) for pieces in zip(*(group.part(columns) for group in groups), strict=True))
    waves = tuple(part_of(feature_map, known.members[column], frequencies) for column in columns)
    return Effect(columns, tuple(known.names[column] for column in columns), strength, waves, means, a)


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
    """The frequencies on the same columns: their numbers, w (m, k_c) in each column c, psi (m, |T|) and a (m, K)."""

    columns: tuple[int, ...]
    frequencies: np.ndarray
    w: tuple[np.ndarray, ...]
    psi: np.ndarray
    a: np.ndarray

    def holds(self, columns: tuple[int, ...]) -> bool:
        return set(columns) <= set(self.columns)

    def part(self, columns: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """What these frequencies give to the effect of `columns`: psi, and a times psi of the other columns."""
        inside = np.isin(self.columns, columns)
        return self.psi[:, inside], self.a * self.psi[:, ~inside].prod(axis=1)[:, None]

    def shares(self, rows: Sequence[np.ndarray], tile: slice) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """What they give to each effect, (n, K), at a tile of the scaled rows (n, k_c) of each column."""
        waves = [_turned(rows[c][tile] @ w.T) - psi for c, w, psi in zip(self.columns, self.w, self.psi.T, strict=True)]
        for size in range(1, len(self.columns) + 1):
            for places in combinations(range(len(self.columns)), size):
                columns = tuple(self.columns[place] for place in places)
                product = waves[places[0]]
                for place in places[1:]:
                    product = product * waves[place]
                a = self.part(columns)[1]
                yield columns, product.real @ a.real - product.imag @ a.imag


def _groups(
    feature_map: FeatureMap, a: np.ndarray, known: Columns, rows: Sequence[np.ndarray], most_columns: int
) -> list[_Group]:
    W = sparse.csr_array(formed(feature_map.projection))
    members = sparse.csr_array(
        (np.ones(W.shape[1]), np.concatenate(known.members), np.cumsum([0, *map(len, known.members)]))
    )
    found = []
    for columns, index in supports(abs(W) @ members.T).items():
        if 0 < len(columns) <= most_columns:
            w = tuple(W[index][:, known.members[c]].toarray().astype(np.float64) for c in columns)
            psi = np.stack([_characteristic(rows[c], own) for c, own in zip(columns, w, strict=True)], axis=1)
            found.append(_Group(columns, index, w, psi, a[index]))
    return found


def _strengths(groups: Sequence[_Group], rows: Sequence[np.ndarray]) -> dict[tuple[int, ...], float]:
    """The standard deviation of each effect over the rows."""
    sums: dict[tuple[int, ...], np.ndarray] = {}
    n = len(rows[0])
    for tile in spans(n, _TILE):
        values: dict[tuple[int, ...], np.ndarray] = {}
        for group in groups:
            for columns, share in group.shares(rows, tile):
                values[columns] = values.get(columns, 0.0) + share
        for columns, value in values.items():
            sums[columns] = sums.get(columns, 0.0) + np.stack([value.sum(axis=0), np.square(value).sum(axis=0)])
    return {
        columns: float(np.sqrt(np.maximum(second / n - np.square(first / n), 0.0).sum()))
        for columns, (first, second) in sums.items()
    }


def _turned(angles: np.ndarray) -> np.ndarray:
    """exp(i angle)."""
    out = np.empty(angles.shape, complex)
    out.real, out.imag = np.cos(angles), np.sin(angles)
    return out


def _characteristic(rows: np.ndarray, w: np.ndarray) -> np.ndarray:
    """psi: the mean of exp(i w.x) over rows (n, k), one for each of the frequencies (m, k)."""
    total = np.zeros(len(w), complex)
    for tile in spans(len(rows), _TILE):
        total += _turned(rows[tile] @ w.T).sum(axis=0)
    return total / len(rows)


def _scaled_rows(estimator: Any, X: Any, scaler: Scaler | None) -> np.ndarray:
    """At most 5,000 rows as the frequencies see them, float64."""
    rows = rows_to_explain(estimator, X).thin(MOST_ROWS, 0).X.compute()
    return scale_rows(dense(rows), scaler, "float64")
