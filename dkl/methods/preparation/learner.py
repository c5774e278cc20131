"""The first step of every learner: scaler and bandwidth, then the draw of candidates."""

from __future__ import annotations

from functools import reduce
from typing import cast

import numpy as np

from dkl.data.dataset import Dataset
from dkl.encodings.fitted import FittedEncoding
from dkl.errors import hint
from dkl.features.families import Family, FiniteFamily, Laplacian
from dkl.features.feature_map import FeatureMap
from dkl.features.frequencies import stream
from dkl.features.harmonics import SphericalHarmonics
from dkl.features.scaling import ScalingChoice, ScalingKind
from dkl.methods.preparation.driver import PreparationProblem
from dkl.plain_text import first_few

# Columns that a message names; the others are counted.
_NAMED = 5


def preparation_problem(
    dataset: Dataset, family: Family, scaling: ScalingChoice | None, seed: int
) -> PreparationProblem:
    """The problem of finding the scaler of these rows, and the bandwidth of `family` on scaled columns."""
    source, encoding = dataset.source, dataset.schema.encoding
    kind: ScalingKind | None = (None if source.is_sparse else "standard") if scaling == "auto" else scaling
    rows = int(np.max(source.block_rows, initial=1))
    return PreparationProblem(
        n_rows=dataset.n_rows,
        n_columns=dataset.n_columns,
        # the mean bytes of a row in the largest block, rounded up
        row_nbytes=-(-source.block_nbytes // max(rows, 1)),
        is_sparse=source.is_sparse,
        passthrough=np.asarray(dataset.passthrough, dtype=bool),
        seed=seed,
        scaling=kind,
        learned=encoding.learned if isinstance(encoding, FittedEncoding) else None,
        needs_bandwidth=family.needs_bandwidth,
        # the Laplacian kernel is a function of the city-block distance
        metric="cityblock" if isinstance(family, Laplacian) else "euclidean",
    )


def tell_of_heavy_tails(columns: np.ndarray, dataset: Dataset) -> None:
    """Publish a note on columns with heavy tails, with the remedy."""
    if len(columns) == 0:
        return
    names = dataset.column_names
    shown = ", ".join(
        first_few(columns, _NAMED, text_of=lambda j: f"column {j}" if names is None else repr(str(names[j])))
    )
    hint(
        f"{len(columns)} of {dataset.n_columns} columns have heavy tails ({shown}): a few rows are "
        "far from all others there. scaling='quantile' often gains 2 to 4 points of accuracy on such columns",
        topic="heavy tails",
    )


def draw_pool(
    family: Family,
    n_candidates: int | None,
    n_columns: int,
    *,
    seed: int,
    dtype: str,
    factors: tuple[float, ...] = (1.0,),
) -> FeatureMap:
    """Candidates of a family, spread evenly over its bandwidth times each of `factors`.

    Parameters
    ----------
    family : Family
        A family whose bandwidth is a number.
    n_candidates : int or None
        The total number of frequencies. None is the whole pool of a finite family; so is any number from its size on,
        for families that know it, since draws with replacement could only omit some.
    n_columns : int
    seed : int
    dtype : {"float32", "float64"}
    factors : tuple of float

    Returns
    -------
    FeatureMap
        With `n_candidates` frequencies and amplitudes 1; the candidates of each factor are consecutive.

    Raises
    ------
    ValueError
        If there are several factors and the family has no bandwidth, or draws structured frequencies.
    """
    if n_candidates is None or (isinstance(family, SphericalHarmonics) and n_candidates >= family.size(n_columns)):
        # learners refuse None for infinite families when they check parameters
        return cast(FiniteFamily, family).pool(n_columns, dtype)
    if factors == (1.0,):
        return family.draw(n_candidates, n_columns, seed, dtype)
    sigma = getattr(family, "sigma", None)
    if sigma is None or getattr(family, "sampling", "iid") == "structured":
        raise ValueError(
            f"sigma_factors spreads candidates over several bandwidths, which {family!r} cannot do; "
            "use sigma_factors=(1.0,), or a family with a sigma and sampling='iid' or 'orthogonal'"
        )
    sizes = [len(part) for part in np.array_split(np.arange(n_candidates), len(factors))]
    # one part for each bandwidth, with different seeds, since equal ones would repeat the directions
    seeds = stream(seed, "bandwidths").integers(0, 2**31, size=len(factors))
    parts = [
        family.with_bandwidth(sigma * factor).draw(size, n_columns, int(part_seed), dtype)
        for factor, size, part_seed in zip(factors, sizes, seeds, strict=True)
        if size
    ]
    return reduce(FeatureMap.joined, parts)
