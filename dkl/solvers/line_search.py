"""Backtracking line searches by Armijo's rule: length by length, or for several descents, many lengths in a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

R = TypeVar("R")

# The share of the decrease predicted by the slope that a step must achieve (Nocedal & Wright 2006, section 3.1).
_SUFFICIENT = 1e-4
# The step length below which a search has failed, since rounding errors exceed the change by shorter steps.
SHORTEST = 1e-10


def trial_lengths(longest: ArrayLike, count: int = 9) -> np.ndarray:
    """The step lengths that one pass evaluates, of shape (..., count): the longest of each search, its half, and so on.

    Parameters
    ----------
    longest : float or ndarray of shape (...)
    count : int

    Examples
    --------
    >>> from dkl.solvers.line_search import trial_lengths
    >>> trial_lengths(1.0, 3)
    array([1.  , 0.5 , 0.25])
    """
    return np.multiply.outer(longest, 0.5 ** np.arange(count))


def falls_enough(objective: Any, start: Any, promised: Any, rounding: float = 0.0) -> Any:
    """Whether steps lower their objectives by a share of the decrease that the slope predicts (Armijo's rule).

    Parameters
    ----------
    objective : float or array
        The objective after the step (of NumPy or CuPy). One that is not finite is never low enough.
    start : float or array
        The objective before the step.
    promised : float or array
        The predicted change: the step length times the slope along the direction, which is negative.
    rounding : float
        An increase up to this share of `start` is accepted as a rounding error.
    """
    return (objective < np.inf) & (objective <= start + _SUFFICIENT * promised + rounding * abs(start))


def backtracked(
    lengths: np.ndarray, objectives: np.ndarray, start: ArrayLike, slope: ArrayLike, rounding: float = 0.0
) -> np.ndarray:
    """The longest trial step of each search that lowers the objective enough, or half the shortest if none does.

    Parameters
    ----------
    lengths, objectives : ndarray of shape (..., T)
        The trial lengths, the longest first, and the objectives at them.
    start, slope : float or ndarray of shape (...)
        The objective at length 0, infinite if it has not been computed, and its derivative along the direction there.
    rounding : float
        As for `falls_enough`.

    Returns
    -------
    ndarray of shape (...)
        The lengths. One that equals the first trial length is accepted at once, since the pass also computed gradients
        there; any other is the first trial length of the next pass, unless it is below `SHORTEST`.
    """
    start, promised = np.asarray(start)[..., None], lengths * np.asarray(slope)[..., None]
    enough = falls_enough(objectives, start, promised, rounding)
    longest = np.where(enough, lengths, 0.0).max(axis=-1)
    return np.where(longest > 0.0, longest, lengths[..., -1] / 2.0)


def falling_step(
    evaluate: Callable[[float], tuple[float, R]], start: float, slope: float, rounding: float = 0.0
) -> tuple[float, R] | None:
    """The result of the longest of the steps 1, 1/2, 1/4, ... that lowers the objective enough; None if none does.

    Parameters
    ----------
    evaluate : callable
        The length of a step -> the objective after it, and anything else that was computed there.
    start, slope : float
        The objective at length 0, and its derivative along the direction there, which is negative.
    rounding : float
        As for `falls_enough`.

    Examples
    --------
    >>> from dkl.solvers.line_search import falling_step
    >>> falling_step(lambda length: ((1.0 - 4.0 * length) ** 2, length), 1.0, -8.0)
    (0.0, 0.25)
    """
    length = 1.0
    while length >= SHORTEST:
        objective, found = evaluate(length)
        if falls_enough(objective, start, length * slope, rounding):
            return objective, found
        length /= 2.0
    return None
