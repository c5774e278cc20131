"""NystromFeatures(metric=...): products of gradients by definition, rounds that held-out rows judge, and their map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.spatial import distance

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.nystrom_projection import NystromProjection, in_metric
from dkl.features.radial import radial_slope
from dkl.kernels.generic import mapped
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.scale import scale_rows
from dkl.methods.fit_context import FitContext
from dkl.methods.metric.driver import MetricDriver, MetricProblem
from dkl.methods.rounds.loop import HeldTargets
from dkl.planning import plan
from dkl.testing import check_learner
from tests.methods.play import Table, blocks_of

KERNELS = (dkl.Gaussian(1.3), dkl.Matern(0.5, 1.3), dkl.Matern(1.5, 1.3), dkl.Matern(2.5, 1.3))


def noisy(n: int = 1_200, d: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Numbers that two of the columns make, through their product alone but for a small slope."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, np.sin(2.0 * X[:, 3]) * X[:, 5] + 0.3 * X[:, 3] + 0.05 * rng.standard_normal(n)


def features(metric: Any = "diagonal", **parameters: Any) -> dkl.NystromFeatures:
    given = {"n_features": 300, "scaling": "standard", "random_state": 0, **parameters}
    return dkl.NystromFeatures(metric=metric, **given)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_the_slope_of_a_kernel_is_its_difference_quotient(kernel: Any) -> None:
    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((2, 3))
    gradient = radial_slope(kernel, np.linalg.norm(x - z)) * (x - z)
    for c in range(3):
        step = np.zeros(3)
        step[c] = 1e-6
        up, down = (kernel.kernel((x + sign * step)[None], z[None])[0, 0] for sign in (1.0, -1.0))
        assert gradient[c] == pytest.approx((up - down) / 2e-6, rel=1e-6)
    assert np.isfinite(radial_slope(kernel, np.zeros(1))).all()


def test_a_cone_has_no_slope_at_its_tip_and_other_kernels_none_at_all() -> None:
    assert radial_slope(dkl.Matern(0.5, 1.0), np.zeros(1))[0] == 0.0
    with pytest.raises(TypeError, match="no slope in closed form"):
        radial_slope(dkl.Laplacian(1.0), np.ones(1))


def problem(is_full: bool) -> tuple[MetricProblem, Table]:
    X, y = noisy(300, 6)
    y = X[:, 3] * X[:, 1]
    targets = NewtonTargets(np.array([0]), None, None, np.array([y.mean()]), np.array([y.std()]))
    held = HeldTargets(targets, lambda ids: np.asarray(ids) % 5 == 0)
    return MetricProblem(dkl.Matern(0.5, 2.0), None, held, 1, 6, 60, is_full, seed=1), Table(blocks_of(X, y, rows=64))


@pytest.mark.parametrize("is_full", [False, True], ids=["diagonal", "full"])
def test_rounds_judge_a_ridge_in_the_kernels_norm_and_take_the_mean_product_of_gradients(is_full: bool) -> None:
    asked, table = problem(is_full)
    driver = MetricDriver()
    state = driver.init(asked)
    for _ in range(2):
        state = driver.step(asked, state, table.run(driver.request(asked, state)))
    X, y = (np.concatenate([getattr(block, name) for block in table.blocks]) for name in ("X", "y"))
    y, held = ((y - y.mean()) / y.std())[:, None], np.arange(300) % 5 == 0
    kernel, Z = dkl.Matern(0.5, 2.0), state.landmarks
    k, own = kernel.kernel(X, Z), kernel.kernel(Z)
    penalty = state.history[-1, 1]
    for factor, shown in ((1.0, None), (1.0 / 300.0, state.coefficients)):
        c = np.linalg.solve(
            k[~held].T @ k[~held] + penalty * factor * own + 1e-6 * np.eye(len(Z)), k[~held].T @ y[~held]
        )
        if shown is None:
            assert state.history[-1, 0] == pytest.approx(np.mean((y[held] - k[held] @ c) ** 2), rel=1e-4)
        else:
            np.testing.assert_allclose(k @ shown.T, k @ c, atol=1e-3)
    (sums,) = table.run(driver.request(asked, state))
    # the gradient at each row by central differences of the model itself
    expected = np.zeros((6, 6))
    for x in X[~held]:
        model = [kernel.kernel(x + 1e-5 * np.vstack([np.eye(6), -np.eye(6)]), Z) @ state.coefficients.T][0][:, 0]
        gradient = (model[:6] - model[6:]) / 2e-5
        # at a landmark the kernel has a cone, whose slope is none
        expected += np.outer(gradient, gradient)
    np.testing.assert_allclose(sums["products"], expected if is_full else np.diagonal(expected), rtol=2e-3, atol=2e-2)


def test_columns_that_count_are_found_and_the_model_gains() -> None:
    X, y = noisy()
    plain, learned = (
        dkl.KernelRegressor(features(metric), solver="newton", alpha=1e-5).fit(X[:900], y[:900])
        for metric in (None, "diagonal")
    )
    assert learned.score(X[900:], y[900:]) > 0.9 > plain.score(X[900:], y[900:]) + 0.2
    assert set(np.argsort(learned.features_.metric_)[-2:]) == {3, 5}
    history = [line["held_out_loss"] for line in learned.features_.metric_history_]
    assert min(history) < 0.5 * history[0]


def test_a_laplacian_kernel_has_the_metric_of_rounds_with_another_kernel() -> None:
    X, y = noisy(600)
    learner = features(kernel=dkl.Laplacian(), sigma_factor=2.0, n_features=150).fit(X, y)
    assert set(np.argsort(learner.metric_)[-2:]) == {3, 5}
    moved = scale_rows(X, learner.scaler_, "float64") * learner.metric_
    apart = np.median(distance.pdist(moved, "cityblock"))
    # twice the median distance in the metric, of all rows
    np.testing.assert_allclose(learner.family_.sigma, 2.0 * apart, rtol=0.03)


def test_a_bandwidth_that_is_pinned_stays_the_share_of_the_median_distance_that_it_was() -> None:
    X, y = noisy(500)
    learner = features(kernel=dkl.Laplacian(3.0), sigma_factor=2.0).fit(X, y)
    scaled = scale_rows(X, learner.scaler_, "float64")
    apart, before = (np.median(distance.pdist(rows, "cityblock")) for rows in (scaled * learner.metric_, scaled))
    np.testing.assert_allclose(learner.family_.sigma, 6.0 * apart / before, rtol=1e-9)


def test_a_metric_that_is_known_is_not_learned_again() -> None:
    X, y = noisy()
    first = features(kernel=dkl.Laplacian(), n_features=40, sigma_factor=2.0).fit(X, y)
    known = FitContext(metric=(first.metric_, first.family_.sigma / 2.0))
    again = features(kernel=dkl.Laplacian(), n_features=40, sigma_factor=2.0)
    again.fit_within(as_dataset(X, y), known)
    assert again.metric_history_ == []
    np.testing.assert_array_equal(again.feature_map_.projection.whitening, first.feature_map_.projection.whitening)


@pytest.mark.slow
def test_a_full_metric_turns_rows_where_a_diagonal_one_cannot_follow() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1_200, 10))
    turned, _ = np.linalg.qr(rng.standard_normal((10, 10)))
    y = np.sin(3.0 * (X @ turned[0]))
    scores = [
        dkl.KernelRegressor(features(metric), solver="newton", alpha=1e-5).fit(X[:900], y[:900]).score(X[900:], y[900:])
        for metric in ("full", "diagonal")
    ]
    assert scores[0] > 0.9 > scores[1] + 0.2


@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_the_map_is_the_kernel_of_the_moved_rows(metric: Any, tmp_path: Path) -> None:
    X, y = noisy(400)
    learner = features(metric, n_features=40, dtype="float64").fit(X, y)
    projection = learner.feature_map_.projection
    assert isinstance(projection, NystromProjection)
    rows = in_metric((X - X.mean(axis=0)) / X.std(axis=0), learner.metric_)
    expected = learner.family_.kernel(rows, learner.landmarks_) @ projection.whitening
    np.testing.assert_allclose(learner.transform(X), expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(mapped(np, X, learner.feature_map_, np.float64)[0], expected, rtol=1e-6, atol=1e-9)
    taken = learner.feature_map_.take(np.array([3, 1]))
    np.testing.assert_allclose(map_rows(X, taken, "float64"), expected[:, [3, 1]], rtol=1e-6, atol=1e-9)
    learner.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").transform(X), learner.transform(X))


def test_classes_and_sparse_rows_have_a_metric_too() -> None:
    X, y = noisy(600)
    labels = np.digitize(y, np.quantile(y, [1 / 3, 2 / 3]))
    X[np.abs(X) < 0.2] = 0.0
    dense = features(scaling=None).fit(X, labels)
    thin = features(scaling=None).fit(sparse.csr_array(X), labels)
    np.testing.assert_allclose(thin.metric_, dense.metric_, rtol=1e-6)
    assert set(np.argsort(dense.metric_)[-2:]) == {3, 5}


def test_a_plan_counts_the_rounds_and_a_learner_keeps_its_promises() -> None:
    X, y = noisy(300)
    planned, without = plan(features(n_features=40), X, y), plan(features(None, n_features=40), X, y)
    assert planned.n_passes == without.n_passes + 1 + 1 + 2 * 6
    check_learner(features(n_features=20))


@pytest.mark.parametrize(
    ("parameters", "rows", "message"),
    [
        ({"metric": "both"}, np.asarray, "metric"),
        ({"kernel": dkl.Cauchy()}, np.asarray, "needs a kernel of the distance"),
        ({"metric": "full", "scaling": None}, sparse.csr_array, "take metric='diagonal'"),
        ({"validation_fraction": 0.0}, np.asarray, "validation_fraction"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(parameters: dict[str, Any], rows: Any, message: str) -> None:
    X, y = noisy(100)
    with pytest.raises(ValueError, match=message):
        features(**parameters).fit(rows(X), y)


def test_targets_are_asked_for_where_a_metric_is_learned() -> None:
    with pytest.raises(ValueError, match="requires y"):
        features().fit(noisy(100)[0])


@pytest.mark.parametrize(("searched", "kind"), [(False, "full"), (True, "diagonal")], ids=["drawn", "searched"])
def test_waves_are_those_of_rows_in_the_metric(searched: bool, kind: Any) -> None:
    X, y = noisy(700, 8)
    given = {"scaling": "standard", "dtype": "float64", "random_state": 0}
    make = dkl.MarginFeatures if searched else dkl.RandomFeatures
    learner = make(n_features=60, metric=kind, **given).fit(X, y)
    R = learner.metric_
    assert R.shape == ((8,) if kind == "diagonal" else (8, 8))
    weight = R if kind == "diagonal" else np.diagonal(R)
    assert set(np.argsort(weight)[-2:]) == {3, 5}
    assert [line["held_out_loss"] for line in learner.metric_history_]
    if not searched:
        # frequencies of the family's own draw at rows R'x
        drawn = learner.family_.draw(30, 8, learner.seed_, "float64").projection.dense()
        rows = in_metric((X - X.mean(axis=0)) / X.std(axis=0), R)
        expected = np.hstack([np.cos(rows @ drawn.T), np.sin(rows @ drawn.T)]) / np.sqrt(30)
        np.testing.assert_allclose(learner.transform(X), expected, rtol=1e-6, atol=1e-7)
    # columns that do not count have short frequencies
    lengths = np.sqrt(np.mean(np.asarray(learner.frequencies_) ** 2, axis=0))
    assert lengths[[3, 5]].min() > 2.0 * np.delete(lengths, [3, 5]).max()


@pytest.mark.parametrize(
    ("kind", "monotone"), [("diagonal", {0: 1}), pytest.param("full", None, marks=pytest.mark.slow)]
)
def test_waves_and_landmarks_of_a_list_are_those_of_rows_in_the_metric(kind: Any, monotone: Any) -> None:
    X, y = noisy(500)
    given = {"scaling": "standard", "n_features": 60, "monotone": monotone, "random_state": 0, "progress": False}
    dictionaries = [dkl.Gaussian(2.0), dkl.Steps(depth=1), dkl.Landmarks(dkl.Matern(0.5, 1.5)), dkl.Landmarks()]
    learner = dkl.MarginFeatures(dictionaries, metric=kind, **given).fit(X, y)
    R, families = learner.metric_, learner.family_.families
    assert R.shape == ((X.shape[1],) if kind == "diagonal" else (X.shape[1],) * 2)
    # bandwidths keep what they are of each other, whatever they were told from
    ratio = families[0].sigma / 2.0
    assert families[2].kernel.sigma == pytest.approx(1.5 * ratio)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    if monotone:
        scaled[:, 0] = 0.0
    seen = 0
    whole = learner.feature_map_
    for part, columns in whole.projection.places():
        if isinstance(part.projection, NystromProjection):
            phi = part.projection.kernel.kernel(in_metric(scaled, R), part.projection.landmarks)
            expected = phi @ part.projection.whitening * part.amplitudes * whole.amplitudes[columns]
            np.testing.assert_allclose(learner.transform(X)[:, columns], expected, rtol=1e-3, atol=1e-5)
            # landmarks are rows of the fit in the metric
            apart = np.abs(in_metric(scaled, R)[:, None] - part.projection.landmarks).max(axis=2)
            assert apart.min(axis=0).max() < 1e-6
            seen += 1
    assert seen


@pytest.mark.slow
def test_a_metric_makes_the_waves_of_a_list_see_the_columns_that_count() -> None:
    X, y = noisy(1_500)
    given = {"scaling": "standard", "n_features": 60, "random_state": 0, "progress": False}
    for dictionaries in ([dkl.Gaussian(), dkl.Coordinates()], [dkl.Coordinates(), dkl.Landmarks(dkl.Gaussian())]):
        scores = [
            dkl.MarginFeatures(dictionaries, metric=metric, **given).fit(X[:500], y[:500]).machine_.score(X, y)
            for metric in ("diagonal", None)
        ]
        assert scores[0] > scores[1] + 0.05, dictionaries


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (dkl.RandomFeatures(dkl.ArcCosine(1), metric="diagonal"), "needs a family with a bandwidth"),
        (dkl.RandomFeatures(metric="both"), "metric"),
        (dkl.MarginFeatures([dkl.Coordinates(), dkl.Steps()], metric="full"), "has neither: steps and columns"),
        (dkl.MarginFeatures(solver="game", metric="diagonal"), "is for features that are searched by rounds"),
    ],
)
def test_a_metric_that_waves_cannot_have_is_refused(learner: Any, message: str) -> None:
    X, y = noisy(100)
    with pytest.raises(ValueError, match=message):
        learner.fit(X, y > 0)


def test_a_plan_of_waves_in_a_metric_counts_its_rounds() -> None:
    X, y = noisy(300)
    planned, without = (plan(dkl.RandomFeatures(n_features=40, metric=kind), X, y) for kind in ("diagonal", None))
    assert planned.n_passes == without.n_passes + 1 + 1 + 2 * 6
    assert planned.held["systems of the kernel model"] > 0
    check_learner(dkl.RandomFeatures(n_features=20, metric="diagonal"))
