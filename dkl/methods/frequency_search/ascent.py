"""Ways up a landscape for many points at once, one evaluation of heights and gradients a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dkl.kernels.device import array_module

Climb = Callable[[Any], tuple[Any, Any]]
Bounded = Callable[[Any], Any]
Judge = Callable[[Any], Any]

# pairs of steps and gradients that the quasi-Newton method remembers, the share of the promised gain it asks for, and
# the least curvature (times step^2) that it divides by
_MEMORY = 6
_SUFFICIENT = 1e-4
_LEAST = 1e-30
# what a gaining and a failing step of plain ascent do to the next one
_LONGER, _SHORTER = 1.3, 0.5


class Slope:
    """What is climbed, and the best point that each chain has visited; points are rows u (c, q), NumPy's or CuPy's.

    Parameters
    ----------
    climb : callable
        u -> (heights (c,), gradients (c, q)).
    bounded : callable
        u -> the nearest points that are allowed.
    judge : callable or None
        u -> the heights (c,) by which the best is told, where these are others (those on held-out rows).

    Attributes
    ----------
    best, height : arrays of shape (c, q) and (c,)
    """

    def __init__(self, climb: Climb, bounded: Bounded, judge: Judge | None = None) -> None:
        self._climb = climb
        self.bounded = bounded
        self._judge = judge
        self.best: Any = None
        self.height: Any = None

    def __call__(self, u: Any) -> tuple[Any, Any]:
        """Heights and gradients at u; the best points are kept."""
        v, gradient = self._climb(u)
        height = v if self._judge is None else self._judge(u)
        if self.best is None:
            self.best, self.height = u, height
        else:
            xp, higher = array_module(u), height > self.height
            self.best = xp.where(higher[:, None], u, self.best)
            self.height = xp.where(higher, height, self.height)
        return v, gradient


def row_norms(rows: Any) -> Any:
    """Lengths of rows, of shape (c, 1); never 0."""
    return array_module(rows).sqrt((rows * rows).sum(axis=1, keepdims=True)) + 1e-30


def langevin(slope: Slope, u: Any, steps: int, stride: float, *, noise: Callable[[], Any] | None = None) -> None:
    """Steps along the gradient of given length, decayed to zero, with noise.

    Parameters
    ----------
    slope : Slope
        Keeps the best point visited.
    u : array of shape (c, q)
        Where to start.
    steps : int
        Evaluations.
    stride : float
        Length of the first step; step t has (1 - t / steps) of it.
    noise : callable or None
        Draws (c, q) numbers, relative to the step.

    Notes
    -----
    Bullins, Zhang & Zhang 2018, Algorithm 1: w + zeta grad v + sqrt(2 zeta / xi) z (the root is lost in print). Here
    zeta = length / |grad v| and, for noise of relative length r in q columns, xi = 2 q / (r^2 zeta |grad v|^2).
    """
    for t in range(steps - 1):
        gradient = slope(u)[1]
        move = gradient / row_norms(gradient)
        if noise is not None:
            move = move + noise()
        u = slope.bounded(u + u.dtype.type(stride * (1.0 - t / steps)) * move)
    slope(u)


def polished(slope: Slope, u: Any, steps: int, length: float) -> None:
    """Plain ascent: a step that gains is kept and the next one longer, else it is halved.

    Parameters
    ----------
    slope, u, steps
        As of `langevin`.
    length : float
        Of the first step.
    """
    xp = array_module(u)
    lengths = xp.full((len(u), 1), length, dtype=u.dtype)
    height, gradient = slope(u)
    for _ in range(steps - 1):
        trial = slope.bounded(u + lengths * gradient / row_norms(gradient))
        v, ahead = slope(trial)
        gains = (v > height)[:, None]
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        height = xp.maximum(height, v)
        lengths = lengths * xp.where(gains, u.dtype.type(_LONGER), u.dtype.type(_SHORTER))


def quasi_newton(slope: Slope, u: Any, steps: int, longest: float) -> None:
    """Limited-memory BFGS from every start; a step that does not gain enough is tried again at half its length.

    Parameters
    ----------
    slope, u, steps
        As of `langevin`.
    longest : float
        No step is longer; the first has half this length.
    """
    xp = array_module(u)
    v, gradient = slope(u)
    # heights differ by orders of magnitude between data sets: in units of the first gradient nothing underflows
    unit = 1 / row_norms(gradient)
    v, gradient, share, pairs = v * unit[:, 0], gradient * unit, xp.ones_like(unit), _Pairs((), (), ())
    move = _of_length(gradient, longest / 2)
    for _ in range(steps - 1):
        trial = slope.bounded(u + share * move)
        height, ahead = slope(trial)
        height, ahead = height * unit[:, 0], ahead * unit
        promised = (share * move * gradient).sum(axis=1)
        gains = (height >= v + _SUFFICIENT * promised)[:, None]
        pairs = pairs.joined(xp.where(gains, trial - u, 0), xp.where(gains, gradient - ahead, 0))
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        v = xp.where(gains[:, 0], height, v)
        move = xp.where(gains, _uphill(pairs.applied(gradient), gradient, longest), move)
        share = xp.where(gains, u.dtype.type(1), share / 2)


def _of_length(move: Any, length: float) -> Any:
    return move * (move.dtype.type(length) / row_norms(move))


def _uphill(move: Any, gradient: Any, longest: float) -> Any:
    """The moves that climb, not too long; a step along the gradient in place of the others."""
    xp = array_module(move)
    climbs = (move * gradient).sum(axis=1, keepdims=True) > 0
    bounded = move * (move.dtype.type(longest) / row_norms(move)).clip(None, 1)
    return xp.where(climbs, bounded, _of_length(gradient, longest / 2))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The last steps of each chain, what they took off the gradient, and 1 / (step . change), 0 where not concave."""

    steps: tuple[Any, ...]
    changes: tuple[Any, ...]
    inverses: tuple[Any, ...]

    def joined(self, step: Any, change: Any) -> _Pairs:
        """With one more pair, the oldest forgotten; zeros for chains that stayed where they were."""
        xp = array_module(step)
        product = (step * change).sum(axis=1, keepdims=True)
        sound = product > (1e-6 * row_norms(step) * row_norms(change)).clip(_LEAST, None)
        inverse = xp.where(sound, 1 / xp.where(sound, product, 1), 0).astype(step.dtype)
        kept = slice(-_MEMORY + 1, None)
        return _Pairs((*self.steps[kept], step), (*self.changes[kept], change), (*self.inverses[kept], inverse))

    def applied(self, gradient: Any) -> Any:
        """Minus the inverse Hessian, as the pairs describe it, times the gradient (Nocedal & Wright 2006, alg. 7.4)."""
        xp, move, shares = array_module(gradient), gradient, []
        memory = list(zip(self.steps, self.changes, self.inverses, strict=True))
        factor = xp.ones_like(move[:, :1])
        for _, change, inverse in memory:
            size = inverse * (change * change).sum(axis=1, keepdims=True)
            factor = xp.where(size > 0, 1 / xp.where(size > 0, size, 1), factor)
        for step, change, inverse in reversed(memory):
            shares.append(inverse * (step * move).sum(axis=1, keepdims=True))
            move = move - shares[-1] * change
        move = move * factor
        for (step, change, inverse), share in zip(memory, reversed(shares), strict=True):
            move = move + step * (share - inverse * (change * move).sum(axis=1, keepdims=True))
        return move
