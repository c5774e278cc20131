"""Helpers of the checks: raise an error that names the broken promise, and compare arrays bit by bit."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dkl.protocols.arrays import Rows


def require(holds: bool, promise: str) -> None:
    """Raise AssertionError with the broken promise.

    Parameters
    ----------
    holds : bool
    promise : str
        What should have been true, with the numbers that show that it is not.
    """
    if not holds:
        raise AssertionError(promise)


def same_bits(left: Rows, right: Rows) -> bool:
    """Whether two arrays (dense or CSR) have the same shape, dtype and bits; NaN equals NaN."""
    if sparse.issparse(left) != sparse.issparse(right) or left.shape != right.shape or left.dtype != right.dtype:
        return False
    if not isinstance(left, np.ndarray) and not isinstance(right, np.ndarray):
        # Two CSR arrays are the same if their entries are, in the same order.
        parts = ((left.data, right.data), (left.indices, right.indices), (left.indptr, right.indptr))
        return all(same_bits(a, b) for a, b in parts)
    # Bytes are compared, not numbers: 0.0 and -0.0 differ, and NaN equals itself.
    return np.ascontiguousarray(left).tobytes() == np.ascontiguousarray(right).tobytes()
