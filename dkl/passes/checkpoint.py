"""A state kept whole on a local path or any fsspec URL: two slots, so the last one stays until the new one is there."""

from __future__ import annotations

import errno
import io
import json
import os
import posixpath
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np

from dkl.data.store.location import Location
from dkl.data.store.outputs import store_around, what_is_at
from dkl.errors import StoreError

FORMAT = 1
MAGIC = b"dkl-checkpoint\n"
HEADER = "header"


@dataclass(frozen=True, eq=False)
class SavedState:
    """What a checkpoint held: arrays, JSON, and after how many rounds it was saved."""

    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    values: Any = None
    rounds: int = 0


class Checkpoint:
    """Keeps the last state of a run.

    Parameters
    ----------
    store : str or Path
        A folder, or an fsspec URL (`s3://bucket/run`, `memory://run`).
    **storage_options
        For fsspec.
    """

    def __init__(self, store: str | Path, **storage_options: Any) -> None:
        self.store = str(store)
        if "\0" in self.store:
            raise ValueError(f"checkpoint={self.store!r} holds a NUL character, which no path may have; take it out")
        self._files, self._folder = fsspec.core.url_to_fs(self.store, **storage_options)
        self._is_local = isinstance(self._files, fsspec.implementations.local.LocalFileSystem)
        # the number of the state that this run has read or written last; None before it has looked
        self._seen: int | None = None

    def save(
        self, arrays: Mapping[str, np.ndarray], values: Any = None, *, fingerprint: str = "", rounds: int = 0
    ) -> None:
        """Write a state beside the last one, whole: a kill at any moment leaves one of the two.

        Parameters
        ----------
        arrays : mapping of str to ndarray
        values : object
            Anything that JSON holds.
        fingerprint : str
            Of the run that may resume from it.
        rounds : int

        Raises
        ------
        StoreError
            If another run has saved its state there in the meantime, one with the same fingerprint too.
        OSError
            If it cannot be written, with the path and the bytes; the last state stays.
        """
        found = self._newest()
        if found is not None:
            self._check_owner(found[1], fingerprint)
        if self._seen is not None and self._seen != _sequence(found):
            raise StoreError(
                f"another fit is using the checkpoint {self.store!r} at this moment and has saved its state there; let "
                "it end, or give each fit a place of its own"
            )
        slot, sequence = (0, 0) if found is None else (1 - found[0], found[1]["sequence"] + 1)
        header = {
            "format": FORMAT,
            "sequence": sequence,
            "fingerprint": fingerprint,
            "rounds": rounds,
            "values": values,
        }
        self._write(self._path(slot), _packed(header, arrays))
        self._seen = sequence

    def load(self, fingerprint: str = "") -> SavedState | None:
        """The last state that was saved whole, or None.

        Raises
        ------
        StoreError
            If it belongs to another run (data, parameters or version differ) or to a newer format.
        """
        found = self._newest()
        self._seen = _sequence(found)
        if found is None:
            return None
        _, header, arrays = found
        self._check_owner(header, fingerprint)
        return SavedState(arrays, header["values"], header["rounds"])

    def clear(self) -> None:
        """Remove both slots."""
        self._seen = None
        for slot in (0, 1):
            if self._files.exists(self._path(slot)):
                self._files.rm_file(self._path(slot))

    def _check_owner(self, header: Mapping[str, Any], fingerprint: str) -> None:
        if header["fingerprint"] != fingerprint:
            raise StoreError(
                f"the checkpoint {self.store!r} belongs to another run (its data, parameters or version differ: "
                f"{header['fingerprint']!r} instead of {fingerprint!r}); choose another place or remove it"
            )

    def _path(self, slot: int) -> str:
        return posixpath.join(self._folder, f"state-{slot}.dkl")

    def _newest(self) -> tuple[int, dict[str, Any], dict[str, np.ndarray]] | None:
        slots = [(slot, *content) for slot in (0, 1) if (content := self._read(self._path(slot))) is not None]
        return max(slots, key=lambda found: found[1]["sequence"], default=None)

    def _read(self, path: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """The content of a slot, or None where it is absent or was not written to its end."""
        try:
            content = self._files.cat_file(path)
        except FileNotFoundError:
            return None
        except NotADirectoryError as error:
            raise NotADirectoryError(
                f"the checkpoint {self.store!r} lies under a file; a checkpoint is a folder: choose another path"
            ) from error
        return _unpacked(content, self.store)

    def _write(self, path: str, content: bytes) -> None:
        try:
            self._write_whole(path, content)
        except OSError as error:
            if error.errno is None:
                raise
            reason = "the disk is full" if error.errno == errno.ENOSPC else os.strerror(error.errno)
            message = f"{len(content):,} bytes of a checkpoint were not written: {reason}. The last state is kept"
            raise OSError(error.errno, message, path) from error

    def _write_whole(self, path: str, content: bytes) -> None:
        if not self._is_local:
            self._files.pipe_file(path, content)
            return
        os.makedirs(self._folder, exist_ok=True)
        unfinished = f"{path}.{uuid.uuid4().hex}.unfinished"
        try:
            with open(unfinished, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)
        _sync_folder(self._folder)


def check_place(store: str | Path) -> None:
    """Refuse a checkpoint where something else is: states are kept in a folder of their own.

    Raises
    ------
    NotADirectoryError
        There is a file.
    StoreError
        There is a dataset or a model, or the folder would lie inside one.
    """
    location = Location.of(store)
    found = what_is_at(location)
    if found in ("file", "empty file", "device"):
        raise NotADirectoryError(
            f"the checkpoint {location.place} is a file; a checkpoint is a folder: choose another path"
        )
    if found in ("dataset", "model", "unfinished store"):
        raise StoreError(
            f"the checkpoint {location.place} is a {found}; states have a folder of their own: choose another path"
        )
    holder = store_around(location)
    if holder is not None:
        raise StoreError(
            f"the checkpoint {location.place} lies inside the {what_is_at(holder)} {holder.place}; choose another path"
        )


def _sequence(found: tuple[int, dict[str, Any], Any] | None) -> int:
    return -1 if found is None else int(found[1]["sequence"])


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _packed(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    body = io.BytesIO()
    names = list(arrays)
    text = np.frombuffer(json.dumps({**header, "names": names}).encode(), dtype=np.uint8)
    np.savez(
        body, allow_pickle=False, **{HEADER: text}, **{f"a{place}": arrays[name] for place, name in enumerate(names)}
    )
    content = body.getvalue()
    return MAGIC + google_crc32c.value(content).to_bytes(4, "big") + content


def _unpacked(content: bytes, store: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    start = len(MAGIC) + 4
    body = content[start:]
    if not content.startswith(MAGIC) or google_crc32c.value(body).to_bytes(4, "big") != content[len(MAGIC) : start]:
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as held:
        header = json.loads(held[HEADER].tobytes())
        if header["format"] > FORMAT:
            raise StoreError(f"the checkpoint {store!r} has format {header['format']}; this dkl reads up to {FORMAT}")
        return header, {name: held[f"a{place}"] for place, name in enumerate(header["names"])}
