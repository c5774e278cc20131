"""Cuts a block into tiles that stay in the cache, with sizes that depend only on dtype, d and D."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.errors import ColumnError
from dkl.features.feature_map import FeatureMap
from dkl.kernels import scale
from dkl.protocols.arrays import Rows

# Largest bytes of a tile of mapped rows, and of scaled rows. Tiles do not depend on the memory of the machine, since
# the last bits of results depend on the tiles.
MAPPED_BYTES = 1 << 26
SCALED_BYTES = 1 << 23
# Rows of a tile of a sum; not a power of two, for which the rows of its product would compete for the same cache lines.
SUM_ROWS = 768


def row_tile(feature_map: FeatureMap, dtype: DTypeLike = "float32") -> int:
    """Number of rows whose mapped form has at most 64 MiB; depends only on dtype and the number of features."""
    rows = MAPPED_BYTES // (feature_map.n_features * np.dtype(dtype).itemsize)
    return max(1, min(65_536, rows))


def cache_tile(most: int, n_columns: int, dtype: np.dtype) -> int:
    """Number of rows of a tile of scaled rows: `most`, or fewer (a multiple of 16) for wide rows.

    Scaled rows should stay in the cache until they are used.
    """
    rows = SCALED_BYTES // (n_columns * dtype.itemsize)
    return max(16, min(most, rows // 16 * 16))


def spans(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices of `step` items, the last one shorter."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


def even_step(length: int, most: int, multiple: int = 1) -> int:
    """The step, a multiple of `multiple`, that cuts `length` into the fewest and most equal spans of at most `most`."""
    # a short last span would take nearly as long as a full one
    step = -(-length // max(1, -(-length // most)))
    return -(-step // multiple) * multiple


class RowTiles:
    """The tiles of a block's rows: scaled, multiplied by a factor, in the compute dtype.

    Parameters
    ----------
    X : ndarray or csr_array of shape (n, d)
    feature_map : FeatureMap
        Its scaler is applied.
    dtype : dtype
    factor : float
        Multiplies the scaled rows; 1/(2 pi) converts radians to cycles.
    dense : bool
        Whether to convert sparse rows to dense ones, for projections that need every column.
    rows : int
        Largest number of rows of a tile.

    Attributes
    ----------
    keeps_sparse : bool
        Whether tiles are sparse: rows are, and neither their scaling nor `dense` makes them dense.
    constant : ndarray of shape (d,), float64, or None
        Must be subtracted from every row by the caller: the centre of sparse rows, which would make them dense.
    """

    def __init__(
        self,
        X: Rows,
        feature_map: FeatureMap,
        dtype: np.dtype,
        *,
        factor: float = 1.0,
        dense: bool = False,
        rows: int = SUM_ROWS,
    ) -> None:
        self.X = checked_rows(X, feature_map)
        self.scaler = feature_map.scaler
        self.dtype = dtype
        self.factor = factor
        self.step = cache_tile(rows, feature_map.n_columns, dtype)
        self.keeps_sparse = sparse.issparse(self.X) and not (dense or scale.is_written_out(self.scaler))
        # only the factors are applied to sparse rows; sums and products account for the constant centre once
        self.constant: np.ndarray | None = None
        self._factors: np.ndarray | None = None
        if self.keeps_sparse:
            if self.scaler is not None and self.scaler.is_linear:
                center, factors = scale.linear_part(self.scaler)
                self.constant = center * factors * factor if center.any() else None
                self._factors = factors * factor
            elif self.scaler is None and factor != 1.0:
                self._factors = np.full(self.X.shape[1], factor)

    def __iter__(self) -> Iterator[tuple[slice, Any]]:
        return self.within(slice(0, self.X.shape[0]))

    def within(self, rows: slice) -> Iterator[tuple[slice, Any]]:
        """The tiles of a span of the rows; their slices begin with 0 at its start."""
        for part in spans(rows.stop - rows.start, self.step):
            tile = self._tile(slice(rows.start + part.start, rows.start + part.stop))
            yield part, tile

    def _tile(self, rows: slice) -> Any:
        if self.keeps_sparse:
            if self.scaler is not None and self.scaler.kind == "counts":
                return scale.scale_sparse_counts(self.X, self.scaler, self.dtype, rows, factor=self.factor)
            return scale.scale_columns(self.X, self._factors, self.dtype, rows)
        # sparse rows become dense one tile at a time, never as a block
        part = self.X[rows]
        if isinstance(part, np.ndarray):
            return scale.scale_dense(part, self.scaler, self.dtype, factor=self.factor)
        if scale.is_written_out(self.scaler):
            part = scale.write_out(part, "scaling by quantiles")
        else:
            part = part.toarray()
        return scale.scale_dense(part, self.scaler, self.dtype, factor=self.factor)


def refuse_overflow(tile: Rows, first_row: int) -> None:
    """Raise ValueError, with row and column, if scaling made a number infinite, whose features would be meaningless."""
    values = tile if isinstance(tile, np.ndarray) else tile.data
    with np.errstate(over="ignore", invalid="ignore"):
        # the sum is finite for almost all tiles, and cheaper than a mask
        if np.isfinite(values.sum()) or not np.isinf(values).any():
            return
    first = int(np.argmax(np.isinf(values)))
    if isinstance(tile, np.ndarray):
        row, column = divmod(first, tile.shape[1])
    else:
        row, column = int(np.searchsorted(tile.indptr, first, side="right")) - 1, int(tile.indices[first])
    raise ColumnError(
        f"row {first_row + row}, column {column}: scaled, the value is larger than {tile.dtype} holds. Compare the "
        "columns with those of fit, scale them (scaling='standard'), or compute with dtype='float64'",
        column,
    )


def checked_rows(X: Rows, feature_map: FeatureMap) -> Rows:
    """X as a real two-dimensional array with the columns of the map; ValueError or TypeError if it is not one."""
    X = sparse.csr_array(X) if sparse.issparse(X) else np.asarray(X)
    if X.ndim != 2:
        raise ValueError(f"rows must form a two-dimensional array; X has shape {X.shape}")
    if X.shape[1] != feature_map.n_columns:
        raise ValueError(f"rows have {X.shape[1]} columns, but the feature map takes {feature_map.n_columns}")
    if X.dtype.kind not in "biuf":
        raise TypeError(f"rows must be real numbers; X has dtype {X.dtype}")
    scale.check_columns(X, feature_map.scaler)
    return X


def checked_dtype(dtype: DTypeLike) -> np.dtype:
    """`dtype` if it is float32 or float64; ValueError otherwise."""
    dtype = np.dtype(dtype)
    if dtype not in (np.dtype("float32"), np.dtype("float64")):
        raise ValueError(f"dtype is {dtype}; block arithmetic is done in 'float32' or 'float64'")
    return dtype


def checked_weights(S: np.ndarray, n_rows: int) -> np.ndarray:
    """The weight columns S as float64 of shape (n, K); a vector is one column."""
    S = np.asarray(S, dtype=np.float64)
    S = S[:, None] if S.ndim == 1 else S
    if S.ndim != 2 or len(S) != n_rows:
        raise ValueError(f"the weight columns S have shape {S.shape}; {n_rows} rows need shape ({n_rows}, K)")
    return S
