"""Peaks by gradient ascent: the parameters of `PeakFeatures` as a search from many starts on a sample of the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.methods.frequency_search.learner import PreparedRows
from dkl.methods.frequency_search.peak_search import Method, SearchOptions, sample_size
from dkl.methods.peaks.driver import PeakDriver, PeakProblem, PeakState, chosen_points, distinct_points
from dkl.methods.peaks.search_learner import PeakSearch, kept_attributes
from dkl.passes.devices import driving_device

# Chains for chains=None: their least number, and for each wanted peak; candidates verified for each wanted peak.
_LEAST_CHAINS, _CHAINS_A_PEAK, _CANDIDATES_A_PEAK = 200, 4, 2
# The error of a sampled potential that sets the size of the first sample, by theorem 4.4.
_ACCURACY = 0.1
# Rows of a sample at least, if the data have as many, and its bytes at most.
_FEWEST_SAMPLED, _SAMPLE_BYTES = 1_000, 64 << 20


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

    def check_rows(self, rows: PreparedRows) -> None:
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
