"""Activations agree with their formulas, their derivatives, and the functions that other libraries compute them by."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest

from dkl.features.activations import ACTIVATIONS, Identity, Ramp, function_of
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels.maps import map_rows
from tests.kernels.cases import Powers

EVERY = {**{name: found for name, found in ACTIVATIONS.items() if name != "arc-cosine"}} | {
    f"arc-cosine {order}": Ramp(order) for order in (0, 1, 2)
}
DEFINITIONS = {
    "cos-sin": (math.cos, math.sin),
    "cos": (math.cos,),
    "identity": (lambda z: z,),
    "arc-cosine 0": (lambda z: float(z > 0.0),),
    "arc-cosine 1": (lambda z: max(z, 0.0),),
    "arc-cosine 2": (lambda z: max(z, 0.0) ** 2,),
}
Z = np.random.default_rng(0).normal(size=(40, 5)) * 3.0


def test_every_activation_of_the_table_has_a_definition_here() -> None:
    assert set(DEFINITIONS) == set(EVERY)


@pytest.mark.parametrize("name", EVERY)
def test_values_are_those_of_the_formula(name: str) -> None:
    values = EVERY[name].values(np, Z)
    assert len(values) == len(EVERY[name].names) == len(DEFINITIONS[name])
    for value, formula in zip(values, DEFINITIONS[name], strict=True):
        np.testing.assert_allclose(value, [[formula(float(z)) for z in row] for row in Z], rtol=1e-15)


@pytest.mark.parametrize("name", EVERY)
def test_slopes_are_derivatives_of_the_values(name: str) -> None:
    function, step = EVERY[name], 1e-6
    slopes = function.slopes(np, Z)
    if name == "arc-cosine 0":
        assert slopes is None
        return
    assert slopes is not None
    for slope, ahead, behind in zip(slopes, function.values(np, Z + step), function.values(np, Z - step), strict=True):
        np.testing.assert_allclose(slope, (ahead - behind) / (2.0 * step), atol=1e-8)


@pytest.mark.parametrize("name", EVERY)
def test_functions_of_numpy_give_the_values(name: str) -> None:
    function = EVERY[name]
    if function.numpy_functions is not None:
        found = reduce(lambda z, one: one(z), function.numpy_functions, Z)
        np.testing.assert_allclose(found, function.values(np, Z)[0], rtol=1e-12)


def test_a_map_holds_an_activation_by_name_or_as_an_object() -> None:
    W, a, b, X = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]]), np.array([1.0, 2.0, 0.5]), np.ones(3), Z[:, :2]
    feature_map = FeatureMap(Powers(), DenseProjection(W), a, b)
    z = X @ W.T + b
    assert feature_map.n_features == 6
    assert not feature_map.is_fourier
    assert feature_map.names(["x", "y"], "phi")[1::3] == ["power(y)", "square(y)"]
    np.testing.assert_allclose(map_rows(X, feature_map, "float64"), np.hstack([a * z, a * z**2]), rtol=1e-12)
    assert function_of("identity") == Identity()
    assert function_of("steps") is None
    assert function_of("arc-cosine", 2) == Ramp(2)
