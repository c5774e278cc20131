"""Whole or absent: a zarr group becomes visible at once, locally by a rename, elsewhere by a marker that goes last."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import zarr

from dkl.data.location import MARKER, Location

try:
    import fcntl
except ImportError:  # Windows: what a killed process left stays until it is removed by hand
    fcntl = None  # type: ignore[assignment]

_EXCHANGE = 2
_AT_FDCWD = -100
_PAUSES = (0.02, 0.1, 0.5, 2.0)


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
    replaced : str or None
        The token of the store that was there when this writer began.
    """

    def __init__(self, target: Location, location: Location, token: str, replaced: str | None) -> None:
        self.target, self.location, self.token, self.replaced = target, location, token, replaced
        self.committed = False

    @cached_property
    def group(self) -> zarr.Group:
        """The group to write to; made when it is first asked for, and marked as being written."""
        return zarr.create_group(
            self.location.store(read_only=False),
            attributes={MARKER: {"state": "writing", "token": self.token}},
            zarr_format=3,
        )

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
        """
        self.check_owner()
        self.group.attrs.put({**(attributes or {}), MARKER: {**marker, "state": "complete", "token": self.token}})
        if self.target.is_local:
            _flush(self.location.path)
            _rename(self)
        self.committed = True


@contextmanager
def staged(target: Location, *, overwrite: bool) -> Iterator[Staging]:
    """Write a group that appears at `target` when `Staging.commit` is called, or leaves nothing.

    Parameters
    ----------
    target : Location
    overwrite : bool
        Replace a whole store of dkl that is there. What a killed writer left is replaced in any case; anything else
        (a folder of other files) never.

    Raises
    ------
    FileExistsError
        Something is there that may not be replaced, or another writer was first.
    OSError
        The disk is full, or writing is not permitted: with the path, and nothing visible.
    """
    staging: Staging | None = None
    try:
        if target.is_local:
            _clear_abandoned(target.path)
        replaced = check_replaceable(target, overwrite=overwrite)
        with _folder(target) as (location, token):
            staging = Staging(target, location, token, replaced)
            # a writer behind a URL must be seen from now on
            _ = staging.group
            yield staging
    except FileExistsError:
        raise
    except OSError as error:
        raise located_error(error, target) from error
    finally:
        if staging is not None and not staging.committed:
            _discard(staging)


def check_replaceable(target: Location, *, overwrite: bool) -> str | None:
    """The token of the store at `target`, or None when nothing whole is there.

    Raises
    ------
    FileExistsError
        What is there may not be replaced.
    """
    try:
        marker = target.read_marker()
    except ValueError:
        marker = None
    if marker is None:
        if target.exists():
            raise FileExistsError(
                f"{target.place} exists and is not a store of dkl, so it is not replaced; choose another path"
            )
        return None
    if marker.get("state") == "complete" and not overwrite:
        raise FileExistsError(f"{target.place} exists; pass overwrite=True to replace it, or choose another path")
    return marker.get("token")


@contextmanager
def _folder(target: Location) -> Iterator[tuple[Location, str]]:
    """Where to write and the writer's token; the folder is locked for as long as this process lives and writes."""
    token = uuid.uuid4().hex
    if not target.is_local:
        target.delete()
        yield target, token
        return
    path = target.path.with_name(f"{_prefix(target.path)}{token}.partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir()
    handle = os.open(path, os.O_RDONLY)
    try:
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        yield Location(str(path), target.given), token
    finally:
        os.close(handle)


def _prefix(path: Path) -> str:
    name = path.name if len(os.fsencode(path.name)) < 180 else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    return f".{name}."


def _clear_abandoned(target: Path) -> None:
    """Remove what killed writers of this target left, and put back a store that one had just moved aside."""
    if fcntl is None or not target.parent.is_dir():
        return
    prefix = _prefix(target)
    for folder in list(target.parent.iterdir()):
        if not folder.name.startswith(prefix) or folder.suffix not in (".partial", ".replaced"):
            continue
        with suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if folder.suffix == ".replaced" and not target.exists():
                    os.rename(folder, target)
                else:
                    shutil.rmtree(folder)
            finally:
                os.close(handle)


def _flush(folder: Path) -> None:
    """Have the system write every file and folder below to the disk."""
    for parent, _, files in os.walk(folder):
        for name in [*files, "."]:
            _sync(os.path.join(parent, name))


def _sync(path: str | Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _rename(staging: Staging) -> None:
    """Put the finished folder in its place; each step is atomic, and whoever comes second is told."""
    path, target = staging.location.path, staging.target.path
    if staging.replaced is None:
        try:
            os.rename(path, target)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise FileExistsError(_told(staging.target)) from error
            raise
    else:
        _replace(staging, path, target)
    _sync(target.parent)


def _replace(staging: Staging, path: Path, target: Path) -> None:
    aside = path if exchanged(path, target) else _moved_aside(staging, path, target)
    former = Location(str(aside), staging.target.given).read_marker() or {}
    if former.get("token") != staging.replaced:
        # the store that was to be replaced is not the one that was there at the start: put that one back
        if not exchanged(target, aside):
            os.rename(target, path)
            os.rename(aside, target)
        raise FileExistsError(_told(staging.target))
    shutil.rmtree(aside, ignore_errors=True)


def _moved_aside(staging: Staging, path: Path, target: Path) -> Path:
    """Two renames, where the system cannot exchange two folders at once."""
    aside = path.with_suffix(".replaced")
    try:
        os.rename(target, aside)
        os.rename(path, target)
    except OSError as error:
        raise FileExistsError(_told(staging.target)) from error
    return aside


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders atomically (Linux); False where that is not possible."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    return bool(rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE) == 0)


def _discard(staging: Staging) -> None:
    """Remove what was written, as far as it is still this writer's."""
    if staging.target.is_local:
        _remove(staging.location.path)
        return
    with suppress(OSError, ValueError):
        marker = staging.target.read_marker()
        if marker is not None and marker.get("token") == staging.token:
            staging.target.delete()


def _remove(folder: Path) -> None:
    """Remove a folder into which threads of zarr may still be writing after one of them has failed."""
    for pause in _PAUSES:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(pause)
        if not folder.exists():
            return


def _told(target: Location) -> str:
    return (
        f"another writer created or replaced {target.place} in the meantime; this one's rows were not kept. "
        "Open what is there, or write again with overwrite=True"
    )


def located_error(error: OSError, target: Location, left: str = "Nothing was kept") -> OSError:
    """The error of a write with the path, the reason and what can be done; `left` says what is there now."""
    if error.errno is None:
        return error
    reasons = {
        errno.ENOSPC: "the disk is full; free some space or choose another place",
        errno.EDQUOT: "the disk quota is used up; free some space or choose another place",
        errno.EACCES: "writing there is not permitted; choose another place or change its permissions",
        errno.EPERM: "writing there is not permitted; choose another place or change its permissions",
        errno.EROFS: "the file system is read-only; choose another place",
    }
    reason = reasons.get(error.errno, str(error))
    return OSError(error.errno, f"{target.place} was not written: {reason}. {left}", target.url)
