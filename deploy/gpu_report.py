"""All tests and measurements that need a GPU, in one call and one report.

    python deploy/gpu_report.py [--output gpu_report.md] [--quick]

Runs the tests that are marked `gpu` (tests/, in a process of their own), then times blocks and fits on GPU and CPU and
compares their results and the GPU's own limits (the rate of its bus and of its products, measured beside), and writes
the machine, the tests and the measurements as one page of Markdown, each with "pass" or "falls short". Meant to take
ten minutes on one GPU beside 16 cores. Exits with 1 if a test fails, with 2 and a sentence where there is no GPU: no
page is written then.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

from dkl.bench.device_speed import Speed, device_speeds
from dkl.kernels.device import why_no_gpu

ROOT = Path(__file__).parents[1]
QUICK = {"n_rows": 4_096, "n_columns": 64, "n_frequencies": 512, "repeats": 1}


@dataclass(frozen=True)
class Tests:
    """What the tests that need a GPU came to: numbers by outcome, and the messages of those that did not pass."""

    counts: dict[str, int]
    messages: list[str]

    @property
    def passed(self) -> bool:
        """Whether there were some, and none failed."""
        return self.counts["passed"] > 0 and self.counts["failed"] == 0


def run_tests() -> Tests:
    """The tests marked `gpu`, slow ones too."""
    with tempfile.TemporaryDirectory(prefix="dkl-gpu-") as folder:
        path = Path(folder) / "tests.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-o", "addopts=", f"--junitxml={path}"]
        subprocess.run(command, cwd=ROOT, check=False)
        return tests_of(path.read_text(encoding="utf-8"))


def tests_of(junit: str) -> Tests:
    """The outcomes that a report of pytest in JUnit's XML holds."""
    counts, messages = {"passed": 0, "failed": 0, "skipped": 0}, []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        trouble = next((one for one in case if one.tag in ("failure", "error", "skipped")), None)
        outcome = "passed" if trouble is None else "skipped" if trouble.tag == "skipped" else "failed"
        counts[outcome] += 1
        if trouble is not None:
            first_line = (trouble.get("message") or "").partition("\n")[0]
            messages.append(f"{outcome}: {case.get('classname')}::{case.get('name')}: {first_line}")
    return Tests(counts, messages)


def machine() -> Iterator[tuple[str, str]]:
    """What the figures were taken on."""
    import cupy

    properties = cupy.cuda.runtime.getDeviceProperties(0)
    yield "GPU", f"{properties['name'].decode()}, {properties['totalGlobalMem'] / 2**30:.0f} GiB"
    yield "CUDA runtime, driver", f"{cupy.cuda.runtime.runtimeGetVersion()}, {cupy.cuda.runtime.driverGetVersion()}"
    yield "CPU", f"{platform.processor() or platform.machine()}, {platform.platform()}"
    yield "versions", f"dkl {version('dkl')}, CuPy {cupy.__version__}, NumPy {version('numpy')}, Dask {version('dask')}"


def page(rows: list[tuple[str, str]], tests: Tests, speeds: list[Speed]) -> str:
    """The report."""
    counts = ", ".join(f"{number} {outcome}" for outcome, number in tests.counts.items())
    lines = ["# dkl on a GPU", "", *(f"- {name}: {value}" for name, value in rows), ""]
    lines += ["## Tests", "", counts, "", *(f"- {message}" for message in tests.messages), ""]
    lines += ["## Measurements", "", "| | CPU, s | GPU, s | times as fast | difference | of the GPU's own limit |"]
    lines.append("|---|---|---|---|---|---|")
    for one in speeds:
        figures = (
            f"{one.cpu_seconds:.4g} | {one.gpu_seconds:.4g} | {one.ratio:.1f} | {one.difference:.1e} | {one.verdict}"
        )
        lines.append(f"| {one.name} | {figures} |")
    return "\n".join([*lines, ""])


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("gpu_report.md"), help="the page that is written")
    parser.add_argument("--quick", action="store_true", help="small measurements, of seconds")
    given = parser.parse_args(arguments)
    reason = why_no_gpu()
    if reason is not None:
        sys.stderr.write(f"no GPU to report on: {reason}\n")
        return 2
    tests = run_tests()
    text = page(list(machine()), tests, list(device_speeds(**(QUICK if given.quick else {}))))
    given.output.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    return 0 if tests.passed else 1


if __name__ == "__main__":
    sys.exit(main())
