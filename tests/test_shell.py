"""The program in a shell: full disks, closed pipes and odd terminals end in one line, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dkl

ROOT = Path(dkl.__file__).parents[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shell") / "model.zarr"
    X = np.random.default_rng(0).normal(size=(60, 3))
    dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), epochs=1, random_state=0).fit(X, X[:, 0] > 0).save(path)
    return path


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which DKL is the program."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), "DKL": f"{sys.executable} -m dkl", **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=known, timeout=120)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "arguments", ["report {model}", "report {model} --json", "--help", "--version", "info /no/such/store --json"]
)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(arguments: str, model: Path) -> None:
    ended = shell(f"$DKL {arguments.format(model=model)} > /dev/full")
    assert ended.returncode == 1
    assert ended.stderr.count("Error:") == 1
    assert "No space left on device" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_errors_that_cannot_be_written_leave_exit_code_1(model: Path) -> None:
    assert shell("$DKL info /no/such/store 2> /dev/full").returncode == 1
    ended = shell(f"$DKL report {model} > /dev/full 2> /dev/full")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


@pytest.mark.parametrize(("command", "reader"), [("report {model} --json", "head -1"), ("fit --help", "true")])
def test_whoever_closes_the_pipe_has_read_enough(command: str, reader: str, model: Path) -> None:
    command = command.format(model=model)
    ended = shell(f"$DKL {command} | {reader}; $DKL report {model} | {reader}")
    assert ended.stderr == ""


@pytest.mark.parametrize("options", ["", "--json"])
def test_work_whose_result_nobody_reads_has_not_failed(options: str, model: Path) -> None:
    ended = shell(f"($DKL report {model} {options}; echo code $? >&2) | true")
    assert ended.stderr == "code 0\n"


def test_a_terminal_without_a_width_is_one_of_80(model: Path) -> None:
    usual = shell("$DKL fit", COLUMNS="80")
    for columns in ("0", "-3", "many"):
        odd = shell("$DKL fit", COLUMNS=columns)
        assert (odd.returncode, odd.stderr) == (usual.returncode, usual.stderr) == (2, usual.stderr), columns


def test_a_failure_is_json_where_json_was_asked_for(tmp_path: Path) -> None:
    ended = shell(f"$DKL score /no/such/model {tmp_path} --json")
    assert ended.returncode == 1
    assert set(json.loads(ended.stdout)["error"]) == {"type", "message", "notes"}


def test_help_waits_for_no_library_that_computes() -> None:
    heavy = "('dask.array', 'distributed', 'numba', 'pandas', 'scipy', 'sklearn', 'zarr')"
    code = f"import sys, dkl.cli.app; print([name for name in {heavy} if name in sys.modules])"
    ended = shell(f'{sys.executable} -c "{code}"')
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")
