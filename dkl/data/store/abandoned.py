"""Cleans up after killed writers: removes half-written stores, and renames a store back that was moved aside."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dkl.data.store.location import Location
from dkl.plain_files import CAN_LOCK, try_lock

# Seconds between checks whether a writer that has renamed the old store has also renamed the new one.
_PAUSES = (0.02, 0.1, 0.5, 2.0)


def hidden_prefix(path: Path) -> str:
    """The beginning of the names of a target's hidden folders: its name, or a hash if the name is too long."""
    name = path.name if len(os.fsencode(path.name)) < 180 else hashlib.sha256(os.fsencode(path.name)).hexdigest()
    return f".{name}."


def clear_abandoned(target: Location) -> None:
    """Remove the hidden folders that killed writers of a local target left, after `put_back`, with its errors."""
    put_back(target)
    for suffix in ("replaced", "partial"):
        for folder in _hidden_folders(target.path, suffix):
            with _abandoned(folder) as is_abandoned:
                if is_abandoned:
                    shutil.rmtree(folder, ignore_errors=True)


def put_back(target: Location) -> None:
    """Rename a store back if its writer was killed between the two renames by which it would have replaced the store.

    If the system cannot exchange two folders in one step, the old one is renamed first, and then the new one. In
    between no folder has the name; readers and writers that find nothing call this function.

    Parameters
    ----------
    target : Location
        Nothing is done for a URL, or if something exists there.

    Raises
    ------
    FileNotFoundError
        If the store cannot be renamed, or its writer is still at work; with the store's present path.
    """
    if not target.is_local or target.path.exists():
        return
    for aside in _hidden_folders(target.path, "replaced"):
        new = aside.with_suffix(".partial")
        reason: object = "its writer seems to be at work; try again"
        for pause in _PAUSES:
            if target.path.exists():
                break
            with _abandoned(new) as is_abandoned:
                if is_abandoned and not target.path.exists():
                    try:
                        os.rename(aside, target.path)
                        return
                    except OSError as error:
                        reason = error
            time.sleep(pause)
        else:
            raise FileNotFoundError(
                f"{target.place} is being replaced, or its writer was stopped between two renames; the old one lies in "
                f"{str(aside)!r} and has not got its name back ({reason}). If nobody is writing, rename that folder "
                f"to {target.path.name!r}"
            )


def _hidden_folders(target: Path, suffix: str) -> list[Path]:
    """The hidden folders with a suffix that writers of a target made beside it."""
    # the whole name must match: other names with this beginning belong to other stores (`rows`, `rows.zarr`)
    ours = re.compile(re.escape(hidden_prefix(target)) + rf"[0-9a-f]{{32}}\.{suffix}")
    try:
        names = [name for name in os.listdir(target.parent) if ours.fullmatch(name)]
    except OSError:  # no folder, or one whose names may not be read
        return []
    folders = (target.with_name(name) for name in sorted(names))
    return [folder for folder in folders if not folder.is_symlink() and folder.is_dir()]


@contextmanager
def _abandoned(folder: Path) -> Iterator[bool]:
    """Whether the writer of a hidden folder has ended; inside the block other processes do not remove the folder."""
    if not CAN_LOCK:
        yield False
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        yield try_lock(handle)
    finally:
        os.close(handle)
