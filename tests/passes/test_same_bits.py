"""A pass has the bits of its definition on every backend."""

from __future__ import annotations

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.blocks.block import Block
from dkl.passes.engine import map_blocks, run_pass
from tests.passes.sources import (
    Source,
    chain,
    fold_by_definition,
    make_block,
    moments,
    ragged,
    sample,
    tree_by_definition,
)

KINDS = ["numbers", "memory", "delayed"]


def assert_same_sums(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].tobytes() == np.asarray(expected[name]).tobytes(), name


def assert_same_rows(got: Block, expected: Block) -> None:
    assert got.row_id.tolist() == expected.row_id.tolist()
    assert got.X.tobytes() == expected.X.tobytes()
    assert got.weights.tobytes() == expected.weights.tobytes()


def sample_by_definition(source: Source, k: int) -> Block:
    from dkl.blocks.sampling import sample_keys

    rows = [(index, row) for index, count in enumerate(source.rows) for row in range(count)]
    blocks = [make_block(index, count) for index, count in enumerate(source.rows)]
    keys = {(i, r): sample_keys(blocks[i].row_id[r : r + 1], blocks[i].weight[r : r + 1], 5)[0] for i, r in rows}
    first = sorted(rows, key=lambda at: (keys[at], blocks[at[0]].row_id[at[1]]))[:k]
    return Block(
        0,
        np.array([blocks[i].X[r] for i, r in first]),
        None,
        np.array([blocks[i].weight[r] for i, r in first]),
        np.array([blocks[i].row_id[r] for i, r in first]),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_threads", [1, 2, 5])
def test_threads_give_the_bits_of_the_tree(kind, n_threads):
    source = Source(ragged(37), kind)
    with dask.config.set(num_workers=n_threads):
        sums, rows = run_pass(source, (moments(), sample())).results
    assert_same_sums(sums, tree_by_definition(source, moments()))
    assert_same_rows(rows, sample_by_definition(source, 11))


@given(n_blocks=st.integers(0, 400), n_threads=st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_a_pass_over_any_number_of_blocks_is_the_tree_over_them(n_blocks, n_threads):
    source = Source(ragged(n_blocks, 4))
    with dask.config.set(num_workers=n_threads):
        (sums,) = run_pass(source, (moments(2),)).results
    expected = tree_by_definition(source, moments(2)) if any(source.rows) else None
    if expected is None:
        assert not any(value.any() for value in sums.values())
    else:
        assert_same_sums(sums, expected)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes"])
def test_every_scheduler_of_dask_gives_the_same_bits(scheduler):
    source = Source(ragged(9))
    with dask.config.set(scheduler=scheduler, num_workers=2):
        (sums,) = run_pass(source, (moments(),)).results
        (state,) = run_pass(source, (chain(),)).results
    assert_same_sums(sums, tree_by_definition(source, moments()))
    assert state.tobytes() == fold_by_definition(source, chain()).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_two_worker_processes_give_the_bits_of_one_thread(client, kind):
    source = Source(ragged(37), kind)
    sums, rows = run_pass(source, (moments(), sample())).results
    assert_same_sums(sums, tree_by_definition(source, moments()))
    assert_same_rows(rows, sample_by_definition(source, 11))


def test_large_accumulators_are_merged_on_the_workers_with_the_same_bits(client):
    source = Source(ragged(150, 6))
    record = moments(50_000)
    (sums,) = run_pass(source, (record,)).results
    assert_same_sums(sums, tree_by_definition(source, record))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [None, "shuffled"])
def test_a_fold_on_threads_is_the_plain_loop(kind, order):
    source = Source(ragged(23), kind)
    fold = chain(None if order is None else np.random.default_rng(0).permutation(23))
    with dask.config.set(num_workers=3):
        (state,) = run_pass(source, (fold,)).results
    assert state.tobytes() == fold_by_definition(source, fold).tobytes()


@pytest.mark.parametrize("kind", KINDS)
def test_a_fold_on_two_worker_processes_is_the_plain_loop(client, kind):
    source = Source(ragged(70), kind)
    fold = chain(np.random.default_rng(1).permutation(70))
    (state,) = run_pass(source, (fold,)).results
    assert state.tobytes() == fold_by_definition(source, fold).tobytes()


def count_rows(block, operands):
    return block.index, block.n_rows


def test_mapped_blocks_come_in_order(client):
    source = Source(ragged(40))
    got = list(map_blocks(source, count_rows, {}))
    assert got == [(index, (index, rows)) for index, rows in enumerate(source.rows) if rows]
    with dask.config.set(scheduler="threads", num_workers=3):
        assert list(map_blocks(source, count_rows, {})) == got
