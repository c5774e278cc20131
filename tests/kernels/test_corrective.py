"""The sums of a corrective round against loops over rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.kernels.gram import signed_products
from dkl.kernels.maps import design_rows, map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.minibatches import HeldOut
from dkl.methods.margin.driver import column_numbers
from dkl.methods.rounds import loop as rounds
from dkl.methods.rounds.loop import GramChange, HeldTargets, RoundTask, round_block, round_sums
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of
from tests.definitions import losses
from tests.definitions import rounds as definition
from tests.kernels.cases import DTYPES, STORAGES, holey_rows, scaler, stored

LOSSES = ("squared_hinge", "log_loss", "squared_error")
N, D_IN, OLD, NEW = 90, 4, 5, 3


def scores_and_targets(loss: str, n: int = 60, K: int = 2) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    scores, drawn = 3.0 * rng.standard_normal((n, K)), rng.standard_normal((n, K))
    return scores, drawn if loss == "squared_error" else np.sign(drawn)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_count_by_the_share_of_their_curvature(loss: Any) -> None:
    """The product of the intercept with itself, row by row."""
    X, mapped, (y, _, _) = holey_rows(60, D_IN), feature_map("float64"), weighted_targets(loss, n=60)
    task = replace(a_round(loss, mapped, dtype="float64"), curvature_unit=loss_of(loss).largest_curvature, change=None)
    task = replace(task, new=np.array([task.trials.shape[2] - 1]))
    scores = map_rows(X, mapped, "float64") @ task.trials[0, 0, :-1] + task.trials[0, 0, -1]
    for i in range(60):
        found = round_sums(X[[i]], (y[[i]], np.array([2.0]), np.array([0.0])), mapped, task)["cross"][-1, 0] / 2.0
        expected = losses.curvature(float(y[i, 0]), float(scores[i]), loss) / loss_of(loss).largest_curvature
        assert found == pytest.approx(expected, rel=1e-9)
        assert 0.0 <= found <= 1.0


def feature_map(dtype: str, scaling: str | None = None, pairing: Any = "cos-sin") -> FeatureMap:
    drawn = Gaussian(1.0, pairing=pairing).draw(OLD + NEW, D_IN, 0, dtype)
    return replace(drawn, amplitudes=np.ones(OLD + NEW), scaler=scaler(scaling, D_IN))


def a_round(loss: Any, mapped: FeatureMap, K: int = 1, dtype: str = "float32") -> RoundTask:
    """A working model of some size, one before it, and panels that cut the triangle unevenly."""
    old, new = column_numbers(mapped.columns_a_frequency, OLD, NEW)
    rng, width = np.random.default_rng(1), len(old) + len(new)
    models = np.zeros((K + 1, width))
    models[:, old] = rng.standard_normal((K + 1, len(old)))
    active = loss == "squared_hinge" and K == 1
    change = GramChange(old, models[K:] if active else None, ((0, 3), (3, 4), (4, len(old))))
    unit = loss_of(loss).largest_curvature if active else None
    options: Any = {"curvature_unit": unit, "has_intercept": True, "has_dual": True, "change": change}
    return RoundTask(loss_of(loss), models[None, :K], new, dtype, **options)


def with_change(task: RoundTask, **changes: Any) -> RoundTask:
    """The task with another change of the Gram matrix."""
    assert task.change is not None
    return replace(task, change=replace(task.change, **changes))


def weighted_targets(loss: str, K: int = 1, n: int = N) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    _, y = scores_and_targets(loss, n, K)
    weight, held = rng.integers(1, 4, n).astype(float), rng.random(n) < 0.2
    return y, weight * ~held, weight * held


def whole_change(sums: dict[str, np.ndarray], panels: Any, width: int) -> np.ndarray:
    """The symmetric matrix of which panels are rows of the upper triangle."""
    upper = np.zeros((width, width))
    for j, (start, stop) in enumerate(panels):
        upper[start:stop, start:] = np.triu(sums[f"change_{j}"])
    return upper + np.triu(upper, 1).T


def assert_sums(found: dict[str, np.ndarray], expected: dict[str, Any], size: float) -> None:
    assert found.keys() == expected.keys()
    for name, value in found.items():
        # a symmetric product may leave the part of a panel below the diagonal as it is
        of_panel = np.triu if name.startswith("change_") else np.asarray
        np.testing.assert_allclose(of_panel(value), of_panel(expected[name]), rtol=0, atol=size, err_msg=name)
        assert value.dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_sums_of_a_round_are_their_definition(loss: Any, K: int, storage: str, dtype: str) -> None:
    X, mapped, targets = holey_rows(N, D_IN), feature_map(dtype), weighted_targets(loss, K)
    round_ = a_round(loss, mapped, K, dtype=dtype)
    found = round_sums(stored(X, storage), targets, mapped, round_)
    expected = definition.round_sums(X, targets, mapped, round_)
    assert_sums(found, expected, 1e-10 if dtype == "float64" else 2e-3)


@pytest.mark.parametrize("scaling", ["standard", "quantile"])
@pytest.mark.parametrize("pairing", ["cos-sin", "phase"])
def test_scaled_rows_and_features_of_one_column_have_the_same_sums(pairing: str, scaling: str) -> None:
    X, mapped = holey_rows(N, D_IN), feature_map("float64", scaling, pairing)
    targets, round_ = weighted_targets("squared_hinge"), a_round("squared_hinge", mapped, dtype="float64")
    expected = definition.round_sums(X, targets, mapped, round_)
    assert_sums(round_sums(X, targets, mapped, round_), expected, 1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_change_brings_the_old_matrix_to_the_rows_of_the_new_model(dtype: str) -> None:
    """Against both matrices summed from scratch, in one panel and in several, over more than one tile of rows."""
    X, mapped, targets = holey_rows(2_500, D_IN), feature_map(dtype), weighted_targets("squared_hinge", n=2_500)
    round_ = a_round("squared_hinge", mapped, dtype=dtype)
    assert round_.change is not None
    assert round_.change.previous is not None
    old = len(round_.change.old)

    def from_scratch(model: np.ndarray) -> np.ndarray:
        one = with_change(replace(round_, trials=model[None]), previous=None, panels=((0, old),))
        return whole_change(round_sums(X, targets, mapped, one), ((0, old),), old)

    before, after = from_scratch(round_.change.previous), from_scratch(round_.trials[0])
    assert np.abs(after - before).max() > 100
    for panels in (((0, old),), round_.change.panels):
        sums = round_sums(X, targets, mapped, with_change(round_, panels=panels))
        change = whole_change(sums, panels, old)
        np.testing.assert_allclose(before + change, after, rtol=0, atol=1e-9 if dtype == "float64" else 1e-2)


def test_rows_that_stay_active_change_nothing() -> None:
    X, mapped, targets = holey_rows(N, D_IN), feature_map("float32"), weighted_targets("squared_hinge")
    round_ = a_round("squared_hinge", mapped)
    assert round_.change is not None
    for panels in (((0, len(round_.change.old)),), round_.change.panels):
        same = with_change(round_, previous=round_.trials[0], panels=panels)
        sums = round_sums(X, targets, mapped, same)
        for j in range(len(panels)):
            np.testing.assert_array_equal(sums[f"change_{j}"], 0.0)


def test_few_changed_rows_of_several_tiles_share_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is as large as the matrix: with 5,000 features one for every tile took a third of a round."""
    n = 20_000
    X, mapped, targets = holey_rows(n, D_IN), feature_map("float32"), weighted_targets("squared_hinge", n=n)
    tile = design_rows(mapped.n_features, "float32")
    assert n > 2 * tile
    round_ = a_round("squared_hinge", mapped)
    assert round_.change is not None
    near = with_change(round_, previous=1.01 * round_.trials[0], panels=((0, len(round_.change.old)),))
    products = []

    def counted(phi: np.ndarray, weight: np.ndarray, **options: Any) -> np.ndarray:
        products.append(len(phi))
        return signed_products(phi, weight, **options)

    monkeypatch.setattr(rounds, "signed_products", counted)
    round_sums(X, targets, mapped, near)
    assert len(products) == 1
    assert 5 <= products[0] <= 1_024
    round_sums(X, targets, mapped, with_change(near, previous=None))
    assert len(products) > 2
    assert max(products) <= tile


@pytest.mark.parametrize("loss", LOSSES)
def test_weights_are_repetitions(loss: Any) -> None:
    X, mapped, (y, weight, held) = holey_rows(N, D_IN), feature_map("float64"), weighted_targets(loss)
    round_ = a_round(loss, mapped, dtype="float64")
    repeats = np.repeat(np.arange(N), (weight + held).astype(int))
    learned, judged = (weight > 0).astype(float)[repeats], (held > 0).astype(float)[repeats]
    found = round_sums(X, (y, weight, held), mapped, round_)
    expected = round_sums(X[repeats], (y[repeats], learned, judged), mapped, round_)
    for name, value in found.items():
        if name.startswith("change_"):
            value, expected[name] = np.triu(value), np.triu(expected[name])
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, atol=1e-10, err_msg=name)


def test_held_out_rows_only_judge() -> None:
    y = np.random.default_rng(0).integers(0, 2, N)
    weight = np.random.default_rng(1).integers(1, 4, N).astype(float)
    block = Block(0, holey_rows(N, D_IN), y, weight, 7 * np.arange(N))
    targets = NewtonTargets(np.array([1]), 2, np.array([1.0, 0.5]))
    values, learned, held = HeldTargets(targets, HeldOut(0.3, 5).mask)(block)
    mask = HeldOut(0.3, 5).mask(block.row_id)
    assert 0 < mask.sum() < N
    factors = weight * np.where(y == 1, 0.5, 1.0)
    np.testing.assert_array_equal(values[:, 0], np.where(y == 1, 1.0, -1.0))
    np.testing.assert_array_equal(learned, np.where(mask, 0.0, factors))
    np.testing.assert_array_equal(held, np.where(mask, factors, 0.0))
    values, learned, held = HeldTargets(targets)(block)
    np.testing.assert_array_equal(learned, factors)
    np.testing.assert_array_equal(held, 0.0)


def test_a_block_is_summed_with_its_own_targets() -> None:
    y = np.random.default_rng(0).integers(0, 2, N)
    block, mapped = Block(3, holey_rows(N, D_IN), y, None, np.arange(N)), feature_map("float32")
    targets = HeldTargets(NewtonTargets(np.array([1]), 2), HeldOut(0.3, 5).mask)
    round_ = a_round("log_loss", mapped)
    found = round_block(block, {"targets": targets, "feature_map": mapped, "task": round_})
    expected = round_sums(block.X, targets(block), mapped, round_)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name])
