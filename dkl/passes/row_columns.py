"""Named columns of one value (or short vector) a row, kept beside a pass: round t is read while t + 1 is written."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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


@lru_cache(maxsize=64)
def _opened(store: str, token: str, path: str) -> Any:
    """An array of the columns with this token: opened once a process, however many blocks are read and written."""
    # Opening looks at the store several times, which over a network takes longer than to read a column of a block.
    array = zarr.open_group(store, mode="r+").get(path)
    if array is None:
        raise KeyError(f"no row column {path!r} (version/name) in {store!r}")
    return array


after_fork(_opened.cache_clear)


@dataclass(frozen=True)
class RowColumns:
    """A scratch zarr group with one array a column and version; a chunk is a block, so tasks never share one.

    Parameters
    ----------
    store : str
        A local path or a URL that every worker process can reach.
    block_rows : tuple of int
        Rows of each block of the source that the columns belong to.
    version : int
        The version that is read; `version + 1` is written and becomes the current one by `commit`.
    token : str
        Of the columns that `create` made, in whatever store.
    keeps_last : bool
        Keep the version before the current one until the next is begun: whoever saves which version a state belongs
        to may be killed between a commit and that saving.
    """

    store: str
    block_rows: tuple[int, ...]
    version: int = 0
    token: str = ""
    keeps_last: bool = False

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
        """New columns, of zeros or of the values of `start`: `columns` maps names to (dtype, shape of a row's value).

        Raises
        ------
        FileExistsError
            If the store holds row columns already (`RowColumns.open` resumes them) and `overwrite` is False.
        """
        group = zarr.open_group(store, mode="w" if overwrite else "a")
        if VERSION_KEY in group.attrs:
            raise FileExistsError(f"{store!r} holds row columns already; open them with RowColumns.open or delete it")
        # The token keeps this process from reading arrays that it opened when other columns lay in the same store.
        token = uuid.uuid4().hex
        made = cls(str(store), tuple(int(rows) for rows in source.block_rows), token=token)
        # The attributes come last: without them the columns are not there for `open`, however far this came.
        for name, (dtype, shape) in columns.items():
            array = made._create_array(group, 0, name, dtype, shape)
            for index in range(source.n_blocks):
                array[index] = 0 if start is None else start._array(start.version, name)[index]
        group.attrs.update({_TOKEN_KEY: token, VERSION_KEY: 0})
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
        return cls(str(store), block_rows, int(attributes[VERSION_KEY]), str(attributes.get(_TOKEN_KEY, "")))

    def at(self, version: int) -> RowColumns:
        """The columns at a version that may be the last or the one before (see `keeps_last`).

        Raises
        ------
        StoreError
            If that version is not there.
        """
        if str(version) not in zarr.open_group(self.store, mode="r"):
            raise StoreError(
                f"{self.store!r} holds row columns at version {self.version}, the run was at version {version}: they "
                "belong to another run. Remove both, or choose another checkpoint"
            )
        return replace(self, version=version)

    def prepare(self, writes: Mapping[str, str]) -> None:
        """Make the arrays of the next version, before the first task writes to them; all other versions go."""
        group = zarr.open_group(self.store, mode="a")
        # Among them what a run that was killed had begun to write.
        for name in list(group.group_keys()):
            if name != str(self.version):
                self._drop(group, int(name))
        for name, dtype in writes.items():
            current = group.get(f"{self.version}/{name}")
            shape = () if current is None else current.shape[2:]  # type: ignore[union-attr]
            self._create_array(group, self.version + 1, name, dtype, shape)

    def read(self, names: tuple[str, ...], block: Block) -> Block:
        """The block with the named columns at the version that is read."""
        if not names:
            return block
        return replace(block, columns={**block.columns, **{name: self.values(name, block.index) for name in names}})

    def values(self, name: str, index: int) -> np.ndarray:
        """One column of one block, of shape (n_b, ...)."""
        return np.asarray(self._array(self.version, name)[index, : self.block_rows[index]])

    def column(self, name: str) -> Iterator[np.ndarray]:
        """One column, block by block."""
        return (self.values(name, index) for index in range(len(self.block_rows)))

    def write(self, name: str, index: int, values: np.ndarray) -> None:
        """One column of one block, into the next version; writing the same again is harmless."""
        # A block function that returns a value too many or too few would shift all rows after it.
        expected = self.block_rows[index]
        if len(values) != expected:
            raise ValueError(f"the row column {name!r} has {len(values)} rows for block {index}; expected {expected}")
        self._array(self.version + 1, name)[index, :expected] = values

    def commit(self) -> RowColumns:
        """Make the next version the current one; columns that the pass did not write move with it.

        The old version goes, unless `keeps_last`.
        """
        group = zarr.open_group(self.store, mode="a")
        old: Any = group.get(str(self.version))
        new: Any = group.require_group(str(self.version + 1))
        for name, array in old.arrays() if old is not None else ():
            if name not in new:
                self._create_array(group, self.version + 1, name, array.dtype.str, array.shape[2:])
                for index in range(len(self.block_rows)):
                    new[name][index] = array[index]
        # The number that the group notes is what makes the version the current one: it changes when all is there.
        group.attrs[VERSION_KEY] = self.version + 1
        if not self.keeps_last:
            self._drop(group, self.version)
        return replace(self, version=self.version + 1)

    def _create_array(self, group: zarr.Group, version: int, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        # One chunk a block: all chunks are as long as the longest block, and shorter blocks leave the end of theirs
        # unused.
        longest = max(self.block_rows, default=0)
        return group.create_array(
            f"{version}/{name}",
            shape=(len(self.block_rows), longest, *shape),
            chunks=(1, max(longest, 1), *shape),
            dtype=dtype,
            # A chunk that is lost must not read as values: NaN says so where the dtype has one.
            fill_value=np.nan if np.dtype(dtype).kind == "f" else 0,
            config={"write_empty_chunks": True},
            compressors=[ZstdCodec(level=1), Crc32cCodec()],
        )

    def _array(self, version: int, name: str) -> Any:
        return _opened(self.store, self.token, f"{version}/{name}")

    def _drop(self, group: zarr.Group, version: int) -> None:
        if str(version) in group:
            del group[str(version)]
