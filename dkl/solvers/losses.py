"""The losses of linear models: value, slope, curvature and conjugate of each, which all methods use.

The scaling is that of scikit-learn: ``squared_error`` is half the square (as in `SGDRegressor`, and in `Ridge` with the
penalty ``alpha/2 |w|^2``), ``squared_hinge`` is the whole square (as in `LinearSVC`), ``log_loss`` is
``log(1 + exp(-y f))`` (as in `LogisticRegression`), and ``poisson`` and ``gamma`` are half the deviance of a mean
exp(f) (as in `PoissonRegressor`). C and alpha have the same meaning as in these estimators.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from dkl.registry import LOSSES

__all__ = ["loss_of"]

# Targets, scores or slopes: arrays of NumPy or of another array-API namespace, or single numbers.
Numbers: TypeAlias = np.ndarray | float


class Loss(ABC):
    """A loss L(y, f) of a row whose target is y and whose score under a linear model is f.

    The shapes of targets and scores are equal or broadcast. All functions but the conjugate also take arrays of CuPy
    and array-api-strict.

    Attributes
    ----------
    largest_curvature : float
        The largest second derivative; 0 for piecewise linear losses.
    conjugate_square : float
        The coefficient c of s^2 in the conjugate ``c s^2 + y s`` at slope s: ``1 / (2 largest_curvature)`` for losses
        with a quadratic part, 0 for piecewise linear ones, and for those whose conjugate is an entropy.
    varies : bool
        Whether the second derivative takes other values than 0 and the largest one.
    is_square : bool
        Whether the loss is quadratic everywhere, so that the Hessian is the same for all models.
    """

    largest_curvature: ClassVar[float] = 0.0
    conjugate_square: ClassVar[float] = 0.0
    varies: ClassVar[bool] = False
    is_square: ClassVar[bool] = False

    @property
    def curvature_unit(self) -> float:
        """The unit of curvatures in sums of Hessians: unless `varies`, each row then has the factor 0 or 1."""
        return 1.0 if self.varies else self.largest_curvature

    @abstractmethod
    def value(self, y: Numbers, f: Numbers) -> Any:
        """L(y, f)."""

    @abstractmethod
    def slope(self, y: Numbers, f: Numbers) -> Any:
        """The derivative by f; at a kink the subgradient that scikit-learn's stochastic gradient descent uses.

        Minus the slope is the row's dual weight, with the sign of its target for classes.
        """

    @abstractmethod
    def curvature(self, y: Numbers, f: Numbers) -> Any:
        """The second derivative by f, 0 at a kink."""

    @abstractmethod
    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        """The largest value of ``s f - L(y, f)`` over f; infinite for slopes that the loss does not have.

        For dual weights a, minus the sum of the conjugates at slopes -a is the part of the dual objective that the
        losses contribute.
        """

    def validate(self) -> None:  # noqa: B027
        """Raise ValueError if `epsilon` has no meaning for the loss; losses without it have nothing to check."""

    def derivatives(self, y: Numbers, f: Numbers) -> tuple[Any, Any]:
        """Slope and curvature, with common terms computed once."""
        return self.slope(y, f), self.curvature(y, f)

    def parts(self, y: Numbers, f: Numbers) -> tuple[Any, Any, Any, Any]:
        """Value, slope, curvature, and the conjugate at the slope, with common terms computed once."""
        slope, curvature = self.derivatives(y, f)
        return self.value(y, f), slope, curvature, self.conjugate(y, slope)

    def mean_value(self, y: np.ndarray, f: np.ndarray, weight: np.ndarray | None) -> Any:
        """The mean over rows of their losses times their weights, for y and f of shape (n, K)."""
        return _shares(f, weight) @ self.value(y, f).sum(axis=1)

    def mean_slope(self, y: np.ndarray, f: np.ndarray, weight: np.ndarray | None) -> Any:
        """The slopes of `mean_value` by f, (n, K)."""
        if weight is None:
            # one factor for all rows, in double precision as those of weights
            return self.slope(y, f) * namespace_of(f).asarray(1.0 / len(f))
        return self.slope(y, f) * _shares(f, weight)[:, None]


def _shares(f: Any, weight: np.ndarray | None) -> Any:
    """The factor of each row in a mean over rows, (n,)."""
    return namespace_of(f).full(len(f), 1.0 / len(f)) if weight is None else weight / len(f)


def namespace_of(f: Any) -> ModuleType:
    """The module whose functions take the array (NumPy, CuPy or an array-API namespace); NumPy for numbers."""
    if hasattr(f, "__array_namespace__"):
        return f.__array_namespace__()
    # An array of CuPy exists only if CuPy is imported.
    return sys.modules["cupy"] if type(f).__module__.partition(".")[0] == "cupy" else np


def _filled(condition: Numbers, number: float, like: Numbers) -> Any:
    """`number` where the condition holds, else 0."""
    xp = namespace_of(like)
    return xp.where(condition, xp.full_like(like, number), xp.zeros_like(like))


class _MarginLoss(Loss):
    """A loss of y f, for targets -1 and +1."""

    largest_dual: ClassVar[float] = inf

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        # Minus y times the slope is the dual weight of the row, which lies between 0 and `largest_dual`.
        possible = (-y * s >= 0.0) & (-y * s <= self.largest_dual)
        return namespace_of(s).where(possible, self.conjugate_square * s**2 + y * s, inf)


class HingeLoss(_MarginLoss):
    """``max(0, 1 - y f)``, the loss of `SVC` and of `LinearSVC(loss="hinge")`."""

    largest_dual = 1.0

    def of_slack(self, slack: Numbers) -> Any:
        """The loss as a function of the slack ``1 - y f``, the distance to a margin of 1."""
        # as NumPy's clip, which takes five times as long for few rows
        return namespace_of(slack).maximum(slack, 0.0)

    def value(self, y: Numbers, f: Numbers) -> Any:
        return self.of_slack(1.0 - y * f)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).where(y * f <= 1.0, -y, 0.0 * y)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).zeros_like(y * f)


class SquaredHingeLoss(HingeLoss):
    """``max(0, 1 - y f)^2``, the loss of `LinearSVC`."""

    largest_curvature = 2.0
    conjugate_square = 0.25
    largest_dual = inf

    def of_slack(self, slack: Numbers) -> Any:
        return super().of_slack(slack) ** 2

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return -2.0 * y * super().of_slack(1.0 - y * f)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return _filled(y * f < 1.0, 2.0, y * f)

    def parts(self, y: Numbers, f: Numbers) -> tuple[Any, Any, Any, Any]:
        slack = super().of_slack(1.0 - y * f)
        slope = -2.0 * y * slack
        # the dual weights are twice the slacks, and so never outside the domain of the conjugate
        return slack**2, slope, 2.0 * (slack > 0.0), self.conjugate_square * slope**2 + y * slope


class ModifiedHuberLoss(_MarginLoss):
    """The squared hinge for y f >= -1, and its tangent ``-4 y f`` below."""

    largest_curvature = 2.0
    conjugate_square = 0.25
    largest_dual = 4.0

    def value(self, y: Numbers, f: Numbers) -> Any:
        xp, margin = namespace_of(f), y * f
        return xp.where(margin < -1.0, -4.0 * margin, xp.clip(1.0 - margin, 0.0, None) ** 2)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        xp, margin = namespace_of(f), y * f
        return xp.where(margin < -1.0, -4.0 * y, -2.0 * y * xp.clip(1.0 - margin, 0.0, None))

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        margin = y * f
        return _filled((margin >= -1.0) & (margin < 1.0), 2.0, margin)


class LogLoss(_MarginLoss):
    """``log(1 + exp(-y f))``, the loss of `LogisticRegression`, without overflow for large scores."""

    largest_curvature = 0.25
    varies = True

    def value(self, y: Numbers, f: Numbers) -> Any:
        margin = y * f
        xp = namespace_of(margin)
        # log(exp(0) + exp(-margin)) without an intermediate result that overflows.
        return xp.logaddexp(xp.zeros_like(margin), -margin)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return -y * self._share(y * f)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        share = self._share(y * f)
        return share * (1.0 - share)

    def derivatives(self, y: Numbers, f: Numbers) -> tuple[Any, Any]:
        share = self._share(y * f)
        return -y * share, share * (1.0 - share)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        dual = -y * s
        # The negative entropy a log a + (1 - a) log(1 - a) of the dual weight a, with 0 log 0 = 0.
        xp = namespace_of(s)
        share = xp.clip(dual, np.finfo(np.float64).tiny, 1.0)
        entropy = share * xp.log(share) + (1.0 - share) * xp.log1p(-xp.clip(share, None, 1.0 - 1e-16))
        return xp.where((dual >= 0.0) & (dual <= 1.0), entropy, inf)

    @staticmethod
    def _share(margin: Numbers) -> Any:
        """1 / (1 + exp(margin)), the probability of the other class."""
        xp = namespace_of(margin)
        return xp.exp(-xp.logaddexp(xp.zeros_like(margin), margin))


class SquaredErrorLoss(Loss):
    """``(y - f)^2 / 2``, for targets that are numbers, or -1 and +1."""

    largest_curvature = 1.0
    conjugate_square = 0.5
    is_square = True

    def value(self, y: Numbers, f: Numbers) -> Any:
        return 0.5 * (f - y) ** 2

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return f - y

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).ones_like(f - y)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        return self.conjugate_square * s**2 + y * s


@dataclass(frozen=True)
class HuberLoss(Loss):
    """``(y - f)^2 / 2`` up to an error of epsilon, and its tangent beyond."""

    epsilon: float = 0.1
    largest_curvature = 1.0
    conjugate_square = 0.5

    def validate(self) -> None:
        if not self.epsilon > 0.0:
            raise ValueError(f"epsilon={self.epsilon!r} leaves nothing of loss='huber'; give it a number above 0")

    def value(self, y: Numbers, f: Numbers) -> Any:
        xp = namespace_of(f)
        error = xp.abs(f - y)
        # Beyond epsilon the loss is the tangent of the square at epsilon.
        tangent = self.epsilon * error - 0.5 * self.epsilon**2
        return xp.where(error <= self.epsilon, 0.5 * error**2, tangent)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).clip(f - y, -self.epsilon, self.epsilon)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return _filled(namespace_of(f).abs(f - y) <= self.epsilon, 1.0, f - y)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        return namespace_of(s).where(namespace_of(s).abs(s) <= self.epsilon, self.conjugate_square * s**2 + y * s, inf)


@dataclass(frozen=True)
class EpsilonInsensitiveLoss(Loss):
    """``max(0, |y - f| - epsilon)``, the loss of `SVR` and `LinearSVR`."""

    epsilon: float = 0.1

    def value(self, y: Numbers, f: Numbers) -> Any:
        xp = namespace_of(f)
        return xp.clip(xp.abs(f - y) - self.epsilon, 0.0, None)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        xp, error = namespace_of(f), f - y
        return xp.where(xp.abs(error) > self.epsilon, xp.sign(error), 0.0 * error)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).zeros_like(f - y)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        return namespace_of(s).where(namespace_of(s).abs(s) <= 1.0, self.epsilon * namespace_of(s).abs(s) + y * s, inf)


class _LogLinkLoss(Loss):
    """Half the deviance of targets whose mean is exp(f): at least 0, and 0 where the mean is the target.

    A row of exposure e, whose mean is ``e exp(f)``, is fitted as a row with the target ``y / e``. Its weight is
    multiplied by e for counts (`counts_exposure`) and unchanged for gamma targets.
    """

    largest_curvature = inf
    varies = True
    counts_exposure: ClassVar[bool]

    def unknown(self, y: Any) -> Any:
        """Which targets are invalid: negative ones, and for the gamma loss also 0."""
        return y < 0.0 if self.counts_exposure else y <= 0.0


class PoissonLoss(_LogLinkLoss):
    """``exp(f) - y f + y log y - y`` for a count or rate y >= 0, the loss of `PoissonRegressor`."""

    counts_exposure = True

    def value(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).exp(f) - y * f + _entropy(y) - y

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).exp(f) - y

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).exp(f) + 0.0 * y

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        # The loss has the slope s where the mean exp(f) is y + s.
        xp = namespace_of(s)
        mean = xp.clip(y + s, 0.0, None)
        return xp.where(y + s >= 0.0, _entropy(mean) - mean - _entropy(y) + y, inf)


class GammaLoss(_LogLinkLoss):
    """``f + y exp(-f) - log y - 1`` for a target y > 0, the loss of `GammaRegressor`."""

    counts_exposure = False

    def value(self, y: Numbers, f: Numbers) -> Any:
        xp = namespace_of(f)
        return f + y * xp.exp(-f) - xp.log(y) - 1.0

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return 1.0 - y * namespace_of(f).exp(-f)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return y * namespace_of(f).exp(-f)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        # The loss has the slope s where y exp(-f) is 1 - s.
        xp = namespace_of(s)
        ratio = xp.clip(1.0 - s, 0.0, None)
        return xp.where(s <= 1.0, _entropy(ratio) - ratio + s * xp.log(y) + 1.0, inf)


def _entropy(y: Numbers) -> Any:
    """y log y, with 0 log 0 = 0."""
    xp = namespace_of(y)
    return y * xp.log(xp.where(y > 0.0, y, xp.ones_like(y)))


@dataclass(frozen=True)
class PinballLoss(Loss):
    """``max(q (y - f), (q - 1) (y - f))`` of the quantile q, the loss of `QuantileRegressor`."""

    quantile: Any = 0.5

    def value(self, y: Numbers, f: Numbers) -> Any:
        error = y - f
        return self.quantile * error - namespace_of(f).clip(error, None, 0.0)

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return _filled(f >= y, 1.0, f - y) - self.quantile

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).zeros_like(f - y)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        return namespace_of(s).where((-self.quantile <= s) & (s <= 1.0 - self.quantile), y * s, inf)


@dataclass(frozen=True)
class SmoothedPinballLoss(Loss):
    """The pinball loss with a parabola ``((y - f)^2 + h^2) / 4 h`` in place of ``|y - f| / 2`` for errors up to h.

    It is the maximum of ``a (y - f) - h (a - q + 1/2)^2 + h/4`` over q - 1 <= a <= q, so that it exceeds the pinball
    loss by at most h/4.

    Parameters
    ----------
    quantile : float or ndarray
        q, one number for all scores or one for each.
    width : float
        h, the largest error of the parabola.
    """

    quantile: Any = 0.5
    width: float = 0.1

    @property
    def largest_curvature(self) -> float:  # type: ignore[override]
        return 0.5 / self.width

    @property
    def curvature_unit(self) -> float:
        return 0.5 / self.width

    def value(self, y: Numbers, f: Numbers) -> Any:
        xp, error = namespace_of(f), y - f
        size = xp.abs(error)
        half = xp.where(size <= self.width, (error**2 + self.width**2) / (4.0 * self.width), 0.5 * size)
        return half + (self.quantile - 0.5) * error

    def slope(self, y: Numbers, f: Numbers) -> Any:
        return namespace_of(f).clip((f - y) / (2.0 * self.width), -0.5, 0.5) - (self.quantile - 0.5)

    def curvature(self, y: Numbers, f: Numbers) -> Any:
        return _filled(namespace_of(f).abs(f - y) <= self.width, 0.5 / self.width, f - y)

    def conjugate(self, y: Numbers, s: Numbers) -> Any:
        possible = (-self.quantile <= s) & (s <= 1.0 - self.quantile)
        parabola = self.width * (s + self.quantile - 0.5) ** 2 - 0.25 * self.width
        return namespace_of(s).where(possible, y * s + parabola, inf)


def newton_loss(name: str, epsilon: float = 0.1, quantiles: Any = None) -> Loss:
    """The loss for Newton steps: as `loss_of`, but "pinball" has a parabola in place of its kink.

    Parameters
    ----------
    name : str
    epsilon : float
        See `loss_of`; for "pinball" the width of the parabola.
    quantiles : sequence of float or None
        For "pinball" the quantile of each score.
    """
    return SmoothedPinballLoss(np.asarray(quantiles), epsilon) if name == "pinball" else loss_of(name, epsilon)


def answered(scores: np.ndarray, link: str, n_quantiles: int = 0) -> np.ndarray:
    """The predictions of a regression model from its scores (..., K).

    Parameters
    ----------
    scores : ndarray of shape (..., K)
    link : {"", "log", "sorted"}
        "log": scores are logarithms of means, and predictions the means. "sorted": scores are quantiles, which may
        cross where rows are few; sorted, they are nearer to the true ones (Chernozhukov et al. 2010).
    n_quantiles : int
        For "sorted" the number of neighbouring scores that belong to one target; 0 is all.
    """
    if link == "log":
        with np.errstate(over="ignore"):
            return np.exp(scores)
    if link != "sorted":
        return scores
    each = scores.reshape(*scores.shape[:-1], -1, n_quantiles or scores.shape[-1])
    return np.sort(each, axis=-1).reshape(scores.shape)


class SoftmaxLoss:
    """``log sum_k exp(f_k) - f_y`` of a row of class y with K scores f, the loss of `LogisticRegression`.

    Its functions are those of `Loss`, but targets are codes 0 .. K-1 and each row has K scores.
    """

    largest_curvature = 0.5

    def value(self, codes: Any, f: Any) -> Any:
        """The loss of each row, (n,), on the host or the GPU like the scores."""
        xp, top = namespace_of(f), f.max(axis=1, keepdims=True)
        own = xp.take_along_axis(f, codes[:, None], axis=1)
        return (xp.log(xp.sum(xp.exp(f - top), axis=1, keepdims=True)) + top - own)[:, 0]

    def slope(self, codes: Any, f: Any) -> Any:
        """The derivative by each score, (n, K): the probabilities, minus 1 at the row's class."""
        slope = self.shares(f)
        slope[namespace_of(f).arange(len(codes)), codes] -= 1.0
        return slope

    def curved(self, f: Any, moves: Any) -> Any:
        """The products of each row's Hessian by its scores f, diag(p) - p p^T, with moves of these scores: (n, K).

        p are the probabilities of the row; the Hessian does not depend on its class.
        """
        shares, xp = self.shares(f), namespace_of(f)
        return shares * (moves - xp.sum(shares * moves, axis=1, keepdims=True))

    def conjugate(self, codes: np.ndarray, s: np.ndarray) -> np.ndarray:
        """The maximum of ``s.f`` minus the loss, (n,): the negative entropy of s plus 1 at the row's class."""
        shares = s + (np.arange(s.shape[1]) == codes[:, None])
        possible = (shares >= 0.0).all(axis=1) & (np.abs(shares.sum(axis=1) - 1.0) < 1e-9)
        return np.where(possible, _entropy(np.clip(shares, 0.0, None)).sum(axis=1), inf)

    @staticmethod
    def shares(f: Any) -> Any:
        """The softmax of scores (n, K), or (K,) of one row: the probabilities of classes, in any array namespace."""
        xp = namespace_of(f)
        shares = xp.exp(f - xp.max(f, axis=-1, keepdims=True))
        return shares / xp.sum(shares, axis=-1, keepdims=True)


SOFTMAX = SoftmaxLoss()
# The losses that depend on the slack 1 - y f alone, so that the margin game can evaluate many intercepts on slacks that
# are computed once.
HINGES = {"hinge": HingeLoss(), "squared_hinge": SquaredHingeLoss()}
# The losses for classes whose scores become probabilities, by the logistic function or the softmax.
PROBABLE = ("log_loss", "softmax")


def loss_of(name: str, epsilon: float = 0.1) -> Loss:
    """The loss of that name.

    Parameters
    ----------
    name : str
        A name of the table `LOSSES` of `dkl.registry`, scikit-learn's where it has one.
    epsilon : float
        The parameter of "huber" and "epsilon_insensitive"; for "pinball" the quantile.
        Other losses ignore it.

    Raises
    ------
    ValueError
        If no loss has that name.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.solvers.losses import loss_of
    >>> hinge, y, f = loss_of("squared_hinge"), np.array([1.0, -1.0]), np.array([0.5, -3.0])
    >>> hinge.value(y, f), hinge.slope(y, f)
    (array([0.25, 0.  ]), array([-1.,  0.]))
    """
    if name not in LOSSES:
        raise ValueError(f"loss={name!r} is not a loss; the losses are {', '.join(LOSSES)}")
    kind = LOSSES[name].loss_class
    return kind(epsilon) if LOSSES[name].parameter else kind()


# The losses with a mean exp(f); their targets are not standardised.
LOG_LINK: dict[str, Any] = {name: loss_of(name) for name, entry in LOSSES.items() if entry.link == "log"}
