"""Newton steps by the Hessian of a share of the rows, and the sums that they and candidates of penalties save."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

import dkl
from dkl.features.families import Gaussian
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonOptions, NewtonTargets, TrialSteps, newton_sums
from dkl.linear.fitting import subsample_metric, subsample_problem
from dkl.linear.head import NewtonDriver, NewtonProblem
from dkl.linear.minibatches import HeldOut
from tests.definitions import linear as definition
from tests.definitions.block_sums import packed
from tests.linear.problems import blocks_of, feature_map, play, rows, summed


def problem_for(loss: str, n: float, dtype: str = "float64", alpha: float = 1e-3) -> NewtonProblem:
    targets = NewtonTargets(np.array([1]), 2) if loss != "poisson" else NewtonTargets(np.array([0]), None)
    return NewtonProblem(feature_map(4), targets, n, alpha, loss, tol=1e-8, dtype=dtype)


def begun_on_a_share(problem: NewtonProblem, X: np.ndarray, y: np.ndarray, n: int) -> NewtonProblem:
    """The problem with the optimum of the first n rows as its start, and their Hessian as its metric."""
    part = replace(problem, total_weight=float(n))
    state, _ = play(NewtonDriver(), part, blocks_of(X[:n], y[:n], 50))
    return replace(problem, start=state.coefficients, metric=state.hessian * (problem.total_weight / n))


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "poisson"])
def test_steps_by_the_hessian_of_a_share_end_at_the_optimum_of_all_rows(loss: str) -> None:
    X, codes = rows(2_000, 2)
    y = np.random.default_rng(1).poisson(np.exp(np.sin(X[:, 0]))) if loss == "poisson" else codes
    problem = problem_for(loss, 2_000.0)
    exact, _ = play(NewtonDriver(), problem, blocks_of(X, y, 500))
    state, passes = play(NewtonDriver(), begun_on_a_share(problem, X, y, 400), blocks_of(X, y, 500))
    assert state.done(replace(problem, tol=1e-8)).all()
    assert passes <= 20
    np.testing.assert_allclose(state.coefficients, exact.coefficients, atol=1e-5)


def test_a_metric_needs_no_further_hessian_and_the_plan_says_so() -> None:
    problem = replace(problem_for("squared_hinge", 60.0), metric=np.zeros((1, packed_size(0, 17))))
    for records, _ in NewtonDriver().plan(problem):
        assert all("hessian" not in record.accumulators for record in records)


def test_directions_are_those_of_the_inverse_updated_by_each_step() -> None:
    """The recursion equals the matrices of BFGS, written out: H <- (I - s y'/y's) H (I - y s'/y's) + s s'/y's."""
    X, codes = rows(1_000, 2)
    problem = problem_for("squared_hinge", 1_000.0)
    problem = replace(begun_on_a_share(problem, X, codes, 200), tol=1e-6)
    driver, blocks = NewtonDriver(), blocks_of(X, codes, 300)
    whole = symmetric(problem.metric[0])  # type: ignore[index]
    penalty = np.diag(np.append(np.full(16, 1e-3), 0.0))
    # the squared hinge has curvature 2
    inverse = np.linalg.inv(2.0 * whole / 1_000.0 + penalty)
    phi, y = np.hstack([map_rows(X, problem.feature_map, "float64"), np.ones((1_000, 1))]), np.where(codes, 1.0, -1.0)

    def gradient_at(w: np.ndarray) -> np.ndarray:
        slack = np.maximum(0.0, 1.0 - y * (phi @ w))
        return -2.0 * (y * slack) @ phi / 1_000.0 + penalty @ w

    state, last = driver.init(problem), None
    while (records := driver.request(problem, state)) is not None:
        state = driver.step(problem, state, [summed(record, blocks) for record in records])
        w = state.coefficients[0]
        if last is not None and not np.array_equal(w, last):
            s, change = w - last, gradient_at(w) - gradient_at(last)
            away = np.eye(17) - np.outer(s, change) / (s @ change)
            inverse = away @ inverse @ away.T + np.outer(s, s) / (s @ change)
        last = w
        np.testing.assert_allclose(state.directions[0], -inverse @ gradient_at(w), rtol=1e-4, atol=1e-9)
        np.testing.assert_allclose(state.slope[0], gradient_at(w) @ state.directions[0], rtol=1e-4)
    assert len(state.moves) >= 3  # type: ignore[arg-type]


def test_a_share_hands_on_its_hessian_where_that_of_all_rows_would_cost_much() -> None:
    wide = Gaussian(2.0).draw(100, 4, 0)
    problem = replace(problem_for("squared_hinge", 100_000.0), feature_map=wide)
    subsample = subsample_problem(problem, 400_000, 7, HeldOut())
    assert subsample is not None
    # a tenth of the rows at most, and 200 a feature
    assert subsample.total_weight == pytest.approx(0.1 * problem.total_weight)
    # half of the rows have curvature
    state = replace(NewtonDriver().init(subsample), hessian=np.full((1, 5), 5_000.0))
    np.testing.assert_allclose(subsample_metric(subsample, problem, state, 400_000), 50_000.0)
    few, several = replace(problem, feature_map=feature_map(4)), NewtonTargets(np.arange(3), 3)
    assert subsample_metric(subsample, few, state, 400_000) is None
    assert subsample_metric(subsample, replace(problem, targets=several), state, 400_000) is None
    assert subsample_metric(subsample, problem, replace(state, hessian=np.ones((0, 5))), 400_000) is None
    # 5,000 of 100,000 rows are 25 a feature: too few for an exact fit, enough for one with a rough last step
    assert subsample_metric(subsample, problem, state, 100_000) is None
    assert subsample_metric(subsample, replace(problem, decrement=1e-2), state, 100_000) is not None


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("loss", ["squared_hinge", "squared_error"])
def test_hessians_summed_by_what_they_differ_are_the_whole_ones(loss: str, change: bool) -> None:
    X, codes = rows(300, 2)
    phi, generator = feature_map(4), np.random.default_rng(0)
    trial = TrialSteps(generator.normal(size=(4, 17)), generator.normal(size=(4, 17)), np.ones((4, 2)))
    targets, weight = np.where(codes, 1.0, -1.0)[:, None].repeat(4, axis=1), generator.integers(0, 3, (300, 4)) * 1.0
    options = NewtonOptions(loss, (0, 17), (0, 1, 3), change=change, dtype="float64")  # type: ignore[arg-type]
    whole = newton_sums(X, targets, weight, phi, trial, options)
    by_parts = newton_sums(X, targets, weight, phi, trial, replace(options, follows=(False, True, True)))
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(by_parts[name], whole[name], rtol=1e-12, atol=1e-10)


def test_penalties_of_a_target_follow_each_other_and_targets_do_not() -> None:
    X, codes = rows(300, 3)
    targets = NewtonTargets(np.array([0, 0, 1, 1]), 3)
    problem = replace(problem_for("squared_hinge", 300.0), targets=targets, alpha=np.array([1.0, 0.1, 1.0, 0.1]))
    driver, blocks, follows = NewtonDriver(), blocks_of(X, codes, 100), []

    def noted(block: object, operands: dict) -> dict:
        follows.append(operands["options"].follows)
        return function(block, operands)

    state = driver.init(problem)
    while (records := driver.request(problem, state)) is not None:
        function: Callable = records[0].function
        results = []
        for record in records:
            results.append(summed(replace(record, function=noted), blocks))
        state = driver.step(problem, state, results)
    # at the start all share a Hessian; from the second step on the changes of each are few
    assert follows[0] == (False,)
    assert follows[3] == (False, True, False, True)
    assert follows[-1] == ()


def symmetric(upper: np.ndarray) -> np.ndarray:
    """The matrix of 17 columns whose upper triangle is packed column by column."""
    whole = np.zeros((17, 17))
    whole.T[np.tril_indices(17)] = upper
    return whole + np.triu(whole, 1).T


LEARNERS = {
    "waves": dkl.RandomFeatures(n_features=60, random_state=0),
    "phases": dkl.RandomFeatures(dkl.Gaussian(2.0, pairing="phase"), n_features=60, random_state=0),
    "structured": dkl.RandomFeatures(dkl.Gaussian(2.0, sampling="structured"), n_features=60, random_state=0),
    "nystrom": dkl.NystromFeatures(n_features=20, random_state=0),
    "steps": dkl.StepFeatures(n_features=20, random_state=0),
    "coordinates": dkl.RandomFeatures(dkl.Coordinates(), n_features=4),
}


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("change", [False, True])
def test_rows_in_the_cache_have_the_sums_of_whole_rows(
    kind: str, change: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows without curvature give way to the next ones, and the room is emptied when it is full."""
    monkeypatch.setattr("dkl.kernels.maps._CACHED_BYTES", 1)
    monkeypatch.setattr("dkl.kernels.maps._LEAST_CACHED", 16)
    monkeypatch.setattr("dkl.kernels.maps._LEAST_ROWS", 32)
    monkeypatch.setattr("dkl.kernels.maps._TILE_BYTES", 1)
    X, codes = rows(250, 2)
    phi = clone(LEARNERS[kind]).fit(X, codes).feature_map_
    m, generator = phi.n_features, np.random.default_rng(0)
    trial = TrialSteps(generator.normal(size=(2, m + 1)), generator.normal(size=(2, m + 1)), np.ones((2, 2)))
    targets, weight = np.where(codes, 1.0, -1.0)[:, None] * [1.0, -1.0], generator.integers(0, 3, 250) * 1.0
    options = NewtonOptions("squared_hinge", (0, m + 1), (0, 1), change=change, dtype="float64")
    sums = newton_sums(X, targets, weight, phi, trial, options)
    mapped = np.hstack([map_rows(X, phi, "float64"), np.ones((250, 1))])
    expected = definition.newton_sums(mapped, targets, weight, trial, "squared_hinge")
    np.testing.assert_allclose(sums["loss"], expected["loss"], rtol=1e-11)
    np.testing.assert_allclose(sums["gradient"], expected["gradient"], rtol=1e-10, atol=1e-9)
    for number in range(2):
        scores = [mapped @ (trial.coefficients[number] + step * trial.directions[number]) for step in (1.0, 0.0)]
        now, before = ((targets[:, number] * score < 1.0).astype(float) for score in scores)
        active = weight * (now - before if change else now)
        whole = packed(definition.hessian_sum(mapped, active), (0, m + 1))
        np.testing.assert_allclose(sums["hessian"][number], whole, rtol=1e-10, atol=1e-9)
