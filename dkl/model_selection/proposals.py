"""Proposes the next trials: by the upper confidence bound of a Gaussian process on the scores so far."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import RandomState

from dkl.features.frequencies import stream
from dkl.kernels.threads import one_blas_thread
from dkl.model_selection.space import Space

# The bound is evaluated at _CANDIDATES random points, and gradient ascents start from the best _ASCENTS of them.
_CANDIDATES = 4_000
_ASCENTS = 2
# The number of additional starts in the fit of the process's length scales, whose likelihood has several maxima.
_RESTARTS = 1
# Scores are raised to at least the median minus _SPREAD times the distance of the best score from the median.
_SPREAD = 3.0


@dataclass(frozen=True, eq=False)
class Proposer:
    """Proposes the trials of a search, as a pure function of the seed and of the scores so far.

    Parameters
    ----------
    space : Space
    seed : int
    n_initial : int
        The number of first trials, a Latin hypercube: each dimension has `n_initial` slices with one trial each.
    kappa : float
        The number of standard deviations by which the upper confidence bound exceeds the mean.

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
    kappa: float = 1.0

    def propose(self, points: np.ndarray, scores: np.ndarray, count: int) -> np.ndarray:
        """The next `count` points, or fewer if the space has no more.

        Several points are chosen one after another, as if earlier ones had scored the mean of the process there.

        Parameters
        ----------
        points : ndarray of shape (n, width)
            The points of all trials so far, in their order.
        scores : ndarray of shape (n,)
            Larger is better; NaN for a failed trial, which is treated like the worst score.

        Returns
        -------
        ndarray of shape (count, width)
        """
        first, so_far = len(points), [*points]
        bound = self._bound(points, scores) if first else None
        for number in range(first, first + count):
            point = self._point(number, np.reshape(so_far, (len(so_far), self.space.width)), bound)
            if point is None:
                break
            so_far.append(point)
        return np.reshape(so_far[first:], (len(so_far) - first, self.space.width))

    def _bound(self, points: np.ndarray, scores: np.ndarray) -> _Bound | None:
        """The bound of a process fitted to the scores so far; None while there are too few."""
        finite = scores[np.isfinite(scores)]
        if len(finite) == 0 or len(points) < min(self.n_initial, 2):
            return None
        # A failed trial gets the worst score so far. Very low scores are raised: otherwise a process that fits them
        # treats the differences between good trials as noise.
        lowest = np.median(finite) - _SPREAD * max(finite.max() - np.median(finite), np.finfo(float).tiny)
        levels = np.maximum(np.where(np.isfinite(scores), scores, -np.inf), max(lowest, finite.min()))
        # The prior of the process has mean 0 and variance 1.
        levels = (levels - levels.mean()) / (levels.std() or 1.0)
        with one_blas_thread():
            return _Bound.fitted(self.space, points, levels, self._random(len(points), "process"), self.kappa)

    def _point(self, number: int, so_far: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        """The point of trial `number`, different from all in `so_far`; None if none is found (see `_untried`)."""
        tried = {point.tobytes() for point in so_far}
        if number < self.n_initial:
            point = self.space.rounded(self._design()[number])[0]
        elif bound is None:
            point = self.space.rounded(self._random(number, "points").random_sample((1, self.space.width)))[0]
        else:
            with one_blas_thread():
                point = bound.with_pending(so_far).best(self._random(number, "acquisition"))
        return point if point.tobytes() not in tried else self._untried(number, tried, so_far, bound)

    def _untried(self, number: int, tried: set[bytes], so_far: np.ndarray, bound: _Bound | None) -> np.ndarray | None:
        """An untried point: the one with the largest bound among many random ones.

        None if all points of the space were tried, or all of these random ones.
        """
        if len(tried) >= self.space.size:
            return None
        points = self.space.rounded(self._random(number, "untried").random_sample((_CANDIDATES, self.space.width)))
        free = np.array([point.tobytes() not in tried for point in points])
        if not free.any():
            return None
        if bound is None:
            return points[free][0]
        with one_blas_thread():
            return points[free][int(np.argmax(bound.with_pending(so_far).of(points[free])))]

    def _design(self) -> np.ndarray:
        """A Latin hypercube of `n_initial` points."""
        # Every dimension is cut into as many slices as there are points, with one point in each slice, so that the
        # first trials cover the range of each parameter evenly.
        rng = stream(self.seed, "initial trials")
        slices = np.stack([rng.permutation(self.n_initial) for _ in range(max(self.space.width, 1))], axis=1)
        return (slices[:, : self.space.width] + rng.random((self.n_initial, self.space.width))) / self.n_initial

    def _random(self, number: int, purpose: str) -> RandomState:
        # The optimiser and scikit-learn's processes need this older class of generators. Each trial has a stream of its
        # own, so that a continued search draws the same numbers.
        return RandomState(int(stream(self.seed, f"{purpose} of trial {number}").integers(2**32)))


@dataclass(frozen=True, eq=False)
class _Bound:
    """The upper confidence bound mu(x) + kappa sigma(x) of a Gaussian process fitted to the scores so far."""

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

        # Scores are smooth but not analytic functions of most parameters: a Matern kernel with two derivatives. Each
        # dimension has its own length scale, and the noise of the folds is fitted too.
        smooth = Matern(np.ones(space.width), length_scale_bounds=(0.05, 20.0), nu=2.5)
        # Points with the same parameters (after rounding to whole numbers or choices) are one point of the process.
        kernel = wrap_kernel(smooth, space.rounded) + WhiteKernel(1e-2, (1e-6, 1.0))
        process = GaussianProcessRegressor(kernel, n_restarts_optimizer=_RESTARTS, random_state=random)
        with warnings.catch_warnings():
            # scikit-learn warns of length scales at their bounds, where a dimension has hardly any effect, or
            # effects at all scales.
            warnings.simplefilter("ignore")
            process.fit(points, levels)
        return cls(space, process, points, levels, kappa)

    def with_pending(self, so_far: np.ndarray) -> _Bound:
        """The bound as if all points after those of the fit had scored the mean of the process there."""
        from sklearn.gaussian_process import GaussianProcessRegressor

        pending = so_far[len(self.points) :]
        if len(pending) == 0:
            return self
        # GP-BUCB (Desautels et al. 2014): a score equal to the mean does not change the mean, but lowers the deviation
        # near the pending points, so that a batch spreads out. Length scales are not fitted to such scores.
        levels = np.concatenate([self.levels, self.process.predict(pending)])
        process = GaussianProcessRegressor(self.process.kernel_, optimizer=None).fit(so_far, levels)
        return replace(self, process=process)

    def of(self, points: np.ndarray) -> np.ndarray:
        """The bound at points (n, width), of shape (n,)."""
        mean, deviation = self.process.predict(points, return_std=True)
        return mean + self.kappa * deviation

    def best(self, random: RandomState) -> np.ndarray:
        """The point with the largest bound among random points, and after gradient ascents from the best of these."""
        from bayes_opt.acquisition import UpperConfidenceBound
        from bayes_opt.target_space import TargetSpace

        cube = TargetSpace(None, {f"{place:03d}": (0.0, 1.0) for place in range(self.space.width)})
        # The library needs a registered point in the space, although the process has been fitted already.
        cube.register(self.points[0], self.levels[0])
        highest = UpperConfidenceBound(self.kappa).suggest(
            self.process, cube, n_random=_CANDIDATES, n_smart=_ASCENTS, fit_gp=False, random_state=random
        )
        return self.space.rounded(highest)[0]
