"""The plan of a Newton fit is the fit without rows: its passes by name, their number and what its drivers hold."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.data.sources.in_memory import ArraySource
from dkl.kernels.gram import packed_size
from dkl.kernels.threads import usable_cores
from dkl.linear import fitting
from dkl.linear.fitting import LinearProblem, fit_by_newton, subsample_metric, subsample_problem
from dkl.linear.head import _FACTORS, _TRIAL_NUMBER_S, NewtonDriver, NewtonProblem
from dkl.linear.judge import Folds
from dkl.linear.minibatches import HeldOut
from dkl.linear.target_statistics import task_targets
from dkl.passes.loop import PlannedRun, Run
from dkl.passes.timing import TimedRows
from dkl.protocols.driver import largest_held
from tests.linear.problems import feature_map, rows

N_ROWS = 600
FITS = [
    ("squared_error", 3, 1e-3),
    ("squared_error", 3, "auto"),
    ("squared_hinge", 3, "auto"),
    ("log_loss", 3, 1e-3),
    ("log_loss", 3, "auto"),
    ("log_loss", 2, "auto"),
    ("huber", None, 1e-3),
    ("pinball", None, "auto"),
    ("poisson", None, "auto"),
    ("squared_error", None, "evidence"),
]


def problem_of(loss: str, n_classes: int | None, alpha: Any) -> tuple[LinearProblem, ArraySource]:
    X, codes = rows(N_ROWS, n_classes or 2)
    y = codes if n_classes else np.random.default_rng(0).poisson(np.exp(np.sin(X[:, 0]))).astype(np.float64)
    problem = LinearProblem(
        feature_map(4),
        loss,
        alpha,
        classes=np.arange(n_classes) if n_classes else None,
        quantiles=(0.1, 0.5) if loss == "pinball" else (),
        validation=HeldOut(0.2),
        calibrated=n_classes is not None and loss != "log_loss",
    )
    return problem, ArraySource(X, y, None, n_classes=n_classes)


@pytest.mark.parametrize(("loss", "n_classes", "alpha"), FITS, ids=str)
def test_a_plan_has_every_pass_of_the_fit_and_no_other_kind(loss: str, n_classes: int | None, alpha: Any) -> None:
    problem, source = problem_of(loss, n_classes, alpha)
    made, planned, plan = Counter[str](), Counter[str](), PlannedRun(n_rows=N_ROWS)
    run = Run(publish=lambda event: made.update([event.name] * (event.kind == "started" and event.name != "rounds")))
    fit = fit_by_newton(problem, source, run)
    same = fit_by_newton(problem, source, plan)
    for records, calls in plan.passes:
        planned[records[0].name] += calls
    assert set(made) <= set(planned)
    assert all(made[name] <= planned[name] for name in made)
    assert set(planned) - set(made) <= {"held-out scores"}  # sums of folds may judge without a pass
    assert np.shape(same.model.coef_) == np.shape(fit.model.coef_)
    assert same.posterior is None
    assert largest_held(plan.held)


def test_the_stages_of_a_plan_of_huber_are_those_of_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, source = problem_of("huber", None, 1e-3)
    stages: list[NewtonProblem] = []
    solve = fitting.newton_state

    def noted(task: NewtonProblem, *given: Any, **further: Any) -> Any:
        stages.append(task)
        return solve(task, *given, **further)

    monkeypatch.setattr(fitting, "newton_state", noted)
    counts = []
    for run in (Run(), PlannedRun(n_rows=N_ROWS)):
        stages.clear()
        fit_by_newton(problem, source, run)
        counts.append([(task.loss, task.epsilon) for task in stages])
    # squares, widths .4 of a first one below 1, and .1 itself
    assert counts[0] == counts[1] == [("squared_error", 0.1), ("huber", 0.4), ("huber", 0.1)]


def test_folds_of_joint_fits_keep_their_metric_and_start_in_a_plan() -> None:
    problem, source = problem_of("log_loss", 3, "auto")
    plan = PlannedRun(n_rows=N_ROWS)
    fit_by_newton(problem, source, plan)
    width = problem.feature_map.n_features + 1
    held = largest_held(plan.held)
    # 600 rows, of which a fold has 120: five folds
    assert held["what folds keep"] == 5 * 8 * (packed_size(0, width) + 3 * width)
    # the first penalty of a fold sums its metric, which later ones have
    hessians = ["hessian" in records[0].accumulators for records, _ in plan.passes if records[0].name == "newton step"]
    assert hessians[:10:2] == [True] * 5
    assert not any(hessians[10:-2])


def test_a_planned_state_has_converged_and_its_hessian_serves_as_a_metric() -> None:
    problem = replace(
        NewtonProblem(feature_map(4, 128), task_targets(2, 1), 1e6, 1e-3, "squared_hinge"), n_rows=1_000_000.0
    )
    subsample = subsample_problem(problem, 1e6, 0, HeldOut())
    assert subsample is not None
    state = NewtonDriver().planned(subsample)
    assert state.done(subsample).all()
    np.testing.assert_array_equal(state.solution(subsample), 0.0)
    metric = subsample_metric(subsample, problem, state, 1e6)
    assert metric is not None
    np.testing.assert_allclose(metric[0, -1], problem.total_weight)
    assert NewtonDriver().planned(replace(problem, loss="squared_error")).hessian is None


def test_the_driver_expects_trial_points_on_one_core_and_factors_on_all() -> None:
    problem = NewtonProblem(feature_map(4), task_targets(3, 1), 100.0, 1e-3, "squared_hinge")
    width, steps = problem.width, problem.usual_steps
    factors = (1 + steps) * (3 * width**3 / 3.0 + 2.0 * 3 * width**2)
    points = (1 + steps) * problem.trials * 3 * width
    expected = points * _TRIAL_NUMBER_S + factors / (_FACTORS * usable_cores() * 1e9)
    assert NewtonDriver().driving(problem, 100, np.zeros((2, 3)), 1e9) == pytest.approx(expected)
    # the three models of squares have one system, whose factor is kept
    squares = replace(problem, loss="squared_error")
    expected = width**3 / 3.0 + 2.0 * (1 + squares.usual_steps) * 3 * width**2
    assert NewtonDriver().flops(squares) == pytest.approx(expected)


def test_a_subsample_costs_its_share_and_equal_passes_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, source = problem_of("log_loss", 2, 1e-3)
    task = NewtonProblem(problem.feature_map, task_targets(2, 1), 600.0, 1e-3, "log_loss")
    sampled = Folds(HeldOut(0.25), 0, 0.25, samples=True)
    part = replace(task, targets=replace(task.targets, folds=sampled, fold=np.array([-1])))
    assert sampled.share == 0.25
    assert Folds(HeldOut(0.1), 5, 0.2).share == pytest.approx(0.7)
    assert Folds(HeldOut(0.1), 5).share == 1.0
    (whole,), (some,) = (NewtonDriver().plan(each)[0][0] for each in (task, part))
    assert some.cost(100, 4).flops == pytest.approx(0.25 * whole.cost(100, 4).flops)
    assert some.cost(100, 4).scratch_bytes == whole.cost(100, 4).scratch_bytes
    timed = TimedRows(source.reader().load(source.ticket(0)), N_ROWS, 4, 1e11)
    calls: list[Any] = []
    of_rows = timed._of_rows

    def noted(record: Any, n_rows: int) -> Any:
        calls.append(record)
        return of_rows(record, n_rows)

    monkeypatch.setattr(timed, "_of_rows", noted)
    first = timed.seconds(whole)
    n_calls = len(calls)
    assert timed.seconds(replace(whole, operands={**whole.operands})) == first
    assert len(calls) == n_calls > 0
    timed.seconds(some)
    assert len(calls) > n_calls
