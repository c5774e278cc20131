"""What a row's target contributes to block sums: the weight columns S."""

from __future__ import annotations

import numpy as np

from dkl.blocks.block import Block

__all__ = ["encode_targets"]


def encode_targets(block: Block, n_classes: int | None, class_weight: np.ndarray | None = None) -> np.ndarray:
    """The weight columns of a block: weighted one-hot rows of its classes, or weighted targets beside the weights.

    Parameters
    ----------
    block : Block
    n_classes : int or None
        K for class codes 0 .. K-1; None for regression.
    class_weight : ndarray of shape (K,) or None
        A factor on the weight of each class.

    Returns
    -------
    ndarray of shape (n_b, K) or (n_b, t + 1), float64
        Classes: column k holds the weights of the rows of class k. Regression: the weight times each of the t targets,
        and last the weight itself.

    Raises
    ------
    ValueError
        If the block has no targets, or a code is not among 0 .. K-1.
    """
    if block.y is None:
        raise ValueError("these rows have no target (y); supervised sums need one")
    if n_classes is None:
        targets = np.asarray(block.y, dtype=np.float64).reshape(block.n_rows, -1)
        return np.hstack([targets, np.ones((block.n_rows, 1))]) * block.weights[:, None]
    codes = block.y
    if block.n_rows and not (codes.min() >= 0 and codes.max() < n_classes):
        row = int(np.flatnonzero((codes < 0) | (codes >= n_classes))[0])
        raise ValueError(
            f"y[{row}] of block {block.index} is the class code {codes[row]}; codes run from 0 to {n_classes - 1}"
        )
    weights = block.weights if class_weight is None else block.weights * class_weight[codes]
    encoded = np.zeros((block.n_rows, n_classes))
    encoded[np.arange(block.n_rows), codes] = weights
    return encoded
