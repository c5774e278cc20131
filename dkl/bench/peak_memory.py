"""Peak memory of learning and fitting on datasets of several sizes: each in fresh processes, above their imports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

# What is promised of each process that learns or fits, above its imports.
ALLOWED_BYTES = 1_200_000_000
GIGABYTE = 1_000_000_000


@dataclass(frozen=True)
class MemoryResult:
    """Peak memory of the fits of one size.

    Parameters
    ----------
    gigabytes : float
        Of X as an array in memory.
    rows, columns : int
    peaks : dict of str to int
        Peak resident bytes of each process above what it held after its imports: ``"ingest"``, ``"driver"``,
        ``"worker 0"``, ...
    seconds : dict of str to float
        ``"ingest"`` and ``"fit"``.
    """

    gigabytes: float
    rows: int
    columns: int
    peaks: dict[str, int]
    seconds: dict[str, float]

    @property
    def fit_peak(self) -> int:
        """The largest of the processes that learn and fit."""
        return max(peak for name, peak in self.peaks.items() if name != "ingest")


def measure_memory(
    gigabytes: Sequence[float] = (2.0, 8.0), *, directory: str | None = None, n_workers: int = 2
) -> Iterator[MemoryResult]:
    """Write a dataset of each size, learn aligned features on it and fit a classifier; note every process's peak.

    Nothing is limited by hand: these are the peaks of the defaults.

    Parameters
    ----------
    gigabytes : sequence of float
        Sizes of X in 1e9 bytes of float32.
    directory : str or None
        Where the datasets are written, one at a time; None is the folder of temporary files.
    n_workers : int
        Worker processes; 0 computes on threads of one process.

    Yields
    ------
    MemoryResult
        One a size, in the order given.

    Raises
    ------
    OSError
        If the disk has no room for the largest dataset; before anything is written.
    RuntimeError
        If a measuring process fails; the message holds its last words.
    """
    # A full disk would spoil an hour's measurement at its end: the room is checked first.
    base = Path(directory or tempfile.gettempdir())
    check_room(base, max(gigabytes))
    for size in gigabytes:
        with tempfile.TemporaryDirectory(prefix="dkl-bench-", dir=base, ignore_cleanup_errors=True) as folder:
            # Writing and fitting in a process each, so that the peak of one is not that of the other.
            store = str(Path(folder) / "rows.zarr")
            written = _in_fresh_process("write", store, repr(size))
            fitted = _in_fresh_process("fit", store, str(n_workers))
        yield MemoryResult(
            gigabytes=size,
            rows=written["rows"],
            columns=written["columns"],
            peaks={"ingest": written["peak"], **fitted["peaks"]},
            seconds={"ingest": written["seconds"], "fit": fitted["seconds"]},
        )


def check_room(folder: Path, gigabytes: float) -> None:
    """Raise OSError if `folder` cannot hold a dataset of this size and a tenth more."""
    free = shutil.disk_usage(folder).free
    needed = int(1.1 * gigabytes * GIGABYTE)
    if free < needed:
        raise OSError(
            f"a dataset of {gigabytes:g} GB needs {needed / GIGABYTE:.1f} GB in '{folder}', where "
            f"{free / GIGABYTE:.1f} GB are free; give another directory or smaller sizes"
        )


def _in_fresh_process(*arguments: str) -> dict:
    """The JSON object that `dkl.bench.memory_job` prints on its last line."""
    command = [sys.executable, "-m", "dkl.bench.memory_job", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
