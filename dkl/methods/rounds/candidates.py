"""Greedy choice of points: each is scored by how much it lowers the objective given the points taken before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

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
        """Choose a point: eliminate its columns from those of the others."""
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
