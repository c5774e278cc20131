"""PeakFeatures: the peaks of the targets' Fourier potential, by ascents or on a grid, verified on all rows.

From `fit` to a sine, where all rows verify the candidates (`tests/test_architecture.py` checks that these functions
exist):

    methods/base.py: FeatureLearner.fit
    methods/peaks/learner.py: PeakFeatures._learn, AscentSearch.problem
    methods/peaks/driver.py: PeakDriver, verification_record, peak_sums
    passes/loop.py: Run.drive, run_pass, sum_blocks
    kernels/sums.py: feature_sums
    kernels/sincos.py: add_sums

Before, `FourierSpace.search` (`methods/frequency_search/frequency_space.py`) finds the candidates on sampled rows, by
the ascents of `search_peaks` (`peak_search.py`).
"""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.kernels.nufft import MOST_COLUMNS, FrequencyGrid, why_no_nufft
from dkl.kernels.scale import scale_rows
from dkl.linear.target_statistics import target_units
from dkl.methods.frequency_search.frequency_space import FourierSpace
from dkl.methods.frequency_search.learner import PreparedRows, SearchingLearner, SearchStrategy, check_searchable
from dkl.methods.frequency_search.peak_search import Method, SearchOptions, distinct_peaks, sample_size
from dkl.methods.parameters import PEAKS, Constraints, estimator, family_of, kept_frequencies
from dkl.methods.peaks.driver import PeakDriver, PeakProblem, PeakState, PeakTargets, chosen_points, filled
from dkl.methods.peaks.grid_driver import REACH, GridDriver, GridProblem, GridState
from dkl.methods.room import check_room
from dkl.methods.warm_start import goes_on
from dkl.passes.devices import driving_device


class PeakSearch(SearchStrategy):
    """What the parameters of PeakFeatures mean for each `method`."""

    @property
    def counts(self) -> tuple[int, int]:
        """The number of frequencies to search for, and the number to keep."""
        # a pair of a cosine and a sine has two columns
        n_points = self.given.n_features // 2
        return int(np.ceil((1.0 - self.given.plain_share) * n_points)), n_points

    def check(self) -> None:
        """Raise ValueError for a family that cannot be searched, or if `n_features` is less than one pair."""
        family = family_of(self.given)
        check_searchable("PeakFeatures", family)
        if not isinstance(family, FiniteFamily):
            kept_frequencies("PeakFeatures", self.given.n_features, family)

    def check_rows(self, dataset: Dataset) -> None:
        """Raise ValueError for rows that the method cannot search."""

    def start(self, feature_map: FeatureMap, n_peaks: int) -> np.ndarray | None:
        """The first frequencies of the last fit as candidates, if a search may miss them; else None."""
        return None

    def targets(self, rows: PreparedRows) -> PeakTargets:
        """The weights s of the potential: class indicators minus class shares, or standardised targets."""
        dataset: Dataset = rows.dataset
        scale: Any = rows.target_scale
        if dataset.classes is not None:
            # the share of each class in the total weight, class factors included
            totals = np.asarray(dataset.class_weights, dtype=np.float64)
            totals = totals if rows.class_weight is None else totals * rows.class_weight
            return PeakTargets(len(totals), rows.class_weight, totals / totals.sum())
        return PeakTargets(None, None, scale.center, scale.scale)


def kept_attributes(pool: FeatureMap, potentials: np.ndarray, kept: np.ndarray) -> dict[str, Any]:
    """Fitted attributes: all candidates with potentials, and the map of the kept ones with amplitudes 1 / sqrt(m)."""
    weights = np.zeros(len(potentials))
    weights[kept] = 1.0 / max(1, len(kept))
    return {
        "pool_": pool,
        "feature_map_": pool.take(kept, np.full(len(kept), 1.0 / np.sqrt(max(1, len(kept))))),
        "candidate_potentials_": potentials,
        "potentials_": potentials[kept],
        "weights_": weights,
    }


# Half the width of the searched box, in units of 1 / sigma, for max_norm=None.
_WIDTH = 12.0
_SAMPLE_ROWS = 20_000
# Limits the bytes of the sums of one pass over the first grid.
_SUM_BYTES = 64 << 20
# For chains=None the least number of chains, and chains for each kept frequency; candidates for each peak.
_LEAST_CHAINS, _CHAINS_A_PEAK, _CANDIDATES_A_PEAK = 200, 4, 2
# The error of a sampled potential from which theorem 4.4 computes the size of the first sample.
_ACCURACY = 0.1
# Fewest rows of a sample, if the data have as many, and a limit on its bytes.
_FEWEST_SAMPLED, _SAMPLE_BYTES = 1_000, 64 << 20


@estimator
class PeakFeatures(SearchingLearner):
    """Features at the peaks of the targets' Fourier potential: the frequencies with which the targets correlate most.

    The potential v(w) = sum_k |sum_i s_ik exp(i w.x_i)|^2 has s = y minus its mean (class indicators minus class
    shares, one column for each class; standardised numbers). Many chains ascend on a row sample, all candidates are
    verified on all rows, and the best distinct ones are kept. If the peaks are much lower on all rows than on the
    sample, the sample is enlarged. Peaks of one potential are partly redundant, so that half of the features are random
    draws, unless `plain_share` is 0. A fit takes a pass for scaler and bandwidth (if either is needed), one for the
    sample, one for verification, and one more for each larger sample; a finite family takes a single pass.

    Parameters
    ----------
    family : Family or None
        A family of cosine-sine pairs, whose bandwidth is the scale of starts and steps; None is ``Gaussian()`` with the
        median bandwidth. Or a finite one, such as ``SphericalHarmonics(...)``, whose best features are taken.
    n_features : int
        Upper bound on the output columns: a pair has two.
    method : {"langevin", "quasi-newton", "grid"}
        "langevin": noisy gradient steps, as in the paper; "quasi-newton": limited-memory BFGS steps, which reach the
        same potentials in half as many. "grid": for rows of at most 3 columns (requires finufft), a global search on
        all rows with a bound on what it missed: one pass for a grid of up to a million frequencies, at most six for
        refined cells, one for verification.
    chains : int or None
        Number of ascents; None is four for each kept frequency, and 200 at least.
    steps : int
        Gradient evaluations of each chain.
    stride : float
        Length of the first step, in units of sqrt(d) / sigma; later ones are shorter and end at 0.
    noise : float
        Length of the Langevin noise relative to the step; 1 is the paper's rule, 0 is plain ascent.
    sparse_share : float
        Fraction of the chains that move on 1 to 3 columns only: main effects and interactions that a person can
        interpret.
    polish : int
        Further evaluations of noise-free ascent from the best point of each chain.
    held_out : float
        Fraction of the sample that is not used for gradients but to choose the best point of each chain. 0 uses all
        rows for both.
    plain_share : float
        Fraction of the features that are random draws from the family, which also replace missing peaks. With 0, the
        paper's algorithm, there may be fewer features than `n_features`.
    cosine : float
        Two peaks count as one if the cosine of the angle between them is larger (and their lengths differ by less than
        20 %).
    tol : float
        Accuracy of the grid: no root of a potential in its box exceeds the best found by more, unless `message_` says
        that this was not reached.
    max_norm : float or None
        Largest length of a frequency. The grid covers |w_j| <= max_norm, or 12 / sigma if it is None.
    warm_start : bool
        Whether the peaks of the last fit are candidates of the next `fit`, which keeps bandwidth and scaler.
    search_rows : int or None
        Rows of the first sample; None is the number that theorem 4.4 gives for all chains at an accuracy of 0.1, about
        7,000.
    scaling, max_rows, class_weight
        As in `AlignedFeatures`.
    dtype, device, random_state, checkpoint, progress, memory_limit
        As in `RandomFeatures`.

    Attributes
    ----------
    feature_map_ : FeatureMap
    frequencies_ : ndarray or csr_array of shape (m, d)
        Highest peak first, then random ones; sparse if some chains moved on a few columns.
    potentials_ : ndarray of shape (m,)
        Potentials of `frequencies_` on all rows, normalised over pairs of different rows; 1 is the maximum.
    candidates_ : ndarray or csr_array of shape (D, d)
        All points that were verified.
    candidate_potentials_ : ndarray of shape (D,)
    n_peaks_ : int
        Number of `frequencies_` that were found by search.
    weights_ : ndarray of shape (D,)
        1 / m for kept candidates, else 0.
    sample_rows_ : int
        Rows of the last search.
    certificate_ : float or None
        For the grid, an upper bound on the potential of all frequencies in its box; else None.
    message_ : str
        How the search ended.
    family_, scaler_, seed_, n_features_in_, classes_, stats_
        As in `AlignedFeatures`.

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

    @property
    def candidates_(self) -> Any:
        """All points that were verified, of shape (D, d)."""
        return formed(self.pool_.projection)

    def _check_room(self, dataset: Dataset) -> None:
        family = self._planned_family()
        if not isinstance(family, FiniteFamily):
            # memory for a candidate of the search, and for the frequency that is kept
            size = self._n_frequencies(family)
            check_room(self, size, dataset.n_columns, n_points=size)

    def _check_rest(self) -> None:
        self._strategy().check()

    def _strategy(self) -> PeakSearch:
        """The search for `method`; all differences between methods are inside it."""
        return GridSearch(self) if self.method == "grid" else AscentSearch(self)

    def _learn(self, dataset: Dataset) -> None:
        strategy = self._strategy()
        strategy.check_rows(dataset)
        # rows in memory have no earlier plan that checks this
        self._check_room(dataset)
        start = None
        # the search of this fit may miss peaks of the last one
        if goes_on(self, dataset, ("family", "scaling", "dtype")):
            start = strategy.start(self.feature_map_, self.n_peaks_)
        self._take_targets(dataset)
        scale = target_units(dataset, self._running("targets"))
        # frequencies of the last fit belong to the rows as it scaled them
        scaler = self._prepare(dataset) if start is None else self.scaler_
        rows = self._prepared(dataset, scaler, scale)
        problem = strategy.problem(rows, start)
        state = self._run(strategy.driver(), problem, dataset, strategy.stage)
        self.__dict__.update(strategy.fitted(rows, problem, state))


class AscentSearch(PeakSearch):
    """`method="langevin"` and `"quasi-newton"` of PeakFeatures."""

    stage: ClassVar[str] = "peaks"

    def driver(self) -> PeakDriver:
        """The driver of searches on samples and of the passes that verify them."""
        return PeakDriver()

    def start(self, feature_map: FeatureMap, n_peaks: int) -> np.ndarray | None:
        """The peaks of the last fit as candidates, since a search may miss them; None for a finite family."""
        if isinstance(family_of(self.given), FiniteFamily):
            return None
        return np.asarray(feature_map.projection.take(np.arange(n_peaks)).dense(), dtype=np.float32)

    def problem(self, rows: PreparedRows, start: np.ndarray | None) -> PeakProblem:
        """The search on these rows, with two candidates for each peak, and random draws to fill up."""
        n_peaks, n_points = self.counts
        n_rows = rows.dataset.n_rows
        chains = max(_LEAST_CHAINS, _CHAINS_A_PEAK * n_points) if self.given.chains is None else self.given.chains
        options = SearchOptions(
            chains=chains,
            steps=self.given.steps,
            stride=self.given.stride,
            noise=self.given.noise,
            sparse_share=self.given.sparse_share,
            polish=self.given.polish,
            max_norm=self.given.max_norm,
            method=self.given.method,
            held_out=self.given.held_out,
            device=driving_device(self.given.device),
        )
        space = rows.frequency_space("PeakFeatures", options)
        if isinstance(space, FourierSpace):
            space = replace(space, cosine=self.given.cosine)
        if not space.draws_plainly:
            n_peaks = n_points = max(1, self.given.n_features // space.columns_a_point)
        most = min(n_rows, max(_FEWEST_SAMPLED, rows.within(_SAMPLE_BYTES)))
        # n >= 8 log(2 K / failure) / accuracy^2 rows bound the error of K chains at once
        first = self.given.search_rows
        first = min(n_rows, min(sample_size(chains, _ACCURACY), most) if first is None else first)
        n_candidates = _CANDIDATES_A_PEAK * n_peaks if space.size is None else space.size
        return PeakProblem(
            space=space,
            targets=self.targets(rows),
            n_peaks=n_peaks,
            n_candidates=n_candidates,
            n_rows=n_rows,
            sample_rows=first,
            most_rows=max(first, most),
            n_points=n_points,
            n_plain=n_points if self.given.plain_share and space.draws_plainly else 0,
            seed=rows.seed,
            dtype=rows.dtype,
            start=start,
        )

    def fitted(self, rows: PreparedRows, problem: PeakProblem, state: PeakState) -> dict[str, Any]:
        """The fitted attributes: the highest distinct peaks, highest first, then random draws."""
        kept = chosen_points(problem, state)
        n_peaks = len(problem.space.distinct(state.points, state.verified, problem.n_peaks)) if len(kept) else 0
        is_pool, peaks = problem.space.size is not None, kept[:n_peaks]
        if is_pool:
            message = f"took the best {n_peaks} of {len(state.points)} features by their potentials on all rows"
        else:
            noun = "peak" if n_peaks == 1 else "peaks"
            message = f"{n_peaks} {noun}, searched on {state.sample_rows} rows in {state.passes} passes"
            message = f"{state.ended}: {message}" if state.ended else message
            # how far the search has fitted the noise of its sample: what the median peak keeps on all rows
            sampled, verified = np.median(state.sampled[peaks]), np.median(state.verified[peaks])
            share = verified / sampled if sampled > 0.0 else 1.0
            message = f"{message}; on all rows they keep {share:.0%} of the sampled potential"
            if n_peaks < problem.n_peaks:
                more = "more chains, or MarginFeatures, find more that differ"
                message = f"{message}. {problem.n_peaks} were asked for: {more}"
        return {
            **kept_attributes(problem.space.feature_map(state.points), state.verified, kept),
            "n_peaks_": n_peaks,
            "certificate_": None,
            "sample_rows_": 0 if is_pool else min(state.sample_rows, problem.n_rows),
            "message_": message,
        }


class GridSearch(PeakSearch):
    """`method="grid"` of PeakFeatures."""

    stage: ClassVar[str] = "grid"

    def check(self) -> None:
        """Raise an error if a grid search is impossible.

        Raises
        ------
        ImportError
            If finufft is missing.
        ValueError
            If the family has no frequencies.
        """
        reason = why_no_nufft()
        if reason is not None:
            raise ImportError(f"method='grid' needs non-uniform fast transforms, and {reason}")
        family = family_of(self.given)
        if isinstance(family, FiniteFamily):
            raise ValueError(
                f"method='grid' searches frequencies, and {family!r} has a finite pool, which needs no search"
            )
        super().check()

    def check_rows(self, dataset: Dataset) -> None:
        """Raise ValueError for rows of too many columns, since a grid grows exponentially with them."""
        d = dataset.n_columns
        if d > MOST_COLUMNS:
            raise ValueError(
                f"method='grid' is for rows of at most {MOST_COLUMNS} columns; these have {d}. Use method='langevin'"
            )

    def driver(self) -> GridDriver:
        """The driver of branch and bound over the box."""
        return GridDriver()

    def problem(self, rows: PreparedRows, start: None) -> GridProblem:
        """The box to search, with as many cells as one pass can sum; a grid needs no start, since it misses no peak."""
        d, seed, targets = rows.dataset.n_columns, rows.seed, self.targets(rows)
        origin = replace(rows.family.draw(1, d, 0, rows.dtype), scaler=rows.scaler)
        sigma = getattr(rows.family, "sigma", 1.0)
        width = _WIDTH / sigma if self.given.max_norm is None else self.given.max_norm
        # frequencies |k_j| <= reach on each axis, fewer if S has several columns
        reach = REACH[d]
        while reach > 1 and 16 * targets.n_columns * (reach + 1) * (2 * reach + 1) ** (d - 1) > _SUM_BYTES:
            reach -= 1
        # The mean of the rows of the first block is near enough to the middle of all: the certificate is valid for any
        # point, and tightest for the middle.
        source, center = rows.dataset.source, np.zeros(d)
        index = next((i for i in range(source.n_blocks) if source.block_rows[i]), None)
        if index is not None:
            scaled = scale_rows(source.reader().load(source.ticket(index)).X, rows.scaler, "float64")
            center = np.asarray(scaled.mean(axis=0), dtype=np.float64).ravel()
        n_peaks, n_points = self.counts
        random = np.asarray(rows.family.draw(n_points, d, seed, np.float32).projection.dense())
        return GridProblem(
            origin=origin,
            targets=targets,
            grid=FrequencyGrid(np.full(d, width / reach), (reach,) * d),
            center=center,
            n_peaks=n_peaks,
            n_candidates=_CANDIDATES_A_PEAK * n_peaks,
            n_rows=rows.dataset.n_rows,
            sample_rows=min(rows.dataset.n_rows, self.given.search_rows or _SAMPLE_ROWS),
            tol=self.given.tol,
            seed=seed,
            dtype=rows.dtype,
            plain=random if self.given.plain_share else None,
        )

    def fitted(self, rows: PreparedRows, problem: GridProblem, state: GridState) -> dict[str, Any]:
        """The fitted attributes: the highest distinct peaks, random draws, and the bound on all other frequencies."""
        peaks = distinct_peaks(state.points, state.verified, problem.n_peaks, cosine=self.given.cosine)
        n_random = 0 if problem.plain is None else len(problem.plain)
        kept = filled(peaks, n_random, self.counts[1])
        # the driver bounds roots of potentials; the certificate bounds the potential itself, which is at most 1
        certificate = min(1.0, state.bound**2)
        width = problem.grid.spacing[0] * problem.grid.reach[0]
        message = (
            f"{len(peaks)} peaks in {state.passes} passes; certified: no frequency with |w_j| <= {width:.3g} has a "
            f"potential above {certificate:.3g}, and the best has about {state.best**2:.3g}"
        )
        if state.bound > state.best + 1.01 * problem.tol:
            message += f". tol={problem.tol} was asked for and not reached; a smaller max_norm comes closer"
        return {
            **kept_attributes(problem.feature_map(state.points), state.verified, kept),
            "n_peaks_": len(peaks),
            "certificate_": certificate,
            "sample_rows_": problem.sample_rows,
            "message_": message,
        }
