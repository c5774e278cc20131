"""A column of a million values is ingested and fitted in bounded memory, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dkl.bench.peak_memory import ALLOWED_BYTES

VALUES, ROWS = 1_000_000, 1_200_000

BEFORE = """
import json, resource, sys
import numpy as np, pyarrow as pa, dkl

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

store, values, rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dkl.KernelClassifier, dkl.ingest
started = peak()
"""

INGEST = """
schema = pa.schema([("x", pa.float32()), ("id", pa.string()), ("y", pa.string())])

def batches():
    rng = np.random.default_rng(0)
    for start in range(0, rows, 50_000):
        ids = np.arange(start, start + 50_000) % values
        x = rng.normal(size=50_000).astype("f4")
        y = np.where(x + rng.normal(size=50_000) > 0, "a", "b")
        texts = [f"id-{number:07d}" for number in ids.tolist()]
        yield pa.record_batch([pa.array(x), pa.array(texts), pa.array(y)], schema=schema)

stream = pa.RecordBatchReader.from_batches(schema, batches())
ds = dkl.ingest(stream, store, target="y", categorical=["id"], progress=False)
print(json.dumps({"peak": peak() - started, "values": len(ds.encoding.rules[1].categories)}))
"""

FIT = """
features = dkl.AlignedFeatures(n_candidates=100, n_features=40)
machine = dkl.KernelClassifier(features, solver="newton", alpha=1e-4, random_state=0, progress=False)
machine.fit(dkl.open_dataset(store))
print(json.dumps({"peak": peak() - started, "columns": machine.encoding_.column_names}))
"""


def measured(code: str, store: Path) -> dict[str, object]:
    told = [sys.executable, "-c", BEFORE + code, str(store), str(VALUES), str(ROWS)]
    return json.loads(subprocess.run(told, check=True, capture_output=True, text=True).stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_values_of_a_category_are_ingested_and_fitted_in_bounded_memory(tmp_path: Path) -> None:
    written = measured(INGEST, tmp_path / "rows.zarr")
    assert written["values"] == VALUES
    fitted = measured(FIT, tmp_path / "rows.zarr")
    assert fitted["columns"] == ["x", "id: share of b", "id: log count"]
    assert max(written["peak"], fitted["peak"]) < ALLOWED_BYTES
