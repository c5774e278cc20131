"""Gradient ascent from many starts at once, one evaluation of heights and gradients a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dkl.kernels.device import array_module
from dkl.protocols.arrays import Array
from dkl.solvers.line_search import falls_enough

# points u (c, q) to their heights (c,) and gradients (c, q); to the nearest points that are allowed; to other heights
Gradient = Callable[[Array], tuple[Array, Array]]
Bounded = Callable[[Array], Array]
Judge = Callable[[Array], Array]

# Pairs of steps and gradient differences that the quasi-Newton method keeps, and the least product of such a pair that
# it divides by.
_MEMORY = 6
_LEAST = 1e-30
# Factors on the length of the next step of plain ascent, after one that gained and after one that did not.
_LONGER, _SHORTER = 1.3, 0.5


class Slope:
    """The function that is maximised, and the best point that each chain has visited; points are rows u (c, q).

    Arrays are NumPy's or CuPy's.

    Parameters
    ----------
    gradient : callable
        u -> (heights (c,), gradients (c, q)).
    bounded : callable
        u -> the nearest points that are allowed.
    judge : callable or None
        u -> heights (c,) that decide which point is the best, if other than the maximised ones (e.g. on held-out rows).

    """

    def __init__(self, gradient: Gradient, bounded: Bounded, judge: Judge | None = None) -> None:
        self._gradient = gradient
        self.bounded = bounded
        self._judge = judge
        self._best: Array | None = None
        self._height: Array | None = None

    def __call__(self, u: Array) -> tuple[Array, Array]:
        """Heights and gradients at u; the best points are kept."""
        v, gradient = self._gradient(u)
        # the ascent follows v, but its best point is the one that rows it has not seen find highest
        height = v if self._judge is None else self._judge(u)
        if self._best is None or self._height is None:
            self._best, self._height = u, height
        else:
            xp, higher = array_module(u), height > self._height
            self._best = xp.where(higher[:, None], u, self._best)
            self._height = xp.where(higher, height, self._height)
        return v, gradient

    @property
    def best_points(self) -> Array:
        """The best point of each chain, (c, q)."""
        return _visited(self._best)

    @property
    def best_heights(self) -> Array:
        """The heights there, (c,)."""
        return _visited(self._height)


def _visited(values: Array | None) -> Array:
    """The heights of the best points so far; minus infinity before the first evaluation."""
    if values is None:
        raise RuntimeError("the ascent has no best points yet: evaluate it once before they are asked for")
    return values


def row_norms(rows: Array) -> Array:
    """Lengths of rows, of shape (c, 1); never 0."""
    return array_module(rows).sqrt((rows * rows).sum(axis=1, keepdims=True)) + 1e-30


def langevin(slope: Slope, u: Array, steps: int, stride: float, *, noise: Callable[[], Array] | None = None) -> None:
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
        # of length 1 whatever the gradient's: potentials differ by orders of magnitude between data sets
        move = gradient / row_norms(gradient)
        if noise is not None:
            move = move + noise()
        u = slope.bounded(u + u.dtype.type(stride * (1.0 - t / steps)) * move)
    slope(u)


def polished(slope: Slope, u: Array, steps: int, length: float) -> None:
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
    # every chain has a length of its own, and one evaluation serves all of them
    for _ in range(steps - 1):
        trial = slope.bounded(u + lengths * gradient / row_norms(gradient))
        v, ahead = slope(trial)
        gains = (v > height)[:, None]
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        height = xp.maximum(height, v)
        lengths = lengths * xp.where(gains, u.dtype.type(_LONGER), u.dtype.type(_SHORTER))


def quasi_newton(slope: Slope, u: Array, steps: int, longest: float) -> None:
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
        gains = falls_enough(-height, -v, -promised)[:, None]
        pairs = pairs.joined(xp.where(gains, trial - u, 0), xp.where(gains, gradient - ahead, 0))
        u, gradient = xp.where(gains, trial, u), xp.where(gains, ahead, gradient)
        v = xp.where(gains[:, 0], height, v)
        # the quasi-Newton move where it ascends, cut to the longest length; else a step along the gradient
        newton = pairs.applied(gradient)
        ascends = (newton * gradient).sum(axis=1, keepdims=True) > 0
        bounded = newton * (u.dtype.type(longest) / row_norms(newton)).clip(None, 1)
        move = xp.where(gains, xp.where(ascends, bounded, _of_length(gradient, longest / 2)), move)
        share = xp.where(gains, u.dtype.type(1), share / 2)


def _of_length(move: Array, length: float) -> Array:
    """Moves of the same direction and a given length."""
    return move * (move.dtype.type(length) / row_norms(move))


@dataclass(frozen=True, eq=False)
class _Pairs:
    """The last steps of each chain, the falls of the gradient on them, and 1 / (step . fall), 0 where not concave."""

    steps: tuple[Array, ...]
    changes: tuple[Array, ...]
    inverses: tuple[Array, ...]

    def joined(self, step: Array, change: Array) -> _Pairs:
        """With one more pair, the oldest forgotten; zeros for chains that stayed where they were."""
        xp = array_module(step)
        product = (step * change).sum(axis=1, keepdims=True)
        # curvature along the step: where it is not clearly positive the pair would make the inverse Hessian indefinite
        sound = product > (1e-6 * row_norms(step) * row_norms(change)).clip(_LEAST, None)
        inverse = xp.where(sound, 1 / xp.where(sound, product, 1), 0).astype(step.dtype)
        kept = slice(-_MEMORY + 1, None)
        return _Pairs((*self.steps[kept], step), (*self.changes[kept], change), (*self.inverses[kept], inverse))

    def applied(self, gradient: Array) -> Array:
        """Minus the inverse Hessian, as the pairs describe it, times the gradient (Nocedal & Wright 2006, alg. 7.4)."""
        xp, move, shares = array_module(gradient), gradient, []
        memory = list(zip(self.steps, self.changes, self.inverses, strict=True))
        # gamma = s.y / y.y of the youngest sound pair scales the inverse Hessian that the recursion starts from
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
