"""Importance of columns: how strongly the decision values of a model depend on each column; and its picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np

from dkl.explain.column_groups import Columns, Groups, columns_of
from dkl.explain.model import model_of, output_labels, rows_to_explain, wave_amplitudes
from dkl.explain.wave_pass import ROWS, SampledRows, dense, read_rows
from dkl.features.projections import formed
from dkl.figure import CLASS_COLOURS, Axes, Display
from dkl.kernels.explanations import slope_sums
from dkl.kernels.maps import mapping_flops
from dkl.kernels.products import PRODUCT_FREQUENCIES, product_rows
from dkl.kernels.slopes import has_slopes, spoken_features
from dkl.kernels.threads import one_blas_thread
from dkl.kernels.tiles import SCALED_BYTES
from dkl.linear.answers import Scorer
from dkl.plain_text import first_few, plain_text, shortened
from dkl.progress import Choice
from dkl.protocols.estimators import FittedModel
from dkl.protocols.records import Accumulator, BlockSum, Cost, Record

Measure = Literal["auto", "slope", "replacement"]


@dataclass(frozen=True, eq=False)
class Importance:
    """The importance of each column for a model.

    Parameters
    ----------
    names : tuple of str
        The names of the G columns; those that the fit left out are the last, with an importance of 0.
    values : ndarray of shape (G, K), float64
        The change of each output with the column, as a standard deviation: see `importance`.
    energy : ndarray of shape (G,), float64, or None
        The same measure for waves with independent uniform phases, which depends on frequencies and coefficients but
        not on the rows, except by their variances. None for features that are no waves.
    measure : {"slope", "replacement"}
    outputs : tuple of str
        Names of the K outputs if there are several.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> found = dkl.explain.importance(model, X)
    >>> found.names[found.order[0]], found.measure
    ('column 0', 'slope')
    """

    names: tuple[str, ...]
    values: np.ndarray
    energy: np.ndarray | None
    measure: str
    outputs: tuple[str, ...] = ()

    @property
    def strengths(self) -> np.ndarray:
        """The importance for all outputs together, (G,): the root of the sum of squares over outputs."""
        return np.sqrt(np.square(self.values).sum(axis=1))

    @property
    def order(self) -> np.ndarray:
        """The positions of the columns, the most important first, int64 of shape (G,)."""
        return np.argsort(-self.strengths, kind="stable")

    def to_frame(self) -> Any:
        """A pandas DataFrame, the most important column first."""
        import pandas as pd

        given = {"column": self.names, "strength": self.strengths}
        if self.energy is not None:
            given["energy"] = self.energy
        given |= {name: self.values[:, k] for k, name in enumerate(self.outputs)}
        return pd.DataFrame(given).iloc[self.order].reset_index(drop=True)

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Any:
        """Draw the most important columns as bars; see `dkl.plots.ImportanceDisplay`."""
        return ImportanceDisplay(self).plot(ax)

    def __repr__(self) -> str:
        lines = first_few(self.order, 20, text_of=lambda g: f"{shortened(self.names[g]):<24} {self.strengths[g]:.4g}")
        head = f"<importance of {len(self.names)} columns by {self.measure}"
        return plain_text("\n  ".join([head, *lines]) + ">")

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(max_rows=20, float_format="{:.4g}".format)


def importance(
    model: FittedModel,
    X: object,
    *,
    measure: Measure = "auto",
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
    sample_weight: object = None,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Importance:
    """The importance of each column: how much decision values (for regressors, predictions) change with it.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    measure : {"auto", "slope", "replacement"}
        "slope": the root mean square of the derivative in the column, times the column's standard deviation; squares
        are added over the encoded columns of a column. "replacement": the root of half the mean squared change when the
        column is replaced by that of another row (Jansen 1999: the total effect for independent columns), over at most
        10,000 rows. Both agree for a linear model. "auto": "slope" if the features have derivatives.
    names : sequence of str, or None
        Names of the encoded columns; None takes those of the fit.
    groups : mapping of str to sequence of int or str, or None
        Encoded columns that form one column. None groups them as the encoding of a data frame did; {} groups nothing.
    sample_weight : str, array of shape (n,), or None
        Frequency weights, or their column of a data frame; None for a Dataset, which has its own.
    progress : bool, callable or None
    memory_limit : int, str or None

    Returns
    -------
    Importance

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    TypeError
        If it makes no predictions.
    ValueError
        If the columns are not those of `fit`, or for ``measure="slope"`` with features without derivatives.

    References
    ----------
    Wahba 1990 and Rosasco et al. 2013 for derivatives as relevance; Jansen 1999, equation (10).

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import importance
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(300, 3))
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), solver="newton", alpha=1e-4)
    >>> found = importance(model.fit(X, np.sin(X[:, 1])), X, names=["a", "b", "c"])
    >>> found.names[found.order[0]]
    'b'
    """
    if measure not in ("auto", "slope", "replacement"):
        raise ValueError(f"measure is {measure!r}; expected 'auto', 'slope' or 'replacement'")
    scorer = model_of(model)
    dataset, columns = rows_to_explain(model, X, sample_weight), columns_of(model, names, groups)
    if measure == "slope" and not has_slopes(scorer.feature_map):
        raise ValueError(
            f"measure='slope' needs features with a gradient, which {spoken_features(scorer.feature_map)} have not; "
            "use measure='replacement'"
        )
    names_of_all, outputs = (*columns.names, *columns.left_out), output_labels(model)
    records = importance_records(scorer, dataset.n_columns, measure)
    (result,) = read_rows(model, dataset, records, progress=progress, memory_limit=memory_limit)
    if isinstance(result, SampledRows):
        changes = replacement_changes(scorer, columns, result)
        return Importance(names_of_all, _with_zeros(changes, columns), None, "replacement", outputs)
    mean = result["first"] / result["weight"]
    variances = np.maximum(result["second"] / result["weight"] - np.square(mean), 0.0)
    # The mean squared derivative in an encoded column times its variance, summed over the encoded columns of a column.
    squares = result["slopes"] / result["weight"] * variances[:, None]
    a, energy = wave_amplitudes(scorer), None
    if a is not None:
        # For waves with independent uniform phases the mean squared derivative in column c is sum_j |a_j|^2 w_jc^2 / 2.
        with one_blas_thread():
            W = formed(scorer.feature_map.projection)
            of_waves = np.asarray((W * W).T @ np.square(np.abs(a)).sum(axis=1)) / 2.0
        energy = _with_zeros(np.sqrt(columns.folded(of_waves * variances)), columns)
    return Importance(names_of_all, _with_zeros(np.sqrt(columns.folded(squares)), columns), energy, "slope", outputs)


@dataclass(frozen=True, eq=False)
class ImportanceDisplay(Display):
    """The most important columns of a model as bars, the longest on top.

    Parameters
    ----------
    importance : Importance
    most : int
        Bars at most.

    Attributes
    ----------
    figure_, axes_
        After `plot`.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import Importance
    >>> from dkl.plots import ImportanceDisplay
    >>> ImportanceDisplay(Importance(("age", "size"), np.array([[1.0], [3.0]]), None, "slope")).shown
    ['size', 'age']
    """

    importance: Importance
    most: int = 20
    _size = (4.8, 4.0)

    @classmethod
    def from_estimator(cls, model: FittedModel, X: object, *, most: int = 20, **options: Any) -> Self:
        """Compute the importance of all columns, which `plot` draws. `options`: of `dkl.explain.importance`."""
        return cls(importance(model, X, **options), most)

    @property
    def shown(self) -> list[str]:
        """The columns that have a bar."""
        return [self.importance.names[g] for g in self.importance.order[: self.most]]

    def _draw(self, axes: Sequence[Axes]) -> None:
        (ax,) = axes
        order = self.importance.order[: self.most]
        places = np.arange(len(order))
        ax.barh(places, self.importance.strengths[order], color=CLASS_COLOURS[0], height=0.7)
        # The energy by frequencies is another measure of the same importance: where both agree, trust is well placed.
        if self.importance.energy is not None:
            ax.plot(self.importance.energy[order], places, "|", color="black", markersize=10, label="by frequencies")
            ax.legend(loc="lower right")
        ax.set_yticks(places, self.shown)
        ax.invert_yaxis()
        ax.set_xlabel(f"change of the prediction ({self.importance.measure})")


def _with_zeros(values: np.ndarray, columns: Columns) -> np.ndarray:
    """Values (G, ...) of columns, and zeros for those that the fit left out, on which no prediction depends."""
    return np.concatenate([values, np.zeros((len(columns.left_out), *values.shape[1:]), values.dtype)])


def importance_records(scorer: Scorer, n_columns: int, measure: Measure = "auto") -> tuple[Record, ...]:
    """The records of the pass of `importance`: squared slopes and moments of the columns, or a sample of rows."""
    if measure == "replacement" or not has_slopes(scorer.feature_map):
        return (ROWS,)
    d, K = n_columns, len(scorer.coef)
    sums = {"weight": (), "first": (d,), "second": (d,), "slopes": (d, K)}
    m, itemsize = scorer.feature_map.n_frequencies, np.dtype(scorer.dtype).itemsize
    flops = mapping_flops(d, scorer.feature_map) + 2.0 * K * d * m

    def cost(rows: int, columns: int) -> Cost:
        # gradients and their squares, and the slopes of a tile of frequencies
        tile = min(rows, product_rows(m)) * itemsize
        return Cost(rows * flops, tile * ((2 * K + 1) * d + (K + 2) * min(m, PRODUCT_FREQUENCIES)) + SCALED_BYTES)

    accumulators = {name: Accumulator(shape) for name, shape in sums.items()}
    return (BlockSum("slopes", slope_sums, accumulators, {"machine": scorer}, cost),)


@one_blas_thread()
def replacement_changes(scorer: Scorer, columns: Columns, sample: SampledRows) -> np.ndarray:
    """The root of half the mean squared change when a column is replaced by that of another sampled row: (G, K).

    The rows of a sample are in random order, so that the row half the sample away is independent.
    """
    # Jansen's estimate of the total effect: half the mean squared change when one column comes from another row.
    other = np.roll(np.arange(len(sample.shares)), len(sample.shares) // 2)
    # Predictions of the unchanged rows, computed once for all columns.
    own = scorer(sample.rows)

    def change(rows: np.ndarray, part: slice, members: np.ndarray) -> np.ndarray:
        rows[:, members] = dense(sample.rows[other[part]][:, members])
        return np.square(scorer(rows) - own[part])

    squares = [sample.mean(partial(change, members=members)) for members in columns.members]
    return np.sqrt(np.array(squares) / 2.0)
