"""Atomic writes of files and folders: under a hidden name beside the final one, and renamed when complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dkl.data.store.commit import flush, flush_folder, flush_name, put_in_place_of
from dkl.data.store.location import Location, located_error
from dkl.data.store.overwriting import check_output, check_writable, what_is_at
from dkl.plain_files import rename


def check_folder(location: Location) -> None:
    """Raise an OSError if the folder of a local file does not exist or is not writable."""
    if location.is_local and not location.path.parent.exists():
        raise FileNotFoundError(f"the folder of {location.place} is not there; make it first")
    if location.is_local:
        check_writable(location)


@dataclass(frozen=True)
class FileKind:
    """A kind of files that a function writes without `overwrite=`, replacing only files of the same kind.

    Parameters
    ----------
    name : str
        Name of the kind in messages.
    is_own : callable
        Whether a file is certainly of this kind.
    """

    name: str
    is_own: Callable[[Path], bool]

    def check(self, location: Location) -> None:
        """Raise FileExistsError if something of another kind exists; a device is accepted."""
        if what_is_at(location) != "device":
            check_output(location, self.name, overwrite=True, is_own=self.is_own)


def check_file(path: str | os.PathLike[str], kind: FileKind | None = None) -> Location:
    """The location of a single file to be written, after the checks of `written_whole`."""
    location = Location.of(path)
    if not location.is_local:
        raise ValueError(f"{location.place} is a URL; a file is written to a local path")
    # a path that ends with a separator or a dot is that of a folder, also if it does not exist
    if location.path.is_dir() or os.path.basename(location.given) in ("", ".", ".."):
        raise IsADirectoryError(f"{location.place} is a folder; name a file in it")
    check_folder(location)
    if kind is not None:
        kind.check(location)
    return location


@contextmanager
def writing(location: Location) -> Iterator[None]:
    """Errors of the file system inside the block are raised with the path of the output and a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise located_error(error, location, "What was there before is as it was") from error


@contextmanager
def beside(location: Location, *, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """A hidden path for the file or folder that the ``with`` block writes; it is renamed to `location` at the end.

    After an error, or a crash of the system, the former file or folder is unchanged.

    Parameters
    ----------
    location : Location
        A local one. Links are followed; the mode of a replaced file is kept.
    check : callable
        Called before the renaming, which does not take place if it raises an error.
    """
    final = location.path
    if final.exists() and not final.is_dir() and not final.is_file():
        # a pipe or a device is written to, never replaced
        yield final
        return
    # in the same folder, as renames need one file system; with the suffix, on which some writers depend
    hidden = final.with_name(f".{uuid.uuid4().hex}.part{Path(location.given).suffix}")
    try:
        yield hidden
        check()
        with writing(location):
            if hidden.is_file():
                if final.is_file():
                    # the user may have changed the permissions of the file
                    shutil.copymode(final, hidden)
                flush(hidden)
                rename(hidden, final)
            else:
                flush_folder(hidden)
                if final.is_dir():
                    hidden = put_in_place_of(hidden, final)
                else:
                    rename(hidden, final)
        # after a power failure the rename persists only if the folder is on the disk
        flush_name(location)
    finally:
        # a folder that has the hidden name now is the replaced one, or one that could not be renamed
        if hidden.is_dir():
            shutil.rmtree(hidden, ignore_errors=True)
        else:
            # after the rename the path does not exist; other errors do not change the result
            with suppress(OSError):
                hidden.unlink()


@contextmanager
def written_whole(path: str | os.PathLike[str], kind: FileKind | None = None) -> Iterator[Path]:
    """A hidden path to which the block writes a file, which is renamed to `path` at the end.

    Without a kind the caller has checked that an existing file may be replaced.

    Raises
    ------
    ValueError
        For a URL.
    FileExistsError
        If a file of another kind exists, before or after the block.
    OSError
        If writing fails, with the path; an existing file is unchanged.
    """
    location = check_file(path, kind)

    def check() -> None:
        """Check again, since another process may have created a file meanwhile."""
        if kind is not None:
            kind.check(location)

    with beside(location, check=check) as hidden, writing(location):
        yield hidden
