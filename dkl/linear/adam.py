"""Adam with averaged iterates: steps on all numbers of a model, which are one vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from dkl.kernels.compiled import njit
from dkl.kernels.device import array_module, is_on_gpu, sums_on_host
from dkl.kernels.sincos import ELEMENTWISE
from dkl.kernels.tiles import spans

# Adam's beta_1, beta_2 and epsilon, as Kingma & Ba 2015 propose.
_FIRST_DECAY, _SECOND_DECAY, _EPSILON = 0.9, 0.999, 1e-8
# Exponent of polynomial-decay averaging.
_AVERAGING = 8.0

State = TypeVar("State", bound="AdamState")
Model = TypeVar("Model")


@dataclass(frozen=True, eq=False)
class AdamState:
    """The numbers of a model during its fit, with the running means of Adam.

    Attributes
    ----------
    values, first, second : ndarray of shape (P,)
        The numbers, and the running means of their gradients and of the squared gradients.
    average : ndarray of shape (P,)
        The fitted model: the average of `values` over the steps, with larger weights for later ones.
    steps : int
        Steps taken.
    """

    values: np.ndarray
    first: np.ndarray
    second: np.ndarray
    average: np.ndarray
    steps: int = 0

    @classmethod
    def begin(cls, values: np.ndarray, **others: Any) -> Self:
        """The state before the first step from these numbers."""
        return cls(values, np.zeros_like(values), np.zeros_like(values), values, **others)


def adam_steps(
    state: State,
    rows: np.ndarray,
    batch_rows: int,
    view: Callable[[np.ndarray], Model],
    objective: Callable[[slice, Model], tuple[Any, np.ndarray]],
    rates: Callable[[int], np.ndarray],
    *,
    constrain: Callable[[Model], None] = lambda model: None,
    total: float = 0.0,
) -> tuple[State, float]:
    """The state after a step for each batch of consecutive rows; `state` is unchanged.

    Parameters
    ----------
    state : AdamState
    rows : array of shape (n, ...)
        On the device of the steps.
    batch_rows : int
    view : callable
        The numbers (P,) -> the model, whose arrays are views of them.
    objective : callable
        (batch, model) -> the objective on the rows of a batch, a mean, and its gradient (P,).
    rates : callable
        The number of a step, counted from 1 -> the step length of each number (P,).
    constrain : callable
        Moves the model after a step into its bounds, in place.
    total : float
        The sum to which the objectives are added.

    Returns
    -------
    state : AdamState
    total : float
        With the objective of each batch before its step, times the number of its rows.
    """
    xp = array_module(rows)
    # copies on the device of the rows, since the steps below write to them
    values, first, second, average = (
        xp.array(numbers) for numbers in (state.values, state.first, state.second, state.average)
    )
    model, steps = view(values), state.steps
    for batch in spans(rows.shape[0], batch_rows):
        value, gradient = objective(batch, model)
        total = total + (batch.stop - batch.start) * value
        steps += 1
        adam_update(values, (first, second), gradient, rates(steps), step=steps)
        constrain(model)
        share = averaging_share(steps)
        average *= 1.0 - share
        average += share * values
    # numbers on a GPU stay there from batch to batch: the host waits only here
    here = sums_on_host(
        {"values": values, "first": first, "second": second, "average": average, "total": total}  # type: ignore[dict-item]
    )
    total = here.pop("total")  # type: ignore[assignment]
    # they were copied to the host in double precision
    numbers = {name: part.astype(state.values.dtype, copy=False) for name, part in here.items()}
    return replace(state, **numbers, steps=steps), total


def averaging_share(step: int) -> float:
    """The share of the iterate after a step, counted from 1, in the average x_t = (1 - share) x_(t-1) + share values_t.

    Polynomial-decay averaging (Shamir & Zhang 2013, section 4): the weight of step t grows as t^8.
    """
    return (1.0 + _AVERAGING) / (step + _AVERAGING)


def adam_update(
    values: np.ndarray, moments: tuple[np.ndarray, np.ndarray], gradient: np.ndarray, rates: np.ndarray, *, step: int
) -> None:
    """One step of Adam in place (Kingma & Ba 2015, algorithm 1), with its own step length for each number.

    Parameters
    ----------
    values : array of shape (P,)
        On the host, or together with all other arrays on a GPU.
    moments : two arrays of shape (P,)
        The running means of the gradients and of their squares, zero at first.
    gradient, rates : array of shape (P,)
    step : int
        The number of this step, counted from 1.
    """
    dtype = np.dtype(values.dtype).type
    # Adam's bias correction, since the moments start from zero
    mean, square = 1.0 - _FIRST_DECAY**step, 1.0 - _SECOND_DECAY**step
    shares = dtype(1.0 - _FIRST_DECAY), dtype(1.0 - _SECOND_DECAY)
    scales = dtype(1.0 / mean), dtype(1.0 / square)
    if is_on_gpu(values):
        first, second = moments
        first += shares[0] * (gradient - first)
        second += shares[1] * (gradient * gradient - second)
        values -= rates * (first * scales[0]) / (np.sqrt(second * scales[1]) + dtype(_EPSILON))
        return
    _adam(values, moments, gradient, rates, shares, scales, dtype(_EPSILON))


# a test for division by zero would keep the compiler from vector code; the divisor is positive
@njit(nogil=True, fastmath=ELEMENTWISE, error_model="numpy")
def _adam(
    values: np.ndarray,
    moments: tuple[np.ndarray, np.ndarray],
    gradient: np.ndarray,
    rates: np.ndarray,
    shares: tuple[float, float],
    scales: tuple[float, float],
    epsilon: float,
) -> None:
    """The loop of `adam_update`: m += (1 - beta_1)(g - m), v += (1 - beta_2)(g^2 - v), then the step."""
    first, second = moments
    for i in range(len(values)):
        g = gradient[i]
        first[i] += shares[0] * (g - first[i])
        second[i] += shares[1] * (g * g - second[i])
        values[i] -= rates[i] * (first[i] * scales[0]) / (np.sqrt(second[i] * scales[1]) + epsilon)
