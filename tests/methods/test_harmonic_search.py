"""Chains on multi-indices: their law is the one that was asked for, and they find what enumeration finds."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.data.coerce import as_dataset
from dkl.features.harmonics import SphericalHarmonics, multi_indices, random_indices
from dkl.kernels.sums import feature_sums
from dkl.methods.frequency_search.harmonic_search import HarmonicSpace, walk
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.planning import plan


def test_the_law_of_a_chain_is_proportional_to_exp_beta_v() -> None:
    """Against the softmax over all harmonics up to degree 3 in four dimensions, by simulation of 40,000 chains."""
    pool = SphericalHarmonics(3).pool(4).projection.dense()
    heights = np.random.default_rng(0).standard_normal(len(pool))
    numbers = np.full((7, 7, 7), -1)
    numbers[tuple(pool.T.astype(int) + 3)] = np.arange(len(pool))

    def number(index: np.ndarray) -> np.ndarray:
        return numbers[tuple(index.T.astype(int) + 3)]

    generator = np.random.default_rng(1)
    start = random_indices(4, generator.integers(0, 4, 40_000), generator)
    last, best, height = walk(lambda index: heights[number(index)], start, 3, np.full(120, 1.3), generator)
    expected = np.exp(1.3 * heights)
    expected *= len(last) / expected.sum()
    counts = np.bincount(number(last), minlength=len(pool))
    assert np.max(np.abs(counts - expected) / np.sqrt(expected)) < 5.0
    np.testing.assert_array_equal(heights[number(best)], height)


def test_chains_find_what_enumeration_finds() -> None:
    """The best of the 1,210 harmonics up to degree 6 in six columns, from 3,000 looks at fewer of them."""
    X = np.random.default_rng(0).standard_normal((1_000, 6))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    pool = SphericalHarmonics(6).pool(6)
    S = np.sign(X[:, :1] * X[:, 1:2] + 0.3 * X[:, 4:5])
    everything = np.square(feature_sums(X, S, pool)[0, :, 0])
    space = HarmonicSpace(pool, 6, chains=100, steps=40)
    points, potentials = space.search(X, S, 5, seed=0)
    assert (np.diff(potentials) <= 0).all()
    np.testing.assert_array_equal(points[0], pool.projection.dense()[everything.argmax()])
    sums = feature_sums(X, S, space.feature_map(points))
    np.testing.assert_allclose(potentials, np.square(sums[0, :, 0]), rtol=1e-4)
    assert len(np.unique(points, axis=0)) == len(points) == 5


@pytest.mark.parametrize("d", [2, 3, 5])
def test_random_harmonics_of_a_degree_are_uniform(d: int) -> None:
    index = random_indices(d, np.full(30_000, 3), np.random.default_rng(0))
    every, counts = np.unique(index, axis=0, return_counts=True)
    np.testing.assert_array_equal(every, np.unique(multi_indices(d, 3), axis=0))
    expected = 30_000 / len(every)
    assert np.max(np.abs(counts - expected) / np.sqrt(expected)) < 5.0


def test_more_harmonics_than_can_be_enumerated_are_drawn_and_searched() -> None:
    family = SphericalHarmonics(8)
    assert family.size(20) > 2e6
    assert not family.is_enumerable(20)
    X = np.random.default_rng(0).standard_normal((50, 20))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = np.where(X[:, 0] * X[:, 1] > 0, 1, 0)
    drawn = RandomFeatures(family, n_features=40, random_state=0).fit(X)
    assert drawn.transform(X).shape == (50, 40)
    learner = MarginFeatures(family, n_features=3, rounds=1, chains=6, steps=3, random_state=0)
    assert plan(learner, as_dataset(X, y)).n_passes > 1
    assert 1 <= learner.fit(X, y).feature_map_.n_features <= 3
