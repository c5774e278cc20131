"""The one module that knows CuPy: where arrays live, and the block arithmetic on a GPU."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import sys
import tempfile
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache, partial, wraps
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike
from scipy import sparse

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
    calibration_source,
    columns_at_once,
    histogram_source,
    line_loss_source,
    map_source,
    packing_source,
    picked_source,
    row_sum_source,
    score_source,
    wave_sum_source,
)
from dkl.kernels.refusals import take_refusals
from dkl.kernels.sgd.cuda_source import GROUP, sgd_source
from dkl.kernels.sgd.rule import SGDModels, SGDRule
from dkl.kernels.sincos import TURN
from dkl.kernels.tiles import checked_dtype, checked_weights, spans
from dkl.plain_files import locked, own_folder
from dkl.process import after_fork
from dkl.protocols.arrays import Array, Rows
from dkl.protocols.block import Block

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# "mixed": each process of a cluster takes what it has
Device = Literal["cpu", "gpu", "mixed"]

# Bytes of one array of a tile on a GPU: a 64th of the card's memory, a power of two between these bounds. Every tile
# costs some twenty calls of the interpreter, 1 ms; a card that is through with a tile of 256 MiB by then waits for the
# next (an H200: a pass without a Hessian took 1.45 times as long as with tiles of 1 GiB).
_SMALL_TILE_BYTES, _LARGE_TILE_BYTES = 1 << 28, 1 << 30
# Bytes of the smallest one that is tried where memory runs out.
_LEAST_TILE_BYTES = 1 << 22
# Arrays of a tile that are alive at once: rows, scaled rows, angles, features, and for products features in float64.
_ARRAYS_OF_A_TILE = 6
# Bytes of a piece of pinned memory, by way of which rows come to a GPU, and how many there are at most: a thread fills
# one in some 2 ms, at 8 GB/s, and the GPU fetches it in 0.3 ms, at 55 GB/s (measured), so that seven threads that fill
# pieces keep up with it.
_PIECE_BYTES, _MOST_PIECES = 1 << 24, 16
_THREADS = 128
# Blocks of threads that go through rows, of which each takes several where there are more: some for each processor.
_MOST_BLOCKS = 4096
# Parts of a block whose histograms are summed by themselves, at most: so many threads a parent and column.
_HISTOGRAM_PARTS = 64
# Rows of a stochastic fit whose products are made at once: as many as threads share a model.
_BATCH_ROWS = GROUP**2
# The mode of cuBLAS that is called CUBLAS_TF32_TENSOR_OP_MATH.
_TENSOR_CORES = 3
# What CUDA and its libraries call an allocation that failed; those that find no room for their workspace say that they
# are not initialized.
_ALLOCATION_FAILED = (
    *("cudaErrorMemoryAllocation", "OUT_OF_MEMORY", "_ALLOC_FAILED"),
    *("CUBLAS_STATUS_NOT_INITIALIZED", "CUSOLVER_STATUS_NOT_INITIALIZED", "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES"),
)
# Why no GPU can be used where none was ever in question: it is said to who asks for one, and to nobody else.
NO_CUPY = "CuPy is not installed (pip install 'dkl[cuda12]' or 'dkl[cuda13]')"
# Where launchers say which of the processes of a machine this one is.
_LOCAL_RANKS = ("SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "LOCAL_RANK")
# Processes that share one GPU at most, as far as they count each other.
_MOST_SHARING = 64

_claiming = threading.Lock()
# Functions that let go of what layers above keep on the GPU for later, and say whether there was anything.
givers: list[Callable[[], bool]] = []
# Bytes of one array of a tile, where it is not what the card's memory asks for.
_tile_bytes: ContextVar[int | None] = ContextVar("tile bytes", default=None)


def resolve_device(device: str) -> Literal["cpu", "gpu"]:
    """Where this process computes: "auto" and "mixed" take a GPU if CuPy finds one.

    Raises
    ------
    ValueError
        If `device` is not "auto", "cpu", "gpu" or "mixed".
    RuntimeError
        If "gpu" is asked for and there is none that CuPy can use; the message says why.
    """
    if device not in ("auto", "cpu", "gpu", "mixed"):
        raise ValueError(f"device is {device!r}; it must be 'auto', 'cpu', 'gpu' or 'mixed'")
    if device == "cpu":
        return "cpu"
    reason = why_no_gpu()
    if reason is None:
        if os.environ.get("CUPY_TF32") == "1":
            warnings.warn(
                "CUPY_TF32=1 rounds products to 10 bits, which ruins the cosine of a large argument (an error of 9e-3 "
                "at 5 radians); unset it",
                RuntimeWarning,
                stacklevel=2,
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
    """Whether the driver of a GPU by NVIDIA is there, which CuPy could use."""
    return os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None


@cache
def _is_installed(package: str, path: tuple[str, ...]) -> bool:
    """Whether a package is on the path; each look goes through its folders, and fits ask often; none imports it."""
    return importlib.util.find_spec(package) is not None


def own_gpu() -> int:
    """Which of several GPUs this process computes on: the first that no other process of dkl on this machine has.

    A process locks a file for the GPU that it takes, in a folder of the user's own beside the machine's temporary
    files; the operating system unlocks it when the process ends, however it does. Workers of one user that were started
    side by side so spread over the GPUs, and the process that drives them takes one that is left; where none is, each
    gets one process more. A rank that a launcher gave says where to begin, and of the GPUs only those count that
    ``CUDA_VISIBLE_DEVICES`` leaves visible.

    Returns
    -------
    int
        CuPy's number of the device, in the order of the visible ones.
    """
    # Of threads that begin at the same time one takes a GPU for all.
    with _claiming:
        return _claimed_gpu()


@cache
def _claimed_gpu() -> int:
    """`own_gpu`, once a process."""
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    rank = next((int(os.environ[name]) for name in _LOCAL_RANKS if os.environ.get(name, "").isdecimal()), 0)
    order = [(rank + place) % count for place in range(count)]
    if count < 2 or fcntl is None:
        return order[0]
    # What is visible differs between processes, and so do numbers: the place on the bus is the same for all.
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
    # No file can be locked there.
    return order[os.getpid() % count]


@after_fork
def _claim_anew() -> None:
    """A process that was forked has no GPU yet, and none of the threads that were about to take one."""
    global _claiming
    _claiming = threading.Lock()
    _claimed_gpu.cache_clear()
    _card_tile_bytes.cache_clear()


@dataclass(frozen=True, eq=False)
class PlacedBlock(Block):
    """A block whose rows X are on a GPU, or on their way there; everything else is on the host.

    Parameters
    ----------
    arrival : Arrival or None
        What is waited for before the rows are used; None where the stream that computes has copied them.
    beside : Beside or None
        Where what is made of the block on the host may stay on the GPU for the next pass.
    """

    arrival: Arrival | None = None
    beside: Beside | None = None


class Beside:
    """What is kept on a GPU beside the rows of one block for the next pass: the last of each name.

    Parameters
    ----------
    claim : callable
        Whether so many bytes more may be kept there; fewer than none are given back.
    """

    def __init__(self, claim: Callable[[int], bool]) -> None:
        self._claim = claim
        self._kept: dict[str, tuple[bytes, tuple[Any, ...], int]] = {}

    def get(self, name: str, key: bytes) -> tuple[Any, ...] | None:
        """The arrays that were kept under a name, if it was with this key."""
        known, arrays, _ = self._kept.get(name, (b"", (), 0))
        return arrays if known == key else None

    def put(self, name: str, key: bytes, arrays: tuple[Any, ...]) -> None:
        """Keep arrays in the place of the last ones of this name, while there is room."""
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
        Bytes of pinned memory by way of which dense rows may come to a GPU; 0 leaves that to CuPy.
    claim : callable or None
        As of `Beside`.

    Raises
    ------
    RuntimeError
        As `resolve_device`: a worker that came later may lack what the others have.
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
    """All that this thread asks of the GPU from now on comes after the rows of the block have arrived there."""
    if isinstance(block, PlacedBlock) and block.arrival is not None:
        block.arrival.wait()


def with_targets(block: Block) -> Block:
    """The block with its targets and weights where its rows are: a GPU gets them as they are, and computes on them."""
    if not is_on_gpu(block.X):
        return block
    xp = array_module(block.X)
    y, weight = (None if part is None else xp.asarray(part) for part in (block.y, block.weight))
    # weights that are not stored are made where the targets are, if there are any
    return replace(block, y=y, weight=xp.ones(block.n_rows) if y is None and weight is None else weight)


def beside_rows(block: Block, name: str, make: Callable[[Block], tuple[Any, ...]]) -> tuple[Any, ...]:
    """What is made of a block's targets, weights and ids, where its rows are; a GPU keeps it for the next pass.

    Parameters
    ----------
    block : Block
    name : str
        Under which the last of these arrays are kept.
    make : callable
        Pure, and given the block with its targets and weights where the rows are. What it makes is known again by its
        pickle; where it has none, it is made anew in each pass.

    Returns
    -------
    tuple of array or None
        What `make` leaves on the host of rows on a GPU goes there, whole numbers from -128 to 127 as single bytes.
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
    """Some rows of targets and weights in float64, where they are: a GPU may keep them in fewer bytes."""
    return [array_module(part).asarray(part[rows], dtype=np.float64) for part in parts]


def _fingerprint(value: object) -> bytes | None:
    """What tells an object from others, also after a journey between processes; None for one without a pickle."""
    try:
        return blake2b(pickle.dumps(value, protocol=5)).digest()
    except (pickle.PicklingError, AttributeError, TypeError):
        return None


def _short(values: np.ndarray) -> np.ndarray:
    """The numbers as single bytes, where they are whole and small enough."""
    if values.dtype != np.float64 or not values.size or abs(values[0]).max() > 127.0:
        return values
    with np.errstate(invalid="ignore"):
        short = values.astype(np.int8)
    return short if np.array_equal(short, values) else values


def rows_on(X: Rows, device: Device) -> Any:
    """Rows, dense or sparse, on `device`; those that are there already are not copied."""
    if device == "cpu":
        if not is_on_gpu(X):
            return X
        # Of sparse rows cupyx makes a matrix, whose * is a product, so that they become a csr_array here.
        copied = on_host(X)
        return sparse.csr_array(copied) if sparse.issparse(copied) else copied
    if is_on_gpu(X):
        return X
    import cupy

    # Which GPU is the current one, each thread has for itself.
    cupy.cuda.Device(own_gpu()).use()
    if sparse.issparse(X):
        from cupyx.scipy.sparse import csr_matrix

        # cupyx knows no sparse matrices of integers
        return csr_matrix(X if X.dtype.kind == "f" else X.astype(np.float64))
    return cupy.asarray(X)


def sent(part: Any) -> tuple[Any, bool]:
    """An array, or None, on the host for another process, and whether it was on a GPU: what `arrived` takes there."""
    return rows_on(part, "cpu"), is_on_gpu(part)


def arrived(part: Any, was_on_gpu: bool) -> Any:
    """An array that another process has sent: back on a GPU where it was on one and this process has one."""
    return rows_on(part, "gpu") if was_on_gpu and why_no_gpu() is None else part


class Arrival:
    """Rows on their way to a GPU: an array there, whose numbers may be used once `wait` was called.

    Parameters
    ----------
    rows : CuPy array
    """

    def __init__(self, rows: Any) -> None:
        # Kept until work waits for the copies: memory that is free sooner could be given out while they write to it.
        self._rows: Any = rows
        self._event: Any = None

    def begun(self, event: Any) -> None:
        """All copies have been asked for, and `event` comes after the last one."""
        self._event = event

    def wait(self) -> None:
        """All that this thread asks of the GPU from now on comes after the copies; the host goes on meanwhile."""
        import cupy

        if self._event is not None:
            cupy.cuda.get_current_stream().wait_event(self._event)
        self._rows = None


class Staging:
    """Pinned memory, piece by piece, by way of which dense rows come to a GPU on a stream beside its arithmetic.

    Whoever has rows copies them into a free piece, which the GPU fetches by itself. A piece is free again when the
    event behind its copy says that the GPU has fetched it. A thread fills one piece at a time, so that who waits for
    one waits for the GPU alone, or for a thread that waits for nobody.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._free: list[np.ndarray] = []
        # Pieces that the GPU has been told to fetch, with the event behind each copy and what it is a part of.
        self._fetched: deque[tuple[Any, np.ndarray, Arrival]] = deque()
        self._n_pieces = 0
        # As many as the machine pins, once it has refused another.
        self._most_pieces = _MOST_PIECES
        self._stream: Any = None

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self._n_pieces * _PIECE_BYTES

    def send(self, X: np.ndarray, most_bytes: int) -> tuple[Any, Arrival]:
        """Begin to copy rows to the GPU of this process.

        Parameters
        ----------
        X : ndarray
            C-contiguous. It may change, or be forgotten, when this returns.
        most_bytes : int
            Of pinned memory that this process may hold; one piece at least is needed.

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
        # CuPy hands out memory that work asked for earlier may still use: the copies come after that work.
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
                # Whatever was asked for before an error comes before this event too.
                done.record(stream)
                with self._changed:
                    self._fetched.append((done, piece, arrival))
                    self._changed.notify()
        arrival.begun(done)
        return rows, arrival

    def _copying_stream(self) -> Any:
        """The stream that copies, which does not wait for the one that computes unless it is told to."""
        import cupy

        with self._changed:
            if self._stream is None:
                self._stream = cupy.cuda.Stream(non_blocking=True)
            return self._stream

    def _piece(self, most_bytes: int) -> np.ndarray:
        """A free piece of pinned memory, new where there may be more; otherwise the first that becomes free."""
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
                    # Others who need a piece would wait for the same event.
                    self._fetched[0][0].synchronize()
                else:
                    self._changed.wait()

    def clear(self) -> None:
        """Give up the pieces that are free."""
        with self._changed:
            while self._fetched and self._fetched[0][0].done:
                self._free.append(self._fetched.popleft()[1])
            given = len(self._free)
            self._n_pieces -= given
            self._free.clear()
        if given:
            import cupy

            # CuPy keeps what it is given back, pinned, for the next one who asks
            cupy.get_default_pinned_memory_pool().free_all_blocks()


STAGING = Staging()
# What a GPU fetches for the parent never comes to its child.
after_fork(STAGING.__init__)  # type: ignore[misc]


def staging_bytes(n_tasks: int, room: int) -> int:
    """Bytes of pinned memory, within the room, for so many tasks: each fills a piece while another is fetched."""
    return min(2 * n_tasks, _MOST_PIECES, room // _PIECE_BYTES) * _PIECE_BYTES


def is_on_gpu(x: object) -> bool:
    """Whether an array, dense or sparse, is CuPy's."""
    return type(x).__module__.partition(".")[0] in ("cupy", "cupyx")


def array_module(x: object) -> Any:
    """The namespace of an array: numpy, or cupy for arrays on a GPU, which becomes this thread's current one."""
    there: Any = x
    if is_on_gpu(x):
        import cupy

        # Sparse rows of cupyx do not say where they are, their values do.
        (there.data if hasattr(there, "toarray") else there).device.use()
        return cupy
    return np


def in_smaller_tiles(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The function again, with smaller tiles and a warning, where the memory of the GPU does not suffice.

    Its first argument are rows, or a block of them.
    """

    @wraps(compute)
    def computed(*args: Any) -> Any:
        try:
            return compute(*args)
        except (MemoryError, RuntimeError) as error:
            # CuPy's own allocator raises MemoryError; CUDA and cuBLAS, which allocate beside it, name it in their text.
            no_memory = isinstance(error, MemoryError) or any(name in str(error) for name in _ALLOCATION_FAILED)
            if not no_memory or tile_bytes() <= _LEAST_TILE_BYTES or not is_on_gpu(getattr(args[0], "X", args[0])):
                raise
            # The warning and the second try come after this block, where the error no longer holds on to the memory.
            smaller, reason = tile_bytes() // 8, str(error)
        if _give_memory_back():
            # Rows that were kept took the room: without them the same tiles, and the same bits, are tried first.
            return computed(*args)
        warnings.warn(
            f"the GPU's memory does not suffice ({reason}): this block again in tiles of {smaller / 2**20:.0f} MiB, "
            "whose sums differ in the last bits; give the GPU to fewer processes",
            RuntimeWarning,
            stacklevel=3,
        )
        token = _tile_bytes.set(smaller)
        try:
            return computed(*args)
        finally:
            _tile_bytes.reset(token)

    return computed


def _give_memory_back() -> bool:
    """Let go of what is kept on the GPU for later, CuPy's own store included: CUDA's libraries allocate beside it.

    Returns
    -------
    bool
        Whether layers above had kept something.
    """
    import cupy

    had_kept = sum(give() for give in givers) > 0
    generic.forget_matrices()
    cupy.get_default_memory_pool().free_all_blocks()
    return had_kept


def free_gpu_memory() -> tuple[int, int]:
    """Bytes that the GPU of this process has left, and how many GPUs the machine shows."""
    import cupy

    cupy.cuda.Device(own_gpu()).use()
    # CuPy keeps what it freed for its next arrays, which CUDA counts as taken.
    unused = cupy.get_default_memory_pool().free_bytes()
    return cupy.cuda.runtime.memGetInfo()[0] + unused, cupy.cuda.runtime.getDeviceCount()


def feature_sums(X: Rows, S: Array, feature_map: FeatureMap, dtype: np.dtype, *, stay: bool = False) -> Any:
    """`dkl.kernels.sums.feature_sums` for rows on a GPU, where S may be too."""
    sums, amplitudes = _unit_sums(X, S, feature_map, dtype), feature_map.amplitudes[:, None]
    return sums * array_module(X).asarray(amplitudes, dtype=np.float64) if stay else on_host(sums) * amplitudes


@in_smaller_tiles
def _unit_sums(X: Rows, S: Array, feature_map: FeatureMap, dtype: np.dtype) -> Any:
    """The sums of features without amplitudes, (parts, m, K) in float64, where the rows are."""
    xp, dtype = array_module(X), checked_dtype(dtype)
    S = _columns(S, X.shape[0])
    # Tiles are added up in float64, and only their sum comes to the host: one wait a block.
    total = xp.zeros((feature_map.columns_a_frequency, feature_map.n_frequencies, S.shape[1]), dtype=xp.float64)
    # Sums are of features without amplitudes, which are taken at the end in float64.
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
    """`dkl.kernels.sums.feature_squares` for rows on a GPU, where s may be too; they stay there."""
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
def gradient_sums(X: Rows, S: np.ndarray, feature_map: FeatureMap, dtype: np.dtype) -> np.ndarray:
    """`dkl.kernels.gradients.gradient_sums` for rows on a GPU; the result is on the host."""
    xp, dtype, S = array_module(X), checked_dtype(dtype), _columns(S, X.shape[0])
    # U and V of `dkl.kernels.gradients.gradient_sums`, added up in float64.
    total = xp.zeros((2, feature_map.n_frequencies, S.shape[1], feature_map.n_columns), dtype=xp.float64)
    together = _at_once(feature_map.n_columns, S.shape[1], dtype)
    for rows, tile in dense_tiles(X, feature_map, dtype, width=together * feature_map.n_columns):
        scaled = generic.scaled(xp, tile, feature_map.scaler, dtype)
        z = generic.angles(xp, scaled, feature_map, dtype)
        waves = xp.cos(z).T, xp.sin(z).T
        for some in spans(S.shape[1], together):
            # The columns of weights of a product are beside each other in rows s_ik x_i, (n, K d).
            weights = xp.asarray(S[rows, some], dtype=dtype)
            weighted = xp.reshape(weights[:, :, None] * scaled[:, None, :], (len(z), -1))
            for part, wave in enumerate(waves):
                total[part, :, some] += xp.reshape(xp.matmul(wave, weighted), total[part, :, some].shape)
    return on_host(total) * feature_map.amplitudes[:, None, None]


@in_smaller_tiles
def squared_slopes(X: Rows, s: Array, feature_map: FeatureMap, coef: np.ndarray, dtype: np.dtype) -> Any:
    """`dkl.kernels.slopes.squared_slopes` of waves and ramps for rows on a GPU, where s may be too; they stay there."""
    xp, S = array_module(X), _columns(s, X.shape[0])
    W = generic.placed_matrix(xp, feature_map.projection, dtype)
    outer = np.reshape(coef, (len(coef), feature_map.columns_a_frequency, 1, feature_map.n_frequencies))
    # (parts, K, 1, m): the slopes of several models at the same rows are made at once.
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
    """`dkl.kernels.left_out.left_out_sums` for rows on a GPU, where s may be too; they stay there."""
    xp, S = array_module(X), _columns(s, X.shape[0])
    W, m = generic.placed_matrix(xp, feature_map.projection, dtype), feature_map.n_frequencies
    total = xp.zeros((len(groups), 2, m), dtype=xp.float64)
    for rows, tile in dense_tiles(X, feature_map, dtype):
        # In turns, as the fused kernel takes angles.
        scaled = generic.scaled(xp, tile, feature_map.scaler, dtype) * dtype.type(TURN)
        whole, weights = xp.matmul(scaled, W.T), xp.asarray(S[rows], dtype=dtype)
        for group, left_out in enumerate(map(xp.asarray, groups)):
            # w.x without the group's columns is the whole product less the group's own terms.
            own = xp.matmul(xp.take(scaled, left_out, axis=1), xp.take(W, left_out, axis=1).T)
            total[group] += _sincos_sums(xp, whole - own, weights)[:, :, 0]
    return total


@in_smaller_tiles
def map_rows(X: Rows, feature_map: FeatureMap, dtype: DTypeLike) -> Any:
    """`dkl.kernels.maps.map_rows` for rows on a GPU; the result stays there."""
    xp, dtype, m = array_module(X), checked_dtype(dtype), feature_map.n_frequencies
    out = xp.empty((X.shape[0], feature_map.n_features), dtype=dtype)
    fused = {"cos-sin": _write_waves, "cos": _write_waves, "steps": _write_steps}.get(feature_map.activation)
    for rows, tile in dense_tiles(X, feature_map, dtype):
        if fused is not None and out[rows].size:
            fused(xp, tile, feature_map, out[rows])
            continue
        for part, phi in enumerate(generic.mapped(xp, tile, feature_map, dtype)):
            out[rows, part * m : (part + 1) * m] = phi
    return out


def _write_waves(xp: ModuleType, tile: Array, feature_map: FeatureMap, out: Array) -> None:
    """The cosines, or cosines and sines, of rows, in `out`: angles are read once and features written once."""
    dtype, (n, m) = np.dtype(out.dtype.name), (tile.shape[0], feature_map.n_frequencies)
    z = generic.angles(xp, generic.scaled(xp, tile, feature_map.scaler, dtype), feature_map, dtype)
    amplitudes = xp.asarray(feature_map.amplitudes, dtype=dtype)
    sizes = map(np.int32, (n, m, feature_map.columns_a_frequency))
    generic.launch(xp, map_source(dtype), "waves", n * m, (xp.ascontiguousarray(z), amplitudes, out, *sizes))


def _write_steps(xp: ModuleType, tile: Array, feature_map: FeatureMap, out: Array) -> None:
    """The products of steps and hinges of rows, in `out`."""
    dtype, (n, m) = np.dtype(out.dtype.name), (tile.shape[0], feature_map.n_frequencies)
    projection: Any = feature_map.projection
    rows = xp.ascontiguousarray(generic.scaled(xp, tile, feature_map.scaler, np.float64))
    table = generic.placed_steps(xp, projection)
    sizes = map(np.int32, (n, tile.shape[1], m, projection.columns.shape[1]))
    operands = (rows, *table, xp.asarray(feature_map.amplitudes, dtype=np.float64), out, *sizes)
    generic.launch(xp, map_source(dtype), "steps", n * m, operands)


def _wave_sums(xp: ModuleType, scaled: Array, feature_map: FeatureMap, weights: Array) -> Any:
    """`_sincos_sums` of scaled rows (n, d): of few columns without angles in between, else after a product."""
    dtype, d, projection = np.dtype(weights.dtype.name), scaled.shape[1], feature_map.projection
    if 0 < d <= MOST_COLUMNS and not isinstance(projection, ColumnProjection | StructuredProjection):
        W = generic.placed_matrix(xp, projection, dtype) * dtype.type(TURN)
        return _sincos_sums(xp, scaled, weights, W)
    # The product in true float32, in turns, and one fused kernel after it.
    return _sincos_sums(xp, generic.projected(xp, scaled * dtype.type(TURN), projection, dtype), weights)


def _sincos_sums(xp: ModuleType, z: Array, weights: Array, W: Array | None = None) -> Any:
    """The weighted sums, (2, m, K) on the GPU, of the cosines and sines of angles z (n, m) in turns.

    With frequencies W (m, d), in turns, `z` are rows (n, d), whose products with them are the angles.
    """
    z, (n, K) = xp.ascontiguousarray(z), weights.shape
    m, n_columns = (z.shape[1], 0) if W is None else W.shape
    # One partial sum for each few rows: they are added in float64, in a fixed order, so that the bits do not depend on
    # how the GPU schedules its threads.
    chunks = -(-n // PARTIAL_ROWS)
    partial = xp.empty((chunks, 2, K, m), dtype=xp.float64)
    grid = (-(-m // _THREADS), chunks, -(-K // columns_at_once(K)))
    frequencies = z if W is None else xp.ascontiguousarray(W)
    operands = (z, frequencies, xp.ascontiguousarray(weights), partial, np.int32(n), np.int32(m), np.int32(K))
    _compiled(wave_sum_source(np.dtype(weights.dtype.name), K, n_columns), "pair_sums")(grid, (_THREADS,), operands)
    return partial.sum(axis=0).transpose(0, 2, 1)


def scores_on_gpu(phi: Array, models: Array) -> Any:
    """``phi . w + b`` of features (n, m) and models (g, m + 1), (n, g) in float64, by double precision; it stays there.

    The features are read once, in the precision that they have.
    """
    xp, (n, m), g = array_module(phi), phi.shape, models.shape[0]
    # a kernel takes arrays row after row
    phi, models, out = xp.ascontiguousarray(phi), xp.ascontiguousarray(models), xp.empty((n, g))
    if out.size:
        kernel = _compiled(score_source(np.dtype(phi.dtype.name), g), "scores")
        blocks = min(-(-n // SHARING), _MOST_BLOCKS)
        kernel((blocks,), (SHARING**2,), (phi, models, out, np.int32(n), np.int32(m), np.int32(g)))
    return out


def line_losses_on_gpu(
    scores: Array, targets: Array, weights: Array, steps: Array, *, hinge: bool, change: bool
) -> tuple[Any, Any, Any]:
    """The losses of g models along a step, of the squared error or the squared hinge, on a GPU, where they stay.

    Parameters
    ----------
    scores : CuPy array of shape (n, 2 g), float64
        Those at the start of each model, and what a whole step adds to them.
    targets : CuPy array of shape (n, g), float64
    weights : CuPy array of shape (n, 1) or (n, g), float64
    steps : CuPy array of shape (g, T), float64
    hinge : bool
    change : bool
        The curvature is that at the first step less that at the start.

    Returns
    -------
    losses : CuPy array of shape (g, T), float64
    descent : CuPy array of shape (g, n), float64
        Minus the slope of each row's weighted loss at the first step.
    counted : CuPy array of shape (g, n), float64
        The weight of each row times its curvature there, 0 or 1.
    """
    xp, (n, g), T = array_module(scores), targets.shape, steps.shape[1]
    partial, descent, counted = xp.zeros((-(-n // LINE_ROWS), g, T)), xp.empty((g, n)), xp.empty((g, n))
    if n:
        numbers = map(np.int32, (n, g, T, weights.shape[1] > 1, hinge, change))
        # a kernel takes arrays row after row, and columns that were picked of targets may come as columns
        given = map(xp.ascontiguousarray, (scores, targets, weights, steps))
        operands = (*given, partial, descent, counted, *numbers)
        generic.launch(xp, line_loss_source(), "line_losses", partial.shape[0] * g, operands)
    return partial.sum(axis=0), descent, counted


def weighted_rows_on_gpu(weights: Array, phi: Array) -> Any:
    """``sum_i weights_ki phi_i`` of weights (K, n) in float64 and features (n, m), (K, m) in float64; it stays there.

    The features are read once, in the precision that they have; the sum has one order, whatever the GPU does first.
    """
    xp, (n, m), K = array_module(phi), phi.shape, weights.shape[0]
    phi, weights = xp.ascontiguousarray(phi), xp.ascontiguousarray(weights)
    partial = xp.zeros((-(-n // PARTIAL_ROWS), K, m))
    if partial.size:
        kernel = _compiled(row_sum_source(np.dtype(phi.dtype.name), K), "weighted_rows")
        grid = (-(-m // _THREADS), partial.shape[0], -(-K // columns_at_once(K)))
        kernel(grid, (_THREADS,), (phi, weights, partial, np.int32(n), np.int32(m), np.int32(K)))
    return partial.sum(axis=0)


def add_picked_products(phi: Array, picked: tuple[Any, Any, Any], columns: tuple[int, int], out: Array) -> None:
    """Add ``sum_i weights_i phi_ij phi_ik`` over picked rows, which are few, to a matrix on a GPU.

    The work is that of these rows, and the host does not wait for their number.

    Parameters
    ----------
    phi : CuPy array of shape (n, m)
    picked : three CuPy arrays
        The weights of all rows, of either sign, float64 of shape (n,); the positions of all rows, the picked ones
        first, int32 of shape (n,); and how many these are, int32 of shape (1,).
    columns : (int, int)
        The columns j, start .. stop - 1; k are all before stop. Beyond the diagonal, j < k, entries may be left out.
    out : CuPy array of shape (stop - start, stop), float64
    """
    xp, (start, stop) = array_module(phi), columns
    if not len(phi) or stop <= start:
        return
    kernel = _compiled(picked_source(np.dtype(phi.dtype.name)), "picked_products")
    grid = tuple(-(-size // (SHARING * PRODUCTS_EACH)) for size in (stop, stop - start))
    sizes = map(np.int32, (phi.shape[1], start, stop - start, stop))
    kernel(grid, (SHARING**2,), (xp.ascontiguousarray(phi), *picked, out, *sizes))


def calibration_sums_on_gpu(scores: Array, codes: Array, weights: Array, multipliers: np.ndarray) -> Any:
    """The log loss of ``softmax(a * scores)`` and its first two derivatives in log a, on a GPU, where they stay.

    Parameters
    ----------
    scores : CuPy array of shape (n, M, K), float64
        Of M models side by side.
    codes : CuPy array of shape (n,)
    weights : CuPy array of shape (n, M), float64
    multipliers : ndarray of shape (T,)
        Inverse temperatures a.

    Returns
    -------
    CuPy array of shape (M, 2, 3, T), float64
        Against the rows' own classes, and against classes drawn uniformly.
    """
    xp, (n, M, K), T = array_module(scores), scores.shape, len(multipliers)
    partial = xp.zeros((-(-n // PARTIAL_ROWS), M, 2, 3, T))
    if partial.size:
        arrays = (xp.ascontiguousarray(scores), codes.astype(np.int32), xp.ascontiguousarray(weights))
        operands = (*arrays, xp.asarray(multipliers), partial, *map(np.int32, (n, M, K, T)))
        generic.launch(xp, calibration_source(), "calibration", len(partial) * M * T, operands)
    return partial.sum(axis=0)


def histograms_on_gpu(rows: Array, edges: Sequence[np.ndarray], inside: tuple[Array, np.ndarray], sums: Array) -> Any:
    """`dkl.kernels.step_tiles.add_histograms` of several parents at once, on a GPU, where they stay.

    Parameters
    ----------
    rows : CuPy array of shape (n, d), float64
        Scaled.
    edges : two ndarrays
        The edges of the bins, (d, bins), and how many of them count, (d,).
    inside : CuPy array of shape (n, m), ndarray of shape (P,)
        Features, and the columns of the parents: a row counts for a parent where this is above 0, and its weight too.
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
        source = histogram_source(np.dtype(phi.dtype.name))
        generic.launch(xp, source, "histograms", parts * len(parents) * d, (*arrays, *tables, partial, *sizes))
    return partial.sum(axis=0)


def packed_on_gpu(matrix: Array, start: int) -> Any:
    """Entries (j, 0 .. start + j) of a float64 matrix, row after row, in one array, which stays there.

    Of the rows of a symmetric matrix, columns after `start` being theirs, half the numbers have to come to the host.
    """
    xp, (rows, width) = array_module(matrix), matrix.shape
    out = xp.empty(rows * (start + 1) + rows * (rows - 1) // 2)
    if out.size:
        sizes = map(np.int32, (rows, width, start))
        generic.launch(xp, packing_source(), "packed", rows * width, (xp.ascontiguousarray(matrix), out, *sizes))
    return out


def rounded_product(left: Array, right: Array) -> Any:
    """The product of two float32 matrices on a GPU by its tensor cores, several times as fast as in true float32.

    The entries of both are rounded to the 10 bits of TF32; the products are added up in float32. A GPU without tensor
    cores for that format computes in float32.
    """
    xp = array_module(left)
    cublas = xp.cuda.cublas
    # The library's handle, and so its mode, belongs to this thread alone.
    handle = xp.cuda.device.get_cublas_handle()
    before = cublas.getMathMode(handle)
    cublas.setMathMode(handle, _TENSOR_CORES)
    try:
        return xp.matmul(left, right)
    finally:
        cublas.setMathMode(handle, before)


@cache
def _compiled(source: str, name: str) -> Callable[..., None]:
    """A kernel of CUDA source, compiled when it is first called."""
    import cupy

    return cupy.RawKernel(source, name)


def sgd_rows(X: Rows, Y: np.ndarray, S: np.ndarray, models: SGDModels, rule: SGDRule) -> SGDModels:
    """`dkl.kernels.sgd.steps.sgd_rows` for rows on a GPU; models that are there stay there, without a wait."""
    xp, n = array_module(X), X.shape[0]
    lengths = rule.step_lengths(models.clock, n, xp)
    by_row = [xp.array(values, dtype=xp.float64, order="C") for values in (Y, S, lengths)]
    kernel = partial(_compiled, sgd_source(rule, np.dtype(X.dtype.name)))
    if rule.loss == "softmax":
        found = _sgd_jointly(xp, X, by_row, models, rule, kernel("sgd_jointly"))
    elif rule.penalties[0]:
        found = _sgd_row_by_row(xp, X, by_row, models, rule, kernel("sgd_rows"))
    else:
        found = _sgd_in_batches(xp, X, by_row, models, rule, kernel("sgd_shares"))
    if is_on_gpu(models.coef):
        return found
    here = together_on_host({name: getattr(found, name) for name in SGDModels.arrays()})
    coef, mean = (here[name].astype(X.dtype.name) for name in ("coef", "average_coef"))
    return SGDModels(coef, here["intercept"], mean, here["average_intercept"], found.clock)


def _sgd_in_batches(
    xp: ModuleType, X: Array, by_row: list[Array], models: SGDModels, rule: SGDRule, kernel: Callable[..., None]
) -> SGDModels:
    """All rows a batch at a time: their products with each other and with the models, by the whole GPU, come first."""
    n, K = X.shape[0], len(models.intercept)
    coef, mean = (xp.asarray(values, dtype=xp.float64) for values in (models.coef, models.average_coef))
    # Intercepts, their means, and the number of the next step of each model.
    numbers = (models.intercept, models.average_intercept, np.full(K, models.clock))
    state = xp.stack([xp.asarray(one, dtype=xp.float64) for one in numbers])
    of_rule = [np.float64(value) for value in (rule.penalties[1], rule.epsilon, rule.intercept_rate, rule.average)]
    for rows in spans(n, _BATCH_ROWS):
        x = xp.asarray(X[rows], dtype=xp.float64)
        size = x.shape[0]
        products = [xp.ascontiguousarray(xp.matmul(x, other.T)) for other in (coef, x)]
        shares, factors = xp.zeros((K, 2, size)), xp.empty((3, K))
        # One thread block a model: it takes the steps in order, on numbers of rows and not of columns.
        kernel(
            (K,),
            (GROUP**2,),
            (
                *(*products, *(xp.ascontiguousarray(values[rows]) for values in by_row), shares, factors, state),
                *(np.int32(size), np.int32(K), *of_rule),
            ),
        )
        kept, held, mixed = (factors[number][:, None] for number in range(3))
        if rule.average:
            mean = held * mean + mixed * coef + xp.matmul(shares[:, 1], x)
        coef = kept * coef + xp.matmul(shares[:, 0], x)
    coef, mean = (values.astype(X.dtype) for values in (coef, mean))
    return SGDModels(coef, state[0], mean, state[1], models.clock + n)


def _sgd_row_by_row(
    xp: ModuleType, X: Array, by_row: list[Array], models: SGDModels, rule: SGDRule, kernel: Callable[..., None]
) -> SGDModels:
    """Each row by itself through all coefficients, which the l1 penalty stops at 0 one by one; nothing is averaged."""
    (n, m), K = X.shape, len(models.intercept)
    # Copies: the kernel writes the new models over them.
    coef, b = xp.array(models.coef, dtype=X.dtype, order="C"), xp.array(models.intercept, dtype=xp.float64)
    numbers = (*rule.penalties, rule.epsilon, rule.intercept_rate)
    # One thread block a model: each goes through all rows in order, as a step depends on the one before.
    kernel(
        (K,),
        (GROUP**2,),
        (
            *(xp.ascontiguousarray(X), *by_row, coef, xp.zeros_like(coef), b),
            *(*map(np.int32, (n, m, K)), *map(np.float64, numbers)),
        ),
    )
    return SGDModels(coef, b, *_means(xp, X, models), models.clock + n)


def _means(xp: ModuleType, X: Array, models: SGDModels) -> tuple[Any, Any]:
    """Copies of the means of the iterates, on the GPU."""
    coef, intercept = models.average_coef, models.average_intercept
    return xp.array(coef, dtype=X.dtype, order="C"), xp.array(intercept, dtype=xp.float64)


def _sgd_jointly(
    xp: ModuleType, X: Array, by_row: list[Array], models: SGDModels, rule: SGDRule, kernel: Callable[..., None]
) -> SGDModels:
    """Each row by itself through the coefficients of all models, whose scores make its step in each."""
    (n, m), K = X.shape, len(models.intercept)
    # Copies: the kernel writes the new models over them.
    coef = xp.array(models.coef, dtype=X.dtype, order="C")
    mean, mean_b = _means(xp, X, models)
    intercepts = xp.stack([xp.asarray(models.intercept, dtype=xp.float64), mean_b])
    numbers = (*rule.penalties, rule.intercept_rate, models.clock, rule.average)
    arrays = (xp.ascontiguousarray(X), *by_row, coef, mean, xp.zeros_like(coef), intercepts, xp.empty(K))
    kernel((1,), (GROUP**2,), (*arrays, *map(np.int32, (n, m, K)), *map(np.float64, numbers)))
    return SGDModels(coef, intercepts[0], mean, intercepts[1], models.clock + n)


def _at_once(width: int, number: int, dtype: np.dtype) -> int:
    """How many of a number of models, or columns of weights, one product takes: those that fit into the least tile."""
    return max(1, min(number, tile_bytes() // (PARTIAL_ROWS * width * dtype.itemsize)))


def dense_tiles(X: Rows, feature_map: FeatureMap, dtype: np.dtype, width: int = 0) -> Iterator[tuple[slice, Any]]:
    """Dense row tiles of a block on a GPU, raw: sparse rows are written out there, a tile at a time.

    A tile has as few rows as leave room for the widest array that is made of it, whose columns `width` may raise.
    """
    if X.shape[1] != feature_map.n_columns:
        raise ValueError(f"rows have {X.shape[1]} columns, but the feature map takes {feature_map.n_columns}")
    widest = max(feature_map.n_columns, _width(feature_map), width)
    for rows in spans(X.shape[0], tile_rows(widest, dtype.itemsize)):
        part = X[rows]
        yield rows, part.toarray() if hasattr(part, "toarray") else part


def _width(feature_map: FeatureMap) -> int:
    """The most numbers of a row between its columns and its features: angles, or similarities to all landmarks."""
    projection = feature_map.projection
    parts = projection.maps if isinstance(projection, CombinedProjection) else []
    own = len(projection.landmarks) if isinstance(projection, NystromProjection) else 0
    return max([feature_map.n_angles, own, *(_width(part) for part in parts)])


def gpu_bytes(operands: object, rows: int, columns: int) -> int:
    """Bytes at most of the tiles and matrices that one block of so many rows takes on a GPU beside itself.

    The feature maps among the operands of a pass, and in the objects there, decide.
    """
    feature_maps = list({id(one): one for one in _feature_maps(operands)}.values())
    widest = max([columns, *(max(_width(one), one.n_features) for one in feature_maps)])
    tiles = _ARRAYS_OF_A_TILE * 8 * widest * min(rows, tile_rows(widest, 8))
    # Frequencies lie there written out, in float64 at most.
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
    """Bytes of one array of a tile: those of this process's card, fewer where its memory has run out.

    They follow from the size of the card alone, so that equal cards add up rows in the same order. A process without a
    GPU, which may plan for those of others, expects the largest.
    """
    own = _tile_bytes.get()
    if own is not None:
        return own
    return _LARGE_TILE_BYTES if why_no_gpu() is not None else _card_tile_bytes()


@cache
def _card_tile_bytes() -> int:
    """`tile_bytes` by the memory of the card, once a process."""
    import cupy

    cupy.cuda.Device(own_gpu()).use()
    share = int(cupy.cuda.runtime.memGetInfo()[1]) // 64
    return min(max(1 << (share.bit_length() - 1), _SMALL_TILE_BYTES), _LARGE_TILE_BYTES)


def tile_rows(width: int, itemsize: int) -> int:
    """Rows of a tile so wide: a multiple of those of a partial sum, and so few that one array is within the bytes."""
    return max(PARTIAL_ROWS, tile_bytes() // (width * itemsize) // PARTIAL_ROWS * PARTIAL_ROWS)


def on_host(x: Rows) -> np.ndarray:
    """The array itself, or a copy of one on a GPU, in its own dtype; sparse rows stay sparse."""
    # The method of CuPy's arrays that copies them to the host, which the type of arrays here does not know.
    get: Callable[[], np.ndarray] | None = getattr(x, "get", None) if is_on_gpu(x) else None
    copied = x if get is None else get()
    if get is not None:
        refuse_now()
    return copied if sparse.issparse(copied) else np.asarray(copied)


def together_on_host(sums: dict[str, Any]) -> dict[str, np.ndarray]:
    """Sums on the host; those of a GPU come together, in one wait, and with them what was found wrong of rows.

    Raises
    ------
    Exception
        What `refuse_later` was given.
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
    """Wait for all that was found wrong of rows and that nobody has looked at, and raise it."""
    for flag, explain in take_refusals():
        if bool(flag):
            raise explain()


def normal_source(x: Array, seed: int) -> Callable[[tuple[int, ...]], Any]:
    """Shape -> standard normal numbers in the dtype and on the device of `x`; other numbers on a GPU."""
    if is_on_gpu(x):
        import cupy

        on_gpu = cupy.random.default_rng(seed)
        return lambda shape: on_gpu.standard_normal(shape, dtype=x.dtype)
    generator = stream(seed, "noise")
    return lambda shape: generator.standard_normal(shape, dtype=x.dtype)


class DeviceLandscape:
    """`dkl.methods.frequency_search.landscape.landscape` for rows on a GPU; W, v and the gradient stay there.

    Parameters
    ----------
    X : CuPy array of shape (n, d), dense or sparse
    S : array of shape (n, K) or (n,)
    dtype : dtype
    columns : ndarray of shape (c, q) or None
    """

    def __init__(self, X: Rows, S: np.ndarray, dtype: np.dtype, columns: np.ndarray | None = None) -> None:
        self.xp = array_module(X)
        dense = X.toarray() if hasattr(X, "toarray") else X
        self.X = self.xp.ascontiguousarray(dense, dtype=dtype)
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
        # The frequencies written out on all d columns. A chain with fewer columns than others has places marked -1:
        # these write to one column more, which is dropped.
        wide[chains, self.columns] = W * there
        wide[:, -1] = 0
        v, gradient = self._value_and_gradient(self.xp.ascontiguousarray(wide[:, :-1]))
        return v, gradient[chains, self.xp.maximum(self.columns, 0)] * there

    def _value_and_gradient(self, W: Array) -> tuple[Any, Any]:
        """v and its gradient at frequencies on all columns: so many chains at a time that a tile stays small."""
        xp = self.xp
        v, gradient = xp.empty(len(W), xp.float64), xp.empty_like(W)
        for chains in spans(len(W), max(16, tile_bytes() // (self.X.itemsize * max(len(self.X), 1)))):
            z = xp.matmul(self.X, W[chains].T)
            cosines, sines = xp.cos(z), xp.sin(z)
            real, imaginary = xp.matmul(self.S.T, cosines), xp.matmul(self.S.T, sines)
            # v = sum_k |sum_i S_ik exp(i w.x_i)|^2, the potential of each chain.
            v[chains] = xp.sum(xp.square(real.astype(xp.float64)) + xp.square(imaginary.astype(xp.float64)), axis=0)
            # Its derivative in the angle of row i is 2 sum_k S_ik (cos z_i Im - sin z_i Re), and that angle is w.x_i.
            slopes = cosines * xp.matmul(self.S, imaginary) - sines * xp.matmul(self.S, real)
            gradient[chains] = 2.0 * xp.matmul(slopes.T, self.X)
        return v, gradient
