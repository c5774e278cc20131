"""Partial dependence, the mean prediction with one or two columns set to given values, and its pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Self

import numpy as np

from dkl.explain.along import draw_curves, draw_pair, draw_rug
from dkl.explain.column_groups import Axis, Columns, Groups, axis_on, columns_of
from dkl.explain.model import model_of, output_labels, rows_to_explain, unit_of, wave_amplitudes
from dkl.explain.wave_pass import ROWS, SampledRows, left_out_record, part_of, read_rows, wave_means
from dkl.figure import Axes, Display
from dkl.kernels.threads import one_blas_thread
from dkl.linear.answers import Scorer
from dkl.plain_text import shortened
from dkl.progress import Choice
from dkl.protocols.estimators import FittedModel

# The number of rows in a mean prediction for features without a formula.
_AVERAGED_ROWS = 1_000
# The most values of each column in a partial dependence on two columns, whose map has the square of it.
_MAP_RESOLUTION = 30

Column = int | str | tuple[int | str, int | str]
# The mean prediction (g, K) over the rows with some encoded columns set to each of g patterns.
MeanPrediction = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class PartialDependence:
    """The mean prediction over the rows, with one or two columns set to each of their values.

    Parameters
    ----------
    axes : tuple of Axis
        The axes of the one or two columns.
    values : ndarray of shape (g, K) or (g1, g2, K), float64
        Mean decision values; for regressors, mean predictions.
    mean : ndarray of shape (K,)
        The mean prediction without setting columns.
    interaction : ndarray of shape (g1, g2, K) or None
        For two columns the joint dependence minus those of the single columns, plus the mean: 0 if each column acts by
        itself.
    shares : ndarray of shape (n,)
        The weights, of sum 1, of the rows of the axes.
    outputs : tuple of str
        Names of the K outputs if there are several.
    unit : str
        The name of the quantity whose means the values are, as of `Contributions`.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(X, X[:, 0])
    >>> curve, pair = dkl.explain.partial_dependence(model, X, [0, (0, 1)], resolution=10)
    >>> curve.values.shape, pair.interaction.shape
    ((10, 1), (10, 10, 1))
    """

    axes: tuple[Axis, ...]
    values: np.ndarray
    mean: np.ndarray
    interaction: np.ndarray | None
    shares: np.ndarray
    outputs: tuple[str, ...] = ()
    unit: str = "prediction"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(axis.name for axis in self.axes)

    @property
    def strength(self) -> float:
        """The standard deviation of the dependence over the rows, for all outputs; for pairs, of the interaction."""
        values = self.values if self.interaction is None else self.interaction
        own = values[tuple(axis.nearest() for axis in self.axes)]
        # Each row has the dependence at its nearest value, so that values with few rows have little weight.
        return float(np.sqrt((self.shares @ np.square(own - self.shares @ own)).sum()))

    def plot(self, ax: Axes | Sequence[Axes] | None = None) -> Any:
        """Draw a curve, bars or a map; see `dkl.plots.DependenceDisplay`."""
        return DependenceDisplay([self]).plot(ax)

    def __repr__(self) -> str:
        sizes = " x ".join(str(len(axis.patterns)) for axis in self.axes)
        what = "interaction " if self.interaction is not None else ""
        names = " x ".join(map(shortened, self.names))
        return f"<partial dependence on {names}: {sizes} values, {what}strength {self.strength:.3g}>"


def partial_dependence(
    model: FittedModel,
    X: object,
    columns: Column | list[Column],
    *,
    resolution: int = 100,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
    sample_weight: object = None,
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Any:
    """Partial dependence of the predictions on single columns and on pairs of columns, all in one pass.

    For sums of waves (Fourier features, landmarks) the mean over all rows follows, for any number of values, from sums
    of the other columns' waves; for other features it is the mean over at most 1,000 rows.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    columns : int, str, pair of them, or list of these
        By number or name; a tuple of two columns is set jointly.
    resolution : int
        The number of values on the axis of a number, at most 30 in a pair. The axis of a category has its values.
    names, groups, sample_weight, progress, memory_limit
        As in `dkl.explain.importance`.

    Returns
    -------
    PartialDependence, or list of them for a list

    Raises
    ------
    NotFittedError, TypeError, ValueError
        As in `dkl.explain.importance`; ValueError also for a column that does not exist.

    References
    ----------
    Friedman 2001, "Greedy function approximation", section 8.2.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.explain import partial_dependence
    >>> from dkl.machines.kernel_machines import KernelRegressor
    >>> from dkl.methods.random_features import RandomFeatures
    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = KernelRegressor(RandomFeatures(n_features=100, random_state=0), solver="newton", alpha=1e-4)
    >>> model = model.fit(X, np.sin(X[:, 1]) + X[:, 0])
    >>> partial_dependence(model, X, ["column 1", (0, 1)])[1].values.shape
    (30, 30, 1)
    """
    if resolution < 2:
        raise ValueError(f"resolution is {resolution}; a column needs at least 2 values")
    scorer, known = model_of(model), columns_of(model, names, groups)
    dataset = rows_to_explain(model, X, sample_weight)
    wanted = positions_of(columns if isinstance(columns, list) else [columns], known)
    # One pass: the sums of the other columns' waves, if the features are waves, and a sample of rows for the axes.
    a, forms = wave_amplitudes(scorer), _forms(known, wanted)
    records = () if a is None else (left_out_record(scorer.feature_map, forms, scorer.dtype),)
    *sums, sample = read_rows(model, dataset, (*records, ROWS), progress=progress, memory_limit=memory_limit)
    if a is None:
        means = _averaged(scorer, sample.first(_AVERAGED_ROWS))
    else:
        means = _summed(scorer, a, dict(zip(map(bytes, forms), wave_means(sums[0]), strict=True)))
    dependences = []
    for positions in wanted:
        most = resolution if len(positions) == 1 else min(resolution, _MAP_RESOLUTION)
        axes = tuple(axis_on(known, g, sample.columns(known.members[g]), most) for g in positions)
        members = [known.members[g] for g in positions]
        with one_blas_thread():
            # without any column set
            mean = means(np.empty(0, np.int64), np.empty((1, 0)))[0]
            values, interaction = means(members[0], axes[0].patterns), None
            if len(axes) == 2:
                first, second = values, means(members[1], axes[1].patterns)
                pairs = np.array([np.concatenate(pair) for pair in product(*(axis.patterns for axis in axes))])
                values = means(np.concatenate(members), pairs).reshape(len(first), len(second), -1)
                # The interaction is 0 if the joint dependence is the sum of the two single ones minus the mean.
                interaction = values - first[:, None] - second[None] + mean
        labels = output_labels(model), unit_of(model)
        dependences.append(PartialDependence(axes, values, mean, interaction, sample.shares, *labels))
    return dependences if isinstance(columns, list) else dependences[0]


@dataclass(frozen=True, eq=False)
class DependenceDisplay(Display):
    """Partial dependence, a panel each: a curve over a number, dots over categories, a map over two numbers.

    A category beside another column has a curve for each of its values.

    Parameters
    ----------
    dependences : sequence of PartialDependence
    output : int
        Of several outputs, the one that is drawn where there is a pair; curves of single columns show all.
    interaction : bool
        Draw what a pair does together beyond what each column does.

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
    >>> len(dkl.plots.DependenceDisplay.from_estimator(model, X, [0, 1]).plot().axes_)
    2
    """

    dependences: Sequence[PartialDependence]
    output: int = 0
    interaction: bool = False
    _size = (3.5, 3.0)

    @classmethod
    def from_estimator(cls, model: FittedModel, X: object, columns: Any, **options: Any) -> Self:
        """Compute the dependence on `columns`, which `plot` draws. `options`: of `dkl.explain.partial_dependence`."""
        dependence = partial_dependence(model, X, columns, **options)
        return cls(dependence if isinstance(dependence, list) else [dependence])

    @property
    def _n_panels(self) -> int:
        return len(self.dependences)

    def _draw(self, axes: Sequence[Axes]) -> None:
        for ax, dependence in zip(axes, self.dependences, strict=True):
            if len(dependence.axes) == 2:
                # Colours of a map are around 0: what the pair does together, or how far it is from the mean.
                joint = dependence.values - dependence.mean
                if self.interaction and dependence.interaction is not None:
                    joint = dependence.interaction
                draw_pair(ax, dependence.axes, joint[..., self.output])
                if any(axis.numbers is None for axis in dependence.axes):
                    ax.set_ylabel(f"{dependence.unit}, {'interaction' if self.interaction else 'less its mean'}")
                continue
            draw_curves(ax, dependence.axes[0], dependence.values, dependence.outputs)
            draw_rug(ax, dependence.axes[0])
            ax.set_ylabel(f"{dependence.unit}, mean over the rows")
            # Several outputs would have a line each at other heights, which nobody could tell apart.
            for mean in dependence.mean if len(dependence.mean) == 1 else ():
                ax.axhline(mean, color="0.6", linewidth=0.8)
            if dependence.outputs:
                ax.legend()


def _forms(known: Columns, wanted: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The sets of encoded columns that are left out of sums: those wanted, the single columns of pairs, and none."""
    sets = dict.fromkeys([(), *((g,) for positions in wanted for g in positions), *wanted])
    return [np.concatenate([np.empty(0, np.int64), *(known.members[g] for g in positions)]) for positions in sets]


def positions_of(columns: Sequence[Column], known: Columns) -> list[tuple[int, ...]]:
    """The positions of the one or two columns of each entry, given their names or numbers."""
    positions: list[tuple[int, ...]] = []
    for column in columns:
        if not isinstance(column, tuple):
            positions.append((known.position(column),))
        elif len(column) != 2 or known.position(column[0]) == known.position(column[1]):
            raise ValueError(f"columns: {column!r} is no pair of two columns; give one column or two")
        else:
            positions.append((known.position(column[0]), known.position(column[1])))
    return positions


def _summed(scorer: Scorer, a: np.ndarray, others: Mapping[bytes, np.ndarray]) -> MeanPrediction:
    """Mean predictions of models on waves: Re sum_j a_j exp(i w_j.v) E exp(i w_j.(the other columns))."""

    def mean(members: np.ndarray, patterns: np.ndarray) -> np.ndarray:
        # w.x is the sum of w.v over the set columns and of the others, whose waves are averaged over the rows.
        weights = a * others[bytes(members)][:, None]
        if not len(members):
            return weights.sum(axis=0).real[None] + scorer.intercept
        angles = part_of(scorer.feature_map, members).angles(patterns)
        return np.cos(angles) @ weights.real - np.sin(angles) @ weights.imag + scorer.intercept

    return mean


def _averaged(scorer: Scorer, sample: SampledRows) -> MeanPrediction:
    """Mean predictions of any model: predicts the sampled rows with some columns set, one value after the other."""

    def mean(members: np.ndarray, patterns: np.ndarray) -> np.ndarray:
        def predicted(rows: np.ndarray, part: slice, pattern: np.ndarray) -> np.ndarray:
            # The definition of partial dependence (Friedman 2001): set columns in all rows and average predictions.
            rows[:, members] = pattern
            return scorer(rows)

        return np.array([sample.mean(partial(predicted, pattern=pattern)) for pattern in patterns])

    return mean
