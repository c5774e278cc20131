"""Spherical harmonics: their enumeration, their orthonormality, SciPy's own, the addition theorem, kernels, blocks."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import special

from dkl.features.families import Coordinates, FiniteFamily, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.harmonic_projection import HarmonicProjection
from dkl.features.harmonics import SphericalHarmonics, dimension, harmonic_values, multi_indices, zonal
from dkl.kernels.maps import map_rows
from dkl.testing.family_checks import check_family


def sphere(n: int, d: int, seed: int = 0) -> np.ndarray:
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def quadrature(d: int, degree: int) -> tuple[np.ndarray, np.ndarray]:
    """Points on the sphere and weights that integrate polynomials up to `degree` exactly, for the probability measure.

    Equal steps of the azimuth, and the Gauss rule of each polar angle's own weight.
    """
    angles = 2 * np.pi * np.arange(degree + 1) / (degree + 1)
    points, weights = np.stack([np.cos(angles), np.sin(angles)], axis=1), np.full(degree + 1, 1 / (degree + 1))
    for k in range(2, d):
        t, w = special.roots_gegenbauer(degree // 2 + 1, (k - 1) / 2)
        inner = (points[:, None, :] * np.sqrt(1 - t**2)[None, :, None]).reshape(-1, k)
        points = np.concatenate([inner, np.tile(t, len(points))[:, None]], axis=1)
        weights = np.outer(weights, w / w.sum()).ravel()
    return points, weights


@pytest.mark.parametrize("d", [2, 3, 4, 7])
@pytest.mark.parametrize("degree", [0, 1, 2, 5])
def test_there_are_as_many_harmonics_as_polynomials_less_those_two_degrees_below(d: int, degree: int) -> None:
    def monomials(power: int) -> int:
        return sum(1 for _ in itertools.combinations_with_replacement(range(d), power)) if power >= 0 else 0

    assert dimension(d, degree) == monomials(degree) - monomials(degree - 2)
    index = multi_indices(d, degree)
    assert index.shape == (dimension(d, degree), d - 1)
    every = {
        entry
        for entry in itertools.product(range(-degree, degree + 1), repeat=d - 1)
        if abs(entry[-1]) == degree and all(abs(a) <= b for a, b in itertools.pairwise(entry))
    }
    assert {tuple(row) for row in index.tolist()} == every


@pytest.mark.parametrize(("d", "degree"), [(2, 4), (3, 9), (6, 4), (90, 2)])
def test_the_first_harmonics_of_a_degree_need_not_the_others(d: int, degree: int) -> None:
    np.testing.assert_array_equal(multi_indices(d, degree, 7), multi_indices(d, degree)[:7])


def test_the_first_thousand_end_in_degree_31_of_3_and_degree_5_of_10_columns() -> None:
    for d, last in ((3, 31), (10, 5)):
        pool = SphericalHarmonics().pool(d)
        assert isinstance(pool.projection, HarmonicProjection)
        assert pool.n_features == 1_000
        assert pool.projection.degrees.max() == last
        assert (np.diff(pool.projection.degrees) >= 0).all()


@pytest.mark.parametrize(("d", "degree"), [(2, 40), (3, 30), (4, 8), (5, 5), (6, 3)])
def test_harmonics_are_orthonormal_for_the_probability_measure(d: int, degree: int) -> None:
    """By a quadrature that is exact for their products."""
    points, weights = quadrature(d, 2 * degree)
    mapped = map_rows(points, SphericalHarmonics(degree).pool(d), "float64")
    gram = mapped.T @ (mapped * weights[:, None])
    np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-12)


@pytest.mark.parametrize(("d", "degrees"), [(2, 60), (3, 31), (4, 16), (10, 6), (50, 3), (300, 2)])
def test_the_addition_theorem_holds(d: int, degrees: int) -> None:
    """sum_m Y(x) Y(y) = N P_l(x.y), relative to N: also proves them orthonormal where no quadrature can reach."""
    X = np.concatenate([sphere(12, d), np.eye(d)[[0, 1, d - 1]], -np.eye(d)[[d - 1]]])
    projection = SphericalHarmonics(degrees - 1).pool(d).projection
    assert isinstance(projection, HarmonicProjection)
    mapped = map_rows(X, FeatureMap("harmonics", projection, np.ones(projection.n_frequencies)), "float64")
    cosines = np.clip(X @ X.T, -1, 1)
    for degree, values in enumerate(zonal(d, degrees, cosines)):
        part = mapped[:, projection.degrees == degree]
        np.testing.assert_allclose(part @ part.T / dimension(d, degree), values, atol=3e-14 * (1 + degree))
        weight = (d - 2) / 2
        expected = (
            special.eval_chebyt(degree, cosines)
            if d == 2
            else special.eval_gegenbauer(degree, weight, cosines) / special.eval_gegenbauer(degree, weight, 1.0)
        )
        np.testing.assert_allclose(values, expected, atol=1e-12)


def complex_harmonic(degree: int, order: int, theta: np.ndarray, azimuth: np.ndarray) -> np.ndarray:
    """SciPy's; before 1.15 it had another name and another order of the arguments."""
    if hasattr(special, "sph_harm_y"):
        return special.sph_harm_y(degree, order, theta, azimuth)
    return special.sph_harm(order, degree, azimuth, theta)


def test_in_three_dimensions_they_are_the_harmonics_of_scipy() -> None:
    """sqrt(4 pi) times SciPy's for the probability measure; real ones without the Condon-Shortley sign."""
    X = np.concatenate([sphere(60, 3), np.eye(3), -np.eye(3)])
    theta, azimuth = np.arccos(np.clip(X[:, 2], -1, 1)), np.arctan2(X[:, 1], X[:, 0])
    pool = SphericalHarmonics(30).pool(3)
    mapped = map_rows(X, pool, "float64")
    for j, (order, degree) in enumerate(pool.projection.dense().astype(int)):
        complex_values = np.sqrt(4 * np.pi) * complex_harmonic(degree, abs(order), theta, azimuth)
        sign = math.sqrt(2) * (-1.0) ** order if order else 1.0
        expected = sign * (complex_values.imag if order < 0 else complex_values.real)
        np.testing.assert_allclose(mapped[:, j], expected, rtol=0, atol=1e-12, err_msg=f"{order}, {degree}")


@pytest.mark.parametrize(("d", "family"), [(3, SphericalHarmonics(30)), (10, SphericalHarmonics())])
def test_no_digits_are_lost_up_to_degree_30_and_among_the_first_thousand(d: int, family: SphericalHarmonics) -> None:
    X = np.concatenate([sphere(200, d), np.eye(d), -np.eye(d), np.full((1, d), d**-0.5)])
    X = np.concatenate([X, X * (1 + 1e-4)])
    pool = family.pool(d)
    expected = harmonic_values(X / np.linalg.norm(X, axis=1, keepdims=True), pool.projection.dense())
    size = np.sqrt(dimension(d, int(np.abs(pool.projection.dense()[-1, -1]))))
    np.testing.assert_allclose(map_rows(X, pool, "float64"), expected, rtol=0, atol=1e-13 * size)
    np.testing.assert_allclose(map_rows(X, pool, "float32"), expected, rtol=1e-6, atol=2e-7)


@pytest.mark.parametrize("d", [2, 3, 6])
@pytest.mark.parametrize(
    "family",
    [
        SphericalHarmonics(6),
        SphericalHarmonics(6, "degree", project=True),
        SphericalHarmonics(5, "pair"),
        SphericalHarmonics(n_harmonics=60),
        SphericalHarmonics(n_harmonics=60, blocks="pair"),
        SphericalHarmonics(n_harmonics=60, blocks="degree"),
    ],
    ids=str,
)
def test_it_is_a_family(family: SphericalHarmonics, d: int) -> None:
    check_family(family, n_columns=d)
    assert isinstance(family, FiniteFamily)
    assert isinstance(Coordinates(), FiniteFamily)
    assert not isinstance(Gaussian(), FiniteFamily)
    assert family.size(d) == family.pool(d).n_features == len(family.pool(d).groups)


def test_blocks_are_single_harmonics_conjugate_pairs_or_whole_degrees() -> None:
    pools = {blocks: SphericalHarmonics(4, blocks).pool(4) for blocks in ("single", "pair", "degree")}
    sizes = {blocks: np.bincount(pool.groups) for blocks, pool in pools.items()}
    assert sizes["single"].tolist() == [1] * 55
    assert sizes["degree"].tolist() == [dimension(4, degree) for degree in range(5)]
    index = pools["pair"].projection.dense()
    for group in range(len(sizes["pair"])):
        members = index[pools["pair"].groups == group].tolist()
        conjugates = [[-first, *rest] for first, *rest in members]
        assert sorted(members) == sorted(conjugates)
        assert len(members) == (1 if members[0][0] == 0 else 2)


def test_a_truncated_family_keeps_whole_blocks() -> None:
    for room in range(1, 40):
        pairs = SphericalHarmonics(n_harmonics=room, blocks="pair").pool(3)
        index = pairs.projection.dense()
        assert {tuple(row) for row in index.tolist()} == {(-first, second) for first, second in index.tolist()}
        assert room - 1 <= pairs.n_features <= room
        degrees = SphericalHarmonics(n_harmonics=room, blocks="degree").pool(3)
        assert degrees.n_features == math.isqrt(room) ** 2
        assert SphericalHarmonics(n_harmonics=room).pool(3).n_features == room
    assert SphericalHarmonics(2, n_harmonics=100).pool(3).n_features == 9


def test_kernels_of_whole_degrees_are_rotation_invariant_and_single_ones_are_not() -> None:
    """Against theorem 2.2 of the paper, which takes any non-negative weights to be."""
    X = sphere(20, 4)
    rotation = np.linalg.qr(np.random.default_rng(1).standard_normal((4, 4)))[0]
    pool = SphericalHarmonics(5, "degree").pool(4)
    weights = np.random.default_rng(2).random(6)[pool.groups]

    def kernel(rows: np.ndarray, feature_map: FeatureMap) -> np.ndarray:
        mapped = map_rows(rows, feature_map, "float64")
        return mapped @ mapped.T

    whole = pool.take(np.arange(pool.n_features), np.sqrt(weights))
    np.testing.assert_allclose(kernel(X @ rotation, whole), kernel(X, whole), atol=1e-11)
    one = pool.take(np.array([40]))
    assert np.abs(kernel(X @ rotation, one) - kernel(X, one)).max() > 0.5


def test_maps_of_harmonics_are_taken_and_joined() -> None:
    X = sphere(9, 5)
    pool = SphericalHarmonics(4).pool(5)
    whole = map_rows(X, pool, "float64")
    chosen = np.array([80, 3, 3, 0, 54])
    part = pool.take(chosen)
    np.testing.assert_allclose(map_rows(X, part, "float64"), whole[:, chosen], rtol=1e-13)
    both = part.joined(pool.take(np.array([7])))
    np.testing.assert_allclose(map_rows(X, both, "float64"), whole[:, [*chosen, 7]], rtol=1e-13)
    with pytest.raises(ValueError, match="the same `blocks` and `project`"):
        part.joined(SphericalHarmonics(4, project=True).pool(5))
    with pytest.raises(ValueError, match="cannot be joined"):
        part.joined(Coordinates().pool(5))


def test_high_dimensions_cost_what_their_degree_costs() -> None:
    """A harmonic of degree l is made of at most l factors that are no constants, whatever d is."""
    terms = SphericalHarmonics(n_harmonics=1_500).pool(784).projection.terms  # type: ignore[attr-defined]
    assert terms.n_nodes <= 1_500 + 784
    assert len(terms.starts) - 1 <= 2


REFUSED: dict[str, tuple[Any, str]] = {
    "degree": (lambda: SphericalHarmonics(-1).validate(), "max_degree is -1; it must be a whole number of at least 0"),
    "part": (lambda: SphericalHarmonics(2.5).validate(), "max_degree is 2.5"),  # type: ignore[arg-type]
    "none": (
        lambda: SphericalHarmonics(n_harmonics=0).pool(3),
        "n_harmonics is 0; it must be a whole number",
    ),
    "blocks": (lambda: SphericalHarmonics(3, "order").pool(3), "blocks is 'order'; it must be one of ('single', "),  # type: ignore[arg-type]
    "project": (lambda: SphericalHarmonics(3, project="yes").validate(), "project is 'yes'"),  # type: ignore[arg-type]
    "one column": (lambda: SphericalHarmonics(3).pool(1), "need rows of at least 2 columns; these have 1"),
    "too many": (lambda: SphericalHarmonics(9).pool(200), "harmonics in 200 dimensions, more than can be enumerated"),
    "draws": (lambda: SphericalHarmonics(3).draw(0, 3, 0), "n_frequencies is 0"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_has_no_meaning_is_refused(case: str) -> None:
    call, message = REFUSED[case]
    with pytest.raises(ValueError) as caught:
        call()
    assert message in str(caught.value)
