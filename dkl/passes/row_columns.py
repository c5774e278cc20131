"""Named columns with a value (or short vector) a row, stored beside a pass: one version is read, the next written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from dkl.errors import StoreError
from dkl.process import after_fork
from dkl.protocols.block import Block
from dkl.protocols.source import BlockSource

VERSION_KEY = "dkl-version"
_TOKEN_KEY = "dkl-token"
# {version: {column: the version that wrote it}}: a column that a pass does not write is not copied. Columns of dkl 0.1
# lack this entry, and have each column in each version.
_WRITTEN_KEY = "dkl-written"


@lru_cache(maxsize=64)
def _opened(store: str, token: str, path: str) -> Any:
    """An array of the columns with this token, opened once in each process for all blocks."""
    # opening accesses the store several times, which over a network takes longer than reading a column of a block
    array = zarr.open_group(store, mode="r+").get(path)
    if array is None:
        raise KeyError(f"no row column {path!r} (version/name) in {store!r}")
    return array


after_fork(_opened.cache_clear)


@dataclass(frozen=True)
class RowColumns:
    """A temporary zarr group with one array for each version of a column that a pass wrote; a chunk is a block.

    Tasks never share a chunk, and the driver accesses none: the cost of a version does not depend on the number of
    blocks.

    Parameters
    ----------
    store : str
        A local path or a URL that every worker process can access.
    block_rows : tuple of int
        Rows of each block of the source that the columns belong to.
    version : int
        The version to read; `version + 1` is written, and `commit` makes it the current one.
    token : str
        Identity of the columns that `create` made, in any store.
    keeps_last : bool
        Keep the version before the current one until the next one is started, as a process may be killed between a
        commit and the save of the state that refers to it.
    written : dict of str to int
        The version whose array holds a column, by name.
    """

    store: str
    block_rows: tuple[int, ...]
    version: int = 0
    token: str = ""
    keeps_last: bool = False
    written: Mapping[str, int] = field(default_factory=dict, hash=False)

    @classmethod
    def create(
        cls,
        store: str,
        source: BlockSource,
        columns: Mapping[str, tuple[str, tuple[int, ...]]],
        *,
        overwrite: bool = False,
        start: RowColumns | None = None,
    ) -> RowColumns:
        """New columns, of zeros or with the values of `start`; `columns` maps names to (dtype, shape of a row's value).

        Raises
        ------
        FileExistsError
            If the store holds row columns already (`RowColumns.open` resumes them) and `overwrite` is False.
        """
        group = zarr.open_group(store, mode="w" if overwrite else "a")
        if VERSION_KEY in group.attrs:
            raise FileExistsError(f"{store!r} holds row columns already; open them with RowColumns.open or delete it")
        # with a new token this process does not read arrays that it opened for earlier columns in the same store
        token = uuid.uuid4().hex
        block_rows = tuple(int(rows) for rows in source.block_rows)
        made = cls(str(store), block_rows, token=token, written=dict.fromkeys(columns, 0))
        # attributes are written last: `open` finds no columns without them, however far this came
        for name, (dtype, shape) in columns.items():
            if start is None:
                # zeros need no chunk: missing chunks read as the fill value
                made._create_array(group, 0, name, dtype, shape, fill_value=0)
                continue
            array, old = made._create_array(group, 0, name, dtype, shape), start._array(name)
            for index in range(source.n_blocks):
                array[index] = old[index]
        group.attrs.update({_TOKEN_KEY: token, VERSION_KEY: 0, _WRITTEN_KEY: {"0": dict(made.written)}})
        return made

    @classmethod
    def open(cls, store: str, source: BlockSource) -> RowColumns:
        """The columns at their last committed version."""
        try:
            attributes: Any = zarr.open_group(store, mode="r").attrs
        except FileNotFoundError:
            attributes = {}
        if VERSION_KEY not in attributes:
            raise StoreError(f"{store!r} holds no complete row columns; create them again")
        block_rows = tuple(int(rows) for rows in source.block_rows)
        columns = cls(str(store), block_rows, token=str(attributes.get(_TOKEN_KEY, "")))
        return columns.at(int(attributes[VERSION_KEY]))

    def at(self, version: int) -> RowColumns:
        """The columns at the current version, or with `keeps_last` at the one before it.

        Raises
        ------
        StoreError
            If that version does not exist.
        """
        group = zarr.open_group(self.store, mode="r")
        known: Any = group.attrs.get(_WRITTEN_KEY, {})
        old: Any = group.get(str(version))
        by_name: Any = known.get(str(version)) or dict.fromkeys(old.array_keys() if old else (), version)
        written = {str(name): int(place) for name, place in by_name.items()}
        if not written or any(f"{place}/{name}" not in group for name, place in written.items()):
            raise StoreError(
                f"{self.store!r} holds row columns at version {group.attrs[VERSION_KEY]}, the run was at version "
                f"{version}: they belong to another run. Remove both, or choose another checkpoint"
            )
        return replace(self, version=version, written=written)

    def prepare(self, writes: Mapping[str, str]) -> None:
        """Create the arrays of the next version, before the first task writes to them; removes all other versions."""
        group = zarr.open_group(self.store, mode="a")
        # including arrays that a killed run had started to write
        self._keep_only(group, self.written)
        for name, dtype in writes.items():
            # columns have two axes for blocks and their rows, and others for short vectors
            shape = self._array(name).shape[2:] if name in self.written else ()
            self._create_array(group, self.version + 1, name, dtype, shape)

    def read(self, names: tuple[str, ...], block: Block) -> Block:
        """The block with the named columns at the current version."""
        if not names:
            return block
        return replace(block, columns={**block.columns, **{name: self.values(name, block.index) for name in names}})

    def values(self, name: str, index: int) -> np.ndarray:
        """One column of one block, of shape (n_b, ...)."""
        return np.asarray(self._array(name)[index, : self.block_rows[index]])

    def column(self, name: str) -> Iterator[np.ndarray]:
        """One column, block by block."""
        return (self.values(name, index) for index in range(len(self.block_rows)))

    def write(self, name: str, index: int, values: np.ndarray) -> None:
        """Write one column of one block into the next version; may be repeated."""
        # too many or too few values from a block function would shift all rows after it
        expected = self.block_rows[index]
        if len(values) != expected:
            raise ValueError(f"the row column {name!r} has {len(values)} rows for block {index}; expected {expected}")
        _opened(self.store, self.token, f"{self.version + 1}/{name}")[index, :expected] = values

    def commit(self) -> RowColumns:
        """Make the next version the current one; columns that the pass did not write are not copied.

        Removes the old version, unless `keeps_last`.
        """
        group = zarr.open_group(self.store, mode="a")
        version, new = self.version + 1, group.get(str(self.version + 1))
        written = {**self.written, **dict.fromkeys(new.array_keys() if isinstance(new, zarr.Group) else (), version)}
        # the version number in the group is what makes the version current: it changes once everything is complete
        known = {str(self.version): dict(self.written), str(version): written}
        group.attrs.update({VERSION_KEY: version, _WRITTEN_KEY: known})
        if not self.keeps_last:
            self._keep_only(group, written)
        return replace(self, version=version, written=written)

    def _create_array(
        self,
        group: zarr.Group,
        version: int,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        fill_value: float | None = None,
    ) -> Any:
        # One chunk for each block: all chunks are as long as the longest block, and shorter blocks leave their end
        # unused.
        longest = max(self.block_rows, default=0)
        return group.create_array(
            f"{version}/{name}",
            shape=(len(self.block_rows), longest, *shape),
            chunks=(1, max(longest, 1), *shape),
            dtype=dtype,
            # a lost chunk must not read as values, so that the fill value is NaN for dtypes that have it
            fill_value=(np.nan if np.dtype(dtype).kind == "f" else 0) if fill_value is None else fill_value,
            config={"write_empty_chunks": True},
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
        )

    def _array(self, name: str) -> Any:
        """The array of a column at this version; KeyError for an unknown name."""
        return _opened(self.store, self.token, f"{self.written.get(name, self.version)}/{name}")

    def _keep_only(self, group: zarr.Group, written: Mapping[str, int]) -> None:
        """Remove all arrays except those that hold a column of `written`."""
        kept = {f"{version}/{name}" for name, version in written.items()}
        for version, arrays in list(group.groups()):
            names = list(arrays.array_keys())
            gone = [name for name in names if f"{version}/{name}" not in kept]
            if gone == names:
                del group[version]
                continue
            for name in gone:
                del arrays[name]
