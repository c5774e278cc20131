"""The losses as rounds of features take them: with a curvature from which Newton steps end near their optimum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dkl.protocols.arrays import namespace_of
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
)

# The losses of numbers, beside squares, that rounds look for features by where a machine has them.
ROUND_LOSSES = (*LOG_LINK, "huber", "pinball")
# What the losses with a parameter have by default, as machines do, and the width of the parabola of quantiles, in
# deviations of the target.
ROUND_EPSILON, ROUND_QUANTILES, _WIDTH = 0.1, (0.1, 0.5, 0.9), 0.1
# So close to its optimum a secant is lost in rounding, and Newton's own step right.
_CLOSE = 1e-5


class _RoundHuberLoss(HuberLoss):
    """The Huber loss with a curvature that is never 0, that of the widest parabola that touches it from above."""

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
    """The Poisson loss with a curvature under which no row asks for more than its own optimum ``log y``.

    Below the optimum Newton's step ends far beyond it, where exp(f) may overflow: there the curvature is that of the
    parabola with the slope at f whose lowest point is the optimum, ``(y - exp(f)) / (log y - f)``.
    """

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        missing = _to_optimum(y, f)
        return _secant(missing > _CLOSE, super().slope(y, f), missing, super().curvature(y, f))


class _RoundGammaLoss(GammaLoss):
    """The gamma loss with a curvature under which no row asks for more than its own optimum ``log y``.

    Above the optimum the loss is almost a straight line: there the curvature is that of the parabola with the slope at
    f whose lowest point is the optimum, ``(1 - y exp(-f)) / (f - log y)``.
    """

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        missing = _to_optimum(y, f)
        return _secant(missing < -_CLOSE, super().slope(y, f), missing, super().curvature(y, f))


def _to_optimum(y: Numbers, f: Numbers) -> Any:
    """log y - f; of a count of 0, whose optimum is infinitely far below, -1, which stands for no step upwards."""
    xp = namespace_of(f)
    none = 0.0 * f - 1.0
    return xp.where(y > 0.0, xp.log(xp.where(y > 0.0, y, xp.ones_like(y))) - f, none)


def _secant(beyond: Numbers, slope: Numbers, missing: Numbers, own: Numbers) -> Any:
    """The curvature of a parabola of this slope whose lowest point is `missing` away, where Newton's is `beyond`."""
    xp = namespace_of(missing)
    return xp.where(beyond, -slope / xp.where(beyond, missing, xp.ones_like(missing)), own)


class _RoundSoftmaxLoss(Loss):
    """The softmax loss of K scores a row whose targets are 1 at the row's class and -1 elsewhere, a K-th in each.

    Its Hessian ``diag(p) - p p^T`` is at most ``diag(p)``, so that the scores can be fitted one beside the other.
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
    """The loss of that name as rounds of features take it: with a curvature that steps can rely on.

    Of "huber" and "pinball", which are straight in parts, it is that of a parabola which lies above the loss
    everywhere; of "softmax" one for each score that bounds the Hessian of all; of "poisson" and "gamma" one whose step
    does not end beyond the row's optimum.

    Parameters
    ----------
    name : str
        As of `loss_of`, or "softmax" for several classes.
    epsilon : float
        Of "huber".
    quantiles : sequence of float
        Of "pinball", a score each.
    """
    if name in _LOG_LINK:
        return _LOG_LINK[name]
    if name == "huber":
        return _RoundHuberLoss(epsilon)
    if name == "pinball":
        return _RoundPinballLoss(np.asarray(quantiles, dtype=np.float64), _WIDTH)
    return _RoundSoftmaxLoss() if name == "softmax" else loss_of(name)
