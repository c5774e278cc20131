"""dkl.drift: tests whether two samples of rows have the same distribution, and which of their columns differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from numbers import Real
from typing import Any

import numpy as np

from dkl.data.checks import whole_number
from dkl.data.dataset import Dataset
from dkl.data.given import GivenRows, GivenValues
from dkl.data.sources.rearranged import BlockPart, RearrangedSource
from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.figure import Axes
from dkl.kernels.gram import MOST_IN_ONE_GRAM
from dkl.kernels.moments import column_sums, moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.kernels.tiles import spans
from dkl.linear.fitting import Run
from dkl.methods.leverage.driver import gram_record
from dkl.methods.preparation.bandwidth import median_distance
from dkl.methods.preparation.driver import SAMPLE_BYTES
from dkl.methods.preparation.learner import preparation_problem
from dkl.methods.preparation.scalers import scaler_from_moments
from dkl.methods.steps.binning import column_bins
from dkl.passes.devices import computing_device
from dkl.passes.loop import run_pass
from dkl.plain_text import html_table, in_columns, plain_text, shortened
from dkl.plots.column_shares import DriftDisplay
from dkl.progress import Choice, resolve_progress
from dkl.protocols.arrays import dense_rows, stacked
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample
from dkl.protocols.source import BlockSource
from dkl.uncertainty.drift_samples import compared_samples, name_counts, names_record
from dkl.uncertainty.drift_statistics import bin_differences, holm, mean_discrepancy, name_difference
from dkl.uncertainty.drift_sums import counts_record

# Scaling, bandwidth and edges of bins are computed from at most _SAMPLED_ROWS rows of each sample, in _SAMPLED_BLOCKS
# blocks.
_SAMPLED_ROWS, _SAMPLED_BLOCKS = 1_000, 8
# The most edges of a column's bins, and the least rows of the smaller sample for each bin; fewer rows give fewer bins.
_MOST_EDGES, _ROWS_A_BIN = 9, 10
# The number of columns of sparse rows that are converted to dense ones at once.
_DENSE_COLUMNS = 512


def drift(
    a: GivenRows | Dataset,
    b: GivenRows | Dataset,
    *,
    sample_weights: tuple[GivenValues, GivenValues] | None = None,
    n_features: int = 500,
    alpha: float = 0.05,
    random_state: int = 0,
    device: str = "auto",
    progress: Choice = None,
    memory_limit: int | str | None = None,
) -> Drift:
    """Test whether two samples of rows have the same distribution, and which columns differ; targets are ignored.

    The test statistic is the distance between the mean random Fourier features of the two samples (maximum mean
    discrepancy), for the Gaussian kernel of standardised columns with the median distance as bandwidth. If the
    distributions are equal, n_a n_b / (n_a + n_b) times the squared distance is a sum of weighted chi-squared
    variables, whose weights follow from the features' second moments. Everything follows from sums over blocks:
    each sample is read once, and at most eight of its blocks once more before, for the scaling and the bandwidth.
    Each column is compared by the shares of rows in up to ten bins (Pearson's chi-squared test), and the p values
    of the columns are adjusted after Holm.

    Parameters
    ----------
    a, b : array of shape (n, d), scipy sparse matrix, Dask array, data frame, or Dataset
        Data frames are encoded by what is learned from both; beside a Dataset, as its rows were. Free text is compared
        where its directions were learned from both: not beside a store, nor of rows that were appended to one.
    sample_weights : (array of shape (n_a,) or None, array of shape (n_b,) or None), or None
        Frequency weights of samples that are no Dataset: a row of weight 2 is two rows.
    n_features : int
        The number of features, at most 4,094; the time of a pass grows with its square.
    alpha : float
        The level of the tests: the probability that samples of the same distribution are reported to differ, and that
        any of their columns is.
    random_state : int
        Seed of the frequencies and the sampled rows.
    device : {"auto", "cpu", "gpu", "mixed"}
    progress : bool, callable or None
    memory_limit : int, str or None
        The most bytes that a process may hold.

    Returns
    -------
    Drift
        Print it, plot it, or take `p_value`, `alike` and `columns`.

    Raises
    ------
    ValueError
        If the columns of the samples differ, one has fewer than two rows, or a parameter is not valid.

    Notes
    -----
    Rows within a sample have to be independent: the p values of parts of a time series are too small. With very many
    rows, such as 1e8, even irrelevant differences are significant: consider `distance` as well as the p value.

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
    seed, n_features = whole_number(random_state, "random_state"), whole_number(n_features, "n_features", 2)
    _check_numbers(n_features, alpha)
    run = Run(publish=resolve_progress(progress), memory_limit=memory_limit, device=computing_device(device))
    samples = compared_samples(a, b, (None, None) if sample_weights is None else sample_weights, run)

    pooled = _pooled_sample(samples, seed, run)
    feature_map, sigma = _feature_map(samples[0], pooled, n_features // 2, seed)
    fewest = min(sample.n_rows for sample in samples)
    edges, n_edges = _edges(pooled, int(np.clip(fewest // _ROWS_A_BIN, 2, _MOST_EDGES + 1)) - 1)
    names = names_record(samples[0])
    records = (
        gram_record(feature_map, (0, feature_map.n_features + 1), "float32"),
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


def _check_numbers(n_features: int, alpha: float) -> None:
    """Raise ValueError for parameters without a meaning, before any row is read."""
    if n_features > MOST_IN_ONE_GRAM:
        raise ValueError(
            f"n_features is {n_features:,}; drift sums the second moments of at most {MOST_IN_ONE_GRAM:,} features: "
            "take n_features=500, which sees what 4,000 see unless the kernel is very narrow"
        )
    if not isinstance(alpha, Real) or isinstance(alpha, bool) or not 0.0 < float(alpha) < 1.0:
        raise ValueError(f"alpha is {alpha!r}; expected a probability between 0 and 1, such as 0.05")


def _pooled_sample(samples: Sequence[Dataset], seed: int, run: Run) -> Block:
    """Random rows of both samples, from a few of their blocks, one below the other.

    If all rows of a sample are included, they keep their weights; else rows were drawn by weight and have weight 1.
    """
    blocks = []
    for dataset in samples:
        row_bytes = -(-dataset.source.block_nbytes // max(int(dataset.source.block_rows.max()), 1))
        size = min(dataset.n_rows, _SAMPLED_ROWS, max(2, SAMPLE_BYTES // max(row_bytes, 1)))
        sample: Block = _pass(few_blocks(dataset.source), (RowSample("row sample", size, seed),), run)[0]
        blocks.append((sample, sample.weights if size == dataset.n_rows else np.ones(sample.n_rows)))
    X = stacked([sample.X for sample, _ in blocks])
    weight = np.concatenate([weight for _, weight in blocks])
    return Block(0, X, None, weight, np.arange(len(weight)))


def _feature_map(dataset: Dataset, pooled: Block, n_frequencies: int, seed: int) -> tuple[FeatureMap, float]:
    """The feature map by which both samples are compared, and its bandwidth."""
    problem = preparation_problem(dataset, Gaussian(), "standard", seed)
    moments = moments_of(column_sums(pooled.X, pooled.weights, ~problem.passthrough))
    scaler = scaler_from_moments("standard", moments, problem.passthrough, is_sparse=problem.is_sparse)
    # The rows of the samples alternate, since the median uses the first thousand rows.
    mixed = np.argsort(np.arange(len(pooled.weights)) % -(-len(pooled.weights) // 2), kind="stable")
    scaled = scale_rows(pooled.X, scaler, dtype="float64")
    sigma = median_distance(scaled[mixed], pooled.weights[mixed])
    drawn = Gaussian(sigma).draw(n_frequencies, dataset.n_columns, seed)
    # the mean square of a pair of a cosine and a sine is 1 for any frequency
    return replace(drawn, amplitudes=np.full(n_frequencies, 1.0 / np.sqrt(n_frequencies)), scaler=scaler), sigma


def _edges(pooled: Block, most: int) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` edges of bins for each column, (d, most), and their number, (d,)."""
    found = []
    for columns in spans(pooled.X.shape[1], _DENSE_COLUMNS):
        part: Any = pooled.X[:, columns]
        found.append(column_bins(dense_rows(part), pooled.weights, most))
    return np.concatenate([bins.edges for bins in found]), np.concatenate([bins.n_edges for bins in found])


def _pass(source: BlockSource, records: Sequence[Any], run: Run) -> tuple[Any, ...]:
    """The results of one pass, one for each record."""
    return run_pass(source, records, publish=run.publish, memory_limit=run.memory_limit, device=run.device).results


def few_blocks(source: BlockSource) -> RearrangedSource:
    """The source with the rows of a few evenly spaced blocks alone; its other blocks are empty."""
    filled = np.flatnonzero(source.block_rows)
    # the first and the last are included: rows written in the order of time differ most between them
    kept = filled[np.unique(np.linspace(0, len(filled) - 1, min(len(filled), _SAMPLED_BLOCKS)).astype(int))]
    return RearrangedSource(source, {block: (BlockPart(block),) for block in kept.tolist()}, source.n_blocks)


# The number of columns in the printed table and in the plot.
_LISTED = 12


@dataclass(frozen=True, eq=False)
class ColumnDrift:
    """The difference of one column between two samples.

    Parameters
    ----------
    name : str
    distance : float
        The largest difference between the samples' shares of rows up to an edge, from 0 to 1.
    p_value : float
        The p value, adjusted for the number of columns.
    means : (float, float)
        The means in the first and the second sample.
    edges : ndarray of shape (bins - 1,)
        The upper edges of all bins but the last, included in their bins.
    shares : (ndarray, ndarray), each of shape (bins,)
        The share of each sample's rows in each bin.
    """

    name: str
    distance: float
    p_value: float
    means: tuple[float, float]
    edges: np.ndarray
    shares: tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, eq=False)
class Drift:
    """The result of `dkl.drift`, which can be printed and plotted.

    Parameters
    ----------
    p_value : float
        The probability of a discrepancy at least as large between samples of the same distribution.
    squared_discrepancy : float
        MMD^2, the squared distance between the mean features; for equal distributions about (1/n_a + 1/n_b) times the
        variance of the features.
    alpha : float
        The level: samples and columns with p values below it are reported to differ.
    weights : (float, float)
        The total weights of the two samples; without weights their numbers of rows.
    sigma : float
        The bandwidth of the kernel, after scaling.
    n_features : int
    columns : tuple of ColumnDrift
        In the order of the rows' columns.

    Examples
    --------
    >>> import numpy as np
    >>> import dkl
    >>> rows = np.random.default_rng(0).normal(size=(1_000, 2))
    >>> found = dkl.drift(rows[:500], rows[500:] * [1.0, 2.0])
    >>> found.alike, found.differing[0].name
    (False, 'column 1')
    """

    p_value: float
    squared_discrepancy: float
    alpha: float
    weights: tuple[float, float]
    sigma: float
    n_features: int
    columns: tuple[ColumnDrift, ...]

    @property
    def alike(self) -> bool:
        """Whether the test of all columns together does not reject equal distributions at the level alpha."""
        return self.p_value >= self.alpha

    @property
    def differing(self) -> tuple[ColumnDrift, ...]:
        """The columns that differ at the level alpha, those with the largest distance first."""
        found = [column for column in self.columns if column.p_value < self.alpha]
        return tuple(sorted(found, key=lambda column: (-column.distance, column.p_value)))

    @property
    def facts(self) -> Mapping[str, Any]:
        """All results as JSON values, with an entry for every column."""
        return {
            "alike": self.alike,
            "p_value": self.p_value,
            "squared_discrepancy": self.squared_discrepancy,
            "alpha": self.alpha,
            "weights": list(self.weights),
            "sigma": self.sigma,
            "n_features": self.n_features,
            "columns": [
                {
                    "name": column.name,
                    "differs": column.p_value < self.alpha,
                    "distance": column.distance,
                    "p_value": column.p_value,
                    "means": list(column.means),
                }
                for column in self.columns
            ],
        }

    def plot(self, ax: Axes | None = None) -> DriftDisplay:
        """Draw the distances of the columns, the most different ones on top.

        Parameters
        ----------
        ax : matplotlib Axes or None
            None makes a new figure.

        Returns
        -------
        DriftDisplay

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        """
        shown = self._ranked[:_LISTED]
        display = DriftDisplay(
            [column.name for column in shown],
            np.array([column.distance for column in shown]),
            np.array([column.p_value < self.alpha for column in shown]),
            self._verdict,
        )
        return display.plot(ax)

    def __repr__(self) -> str:
        table = in_columns(self._cells(), left=1)
        return plain_text("\n".join([self._verdict, self._which, *table, *self._rest]))

    def _repr_html_(self) -> str:
        lines = "".join(f"<p>{escape(line)}</p>" for line in (self._verdict, self._which))
        rest = "".join(f"<p>{escape(line)}</p>" for line in self._rest)
        return f"{lines}{html_table(self._cells())}{rest}"

    @property
    def _ranked(self) -> list[ColumnDrift]:
        """All columns, the differing ones first."""
        differing = self.differing
        others = [column for column in self.columns if column.p_value >= self.alpha]
        return [*differing, *sorted(others, key=lambda column: (column.p_value, -column.distance))]

    @property
    def _verdict(self) -> str:
        """The printed sentence about all columns together."""
        n_a, n_b = (f"{weight:,.6g}" if weight < 1e6 else f"{weight:,.0f}" for weight in self.weights)
        chance = f"p = {self.p_value:.2g}, level {self.alpha:g}"
        if self.alike:
            return f"{n_a} and {n_b} rows are not told apart ({chance})"
        return f"{n_a} and {n_b} rows differ ({chance})"

    @property
    def _which(self) -> str:
        """The printed sentence about single columns."""
        found = len(self.differing)
        if found:
            return f"{found} of {len(self.columns)} columns differ, each seen alone (p values adjusted after Holm)"
        if self.alike:
            return f"none of the {len(self.columns)} columns differs, each seen alone"
        return f"none of the {len(self.columns)} columns differs, each seen alone: they differ together"

    @property
    def _rest(self) -> list[str]:
        """A line on the columns that are not listed."""
        more = len(self.columns) - _LISTED
        return [f"and {more:,} more columns"] if more > 0 else []

    def _cells(self) -> list[list[str]]:
        """The cells of the table of columns, with its head first."""
        rows = [
            [
                shortened(column.name),
                f"{column.distance:.3f}",
                f"{column.p_value:.2g}",
                *(f"{mean:.6g}" for mean in column.means),
                "differs" if column.p_value < self.alpha else "",
            ]
            for column in self._ranked[:_LISTED]
        ]
        return [["column", "distance", "p", "mean of a", "mean of b", ""], *rows]
