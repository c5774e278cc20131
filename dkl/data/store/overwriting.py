"""What may be written over: the one rule, asked before the work for a result begins and again by its writer."""

from __future__ import annotations

import errno
import glob
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from dkl.data.store.abandoned import put_back
from dkl.data.store.location import MARKER, Location, located_error
from dkl.data.store.strangers import check_no_strangers

# What is written as a zarr group with a marker, by the name that messages give it; anything else is a file or a folder.
STORES = ("dataset", "model", "set of splits", "version")
# What a file manager leaves in folders by itself.
_DROPPINGS = frozenset({".DS_Store", "Thumbs.db"})


def what_is_at(location: Location) -> str | None:
    """What lies at a path or URL.

    Returns
    -------
    str or None
        "dataset", "model", "set of splits" or "version" for a whole store of dkl, "unfinished store" for what a writer
        of one is writing or has left, else "file", "empty file", "device" or "folder"; None where there is nothing, or
        an empty folder.
    """
    put_back(location)
    if location.is_local and location.path.is_file():
        return "file" if location.path.stat().st_size else "empty file"
    if location.is_local and not location.path.is_dir():
        return "device" if location.path.exists() else None
    marker = attributes_at(location).get(MARKER)
    if isinstance(marker, dict):
        if marker.get("state") != "complete":
            return "unfinished store"
        # Versions that append rows are datasets by themselves; those that drop rows hold a record alone.
        kinds = {"model": "model", "splits": "set of splits", "drop": "version"}
        return kinds.get(str(marker.get("kind")), "dataset")
    return "folder" if location.exists() else None


def is_store(store: str | os.PathLike[str], **storage_options: Any) -> bool:
    """Whether a dataset of dkl, whole or half-written, is at this path or URL (rather than files to ingest)."""
    location = Location.of(store, storage_options)
    put_back(location)
    try:
        return location.read_marker() is not None
    except ValueError:
        return location.is_local and location.path.is_dir()


def means_store(name: str) -> bool:
    """Whether somebody who names this means a store of dkl, there or not, rather than files to read."""
    return name.rstrip("/").endswith(".zarr") or is_store(name)


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
    inputs: Iterable[object] = (),
    is_own: Callable[[Path], bool] | None = None,
    belongs: Callable[[str], bool] | None = None,
    in_store: bool = False,
) -> None:
    """Refuse a place where a result may not or cannot be written.

    Commands and functions call it before any work; the writer of a store calls it once more when it begins, since
    something may have come to lie there meanwhile.

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
        Tells which names in a folder that is to be replaced are dkl's own. None asks the rule for stores, where there
        is one, and takes any other folder whole.
    in_store : bool
        The result is a part of a store (a version, a set of splits); else it must not lie inside one.

    Raises
    ------
    FileExistsError
        Something is there that is of another kind, must not be replaced without `overwrite`, or holds files that dkl
        did not write.
    ValueError
        The output is one of the inputs, lies inside one of them, or holds one.
    OSError
        The folder of the output is none, or nothing can be written there.
    """
    location = target if isinstance(target, Location) else Location.of(target)
    for given in inputs:
        _check_apart(location, given)
    holder = None if in_store else store_around(location)
    if holder is not None:
        # it would belong to that store, and go with it
        raise ValueError(
            f"{location.place} lies inside {holder.place}, which is {_with_article(what_is_at(holder) or '')}; choose "
            "a path outside of it"
        )
    there = what_is_at(location)
    is_kind = there == kind
    # a pipe is not looked into: that would wait for whoever writes there
    if not is_kind and there not in (None, "device") and is_own is not None and location.is_local:
        is_kind = is_own(location.path)
    if is_kind or (there == "empty file" and kind not in STORES):
        if not overwrite:
            raise FileExistsError(
                f"{location.place} exists; choose another path, or pass overwrite=True (in the shell --overwrite) to "
                "replace it"
            )
        _check_only_ours(location, there, belongs)
    elif there == "unfinished store" and kind in STORES:
        # What a killed writer left is nobody's, and is replaced; a user's files among it are not.
        _check_only_ours(location, there, belongs)
    elif there is not None:
        raise FileExistsError(
            f"{location.place} exists: it is {_with_article(there)}, not {_with_article(kind)} that dkl has written, "
            "so it is never replaced; choose another path, or remove it yourself first"
        )
    if location.is_local:
        check_writable(location)


def _with_article(kind: str) -> str:
    """What is at a place, as a sentence names it."""
    if kind in ("predictions", "an older result"):
        return kind
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _check_only_ours(location: Location, there: str | None, belongs: Callable[[str], bool] | None) -> None:
    """Refuse to replace what holds files of the user, which would be removed with the rest."""
    if belongs is not None and location.is_local and location.path.is_dir():
        names = sorted(entry.name for entry in location.path.iterdir())
        strange = [name for name in names if name not in _DROPPINGS and not belongs(name)]
        if strange:
            raise FileExistsError(
                f"{location.place} holds what dkl did not write: {', '.join(map(repr, strange[:10]))}. It would be "
                "removed with the rest, so nothing is replaced; move it elsewhere, or choose another path"
            )
    elif there in STORES or there == "unfinished store":
        check_no_strangers(location, attributes_at(location).get(MARKER, {}))


def _check_apart(location: Location, given: object) -> None:
    """Refuse an output that is an input, by whatever name, lies inside it or holds it."""
    if not isinstance(given, str | os.PathLike) or not os.fspath(given):
        return
    text = os.fspath(given)
    # A glob stands for the local files that it names; any other name for itself.
    is_glob = "://" not in text and not os.path.exists(text) and glob.has_magic(text)
    for name in glob.glob(os.path.expanduser(text), recursive=True) if is_glob else [text]:
        other = Location.of(name)
        out, into = location.url.rstrip("/"), other.url.rstrip("/")
        same = out == into
        if location.is_local and other.is_local:
            # hard links, and names that differ in case only, lead to one file
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
    """The dataset or model that a local path lies inside, if any."""
    for parent in location.path.parents if location.is_local else ():
        holder = Location(str(parent), str(parent))
        if (parent / "zarr.json").is_file() and what_is_at(holder) in ("dataset", "model"):
            return holder
    return None


def check_writable(location: Location) -> None:
    """Refuse where the file or folder cannot be made; folders on the way are made later."""
    path = location.path
    if path.is_symlink():
        # links were followed before: what is left of them leads back to itself
        raise located_error(OSError(errno.ELOOP, os.strerror(errno.ELOOP)), location, "Nothing was begun")
    if path.exists() and not path.is_dir() and not path.is_file():
        return
    folder = next(parent for parent in path.parents if parent.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"{location.place} cannot be written: {str(folder)!r} is a file, not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        is_read_only = bool(os.statvfs(folder).f_flag & getattr(os, "ST_RDONLY", 1))
        raise located_error(OSError(errno.EROFS if is_read_only else errno.EACCES, ""), location, "Nothing was begun")
