"""Checkpoints: whole or absent, resumed by the same run only, plain arrays and JSON."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import fsspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dkl.errors import StoreError
from dkl.passes.checkpoint import Checkpoint, decode_state, encode_state


@pytest.fixture(params=["local", "memory"])
def store(request, tmp_path):
    if request.param == "local":
        return str(tmp_path / "run é")
    return f"memory://checkpoints/{tmp_path.name}"


def state_of(number: int) -> dict[str, np.ndarray]:
    return {"alpha": np.full(1000, number, np.float64), "count": np.array(number)}


def assert_state(saved, number: int) -> None:
    assert {name: array.tolist() for name, array in saved.arrays.items()} == {
        name: array.tolist() for name, array in state_of(number).items()
    }


def test_the_last_state_comes_back(store):
    checkpoint = Checkpoint(store)
    assert checkpoint.load("a") is None
    for number in range(4):
        checkpoint.save(state_of(number), {"round": number, "gap": 0.1}, fingerprint="a", rounds=number)
    saved = Checkpoint(store).load("a")
    assert_state(saved, 3)
    assert saved.values == {"round": 3, "gap": 0.1}
    assert saved.rounds == 3


def test_another_run_is_refused_with_both_fingerprints(store):
    Checkpoint(store).save(state_of(1), fingerprint="mine")
    with pytest.raises(StoreError, match=r"belongs to another run .*'mine' instead of 'yours'.*choose another place"):
        Checkpoint(store).load("yours")


def test_a_newer_format_is_refused(store, monkeypatch):
    monkeypatch.setattr("dkl.passes.checkpoint.FORMAT", 7)
    Checkpoint(store).save(state_of(1))
    monkeypatch.undo()
    with pytest.raises(StoreError, match=r"has format 7; this dkl reads up to 1"):
        Checkpoint(store).load()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_last_state_falls_back_to_the_one_before(store, damage):
    checkpoint = Checkpoint(store)
    for number in (1, 2):
        checkpoint.save(state_of(number), fingerprint="a", rounds=number)
    files, folder = fsspec.core.url_to_fs(store)
    newest = f"{folder}/state-1.dkl"
    content = files.cat_file(newest)
    if damage == "gone":
        files.rm_file(newest)
    else:
        flipped = content[:500] + bytes([content[500] ^ 1]) + content[501:]
        files.pipe_file(newest, {"cut": content[:-100], "flip": flipped, "empty": b""}[damage])
    assert_state(checkpoint.load("a"), 1)
    checkpoint.save(state_of(3), fingerprint="a")
    assert_state(checkpoint.load("a"), 3)


def test_a_cleared_checkpoint_is_absent(store):
    checkpoint = Checkpoint(store)
    for number in range(3):
        checkpoint.save(state_of(number))
    checkpoint.clear()
    assert checkpoint.load() is None


SAVING = """
import sys, numpy as np
from dkl.passes.checkpoint import Checkpoint
checkpoint = Checkpoint(sys.argv[1])
print("ready", flush=True)
number = int(sys.argv[2])
while True:
    checkpoint.save({"alpha": np.full(200_000, float(number))}, {"number": number}, rounds=number)
    print(number, flush=True)
    number += 1
"""


def test_a_kill_at_any_moment_leaves_a_whole_state(tmp_path):
    random = np.random.default_rng(0)
    number = 0
    for _ in range(8):
        saving = subprocess.Popen(
            [sys.executable, "-c", SAVING, str(tmp_path), str(number)], stdout=subprocess.PIPE, text=True
        )
        assert saving.stdout.readline() == "ready\n"
        time.sleep(random.uniform(0.0, 0.05))
        os.kill(saving.pid, signal.SIGKILL)
        reported = [int(line) for line in saving.stdout.read().split()]
        saving.wait()
        saving.stdout.close()
        saved = Checkpoint(tmp_path).load()
        if reported:
            assert saved.values["number"] in (reported[-1], reported[-1] + 1)
        if saved is not None:
            assert (saved.arrays["alpha"] == saved.values["number"]).all()
            number = saved.values["number"] + 1


def test_a_folder_without_permission_is_an_error_and_leaves_the_last_state(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.save(state_of(1))
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        checkpoint.save(state_of(2))
    tmp_path.chmod(0o700)
    assert_state(checkpoint.load(), 1)


@pytest.mark.parametrize(
    ("code", "reason"),
    [(errno.ENOSPC, "the disk is full; free some space or choose another place"), (errno.EIO, "Input/output error")],
)
def test_a_disk_that_refuses_is_an_error_with_path_and_bytes_and_leaves_the_last_state(
    tmp_path, monkeypatch, code, reason
):
    checkpoint = Checkpoint(tmp_path)
    said = rf"8,\d\d\d bytes of a checkpoint were not written: {reason}\."

    def refuse(descriptor):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr("dkl.passes.checkpoint.os.fsync", refuse)
        with pytest.raises(OSError, match=rf"{said} No state was kept"):
            checkpoint.save(state_of(1))
    checkpoint.save(state_of(1))
    with monkeypatch.context() as patch:
        patch.setattr("dkl.passes.checkpoint.os.fsync", refuse)
        with pytest.raises(OSError, match=rf"{said} The last state is kept") as caught:
            checkpoint.save(state_of(2))
    assert caught.value.errno == code
    assert caught.value.filename == str(tmp_path / "state-1.dkl")
    assert os.listdir(tmp_path) == ["state-0.dkl"]
    assert_state(checkpoint.load(), 1)


def test_a_state_whose_rename_is_made_and_reported_as_failed_is_the_last_one(tmp_path, monkeypatch):
    replace = os.replace

    def lost_answer(*names, **folders):
        replace(*names, **folders)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "replace", lost_answer)
    checkpoint = Checkpoint(tmp_path)
    for number in (1, 2, 3):
        checkpoint.save(state_of(number))
        assert_state(Checkpoint(tmp_path).load(), number)


def test_of_two_runs_that_save_in_one_place_the_second_is_told(store):
    ours, theirs = Checkpoint(store), Checkpoint(store)
    assert ours.load("ours") is theirs.load("theirs") is None
    theirs.save(state_of(1), fingerprint="theirs")
    with pytest.raises(StoreError, match="another run"):
        ours.save(state_of(2), fingerprint="ours")
    assert_state(theirs.load("theirs"), 1)


@dataclass(frozen=True)
class State:
    alpha: np.ndarray
    losses: tuple[float, ...]
    model: dict[str, object]
    best: object = None
    name: str = "x"


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | hnp.arrays(hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in "biuf"), hnp.array_shapes(max_side=3)),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def same(left: object, right: object) -> bool:
    if isinstance(left, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(best=values, model=st.dictionaries(st.text(), values, max_size=3))
@settings(max_examples=25, deadline=None)
def test_a_state_comes_back_from_a_checkpoint_as_it_was(best, model):
    state = State(np.arange(3.0), (0.1, np.inf), model, best)
    checkpoint = Checkpoint("memory://states")
    checkpoint.save(*encode_state(state))
    saved = checkpoint.load()
    again = decode_state(State, saved.arrays, saved.values)
    assert same(vars(state), vars(again))


def test_a_state_of_another_build_is_refused_by_its_fields():
    arrays, values = encode_state(State(np.zeros(1), (), {}))
    with pytest.raises(StoreError, match=r"another build of dkl: of State, the fields \['since'\] differ.* remove the"):
        decode_state(State, arrays, {**values, "since": 3})
    required = next(iter(values))
    with pytest.raises(StoreError, match="begin anew"):
        decode_state(State, arrays, {name: value for name, value in values.items() if name != required})


def test_numpy_numbers_keep_their_type():
    again = decode_state(State, *encode_state(State(np.zeros(1), (), {"a": np.float32(0.1)})))
    assert type(again.model["a"]) is np.float32


def test_a_state_that_holds_objects_is_refused_by_name():
    with pytest.raises(TypeError, match=r"the state's 'best' is a object; a checkpoint holds arrays, numbers"):
        encode_state(State(np.zeros(1), (), {}, object()))
    with pytest.raises(TypeError, match=r"the state's 'alpha' is an array of objects"):
        encode_state(State(np.array([None]), (), {}))


def test_two_runs_of_one_fingerprint_at_once_are_told_apart(store):
    ours, theirs = Checkpoint(store), Checkpoint(store)
    assert ours.load("one") is theirs.load("one") is None
    theirs.save(state_of(1), fingerprint="one")
    with pytest.raises(StoreError, match="another fit is using the checkpoint"):
        ours.save(state_of(2), fingerprint="one")
    theirs.save(state_of(3), fingerprint="one")
    assert_state(theirs.load("one"), 3)


def test_runs_that_save_at_the_same_moment_never_meet_in_one_unfinished_file(tmp_path):
    """Threads of one process, too: each ends, or is told; what is left is a whole state of one of them."""
    runs = [Checkpoint(tmp_path / "run") for _ in range(3)]
    for run in runs:
        run.load("one")

    def saves(run):
        try:
            for number in range(20):
                run.save(state_of(number), fingerprint="one")
        except StoreError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(3) as threads:
        told = list(threads.map(saves, runs))
    assert all(not message or "another fit is using" in message for message in told)
    assert Checkpoint(tmp_path / "run").load("one") is not None
    assert {path.name for path in (tmp_path / "run").iterdir()} <= {"state-0.dkl", "state-1.dkl"}


def test_a_checkpoint_under_a_file_and_one_with_a_nul_are_refused_in_words(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NotADirectoryError, match="lies under a file"):
        Checkpoint(tmp_path / "file" / "run").load()
    with pytest.raises(ValueError, match="NUL"):
        Checkpoint("run\0")
    assert (tmp_path / "file").read_text() == "mine"
