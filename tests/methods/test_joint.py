"""Weights in a divergence ball and the machine on them: the optimum of the stated problem, certified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.svm import SVC

from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.joint_driver import JointDriver
from dkl.methods.density.joint_problem import JointProblem, JointState
from dkl.passes.checkpoint import decode_state, encode_state
from dkl.solvers.divergence_ball import DivergenceBall
from dkl.solvers.kernel_alignment import maximise_alignment
from tests.definitions import joint as definitions
from tests.linear.problems import blocks_of, play, rows, summed

LOSSES = ("squared_error", "hinge", "squared_hinge")
D = 6


def pool_of(n_candidates: int, pairing: Any = "cos-sin") -> FeatureMap:
    pool = Gaussian(2.0, pairing=pairing).draw(n_candidates, 4, 0, "float64")
    return replace(pool, amplitudes=np.full(n_candidates, n_candidates**-0.5))


def some_problem(loss: str, n: int, n_outputs: int = 1, **changed: Any) -> JointProblem:
    n_classes = None if loss == "squared_error" else max(2, n_outputs)
    models = np.array([1]) if n_classes == 2 else np.arange(n_outputs)
    size, rho, k = changed.pop("size", D), changed.pop("rho", 1.5), changed.pop("k", 2.0)
    targets, ball = NewtonTargets(models, n_classes), DivergenceBall(size, rho, k)
    problem = JointProblem(pool_of(size), targets, float(n), loss, 0.02, ball, tol=1e-6, dtype="float64")
    return replace(problem, **changed)


def some_rows(loss: str, n: int = 40, n_outputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    X, codes = rows(n, max(2, n_outputs))
    return X, np.stack([np.sin(2.0 * X[:, 0]), X[:, 1]], axis=1)[:, :n_outputs] if loss == "squared_error" else codes


def arrays_of(problem: JointProblem, X: np.ndarray, y: np.ndarray) -> definitions.Rows:
    """Rows under the unscaled features, targets and weights: as the definitions take them."""
    values, weight = problem.targets(blocks_of(X, y, len(X))[0])
    size = problem.feature_map.n_frequencies
    return map_rows(X, replace(problem.feature_map, amplitudes=np.ones(size)), "float64"), values, weight


def weights_of(problem: JointProblem, state: JointState) -> np.ndarray:
    q = np.zeros(problem.feature_map.n_frequencies)
    q[state.working] = state.density[0] / problem.feature_map.n_frequencies
    return q


@pytest.mark.parametrize("k", [2.0, 3.5])
@pytest.mark.parametrize("rho", [0.01, 0.5, 3.0, 100.0])
def test_the_best_density_of_a_ball_for_a_quadratic_is_that_of_a_general_solver(rho: float, k: float) -> None:
    generator = np.random.default_rng(0)
    B, q = generator.normal(size=(8, 3)), generator.normal(size=8)
    ball = DivergenceBall(8, rho, k, mean=2.0)
    u = ball.quadratic_minimum(B @ B.T, q + B @ B.T @ ball.start(), ball.start())
    assert u.min() >= 0.0
    assert u.mean() == pytest.approx(2.0, rel=1e-14)
    assert definitions.divergence_of(u / u.sum(), k) <= rho * (1.0 + 1e-12)
    found = 0.5 * u @ B @ (B.T @ u) + q @ u
    expected = definitions.quadratic_in_ball(4.0 * B @ B.T, 2.0 * q, rho, k)
    assert found == pytest.approx(expected, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("k", [2.0, 3.5])
def test_a_ball_within_some_of_the_candidates_holds_what_the_whole_ball_holds_there(k: float) -> None:
    whole = DivergenceBall(12, 4.0, k)
    assert whole.within(12) == whole
    part = whole.within(7)
    u = np.append(part.minus_conjugate(np.arange(7.0)).density, np.zeros(5))
    assert u.sum() == pytest.approx(12.0)
    assert definitions.divergence_of(u / 12.0, k) == pytest.approx(4.0, rel=1e-8)
    fewest = whole.least
    assert definitions.divergence_of(np.append(np.full(fewest, 1 / fewest), np.zeros(12 - fewest)), k) <= 4.0
    assert definitions.divergence_of(np.append(np.full(fewest - 1, 1 / (fewest - 1)), np.zeros(13 - fewest)), k) > 4.0
    np.testing.assert_allclose(part.inside(np.append(7.0, np.zeros(6))).sum(), 12.0)
    assert part.inside(np.append(7.0, np.zeros(6))).min() > 0.0


@pytest.mark.parametrize(
    ("loss", "k", "rho", "n_outputs"),
    [
        *((loss, 3.0, 1.5, 2) for loss in LOSSES),
        pytest.param("hinge", 2.0, 0.3, 1, marks=pytest.mark.slow),
        ("squared_hinge", 2.0, 1e9, 1),
    ],
)
def test_the_optimum_is_that_of_a_general_solver(loss: str, k: float, rho: float, n_outputs: int) -> None:
    n_outputs = 3 if n_outputs > 1 and loss != "squared_error" else n_outputs
    X, y = some_rows(loss, 30, n_outputs)
    problem = some_problem(loss, 30, n_outputs, k=k, rho=rho)
    state, _ = play(JointDriver(), problem, blocks_of(X, y, 13))
    arrays, q = arrays_of(problem, X, y), weights_of(problem, state)
    assert q.sum() == pytest.approx(1.0, rel=1e-6)
    assert definitions.divergence_of(q, k) <= rho * (1.0 + 1e-6)
    whole = state.moved_to(np.arange(D)).coefficients
    model = (whole[:, :-1] / np.sqrt(D), whole[:, -1], q)
    assert state.objective == pytest.approx(definitions.joint_objective(arrays, model, 0.02, loss), rel=1e-6)
    optimum = definitions.joint_optimum(arrays, (D, rho, k), 0.02, loss)
    assert state.objective == pytest.approx(optimum, rel=3e-6)
    assert state.objective - state.gap <= optimum * (1.0 + 1e-7)
    assert state.gap <= problem.tol * state.objective


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gap_of_every_round_is_a_bound_over_all_candidates(loss: str) -> None:
    """Rounds begin on a sixth of the candidates: their own gap would say nothing of the others."""
    X, y = some_rows(loss, 80)
    problem = some_problem(loss, 80, size=120, rho=15.0)
    state, _ = play(JointDriver(), problem, blocks_of(X, y, 17))
    assert state.rounds[1]["working"] < 60
    assert len(state.rounds) > 2
    bounds = [line["objective"] - line["gap"] for line in state.rounds]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= min(line["objective"] for line in state.rounds) * (1.0 + 1e-12)
    assert state.gap <= problem.tol * state.objective
    assert "below tol" in state.message


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_the_weights_are_the_best_for_the_dual_point(loss: str) -> None:
    """At the optimum q maximises q.v(alpha), and v = lam^2 |w|^2 / q^2; where the ball is active that determines q."""
    X, y = some_rows(loss, 80)
    problem = some_problem(loss, 80, size=30, rho=0.5, tol=1e-8)
    state, _ = play(JointDriver(), problem, blocks_of(X, y, 40))
    q = weights_of(problem, state)
    w = state.moved_to(np.arange(30)).coefficients[:, :-1]
    v = np.sum(w.reshape(2, 30) ** 2, axis=0) / np.maximum(q, 1e-12) ** 2
    assert definitions.divergence_of(q, 2.0) > 0.49
    np.testing.assert_allclose(maximise_alignment(v, 0.5), q, atol=1e-3)


def test_no_radius_is_the_support_vector_machine_on_plain_features() -> None:
    X, y = some_rows("hinge", 80)
    problem = some_problem("hinge", 80, size=20, rho=0.0)
    state, _ = play(JointDriver(), problem, blocks_of(X, y, 40))
    C = 1.0 / (80 * problem.lam)
    phi = map_rows(X, problem.feature_map, "float64")
    machine = SVC(kernel="linear", C=C, tol=1e-9).fit(phi, y)
    slack = np.maximum(0.0, 1.0 - np.where(y > 0, 1.0, -1.0) * machine.decision_function(phi))
    objective = 0.5 * np.sum(machine.coef_**2) + C * slack.sum()
    assert state.objective / problem.lam == pytest.approx(objective, rel=2e-6)
    np.testing.assert_allclose(weights_of(problem, state), 1 / 20, rtol=1e-9)
    np.testing.assert_allclose(phi @ state.coefficients[0, :-1], phi @ machine.coef_[0], atol=5e-3)


@pytest.mark.parametrize("loss", ["squared_error", "hinge"])
def test_a_state_that_was_stored_goes_on_to_the_same_bits(loss: str) -> None:
    X, y = some_rows(loss)
    problem, blocks = some_problem(loss, 40, size=40, rho=5.0, tol=1e-3), blocks_of(X, y, 17)
    driver, expected = JointDriver(), play(JointDriver(), problem, blocks)[0]
    state = driver.init(problem)
    while (records := driver.request(problem, state)) is not None:
        arrays, values = encode_state(state)
        state = decode_state(JointState, arrays, values)
        state = driver.step(problem, state, [summed(record, blocks) for record in records])
    assert state.message == expected.message
    np.testing.assert_array_equal(state.coefficients, expected.coefficients)
    np.testing.assert_array_equal(state.density, expected.density)


@pytest.mark.parametrize("loss", ["squared_error", "squared_hinge"])
def test_a_weight_of_two_is_the_row_twice(loss: str) -> None:
    X, y = some_rows(loss)
    problem, twice = some_problem(loss, 60), np.append(np.arange(40), np.arange(20))
    weight = np.where(np.arange(40) < 20, 2.0, 1.0)
    found = [
        play(JointDriver(), problem, blocks)[0]
        for blocks in (blocks_of(X, y, 17, weight), blocks_of(X[twice], y[twice], 17))
    ]
    np.testing.assert_allclose(found[0].coefficients, found[1].coefficients, rtol=1e-6, atol=1e-8)


def test_what_the_driver_holds_does_not_grow_with_the_rows() -> None:
    sizes = []
    for n in (100, 1_000):
        X, y = some_rows("hinge", n)
        problem = some_problem("hinge", n, max_passes=8)
        state, _ = play(JointDriver(), problem, blocks_of(X, y, 50))
        arrays, _ = encode_state(state)
        sizes.append(sum(array.size for array in arrays.values()))
    assert sizes[0] == sizes[1] < 200


def test_the_working_candidates_are_no_more_than_may_be_solved_on_at_once() -> None:
    X, y = some_rows("hinge", 80)
    problem = some_problem("hinge", 80, size=60, rho=2.0, most_working=25, max_passes=60)
    state, _ = play(JointDriver(), problem, blocks_of(X, y, 80))
    assert max(line["working"] for line in state.rounds) == 25
    assert state.gap > problem.tol * state.objective
    assert "max_working" in state.message


def test_the_first_dual_point_does_not_make_most_candidates_working_ones() -> None:
    X, y = some_rows("hinge")
    problem = some_problem("hinge", len(X), size=1_000, rho=49.0)
    # one that is far ahead has all that the ball allows, and the rest is spread thin
    amplitudes = problem.feature_map.amplitudes * np.where(np.arange(1_000) == 7, 17.0, 1.0)
    problem = replace(problem, feature_map=replace(problem.feature_map, amplitudes=amplitudes))
    state = JointDriver().init(problem)
    sums = summed(JointDriver().request(problem, state)[0], blocks_of(X, y, len(X)))
    first = JointDriver().step(problem, state, [sums])
    duals = sums["pool0"] @ (sums["mass"].min() / sums["mass"][:, 0])
    wanted = np.count_nonzero(maximise_alignment(np.sum(duals**2, axis=0), 49.0))
    assert problem.penalty.least == 20
    assert wanted > 60
    assert len(first.working) <= 3 * problem.penalty.least


def test_rounds_that_break_off_where_the_last_one_did_end() -> None:
    X, y = some_rows("hinge", 80)
    problem, driver, blocks = some_problem("hinge", 80, size=60, rho=5.0), JointDriver(), blocks_of(X, y, 80)
    state = driver.init(problem)
    while not (state.ended and state.coefficients.any()):
        state = driver.step(problem, state, [summed(one, blocks) for one in driver.request(problem, state) or ()])
    looked = [summed(one, blocks) for one in driver.request(problem, state) or ()]
    going = driver.step(problem, replace(state, gap=1.0, goal=1e-9), looked)
    assert not np.isin(going.working, state.working).all()
    assert not going.done
    again = replace(state, gap=1.0, goal=1e-9, rounds=(*state.rounds, going.rounds[-1]))
    assert driver.step(problem, again, looked).message.startswith("no step lowers the objective any more")
