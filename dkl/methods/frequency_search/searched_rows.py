"""The sampled rows of a search, stored between rounds with their features; determined by seed and round."""

from __future__ import annotations

from collections.abc import Callable
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

# Rows whose features one core computes at once.
_TILE_ROWS = 1024
# Bytes of the sampled rows' features that stay in memory between rounds; further features are computed again each
# round.
KEPT_BYTES = 256 << 20


class SearchedRows:
    """The last sample of rows, with features and scores of its rows.

    Scores depend only on the sample's record and on the sizes of earlier searches on it, so that a resumed run has the
    same bits.

    Parameters
    ----------
    kept_bytes : int
        Features are stored up to this size, and computed again in each round beyond it, with the same bits.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._most_kept = kept_bytes
        self._sample: tuple[tuple[int, int, int], Block] | None = None
        self._scaled: Rows | None = None
        self._features: list[list[np.ndarray]] = []

    @property
    def block(self) -> Block:
        """The rows themselves."""
        return self._last[1]

    @property
    def key(self) -> tuple[int, int, int]:
        """The requested number of rows, the seed and the round that determine the sample."""
        return self._last[0]

    def has(self, record: RowSample) -> bool:
        """Whether these are the rows of a record."""
        return self._sample is not None and self._sample[0] == _key(record)

    def keep(self, record: RowSample, block: Block) -> None:
        """Store the rows of a record in place of the earlier ones."""
        self._sample, self._scaled, self._features = (_key(record), block), None, []

    def scaled(self, feature_map: FeatureMap, dtype: str) -> Rows:
        """The scaled rows."""
        if self._scaled is None:
            self._scaled = scale_rows(self.block.X, feature_map.scaler, dtype)
        return self._scaled

    def scores(
        self, coefficients: np.ndarray, mapped: Callable[[slice], FeatureMap], sizes: np.ndarray, dtype: str
    ) -> np.ndarray:
        """The scores (r, K) of a linear model on points; only the features of new points are computed.

        Parameters
        ----------
        coefficients : ndarray of shape (K, parts, m)
        mapped : callable
            Maps a range of the points to their feature map.
        sizes : ndarray of shape (s,)
            The numbers of points at each search on these rows, the present one included. The points that one search
            added are always multiplied in one product, whether their features are stored or computed again.
        dtype : {"float32", "float64"}
        """
        K = len(coefficients)
        out = np.zeros((self.block.n_rows, K))
        # products run over the ranges in which searches added points: other ranges would give other bits, and a resumed
        # run, which has nothing in memory, must have the same
        for number, (start, stop) in enumerate(pairwise(np.unique([0, *sizes]))):
            span = slice(start, stop)
            weights = coefficients[:, :, span].reshape(K, -1).T.astype(dtype)
            if number < len(self._features):
                out += np.concatenate([tile @ weights for tile in self._features[number]])
            else:
                out += self._weighted_features(mapped(span), weights, is_next=number == len(self._features))
        return out

    def most_bytes(self, n_rows: int, row_bytes: int, n_features: int, dtype: str) -> dict[str, int]:
        """The most bytes for `n_rows` rows: raw, scaled and with dual weights, and their features."""
        features = n_rows * n_features * np.dtype(dtype).itemsize
        return {"searched rows": 3 * n_rows * row_bytes, "features of searched rows": min(self._most_kept, features)}

    @property
    def _last(self) -> tuple[tuple[int, int, int], Block]:
        """The key and the rows of the last sample."""
        if self._sample is None:
            raise RuntimeError("no rows were drawn yet: a search was asked for before the pass of its sample")
        return self._sample

    def _weighted_features(self, feature_map: FeatureMap, weights: np.ndarray, *, is_next: bool) -> np.ndarray:
        """Features times weights, by tiles of rows; stores the features if they are not too large."""
        X, dtype = self.block.X, weights.dtype
        nbytes = X.shape[0] * feature_map.n_features * dtype.itemsize
        # only consecutive ranges are stored, from the first point on
        keeps = is_next and self._kept_bytes + nbytes <= self._most_kept

        mapped = row_mapper(X, feature_map, dtype)

        def of_tile(rows: slice) -> tuple[np.ndarray | None, np.ndarray]:
            """The features of a tile, if they are stored, and their part of the scores."""
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
