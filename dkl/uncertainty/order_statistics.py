"""The sorted scores of held-out rows, and their order statistics, which give conformal intervals their coverage."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


def rank(coverage: float, total: float) -> int:
    """The rank of the score that gives the coverage, ``ceil((n + 1) coverage)``, in exact decimal arithmetic.

    Parameters
    ----------
    coverage : float
        Read as its decimal digits: 0.55 of 100 is 55, where its binary value would give 56.
    total : float
        n + 1, a whole number.
    """
    return math.ceil(Fraction(repr(float(coverage))) * Fraction(total))


def least_rows(coverage: float) -> int:
    """The smallest number n of held-out rows for a coverage: ceil((n + 1) coverage) <= n."""
    share = Fraction(repr(float(coverage)))
    return math.ceil(share / (1 - share))


@dataclass(frozen=True, eq=False)
class HeldOutScores:
    """The sorted scores of a model on held-out rows, by group if there are groups.

    Parameters
    ----------
    scores : ndarray of shape (n, t)
        Ascending within each group, separately for each target; one column for classes.
    weights : ndarray of shape (n, t), or None
        The weight of the row of each score; None means 1.
    starts : ndarray of shape (G + 1,), int64
        The first position of each group, and n; without groups (0, n).
    groups : ndarray of shape (G,), int64, or None
        The codes of the groups, ascending (`dkl.data.together.codes`).
    scaled : bool
        Whether scores are errors divided by the deviation of each prediction.

    References
    ----------
    Vovk, Gammerman & Shafer 2005, Algorithmic Learning in a Random World, section 4.5 (by group); Lei, G'Sell, Rinaldo,
    Tibshirani & Wasserman 2018, Distribution-free predictive inference for regression, sections 2.2 and 5.2 (scaled);
    Tibshirani, Foygel Barber, Candes & Ramdas 2019, Conformal prediction under covariate shift (weights).
    """

    scores: np.ndarray
    weights: np.ndarray | None
    starts: np.ndarray
    groups: np.ndarray | None = None
    scaled: bool = False

    @classmethod
    def of_rows(
        cls, scores: np.ndarray, weight: np.ndarray | None, codes: np.ndarray | None, *, scaled: bool
    ) -> HeldOutScores:
        """Sort the scores of rows in any order.

        Parameters
        ----------
        scores : ndarray of shape (n, t)
        weight : ndarray of shape (n,), or None
        codes : ndarray of shape (n,), int64, or None
            The group of each row.
        scaled : bool
        """
        if codes is None:
            groups, place, sizes = None, np.zeros(len(scores), np.int64), np.array([len(scores)])
        else:
            groups, place, sizes = np.unique(codes, return_inverse=True, return_counts=True)
        # by group, and within it by score
        orders = [np.lexsort((column, place)) for column in scores.T]
        sorted_scores = np.column_stack([column[order] for column, order in zip(scores.T, orders, strict=True)])
        weights = None if weight is None else np.column_stack([weight[order] for order in orders])
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        return cls(sorted_scores, weights, starts, groups, scaled)

    @property
    def n_groups(self) -> int:
        return len(self.starts) - 1

    @property
    def n_targets(self) -> int:
        return self.scores.shape[1]

    def quantiles(self, coverage: float) -> np.ndarray:
        """The score that gives the coverage, for each group and target: (G, t); infinite if there are too few rows.

        It is the ceil((n + 1) coverage)-th smallest of n scores; weights count as repeated rows, and n is their sum.
        """
        found = [
            self._covering(group, target, coverage)
            for group in range(self.n_groups)
            for target in range(self.n_targets)
        ]
        return np.array(found).reshape(self.n_groups, self.n_targets)

    def weighted_quantiles(self, coverage: float, own: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The score that gives the coverage for each new row, with its weight at an infinite score: (n, t).

        Weights are then ratios of densities, of new rows to held-out ones, and not counts.

        Parameters
        ----------
        coverage : float
        own : ndarray of shape (n,)
            The weights of the new rows.
        place : ndarray of shape (n,), int64
            The group of each.
        """
        out = np.empty((len(own), self.n_targets))
        for group in np.unique(place):
            rows = np.flatnonzero(place == group)
            for target in range(self.n_targets):
                scores, summed = self._summed(group, target)
                # the first score whose cumulative weight is this share of the total, the row's own weight included
                position = np.searchsorted(summed, coverage * (summed[-1] + own[rows]))
                out[rows, target] = np.append(scores, np.inf)[position]
        return out

    def describe(self, scores: str = "of the score") -> str:
        """A description: the number of rows, and the score for 90 %; `scores` names the unit of unscaled scores."""
        by_group = "" if self.groups is None else f" in {self.n_groups:,} groups"
        unit = "deviations" if self.scaled else scores
        within = ", ".join(f"{score:.3g}" for score in self.quantiles(0.9).max(axis=0))
        return f"split conformal on {len(self.scores):,} held-out rows{by_group}; 90 % within {within} {unit}"

    def _covering(self, group: int, target: int, coverage: float) -> float:
        scores, summed = self._summed(group, target)
        total = float(summed[-1]) + 1.0
        is_whole = self.weights is None or bool(np.all(summed == np.floor(summed)))
        needed = rank(coverage, total) if is_whole else coverage * total
        return float(np.append(scores, np.inf)[np.searchsorted(summed, needed)])

    def _summed(self, group: int, target: int) -> tuple[np.ndarray, np.ndarray]:
        """The scores of one group and target, and their cumulative weights."""
        rows = slice(self.starts[group], self.starts[group + 1])
        scores = self.scores[rows, target]
        weights = np.ones(len(scores)) if self.weights is None else self.weights[rows, target]
        return scores, np.cumsum(weights)

    def validate(self) -> None:
        """Raise ValueError if the arrays are inconsistent."""
        n, fits = len(self.scores), self.groups is None or len(self.groups) == self.n_groups
        bounded = self.starts[0] == 0 and self.starts[-1] == n and bool(np.all(np.diff(self.starts) > 0))
        weighed = self.weights is None or (self.weights.shape == self.scores.shape and bool(np.all(self.weights > 0.0)))
        if self.scores.ndim != 2 or not (fits and bounded and weighed) or not np.isfinite(self.scores).all():
            raise ValueError("the held-out scores of the model do not go together; the file is damaged")
