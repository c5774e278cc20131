"""PeakFeatures: the peaks of the targets' Fourier potential, searched on a row sample and verified on all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.features.scaling import ScalingKind
from dkl.kernels.nufft import MOST_COLUMNS
from dkl.linear.target_statistics import target_record, target_scale
from dkl.methods.base import FeatureLearner
from dkl.methods.frequency_search.frequency_space import FrequencyPool, FrequencySpace
from dkl.methods.frequency_search.learner import check_searchable, frequency_space_of, row_bytes, rows_within
from dkl.methods.frequency_search.peak_search import Method, SearchOptions, distinct_peaks, sample_size
from dkl.methods.parameters import PEAKS, Constraints, check_parameters, family_of, kept_frequencies
from dkl.methods.peaks.driver import (
    PeakDriver,
    PeakProblem,
    PeakState,
    chosen_points,
    distinct_points,
    filled,
)
from dkl.methods.peaks.grid_driver import GridDriver
from dkl.methods.peaks.grid_learner import check_grid, grid_message, grid_problem
from dkl.methods.peaks.sums import PeakTargets
from dkl.methods.preparation.driver import PreparationDriver
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.room import check_room
from dkl.methods.warm_start import goes_on
from dkl.passes.devices import driving_device

# chains without a number of their own: at least so many, and so many for each peak; candidates for each peak
_LEAST_CHAINS, _CHAINS_A_PEAK, _CANDIDATES_A_PEAK = 200, 4, 2
# of theorem 4.4: the error of a sampled potential that the first sample allows for
_ACCURACY = 0.1
_SAMPLE_BYTES = 64 << 20


class PeakFeatures(FeatureLearner):
    """Features at the peaks of the targets' Fourier potential: the frequencies in which the targets vary most.

    The potential v(w) = sum_k |sum_i s_ik exp(i w.x_i)|^2 has s = y less its mean (the shares of the classes, one
    column a class; standardised numbers). Many chains climb it on a row sample, all candidates are verified on all
    rows, and the best that differ from each other are kept. A sample whose peaks do not hold on all rows is enlarged.
    Peaks of one potential say much the same, so half of the features are plain draws, unless `plain_share` is 0.
    A fit takes a pass for scaler and bandwidth (where either is asked for), one for the sample, one for verification,
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
        Points that climb at once; None is 200, or four times the number of peaks where that is more.
    steps : int
        Evaluations by each chain.
    stride : float
        Length of the first step, times sqrt(d) / sigma; later ones are shorter, down to zero.
    noise : float
        Length of the Langevin noise relative to the step; 1 is the paper's rule, 0 climbs without.
    sparse_share : float
        Share of the chains that live on 1 to 3 columns: main effects and interactions that a person can read.
    polish : int
        Further evaluations, of plain ascent from the best point of each chain.
    held_out : float
        Share of the sample that no chain climbs on; it tells the best point of each chain. 0 takes all rows for both.
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
        Highest peak first, then plain ones; sparse where some live on a few columns.
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
    _supervised: ClassVar[bool] = True

    n_features: int

    def __init__(
        self,
        family: Any = None,
        n_features: int = 100,
        *,
        method: Method | Literal["grid"] = "langevin",
        chains: int | None = None,
        steps: int = 30,
        stride: float = 0.1,
        noise: float = 1.0,
        sparse_share: float = 0.5,
        polish: int = 5,
        held_out: float = 0.25,
        plain_share: float = 0.5,
        cosine: float = 0.7,
        tol: float = 0.05,
        max_norm: float | None = None,
        warm_start: bool = False,
        search_rows: int | None = None,
        scaling: ScalingKind | None = None,
        max_rows: int | None = None,
        class_weight: Any = None,
        dtype: str = "float32",
        device: str = "auto",
        random_state: Any = None,
        checkpoint: Any = None,
        progress: Any = None,
        memory_limit: Any = None,
    ) -> None:
        self.family = family
        self.n_features = n_features
        self.method = method
        self.chains = chains
        self.steps = steps
        self.stride = stride
        self.noise = noise
        self.sparse_share = sparse_share
        self.polish = polish
        self.held_out = held_out
        self.plain_share = plain_share
        self.cosine = cosine
        self.tol = tol
        self.max_norm = max_norm
        self.warm_start = warm_start
        self.search_rows = search_rows
        self.scaling = scaling
        self.max_rows = max_rows
        self.class_weight = class_weight
        self.dtype = dtype
        self.device = device
        self.random_state = random_state
        self.checkpoint = checkpoint
        self.progress = progress
        self.memory_limit = memory_limit

    @property
    def candidates_(self) -> Any:
        """All points that were verified, of shape (D, d)."""
        return formed(self.pool_.projection)

    def planned_passes(self, dataset: Dataset) -> list[tuple[Any, int]]:
        """The preparation, where it is needed, the row sample, and the verification of each search."""
        check_parameters(self)
        self._check_rest()
        self._check_dataset(dataset)
        preparation = preparation_problem(dataset, family_of(self), self.scaling, 0)
        n_targets = dataset.schema.n_targets or 1
        targets = self._targets(dataset, planned=True)
        light = [] if dataset.classes is not None else [((target_record(n_targets),), 1)]
        family = self._planned_family()
        if not isinstance(family, FiniteFamily):
            # a place in the search, and the frequency that is found there
            size = kept_frequencies(type(self).__name__, self.n_features, family)
            check_room(self, size, dataset.n_columns, n_points=size)
        if self.method == "grid":
            grid = grid_problem(self, family, dataset, targets, None)
            return [*PreparationDriver().plan(preparation), *light, *GridDriver().plan(grid)]
        problem = self._problem(self._frequency_space(family, dataset, None), targets, dataset, seed=0)
        if self.warm_start:
            problem = replace(problem, start=np.zeros((problem.n_peaks, dataset.n_columns), np.float32))
        return [*PreparationDriver().plan(preparation), *light, *PeakDriver().plan(problem)]

    def planned_memory(self, dataset: Dataset) -> dict[str, int]:
        """The rows that are searched, and the climb; the grid's search is bounded by its samples' 64 MiB."""
        if self.method == "grid":
            return {"searched rows": 2 * rows_within(_SAMPLE_BYTES, dataset.source) * row_bytes(dataset.source)}
        targets, space = (
            self._targets(dataset, planned=True),
            self._frequency_space(self._planned_family(), dataset, None),
        )
        return PeakDriver().memory(self._problem(space, targets, dataset, seed=0), row_bytes(dataset.source))

    def _check_rest(self) -> None:
        family = family_of(self)
        if self.method == "grid":
            check_grid(family)
        check_searchable(type(self).__name__, family)
        if not isinstance(family, FiniteFamily):
            kept_frequencies(type(self).__name__, self.n_features, family)

    def _check_dataset(self, dataset: Dataset) -> None:
        if self.method == "grid" and dataset.n_columns > MOST_COLUMNS:
            raise ValueError(
                f"method='grid' is for rows of at most {MOST_COLUMNS} columns; these have {dataset.n_columns}. Use "
                "method='langevin'"
            )

    def _learn(self, dataset: Dataset) -> None:
        self._check_dataset(dataset)
        start = self._start(dataset)
        if dataset.classes is not None:
            self.classes_ = dataset.classes
        targets = self._targets(dataset)
        scaler = self._prepare(dataset) if start is None else self.scaler_
        if self.method == "grid":
            self._search_grid(targets, scaler, dataset)
            return
        space = self._frequency_space(self.family_, dataset, scaler)
        problem = replace(self._problem(space, targets, dataset, seed=self.seed_), start=start)
        state = self._run(PeakDriver(), problem, dataset, "peaks")
        kept = chosen_points(problem, state)
        self.n_peaks_ = _n_found(problem, state, kept)
        self._keep(space.feature_map(state.points), state.verified, kept)
        self.certificate_ = None
        self.sample_rows_ = 0 if isinstance(space, FrequencyPool) else min(state.sample_rows, problem.n_rows)
        self.message_ = _message(problem, state, kept[: self.n_peaks_])

    def _start(self, dataset: Dataset) -> np.ndarray | None:
        """The peaks of the last fit, with `warm_start`, where a search may miss them."""
        if not goes_on(self, dataset, ("family", "scaling", "dtype")):
            return None
        if self.method == "grid" or isinstance(self.family_, FiniteFamily):
            return None
        found: np.ndarray = self.feature_map_.projection.take(np.arange(self.n_peaks_)).dense()
        return np.asarray(found, dtype=np.float32)

    def _search_grid(self, targets: PeakTargets, scaler: Any, dataset: Dataset) -> None:
        problem = grid_problem(self, self.family_, dataset, targets, scaler)
        state = self._run(GridDriver(), problem, dataset, "grid")
        peaks = distinct_peaks(state.points, state.verified, problem.n_peaks, cosine=self.cosine)
        kept = filled(peaks, 0 if problem.plain is None else len(problem.plain), self._counts()[1])
        self.n_peaks_ = len(peaks)
        self._keep(problem.feature_map(state.points), state.verified, kept)
        self.certificate_ = min(1.0, state.bound**2)
        self.sample_rows_ = min(problem.sample_rows, dataset.n_rows)
        self.message_ = grid_message(problem, state, len(peaks))

    def _keep(self, pool: FeatureMap, potentials: np.ndarray, kept: np.ndarray) -> None:
        """All candidates, with their potentials, and which of them make the features."""
        self.pool_ = pool
        self.feature_map_ = pool.take(kept, np.full(len(kept), 1.0 / np.sqrt(max(1, len(kept)))))
        self.candidate_potentials_ = potentials
        self.potentials_ = potentials[kept]
        self.weights_ = np.zeros(len(potentials))
        self.weights_[kept] = 1.0 / max(1, len(kept))

    def _targets(self, dataset: Dataset, *, planned: bool = False) -> PeakTargets:
        """What is climbed: class indicators less their shares, or standardised targets."""
        factors = self._class_weights(dataset)
        if dataset.classes is not None:
            totals = np.asarray(dataset.class_weights, dtype=np.float64)
            totals = totals if factors is None else totals * factors
            return PeakTargets(len(totals), factors, totals / totals.sum())
        n_targets = dataset.schema.n_targets or 1
        if planned:
            return PeakTargets(None, None, np.zeros(n_targets), np.ones(n_targets))
        found = target_scale(dataset.source, n_targets)
        return PeakTargets(None, None, found.center, found.scale)

    def _frequency_space(self, family: Any, dataset: Dataset, scaler: Any) -> FrequencySpace:
        return frequency_space_of(self, family, dataset.n_columns, scaler, self._options(), 0.0)

    def _options(self) -> SearchOptions:
        return SearchOptions(
            chains=self._n_chains(),
            steps=self.steps,
            stride=self.stride,
            noise=self.noise,
            sparse_share=self.sparse_share,
            polish=self.polish,
            max_norm=self.max_norm,
            method="langevin" if self.method == "grid" else self.method,
            held_out=self.held_out,
            device=driving_device(self.device),
        )

    def _n_chains(self) -> int:
        return max(_LEAST_CHAINS, _CHAINS_A_PEAK * (self.n_features // 2)) if self.chains is None else self.chains

    def _counts(self) -> tuple[int, int]:
        """Frequencies to search, and to keep in all."""
        n_points = self.n_features // 2
        return int(np.ceil((1.0 - self.plain_share) * n_points)), n_points

    def _problem(self, space: FrequencySpace, targets: PeakTargets, dataset: Dataset, *, seed: int) -> PeakProblem:
        n_peaks, n_points = self._counts()
        if not space.draws_plainly:
            n_peaks = n_points = max(1, self.n_features // space.columns_a_point)
        most = min(dataset.n_rows, max(1_000, rows_within(_SAMPLE_BYTES, dataset.source)))
        wanted = sample_size(self._n_chains(), _ACCURACY) if self.search_rows is None else self.search_rows
        first = min(dataset.n_rows, wanted if self.search_rows is not None else min(wanted, most))
        n_candidates = space.pool.n_frequencies if isinstance(space, FrequencyPool) else _CANDIDATES_A_PEAK * n_peaks
        return PeakProblem(
            space=space,
            targets=targets,
            n_peaks=n_peaks,
            n_candidates=n_candidates,
            n_rows=dataset.n_rows,
            sample_rows=first,
            most_rows=max(first, most),
            n_points=n_points,
            n_plain=n_points if self.plain_share and space.draws_plainly else 0,
            cosine=self.cosine,
            seed=seed,
            dtype=self.dtype,
        )


def _n_found(problem: PeakProblem, state: PeakState, kept: np.ndarray) -> int:
    """How many of those kept were chosen as peaks."""
    return len(distinct_points(problem, state.points, state.verified, problem.n_peaks)) if len(kept) else 0


def _message(problem: PeakProblem, state: PeakState, kept: np.ndarray) -> str:
    """How the search ended, and what to do where it fell short."""
    if isinstance(problem.space, FrequencyPool):
        return f"took the best {len(kept)} of {len(state.points)} features by their potentials on all rows"
    noun = "peak" if len(kept) == 1 else "peaks"
    found = f"{len(kept)} {noun}, searched on {state.sample_rows} rows in {state.passes} passes"
    promised, held = np.median(state.sampled[kept]), np.median(state.verified[kept])
    share = held / promised if promised > 0.0 else 1.0
    found = f"{state.ended}: {found}" if state.ended else found
    told = f"{found}; on all rows they keep {share:.0%} of the sampled potential"
    if len(kept) < problem.n_peaks:
        return f"{told}. {problem.n_peaks} were asked for: more chains, or MarginFeatures, find more that differ"
    return told
