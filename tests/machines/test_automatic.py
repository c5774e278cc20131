"""The machine without settings: it takes the kind of features that does best on held-out rows, and says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_wine, make_friedman1

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.penalty_choice import PenaltyChoice
from dkl.machines.contest import FEWEST_ROWS, JUDGED_ROWS, contenders, usual_advice, winner
from dkl.machines.settings import OpenParameters, Settings, settled
from dkl.planning import plan

OPEN = {"loss": None, "alpha": None, "solver": None, "calibrate": None, "chooses": True, "stops_early": False}


def thresholds(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """What steps are made for: a product of two thresholds, which no wave and no line has."""
    X = np.random.default_rng(0).uniform(size=(n, 6))
    return X, 3.0 * ((X[:, 0] > 0.4) & (X[:, 1] > 0.3)) + 0.05 * np.random.default_rng(1).standard_normal(n)


def lines(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, 8))
    return X, X @ np.arange(8.0) + 3.0 * np.random.default_rng(1).standard_normal(n)


@pytest.mark.parametrize(
    ("rows", "kind"), [(thresholds, "steps of columns and their products"), (lines, "the columns themselves")]
)
def test_the_kind_of_features_is_the_one_that_made_the_rows(rows: Any, kind: str) -> None:
    X, y = rows()
    model = dkl.KernelRegressor(random_state=0).fit(X, y)
    assert model.reasons_[0].startswith(f"Features: {kind}, which have the best score on held-out rows")
    assert model.reasons_[0].count("themselves") == 1
    assert model.score(X, y) > 0.9


def test_without_settings_a_classifier_scores_as_users_expect_and_has_probabilities() -> None:
    X, y = load_wine(return_X_y=True)
    train = np.random.default_rng(0).random(len(y)) < 0.7
    model = dkl.KernelClassifier(random_state=0)
    assert hasattr(model, "predict_proba")
    model.fit(X[train], y[train])
    assert model.score(X[~train], y[~train]) > 0.95
    shares = model.predict_proba(X[~train])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert np.array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X[~train]))


def test_the_same_rows_give_the_same_bits_and_the_reasons_pin_nothing_else(tmp_path: Path) -> None:
    X, y = thresholds(300)
    one, two = (dkl.KernelRegressor(random_state=0).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    assert one.reasons_ == two.reasons_
    one.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), one.predict(X))
    assert (again.solver_, again.loss_) == ("newton", "squared_error")


def test_few_rows_are_not_chosen_by() -> None:
    X, y = thresholds(FEWEST_ROWS - 1)
    model = dkl.KernelRegressor(random_state=0).fit(X, y)
    assert "too few to choose by" in model.reasons_[0]
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("given", [{"solver": "sgd"}, {"loss": "log_loss"}, {"alpha": 1e-4}, {"early_stopping": True}])
def test_what_is_pinned_stays_and_the_rest_adapts(given: dict[str, Any]) -> None:
    X, y = thresholds(300)
    model = dkl.KernelClassifier(random_state=0, **given).fit(X, (y > 1.0).astype(int))
    assert {name: model.get_params(deep=False)[name] for name in given} == given
    assert model.score(X, (y > 1.0).astype(int)) > 0.9
    # the penalty is chosen on held-out rows by exact steps alone
    assert (model.solver_ == "newton") == (given in ({"alpha": 1e-4}, {"loss": "log_loss"}))


def test_chosen_features_tell_no_hints_of_other_settings(caplog: pytest.LogCaptureFixture) -> None:
    X, y = make_friedman1(300, random_state=0)
    X[:, 0] = np.exp(8.0 * X[:, 0]) ** 2
    dkl.KernelRegressor(random_state=0).fit(X, y)
    assert "heavy tails" not in caplog.text


def test_groups_are_kept_together_where_kinds_are_judged() -> None:
    X, y = thresholds(400)
    model = dkl.KernelRegressor(random_state=0).fit(X, y, groups=np.arange(400) // 8)
    assert model.score(X, y) > 0.9


def test_a_plan_counts_all_that_may_be_tried() -> None:
    ds = as_dataset(*thresholds(300))
    whole, pinned = plan(dkl.KernelRegressor(), ds), plan(dkl.KernelRegressor("steps", solver="newton"), ds)
    assert whole.n_passes > 5 * pinned.n_passes


def test_many_rows_are_fitted_stochastically_and_judged_on_a_sample() -> None:
    given = OpenParameters(**OPEN)
    assert settled(given, "classification", 10_000) == Settings("squared_hinge", "auto", "newton", True)
    assert settled(given, "classification", 10_000_000) == Settings("hinge", 1e-5, "sgd", True)
    assert settled(given, "classification", 10_000, n_models=100).solver == "sgd"
    assert settled(given, "regression", 10_000) == Settings("squared_error", "auto", "newton", True)
    assert JUDGED_ROWS <= 20_000


def test_features_of_the_user_keep_the_defaults_that_they_had() -> None:
    own = OpenParameters(**{**OPEN, "chooses": False})
    assert settled(own, "classification", 100) == Settings("hinge", 1e-5, "sgd", False)
    assert settled(own, "regression", 100) == Settings("squared_error", 1e-5, "sgd", False)
    exact = OpenParameters(**{**OPEN, "chooses": False, "alpha": "auto"})
    assert settled(exact, "classification", 100) == Settings("squared_hinge", "auto", "newton", False)


def test_sparse_rows_are_tried_with_their_columns_and_waves_alone() -> None:
    from scipy import sparse

    names = [contender.name for contender in contenders(as_dataset(sparse.csr_array(np.eye(20))), usual_advice())]
    assert names == ["the columns themselves", "random waves", "searched waves"]


def test_the_winner_has_the_best_mean_score_and_nobody_wins_where_all_fail() -> None:
    def judged(*scores: float) -> PenaltyChoice:
        return PenaltyChoice(1.0, np.arange(1.0, 1.0 + len(scores)), np.array(scores), start=None)

    assert winner([[judged(0.1, 0.4), judged(0.1, 0.2)], None, [judged(0.2, 0.2), judged(0.35, 0.2)]]) == 0
    with pytest.raises(ValueError, match="give `features`, to see why it fails"):
        winner([None, None])
