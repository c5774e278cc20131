"""A fold on a cluster: who makes its pieces, how many wait, and how they arrive."""

from __future__ import annotations

import os
import pickle
import time
from dataclasses import replace
from pathlib import Path

import dask
import numpy as np
import pytest

from dkl.passes.loop import run_pass
from dkl.passes.memory import PIECES_A_THREAD
from dkl.passes.reading import LOADER
from dkl.passes.transport import Carried
from tests.passes.sources import Source, chain, chained, fold_by_definition, halves


def noted_piece(block, operands, number):
    """A piece with its maker; notes that it waits, and how many of this maker's pieces do."""
    folder = Path(operands["folder"])
    time.sleep(operands["making"])
    (folder / f"waits-{os.getpid()}-{block.index}-{number}").touch()
    waiting = len(list(folder.glob(f"waits-{os.getpid()}-*")))
    (folder / f"{waiting:03d}").touch()
    return os.getpid(), number, halves(block, operands, number)


def noted_step(state, piece, operands):
    maker, number, (block, rows) = piece
    time.sleep(operands["stepping"])
    (Path(operands["folder"]) / f"waits-{maker}-{block}-{number}").unlink()
    (Path(operands["folder"]) / f"maker-{maker}").touch()
    return chained(state, (block, rows), operands)


def noted_fold(folder, **seconds):
    return replace(
        chain(prepare=noted_piece, step=noted_step), pieces=lambda rows: 2, operands={"folder": str(folder), **seconds}
    )


@pytest.mark.parametrize("seconds", [{"making": 0.02, "stepping": 0.0}, {"making": 0.0, "stepping": 0.02}])
def test_workers_make_pieces_ahead_of_the_steps_but_no_more_than_their_share(client, tmp_path, seconds):
    source = Source((6,) * 24)
    (state,) = run_pass(source, (noted_fold(tmp_path, **seconds),)).results
    assert state.tobytes() == fold_by_definition(source, chain()).tobytes()
    assert len(list(tmp_path.glob("maker-*"))) == 2
    # one more: a piece is out of the way when its step ends, and noted as such a moment earlier or later
    assert 2 <= max(int(path.name) for path in tmp_path.glob("[0-9]*")) <= PIECES_A_THREAD + 1


def test_every_block_of_a_fold_is_told_of_and_counted_once_as_on_threads(client):
    rows = (6, 0, 3, 5) * 10
    fold = replace(chain(), pieces=lambda rows: 2)
    told = []
    stats = run_pass(Source(rows), (fold,), publish=told.append).stats
    with dask.config.set(scheduler="threads", num_workers=1):
        LOADER.clear()
        expected = run_pass(Source(rows), (fold,)).stats
    assert (stats.blocks, stats.rows) == (30, 140) == (expected.blocks, expected.rows)
    # a block whose two pieces are made in two workers is read by both
    assert expected.bytes <= stats.bytes <= 2 * expected.bytes
    assert [event.done for event in told if event.rows] == [*range(1, 31)]


@pytest.mark.parametrize("protocol", [4, 5])
def test_what_is_carried_arrives_with_its_arrays_aligned(protocol):
    value = {"phi": np.arange(5, dtype=np.float32), "y": np.arange(3.0)}
    buffers: list[pickle.PickleBuffer] = []
    callback = {"buffer_callback": buffers.append} if protocol == 5 else {}
    content = pickle.dumps(Carried(value), protocol=protocol, **callback)
    received = [memoryview(b"x" + bytes(buffer))[1:] for buffer in buffers]  # anywhere in a message
    arrived = pickle.loads(content, buffers=received).load()
    for name, array in value.items():
        np.testing.assert_array_equal(arrived[name], array)
        assert arrived[name].flags.aligned
        assert arrived[name].flags.writeable


def test_what_is_carried_is_not_copied_where_it_was_made():
    value = np.zeros(3)
    assert Carried(value).load() is value
