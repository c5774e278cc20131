"""The one module that knows CuPy: where arrays live, and the block arithmetic on a GPU."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from dkl.blocks.block import Block

Device = Literal["cpu", "gpu"]


def resolve_device(device: str) -> Device:
    """Where to compute: "auto" takes a GPU if CuPy finds one."""
    if device not in ("auto", "cpu", "gpu"):
        raise ValueError(f"device is {device!r}; it must be 'auto', 'cpu' or 'gpu'")
    if device == "cpu":
        return "cpu"
    reason = _why_no_gpu()
    if reason is None:
        return "gpu"
    if device == "gpu":
        raise RuntimeError(f"device='gpu', but {reason}; use device='auto' or 'cpu', or repair the installation")
    return "cpu"


def place(block: Block, device: Device) -> Block:
    """The block with its rows on `device`."""
    if device == "cpu":
        return block
    import cupy
    from scipy import sparse

    if sparse.issparse(block.X):
        from cupyx.scipy.sparse import csr_matrix

        return replace(block, X=csr_matrix(block.X))
    return replace(block, X=cupy.asarray(block.X))


def array_module(x: Any) -> Any:
    """The namespace of an array: numpy, or cupy for arrays on a GPU."""
    if type(x).__module__.partition(".")[0] in ("cupy", "cupyx"):
        import cupy

        return cupy
    return np


def _why_no_gpu() -> str | None:
    if importlib.util.find_spec("cupy") is None:
        return "CuPy is not installed (pip install 'dkl[cuda12]' or 'dkl[cuda13]')"
    import cupy

    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        return f"CuPy finds no usable GPU ({error})"
    return None if count else "CuPy finds no GPU"
