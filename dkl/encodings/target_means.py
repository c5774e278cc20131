"""Target means of categories: the folds of rows, and the numbers that replace the code of a row.

A row of fold f with category c gets (S - m N) / (N + a) and log(1 + N r): N and S are the weight and the weighted
target of the rows with this category in all other folds except the held-out one, and m is the mean target of all rows
that are not held out, so that the first number is the shrunk mean (S + a m) / (N + a) minus m. r is the weight of all
rows over the weight of those folds. New rows get the same numbers from all rows; an unseen category gets (0, 0).

The prior weight a is the one of `PRIORS` with the least squared error of these means as predictions of the rows of the
folds that are not held out. This error follows from the sums by category and fold alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dkl.data.schema import Schema
from dkl.data.sources.rows import RowSource
from dkl.linear.judge import last_least, others
from dkl.linear.minibatches import HeldOut
from dkl.protocols.held_together import are_times

PRIORS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Candidates for the prior weight a, in rows: the overall mean counts as a further rows of each category."""
# The number of folds of target means besides fold 0, the held-out rows: each mean is learned from four fifths.
FOLDS = 5


@dataclass(frozen=True)
class CategoryFolds:
    """The folds of rows: 0 for held-out rows, whose targets enter no other row's numbers; 1 to 5 for all other rows.

    Parameters
    ----------
    held_out : HeldOut
        The rows of fold 0. A smaller share held out with the same seed is part of them.
    """

    held_out: HeldOut

    @property
    def count(self) -> int:
        return FOLDS + 1

    def __call__(self, held_with: np.ndarray) -> np.ndarray:
        """The fold of each row, (n,) int64; where rows are held out by time, the newest rows are in fold 0."""
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
        Whether rows get numbers learned from older rows alone; older rows are in later folds.
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

    @property
    def are_others(self) -> np.ndarray:
        """1 where a fold (column) is among the others of a fold (row), else 0: (F, F)."""
        return _are_others(len(self.weight), self.by_time)

    def ratio(self, fold: int) -> float:
        """r: the weight of all rows over the weight of the other folds; 1 for the oldest rows, without earlier ones."""
        weight = self.weight[self.others(fold)].sum()
        return float(self.weight.sum() / weight) if weight else 1.0


@cache
def _are_others(n_folds: int, by_time: bool) -> np.ndarray:
    """See `FoldTotals.are_others`."""
    folds = range(1, n_folds)
    found = [np.isin(np.arange(n_folds), others(folds, fold, by_time)) for fold in range(n_folds)]
    return np.array(found, dtype=np.float64)


def deviations(weight: np.ndarray, targets: np.ndarray, mean: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The shrunk mean of each category minus the mean of all rows, (..., T, V): (S - m N) / (N + a).

    Parameters
    ----------
    weight : ndarray of shape (..., V)
        N.
    targets : ndarray of shape (..., T, V)
        S.
    mean, prior : ndarray of shape (T,)
        m and a.
    """
    N = weight[..., None, :]
    return (targets - mean[:, None] * N) / (N + prior[:, None])


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
        0 if the first of the V categories is code 0 (missing values), which gets no deviation; any other number if not.
    """
    return _deviations_of(*sums_of_others(weight, targets, totals), totals, prior, first=first)


def sums_of_others(weight: np.ndarray, targets: np.ndarray, totals: FoldTotals) -> tuple[np.ndarray, np.ndarray]:
    """N and S of the folds that say what the rows of each fold get, (F, V) and (F, T, V)."""
    # products with 0 and 1 add the same numbers in the same order as sums over the folds do
    return totals.are_others @ weight, (totals.are_others @ targets).swapaxes(0, 1)


def _deviations_of(N: np.ndarray, S: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int) -> np.ndarray:
    """`fold_deviations`, given the sums N and S over the other folds."""
    made = deviations(N, S, totals.mean, prior)
    if first == 0:
        made[:, :, 0] = 0.0
    return made


def prior_losses(weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, *, first: int) -> np.ndarray:
    """The squared error of the shrunk means of each prior minus that of the overall mean, over folds 1 to 5: (P, T).

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
    """For each target the prior with the least of the losses (P, T), the largest of equally good ones: (T,)."""
    return np.asarray(PRIORS)[last_least(losses)]


def fold_numbers(
    weight: np.ndarray, targets: np.ndarray, totals: FoldTotals, prior: np.ndarray, *, first: int
) -> np.ndarray:
    """The numbers of each code for rows of each fold of a fit, (F, V, T + 1): T deviations, then the log count.

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
    """The numbers of each code for new rows, (V, T + 1), from all rows of the fit; see `fold_numbers`."""
    N, S = weight.sum(axis=0), targets.sum(axis=1)
    numbers = np.vstack([deviations(N, S, totals.mean_of_all, prior), np.log1p(N)])
    if first == 0:
        numbers[:, 0] = 0.0
    return numbers.T


def within_sums(
    weight: np.ndarray, targets: np.ndarray, number: np.ndarray, square: np.ndarray, products: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of (x - x_c)^2 and of (x - x_c)(y - y_c) over the rows of each category c, with its means x_c and y_c.

    Both are 0 where the number is the same in all rows of a category but for rounding.

    Parameters
    ----------
    weight, number, square : ndarray of shape (..., V)
        Sums of w, w x and w x^2.
    targets, products : ndarray of shape (T, ..., V)
        Sums of w y and w x y.

    Returns
    -------
    squares : ndarray of shape (..., V)
    products : ndarray of shape (T, ..., V)
    """
    double = np.finfo(np.float64)
    N = np.maximum(weight, double.tiny)
    squares = square - number**2 / N
    varies = squares > np.sqrt(double.eps) * square
    return np.where(varies, squares, 0.0), np.where(varies, products - number * targets / N, 0.0)


def slope_deviations(squares: np.ndarray, products: np.ndarray, weight: np.ndarray, prior: np.ndarray) -> np.ndarray:
    """The shrunk slope of the target in a number within each category minus the slope b of all: (T, ..., V).

    With Q and P the sums of `within_sums`, b = sum P / sum Q over the categories, and v = sum Q / sum N the mean
    variance of the number within them, it is (P - b Q) / (Q + a v): b counts as a further rows of each category. The
    code 0, of missing and unknown values, has none, and its rows say nothing of b and v.

    Parameters
    ----------
    squares, weight : ndarray of shape (..., V)
    products : ndarray of shape (T, ..., V) or (1, ..., V)
    prior : ndarray of shape (T,)
        a, of each target, or T weights of a single target.
    """
    tiny = np.finfo(np.float64).tiny
    all_squares, all_products, rows = (
        sums[..., 1:].sum(axis=-1, keepdims=True) for sums in (squares, products, weight)
    )
    slope, variance = all_products / np.maximum(all_squares, tiny), all_squares / np.maximum(rows, tiny)
    shrinking = prior.reshape(-1, *(1,) * squares.ndim) * variance
    made = (products - slope * squares) / np.maximum(squares + shrinking, tiny)
    made[..., 0] = 0.0
    return made


def held_by_time(source: RowSource) -> bool:
    """Whether the rows of a fit are held out by their time, by the first block that has any."""
    return are_times(next(block.held_with for block in source.blocks_without_x() if block.n_rows))


def names_of_targets(schema: Schema, of_class: str, of_number: str) -> list[str]:
    """A name for each class but the first, ``f"{of_class} {label}"``, or for each target; none without targets."""
    if schema.classes is not None:
        return [f"{of_class} {label}" for label in schema.classes[1:].tolist()]
    if schema.task is None:
        return []
    several = schema.n_targets
    return [of_number] if several is None else [f"{of_number} {t}" for t in range(several)]
