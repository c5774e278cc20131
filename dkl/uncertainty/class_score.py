"""How unlikely a classifier holds the class of a row: the score of sets of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkl.linear.answers import probabilities


@dataclass(frozen=True, eq=False)
class ClassScore:
    """One minus the probability that a classifier gives a row's class.

    Parameters
    ----------
    multiplier : float or None
        Of decision values, as in `dkl.methods.prediction.probabilities`.
    """

    multiplier: float | None
    scaled = False

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """1 - p of the class of each row: (n, 1)."""
        return np.take_along_axis(self.parts(answers), np.asarray(y, dtype=np.int64)[:, None], axis=1)

    def parts(self, answers: np.ndarray) -> np.ndarray:
        """1 - p of every class: (n, K)."""
        return 1.0 - probabilities(answers, self.multiplier)


def members_of(score: ClassScore, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Which classes are in the set of each row: (n, K) bool."""
    return score.parts(answers) <= radii
