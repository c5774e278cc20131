"""The rows that a driver searches on, kept between rounds with their features: a pure function of seed and round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dkl.blocks.block import Block
from dkl.blocks.maps import map_rows
from dkl.blocks.records import RowSample
from dkl.blocks.scale import scale_rows
from dkl.blocks.threads import Crew
from dkl.blocks.tiles import spans
from dkl.features.feature_map import FeatureMap

_TILE_ROWS = 1024
# features of the rows are kept up to this size, else formed again in each round
_KEPT_BYTES = 256 << 20


class SearchedRows:
    """The last sample of rows. What it holds follows from the record alone, so a resumed run has the same."""

    def __init__(self) -> None:
        self._key: tuple[int, int, int] | None = None
        self.block: Any = None
        self._scaled: Any = None
        self._features: list[np.ndarray] = []

    def has(self, record: RowSample) -> bool:
        """Whether these are the rows of a record."""
        return self._key == _key(record)

    def keep(self, record: RowSample, block: Block) -> None:
        """Take the rows of a record in place of the former ones."""
        self._key, self.block = _key(record), block
        self._scaled, self._features = None, []

    def scaled(self, feature_map: FeatureMap, dtype: str) -> Any:
        """The rows as frequencies see them."""
        if self._scaled is None:
            self._scaled = scale_rows(self.block.X, feature_map.scaler, dtype)
        return self._scaled

    def scores(
        self, points: np.ndarray, coefficients: np.ndarray, mapped: Callable[[np.ndarray], FeatureMap], dtype: str
    ) -> np.ndarray:
        """A linear model on points, (r, K); only the features of points that are new are formed.

        Parameters
        ----------
        points : ndarray of shape (m, ...)
            Those of the last call, in the same order, and further ones.
        coefficients : ndarray of shape (K, parts, m)
        mapped : callable
            Points -> FeatureMap.
        dtype : {"float32", "float64"}
        """
        K, parts, _ = coefficients.shape
        known = sum(group.shape[1] for group in self._features) // parts
        if len(points) > known:
            self._features.append(self._map(mapped(points[known:]), dtype))
        out, start = np.zeros((self.block.n_rows, K)), 0
        for group in self._features:
            stop = start + group.shape[1] // parts
            out += group @ coefficients[:, :, start:stop].reshape(K, -1).T.astype(dtype)
            start = stop
        if sum(group.nbytes for group in self._features) > _KEPT_BYTES:
            self._features = []
        return out

    def _map(self, feature_map: FeatureMap, dtype: str) -> np.ndarray:
        X = self.block.X

        def of_tile(rows: slice) -> np.ndarray:
            return map_rows(X[rows], feature_map, dtype)

        return np.concatenate(Crew().map(of_tile, spans(X.shape[0], _TILE_ROWS)))


def _key(record: RowSample) -> tuple[int, int, int]:
    return record.k, record.seed, record.round
