"""SGD estimators on arrays that scikit-learn cannot take do what scikit-learn's do on NumPy's."""

from __future__ import annotations

import pickle
from typing import Any

import array_api_strict
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier, SGDRegressor

from dkl.kernels.device import rows_on
from dkl.linear.array_sgd import (
    ArraySGDClassifier,
    ArraySGDRegressor,
    default_estimator,
    fitted_estimator,
    rules_of,
)
from dkl.linear.minibatches import Minibatch
from dkl.linear.sgd import first_state, sgd_step, step_schedule
from tests.linear.problems import rows

places = pytest.mark.parametrize("place", ["strict", pytest.param("gpu", marks=pytest.mark.gpu)])


def placed(X: np.ndarray, place: str) -> Any:
    """Rows as arrays that scikit-learn refuses."""
    return rows_on(X, "gpu") if place == "gpu" else array_api_strict.asarray(X)


def problem(n_classes: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, codes = rows(120, n_classes)
    return X, np.array(["a", "b", "c"])[codes], np.random.default_rng(7).integers(0, 3, 120).astype(float)


@places
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_classifier_is_scikit_learns_call_by_call(n_classes: int, place: str) -> None:
    X, y, weight = problem(n_classes)
    classes = np.unique(y)
    options: dict[str, Any] = {"loss": "log_loss", "penalty": "elasticnet", "alpha": 0.01, "shuffle": False}
    options["class_weight"] = {"a": 2.0, "b": 0.5}
    ours, theirs = ArraySGDClassifier(**options), SGDClassifier(**options)
    for part in (slice(50), slice(50, 120)):
        ours.partial_fit(placed(X[part], place), y[part], classes, weight[part])
        theirs.partial_fit(X[part], y[part], classes, weight[part])
    assert ours.t_ == theirs.t_
    assert ours.coef_.shape == theirs.coef_.shape
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-11)
    there = placed(X, place)
    np.testing.assert_allclose(ours.decision_function(there), theirs.decision_function(X), rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(ours.predict_proba(there), theirs.predict_proba(X), rtol=1e-9)
    np.testing.assert_array_equal(ours.predict(there), theirs.predict(X))


@places
@pytest.mark.parametrize("average", [False, True, 60])
def test_a_regressor_is_scikit_learns_call_by_call(average: Any, place: str) -> None:
    X, _, weight = problem(2)
    y = X @ np.arange(1.0, 5.0)
    options: dict[str, Any] = {"loss": "huber", "epsilon": 1.0, "average": average, "shuffle": False}
    ours, theirs = ArraySGDRegressor(**options), SGDRegressor(**options)
    for part in (slice(50), slice(50, 120)):
        ours.partial_fit(placed(X[part], place), y[part], weight[part])
        theirs.partial_fit(X[part], y[part], weight[part])
    np.testing.assert_allclose(ours.coef_, theirs.coef_, rtol=1e-11)
    np.testing.assert_allclose(ours.intercept_, theirs.intercept_, rtol=1e-11)
    np.testing.assert_allclose(ours.predict(placed(X, place)), theirs.predict(X), rtol=1e-10, atol=1e-12)


def test_on_numpys_rows_they_are_scikit_learn() -> None:
    X, y, _ = problem(2)
    ours = clone(ArraySGDClassifier(random_state=0)).partial_fit(X, y, ["a", "b"])
    theirs = SGDClassifier(random_state=0).partial_fit(X, y, ["a", "b"])
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    np.testing.assert_array_equal(ours.decision_function(X), theirs.decision_function(X))
    ours.partial_fit(array_api_strict.asarray(X), y)
    assert ours.t_ == 241


@places
@pytest.mark.parametrize("options", [{"loss": "perceptron"}, {"learning_rate": "pa1", "eta0": 0.3, "penalty": None}])
def test_losses_and_steps_of_scikit_learn_alone_are_taken_by_it(options: dict[str, Any], place: str) -> None:
    X, y, weight = problem(2)
    kind = {"shuffle": False, **options}
    ours = ArraySGDClassifier(**kind).partial_fit(placed(X, place), y, ["a", "b"], weight)
    theirs = SGDClassifier(**kind).partial_fit(X, y, ["a", "b"], weight)
    np.testing.assert_array_equal(ours.coef_, theirs.coef_)
    with pytest.raises(ValueError, match="has steps in scikit-learn alone"):
        ArraySGDRegressor("squared_epsilon_insensitive").partial_fit(placed(X, place), np.ones((120, 2)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ["z"] * 120}, r"y\[0\] is np.str_\('z'\), which is not among the classes \['a', 'b'\]"),
        ({"X": np.ones((120, 9))}, "X has 9 features, but the model has 4"),
        ({"X": np.full((120, 4), 1e308)}, "overflow in steps on 120 rows; scale the rows"),
        ({"X": np.full((120, 4), np.inf)}, "overflow in steps on 120 rows; scale the rows"),  # scores are not numbers
    ],
)
def test_errors_say_what_is_wrong(change: dict[str, Any], message: str) -> None:
    X, y, _ = problem(2)
    model = ArraySGDClassifier("squared_hinge").partial_fit(array_api_strict.asarray(X), y, ["a", "b"])
    given = {"X": X, "y": y, **change}
    with pytest.raises(ValueError, match=message), np.errstate(all="ignore"):
        model.partial_fit(array_api_strict.asarray(given["X"]), given["y"])


def test_bad_parameters_are_scikit_learns_errors() -> None:
    X, y, _ = problem(2)
    with pytest.raises(ValueError, match="The 'alpha' parameter of ArraySGDClassifier"):
        ArraySGDClassifier(alpha=-1.0).partial_fit(array_api_strict.asarray(X), y, ["a", "b"])
    with pytest.raises(ValueError, match="classes must be passed on the first call"):
        ArraySGDClassifier().partial_fit(array_api_strict.asarray(X), y)


@places
@pytest.mark.parametrize("loss", ["hinge", "squared_error"])
def test_an_epoch_takes_the_same_steps_on_either_device(loss: str, place: str) -> None:
    X, codes = rows(700, 3)
    classes = None if loss == "squared_error" else np.arange(3)
    schedule = step_schedule(loss, alpha=1e-3, square_length=4.0, largest=30.0)
    rules = rules_of(default_estimator(loss, schedule, alpha=1e-3), 1 if classes is None else 3)
    operands = {"rules": rules, "classes": classes, "batch_rows": 256}
    y = codes if classes is not None else codes - 1.0
    first = first_state(1 if classes is None else 3, 4, dtype="float64", clock=schedule.clock)
    found = sgd_step(first, Minibatch(placed(X, place), y, np.ones(700)), operands)
    expected = sgd_step(first, Minibatch(X, y, np.ones(700)), operands)
    for name, value in vars(expected).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-10, atol=1e-13, err_msg=name)


@pytest.mark.parametrize(("dtype", "rtol"), [("float32", 1e-4), ("float64", 1e-10)])
@pytest.mark.parametrize(("loss", "n_classes"), [("hinge", 2), ("log_loss", 3), ("epsilon_insensitive", 0)])
def test_a_minibatch_is_stepped_through_as_by_partial_fit(loss: str, n_classes: int, dtype: str, rtol: float) -> None:
    """Batch by batch, the state being the last iterate and the average whose weights grow with the eighth power."""
    X, codes = rows(600, max(2, n_classes))
    X, weight = X.astype(dtype), np.random.default_rng(7).integers(0, 3, 600).astype(float)
    labels = np.array(["a", "b", "c"])
    classes, y = (labels[:n_classes], labels[codes]) if n_classes else (None, codes - 0.3)
    K = 3 if n_classes == 3 else 1
    schedule = step_schedule(loss, alpha=1e-3, square_length=4.0, largest=30.0)
    estimator, first = default_estimator(loss, schedule, alpha=1e-3), first_state(K, 4, dtype=dtype, clock=5.0)
    found = sgd_step(
        first, Minibatch(X, y, weight), {"rules": rules_of(estimator, K), "classes": classes, "batch_rows": 256}
    )
    model = fitted_estimator(estimator, np.zeros((K, 4), dtype), np.zeros(K, dtype), classes=classes, clock=5.0)
    average, known = np.zeros((K, 4)), {} if classes is None else {"classes": classes}
    for number, batch in enumerate((slice(256), slice(256, 512), slice(512, 600)), 1):
        model.partial_fit(X[batch], y[batch], sample_weight=weight[batch], **known)
        average += 9.0 / (number + 8.0) * (np.atleast_2d(model.coef_) - average)
    assert found.clock == 605.0
    assert found.coef.dtype == dtype
    for ours, theirs in ((found.coef, model.coef_), (found.average_coef, average), (found.intercept, model.intercept_)):
        np.testing.assert_allclose(ours, theirs.reshape(ours.shape), rtol=rtol, atol=rtol * np.abs(theirs).max())
    assert not first.coef.any()


def test_a_minibatch_travels_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's rows reach a process without one as NumPy's."""
    minibatch = Minibatch(np.ones((2, 3)), np.arange(2), None)
    monkeypatch.setattr("dkl.kernels.device.is_on_gpu", lambda x: x is not None)
    monkeypatch.setattr("dkl.kernels.device.why_no_gpu", lambda: "there is none")
    arrived = pickle.loads(pickle.dumps(minibatch))
    np.testing.assert_array_equal(arrived.phi, minibatch.phi)
