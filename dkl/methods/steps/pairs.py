"""Finds pairs of columns that explain the targets only jointly, so that no single step leads to their product."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from dkl.features.step_projection import STEP, Factor
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.methods.steps.binning import ColumnBins
from dkl.protocols.arrays import Rows, dense_rows

# The most parts, of about equal weight, into which each column is cut.
PARTS = 4
# The most rows over which tables of pairs are summed: fewer if the tables would take more than _PRODUCTS products, and
# none if that leaves fewer than _FEWEST_ROWS, or if the tables take more than _TABLE_BYTES.
_MOST_ROWS, _FEWEST_ROWS, _PRODUCTS, _TABLE_BYTES = 20_000, 1_000, 1e10, 64 << 20
_TILE_ROWS, _TILES_AT_ONCE = 4_096, 2
# A pair is used if noise explains as much in any of all pairs with probability at most _CHANCE; if it explains
# _TIMES_ALONE times as much as either column by itself, since rounds find it otherwise; and if it explains at least
# _SHARE of the targets' variance.
_CHANCE, _TIMES_ALONE, _SHARE = 0.01, 2.0, 0.1
# The most pairs whose additive fits are computed, and the most columns of the first steps.
_FITTED, _COLUMNS = 200, 8


@dataclass(frozen=True, eq=False)
class PairTables:
    """Sums over the rows in each cell of all pairs of cut columns.

    Attributes
    ----------
    cuts : list of ndarray
        At most three edges that cut each of the d columns.
    weights : ndarray of shape (d, d, 4, 4), float64
        The weight of each cell.
    sums : ndarray of shape (K, d, d, 4, 4), float64
        Sums of the targets, which have mean 0 and variance 1.
    """

    cuts: list[np.ndarray]
    weights: np.ndarray
    sums: np.ndarray

    def of_columns(self) -> np.ndarray:
        """The squared error that each column explains by itself, (d,): sum_a T_a^2 / N_a, over the models."""
        place = np.arange(len(self.cuts))
        parts = np.arange(PARTS)
        weights = self.weights[place[:, None], place[:, None], parts, parts]
        sums = self.sums[:, place[:, None], place[:, None], parts, parts]
        return np.asarray((sums**2 / np.where(weights > 0.0, weights, 1.0)).sum(axis=(0, 2)))

    def at_most(self) -> np.ndarray:
        """The squared error that each pair explains beyond its columns' means, (d, d); it bounds `beyond_a_sum`."""
        means = self.sums / np.where(self.weights > 0.0, self.weights, 1.0)
        place, parts = np.arange(len(self.cuts)), np.arange(PARTS)
        own = means[:, place[:, None], place[:, None], parts, parts]
        rest = means - own[:, :, None, :, None] - own[:, None, :, None, :]
        return np.asarray((self.weights * rest**2).sum(axis=(0, 3, 4)))

    def beyond_a_sum(self, first: int, second: int) -> float:
        """The squared error that the cells of a pair explain beyond the best sum of a function of each column.

        With N_ab the weight of a cell and m_ab its mean target, it is the least of ``sum N_ab (m_ab - f_a - g_b)^2``.
        """
        weights = self.weights[first, second].ravel()
        filled = weights > 0.0
        root = np.sqrt(weights[filled])
        row, column = np.divmod(np.flatnonzero(filled), PARTS)
        design = np.concatenate([np.eye(PARTS)[row], np.eye(PARTS)[column]], axis=1) * root[:, None]
        means = self.sums[:, first, second].reshape(len(self.sums), -1)[:, filled] / root
        fitted = design @ np.linalg.lstsq(design, means.T, rcond=None)[0]
        return float(((means.T - fitted) ** 2).sum())


def entangled_pairs(tables: PairTables) -> list[tuple[int, int]]:
    """The pairs that explain much more beyond such a sum than either column by itself, the strongest first."""
    d, K = len(tables.cuts), len(tables.sums)
    alone, most = tables.of_columns(), tables.at_most()
    first, second = np.triu_indices(d, 1)
    degrees = np.array([len(cuts) for cuts in tables.cuts], dtype=np.float64)
    # a bound of the sums of squares that K models explain if targets are noise
    noise = stats.chi2.isf(_CHANCE / max(len(first), 1), np.maximum(degrees[first] * degrees[second] * K, 1.0))
    share = _SHARE * K * tables.weights[0, 0].sum()
    least = np.maximum(np.maximum(noise, share), _TIMES_ALONE * np.maximum(alone[first], alone[second]))
    able = np.flatnonzero(most[first, second] > least)
    able = able[np.argsort(-most[first, second][able], kind="stable")][:_FITTED]
    explained = [(tables.beyond_a_sum(int(first[one]), int(second[one])), int(one)) for one in able]
    chosen = sorted(((gain, -one) for gain, one in explained if gain > least[one]), reverse=True)
    return [(int(first[-one]), int(second[-one])) for _, one in chosen]


def pair_tables(X: np.ndarray, y: np.ndarray, weight: np.ndarray, bins: ColumnBins) -> PairTables:
    """The tables of all pairs.

    Parameters
    ----------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n, K)
    weight : ndarray of shape (n,)
        Positive.
    bins : ColumnBins
        Bins whose edges may be cuts.
    """
    n, d = X.shape
    center = np.average(y, axis=0, weights=weight)
    deviation = np.sqrt(np.average((y - center) ** 2, axis=0, weights=weight))
    values = (y - center) / np.where(deviation > 0.0, deviation, 1.0)
    cuts = _cuts(X, weight, bins)
    tables = np.zeros((1 + y.shape[1], d * PARTS, d * PARTS))

    def of_tile(rows: slice) -> list[np.ndarray]:
        tile = X[rows]
        cells = np.zeros((len(tile), d, PARTS))
        for j, edges in enumerate(cuts):
            cells[np.arange(len(tile)), j, np.searchsorted(edges, tile[:, j], side="left")] = 1.0
        flat = cells.reshape(len(tile), -1)
        return [(flat * (weight[rows] * share)[:, None]).T @ flat for share in [np.ones(len(tile)), *values[rows].T]]

    tiles = list(spans(n, _TILE_ROWS))
    # few tiles at once, since each has tables of its own; they are added in the order of the rows
    for some in spans(len(tiles), _TILES_AT_ONCE):
        for products in Crew().map(of_tile, tiles[some]):
            for table, product in zip(tables, products, strict=True):
                table += product
    shaped = tables.reshape(-1, d, PARTS, d, PARTS).swapaxes(2, 3)
    return PairTables(cuts, shaped[0], shaped[1:])


def steps_on_pairs(X: Rows, y: np.ndarray, weight: np.ndarray, bins: ColumnBins) -> list[tuple[Factor, ...]]:
    """Steps at the cuts of the columns of entangled pairs, inside which rounds find the other column.

    Histograms show the gain of one more factor. If two columns matter only jointly, this gain is zero for each, and
    rounds would choose a step on one of them only by chance; inside these steps they see the gain of the other.
    """
    used = np.flatnonzero(weight > 0.0)
    n_used = rows_of_tables(len(used), X.shape[1], y.shape[1])
    if not n_used:
        return []
    used = used[:: -(-len(used) // n_used)]
    rows = np.asarray(dense_rows(X[used]), dtype=np.float64)
    tables = pair_tables(rows, y[used], weight[used], bins)
    columns = list(dict.fromkeys(column for pair in entangled_pairs(tables) for column in pair))[:_COLUMNS]
    return [((column, float(edge), STEP),) for column in columns for edge in tables.cuts[column]]


def rows_of_tables(n_rows: int, n_columns: int, n_models: int) -> int:
    """The number of rows over which tables are summed; 0 without tables."""
    most = int(_PRODUCTS / max((1 + n_models) * (PARTS * n_columns) ** 2, 1))
    n_used = min(n_rows, _MOST_ROWS, most)
    enough = n_used == n_rows or n_used >= _FEWEST_ROWS
    return n_used if enough and n_columns > 1 and table_bytes(n_columns, n_models) <= _TABLE_BYTES else 0


def table_bytes(n_columns: int, n_models: int) -> int:
    """Bytes of the tables of all pairs."""
    return 8 * (1 + n_models) * (PARTS * n_columns) ** 2


def _cuts(X: np.ndarray, weight: np.ndarray, bins: ColumnBins) -> list[np.ndarray]:
    """The edges of each column that cut its rows into parts of about equal weight."""
    cuts, shares = [], weight.sum() * np.arange(1, PARTS) / PARTS
    for j in range(X.shape[1]):
        edges = bins.edges[j, : bins.n_edges[j]]
        if len(edges):
            code = np.searchsorted(edges, X[:, j], side="left")
            below = np.cumsum(np.bincount(code, weight, len(edges) + 1))[:-1]
            edges = edges[np.unique([int(np.argmin(np.abs(below - share))) for share in shares])]
        cuts.append(edges)
    return cuts
