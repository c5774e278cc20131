"""What a pass costs beside its arithmetic: reading a store against rows in memory, and the driver's time a block."""

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
from dkl.methods.potentials import PotentialProblem, potential_record
from dkl.passes.engine import run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum
from dkl.protocols.source import BlockSource

# What is promised: the speed of a pass over a store as a share of that over rows in memory; the milliseconds that an
# empty block costs the driver; and the megabytes by which a pass over very many blocks lets the process grow.
OF_MEMORY = 0.8
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
    with dask.config.set({"scheduler": "threads", "dkl.cache-bytes": 0}):
        yield from _tiny_blocks(n_tiny)
        yield _store_against_memory(n_rows, n_columns, n_frequencies, repeats)


def _store_against_memory(n_rows: int, n_columns: int, n_frequencies: int, repeats: int) -> Measure:
    """A pass over a store in the page cache beside one over the same rows in memory, cut into the same blocks."""
    random = np.random.default_rng(0)
    X = np.round(random.random((n_rows, n_columns), np.float32) * 255) / np.float32(255)  # compresses, as images do
    y = random.integers(0, 2, n_rows)
    with tempfile.TemporaryDirectory(prefix="dkl-bench-") as folder:
        store = str(Path(folder) / "rows.zarr")
        create_dataset(store, X, y)
        rows_a_block = int(open_dataset(store).source.block_rows.max())
        sources: dict[str, BlockSource] = {
            "store": open_dataset(store).source,
            "memory": ArraySource(X, y, n_classes=2, rows_a_block=rows_a_block),
        }
        candidates = Gaussian(sigma=5.0).draw(n_frequencies, n_columns, seed=0, dtype="float32")
        record = potential_record(PotentialProblem(candidates, n_classes=2))
        least = dict.fromkeys(sources, np.inf)
        for _ in range(repeats + 1):  # the first round compiles and fills the page cache
            for name, source in sources.items():
                started = time.perf_counter()
                run_pass(source, (record,))
                least[name] = min(least[name], time.perf_counter() - started)
    return Measure(
        "a pass over a store in the page cache: of rows in memory", least["memory"] / least["store"], OF_MEMORY
    )


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
