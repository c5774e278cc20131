"""Writes predictions, block by block, as Parquet, CSV or zarr that appears when it is complete.

Predictions replace only predictions. Parquet and zarr have the mark ``dkl_predictions`` in their metadata. CSV has no
metadata, so that a CSV file counts as predictions if its first line is exactly a header that is written here, with
quotes: ``row_id``, columns of --id, ``prediction`` (``prediction_...``), ``probability_...``, ``std``, ``lower``,
``upper`` and ``set_...``. Numbers in CSV have the precision of the features. Texts in CSV are escaped, so that they are
harmless in a spreadsheet or a terminal, unless the user chooses otherwise.
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
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import sparse

from dkl.cli.cluster import Compute
from dkl.cli.given_files import libsvm_like_fit
from dkl.cli.output_checks import check_before
from dkl.data.differences import Differences
from dkl.data.exposure import EXPOSURE, checked_exposure, with_exposure_of_fit
from dkl.data.store.location import Location
from dkl.data.store.outputs import beside, writing
from dkl.linear.answers import ScoredRows, Scorer, score_block
from dkl.methods.predicting import output_names
from dkl.methods.validation import checked_dataset
from dkl.model_selection.held_out_scores import check_has_exposure
from dkl.passes.loop import map_blocks
from dkl.plain_text import plain_text
from dkl.uncertainty.conformal_groups import GroupCodes, with_stored_groups
from dkl.version import __version__

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from dkl.data.dataset import Dataset
    from dkl.data.ingest.csv_files import CsvFormat

    Rows: TypeAlias = np.ndarray | sparse.csr_array | pd.DataFrame

# Rows of a chunk of the zarr output, as in a block.
CHUNK_ROWS = 65_536
MARK = "dkl_predictions"
# The output's format follows from its suffix.
_SUFFIXES = (".parquet", ".csv", ".zarr")
# Largest size, in bytes, of a CSV header that is read; each class is a column.
_LONGEST_HEADER = 1 << 20
_CSV_HEADER = re.compile(
    rb'"row_id"(,"([^"]|"")*")*,"prediction(_[^"]*)?"(,"probability_([^"]|"")*")*(,"std")?'
    rb'(,"lower","upper"|(,"set_([^"]|"")*")*)\r?\n'
)

# Backslashes and what follows: an escape sequence as in Python's source code, or one character.
_ESCAPED = re.compile(r"(\\+)(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|[^\\])", re.DOTALL)

# Columns of a part of the output, by name: predictions are NumPy arrays, and columns that --id copies are Arrow arrays,
# which support missing integers.
Part = Mapping[str, Any]


def predict_store(answers: Answers, dataset: Dataset, compute: Compute) -> Iterator[Part]:
    """The predictions of a dataset's rows, block by block, computed in parallel a limited number of blocks ahead."""
    column = ""
    if answers.interval_group is not None:
        dataset, column = with_stored_groups(dataset, answers.interval_group)
    if answers.exposure is not None:
        dataset = with_exposure_of_fit(answers.estimator, dataset, answers.exposure)
    dataset = checked_dataset(answers.estimator, dataset)
    named = [name for name in (column, answers.exposure and EXPOSURE) if name]
    operands, cost = {"scorer": answers.scorer, "columns": named}, answers.scorer.cost
    blocks = map_blocks(
        dataset.source, score_block, operands, name="predict", cost=cost, memory_limit=compute.memory_limit
    )
    for _, part in blocks:
        groups = GroupCodes(part["columns"][column]) if column else None
        yield answers(part["scored"], part["row_id"], part["columns"].get(EXPOSURE), groups)


def predict_files(
    answers: Answers,
    path: str,
    *,
    zero_based: bool | None,
    differences: Differences,
    ids: Sequence[str] = (),
    format: CsvFormat | None = None,
) -> Iterator[Part]:
    """The predictions of raw rows in CSV, Parquet or libsvm files, a few thousand rows at a time.

    The columns `ids` are added unchanged; `format` describes delimited text. Differences from the rows of fit are
    collected over all files in `differences`, and reported at the end, or an error at once.
    """
    from dkl.data.ingest.libsvm_files import libsvm_batches
    from dkl.data.ingest.paths import find_files

    libsvm = libsvm_like_fit(path, answers.estimator, format, zero_based)
    beside = [name for name in (answers.exposure, answers.interval_group) if name is not None]
    read = tuple(dict.fromkeys([*ids, *beside]))
    if libsvm is not None and read:
        option = "--id" if ids else "--exposure" if answers.exposure is not None else "--interval-group"
        raise ValueError(f"{path!r} is libsvm text, whose columns have no names: {option} {read[0]} is not among them")
    # files have no row ids: rows are numbered in the order of the files
    start = 0
    parts: Iterator[tuple[Answers, Rows, Mapping[str, pa.ChunkedArray]]]
    if libsvm is None:
        parts = answers.table_rows(path, differences, read, format)
    else:
        n_columns, is_zero_based = answers.estimator.n_features_in_, libsvm.zero_based is True
        batches = libsvm_batches(find_files(path, None), n_columns, zero_based=is_zero_based)
        parts = ((answers, X, {}) for X in batches)
    for answer, X, columns in parts:
        exposure, groups = (
            None if name is None else columns[name].to_pandas() for name in (answers.exposure, answers.interval_group)
        )
        answered = dict(answer(X, np.arange(start, start + X.shape[0]), exposure, groups))
        if conflicts := sorted(answered.keys() & set(ids)):
            raise ValueError(f"--id {conflicts[0]} names a column that the predictions have of their own; rename it")
        yield {"row_id": answered.pop("row_id"), **{name: columns[name] for name in ids}, **answered}
        start += X.shape[0]
    differences.say()


@dataclass(frozen=True, eq=False)
class Answers:
    """The answers of a model for rows, as columns of the output.

    Parameters
    ----------
    estimator : fitted classifier or regressor
    proba : bool
        Whether to add the probability of each class.
    std : bool
        Whether to add the standard deviation of each number.
    interval : float or None
        Coverage of intervals, whose ends are added, or of prediction sets, with a column for each class.
    interval_group : str or None
        The column of groups, for each of which the coverage holds.
    exposure : str or None
        The column of exposures of counts and sizes.
    """

    estimator: Any
    proba: bool = False
    std: bool = False
    interval: float | None = None
    interval_group: str | None = None
    exposure: str | None = None

    def check(self, model: str) -> None:
        """Raise ValueError if the model, whose name is `model`, does not have the chosen answers."""
        # the hinge loss has no probabilities without calibration
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
        """The columns row_id, prediction (one for each target or quantile), and the chosen further ones."""
        columns: dict[str, Any] = {"row_id": np.asarray(row_id, dtype=np.int64)}
        import pandas as pd

        model = self.estimator
        beside: dict[str, Any] = {}
        if exposure is not None:
            # values that are not numbers become missing, so that the error has their row
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
        """The scorer by which workers compute decision values, and with `std` or `interval` their deviations."""
        has_lengths = self.std or self.interval is not None
        posterior = getattr(self.estimator, "posterior_", None) if has_lengths else None
        scorer: Scorer = self.estimator._scorer
        return scorer if posterior is None else replace(scorer, posterior=posterior)

    def rounded_for_text(self, part: Part) -> Part:
        """The columns rounded to the precision of float32 features, for formats that write numbers as text.

        Predicted numbers are rounded to about 1e-7 of the standard deviation of the targets, so that a prediction of
        1e9 keeps its last digit if targets differ by one.
        """
        # the dtype of the features
        if str(getattr(self.estimator, "features_", self.estimator).dtype) != "float32":
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

    def _rounded(self, values: np.ndarray) -> np.ndarray:
        """Predicted numbers rounded to 2**-24 of the standard deviation of the targets; labels unchanged."""
        if hasattr(self.estimator, "classes_"):
            return values
        if self.estimator._link:
            # counts and sizes are exponentials, whose errors are relative
            return values.astype(np.float32)
        scale = float(np.min(getattr(self.estimator, "target_scale_", 1.0)))
        # a scale of 1 means that the model does not know the standard deviation of its targets
        if scale == 1.0:
            return values
        return np.round(values, max(int(np.ceil(-np.log10(np.finfo(np.float32).epsneg * scale))), 0))

    def _by_class(self, name: str, values: Any) -> dict[str, np.ndarray]:
        """A column for each class, named by its label."""
        labels = self.estimator.classes_.tolist()
        return {f"{name}_{label}": np.asarray(values)[:, k] for k, label in enumerate(labels)}

    def without_names(self) -> Answers:
        """The same answers for rows without column names, whose columns were matched by name before."""
        nameless = copy.copy(self.estimator)
        vars(nameless).pop("feature_names_in_", None)
        return replace(self, estimator=nameless)

    def table_rows(
        self, path: str, differences: Differences, ids: Sequence[str], format: CsvFormat | None = None
    ) -> Iterator[tuple[Answers, Rows, Mapping[str, pa.ChunkedArray]]]:
        """Raw rows in the form that the model needs (encoded, with column names, or arrays), and the columns `ids`.

        Columns of `ids` that the model does not know do not count as differences from the rows of fit.
        """
        from dkl.data.ingest.ingest import tables_to_encode

        encoding = getattr(self.estimator, "encoding_", None)
        known = (
            {rule.name for rule in encoding.rules}
            if encoding
            else set(getattr(self.estimator, "feature_names_in_", ()))
        )
        start = 0
        tables, encoding = tables_to_encode(path, encoding=encoding, ids=ids, format=format)
        for whole in tables:
            carried = {name: whole.column(name) for name in ids}
            table = whole.drop_columns([name for name in ids if name not in known])
            if encoding is None or encoding.array_dtype:
                X = table.to_pandas()
                yield self, X if hasattr(self.estimator, "feature_names_in_") else X.to_numpy(), carried
            else:
                # encoded columns have no names, and `transform` has checked the names of the raw columns
                X = encoding.transform(table, first_row=start, differences=differences)
                yield self.without_names(), X, carried
            start += table.num_rows


def check_predictions(path: str, *, overwrite: bool, inputs: Iterable[str] = ()) -> None:
    """Check an output before the work.

    Raises
    ------
    ValueError, FileExistsError, OSError
        If its format is unknown, it is an input, it exists and is not predictions, or it is not writable.
    """
    if "://" in path or Path(path).suffix not in _SUFFIXES:
        raise ValueError(f"the output is {path!r}; it must be a local path that ends in .parquet, .csv or .zarr")
    # a zarr group of predictions is replaced only if its folder has nothing but the columns in its mark
    own = {"zarr.json", *Location.of(path).sound_marker(MARK).get("columns", ())}
    check_before(
        path, "predictions", overwrite=overwrite, inputs=inputs, is_own=is_predictions, belongs=own.__contains__
    )


def is_predictions(path: Path) -> bool:
    """Whether a file or folder certainly has predictions that this module wrote."""
    if path.is_dir():
        return bool(Location.of(path).sound_marker(MARK))
    # a Parquet file begins with PAR1; any other file may be CSV
    with path.open("rb") as file:
        if file.read(4) != b"PAR1":
            file.seek(0)
            # the whole header, as quoted names may contain line ends
            return _CSV_HEADER.match(file.read(_LONGEST_HEADER)) is not None
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        # reads only the footer of the file
        return MARK.encode() in (pq.read_schema(path).metadata or {})
    except pa.ArrowInvalid:
        return False


@contextmanager
def open_writer(
    path: str, *, overwrite: bool, inputs: Iterable[str] = (), exact_text: bool = False
) -> Iterator[Writer]:
    """A writer of the format of the suffix; nothing remains after an error in the block.

    Parameters
    ----------
    path : str
    overwrite : bool
    inputs : iterable of str
    exact_text : bool
        Whether texts in CSV are written unchanged, instead of by `harmless`.

    Raises
    ------
    ValueError, FileExistsError, OSError
        As for `check_predictions`, which is called before the first row and after the last.
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

    with beside(location, check=check) as hidden:
        writer = formats[Path(path).suffix](hidden, location)
        yield writer
        writer.close()


class _TableWriter:
    """The base class of the two table formats, whose schema follows from the first part."""

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
                    # Arrow needs flat arrays; several targets of a row become lists
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
        """The library's writer for this schema, in a subclass."""
        raise TypeError("a table writer says which format it opens")


class _ParquetWriter(_TableWriter):
    def _open(self, schema: pa.Schema) -> Any:
        import pyarrow.parquet as pq

        return pq.ParquetWriter(self._path, schema.with_metadata({MARK: __version__}))


def harmless(text: str) -> str:
    """A text escaped so that spreadsheets do not read it as a formula, nor terminals as a command; injective.

    Texts that begin with ``=``, ``+``, ``-`` or ``@``, also full-width ones, and are not numbers, get an apostrophe in
    front, as do texts with apostrophes before such a sign. Control characters are written by `plain_text` (``\\x1b``);
    backslashes that look like the beginning of such an escape, or precede one, are doubled.
    """
    shown = plain_text(_ESCAPED.sub(_with_doubled_backslashes, text).replace("\r", "\\x0d"))
    # spreadsheets may skip spaces and invisible characters before a formula
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
    """Backslashes and what follows; the backslashes are doubled if that is an escape sequence, or becomes one."""
    backslashes, behind = match.groups()
    is_ambiguous = len(behind) > 1 or plain_text(behind) != behind
    return (2 * backslashes if is_ambiguous else backslashes) + behind


class _CsvWriter(_TableWriter):
    def __init__(self, path: Path, location: Location, *, exact_text: bool) -> None:
        super().__init__(path, location)
        self._exact_text = exact_text

    def write(self, part: Part) -> None:
        escaped = part if self._exact_text else {harmless(name): self._harmless(part[name]) for name in part}
        super().write(escaped)

    def _harmless(self, values: Any) -> Any:
        """The values of a column, texts escaped."""
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
    """A zarr group with an array for each column; labels that are texts are codes, and an attribute has the labels."""

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
            # a name with a slash is that of an array in a group
            names = sorted({array.path.partition("/")[0] for array in self._arrays.values()})
            self._group.attrs[MARK] = {"rows": self.rows, "columns": names}

    def _new_array(self, name: str, numbers: np.ndarray) -> Any:
        """An array without rows; ValueError if zarr, or the file system, does not support the name."""
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
        """Numbers unchanged, labels as codes: positions in a list to which new labels are appended."""
        if not isinstance(values, np.ndarray):
            values = np.array(["" if value is None else value for value in values.to_pylist()])
        if values.dtype.kind in "biuf":
            return values
        known = self._labels.get(name, np.array([], dtype=object))
        # appended, so that written codes keep their meaning
        new = [label for label in np.unique(values.astype(str)).tolist() if label not in known]
        known = self._labels[name] = np.array([*known.tolist(), *new], dtype=object)

        self._group.attrs[f"{name}_labels"] = known.tolist()
        positions = {label: code for code, label in enumerate(known.tolist())}
        return np.array([positions[str(label)] for label in values], dtype=np.int32)


Writer: TypeAlias = _TableWriter | _ZarrWriter
"""Writes columns of equal length, in parts, and counts their rows."""
