"""The report on a GPU: refused in a sentence where there is none, and otherwise one page with tests and figures."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dkl.bench.device_speed import DeviceLimits, Speed, device_limits, device_speeds
from dkl.kernels.device import why_no_gpu

DEPLOY = Path(__file__).parents[2] / "deploy"
OUTCOMES = """<testsuites><testsuite>
<testcase classname="tests.a" name="good"/>
<testcase classname="tests.a" name="bad"><failure message="1 is not 2&#10;more"/></testcase>
<testcase classname="tests.b" name="without"><skipped message="dask-cuda is not installed"/></testcase>
</testsuite></testsuites>"""


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


def test_the_page_holds_tests_and_figures(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tests = report.tests_of(OUTCOMES)
    assert tests.counts == {"passed": 1, "failed": 1, "skipped": 1}
    monkeypatch.setattr(report, "why_no_gpu", lambda: None)
    monkeypatch.setattr(report, "run_tests", lambda: tests)
    monkeypatch.setattr(report, "machine", lambda: iter([("GPU", "a played one")]))
    monkeypatch.setattr(
        report,
        "device_speeds",
        lambda **options: iter([Speed("a sum", 3.0, 0.5, 2e-7, 0.4), Speed("a fit", 3.0, 0.5, 0.0)]),
    )
    path = tmp_path / "page.md"
    assert report.main(["--output", str(path)]) == 1
    lines = path.read_text().splitlines()
    assert "- GPU: a played one" in lines
    assert "1 passed, 1 failed, 1 skipped" in lines
    assert "- failed: tests.a::bad: 1 is not 2" in lines
    assert "| a sum | 3 | 0.5 | 6.0 | 2.0e-07 | 0.80 of the limit: pass |" in lines
    assert "| a fit | 3 | 0.5 | 6.0 | 0.0e+00 |  |" in lines
    monkeypatch.setattr(report, "run_tests", lambda: report.Tests({"passed": 2, "failed": 0, "skipped": 0}, []))
    assert report.main(["--output", str(path)]) == 0


def test_no_test_that_ran_is_no_success(report: Any) -> None:
    assert not report.Tests({"passed": 0, "failed": 0, "skipped": 5}, []).passed


def test_the_measurements_compare_both_devices() -> None:
    speeds = list(device_speeds(n_rows=120, n_columns=9, n_frequencies=32, repeats=1, gpu="cpu"))
    assert len(speeds) == 12
    assert {one.difference for one in speeds} == {0.0}
    assert [one.verdict.endswith(("pass", "falls short")) for one in speeds] == [True] * 10 + [False] * 2


def test_the_limit_is_the_longer_of_transfer_and_product() -> None:
    limits = DeviceLimits(bytes_a_second=10.0, flops_a_second=100.0)
    assert limits.seconds(nbytes=50, flops=100) == 5.0
    assert limits.seconds(nbytes=50, flops=1_000) == 10.0
    assert Speed("a sum", 3.0, 0.5, 0.0, 0.2).verdict == "0.40 of the limit: falls short"
    measured = device_limits("cpu", size=64, repeats=1)
    assert measured.bytes_a_second > 0
    assert measured.flops_a_second > 0
