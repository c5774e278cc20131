"""A driver's state as arrays and JSON, and back: what a checkpoint holds. No pickle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from dkl.errors import StoreError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

S = TypeVar("S")

Encoded = tuple[dict[str, np.ndarray], Any]


def encode_state(state: DataclassInstance) -> Encoded:
    """The arrays of a frozen dataclass by name, and the rest of it as JSON.

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
    """The state of class `cls` that `encode_state` took apart.

    Raises
    ------
    StoreError
        If it has fields that the class has not, or lacks one that has no default: another build of dkl has written it.
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
    """A value as JSON; its arrays go to `arrays` under the path of names that leads to them, which takes their place.

    JSON knows neither tuples nor numbers of NumPy: these, like everything with parts, become an object whose one key
    says what it was.
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
        # an array of no dimension, indexed by nothing, is its one number
        return _decode(content, arrays)[()]
    if kind == "dict":
        return {name: _decode(item, arrays) for name, item in content.items()}
    items = [_decode(item, arrays) for item in content]
    return tuple(items) if kind == "tuple" else items
