"""Where results go: looked at before the work that leads to them, written beside, and renamed when they are whole."""

from __future__ import annotations

import errno
import glob
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from dkl.data.store.commit import exchanged, located_error
from dkl.data.store.location import MARKER, Location

# what a file manager leaves in folders
_DROPPINGS = frozenset({".DS_Store", "Thumbs.db"})


def what_is_at(location: Location) -> str | None:
    """What lies at a path or URL.

    Returns
    -------
    str or None
        "dataset" or "model" for a whole store of dkl, "unfinished store" for what a writer of one is writing or has
        left, else "file", "empty file" or "folder"; None where there is nothing, or an empty folder.
    """
    if location.is_local and location.path.is_file():
        return "file" if location.path.stat().st_size else "empty file"
    if location.is_local and not location.path.is_dir():
        return "device" if location.path.exists() else None
    marker = attributes_at(location).get(MARKER)
    if isinstance(marker, dict):
        if marker.get("state") != "complete":
            return "unfinished store"
        return "model" if marker.get("kind") == "model" else "dataset"
    return "folder" if location.exists() else None


def attributes_at(location: Location) -> dict[str, Any]:
    """The attributes of the zarr node at a location; empty where there is none, or where its metadata is damaged."""
    text = location.read("zarr.json")
    try:
        node = json.loads(text or b"null")
    except (ValueError, RecursionError):
        return {}
    attributes = node.get("attributes") if isinstance(node, dict) else None
    return attributes if isinstance(attributes, dict) else {}


def check_output(
    target: Location | str | os.PathLike[str],
    kind: str,
    *,
    overwrite: bool,
    inputs: Iterable[Any] = (),
    is_own: Callable[[Path], bool] | None = None,
    belongs: Callable[[str], bool] | None = None,
) -> None:
    """Refuse, before any work, a place where the result may not or cannot be written.

    Parameters
    ----------
    target : Location, or path or URL
    kind : str
        What is to be written, as messages call it: "dataset", "model", "predictions". It replaces its own kind only.
    overwrite : bool
        Whether something of the same kind that is there is replaced.
    inputs : iterable of path
        What the work reads: paths, URLs or globs. Whatever is no path is passed over.
    is_own : callable or None
        Tells whether a local file or folder that is no store of dkl is of the kind nevertheless.
    belongs : callable or None
        Tells which names in a folder that is to be replaced are dkl's own; None is all of them.

    Raises
    ------
    FileExistsError
        Something is there that is of another kind, or must not be replaced without `overwrite`.
    ValueError
        The output is one of the inputs, lies inside one of them, or holds one.
    OSError
        The folder of the output is none, or nothing can be written there.
    """
    location = target if isinstance(target, Location) else Location.of(target)
    for given in inputs:
        _check_apart(location, given)
    _check_around(location)
    found = what_is_at(location)
    own = found == kind or (found is not None and is_own is not None and location.is_local and is_own(location.path))
    if own or found == "empty file":
        if not overwrite:
            raise FileExistsError(
                f"{location.place} exists; choose another path, or pass overwrite=True (in the shell --overwrite) to "
                "replace it"
            )
        if found != "empty file":
            _check_strangers(location, belongs)
    elif found == "unfinished store" and kind in ("dataset", "model"):
        pass  # what a killed writer left is nobody's
    elif found is not None:
        raise FileExistsError(
            f"{location.place} exists: it is {_article(found)}, not {_article(kind)} that dkl has written, so it is "
            "not replaced, whatever overwrite says; choose another path, or remove it yourself first"
        )
    if location.is_local:
        _check_writable(location)


def _article(kind: str) -> str:
    if kind in ("predictions", "an older result"):
        return kind
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def _check_strangers(location: Location, belongs: Callable[[str], bool] | None) -> None:
    """Replacing a folder removes all that is in it."""
    if belongs is None or not location.is_local or not location.path.is_dir():
        return
    names = sorted(entry.name for entry in location.path.iterdir())
    strange = [name for name in names if name not in _DROPPINGS and not belongs(name)]
    if strange:
        raise FileExistsError(
            f"{location.place} holds what dkl did not write: {', '.join(map(repr, strange[:10]))}. It would be removed "
            "with the rest, so nothing is replaced; move it elsewhere, or choose another path"
        )


def _check_apart(location: Location, given: Any) -> None:
    """Refuse an output that is an input, by whatever name, lies inside it or holds it."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        return
    for name in _expanded(os.fspath(given)):
        other = Location.of(name)
        out, into = location.url.rstrip("/"), other.url.rstrip("/")
        if out == into or _same_file(location, other):
            relation = "is the input"
        elif into.startswith(f"{out}/"):
            relation = "holds the input"
        elif out.startswith(f"{into}/"):
            relation = "lies inside the input"
        else:
            continue
        raise ValueError(
            f"the output {location.place} {relation} {other.place}; results are never written into what they are made "
            "of: choose another path for the output"
        )


def _expanded(given: str) -> list[str]:
    """The local files that a glob names; any other name alone."""
    if "://" in given or os.path.exists(given) or not glob.has_magic(given):
        return [given]
    return glob.glob(os.path.expanduser(given), recursive=True)


def _same_file(one: Location, other: Location) -> bool:
    """Whether two local names lead to one file or folder (hard links, names that differ in case only)."""
    if not (one.is_local and other.is_local):
        return False
    with suppress(OSError):
        return os.path.samefile(one.path, other.path)
    return False


def store_around(location: Location) -> Location | None:
    """The dataset or model that a local path lies inside, if any."""
    for parent in location.path.parents if location.is_local else ():
        holder = Location(str(parent), str(parent))
        if (parent / "zarr.json").is_file() and what_is_at(holder) in ("dataset", "model"):
            return holder
    return None


def _check_around(location: Location) -> None:
    """Refuse a place inside a store of dkl: it would belong to the store, and go with it."""
    holder = store_around(location)
    if holder is not None:
        raise ValueError(
            f"{location.place} lies inside {holder.place}, which is {_article(what_is_at(holder) or '')}; choose a "
            "path outside of it"
        )


def check_folder(location: Location) -> None:
    """Refuse a local file whose folder is not there, or where nothing can be written."""
    if location.is_local and not location.path.parent.exists():
        raise FileNotFoundError(f"the folder of {location.place} is not there; make it first")
    if location.is_local:
        _check_writable(location)


def check_file(path: str | os.PathLike[str]) -> Location:
    """The place of a single file that is to be written, refused as `written_whole` refuses it."""
    location = Location.of(path)
    if not location.is_local:
        raise ValueError(f"{location.place} is a URL; a file is written to a local path")
    if location.path.is_dir():
        raise IsADirectoryError(f"{location.place} is a folder; name a file in it")
    check_folder(location)
    return location


def _check_writable(location: Location) -> None:
    """Refuse where the file or folder cannot be made; folders on the way are made later."""
    path = location.path
    if path.exists() and not path.is_dir() and not path.is_file():
        return
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{location.place} cannot be written: {str(folder)!r} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(folder).f_flag & getattr(os, "ST_RDONLY", 1))
        raise located_error(OSError(errno.EROFS if is_read_only else errno.EACCES, ""), location, "Nothing was begun")


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
    hidden = final.with_name(f".{uuid.uuid4().hex}.part{Path(location.given).suffix}")
    try:
        yield hidden
        check()
        with writing(location):
            _put(hidden, final)
    finally:
        _remove(hidden)


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A hidden name to write a file under; the block only writes it, and it appears at `path` when it is complete.

    Raises
    ------
    ValueError
        For a URL.
    OSError
        With the path, when writing fails; a file that was there is as it was.
    """
    location = check_file(path)
    with beside(location) as hidden, writing(location):
        yield hidden


def _put(hidden: Path, final: Path) -> None:
    """Flush what was written, and rename it; a folder takes the place of another in one step where that is possible."""
    if hidden.is_file():
        if final.is_file():
            shutil.copymode(final, hidden)
        _sync(hidden)
        os.replace(hidden, final)
    else:
        for parent, _, names in os.walk(hidden):
            for name in [*names, "."]:
                _sync(Path(parent, name))
        if not final.is_dir():
            os.rename(hidden, final)
        elif not exchanged(hidden, final):
            aside = hidden.with_suffix(".replaced")
            os.rename(final, aside)
            try:
                os.rename(hidden, final)
            except OSError:
                os.rename(aside, final)
                raise
            os.rename(aside, hidden)
    _sync(final.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
