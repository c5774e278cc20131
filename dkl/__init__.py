"""dkl: learn which Fourier features matter, out of core, on any Dask cluster."""

from __future__ import annotations

import importlib
from typing import Any

from dkl.registry import PUBLIC
from dkl.version import __version__

# Packages that users reach as ``dkl.explain.importance(...)``.
_MODULES = ("bounds", "explain", "plots", "testing")

# Nothing is loaded before it is asked for: `import dkl.kernels` needs no Dask.
__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dkl.{name}")
    if name not in PUBLIC:
        raise AttributeError(f"module 'dkl' has no attribute {name!r}")
    return getattr(importlib.import_module(PUBLIC[name]), name)


def __dir__() -> list[str]:
    # what a person may use: not what this module itself imports
    return sorted([*__all__, *_MODULES])
