"""Leverage scores: one number by every way to compute it, a certificate that holds, draws that are unbiased."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dkl.features.families import ArcCosine, Coordinates, Gaussian, Matern
from dkl.features.feature_map import FeatureMap
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import map_rows
from dkl.methods.leverage import dictionary_driver as leverage_dictionary
from dkl.methods.leverage import driver as leverage
from dkl.methods.leverage.dictionary_driver import DictionaryDriver
from dkl.methods.leverage.driver import (
    GramDriver,
    LeverageProblem,
    RowsDriver,
    resample,
    scores_of_gram,
    scores_of_rows,
)
from tests.definitions import leverage as definitions
from tests.methods.play import Table, blocks_of, play

POOLS = {
    "pairs": Gaussian(1.0),
    "phases": Gaussian(1.0, pairing="phase"),
    "structured": Matern(1.5, 1.0, sampling="structured"),
    "ramps": ArcCosine(1),
    "columns": Coordinates(),
}


def pool_of(family: Any, size: int = 12, d: int = 3) -> FeatureMap:
    """Candidates whose products add up to the kernel."""
    pool = family.draw(size, d, 0, np.float64)
    return replace(pool, amplitudes=np.full(size, family.feature_scale(d) / np.sqrt(size)))


def rows_of(n: int = 30, d: int = 3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, d)), rng.integers(1, 4, n).astype(np.float64)


def found(driver: Any, problem: LeverageProblem, table: Table, mu: float | None = None) -> leverage.Leverage:
    return driver.leverage(problem, play(driver, problem, table), problem.mu if mu is None else mu)


@pytest.mark.parametrize("mu", [1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("family", POOLS)
def test_scores_are_the_dense_formula_by_either_dimension(family: str, mu: float) -> None:
    X, weight = rows_of()
    pool = pool_of(POOLS[family])
    expected = definitions.leverage_scores(X, weight, pool, mu)
    problem = LeverageProblem(pool, mu, n_rows=30, dtype="float64")
    for driver in (GramDriver(), RowsDriver(), DictionaryDriver()):
        scores = found(driver, problem, Table(blocks_of(X, np.zeros(30), weight)))
        np.testing.assert_allclose(scores.scores, expected, rtol=1e-9, atol=1e-12)
        assert scores.degrees_of_freedom == pytest.approx(expected.sum(), rel=1e-9)
        assert scores.error < 1e-6


def test_the_degrees_of_freedom_are_those_of_the_kernel_matrix() -> None:
    X, _ = rows_of(40)
    pool = pool_of(Gaussian(1.5), 50)
    features = map_rows(X, pool, "float64")
    kernel = features @ features.T / 40
    assert np.trace(kernel) == pytest.approx(1.0)
    scores = scores_of_rows(X, None, pool, 1e-3, dtype="float64")
    assert scores.sum() == pytest.approx(np.trace(kernel @ np.linalg.inv(kernel + 1e-3 * np.eye(40))))


def test_sparse_rows_and_float32_give_the_same_scores() -> None:
    X, weight = rows_of()
    X[X < 0.3] = 0.0
    pool = pool_of(Gaussian(1.0))
    expected = definitions.leverage_scores(X, weight, pool, 1e-3)
    table = Table([replace(b, X=sparse.csr_array(b.X)) for b in blocks_of(X, np.zeros(30), weight, rows=30)])
    problem = LeverageProblem(replace(pool), 1e-3, n_rows=30, dtype="float32")
    np.testing.assert_allclose(found(GramDriver(), problem, table).scores, expected, rtol=1e-4)
    scores = scores_of_rows(sparse.csr_array(X), weight, pool, 1e-3)
    np.testing.assert_allclose(scores.sum(axis=0), expected, rtol=1e-4)


def test_another_mu_takes_no_pass() -> None:
    X, weight = rows_of()
    pool = pool_of(Gaussian(1.0))
    for driver in (GramDriver(), RowsDriver()):
        table = Table(blocks_of(X, np.zeros(30), weight))
        problem = LeverageProblem(pool, 1e-1, n_rows=30, dtype="float64")
        state = play(driver, problem, table)
        assert len(table.passes) == 1
        scores = driver.leverage(problem, state, 1e-4).scores
        np.testing.assert_allclose(scores, definitions.leverage_scores(X, weight, pool, 1e-4), rtol=1e-9)


def test_a_large_gram_matrix_comes_in_panels_a_few_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    X, weight = rows_of()
    pool = pool_of(Gaussian(1.0))
    monkeypatch.setattr(leverage, "LARGEST_ACCUMULATOR", 8 * 40)
    table = Table(blocks_of(X, np.zeros(30), weight))
    problem = LeverageProblem(pool, 1e-3, n_rows=30, dtype="float64")
    scores = found(GramDriver(), problem, table).scores
    np.testing.assert_allclose(scores, definitions.leverage_scores(X, weight, pool, 1e-3), rtol=1e-9)
    assert len(table.passes) > 2
    assert len(table.passes) == GramDriver().plan(problem)[0][1]


def test_tiles_of_features_and_rows_do_not_change_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    X, weight = rows_of()
    pool = pool_of(Gaussian(1.0), 40)
    whole = scores_of_rows(X, weight, pool, 1e-3, dtype="float64")
    monkeypatch.setattr(leverage, "_TILE_BYTES", 8 * 30 * 2 * 7)
    monkeypatch.setattr(leverage, "_TILE_ROWS", 11)
    np.testing.assert_allclose(scores_of_rows(X, weight, pool, 1e-3, dtype="float64"), whole, rtol=1e-10)


def test_a_sample_of_rows_is_drawn_by_their_weights_and_then_counts_each_once() -> None:
    X, _ = rows_of(50)
    weight = np.r_[np.full(25, 1e9), np.ones(25)]
    problem = LeverageProblem(pool_of(Gaussian(1.0)), 1e-3, n_rows=20, is_sample=True, seed=3, dtype="float64")
    state = play(RowsDriver(), problem, Table(blocks_of(X, np.zeros(50), weight)))
    assert state.weight is None
    assert {tuple(row) for row in state.rows[0]} <= {tuple(row) for row in X[:25]}
    assert len(state.rows[0]) == 20


@pytest.mark.parametrize("mu", [1e-2, 1e-4])
@pytest.mark.parametrize("columns", [4, 10, 30])
def test_the_certificate_of_the_dictionary_holds(columns: int, mu: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """No score is too large, and together they miss no more than is said; so does the law of the draws."""
    monkeypatch.setattr(leverage_dictionary, "DICTIONARY_COLUMNS", columns)
    monkeypatch.setattr(leverage_dictionary, "LARGEST_ACCUMULATOR", 8 * columns * 2 * 7)
    X, weight = rows_of(40, seed=columns)
    pool = pool_of(Matern(1.5, 1.0), 25)
    exact = definitions.leverage_scores(X, weight, pool, mu)
    table = Table(blocks_of(X, np.zeros(40), weight))
    problem = LeverageProblem(pool, mu, n_rows=40, dtype="float64", seed=1)
    result = found(DictionaryDriver(), problem, table)
    assert (result.scores <= exact + 1e-9).all()
    missing = exact.sum() - result.degrees_of_freedom
    assert 0.0 < missing <= result.missed
    law, true = result.scores / result.degrees_of_freedom, exact / exact.sum()
    assert 0.5 * np.abs(law - true).sum() <= result.error < 1.0
    assert len(table.passes) == sum(calls for _, calls in DictionaryDriver().plan(problem))


def test_a_larger_dictionary_has_a_smaller_error(monkeypatch: pytest.MonkeyPatch) -> None:
    X, weight = rows_of(60)
    problem = LeverageProblem(pool_of(Gaussian(1.5), 40), 1e-3, n_rows=60, dtype="float64")
    errors = []
    for columns in (4, 12, 24, 80):
        monkeypatch.setattr(leverage_dictionary, "DICTIONARY_COLUMNS", columns)
        errors.append(found(DictionaryDriver(), problem, Table(blocks_of(X, np.zeros(60), weight))).error)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-7


def test_a_dictionary_serves_the_mu_of_its_sweeps_only() -> None:
    X, weight = rows_of()
    problem = LeverageProblem(pool_of(Gaussian(1.0)), 1e-3, n_rows=30)
    with pytest.raises(ValueError, match=r"approximated at mu=0\.001.*n_rows of at most 8,000"):
        found(DictionaryDriver(), problem, Table(blocks_of(X, np.zeros(30), weight)), mu=1e-4)


@pytest.mark.parametrize("driver", [GramDriver(), RowsDriver(), DictionaryDriver()], ids=lambda one: type(one).__name__)
def test_what_a_driver_holds_is_counted(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against what NumPy allocates while the last state and the scores are computed."""
    monkeypatch.setattr(leverage, "_TILE_BYTES", 1 << 18)
    for name, value in (("DICTIONARY_COLUMNS", 200), ("LARGEST_ACCUMULATOR", 1 << 18)):
        monkeypatch.setattr(leverage_dictionary, name, value)
    X, weight = rows_of(400, seed=1)
    problem = LeverageProblem(pool_of(Gaussian(1.0), 300), 1e-2, n_rows=400)
    table = Table(blocks_of(X, np.zeros(400), weight, rows=400))
    state, peak = driver.init(problem), 0
    while records := driver.request(problem, state):
        results = table.run(records)
        tracemalloc.start()
        state = driver.step(problem, state, results)
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    tracemalloc.start()
    driver.leverage(problem, state, 1e-2)
    peak = max(peak, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    held = sum(driver.memory(problem, problem.n_rows, 24).values())
    assert peak <= 1.05 * held + 1e5
    assert held <= 8 * peak


def test_a_mu_below_rounding_and_rows_without_end_are_refused() -> None:
    packed = np.array([1.0, 2.0, 1.0])
    assert len(packed) == packed_size(0, 2)
    with pytest.raises(ValueError, match="mu is 1e-30, which is lost in rounding"):
        scores_of_gram(packed, 2, 1e-30)
    with pytest.raises(ValueError, match="not finite: the rows are too large"):
        scores_of_gram(np.array([np.inf, 0.0, 1.0]), 2, 1e-3)


@pytest.mark.parametrize("weighted", [True, False])
def test_draws_have_the_kernel_that_is_promised_in_expectation(weighted: bool) -> None:
    """With weights that of the pool; without them that of the pool times the scores."""
    X, _ = rows_of(8)
    pool = pool_of(Gaussian(1.0), 20)
    scores = np.random.default_rng(5).random(20) + 0.05
    features = map_rows(X, replace(pool, amplitudes=np.ones(20)), "float64").reshape(8, 2, 20)
    law = np.full(20, 1.0 / 20) if weighted else scores / scores.sum()
    expected = np.einsum("ipm,jpm,m->ij", features, features, law)
    total, n_seeds = np.zeros((8, 8)), 1_000
    for seed in range(n_seeds):
        choice = resample(scores, np.arange(20), 10, seed, weighted=weighted)
        kept = features[:, :, choice.index]
        total += np.einsum("ipm,jpm,m->ij", kept, kept, choice.amplitudes**2)
    np.testing.assert_allclose(total / n_seeds, expected, atol=0.06)


def test_draws_are_of_frequencies_in_proportion_to_scores() -> None:
    scores = np.array([0.0, 1.0, 3.0])
    counts = np.zeros(3)
    for seed in range(800):
        choice = resample(scores, np.arange(3), 1, seed, weighted=False)
        counts[choice.index] += 1
        assert choice.amplitudes == pytest.approx([1.0])
    assert counts[0] == 0
    assert counts[2] / counts.sum() == pytest.approx(0.75, abs=0.045)


def test_frequencies_of_a_group_are_drawn_together() -> None:
    """Degrees of harmonics: the expected squares are those of each harmonic of the pool."""
    groups = SphericalHarmonics(2).pool(3).groups
    scores = np.linspace(1.0, 2.0, len(groups))
    squares = np.zeros(len(groups))
    n_seeds = 400
    for seed in range(n_seeds):
        choice = resample(scores, groups, 9, seed)
        assert all(np.isin(np.flatnonzero(groups == group), choice.index).all() for group in groups[choice.index])
        squares[choice.index] += choice.amplitudes**2 / n_seeds
    np.testing.assert_allclose(squares, 1.0 / len(groups), atol=0.045)


def test_features_that_vanish_have_no_leverage() -> None:
    with pytest.raises(ValueError, match="all candidate features are 0 on the rows"):
        resample(np.zeros(4), np.arange(4), 2, 0)
