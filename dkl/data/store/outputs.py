"""Files and folders that appear whole: written beside their place under a hidden name, and renamed when complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from dkl.data.store.commit import exchanged, flush, flush_folder, flush_name
from dkl.data.store.location import Location, located_error
from dkl.data.store.overwriting import check_output, check_writable, what_is_at
from dkl.plain_files import inode, rename


def check_folder(location: Location) -> None:
    """Refuse a local file whose folder is not there, or where nothing can be written."""
    if location.is_local and not location.path.parent.exists():
        raise FileNotFoundError(f"the folder of {location.place} is not there; make it first")
    if location.is_local:
        check_writable(location)


@dataclass(frozen=True)
class FileKind:
    """A kind of single files that a function writes without asking, of which it replaces its own alone.

    Parameters
    ----------
    name : str
        As messages call it.
    is_own : callable
        Whether a file is certain to be one of them.
    """

    name: str
    is_own: Callable[[Path], bool]

    def check(self, location: Location) -> None:
        """Raise FileExistsError where something else is, as `check_output` does; a device is written to."""
        if what_is_at(location) != "device":
            check_output(location, self.name, overwrite=True, is_own=self.is_own)


def check_file(path: str | os.PathLike[str], kind: FileKind | None = None) -> Location:
    """The place of a single file that is to be written, refused as `written_whole` refuses it."""
    location = Location.of(path)
    if not location.is_local:
        raise ValueError(f"{location.place} is a URL; a file is written to a local path")
    # a path that ends with a separator or a dot names a folder, also where none is there yet
    if location.path.is_dir() or os.path.basename(location.given) in ("", ".", ".."):
        raise IsADirectoryError(f"{location.place} is a folder; name a file in it")
    check_folder(location)
    if kind is not None:
        kind.check(location)
    return location


@contextmanager
def writing(location: Location) -> Iterator[None]:
    """A failure of the file system inside the block is said with the path of the output and what can be done."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise located_error(error, location, "What was there before is as it was") from error


@contextmanager
def beside(location: Location, *, check: Callable[[], None] = lambda: None) -> Iterator[Path]:
    """A hidden name to write a file or folder under, which takes the place of `location` at the end of the block.

    When the block fails, or the system does, what was there before stays as it is and nothing else is left.

    Parameters
    ----------
    location : Location
        Local. A link is followed; the mode of a file that is replaced is kept.
    check : callable
        Called once more before the exchange: what it raises leaves everything as it was.
    """
    final = location.path
    if final.exists() and not final.is_dir() and not final.is_file():
        yield final  # a pipe or a device is written to, never replaced
        return
    # In the same folder, so that the rename stays within one file system; with the suffix, which some writers look at.
    hidden = final.with_name(f".{uuid.uuid4().hex}.part{Path(location.given).suffix}")
    try:
        yield hidden
        check()
        with writing(location):
            if hidden.is_file():
                if final.is_file():
                    # A file keeps the permissions that somebody gave it.
                    shutil.copymode(final, hidden)
                flush(hidden)
                rename(hidden, final)
            else:
                flush_folder(hidden)
                _put_folder(hidden, final)
        # The rename itself is not kept before the folder is on the disk.
        flush_name(location)
    finally:
        # after an exchange the hidden name is that of the old folder
        if hidden.is_dir():
            shutil.rmtree(hidden, ignore_errors=True)
        else:
            # the name is gone after a rename; where a file system says anything else of it, the result is there or not
            with suppress(OSError):
                hidden.unlink()


@contextmanager
def written_whole(path: str | os.PathLike[str], kind: FileKind | None = None) -> Iterator[Path]:
    """A hidden name to write a file under; the block only writes it, and it appears at `path` when it is complete.

    Without a kind the caller has made sure that what is there may be replaced.

    Raises
    ------
    ValueError
        For a URL.
    FileExistsError
        If a file of another kind is there: before the block, and again when it has ended.
    OSError
        With the path, when writing fails; a file that was there is as it was.
    """
    location = check_file(path, kind)

    def check() -> None:
        """Ask again: something may have come to lie there meanwhile."""
        if kind is not None:
            kind.check(location)

    with beside(location, check=check) as hidden, writing(location):
        yield hidden


def _put_folder(hidden: Path, final: Path) -> None:
    """Rename a folder to its final name; what had that name has the hidden one afterwards.

    One step, where the system can exchange two names; otherwise three renames, undone if one fails.
    """
    new = inode(hidden)
    if not final.is_dir():
        rename(hidden, final)
    elif not exchanged(hidden, final) and inode(final) != new:
        # Two renames elsewhere: aside with the old one, and back if anything fails.
        aside = hidden.with_suffix(".replaced")
        rename(final, aside)
        try:
            rename(hidden, final)
        except OSError:
            rename(aside, final)
            raise
        rename(aside, hidden)
