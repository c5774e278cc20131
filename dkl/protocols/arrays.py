"""Types of block arithmetic: the rows of a block, dense or sparse, and arrays of NumPy, CuPy or another library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

# The rows X of a block, of shape (n, d). On a GPU they are CuPy's, dense or sparse, which have the same operations.
Rows: TypeAlias = np.ndarray | sparse.csr_array
# An array of any array-API namespace, annotated as NumPy's, since all have the same operators. Functions on such arrays
# come from their namespace, which is passed as `xp`.
Array: TypeAlias = np.ndarray


def dense_rows(rows: Any) -> Any:
    """Rows with their zeros written out, on their device; dense ones as they are."""
    return rows.toarray() if hasattr(rows, "toarray") else rows


def stacked(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, dense ones or sparse ones, one below the other; a single part as it is."""
    if len(parts) == 1:
        return parts[0]
    return sparse.vstack(parts, format="csr") if sparse.issparse(parts[0]) else np.concatenate(parts)


def as_columns(y: Any) -> Any:
    """Targets (n,) or (n, t) as columns (n, t), on their device; n is 0 for a block of which no row is wanted."""
    return y[:, None] if y.ndim == 1 else y
