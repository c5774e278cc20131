"""drift: whether two samples of rows are of one law, and which of their columns differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
from scipy import sparse

from dkl.data.checks import whole_number
from dkl.data.dataset import Dataset
from dkl.data.given import GivenRows, GivenValues
from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.features.families import Family, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.scaling import Scaler, ScalingKind
from dkl.kernels.moments import column_sums, moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.kernels.tiles import spans
from dkl.linear.fitting import Run
from dkl.methods.leverage.driver import gram_record
from dkl.methods.preparation.bandwidth import median_distance
from dkl.methods.preparation.driver import SAMPLE_BYTES
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.preparation.scalers import quantile_scaler, scaler_from_moments
from dkl.methods.steps.binning import column_bins
from dkl.passes.devices import computing_device
from dkl.passes.engine import run_pass
from dkl.progress import Choice, resolve_progress
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample
from dkl.protocols.source import BlockSource
from dkl.uncertainty.drift_result import ColumnDrift, Drift
from dkl.uncertainty.drift_samples import compared_samples, name_counts, names_record
from dkl.uncertainty.drift_statistics import bin_differences, holm, mean_discrepancy, name_difference
from dkl.uncertainty.drift_sums import counts_record

# Scaling, bandwidth and edges of bins follow from so many rows of each sample, out of so many blocks.
_SAMPLED_ROWS, _SAMPLED_BLOCKS = 1_000, 8
# A column is compared in so many bins, fewer where the smaller sample has not ten rows for each.
_MOST_EDGES, _ROWS_A_BIN = 9, 10
# With more columns the second moments would not be one accumulator, of 64 MiB.
_MOST_FEATURES = 4_094
# Columns of a sample that are written out at once where rows are sparse.
_DENSE_COLUMNS = 512


def drift(
    a: GivenRows | Dataset,
    b: GivenRows | Dataset,
    *,
    sample_weights: tuple[GivenValues, GivenValues] | None = None,
    family: Family | None = None,
    n_features: int = 500,
    scaling: ScalingKind | None = "standard",
    alpha: float = 0.05,
    random_state: int = 0,
    dtype: str = "float32",
    device: str = "auto",
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Drift:
    """Whether two samples of rows are of one law, and which of their columns differ; targets are not looked at.

    The mean random Fourier features of the two samples are as far apart as their distributions are, seen through the
    kernel (maximum mean discrepancy). Where the laws are equal, n_a n_b / (n_a + n_b) times the squared distance is a
    sum of weighted chi-squared variables, whose weights follow from the features' second moments. All of it is sums
    over blocks: each sample is read once, beside at most eight of its blocks, from which the scaling and the bandwidth
    are taken. Each column is compared by the shares of rows in up to ten bins (Pearson's chi-squared), and the p values
    of the columns are adjusted after Holm.

    Parameters
    ----------
    a, b : array of shape (n, d), scipy sparse matrix, Dask array, data frame, or Dataset
        Data frames are encoded by what is learned from both; beside a Dataset, as its rows were.
    sample_weights : (array of shape (n_a,) or None, array of shape (n_b,) or None), or None
        Frequency weights of rows that are no Dataset: a row of weight 2 is two rows.
    family : Family or None
        Of waves in pairs; None is ``Gaussian()`` with the median distance for its bandwidth.
    n_features : int
        Columns of the feature map, at most 4,094; the time of a pass grows with their square.
    scaling : {"standard", "minmax", "unit", "quantile"} or None
    alpha : float
        The share of pairs of samples of one law that are said to differ: of all rows, and of any column.
    random_state : int
        Draws the frequencies and the sampled rows.
    dtype : {"float32", "float64"}
        Of the features; sums are float64.
    device : {"auto", "cpu", "gpu", "mixed"}
    progress : bool, callable or None
    memory_limit : int, str or None
        Bytes that a process may hold.

    Returns
    -------
    Drift
        Print it, plot it, or take `p_value`, `alike` and `columns`.

    Raises
    ------
    ValueError
        If the columns of the two differ, one has fewer than two rows, or a parameter has no meaning.

    Notes
    -----
    Rows within a sample have to be independent: a time series of n steps is less than n rows, and differs from itself
    too often. With 1e8 rows a difference that matters to nobody is found: look at `distance` beside the p value.

    References
    ----------
    Gretton, Borgwardt, Rasch, Schölkopf & Smola 2012, "A kernel two-sample test"; Zhao & Meng 2015, "FastMMD".

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> rng = np.random.default_rng(0)
    >>> a, b = rng.normal(size=(500, 3)), rng.normal(size=(400, 3))
    >>> dkl.drift(a, b).alike
    True
    >>> b[:, 1] += 0.5
    >>> found = dkl.drift(a, b)
    >>> found.alike, [column.name for column in found.differing]
    (False, ['column 1'])
    """
    family = Gaussian() if family is None else family
    if not all(hasattr(family, name) for name in ("draw", "validate", "with_bandwidth", "feature_scale")):
        raise TypeError(f"family is {family!r}; expected one such as dkl.Gaussian() or dkl.Laplacian(), or None")
    family.validate()
    seed, n_features = whole_number(random_state, "random_state"), whole_number(n_features, "n_features", 2)
    _check_numbers(n_features, alpha, scaling, dtype)
    run = Run(publish=resolve_progress(progress), memory_limit=memory_limit, device=computing_device(device))
    samples = compared_samples(a, b, (None, None) if sample_weights is None else sample_weights, run)

    pooled = _pooled_sample(samples, seed, run)
    feature_map, sigma = _feature_map(samples[0], pooled, family, n_features // 2, scaling, seed=seed, dtype=dtype)
    fewest = min(sample.n_rows for sample in samples)
    edges, n_edges = _edges(pooled, int(np.clip(fewest // _ROWS_A_BIN, 2, _MOST_EDGES + 1)) - 1)
    names = names_record(samples[0])
    records = (
        gram_record(feature_map, (0, feature_map.n_features + 1), dtype),
        counts_record(edges, n_edges),
        moments_record(samples[0].n_columns, is_sparse=samples[0].source.is_sparse),
        *([] if names is None else [names]),
    )
    sums = [_pass(sample.source, records, run) for sample in samples]

    discrepancy = mean_discrepancy(sums[0][0]["gram"], sums[1][0]["gram"])
    counts_a, counts_b = (results[1]["counts"] for results in sums)
    distances, p_values = bin_differences(counts_a, counts_b)
    if names is not None:
        names_a, names_b = (name_counts(results[3]) for results in sums)
        for column, of_a in names_a.items():
            p_values[column] = name_difference(of_a, names_b[column], seed)
    adjusted = holm(p_values)
    moments_a, moments_b = (moments_of(results[2]) for results in sums)
    columns = tuple(
        ColumnDrift(
            name,
            float(distances[j]),
            float(adjusted[j]),
            (float(moments_a.mean[j]), float(moments_b.mean[j])),
            edges[j, : n_edges[j]],
            (counts_a[j, : n_edges[j] + 1] / moments_a.weight, counts_b[j, : n_edges[j] + 1] / moments_b.weight),
        )
        for j, name in enumerate(samples[0].column_names or [f"column {j}" for j in range(len(edges))])
    )
    weights = moments_a.weight, moments_b.weight
    return Drift(
        discrepancy.p_value, discrepancy.squared, float(alpha), weights, sigma, feature_map.n_features, columns
    )


def _check_numbers(n_features: int, alpha: float, scaling: str | None, dtype: str) -> None:
    """Raise ValueError for parameters without a meaning, before any row is read."""
    if n_features > _MOST_FEATURES:
        raise ValueError(
            f"n_features is {n_features:,}; drift sums the second moments of at most {_MOST_FEATURES:,} features: take "
            "n_features=500, which sees what 4,000 see unless the kernel is very narrow"
        )
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0.0 < float(alpha) < 1.0:
        raise ValueError(f"alpha is {alpha!r}; expected a probability between 0 and 1, such as 0.05")
    if scaling not in ("standard", "minmax", "unit", "quantile", None):
        raise ValueError(f"scaling is {scaling!r}; expected 'standard', 'minmax', 'unit', 'quantile' or None")
    if dtype not in ("float32", "float64"):
        raise ValueError(f"dtype is {dtype!r}; expected 'float32' or 'float64'")


@dataclass(frozen=True, eq=False)
class PooledSample:
    """Rows of both samples, one below the other, as many of each.

    Parameters
    ----------
    X : ndarray or csr_array of shape (m, d)
    weight : ndarray of shape (m,)
        All rows keep their weights; of a part, rows of larger weight are likelier, and each counts once.
    """

    X: np.ndarray | sparse.csr_array
    weight: np.ndarray


def _pooled_sample(samples: Sequence[Dataset], seed: int, run: Run) -> PooledSample:
    """Some rows of both samples, from a few of their blocks."""
    blocks = []
    for dataset in samples:
        row_bytes = -(-dataset.source.block_nbytes // max(int(dataset.source.block_rows.max()), 1))
        size = min(dataset.n_rows, _SAMPLED_ROWS, max(2, SAMPLE_BYTES // max(row_bytes, 1)))
        sample: Block = _pass(few_blocks(dataset.source), (RowSample("row sample", size, seed),), run)[0]
        blocks.append((sample, sample.weights if size == dataset.n_rows else np.ones(sample.n_rows)))
    rows = [sample.X for sample, _ in blocks]
    X = sparse.csr_array(sparse.vstack(rows)) if sparse.issparse(rows[0]) else np.vstack(rows)
    return PooledSample(X, np.concatenate([weight for _, weight in blocks]))


def _feature_map(
    dataset: Dataset,
    pooled: PooledSample,
    family: Family,
    n_frequencies: int,
    scaling: ScalingKind | None,
    *,
    seed: int,
    dtype: str,
) -> tuple[FeatureMap, float | None]:
    """The features that both samples are compared by, and their bandwidth.

    Raises
    ------
    ValueError
        If the family has no pairs of waves.
    """
    problem = preparation_problem(dataset, family, scaling, seed)
    scaler: Scaler | None = None
    if scaling == "quantile":
        scaler = quantile_scaler(pooled.X, problem.passthrough, pooled.weight)
    elif scaling is not None:
        moments = moments_of(column_sums(pooled.X, pooled.weight, ~problem.passthrough))
        scaler = scaler_from_moments(scaling, moments, problem.passthrough, is_sparse=problem.is_sparse)
    sigma = getattr(family, "sigma", None)
    if family.needs_bandwidth:
        # Every second row is of the other sample: the median looks at the first thousand.
        mixed = np.argsort(np.arange(len(pooled.weight)) % -(-len(pooled.weight) // 2), kind="stable")
        scaled = scale_rows(pooled.X, scaler, dtype="float64")
        sigma = median_distance(scaled[mixed], pooled.weight[mixed], metric=problem.metric)
        family = family.with_bandwidth(sigma)
    drawn = family.draw(n_frequencies, dataset.n_columns, seed, dtype)
    if drawn.activation != "cos-sin":
        raise ValueError(
            f"family is {family!r}, whose features are {drawn.activation!r}; rows are compared by pairs of cosine and "
            "sine: take Gaussian(), Laplacian(), Cauchy() or Matern(nu) with pairing='cos-sin'"
        )
    amplitude = family.feature_scale(dataset.n_columns) / np.sqrt(n_frequencies)
    return replace(drawn, amplitudes=np.full(n_frequencies, amplitude), scaler=scaler), sigma


def _edges(pooled: PooledSample, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most so many edges of bins for each column, (d, most), and how many there are, (d,)."""
    found = []
    for columns in spans(pooled.X.shape[1], _DENSE_COLUMNS):
        part: Any = pooled.X[:, columns]
        found.append(column_bins(part.toarray() if sparse.issparse(part) else part, pooled.weight, most))
    return np.concatenate([bins.edges for bins in found]), np.concatenate([bins.n_edges for bins in found])


def _pass(source: BlockSource, records: Sequence[Any], run: Run) -> tuple[Any, ...]:
    """What one pass returns, a result a record."""
    return run_pass(source, records, publish=run.publish, memory_limit=run.memory_limit, device=run.device).results


def few_blocks(source: BlockSource) -> RearrangedSource:
    """A few evenly spaced blocks of a source; the rest of them have no rows."""
    filled = np.flatnonzero(source.block_rows)
    # the first and the last among them: rows that were written in time differ most there
    kept = filled[np.unique(np.linspace(0, len(filled) - 1, min(len(filled), _SAMPLED_BLOCKS)).astype(int))]
    return RearrangedSource(source, {block: (BlockPart(block),) for block in kept.tolist()}, source.n_blocks)
