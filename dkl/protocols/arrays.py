"""The types of what block arithmetic takes: the rows of a block, and arrays of whatever library computes on them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

# The rows X of a block, of shape (n, d). On a GPU they are CuPy's, dense or sparse, which have the same operations.
Rows: TypeAlias = np.ndarray | sparse.csr_array
# An array of any namespace of the array-API standard. NumPy's stands for all of them, as their operators are the same;
# functions on such arrays are taken from the namespace `xp` that comes with it.
Array: TypeAlias = np.ndarray


def namespace_of(values: Any) -> ModuleType:
    """The library that an array belongs to, whose functions take it; NumPy for numbers."""
    if hasattr(values, "__array_namespace__"):
        namespace: ModuleType = values.__array_namespace__()
        return namespace
    # Arrays of a GPU are there when CuPy is.
    return sys.modules["cupy"] if type(values).__module__.partition(".")[0] == "cupy" else np
