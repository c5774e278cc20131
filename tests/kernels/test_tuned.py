"""The sums of tuned random features are their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.gram import GramSum, packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets, TrialSteps
from dkl.methods.density.sums import (
    MarginOptions,
    Smoothing,
    margin_block,
    margin_sums,
    squared_block,
    squared_sums,
)
from dkl.protocols.block import Block
from tests.definitions import tuned as definitions
from tests.linear.problems import feature_map

N, M, K = 29, 6, 2


def some_rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(N, M)), generator.normal(size=(N, K)), generator.uniform(0.5, 2.0, N)


def packed(whole: np.ndarray, columns: tuple[int, int]) -> np.ndarray:
    return np.concatenate([whole[: j + 1, j] for j in range(*columns)])


def smoothing(*, follows: bool, width: float = 0.7, ahead: float = 0.4) -> Smoothing:
    return Smoothing(width, ahead, np.random.default_rng(2).normal(size=(K, M + 1)), 1.3, follows)


def some_trial() -> TrialSteps:
    generator = np.random.default_rng(1)
    models = generator.normal(size=(2, K, M + 1))
    return TrialSteps(models[0], models[1], generator.uniform(0.1, 1.0, (K, 3)))


@pytest.mark.parametrize("columns", [(0, M + 1), (2, 5), (4, M + 1)])
def test_squared_sums_are_their_definition_fold_by_fold(columns: tuple[int, int]) -> None:
    phi, targets, weight = some_rows()
    folds = np.random.default_rng(3).integers(-1, 4, N)
    out = {
        "gram": np.zeros((3, packed_size(*columns))),
        "cross": np.zeros((3, K, M + 1)),
        "squares": np.zeros((3, K)),
    }
    grams = [GramSum(columns, gram) for gram in out["gram"]]
    squared_sums(phi, targets, weight, folds, grams, out)
    for gram in grams:
        gram.finish()
    expected = definitions.squared_sums(phi, targets, weight, folds, 3)
    for f in range(3):
        np.testing.assert_allclose(out["gram"][f], packed(expected["gram"][f], columns), rtol=0, atol=1e-12)
    np.testing.assert_allclose(out["cross"], expected["cross"], rtol=0, atol=1e-12)
    np.testing.assert_allclose(out["squares"], expected["squares"], rtol=1e-13)


@pytest.mark.parametrize(("loss", "follows"), [("hinge", False), ("hinge", True), ("squared_hinge", False)])
def test_margin_sums_are_their_definition(loss: str, follows: bool) -> None:
    phi, values, weight = some_rows()
    trial, smooth = some_trial(), smoothing(follows=follows)
    sums, curvature = margin_sums(phi, np.sign(values), weight, trial, smooth, loss)
    expected, curved = definitions.margin_sums(phi, np.sign(values), weight, trial, smooth, loss)
    assert sums.keys() == expected.keys()
    for name, value in sums.items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-12, err_msg=name)
    # what is left out is at most 1e-4 of the steepest curvature, 1/4 over the width
    np.testing.assert_allclose(curvature, curved, rtol=0, atol=1e-12 + 1e-4 * weight.max() / smooth.ahead)
    assert np.all((curvature > 0.0) | (curved <= 1e-4 * weight[:, None] / smooth.ahead))


def test_the_slope_of_the_smoothed_losses_is_minus_the_sums_of_the_dual_weights() -> None:
    phi, values, weight = some_rows()
    same = Smoothing(0.3, 0.3, smoothing(follows=False).past, 0.4)
    trial = some_trial()
    start = TrialSteps(trial.coefficients, trial.directions, np.zeros((K, 1)))
    dual_sums = margin_sums(phi, np.sign(values), weight, start, same, "hinge")[0]["dual_sums"].sum(axis=0)
    ends = [
        margin_sums(phi, np.sign(values), weight, TrialSteps(*parts, np.full((K, 1), h)), same, "hinge")[0]["smooth"][
            :, 0
        ]
        for parts, h in [
            ((trial.coefficients, trial.directions), 1e-5),
            ((trial.coefficients, trial.directions), -1e-5),
        ]
    ]
    slopes = (ends[0] - ends[1]) / 2e-5
    np.testing.assert_allclose(-np.sum(dual_sums * trial.directions, axis=1), slopes, rtol=1e-7)


def test_sharp_hinges_stay_finite_far_from_the_kink() -> None:
    phi, values, weight = some_rows()
    trial = some_trial()
    far = Smoothing(1e-9, 1e-9, 1e9 * smoothing(follows=False).past, 1e9)
    sums, curvature = margin_sums(phi, np.sign(values), weight, trial, far, "hinge")
    assert all(np.isfinite(value).all() for value in sums.values())
    assert np.isfinite(curvature).all()


def test_blocks_add_what_their_rows_come_to() -> None:
    phi_map = feature_map(4, n_frequencies=3)
    generator = np.random.default_rng(0)
    X, codes = generator.normal(size=(N, 4)), generator.integers(0, 2, N)
    block = Block(0, X, codes, generator.uniform(0.5, 2.0, N), np.arange(N))
    targets = NewtonTargets(np.arange(K), K)
    phi, (values, weight) = map_rows(X, phi_map, "float64"), targets(block)
    columns, operands = (0, M + 1), {"feature_map": phi_map, "targets": targets, "dtype": "float64"}
    squared = {**operands, "folds": None, "n_folds": 1, "columns": columns, "first": True}
    expected = definitions.squared_sums(phi, values, weight, np.zeros(N, np.int64), 1)
    found = squared_block(block, squared)
    np.testing.assert_allclose(found["gram"][0], packed(expected["gram"][0], columns), rtol=0, atol=1e-12)
    options = MarginOptions("squared_hinge", columns, (0, 1), dtype="float64")
    trial = some_trial()
    margin = {**operands, "trial": trial, "smoothing": smoothing(follows=False), "options": options}
    half = margin_block(block, {**margin, "sample": lambda ids: ids % 2 == 0})
    other = margin_block(block, {**margin, "sample": lambda ids: ids % 2 == 1})
    sums, curvature = definitions.margin_sums(phi, values, weight, trial, margin["smoothing"], "squared_hinge")
    for name, value in sums.items():
        np.testing.assert_allclose(half[name] + other[name], value, rtol=0, atol=1e-11)
    assert half["weight"] + other["weight"] == pytest.approx(weight.sum(), rel=1e-14)
    Z = np.hstack([phi, np.ones((N, 1))])
    for k in range(K):
        whole = Z.T @ (curvature[:, k, None] * Z)
        np.testing.assert_allclose((half["hessian"] + other["hessian"])[k], packed(whole, columns), rtol=0, atol=1e-11)
