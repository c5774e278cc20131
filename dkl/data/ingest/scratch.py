"""Temporary folders: checked for space, removed on any exit, cleared by the next run after a process was killed."""

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
    """Refuse work whose temporary files will not fit.

    Raises
    ------
    OSError
        The disk of `directory` has fewer than `n_bytes` free; the message holds both numbers.
    """
    # An estimate, looked at once: better to refuse now than to fail after an hour with a full disk.
    free = shutil.disk_usage(directory).free
    if n_bytes > free:
        raise OSError(
            f"{purpose} needs about {format_bytes(n_bytes)} ({n_bytes} bytes) of temporary disk in '{directory}', "
            f"where {format_bytes(free)} ({free} bytes) are free; free some, or pass temporary_directory="
        )


@contextmanager
def scratch_folder(directory: str | os.PathLike[str] | None, *, name: str = "dkl") -> Iterator[Path]:
    """A folder of one's own in `directory` (None: the system's), removed with all it holds on leaving.

    Folders of the same `name` whose process is gone (killed before it could clean up) are removed on the way in.

    Raises
    ------
    FileNotFoundError, PermissionError
        `directory` is not there, or nothing may be written in it.
    """
    parent = Path(directory or tempfile.gettempdir())
    # Names of files end at 255 bytes on most file systems.
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
    # Held while the folder is in use: the next run takes a folder whose lock is free for an abandoned one.
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        try_lock(lock)
        yield folder
    finally:
        os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove a folder of this user's whose process is gone.

    One without its lock file is being made this moment by another process, or is not ours to judge; so are links, and
    folders of others.
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
