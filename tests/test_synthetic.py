"""The toy sets: labelled as they say, and calibrated so that the paper's baselines stand where the paper's do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.svm import SVC

from dkl.features.families import ArcCosine
from dkl.testing.synthetic import additive, disc_and_annulus, sphere_checkerboard, windmill

N_TEST = 50_000


def test_the_windmill_turns() -> None:
    X, y = windmill(500, sails=6, twist=0.5, seed=3)
    assert (np.linalg.norm(X, axis=1) <= 1.0).all()
    for row, label in zip(X, y, strict=True):
        angle = np.arctan2(row[1], row[0]) + 0.5 / 3.0 * np.linalg.norm(row)
        sail = int(np.floor((angle % (2.0 * np.pi)) / (np.pi / 3.0)))
        assert label == (1 if sail % 2 == 0 else -1)
    assert abs(y.mean()) < 0.2


def test_the_checkerboard_has_bands_and_sectors() -> None:
    X, y = sphere_checkerboard(500, bands=3, sectors=4, seed=2)
    np.testing.assert_allclose(np.linalg.norm(X, axis=1), 1.0)
    for row, label in zip(X, y, strict=True):
        band = int(np.arccos(row[2]) / (np.pi / 3.0))
        sector = int((np.arctan2(row[1], row[0]) % (2.0 * np.pi)) / (np.pi / 2.0))
        assert label == (1 if (band + sector) % 2 == 0 else -1)


def test_seeds_give_other_rows_and_the_same_ones_again() -> None:
    for make in (windmill, sphere_checkerboard, additive, disc_and_annulus):
        np.testing.assert_array_equal(make(20, seed=1)[0], make(20, seed=1)[0])
        assert not np.array_equal(make(20, seed=1)[0], make(20, seed=2)[0])


def test_an_odd_number_of_sails_or_sectors_is_refused() -> None:
    with pytest.raises(ValueError, match="sails is 3"):
        windmill(10, sails=3)
    with pytest.raises(ValueError, match="sectors is 0"):
        sphere_checkerboard(10, sectors=0)
    with pytest.raises(ValueError, match="at least 4"):
        additive(10, n_columns=3)


def rbf_svm(seed: int, n_test: int) -> float:
    X, y = windmill(2_000, seed=seed)
    svm = SVC(C=1.0, gamma=0.5 / np.median(pdist(X)) ** 2).fit(X, y)
    return 100.0 * svm.score(*windmill(n_test, seed=99))


def arc_cosine_svm(seed: int, n_test: int) -> float:
    X, y = sphere_checkerboard(2_000, seed=seed)
    kernel = ArcCosine(order=0).kernel
    X_test, y_test = sphere_checkerboard(n_test, seed=99)
    svm = SVC(C=1_000.0, kernel="precomputed").fit(kernel(X, X), y)
    parts = [svm.predict(kernel(part, X)) for part in np.array_split(X_test, max(1, n_test // 2_000))]
    return 100.0 * float(np.mean(np.concatenate(parts) == y_test))


def test_the_baselines_stand_where_the_papers_do() -> None:
    assert abs(rbf_svm(0, 5_000) - 92.1) < 1.0
    assert abs(arc_cosine_svm(0, 5_000) - 95.1) < 1.0


@pytest.mark.slow
def test_the_baselines_stand_where_the_papers_do_over_five_seeds() -> None:
    assert abs(np.mean([rbf_svm(seed, N_TEST) for seed in range(5)]) - 92.1) < 0.2
    assert abs(np.mean([arc_cosine_svm(seed, N_TEST) for seed in range(5)]) - 95.1) < 0.2


@pytest.mark.parametrize("n_columns", [2, 10])
def test_the_disc_lies_within_the_annulus_and_a_tenth_of_the_labels_is_flipped(n_columns: int) -> None:
    X, y = disc_and_annulus(20_000, n_columns=n_columns, seed=1)
    radius = np.linalg.norm(X, axis=1)
    assert X.shape == (20_000, n_columns)
    assert np.mean(radius < 1.0) == 0.5
    assert radius[radius < 1.0].max() <= 0.9
    assert radius[radius > 1.0].min() >= 1.1
    assert radius.max() <= 2.0
    # uniform radii, not areas: half of the disc's rows lie within half of its radius
    assert np.mean(radius[radius < 1.0] < 0.45) == pytest.approx(0.5, abs=0.02)
    np.testing.assert_allclose(X.mean(axis=0), 0.0, atol=0.04)
    assert np.mean(np.where(radius > 1.0, 1, -1) == y) == pytest.approx(0.9, abs=0.01)


def test_a_disc_has_two_columns_and_fewer_flips_than_a_coin() -> None:
    with pytest.raises(ValueError, match="a disc has at least 2"):
        disc_and_annulus(10, n_columns=1)
    with pytest.raises(ValueError, match=r"noise is 0\.5"):
        disc_and_annulus(10, noise=0.5)
