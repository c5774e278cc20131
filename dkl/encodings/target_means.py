"""Target means of categories: folds of rows, and the tables that turn the code of a row into numbers.

A row of fold f whose category is c gets (S - m N) / (N + a) and log(1 + N r): N and S are the weight and the weighted
target of the rows with this category in all other folds but the held-out one, m is the mean target of all rows that
are not held out, so that the first is the mean (S + a m) / (N + a) less m, and r is the weight of all rows over that
of those folds. Rows that are new get the same of all rows: an unseen category is (0, 0).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dkl.linear.minibatches import HeldOut
from dkl.protocols.held_together import are_times

PRIOR = 10.0
"""a, in rows: the mean of all rows counts in that of each category as so many rows would."""
FOLDS = 5


@dataclass(frozen=True)
class CategoryFolds:
    """Fold 0 is the rows that are held out to judge, whose targets enter no other row's code; all others are in 1 to 5.

    Parameters
    ----------
    held_out : HeldOut
        What judges under the same seed is a part of it.
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


def fold_tables(weight: np.ndarray, targets: np.ndarray, *, by_time: bool, prior: float = PRIOR) -> np.ndarray:
    """The numbers of each code for rows of each fold of a fit.

    Parameters
    ----------
    weight : ndarray of shape (F, V)
        N by fold and code; code 0 is no category.
    targets : ndarray of shape (T, F, V)
        S.
    by_time : bool
        Rows get what older rows say, which are in later folds, and nothing of newer ones.
    prior : float
        a.

    Returns
    -------
    ndarray of shape (F, V, T + 1), float64
        T means less m, then the logarithm of the count.
    """
    n_folds = len(weight)
    mean = _mean(weight[1:], targets[:, 1:])
    tables = np.empty((*weight.shape, len(targets) + 1))
    for fold in range(n_folds):
        # Sums over the other folds, not a difference: what is rounded there would still tell of the row's own target.
        others = [g for g in range(1, n_folds) if (g > fold if by_time else g != fold)]
        N, S = weight[others].sum(axis=0), targets[:, others].sum(axis=1)
        # the oldest rows have none before them, and no counts
        ratio = weight.sum() / N.sum() if N.any() else 1.0
        tables[fold] = _numbers(N, S, mean, prior, ratio)
    return tables


def new_table(weight: np.ndarray, targets: np.ndarray, *, prior: float = PRIOR) -> np.ndarray:
    """The numbers of each code for new rows, (V, T + 1): all rows of the fit count; see `fold_tables`."""
    return _numbers(weight.sum(axis=0), targets.sum(axis=1), _mean(weight, targets), prior, 1.0)


def _mean(weight: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """m, (T,): the mean target of all rows of these folds, those without a category among them."""
    return targets.sum(axis=(1, 2)) / max(weight.sum(), np.finfo(np.float64).tiny)


def _numbers(N: np.ndarray, S: np.ndarray, mean: np.ndarray, prior: float, ratio: float) -> np.ndarray:
    """(V, T + 1): the shrunk means less m, and log(1 + N r); no category is 0 in all of them."""
    table = np.column_stack([*((S - mean[:, None] * N) / (N + prior)), np.log1p(N * ratio)])
    table[0] = 0.0
    return table


def by_time(held_with: np.ndarray) -> bool:
    """Whether the rows of a fit are held out by their time."""
    return are_times(held_with)
