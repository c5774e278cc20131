"""Tables of other libraries (Polars, Arrow, DuckDB, and others by narwhals) as pandas frames of Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import numpy as np
from scipy import sparse

from dkl.data.checks import check_named_once
from dkl.data.given import GivenRows


def as_pandas_rows(X: GivenRows) -> Any:
    """A table of another library as a pandas frame; anything else unchanged.

    Columns are not copied and keep their Arrow types: integers with missing values, decimals, dates. A lazy table is
    computed, and a reader of record batches is read completely.

    Parameters
    ----------
    X : array, scipy sparse matrix, data frame, Dask collection, Dataset, or a table of another library
    """
    if isinstance(X, np.ndarray | list | tuple) or sparse.issparse(X) or dask.is_dask_collection(X):
        return X
    library = type(X).__module__.partition(".")[0]
    if library in ("pandas", "dkl"):
        return X
    table = _arrow_table(X)
    if table is None:
        return X
    import pandas as pd
    import pyarrow as pa

    def stored(dtype: Any) -> Any:
        """pandas' type for a column; None for Arrow's default, which turns dictionaries into categories."""
        plain = pa.types.is_dictionary(dtype) or pa.types.is_null(dtype)
        return None if plain else pd.ArrowDtype(dtype)

    frame = with_plain_texts(table).to_pandas(types_mapper=stored)
    coded = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    # texts that were categories stay categories, also if they look like numbers
    return frame.astype({name: "category" for name in coded if frame[name].dtype.name != "category"})


def is_other_table(X: object) -> bool:
    """Whether `as_pandas_rows` converts it to a pandas frame; no rows are read."""
    if isinstance(X, np.ndarray | list | tuple | str) or sparse.issparse(X) or dask.is_dask_collection(X):
        return False
    has_stream = hasattr(X, "__arrow_c_stream__") or hasattr(X, "__arrow_c_array__")
    # the class is checked, as reading the columns of a lazy frame may take long
    kind = type(X)
    if not hasattr(kind, "columns"):
        # a series and an Arrow array have a dtype or type; without columns and stream narwhals is not imported
        return has_stream and not (hasattr(kind, "dtype") or hasattr(kind, "type"))
    if has_stream:
        return True
    import narwhals

    return isinstance(narwhals.from_native(X, pass_through=True), narwhals.DataFrame | narwhals.LazyFrame)


def arrow_batches(X: Any) -> Any:
    """A table of another library as a stream of its record batches, or as an Arrow table if it has no stream.

    A lazy frame of Polars is computed while it is read.
    """
    import pyarrow as pa

    if isinstance(X, pa.Table | pa.RecordBatchReader):
        return X
    if hasattr(X, "__arrow_c_stream__"):
        with _unsupported_types_named(X):
            return pa.RecordBatchReader.from_stream(X)
    if hasattr(X, "collect_batches"):
        empty = X.head(0).collect()
        with _unsupported_types_named(empty):
            empty = empty.to_arrow()
        return pa.RecordBatchReader.from_batches(
            empty.schema,
            (batch for part in X.collect_batches(maintain_order=True) for batch in part.to_arrow().to_batches()),
        )
    return _arrow_table(X)


def _arrow_table(X: Any) -> Any:
    """The table as an Arrow table; None for other objects."""
    if not is_other_table(X):
        return None
    import pyarrow as pa

    if hasattr(X, "__arrow_c_stream__"):
        with _unsupported_types_named(X):
            return pa.RecordBatchReader.from_stream(X).read_all()
    if hasattr(X, "__arrow_c_array__"):
        return pa.Table.from_batches([pa.record_batch(X)])
    import narwhals

    known = narwhals.from_native(X)
    collected = known.collect() if isinstance(known, narwhals.LazyFrame) else known
    with _unsupported_types_named(collected.to_native()):
        return collected.to_arrow()


@contextmanager
def _unsupported_types_named(X: Any) -> Iterator[None]:
    """Turn Arrow's error about an unsupported type into a TypeError with the columns of that type and a remedy."""
    import pyarrow as pa

    try:
        yield
    except pa.ArrowInvalid as error:
        wrong = []
        for name in getattr(X, "columns", ()):
            try:
                pa.RecordBatchReader.from_stream(X[[name]])
            except pa.ArrowInvalid:
                wrong.append(
                    f"column '{name}' holds {X.schema[name]} values" if hasattr(X, "schema") else f"column '{name}'"
                )
            except TypeError:
                # the table does not support the selection of columns
                break
        named = "; ".join(wrong) or "a column is of a type"
        raise TypeError(
            f"{named}, which this pyarrow {pa.__version__} does not have ({error}); cast it to a number of 64 bits, or "
            "to "
            "text where the values are names: X.with_columns(pl.col(name).cast(pl.Int64)) in Polars"
        ) from error


def with_plain_texts(table: Any) -> Any:
    """The Arrow table with every column of texts (also of string views, or dictionaries) as one of large strings."""
    import pyarrow as pa

    check_named_once(table.column_names)
    columns, texts = {}, pa.large_string()
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_coded = pa.types.is_dictionary(column.type)
        values = column.type.value_type if is_coded else column.type
        if any(test(values) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
            # Arrow's `take` does not support views, so that the dictionary is cast first
            chunks = [c.dictionary.cast(texts).take(c.indices) if is_coded else c.cast(texts) for c in column.chunks]
            column = pa.chunked_array(chunks, texts)
        columns[name] = column
    return pa.table(columns)
