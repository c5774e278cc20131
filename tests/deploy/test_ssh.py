"""Workers lent by SSH, from a server that runs on the loopback for the test alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.deploy.test_slurm import free_ports, wait_for
from tests.deploy.test_tls import certificates

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "deploy" / "with_cluster.py"
ASK = """
import sys
from distributed import Client
with Client(sys.argv[-1], timeout="20s") as client:
    client.wait_for_workers(2, timeout=60)
    print(sys.argv[-1], sum(client.gather(client.map(abs, [-1, -2]))), sorted(client.nthreads().values()))
"""


@pytest.fixture
def server(tmp_path: Path, program: Callable[[str], str]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The port of an SSH server, and the environment of a user whom it lets in."""
    pytest.importorskip("asyncssh")
    folder, (port,) = tmp_path / ".ssh", free_ports(1)
    folder.mkdir(mode=0o700)
    for key in ("id_ed25519", "host"):
        subprocess.run([program("ssh-keygen"), "-qt", "ed25519", "-N", "", "-f", folder / key], check=True)
    (folder / "authorized_keys").write_text((folder / "id_ed25519.pub").read_text())
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    options = [f"AuthorizedKeysFile={folder}/authorized_keys", "StrictModes=no", f"PidFile={tmp_path}/pid"]
    options = [part for option in ["ListenAddress=127.0.0.1", *options] for part in ("-o", option)]
    Path("/run/sshd").mkdir(exist_ok=True)
    sshd = [program("sshd"), "-D", "-e", "-f", "/dev/null", "-p", str(port), "-h", str(folder / "host"), *options]
    with subprocess.Popen(sshd, stderr=subprocess.DEVNULL) as running:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 10)
        yield port, {**os.environ, "HOME": str(tmp_path)}
        running.terminate()


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_command_finds_workers_on_hosts_that_ssh_reaches(
    server: tuple[int, Mapping[str, str]], scheme: str, tmp_path: Path
) -> None:
    port, environment = server
    (tmp_path / "hosts.txt").write_text("127.0.0.1\n127.0.0.1\n")
    (tmp_path / "ask.py").write_text(ASK)
    if scheme == "tls":
        environment = {**environment, "DASK_CONFIG": str(certificates(tmp_path / "tls"))}
    lend = [str(SCRIPT), "ssh", f"--hosts={tmp_path}/hosts.txt", f"--port={port}", "--cores=1", "--memory=1GB"]
    done = subprocess.run(
        [sys.executable, *lend, "--", sys.executable, str(tmp_path / "ask.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().startswith(f"{scheme}://")
    assert done.stdout.strip().endswith("3 [1, 1]")
