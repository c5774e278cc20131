"""The room of a pass ends where Dask would act on a worker, or what the user or the machine allows would be used up."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import pytest

from dkl.data.coerce import as_dataset
from dkl.errors import MemoryLimitError
from dkl.linear.judge import Folds
from dkl.methods.random_features import RandomFeatures
from dkl.methods.room import planned_work
from dkl.model_selection.folds import fold_views
from dkl.passes.backends import ClusterBackend, choose_backend
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER, PIECES
from dkl.passes.room import ProcessMemory, checked_limit, modules_of, own_memory, own_room, room_of
from dkl.process import _COMPILED_BYTES, mapped_later
from tests.passes.sources import Source, moments

MB = 10**6
WORKER = ProcessMemory(
    "the worker tcp://a",
    held=200 * MB,
    host="here",
    free=10_000 * MB,
    limit=500 * MB,
    spills_at=350 * MB,
    pauses_at=400 * MB,
    ends_at=475 * MB,
    most_results=300 * MB,
)


def without(**changes: Any) -> ProcessMemory:
    return replace(WORKER, **changes)


@pytest.mark.parametrize(
    ("worker", "room", "why", "enough"),
    [
        (WORKER, 150, "Dask moves its results to disk at", "'730 MB'"),
        (without(spills_at=None), 200, "Dask pauses it at", "'640 MB'"),
        (without(spills_at=None, pauses_at=None), 275, "it is killed at", "'540 MB'"),
        # without a nanny, and all that Dask does turned off, the limit itself is left
        (without(spills_at=None, pauses_at=None, ends_at=None), 300, "has a limit of", "'510 MB'"),
        # results alone may not come to more than their share, however little else there is
        (without(held=10 * MB, most_results=100 * MB), 100, "Dask moves results to disk from", "'1530 MB'"),
        (without(n_fits=2), 75, "up to which it may run 2 fits at once", "'1160 MB'"),
    ],
    ids=["spill", "pause", "terminate", "nothing but the limit", "results", "two fits at once"],
)
def test_a_worker_stays_below_the_first_line_at_which_dask_acts(
    worker: ProcessMemory, room: int, why: str, enough: str
) -> None:
    found = room_of([worker], None)
    assert found.nbytes == room * MB
    assert why in str(found)
    assert f"a limit of {enough}" in found.refusal(301 * MB)


def test_a_limit_that_a_refusal_names_is_large_enough() -> None:
    needed = 301 * MB
    said = room_of([WORKER], None).refusal(needed)
    limit = checked_limit(said.split("a limit of '")[1].split("'")[0])
    assert limit is not None
    larger = without(limit=limit, spills_at=int(0.7 * limit), pauses_at=int(0.8 * limit), ends_at=int(0.95 * limit))
    assert needed <= room_of([replace(larger, most_results=int(0.6 * limit))], None).nbytes <= needed + 20 * MB


def test_of_unequal_workers_the_one_that_may_take_least_decides_and_is_named() -> None:
    small = without(name="the worker tcp://b", limit=400 * MB, spills_at=280 * MB, pauses_at=320 * MB)
    found = room_of([WORKER, small, without(name="the worker tcp://c", held=100 * MB)], None)
    assert found.nbytes == 80 * MB
    assert "the worker tcp://b" in found.refusal(100 * MB)
    assert "each of 3 processes" in str(found)


@pytest.mark.parametrize(("grown", "less"), [(0, 40), (25, 15), (35, 12), (90, 12)])
def test_a_whole_fit_leaves_less_room_to_grow_in_workers_that_have_grown_in_earlier_fits(grown: int, less: int) -> None:
    worker = without(grown=grown << 20)
    found = room_of([worker], None, for_whole_fit=True)
    assert found.nbytes == 150 * MB - (less << 20)
    # a fresh worker may be left the least room, although it holds less
    fresh = without(held=190 * MB)
    assert room_of([worker, fresh], None, for_whole_fit=True).nbytes == min(found.nbytes, 160 * MB - (40 << 20))


def test_a_worker_that_has_outgrown_a_fit_may_reach_the_bytes_at_which_dask_pauses_it() -> None:
    grown = without(grown=41 << 20)
    assert grown.has_outgrown_fits
    assert not without(grown=39 << 20).has_outgrown_fits
    assert room_of([grown.up_to_pause()], None).nbytes == 200 * MB
    # where Dask pauses no worker, the line of spilling stays
    assert room_of([without(pauses_at=None).up_to_pause()], None).nbytes == 150 * MB


def test_a_process_has_grown_by_what_it_holds_beyond_what_it_has_loaded() -> None:
    text = """
        import numpy as np
        from dkl.passes.loading import load
        from dkl.passes.room import own_memory
        print(own_memory().grown)
        load(["dkl.passes.loop"])
        print(own_memory().grown)
        kept = np.ones(2_000_000)
        print(own_memory().grown)
        load(["dkl.machines"])
        print(own_memory().grown)
    """
    out = subprocess.check_output([sys.executable, "-c", textwrap.dedent(text)], text=True)
    assert list(map(int, out.split())) == pytest.approx([0, 0, 16 * MB, 16 * MB], abs=2 * MB)


def test_workers_without_a_limit_share_what_their_machine_has_left() -> None:
    free = without(limit=None, free=900 * MB)
    assert room_of([free] * 3, None).nbytes == 300 * MB
    assert room_of([free, replace(free, host="there")], None).nbytes == 900 * MB
    assert "which 3 processes share" in room_of([free] * 3, None).refusal(301 * MB)


def test_a_users_limit_is_of_the_whole_process_and_never_raises_that_of_a_worker() -> None:
    assert room_of([WORKER], "300 MB").nbytes == 100 * MB
    assert room_of([WORKER], "2 GB").nbytes == 150 * MB
    assert room_of([WORKER], 150 * MB).nbytes == 0
    refused = room_of([WORKER], "300 MB").refusal(160 * MB)
    # both limits are in the way of so much, and both are named
    assert "memory_limit='370 MB' and a limit of '530 MB' for each worker" in refused


def test_what_a_pass_may_add_has_a_setting_of_its_own() -> None:
    with dask.config.set({"dkl.pass-bytes": "2 MiB"}):
        assert room_of([WORKER], None).nbytes == 2 << 20
        assert "dkl.pass-bytes" in room_of([WORKER], None).refusal(3 << 20)
        # a limit of all that a process holds is none of what it adds
        assert room_of([WORKER], "1 GB").nbytes == 2 << 20


def test_blocks_that_are_kept_for_the_next_pass_do_not_count_as_held() -> None:
    LOADER.clear()
    PIECES.clear()
    source = Source((4_000,) * 64)
    with dask.config.set({"scheduler": "threads", "dkl.cache-bytes": 1 << 30}):
        run_pass(source, (moments(),))
        assert LOADER.nbytes > 4_000 * 64 * 24
        # beside what tests before have given back of libraries, and may map again
        resident = psutil.Process().memory_info().rss + mapped_later()
        assert own_memory().held < resident - LOADER.nbytes // 2
    LOADER.clear()
    assert LOADER.nbytes == 0


def test_memory_that_arrow_has_freed_does_not_count_as_held() -> None:
    """Reading a partition of Parquet left 80 MiB to Arrow's allocator, in which no later block finds room."""
    code = """
        import threading
        import numpy as np
        import pyarrow as pa
        from dkl.passes.room import held_bytes

        print(held_bytes())
        tables = [pa.allocate_buffer(1 << 18) for _ in range(200)]
        for table in tables:
            np.asarray(memoryview(table))[:] = 1
        del tables, table
        # workers measure themselves in a thread of their own
        measuring = threading.Thread(target=lambda: print(held_bytes()))
        measuring.start()
        measuring.join()
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    before, after = map(int, run.stdout.split())
    assert after - before < 60 * MB


def test_a_pass_loads_what_the_steps_of_its_reader_need() -> None:
    rows = as_dataset(np.ones((8, 2)), np.arange(8.0))
    half = fold_views(rows, Folds.of(2, 0))[0].train
    names = modules_of((), half.source.reader())
    assert {"dkl.data.view", "dkl.linear.judge"} <= set(names)


def test_threads_may_take_what_the_machine_has_left() -> None:
    found = own_room(None)
    assert found.nbytes == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert own_room(psutil.Process().memory_info().rss // 2).nbytes == 0


def test_workers_are_measured_once_they_have_loaded_what_a_pass_needs(client: Any) -> None:
    backend = choose_backend()
    try:
        memories = backend.memories(["dkl.linear.sums"])
    finally:
        backend.close()
    assert {memory.name for memory in memories} == {f"the worker {address}" for address in client.nthreads()}
    for memory in memories:
        assert memory.limit == 4 << 30
        assert memory.spills_at == int(0.7 * memory.limit)
        assert memory.pauses_at == int(0.8 * memory.limit)
        assert memory.most_results == int(0.6 * memory.limit)
        assert 100 * MB < memory.held < 2_000 * MB
    loaded = client.run(lambda: ("dkl.linear.sums" in __import__("sys").modules, os.getpid()))
    assert all(found for found, _ in loaded.values())


def test_a_fit_that_is_a_task_of_a_worker_stays_below_the_limits_of_that_worker(client: Any) -> None:
    found = client.submit(own_room, None, pure=False).result()
    assert found.process.name in {f"the worker {address}" for address in client.nthreads()}
    assert int(0.7 * (4 << 30)) in {line.at for line in found.lines}


@pytest.mark.slow
def test_a_process_that_compiles_counts_what_its_compiler_will_keep(tmp_path: Path) -> None:
    """On a new machine, such as a pod, each worker compiles kernels while it holds rows."""
    text = """
        import sys
        import psutil
        from dkl.passes.loading import load
        from dkl.passes.room import own_memory
        from dkl.process import mapped_later
        load([])
        print(own_memory().held - mapped_later() - psutil.Process().memory_info().rss)
        kept = bytearray(5_000_000)
        print(own_memory().held - mapped_later() - psutil.Process().memory_info().rss)
        if "fit" in sys.argv:
            from dkl.kernels.sincos import add_multiple
            import numpy as np
            add_multiple(np.ones(2), 1.0, np.ones(2))
    """
    given = {"env": {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, "text": True}

    def expected(*arguments: str) -> tuple[float, float]:
        """Bytes that are expected after loading, and after 5 MB more are held."""
        out = subprocess.check_output([sys.executable, "-c", textwrap.dedent(text), *arguments], **given)
        loaded, later = map(float, out.split())
        return loaded, later

    compiling, refused, fitted = expected(), expected("fit"), expected()
    assert compiling[0] == pytest.approx(_COMPILED_BYTES, abs=2 * MB)
    # what it has loaded comes from the cache, and no other kernel is there
    assert refused[0] == pytest.approx(_COMPILED_BYTES, abs=2 * MB)
    # what the process holds since then is counted once
    assert [loaded - later for loaded, later in (compiling, refused)] == pytest.approx([5 * MB] * 2, abs=2 * MB)
    assert fitted == pytest.approx((0.0, 0.0), abs=2 * MB)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file a process has mapped")
def test_the_compiler_takes_the_place_of_blocks_that_are_kept_and_is_given_back_after_each_kernel(
    tmp_path: Path,
) -> None:
    """A worker of 500 MB, whose cache of kernels is new, then stays below 300 MiB."""
    text = """
        import numpy as np
        import psutil
        from numba import njit
        from numba.core import event
        from dkl.passes.loading import load
        from dkl.passes.reading import LOADER
        from dkl.passes.room import own_memory
        from dkl.protocols.block import Block

        def mapped():
            return psutil.Process().memory_info().shared

        load([])
        promised = own_memory()

        def compiling(kernel, *arguments):
            LOADER._cache.put(("rows", 0), Block(0, np.zeros((9, 2)), None, None, np.arange(9)), 1 << 20)
            with event.install_listener("numba:compile", event.RecordingListener()) as heard:
                kernel(*arguments)
            return LOADER.nbytes, len(heard.buffer)

        from dkl.kernels.sincos import add_multiple
        print(*compiling(add_multiple, np.ones(2), 1.0, np.ones(2)), mapped(), promised.compiler)
        print(*compiling(njit(lambda x: x + 1.0), 1.0), mapped(), promised.compiler)
    """
    given = {"env": {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}, "text": True}
    out = subprocess.check_output([sys.executable, "-c", textwrap.dedent(text)], **given)
    (kept, events, mapped, promised), (kept_beside, _, with_compiler, _) = (
        list(map(int, line.split())) for line in out.splitlines()
    )
    assert (kept, events > 0) == (0, True)
    # a kernel of the user's own changes nothing, so that what the compiler maps is still there
    assert kept_beside > 0
    assert 20 * MB < with_compiler - mapped < promised + 28 * MB


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file a process has mapped")
def test_libraries_that_are_given_back_stay_counted_until_they_are_mapped_again() -> None:
    text = """
        import psutil
        from dkl.passes.loading import load
        from dkl.passes.room import own_memory
        from dkl.process import give_back_memory, mapped_later
        load([])
        def figures():
            return [own_memory().held, mapped_later(), psutil.Process().memory_info().rss]
        print(*figures())
        give_back_memory()
        print(*figures())
    """
    out = subprocess.check_output([sys.executable, "-c", textwrap.dedent(text)], text=True)
    loaded, given = (list(map(int, line.split())) for line in out.splitlines())
    # a kernel that is read from the cache has mapped at least 10 MiB of LLVM, which other kernels need, too
    assert given[2] < loaded[2] - 5 * MB
    assert given[1] > loaded[1] + 5 * MB
    assert given[0] == pytest.approx(loaded[0], abs=2 * MB)


def test_a_pool_of_processes_shares_what_the_machine_has_left() -> None:
    with dask.config.set(scheduler="processes", num_workers=2):
        backend = choose_backend()
        try:
            memories = backend.memories([])
        finally:
            backend.close()
    assert len(memories) == 2
    assert room_of(memories, None).nbytes == pytest.approx(psutil.virtual_memory().available / 2, rel=0.3)
    assert np.ptp([memory.held for memory in memories]) == 0


@pytest.mark.parametrize("frees", [True, False])
def test_a_process_that_holds_too_much_hands_back_what_it_has_freed_before_a_pass_is_refused(
    monkeypatch: pytest.MonkeyPatch, frees: bool
) -> None:
    asked: list[str] = []

    def memory() -> ProcessMemory:
        return ProcessMemory("this process", 0 if frees and asked else 1 << 40, "here", 1 << 40)

    monkeypatch.setattr("dkl.passes.backends.give_up_kept", lambda: asked.append("all"))
    monkeypatch.setattr("dkl.passes.backends.own_memory", memory)
    expected = nullcontext() if frees else pytest.raises(MemoryLimitError, match=r"holds 1\.00 TiB already")
    with dask.config.set(scheduler="threads"), expected:
        run_pass(Source((5, 8)), [moments()], memory_limit="1 GiB")
    assert asked == ["all"]


@pytest.mark.parametrize(("held", "pauses_at", "runs"), [(348, 400, True), (348, None, False), (400, 400, False)])
def test_a_plan_of_workers_that_compute_rows_may_reach_the_bytes_at_which_dask_pauses_them(
    monkeypatch: pytest.MonkeyPatch, held: int, pauses_at: int | None, runs: bool
) -> None:
    """Workers of 500 MB that read Parquet were refused every fit from 334 MiB on, although Dask pauses them at 381."""
    large = without(held=held * MB, pauses_at=None if pauses_at is None else pauses_at * MB)
    monkeypatch.setattr("dkl.passes.backends.own_memory", lambda: large)
    rows = as_dataset(da.random.default_rng(0).random((60_000, 10), chunks=(30_000, 10)))
    learner = RandomFeatures(n_features=50, random_state=0)
    expected = nullcontext() if runs else pytest.raises(MemoryLimitError)
    with dask.config.set(scheduler="threads", num_workers=1), expected:
        assert planned_work(learner, rows, "cpu").room.lowest.at == 400 * MB


@pytest.mark.parametrize(("held", "pauses_at", "runs"), [(350, 400, True), (350, None, False), (400, 400, False)])
def test_a_pass_of_workers_that_have_grown_during_a_fit_may_reach_the_bytes_at_which_dask_pauses_them(
    monkeypatch: pytest.MonkeyPatch, held: int, pauses_at: int | None, runs: bool
) -> None:
    grown = without(held=held * MB, pauses_at=None if pauses_at is None else pauses_at * MB)
    monkeypatch.setattr("dkl.passes.backends.own_memory", lambda: grown)
    # the refusal names the limit of a whole fit, whose plan stays below the first line
    expected = nullcontext() if runs else pytest.raises(MemoryLimitError, match="Dask moves its results to disk at")
    with dask.config.set(scheduler="threads"), expected:
        run_pass(Source((5, 8)), [moments()])


def test_workers_without_room_drop_the_samples_of_their_calls(client: Any) -> None:
    """Dask keeps those of an hour for its dashboard, by which a worker grew 7 MiB in each fit of a minute."""

    def sampled(dask_worker: Any) -> None:
        for history in (dask_worker.profile_history, dask_worker.profile_keys_history):
            history.append((0.0, {}))

    def oldest(dask_worker: Any) -> list[float]:
        histories = dask_worker.profile_history, dask_worker.profile_keys_history
        return [when for history in histories for when, _ in history if when == 0.0]

    client.run(sampled)
    assert all(client.run(oldest).values())
    ClusterBackend(client).give_up_kept()
    assert not any(client.run(oldest).values())
