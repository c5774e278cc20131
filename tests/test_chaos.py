"""Fits of every kind survive whatever strikes their driver or their workers, with the same bits; see tests/chaos."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.chaos.fits import KINDS
from tests.chaos.runs import Drivers, Workers, expendable_client
from tests.object_store import s3_server

IN_TURN = list(KINDS)
# of one pass, of rounds, of rounds with columns of the rows, of a chain of steps, of a linear model
OF_EACH_SORT = ("aligned", "margin", "game", "adam", "epochs")
# fits of the others are broken off and go on, without a strike, in test_feature_learners.py, test_game.py and
# test_tuned.py of tests/methods, and in tests/machines/test_kernel_machines.py
IN_EVERY_RUN = ("margin",)


def kind_of(number: int) -> str:
    return IN_TURN[number % len(IN_TURN)]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Drivers:
    folder = str(tmp_path_factory.mktemp("drivers"))
    return Drivers(folder, f"{folder}/checkpoints")


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with expendable_client() as client:
        yield Workers(str(tmp_path_factory.mktemp("workers")), client)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in IN_EVERY_RUN else pytest.mark.slow) for kind in OF_EACH_SORT]
)
def test_a_driver_that_is_struck_resumes_to_the_same_bits(drivers: Drivers, kind: str) -> None:
    drivers.run(kind, OF_EACH_SORT.index(kind))
    assert not drivers.tally.differences
    assert drivers.tally.slowest_end < 10.0  # 2 s are promised; a machine that is busy takes longer


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_drivers_that_are_struck_thirty_times_resume_to_the_same_bits(drivers: Drivers, number: int) -> None:
    drivers.run(kind_of(number), number)
    assert not drivers.tally.differences


@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_workers_that_are_struck_thirty_times_change_no_bit(workers: Workers, number: int) -> None:
    workers.run(kind_of(number), number)
    assert not workers.tally.differences


@pytest.fixture
def bucket() -> Iterator[dict[str, Any]]:
    """Options with which s3fs finds a real S3 server that has a bucket."""
    with s3_server() as options:
        yield options


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", ["aligned", "game", "epochs"])
def test_a_driver_that_is_struck_resumes_from_an_object_store(bucket: Any, tmp_path: Path, kind: str) -> None:
    drivers = Drivers(str(tmp_path), "s3://bucket/checkpoints", {"s3": bucket})
    for number in range(3):
        drivers.run(kind, number)
    assert not drivers.tally.differences
    assert drivers.tally.struck


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_that_are_struck_change_no_bit_of_a_fit_that_keeps_its_rounds_in_an_object_store(
    bucket: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fsspec.config.conf, "s3", bucket)
    monkeypatch.setenv("FSSPEC_S3", json.dumps(bucket))  # for the workers: row columns lie there too
    with expendable_client() as client:
        workers = Workers(str(tmp_path), client, "s3://bucket/checkpoints")
        for number, kind in enumerate(OF_EACH_SORT):
            workers.run(kind, number)
    assert not workers.tally.differences
