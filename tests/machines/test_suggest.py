"""dkl.suggest: what it says of rows is so, and what it makes can be fitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.events import Event
from dkl.machines import suggest as suggesting


def fan(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose label is a product of two columns of very different scales."""
    X = np.random.default_rng(seed).normal(size=(n, 4))
    return X * [1.0, 300.0, 1.0, 1.0], np.where(X[:, 0] * X[:, 1] > 0.0, "yes", "no")


def test_columns_of_different_scales_are_scaled_and_the_estimator_learns() -> None:
    X, y = fan()
    found = dkl.suggest(X, y, progress=False)
    assert found.features.scaling in ("standard", "quantile")
    machine = found.estimator.set_params(alpha=1e-4)
    assert machine.fit(X, y).score(*fan(seed=1)) > 0.85
    assert len(found.reasons) >= 5
    for name in ("Rows: 200 of 2 classes", "Scaling:", "Kernel:", "Learner:", "KernelClassifier("):
        assert name in repr(found)


def test_the_bandwidth_that_is_judged_is_the_one_that_a_fit_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = fan(120)
    X = np.vstack([X, np.repeat(X[:1], 40, axis=0)])
    asked: list[float] = []
    kept = suggesting.median_distance

    def noted(rows: Any, **given: Any) -> float:
        asked.append(kept(rows, **given))
        return asked[-1]

    monkeypatch.setattr(suggesting, "median_distance", noted)
    dkl.suggest(X, np.append(y, y[:40]), progress=False)
    for scaling in ("standard", "quantile", None):
        sigma = dkl.RandomFeatures(scaling=scaling, progress=False).fit(X).family_.sigma
        assert np.isclose(asked, sigma, rtol=1e-12).any()


def test_numbers_get_a_regressor_and_a_linear_truth_is_told() -> None:
    X = np.random.default_rng(0).normal(size=(300, 5))
    found = dkl.suggest(X, X @ np.arange(5.0), task="regression", progress=False)
    assert isinstance(found.estimator, dkl.KernelRegressor)
    assert any(reason.startswith("A linear machine does as well") for reason in found.reasons)


def test_wide_sparse_rows_get_single_columns_and_stay_sparse() -> None:
    X = sparse.random_array((200, 6_000), density=0.002, format="csr", rng=np.random.default_rng(0))
    found = dkl.suggest(X, np.arange(200) % 2, progress=False)
    assert isinstance(found.features.family, dkl.Coordinates)
    assert found.features.scaling is None


def test_rows_without_a_target_get_features_alone() -> None:
    found = dkl.suggest(fan()[0], progress=False)
    assert isinstance(found.estimator, dkl.RandomFeatures)
    assert found.estimator.fit(fan()[0]).transform(fan()[0]).shape == (200, 1_000)


def test_rows_are_read_once_and_the_answer_is_the_same_from_a_store(tmp_path: Any) -> None:
    X, y = fan()
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100)
    events: list[Event] = []
    found = dkl.suggest(stored, progress=events.append)
    ended = [event.detail for event in events if event.kind == "finished"]
    assert len(ended) == 1
    assert found.reasons == dkl.suggest(stored, progress=False).reasons


def test_a_machine_without_features_asks_for_them() -> None:
    X, y = fan()
    machine = dkl.KernelClassifier(None, loss="squared_hinge", solver="newton", alpha=1e-4, random_state=0)
    with pytest.raises(ValueError, match=r"dkl\.plan\(dkl\.suggest\(dataset\)\.estimator, dataset\)"):
        dkl.plan(machine, X, y)
    machine.fit(X, y)
    found = dkl.suggest(X, y, progress=False)
    assert machine.reasons_[:-1] == found.reasons[:-1]
    # its own penalty stays
    assert (
        "alpha=0.0001, as given; solver='newton', loss='squared_hinge', alpha='auto' would be" in machine.reasons_[-1]
    )
    expected = found.estimator.set_params(alpha=1e-4).fit(X, y)
    assert np.array_equal(machine.predict(X), expected.predict(X))
