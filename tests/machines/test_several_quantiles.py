"""Quantiles of several targets stand beside each other, target by target, wherever a model is asked for them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import d2_pinball_score

import dkl
from dkl.machines.kernel_machines import KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.model_selection.held_out_scores import held_out_answers

QUANTILES = (0.9, 0.1, 0.5)
SOLVERS = pytest.mark.parametrize("solver", ["newton", "sgd"])


def regressor(**options: Any) -> KernelRegressor:
    features = RandomFeatures(n_features=16, dtype="float64", random_state=0)
    options = {"quantiles": QUANTILES, "alpha": 1e-3, "epochs": None, "random_state": 0, **options}
    return KernelRegressor(features, loss="pinball", **options)


def rows(n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, two targets of other units, and whole weights."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    first = np.sin(X[:, 0]) + (0.2 + 0.3 * np.abs(X[:, 1])) * rng.standard_normal(n)
    second = 100.0 + 30.0 * (X[:, 1] + rng.gumbel(size=n))
    return X, np.column_stack([first, second]), rng.integers(1, 3, n).astype(float)


@SOLVERS
def test_each_target_has_the_quantiles_of_a_machine_of_its_own(solver: str) -> None:
    X, Y, weight = rows()
    model = regressor(solver=solver).fit(X, Y, weight)
    predicted = model.predict(X)
    assert (predicted.shape, model.linear_.coef_.shape) == ((len(X), 6), (6, 16))
    scores = []
    for t in range(2):
        alone = regressor(solver=solver).fit(X, Y[:, t], weight)
        own, scale = predicted[:, 3 * t : 3 * t + 3], Y[:, t].std()
        # Newton's models stop on their own, when the parabola of all is narrow enough
        np.testing.assert_allclose(own / scale, alone.predict(X) / scale, atol=1e-9 if solver == "sgd" else 1e-2)
        assert (np.diff(own, axis=1) >= 0.0).all()
        scores += [
            d2_pinball_score(Y[:, t], column, sample_weight=weight, alpha=level)
            for level, column in zip(sorted(QUANTILES), own.T, strict=True)
        ]
    assert model.score(X, Y, weight) == pytest.approx(np.mean(scores), rel=1e-9)


def test_the_penalty_is_chosen_for_all_of_them() -> None:
    X, Y, _ = rows()
    model = regressor(alpha="auto").fit(X, Y)
    assert model.alphas_[-1] <= model.alpha_ <= model.alphas_[0]
    assert model.score(X, Y) > 0.1


@SOLVERS
def test_they_are_saved_exported_and_named_by_target_and_quantile(solver: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    X, Y, _ = rows(300)
    store = dkl.create_dataset(tmp_path / "rows.zarr", X, Y, rows_a_block=100)
    model = regressor(solver=solver).fit(store)
    expected = model.predict(X)
    frame = model.predict(store).compute()
    assert list(frame.columns) == [f"prediction_{t}_{q}" for t in range(2) for q in (0.1, 0.5, 0.9)]
    np.testing.assert_allclose(frame.to_numpy(), expected, rtol=1e-6)
    assert model.score(store) == pytest.approx(model.score(X, Y), rel=1e-6)
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), expected)
    np.testing.assert_allclose(again.predictor().predict(X), expected, rtol=1e-9)
    np.testing.assert_allclose(again.predictor().predict(X[0]), expected[0], rtol=1e-9)
    session = runtime.InferenceSession(model.to_onnx().SerializeToString())
    np.testing.assert_allclose(session.run(["prediction"], {"X": X})[0], expected, rtol=1e-9)
    with pytest.raises(TypeError, match="several quantiles in order"):
        model.to_sklearn()
    labels = dkl.explain.importance(model, X).outputs
    assert labels == tuple(f"quantile {q} of target {t}" for t in range(2) for q in QUANTILES)


def test_intervals_lie_between_the_outer_quantiles_of_each_target() -> None:
    X, Y, _ = rows(1_500)
    train, held, new = slice(0, 500), slice(500, 1_000), slice(1_000, None)
    model = regressor(quantiles=(0.1, 0.9)).fit(X[train], Y[train]).conformalize(X[held], Y[held])
    ends = model.predict_interval(X[new], coverage=0.8)
    assert ends.shape == (500, 2, 2)
    inside = (ends[..., 0] <= Y[new]) & (Y[new] <= ends[..., 1])
    # 0.8 give or take four standard errors
    assert (np.abs(inside.mean(axis=0) - 0.8) < 0.1).all()
    one = regressor(quantiles=(0.1, 0.9)).fit(X[train], Y[train, 1]).conformalize(X[held], Y[held, 1])
    np.testing.assert_allclose(ends[:, 1], one.predict_interval(X[new], coverage=0.8), atol=2.0)


def test_metrics_are_means_over_targets() -> None:
    X, Y, weight = rows()
    model = regressor().fit(X, Y, weight)
    answers = held_out_answers(model, dkl.data.coerce.as_dataset(X, Y, weight))
    for name in ("pinball", "d2"):
        each = [one.metric(name).value for one in answers.each]
        assert answers.metric(name).value == pytest.approx(np.mean(each), rel=1e-12)
    assert answers.metric("d2").value == pytest.approx(model.score(X, Y, weight), abs=1e-2)
    assert len(answers.errors) == 6
    assert all("of target" in name for name in answers.errors)


def test_rounds_look_for_features_by_the_quantiles_of_all_targets() -> None:
    X, Y, _ = rows()
    for name in ("steps", "margin"):
        model = KernelRegressor(name, loss="pinball", quantiles=(0.2, 0.8), n_features=40, random_state=0).fit(X, Y)
        assert model.predict(X).shape == (len(X), 4)
        assert model.score(X, Y) > 0.1
        below = np.stack([Y[:, [t]] <= model.predict(X)[:, 2 * t : 2 * t + 2] for t in range(2)])
        np.testing.assert_allclose(below.mean(axis=1), [[0.2, 0.8]] * 2, atol=0.1)
        learner = model.features_.predict(X) if hasattr(model.features_, "predict") else model.predict(X)
        assert np.shape(learner) == (len(X), 4)


def test_quantiles_of_targets_without_noise_lie_at_the_targets() -> None:
    """All errors on a wide parabola were beyond the next one, so that no step had a length: none or all lay below."""
    X = np.random.default_rng(0).normal(size=(1_000, 4))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2]
    features = dkl.RandomFeatures(dkl.Laplacian(), n_features=300, scaling="standard", random_state=0)
    model = dkl.KernelRegressor(features, loss="pinball", solver="newton", alpha=1e-7, random_state=0, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        predicted = model.fit(X, y).predict(X)
    shares = (y[:, None] <= predicted).mean(axis=0)
    np.testing.assert_allclose(shares, [0.1, 0.5, 0.9], atol=0.03)
    assert np.abs(predicted - y[:, None]).mean() < 0.1 * y.std()
