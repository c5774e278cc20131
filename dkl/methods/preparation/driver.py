"""The driver that finds scaler and bandwidth of rows in at most one pass, before a learner draws frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from dkl.errors import refuse_non_finite
from dkl.features.scaling import Scaler, ScalingKind
from dkl.kernels.moments import moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import one_blas_thread
from dkl.methods.preparation.bandwidth import Metric, median_distance
from dkl.methods.preparation.scalers import N_KNOTS, heavy_tailed_columns, quantile_scaler, scaler_from_moments
from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample

# Bytes of a row sample: merging samples up a tree keeps some fifty of them in memory.
SAMPLE_BYTES = 8 << 20
# Sampled rows for quantiles, and for the median distance and kurtosis, which need fewer.
QUANTILE_ROWS, MEDIAN_ROWS = 20_000, 2_000


@dataclass(frozen=True, eq=False)
class PreparationProblem:
    """The rows whose scaler and bandwidth are needed, and which of the two.

    Parameters
    ----------
    n_rows, n_columns : int
    row_nbytes : int
        Bytes of one row; they limit the sample to 8 MiB.
    is_sparse : bool
    passthrough : ndarray of shape (d,), bool
        Columns that are not scaled.
    seed : int
        Draws the sample of rows.
    scaling : {None, "standard", "minmax", "unit", "quantile", "counts"}
    needs_bandwidth : bool
        Whether the bandwidth is the median distance between scaled rows.
    metric : {"euclidean", "cityblock"}
        The metric of that distance.
    learned : ndarray of shape (d,), bool, or None
        Columns that the fit learned from targets, as in `quantile_scaler`.
    moving : ndarray of shape (d, d') or None
        A matrix by which scaled rows are multiplied before distances are computed.
    """

    n_rows: int
    n_columns: int
    row_nbytes: int
    is_sparse: bool
    passthrough: np.ndarray
    seed: int
    scaling: ScalingKind | None = None
    needs_bandwidth: bool = False
    metric: Metric = "euclidean"
    learned: np.ndarray | None = None
    moving: np.ndarray | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """A key that is equal for preparations with the same result on the same rows."""
        values = (getattr(self, part.name) for part in fields(self))
        return tuple(value.tobytes() if isinstance(value, np.ndarray) else value for value in values)

    @property
    def is_needed(self) -> bool:
        """Whether a pass is needed."""
        return self.needs_bandwidth or self.scaling is not None

    @property
    def needs_moments(self) -> bool:
        """Whether the scaler follows from moments of all rows, rather than from a sample."""
        return self.scaling in ("standard", "minmax", "unit", "counts")

    @property
    def sample_rows(self) -> int:
        """The number of sampled rows: enough for quantiles or the median distance, within 8 MiB."""
        wanted = QUANTILE_ROWS if self.scaling == "quantile" else MEDIAN_ROWS
        return min(self.n_rows, wanted, max(2, SAMPLE_BYTES // max(self.row_nbytes, 1)))


@dataclass(frozen=True, eq=False)
class PreparationState:
    """The scaler's arrays, the bandwidth and the columns with heavy tails.

    Parameters
    ----------
    finished : bool
        False before the pass.
    center, scale : ndarray of shape (d,) or None
    knots : ndarray of shape (256, d) or None
        The scaler's arrays; None without scaling.
    sigma : float or None
        The median distance between scaled rows.
    heavy : ndarray of int64 or None
        Columns with heavy tails, before scaling.
    """

    finished: bool = False
    center: np.ndarray | None = None
    scale: np.ndarray | None = None
    knots: np.ndarray | None = None
    sigma: float | None = None
    heavy: np.ndarray | None = None

    def scaler(self, problem: PreparationProblem) -> Scaler | None:
        """The fitted scaler, or None without scaling."""
        if problem.scaling is None or self.center is None or self.scale is None:
            return None
        return Scaler(problem.scaling, self.center, self.scale, problem.passthrough, self.knots)


class PreparationDriver:
    """The driver for scaler, bandwidth and columns with heavy tails, in one pass, or none if nothing is needed."""

    def init(self, problem: PreparationProblem) -> PreparationState:
        """The state before the pass; already final if no pass is needed."""
        return PreparationState(finished=not problem.is_needed)

    def request(self, problem: PreparationProblem, state: PreparationState) -> Sequence[Record] | None:
        """A row sample, and moments of all rows if the scaler needs them; None after the pass."""
        return None if state.finished else self._records(problem)

    @one_blas_thread()
    # values that overflow raise an error that names them, so NumPy's warnings are not needed
    @np.errstate(over="ignore", invalid="ignore")
    def step(self, problem: PreparationProblem, state: PreparationState, results: Sequence[Any]) -> PreparationState:
        """The scaler from the moments or the sample, and the median distance between scaled sampled rows."""
        sample: Block = results[0]
        # a sample with all rows has their weights; in a smaller one rows with larger weight are more likely
        weights = sample.weight if problem.n_rows <= problem.sample_rows else None
        scaler, sigma = None, None
        if problem.scaling is not None and problem.needs_moments:
            moments = moments_of(results[1])
            scaler = scaler_from_moments(problem.scaling, moments, problem.passthrough, is_sparse=problem.is_sparse)
        elif problem.scaling is not None:
            scaler = quantile_scaler(sample.X, problem.passthrough, weights, problem.learned)
        # sigma is the median distance after scaling, in the coordinates of the frequencies
        if problem.needs_bandwidth:
            rows = scale_rows(sample.X, scaler, dtype="float64")
            rows = rows if problem.moving is None else np.asarray(rows @ problem.moving)
            sigma = median_distance(rows, weights, metric=problem.metric)
            refuse_non_finite(
                sigma,
                "the median distance between rows, which is the bandwidth sigma,",
                "the squares of their values are larger than float64 holds. Scale the columns (scaling='standard'), or "
                "divide them by a large number",
            )
        heavy = np.empty(0, np.int64)
        if problem.scaling != "quantile":
            # the note recommends scaling by quantiles, so it is not needed with it
            heavy = heavy_tailed_columns(sample.X, problem.passthrough)
        if scaler is None:
            return PreparationState(True, sigma=sigma, heavy=heavy)
        return PreparationState(True, scaler.center, scaler.scale, scaler.knots, sigma, heavy)

    def plan(self, problem: PreparationProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """One pass, or none."""
        return [(self._records(problem), 1)] if problem.is_needed else []

    def planned(self, problem: PreparationProblem) -> PreparationState:
        """An arbitrary bandwidth and scaler, since sizes and times depend on the kind of scaling alone."""
        sigma, d = 1.0 if problem.needs_bandwidth else None, problem.n_columns
        if problem.scaling is None:
            return PreparationState(True, sigma=sigma)
        knots = np.tile(np.linspace(-1.0, 1.0, N_KNOTS)[:, None], d) if problem.scaling == "quantile" else None
        return PreparationState(True, np.zeros(d), np.ones(d), knots, sigma)

    def _records(self, problem: PreparationProblem) -> Sequence[Record]:
        """The records of the pass."""
        sample = RowSample(name="row sample", k=problem.sample_rows, seed=problem.seed)
        if not problem.needs_moments:
            return (sample,)
        return sample, moments_record(problem.n_columns, ~problem.passthrough, is_sparse=problem.is_sparse)
