"""Partial dependence: the mean prediction when one column, or two, are set to each of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.explain.column_groups import Columns, Groups, columns_of, patterns_of
from dkl.explain.model import device_of, model_of, output_labels, rows_to_explain, wave_amplitudes
from dkl.explain.wave_pass import ROWS, RowsToExplain, SampledRows, left_out_record, part_of, wave_means
from dkl.kernels.blas import in_one_blas_thread
from dkl.methods.prediction import Scorer
from dkl.protocols.records import Record

# rows that the mean is taken over where it is no formula, and values of a column in a map
_AVERAGED_ROWS = 1_000
_MAP_RESOLUTION = 30

Column = int | str | tuple[int | str, int | str]


@dataclass(frozen=True, eq=False)
class Axis:
    """The values that a column is set to.

    Parameters
    ----------
    name : str
    patterns : ndarray of shape (g, k)
        Of the encoded columns behind it, unscaled.
    labels : tuple of str
        Of each value.
    rows : ndarray of shape (n, k)
        Values of at most 10,000 rows.
    """

    name: str
    patterns: np.ndarray
    labels: tuple[str, ...]
    rows: np.ndarray

    @property
    def varying(self) -> np.ndarray:
        """The encoded columns that are not the same in all values."""
        return np.flatnonzero(np.ptp(self.patterns, axis=0) > 0.0)

    @property
    def numbers(self) -> np.ndarray | None:
        """The values (g,) of a number; None for a category."""
        varying = self.varying
        return self.patterns[:, varying[0]] if len(varying) == 1 else None

    def nearest(self) -> np.ndarray:
        """The value that is nearest to each of the rows, int64 (n,)."""
        numbers = self.numbers
        if numbers is None:
            return np.argmin([np.abs(self.rows - pattern).sum(axis=1) for pattern in self.patterns], axis=0)
        own = self.rows[:, self.varying[0]]
        return np.searchsorted((numbers[1:] + numbers[:-1]) / 2.0, own)


@dataclass(frozen=True, eq=False)
class PartialDependence:
    """The mean prediction over the rows, with a column or two set to each of their values.

    Parameters
    ----------
    axes : tuple of Axis
        One or two.
    values : ndarray of shape (g, K) or (g1, g2, K), float64
        Decision values; of a regressor predictions.
    mean : ndarray of shape (K,)
        The mean prediction.
    interaction : ndarray of shape (g1, g2, K) or None
        What two columns do together beyond what each does: the joint dependence less those of the single columns, plus
        the mean.
    shares : ndarray of shape (n,)
        What each of the axes' rows stands for, of sum 1.
    outputs : tuple of str
        Names of the K outputs where there are several.
    """

    axes: tuple[Axis, ...]
    values: np.ndarray
    mean: np.ndarray
    interaction: np.ndarray | None
    shares: np.ndarray
    outputs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns."""
        return tuple(axis.name for axis in self.axes)

    @property
    def strength(self) -> float:
        """The deviation over the rows, all outputs together; for two columns of their interaction."""
        values = self.values if self.interaction is None else self.interaction
        own = values[tuple(axis.nearest() for axis in self.axes)]
        return float(np.sqrt((self.shares @ np.square(own - self.shares @ own)).sum()))

    def plot(self, ax: Any = None) -> Any:
        """Draw a curve, bars or a map; see `dkl.plots.DependenceDisplay`."""
        from dkl.plots.explanations import DependenceDisplay

        return DependenceDisplay([self]).plot(ax)

    def __repr__(self) -> str:
        sizes = " x ".join(str(len(axis.patterns)) for axis in self.axes)
        what = "interaction " if self.interaction is not None else ""
        return f"<partial dependence on {' x '.join(self.names)}: {sizes} values, {what}strength {self.strength:.3g}>"


def partial_dependence(
    model: Any,
    X: Any,
    columns: Column | list[Column],
    *,
    resolution: int = 100,
    names: Sequence[str] | None = None,
    groups: Groups | None = None,
    sample_weight: Any = None,
    progress: Any = None,
    memory_limit: int | str | None = None,
) -> Any:
    """How the mean prediction depends on single columns and on pairs of them, all in one pass.

    For sums of waves (Fourier features, landmarks) the mean over all rows is a formula in sums of the other columns'
    waves, whatever the number of values; for other features it is taken over at most 1,000 rows.

    Parameters
    ----------
    model : fitted KernelClassifier, KernelRegressor, TunedClassifier or TunedRegressor
    X : array, scipy sparse matrix, data frame, Dask collection or Dataset of shape (n, d)
    columns : int, str, pair of them, or list of these
        By number or name; a pair (a tuple) is looked at jointly.
    resolution : int
        Values of a number; in a pair 30 at most. A category takes each of its own.
    names, groups, sample_weight, progress, memory_limit
        As of `dkl.explain.importance`.

    Returns
    -------
    PartialDependence, or list of them for a list

    Raises
    ------
    NotFittedError, TypeError, ValueError
        As `dkl.explain.importance`; ValueError also for a column that is not there.

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
    machine, known = model_of(model), columns_of(model, names, groups)
    dataset = rows_to_explain(model, X, sample_weight)
    wanted = positions_of(columns if isinstance(columns, list) else [columns], known)
    means, sample = _read(machine, dataset, known, wanted, RowsToExplain(progress, memory_limit, device_of(model)))
    found = []
    for chosen in wanted:
        most = resolution if len(chosen) == 1 else min(resolution, _MAP_RESOLUTION)
        axes = tuple(axis_on(known, g, sample.columns(known.members[g]), most) for g in chosen)
        found.append(_dependence(means, axes, [known.members[g] for g in chosen], sample.shares, output_labels(model)))
    return found if isinstance(columns, list) else found[0]


def dependence_records(machine: Scorer, known: Columns, wanted: Sequence[tuple[int, ...]]) -> tuple[Record, ...]:
    """What the pass of `partial_dependence` computes."""
    if wave_amplitudes(machine) is None:
        return (ROWS,)
    return left_out_record(machine.feature_map, _forms(known, wanted), machine.dtype), ROWS


def _read(
    machine: Scorer, dataset: Dataset, known: Columns, wanted: Sequence[tuple[int, ...]], reading: RowsToExplain
) -> tuple[Any, SampledRows]:
    """What gives mean predictions, and a sample of the rows: one pass."""
    *sums, sample = reading.run(dataset, *dependence_records(machine, known, wanted))
    a = wave_amplitudes(machine)
    if a is None:
        return _Averaged(machine, sample.first(_AVERAGED_ROWS)), sample
    means = dict(zip(map(bytes, _forms(known, wanted)), wave_means(sums[0]), strict=True))
    return _Summed(machine, a, means), sample


def _forms(known: Columns, wanted: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """The encoded columns that are left out: a pair needs its columns by themselves too, and all need the mean."""
    sets = dict.fromkeys([(), *((g,) for one in wanted for g in one), *wanted])
    return [_members(known, chosen) for chosen in sets]


def positions_of(columns: Sequence[Column], known: Columns) -> list[tuple[int, ...]]:
    """The positions of one or two columns each, by their names or numbers."""
    return [_positions(column, known) for column in columns]


def _positions(column: Column, known: Columns) -> tuple[int, ...]:
    if not isinstance(column, tuple):
        return (known.position(column),)
    if len(column) != 2 or known.position(column[0]) == known.position(column[1]):
        raise ValueError(f"columns: {column!r} is no pair of two columns; give one column or two")
    return tuple(known.position(one) for one in column)


def _members(known: Columns, chosen: tuple[int, ...]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(known.members[g] for g in chosen)])


def axis_on(known: Columns, position: int, rows: np.ndarray, resolution: int) -> Axis:
    """The axis of a column by the values (n, k) that it has in some rows."""
    patterns = patterns_of(rows, resolution, known.names[position])
    return Axis(known.names[position], patterns, tuple(known.label(position, one) for one in patterns), rows)


@in_one_blas_thread
def _dependence(
    means: Any, axes: tuple[Axis, ...], members: list[np.ndarray], shares: np.ndarray, outputs: tuple[str, ...]
) -> PartialDependence:
    mean = means(np.empty(0, np.int64), np.empty((1, 0)))[0]
    if len(axes) == 1:
        return PartialDependence(axes, means(members[0], axes[0].patterns), mean, None, shares, outputs)
    first, second = (means(own, axis.patterns) for own, axis in zip(members, axes, strict=True))
    pairs = np.array([np.concatenate(pair) for pair in product(*(axis.patterns for axis in axes))])
    joint = means(np.concatenate(members), pairs).reshape(len(first), len(second), -1)
    interaction = joint - first[:, None] - second[None] + mean
    return PartialDependence(axes, joint, mean, interaction, shares, outputs)


@dataclass(frozen=True, eq=False)
class _Summed:
    """Mean predictions by formula: Re sum_j a_j exp(i w_j.v) E exp(i w_j.(the other columns))."""

    machine: Scorer
    a: np.ndarray
    others: dict[bytes, np.ndarray]

    def __call__(self, members: np.ndarray, patterns: np.ndarray) -> np.ndarray:
        weights = self.a * self.others[bytes(members)][:, None]
        if not len(members):
            return weights.sum(axis=0).real[None] + self.machine.intercept
        angles = part_of(self.machine.feature_map, members).angles(patterns)
        return np.cos(angles) @ weights.real - np.sin(angles) @ weights.imag + self.machine.intercept


@dataclass(frozen=True, eq=False)
class _Averaged:
    """Mean predictions by predicting: the rows with some columns set, one value after the other."""

    machine: Scorer
    sample: SampledRows

    def __call__(self, members: np.ndarray, patterns: np.ndarray) -> np.ndarray:
        def predicted(rows: np.ndarray, part: slice, pattern: np.ndarray) -> np.ndarray:
            rows[:, members] = pattern
            return self.machine(rows)

        return np.array([self.sample.mean(partial(predicted, pattern=pattern)) for pattern in patterns])
