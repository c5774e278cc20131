"""The global search of `PeakFeatures` in up to three dimensions: its parameters as a problem, and how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.kernels.nufft import FrequencyGrid, why_no_nufft
from dkl.kernels.scale import scale_rows
from dkl.methods.peaks.grid_driver import REACH, GridProblem, GridState
from dkl.methods.peaks.sums import PeakTargets

# half the width of the box times sigma, where no largest norm says otherwise
_WIDTH = 12.0
_CANDIDATES_A_PEAK = 2
_SAMPLE_ROWS = 20_000
_SUM_BYTES = 64 << 20


def check_grid(family: Any) -> None:
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
    if isinstance(family, FiniteFamily):
        raise ValueError(f"method='grid' searches frequencies, and {family!r} has a finite pool, which needs no search")


def grid_problem(learner: Any, family: Any, dataset: Dataset, targets: PeakTargets, scaler: Any) -> GridProblem:
    """The search that a learner's parameters describe; `family` has its bandwidth."""
    d = dataset.n_columns
    origin = replace(family.draw(1, d, 0, learner.dtype), scaler=scaler)
    width = _WIDTH / family.sigma if learner.max_norm is None else learner.max_norm
    n_peaks, n_points = learner._counts()
    plain = family.draw(n_points, d, getattr(learner, "seed_", 0), np.float32).projection.dense()
    return GridProblem(
        origin=origin,
        targets=targets,
        grid=_grid(width, d, targets.n_columns),
        center=_middle(dataset, scaler),
        n_peaks=n_peaks,
        n_candidates=_CANDIDATES_A_PEAK * n_peaks,
        n_rows=dataset.n_rows,
        sample_rows=min(dataset.n_rows, learner.search_rows or _SAMPLE_ROWS),
        tol=learner.tol,
        seed=getattr(learner, "seed_", 0),
        dtype=learner.dtype,
        plain=np.asarray(plain) if learner.plain_share else None,
    )


def grid_message(problem: GridProblem, state: GridState, n_found: int) -> str:
    """How the search ended: what is certified, and what to do where that is less than was asked for."""
    width = problem.grid.spacing[0] * problem.grid.reach[0]
    found = (
        f"{n_found} peaks in {state.passes} passes; certified: no frequency with |w_j| <= {width:.3g} has a potential"
    )
    told = f"{found} above {min(1.0, state.bound**2):.3g}, and the best has about {state.best**2:.3g}"
    if state.bound > state.best + 1.01 * problem.tol:
        return f"{told}. tol={problem.tol} was asked for and not reached; a smaller max_norm comes closer"
    return told


def _grid(width: float, d: int, n_sums: int) -> FrequencyGrid:
    """A cube of half that width, of as many frequencies as one pass should sum."""
    reach = REACH[d]
    while reach > 1 and 16 * n_sums * (reach + 1) * (2 * reach + 1) ** (d - 1) > _SUM_BYTES:
        reach -= 1
    return FrequencyGrid(np.full(d, width / reach), (reach,) * d)


def _middle(dataset: Dataset, scaler: Any) -> np.ndarray:
    """The mean of the first scaled rows: near enough to the middle of all."""
    source = dataset.source
    index = next((i for i in range(source.n_blocks) if source.block_rows[i]), None)
    if index is None:
        return np.zeros(dataset.n_columns)
    rows = scale_rows(source.reader().load(source.ticket(index)).X, scaler, "float64")
    return np.asarray(rows.mean(axis=0), dtype=np.float64).ravel()
