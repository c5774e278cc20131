"""Whoever adds to a store, replaces it or reads it while somebody else does: one is told, and no row is lost."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

import dkl
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, open_dataset
from dkl.data.schema import Schema
from dkl.data.store import commit
from dkl.data.store.location import Location
from dkl.data.store.overwriting import check_output
from dkl.data.store.writer import DatasetWriter
from dkl.errors import CorruptChunkError, DklHint, StoreError, StoreReplacedError
from dkl.federated.agreement import Agreement
from dkl.model_io import content_hash
from tests.commands import dkl_command
from tests.forks import ended

X = (np.arange(75.0).reshape(25, 3) % 7).astype(np.float32)
OTHER = X[:17] + 100
TOKEN = "0123456789abcdef" * 2


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield str(tmp_path / "rows.zarr") if request.param == "local" else f"memory:/{tmp_path}/rows.zarr"
    fsspec.filesystem("memory").store.clear()


def make(store: object) -> Dataset:
    return create_dataset(str(store), X, rows_a_block=10)


def replace_store(store: object) -> None:
    create_dataset(str(store), OTHER, rows_a_block=5, overwrite=True)


def listing(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


ADDING: dict[str, Callable[[Dataset], Any]] = {
    "append": lambda ds: ds.append(X[:4]),
    "drop": lambda ds: ds.drop([1, 2]),
    "drop blocks": lambda ds: ds.drop(blocks=[0]),
    "split": lambda ds: ds.split({"train": 0.5, "test": 0.5}),
    "split again": lambda ds: ds.split({"train": 0.5, "test": 0.5}, overwrite=True),
}
ADDED = pytest.mark.parametrize("change", ADDING.values(), ids=ADDING.keys())


def test_what_a_stale_handle_adds_never_ends_up_in_the_store_that_took_the_place(store: str) -> None:
    ds = make(store)
    replace_store(store)
    replaced = r"was replaced by another .* since it was opened.*[Oo]pen it again"
    for change in ADDING.values():
        with pytest.raises(StoreReplacedError, match=replaced):
            change(ds)
    check_whole(store)


def check_whole(store: str) -> None:
    """The store that took the place is as it was written, with nothing of anybody else in it."""
    ds = open_dataset(store)
    assert (ds.version, ds.splits, ds.verify()) == (0, (), [])
    assert np.array_equal(ds.X.compute(), OTHER)
    if "://" not in store:
        names = {Path(name).parts[0] for name in listing(Path(store))}
        assert names == {"X", "row_id", "manifest", "zarr.json"}
        assert os.listdir(Path(store).parent) == ["rows.zarr"]
    assert ds.append(X[:4]).drop([0]).verify() == []


@pytest.mark.parametrize(
    ("store", "change", "moment"),
    [
        ("local", "append", "before the commit"),
        ("local", "drop", "after the look at the token"),
        ("local", "split again", "after the look at the token"),
        ("memory", "append", "after the look at the token"),
        ("memory", "drop", "before the commit"),
        ("memory", "split again", "before the commit"),
    ],
    indirect=["store"],
)
def test_a_store_replaced_while_something_is_added_stays_as_it_is(store: str, change, moment: str, monkeypatch) -> None:
    ds = make(store)
    name = "commit" if moment == "before the commit" else "ensure_group" if "://" in store else "_put_in_place"
    owner: Any = commit if name == "ensure_group" else commit.Staging
    original, at_work = getattr(owner, name), []

    def interrupted(*given: Any) -> None:
        if not at_work:
            at_work.append(True)
            replace_store(store)
        original(*given)

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(StoreReplacedError, match="was replaced"):
        ADDING[change](ds)
    monkeypatch.undo()
    check_whole(store)


@pytest.mark.parametrize("gone", ["moved", "deleted"])
@ADDED
def test_what_is_added_to_a_store_that_is_gone_is_refused_and_nothing_is_made_in_its_place(
    tmp_path, change, gone
) -> None:
    store = tmp_path / "rows.zarr"
    ds = make(store)
    shutil.move(store, tmp_path / "elsewhere") if gone == "moved" else shutil.rmtree(store)
    with pytest.raises(StoreReplacedError, match="not found any more: it was moved, deleted or replaced"):
        change(ds)
    assert not store.exists()


@ADDED
def test_a_store_that_is_deleted_while_something_is_added_does_not_come_back_as_a_ruin(
    tmp_path, change, monkeypatch
) -> None:
    store = tmp_path / "rows.zarr"
    ds, original = make(store), commit.Staging.commit

    def interrupted(staging: commit.Staging, *given: Any) -> None:
        shutil.rmtree(store)
        original(staging, *given)

    monkeypatch.setattr(commit.Staging, "commit", interrupted)
    with pytest.raises(StoreReplacedError, match="not found any more"):
        change(ds)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_rows_that_are_appended_while_the_store_is_being_replaced_are_kept(tmp_path, monkeypatch, can_exchange) -> None:
    if not can_exchange:
        monkeypatch.setattr("dkl.data.store.commit.exchanged", lambda *given: False)
    store = tmp_path / "rows.zarr"
    ds = make(store)
    schema = Schema(n_columns=3, dtype=np.dtype(np.float32))

    def replace_while_another_appends() -> None:
        with DatasetWriter(store, schema, overwrite=True) as writer:
            writer.write(OTHER)
            ds.append(X[:4])

    with pytest.raises(FileExistsError, match="another writer"):
        replace_while_another_appends()
    found = open_dataset(store)
    assert (found.n_rows, found.version, found.verify()) == (29, 1, [])
    assert os.listdir(tmp_path) == ["rows.zarr"]


def test_a_store_is_replaced_by_its_own_rows_only_while_they_are_all_of_it(tmp_path: Path) -> None:
    store = tmp_path / "rows.zarr"
    ds = make(store)
    newer = ds.append(X[:4])
    for stale in (ds, ds.thin(5)):
        with pytest.raises(FileExistsError, match=r"newer version than 0.*would lose"):
            create_dataset(store, stale, overwrite=True)
    compact = create_dataset(store, newer.drop([0]), overwrite=True)
    assert np.array_equal(compact.X.compute(), np.concatenate([X, X[:4]])[1:])
    assert (compact.version, compact.verify()) == (0, [])
    with pytest.raises(StoreReplacedError, match="was replaced"):
        create_dataset(store, newer, overwrite=True)


def test_a_store_behind_a_url_is_not_deleted_before_its_own_rows_are_read(tmp_path: Path) -> None:
    url = f"memory:/{tmp_path}/rows.zarr"
    with pytest.raises(ValueError, match="cannot be replaced by its own rows"):
        create_dataset(url, make(url), overwrite=True)
    assert open_dataset(url).verify() == []


def test_a_kill_while_a_store_behind_a_url_is_replaced_leaves_it_half_written_and_said(tmp_path, monkeypatch) -> None:
    url = f"memory:/{tmp_path}/rows.zarr"
    make(url)
    with monkeypatch.context() as patched:
        # as after a SIGKILL: the writer has marked what was there, and nothing of it is deleted yet
        patched.setattr(Location, "delete", lambda *given, **options: None)
        DatasetWriter(url, Schema(n_columns=2, dtype=np.dtype("f4")), overwrite=True).__enter__()
    with pytest.raises(StoreError, match="half-written"):
        open_dataset(url)
    replace_store(url)
    check_whole(url)


READING: dict[str, Callable[[Dataset], Any]] = {
    "X": lambda ds: ds.X.compute(),
    "row_id": lambda ds: ds.row_id.compute(),
    "a split": lambda ds: ds["train"].X.compute(),
    "a reader elsewhere": lambda ds: pickle.loads(pickle.dumps(ds.source.reader())).load(ds.source.ticket(0)),
}


GONE = [
    (read, gone, ("whole", "version")[(place + row) % 2])
    for place, read in enumerate(READING.values())
    for row, gone in enumerate(("moved", "deleted", "replaced"))
]


@pytest.mark.parametrize(("read", "gone", "what"), GONE)
def test_readers_of_a_store_that_is_gone_are_told_so_rather_than_of_damage(tmp_path, read, gone, what) -> None:
    store = tmp_path / "rows.zarr"
    ds = make(store).split({"train": 0.5, "test": 0.5})
    if what == "version":
        ds = ds.append(X[:4], split="train")
    if gone == "replaced":
        replace_store(store)
    else:
        shutil.move(store, tmp_path / "elsewhere") if gone == "moved" else shutil.rmtree(store)
    with pytest.raises(StoreReplacedError, match=r"(moved, deleted or replaced|was replaced).*[Oo]pen it again"):
        read(ds)


def test_splits_that_were_replaced_under_an_open_handle_are_not_mixed_with_the_new_ones(store: str) -> None:
    ds = make(store).split({"train": 0.5, "test": 0.5}, seed=0)
    reader = open_dataset(store)
    assert len(reader["train"].row_id.compute()) == len(ds["train"])
    ds.split({"train": 0.2, "test": 0.8}, seed=1, overwrite=True)
    for old in (ds, reader):
        with pytest.raises(StoreReplacedError, match=r"set of splits .* was replaced"):
            old["train"].row_id.compute()
    assert len(open_dataset(store)["train"].row_id.compute()) == 5


def test_damage_is_still_called_damage(tmp_path: Path) -> None:
    ds = make(tmp_path / "rows.zarr")
    (tmp_path / "rows.zarr/X/c/1/0").unlink()
    with pytest.raises(CorruptChunkError, match="block 1 of 'X'"):
        ds.X.compute()


NOT_OURS = [
    ".rows.zarr.mybackup.partial",
    ".rows.zarr.0123.replaced",
    f".rows.zarr.{TOKEN}.partial.bak",
    f".rows.zarr.{TOKEN[:-1]}.partial",
    f".rows.zarr.{TOKEN}0.partial",
    f".rows.zarr.{TOKEN.upper()}.partial",
    f".rows.zarr.mine.{TOKEN}.partial",
    f".rowsXzarr.{TOKEN}.partial",
    f".rows.{TOKEN}.partial",
    f"rows.zarr.{TOKEN}.partial",
    f".rows.zarr.{TOKEN}.part",
]


def test_folders_that_are_only_named_like_leftovers_stay(tmp_path: Path) -> None:
    for name in NOT_OURS:
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious.txt").write_text("keep me")
    make(tmp_path / "rows.zarr")
    replace_store(tmp_path / "rows.zarr")
    assert sorted(os.listdir(tmp_path)) == sorted([*NOT_OURS, "rows.zarr"])
    for name in NOT_OURS:
        assert (tmp_path / name / "precious.txt").read_text() == "keep me"


@pytest.mark.parametrize("link", [False, True])
def test_a_file_or_link_of_the_name_of_a_leftover_stays(tmp_path: Path, link: bool) -> None:
    name = tmp_path / f".rows.zarr.{TOKEN}.partial"
    (tmp_path / "mine").mkdir()
    name.symlink_to(tmp_path / "mine") if link else name.write_text("keep me")
    make(tmp_path / "rows.zarr")
    assert sorted(os.listdir(tmp_path)) == sorted([name.name, "mine", "rows.zarr"])


def test_a_rescued_store_comes_back_under_its_own_name_alone(tmp_path: Path) -> None:
    make(tmp_path / "rows.zarr")
    (tmp_path / "rows.zarr").rename(tmp_path / f".rows.zarr.{TOKEN}.replaced")
    create_dataset(tmp_path / "rows", OTHER)
    assert open_dataset(tmp_path / "rows").n_rows == 17
    assert not (tmp_path / "rows.zarr").exists()
    with pytest.raises(FileExistsError, match="overwrite=True"):
        make(tmp_path / "rows.zarr")
    assert open_dataset(tmp_path / "rows.zarr").n_rows == 25


def test_what_a_killed_writer_left_is_cleared(tmp_path: Path) -> None:
    (tmp_path / f".rows.zarr.{TOKEN}.partial" / "X").mkdir(parents=True)
    make(tmp_path / "rows.zarr")
    assert os.listdir(tmp_path) == ["rows.zarr"]


STRANGERS = [
    "notes.txt", "results/model.pkl", ".hidden", "mine/zarr.json", "mine/c/0", "X/notes.txt", "X/c/0/0.bak",
    "manifest/rows/c/old", "versions/notes.txt", "versions/old/zarr.json", "splits/split/readme.md", "X.csv", "c/0",
]  # fmt: skip


def test_a_store_that_holds_a_users_own_files_is_not_replaced_and_they_are_listed(tmp_path: Path) -> None:
    store = tmp_path / "rows.zarr"
    make(store).split({"train": 0.5}).append(X[:4], split=())
    for name in STRANGERS:
        first = next((path for path in reversed((store / name).parents) if not path.exists()), store / name)
        (store / name).parent.mkdir(parents=True, exist_ok=True)
        (store / name).write_text("keep me")
        with pytest.raises(FileExistsError, match="holds files that dkl did not write") as caught:
            replace_store(store)
        assert repr(name) in str(caught.value)
        assert "move them away" in str(caught.value)
        assert (store / name).read_text() == "keep me"
        assert os.listdir(tmp_path) == ["rows.zarr"]
        # each alone is a reason
        shutil.rmtree(first) if first.is_dir() else first.unlink()


def test_a_users_own_files_behind_a_url_are_not_deleted_either(tmp_path: Path) -> None:
    url = f"memory:/{tmp_path}/rows.zarr"
    make(url)
    fsspec.filesystem("memory").pipe_file(f"{tmp_path}/rows.zarr/notes.txt", b"keep me")
    with pytest.raises(FileExistsError, match=r"did not write: 'notes\.txt'"):
        replace_store(url)
    assert np.array_equal(open_dataset(url).X.compute(), X)


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_file_that_a_user_puts_in_meanwhile_is_not_deleted(tmp_path: Path, monkeypatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr("dkl.data.store.commit.exchanged", lambda *given: False)
    store = tmp_path / "rows.zarr"
    make(store)
    original = commit.flush_folder

    def flush(folder: Path) -> None:
        (store / "notes.txt").write_text("keep me")
        original(folder)

    monkeypatch.setattr(commit, "flush_folder", flush)
    with pytest.raises(FileExistsError, match="did not write"):
        replace_store(store)
    assert (store / "notes.txt").read_text() == "keep me"
    assert np.array_equal(open_dataset(store).X.compute(), X)
    assert os.listdir(tmp_path) == ["rows.zarr"]


def test_what_systems_put_into_folders_and_a_link_to_the_store_are_no_reason(tmp_path: Path) -> None:
    make(tmp_path / "rows.zarr").split({"train": 0.5}).append(X[:4], split=()).drop([0])
    (tmp_path / "rows.zarr/X/.DS_Store").write_text("")
    (tmp_path / "rows.zarr/versions" / f".000009.{TOKEN}.partial" / "anything").mkdir(parents=True)
    (tmp_path / "rows.zarr/versions" / f".000009.{TOKEN}.partial" / "anything" / "at all").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "rows.zarr")
    replace_store(tmp_path / "link")
    assert np.array_equal(open_dataset(tmp_path / "rows.zarr").X.compute(), OTHER)


def test_an_array_of_ones_own_in_the_store_is_seen_by_its_name(tmp_path: Path) -> None:
    make(tmp_path / "rows.zarr")
    zarr.create_array(tmp_path / "rows.zarr" / "predictions", data=np.ones(25))
    with pytest.raises(FileExistsError, match=r"'predictions/c/0', 'predictions/zarr\.json'"):
        replace_store(tmp_path / "rows.zarr")


def test_rows_do_not_replace_a_model(tmp_path: Path) -> None:
    with commit.staged(Location.of(tmp_path / "model"), "model", overwrite=False) as staging:
        staging.commit({"kind": "model"})
    with pytest.raises(FileExistsError, match="is a model, not a dataset"):
        replace_store(tmp_path / "model")


def fail_after(monkeypatch: pytest.MonkeyPatch, writes: int, code: int) -> None:
    """Let a few files be written, then have the disk refuse."""
    original, left = LocalStore.set, [writes]

    async def set_or_fail(self: LocalStore, key: str, value: object) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(code, os.strerror(code))
        await original(self, key, value)

    monkeypatch.setattr(LocalStore, "set", set_or_fail)


@ADDED
def test_a_disk_that_refuses_what_is_added_is_named_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change
) -> None:
    store = tmp_path / "rows.zarr"
    faults = ((0, errno.EROFS, "read-only"), (2, errno.ENOSPC, "disk is full"), (6, errno.EACCES, "not permitted"))
    # of the changes each meets one fault, in turn
    writes, code, words = faults[[*ADDING.values()].index(change) % 3]
    ds = make(store)
    before = listing(tmp_path)
    with monkeypatch.context() as patched:
        fail_after(patched, writes, code)
        with pytest.raises(OSError, match=words) as caught:
            change(ds)
    assert str(store) in str(caught.value)
    assert caught.value.errno == code
    assert listing(tmp_path) == before
    assert open_dataset(store).verify() == []


@ADDED
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change) -> None:
    store = tmp_path / "rows.zarr"
    ds = make(store)
    before = listing(tmp_path)

    def refused(self: Path, *given: Any, **options: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refused)
        with pytest.raises(PermissionError, match="not permitted") as caught:
            change(ds)
    assert str(store) in str(caught.value)
    assert listing(tmp_path) == before


def test_where_splits_cannot_be_stored_the_remedy_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = make(tmp_path / "rows.zarr")
    fail_after(monkeypatch, 0, errno.EROFS)
    with pytest.raises(OSError, match="read-only") as caught:
        ds.split({"train": 0.5})
    assert "write=False" in "".join(caught.value.__notes__)
    assert len(ds.split({"train": 0.5}, write=False)["train"]) == 13


def add_rows(store: str, number: int) -> list[int]:
    """Append rows that carry `number` five times; those that were told to open the store again do so."""
    kept = []
    for turn in range(5):
        value = float(1_000 * number + turn)
        rows = np.full((3, 3), value, np.float32)
        while True:
            try:
                open_dataset(store).append(rows)
            except (StoreError, FileExistsError, BlockingIOError):
                continue
            kept.append(int(value))
            break
    return kept


@pytest.mark.slow
def test_six_writers_at_once_lose_no_row_that_they_were_told_is_kept(tmp_path: Path) -> None:
    store = str(tmp_path / "rows.zarr")
    make(store)
    with ProcessPoolExecutor(6, mp_context=get_context("spawn")) as pool:
        told = [value for kept in pool.map(add_rows, [store] * 6, range(1, 7)) for value in kept]
    dataset = open_dataset(store)
    assert dataset.verify() == []
    values, counts = np.unique(dataset.X.compute()[:, 0], return_counts=True)
    added = values >= 1_000
    assert values[added].tolist() == sorted(told)
    assert set(counts[added].tolist()) == {3}
    assert dataset.n_rows == len(X) + 3 * 30


CHANGES: dict[str, Callable[[str], Any]] = {
    **{name: lambda store, change=change: change(open_dataset(store)) for name, change in ADDING.items()},
    "replace": replace_store,
    "create": lambda store: make(f"{store}-2"),
}


def _all_stores(folder: Path) -> dict[str, Any]:
    """The rows, versions and splits of all stores in a folder; nothing else may lie there."""
    found = {}
    for path in sorted(folder.iterdir()):
        assert not path.name.startswith(".")
        ds = open_dataset(str(path))
        assert ds.verify() == []
        found[path.name] = (np.asarray(ds.X).tolist(), ds.version, sorted(ds.split_sets))
    return found


@pytest.mark.parametrize("change", ["append", "split again", "replace", "create"])
def test_a_rename_that_is_made_and_reported_as_failed_is_made(change: str, tmp_path: Path) -> None:
    rename, exchange = os.rename, commit.exchanged

    def made_in(place: str) -> dict[str, Any]:
        """All stores of a folder after the change."""
        (tmp_path / place).mkdir()
        store = tmp_path / place / "rows.zarr"
        make(store)
        with pytest.MonkeyPatch.context() as patched:
            if place != "plain":
                patched.setattr(commit.os, "rename", lost_answer)
                patched.setattr(commit, "exchanged", lost_exchange if can_exchange else lambda *given: False)
            CHANGES[change](str(store))
        return _all_stores(tmp_path / place)

    def lost_answer(*names: Any, **folders: Any) -> None:
        rename(*names, **folders)
        raise OSError(number, os.strerror(number))

    def lost_exchange(*given: Any) -> bool:
        return exchange(*given) and False

    number, can_exchange = 0, False
    expected = made_in("plain")
    place = list(CHANGES).index(change)
    # with and without an exchange of two folders; of the other errors each change meets one in turn
    for row, number in enumerate((errno.EIO, (errno.ENOENT, errno.EEXIST, errno.ENOTEMPTY)[place % 3])):
        can_exchange = (place + row) % 2 == 0
        assert made_in(f"network {number}") == expected


def test_rows_whose_folder_cannot_be_forced_to_the_disk_are_there_and_not_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "rows.zarr"
    ds, flush = make(store), commit.flush

    def refuse(path: Any) -> None:
        if Path(path).name == "versions":
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        flush(path)

    monkeypatch.setattr(commit, "flush", refuse)
    with pytest.warns(DklHint, match="is written and can be opened, but the file system did not confirm"):
        ds.append(X[:4])
    assert open_dataset(str(store)).n_rows == 29


@pytest.fixture(scope="module")
def before_a_fault(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Callable[[Path], Any]]]:
    """A folder with a store of two versions and splits, a model and agreements; and what changes each of them.

    Each lies in a folder of its own, which is copied for each fault.
    """
    folder = tmp_path_factory.mktemp("before")
    for kind in ("rows", "model", "agreement"):
        (folder / kind).mkdir()
    make(folder / "rows/rows.zarr").split({"train": 0.5, "test": 0.5})
    open_dataset(folder / "rows/rows.zarr").append(X[:4] + 50, split=())
    public = create_dataset(tmp_path_factory.mktemp("public") / "rows.zarr", X, np.arange(25) % 2)
    models = [dkl.RandomFeatures(n_features=n, random_state=0).fit(X) for n in (8, 12)]
    learners = [dkl.AlignedFeatures(n_candidates=n, n_features=4, random_state=0) for n in (20, 30)]
    agreed = [dkl.agree(learner, public, {"north": 2, "south": 1}) for learner in learners]
    models[0].save(folder / "model/model.zarr")
    for name in ("agreed.zarr", "agreed.json"):
        agreed[0].save(folder / "agreement" / name)
    changes: dict[str, Callable[[Path], Any]] = {
        "create": lambda folder: make(folder / "new.zarr"),
        "overwrite": lambda folder: replace_store(folder / "rows.zarr"),
        "append": lambda folder: open_dataset(folder / "rows.zarr").append(X[:6] + 70, split=()),
        "drop": lambda folder: open_dataset(folder / "rows.zarr").drop([1, 2]),
        "split": lambda folder: open_dataset(folder / "rows.zarr", version=0).split({"a": 0.3}, name="other"),
        "split again": lambda folder: open_dataset(folder / "rows.zarr", version=0).split({"a": 0.3}, overwrite=True),
        "model": lambda folder: models[1].save(folder / "other.zarr"),
        "model again": lambda folder: models[1].save(folder / "model.zarr", overwrite=True),
        "agreement": lambda folder: agreed[1].save(folder / "agreed.zarr", overwrite=True),
        "agreement in words": lambda folder: agreed[1].save(folder / "agreed.json", overwrite=True),
    }
    return folder, changes


def _everything(folder: Path) -> dict[str, Any]:
    """The rows and splits of all versions of all stores, and the hashes of models and agreements; nothing else."""
    found: dict[str, Any] = {}
    for path in sorted(folder.iterdir()):
        assert not path.name.startswith(".")
        if path.name.startswith("agreed"):
            found[path.name] = Agreement.load(path).digest
        elif path.name in ("model.zarr", "other.zarr"):
            found[path.name] = content_hash(dkl.load_model(path))
        else:
            for version in range(open_dataset(path).version + 1):
                ds = open_dataset(path, version=version)
                blocks = [ds.source.reader().load(ds.source.ticket(i)).X.tolist() for i in range(ds.source.n_blocks)]
                splits = {
                    name: [
                        [block.row_id.tolist() for block in ds[part].source.blocks_without_x()] for part in each.names
                    ]
                    for name, each in ds.split_sets.items()
                }
                found[f"{path.name} {version}"] = (blocks, splits)
    return found


def fail_from(patched: pytest.MonkeyPatch, moment: int, *, lasting: bool) -> list[int]:
    """Have a call that writes fail, by its number, or that one and all later ones; how many there were."""
    calls, write = [0], LocalStore.set

    def strike() -> None:
        calls[0] += 1
        if calls[0] == moment or (lasting and calls[0] > moment):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            strike()
            return function(*given, **named)

        return call

    async def failing_write(self: LocalStore, key: str, value: Any) -> None:
        strike()
        await write(self, key, value)

    for name in ("fsync", "rename", "replace", "mkdir"):
        patched.setattr(os, name, failing(getattr(os, name)))
    patched.setattr(LocalStore, "set", failing_write)
    return calls


FAULTY = [("rows", change) for change in ("create", "overwrite", "append", "drop", "split", "split again")]
FAULTY += [("model", "model"), ("model", "model again")]
FAULTY += [("agreement", "agreement"), ("agreement", "agreement in words")]
# some hundred moments, each on a folder of its own
EVERY_MOMENT = (pytest.mark.slow, pytest.mark.timeout(3600))


@pytest.mark.filterwarnings("ignore::dkl.errors.DklHint", "ignore:the splits:UserWarning")
@pytest.mark.parametrize(
    ("kind", "change", "moments", "lasting"),
    [
        *((*each, "some", False) for each in FAULTY[1::2]),
        *(pytest.param(*each, "all", lasting, marks=EVERY_MOMENT) for each in FAULTY for lasting in (False, True)),
    ],
)
def test_a_fault_at_any_moment_leaves_the_old_or_the_new_and_says_which(
    kind: str, change: str, moments: str, lasting: bool, before_a_fault: Any, tmp_path: Path
) -> None:
    folder, changes = before_a_fault
    before = folder / kind

    def attempt(moment: int) -> tuple[bool, int, Path]:
        """Whether the change was said to be made, how many calls wrote, and the folder."""
        folder = shutil.copytree(before, tmp_path / str(moment))
        with pytest.MonkeyPatch.context() as patched:
            calls = fail_from(patched, moment, lasting=lasting)
            try:
                changes[change](folder)
            except OSError:
                return False, calls[0], folder
        return True, calls[0], folder

    far = 10**9
    _, count, folder = attempt(far)
    old, new = _everything(before), _everything(folder)
    assert old != new
    for moment in range(1, count + 1) if moments == "all" else sorted({count // 2, count} - {0}):
        is_made, _, folder = attempt(moment)
        assert _everything(folder) == (new if is_made else old), moment
        if not is_made:
            changes[change](folder)
            assert _everything(folder) == new, moment


def die_between_two_renames(store: str, kind: str) -> None:
    rename, commit.exchanged = commit.rename, lambda *given: False

    def last_rename(*given: Any, **named: Any) -> None:
        rename(*given, **named)
        os._exit(0)

    with commit.staged(Location.of(store), kind, overwrite=True) as staging:
        staging.group.create_array("0", shape=(3,), dtype="f4")
        commit.rename = last_rename
        staging.commit({"kind": kind})


@pytest.fixture(scope="module")
def killed_between_renames(
    tmp_path_factory: pytest.TempPathFactory, forked_workers: None
) -> dict[str, tuple[Path, Any]]:
    """Folders of a dataset and of a model whose writers were killed, and what each held before."""
    model_folder, dataset_folder = (tmp_path_factory.mktemp(kind) for kind in ("model", "dataset"))
    dkl.RandomFeatures(n_features=4, random_state=0).fit(X).save(model_folder / "model")
    make(dataset_folder / "dataset")
    of_model = content_hash(dkl.load_model(model_folder / "model"))
    of_dataset = open_dataset(dataset_folder / "dataset").X.compute().tolist()
    killed = {"model": (model_folder, of_model), "dataset": (dataset_folder, of_dataset)}
    for kind, (folder, _) in killed.items():
        assert ended(die_between_two_renames, str(folder / kind), kind) == 0
    return killed


@pytest.mark.parametrize("reader", ["open_dataset", "load_model", "info", "fit"])
def test_a_writer_killed_between_its_two_renames_hides_no_store(
    reader: str, killed_between_renames: dict[str, tuple[Path, Any]], tmp_path: Path
) -> None:
    kind = "model" if reader in ("load_model", "fit") else "dataset"
    folder, before = killed_between_renames[kind]
    place = shutil.copytree(folder, tmp_path, dirs_exist_ok=True) / kind
    assert not place.exists()
    with pytest.MonkeyPatch.context() as patched:

        def refuse(*given: Any) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        patched.setattr("dkl.data.store.abandoned.os.rename", refuse)
        patched.setattr("dkl.data.store.abandoned._PAUSES", (0.0, 0.0))
        with pytest.raises(FileNotFoundError, match=f"the old one lies in .*replaced' .*Read-only .*to '{kind}'"):
            dkl.load_model(place) if kind == "model" else open_dataset(place)
    if reader == "info":
        assert dkl_command("info", place).exit_code == 0
    if reader == "fit":  # before any work
        with pytest.raises(FileExistsError, match="overwrite=True"):
            check_output(place, "model", overwrite=False)
    after = content_hash(dkl.load_model(place)) if kind == "model" else open_dataset(place).X.compute().tolist()
    assert after == before
    replace_store(place) if kind == "dataset" else dkl.load_model(place).save(place, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == [kind]
