"""States on a local path or any fsspec URL, in two slots, so that the last one stays until the new one is complete.

A state is written as arrays and JSON, without pickle.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
import google_crc32c
import numpy as np

from dkl.data.store.location import Location, reason_of
from dkl.data.store.outputs import beside
from dkl.data.store.overwriting import STORES, store_around, what_is_at
from dkl.errors import StoreError
from dkl.plain_files import NoPlainFileError, read_plain

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FORMAT = 1
MAGIC = b"dkl-checkpoint\n"
HEADER = "header"


@dataclass(frozen=True, eq=False)
class SavedState:
    """The content of a checkpoint: arrays, JSON values, and the number of rounds before it was saved."""

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
        # the file system would raise a less helpful error, and only after the first pass
        if "\0" in self.store:
            raise ValueError(f"checkpoint={self.store!r} holds a NUL character, which no path may have; take it out")
        self._files, self._folder = fsspec.core.url_to_fs(self.store, **storage_options)
        self._is_local = isinstance(self._files, fsspec.implementations.local.LocalFileSystem)
        # the number of the state that this run has last read or written; None before the first access
        self._last: int | None = None

    def save(
        self, arrays: Mapping[str, np.ndarray], values: object = None, *, fingerprint: str = "", rounds: int = 0
    ) -> None:
        """Write a complete state next to the last one: if the process is killed at any moment, one of the two remains.

        Parameters
        ----------
        arrays : mapping of str to ndarray
        values : object
            Anything that JSON can represent.
        fingerprint : str
            Fingerprint of the run that may resume from the state.
        rounds : int

        Raises
        ------
        StoreError
            If another run has saved its state there in the meantime, even with the same fingerprint.
        OSError
            If the state cannot be written, with the path and the number of bytes; the last state stays.
        """
        newest = self._newest()
        if newest is not None:
            self._check_owner(newest[1], fingerprint)
        # two fits with the same data and parameters have the same fingerprint, but other numbers
        if self._last is not None and self._last != _sequence(newest):
            raise StoreError(
                f"another fit is using the checkpoint {self.store!r} at this moment and has saved its state there; let "
                "it end, or give each fit a place of its own"
            )
        self._last = _sequence(newest)
        # the slot without the newest state is overwritten; of the complete ones the newest counts
        slot, sequence = (0, 0) if newest is None else (1 - newest[0], newest[1]["sequence"] + 1)
        # the newer of two slots has the higher number, as the clocks of several machines may differ
        header = {
            "format": FORMAT,
            "sequence": sequence,
            "fingerprint": fingerprint,
            "rounds": rounds,
            "values": values,
        }
        self._write(self._path(slot), _packed(header, arrays))
        self._last = sequence

    def load(self, fingerprint: str = "", parts: Mapping[str, str] | None = None) -> SavedState | None:
        """The last state that was saved completely, or None.

        Parameters
        ----------
        fingerprint : str
        parts : mapping of str to str, or None
            Digests of what the fingerprint is of, by name. If they were saved as the value "parts", the error names
            those that differ.

        Raises
        ------
        StoreError
            If it belongs to another run (other data, parameters or version) or has a newer format.
        """
        newest = self._newest()
        self._last = _sequence(newest)
        if newest is None:
            return None
        _, header, arrays = newest
        self._check_owner(header, fingerprint, parts)
        return SavedState(arrays, header["values"], header["rounds"])

    def clear(self) -> None:
        """Remove both slots."""
        self._last = None
        for slot in (0, 1):
            if self._files.exists(self._path(slot)):
                self._files.rm_file(self._path(slot))

    def _check_owner(self, header: Mapping[str, Any], fingerprint: str, parts: Mapping[str, str] | None = None) -> None:
        if header["fingerprint"] == fingerprint:
            return
        values = header["values"]
        saved = values.get("parts", {}) if isinstance(values, dict) else {}
        names = [name for name in {**saved, **(parts or {})} if saved.get(name) != (parts or {}).get(name)]
        differs = f"these differ: {', '.join(names)}"
        if not saved or not names:
            both = f"{header['fingerprint']!r} instead of {fingerprint!r}"
            differs = f"its estimator, data, parameters or version differ: {both}"
        raise StoreError(
            f"the checkpoint {self.store!r} belongs to another run ({differs}); choose another place or remove it"
        )

    def _path(self, slot: int) -> str:
        return posixpath.join(self._folder, f"state-{slot}.dkl")

    def _newest(self) -> tuple[int, dict[str, Any], dict[str, np.ndarray]] | None:
        """The slot of the newest complete state, with its header and its arrays."""
        slots = [(slot, *content) for slot in (0, 1) if (content := self._read(self._path(slot))) is not None]
        return max(slots, key=lambda slot: slot[1]["sequence"], default=None)

    def _read(self, path: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
        """The content of a slot, or None if it is missing or incomplete."""
        try:
            content = read_plain(path) if self._is_local else self._files.cat_file(path)
        except FileNotFoundError:
            return None
        except NoPlainFileError as error:
            raise StoreError(f"the checkpoint {self.store!r} holds no state: {error}") from error
        except NotADirectoryError as error:
            raise NotADirectoryError(
                f"the checkpoint {self.store!r} lies under a file; a checkpoint is a folder: choose another path"
            ) from error
        return _unpacked(content, self.store)

    def _write(self, path: str, content: bytes) -> None:
        """Write a slot; an error of the file system is raised with its reason and what remains."""
        try:
            self._write_whole(path, content)
        except OSError as error:
            if error.errno is None:
                raise
            kept = "No state was kept" if self._last == _sequence(None) else "The last state is kept"
            message = f"{len(content):,} bytes of a checkpoint were not written: {reason_of(error.errno)}. {kept}"
            raise OSError(error.errno, message, path) from error

    def _write_whole(self, path: str, content: bytes) -> None:
        # object stores show an object only when it is complete
        if not self._is_local:
            self._files.pipe_file(path, content)
            return
        os.makedirs(self._folder, exist_ok=True)
        with beside(Location.of(path)) as unfinished:
            unfinished.write_bytes(content)


def check_place(store: str | Path) -> None:
    """Raise an error if something else is at the place of a checkpoint, which needs a folder of its own.

    Raises
    ------
    NotADirectoryError
        If there is a file.
    StoreError
        If there is a dataset or a model, or the folder would lie inside one.
    """
    location = Location.of(store)
    there = what_is_at(location)
    if there in ("file", "empty file", "device"):
        raise NotADirectoryError(
            f"the checkpoint {location.place} is a file; a checkpoint is a folder: choose another path"
        )
    if there in STORES or there == "unfinished store":
        raise StoreError(
            f"the checkpoint {location.place} is a {there}; states have a folder of their own: choose another path"
        )
    holder = store_around(location)
    if holder is not None:
        raise StoreError(
            f"the checkpoint {location.place} lies inside the {what_is_at(holder)} {holder.place}; choose another path"
        )


def _sequence(newest: tuple[int, dict[str, Any], dict[str, np.ndarray]] | None) -> int:
    """The number of a state; -1 for none."""
    return -1 if newest is None else int(newest[1]["sequence"])


def _packed(header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Magic bytes, a checksum, and an npz archive of the arrays, with the header as JSON text in another array."""
    body = io.BytesIO()
    names = list(arrays)
    text = np.frombuffer(json.dumps({**header, "names": names}).encode(), dtype=np.uint8)
    np.savez(
        body, allow_pickle=False, **{HEADER: text}, **{f"a{place}": arrays[name] for place, name in enumerate(names)}
    )
    content = body.getvalue()
    return MAGIC + google_crc32c.value(content).to_bytes(4, "big") + content


def _unpacked(content: bytes, store: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Header and arrays from the result of `_packed`; None if it is incomplete."""
    start = len(MAGIC) + 4
    body = content[start:]
    if not content.startswith(MAGIC) or google_crc32c.value(body).to_bytes(4, "big") != content[len(MAGIC) : start]:
        return None
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        header = json.loads(archive[HEADER].tobytes())
        if header["format"] > FORMAT:
            raise StoreError(f"the checkpoint {store!r} has format {header['format']}; this dkl reads up to {FORMAT}")
        return header, {name: archive[f"a{place}"] for place, name in enumerate(header["names"])}


S = TypeVar("S")

Encoded = tuple[dict[str, np.ndarray], Any]


def encode_state(state: DataclassInstance) -> Encoded:
    """The arrays of a frozen dataclass by name, and its other values as JSON.

    Fields may hold arrays, numbers, strings, None, and tuples, lists and dicts (with string keys) of these.

    Raises
    ------
    TypeError
        If a field holds anything else.
    """
    arrays: dict[str, np.ndarray] = {}
    fields = {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    return arrays, {name: _encode(value, name, arrays) for name, value in fields.items()}


def decode_state(cls: type[S], arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> S:
    """The state of class `cls` from the result of `encode_state`.

    Raises
    ------
    StoreError
        If it has unknown fields, or lacks one without a default, because another build of dkl has written it.
    """
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    required = {each.name for each in fields if each.default is each.default_factory is dataclasses.MISSING}
    differing = sorted((set(values) - {each.name for each in fields}) | (required - set(values)))
    if differing:
        raise StoreError(
            f"the checkpoint was written by another build of dkl: of {cls.__name__}, the fields {differing} differ. "
            "Its run cannot go on here; remove the checkpoint to begin anew"
        )
    return cls(**{name: _decode(value, arrays) for name, value in values.items()})


def _encode(value: object, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """A value as JSON; its arrays go to `arrays`, by the path of names to them, which replaces them.

    JSON has neither tuples nor NumPy numbers: these, and all containers, become an object with one key, which names
    their kind.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            raise TypeError(f"the state's {path!r} is an array of objects; a checkpoint holds numbers")
        arrays[path] = value
        return {"array": path}
    if isinstance(value, np.generic):
        return {"number": _encode(np.asarray(value), path, arrays)}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encode(item, f"{path}.{place}", arrays) for place, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return {"dict": {str(name): _encode(item, f"{path}.{name}", arrays) for name, item in value.items()}}
    raise TypeError(f"the state's {path!r} is a {type(value).__name__}; a checkpoint holds arrays, numbers and strings")


def _decode(value: object, arrays: Mapping[str, np.ndarray]) -> Any:
    """The inverse of `_encode`."""
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "number":
        # an array without dimensions, indexed by an empty tuple, gives its only number
        return _decode(content, arrays)[()]
    if kind == "dict":
        return {name: _decode(item, arrays) for name, item in content.items()}
    items = [_decode(item, arrays) for item in content]
    return tuple(items) if kind == "tuple" else items
