"""Kernel machines: one interface over rows of every form, labels as users have them, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import Ridge
from sklearn.metrics import accuracy_score, log_loss, r2_score
from sklearn.model_selection import cross_val_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.families import Gaussian
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from tests.kernels.cases import assert_same_rows
from tests.linear.problems import dataset, rows

FEATURES = RandomFeatures(n_features=60)


def classifier(**parameters: Any) -> KernelClassifier:
    return KernelClassifier(**{"features": FEATURES, "epochs": 4, "alpha": 1e-3, "random_state": 0, **parameters})


def regressor(**parameters: Any) -> KernelRegressor:
    return KernelRegressor(**{"features": FEATURES, "epochs": 10, "alpha": 1e-3, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def digits() -> Any:
    X, y = load_digits(return_X_y=True)
    return X[:1200] / 16.0, y[:1200], X[1200:] / 16.0, y[1200:]


IN_EXPECTATION = "stochastic steps see a weight of 2 as two rows in expectation only"
EXPECTED = {
    "check_sample_weight_equivalence_on_dense_data": IN_EXPECTATION,
    "check_sample_weight_equivalence_on_sparse_data": IN_EXPECTATION,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (classifier(features=RandomFeatures(n_features=40, dtype="float64"), epochs=8), EXPECTED),
        pytest.param(
            regressor(features=RandomFeatures(n_features=40, dtype="float64"), epochs=None),
            EXPECTED,
            marks=pytest.mark.slow,
        ),
        # exact heads see weights exactly
        pytest.param(
            classifier(
                features=RandomFeatures(Gaussian(4.0), n_features=40, dtype="float64"),
                loss="squared_hinge",
                solver="newton",
            ),
            {},
            marks=pytest.mark.slow,
        ),
        (
            regressor(features=RandomFeatures(Gaussian(4.0), n_features=40, dtype="float64"), solver="newton"),
            {},
        ),
    ],
    ids=["classifier", "regressor", "newton classifier", "newton regressor"],
)
def test_the_checks_of_scikit_learn_pass(machine: Any, expected: dict[str, str]) -> None:
    results = check_estimator(machine, on_fail=None, expected_failed_checks=expected)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss", "modified_huber"])
def test_every_classification_loss_learns(loss: str, digits: Any) -> None:
    X, y, Z, t = digits
    assert classifier(loss=loss, features=RandomFeatures(n_features=200), alpha=1e-4, epochs=10).fit(X, y).score(
        Z, t
    ) > (0.92)


@pytest.mark.parametrize("loss", ["squared_error", "epsilon_insensitive", "huber"])
def test_every_regression_loss_learns_in_the_targets_own_units(loss: str) -> None:
    X, y = load_diabetes(return_X_y=True)
    plain = regressor(loss=loss, epochs=50).fit(X[:300], y[:300])
    assert plain.score(X[300:], y[300:]) > 0.4
    moved = regressor(loss=loss, epochs=50).fit(X[:300], 1e4 - 100.0 * y[:300])
    np.testing.assert_allclose(moved.predict(X), 1e4 - 100.0 * plain.predict(X), atol=1e-4 * 100.0 * y.std())
    np.testing.assert_allclose(
        plain.linear_.predict(plain.features_.transform(X)), plain.predict(X), rtol=1e-4, atol=1e-3
    )


def test_steps_end_near_the_optimum_of_liblinear_on_the_same_features() -> None:
    X, codes = rows(4_000, 2)
    alpha, n = 1e-4, 2_000
    machine = classifier(alpha=alpha, epochs=None).fit(X[:n], codes[:n])
    P, Q = machine.features_.transform(X[:n]), machine.features_.transform(X[n:])
    svm = LinearSVC(loss="hinge", C=1 / (alpha * n), max_iter=100_000, tol=1e-5).fit(P, codes[:n])

    def objective(model: Any) -> float:
        margin = np.where(codes[:n] == 1, 1.0, -1.0) * model.decision_function(P)
        return np.maximum(0.0, 1.0 - margin).mean() + 0.5 * alpha * np.sum(model.coef_**2)

    assert objective(machine.linear_) < 1.02 * objective(svm)
    assert machine.score(X[n:], codes[n:]) >= svm.score(Q, codes[n:]) - 0.003


@pytest.mark.parametrize("solver", ["sgd", "newton"])
def test_newton_heads_are_the_optimum_and_steps_come_near(solver: str) -> None:
    X, y = load_diabetes(return_X_y=True)
    machine = regressor(solver=solver, alpha=1e-2, epochs=50).fit(X, y)
    ridge = Ridge(1e-2 * len(X)).fit(machine.features_.transform(X), y)
    best = ridge.predict(machine.features_.transform(X))
    gap = np.sqrt(np.mean((machine.predict(X) - best) ** 2)) / y.std()
    assert gap < (1e-5 if solver == "newton" else 0.05)


@pytest.mark.parametrize("features", ["random", "aligned", "posterior"])
def test_features_by_name_are_learners_with_their_defaults(features: str, digits: Any, monkeypatch: Any) -> None:
    X, y, _, _ = digits
    machine = (
        classifier(features=features, epochs=1, max_iter=None) if False else classifier(features=features, epochs=1)
    )
    machine.fit(X[:200], y[:200])
    assert type(machine.features_).__name__ == f"{features.capitalize()}Features"
    assert machine.features_.get_params()["n_features"] == type(machine.features_)().n_features
    assert machine.features == features


def test_labels_may_be_anything_that_sorts(digits: Any) -> None:
    X, y, Z, _ = digits
    codes = classifier().fit(X, y).predict(Z)
    for labels in (np.array([f"digit {k}" for k in range(10)]), np.arange(10) * 1000 - 5000):
        machine = classifier().fit(X, labels[y])
        np.testing.assert_array_equal(machine.classes_, labels)
        np.testing.assert_array_equal(machine.predict(Z), labels[codes])
        np.testing.assert_array_equal(machine.linear_.classes_, labels)
    signs = classifier().fit(X, np.where(y > 4, 1, -1)).predict(Z)
    np.testing.assert_array_equal(classifier().fit(X, y > 4).predict(Z), signs > 0)


def forms(X: np.ndarray, y: np.ndarray) -> dict[str, tuple[Any, Any]]:
    """The same rows as everything that fit takes."""
    return {
        "array": (X, y),
        "sparse": (sparse.csr_array(X), y),
        "dask array": (da.from_array(X, chunks=(300, -1)), da.from_array(y, chunks=300)),
        "columns cut": (da.from_array(X, chunks=(300, 20)), da.from_array(y, chunks=300)),
        "dataset": (as_dataset(X, y), None),
        "frame": (pd.DataFrame(X, columns=[f"c{j}" for j in range(X.shape[1])]), y),
    }


@pytest.fixture(scope="module")
def answers_of_arrays(digits: Any) -> np.ndarray:
    """What a machine answers that is fitted to arrays."""
    X, y, Z, _ = digits
    return np.asarray(classifier().fit(X, y).predict(Z))


@pytest.mark.parametrize("form", ["sparse", "dask array", "columns cut", "dataset", "frame"])
def test_rows_of_every_form_are_fitted_and_predicted_alike(
    form: str, digits: Any, answers_of_arrays: np.ndarray
) -> None:
    X, y, Z, t = digits
    machine = classifier().fit(*forms(X, y)[form])
    rows_, labels = forms(Z, t)[form]
    predicted = machine.predict(rows_)
    if form in ("dask array", "columns cut"):
        assert isinstance(predicted, da.Array)
    elif form == "dataset":
        assert isinstance(predicted, dd.Series)
    found = np.asarray(predicted)
    assert np.mean(found == answers_of_arrays) > 0.97
    assert machine.score(rows_, labels) == pytest.approx(accuracy_score(t, found))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("machine", [classifier(calibrate=True), regressor()], ids=["classifier", "regressor"])
def test_a_fitted_machine_predicts_the_same_from_every_form(machine: Any, digits: Any) -> None:
    X, y, Z, t = digits
    fitted = clone(machine).fit(X, y)
    for name in ("predict", "decision_function", "predict_proba"):
        if not hasattr(fitted, name):
            continue
        expected = getattr(fitted, name)(Z)
        for form, (given, _) in forms(Z, t).items():
            if form == "frame":
                continue
            np.testing.assert_allclose(np.asarray(getattr(fitted, name)(given)), expected, rtol=1e-4, atol=1e-4)


def test_predictions_of_a_dataset_carry_its_row_ids(tmp_path: Path) -> None:
    X, codes = rows(400, 3)
    data = dkl.create_dataset(tmp_path / "rows.zarr", X, codes, shuffle=True).split({"train": 0.7, "test": 0.3})
    machine = classifier(calibrate=True).fit(data["train"])
    predicted, shares = machine.predict(data["test"]).compute(), machine.predict_proba(data["test"]).compute()
    ids = data["test"].row_id.compute()
    np.testing.assert_array_equal(predicted.index, ids)
    assert predicted.index.name == "row_id"
    assert shares.columns.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(shares.columns[shares.to_numpy().argmax(axis=1)], predicted)
    # row ids are places in the rows as they were given
    np.testing.assert_array_equal(machine.predict(X[ids]), predicted.to_numpy())
    # Parquet has texts as names of columns
    machine.predict_proba(data["test"]).rename(columns=str).to_parquet(tmp_path / "shares")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "shares"), shares.rename(columns=str))
    assert machine.score(data["test"]) == pytest.approx(np.mean(codes[ids] == predicted))


def test_raw_frames_are_encoded_as_at_fit() -> None:
    generator = np.random.default_rng(0)
    place = generator.choice(["north", "south", "west"], 500)
    frame = pd.DataFrame({"a": generator.normal(size=500), "place": place})
    label = np.where((place == "north") ^ (frame["a"] > 0), "yes", "no")
    machine = classifier(epochs=20).fit(frame, label)
    assert machine.score(frame, label) > 0.95
    turned = machine.predict(frame.iloc[::-1])
    np.testing.assert_array_equal(turned, machine.predict(frame)[::-1])
    lazy = machine.predict(dd.from_pandas(frame, npartitions=3))
    np.testing.assert_array_equal(lazy.compute(), machine.predict(frame))


def test_one_class_and_unseen_labels_may_be_scored() -> None:
    X, codes = rows(300, 2)
    machine = classifier().fit(X, codes)
    assert machine.score(X[codes == 1], codes[codes == 1]) > 0.5
    assert machine.score(X, np.full(300, 7)) == 0.0
    weight = np.random.default_rng(0).uniform(size=300)
    assert machine.score(X, codes, weight) == pytest.approx(
        accuracy_score(codes, machine.predict(X), sample_weight=weight)
    )
    lazy = da.from_array(X, chunks=(90, -1))
    assert machine.score(lazy, da.from_array(codes, chunks=70), da.from_array(weight, chunks=90)) == pytest.approx(
        machine.score(X, codes, weight)
    )


def test_r_squared_has_weights_and_is_lazy() -> None:
    X, y = load_diabetes(return_X_y=True)
    machine = regressor().fit(X, y)
    weight = np.random.default_rng(0).uniform(size=len(y))
    expected = r2_score(y, machine.predict(X), sample_weight=weight)
    assert machine.score(X, y, weight) == pytest.approx(expected)
    assert machine.score(da.from_array(X, chunks=(100, -1)), y, weight) == pytest.approx(expected)
    assert machine.score(as_dataset(X, y, weight)) == pytest.approx(expected)


def test_r_squared_of_lazy_rows_is_that_of_scikit_learn_far_from_zero_and_for_constants() -> None:
    X, y = load_diabetes(return_X_y=True)
    machine = regressor(solver="newton").fit(X, y)
    lazy = da.from_array(X, chunks=(100, -1))
    for targets in (y + 1e9, np.full(len(y), 3.0)):
        assert machine.score(lazy, targets) == pytest.approx(machine.score(X, targets), rel=1e-9)
    machine.fit(X, y + 1e9)
    assert machine.score(lazy, y + 1e9) == pytest.approx(machine.score(X, y + 1e9), rel=1e-6)


@pytest.mark.parametrize("form", ["array", "dask array", "dask frame"])
def test_rows_of_a_dask_frame_are_scored_against_targets_of_any_form(form: str) -> None:
    X, codes = rows(300, 2)
    machine = classifier().fit(X, codes)
    targets = {
        "array": codes,
        "dask array": da.from_array(codes, chunks=70),
        "dask frame": dd.from_pandas(pd.Series(codes), npartitions=4),
    }
    unsized = dd.from_pandas(pd.DataFrame(X), npartitions=3).to_dask_array()
    assert machine.score(unsized, targets[form]) == machine.score(X, codes)
    assert machine.score(da.from_array(X, chunks=(90, -1)), targets[form]) == machine.score(X, codes)


@pytest.mark.parametrize(("chunk", "n_classes"), [(1, 2), (7, 3)])
def test_a_row_has_the_same_bits_whichever_rows_come_with_it(chunk: int, n_classes: int) -> None:
    X, codes = rows(300, n_classes)
    machine = classifier().fit(X, codes)
    lazy = machine.decision_function(da.from_array(X, chunks=(chunk, -1)))
    assert_same_rows(lazy.compute(), machine.decision_function(X), atol=5e-6)


def test_missing_numbers_are_refused_in_lazy_rows_too() -> None:
    X, codes = rows(300, 2)
    machine = classifier().fit(X, codes)
    X[210, 1] = np.nan
    lazy = da.from_array(X, chunks=(100, -1))
    with pytest.raises(ValueError, match=r"X\[10, 1\] is NaN"):
        machine.predict(lazy).compute()
    with pytest.raises(ValueError, match=r"X\[10, 1\] is NaN"):
        machine.features_.transform(lazy).compute()


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_missing_numbers_of_a_frame_are_refused_where_fit_saw_none() -> None:
    X, codes = rows(300, 2)
    machine = classifier().fit(X, codes)
    frame = pd.DataFrame(X).add_prefix("x")
    np.testing.assert_array_equal(machine.predict(frame), machine.predict(X))
    frame.iloc[210, 1] = np.nan
    with pytest.raises(ValueError, match="is NaN"):
        machine.predict(frame)
    with pytest.raises(ValueError, match="is NaN"):
        machine.features_.transform(frame)


def test_several_targets_are_fitted_at_once() -> None:
    X, y = load_diabetes(return_X_y=True)
    both = np.column_stack([y, 3.0 * X[:, 2] - y])
    machine = regressor(solver="newton").fit(X, both)
    assert machine.predict(X).shape == both.shape
    single = regressor(solver="newton").fit(X, y)
    np.testing.assert_allclose(machine.predict(X)[:, 0], single.predict(X), rtol=1e-4)
    assert machine.score(as_dataset(X, both)) == pytest.approx(machine.score(X, both))
    assert machine.predict(as_dataset(X, both)).compute().columns.tolist() == ["prediction_0", "prediction_1"]


def test_probabilities_have_the_order_of_predictions_and_pay(digits: Any) -> None:
    X, y, Z, t = digits
    for machine in (classifier(calibrate=True, validation_fraction=0.2), classifier(loss="log_loss")):
        shares = machine.fit(X, y).predict_proba(Z)
        np.testing.assert_array_equal(machine.classes_[shares.argmax(axis=1)], machine.predict(Z))
        np.testing.assert_allclose(shares.sum(axis=1), 1.0, atol=1e-12)
        assert log_loss(t, shares) < 0.9
    calibrated = classifier(calibrate=True, validation_fraction=0.2).fit(X, y)
    assert calibrated.temperature_ > 0
    scores = calibrated.decision_function(Z)
    for factor in (0.3, 3.0):
        other = np.exp(factor * scores / calibrated.temperature_)
        assert log_loss(t, other / other.sum(axis=1, keepdims=True)) > log_loss(t, calibrated.predict_proba(Z))


def test_early_stopping_keeps_the_best_model(digits: Any) -> None:
    X, y, Z, t = digits
    machine = classifier(early_stopping=True, epochs=60, patience=2).fit(X, y)
    assert machine.n_epochs_ == len(machine.validation_losses_) < 60
    best = int(np.argmin(machine.validation_losses_))
    assert best >= machine.n_epochs_ - 3
    assert machine.score(Z, t) > 0.85


def test_class_weights_count_rows_of_a_class_more() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1_500, 4))
    codes = (X[:, 0] + 2.0 * generator.normal(size=1_500) > 3.0).astype(int)
    shares = [
        np.mean(classifier(class_weight=weight, **more).fit(X, codes).predict(X) == 1)
        for weight in (None, "balanced", {0: 1.0, 1: 16.0})
        for more in ({}, {"solver": "newton", "loss": "squared_hinge"})
    ]
    assert max(shares[:2]) < 0.1 < min(shares[2:])
    absent = classifier(class_weight={1: 0.0}).fit(X, codes)
    assert not absent.predict(X).any()


def test_weight_zero_is_a_row_that_is_not_there_and_units_do_not_matter() -> None:
    X, codes = rows(400, 2)
    weight = np.where(np.arange(400) % 3 == 0, 0.0, 1.0)
    machine = classifier(features=RandomFeatures(Gaussian(1.0), n_features=60, random_state=0))
    spoiled = np.where(weight[:, None] == 0, 1e6, X)
    np.testing.assert_array_equal(
        clone(machine).fit(X, codes, weight).predict(X), clone(machine).fit(spoiled, codes, weight).predict(X)
    )
    one, thousand = (clone(machine).fit(X, codes, unit * weight).decision_function(X) for unit in (1.0, 1024.0))
    np.testing.assert_allclose(one, thousand, rtol=1e-6)


def test_newton_sees_weight_two_as_the_row_twice() -> None:
    X, codes = rows(300, 3)
    weight = np.random.default_rng(5).integers(0, 3, 300)
    repeated = np.repeat(np.arange(300), weight)
    features = RandomFeatures(Gaussian(1.0), n_features=60, random_state=0)
    machine = classifier(solver="newton", loss="squared_hinge", features=features)
    by_weight = clone(machine).fit(X, codes, weight)
    by_rows = clone(machine).fit(X[repeated], codes[repeated])
    np.testing.assert_allclose(by_weight.decision_function(X), by_rows.decision_function(X), atol=2e-4)


def test_partial_fit_goes_on_from_fit() -> None:
    X, codes = rows(4_000, 3)
    y = np.array(["a", "b", "c"])[codes]
    machine = classifier(epochs=1, features=RandomFeatures(Gaussian(1.0), n_features=100)).fit(X[:60], y[:60])
    before, clock = machine.score(X[2_000:], y[2_000:]), machine.linear_.t_
    for start in range(60, 2_000, 485):
        machine.partial_fit(X[start : start + 485], y[start : start + 485])
    assert machine.score(X[2_000:], y[2_000:]) > before + 0.01
    assert machine.linear_.t_ == clock + 1_940
    # a block in which two classes are absent
    machine.partial_fit(X[codes == 1][:100], y[codes == 1][:100], classes=["a", "b", "c"])
    assert machine.classes_.tolist() == ["a", "b", "c"]


def test_partial_fit_encodes_further_frames_as_fit_did() -> None:
    letters = np.array(["u", "v", "w"])[np.arange(300) % 3]
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=300), "letter": letters})
    target = (letters == "w").astype(int)
    further = frame[letters != "u"]
    eager = classifier().fit(frame, target).partial_fit(further, target[further.index])
    lazy = classifier().fit(frame, target)
    lazy.partial_fit(dd.from_pandas(further.reset_index(drop=True), npartitions=1), target[further.index])
    np.testing.assert_array_equal(eager.linear_.coef_, lazy.linear_.coef_)


def test_partial_fit_refuses_a_dataset_of_other_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(30.0), "letter": ["u", "v", "w"] * 10})
    target = np.arange(30) % 2
    machine = classifier().fit(frame, target)
    other = dkl.create_dataset(str(tmp_path / "other"), frame.replace("u", "z"), target)
    with pytest.raises(ValueError, match=r"column 1 of .*'letter=v', but KernelClassifier was fitted with 'letter=u'"):
        machine.partial_fit(other)


def test_partial_fit_refuses_a_dataset_of_other_classes() -> None:
    X, codes = rows(300, 2)
    machine = classifier().fit(X, codes)
    machine.partial_fit(as_dataset(X, codes))
    with pytest.raises(ValueError, match=r"classes \[1, 2\], but fit has found \[0, 1\]"):
        machine.partial_fit(as_dataset(X, codes + 1))


def test_partial_fit_of_a_regressor_keeps_the_units() -> None:
    X, y = load_diabetes(return_X_y=True)
    machine = regressor().fit(X[:300], y[:300])
    before = machine.score(X[300:], y[300:])
    assert machine.partial_fit(X[:300], y[:300]).score(X[300:], y[300:]) > before - 0.05


def test_the_seed_of_the_machine_is_that_of_its_features(digits: Any) -> None:
    X, y, Z, _ = digits
    first, second = (classifier(random_state=7).fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(first.decision_function(Z), second.decision_function(Z))
    drawn = classifier(random_state=None).fit(X, y)
    again = classifier(random_state=drawn.seed_).fit(X, y)
    np.testing.assert_array_equal(drawn.decision_function(Z), again.decision_function(Z))


def test_cross_validation_takes_it_as_any_estimator() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    machine = classifier(features=RandomFeatures(n_features=60, scaling="standard"))
    assert cross_val_score(machine, X, y, cv=3).mean() > 0.93


@pytest.mark.parametrize("solver", ["sgd", "newton"])
def test_threads_do_not_change_the_bits(solver: str) -> None:
    X, codes = rows(1_000, 3)
    data = dataset(X, codes, rows_a_block=60)
    loss = "hinge" if solver == "sgd" else "squared_hinge"
    machine = classifier(solver=solver, loss=loss, calibrate=True, early_stopping=solver == "sgd")
    with dask.config.set(scheduler="sync"):
        expected = clone(machine).fit(data)
    with dask.config.set(scheduler="threads", num_workers=3):
        found = clone(machine).fit(data)
    np.testing.assert_array_equal(found.linear_.coef_, expected.linear_.coef_)
    np.testing.assert_array_equal(found.linear_.intercept_, expected.linear_.intercept_)
    assert found.temperature_ == expected.temperature_


def test_two_workers_give_the_bits_of_none(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    X, codes = rows(600, 3)
    data = dkl.create_dataset(tmp_path / "rows.zarr", X, codes, rows_a_block=150)
    results = []
    for cluster in (False, True):
        if cluster:
            request.getfixturevalue("client")
        stochastic = classifier(early_stopping=True, epochs=3, calibrate=True).fit(data)
        exact = classifier(solver="newton", loss="squared_hinge").fit(data)
        lazy = stochastic.predict_proba(data).compute().to_numpy()
        results.append((stochastic.linear_.coef_, exact.linear_.coef_, stochastic.temperature_, lazy))
    for here, there in zip(*results, strict=True):
        np.testing.assert_array_equal(here, there)


def test_a_finished_checkpoint_returns_and_another_fit_is_refused(tmp_path: Path) -> None:
    X, codes = rows(500, 2)
    machine = classifier(checkpoint=str(tmp_path / "run"), early_stopping=True)
    first = clone(machine).fit(X, codes)
    again = clone(machine).fit(X, codes)
    np.testing.assert_array_equal(first.linear_.coef_, again.linear_.coef_)
    with pytest.raises(dkl.errors.StoreError, match="another run"):
        clone(machine).set_params(alpha=0.5).fit(X, codes)


def test_a_learner_in_the_checkpoint_folder_of_its_machine_is_the_error_and_nothing_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    features = RandomFeatures(n_features=60, checkpoint=f"{folder}/")
    with pytest.raises(ValueError, match=r"run/' is the folder of KernelClassifier and of RandomFeatures"):
        classifier(features=features, checkpoint=str(folder)).fit(SQUARE, TWO)
    several = [AlignedFeatures(n_candidates=40, n_features=8, checkpoint=str(folder)), features]
    with pytest.raises(ValueError, match=r"run/' is the folder of AlignedFeatures and of RandomFeatures"):
        classifier(features=several).fit(SQUARE, TWO)
    assert not folder.exists()


class Interrupted(Exception):
    """What a test raises in the middle of a fit."""


def test_what_has_no_effect_on_a_fit_may_differ_when_it_resumes(tmp_path: Path) -> None:
    X, codes = rows(300, 2)

    def machine(**options: Any) -> KernelClassifier:
        features = RandomFeatures(n_features=60, **options)
        return classifier(features=features, checkpoint=str(tmp_path / "run"))

    first = machine(progress=lambda event: None).fit(X, codes)
    again = machine(memory_limit="1 GiB").fit(X, codes)
    np.testing.assert_array_equal(first.linear_.coef_, again.linear_.coef_)


@pytest.mark.parametrize(("solver", "passes"), [("sgd", 4), ("newton", 3)])
def test_a_fit_that_was_broken_off_resumes_to_the_same_bits(solver: str, passes: int, tmp_path: Path) -> None:
    X, codes = rows(500, 3)
    seen = []

    def stop(event: Any) -> None:
        if event.kind == "started" and event.name not in ("rounds",):
            seen.append(event.name)
            if len(seen) == passes:
                raise Interrupted

    loss = "hinge" if solver == "sgd" else "squared_hinge"
    machine = classifier(solver=solver, loss=loss, checkpoint=str(tmp_path / "run"))
    with pytest.raises(Interrupted):
        clone(machine).set_params(progress=stop).fit(X, codes)
    resumed = clone(machine).fit(X, codes)
    np.testing.assert_array_equal(
        resumed.linear_.coef_, clone(machine).set_params(checkpoint=None).fit(X, codes).linear_.coef_
    )


SQUARE = np.arange(20.0).reshape(10, 2)
TWO = np.array([0, 1] * 5)
REFUSED: dict[str, tuple[Any, str]] = {
    "unknown loss": (lambda: classifier(loss="squared").fit(SQUARE, TWO), "'loss' parameter.*'hinge'.*'squared'"),
    "a loss of regressors": (lambda: classifier(loss="huber").fit(SQUARE, TWO), "'loss' parameter"),
    "alpha 0": (lambda: classifier(alpha=0.0).fit(SQUARE, TWO), r"'alpha' parameter.*\(0.*Got 0.0"),
    "alpha negative": (lambda: regressor(alpha=-1.0).fit(SQUARE, TWO), "'alpha' parameter"),
    "alpha a text": (lambda: classifier(alpha="small").fit(SQUARE, TWO), "'alpha' parameter"),
    "no epochs": (lambda: classifier(epochs=0).fit(SQUARE, TWO), "'epochs' parameter.*Got 0"),
    "unknown solver": (lambda: classifier(solver="lbfgs").fit(SQUARE, TWO), "'solver' parameter.*'newton'"),
    "unknown features": (lambda: classifier(features="best").fit(SQUARE, TWO), "'features' parameter.*'aligned'"),
    "features that are none": (lambda: classifier(features=3).fit(SQUARE, TWO), "'features' parameter"),
    "all rows held out": (
        lambda: classifier(early_stopping=True, validation_fraction=1.0).fit(SQUARE, TWO),
        "'validation_fraction' parameter",
    ),
    "no row left": (
        lambda: classifier(early_stopping=True, validation_fraction=0.999999).fit(SQUARE, TWO),
        "all are held out.*smaller validation_fraction",
    ),
    "no row held out": (
        lambda: classifier(calibrate=True, validation_fraction=1e-9).fit(SQUARE, TWO),
        "no row is held out.*larger fraction",
    ),
    "no row to stop early by": (
        lambda: classifier(early_stopping=True, validation_fraction=1e-9).fit(SQUARE, TWO),
        "no row is held out.*larger fraction",
    ),
    "features of another kind": (
        lambda: classifier(features=StandardScaler()).fit(SQUARE, TWO),
        r"'features' parameter.*feature learner.*StandardScaler\(\).*pipeline",
    ),
    "a class weight that is no number": (
        lambda: classifier(class_weight={0: "much"}).fit(SQUARE, TWO),
        r"class_weight\[0\] must be a finite number >= 0, got 'much'",
    ),
    "patience 0": (lambda: classifier(patience=0).fit(SQUARE, TWO), "'patience' parameter"),
    "newton without a hessian": (
        lambda: classifier(solver="newton", loss="hinge").fit(SQUARE, TWO),
        "needs a loss with a Hessian: loss='squared_hinge'.*solver='sgd'",
    ),
    "newton without a bend": (
        lambda: regressor(solver="newton", loss="epsilon_insensitive").fit(SQUARE, TWO),
        "loss='squared_error'",
    ),
    "newton stopped early": (
        lambda: classifier(solver="newton", loss="squared_hinge", early_stopping=True).fit(SQUARE, TWO),
        "early_stopping has no meaning",
    ),
    "one class": (lambda: classifier().fit(SQUARE, np.zeros(10)), "class"),
    "no target": (lambda: classifier().fit(SQUARE), "requires y"),
    "a label that is no class": (lambda: classifier(class_weight={7: 1.0}).fit(SQUARE, TWO), "names the class 7"),
    "regression targets": (lambda: classifier().fit(SQUARE, np.linspace(0.0, 1.0, 10)), "(?i)continuous|label|class"),
    "columns at predict": (lambda: classifier().fit(SQUARE, TWO).predict(np.ones((3, 5))), "5 features.*expecting 2"),
    "columns of a lazy predict": (
        lambda: classifier().fit(SQUARE, TWO).predict(da.ones((3, 5))),
        "5 features.*expecting 2",
    ),
    "columns of a dataset": (
        lambda: classifier().fit(SQUARE, TWO).predict(as_dataset(np.ones((3, 5)))),
        "5 features.*expecting 2",
    ),
    "columns at partial_fit": (
        lambda: classifier().fit(SQUARE, TWO).partial_fit(np.ones((10, 5)), TWO),
        "5 features.*expecting 2",
    ),
    "an unknown label at partial_fit": (
        lambda: classifier().fit(SQUARE, TWO).partial_fit(SQUARE, TWO + 1),
        "2",
    ),
    "other classes at partial_fit": (
        lambda: classifier().fit(SQUARE, TWO).partial_fit(SQUARE, TWO, classes=[0, 1, 2]),
        "fit has found the classes",
    ),
    "predict before fit": (lambda: classifier().predict(SQUARE), "not fitted"),
    "y beside a dataset": (lambda: classifier().fit(as_dataset(SQUARE, TWO), TWO), "beside a Dataset"),
    "score with y beside a dataset": (
        lambda: classifier().fit(SQUARE, TWO).score(as_dataset(SQUARE, TWO), TWO),
        "beside a Dataset",
    ),
    "score without a target": (lambda: classifier().fit(SQUARE, TWO).score(SQUARE), "requires y"),
    "a dataset for classes": (
        lambda: regressor().fit(as_dataset(SQUARE, np.where(TWO, "a", "b"))),
        "labels such as 'a', not numbers; take KernelClassifier",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_input_is_one_clear_error(case: str) -> None:
    attempt, message = REFUSED[case]
    with pytest.raises((ValueError, NotFittedError), match=message):
        attempt()


def test_the_first_partial_fit_is_fit_and_knows_classes_that_are_still_to_come() -> None:
    X, codes = rows(600, 3)
    two = codes < 2
    machine = classifier().partial_fit(X[two], codes[two], classes=[0, 1, 2])
    np.testing.assert_array_equal(machine.classes_, [0, 1, 2])
    for _ in range(4):
        machine.partial_fit(X, codes)
    assert machine.score(X[codes == 2], codes[codes == 2]) > 0.5
    once, fitted = regressor().partial_fit(SQUARE, SQUARE[:, 0]), regressor().fit(SQUARE, SQUARE[:, 0])
    np.testing.assert_array_equal(once.predict(SQUARE), fitted.predict(SQUARE))


def test_an_exact_head_has_no_partial_fit() -> None:
    assert not hasattr(classifier(solver="newton", loss="squared_hinge").fit(SQUARE, TWO), "partial_fit")


def test_there_are_no_probabilities_without_calibration() -> None:
    machine = classifier().fit(SQUARE, TWO)
    assert not hasattr(machine, "predict_proba")
    with pytest.raises(AttributeError, match=r"no attribute 'predict_proba'.*calibrate=True"):
        machine.predict_proba(SQUARE)
    with pytest.raises(AttributeError, match=r"no attribute 'predict_set'.*calibrate=True"):
        machine.predict_set(SQUARE)


@pytest.mark.parametrize(
    ("loss", "features"),
    [
        ("squared_hinge", RandomFeatures(n_features=100)),
        pytest.param("squared_error", MarginFeatures(n_features=30), marks=pytest.mark.slow),
    ],
)
def test_rows_that_judge_the_penalty_find_the_temperature_in_the_same_passes(
    tmp_path: Path, loss: str, features: Any
) -> None:
    X, Z = (load_digits().data[start::4] / 16.0 for start in (0, 1))
    y, t = (load_digits().target[start::4] for start in (0, 1))
    events: dict[Any, list[Any]] = {None: [], False: []}
    options = {"features": features, "alpha": "auto", "solver": "newton", "loss": loss}
    machines = {each: classifier(**options, calibrate=each, progress=seen.append) for each, seen in events.items()}
    assert [hasattr(machine, "predict_proba") for machine in machines.values()] == [True, False]
    model, plain = (machine.fit(X, y) for machine in machines.values())
    assert [hasattr(machine, "predict_proba") for machine in (model, plain)] == [True, False]
    begun, of_plain = ([event.name for event in seen if event.kind == "started"] for seen in events.values())
    assert begun == of_plain
    # all rows are fitted, as without probabilities
    np.testing.assert_array_equal(model.decision_function(Z), plain.decision_function(Z))
    scores, shares = model.decision_function(Z), model.predict_proba(Z)
    np.testing.assert_allclose(shares, softmax(scores / model.temperature_, axis=1), atol=1e-12)
    best = min(log_loss(t, softmax(scores / at, axis=1)) for at in np.geomspace(0.01, 10.0, 60))
    assert log_loss(t, shares) < 1.1 * best
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict_proba(Z), shares)


@pytest.mark.parametrize(("n_classes", "weight"), [(2, None), (10, 3.0)])
def test_rows_that_judge_the_epochs_find_the_temperature_in_the_same_passes(
    tmp_path: Path, n_classes: int, weight: float | None
) -> None:
    X, y = load_digits().data[::2] / 16.0, load_digits().target[::2] % n_classes
    weights = None if weight is None else np.full(len(y), weight)
    events: dict[Any, list[Any]] = {None: [], True: [], False: []}
    options = {"loss": "hinge", "early_stopping": True, "epochs": 5, "validation_fraction": 0.2}
    machines = {each: classifier(**options, calibrate=each, progress=seen.append) for each, seen in events.items()}
    assert [hasattr(machine, "predict_proba") for machine in machines.values()] == [True, True, False]
    model, asked, plain = (machine.fit(X, y, sample_weight=weights) for machine in machines.values())
    assert not hasattr(plain, "predict_proba")
    begun = {each: [event.name for event in seen if event.kind == "started"] for each, seen in events.items()}
    assert begun[None] == begun[False]
    assert len(begun[True]) == len(begun[None]) + 1
    np.testing.assert_array_equal(model.decision_function(X), plain.decision_function(X))
    # the temperature of the pass that calibrate=True takes
    assert model.temperature_ == pytest.approx(asked.temperature_, rel=1e-9)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict_proba(X), model.predict_proba(X))


def test_a_column_of_labels_is_taken_with_a_warning() -> None:
    with pytest.warns(DataConversionWarning, match="column-vector"):
        classifier().fit(SQUARE, TWO[:, None])


def test_learned_features_are_those_of_the_learner_alone(digits: Any) -> None:
    X, y, _, _ = digits
    learner = AlignedFeatures(n_candidates=100, n_features=30, random_state=4)
    machine = classifier(features=learner).fit(X, y)
    np.testing.assert_array_equal(machine.features_.transform(X), clone(learner).fit(X, y).transform(X))
    assert not hasattr(learner, "feature_map_")


@pytest.mark.parametrize("machine", [regressor(), classifier(), dkl.MarginFeatures(), dkl.TunedRegressor()])
def test_notebooks_and_completion_may_ask_for_every_attribute(machine: Any) -> None:
    """What a fit has not left is no attribute: another error would end `dir`, and with it Tab and the page of HTML."""
    X, y = rows(60, 2)
    for model in (machine, machine.fit(X, y) if isinstance(machine, KernelClassifier | KernelRegressor) else machine):
        assert "fit" in dir(model)
        assert not [name for name in dir(model) if name == "noise_"]
        assert type(model).__name__ in model._repr_html_()


def test_a_regressor_without_a_gram_matrix_says_so_when_its_noise_is_asked_for() -> None:
    model = regressor(solver="sgd").fit(rows(60, 3)[0], np.arange(60.0))
    with pytest.raises(AttributeError, match="has no deviations"):
        _ = model.noise_


def test_a_machine_that_was_never_fitted_says_so_when_its_noise_is_asked_for() -> None:
    with pytest.raises(AttributeError, match="is not fitted yet"):
        _ = regressor().noise_
