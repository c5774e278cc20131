"""What is said of a model that Adam leaves: its objective, its violations of optimality, and a gap that is a bound."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.density.descent import TunedModel, tuned_gradient
from dkl.methods.density.pass_records import judging_record
from dkl.methods.density.penalty import DensityPenalty, meta_spectrum
from dkl.methods.density.solution import TunedSolution, judged
from tests.linear.problems import blocks_of, feature_map, rows, summed

D_IN, D, LAM, N = 4, 6, 1e-2, 90
MAP = feature_map(D_IN, D)
CODES = np.arange(3)


@cache
def penalty_of(kind: str) -> DensityPenalty:
    W = MAP.projection.dense()
    if kind == "fourier":
        return DensityPenalty(meta_spectrum(W, "delta"), gamma=0.3, Lam=2.0, floor=0.0, center=0.0)
    spectrum = meta_spectrum(W, "rbf", length_scale=0.7)
    return DensityPenalty(spectrum, gamma=0.2, Lam=np.inf if kind == "fixed" else 0.05)


def judge(model: TunedModel, loss: Any, kind: str, weight: np.ndarray | None = None) -> TunedSolution:
    """On three clouds in blocks of 40 rows, class against the rest."""
    X, codes = rows(N, 3)
    record = judging_record(MAP, NewtonTargets(CODES, 3), model, loss, dtype="float64")
    return judged(summed(record, blocks_of(X, codes, 40, weight)), model, loss, LAM, penalty_of(kind))


@cache
def mapped() -> tuple[np.ndarray, np.ndarray]:
    X, codes = rows(N, 3)
    return map_rows(X, MAP, "float64"), np.where(codes[:, None] == CODES, 1.0, -1.0)


def on_whole_rows(
    model: TunedModel, loss: Any, kind: str, weight: np.ndarray | None = None
) -> tuple[float, TunedModel]:
    phi, signs = mapped()
    share = None if weight is None else weight / weight.mean()
    return tuned_gradient(phi, signs, share, model, loss=loss, lam=LAM, penalty=penalty_of(kind))


def some_model(G: int = 1, seed: int = 0) -> TunedModel:
    generator = np.random.default_rng(seed)
    return TunedModel(generator.normal(size=(3, 2 * D)), generator.normal(size=3), 1.0 + generator.uniform(size=(G, D)))


@pytest.mark.parametrize("loss", ["squared_error", "hinge", "squared_hinge"])
@pytest.mark.parametrize("G", [1, 3])
def test_objective_and_residual_are_those_of_the_whole_rows(loss: Any, G: int) -> None:
    model, weight = some_model(G), np.random.default_rng(1).uniform(0.5, 2.0, N)
    found = judge(model, loss, "coupled", weight)
    value, gradient = on_whole_rows(model, loss, "coupled", weight)
    np.testing.assert_allclose(found.objective, value, rtol=1e-12)
    free = np.abs(model.density - np.maximum(model.density - gradient.density, 1.0))
    expected = max(np.abs(gradient.coef).max(), np.abs(gradient.intercept).max(), free.max())
    np.testing.assert_allclose(found.residual, expected, rtol=1e-10)


def optimum(loss: Any, kind: str) -> TunedModel:
    """By L-BFGS on all numbers at once."""
    penalty = penalty_of(kind)
    shape = (3, 1, D)

    def of(values: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = on_whole_rows(TunedModel.of(values, shape), loss, kind)
        return value, gradient.values

    bounds = [(None, None)] * (6 * D + 3) + [(penalty.floor, None)] * D
    start = TunedModel.first(3, 1, penalty).values
    start[: 6 * D] += 0.1
    found = minimize(of, start, jac=True, bounds=bounds, options={"maxiter": 2_000, "ftol": 1e-15, "gtol": 1e-9})
    model = TunedModel.of(found.x, shape)
    model.clip(LAM, penalty)
    return model


@pytest.mark.parametrize("kind", ["coupled", "fixed", "fourier"])
@pytest.mark.parametrize("loss", ["squared_error", "squared_hinge"])
def test_the_gap_vanishes_at_the_optimum_and_bounds_the_distance_elsewhere(loss: Any, kind: str) -> None:
    best = optimum(loss, kind)
    at_best = judge(best, loss, kind)
    assert 0.0 <= at_best.gap < 1e-5 * at_best.objective
    assert at_best.residual < 1e-4
    for seed, length in enumerate((0.01, 0.1, 1.0)):
        off = some_model(seed=seed)
        moved = TunedModel(
            best.coef + length * off.coef,
            best.intercept + length * off.intercept,
            best.density if kind == "fixed" else best.density + length * off.density,
        )
        found = judge(moved, loss, kind)
        assert found.gap >= found.objective - at_best.objective - 1e-9
        assert found.residual > 1e-3


def test_of_the_hinge_the_gap_is_a_bound_too() -> None:
    best = optimum("squared_hinge", "coupled")
    found = judge(best, "hinge", "coupled")
    zero = judge(TunedModel.first(3, 1, penalty_of("coupled")), "hinge", "coupled")
    assert found.objective < zero.objective
    assert zero.gap >= zero.objective - found.objective
    # what a slope at the kink leaves, some tenths of the distance between the two
    assert found.gap < 0.5 * zero.gap


def test_rows_of_no_weight_and_empty_blocks_count_nothing() -> None:
    X, codes = rows(N, 3)
    model, record = some_model(), None
    weight = np.where(np.arange(N) < 50, 1.0, 0.0)
    record = judging_record(MAP, NewtonTargets(CODES, 3), model, "hinge", dtype="float64")
    some = summed(record, blocks_of(X[:50], codes[:50], 40))
    every = summed(record, [*blocks_of(X, codes, 40, weight), *blocks_of(X[:1], codes[:1], 1, np.zeros(1))])
    for name, value in some.items():
        np.testing.assert_allclose(every[name], value, rtol=1e-12, atol=1e-12)
    assert {name: sums.shape for name, sums in every.items()} == {
        name: accumulator.shape for name, accumulator in record.accumulators.items()
    }
