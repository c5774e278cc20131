"""The Slurm scripts of `deploy/` on a Slurm that runs on this machine for the test alone."""

from __future__ import annotations

import getpass
import os
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

import dkl

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CONFIGURATION = """
ClusterName=dkl
SlurmctldHost={host}
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
NodeName={host} CPUs=8 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports


def wait_for(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            pytest.fail("Slurm did not come so far in time")
        time.sleep(0.5)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[Mapping[str, str]]:
    """The environment of a user of a Slurm with one node."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    daemons = [shutil.which(name, path=path) for name in ("munged", "slurmctld", "slurmd")]
    if None in daemons or os.geteuid() != 0:
        pytest.skip("needs munged, slurmctld and slurmd (Debian: munge slurmctld slurmd slurm-client), and root")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    (folder / "key").write_bytes(os.urandom(128))
    (folder / "key").chmod(0o400)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(host=socket.gethostname(), user=getpass.getuser(), ports=free_ports(2), folder=folder)
    )
    munge = [f"--socket={folder}/munge.socket", f"--key-file={folder}/key", f"--pid-file={folder}/munge.pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed", "--foreground", "--force"]
    environment = {**os.environ, "PATH": path, "SLURM_CONF": str(configuration), "OPENBLAS_NUM_THREADS": "1"}
    parts = []
    try:
        for daemon, options in zip(daemons, (munge, ["-D"], ["-D"]), strict=True):
            with open(folder / f"{Path(str(daemon)).name}.out", "w") as log:
                parts.append(
                    subprocess.Popen([str(daemon), *options], env=environment, stdout=log, stderr=subprocess.STDOUT)
                )
            time.sleep(1)
        wait_for(lambda: "idle" in told(environment, "sinfo", "--noheader", "--format=%t"), 60)
        yield environment
    finally:
        for part in reversed(parts):
            part.terminate()
            part.wait(20)


def told(environment: Mapping[str, str], *command: str) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True).stdout


def test_the_script_fits_on_workers_that_slurm_lends(slurm: Mapping[str, str], tmp_path: Path) -> None:
    pytest.importorskip("dask_jobqueue")
    from dkl.data.create import create_dataset

    X = np.random.default_rng(0).standard_normal((2_000, 5))
    store, model = tmp_path / "rows.zarr", tmp_path / "model.zarr"
    create_dataset(str(store), X, (X[:, 0] * X[:, 1] > 0).astype(int))
    environment = {**slurm, "WORKERS": "2", "CORES": "1", "MEMORY": "1GB"}
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    script = "deploy/slurm/fit.sbatch"
    command = ["sbatch", "--parsable", "--mem=2G", f"--output={tmp_path}/job.out", script]
    arguments = [str(store), str(model), "--features=40", "--seed=3"]
    job = subprocess.run(
        [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()
    wait_for(lambda: job not in told(slurm, "squeue", "--noheader", "--format=%i").split(), 260)
    assert model.exists(), (tmp_path / "job.out").read_text()
    here = tmp_path / "here.zarr"
    fit = [sys.executable, "-m", "dkl", "fit", str(store), str(here), "--features=40", "--seed=3"]
    subprocess.run(fit, check=True, capture_output=True)
    assert np.array_equal(
        dkl.load_model(str(model)).decision_function(X), dkl.load_model(str(here)).decision_function(X)
    )
    wait_for(lambda: not told(slurm, "squeue", "--noheader").strip(), 30)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_worker_with_a_gpu_asks_slurm_for_one_and_runs_dask_cuda() -> None:
    pytest.importorskip("dask_jobqueue")
    names = runpy.run_path(str(ROOT / "deploy" / "with_cluster.py"), run_name="deploy")
    options = names["parsed"](
        ["slurm", "--gpus", "--workers=0", "--option=--partition=gpu", "--", "dkl", "fit", "a", "b"]
    )
    assert options.command == ["dkl", "fit", "a", "b"]
    with options.cluster(options) as cluster:
        script = cluster.job_script()
    assert "#SBATCH --gres=gpu:1" in script
    assert "#SBATCH --partition=gpu" in script
    # this module's main is 'dask cuda worker' itself: its first argument is the address
    assert f"-m dask_cuda.cli {cluster.scheduler_address} " in script
