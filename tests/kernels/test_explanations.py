"""The arithmetic of explanations: derivatives are those of differences, contributions are Shapley values."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.kernels.explanations import left_out_sums
from dkl.kernels.shapley import product_contributions, wave_contributions
from dkl.kernels.slopes import squared_slopes
from tests.definitions import explain as definitions
from tests.kernels.cases import (
    FAMILIES,
    PRECISION,
    SCALINGS,
    STORAGES,
    holey_rows,
    scalable,
    stored,
    weighted_map,
)

SMOOTH = [name for name in FAMILIES if name != "step" and "landmarks" not in name]


@pytest.mark.parametrize(("storage", "dtype"), [("dense", "float64"), ("sparse", "float32")])
@pytest.mark.parametrize("family", SMOOTH)
def test_squared_slopes_are_those_of_differences(family: str, storage: str, dtype: str) -> None:
    X, feature_map = holey_rows(23, 5), weighted_map(FAMILIES[family], 9, 5, dtype)
    rng = np.random.default_rng(2)
    s, coef = rng.random(23), rng.standard_normal((2, feature_map.n_features))
    # the slope of a ramp is a step: rows within a difference of it are none
    X = X + 0.01
    found = squared_slopes(stored(X, storage), s, feature_map, coef, dtype)
    expected = definitions.squared_slopes(X, s, feature_map, coef)
    np.testing.assert_allclose(found, expected, rtol=2e-5 if dtype == "float32" else 1e-8)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("storage", STORAGES)
def test_slopes_are_taken_in_the_scaled_columns(storage: str, scaling: str | None) -> None:
    X = scalable(holey_rows(23, 5), scaling)
    feature_map = weighted_map(FAMILIES["phase"], 9, 5, "float64", scaling)
    coef = np.random.default_rng(2).standard_normal((1, 9))
    found = squared_slopes(stored(X, storage), np.ones(23), feature_map, coef, "float64")
    np.testing.assert_allclose(found, definitions.squared_slopes(X, np.ones(23), feature_map, coef), rtol=1e-8)


@pytest.mark.parametrize(("family", "dtype"), [("gaussian", "float32"), ("structured", "float64")])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_sums_without_some_columns_are_their_definition(
    family: str, scaling: str | None, storage: str, dtype: str
) -> None:
    X, s = scalable(holey_rows(11, 5), scaling), np.random.default_rng(1).standard_normal(11)
    feature_map = weighted_map(FAMILIES[family], 5, 5, dtype, scaling)
    groups = [np.array([], int), np.array([2]), np.array([0, 4])]
    found = left_out_sums(stored(X, storage), s, feature_map, groups, dtype)
    expected = definitions.left_out_sums(X, s, feature_map, groups)
    np.testing.assert_allclose(found, expected, rtol=0, atol=8 * PRECISION[dtype])
    alone = sum(left_out_sums(stored(X[[i]], storage), s[[i]], feature_map, groups, dtype) for i in range(11))
    np.testing.assert_allclose(alone, found, rtol=0, atol=8 * PRECISION[dtype])


@pytest.mark.parametrize("family", ["step", "landmarks, gaussian", "shared landmarks, gaussian"])
def test_features_without_a_gradient_are_refused(family: str) -> None:
    feature_map = weighted_map(FAMILIES[family], 3, 5, "float64")
    with pytest.raises(ValueError, match="have no gradient"):
        squared_slopes(np.ones((2, 5)), np.ones(2), feature_map, np.ones((1, 3)))


@pytest.mark.parametrize("n_columns", [1, 2, 5, 10])
def test_contributions_are_shapley_values_with_half_as_many_nodes_as_columns(n_columns: int) -> None:
    rng = np.random.default_rng(n_columns)
    m = 3 if n_columns == 10 else 150
    angles = 2.0 * rng.standard_normal((2, n_columns, m))
    psi = rng.random((n_columns, m)) * np.exp(1j * rng.standard_normal((n_columns, m)))
    amplitudes = rng.standard_normal((m, 2)) + 1j * rng.standard_normal((m, 2))
    found = wave_contributions(angles, psi, amplitudes, -(-n_columns // 2))
    expected = definitions.wave_contributions(angles, psi, amplitudes)
    np.testing.assert_allclose(found, expected, atol=1e-12 * m)
    if n_columns == 5:
        assert np.abs(wave_contributions(angles, psi, amplitudes, 2) - expected).max() > 1e-3


def test_contributions_to_products_are_shapley_values() -> None:
    rng = np.random.default_rng(0)
    factors, means = rng.normal(size=(3, 5, 3)), rng.normal(size=(5, 3))
    # products of two columns and of one: the places that are left have factors and means of 1
    factors[:, 3:, 2], means[3:, 2] = 1.0, 1.0
    factors[:, 4, 1], means[4, 1] = 1.0, 1.0
    found = product_contributions(factors, means)
    np.testing.assert_allclose(found, definitions.product_contributions(factors, means), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=2), factors.prod(axis=2) - means.prod(axis=1), atol=1e-12)
