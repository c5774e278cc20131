"""Predictions of many rows, block by block, as Parquet, CSV or zarr that appears when it is complete.

Predictions replace predictions only. Parquet and zarr carry the mark ``dkl_predictions`` in their metadata. CSV has no
metadata, so a CSV file counts as predictions by its first line alone: exactly the header that is written here, with
its quotes, and nothing beside ``row_id``, ``prediction`` (``prediction_...``) and ``probability_...``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from scipy import sparse

from dkl.cli.cluster import Compute
from dkl.cli.output_checks import check_before
from dkl.data.differences import Differences
from dkl.data.store.location import Location
from dkl.data.store.outputs import beside, writing
from dkl.data.store.overwriting import attributes_at
from dkl.methods.predicting import output_names
from dkl.methods.validation import checked_dataset
from dkl.passes.engine import map_blocks
from dkl.protocols.block import Block
from dkl.protocols.estimators import FittedModel
from dkl.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dkl.data.dataset import Dataset

    Rows: TypeAlias = np.ndarray | sparse.csr_array | pd.DataFrame

# Rows of a chunk of the zarr output, as many as a block has.
CHUNK_ROWS = 65_536
MARK = "dkl_predictions"
# The output's format follows from its suffix alone, so that no option can contradict it.
_SUFFIXES = (".parquet", ".csv", ".zarr")
# Classes are a column each; a header longer than a MiB is none of ours, and is not read to its end.
_LONGEST_HEADER = 1 << 20
_CSV_HEADER = re.compile(rb'"row_id"(,"prediction(_[^"]*)?")+(,"probability_([^"]|"")*")*\r?\n')

Part = Mapping[str, np.ndarray]


class PredictingModel(FittedModel, Protocol):
    """A fitted machine; `classes_` and `predict_proba` are those of a classifier."""

    classes_: np.ndarray

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, (n, K)."""
        ...


class Writer(Protocol):
    """Takes columns of equal length, part by part."""

    rows: int

    def write(self, part: Part) -> None: ...

    def close(self) -> None: ...


def predict_store(estimator: PredictingModel, dataset: Dataset, *, proba: bool, compute: Compute) -> Iterator[Part]:
    """The predictions of a dataset's rows, block by block, mapped in parallel a bounded number of blocks ahead."""
    dataset = checked_dataset(estimator, dataset)
    operands = {"answers": Answers(estimator, proba).without_names()}
    blocks = map_blocks(dataset.source, _predict_block, operands, name="predict", memory_limit=compute.memory_limit)
    for _, part in blocks:
        yield part


def _predict_block(block: Block, operands: Mapping[str, Any]) -> Part:
    """The predictions of a block; runs on a worker."""
    return operands["answers"](block.X, block.row_id)


def predict_files(
    estimator: PredictingModel, path: str, *, proba: bool, zero_based: bool | None, told: Differences
) -> Iterator[Part]:
    """The predictions of raw rows in CSV, Parquet or libsvm files, a few thousand rows at a time.

    What is unlike the rows of fit in all files goes to `told`, which says it in the end or refuses it at once.
    """
    from dkl.data.ingest.paths import file_format, find_files

    answers = Answers(estimator, proba)
    is_libsvm = file_format(find_files(path, None), None) == "libsvm"
    # Files have no row ids of their own: a row is known by its number in the order of the files.
    start = 0
    for answer, X in answers.libsvm_rows(path, zero_based) if is_libsvm else answers.table_rows(path, told):
        yield answer(X, np.arange(start, start + X.shape[0]))
        start += X.shape[0]
    told.say()


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model says of rows, as columns of the output.

    Parameters
    ----------
    estimator : fitted classifier or regressor
    proba : bool
        The probability of each class too.
    """

    estimator: PredictingModel
    proba: bool

    def __call__(self, X: Rows, row_id: np.ndarray) -> Part:
        """The columns row_id and prediction, one a target or quantile, and probabilities where they are asked for."""
        columns, predicted = {"row_id": np.asarray(row_id, dtype=np.int64)}, np.asarray(self.estimator.predict(X))
        if predicted.ndim == 2:
            names = output_names(self.estimator, predicted.shape[1])
            columns |= {name: predicted[:, k] for k, name in enumerate(names)}
        else:
            columns["prediction"] = predicted
        if self.proba:
            shares = np.asarray(self.estimator.predict_proba(X))
            labels = self.estimator.classes_.tolist()
            # Labels name the columns, since their order alone would have to be looked up.
            columns |= {f"probability_{label}": shares[:, k] for k, label in enumerate(labels)}
        return columns

    def without_names(self) -> Answers:
        """The same for rows whose columns have been matched by name before, and which carry no names themselves."""
        nameless = copy.copy(self.estimator)
        vars(nameless).pop("feature_names_in_", None)
        return Answers(nameless, self.proba)

    def table_rows(self, path: str, told: Differences) -> Iterator[tuple[Answers, Rows]]:
        """Raw rows as the model takes them: encoded where it has an encoding, else by name where it knows names."""
        from dkl.data.ingest.ingest import read_tables

        encoding = getattr(self.estimator, "encoding_", None)
        start = 0
        for table in read_tables(path, encoding=encoding):
            if encoding is None or encoding.array_dtype:
                X = table.to_pandas()
                yield self, X if hasattr(self.estimator, "feature_names_in_") else X.to_numpy()
            else:
                # Encoded columns have no names, and the encoding has checked those of the raw table.
                yield self.without_names(), encoding.transform(table, first_row=start, differences=told)
            start += table.num_rows

    def libsvm_rows(self, path: str, zero_based: bool | None) -> Iterator[tuple[Answers, Rows]]:
        """CSR rows whose columns are called as in the text that the model was fitted on, or as the user says.

        Raises
        ------
        ValueError
            If nothing says whether the first column is called 0 or 1, or two things say it differently.
        """
        from dkl.data.ingest.libsvm_files import libsvm_batches
        from dkl.data.ingest.paths import find_files

        if getattr(self.estimator, "encoding_", None) is not None:
            raise ValueError(
                f"{path!r} is libsvm text, and the model was fitted on a table; give it CSV or Parquet files"
            )
        first_index = getattr(self.estimator, "first_index_", None)
        if zero_based is None and first_index is None:
            raise ValueError(
                f"the model was not fitted on libsvm text, so whether {path!r} calls the first column 0 or 1 is not "
                "known; say --zero-based or --one-based"
            )
        if zero_based is not None and first_index not in (None, int(not zero_based)):
            raise ValueError(
                f"the model was fitted on libsvm text that calls the first column {first_index}; leave out "
                f"--{'zero' if zero_based else 'one'}-based, or columns would be shifted by one"
            )
        is_zero_based = first_index == 0 if zero_based is None else zero_based
        for X in libsvm_batches(find_files(path, None), self.estimator.n_features_in_, zero_based=is_zero_based):
            yield self, X


def check_predictions(path: str, *, overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Refuse, before the work, an output that is of no known format, is an input, or holds anything but predictions.

    Raises
    ------
    ValueError, FileExistsError, OSError
    """
    if "://" in path or Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"the output is {path!r}; it must be a local path that ends in .parquet, .csv or .zarr")
    # A zarr group of predictions may be replaced while nothing lies in its folder but the columns that its mark lists.
    columns = attributes_at(Location.of(path)).get(MARK, {}).get("columns", ())
    own = {"zarr.json", *columns}
    check_before(
        path, "predictions", overwrite=overwrite, inputs=inputs, is_own=is_predictions, belongs=own.__contains__
    )


def is_predictions(path: Path) -> bool:
    """Whether a file or folder is certain to hold predictions that this module wrote."""
    if path.is_dir():
        return isinstance(attributes_at(Location.of(path)).get(MARK), dict)
    # A Parquet file begins with four letters of its own; anything else is CSV, which has no metadata.
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            file.seek(0)
            return _CSV_HEADER.fullmatch(file.readline(_LONGEST_HEADER)) is not None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Only the footer of the file is read.
        return MARK.encode() in (pq.read_schema(path).metadata or {})
    except pa.ArrowInvalid:
        return False


@contextmanager
def open_writer(path: str, *, overwrite: bool, inputs: Iterable[str] = ()) -> Iterator[Writer]:
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
    # Rows are written to a hidden place beside the output, which takes its name when it is complete.
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

        # Arrow takes flat arrays of numbers and texts; several targets a row become lists, objects what they are.
        table = pa.table(
            {
                name: pa.array(values if values.ndim == 1 and values.dtype.kind != "O" else values.tolist())
                for name, values in part.items()
            }
        )
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

    def _open(self, schema: pa.Schema) -> Any:
        """The writer of the library for rows of this schema; a subclass says which."""
        raise TypeError("a table writer says which format it opens")


class _ParquetWriter(_TableWriter):
    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._path, schema.with_metadata({MARK: __version__}))


class _CsvWriter(_TableWriter):
    def _open(self, schema: pa.Schema) -> Any:
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
        """Numbers as they are, labels as codes: positions in a list that grows with the parts."""
        if values.dtype.kind in "biuf":
            return values
        known = self._labels.get(name, np.array([], dtype=object))
        # Codes that are written keep their meaning, so new labels go to the end of the list.
        new = [label for label in np.unique(values.astype(str)).tolist() if label not in known]
        known = self._labels[name] = np.array([*known.tolist(), *new], dtype=object)
        # The labels are written with each part, so that the codes of a part which is written can be read.
        self._group.attrs[f"{name}_labels"] = known.tolist()
        positions = {label: code for code, label in enumerate(known.tolist())}
        return np.array([positions[str(label)] for label in values], dtype=np.int32)
