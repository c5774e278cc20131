"""Adam on weights and density: its gradient is one, its steps clip, and it comes near the optimum of the problem."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy.optimize import minimize

from dkl.data.sources.in_memory import ArraySource
from dkl.events import Event
from dkl.kernels.maps import map_rows
from dkl.linear.epochs import EpochDriver
from dkl.linear.fitting import LinearProblem
from dkl.linear.minibatches import HeldOut, Minibatch, RowTargets, signs
from dkl.linear.scores import decision_values
from dkl.linear.summary import Summary
from dkl.methods.density.adam_fit import AdamFit, Descent, adam_problem, fit_by_adam
from dkl.methods.density.descent import TunedDescent, TunedModel, tuned_gradient, tuned_step
from dkl.methods.density.penalty import DensityPenalty, meta_spectrum
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.loop import PlannedRun, Run
from tests.linear.problems import feature_map, rows

D_IN, D = 4, 6
LAM = 1e-2


@cache
def penalty_of(kind: str, n_frequencies: int = D) -> DensityPenalty:
    """A coupled penalty, that of Fourier kernel learning, or that of a fixed density."""
    W = feature_map(D_IN, n_frequencies).projection.dense()
    if kind == "eliminated":
        return DensityPenalty(meta_spectrum(W, "delta"), gamma=0.3, Lam=2.0, floor=0.0, center=0.0)
    spectrum = meta_spectrum(W, "rbf", length_scale=0.7)
    return DensityPenalty(spectrum, gamma=0.2, Lam=np.inf if kind == "fixed" else 0.5)


def objective(phi: np.ndarray, y: np.ndarray, s: np.ndarray, model: TunedModel, loss: str, kind: str) -> float:
    """Section 5's objective, term by term; the density that Fourier kernel learning implies is looked for."""
    total, n = 0.0, len(phi)
    for i in range(n):
        for k in range(len(model.coef)):
            f = model.coef[k] @ phi[i] + model.intercept[k]
            slack = max(0.0, 1.0 - y[i, k] * f)
            total += (
                s[i] / n * {"hinge": slack, "squared_hinge": slack**2, "squared_error": (y[i, k] - f) ** 2 / 2}[loss]
            )
    penalty = penalty_of(kind)
    H = penalty.times(np.eye(D))
    for g in range(len(model.density)):
        squares = [
            sum(
                model.coef[k, j] ** 2 + model.coef[k, D + j] ** 2
                for k in range(len(model.coef))
                if len(model.density) == 1 or k == g
            )
            for j in range(D)
        ]
        u = model.density[g]
        if kind == "eliminated":
            grid = np.geomspace(1e-4, 1e4, 100_001)
            total += sum(np.min(0.5 * LAM * squares[j] / grid + 0.5 * 2.0 * H[j, j] * grid**2) for j in range(D))
        else:
            total += sum(0.5 * LAM * squares[j] / u[j] for j in range(D))
            total += 0.0 if kind == "fixed" else 0.25 * (u - 1.0) @ H @ (u - 1.0)
    return total


@pytest.mark.parametrize("kind", ["coupled", "eliminated", "fixed"])
@pytest.mark.parametrize("loss", ["squared_error", "hinge", "squared_hinge"])
@pytest.mark.parametrize("shared", [True, False])
def test_the_gradient_is_that_of_the_objective(kind: str, loss: Any, shared: bool) -> None:
    generator = np.random.default_rng(0)
    n, K = 7, 3
    phi, s = generator.normal(size=(n, 2 * D)), generator.uniform(0.5, 1.5, n)
    y = generator.choice([-1.0, 1.0], (n, K))
    G = 1 if shared else K
    u = 1.0 + (0.0 if kind == "fixed" else 1.0) * generator.uniform(size=(G, D))
    at = TunedModel(generator.normal(size=(K, 2 * D)), generator.normal(size=K), u)
    penalty = penalty_of(kind)

    def of(values: np.ndarray) -> tuple[float, TunedModel]:
        return tuned_gradient(phi, y, s, TunedModel.of(values, at.shape), loss=loss, lam=LAM, penalty=penalty)

    value, gradient = of(at.values)
    np.testing.assert_allclose(value, objective(phi, y, s, at, loss, kind), rtol=1e-7)
    free = len(at.values) if kind == "coupled" else K * (2 * D + 1)
    for place in range(free):
        step = np.zeros(len(at.values))
        step[place] = 1e-6
        ends = [of(at.values + sign * step)[0] for sign in (1.0, -1.0)]
        np.testing.assert_allclose(gradient.values[place], (ends[0] - ends[1]) / 2e-6, rtol=1e-5, atol=1e-7)
    assert not gradient.values[free:].any()


def operands(kind: str, **changes: Any) -> dict[str, Any]:
    return {
        "loss": "hinge",
        "lam": LAM,
        "penalty": penalty_of(kind),
        "n_classes": 3,
        "rate": 0.5,
        "batch_rows": 4,
        "epoch": 0,
    } | changes


def test_a_step_is_adam_then_clipped_and_averaged() -> None:
    generator = np.random.default_rng(1)
    minibatch = Minibatch(
        generator.normal(size=(10, 2 * D)), generator.integers(0, 3, 10), generator.uniform(0.5, 1.5, 10)
    )
    first = TunedDescent.of(TunedModel.first(3, 1, penalty_of("coupled")))
    before = first.values.copy()
    state = tuned_step(first, minibatch, operands("coupled"))
    np.testing.assert_array_equal(first.values, before)
    values, mean, square, average = before.copy(), np.zeros_like(before), np.zeros_like(before), before.copy()
    trace = 0.0
    for step, start in enumerate((0, 4, 8), start=1):
        batch = slice(start, start + 4)
        value, gradient = tuned_gradient(
            minibatch.phi[batch],
            signs(minibatch.y[batch], 3),
            minibatch.weight[batch],  # type: ignore[index]
            TunedModel.of(values, first.shape),  # type: ignore[arg-type]
            loss="hinge",
            lam=LAM,
            penalty=penalty_of("coupled"),
        )
        trace += value * len(minibatch.phi[batch])
        slope = gradient.values
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        rate = 0.5 / np.sqrt(1.0 + step / 500.0)
        values = values - rate * mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        values[-D:] = np.maximum(values[-D:], 1.0)
        average = average + 9.0 / (step + 8.0) * (values - average)
    np.testing.assert_allclose(state.values, values, rtol=1e-10)
    np.testing.assert_allclose(state.average, average, rtol=1e-10)
    np.testing.assert_allclose(state.trace, [[trace, 10.0]])
    assert state.steps == 3


@pytest.mark.parametrize(("kind", "least"), [("coupled", 1.0), ("eliminated", 0.0), ("fixed", 1.0)])
def test_no_density_ever_falls_below_its_floor(kind: str, least: float) -> None:
    generator = np.random.default_rng(2)
    state = TunedDescent.of(TunedModel.first(3, 3, penalty_of(kind)))
    for epoch in range(5):
        minibatch = Minibatch(generator.normal(size=(40, 2 * D)), generator.integers(0, 3, 40), None)
        state = tuned_step(state, minibatch, operands(kind, epoch=epoch))
        assert TunedModel.of(state.values, state.shape).density.min() >= least  # type: ignore[arg-type]
        assert state.model.density.min() >= least
    assert len(state.trace) == 5
    spread = np.ptp(state.model.density)
    assert spread == 0.0 if kind == "fixed" else spread > 1e-3


def test_of_a_separable_penalty_the_density_is_the_best_for_the_weights() -> None:
    minibatch = Minibatch(np.random.default_rng(3).normal(size=(40, 2 * D)), np.arange(40) % 3, None)
    state = tuned_step(
        TunedDescent.of(TunedModel.first(3, 1, penalty_of("eliminated"))), minibatch, operands("eliminated")
    )
    model = TunedModel.of(state.values, state.shape)  # type: ignore[arg-type]
    h = 1.0 / (1.0 + 0.3 * D) ** 2
    np.testing.assert_allclose(model.density, np.cbrt(LAM * model.squares / (2.0 * 2.0 * h)), rtol=1e-12)


def fitted(kind: str = "coupled", run: Run | None = None, **changes: Any) -> AdamFit:
    """Three clouds in ten blocks."""
    X, codes = rows(1000, 3)
    descent = Descent(epochs=4, patience=changes.pop("patience", None), shared=changes.pop("shared", True))
    given = {"held_out": HeldOut(0.25, seed=3)} if descent.patience else {}
    problem = LinearProblem(
        feature_map(D_IN, D), "hinge", LAM, classes=np.arange(3), dtype="float64", **(given | changes)
    )
    source = ArraySource(X, codes, None, n_classes=3, rows_a_block=100)
    return fit_by_adam(problem, penalty_of(kind), source, run or Run(), descent)[0]


@pytest.mark.parametrize("kind", ["coupled", "eliminated", pytest.param("fixed", marks=pytest.mark.slow)])
def test_adam_comes_near_the_optimum_of_squared_error(kind: str) -> None:
    """The optimum by L-BFGS on all numbers at once, with the density bounded."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1500, D_IN))
    y = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    penalty = penalty_of(kind)
    problem = LinearProblem(feature_map(D_IN, D), "squared_error", LAM, n_targets=2, dtype="float64")
    source = ArraySource(X, 100.0 + 10.0 * y, None, n_classes=None, rows_a_block=500)
    fit, _ = fit_by_adam(problem, penalty, source, Run(), Descent(epochs=40))
    np.testing.assert_allclose(fit.units.center, 100.0 + 10.0 * y.mean(axis=0))
    phi, t = map_rows(X, problem.feature_map, "float64"), (y - y.mean(axis=0)) / y.std(axis=0)

    def of(values: np.ndarray) -> tuple[float, np.ndarray]:
        model = TunedModel.of(values, fit.model.shape)
        value, gradient = tuned_gradient(phi, t, None, model, loss="squared_error", lam=LAM, penalty=penalty)
        return value, gradient.values

    start = TunedModel.first(2, 1, penalty).values
    start[: 4 * D] += 0.1
    bounds = [(None, None)] * (4 * D + 2) + [(penalty.floor, None)] * D
    best = minimize(of, start, jac=True, bounds=bounds, options={"maxiter": 1_000, "ftol": 1e-12}).fun
    assert best <= of(fit.model.values)[0] + 1e-12
    assert of(fit.model.values)[0] < 1.003 * best


def test_held_out_rows_stop_the_epochs_and_choose_the_model() -> None:
    X, codes = rows(400, 2)
    codes = np.random.default_rng(0).permutation(codes)
    problem = LinearProblem(
        feature_map(D_IN, 40),
        "squared_error",
        1e-9,
        classes=np.arange(2),
        held_out=HeldOut(0.3, seed=1),
        dtype="float64",
    )
    source = ArraySource(X, codes, None, n_classes=2, rows_a_block=100)
    fit, _ = fit_by_adam(problem, penalty_of("fixed", 40), source, Run(), Descent(epochs=60, patience=4))
    assert len(fit.losses) < 60
    assert np.argmin(fit.losses) == len(fit.losses) - 5
    out = HeldOut(0.3, seed=1).mask(np.arange(400))
    scores = decision_values(X[out], problem.feature_map, fit.model.coef, fit.model.intercept, dtype="float64")
    loss = 0.5 * np.mean((signs(codes[out], 2) - scores) ** 2)
    np.testing.assert_allclose(loss, min(fit.losses), rtol=1e-9)


def bits_of(fit: AdamFit) -> bytes:
    return fit.model.values.tobytes() + fit.trace.tobytes() + np.array(fit.losses).tobytes()


@pytest.mark.parametrize("settings", [{"num_workers": 1}, {"num_workers": 4}, {"scheduler": "synchronous"}])
def test_any_number_of_workers_gives_the_same_bits(settings: dict[str, Any]) -> None:
    expected = fitted(patience=3)
    with dask.config.set(settings):
        assert bits_of(fitted(patience=3)) == bits_of(expected)


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    expected = fitted(patience=3)
    checkpoint = Checkpoint(str(tmp_path / "run"))

    def break_off(event: Event) -> None:
        if event.kind == "advanced" and event.name == "rounds":
            raise KeyboardInterrupt

    tries = 0
    while tries < 20:
        tries += 1
        try:
            got = fitted(run=Run(publish=break_off, checkpoint=checkpoint, fingerprint="one"), patience=3)
        except KeyboardInterrupt:
            continue
        break
    assert tries > 4
    assert bits_of(got) == bits_of(expected)


def test_weights_of_one_size_change_nothing() -> None:
    X, codes = rows(400, 2)
    problem = LinearProblem(feature_map(D_IN, D), "hinge", LAM, classes=np.arange(2), dtype="float64")
    fits = [
        fit_by_adam(
            problem,
            penalty_of("coupled"),
            ArraySource(X, codes, weight, n_classes=2, rows_a_block=100),
            Run(),
            Descent(epochs=2),
        )[0]
        for weight in (None, np.full(400, 3.0))
    ]
    # the sample that centres the features is another one
    np.testing.assert_allclose(fits[0].trace, fits[1].trace, rtol=1e-9)


def test_a_plan_has_the_epochs_with_their_state() -> None:
    X, codes = rows(100, 3)
    problem = LinearProblem(feature_map(D_IN, D), "hinge", LAM, classes=np.arange(3), held_out=HeldOut(0.2))
    source = ArraySource(X, codes, None, n_classes=3)
    plan = PlannedRun(n_rows=100)
    fit_by_adam(problem, penalty_of("coupled"), source, plan, Descent(epochs=7, patience=2))
    passes = plan.passes
    assert [calls for _, calls in passes] == [1, 7, 7]
    (fold,) = passes[1][0]
    assert fold.state_bytes >= 4 * 8 * (3 * 2 * D + 3 + D)
    assert fold.cost(100, D_IN).serial_flops > 100 * 4 * 3 * 2 * D


def test_weights_of_mean_one_reach_the_steps_and_several_targets_are_standardised() -> None:
    problem = LinearProblem(feature_map(D_IN, D), "squared_error", LAM, n_targets=2, dtype="float64")
    summary = Summary(10.0, 40.0, np.array([1.0, 2.0]), np.array([3.0, 4.0]), center=np.zeros(2 * D))
    task = adam_problem(problem, penalty_of("coupled"), summary, Descent(epochs=3), n_blocks=1)
    assert isinstance(task.targets, RowTargets)
    assert task.targets.weight_scale == 0.25
    np.testing.assert_array_equal(task.targets.scale, [3.0, 4.0])
    assert EpochDriver().plan(task)[0][1] == 3
    assert replace(task, epochs=5).epochs == 5


def test_no_held_out_row_is_an_error() -> None:
    with pytest.raises(ValueError, match="no row is held out"):
        fitted(patience=2, held_out=HeldOut(1e-9))
