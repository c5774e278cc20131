"""Block functions of k-means: each row goes to its nearest centre, and each centre gets the sum of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse

from dkl.features.scaling import Scaler
from dkl.kernels import generic
from dkl.kernels.device import array_module, is_on_gpu, sums_on_host, tile_rows, with_targets
from dkl.kernels.scale import scale_rows
from dkl.kernels.sums import encode_targets
from dkl.kernels.tiles import cache_tile, spans
from dkl.protocols.arrays import Rows, dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import LARGEST_ACCUMULATOR, Accumulator, BlockSum, Cost

# Rows of a tile, whose distances to all centres exist at once.
_TILE_ROWS = 1_024


@dataclass(frozen=True, eq=False)
class Centers:
    """The centres of a round of k-means, and which rows each may have.

    Parameters
    ----------
    points : ndarray of shape (L, d), float64
        In scaled coordinates.
    codes : ndarray of shape (L,), int64, or None
        The class of each centre, which may only have rows of that class; None allows all rows.
    scaler : Scaler or None
        Scales rows to the coordinates of the centres.
    n_classes : int
    class_weight : ndarray of shape (K,) or None
        Weights of the classes, which multiply the weights of rows.
    """

    points: np.ndarray
    codes: np.ndarray | None
    scaler: Scaler | None
    n_classes: int
    class_weight: np.ndarray | None = None

    @property
    def panels(self) -> list[slice]:
        """Ranges of centres such that no accumulator of sums exceeds 64 MiB."""
        step = max(1, LARGEST_ACCUMULATOR // (8 * self.points.shape[1]))
        return list(spans(len(self.points), step))


def square_lengths(X: Rows) -> np.ndarray:
    """|x|^2 of rows (n, d), dense or sparse."""
    if isinstance(X, np.ndarray):
        return np.einsum("ij,ij->i", X, X)
    return np.asarray(X.multiply(X).sum(axis=1))


def square_distances(X: Rows, points: np.ndarray, squares: np.ndarray | None = None) -> np.ndarray:
    """|x - c|^2 of rows (n, d), dense or sparse, and points (L, d): float64 of shape (n, L), never negative.

    `squares` are the rows' own |x|^2, if already computed.
    """
    # |x - c|^2 = |x|^2 - 2 x.c + |c|^2, which rounding may make negative
    distances = X @ points.T
    distances *= -2.0
    distances += (square_lengths(X) if squares is None else squares)[:, None]
    distances += square_lengths(points)
    return np.maximum(distances, 0.0, out=distances)


def nearest_centers(X: Rows, codes: np.ndarray, centers: Centers) -> tuple[np.ndarray, np.ndarray]:
    """For each scaled row the nearest allowed centre, and its squared distance: two arrays (n,).

    On a tie the first centre; -1, with distance 0, for a row whose class has no centre.
    """
    nearest, distances = np.full(X.shape[0], -1, np.int64), np.zeros(X.shape[0])
    if centers.codes is None:
        groups = [(np.arange(len(codes)), np.arange(len(centers.points)))]
    else:
        own = range(centers.n_classes)
        groups = [(np.flatnonzero(codes == code), np.flatnonzero(centers.codes == code)) for code in own]
    for rows, allowed in groups:
        if len(allowed) and len(rows):
            squares = square_distances(X[rows], centers.points[allowed])
            nearest[rows] = allowed[np.argmin(squares, axis=1)]
            distances[rows] = squares.min(axis=1)
    return nearest, distances


def cluster_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The sums of one block.

    Parameters
    ----------
    block : Block
        With class codes.
    operands : mapping
        "centers", a Centers.

    Returns
    -------
    dict of ndarray
        "points<first>" (p, d): the weighted sum of the scaled rows of each centre in a panel; "mass" (L, K): their
        weight by class; "inertia" (): the weighted sum of their squared distances.
    """
    centers: Centers = operands["centers"]
    if is_on_gpu(block.X):
        return _cluster_sums_on_gpu(with_targets(block), centers)
    # frequency weight times class weight
    weights = encode_targets(block, centers.n_classes, centers.class_weight).sum(axis=1)
    codes = np.asarray(block.y)
    # sums of rows are dense, also for sparse rows, since centres have few zeros
    L, width = centers.points.shape
    sums, mass, inertia = np.zeros((L, width)), np.zeros((L, centers.n_classes)), 0.0
    X = block.X
    step = _TILE_ROWS if sparse.issparse(X) else cache_tile(_TILE_ROWS, X.shape[1], np.dtype(np.float64))
    for rows in spans(X.shape[0], step):
        tile = scale_rows(X[rows], centers.scaler, "float64")
        nearest, distances = nearest_centers(tile, codes[rows], centers)
        # a row whose class has no centre is left out
        placed = np.flatnonzero(nearest >= 0)
        # a sparse matrix with each row's weight at its centre sums rows, dense or sparse
        marks = sparse.csr_array((weights[rows][placed], (nearest[placed], placed)), shape=(L, len(nearest)))
        sums += dense_rows(marks @ tile)
        np.add.at(mass, (nearest[placed], codes[rows][placed]), weights[rows][placed])
        inertia += float(weights[rows] @ distances)
    return {
        **{f"points{panel.start}": sums[panel] for panel in centers.panels},
        "mass": mass,
        "inertia": np.array(inertia),
    }


def _cluster_sums_on_gpu(block: Block, centers: Centers) -> dict[str, np.ndarray]:
    """`cluster_sums` for rows on a GPU, by products with indicators of the nearest centres."""
    xp, (L, width), K = array_module(block.X), centers.points.shape, centers.n_classes
    weights, codes = encode_targets(block, K, centers.class_weight).sum(axis=1), xp.asarray(block.y)
    points, X = xp.asarray(centers.points), block.X
    lengths, of_class = (points * points).sum(axis=1), None if centers.codes is None else xp.asarray(centers.codes)
    sums, mass, inertia = xp.zeros((L, width)), xp.zeros((L, K)), xp.zeros(())
    # distances, indicators, and rows with their squares: at most six arrays of the block's rows, which a plan counts
    # for a block without a feature map
    step = max(_TILE_ROWS, min(tile_rows(3 * (L + width), 8), 2 * width * X.shape[0] // (L + width)))
    for rows in spans(X.shape[0], step):
        tile = generic.scaled(xp, dense_rows(X[rows]), centers.scaler, np.float64)
        distances = (tile * tile).sum(axis=1)[:, None] - 2.0 * xp.matmul(tile, points.T) + lengths
        distances = xp.clip(distances, 0.0, None)
        if of_class is not None:
            distances = xp.where(codes[rows][:, None] == of_class, distances, np.inf)
        nearest, least = distances.argmin(axis=1), distances.min(axis=1)
        # a row whose class has no centre is left out
        weight = xp.where(xp.isfinite(least), weights[rows], 0.0)
        marks = (nearest[:, None] == xp.arange(L)) * weight[:, None]
        sums += xp.matmul(marks.T, tile)
        mass += xp.matmul(marks.T, (codes[rows][:, None] == xp.arange(K)).astype(np.float64))
        inertia = inertia + weight @ xp.where(xp.isfinite(least), least, 0.0)
    parts = {f"points{panel.start}": sums[panel] for panel in centers.panels}
    return sums_on_host({**parts, "mass": mass, "inertia": inertia})


def cluster_record(centers: Centers) -> BlockSum:
    """The record of a round: sums of the rows by nearest centre."""
    L, width = centers.points.shape
    panels = {f"points{panel.start}": Accumulator((panel.stop - panel.start, width)) for panel in centers.panels}
    return BlockSum(
        name="k-means",
        function=cluster_sums,
        accumulators={**panels, "mass": Accumulator((L, centers.n_classes)), "inertia": Accumulator(())},
        operands={"centers": centers},
        cost=partial(cluster_cost, centers=centers),
    )


def cluster_cost(rows: int, columns: int, *, centers: Centers) -> Cost:
    """The cost of float64 products of rows and allowed centres, which take twice the time of float32."""
    L = len(centers.points)
    n_compared = L / (1 if centers.codes is None else max(1, centers.n_classes))
    tile = min(rows, _TILE_ROWS)
    return Cost(4.0 * rows * columns * n_compared, scratch_bytes=8 * (2 * L * columns + tile * (3 * L + 2 * columns)))
