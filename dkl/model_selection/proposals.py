"""What to try next: a Gaussian process on the scores so far and its upper confidence bound, or random points."""

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

# The acquisition is evaluated at so many random points, and a gradient ascent starts from the best few of them.
_CANDIDATES = 4_000
_ASCENTS = 2
# Starts of the fit of the process's length scales beside the default one: its likelihood has more than one maximum.
_RESTARTS = 1
# A score that is below the median by more than so many times what the best is above it counts as no worse than that.
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
        first, taken = len(points), [*points]
        bound = self._bound(points, scores) if self.acquisition == "ucb" and first else None
        for number in range(first, first + count):
            point = self._point(number, np.reshape(taken, (len(taken), self.space.width)), bound)
            if point is None:
                break
            taken.append(point)
        return np.reshape(taken[first:], (len(taken) - first, self.space.width))

    def _bound(self, points: np.ndarray, scores: np.ndarray) -> _Bound | None:
        """The bound of a process on the scores so far; None while they are too few for one."""
        known = scores[np.isfinite(scores)]
        if len(known) == 0 or len(points) < min(self.n_initial, 2):
            return None
        # A failed trial counts as the worst that is known. A very bad score is raised to a level below the median:
        # a process that has to fit such depths takes all differences among the good trials for noise.
        lowest = np.median(known) - _SPREAD * max(known.max() - np.median(known), np.finfo(float).tiny)
        levels = np.maximum(np.where(np.isfinite(scores), scores, -np.inf), max(lowest, known.min()))
        # The prior of the process has mean 0 and variance 1.
        levels = (levels - levels.mean()) / (levels.std() or 1.0)
        with one_blas_thread():
            return _Bound.fitted(self.space, points, levels, self._random(len(points), "process"), self.kappa)

    def _point(self, number: int, taken: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        """Trial `number`: none of those that are taken, None where all are."""
        tried = {point.tobytes() for point in taken}
        if number < self.n_initial:
            point = self.space.rounded(self._design()[number])[0]
        elif bound is None:
            point = self.space.rounded(self._random(number, "points").random_sample((1, self.space.width)))[0]
        else:
            with one_blas_thread():
                point = bound.believing(taken).best(self._random(number, "acquisition"))
        return point if point.tobytes() not in tried else self._untried(number, tried, taken, bound)

    def _untried(self, number: int, tried: set[bytes], taken: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        """A point that stands for other values than all trials so far: the best of many random ones by the bound."""
        if len(tried) >= self.space.size:
            return None
        points = self.space.rounded(self._random(number, "untried").random_sample((_CANDIDATES, self.space.width)))
        free = np.array([point.tobytes() not in tried for point in points])
        if not free.any():
            return None
        if bound is None:
            return points[free][0]
        with one_blas_thread():
            return points[free][int(np.argmax(bound.believing(taken).of(points[free])))]

    def _design(self) -> np.ndarray:
        """A Latin hypercube of `n_initial` points."""
        # Every dimension is cut into as many slices as there are points, and each slice holds one of them: the first
        # trials cover the range of each parameter evenly, however many parameters there are.
        rng = stream(self.seed, "initial trials")
        slices = np.stack([rng.permutation(self.n_initial) for _ in range(max(self.space.width, 1))], axis=1)
        return (slices[:, : self.space.width] + rng.random((self.n_initial, self.space.width))) / self.n_initial

    def _random(self, number: int, purpose: str) -> RandomState:
        # The optimiser and scikit-learn's processes take this older kind of generator. Each trial has a stream of its
        # own, so that a search which is taken up again draws the same numbers.
        return RandomState(int(stream(self.seed, f"{purpose} of trial {number}").integers(2**32)))


@dataclass(frozen=True, eq=False)
class _Bound:
    """The upper confidence bound mu(x) + kappa sigma(x) of a Gaussian process that was fitted to the scores so far."""

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

        # Scores change smoothly, not analytically, with most parameters: a Matern kernel of two derivatives. Each
        # dimension has a length of its own, and the noise of the folds is fitted too.
        smooth = Matern(np.ones(space.width), length_scale_bounds=(0.05, 20.0), nu=2.5)
        # Points that stand for the same values (of a whole number, of a choice) are one point to the process.
        kernel = wrap_kernel(smooth, space.rounded) + WhiteKernel(1e-2, (1e-6, 1.0))
        process = GaussianProcessRegressor(kernel, n_restarts_optimizer=_RESTARTS, random_state=random)
        with warnings.catch_warnings():
            # scikit-learn warns of a length at its bound, which only says that a dimension hardly matters, or matters
            # everywhere.
            warnings.simplefilter("ignore")
            process.fit(points, levels)
        return cls(space, process, points, levels, kappa)

    def believing(self, taken: np.ndarray) -> _Bound:
        """The bound as if all points behind the known ones had scored their means: its mean stays, its width falls."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        pending = taken[len(self.points) :]
        if len(pending) == 0:
            return self
        # GP-BUCB (Desautels et al. 2014): a score equal to the mean leaves the mean as it is, and lowers the deviation
        # around the pending points, so that a batch spreads out. The lengths are not fitted to such scores.
        levels = np.concatenate([self.levels, self.process.predict(pending)])
        process = GaussianProcessRegressor(self.process.kernel_, optimizer=None).fit(taken, levels)
        return replace(self, process=process)

    def of(self, points: np.ndarray) -> np.ndarray:
        """The bound at points (n, width), of shape (n,)."""
        mean, deviation = self.process.predict(points, return_std=True)
        return mean + self.kappa * deviation

    def best(self, random: RandomState) -> np.ndarray:
        """The point with the largest bound, as far as random points and ascents from the best of them say."""
        from bayes_opt.acquisition import UpperConfidenceBound
        from bayes_opt.target_space import TargetSpace

        cube = TargetSpace(None, {f"{place:03d}": (0.0, 1.0) for place in range(self.space.width)})
        # The library proposes nothing for a space without a point, though the process has been fitted to all of them.
        cube.register(self.points[0], self.levels[0])
        highest = UpperConfidenceBound(self.kappa).suggest(
            self.process, cube, n_random=_CANDIDATES, n_smart=_ASCENTS, fit_gp=False, random_state=random
        )
        return self.space.rounded(highest)[0]
