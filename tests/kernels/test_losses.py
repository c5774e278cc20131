"""Every loss has one definition, scikit-learn's: the table keeps it, and each fused kernel agrees with the table."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import array_api_strict
import numpy as np
import pytest
from sklearn.linear_model import _sgd_fast
from sklearn.metrics import mean_gamma_deviance, mean_pinball_loss, mean_poisson_deviance

import dkl
from dkl.kernels.normal_equations import NewtonOptions, TrialSteps, loss_sums
from dkl.kernels.sgd import cuda_source as sgd_source
from dkl.kernels.sgd import steps
from dkl.linear.sums import candidate_losses, candidate_scores
from dkl.methods.density.hinge_driver import square_of_duals
from dkl.methods.density.sums import Smoothing, sided_duals
from dkl.methods.game.problem import GameRules
from dkl.methods.game.sums import Trials, primal_losses
from dkl.registry import LOSSES, losses_for
from dkl.solvers.losses import LOG_LINK, SmoothedPinballLoss, loss_of
from dkl.solvers.round_losses import round_loss
from tests.definitions import losses as definitions

ERRORS = losses_for("regression")
EPSILON = 0.3
SCIKIT_LEARN = {
    "hinge": _sgd_fast.Hinge(1.0),
    "squared_hinge": _sgd_fast.SquaredHinge(1.0),
    "modified_huber": _sgd_fast.ModifiedHuber(),
    "epsilon_insensitive": _sgd_fast.EpsilonInsensitive(EPSILON),
}


def targets_and_scores(name: str, n: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Scores on both sides of every kink, none within a thousandth of one."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal(n) if name in ERRORS else rng.choice([-1.0, 1.0], n)
    y = np.abs(y) if name in LOG_LINK else y
    f = 2.0 * rng.standard_normal(n)
    usual = (EPSILON, 0.0, -EPSILON) if name in ERRORS else (-1.0, 0.0, 1.0)
    kinks = np.array([*usual, *definitions.LOSSES[name].kinks])
    place = f - y if name in ERRORS else y * f
    kept = np.abs(place[:, None] - kinks).min(axis=1) > 1e-3
    return y[kept], f[kept]


def test_every_loss_of_the_table_has_a_definition() -> None:
    """A row of `tests/definitions/losses.py`, which the tests below and the fits of machines read."""
    assert {*definitions.LOSSES, "softmax"} == set(LOSSES)


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_value_slope_and_curvature_are_their_definitions(name: str) -> None:
    (y, f), loss, definition = targets_and_scores(name), loss_of(name, EPSILON), definitions.loss_of(name, EPSILON)
    np.testing.assert_allclose(loss.value(y, f), definition.value(y, f), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss.slope(y, f), definition.slope(y, f), rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss.curvature(y, f), definition.curvature(y, f), rtol=1e-12, atol=1e-14)


def derivative(function: Any, y: np.ndarray, f: np.ndarray, h: float = 1e-4) -> np.ndarray:
    """The derivative by f, from differences whose error is of the order of h^4."""
    near, far = (function(y, f + step) - function(y, f - step) for step in (h, 2.0 * h))
    return (8.0 * near - far) / (12.0 * h)


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_slopes_and_curvatures_are_the_derivatives_of_the_values(name: str) -> None:
    (y, f), loss = targets_and_scores(name), loss_of(name, EPSILON)
    slopes, curvatures = derivative(loss.value, y, f), derivative(loss.slope, y, f)
    rtol = 1e-7 if name in LOG_LINK else 0.0
    np.testing.assert_allclose(loss.slope(y, f), slopes, rtol=rtol, atol=1e-8)
    np.testing.assert_allclose(loss.curvature(y, f), curvatures, rtol=rtol, atol=1e-8)
    assert loss.curvature(y, f).max() <= loss.largest_curvature
    if name in LOG_LINK:
        return
    assert loss.curvature(y, f).max() > 0.9 * loss.largest_curvature or loss.largest_curvature == 0.0


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_a_conjugate_is_the_largest_difference_of_a_line_and_the_loss(name: str) -> None:
    (y, f), loss = targets_and_scores(name), loss_of(name, EPSILON)
    s = loss.slope(y, f)
    # Fenchel: where the line touches the loss
    np.testing.assert_allclose(loss.conjugate(y, s), s * f - loss.value(y, f), rtol=1e-14, atol=1e-12)
    inner = 0.9 * s
    expected = definitions.loss_of(name, EPSILON).conjugate(y, inner)
    np.testing.assert_allclose(loss.conjugate(y, inner), expected, rtol=0, atol=1e-7)
    if name in LOG_LINK:
        return
    if name not in ERRORS:
        assert np.isinf(loss.conjugate(y, y)).all()
    if not loss.varies:
        of_squares = loss.conjugate_square * s**2 + y * s
        beside = EPSILON * np.abs(s) if name == "epsilon_insensitive" else 0.0
        np.testing.assert_allclose(loss.conjugate(y, s), of_squares + beside, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_parts_that_are_computed_together_have_the_bits_of_each(name: str) -> None:
    """At the kinks, too."""
    (y, f), loss = targets_and_scores(name), loss_of(name, EPSILON)
    f = np.concatenate([f, y, -y, np.zeros_like(y), 1e200 * y])
    y = np.tile(y, 5)
    with np.errstate(over="ignore", invalid="ignore"):
        slope = loss.slope(y, f)
        apart = loss.value(y, f), slope, loss.curvature(y, f), loss.conjugate(y, slope)
        for together, single in zip(loss.parts(y, f), apart, strict=True):
            np.testing.assert_array_equal(together, single)


@pytest.mark.parametrize("name", LOG_LINK)
def test_losses_of_a_log_mean_are_half_scikit_learns_deviance(name: str) -> None:
    y, f = targets_and_scores(name)
    deviance = {"poisson": mean_poisson_deviance, "gamma": mean_gamma_deviance}[name]
    np.testing.assert_allclose(loss_of(name).value(y, f).mean(), 0.5 * deviance(y, np.exp(f)), rtol=1e-12)
    np.testing.assert_allclose(loss_of(name).value(y, np.log(y)), 0.0, atol=1e-14)
    assert loss_of("poisson").value(np.zeros(1), np.zeros(1)) == 1.0


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.8])
def test_the_smoothed_pinball_loss_is_above_the_pinball_loss_by_a_quarter_of_its_width(quantile: float) -> None:
    rng, width = np.random.default_rng(0), 0.3
    y, f = rng.standard_normal((2, 500))
    sharp, smooth = loss_of("pinball", quantile), SmoothedPinballLoss(quantile, width)
    np.testing.assert_allclose(sharp.value(y, f).mean(), mean_pinball_loss(y, f, alpha=quantile), rtol=1e-12)
    excess = smooth.value(y, f) - sharp.value(y, f)
    assert excess.min() > -1e-15
    assert smooth.value(y, y) - sharp.value(y, y) == pytest.approx(np.full(500, width / 4.0))
    kept = np.abs(np.abs(y - f) - width) > 1e-3
    y, f = y[kept], f[kept]
    steps = (smooth.value(y, f + 1e-4) - smooth.value(y, f - 1e-4)) / 2e-4
    np.testing.assert_allclose(smooth.slope(y, f), steps, atol=1e-8)
    bends = (smooth.slope(y, f + 1e-4) - smooth.slope(y, f - 1e-4)) / 2e-4
    np.testing.assert_allclose(smooth.curvature(y, f), bends, atol=1e-8)
    s = smooth.slope(y, f)
    np.testing.assert_allclose(smooth.conjugate(y, s), s * f - smooth.value(y, f), atol=1e-12)
    assert set(np.unique(smooth.curvature(y, f) / smooth.curvature_unit)) == {0.0, 1.0}


@pytest.mark.parametrize("name", SCIKIT_LEARN)
def test_losses_are_those_of_scikit_learns_stochastic_descent(name: str) -> None:
    (y, f), loss, theirs = targets_and_scores(name), loss_of(name, EPSILON), SCIKIT_LEARN[name]
    pairs = list(zip(y, f, strict=True))
    np.testing.assert_allclose(loss.value(y, f), [theirs.py_loss(p, t) for t, p in pairs], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(loss.slope(y, f), [theirs.py_dloss(p, t) for t, p in pairs], rtol=1e-12, atol=1e-14)


def test_far_scores_neither_overflow_nor_lose_their_sign() -> None:
    f, y, loss = np.array([-1e4, 1e4, -40.0, 40.0]), np.array([1.0, 1.0, -1.0, -1.0]), loss_of("log_loss")
    np.testing.assert_allclose(loss.value(y, f), [1e4, 0.0, 0.0, 40.0], atol=1e-12)
    np.testing.assert_allclose(-loss.slope(y, f), [1.0, 0.0, 0.0, -1.0], atol=1e-12)
    assert np.isfinite(loss.conjugate(y, loss.slope(y, f))).all()
    np.testing.assert_allclose(loss.curvature(y, f), np.zeros(4), atol=1e-12)


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_a_score_that_is_not_a_number_has_no_loss(name: str) -> None:
    with np.errstate(invalid="ignore"):
        assert np.isnan(loss_of(name).value(np.array([1.0]), np.array([np.nan]))).all()


@pytest.mark.parametrize("name", definitions.LOSSES)
def test_arrays_of_another_namespace_and_float32_stay_what_they_are(name: str) -> None:
    (y, f), loss = targets_and_scores(name), loss_of(name, EPSILON)
    strict: Any = [array_api_strict.asarray(one) for one in (y, f)]
    for function in (loss.value, loss.slope, loss.curvature):
        np.testing.assert_allclose(np.asarray(function(*strict)), function(y, f), rtol=1e-14)
        assert function(y.astype(np.float32), f.astype(np.float32)).dtype == np.float32


def test_a_loss_that_nobody_knows_is_named() -> None:
    with pytest.raises(ValueError, match=r"loss='squared'.*the losses are hinge, squared_hinge"):
        loss_of("squared")


def c_expression(source: str) -> str:
    """A slope of the CUDA source as Python: ``a ? b : c`` becomes ``b if a else c``."""
    if "?" not in source:
        return source
    condition, rest = source.split("?", 1)
    first, second = rest.split(":", 1)
    return f"({first.strip()}) if ({condition.strip()}) else ({c_expression(second.strip())})"


@pytest.mark.parametrize("name", sgd_source._SLOPES)
def test_the_slopes_of_the_gpu_are_those_of_the_table(name: str) -> None:
    (y, f), slope = targets_and_scores(name), c_expression(sgd_source._SLOPES[name])
    known = {"exp": np.exp, "fmin": min, "fmax": max, "epsilon": EPSILON}
    found = [eval(slope, {**known, "y": t, "p": p}) for t, p in zip(y, f, strict=True)]
    np.testing.assert_allclose(found, loss_of(name, EPSILON).slope(y, f), rtol=1e-12, atol=1e-14)


def test_losses_with_stochastic_steps_have_a_slope_in_compiled_code_and_in_the_source_of_the_gpu() -> None:
    """Losses that machines offer with exact steps alone need none."""
    stochastic = {*losses_for("classification", "sgd"), *losses_for("regression", "sgd")}
    assert set(steps.COMPILED_LOSSES) == {*sgd_source._SLOPES, "softmax"} == stochastic


def one_column(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, TrialSteps]:
    """Scores as the one feature of a model, targets (n, 1), weights, and the model f = phi with steps of 0."""
    y, f = targets_and_scores(name)
    weight = np.random.default_rng(1).integers(1, 4, len(y)).astype(float)
    model = np.array([[1.0, 0.0]])
    return f[:, None], y[:, None], weight, TrialSteps(model, np.zeros_like(model), np.zeros((1, 1)))


@pytest.mark.parametrize("name", ["squared_hinge", "squared_error"])
def test_the_kernel_of_newton_steps_has_the_losses_of_the_table(name: Any) -> None:
    (phi, y, weight, trial), loss = one_column(name), loss_of(name)
    losses, gradient, curvature = loss_sums(phi, y, weight, trial, NewtonOptions(name, dtype="float64"))
    np.testing.assert_allclose(losses[0, 0], weight @ loss.value(y, phi)[:, 0], rtol=1e-13)
    np.testing.assert_allclose(gradient[0, 1], weight @ loss.slope(y, phi)[:, 0], rtol=1e-13)
    np.testing.assert_array_equal(loss.largest_curvature * curvature, loss.curvature(y, phi))


@pytest.mark.parametrize("name", ["hinge", "squared_hinge"])
def test_the_kernels_of_tuned_features_have_the_losses_of_the_table(name: Any) -> None:
    (phi, y, weight, trial), loss = one_column(name), loss_of(name)
    # so narrow a hinge is the hinge but for the curvature
    smoothing = Smoothing(1e-9, 1e-9, np.zeros((1, 2)))
    smooth, losses, sides, curvature = sided_duals(phi, y, weight, trial, smoothing, name)
    expected = loss.value(y, phi)[:, 0]
    np.testing.assert_allclose(smooth[0, 0], weight @ expected, rtol=1e-8)
    for side, rows in enumerate((y[:, 0] < 0.0, y[:, 0] > 0.0)):
        np.testing.assert_allclose(losses[side, 0], weight[rows] @ expected[rows], rtol=1e-13)
    duals = sides.sum(axis=0)
    np.testing.assert_allclose(duals, -weight[:, None] * loss.slope(y, phi), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(curvature, weight[:, None] * loss.curvature(y, phi), rtol=1e-12, atol=1e-12)
    # duals scaled by a side: what their conjugates have beside y s
    scale = np.array([[0.7], [0.4]])
    scaled = scale[(y[:, 0] > 0.0).astype(int), 0] * loss.slope(y, phi)[:, 0]
    beside = weight @ (loss.conjugate(y[:, 0], scaled) - y[:, 0] * scaled)
    assert square_of_duals(scale, losses, name) == pytest.approx(beside, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("name", ["hinge", "squared_hinge"])
def test_the_game_is_played_for_the_losses_of_the_table(name: Any) -> None:
    (phi, y, weight, _), loss, C = one_column(name), loss_of(name), 0.7
    trials = Trials(np.array([1.0, 0.5]), np.array([[0.0, 0.3]]))
    found = primal_losses(phi, y, weight, trials, loss=name)
    for s, scale in enumerate(trials.scales):
        for b, intercept in enumerate(trials.intercepts[0]):
            assert found[0, s, b] == pytest.approx(weight @ loss.value(y, scale * phi + intercept)[:, 0])
    # alpha less its square over 2 C' is minus the conjugate of C times the loss, C loss*(slope / C), at slope -y alpha
    alpha = np.linspace(0.0, C, 5)
    expected = -C * loss.conjugate(np.ones(5), -alpha / C)
    np.testing.assert_allclose(alpha - alpha**2 / (2.0 * GameRules(C=C, loss=name).curvature), expected, rtol=1e-12)


@pytest.mark.parametrize(("name", "classes"), [("squared_hinge", True), ("squared_error", False)])
def test_penalties_are_judged_by_the_losses_of_the_table(name: str, classes: bool) -> None:
    """Errors by the whole square: one minus it is the share of the variance that is explained."""
    (phi, y, _, trial), loss = one_column(name), loss_of(name)
    models = trial.coefficients[None, :, None]
    found = candidate_losses(candidate_scores(phi, models), y, name=name)[0, :, 0]
    np.testing.assert_allclose(found, (1.0 if classes else 2.0) * loss.value(y, phi)[:, 0], rtol=1e-13)


def test_no_other_module_defines_a_loss() -> None:
    """Kernels that Numba compiles have their own lines, which the tests above hold to the table."""
    formulas = re.compile(r"logaddexp|(maximum|clip)\((0\.0, )?1\.0 - [^()]*(scores?|decision|margin|f)\b|_CONJUGATE")
    wrong = []
    for path in sorted(Path(dkl.__file__).parent.rglob("*.py")):
        if path.name != "losses.py":
            lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
            wrong += [f"{path}:{number}: {line.strip()}" for number, line in lines if formulas.search(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", ["huber", "pinball", "softmax"])
def test_losses_of_rounds_lie_below_their_parabolas(name: str) -> None:
    """Slopes and conjugates are those of the values, and curvatures bound the losses, or the Hessian of the softmax."""
    rng, loss = np.random.default_rng(0), round_loss(name)
    y = (
        rng.standard_normal((300, 1))
        if name != "softmax"
        else np.where(np.eye(3)[rng.integers(0, 3, 300)] > 0, 1.0, -1.0)
    )
    y = np.broadcast_to(y, (300, 1 if name == "huber" else 3))
    f, d = 2.0 * rng.standard_normal(y.shape), rng.standard_normal(y.shape)
    total = loss.value(y, f).sum(axis=1)
    slope, bend = loss.slope(y, f), loss.curvature(y, f)
    assert (bend <= loss.largest_curvature + 1e-12).all()
    numeric = (loss.value(y, f + 1e-6 * d) - loss.value(y, f - 1e-6 * d)).sum(axis=1) / 2e-6
    smooth = np.abs(np.abs(f - y) - 0.1).min(axis=1) > 1e-4
    np.testing.assert_allclose((slope * d).sum(axis=1)[smooth], numeric[smooth], rtol=1e-4, atol=1e-7)
    for length in (-10.0, -0.1, 0.1, 1.0, 10.0) if name != "softmax" else ():
        bound = total + (slope * length * d + 0.5 * bend * (length * d) ** 2).sum(axis=1)
        assert (loss.value(y, f + length * d).sum(axis=1) <= bound + 1e-9).all()
    # the Hessian of the softmax along a direction is the derivative of the slope there
    second = ((loss.slope(y, f + 1e-6 * d) - loss.slope(y, f - 1e-6 * d)) * d).sum(axis=1) / 2e-6
    assert (second[smooth] <= (bend * d**2).sum(axis=1)[smooth] + 1e-6).all()
    # Fenchel: the conjugate at the slope is what the line there is above the loss
    touching = (slope * f).sum(axis=1) - total
    np.testing.assert_allclose(loss.conjugate(y, slope).sum(axis=1), touching, atol=1e-9)
