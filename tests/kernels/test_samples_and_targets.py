"""Samples by hash and weight columns of targets."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from dkl.kernels.sums import encode_targets
from dkl.protocols.block import Block
from dkl.protocols.sampling import hash_rows, sample_keys, smallest_keys, stays_first
from tests.definitions import blocks as definitions

IDENTITIES = np.array([0, 1, 2, 17, 2**31, 2**53 + 1, 2**63 - 1, -1, -(2**63)])


def block_of(row_id: np.ndarray, weight: np.ndarray | None = None, y: np.ndarray | None = None) -> Block:
    return Block(3, np.arange(len(row_id), dtype=float)[:, None], y, weight, np.asarray(row_id, dtype=np.int64))


@pytest.mark.parametrize(("seed", "round"), [(0, 0), (1, 0), (0, 1), (2**63, 5), (-1, 2)])
def test_hashes_are_splitmix_in_integers(seed: int, round: int) -> None:
    found = hash_rows(IDENTITIES, seed, round)
    assert found.dtype == np.uint64
    np.testing.assert_array_equal(found, definitions.hash_rows(IDENTITIES, seed, round))


def test_hashes_of_neighbours_are_uniform_and_unrelated() -> None:
    rows = np.arange(100_000)
    first, second = (hash_rows(rows, 0, round).astype(np.float64) / 2.0**64 for round in (0, 1))
    assert len(np.unique(hash_rows(rows, 0))) == len(rows)
    assert stats.kstest(first, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(len(rows))
    assert abs(np.corrcoef(first[1:], first[:-1])[0, 1]) < 5 / np.sqrt(len(rows))


@pytest.mark.parametrize("weighted", [False, True])
def test_keys_are_their_definition(weighted: bool) -> None:
    rows = np.arange(5_000)
    weight = np.random.default_rng(0).random(5_000) + 0.1 if weighted else None
    np.testing.assert_allclose(sample_keys(rows, weight, 4, 2), definitions.sample_keys(rows, weight, 4, 2), rtol=1e-14)


def test_a_row_of_weight_three_is_drawn_as_often_as_three_rows() -> None:
    """The first of the race is row i with probability w_i / sum w."""
    weight = np.array([3.0, 1.0, 1.0, 0.5])
    rounds = 8_000
    firsts = [int(np.argmin(sample_keys(np.arange(4), weight, 0, round))) for round in range(rounds)]
    observed = np.bincount(firsts, minlength=4)
    assert stats.chisquare(observed, rounds * weight / weight.sum()).pvalue > 1e-3


@pytest.mark.parametrize("k", [0, 1, 30, 1000])
def test_a_sample_is_its_definition(k: int) -> None:
    weight = np.random.default_rng(0).random(100) + 0.1
    block = block_of(np.arange(100) * 7, weight)
    found, expected = smallest_keys(block, k, 3, 1), definitions.smallest_keys(block, k, 3, 1)
    np.testing.assert_array_equal(found.row_id, expected.row_id)
    np.testing.assert_array_equal(found.X, expected.X)
    np.testing.assert_array_equal(found.weight, expected.weight)


@pytest.mark.parametrize("k", [0, 3, 40])
def test_a_sample_of_each_class_is_its_definition(k: int) -> None:
    rng = np.random.default_rng(0)
    block = block_of(np.arange(100) * 7, rng.random(100) + 0.1, rng.choice([0, 2, 3], 100, p=[0.1, 0.3, 0.6]))
    found = smallest_keys(block, k, 3, 1, each_class=True)
    expected = definitions.smallest_keys(block, k, 3, 1, each_class=True)
    np.testing.assert_array_equal(found.row_id, expected.row_id)
    np.testing.assert_array_equal(found.y, expected.y)


@pytest.mark.parametrize("each_class", [False, True])
def test_samples_of_parts_merge_to_the_sample_of_the_whole(each_class: bool) -> None:
    whole = block_of(np.arange(200), None, np.random.default_rng(0).integers(0, 3, 200))
    cut = [slice(start, start + 50) for start in (0, 50, 100, 150)]
    parts = [smallest_keys(whole.rows(part), 20, 9, each_class=each_class) for part in cut]
    together = whole.rows(np.concatenate([part.row_id for part in parts]))
    expected = smallest_keys(whole, 20, 9, each_class=each_class)
    np.testing.assert_array_equal(smallest_keys(together, 20, 9, each_class=each_class).row_id, expected.row_id)


@pytest.mark.parametrize("k", [1, 7, 40, 99])
def test_rows_that_stay_are_the_first_of_both_blocks_in_order_of_key_and_row_id(k: int) -> None:
    """Rows of one id have one key: which of them stay the id cannot tell, and the first block has them."""
    row_id = np.random.default_rng(k).integers(0, 20, 60)
    weight = 1.0 + row_id % 3
    stays = stays_first(block_of(row_id[:25], weight[:25]), block_of(row_id[25:], weight[25:]), k, seed=2)
    order = sorted(range(60), key=lambda i: (sample_keys(row_id, weight, 2)[i], row_id[i], i))
    np.testing.assert_array_equal(np.flatnonzero(np.concatenate(stays)), sorted(order[:k]))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [3, 4])
def test_class_columns_are_their_definition(n_classes: int, weighted: bool) -> None:
    weight = np.array([1.0, 2.5, 1.0, 4.0]) if weighted else None
    block = block_of(np.arange(4), weight, np.array([2, 0, 0, 1]))
    for class_weight in (None, np.linspace(0.5, 2.0, n_classes)):
        expected = definitions.encode_targets(block, n_classes, class_weight)
        np.testing.assert_array_equal(encode_targets(block, n_classes, class_weight), expected)


@pytest.mark.parametrize("shape", [(4,), (4, 2)])
def test_target_columns_are_their_definition(shape: tuple[int, ...]) -> None:
    block = block_of(np.arange(4), np.array([1.0, 2.5, 1.0, 4.0]), np.random.default_rng(0).standard_normal(shape))
    np.testing.assert_array_equal(encode_targets(block, None), definitions.encode_targets(block, None))


def test_a_code_that_is_no_class_is_named() -> None:
    block = block_of(np.arange(3), None, np.array([0, 5, 1]))
    with pytest.raises(ValueError, match=r"y\[1\] of block 3 is the class code 5; codes run from 0 to 2"):
        encode_targets(block, 3)


def test_rows_without_targets_have_no_columns() -> None:
    with pytest.raises(ValueError, match="have no target"):
        encode_targets(block_of(np.arange(3)), 2)
