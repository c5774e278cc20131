"""The shuffle through temporary disk: a uniform permutation that depends on the seed and the row numbers alone."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse, stats

from dkl.data.ingest import scratch
from dkl.data.ingest.packing import packed_rows, unpacked_rows
from dkl.data.ingest.scratch import check_free_space, scratch_folder
from dkl.data.ingest.staging import ROW, Stage
from dkl.data.pieces import joined_blocks
from dkl.data.store.copying import shuffled
from dkl.protocols.block import Block
from dkl.protocols.sampling import shuffle_keys
from tests.forks import started


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder in a test."""
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    return tmp_path


def blocks_of(X: Any, y: np.ndarray | None = None, weight: np.ndarray | None = None, step: int = 100) -> list[Block]:
    """Rows in blocks, numbered by ten thousands."""
    n_rows = X.shape[0]
    ids, groups = 10_000 * np.arange(n_rows), np.arange(n_rows) % 7
    return [
        Block(
            place,
            X[rows],
            None if y is None else y[rows],
            None if weight is None else weight[rows],
            ids[rows],
            {"group": groups[rows]},
        )
        for place, rows in enumerate(cut(n_rows, step))
    ]


def cut(n_rows: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, n_rows, step)]


def order_of(folder: Path, n_rows: int, *, seed: int | None, step: int, n_bytes: int, buffer_bytes: int) -> np.ndarray:
    """The order in which a stage hands rows back."""
    stage = Stage(folder, seed=seed, n_bytes=n_bytes, buffer_bytes=buffer_bytes)
    for rows in cut(n_rows, step):
        stage.add(pa.table({"x": np.arange(n_rows)[rows]}))
    tables = list(stage.tables())
    for table in tables:
        assert table.column("x").equals(table.column(ROW))
    return np.concatenate([table.column(ROW).to_numpy() for table in tables])


@pytest.mark.parametrize(
    ("step", "n_bytes", "buffer_bytes"), [(7, 1, 2**10), (999, 10**6, 2**12), (5000, 10**9, 2**26)]
)
def test_the_order_is_that_of_the_keys_whatever_the_buffers(tmp_path, step, n_bytes, buffer_bytes):
    order = order_of(tmp_path, 5000, seed=3, step=step, n_bytes=n_bytes, buffer_bytes=buffer_bytes)
    np.testing.assert_array_equal(order, np.argsort(shuffle_keys(np.arange(5000), 3)))


def test_without_a_seed_the_order_of_the_input_stays(tmp_path):
    order = order_of(tmp_path, 5000, seed=None, step=13, n_bytes=40_000, buffer_bytes=2**11)
    np.testing.assert_array_equal(order, np.arange(5000))


def test_another_seed_gives_another_order():
    orders = {tuple(np.argsort(shuffle_keys(np.arange(50), seed))) for seed in range(-20, 20)}
    assert len(orders) == 40


def test_every_permutation_of_four_rows_is_equally_likely():
    n_seeds = 24_000
    keys = np.stack([shuffle_keys(np.arange(4), seed) for seed in range(n_seeds)])
    _, counts = np.unique(np.argsort(keys, axis=1), axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_row_lands_anywhere_with_equal_chance():
    n = 200_000
    place = np.empty(n, np.int64)
    place[np.argsort(shuffle_keys(np.arange(n), 5))] = np.arange(n)
    # where the first, middle and last hundredth of the rows went, and whether neighbours stay together
    for rows in (slice(0, 2000), slice(99_000, 101_000), slice(-2000, None)):
        assert stats.kstest(place[rows] / n, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(place[:-1], place[1:])[0, 1]) < 4 / np.sqrt(n)


def test_sorted_labels_come_out_mixed():
    y = np.repeat([0, 1], 4000)
    X = np.zeros((8000, 1), np.float32)
    labels = np.concatenate([block.y for block in shuffled(blocks_of(X, y), n_bytes=10**5, seed=0)])
    shares = labels.reshape(16, 500).mean(axis=1)
    assert np.all(np.abs(shares - 0.5) < 4 * 0.5 / np.sqrt(500))


@pytest.mark.parametrize("seed", [0, 2**63])
@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "int64", "float16"])
def test_dense_rows_keep_their_values_labels_weights_and_groups(temporary, seed, dtype):
    rng = np.random.default_rng(0)
    X = (100 * rng.random((1003, 5))).astype(dtype)
    y, weight = rng.integers(3, size=1003), rng.random(1003)
    found = joined_blocks(list(shuffled(blocks_of(X, y, weight), n_bytes=X.nbytes, seed=seed)))
    assert found.X.dtype == X.dtype
    rows, rest = np.divmod(found.row_id, 10_000)
    assert not rest.any()
    np.testing.assert_array_equal(rows, np.argsort(shuffle_keys(np.arange(1003), seed)))
    np.testing.assert_array_equal(found.X, X[rows])
    np.testing.assert_array_equal(found.y, y[rows])
    np.testing.assert_array_equal(found.weight, weight[rows])
    np.testing.assert_array_equal(found.columns["group"], rows % 7)
    assert list(temporary.iterdir()) == []


def test_sparse_rows_keep_their_entries(temporary):
    X = sparse.random_array((1003, 300), density=0.02, format="csr", dtype=np.float32, rng=np.random.default_rng(0))
    y = np.random.default_rng(1).random((1003, 2))
    parts = list(shuffled(blocks_of(X, y), n_bytes=10**5, seed=1))
    assert all(part.X.indices.dtype == part.X.indptr.dtype == np.int32 and part.weight is None for part in parts)
    found = joined_blocks(parts)
    rows = found.row_id // 10_000
    assert abs(found.X - X[rows]).max() == 0
    np.testing.assert_array_equal(found.y, y[rows])


def test_blocks_that_differ_are_refused(temporary):
    for other in (np.zeros((2, 4)), np.zeros((2, 3), np.float32)):
        blocks = [*blocks_of(np.zeros((2, 3))), *blocks_of(other)]
        with pytest.raises(ValueError, match="Schema at index 1 was different"):
            list(shuffled(blocks, n_bytes=100, seed=0))


def test_no_block_gives_no_block():
    assert list(shuffled([], n_bytes=0, seed=0)) == []


def test_too_little_disk_is_refused_with_both_numbers(temporary, monkeypatch):
    monkeypatch.setattr(scratch.shutil, "disk_usage", lambda path: os.terminal_size((0, 0)) and _Usage(1000))
    with pytest.raises(OSError, match=r"needs about 2.00 kiB \(2048 bytes\).*1000 bytes.* are free") as caught:
        check_free_space(temporary, 2048, "the shuffle")
    assert str(temporary) in str(caught.value)
    with pytest.raises(OSError, match="are free"):
        next(shuffled(blocks_of(np.zeros((9, 9))), n_bytes=2048, seed=0))
    assert list(temporary.iterdir()) == []


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_no_temporary_file(temporary, kind):
    def blocks():
        yield from blocks_of(np.zeros((9, 9)))
        raise kind

    with pytest.raises(kind):
        list(shuffled(blocks(), n_bytes=100, seed=0))
    assert list(temporary.iterdir()) == []


def wait_in_a_folder(folder: str, ready: Any) -> None:
    with scratch_folder(folder, name="rows [1].zarr"):
        ready.send("ready")
        time.sleep(60)


@pytest.mark.usefixtures("forked_workers")
def test_folders_of_a_killed_process_go_with_the_next_run_and_those_of_a_living_one_stay(tmp_path):
    process = started(wait_in_a_folder, str(tmp_path))
    with scratch_folder(tmp_path, name="rows [1].zarr"):
        assert len(list(tmp_path.iterdir())) == 2
    assert len(list(tmp_path.iterdir())) == 1
    process.kill()
    process.join()
    with scratch_folder(tmp_path, name="other.zarr"):
        assert len(list(tmp_path.iterdir())) == 2
    with scratch_folder(tmp_path, name="rows [1].zarr"):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_directory_that_is_not_there_is_named(tmp_path):
    with (
        pytest.raises(FileNotFoundError, match=r"pass another temporary_directory=: '.*none'"),
        scratch_folder(tmp_path / "none"),
    ):
        pass


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    with scratch_folder(tmp_path, name="é" * 120) as folder:
        assert folder.is_dir()


def test_rows_may_be_as_long_as_memory_allows() -> None:
    """Arrow's binary columns, for one, hold less than 256 MiB in an entry."""
    X = np.zeros((2, 2**28 + 8), np.uint8)
    X[1, -1] = 1
    rows = pa.table(packed_rows(X)).take([1, 0])
    assert unpacked_rows(rows, X.shape[1])[:, -1].tolist() == [1, 0]
