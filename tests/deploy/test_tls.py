"""A cluster with the certificates of `deploy/tls` computes, and talks to nobody who has none of them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import yaml

from dkl.passes.loop import run_pass
from tests.passes.sources import Source, moments, ragged

SCRIPT = Path(__file__).parents[2] / "deploy" / "tls" / "make_certificates.sh"


def certificates(folder: Path) -> Path:
    subprocess.run([SCRIPT, folder], check=True, capture_output=True)
    return folder


def security(folder: Path) -> Any:
    """What distributed makes of a folder that DASK_CONFIG names."""
    from distributed import Security

    with dask.config.set(dask.config.merge(dask.config.config, dask.config.collect([str(folder)], {}))):
        return Security()


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from distributed import LocalCluster

    ours = security(certificates(tmp_path_factory.mktemp("tls")))
    with LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, protocol="tls", security=ours, dashboard_address=None
    ) as cluster:
        yield cluster


def test_an_encrypted_cluster_gives_the_bits_of_threads(encrypted: Any) -> None:
    from distributed import Client

    source, record = Source(ragged(40)), moments()
    expected = run_pass(source, (record,)).results[0]
    with Client(encrypted.scheduler_address, security=encrypted.security):
        found = run_pass(source, (record,)).results[0]
    assert encrypted.scheduler_address.startswith("tls://127.0.0.1")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_peer_that_does_not_encrypt_is_refused(encrypted: Any) -> None:
    from distributed import Client

    with pytest.raises(OSError, match="tcp://"):
        Client(encrypted.scheduler_address.replace("tls://", "tcp://"), timeout="2s", set_as_default=False)


def test_a_worker_that_does_not_encrypt_is_refused(encrypted: Any) -> None:
    from distributed import Worker

    async def join() -> None:
        async with Worker(encrypted.scheduler_address.replace("tls://", "tcp://"), nthreads=1, death_timeout=1):
            pass

    with pytest.raises((OSError, TimeoutError)):
        asyncio.run(join())
    assert len(encrypted.scheduler_info["workers"]) == 1


def test_a_certificate_of_another_authority_is_refused(encrypted: Any, tmp_path: Path) -> None:
    from distributed import Client

    with pytest.raises(OSError, match="TLS certificate does not match"):
        Client(
            encrypted.scheduler_address, security=security(certificates(tmp_path)), timeout="2s", set_as_default=False
        )


def test_the_configuration_refuses_addresses_without_encryption(tmp_path: Path) -> None:
    from distributed import Client

    with pytest.raises(RuntimeError, match="encryption required"):
        Client("tcp://127.0.0.1:9", security=security(certificates(tmp_path)), timeout="1s", set_as_default=False)


def test_certificates_that_are_there_stay(tmp_path: Path) -> None:
    before = (certificates(tmp_path) / "ca.pem").read_bytes()
    again = subprocess.run([SCRIPT, tmp_path], capture_output=True, text=True)
    assert again.returncode == 1
    assert "is there already" in again.stderr
    assert (tmp_path / "ca.pem").read_bytes() == before


def test_keys_are_for_their_owner_alone_and_that_of_the_authority_lies_apart(tmp_path: Path) -> None:
    folder = certificates(tmp_path)
    keys = [folder / "dask-key.pem", folder / "authority" / "ca-key.pem"]
    assert [key.stat().st_mode & 0o077 for key in keys] == [0, 0]
    assert "authority" not in (folder / "dask.yaml").read_text()


@pytest.mark.slow
def test_a_configuration_folder_is_all_that_the_commands_need(tmp_path: Path) -> None:
    import dkl
    from dkl.data.create import create_dataset

    folder, file = certificates(tmp_path / "tls"), tmp_path / "scheduler.json"
    X = np.random.default_rng(0).standard_normal((400, 3))
    create_dataset(str(tmp_path / "rows.zarr"), X, (X[:, 0] > 0).astype(int))
    bare = {name: value for name, value in os.environ.items() if name != "DASK_CONFIG"}
    ours = {**bare, "DASK_CONFIG": str(folder)}
    scheduler = [
        sys.executable,
        "-m",
        "distributed.cli.dask_scheduler",
        "--host=127.0.0.1",
        "--port=0",
        "--no-dashboard",
    ]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", "--nthreads=1", "--no-dashboard"]
    parts = [
        subprocess.Popen([*command, f"--scheduler-file={file}"], env=ours, stderr=subprocess.DEVNULL)
        for command in (scheduler, worker)
    ]
    try:
        while not file.exists():
            time.sleep(0.1)
        address = yaml.safe_load(file.read_text())["address"]
        fit = [sys.executable, "-m", "dkl", "fit", "rows.zarr", "model.zarr", "--features=20", f"--scheduler={address}"]
        refused = subprocess.run(fit, env=bare, cwd=tmp_path, capture_output=True, text=True)
        done = subprocess.run(fit, env=ours, cwd=tmp_path, capture_output=True, text=True)
    finally:
        for part in parts:
            part.terminate()
            part.wait(20)
    assert refused.returncode == 1
    assert "DASK_CONFIG" in refused.stderr
    assert done.returncode == 0, done.stderr
    assert dkl.load_model(str(tmp_path / "model.zarr")).n_features_in_ == 3
