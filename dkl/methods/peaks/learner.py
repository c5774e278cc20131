"""PeakFeatures: the peaks of the targets' Fourier potential, searched on a row sample and verified on all rows."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.features.scaling import ScalingChoice
from dkl.methods.frequency_search.learner import PreparedRows, SearchingLearner, SearchStrategy
from dkl.methods.frequency_search.peak_search import Method
from dkl.methods.parameters import PEAKS, Constraints, estimator, kept_frequencies
from dkl.methods.peaks.ascent_learner import AscentSearch
from dkl.methods.peaks.grid_learner import GridSearch
from dkl.methods.room import check_room
from dkl.methods.warm_start import goes_on

P = TypeVar("P")
S = TypeVar("S")
Start = TypeVar("Start", contravariant=True)


class PeakStrategy(SearchStrategy[P, S, Start], Protocol[P, S, Start]):
    """A strategy behind `method`, with the rows that it applies to and its use of the last fit with `warm_start`."""

    def check_rows(self, rows: PreparedRows) -> None:
        """Raise ValueError for rows that it cannot search."""
        ...

    def start(self, feature_map: FeatureMap, n_peaks: int) -> np.ndarray | None:
        """The first frequencies of the last fit as candidates, if a search may miss them; else None."""
        ...


@estimator
class PeakFeatures(SearchingLearner):
    """Features at the peaks of the targets' Fourier potential: the frequencies in which the targets vary most.

    The potential v(w) = sum_k |sum_i s_ik exp(i w.x_i)|^2 has s = y less its mean (the shares of the classes, one
    column a class; standardised numbers). Many chains ascend on a row sample, all candidates are verified on all
    rows, and the best that differ from each other are kept. A sample whose peaks do not hold on all rows is enlarged.
    Peaks of one potential say much the same, so half of the features are random draws, unless `plain_share` is 0.
    A fit takes a pass for scaler and bandwidth (if either is needed), one for the sample, one for verification,
    and one more for each larger sample; of a finite family, one pass weighs all features.

    Parameters
    ----------
    family : Family or None
        Of cosine-sine pairs: its bandwidth is the scale of starts and steps; None is ``Gaussian()`` with the median
        bandwidth. Or a finite one, such as ``SphericalHarmonics(...)``, whose best features are taken.
    n_features : int
        Output columns, an upper bound: a pair takes two.
    method : {"langevin", "quasi-newton", "grid"}
        Noisy gradient steps, as in the paper, or limited-memory BFGS steps, which come as high in half as many. "grid":
        for rows of at most 3 columns (and with finufft), a global search on all rows that bounds what it missed: one
        pass for a grid of up to a million frequencies, at most six for cells that may hold more, one for verification.
    chains : int or None
        Points that ascend at once; None is 200, or four times the number of peaks where that is more.
    steps : int
        Evaluations by each chain.
    stride : float
        Length of the first step, times sqrt(d) / sigma; later ones are shorter, down to zero.
    noise : float
        Length of the Langevin noise relative to the step; 1 is the paper's rule, 0 is plain ascent.
    sparse_share : float
        Share of the chains that live on 1 to 3 columns: main effects and interactions that a person can read.
    polish : int
        Further evaluations, of plain ascent from the best point of each chain.
    held_out : float
        Share of the sample that no chain ascends on; it tells the best point of each chain. 0 takes all rows for both.
    plain_share : float
        Share of the features that are drawn from the family instead of searched, and fill up what too few peaks leave;
        with 0, the paper's algorithm, there may be fewer features than asked for.
    cosine : float
        Two peaks are one if their directions are at least so near (and their lengths within 20 %).
    tol : float
        Of the grid: no root of a potential in its box is higher than the best found by more, unless the result says so.
    max_norm : float or None
        No frequency becomes longer. The grid covers |w_j| <= max_norm, 12 / sigma where it is None.
    warm_start : bool
        The peaks of the last fit are candidates of the next `fit` too, whose bandwidth and scaler stay.
    search_rows : int or None
        Rows of the first sample; None is what theorem 4.4 asks for so many chains at an accuracy of 0.1, about 7,000.
    scaling, max_rows, class_weight
        As of `AlignedFeatures`.
    dtype, device, random_state, checkpoint, progress, memory_limit
        As of `RandomFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    frequencies_ : ndarray or csr_array of shape (m, d)
        Highest peak first, then random ones; sparse where some live on a few columns.
    potentials_ : ndarray of shape (m,)
        Of `frequencies_` on all rows, normalised over pairs of different rows: 1 is the most.
    candidates_ : ndarray or csr_array of shape (D, d)
        All points that were verified.
    candidate_potentials_ : ndarray of shape (D,)
    n_peaks_ : int
        How many of `frequencies_` were found by search.
    weights_ : ndarray of shape (D,)
        1 / m for the candidates that are kept, else 0.
    sample_rows_ : int
        Rows of the last search.
    certificate_ : float or None
        Of the grid: no frequency in its box has a higher potential. None otherwise.
    message_ : str
        How the search ended.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As of `AlignedFeatures`.

    References
    ----------
    Bullins, Zhang & Zhang 2018, "Not-so-random features", section 3.1, Algorithm 1, appendices A.1 and A.3.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.methods.peaks.learner import PeakFeatures
    >>> X = np.random.default_rng(0).standard_normal((2_000, 5))
    >>> y = np.sin(3.0 * X[:, 2]) > 0
    >>> learner = PeakFeatures(n_features=2, random_state=0).fit(X, y)
    >>> np.abs(learner.frequencies_.toarray()).round(0)
    array([[0., 0., 3., 0., 0.]], dtype=float32)
    """

    _parameter_constraints: ClassVar[Constraints] = PEAKS

    family: Any = None
    n_features: int = 100
    _: KW_ONLY
    method: Method | Literal["grid"] = "langevin"
    chains: int | None = None
    steps: int = 30
    stride: float = 0.1
    noise: float = 1.0
    sparse_share: float = 0.5
    polish: int = 5
    held_out: float = 0.25
    plain_share: float = 0.5
    cosine: float = 0.7
    tol: float = 0.05
    max_norm: float | None = None
    warm_start: bool = False
    search_rows: int | None = None
    scaling: ScalingChoice | None = None

    @property
    def candidates_(self) -> Any:
        """All points that were verified, of shape (D, d)."""
        return formed(self.pool_.projection)

    def _planned_method(self, dataset: Dataset) -> list[tuple[Any, int]]:
        """The targets' moments where they are numbers, the row sample, and the verification of each search."""
        self._strategy().check_rows(self._planned_rows(dataset))
        self._check_room(dataset)
        return super()._planned_method(dataset)

    def _check_room(self, dataset: Dataset) -> None:
        family = self._planned_family()
        if not isinstance(family, FiniteFamily):
            # a place in the search, and the frequency that is found there
            size = kept_frequencies(type(self).__name__, self.n_features, family)
            check_room(self, size, dataset.n_columns, n_points=size)

    def _check_rest(self) -> None:
        self._strategy().check()

    def _strategy(self) -> PeakStrategy[Any, Any, Any]:
        """The strategy of `method`, which hides all differences between the methods."""
        kind: type[PeakStrategy[Any, Any, Any]] = GridSearch if self.method == "grid" else AscentSearch
        return self._with_parameters(kind)

    def _planned_start(self, dataset: Dataset) -> np.ndarray | None:
        if not self.warm_start:
            return None
        size = kept_frequencies(type(self).__name__, self.n_features, self._planned_family())
        drawn = self._planned_family().draw(size, dataset.n_columns, 0, self.dtype)
        return self._strategy().start(drawn, size)

    def _learn(self, dataset: Dataset) -> None:
        strategy = self._strategy()
        strategy.check_rows(self._planned_rows(dataset))
        # a fit of rows in memory is not planned before
        self._check_room(dataset)
        start = None
        # peaks of the last fit are candidates of this one, whose own search may miss them
        if goes_on(self, dataset, ("family", "scaling", "dtype")):
            start = strategy.start(self.feature_map_, self.n_peaks_)
        if dataset.classes is not None:
            self.classes_ = dataset.classes
        scale = self._target_scale(dataset)
        # frequencies of the last fit are frequencies of its scaled rows
        scaler = self._prepare(dataset) if start is None else self.scaler_
        rows = self._prepared(dataset, scaler, scale)
        problem = strategy.problem(rows, start)
        state = self._run(strategy.driver(), problem, dataset, strategy.stage)
        self.__dict__.update(strategy.fitted(rows, problem, state))
