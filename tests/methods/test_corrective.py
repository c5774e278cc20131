"""Fully corrective rounds without a cluster: generic optima, pursuit by hand, halved steps, held-out rows, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression, Ridge

import dkl
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset
from dkl.features.families import Gaussian
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.margin import driver as one_family
from dkl.methods.margin.driver import (
    CorrectiveDriver,
    CorrectiveProblem,
    CorrectiveState,
    RoundSchedule,
    most_candidates,
)
from dkl.methods.room import planned_kinds
from dkl.methods.rounds import driver as families
from dkl.methods.rounds import loop
from dkl.methods.rounds.loop import HeldTargets, best_round
from dkl.methods.rounds.problem import RoundsProblem, first_state
from dkl.passes.checkpoint import decode_state, encode_state
from dkl.passes.room import own_room
from dkl.solvers.losses import loss_of
from tests.methods.play import Table, blocks_of, play

N, D_IN = 300, 4
FAMILY = Gaussian(2.0)
OPTIONS = SearchOptions(chains=10, steps=4, stride=0.2)


def rows(n: int = N, noise: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two classes whose border is a wave, some on the wrong side."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D_IN))
    return X, (np.sin(2 * X[:, 0]) + np.sin(X[:, 1] - X[:, 2]) + noise * rng.standard_normal(n) > 0).astype(np.int64)


def fourier(d: int = D_IN) -> FourierSpace:
    return FourierSpace(FAMILY.draw(1, d, 0, np.float64), FAMILY, OPTIONS)


def pool(size: int = 12, d: int = D_IN) -> FrequencyPool:
    drawn = FAMILY.draw(size, d, 3, np.float64)
    return FrequencyPool(replace(drawn, amplitudes=np.ones(size)), "float64")


def problem_of(n_models: int = 1, n_classes: int | None = 2, **parameters: Any) -> CorrectiveProblem:
    models = np.array([1]) if n_classes is not None and n_models == 1 else np.arange(n_models)
    held = parameters.pop("held", None)
    settings: dict[str, Any] = {
        "space": fourier(),
        "targets": HeldTargets(NewtonTargets(models, n_classes), held),
        "n_models": n_models,
        "n_rows": N,
        "n_points": 12,
        "total_weight": float(N),
        "ridge": 0.5,
        "sample_rows": 1_000,
        "dtype": "float64",
    }
    loss = loss_of(parameters.pop("loss", "squared_hinge"))
    return CorrectiveProblem(**{**settings, "loss": loss, **parameters})


def signs_of(problem: CorrectiveProblem, y: np.ndarray) -> np.ndarray:
    """(n, K) targets."""
    if problem.targets.targets.n_classes is None:
        return y.reshape(len(y), -1)
    return np.where(y[:, None] == problem.targets.targets.models, 1.0, -1.0)


def design(problem: CorrectiveProblem, state: CorrectiveState, X: np.ndarray) -> np.ndarray:
    return map_rows(X, problem.space.feature_map(state.points), "float64")


def penalty_of(problem: CorrectiveProblem, state: CorrectiveState) -> float:
    return problem.ridge_of(state.is_full) * max(1, state.n_points)


def optimum(Z: np.ndarray, y: np.ndarray, weight: np.ndarray, ridge: float, loss: Any) -> tuple[np.ndarray, float]:
    """Coefficients (intercept last, free) that a general solver finds, and the objective there."""

    def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
        w, f = values[:-1], Z @ values[:-1] + values[-1]
        pull = -weight * loss_of(loss).slope(y, f)
        value = ridge / 2 * w @ w + weight @ loss_of(loss).value(y, f)
        return float(value), np.append(ridge * w - Z.T @ pull, -pull.sum())

    options = {"maxiter": 20_000, "maxfun": 20_000, "ftol": 1e-15, "gtol": 1e-9}
    found = minimize(objective, np.zeros(Z.shape[1] + 1), jac=True, method="L-BFGS-B", options=options)
    return found.x, float(found.fun)


SETTLED = RoundSchedule(settling=60)


@pytest.mark.parametrize("case", ["squared_hinge", "three log", "two targets"])
def test_a_settled_working_model_is_the_optimum_of_a_general_solver(case: str) -> None:
    X, y = rows()
    K, loss, n_classes = 1, case, 2
    if case == "three log":
        K, n_classes, loss = 3, 3, "log_loss"
        y = np.digitize(X[:, 0], [-0.4, 0.4]) * (X[:, 1] > -1)
    if case == "two targets":
        K, n_classes, loss = 2, None, "squared_error"
        y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] + X[:, 2]])
    # several classes share one matrix, which bounds their curvatures: steps are shorter than Newton's
    slower = {"ridge": 5.0, "schedule": RoundSchedule(settling=200)} if K == 3 else {"schedule": SETTLED}
    problem = problem_of(K, n_classes, loss=loss, **slower)
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y, weight)))
    assert state.n_points == 12
    Z, targets = design(problem, state, X), signs_of(problem, y)
    for k in range(K):
        expected, best = optimum(Z, targets[:, k], weight, penalty_of(problem, state), loss)
        w, b = state.coefficients[k, :-1], state.coefficients[k, -1]
        found = penalty_of(problem, state) / 2 * w @ w + weight @ loss_of(loss).value(targets[:, k], Z @ w + b)
        assert found <= best * (1 + 1e-5)
        np.testing.assert_allclose(Z @ w + b, Z @ expected[:-1] + expected[-1], rtol=0, atol=2e-3)


def test_the_optima_are_those_of_scikit_learn() -> None:
    X, y = rows()
    problem = problem_of(loss="log_loss", schedule=SETTLED)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    logistic = LogisticRegression(C=1 / penalty_of(problem, state), tol=1e-10, max_iter=10_000)
    logistic.fit(design(problem, state, X), y)
    np.testing.assert_allclose(state.coefficients[0, :-1], logistic.coef_[0], atol=1e-4)
    np.testing.assert_allclose(state.coefficients[0, -1], logistic.intercept_[0], atol=1e-4)
    target = np.sin(2 * X[:, 0]) + 3.0
    problem = problem_of(1, None, loss="squared_error")
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, target)))
    ridge = Ridge(alpha=penalty_of(problem, state)).fit(design(problem, state, X), target)
    np.testing.assert_allclose(state.coefficients[0, :-1], ridge.coef_, atol=1e-6)
    np.testing.assert_allclose(state.coefficients[0, -1], ridge.intercept_, atol=1e-6)


def pursuit(Z: np.ndarray, y: np.ndarray, rounds: int, ridge: float) -> list[int]:
    """Orthogonal matching pursuit over pairs of columns, each round's model a ridge with a free intercept."""
    m, chosen, residual = Z.shape[1] // 2, [], y - y.mean()
    for _ in range(rounds):
        potentials = (Z[:, :m].T @ residual) ** 2 + (Z[:, m:].T @ residual) ** 2
        chosen.append(int(np.argmax(potentials)))
        columns = [*chosen, *(m + j for j in chosen)]
        model = Ridge(alpha=ridge * len(chosen)).fit(Z[:, columns], y)
        residual = y - model.predict(Z[:, columns])
    return chosen


def test_with_squared_error_rounds_are_orthogonal_matching_pursuit() -> None:
    X, _ = rows()
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1]
    schedule = RoundSchedule(first=1, growth=0.0, candidates=100.0)
    problem = problem_of(1, None, loss="squared_error", space=pool(40), schedule=schedule, n_points=15)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    expected = pursuit(map_rows(X, problem.space.pool, "float64"), y, 15, problem.ridge)  # type: ignore[attr-defined]
    assert state.points.tolist() == expected
    Z = design(problem, state, X)
    ridge = Ridge(alpha=penalty_of(problem, state)).fit(Z, y)
    np.testing.assert_allclose(Z @ state.coefficients[0, :-1] + state.coefficients[0, -1], ridge.predict(Z), atol=1e-6)


@pytest.mark.parametrize("case", ["squared_hinge", "log_loss", "three classes"])
def test_the_gram_matrix_kept_from_round_to_round_is_the_one_from_scratch(case: str) -> None:
    X, y = rows()
    K = 3 if case == "three classes" else 1
    y = np.digitize(X[:, 0], [-0.4, 0.4]) if K == 3 else y
    loss: Any = "log_loss" if case == "log_loss" else "squared_hinge"
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    problem = problem_of(K, max(2, K), loss=loss, held=HeldOut(0.2, 0).mask, ridge=5.0)
    held = HeldOut(0.2, 0).mask(np.arange(N))
    driver, table = CorrectiveDriver(), Table(blocks_of(X, y, weight))
    state, compared = driver.init(problem), 0
    while records := driver.request(problem, state):
        state = driver.step(problem, state, table.run(records))
        if state.message:
            break
        Z = np.column_stack([design(problem, state, X), np.ones(N)])
        curved = np.ones(N)
        if problem.active:
            curvature = loss_of(loss).curvature(signs_of(problem, y), Z @ state.gram_at.T)
            curved = curvature[:, 0] / loss_of(loss).largest_curvature
        expected = (Z * (weight * ~held * curved)[:, None]).T @ Z
        np.testing.assert_allclose(state.gram, expected, rtol=0, atol=1e-8)
        compared += 0 < curved.sum() < N
    assert compared > 3 or not problem.active


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
def test_a_step_that_went_up_is_halved(loss: Any) -> None:
    X, y = rows()
    problem, table = problem_of(loss=loss, schedule=SETTLED), Table(blocks_of(X, y))
    driver = CorrectiveDriver()
    state = driver.init(problem)
    while not state.is_full:
        state = driver.step(problem, state, table.run(driver.request(problem, state) or ()))
    far = replace(state, coefficients=state.base + 30.0 * (state.coefficients - state.base))
    halved = driver.step(problem, far, table.run(driver.request(problem, far) or ()))
    np.testing.assert_allclose(halved.coefficients, (far.base + far.coefficients) / 2, rtol=1e-12)
    np.testing.assert_array_equal(halved.history, far.history)
    assert halved.passes == far.passes + 1
    while records := driver.request(problem, halved):
        halved = driver.step(problem, halved, table.run(records))
    Z, signs = design(problem, halved, X), signs_of(problem, y)[:, 0]
    w = halved.coefficients[0]
    best = optimum(Z, signs, np.ones(N), penalty_of(problem, halved), loss)[1]
    found = penalty_of(problem, halved) / 2 * w[:-1] @ w[:-1] + loss_of(loss).value(signs, Z @ w[:-1] + w[-1]).sum()
    assert found <= best * (1 + 1e-6)


def test_steps_that_gain_little_end_the_settling_of_the_last_model() -> None:
    X, y = rows()
    ends = []
    for gain in (0.0, 1e-6):
        problem = problem_of(loss="log_loss", schedule=RoundSchedule(settling=40, least_gain=gain))
        ends.append(play(CorrectiveDriver(), problem, Table(blocks_of(X, y))))
    (whole, short), Z = ends, np.column_stack([design(problem, ends[0], X), np.ones(N)])
    np.testing.assert_array_equal(short.points, whole.points)
    assert whole.settled == 40
    assert 2 <= short.settled < 40
    scores = [Z @ state.coefficients[0] for state in ends]
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-2 * np.abs(scores[0]).max())


def test_a_round_adds_a_share_of_what_is_there_which_may_be_larger_late() -> None:
    schedule = RoundSchedule(first=3, growth=0.1, late_growth=0.5, late=100)
    assert [schedule.addition(n, 200) for n in (0, 20, 50, 99, 100, 120, 160, 199)] == [3, 3, 5, 9, 50, 60, 40, 1]


@pytest.mark.parametrize("case", ["squared_hinge", "log_loss", "squared_error"])
def test_the_gap_on_a_finite_set_is_a_bound_that_closes_as_features_are_found_again(case: Any) -> None:
    X, y = rows()
    y = np.sin(2 * X[:, 0]) if case == "squared_error" else y
    n_classes = None if case == "squared_error" else 2
    schedule = RoundSchedule(first=2, growth=0.0, candidates=100.0, settling=5)
    problem = problem_of(1, n_classes, loss=case, space=pool(8), schedule=schedule, n_points=120, ridge=20.0)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    gaps = state.series("duality_gap")
    assert gaps.min() > -1e-9
    assert gaps[1] > 5 * gaps[-1]
    assert gaps[-1] < 0.04
    assert np.unique(state.points).size <= 8


def test_the_history_says_what_the_evaluated_models_were() -> None:
    X, y = rows()
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    problem = replace(problem_of(held=HeldOut(0.3, 0).mask), total_weight=100.0)
    held = HeldOut(0.3, 0).mask(np.arange(N))
    driver, table = CorrectiveDriver(), Table(blocks_of(X, y, weight))
    state = driver.init(problem)
    while records := driver.request(problem, state):
        before, state = state, driver.step(problem, state, table.run(records))
        f = design(problem, before, X) @ before.coefficients[0, :-1] + before.coefficients[0, -1]
        loss, signs = loss_of("squared_hinge"), signs_of(problem, y)[:, 0]
        losses, duals = loss.value(signs, f), -loss.slope(signs, f)
        said = state.lines()[-1]
        assert said["n_features"] == 2 * before.n_points
        assert said["loss"] == pytest.approx((weight * ~held) @ losses / 100.0)
        assert said["held_out_loss"] == pytest.approx(np.average(losses[held], weights=weight[held]))
        assert said["support"] == pytest.approx((weight * ~held) @ (duals != 0) / 100.0)
        assert said["sample_rows"] == before.sample_rows
        if before.n_points:
            length = np.sqrt(before.n_points) * np.linalg.norm(before.coefficients[0, :-1])
            assert said["margin"] == pytest.approx(1 / length)


def test_chosen_points_are_the_best_of_the_verified_candidates() -> None:
    X, y = rows()
    problem, driver, table = problem_of(), CorrectiveDriver(), Table(blocks_of(X, y))
    state = driver.init(problem)
    while records := driver.request(problem, state):
        before, state = state, driver.step(problem, state, table.run(records))
        added = state.points[before.n_points :]
        if not len(added) or state.message:
            continue
        f = design(problem, before, X) @ before.coefficients[0, :-1] + before.coefficients[0, -1]
        s = -loss_of("squared_hinge").slope(signs_of(problem, y)[:, 0], f)
        v = np.abs(s @ np.exp(1j * X @ before.candidates.T)) ** 2
        best = problem.space.distinct(before.candidates, v, len(added))
        np.testing.assert_array_equal(added, before.candidates[best])


def test_rounds_end_where_held_out_rows_gain_nothing_and_keep_the_best_round() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((N, D_IN)), rng.integers(0, 2, N)
    y = np.where(X[:, 0] > 0, 1, y)
    problem = problem_of(
        held=HeldOut(0.3, 0).mask, n_points=60, ridge=0.6, schedule=RoundSchedule(patience=3, settling=20)
    )
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    assert state.message.startswith("no lower loss on held-out rows in 3 rounds")
    losses, sizes = state.series("held_out_loss"), state.series("n_features") / 2
    full = int(np.argmax(sizes))
    searched = losses[: full + 1]
    assert state.n_points < sizes.max()
    assert state.n_points == sizes[np.argmin(searched)]
    assert full - np.argmin(searched) == 3
    assert f"{state.n_points} points" in state.message
    # the model on what is left has settled on the rows that it learns from
    kept = ~HeldOut(0.3, 0).mask(np.arange(N))
    Z, signs = design(problem, state, X), signs_of(problem, y)[:, 0]
    best = optimum(Z, signs, kept.astype(float), penalty_of(problem, state), "squared_hinge")[1]
    w = state.coefficients[0]
    found = penalty_of(problem, state) / 2 * w[:-1] @ w[:-1]
    found += kept @ loss_of("squared_hinge").value(signs, Z @ w[:-1] + w[-1])
    assert found <= best * (1 + 1e-3)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (RoundSchedule(rounds=3), "ended after 3 rounds"),
        (RoundSchedule(tol=0.5), "the estimated duality gap fell to"),
        (RoundSchedule(), "found as many as asked for"),
    ],
)
def test_rounds_end_for_the_reason_that_is_given(schedule: RoundSchedule, message: str) -> None:
    X, y = rows()
    problem = problem_of(schedule=schedule, n_points=40, ridge=40.0)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    assert state.message.startswith(message)
    assert state.n_points > 0
    assert (state.n_points == 40) == (message == "found as many as asked for")
    if schedule.rounds:
        assert state.n_points == 9


@pytest.mark.parametrize(
    ("losses", "best"),
    [
        ([1.0, 0.5, 0.6, 0.7], 1),
        # less than a ten thousandth is no gain, however often it comes
        ([1.0, 0.5, 0.49998, 0.49997, 0.49996, 0.4], 5),
        ([1.0, 0.5, 0.49998, 0.49997, 0.49996], 1),
        ([np.nan, np.nan, np.nan, np.nan], 3),
    ],
)
def test_rounds_of_one_family_and_of_several_have_the_same_patience(losses: list[float], best: int) -> None:
    assert best_round(np.array(losses)) == best
    has_ended = len(losses) - 1 - best >= 2
    problem = problem_of(schedule=RoundSchedule(patience=2))
    history = np.zeros((len(losses), len(CorrectiveState.names)))
    history[:, CorrectiveState.names.index("held_out_loss")] = losses
    state = replace(CorrectiveDriver().init(problem), history=history, points=problem.space.start(3, 0))
    assert bool(one_family.why_to_stop(problem, state)) == has_ended
    several = RoundsProblem(problem.targets, 1, N, D_IN, 50, problem.loss, patience=2)
    lines = np.column_stack([np.ones(len(losses)), losses, np.ones(len(losses))])
    assert bool(families.why_to_stop(several, replace(first_state(several), history=lines))) == has_ended


def test_given_points_stay_and_others_join_them() -> None:
    X, y = rows()
    start = FAMILY.draw(5, D_IN, 9, np.float32).projection.dense()
    problem = problem_of(start=start, schedule=SETTLED)
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    assert state.n_points == 12
    np.testing.assert_array_equal(state.points[:5], start)
    Z, signs = design(problem, state, X), signs_of(problem, y)[:, 0]
    expected, _ = optimum(Z, signs, np.ones(N), penalty_of(problem, state), "squared_hinge")
    np.testing.assert_allclose(
        Z @ state.coefficients[0, :-1] + state.coefficients[0, -1], Z @ expected[:-1] + expected[-1], atol=2e-3
    )


def test_enough_given_points_are_only_refitted() -> None:
    X, y = rows()
    start = FAMILY.draw(15, D_IN, 9, np.float32).projection.dense()
    state = play(CorrectiveDriver(), problem_of(start=start), Table(blocks_of(X, y)))
    np.testing.assert_array_equal(state.points, start)
    assert state.series("loss")[-1] < 0.5 * state.series("loss")[0]


SCHEDULES = {
    "plain": RoundSchedule(),
    "few": RoundSchedule(plain_share=0.5, most_searched=5),
    "single": RoundSchedule(first=1, growth=0.0),
    "rounds": RoundSchedule(rounds=2),
    "patience": RoundSchedule(patience=2),
    "patient": RoundSchedule(patience=100),
    "plain draws": RoundSchedule(plain_share=1.0),
}


@pytest.mark.parametrize(
    ("name", "space"), [*((name, "fourier") for name in SCHEDULES), ("plain", "pool"), ("patience", "pool")]
)
def test_the_plan_covers_what_runs(name: str, space: str) -> None:
    X, y = rows()
    y = np.where(np.random.default_rng(0).random(N) < 0.4, 1 - y, y)
    held = HeldOut(0.2, 0).mask if name.startswith("patien") else None
    spaces: dict[str, Any] = {"fourier": fourier(), "pool": pool()}
    problem = problem_of(schedule=SCHEDULES[name], held=held, space=spaces[space], ridge=80.0, n_points=11)
    driver, table = CorrectiveDriver(), Table(blocks_of(X, y))
    state, most = driver.init(problem), 0.0
    while records := driver.request(problem, state):
        most = max(most, records[0].cost(100, D_IN).flops)
        state = driver.step(problem, state, table.run(records))
    plan = driver.plan(problem)
    assert len(table.passes) <= sum(calls for _, calls in plan)
    assert most <= max(records[0].cost(100, D_IN).flops for records, _ in plan)


def resumed_everywhere(problem: CorrectiveProblem, table: Table) -> CorrectiveState:
    """As if the process had been killed after each pass: a new driver, the state through a checkpoint."""
    state = CorrectiveDriver().init(problem)
    while records := (driver := CorrectiveDriver()).request(problem, state):
        state = driver.step(problem, state, table.run(records))
        state = decode_state(CorrectiveState, *encode_state(state))
    return state


@pytest.mark.parametrize(
    ("dtype", "case"),
    [("float64", "all rows"), ("float32", "a sample"), ("float64", "plain draws too"), ("float32", "pool")],
)
def test_a_run_that_is_resumed_after_each_pass_ends_with_the_same_bits(dtype: str, case: str) -> None:
    X, y = rows(600)
    schedule = RoundSchedule(plain_share=0.5) if case == "plain draws too" else RoundSchedule()
    space: Any = pool(60) if case == "pool" else fourier()
    problem = problem_of(n_points=40, dtype=dtype, schedule=schedule, space=space, total_weight=600.0)
    problem = replace(problem, sample_rows=1_000 if case == "all rows" else 150)
    whole = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    again = resumed_everywhere(problem, Table(blocks_of(X, y)))
    assert whole.message == again.message
    for name in ("points", "coefficients", "gram", "history"):
        np.testing.assert_array_equal(getattr(again, name), getattr(whole, name), err_msg=name)


@pytest.mark.parametrize("sample_rows", [50, 10_000])
def test_weights_are_repetitions_of_rows(sample_rows: int) -> None:
    """Where all rows are searched on, to rounding; a sample is another one, and finds as good features."""
    X, y = rows()
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    repeats = np.repeat(np.arange(N), weight.astype(int))
    problem = problem_of(total_weight=weight.sum(), sample_rows=sample_rows)
    weighted = play(CorrectiveDriver(), problem, Table(blocks_of(X, y, weight)))
    repeated = play(CorrectiveDriver(), problem, Table(blocks_of(X[repeats], y[repeats])))
    if sample_rows == 10_000:
        np.testing.assert_allclose(weighted.points, repeated.points, rtol=0, atol=1e-3)
        np.testing.assert_allclose(weighted.coefficients, repeated.coefficients, rtol=0, atol=1e-2)
        np.testing.assert_allclose(weighted.history, repeated.history, rtol=1e-3, atol=1e-4)
    else:
        assert weighted.series("loss")[-1] == pytest.approx(repeated.series("loss")[-1], rel=0.2)


@pytest.mark.parametrize(("patience", "space"), [(None, "pool"), (1, "fourier")])
def test_where_nothing_can_be_learned_there_is_a_feature_all_the_same(patience: int | None, space: str) -> None:
    X, _ = rows()
    spaces: dict[str, Any] = {"fourier": fourier(), "pool": pool()}
    held = None if patience is None else HeldOut(0.3, 0).mask
    problem = problem_of(1, None, loss="squared_error", space=spaces[space], held=held)
    problem = replace(problem, schedule=RoundSchedule(patience=patience))
    flat = play(CorrectiveDriver(), problem, Table(blocks_of(X, np.zeros(N))))
    assert flat.n_points == 1
    np.testing.assert_array_equal(flat.coefficients, 0.0)
    noise = np.random.default_rng(0).standard_normal(N) + 5.0 * np.arange(N) * (HeldOut(0.3, 0).mask(np.arange(N)))
    state = play(CorrectiveDriver(), problem, Table(blocks_of(X, noise)))
    assert state.n_points > 0


@pytest.mark.parametrize("kept_bytes", [0, 3_000])
def test_features_that_are_not_kept_are_formed_again_to_the_same_bits(kept_bytes: int) -> None:
    X, y = rows()
    problem = problem_of(n_points=30, dtype="float32")
    expected = play(CorrectiveDriver(), problem, Table(blocks_of(X, y)))
    state = play(CorrectiveDriver(kept_bytes), problem, Table(blocks_of(X, y)))
    np.testing.assert_array_equal(state.coefficients, expected.coefficients)


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("n_old", [0, 10, 2_000, 50_000])
def test_as_many_candidates_as_their_gram_columns_have_room_for(parts: int, n_old: int) -> None:
    q = most_candidates(parts, n_old)

    def nbytes(candidates: int) -> int:
        return 8 * (parts * (n_old + candidates) + 1) * parts * candidates

    assert nbytes(q) <= 64 << 20 < nbytes(q + 3)


@pytest.mark.parametrize("n_rows", [600, pytest.param(6_000, marks=pytest.mark.slow)])
def test_more_features_than_a_round_has_room_for_take_more_rounds(n_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few rows most of them are plain draws, which come at once where there is room."""
    generator = np.random.default_rng(0)
    X = generator.standard_normal((n_rows, 3))
    y = X[:, 0] * X[:, 1] > 0.0
    most: list[int] = []
    accumulator = loop.Accumulator

    def seen(shape: tuple[int, ...], *rest: str) -> Any:
        most.append(8 * int(np.prod(shape)))
        return accumulator(shape, *rest)

    monkeypatch.setattr(one_family, "LARGEST_ACCUMULATOR", 1 << 17)
    monkeypatch.setattr(loop, "Accumulator", seen)
    dkl.plan(dkl.MarginFeatures(n_features=200), X, y)
    features = dkl.MarginFeatures(n_features=200, random_state=0).fit(X, y)
    assert features.transform(X[:2]).shape == (2, 200)
    assert max(most) <= 1 << 17


def test_the_memory_of_a_search_follows_its_rows_and_the_limit(tmp_path: Path) -> None:
    X, y = rows()
    few = create_dataset(str(tmp_path / "few.zarr"), X[:200], y[:200])
    many = create_dataset(str(tmp_path / "many.zarr"), np.tile(X, (8, 1)), np.tile(y, 8))

    def planned(dataset: Dataset, **options: Any) -> Mapping[str, int]:
        kinds = planned_kinds(dkl.MarginFeatures(n_features=2_000, **options).replayed(dataset), {})
        return max((kind.held for kind in kinds), key=lambda held: sum(held.values()))

    for name in ("searched rows", "chains that climb"):
        assert planned(few)[name] < planned(many)[name]
    assert planned(few)["features of searched rows"] == 200 * 2_000 * 4
    held = own_room(None).held
    assert planned(many, memory_limit=held + (16 << 20))["features of searched rows"] < 4 << 20
    assert planned(many)["features of searched rows"] == 8 * len(X) * 2_000 * 4
