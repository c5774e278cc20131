"""The driver that chooses landmarks of a kernel from a sample of the rows, in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.features.nystrom_projection import in_metric
from dkl.features.scaling import Scaler
from dkl.kernels.scale import scale_rows
from dkl.methods.nystrom.landmarks import Landmarks, choose_landmarks
from dkl.protocols.arrays import dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample


@dataclass(frozen=True, eq=False)
class NystromProblem:
    """The choice of landmarks: kernel, number, and rule.

    Parameters
    ----------
    kernel : Family
        With its bandwidth.
    scaler : Scaler or None
    n_landmarks : int
    n_rows, sample_rows : int
        The number of all rows, and the size of the sample from which landmarks are chosen.
    how : {"uniform", "kmeans", "leverage", "rpcholesky"}
    seed : int
    metric : ndarray of shape (d,) or (d, d), or None
        The metric of the projection, in which landmarks are chosen and stored.
    """

    kernel: Any
    scaler: Scaler | None
    n_landmarks: int
    n_rows: int
    sample_rows: int
    how: Landmarks
    seed: int
    metric: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class NystromState:
    """The landmarks, scaled and in the metric, of shape (l, d); None before the pass."""

    landmarks: np.ndarray | None = None


class NystromDriver:
    """Chooses landmarks from one pass for a sample of the rows."""

    def init(self, problem: NystromProblem) -> NystromState:
        """The state before landmarks are chosen."""
        return NystromState()

    def request(self, problem: NystromProblem, state: NystromState) -> Sequence[Record] | None:
        """The sample; None once landmarks are chosen."""
        return None if state.landmarks is not None else [self._sample(problem)]

    def step(self, problem: NystromProblem, state: NystromState, results: Sequence[Any]) -> NystromState:
        """The state with the landmarks chosen from the sample."""
        sample: Block = results[0]
        weight = sample.drawn_from(problem.n_rows).weights
        rows = in_metric(dense_rows(scale_rows(sample.X, problem.scaler, "float64")), problem.metric)
        chosen = choose_landmarks(rows, weight, problem.n_landmarks, problem.kernel, problem.how, problem.seed)
        return NystromState(np.asarray(chosen, dtype=np.float64))

    def plan(self, problem: NystromProblem) -> Sequence[tuple[Sequence[Record], int]]:
        """One pass."""
        return [([self._sample(problem)], 1)]

    def memory(self, problem: NystromProblem, n_rows: int, row_bytes: int) -> dict[str, int]:
        """Bytes of the sample, of its similarities to the landmarks, and of the landmarks' matrices."""
        rows = problem.sample_rows
        # landmarks are rows of the sample
        m = min(problem.n_landmarks, rows)
        similarities = 0 if problem.how == "uniform" else 2 * 8 * rows * m
        return {
            "sampled rows": 3 * rows * row_bytes,
            "similarities of sampled rows": similarities,
            "matrices of the landmarks": 4 * 8 * m**2,
        }

    def _sample(self, problem: NystromProblem) -> RowSample:
        return RowSample("rows to choose landmarks from", problem.sample_rows, problem.seed)
