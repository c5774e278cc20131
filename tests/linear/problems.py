"""Small problems that the tests of linear models share, and a loop that plays the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dkl.data.dataset import Dataset
from dkl.data.schema import Schema
from dkl.data.sources.in_memory import ArraySource
from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Fold
from tests.passes.sources import stepped_through


def feature_map(n_columns: int, n_frequencies: int = 8, seed: int = 0) -> FeatureMap:
    """Cosine-sine pairs of length 1."""
    drawn = Gaussian(sigma=2.0).draw(n_frequencies, n_columns, seed, "float64")
    return FeatureMap(drawn.activation, drawn.projection, np.full(n_frequencies, n_frequencies**-0.5))


def rows(n: int, n_classes: int, n_columns: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of overlapping clouds, one a class, and their codes."""
    generator = np.random.default_rng(seed)
    codes = generator.integers(0, n_classes, n)
    centers = generator.normal(size=(n_classes, n_columns))
    return centers[codes] + generator.normal(size=(n, n_columns)), codes


def dataset(X: np.ndarray, codes: np.ndarray, *, rows_a_block: int, weight: np.ndarray | None = None) -> Dataset:
    """Rows in memory cut into blocks of a given size; labels are the codes."""
    K = int(codes.max()) + 1
    source = ArraySource(X, codes, weight, n_classes=K, rows_a_block=rows_a_block)
    schema = Schema(X.shape[1], X.dtype, task="classification", classes=np.arange(K), has_weight=weight is not None)
    return Dataset(source, schema)


def blocks_of(X: np.ndarray, y: np.ndarray, size: int, weight: np.ndarray | None = None) -> list[Block]:
    """Consecutive blocks."""
    cuts = [slice(start, start + size) for start in range(0, len(X), size)]
    ids = np.arange(len(X))
    return [
        Block(place, X[cut], y[cut], None if weight is None else weight[cut], ids[cut])
        for place, cut in enumerate(cuts)
    ]


def play(driver: Any, problem: Any, blocks: Sequence[Block]) -> tuple[Any, int]:
    """The last state of a driver and its passes, without passes: every block in turn, here and now."""
    state, passes = driver.init(problem), 0
    while (records := driver.request(problem, state)) is not None:
        state = driver.step(problem, state, [summed(record, blocks) for record in records])
        passes += 1
    return state, passes


def summed(record: BlockSum | Fold, blocks: Sequence[Block]) -> Any:
    """What a pass over the blocks returns for a record."""
    if isinstance(record, Fold):
        state = record.initial
        for index in record.order:
            state = stepped_through(record, state, blocks[index])
        return state
    total = {name: accumulator.zero() for name, accumulator in record.accumulators.items()}
    for block in blocks:
        sums = record.function(block, record.operands)
        assert sums.keys() == total.keys()
        for name, value in sums.items():
            assert value.shape == total[name].shape
            total[name] += value
    return total
