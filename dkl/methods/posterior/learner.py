"""PosteriorFeatures: candidates weighted by a pseudo-posterior that decreases with their empirical loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from os import PathLike
from typing import Self

import numpy as np

from dkl.bounds.certificate import Bounds
from dkl.bounds.pair_loss import divergence_bound, first_order_bound, second_order_bound
from dkl.data.dataset import Dataset
from dkl.features.families import Family
from dkl.methods.base import SelectingLearner
from dkl.methods.bounds_mixin import Certified
from dkl.methods.choice import Estimator
from dkl.methods.parameters import check_labels, check_waves, estimator, family_of
from dkl.methods.posterior.weights import minimised_t, pseudo_posterior
from dkl.methods.potential_sums import PosteriorDriver, PotentialProblem, PotentialState
from dkl.solvers.kernel_alignment import effective_features


@estimator
class PosteriorFeatures(Certified, SelectingLearner):
    """Features drawn from a pseudo-posterior over a pool of candidates, learned by one pass over the rows.

    Each candidate frequency w has a kernel cos(w.(x - x')) with an empirical loss L(w) over all pairs of rows; the
    weights are proportional to exp(-beta sqrt(n) L(w)). For class labels only.

    Parameters
    ----------
    family : Family or None
        The prior, a family of Fourier features; None is ``Gaussian()`` with the median bandwidth.
    n_candidates : int
        The number of candidate frequencies.
    n_features : int
        The most output columns: a cos-sin pair has two, and a frequency drawn twice occurs once.
    beta : float
        0 is plain sampling; larger values select more strongly. Changing it needs no pass: see `with_beta`.
    estimator : {"draw", "support", "auto"}
        "draw", as in the paper: with replacement; a frequency drawn twice occurs once. "support": the largest weights,
        each once, with amplitudes sqrt(weight); better if the bandwidth is wrong or beta is large. "auto": a draw,
        unless all candidates fit into `n_features`.
    sigma_factors, sums
        As in `AlignedFeatures`.
    scaling, max_rows, class_weight, dtype, device, random_state, checkpoint, progress, memory_limit
        As in `AlignedFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    candidates_ : ndarray of shape (D, d)
    losses_ : ndarray of shape (D,)
        L(w) of each candidate, between 0 and 1 up to 1/n.
    weights_ : ndarray of shape (D,)
        The pseudo-posterior.
    effective_features_ : float
        1 / sum(weights^2).
    bounds_ : Bounds
        On the expected loss of the weighted kernel: theorem 3, corollaries 2 and 5 of the paper; see `bounds`.
    frequencies_ : ndarray of shape (m, d)
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `RandomFeatures`.

    References
    ----------
    Letarte, Morvant & Germain 2019, "Pseudo-Bayesian learning with kernel Fourier transform as prior", section 5.4.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dkl.methods.posterior.learner import PosteriorFeatures
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> learner = PosteriorFeatures(n_candidates=2_000, n_features=50, scaling="quantile", random_state=0).fit(X, y)
    >>> learner.with_beta(10.0).effective_features_ < learner.effective_features_
    True
    """

    _driver = PosteriorDriver()

    family: Family | None = None
    n_candidates: int = 20_000
    n_features: int = 1_000
    beta: float = 1.0
    _: KW_ONLY
    estimator: Estimator = "draw"
    sigma_factors: Sequence[float] = (1.0,)
    sums: str | PathLike[str] | None = None

    def with_beta(self, beta: float, *, n_features: int | None = None, estimator: Estimator | None = None) -> Self:
        """A fitted copy with another beta (or number of columns, estimator), without reading the rows.

        Parameters
        ----------
        beta : float
        n_features : int or None
        estimator : {"draw", "support", "auto"} or None
            None keeps the learner's own, as for `n_features`.
        """
        return self._chosen_again(beta=beta, n_features=n_features, estimator=estimator)

    def bounds(self, eps: float = 0.05, *, t: float | None = None, as_printed: bool = False) -> Bounds:
        """Bounds on the expected loss of the learned kernel, from the empirical losses.

        Parameters
        ----------
        eps : float
            Each bound fails with at most this probability.
        t : float or None
            The t of theorem 3, twice that of corollary 2. None is beta sqrt(n), for which the posterior minimises both
            bounds; for beta = 0 it is sqrt(n).
        as_printed : bool
            Use the paper's form of corollary 5, which relies on a lemma that does not hold.

        Returns
        -------
        Bounds
            Empty with `class_weight`.

        References
        ----------
        Letarte, Morvant & Germain 2019, theorem 3, corollaries 2 and 5.
        """
        n = self.total_weight_
        t = minimised_t(self.beta, n) if t is None else t
        if why := self._why_no_bounds():
            return Bounds(why_none=why)
        # corollary 2 has t where theorem 3 has 2 t; both penalise the Kullback-Leibler divergence from the prior
        by_kl = [
            bound(self.losses_, self.weights_, n_rows=n, t=own_t, eps=eps)
            for bound, own_t in ((second_order_bound, t), (first_order_bound, 2.0 * t))
        ]
        # corollary 5 penalises the chi-squared divergence instead, and has no t
        by_chi = divergence_bound(self.losses_, self.weights_, n_rows=n, eps=eps, as_printed=as_printed)
        return Bounds([*by_kl, by_chi])

    def _check_rest(self) -> None:
        check_waves(self)
        self._n_frequencies(family_of(self))

    def _check_targets(self, dataset: Dataset) -> None:
        check_labels(self, dataset)

    def _problem(self, dataset: Dataset) -> PotentialProblem:
        # the loss belongs to the kernel cos(w.(x - x')), which is that of a pair, but not of a cosine with one phase
        pairs = replace(self.pool_, activation="cos-sin", phases=None)
        return replace(super()._problem(dataset), candidates=pairs)

    def _keep_values(self, state: PotentialState) -> None:
        """Store the empirical losses."""
        self.losses_ = np.asarray(state.values)

    def _choose(self) -> None:
        """Set the weights, and the features chosen by them, without a pass."""
        self.weights_ = self.weighed(self.losses_, self.total_weight_)
        self.effective_features_ = effective_features(self.weights_)
        # drawn with replacement by default: the mean over draws is the weighted kernel in expectation
        self._keep(self.chosen(self.weights_))

    def weighed(self, values: np.ndarray, total: float) -> np.ndarray:
        """The pseudo-posterior from the losses of all candidates and the total weight of the rows."""
        # equation (12): q_j proportional to exp(-beta sqrt(n) L_j)
        return pseudo_posterior(values, self.beta, total)
