"""Sparse frequencies: their law, their kernel in closed form, and what they refuse."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from dkl.features.families import Cauchy, Gaussian, Laplacian, Matern
from dkl.features.sparse_frequencies import SparseFrequencies
from dkl.methods.nystrom.learner import NystromFeatures
from dkl.testing import check_family


@pytest.mark.parametrize(
    "family", [Gaussian(1.5), Laplacian(1.5), Cauchy(1.5), Gaussian(1.5, pairing="phase")], ids=str
)
def test_a_sparse_family_keeps_what_a_family_promises(family: Gaussian) -> None:
    check_family(SparseFrequencies(family, share=0.4))
    check_family(SparseFrequencies(family, share=0.4, most_columns=2))


@pytest.mark.parametrize("most", [None, 1, 2, 3, 7])
def test_the_kernel_is_the_mean_over_sets_of_columns(most: int | None) -> None:
    X, share = np.random.default_rng(0).normal(size=(5, 4)), 0.3
    family = Laplacian(2.0)
    total, mass = np.zeros((5, 5)), 0.0
    for kept in product([False, True], repeat=4):
        if 0 < sum(kept) <= (most or 4):
            chance = np.prod([share if one else 1.0 - share for one in kept])
            mass += chance
            total += chance * family.kernel(X[:, list(kept)])
    np.testing.assert_allclose(SparseFrequencies(family, share, most).kernel(X), total / mass, rtol=1e-12)


def test_of_many_columns_the_weights_are_still_chances() -> None:
    weights = SparseFrequencies(Gaussian(1.0), 0.3, most_columns=2).weights(20_000)
    # 20,000 columns and their 199,990,000 pairs; the odds of one column more are 3 to 7
    assert weights[0] == 0.0
    assert weights[1] * 20_000 + weights[2] * 199_990_000 == pytest.approx(1.0)
    assert weights[2] / weights[1] == pytest.approx(3.0 / 7.0)


@pytest.mark.parametrize("most", [None, 1, 2])
def test_sets_of_columns_have_their_chances(most: int | None) -> None:
    share, n_draws = 0.3, 40_000
    kept = SparseFrequencies(Gaussian(1.0), share, most).draw(n_draws, 3, seed=1).projection.dense() != 0.0
    codes = np.bincount(kept @ np.array([1, 2, 4]), minlength=8) / n_draws
    sizes = np.array([bin(code).count("1") for code in range(8)])
    possible = (sizes > 0) & (sizes <= (most or 3))
    chances = np.where(possible, share**sizes * (1.0 - share) ** (3 - sizes), 0.0)
    chances /= chances.sum()
    assert np.all(codes[chances == 0.0] == 0.0)
    assert np.all(np.abs(codes - chances) <= 5.0 * np.sqrt(chances / n_draws))


def test_a_share_of_one_is_the_family_itself() -> None:
    X = np.random.default_rng(0).normal(size=(4, 3))
    whole, sparse = Cauchy(1.5), SparseFrequencies(Cauchy(1.5), share=1.0)
    np.testing.assert_array_equal(sparse.draw(9, 3, 0).projection.dense(), whole.draw(9, 3, 0).projection.dense())
    np.testing.assert_allclose(sparse.kernel(X), whole.kernel(X), rtol=1e-14)


def test_the_first_rows_do_not_depend_on_how_many_follow() -> None:
    for family in (SparseFrequencies(Gaussian(1.0), share=0.5), SparseFrequencies(Gaussian(1.0), 0.5, most_columns=2)):
        few, many = (family.draw(size, 4, 3).projection.dense() for size in (5, 50))
        np.testing.assert_array_equal(few, many[:5])


def test_a_factor_of_the_bandwidth_is_one_of_each_column() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3))
    kernel = SparseFrequencies(Laplacian(2.0), most_columns=2)
    assert NystromFeatures(kernel, 20, sigma_factor=1.5, random_state=0).fit(X).family_.sigma == 3.0
    assert kernel.sigma == 2.0


@pytest.mark.parametrize(
    ("family", "error", "words"),
    [
        (SparseFrequencies(Matern(1.5, 1.0)), TypeError, "Laplacian"),
        (SparseFrequencies(Gaussian(1.0), share=0.0), ValueError, "share is 0.0"),
        (SparseFrequencies(Gaussian(1.0), share=1.5), ValueError, "share is 1.5"),
        (SparseFrequencies(Gaussian(1.0), most_columns=0), ValueError, "most_columns is 0"),
        (SparseFrequencies(Gaussian(1.0), most_columns=True), ValueError, "most_columns is True"),
        (SparseFrequencies(Gaussian(1.0), most_columns=1.5), ValueError, "most_columns is 1.5"),
        (SparseFrequencies(Gaussian(1.0), share=1.0, most_columns=1), ValueError, "share below 1"),
        (SparseFrequencies(Gaussian(1.0, sampling="orthogonal")), ValueError, "'iid'"),
        (SparseFrequencies(Gaussian(-1.0)), ValueError, "sigma"),
    ],
    ids=str,
)
def test_what_has_no_meaning_is_refused(family: SparseFrequencies, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        family.draw(3, 2, 0)
