"""Peaks by a global search in up to three dimensions: the parameters of `PeakFeatures` as a grid, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dkl.features.families import FiniteFamily
from dkl.features.feature_map import FeatureMap
from dkl.kernels.nufft import MOST_COLUMNS, FrequencyGrid, why_no_nufft
from dkl.kernels.scale import scale_rows
from dkl.methods.frequency_search.learner import PreparedRows
from dkl.methods.frequency_search.peak_search import distinct_peaks
from dkl.methods.peaks.driver import filled
from dkl.methods.peaks.grid_driver import REACH, GridDriver, GridProblem, GridState
from dkl.methods.peaks.search_learner import PeakSearch, kept_attributes

# Half the width of the searched box, in units of 1 / sigma, for max_norm=None.
_WIDTH = 12.0
_CANDIDATES_A_PEAK = 2
_SAMPLE_ROWS = 20_000
# Bytes of the sums of one pass over the first grid.
_SUM_BYTES = 64 << 20


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

    def check_rows(self, rows: PreparedRows) -> None:
        """Raise ValueError for rows of too many columns: a grid grows exponentially with them."""
        d = rows.dataset.n_columns
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
