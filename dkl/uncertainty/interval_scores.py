"""Conformal scores: errors of predicted numbers and classes, and the targets with at most a given score.

Workers compute them: the module loads neither machines nor Dask's arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from scipy.special import wrightomega

from dkl.protocols.block import Block
from dkl.solvers.losses import LOG_LINK
from dkl.uncertainty.posterior import CoefficientPosterior

# Ends of intervals are moved outward by this share of the mean and of themselves, so that rounding in the inverse of
# the score does not exclude a count that is an end.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class ErrorScore:
    """The absolute error of a regressor, divided by its predicted deviation if there is one.

    Parameters
    ----------
    posterior : CoefficientPosterior or None
        The source of predicted deviations; None for absolute errors.
    """

    posterior: CoefficientPosterior | None

    @property
    def scaled(self) -> bool:
        """Whether scores are in units of the deviation of each prediction."""
        return self.posterior is not None

    def n_targets(self, n_outputs: int) -> int:
        """The number of intervals of a row, for a model with `n_outputs` coefficient vectors."""
        return n_outputs

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """|y - f(x)| / sd(x), (n, t), from the predictions of a `Scorer`."""
        means, deviations = self._parts(answers)
        return np.abs(np.asarray(y, dtype=np.float64).reshape(means.shape) - means) / deviations

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """f(x) - q sd(x) and f(x) + q sd(x), for radii q: (n, t, 2)."""
        means, deviations = self._parts(answers)
        width = radii * deviations
        return np.stack([means - width, means + width], axis=2)

    def _parts(self, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Predictions (n, t) and the unit of the scores, (n, t): the deviations, or 1."""
        if self.posterior is None:
            return answers, np.ones_like(answers)
        return answers[:, :-1], self.posterior.deviations(answers[:, -1])


@dataclass(frozen=True, eq=False)
class QuantileScore:
    """The distance of a target from the interval between the lowest and highest predicted quantile; negative inside.

    Parameters
    ----------
    n_quantiles : int
        The number of neighbouring predicted quantiles that belong to one target.

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
        """q_low(x) - E and q_high(x) + E, (n, t, 2); both are the middle where a negative E would exchange them."""
        low, high = self._outer(answers)
        middle = 0.5 * (low + high)
        return np.stack([np.minimum(low - radii, middle), np.maximum(high + radii, middle)], axis=2)

    def _outer(self, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest quantile of each target, (n, t)."""
        # quantiles that cross are sorted, as in predictions
        each = answers.reshape(len(answers), -1, self.n_quantiles)
        return each.min(axis=2), each.max(axis=2)


@dataclass(frozen=True, eq=False)
class DevianceScore:
    """The absolute deviance residual of a target with mean exp(f), under a Poisson or gamma distribution.

    It follows the shape of the distribution: intervals are wider above the mean than below it and never negative, and
    if the distribution is right their coverage is similar for small and large means.

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
        # the loss is half the deviance, which rounding may make negative where the mean equals the target
        return np.sqrt(2.0 * np.maximum(LOG_LINK[self.loss].value(y, answers), 0.0))

    def ends(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The two targets whose deviance is the square of the radius, below the mean and above it: (n, t, 2)."""
        # cut to the range of float64
        mean = np.exp(np.clip(answers, -700.0, 700.0))
        half_deviance = np.broadcast_to(0.5 * np.square(radii), mean.shape)
        # an infinite radius gives an infinite upper end
        with np.errstate(over="ignore"):
            is_poisson = self.loss == "poisson"
            ratios = _poisson_ratios(half_deviance / mean) if is_poisson else _gamma_ratios(half_deviance)
            outward = _ROUNDING * np.array([-1.0, 1.0])
            return mean[:, :, None] * np.maximum(ratios * (1.0 + outward) + outward, 0.0)


IntervalScore: TypeAlias = ErrorScore | QuantileScore | DevianceScore
"""A conformal score of predictions and targets, and its inverse."""


def _poisson_ratios(c: np.ndarray) -> np.ndarray:
    """Both solutions r = y / mean of r log r - r + 1 = c; the lower one is 0 for c >= 1, where there is only one."""
    # with u = 1 - log r it is u exp(-u) = (1 - c) / e: for c < 1 the equation of gamma with -log(1 - c) for c
    with np.errstate(divide="ignore"):
        ratios = np.exp(1.0 - _gamma_ratios(-np.log1p(-np.minimum(c, 1.0)))[..., ::-1])
        above = np.exp(1.0 + wrightomega(np.log(np.maximum(c - 1.0, 0.0)) - 1.0))
    return np.where(c[..., None] < 1.0, ratios, np.stack([np.zeros_like(above), above], axis=-1))


def _gamma_ratios(c: np.ndarray) -> np.ndarray:
    """Both solutions r = y / mean of r - log r - 1 = c."""
    # -r solves w + log w = -(1 + c) -+ i pi: Wright's omega solves it without underflow of exp(-1 - c)
    sides = [-wrightomega(-(1.0 + c) + sign * 1j * np.pi).real for sign in (-1.0, 1.0)]
    return np.stack([np.minimum(*sides), np.maximum(*sides)], axis=-1)


@dataclass(frozen=True, eq=False)
class ClassScore:
    """One minus the probability that a classifier gives a row's class.

    Parameters
    ----------
    probabilities : callable
        From decision values, (n, 1) or (n, K), to the probabilities of all classes, (n, K).
    """

    probabilities: Callable[[np.ndarray], np.ndarray]
    scaled = False

    def __call__(self, answers: np.ndarray, y: np.ndarray) -> np.ndarray:
        """1 - p of the class of each row: (n, 1)."""
        return np.take_along_axis(self.parts(answers), np.asarray(y, dtype=np.int64)[:, None], axis=1)

    def parts(self, answers: np.ndarray) -> np.ndarray:
        """1 - p of every class: (n, K)."""
        return 1.0 - self.probabilities(answers)

    def members(self, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """The classes whose score is at most the radius, by row: (n, K) bool."""
        return self.parts(answers) <= radii


def conformal_scores(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The scores (n, t) and the weights (n,) of the rows of a block."""
    answers = operands["scorer"].score(block.X)
    if operands["exposure"] is not None:
        answers = answers + np.log(operands["exposure"][block.index])[:, None]
    return {"scores": operands["score"](answers, block.y), "weight": block.weights}


def ends_of(score: IntervalScore, answers: np.ndarray, radii: np.ndarray) -> np.ndarray:
    """The ends of all intervals as columns (n, 2 t): lower and upper end of the first target, then of the next."""
    return score.ends(answers, radii).reshape(len(answers), -1)


def by_target(n_targets: int, ends: np.ndarray) -> np.ndarray:
    """Interval ends (n, 2 t), the lower and upper one of each of t targets in turn, reshaped to (n, t, 2)."""
    return ends.reshape(len(ends), n_targets, 2)
