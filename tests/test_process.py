"""The process that we run in: how many CPUs it may use, and that the child of a fork works as its parent did."""

from __future__ import annotations

import multiprocessing
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from threadpoolctl import threadpool_info

import dkl
from dkl import process
from dkl.data.dataset import Dataset
from dkl.data.ingest.formats import Buffers
from dkl.kernels import threads
from dkl.kernels.threads import Crew, one_blas_thread, threads_at_work
from dkl.machines.kernel_machines import KernelClassifier
from dkl.passes.backends import choose_backend, current_client
from dkl.process import leave_quickly, usable_cores

SOON_S = 60.0


def blas_threads() -> list[int]:
    return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]


# The end of a process ----------------------------------------------------------------------------------------------

ENDING = """
import atexit, gc
from dkl.process import leave_quickly
atexit.register(lambda: print(gc.get_freeze_count() > 10_000))
leave_quickly()
"""


def test_a_worker_leaves_without_a_last_search_for_unreachable_objects(client: Any, rows: Dataset) -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "True"
    fitted(rows)
    called = client.run(lambda: leave_quickly.cache_info().currsize)
    assert 1 in called.values()


# CPUs ------------------------------------------------------------------------------------------------------------


def allow(monkeypatch: pytest.MonkeyPatch, cores: int, quota: float | None) -> None:
    """A process that may run on so many cores of a host of 64, and has a quota of their time."""
    monkeypatch.setattr(process, "_allowed_cores", lambda: cores)
    monkeypatch.setattr(process, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)


@pytest.mark.parametrize(
    ("cores", "quota", "expected"), [(1, None, 1), (64, 1.5, 2), (64, 0.5, 1), (1, 1.5, 1), (8, 16.0, 8), (8, None, 8)]
)
def test_thread_counts_follow_the_cpus_of_the_process_not_those_of_the_host(
    cores: int, quota: float | None, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, cores, quota)
    assert usable_cores() == expected
    assert Buffers().threads == expected
    backend = choose_backend()
    try:
        assert len(backend.slots()) == expected
    finally:
        backend.close()


@pytest.mark.parametrize(("cores", "quota", "most"), [(1, None, 1), (64, 1.5, 2), (64, 0.5, 1)])
def test_a_crew_has_no_more_threads_than_the_process_has_cpus(
    cores: int, quota: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, cores, quota)
    threads._threads.cache_clear()
    inside, seen, lock = [0], [0], threading.Lock()

    def work(piece: int) -> None:
        with lock:
            inside[0] += 1
            seen[0] = max(seen[0], inside[0])
        threading.Event().wait(0.002)
        with lock:
            inside[0] -= 1

    Crew().map(work, range(20))
    assert seen[0] == most
    threads._threads.cache_clear()


def test_a_crew_asks_for_no_help_where_other_threads_are_at_work_on_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "usable_cores", lambda: 2)
    others, ready, done = [], threading.Barrier(2), threading.Event()

    def task_of_dask() -> None:
        with one_blas_thread():
            ready.wait(SOON_S)
            done.wait(SOON_S)

    other = threading.Thread(target=task_of_dask)
    other.start()
    ready.wait(SOON_S)
    try:
        Crew().map(lambda piece: others.append(threading.get_ident()), range(50))
    finally:
        done.set()
        other.join()
    assert set(others) == {threading.get_ident()}


def test_quotas_are_read_from_both_versions_of_control_groups_at_every_level(tmp_path: Path) -> None:
    def quotas(own: str) -> list[float]:
        (tmp_path / "own").write_text(own)
        return sorted(process._quotas(tmp_path / "cgroup", tmp_path / "own"))

    unlimited, limited = tmp_path / "cgroup" / "pod" / "here", tmp_path / "cgroup" / "pod"
    unlimited.mkdir(parents=True)
    (unlimited / "cpu.max").write_text("max 100000\n")
    (limited / "cpu.max").write_text("150000 100000\n")
    assert quotas("0::/pod/here\n") == [1.5]
    # in a container the path is the host's
    first = tmp_path / "cgroup" / "cpu,cpuacct"
    first.mkdir()
    (first / "cpu.cfs_quota_us").write_text("50000")
    (first / "cpu.cfs_period_us").write_text("100000")
    assert quotas("4:memory:/pod\n2:cpu,cpuacct:/docker/0123\n") == [0.5]
    (first / "cpu.cfs_quota_us").write_text("-1")
    assert quotas("2:cpu,cpuacct:/docker/0123\n") == []
    assert list(process._quotas(tmp_path, tmp_path / "nothing")) == []


def test_the_memory_that_is_left_of_a_container_bounds_that_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(process, "_OWN_CGROUPS", tmp_path / "own")

    def free() -> int:
        process._limiting_groups.cache_clear()
        return process.free_memory()

    of_host = free()
    assert of_host > 1 << 20

    def group(name: str, **files: str) -> None:
        folder = tmp_path / "cgroup" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file.replace("_", ".", 1)).write_text(content)

    group("pod", memory_max="1000000\n", memory_current="700000\n", memory_stat="anon 1\ninactive_file 100000\n")
    group("pod/here", memory_max="max\n", memory_current="500000\n", memory_stat="inactive_file 0\n")
    (tmp_path / "own").write_text("0::/pod/here\n")
    assert free() == 400_000
    assert process.free_memory() == 400_000
    # version 1 writes a huge number for no limit, and the pages of the groups inside under another name
    old = {"memory_limit_in_bytes": "800000", "memory_usage_in_bytes": "900000", "memory_stat": "total_inactive_file 7"}
    group("memory/docker", **old)
    (tmp_path / "own").write_text("3:memory:/docker\n")
    assert free() == 0
    group("memory/docker", memory_limit_in_bytes="9223372036854771712")
    assert free() == pytest.approx(of_host, rel=0.5)
    process._limiting_groups.cache_clear()


# forks -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    X = np.random.default_rng(0).normal(size=(600, 4)).astype(np.float32)
    return dkl.create_dataset(tmp_path_factory.mktemp("fork") / "rows.zarr", X, X[:, 0] * X[:, 1] > 0, rows_a_block=100)


@pytest.fixture(scope="module")
def model(rows: Dataset) -> KernelClassifier:
    return fitted(rows)


def fitted(rows: Any) -> KernelClassifier:
    features = dkl.RandomFeatures(n_features=40, random_state=0)
    return KernelClassifier(features, loss="log_loss", random_state=0).fit(rows)


def in_child(work: Callable[[], Any], folder: Path) -> np.ndarray:
    """What `work` returns in a forked child, which is given a minute."""

    def run() -> None:
        np.save(folder / "answer.npy", np.asarray(work()))

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(SOON_S)
    hung = child.is_alive()
    child.kill()
    child.join()
    assert not hung, "the child of a fork hangs"
    assert child.exitcode == 0
    return np.load(folder / "answer.npy")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
class TestAfterAFork:
    @pytest.mark.parametrize(
        ("work", "thread"),
        [
            (lambda model, rows: model.predict(rows).compute(), "main"),
            (lambda model, rows: model.predict_proba(rows.X.compute()), "other"),
            (lambda model, rows: model.score(rows), "main"),
            (lambda model, rows: rows.X.compute(), "other"),
            (lambda model, rows: fitted(rows).decision_function(np.eye(4)), "main"),
            (lambda model, rows: dask.compute(model.decision_function(rows))[0], "other"),
        ],
        ids=["predict", "predict_proba", "score", "X.compute", "fit", "compute"],
    )
    def test_a_child_works_as_its_parent_did_before(
        self, work: Callable[[Any, Any], Any], thread: str, model: Any, rows: Any, tmp_path: Path
    ) -> None:
        expected = np.asarray(work(model, rows))
        found: list[np.ndarray] = []
        forking = threading.Thread(target=lambda: found.append(in_child(lambda: work(model, rows), tmp_path)))
        if thread == "main":
            forking.run()
        else:
            forking.start()
            forking.join()
        np.testing.assert_array_equal(found[0], expected)

    def test_a_fork_amid_the_work_of_other_threads_leaves_the_child_its_cores(self, tmp_path: Path) -> None:
        before, ready, done = blas_threads(), threading.Barrier(2), threading.Event()

        def work() -> None:
            with one_blas_thread():
                ready.wait(SOON_S)
                done.wait(SOON_S)

        other = threading.Thread(target=work)
        other.start()
        ready.wait(SOON_S)
        try:
            assert in_child(lambda: [threads_at_work(), *blas_threads()], tmp_path).tolist() == [0, *before]
            with one_blas_thread():
                inside = in_child(lambda: [threads_at_work(), *blas_threads()], tmp_path)
            assert inside.tolist() == [1, *(1 for _ in before)]
        finally:
            done.set()
            other.join()
        assert blas_threads() == before

    def test_a_child_of_a_process_with_a_client_computes_by_itself(
        self, client: Any, model: Any, rows: Any, tmp_path: Path
    ) -> None:
        with dask.config.set(scheduler="threads"):
            expected = model.score(rows)
        assert in_child(lambda: [current_client() is None, model.score(rows)], tmp_path).tolist() == [1.0, expected]
        assert current_client() is client


# Memory that is handed back -------------------------------------------------------------------------------------------

HANDING_BACK = """
import numba, numpy as np, psutil
from dkl.kernels.sincos import cos_sin_rows
from dkl.process import give_back_memory
held = lambda: psutil.Process().memory_info().rss
def kernel():
    out = np.empty((2, 3))
    cos_sin_rows(np.arange(3.0), *out)
    return out
first, before = kernel(), held()
give_back_memory()
print(before - held(), np.array_equal(first, kernel()), held() - before < 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file a process has mapped")
def test_code_that_does_not_run_is_given_back_and_what_runs_goes_on() -> None:
    printed = subprocess.run([sys.executable, "-c", HANDING_BACK], capture_output=True, text=True, check=True).stdout
    given, is_same, is_less = printed.split()
    # LLVM alone is 60 to 110 MB of code and constants
    assert int(given) > 40 << 20
    assert (is_same, is_less) == ("True", "True")


PIECES = """
from pathlib import Path
import numba
from dkl.process import map_in_pieces
def mappings():
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, *_, path = line.split(maxsplit=5)
        start, end = (int(address, 16) for address in place.split("-"))
        yield end - start, rights, path
def largest(path):
    return max((size for size, rights, each in mappings() if path in each and rights == "r-xp"), default=0)
print(largest("llvmlite") >> 20)
others = [each for each in mappings() if "/libpython" in each[2] or "/libc." in each[2]]
map_in_pieces("llvmlite")
assert numba.njit(lambda x: x + 1)(1) == 2
print(largest("llvmlite"))
print(others == [each for each in mappings() if "/libpython" in each[2] or "/libc." in each[2]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file a process has mapped")
def test_a_library_in_pieces_runs_as_before() -> None:
    out = subprocess.check_output([sys.executable, "-c", PIECES], text=True)
    before, after, is_same = out.split()
    assert int(before) > 10
    assert int(after) == 128 << 10
    assert is_same == "True"


LOADING = """
{loading}
from dkl.passes.memory import peak_bytes
print(peak_bytes())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what of a file a process has mapped")
def test_a_process_that_loads_step_by_step_never_holds_all_that_is_mapped_of_its_libraries() -> None:
    """A worker of 350 MB would be paused while it loads."""

    def peak(loading: str) -> int:
        command = [sys.executable, "-c", LOADING.format(loading=loading)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    loading = "load(['dkl.machines.kernel_machines'])"
    at_once = peak(f"from dkl.passes import loading; loading.give_back_memory = lambda: None; loading.{loading}")
    step_by_step = peak(f"from dkl.passes.loading import load; {loading}")
    assert step_by_step < at_once - (30 << 20)


def test_what_of_a_library_was_written_to_is_kept() -> None:
    def mapping(start: str, perms: str, path: str, resident: int, own: int = 0, swapped: int = 0) -> Any:
        return SimpleNamespace(
            addr=f"{start}000-{start}fff",
            perms=perms,
            path=path,
            rss=1024 * resident,
            anonymous=1024 * own,
            swap=1024 * swapped,
        )

    mappings = [
        mapping("1", "r-xp", "/lib/patched.so", 4_000, own=4),
        mapping("2", "r-xp", "/lib/code.so", 4_000),
        mapping("3", "r--p", "/lib/constants.so", 4_000),
        # addresses that the loader filled in, here and in memory that was swapped out
        mapping("4", "r--p", "/lib/constants.so", 4_000, own=4_000),
        mapping("5", "r--p", "/lib/constants.so", 4_000, swapped=4),
        mapping("6", "rw-p", "/lib/variables.so", 4_000),
        mapping("7", "r-xs", "/lib/shared.so", 4_000),
        mapping("8", "r-xp", "[anon]", 4_000),
        mapping("9", "r-xp", "/lib/small.so", 12),
    ]
    assert list(process._unchanged_files(mappings)) == [(0x2000, 0x2FFF), (0x3000, 0x3FFF)]


BUSY = """
import os, threading, time
from dkl.process import waited_seconds
os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
others = []
for _ in range(3):
    others.append(os.fork())
    while not others[-1]:
        pass
try:
    began, ran, waited = time.perf_counter(), time.thread_time(), waited_seconds()
    while time.thread_time() - ran < 0.3:
        pass
    ran, took = time.thread_time() - ran, time.perf_counter() - began
    print(ran, took, waited_seconds() - waited)
finally:
    for other in others:
        os.kill(other, 9)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not say")
def test_time_is_told_from_waiting_for_a_processor() -> None:
    out = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, check=True).stdout
    ran, took, waited = map(float, out.split())
    assert took > 1.5 * ran
    assert took - waited == pytest.approx(ran, rel=0.3)


FREEING = """
import resource
import numpy as np
from dkl.process import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(200):
        np.ones(1 << 17)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
@pytest.mark.parametrize(("chosen", "is_kept"), [("65536", True), pytest.param("70000", False, marks=pytest.mark.slow)])
def test_workers_use_again_what_arrays_have_freed(chosen: str, is_kept: bool) -> None:
    """Pages that the system has to clear: of each array anew, as Dask's nannies set it, or of the first alone."""
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": chosen}
    command = [sys.executable, "-c", FREEING]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    before, after = map(int, out.split())
    assert before > 200 * 250
    assert (after < before / 50) == is_kept


HEAPS = """
import os
import threading
import psutil
import numpy as np
from dkl.process import keep_freed_memory, return_freed_memory
keep_freed_memory()
def held():
    return psutil.Process().memory_info().rss
def uses_memory(all_have_begun):
    all_have_begun.wait()
    for _ in range(3):
        arrays = [np.ones(1 << 16) for _ in range(8)]
before, together = held(), threading.Barrier(6)
threads = [threading.Thread(target=uses_memory, args=(together,)) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
return_freed_memory()
print(held() - before)
"""


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="of the GNU C library")
@pytest.mark.parametrize(("chosen", "is_shared"), [("", True), pytest.param("16", False, marks=pytest.mark.slow)])
def test_workers_return_what_their_threads_have_freed(chosen: str, is_shared: bool) -> None:
    """What is free at the end of the heap of a thread stays with a process: the threads of a worker share one heap."""
    environment = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    environment |= {"MALLOC_TRIM_THRESHOLD_": "65536"} | ({"MALLOC_ARENA_MAX": chosen} if chosen else {})
    command = [sys.executable, "-c", HEAPS]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout
    assert (int(out) < 4 << 20) == is_shared
