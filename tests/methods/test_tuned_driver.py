"""Tuned random features reach the optimum of the stated problem, say how near they are, and judge folds for nothing."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import pytest
from sklearn.linear_model import Ridge

import dkl.methods.density.hinge_driver as tuned_margin
import dkl.methods.density.pass_records as tuned_records
from dkl import registry
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.density_step import ThinForm, WholeForm, density_gradient
from dkl.methods.density.descent import TunedModel
from dkl.methods.density.driver import driver_of
from dkl.methods.density.joint_driver import JointDriver
from dkl.methods.density.joint_problem import JointProblem
from dkl.methods.density.loss_table import TUNED_LOSSES, LossRow
from dkl.methods.density.pass_records import FoldSums, judging_record
from dkl.methods.density.penalty import DensityPenalty, meta_spectrum
from dkl.methods.density.problem import TunedProblem, TunedState
from dkl.methods.density.solution import TunedSolution, judged
from dkl.methods.density.squared import cross_validate, solve_squared
from dkl.passes.checkpoint import decode_state, encode_state
from dkl.solvers.block_pivoting import bounded_minimum, signed_minimum
from dkl.solvers.divergence_ball import DivergenceBall
from dkl.solvers.losses import SquaredHingeLoss
from dkl.solvers.squared_sums import SquaredRows, SquaredSums
from tests.definitions import tuned as definitions
from tests.linear.problems import blocks_of, feature_map, play, rows, summed
from tests.methods.play import Table
from tests.methods.play import blocks_of as cut
from tests.methods.play import play as play_table

LOSSES = ("squared_error", "hinge", "squared_hinge")
D = 6


def some_rows(n: int = 40, n_classes: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, class codes, standardised targets of two columns."""
    X, codes = rows(n, n_classes, seed=seed)
    y = np.stack([np.sin(2.0 * X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3]], axis=1)
    return X, codes, (y - y.mean(axis=0)) / y.std(axis=0)


def some_problem(loss: str, n: int = 40, *, n_outputs: int = 1, **changed: Any) -> TunedProblem:
    phi = feature_map(4, changed.pop("n_frequencies", D))
    figures = {"gamma": 0.05, "Lam": 0.01, "floor": 1.0, "center": 1.0}
    figures |= {name: changed.pop(name) for name in list(changed) if name in figures}
    spectrum = meta_spectrum(phi.projection.dense(), changed.pop("meta_kernel", "rbf"), length_scale=0.5)
    penalty = DensityPenalty(spectrum, **figures)
    n_classes = None if loss == "squared_error" else max(2, n_outputs)
    models = np.array([1]) if n_classes == 2 else np.arange(n_outputs)
    problem = TunedProblem(phi, NewtonTargets(models, n_classes), float(n), loss, 0.02, penalty, tol=1e-7)
    return replace(problem, **changed)


def solved(problem: TunedProblem, blocks: Sequence[Any]) -> TunedSolution:
    state, _ = play(driver_of(problem.loss), problem, blocks)
    return TunedSolution.of(problem, state)


def target_of(problem: TunedProblem, codes: np.ndarray, y: np.ndarray) -> np.ndarray:
    return y if problem.loss == "squared_error" else codes


def defined(problem: TunedProblem, X: np.ndarray, target: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """Rows and figures as the definitions take them."""
    block = cut(X, target, rows=len(X))[0]
    values, weight = problem.targets(block)
    penalty = problem.penalty
    figures = {"lam": problem.lam, "Lam": penalty.Lam, "center": penalty.center, "H": penalty.matrix}
    phi = map_rows(X, problem.feature_map, "float64")
    return (phi, values, weight), {**figures, "loss": problem.loss}


@pytest.mark.parametrize("floor", [1.0, 0.05])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_optimum_is_that_of_a_general_solver(loss: str, floor: float) -> None:
    X, codes, y = some_rows()
    problem = some_problem(loss, floor=floor)
    target = target_of(problem, codes, y[:, :1])
    found = solved(problem, blocks_of(X, target, 17))
    arrays, figures = defined(problem, X, target)
    expected = definitions.tuned_optimum(arrays, figures, floor)
    model = (found.coef, found.intercept, found.density)
    assert found.objective == pytest.approx(definitions.tuned_objective(arrays, model, figures), rel=1e-12)
    assert found.objective == pytest.approx(expected, rel=2e-7)
    assert found.density.min() >= floor
    # neither the reference kernel nor all at the bound: the density matters here
    assert found.density.max() > 1.05


@numba.njit
def half_squared_hinges(rows: Any, prior: Any, steps: Any, widths: Any, out: Any) -> None:
    start, move, targets, weight = rows
    smooth, loss, dual, curvature = out
    for i in range(targets.shape[0]):
        for k in range(targets.shape[1]):
            y, w = targets[i, k], weight[i]
            for t in range(steps.shape[1]):
                smooth[k, t] += w * max(0.0, 1.0 - y * (start[i, k] + steps[k, t] * move[i, k])) ** 2 / 2.0
            slack = max(0.0, 1.0 - y * (start[i, k] + steps[k, 0] * move[i, k]))
            loss[1 if y > 0.0 else 0, k] += w * slack**2 / 2.0
            dual[i, k] = w * y * slack
            curvature[i, k] = w if slack > 0.0 else 0.0


class HalfSquaredHinge(SquaredHingeLoss):
    """max(0, 1 - y f)^2 / 2, whose conjugate at s is s^2 / 2 + y s."""

    largest_curvature = 1.0
    conjugate_square = 0.5

    def of_slack(self, slack: Any) -> Any:
        return super().of_slack(slack) / 2.0

    def slope(self, y: Any, f: Any) -> Any:
        return super().slope(y, f) / 2.0


def test_a_new_loss_is_a_row_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half the squared hinge under half the penalties is the squared hinge: tuned, judged, and in joint machines."""
    entry = registry.LossEntry("HalfSquaredHinge", "max(0, 1 - y f)^2 / 2", {}, module=__name__)
    monkeypatch.setitem(registry.LOSSES, "half_squared_hinge", entry)
    monkeypatch.setitem(TUNED_LOSSES, "half_squared_hinge", LossRow(half_squared_hinges))
    X, codes, _ = some_rows()
    whole = some_problem("squared_hinge")
    half = replace(some_problem("half_squared_hinge", Lam=0.005), lam=0.01)
    expected, found = (solved(problem, blocks_of(X, codes, 17)) for problem in (whole, half))
    assert 2.0 * found.objective == pytest.approx(expected.objective, rel=1e-6)
    assert found.gap <= 1e-7 * found.objective
    # a model is judged by its row, too
    model = TunedModel(found.coef, found.intercept, found.density[None])
    record = judging_record(half.feature_map, half.targets, model, half.loss, dtype="float64")
    judgement = judged(summed(record, blocks_of(X, codes, 17)), model, half.loss, half.lam, half.penalty)
    assert judgement.objective == pytest.approx(found.objective, rel=1e-12)
    assert judgement.gap <= 1e-5 * found.objective
    ball = DivergenceBall(D, 1.5)
    joint = [
        JointProblem(problem.feature_map, problem.targets, 40.0, problem.loss, problem.lam, ball, dtype="float64")
        for problem in (whole, half)
    ]
    ends = [play(JointDriver(), problem, blocks_of(X, codes, 17))[0] for problem in joint]
    assert 2.0 * ends[1].objective == pytest.approx(ends[0].objective, rel=2e-3)
    assert ends[1].gap <= 1e-3 * ends[1].objective


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_is_a_bound_and_closes(loss: str, shared: bool) -> None:
    X, codes, y = some_rows(60, n_classes=3)
    problem = some_problem(loss, 60, n_outputs=2 if loss == "squared_error" else 3, shared=shared)
    target = target_of(problem, codes, y)
    driver, states = driver_of(problem.loss), []
    state: TunedState = driver.init(problem)
    while (records := driver.request(problem, state)) is not None:
        state = driver.step(problem, state, [summed(record, blocks_of(X, target, 17)) for record in records])
        states.append(state)
    best = state.objective - state.gap
    assert all(one.gap >= 0.0 for one in states)
    assert all(one.objective - one.gap <= best + state.gap + 1e-12 for one in states)
    exact = loss == "squared_error"
    assert state.gap <= (1e-14 if exact else 1e-7 * state.objective)
    assert state.residual <= (1e-12 if exact else 1e-4)
    assert state.density.shape == (1 if shared else problem.n_outputs, D)
    figures = {"objective", "residual", "gap", "width", "share"}
    assert all(figures <= line.keys() for line in state.history)
    assert "passes" in state.message or "pass" in state.message


@pytest.mark.parametrize("loss", LOSSES)
def test_a_density_each_is_solving_each_output_alone(loss: str) -> None:
    X, codes, y = some_rows(60, n_classes=3)
    problem = some_problem(loss, 60, n_outputs=2 if loss == "squared_error" else 3, shared=False)
    target = target_of(problem, codes, y)
    together = solved(problem, blocks_of(X, target, 17))
    for k in range(problem.n_outputs):
        alone = replace(problem, targets=replace(problem.targets, models=np.array([k])))
        found = solved(alone, blocks_of(X, target, 17))
        np.testing.assert_allclose(together.density[k], found.density[0], rtol=2e-3)
        scores = [X_mapped @ one for X_mapped in [map_rows(X, problem.feature_map, "float64")] for one in found.coef]
        np.testing.assert_allclose(
            map_rows(X, problem.feature_map, "float64") @ together.coef[k], scores[0], rtol=0, atol=3e-3
        )


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_a_small_lam_is_solved_too(loss: str) -> None:
    X, codes, _ = some_rows(120)
    problem = some_problem(loss, 120, lam=1e-7, tol=1e-6, n_frequencies=20)
    found = solved(problem, blocks_of(X, codes, 17))
    assert 0.0 <= found.gap <= 1e-6 * found.objective


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_rows_of_one_class_are_answered_by_the_intercept(loss: str) -> None:
    X, codes, _ = some_rows()
    found = solved(some_problem(loss), blocks_of(X, 0 * codes, 17))
    assert found.objective <= 1e-10
    scores = map_rows(X, feature_map(4, D), "float64") @ found.coef.T + found.intercept
    assert (scores <= -1.0 + 1e-5).all()


def test_an_infinite_penalty_is_ridge_regression_on_plain_features() -> None:
    X, _, y = some_rows(80)
    phi = map_rows(X, feature_map(4, D), "float64")
    for Lam, tolerance in [(np.inf, 1e-12), (1e8, 1e-6)]:
        problem = some_problem("squared_error", 80, n_outputs=2, Lam=Lam, lam=1e-3)
        found = solved(problem, blocks_of(X, y, 17))
        ridge = Ridge(alpha=80 * 1e-3, solver="cholesky").fit(phi, y)
        np.testing.assert_allclose(phi @ found.coef.T + found.intercept, ridge.predict(phi), rtol=0, atol=tolerance)
        np.testing.assert_allclose(found.density, 1.0, rtol=0, atol=1e-6)


def test_the_start_does_not_matter() -> None:
    X, _, y = some_rows()
    problem = some_problem("squared_error")
    (sums,) = collected(problem, X, y[:, :1], None, 1)
    expected = solve_squared(sums, problem.penalty, problem.lam)
    for start in (np.full(D, 50.0), 1.0 + 9.0 * np.random.default_rng(0).random(D)):
        found = solve_squared(sums, problem.penalty, problem.lam, start)
        assert found.objective == pytest.approx(expected.objective, rel=1e-13)
        np.testing.assert_allclose(found.coef, expected.coef, rtol=0, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_act_as_repetitions(loss: str) -> None:
    X, codes, y = some_rows()
    repeats = np.random.default_rng(5).integers(1, 4, len(X))
    problem = some_problem(loss, int(repeats.sum()))
    target = target_of(problem, codes, y[:, :1])
    weighted = solved(problem, blocks_of(X, target, 17, repeats.astype(float)))
    again = [np.repeat(values, repeats, axis=0) for values in (X, target)]
    repeated = solved(problem, blocks_of(again[0], again[1], 17))
    assert weighted.objective == pytest.approx(repeated.objective, rel=1e-9)
    np.testing.assert_allclose(weighted.coef, repeated.coef, rtol=0, atol=1e-5 * np.abs(repeated.coef).max())


def collected(problem: TunedProblem, X: np.ndarray, y: np.ndarray, folds: Any, n_folds: int, **kept: Any) -> list[Any]:
    sums = FoldSums(problem.feature_map, problem.targets, folds, n_folds, **kept)
    return sums.collect(Table(cut(X, y)).run(sums.records()))


def test_sums_by_fold_judge_as_fits_without_the_fold_do() -> None:
    X, _, y = some_rows(90)
    problem = some_problem("squared_error", n_outputs=2)
    parts = collected(problem, X, y, lambda row_id: row_id % 3, 3)
    judged = cross_validate(parts, problem.penalty, problem.lam, tol=1e-14)
    phi = map_rows(X, problem.feature_map, "float64")
    for fold in range(3):
        held = np.arange(90) % 3 == fold
        found = solved(some_problem("squared_error", 60, n_outputs=2), blocks_of(X[~held], y[~held], 17))
        errors = np.mean((y[held] - phi[held] @ found.coef.T - found.intercept) ** 2, axis=0)
        np.testing.assert_allclose(judged[fold], errors, rtol=1e-9)


def test_few_rows_are_solved_in_their_own_dimensions_to_the_same() -> None:
    X, _, y = some_rows(30)
    problem = some_problem("squared_error", n_outputs=2, n_frequencies=40)
    parts = collected(problem, X, y, lambda row_id: row_id % 3, 3, n_rows=30)
    sums = collected(problem, X, y, lambda row_id: row_id % 3, 3)
    assert all(isinstance(part, SquaredRows) for part in parts)
    assert all(isinstance(part, SquaredSums) for part in sums)
    few, whole = (cross_validate(one, problem.penalty, problem.lam, tol=1e-14) for one in (parts, sums))
    np.testing.assert_allclose(few, whole, rtol=1e-9)
    problems = [replace(problem, n_rows=n) for n in (30, None)]
    by_rows, by_sums = (
        TunedSolution.of(one, play_table(driver_of(one.loss), one, Table(cut(X, y)))) for one in problems
    )
    assert by_rows.objective == pytest.approx(by_sums.objective, rel=1e-12)
    assert by_rows.gap <= 1e-14


def test_the_squared_error_is_summed_in_float64_whatever_the_dtype_of_features() -> None:
    X, _, y = some_rows(200)
    problem = some_problem("squared_error", 200, lam=1e-4)
    exact, single = (
        solved(replace(problem, dtype=name), blocks_of(X, y[:, :1], 64)) for name in ("float64", "float32")
    )
    np.testing.assert_array_equal(single.coef, exact.coef)
    assert single.gap <= 1e-14


@pytest.mark.parametrize("form", ["whole", "thin"])
def test_values_and_curvatures_in_the_density_are_those_of_the_eliminated_objective(form: str) -> None:
    generator = np.random.default_rng(0)
    B, t, lam, u = generator.normal(size=(2 * D, 5)), generator.normal(size=(5, 2)), 0.3, 1.0 + generator.random(D)
    A, C = B @ B.T, B @ t
    made = WholeForm(A, C, lam) if form == "whole" else ThinForm(B, t, lam)
    point = made.at(u)
    columns = np.tile(u, 2)[:, None]
    w = np.linalg.solve(A + lam * np.diag(1.0 / columns[:, 0]), C)
    assert point.value == pytest.approx(-0.5 * np.sum(C * w), rel=1e-12)
    np.testing.assert_allclose(columns * point.ratios, w, rtol=0, atol=1e-12)
    flat = DensityPenalty(meta_spectrum(np.eye(D), "delta"), 1.0, 1.0)
    slopes = [(made.at(u + 1e-5 * one).value - made.at(u - 1e-5 * one).value) / 2e-5 for one in np.eye(D)]
    gradient = density_gradient([made], [point], flat, u) - flat.gradient(u)
    np.testing.assert_allclose(gradient, slopes, rtol=0, atol=1e-9)
    ends = [
        [density_gradient([made], [made.at(v)], flat, v) - flat.gradient(v) for v in (u + h, u - h)]
        for h in 1e-5 * np.eye(D)
    ]
    curvature = np.array([(up - down) / 2e-5 for up, down in ends])
    np.testing.assert_allclose(made.curvature(u, point), curvature, rtol=0, atol=1e-8)


def test_fourier_kernel_learning_is_its_closed_form() -> None:
    X, _, y = some_rows()
    figures = {"meta_kernel": "delta", "floor": 0.0, "center": 0.0}
    problem = some_problem("squared_error", Lam=0.1, **figures)
    found = solved(problem, blocks_of(X, y[:, :1], 17))
    squares = np.sum((found.coef**2).reshape(2, D), axis=0)
    h = 1.0 / (1.0 + problem.penalty.gamma * D) ** 2
    expected = np.cbrt(problem.lam * squares / (2.0 * 0.1 * h))
    np.testing.assert_allclose(found.density, expected, rtol=0, atol=1e-8)
    assert found.gap <= 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_a_quadratic_of_numbers_with_signs_is_least_where_all_faces_say(seed: int) -> None:
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(9, 7))
    Q, q = root.T @ root, 3.0 * generator.normal(size=7)
    for signs in (generator.integers(-1, 2, 7), np.zeros(7, int), np.ones(7, int)):
        found = signed_minimum(Q, q, signs)
        np.testing.assert_allclose(found, definitions.signed_minimum(Q, q, signs), rtol=0, atol=1e-9)
        assert (signs * found >= 0.0).all()


@pytest.mark.parametrize("seed", range(5))
def test_a_bounded_quadratic_is_least_where_all_faces_say(seed: int) -> None:
    generator = np.random.default_rng(seed)
    root = generator.normal(size=(7, 7))
    Q, q = root.T @ root, 3.0 * generator.normal(size=7)
    expected = definitions.bounded_minimum(Q, q, 0.5)
    for guess in (None, np.zeros(7, bool), generator.random(7) < 0.5):
        np.testing.assert_allclose(bounded_minimum(Q, q, 0.5, guess), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_state_that_was_stored_goes_on_to_the_same_bits(loss: str) -> None:
    X, codes, y = some_rows()
    problem = some_problem(loss, dtype="float32", tol=1e-3)
    blocks = blocks_of(X, target_of(problem, codes, y[:, :1]), 17)
    driver = driver_of(problem.loss)
    state, stored = driver.init(problem), driver.init(problem)
    while (records := driver.request(problem, state)) is not None:
        state = driver.step(problem, state, [summed(record, blocks) for record in records])
        arrays, values = encode_state(stored)
        again = decode_state(TunedState, arrays, values)
        results = [summed(record, blocks) for record in driver.request(problem, again) or ()]
        stored = driver.step(problem, again, results)
        np.testing.assert_array_equal(stored.coefficients, state.coefficients)
        np.testing.assert_array_equal(stored.density, state.density)
    assert stored.ended


def test_many_rows_begin_with_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    X, codes, _ = some_rows(400)
    problem = some_problem("hinge", 400, tol=1e-6)
    whole = solved(problem, blocks_of(X, codes, 64))
    monkeypatch.setattr(tuned_margin, "_SAMPLE_ROWS", 90)
    monkeypatch.setattr(tuned_margin, "_SAMPLE_PER_COLUMN", 1)
    state, _ = play(driver_of(problem.loss), problem, blocks_of(X, codes, 64))
    shares = [line["share"] for line in state.history]
    assert shares[0] == pytest.approx(90 / 400)
    assert shares[-1] == 1.0
    assert state.objective == pytest.approx(whole.objective, rel=3e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_sums_cut_into_panels_lead_to_the_same_model(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, codes, y = some_rows()
    problem = some_problem(loss)
    blocks = blocks_of(X, target_of(problem, codes, y[:, :1]), 17)
    whole = solved(problem, blocks)
    monkeypatch.setattr(tuned_records, "LARGEST_ACCUMULATOR", 300)
    records = driver_of(problem.loss).request(problem, driver_of(problem.loss).init(problem))
    assert records is not None
    assert len(records) == 3
    cut_up = solved(problem, blocks)
    np.testing.assert_allclose(cut_up.density, whole.density, rtol=1e-6)
    np.testing.assert_allclose(cut_up.coef, whole.coef, rtol=0, atol=1e-6 * np.abs(whole.coef).max())


@pytest.mark.parametrize("loss", LOSSES)
def test_the_plan_holds_the_records_of_the_passes(loss: str) -> None:
    X, codes, y = some_rows()
    problem = some_problem(loss, dtype="float32", tol=1e-3)
    table = Table(cut(X, target_of(problem, codes, y[:, :1])))
    planned = driver_of(problem.loss).plan(problem)
    play_table(driver_of(problem.loss), problem, table)
    names = {" + ".join(record.name for record in records) for records, _ in planned}
    assert set(table.passes) == names
    assert len(table.passes) <= sum(calls for _, calls in planned)
    for records, _ in planned:
        assert all(record.cost(1_000, 4).flops > 0 for record in records)


@pytest.mark.parametrize(("loss", "n_outputs"), [("squared_error", 2), ("squared_hinge", 1), ("hinge", 3)])
def test_a_step_holds_no_more_than_it_says(loss: str, n_outputs: int) -> None:
    X, codes, y = some_rows(300, n_classes=3 if n_outputs == 3 else 2)
    problem = some_problem(loss, 300, n_outputs=n_outputs, n_frequencies=120, tol=1e-3)
    table, driver = Table(cut(X, target_of(problem, codes, y), rows=300)), driver_of(problem.loss)
    state, peak = driver.init(problem), 0
    assert driver.metrics(problem, state) == {}
    # the penalty's own matrix belongs to the penalty
    assert problem.penalty.matrix.shape == (120, 120)
    while (records := driver.request(problem, state)) is not None:
        results = table.run(records)
        tracemalloc.start()
        state = driver.step(problem, state, results)
        peak = max(peak, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert driver.metrics(problem, state).keys() == {"objective", "gap"}
    held = sum(driver.memory(problem, 0, 32).values())
    assert peak <= 1.1 * held
    assert held <= 3 * peak


def test_no_rows_and_infinite_rows_are_refused() -> None:
    X, _, y = some_rows()
    problem = some_problem("squared_error")
    with pytest.raises(ValueError, match="weights of these rows sum to 0"):
        solve_squared(collected(problem, X, y, lambda row_id: 0 * row_id - 1, 1)[0], problem.penalty, 0.1)
    (sums,) = collected(problem, X, y, None, 1)
    with pytest.raises(ValueError, match="not finite"):
        solve_squared(replace(sums, cross=np.inf * sums.cross), problem.penalty, 0.1)
