"""Predictions of many rows, block by block, as Parquet, CSV or zarr that appears when it is complete.

Predictions replace predictions only. Parquet and zarr carry the mark ``dkl_predictions`` in their metadata. CSV has no
metadata, so a CSV file counts as predictions by its first line alone: exactly the header that is written here, with
its quotes, and nothing beside ``row_id``, ``prediction`` and ``probability_...``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dkl.cli.cluster import Compute
from dkl.cli.output_checks import check_before
from dkl.data.store.location import Location
from dkl.data.store.outputs import attributes_at, beside, writing
from dkl.methods.validation import stored_rows
from dkl.passes.engine import map_blocks
from dkl.protocols.block import Block
from dkl.version import __version__

CHUNK_ROWS = 65_536
MARK = "dkl_predictions"
_SUFFIXES = (".parquet", ".csv", ".zarr")
_LONGEST_HEADER = 1 << 20
_CSV_HEADER = re.compile(rb'"row_id","prediction"(,"probability_([^"]|"")*")*\r?\n')

Part = Mapping[str, np.ndarray]


class Writer(Protocol):
    """Takes columns of equal length, part by part."""

    rows: int

    def write(self, part: Part) -> None: ...

    def close(self) -> None: ...


def predict_store(estimator: Any, dataset: Any, *, proba: bool, compute: Compute) -> Iterator[Part]:
    """The predictions of a dataset's rows, block by block, mapped in parallel a bounded number of blocks ahead."""
    stored_rows(estimator, dataset)
    operands = {"estimator": _nameless(estimator), "proba": proba}
    blocks = map_blocks(dataset.source, _predict_block, operands, name="predict", memory_limit=compute.memory_limit)
    for _, part in blocks:
        yield part


def _nameless(estimator: Any) -> Any:
    """A copy for rows whose columns have been matched by name, and which carry no names themselves."""
    nameless = copy.copy(estimator)
    vars(nameless).pop("feature_names_in_", None)
    return nameless


def _predict_block(block: Block, operands: Mapping[str, Any]) -> Part:
    return _columns(operands["estimator"], block.X, block.row_id, proba=operands["proba"])


def predict_files(estimator: Any, path: str, *, proba: bool, zero_based: bool | None) -> Iterator[Part]:
    """The predictions of raw rows in CSV, Parquet or libsvm files, a few thousand rows at a time."""
    from dkl.data.ingest.paths import file_format, find_files

    is_libsvm = file_format(find_files(path, None), None) == "libsvm"
    start = 0
    for model, X in _libsvm_rows(estimator, path, zero_based) if is_libsvm else _table_rows(estimator, path):
        yield _columns(model, X, np.arange(start, start + X.shape[0]), proba=proba)
        start += X.shape[0]


def _table_rows(estimator: Any, path: str) -> Iterator[tuple[Any, Any]]:
    """Raw rows as the model takes them: encoded where it has an encoding, else by name where it knows names."""
    from dkl.data.ingest.ingest import read_tables

    encoding = getattr(estimator, "encoding_", None)
    start = 0
    for table in read_tables(path, encoding=encoding):
        if encoding is None:
            X = table.to_pandas()
            yield estimator, X if hasattr(estimator, "feature_names_in_") else X.to_numpy()
        else:
            yield _nameless(estimator), encoding.transform(table, first_row=start)
        start += table.num_rows


def _libsvm_rows(estimator: Any, path: str, zero_based: bool | None) -> Iterator[tuple[Any, Any]]:
    """CSR rows whose columns are called as in the text that the model was fitted on, or as the user says."""
    from dkl.data.ingest.libsvm_files import libsvm_batches
    from dkl.data.ingest.paths import find_files

    if getattr(estimator, "encoding_", None) is not None:
        raise ValueError(f"{path!r} is libsvm text, and the model was fitted on a table; give it CSV or Parquet files")
    first_index = getattr(estimator, "first_index_", None)
    if zero_based is None and first_index is None:
        raise ValueError(
            f"the model was not fitted on libsvm text, so whether {path!r} calls the first column 0 or 1 is not known; "
            "say --zero-based or --one-based"
        )
    if zero_based is not None and first_index not in (None, int(not zero_based)):
        raise ValueError(
            f"the model was fitted on libsvm text that calls the first column {first_index}; leave out "
            f"--{'zero' if zero_based else 'one'}-based, or columns would be shifted by one"
        )
    is_zero_based = first_index == 0 if zero_based is None else zero_based
    for X in libsvm_batches(find_files(path, None), estimator.n_features_in_, zero_based=is_zero_based):
        yield estimator, X


def _columns(estimator: Any, X: Any, row_id: np.ndarray, *, proba: bool) -> Part:
    columns = {"row_id": np.asarray(row_id, dtype=np.int64), "prediction": np.asarray(estimator.predict(X))}
    if proba:
        shares = np.asarray(estimator.predict_proba(X))
        columns |= {f"probability_{label}": shares[:, k] for k, label in enumerate(estimator.classes_.tolist())}
    return columns


def check_predictions(path: str, *, overwrite: bool, inputs: Iterable[Any] = ()) -> None:
    """Refuse, before the work, an output that is of no known format, is an input, or holds anything but predictions.

    Raises
    ------
    ValueError, FileExistsError, OSError
    """
    if "://" in path or Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"the output is {path!r}; it must be a local path that ends in .parquet, .csv or .zarr")
    columns = attributes_at(Location.of(path)).get(MARK, {}).get("columns", ())
    own = {"zarr.json", *columns}
    check_before(
        path, "predictions", overwrite=overwrite, inputs=inputs, is_own=is_predictions, belongs=own.__contains__
    )


def is_predictions(path: Path) -> bool:
    """Whether a file or folder is certain to hold predictions that this module wrote."""
    if path.is_dir():
        return isinstance(attributes_at(Location.of(path)).get(MARK), dict)
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            file.seek(0)
            return _CSV_HEADER.fullmatch(file.readline(_LONGEST_HEADER)) is not None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return MARK.encode() in (pq.read_schema(path).metadata or {})
    except pa.ArrowInvalid:
        return False


@contextmanager
def open_writer(path: str, *, overwrite: bool, inputs: Iterable[Any] = ()) -> Iterator[Writer]:
    """A writer of the format that the suffix names; nothing is left behind when the block fails.

    Raises
    ------
    ValueError, FileExistsError, OSError
        As `check_predictions`, which looks before the first row and once more after the last.
    """
    given = list(inputs)

    def check() -> None:
        check_predictions(path, overwrite=overwrite, inputs=given)

    check()
    formats: dict[str, Callable[[Path, Location], Writer]] = {
        ".parquet": _ParquetWriter,
        ".csv": _CsvWriter,
        ".zarr": _ZarrWriter,
    }
    location = Location.of(path)
    with beside(location, check=check) as hidden:
        writer = formats[Path(path).suffix](hidden, location)
        yield writer
        writer.close()


class _TableWriter:
    """What the two table formats share: a schema from the first part."""

    def __init__(self, path: Path, location: Location) -> None:
        self.rows = 0
        self._path = path
        self._location = location
        self._writer: Any = None

    def write(self, part: Part) -> None:
        import pyarrow as pa

        table = pa.table({name: pa.array(_flat(values)) for name, values in part.items()})
        with writing(self._location):
            if self._writer is None:
                self._writer = self._open(table.schema)
            self._writer.write_table(table)
        self.rows += table.num_rows

    def close(self) -> None:
        if self._writer is None:
            raise ValueError("there are no rows to predict; the data is empty")
        with writing(self._location):
            self._writer.close()

    def _open(self, schema: Any) -> Any:
        raise TypeError("a table writer says which format it opens")


class _ParquetWriter(_TableWriter):
    def _open(self, schema: Any) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._path, schema.with_metadata({MARK: __version__}))


class _CsvWriter(_TableWriter):
    def _open(self, schema: Any) -> Any:
        import pyarrow.csv

        return pyarrow.csv.CSVWriter(self._path, schema)


class _ZarrWriter:
    """A zarr group of one array a column; labels that are no numbers are codes, with the labels as an attribute."""

    def __init__(self, path: Path, location: Location) -> None:
        import zarr

        self.rows = 0
        self._location = location
        with writing(location):
            self._group = zarr.create_group(store=str(path))
        self._labels: dict[str, np.ndarray] = {}

    def write(self, part: Part) -> None:
        with writing(self._location):
            for name, values in part.items():
                numbers = self._numbers(name, values)
                if name not in self._group:
                    shape = (0, *numbers.shape[1:])
                    chunks = (CHUNK_ROWS, *numbers.shape[1:])
                    self._group.create_array(name, shape=shape, dtype=numbers.dtype, chunks=chunks)
                array: Any = self._group[name]
                array.append(numbers)
        self.rows += len(part["row_id"])

    def close(self) -> None:
        if not self.rows:
            raise ValueError("there are no rows to predict; the data is empty")
        with writing(self._location):
            self._group.attrs[MARK] = {"rows": self.rows, "columns": sorted(self._group.array_keys())}

    def _numbers(self, name: str, values: np.ndarray) -> np.ndarray:
        if values.dtype.kind in "biuf":
            return values
        known = self._labels.get(name, np.array([], dtype=object))
        new = [label for label in np.unique(values.astype(str)).tolist() if label not in known]
        known = self._labels[name] = np.array([*known.tolist(), *new], dtype=object)
        self._group.attrs[f"{name}_labels"] = known.tolist()
        positions = {label: code for code, label in enumerate(known.tolist())}
        return np.array([positions[str(label)] for label in values], dtype=np.int32)


def _flat(values: np.ndarray) -> Any:
    return values if values.ndim == 1 and values.dtype.kind != "O" else values.tolist()
