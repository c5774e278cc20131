"""Scalers, the median bandwidth and heavy tails, from moments and a sample; the driver that asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse, special

from dkl.data.coerce import as_dataset
from dkl.encodings.categories import with_categories
from dkl.features.scaling import Scaler
from dkl.kernels.moments import block_moments, column_sums, moments_of, moments_record
from dkl.kernels.scale import scale_rows
from dkl.linear.minibatches import HeldOut
from dkl.methods.preparation.bandwidth import median_distance
from dkl.methods.preparation.driver import PreparationDriver, PreparationProblem
from dkl.methods.preparation.scalers import heavy_tailed_columns, quantile_scaler, scaler_from_moments
from dkl.passes.loop import Run
from dkl.protocols.block import Block
from dkl.protocols.records import BlockSum, Record
from dkl.protocols.sampling import smallest_keys
from tests.definitions import selection as definition

NONE_KEPT = np.zeros(4, bool)


def block_of(X: Any, weight: np.ndarray | None = None, index: int = 0, first: int = 0) -> Block:
    return Block(index, X, None, weight, first + np.arange(X.shape[0], dtype=np.int64))


def play(record: Record, blocks: Sequence[Block]) -> Any:
    """The cluster: the blocks of one record, combined."""
    if not isinstance(record, BlockSum):
        rows = np.concatenate([block.X for block in blocks])
        weight = None if blocks[0].weight is None else np.concatenate([block.weight for block in blocks])
        whole = Block(0, rows, None, weight, np.concatenate([block.row_id for block in blocks]))
        return smallest_keys(whole, record.k, record.seed)
    combine = {"add": np.sum, "max": np.max}
    pieces = [record.function(block, record.operands) for block in blocks]
    return {
        name: combine[acc.combine](np.stack([piece[name] for piece in pieces]), axis=0)
        for name, acc in record.accumulators.items()
    }


def moments_over(blocks: Sequence[Block]) -> Any:
    return moments_of(play(moments_record(blocks[0].X.shape[1]), blocks))


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).gamma(2.0, size=(300, 4)) * [1.0, 10.0, 1e-3, 1e6] + [0.0, -5.0, 1.0, 1e7]


def test_counts_are_not_negative(rows: np.ndarray) -> None:
    moments = moments_of(column_sums(rows, np.ones(len(rows))))
    # the second column of these rows is negative; it may be no count
    with pytest.raises(ValueError, match=r"column 1 holds -.*'counts'.*use scaling=None, 'unit' or 'standard'"):
        scaler_from_moments("counts", moments, NONE_KEPT)
    scaler = scaler_from_moments("counts", moments, np.arange(4) == 1)
    scaled = scale_rows(rows, scaler, "float64")
    np.testing.assert_array_equal(scaled[:, 1], rows[:, 1])
    np.testing.assert_allclose(np.square(np.delete(scaled, 1, axis=1)).sum(axis=1), 1.0)


@pytest.mark.parametrize("kind", ["standard", "minmax", "unit"])
def test_scaled_rows_are_the_definition_however_the_blocks_are_cut(rows: np.ndarray, kind: Any) -> None:
    expected = definition.scaler_from_moments(kind, rows)
    for cuts in ([], [7], [1, 100, 250, 299]):
        blocks = [block_of(part, index=i) for i, part in enumerate(np.split(rows, cuts))]
        scaler = scaler_from_moments(kind, moments_over(blocks), NONE_KEPT)
        np.testing.assert_allclose(scale_rows(rows, scaler, "float64"), expected, rtol=1e-9, atol=1e-9)


def test_weighted_moments_are_those_of_repeated_rows(rows: np.ndarray) -> None:
    weights = np.random.default_rng(1).integers(1, 5, len(rows))
    weighted = moments_of(column_sums(rows, weights.astype(float)))
    repeated = moments_of(column_sums(np.repeat(rows, weights, axis=0), np.ones(weights.sum())))
    assert weighted.weight == repeated.weight
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-13)
    np.testing.assert_allclose(weighted.variance, repeated.variance, rtol=1e-11)
    np.testing.assert_array_equal(weighted.high, repeated.high)


@pytest.mark.parametrize("is_sparse", [False, True])
def test_moments_keep_their_digits_for_a_large_mean_and_small_spread(is_sparse: bool) -> None:
    rng = np.random.default_rng(2)
    X = 1e8 + rng.standard_normal((4_000, 2))
    blocks = [block_of(sparse.csr_array(part) if is_sparse else part) for part in np.split(X, 8)]
    np.testing.assert_allclose(moments_over(blocks).variance, X.var(axis=0), rtol=5e-3)
    np.testing.assert_allclose(moments_over(blocks[:1]).variance, X[:500].var(axis=0), rtol=1e-7)


def test_sparse_moments_are_the_dense_ones() -> None:
    X = sparse.random_array((200, 9), density=0.2, rng=np.random.default_rng(3), format="csr")
    X.data -= 0.4
    weights = np.random.default_rng(4).random(200) + 0.1
    scaled = np.arange(9) % 3 > 0
    thin, full = column_sums(X, weights, scaled), column_sums(X.toarray(), weights, scaled)
    for name in full:
        np.testing.assert_allclose(thin[name], full[name], rtol=1e-12, atol=1e-12)


def test_no_rows_change_nothing(rows: np.ndarray) -> None:
    blocks = [block_of(rows[:0]), block_of(rows), block_of(sparse.csr_array(rows[:0]))]
    assert all(
        np.shape(value) == np.shape(column_sums(rows, np.ones(300))[name])
        for name, value in block_moments(blocks[0], {}).items()
    )
    np.testing.assert_array_equal(moments_over(blocks).variance, moments_over([block_of(rows)]).variance)


def test_constant_columns_and_kept_columns_have_a_scale_of_one(rows: np.ndarray) -> None:
    rows[:, 1] = 1e9 / 3.0
    kept = np.array([True, False, False, False])
    for kind in ("standard", "minmax"):
        scaler = scaler_from_moments(kind, moments_over([block_of(rows)]), kept)
        assert scaler.scale[1] == 1.0
        np.testing.assert_array_equal(scale_rows(rows, scaler, "float64")[:, 0], rows[:, 0])


@pytest.mark.parametrize("kind", ["standard", "minmax", "unit"])
def test_sparse_rows_stay_sparse(kind: Any) -> None:
    X = sparse.random_array((100, 4), density=0.3, rng=np.random.default_rng(5), format="csr")
    scaler = scaler_from_moments(kind, moments_over([block_of(X)]), NONE_KEPT, is_sparse=True)
    scaled = scale_rows(X, scaler, "float64")
    assert sparse.issparse(scaled)
    if kind == "minmax":
        np.testing.assert_allclose(abs(scaled).max(axis=0).toarray().ravel(), 1.0)
    if kind == "standard":
        np.testing.assert_allclose(scaled.toarray().std(axis=0), 1.0)


def test_quantiles_turn_any_column_into_a_clipped_normal() -> None:
    sample = np.random.default_rng(6).lognormal(0.0, 3.0, (20_000, 2))
    scores = scale_rows(sample, quantile_scaler(sample, np.zeros(2, bool)), "float64")
    for row in (17, 1_234, 19_999):
        share = definition.quantile_scaler(sample[:, 0], sample[row, 0])
        assert scores[row, 0] == pytest.approx(np.clip(special.ndtri(share), -3, 3), abs=0.05)
    assert np.abs(scores).max() == 3.0


def test_quantiles_of_weighted_rows_are_those_of_repeated_rows() -> None:
    rng = np.random.default_rng(7)
    sample, weights = rng.standard_normal((500, 2)), rng.integers(1, 4, 500)
    weighted = quantile_scaler(sample, np.zeros(2, bool), weights.astype(float))
    repeated = np.repeat(sample, weights, axis=0)
    again = quantile_scaler(repeated, np.zeros(2, bool), np.ones(len(repeated)))
    np.testing.assert_array_equal(weighted.knots, again.knots)


def test_heavy_tails_are_seen_beside_zeros_and_not_in_flags() -> None:
    rng = np.random.default_rng(8)
    n = 2_000
    zeros = rng.random(n) < 0.8
    X = np.column_stack(
        [
            rng.standard_normal(n),
            rng.lognormal(0.0, 1.5, n),
            np.where(zeros, 0.0, rng.lognormal(0.0, 2.0, n)),
            np.where(zeros, 0.0, rng.random(n)),
            rng.random(n) < 0.01,
            1e30 * rng.standard_t(1.5, n),
            np.full(n, 7.0),
        ]
    )
    heavy = heavy_tailed_columns(X, np.zeros(7, bool))
    assert heavy.tolist() == definition.heavy_tailed_columns(X) == [1, 2, 5]
    kept = np.arange(7) == 1
    assert heavy_tailed_columns(X, kept).tolist() == [2, 5]


@pytest.mark.parametrize("metric", ["euclidean", "cityblock"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_median_distance_is_over_all_pairs(is_sparse: bool, metric: Any) -> None:
    rng = np.random.default_rng(9)
    X = rng.standard_normal((31, 5)) * (rng.random((31, 5)) < 0.6)
    weights = rng.integers(1, 4, 31).astype(float)
    given = sparse.csr_array(X) if is_sparse else X
    assert median_distance(given, metric=metric) == pytest.approx(definition.median_distance(X, metric=metric))
    weighted = median_distance(given, weights, metric=metric)
    assert weighted == pytest.approx(definition.median_distance(X, weights, metric=metric))


def test_many_equal_rows_leave_the_median_of_the_rows_that_differ() -> None:
    X = np.zeros((50, 2))
    X[:5] = np.random.default_rng(10).standard_normal((5, 2))
    distances = [np.linalg.norm(a - b) for i, a in enumerate(X) for b in X[:i] if (a != b).any()]
    for rows in (X, sparse.csr_array(X)):
        assert median_distance(rows) == pytest.approx(np.median(distances))


@pytest.mark.parametrize("X", [np.ones((1, 3)), np.ones((20, 3)), sparse.csr_array(np.ones((20, 3)))])
def test_equal_rows_have_no_median_distance(X: Any) -> None:
    with pytest.raises(ValueError, match=r"at least two rows that differ.*give sigma a number"):
        median_distance(X)


def problem_of(**changes: Any) -> PreparationProblem:
    base = PreparationProblem(300, 4, row_nbytes=32, is_sparse=False, passthrough=NONE_KEPT, seed=5)
    return replace(base, **changes)


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit", "quantile"])
@pytest.mark.parametrize("needs_bandwidth", [False, True])
def test_one_read_at_most_finds_scaler_and_bandwidth(rows: np.ndarray, scaling: Any, needs_bandwidth: bool) -> None:
    driver, problem = PreparationDriver(), problem_of(scaling=scaling, needs_bandwidth=needs_bandwidth)
    state, reads = driver.init(problem), 0
    while records := driver.request(problem, state):
        blocks = [block_of(part, index=i, first=100 * i) for i, part in enumerate(np.split(rows, 3))]
        state, reads = driver.step(problem, state, [play(record, blocks) for record in records]), reads + 1
    assert reads == sum(calls for _, calls in driver.plan(problem)) == int(problem.is_needed)
    scaler = state.scaler(problem)
    assert (scaler is None) == (scaling is None)
    if needs_bandwidth:
        expected = definition.median_distance(scale_rows(rows, scaler, "float64"))
        assert state.sigma == pytest.approx(expected, rel=1e-9)
    else:
        assert state.sigma is None


def test_weights_count_once_in_the_bandwidth_of_all_rows(rows: np.ndarray) -> None:
    weights = np.random.default_rng(11).integers(1, 3, 40)
    driver, problem = PreparationDriver(), problem_of(n_rows=40, needs_bandwidth=True)
    records = driver.request(problem, driver.init(problem))
    results = [play(record, [block_of(rows[:40], weights.astype(float))]) for record in records]
    sigma = driver.step(problem, driver.init(problem), results).sigma
    assert sigma == pytest.approx(definition.median_distance(rows[:40], weights))


def test_the_sample_is_bounded_in_bytes() -> None:
    assert problem_of(n_rows=10**9, scaling="quantile").sample_rows == 20_000
    wide = problem_of(n_rows=10**9, row_nbytes=1 << 20, needs_bandwidth=True)
    assert wide.sample_rows * wide.row_nbytes <= 8 << 20


@pytest.mark.parametrize("is_weighted", [False, True])
def test_columns_that_a_fit_learned_are_standardised_among_quantiles(is_weighted: bool) -> None:
    rng = np.random.default_rng(0)
    sample = rng.exponential(size=(500, 3))
    weights = rng.integers(1, 4, 500).astype(float) if is_weighted else None
    learned, passthrough = np.array([True, False, True]), np.zeros(3, bool)
    # a constant column
    sample[:, 2] = 0.1
    scaled = scale_rows(sample, quantile_scaler(sample, passthrough, weights, learned), "float64")
    plain = scale_rows(sample, quantile_scaler(sample, passthrough, weights), "float64")
    center = np.average(sample[:, 0], weights=weights)
    deviation = np.sqrt(np.average(np.square(sample[:, 0] - center), weights=weights))
    np.testing.assert_allclose(scaled[:, 0], np.clip((sample[:, 0] - center) / deviation, -3.0, 3.0), atol=1e-9)
    np.testing.assert_array_equal(scaled[:, 1], plain[:, 1])
    np.testing.assert_allclose(scaled[:, 2], 0.0, atol=1e-9)


def test_new_rows_of_a_frequent_category_lie_where_those_of_the_fit_do_among_quantiles() -> None:
    """Rows of the fit have a mean for each fold, new ones that of all: nearly the same, in the middle of a step."""
    rng = np.random.default_rng(0)
    names = np.array([f"v{number}" for number in range(200)])
    frame = pd.DataFrame({"c": np.where(rng.random(3000) < 0.8, "v0", names[rng.integers(0, 200, 3000)])})
    y = rng.random(3000) < np.where(frame.c == "v0", 0.3, 0.6)
    numbered = with_categories(as_dataset(frame, y), HeldOut(0.2), Run())
    fitted, new = np.asarray(numbered.X), numbered.encoding.transform(frame)
    frequent = (frame.c == "v0").to_numpy()

    def apart(scaler: Scaler) -> float:
        """The largest distance of frequent rows of the fit from the same rows as new ones, over all columns."""
        moved = scale_rows(fitted, scaler, "float64") - scale_rows(new, scaler, "float64")
        return float(np.abs(moved[frequent]).max())

    passthrough = np.asarray(numbered.passthrough)
    assert numbered.encoding.learned.all()
    assert apart(quantile_scaler(fitted, passthrough, learned=numbered.encoding.learned)) < 0.2
    # one step of the distribution is stretched over most of the range
    assert apart(quantile_scaler(fitted, passthrough)) > 0.5
