"""Dataset: rows with a target and weights, in a store, in memory or in a Dask graph, named views, and a description."""

from __future__ import annotations

import hashlib
import html
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import dask.array as da
import numpy as np
import zarr
from scipy import sparse

from dkl.data.checks import whole_number
from dkl.data.counts import warn_if_unmixed
from dkl.data.given import GivenRows, GivenValues
from dkl.data.labels import TaskChoice
from dkl.data.other_task import with_task
from dkl.data.schema import Schema, Task
from dkl.data.sources.in_place import InPlaceSource, open_in_place
from dkl.data.sources.lazy import lazy_part, zarr_behind
from dkl.data.sources.rows import RowSource, schema_of
from dkl.data.sources.stored import StoreSource
from dkl.data.sources.versions import VersionSource
from dkl.data.splits import SplitSet, are_shares, assign, split_rule
from dkl.data.store.changes import StoredVersion, append_rows, drop_rows, encoded_like, joined_splits
from dkl.data.store.location import Location
from dkl.data.store.version_files import open_version
from dkl.data.together.choosing import chosen_rows_together
from dkl.data.together.rows import BesideFeatures
from dkl.data.together.splitting import split_rule_together
from dkl.data.verification import faults
from dkl.data.view import Thinned, View
from dkl.events import Subscriber, ignore
from dkl.plain_text import plain_text, shortened

_SHOWN = 12


class Dataset:
    """Rows cut into blocks, with what is known of them without reading.

    Made by `dkl.create_dataset`, `dkl.open_dataset`, `dkl.ingest`, `dkl.from_zarr`; never changed afterwards: `split`,
    `thin` and ``dataset["train"]`` return new ones that share the rows.

    Parameters
    ----------
    source : RowSource
        The blocks; `dkl.passes` reads them.
    schema : Schema
    splits : mapping of str to SplitSet or None
        Named sets of splits.
    store : str or None
        The path or URL of the store behind the rows.
    name : str
        Of the view: ``"train"``; empty for all rows.

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
        # A copy: whoever made the mapping may go on with it, and a dataset never changes.
        self.split_sets = dict(splits or {})
        self.store = store
        self.name = name

    @property
    def task(self) -> Task | None:
        """What y is: "classification", "regression", or None without one."""
        return self.schema.task

    @property
    def classes(self) -> np.ndarray | None:
        """The sorted labels, (K,); None without classes."""
        return self.schema.classes

    @property
    def n_rows(self) -> int:
        """Rows of weight above 0."""
        return int(self.source.block_rows.sum())

    @property
    def n_columns(self) -> int:
        """d, columns of X."""
        return self.source.n_columns

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of X."""
        return self.n_rows, self.n_columns

    @property
    def version(self) -> int:
        """How often rows were appended to the store, or dropped from it, before this dataset was opened."""
        return self.source.version

    @property
    def total_weight(self) -> float:
        """The sum of the weights of the rows; `n_rows` without weights."""
        # without weights nothing has to be read for it
        return float(self.source.counts.weights.sum()) if self.source.has_weight else float(self.n_rows)

    @property
    def class_weights(self) -> np.ndarray | None:
        """The total weight of each class in this view, (K,) float64; None without classes."""
        counts = self.source.counts.class_weights
        return None if counts is None else counts.sum(axis=0)

    @property
    def column_names(self) -> list[str] | None:
        """Names of the columns of X."""
        return self.schema.column_names

    @property
    def encoding(self) -> Any:
        """The `TableEncoding` that made X of raw table columns, or None."""
        return self.schema.encoding

    @cached_property
    def passthrough(self) -> np.ndarray:
        """Columns that scalers leave alone (one-hot, flags): (d,) bool."""
        given = self.schema.passthrough
        return np.zeros(self.n_columns, bool) if given is None else given

    @property
    def splits(self) -> tuple[str, ...]:
        """Names for ``dataset[name]``."""
        return tuple(name for split in self.split_sets.values() for name in split.names)

    @property
    def fingerprint(self) -> str:
        """Changes whenever a value, a label, the order or the choice of the rows changes."""
        classes = None if self.classes is None else self.classes.tolist()
        return hashlib.sha256(f"{self.source.fingerprint} {self.task} {classes}".encode()).hexdigest()

    @property
    def X(self) -> da.Array:
        """All rows, (n_rows, d), lazily: a chunk a block, NumPy or csr_array."""
        # Dask wants to know what a chunk is like before there is one: an array of the same kind without rows.
        empty = np.empty((0, self.n_columns), self.source.dtype)
        return lazy_part(self.source, "X", sparse.csr_array(empty) if self.source.is_sparse else empty)

    @property
    def y(self) -> da.Array | None:
        """All targets, lazily: labels (n_rows,), numbers (n_rows,) or (n_rows, n_targets); None without them."""
        if self.task is None:
            return None
        # Blocks hold the positions of labels in `classes`; users see the labels themselves.
        dtype = np.dtype(np.float64) if self.classes is None else self.classes.dtype
        return lazy_part(self.source, "y", np.empty(self.schema.y_shape(0), dtype), classes=self.classes)

    @property
    def sample_weight(self) -> da.Array | None:
        """All weights, (n_rows,) float64, lazily; None when every row counts once."""
        return lazy_part(self.source, "weight", np.empty(0)) if self.source.has_weight else None

    @property
    def row_id(self) -> da.Array:
        """The identity of each row, (n_rows,) int64, lazily: its number where rows were first given."""
        return lazy_part(self.source, "row_id", np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.n_rows

    def __getitem__(self, name: str) -> Dataset:
        for split in self.split_sets.values():
            if name in split.names:
                source = split.select(self.source, name)
                # A view of a view keeps both names: 'train.fold 1'.
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
            ``{"train": 0.8, "test": 0.2}``: shares, drawn at random, that sum to at most 1. ``{"train": mask, ...}``:
            boolean masks or row numbers. An array of one value a row: rows of one value are the split of that name.
            By group and by time it is shares, and None is ``{"train": 0.8, "test": 0.2}``.
        by_group : str, array of shape (n_rows,), bool or None
            The group column of the dataset, or one value a row: no group is in two splits, nor in two folds of a fit to
            one of them. None is by group or time where the dataset has such a column, and shares are given; False draws
            single rows all the same.
        by_time : str, array of shape (n_rows,), bool or None
            The time column of the dataset, a feature that is a time, or one value a row: the splits follow each other
            in time as they are named, the oldest rows first, and rows of one time are in one split. A fit to one of
            them holds out its newest rows.
        seed : int
            Of the draw; the same seed and rows give the same splits.
        stratify : bool
            Give each split its share of every class; not by group or by time.
        name : str
            Of this set of splits; a dataset can have several.
        overwrite : bool
            Replace a set of that name.
        write : bool or None
            Keep the codes in the store. None does so for a whole store; views and rows in memory keep them in memory.

        Returns
        -------
        Dataset
            The same rows with these splits: ``ds = ds.split({...}); ds["train"]``.

        Raises
        ------
        ValueError
            A split without rows, fractions that sum to more than 1, masks of the wrong length, a row in two splits; a
            group or a time that is missing, or is the same in all rows, a column that is not there.
        FileExistsError
            A set of this name is there and `overwrite` is False.
        """
        self._check_new_splits(name, overwrite)
        source, schema = chosen_rows_together(self.source, self.schema, by_group, by_time)
        named = by_group is None and by_time is None and not are_shares(given)
        columns: tuple[str, ...] = ()
        if schema.held_by is not None and not named:
            known = schema.row_columns[schema.held_by]
            columns = (known.column,)
            names, rule = split_rule_together(given, source, schema.held_by, known, seed)
        else:
            if given is None:
                raise ValueError("no split was named; expected a mapping such as {'train': 0.8, 'test': 0.2}")
            names, rule = split_rule(given, self.n_rows, seed=seed, n_classes=schema.n_classes if stratify else None)
        self._check_split_names(names, name)
        split = assign(source, names, rule, schema.n_classes, columns)
        # Only a whole store (version 0) can keep codes beside its rows; later versions and views keep theirs in memory.
        writer = self.source.write_split if isinstance(self.source, StoreSource) else None
        if write and writer is None:
            raise ValueError(f"{self._called} is not a whole store: its splits are kept in memory (write=False)")
        if writer is not None and write is not False:
            split = writer(name, split, overwrite=overwrite)
        return Dataset(source, schema, splits={**self.split_sets, name: split}, store=self.store, name=self.name)

    def with_rows(self, source: RowSource, schema: Schema) -> Dataset:
        """The dataset with another source and schema of the same rows: its splits, store and name stay."""
        return Dataset(source, schema, splits=self.split_sets, store=self.store, name=self.name)

    def _check_new_splits(self, name: str, overwrite: bool) -> None:
        if not isinstance(name, str) or not name or "/" in name or "\0" in name or name.startswith("."):
            raise ValueError(f"{name!r} cannot name a set of splits; expected a word such as 'split'")
        if name in self.split_sets and not overwrite:
            raise FileExistsError(
                f"{self._called} already has splits {list(self.split_sets[name].names)} under the name {name!r}; "
                "pass overwrite=True to replace them, or another name="
            )

    def _check_split_names(self, names: tuple[str, ...], own: str) -> None:
        for other, split in self.split_sets.items():
            shared = set(names) & set(split.names)
            if other != own and shared:
                raise ValueError(f"split {min(shared)!r} is already in the set {other!r}; choose another name")

    def thin(self, max_rows: int, seed: int = 0) -> Dataset:
        """A random sample of at most `max_rows` rows: a view, chosen by a hash of seed and row id.

        Each block gives its share, so every block is still read, and the sample is the same on any machine.

        Raises
        ------
        ValueError
            `max_rows` below 1.
        """
        if max_rows < 1:
            raise ValueError(f"max_rows is {max_rows}; expected at least 1")
        # Nothing to leave out: a view of all rows would only copy them.
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
        """Add rows to the store as further blocks; the blocks that are there stay as they are.

        The rows make a new version of the store, whole or not at all. This dataset, and whoever reads the store
        meanwhile, keeps the old one. ``create_dataset(other, ds)`` puts all blocks of a version into one new store.

        Parameters
        ----------
        X : array of shape (n, d), scipy sparse matrix, Dask array, data frame, or Dataset
            Data frames are encoded as the rows of the store were.
        y : array of shape (n,) or (n, t), or None
        sample_weight : array of shape (n,) or None
        groups, times : str, array of shape (n,), or None
            Where the rows of the store have them; a column of a data frame that has its name is found by itself.
        split : str, sequence of str, or None
            The split that the rows join, of each set of splits one; ``()`` is none of them.
        publish : callable
            Receives an `Event` a block.

        Returns
        -------
        Dataset
            The new version. The row ids of the rows that version k adds are k 2^40, k 2^40 + 1, ...

        Raises
        ------
        ValueError
            Columns, targets or weights that are not those of the store, an unknown label, splits and none named; or
            this is a view or not in a store of dkl.
        FileExistsError
            A newer version is there.
        """
        version = self._stored_version()
        joins = joined_splits(version, split)
        beside = BesideFeatures.like(self.schema, X, groups, times)
        if isinstance(X, Dataset):
            given = X.used_whole(y, sample_weight, self.task or "auto")
            further, schema = given.source, given.schema
        else:
            further, schema = encoded_like(version, beside.X, y, sample_weight)
        further, schema = beside.on(further, schema, sample_weight)
        number = append_rows(version, further, schema, joins, publish)
        return open_dataset(version.source.location.url, number, **version.source.location.options)

    def drop(self, rows: GivenValues = None, *, blocks: GivenValues = None) -> Dataset:
        """Take rows, or whole blocks, out of the store; nothing that is stored is rewritten, and no X is read.

        A new version of the store, as of `append`. The other blocks keep their numbers. The dropped rows stay on disk
        for the older versions: ``create_dataset(other, ds)`` writes a store without them.

        Parameters
        ----------
        rows : array of bool of shape (n_rows,), of row numbers, or None
        blocks : array of int or None
            Numbers of blocks, of which no row is read.

        Returns
        -------
        Dataset
            The new version.

        Raises
        ------
        ValueError
            Rows or blocks that are not there, or all of them; this is a view, or not in a store of dkl.
        FileExistsError
            A newer version is there.
        """
        version = self._stored_version()
        number = drop_rows(version, rows, blocks)
        return open_dataset(version.source.location.url, number, **version.source.location.options)

    def _stored_version(self) -> StoredVersion:
        """The version of a store that this dataset is, whole; views and rows elsewhere are refused."""
        if not isinstance(self.source, StoreSource | VersionSource):
            what = f"{self!r} is a view" if self.store is not None else f"{self!r} is not in a store of dkl"
            raise ValueError(f"{what}; rows are appended to, and dropped from, what dkl.open_dataset(store) opens")
        return StoredVersion(self.source, self.schema, self.split_sets, repr(self))

    def used_whole(self, y: GivenValues, sample_weight: GivenValues, task: TaskChoice) -> Dataset:
        """This dataset, where a function that takes rows of any kind is given it.

        Raises
        ------
        ValueError
            Targets or weights are given beside it, or its target can be none of the task.

        Warns
        -----
        UserWarning
            It has splits, and all of them are used together.
        """
        for name, given in (("y", y), ("sample_weight", sample_weight)):
            if given is not None:
                own = self.task is not None if name == "y" else self.source.has_weight
                has = f"has its own {name}" if own else f"was created without {name}"
                raise ValueError(
                    f"{name} was given beside a Dataset, which {has}; pass the Dataset alone, or create it with {name}="
                )
        if self.splits:
            warnings.warn(
                f"{self!r} has splits and is used whole, all of them together; pass ds[{self.splits[0]!r}] for one of "
                "them",
                UserWarning,
                stacklevel=3,
            )
        if task != "auto" and self.task is not None and task != self.task:
            # whoever asks knows the task better than the values told it
            return self.with_rows(*with_task(self.source, self.schema, task, repr(self)))
        return self

    def verify(self) -> list[str]:
        """Read every byte that the dataset keeps and report what is wrong, all of it.

        Returns
        -------
        list of str
            One sentence a fault, naming the block; empty when all is well. Rows that have no checksums (arrays in
            memory, `dkl.from_zarr`) are read and checked for NaN and infinity.
        """
        return list(faults(self.source))

    def describe(self) -> Description:
        """What is in the dataset, for print, a notebook, or as JSON in ``.facts``."""
        return describe_rows(self.source, self.schema, self.split_sets, self.name)

    @property
    def _called(self) -> str:
        return f"split {self.name!r} of {self.source.place}" if self.name else f"the dataset of {self.source.place}"

    def __repr__(self) -> str:
        # Without a target nothing is said of one.
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
        A local folder (made absolute now), or any URL that fsspec knows: ``"s3://bucket/rows.zarr"``.
    version : int or None
        As it was after so many calls of `Dataset.append` and `Dataset.drop`; None is the newest.
    **storage_options
        For fsspec: ``anon=True``, ``endpoint_url=...``.

    Raises
    ------
    FileNotFoundError
        Nothing is there.
    dkl.errors.StoreError
        It is not a dataset of dkl, is half-written, was written in a newer format, or has no such version.
    dkl.errors.CorruptChunkError
        Its metadata is not what was written.

    Warns
    -----
    UserWarning
        The labels of the blocks are not mixed, which spoils stochastic fitting.

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
    # The counts of each block are in the manifest, so that this look costs no read.
    warn_if_unmixed(source.counts, source.place, stacklevel=3)
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
    """Use zarr arrays where they are: no row is copied, and no checksum of ours guards them.

    Nothing of X is read here: the arrays are known by their metadata and by the names, sizes and times of the objects
    that hold their chunks (of a store that lists none, over HTTP or in memory, by their metadata alone). Passes decode
    each chunk once, note its digest, and end with an error that names it where a later pass finds another one. Rows
    are checked for NaN and infinity whenever they are read. `create_dataset(store, from_zarr(...))` writes them with
    checksums, in blocks that read fast.

    Parameters
    ----------
    X : zarr array of shape (n, d), a group of CSR rows as anndata lays them out, or a path or URL of either
        A Dask array that `dask.array.from_zarr` has made stands for its zarr array.
    y : zarr array or array of shape (n,) or (n, t), a path or URL, or None
    sample_weight : zarr array or array of shape (n,), a path or URL, or None
    task : {"auto", "classification", "regression"}
    classes : array of shape (K,) or None
        None has them found in y, which is read once.
    storage_options : mapping or None
        For fsspec, where URLs are given.

    Raises
    ------
    FileNotFoundError
        A path holds nothing.
    ValueError
        Shapes that do not fit, complex numbers, NaN or infinity in y.

    Examples
    --------
    >>> import numpy as np
    >>> import zarr
    >>> import dkl
    >>> X = zarr.array(np.eye(4), chunks=(2, 4))
    >>> dkl.from_zarr(X, y=["a", "b", "a", "b"]).n_rows
    4
    """
    # Each may be a path, a URL, an open array or a Dask array of one; values in memory pass through.
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
    """Facts about a dataset.

    Parameters
    ----------
    facts : mapping
        JSON values under plain names.
    """

    facts: Mapping[str, Any]

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        return plain_text("\n".join(f"{name:<{width}}  {shown(value)}" for name, value in self.facts.items()))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{html.escape(name)}</th>'
            f'<td style="text-align:left">{html.escape(shown(value))}</td></tr>'
            for name, value in self.facts.items()
        )
        return f"<table><caption>dkl Dataset</caption><tbody>{rows}</tbody></table>"


def shown(value: object) -> str:
    """One fact on one line, long lists and the names in them cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, Mapping):
        items = [f"{shortened(str(key))}: {shown(item)}" for key, item in list(value.items())[:_SHOWN]]
        return ", ".join(items) + _more(len(value))
    if isinstance(value, list | tuple):
        items = [shortened(item) if isinstance(item, str) else shown(item) for item in value[:_SHOWN]]
        return ", ".join(items) + _more(len(value))
    return str(value)


def _more(count: int) -> str:
    return f" and {count - _SHOWN:,} more" if count > _SHOWN else ""


def describe_rows(source: RowSource, schema: Schema, splits: Mapping[str, SplitSet], name: str) -> Description:
    """All facts that are known without reading rows, and the classes of a view where they must be counted.

    Parameters
    ----------
    source : RowSource
    schema : Schema
    splits : mapping of str to SplitSet
    name : str
        Of the view; empty for all rows.
    """
    facts: dict[str, Any] = {"place": source.place, "rows": int(source.block_rows.sum()), "columns": source.n_columns}
    if name:
        facts["view"] = name
    if "target" in schema.provenance:
        facts["target"] = schema.provenance["target"]
    facts |= {"dtype": str(source.dtype), "sparse": source.is_sparse, "task": schema.task or "none"}
    weights = source.counts.class_weights if schema.classes is not None else None
    if schema.classes is not None and weights is not None:
        # Without weights the sums count rows, and are shown as such.
        number = float if source.has_weight else int
        labels = map(str, schema.classes.tolist())
        facts["classes"] = {label: number(weight) for label, weight in zip(labels, weights.sum(axis=0), strict=True)}
    if source.has_weight:
        facts["total weight"] = float(source.counts.weights.sum())
    facts["blocks"] = source.n_blocks
    facts["rows a block"] = int(source.block_rows.max(initial=0))
    facts["largest block (MiB)"] = round(source.block_nbytes / 2**20, 2)
    if source.stored_nbytes:
        facts["stored (MiB)"] = round(source.stored_nbytes / 2**20, 2)
    for label, split in splits.items():
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
