"""Run a dkl command on workers that Slurm or SSH lend for as long as it runs.

    python deploy/with_cluster.py slurm --workers 8 --cores 4 --memory 16GB -- dkl fit rows.zarr model.zarr
    python deploy/with_cluster.py slurm --gpus --workers 4 --memory 60GB --option=--partition=gpu -- dkl fit ...
    python deploy/with_cluster.py ssh --hosts hosts.txt -- dkl fit rows.zarr model.zarr

The command gets `--scheduler ADDRESS` at its end. Give it `--checkpoint` too: a job that ran out of time goes on when
it is submitted again. All parts talk TLS where DASK_CONFIG names a folder of `deploy/tls/make_certificates.sh`. Needs
dkl[slurm] or dkl[ssh], and a file system that all machines share (or a store by its URL).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the cluster, run the command, and leave with its exit code."""
    options = parsed(arguments)
    with options.cluster(options) as cluster:
        return run(options.command, cluster.scheduler_address)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; `cluster` is the function that starts it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True, metavar="slurm | ssh")
    slurm = kinds.add_parser("slurm", help="workers as Slurm jobs, one process a job")
    slurm.set_defaults(cluster=slurm_cluster)
    slurm.add_argument("--workers", type=int, default=4, help="jobs, of one worker process each (default 4)")
    slurm.add_argument("--cores", type=int, default=4, help="cores and threads of a worker (default 4; 1 thread a GPU)")
    slurm.add_argument("--memory", default="16GB", help="of a worker (default 16GB)")
    slurm.add_argument("--walltime", default="04:00:00", help="of a worker's job (default 04:00:00)")
    slurm.add_argument("--gpus", action="store_true", help="a GPU each, by dask-cuda")
    slurm.add_argument("--option", action="append", default=[], help="a further line of #SBATCH, such as --partition=a")
    ssh = kinds.add_parser("ssh", help="a worker process on each of some machines")
    ssh.set_defaults(cluster=ssh_cluster)
    ssh.add_argument("--hosts", type=Path, required=True, help="file: a host a line; the first has the scheduler too")
    ssh.add_argument("--cores", type=int, default=4, help="threads of a worker (default 4)")
    ssh.add_argument("--memory", default="16GB", help="of a worker (default 16GB)")
    ssh.add_argument("--port", type=int, default=22, help="of the SSH servers")
    for kind in (slurm, ssh):
        kind.add_argument("command", nargs="+", help="what to run, after --")
    return parser.parse_args(arguments)


def slurm_cluster(options: argparse.Namespace) -> Any:
    """Jobs of one worker each; they start whenever Slurm finds room for them."""
    from dask_jobqueue import SLURMCluster

    gpu = {"worker_command": "dask_cuda.cli", "job_extra_directives": ["--gres=gpu:1", *options.option]}
    cluster = SLURMCluster(
        cores=1 if options.gpus else options.cores,
        job_cpu=options.cores,
        processes=1,
        memory=options.memory,
        walltime=options.walltime,
        local_directory="/tmp",
        protocol=f"{dask.config.get('distributed.comm.default-scheme')}://",
        **(gpu if options.gpus else {"job_extra_directives": options.option}),
    )
    cluster.scale(jobs=options.workers)
    return cluster


def ssh_cluster(options: argparse.Namespace) -> Any:
    """A scheduler on the first host and a worker on each, started through SSH with the keys of this user."""
    from distributed import SSHCluster

    hosts = options.hosts.read_text().split()
    return SSHCluster(
        [hosts[0], *hosts],
        connect_options={"port": options.port},
        worker_options={"nthreads": options.cores, "memory_limit": options.memory},
        remote_python=sys.executable,
    )


def run(command: Sequence[str], address: str) -> int:
    """The command with the scheduler's address; an interruption is the command's to answer."""
    with subprocess.Popen([*command, "--scheduler", address]) as running:
        ours = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return running.wait()
        finally:
            signal.signal(signal.SIGINT, ours)


if __name__ == "__main__":
    raise SystemExit(main())
