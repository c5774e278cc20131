"""The losses of tuned and joint machines: one table with a row for each loss, from which their solvers read.

To add a loss, add its row to `TUNED_LOSSES` and its name to `TunedLoss`; no other module of the method depends on a
name. Its value, slope and conjugate come from `dkl.solvers.losses`, where every loss of the library is defined once.
Parameters, drivers, block functions, Adam, the judgement of a model and joint models read the row:

- A quadratic loss needs no `duals`: `SquaredErrorDriver` computes the optimum from the sums of one pass.
- A loss of the margin y f needs `duals`, a compiled loop over rows, and `duals_on_gpu`, the same in array operations
for rows on a GPU; `HingeDriver` computes the optimum by Newton steps. Its duality gap needs the conjugates of the loss
at scaled dual weights. Besides a part that is linear in these, the conjugate is the loss itself times the squared scale
for a squared loss, and zero for a piecewise linear one. Another loss (the log loss, say) needs its own sum there, in
`square_of_duals`.

The test `test_a_new_loss_is_a_row_of_the_table` adds half the squared hinge and finds its optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dkl.kernels.compiled import njit
from dkl.solvers.losses import loss_of, namespace_of

TunedLoss = Literal["squared_error", "hinge", "squared_hinge"]

# Rows whose curvature is below this share of the largest are left out of Hessians, to which they add as much cost as
# others.
_FLAT = 1e-4

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Widths = tuple[float, float, bool]
# (start, move, targets, weight), the rows' priors, the steps, the widths, and the outputs that are added to
DualLoop = Callable[[Arrays, np.ndarray, np.ndarray, Widths, Arrays], None]
# the same rows, priors, steps and widths, returning the outputs as arrays on their device; weights have shape (n, 1)
DualArrays = Callable[[tuple[Any, ...], Any, Any, Widths], tuple[Any, Any, Any, Any]]


@njit(nogil=True)
def _squared_hinges(rows: Arrays, prior: np.ndarray, steps: np.ndarray, widths: Widths, out: Arrays) -> None:
    """Add losses at scores ``start + step * move``; write dual weights and curvatures at the first step.

    The squared hinge max(0, 1 - y f)^2 is smooth enough for Newton steps, so prior and width are not used.
    """
    start, move, targets, weight = rows
    smooth, loss, dual, curvature = out
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w = targets[i, k], weight[i]
            for t in range(steps.shape[1]):
                smooth[k, t] += w * max(0.0, 1.0 - y * (start[i, k] + steps[k, t] * move[i, k])) ** 2
            slack = max(0.0, 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k]))
            loss[1 if y > 0.0 else 0, k] += w * slack * slack
            dual[i, k] = 2.0 * w * y * slack
            curvature[i, k] = 2.0 * w if slack > 0.0 else 0.0


@njit(nogil=True)
def _smoothed_hinges(rows: Arrays, prior: np.ndarray, steps: np.ndarray, widths: Widths, out: Arrays) -> None:
    """Add smoothed hinges at scores ``start + step * move``, and hinges at the first; write duals and curvatures.

    `widths` are the width h of the losses at the steps, the h of the derivatives at the first one, and whether their
    prior follows the model: see `dkl.methods.density.sums.Smoothing`.
    """
    start, move, targets, weight = rows
    smooth, loss, dual, curvature = out
    width, ahead, follows = widths
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w, z = targets[i, k], weight[i], prior[i, k]
            for t in range(steps.shape[1]):
                slack = 1.0 - y * (start[i, k] + steps[k, t] * move[i, k])
                smooth[k, t] += w * width * (_log_one_plus(z + slack / width) - _log_one_plus(z))
            slack = 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k])
            loss[1 if y > 0.0 else 0, k] += w * max(0.0, slack)
            q = (z + slack / width if follows else z) + slack / ahead
            # the logistic function of q without overflow: its argument is never positive
            small = math.exp(-abs(q))
            dual[i, k] = w * y * (1.0 if q > 0.0 else small) / (1.0 + small)
            curvature[i, k] = w * small / (ahead * (1.0 + small) ** 2) if small > _FLAT else 0.0


@njit(nogil=True)
def _log_one_plus(q: float) -> float:
    """log(1 + exp(q)), also where exp(q) would overflow."""
    return max(0.0, q) + math.log1p(math.exp(-abs(q)))


def _squared_hinges_on_gpu(rows: tuple[Any, ...], prior: Any, steps: Any, widths: Widths) -> tuple[Any, Any, Any, Any]:
    """`_squared_hinges` in array operations."""
    (*_, y, w), at, loss = rows, _scores_at(rows, steps), loss_of("squared_hinge")
    values = w * loss.value(y, at)
    first = -w * loss.slope(y, at[0]), w * loss.curvature(y, at[0])
    return values.sum(axis=1).T, _by_side(y, values[0]), *first


def _smoothed_hinges_on_gpu(rows: tuple[Any, ...], prior: Any, steps: Any, widths: Widths) -> tuple[Any, Any, Any, Any]:
    """`_smoothed_hinges` in array operations."""
    (*_, y, w), (width, ahead, follows), at = rows, widths, _scores_at(rows, steps)
    xp, slack, log_loss = namespace_of(y), 1.0 - y * at, loss_of("log_loss")
    # log(1 + exp(q)) is the log loss of a row of the class -1 at the score q
    each = log_loss.value(-1.0, prior + slack / width) - log_loss.value(-1.0, prior)
    q = (prior + slack[0] / width if follows else prior) + slack[0] / ahead
    small = xp.exp(-abs(q))
    dual = w * y * xp.where(q > 0.0, 1.0, small) / (1.0 + small)
    curvature = w * xp.where(small > _FLAT, small / (ahead * (1.0 + small) ** 2), 0.0)
    return (w * width * each).sum(axis=1).T, _by_side(y, w * loss_of("hinge").value(y, at[0])), dual, curvature


def _scores_at(rows: tuple[Any, ...], steps: Any) -> Any:
    """The scores at every step, (T, n, K)."""
    start, move, *_ = rows
    return start + steps.T[:, None] * move


def _by_side(y: Any, losses: Any) -> Any:
    """Losses (n, K) summed over the rows with target -1 and 1, (2, K)."""
    xp, zero = namespace_of(y), namespace_of(y).zeros_like(losses)
    return xp.stack([xp.where(y > 0.0, zero, losses).sum(axis=0), xp.where(y > 0.0, losses, zero).sum(axis=0)])


@dataclass(frozen=True)
class LossRow:
    """The properties of a loss that the solvers of tuned and joint models need.

    Parameters
    ----------
    duals : callable or None
        The compiled loop over rows that adds the losses of a margin at trial steps, and writes the rows' dual weights
        and curvatures; None for a loss whose optimum follows from the sums of one pass.
    duals_on_gpu : callable or None
        The same as `duals` in array operations on the device of the rows; returns its results.
    is_smoothed : bool
        Whether `duals` smooths the loss over a width, which shrinks during the fit.
    slope_widths : tuple of float
        The widths over which the slope is spread when a given model is judged. At the optimum of a loss whose slope
        jumps, the dual weights of rows at the jump lie between both slopes, and the model does not determine them:
        several widths are tried, and the best dual point is used. A loss with a continuous slope has the single width
        0.
    has_schedules : bool
        Whether the theory of Shilton et al. 2022, section 4.3, covers how lam and D should scale with n.
    """

    duals: DualLoop | None = None
    duals_on_gpu: DualArrays | None = None
    is_smoothed: bool = False
    slope_widths: tuple[float, ...] = (0.0,)
    has_schedules: bool = False

    @property
    def takes_one_pass(self) -> bool:
        """Whether the optimum follows from sums that do not depend on the model."""
        return self.duals is None


# half the squared error serves numbers and labels; losses of the margin only serve labels
TUNED_LOSSES: dict[str, LossRow] = {
    "squared_error": LossRow(has_schedules=True),
    "hinge": LossRow(
        _smoothed_hinges,
        _smoothed_hinges_on_gpu,
        is_smoothed=True,
        slope_widths=(0.0, 0.03, 0.1, 0.3, 1.0),
        has_schedules=True,
    ),
    "squared_hinge": LossRow(_squared_hinges, _squared_hinges_on_gpu),
}
