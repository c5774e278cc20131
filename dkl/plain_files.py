"""Plain files: neither a pipe nor a device that somebody has put in the place of one, and folders of one's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: what a killed process left stays until it is removed by hand
    fcntl = None  # type: ignore[assignment]

CAN_LOCK = fcntl is not None

# Not on every system.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_FOLDER = getattr(os, "O_DIRECTORY", 0)


class NoPlainFileError(OSError):
    """Something is at a path that is no file: a named pipe, a socket, a device."""


def open_plain(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor of a file, for ``open(..., opener=open_plain)``; a pipe, socket or device is refused unread.

    A folder is left to `open`, which refuses it by itself.

    Raises
    ------
    NoPlainFileError
        If there is a pipe, a socket or a device.
    OSError
        As `os.open`.
    """
    descriptor = os.open(path, flags | _NO_WAIT, 0o666)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return descriptor
    os.close(descriptor)
    kind = "named pipe" if stat.S_ISFIFO(mode) else "socket" if stat.S_ISSOCK(mode) else "device"
    raise NoPlainFileError(f"{os.fspath(path)!r} is a {kind}, where a file is expected: remove it, or copy what it was")


def read_plain(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a file; errors as of `open_plain`."""
    with open(path, "rb", opener=open_plain) as file:
        return file.read()


def inode(path: Path) -> tuple[int, int] | None:
    """The device and the inode of a file or folder, which a rename keeps; None where nothing is."""
    try:
        there = os.lstat(path)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def rename(
    path: Path, target: Path, *, folder: int | None = None, identity: Callable[[Path], object | None] = inode
) -> None:
    """Rename a file, over one that is there, or a folder; a failure that is reported after the rename was made is none.

    A file system behind a network may rename and report a failure, when the answer was lost on the way: whoever is told
    that nothing was kept writes the same once more.

    Parameters
    ----------
    path, target : Path
    folder : int or None
        An open folder, in which the names of both are looked up, wherever it is now.
    identity : callable
        Tells what lies at a path from anything else, whatever its name; None where it cannot.

    Raises
    ------
    OSError
        As `os.rename`; `path` has kept its name.
    """
    names = (path, target) if folder is None else (path.name, target.name)
    before = identity(path)
    try:
        # Windows replaces nothing by `os.rename`, and no folder by `os.replace`.
        move = os.rename if path.is_dir() else os.replace
        move(*names, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        if before is None or path.exists() or identity(target) != before:
            raise


def own_folder(path: Path) -> int | None:
    """A descriptor of a folder that nobody else can write to, made if it is not there; None where it is another's.

    Names in a folder that all users share, such as that for temporary files, can be taken by anybody first.
    """
    with suppress(OSError):
        path.mkdir(mode=0o700, exist_ok=True)
    return opened_own_folder(path)


def opened_own_folder(path: Path) -> int | None:
    """A descriptor of a folder that nobody else can write to; None where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _FOLDER | _NO_LINK | _NO_WAIT)
    except OSError:
        return None
    if _is_own(os.fstat(descriptor)):
        return descriptor
    os.close(descriptor)
    return None


def open_own(name: str, folder: int, flags: int = os.O_RDWR) -> int:
    """A descriptor of a file of one's own in an open folder; neither followed where it is a link, nor waited for.

    Raises
    ------
    OSError
        If it cannot be opened, or is a link, no file, or another user's.
    """
    descriptor = os.open(name, flags | _NO_LINK | _NO_WAIT, 0o600, dir_fd=folder)
    there = os.fstat(descriptor)
    if stat.S_ISREG(there.st_mode) and _is_own(there):
        return descriptor
    os.close(descriptor)
    raise NoPlainFileError(f"{name!r} is no file of this user")


def locked(name: str, folder: int) -> bool:
    """Whether this process has locked a file of an open folder, which it then keeps open for as long as it lives."""
    try:
        descriptor = open_own(name, folder, os.O_RDWR | os.O_CREAT)
    except OSError:
        return False
    if not try_lock(descriptor):
        os.close(descriptor)
        return False
    return True


def try_lock(descriptor: int, *, waits: bool = False) -> bool:
    """Whether this process now holds the lock of an open file or folder, for which it may wait.

    The system lets go of it when the process dies, however it dies: a lock that is to be had at once is nobody's.
    """
    if not CAN_LOCK:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def _is_own(there: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and no one else may write to it."""
    return there.st_uid == os.getuid() and not there.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
