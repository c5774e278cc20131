"""Draws samples and shuffled orders of rows by hashes of their identities, the same rows on every machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dkl.protocols.block import Block
from dkl.protocols.records import Record, RowSample
from dkl.protocols.source import BlockSource

# The share of a block's rows below which a copy of these rows is cheaper than passing on the whole block.
_WORTHWHILE = 0.5
_GOLDEN_GAMMA = np.uint64(0x9E37_79B9_7F4A_7C15)
# Changes the seed of a shuffled order, so that its keys are independent of the hashes of splits and samples.
_SHUFFLE_SALT = 0x5348_5546_464C_4531
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")


def hash_rows(row_id: np.ndarray, seed: int, round: int = 0) -> np.ndarray:
    """A uniform 64-bit hash of (seed, round, row id), uint64 of the shape of `row_id`.

    Three rounds of the finaliser of splitmix64 (Steele, Lea & Flood 2014) in integer arithmetic: the same bits on
    every platform.
    """
    # Seed, round and row id go in one after the other, each mixed with what came before: no two of them can cancel.
    state = _mix(np.array([seed & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
    state = _mix(state ^ np.array([round & 0xFFFFFFFFFFFFFFFF], dtype=np.uint64))
    return _mix(state ^ np.asarray(row_id, dtype=np.int64).view(np.uint64))


def row_fractions(row_id: np.ndarray, seed: int, round: int = 0) -> np.ndarray:
    """The hash of each row as a number in [0, 1), float64: about a share s of all rows lies below s."""
    # The 53 highest bits are a whole number that float64 holds; times 2^-53 it lies in [0, 1), without rounding.
    return (hash_rows(row_id, seed, round) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def shuffle_keys(rows: np.ndarray, seed: int) -> np.ndarray:
    """The sort key of each row in a shuffled order: a uniform 64-bit hash of the seed and the row's number.

    Sorting by it is a uniform permutation that does not depend on files, batches or memory.
    """
    # The seed is mixed before the row number is added, and the sum again: neighbouring rows and seeds have nothing in
    # common.
    seeded = _finalised(np.array([(seed ^ _SHUFFLE_SALT) % 2**64], np.uint64))
    return _finalised(_finalised(rows.astype(np.uint64) + seeded) ^ _GOLDEN_GAMMA)


def sample_keys(row_id: np.ndarray, weight: np.ndarray | None, seed: int, round: int = 0) -> np.ndarray:
    """The arrival time of each row in an exponential race, -log(u) / weight: the k earliest are a weighted sample.

    Parameters
    ----------
    row_id : ndarray of shape (n,), int64
    weight : ndarray of shape (n,) or None
        A row of weight w arrives as early as the first of w rows would; None means one each.
    seed, round : int

    Returns
    -------
    ndarray of shape (n,), float64
        Distinct rows tie with probability 2^-52 or so. Only exactly rounded operations are used, so that keys are the
        same on every platform.
    """
    # Of 52 bits and one half, so that u is neither 0 nor 1 and its logarithm is finite and not 0.
    uniform = ((hash_rows(row_id, seed, round) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    # Exponential with mean 1. The earliest of w such arrivals is exponential with mean 1 / w: that is a row of weight
    # w.
    keys = -_log(uniform)
    return keys if weight is None else keys / weight


def smallest_keys(block: Block, k: int, seed: int, round: int = 0, *, each_class: bool = False) -> Block:
    """The (at most) k rows of a block that arrive first, in the order of arrival; ties by row id.

    With `each_class` k rows of each class of y: those of class 0, then those of class 1, and so on.

    Samples merge: the sample of two blocks together is the sample of their samples, put into one block.
    """
    keys = sample_keys(block.row_id, block.weight, seed, round)
    if not each_class:
        first = np.lexsort((block.row_id, keys))[:k]
        return block if np.array_equal(first, np.arange(block.n_rows)) else block.rows(first)
    # By class, then by key, then by row id, which breaks ties in the same way everywhere.
    order = np.lexsort((block.row_id, keys, np.asarray(block.y)))
    codes = np.asarray(block.y)[order]
    place = np.arange(len(codes)) - np.searchsorted(codes, codes)
    return block.rows(order[place < k])


def sure_key(k: int, n_rows: int) -> float:
    """A key below which at least k of n unweighted rows lie, except in one sample of 1e15; infinite for large k.

    Blocks then pass on only the rows below it, since no other row can be among the first k.

    The number of rows below it is binomial with mean m = k + 12 sqrt(k) + 72, and Chernoff's bound on fewer than k is
    exp(-(m - k)^2 / 2m).
    """
    # Keys of rows without weights are exponential: a share s of them is below -log(1 - s).
    share = (k + 12.0 * np.sqrt(k) + 72.0) / max(n_rows, 1)
    return float(-np.log1p(-share)) if share < _WORTHWHILE else np.inf


def narrowed(record: Record, source: BlockSource) -> Record:
    """A sample without rows that are surely not among its first k, as far as the number of all rows tells.

    With weights it does not. Each task then returns its part of the sample instead of as many rows as the whole.
    """
    if not isinstance(record, RowSample) or record.n_classes is not None or source.has_weight:
        return record
    # the key below which at least k of all rows lie, except once in 1e15 passes (see `sure_key`)
    return replace(record, below=sure_key(record.k, int(source.block_rows.sum())))


def stays_first(left: Block, right: Block, k: int, seed: int, round: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Boolean masks, one for each block, of the rows among the k of smallest key in the union of both blocks."""
    if k >= left.n_rows + right.n_rows:
        return np.ones(left.n_rows, bool), np.ones(right.n_rows, bool)
    sides = (left, right)
    keys = np.concatenate([sample_keys(block.row_id, block.weight, seed, round) for block in sides])
    # the k-th key in linear time; rows are sorted only once, when the sample is complete
    last = np.partition(keys, k - 1)[k - 1]
    stays, tied = keys < last, np.flatnonzero(keys == last)
    row_id = np.concatenate([block.row_id for block in sides])[tied]
    stays[tied[np.argsort(row_id, kind="stable")[: k - np.count_nonzero(stays)]]] = True
    return stays[: left.n_rows], stays[left.n_rows :]


def _mix(z: np.ndarray) -> np.ndarray:
    return _finalised(z + _GOLDEN_GAMMA)


def _finalised(z: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64 (Steele, Lea & Flood 2014): a bijection whose every bit depends on every bit."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return z ^ (z >> np.uint64(31))


def _log(x: np.ndarray) -> np.ndarray:
    """The natural logarithm to 1e-15, by operations that every platform rounds alike (a library's log is not)."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa = np.where(low, 2.0 * mantissa, mantissa)
    exponent = exponent - low
    t = (mantissa - 1.0) / (mantissa + 1.0)
    square = t * t
    series = np.full_like(x, 1.0 / 23.0)
    for odd in range(21, 0, -2):
        series = series * square + 1.0 / odd
    return exponent * _LN2 + 2.0 * t * series
