"""A pass has the bits of its definition on every backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.passes.loop import map_blocks, run_pass
from dkl.protocols.block import Block
from dkl.protocols.records import Accumulator, BlockSum, Cost, FewNumbers
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
CLUSTER_KINDS = [*KINDS, "joint"]


def assert_same_sums(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name in expected:
        assert got[name].tobytes() == np.asarray(expected[name]).tobytes(), name


def assert_same_rows(got: Block, expected: Block) -> None:
    assert got.row_id.tolist() == expected.row_id.tolist()
    assert got.X.tobytes() == expected.X.tobytes()
    assert got.weights.tobytes() == expected.weights.tobytes()


def counts(block: Block, operands: Any) -> dict[str, Any]:
    """Weights by whole numbers of two columns, as arrays or as the few numbers of them."""
    place = (np.abs(block.X[:, 0]) * 40).astype(np.int64) % operands["size"]
    weights = [block.weights, block.weights * block.X[:, 1].astype(np.float64)]
    if operands["few"]:
        return dict(zip("ab", FewNumbers.counted((2, operands["size"] // 2), place, weights), strict=True))
    return {
        name: np.bincount(place, one, operands["size"]).reshape(2, -1) for name, one in zip("ab", weights, strict=True)
    }


@pytest.mark.parametrize("size", [2, 60, 200, 4_000])
@pytest.mark.parametrize("rows", [(5,), (0, 7, 1), ragged(37)])
def test_few_numbers_of_blocks_add_up_to_the_bits_of_arrays(rows, size):
    accumulators = {name: Accumulator((2, size // 2)) for name in "ab"}
    few, arrays = (
        run_pass(Source(rows), [BlockSum("counts", counts, accumulators, {"size": size, "few": is_few})]).results[0]
        for is_few in (True, False)
    )
    assert_same_sums(few, arrays)


def sample_by_definition(source: Source, k: int) -> Block:
    from dkl.protocols.sampling import sample_keys

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
@settings(max_examples=20, deadline=None)
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


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
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


@pytest.mark.parametrize("kind", CLUSTER_KINDS)
def test_a_fold_on_two_worker_processes_is_the_plain_loop(client, kind):
    source = Source(ragged(30), kind)
    fold = chain(np.random.default_rng(1).permutation(30))
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


def moments_inside_a_task(rows):
    (sums,) = run_pass(Source(rows), (moments(),)).results
    return sums


def test_a_pass_inside_a_task_of_a_cluster_runs_in_that_task(client):
    source = Source(ragged(20))
    got = client.submit(moments_inside_a_task, source.rows).result(timeout=60)
    assert_same_sums(got, tree_by_definition(source, moments()))


def test_a_cluster_of_threads_gives_the_same_bits():
    from distributed import Client, LocalCluster

    source = Source(ragged(20), "memory")
    with (
        LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
        dask.config.set({"dkl.local-bytes": 0}),
    ):
        (sums,) = run_pass(source, (moments(),)).results
        (state,) = run_pass(source, (chain(),)).results
    assert_same_sums(sums, tree_by_definition(source, moments()))
    assert state.tobytes() == fold_by_definition(source, chain()).tobytes()


@pytest.mark.parametrize(("flops", "tasks"), [(1e9, 75), pytest.param(1e12, 300, marks=pytest.mark.slow)])
def test_a_large_cluster_gets_four_long_tasks_a_thread_and_gives_the_same_bits(monkeypatch, flops, tasks):
    from distributed import Client, LocalCluster

    source, submitted = Source(ragged(300)), []
    record = replace(moments(), cost=lambda rows, columns: Cost(flops))
    submit = Client.submit
    monkeypatch.setattr(Client, "submit", lambda *args, **options: submitted.append(1) or submit(*args, **options))
    with (
        LocalCluster(n_workers=1, threads_per_worker=64, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        result = run_pass(source, (record,)).results[0]
    assert len(submitted) == tasks
    assert_same_sums(result, tree_by_definition(source, moments()))


def alignment(block, operands):
    arrays = [block.X, block.y, block.weight, block.row_id, *operands.values()]
    return {"aligned": np.array([all(array.flags.aligned for array in arrays)], dtype=float)}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_operands_arrive_aligned(client, kind):
    source = Source((1, 2, 3, 4, 5), kind)
    record = BlockSum("alignment", alignment, {"aligned": Accumulator((1,))}, {"W": np.ones((50_000, 5), np.float32)})
    (sums,) = run_pass(source, (record,)).results
    assert sums["aligned"] == 5


def test_blocks_are_read_once_and_found_in_the_cache_by_the_next_pass(client):
    source = Source((50,) * 90)
    first = run_pass(source, (moments(),)).stats
    second = run_pass(source, (sample(),)).stats
    assert first.blocks == second.blocks == 90
    assert first.rows == second.rows == 90 * 50
    assert second.cache_hits >= 80
    assert second.bytes <= first.bytes / 9


@pytest.mark.parametrize("options", [{"dkl.cache-bytes": 0}, {"dkl.cache-bytes": "1 MiB"}])
def test_caching_changes_no_bit(options):
    source = Source(ragged(50))
    with dask.config.set({"scheduler": "threads", "num_workers": 2, **options}):
        for _ in range(2):
            (sums,) = run_pass(source, (moments(),)).results
            assert_same_sums(sums, tree_by_definition(source, moments()))


def test_one_fold_and_sums_do_not_mix():
    with pytest.raises(ValueError, match="a fold is a pass of its own"):
        run_pass(Source((3,)), (moments(), chain()))
    with pytest.raises(ValueError, match="at least one record"):
        run_pass(Source((3,)), ())


def wrong_shape(block, operands):
    return {"sums": np.zeros((2, 2)), "mass": np.zeros(3), "rows": np.array(1)}


def test_a_sum_of_another_shape_than_declared_is_named():
    with pytest.raises(ValueError, match=r"'potentials' returned 'sums' of shape \(2, 2\); its accumulator has shape"):
        run_pass(Source((3,)), (moments(function=wrong_shape),))


def test_a_missing_sum_is_named():
    with pytest.raises(ValueError, match=r"'potentials' returned no 'sums'; it returned \['n'\]"):
        run_pass(Source((3,)), (moments(function=lambda block, operands: {"n": 1}),))


def test_concurrent_holders_of_the_blas_limit_see_one_thread_until_the_last_has_left():
    import threading

    from threadpoolctl import threadpool_info, threadpool_limits

    from dkl.kernels.threads import one_blas_thread

    def blas_threads() -> set[int]:
        return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

    seen: list[set[int]] = []

    def hold(turns: int) -> None:
        for _ in range(turns):
            with one_blas_thread():
                seen.append(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        before = blas_threads()
        holders = [threading.Thread(target=hold, args=(20,)) for _ in range(4)]
        for holder in holders:
            holder.start()
        for holder in holders:
            holder.join()
        assert blas_threads() == before
    assert set().union(*seen) == {1}
