"""Work that the cores of this process share: every piece once, in order, whoever is free, and errors that are seen."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest
from threadpoolctl import threadpool_info

from dkl.kernels import threads
from dkl.kernels.threads import Crew

SOON_S = 20.0


@pytest.fixture(autouse=True, params=[1, 2, 5])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Threads of their own for each number of cores."""
    monkeypatch.setattr(threads, "usable_cores", lambda: request.param)
    threads._threads.cache_clear()
    yield request.param
    threads._threads.cache_clear()


def test_each_piece_is_worked_on_once_and_comes_back_in_its_place() -> None:
    seen: list[int] = []

    def work(piece: int) -> int:
        seen.append(piece)
        return piece**2

    assert Crew().map(work, range(100)) == [piece**2 for piece in range(100)]
    assert sorted(seen) == list(range(100))
    assert Crew().map(work, iter([])) == []


def test_cores_work_side_by_side(cores: int) -> None:
    together = threading.Barrier(cores)
    Crew().map(lambda piece: together.wait(SOON_S), range(cores))


def test_threads_that_are_busy_elsewhere_hold_nobody_up(cores: int) -> None:
    free = threading.Event()
    busy = [threads._threads(os.getpid()).submit(free.wait, SOON_S) for _ in range(cores)]
    try:
        assert Crew().map(lambda piece: piece + 1, range(10)) == list(range(1, 11))
        assert not any(one.done() for one in busy)
    finally:
        free.set()


def test_a_piece_may_be_shared_itself() -> None:
    assert Crew().map(lambda piece: sum(Crew().map(lambda part: part, range(piece))), range(20)) == [
        sum(range(piece)) for piece in range(20)
    ]


@pytest.mark.parametrize("where", ["caller", "helper", "either"])
def test_an_error_in_one_piece_is_raised_and_the_rest_left(where: str, cores: int) -> None:
    if where == "helper" and cores == 1:
        pytest.skip("one core has no helper")
    caller, begun, failed = threading.current_thread(), [], threading.Event()

    def work(piece: int) -> None:
        begun.append(piece)
        is_caller = threading.current_thread() is caller
        if where == "either" or is_caller == (where == "caller"):
            failed.set()
            raise ValueError(f"piece {piece}")
        failed.wait(SOON_S)

    with pytest.raises(ValueError, match="piece"):
        Crew().map(work, range(1_000))
    # what had been taken when the first one failed, and no more than another piece each
    assert len(begun) <= 3 * cores


def test_blas_has_one_thread_meanwhile() -> None:
    def of_blas() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    before = of_blas()
    for inside in Crew().map(lambda piece: of_blas(), range(6)):
        assert inside == [1] * len(before)
    assert of_blas() == before
