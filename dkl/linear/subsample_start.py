"""A start for Newton steps on many rows: the same steps on a share of them, which cost as much less."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkl.linear.head import NewtonProblem, NewtonState
from dkl.linear.judge import Folds
from dkl.linear.minibatches import HeldOut

# The optimum of 20 rows a feature is near that of all rows.
_ROWS_A_FEATURE, _LEAST_ROWS = 20, 20_000
# A larger share of the rows costs more than it saves. The Hessian of so many rows a feature leads to the optimum of all
# rows in five or six steps.
_MOST, _ROWS_OF_METRIC = 0.1, 200
# The Hessian of fewer features costs little.
_LEAST_FEATURES = 200
# With fewer rows with curvature a feature, steps by the Hessian of a share are more than it saves.
_CURVED_ROWS, _CURVED_ROWS_OF_FEW_STEPS = 50, 10
# The steps on the share end when the next one promises less than this share of the objective: they are a start only.
_DECREMENT = 1e-2


def subsample_problem(task: NewtonProblem, n_rows: float, seed: int) -> NewtonProblem | None:
    """The problem on 20 rows a feature, which ends near the optimum of all rows; None where these are not many more.

    Parameters
    ----------
    task : NewtonProblem
        On all rows. The squared error needs no start, since its first step is exact; others have one of their own.
    n_rows : float
    seed : int
    """
    m = task.feature_map.n_features
    rows = max(_ROWS_A_FEATURE * m, _LEAST_ROWS)
    if task.n_models == 1 and m >= _LEAST_FEATURES:
        # one model steps on with the Hessian of these rows, which is the nearer to that of all the more they are
        rows = max(rows, min(_ROWS_OF_METRIC * m, int(_MOST * n_rows)))
    share = rows / max(n_rows, 1.0)
    has_own = task.loss in ("squared_error", "huber", "pinball") or (task.loss == "log_loss" and task.n_models > 1)
    if share > _MOST or has_own:
        return None
    taken, models = Folds(HeldOut(share, seed), 0, share, samples=True), np.full(task.n_models, -1)
    targets = replace(task.targets, folds=taken, fold=models)
    return replace(task, targets=targets, total_weight=share * task.total_weight, decrement=_DECREMENT)


def subsample_metric(
    subsample: NewtonProblem, task: NewtonProblem, state: NewtonState, n_rows: float
) -> np.ndarray | None:
    """The last Hessian of a single model on the share of the rows, (1, size), times what they are short of all rows.

    None of several models, which are done at different steps; of one whose last step was not taken; where the Hessian
    of all rows costs little or that of the share tells too little: of few features, and of few rows with curvature.
    """
    if task.n_models > 1 or task.feature_map.n_features < _LEAST_FEATURES:
        return None
    if state.hessian is None or len(state.hessian) != 1:
        return None
    # the last number belongs to the intercept: the sum of the weights of the rows with curvature
    curved = 1.0 if task.varies else state.hessian[0, -1] / subsample.total_weight
    rows = curved * n_rows * subsample.total_weight / task.total_weight
    # a rough last step bears a rough Hessian, and where each step has another one, many steps by one of them are cheap
    least = _CURVED_ROWS if task.decrement == 0.0 and not task.varies else _CURVED_ROWS_OF_FEW_STEPS
    if rows < least * task.feature_map.n_features:
        return None
    return state.hessian * (task.total_weight / subsample.total_weight)
