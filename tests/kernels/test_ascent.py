"""Potentials of rows in memory and their gradients: definitions, derivatives, and bits that more cores do not move."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.kernels import device, threads
from dkl.kernels.sums import feature_sums
from dkl.methods.frequency_search import peak_search as ascent
from dkl.methods.frequency_search.peak_search import landscape
from tests.definitions import blocks as definitions
from tests.kernels.cases import DTYPES, PRECISION, STORAGES, holey_rows, stored

N, D_IN, CHAINS = 23, 5, 7
COLUMNS = np.array([[0, 1, 2], [3, -1, -1], [4, 0, -1], [2, 3, 1], [1, -1, 3], [0, 4, 2], [-1, -1, 3]])


def case(
    n: int = N, d: int = D_IN, chains: int = CHAINS, outputs: int = 2
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    return holey_rows(n, d), rng.standard_normal((n, outputs)) / np.sqrt(n), rng.standard_normal((chains, d))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("outputs", [1, 2, 5])
def test_potentials_and_gradients_are_their_definitions(outputs: int, storage: str, dtype: str) -> None:
    X, S, W = case(outputs=outputs)
    tolerance = 20 * PRECISION[dtype] * outputs
    v, gradient = landscape(stored(X, storage), S, dtype)(W)
    expected_v, expected_gradient = definitions.potentials_and_gradients(X, S, W)
    assert v.dtype == "float64"
    assert gradient.dtype == dtype
    np.testing.assert_allclose(v, expected_v, rtol=0, atol=tolerance)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        landscape(stored(X, storage), S, dtype).potentials(W), definitions.potentials(X, S, W), atol=tolerance
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
def test_frequencies_on_a_few_columns_are_their_definition(storage: str, dtype: str) -> None:
    X, S, W = case()
    W = W[:, :3]
    v, gradient = landscape(stored(X, storage), S, dtype, columns=COLUMNS)(W)
    expected_v, expected_gradient = definitions.potentials_and_gradients(X, S, W, columns=COLUMNS)
    np.testing.assert_allclose(v, expected_v, rtol=0, atol=20 * PRECISION[dtype])
    np.testing.assert_allclose(gradient, expected_gradient, rtol=0, atol=20 * PRECISION[dtype])
    assert not gradient[COLUMNS < 0].any()


@pytest.mark.parametrize("storage", STORAGES)
def test_few_columns_climb_as_the_same_frequencies_written_out(storage: str) -> None:
    X, S, W = case(n=3_000)
    columns = np.array([[0, 1], [3, -1], [4, 0]])
    wide = np.zeros((3, D_IN))
    for j, row in enumerate(columns):
        wide[j, row[row >= 0]] = W[j, :2][row >= 0]
    v, gradient = landscape(stored(X, storage), S, "float64", columns=columns)(W[:3, :2])
    wide_v, wide_gradient = landscape(stored(X, storage), S, "float64")(wide)
    np.testing.assert_allclose(v, wide_v, rtol=1e-11)
    for j, row in enumerate(columns):
        np.testing.assert_allclose(gradient[j, row >= 0], wide_gradient[j, row[row >= 0]], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("storage", STORAGES)
def test_the_gradient_is_the_derivative_of_the_potential(storage: str) -> None:
    X, S, W = case(n=2_500)
    step, (_, gradient) = 1e-6, landscape(stored(X, storage), S, "float64")(W)
    direction = np.random.default_rng(9).standard_normal(W.shape)
    ends = [landscape(stored(X, storage), S, "float64").potentials(W + sign * step * direction) for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(np.sum(gradient * direction, axis=1), expected, rtol=1e-5, atol=1e-7)


def test_potentials_follow_from_the_block_sums() -> None:
    X, S, W = case(n=4_000, outputs=3)
    feature_map = FeatureMap("cos-sin", DenseProjection(W), np.ones(len(W)))
    C, Q = feature_sums(X, S, feature_map, "float64")
    # U = sum s cos(w.x) x and V = sum s sin(w.x) x
    U, V = (np.einsum("ij,ik,id->jkd", wave(X @ W.T), S, X) for wave in (np.cos, np.sin))
    v, gradient = landscape(X, S, "float64")(W)
    np.testing.assert_allclose(v, np.sum(C**2 + Q**2, axis=1), rtol=1e-11)
    expected = 2 * np.sum(Q[:, :, None] * U - C[:, :, None] * V, axis=1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_and_chains_are_cut_without_changing_the_sums(storage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, S, W = case(n=5_000, chains=37)
    whole = landscape(stored(X, storage), S, "float64")(W)
    monkeypatch.setattr(ascent, "_WAVE_BYTES", 1 << 20)
    monkeypatch.setattr(ascent, "_GRADIENT_BYTES", 1)
    cut = landscape(stored(X, storage), S, "float64")(W)
    np.testing.assert_allclose(cut[0], whole[0], rtol=1e-11)
    np.testing.assert_allclose(cut[1], whole[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("columns", [None, np.array([[0, 1], [2, -1], [3, 4]] * 20)])
def test_bits_do_not_depend_on_the_number_of_cores(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, S, W = case(n=6_000, d=40, chains=60)
    W = W if columns is None else W[:, :2]
    found = []
    for cores in (1, 2, 7):
        monkeypatch.setattr(threads, "usable_cores", lambda cores=cores: cores)
        found.append(landscape(X, S, columns=columns)(W))
    for v, gradient in found[1:]:
        assert v.tobytes() == found[0][0].tobytes()
        assert gradient.tobytes() == found[0][1].tobytes()


def test_a_landscape_is_looked_at_again_without_harm() -> None:
    X, S, W = case(n=3_000, chains=20)
    look = landscape(X, S)
    first = look(W)
    look(W[:5] + 1)
    again = look(W)
    np.testing.assert_array_equal(first[0], again[0])
    np.testing.assert_array_equal(first[1], again[1])


def test_weights_of_another_number_of_rows_are_refused() -> None:
    X, S, W = case()
    with pytest.raises(ValueError, match="the weight columns S have shape"):
        landscape(X, S[:-1])(W)


@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_the_arithmetic_of_a_gpu_is_the_same(columns: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On NumPy arrays where there is no GPU: its operations are those of CuPy."""
    X, S, W = case(n=200)
    W = W if columns is None else W[:, :3]
    place: Any = np.asarray
    if device.why_no_gpu() is None:
        import cupy

        place = cupy.asarray
    v, gradient = device.DeviceLandscape(place(X), S, np.dtype("float64"), columns)(place(W))
    expected = landscape(X, S, "float64", columns=columns)(W)
    np.testing.assert_allclose(device.on_host(v), expected[0], rtol=1e-11)
    np.testing.assert_allclose(device.on_host(gradient), expected[1], rtol=1e-9, atol=1e-12)
