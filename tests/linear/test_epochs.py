"""Stochastic epochs: reproducible, unbiased by the order of the rows, stopped by held-out rows."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.dataset import Dataset
from dkl.linear.array_sgd import default_estimator, rules_of
from dkl.linear.epochs import EpochDriver, EpochProblem, EpochState, Stopping, centred, uncentred
from dkl.linear.fitting import (
    LinearProblem,
    Run,
    default_epochs,
    fit_by_epochs,
    mixed_blocks,
    mixed_source,
    summarise_rows,
)
from dkl.linear.minibatches import HeldOut, RowTargets, minibatch_rows
from dkl.linear.scores import decision_values
from dkl.linear.sgd import (
    SGDState,
    first_state,
    sgd_step,
    step_schedule,
)
from dkl.linear.sums import reordered_minibatch, shuffled_minibatch
from dkl.registry import losses_for
from dkl.solvers.losses import LOG_LINK
from tests.definitions import losses
from tests.linear.problems import blocks_of, dataset, feature_map, play, rows

PHI = feature_map(4, 40)


def epochs(n_blocks: int, n_classes: int = 2, **changes: Any) -> EpochProblem:
    """Three epochs of the hinge on blocks of the shared problem."""
    schedule = step_schedule("hinge", alpha=1e-4, square_length=0.5, largest=1.5)
    problem = EpochProblem(
        step=sgd_step,
        step_operands={
            "rules": rules_of(default_estimator("hinge", schedule, alpha=1e-4), 1 if n_classes == 2 else n_classes),
            "batch_rows": 256,
            "classes": np.arange(n_classes),
        },
        first=first_state(1 if n_classes == 2 else n_classes, PHI.n_features, dtype="float32", clock=schedule.clock),
        feature_map=PHI,
        targets=RowTargets(np.arange(n_classes)),
        n_blocks=n_blocks,
        epochs=3,
        center=np.zeros(PHI.n_features),
    )
    return replace(problem, **changes)


def accuracy(state: EpochState, X: np.ndarray, codes: np.ndarray) -> float:
    coef, intercept = uncentred(SGDState(**state.result), np.zeros(PHI.n_features))
    scores = decision_values(X, PHI, coef, intercept)
    return float(np.mean((scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)) == codes))


def test_minibatches_hold_every_row_that_is_not_held_out_once_in_another_order_each_epoch() -> None:
    X, codes = rows(900, 2)
    (block,) = blocks_of(X, codes, 900)
    held_out = HeldOut(0.2, seed=5)
    orders = []
    for epoch in (0, 1):
        operands = {
            "feature_map": None,
            "center": None,
            "dtype": "float64",
            "minibatch_rows": 4096,
            "seed": 0,
            "epoch": epoch,
            "held_out": held_out,
            "targets": RowTargets(np.array(["a", "b"])),
        }
        minibatches = [reordered_minibatch(shuffled_minibatch(block, operands, 0), operands, 0, 0)]
        assert shuffled_minibatch(block, operands, 1) is None
        seen = np.concatenate([minibatch.ordered.phi for minibatch in minibatches])
        kept = X[~held_out.mask(block.row_id)]
        np.testing.assert_array_equal(np.sort(seen, axis=0), np.sort(kept, axis=0))
        assert {label for minibatch in minibatches for label in minibatch.y} == {"a", "b"}
        orders.append(seen)
    assert not np.array_equal(*orders)
    assert 0.15 < held_out.mask(block.row_id).mean() < 0.25


def test_a_tile_stays_below_64_mib() -> None:
    wide = feature_map(2, 20_000)
    assert minibatch_rows(wide, "float32") * wide.n_features * 4 <= 64 << 20


def test_a_step_leaves_the_state_that_it_was_given() -> None:
    X, codes = rows(300, 3)
    problem = epochs(1, 3)
    state = EpochDriver().init(problem)
    (fold,) = EpochDriver().request(problem, state)
    before = {name: np.copy(value) for name, value in state.model.items()}
    minibatch = fold.prepare(blocks_of(X, codes, 300)[0], fold.operands, 0)
    first, second = (fold.step(fold.initial, minibatch, fold.operands) for _ in range(2))
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(fold.initial, name), value)
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
    assert not np.array_equal(first.coef, fold.initial.coef)


def test_the_seed_decides_everything() -> None:
    X, codes = rows(600, 2)
    blocks = blocks_of(X, codes, 100)
    results = [play(EpochDriver(), epochs(6, seed=seed), blocks)[0].result["coef"] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(results[0], results[1])
    assert not np.array_equal(results[0], results[2])


def test_blocks_of_one_class_and_blocks_without_a_class_do_not_break_it() -> None:
    X, codes = rows(600, 3)
    order = np.argsort(codes, kind="stable")
    state, _ = play(EpochDriver(), epochs(6, 3), blocks_of(X[order], codes[order], 100))
    assert state.result["coef"].shape == (3, PHI.n_features)
    assert np.isfinite(state.result["average_coef"]).all()


def test_patience_stops_early_and_keeps_the_best_model() -> None:
    X, codes = rows(800, 2)
    problem = epochs(4, epochs=40, held_out=HeldOut(0.3, 1), stopping=Stopping("hinge", 2))
    state, passes = play(EpochDriver(), problem, blocks_of(X, codes, 200))
    assert state.epoch < 40
    assert passes == 2 * state.epoch
    assert len(state.losses) == state.epoch
    best = int(np.argmin(state.losses))
    again, _ = play(EpochDriver(), replace(problem, epochs=best + 1), blocks_of(X, codes, 200))
    np.testing.assert_array_equal(state.result["average_coef"], again.model["average_coef"])


def test_held_out_losses_are_means_over_the_held_out_rows() -> None:
    X, codes = rows(500, 2)
    held_out = HeldOut(0.3, 1)
    problem = epochs(5, epochs=1, held_out=held_out, stopping=Stopping("hinge", 2))
    state, _ = play(EpochDriver(), problem, blocks_of(X, codes, 100))
    kept = held_out.mask(np.arange(500))
    coef, intercept = uncentred(SGDState(**state.model), problem.center)
    scores = decision_values(X[kept], PHI, coef, intercept)
    expected = losses.loss_of("hinge").value(np.where(codes[kept] == 1, 1.0, -1.0), scores[:, 0]).mean()
    assert state.losses == pytest.approx((expected,), rel=1e-6)


def test_a_model_of_centred_rows_is_one_of_the_rows() -> None:
    generator = np.random.default_rng(0)
    coef, intercept, center = generator.normal(size=(3, 7)), generator.normal(size=3), generator.normal(size=7)
    there = centred(coef, intercept, center, dtype="float64", clock=1.0)
    back = uncentred(there, center)
    np.testing.assert_allclose(back[0], coef, rtol=1e-14)
    np.testing.assert_allclose(back[1], intercept, rtol=1e-13)


@pytest.mark.parametrize("loss", losses_for("regression", "sgd"))
@pytest.mark.parametrize("heavy", [1.0, 300.0])
def test_regression_is_stable_whatever_the_weights(loss: str, heavy: float) -> None:
    X, _ = rows(400, 2)
    y = 1e6 + 1e3 * np.sin(X[:, 0])
    weight = np.ones(400)
    weight[:20] = heavy
    problem = LinearProblem(PHI, loss, 1e-4, quantiles=(0.5,) if loss == "pinball" else ())
    fit = fit_by_epochs(problem, as_dataset(X, y, weight).source, Run(), epochs=20, patience=None)
    predicted = decision_values(X, PHI, np.atleast_2d(fit.model.coef_), fit.model.intercept_)[:, 0]
    predicted = np.exp(predicted) if loss in LOG_LINK else predicted
    assert np.average((predicted - y) ** 2, weights=weight) < 0.5 * np.cov(y, aweights=weight)


def linear_accuracy(data: Dataset, X: np.ndarray, codes: np.ndarray) -> float:
    problem = LinearProblem(PHI, "hinge", 1e-4, classes=np.arange(int(codes.max()) + 1))
    fit = fit_by_epochs(problem, data.source, Run(), epochs=8, patience=None)
    scores = decision_values(X, PHI, fit.model.coef_, fit.model.intercept_)
    return float(np.mean((scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)) == codes))


@pytest.mark.parametrize(("n_classes", "n_blocks"), [(2, 4), (5, 4), (2, 40)])
def test_sorted_labels_end_within_a_point_of_shuffled_ones(n_classes: int, n_blocks: int) -> None:
    X, codes = rows(8_000, n_classes)
    train, test = slice(0, 6_000), slice(6_000, None)
    order = np.argsort(codes[train], kind="stable")
    size = 6_000 // n_blocks
    shuffled = linear_accuracy(dataset(X[train], codes[train], rows_a_block=size), X[test], codes[test])
    with pytest.warns(UserWarning, match=r"rows look sorted.*create_dataset\(..., shuffle=True\)"):
        ordered = linear_accuracy(dataset(X[order], codes[order], rows_a_block=size), X[test], codes[test])
    assert ordered > shuffled - 0.01


def test_shuffled_rows_are_read_once_an_epoch_and_nobody_is_warned() -> None:
    X, codes = rows(4_000, 2)
    data = dataset(X, codes, rows_a_block=8)
    problem = LinearProblem(PHI, "hinge", 1e-4, classes=np.arange(2))
    summary = summarise_rows(problem, data.source, Run())
    assert summary.unevenness < 0.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert mixed_source(data.source, summary.unevenness, 0) is data.source


def test_mixed_blocks_hold_every_row_once_and_each_class_in_each_block() -> None:
    X, codes = rows(1_000, 2)
    order = np.argsort(codes, kind="stable")
    weight = np.arange(1_000) % 7 / 3.0
    data = dataset(X[order], codes[order], rows_a_block=90, weight=weight)
    mixed = mixed_blocks(data.source, 4, seed=0)
    blocks = [mixed.reader().load(mixed.ticket(index)) for index in range(mixed.n_blocks)]
    np.testing.assert_array_equal([block.n_rows for block in blocks], mixed.block_rows)
    ids = np.concatenate([block.row_id for block in blocks])
    np.testing.assert_array_equal(np.sort(ids), np.flatnonzero(weight))
    for block in blocks:
        np.testing.assert_array_equal(block.X, X[order][block.row_id])
        np.testing.assert_array_equal(block.weight, weight[block.row_id])
        assert 0.2 < block.y.mean() < 0.8
        assert block.n_rows <= data.source.block_rows.max() + 4


def test_summaries_are_what_the_rows_say() -> None:
    X, codes = rows(500, 3)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 500)
    class_weight = np.array([1.0, 2.0, 0.5])
    data = dataset(X, codes, rows_a_block=60, weight=weight)
    problem = LinearProblem(PHI, "hinge", 1e-4, classes=np.arange(3), class_weight=class_weight)
    summary = summarise_rows(problem, data.source, Run())
    total = weight * class_weight[codes]
    assert summary.total_weight == pytest.approx(total.sum())
    assert summary.n_rows == 500
    features = definition_features(X)
    np.testing.assert_allclose(summary.center, np.average(features, axis=0, weights=total), atol=1e-5)
    lengths, share = np.sum((features - summary.center) ** 2, axis=1), total / total.mean()
    assert summary.square_length == pytest.approx(np.mean(share**2 * lengths), rel=1e-5)
    assert summary.largest == pytest.approx(np.max(share * (lengths + 1.0)), rel=1e-5)
    one_class = dataset(X[np.argsort(codes)], np.sort(codes), rows_a_block=20)
    assert summarise_rows(replace(problem, class_weight=None), one_class.source, Run()).unevenness > 0.9


def definition_features(X: np.ndarray) -> np.ndarray:
    z = X @ PHI.projection.dense().T
    return np.hstack([np.cos(z), np.sin(z)]) * np.tile(PHI.amplitudes, 2)


@pytest.mark.parametrize(("n", "expected"), [(10, 50), (10_000, 20), (60_000, 10), (10**8, 5)])
def test_small_data_gets_more_epochs(n: int, expected: int) -> None:
    assert default_epochs(n) == expected


def test_epochs_of_many_rows_end_when_held_out_rows_gain_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of more than a million rows; here of more than a thousand."""
    monkeypatch.setattr("dkl.linear.fitting._MANY_ROWS", 1_000)
    monkeypatch.setattr("dkl.linear.fitting._JUDGING_ROWS", 600)
    X, codes = rows(3_000, 2)
    options: dict[str, Any] = {"solver": "sgd", "random_state": 0, "progress": False}
    features = dkl.RandomFeatures(n_features=40)
    model = dkl.KernelClassifier(features, **options).fit(X, codes)
    losses = model.validation_losses_
    assert 2 <= len(losses) == model.n_epochs_ <= 5
    assert all(after < before for before, after in pairwise(losses[:-1]))
    # an epoch more would have been made had the last one gained
    assert len(losses) == 5 or losses[-1] > losses[-2] * (1.0 - 2e-4)
    assert "no longer falls" in model.message_ or len(losses) == 5
    # whoever names the epochs gets them
    assert dkl.KernelClassifier(features, epochs=7, **options).fit(X, codes).n_epochs_ == 7
    few = dkl.KernelClassifier(features, **options).fit(X[:900], codes[:900])
    assert few.n_epochs_ == default_epochs(900) == 50
