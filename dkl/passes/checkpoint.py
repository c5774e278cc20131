"""A state kept whole on a local path or any fsspec URL: two slots, so the last one stays until the new one is there."""

from __future__ import annotations

import errno
import io
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import google_crc32c
import numpy as np

from dkl.errors import StoreError

FORMAT = 1
MAGIC = b"dkl-checkpoint\n"
HEADER = "header"


@dataclass(frozen=True, eq=False)
class Saved:
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
        self._files, self._folder = fsspec.core.url_to_fs(self.store, **storage_options)
        self._is_local = isinstance(self._files, fsspec.implementations.local.LocalFileSystem)

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
            If another run has saved its state there in the meantime.
        OSError
            If it cannot be written, with the path and the bytes; the last state stays.
        """
        found = self._newest()
        if found is not None:
            self._check_owner(found[1], fingerprint)
        slot, sequence = (0, 0) if found is None else (1 - found[0], found[1]["sequence"] + 1)
        header = {
            "format": FORMAT,
            "sequence": sequence,
            "fingerprint": fingerprint,
            "rounds": rounds,
            "values": values,
        }
        self._write(self._path(slot), _packed(header, arrays))

    def load(self, fingerprint: str = "") -> Saved | None:
        """The last state that was saved whole, or None.

        Raises
        ------
        StoreError
            If it belongs to another run (data, parameters or version differ) or to a newer format.
        """
        found = self._newest()
        if found is None:
            return None
        _, header, arrays = found
        self._check_owner(header, fingerprint)
        return Saved(arrays, header["values"], header["rounds"])

    def clear(self) -> None:
        """Remove both slots."""
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
        unfinished = f"{path}.{os.getpid()}.unfinished"
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
