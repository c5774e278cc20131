"""Block functions that sum, by fold, the weights and targets of categories and the products of text directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dkl.encodings.keys import CategoryKey, codes_of_keys, dense_columns
from dkl.kernels.device import (
    array_module,
    is_on_gpu,
    sums_on_host,
    tile_rows,
    weighted_rows_on_gpu,
    with_targets,
)
from dkl.kernels.tiles import spans
from dkl.protocols.arrays import as_columns, dense_rows
from dkl.protocols.block import Block
from dkl.protocols.records import Cost, FewNumbers

TEXT_ROWS = 1 << 13
"""Rows of a text's directions that are converted to double precision at once: 8 MiB at 128 directions."""


@dataclass(frozen=True)
class CategorySum:
    """The sum of w x^power y^target_power over the rows of each fold and each code from `first` to `last`.

    Parameters
    ----------
    name : str
        The name of the sum.
    key : CategoryKey or None
        The column or cross that groups rows; None groups them by fold alone.
    first, last : int
        The range of codes: `first` to `last` - 1.
    target, target_power : int
        The index of the target y, and its power; with power 0 the sum has no target.
    number, power, shift : int, int, float
        x is column `number` of X minus `shift`, and `power` its power; with power 0 the sum has no column.
    """

    name: str
    key: CategoryKey | None
    first: int
    last: int
    target: int = 0
    target_power: int = 0
    number: int = 0
    power: int = 0
    shift: float = 0.0

    @property
    def width(self) -> int:
        """The number of codes in the sum."""
        return self.last - self.first


def category_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray | FewNumbers]:
    """Sums of weights, or of weighted targets or numbers, by fold and code of a key.

    Parameters
    ----------
    block : Block
    operands : mapping
        "sums": a tuple of `CategorySum`; "folds": ``folds(held_with)`` and ``folds.count``, F; "n_classes": K or None.

    Returns
    -------
    dict
        For each sum its name and an array of shape (F, width). Of K classes target t is 1 for class t + 1, else 0.
    """
    fold, n_folds = operands["folds"](block.held_with), operands["folds"].count
    targets = target_columns(block.y, operands["n_classes"])
    keys = [key for key in dict.fromkeys(each.key for each in operands["sums"]) if key is not None]
    codes = dict(zip(keys, codes_of_keys(keys, block.X), strict=True))
    sums: dict[str, np.ndarray | FewNumbers] = {}
    # sums of one key over the same codes are computed together
    together: dict[tuple[CategoryKey | None, int, int], list[CategorySum]] = {}
    for each in operands["sums"]:
        together.setdefault((each.key, each.first, each.last), []).append(each)
    for (key, first, last), some in together.items():
        width, inside = last - first, np.arange(len(fold))
        place = fold * width
        if key is not None:
            place = place + codes[key] - first
            if width < key.size:
                inside = np.flatnonzero((first <= codes[key]) & (codes[key] < last))
                place = place[inside]
        # a generator: the numbers of one sum at a time are in memory, those of all sums take several times the block
        values = (_summed(block, targets, each) for each in some)
        if len(inside) < len(fold):
            values = (one[inside] for one in values)
        # a block fills few of the numbers of a cross with many values
        if 8 * len(place) <= n_folds * width:
            found: Sequence[np.ndarray | FewNumbers] = FewNumbers.counted((n_folds, width), place, values)
        else:
            found = [np.bincount(place, one, n_folds * width).reshape(n_folds, width) for one in values]
        sums |= dict(zip((each.name for each in some), found, strict=True))
    return sums


def sums_cost(sums: Sequence[CategorySum], n_targets: int, rows: int, columns: int) -> Cost:
    """The cost of `category_sums` of T targets: a few operations for each row and sum.

    Its memory is 8 bytes for each of these numbers of a row: T targets, two codes for each key (its own, and that of a
    part of a cross), and at most 16 for the fold, the place in the sums, and the value that is added.
    """
    keys = {each.key for each in sums} - {None}
    return Cost(20.0 * rows * len(sums), 8 * rows * (n_targets + 2 * len(keys) + 16))


def _summed(block: Block, targets: np.ndarray, each: CategorySum) -> np.ndarray:
    """The numbers of the rows that are summed, w x^power y^target_power: (n,) float64."""
    values = block.weights
    if each.target_power:
        values = values * targets[:, each.target] ** each.target_power
    if each.power:
        numbers = dense_columns(block.X, each.number, each.number + 1)[:, 0].astype(np.float64)
        values = values * (numbers - each.shift) ** each.power
    return values


def target_columns(y: Any, n_classes: int | None) -> Any:
    """The numbers whose means are learned, (n, T) float64: indicators of the classes but the first, or the targets.

    They are where the targets are, on the host or on a GPU.
    """
    if y is None:
        return np.empty((0, 0))
    xp = array_module(y)
    if n_classes is not None:
        return (y[:, None] == xp.arange(1, n_classes)).astype(np.float64)
    return as_columns(xp.asarray(y, dtype=np.float64))


def text_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """By fold, the moments of each text's directions z (with a leading 1): products with themselves and with targets.

    Parameters
    ----------
    block : Block
    operands : mapping
        "places": for each text its first column and its number of columns, K; "folds": ``folds(held_with)`` and
        ``folds.count``, F; "n_classes": C or None.

    Returns
    -------
    dict
        "weight" (F,), "targets" and "squares" (T, F); for each text k "gram k" (F, K + 1, K + 1), sum w z z', and
        "answers k" (F, K + 1, T), sum w z t'. Of C classes target t is 1 for class t + 1, else 0.
    """
    fold, count = operands["folds"](block.held_with), operands["folds"].count
    if is_on_gpu(block.X):
        return sums_on_host(_text_sums_on_gpu(with_targets(block), fold, operands))
    targets = target_columns(block.y, operands["n_classes"])
    weighted = block.weights[:, None] * targets
    sums = {
        "weight": np.bincount(fold, block.weights, count),
        "targets": np.array([np.bincount(fold, column, count) for column in weighted.T]),
        "squares": np.array([np.bincount(fold, column, count) for column in (weighted * targets).T]),
    }
    for k, (start, size) in enumerate(operands["places"]):
        raw = dense_columns(block.X, start, start + size)
        gram, answers = np.zeros((count, size + 1, size + 1)), np.zeros((count, size + 1, targets.shape[1]))
        for f in range(count):
            of_fold = np.flatnonzero(fold == f)
            for part in spans(len(of_fold), TEXT_ROWS):
                rows = of_fold[part]
                z = np.ones((len(rows), size + 1))
                z[:, 1:] = raw[rows]
                weighted_z = z * block.weights[rows, None]
                gram[f] += weighted_z.T @ z
                answers[f] += weighted_z.T @ targets[rows]
        sums |= {f"gram {k}": gram, f"answers {k}": answers}
    return sums


def _text_sums_on_gpu(block: Block, fold: np.ndarray, operands: Mapping[str, Any]) -> dict[str, Any]:
    """`text_sums` of a block whose rows, targets and weights are on a GPU, in float64; the sums stay there.

    The fold of each row comes from the host, which computes it from whole numbers: 1 byte a row, and 4 bytes for its
    place among the rows of a tile by fold.
    """
    X: Any = block.X
    xp, count = array_module(X), operands["folds"].count
    all_weights, all_targets = block.weights, target_columns(block.y, operands["n_classes"])
    T = all_targets.shape[1]
    totals, sums = xp.zeros((count, 1 + 2 * T)), {}
    for k, (_, size) in enumerate(operands["places"]):
        sums[f"gram {k}"] = xp.zeros((count, size + 1, size + 1))
        sums[f"answers {k}"] = xp.zeros((count, size + 1, T))
    for rows in spans(block.n_rows, tile_rows(X.shape[1] + 1, 8)):
        tile, of_rows = dense_rows(X[rows]), fold[rows]
        weights, targets = xp.asarray(all_weights[rows], dtype=np.float64)[:, None], all_targets[rows]
        is_in_fold = xp.asarray(of_rows.astype(np.int8)) == xp.arange(count)[:, None]
        moments = xp.concat([weights, weights * targets, weights * targets * targets], axis=1)
        totals += weighted_rows_on_gpu(is_in_fold.astype(np.float64), moments)
        # the rows of a fold follow each other, so that each of its sums is a product
        order = xp.asarray(np.argsort(of_rows, kind="stable").astype(np.int32))
        ends = np.cumsum(np.bincount(of_rows, minlength=count)).tolist()
        weights, targets = weights[order], targets[order]
        for k, (start, size) in enumerate(operands["places"]):
            z = xp.ones((len(of_rows), size + 1))
            z[:, 1:] = tile[:, start : start + size][order]
            weighted_z = z * weights
            for f, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
                if first < end:
                    of_fold = weighted_z[first:end].T
                    sums[f"gram {k}"][f] += xp.matmul(of_fold, z[first:end])
                    sums[f"answers {k}"][f] += xp.matmul(of_fold, targets[first:end])
    return {"weight": totals[:, 0], "targets": totals[:, 1 : T + 1].T, "squares": totals[:, T + 1 :].T, **sums}
