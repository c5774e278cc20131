"""What learners that search have in common: where they look, and how many rows they may look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.features.families import FiniteFamily
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencySpace
from dkl.methods.frequency_search.harmonic_search import finite_space
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.protocols.source import BlockSource


def check_searchable(name: str, family: Any) -> None:
    """Raise ValueError for a family that has neither pairs to search for nor a finite pool."""
    if not isinstance(family, FiniteFamily) and family.with_bandwidth(1.0).draw(1, 1, 0).activation != "cos-sin":
        raise ValueError(
            f"{name} looks for cosine-sine pairs, or among the features of a finite family, and {family!r} has "
            "neither; use Gaussian(), or SphericalHarmonics(...) for rows on the unit sphere"
        )


def frequency_space_of(
    learner: Any, family: Any, n_columns: int, scaler: Any, options: SearchOptions, spread: float
) -> FrequencySpace:
    """All of R^d for families of pairs, and the pool of a finite family.

    Parameters
    ----------
    learner : FeatureLearner
    family : Family
        With its bandwidth.
    n_columns : int
    scaler : Scaler or None
    options : SearchOptions
    spread : float
        Chains for each point that is asked for; those of `options` are a lower bound.

    Raises
    ------
    ValueError
        As `check_searchable`.
    """
    check_searchable(type(learner).__name__, family)
    if isinstance(family, FiniteFamily):
        return finite_space(family, n_columns, scaler, learner.dtype)
    origin = replace(family.draw(1, n_columns, 0, learner.dtype), scaler=scaler)
    return FourierSpace(origin, family, options, spread)


def rows_within(nbytes: int, source: BlockSource) -> int:
    """How many rows of a source fit into so many bytes."""
    return nbytes // row_bytes(source)


def row_bytes(source: BlockSource) -> int:
    """What a row of a source takes, at most."""
    longest = max(1, int(np.max(source.block_rows, initial=1)))
    return max(1, source.block_nbytes // longest)


def weight_of(dataset: Dataset, class_weight: np.ndarray | None) -> float:
    """The total weight of the rows, with the factors (K,) of their classes."""
    return dataset.total_weight if class_weight is None else float(class_weight @ np.asarray(dataset.class_weights))
