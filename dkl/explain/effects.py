"""Effects: the parts of a model on sparse frequencies, steps or additive kernels that depend on few columns each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from typing import Any, Self

import numpy as np
from scipy import sparse

from dkl.explain.column_groups import Columns, Groups, columns_of
from dkl.explain.kernel_factors import ColumnKernels, KernelFactors
from dkl.explain.model import (
    mixes_columns,
    model_of,
    output_labels,
    parts_of,
    rows_to_explain,
    wave_amplitudes,
)
from dkl.explain.step_factors import ColumnSteps, StepFactors
from dkl.explain.wave_pass import dense, part_of
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.kernels.explanations import ColumnWaves, unit_waves
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import spans
from dkl.linear.answers import Scorer
from dkl.plain_text import shortened
from dkl.protocols.arrays import Rows
from dkl.protocols.estimators import FittedModel

# The most rows over which means and strengths of effects are computed.
MOST_ROWS = 5_000
# The number of rows whose waves are in memory at once, and the most bytes (32 MiB) of the functions of all columns.
_TILE, _TILE_BYTES = 1_024, 1 << 25


@dataclass(frozen=True, eq=False)
class Effect:
    """The part of a model that depends on a few columns alone: a main effect, or an interaction.

    ``f_T(x) = Re sum_j a_j prod_{c in T} (e_jc(x_c) - psi_jc)``, where e_jc(x_c) is the wave exp(i w_jc . x_c), or the
    product of an atom's steps and hinges of column c, or a kernel between column c and a landmark, and psi_jc is its
    mean over the rows. The effect has mean zero in each of its columns, so that an interaction contains no main effect.
    x_c is a number, or all encoded columns of a category.

    Parameters
    ----------
    columns : tuple of int
        T.
    names : tuple of str
        The names of the columns.
    strength : float
        Standard deviation over the rows, in units of the decision values (for regressors, of the targets).
    factors : tuple of ColumnWaves, ColumnSteps, ColumnKernels or ColumnFunctions
        The m functions e of each column.
    means : ndarray of shape (m, |T|), complex; float64 for steps and kernels
        psi.
    coefficients : ndarray of shape (m, K), complex; float64 for steps and kernels
        a.
    outputs : tuple of str
        Names of the K outputs, if there are several or they are logarithms of means.
    bag_coefficients : ndarray of shape (bags, m, K) or None
        The coefficients in each bag, if the model is the mean over several bags (`StepFeatures(bags=8)`).

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
    factors: tuple[ColumnFunction, ...]
    means: np.ndarray
    coefficients: np.ndarray
    outputs: tuple[str, ...] = ()
    bag_coefficients: np.ndarray | None = None

    def __call__(self, *values: object) -> np.ndarray:
        """The effect (..., K) at unscaled values of its columns, given as one array for each column.

        The arrays broadcast. A column with k encoded columns needs an array of shape (..., k).
        """
        return self._values(self.coefficients, values)

    def deviations(self, *values: object) -> np.ndarray:
        """The standard deviation of the effect over the bags, at values as in `__call__`.

        Bags share most of their rows, so that this is smaller than the deviation between models of different rows.

        Raises
        ------
        ValueError
            If the model has no bags.
        """
        bags = self.bag_coefficients
        if bags is None:
            raise ValueError(
                "effects differ between the bags of a working model only; fit dkl.StepFeatures(bags=8) and explain its "
                "machine_"
            )
        each = self._values(np.concatenate(list(bags), axis=1), values)
        return each.reshape(*each.shape[:-1], len(bags), -1).std(axis=-2, ddof=1)

    def _values(self, coefficients: np.ndarray, values: Sequence[object]) -> np.ndarray:
        """The effect (..., L) with the given coefficients, (m, L)."""
        wide = [self._encoded(position, value) for position, value in enumerate(values)]
        # Values of several columns broadcast, so that they can span a grid.
        shape = np.broadcast_shapes(*(value.shape[:-1] for value in wide))
        rows = [np.broadcast_to(value, (*shape, value.shape[-1])).reshape(-1, value.shape[-1]) for value in wide]
        out = np.empty((len(rows[0]), coefficients.shape[1]))
        for tile in spans(len(out), _TILE):
            product = np.ones(1)
            for part, psi, own in zip(self.factors, self.means.T, rows, strict=True):
                product = product * (part.values(own[tile]) - psi)
            out[tile] = (product @ coefficients).real
        return out.reshape(*shape, -1)

    def _encoded(self, position: int, values: object) -> np.ndarray:
        """Values of one column as an array (..., k); plain numbers get a last axis of length 1."""
        value, width = np.asarray(values, dtype=np.float64), len(self.factors[position].columns)
        if width > 1 and value.shape[-1:] != (width,):
            raise ValueError(
                f"{self.names[position]!r} is encoded as {width} columns; give its values as an array of shape "
                f"(..., {width}), not {value.shape}"
            )
        return value if width > 1 else value[..., None]

    def __repr__(self) -> str:
        on = f" on {self.outputs[0]}" if len(self.outputs) == 1 else ""
        names = " x ".join(map(shortened, self.names))
        return f"<effect of {names}{on}: strength {self.strength:.3g}, {len(self.means)} terms>"


def effects(
    model: FittedModel,
    X: object,
    *,
    most_columns: int = 3,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
) -> list[Effect]:
    """The effects of single columns and of interactions in a fitted machine, strongest first.

    A model on sparse frequencies, on products of steps, or on a kernel of few columns at landmarks
    (``SparseFrequencies(most_columns=2)``) is a sum of functions of few columns. The functional analysis of variance,
    with independent columns, splits it into main effects and interactions without overlap; for these models it has a
    closed form.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
        A model on Fourier features, steps or such a kernel. Frequencies, atoms and products of kernels on more than
        `most_columns` columns are left out.
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        The rows for means and strengths; at most 5,000 are used.
    most_columns : int
        The largest number of columns of an effect, 1 to 3.
    names, groups
        As in `dkl.explain.importance`: encoded columns of one column have their effects together.

    Returns
    -------
    list of Effect

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    TypeError
        If its features are neither Fourier features, nor steps, nor such a kernel without mixing of columns.
    ValueError
        As in `dkl.explain.importance`.

    References
    ----------
    Hoeffding 1948; Bullins, Zhang & Zhang 2018 for the features; Lengerich et al. 2020, "Purifying interaction
    effects with the functional ANOVA", for models of thresholds.

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
    scorer = model_of(model)
    known = columns_of(model, names, groups)
    bags = _bags_of(model, scorer)
    parts = [
        (
            part,
            WaveFactors.of(part, known, most_columns)
            or StepFactors.of(part, known, part.coef if bags is None else bags)
            or KernelFactors.of(part, known),
        )
        for part in parts_of(scorer)
    ]
    unknown = [part.feature_map for part, factors in parts if factors is None]
    if unknown:
        which = " of rows scaled as 'counts', whose columns depend on each other" if mixes_columns(unknown[0]) else ""
        raise TypeError(
            f"the features are {unknown[0].activation!r}{which}; effects are read off Fourier features and steps, such "
            "as those of MarginFeatures and StepFeatures, and off kernels of few columns, such as "
            "NystromFeatures(SparseFrequencies(Laplacian(), most_columns=2)); dkl.explain.partial_dependence takes "
            "models on all features"
        )
    rows = dense(rows_to_explain(model, X).thin(MOST_ROWS, 0).X.compute())
    # Products of small matrices are faster on one thread of BLAS.
    with one_blas_thread():
        found: dict[tuple[int, ...], list[Effect]] = {}
        for part, factors in parts:
            for effect in _effects_of(factors, known, rows, most_columns, len(part.coef)) if factors else ():
                found.setdefault(effect.columns, []).append(effect)
        every = [_together(of_columns, known, rows) for of_columns in found.values()]
    outputs = output_labels(model)
    return [replace(effect, outputs=outputs) for effect in sorted(every, key=lambda effect: -effect.strength)]


@dataclass(frozen=True, eq=False)
class ColumnFunctions:
    """The functions of one column from several parts of a model, concatenated."""

    parts: tuple[ColumnFunction, ...]

    @property
    def columns(self) -> np.ndarray:
        """The encoded columns on which the functions depend."""
        return self.parts[0].columns

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The functions at rows (n, k) of these columns, unscaled: (n, m)."""
        return np.concatenate([part.values(rows) for part in self.parts], axis=1)


ColumnFunction = ColumnWaves | ColumnSteps | ColumnKernels | ColumnFunctions


def _together(effects: list[Effect], known: Columns, rows: np.ndarray) -> Effect:
    """The sum of effects of the same columns from several parts of a model, with its strength at dense rows (n, d)."""
    if len(effects) == 1:
        return effects[0]
    first = effects[0]
    total = replace(
        first,
        factors=tuple(ColumnFunctions(parts) for parts in zip(*(effect.factors for effect in effects), strict=True)),
        means=np.concatenate([effect.means for effect in effects]),
        coefficients=np.concatenate([effect.coefficients for effect in effects]),
    )
    own = [rows[:, known.members[c]] for c in first.columns]
    values = total(*(column if column.shape[1] > 1 else column[:, 0] for column in own))
    return replace(total, strength=float(np.sqrt(values.var(axis=0).sum())))


def _bags_of(model: FittedModel, scorer: Scorer) -> np.ndarray | None:
    """The coefficients of a model with bags, then those of each bag, (K + bags K, m); None for other models."""
    features: Any = getattr(model, "features_", None)
    bags = getattr(features, "bag_coef_", None)
    # a machine fitted on features of several bags has its own coefficients, which are no mean over bags
    if bags is None or len(bags) < 2 or not np.array_equal(scorer.coef, features.coef_):
        return None
    return np.concatenate([features.coef_, *bags])


def _effects_of(
    factors: WaveFactors | StepFactors | KernelFactors,
    known: Columns,
    rows: np.ndarray,
    most_columns: int,
    n_outputs: int,
) -> list[Effect]:
    """The effects of a sum of products of functions of single columns, at dense rows (n, d).

    Each term has `n_outputs` coefficients. If `factors` was made with the models of B bags, B times as many follow,
    which become the `bag_coefficients` of the effects.
    """
    n, tiles = len(rows), list(spans(len(rows), max(1, _TILE_BYTES // (16 * factors.n_functions))))
    means = sum(factors.values(rows[tile]).sum(axis=0) for tile in tiles) / n
    terms = factors.terms(means, most_columns)
    # the strength of each effect follows from the sums of its values and of their squares over the rows
    sums = {columns: np.zeros((2, n_outputs)) for columns in terms}
    for tile in tiles:
        # a function is a row here, since rows are collected faster than columns
        centred = np.ascontiguousarray(factors.values(rows[tile]).T)
        centred -= means[:, None]
        for columns, (numbers, coefficients) in terms.items():
            product = reduce(np.multiply, (_rows_at(centred, own) for own in numbers.T))
            values = (coefficients[:, :n_outputs].T @ product).real
            sums[columns] += np.stack([values.sum(axis=1), np.square(values).sum(axis=1)])
    every = []
    for columns, (numbers, every_coefficient) in terms.items():
        first, second = sums[columns] / n
        strength = float(np.sqrt(np.maximum(second - np.square(first), 0.0).sum()))
        coefficients, of_bags = np.split(every_coefficient, [n_outputs], axis=1)
        bags = of_bags.reshape(len(numbers), -1, n_outputs).swapaxes(0, 1)
        parts = tuple(factors.of_column(c, own, known) for c, own in zip(columns, numbers.T, strict=True))
        of_columns = tuple(known.names[c] for c in columns)
        effect = Effect(columns, of_columns, strength, parts, means[numbers], coefficients)
        every.append(replace(effect, bag_coefficients=bags) if len(bags) else effect)
    return every


def _rows_at(functions: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Some rows of an array; successive ones, such as all landmarks of a column, are no copy."""
    is_run = np.all(np.diff(numbers) == 1)
    return functions[numbers[0] : numbers[-1] + 1] if is_run else functions.take(numbers, axis=0)


def supports(frequencies: Rows) -> dict[tuple[int, ...], np.ndarray]:
    """The numbers of the frequencies by their support, the columns on which they are not zero.

    Parameters
    ----------
    frequencies : array or sparse matrix of shape (m, d)

    Returns
    -------
    dict of tuple of int to ndarray of int
        The numbers of the frequencies with exactly this support, ascending.

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
class WaveFactors:
    """f(x) = Re sum_j a_j prod_c exp(i w_jc . x_c) with waves of single columns, without the intercept.

    Parameters
    ----------
    feature_map : FeatureMap
    a : ndarray of shape (m, K), complex
    groups : dict of tuple of int to ndarray of int
        The frequencies on the same columns, by these columns; the functions are numbered group by group, and within a
        group column by column.
    waves : tuple of (ndarray of int, ndarray of shape (m_T, k))
        For each group and each of its columns the encoded columns, and the frequencies w there.
    """

    feature_map: FeatureMap
    a: np.ndarray
    groups: dict[tuple[int, ...], np.ndarray]
    waves: tuple[tuple[np.ndarray, np.ndarray], ...]

    @classmethod
    def of(cls, scorer: Scorer, known: Columns, most_columns: int) -> Self | None:
        """The waves of a model on at most `most_columns` columns; None for a model on other features."""
        if (a := wave_amplitudes(scorer)) is None:
            return None
        W = sparse.csr_array(formed(scorer.feature_map.projection))
        # the support of a frequency contains a column if any of its encoded columns has a nonzero entry
        members = sparse.csr_array(
            (np.ones(W.shape[1]), np.concatenate(known.members), np.cumsum([0, *map(len, known.members)]))
        )
        groups = {T: index for T, index in supports(abs(W) @ members.T).items() if 0 < len(T) <= most_columns}
        waves = [
            (known.members[c], W[index][:, known.members[c]].toarray().astype(np.float64))
            for columns, index in groups.items()
            for c in columns
        ]
        return cls(scorer.feature_map, a, groups, tuple(waves))

    @property
    def n_functions(self) -> int:
        """The number of waves of single columns, at least 1."""
        return max(1, sum(len(w) for _, w in self.waves))

    def values(self, rows: np.ndarray) -> np.ndarray:
        """The waves at unscaled dense rows (n, d): complex (n, U), in the memory order of the transpose."""
        scaled = scale_rows(rows, self.feature_map.scaler, "float64")
        return np.vstack([np.zeros((0, len(rows))), *(unit_waves(w @ scaled[:, own].T) for own, w in self.waves)]).T

    def terms(self, means: np.ndarray, most_columns: int) -> dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]]:
        """The terms of each effect, as in `StepFactors.terms`; a mean is the characteristic function of a column."""
        every: dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]] = {}
        start = 0
        for columns, index in self.groups.items():
            own = start + len(index) * np.arange(len(columns)) + np.arange(len(index))[:, None]
            start += own.size
            for size in range(1, len(columns) + 1):
                for inside in combinations(range(len(columns)), size):
                    others = np.setdiff1d(np.arange(len(columns)), inside)
                    coefficients = self.a[index] * means[own[:, others]].prod(axis=1)[:, None]
                    of_columns = every.setdefault(tuple(columns[position] for position in inside), [])
                    of_columns.append((own[:, inside], coefficients))
        return {
            columns: (np.concatenate([one for one, _ in own]), np.concatenate([a for _, a in own]))
            for columns, own in every.items()
        }

    def of_column(self, column: int, numbers: np.ndarray, known: Columns) -> ColumnWaves:
        """The given waves, all of one column, as functions of its encoded columns."""
        frequencies = [index for columns, index in self.groups.items() for _ in columns]
        return part_of(self.feature_map, known.members[column], np.concatenate(frequencies)[numbers])
