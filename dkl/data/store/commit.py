"""Whole or absent: a zarr group becomes visible at once, locally by a rename, elsewhere by a marker that goes last."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkl.data.store.abandoned import clear_abandoned, hidden_prefix
from dkl.data.store.location import MARKER, Location, located_error
from dkl.data.store.overwriting import check_output
from dkl.data.store.strangers import check_no_strangers
from dkl.errors import hint
from dkl.plain_files import rename, try_lock

if TYPE_CHECKING:
    import zarr

# RENAME_EXCHANGE and AT_FDCWD of Linux's renameat2, which Python has no name for.
_EXCHANGE = 2
_AT_FDCWD = -100
_PAUSES = (0.02, 0.1, 0.5, 2.0)


VERSIONS = "versions"
"""The folder of a store that holds one folder a version."""


@dataclass(frozen=True)
class Home:
    """The store that something is added to: a version, or a set of splits.

    Parameters
    ----------
    location : Location
    token : str
        Of the store as it was opened; nothing is added to another one that has taken its place.
    """

    location: Location
    token: str

    def check(self) -> None:
        """Refuse to go on once the store is not there any more.

        Raises
        ------
        StoreReplacedError
        """
        self.location.check_token(self.token)


class Staging:
    """A group that is being written and that nobody takes for whole yet.

    Parameters
    ----------
    target : Location
        Where it will be seen.
    location : Location
        Where it is written: a hidden sibling folder of a local target, else the target itself.
    token : str
        Of this writer.
    home : Home or None
        The store that it is added to.
    replaced : (str or None, list of str)
        The state of what is there, as `store_state` has it: the writer replaces that alone.
    """

    def __init__(
        self, target: Location, location: Location, token: str, home: Home | None, replaced: tuple[Any, list[str]]
    ) -> None:
        self.target, self.location, self.token, self.home, self.replaced = target, location, token, home, replaced
        self.committed = False
        self.handle: int | None = None
        """Of the open folder that holds a local target: renames in it cannot end up in a folder put in its place."""

    @cached_property
    def group(self) -> zarr.Group:
        """The group to write to; made when it is first asked for, and marked as being written."""
        marker = {MARKER: {"state": "writing", "token": self.token}}
        if self.target.is_local:
            import zarr

            return zarr.create_group(self.location.store(read_only=False), attributes=marker, zarr_format=3)
        # What is there is marked before it is deleted: after a kill in between it is half-written, and says so.
        self.target.write_marker(marker[MARKER])
        self.target.delete(keep_marker=True)
        return self.target.group(read_only=False)

    def check_owner(self) -> None:
        """Refuse to go on once another writer has taken the target over (targets behind URLs; a cheap look).

        Raises
        ------
        FileExistsError
        """
        if self.target.is_local:
            return
        marker = self.target.read_marker()
        if marker is None or marker.get("token") != self.token:
            raise FileExistsError(_told(self.target))

    def commit(self, marker: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> None:
        """Make the group visible with `marker` as its metadata.

        Raises
        ------
        FileExistsError
            Another writer was first; this one's files are removed.
        StoreReplacedError
            The store that it is added to is not there any more.
        """
        self.check_owner()
        if self.home is not None:
            self.home.check()
            ensure_group(self.target.parent)
        self.group.attrs.put({**(attributes or {}), MARKER: {**marker, "state": "complete", "token": self.token}})
        if self.target.is_local:
            flush_folder(self.location.path)
            self._put_in_place()
        if self.home is not None:
            self.home.check()
        self.committed = True

    def _put_in_place(self) -> None:
        """Rename the finished folder to its place; each step is atomic, and whoever comes second is told."""
        path, target = self.location.path, self.target.path
        if self.replaced[0] is None:
            try:
                self._move(path, target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise FileExistsError(_told(self.target)) from error
                raise
        else:
            self._replace(path, target)
        flush_name(self.target)

    def _replace(self, path: Path, target: Path) -> None:
        """Put the folder in the place of a store that is there, provided that it is still the one seen at the start."""
        is_exchanged = exchanged(path, target, self.handle) or _token_at(target) == self.token
        aside = path if is_exchanged else self._moved_aside(path, target)
        former = Location(str(aside), self.target.given)
        try:
            if store_state(former) != self.replaced:
                raise FileExistsError(_told(self.target))
            check_no_strangers(former, former.read_marker() or {})
        except OSError:
            # It is not the store that was to be replaced, or no longer as it was at the start: put it back.
            if not exchanged(target, aside, self.handle) and _token_at(aside) != self.token:
                self._move(target, path)
                self._move(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def _moved_aside(self, path: Path, target: Path) -> Path:
        """Replace by two renames, where the system cannot exchange two folders at once; where the old store is now."""
        aside = path.with_suffix(".replaced")
        try:
            self._move(target, aside)
            self._move(path, target)
        except OSError as error:
            if not target.exists():
                with suppress(OSError):
                    self._move(aside, target)
            raise FileExistsError(_told(self.target)) from error
        return aside

    def _move(self, path: Path, target: Path) -> None:
        """Rename a folder inside the folder that was there when writing began, wherever that one is now."""
        rename(path, target, folder=self.handle, identity=_token_at)

    def discard(self) -> None:
        """Remove what was written, as far as it is still this writer's."""
        if self.target.is_local:
            # Threads of zarr may still be writing into the folder after one of them has failed.
            for pause in _PAUSES:
                shutil.rmtree(self.location.path, ignore_errors=True)
                time.sleep(pause)
                if not self.location.path.exists():
                    return
            return
        with suppress(OSError, ValueError):
            marker = self.target.read_marker()
            if marker is not None and marker.get("token") == self.token:
                self.target.delete()


def _token_at(path: Path) -> str | None:
    """The token of the writer of the group in a local folder; None where there is none, or a damaged one."""
    try:
        return (Location.of(path).read_marker() or {}).get("token")
    except (OSError, ValueError):
        return None


def store_state(location: Location) -> tuple[Any, list[str]]:
    """What changes when a store is replaced or gets a version: the token of its writer, and its versions."""
    try:
        marker = location.read_marker() or {}
    except ValueError:
        marker = {}
    return marker.get("token"), sorted(location.child(VERSIONS).folders()) if marker else []


def ensure_group(location: Location) -> None:
    """An empty zarr group, where there is none yet."""
    if location.read("zarr.json") is None:
        import zarr

        zarr.create_group(location.store(read_only=False), zarr_format=3)


@contextmanager
def staged(target: Location, kind: str, *, overwrite: bool, home: Home | None = None) -> Iterator[Staging]:
    """Write a group that appears at `target` when `Staging.commit` is called, or leaves nothing.

    Parameters
    ----------
    target : Location
    kind : str
        What is written, one of `dkl.data.store.overwriting.STORES`.
    overwrite : bool
        Replace a whole store of that kind. What a killed writer left is replaced in any case; anything else (a folder
        of other files) never.
    home : Home or None
        The store that the group is added to, where it is a part of one.

    Raises
    ------
    FileExistsError
        Something is there that may not be replaced, or another writer was first.
    StoreReplacedError
        The store that the group is added to is not there any more.
    OSError
        The disk is full, or writing is not permitted: with the path, and nothing visible.
    """
    staging: Staging | None = None
    made: list[Path] = []
    try:
        if home is not None:
            home.check()
        if target.is_local:
            clear_abandoned(target)
        check_output(target, kind, overwrite=overwrite, in_store=home is not None)
        if target.is_local:
            # Folders above the target that are removed again, where they are empty, when writing fails; lowest first.
            # A store that is deleted meanwhile comes back as empty folders, when zarr writes the next chunk.
            inside = [target.path.parent, home.location.path] if home is not None else []
            missing = [folder for folder in target.path.parents if not folder.exists()]
            made = list(dict.fromkeys([*inside, *missing]))
        # before the hidden folder is made, which would stay behind where this cannot be read
        replaced = store_state(target)
        with _folder(target) as (location, token, handle):
            staging = Staging(target, location, token, home, replaced)
            staging.handle = handle
            # A writer behind a URL must be seen from now on.
            _ = staging.group
            yield staging
    except Exception as error:
        if home is not None:
            # Whatever went wrong, the reason may be that the store is gone.
            home.check()
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise located_error(error, target) from error
        raise
    finally:
        if staging is None or not staging.committed:
            if staging is not None:
                staging.discard()
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()


@contextmanager
def _folder(target: Location) -> Iterator[tuple[Location, str, int | None]]:
    """Where to write, the writer's token, and the open folder around it.

    Beside a local target that is a new hidden folder with the token in its name, which is locked for as long as this
    process lives and writes: the system lets go of the lock when the process dies, however it dies.
    """
    if not target.is_local:
        yield target, uuid.uuid4().hex, None
        return
    handles: list[int] = []
    try:
        while not handles:
            token = uuid.uuid4().hex
            path = target.path.with_name(f"{hidden_prefix(target.path)}{token}.partial")
            path.parent.mkdir(parents=True, exist_ok=True)
            # Another writer that clears up may take the folder before it is locked: it is gone then, and the next one
            # is tried.
            with suppress(FileNotFoundError):
                path.mkdir()
                handles.append(os.open(path, os.O_RDONLY))
                try_lock(handles[0], waits=True)
                if not path.is_dir():
                    os.close(handles.pop())
        if os.rename in os.supports_dir_fd:
            handles.append(os.open(path.parent, os.O_RDONLY))
        yield Location(str(path), target.given), token, handles[1] if len(handles) > 1 else None
    finally:
        for handle in handles:
            os.close(handle)


def flush_folder(folder: Path) -> None:
    """Have the system write every file and folder below to the disk, several at a time: to wait is all that it is."""
    paths = [os.path.join(parent, name) for parent, _, files in os.walk(folder) for name in [*files, "."]]
    with ThreadPoolExecutor() as pool:
        deque(pool.map(flush, paths), maxlen=0)


def flush(path: str | Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk: a rename is not kept before that."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_name(location: Location) -> None:
    """Force the name of what was just put in its place to the disk, by its folder; a hint, no error, where that fails.

    The rows are there by then: whoever got an error would take them for lost, and write them a second time.
    """
    try:
        flush(location.path.parent)
    except OSError as error:
        hint(
            f"{location.place} is written and can be opened, but the file system did not confirm that its name "
            f"is on the disk ({error}): after a power failure, look whether it is there"
        )


def exchanged(one: Path, other: Path, folder: int | None = None) -> bool:
    """Exchange two files or folders atomically (Linux), by name in an open folder; False where it is not possible."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    names = [os.fsencode(path if folder is None else path.name) for path in (one, other)]
    place = _AT_FDCWD if folder is None else folder
    return bool(exchange(place, names[0], place, names[1], _EXCHANGE) == 0)


def _told(target: Location) -> str:
    return (
        f"another writer created or replaced {target.place} in the meantime; this one's rows were not kept. "
        "Open what is there, or write again with overwrite=True"
    )
