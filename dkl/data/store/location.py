"""Location: the place of a store, a local folder or an fsspec URL, and the operations on its files."""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import google_crc32c

from dkl.errors import CorruptChunkError, StoreError, StoreReplacedError
from dkl.plain_files import NoPlainFileError, read_plain, rename

if TYPE_CHECKING:
    import zarr
    from zarr.storage import FsspecStore, LocalStore

MARKER = "dkl"


@dataclass(frozen=True, eq=False)
class Location:
    """A folder, local or behind a URL.

    Parameters
    ----------
    url : str
        An absolute local path, or a URL such as ``"s3://bucket/rows.zarr"``.
    given : str
        The user's name for it, for messages.
    options : mapping
        For fsspec.
    """

    url: str
    given: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, store: str | os.PathLike[str], options: Mapping[str, Any] | None = None) -> Location:
        """The location of a path or URL; links and relative paths are resolved now.

        Raises
        ------
        TypeError
            If `store` is not a path, or storage options were given for a local one.
        ValueError
            If `store` is empty or has a NUL character.
        """
        if not isinstance(store, str | os.PathLike) or not isinstance(os.fspath(store), str):
            raise TypeError(f"a store is named by a path or a URL, not by {type(store).__name__}")
        given = os.fspath(store)
        if not given or "\0" in given:
            fault = "has a NUL character, which no path can hold" if given else "is empty"
            raise ValueError(
                f"{given!r} cannot name a store: it {fault}; expected a path such as 'rows.zarr', or a URL"
            )
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"storage_options is {options!r}; expected a dict of options for fsspec, or None")
        path = given.removeprefix("file://")
        # local paths become absolute, since workers may have another working directory
        if "://" in path:
            return cls(path.rstrip("/"), given, dict(options or {}))
        if options:
            raise TypeError(f"{given!r} is a local path, which takes no storage options; got {sorted(options)}")
        return cls(os.path.realpath(os.path.expanduser(path)), given)

    @property
    def is_local(self) -> bool:
        return "://" not in self.url

    @property
    def path(self) -> Path:
        """The path of a local folder."""
        return Path(self.url)

    @property
    def place(self) -> str:
        """Its name in messages."""
        return f"'{self.given}'"

    @property
    def key(self) -> tuple[str, str]:
        """A hashable value that is equal for equal locations."""
        return self.url, repr(sorted(self.options.items()))

    def child(self, *names: str) -> Location:
        """A folder inside this one."""
        return Location("/".join([self.url, *names]), "/".join([self.given, *names]), self.options)

    @property
    def parent(self) -> Location:
        """The folder around this one."""
        return Location(self.url.rpartition("/")[0], self.given.rpartition("/")[0], self.options)

    def store(self, *, read_only: bool) -> LocalStore | FsspecStore:
        """A zarr store on this folder."""
        # imported here, since commands that only print help also use locations, and zarr takes long to import
        from zarr.storage import FsspecStore

        from dkl.data.store.plain_store import PlainStore

        if self.is_local:
            return PlainStore(self.path, read_only=read_only)
        return FsspecStore.from_url(self.url, storage_options=dict(self.options), read_only=read_only)

    def group(self, *, read_only: bool) -> zarr.Group:
        """The zarr group here."""
        import zarr

        return zarr.open_group(self.store(read_only=read_only), mode="r" if read_only else "r+", zarr_format=3)

    def exists(self) -> bool:
        """Whether there is a file, or a folder that is not empty."""
        if self.is_local:
            if self.path.is_file():
                return True
            try:
                return any(self.path.iterdir())
            except (FileNotFoundError, NotADirectoryError):
                # nothing, or a folder that another process removed meanwhile
                return False
        fs, path = self._fs()
        return bool(fs.exists(path))

    def read_marker(self, mark: str = MARKER) -> dict[str, Any] | None:
        """The marker in the attributes of the zarr node here, by default that of stores; None without one.

        Raises
        ------
        json.JSONDecodeError
            If the metadata is damaged.
        """
        text = self.read("zarr.json")
        node = None if text is None else json.loads(text)
        attributes = node.get("attributes") if isinstance(node, dict) else None
        marker = attributes.get(mark) if isinstance(attributes, dict) else None
        return marker if isinstance(marker, dict) else None

    def sound_marker(self, mark: str = MARKER) -> dict[str, Any]:
        """The marker of `read_marker`; empty if there is none, or the metadata is damaged."""
        try:
            return self.read_marker(mark) or {}
        except (ValueError, RecursionError):
            return {}

    def check_token(self, token: str) -> None:
        """Check that the store whose writer had `token` is still here.

        Raises
        ------
        StoreReplacedError
            If it was moved, deleted or replaced.
        CorruptChunkError
            If its metadata is missing or damaged.
        """
        try:
            marker = self.read_marker()
        except ValueError as error:
            raise CorruptChunkError(f"the metadata of {self.place} is damaged: {error}") from error
        if marker is None:
            if self.path.exists() if self.is_local else self.exists():
                raise CorruptChunkError(f"the metadata of {self.place} is missing or damaged, its file 'zarr.json'")
            raise StoreReplacedError(
                f"{self.place} is not found any more: it was moved, deleted or replaced since it was opened. Open it "
                "again where it is now: dkl.open_dataset(store)"
            )
        if marker.get("token") != token:
            called = f"the set of splits {self.place}" if marker.get("kind") == "splits" else self.place
            raise StoreReplacedError(
                f"{called} was replaced by another one since it was opened. Open it again: dkl.open_dataset(store)"
            )

    def read(self, name: str) -> bytes | None:
        """The bytes of one small file here; None if it is absent.

        Raises
        ------
        StoreError
            If it is a pipe or a device.
        """
        try:
            if self.is_local:
                return read_plain(self.path / name)
            fs, path = self._fs()
            return bytes(fs.cat_file(f"{path}/{name}"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except NoPlainFileError as error:
            raise StoreError(str(error)) from error

    def nodes_digest(self, names: Iterable[str]) -> str:
        """The digest of the metadata files of the zarr nodes `names` (paths in this folder), in any order.

        Raises
        ------
        FileNotFoundError
            If one is absent.
        """
        crc = 0
        for name in sorted(names):
            text = self.read(f"{name}/zarr.json")
            if text is None:
                raise FileNotFoundError(f"'{name}/zarr.json' is missing in {self.place}")
            crc = google_crc32c.extend(crc, text)
        return f"{crc:08x}"

    def node_digests(self, names: Iterable[str]) -> dict[str, str]:
        """The digest of the metadata file of each of the zarr nodes `names`, for `damaged_nodes`."""
        return {name: self.nodes_digest([name]) for name in sorted(names)}

    def damaged_nodes(self, digests: Mapping[str, str]) -> str:
        """A clause of an error message with the metadata files that changed since `node_digests`; empty if none did."""
        damaged = []
        for name, digest in digests.items():
            try:
                if self.nodes_digest([name]) == digest:
                    continue
            except (OSError, StoreError):  # absent, a folder, a pipe
                pass
            damaged.append(f"'{name}/zarr.json'")
        return "" if not damaged else f"{' and '.join(damaged)} of {self.place} is not what was written"

    def folders(self) -> list[str]:
        """Names of the folders here, without hidden ones; empty if nothing exists here."""
        if self.is_local:
            names = [entry.name for entry in self.path.iterdir() if entry.is_dir()] if self.path.is_dir() else []
        else:
            fs, path = self._fs()
            listed = fs.ls(path, detail=True) if fs.exists(path) else []
            names = [e["name"].rstrip("/").rpartition("/")[2] for e in listed if e["type"] == "directory"]
        return [name for name in names if not name.startswith(".")]

    def files(self) -> list[str]:
        """Relative paths, with "/", of all files below this folder, ascending; on a disk also of links to folders."""
        if not self.is_local:
            fs, path = self._fs()
            return sorted(name[len(path) :].strip("/") for name in fs.find(path))
        paths = []
        for parent, folders, names in os.walk(self.path):
            links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
            paths += [os.path.relpath(os.path.join(parent, name), self.path) for name in [*names, *links]]
        return sorted(name.replace(os.sep, "/") for name in paths)

    def stored_nbytes(self) -> int:
        """Bytes of all files here."""
        if self.is_local:
            return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())
        fs, path = self._fs()
        return int(fs.du(path))

    def delete(self, *, keep_marker: bool = False) -> None:
        """Remove everything here, for URLs (local folders are renamed first, see `dkl.data.store.commit`).

        The marker is removed last, so that after a kill the rest is still identified by it; or it stays.
        """
        fs, path = self._fs()
        if not fs.exists(path):
            return
        for entry in fs.ls(path, detail=False):
            if entry.rstrip("/").rpartition("/")[2] != "zarr.json":
                fs.rm(entry, recursive=True)
        if not keep_marker:
            fs.rm(path, recursive=True)

    def write_marker(self, marker: Mapping[str, Any]) -> None:
        """Write `marker` into the attributes of the zarr group here, which is created if necessary, atomically."""
        # writing the group's metadata file makes the group and the marker visible at once
        node = {"attributes": {MARKER: dict(marker)}, "zarr_format": 3, "node_type": "group"}
        text = json.dumps(node, indent=2).encode()
        if not self.is_local:
            fs, path = self._fs()
            fs.pipe_file(f"{path}/zarr.json", text)
            return
        # zarr's name for unfinished files, so that a file that remains after a kill is recognized
        begun = self.path / f"zarr.{uuid.uuid4().hex}.partial"
        try:
            begun.write_bytes(text)
            rename(begun, self.path / "zarr.json")
        finally:
            begun.unlink(missing_ok=True)

    def _fs(self) -> tuple[Any, str]:
        fs, path = fsspec.core.url_to_fs(self.url, **self.options)
        # some file systems cache listings, but another process may have written
        fs.invalidate_cache()
        return fs, path


def located_error(error: OSError, target: Location, left: str = "Nothing was kept") -> OSError:
    """The error of a write with the path, the reason and a remedy; `left` is a sentence on the state of the target."""
    if error.errno is None:
        return error
    return OSError(error.errno, f"{target.place} was not written: {reason_of(error.errno)}. {left}", target.url)


def reason_of(code: int) -> str:
    """The reason in words why a write failed with this error number, with the remedy if there is one."""
    reasons = {
        errno.ENOSPC: "the disk is full; free some space or choose another place",
        errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
        errno.EACCES: "writing there is not permitted; choose another place or change its permissions",
        errno.EPERM: "writing there is not permitted; choose another place or change its permissions",
        errno.EROFS: "the file system is read-only; choose another place",
    }
    return reasons.get(code) or os.strerror(code)
