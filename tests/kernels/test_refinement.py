"""The gradient in frequencies and weights: its definition, finite differences, and what sparse frequencies keep."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection, SparseProjection
from dkl.kernels.maps import map_rows
from dkl.linear.adam import adam_update
from dkl.linear.refinement_sums import REFINED_LOSSES, Expansion, ExpansionGradients, scaled_rows
from tests.definitions import losses
from tests.definitions import refinement as definitions
from tests.kernels.cases import FAMILIES, SCALINGS, STORAGES, holey_rows, scalable, scaler, stored, weighted_map

N, D_IN, M, K = 17, 5, 7, 3


def pair_map(pairing: str = "cos-sin", scaling: str | None = None) -> FeatureMap:
    rng = np.random.default_rng(1)
    phases = rng.uniform(0, 6, M) if pairing == "cos" else None
    projection = DenseProjection(rng.standard_normal((M, D_IN)))
    return FeatureMap(pairing, projection, rng.random(M) + 0.5, phases, scaler=scaler(scaling, D_IN))  # type: ignore[arg-type]


def model(feature_map: FeatureMap, dtype: str = "float64") -> Expansion:
    rng = np.random.default_rng(2)
    coef, intercept = rng.standard_normal((K, feature_map.n_features)), rng.standard_normal(K)
    return Expansion.of(feature_map, coef, intercept, dtype)


def targets_of(loss: str) -> np.ndarray:
    drawn = np.random.default_rng(3).standard_normal((N, K))
    return drawn if loss == "squared_error" else np.sign(drawn)


def sparse_form(feature_map: FeatureMap) -> FeatureMap:
    """The frequencies on one to three columns each, and one on all."""
    rng = np.random.default_rng(4)
    supports = np.zeros((M, D_IN), bool)
    for row in supports[1:]:
        row[rng.choice(D_IN, rng.integers(1, 4), replace=False)] = True
    supports[0] = True
    return replace(feature_map, projection=SparseProjection.from_rows(feature_map.projection.dense(), supports))


def test_features_that_are_not_waves_are_refused() -> None:
    ramps = weighted_map(FAMILIES["ramp"], 4, D_IN, "float32")
    with pytest.raises(ValueError, match="these are 'arc-cosine' features"):
        Expansion.of(ramps, np.zeros((1, 4)), np.zeros(1), "float32")


@pytest.mark.parametrize("pairing", ["cos-sin", "cos"])
@pytest.mark.parametrize("loss", REFINED_LOSSES)
def test_the_gradient_is_its_definition(loss: Any, pairing: str) -> None:
    feature_map = pair_map(pairing)
    X, weight, expansion = holey_rows(N, D_IN), np.random.default_rng(5).random(N), model(feature_map)
    rows = scaled_rows(X, feature_map, "float64")
    gradient_of = ExpansionGradients(feature_map, expansion, loss=loss, alpha=0.3)
    gradient = gradient_of(rows, targets_of(loss), weight, expansion)
    parts = definitions.expansion_gradient(X, targets_of(loss), weight, feature_map, expansion, loss=loss, alpha=0.3)
    for got, wanted in zip((gradient.entries, gradient.coef, gradient.intercept), parts, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("loss", REFINED_LOSSES)
def test_the_gradient_is_the_slope_of_the_loss_on_mapped_rows(loss: Any, form: str) -> None:
    """Finite differences of a loss that is computed from `map_rows`, and knows nothing of the code under test."""
    feature_map = pair_map(scaling="standard")
    feature_map = sparse_form(feature_map) if form == "sparse" else feature_map
    X, targets, start = holey_rows(N, D_IN), targets_of(loss), model(feature_map)
    sizes = np.cumsum([start.entries.size, start.coef.size])

    def split(values: np.ndarray) -> Expansion:
        entries, coef, intercept = np.split(values, sizes)
        return Expansion(entries.reshape(start.entries.shape), coef.reshape(start.coef.shape), intercept)

    def objective(values: np.ndarray) -> float:
        at = split(values)
        scores = map_rows(X, at.apply_to(feature_map), "float64") @ at.coef.T + at.intercept
        values = [losses.value(y, f, loss) for y, f in zip(targets.flat, scores.flat, strict=True)]
        return sum(values) / N + 0.05 * float(np.sum(at.coef**2))

    values = np.concatenate([start.entries.ravel(), start.coef.ravel(), start.intercept])
    rows = scaled_rows(X, feature_map, "float64")
    gradient = ExpansionGradients(feature_map, start, loss=loss, alpha=0.1)(rows, targets, None, start)
    slope = np.concatenate([gradient.entries.ravel(), gradient.coef.ravel(), gradient.intercept])
    np.testing.assert_allclose(slope, approx_fprime(values, objective, 1e-7), rtol=0, atol=2e-5)


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_sparse_rows_give_the_gradient_of_the_same_rows_written_out(scaling: str | None, form: str) -> None:
    feature_map = pair_map(scaling=scaling)
    feature_map = sparse_form(feature_map) if form == "sparse" else feature_map
    gradients = []
    for storage in STORAGES:
        X = scalable(holey_rows(N, D_IN), scaling)
        rows = scaled_rows(stored(X, storage), feature_map, "float64")
        expansion, targets = model(feature_map), targets_of("log_loss")
        gradient_of = ExpansionGradients(feature_map, expansion, loss="log_loss", alpha=0.0)
        gradients.append(gradient_of(rows, targets, None, expansion))
    np.testing.assert_allclose(gradients[0].entries, gradients[1].entries, rtol=0, atol=1e-12)
    np.testing.assert_allclose(gradients[0].coef, gradients[1].coef, rtol=0, atol=1e-12)


def test_sparse_frequencies_have_the_dense_gradient_at_their_entries() -> None:
    feature_map = sparse_form(pair_map())
    dense = replace(feature_map, projection=DenseProjection(feature_map.projection.dense()))
    rows, targets = scaled_rows(holey_rows(N, D_IN), dense, "float64"), targets_of("squared_hinge")
    few, full = (
        ExpansionGradients(one, model(one), loss="squared_hinge", alpha=0.0)(rows, targets, None, model(one)).entries
        for one in (feature_map, dense)
    )
    supports = feature_map.projection.matrix != 0  # type: ignore[attr-defined]
    np.testing.assert_allclose(few, full[supports.toarray()], rtol=0, atol=1e-13)


def test_float32_is_as_near_as_its_rounding() -> None:
    feature_map, X, targets = pair_map(scaling="standard"), holey_rows(N, D_IN), targets_of("log_loss")
    single, double = (
        ExpansionGradients(feature_map, model(feature_map, dtype), loss="log_loss", alpha=0.0)(
            scaled_rows(X, feature_map, dtype), targets, None, model(feature_map, dtype)
        )
        for dtype in ("float32", "float64")
    )
    assert single.entries.dtype == single.coef.dtype == single.intercept.dtype == np.float32
    np.testing.assert_allclose(single.entries, double.entries, rtol=0, atol=3e-6 * np.abs(double.entries).max())


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_steps_of_adam_are_their_definition(dtype: str) -> None:
    rng = np.random.default_rng(6)
    values, first, second, rates = (
        rng.standard_normal(9).astype(dtype),
        *np.zeros((2, 9), dtype),
        np.full(9, 0.1, dtype),
    )
    expected = [one.astype("float64") for one in (values, first, second)]
    for step in range(1, 6):
        gradient = (rng.standard_normal(9) * 10.0 ** np.arange(-4, 5)).astype(dtype)
        expected = definitions.adam_update(expected[0], (expected[1], expected[2]), gradient, rates, step=step)
        adam_update(values, (first, second), gradient, rates, step=step)
    for got, wanted in zip((values, first, second), expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol={"float32": 5e-6, "float64": 1e-12}[dtype])


def test_a_model_of_another_shape_and_features_without_waves_are_named() -> None:
    feature_map = pair_map()
    with pytest.raises(ValueError, match=r"coef has shape \(1, 3\).*\(K, 14\)"):
        Expansion.of(feature_map, np.zeros((1, 3)), np.zeros(1), "float64")
    with pytest.raises(ValueError, match="identity"):
        Expansion.of(replace(feature_map, activation="identity"), np.zeros((1, M)), np.zeros(1), "float64")
