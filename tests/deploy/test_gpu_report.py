"""The report on a GPU: refused in a sentence where there is none, and otherwise one page with tests and figures."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dkl.kernels.device import why_no_gpu
from tests.kernels.cuda_sources import played

DEPLOY = Path(__file__).parents[2] / "deploy"
PLAYED = Path(__file__).parents[1] / "played_gpu"
VERBOSE = """tests/a.py::test_good PASSED  [ 33%]
[gw1] [ 66%] FAILED tests/a.py::test_bad[PASSED-1]
tests/b.py::test_without SKIPPED (no dask-cuda) [100%]
FAILED tests/a.py::test_bad[PASSED-1] - assert 1 == 2
SKIPPED [1] tests/b.py:3: no dask-cuda
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, as a module."""
    monkeypatch.syspath_prepend(str(DEPLOY))
    return importlib.import_module("gpu_report")


@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
def test_without_a_gpu_it_says_so(report: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.md"
    assert report.main(["--output", str(path)]) == 2
    assert "no GPU to report on: CuPy" in capsys.readouterr().err
    assert not path.exists()


def test_outcomes_are_counted_as_the_tests_run(report: Any) -> None:
    counts, messages = report.outcomes(VERBOSE.splitlines(keepends=True))
    assert counts == {"passed": 1, "failed": 1, "skipped": 1}
    assert messages == VERBOSE.splitlines()[3:]


@pytest.fixture
def parts(report: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The parts of a report, to be replaced, on a machine whose GPU nobody looks at."""
    monkeypatch.setattr(report, "why_no_gpu", lambda: None)
    monkeypatch.setattr(report, "provenance", lambda: "today, a card")
    monkeypatch.setattr(report, "PARTS", dict.fromkeys(("tests", "rates"), (lambda asked: iter(["a line"]), 0.5)))
    found: dict[str, Any] = report.PARTS
    return found


def test_a_page_that_is_cut_off_holds_all_lines_before(report: Any, parts: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "page.md"

    def cut_off(asked: Any) -> Any:
        yield "measured"
        assert path.read_text().endswith("## rates\n\ntoday, a card\n\nmeasured\n")
        raise KeyboardInterrupt

    parts["rates"] = (cut_off, 0.5)
    with pytest.raises(KeyboardInterrupt):
        report.main(["--output", str(path)])
    assert path.read_text().startswith("# dkl on a GPU\n\n## tests\n\ntoday, a card\n\na line\n\n## rates")


def test_a_part_that_fails_leaves_the_others_and_its_reason(report: Any, parts: dict[str, Any], tmp_path: Path) -> None:
    def failing(asked: Any) -> Any:
        yield "measured"
        raise ValueError("no such file")

    path = tmp_path / "page.md"
    assert report.main(["--output", str(path)]) == 0
    parts["tests"] = (failing, 0.5)
    assert report.main(["--output", str(path)]) == 1
    assert "measured\n\nfailed: ValueError: no such file\n\n## rates\n\ntoday, a card\n\na line\n" in path.read_text()
    parts["tests"] = (lambda asked: iter([report.WrongResult("bits differ"), "a line"]), 0.5)
    assert report.main(["--output", str(path)]) == 1
    assert "bits differ\na line\n" in path.read_text()


def test_a_part_that_is_repeated_leaves_the_sections_of_others(
    report: Any, parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.md"
    report.main(["--output", str(path)])
    monkeypatch.setattr(report, "provenance", lambda: "tomorrow")
    report.main(["--output", str(path), "--only", "rates"])
    assert (
        path.read_text() == "# dkl on a GPU\n\n## tests\n\ntoday, a card\n\na line\n\n## rates\n\ntomorrow\n\na line\n"
    )
    with pytest.raises(SystemExit):
        report.main(["--only", "rates,no"])


def test_a_part_ends_with_its_time_and_leaves_the_next_its_own(
    report: Any, parts: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(report.time, "monotonic", lambda: now[0])
    left: list[float] = []

    def slow(asked: Any) -> Any:
        for number in range(9):
            left.append(asked.left())
            now[0] += 20.0
            yield str(number)

    parts["tests"] = parts["rates"] = (slow, 0.5)
    path = tmp_path / "page.md"
    report.main(["--output", str(path), "--minutes", "1"])
    assert left == [30.0, 10.0, 20.0]
    assert path.read_text().count("was not measured: the time of this part was over") == 2


@played
@pytest.mark.skipif(why_no_gpu() is None, reason="there is a GPU")
@pytest.mark.parametrize(
    "only",
    [("rates", "rows"), pytest.param(None, marks=pytest.mark.slow)],
    ids=["alone", "all"],
)
def test_the_parts_run_on_a_played_gpu(
    report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: tuple[str, ...] | None
) -> None:
    """As `--quick` on a card; the tests and the workers among all of them are processes with the same GPU."""
    path, folders = tmp_path / "page.md", [str(PLAYED), str(PLAYED.parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))
    script = Path(report.__file__)
    command = [sys.executable, str(script), "--quick", "--minutes", "9", "--output", str(path)]
    command += ["--only", ",".join(only or report.PARTS)]
    done = subprocess.run(command, cwd=script.parents[1], capture_output=True, text=True, check=False)
    page = path.read_text()
    assert done.returncode == 0, page + done.stderr
    sections = page.split("\n## ")
    assert [section.partition("\n")[0] for section in sections[1:]] == list(only or report.PARTS)
    assert "a played GPU, 1 GiB" in page
    if only is None:
        assert "3 passed, 0 failed, 0 skipped" in sections[1]
        # workers, killed, beyond
        assert [section.count("| the same |") for section in sections[3:6]] == [1, 1, 2]
    assert "failed:" not in page
    assert "not measured" not in page


def test_the_measurements_compare_both_devices(report: Any) -> None:
    speeds = list(report.device_speeds(n_rows=120, n_columns=9, n_frequencies=32, repeats=1, gpu="cpu"))
    assert len(speeds) == 11
    assert {one.difference for one in speeds} == {0.0}
    assert [one.verdict.endswith(("pass", "falls short")) for one in speeds] == [True] * 9 + [False] * 2


def test_the_limit_is_the_longer_of_transfer_and_product(report: Any) -> None:
    limits = report.DeviceLimits(bytes_a_second=10.0, flops_a_second=100.0)
    assert limits.seconds(nbytes=50, flops=100) == 5.0
    assert limits.seconds(nbytes=50, flops=1_000) == 10.0
    assert (
        importlib.import_module("device_speed").Speed("a sum", 3.0, 0.5, 0.0, 0.2).verdict
        == "0.40 of the limit: falls short"
    )
    measured = report.device_limits("cpu", size=64, repeats=1)
    assert measured.bytes_a_second > 0
    assert measured.flops_a_second > 0
