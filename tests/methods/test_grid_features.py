"""PeakFeatures with method='grid': a certificate, the same bits anywhere, and errors where there can be no grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

import dkl
from dkl.data.create import create_dataset
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels import nufft
from dkl.methods.peaks import learner as grid_module
from dkl.methods.peaks.learner import PeakFeatures

with_finufft = pytest.mark.skipif(nufft.why_no_nufft() is not None, reason="finufft is an extra")


def rows(d: int = 2, n: int = 4_000) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, d))
    return X, np.sin(3.0 * X[:, 0] - 2.0 * X[:, -1] * (d > 1)) > 0


@with_finufft
@pytest.mark.parametrize("d", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_peak_is_found_and_nothing_higher_is_missed(d: int) -> None:
    X, y = rows(d)
    learner = PeakFeatures(n_features=4, method="grid", random_state=0, progress=False).fit(X, y)
    best = learner.feature_map_.projection.dense()[0]
    np.testing.assert_allclose(np.abs(best), [3.0, 2.0][:d], atol=0.1)
    assert learner.potentials_[0] <= learner.certificate_ < learner.potentials_[0] + 0.1
    assert "certified: no frequency with |w_j| <=" in learner.message_
    W = np.random.default_rng(1).uniform(-5, 5, (5_000, d))
    s = y - y.mean()
    angles = X @ W.T
    potentials = (s @ np.cos(angles)) ** 2 + (s @ np.sin(angles)) ** 2
    assert np.max(potentials) / np.abs(s).sum() ** 2 <= learner.certificate_


@with_finufft
def test_numbers_are_searched_in_their_own_units_and_boxes() -> None:
    X, _ = rows(2)
    y = 1e5 + 40.5 * np.cos(3.0 * X[:, 0] - 2.0 * X[:, 1] + 0.4)
    learner = PeakFeatures(n_features=2, method="grid", max_norm=4.0, random_state=0, progress=False).fit(X, y)
    np.testing.assert_allclose(np.abs(learner.feature_map_.projection.dense()[0]), [3.0, 2.0], atol=0.05)
    assert "|w_j| <= 4 has" in learner.message_


@with_finufft
def test_threads_give_the_bits_of_one_and_models_are_saved(tmp_path: Path) -> None:
    X, y = rows(2, 5_000)
    stored = create_dataset(str(tmp_path / "rows.zarr"), X, y, rows_a_block=512)
    learner = PeakFeatures(n_features=4, method="grid", scaling="standard", random_state=0, progress=False)
    with dask.config.set(scheduler="synchronous"):
        expected = learner.fit(stored)
        bits, certificate = expected.candidate_potentials_.tobytes(), expected.certificate_
    with dask.config.set(num_workers=3):
        again = learner.fit(stored)
    assert again.candidate_potentials_.tobytes() == bits
    assert again.certificate_ == certificate
    again.save(str(tmp_path / "model"))
    np.testing.assert_array_equal(dkl.load_model(str(tmp_path / "model")).transform(X), again.transform(X))


@with_finufft
def test_the_plan_counts_grid_cells_and_verification() -> None:
    X, y = rows()
    learner = PeakFeatures(n_features=4, method="grid", random_state=0, progress=False)
    planned = dkl.plan(learner, X, y)
    assert planned.n_passes >= len(learner.fit(X, y).stats_)


@with_finufft
@pytest.mark.parametrize(
    ("learner", "d", "message"),
    [
        (PeakFeatures(method="grid"), 4, "method='grid' is for rows of at most 3 columns; these have 4"),
        (PeakFeatures(SphericalHarmonics(3), method="grid"), 3, "has a finite pool, which needs no search"),
        (PeakFeatures(method="grid", tol=0.0), 2, "tol"),
    ],
)
def test_where_there_can_be_no_grid_an_error_says_why(learner: Any, d: int, message: str) -> None:
    X, y = rows(d, 50)
    with pytest.raises(ValueError, match=message):
        learner.fit(X, y)


def test_a_missing_finufft_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows(2, 50)
    monkeypatch.setattr(grid_module, "why_no_nufft", lambda: "finufft is not installed (pip install 'dkl[finufft]')")
    with pytest.raises(ImportError, match=r"pip install 'dkl\[finufft\]'"):
        PeakFeatures(method="grid").fit(X, y)
