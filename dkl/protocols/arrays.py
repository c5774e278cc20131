"""Types for annotations of block arithmetic: the rows of a block, and arrays of NumPy, CuPy or another library."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from scipy import sparse

# The rows X of a block, of shape (n, d). On a GPU they are CuPy's, dense or sparse, which have the same operations.
Rows: TypeAlias = np.ndarray | sparse.csr_array
# An array of any array-API namespace, annotated as NumPy's, since all have the same operators. Functions on such arrays
# come from their namespace, which is passed as `xp`.
Array: TypeAlias = np.ndarray
