"""Arrays in place: known without reading them, every chunk decoded once a pass, and a change of their bytes is told."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import anndata
import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from scipy import sparse

import dkl
from dkl.data.dataset import Dataset, from_zarr
from dkl.data.store.foreign import SHARED, ForeignArray
from dkl.data.store.ledger import LEDGER
from dkl.errors import StoreError
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER
from dkl.passes.room import give_up_kept
from dkl.protocols.records import Accumulator, BlockSum

N, D = 30_000, 6


def column_sums(block: Any, operands: Any) -> dict[str, np.ndarray]:
    return {"sums": np.asarray(block.X.astype(np.float64).sum(axis=0))}


SUMS = BlockSum("column sums", column_sums, {"sums": Accumulator((D,))})
# Chunks of rows and columns, shards: from a hundredth of a block to all rows; whole, cut in columns, ragged, in shards.
LAYOUTS: list[dict[str, Any]] = [
    {"chunks": (100, D)},
    {"chunks": (1_000, D)},
    {"chunks": (1_024, 2)},
    {"chunks": (7_001, D)},
    {"chunks": (7_001, 1)},
    {"chunks": (N, D)},
    {"chunks": (N, 4)},
    {"chunks": (12_345, 5), "compressors": None},
    {"chunks": (500, D), "shards": (10_000, D)},
    {"chunks": (3_000, 3), "shards": (30_000, D)},
]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of at most 2,048 rows, so that tests need no gigabytes to have chunks of many blocks."""
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 2_048)


def stored(folder: Path, rows: np.ndarray, name: str = "X", **layout: Any) -> zarr.Array:
    array = zarr.create_array(str(folder / name), shape=rows.shape, dtype=rows.dtype, **layout)
    array[:] = rows
    return array


def some_rows(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(N, D)).astype(np.float32)


def chunk_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "zarr.json")


def objects_nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in chunk_files(folder))


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("layout", LAYOUTS, ids=repr)
def test_every_stored_byte_is_decoded_once_a_pass(tmp_path: Path, layout: dict[str, Any]) -> None:
    X = some_rows()
    rows = from_zarr(stored(tmp_path, X, **layout))
    assert rows.source.block_rows.max() <= 2_048
    assert rows.source.block_rows.sum() == N
    for scheduler in ("threads", "synchronous"):
        with dask.config.set({"scheduler": scheduler, "num_workers": 2, "dkl.cache-bytes": 0}):
            SHARED.clear()
            result = run_pass(rows.source, [SUMS])
        np.testing.assert_allclose(result.results[0]["sums"], X.sum(axis=0, dtype=np.float64), rtol=1e-10)
        assert result.stats.decoded_bytes == X.nbytes, scheduler
        assert result.stats.stored_bytes <= 1.05 * objects_nbytes(tmp_path) + 4_096, scheduler


@pytest.mark.parametrize("layout", [LAYOUTS[3], pytest.param(LAYOUTS[9], marks=pytest.mark.slow)], ids=repr)
def test_two_workers_decode_a_chunk_once_and_give_the_bits_of_threads(
    tmp_path: Path, layout: dict[str, Any], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 2_048)
    rows = from_zarr(stored(tmp_path, some_rows(), **layout))
    client.run(give_up_kept)
    with dask.config.set({"dkl.cache-bytes": 0}):
        result = run_pass(rows.source, [SUMS])
    # a worker that is late has a task taken over, which may begin within a chunk
    assert N * D * 4 <= result.stats.decoded_bytes <= 1.2 * N * D * 4
    with dask.config.set(scheduler="threads"):
        alone = run_pass(from_zarr(tmp_path / "X").source, [SUMS])
    assert result.results[0]["sums"].tobytes() == alone.results[0]["sums"].tobytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("chunk", [1_000, 20_000, 400_000])
def test_sparse_rows_are_decoded_about_once(tmp_path: Path, chunk: int) -> None:
    X = sparse.random_array((N, D), density=0.5, format="csr", rng=np.random.default_rng(0), dtype=np.float32)
    group = zarr.open_group(str(tmp_path / "rows"), mode="w")
    anndata.io.write_elem(group, "X", sparse.csr_matrix(X), dataset_kwargs={"chunks": (chunk,), "shards": None})
    rows = from_zarr(tmp_path / "rows" / "X")
    with dask.config.set({"scheduler": "threads", "num_workers": 2, "dkl.cache-bytes": 0}):
        SHARED.clear()
        result = run_pass(rows.source, [SUMS])
    np.testing.assert_allclose(result.results[0]["sums"], X.sum(axis=0), rtol=1e-5)
    # two threads may decode what they share twice at the ends of their tasks
    assert result.stats.decoded_bytes <= 1.3 * (X.data.nbytes + X.indices.nbytes + X.indptr.nbytes)


@pytest.mark.parametrize("chunk", [100, 1_000, 7_001, N])
def test_any_range_of_rows_reads_as_a_slice(tmp_path: Path, chunk: int) -> None:
    X, generator = some_rows(), np.random.default_rng(1)
    array = ForeignArray.of("X", stored(tmp_path, X, chunks=(chunk, 4)), f"chunks of {chunk}")
    ends = [(0, N), (0, 0), (N, N), (chunk - 1, chunk), *np.sort(generator.integers(0, N + 1, (20, 2)), axis=1)]
    for start, stop in ends:
        np.testing.assert_array_equal(array.rows(int(start), int(stop)), X[start:stop])


@pytest.mark.usefixtures("small_blocks")
def test_nothing_of_x_is_read_before_the_first_pass_and_targets_once(tmp_path: Path) -> None:
    X, y = some_rows(), np.arange(N) % 3
    stored(tmp_path, X, chunks=(1_000, D))
    stored(tmp_path, y, "y", chunks=(N,))
    LEDGER.new_reads()
    rows = from_zarr(tmp_path / "X", tmp_path / "y")
    assert rows.classes is not None
    assert rows.class_weights.tolist() == [N / 3] * 3
    assert rows.fingerprint
    assert rows.n_rows == N
    noted = LEDGER.new_reads()
    assert {name for _, name, _ in noted.digests} == {"y"}
    assert noted.decoded == y.nbytes
    named = from_zarr(tmp_path / "X", tmp_path / "y", classes=[0, 1, 2])
    assert LEDGER.new_reads().decoded == 0
    dkl.plan(dkl.RandomFeatures(n_features=10), named)
    # blocks to time reading, of which the fastest counts: four at most
    assert LEDGER.new_reads().decoded <= 4 * X.nbytes // 10 + y.nbytes


def test_rows_are_known_by_their_objects(tmp_path: Path) -> None:
    X = some_rows()
    stored(tmp_path, X, chunks=(1_000, D))
    first = from_zarr(tmp_path / "X").fingerprint
    assert from_zarr(tmp_path / "X").fingerprint == first
    with_targets = from_zarr(tmp_path / "X", np.arange(N) % 2)
    assert with_targets.fingerprint != first
    assert from_zarr(tmp_path / "X", np.arange(N) % 2).fingerprint == with_targets.fingerprint
    assert from_zarr(tmp_path / "X", np.arange(N) // 2 % 2).fingerprint != with_targets.fingerprint
    zarr.open_array(str(tmp_path / "X"))[5:6] = 0.0
    assert from_zarr(tmp_path / "X").fingerprint != first


def test_arrays_whose_store_lists_nothing_say_so_and_are_never_mixed_up() -> None:
    one, other = (zarr.array(some_rows(seed), chunks=(1_000, D)) for seed in (0, 1))
    rows = from_zarr(one), from_zarr(other)
    assert "known by its metadata alone, since its store lists no objects" in repr(rows[0].source.place)
    assert rows[0].fingerprint != rows[1].fingerprint
    LOADER.clear()
    for array, dataset in zip((one, other), rows, strict=True):
        with dask.config.set(scheduler="threads"):
            found = run_pass(dataset.source, [SUMS]).results[0]["sums"]
        np.testing.assert_allclose(found, np.asarray(array[:]).sum(axis=0, dtype=np.float64), rtol=1e-9)


def fitted(rows: Dataset, **options: Any) -> Any:
    features = dkl.RandomFeatures(n_features=20)
    return dkl.KernelClassifier(features, solver="newton", random_state=0, progress=False, **options).fit(rows)


def after_a_pass(rows: Dataset) -> None:
    with dask.config.set({"scheduler": "threads", "dkl.cache-bytes": 0}):
        run_pass(rows.source, [SUMS])


@pytest.mark.parametrize("how", ["a chunk written anew", "a chunk removed", "shrunk", "grown", "gone"])
def test_a_change_under_the_handle_ends_the_next_pass_and_is_named(tmp_path: Path, how: str) -> None:
    stored(tmp_path, some_rows(), chunks=(1_000, D))
    rows = from_zarr(tmp_path / "X")
    after_a_pass(rows)
    array = zarr.open_array(str(tmp_path / "X"))
    if how == "a chunk written anew":
        array[7_000:7_001] += 1.0
        message = r"the chunk 7 of 'X' \(rows 7000 to 7999\) of .* is not what was read before"
    elif how == "a chunk removed":
        (tmp_path / "X" / "c" / "3" / "0").unlink()
        message = "the chunk 'c/3/0' of .* was there when the array was opened, and is gone"
    elif how in ("shrunk", "grown"):
        array.resize((N // 2 if how == "shrunk" else 2 * N, D))
        message = "has other metadata than when it was opened"
    else:
        shutil.rmtree(tmp_path / "X")
        message = "has other metadata than when it was opened"
    SHARED.clear()
    with pytest.raises(StoreError, match=message):
        after_a_pass(rows)
    found = rows.verify()
    assert found
    # opened again, the rows are what they are now
    if how in ("a chunk written anew", "a chunk removed"):
        assert from_zarr(tmp_path / "X").verify() == []


def test_a_chunk_that_is_lost_before_the_first_pass_is_no_row_of_zeros(tmp_path: Path) -> None:
    stored(tmp_path, some_rows(), chunks=(1_000, D))
    rows = from_zarr(tmp_path / "X", np.arange(N) % 2)
    (tmp_path / "X" / "c" / "3" / "0").unlink()
    with pytest.raises(StoreError, match="'c/3/0'"):
        fitted(rows)


def test_chunks_that_were_never_written_read_as_the_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "X"), shape=(N, D), chunks=(1_000, D), dtype="float32", fill_value=2.0)
    array[:1_000] = 1.0
    rows = from_zarr(tmp_path / "X")
    with dask.config.set(scheduler="threads"):
        found = run_pass(rows.source, [SUMS]).results[0]["sums"]
    np.testing.assert_allclose(found, np.full(D, 1_000 + 2.0 * (N - 1_000)))
    assert rows.verify() == []


def test_chunks_of_another_codec_are_an_error_with_their_rows(tmp_path: Path) -> None:
    stored(tmp_path, some_rows(), chunks=(1_000, D))
    rows = from_zarr(tmp_path / "X")
    (tmp_path / "X" / "c" / "2" / "0").write_bytes(b"no chunk at all")
    with pytest.raises(StoreError, match=r"chunks of rows .* of .* cannot be decoded"):
        after_a_pass(rows)


class Stop(Exception):
    """Ends a fit after some rounds."""


def interrupted(rows: Dataset, checkpoint: Path) -> None:
    def stop(event: Any) -> None:
        if event.name == "rounds" and event.kind == "advanced" and event.done == 2:
            raise Stop

    with pytest.raises(Stop):
        dkl.MarginFeatures(n_features=60, random_state=0, progress=stop, checkpoint=str(checkpoint)).fit(rows)


def test_a_copy_with_other_times_resumes_and_one_with_other_values_is_refused(tmp_path: Path) -> None:
    X, checkpoint = some_rows(), tmp_path / "state"
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    stored(tmp_path, X, chunks=(1_000, D))
    whole = dkl.MarginFeatures(n_features=60, random_state=0, progress=False).fit(from_zarr(tmp_path / "X", y))
    interrupted(from_zarr(tmp_path / "X", y), checkpoint)
    shutil.copytree(tmp_path / "X", tmp_path / "copy")
    for path in chunk_files(tmp_path / "copy"):
        os.utime(path, (1.0, 1.0))
    copy, rounds = from_zarr(tmp_path / "copy", y), []
    assert copy.fingerprint != from_zarr(tmp_path / "X", y).fingerprint
    learner = dkl.MarginFeatures(n_features=60, random_state=0, progress=rounds.append, checkpoint=str(checkpoint))
    learner.fit(copy)
    assert learner.coef_.tobytes() == whole.coef_.tobytes()
    # it went on after two rounds, and read the rows once more to compare them
    assert next(event.name for event in rounds if event.kind == "started").startswith("compare rows")
    assert min(event.done for event in rounds if event.name == "rounds" and event.kind == "advanced") > 1
    zarr.open_array(str(tmp_path / "copy"))[N - 1 :] += 1.0
    with pytest.raises(StoreError, match=r"the chunk 29 of 'X' \(rows 29000 to 29999\)"):
        learner.fit(from_zarr(tmp_path / "copy", y))


def test_a_dask_array_of_zarr_is_read_in_place(tmp_path: Path) -> None:
    X = some_rows()
    stored(tmp_path, X, chunks=(7_001, 4))
    lazy = da.from_zarr(str(tmp_path / "X"))
    rows = from_zarr(lazy, np.arange(N) % 2)
    np.testing.assert_array_equal(rows.X.compute(), X)
    with pytest.raises(TypeError, match=r"dask\.array\.from_zarr has made and nothing has changed since"):
        from_zarr(lazy + 1.0)


def test_targets_in_large_chunks_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.data.store.blocking.MAX_BLOCK_ROWS", 2_048)
    stored(tmp_path, some_rows(), chunks=(1_000, D))
    stored(tmp_path, (np.arange(N) % 2).astype(np.int64), "y", chunks=(N,))
    rows = from_zarr(tmp_path / "X", tmp_path / "y")
    LEDGER.new_reads()
    SHARED.clear()
    with dask.config.set({"scheduler": "synchronous", "dkl.cache-bytes": 0}):
        result = run_pass(rows.source, [SUMS])
    assert result.stats.decoded_bytes == N * D * 4 + N * 8


def test_a_chunk_that_no_worker_can_hold_is_refused_with_its_size(tmp_path: Path) -> None:
    array = zarr.create_array(str(tmp_path / "X"), shape=(1 << 20, 64), chunks=(1 << 19, 64), dtype="float32")
    rows = from_zarr(array, np.zeros(1 << 20, int), classes=[0, 1])
    with dask.config.set({"dkl.pass-bytes": "64 MiB"}), pytest.raises(MemoryError, match=r"in chunks of 128\.00 MiB"):
        fitted(rows)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_arrays_on_s3_are_known_by_their_tags_and_compared(s3: dict) -> None:
    from zarr.storage import FsspecStore

    url, X = "s3://bucket/some folder/theirs.zarr", some_rows()
    store = FsspecStore.from_url(url, storage_options=s3)
    zarr.create_array(store, name="X", shape=X.shape, chunks=(7_001, 4), dtype="float32")[:] = X
    rows = from_zarr(f"{url}/X", np.arange(N) % 2, storage_options=s3)
    assert "known by its metadata alone" not in rows.source.place
    assert rows.fingerprint == from_zarr(f"{url}/X", np.arange(N) % 2, storage_options=s3).fingerprint
    after_a_pass(rows)
    np.testing.assert_array_equal(rows.X.compute(), X)
    zarr.open_array(store, path="X")[:1] = 0.0
    assert rows.fingerprint != from_zarr(f"{url}/X", np.arange(N) % 2, storage_options=s3).fingerprint
    SHARED.clear()
    with pytest.raises(StoreError, match="the chunk 0 of 'X'"):
        after_a_pass(rows)
