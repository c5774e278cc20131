"""LandmarkFeatures: similarities to landmarks, each a weighted mean of cosines with its own pseudo-posterior."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from os import PathLike
from typing import Any, ClassVar, Literal, Self

import numpy as np

from dkl.bounds.certificate import Bounds
from dkl.bounds.similarity import landmark_bound
from dkl.data.dataset import Dataset
from dkl.features.families import Family
from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler
from dkl.methods.base import PoolLearner
from dkl.methods.bounds_mixin import Certified
from dkl.methods.landmarks.driver import (
    LandmarkDriver,
    LandmarkProblem,
    LandmarkState,
    Placement,
    PlacementDriver,
    PlacementProblem,
    even_shares,
    similarity_map,
)
from dkl.methods.parameters import LANDMARKS, Constraints, check_labels, check_waves, estimator
from dkl.methods.posterior.weights import minimised_t, pseudo_posterior
from dkl.methods.potential_sums import PotentialProblem
from dkl.methods.preparation.driver import SAMPLE_BYTES
from dkl.methods.preparation.learner import draw_pool
from dkl.methods.room import check_room
from dkl.methods.updating import Updated
from dkl.passes.loop import PlannedRun
from dkl.protocols.driver import Driver
from dkl.protocols.source import rows_within

Pool = Literal["own", "shared"]
# Candidates for n_candidates=None: of each landmark, or shared by all.
_CANDIDATES: dict[Pool, int] = {"own": 128, "shared": 2_048}


@estimator
class LandmarkFeatures(Certified, Updated, PoolLearner):
    """Similarities to landmarks, learned from the labels: as many columns as landmarks, in a few passes.

    Each candidate w of a landmark x_l is a similarity cos(w.(x_l - x)) with an empirical loss, which is low if it is
    large for rows of the landmark's class and small for others. Feature l is the mean of these cosines with weights
    proportional to exp(-beta sqrt(n) L(w)). For class labels only.

    Parameters
    ----------
    family : Family or None
        The prior, a family of Fourier features; None is ``Gaussian()`` with the median bandwidth.
    n_landmarks : int
        The most output columns, divided evenly among classes; a class with fewer rows uses all of them.
    n_candidates : int or None
        Frequencies of each landmark; None is 2,048 shared ones, or 128 for each landmark. With few candidates
        similarities are noisy if rows are many: on MNIST 4 v 9 64 own ones have 2.0 % of error, 2,048 shared ones 1.9,
        8,192 1.4.
    beta : float
        0 is the prior, an approximation of its kernel; larger values select more strongly: 1 if the prior is wrong or
        candidates are many, 0.1 if classes are many or candidates shared, of which all landmarks would otherwise choose
        the same few. Changing it needs no pass: see `with_beta`.
    landmarks : {"kmeans", "kmeans-joint", "random"}
        "kmeans": centroids of each class. "kmeans-joint": centroids of all rows, with the class of most weight at each.
        "random": rows drawn at random, the same number for each class; `bounds_` needs these.
    pool : {"own", "shared"}
        "shared": all landmarks have the same candidates, so that a row costs `n_candidates` cosines and sines whatever
        the number of landmarks. "own": each landmark has its own candidates, as in the paper.
    rounds : int
        The most passes of k-means over all rows, after it has converged on a sample; 0 uses the sample only.
    sigma_factors : sequence of float
        As in `AlignedFeatures`, for the candidates of each landmark.
    sums, scaling, max_rows, class_weight, dtype, device, random_state, checkpoint, progress, memory_limit
        As in `AlignedFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    landmarks_ : ndarray of shape (n_landmarks, d)
        In scaled coordinates.
    landmark_classes_ : ndarray of shape (n_landmarks,)
        Their labels.
    candidates_ : ndarray of shape (n_landmarks, n_candidates, d)
        Shared ones, too, as a view of one set.
    losses_ : ndarray of shape (n_landmarks, n_candidates)
        Between 0 and 1.
    weights_ : ndarray of shape (n_landmarks, n_candidates)
        The pseudo-posterior of each landmark.
    effective_features_ : ndarray of shape (n_landmarks,)
        1 / sum(weights^2).
    bounds_ : Bounds
        A bound on the expected loss of all similarities; empty for centroids, which have none. See `bounds`.
    frequencies_ : ndarray of shape (m, d)
        Of all landmarks, one below the other, without candidates of negligible weight.
    message_ : str
        How the landmarks were placed.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Letarte, Morvant & Germain 2019, "Pseudo-Bayesian learning with kernel Fourier transform as prior", section 4.2.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.landmarks.learner import LandmarkFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = LandmarkFeatures(n_landmarks=20, scaling="standard", random_state=0).fit(X, y)
    >>> learner.transform(X).shape
    (569, 20)
    >>> bool(learner.with_beta(10.0).effective_features_.mean() < learner.effective_features_.mean())
    True
    """

    _parameter_constraints: ClassVar[Constraints] = LANDMARKS
    _supervised: ClassVar[bool] = True

    family: Family | None = None
    n_landmarks: int = 200
    n_candidates: int | None = None
    beta: float = 0.3
    landmarks: Placement = "kmeans"
    _: KW_ONLY
    pool: Pool = "own"
    rounds: int = 5
    sigma_factors: Sequence[float] = (1.0,)
    sums: str | PathLike[str] | None = None

    @property
    def candidates_(self) -> np.ndarray:
        """The candidates of each landmark, (n_landmarks, n_candidates, d), formed on access."""
        W, L = self.pool_.projection.dense(), len(self.landmarks_)
        # shared candidates are stored once, whatever the number of landmarks
        return np.broadcast_to(W, (L, *W.shape)) if self._is_shared else W.reshape(L, self._n_candidates, -1)

    def bounds(self, eps: float = 0.05, *, t: float | None = None) -> Bounds:
        """A bound on the expected loss that holds for all similarities simultaneously.

        Parameters
        ----------
        eps : float
            The probability that the bound fails.
        t : float or None
            None is beta sqrt(n), for which the posterior minimises the bound; for beta = 0 it is sqrt(n).

        Returns
        -------
        Bounds
            Empty for centroids, which depend on all rows, and with `class_weight`.

        References
        ----------
        Letarte, Morvant & Germain 2019, section 4.2.
        """
        if self.landmarks != "random":
            return Bounds(
                why_none=f"landmarks={self.landmarks!r} are chosen by all rows, so that no theorem covers them; use "
                "landmarks='random'"
            )
        if why := self._why_no_bounds():
            return Bounds(why_none=why)
        n = self.total_weight_
        t = minimised_t(self.beta, n) if t is None else t
        # the choice of landmarks depends on the labels, since each class has the same number
        return Bounds([landmark_bound(self.losses_, self.weights_, n_rows=n, t=t, eps=eps, chosen_from=n)])

    def with_beta(self, beta: float) -> Self:
        """A fitted copy with another beta, without reading the rows.

        Parameters
        ----------
        beta : float
        """
        return self._chosen_again(beta=beta)

    def _replay(self, dataset: Dataset) -> tuple[Self, PlannedRun]:
        """The planned passes, while the rows for placing landmarks and the candidates are held together."""
        learner, plan = super()._replay(dataset)
        plan.holds(ChainMap(*plan.held))
        return learner, plan

    def planned_map(self, dataset: Dataset) -> FeatureMap:
        """A feature map of the largest size that `fit` can learn, with arbitrary frequencies."""
        pool = self._drawn(self._planned_family(), dataset, self.n_landmarks, seed=0)
        shape = (self.n_landmarks, self._n_candidates)
        weights = np.full(shape, 1.0 / self._n_candidates)
        return similarity_map(pool, np.zeros(shape), weights, self.dtype, shared=self._is_shared)

    @property
    def _is_shared(self) -> bool:
        return self.pool == "shared"

    @property
    def _n_candidates(self) -> int:
        """The number of candidates of each landmark."""
        return _CANDIDATES[self.pool] if self.n_candidates is None else self.n_candidates

    def _check_rest(self) -> None:
        check_waves(self)

    def _check_targets(self, dataset: Dataset) -> None:
        check_labels(self, dataset)

    def _drawn(self, family: Family, dataset: Dataset, n_landmarks: int, *, seed: int) -> FeatureMap:
        """The candidates of all landmarks; those of one landmark are consecutive, and spread over the bandwidths."""
        size = self._n_candidates * (1 if self._is_shared else n_landmarks)
        check_room(self, size, dataset.n_columns, n_points=n_landmarks)
        pool = draw_pool(family, size, dataset.n_columns, seed=seed, dtype=self.dtype, factors=self._factors)
        # the loss belongs to cos(w.(x_l - x)), which a pair represents, but not a cosine with one phase
        pool = replace(pool, activation="cos-sin", phases=None)
        if len(self._factors) == 1 or self._is_shared:
            return pool
        # candidates are drawn by bandwidth, and interleaved so that each landmark has some of all bandwidths
        return pool.take(np.arange(size).reshape(self._n_candidates, n_landmarks).T.ravel())

    def _learn(self, dataset: Dataset) -> None:
        self._take_targets(dataset)
        # wrong class weights are refused before any pass
        self._class_weights(dataset)
        scaler = self._prepare(dataset)
        placed = self._run(PlacementDriver(), self._placement(dataset, scaler), dataset, "landmarks")
        self.landmarks_, self.message_ = placed.points, placed.message
        self.landmark_classes_ = np.asarray(dataset.classes)[placed.codes]
        drawn = self._drawn(self.family_, dataset, len(placed.points), seed=self.seed_)
        self.pool_ = replace(drawn, scaler=scaler)
        if self._context.weighs:
            self._weigh(dataset)

    def _summing(self, dataset: Dataset) -> tuple[Driver[LandmarkProblem, LandmarkState], LandmarkProblem]:
        """The losses of the candidates around the placed landmarks."""
        classes = np.asarray(self.classes_)
        class_weight = self._class_weights(dataset)
        potentials = PotentialProblem(self.pool_, len(classes), class_weight=class_weight, dtype=self.dtype)
        # classes are sorted, so the position of a landmark's label among them is its code
        codes = np.searchsorted(classes, self.landmark_classes_)
        centroids = self.landmarks != "random"
        problem = LandmarkProblem(potentials, self.landmarks_, codes, centroids=centroids, shared=self._is_shared)
        return LandmarkDriver(), problem

    def _weigh(self, dataset: Dataset) -> None:
        """Compute the losses around the placed landmarks, and the weights from them."""
        state: Any = self._state_of_sums(*self._summing(dataset), dataset, "losses")
        self.losses_, self.angles_, self.total_weight_ = state.losses, state.angles, state.total
        self._choose()

    def _choose(self) -> None:
        """Set the pseudo-posterior of each landmark's candidates, and the feature map of the resulting similarities."""
        self.weights_ = pseudo_posterior(self.losses_, self.beta, self.total_weight_)
        # 1 / sum(q^2), the effective number of candidates in a landmark's similarity
        self.effective_features_ = 1.0 / np.square(self.weights_).sum(axis=1)
        self.feature_map_ = similarity_map(self.pool_, self.angles_, self.weights_, self.dtype, shared=self._is_shared)

    def _placement(self, dataset: Dataset, scaler: Scaler | None) -> PlacementProblem:
        """The placement of landmarks, from the parameters."""
        totals, class_weight = np.asarray(dataset.class_weights, dtype=np.float64), self._class_weights(dataset)
        shares = even_shares(self.n_landmarks, totals if class_weight is None else totals * class_weight)
        is_joint = self.landmarks == "kmeans-joint"
        # a sample of each class must contain its landmarks; centroids start from as many rows as fit in 8 MiB
        wanted = int(shares.sum() if is_joint else shares.max())
        if self.landmarks != "random":
            wanted = max(wanted, rows_within(SAMPLE_BYTES, dataset.source) // (1 if is_joint else len(shares)))
        return PlacementProblem(
            placement=self.landmarks,
            shares=shares,
            n_rows=dataset.n_rows,
            n_columns=dataset.n_columns,
            sample_rows=min(wanted, dataset.n_rows),
            rounds=self.rounds,
            scaler=scaler,
            class_weight=class_weight,
            seed=self.seed_,
            is_sparse=dataset.source.is_sparse,
        )
