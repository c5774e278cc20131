"""Refinement: it descends, keeps the best epoch and the entries that were there, and has the same bits everywhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from dkl.data.sources.in_memory import ArraySource
from dkl.events import Event
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import SparseProjection
from dkl.linear.fitting import LinearProblem, Run, fit_by_newton
from dkl.linear.minibatches import _MOST_ORDERS, _ORDERS, HeldOut, RowTargets, shuffled_rows, signs
from dkl.linear.refinement_driver import RefineDriver, Refinement, RefineProblem, adam_step
from dkl.linear.refinement_sums import Expansion, ExpansionGradients, refinement_minibatch, scaled_rows
from dkl.linear.scores import decision_values
from dkl.methods.refining import Refined, fit_and_refine, refine_features
from dkl.passes.checkpoint import Checkpoint
from dkl.passes.timing import seconds_counted
from dkl.protocols.block import Block
from dkl.solvers.losses import loss_of
from tests.linear.problems import blocks_of, feature_map, rows

D_IN, M = 4, 12
HELD_OUT = HeldOut(0.25, seed=3)


def sparse_map(base: FeatureMap) -> FeatureMap:
    """One or two columns a frequency."""
    supports = np.zeros((base.n_frequencies, D_IN), bool)
    for j, row in enumerate(supports):
        row[[j % D_IN, (j * j) % D_IN]] = True
    return replace(base, projection=SparseProjection.from_rows(base.projection.dense(), supports))


def source_of(X: np.ndarray, y: np.ndarray, n_classes: int | None, rows_a_block: int = 100) -> ArraySource:
    return ArraySource(X, y, None, n_classes=n_classes, rows_a_block=rows_a_block)


def refined(n_classes: int = 3, run: Run | None = None, base: FeatureMap | None = None, **options: Any) -> Refined:
    """Overlapping clouds in ten blocks, from a model that knows nothing."""
    X, codes = rows(1000, n_classes)
    base = feature_map(D_IN, M) if base is None else base
    K = 1 if n_classes == 2 else n_classes
    return refine_features(
        base,
        np.zeros((K, base.n_features)),
        np.zeros(K),
        source_of(X, codes, n_classes),
        targets=RowTargets(np.arange(n_classes)),
        options=Refinement(**{"held_out": HELD_OUT, "rate": 0.1, "epochs": 3, "batch_rows": 32} | options),
        run=run,
    )


def losses_of(result: Refined) -> list[float]:
    return [epoch["held_out_loss"] for epoch in result.history]


def held_out_loss(result: Refined, loss: str, n_classes: int) -> float:
    """By the library's own scores and losses, of the rows that are held out."""
    X, codes = rows(1000, n_classes)
    out = HELD_OUT.mask(np.arange(1000))
    scores = decision_values(X[out], result.feature_map, result.coef, result.intercept)
    return float(loss_of(loss).value(signs(codes[out], n_classes), scores).sum(axis=1).mean())


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss"])
@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_frequencies_and_weights_descend_together(form: str, n_classes: int, loss: Any) -> None:
    base = feature_map(D_IN, M)
    base = sparse_map(base) if form == "sparse" else base
    result = refined(n_classes, loss=loss, base=base)
    assert min(losses_of(result)) < 0.8 * losses_of(result)[0]
    np.testing.assert_allclose(min(losses_of(result)), held_out_loss(result, loss, n_classes), rtol=1e-5)
    moved = result.feature_map.projection.dense() - base.projection.dense()
    assert np.abs(moved[base.projection.dense() != 0]).max() > 0.05
    assert not moved[base.projection.dense() == 0].any()
    assert isinstance(result.feature_map.projection, type(base.projection))


def test_targets_descend_in_units_of_their_scale() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(1500, D_IN))
    y = np.stack([np.sin(2.0 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    result = refine_features(
        feature_map(D_IN, M),
        np.zeros((2, 2 * M)),
        np.zeros(2),
        source_of(X, 100.0 + 10.0 * y, None),
        targets=RowTargets(center=np.full(2, 100.0), scale=np.full(2, 10.0)),
        options=Refinement("squared_error", held_out=HELD_OUT, epochs=10, rate=0.1, batch_rows=32),
    )
    scores = decision_values(X, result.feature_map, result.coef, result.intercept)
    assert min(losses_of(result)) < 0.4 * losses_of(result)[0]
    assert np.mean((scores - y) ** 2) < 0.4 * np.mean(y**2)


def test_the_best_epoch_is_kept_and_a_descent_that_harms_changes_nothing() -> None:
    good = refined(epochs=6)
    again = refine_features(
        good.feature_map,
        good.coef,
        good.intercept,
        source_of(*rows(1000, 3), 3),
        targets=RowTargets(np.arange(3)),
        options=Refinement(held_out=HELD_OUT, rate=30.0, epochs=8, patience=2),
    )
    assert np.argmin(losses_of(again)) == 0
    assert len(again.history) == 3
    np.testing.assert_array_equal(again.feature_map.projection.dense(), good.feature_map.projection.dense())
    np.testing.assert_array_equal(again.coef, good.coef)


def test_without_held_out_rows_all_epochs_count_and_the_last_is_kept() -> None:
    result = refined(held_out=HeldOut(0.0), epochs=2)
    assert result.history == []
    assert np.abs(result.coef).max() > 0.1


def test_steps_are_those_of_adam_on_the_batches_in_their_order() -> None:
    X, codes = rows(50, 2)
    (block,) = blocks_of(X, codes, 50)
    problem = RefineProblem(
        feature_map(D_IN, M),
        np.full((1, 2 * M), 0.1),
        np.zeros(1),
        RowTargets(np.arange(2)),
        np.array([50]),
        Refinement(held_out=HeldOut(0.0), batch_rows=20, dtype="float64", epochs=1),
    )
    driver = RefineDriver()
    (fold,) = driver.request(problem, driver.init(problem))
    minibatch = refinement_minibatch(block, fold.operands, 0)
    assert refinement_minibatch(block, fold.operands, 1) is None
    first = fold.initial
    kept = first.values.copy()
    state = adam_step(first, minibatch, fold.operands)
    np.testing.assert_array_equal(first.values, kept)
    values, mean, square, average = kept.copy(), np.zeros_like(kept), np.zeros_like(kept), kept.copy()
    order = np.random.default_rng([0, 0, 0]).permutation(50)
    for step, start in enumerate((0, 20, 40), start=1):
        batch = Block(
            0, X[order[start : start + 20]], codes[order[start : start + 20]], None, order[start : start + 20]
        )
        at = Expansion(values[: M * D_IN].reshape(M, D_IN), values[M * D_IN : -1].reshape(1, -1), values[-1:])
        gradient = ExpansionGradients(problem.feature_map, at, loss="squared_hinge", alpha=1e-5)(
            scaled_rows(batch.X, problem.feature_map, "float64"), np.where(batch.y == 1, 1.0, -1.0)[:, None], None, at
        )
        slope = np.concatenate([gradient.entries.ravel(), gradient.coef.ravel(), gradient.intercept])
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        move = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
        values = values - fold.operands["rates"] * move
        average = average + 9.0 / (step + 8.0) * (values - average)
    np.testing.assert_allclose(state.values, values, rtol=1e-10)
    np.testing.assert_allclose(state.average, average, rtol=1e-10)
    assert state.steps == 3


def test_minibatches_hold_every_row_that_is_not_held_out_once_in_another_order_each_epoch() -> None:
    X, codes = rows(300, 2)
    (block,) = blocks_of(X, codes, 300)
    operands = {
        "feature_map": feature_map(D_IN, M),
        "targets": RowTargets(np.arange(2)),
        "held_out": HELD_OUT,
        "seed": 0,
        "dtype": "float64",
    }
    orders = []
    for epoch in (0, 1):
        minibatch = refinement_minibatch(block, operands | {"epoch": epoch}, 0)
        assert minibatch is not None
        orders.append(minibatch.rows.X[:, 0] * 2 * np.pi)
    kept = X[~HELD_OUT.mask(block.row_id), 0]
    assert (orders[0] != orders[1]).any()
    for order in orders:
        np.testing.assert_allclose(np.sort(order), np.sort(kept), rtol=1e-12)


def test_the_order_of_a_blocks_rows_is_computed_once_and_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    mask = HeldOut.mask
    monkeypatch.setattr(HeldOut, "mask", lambda self, held: (looked_at.append(len(held)), mask(self, held))[1])
    X, codes = rows(300, 2)
    block, other = Block(0, X, codes, None, np.arange(300)), Block(0, X, codes, None, np.arange(300) + 1_000)
    for _ in range(3):
        order = shuffled_rows(block, HELD_OUT, (0, 0, 0))
    assert looked_at == [300]
    assert len(_ORDERS) <= _MOST_ORDERS
    # rows of other numbers, another epoch and another share have orders of their own, as if each were the first
    for each, held_out, seeds in [
        (other, HELD_OUT, (0, 0, 0)),
        (block, HELD_OUT, (0, 1, 0)),
        (block, HeldOut(), (0, 0, 0)),
    ]:
        kept = np.flatnonzero(~mask(held_out, each.row_id))
        np.testing.assert_array_equal(
            shuffled_rows(each, held_out, seeds), np.random.default_rng(seeds).permutation(kept)
        )
    np.testing.assert_array_equal(shuffled_rows(block, HELD_OUT, (0, 0, 0)), order)


@pytest.mark.parametrize("settings", [{"num_workers": 1}, {"num_workers": 4}, {"scheduler": "synchronous"}])
def test_any_number_of_workers_gives_the_same_bits(settings: dict[str, Any]) -> None:
    expected = refined()
    with dask.config.set(settings):
        got = refined()
    assert got.history == expected.history
    assert got.coef.tobytes() == expected.coef.tobytes()
    assert got.feature_map.projection.dense().tobytes() == expected.feature_map.projection.dense().tobytes()


@pytest.mark.slow
def test_a_cluster_gives_the_same_bits() -> None:
    from distributed import Client, LocalCluster

    expected = refined()
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster),
        dask.config.set({"dkl.local-bytes": 0}),
    ):
        got = refined()
    assert got.coef.tobytes() == expected.coef.tobytes()
    assert got.feature_map.projection.dense().tobytes() == expected.feature_map.projection.dense().tobytes()


def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    """Broken off after each round in turn."""
    expected = refined()
    checkpoint = Checkpoint(str(tmp_path / "run"))

    def break_off(event: Event) -> None:
        if event.kind == "advanced" and event.name == "rounds":
            raise KeyboardInterrupt

    tries = 0
    while tries < 20:
        tries += 1
        try:
            got = refined(run=Run(publish=break_off, checkpoint=checkpoint, fingerprint="one"))
        except KeyboardInterrupt:
            continue
        break
    assert tries > 5
    assert got.history == expected.history
    assert got.coef.tobytes() == expected.coef.tobytes()


@pytest.mark.parametrize("loss", ["squared_hinge", "log_loss", "squared_error"])
def test_a_fit_without_the_held_out_rows_comes_first(loss: str) -> None:
    X, codes = rows(1000, 2)
    is_error = loss == "squared_error"
    y = 50.0 + 4.0 * np.sin(2.0 * X[:, 0]) * X[:, 1] if is_error else codes
    problem = LinearProblem(
        feature_map(D_IN, M),
        loss,
        alpha=1e-3,
        classes=None if is_error else np.arange(2),
        held_out=HELD_OUT,
        dtype="float64",
    )
    source = source_of(X, y, None if is_error else 2)
    result = fit_and_refine(problem, source, options=Refinement(epochs=6, patience=6))
    assert min(losses_of(result)) < losses_of(result)[0]
    out = HELD_OUT.mask(np.arange(1000))
    scores = decision_values(X[out], result.feature_map, result.coef, result.intercept)
    scale = y[~out].std() if is_error else 1.0
    targets = (y[out] / scale)[:, None] if is_error else signs(y[out], 2)
    losses = loss_of(loss).value(targets, scores / scale)
    np.testing.assert_allclose(losses.mean(), min(losses_of(result)), rtol=1e-4)
    # the start minimises the squared error, at the penalty that the other loss has with its curvature
    squares = replace(problem, loss="squared_error", alpha=1e-3 / loss_of(loss).largest_curvature)
    first = fit_by_newton(squares, source, Run()).model
    scores = decision_values(X[out], problem.feature_map, np.atleast_2d(first.coef_), np.atleast_1d(first.intercept_))
    losses = loss_of(loss).value(targets, scores / scale)
    np.testing.assert_allclose(losses.mean(), losses_of(result)[0], rtol=1e-4)


def test_weights_of_one_size_change_nothing() -> None:
    X, codes = rows(400, 2)
    results = []
    for weight in (None, np.full(400, 5.0)):
        source = ArraySource(X, codes, weight, n_classes=2, rows_a_block=200)
        targets = RowTargets(np.arange(2), weight_scale=1.0 if weight is None else 0.2)
        start = np.full((1, 2 * M), 0.1)
        results.append(refine_features(feature_map(D_IN, M), start, np.zeros(1), source, targets=targets))
    np.testing.assert_allclose(results[0].coef, results[1].coef, rtol=1e-5)


def test_a_plan_counts_the_epochs_and_the_looks() -> None:
    problem = RefineProblem(
        feature_map(D_IN, M), np.zeros((1, 2 * M)), np.zeros(1), RowTargets(np.arange(2)), np.array([100, 50])
    )
    looks, epochs = RefineDriver().plan(problem)
    assert (looks[1], epochs[1]) == (5, 4)
    assert epochs[0][0].state_bytes == 4 * 4 * (M * D_IN + 2 * M + 1)
    assert epochs[0][0].cost(100, D_IN).serial_flops > 100 * 4 * D_IN * M


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "hinge"}, r"loss='hinge' cannot be refined; .*squared_hinge"),
        ({"loss": "squared_error"}, r"loss='squared_error' has no meaning for classes"),
        ({"held_out": HeldOut(1e-6)}, r"no row is held out: a share of 1e-06"),
        ({"base": replace(feature_map(D_IN, M), activation="identity")}, r"'cos-sin' and 'cos'.*'identity'"),
    ],
)
def test_what_cannot_be_refined_is_named_before_any_pass(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        refined(**changes)


def test_a_model_for_another_number_of_classes_is_named() -> None:
    X, codes = rows(100, 3)
    with pytest.raises(ValueError, match=r"3 classes need one model each.*coef has 1 rows"):
        refine_features(
            feature_map(D_IN, M),
            np.zeros((1, 2 * M)),
            np.zeros(1),
            source_of(X, codes, 3),
            targets=RowTargets(np.arange(3)),
        )


def test_an_epoch_of_bounded_rows_steps_through_other_whole_blocks_each_time() -> None:
    block_rows = np.array([100, 50, 70, 100, 80, 100])
    options = Refinement(epoch_rows=200)
    problem = RefineProblem(
        feature_map(D_IN, M), np.zeros((1, 2 * M)), np.zeros(1), RowTargets(np.arange(2)), block_rows, options
    )
    driver = RefineDriver()
    state = driver.init(problem)
    folds = [driver._epoch(problem, replace(state, epoch=epoch)) for epoch in range(6)]
    for fold in folds:
        assert len(set(fold.order)) == len(fold.order) >= 1
        assert block_rows[fold.order].sum() <= 200
        assert fold.share == block_rows[fold.order].sum() / 500
    assert len({tuple(fold.order) for fold in folds}) > 1
    # a single block may be larger than that
    (least,) = driver._epoch(replace(problem, options=Refinement(epoch_rows=10)), state).order
    assert 0 <= least < 6
    everything = driver._epoch(replace(problem, options=Refinement()), state)
    assert sorted(everything.order) == list(range(6))
    assert everything.share == 1.0


def test_plans_count_the_rows_that_an_epoch_visits() -> None:
    problem = RefineProblem(
        feature_map(D_IN, M),
        np.zeros((1, 2 * M)),
        np.zeros(1),
        RowTargets(np.arange(2)),
        np.full(10, 100),
        Refinement(epoch_rows=200),
    )
    fold = RefineDriver()._epoch(problem, RefineDriver().init(problem))
    bounded, whole = (seconds_counted(each, 1_000, D_IN, 1e9).in_all for each in (fold, replace(fold, share=1.0)))
    np.testing.assert_allclose(bounded, 0.2 * whole)
