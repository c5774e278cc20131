"""Stores are made by all cores: each chunk of a Dask array is computed once, and files are those that zarr writes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import Crc32cCodec, ZstdCodec

import dkl
from dkl.data.in_threads import Backlog
from dkl.data.schema import Schema
from dkl.data.sources.lazy import DaskSource
from dkl.data.store import growing
from dkl.data.store.growing import GrowingArray, WritingThreads, unlikely_value
from dkl.data.store.writer import DatasetWriter

N, CHUNK = 3_000, 700


def counted_rows(calls: Counter[int]) -> da.Array:
    """Rows whose chunks count how often they are computed."""

    def chunk(block_info: Any = None) -> np.ndarray:
        (start, stop), _ = block_info[None]["array-location"]
        calls[start] += 1
        return np.random.default_rng(start).standard_normal((stop - start, 3)).astype("f4")

    sizes = (*(CHUNK for _ in range(N // CHUNK)), N % CHUNK)
    return da.map_blocks(chunk, chunks=(sizes, (3,)), dtype="f4", meta=np.empty((0, 3), "f4"))


@pytest.mark.parametrize("options", [{}, {"groups": np.arange(N) // 7}, {"shuffle": True}], ids=str)
def test_what_a_target_is_made_of_is_computed_once_to_look_and_once_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 100)
    calls: Counter[int] = Counter()
    X = counted_rows(calls)
    ds = dkl.create_dataset(tmp_path / "a.zarr", X, (X[:, 0] > 0).astype("i1"), **options)
    assert set(calls.values()) == {2}
    assert len(calls) == 5
    rows = X.compute()
    same = dkl.create_dataset(tmp_path / "b.zarr", rows, (rows[:, 0] > 0).astype("i1"), rows_a_block=100, **options)
    assert ds.fingerprint == same.fingerprint


def test_small_chunks_are_joined_and_large_ones_are_left_to_dask() -> None:
    rows = np.zeros((10_000, 3), "f4")
    small, large = (DaskSource(da.from_array(rows, chunks=n), None, None, None) for n in (7, -1))
    assert small.blocks_as_chunked(2**30).n_blocks == 1
    assert large.blocks_as_chunked(2**10) is large


@settings(max_examples=40, deadline=None)
@given(
    n_rows=st.integers(0, 60),
    tail=st.sampled_from([(), (1,), (7,)]),
    dtype=st.sampled_from(["f4", "f8", "i4", "i8", "u4", "u1"]),
    chunk=st.integers(1, 25),
    shard=st.integers(1, 4),
    is_known=st.booleans(),
    compressible=st.booleans(),
    data=st.data(),
)
def test_files_are_those_that_zarr_writes(
    tmp_path_factory: pytest.TempPathFactory,
    n_rows: int,
    tail: tuple[int, ...],
    dtype: str,
    chunk: int,
    shard: int,
    is_known: bool,
    compressible: bool,
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("written")
    values = np.random.default_rng(0).integers(0, 2 if compressible else 250, (n_rows, *tail)).astype(dtype)
    with WritingThreads() as threads:
        group = zarr.create_group(folder / "ours")
        array = GrowingArray(
            group, "rows", threads, chunk=chunk, shard=shard, n_rows=n_rows if is_known and n_rows else None
        )
        cuts = sorted(data.draw(st.lists(st.integers(0, n_rows), max_size=4)))
        for start, stop in zip([0, *cuts], [*cuts, n_rows], strict=True):
            array.append(values[start:stop])
        array.close()
    is_compressed = "ZstdCodec" in array.facts()["codecs"]
    theirs = zarr.create_group(folder / "theirs").create_array(
        "rows",
        shape=values.shape,
        dtype=dtype,
        chunks=(chunk, *tail),
        shards=None if shard == 1 else (chunk * shard, *tail),
        filters=None,
        compressors=(ZstdCodec(level=1), Crc32cCodec()) if is_compressed else (Crc32cCodec(),),
        fill_value=unlikely_value(np.dtype(dtype)),
        config={"write_empty_chunks": True},
    )
    if n_rows:
        theirs[...] = values
    assert files_of(folder / "ours") == files_of(folder / "theirs")


def files_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_blocks_are_written_by_other_threads_and_no_more_of_them_than_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, at_work, most, names = GrowingArray._write, [0], [0], set()
    lock = threading.Lock()

    def watched(self: GrowingArray, array: zarr.Array, start: int, values: np.ndarray) -> None:
        if values.ndim == 1:
            return original(self, array, start, values)
        with lock:
            at_work[0] += 1
            most[0] = max(most[0], at_work[0])
        names.add(threading.current_thread().name)
        time.sleep(0.02)
        with lock:
            at_work[0] -= 1
        return original(self, array, start, values)

    monkeypatch.setattr(GrowingArray, "_write", watched)
    monkeypatch.setattr(growing, "usable_cores", lambda: 4)
    monkeypatch.setattr("dkl.data.store.writer.usable_cores", lambda: 4)
    block = 10 * (3 * 4 + 8)
    for bound, expected in ((100 * block, 4), (4 * block, 2), (1, 1)):
        most[0] = 0
        schema = Schema(n_columns=3, dtype=np.dtype("f4"))
        with DatasetWriter(
            tmp_path / "a.zarr", schema, n_rows=200, rows_a_block=10, overwrite=True, most_bytes=bound
        ) as writer:
            writer.write(np.ones((200, 3), "f4"))
        # on a busy machine threads may begin one after the other
        assert min(expected, 2) <= most[0] <= expected
    assert "MainThread" not in names


def test_an_error_of_a_thread_is_raised_in_the_order_of_the_calls_and_ends_them() -> None:
    def fails(message: str) -> None:
        raise ValueError(message)

    with WritingThreads() as threads:
        calls = Backlog(threads.pool, 10)
        calls.add(fails, "the first")
        calls.add(fails, "the second")
        with pytest.raises(ValueError, match="the first"):
            calls.finish()


def test_a_value_that_a_thread_finds_leaves_nothing_and_is_named_by_its_row(tmp_path: Path) -> None:
    schema = Schema(n_columns=2, dtype=np.dtype("f4"), column_names=["a", "b"])
    rows = np.ones((50, 2), "f4")
    rows[37, 1] = np.nan

    def write() -> None:
        with DatasetWriter(tmp_path / "a.zarr", schema, rows_a_block=8) as writer:
            writer.write(np.ones((100, 2), "f4"))
            writer.write(rows)

    with pytest.raises(ValueError, match=r"X\[137, 1\] \(column 'b'\) is NaN"):
        write()
    assert list(tmp_path.iterdir()) == []
