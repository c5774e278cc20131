"""PeakFeatures: the peaks of the targets' Fourier potential, by ascents or on a grid, verified on all rows."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import Family, FiniteFamily, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import formed
from dkl.features.scaling import ScalingChoice
from dkl.kernels.nufft import MOST_COLUMNS, FrequencyGrid, why_no_nufft
from dkl.kernels.scale import scale_rows
from dkl.linear.target_statistics import target_units
from dkl.methods.frequency_search.learner import PreparedRows, SearchingLearner, SearchStrategy, check_searchable
from dkl.methods.frequency_search.peak_search import Method, SearchOptions, distinct_peaks, sample_size
from dkl.methods.parameters import PEAKS, Constraints, estimator, kept_frequencies
from dkl.methods.peaks.driver import PeakDriver, PeakProblem, PeakState, chosen_points, distinct_points, filled
from dkl.methods.peaks.grid_driver import REACH, GridDriver, GridProblem, GridState
from dkl.methods.peaks.sums import PeakTargets
from dkl.methods.room import check_room
from dkl.methods.warm_start import goes_on
from dkl.passes.devices import driving_device


@dataclass(frozen=True, eq=False)
class PeakSearch:
    """The parameters of PeakFeatures that mean the same for each `method`.

    Parameters
    ----------
    family, n_features, plain_share, cosine, max_norm, search_rows
    """

    family: Family | None
    n_features: int
    plain_share: float
    cosine: float
    max_norm: float | None
    search_rows: int | None

    @property
    def given_family(self) -> Family:
        """The family, before its bandwidth is known."""
        return Gaussian() if self.family is None else self.family

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of frequencies to search for, and to keep in all."""
        # a pair of a cosine and a sine takes two columns
        n_points = self.n_features // 2
        return int(np.ceil((1.0 - self.plain_share) * n_points)), n_points

    def check(self) -> None:
        """Raise ValueError for a family that cannot be searched, or for `n_features` below one of its pairs."""
        check_searchable("PeakFeatures", self.given_family)
        if not isinstance(self.given_family, FiniteFamily):
            kept_frequencies("PeakFeatures", self.n_features, self.given_family)

    def columns(self, problem: object, start: object) -> None:
        """No row columns."""
        return None

    def targets(self, rows: PreparedRows) -> PeakTargets:
        """The weights s of the potential: class indicators minus their shares, or standardised targets."""
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
# Bytes of the sums of one pass over the first grid.
_SUM_BYTES = 64 << 20
# Chains for chains=None: their least number, and for each wanted peak; candidates verified for each wanted peak.
_LEAST_CHAINS, _CHAINS_A_PEAK, _CANDIDATES_A_PEAK = 200, 4, 2
# The error of a sampled potential that sets the size of the first sample, by theorem 4.4.
_ACCURACY = 0.1
# Rows of a sample at least, if the data have as many, and its bytes at most.
_FEWEST_SAMPLED, _SAMPLE_BYTES = 1_000, 64 << 20
P = TypeVar("P")
S = TypeVar("S")
Start = TypeVar("Start", contravariant=True)


class PeakStrategy(SearchStrategy[P, S, Start], Protocol[P, S, Start]):
    """A strategy behind `method`, with the rows that it applies to and its use of the last fit with `warm_start`."""

    def check_rows(self, dataset: Dataset) -> None:
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

    def _learn(self, dataset: Dataset) -> None:
        strategy = self._strategy()
        strategy.check_rows(dataset)
        # a fit of rows in memory is not planned before
        self._check_room(dataset)
        start = None
        # peaks of the last fit are candidates of this one, whose own search may miss them
        if goes_on(self, dataset, ("family", "scaling", "dtype")):
            start = strategy.start(self.feature_map_, self.n_peaks_)
        if dataset.classes is not None:
            self.classes_ = dataset.classes
        scale = target_units(dataset, self._running("targets"))
        # frequencies of the last fit are frequencies of its scaled rows
        scaler = self._prepare(dataset) if start is None else self.scaler_
        rows = self._prepared(dataset, scaler, scale)
        problem = strategy.problem(rows, start)
        state = self._run(strategy.driver(), problem, dataset, strategy.stage)
        self.__dict__.update(strategy.fitted(rows, problem, state))


@dataclass(frozen=True, eq=False)
class AscentSearch(PeakSearch):
    """`method="langevin"` and `"quasi-newton"` of PeakFeatures; parameters as there."""

    method: Method
    chains: int | None
    steps: int
    stride: float
    noise: float
    sparse_share: float
    polish: int
    held_out: float
    device: Any

    stage: ClassVar[str] = "peaks"

    def check_rows(self, dataset: Dataset) -> None:
        """Rows of any number of columns can be searched on."""

    def driver(self) -> PeakDriver:
        """The searches on samples and the passes that verify them."""
        return PeakDriver()

    def start(self, feature_map: FeatureMap, n_peaks: int) -> np.ndarray | None:
        """The peaks of the last fit as candidates, since a search may miss them; None for a finite family."""
        if isinstance(self.given_family, FiniteFamily):
            return None
        return np.asarray(feature_map.projection.take(np.arange(n_peaks)).dense(), dtype=np.float32)

    def problem(self, rows: PreparedRows, start: np.ndarray | None) -> PeakProblem:
        """The search on these rows, with twice as many candidates as peaks, and random draws to fill up."""
        n_peaks, n_points = self.counts
        n_rows = rows.dataset.n_rows
        chains = max(_LEAST_CHAINS, _CHAINS_A_PEAK * n_points) if self.chains is None else self.chains
        options = SearchOptions(
            chains=chains,
            steps=self.steps,
            stride=self.stride,
            noise=self.noise,
            sparse_share=self.sparse_share,
            polish=self.polish,
            max_norm=self.max_norm,
            method=self.method,
            held_out=self.held_out,
            device=driving_device(self.device),
        )
        space = rows.frequency_space("PeakFeatures", options)
        if not space.draws_plainly:
            n_peaks = n_points = max(1, self.n_features // space.columns_a_point)
        most = min(n_rows, max(_FEWEST_SAMPLED, rows.within(_SAMPLE_BYTES)))
        # n >= 8 log(2 K / failure) / accuracy^2 rows are right about K chains at once
        first = min(n_rows, min(sample_size(chains, _ACCURACY), most) if self.search_rows is None else self.search_rows)
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
            n_plain=n_points if self.plain_share and space.draws_plainly else 0,
            cosine=self.cosine,
            seed=rows.seed,
            dtype=rows.dtype,
            start=start,
        )

    def fitted(self, rows: PreparedRows, problem: PeakProblem, state: PeakState) -> dict[str, Any]:
        """The highest distinct peaks, highest first, and random draws."""
        kept = chosen_points(problem, state)
        n_peaks = len(distinct_points(problem, state.points, state.verified, problem.n_peaks)) if len(kept) else 0
        is_pool, peaks = problem.space.size is not None, kept[:n_peaks]
        if is_pool:
            message = f"took the best {n_peaks} of {len(state.points)} features by their potentials on all rows"
        else:
            noun = "peak" if n_peaks == 1 else "peaks"
            message = f"{n_peaks} {noun}, searched on {state.sample_rows} rows in {state.passes} passes"
            message = f"{state.ended}: {message}" if state.ended else message
            # how far the search has followed the noise of its rows: on all rows the median peak keeps this share
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


@dataclass(frozen=True, eq=False)
class GridSearch(PeakSearch):
    """`method="grid"` of PeakFeatures; parameters as there."""

    tol: float

    stage: ClassVar[str] = "grid"

    def check(self) -> None:
        """Raise an error where a grid cannot be searched at all.

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
        if isinstance(self.given_family, FiniteFamily):
            raise ValueError(
                f"method='grid' searches frequencies, and {self.given_family!r} has a finite pool, which needs no "
                "search"
            )
        super().check()

    def check_rows(self, dataset: Dataset) -> None:
        """Raise ValueError for rows of too many columns: a grid grows exponentially with them."""
        d = dataset.n_columns
        if d > MOST_COLUMNS:
            raise ValueError(
                f"method='grid' is for rows of at most {MOST_COLUMNS} columns; these have {d}. Use method='langevin'"
            )

    def driver(self) -> GridDriver:
        """Branch and bound over the box."""
        return GridDriver()

    def start(self, feature_map: FeatureMap, n_peaks: int) -> None:
        """None: a grid misses no peak, so that the last fit has nothing to add."""
        return None

    def problem(self, rows: PreparedRows, start: None) -> GridProblem:
        """The box to search, cut into the number of cells that one pass sums."""
        d, seed, targets = rows.dataset.n_columns, rows.seed, self.targets(rows)
        origin = replace(rows.family.draw(1, d, 0, rows.dtype), scaler=rows.scaler)
        sigma = getattr(rows.family, "sigma", 1.0)
        width = _WIDTH / sigma if self.max_norm is None else self.max_norm
        # frequencies |k_j| <= reach on each axis: fewer where there are several columns of sums
        reach = REACH[d]
        while reach > 1 and 16 * targets.n_columns * (reach + 1) * (2 * reach + 1) ** (d - 1) > _SUM_BYTES:
            reach -= 1
        # The mean of the first scaled rows is near enough to the middle of all: the certificate is valid around any
        # point, and tightest around the middle.
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
            sample_rows=min(rows.dataset.n_rows, self.search_rows or _SAMPLE_ROWS),
            tol=self.tol,
            seed=seed,
            dtype=rows.dtype,
            plain=random if self.plain_share else None,
        )

    def fitted(self, rows: PreparedRows, problem: GridProblem, state: GridState) -> dict[str, Any]:
        """The highest distinct peaks, random draws, and the bound that no other frequency exceeds."""
        peaks = distinct_peaks(state.points, state.verified, problem.n_peaks, cosine=self.cosine)
        n_random = 0 if problem.plain is None else len(problem.plain)
        kept = filled(peaks, n_random, self.counts[1])
        # roots of potentials are bounded: the certificate is of the potential itself, which is 1 at most
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
