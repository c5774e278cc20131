"""The compiled kernels by themselves: accuracy, bits, and the benchmark that times them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from dkl.bench.kernels import kernel_ratios
from dkl.features.scaling import Scaler
from dkl.kernels.hadamard import LANES, signed_transform
from dkl.kernels.maps import design_tiles, map_rows
from dkl.kernels.scale import scale_dense
from dkl.kernels.sincos import cos_sin_rows
from tests.kernels.cases import DTYPES, FAMILIES, STORAGES, assert_same_rows, holey_rows, stored, weighted_map

ERROR = {"float32": 1e-6, "float64": 3e-15}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, -7.0, 1000.0])
def test_cosine_and_sine_are_accurate(offset: float, dtype: str) -> None:
    z = (offset + np.linspace(-1.5, 1.5, 400_001)).astype(dtype)
    c, s = np.empty_like(z), np.empty_like(z)
    cos_sin_rows(z, c, s)
    fraction = z.astype(np.longdouble) - np.round(z.astype(np.longdouble))
    assert np.abs(c - np.cos(2 * np.pi * fraction)).max() < ERROR[dtype]
    assert np.abs(s - np.sin(2 * np.pi * fraction)).max() < ERROR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_no_angle_gives_a_wave_outside_its_range(dtype: str) -> None:
    z = np.array([np.inf, -np.inf, np.nan, 1e30, -1e30, 2.0**23, 2.0**52, 5e-324, -0.0, 0.5, -0.5] * 9, dtype)
    c, s = np.empty_like(z), np.empty_like(z)
    cos_sin_rows(z, c, s)
    assert (np.abs(c) <= 1 + ERROR[dtype]).all()
    assert (np.abs(s) <= 1 + ERROR[dtype]).all()


@pytest.mark.parametrize("length", [64, 128, 256, 512, 1024])
def test_a_signed_transform_is_a_product_with_signs_and_hadamard(length: int) -> None:
    rng = np.random.default_rng(0)
    rows, signs = rng.standard_normal((length, LANES)), rng.choice([-1.0, 1.0], length)
    hadamard = np.array([[1.0 - 2.0 * ((i & j).bit_count() % 2) for j in range(length)] for i in range(length)])
    expected = hadamard @ (signs[:, None] * rows)
    signed_transform(rows, signs)
    np.testing.assert_allclose(rows, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("m", [1, 17, 70, 300, 800])
def test_the_bits_of_a_row_do_not_depend_on_its_companions(m: int, storage: str, dtype: str) -> None:
    X = holey_rows(530, 100)
    for family in ("gaussian", "structured"):
        feature_map = weighted_map(FAMILIES[family], m, 100, dtype, "unit")
        by_blas = family == "gaussian" and storage == "dense"
        given = stored(X, storage)
        with threadpool_limits(1):
            together = map_rows(given, feature_map, dtype)
            for step in (1, 15, 16, 33, 513):
                for start in (0, 500):
                    rows: Any = slice(start, min(start + step, 530))
                    alone = map_rows(given[rows], feature_map, dtype)
                    assert_same_rows(alone, together[rows], atol=2e-5 if by_blas and dtype == "float32" else 0.0)


def test_the_benchmark_measures_every_promise() -> None:
    found = list(kernel_ratios(n_rows=512, n_frequencies=64, n_structured=4096, repeats=1))
    assert len(found) == 6
    assert all(ratio.value > 0 and ratio.seconds > 0 for ratio in found)
    assert found[-1].kept == (found[-1].value >= 12.0)


@pytest.mark.parametrize("kind", ["unit", "standard"])
@pytest.mark.parametrize("dtype", ["float16", ">f4", "float32", "float64", "uint8", "int64"])
def test_scaled_rows_are_their_definition_in_float64(kind: str, dtype: str) -> None:
    generator = np.random.default_rng(0)
    X = generator.integers(0, 100, (30, 4)).astype(dtype)
    center, scale = generator.standard_normal(4), generator.random(4) + 0.5
    scaler = Scaler(kind, center, scale, np.array([False, True, False, False]))
    shift, divisor = (center, scale) if kind == "standard" else (np.zeros(4), np.full(4, scale[0]))
    expected = (X.astype(np.float64) - shift) / divisor
    expected[:, 1] = X[:, 1]
    for laid_out in (X, np.asfortranarray(X), X[::2]):
        rows = expected[::2] if len(laid_out) < len(X) else expected
        found = scale_dense(laid_out, scaler, np.dtype("float64"), factor=0.5)
        np.testing.assert_allclose(found, 0.5 * rows, rtol=1e-14)
        assert found.flags.c_contiguous


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_tiles_of_the_design_matrix_are_mapped_rows_and_ones(family: str, storage: str) -> None:
    """More rows than a tile has: what is written over must not be seen again."""
    X = stored(holey_rows(1_100, 6), storage)
    feature_map = weighted_map(FAMILIES[family], 20, 6, "float32")
    for rows, phi in design_tiles(X, feature_map, "float32"):
        np.testing.assert_array_equal(phi[:, :-1], map_rows(X[rows], feature_map))
        assert np.all(phi[:, -1] == 1.0)
