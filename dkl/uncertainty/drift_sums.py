"""Counts the rows of a block in each bin of each column, by which two samples are compared column by column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from dkl.kernels.step_tiles import write_codes
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost

# Rows and columns of a tile whose bins are computed at once, so that temporaries stay in the second-level cache.
_TILE_ROWS, _TILE_COLUMNS = 1024, 256
# The time to bin and count one value, in operations of a matrix product.
_FLOPS_A_VALUE = 60.0


def column_counts(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The weight of the rows in each bin of each column, (d, most + 1), float64.

    Operands: "edges" (d, most), ascending; a value lies in a bin beyond an edge if it is larger. "n_edges" (d,): the
    number of valid edges of each column.
    """
    X: Any = block.X
    weights = block.weights
    edges, n_edges = operands["edges"], operands["n_edges"]
    bins = edges.shape[1] + 1
    counts = np.zeros((len(edges), bins))
    for rows in spans(block.n_rows, _TILE_ROWS):
        # in CSC format the columns of a tile are contiguous
        part = sparse.csc_array(X[rows]) if sparse.issparse(X) else X[rows]
        for columns in spans(len(edges), _TILE_COLUMNS):
            dense = np.ascontiguousarray(dense_rows(part[:, columns]), dtype=np.float64)
            codes = np.empty(dense.shape, np.uint8)
            write_codes(dense, edges[columns], n_edges[columns], codes)
            place = codes + bins * np.arange(dense.shape[1])
            weight = np.repeat(weights[rows], dense.shape[1])
            counts[columns] += np.bincount(place.ravel(), weight, bins * dense.shape[1]).reshape(-1, bins)
    return {"counts": counts}


def counts_record(edges: np.ndarray, n_edges: np.ndarray) -> BlockSum:
    """The record of a pass that sums `column_counts`.

    Parameters
    ----------
    edges : ndarray of shape (d, most), float64
    n_edges : ndarray of shape (d,), int64
    """

    def cost(rows: int, columns: int) -> Cost:
        tile = 8 * 6 * _TILE_ROWS * min(columns, _TILE_COLUMNS)
        return Cost(flops=_FLOPS_A_VALUE * rows * columns, scratch_bytes=tile)

    shape = (len(edges), edges.shape[1] + 1)
    return BlockSum(
        "counts of column bins",
        column_counts,
        {"counts": Accumulator(shape)},
        {"edges": edges, "n_edges": n_edges},
        cost=cost,
        on_host=True,
    )
