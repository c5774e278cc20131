"""A start for Newton steps on many rows: the same steps on a share of them, which cost as much less."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from dkl.linear.minibatches import HeldOut
from dkl.linear.newton_driver import NewtonProblem

# The optimum of 20 rows a feature is near that of all rows.
_ROWS_A_FEATURE, _LEAST_ROWS = 20, 20_000
# A larger share of the rows costs more than it saves.
_MOST = 0.1
# The steps on the share end when the next one promises less than this share of the objective: they are a start only.
_DECREMENT = 1e-2


@dataclass(frozen=True)
class Share:
    """A share of the rows by a hash, as folds: -1 for its rows, -2 for the others.

    Parameters
    ----------
    taken : HeldOut
    """

    taken: HeldOut
    # a sample is drawn row by row, whatever rows are held out with
    samples: ClassVar[bool] = True

    def __call__(self, row_id: np.ndarray) -> np.ndarray:
        """The fold of each row: (n,) int64."""
        return np.where(self.taken.mask(row_id), -1, -2)


def subsample_problem(task: NewtonProblem, n_rows: float, seed: int) -> NewtonProblem | None:
    """The problem on 20 rows a feature, which ends near the optimum of all rows; None where these are not many more.

    Parameters
    ----------
    task : NewtonProblem
        On all rows. The squared error needs no start, since its first step is exact; others have one of their own.
    n_rows : float
    seed : int
    """
    share = max(_ROWS_A_FEATURE * task.feature_map.n_features, _LEAST_ROWS) / max(n_rows, 1.0)
    has_own = task.loss in ("squared_error", "huber", "pinball") or (task.loss == "log_loss" and task.n_models > 1)
    if share > _MOST or has_own:
        return None
    taken, models = Share(HeldOut(share, seed)), np.full(task.n_models, -1)
    targets = replace(task.targets, folds=taken, fold=models)
    return replace(task, targets=targets, total_weight=share * task.total_weight, decrement=_DECREMENT)
