"""A density is the spectrum of its kernel, and continues off the frequencies as equation (14) says."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.features.families import Gaussian, Laplacian, Matern
from dkl.methods.density import spectral
from dkl.methods.density.spectral import shift_kernel, steepest_direction
from tests.definitions import density as definitions


def drawn(n: int, d: int = 3) -> np.ndarray:
    return np.random.default_rng(n).standard_normal((n, d))


def test_the_learned_kernel_is_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    shifts, W, u = drawn(11), drawn(7), 1.0 + np.random.default_rng(0).random((2, 7))
    expected = [definitions.shift_kernel(shifts, W, one) for one in u]
    for tile in (1 << 26, 1 << 8):
        monkeypatch.setattr(spectral, "_TILE_BYTES", tile)
        np.testing.assert_allclose(shift_kernel(shifts, W, u), expected, rtol=0, atol=1e-14)
        np.testing.assert_allclose(shift_kernel(shifts, W, u[0]), expected[0], rtol=0, atol=1e-14)
    np.testing.assert_allclose(shift_kernel(np.zeros((1, 3)), W, u)[:, 0], u.mean(axis=1), rtol=1e-15)
    assert shift_kernel(np.zeros((0, 3)), W, u).shape == (2, 0)


@pytest.mark.parametrize("family", [Gaussian(0.8), Laplacian(1.2), Matern(1.5, 0.9)])
def test_a_density_of_one_is_the_reference_kernel(family: Gaussian) -> None:
    """Of every Fourier family: the mean of 40,000 cosines is within five standard errors of the closed form."""
    shifts = drawn(20)
    W = family.draw(40_000, 3, seed=0, dtype=np.float64).projection.dense()
    np.testing.assert_allclose(shift_kernel(shifts, W), family.kernel(shifts, np.zeros((1, 3)))[:, 0], atol=0.018)


def test_a_reweighted_reference_is_another_kernel() -> None:
    """u = rho / rho-hat of two Gaussians turns the one kernel into the other."""
    W = drawn(60_000, 1)
    u = 0.7 * np.exp(-0.5 * (0.7**2 - 1.0) * W[:, 0] ** 2)
    u *= 1.0 / u.mean()
    shifts = np.linspace(0.0, 3.0, 7)[:, None]
    narrower = Gaussian(0.7).kernel(shifts, np.zeros((1, 1)))[:, 0]
    np.testing.assert_allclose(shift_kernel(shifts, W, u), narrower, atol=0.03)


def test_no_direction_is_steeper_than_the_steepest() -> None:
    W, u = drawn(30), 1.0 + 5.0 * np.random.default_rng(0).random(30)
    directions = np.concatenate([steepest_direction(W, u)[None], drawn(200)])
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    drops = u.mean() - shift_kernel(1e-3 * directions, W, u)
    assert drops[0] >= drops[1:].max()
