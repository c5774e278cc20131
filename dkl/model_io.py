"""Fitted models on disk: a zarr group of plain arrays and one JSON tree. No pickle; loading runs no code of a file.

A value is written as JSON where JSON can hold it, an array goes to the group under a number, and an object becomes the
short name of its class and its fields. Reading goes the other way and only through classes that are known: those of
`STORED`, and those handed to `load_model(store, classes=[...])`.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import zarr
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dkl.data.store.abandoned import put_back
from dkl.data.store.commit import staged
from dkl.data.store.digests import crc32c
from dkl.data.store.location import MARKER, Location
from dkl.data.store.overwriting import check_output
from dkl.data.store.sealed import is_sealed, sealed
from dkl.errors import CorruptChunkError, StoreError, located
from dkl.features.feature_map import FeatureMap
from dkl.methods.parameters import Constrained, check_constraints
from dkl.registry import STORED
from dkl.version import __version__

# The attributes of estimators that go into predictions: a NaN among them would be in every answer.
_PREDICTING = frozenset({"coef_", "intercept_", "weights_", "target_center_", "target_scale_", "temperature_"})
FORMAT = 1
KIND = "model"

# How a fit was run says nothing about the model, and may hold what no file should: callables, paths.
_RUN_PARAMETERS = frozenset({"progress", "checkpoint", "memory_limit", "sums", "linear"})
_RUN_FIELDS = frozenset({"device", "provenance_", "stats_"})
# Arrays are numbered in the order in which the tree names them; nothing else may lie in the folder.
_ARRAY_NAME = re.compile(r"[0-9]{1,9}")
# scikit-learn's convention: what a fit has learned ends with an underscore.
_ATTRIBUTE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*_")
# Of scikit-learn's own estimators so much is needed to predict; the rest differs between its versions.
_SKLEARN_ATTRIBUTES = frozenset({"coef_", "intercept_", "classes_", "n_features_in_", "t_"})
_DTYPE = re.compile(r"\|O|[<>|][biuf][0-9]+|[<>][U][0-9]+")
_NUMERIC_KINDS = "biuf"
# Most bytes that the arrays of a file may take before its digests are checked, and the most as a multiple of its size:
# a small file with a huge array of zeros must not exhaust memory.
_ALLOWED_BYTES, _ALLOWED_RATIO = 64 << 20, 1_000
# Bits of a whole number, since seeds may be long ones. Python's numbers have no end, and a file could hold a huge one.
_LONGEST_INTEGER = 256
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# The errors in which reading a tree that somebody has edited may end, beside StoreError: they become one.
_DAMAGE = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
_ATOMS = (str, bool, int)


def save(model: object, store: str | Path, *, overwrite: bool = False, **storage_options: Any) -> None:
    """Write a fitted model to a store.

    Parameters
    ----------
    model : fitted feature learner, KernelClassifier, KernelRegressor, or anything else of a known kind
    store : str or Path
        A folder to be made, or an fsspec URL.
    overwrite : bool
        Replace a model that is there.
    **storage_options
        For fsspec.

    Raises
    ------
    NotFittedError
        If the model is not fitted.
    TypeError
        If part of it cannot be written as arrays and JSON; the part is named.
    FileExistsError
        If there is a model and `overwrite` is False, or anything else; or if a model that is to be replaced lies in a
        folder with what dkl did not write.
    ValueError
        If `store` lies inside a store of dkl.
    OSError
        If writing fails; nothing is visible then.
    """
    if isinstance(model, BaseEstimator):
        check_is_fitted(model)
    target = Location.of(store, storage_options)
    check_output(target, KIND, overwrite=overwrite, belongs=is_part_of_a_model)
    arrays: list[np.ndarray] = []
    tree = _encode(model, type(model).__name__, arrays)
    # All arrays are written to a hidden folder first; the marker, with which the model becomes visible, comes last.
    with staged(target, KIND, overwrite=overwrite) as staging:
        for number, array in enumerate(arrays):
            _write_array(staging.group, str(number), array)
        marker = {
            "kind": KIND,
            "format": FORMAT,
            "version": __version__,
            "model": tree,
            "digests": [crc32c(array) for array in arrays],
            "arrays": [[array.dtype.str, list(array.shape)] for array in arrays],
        }
        staging.commit(sealed(marker))


def load_model(store: str | Path, classes: Iterable[type] = (), **storage_options: Any) -> Any:
    """The model that `save` wrote: it predicts the same bits.

    Parameters
    ----------
    store : str or Path
    classes : iterable of type
        Classes of extensions that the file may name, estimators or dataclasses. No other code is run.
    **storage_options
        For fsspec.

    Raises
    ------
    FileNotFoundError
        If there is nothing at `store`.
    StoreError
        If what is there is no model, is incomplete or damaged, is of a newer format, or names a class that is not
        known.

    Examples
    --------
    >>> import numpy as np
    >>> import tempfile
    >>> import dkl
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> model = dkl.KernelClassifier("random", n_features=20, random_state=0).fit(X, X[:, 0] > 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save(f"{folder}/model.zarr")
    ...     same = dkl.load_model(f"{folder}/model.zarr")
    >>> bool(np.array_equal(model.decision_function(X), same.decision_function(X)))
    True
    """
    location = Location.of(store, storage_options)
    extensions = {cls.__name__: cls for cls in classes}
    with _read_as_a_model(location, f"the metadata of {location.place} is damaged", "; save the model again"):
        marker = _read_marker(location)
        shapes = marker.get("arrays")
        if shapes is not None and len(shapes) != len(marker["digests"]):
            raise StoreError(f"the metadata of {location.place} is damaged: it has not one digest an array")
        model = _Reader(location, marker["digests"], shapes, extensions).decode(marker["model"])
        # The marker signs itself, but for what is written after it. Models of dkl 0.1 have neither shapes nor a
        # digest of their metadata.
        signed = {name: value for name, value in marker.items() if name != "token"}
        if (shapes is not None or "digest" in marker) and not is_sealed(signed):
            raise StoreError(f"the metadata of {location.place} is not what was written; save the model again")
        return model


@contextmanager
def _read_as_a_model(location: Location, damage: str, remedy: str = "") -> Iterator[None]:
    """Errors of a block that reads a model name its place, and become StoreError where the file must be damaged."""
    with located(f"the model {location.place}"):
        try:
            yield
        except StoreError:
            raise
        except _DAMAGE as error:
            raise StoreError(f"{damage} ({type(error).__name__}: {error}){remedy}") from error


def as_json(model: object) -> dict[str, Any]:
    """A fitted model as one JSON value, which `from_json` reads: what `save` writes, with arrays as texts in base64.

    Raises
    ------
    TypeError
        As `save`.
    """
    arrays: list[np.ndarray] = []
    tree = _encode(model, type(model).__name__, arrays)
    written = [
        {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "crc32c": crc32c(array),
            "base64": base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii"),
        }
        for array in arrays
    ]
    return {"model": tree, "arrays": written}


def from_json(facts: Mapping[str, Any], location: Location) -> Any:
    """The model that `as_json` wrote; no code of the file is run.

    Parameters
    ----------
    facts : mapping
    location : Location
        Where they were read, for messages.

    Raises
    ------
    StoreError
        If they are damaged, or name a class that is not known.
    """
    with _read_as_a_model(location, f"{location.place} is damaged"):
        arrays = facts["arrays"]
        reader = _JsonReader(location, [entry["crc32c"] for entry in arrays], None, {}, entries=arrays)
        return reader.decode(facts["model"])


def is_part_of_a_model(name: str) -> bool:
    """Whether `save` writes a file or folder of that name into the folder of a model."""
    return name == "zarr.json" or _ARRAY_NAME.fullmatch(name) is not None


def content_hash(model: object) -> str:
    """SHA-256 of what a fitted model is: settings and learned arrays, not when, where and how it was computed.

    Raises
    ------
    TypeError
        As `save`.
    """
    arrays: list[np.ndarray] = []
    tree = _without_run(_encode(model, type(model).__name__, arrays))
    # Sorted keys and little-endian arrays make the digest the same on every machine.
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode())
    for array in arrays:
        digest.update(f"{array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _without_run(tree: object) -> object:
    """The tree of a model without what a run leaves."""
    if isinstance(tree, dict):
        return {name: _without_run(value) for name, value in tree.items() if name not in _RUN_FIELDS}
    return [_without_run(value) for value in tree] if isinstance(tree, list) else tree


def _read_marker(location: Location) -> dict[str, Any]:
    """The metadata of a whole model of a format that this version reads."""
    text = location.read("zarr.json")
    if text is None:
        put_back(location)
        text = location.read("zarr.json")
    if text is None and not location.exists():
        raise FileNotFoundError(f"there is no model at {location.place}")

    def refuse_constant(text: str) -> None:
        raise ValueError(f"it holds the number {text}, which JSON does not have")

    try:
        node = json.loads(text or b"null", parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"the metadata of {location.place} is damaged: {error}") from error
    attributes = node.get("attributes") if isinstance(node, dict) else None
    marker = attributes.get(MARKER) if isinstance(attributes, dict) else None
    if not isinstance(marker, dict):
        raise StoreError(f"{location.place} is not a model of dkl; expected what model.save(store) writes")
    if marker.get("state") != "complete":
        raise StoreError(f"{location.place} was not written to its end; save the model again")
    if marker.get("kind") != KIND:
        raise StoreError(f"{location.place} is a dataset, not a model; open it with dkl.open_dataset")
    written = marker.get("format")
    if not isinstance(written, int) or isinstance(written, bool) or not 1 <= written <= FORMAT:
        raise StoreError(
            f"{location.place} has format {written} (written by dkl {marker.get('version')}); this dkl {__version__} "
            f"reads 1 to {FORMAT}: install a newer one, or save the model again"
        )
    if not isinstance(marker.get("digests"), list):
        raise StoreError(f"the metadata of {location.place} is damaged: it has no digests")
    is_group = node.get("zarr_format") == 3 and node.get("node_type") == "group"
    model = marker.get("model")
    names_an_object = isinstance(model, dict) and isinstance(model.get("object"), str)
    if not is_group or not isinstance(marker.get("token"), str) or not names_an_object:
        raise StoreError(f"the metadata of {location.place} is damaged: it describes no model; save the model again")
    return marker


def _write_array(group: zarr.Group, name: str, array: np.ndarray) -> None:
    """Write an array as one chunk; reading it back needs no more than the chunk's own size."""
    stored = group.create_array(
        name,
        shape=array.shape,
        dtype=array.dtype,
        chunks=tuple(max(1, size) for size in array.shape),
        config={"write_empty_chunks": True},
        # A large array is stored without compression, so that its size on disk vouches for what is allocated to read
        # it.
        compressors="auto" if array.nbytes <= _ALLOWED_BYTES else None,
    )
    if array.size:
        stored[...] = array


def _encode(value: object, path: str, arrays: list[np.ndarray]) -> Any:
    """A value as JSON, its arrays appended to `arrays`; `path` says in an error which attribute it is."""
    if value is None or isinstance(value, _ATOMS):
        return value
    if isinstance(value, float):
        # JSON has neither NaN nor infinity.
        return value if math.isfinite(value) else {"number": repr(value)}
    if isinstance(value, np.ndarray):
        return _encode_array(value, path, arrays)
    if isinstance(value, np.generic):
        # A NumPy number keeps its type this way; as a plain one a float32 would come back as a float64.
        return {"scalar": _encode_array(np.asarray(value), path, arrays)}
    if isinstance(value, np.dtype):
        return {"dtype": value.str}
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple | list):
        items = [_encode(item, f"{path}[{place}]", arrays) for place, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping):
        # Keys of a mapping need not be texts, so it is a list of pairs.
        pairs = [[_encode(key, path, arrays), _encode(item, f"{path}[{key!r}]", arrays)] for key, item in value.items()]
        return {"dict": pairs}
    fields = {name: _encode(field, f"{path}.{name}", arrays) for name, field in _fields_of(value, path).items()}
    return {"object": type(value).__name__, "fields": fields}


def _encode_array(array: np.ndarray, path: str, arrays: list[np.ndarray]) -> dict[str, Any]:
    """An array of numbers as its place in `arrays`, in little-endian order; one of texts as JSON."""
    if array.dtype.kind in _NUMERIC_KINDS:
        arrays.append(array.astype(array.dtype.newbyteorder("<"), order="C", copy=False))
        return {"array": str(len(arrays) - 1)}
    texts = array.ravel().tolist()
    if array.dtype.kind == "U" or (array.dtype.kind == "O" and all(isinstance(text, str) for text in texts)):
        return {"texts": texts, "shape": list(array.shape), "dtype": array.dtype.str}
    raise TypeError(
        f"{path} is an array of {array.dtype}; a model is saved as arrays of numbers, booleans and texts. "
        "Use such labels instead"
    )


def _fields_of(value: object, path: str) -> dict[str, Any]:
    """The parts of an object by name: fields of a dataclass, or parameters and fitted attributes of an estimator."""
    if hasattr(value, "to_json") and hasattr(type(value), "from_json"):
        # what JSON has no place for: the directions of free text
        beside = getattr(value, "directions", ())
        return {"json": value.to_json(), **({"directions": beside} if beside else {})}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {known.name: getattr(value, known.name) for known in dataclasses.fields(value)}
    if isinstance(value, BaseEstimator):
        if type(value).__module__.startswith("sklearn.") and type(value).__name__ not in STORED:
            raise TypeError(
                f"{path} is a {type(value).__name__}, of which files of models know nothing, and nothing is pickled: "
                "a model can be saved whose linear model has coef_ and intercept_, such as SGDClassifier"
            )
        fields = {name: given for name, given in value.get_params(deep=False).items() if name not in _RUN_PARAMETERS}
        if not isinstance(fields.get("random_state"), int | np.integer | None):
            # A generator is no part of a fitted model: the seed that it gave is `seed_`.
            fields["random_state"] = None
        if callable(fields.get("similarity")):
            # nor is a function: its values are
            fields["similarity"] = value.similarity_
        # Lazy attributes, such as the dual weights of a game, belong to the rows of the fit and stay with them.
        return fields | {
            name: fitted
            for name, fitted in vars(value).items()
            if _is_attribute(type(value), name) and not hasattr(fitted, "__dask_graph__")
        }
    raise TypeError(
        f"{path} is a {type(value).__name__}, which cannot be saved: a model holds arrays, numbers, texts, "
        "dataclasses and estimators"
    )


def _is_attribute(cls: type, name: str) -> bool:
    """Whether a fitted attribute of that name belongs into a file."""
    if cls.__module__.startswith("sklearn."):
        return name in _SKLEARN_ATTRIBUTES
    return _ATTRIBUTE_NAME.fullmatch(name) is not None


@dataclass(frozen=True, eq=False)
class _Reader:
    """Builds values from the JSON tree of a file, trusting nothing in it.

    Parameters
    ----------
    location : Location
    digests : list of int
        Of the arrays, by number.
    shapes : list of (str, list of int), or None
        The dtype and the shape of each array; None in models of dkl 0.1.
    extensions : mapping of str to type
        Classes that the caller trusts beside `STORED`.
    """

    location: Location
    digests: list[int]
    shapes: list[Any] | None
    extensions: Mapping[str, type]
    used: set[str] = field(default_factory=set)
    counted: Counter[str] = field(default_factory=Counter)

    def decode(self, tree: object) -> Any:
        """The value of a JSON tree."""
        # JSON has numbers of any length, and to parse or multiply one of a gigabyte would take forever.
        is_large = isinstance(tree, int) and tree.bit_length() > _LONGEST_INTEGER
        if is_large or (isinstance(tree, float) and not math.isfinite(tree)):
            raise StoreError("the model file holds a number that is too large; it is damaged")
        if tree is None or isinstance(tree, str | bool | int | float):
            return tree
        if isinstance(tree, list):
            return [self.decode(item) for item in tree]
        if not isinstance(tree, dict):
            raise StoreError(f"a model file holds no {type(tree).__name__}; this one is damaged")
        if "object" in tree:
            return self._object(tree)
        if "texts" in tree:
            return self._texts(tree)
        if len(tree) != 1:
            raise StoreError(f"the model file holds an entry of {sorted(tree)}; it is damaged")
        ((kind, content),) = tree.items()
        return self._tagged(kind, content)

    def _tagged(self, kind: str, content: Any) -> Any:
        """The value of an entry ``{kind: content}``, the form of what JSON does not have."""
        if kind == "array":
            return self._array(content)
        if kind == "scalar":
            return np.asarray(self.decode(content))[()]
        if kind == "number":
            if content not in ("nan", "inf", "-inf"):
                raise StoreError(f"the model file holds the number {content!r}, which is none; it is damaged")
            return float(content)
        if kind == "dtype":
            return _plain_dtype(content, "biufU")
        if kind == "tuple":
            return tuple(self.decode(item) for item in content)
        if kind == "dict":
            return {self.decode(key): self.decode(value) for key, value in content}
        raise StoreError(f"the model file says {kind!r}, which this dkl {__version__} does not know")

    def _array(self, name: object) -> np.ndarray:
        """The array of a number, read whole and checked against its digest."""
        if not isinstance(name, str) or _ARRAY_NAME.fullmatch(name) is None or int(name) >= len(self.digests):
            raise StoreError(
                f"the model file names an array {name!r}; arrays are numbered 0 to {len(self.digests) - 1}"
            )
        # Every array is written once, so a second reference cannot come from `save`; it would let a small file ask for
        # memory again and again.
        if name in self.used:
            raise StoreError(f"the model file names array {name} twice; it is damaged")
        self.used.add(name)
        stored = self._opened(name)
        try:
            array = np.asarray(stored[...])
        except (ValueError, RuntimeError, OSError) as error:
            raise CorruptChunkError(f"array {name} cannot be read: {error}") from error
        # a chunk that is missing, which zarr reads as zeros, is found too
        if crc32c(array) != self.digests[int(name)]:
            raise CorruptChunkError(f"array {name} does not hold the bytes that were saved; save the model again")
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _opened(self, name: str) -> zarr.Array:
        """An array that takes no more memory to read than what was saved."""
        place = self.location.child(name)
        try:
            stored = zarr.open_array(place.store(read_only=True), mode="r", zarr_format=3)
        except FileNotFoundError as error:
            raise StoreError(f"array {name} is missing") from error
        except _DAMAGE as error:
            raise CorruptChunkError(f"the metadata of array {name} is damaged: {error}") from error
        if stored.dtype.kind not in _NUMERIC_KINDS:
            raise StoreError(f"array {name} holds {stored.dtype}; a model holds arrays of numbers only")
        expected = None if self.shapes is None else self.shapes[int(name)]
        if expected is not None and expected != [stored.dtype.newbyteorder("<").str, list(stored.shape)]:
            raise CorruptChunkError(
                f"array {name} is of dtype {stored.dtype} and shape {stored.shape}, but what was saved is of dtype and "
                f"shape {expected}; save the model again"
            )
        if stored.chunks != tuple(max(1, size) for size in stored.shape) or stored.shards is not None:
            raise CorruptChunkError(f"array {name} is not stored in one piece, as models are; save the model again")
        if stored.size:
            key = stored.metadata.encode_chunk_key((0,) * stored.ndim)
            # zarr reads a missing chunk as zeros without a word, so the chunk itself is asked for first.
            content = place.read(key)
            if content is None:
                raise CorruptChunkError(f"the values of array {name} are missing; save the model again")
            if stored.compressors and _decoded_bytes(content) != stored.nbytes:
                raise CorruptChunkError(f"array {name} does not hold as many bytes as its shape; save the model again")
            self._allow(stored.nbytes, len(content), f"array {name}")
        return stored

    def _allow(self, n_bytes: int, stored_bytes: int, what: str) -> None:
        """Count bytes that are about to be taken, against those on disk that ask for them."""
        # All arrays together count: many small lies would add up as well.
        self.counted["decoded"] += n_bytes
        self.counted["stored"] += stored_bytes
        allowed = max(_ALLOWED_BYTES, _ALLOWED_RATIO * self.counted["stored"])
        if self.counted["decoded"] > allowed:
            raise StoreError(
                f"{what} of {stored_bytes:,} bytes on disk would take {n_bytes:,} in memory, which no saved model "
                "asks for; the file is damaged"
            )

    def _texts(self, tree: Mapping[str, Any]) -> np.ndarray:
        """An array of texts, such as class labels; JSON holds them, since zarr's own texts differ by version."""
        texts = tree["texts"]
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise StoreError("the model file holds texts that are none; it is damaged")
        dtype = _plain_dtype(tree["dtype"], "UO")
        self._allow(len(texts) * dtype.itemsize, sum(map(len, texts)), "a list of texts")
        return np.array(texts, dtype=dtype).reshape(tree["shape"])

    def _object(self, tree: Mapping[str, Any]) -> Any:
        """An object of a known class, made from its fields; what it holds is checked before anybody uses it."""
        name, fields = tree["object"], tree.get("fields")
        if not isinstance(fields, dict):
            raise StoreError(f"the {name} in the model file has no fields; the file is damaged")
        cls = self._class(name)
        values = {name: self.decode(value) for name, value in fields.items()}
        # Classes with a text form of their own (schemas, encodings) check it when they read it.
        if hasattr(cls, "from_json"):
            made = cls.from_json(values["json"])
            return made.with_directions(values["directions"]) if "directions" in values else made
        if dataclasses.is_dataclass(cls):
            _check_names(name, values, {known.name for known in dataclasses.fields(cls)}.__contains__)
            check_finite(cls, values)
            made = cls(**values)
            check_record(made)
            return made
        if not (isinstance(cls, type) and issubclass(cls, BaseEstimator)):
            raise StoreError(f"{cls!r} is neither an estimator nor a dataclass; it cannot be loaded")
        # An estimator is made with its parameters; whatever fit has left is then set on it.
        parameters = set(inspect.signature(cls).parameters)
        _check_names(cls.__name__, values, lambda name: name in parameters or _is_attribute(cls, name))
        made = cls(**{name: value for name, value in values.items() if name in parameters})
        for name, value in values.items():
            if name not in parameters:
                setattr(made, name, value)
        check_estimator(made)
        return made

    def _class(self, name: str) -> type[Any]:
        """The class of a short name, of those that are known: a file cannot have a module imported."""
        if name in self.extensions:
            return self.extensions[name]
        if name in STORED:
            return getattr(importlib.import_module(STORED[name]), name)
        raise StoreError(
            f"the model holds a {name!r}, a class that this dkl {__version__} does not know; if it is of an extension "
            f"that you trust, hand it over: dkl.load_model({self.location.place}, classes=[{name}])"
        )


@dataclass(frozen=True, eq=False)
class _JsonReader(_Reader):
    """Builds values from a JSON tree whose arrays are texts beside it.

    Parameters
    ----------
    entries : list of mapping
        The arrays, by number.
    """

    entries: list[Mapping[str, Any]] = field(default_factory=list)

    def _opened(self, name: str) -> Any:
        entry = self.entries[int(name)]
        dtype, content = _plain_dtype(entry["dtype"], _NUMERIC_KINDS), base64.b64decode(entry["base64"], validate=True)
        if len(content) != dtype.itemsize * math.prod(entry["shape"]):
            raise CorruptChunkError(f"array {name} does not hold as many bytes as its shape")
        return np.frombuffer(content, dtype).reshape(entry["shape"])


def _decoded_bytes(content: bytes) -> int | None:
    """The size that the header of a zstd frame states; None where there is no such header."""
    if len(content) < 5 or content[:4] != _ZSTD_MAGIC:
        return None
    # RFC 8878, section 3.1.1.1: the descriptor says how many bytes the window, the number of the dictionary and the
    # size of the content take.
    descriptor = content[4]
    is_single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    length = (is_single, 2, 4, 8)[size_flag]
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[descriptor & 3]
    if not length:
        return None
    return int.from_bytes(content[start : start + length], "little") + (256 if length == 2 else 0)


def _plain_dtype(text: object, kinds: str) -> np.dtype:
    """The dtype of a text in a file, if it is of one of these kinds; NumPy would also take structures and objects."""
    if not isinstance(text, str) or _DTYPE.fullmatch(text) is None or np.dtype(text).kind not in kinds:
        raise StoreError(f"the model file names the dtype {text!r}, which has no place in a model")
    return np.dtype(text)


def _check_names(cls: str, values: Mapping[str, Any], belongs: Callable[[str], bool]) -> None:
    """Raise StoreError where a file gives a class fields that `save` would not have written for it."""
    strange = sorted(name for name in values if not belongs(name))
    if strange:
        raise StoreError(f"the model file gives {cls} the fields {strange}, which it does not have")


def check_finite(cls: type, fields: Mapping[str, Any]) -> None:
    """Raise an error for numbers of a feature map, scaler or posterior that are not finite; it names their field.

    Raises
    ------
    StoreError
    """
    if cls.__module__.startswith(("dkl.features.", "dkl.uncertainty.posterior")):
        for name, value in fields.items():
            _check_finite(f"{cls.__name__}.{name}", value)


def check_record(made: object) -> None:
    """Raise an error for a dataclass whose fields have other types than declared (if these are plain), or no meaning.

    Raises
    ------
    StoreError, ValueError
    """
    cls = type(made)
    # Classes of extensions may annotate what cannot be checked.
    if cls.__module__.startswith("dkl."):
        for name, hint in get_type_hints(cls).items():
            if not _fits(getattr(made, name), hint):
                raise StoreError(f"{cls.__name__}.{name} in the model file is {getattr(made, name)!r:.80}, not {hint}")
    if isinstance(made, FeatureMap):
        # amplitudes and phases have one entry a frequency, scalers one a column
        lengths = {
            "amplitudes": len(made.amplitudes),
            "phases": len(made.amplitudes if made.phases is None else made.phases),
        }
        wrong = {name: length for name, length in lengths.items() if length != made.n_frequencies}
        if wrong or (made.scaler is not None and made.scaler.n_columns not in (made.n_columns, 0)):
            raise StoreError(
                f"the feature map in the model file has {made.n_frequencies} frequencies on {made.n_columns} columns, "
                f"which do not go with its amplitudes, phases or scaling ({wrong or 'columns'}); the file is damaged"
            )
    if hasattr(made, "validate"):
        made.validate()


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of an annotated type; annotations that say more than a type are taken as kept."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    # Whole numbers are floats, too, as in Python; a truth value is neither.
    if hint is float:
        return isinstance(value, float | int | np.number) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int | np.integer) and not isinstance(value, bool)
    kind = origin or hint
    if kind in (str, bool, tuple, list, dict, Mapping, np.ndarray) or dataclasses.is_dataclass(kind):
        return isinstance(value, kind)
    return value is None if kind is type(None) else True


def _check_finite(name: str, value: object) -> None:
    """Raise an error for an array or a number that is not finite, which would make every prediction NaN."""
    if isinstance(value, float | np.floating | np.ndarray) and np.asarray(value).dtype.kind == "f":
        # The first place is named: it may tell which column was damaged.
        wrong = np.argwhere(~np.isfinite(value))
        if len(wrong):
            at = f" at {wrong[0].tolist()}" if np.ndim(value) else ""
            raise StoreError(
                f"{name} of the model holds {np.asarray(value)[tuple(wrong[0])]}{at}; with numbers that are not finite "
                "a model has no answers: fit it again"
            )


def check_estimator(made: object) -> None:
    """Raise an error for an estimator whose parameters have no meaning, or whose parts do not fit each other.

    Raises
    ------
    StoreError, ValueError
    """
    if isinstance(made, Constrained):
        check_constraints(made)
    name, fitted = type(made).__name__, vars(made)
    for attribute in _PREDICTING & fitted.keys():
        _check_finite(f"{name}.{attribute}", fitted[attribute])
    for attribute in {"features_", "linear_"} & fitted.keys():
        if not isinstance(fitted[attribute], BaseEstimator):
            raise StoreError(f"{name}.{attribute} in the model file is no estimator; the file is damaged")
    if "feature_map_" in fitted and not isinstance(fitted["feature_map_"], FeatureMap):
        raise StoreError(f"{name}.feature_map_ in the model file is no feature map; it is damaged")
    linear = fitted.get("linear_")
    if linear is None or "features_" not in fitted:
        return
    # the linear model has to take what the features give, and to have one output a class
    coef, n_features = np.atleast_2d(linear.coef_), fitted["features_"].feature_map_.n_features
    classes = fitted.get("classes_")
    n_outputs = len(coef) if classes is None else 1 if len(classes) == 2 else len(classes)
    if coef.shape != (n_outputs, n_features) or np.size(linear.intercept_) not in (1, n_outputs):
        raise StoreError(
            f"the linear model has coefficients of shape {coef.shape}; {n_features} features and {n_outputs} outputs "
            f"need {(n_outputs, n_features)}; the file is damaged"
        )
