"""Predictions of many rows, block by block, as Parquet, CSV or zarr that appears when it is complete.

Predictions replace predictions only. Parquet and zarr carry the mark ``dkl_predictions`` in their metadata. CSV has no
metadata, so a CSV file counts as predictions by its first line alone: exactly the header that is written here, with
its quotes: ``row_id``, columns that were asked for, ``prediction`` (``prediction_...``), ``probability_...``, ``std``,
``lower``, ``upper`` and ``set_...``. Numbers in CSV have the digits that the features have. Texts in CSV do no harm in
a spreadsheet or a terminal, unless they are asked for as they are.
"""

from __future__ import annotations

import copy
import errno
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from scipy import sparse

from dkl.cli.cluster import Compute
from dkl.cli.output_checks import check_before
from dkl.data.differences import Differences
from dkl.data.exposure import EXPOSURE, checked_exposure, with_exposure_of_fit
from dkl.data.store.location import Location
from dkl.data.store.outputs import beside, writing
from dkl.data.store.overwriting import attributes_at
from dkl.linear.answers import ScoredRows, Scorer, score_block
from dkl.methods.predicting import output_names
from dkl.methods.validation import checked_dataset
from dkl.model_selection.held_out_scores import check_has_exposure
from dkl.passes.engine import map_blocks
from dkl.plain_text import plain_text
from dkl.protocols.estimators import FittedModel
from dkl.uncertainty.conformal_groups import GroupCodes, with_stored_groups
from dkl.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dkl.data.dataset import Dataset
    from dkl.data.ingest.csv_files import CsvFormat
    from dkl.uncertainty.order_statistics import HeldOutScores

    Rows: TypeAlias = np.ndarray | sparse.csr_array | pd.DataFrame

# Rows of a chunk of the zarr output, as many as a block has.
CHUNK_ROWS = 65_536
MARK = "dkl_predictions"
# The output's format follows from its suffix alone, so that no option can contradict it.
_SUFFIXES = (".parquet", ".csv", ".zarr")
# Classes are a column each; a header longer than a MiB is none of ours, and is not read to its end.
_LONGEST_HEADER = 1 << 20
_CSV_HEADER = re.compile(
    rb'"row_id"(,"([^"]|"")*")*,"prediction(_[^"]*)?"(,"probability_([^"]|"")*")*(,"std")?'
    rb'(,"lower","upper"|(,"set_([^"]|"")*")*)\r?\n'
)

# Backslashes and what stands behind them: an escape as Python writes it in source, or one character.
_ESCAPED = re.compile(r"(\\+)(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[^\\])", re.DOTALL)

# Columns of answers are arrays, those that are only carried along stay Arrow's, which has gaps in whole numbers.
Part = Mapping[str, Any]


class PredictingModel(FittedModel, Protocol):
    """A fitted machine; `classes_`, `predict_proba` and `predict_set` are those of a classifier."""

    classes_: np.ndarray
    conformal_: HeldOutScores

    def predict_proba(self, X: Any) -> Any:
        """The probability of each class, (n, K)."""
        ...

    def predict_interval(self, X: Any, coverage: float, **beside: Any) -> Any:
        """Lower and upper ends, (n, 2) or (n, t, 2)."""
        ...

    def predict_set(self, X: Any, coverage: float, **beside: Any) -> Any:
        """Which classes are likely, (n, K)."""
        ...


class Writer(Protocol):
    """Takes columns of equal length, part by part."""

    rows: int

    def write(self, part: Part) -> None: ...

    def close(self) -> None: ...


def predict_store(answers: Answers, dataset: Dataset, compute: Compute) -> Iterator[Part]:
    """The predictions of a dataset's rows, block by block, mapped in parallel a bounded number of blocks ahead."""
    column = ""
    if answers.interval_group is not None:
        dataset, column = with_stored_groups(dataset, answers.interval_group)
    if answers.exposure is not None:
        dataset = with_exposure_of_fit(answers.estimator, dataset, answers.exposure)
    dataset = checked_dataset(answers.estimator, dataset)
    named = [name for name in (column, answers.exposure and EXPOSURE) if name]
    operands = {"scorer": answers.scorer, "columns": named}
    blocks = map_blocks(dataset.source, score_block, operands, name="predict", memory_limit=compute.memory_limit)
    for _, part in blocks:
        groups = GroupCodes(part["columns"][column]) if column else None
        yield answers(part["scored"], part["row_id"], part["columns"].get(EXPOSURE), groups)


def predict_files(
    answers: Answers,
    path: str,
    *,
    zero_based: bool | None,
    told: Differences,
    ids: Sequence[str] = (),
    format: CsvFormat | None = None,
) -> Iterator[Part]:
    """The predictions of raw rows in CSV, Parquet or libsvm files, a few thousand rows at a time.

    Columns that `ids` names go along as they stand in the files; `format` says how delimited text is written. What is
    unlike the rows of fit in all files goes to `told`, which says it in the end or refuses it at once.
    """
    from dkl.data.ingest.paths import file_format, find_files

    is_libsvm = format is None and file_format(find_files(path, None), None) == "libsvm"
    if zero_based is not None and not is_libsvm:
        option = "--zero-based" if zero_based else "--one-based"
        raise ValueError(f"{option} is for libsvm text, and {path!r} is a table, whose columns have names")
    beside = [name for name in (answers.exposure, answers.interval_group) if name is not None]
    read = tuple(dict.fromkeys([*ids, *beside]))
    if is_libsvm and read:
        option = "--id" if ids else "--exposure" if answers.exposure is not None else "--interval-group"
        raise ValueError(f"{path!r} is libsvm text, whose columns have no names: {option} {read[0]} is not among them")
    # Files have no row ids of their own: a row is known by its number in the order of the files.
    start = 0
    parts = (
        ((answer, X, {}) for answer, X in answers.libsvm_rows(path, zero_based))
        if is_libsvm
        else answers.table_rows(path, told, read, format)
    )
    for answer, X, columns in parts:
        exposure, groups = (
            None if name is None else columns[name].to_pandas() for name in (answers.exposure, answers.interval_group)
        )
        found = dict(answer(X, np.arange(start, start + X.shape[0]), exposure, groups))
        if taken := sorted(found.keys() & set(ids)):
            raise ValueError(f"--id {taken[0]} names a column that the predictions have of their own; rename it")
        yield {"row_id": found.pop("row_id"), **{name: columns[name] for name in ids}, **found}
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
    std : bool
        The deviation of each number too.
    interval : float or None
        Of this coverage the ends of an interval, or which classes are in the set.
    interval_group : str or None
        The column of groups that the coverage is promised for.
    exposure : str or None
        The column of what counts and sizes are counted over.
    """

    estimator: PredictingModel
    proba: bool = False
    std: bool = False
    interval: float | None = None
    interval_group: str | None = None
    exposure: str | None = None

    def check(self, model: str) -> None:
        """Refuse, before the first row, what the model of that name does not say.

        Raises
        ------
        ValueError
        """
        # The hinge loss has no probabilities, and calibration needs a fit.
        if self.proba and not hasattr(self.estimator, "predict_proba"):
            raise ValueError(f"the model {model!r} has no probabilities; fit it with --loss log_loss, or --calibrate")
        if self.std and not hasattr(self.estimator, "posterior_"):
            raise ValueError(
                f"the model {model!r} has no deviations; fit numbers with --solver newton, which leaves a Gram matrix"
            )
        check_has_exposure(self.estimator, self.exposure)
        if self.interval is None:
            if self.interval_group is not None:
                raise ValueError("--interval-group is of intervals: give their coverage too, as in --interval 0.9")
            return
        if not 0.0 < self.interval < 1.0:
            raise ValueError(f"--interval is {self.interval:g}; expected a share between 0 and 1, such as 0.9")
        kept = getattr(self.estimator, "conformal_", None)
        if kept is None:
            raise ValueError(
                f"the model {model!r} has no scores of held-out rows, which a coverage is promised by; fit it with "
                "--conformal-fraction 0.1"
            )
        if (kept.groups is None) != (self.interval_group is None):
            raise ValueError(
                f"the model {model!r} promises its coverage for all rows together; leave --interval-group out"
                if kept.groups is None
                else f"the model {model!r} promises its coverage by group; name their column: --interval-group COLUMN"
            )

    def __call__(self, X: Rows | ScoredRows, row_id: np.ndarray, exposure: Any = None, groups: Any = None) -> Part:
        """The columns row_id and prediction, one a target or quantile, and those that are asked for beside them."""
        columns: dict[str, Any] = {"row_id": np.asarray(row_id, dtype=np.int64)}
        import pandas as pd

        model: Any = self.estimator
        beside: dict[str, Any] = {}
        if exposure is not None:
            # what is no number becomes a gap, whose row the error names
            numbers = pd.to_numeric(pd.Series(exposure), errors="coerce").to_numpy(np.float64)
            beside["exposure"] = checked_exposure(numbers, len(row_id), columns["row_id"])
        predicted, std = model.predict(X, return_std=True) if self.std else (model.predict(X, **beside), None)
        predicted = np.asarray(predicted)
        if predicted.ndim == 2:
            names = output_names(model, predicted.shape[1])
            columns |= {name: predicted[:, k] for k, name in enumerate(names)}
        else:
            columns["prediction"] = predicted
        if self.proba:
            # Labels name the columns, since their order alone would have to be looked up.
            columns |= self._by_class("probability", self.estimator.predict_proba(X))
        if self.std:
            columns["std"] = std
        if self.interval is not None and hasattr(self.estimator, "classes_"):
            columns |= self._by_class("set", self.estimator.predict_set(X, self.interval, groups=groups))
        elif self.interval is not None:
            ends = self.estimator.predict_interval(X, self.interval, groups=groups, **beside)
            columns |= {"lower": ends[..., 0], "upper": ends[..., 1]}
        return columns

    @property
    def scorer(self) -> Scorer:
        """Gives workers the decision values of rows, and with `std` or `interval` how far they may deviate."""
        model: Any = self.estimator
        has_lengths = self.std or self.interval is not None
        posterior = getattr(model, "posterior_", None) if has_lengths else None
        return model._scorer if posterior is None else replace(model._scorer, posterior=posterior)

    def in_text(self, part: Part) -> Part:
        """The columns with the digits that features in single precision have, for formats that write numbers as text.

        Of a number that is predicted those are seven behind the decimal point of a unit as large as the deviation of
        the targets: a prediction of 1e9 keeps its last digit where targets differ by one.
        """
        if self._dtype != "float32":
            return part
        written = dict(part)
        for name, values in part.items():
            if not isinstance(values, np.ndarray) or values.dtype.kind != "f":
                continue
            if name == "std" or name.startswith("probability_"):
                written[name] = values.astype(np.float32)
            elif name.startswith("prediction_") or name in ("prediction", "lower", "upper"):
                written[name] = self._rounded(values)
        return written

    @property
    def _dtype(self) -> str:
        """Of the features."""
        model: Any = self.estimator
        return str(getattr(model, "features_", model).dtype)

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        """Numbers that are predicted, to 2**-24 of the deviation of the targets; labels as they are."""
        if hasattr(self.estimator, "classes_"):
            return values
        model: Any = self.estimator
        if model._link:
            # counts and sizes are exponentials, whose errors are shares of themselves
            return values.astype(np.float32)
        scale = float(np.min(getattr(model, "target_scale_", 1.0)))
        # 1 is a model that was made in the units of its targets, whose deviation it does not know
        if scale == 1.0:
            return values
        return np.round(values, max(int(np.ceil(-np.log10(np.finfo(np.float32).epsneg * scale))), 0))

    def _by_class(self, name: str, values: Any) -> dict[str, np.ndarray]:
        """A column a class."""
        labels = self.estimator.classes_.tolist()
        return {f"{name}_{label}": np.asarray(values)[:, k] for k, label in enumerate(labels)}

    def without_names(self) -> Answers:
        """The same for rows whose columns have been matched by name before, and which carry no names themselves."""
        nameless = copy.copy(self.estimator)
        vars(nameless).pop("feature_names_in_", None)
        return replace(self, estimator=nameless)

    def table_rows(
        self, path: str, told: Differences, ids: Sequence[str], format: CsvFormat | None = None
    ) -> Iterator[tuple[Answers, Rows, Mapping[str, pa.ChunkedArray]]]:
        """Raw rows as the model takes them: encoded where it has an encoding, else by name where it knows names.

        Beside them the columns `ids`, which are no difference to the rows of fit where the model does not know them.
        """
        from dkl.data.ingest.ingest import read_tables

        encoding = getattr(self.estimator, "encoding_", None)
        known = (
            {rule.name for rule in encoding.rules}
            if encoding
            else set(getattr(self.estimator, "feature_names_in_", ()))
        )
        # files of texts are read as texts, and columns of plain numbers go along as numbers
        rules = () if encoding is None or encoding.array_dtype else encoding.rules
        plain = {rule.name for rule in rules if rule.kind == "number" and not rule.form}
        kinds: dict[str, pa.DataType] = {}
        start = 0
        for whole in read_tables(path, encoding=encoding, ids=ids, format=format):
            carried = {name: whole.column(name) for name in ids}
            carried |= {name: as_numbers(carried[name], name, kinds) for name in ids if name in plain}
            table = whole.drop_columns([name for name in ids if name not in known])
            if encoding is None or encoding.array_dtype:
                X = table.to_pandas()
                yield self, X if hasattr(self.estimator, "feature_names_in_") else X.to_numpy(), carried
            else:
                # Encoded columns have no names, and the encoding has checked those of the raw table.
                yield self.without_names(), encoding.transform(table, first_row=start, differences=told), carried
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
            # names in quotes may hold line ends
            return _CSV_HEADER.match(file.read(_LONGEST_HEADER)) is not None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # Only the footer of the file is read.
        return MARK.encode() in (pq.read_schema(path).metadata or {})
    except pa.ArrowInvalid:
        return False


@contextmanager
def open_writer(
    path: str, *, overwrite: bool, inputs: Iterable[str] = (), exact_text: bool = False
) -> Iterator[Writer]:
    """A writer of the format that the suffix names; nothing is left behind when the block fails.

    Parameters
    ----------
    exact_text : bool
        Texts stand in CSV as they are, in place of as `harmless` writes them.

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
        ".csv": partial(_CsvWriter, exact_text=exact_text),
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

        columns = {}
        try:
            for name, values in part.items():
                if not isinstance(values, pa.ChunkedArray):
                    # Arrow takes flat arrays of numbers and texts; several targets a row become lists.
                    is_flat = values.ndim == 1 and values.dtype.kind != "O"
                    values = pa.array(values if is_flat else values.tolist())
                columns[name] = values
            table = pa.table(columns)
        except UnicodeError as error:
            raise ValueError(
                f"{self._location.place} cannot hold the label of a class that is no Unicode text: half of a pair of "
                "surrogates stands alone in it; write a .csv file, in which it is escaped, or a .zarr folder"
            ) from error
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


def harmless(text: str) -> str:
    """A text that no spreadsheet takes for a formula and no terminal for a command; different ones stay different.

    What begins with ``=``, ``+``, ``-`` or ``@``, full-width ones too, and is no number has an apostrophe before it,
    and so has what begins with apostrophes before such a sign. What controls a terminal is written as `plain_text`
    writes it (``\\x1b``); backslashes that would be read as the beginning of that, or stand before it, are doubled.
    """
    shown = plain_text(_ESCAPED.sub(_with_doubled_backslashes, text).replace("\r", "\\x0d"))
    # spaces, and characters that nobody sees, may be skipped by who looks for a formula
    body = shown.lstrip("'")
    first = next((char for char in body if not char.isspace() and unicodedata.category(char) != "Cf"), "")
    if unicodedata.normalize("NFKC", first) not in ("=", "+", "-", "@"):
        return shown
    try:
        float(body)
    except ValueError:
        return f"'{shown}"
    return shown


def _with_doubled_backslashes(match: re.Match[str]) -> str:
    """Backslashes and what stands behind them; doubled where that is an escape, or becomes one."""
    backslashes, behind = match.groups()
    is_ambiguous = len(behind) > 1 or plain_text(behind) != behind
    return (2 * backslashes if is_ambiguous else backslashes) + behind


class _CsvWriter(_TableWriter):
    def __init__(self, path: Path, location: Location, *, exact_text: bool) -> None:
        super().__init__(path, location)
        self._exact_text = exact_text

    def write(self, part: Part) -> None:
        super().write(part if self._exact_text else self._harmless_part(part))

    def _harmless_part(self, part: Part) -> Part:
        """The columns with harmless names and harmless texts."""
        return {harmless(name): self._harmless(values) for name, values in part.items()}

    def _harmless(self, values: Any) -> Any:
        """The values of a column, the texts among them harmless."""
        import pyarrow as pa

        if isinstance(values, np.ndarray):
            if values.dtype.kind not in "OU" or not all(isinstance(value, str) for value in values.flat):
                return values
            texts, kind = values.tolist(), pa.string()
        elif pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            texts, kind = values.to_pylist(), values.type
        else:
            return values
        written = {text: text if text is None else harmless(text) for text in set(texts)}
        return pa.chunked_array([pa.array([written[text] for text in texts], type=kind)])

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
        self._arrays: dict[str, Any] = {}
        self._labels: dict[str, np.ndarray] = {}

    def write(self, part: Part) -> None:
        with writing(self._location):
            for name, values in part.items():
                numbers = self._numbers(name, values)
                if name not in self._arrays:
                    self._arrays[name] = self._new_array(name, numbers)
                self._arrays[name].append(numbers)
        self.rows += len(part["row_id"])

    def close(self) -> None:
        if not self.rows:
            raise ValueError("there are no rows to predict; the data is empty")
        with writing(self._location):
            # a name with a slash is a group, and an array in it
            names = sorted({array.path.partition("/")[0] for array in self._arrays.values()})
            self._group.attrs[MARK] = {"rows": self.rows, "columns": names}

    def _new_array(self, name: str, numbers: np.ndarray) -> Any:
        """An array without rows; ValueError where zarr, or the file system, has no such names."""
        shape, chunks = (0, *numbers.shape[1:]), (CHUNK_ROWS, *numbers.shape[1:])
        try:
            return self._group.create_array(name, shape=shape, dtype=numbers.dtype, chunks=chunks)
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
                raise
            raise ValueError(
                f"the column {name[:60]!r} of the predictions cannot be a folder of a zarr group "
                f"({getattr(error, 'strerror', None) or error}); write Parquet or CSV"
            ) from error

    def _numbers(self, name: str, values: Any) -> np.ndarray:
        """Numbers as they are, labels as codes: positions in a list that grows with the parts."""
        if not isinstance(values, np.ndarray):
            values = np.array(["" if value is None else value for value in values.to_pylist()])
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


def as_numbers(column: pa.ChunkedArray, name: str, kinds: dict[str, pa.DataType]) -> pa.ChunkedArray:
    """A column of texts as numbers, where all of its first texts write numbers; `kinds` keeps which ones."""
    import pyarrow as pa

    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        return column
    for kind in [kinds[name]] if name in kinds else [pa.int64(), pa.float64(), column.type]:
        try:
            cast = column.cast(kind)
        except pa.ArrowInvalid as error:
            if name in kinds:
                raise ValueError(
                    f"column {name!r} of --id holds {kind} values in the first rows, and others later ({error}); write "
                    "them alike, or join the predictions by row_id"
                ) from None
        else:
            kinds[name] = kind
            return cast
    return column
