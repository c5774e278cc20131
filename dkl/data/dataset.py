"""Dataset: rows with a target and weights, in a store, in memory or in a Dask graph, named splits, a description."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import zarr

from dkl.data.checks import whole_number
from dkl.data.counts import warn_if_unmixed
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import TaskChoice
from dkl.data.other_task import with_task
from dkl.data.schema import Schema, Task
from dkl.data.sources.in_place import InPlaceSource, open_in_place
from dkl.data.sources.lazy import lazy_part, lazy_x, zarr_behind
from dkl.data.sources.rows import RowSource, schema_of
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.splits import SplitSet, are_shares, assign, split_rule
from dkl.data.store.changes import StoredVersion, append_rows, drop_rows, encoded_like, joined_splits
from dkl.data.store.location import Location
from dkl.data.store.version_files import open_version
from dkl.data.together.choosing import with_held_by
from dkl.data.together.rows import GroupsAndTimes
from dkl.data.together.splitting import split_rule_by_column
from dkl.data.verification import faults
from dkl.data.view import Thinned, View
from dkl.errors import warn_user
from dkl.events import Subscriber, ignore
from dkl.plain_text import html_table, in_columns, plain_text, value_text


class Dataset:
    """Rows in blocks, with their metadata.

    Created by `dkl.create_dataset`, `dkl.open_dataset`, `dkl.ingest` and `dkl.from_zarr`, and never changed: `split`,
    `thin` and ``dataset["train"]`` return new datasets that share the rows.

    Parameters
    ----------
    source : RowSource
        The blocks, which passes read.
    schema : Schema
    splits : mapping of str to SplitSet or None
        Named sets of splits.
    store : str or None
        The path or URL of the store with the rows; None for rows elsewhere.
    name : str
        Name of the view, such as ``"train"``; empty for all rows.

    Examples
    --------
    >>> import numpy as np
    >>> from dkl.data.coerce import as_dataset
    >>> ds = as_dataset(np.arange(12.0).reshape(6, 2), np.array(["a", "b"] * 3))
    >>> ds.task, ds.n_rows, ds.classes.tolist(), ds.class_weights.tolist()
    ('classification', 6, ['a', 'b'], [3.0, 3.0])
    """

    def __init__(
        self,
        source: RowSource,
        schema: Schema,
        *,
        splits: Mapping[str, SplitSet] | None = None,
        store: str | None = None,
        name: str = "",
    ) -> None:
        self.source = source
        self.schema = schema
        # a copy, as the caller may change the mapping, and a dataset never changes
        self.split_sets = dict(splits or {})
        self.store = store
        self.name = name

    @property
    def task(self) -> Task | None:
        """The kind of y: "classification", "regression", or None without a target."""
        return self.schema.task

    @property
    def classes(self) -> np.ndarray | None:
        """The sorted labels, (K,); None without classes."""
        return self.schema.classes

    @property
    def n_rows(self) -> int:
        """Number of rows with a weight above 0."""
        return int(self.source.block_rows.sum())

    @property
    def n_columns(self) -> int:
        """d, the number of columns of X."""
        return self.source.n_columns

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns of X."""
        return self.n_rows, self.n_columns

    @property
    def version(self) -> int:
        """The number of appends to, and drops from, the store before this dataset was opened."""
        return self.source.version

    @property
    def total_weight(self) -> float:
        """The sum of the weights of the rows; `n_rows` without weights."""
        # without weights this reads nothing
        return float(self.source.counts.weights.sum()) if self.source.has_weight else float(self.n_rows)

    @property
    def class_weights(self) -> np.ndarray | None:
        """The total weight of each class in this view, (K,) float64; None without classes."""
        counts = self.source.counts.class_weights
        return None if counts is None else counts.sum(axis=0)

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns of X; None if they have none."""
        return self.schema.column_names

    @property
    def encoding(self) -> Any:
        """The `TableEncoding` from raw table columns to X, or None."""
        return self.schema.encoding

    @cached_property
    def passthrough(self) -> np.ndarray:
        """Whether scalers leave each column unchanged (one-hot columns, flags): (d,) bool."""
        given = self.schema.passthrough
        return np.zeros(self.n_columns, bool) if given is None else given

    @property
    def splits(self) -> tuple[str, ...]:
        """The names for ``dataset[name]``."""
        return tuple(name for split in self.split_sets.values() for name in split.names)

    @property
    def fingerprint(self) -> str:
        """A hash that changes whenever a value, a label, the order or the selection of the rows changes."""
        classes = None if self.classes is None else self.classes.tolist()
        return hashlib.sha256(f"{self.source.fingerprint} {self.task} {classes}".encode()).hexdigest()

    @property
    def X(self) -> da.Array:
        """All rows, (n_rows, d), as a lazy Dask array with a chunk for each block, of NumPy or csr_array."""
        return lazy_x(self.source)

    @property
    def y(self) -> da.Array | None:
        """All targets as a lazy array: labels (n_rows,), numbers (n_rows,) or (n_rows, n_targets); None without any."""
        if self.task is None:
            return None
        # blocks hold the positions of labels in `classes`; users get the labels themselves
        dtype = np.dtype(np.float64) if self.classes is None else self.classes.dtype
        return lazy_part(self.source, "y", np.empty(self.schema.y_shape(0), dtype), classes=self.classes)

    @property
    def sample_weight(self) -> da.Array | None:
        """All weights, (n_rows,) float64, as a lazy array; None if every row counts once."""
        return lazy_part(self.source, "weight", np.empty(0)) if self.source.has_weight else None

    @property
    def row_id(self) -> da.Array:
        """A number for each row, (n_rows,) int64, as a lazy array: its position in the rows as first given."""
        return lazy_part(self.source, "row_id", np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> Dataset:
        for split in self.split_sets.values():
            if name in split.names:
                source = split.select(self.source, name)
                # a view of a view keeps both names: 'train.fold 1'
                full = f"{self.name}.{name}" if self.name else name
                return Dataset(source, self.schema, store=self.store, name=full)
        known = f"it has {', '.join(map(repr, self.splits))}" if self.splits else "it has none: ds = ds.split({...})"
        raise KeyError(f"{self._called} has no split {name!r}; {known}")

    def split(
        self,
        given: Any = None,
        *,
        by_group: Any = None,
        by_time: Any = None,
        seed: int = 0,
        stratify: bool = True,
        name: str = "split",
        overwrite: bool = False,
        write: bool | None = None,
    ) -> Dataset:
        """Name disjoint subsets of the rows; no row is copied.

        Parameters
        ----------
        given : mapping or array
            ``{"train": 0.8, "test": 0.2}``: fractions, which sum to at most 1, for random splits. ``{"train": mask,
            ...}``: boolean masks or row numbers. An array with a value for each row: rows with the same value are the
            split of that name. By group and by time only fractions are allowed, and None is ``{"train": 0.8, "test":
            0.2}``.
        by_group : str, array of shape (n_rows,), bool or None
            The group column of the dataset, or a value for each row: no group is in two splits, nor in two folds of a
            fit to one of them. None splits by group or time if the dataset has such a column and fractions are given;
            False splits by single rows anyway.
        by_time : str, array of shape (n_rows,), bool or None
            The time column of the dataset, a feature that is a time, or a value for each row: the splits follow each
            other in time in the order of their names, oldest rows first, and rows with the same time are in the same
            split. A fit to one of them holds out its newest rows.
        seed : int
            Random seed; the same seed and rows give the same splits.
        stratify : bool
            Whether each split gets its fraction of every class; ignored by group and by time.
        name : str
            Name of this set of splits; a dataset can have several.
        overwrite : bool
            Replace a set of that name.
        write : bool or None
            Whether to store the splits. None stores them for a whole store; those of views and of rows in memory stay
            in memory.

        Returns
        -------
        Dataset
            The same rows with these splits: ``ds = ds.split({...}); ds["train"]``.

        Raises
        ------
        ValueError
            If a split has no rows, fractions sum to more than 1, masks have the wrong length, or a row is in two
            splits; if a group or a time is missing or the same in all rows, or a column does not exist.
        FileExistsError
            If a set of this name exists and `overwrite` is False.
        """
        self._check_new_splits(name, overwrite)
        source, schema = with_held_by(self.source, self.schema, by_group, by_time)
        named = by_group is None and by_time is None and not are_shares(given)
        columns: tuple[str, ...] = ()
        if schema.held_by is not None and not named:
            known = schema.row_columns[schema.held_by]
            columns = (known.column,)
            names, rule = split_rule_by_column(given, source, schema.held_by, known, seed)
        else:
            if given is None:
                raise ValueError("no split was named; expected a mapping such as {'train': 0.8, 'test': 0.2}")
            names, rule = split_rule(given, self.n_rows, seed=seed, n_classes=schema.n_classes if stratify else None)
        self._check_split_names(names, name)
        split = assign(source, names, rule, schema.n_classes, columns)
        # only a whole store (version 0) can store codes with its rows; later versions and views keep theirs in memory
        writer = self.source.write_split if isinstance(self.source, StoreSource) else None
        if write and writer is None:
            raise ValueError(f"{self._called} is not a whole store: its splits are kept in memory (write=False)")
        if writer is not None and write is not False:
            split = writer(name, split, overwrite=overwrite)
        return Dataset(source, schema, splits={**self.split_sets, name: split}, store=self.store, name=self.name)

    def with_rows(self, source: RowSource, schema: Schema) -> Dataset:
        """The dataset with another source and schema of the same rows; name, splits and store do not change."""
        return Dataset(source, schema, splits=self.split_sets, store=self.store, name=self.name)

    def _check_new_splits(self, name: str, overwrite: bool) -> None:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name.startswith("."):
            raise ValueError(f"{name!r} cannot name a set of splits; expected a word such as 'split'")
        if name in self.split_sets and not overwrite:
            raise FileExistsError(
                f"{self._called} already has splits {list(self.split_sets[name].names)} under the name {name!r}; "
                f"ds[{self.split_sets[name].names[0]!r}] is one of them. Pass overwrite=True to replace them, or "
                "another name="
            )

    def _check_split_names(self, names: tuple[str, ...], own: str) -> None:
        for other, split in self.split_sets.items():
            shared = set(names) & set(split.names)
            if other != own and shared:
                raise ValueError(f"split {min(shared)!r} is already in the set {other!r}; choose another name")

    def thin(self, max_rows: int, seed: int = 0) -> Dataset:
        """A random sample of at most `max_rows` rows: a view, selected by a hash of seed and row id.

        Each block contributes its share, so that every block is still read; the sample is the same on any machine.

        Raises
        ------
        ValueError
            If `max_rows` is below 1.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; expected at least 1")
        # nothing to leave out: a view of all rows would only copy them
        if max_rows >= self.n_rows:
            return self
        step = Thinned(self.source.block_rows, int(max_rows), int(seed))
        source = View(self.source, step, n_classes=self.schema.n_classes)
        return Dataset(source, self.schema, store=self.store, name=self.name)

    def append(
        self,
        X: GivenRows | Dataset,
        y: GivenValues = None,
        *,
        sample_weight: GivenValues = None,
        groups: GivenValues = None,
        times: GivenValues = None,
        split: str | Sequence[str] | None = None,
        publish: Subscriber = ignore,
    ) -> Dataset:
        """Add rows to the store as new blocks; existing blocks do not change.

        The rows form a new version of the store, completely or not at all. This dataset, and everybody who reads the
        store meanwhile, keeps the old version. ``create_dataset(other, ds)`` copies all blocks of a version to one new
        store.

        Parameters
        ----------
        X : array of shape (n, d), scipy sparse matrix, Dask array, data frame, or Dataset
            Data frames are encoded like the rows of the store.
        y : array of shape (n,) or (n, t), or None
        sample_weight : str, array of shape (n,), or None
            A name is a column of a data frame.
        groups, times : str, array of shape (n,), or None
            Required if the rows of the store have them; a column of a data frame with the stored name is used by
            default.
        split : str, sequence of str, or None
            The split that the rows join, one for each set of splits; ``()`` for none.
        publish : callable
            Called with an `Event` for each block.

        Returns
        -------
        Dataset
            The new version. The row ids of rows that version k adds are k 2^40, k 2^40 + 1, ...

        Raises
        ------
        ValueError
            If columns, targets or weights do not match the store, a label is unknown, or the store has splits and none
            is named; or if this is a view or not in a store of dkl.
        FileExistsError
            If a newer version exists.
        """
        version = self._stored_version()
        joins = joined_splits(version, split)
        beside = GroupsAndTimes.like(self.schema, X, groups, times)
        sample_weight = beside.weights(sample_weight)
        if isinstance(X, Dataset):
            given = X.used_whole(y, sample_weight, self.task or "auto")
            further, schema = given.source, given.schema
        else:
            if y is not None and version.schema.task is None:
                raise ValueError(f"y was given, and {version.source.place} was created without targets; leave it out")
            further, schema = encoded_like(version.schema, beside.X, y, sample_weight)
        further, schema = beside.columns_added(further, schema, sample_weight)
        number = append_rows(version, further, schema, joins, publish)
        return open_dataset(version.source.location.url, number, **version.source.location.options)

    def drop(self, rows: GivenValues = None, *, blocks: GivenValues = None) -> Dataset:
        """Remove rows, or whole blocks, from the store; no stored array is rewritten, and no X is read.

        Creates a new version of the store, like `append`. The other blocks keep their numbers. The dropped rows stay on
        disk for older versions: ``create_dataset(other, ds)`` writes a store without them.

        Parameters
        ----------
        rows : array of bool of shape (n_rows,), of row numbers, or None
        blocks : array of int or None
            Numbers of blocks to drop without reading a row.

        Returns
        -------
        Dataset
            The new version.

        Raises
        ------
        ValueError
            If rows or blocks do not exist, or nothing would be left; or if this is a view, or not in a store of dkl.
        FileExistsError
            If a newer version exists.
        """
        version = self._stored_version()
        number = drop_rows(version, rows, blocks)
        return open_dataset(version.source.location.url, number, **version.source.location.options)

    def _stored_version(self) -> StoredVersion:
        """This dataset as a version of a store; ValueError for views, and for rows elsewhere."""
        if not isinstance(self.source, StoreSource | VersionSource):
            what = f"{self!r} is a view" if self.store is not None else f"{self!r} is not in a store of dkl"
            raise ValueError(f"{what}; rows are appended to, and dropped from, what dkl.open_dataset(store) opens")
        return StoredVersion(self.source, self.schema, self.split_sets, repr(self))

    def used_whole(self, y: GivenValues, sample_weight: GivenValues, task: TaskChoice) -> Dataset:
        """This dataset, as the argument of a function that takes rows of any kind.

        Raises
        ------
        ValueError
            If targets or weights are given in addition, or its target does not suit the task.

        Warns
        -----
        UserWarning
            If it has splits, all of which are used.
        """
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None:
                own = self.task is not None if name == "y" else self.source.has_weight
                has = f"has its own {name}" if own else f"was created without {name}"
                raise ValueError(
                    f"{name} was given beside a Dataset, which {has}; pass the Dataset alone, or create it with {name}="
                )
        if self.splits:
            warn_user(
                f"{self!r} has splits and is used whole, all of them together; pass ds[{self.splits[0]!r}] for one of "
                "them"
            )
        if task != "auto" and self.task is not None and task != self.task:
            # the caller's task overrides the one that the values suggested
            return self.with_rows(*with_task(self.source, self.schema, task, repr(self)))
        return self

    def verify(self) -> list[str]:
        """Read every stored byte of the dataset and report all faults.

        Returns
        -------
        list of str
            One sentence for each fault, with its block; empty if there are none. Rows without checksums (arrays in
            memory, `dkl.from_zarr`) are read and checked for NaN and infinity.
        """
        return list(faults(self.source))

    def describe(self) -> Description:
        """All facts that are known without reading rows, for print, a notebook, or as JSON in ``.facts``.

        Only the classes of a view may have to be counted.
        """
        source, schema = self.source, self.schema
        facts: dict[str, Any] = {
            "place": source.place,
            "rows": int(source.block_rows.sum()),
            "columns": source.n_columns,
        }
        if self.name:
            facts["view"] = self.name
        if "target" in schema.provenance:
            facts["target"] = schema.provenance["target"]
        facts |= {"dtype": str(source.dtype), "sparse": source.is_sparse, "task": schema.task or "none"}
        weights = source.counts.class_weights if schema.classes is not None else None
        if schema.classes is not None and weights is not None:
            # without weights the sums are numbers of rows, and shown as integers
            number = float if source.has_weight else int
            labels = map(str, schema.classes.tolist())
            facts["classes"] = {
                label: number(weight) for label, weight in zip(labels, weights.sum(axis=0), strict=True)
            }
        if source.has_weight:
            facts["total weight"] = float(source.counts.weights.sum())
        facts["blocks"] = source.n_blocks
        facts["rows a block"] = int(source.block_rows.max(initial=0))
        facts["largest block (MiB)"] = round(source.block_nbytes / 2**20, 2)
        if source.stored_nbytes:
            facts["stored (MiB)"] = round(source.stored_nbytes / 2**20, 2)
        for label, split in self.split_sets.items():
            rows = split.counts.rows.sum(axis=0)
            facts[f"splits ({label})"] = {n: int(count) for n, count in zip(split.names, rows, strict=True)}
        if schema.column_names is not None:
            facts["column names"] = list(schema.column_names)
        if schema.encoding is not None:
            facts["encoding"] = str(schema.encoding.describe())
        for role, known in schema.row_columns.items():
            facts[f"{role} column"] = f"{known.name}{' (rows are held out by it)' if schema.held_by == role else ''}"
        if schema.first_index is not None:
            facts["first index"] = schema.first_index
        if schema.shuffle_seed is not None:
            facts["shuffled with seed"] = schema.shuffle_seed
        if schema.provenance:
            facts["provenance"] = dict(schema.provenance)
        return Description(facts | dict(source.storage_facts))

    @property
    def _called(self) -> str:
        return f"split {self.name!r} of {self.source.place}" if self.name else f"the dataset of {self.source.place}"

    def __repr__(self) -> str:
        # mentions no target if there is none
        kind = {"classification": f", {self.schema.n_classes} classes", "regression": ", regression"}.get(
            self.task or "", ""
        )
        rows = f"{self.n_rows:,} rows x {self.n_columns:,} columns of {'sparse ' if self.source.is_sparse else ''}"
        view = f" [{self.name}]" if self.name else ""
        splits = f", splits {', '.join(self.splits)}" if self.splits else ""
        return f"<Dataset{view}: {rows}{self.source.dtype}{kind}{splits}, in {self.source.place}>"

    def _repr_html_(self) -> str:
        return self.describe()._repr_html_()


def open_dataset(store: str | os.PathLike[str], version: int | None = None, **storage_options: Any) -> Dataset:
    """Open a dataset that `create_dataset` or `ingest` wrote; no row is read.

    Parameters
    ----------
    store : path or URL
        A local folder (made absolute), or any URL for fsspec: ``"s3://bucket/rows.zarr"``.
    version : int or None
        The state after this number of calls of `Dataset.append` and `Dataset.drop`; None is the newest.
    **storage_options
        For fsspec: ``anon=True``, ``endpoint_url=...``.

    Raises
    ------
    FileNotFoundError
        If nothing exists there.
    dkl.errors.StoreError
        If it is not a dataset of dkl, is incomplete, has a newer format, or does not have this version.
    dkl.errors.CorruptChunkError
        If its metadata does not match its checksum.

    Warns
    -----
    UserWarning
        If labels differ between blocks by more than chance, which makes stochastic fits worse.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> import dkl
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = dkl.create_dataset(f"{folder}/rows.zarr", np.eye(4), ["a", "b", "a", "b"])
    ...     dkl.open_dataset(f"{folder}/rows.zarr").n_rows
    4
    """
    version = None if version is None else whole_number(version, "version")
    source, splits = open_version(Location.of(store, storage_options), version)
    # the counts of each block are in the manifest, so that this check reads nothing
    warn_if_unmixed(source.counts, source.place)
    return Dataset(source, source.schema, splits=splits, store=source.location.url)


def from_zarr(
    X: GivenRows,
    y: GivenValues = None,
    *,
    sample_weight: GivenValues = None,
    task: TaskChoice = "auto",
    classes: GivenValues = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Use zarr arrays in place: no row is copied, and they have no checksums of dkl.

    No value of X is read here: the arrays are identified by their metadata and by the names, sizes and times of the
    objects that hold their chunks (by their metadata alone for a store that lists none, over HTTP or in memory). Passes
    decode each chunk once and note its digest; a later pass that finds another one ends with an error that names the
    chunk. Rows are checked for NaN and infinity whenever they are read. `create_dataset(store, from_zarr(...))` writes
    them with checksums, in blocks that read faster.

    Parameters
    ----------
    X : zarr array of shape (n, d), a group of CSR rows as anndata lays them out, or a path or URL of either
        A Dask array from `dask.array.from_zarr` is replaced by its zarr array.
    y : zarr array or array of shape (n,) or (n, t), a path or URL, or None
    sample_weight : zarr array or array of shape (n,), a path or URL, or None
    task : {"auto", "classification", "regression"}
    classes : array of shape (K,) or None
        None finds them in y, which is read once.
    storage_options : mapping or None
        For fsspec, if URLs are given.

    Raises
    ------
    FileNotFoundError
        If nothing exists at a path.
    ValueError
        If shapes do not match, or numbers are complex, or y holds NaN or infinity.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> import dkl
    >>> X = zarr.array(np.eye(4), chunks=(2, 4))
    >>> dkl.from_zarr(X, y=["a", "b", "a", "b"]).n_rows
    4
    """
    # each may be a path, a URL, an open array or a Dask array of one; values in memory are returned unchanged
    opened_X, opened_y, weight = (
        open_in_place(zarr_behind(values), storage_options) for values in (X, y, sample_weight)
    )
    if not isinstance(opened_X, zarr.Array | zarr.Group):
        raise TypeError(
            f"X is {type(X).__name__}; expected a zarr array, a group, a path or a URL, or a Dask array that "
            "dask.array.from_zarr has made and nothing has changed since"
        )
    shape: Any = opened_X.attrs.get("shape", ()) if isinstance(opened_X, zarr.Group) else opened_X.shape
    if isinstance(opened_X, zarr.Array) and (len(shape) != 2 or 0 in shape):
        raise ValueError(f"X has shape {tuple(shape)}; expected rows and columns, at least one of each")
    for name, given in (("y", opened_y), ("sample_weight", weight)):
        if given is not None and np.shape(given)[:1] != tuple(shape)[:1]:
            raise ValueError(
                f"{name} has shape {np.shape(given)} and X has {shape[0]} rows; expected (n_rows,), an entry a row"
            )
    source, decided, labels = InPlaceSource.labelled(opened_X, opened_y, weight, task, classes)
    return Dataset(source, schema_of(source, decided, labels, () if opened_y is None else np.shape(opened_y)))


@dataclass(frozen=True)
class Description:
    """The facts about a dataset.

    Parameters
    ----------
    facts : mapping
        JSON values by name.
    """

    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return plain_text("\n".join(in_columns(self._cells)))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table([("dkl Dataset", ""), *self._cells])

    @property
    def _cells(self) -> list[tuple[str, str]]:
        """The name and the text of each fact."""
        return [(name, value_text(value)) for name, value in self.facts.items()]
