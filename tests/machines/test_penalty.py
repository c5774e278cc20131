"""Kernel machines with alpha="auto": the choice is what it says, it costs few passes, and it survives a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC

from dkl.data.coerce import as_dataset
from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.linear.judge import PENALTIES, PenaltyChoice
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.machines.settings import OpenParameters, settled
from dkl.methods.random_features import RandomFeatures
from dkl.methods.warm_start import working_start
from dkl.model_io import load_model
from dkl.protocols.records import BlockSum
from dkl.registry import PENALTY_RULES, PenaltyRule
from tests.linear.problems import rows


def classifier(**parameters: Any) -> KernelClassifier:
    given: dict[str, Any] = {"alpha": "auto", "solver": "newton", "loss": "squared_hinge", "random_state": 0}
    features = RandomFeatures(Gaussian(2.0), n_features=30, dtype="float64", random_state=0)
    return KernelClassifier(features, **{**given, **parameters})


def regressor(**parameters: Any) -> KernelRegressor:
    features = RandomFeatures(Gaussian(3.0), n_features=30, scaling="standard", dtype="float64", random_state=0)
    return KernelRegressor(features, alpha="auto", solver="newton", random_state=0, **parameters)


@pytest.mark.parametrize("K", [2, 3])
def test_the_model_is_the_one_of_the_chosen_penalty_on_all_rows(K: int) -> None:
    X, codes = rows(500, K)
    chosen = classifier().fit(X, codes)
    assert chosen.alpha_ in chosen.alphas_
    given = classifier(alpha=chosen.alpha_).fit(X, codes)
    assert given.alpha_ == chosen.alpha_
    scale = np.abs(given.decision_function(X)).max()
    np.testing.assert_allclose(chosen.decision_function(X), given.decision_function(X), atol=0.02 * scale)


def test_a_penalty_told_apart_on_fewer_features_is_that_of_a_model_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # so many bytes of Hessians are 10 of the 30 features of three classes
    monkeypatch.setattr("dkl.linear.head._HESSIAN_BYTES", 4_000)
    X, codes = rows(500, 3)
    chosen = classifier().fit(X, codes)
    given = classifier(alpha=chosen.alpha_).fit(X, codes)
    assert chosen.linear_.coef_.shape == (3, 30)
    assert np.mean(chosen.predict(X) == given.predict(X)) > 0.99


def test_scores_are_those_of_liblinear_on_held_out_rows() -> None:
    X, codes = rows(12_000, 2)
    machine = classifier().fit(X, codes)
    held = HeldOut(0.1, machine.seed_).mask(np.arange(len(X)))
    phi = machine.features_.transform(X)
    np.testing.assert_allclose(1.0 / (machine.alphas_ * len(X)), PENALTIES["squared_hinge"], rtol=1e-6)
    for score, C in zip(machine.validation_scores_, PENALTIES["squared_hinge"], strict=True):
        svm = LinearSVC(C=C, dual=False, tol=1e-6, intercept_scaling=100.0).fit(phi[~held], codes[~held])
        slack = np.maximum(0.0, 1.0 - (2.0 * codes[held] - 1.0) * svm.decision_function(phi[held]))
        assert abs(1.0 - np.mean(slack**2) - score) <= 0.01 * np.mean(slack**2)


def test_regression_chooses_a_ridge_near_the_best_of_many() -> None:
    X, y = load_diabetes(return_X_y=True)
    train = np.random.default_rng(0).permutation(len(X)) < 300
    machine = regressor().fit(X[train], y[train])
    assert machine.alphas_.shape == machine.validation_scores_.shape
    fixed = [
        clone(machine).set_params(alpha=alpha).fit(X[train], y[train]).score(X[~train], y[~train])
        for alpha in machine.alphas_
    ]
    assert machine.score(X[~train], y[~train]) > max(fixed) - 0.05


def test_several_targets_share_a_penalty() -> None:
    X, _ = rows(300, 2)
    Y = np.column_stack([np.sin(X[:, 0]), 1e3 * X[:, 1] + 7.0])
    machine = regressor().fit(X, Y)
    assert machine.score(X, Y) > 0.8
    given = clone(machine).set_params(alpha=machine.alpha_).fit(X, Y)
    difference = np.abs(machine.predict(X) - given.predict(X)).max(axis=0)
    assert np.all(difference < 1e-2 * Y.std(axis=0))


def test_maps_without_pairs_are_measured_on_a_sample() -> None:
    # as few rows as the sample has, all of which are in it
    X, codes = rows(240, 2)
    features = RandomFeatures(Gaussian(2.0, pairing="phase"), n_features=40, random_state=0)
    machine = classifier().set_params(features=features).fit(X, codes)
    length = np.mean(np.sum(machine.features_.transform(X).astype(float) ** 2, axis=1))
    np.testing.assert_allclose(machine.alphas_, length / (240 * np.array(PENALTIES["squared_hinge"])), rtol=1e-5)


def strongest(choice: PenaltyChoice) -> int:
    """A rule of penalties that looks at no score."""
    return 0


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"solver": "sgd"}, "set solver='newton', got"),
        ({"solver": "sgd", "loss": "huber"}, "set solver='newton', got"),
        ({"solver": "sgd", "loss": "epsilon_insensitive"}, "set solver='newton' and loss='squared_error', got"),
        ({"epochs": 3}, "set solver='newton' and leave epochs out, got"),
        ({"early_stopping": True}, "set solver='newton' and leave early_stopping out, got"),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", ["auto", "strongest", "evidence"])
def test_a_rule_that_stochastic_steps_lack_is_refused_with_what_it_needs(
    rule: str, given: dict[str, Any], remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only "auto", which leaves the choice to the machine, adapts to the solver that other parameters select."""
    monkeypatch.setitem(PENALTY_RULES, "strongest", PenaltyRule("strongest", "", __name__))
    X, _ = rows(50, 2)
    machine = KernelRegressor("random", n_features=20, alpha=rule, random_state=0, **given)
    if rule == "auto" and "solver" not in given:
        assert machine.fit(X, X[:, 0]).alpha_ == 1e-5
        return
    if rule == "evidence" and given.get("loss") == "huber":
        remedy = "set solver='newton' and loss='squared_error', got"
    with pytest.raises(ValueError, match=f"alpha='{rule}' is chosen by Newton steps: {remedy}"):
        machine.fit(X, X[:, 0])
    # the remedy is one
    cured = {"loss": "squared_error"} if "and loss=" in remedy else {}
    machine.set_params(solver="newton", epochs=None, early_stopping=False, **cured)
    assert machine.fit(X, X[:, 0]).alpha_ > 0.0


def test_many_rows_do_not_replace_a_rule_that_the_user_names() -> None:
    for rule, expected in (("auto", (1e-5, "sgd")), ("strongest", ("strongest", "newton"))):
        given = OpenParameters("log_loss", rule, None, None, chooses=False, stops_early=False)
        settings = settled(given, "classification", 10_000_000)
        assert (settings.alpha, settings.solver) == expected


def test_only_newton_steps_choose_alpha() -> None:
    X, codes = rows(50, 2)
    with pytest.raises(ValueError, match=r"alpha='auto' is chosen by Newton steps: set solver='newton'"):
        KernelClassifier("random", alpha="auto", solver="sgd").fit(X, codes)
    with pytest.raises(ValueError, match="The 'alpha' parameter of KernelClassifier must be"):
        KernelClassifier("random", alpha="best").fit(X, codes)


def test_the_plan_counts_every_pass_and_no_more_rows_than_there_are() -> None:
    X, codes = rows(500, 3)
    dataset = as_dataset(X, codes)
    machine = classifier()
    planned: dict[str, int] = {}
    for records, calls in machine.planned_passes(dataset):
        name = " + ".join(dict.fromkeys(record.name for record in records))
        planned[name] = planned.get(name, 0) + calls
    told: dict[str, int] = {}

    def count(event: Any) -> None:
        if event.kind == "finished" and event.name != "rounds":
            told[event.name] = told.get(event.name, 0) + 1

    machine.set_params(progress=count).fit(X, codes)
    assert told.keys() <= planned.keys()
    assert all(told[name] <= planned[name] for name in told)
    assert told["held-out scores"] == 1


def test_a_plan_counts_cosines() -> None:
    """With two columns nearly all of the time is in them."""
    X, codes = rows(500, 2, n_columns=2)
    machine = classifier(alpha=1e-3)
    (record,) = next(r for r, _ in machine.planned_passes(as_dataset(X, codes)) if r[0].name == "newton step")
    assert isinstance(record, BlockSum)
    assert record.cost(500, 2).flops > 500 * 30 * 25


def test_the_same_bits_on_one_thread_and_on_two() -> None:
    X, codes = rows(3_000, 3)
    with dask.config.set(scheduler="synchronous"):
        one = classifier().fit(X, codes)
    with dask.config.set(scheduler="threads", num_workers=2):
        two = classifier().fit(X, codes)
    np.testing.assert_array_equal(one.linear_.coef_, two.linear_.coef_)
    np.testing.assert_array_equal(one.validation_scores_, two.validation_scores_)


def test_a_finished_fit_returns_from_its_checkpoint(tmp_path: Path) -> None:
    X, codes = rows(300, 3)
    first = classifier(checkpoint=str(tmp_path / "run")).fit(X, codes)
    again = classifier(checkpoint=str(tmp_path / "run")).fit(X, codes)
    np.testing.assert_array_equal(again.linear_.coef_, first.linear_.coef_)
    assert again.alpha_ == first.alpha_


def test_what_was_chosen_is_saved(tmp_path: Path) -> None:
    X, codes = rows(200, 2)
    machine = classifier().fit(X, codes)
    machine.save(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr")
    assert loaded.alpha_ == machine.alpha_
    np.testing.assert_array_equal(loaded.validation_scores_, machine.validation_scores_)
    np.testing.assert_array_equal(loaded.decision_function(X), machine.decision_function(X))


def test_calibration_keeps_its_rows_from_the_last_fit() -> None:
    X, codes = rows(600, 2)
    machine = classifier(calibrate=True, validation_fraction=0.3).fit(X, codes)
    kept = ~HeldOut(0.3, machine.seed_).mask(np.arange(600))
    alone = classifier(alpha=machine.alpha_).fit(X[kept], codes[kept])
    scale = np.abs(alone.linear_.coef_).max()
    np.testing.assert_allclose(machine.linear_.coef_, alone.linear_.coef_, atol=0.05 * scale)


def features_of(model: Any, n_features: int) -> Any:
    feature_map = FeatureMap(
        "cos", DenseProjection(np.zeros((n_features, 2))), np.ones(n_features), np.zeros(n_features)
    )
    return SimpleNamespace(feature_map_=feature_map, working_model_=model)


def test_a_working_model_is_where_the_steps_start() -> None:
    found = working_start(features_of((np.ones((1, 3)), np.array([5.0])), 3), 1)
    np.testing.assert_array_equal(found, [[1.0, 1.0, 1.0, 5.0]])  # type: ignore[arg-type]


@pytest.mark.parametrize(("coef", "n_models"), [(np.ones((2, 3)), 3), (np.ones((1, 4)), 1)])
def test_a_working_model_of_another_shape_is_left_aside(coef: np.ndarray, n_models: int) -> None:
    assert working_start(features_of((coef, np.zeros(len(coef))), 3), n_models) is None


def test_a_search_reaches_the_parameters_of_the_family() -> None:
    X, codes = rows(200, 2)
    given = RandomFeatures(Gaussian(2.0), n_features=30)
    search = GridSearchCV(classifier().set_params(features=given), {"features__family__sigma": [1e-3, 2.0]}, cv=3)
    search.fit(X, codes)
    assert search.best_params_ == {"features__family__sigma": 2.0}
    assert given.family == Gaussian(2.0)
    learner = RandomFeatures().set_params(family__sigma=3.0, family__pairing="phase", n_features=10)
    assert learner.family == Gaussian(3.0, pairing="phase")
    assert learner.get_params()["family__sigma"] == 3.0
    with pytest.raises(ValueError, match="Invalid parameter 'sigmas' for Gaussian"):
        RandomFeatures().set_params(family__sigmas=1.0)


@pytest.mark.parametrize("name", ["random", "aligned", "posterior", "peaks", "margin"])
def test_learners_go_by_their_names(name: str) -> None:
    machine = KernelClassifier(name)
    machine.seed_ = 0
    assert type(machine._unfitted_features()).__name__.lower().startswith(name.rstrip("s"))
