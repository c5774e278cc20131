"""The deviation of a prediction is what Bayes' rule says of the same features, for rows of every form."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy.linalg import lapack, solve_triangular
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from threadpoolctl import threadpool_limits

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.families import Gaussian
from dkl.kernels.threads import one_blas_thread
from dkl.linear import head
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.uncertainty.posterior import CoefficientPosterior
from tests.definitions import uncertainty as definitions
from tests.kernels.cases import assert_same_rows

ALPHA = 1e-2


def rows(n: int = 120, d: int = 5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(n, d, noise=1.0, random_state=seed)
    return X, y


def regressor(n_features: int = 30, **parameters: Any) -> KernelRegressor:
    features = RandomFeatures(Gaussian(2.0), n_features=n_features, scaling=None, dtype="float64", random_state=1)
    return KernelRegressor(
        **{"features": features, "alpha": ALPHA, "solver": "newton", "random_state": 0, **parameters}
    )


def test_deviation_is_its_definition_with_weights_and_several_targets() -> None:
    X, y = rows()
    y, weight = np.column_stack([y, 100.0 - y**2]), np.arange(120) % 3 + 1.0
    model = regressor(12).fit(X, y, weight)
    phi, new = model.features_.transform(X), model.features_.transform(rows(20, seed=3)[0])
    _, std = model.predict(rows(20, seed=3)[0], return_std=True)
    for target in range(2):
        center, covariance, noise = definitions.posterior(phi, y[:, target], weight, ALPHA * weight.sum())
        expected = [noise * np.sqrt(1.0 + (row - center) @ covariance @ (row - center)) for row in new]
        np.testing.assert_allclose(std[:, target], expected, rtol=1e-9)
        assert np.atleast_1d(model.noise_)[target] == pytest.approx(noise, rel=1e-9)


def test_deviation_is_that_of_a_gaussian_process_on_the_same_features() -> None:
    X, y = rows()
    model = regressor().fit(X, y)
    phi, new = model.features_.transform(X), model.features_.transform(rows(50, seed=2)[0])
    # k(x, x') = noise^2 / lam phi.phi', and white noise beside it, on centred features and targets
    prior = model.noise_**2 / (ALPHA * len(y))
    kernel = ConstantKernel(prior) * DotProduct(0.0, sigma_0_bounds="fixed") + WhiteKernel(model.noise_**2)
    process = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(phi - phi.mean(axis=0), y - y.mean())
    expected, expected_std = process.predict(new - phi.mean(axis=0), return_std=True)
    found, std = model.predict(rows(50, seed=2)[0], return_std=True)
    np.testing.assert_allclose(found, expected + y.mean(), rtol=1e-8)
    np.testing.assert_allclose(std, expected_std, rtol=1e-8)


def test_deviation_comes_closer_to_that_of_the_kernel_with_the_number_of_features() -> None:
    X, y = rows()
    new = rows(80, seed=2)[0]
    errors = []
    for n_features in (20, 200, 2_000):
        model = regressor(n_features).fit(X, y)
        prior = model.noise_**2 / (ALPHA * len(y))
        kernel = ConstantKernel(prior) * RBF(2.0) + WhiteKernel(model.noise_**2)
        process = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None).fit(X, y - y.mean())
        _, expected = process.predict(new, return_std=True)
        _, std = model.predict(new, return_std=True)
        errors.append(np.abs(std / expected - 1.0).mean())
    assert errors[2] < errors[0]
    assert errors[2] < 0.03


def test_targets_drawn_by_the_model_are_as_far_off_as_it_says() -> None:
    # w ~ N(0, s^2 / lam), y = phi w + s e: standardised errors of new targets have variance 1
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(150, 3)), rng.normal(size=(150, 3))
    template = regressor(20).fit(X, X[:, 0])
    phi, further = (template.features_.transform(part) for part in (X, new))
    squares = []
    for _ in range(40):
        w = rng.normal(size=phi.shape[1]) * np.sqrt(1.0 / (ALPHA * len(X)))
        y, wanted = phi @ w + rng.normal(size=len(X)), further @ w + rng.normal(size=len(new))
        found, std = regressor(20).fit(X, y).predict(new, return_std=True)
        squares.append(np.mean(((wanted - found) / std) ** 2))
    assert np.mean(squares) == pytest.approx(1.0, abs=3.0 * np.std(squares) / np.sqrt(len(squares)) + 0.01)


@pytest.mark.parametrize("alpha", [1e-4, "auto"])
def test_noise_is_that_of_the_optimum_also_where_the_last_step_is_not_looked_at(alpha: Any) -> None:
    X, y = rows(400)
    model = regressor(12, alpha=alpha).fit(X, y)
    noise = definitions.posterior(model.features_.transform(X), y, np.ones(400), model.alpha_ * 400)[2]
    assert model.noise_ == pytest.approx(noise, rel=1e-8)


def test_float32_features_change_the_deviation_by_their_rounding() -> None:
    X, y = rows(2_000)
    exact, rounded = (
        regressor(features=RandomFeatures(Gaussian(2.0), n_features=200, dtype=dtype, random_state=1), alpha=1e-6)
        .fit(X, y)
        .predict(X, return_std=True)[1]
        for dtype in ("float64", "float32")
    )
    np.testing.assert_allclose(rounded, exact, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("m", [500])
def test_deviations_cost_at_most_a_product_and_three_tenths_beside_predict(m: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4_096, 10))
    features = RandomFeatures(Gaussian(2.0), n_features=m, random_state=0)
    model = KernelRegressor(features, alpha=1e-3, solver="newton", random_state=0).fit(X[:2_000], np.sin(X[:2_000, 0]))
    phi, square = model.features_.transform(X), rng.normal(size=(m, m)).astype(np.float32)
    calls = (lambda: model.predict(X), lambda: model.predict(X, return_std=True), lambda: phi @ square)
    costs = []
    for _ in range(7):
        costs.append([])
        for call in calls:
            with one_blas_thread():
                start = time.process_time()
                call()
                costs[-1].append(time.process_time() - start)
    plain, deviating, product = np.median(costs, axis=0)
    assert phi.dtype == np.float32
    assert deviating <= plain + 1.3 * product, f"{(deviating - plain) / product:.2f} products"


def test_products_of_float32_move_a_deviation_as_little_as_the_rounding_of_the_features() -> None:
    X, y = rows(2_000)
    features = RandomFeatures(Gaussian(2.0), n_features=300, random_state=1)
    model = KernelRegressor(features, alpha=1e-6, solver="newton", random_state=0).fit(X, y)
    # far from all rows, where lengths are largest
    phi = model.features_.transform(3.0 * rows(200, seed=2)[0])
    assert phi.dtype == np.float32
    found, exact = (model.posterior_.lengths(part) for part in (phi, phi.astype(np.float64)))
    triangle = lapack.dtpttr(300, model.posterior_.factor)[0]
    z = solve_triangular(triangle, (phi.astype(np.float64) - model.posterior_.center).T, trans="T")
    np.testing.assert_allclose(exact, (z**2).sum(axis=0), rtol=1e-9)
    assert exact.max() > 1.0
    np.testing.assert_allclose(np.sqrt(1.0 + found), np.sqrt(1.0 + exact), rtol=2e-6)


@pytest.mark.parametrize("targets", [1, 2])
def test_deviations_are_the_same_for_rows_of_every_form(targets: int) -> None:
    X, y = rows(700)
    y = y if targets == 1 else np.column_stack([y, -y])
    model = regressor().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    assert mean.shape == std.shape == y.shape
    assert_same_rows(mean, model.predict(X), atol=1e-9)
    for form in (X[::-1][::-1], da.from_array(X, chunks=(300, -1)), as_dataset(X, y)):
        other_mean, other_std = model.predict(form, return_std=True)
        if not isinstance(form, np.ndarray):
            assert dask.is_dask_collection(other_mean)
            assert dask.is_dask_collection(other_std)
            other_mean, other_std = dask.compute(other_mean, other_std)
        if isinstance(other_std, pd.Series | pd.DataFrame):
            assert other_std.index.tolist() == list(range(700))
        assert_same_rows(np.asarray(other_mean), mean, atol=1e-9)
        assert_same_rows(np.asarray(other_std), std, atol=1e-9)
    assert_same_rows(model.predict(X[13:14], return_std=True)[1], std[13:14], atol=1e-9)


def test_frames_are_encoded_before_they_get_a_deviation() -> None:
    X, y = rows(200)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(kind=np.where(X[:, 0] > 0.5, "high", "low"))
    model = regressor().fit(frame, y)
    mean, std = model.predict(frame, return_std=True)
    assert_same_rows(mean, model.predict(frame), atol=1e-9)
    assert std.shape == (200,)
    assert np.all(std > model.noise_)


def test_a_loaded_model_has_the_bits_of_the_deviation(tmp_path: Path) -> None:
    X, y = rows()
    model = regressor().fit(X, y)
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X, return_std=True)[1], model.predict(X, return_std=True)[1])
    assert loaded.noise_ == model.noise_


def test_a_damaged_posterior_is_refused() -> None:
    model = regressor().fit(*rows())
    damaged = type(model.posterior_)(model.posterior_.center, model.posterior_.factor[:-1], model.posterior_.noise)
    with pytest.raises(ValueError, match="a posterior on 30 features has a factor of 465 numbers"):
        damaged.validate()


@pytest.mark.parametrize(
    "parameters",
    [{"solver": "sgd", "alpha": 1e-3, "epochs": 2}, {"solver": "sgd", "alpha": 1e-3, "epochs": 2, "loss": "huber"}],
)
def test_fits_without_a_gram_matrix_say_what_to_do_instead(parameters: dict[str, Any]) -> None:
    X, y = rows()
    model = regressor(**parameters).fit(X, y)
    loss = parameters.get("loss", "squared_error")
    with pytest.raises(ValueError, match=f"has no deviations.*loss='{loss}' and solver='sgd'.*conformalize"):
        model.predict(X, return_std=True)
    assert model.predict(X).shape == (120,)


def test_a_fit_by_other_steps_leaves_no_deviation_of_the_fit_before() -> None:
    X, y = rows()
    model = regressor().fit(X, y).set_params(solver="sgd", epochs=2).fit(X, y)
    with pytest.raises(ValueError, match="has no deviations"):
        model.predict(X, return_std=True)


def test_features_that_add_up_to_a_constant_have_a_deviation() -> None:
    # indicators of all values of a column: their Gram matrix has no inverse but for the penalty
    rng = np.random.default_rng(0)
    X = np.eye(4)[rng.integers(0, 4, 200)]
    features = RandomFeatures(dkl.Coordinates(), n_features=64, scaling=None, random_state=0)
    model = KernelRegressor(features, alpha=1e-12, solver="newton").fit(X, X @ np.arange(4.0) + rng.normal(size=200))
    _, std = model.predict(np.eye(4), return_std=True)
    # each mean is off by its own rows alone, less the share of the intercept, which counts as known
    share = X.mean(axis=0)
    expected = model.noise_ * np.sqrt(1.0 + (1.0 - share) / (200 * share))
    np.testing.assert_allclose(std, expected, rtol=1e-4)


@pytest.mark.parametrize("targets", [1, 2])
def test_the_row_predictor_has_the_deviations_of_the_model(targets: int) -> None:
    X, y = rows()
    y = y if targets == 1 else np.column_stack([y, -y])
    model = regressor().fit(X, y)
    mean, std = model.predict(X, return_std=True)
    for some in (slice(0, 3), slice(None)):
        found, found_std = model.predictor().predict(X[some], return_std=True)
        np.testing.assert_allclose(found, mean[some], rtol=1e-9)
        np.testing.assert_allclose(found_std, std[some], rtol=1e-9)
    one, one_std = model.predictor().predict(X[7], return_std=True)
    assert np.shape(one) == np.shape(one_std) == np.shape(mean[7])
    np.testing.assert_allclose(one_std, std[7], rtol=1e-9)


def test_the_row_predictor_takes_raw_rows_and_says_where_there_is_no_deviation() -> None:
    X, y = rows(200)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(kind=np.where(X[:, 0] > 0.5, "high", "low"))
    model = regressor().fit(frame, y)
    _, std = model.predict(frame[:5], return_std=True)
    found = [model.predictor().predict(row, return_std=True)[1] for row in frame[:5].to_dict("records")]
    np.testing.assert_allclose(found, std, rtol=1e-9)
    stochastic = regressor(solver="sgd", epochs=2).fit(X, y).predictor()
    with pytest.raises(ValueError, match="the model has no deviations: these need an exact fit"):
        stochastic.predict(X[0], return_std=True)


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_graph_has_the_deviation_as_a_further_output(targets: int, dtype: str, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    X, y = rows()
    y = y if targets == 1 else np.column_stack([y, -3.0 * y])
    model = regressor().fit(X, y)
    model.to_onnx(tmp_path / "model.onnx", dtype=dtype, std=True)
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    mean, std = session.run(["prediction", "std"], {"X": X.astype(dtype)})
    expected, expected_std = model.predict(X, return_std=True)
    np.testing.assert_allclose(std, expected_std, rtol=1e-4 if dtype == "float32" else 1e-9)
    np.testing.assert_allclose(mean, expected, rtol=1e-3 if dtype == "float32" else 1e-9)
    assert [output.name for output in model.to_onnx().graph.output] == ["prediction"]


def test_a_graph_of_a_model_without_deviations_is_refused() -> None:
    pytest.importorskip("onnx")
    with pytest.raises(ValueError, match=r"std=True, and this KernelRegressor has no deviations"):
        regressor(solver="sgd", epochs=2).fit(*rows()).to_onnx(std=True)


def test_more_features_than_a_gram_matrix_is_held_of_have_no_deviation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST_FEATURES", 20)
    X, y = rows()
    with pytest.raises(ValueError, match="alpha='evidence' needs the Gram matrix of all features, and 30 are more"):
        regressor(alpha="evidence").fit(X, y)
    model = regressor().fit(X, y)
    with pytest.raises(ValueError, match=r"has no deviations.*on more features"):
        model.predict(X, return_std=True)
    assert model.conformalize(X, y).predict_interval(X).shape == (120, 2)


def test_the_squared_error_of_labels_has_no_deviation() -> None:
    X, y = rows()
    labels = np.digitize(y, np.quantile(y, [0.3, 0.6]))
    features = RandomFeatures(n_features=20, random_state=0)
    model = KernelClassifier(features, loss="squared_error", alpha=1e-3, solver="newton").fit(X, labels)
    assert not hasattr(model, "posterior_")
    assert model.score(X, labels) > 0.5


def test_the_inverse_factor_of_graphs_has_the_same_bits_on_any_number_of_blas_threads() -> None:
    """It is that of the predictions."""
    phi = np.random.default_rng(0).normal(size=(900, 700))
    triangle = np.linalg.cholesky(phi.T @ phi).T
    packed = triangle.T[np.tril_indices(700)]
    inverses = []
    for n_threads in (1, 2):
        posterior = CoefficientPosterior(np.zeros(700), packed, np.ones(1))
        with threadpool_limits(n_threads):
            inverses.append(posterior.inverse_factor())
    np.testing.assert_array_equal(*inverses)
    np.testing.assert_allclose(inverses[0] @ triangle, np.eye(700), atol=1e-8)
    assert not np.tril(inverses[0], -1).any()
