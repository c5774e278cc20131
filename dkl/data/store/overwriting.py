"""The rule for what may be replaced by an output, checked before the work begins and again by the writer."""

from __future__ import annotations

import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from dkl.data.store.abandoned import put_back
from dkl.data.store.location import Location, located_error
from dkl.plain_text import first_few

# Names in messages of the outputs that are zarr groups with a marker; other outputs are files or folders.
STORES = ("dataset", "model", "set of splits", "version")
# The number of files that an error lists.
_SHOWN = 5
_TOKEN = "[0-9a-f]{32}"
# Files of zarr, also unfinished ones of killed processes, and files in hidden folders of dkl's writers.
_FILES_OF_DKL = re.compile(
    rf"(?:.*/)?(?:zarr\.json|c(?:/\d+)*|[^/]+\.{_TOKEN}\.partial)|(?:.*/)?\.[^/]+\.{_TOKEN}\.(?:partial|replaced)/.*"
)
# Files that file systems and file managers create.
_SYSTEM_FILES = re.compile(r"(?:.*/)?(?:\.DS_Store|\._[^/]*|Thumbs\.db|desktop\.ini|\.nfs[^/]*)")
_DATASET_FILES = re.compile(
    r"zarr\.(?:json|\w+\.partial)|\..*|(?:X|y|sample_weight|row_id|group|time|texts|manifest|splits|versions)/.*"
)
_VERSION_FILES = re.compile(r"versions/(?:zarr\.|\d+/|\.)")


def what_is_at(location: Location) -> str | None:
    """The kind of what exists at a path or URL.

    Returns
    -------
    str or None
        "dataset", "model", "set of splits" or "version" for a complete store of dkl, "unfinished store" for one that is
        being written or whose writer was killed, else "file", "empty file", "device" or "folder"; None for nothing or
        an empty folder.
    """
    put_back(location)
    if location.is_local:
        # asked once, since another process may make or remove a folder meanwhile, which then looked like a device
        try:
            found = location.path.stat()
        except (OSError, ValueError) as error:
            # nothing, a path under a file, links in a circle; or, with no number, a path that no file can have
            if getattr(error, "errno", None) not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, None):
                raise
            return None
        if stat.S_ISREG(found.st_mode):
            return "file" if found.st_size else "empty file"
        if not stat.S_ISDIR(found.st_mode):
            return "device"
    if marker := location.sound_marker():
        if marker.get("state") != "complete":
            return "unfinished store"
        # versions that append rows are datasets themselves; those that drop rows are only a record
        kinds = {"model": "model", "splits": "set of splits", "drop": "version"}
        return kinds.get(str(marker.get("kind")), "dataset")
    return "folder" if location.exists() else None


def is_store(store: str | os.PathLike[str], **storage_options: Any) -> bool:
    """Whether there is a store of dkl, complete or half-written, at a path or URL, instead of files to ingest."""
    location = Location.of(store, storage_options)
    put_back(location)
    try:
        return location.read_marker() is not None
    except ValueError:
        return location.is_local and location.path.is_dir()


def means_store(name: str) -> bool:
    """Whether a name is that of a store of dkl, existing or to be written, instead of files to read."""
    return name.rstrip("/").endswith(".zarr") or is_store(name)


def check_output(
    target: Location | str | os.PathLike[str],
    kind: str,
    *,
    overwrite: bool,
    inputs: Iterable[object] = (),
    is_own: Callable[[Path], bool] | None = None,
    belongs: Callable[[str], bool] | None = None,
    in_store: bool = False,
) -> None:
    """Raise an error if an output may not or cannot be written to a place.

    Commands and functions call it before any work; the writer of a store calls it again when it begins, since another
    process may have written there meanwhile.

    Parameters
    ----------
    target : Location, or path or URL
    kind : str
        The kind of the output, as in messages: "dataset", "model", "predictions". Only the same kind is replaced.
    overwrite : bool
        Whether to replace an existing output of the same kind.
    inputs : iterable of path
        Paths, URLs or globs that the work reads; other objects are ignored.
    is_own : callable or None
        Whether a local file or folder that is not a store of dkl is of this kind.
    belongs : callable or None
        Whether a name in a folder to be replaced is of a file that dkl wrote. None applies the rule for stores, and for
        other folders replaces everything.
    in_store : bool
        Whether the output is a part of a store (a version, a set of splits); otherwise it must not be inside one.

    Raises
    ------
    FileExistsError
        If something of another kind exists, `overwrite` is False, or there are files that dkl did not write.
    ValueError
        If the output is an input, is inside one, or contains one.
    OSError
        If the folder of the output is a file, or is not writable.
    """
    location = target if isinstance(target, Location) else Location.of(target)
    for given in inputs:
        _check_apart(location, given)
    holder = None if in_store else store_around(location)
    if holder is not None:
        # the output would be removed with that store
        raise ValueError(
            f"{location.place} lies inside {holder.place}, which is {_with_article(what_is_at(holder) or '')}; choose "
            "a path outside of it"
        )
    there = what_is_at(location)
    is_kind = there == kind
    # a pipe is not read, as reading would wait for a writer
    if not is_kind and there not in (None, "device") and is_own is not None and location.is_local:
        is_kind = is_own(location.path)
    if is_kind or (there == "empty file" and kind not in STORES):
        if not overwrite:
            raise FileExistsError(f"{location.place} exists; choose another path, or pass overwrite=True to replace it")
        _check_only_ours(location, there, belongs)
    elif there == "unfinished store" and kind in STORES:
        # a half-written store is replaced, but not if it contains files of the user
        _check_only_ours(location, there, belongs)
    elif there is not None:
        raise FileExistsError(
            f"{location.place} exists: it is {_with_article(there)}, not {_with_article(kind)} that dkl has written, "
            "so it is never replaced; choose another path, or remove it yourself first"
        )
    if location.is_local:
        check_writable(location)


def _with_article(kind: str) -> str:
    """A kind with its article."""
    if kind in ("predictions", "an older result"):
        return kind
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _check_only_ours(location: Location, there: str | None, belongs: Callable[[str], bool] | None) -> None:
    """Raise FileExistsError if files of the user would be removed by the replacement."""
    if belongs is not None and location.is_local and location.path.is_dir():
        check_no_other_files(location, (entry.name for entry in location.path.iterdir()), belongs)
    elif there in STORES or there == "unfinished store":
        check_whole_store(location, location.sound_marker())


def _is_of_store(name: str, marker: Mapping[str, Any]) -> bool:
    """Whether dkl wrote a file of a store's folder, by its name; `marker` is the metadata of the store."""
    if not _FILES_OF_DKL.fullmatch(name):
        return False
    if marker.get("kind") != "dataset":
        return True
    # a user's own zarr arrays in the folder of a dataset have names that none of its arrays has
    if name.startswith("versions/"):
        return bool(_VERSION_FILES.match(name))
    return bool(_DATASET_FILES.fullmatch(name))


def check_no_other_files(location: Location, names: Iterable[str], belongs: Callable[[str], bool]) -> None:
    """Raise FileExistsError, with a list, if files that do not belong to an output would be deleted with it."""
    others = sorted(name for name in names if not _SYSTEM_FILES.fullmatch(name) and not belongs(name))
    if others:
        shown = ", ".join(first_few(others, _SHOWN, text_of=repr))
        raise FileExistsError(
            f"{location.place} holds files that dkl did not write: {shown}. "
            "overwrite=True would delete them, so nothing was replaced; move them away, or choose another path"
        )


def check_whole_store(location: Location, marker: Mapping[str, Any]) -> None:
    """`check_no_other_files` of a store to be replaced, whose marker is given."""
    check_no_other_files(location, location.files(), partial(_is_of_store, marker=marker))


def _check_apart(location: Location, given: object) -> None:
    """Raise ValueError for an output that is an input, also by another name, is inside it, or contains it."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        return
    text = os.fspath(given)
    # a glob is replaced by the local files that it matches
    is_glob = "://" not in text and not os.path.exists(text) and glob.has_magic(text)
    for name in glob.glob(os.path.expanduser(text), recursive=True) if is_glob else [text]:
        other = Location.of(name)
        out, into = location.url.rstrip("/"), other.url.rstrip("/")
        same = out == into
        if location.is_local and other.is_local:
            # hard links, and on some systems names that differ in case, are the same file
            with suppress(OSError):
                same = same or os.path.samefile(location.path, other.path)
        if same:
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


def store_around(location: Location) -> Location | None:
    """The dataset or model around a local path; None if there is none."""
    for parent in location.path.parents if location.is_local else ():
        holder = Location(str(parent), str(parent))
        if (parent / "zarr.json").is_file() and what_is_at(holder) in ("dataset", "model"):
            return holder
    return None


def check_writable(location: Location) -> None:
    """Raise an OSError if a file or folder cannot be created here; missing parent folders are created later."""
    path = location.path
    if path.is_symlink():
        # links were resolved before: a remaining link is a cycle
        raise located_error(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), location, "Nothing was begun")
    if path.exists() and not path.is_dir() and not path.is_file():
        return
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{location.place} cannot be written: {str(folder)!r} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(folder).f_flag & getattr(os, "ST_RDONLY", 1))
        raise located_error(OSError(errno.EROFS if is_read_only else errno.EACCES, ""), location, "Nothing was begun")
