"""ingest of tables in memory and of streams gives the store of the same Parquet file, and holds no stream whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dkl
from dkl.data.ingest.ingest import plan_ingest
from dkl.data.ingest.table_rows import TableChoices

pl = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "x": np.where(np.arange(900) % 7 == 3, np.nan, RNG.normal(size=900)),
        "kind": RNG.choice(["a", "b", "c"], 900).astype(object),
        "id": [f"id {number % 90}" for number in range(900)],
        "day": pd.date_range("2026-01-01", periods=900),
        "member": [True, False, True] * 300,
        "y": RNG.normal(size=900),
    }
)
FRAME.loc[5, "kind"] = None


class Capsule:
    """Nothing but Arrow's own protocol."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


FORMS: dict[str, Callable[[pa.Table], Any]] = {
    "pandas": lambda table: FRAME,
    "pandas of Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": pl.from_arrow,
    "categorical": lambda table: pl.from_arrow(table).with_columns(kind=pl.col("kind").cast(pl.Categorical)),
    "lazy": lambda table: pl.from_arrow(table).lazy(),
    "arrow": lambda table: table,
    "reader": lambda table: pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=70)),
    "capsule": Capsule,
}


TOLD = {"target": "y", "seed": 3, "splits": {"train": 0.7, "test": 0.3}, "progress": False}


@pytest.fixture(scope="module")
def of_parquet(tmp_path_factory) -> list[dkl.Dataset]:
    """The rows of the file in their order, and shuffled."""
    folder = tmp_path_factory.mktemp("parquet")
    FRAME.to_parquet(folder / "rows.parquet", index=False)
    return [
        dkl.ingest(folder / "rows.parquet", folder / f"{shuffle}.zarr", shuffle=shuffle, **TOLD)
        for shuffle in (False, True)
    ]


# a form says what the rows are, and shuffling what becomes of them, whatever they came from
@pytest.mark.parametrize(("form", "shuffle"), [(form, place % 2 == 0) for place, form in enumerate(FORMS)])
def test_a_table_gives_the_store_of_its_parquet_file(tmp_path, form, shuffle, of_parquet):
    table = pa.Table.from_pandas(FRAME, preserve_index=False).replace_schema_metadata()
    ds = dkl.ingest(FORMS[form](table), tmp_path / "a.zarr", shuffle=shuffle, **TOLD)
    other = of_parquet[shuffle]
    assert ds.encoding.to_json() == other.encoding.to_json()
    for part in ("X", "y", "row_id"):
        np.testing.assert_array_equal(getattr(ds, part).compute(), getattr(other, part).compute())
    np.testing.assert_array_equal(ds["test"].row_id.compute(), other["test"].row_id.compute())


def test_a_stream_is_never_held(tmp_path):
    """Batches are made as they are asked for: at no time are more of them there than a small part of all."""
    rows, batches = 10_000, 120
    schema = pa.schema([("x", pa.float64()), ("k", pa.string())])
    whole = rows * batches * (8 + 4 + 40)

    def made() -> Iterator[pa.RecordBatch]:
        rng, names = np.random.default_rng(0), pa.array([f"{number:040d}" for number in range(50)])
        for _ in range(batches):
            yield pa.record_batch(
                [pa.array(rng.normal(size=rows)), names.take(pa.array(rng.integers(0, 50, rows)))], schema=schema
            )

    before = pa.total_allocated_bytes()
    held: list[int] = []

    def watched(event: Any) -> None:
        held.append(pa.total_allocated_bytes() - before)

    stream = pa.RecordBatchReader.from_batches(schema, made())
    ds = dkl.ingest(stream, tmp_path / "a.zarr", memory_limit="300 MB", progress=watched)
    assert ds.n_rows == rows * batches
    assert max(held) < whole / 2


def test_a_plan_reads_a_table_and_writes_nothing(tmp_path):
    plan = plan_ingest(FRAME, choices=TableChoices(target="y"))
    assert plan.n_rows == 900
    assert list(tmp_path.iterdir()) == []


def test_what_a_table_cannot_have_is_refused(tmp_path):
    import dask.dataframe as dd

    with pytest.raises(ValueError, match="format='csv' says how files are written"):
        dkl.ingest(FRAME, tmp_path / "a.zarr", format="csv")
    with pytest.raises(TypeError, match="create_dataset"):
        dkl.ingest(dd.from_pandas(FRAME, npartitions=2), tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="more than once"):
        dkl.ingest(FRAME[["x", "x"]], tmp_path / "a.zarr")
    with pytest.raises(ValueError, match="no rows"):
        dkl.ingest(FRAME[:0], tmp_path / "a.zarr")


def test_an_error_in_a_table_names_the_table_and_the_row(tmp_path):
    wrong = FRAME.assign(n=[2**60 + 1] + [0] * 899)
    with pytest.raises(ValueError, match=r"column 'n' .* in row 0") as caught:
        dkl.ingest(wrong, tmp_path / "a.zarr", target="y")
    assert "the DataFrame of pandas" in "".join(caught.value.__notes__)
