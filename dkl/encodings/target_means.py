"""Target means of categories: folds of rows, and the tables that turn the code of a row into numbers.

A row of fold f with category c gets (S - m N) / (N + a) and log(1 + N r): N and S are the weight and the weighted
target of the rows with this category in all other folds except the held-out one, and m is the mean target of all rows
that are not held out, so that the first number is the shrunk mean (S + a m) / (N + a) minus m. r is the weight of all
rows over the weight of those folds. New rows get the same numbers from all rows; an unseen category gets (0, 0).

The prior weight a is chosen by validation: the one of `PRIORS` with the least squared error of these means as
predictions of the rows of each fold that is not held out. That error follows from the sums by category and fold alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dkl.linear.judge import last_least, others
from dkl.linear.minibatches import HeldOut
from dkl.protocols.held_together import are_times

PRIORS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Candidates for the prior weight a, in rows: the overall mean counts as a further rows of each category."""
FOLDS = 5


@dataclass(frozen=True)
class CategoryFolds:
    """The folds of rows: 0 for held-out rows, whose targets enter no other row's numbers; 1 to 5 for all other rows.

    Parameters
    ----------
    held_out : HeldOut
        Its share contains every share that is held out with the same seed.
    """

    held_out: HeldOut

    @property
    def count(self) -> int:
        return FOLDS + 1

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """The fold of each row, (n,) int64; by time, the newest rows are in the first one."""
        share, fraction = self.held_out.share, self.held_out.fraction(held_with)
        beyond = (fraction - share) / max(1.0 - share, np.finfo(np.float64).tiny)
        return np.where(fraction < share, 0, 1 + np.clip((FOLDS * beyond).astype(np.int64), 0, FOLDS - 1))


@dataclass(frozen=True, eq=False)
class FoldTotals:
    """The weight and target sums of each fold, over all categories.

    Parameters
    ----------
    weight : ndarray of shape (F,)
    targets, squares : ndarray of shape (T, F)
        Weighted sums of the targets and of their squares.
    by_time : bool
        Rows get numbers learned from older rows alone, which are in later folds.
    """

    weight: np.ndarray
    targets: np.ndarray
    squares: np.ndarray
    by_time: bool = False

    @property
    def mean(self) -> np.ndarray:
        """m, (T,): the mean target of the rows that are not held out."""
        return self.targets[:, 1:].sum(axis=1) / max(self.weight[1:].sum(), np.finfo(np.float64).tiny)

    @property
    def mean_of_all(self) -> np.ndarray:
        """The mean target of all rows, (T,)."""
        return self.targets.sum(axis=1) / max(self.weight.sum(), np.finfo(np.float64).tiny)

    def only(self, t: int) -> FoldTotals:
        """The totals of one target."""
        return replace(self, targets=self.targets[t : t + 1], squares=self.squares[t : t + 1])

    def others(self, fold: int) -> list[int]:
        """The folds from which the numbers of the rows of `fold` are learned."""
        return others(range(1, len(self.weight)), fold, self.by_time)

    @cached_property
    def are_others(self) -> np.ndarray:
        """1 where a fold (column) is among the others of a fold (row), else 0: (F, F)."""
        F = len(self.weight)
        return np.array([np.isin(np.arange(F), self.others(fold)) for fold in range(F)], dtype=np.float64)

    def ratio(self, fold: int) -> float:
        """r: the weight of all rows over the weight of the other folds; 1 for the oldest rows, without earlier ones."""
        weight = self.weight[self.others(fold)].sum()
        return float(self.weight.sum() / weight) if weight else 1.0


def deviations(weight: np.ndarray, targets: np.ndarray, mean: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The shrunk mean of each category minus the mean of all rows, (T, V): (S - m N) / (N + a).

    Parameters
    ----------
    weight : ndarray of shape (V,)
        N.
    targets : ndarray of shape (T, V)
        S.
    mean, prior : ndarray of shape (T,)
        m and a.
    """
    return (targets - mean[:, None] * weight) / (weight + prior[:, None])


def fold_deviations(
    weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int
) -> np.ndarray:
    """The deviations for rows of each fold, (F, T, V); the code 0 has none.

    Parameters
    ----------
    weight : ndarray of shape (F, V)
    targets : ndarray of shape (T, F, V)
    totals : FoldTotals
    prior : ndarray of shape (T,)
    first : int
        The code of the first of the V categories.
    """
    return _deviations_of(*sums_of_others(weight, targets, totals), totals, prior, first=first)


def sums_of_others(weight: np.ndarray, targets: np.ndarray, totals: FoldTotals) -> tuple[np.ndarray, np.ndarray]:
    """N and S of the folds that say what the rows of each fold get, (F, V) and (F, T, V)."""
    # products with 0 and 1 add the same numbers in the same order as sums over the folds do
    return totals.are_others @ weight, (totals.are_others @ targets).swapaxes(0, 1)


def _deviations_of(N: np.ndarray, S: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int) -> np.ndarray:
    """`fold_deviations` by the sums over the other folds."""
    mean, N = totals.mean[:, None], N[:, None]
    made = (S - mean * N) / (N + prior[:, None])
    if first == 0:
        made[:, :, 0] = 0.0
    return made


def prior_losses(weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, *, first: int) -> np.ndarray:
    """The change of the mean's squared error by the shrunk means of each prior, (P, T), over the rows of folds 1 to 5.

    sum over rows w (y - m - d)^2 - w (y - m)^2 is N d^2 - 2 d (S - m N) for the rows of one category and fold, whose
    deviation d comes from the other folds; see `fold_deviations` for the arguments.
    """
    losses = np.empty((len(PRIORS), len(targets)))
    N, S = sums_of_others(weight, targets, totals)
    surplus = targets[:, 1:] - totals.mean[:, None, None] * weight[1:]
    for place, prior in enumerate(PRIORS):
        d = _deviations_of(N, S, totals, np.full(len(targets), prior), first=first)[1:].swapaxes(0, 1)
        losses[place] = (weight[1:] * d**2 - 2.0 * d * surplus).sum(axis=(1, 2))
    return losses


def best_priors(losses: np.ndarray) -> np.ndarray:
    """The prior of least loss of each target, (T,); of equal ones the largest. Losses are (P, T)."""
    return np.asarray(PRIORS)[last_least(losses)]


def fold_numbers(
    weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int
) -> np.ndarray:
    """The numbers of each code for rows of each fold of a fit, (F, V, T + 1): T deviations, the logarithm of the count.

    See `fold_deviations` for the arguments.
    """
    of_means = fold_deviations(weight, targets, totals, prior, first=first)
    counts = np.stack([np.log1p(weight[totals.others(f)].sum(axis=0) * totals.ratio(f)) for f in range(len(weight))])
    if first == 0:
        counts[:, 0] = 0.0
    return np.concatenate([of_means, counts[:, None]], axis=1).swapaxes(1, 2)


def new_numbers(
    weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int
) -> np.ndarray:
    """The numbers of each code for new rows, (V, T + 1): all rows of the fit count; see `fold_numbers`."""
    N, S = weight.sum(axis=0), targets.sum(axis=1)
    numbers = np.vstack([deviations(N, S, totals.mean_of_all, prior), np.log1p(N)])
    if first == 0:
        numbers[:, 0] = 0.0
    return numbers.T


def by_time(held_with: np.ndarray) -> bool:
    """Whether the rows of a fit are held out by their time."""
    return are_times(held_with)
