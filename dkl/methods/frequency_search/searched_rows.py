"""The rows that a driver searches on, kept between rounds with their features: a pure function of seed and round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import row_mapper
from dkl.kernels.scale import scale_rows
from dkl.kernels.threads import Crew
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import Rows
from dkl.protocols.block import Block
from dkl.protocols.records import RowSample

_TILE_ROWS = 1024
# Bytes of the searched rows' features that stay in memory between rounds; features beyond are formed again each round.
KEPT_BYTES = 256 << 20


class SearchedRows:
    """The last sample of rows, with features and scores of the rows.

    Scores follow from the record and from the sizes of the searches on it, so that a resumed run has the same bits.

    Parameters
    ----------
    kept_bytes : int
        Features of the rows are kept up to this size, and formed again in each round beyond it: the bits are the same.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_kept = kept_bytes
        self._key: tuple[int, int, int] | None = None
        self._block: Block | None = None
        self.repeats = np.zeros(0)
        self._scaled: Rows | None = None
        self._features: list[list[np.ndarray]] = []

    @property
    def block(self) -> Block:
        """The rows themselves."""
        if self._block is None:
            raise RuntimeError("no rows were drawn yet: a search was asked for before the pass of its sample")
        return self._block

    @property
    def key(self) -> tuple[int, int, int]:
        """The requested number of rows, and the seed and the round that they were drawn by."""
        if self._key is None:
            raise RuntimeError("no rows were drawn yet: a search was asked for before the pass of its sample")
        return self._key

    @property
    def drawn(self) -> Block:
        """The rows with their weights; in a sample of fewer rows than there are, drawn by weight, each counts once."""
        return replace(self.block, weight=None) if self.block.n_rows >= self.key[0] else self.block

    def has(self, record: RowSample) -> bool:
        """Whether these are the rows of a record."""
        return self._key == _key(record)

    def keep(self, record: RowSample, block: Block) -> None:
        """Take the rows of a record in place of the former ones."""
        self._key, self._block = _key(record), block
        # Fewer rows than requested are all rows, and keep their weights; a full sample was drawn by the rows' weights.
        self.repeats = block.weights if block.n_rows < record.k else np.ones(block.n_rows)
        self._scaled, self._features = None, []

    def scaled(self, feature_map: FeatureMap, dtype: str) -> Rows:
        """The rows as frequencies see them."""
        if self._scaled is None:
            self._scaled = scale_rows(self.block.X, feature_map.scaler, dtype)
        return self._scaled

    def scores(
        self, coefficients: np.ndarray, mapped: Callable[[slice], FeatureMap], sizes: np.ndarray, dtype: str
    ) -> np.ndarray:
        """A linear model on points, (r, K); only the features of points that are new are formed.

        Parameters
        ----------
        coefficients : ndarray of shape (K, parts, m)
        mapped : callable
            A range of the points -> FeatureMap.
        sizes : ndarray of shape (s,)
            How many points there were at each search on these rows, this one included. What one of them added is
            formed by one product, whether it is still known or formed again.
        dtype : {"float32", "float64"}
        """
        K = len(coefficients)
        out = np.zeros((self.block.n_rows, K))
        # Points come in the ranges in which searches have added them: a product of other ranges has other bits, and a
        # resumed run, which has nothing of this in memory, has to come to the same.
        for number, (start, stop) in enumerate(pairwise(np.unique([0, *sizes]))):
            span = slice(start, stop)
            weights = coefficients[:, :, span].reshape(K, -1).T.astype(dtype)
            if number < len(self._features):
                out += np.concatenate([tile @ weights for tile in self._features[number]])
            else:
                out += self._formed(mapped(span), weights, is_next=number == len(self._features))
        return out

    def most_bytes(self, n_rows: int, row_bytes: int, n_features: int, dtype: str) -> dict[str, int]:
        """Bytes held at most for `n_rows` rows: the rows as they came, scaled, and with a dual; and their features."""
        features = n_rows * n_features * np.dtype(dtype).itemsize
        return {"searched rows": 3 * n_rows * row_bytes, "features of searched rows": min(self._most_kept, features)}

    def _formed(self, feature_map: FeatureMap, weights: np.ndarray, *, is_next: bool) -> np.ndarray:
        """Features times weights, a tile of rows at a time; the features are kept where they are not too large."""
        X, dtype = self.block.X, weights.dtype
        nbytes = X.shape[0] * feature_map.n_features * dtype.itemsize
        # only the next range in turn is kept, so that what is kept is a beginning of the points
        keeps = is_next and self._kept_bytes + nbytes <= self._most_kept

        mapped = row_mapper(X, feature_map, dtype)

        def of_tile(rows: slice) -> tuple[np.ndarray | None, np.ndarray]:
            """The features of a tile, where they are kept, and their part of the scores."""
            tile = mapped(rows)
            return (tile if keeps else None), tile @ weights

        tiles, products = zip(*Crew().map(of_tile, spans(X.shape[0], _TILE_ROWS)), strict=True)
        if keeps:
            self._features.append(list(tiles))
        return np.concatenate(products)

    @property
    def _kept_bytes(self) -> int:
        """Bytes of all features in memory."""
        return sum(tile.nbytes for group in self._features for tile in group)


def _key(record: RowSample) -> tuple[int, int, int]:
    """The numbers that determine the rows of a sample."""
    return record.k, record.seed, record.round
