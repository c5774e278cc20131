"""Landmarks: where they lie, what is lost around each, and the map of the similarities, against definitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from dkl.features.families import Gaussian, Laplacian
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.methods.landmarks import driver as landmarks
from dkl.methods.landmarks.driver import (
    LandmarkDriver,
    LandmarkProblem,
    PlacementDriver,
    PlacementProblem,
    even_shares,
    landmark_angles,
    lloyd,
    moved_centers,
    similarity_map,
    spread_seeds,
)
from dkl.methods.landmarks.kmeans_sums import Centers, cluster_sums
from dkl.methods.posterior.weights import pseudo_posterior
from dkl.methods.potential_sums import PotentialProblem
from tests.definitions import selection as definition
from tests.kernels.cases import scaler
from tests.methods.play import Table, blocks_of, play

FAMILIES = [Gaussian(2.0), Gaussian(2.0, sampling="structured"), Gaussian(2.0, sampling="orthogonal"), Laplacian(3.0)]


def rows(n: int = 30, d: int = 4, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n, d)), np.concatenate([np.arange(classes), rng.integers(0, classes, n - classes)])


def placement(kind: Any, shares: list[int], n_rows: int, d: int, **given: Any) -> PlacementProblem:
    options = {"sample_rows": n_rows, "rounds": 5, "scaler": None, "class_weight": None, "seed": 0, **given}
    return PlacementProblem(kind, np.array(shares), n_rows, d, **options)


def test_shares_are_even_among_the_classes_that_have_rows() -> None:
    assert even_shares(10, np.array([5.0, 1.0, 1.0])).tolist() == [4, 3, 3]
    assert even_shares(10, np.array([5.0, 0.0, 1.0])).tolist() == [5, 0, 5]
    assert even_shares(1, np.ones(3)).tolist() == [1, 0, 0]


def test_random_landmarks_are_rows_with_their_own_labels_evenly_many_a_class() -> None:
    X, y = rows(200)
    problem = placement("random", [4, 3, 3], 200, 4, sample_rows=4, scaler=scaler("standard", 4))
    table = Table(blocks_of(X, y))
    state = play(PlacementDriver(), problem, table)
    assert table.passes == ["landmarks"]
    assert np.bincount(state.codes).tolist() == [4, 3, 3]
    assert problem.scaler is not None
    scaled = np.where(problem.scaler.passthrough, X, (X - problem.scaler.center) / problem.scaler.scale)
    for point, code in zip(state.points, state.codes, strict=True):
        (found,) = np.flatnonzero(np.abs(scaled - point).max(axis=1) < 1e-12)
        assert y[found] == code
    again = play(PlacementDriver(), problem, Table(blocks_of(X, y, rows=50)))
    np.testing.assert_array_equal(again.points, state.points)
    other = play(PlacementDriver(), replace(problem, seed=1), Table(blocks_of(X, y)))
    assert not np.array_equal(other.points, state.points)


@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_centroids_of_each_class_are_those_of_k_means_on_its_rows_alone(storage: str) -> None:
    X, y = rows(200)
    given = sparse.csr_array(X) if storage == "sparse" else X
    problem = placement("kmeans", [2, 2, 2], 200, 4)
    if storage == "sparse":
        block = replace(blocks_of(X, y, rows=200)[0], X=given)
        driver = PlacementDriver()
        state = driver.step(problem, driver.init(problem), [block])
    else:
        table = Table(blocks_of(X, y))
        state = play(PlacementDriver(), problem, table)
        assert table.passes == ["landmarks"]
    for code in range(3):
        own, points = X[y == code], state.points[state.codes == code]
        still = definition.lloyd(own, points, 1)
        inertia = [
            definition.spread_seeds(np.vstack([own, p]), np.arange(len(own), len(own) + 2)) for p in (points, still)
        ]
        assert inertia[0] <= (1.0 + 2e-4) * inertia[1]


def test_rounds_on_all_rows_go_on_from_a_sample_and_stop_when_they_gain_nothing() -> None:
    X, y = load_digits(return_X_y=True)
    problem = placement("kmeans", [6] * 10, len(X), 64, sample_rows=40, rounds=30)
    table = Table(blocks_of(X, y, rows=200))
    state = play(PlacementDriver(), problem, table)
    assert table.passes[0] == "landmarks"
    assert set(table.passes[1:]) == {"k-means"}
    assert len(state.inertia) == len(table.passes) - 1 < 30
    assert all(later <= earlier for earlier, later in zip(state.inertia, state.inertia[1:], strict=False))
    assert "changes little" in state.message
    best = sum(KMeans(6, n_init=3, random_state=0).fit(X[y == code]).inertia_ for code in range(10))
    assert state.inertia[-1] < 1.05 * best
    cut = play(PlacementDriver(), replace(problem, rounds=2), Table(blocks_of(X, y, rows=200)))
    assert cut.inertia == state.inertia[:2]
    assert "more rounds" in cut.message
    none = Table(blocks_of(X, y, rows=200))
    assert "in memory" in play(PlacementDriver(), replace(problem, rounds=0), none).message
    assert none.passes == ["landmarks"]


def test_joint_centroids_take_the_class_of_most_weight_there() -> None:
    rng = np.random.default_rng(0)
    places = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]])
    where = rng.integers(0, 3, 300)
    X, y = places[where] + rng.standard_normal((300, 2)), np.array([0, 1, 1])[where]
    y[:40] = 1 - y[:40]
    for sample_rows in (300, 60):
        problem = placement("kmeans-joint", [2, 1], 300, 2, sample_rows=sample_rows)
        state = play(PlacementDriver(), problem, Table(blocks_of(X, y)))
        order = [int(np.argmin(np.abs(state.points - place).sum(axis=1))) for place in places]
        assert state.codes[order].tolist() == [0, 1, 1]
        np.testing.assert_allclose(state.points[order], places, atol=0.5)
        heavy = replace(problem, class_weight=np.array([1000.0, 1.0]))
        assert play(PlacementDriver(), heavy, Table(blocks_of(X, y))).codes.tolist() == [0, 0, 0]


def test_a_weight_of_three_is_the_row_three_times_for_centroids() -> None:
    X, y = rows(120)
    weight = np.random.default_rng(3).integers(1, 4, 120).astype(float)
    centers = Centers(X[:6], np.array([0, 0, 1, 1, 2, 2]), None, 3)
    (block,) = blocks_of(X, y, weight, rows=120)
    many = np.repeat(np.arange(120), weight.astype(int))
    (repeated,) = blocks_of(X[many], y[many], rows=len(many))
    found, mass, rounds = lloyd(centers, block, 50)
    expected, masses, same = lloyd(centers, repeated, 50)
    assert rounds == same
    np.testing.assert_allclose(found.points, expected.points, atol=1e-12)
    np.testing.assert_allclose(mass, masses, atol=1e-12)


def test_rounds_are_their_definition_and_an_empty_centre_stays() -> None:
    X, y = rows(50)
    start = np.vstack([X[:3], [[50.0] * 4]])
    centers = Centers(start, None, None, 3)
    (block,) = blocks_of(X, y, rows=50)
    for _ in range(3):
        centers = moved_centers(centers, cluster_sums(block, {"centers": centers}))
    np.testing.assert_allclose(centers.points, definition.lloyd(X, start, 3), atol=1e-12)
    np.testing.assert_array_equal(centers.points[3], start[3])


def test_seeds_differ_and_are_spread_better_than_random_rows() -> None:
    X, _ = load_digits(return_X_y=True)
    X = X[:200]
    ones, rng = np.ones(200), np.random.default_rng(0)
    spread = [definition.spread_seeds(X, spread_seeds(X, ones, 10, seed)) for seed in range(5)]
    random = [definition.spread_seeds(X, rng.choice(200, 10, replace=False)) for _ in range(20)]
    assert max(spread) < min(random)
    assert len(set(spread_seeds(X, ones, 200, 0).tolist())) == 200
    few = np.repeat(X[:3], 10, axis=0)
    assert sorted(few[spread_seeds(few, np.ones(30), 20, 0)].tolist()) == sorted(X[:3].tolist())
    light = np.where(np.arange(200) < 5, 1.0, 0.0)
    assert set(spread_seeds(X, light, 5, 0).tolist()) <= set(range(5))


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("centroids", [False, True])
def test_losses_around_landmarks_are_their_definition(family: Any, centroids: bool) -> None:
    X, y = rows()
    at = np.array([4, 9, 0, 17, 5])
    points = X[at] + 0.3 if centroids else X[at]
    pool = family.draw(5 * 6, 4, 0, np.float64)
    problem = LandmarkProblem(PotentialProblem(pool, 3, dtype="float64"), points, y[at], centroids)
    table = Table(blocks_of(X, y))
    state = play(LandmarkDriver(), problem, table)
    assert table.passes == ["potentials"]
    W = pool.projection.dense().reshape(5, 6, 4)
    expected = [
        definition.landmark_losses(X, y, points[one], y[at[one]], W[one], None if centroids else int(at[one]))
        for one in range(5)
    ]
    np.testing.assert_allclose(state.losses, expected, rtol=1e-10)
    np.testing.assert_allclose(state.angles, definition.landmark_angles(points, W), rtol=1e-10, atol=1e-12)
    assert state.total == 30.0


def test_weights_of_rows_and_classes_are_repetitions() -> None:
    X, y = rows()
    weight = np.random.default_rng(1).integers(1, 4, 30).astype(float)
    pool = Gaussian(2.0).draw(10, 4, 0, np.float64)
    asked = PotentialProblem(pool, 3, dtype="float64", class_weight=np.array([1.0, 2.0, 1.0]))
    problem = LandmarkProblem(asked, X[:2], y[:2], False)
    many = np.repeat(np.arange(30), (weight * np.array([1, 2, 1])[y]).astype(int))
    weighted = play(LandmarkDriver(), problem, Table(blocks_of(X, y, weight)))
    bare = replace(problem, potentials=replace(asked, class_weight=None))
    repeated = play(LandmarkDriver(), bare, Table(blocks_of(X[many], y[many])))
    np.testing.assert_allclose(weighted.losses, repeated.losses, rtol=1e-10)
    assert weighted.total == repeated.total


def test_the_losses_of_all_rows_as_landmarks_average_to_the_loss_of_all_pairs() -> None:
    X, y = rows()
    W = Gaussian(2.0).draw(3, 4, 0, np.float64).projection.dense()
    pool = FeatureMap("cos-sin", type(Gaussian(2.0).draw(1, 4, 0).projection)(np.tile(W, (30, 1))), np.ones(90))
    problem = LandmarkProblem(PotentialProblem(pool, 3, dtype="float64"), X, y, False)
    state = play(LandmarkDriver(), problem, Table(blocks_of(X, y)))
    np.testing.assert_allclose(state.losses.mean(axis=0), definition.pair_losses(X, W, y), rtol=1e-12)


@pytest.mark.parametrize("tile", [1, 1 << 25])
def test_angles_do_not_depend_on_how_they_are_cut(tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, _ = rows()
    monkeypatch.setattr(landmarks, "_ANGLE_BYTES", tile)
    for family in FAMILIES[:2]:
        pool = family.draw(30 * 7, 4, 0, np.float64)
        expected = definition.landmark_angles(X, pool.projection.dense().reshape(30, 7, 4))
        np.testing.assert_allclose(landmark_angles(X, pool), expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("family", FAMILIES[:2], ids=repr)
@pytest.mark.parametrize("beta", [0.0, 1.0, 30.0])
def test_the_map_is_the_weighted_mean_of_cosines_around_landmarks(family: Any, beta: float) -> None:
    X, _ = rows()
    points = X[:5] + 0.1
    pool = family.draw(5 * 8, 4, 0, np.float64)
    weights = pseudo_posterior(np.random.default_rng(2).random((5, 8)), beta, 30.0)
    similar = similarity_map(pool, landmark_angles(points, pool), weights, "float64")
    expected = definition.similarities(X, points, pool.projection.dense().reshape(5, 8, 4), weights)
    np.testing.assert_allclose(map_rows(X, similar, "float64"), expected, atol=1e-12)
    assert similar.n_features == 5
    assert (len(similar.projection.weights) == 40) == (beta < 30.0)  # type: ignore[attr-defined]
    chosen = similar.take(np.array([3, 1]))
    np.testing.assert_allclose(map_rows(X, chosen, "float64"), expected[:, [3, 1]], atol=1e-12)
    both = map_rows(X, chosen.joined(similar), "float64")
    np.testing.assert_allclose(both, np.hstack([expected[:, [3, 1]], expected]), atol=1e-12)
