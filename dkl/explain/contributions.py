"""Contributions of columns to the prediction for a row (Shapley values), which add up to it; and their picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy import sparse

from dkl.data.dataset import Dataset
from dkl.explain.column_groups import Columns, Groups, columns_of
from dkl.explain.model import model_of, output_labels, parts_of, rows_to_explain, unit_of, wave_amplitudes
from dkl.explain.step_factors import StepFactors
from dkl.explain.wave_pass import (
    ROWS,
    TILE_BYTES,
    SampledRows,
    column_record,
    dense,
    part_of,
    read_rows,
    wave_means,
    wave_record,
)
from dkl.figure import CLASS_COLOURS, Axes, Display
from dkl.kernels.explanations import ColumnWaves
from dkl.kernels.scale import scale_rows
from dkl.kernels.shapley import product_contributions, wave_contributions
from dkl.kernels.slopes import linear_slopes
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.linear.answers import Scorer
from dkl.plain_text import plain_text, shortened
from dkl.progress import Choice
from dkl.protocols.arrays import Rows
from dkl.protocols.estimators import FittedModel
from dkl.protocols.records import Record

# The number of frequencies whose angles, in all columns of a tile of rows, are in memory at once.
_FREQUENCIES = 128
# The first number of nodes of the integral; it is enough for smooth waves, whatever the number of columns.
_FEWEST_NODES = 6
# The largest difference between the sum of contributions and its exact value, as a share of the waves' amplitudes; a
# larger one doubles the number of nodes.
_MISS = 1e-10
# The number of background rows, with independently drawn columns, in the estimate for features without a formula.
_DRAWS = 200


@dataclass(frozen=True, eq=False)
class Contributions:
    """The contributions of all columns to the predictions for some rows.

    Parameters
    ----------
    columns : Columns
        The G columns.
    values : ndarray of shape (n, G, K), float64
        The contributions, in units of the decision values (for regressors, of the predictions).
    base : ndarray of shape (K,)
        The mean prediction over the background with independent columns.
    rows : ndarray or csr_array of shape (n, d)
        The encoded, unscaled rows.
    outputs : tuple of str
        Names of the K outputs if there are several.
    standard_errors : ndarray of shape (n, G, K) or None
        The standard errors of values that are means over random draws; None if values are exact.
    unit : str
        The name of the quantity that the values add up to: "prediction" in the units of y, "log mean" for a loss with a
        log link, "decision value", or for two classes "decision value of" the second class.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> parts = dkl.explain.contributions(model, X[:3], X)
    >>> bool(np.allclose(parts.base + parts.values.sum(axis=1)[:, 0], model.predict(X[:3]), atol=1e-5))
    True
    """

    columns: Columns
    values: np.ndarray
    base: np.ndarray
    rows: Rows
    outputs: tuple[str, ...] = ()
    standard_errors: np.ndarray | None = None
    unit: str = "prediction"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return self.columns.names

    @property
    def predictions(self) -> np.ndarray:
        """Base plus contributions: the decision values, (n, K)."""
        return self.base + self.values.sum(axis=1)

    def label(self, row: int, column: int) -> str:
        """A column and its value in a row: ``"colour = red"``."""
        own = dense(self.rows[[row]])[0, self.columns.members[column]]
        return f"{self.names[column]} = {self.columns.label(column, own)}"

    def to_frame(self, output: int = 0) -> Any:
        """A pandas DataFrame (n, G) of one output."""
        import pandas as pd

        return pd.DataFrame(self.values[:, :, output], columns=list(self.names))

    def plot(self, ax: Axes | Sequence[Axes] | None = None, *, row: int = 0, output: int = 0) -> Any:
        """Draw the contributions to one row, from the mean to the prediction; see `dkl.plots.ContributionsDisplay`."""
        return ContributionsDisplay(self, row=row, output=output).plot(ax)

    def __repr__(self) -> str:
        n, G, K = self.values.shape
        lines = [f"<contributions of {G} columns to {n} rows and {K} outputs; mean {_shown(self.base)}"]
        if n == 1:
            strengths = np.abs(self.values[0]).max(axis=1)
            for g in np.argsort(-strengths, kind="stable")[:20]:
                lines.append(f"  {shortened(self.label(0, g)):<32} {_shown(self.values[0, g])}")
                if self.standard_errors is not None:
                    lines[-1] += f" (standard error {self.standard_errors[0, g].max():.1g})"
            lines.append(f"  {'prediction':<32} {_shown(self.predictions[0])}")
        return plain_text("\n".join(lines) + ">")


def contributions(
    model: FittedModel,
    rows: object,
    background: object,
    *,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
    sample_weight: object = None,
    random_state: int = 0,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Contributions:
    """The contribution of each column to the prediction for each row: Shapley values with independent columns.

    A column that is left out is averaged over its own distribution in the background. The contributions to a row sum to
    the prediction minus the mean prediction. They are exact for sums of waves (Fourier features, landmarks), which need
    only the background means of exp(i w x_c), from one pass, and for products of steps and hinges, which need the mean
    of each column's factor. For linear features they are the coefficient times the distance from the mean. For other
    features they are estimated from 200 rows drawn from the background, whose columns are replaced one after another in
    random order: the estimate is unbiased, the sum is exact, and `standard_errors` has the standard errors.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    rows : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
        The rows to explain; the result is held in memory.
    background : array, scipy sparse matrix, data frame, Dask collection, Dataset or Background
        The rows with which predictions are compared, such as the training rows, read block by block; or the result of
        `background_of`, which has names and groups.
    names, groups
        As in `dkl.explain.importance`: encoded columns of one column are replaced together.
    sample_weight : str, array of shape (n,), or None
        Weights of the background rows, or their column of a data frame.
    random_state : int
        Seed of the draws for features without a formula.
    progress, memory_limit
        As in `dkl.explain.importance`.

    Returns
    -------
    Contributions

    Raises
    ------
    NotFittedError, TypeError, ValueError
        As in `dkl.explain.importance`.

    References
    ----------
    Shapley 1953; Strumbelj & Kononenko 2014 and Lundberg & Lee 2017 for predictions.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import contributions
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), solver="newton", alpha=1e-4)
    >>> model = model.fit(X, np.sin(X[:, 1]) + X[:, 0])
    >>> found = contributions(model, X[:5], X)
    >>> bool(np.allclose(found.predictions[:, 0], model.predict(X[:5]), atol=1e-4))
    True
    """
    if not isinstance(background, Background):
        background = background_of(
            model,
            background,
            names=names,
            groups=groups,
            sample_weight=sample_weight,
            random_state=random_state,
            progress=progress,
            memory_limit=memory_limit,
        )
    elif names is not None or groups is not None or sample_weight is not None:
        raise ValueError("names, groups and sample_weight belong to background_of, which made this background")
    return background.explain(rows_to_explain(model, rows))


@dataclass(frozen=True, eq=False)
class ContributionsDisplay(Display):
    """The prediction of one row, column by column: steps from the mean prediction, the largest on top.

    Parameters
    ----------
    contributions : Contributions
    row : int
    output : int
    most : int
        Columns with a step of their own; the others share one.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> parts = dkl.explain.contributions(model, X[:3], X)
    >>> len(dkl.plots.ContributionsDisplay(parts, row=2).plot().axes_)
    1
    """

    contributions: Contributions
    row: int = 0
    output: int = 0
    most: int = 12
    _size = (5.4, 4.0)

    def __post_init__(self) -> None:
        n_rows, _, n_outputs = self.contributions.values.shape
        for name, number, size in (("row", self.row, n_rows), ("output", self.output, n_outputs)):
            if not -size <= number < size:
                raise IndexError(f"{name} is {number}, and there are contributions to {size:,} {name}s, from 0 on")

    @classmethod
    def from_estimator(
        cls, model: FittedModel, rows: object, background: object, *, row: int = 0, **options: Any
    ) -> Self:
        """Compute contributions; `plot` draws those of one row. `options`: of `dkl.explain.contributions`."""
        return cls(contributions(model, rows, background, **options), row)

    @property
    def steps(self) -> list[tuple[str, float]]:
        """Each column with its value, and what it contributes; what is left comes last."""
        # Columns are ordered by size, whatever the sign: a large step down matters as much as one up.
        own = self.contributions.values[self.row, :, self.output]
        order = np.argsort(-np.abs(own), kind="stable")
        shown = [(self.contributions.label(self.row, int(g)), float(own[g])) for g in order[: self.most]]
        rest = order[self.most :]
        return [*shown, (f"{len(rest)} others", float(own[rest].sum()))] if len(rest) else shown

    def _draw(self, axes: Sequence[Axes]) -> None:
        (ax,) = axes
        labels, values = zip(*self.steps, strict=True)
        base = float(self.contributions.base[self.output])
        # The steps add up from the bottom, where the mean prediction stands, to the prediction on top.
        ends = base + np.cumsum(values[::-1])[::-1]
        places = np.arange(len(values))
        # Steps up and steps down have the colours of the two classes.
        colours = [CLASS_COLOURS[1] if value > 0 else CLASS_COLOURS[0] for value in values]
        ax.barh(places, values, left=ends - np.array(values), color=colours, height=0.7)
        for place, value, end in zip(places, values, ends, strict=True):
            ax.annotate(
                f"{value:+.3g}",
                (max(end, end - value), place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        ax.axvline(base, color="0.6", linewidth=0.8)
        ax.set_yticks(places, labels)
        ax.invert_yaxis()
        # matplotlib would otherwise put the foot of a bar at the edge of the picture.
        ax.use_sticky_edges = False
        ax.margins(x=0.15)
        outputs = self.contributions.outputs
        # a single output with a name of its own has it as its unit
        output = f" of {outputs[self.output]}" if len(outputs) > 1 else ""
        unit = f"{self.contributions.unit}{output}"
        ax.set_xlabel(f"{unit}: mean {base:.4g}, in this row {float(ends[0]):.4g}")


class Background:
    """The background statistics with which contributions are computed; the result of `background_of`.

    Parameters
    ----------
    columns : Columns
    base : ndarray of shape (K,)
        The mean prediction.
    outputs : tuple of str

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> dkl.explain.background_of(model, X).base.shape
    (1,)
    """

    # of values and base; `background_of` knows the model's
    unit = "prediction"

    def __init__(self, columns: Columns, base: np.ndarray, outputs: tuple[str, ...]) -> None:
        self.columns, self.base, self.outputs = columns, base, outputs

    def explain(self, dataset: Dataset) -> Contributions:
        """The contributions to all rows of a Dataset of encoded rows."""
        # The rows are held in memory, since their contributions take several times as much.
        X = dataset.X.compute()
        tiles = [X[part] for part in spans(X.shape[0], self._tile_rows())]
        found = Crew().map(lambda tile: self._contributions(dense(tile)), tiles)
        values = np.concatenate([values for values, _ in found])
        # sums over the other columns cancel up to rounding where a column changes nothing
        rounding = 64.0 * np.finfo(np.float64).eps * np.abs(values).sum(axis=1, keepdims=True)
        values[np.abs(values) < rounding] = 0.0
        errors = [errors for _, errors in found if errors is not None]
        known = np.concatenate(errors) if errors else None
        return Contributions(self.columns, values, self.base, X, self.outputs, known, self.unit)

    def _tile_rows(self) -> int:
        """The number of rows that one core explains at a time."""
        return 16

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The contributions (n, G, K) to decision values of dense rows (n, d), and their standard errors or None."""
        raise TypeError(f"{type(self).__name__} does not say what columns contribute")


def background_of(
    model: FittedModel,
    X: object,
    *,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
    sample_weight: object = None,
    random_state: int = 0,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Background:
    """Read a background once, so that any number of rows can be explained with it.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    names, groups, sample_weight, random_state, progress, memory_limit
        As in `contributions`.

    Returns
    -------
    Background

    Raises
    ------
    NotFittedError, TypeError, ValueError
        As `dkl.explain.importance`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> background = dkl.explain.background_of(model, X)
    >>> [dkl.explain.contributions(model, X[i : i + 1], background).values.shape for i in range(2)]
    [(1, 2, 1), (1, 2, 1)]
    """
    scorer, columns, outputs = model_of(model), columns_of(model, names, groups), output_labels(model)
    dataset = rows_to_explain(model, X, sample_weight)
    kinds = [_kind_of(part, columns, outputs, random_state) for part in parts_of(scorer)]
    records = tuple(record for record, _ in kinds)
    results = read_rows(model, dataset, records, progress=progress, memory_limit=memory_limit)
    parts = [background(result) for (_, background), result in zip(kinds, results, strict=True)]
    whole = parts[0] if len(parts) == 1 else _Sum(columns, parts)
    whole.unit = unit_of(model)
    return whole


def _kind_of(
    part: Scorer, columns: Columns, outputs: tuple[str, ...], random_state: int
) -> tuple[Record, Callable[[Any], Background]]:
    """The record whose result the background of a part of a model needs, and the function that makes it of this."""
    if (a := wave_amplitudes(part)) is not None:
        waves = [part_of(part.feature_map, members) for members in columns.members]
        return wave_record(waves, part.dtype), lambda result: _Waves(
            columns, outputs, waves, wave_means(result), a, part.intercept
        )
    if (steps := StepFactors.of(part, columns)) is not None:
        return steps.record(), lambda result: _Products(columns, outputs, steps, steps.means(result), part.intercept)
    if part.feature_map.activation == "identity":
        record = column_record(part.feature_map.scaler, part.feature_map.n_columns)
        return record, lambda result: _Linear(columns, outputs, part, result["sums"] / result["weight"])
    return ROWS, lambda result: _Draws(columns, outputs, part, result, random_state)


class _Sum(Background):
    """The background of a model with several parts; Shapley values of a sum are sums of those of its parts."""

    def __init__(self, columns: Columns, parts: list[Background]) -> None:
        self.parts = parts
        super().__init__(columns, np.sum([part.base for part in parts], axis=0), parts[0].outputs)

    def _tile_rows(self) -> int:
        return min(part._tile_rows() for part in self.parts)

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        values, errors = zip(*(part._contributions(rows) for part in self.parts), strict=True)
        # at most one part is estimated from draws and has standard errors
        return np.sum(values, axis=0), next((error for error in errors if error is not None), None)


class _Linear(Background):
    """The background of a linear model: the mean of each scaled column."""

    def __init__(self, columns: Columns, outputs: tuple[str, ...], scorer: Scorer, mean: np.ndarray) -> None:
        self.slopes = linear_slopes(scorer.feature_map, scorer.coef)
        self.scaler, self.mean = scorer.feature_map.scaler, mean
        super().__init__(columns, mean @ self.slopes + scorer.intercept, outputs)

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, None]:
        # The Shapley values of a linear function are coefficients times distances from the mean.
        away = scale_rows(rows, self.scaler, "float64") - self.mean
        return np.stack([self.columns.folded(row[:, None] * self.slopes) for row in away]), None


class _Products(Background):
    """The background of a model on steps and hinges: the mean of each column's factor in each product."""

    def __init__(
        self, columns: Columns, outputs: tuple[str, ...], steps: StepFactors, means: np.ndarray, intercept: np.ndarray
    ) -> None:
        self.steps, self.means, (m, K) = steps, means, steps.coef.shape
        # Matrices that turn the contributions of the factors, by place in the atoms, into those of columns and outputs.
        self.folds = []
        for numbers in steps.index.T:
            own = np.flatnonzero(numbers >= 0)
            places = np.repeat(own, K), (steps.columns[numbers[own], None] * K + np.arange(K)).ravel()
            self.folds.append(sparse.csr_array((steps.coef[own].ravel(), places), shape=(m, len(columns) * K)))
        # With independent columns the mean of a product is the product of the means.
        super().__init__(columns, means[steps.index].prod(axis=1) @ steps.coef + intercept, outputs)

    def _tile_rows(self) -> int:
        # five arrays of this size: factors, their contributions, and temporaries
        return max(1, TILE_BYTES // (8 * 5 * self.steps.index.size))

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, None]:
        index = self.steps.index
        shares = product_contributions(self.steps.values(rows)[:, index], self.means[index])
        folded = sum(shares[:, :, place] @ fold for place, fold in enumerate(self.folds))
        return folded.reshape(len(rows), len(self.columns), -1), None


class _Waves(Background):
    """The background of a model on waves: psi (G, m), the mean of each wave in each column."""

    def __init__(
        self,
        columns: Columns,
        outputs: tuple[str, ...],
        parts: list[ColumnWaves],
        psi: np.ndarray,
        a: np.ndarray,
        intercept: np.ndarray,
    ) -> None:
        self.parts, self.psi, self.a, self.intercept = parts, psi, a, intercept
        # With independent columns the mean of a wave is the product of its means in the columns.
        super().__init__(columns, self._sum(psi.prod(axis=0)[None])[0], outputs)

    def _sum(self, waves: np.ndarray) -> np.ndarray:
        """Decision values from waves (n, m): Re(sum_j a_j wave_j) + b, by real products."""
        return (waves.real @ self.a.real - waves.imag @ self.a.imag) + self.intercept

    def _tile_rows(self) -> int:
        return max(1, TILE_BYTES // (8 * len(self.columns) * _FREQUENCIES))

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, None]:
        """See `Background`; doubles the number of nodes until the sum of contributions is accurate enough."""
        # G / 2 nodes integrate a polynomial of degree G - 1 exactly, but slowly varying waves need far fewer.
        enough = max(1, -(-len(self.columns) // 2))
        n_nodes, allowed = min(_FEWEST_NODES, enough), _MISS * np.abs(self.a).sum(axis=0)
        while True:
            values, waves = self._integrated(rows, n_nodes)
            missing = np.abs(values.sum(axis=1) - (self._sum(waves) - self.base))
            if n_nodes == enough or (missing <= allowed).all():
                return values, None
            n_nodes = min(2 * n_nodes, enough)

    def _integrated(self, rows: np.ndarray, n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
        """The contributions, and the waves exp(i w.x) (n, m) of whole rows."""
        values, waves = np.zeros((len(rows), len(self.columns), self.a.shape[1])), []
        for chosen in spans(len(self.a), _FREQUENCIES):
            # the angles of single columns, whose sum is the angle of the row
            angles = np.stack([part.angles(rows[:, part.columns], chosen) for part in self.parts], axis=1)
            values += wave_contributions(angles, self.psi[:, chosen], self.a[chosen], n_nodes)
            waves.append(np.exp(1j * angles.sum(axis=1)))
        return values, np.concatenate(waves, axis=1)


class _Draws(Background):
    """The background of any other model: random rows with independently drawn columns, and a column order for each.

    From each random row, columns are set to those of the explained row, one after another in this order. The mean
    change of the prediction by setting a column is its contribution.
    """

    def __init__(
        self, columns: Columns, outputs: tuple[str, ...], scorer: Scorer, sample: SampledRows, random_state: int
    ) -> None:
        self.scorer, generator = scorer, np.random.default_rng(random_state)
        self.draws = np.empty((_DRAWS, sample.rows.shape[1]))
        for members in columns.members:
            # Each column is drawn from other rows, so that columns are independent.
            drawn = generator.choice(len(sample.shares), _DRAWS, p=sample.shares)
            self.draws[:, members] = dense(sample.rows[drawn][:, members])
        # Each order is used with its reverse, so that interactions are shared evenly between columns.
        orders = generator.permuted(np.tile(np.arange(len(columns)), (_DRAWS // 2, 1)), axis=1)
        self.orders = np.concatenate([orders, orders[:, ::-1]])
        super().__init__(columns, scorer(self.draws).mean(axis=0), outputs)

    def _contributions(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, errors = zip(*(self._walked(row) for row in rows), strict=True)
        return np.stack(values), np.stack(errors)

    def _walked(self, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The contributions (G, K) to one row, and their standard errors."""
        values, current = np.zeros((len(self.columns), len(self.base))), self.draws.copy()
        changes = np.empty((len(current), *values.shape))
        before = self.scorer(current)
        for of_draws in self.orders.T:
            # In each step every draw sets the next column of its own order; all draws are predicted at once.
            for draw, g in enumerate(of_draws):
                current[draw, self.columns.members[g]] = row[self.columns.members[g]]
            after = self.scorer(current)
            np.add.at(values, of_draws, (after - before) / len(current))
            changes[np.arange(len(current)), of_draws] = after - before
            before = after
        # Draws with reversed orders are dependent; the means of these pairs are independent.
        pairs = (changes[: len(changes) // 2] + changes[len(changes) // 2 :]) / 2.0
        return values, pairs.std(axis=0, ddof=1) / np.sqrt(len(pairs))


def _shown(values: np.ndarray) -> str:
    """Numbers with their signs, for `repr`."""
    return " ".join(f"{value:+.4g}" for value in values)
