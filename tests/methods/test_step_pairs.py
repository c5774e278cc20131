"""Pairs of columns that say together what neither says alone, and the steps that rounds begin with there."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.methods.steps import atoms
from dkl.methods.steps.binning import column_bins
from dkl.methods.steps.pairs import (
    PARTS,
    PairTables,
    entangled_pairs,
    pair_tables,
    rows_of_tables,
    steps_on_pairs,
    table_bytes,
)


def rows(n: int = 1_500, d: int = 6, seed: int = 0) -> np.ndarray:
    """Columns of which the second leans on the first, the third has three values, and the last one is constant."""
    X = np.random.default_rng(seed).normal(size=(n, d))
    X[:, 1] += X[:, 0]
    X[:, 2] = np.round(np.clip(X[:, 2], -1.0, 1.0))
    X[:, -1] = 3.0
    return X


def tables_of(X: np.ndarray, y: np.ndarray, weight: np.ndarray | None = None) -> PairTables:
    weight = np.ones(len(X)) if weight is None else weight
    return pair_tables(X, y.reshape(len(X), -1), weight, column_bins(X, weight, 64))


def test_tables_are_sums_over_the_rows_of_each_cell() -> None:
    X, generator = rows(200), np.random.default_rng(1)
    y, weight = generator.normal(size=(200, 2)), generator.integers(1, 4, 200).astype(float)
    tables = tables_of(X, y, weight)
    center = (weight @ y) / weight.sum()
    scaled = (y - center) / np.sqrt(weight @ (y - center) ** 2 / weight.sum())
    cells = np.stack([np.searchsorted(cuts, X[:, j]) for j, cuts in enumerate(tables.cuts)], axis=1)
    weights, sums = np.zeros_like(tables.weights), np.zeros_like(tables.sums)
    for i in range(200):
        for j in range(6):
            for k in range(6):
                weights[j, k, cells[i, j], cells[i, k]] += weight[i]
                sums[:, j, k, cells[i, j], cells[i, k]] += weight[i] * scaled[i]
    np.testing.assert_allclose(tables.weights, weights, rtol=1e-12)
    np.testing.assert_allclose(tables.sums, sums, atol=1e-9)
    assert [len(cuts) for cuts in tables.cuts] == [3, 3, 2, 3, 3, 0]
    # parts of about equal weight
    shares = np.bincount(cells[:, 0], weight) / weight.sum()
    assert np.abs(shares - 1.0 / PARTS).max() < 0.05


def test_a_pair_is_worth_what_regressions_on_its_cells_and_on_both_columns_differ_by() -> None:
    X = rows()
    y = np.stack([X[:, 0] * X[:, 1], np.sin(X[:, 3])], axis=1) + np.random.default_rng(2).normal(size=(len(X), 2))
    weight = np.random.default_rng(3).integers(1, 4, len(X)).astype(float)
    tables = tables_of(X, y, weight)
    scaled = (y - np.average(y, axis=0, weights=weight)) / np.sqrt(
        np.average((y - np.average(y, axis=0, weights=weight)) ** 2, axis=0, weights=weight)
    )
    cells = [np.searchsorted(cuts, X[:, j]) for j, cuts in enumerate(tables.cuts)]
    root = np.sqrt(weight)[:, None]

    def left(*groups: np.ndarray) -> float:
        """The squared error of the best function of each of some groups, added up."""
        design = np.concatenate([np.eye(PARTS * PARTS)[group] for group in groups], axis=1) * root
        fitted = design @ np.linalg.lstsq(design, scaled * root, rcond=None)[0]
        return float(((scaled * root - fitted) ** 2).sum())

    nothing = float((weight[:, None] * scaled**2).sum())
    for j in range(6):
        assert tables.of_columns()[j] == pytest.approx(nothing - left(cells[j]), abs=1e-6)
        for k in range(j):
            both = left(cells[j], cells[k]) - left(PARTS * cells[j] + cells[k])
            assert tables.beyond_a_sum(j, k) == pytest.approx(both, abs=1e-6)
            assert tables.at_most()[j, k] >= both - 1e-6


@pytest.mark.parametrize(
    ("target", "pairs"),
    [
        (lambda X, noise: np.sign(X[:, 3] * X[:, 4]) + noise, [(3, 4)]),
        # one of them says more alone
        (lambda X, noise: 3.0 * X[:, 3] + np.sign(X[:, 3] * X[:, 4]) + noise, []),
        # a sum of columns that lean on each other
        (lambda X, noise: X[:, 0] ** 2 + np.abs(X[:, 1]) + noise, []),
        (lambda X, noise: noise, []),
    ],
)
def test_pairs_are_those_that_say_more_together_than_alone(target, pairs: list[tuple[int, int]]) -> None:
    X = rows()
    y = target(X, np.random.default_rng(4).normal(size=len(X)))
    assert entangled_pairs(tables_of(X, y)) == pairs
    steps = steps_on_pairs(X, y[:, None], np.ones(len(X)), column_bins(X, np.ones(len(X)), 64))
    assert sorted({column for ((column, _, _),) in steps}) == sorted({column for pair in pairs for column in pair})


def test_weights_are_repeated_rows_and_sparse_rows_are_dense_ones() -> None:
    X, weight = rows(400), np.random.default_rng(5).integers(1, 4, 400)
    y = np.sign(X[:, 3] * X[:, 4])[:, None] + 0.1 * np.random.default_rng(6).normal(size=(400, 1))
    bins = column_bins(X, weight.astype(float), 64)
    weighted = steps_on_pairs(X, y, weight.astype(float), bins)
    repeated = np.repeat(np.arange(400), weight)
    assert weighted == steps_on_pairs(X[repeated], y[repeated], np.ones(len(repeated)), bins) != []
    assert weighted == steps_on_pairs(sparse.csr_array(X), y, weight.astype(float), bins)
    # rows that do not count are not looked at
    halves = np.where(np.arange(400) < 200, 0.0, 1.0)
    assert steps_on_pairs(X, y, halves, bins) == steps_on_pairs(X[200:], y[200:], np.ones(200), bins)


def test_rounds_find_a_product_whose_columns_say_nothing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(7)
    X = generator.normal(size=(3_000, 25))
    y = np.sign(X[:, 3] * X[:, 11]) * np.abs(X[:, 3]) + 0.3 * generator.normal(size=3_000)

    def error() -> float:
        model = dkl.StepFeatures(depth=2, n_features=150, random_state=0).fit(X[:2_000], y[:2_000]).machine_
        return float(np.mean((model.predict(X[2_000:]) - y[2_000:]) ** 2))

    found = error()
    monkeypatch.setattr(atoms, "steps_on_pairs", lambda *given: [])
    assert found < 0.2 < 2.0 * found < error()


def test_many_columns_are_looked_at_on_fewer_rows_and_very_many_not_at_all() -> None:
    assert rows_of_tables(3_000_000, 30, 1) == 20_000
    assert 1_000 < rows_of_tables(3_000_000, 300, 1) < 20_000
    assert table_bytes(300, 1) < 64 << 20
    assert rows_of_tables(3_000_000, 2_000, 1) == rows_of_tables(500, 1, 1) == 0
