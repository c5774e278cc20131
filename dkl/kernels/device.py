"""The only module that uses CuPy: where arrays live, and the block arithmetic on a GPU."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, wraps
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

from dkl.errors import warn_user
from dkl.features.feature_map import CombinedProjection, FeatureMap
from dkl.features.frequencies import stream
from dkl.features.nystrom_projection import NystromProjection
from dkl.features.projections import ColumnProjection, StructuredProjection
from dkl.kernels import generic
from dkl.kernels.cuda_source import (
    LINE_ROWS,
    MOST_COLUMNS,
    PARTIAL_ROWS,
    PRODUCTS_EACH,
    SHARING,
    columns_at_once,
    kernel_source,
)
from dkl.kernels.refusals import take_refusals
from dkl.kernels.sgd.cuda_source import GROUP, sgd_source
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sincos import TURN
from dkl.kernels.tiles import checked_dtype, checked_weights, spans
from dkl.plain_files import locked, own_folder
from dkl.process import after_fork
from dkl.protocols.arrays import Array, Rows, dense_rows
from dkl.protocols.block import Block

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# "mixed": each process of a cluster uses the device that it has
Device = Literal["cpu", "gpu", "mixed"]

# Bytes of one array of a tile on a GPU: a 64th of the card's memory, a power of two between these bounds. Every tile
# costs some twenty Python calls, about 1 ms, in which a fast card finishes a tile of 256 MiB and waits (on an H200 a
# pass without a Hessian took 1.45 times as long as with tiles of 1 GiB).
_SMALL_TILE_BYTES, _LARGE_TILE_BYTES = 1 << 28, 1 << 30
# Smallest tile that is tried when memory runs out.
_LEAST_TILE_BYTES = 1 << 22
# Arrays of a tile that exist at once: rows, scaled rows, angles, features, and for products features in float64.
_ARRAYS_OF_A_TILE = 6
# Bytes of a piece of pinned memory for copies of rows to a GPU, and the largest number of pieces: a thread fills one in
# some 2 ms, at 8 GB/s, and the GPU copies it in 0.3 ms, at 55 GB/s (measured), so that it takes seven threads to keep a
# GPU busy.
_PIECE_BYTES, _MOST_PIECES = 1 << 24, 16
# Most thread blocks that process rows, some for each processor; with more rows each block takes several.
_MOST_BLOCKS = 4096
# Most parts of a block of rows with histograms of their own; each part has a thread for every parent and column.
_HISTOGRAM_PARTS = 64
# Rows of a stochastic fit whose products are computed at once: as many as there are threads for a model.
_BATCH_ROWS = GROUP**2
# the value of CUBLAS_TF32_TENSOR_OP_MATH, a mode of cuBLAS
_TENSOR_CORES = 3
# Texts of CUDA and its libraries for a failed allocation; libraries without room for their workspace report that they
# are not initialized.
_ALLOCATION_FAILED = (
    *("cudaErrorMemoryAllocation", "OUT_OF_MEMORY", "_ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUSOLVER_STATUS_NOT_INITIALIZED", "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES"),
)
# The reason on machines that never had a GPU, which is reported only if a GPU is asked for.
NO_CUPY = "CuPy is not installed (pip install 'dkl[cuda12]' or 'dkl[cuda13]')"
# Variables in which launchers store the rank of this process among those of its machine.
_LOCAL_RANKS = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")
# Limits the processes that share a GPU, in counting them.
_MOST_SHARING = 64

_claiming = threading.Lock()
# Functions that drop what other modules keep on the GPU, and return whether there was anything.
givers: list[Callable[[], bool]] = []
# Bytes of one array of a tile, if they differ from the card's default.
_tile_bytes: ContextVar[int | None] = ContextVar("tile bytes", default=None)


def resolve_device(device: str) -> Literal["cpu", "gpu"]:
    """The device of this process: "auto" and "mixed" use a GPU if CuPy finds one.

    Raises
    ------
    ValueError
        If `device` is not "auto", "cpu", "gpu" or "mixed".
    RuntimeError
        If "gpu" is asked for and CuPy can use none; the message gives the reason.
    """
    if device not in ("auto", "cpu", "gpu", "mixed"):
        raise ValueError(f"device is {device!r}; it must be 'auto', 'cpu', 'gpu' or 'mixed'")
    if device == "cpu":
        return "cpu"
    reason = why_no_gpu()
    if reason is None:
        if os.environ.get("CUPY_TF32") == "1":
            warn_user(
                "CUPY_TF32=1 rounds products to 10 bits, which ruins the cosine of a large argument (an error of 9e-3 "
                "at 5 radians); unset it",
                category=RuntimeWarning,
            )
        return "gpu"
    if device == "gpu":
        raise RuntimeError(f"device='gpu', but {reason}; use device='auto' or 'cpu', or repair the installation")
    return "cpu"


def why_no_gpu() -> str | None:
    """Why no GPU can be used, or None if one can."""
    if not _is_installed("cupy", tuple(sys.path)):
        return f"a GPU is seen, but {NO_CUPY}" if _sees_gpu() else NO_CUPY
    try:
        import cupy

        return None if cupy.cuda.runtime.getDeviceCount() else "CuPy finds no GPU"
    except (ImportError, OSError, RuntimeError) as error:
        return f"CuPy finds no usable GPU ({error})"


@cache
def _sees_gpu() -> bool:
    """Whether NVIDIA's driver is installed, so that CuPy could use a GPU."""
    return os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None


@cache
def _is_installed(package: str, path: tuple[str, ...]) -> bool:
    """Whether a package can be imported; cached, as fits ask often and each check searches the folders of `path`."""
    return importlib.util.find_spec(package) is not None


def own_gpu() -> int:
    """The GPU of this process among several: the first that no other process of dkl on this machine uses.

    A process locks a file for its GPU, in a folder of the user next to the machine's temporary files; the operating
    system unlocks it when the process ends, in any way. So workers of one user that start at the same time use
    different GPUs, and the process that drives them uses one that is left; if none is left, processes share GPUs
    evenly. The search starts at the rank from a launcher, and only the GPUs in ``CUDA_VISIBLE_DEVICES`` count.

    Returns
    -------
    int
        CuPy's number of the device, in the order of the visible ones.
    """
    # if several threads start at the same time, one of them takes a GPU for all
    with _claiming:
        return _claimed_gpu()


@cache
def _claimed_gpu() -> int:
    """`own_gpu`, once in each process."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    rank = next((int(os.environ[name]) for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), 0)
    order = [(rank + place) % count for place in range(count)]
    if count < 2 or fcntl is None:
        return order[0]
    # visible GPUs and their numbers differ between processes, but the bus address is the same for all
    names = [cupy.cuda.runtime.deviceGetPCIBusId(gpu).replace(":", "-") for gpu in order]
    folder = own_folder(Path(tempfile.gettempdir()) / f"dkl-{os.getuid()}")
    if folder is not None:
        try:
            for turn in range(_MOST_SHARING):
                for gpu, name in zip(order, names, strict=True):
                    if locked(f"gpu-{name}-{turn}.lock", folder):
                        return gpu
        finally:
            os.close(folder)
    # no file can be locked there
    return order[os.getpid() % count]


@after_fork
def _claim_anew() -> None:
    """Reset a forked process, which has no GPU yet, and none of the threads that were about to take one."""
    global _claiming
    _claiming = threading.Lock()
    _claimed_gpu.cache_clear()
    _card_tile_bytes.cache_clear()


@dataclass(frozen=True, eq=False)
class PlacedBlock(Block):
    """A block whose rows X are on a GPU, or being copied there; everything else is on the host.

    Parameters
    ----------
    arrival : Arrival or None
        Must be waited for before the rows are used; None if the computing stream has copied them.
    beside : Beside or None
        Keeps arrays that are computed from the block on the host on the GPU for the next pass.
    """

    arrival: Arrival | None = None
    beside: Beside | None = None


class Beside:
    """Arrays kept on a GPU for the next pass, in addition to the rows of a block: the last ones for each name.

    Parameters
    ----------
    claim : callable
        Reserves room for a number of bytes, if there is enough; negative numbers release it.
    """

    def __init__(self, claim: Callable[[int], bool]) -> None:
        self._claim = claim
        self._kept: dict[str, tuple[bytes, tuple[Any, ...], int]] = {}

    def get(self, name: str, key: bytes) -> tuple[Any, ...] | None:
        """The arrays kept under a name, if their key was this one; else None."""
        known, arrays, _ = self._kept.get(name, (b"", (), 0))
        return arrays if known == key else None

    def put(self, name: str, key: bytes, arrays: tuple[Any, ...]) -> None:
        """Keep arrays instead of the last ones of this name, if there is room."""
        nbytes = sum(array.nbytes for array in arrays if array is not None)
        before = self._kept.pop(name, (b"", (), 0))[2]
        if self._claim(nbytes - before):
            self._kept[name] = key, arrays, nbytes
        else:
            self._claim(-before)


def place(block: Block, device: Device, *, staged: int = 0, claim: Callable[[int], bool] | None = None) -> Block:
    """The block with its rows X on `device`; everything else stays on the host.

    Parameters
    ----------
    block : Block
    device : {"cpu", "gpu", "mixed"}
    staged : int
        Limits the pinned memory through which dense rows are copied to a GPU; 0 leaves the copies to CuPy.
    claim : callable or None
        As in `Beside`.

    Raises
    ------
    RuntimeError
        As in `resolve_device`: a worker that joined later may not have the device of the others.
    """
    here = resolve_device(device)
    if here == "cpu":
        return block
    arrival, X = None, block.X
    if staged and isinstance(X, np.ndarray) and X.size and X.flags.c_contiguous:
        X, arrival = STAGING.send(X, staged)
    else:
        X = rows_on(X, here)
    parts = {part.name: getattr(block, part.name) for part in fields(Block)}
    return PlacedBlock(**{**parts, "X": X}, arrival=arrival, beside=None if claim is None else Beside(claim))


def wait_for_rows(block: Block) -> None:
    """Make later work of this thread on the GPU wait for the rows of the block to arrive there."""
    if isinstance(block, PlacedBlock) and block.arrival is not None:
        block.arrival.wait()


def with_targets(block: Block) -> Block:
    """The block with its targets and weights on the device of its rows, in their stored precision."""
    if not is_on_gpu(block.X):
        return block
    xp = array_module(block.X)
    y, weight = (None if part is None else xp.asarray(part) for part in (block.y, block.weight))
    # weights that are not stored are created on the device of the targets, if there are any
    return replace(block, y=y, weight=xp.ones(block.n_rows) if y is None and weight is None else weight)


def beside_rows(block: Block, name: str, make: Callable[[Block], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Arrays computed from a block's targets, weights and ids, on its rows' device; a GPU keeps them for the next pass.

    Parameters
    ----------
    block : Block
    name : str
        Name under which the last arrays are kept.
    make : callable
        A function without side effects of the block, whose targets and weights are on the device of the rows. It is
        identified by its pickle; without a pickle its results are not kept.

    Returns
    -------
    tuple of array or None
        Host arrays from `make` are copied to the GPU of the rows, whole numbers from -128 to 127 as single bytes.
    """
    if not is_on_gpu(block.X):
        return make(block)
    beside = block.beside if isinstance(block, PlacedBlock) else None
    key = None if beside is None else _fingerprint(make)
    found = None if beside is None or key is None else beside.get(name, key)
    if found is None:
        xp = array_module(block.X)
        found = tuple(
            part if part is None or is_on_gpu(part) else xp.asarray(_short(part)) for part in make(with_targets(block))
        )
        if beside is not None and key is not None:
            beside.put(name, key, found)
    return found


def in_float64(parts: Sequence[Array], rows: slice = slice(None)) -> list[Any]:
    """Some rows of targets and weights in float64, on their device, where a GPU may store them in fewer bytes."""
    return [array_module(part).asarray(part[rows], dtype=np.float64) for part in parts]


def _fingerprint(value: object) -> bytes | None:
    """A digest of an object, which is the same after a transfer between processes; None if it has no pickle."""
    try:
        return blake2b(pickle.dumps(value, protocol=5)).digest()
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


def _short(values: np.ndarray) -> np.ndarray:
    """The numbers as single bytes, if all are whole and small enough."""
    if values.dtype != np.float64 or not values.size or abs(values[0]).max() > 127.0:
        return values
    with np.errstate(invalid="ignore"):
        short = values.astype(np.int8)
    return short if np.array_equal(short, values) else values


def rows_on(X: Rows, device: Device) -> Any:
    """Rows, dense or sparse, on `device`; not copied if they are there already."""
    if device == "cpu":
        if not is_on_gpu(X):
            return X
        # cupyx returns a matrix for sparse rows, whose * is a matrix product; so they become a csr_array here
        copied = on_host(X)
        return sparse.csr_array(copied) if sparse.issparse(copied) else copied
    if is_on_gpu(X):
        return X
    import cupy

    # the current GPU is a setting of each thread
    cupy.cuda.Device(own_gpu()).use()
    if sparse.issparse(X):
        from cupyx.scipy.sparse import csr_matrix

        # cupyx has no sparse matrices of integers
        return csr_matrix(X if X.dtype.kind == "f" else X.astype(np.float64))
    return cupy.asarray(X)


def sent(part: Any) -> tuple[Any, bool]:
    """An array, or None, on the host for another process, and whether it was on a GPU: the arguments of `arrived`."""
    return rows_on(part, "cpu"), is_on_gpu(part)


def arrived(part: Any, was_on_gpu: bool) -> Any:
    """An array that another process has sent: on a GPU if it was on one and this process has one."""
    return rows_on(part, "gpu") if was_on_gpu and why_no_gpu() is None else part


class Arrival:
    """Rows that are being copied to a GPU: an array there, whose values may be used after `wait`.

    Parameters
    ----------
    rows : CuPy array
    """

    def __init__(self, rows: Any) -> None:
        # kept until the copies are waited for: otherwise CuPy could reuse the memory while they write to it
        self._rows: Any = rows
        self._event: Any = None

    def begun(self, event: Any) -> None:
        """Set the event that follows the last copy."""
        self._event = event

    def wait(self) -> None:
        """Make later work of this thread on the GPU wait for the copies; the host does not wait."""
        import cupy

        if self._event is not None:
            cupy.cuda.get_current_stream().wait_event(self._event)
        self._rows = None


class Staging:
    """Pieces of pinned memory through which dense rows are copied to a GPU, on a stream beside its arithmetic.

    A thread copies rows to a free piece, from which the GPU copies them by itself. A piece is free again once the event
    after its copy is done. Each thread fills one piece at a time, so that a thread that waits for a piece waits for the
    GPU, or for a thread that waits for nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: list[np.ndarray] = []
        # pieces that the GPU is copying, with the event after each copy and the array that it belongs to
        self._fetched: deque[tuple[Any, np.ndarray, Arrival]] = deque()
        self._n_pieces = 0
        # the number that the machine has pinned, once it has refused another
        self._most_pieces = _MOST_PIECES
        self._stream: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self._n_pieces * _PIECE_BYTES

    def send(self, X: np.ndarray, most_bytes: int) -> tuple[Any, Arrival]:
        """Start to copy rows to the GPU of this process.

        Parameters
        ----------
        X : ndarray
            C-contiguous. It may be changed or freed when this returns.
        most_bytes : int
            Limits the pinned memory of this process; at least one piece is used.

        Returns
        -------
        rows : CuPy array
        arrival : Arrival
        """
        import cupy

        cupy.cuda.Device(own_gpu()).use()
        stream, computing = self._copying_stream(), cupy.cuda.get_current_stream()
        rows = cupy.empty(X.shape, X.dtype)
        arrival, given_out = Arrival(rows), cupy.cuda.Event(disable_timing=True)
        # CuPy may return memory that earlier work still uses: the copies start after that work
        given_out.record(computing)
        stream.wait_event(given_out)
        source, target, done = X.reshape(-1), rows.reshape(-1), None
        for part in spans(X.size, _PIECE_BYTES // X.itemsize):
            piece = self._piece(most_bytes)
            done = cupy.cuda.Event(disable_timing=True)
            try:
                filled = piece[: (part.stop - part.start) * X.itemsize].view(X.dtype)
                np.copyto(filled, source[part])
                target[part].set(filled, stream)
            finally:
                # everything submitted before an error also precedes this event
                done.record(stream)
                with self._changed:
                    self._fetched.append((done, piece, arrival))
                    self._changed.notify()
        arrival.begun(done)
        return rows, arrival

    def _copying_stream(self) -> Any:
        """The stream for copies, which waits for the computing stream only where a caller records an event for it."""
        import cupy

        with self._changed:
            if self._stream is None:
                self._stream = cupy.cuda.Stream(non_blocking=True)
            return self._stream

    def _piece(self, most_bytes: int) -> np.ndarray:
        """A free piece of pinned memory: a new one if the limit allows it, else the first that becomes free."""
        import cupyx

        with self._changed:
            while True:
                while self._fetched and self._fetched[0][0].done:
                    self._free.append(self._fetched.popleft()[1])
                if self._free:
                    return self._free.pop()
                if self._n_pieces < min(max(most_bytes // _PIECE_BYTES, 1), self._most_pieces):
                    try:
                        piece: np.ndarray = cupyx.empty_pinned(_PIECE_BYTES, np.uint8)
                    except RuntimeError:
                        if not self._n_pieces:
                            raise
                        self._most_pieces = self._n_pieces
                        continue
                    self._n_pieces += 1
                    return piece
                if self._fetched:
                    # other threads that need a piece would wait for the same event
                    self._fetched[0][0].synchronize()
                else:
                    self._changed.wait()

    def clear(self) -> None:
        """Free the unused pieces."""
        with self._changed:
            while self._fetched and self._fetched[0][0].done:
                self._free.append(self._fetched.popleft()[1])
            given = len(self._free)
            self._n_pieces -= given
            self._free.clear()
        if given:
            import cupy

            # CuPy keeps returned memory pinned for its next request
            cupy.get_default_pinned_memory_pool().free_all_blocks()


STAGING = Staging()
# copies for the parent are not finished in a forked child
after_fork(STAGING.__init__)  # type: ignore[misc]


def staging_bytes(n_tasks: int, room: int) -> int:
    """Bytes of pinned memory for a number of tasks, within the room: a task fills a piece while another is copied."""
    return min(2 * n_tasks, _MOST_PIECES, room // _PIECE_BYTES) * _PIECE_BYTES


def is_on_gpu(x: object) -> bool:
    """Whether an array, dense or sparse, is one of CuPy."""
    return type(x).__module__.partition(".")[0] in ("cupy", "cupyx")


def array_module(x: object) -> Any:
    """The namespace of an array: numpy, or cupy for arrays on a GPU, which becomes the current one of this thread."""
    there: Any = x
    if is_on_gpu(x):
        import cupy

        # sparse rows of cupyx have no device attribute, but their values have
        (there.data if hasattr(there, "toarray") else there).device.use()
        return cupy
    return np


def in_smaller_tiles(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which is called again with smaller tiles and a warning if the memory of the GPU runs out.

    Its first argument must be rows, or a block of them.
    """

    @wraps(compute)
    def computed(*args: Any) -> Any:
        try:
            return compute(*args)
        except (MemoryError, RuntimeError) as error:
            # CuPy's allocator raises MemoryError; errors of CUDA and cuBLAS, which allocate separately, only mention it
            no_memory = isinstance(error, MemoryError) or any(name in str(error) for name in _ALLOCATION_FAILED)
            if not no_memory or tile_bytes() <= _LEAST_TILE_BYTES or not is_on_gpu(getattr(args[0], "X", args[0])):
                raise
            # the retry is after this block, where the error no longer keeps the memory alive
            smaller, reason = tile_bytes() // 8, str(error)
        if _give_memory_back():
            # first the same tiles are tried again, with the same bits, after dropping the rows that are kept on the GPU
            return computed(*args)
        warn_user(
            f"the GPU's memory does not suffice ({reason}): this block again in tiles of {smaller / 2**20:.0f} MiB, "
            "whose sums differ in the last bits; give the GPU to fewer processes",
            category=RuntimeWarning,
        )
        token = _tile_bytes.set(smaller)
        try:
            return computed(*args)
        finally:
            _tile_bytes.reset(token)

    return computed


def _give_memory_back() -> bool:
    """Free what is kept on the GPU for later, and CuPy's own pool, as CUDA's libraries allocate outside it.

    Returns
    -------
    bool
        Whether other modules had kept something.
    """
    import cupy

    had_kept = sum(give() for give in givers) > 0
    generic.forget_matrices()
    cupy.get_default_memory_pool().free_all_blocks()
    return had_kept


def free_gpu_memory() -> tuple[int, int]:
    """Free bytes of the GPU of this process, and the number of visible GPUs."""
    import cupy

    cupy.cuda.Device(own_gpu()).use()
    # freed memory that CuPy keeps for its next arrays counts as used for CUDA
    unused = cupy.get_default_memory_pool().free_bytes()
    return cupy.cuda.runtime.memGetInfo()[0] + unused, cupy.cuda.runtime.getDeviceCount()


def feature_sums(X: Rows, S: Array, feature_map: FeatureMap, dtype: np.dtype, *, stay: bool = False) -> Any:
    """`dkl.kernels.sums.feature_sums` for rows on a GPU; S may be on it too."""
    sums, amplitudes = _unit_sums(X, S, feature_map, dtype), feature_map.amplitudes[:, None]
    return sums * array_module(X).asarray(amplitudes, dtype=np.float64) if stay else on_host(sums) * amplitudes


@in_smaller_tiles
def _unit_sums(X: Rows, S: Array, feature_map: FeatureMap, dtype: np.dtype) -> Any:
    """The sums of features without amplitudes, (parts, m, K) in float64, on the rows' device."""
    xp, dtype = array_module(X), checked_dtype(dtype)
    S = _columns(S, X.shape[0])
    # tiles are added in float64 on the GPU, and only their sum is copied to the host: one wait for each block
    total = xp.zeros((feature_map.columns_a_frequency, feature_map.n_frequencies, S.shape[1]), dtype=xp.float64)
    # amplitudes are applied at the end, in float64
    unit = replace(feature_map, amplitudes=np.ones(feature_map.n_frequencies))
    for rows, tile in dense_tiles(X, feature_map, dtype):
        weights = xp.asarray(S[rows], dtype=dtype)
        if feature_map.activation == "cos-sin":
            total += _wave_sums(xp, generic.scaled(xp, tile, feature_map.scaler, dtype), feature_map, weights)
            continue
        for part, phi in enumerate(generic.mapped(xp, tile, unit, dtype)):
            total[part] += xp.matmul(phi.T, weights)
    return total


@in_smaller_tiles
def feature_squares(X: Rows, s: Array, feature_map: FeatureMap, dtype: np.dtype) -> Any:
    """`dkl.kernels.sums.feature_squares` for rows on a GPU, where the result stays; s may be on it too."""
    xp, dtype, S = array_module(X), checked_dtype(dtype), _columns(s, X.shape[0])
    total = xp.zeros((feature_map.columns_a_frequency, feature_map.n_frequencies), dtype=xp.float64)
    for rows, tile in dense_tiles(X, feature_map, dtype):
        weights = xp.asarray(S[rows, 0], dtype=dtype)
        for part, phi in enumerate(generic.mapped(xp, tile, feature_map, dtype)):
            total[part] += xp.matmul(xp.square(phi).T, weights)
    return total


def _columns(s: Array, n_rows: int) -> Any:
    """Weights of rows, (n,) or (n, K), as columns (n, K)."""
    return s[:, None] if is_on_gpu(s) and s.ndim == 1 else s if is_on_gpu(s) else checked_weights(s, n_rows)


@in_smaller_tiles
def squared_slopes(X: Rows, s: Array, feature_map: FeatureMap, coef: np.ndarray, dtype: np.dtype) -> Any:
    """`dkl.kernels.slopes.squared_slopes` of waves and ramps for rows on a GPU, where the result stays."""
    xp, S = array_module(X), _columns(s, X.shape[0])
    W = generic.placed_matrix(xp, feature_map.projection, dtype)
    outer = np.reshape(coef, (len(coef), feature_map.columns_a_frequency, 1, feature_map.n_frequencies))
    # (parts, K, 1, m): the slopes of several models at the same rows are computed at once
    outer = xp.asarray(np.moveaxis(outer * feature_map.amplitudes, 1, 0), dtype=dtype)
    total, widest = xp.zeros((len(coef), feature_map.n_columns), dtype=xp.float64), max(W.shape)
    together = _at_once(widest, len(coef), dtype)
    for rows, tile in dense_tiles(X, feature_map, dtype, width=together * widest):
        z = generic.angles(xp, generic.scaled(xp, tile, feature_map.scaler, dtype), feature_map, dtype)
        weights = xp.asarray(S[rows, 0], dtype=dtype)
        for some in spans(len(coef), together):
            slopes = generic.slopes(xp, z, feature_map, outer[:, some])
            gradients = xp.matmul(xp.reshape(slopes, (-1, slopes.shape[-1])), W)
            total[some] += xp.matmul(weights, xp.square(xp.reshape(gradients, (*slopes.shape[:2], -1))))
    return total.T


@in_smaller_tiles
def left_out_sums(X: Rows, s: Array, feature_map: FeatureMap, groups: Sequence[np.ndarray], dtype: np.dtype) -> Any:
    """`dkl.kernels.explanations.left_out_sums` for rows on a GPU, where the result stays; s may be on it too."""
    xp, S = array_module(X), _columns(s, X.shape[0])
    W, m = generic.placed_matrix(xp, feature_map.projection, dtype), feature_map.n_frequencies
    total = xp.zeros((len(groups), 2, m), dtype=xp.float64)
    for rows, tile in dense_tiles(X, feature_map, dtype):
        # in turns, as the kernel needs angles
        scaled = generic.scaled(xp, tile, feature_map.scaler, dtype) * dtype.type(TURN)
        whole, weights = xp.matmul(scaled, W.T), xp.asarray(S[rows], dtype=dtype)
        for group, left_out in enumerate(map(xp.asarray, groups)):
            # w.x without the group's columns is the whole product minus the group's own terms
            own = xp.matmul(xp.take(scaled, left_out, axis=1), xp.take(W, left_out, axis=1).T)
            total[group] += _sincos_sums(xp, whole - own, weights)[:, :, 0]
    return total


@in_smaller_tiles
def map_rows(X: Rows, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """`dkl.kernels.maps.map_rows` for rows on a GPU; the result stays there."""
    xp, dtype, m = array_module(X), checked_dtype(dtype), feature_map.n_frequencies
    out = xp.empty((X.shape[0], feature_map.n_features), dtype=dtype)
    fused = _write_waves if feature_map.is_fourier else _write_steps if feature_map.activation == "steps" else None
    for rows, tile in dense_tiles(X, feature_map, dtype):
        if fused is not None and out[rows].size:
            fused(xp, tile, feature_map, out[rows])
            continue
        for part, phi in enumerate(generic.mapped(xp, tile, feature_map, dtype)):
            out[rows, part * m : (part + 1) * m] = phi
    return out


def _write_waves(xp: ModuleType, tile: Array, feature_map: FeatureMap, out: Array) -> None:
    """Write the cosines, or cosines and sines, of rows to `out`, with one read of angles and one write of features."""
    dtype, (n, m) = np.dtype(out.dtype.name), (tile.shape[0], feature_map.n_frequencies)
    z = generic.angles(xp, generic.scaled(xp, tile, feature_map.scaler, dtype), feature_map, dtype)
    amplitudes = xp.asarray(feature_map.amplitudes, dtype=dtype)
    sizes = map(np.int32, (n, m, feature_map.columns_a_frequency))
    generic.launch(xp, "waves", dtype.name, n * m, (xp.ascontiguousarray(z), amplitudes, out, *sizes))


def _write_steps(xp: ModuleType, tile: Array, feature_map: FeatureMap, out: Array) -> None:
    """Write the products of steps and hinges of rows to `out`."""
    n, m = tile.shape[0], feature_map.n_frequencies
    projection: Any = feature_map.projection
    rows = xp.ascontiguousarray(generic.scaled(xp, tile, feature_map.scaler, np.float64))
    table = generic.placed_steps(xp, projection)
    sizes = map(np.int32, (n, tile.shape[1], m, projection.columns.shape[1]))
    operands = (rows, *table, xp.asarray(feature_map.amplitudes, dtype=np.float64), out, *sizes)
    generic.launch(xp, "steps", out.dtype.name, n * m, operands)


def _wave_sums(xp: ModuleType, scaled: Array, feature_map: FeatureMap, weights: Array) -> Any:
    """`_sincos_sums` of scaled rows (n, d): for few columns without storing angles, else after a product."""
    dtype, d, projection = np.dtype(weights.dtype.name), scaled.shape[1], feature_map.projection
    if 0 < d <= MOST_COLUMNS and not isinstance(projection, ColumnProjection | StructuredProjection):
        W = generic.placed_matrix(xp, projection, dtype) * dtype.type(TURN)
        return _sincos_sums(xp, scaled, weights, W)
    # the product is true float32, in turns, and one kernel follows it
    return _sincos_sums(xp, generic.projected(xp, scaled * dtype.type(TURN), projection, dtype), weights)


def _sincos_sums(xp: ModuleType, z: Array, weights: Array, W: Array | None = None) -> Any:
    """The weighted sums, (2, m, K) on the GPU, of the cosines and sines of angles z (n, m) in turns.

    With frequencies W (m, d), in turns, `z` are rows (n, d), whose products with W are the angles.
    """
    z, (n, K) = xp.ascontiguousarray(z), weights.shape
    m, n_columns = (z.shape[1], 0) if W is None else W.shape
    # One partial sum for every few rows: they are added in float64, in a fixed order, so that the bits do not depend on
    # the GPU's scheduling.
    chunks = -(-n // PARTIAL_ROWS)
    partial = xp.empty((chunks, 2, K, m), dtype=xp.float64)
    grid = (-(-m // generic.THREADS), chunks, -(-K // columns_at_once(K)))
    frequencies = z if W is None else xp.ascontiguousarray(W)
    operands = (z, frequencies, xp.ascontiguousarray(weights), partial, np.int32(n), np.int32(m), np.int32(K))
    source = kernel_source("pair_sums", weights.dtype.name, K, n_columns)
    generic.compiled(xp, source, "pair_sums")(grid, (generic.THREADS,), operands)
    return partial.sum(axis=0).transpose(0, 2, 1)


def scores_on_gpu(phi: Array, models: Array) -> Any:
    """``phi . w + b`` of features (n, m) and models (g, m + 1), (n, g), computed in float64; it stays on the GPU.

    The features are read once, in their own precision.
    """
    xp, (n, m), g = array_module(phi), phi.shape, models.shape[0]
    # kernels need arrays in C order
    phi, models, out = xp.ascontiguousarray(phi), xp.ascontiguousarray(models), xp.empty((n, g))
    if out.size:
        kernel = generic.compiled(xp, kernel_source("scores", phi.dtype.name, g), "scores")
        blocks = min(-(-n // SHARING), _MOST_BLOCKS)
        kernel((blocks,), (SHARING**2,), (phi, models, out, np.int32(n), np.int32(m), np.int32(g)))
    return out


def line_losses_on_gpu(
    scores: Array, targets: Array, weights: Array, steps: Array, *, hinge: bool, change: bool
) -> tuple[Any, Any, Any]:
    """The losses of g models along a step, for the squared error or the squared hinge, on a GPU, where they stay.

    Parameters
    ----------
    scores : CuPy array of shape (n, 2 g), float64
        Scores at the start of each model, and what a whole step adds to them.
    targets : CuPy array of shape (n, g), float64
    weights : CuPy array of shape (n, 1) or (n, g), float64
    steps : CuPy array of shape (g, T), float64
    hinge : bool
    change : bool
        Return the curvature at the first step minus that at the start.

    Returns
    -------
    losses : CuPy array of shape (g, T), float64
    descent : CuPy array of shape (g, n), float64
        Minus the slope of each row's weighted loss at the first step.
    counted : CuPy array of shape (g, n), float64
        The weight of each row times its curvature at the first step, which is 0 or 1.
    """
    xp, (n, g), T = array_module(scores), targets.shape, steps.shape[1]
    partial, descent, counted = xp.zeros((-(-n // LINE_ROWS), g, T)), xp.empty((g, n)), xp.empty((g, n))
    if n:
        numbers = map(np.int32, (n, g, T, weights.shape[1] > 1, hinge, change))
        # kernels need arrays in C order, and selected columns of targets may be in Fortran order
        given = map(xp.ascontiguousarray, (scores, targets, weights, steps))
        operands = (*given, partial, descent, counted, *numbers)
        generic.launch(xp, "line_losses", "float64", partial.shape[0] * g, operands)
    return partial.sum(axis=0), descent, counted


def weighted_rows_on_gpu(weights: Array, phi: Array) -> Any:
    """``sum_i weights_ki phi_i`` of float64 weights (K, n) and features (n, m), float64 of shape (K, m); on the GPU.

    The features are read once, in their own precision; the order of the sum does not depend on the GPU's scheduling.
    """
    xp, (n, m), K = array_module(phi), phi.shape, weights.shape[0]
    phi, weights = xp.ascontiguousarray(phi), xp.ascontiguousarray(weights)
    partial = xp.zeros((-(-n // PARTIAL_ROWS), K, m))
    if partial.size:
        kernel = generic.compiled(xp, kernel_source("weighted_rows", phi.dtype.name, K), "weighted_rows")
        grid = (-(-m // generic.THREADS), partial.shape[0], -(-K // columns_at_once(K)))
        kernel(grid, (generic.THREADS,), (phi, weights, partial, np.int32(n), np.int32(m), np.int32(K)))
    return partial.sum(axis=0)


def add_picked_products(phi: Array, picked: tuple[Any, Any, Any], columns: tuple[int, int], out: Array) -> None:
    """Add ``sum_i weights_i phi_ij phi_ik`` over few picked rows to a matrix on a GPU.

    Only these rows cost time, and the host does not wait for their number.

    Parameters
    ----------
    phi : CuPy array of shape (n, m)
    picked : three CuPy arrays
        The weights of all rows, positive or negative, float64 of shape (n,); the positions of all rows, the picked ones
        first, int32 of shape (n,); and the number of picked ones, int32 of shape (1,).
    columns : (int, int)
        The columns j, start .. stop - 1; k are all columns before stop. Entries with j < k may be left out.
    out : CuPy array of shape (stop - start, stop), float64
    """
    xp, (start, stop) = array_module(phi), columns
    if not len(phi) or stop <= start:
        return
    kernel = generic.compiled(xp, kernel_source("picked_products", phi.dtype.name), "picked_products")
    grid = tuple(-(-size // (SHARING * PRODUCTS_EACH)) for size in (stop, stop - start))
    sizes = map(np.int32, (phi.shape[1], start, stop - start, stop))
    kernel(grid, (SHARING**2,), (xp.ascontiguousarray(phi), *picked, out, *sizes))


def calibration_sums_on_gpu(scores: Array, codes: Array, weights: Array, multipliers: np.ndarray) -> Any:
    """The log loss of ``softmax(a * scores)`` and its first two derivatives in log a, on a GPU, where they stay.

    Parameters
    ----------
    scores : CuPy array of shape (n, M, K), float64
        Scores of M models.
    codes : CuPy array of shape (n,)
    weights : CuPy array of shape (n, M), float64
    multipliers : ndarray of shape (T,)
        Inverse temperatures a.

    Returns
    -------
    CuPy array of shape (M, 2, 3, T), float64
        For the rows' own classes, and for classes drawn uniformly.
    """
    xp, (n, M, K), T = array_module(scores), scores.shape, len(multipliers)
    partial = xp.zeros((-(-n // PARTIAL_ROWS), M, 2, 3, T))
    if partial.size:
        arrays = (xp.ascontiguousarray(scores), codes.astype(np.int32), xp.ascontiguousarray(weights))
        operands = (*arrays, xp.asarray(multipliers), partial, *map(np.int32, (n, M, K, T)))
        generic.launch(xp, "calibration", "float64", len(partial) * M * T, operands)
    return partial.sum(axis=0)


def histograms_on_gpu(rows: Array, edges: Sequence[np.ndarray], inside: tuple[Array, np.ndarray], sums: Array) -> Any:
    """`dkl.kernels.step_tiles.HistogramSums` on a GPU, where they stay.

    Parameters
    ----------
    rows : CuPy array of shape (n, d), float64
        Scaled rows.
    edges : two ndarrays
        The edges of the bins, (d, bins), and the number of valid ones, (d,).
    inside : CuPy array of shape (n, m), ndarray of shape (P,)
        Features, and the columns of the parents: a row counts for a parent if this feature and its weight are above 0.
    sums : CuPy array of shape (n, 2 + K), float64
        The weight of a row, its curvature h and its s of each model.

    Returns
    -------
    CuPy array of shape (P, d, bins, 2 + K), float64
    """
    xp, (n, d), (phi, parents) = array_module(rows), rows.shape, inside
    bins, width = edges[0].shape[1], sums.shape[1]
    shape = len(parents), d, bins, width
    parts = max(1, min(_HISTOGRAM_PARTS, -(-n // PARTIAL_ROWS), tile_bytes() // (8 * max(int(np.prod(shape)), 1))))
    partial = xp.zeros((parts, *shape))
    if partial.size and n:
        tables = [xp.asarray(np.ascontiguousarray(edges[0], dtype=np.float64))]
        tables += [xp.asarray(np.ascontiguousarray(table, dtype=np.int32)) for table in (edges[1], parents)]
        arrays = [xp.ascontiguousarray(array) for array in (rows, phi, sums)]
        sizes = map(np.int32, (n, d, phi.shape[1], bins, len(parents), width, -(-n // parts)))
        operands = (*arrays, *tables, partial, *sizes)
        generic.launch(xp, "histograms", phi.dtype.name, parts * len(parents) * d, operands)
    return partial.sum(axis=0)


def packed_on_gpu(matrix: Array, start: int) -> Any:
    """Entries (j, 0 .. start + j) of a float64 matrix, row after row, in one array, which stays on the GPU.

    For rows of a symmetric matrix that belong to the columns from `start` on, this halves the copy to the host.
    """
    xp, (rows, width) = array_module(matrix), matrix.shape
    out = xp.empty(rows * (start + 1) + rows * (rows - 1) // 2)
    if out.size:
        sizes = map(np.int32, (rows, width, start))
        generic.launch(xp, "packed", "float64", rows * width, (xp.ascontiguousarray(matrix), out, *sizes))
    return out


def rounded_product(left: Array, right: Array) -> Any:
    """The product of two float32 matrices by a GPU's tensor cores, several times as fast as in true float32.

    Their entries are rounded to the 10 bits of TF32; products are added in float32. A GPU without tensor cores for this
    format computes in float32.
    """
    xp = array_module(left)
    cublas = xp.cuda.cublas
    # the library's handle, and so its mode, belongs to this thread alone
    handle = xp.cuda.device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    cublas.setMathMode(handle, _TENSOR_CORES)
    try:
        return xp.matmul(left, right)
    finally:
        cublas.setMathMode(handle, before)


def sgd_rows(X: Array, Y: np.ndarray, S: np.ndarray, models: SGDModels, rule: SGDRule) -> SGDModels:
    """`dkl.kernels.sgd.steps.sgd_rows` for rows on a GPU and a rule that suits it; models on the GPU stay there."""
    xp, n = array_module(X), X.shape[0]
    lengths = rule.step_lengths(models.clock, n, xp)
    by_row = [xp.array(values, dtype=xp.float64, order="C") for values in (Y, S, lengths)]
    source, intercept = sgd_source(rule, np.dtype(X.dtype.name)), xp.array(models.intercept, dtype=xp.float64)
    steps, name = (_sgd_jointly, "sgd_jointly") if rule.loss == "softmax" else (_sgd_in_batches, "sgd_shares")
    coef = steps(X, by_row, models.coef, intercept, rule, generic.compiled(xp, source, name))
    after = replace(models, coef=coef, intercept=intercept, clock=models.clock + n)
    if is_on_gpu(models.coef):
        return after
    here = sums_on_host({"coef": coef, "intercept": intercept})
    return replace(after, coef=here["coef"].astype(X.dtype.name), intercept=here["intercept"])


def _sgd_in_batches(X: Array, by_row: list[Array], start: Any, intercept: Array, rule: SGDRule, kernel: Any) -> Any:
    """Coefficients after steps on batches of rows, whose products with each other and models the GPU computes."""
    xp, K = array_module(X), len(intercept)
    coef = xp.asarray(start, dtype=xp.float64)
    of_rule = [np.float64(value) for value in (rule.penalties[1], rule.epsilon, rule.intercept_rate)]
    for rows in spans(X.shape[0], _BATCH_ROWS):
        x = xp.asarray(X[rows], dtype=xp.float64)
        size = x.shape[0]
        products = [xp.ascontiguousarray(xp.matmul(x, other.T)) for other in (coef, x)]
        shares, factors = xp.zeros((K, size)), xp.empty(K)
        arrays = (*products, *(xp.ascontiguousarray(values[rows]) for values in by_row), shares, factors, intercept)
        # one thread block for each model, which takes the steps in order, on products instead of columns
        kernel((K,), (GROUP**2,), (*arrays, np.int32(size), np.int32(K), *of_rule))
        coef = factors[:, None] * coef + xp.matmul(shares, x)
    return coef.astype(X.dtype)


def _sgd_jointly(X: Array, by_row: list[Array], start: Any, intercept: Array, rule: SGDRule, kernel: Any) -> Any:
    """Coefficients after steps on all models for each row, whose scores under all models determine each step."""
    xp, (n, m), K = array_module(X), X.shape, len(intercept)
    # a copy, which the kernel overwrites with the new models
    coef = xp.array(start, dtype=X.dtype, order="C")
    arrays = (xp.ascontiguousarray(X), *by_row, coef, intercept, xp.empty(K))
    numbers = (*map(np.int32, (n, m, K)), np.float64(rule.penalties[1]), np.float64(rule.intercept_rate))
    kernel((1,), (GROUP**2,), (*arrays, *numbers))
    return coef


def _at_once(width: int, number: int, dtype: np.dtype) -> int:
    """The number of models, or columns of weights, in one product: those that fit the smallest tile."""
    return max(1, min(number, tile_bytes() // (PARTIAL_ROWS * width * dtype.itemsize)))


def dense_tiles(X: Rows, feature_map: FeatureMap, dtype: np.dtype, width: int = 0) -> Iterator[tuple[slice, Any]]:
    """Dense tiles of the raw rows of a block on a GPU; sparse rows become dense there, a tile at a time.

    A tile has as many rows as the widest array that is computed from it has memory for; `width` is the number of that
    array's columns if the caller makes a wider one than features and angles.
    """
    if X.shape[1] != feature_map.n_columns:
        raise ValueError(f"rows have {X.shape[1]} columns, but the feature map takes {feature_map.n_columns}")
    widest = max(feature_map.n_columns, _width(feature_map), width)
    for rows in spans(X.shape[0], tile_rows(widest, dtype.itemsize)):
        yield rows, dense_rows(X[rows])


def _width(feature_map: FeatureMap) -> int:
    """Numbers of a row in the widest array between columns and features: angles, or similarities to all landmarks."""
    projection = feature_map.projection
    parts = projection.maps if isinstance(projection, CombinedProjection) else []
    own = len(projection.landmarks) if isinstance(projection, NystromProjection) else 0
    return max([feature_map.n_angles, own, *(_width(part) for part in parts)])


def gpu_bytes(operands: object, rows: int, columns: int) -> int:
    """An upper bound on the bytes of tiles and matrices on a GPU for one block, without the block itself.

    Depends on the feature maps among the operands of a pass, and inside these.
    """
    feature_maps = list({id(one): one for one in _feature_maps(operands)}.values())
    widest = max([columns, *(max(_width(one), one.n_features) for one in feature_maps)])
    tiles = _ARRAYS_OF_A_TILE * 8 * widest * min(rows, tile_rows(widest, 8))
    # frequencies are dense on the GPU, in float64 at most
    return tiles + sum(max(8 * one.n_angles * one.n_columns, 2 * one.projection.nbytes) for one in feature_maps)


def _feature_maps(value: Any) -> Iterator[FeatureMap]:
    """The feature maps in nested objects."""
    if isinstance(value, FeatureMap):
        yield value
    elif isinstance(value, Mapping):
        yield from (one for part in value.values() for one in _feature_maps(part))
    elif isinstance(value, tuple | list):
        yield from (one for part in value for one in _feature_maps(part))
    elif is_dataclass(value):
        yield from (one for part in fields(value) for one in _feature_maps(getattr(value, part.name)))


def tile_bytes() -> int:
    """Bytes of one array of a tile: the default of this process's card, or fewer after its memory has run out.

    The default depends on the size of the card alone, so that equal cards add rows in the same order. A process without
    a GPU, which may plan for others, assumes the largest.
    """
    own = _tile_bytes.get()
    if own is not None:
        return own
    return _LARGE_TILE_BYTES if why_no_gpu() is not None else _card_tile_bytes()


@cache
def _card_tile_bytes() -> int:
    """`tile_bytes` from the memory of the card, computed once in each process."""
    import cupy

    cupy.cuda.Device(own_gpu()).use()
    share = int(cupy.cuda.runtime.memGetInfo()[1]) // 64
    return min(max(1 << (share.bit_length() - 1), _SMALL_TILE_BYTES), _LARGE_TILE_BYTES)


def tile_rows(width: int, itemsize: int) -> int:
    """Rows of a tile of this width: a multiple of those of a partial sum, such that an array fits `tile_bytes`."""
    return max(PARTIAL_ROWS, tile_bytes() // (width * itemsize) // PARTIAL_ROWS * PARTIAL_ROWS)


def on_host(x: Rows) -> np.ndarray:
    """The array itself, or a copy of one on a GPU, in its own dtype; sparse rows stay sparse."""
    # the method of CuPy's arrays that copies them to the host, which the declared type does not have
    get: Callable[[], np.ndarray] | None = getattr(x, "get", None) if is_on_gpu(x) else None
    copied = x if get is None else get()
    if get is not None:
        refuse_now()
    return copied if sparse.issparse(copied) else np.asarray(copied)


def sums_on_host(sums: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sums on the host; those on a GPU are copied in one wait, together with the errors found in rows.

    Raises
    ------
    Exception
        The errors given to `refuse_later`.
    """
    there = {name: value for name, value in sums.items() if is_on_gpu(value)}
    if not there:
        return sums
    xp, refused = array_module(next(iter(there.values()))), take_refusals()
    parts = [*(flag for flag, _ in refused), *there.values()]
    flat, found, start = on_host(xp.concat([part.ravel() for part in parts])), dict(sums), len(refused)
    for flag, (_, explain) in zip(flat, refused, strict=False):
        if flag:
            raise explain()
    for name, value in there.items():
        found[name] = flat[start : start + value.size].reshape(value.shape)
        start += value.size
    return found


def refuse_now() -> None:
    """Wait for all errors of `refuse_later` that nobody has checked, and raise one if there is any."""
    for flag, explain in take_refusals():
        if bool(flag):
            raise explain()


def normal_source(x: Array, seed: int) -> Callable[[tuple[int, ...]], Any]:
    """A function from shapes to standard normal numbers, in the dtype and on the device of `x`; a GPU draws others."""
    if is_on_gpu(x):
        import cupy

        on_gpu = cupy.random.default_rng(seed)
        return lambda shape: on_gpu.standard_normal(shape, dtype=x.dtype)
    generator = stream(seed, "noise")
    return lambda shape: generator.standard_normal(shape, dtype=x.dtype)


class DeviceLandscape:
    """`dkl.methods.frequency_search.peak_search.landscape` for rows on a GPU; W, v and the gradient stay there.

    Parameters
    ----------
    X : CuPy array of shape (n, d), dense or sparse
    S : array of shape (n, K) or (n,)
    dtype : dtype
    columns : ndarray of shape (c, q) or None
    """

    def __init__(self, X: Rows, S: np.ndarray, dtype: np.dtype, columns: np.ndarray | None = None) -> None:
        self.xp = array_module(X)
        self.X = self.xp.ascontiguousarray(dense_rows(X), dtype=dtype)
        self.S = self.xp.asarray(S if S.ndim == 2 else S[:, None], dtype=dtype)
        self.columns = None if columns is None else self.xp.asarray(columns)

    def potentials(self, W: Array) -> Any:
        """v alone."""
        return self(W)[0]

    def __call__(self, W: Array) -> tuple[Any, Any]:
        W = self.xp.asarray(W, dtype=self.X.dtype)
        if self.columns is None:
            return self._value_and_gradient(W)
        chains, there = self.xp.arange(len(W))[:, None], self.columns >= 0
        wide = self.xp.zeros((len(W), self.X.shape[1] + 1), self.X.dtype)
        # The frequencies on all d columns. Chains with fewer columns than others have positions marked -1, which write
        # to an additional column that is dropped.
        wide[chains, self.columns] = W * there
        wide[:, -1] = 0
        v, gradient = self._value_and_gradient(self.xp.ascontiguousarray(wide[:, :-1]))
        return v, gradient[chains, self.xp.maximum(self.columns, 0)] * there

    def _value_and_gradient(self, W: Array) -> tuple[Any, Any]:
        """v and its gradient at frequencies on all columns, for as many chains at a time as a tile allows."""
        xp = self.xp
        v, gradient = xp.empty(len(W), xp.float64), xp.empty_like(W)
        for chains in spans(len(W), max(16, tile_bytes() // (self.X.itemsize * max(len(self.X), 1)))):
            z = xp.matmul(self.X, W[chains].T)
            cosines, sines = xp.cos(z), xp.sin(z)
            real, imaginary = xp.matmul(self.S.T, cosines), xp.matmul(self.S.T, sines)
            # v = sum_k |sum_i S_ik exp(i w.x_i)|^2, the potential of each chain
            v[chains] = xp.sum(xp.square(real.astype(xp.float64)) + xp.square(imaginary.astype(xp.float64)), axis=0)
            # its derivative in the angle of row i is 2 sum_k S_ik (cos z_i Im - sin z_i Re), and that angle is w.x_i
            slopes = cosines * xp.matmul(self.S, imaginary) - sines * xp.matmul(self.S, real)
            gradient[chains] = 2.0 * xp.matmul(slopes.T, self.X)
        return v, gradient
