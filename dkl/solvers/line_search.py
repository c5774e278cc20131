"""Backtracking line searches by Armijo's rule, for several descents at once; a pass over the rows judges many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

# Share of the decrease promised by the slope that a step must bring about (Nocedal & Wright 2006, section 3.1).
_SUFFICIENT = 1e-4
# Length, as a share of the whole step, below which a search has failed: rounding hides what shorter steps change.
SHORTEST = 1e-10


def trial_lengths(longest: ArrayLike, count: int = 9) -> np.ndarray:
    """The step lengths that one pass judges, of shape (..., count): the longest of each search, its half, its quarter.

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
    """Whether steps lower their objectives by a share of what the slope promises, or up to rounding (Armijo's rule).

    Parameters
    ----------
    objective : float or array
        After the step, NumPy's or CuPy's. One that is not finite is never low enough.
    start : float or array
        The objective before.
    promised : float or array
        The step's length times the slope along its direction, which is negative.
    rounding : float
        Differences of the objective that are rounding, relative to `start`.
    """
    return (objective < np.inf) & (objective <= start + _SUFFICIENT * promised + rounding * abs(start))


def backtracked(
    lengths: np.ndarray, objectives: np.ndarray, start: ArrayLike, slope: ArrayLike, rounding: float = 0.0
) -> np.ndarray:
    """The longest of each search's trial steps that lowers the objective enough; half the shortest where none does.

    Parameters
    ----------
    lengths, objectives : ndarray of shape (..., T)
        The trial steps, the longest first, and the objectives after them.
    start, slope : float or ndarray of shape (...)
        The objective at length 0, infinite where it is not known yet, and its derivative along the direction there.
    rounding : float
        As of `falls_enough`.

    Returns
    -------
    ndarray of shape (...)
        The lengths. One that equals the first trial step is taken at once, since a pass has its gradients there; the
        next pass tries any other first, unless it is below `SHORTEST`.
    """
    start, promised = np.asarray(start)[..., None], lengths * np.asarray(slope)[..., None]
    enough = falls_enough(objectives, start, promised, rounding)
    longest = np.where(enough, lengths, 0.0).max(axis=-1)
    return np.where(longest > 0.0, longest, lengths[..., -1] / 2.0)
