"""Temporary folders: removed on exit; those of killed processes are removed by the next run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dask.utils import format_bytes

from dkl.plain_files import CAN_LOCK, open_own, opened_own_folder, try_lock

_LOCK = "in-use"


def check_free_space(directory: str | os.PathLike[str], n_bytes: int, purpose: str) -> None:
    """Raise OSError if the disk of `directory` has fewer than `n_bytes` bytes free; `purpose` begins the message."""
    # an error now is better than a full disk after an hour
    free = shutil.disk_usage(directory).free
    if n_bytes > free:
        raise OSError(
            f"{purpose} needs about {format_bytes(n_bytes)} ({n_bytes} bytes) of temporary disk in '{directory}', "
            f"where {format_bytes(free)} ({free} bytes) are free; free some, write to another disk, or in Python pass "
            "temporary_directory="
        )


@contextmanager
def scratch_folder(directory: str | os.PathLike[str] | None, *, name: str = "dkl") -> Iterator[Path]:
    """A new folder in `directory` (None: the system's temporary folder), removed with its content at the end.

    Folders with the same `name` that killed processes left are removed at the beginning.

    Raises
    ------
    FileNotFoundError, PermissionError
        If `directory` does not exist or is not writable.
    """
    parent = Path(directory or tempfile.gettempdir())
    # most file systems limit names to 255 bytes
    prefix = f".{name.encode()[:100].decode(errors='ignore')}.scratch-"
    pattern = "".join(f"[{char}]" if char in "*?[" else char for char in prefix)
    for abandoned in parent.glob(f"{pattern}*"):
        _remove_abandoned(abandoned)
    try:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    except (FileNotFoundError, PermissionError) as error:
        raise type(error)(
            error.errno, "temporary files cannot be written here; pass another temporary_directory=", str(parent)
        ) from error
    # locked while the folder is in use, since the next run removes folders whose lock is free
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try_lock(lock)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user if its process has ended.

    Links, folders of other users, and folders without a lock file, which another process may be creating, stay.
    """
    if not CAN_LOCK or (handle := opened_own_folder(folder)) is None:
        return
    try:
        with suppress(OSError):
            lock = open_own(_LOCK, handle)
            try:
                if try_lock(lock):
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
    finally:
        os.close(handle)
