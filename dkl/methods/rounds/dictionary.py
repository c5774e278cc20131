"""The contract of a dictionary, which proposes columns as points that a pass verifies, and the choice among these.

The choice is greedy: each point is scored by how much it lowers the objective given the points taken before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.protocols.arrays import Rows


@dataclass(frozen=True, eq=False)
class SampleSlopes:
    """The rows of a search, scaled, with the working model's slopes there.

    Parameters
    ----------
    X : ndarray or csr_array of shape (r, d)
    s : ndarray of shape (r, K), float64
        Weighted negative slopes of the rows' losses.
    h : ndarray of shape (r,), float64
        Weighted curvatures.
    """

    X: Rows
    s: np.ndarray
    h: np.ndarray


class Dictionary(Protocol):
    """A set of columns that rounds may choose from, each given by a point: a row of an array of shape (p, d).

    d is the number of the rows' columns, for all dictionaries, whose points are stacked.

    Points are proposed on a sample of the rows and verified in a pass over all rows. The points of all dictionaries
    compete: those are added whose Newton step, given the columns of the model so far, lowers the objective most.
    """

    @property
    def columns_a_point(self) -> int:
        """Columns of one point: two for cosine-sine pairs."""
        ...

    @property
    def scaler(self) -> Scaler | None:
        """The scaler of the rows in `unit` and `propose`; None for unscaled rows."""
        ...

    def feature_map(self, points: np.ndarray) -> FeatureMap:
        """The feature map of points, with amplitudes 1."""
        ...

    def unit(self, X: Rows) -> float:
        """The amplitude at which columns on scaled rows X vary about as much as steps, so that one ridge suits all."""
        ...

    def propose(self, rows: SampleSlopes, count: int, seed: int) -> np.ndarray:
        """At most `count` points whose columns lower the loss most on these rows."""
        ...


# The ridge of each column in scores: without it steps of few rows would have the largest scores.
SCORE_PENALTY = 10.0
# Least square of the unexplained part of a column, as a share of the column's square: smaller values are rounding
# errors.
_LEAST_SHARE = 1e-6


class CandidatePoints:
    """Candidate points of several dictionaries, with the system of their columns.

    The score of a point with columns B is s_B' (N_BB + nu I)^-1 s_B, divided by its number of columns and summed over
    models: the decrease of the objective by a Newton step on B alone, with N = Q'HQ minus the part that the working
    model's columns explain. A chosen point is eliminated, so that similar points have small scores afterwards.

    Parameters
    ----------
    system : ndarray of shape (C, C)
        N.
    slopes : ndarray of shape (C, K)
        s = Q' (negative slopes), minus the part that the working model's columns explain.
    columns : sequence of ndarray of shape (P, w)
        The columns of the points of each dictionary.
    """

    def __init__(self, system: np.ndarray, slopes: np.ndarray, columns: Sequence[np.ndarray]) -> None:
        self.system, self.slopes = np.array(system, dtype=np.float64), np.array(slopes, dtype=np.float64)
        self.points = [own for part in columns for own in part]
        self._groups = [part for part in columns if len(part)]
        self._least = _LEAST_SHARE * np.maximum(np.diagonal(self.system), 0.0)
        self._is_left = np.ones(len(self.points), bool)

    def scores(self) -> np.ndarray:
        """The scores of all points, (P,); 0 for points already chosen."""
        parts = [np.zeros(0)]
        for columns in self._groups:
            # one small linear system for each point
            width = columns.shape[1]
            blocks = self.system[columns[:, :, None], columns[:, None, :]]
            blocks = blocks + np.eye(width) * (SCORE_PENALTY + self._least[columns])[:, :, None]
            own = self.slopes[columns]
            parts.append(np.sum(own * np.linalg.solve(blocks, own), axis=(1, 2)) / width)
        return np.where(self._is_left, np.concatenate(parts), 0.0)

    def take(self, point: int) -> None:
        """Add a point to the chosen ones: later scores are the gains of other points in addition to it.

        The system and the slopes of the others become their Schur complements after its columns.
        """
        B = self.points[point]
        block = self.system[np.ix_(B, B)] + np.diag(SCORE_PENALTY + self._least[B])
        weights = np.linalg.solve(block, self.system[B])
        self.slopes -= weights.T @ self.slopes[B]
        self.system -= self.system[:, B] @ weights
        # rounding must not leave a negative square
        np.einsum("ii->i", self.system)[...] = np.maximum(np.diagonal(self.system), 0.0)
        self._is_left[point] = False


def greedy_points(system: np.ndarray, slopes: np.ndarray, columns: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Positions of at most `count` points, each with the largest score given those before it; see `CandidatePoints`."""
    candidates, chosen = CandidatePoints(system, slopes, columns), list[int]()
    while len(chosen) < count:
        scores = candidates.scores()
        if not scores.max(initial=0.0) > 0.0:
            break
        chosen.append(int(np.argmax(scores)))
        candidates.take(chosen[-1])
    return np.array(chosen, dtype=np.int64)
