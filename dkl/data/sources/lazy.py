"""DaskSource: rows in Dask arrays, computed by the tasks of a pass; and the rows of any source as Dask arrays."""

from __future__ import annotations

import hashlib
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import dask
import dask.array as da
import numpy as np
import zarr
from dask import delayed
from dask.core import istask
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.utils import ensure_dict
from scipy import sparse

from dkl.data.checks import (
    as_rows,
    check_total_weight,
    check_two_dimensional,
    checked_weight,
    lacks_values,
    no_rows,
    stored_dtype,
)
from dkl.data.counts import RowCounts
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import (
    TaskChoice,
    as_targets,
    check_target_shape,
    counted_labels,
    joined_classes,
    sorted_classes,
    task_without_values,
)
from dkl.data.schema import Schema, Task
from dkl.data.sources.rows import BaseRows, RowSource, TicketReader, checked_block, drop_weightless, schema_of
from dkl.data.sources.tasks import are_separate, culled, one_task
from dkl.data.store.blocking import block_bounds, block_rows, row_bytes
from dkl.data.store.foreign import SHARED
from dkl.errors import located
from dkl.protocols.arrays import Rows, stacked
from dkl.protocols.block import Block

# Encodes raw rows, given the number of the first one and their weights (None without any).
Finish: TypeAlias = Callable[[Any, int, np.ndarray | None], Rows]
# Number of blocks whose targets and weights are computed at a time.
_AT_ONCE = 64


def is_lazy(value: object) -> bool:
    """Whether `value` is a Dask array, series or delayed data frame."""
    return dask.is_dask_collection(value)


def lazy_rows(X: GivenRows) -> da.Array:
    """X as a Dask array with known chunk sizes, which are computed if necessary.

    Raises
    ------
    ValueError
        If X is not two-dimensional or has no rows.
    """
    # rows in memory become one chunk, which is cut like the other arrays
    X = _known(X, "X") if is_lazy(X) else da.from_array(as_rows(X), chunks=-1, asarray=False)
    check_two_dimensional(X)
    if X.shape[0] == 0:
        raise ValueError(no_rows(X.shape))
    stored_dtype(X.dtype)
    return X


def zarr_behind(values: Any) -> Any:
    """The zarr array behind a Dask array that only reads it; any other value unchanged."""
    if not isinstance(values, da.Array):
        return values
    layers = values.dask.layers
    # `dask.array.from_zarr` and `from_array` make a layer with the array, and one of the chunks cut from it
    if len(layers) != 2 or values.name not in layers or f"original-{values.name}" not in layers:
        return values
    (held,) = layers[f"original-{values.name}"].values()
    original = getattr(held, "value", held)
    whole = isinstance(original, zarr.Array) and original.shape == values.shape and original.dtype == values.dtype
    return original if whole else values


def with_whole_rows(X: da.Array) -> da.Array:
    """The array with all columns in one chunk, so that each chunk has whole rows."""
    return X.rechunk({1: -1}) if X.numblocks[1] > 1 else X


def as_dask_array(values: GivenValues, name: str) -> da.Array:
    """A Dask collection as an array, whose chunks may have unknown sizes.

    Raises
    ------
    TypeError
        For a Bag or a Delayed, which have no columns.
    """
    if isinstance(values, da.Array):
        return values
    if not hasattr(type(values), "to_dask_array"):
        raise TypeError(
            f"{name} is a Dask {type(values).__name__}; expected a Dask array or data frame, which "
            "dask.array.from_delayed and Bag.to_dataframe make"
        )
    with warnings.catch_warnings():
        # Dask warns that texts and other types of pandas become objects, which `as_targets` reads as such
        warnings.filterwarnings("ignore", "Dask currently has limited support", UserWarning)
        return values.to_dask_array()


def _known(values: GivenValues, name: str) -> da.Array:
    """A Dask array or frame as an array with known chunk sizes."""
    values = as_dask_array(values, name)
    if any(np.isnan(n) for sizes in values.chunks for n in sizes):
        values = values.compute_chunk_sizes()
    return values


def targets_in_chunks(y: GivenValues, chunks: tuple[int, ...], weight: da.Array | None = None) -> da.Array | None:
    """Targets as a Dask array of (n,) or (n, t) in the given chunks of rows; values in memory are checked now.

    Rows of weight 0 may have any target. If targets are in memory, the weights are computed to find these rows.
    """
    return cut_rows(_lazy_targets(y, sum(chunks), weight), chunks)


def weights_in_chunks(weight: GivenValues, chunks: tuple[int, ...]) -> da.Array | None:
    """Weights as a Dask array of (n,) in the given chunks of rows; values in memory are checked at once."""
    return cut_rows(_lazy_weights(weight, sum(chunks)), chunks)


def _lazy_targets(y: GivenValues, n_rows: int, weight: da.Array | None = None) -> da.Array | None:
    """Targets as a Dask array of (n,) or (n, t); weights are computed if targets are in memory."""
    if y is None:
        return None
    if not is_lazy(y):
        weights = None if weight is None else checked_weight(weight.compute(), n_rows)
        y = da.from_array(as_targets(y, n_rows, weight=weights), chunks=-1)
    y = _known(y, "y")
    check_target_shape(y.shape, n_rows)
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def _lazy_weights(weight: GivenValues, n_rows: int) -> da.Array | None:
    """Weights as a Dask array of (n,)."""
    if weight is None:
        return None
    if not is_lazy(weight):
        weight = da.from_array(checked_weight(weight, n_rows), chunks=-1)
    weight = _known(weight, "sample_weight")
    if weight.shape not in ((n_rows,), (n_rows, 1)):
        raise ValueError(f"sample_weight has shape {weight.shape}; expected ({n_rows},), one weight a row of X")
    return weight[:, 0] if weight.ndim == 2 else weight


def cut_rows(values: da.Array | None, chunks: tuple[int, ...]) -> da.Array | None:
    """An array in these chunks of rows, with all columns in each chunk; None for None."""
    return None if values is None else values.rechunk((chunks, *((n,) for n in values.shape[1:])))


def chunks_sharing_tasks(*arrays: da.Array | None) -> list[list[Delayed] | None]:
    """The chunks of each array; tasks that several arrays share are computed once."""
    # fused chains of tasks would each have a copy of their first task
    with dask.config.set({"optimization.fuse.active": False}):
        optimized = iter(dask.optimize(*(array for array in arrays if array is not None)))
    return [None if array is None else list(next(optimized).to_delayed(optimize_graph=False).flat) for array in arrays]


def fused_chunks(array: da.Array | None) -> list[Delayed] | None:
    """The chunks of one array, with fused tasks: a slice of a larger stored chunk may be read alone.

    Tasks that are named as those of the array are always the same: a cluster may deadlock if it is given two different
    tasks under one name.
    """
    return None if array is None else list(array.to_delayed().flat)


@dataclass(frozen=True, eq=False)
class Part:
    """Rows `start` to `stop` of a chunk of `n_rows`, which a process computes once for the blocks cut from it.

    Parameters
    ----------
    array : str
        Name of the chunk's array.
    number : int
        Number of the chunk.
    chunk : Delayed
    n_rows, start, stop : int
    first_row : int
        Position of row `start` of the chunk among all rows of the array, from 0.
    """

    array: str
    number: int
    chunk: Delayed
    n_rows: int
    start: int
    stop: int
    first_row: int

    def rows(self, finish: Finish | None = None, weight: np.ndarray | None = None) -> Rows:
        """The rows in memory of their own: a view would keep the whole chunk, also while the next one is computed."""
        key = (self.array, "chunk", self.number)
        rows = SHARED.get(key, self.start, self.stop, self.n_rows, self._computed)
        if finish is not None:
            return finish(rows, self.first_row, weight)
        return rows if self.stop - self.start == self.n_rows else rows.copy()

    def _computed(self) -> Any:
        return dask.get(self.chunk.__dask_graph__(), self.chunk.key)


class Cut:
    """Chunks of rows from which tasks cut blocks.

    Parameters
    ----------
    name : str
        Differs between arrays.
    chunks : sequence of Delayed
        Each with only its own tasks.
    lengths : sequence of int
        Rows of each chunk.
    finish : callable or None
        Encodes raw rows: called with rows, the number of the first one, and their weights (None without any).
    nbytes : int
        Peak bytes while a chunk is computed, and rows are cut from it.
    left_nbytes : int
        Bytes of a chunk that was computed.
    """

    def __init__(
        self,
        name: str,
        chunks: Sequence[Delayed],
        lengths: Sequence[int],
        finish: Finish | None = None,
        nbytes: int = 0,
        left_nbytes: int = 0,
    ) -> None:
        self.name, self.chunks, self.lengths = name, chunks, lengths
        self.nbytes, self.left_nbytes = nbytes, left_nbytes
        self.finish = finish
        self._starts = np.cumsum([0, *lengths]).tolist()

    @classmethod
    def of_array(cls, array: da.Array) -> Cut:
        """The chunks of a Dask array with whole rows in each."""
        graph = ensure_dict(array.dask)
        chunks = [culled(chunk, graph) for chunk in array.to_delayed(optimize_graph=False).ravel()]
        return cls(array.name, chunks, array.chunks[0])

    def parts(self, start: int, stop: int) -> list[Part]:
        """The parts of rows `start` to `stop`, in order."""
        first, last = np.searchsorted(self._starts, start, "right") - 1, np.searchsorted(self._starts, stop)
        found = []
        for number in range(int(first), int(last)):
            n_rows, began = self.lengths[number], self._starts[number]
            if n_rows:
                within = max(start - began, 0), min(stop - began, n_rows)
                found.append(Part(self.name, number, self.chunks[number], n_rows, *within, began + within[0]))
        return found


@dataclass(frozen=True, eq=False)
class _CutBlock:
    """The parts of the rows, targets and weights of a block, as the value of a task without dependencies.

    Its reader computes them: what encodes rows, megabytes of words, is sent once a pass with the reader, and not with
    each block.
    """

    make: MakeBlock
    index: int
    first_row: int
    parts: tuple[Any, ...]
    first_id: int | None

    def __call__(self) -> _CutBlock:
        return self

    def block(self, finish: Finish | None) -> Block:
        """The block, whose rows `finish` encodes."""
        of_rows, *beside = self.parts
        y, weight = (None if parts is None else stacked([part.rows() for part in parts]) for parts in beside)
        ends = np.cumsum([part.stop - part.start for part in of_rows])[:-1]
        weights = [None] * len(of_rows) if weight is None else np.split(weight, ends)
        X = stacked([part.rows(finish, own) for part, own in zip(of_rows, weights, strict=True)])
        return self.make(self.index, self.first_row, X, y, weight, self.first_id)


@dataclass(frozen=True, eq=False)
class _CutReader(TicketReader):
    """Computes blocks from the chunks that hold their rows; raw rows are encoded by `finish`, None for encoded ones."""

    finish: Finish | None

    def block(self, ticket: Any) -> Block:
        return ticket.block(self.finish) if isinstance(ticket, _CutBlock) else super().block(ticket)


@dataclass(frozen=True, eq=False)
class MakeBlock:
    """Makes a checked Block from the computed chunks of one block."""

    classes: np.ndarray | None
    n_columns: int

    def __call__(
        self,
        index: int,
        first_row: int,
        X: Rows,
        y: np.ndarray | None,
        weight: np.ndarray | None,
        first_id: int | None = None,
    ) -> Block:
        """The block; rows that count are numbered from `first_id`, or all rows from `first_row`."""
        with located(f"block {index} of a Dask array"):
            rows = as_rows(X)
            # targets and weights alone have no column
            if rows.shape[1] not in (0, self.n_columns):
                raise ValueError(
                    f"computed rows have {rows.shape[1]} columns, and the array announced {self.n_columns}; correct "
                    "the function that makes its chunks, or its chunks= and meta="
                )
            block = checked_block(index, first_row, rows, y, weight, self.classes)
            if first_id is None or block.weight is None:
                return block
            return replace(block, row_id=first_id + np.cumsum(block.weight > 0.0) - 1)


class DaskSource(BaseRows):
    """Rows of Dask arrays; see `dkl.protocols.source.BlockSource` for the attributes.

    Parameters
    ----------
    X : dask array of shape (n, d), with known chunks
    y, weight : dask arrays of n rows, or None
    classes : ndarray of shape (K,) or None
    repeats : bool
        Whether rows of weight 0 are left out before rows are numbered.
    chunks : tuple of int or None
        Rows of each block. None uses blocks of dkl's own size, for any chunks of X, since sums and memory depend on the
        cut.
    raw : Cut or None
        The partitions of raw rows that X is encoded from. If each of them can be computed on its own, tasks compute
        whole partitions, and encode the rows of their blocks.
    """

    stored_nbytes = 0

    def __init__(
        self,
        X: da.Array,
        y: da.Array | None,
        weight: da.Array | None,
        classes: np.ndarray | None,
        *,
        repeats: bool = False,
        chunks: tuple[int, ...] | None = None,
        raw: Cut | None = None,
    ) -> None:
        self._given, self._repeats, self._as_chunked = (X, y, weight), repeats, chunks is not None
        self._raw = raw
        cut: Any = [cut_rows(array, chunks or own_chunks(X)) for array in self._given]
        self._X, self._y, self._weight = cut
        self._make = MakeBlock(classes, X.shape[1])
        self._n_classes = None if classes is None else len(classes)
        self.n_blocks = len(self.rows_in_blocks)
        self.rows_a_block = max(self.rows_in_blocks)
        self.n_columns = X.shape[1]
        self.dtype = stored_dtype(X.dtype)
        self.is_sparse = sparse.issparse(X._meta)
        self.has_y, self.has_weight = y is not None, weight is not None
        self.place = "a Dask array"
        self._cuts = None if raw is None else self._cuts_of_tasks(raw)
        if self._cuts is not None:
            # one task computes a partition for all blocks that are cut from it
            self.blocks_sharing_chunks = 1 << (-(-max(X.chunks[0]) // self.rows_a_block) - 1).bit_length()

    def _cuts_of_tasks(self, raw: Cut) -> list[Cut | None] | None:
        """The partitions of raw rows, and the chunks of y and the weights if tasks can compute them; else None."""
        cuts = [None if array is None else Cut.of_array(array) for array in self._given[1:]]
        return [raw, *cuts] if all(cut is None or are_separate(cut.chunks) for cut in cuts) else None

    def reader(self) -> TicketReader:
        return TicketReader() if self._cuts is None or self._raw is None else _CutReader(self._raw.finish)

    @property
    def rows_in_blocks(self) -> tuple[int, ...]:
        """The number of rows of each block, including rows of weight 0."""
        return self._X.chunks[0]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.rows_in_blocks)])

    @property
    def block_rows(self) -> np.ndarray:
        return self.counts.rows if self.has_weight else np.array(self.rows_in_blocks, np.int64)

    @cached_property
    def counts(self) -> RowCounts:
        return RowCounts.of_blocks(self.blocks_without_x(), self._n_classes)

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block; for sparse rows, whose density is not known, as if a twentieth of the values were set."""
        width = self.n_columns * self.dtype.itemsize
        # a twentieth of the values, each with a column number: a tenth of the dense bytes
        width = max(width // 10, 16) if self.is_sparse else width
        return max(self.rows_in_blocks) * (width + 8 * (1 + self.has_y + self.has_weight))

    @cached_property
    def read_nbytes(self) -> int:
        """Bytes of the chunks that a block is cut from, each of which is computed as a whole."""
        # parts of a block are joined while the partition is in memory
        raw = 0 if self._raw is None else max(self._raw.nbytes, self._raw.left_nbytes + self.block_nbytes)
        return raw if self._cuts is not None else raw + self._chunk_nbytes

    @property
    def left_nbytes(self) -> int:
        """Bytes of the partition from which rows of other blocks are cut, too."""
        return self.read_nbytes if self._cuts is None or self._raw is None else self._raw.left_nbytes

    @property
    def _chunk_nbytes(self) -> int:
        """Bytes of the encoded chunks that a block is cut from."""
        X = self._given[0]
        given = np.cumsum([0, *X.chunks[0]])
        first = np.searchsorted(given, self._starts[:-1], "right") - 1
        last = np.searchsorted(given, self._starts[1:])
        rows = given[last] - given[first]
        largest = int(np.argmax(rows))
        # rows in memory are cut without a copy, and of a chunk that is read where it is used only a part may be read
        cut: Any = self._chunks[largest][0]
        node = cut.__dask_graph__().get((X.name, int(first[largest]), 0))
        is_whole = istask(node) or getattr(node, "dependencies", ())
        n_rows = int(rows[largest]) if is_whole else max(self.rows_in_blocks)
        return round(n_rows * self.block_nbytes / max(self.rows_in_blocks))

    @cached_property
    def fingerprint(self) -> str:
        # Dask names an array by a hash of its computation; hashing the rows themselves would cost a pass
        names = [None if a is None else (a.name, a.chunks) for a in (self._X, self._y, self._weight)]
        return hashlib.sha256(repr((names, self._make.classes)).encode()).hexdigest()

    @cached_property
    def _chunks(self) -> list[tuple[Delayed, Delayed | None, Delayed | None]]:
        """The chunks of X, y and the weights of each block."""
        arrays = (self._X, self._y, self._weight)
        chunks = chunks_sharing_tasks(*arrays) if self._as_chunked else [fused_chunks(array) for array in arrays]
        columns: list[list[Any]] = [column or [None] * self.n_blocks for column in chunks]
        return list(zip(*columns, strict=True))

    def ticket(self, index: int) -> Delayed:
        """A Delayed of the rows of block `index`, including rows of weight 0."""
        first_id = int(self._first_ids[index]) if self._repeats else None
        if self._cuts is not None:
            start = int(self._starts[index])
            stop = start + self.rows_in_blocks[index]
            parts = tuple(None if cut is None else cut.parts(start, stop) for cut in self._cuts)
            return one_task("dkl-block", _CutBlock(self._make, index, start, parts, first_id))
        return delayed(self._make, pure=False)(index, int(self._starts[index]), *self._chunks[index], first_id)

    @cached_property
    def _first_ids(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self.block_rows)])

    def blocks_as_chunked(self, most_bytes: int) -> DaskSource:
        """The same rows in blocks that are the given chunks of X, each of which is then computed once.

        Small chunks are joined to about a block. If a chunk holds more than `most_bytes`, blocks do not change, as Dask
        may be able to compute a part of such a chunk.
        """
        given = self._given[0].chunks[0]
        joined = [0]
        for n_rows in given:
            if joined[-1] + n_rows > max(self.rows_in_blocks) and joined[-1]:
                joined.append(0)
            joined[-1] += n_rows
        if max(joined) * (self.block_nbytes / max(self.rows_in_blocks)) > most_bytes:
            return self
        given = (*self._given, self._make.classes)
        return DaskSource(*given, repeats=self._repeats, chunks=tuple(joined), raw=self._raw)

    def blocks_without_x(self, extra: tuple[str, ...] = ()) -> Iterator[Block]:
        beside, classes, first_id = delayed(checked_block, pure=False), self._make.classes, 0
        # many at once, since these graphs are small; not all, as there may be a million
        for start in range(0, self.n_blocks, _AT_ONCE):
            indices = range(start, min(start + _AT_ONCE, self.n_blocks))
            tasks = [
                beside(i, int(self._starts[i]), np.empty((self.rows_in_blocks[i], 0)), *self._chunks[i][1:], classes)
                for i in indices
            ]
            for block in map(drop_weightless, dask.compute(*tasks)):
                row_id = first_id + np.arange(block.n_rows) if self._repeats else block.row_id
                yield replace(block, row_id=row_id)
                first_id += block.n_rows


def own_chunks(X: da.Array) -> tuple[int, ...]:
    """Rows of each block of a Dask array."""
    bounds = block_bounds(X.shape[0], block_rows(row_bytes(X), X.shape[0]))
    return tuple(int(n) for n in np.diff(bounds))


def lazy_source(
    X: GivenRows,
    y: GivenValues,
    weight: GivenValues,
    *,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    repeats: bool = False,
    finds_missing: bool = False,
    raw: Cut | None = None,
) -> tuple[DaskSource, Schema, bool]:
    """The blocks of Dask arrays, their schema, and whether a chunk of X has missing values.

    y and the weights are computed once; X only with `finds_missing`, in the same pass, so that shared tasks are
    computed once. With `repeats` rows are numbered without those of weight 0, so that weights count like repeated rows.
    """
    is_one_chunk = not is_lazy(X)
    X = lazy_rows(X)
    chunks = own_chunks(X) if is_one_chunk else X.chunks[0]
    weight = _lazy_weights(weight, X.shape[0])
    y = _lazy_targets(y, X.shape[0], weight)
    beside = cut_rows(y, chunks), cut_rows(weight, chunks)
    look = []
    if not finds_missing:
        parts = [None, *map(fused_chunks, beside)]
    else:
        parts = chunks_sharing_tasks(X, *beside)
        # rows may also be cut by columns
        pieces, weights = parts[0] or [], parts[2] or [None] * len(chunks)  # type: ignore[list-item]
        places = np.repeat(np.arange(len(chunks)), X.numblocks[1])
        look = [
            delayed(_counted_rows_lack_values, pure=False)(piece, weights[at])
            for piece, at in zip(pieces, places, strict=True)
        ]
    decided, labels, found = lazy_classes(y, parts[1], parts[2], chunks, task, classes, look)
    source = DaskSource(X, y, weight, labels, repeats=repeats, raw=raw)
    if weight is not None:
        check_total_weight(source.counts.weights)
    return source, schema_of(source, decided, labels, () if y is None else y.shape), any(found)


def _counted_rows_lack_values(X: np.ndarray, weight: np.ndarray | None) -> bool:
    """`lacks_values` of the rows of a chunk whose weight is not 0; invalid weights are reported elsewhere."""
    return lacks_values(X if weight is None else X[np.ravel(weight) != 0.0])


def lazy_classes(
    y: da.Array | None,
    targets: list[Delayed] | None,
    weights: list[Delayed] | None,
    chunks: tuple[int, ...],
    task: TaskChoice,
    classes: GivenValues,
    beside: list[Delayed],
) -> tuple[Task | None, np.ndarray | None, list[Any]]:
    """The task of a Dask array of targets, its sorted classes, and the values of `beside`, computed in one pass.

    `targets` and `weights` hold one chunk each for every entry of `chunks`, the numbers of their rows.
    """
    looks: list[Delayed] = []
    is_open = y is not None and task_without_values(y.shape, task, classes) != "regression"
    if targets is not None and is_open and classes is None:
        starts = np.cumsum([0, *chunks[:-1]]).tolist()
        look = delayed(counted_labels, pure=False)
        beside_them: list[Any] = weights or [None] * len(chunks)
        parts = zip(targets, beside_them, chunks, starts, strict=True)
        looks = [look(y, weight, task, n_rows, first_row=first) for y, weight, n_rows, first in parts]
    labels, found = dask.compute(looks, beside)
    if y is None:
        return None, None, found
    if not is_open or any(of_chunk is None for of_chunk in labels):
        return "regression", None, found
    return (
        "classification",
        joined_classes(of_chunk for of_chunk, *_ in labels) if classes is None else sorted_classes(classes),
        found,
    )


def lazy_x(source: RowSource) -> da.Array:
    """All rows, (n_rows, d), as a Dask array with a chunk of NumPy or csr_array for each block."""
    # Dask needs a chunk's type before it reads one: an array of the same type without rows
    empty = np.empty((0, source.n_columns), source.dtype)
    return lazy_part(source, "X", sparse.csr_array(empty) if source.is_sparse else empty)


def lazy_part(source: RowSource, part: str, meta: Any, *, classes: np.ndarray | None = None) -> da.Array:
    """One part of all rows as a Dask array with a chunk for each block; nothing is read before it is computed.

    Parameters
    ----------
    source : RowSource
    part : {"X", "y", "weight", "row_id"}
    meta : ndarray or csr_array of shape (0, ...)
        An empty chunk, for its type.
    classes : ndarray of shape (K,) or None
        Returns y as these labels instead of codes.
    """
    name = f"dkl-{part}-{uuid.uuid4().hex}"
    reader, tail = f"{name}-reader", (0,) * (meta.ndim - 1)
    # one node holds the reader for all chunks; each chunk has its own node, so that Dask reads only what is needed
    graph: dict[Any, Any] = {reader: _Constant(source.reader())}
    # Dask arrays may have chunks without rows, but many functions fail for them
    filled = np.flatnonzero(source.block_rows)
    tickets = [source.ticket(int(index)) for index in filled]
    for position, ticket in enumerate(tickets):
        # the rows of a Dask source are nodes of another graph, to which this one refers
        handed = ticket.key if isinstance(ticket, Delayed) else _Constant(ticket)
        graph[(name, position, *tail)] = (_read_part, reader, handed, part, _Constant(classes))
    if not tickets:
        graph[(name, 0, *tail)] = (_plain, _Constant(meta))
    chunks = (tuple(int(n) for n in source.block_rows[filled]) or (0,), *((n,) for n in meta.shape[1:]))
    dependencies: Any = [ticket for ticket in tickets if isinstance(ticket, Delayed)]
    return da.Array(HighLevelGraph.from_collections(name, graph, dependencies), name, chunks, meta=meta)


class _Constant:
    """A value that Dask must pass on without looking for keys and tasks in it."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, _Constant) else value


def _read_part(reader: Any, ticket: Any, part: str, classes: _Constant) -> Any:
    """One part of a block's rows; with classes, codes are replaced by labels."""
    block = _plain(reader).load(_plain(ticket), (part,))
    values = block.weights if part == "weight" else getattr(block, part)
    return values if classes.value is None else classes.value[values]
