"""The cost of a pass beside its arithmetic: reading a store against rows in memory, and the driver's time a block."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil

from dkl.data.create import create_dataset
from dkl.data.dataset import open_dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.events import Event
from dkl.features.families import Gaussian
from dkl.methods.potential_sums import PotentialProblem, potential_record
from dkl.passes.loop import run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum
from dkl.protocols.source import BlockSource

# What is promised: the speed of a pass over a store as a share of that over rows in memory, once its blocks are in the
# cache, and where each is decoded anew (which takes as long as 600 frequencies of its rows); the milliseconds
# that an empty block costs the driver; and the megabytes by which a pass over very many blocks lets the process grow.
OF_MEMORY, DECODED_OF_MEMORY = 0.9, 0.6
MOST_MS_A_BLOCK = 1.0
MOST_GROWTH_MB = 200.0


@dataclass(frozen=True)
class Measure:
    """One measured figure of a pass beside the promised one.

    Parameters
    ----------
    name : str
    value, promised : float
    unit : str
    at_least : bool
        Whether the promise is a lower bound.
    """

    name: str
    value: float
    promised: float
    unit: str = ""
    at_least: bool = True

    @property
    def kept(self) -> bool:
        return self.value >= self.promised if self.at_least else self.value <= self.promised


def pass_ratios(
    *, n_rows: int = 65_536, n_columns: int = 784, n_frequencies: int = 1_024, n_tiny: int = 100_000, repeats: int = 3
) -> Iterator[Measure]:
    """Measure what is promised of passes, on threads of this process.

    Parameters
    ----------
    n_rows, n_columns, n_frequencies : int
        Of the pass over a store that the page cache holds and over the same rows in memory.
    n_tiny : int
        Blocks of two rows.
    repeats : int
        Interleaved repetitions; the least time of each side counts.
    """
    with dask.config.set({"scheduler": "threads"}):
        yield from _tiny_blocks(n_tiny)
        yield from _store_against_memory(n_rows, n_columns, n_frequencies, repeats)


def _store_against_memory(n_rows: int, n_columns: int, n_frequencies: int, repeats: int) -> Iterator[Measure]:
    """A pass over a store beside one over the same rows in memory, cut into the same blocks, in processor seconds."""
    random = np.random.default_rng(0)
    X = np.round(random.random((n_rows, n_columns), np.float32) * 255) / np.float32(255)  # compresses, as images do
    y = random.integers(0, 2, n_rows)
    with tempfile.TemporaryDirectory(prefix="dkl-bench-") as folder:
        store = str(Path(folder) / "rows.zarr")
        create_dataset(store, X, y)
        rows_a_block = int(open_dataset(store).source.block_rows.max())
        stored = open_dataset(store).source
        memory: BlockSource = ArraySource(X, y, n_classes=2, rows_a_block=rows_a_block)
        ways = {"memory": (memory, 0), "decoded": (stored, 0), "cached": (stored, 2 * X.nbytes)}
        candidates = Gaussian(sigma=5.0).draw(n_frequencies, n_columns, seed=0, dtype="float32")
        record = potential_record(PotentialProblem(candidates, n_classes=2))
        least = dict.fromkeys(ways, np.inf)
        # The first round compiles and fills the page cache. Of each way the second pass counts: a pass without a cache
        # empties it.
        for _ in range(repeats + 1):
            for name, (source, cache) in ways.items():
                with dask.config.set({"dkl.cache-bytes": cache}):
                    run_pass(source, (record,))
                    started = time.process_time()
                    run_pass(source, (record,))
                    least[name] = min(least[name], time.process_time() - started)
    for name, promised in (("cached", OF_MEMORY), ("decoded", DECODED_OF_MEMORY)):
        what = f"a pass over a store, its blocks {name}: of rows in memory"
        yield Measure(what, least["memory"] / least[name], promised)


def _tiny_blocks(n_blocks: int) -> Iterator[Measure]:
    """Blocks with next to no work: what is left is the driver's time and memory for each."""
    X = np.ones((2 * n_blocks, 4), np.float32)
    # Two rows a block: a hundred thousand tasks whose own work is nothing.
    source = ArraySource(X, rows_a_block=2)
    source.block_nbytes  # noqa: B018 - looks at every block once, which is not the pass's time
    process, resident = psutil.Process(), []

    def note_memory(event: Event) -> None:
        resident.append(process.memory_info().rss)

    record = BlockSum("tiny", _count, {"rows": Accumulator((1,))})
    started = time.perf_counter()
    run_pass(source, (record,), publish=note_memory)
    milliseconds = (time.perf_counter() - started) / n_blocks * 1e3
    name = f"{n_blocks:,} tiny blocks"
    yield Measure(f"{name}: ms a block, at most", milliseconds, MOST_MS_A_BLOCK, "ms", at_least=False)
    # A driver that kept a result or a task for each block would grow with their number.
    growth = (max(resident) - resident[0]) / 1e6
    yield Measure(f"{name}: MB that the process grows, at most", growth, MOST_GROWTH_MB, "MB", at_least=False)


def _count(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The number of rows: the least that a pass can ask of a block."""
    return {"rows": np.array([float(block.n_rows)])}
