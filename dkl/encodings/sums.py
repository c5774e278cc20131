"""The sums that target means are made of: weights and targets by category and fold, of one block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import sparse

from dkl.protocols.block import Block


def category_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Weights and weighted targets of the rows of each fold that hold each value of each column of codes.

    Parameters
    ----------
    block : Block
    operands : mapping
        "columns": those of X that hold codes, a tuple of C numbers; "sizes": one more than the values of each, for the
        rows without a known value; "folds": ``folds(held_with)`` and ``folds.count``, F; "n_classes": K or None;
        "names": those of the sums that are wanted.

    Returns
    -------
    dict
        For column c ``weight c`` of shape (F, sizes[c]) and, for each of the T targets, ``target c t`` of that shape:
        for K classes the weight of class t + 1.
    """
    fold, weight = operands["folds"](block.held_with), block.weights
    targets = target_columns(block.y, operands["n_classes"])
    sums, wanted = {}, operands["names"]
    codes = codes_of(block.X, operands["columns"])
    for c, size in enumerate(operands["sizes"]):
        shape = operands["folds"].count, size
        place = fold * size + codes[:, c]
        if f"weight {c}" in wanted:
            sums[f"weight {c}"] = np.bincount(place, weight, shape[0] * size).reshape(shape)
        for t, values in enumerate(targets.T):
            if f"target {c} {t}" in wanted:
                sums[f"target {c} {t}"] = np.bincount(place, weight * values, shape[0] * size).reshape(shape)
    return sums


def target_columns(y: np.ndarray | None, n_classes: int | None) -> np.ndarray:
    """What means are taken of, (n, T) float64: 1 for each class but the first, the targets, or nothing."""
    if y is None:
        return np.empty((0, 0))
    if n_classes is not None:
        return (y[:, None] == np.arange(1, n_classes)).astype(np.float64)
    return np.asarray(y, np.float64).reshape(len(y), -1)


def codes_of(X: np.ndarray | sparse.csr_array, columns: tuple[int, ...]) -> np.ndarray:
    """The codes of rows, (n, C) int64; 0 where a value is missing or unknown."""
    part: Any = X[:, list(columns)]
    return np.asarray(part.toarray() if sparse.issparse(part) else part).astype(np.int64)
