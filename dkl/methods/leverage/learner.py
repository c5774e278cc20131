"""LeverageFeatures: candidates resampled by their ridge leverage scores, which do not depend on targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from numbers import Integral
from os import PathLike
from typing import Any, ClassVar, Self

import numpy as np

from dkl.bounds.certificate import Bounds
from dkl.bounds.leverage import coherence_ratio, feature_count
from dkl.data.dataset import Dataset
from dkl.features.families import Family, FiniteFamily
from dkl.methods.base import PoolLearner
from dkl.methods.bounds_mixin import Certified
from dkl.methods.leverage.dictionary_driver import DictionaryDriver
from dkl.methods.leverage.driver import EXACT_SIZE, GramDriver, LeverageProblem, RowsDriver, resample
from dkl.methods.parameters import LEVERAGE, Constraints, columns_a_frequency, estimator, family_of
from dkl.methods.updating import Updated
from dkl.protocols.source import rows_within

# The most rows that scores are computed on for n_rows=None.
_DEFAULT_ROWS = 4_000
# For n_candidates=None: candidates for each frequency that is kept, and the most candidates.
_CANDIDATES_A_FEATURE, _DEFAULT_CANDIDATES = 100, 10_000
# Limits the bytes of the row sample, but not below this number of rows.
_SAMPLE_BYTES, _FEWEST_ROWS = 64 << 20, 1_000

# An algorithm for scores: its passes, and `leverage`, the scores at a given mu from their results, without a pass.
ScoreDriver = GramDriver | RowsDriver | DictionaryDriver


@estimator
class LeverageFeatures(Updated, Certified, PoolLearner):
    """Features drawn in proportion to their ridge leverage scores: a few features that approximate a kernel.

    With the features of M candidates on L rows as the matrix Phi (entries over sqrt(L M)), the scores are r = diag(Phi
    Phi^T (Phi Phi^T + mu I)^-1), and a frequency is drawn with probability p = r / sum(r). Targets are not used: one
    fit serves all tasks on the same rows. Compared with random features, the gain is largest for few features (tens) in
    few dimensions.

    Parameters
    ----------
    family : Family or None
        Distribution of the candidates; None is ``Gaussian()`` with the median bandwidth.
    n_candidates : int or None
        M, the number of candidate frequencies. None is 100 for each that is drawn, at most 10,000; of ``Coordinates()``
        and ``SphericalHarmonics()`` all features.
    n_features : int
        Upper bound on the output columns: a cosine-sine pair has two, and a frequency drawn twice is kept once.
    mu : float
        The ridge, on the scale of the kernel matrix over the number of rows: 1e-2 to 1e-6. Smaller values make the
        scores more equal. `with_mu` changes it without reading the rows.
    n_rows : int, float or None
        L, the number of rows that scores are computed on; below 1 the fraction of all rows (0.3 in the paper). None is
        all rows, but at most 4,000 unless `sums` are kept.
    weighted : bool
        Amplitudes 1/sqrt(p M), with which the kernel of the drawn features is the pool's in expectation. False gives
        equal amplitudes, as in the paper.
    sums : path, URL or None
        Path to keep the Gram matrices of each block of a Dataset, so that `update` reads only changed blocks, as in
        `AlignedFeatures`. For at most 4,094 columns of candidates; the matrix of a block takes up to 64 MiB.
    sigma_factors : sequence of float
        As in `AlignedFeatures`.
    scaling, max_rows
        As in `AlignedFeatures`.
    class_weight : None
        Ignored, since scores depend on the features alone.
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    candidates_ : ndarray, or csr_array for `Coordinates`, of shape (M, d)
    scores_ : ndarray of shape (M,)
        r of each frequency (the sum of its cosine's and its sine's).
    weights_ : ndarray of shape (M,)
        p, the probability of each frequency in a draw.
    degrees_of_freedom_ : float
        d(mu), the sum of the scores.
    score_error_ : float
        0 for exact scores. If rows and columns of the features are both more than 8,000, the scores are at most the
        exact ones, and the total variation between the probabilities p and the exact ones is at most this; the bound is
        deterministic.
    coherence_ : float
        M max(r) / d(mu), the factor by which random draws need more features; 1 under assumption 2 of the paper.
    bounds_ : Bounds
        Number of draws that approximate the whole pool, by leverage and at random; see `bounds`.
    mu_ : float
        The ridge of the scores.
    n_rows_ : int
        L, the rows that were used.
    frequencies_ : ndarray of shape (m, d)
    family_, scaler_, seed_, n_features_in_, stats_
        As in `RandomFeatures`.

    Notes
    -----
    Exact scores solve the smaller of two systems: the Gram matrix of the features, summed over any number of rows, or
    the kernel matrix of the rows, if there are more columns of features than rows.

    References
    ----------
    Sun, Gilbert & Tewari 2018, "But how does it work in theory? Linear SVM with random features", section 3; Bach 2017,
    "On the equivalence between kernel quadrature rules and random feature expansions".

    Examples
    --------
    >>> from dkl.methods.leverage.learner import LeverageFeatures
    >>> from dkl.testing.synthetic import disc_and_annulus
    >>> X, y = disc_and_annulus(1_000, seed=0)
    >>> learner = LeverageFeatures(n_features=40, mu=1e-3, random_state=0).fit(X)
    >>> learner.transform(X).shape[1] <= 40
    True
    >>> learner.with_mu(1e-5).degrees_of_freedom_ > learner.degrees_of_freedom_
    True
    """

    _parameter_constraints: ClassVar[Constraints] = LEVERAGE

    family: Family | None = None
    n_candidates: int | None = None
    n_features: int = 1_000
    mu: float = 1e-4
    n_rows: float | None = None
    weighted: bool = True
    _: KW_ONLY
    sums: str | PathLike[str] | None = None
    sigma_factors: Sequence[float] = (1.0,)

    def with_mu(self, mu: float | None = None, *, n_features: int | None = None, weighted: bool | None = None) -> Self:
        """A fitted copy with another ridge, number of columns or weighting, computed without reading the rows.

        Parameters
        ----------
        mu : float or None
            None keeps the current value, as for `n_features` and `weighted`.
        n_features : int or None
        weighted : bool or None

        Raises
        ------
        ValueError
            If `mu` changes and the scores are approximations, or the learner was loaded from a file: what they are
            computed from is large, and is not stored then.
        """
        return self._chosen_again(mu=mu, n_features=n_features, weighted=weighted)

    @property
    def coherence_(self) -> float:
        """M max(r) / d(mu)."""
        return coherence_ratio(self.scores_)

    def bounds(self, eps: float = 0.05) -> Bounds:
        """Number of draws that approximate the whole pool at this mu, by leverage and, from the coherence, at random.

        Parameters
        ----------
        eps : float
            Probability that the draws do not approximate the pool.

        Returns
        -------
        Bounds
            In frequencies; computed from an upper bound on the degrees of freedom if scores are approximations.
        """
        # approximate scores sum to at least this fraction of the exact ones, so that this bounds the exact sum from
        # above
        most, size = self.degrees_of_freedom_ / (1.0 - self.score_error_), float(len(self.scores_))
        counts = [feature_count(most, coherence=c, eps=eps, n_candidates=size) for c in (1.0, self.coherence_)]
        return Bounds(counts)

    def _check_rest(self) -> None:
        family = family_of(self)
        self._n_frequencies(family)
        if self.sums is not None:
            # 0 columns where their number depends on the rows
            planned = self._planned_family()
            n_columns = (self._pool_size(planned) or 0) * columns_a_frequency(planned)
            self._check_gram(n_columns, "n_candidates")

    def _pool_size(self, family: Family) -> int | None:
        """`n_candidates`, or a multiple of the kept frequencies if it is None; None means a whole finite family."""
        if self.n_candidates is not None or isinstance(family, FiniteFamily):
            return self.n_candidates
        kept = self._n_frequencies(family)
        return min(_CANDIDATES_A_FEATURE * kept, _DEFAULT_CANDIDATES)

    def _learn(self, dataset: Dataset) -> None:
        self._draw_for(dataset)
        if self._context.weighs:
            self._weigh(dataset)

    def _summing(self, dataset: Dataset) -> tuple[ScoreDriver, LeverageProblem]:
        """The algorithm for the scores of the pool: the smaller exact system, or a dictionary if both are large."""
        pool = self.pool_
        # with this amplitude the products of features sum to the kernel over the pool
        amplitude = self.family_.feature_scale(dataset.n_columns) / np.sqrt(pool.n_frequencies)
        n_rows = self._n_rows_used(dataset.n_rows)
        problem = LeverageProblem(
            replace(pool, amplitudes=np.full(pool.n_frequencies, amplitude)),
            self.mu,
            n_rows,
            is_sample=n_rows < dataset.n_rows,
            seed=self.seed_,
            dtype=self.dtype,
        )
        if self.sums is not None:
            return GramDriver(), problem
        # whether a sample of the rows and their kernel matrix fit into memory
        fits = n_rows <= min(EXACT_SIZE, max(_FEWEST_ROWS, rows_within(_SAMPLE_BYTES, dataset.source)))
        if pool.n_features <= EXACT_SIZE and (pool.n_features <= n_rows or not fits):
            return GramDriver(), problem
        return (RowsDriver() if fits else DictionaryDriver()), problem

    def _weigh(self, dataset: Dataset) -> None:
        driver: Any
        driver, problem = self._summing(dataset)
        # RowsDriver draws its sample from all rows itself
        rows = dataset if isinstance(driver, RowsDriver) else dataset.thin(problem.n_rows, self.seed_)
        # the results of the passes stay with the learner, so that `with_mu` needs none
        self._pass_results = driver, problem, self._state_of_sums(driver, problem, rows, "leverage")
        self.n_rows_ = problem.n_rows
        self._score()
        self._choose()

    def _n_rows_used(self, n_rows: int) -> int:
        """L, the number of rows that scores are computed on, for `n_rows`."""
        if self.n_rows is None:
            return n_rows if self.sums is not None else min(n_rows, _DEFAULT_ROWS)
        n_wanted = self.n_rows if isinstance(self.n_rows, Integral) else np.ceil(self.n_rows * n_rows)
        return min(n_rows, int(n_wanted))

    def _choose(self) -> None:
        """Draw frequencies by their scores, which are computed again if `mu` has changed."""
        if self.mu_ != self.mu:
            self._score()
        kept = self.n_features // self.pool_.columns_a_frequency
        self._keep(resample(self.scores_, self.pool_.groups, kept, self.seed_, weighted=self.weighted))

    def _score(self) -> None:
        """Compute the scores at `mu` from the stored results of the passes."""
        if not hasattr(self, "_pass_results"):
            raise ValueError(
                f"{type(self).__name__} was loaded, and models are saved without what scores at another mu than "
                f"{self.mu_!r} are computed from; fit it again with mu={self.mu!r}"
            )
        # d(mu) is the sum of the scores, and the probabilities of the draws are r / d(mu)
        driver, problem, state = self._pass_results
        leverage = driver.leverage(problem, state, self.mu)
        self.mu_: float = self.mu
        self.scores_ = leverage.scores
        self.degrees_of_freedom_, self.score_error_ = leverage.degrees_of_freedom, leverage.error
        self.weights_ = leverage.scores / max(leverage.degrees_of_freedom, np.finfo(np.float64).tiny)
