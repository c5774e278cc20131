"""The program in a shell: full disks, closed pipes and odd terminals end in one line, never in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl

ROOT = Path(dkl.__file__).parents[1]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of which `dkl info` tells in a second: what becomes of its output is that of any command."""
    path = tmp_path_factory.mktemp("shell") / "rows.zarr"
    X = np.random.default_rng(0).normal(size=(60, 3))
    dkl.create_dataset(path, X, X[:, 0] > 0)
    return path


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A line of bash in which DKL is the program."""
    known = {**os.environ, "PYTHONPATH": str(ROOT), "DKL": f"{sys.executable} -m dkl", **environment}
    return subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=known, timeout=120)


# Loads the program once and runs each command in a fork, which ends as a process of its own does.
FORKS = """
import json, os, sys
import dkl.__main__, dkl.cli.app, dkl.data.dataset

def opened(target):
    if target == "closed":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open("/dev/full" if target == "full" else target, os.O_WRONLY | os.O_CREAT, 0o600)

ends = []
for number, (command, *targets) in enumerate(json.loads(sys.argv[1])):
    child = os.fork()
    if not child:
        for stream, target in enumerate(targets, 1):
            os.dup2(opened(target or f"{number}.{stream}"), stream)
        sys.argv = ["dkl", *command.split()]
        dkl.__main__.main()
        sys.exit()
    ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ends))
"""
FULL = ["info {store}", "info {store} --json", "--help", "--version", "info /no/such/store --json"]
CLOSED = {"info {store} --json": 0, "fit --help": 0, "info {store}": 0, "--help": 0, "info no --json": 1}


@pytest.fixture(scope="module")
def ended(store: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, str], tuple[int, str]]:
    """The exit code of each command and what it says to stderr, by the targets of its stdout and its stderr."""
    folder = tmp_path_factory.mktemp("forks")
    asked = [(command, "full", "") for command in FULL] if Path("/dev/full").exists() else []
    asked += [("info /no/such/store", "", "full"), ("info {store}", "full", "full")] if asked else []
    asked += [(command, "closed", "") for command in CLOSED]
    given = json.dumps([(command.format(store=store), *targets) for command, *targets in asked])
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", FORKS, given]
    run = subprocess.run(program, capture_output=True, text=True, env=known, cwd=folder, check=True, timeout=120)
    said = [folder / f"{number}.2" for number in range(len(asked))]
    errors = [path.read_text() if path.exists() else "" for path in said]
    return dict(zip(asked, zip(json.loads(run.stdout), errors, strict=True), strict=True))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", FULL)
def test_output_that_cannot_be_written_is_one_line_and_exit_code_1(command: str, ended: Any) -> None:
    code, errors = ended[command, "full", ""]
    assert code == 1
    assert errors.count("Error:") == 1
    assert "No space left on device" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_errors_that_cannot_be_written_leave_exit_code_1(ended: Any) -> None:
    assert ended["info /no/such/store", "", "full"] == (1, "")
    assert ended["info {store}", "full", "full"] == (1, "")


@pytest.mark.parametrize("command", CLOSED)
def test_work_whose_result_nobody_reads_has_not_failed_and_says_nothing(command: str, ended: Any) -> None:
    assert ended[command, "closed", ""] == (CLOSED[command], "")


def test_whoever_closes_the_pipe_has_read_enough(store: Path) -> None:
    ended = shell(f"($DKL info {store} --json; echo code $? >&2) | head -1")
    assert (ended.stdout, ended.stderr) == ("{\n", "code 0\n")


# Runs commands one after another in one process, the output of each into a pipe that nobody reads.
CLOSED_PIPE = """
import io, json, os, shlex, sys
import dkl.__main__

ends = []
for command in json.loads(sys.stdin.read()):
    reader, writer = os.pipe()
    os.close(reader)
    known = os.dup(1)
    os.dup2(writer, 1)
    before, sys.stdout = sys.stdout, io.TextIOWrapper(open(1, "wb", closefd=False))
    sys.argv, code = ["dkl", *shlex.split(command)], 0
    errors = os.dup(2)
    try:
        dkl.__main__.main()
    except SystemExit as ended:
        code = ended.code or 0
    sys.stdout.flush()
    os.dup2(errors, 2)
    os.dup2(known, 1)
    sys.stdout = before
    ends.append([command, code])
print(json.dumps(ends))
"""


def test_no_command_fails_for_want_of_a_reader(tmp_path: Path) -> None:
    """Those that print nothing but results, help or failures: the code is that of a command whose output is read."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"x": rng.normal(size=80), "k": rng.choice(list("ab"), 80), "y": rng.choice(list("uv"), 80)})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    fit = "--set features=random --features 5 --quiet"
    expected = {
        "--help": 0,
        "--version": 0,
        "fit --help": 0,
        "ingest rows.csv rows.zarr --target y --quiet": 0,
        "info rows.zarr": 0,
        "info rows.zarr --json": 0,
        "verify rows.zarr": 0,
        "plan rows.zarr": 0,
        "plan rows.zarr --json": 0,
        f"fit rows.zarr model.zarr {fit}": 0,
        f"fit rows.zarr other.zarr {fit} --json": 0,
        "score model.zarr rows.zarr --quiet": 0,
        "predict model.zarr rows.zarr out.csv --quiet": 0,
        "explain model.zarr rows.zarr --quiet": 0,
        "drift rows.zarr rows.zarr --quiet": 0,
        "report model.zarr": 0,
        "info nowhere.zarr": 1,
        "info nowhere.zarr --json": 1,
        "nonsense": 2,
    }
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    program = [sys.executable, "-c", CLOSED_PIPE]
    run = subprocess.run(
        program, input=json.dumps(list(expected)), capture_output=True, text=True, env=known, cwd=tmp_path, check=True
    )
    assert dict(json.loads(run.stdout)) == expected, run.stderr
    assert "Traceback" not in run.stderr
    assert "Broken" not in run.stderr


def test_a_terminal_without_a_width_is_one_of_80() -> None:
    usual = shell("$DKL fit", COLUMNS="80")
    for columns in ("-3", "many"):
        odd = shell("$DKL fit", COLUMNS=columns)
        assert (odd.returncode, odd.stderr) == (usual.returncode, usual.stderr) == (2, usual.stderr), columns


def test_help_waits_for_no_library_that_computes() -> None:
    heavy = "('dask.array', 'distributed', 'numba', 'numpy', 'pandas', 'scipy', 'sklearn', 'zarr')"
    code = f"import sys, dkl.cli.app; print([name for name in {heavy} if name in sys.modules])"
    ended = shell(f'{sys.executable} -c "{code}"')
    assert (ended.stdout.strip(), ended.stderr) == ("[]", "")


# A Ctrl-C that arrives while a destructor runs: Python drops what is raised there. The loop is where the program was.
DROPPED = """
import os, signal, sys, time, types
class Held:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
def run():
    held = Held()
    del held
    for _ in range(200):
        time.sleep(0.1)
    print("went on")
sys.modules["dkl.cli.app"] = types.SimpleNamespace(main=run)
import dkl.__main__
dkl.__main__.main()
"""


def test_a_ctrl_c_that_falls_into_a_destructor_ends_the_program_as_any_other() -> None:
    ended = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
