"""CUDA sources on a machine without a GPU: compiled by nvcc or NVRTC, and played by g++ and threads of the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

played = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to play the kernel's threads with")

_BEFORE = r"""
#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
struct Place { int x, y, z; };
struct float4 { float x, y, z, w; };
static thread_local Place threadIdx;
static Place blockIdx, blockDim, gridDim;
static pthread_barrier_t gate;
static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
#define __global__
#define __shared__ static
#define __syncthreads() pthread_barrier_wait(&gate)
static int min(int a, int b) { return a < b ? a : b; }
static void sincospi(double x, double* s, double* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
static void sincospif(float x, float* s, float* c) { *s = sin(M_PI * x); *c = cos(M_PI * x); }
"""

_AFTER = r"""
struct Call { @FIELDS@ };
static Call* call;
static void* one(void* thread) {
    threadIdx = {(int)(size_t)thread, 0, 0};
    @NAME@(@VALUES@);
    return 0;
}
extern "C" void launch(int blocks_x, int blocks_y, int blocks_z, int threads, @PARAMETERS@) {
    // where a block is, and what it was called with, is the same for all threads of the process
    pthread_mutex_lock(&one_launch);
    blockDim = {threads, 1, 1};
    gridDim = {blocks_x, blocks_y, blocks_z};
    pthread_t* team = (pthread_t*)malloc(threads * sizeof(pthread_t));
    Call given = {@NAMES@};
    call = &given;
    for (int b = 0; b < blocks_x * blocks_y * blocks_z; ++b) {
        blockIdx = {b % blocks_x, b / blocks_x % blocks_y, b / (blocks_x * blocks_y)};
        pthread_barrier_init(&gate, 0, threads);
        for (int t = 0; t < threads; ++t)
            if (WAITS) pthread_create(&team[t], 0, one, (void*)(size_t)t);
            else one((void*)(size_t)t);
        for (int t = 0; WAITS && t < threads; ++t) pthread_join(team[t], 0);
        pthread_barrier_destroy(&gate);
    }
    free(team);
    pthread_mutex_unlock(&one_launch);
}
"""


_COMMAND = ("g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-pthread")


def _library(source: str, name: str) -> Path:
    """The library of a source, compiled unless a process has compiled the same source by the same command before."""
    digest = hashlib.sha256("\0".join((*_COMMAND, source)).encode()).hexdigest()[:24]
    kept = Path(__file__).parent / "__pycache__" / f"played-{name}-{digest}.so"
    if kept.exists():
        return kept
    kept.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dkl-played-", dir=kept.parent) as folder:
        path, library = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
        path.write_text(source)
        done = subprocess.run([*_COMMAND, "-o", str(library), str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        # whole at once, for another process may look for it meanwhile
        library.replace(kept)
    return kept


@cache
def host_kernel(source: str, name: str) -> Callable[..., None]:
    """A function called as a `cupy.RawKernel` is: ``kernel(grid, block, arguments)``, arrays being NumPy's.

    Each source is compiled once, and its library kept with the byte code of this folder: g++ takes a fifth of a
    processor second for it, longer than most tests that call it, and several processes of a run play the same sources.
    """
    text = re.search(rf"void {name}\((.*?)\)\s*\{{", source, re.DOTALL)
    assert text is not None
    parameters = [" ".join(one.replace("__restrict__", "").split()) for one in text[1].split(",")]
    names = [one.split()[-1] for one in parameters]
    real = re.search(r"#define REAL (\w+)", source)
    types = [_TYPES[one.split()[-2].rstrip("*").replace("REAL", real[1] if real else "REAL")] for one in parameters]
    after = _AFTER.replace("@NAME@", name).replace("@NAMES@", ", ".join(names))
    after = after.replace("@VALUES@", ", ".join(f"call->{one}" for one in names))
    after = after.replace("WAITS", str(int("__syncthreads" in source)))
    after = after.replace("@PARAMETERS@", ", ".join(parameters)).replace("@FIELDS@", "; ".join(parameters) + ";")
    launch = ctypes.CDLL(str(_library(_BEFORE + source + after, name))).launch

    def kernel(grid: Sequence[int], block: Sequence[int], arguments: Sequence[Any]) -> None:
        assert len(arguments) == len(types), "a kernel is called with as many arguments as it has"
        launch(*(*grid, 1, 1)[:3], block[0], *map(_argument, arguments, types, names))

    return kernel


_TYPES = {"float": np.float32, "double": np.float64, "int": np.int32}


def _argument(value: Any, dtype: type, name: str) -> Any:
    """What a kernel is given: CUDA would take any bytes for numbers of the kernel's own type, one after the other."""
    assert value.dtype == dtype, f"{name} is {value.dtype}, and the kernel takes {np.dtype(dtype)}"
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous, f"{name} does not lie in memory row after row"
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_int(value) if isinstance(value, np.int32) else ctypes.c_double(value)


def compiled(source: str, folder: Path) -> str:
    """PTX for an H100, by nvcc, or by NVRTC, which need no GPU; a machine without either skips."""
    compiler = shutil.which("nvcc")
    if compiler is None:
        nvrtc = pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="neither nvcc nor NVRTC is here")
        # CuPy's own function asks a driver which devices there are
        program = nvrtc.createProgram(source, "kernel.cu", [], [])
        nvrtc.compileProgram(program, ["--gpu-architecture=compute_90", "-std=c++17"])
        text = nvrtc.getPTX(program).decode()
        assert ".target sm_90" in text
        return str(text)
    path = folder / "kernel.cu"
    path.write_text(source)
    command = [compiler, "-ptx", "-arch=sm_90", "-o", str(folder / "kernel.ptx"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ptx = (folder / "kernel.ptx").read_text()
    assert ".target sm_90" in ptx
    return ptx
