"""Effects: the parts of a model on sparse frequencies, steps or additive kernels that depend on few columns each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy import sparse

from dkl.explain.column_groups import Columns, Groups, columns_of
from dkl.explain.kernel_factors import ColumnKernels, KernelFactors, term_values
from dkl.explain.model import (
    mixes_columns,
    model_of,
    output_labels,
    parts_of,
    rows_to_explain,
    wave_amplitudes,
)
from dkl.explain.step_factors import ColumnSteps, StepFactors
from dkl.explain.sums import ColumnWaves, unit_waves
from dkl.explain.wave_pass import dense, part_of
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.kernels.blas import one_blas_thread
from dkl.kernels.scale import scale_rows
from dkl.kernels.tiles import spans
from dkl.linear.answers import Scorer
from dkl.plain_text import shortened
from dkl.protocols.arrays import Rows
from dkl.protocols.estimators import FittedModel

# The most rows over which means and strengths of effects are computed.
MOST_ROWS = 5_000
# The number of rows whose waves are in memory at once.
_TILE = 1_024


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
            wave_amplitudes(part),
            StepFactors.of(part, known, part.coef if bags is None else bags),
            KernelFactors.of(part, known),
        )
        for part in parts_of(scorer)
    ]
    unknown = [part.feature_map for part, *read in parts if all(one is None for one in read)]
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
        for part, a, steps, kernels in parts:
            if a is not None:
                of_part = _wave_effects(part.feature_map, a, known, rows, most_columns)
            elif steps is not None:
                of_part = _step_effects(steps, known, rows, most_columns, len(part.coef))
            else:
                of_part = [] if kernels is None else _kernel_effects(kernels, known, rows, most_columns)
            for effect in of_part:
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


def _step_effects(
    steps: StepFactors, known: Columns, rows: np.ndarray, most_columns: int, n_outputs: int
) -> list[Effect]:
    """The effects of a model on steps at dense rows (n, d); coefficients of bags follow those of the outputs."""
    factors = steps.values(rows)
    means = factors.mean(axis=0)
    centred, every = factors - means, []
    for columns, (numbers, every_coefficient) in steps.terms(means, most_columns).items():
        coefficients, of_bags = np.split(every_coefficient, [n_outputs], axis=1)
        bags = of_bags.reshape(len(numbers), -1, n_outputs).swapaxes(0, 1)
        values = np.zeros((len(rows), coefficients.shape[1]))
        for tile in spans(len(rows), _TILE):
            values[tile] = centred[tile][:, numbers].prod(axis=2) @ coefficients
        strength = float(np.sqrt(values.var(axis=0).sum()))
        parts = tuple(steps.of_column(own, known.members[c]) for c, own in zip(columns, numbers.T, strict=True))
        of_columns = tuple(known.names[c] for c in columns)
        effect = Effect(columns, of_columns, strength, parts, means[numbers], coefficients)
        every.append(replace(effect, bag_coefficients=bags) if len(bags) else effect)
    return every


def _kernel_effects(kernels: KernelFactors, known: Columns, rows: np.ndarray, most_columns: int) -> list[Effect]:
    """The effects of a model on a kernel of few columns, at dense rows (n, d)."""
    n, tiles = len(rows), kernels.tiles(len(rows))
    means = [np.zeros((len(part.sizes), len(part.landmarks))) for part in kernels.parts]
    for tile in tiles:
        for mean, values in zip(means, kernels.values(rows[tile]), strict=True):
            mean += values.sum(axis=1) / n
    terms = kernels.terms(means, most_columns)
    squares = {columns: np.zeros((2, kernels.coef.shape[1])) for columns in terms}
    for tile in tiles:
        centred = [values - psi[:, None] for values, psi in zip(kernels.values(rows[tile]), means, strict=True)]
        for columns, of_columns in terms.items():
            value = sum(term_values(centred, columns, sizes) @ coefficients for sizes, coefficients in of_columns)
            squares[columns] += np.stack([value.sum(axis=0), np.square(value).sum(axis=0)])
    every = []
    for columns, of_columns in terms.items():
        first, second = squares[columns] / n
        factors, psi = [], []
        for position, c in enumerate(columns):
            sizes = tuple(sizes[position] for sizes, _ in of_columns)
            factors.append(replace(kernels.parts[c], sizes=sizes))
            psi.append(np.concatenate([means[c][size - 1] for size in sizes]))
        strength = float(np.sqrt(np.maximum(second - np.square(first), 0.0).sum()))
        coefficients = np.concatenate([own for _, own in of_columns])
        of_names = tuple(known.names[c] for c in columns)
        every.append(Effect(columns, of_names, strength, tuple(factors), np.stack(psi, axis=1), coefficients))
    return every


def _wave_effects(
    feature_map: FeatureMap, a: np.ndarray, known: Columns, sample: np.ndarray, most_columns: int
) -> list[Effect]:
    """The effects of a model on waves, at dense rows (n, d)."""
    rows = scale_rows(sample, feature_map.scaler, "float64")
    own = [rows[:, members] for members in known.members]
    by_columns = _Group.all_of(feature_map, a, known, own, most_columns)
    # The variance of each effect follows from the sums of its values and of their squares over the rows.
    n, sums = len(rows), dict[tuple[int, ...], np.ndarray]()
    for tile in spans(n, _TILE):
        values: dict[tuple[int, ...], np.ndarray] = {}
        for group in by_columns:
            for columns, share in group.shares(own, tile):
                # Frequencies on different columns may contribute to the same effect: their values are added first.
                values[columns] = values.get(columns, 0.0) + share
        for columns, value in values.items():
            sums[columns] = sums.get(columns, 0.0) + np.stack([value.sum(axis=0), np.square(value).sum(axis=0)])
    every = []
    for columns, (first, second) in sums.items():
        strength = float(np.sqrt(np.maximum(second / n - np.square(first / n), 0.0).sum()))
        # f_T has a term of every frequency that depends on all columns of T. For frequencies on further columns, the
        # waves in these are replaced by their means.
        parts = [group for group in by_columns if group.holds(columns)]
        frequencies = np.concatenate([group.frequencies for group in parts])
        means, coefficients = (
            np.concatenate(arrays) for arrays in zip(*(group.part(columns) for group in parts), strict=True)
        )
        waves = tuple(part_of(feature_map, known.members[c], frequencies) for c in columns)
        of_columns = tuple(known.names[c] for c in columns)
        every.append(Effect(columns, of_columns, strength, waves, means, coefficients))
    return every


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
class _Group:
    """Frequencies with the same support T: their numbers, w (m, k_c) in each column c, psi (m, |T|) and a (m, K)."""

    columns: tuple[int, ...]
    frequencies: np.ndarray
    w: tuple[np.ndarray, ...]
    psi: np.ndarray
    a: np.ndarray

    @classmethod
    def all_of(
        cls, feature_map: FeatureMap, a: np.ndarray, known: Columns, rows: Sequence[np.ndarray], most_columns: int
    ) -> list[_Group]:
        """The frequencies grouped by their supports, with the means of their waves over the scaled rows."""
        # The support of a frequency contains a column if any of its encoded columns has a nonzero entry.
        W = sparse.csr_array(formed(feature_map.projection))
        members = sparse.csr_array(
            (np.ones(W.shape[1]), np.concatenate(known.members), np.cumsum([0, *map(len, known.members)]))
        )
        groups = []
        for columns, index in supports(abs(W) @ members.T).items():
            if not 0 < len(columns) <= most_columns:
                continue
            w = tuple(W[index][:, known.members[c]].toarray().astype(np.float64) for c in columns)
            # psi_c(w), the characteristic function of column c: the mean of exp(i w . x_c).
            psi = np.zeros((len(index), len(columns)), complex)
            for position, c in enumerate(columns):
                for tile in spans(len(rows[c]), _TILE):
                    psi[:, position] += unit_waves(rows[c][tile] @ w[position].T).sum(axis=0)
                psi[:, position] /= len(rows[c])
            groups.append(cls(columns, index, w, psi, a[index]))
        return groups

    def holds(self, columns: tuple[int, ...]) -> bool:
        return set(columns) <= set(self.columns)

    def part(self, columns: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The means and coefficients in the effect of `columns`: psi, and a times psi of the group's other columns."""
        # The analysis of variance is prod_c e_c = sum_T prod_{c in T} (e_c - psi_c) prod_{c not in T} psi_c.
        inside = np.isin(self.columns, columns)
        return self.psi[:, inside], self.a * self.psi[:, ~inside].prod(axis=1)[:, None]

    def shares(self, rows: Sequence[np.ndarray], tile: slice) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
        """Their contribution to each effect, (n, K), at a tile of the scaled rows (n, k_c) of each column."""
        # exp(i w . x_c) - psi_c, whose mean is zero
        waves = [
            unit_waves(rows[c][tile] @ w.T) - psi for c, w, psi in zip(self.columns, self.w, self.psi.T, strict=True)
        ]
        for size in range(1, len(self.columns) + 1):
            for positions in combinations(range(len(self.columns)), size):
                columns = tuple(self.columns[position] for position in positions)
                product = waves[positions[0]]
                for position in positions[1:]:
                    product = product * waves[position]
                a = self.part(columns)[1]
                yield columns, product.real @ a.real - product.imag @ a.imag
