"""What of the GPU can be held to account without one, and the same promises with one."""

from __future__ import annotations

from itertools import cycle, product
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest

from dkl.kernels import device, generic
from dkl.kernels.cuda_source import kernel_source
from dkl.kernels.maps import map_rows
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.protocols.block import Block
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
from tests.kernels.cuda_sources import compiled, host_kernel, played

NO_GPU = device.why_no_gpu()


# half a second each: the quick run takes each kernel once
PRECISIONS = ["float32", pytest.param("float64", marks=pytest.mark.slow)]


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_kernels_of_features_compile(dtype: str, tmp_path: Path) -> None:
    for name in ("waves", "steps", "picked_products", "histograms", "scale", "distances"):
        assert name in compiled(kernel_source(name, dtype), tmp_path)
    for name in ("scores", "weighted_rows"):
        assert name in compiled(kernel_source(name, dtype, 2), tmp_path)


@pytest.mark.parametrize("name", ["packed", "line_losses", "calibration"])
def test_the_kernels_of_one_precision_compile(name: str, tmp_path: Path) -> None:
    assert name in compiled(kernel_source(name), tmp_path)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_kernel_compiles(dtype: str, tmp_path: Path) -> None:
    for n_columns in (0, 6):
        assert "pair_sums" in compiled(kernel_source("pair_sums", dtype, 2, n_columns), tmp_path)


@played
@pytest.mark.parametrize("d", [6, 8, 40])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_kernel_makes_the_sums_of_the_cpu(dtype: str, d: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows of few columns, an even number of them or one that is read at once, and of many."""
    sources: list[str] = []

    def played_kernel(xp: Any, source: str, name: str) -> Any:
        sources.append(source)
        return host_kernel(source, name)

    monkeypatch.setattr(generic, "compiled", played_kernel)
    X, S = holey_rows(300, d), np.random.default_rng(1).standard_normal((300, 11))
    feature_map = weighted_map(FAMILIES["gaussian"], 150, d, dtype, "standard")
    tolerance = 10 * PRECISION[dtype] * np.sqrt(300)
    expected = feature_sums(X, S, feature_map, dtype)
    np.testing.assert_allclose(device.feature_sums(X, S, feature_map, dtype), expected, rtol=0, atol=tolerance)
    assert f"#define COLUMNS {d if d < 32 else 0}" in sources[0]


@pytest.mark.parametrize(
    ("family", "scaling"),
    sorted({*zip(FAMILIES, cycle(SCALINGS)), *product(["gaussian", "structured"], SCALINGS)}, key=str),
)
def test_the_generic_path_mixes_no_arrays_and_equals_the_kernels(family: str, scaling: str | None) -> None:
    """array-api-strict refuses whatever is not of its own kind, as a GPU would."""
    xp = array_api_strict
    X = scalable(np.round(8 * holey_rows(40, 6)) / 8, scaling)
    feature_map = weighted_map(FAMILIES[family], 20, 6, "float64", scaling)
    parts = generic.mapped(xp, xp.asarray(X), feature_map, xp.float64)
    found = np.hstack([np.asarray(part) for part in parts])
    np.testing.assert_allclose(found, map_rows(X, feature_map, "float64"), rtol=1e-12, atol=1e-12)


@pytest.mark.skipif(NO_GPU is None, reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(RuntimeError, match=r"device='gpu', but CuPy .*; use device='auto' or 'cpu'"):
        device.resolve_device("gpu")
    assert device.resolve_device("auto") == "cpu"


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device is 'tpu'; it must be 'auto', 'cpu', 'gpu' or 'mixed'"):
        device.resolve_device("tpu")


def test_the_cpu_leaves_blocks_where_they_are() -> None:
    block = Block(0, np.ones((2, 3)), None, None, np.arange(2))
    assert device.place(block, "cpu") is block
    assert device.array_module(block.X) is np


def test_reduced_precision_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "why_no_gpu", lambda: None)
    monkeypatch.setenv("CUPY_TF32", "1")
    with pytest.warns(RuntimeWarning, match="CUPY_TF32=1"):
        assert device.resolve_device("auto") == "gpu"


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_gives_the_sums_of_the_cpu(family: str, storage: str, dtype: str) -> None:
    X, S = holey_rows(700, 6), np.random.default_rng(1).standard_normal((700, 11))
    feature_map = weighted_map(FAMILIES[family], 300, 6, dtype, "standard")
    placed: Any = device.place(Block(0, stored(X, storage), None, None, np.arange(700)), "gpu").X
    tolerance = 10 * PRECISION[dtype] * np.abs(map_rows(X, feature_map, "float64")).max() ** 2 * np.sqrt(700)
    calls = [
        lambda rows, dtype: feature_sums(rows, S, feature_map, dtype),
        lambda rows, dtype: feature_squares(rows, S[:, 0], feature_map, dtype),
        lambda rows, dtype: device.on_host(map_rows(rows, feature_map, dtype)),
    ]
    for call in calls:
        # angles of hundreds of radians are rounded by more, on either device
        exact = call(X, "float64")
        own_error = np.abs(call(X, dtype) - exact).max()
        np.testing.assert_allclose(call(placed, dtype), exact, rtol=0, atol=max(tolerance, 1.5 * own_error))
