"""The toy sets: labelled as they say, and calibrated so that the paper's baselines stand where the paper's do."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist
from sklearn.svm import SVC

from dkl.features.families import ArcCosine
from dkl.testing.synthetic import additive, sphere_checkerboard, windmill

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
    for make in (windmill, sphere_checkerboard, additive):
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
