"""AlignedFeatures: candidates weighed by their alignment with the targets, within a divergence ball.

From `fit` to a sine (`tests/test_architecture.py` checks that these functions exist):

    methods/base.py: FeatureLearner.fit, SelectingLearner._weigh
    methods/potential_sums.py: AlignmentDriver.request, potential_sums, AlignmentDriver.step
    passes/loop.py: Run.drive, run_pass, sum_blocks
    kernels/sums.py: feature_sums
    kernels/sincos.py: add_sums

The alignments that `step` returns become weights and features here, in `AlignedFeatures._choose`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dkl.bounds.alignment import alignment_deviation, alignment_gap, rademacher_bound
from dkl.bounds.certificate import Bounds
from dkl.bounds.pair_loss import divergence_bound
from dkl.data.dataset import Dataset
from dkl.features.families import Family
from dkl.methods.base import SelectingLearner
from dkl.methods.bounds_mixin import Certified, why_no_waves
from dkl.methods.choice import Estimator, block_means
from dkl.methods.parameters import ALIGNED, Constraints, check_finite_pool, estimator, family_of
from dkl.methods.potential_sums import AlignmentDriver, PotentialProblem, PotentialState
from dkl.protocols.driver import Driver
from dkl.solvers.kernel_alignment import divergence, effective_features, maximise_alignment

# The default radius rho of the divergence ball, as a share of the number of candidates.
RHO_SHARE = 0.005

# S of two labels: a matrix over the classes, or a function of two labels.
Similarity = np.ndarray | Sequence[Sequence[float]] | Callable[[Any, Any], float]


@estimator
class AlignedFeatures(Certified, SelectingLearner):
    """Features with the highest alignment with the targets, chosen from random candidates in one pass over the rows.

    The weights q maximise the alignment of the kernel with the targets among all with D_f(q || uniform) <= rho,
    f(t) = t^k - 1. Features are then the support of q with amplitudes sqrt(q), or drawn from q where the support has
    more columns than `n_features`.

    Parameters
    ----------
    family : Family or None
        Distribution of the candidates; None is ``Gaussian()`` with the median bandwidth.
    n_candidates : int or None
        Frequencies in the pool. None, only for the finite families ``Coordinates()`` and ``SphericalHarmonics()``, is
        each column or harmonic once; harmonics are then weighted in the family's blocks.
    n_features : int or None
        Output columns, an upper bound (a cosine-sine pair takes two); None keeps the support of q.
    rho : float or None
        Radius of the divergence ball: 0 is plain sampling, larger values select more strongly. None is 0.005 D for D
        candidates (or blocks of candidates). For k below 2 it is (1 + 0.005 D)^(k-1) - 1, for which the support has the
        same least size, D / (1 + 0.005 D).
    k : float
        Order of the divergence, > 1. Values below 2 are those of Letarte, Morvant & Germain; then no weights have a
        divergence above D^(k-1) - 1, and a larger `rho` keeps only the best candidate.
    center : bool
        Subtract the mean from the class indicators, which helps with classes of unequal size. Numeric targets are
        always centred.
    similarity : array of shape (K, K), callable or None
        S of two labels, symmetric and within [-1, 1]: the kernel should be large for rows with similar labels. A matrix
        is in the order of `classes_`; a function ``S(a, b)`` is called for each pair of classes. None is 1 within a
        class and -1 across. Only for class labels.
    diagonal : bool
        Include the pair of each row with itself, as in the paper. Matters only for families without cosine-sine pairs.
    estimator : {"auto", "draw", "support"}
        "auto": the support if it has at most `n_features` columns, else a draw (the paper's rule). "draw": always a
        draw. "support": always the support, if necessary only its largest weights.
    sigma_factors : sequence of float
        Candidates are spread evenly over the bandwidth times these factors: with, say, (0.3, 1, 3) the bandwidth itself
        matters little.
    sums : path, URL or None
        A folder that stores the sums of each block of a Dataset, so that `update` reads only changed blocks; all
        workers must be able to write to it. It grows by ``16 K n_candidates`` bytes a block for K classes, and may be
        deleted.
    scaling, max_rows
        As in `RandomFeatures`; `max_rows` also bounds the rows of the learning pass.
    class_weight : dict, "balanced" or None
        Weights of the classes, which multiply the weights of rows.
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    candidates_ : ndarray, or csr_array for `Coordinates`, of shape (D, d)
    alignment_ : ndarray of shape (D,)
        v of equation (4).
    weights_ : ndarray of shape (D,)
        q.
    divergence_ : float
        D_f(q || 1/D), at most rho.
    effective_features_ : float
        1 / sum(q^2).
    rho_ : float
    similarity_ : ndarray of shape (K, K)
        S by class, where `similarity` is given.
    self_similarity_ : float
        With `similarity`: an upper bound of the sum over rows of each row's similarity with itself.
    bounds_ : Bounds
        For class labels and Fourier features: bounds on the expected loss and alignment of the weighted kernel, on its
        distance from the best one, and on the complexity of models with it; see `bounds`.
    frequencies_ : ndarray of shape (m, d)
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`; `classes_` for labels only.

    References
    ----------
    Sinha & Duchi 2016, "Learning kernels with random features", equations (4) to (6), and S as before lemma 1; Letarte,
    Morvant & Germain 2019, "Pseudo-Bayesian learning with kernel Fourier transform as prior", equations (17) and (18),
    for k between 1 and 2.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.aligned.learner import AlignedFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = AlignedFeatures(n_candidates=2_000, n_features=50, scaling="quantile", random_state=0).fit(X, y)
    >>> learner.transform(X).shape[1] <= 50
    True
    >>> learner.with_rho(1.0).divergence_ < learner.divergence_
    True

    Grades that are far apart are less alike than neighbours are:

    >>> grades = (X[:, 0] > 12).astype(int) + (X[:, 0] > 16)
    >>> graded = AlignedFeatures(n_candidates=500, n_features=50, similarity=lambda a, b: 1 - abs(a - b))
    >>> graded.fit(X, grades).similarity_
    array([[ 1.,  0., -1.],
           [ 0.,  1.,  0.],
           [-1.,  0.,  1.]])
    """

    _parameter_constraints: ClassVar[Constraints] = ALIGNED
    _driver = AlignmentDriver()

    family: Family | None = None
    n_candidates: int | None = 20_000
    n_features: int | None = 1_000
    rho: float | None = None
    _: KW_ONLY
    k: float = 2
    center: bool = False
    similarity: Similarity | None = None
    diagonal: bool = True
    estimator: Estimator = "auto"
    sigma_factors: Sequence[float] = (1.0,)
    sums: str | PathLike[str] | None = None

    def with_rho(
        self,
        rho: float,
        *,
        n_features: int | None = None,
        estimator: Estimator | None = None,
        k: float | None = None,
    ) -> Self:
        """A fitted copy with another radius (or number of columns, estimator, order), without reading the rows.

        Parameters
        ----------
        rho : float
        n_features : int or None
        estimator : {"auto", "draw", "support"} or None
        k : float or None
            None keeps the learner's own, as for `n_features` and `estimator`.
        """
        return self._chosen_again(rho=rho, n_features=n_features, estimator=estimator, k=k)

    def bounds(self, eps: float = 0.05, *, as_printed: bool = False) -> Bounds:
        """Bounds on the expected loss and alignment of the weighted kernel for new rows; computed without reading rows.

        Theorem 4 of Letarte et al. (mu = k) on the expected loss. For k >= 2, which Sinha & Duchi assume, also their
        lemma 1 on the expected alignment, theorem 1 on its distance from the best in the ball, and lemma 3 on models
        with coefficients of length 1.

        Parameters
        ----------
        eps : float
            Each bound fails with at most this probability.
        as_printed : bool
            Use the paper's form of theorem 4, which is not valid above k = 2.

        Returns
        -------
        Bounds
            Empty if the theorems do not apply: for numeric targets, `center`, `class_weight`, and features that are not
            bounded by 1.

        References
        ----------
        Sinha & Duchi 2016, lemmas 1 and 3, theorem 1; Letarte, Morvant & Germain 2019, theorem 4, corollary 5.
        """
        check_is_fitted(self)
        if why := self._why_no_bounds():
            return Bounds(why_none=why)
        n, q, k = self.total_weight_, self.weights_, float(self.k)
        # the pairs of a row with itself are n terms of 1 for cosine-sine pairs, and at most that for a cosine with a
        # phase
        itself = n if self.similarity is None else self.self_similarity_
        own = itself if self.diagonal or self.pool_.activation == "cos-sin" else 0.0
        losses = 0.5 - (self.alignment_ - own) / (2.0 * n * (n - 1.0))
        # the mean over pairs of different rows of y_i y_j K_q(x_i, x_j)
        alignment = 1.0 - 2.0 * float(q @ losses)
        loss = divergence_bound(losses, q, n_rows=n, mu=k, eps=eps, as_printed=as_printed)
        if k < 2.0:
            return Bounds([loss])
        return Bounds(
            [
                loss,
                alignment_deviation(n, self.rho_, k=k, alignment=alignment, eps=eps),
                alignment_gap(n, len(q), self.rho_, k=k, eps=eps),
                rademacher_bound(n, self.rho_, k=k),
            ]
        )

    def _why_no_bounds(self) -> str:
        """The theorems need labels, Fourier features, and similarities that depend on two rows only."""
        if why := why_no_waves(self):
            return why
        return "center=True makes the similarities depend on all rows" if self.center else super()._why_no_bounds()

    def _check_rest(self) -> None:
        family = family_of(self)
        check_finite_pool(self, family)
        if not (self.similarity is None or callable(self.similarity) or np.ndim(self.similarity) == 2):
            raise ValueError(
                f"similarity is {self.similarity!r}; it must be a matrix over the classes, a function of two labels "
                "or None"
            )
        if callable(self.similarity) and self.checkpoint is not None:
            raise ValueError(
                "similarity is a function, of which a checkpoint cannot tell whether a later run has the same: give "
                "the matrix of its values, [[S(a, b) for b in classes] for a in classes], or leave checkpoint out"
            )
        if self.n_features is not None:
            self._n_frequencies(family)

    def _check_targets(self, dataset: Dataset) -> None:
        if self.similarity is not None:
            similarity_of_classes(self.similarity, dataset.classes)

    def _summing(self, dataset: Dataset) -> tuple[Driver[PotentialProblem, PotentialState], PotentialProblem]:
        driver, problem = super()._summing(dataset)
        if problem.similarity is not None:
            self.similarity_ = problem.similarity
        return driver, problem

    def _problem(self, dataset: Dataset) -> PotentialProblem:
        S = None if self.similarity is None else similarity_of_classes(self.similarity, dataset.classes)
        return replace(super()._problem(dataset), center=self.center, similarity=S, diagonal=self.diagonal)

    def _keep_values(self, state: PotentialState) -> None:
        """Store the alignments v."""
        self.alignment_ = np.asarray(state.values)
        if self.similarity is not None:
            self.self_similarity_ = state.itself

    def planned_features(self, dataset: Dataset) -> int:
        """The most features that a fit can have: at most those of all candidates."""
        candidates = self._pool_features(self._planned_family(), dataset)
        return min(super().planned_features(dataset) or candidates, candidates)

    def _choose(self) -> None:
        """Set the weights q that maximise q.v in the ball, and the features chosen by them, without a pass."""
        groups = self.pool_.groups
        sizes = np.bincount(groups)
        self.rho_ = self._radius
        weights = self.weighed(self.alignment_)
        self.divergence_ = divergence(weights, self.k)
        self.effective_features_ = effective_features(weights)
        # the weight of a block is divided evenly among its candidates
        self.weights_ = (weights / sizes)[groups]
        self._keep(self.chosen(weights))

    def weighed(self, values: np.ndarray, total: float = np.nan) -> np.ndarray:
        """The weights of the pool's blocks, from the alignments of all candidates.

        Parameters
        ----------
        values : ndarray of shape (D,)
        total : float
            The total weight of the rows, which these weights do not depend on.
        """
        # a block (the harmonics of one degree) has the mean alignment of its candidates
        return maximise_alignment(block_means(values, self.pool_.groups), self._radius, self.k)

    @property
    def _radius(self) -> float:
        """The radius `rho`, or its default, which is proportional to the number of blocks."""
        if self.rho is not None:
            return float(self.rho)
        radius = RHO_SHARE * (int(self.pool_.groups.max()) + 1)
        # the support has at least D / (1 + rho)^(1/(k-1)) candidates; this radius keeps the bound of k = 2 for smaller
        # k
        return radius if self.k >= 2 else math.expm1((self.k - 1.0) * math.log1p(radius))


def similarity_of_classes(similarity: Similarity, classes: np.ndarray | None) -> np.ndarray:
    """The similarities of pairs of classes as a matrix (K, K).

    Parameters
    ----------
    similarity : array of shape (K, K) or callable
    classes : ndarray of shape (K,) or None
        None for numeric targets.

    Returns
    -------
    ndarray of shape (K, K)

    Raises
    ------
    ValueError
        If the targets are numbers, or S has another shape, is not symmetric, or has values outside [-1, 1].
    """
    if classes is None:
        raise ValueError(
            "similarity is S of two class labels, and these targets are numbers: leave similarity out, which aligns "
            "with the products of the centred targets, or cut the targets into classes"
        )
    # Python objects, since the user's function may not work with NumPy's scalars
    labels = classes.tolist()
    values = [[similarity(a, b) for b in labels] for a in labels] if callable(similarity) else similarity
    S, K = np.asarray(values, dtype=np.float64), len(labels)
    if S.shape != (K, K):
        raise ValueError(f"similarity has shape {S.shape}; {K} classes {labels[:5]} need one of shape {(K, K)}")
    for wrong, why in ((~(np.abs(S) <= 1.0), "must lie in [-1, 1]"), (S != S.T, "must equal that of the two swapped")):
        if wrong.any():
            a, b = np.argwhere(wrong)[0]
            raise ValueError(f"similarity of {labels[a]!r} and {labels[b]!r} is {S[a, b]!r}; it {why}")
    return S
