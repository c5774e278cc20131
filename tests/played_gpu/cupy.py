"""A GPU that NumPy plays: as strict as CuPy with arrays of the host, and kernels compiled by g++.

A test puts this folder on its path (`played_gpu`), so that everything that a GPU would run runs on the CPU. A function
that the oldest or the newest CuPy admitted by pyproject.toml lacks raises AttributeError here too, and an argument that
one of them does not know raises TypeError. Names and parameters were read from the wheels: `cupy_names.json`.
There are as many devices as the environment variable PLAYED_GPUS says (1): an array is used on its own alone.
`copied` has the bytes of each array of the host that went to a device, `counts` the operations that a device was given
and how often the host waited for it.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.kernels.cuda_sources import host_kernel

__version__ = "played"
# {version: {name: its parameters, or None where the wheel does not say them (compiled functions, ufuncs)}}
_NAMES: dict[str, dict[str, list[str] | None]] = json.loads(Path(__file__).with_name("cupy_names.json").read_text())
_TAKES_HOST_ARRAYS = {"array", "asarray", "ascontiguousarray"}

_current = threading.local()
copied: list[int] = []
counts = {"launches": 0, "waits": 0}


class Device:
    """One of the GPUs; each thread has a current one, the first until it says otherwise."""

    def __init__(self, number: int | None = None) -> None:
        self.id = getattr(_current, "number", 0) if number is None else number
        if not 0 <= self.id < _device_count():
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def use(self) -> None:
        _current.number = self.id


def _device_count() -> int:
    return int(os.environ.get("PLAYED_GPUS", "1"))


# What a library of CUDA multiplies by: of each thread, as its handle is.
_mode = threading.local()
_ROUNDED = 3


def _product(left: np.ndarray, right: np.ndarray, **options: Any) -> np.ndarray:
    """`numpy.matmul`, of entries rounded to 10 bits where tensor cores make it."""
    if getattr(_mode, "now", 0) == _ROUNDED and left.dtype == right.dtype == np.float32:
        left, right = (
            ((one.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for one in map(_dense, (left, right))
        )
    return np.matmul(left, right, **options)


def _dense(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x)


def _set_mode(handle: int, mode: int) -> None:
    _mode.now = mode


cuda = SimpleNamespace(
    Device=Device,
    cublas=SimpleNamespace(getMathMode=lambda handle: getattr(_mode, "now", 0), setMathMode=_set_mode),
    device=SimpleNamespace(get_cublas_handle=lambda: 1),
    runtime=SimpleNamespace(
        getDeviceCount=_device_count,
        deviceGetPCIBusId=lambda gpu: f"0000:0{gpu}:00.0",
        getDeviceProperties=lambda gpu: {"name": b"a played GPU", "totalGlobalMem": 1 << 30},
        memGetInfo=lambda: (1 << 30, 1 << 30),
        runtimeGetVersion=lambda: 0,
        driverGetVersion=lambda: 0,
    ),
)


def get_default_memory_pool() -> SimpleNamespace:
    return SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0)


class ndarray(NDArrayOperatorsMixin):
    """An array that mixes with no array of NumPy's, and becomes one by `get` alone."""

    __array_priority__ = 100

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        self.device = Device()

    def get(self) -> np.ndarray:
        counts["waits"] += 1
        return self._values.copy()

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        counts["launches"] += 1
        options = {name: _inside(value) for name, value in options.items()}
        return _outside(getattr(ufunc, method)(*map(_inside, inputs), **options))

    def __getitem__(self, index: Any) -> ndarray:
        return ndarray(np.asarray(self._values[_inside(index, host=True)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        self._values[_inside(index, host=True)] = _inside(value)

    def __len__(self) -> int:
        return len(self._values)

    def __float__(self) -> float:
        counts["waits"] += 1
        return float(self._values)

    def __int__(self) -> int:
        counts["waits"] += 1
        return int(self._values)

    def __bool__(self) -> bool:
        counts["waits"] += 1
        return bool(self._values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._values, name)
        return _wrapped(found) if callable(found) else _outside(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return ndarray, (self._values,)


class RawKernel:
    """Compiled when it is first called; a block that shares sums is played by one thread."""

    def __init__(self, source: str, name: str) -> None:
        alone = source.replace("#define GROUP 16", "#define GROUP 1")
        self._alone = alone != source
        with tempfile.TemporaryDirectory(prefix="dkl-played-") as folder:
            self._kernel = host_kernel(alone, name, Path(folder))

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        counts["launches"] += 1
        self._kernel(grid, (1,) if self._alone else block, [_inside(one) for one in arguments])


def _to_device(function: Any) -> Any:
    """A function that copies arrays of the host, which are counted."""
    played = _wrapped(function, host=True)

    def call(values: Any, *args: Any, **options: Any) -> Any:
        if isinstance(values, np.ndarray):
            copied.append(values.nbytes)
            # never the memory of the host, as `numpy.asarray` would leave it
            values = values.copy(order="K")
        return played(values, *args, **options)

    return call


def _inside(value: Any, host: bool = False) -> Any:
    if isinstance(value, ndarray):
        if value.device.id != Device().id:
            raise ValueError(f"an array of device {value.device.id} is used on device {Device().id}")
        return value._values
    if isinstance(value, np.ndarray) and not host:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(_inside(one, host) for one in value)
    return value


def _outside(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_outside, value))
    return ndarray(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


def _wrapped(function: Any, host: bool = False) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        counts["launches"] += 1
        inner = {name: _inside(value, host) for name, value in options.items()}
        return _outside(function(*(_inside(one, host) for one in args), **inner))

    return call


def _generator(seed: Any) -> Any:
    return SimpleNamespace(standard_normal=_wrapped(np.random.default_rng(seed).standard_normal))


random = SimpleNamespace(default_rng=_generator)


def asnumpy(x: Any) -> np.ndarray:
    return x.get() if isinstance(x, ndarray) else np.asarray(x)


def __getattr__(name: str) -> Any:
    for version, names in _NAMES.items():
        if name not in names:
            raise AttributeError(f"CuPy {version} has no {name!r}")
    found = _product if name == "matmul" else getattr(np, name)
    if isinstance(found, type) or not callable(found):
        return found
    played = _to_device(found) if name in _TAKES_HOST_ARRAYS else _wrapped(found)

    def call(*args: Any, **options: Any) -> Any:
        for version, names in _NAMES.items():
            known = names[name]
            if known is not None and (unknown := set(options) - set(known)):
                raise TypeError(f"{name} of CuPy {version} has no argument {sorted(unknown)[0]!r}")
        return played(*args, **options)

    return call
