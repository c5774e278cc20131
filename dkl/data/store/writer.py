"""DatasetWriter: rows in, a store on disk or behind a URL out, whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

import numpy as np
from scipy import sparse

from dkl.data.checks import as_rows, check_rows, checked_weight
from dkl.data.columns.free_text import stored_arrays
from dkl.data.given import GivenRows, GivenValues
from dkl.data.in_threads import Backlog
from dkl.data.ingest.precision import stored_as
from dkl.data.labels import check_targets, numeric_targets
from dkl.data.pieces import Pieces
from dkl.data.schema import Schema
from dkl.data.store.block_arrays import BlockArrays
from dkl.data.store.blocking import block_rows, sparse_row_bytes
from dkl.data.store.commit import Home, Staging, staged
from dkl.data.store.digests import arrays_digest
from dkl.data.store.growing import WritingThreads
from dkl.data.store.location import Location
from dkl.data.store.manifest import BlockFacts, Manifest, write_arrays
from dkl.data.store.reader import CODE_FORMAT, FIRST_FORMAT, TEXT_FORMAT, TEXTS, OpenStore, all_nodes
from dkl.data.store.sealed import sealed_group
from dkl.process import free_memory, usable_cores
from dkl.protocols.block import Block
from dkl.version import __version__

# Blocks that are being encoded and written may take one part in this many of the free memory.
_FREE_MEMORY_DIVISOR = 8


class DatasetWriter:
    """Writes rows, any number in each call, into a store that becomes visible if the ``with`` block ends without error.

    Parameters
    ----------
    store : path or URL
    schema : Schema
        y in `write` is in the form of blocks: class codes 0 .. K-1, or float64 targets.
    n_rows : int or None
        Number of all rows, if known: blocks then have about equal sizes, and many are written into shards.
    overwrite : bool
        Whether to replace an existing dataset: a local one stays until the new one is complete, one at a URL is deleted
        first.
    storage_options : mapping or None
        For fsspec.
    rows_a_block : int or None
        None follows the rule of `dkl.data.store.blocking`.
    further : mapping or None
        JSON values that are added to the metadata.
    home : Home or None
        The store to which these rows are added as a version; None for a store of their own.
    most_bytes : int or None
        Limit on the bytes of blocks that are encoded and written while further rows are accepted: at least one block,
        at most one for each core. None is an eighth of the free memory.
    finish : callable or None
        Called with the written store, opened, before others can see it: what it adds appears together with the rows.

    Raises
    ------
    FileExistsError
        If something exists that may not be replaced, or another writer was first.
    OSError
        If writing fails; nothing is visible.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from dkl.data.dataset import open_dataset
    >>> schema = Schema(n_columns=2, dtype=np.dtype("float32"), task="regression")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with DatasetWriter(f"{folder}/rows.zarr", schema) as writer:
    ...         writer.write(np.eye(2), np.array([0.5, 1.5]))
    ...     open_dataset(f"{folder}/rows.zarr").n_rows
    2
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        schema: Schema,
        *,
        n_rows: int | None = None,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        rows_a_block: int | None = None,
        further: Mapping[str, Any] | None = None,
        home: Home | None = None,
        most_bytes: int | None = None,
        finish: Callable[[OpenStore], object] | None = None,
    ) -> None:
        self.location = Location.of(store, storage_options)
        self.schema = schema
        self.n_rows = n_rows
        self.rows_written = 0
        self._overwrite = overwrite
        self._further = dict(further or {})
        self._home = home
        # for sparse rows the size of a block depends on the density of the first rows
        dense_rule = None if schema.is_sparse else block_rows(schema.n_columns * schema.dtype.itemsize, n_rows)
        self._rows_a_block = rows_a_block or dense_rule
        self._most_bytes, self._finish = most_bytes, finish
        self._pending: Pieces[Block] = Pieces()
        self._entries = 0
        self._counts: list[BlockFacts] = []
        self._n_blocks = 0
        self._exit = ExitStack()
        self._staging: Staging | None = None

    def __enter__(self) -> Self:
        writing = staged(self.location, "dataset", overwrite=self._overwrite, home=self._home)
        self._staging = self._exit.enter_context(writing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # pushed last and thus called first, so that `staged` cleans up after an error of the commit
        if kind is None:
            self._exit.callback(self._commit)
        self._exit.__exit__(kind, error, trace)

    def write(
        self,
        X: GivenRows,
        y: np.ndarray | None = None,
        weight: np.ndarray | None = None,
        row_id: np.ndarray | None = None,
        columns: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """Append rows.

        Parameters
        ----------
        X : array of shape (n, d) or scipy sparse matrix
        y : ndarray of shape (n,) or (n, t)
            Class codes or targets; None if and only if the schema has no task.
        weight : ndarray of shape (n,)
            None if and only if the schema has no weights.
        row_id : ndarray of shape (n,), int64
            None numbers the rows consecutively.
        columns : mapping of str to ndarray of shape (n,), int64, or None
            The codes of "group" and "time", if the schema has them.

        Raises
        ------
        ValueError
            For NaN, infinity, a code outside 0 .. K-1, or shapes that do not match, with the row's number in the store.
        """
        if self._staging is None:
            raise ValueError("use the writer as a context manager: with DatasetWriter(...) as writer: writer.write(X)")
        block = replace(self._checked(X, y, weight, row_id), columns=self._checked_columns(columns, np.shape(X)[0]))
        if not block.n_rows:
            return
        self.rows_written += block.n_rows
        self._pending.add(block)
        self._entries += getattr(block.X, "nnz", 0)
        self._flush_whole_blocks()

    def _checked(self, X: GivenRows, y: GivenValues, weight: GivenValues, row_id: GivenValues) -> Block:
        """The rows in the form in which they are stored; errors have the row's number in the store."""
        schema, first = self.schema, self.rows_written
        rows = as_rows(X)
        if sparse.issparse(rows) != schema.is_sparse:
            raise TypeError(f"the schema says is_sparse={schema.is_sparse} and the rows are {type(rows).__name__}")
        if rows.shape[1] != schema.n_columns:
            raise ValueError(f"X has {rows.shape[1]} columns; the store has {schema.n_columns}")
        if rows.dtype != schema.dtype:
            # rows that are stored unchanged are checked by the threads that write them
            check_rows(rows, first_row=first, names=schema.column_names)
        n = rows.shape[0]
        for name, given, wanted in (("y", y, schema.task), ("weight", weight, schema.has_weight)):
            if (given is not None) != bool(wanted):
                raise ValueError(f"{name} is {'missing' if given is None else 'given'}; the schema says otherwise")
        ids = np.arange(first, first + n, dtype=np.int64) if row_id is None else np.asarray(row_id, np.int64)
        if ids.shape != (n,):
            raise ValueError(f"row_id has shape {ids.shape}; expected ({n},), one a row of X")
        weights = checked_weight(weight, n, first_row=first)
        rows = stored_as(rows, schema.dtype, first_row=first, names=schema.column_names)
        return Block(0, rows, self._checked_targets(y, n), weights, ids)

    def _checked_columns(self, columns: Mapping[str, np.ndarray] | None, n_rows: int) -> dict[str, np.ndarray]:
        given = {name: np.asarray(values, np.int64) for name, values in (columns or {}).items()}
        wrong = {name: values.shape for name, values in given.items() if values.shape != (n_rows,)}
        if wrong or given.keys() != self.schema.row_columns.keys():
            raise ValueError(
                f"the row columns are {sorted(given)} of shapes {wrong or (n_rows,)}; the schema has "
                f"{sorted(self.schema.row_columns)}, one value a row each"
            )
        return given

    def _checked_targets(self, y: GivenValues, n_rows: int) -> np.ndarray | None:
        """Class codes as int32, which readers convert to int64; targets of a regression as float64."""
        if y is None:
            return None
        schema, first = self.schema, self.rows_written
        values = np.asarray(y)
        if values.shape != schema.y_shape(n_rows):
            raise ValueError(f"y has shape {values.shape}; expected {schema.y_shape(n_rows)}")
        if schema.n_classes is None:
            check_targets(values, first_row=first)
            return numeric_targets(values, first_row=first)
        if values.dtype.kind not in "iu" or values.min(initial=0) < 0 or values.max(initial=0) >= schema.n_classes:
            wrong = np.flatnonzero((values < 0) | (values >= schema.n_classes))
            what = f"y[{first + int(wrong[0])}] is {values[wrong[0]]}" if len(wrong) else f"y has dtype {values.dtype}"
            raise ValueError(f"{what}; expected class codes, integers from 0 to {schema.n_classes - 1}")
        return values.astype(np.int32)

    def _flush_whole_blocks(self, *, all_of_it: bool = False) -> None:
        """Write all complete blocks in the buffer; with `all_of_it` also the remaining rows, as the last block."""
        if self._rows_a_block is None:
            rows = block_rows(sparse_row_bytes(self._entries, self._pending.n_rows, self.schema.dtype), self.n_rows)
            if all_of_it or self._pending.n_rows >= rows:
                self._rows_a_block = rows
        while self._rows_a_block is not None and self._pending.n_rows >= self._rows_a_block:
            self._write_block(self._pending.taken(self._rows_a_block))
        if all_of_it and self._pending.n_rows:
            self._write_block(self._pending.taken(self._pending.n_rows))

    def _write_block(self, block: Block) -> None:
        if not self._n_blocks:
            self._begun = self._begin(block)
        arrays, counted = self._begun
        first_row = self.rows_written - self._pending.n_rows - block.n_rows
        counted.add(self._counted, self._n_blocks, first_row, block, arrays.append(block))
        self._n_blocks += 1

    def _counted(self, index: int, first_row: int, block: Block, parts: dict[str, np.ndarray]) -> BlockFacts:
        """The manifest's entries for a block, after a check of its values."""
        check_rows(block.X, first_row=first_row, names=self.schema.column_names)
        return BlockFacts.of(index, block, parts, self.schema.n_classes)

    def _begin(self, block: Block) -> tuple[BlockArrays, Backlog]:
        """Create the arrays for the first block, and the queue of threads that check and count blocks."""
        staging = self._writing
        staging.check_owner()
        most = free_memory() // _FREE_MEMORY_DIVISOR if self._most_bytes is None else self._most_bytes
        at_once = int(np.clip(most // (2 * block.nbytes), 1, usable_cores()))
        threads = self._exit.enter_context(WritingThreads(at_once, staging.check_owner))
        # if there are fewer rows than a block, chunks are as large as these rows
        self._rows_a_block = min(self._rows_a_block or block.n_rows, block.n_rows)
        arrays = BlockArrays(staging.group, self.schema, threads, self._rows_a_block, n_rows=self.n_rows)
        return arrays, Backlog(threads.pool, at_once, self._counts.append)

    @property
    def _writing(self) -> Staging:
        if self._staging is None:
            raise ValueError("the writer is not open")
        return self._staging

    def _commit(self) -> None:
        if not self.rows_written:
            raise ValueError(f"no row was given for {self.location.place}; a dataset has at least one")
        if self.n_rows is not None and self.n_rows != self.rows_written:
            raise ValueError(
                f"{self.rows_written} rows were written to {self.location.place}; {self.n_rows} were announced"
            )
        self._flush_whole_blocks(all_of_it=True)
        arrays, counted = self._begun
        arrays.close(self.rows_written)
        counted.finish()
        manifest = Manifest.of_blocks(self._counts, is_sparse=self.schema.is_sparse)
        if not manifest.counts.n_rows:
            raise ValueError("all weights are 0; at least one row must count")
        manifest.write(self._writing.group)
        schema, texts = self.schema, dict[str, str]()
        directions = getattr(schema.encoding, "directions", ())
        # versions of a store use the directions of its first one
        if directions and self._home is None:
            texts_of = stored_arrays(directions)
            write_arrays(self._writing.group.create_group(TEXTS), texts_of)
            texts["texts"] = arrays_digest(texts_of)
        # without groups and times these keys are left out, so that the marker has those that older releases write
        row_columns: dict[str, Any] = {}
        if schema.row_columns:
            named = {role: {"name": known.name, "kind": known.kind} for role, known in schema.row_columns.items()}
            row_columns = {"row_columns": named, "held_by": schema.held_by}
        facts = {
            "kind": "dataset",
            "format": TEXT_FORMAT if texts else CODE_FORMAT if schema.has_codes else FIRST_FORMAT,
            "written_by": __version__,
            "schema": schema.to_json(),
            "n_rows": self.rows_written,
            "rows_a_block": self._rows_a_block,
            "n_blocks": len(manifest.stored_rows),
            "arrays": arrays.facts(),
            "manifest": manifest.digest,
            "stored_nbytes": self._writing.location.stored_nbytes(),
            **row_columns,
            **texts,
            **self._further,
            # the digest of the facts includes the token, on which readers rely
            "token": self._writing.token,
        }
        nodes = all_nodes(schema, manifest, bool(texts))
        marker = sealed_group(facts, self._writing.location, nodes)
        if self._finish is not None:
            self._finish(OpenStore(self._writing.location, marker))
        self._writing.commit(marker)
