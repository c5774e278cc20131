"""The density's penalty is its definition, its conjugate a bound that a general solver meets."""

from __future__ import annotations

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.methods.density import penalty as module
from dkl.methods.density.meta_kernels import DeltaMetaKernel, MaternMetaKernel, PolynomialMetaKernel, RBFMetaKernel
from dkl.methods.density.penalty import DensityPenalty, density_bytes, meta_spectrum
from tests.definitions import density as definitions

GAMMA, LAM, D = 0.2, 1.7, 9
KERNELS: dict[str, tuple[Any, definitions.Values]] = {
    "rbf": (RBFMetaKernel(1.5), definitions.rbf(1.5)),
    "even matern": (MaternMetaKernel(0.8, even=True), definitions.even(definitions.matern_three_halves(0.8))),
    "delta": (DeltaMetaKernel(), definitions.delta),
}


def frequencies(n: int = D, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 2))


def made(name: str, **changed: Any) -> tuple[DensityPenalty, np.ndarray]:
    """A penalty, and H by its definition."""
    kernel, values = KERNELS[name]
    W = frequencies()
    penalty = DensityPenalty(meta_spectrum(W, kernel), **{"gamma": GAMMA, "Lam": LAM, **changed})
    return penalty, definitions.penalty_matrix(definitions.gram(values, W, W), penalty.gamma)


@pytest.mark.parametrize("name", KERNELS)
def test_the_penalty_is_its_definition(name: str) -> None:
    penalty, H = made(name, center=0.5)
    u = 1.0 + np.random.default_rng(1).random(D)
    np.testing.assert_allclose(penalty.matrix, H, rtol=0, atol=1e-14)
    np.testing.assert_allclose(penalty.times(u), H @ u, rtol=1e-12)
    np.testing.assert_allclose(penalty.value(u), definitions.penalty_value(H, u, LAM, 0.5), rtol=1e-12)
    slopes = [(penalty.value(u + 1e-5 * one) - penalty.value(u - 1e-5 * one)) / 2e-5 for one in np.eye(D)]
    np.testing.assert_allclose(penalty.gradient(u), slopes, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", KERNELS)
def test_densities_of_several_classes_are_added(name: str) -> None:
    penalty, _ = made(name)
    u = 1.0 + np.random.default_rng(1).random((3, D))
    np.testing.assert_allclose(penalty.value(u), sum(penalty.value(row) for row in u), rtol=1e-13)
    np.testing.assert_allclose(penalty.gradient(u), [penalty.gradient(row) for row in u], rtol=1e-12)
    found = penalty.minus_conjugate(u - 1.0)
    np.testing.assert_allclose(found.value, sum(penalty.minus_conjugate(row - 1.0).value for row in u), rtol=1e-13)
    assert found.density.shape == (3, D)


@pytest.mark.parametrize(("floor", "center"), [(1.0, 1.0), (0.0, 0.0), (0.1, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("name", KERNELS)
def test_the_conjugate_is_the_minimum_that_a_general_solver_finds(name: str, floor: float, center: float) -> None:
    penalty, H = made(name, floor=floor, center=center)
    p = np.random.default_rng(2).random(D) ** 3 * np.abs(LAM * H).max()
    value, u = definitions.minus_conjugate(H, p, LAM, floor, center)
    found = penalty.minus_conjugate(p)
    np.testing.assert_allclose(found.value, value, rtol=1e-12)
    np.testing.assert_allclose(found.density, u, rtol=0, atol=1e-6)
    assert (found.density >= floor).all()
    assert name == "delta" or (found.density < floor + 1e-6).any()
    assert found.value <= penalty.value(u) - u @ p + 1e-14 * abs(value)


@pytest.mark.parametrize("length_scale", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("gamma", [1e-4, 1e-2, 10.0])
def test_the_conjugate_is_tight_over_the_range_that_is_searched(gamma: float, length_scale: float) -> None:
    penalty = DensityPenalty(meta_spectrum(frequencies(120), "rbf", length_scale=length_scale), gamma, Lam=0.3)
    p = np.random.default_rng(3).random(120) ** 4
    found = penalty.minus_conjugate(p)
    at = penalty.value(found.density) - float(found.density @ p)
    assert found.value <= at + 1e-13 * abs(at)
    assert at - found.value <= 1e-11 * abs(at)


def test_without_the_floor_densities_fall_below_one() -> None:
    """The claim of section 4.1 that u >= 1 holds by itself is false: H^-1 has negative entries."""
    W, p = np.array([[0.0], [1.0]]), np.array([0.1, 0.0])
    penalty = DensityPenalty(meta_spectrum(W, "rbf"), gamma=1.0, Lam=1.0)
    assert replace(penalty, floor=0.0).minus_conjugate(p).density[1] < 0.8
    assert penalty.minus_conjugate(p).density[1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("floor", "center"), [(0.0, 0.0), (1.0, 1.0), (0.0, 1.0), (0.5, 0.0)])
def test_the_best_density_of_a_delta_is_the_minimum_of_each_frequency(floor: float, center: float) -> None:
    penalty, H = made("delta", floor=floor, center=center)
    lam, squares = 0.3, np.array([0.0, 1e-6, 0.1, 1.0, 7.0, 30.0, 0.3, 2.0, 0.02])
    found = penalty.eliminate(squares, lam)
    expected = [definitions.eliminate(s, lam, LAM * H[0, 0], floor, center) for s in squares]
    np.testing.assert_allclose(found.density, expected, rtol=0, atol=2e-6)
    ridge = sum(0.5 * lam * s / u for s, u in zip(squares[1:], found.density[1:], strict=True))
    np.testing.assert_allclose(found.value, ridge + penalty.value(found.density), rtol=1e-12)
    step = 1e-6 * np.eye(D)
    slopes = [
        (penalty.eliminate(squares + one, lam).value - penalty.eliminate(squares - one, lam).value) / 2e-6
        for one in step[2:]
    ]
    np.testing.assert_allclose(found.slope[2:], slopes, rtol=1e-6)


def test_fourier_kernel_learning_has_its_closed_form() -> None:
    penalty, _ = made("delta", floor=0.0, center=0.0)
    lam, squares, h = 0.3, np.random.default_rng(4).random(D), 1.0 / (1.0 + GAMMA * D) ** 2
    found = penalty.eliminate(squares, lam)
    np.testing.assert_allclose(found.density, np.cbrt(lam * squares / (2.0 * LAM * h)), rtol=1e-12)
    expected = 1.5 * (LAM * h) ** (1.0 / 3.0) * np.sum((lam * squares / 2.0) ** (2.0 / 3.0))
    assert found.value == pytest.approx(expected, rel=1e-12)


def test_frequencies_that_are_coupled_have_no_closed_form() -> None:
    with pytest.raises(ValueError, match="meta_kernel='delta'"):
        made("rbf")[0].eliminate(np.ones(D), 1.0)


@pytest.mark.parametrize("name", KERNELS)
def test_an_infinite_penalty_fixes_the_density_at_the_centre(name: str) -> None:
    penalty, _ = made(name, Lam=math.inf, center=2.0)
    p = np.arange(D, dtype=float)
    assert penalty.start().tolist() == [2.0] * D
    assert penalty.value(penalty.start()) == 0.0
    assert penalty.value(penalty.start() + 0.1) == math.inf
    assert not penalty.gradient(penalty.start()).any()
    found = penalty.minus_conjugate(p)
    assert (found.value, found.density.tolist()) == (-2.0 * p.sum(), [2.0] * D)


def test_the_limit_of_a_large_penalty_is_the_infinite_one() -> None:
    p = np.random.default_rng(5).random(D)
    large, infinite = (made("rbf", Lam=Lam)[0].minus_conjugate(p) for Lam in (1e10, math.inf))
    np.testing.assert_allclose(large.density, infinite.density, rtol=0, atol=1e-7)
    assert large.value == pytest.approx(infinite.value, rel=1e-7)


def test_one_decomposition_serves_every_other_parameter(monkeypatch: pytest.MonkeyPatch) -> None:
    spectrum = meta_spectrum(frequencies(), "rbf", length_scale=1.5)
    monkeypatch.setattr(module, "eigh", None)
    penalty = DensityPenalty(spectrum, gamma=1.0, Lam=1.0)
    for gamma, Lam in [(0.1, 1.0), (GAMMA, 3.0)]:
        changed = replace(penalty, gamma=gamma, Lam=Lam)
        expected = definitions.penalty_matrix(definitions.gram(KERNELS["rbf"][1], frequencies(), frequencies()), gamma)
        np.testing.assert_allclose(changed.matrix, expected, rtol=0, atol=1e-13)


def test_memory_stays_within_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    n, tile = 500, 1 << 17
    monkeypatch.setattr(module, "_TILE_BYTES", tile)
    W, p = frequencies(n), np.random.default_rng(6).random(n)
    for kernel in ("rbf", "matern"):
        tracemalloc.start()
        try:
            DensityPenalty(meta_spectrum(W, kernel), gamma=0.1, Lam=1.0).minus_conjugate(p)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak <= density_bytes(n) + 8 * tile


def test_too_many_frequencies_are_refused_before_any_work() -> None:
    W = np.zeros((40_000, 1))
    with pytest.raises(MemoryError, match=r"40,000 frequencies needs 35\.8 GiB .* at most 18,918 frequencies"):
        meta_spectrum(W, "rbf")
    assert meta_spectrum(W, "delta").n_frequencies == 40_000


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"gamma": 0.0}, "gamma is 0.0"),
        ({"gamma": math.inf}, "gamma is inf"),
        ({"Lam": 0.0}, "Lam is 0.0"),
        ({"Lam": math.nan}, "Lam is nan"),
        ({"Lam": "1"}, "Lam is '1'"),
        ({"floor": -0.1}, "density_floor is -0.1"),
        ({"center": math.inf}, "center is inf"),
        ({"Lam": math.inf, "center": 0.0, "floor": 0.0}, "Lam=inf"),
        ({"Lam": math.inf, "floor": 2.0}, "below density_floor=2"),
    ],
)
def test_a_parameter_out_of_range_is_named(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        made("rbf", **changed)


@pytest.mark.parametrize("W", [np.zeros(3), np.zeros((0, 2)), np.array([[np.nan]])])
def test_frequencies_must_be_a_finite_matrix(W: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least one frequency"):
        meta_spectrum(W, "rbf")


def test_a_meta_kernel_that_overflows_is_named() -> None:
    with pytest.raises(ValueError, match=r"PolynomialMetaKernel.* not finite"):
        meta_spectrum(np.array([[1e200], [1.0]]), PolynomialMetaKernel())
