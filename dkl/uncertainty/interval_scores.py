"""How far a regressor is off on a row, and the targets of a row that are no further off: the scores of intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.special import wrightomega

from dkl.protocols.block import Block
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# Ends are moved outward by so much of the mean and of themselves: a count at an end must not be lost to the rounding of
# the two ways.
_ROUNDING = 1e-9


class IntervalScore(Protocol):
    """A score of held-out rows, and its inverse."""

    @property
    def scaled(self) -> bool:
        """Whether scores are in units of the deviation of each prediction."""
        ...

    def n_targets(self, n_outputs: int) -> int:
        """How many intervals a row has, of a model with so many coefficient vectors."""
        ...

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The scores (n, t) of rows by their decision values."""
        ...

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The ends (n, t, 2) of the targets whose score is at most `radii`, of shape (t,) or (n, t)."""
        ...


@dataclass(frozen=True, eq=False)
class ErrorScore:
    """How far a regressor is off on a row, in units of its deviation where it has one.

    Parameters
    ----------
    posterior : CoefficientPosterior or None
    """

    posterior: CoefficientPosterior | None

    @property
    def scaled(self) -> bool:
        return self.posterior is not None

    def n_targets(self, n_outputs: int) -> int:
        return n_outputs

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """|y - f(x)| / sd(x) of rows by what a `Scorer` answers: (n, t)."""
        means, deviations = self._parts(answers)
        return np.abs(np.asarray(y, dtype=np.float64).reshape(means.shape) - means) / deviations

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """f(x) less and more q sd(x): (n, t, 2)."""
        means, deviations = self._parts(answers)
        width = radii * deviations
        return np.stack([means - width, means + width], axis=2)

    def _parts(self, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predictions (n, t) and what a score is a multiple of, (n, t)."""
        if self.posterior is None:
            return answers, np.ones_like(answers)
        return answers[:, :-1], self.posterior.deviations(answers[:, -1])


@dataclass(frozen=True, eq=False)
class QuantileScore:
    """How far a target is outside of the lowest and the highest predicted quantile; negative inside.

    Parameters
    ----------
    n_quantiles : int
        Of each target, beside each other.

    References
    ----------
    Romano, Patterson & Candes 2019, Conformalized quantile regression, (6) and (7).
    """

    n_quantiles: int
    scaled = False

    def n_targets(self, n_outputs: int) -> int:
        return n_outputs // self.n_quantiles

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """E = max(q_low(x) - y, y - q_high(x)): (n, t)."""
        low, high = self._outer(answers)
        y = np.asarray(y, dtype=np.float64).reshape(low.shape)
        return np.maximum(low - y, y - high)

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """q_low(x) - E and q_high(x) + E: (n, t, 2); where a negative E leaves nothing, the middle twice."""
        low, high = self._outer(answers)
        middle = 0.5 * (low + high)
        return np.stack([np.minimum(low - radii, middle), np.maximum(high + radii, middle)], axis=2)

    def _outer(self, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest quantile of each target, (n, t)."""
        # quantiles that cross each other are taken in order, as they are predicted
        each = answers.reshape(len(answers), -1, self.n_quantiles)
        return each.min(axis=2), each.max(axis=2)


@dataclass(frozen=True, eq=False)
class DevianceScore:
    """The size of the deviance residual of a count or of a size whose mean is exp(f).

    It grows with the distance from the mean in the way of the distribution, so that intervals are wider above the mean
    than below it, never below 0, and alike in coverage for small means and large ones where the loss is the right one.

    Parameters
    ----------
    loss : {"poisson", "gamma"}

    References
    ----------
    McCullagh & Nelder 1989, Generalized Linear Models, section 2.4.3 (deviance residuals).
    """

    loss: str
    scaled = False

    def n_targets(self, n_outputs: int) -> int:
        return n_outputs

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The square root of the deviance of each target from exp(f): (n, t)."""
        y = np.asarray(y, dtype=np.float64).reshape(answers.shape)
        # the loss is half the deviance; rounding may leave it below 0 where the mean is the target
        return np.sqrt(2.0 * np.maximum(LOG_LINK[self.loss].value(y, answers), 0.0))

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The two targets whose deviance is the square of the radius, below the mean and above it: (n, t, 2)."""
        # means beyond the range of numbers are no counts of anything
        mean = np.exp(np.clip(answers, -700.0, 700.0))
        half_deviance = np.broadcast_to(0.5 * np.square(radii), mean.shape)
        # a radius without an end has none above
        with np.errstate(over="ignore"):
            is_poisson = self.loss == "poisson"
            ratios = _poisson_ratios(half_deviance / mean) if is_poisson else _gamma_ratios(half_deviance)
            outward = _ROUNDING * np.array([-1.0, 1.0])
            return mean[:, :, None] * np.maximum(ratios * (1.0 + outward) + outward, 0.0)


def _poisson_ratios(c: np.ndarray) -> np.ndarray:
    """Both solutions r = y / mean of r log r - r + 1 = c; the lower is 0 where even y = 0 is within c."""
    # with u = 1 - log r the equation is u exp(-u) = (1 - c) / e: below c = 1 that of gamma, with -log(1 - c) for c
    with np.errstate(divide="ignore"):
        ratios = np.exp(1.0 - _gamma_ratios(-np.log1p(-np.minimum(c, 1.0)))[..., ::-1])
        above = np.exp(1.0 + wrightomega(np.log(np.maximum(c - 1.0, 0.0)) - 1.0))
    return np.where(c[..., None] < 1.0, ratios, np.stack([np.zeros_like(above), above], axis=-1))


def _gamma_ratios(c: np.ndarray) -> np.ndarray:
    """Both solutions r = y / mean of r - log r - 1 = c."""
    # -r solves w + log w = -(1 + c) -+ i pi, which Wright's omega does without the underflow of exp(-1 - c)
    sides = [-wrightomega(-(1.0 + c) + sign * 1j * np.pi).real for sign in (-1.0, 1.0)]
    return np.stack([np.minimum(*sides), np.maximum(*sides)], axis=-1)


def conformal_scores(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scores (n, t) and the weights (n,) of the rows of a block."""
    answers = operands["scorer"].score(block.X)
    if operands["exposure"] is not None:
        answers = answers + np.log(operands["exposure"][block.index])[:, None]
    return {"scores": operands["score"](answers, block.y), "weight": block.weights}


def ends_of(score: IntervalScore, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """Lower and upper ends of each target side by side: (n, 2 t)."""
    return score.ends(answers, radii).reshape(len(answers), -1)


def by_target(n_targets: int, ends: np.ndarray) -> np.ndarray:
    """Ends side by side (n, 2 t) as (n, t, 2)."""
    return ends.reshape(len(ends), n_targets, 2)
