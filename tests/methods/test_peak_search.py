"""The peak search: it climbs, finds planted peaks, keeps its bounds and supports, and tells peaks apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dkl.methods.frequency_search import peak_search
from dkl.methods.frequency_search.peak_search import (
    SearchOptions,
    Slope,
    distinct_peaks,
    grown_sample,
    langevin,
    pair_potentials,
    polished,
    quasi_newton,
    sample_size,
    search_peaks,
)
from tests.definitions import blocks as block_definitions
from tests.definitions import selection as definition

D_IN = 4
METHODS = ["langevin", "quasi-newton"]


def rows(n: int = 2_000, d: int = D_IN, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)


def wave(X: np.ndarray, w: Any) -> np.ndarray:
    """Weights whose potential peaks at w."""
    return np.cos(X @ np.asarray(w) + 0.7) / len(X)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("w", [[0.9, -0.8, 0.7, 0.6], [0.0, 3.0, 0.0, 0.0], [2.0, 0.0, -2.0, 0.0]])
def test_a_planted_peak_is_found(w: list[float], method: Any) -> None:
    X = rows(4_000)
    options = SearchOptions(chains=60, steps=40, polish=10, noise=0.5, method=method)
    found = search_peaks(X, wave(X, w), 2.8, options, seed=1)
    best = found.frequencies[np.argmax(found.potentials)]
    np.testing.assert_allclose(best * np.sign(best @ w), w, atol=0.15)
    # |sum s exp(i w.x)| is near 1/2 there
    assert found.potentials.max() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
def test_potentials_are_those_of_the_frequencies_and_never_below_the_start(method: Any, noise: float) -> None:
    X = rows(600)
    S = np.stack([wave(X, [1, 1, 0, 0]), wave(X, [0, 1, 2, 0])], axis=1)
    short, long = (
        search_peaks(X, S, 2.8, SearchOptions(30, steps, 0.1, noise, method=method), seed=2) for steps in (1, 15)
    )
    assert np.all(long.potentials >= short.potentials)
    assert np.mean(long.potentials) > 1.5 * np.mean(short.potentials)
    expected = block_definitions.potentials(X, S, long.frequencies[::7])
    np.testing.assert_allclose(long.potentials[::7], expected, rtol=1e-4)


def test_polishing_reaches_a_point_where_the_gradient_vanishes() -> None:
    X = rows(2_000)
    s = wave(X, [1.0, 0.5, 0.0, 0.0])
    options = SearchOptions(20, 10, sparse_share=0.0, polish=60)
    found = search_peaks(X, s, 2.8, options, seed=0)
    best = found.frequencies[[np.argmax(found.potentials)]].astype(np.float64)
    z = X.astype(np.float64) @ best[0]
    C, Q = s @ np.cos(z), s @ np.sin(z)
    gradient = 2 * ((s * (Q * np.cos(z) - C * np.sin(z))) @ X)
    assert np.linalg.norm(gradient) < 1e-3 * found.potentials.max() * np.linalg.norm(best)


def test_sparse_chains_move_in_their_own_columns_alone() -> None:
    X = rows(500, 9)
    found = search_peaks(X, wave(X, np.eye(9)[2]), 4.0, SearchOptions(40, 8, noise=1.0, sparse_share=0.5), seed=3)
    assert found.supports is not None
    assert found.supports[:20].all()
    counts = found.supports[20:].sum(axis=1)
    assert set(counts) == {1, 2, 3}
    np.testing.assert_array_equal(found.frequencies[20:] != 0, found.supports[20:])
    assert search_peaks(X, wave(X, np.eye(9)[2]), 4.0, SearchOptions(10, 2, sparse_share=0.0), seed=3).supports is None


def test_constant_columns_carry_no_sparse_chain() -> None:
    X = rows(300, 5)
    X[:, [0, 3]] = 1e4
    found = search_peaks(X, wave(X, np.eye(5)[1]), 3.0, SearchOptions(30, 3, sparse_share=1.0), seed=0)
    assert found.supports is not None
    assert not found.supports[:, [0, 3]].any()
    X[:] = 7.0
    assert search_peaks(X, np.ones(300), 3.0, SearchOptions(4, 2), seed=0).supports is None


def test_column_scales_are_standard_deviations_of_dense_and_sparse_rows() -> None:
    X = np.where(rows(400, 6) > 0.5, rows(400, 6, seed=1), 0.0)
    np.testing.assert_allclose(peak_search.column_scales(X), definition.column_scales(X), rtol=1e-6)
    np.testing.assert_allclose(peak_search.column_scales(sparse.csr_array(X)), definition.column_scales(X), rtol=1e-6)
    weight = np.random.default_rng(3).integers(1, 4, len(X)).astype(float)
    repeated = definition.column_scales(np.repeat(X, weight.astype(int), axis=0))
    for stored in (X, sparse.csr_array(X)):
        np.testing.assert_allclose(peak_search.column_scales(stored, weight), repeated, rtol=1e-6)


def blurred(n: int = 400, d: int = 320) -> np.ndarray:
    """Rows whose columns are alike where they are near, as those of pictures are, each with a deviation of its own."""
    wide = rows(n, d + 8)
    return np.mean([wide[:, j : j + d] for j in range(8)], axis=0) * np.linspace(1.0, 2.0, d, dtype=np.float32)


def test_neighbourhoods_are_a_column_and_those_most_correlated_with_it() -> None:
    X = blurred()
    found = peak_search.neighbourhoods(X, definition.column_scales(X), 60, seed=1)
    assert found is not None
    sizes = np.count_nonzero(found >= 0, axis=1)
    assert peak_search.NARROWEST <= sizes.min() < 20
    assert 100 < sizes.max() <= peak_search.WIDEST
    for j in (0, 1, 2):
        np.testing.assert_array_equal(found[j, : sizes[j]], definition.neighbours(X, found[j, 0])[: sizes[j]])
        assert np.all(found[j, sizes[j] :] == -1)


def test_there_are_no_neighbourhoods_among_few_columns_or_unrelated_ones() -> None:
    few = blurred()
    few[:, : 320 - peak_search.LEAST_COLUMNS + 1] = 3.0
    for X in (few, rows(400, 320), np.ones((10, 320), np.float32)):
        assert peak_search.neighbourhoods(X, peak_search.column_scales(X), 20, seed=1) is None
    options = SearchOptions(40, 2, sparse_share=0.25, near_share=0.5)
    stored = sparse.csr_array(blurred(100))
    for X in (few, stored):
        found = search_peaks(X, wave(blurred(X.shape[0]), np.eye(320)[2]), 4.0, options, seed=3)
        assert found.supports is not None
        assert np.count_nonzero(found.supports.all(axis=1)) == 30


def test_near_chains_move_in_their_own_columns_alone_and_climb_there() -> None:
    X = blurred()
    s = wave(X, np.where(np.arange(320) < 20, 0.5, 0.0))
    short, long = (
        search_peaks(X, s, 25.0, SearchOptions(40, 1, sparse_share=0.25, near_share=0.5, near_steps=steps), seed=3)
        for steps in (1, 15)
    )
    assert long.supports is not None
    counts = long.supports.sum(axis=1)
    assert np.all(counts[:15] == 320)
    assert np.all((counts[15:30] >= peak_search.NARROWEST) & (counts[15:30] <= peak_search.WIDEST))
    assert set(counts[30:]) <= {1, 2, 3}
    assert not long.frequencies[~long.supports].any()
    np.testing.assert_array_equal(long.frequencies[:15], short.frequencies[:15])
    assert np.median(long.potentials[15:30]) > 2.0 * np.median(short.potentials[15:30])
    expected = block_definitions.potentials(X, s[:, None], long.frequencies[15:30:7])
    np.testing.assert_allclose(long.potentials[15:30:7], expected, rtol=1e-4)


def test_steps_follow_the_scale_of_the_columns() -> None:
    """Sparse chains climb on standardised columns: units do not matter to them."""
    X = rows(1_000)
    units = np.array([1e-2, 1.0, 16.0, 1024.0], np.float32)
    options = SearchOptions(20, 10, sparse_share=1.0)
    s = wave(X, [0, 0, 1.5, 0])
    plain, scaled = search_peaks(X, s, 2.8, options, seed=0), search_peaks(X * units, s, 2.8, options, seed=0)
    np.testing.assert_allclose(scaled.frequencies * units, plain.frequencies, rtol=1e-2, atol=1e-3)


def test_sparse_storage_finds_what_dense_storage_does() -> None:
    X = np.where(rows(1_500) > 0, rows(1_500), 0.0)
    s = wave(X, [1.0, 0.0, 1.0, 0.0])
    dense, stored = (search_peaks(A, s, 2.0, SearchOptions(30, 10), seed=5) for A in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(stored.potentials, dense.potentials, rtol=1e-3)


def test_no_frequency_exceeds_its_largest_norm() -> None:
    X = rows(500)
    for method in METHODS:
        options = SearchOptions(30, 10, 0.3, 1.0, polish=4, max_norm=0.8, method=method)  # type: ignore[arg-type]
        found = search_peaks(X, wave(X, [0, 4, 0, 0]), 2.8, options, seed=0)
        assert np.linalg.norm(found.frequencies, axis=1).max() <= 0.8 * (1 + 1e-5)


def test_extra_starts_are_chains_of_their_own() -> None:
    X = rows(3_000)
    far = np.array([[3.0, -3.0, 3.0, 3.0]])
    s = wave(X, far[0])
    options = SearchOptions(10, 1, sparse_share=0.5)
    found = search_peaks(X, s, 2.8, options, seed=0, extra_starts=far)
    assert len(found.frequencies) == 11
    np.testing.assert_allclose(found.frequencies[5], far[0], rtol=1e-6)
    assert np.argmax(found.potentials) == 5


@pytest.mark.parametrize("sparse_share", [0.0, 0.5])
def test_rows_without_weight_have_no_part_in_an_ascent_on_the_others(sparse_share: float) -> None:
    X = rows()
    S = np.where(np.arange(len(X)) % 3 == 0, wave(X, [0.0, 3.0, 0.0, 0.0]), 0.0)
    options = SearchOptions(chains=8, sparse_share=sparse_share, support_only=True)
    found = search_peaks(X, S, 2.0, options, seed=0)
    of_all = search_peaks(X, S, 2.0, replace(options, support_only=False), seed=0)
    np.testing.assert_allclose(found.potentials, of_all.potentials, rtol=1e-3)
    np.testing.assert_allclose(found.frequencies, of_all.frequencies, atol=1e-2)
    if not sparse_share:
        # columns are standardised by all rows; nothing else is known of those without weight
        others = np.where((S == 0.0)[:, None], 7.0, X).astype(X.dtype)
        np.testing.assert_array_equal(search_peaks(others, S, 2.0, options, seed=0).frequencies, found.frequencies)


def test_held_out_rows_stop_a_search_that_fits_noise() -> None:
    """Weights without a pattern: what is climbed on 200 rows x 40 columns is noise, and held-out rows say so."""
    X = rows(200, 40)
    s = np.random.default_rng(1).choice([-1.0, 1.0], 200) / 200
    options = SearchOptions(40, 30, 0.2, sparse_share=0.0)
    fooled = search_peaks(X, s, 9.0, options, seed=0)
    warned = search_peaks(X, s, 9.0, SearchOptions(40, 30, 0.2, sparse_share=0.0, held_out=0.5), seed=0)
    assert fooled.potentials.max() > 0.1
    assert warned.potentials.max() < 0.07


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_and_another_one_others(method: Any) -> None:
    X = rows(1_000)
    options = SearchOptions(20, 6, noise=1.0, method=method)
    first, again, other = (search_peaks(X, wave(X, [1, 0, 1, 0]), 2.8, options, seed=seed) for seed in (4, 4, 5))
    assert first.frequencies.tobytes() == again.frequencies.tobytes()
    assert first.frequencies.tobytes() != other.frequencies.tobytes()


def test_a_quasi_newton_climb_ends_at_the_top_of_a_quadratic() -> None:
    rng = np.random.default_rng(0)
    M = rng.standard_normal((6, 6))
    H, top = M @ M.T + np.eye(6), rng.standard_normal(6)

    def climb(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        apart = u - top
        return 1e-12 * (50 - 0.5 * np.sum((apart @ H) * apart, axis=1)), -1e-12 * apart @ H

    slopes = [Slope(climb, lambda u: u) for _ in range(2)]
    starts = rng.standard_normal((5, 6))
    quasi_newton(slopes[0], starts, 60, 10.0)
    langevin(slopes[1], starts, 60, 0.5)
    np.testing.assert_allclose(slopes[0].best_points, np.tile(top, (5, 1)), atol=1e-5)
    assert np.abs(slopes[1].best_points - top).max() > 1e-3


def test_polishing_accepts_gains_alone() -> None:
    heights = []

    def climb(u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        heights.append(np.cos(u).sum(axis=1))
        return heights[-1], -np.sin(u)

    slope = Slope(climb, lambda u: u)
    polished(slope, np.full((1, 3), 0.9), 40, 0.5)
    np.testing.assert_allclose(slope.best_points, 0.0, atol=1e-4)
    assert len(heights) == 40


def test_distinct_peaks_are_their_definition() -> None:
    rng = np.random.default_rng(2)
    W = rng.standard_normal((80, 2)) * rng.uniform(0.5, 2.0, (80, 1))
    W[7] = -W[3]
    v = rng.random(80)
    for k in (1, 5, 100):
        np.testing.assert_array_equal(distinct_peaks(W, v, k), definition.distinct_peaks(W, v, k))
    kept = distinct_peaks(W, v, 100)
    assert not {3, 7} <= set(kept.tolist())


def test_a_peak_and_its_mirror_image_are_one_and_other_lengths_are_others() -> None:
    W = np.array([[1.0, 0.0], [-1.0, 0.0], [1.1, 0.2], [1.5, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(distinct_peaks(W, np.arange(7.0)[::-1], 7), [0, 3, 4, 5])


def test_the_sample_size_keeps_its_promise_in_simulation() -> None:
    K, accuracy, failure = 50, 0.1, 0.2
    n = sample_size(K, accuracy, failure)
    assert n == int(np.ceil(8 * np.log(2 * K / failure) / accuracy**2))
    rng = np.random.default_rng(0)
    W = 0.3 * rng.standard_normal((K, 2))
    # y = 1 with the same probability everywhere: the ideal potential is known
    ideal = 0.36 * np.exp(-np.sum(W**2, axis=1))
    misses = 0
    for _ in range(40):
        X, y = rng.standard_normal((n, 2)), np.where(rng.random(n) < 0.8, 1.0, -1.0)
        angles = X @ W.T
        v = ((y @ np.cos(angles)) ** 2 + (y @ np.sin(angles)) ** 2) / n**2
        misses += np.abs(v - ideal).max() > accuracy
    assert misses <= failure * 40
    assert sample_size(1_000) == 33_910


@pytest.mark.parametrize("bad", [{"n_candidates": 0}, {"accuracy": 0.0}, {"failure": 1.0}])
def test_a_sample_size_without_meaning_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a sample size needs"):
        sample_size(**{"n_candidates": 10, **bad})  # type: ignore[arg-type]


def test_pair_potentials_are_unbiased_whatever_the_sample() -> None:
    rng = np.random.default_rng(0)
    X, w = rng.standard_normal((4_000, 2)), np.array([[0.5, 0.2]])
    y = np.sign(np.sin(X[:, :1] + 0.3))
    means = []
    for n in (20, 200, 4_000):
        found = []
        for start in range(0, 4_000, n):
            part, s = X[start : start + n], y[start : start + n]
            v = np.abs(s.T @ np.exp(1j * part @ w.T)).ravel() ** 2
            found.append(pair_potentials(v, np.abs(s).sum(axis=0), (s**2).sum(axis=0))[0])
        means.append(np.mean(found))
    np.testing.assert_allclose(means[:2], means[2], atol=0.015)
    s = rng.standard_normal((9, 2))
    z = X[:9] @ w[0]
    expected = definition.pair_potentials(z, s)
    v = np.sum(np.abs(s.T @ np.exp(1j * z)) ** 2)
    assert pair_potentials(np.array([v]), np.abs(s).sum(axis=0), (s**2).sum(axis=0))[0] == pytest.approx(expected)


def test_a_sample_grows_where_its_peaks_do_not_hold() -> None:
    found = np.array([0.4, 0.2, 0.2])
    assert grown_sample(1_000, found, found * 0.9, most=9_999) == 1_000
    assert grown_sample(1_000, found, found * 0.3, most=9_999) == 2_000
    assert grown_sample(1_000, found, found * 0.3, most=1_500) == 1_500
