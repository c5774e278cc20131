"""Learning and fitting hold a few blocks a process, whatever the size of the dataset."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dkl.bench.peak_memory import ALLOWED_BYTES, GIGABYTE, check_room, measure_memory


def needs_room(folder: Path, gigabytes: float) -> None:
    if shutil.disk_usage(folder).free < 1.2 * gigabytes * GIGABYTE:
        pytest.skip(f"needs {gigabytes} GB of free disk")


def test_the_measurement_runs_small(tmp_path: Path) -> None:
    (found,) = measure_memory([0.004], directory=str(tmp_path), n_workers=0)
    assert found.rows == 1_953
    assert set(found.peaks) == {"ingest", "driver"}
    assert 0 < found.fit_peak < ALLOWED_BYTES
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_that_the_disk_cannot_hold_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="GB are free"):
        check_room(tmp_path, 1e6)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_times_the_rows_take_the_same_memory(tmp_path: Path) -> None:
    """0.5 and 2 GB; `dkl bench --memory` does 2 and 8."""
    needs_room(tmp_path, 2.0)
    small, large = measure_memory([0.5, 2.0], directory=str(tmp_path))
    assert max(small.fit_peak, large.fit_peak) < ALLOWED_BYTES
    assert max(small.peaks["ingest"], large.peaks["ingest"]) < ALLOWED_BYTES
    assert large.fit_peak < 1.25 * small.fit_peak + 100_000_000
