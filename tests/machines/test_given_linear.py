"""A machine fits the linear model that it is given by that model's own `partial_fit`, dask-ml's among them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask_ml.wrappers import Incremental
from distributed import Client
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB

import dkl

N_BLOCKS, ROWS = 6, 200


def features() -> dkl.RandomFeatures:
    return dkl.RandomFeatures(n_features=40, dtype="float64", random_state=0)


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_BLOCKS * ROWS, 3))
    return X, np.where(X[:, 0] * X[:, 1] > 0, "same", "other")


def blocks(X: np.ndarray, y: np.ndarray) -> dkl.Dataset:
    return dkl.create_dataset("memory://given_linear", X, y, rows_a_block=ROWS, shuffle=False, overwrite=True)


def machine(linear: Any, **options: Any) -> dkl.KernelClassifier:
    return dkl.KernelClassifier(features(), linear=linear, random_state=0, **options)


def test_dask_mls_own_partial_fit_is_called_once_a_block_in_stored_order(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = rows()
    seen: list[np.ndarray] = []
    own = Incremental.partial_fit

    def counted(self: Incremental, phi: np.ndarray, labels: np.ndarray, **options: Any) -> Incremental:
        seen.append(phi)
        return own(self, phi, labels, **options)

    monkeypatch.setattr(Incremental, "partial_fit", counted)
    linear = Incremental(SGDClassifier(loss="log_loss", random_state=0))
    model = machine(linear, epochs=2).fit(blocks(X, y))
    assert len(seen) == 2 * N_BLOCKS
    mapped = model.features_.transform(X)
    for number, phi in enumerate(seen):
        first = number % N_BLOCKS * ROWS
        np.testing.assert_array_equal(phi, mapped[first : first + ROWS])


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_it_is_the_plain_loop_of_partial_fit_over_mapped_blocks(loss: str) -> None:
    X, y = rows()
    model = machine(Incremental(SGDClassifier(loss=loss, random_state=0))).fit(blocks(X, y))
    phi, plain = model.features_.transform(X), SGDClassifier(loss=loss, random_state=0)
    for start in range(0, len(phi), ROWS):
        plain.partial_fit(phi[start : start + ROWS], y[start : start + ROWS], classes=["other", "same"])
    np.testing.assert_array_equal(model.linear_.coef_, plain.coef_)
    np.testing.assert_array_equal(model.predict(X), plain.predict(phi))
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(phi), rtol=1e-12)
    assert hasattr(model, "predict_proba") == (loss == "log_loss")
    if loss == "log_loss":
        np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(phi), rtol=1e-6)


def test_without_the_wrapper_it_is_block_incremental_on_the_feature_map() -> None:
    ds, linear = blocks(*rows()), SGDClassifier(random_state=0)
    model = machine(linear, epochs=3).fit(ds)
    alone = dkl.BlockIncremental(linear, epochs=3, feature_map=model.feature_map_, random_state=0).fit(ds)
    assert model.linear_.t_ == alone.estimator_.t_ == 3 * N_BLOCKS * ROWS + 1
    assert min(alone.score(ds), model.score(*rows())) > 0.7  # one seed for the other's: other rows come first


def test_the_lazy_features_fit_dask_mls_wrapper_to_the_same_model() -> None:
    ds, linear = blocks(*rows()), Incremental(SGDClassifier(random_state=0), shuffle_blocks=False)
    model = machine(linear).fit(ds)
    phi = model.features_.transform(ds.X)
    assert isinstance(phi, da.Array)
    lazy = clone(linear).fit(phi, ds.y, classes=model.classes_)
    np.testing.assert_allclose(lazy.coef_, model.linear_.coef_, rtol=1e-12)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_an_estimator_without_coefficients_answers_by_its_probabilities(n_classes: int, tmp_path: Path) -> None:
    X, _ = rows()
    y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 1.0) * (n_classes - 2)
    model = machine(GaussianNB()).fit(blocks(X, y))
    phi = model.features_.transform(X)
    plain = GaussianNB().fit(phi, y)
    np.testing.assert_allclose(model.predict_proba(X), plain.predict_proba(phi), atol=1e-6)
    np.testing.assert_array_equal(model.predict(X), plain.predict(phi))
    with pytest.raises(TypeError, match=r"GaussianNB.*nothing is pickled.*coef_"):
        model.save(tmp_path / "model")
    with pytest.raises(TypeError, match="GaussianNB has no coefficients"):
        model.predictor()


@pytest.mark.parametrize("linear", [Incremental(SGDClassifier(loss="log_loss", random_state=0)), Perceptron()])
def test_what_is_linear_is_saved_by_its_coefficients(linear: Any, tmp_path: Path) -> None:
    X, y = rows()
    model = machine(linear).fit(blocks(X, y))
    model.save(tmp_path / "model")
    again = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))
    assert hasattr(again, "predict_proba") == hasattr(model, "predict_proba")


def test_a_regressor_answers_in_the_units_of_its_targets(tmp_path: Path) -> None:
    X, _ = rows()
    y = 1_000.0 + 300.0 * X[:, 0] * X[:, 1]
    model = dkl.KernelRegressor(features(), linear=Incremental(SGDRegressor(random_state=0)), epochs=5, random_state=0)
    model.fit(blocks(X, y))
    phi, plain, scaled = model.features_.transform(X), SGDRegressor(random_state=0), (y - y.mean()) / y.std()
    for start in 5 * list(range(0, len(y), ROWS)):
        plain.partial_fit(phi[start : start + ROWS], scaled[start : start + ROWS])
    np.testing.assert_allclose(model.predict(X), y.mean() + y.std() * plain.predict(phi), rtol=1e-9)
    np.testing.assert_allclose(model.predict(X), phi @ model.linear_.coef_ + model.linear_.intercept_, rtol=1e-9)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model").predict(X), model.predict(X))


def test_weights_and_class_weights_reach_partial_fit() -> None:
    X, y = rows()
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    model = dkl.KernelClassifier(features(), linear=GaussianNB(), class_weight={"same": 5.0}, random_state=0)
    model.fit(X, y, sample_weight=weight)
    plain = GaussianNB().fit(model.features_.transform(X), y, weight * np.where(y == "same", 5.0, 1.0))
    np.testing.assert_allclose(model.linear_.class_count_, plain.class_count_)
    np.testing.assert_allclose(model.linear_.theta_, plain.theta_, atol=1e-9)


def test_the_plan_counts_the_epochs() -> None:
    ds = blocks(*rows())
    one, three = (dkl.plan(machine(Incremental(SGDClassifier()), epochs=epochs), ds).n_passes for epochs in (1, 3))
    assert three == one + 2


def test_worker_processes_fit_the_same_bits(cluster: Any, tmp_path: Path) -> None:
    ds = dkl.create_dataset(tmp_path / "rows.zarr", *rows(), rows_a_block=ROWS)
    for linear in (Incremental(SGDClassifier(random_state=0)), SGDClassifier(random_state=0)):
        here = machine(linear, epochs=2).fit(ds).linear_.coef_
        with Client(cluster), dask.config.set({"dkl.local-bytes": 0}):
            np.testing.assert_array_equal(machine(linear, epochs=2).fit(ds).linear_.coef_, here)


class NoWeights(BaseEstimator):
    """A classifier whose `partial_fit` takes no weights."""

    _estimator_type = "classifier"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.estimator_type = "classifier"
        return tags

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: Any = None) -> NoWeights:
        return self


@pytest.mark.parametrize(
    ("linear", "options", "message"),
    [
        (SGDRegressor(), {}, "'linear' parameter of KernelClassifier must be a classifier"),
        (Incremental(SGDRegressor()), {}, "'linear' parameter of KernelClassifier must be a classifier"),
        (dkl.RandomFeatures(), {}, "'linear' parameter of KernelClassifier must be"),
        (SGDClassifier, {}, "'linear' parameter of KernelClassifier must be"),
        (SGDClassifier(), {"alpha": 1e-3}, r"alpha=0.001 is of the linear model that KernelClassifier fits"),
        (SGDClassifier(), {"loss": "hinge"}, r"loss='hinge' is of the linear model that KernelClassifier fits"),
        (SGDClassifier(), {"solver": "newton"}, r"solver='newton' is of the linear model"),
        (NoWeights(), {"class_weight": {"same": 2.0}}, "NoWeights.partial_fit takes no sample_weight"),
    ],
)
def test_mistakes_are_named(linear: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        machine(linear, **options).fit(*rows())
