"""Every function of `dkl.kernels` against its definition, and that none lacks one."""

from __future__ import annotations

import importlib
import pkgutil
from itertools import cycle, product

import numpy as np
import pytest

import dkl
from dkl.kernels.maps import map_rows, map_spans, row_tile
from dkl.kernels.scale import scale_rows
from dkl.kernels.sums import feature_squares, feature_sums
from tests.definitions import blocks as definitions
from tests.definitions import explain, game, leverage, losses, rounds, tuned
from tests.kernels.cases import (
    DTYPES,
    FAMILIES,
    PRECISION,
    SCALINGS,
    STORAGES,
    holey_rows,
    scalable,
    scaler,
    stored,
    weighted_map,
)

N, D_IN, M = 23, 5, 9


def test_every_public_function_has_its_definition() -> None:
    names = set()
    for module in pkgutil.walk_packages(dkl.__path__, "dkl."):
        if module.name.startswith("dkl.kernels.") or module.name.endswith(("sums", "rounds.loop")):
            names |= set(getattr(importlib.import_module(module.name), "__all__", ()))
    assert {"feature_sums", "feature_squares", "map_rows", "scale_rows"} <= names
    parts = (definitions, leverage, game, rounds, tuned, explain, losses)
    defined = set().union(*(vars(part) for part in parts))
    assert sorted(names - defined) == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_squares_and_maps_are_their_definitions(family: str, storage: str, dtype: str) -> None:
    X, S = holey_rows(N, D_IN), np.random.default_rng(1).standard_normal((N, 3))
    feature_map = weighted_map(FAMILIES[family], M, D_IN, dtype)
    features = definitions.map_rows(X, feature_map)
    tolerance = PRECISION[dtype] * max(1.0, float(np.abs(features).max())) ** 2
    mapped = map_rows(stored(X, storage), feature_map, dtype)
    assert mapped.dtype == dtype
    assert mapped.flags.c_contiguous
    np.testing.assert_allclose(mapped, features, rtol=0, atol=tolerance)
    for weights in (S, S[:, :1]):
        sums = feature_sums(stored(X, storage), weights, feature_map, dtype)
        expected = definitions.sums_of(features, weights, feature_map)
        np.testing.assert_allclose(sums, expected, rtol=0, atol=tolerance * np.sqrt(N))
    squares = feature_squares(stored(X, storage), S[:, 0], feature_map, dtype)
    expected = definitions.squares_of(features, S[:, 0], feature_map)
    np.testing.assert_allclose(squares, expected, rtol=0, atol=2 * tolerance * np.sqrt(N))


@pytest.mark.parametrize(("family", "storage"), list(zip(FAMILIES, cycle(STORAGES))))
def test_spans_of_rows_are_mapped_to_the_bits_of_each_alone(family: str, storage: str) -> None:
    X, feature_map = stored(holey_rows(N, D_IN), storage), weighted_map(FAMILIES[family], M, D_IN, "float32")
    spans = list(map_spans(X, feature_map, "float32", 10))
    assert [rows for rows, _ in spans] == [slice(0, 10), slice(10, 20), slice(20, N)]
    for rows, phi in spans:
        np.testing.assert_array_equal(phi, map_rows(X[rows], feature_map, "float32"))


SCALED = ("gaussian", "structured phase", "ramp", "coordinates")


@pytest.mark.parametrize(
    ("family", "scaling", "storage"),
    # a scaling meets both storages, and so does a family
    [(*pair, STORAGES[(place + place // 6) % 2]) for place, pair in enumerate(product(SCALED, SCALINGS))],
)
def test_rows_are_scaled_before_they_are_projected(family: str, storage: str, scaling: str | None) -> None:
    X, S = scalable(holey_rows(N, D_IN), scaling), np.random.default_rng(1).standard_normal((N, 2))
    feature_map = weighted_map(FAMILIES[family], M, D_IN, "float64", scaling)
    given = stored(X, storage)
    close = {"rtol": 0, "atol": 1e-11}
    np.testing.assert_allclose(map_rows(given, feature_map, "float64"), definitions.map_rows(X, feature_map), **close)
    sums = feature_sums(given, S, feature_map, "float64")
    np.testing.assert_allclose(sums, definitions.feature_sums(X, S, feature_map), **close)
    squares = feature_squares(given, S[:, 0], feature_map, "float64")
    np.testing.assert_allclose(squares, definitions.feature_squares(X, S[:, 0], feature_map), **close)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("scaling", SCALINGS)
def test_scaled_rows_are_their_definition(scaling: str | None, storage: str, dtype: str) -> None:
    X = scalable(np.round(8 * holey_rows(N, D_IN)) / 8, scaling)
    found = scale_rows(stored(X, storage), scaler(scaling, D_IN), dtype)
    assert found.dtype == dtype
    expected = definitions.scale_rows(X, scaler(scaling, D_IN))
    np.testing.assert_allclose(definitions.rows_of(found), expected, rtol=np.finfo(dtype).eps * 2, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 127, 128, 5_000, 40_000_000])
def test_a_row_tile_is_the_largest_below_its_limit(m: int, dtype: str) -> None:
    feature_map = weighted_map(FAMILIES["coordinates"], 1, 3, dtype)
    projection = type("Wide", (), {"n_frequencies": m, "n_columns": 3})()
    wide = type(feature_map)("cos", projection, np.ones(1))
    assert row_tile(wide, dtype) == definitions.row_tile(wide, dtype)
