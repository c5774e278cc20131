"""Newton heads reach the optimum of the stated problem, in few passes, however the Hessian is cut."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

import dkl.linear.head as newton
from dkl import registry
from dkl.data.sources.in_memory import ArraySource
from dkl.kernels.gram import GramSum, add_hessian, packed_size, signed_products
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import (
    NewtonOptions,
    NewtonTargets,
    TrialSteps,
    loss_sums,
    newton_sums,
)
from dkl.linear.fitting import NEWTON_LOSSES, LinearProblem, fit_by_newton
from dkl.linear.head import NewtonDriver, NewtonProblem
from dkl.passes.loop import Run
from dkl.registry import LossEntry, losses_for
from dkl.solvers.losses import Loss
from tests.definitions import linear as definition
from tests.linear.problems import blocks_of, feature_map, play, rows, summed

LOSSES = ("squared_hinge", "squared_error")


def some_trial(g: int, width: int, seed: int = 0) -> TrialSteps:
    generator = np.random.default_rng(seed)
    shape = (g, width)
    return TrialSteps(
        generator.normal(size=shape), generator.normal(size=shape), generator.uniform(0.1, 1.0, size=(g, 3))
    )


def mapped(X: np.ndarray, phi: object, dtype: str = "float64") -> np.ndarray:
    return np.hstack([map_rows(X, phi, dtype), np.ones((len(X), 1), dtype)])


def targets_for(loss: str, n: int, g: int, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng(seed).normal(size=(n, g))
    return np.sign(values) if loss == "squared_hinge" else values


def packed(whole: np.ndarray, columns: tuple[int, int]) -> np.ndarray:
    return np.concatenate([whole[: j + 1, j] for j in range(*columns)])


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("own_weights", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_sums_are_their_definitions(loss: str, own_weights: bool, exact: bool) -> None:
    X, _ = rows(40, 2)
    dtype = "float64" if exact else "float32"
    phi, weight = mapped(X, feature_map(4), dtype), np.random.default_rng(1).integers(0, 3, (40, 2)).astype(float)
    weight = weight if own_weights else weight[:, 0]
    targets, trial = targets_for(loss, 40, 2), some_trial(2, phi.shape[1])
    expected = definition.loss_sums(phi, targets, weight, trial, loss)
    found = loss_sums(phi[:, :-1], targets, weight, trial, NewtonOptions(loss, dtype=dtype, exact=exact))
    tolerance = 1e-11 if exact else 2e-5
    np.testing.assert_allclose(found[0], expected[0], rtol=tolerance)
    np.testing.assert_allclose(found[1], expected[1], rtol=tolerance, atol=tolerance * np.abs(expected[1]).max())
    counted = (weight if own_weights else weight[:, None]) > 0
    np.testing.assert_array_equal(found[2], expected[2] & counted)
    before = definition.loss_sums(phi, targets, weight, replace(trial, directions=0 * trial.directions), loss)[2]
    changed = loss_sums(phi[:, :-1], targets, weight, trial, NewtonOptions(loss, change=True, dtype=dtype, exact=exact))
    np.testing.assert_array_equal(changed[2], (expected[2].astype(int) - before) * counted)


@pytest.mark.parametrize("n", [1, 4, 43])
@pytest.mark.parametrize("g", [1, 3])
def test_exact_sums_of_float32_rows_are_those_in_float64(n: int, g: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever becomes of the rows: large tiles are read as they are, of small ones there is a copy in float64."""
    phi, trial = np.random.default_rng(n).normal(size=(n, 37)).astype(np.float32), some_trial(g, 38)
    targets, weight = targets_for("squared_hinge", n, g), np.random.default_rng(1).integers(0, 3, (n, g)).astype(float)
    whole = np.hstack([phi.astype(np.float64), np.ones((n, 1))])
    expected = definition.loss_sums(whole, targets, weight, trial, "squared_hinge")
    for few in (0, 1 << 18):
        monkeypatch.setattr("dkl.kernels.normal_equations._FEW_NUMBERS", few)
        losses, gradient, curvature = loss_sums(phi, targets, weight, trial, NewtonOptions("squared_hinge"))
        np.testing.assert_allclose(losses, expected[0], rtol=1e-12)
        np.testing.assert_allclose(gradient, expected[1], rtol=1e-12, atol=1e-11)
        np.testing.assert_array_equal(curvature, expected[2] & (weight > 0))


def test_rows_of_many_tiles_that_count_are_multiplied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    phi, weight = np.random.default_rng(0).normal(size=(60, 6)), np.zeros(60)
    weight[::7] = np.random.default_rng(1).normal(size=9)
    products = []

    def counted(rows: np.ndarray, weights: np.ndarray, **options: bool) -> np.ndarray:
        products.append(len(rows))
        return signed_products(rows, weights, **options)

    monkeypatch.setattr("dkl.kernels.gram.signed_products", counted)
    for weights, expected in ((weight, [6, 3]), (np.ones(60), [10] * 6)):
        found = np.zeros(packed_size(0, 7))
        gram = GramSum((0, 7), found)
        for first in range(0, 60, 10):
            gram.add(phi[first : first + 10], weights[first : first + 10])
        gram.finish()
        assert products == expected
        products.clear()
        whole = definition.hessian_sum(np.hstack([phi, np.ones((60, 1))]), weights)
        np.testing.assert_allclose(found, packed(whole, (0, 7)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("m", "n_models", "change", "columns"),
    [
        (60, 1, False, (0, 61)),
        (60, 1, True, (0, 61)),
        (900, 1, False, (0, 901)),
        (900, 1, True, (0, 901)),
        (900, 2, False, (0, 901)),
        (900, 1, False, (300, 901)),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_pass_holds_no_more_than_its_cost_counts(
    loss: str, m: int, n_models: int, change: bool, columns: tuple[int, int]
) -> None:
    X, _ = rows(12_000, 2, 3)
    phi, weight = feature_map(3, m // 2), np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    width = phi.n_features + 1
    columns = columns[0], min(columns[1], width)
    trial = some_trial(n_models, width)
    # steps of length 1, of which many rows change their curvature
    trial = replace(trial, steps=np.ones((n_models, 1)))
    of = tuple(range(n_models)) if loss == "squared_hinge" else (0,)
    options = NewtonOptions(loss, columns=columns, hessian_of=of, change=change, dtype="float32")
    targets = targets_for(loss, len(X), n_models)
    counted = newton.newton_cost(len(X), 3, feature_map=phi, n_models=n_models, options=options).scratch_bytes
    newton_sums(X[:9_000], targets[:9_000], weight[:9_000], phi, trial, options)
    tracemalloc.start()
    try:
        sums = newton_sums(X, targets, weight, phi, trial, options)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most - sum(values.nbytes for values in sums.values()) <= counted


@pytest.mark.parametrize("columns", [(0, 17), (0, 6), (6, 17), (6, 11), (16, 17)])
@pytest.mark.parametrize(("dtype", "rtol"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize(("signs", "largest"), [(False, 0), (True, 3)])
def test_every_panel_of_the_hessian_is_that_of_the_outer_products(
    columns: tuple[int, int], dtype: str, rtol: float, largest: int, signs: bool
) -> None:
    X, _ = rows(50, 2)
    phi, weight = mapped(X, feature_map(4), dtype), np.random.default_rng(1).uniform(1.0, 1.0 + largest, 50)
    weight[::3] *= -1.0 if signs else 1.0
    found = np.ones(packed_size(*columns))
    add_hessian(phi[:, :-1], weight, columns, found)
    expected = packed(definition.hessian_sum(phi, weight), columns)
    np.testing.assert_allclose(found, 1.0 + expected, rtol=rtol, atol=rtol * 50)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_block_of_several_tiles_has_the_sums_of_its_rows(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.kernels.maps._LEAST_ROWS", 16)
    monkeypatch.setattr("dkl.kernels.maps._TILE_BYTES", 1)
    X, _ = rows(50, 2)
    phi, weight = feature_map(4), np.ones(50)
    targets, trial = targets_for(loss, 50, 2), some_trial(2, 17)
    options = NewtonOptions(loss, (0, 17), (0, 1), dtype="float64")
    sums = newton_sums(X, targets, weight, phi, trial, options)
    expected = definition.newton_sums(mapped(X, phi), targets, weight, trial, loss)
    assert sums.keys() == expected.keys()
    for ours, theirs in zip(sums["hessian"], expected["hessian"], strict=True):
        curvature = 2.0 if loss == "squared_hinge" else 1.0
        np.testing.assert_allclose(curvature * ours, packed(theirs, (0, 17)), rtol=1e-11, atol=1e-11)
    for name in ("loss", "gradient"):
        np.testing.assert_allclose(sums[name], expected[name], rtol=1e-11, atol=1e-11)


def problem_for(loss: str, phi: object, n: float, alpha: float, dtype: str, models: int = 1) -> NewtonProblem:
    chosen = np.array([1]) if models == 1 and loss == "squared_hinge" else np.arange(models)
    n_classes = max(2, models) if loss == "squared_hinge" else None
    return NewtonProblem(phi, NewtonTargets(chosen, n_classes), n, alpha, loss, tol=1e-8, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("alpha", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize("loss", LOSSES)
def test_it_ends_at_the_optimum_of_a_general_solver(loss: str, alpha: float, dtype: str) -> None:
    X, codes = rows(60, 2)
    phi, weight = feature_map(4), np.random.default_rng(2).integers(1, 4, 60).astype(float)
    y = codes if loss == "squared_hinge" else X @ np.arange(4.0) + np.cos(X[:, 0])
    problem = problem_for(loss, phi, weight.sum(), alpha, dtype)
    state, passes = play(NewtonDriver(), problem, blocks_of(X, y, 25, weight))
    signs = np.where(codes == 1, 1.0, -1.0) if loss == "squared_hinge" else y
    best = definition.linear_optimum(map_rows(X, phi, dtype).astype(float), signs, weight, alpha, loss)
    assert state.done(replace(problem, tol=1e-8)).all()
    assert passes <= 15
    # predictions, since coefficients along flat directions are known to the general solver's tolerance only
    ours, theirs = (mapped(X, phi, dtype) @ w for w in (state.coefficients[0], best))
    np.testing.assert_allclose(ours, theirs, atol=2e-4 if alpha < 1e-4 else 2e-5)


def test_the_squared_hinge_ends_where_liblinear_does() -> None:
    X, codes = rows(300, 3)
    phi, alpha = feature_map(4), 1e-3
    state, _ = play(
        NewtonDriver(), problem_for("squared_hinge", phi, 300.0, alpha, "float32", 3), blocks_of(X, codes, 100)
    )
    # a large scaling leaves liblinear's intercept as good as free
    svm = LinearSVC(C=1 / (alpha * 300), tol=1e-10, max_iter=100_000, intercept_scaling=1e3)
    svm.fit(map_rows(X, phi, "float64"), codes)
    np.testing.assert_allclose(state.coefficients[:, :-1], svm.coef_, atol=1e-4)
    np.testing.assert_allclose(state.coefficients[:, -1], svm.intercept_, atol=1e-4)


def test_the_squared_error_ends_where_ridge_does_for_several_targets_at_once() -> None:
    X, _ = rows(200, 2)
    phi, alpha = feature_map(4), 1e-2
    y = np.column_stack([X @ np.arange(4.0), np.sin(X[:, 0])])
    state, passes = play(
        NewtonDriver(), problem_for("squared_error", phi, 200.0, alpha, "float32", 2), blocks_of(X, y, 70)
    )
    ridge = Ridge(alpha * 200).fit(map_rows(X, phi, "float64"), y)
    np.testing.assert_allclose(state.coefficients[:, :-1], ridge.coef_, atol=1e-5)
    np.testing.assert_allclose(state.coefficients[:, -1], ridge.intercept_, atol=1e-5)
    assert passes <= 4


@pytest.mark.parametrize("models", [1, 3])
def test_a_hessian_cut_into_panels_gives_the_same_steps(models: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, codes = rows(200, max(2, models))
    problem = problem_for("squared_hinge", feature_map(4), 200.0, 1e-3, "float64", models)
    whole, _ = play(NewtonDriver(), problem, blocks_of(X, codes, 64))
    monkeypatch.setattr(newton, "_HESSIAN_BYTES", 8 * 17 * 3)
    records = NewtonDriver().request(problem, NewtonDriver().init(problem))
    assert len(records) > 2
    assert all(record.accumulators["hessian"].nbytes <= 8 * 17 * 3 for record in records)
    cut, _ = play(NewtonDriver(), problem, blocks_of(X, codes, 64))
    np.testing.assert_allclose(cut.coefficients, whole.coefficients, atol=1e-9)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_hessians_are_kept_up_by_the_rows_that_change(dtype: str) -> None:
    """Each pass from the second on sums changes only, and what is held is the whole at the accepted point."""
    X, codes = rows(300, 3)
    blocks = blocks_of(X, codes, 100)
    problem = problem_for("squared_hinge", feature_map(4), 300.0, 1e-3, dtype, 3)
    driver = NewtonDriver()
    state, changes = driver.init(problem), []
    while (records := driver.request(problem, state)) is not None:
        changes.append(records[0].operands["options"].change)
        state = driver.step(problem, state, [summed(record, blocks) for record in records])
        if state.held is None or len(state.held) == 0:
            continue
        for model, hessian in zip(state.held, state.hessian, strict=True):  # type: ignore[arg-type]
            phi, y = mapped(X, problem.feature_map, dtype), np.where(codes == model, 1.0, -1.0)
            active = (y * (phi @ state.coefficients[model]) < 1.0).astype(float)
            whole = packed(definition.hessian_sum(phi, active), (0, 17))
            np.testing.assert_allclose(hessian, whole, atol=1e-9 if dtype == "float64" else 1e-3)
    assert changes[:2] == [False, False]
    assert len(changes) > 3
    assert all(changes[2:])


def test_weight_two_is_the_row_twice_and_class_weights_multiply() -> None:
    X, codes = rows(90, 2)
    weight = np.random.default_rng(3).integers(1, 4, 90)
    phi = feature_map(4)
    repeated = np.repeat(np.arange(90), weight)
    problem = problem_for("squared_hinge", phi, float(weight.sum()), 1e-3, "float64")
    by_weight, _ = play(NewtonDriver(), problem, blocks_of(X, codes, 40, weight.astype(float)))
    by_rows, _ = play(NewtonDriver(), problem, blocks_of(X[repeated], codes[repeated], 40))
    np.testing.assert_allclose(by_weight.coefficients, by_rows.coefficients, atol=1e-9)
    doubled = replace(problem.targets, class_weight=np.array([1.0, 2.0]))
    total = float(weight @ (1 + codes))
    by_class, _ = play(
        NewtonDriver(), replace(problem, targets=doubled, total_weight=total), blocks_of(X, codes, 40, weight * 1.0)
    )
    same, _ = play(
        NewtonDriver(), replace(problem, total_weight=total), blocks_of(X, codes, 40, weight * (1.0 + codes))
    )
    np.testing.assert_array_equal(by_class.coefficients, same.coefficients)


def test_separable_rows_and_a_tiny_penalty_still_end() -> None:
    X = np.vstack([np.full((20, 4), -1.0), np.full((20, 4), 1.0)])
    codes = np.repeat([0, 1], 20)
    problem = problem_for("squared_hinge", feature_map(4), 40.0, 1e-9, "float32")
    state, passes = play(NewtonDriver(), problem, blocks_of(X, codes, 10))
    assert state.done(replace(problem, tol=1e-8)).all()
    assert passes < 50
    assert state.objective[0] < 1e-6


def test_the_plan_has_the_shapes_of_the_passes() -> None:
    X, codes = rows(60, 3)
    problem = problem_for("squared_hinge", feature_map(4), 60.0, 1e-3, "float64", 3)
    (first, once), (later, most) = NewtonDriver().plan(problem)
    _, passes = play(NewtonDriver(), problem, blocks_of(X, codes, 64))
    assert once == 1
    assert passes <= 1 + most
    assert first[0].accumulators["hessian"].shape == (1, packed_size(0, 17))
    assert later[0].accumulators["hessian"].shape == (3, packed_size(0, 17))


@dataclass(frozen=True)
class Expectile(Loss):
    """Half the square of the error, times epsilon above the score and 1 - epsilon below it."""

    epsilon: float = 0.1
    largest_curvature = 1.0
    varies = True

    def value(self, y: Any, f: Any) -> Any:
        return 0.5 * self.curvature(y, f) * (f - y) ** 2

    def slope(self, y: Any, f: Any) -> Any:
        return self.curvature(y, f) * (f - y)

    def curvature(self, y: Any, f: Any) -> Any:
        return np.where(f > y, 1.0 - self.epsilon, self.epsilon)

    def conjugate(self, y: Any, s: Any) -> Any:
        return y * s + 0.5 * s**2 / np.where(s > 0.0, 1.0 - self.epsilon, self.epsilon)


WITH_PARAMETER = [name for name in losses_for("regression", "newton") if registry.LOSSES[name].parameter]


@pytest.mark.parametrize("name", [*WITH_PARAMETER, "expectile"])
def test_newton_steps_fit_a_loss_with_the_parameter_that_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a loss that only has a line in the table."""
    entry = LossEntry("Expectile", "", {"regression": ("newton",)}, parameter="epsilon", module=__name__)
    monkeypatch.setitem(registry.LOSSES, "expectile", entry)
    monkeypatch.setattr("dkl.linear.fitting.NEWTON_LOSSES", {*NEWTON_LOSSES, "expectile"})
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    y = np.sin(X[:, 0]) + 0.3 * np.exp(X[:, 1]) * rng.standard_normal(300)
    models = []
    for parameter in (0.2, 0.7):
        given: dict[str, Any] = {"quantiles": (parameter,)} if name == "pinball" else {"epsilon": parameter}
        problem = LinearProblem(feature_map(4), name, 1e-2, dtype="float64", **given)
        fit = fit_by_newton(problem, ArraySource(X, y), Run())
        models.append(np.append(fit.model.coef_, fit.model.intercept_))
    assert np.max(np.abs(models[0] - models[1])) > 0.01
