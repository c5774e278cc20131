"""Damage anywhere in a store is found, and whatever stops a writer leaves the old store, the new one, or a refusal."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from zarr.storage import LocalStore

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.schema import Schema
from dkl.data.store.writer import DatasetWriter
from dkl.errors import CorruptChunkError, StoreError
from tests.forks import started

N_ROWS = 300
KINDS = ("uncompressed", "compressed", "integers", "sparse", "sharded", "codes")


def rows_of(kind: str, seed: int = 0) -> tuple[object, np.ndarray, np.ndarray]:
    """X, y and weights whose arrays go through the codecs that `kind` names."""
    rng = np.random.default_rng(seed)
    X: object = rng.standard_normal((N_ROWS, 8)).astype(np.float32)
    if kind == "compressed":
        X = np.round(X).astype(np.float32)
    elif kind == "integers":
        X = rng.integers(0, 4, (N_ROWS, 8), dtype=np.uint8)
    elif kind == "sparse":
        X = sparse.random_array((N_ROWS, 40), density=0.1, format="csr", rng=rng, dtype=np.float32)
    elif kind == "codes":
        # format 2: a column of codes, whose values are in the metadata
        texts = [f"value {number:02d}" for number in rng.integers(0, 50, N_ROWS)]
        X = pd.DataFrame({"code": texts, "number": rng.standard_normal(N_ROWS)})
    return X, rng.integers(0, 2, N_ROWS), rng.integers(1, 4, N_ROWS).astype(float)


def make_store(path: Path, kind: str, seed: int = 0) -> Dataset:
    X, y, weight = rows_of(kind, seed)
    with pytest.MonkeyPatch.context() as patched:
        if kind == "sharded":
            patched.setattr("dkl.data.store.block_arrays._MANY_BLOCKS", 2)
            patched.setattr("dkl.data.store.block_arrays._MOST_IN_A_SHARD", 2)
        ds = create_dataset(path, X, y, sample_weight=weight, rows_a_block=60)
    assert ds.describe().facts["sharded"] == (kind == "sharded")
    return ds.split({"train": 0.7, "test": 0.3})


def is_detected(path: Path) -> bool:
    """Whether opening or reading everything refuses the store, with one of the errors that say so."""
    try:
        return bool(open_dataset(path).verify())
    except (StoreError, FileNotFoundError):
        return True


def read_like_a_pass(path: Path) -> list[np.ndarray]:
    ds = open_dataset(path)
    X = ds.X.compute()
    dense = X.toarray() if sparse.issparse(X) else X
    rules = np.array("" if ds.encoding is None else json.dumps(ds.encoding.to_json(), sort_keys=True))
    return [dense, ds.y.compute(), ds.sample_weight.compute(), ds["train"].row_id.compute(), rules]


def is_silently_wrong(path: Path, truth: list[np.ndarray]) -> bool:
    """Whether reading every row, as a pass does, returns something else than was written without an error."""
    try:
        found = read_like_a_pass(path)
    except (StoreError, FileNotFoundError, KeyError):
        return False
    return not all(np.array_equal(a, b) for a, b in zip(found, truth, strict=True))


def chunk_files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file() and file.name != "zarr.json")


def flip_a_bit(path: Path, rng: np.random.Generator) -> tuple[Path, bytes]:
    files = sorted(file for file in path.rglob("*") if file.is_file())
    file = files[rng.integers(len(files))]
    before = file.read_bytes()
    damaged = bytearray(before)
    damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
    file.write_bytes(bytes(damaged))
    return file, before


def check_flips(path: Path, kind: str, flips: int) -> None:
    make_store(path, kind)
    truth = read_like_a_pass(path)
    rng = np.random.default_rng(1)
    for _ in range(flips):
        file, before = flip_a_bit(path, rng)
        assert is_detected(path), f"a flipped bit of {file.relative_to(path)} was not found"
        assert not is_silently_wrong(path, truth), f"a flipped bit of {file.relative_to(path)} changed what was read"
        file.write_bytes(before)
    assert not is_detected(path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_anywhere_is_found(tmp_path: Path, kind: str) -> None:
    check_flips(tmp_path / "rows.zarr", kind, 3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_of_500_flipped_bits_is_found(tmp_path: Path, kind: str) -> None:
    check_flips(tmp_path / "rows.zarr", kind, 500)


@pytest.mark.parametrize("kind", ["uncompressed", "sparse", "sharded", "codes"])
def test_a_chunk_that_is_cut_short_or_deleted_is_found_and_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows.zarr"
    make_store(path, kind)
    truth = read_like_a_pass(path)
    files = chunk_files(path)
    # one file is halved, one emptied, one deleted
    chosen = np.random.default_rng(3).choice(np.array(files), 3, replace=False)
    for file, share in zip(chosen, (2, 0, None), strict=True):
        before = file.read_bytes()
        file.unlink() if share is None else file.write_bytes(before[: len(before) // 2 if share else 0])
        assert is_detected(path), f"{file.relative_to(path)} was not found"
        assert not is_silently_wrong(path, truth)
        file.write_bytes(before)


@pytest.mark.parametrize("kind", ["compressed", "sparse", "sharded"])
def test_swapped_chunks_and_chunks_of_another_dataset_are_found(tmp_path: Path, kind: str) -> None:
    path, other = tmp_path / "rows.zarr", tmp_path / "other.zarr"
    make_store(path, kind)
    make_store(other, kind, seed=9)
    truth = read_like_a_pass(path)
    arrays = ["X/data", "X/indices"] if kind == "sparse" else ["X"]
    # the other arrays are stored alike for all kinds, but for the shards
    if kind in ("compressed", "sharded"):
        arrays += ["y", "sample_weight", "row_id"]
    for array in arrays:
        first, second = chunk_files(path / array)[:2]
        one, two = first.read_bytes(), second.read_bytes()
        first.write_bytes(two)
        second.write_bytes(one)
        assert is_detected(path), f"swapped chunks of {array} were not found"
        assert not is_silently_wrong(path, truth)
        first.write_bytes((other / first.relative_to(path)).read_bytes())
        second.write_bytes(two)
        # row ids and small integers of the other dataset may be the very same bytes, which is no damage
        if first.read_bytes() != one:
            assert is_detected(path), f"a chunk of {array} of another dataset was not found"
        first.write_bytes(one)


def test_a_corrupt_chunk_is_named_with_its_store_on_read_and_all_of_them_by_verify(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    ds = make_store(path, "uncompressed")
    for block in (2, 4):
        file = path / "X" / "c" / str(block) / "0"
        file.write_bytes(b"\0" * file.stat().st_size)
    with pytest.raises(CorruptChunkError, match=r"block 2 of 'X' of '.*rows\.zarr'"):
        ds.source.reader().load(2)
    faults = ds.verify()
    assert len(faults) == 2
    assert all(f"block {block} of 'X'" in fault for block, fault in zip((2, 4), faults, strict=True))


def test_a_whole_array_that_is_gone_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    make_store(path, "compressed")
    for name in ("y", "row_id", "sample_weight", "manifest"):
        shutil.move(path / name, tmp_path / "gone")
        assert is_detected(path)
        shutil.move(tmp_path / "gone", path / name)
    assert not is_detected(path)


def write_forever(path: str, ready: Any) -> None:
    ready.send("ready")
    for i in itertools.count(1):
        X = np.full((4000, 16), i, np.float32) + np.arange(4000, dtype=np.float32)[:, None] % 2
        create_dataset(path, X, np.arange(4000) % 2, rows_a_block=500, overwrite=True)


def check_kills(path: Path, kills: int, seed: int) -> None:
    create_dataset(path, np.zeros((4000, 16), np.float32), np.arange(4000) % 2, rows_a_block=500)
    rng = np.random.default_rng(seed)
    for _ in range(kills):
        process = started(write_forever, str(path))
        time.sleep(float(rng.uniform(0.0, 0.5)))
        process.kill()
        process.join()
        ds = open_dataset(path)
        X = ds.X.compute()
        # one writer's rows throughout: the old dataset or the new one, never some of each
        assert ds.verify() == []
        assert np.array_equal(X[::2], np.full_like(X[::2], X[0, 0]))
        assert np.array_equal(X[1::2], X[::2] + 1) or X[0, 0] == 0
    create_dataset(path, np.ones((10, 2)), overwrite=True)
    assert sorted(os.listdir(path.parent)) == [path.name], "what killed writers left was not cleared"


@pytest.mark.usefixtures("forked_workers")
def test_a_writer_killed_at_any_moment_leaves_the_old_dataset_or_the_new_one(tmp_path: Path) -> None:
    check_kills(tmp_path / "rows.zarr", 2, seed=0)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_workers")
def test_sixty_kills_leave_the_old_dataset_or_the_new_one(tmp_path: Path) -> None:
    check_kills(tmp_path / "rows.zarr", 60, seed=1)


def fail_after(monkeypatch: pytest.MonkeyPatch, writes: int, error: OSError) -> None:
    """Let a few files be written, then have the disk refuse."""
    original = LocalStore.set
    left = [writes]

    async def set_or_fail(self: LocalStore, key: str, value: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise error
        await original(self, key, value)

    monkeypatch.setattr(LocalStore, "set", set_or_fail)


@pytest.mark.parametrize("writes", [0, 1, 5, 20, 27])
@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [(errno.ENOSPC, OSError, "disk is full"), (errno.EACCES, PermissionError, "not permitted")],
)
def test_a_disk_that_refuses_leaves_nothing_and_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int, code: int, kind: type[OSError], words: str
) -> None:
    path = tmp_path / "rows.zarr"
    with monkeypatch.context() as patched:
        fail_after(patched, writes, OSError(code, os.strerror(code)))
        with pytest.raises(kind, match=words) as caught:
            create_dataset(path, np.ones((500, 3)), np.arange(500) % 2, rows_a_block=100)
    assert str(path) in str(caught.value)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_keeps_the_dataset_that_was_to_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.zarr"
    before = create_dataset(path, np.ones((50, 3))).fingerprint
    with monkeypatch.context() as patched:
        fail_after(patched, 5, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(OSError, match="disk is full"):
            create_dataset(path, np.zeros((500, 3)), overwrite=True)
    assert open_dataset(path).fingerprint == before
    assert os.listdir(tmp_path) == ["rows.zarr"]


TWO_COLUMNS = Schema(n_columns=2, dtype=np.dtype(np.float32))


def write_while(interfere: Callable[[], object], store: object, *, overwrite: bool = False) -> None:
    """Write six rows, and let somebody else do something between the first row and the commit."""
    with DatasetWriter(store, TWO_COLUMNS, overwrite=overwrite) as writer:
        writer.write(np.ones((6, 2)))
        interfere()


def test_of_two_writers_one_wins_and_the_other_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    with pytest.raises(FileExistsError, match="another writer"):
        write_while(lambda: write_while(lambda: None, path), path)
    assert open_dataset(path).n_rows == 6
    assert os.listdir(tmp_path) == ["rows.zarr"]


@pytest.mark.parametrize("can_exchange", [True, False])
def test_of_two_replacing_writers_the_second_is_told_and_the_first_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr("dkl.data.store.commit.exchanged", lambda *given: False)
    path = tmp_path / "rows.zarr"
    create_dataset(path, np.zeros((3, 2)))
    with pytest.raises(FileExistsError, match="another writer"):
        write_while(lambda: create_dataset(path, np.full((7, 2), 7.0), overwrite=True), path, overwrite=True)
    assert open_dataset(path).n_rows == 7
    assert os.listdir(tmp_path) == ["rows.zarr"]
    assert create_dataset(path, np.ones((2, 2)), overwrite=True).n_rows == 2
    assert os.listdir(tmp_path) == ["rows.zarr"]


def test_two_writers_behind_a_url_end_with_one_whole_dataset() -> None:
    url = "memory://two-writers/rows.zarr"
    with pytest.raises(FileExistsError, match="another writer"):
        write_while(lambda: create_dataset(url, np.full((7, 2), 7.0)), url)
    ds = open_dataset(url)
    assert ds.n_rows == 7
    assert ds.verify() == []


def test_a_half_written_store_behind_a_url_is_refused_and_replaced() -> None:
    url = "memory://half/rows.zarr"
    writer = DatasetWriter(url, TWO_COLUMNS, rows_a_block=4)
    # as after a SIGKILL: entered, some blocks written, never left
    writer.__enter__()
    writer.write(np.ones((9, 2)))
    # this writer lives, and its threads still write the chunks of two blocks
    until = time.monotonic() + 30.0
    while sum("/c/" in file for file in fsspec.filesystem("memory").find("/half/rows.zarr")) < 4:
        assert time.monotonic() < until
        time.sleep(0.01)
    with pytest.raises(StoreError, match="half-written"):
        open_dataset(url)
    assert create_dataset(url, np.zeros((3, 2))).n_rows == 3


def test_an_error_in_the_with_block_leaves_nothing(tmp_path: Path) -> None:
    def stop() -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_while(stop, tmp_path / "a" / "rows.zarr")
    assert os.listdir(tmp_path) == []


def test_a_store_that_was_moved_aside_by_a_killed_writer_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.zarr"
    create_dataset(path, np.zeros((3, 2)))
    path.rename(tmp_path / f".rows.zarr.{'0123' * 8}.replaced")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        create_dataset(path, np.ones((4, 2)))
    assert open_dataset(path).n_rows == 3


def test_another_folder_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(FileExistsError, match="not a dataset that dkl has written"):
        create_dataset(tmp_path, np.ones((4, 2)), overwrite=True)
    assert (tmp_path / "precious.txt").read_text() == "keep me"
