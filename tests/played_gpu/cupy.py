"""A GPU that NumPy plays: as strict as CuPy with arrays of the host, and kernels compiled by g++.

A test puts this folder on its path (`played_gpu`), so that everything that a GPU would run runs on the CPU. A function
that the oldest or the newest CuPy admitted by pyproject.toml lacks raises AttributeError here too, and an argument that
one of them does not know raises TypeError. Names and parameters were read from the wheels: `cupy_names.json`.
There are as many devices as the environment variable PLAYED_GPUS says (1): an array is used on its own alone.
`copied` has the bytes of each array of the host that went to a device, `counts` the operations that a device was given
and how often the host waited for it, which it also does for the size of what masks and `flatnonzero` pick.

The null stream does at once what it is asked for. Copies on another stream are made as late as CUDA may make them: when
an event after them is waited for. What CUDA leaves to chance is an error here: to use an array before its copy is sure
to have arrived, to copy into memory that earlier work may still use, and to free memory that a copy is still on its way
to, which is told in `violations`, since it happens where nothing can be raised.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from tests.kernels.cuda_sources import host_kernel

__version__ = "played"
# {version: {name: its parameters, or None where the wheel does not say them (compiled functions, ufuncs)}}
_NAMES: dict[str, dict[str, list[str] | None]] = json.loads(Path(__file__).with_name("cupy_names.json").read_text())
_TAKES_HOST_ARRAYS = {"array", "asarray"}
_WITHOUT_NUMBERS = {"shape", "dtype", "size", "nbytes", "ndim", "itemsize", "flags", "reshape", "T", "view"}
# What only looks at an array in another way, or takes memory for it, starts no work on the device.
_NO_WORK = {"reshape", "transpose", "view", "empty", "empty_like"}
# What makes arrays whose size the host asks the device for.
_WAITS = {"argwhere", "bincount", "flatnonzero", "histogram", "nonzero", "unique"}

_current = threading.local()
copied: list[int] = []
counts = {"launches": 0, "waits": 0}
violations: list[str] = []


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


class Stream:
    """Work in the order in which it was asked for: `null` does it at once, others when they are waited for."""

    null: Stream

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        if not null and not non_blocking:
            raise NotImplementedError("a stream that waits for the null stream, and this for it, is not played")
        self._is_null, self._lock = null, threading.RLock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._asked = self.done_until = 0
        # The launches on the null stream that are sure to be over before what comes next on this one.
        self._after = 0

    def add(self, work: Callable[[], None]) -> int:
        """Ask for work; its number."""
        with self._lock:
            self._waiting.append(work)
            self._asked += 1
            return self._asked

    def run(self, until: int) -> None:
        """Do the work up to a number."""
        with self._lock:
            while self.done_until < until:
                self._waiting.popleft()()
                self.done_until += 1

    def record(self, event: Event | None = None) -> Event:
        event = Event() if event is None else event
        event.at = self, counts["launches"] if self._is_null else self._asked
        return event

    def wait_event(self, event: Event) -> None:
        if event.at is None:
            return
        of, number = event.at
        if self._is_null:
            of.run(number if of is not self else 0)
        elif of is Stream.null:
            self._after = max(self._after, number)
        elif of is not self:
            raise NotImplementedError("two streams beside the null stream")

    def synchronize(self) -> None:
        counts["waits"] += 1
        self.run(self._asked)

    def is_after(self, launches: int) -> bool:
        """Whether so many launches on the null stream are over before what comes next."""
        return self._is_null or self._after >= launches


Stream.null = Stream(null=True)


class Event:
    """A place in a stream; unlike CUDA's it is never done before somebody waits for it."""

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        self.at: tuple[Stream, int] | None = None

    @property
    def done(self) -> bool:
        return self.at is None or self.at[0] is Stream.null or self.at[0].done_until >= self.at[1]

    def record(self, stream: Stream | None = None) -> None:
        (stream or Stream.null).record(self)

    def synchronize(self) -> None:
        counts["waits"] += 1
        if self.at is not None and self.at[0] is not Stream.null:
            self.at[0].run(self.at[1])


class _Memory:
    """What one array of a device and the views of it share."""

    def __init__(self) -> None:
        # The launch on the null stream that it was given out at, to which earlier ones may still use it.
        self.born = counts["launches"]
        self.owners = 0
        self.coming: tuple[Stream, int] | None = None

    @property
    def is_coming(self) -> bool:
        return self.coming is not None and self.coming[0].done_until < self.coming[1]


_memories: dict[int, _Memory] = {}
# An array may be collected in the midst of anything, also of counting another one.
_counting = threading.RLock()


def _memory(values: np.ndarray) -> _Memory:
    """The memory of an array, which its views share."""
    root = values
    while isinstance(root.base, np.ndarray):
        root = root.base
    found = _memories.get(id(root))
    if found is None:
        found = _memories[id(root)] = _Memory()
        weakref.finalize(root, _memories.pop, id(root), None)
    return found


cuda = SimpleNamespace(
    Device=Device,
    Stream=Stream,
    Event=Event,
    get_current_stream=lambda: Stream.null,
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
    return SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0, total_bytes=lambda: 0)


def get_default_pinned_memory_pool() -> SimpleNamespace:
    return SimpleNamespace(free_all_blocks=lambda: None)


class PinnedMemory(bytearray):
    """Memory of the host that a device reads by itself, as `cupyx.empty_pinned` hands it out."""


def is_pinned(values: Any) -> bool:
    """Whether an array lies in such memory."""
    while isinstance(values, np.ndarray | memoryview):
        values = values.base if isinstance(values, np.ndarray) else values.obj
    return isinstance(values, PinnedMemory)


class ndarray(NDArrayOperatorsMixin):
    """An array that mixes with no array of NumPy's, and becomes one by `get` alone."""

    __array_priority__ = 100

    def __init__(self, values: np.ndarray) -> None:
        self._values = values
        with _counting:
            self._memory = _memory(values)
            self._memory.owners += 1
        self.device = Device()

    def __del__(self) -> None:
        memory = self.__dict__.get("_memory")
        if memory is None:
            return
        with _counting:
            memory.owners -= 1
            if not memory.owners and memory.is_coming:
                violations.append(f"{self._values.shape} was freed while a copy was on its way to it")

    def arrived(self) -> np.ndarray:
        """The numbers, for work on the null stream."""
        if self._memory.is_coming:
            raise RuntimeError("an array is used, and nothing has waited for the copy that is on its way to it")
        return self._values

    def get(self) -> np.ndarray:
        counts["waits"] += 1
        return self.arrived().copy()

    def set(self, arr: np.ndarray, stream: Stream | None = None) -> None:
        if not isinstance(arr, np.ndarray):
            raise TypeError("Only numpy.ndarray can be set to cupy.ndarray")
        if self._values.dtype != arr.dtype:
            raise TypeError(f"{arr.dtype} array cannot be set to {self._values.dtype} array")
        if self._values.shape != arr.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self._values.shape}, new shape: {arr.shape}")
        if not self._values.flags.c_contiguous:
            raise RuntimeError("Cannot set to non-contiguous array")
        copied.append(arr.nbytes)
        if stream is None or stream is Stream.null:
            self.arrived()[...] = arr
            return
        if not is_pinned(arr):
            raise RuntimeError("a copy beside the null stream wants pinned memory")
        if not stream.is_after(self._memory.born):
            raise RuntimeError("a copy goes into memory that earlier work on the null stream may still use")
        values = self._values
        # What was there before is no more than what any other memory holds.
        values.view(np.uint8).fill(0xA5)
        self._memory.coming = stream, stream.add(lambda: np.copyto(values, arr))

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        counts["launches"] += 1
        options = {name: _inside(value) for name, value in options.items()}
        return _outside(getattr(ufunc, method)(*map(_inside, inputs), **options))

    def __getitem__(self, index: Any) -> ndarray:
        _count_index(index)
        return ndarray(np.asarray(self._values[_inside(index, host=True)]))

    def __setitem__(self, index: Any, value: Any) -> None:
        counts["launches"] += 1
        _count_index(index)
        self.arrived()[_inside(index, host=True)] = _inside(value)

    def __len__(self) -> int:
        return len(self._values)

    def __float__(self) -> float:
        counts["waits"] += 1
        return float(self.arrived())

    def __int__(self) -> int:
        counts["waits"] += 1
        return int(self.arrived())

    def __bool__(self) -> bool:
        counts["waits"] += 1
        return bool(self.arrived())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        # Shapes and views can be had before the numbers are there.
        found = getattr(self._values if name in _WITHOUT_NUMBERS else self.arrived(), name)
        return _wrapped(found, name=name) if callable(found) else _outside(found)

    def __reduce__(self) -> tuple[Any, ...]:
        return ndarray, (self.arrived(),)


class RawKernel:
    """Compiled when it is first called; a block that shares sums is played by one thread."""

    def __init__(self, source: str, name: str) -> None:
        alone = source.replace("#define GROUP 16", "#define GROUP 1")
        self._alone = alone != source
        self._kernel = host_kernel(alone, name)

    def __call__(self, grid: Any, block: Any, arguments: Any) -> None:
        counts["launches"] += 1
        self._kernel(grid, (1,) if self._alone else block, [_inside(one) for one in arguments])


def _count_index(index: Any) -> None:
    """What picks rows is work; its places are sent where they are on the host, and masks are waited for."""
    parts = [one for one in (index if isinstance(index, tuple) else (index,)) if isinstance(one, ndarray | np.ndarray)]
    counts["launches"] += bool(parts)
    copied.extend(one.nbytes for one in parts if isinstance(one, np.ndarray))
    counts["waits"] += any(one.dtype == bool for one in parts)


def _to_device(function: Any) -> Any:
    """A function that copies arrays of the host, which are counted."""
    played = _wrapped(function, host=True)

    def call(values: Any, *args: Any, **options: Any) -> Any:
        if isinstance(values, np.ndarray):
            copied.append(values.nbytes)
            # never the memory of the host, as `numpy.asarray` would leave it
            values = np.array(values, order="K")
        return played(values, *args, **options)

    return call


def _inside(value: Any, host: bool = False) -> Any:
    if isinstance(value, ndarray):
        if value.device.id != Device().id:
            raise ValueError(f"an array of device {value.device.id} is used on device {Device().id}")
        return value.arrived()
    if isinstance(value, np.ndarray) and not host:
        raise TypeError(f"Unsupported type {type(value)}")
    if isinstance(value, tuple | list):
        return type(value)(_inside(one, host) for one in value)
    return value


def _outside(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_outside, value))
    return ndarray(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


def _wrapped(function: Any, host: bool = False, name: str = "") -> Any:
    def call(*args: Any, **options: Any) -> Any:
        inner = {name: _inside(value, host) for name, value in options.items()}
        given = [_inside(one, host) for one in args]
        made = function(*given, **inner)
        # what is returned as it was given is no work either
        counts["launches"] += name not in _NO_WORK and not (given and made is given[0])
        counts["waits"] += name in _WAITS
        return _outside(made)

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
    played = _to_device(found) if name in _TAKES_HOST_ARRAYS else _wrapped(found, name=name)

    def call(*args: Any, **options: Any) -> Any:
        for version, names in _NAMES.items():
            known = names[name]
            if known is not None and (unknown := set(options) - set(known)):
                raise TypeError(f"{name} of CuPy {version} has no argument {sorted(unknown)[0]!r}")
        return played(*args, **options)

    return call
