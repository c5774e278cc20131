"""What to try next: a Gaussian process on the scores so far and an upper confidence bound, or plain random points."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.random import RandomState

from dkl.features.frequencies import stream
from dkl.kernels.blas import one_blas_thread
from dkl.model_selection.space import Space

Acquisition = Literal["ucb", "random"]

# points that an acquisition is evaluated at before the best of them are climbed from
_CANDIDATES = 4_000
_CLIMBS = 2
_RESTARTS = 1
# scores lower than the median by more than so many times what the best is above it say no more than that
_SPREAD = 3.0


@dataclass(frozen=True, eq=False)
class Proposer:
    """Says what the trials of a search are: a pure function of the seed and of the scores that are known.

    Parameters
    ----------
    space : Space
    seed : int
    n_initial : int
        The first trials: one in each of so many slices of every dimension (a Latin hypercube).
    acquisition : {"ucb", "random"}
    kappa : float
        How many standard deviations above its mean a point is hoped to score.

    References
    ----------
    Srinivas, Krause, Kakade & Seeger 2010, "Gaussian process optimization in the bandit setting"; Desautels, Krause &
    Burdick 2014, "Parallelizing exploration-exploitation tradeoffs in Gaussian process bandit optimization".

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.model_selection.proposals import Proposer
    >>> from dkl.model_selection.space import space_of
    >>> proposer = Proposer(space_of({"x": (0.0, 1.0)}), seed=0, n_initial=3)
    >>> proposer.propose(np.empty((0, 1)), np.empty(0), 3).shape
    (3, 1)
    """

    space: Space
    seed: int = 0
    n_initial: int = 5
    acquisition: Acquisition = "ucb"
    kappa: float = 1.0

    def propose(self, points: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
        """The next `count` points, fewer where the space holds no more.

        Several at once are chosen in turn, each as if those before it had scored what the process expects of them.

        Parameters
        ----------
        points : ndarray of shape (n, width)
            Of all trials so far, in their order.
        scores : ndarray of shape (n,)
            The larger the better; NaN for a trial that failed, which counts as the worst.

        Returns
        -------
        ndarray of shape (count, width)
        """
        first, chosen = len(points), [*points]
        bound = self._bound(points, scores) if self.acquisition == "ucb" and first else None
        for number in range(first, first + count):
            point = self._point(number, np.reshape(chosen, (len(chosen), self.space.width)), bound)
            if point is None:
                break
            chosen.append(point)
        return np.reshape(chosen[first:], (len(chosen) - first, self.space.width))

    def _bound(self, points: np.ndarray, scores: np.ndarray) -> _Bound | None:
        known = _levelled(scores)
        if known is None or len(points) < min(self.n_initial, 2):
            return None
        with one_blas_thread():
            return _Bound.fitted(self.space, points, known, self._random(len(points), "process"), self.kappa)

    def _point(self, number: int, taken: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        """Trial `number`: none of those that are taken, None where all are."""
        seen = {point.tobytes() for point in taken}
        if number < self.n_initial:
            point = self.space.rounded(self._design()[number])[0]
        elif bound is None:
            point = self.space.rounded(self._random(number, "points").random_sample((1, self.space.width)))[0]
        else:
            with one_blas_thread():
                point = bound.believing(taken).best(self._random(number, "acquisition"))
        return point if point.tobytes() not in seen else self._untried(number, seen, taken, bound)

    def _untried(self, number: int, seen: set[bytes], taken: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        if len(seen) >= self.space.size:
            return None
        points = self.space.rounded(self._random(number, "untried").random_sample((_CANDIDATES, self.space.width)))
        free = np.array([point.tobytes() not in seen for point in points])
        if not free.any():
            return None
        if bound is None:
            return points[free][0]
        with one_blas_thread():
            return points[free][int(np.argmax(bound.believing(taken).of(points[free])))]

    def _design(self) -> np.ndarray:
        """A Latin hypercube of `n_initial` points."""
        rng = stream(self.seed, "initial trials")
        slices = np.stack([rng.permutation(self.n_initial) for _ in range(max(self.space.width, 1))], axis=1)
        return (slices[:, : self.space.width] + rng.random((self.n_initial, self.space.width))) / self.n_initial

    def _random(self, number: int, purpose: str) -> RandomState:
        # the optimiser and scikit-learn's processes take this older kind of generator
        return RandomState(int(stream(self.seed, f"{purpose} of trial {number}").integers(2**32)))


def _levelled(scores: np.ndarray) -> np.ndarray | None:
    """Scores of mean 0 and deviation 1, without the failed and without depths that would hide all differences above."""
    known = scores[np.isfinite(scores)]
    if len(known) == 0:
        return None
    lowest = np.median(known) - _SPREAD * max(known.max() - np.median(known), np.finfo(float).tiny)
    levels = np.maximum(np.where(np.isfinite(scores), scores, -np.inf), max(lowest, known.min()))
    return (levels - levels.mean()) / (levels.std() or 1.0)


@dataclass(frozen=True, eq=False)
class _Bound:
    """The upper confidence bound of a fitted process."""

    space: Space
    process: Any
    points: np.ndarray
    levels: np.ndarray
    kappa: float

    @classmethod
    def fitted(cls, space: Space, points: np.ndarray, levels: np.ndarray, random: RandomState, kappa: float) -> _Bound:
        from bayes_opt.parameter import wrap_kernel
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import Matern, WhiteKernel

        smooth = Matern(np.ones(space.width), length_scale_bounds=(0.05, 20.0), nu=2.5)
        # values that mean the same (a whole number, a choice) are one point to the process
        kernel = wrap_kernel(smooth, space.rounded) + WhiteKernel(1e-2, (1e-6, 1.0))
        process = GaussianProcessRegressor(kernel, n_restarts_optimizer=_RESTARTS, random_state=random)
        with warnings.catch_warnings():
            # a length at its bound says that a dimension hardly matters, or matters everywhere
            warnings.simplefilter("ignore")
            process.fit(points, levels)
        return cls(space, process, points, levels, kappa)

    def believing(self, taken: np.ndarray) -> _Bound:
        """The bound as if all points behind the known ones had scored their means: its mean stays, its width falls."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        pending = taken[len(self.points) :]
        if len(pending) == 0:
            return self
        levels = np.concatenate([self.levels, self.process.predict(pending)])
        process = GaussianProcessRegressor(self.process.kernel_, optimizer=None).fit(taken, levels)
        return replace(self, process=process)

    def of(self, points: np.ndarray) -> np.ndarray:
        mean, deviation = self.process.predict(points, return_std=True)
        return mean + self.kappa * deviation

    def best(self, random: RandomState) -> np.ndarray:
        """The point with the largest bound, as far as random points and climbs from the best of them say."""
        from bayes_opt.acquisition import UpperConfidenceBound
        from bayes_opt.target_space import TargetSpace

        cube = TargetSpace(None, {f"{place:03d}": (0.0, 1.0) for place in range(self.space.width)})
        # it proposes nothing without a point, though the process has been fitted to all
        cube.register(self.points[0], self.levels[0])
        chosen = UpperConfidenceBound(self.kappa).suggest(
            self.process, cube, n_random=_CANDIDATES, n_smart=_CLIMBS, fit_gp=False, random_state=random
        )
        return self.space.rounded(chosen)[0]
