"""Atomic writes of zarr groups: a group becomes visible by a rename, or behind a URL by a marker written last."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dkl.data.store.abandoned import clear_abandoned, hidden_prefix
from dkl.data.store.location import MARKER, Location, located_error
from dkl.data.store.overwriting import check_output, check_whole_store
from dkl.errors import hint
from dkl.plain_files import inode, rename, try_lock

if TYPE_CHECKING:
    import zarr

# RENAME_EXCHANGE and AT_FDCWD of Linux's renameat2, which Python does not define.
_EXCHANGE = 2
_AT_FDCWD = -100
# Seconds between attempts to remove a folder into which threads may still write.
_PAUSES = (0.02, 0.1, 0.5, 2.0)


VERSIONS = "versions"
"""The folder of a store with one folder for each version."""


@dataclass(frozen=True)
class Home:
    """The store to which a version or a set of splits is added.

    Parameters
    ----------
    location : Location
    token : str
        The token of the store when it was opened; nothing is added to another store at the same place.
    """

    location: Location
    token: str

    def check(self) -> None:
        """Raise StoreReplacedError if the store no longer exists there."""
        self.location.check_token(self.token)


class Staging:
    """A group that is being written and not visible yet.

    Parameters
    ----------
    target : Location
        Its final place.
    location : Location
        The place where it is written: a hidden folder beside a local target, else the target itself.
    token : str
        The token of this writer.
    home : Home or None
        The store to which it is added.
    replaced : (str or None, list of str)
        The state (`store_state`) of the store at the target when writing began; no other store is replaced.
    """

    def __init__(
        self, target: Location, location: Location, token: str, home: Home | None, replaced: tuple[Any, list[str]]
    ) -> None:
        self.target, self.location, self.token, self.home, self.replaced = target, location, token, home, replaced
        self.committed = False
        self.handle: int | None = None
        """Descriptor of the folder of a local target, so that renames stay in it if another folder takes its name."""

    @cached_property
    def group(self) -> zarr.Group:
        """The group to write to; created at the first access, and marked as being written."""
        marker = {MARKER: {"state": "writing", "token": self.token}}
        if self.target.is_local:
            import zarr

            return zarr.create_group(self.location.store(read_only=False), attributes=marker, zarr_format=3)
        # an existing group is marked before it is deleted, so that it counts as half-written after a kill in between
        self.target.write_marker(marker[MARKER])
        self.target.delete(keep_marker=True)
        return self.target.group(read_only=False)

    def check_owner(self) -> None:
        """Raise FileExistsError if another writer has taken over a target behind a URL; local ones are not checked."""
        if self.target.is_local:
            return
        if (self.target.read_marker() or {}).get("token") != self.token:
            raise FileExistsError(_conflict_message(self.target))

    def commit(self, marker: Mapping[str, Any]) -> None:
        """Make the group visible with `marker` as its metadata.

        Raises
        ------
        FileExistsError
            If another writer was first; the files of this one are removed.
        StoreReplacedError
            If the store to which it is added no longer exists.
        """
        self.check_owner()
        if self.home is not None:
            self.home.check()
            ensure_group(self.target.parent)
        self.group.attrs.put({MARKER: {**marker, "state": "complete", "token": self.token}})
        if self.target.is_local:
            flush_folder(self.location.path)
            self._put_in_place()
        if self.home is not None:
            self.home.check()
        self.committed = True

    def _put_in_place(self) -> None:
        """Rename the finished folder to its place, in atomic steps; FileExistsError if another writer was first."""
        path, target = self.location.path, self.target.path
        if self.replaced[0] is None:
            try:
                self._move(path, target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise FileExistsError(_conflict_message(self.target)) from error
                raise
        else:
            self._replace(path, target)
        flush_name(self.target)

    def _replace(self, path: Path, target: Path) -> None:
        """Replace the store at the target if it is still the one that was there when writing began."""
        try:
            aside = put_in_place_of(path, target, folder=self.handle, identity=_token_at)
        except OSError as error:
            raise FileExistsError(_conflict_message(self.target)) from error
        former = Location(str(aside), self.target.given)
        try:
            if store_state(former) != self.replaced:
                raise FileExistsError(_conflict_message(self.target))
            check_whole_store(former, former.read_marker() or {})
        except OSError:
            # another store, or a changed one, is put back
            if not exchanged(target, aside, self.handle) and _token_at(aside) != self.token:
                self._move(target, path)
                self._move(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)

    def _move(self, path: Path, target: Path) -> None:
        """Rename a folder within the folder that was open when writing began, also if that was moved since."""
        rename(path, target, folder=self.handle, identity=_token_at)

    def discard(self) -> None:
        """Delete the files of this writer; in a remote target nothing is deleted if it holds another writer's token."""
        if self.target.is_local:
            # after an error in one thread of zarr, others may still be writing
            for pause in _PAUSES:
                shutil.rmtree(self.location.path, ignore_errors=True)
                time.sleep(pause)
                if not self.location.path.exists():
                    return
            return
        with suppress(OSError, ValueError):
            if self.target.sound_marker().get("token") == self.token:
                self.target.delete()


def _token_at(path: Path) -> str | None:
    """The token of the group in a local folder; None if there is none, or its metadata is damaged."""
    try:
        return Location.of(path).sound_marker().get("token")
    except OSError:
        return None


def store_state(location: Location) -> tuple[Any, list[str]]:
    """The token and the versions of a store, which change when it is replaced or gets a version."""
    marker = location.sound_marker()
    return marker.get("token"), sorted(location.child(VERSIONS).folders()) if marker else []


def ensure_group(location: Location) -> None:
    """Create an empty zarr group unless there is one."""
    if location.read("zarr.json") is None:
        import zarr

        zarr.create_group(location.store(read_only=False), zarr_format=3)


@contextmanager
def staged(target: Location, kind: str, *, overwrite: bool, home: Home | None = None) -> Iterator[Staging]:
    """Write a group that appears at `target` when `Staging.commit` is called; after an error nothing remains.

    Parameters
    ----------
    target : Location
    kind : str
        One of `dkl.data.store.overwriting.STORES`.
    overwrite : bool
        Whether to replace a complete store of this kind. What a killed writer left is always replaced; anything else,
        such as a folder of other files, never.
    home : Home or None
        The store to which the group is added, for versions and sets of splits.

    Raises
    ------
    FileExistsError
        If something exists that may not be replaced, or another writer was first.
    StoreReplacedError
        If the store to which the group is added no longer exists.
    OSError
        If the disk is full or writing is not permitted, with the path.
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
            # empty folders to remove if writing fails, innermost first: those created above the target, and those of a
            # store that is deleted meanwhile, which zarr creates again when it writes the next chunk
            inside = [target.path.parent, home.location.path] if home is not None else []
            missing = [folder for folder in target.path.parents if not folder.exists()]
            made = list(dict.fromkeys([*inside, *missing]))
        # before the hidden folder is created, which would remain after an error here
        replaced = store_state(target)
        with _folder(target) as (location, token, handle):
            staging = Staging(target, location, token, home, replaced)
            staging.handle = handle
            # creates the group: other writers must see a writer behind a URL from now on
            _ = staging.group
            yield staging
    except Exception as error:
        if home is not None:
            # any error may be due to the store having been removed
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
    """The place where a group is written, the writer's token, and the descriptor of the folder around it.

    For a local target the place is a new hidden folder with the token in its name, locked while the group is written;
    the system releases the lock when the process ends in any way.
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
            # another writer may remove the folder as abandoned before it is locked: then another one is created
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
    """`flush` all files and folders below a folder, several at a time, since this is only waiting."""
    paths = [os.path.join(parent, name) for parent, _, files in os.walk(folder) for name in [*files, "."]]
    with ThreadPoolExecutor() as pool:
        deque(pool.map(flush, paths), maxlen=0)


def flush(path: str | Path) -> None:
    """Force a file, or the entries of a folder, to the disk; a rename may be lost in a power failure before that."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_name(location: Location) -> None:
    """Force the name of a file or folder that was just renamed to the disk; a failure is a hint and not an error.

    At that time the rows are written: after an error users would write them a second time.
    """
    try:
        flush(location.path.parent)
    except OSError as error:
        hint(
            f"{location.place} is written and can be opened, but the file system did not confirm that its name "
            f"is on the disk ({error}): after a power failure, look whether it is there"
        )


def exchanged(one: Path, other: Path, folder: int | None = None) -> bool:
    """Exchange two files or folders atomically (Linux), by name in an open folder; False if that is not possible."""
    try:
        exchange = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    names = [os.fsencode(path if folder is None else path.name) for path in (one, other)]
    place = _AT_FDCWD if folder is None else folder
    return bool(exchange(place, names[0], place, names[1], _EXCHANGE) == 0)


def put_in_place_of(
    path: Path, target: Path, *, folder: int | None = None, identity: Callable[[Path], object | None] = inode
) -> Path:
    """Rename a folder to the name of another one, and return the path that the other one has then.

    In one step if the system can exchange two names; otherwise by two renames, undone if the second fails.

    Parameters
    ----------
    path, target : Path
    folder, identity
        As of `dkl.plain_files.rename`.
    """
    new = identity(path)
    # a system may exchange them and report a failure
    if exchanged(path, target, folder) or (new is not None and identity(target) == new):
        return path
    aside = path.with_suffix(".replaced")
    rename(target, aside, folder=folder, identity=identity)
    try:
        rename(path, target, folder=folder, identity=identity)
    except OSError:
        if not target.exists():
            with suppress(OSError):
                rename(aside, target, folder=folder, identity=identity)
        raise
    return aside


def _conflict_message(target: Location) -> str:
    """The error message for a target that another writer has created or replaced."""
    return (
        f"another writer created or replaced {target.place} in the meantime; this one's rows were not kept. "
        "Open what is there, or write again with overwrite=True"
    )
