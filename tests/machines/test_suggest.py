"""dkl.suggest shows the race of the machine without settings; what machines ask rows for is so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.fitting import Run
from dkl.machines import suggest as suggesting
from dkl.machines.suggest import advise
from tests.encodings.test_suspects import visits
from tests.machines.test_columns_ahead import seasons

pytestmark = pytest.mark.usefixtures("little_work")


def fan(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose label is a product of two columns of very different scales."""
    X = np.random.default_rng(seed).normal(size=(n, 4))
    return X * [1.0, 300.0, 1.0, 1.0], np.where(X[:, 0] * X[:, 1] > 0.0, "yes", "no")


@pytest.mark.parametrize("target", ["classes", "numbers"])
def test_what_is_suggested_is_what_the_machine_itself_chooses(target: str) -> None:
    X, y = fan()
    y, machine = (y, dkl.KernelClassifier) if target == "classes" else (X[:, 0] + X[:, 2] ** 2, dkl.KernelRegressor)
    found = dkl.suggest(X, y, effort="fast", random_state=4, progress=False)
    fitted = machine(effort="fast", random_state=4, progress=False).fit(X, y)
    assert found.reasons == fitted.reasons_
    pinned = found.estimator
    assert (pinned.alpha, pinned.loss, pinned.solver) == (fitted.alpha_, fitted.loss_, fitted.solver_)
    pinned.set_params(progress=False).fit(X, y)
    # without a race: the same features bit by bit, and a model that differs by what its steps leave
    assert not hasattr(pinned, "reasons_")
    assert np.array_equal(pinned.features_.transform(X), fitted.features_.transform(X))
    if target == "classes":
        assert np.mean(pinned.predict(X) == fitted.predict(X)) > 0.99
    else:
        np.testing.assert_allclose(pinned.predict(X), fitted.predict(X), atol=1e-3 * y.std())


def test_what_becomes_of_columns_is_suggested_as_the_machine_decides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.machines.columns.SIDE_SHARE", np.inf)
    frame, y = visits(4_000)
    months, labels = seasons()
    for rows, target, start in ((frame, y, "Suspects: ['person', 'age'] may be names"), (months, labels, "Columns: [")):
        found = dkl.suggest(rows, target, effort="fast", progress=False)
        machine = dkl.KernelClassifier if target is labels else dkl.KernelRegressor
        fitted = machine(effort="fast", random_state=0, progress=False).fit(rows, target)
        assert found.reasons == fitted.reasons_
        assert sum(reason.startswith(start) for reason in found.reasons) == 1
        if target is y:
            assert found.settings["categorical"] == ["person"]
            pinned = found.estimator.set_params(progress=False).fit(rows, target)
            assert pinned.score(rows, target) > 0.9 * fitted.score(rows, target)
            stored = dkl.suggest(dkl.create_dataset("memory://suspects.zarr", rows, target), effort="fast")
            assert "categorical" not in stored.settings


def test_the_race_is_shown_with_the_winner_first_and_the_others_by_score() -> None:
    X, y = fan()
    found = dkl.suggest(X, y, effort="fast", progress=False)
    assert [kind.outcome == "chosen" for kind in found.tried] == [True] + [False] * (len(found.tried) - 1)
    scores = [kind.score for kind in found.tried[1:] if kind.score is not None]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) >= 3
    for kind in found.tried:
        shown = "-" if kind.score is None else f"{kind.score:.4f}"
        assert any(kind.name in line and shown in line and kind.outcome in line for line in repr(found).splitlines())
    for name in (f"Features: {found.tried[0].name}", "Rows: 200 of 2 classes", "Scaling:", "KernelClassifier("):
        assert name in repr(found)


def test_too_few_rows_for_a_race_are_told() -> None:
    X, y = fan(40)
    found = dkl.suggest(X, y, progress=False)
    assert found.tried == ()
    assert "too few to choose by" in found.reasons[0]
    found.estimator.fit(X, y)


def test_the_bandwidth_that_is_judged_is_the_one_that_a_fit_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = fan(120)
    X = np.vstack([X, np.repeat(X[:1], 40, axis=0)])
    asked: list[float] = []
    kept = suggesting.median_distance

    def noted(rows: Any, **given: Any) -> float:
        asked.append(kept(rows, **given))
        return asked[-1]

    monkeypatch.setattr(suggesting, "median_distance", noted)
    advise(as_dataset(X, np.append(y, y[:40])), Run(), 0, 1_000)
    for scaling in ("standard", "quantile", None):
        sigma = dkl.RandomFeatures(scaling=scaling, progress=False).fit(X).family_.sigma
        assert np.isclose(asked, sigma, rtol=1e-12).any()


def test_wide_sparse_rows_get_single_columns_and_stay_sparse() -> None:
    # numbers below 0 are no counts
    X = sparse.random_array((200, 6_000), density=0.002, format="csr", rng=np.random.default_rng(0)) * -1.0
    advised = advise(as_dataset(X, np.arange(200) % 2), Run(), 0, 1_000).features
    assert isinstance(advised.family, dkl.Coordinates)
    assert advised.scaling is None


def test_rows_without_a_target_are_refused() -> None:
    with pytest.raises(ValueError, match="suggest requires y"):
        dkl.suggest(fan()[0], progress=False)


def test_the_answer_is_the_same_from_a_store_and_again(tmp_path: Any) -> None:
    X, y = fan()
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100)
    found, again = (dkl.suggest(stored, effort="fast", progress=False) for _ in range(2))
    assert (found.reasons, found.tried) == (again.reasons, again.tried)


def test_a_machine_without_features_is_refused_and_loads(tmp_path: Any) -> None:
    """Version 0.1 searched waves for it, and has saved such models."""
    X, y = fan()
    with pytest.raises(ValueError, match="Got None instead"):
        dkl.KernelClassifier(None).fit(X, y)
    with pytest.raises(ValueError, match="Got None instead"):
        dkl.plan(dkl.KernelClassifier(None), X, y)
    model = dkl.KernelClassifier("random", n_features=20, random_state=0, progress=False).fit(X, y)
    expected = model.predict(X)
    model.set_params(features=None).save(tmp_path / "model.zarr")
    assert np.array_equal(dkl.load_model(tmp_path / "model.zarr").predict(X), expected)
