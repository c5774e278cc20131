"""A store whose every request takes 50 ms hides it behind the work on blocks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask
import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem

import dkl
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER
from dkl.protocols.records import Accumulator, BlockSum

LATENCY_S, WORK_S, BLOCKS = 0.05, 0.3, 10


class SlowFiles(LocalFileSystem):
    """Local files behind a network: each request waits."""

    protocol = "slow"
    requests = 0

    def cat_file(self, path: str, *given: Any, **options: Any) -> bytes:
        type(self).requests += 1
        time.sleep(LATENCY_S)
        return super().cat_file(path, *given, **options)


def worked_on(block: Any, operands: Any) -> dict[str, np.ndarray]:
    """What a block of the usual size costs with some thousand candidates."""
    time.sleep(WORK_S)
    return {"rows": np.array(block.n_rows)}


def seconds_of(source: Any) -> float:
    LOADER.clear()
    record = BlockSum("rows", worked_on, {"rows": Accumulator((), "int64")})
    started = time.perf_counter()
    result = run_pass(source, (record,))
    assert result.results[0]["rows"] == source.block_rows.sum()
    return time.perf_counter() - started


@pytest.mark.slow
def test_requests_of_50_ms_slow_a_pass_by_less_than_a_third(tmp_path: Path) -> None:
    fsspec.register_implementation("slow", SlowFiles, clobber=True)
    X = np.random.default_rng(0).standard_normal((BLOCKS * 50, 4)).astype(np.float32)
    dkl.create_dataset(tmp_path / "rows.zarr", X, X[:, 0] > 0, rows_a_block=50)
    remote = dkl.open_dataset(f"slow://{tmp_path}/rows.zarr").source
    before = SlowFiles.requests
    with dask.config.set({"scheduler": "threads", "num_workers": 2, "dkl.cache-bytes": 0}):
        near, far = (seconds_of(source) for source in (dkl.open_dataset(tmp_path / "rows.zarr").source, remote))
    assert SlowFiles.requests - before >= BLOCKS
    assert near >= BLOCKS / 2 * WORK_S
    assert far < 1.3 * near
