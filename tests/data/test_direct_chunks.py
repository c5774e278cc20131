"""Chunks that are decoded without zarr: the rows that zarr reads, its errors, and nothing that others wrote."""

from __future__ import annotations

import shutil
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ZstdCodec

from dkl.data.create import create_dataset
from dkl.data.dataset import open_dataset
from dkl.data.store import digests
from dkl.data.store.chunks import DirectChunks, NotDirectError
from dkl.data.store.growing import GrowingArray, WritingThreads
from dkl.data.store.location import Location
from dkl.data.store.reader import OpenStore, read_rows


def grown(folder: Path, values: np.ndarray, chunk: int, shard: int) -> tuple[zarr.Array, DirectChunks | None]:
    """Values as a store keeps them, and their direct reader."""
    location = Location.of(folder)
    with WritingThreads() as threads:
        group = zarr.create_group(location.store(read_only=False))
        array = GrowingArray(group, "rows", threads, chunk=chunk, shard=shard)
        array.append(values)
        array.close()
    stored: Any = location.group(read_only=True)["rows"]
    return stored, DirectChunks.of(stored)


def noise(n_rows: int, *tail: int, dtype: str = "f4") -> np.ndarray:
    """Bytes that do not compress, finite where they are floats."""
    random = np.random.default_rng(0)
    if dtype[0] == "f":
        return random.standard_normal((n_rows, *tail)).astype(dtype)
    return random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (n_rows, *tail), dtype)


@settings(max_examples=40, deadline=None)
@given(
    n_rows=st.integers(1, 60),
    tail=st.sampled_from([(), (1,), (7,)]),
    dtype=st.sampled_from(["f4", "f8", "i4", "i8", "u4", "i1"]),
    chunk=st.integers(1, 25),
    shard=st.integers(1, 4),
    compressible=st.booleans(),
    data=st.data(),
)
def test_rows_are_those_that_zarr_reads(
    tmp_path_factory: pytest.TempPathFactory,
    n_rows: int,
    tail: tuple[int, ...],
    dtype: str,
    chunk: int,
    shard: int,
    compressible: bool,
    data: st.DataObject,
) -> None:
    values = noise(n_rows, *tail, dtype=dtype)
    if compressible:
        values[:] = values[0]
    array, direct = grown(tmp_path_factory.mktemp("store"), values, chunk, shard)
    assert direct is not None
    start = data.draw(st.integers(0, n_rows))
    stop = data.draw(st.integers(start, n_rows))
    rows = direct.rows(start, stop)
    assert rows.dtype == values.dtype
    assert np.array_equal(rows, values[start:stop])
    assert np.array_equal(rows, read_rows(array, start, stop))


def chunk_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json")


@pytest.mark.parametrize("shard", [1, 3], ids=["files", "shards"])
@pytest.mark.parametrize("compressible", [False, True], ids=["plain", "zstd"])
def test_no_flipped_bit_lost_byte_or_lost_file_is_taken_for_rows(
    tmp_path: Path, compressible: bool, shard: int
) -> None:
    values = np.tile(noise(1, 3), (20, 1)) if compressible else noise(20, 3)
    _, direct = grown(tmp_path, values, 5, shard)
    assert direct is not None
    for file in chunk_files(tmp_path):
        written = file.read_bytes()
        for position in range(len(written)):
            flipped = bytearray(written)
            flipped[position] ^= 1 << position % 8
            file.write_bytes(flipped)
            with pytest.raises(NotDirectError):
                direct.rows(0, 20)
        for length in (0, 1, 4, len(written) - 1):
            file.write_bytes(written[:length])
            with pytest.raises(NotDirectError):
                direct.rows(0, 20)
        file.unlink()
        with pytest.raises(NotDirectError):
            direct.rows(0, 20)
        file.write_bytes(written)
    assert np.array_equal(direct.rows(0, 20), values)


@pytest.mark.parametrize(
    "kept",
    [
        {"compressors": (GzipCodec(), Crc32cCodec())},
        {"compressors": (Crc32cCodec(), ZstdCodec())},
        {"compressors": (Crc32cCodec(),), "serializer": BytesCodec(endian="big")},
        {"compressors": (Crc32cCodec(),), "chunk_key_encoding": {"name": "v2", "separator": "."}},
        {"compressors": (Crc32cCodec(),), "filters": (zarr.codecs.TransposeCodec(order=(1, 0)),)},
    ],
    ids=["gzip", "another order", "big-endian", "names of files", "transposed"],
)
def test_what_others_write_is_left_to_zarr(tmp_path: Path, kept: dict[str, Any]) -> None:
    location = Location.of(tmp_path)
    group = zarr.create_group(location.store(read_only=False))
    array = group.create_array("rows", shape=(10, 4), dtype="f4", **{"chunks": (5, 4), **kept})
    array[:] = noise(10, 4)
    assert DirectChunks.of(array) is None


@pytest.mark.parametrize("compressors", [(), (ZstdCodec(),), (ZstdCodec(), Crc32cCodec())], ids=repr)
@pytest.mark.parametrize(
    "layout", [{"chunks": (5, 4)}, {"chunks": (3, 3)}, {"chunks": (2, 3), "shards": (4, 6)}], ids=repr
)
def test_chunks_of_columns_and_without_a_checksum_are_those_that_zarr_reads(
    tmp_path: Path, layout: dict[str, Any], compressors: tuple[Any, ...]
) -> None:
    group = zarr.create_group(Location.of(tmp_path).store(read_only=False))
    array = group.create_array("rows", shape=(10, 7), dtype="f4", compressors=compressors, **layout)
    array[:] = values = noise(10, 7)
    direct = DirectChunks.of(array)
    assert direct is not None
    for start in range(11):
        for stop in range(start, 11):
            assert np.array_equal(direct.rows(start, stop), values[start:stop])


def test_a_store_behind_a_url_is_left_to_zarr() -> None:
    X = noise(20, 3)
    store = OpenStore(create_dataset("memory://direct/rows.zarr", X, X[:, 0]).source.location)
    assert np.array_equal(store.values("X", 0), X)
    assert store._chunks["X"] is None


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_every_array_of_a_store_is_read_directly(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.maximum(noise(200, 6), 0)
    rows = sparse.csr_array(X) if kind == "sparse" else X
    y, weight = np.arange(200) % 3, np.arange(200) % 4 + 1.0
    create_dataset(tmp_path / "rows.zarr", rows, y, sample_weight=weight, rows_a_block=64)
    monkeypatch.setattr("dkl.data.store.reader.read_rows", None)  # zarr is not asked
    ds = open_dataset(tmp_path / "rows.zarr")
    back = ds.X.compute()
    assert np.array_equal(back.toarray() if kind == "sparse" else back, X)
    assert np.array_equal(ds.y.compute(), y)
    assert np.array_equal(ds.sample_weight.compute(), weight)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("n_rows", [200_000, 299_000])
def test_a_block_is_read_with_no_more_memory_than_is_counted(tmp_path: Path, compressed: bool, n_rows: int) -> None:
    """Also the last one, which is the beginning of a chunk."""
    X = noise(n_rows, 10).astype(np.float32)
    X = np.round(X) if compressed else X
    ds = create_dataset(tmp_path / "rows.zarr", X, X[:, 0], rows_a_block=100_000)
    reader, source = ds.source.reader(), ds.source
    assert source.read_nbytes == (4_000_000 if compressed else 0)
    reader.load(source.ticket(0))

    def peak(block: int) -> int:
        tracemalloc.start()
        try:
            reader.load(source.ticket(block))
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    for block in range(source.n_blocks):
        # other threads of this process, such as those of a scheduler that other tests use, are counted too: what a
        # read takes by itself is the least of three counts
        least = min(peak(block) for _ in range(3))
        assert least <= source.block_nbytes + source.read_nbytes + 200_000


@pytest.mark.parametrize("damage", ["flip", "cut", "lost", "swapped"])
def test_damage_is_told_in_the_words_of_zarr(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X = noise(40, 3)
    create_dataset(tmp_path / "rows.zarr", X, X[:, 0], rows_a_block=20)
    first, second = chunk_files(tmp_path / "rows.zarr" / "X")
    if damage == "flip":
        first.write_bytes(bytes([first.read_bytes()[0] ^ 1]) + first.read_bytes()[1:])
    elif damage == "cut":
        first.write_bytes(first.read_bytes()[:-9])
    elif damage == "lost":
        first.unlink()
    else:
        shutil.copy(second, first)

    def fault() -> str:
        with pytest.raises(Exception) as raised:
            OpenStore(Location.of(tmp_path / "rows.zarr")).values("X", 0)
        return repr(raised.value)

    told = fault()
    monkeypatch.setattr("dkl.data.store.reader.direct_rows", lambda *_: None)
    assert told == fault()
    assert "block 0 of 'X'" in told


@pytest.mark.parametrize("by_library", [True, False])
def test_checksums_are_those_of_the_polynomial(by_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of no bytes, of arrays of all layouts, and of one part after the other; with the C library and without it."""
    if not by_library:
        monkeypatch.setattr(digests, "_EXTEND", None)
    assert digests.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
    assert digests.crc32c(np.empty(0), 5) == 5
    values = np.random.default_rng(0).normal(size=(37, 5)).astype(np.float32)
    for array in (values, values[:, 1:3], values.T, values[0, 0]):
        bits, crc = np.unpackbits(np.frombuffer(array.tobytes(), np.uint8), bitorder="little"), 0xFFFFFFFF
        for bit in bits.tolist():
            crc = crc >> 1 ^ (0x82F63B78 if (crc ^ bit) & 1 else 0)
        assert digests.crc32c(array) == crc ^ 0xFFFFFFFF
        assert digests.crc32c(values, digests.crc32c(array)) == digests.crc32c(
            np.frombuffer(array.tobytes() + values.tobytes(), np.uint8)
        )


@pytest.mark.skipif(sys.platform != "linux", reason="systems differ in what they show of a library's libraries")
def test_checksums_leave_the_lock_of_the_interpreter_to_other_threads() -> None:
    """The C library is there, and ctypes gives the lock away while it calls a function of a `CDLL`."""
    assert digests._EXTEND is not None
