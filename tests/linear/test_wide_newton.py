"""Newton steps by conjugate gradients: the optimum that other solvers find, on rows of any width, in few products."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

import dkl
from dkl.features.families import Coordinates
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets, is_plain_sparse, sparse_rows
from dkl.linear import head
from dkl.linear.head import NewtonDriver, NewtonProblem
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from tests.kernels import cases
from tests.linear.problems import blocks_of, feature_map, play, rows


def bags(n: int = 300, d: int = 500, seed: int = 0) -> tuple[sparse.csr_array, np.ndarray]:
    """Rows of a few words each, and numbers that some of the words stand for."""
    generator = np.random.default_rng(seed)
    X = sparse.csr_array(generator.poisson(0.03, (n, d)).astype(np.float64))
    return X, X @ (generator.standard_normal(d) * (generator.random(d) < 0.2)) + 0.1 * generator.standard_normal(n)


COLUMNS = dkl.AlignedFeatures(Coordinates(), n_candidates=None, n_features=None, rho=0.0, dtype="float64")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "MOST_FEATURES", 100)


def test_sparse_rows_are_what_their_map_says() -> None:
    X, _ = bags()
    whole = Coordinates().pool(X.shape[1], "float64")
    for columns in (np.arange(X.shape[1]), np.array([7, 3, 11])):
        some = whole.take(columns, np.linspace(0.5, 2.0, len(columns)))
        for scaler in (None, cases.scaler("counts", X.shape[1])):
            scaled = replace(some, scaler=scaler)
            assert is_plain_sparse(X, scaled)
            np.testing.assert_allclose(sparse_rows(X, scaled, "float64").toarray(), map_rows(X, scaled, "float64"))
    assert not is_plain_sparse(X.toarray(), whole)
    # a centre would write every zero out
    assert not is_plain_sparse(X, replace(whole, scaler=cases.scaler("standard", X.shape[1])))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_labels_have_the_model_of_liblinear(n_classes: int) -> None:
    X, target = bags()
    codes = np.digitize(target, np.quantile(target, np.arange(1, n_classes) / n_classes))
    machine = KernelClassifier(COLUMNS, loss="squared_hinge", solver="newton", alpha=1e-2).fit(X, codes)
    phi = machine.features_.transform(X)
    svm = LinearSVC(C=1.0 / (1e-2 * len(codes)), dual=False, tol=1e-10, intercept_scaling=1e2, max_iter=10_000)
    svm.fit(phi, codes)
    np.testing.assert_allclose(machine.decision_function(X), svm.decision_function(phi), atol=2e-3)


@pytest.mark.parametrize("targets", [1, 2])
def test_numbers_have_the_model_of_ridge(targets: int) -> None:
    X, target = bags()
    y = target if targets == 1 else np.column_stack([target, target**2])
    machine = KernelRegressor(COLUMNS, solver="newton", alpha=1e-2).fit(X, y)
    phi = machine.features_.transform(X)
    ridge = Ridge(1e-2 * len(target)).fit(phi, y)
    np.testing.assert_allclose(machine.predict(X), ridge.predict(phi), atol=2e-3 * np.abs(y).max())


def test_weights_are_repeated_rows() -> None:
    X, target = bags()
    weight = np.arange(len(target)) % 3
    settings: dict[str, Any] = {"features": COLUMNS, "solver": "newton", "alpha": 1e-3}
    twice = KernelRegressor(**settings).fit(X[np.repeat(np.arange(len(target)), weight)], np.repeat(target, weight))
    np.testing.assert_allclose(
        KernelRegressor(**settings).fit(X, target, weight).predict(X), twice.predict(X), atol=1e-3
    )


def test_penalties_are_chosen_and_the_machine_without_settings_takes_all_columns() -> None:
    X, target = bags(600, 400)
    labels = np.where(target > np.median(target), "many", "few")
    model = KernelClassifier(random_state=0, effort="fast").fit(X[:450], labels[:450])
    assert model.reasons_[0].startswith("Features: the columns themselves")
    assert model.feature_map_.n_features == X.shape[1]
    best = max(LinearSVC(C=C).fit(X[:450], labels[:450]).score(X[450:], labels[450:]) for C in (0.01, 0.1, 1.0, 10.0))
    assert model.score(X[450:], labels[450:]) > best - 0.05
    shares = model.predict_proba(X[450:])
    assert np.array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X[450:]))


@pytest.mark.slow
def test_counts_of_words_are_scaled_where_held_out_rows_gain(tmp_path: Path) -> None:
    """Lengths of documents and bursts of a word say nothing of the class, and most of raw counts."""
    generator = np.random.default_rng(0)
    codes = np.arange(900) % 3
    likely = np.where(generator.random((3, 400)) < 0.1, 4.0, 1.0)[codes]
    lengths, bursts = (np.exp(generator.normal(0.0, 1.5, shape)) for shape in ((900, 1), (900, 400)))
    X = sparse.csr_array(generator.poisson(0.05 * likely * lengths * bursts).astype(np.float32))
    machine = KernelClassifier(random_state=0).fit(X[:600], codes[:600])
    assert (machine.features_.scaling, machine.loss_) == ("counts", "squared_hinge")
    assert machine.reasons_[0].startswith(
        "Features: the columns themselves (scaling counts), which have the best score"
    )
    assert "also tried: the columns themselves 0." in machine.reasons_[0]
    plain = KernelClassifier(random_state=0, scaling=None).fit(X[:600], codes[:600])
    assert machine.score(X[600:], codes[600:]) > plain.score(X[600:], codes[600:]) + 0.03
    # the same from a store, whose rows are read in passes, and from a file of the model
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X[:600], codes[:600])
    again = KernelClassifier(random_state=0).fit(stored)
    assert again.features_.scaling == "counts"
    np.testing.assert_allclose(again.predict_proba(X), machine.predict_proba(X), atol=1e-5)
    machine.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict_proba(X), machine.predict_proba(X))
    # rows with negative numbers have no such candidate
    negative = KernelClassifier(random_state=0).fit(-X[:600], codes[:600])
    assert negative.features_.scaling is None
    with pytest.raises(ValueError, match=r"column \d+ holds -\d.*scaling='counts'.*use scaling=None"):
        machine.predict(-X)


def test_no_more_passes_are_made_than_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    X, target = bags(200, 150)
    machine = KernelRegressor(COLUMNS, solver="newton", alpha="auto", random_state=0)
    planned = dkl.plan(machine, X, target).n_passes
    begun: list[Any] = []
    machine.set_params(progress=begun.append).fit(X, target)
    assert 5 < sum(event.kind == "started" for event in begun) <= planned
    assert any("product with the Hessian" in event.name for event in begun)


@pytest.mark.parametrize(
    "loss", ["squared_hinge", "squared_error", "log_loss", "softmax", "huber", "pinball", "poisson"]
)
def test_conjugate_gradients_end_where_exact_steps_do(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, codes = rows(300, 3)
    is_of_labels = loss in ("squared_hinge", "log_loss", "softmax")
    y = codes if is_of_labels else np.column_stack([X[:, 0], np.sin(X[:, 1]), X[:, 2]])
    y = np.abs(y) if loss == "poisson" else y
    targets, alphas = NewtonTargets(np.arange(3), 3 if is_of_labels else None), np.array([1e-1, 1e-2, 1e-1])
    quantiles = np.array([0.1, 0.5, 0.9]) if loss == "pinball" else None
    alpha = 1e-2 if loss == "softmax" else alphas
    problem = NewtonProblem(
        feature_map(4), targets, 300.0, alpha, loss, tol=1e-7, max_steps=200, epsilon=0.5, quantiles=quantiles
    )
    blocks = blocks_of(X, y, 100)
    exact, _ = play(NewtonDriver(), problem, blocks)
    monkeypatch.setattr(head, "MOST_FEATURES", 8)
    assert problem.is_wide
    found, _ = play(NewtonDriver(), problem, blocks)
    assert found.hessian is None
    np.testing.assert_allclose(found.coefficients, exact.coefficients, atol=1e-5)


def test_columns_far_more_than_rows_take_products_and_have_the_models_of_hessians(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By squares and by the log loss of two and of several classes; numbers keep the sums that give their variances."""
    monkeypatch.setattr(head, "MOST_FEATURES", 10_000)
    X, target = bags(60, 500)
    for n_classes, losses in ((2, ("squared_hinge", "log_loss")), (3, ("squared_error", "log_loss"))):
        codes = np.digitize(target, np.quantile(target, np.arange(1, n_classes) / n_classes))
        for loss in losses:
            names: list[set[str]] = []
            scores: list[np.ndarray] = []
            for fewest in (2_000, 200):
                monkeypatch.setattr(head, "_FEATURES_BY_PRODUCTS", fewest)
                seen: list[Any] = []
                machine = KernelClassifier(COLUMNS, loss=loss, solver="newton", alpha=1e-2, progress=seen.append)
                planned = dkl.plan(machine, X, codes).n_passes
                scores.append(machine.fit(X, codes).decision_function(X))
                names.append({event.name for event in seen})
                assert sum(event.kind == "started" for event in seen) <= planned
            assert [any("product with the Hessian" in name for name in some) for some in names] == [False, True]
            np.testing.assert_allclose(scores[1], scores[0], atol=1e-3 * np.abs(scores[0]).max())
    # penalties of numbers are compared by products, and the last fit has the sums that give its variances
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for fewest in (2_000, 200):
        monkeypatch.setattr(head, "_FEATURES_BY_PRODUCTS", fewest)
        numbers = KernelRegressor(COLUMNS, solver="newton", alpha="auto", random_state=0).fit(X, target)
        found.append(numbers.predict(X, return_std=True))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


@pytest.mark.parametrize("loss", ["squared_error", "squared_hinge"])
def test_models_take_turns_where_one_pass_cannot_sum_them_all(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four classes, of which a pass holds two: no further pass than the plan says, and the same models."""
    X, target = bags()
    codes = np.digitize(target, np.quantile(target, [0.25, 0.5, 0.75]))
    features = dkl.RandomFeatures(n_features=200, random_state=0)
    whole = KernelClassifier(features, loss=loss, solver="newton", alpha=1e-2).fit(X, codes)
    nbytes = 2 * 8 * (whole.linear_.coef_.shape[1] + 1)
    monkeypatch.setattr(head, "_GRADIENT_BYTES", nbytes)
    monkeypatch.setattr("dkl.passes.memory.LARGEST_ACCUMULATOR", nbytes)
    events: list[Any] = []
    parts = KernelClassifier(features, loss=loss, solver="newton", alpha=1e-2, progress=events.append)
    planned = dkl.plan(parts, X, codes)
    parts.fit(X, codes)
    np.testing.assert_allclose(parts.linear_.coef_, whole.linear_.coef_, atol=1e-4)
    assert 0 < sum(event.kind == "started" for event in events) <= planned.n_passes
