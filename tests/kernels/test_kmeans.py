"""A round of k-means on a block is its definition, and its parts merge to the whole."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dkl.methods.landmarks import kmeans_sums as kmeans
from dkl.methods.landmarks.kmeans_sums import (
    Centers,
    cluster_record,
    cluster_sums,
    nearest_centers,
    square_distances,
    square_lengths,
)
from dkl.protocols.block import Block
from tests.definitions import blocks as definitions
from tests.kernels.cases import SCALINGS, STORAGES, holey_rows, scalable, scaler, stored

N, D, L, K = 40, 5, 7, 3


def block_of(storage: str, *, weighted: bool = True) -> Block:
    rng = np.random.default_rng(0)
    weight = rng.random(N) + 0.1 if weighted else None
    return Block(0, stored(holey_rows(N, D), storage), rng.integers(0, K, N), weight, np.arange(N))


def centers_of(codes: np.ndarray | None, scaling: str | None = None) -> Centers:
    return Centers(np.random.default_rng(1).standard_normal((L, D)), codes, scaler(scaling, D), K)


@pytest.mark.parametrize("storage", STORAGES)
def test_distances_are_their_definition_and_never_negative(storage: str) -> None:
    X = holey_rows(N, D)
    found = square_distances(stored(X, storage), X[:4])
    np.testing.assert_allclose(found, definitions.square_distances(X, X[:4]), atol=1e-13)
    assert (found >= 0.0).all()
    squares = square_lengths(stored(X, storage))
    np.testing.assert_allclose(squares, definitions.square_lengths(X), rtol=1e-14)
    np.testing.assert_array_equal(square_distances(stored(X, storage), X[:4], squares), found)


@pytest.mark.parametrize("codes", [None, np.array([0, 0, 0, 1, 1, 2, 2]), np.array([0, 0, 0, 1, 1, 1, 1])])
def test_rows_go_to_the_nearest_centre_that_they_may_go_to(codes: np.ndarray | None) -> None:
    X, labels = holey_rows(N, D), np.random.default_rng(0).integers(0, K, N)
    nearest, distances = nearest_centers(X, labels, centers_of(codes))
    expected, least = definitions.nearest_centers(X, labels, centers_of(codes))
    np.testing.assert_array_equal(nearest, expected)
    np.testing.assert_allclose(distances, least, atol=1e-13)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("by_class", [False, True])
def test_sums_of_a_round_are_their_definition(storage: str, scaling: str | None, by_class: bool) -> None:
    codes = np.array([0, 0, 0, 1, 1, 2, 2]) if by_class else None
    centers = replace(centers_of(codes, scaling), class_weight=np.array([1.0, 0.5, 2.0]))
    for weighted in (False, True):
        block = block_of(storage, weighted=weighted)
        block = replace(block, X=stored(scalable(holey_rows(N, D), scaling), storage))
        found = cluster_sums(block, {"centers": centers})
        dense = replace(block, X=definitions.rows_of(block.X))
        for name, expected in definitions.cluster_sums(dense, {"centers": centers}).items():
            np.testing.assert_allclose(found[name], expected, atol=1e-12)


def test_rows_and_weights_add_up_over_tiles_and_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    centers, block = centers_of(None), block_of("dense")
    whole = cluster_sums(block, {"centers": centers})
    monkeypatch.setattr(kmeans, "_TILE_ROWS", 16)
    monkeypatch.setattr(kmeans, "LARGEST_ACCUMULATOR", 8 * D * 3)
    cut = cluster_sums(block, {"centers": centers})
    assert [name for name in cut if name.startswith("points")] == ["points0", "points3", "points6"]
    assert {name: value.shape for name, value in cut.items()} == {
        name: accumulator.shape for name, accumulator in cluster_record(centers).accumulators.items()
    }
    joined = np.concatenate([cut[f"points{panel.start}"] for panel in centers.panels])
    np.testing.assert_allclose(joined, whole["points0"], rtol=1e-13)
    np.testing.assert_allclose(cut["mass"].sum(), block.weights.sum(), rtol=1e-14)
    repeated = Block(0, np.repeat(block.X, 2, axis=0), np.repeat(block.y, 2), None, np.arange(2 * N))
    twice = cluster_sums(repeated, {"centers": centers})
    doubled = cluster_sums(replace(block, weight=np.full(N, 2.0)), {"centers": centers})
    np.testing.assert_allclose(twice["points0"], doubled["points0"], rtol=1e-13)
