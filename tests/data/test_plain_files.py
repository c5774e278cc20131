"""Pipes and devices in the place of files are refused, never waited for; folders of other processes are left alone."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import dask
import numpy as np
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.cli.output_checks import LIST_OF_OUTPUTS, prepare_folder
from dkl.data.ingest.scratch import scratch_folder
from dkl.data.store.location import Location
from dkl.data.store.outputs import written_whole
from dkl.data.store.overwriting import what_is_at
from dkl.errors import StoreError
from dkl.plain_files import open_own, own_folder, read_plain

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes"),
]
X = np.random.default_rng(0).normal(size=(60, 3))
Y = (X[:, 0] > 0).astype(int)


def piped(path: Path) -> None:
    """Put a named pipe in the place of a file."""
    path.unlink()
    os.mkfifo(path)


def linked_to_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def read_all(store: Path) -> None:
    """Open a store, look it over, and read its rows."""
    dataset = dkl.open_dataset(store)
    assert dataset.verify()
    dask.compute(dataset.X, dataset.y, dataset.row_id)


@pytest.mark.parametrize("spoil", [piped, linked_to_device])
def test_a_store_with_a_pipe_or_a_device_among_its_files_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    store = tmp_path / "rows.zarr"
    dkl.create_dataset(store, X, Y, rows_a_block=20)
    files = sorted(path for path in store.rglob("*") if path.is_file())
    assert len(files) > 8
    for path in files:
        content = path.read_bytes()
        spoil(path)
        with pytest.raises(StoreError):
            read_all(store)
        path.unlink()
        path.write_bytes(content)
    assert dkl.open_dataset(store).verify() == []


@pytest.mark.parametrize("spoil", [piped, linked_to_device])
def test_a_model_with_a_pipe_or_a_device_among_its_files_is_refused(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    store = tmp_path / "model.zarr"
    dkl.RandomFeatures(n_features=4, random_state=0).fit(X).save(store)
    for path in sorted(path for path in store.rglob("*") if path.is_file()):
        content = path.read_bytes()
        spoil(path)
        with pytest.raises(StoreError):
            dkl.load_model(store)
        path.unlink()
        path.write_bytes(content)
    dkl.load_model(store)


def test_a_checkpoint_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    learner = dkl.StepFeatures(n_features=4, checkpoint=str(tmp_path / "states"), random_state=0)
    learner.fit(X, Y)
    for state in sorted((tmp_path / "states").rglob("state-*.dkl")):
        content = state.read_bytes()
        piped(state)
        with pytest.raises(StoreError, match=r"holds no state: .*named pipe, where a file is expected"):
            learner.fit(X, Y)
        state.unlink()
        state.write_bytes(content)


def test_an_agreement_or_an_output_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "agreement.json")
    with pytest.raises(ValueError, match="is not what dkl"):
        dkl.Agreement.load(tmp_path / "agreement.json")
    data = dkl.create_dataset(tmp_path / "rows.zarr", X, Y)
    dkl.KernelClassifier(dkl.RandomFeatures(n_features=4), solver="newton", random_state=0).fit(data).save(
        tmp_path / "model.zarr"
    )
    os.mkfifo(tmp_path / "answers.csv")
    arguments = ["predict", str(tmp_path / "model.zarr"), str(tmp_path / "rows.zarr"), str(tmp_path / "answers.csv")]
    for more in ([], ["--overwrite"]):
        run = CliRunner().invoke(app, [*arguments, *more])
        assert run.exit_code == 1
        assert "is a device, not predictions" in " ".join(run.stderr.split())


@pytest.mark.parametrize("kind", ["pipe", "link", "folder"])
def test_a_list_of_outputs_that_is_no_file_of_its_own_is_neither_waited_for_nor_followed(
    tmp_path: Path, kind: str
) -> None:
    precious, listed = tmp_path / "precious.json", tmp_path / "out" / LIST_OF_OUTPUTS
    precious.write_text("{}")
    listed.parent.mkdir()
    if kind == "pipe":
        os.mkfifo(listed)
    elif kind == "link":
        listed.symlink_to(precious)
    else:
        listed.mkdir()
    with pytest.raises(FileExistsError, match="is no file of its own"):
        prepare_folder(tmp_path / "out", ["scores.json"])
    assert precious.read_text() == "{}"


def test_a_link_that_leads_back_to_itself_is_refused_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    for name in ("rows.zarr", "settled.json", "loss.png"):
        (tmp_path / name).symlink_to(name)
    learner = dkl.AlignedFeatures(dkl.Gaussian(1.0), n_candidates=8, n_features=4, random_state=0)
    settled = dkl.agree(learner, dkl.create_dataset("memory://link.zarr", X, Y), {"north": 1})
    for name, write in {
        "rows.zarr": lambda path: dkl.create_dataset(path, X, Y),
        "settled.json": settled.save,
        "loss.png": lambda path: written_whole(path).__enter__(),
    }.items():
        with pytest.raises(OSError, match="levels of symbolic links"):
            write(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == ["loss.png", "rows.zarr", "settled.json"]


def test_an_agreement_lies_inside_no_store(tmp_path: Path) -> None:
    rows = dkl.create_dataset(tmp_path / "rows.zarr", X, Y)
    learner = dkl.AlignedFeatures(dkl.Gaussian(1.0), n_candidates=8, n_features=4, random_state=0)
    with pytest.raises(ValueError, match="lies inside"):
        dkl.agree(learner, rows, {"north": 1}).save(tmp_path / "rows.zarr" / "agreement.json")


def test_a_pipe_at_which_somebody_writes_is_refused_as_well(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=lambda: os.close(os.open(tmp_path / "pipe", os.O_WRONLY)), daemon=True)
    writer.start()
    with pytest.raises(OSError, match="named pipe, where a file is expected"):
        read_plain(tmp_path / "pipe")
    # whoever waits to write is let go, and who only now comes to it
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    writer.join(5.0)
    os.close(reader)


def test_a_folder_of_ones_own_is_neither_a_link_nor_open_to_others(tmp_path: Path) -> None:
    made = own_folder(tmp_path / "own")
    assert made is not None
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    os.close(made)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    assert [own_folder(tmp_path / name) for name in ("link", "open", "file", "nowhere/folder")] == [None] * 4


@pytest.mark.parametrize("kind", ["pipe", "link", "writable"])
def test_a_file_of_ones_own_is_none_that_others_can_put_there(tmp_path: Path, kind: str) -> None:
    folder = own_folder(tmp_path / "own")
    assert folder is not None
    path = tmp_path / "own" / "name"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "target")
    else:
        path.touch()
        path.chmod(0o666)
    with pytest.raises(OSError):
        open_own("name", folder, os.O_RDWR | os.O_CREAT)
    assert not (tmp_path / "target").exists()
    os.close(folder)


def test_scratch_of_others_and_links_stay(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "in-use").touch()
    (kept / "file").touch()
    (tmp_path / ".dkl.scratch-link").symlink_to(kept)
    trap = tmp_path / ".dkl.scratch-pipe"
    trap.mkdir()
    os.mkfifo(trap / "in-use")
    mine = tmp_path / ".dkl.scratch-gone"
    mine.mkdir(mode=0o700)
    (mine / "in-use").touch(mode=0o600)
    shared = tmp_path / ".dkl.scratch-shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "in-use").touch()
    with scratch_folder(tmp_path) as folder:
        assert folder.is_dir()
    assert (kept / "file").exists()
    assert trap.exists()
    assert shared.exists()
    assert not mine.exists()


def test_a_folder_that_others_make_and_remove_meanwhile_is_never_taken_for_a_device(tmp_path: Path) -> None:
    place, looked = tmp_path / "checkpoint.zarr", threading.Event()

    def make_and_remove() -> None:
        while not looked.is_set():
            place.mkdir()
            place.rmdir()

    other, interval = threading.Thread(target=make_and_remove), sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    other.start()
    try:
        assert {what_is_at(Location.of(place)) for _ in range(1_000)} == {None}
    finally:
        looked.set()
        other.join()
        sys.setswitchinterval(interval)
