"""The losses for rounds of features, with curvatures that keep Newton steps from overshooting their optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dkl.solvers.losses import (
    LOG_LINK,
    SOFTMAX,
    GammaLoss,
    HuberLoss,
    Loss,
    Numbers,
    PoissonLoss,
    SmoothedPinballLoss,
    loss_of,
    namespace_of,
)

# The losses for regression, other than squared errors, by which rounds search for features when a machine has them.
ROUND_LOSSES = (*LOG_LINK, "huber", "pinball")
# The defaults of the losses' parameters, those of machines (epsilon of "huber", and quantiles), and the width of the
# parabola in the pinball loss; epsilon and width are in standard deviations of the target.
ROUND_EPSILON, ROUND_QUANTILES, _WIDTH = 0.1, (0.1, 0.5, 0.9), 0.1
# A score f within this distance of its optimum log y has Newton's own curvature: a secant would be a quotient of
# rounding errors.
_CLOSE = 1e-5


class _RoundHuberLoss(HuberLoss):
    """The Huber loss with the curvature of the widest parabola that touches it from above, which is never 0."""

    varies = True

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        xp = namespace_of(f)
        return self.epsilon / xp.clip(xp.abs(f - y), self.epsilon, None)


class _RoundPinballLoss(SmoothedPinballLoss):
    """The smoothed pinball loss with the curvature of the widest parabola that touches it from above."""

    varies = True

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        xp = namespace_of(f)
        return 0.5 / xp.clip(xp.abs(f - y), self.width, None) + 0.0 * self.quantile


class _RoundPoissonLoss(PoissonLoss):
    """The Poisson loss with a curvature by which the step of a single row does not go beyond its optimum ``log y``.

    From below the optimum Newton's step would go far beyond it, where exp(f) may overflow. There the curvature is that
    of the parabola with the loss's slope at f whose minimum is the optimum, ``(y - exp(f)) / (log y - f)``.
    """

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        missing = _to_optimum(y, f)
        return _secant(missing > _CLOSE, super().slope(y, f), missing, super().curvature(y, f))


class _RoundGammaLoss(GammaLoss):
    """The gamma loss with a curvature by which the step of a single row does not go beyond its optimum ``log y``.

    Above the optimum the loss is almost a straight line. There the curvature is that of the parabola with the loss's
    slope at f whose minimum is the optimum, ``(1 - y exp(-f)) / (f - log y)``.
    """

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        missing = _to_optimum(y, f)
        return _secant(missing < -_CLOSE, super().slope(y, f), missing, super().curvature(y, f))


def _to_optimum(y: Numbers, f: Numbers) -> Any:
    """log y - f, the step to a row's optimum; -1 for a count of 0, whose optimum is -infinity."""
    xp = namespace_of(f)
    none = 0.0 * f - 1.0
    return xp.where(y > 0.0, xp.log(xp.where(y > 0.0, y, xp.ones_like(y))) - f, none)


def _secant(beyond: Numbers, slope: Numbers, missing: Numbers, own: Numbers) -> Any:
    """The curvature of the parabola with this slope and its minimum `missing` away where `beyond`, elsewhere `own`."""
    xp = namespace_of(missing)
    return xp.where(beyond, -slope / xp.where(beyond, missing, xp.ones_like(missing)), own)


class _RoundSoftmaxLoss(Loss):
    """The softmax loss of K scores in each row, with targets 1 at the row's class and -1 elsewhere.

    The loss of a row is divided equally among its K scores. The Hessian ``diag(p) - p p^T`` is bounded by ``diag(p)``,
    so that the scores can be fitted independently.
    """

    largest_curvature = 1.0
    varies = True

    def value(self, y: Any, f: Any) -> Any:
        return np.repeat(SOFTMAX.value(np.argmax(y, axis=1), f)[:, None] / f.shape[1], f.shape[1], axis=1)

    def slope(self, y: Any, f: Any) -> Any:
        return SOFTMAX.slope(np.argmax(y, axis=1), f)

    def curvature(self, y: Any, f: Any) -> Any:
        return SOFTMAX.slope(np.argmax(y, axis=1), f) + (y > 0.0)

    def conjugate(self, y: Any, s: Any) -> Any:
        return np.repeat(SOFTMAX.conjugate(np.argmax(y, axis=1), s)[:, None] / s.shape[1], s.shape[1], axis=1)


_LOG_LINK: dict[str, Loss] = {"poisson": _RoundPoissonLoss(), "gamma": _RoundGammaLoss()}


def round_loss(name: str, epsilon: float = ROUND_EPSILON, quantiles: Sequence[float] = ROUND_QUANTILES) -> Loss:
    """The loss of that name for rounds of features, with a curvature for safe Newton steps.

    For "huber" and "pinball", which are linear in parts, it is that of a parabola above the loss. For "softmax" it is
    one number for each score, which together bound the Hessian. For "poisson" and "gamma" the step of a single row does
    not go beyond its optimum.

    Parameters
    ----------
    name : str
        See `loss_of`; also "softmax" for several classes.
    epsilon : float
        The parameter of "huber".
    quantiles : sequence of float
        For "pinball" the quantile of each score.
    """
    if name in _LOG_LINK:
        return _LOG_LINK[name]
    if name == "huber":
        return _RoundHuberLoss(epsilon)
    if name == "pinball":
        return _RoundPinballLoss(np.asarray(quantiles, dtype=np.float64), _WIDTH)
    return _RoundSoftmaxLoss() if name == "softmax" else loss_of(name)
