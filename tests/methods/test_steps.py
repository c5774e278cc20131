"""StepFeatures: its scores against literal columns, what its rounds find, and the promises of learners."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.linear_model import Ridge

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.features.step_projection import HINGE, STEP
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.step_tiles import SHARED_SUMS, HistogramSums, write_codes
from dkl.linear.minibatches import HeldOut
from dkl.methods.fit_context import FitContext
from dkl.methods.rounds.driver import RoundsDriver
from dkl.methods.rounds.loop import HeldTargets
from dkl.methods.rounds.problem import first_state
from dkl.methods.steps.atoms import parents_of, scored_atoms, split_scores, with_atoms
from dkl.methods.steps.binning import column_bins
from dkl.methods.steps.learner import StepFeatures
from dkl.planning import plan
from dkl.protocols.held_together import of_times
from dkl.testing import check_learner
from tests.definitions import steps as definitions
from tests.methods.play import blocks_of

# targets that are numbers, in their own units
NUMBERS = NewtonTargets(np.array([0]), None, None, np.zeros(1), np.ones(1))


@pytest.mark.parametrize("n_models", [1, 3])
def test_scores_are_the_decrease_by_a_newton_step_beside_the_parent(n_models: int) -> None:
    rng = np.random.default_rng(0)
    n, d, penalty = 200, 3, 2.0
    X = np.column_stack([rng.standard_normal(n), rng.integers(0, 3, n), rng.exponential(size=n)])
    S, h = rng.standard_normal((n, n_models)), rng.uniform(0.1, 1.0, n)
    bins = column_bins(X, np.ones(n), 8)
    codes = np.empty(X.shape, np.uint8)
    write_codes(X, bins.edges, bins.n_edges, codes)
    standard = (np.clip(X, bins.low, bins.high) - bins.center) / bins.scale
    # each value by the mean of those in its bin
    means = [[standard[codes[:, j] == b, j].mean() for b in codes[:, j]] for j in range(d)]
    Z = np.array(means).T
    parent = X[:, 0] > 0.3
    (histogram,) = of_parents = np.zeros((1, d, 8, SHARED_SUMS + n_models))
    sums = HistogramSums(np.array([0]), bins.n_edges, of_parents)
    sums.add(codes, parent[:, None], np.ones(n), h, S)
    sums.finish()
    thresholds = ((np.clip(bins.edges, bins.low[:, None], bins.high[:, None]).T - bins.center) / bins.scale).T[:, :-1]
    scores = split_scores(histogram, bins.values, thresholds, np.minimum(bins.n_edges, 7), penalty=penalty, least=5)
    compared = 0
    for j, b in itertools.product(range(d), range(7)):
        above = parent & (X[:, j] > bins.edges[j, b])
        if b >= bins.n_edges[j] or above.sum() < 5:
            assert scores[:, j, b].tolist() == [0.0, 0.0]
            continue
        p, step = parent.astype(float), above.astype(float)
        hinge = step * (Z[:, j] - thresholds[j, b])
        if (parent & ~above).sum() >= 5:
            np.testing.assert_allclose(scores[0, j, b], definitions.decrease(step, p, S, h, penalty), rtol=1e-9)
        else:
            assert scores[0, j, b] == 0.0
        np.testing.assert_allclose(scores[1, j, b], definitions.decrease(hinge, p, S, h, penalty), rtol=1e-6)
        compared += 1
    assert compared > 10


def test_rounds_add_the_best_edge_that_is_not_there_yet() -> None:
    """Of each parent and column the next best one, where the best is there already under another parent's name."""
    rng = np.random.default_rng(0)
    n, least, penalty = 300, 20, 10.0
    X = rng.integers(0, 6, (n, 2)).astype(float)
    s, h = rng.standard_normal((n, 1)), rng.uniform(0.5, 1.0, n)
    problem = StepFeatures(depth=2)._problem(as_dataset(X, s[:, 0]), None, 0)
    state = first_state(problem)
    bins = column_bins(X, np.ones(n), problem.bins)
    state = replace(state, **vars(bins))
    first, second = (0, float(bins.edges[0, 2]), STEP), (1, float(bins.edges[1, 1]), STEP)
    state = with_atoms(state, [(first,), (second,), (first, second), (first, (0, float(bins.edges[0, 3]), STEP))])
    parents = parents_of(problem, state)
    assert parents.tolist() == [0, 1, 2]
    codes = np.empty(X.shape, np.uint8)
    write_codes(X, bins.edges, bins.n_edges, codes)
    histograms = np.zeros((len(parents), 2, problem.bins, SHARED_SUMS + 1))
    own = [(), (first,), (second,)]
    inside = [np.all([X[:, j] > t for j, t, _ in factors] or [np.ones(n, bool)], axis=0) for factors in own]
    sums = HistogramSums(np.arange(len(parents)), bins.n_edges, histograms)
    sums.add(codes, np.column_stack(inside), np.ones(n), h, s)
    sums.finish()
    found = {(atom[:-1], atom[-1][0]): (score, atom) for score, atom in scored_atoms(problem, state, histograms)}

    def column(factors: Any) -> np.ndarray:
        product = np.ones(n)
        for j, t, kind in factors:
            x = (X[:, j] - bins.center[j]) / bins.scale[j]
            edge = (np.clip(t, bins.low[j], bins.high[j]) - bins.center[j]) / bins.scale[j]
            product = product * (X[:, j] > t) * (1.0 if kind == STEP else x - edge)
        return product

    there = [column(atom) for atom in ([], [first], [second], [first, second], [(0, bins.edges[0, 3], STEP)])]
    compared = 0
    for factors, j in itertools.product(own, range(2)):
        best = 0.0
        for t, kind in itertools.product(bins.edges[j, : bins.n_edges[j]], (STEP, HINGE)):
            p, q = column(factors), column([*factors, (j, float(t), kind)])
            above = int(np.count_nonzero(q != 0.0)) if kind == STEP else int(np.count_nonzero((p > 0) & (X[:, j] > t)))
            if above < least or (kind == STEP and p.sum() - above < least) or any(np.array_equal(q, a) for a in there):
                continue
            best = max(best, definitions.decrease(q, p, s, h, penalty))
        score, atom = found.get((factors, j), (0.0, None))
        # what two parents have in common is found under one of them
        if atom is not None:
            assert score == pytest.approx(best, rel=1e-6), (factors, j)
            assert not any(np.array_equal(column(atom), a) for a in there)
            compared += 1
    assert compared >= 4


def test_a_heavy_value_has_a_bin_of_its_own_and_the_rest_is_cut_evenly() -> None:
    rng = np.random.default_rng(0)
    x = np.where(rng.random(2_000) < 0.9, 0.0, rng.uniform(1.0, 2.0, 2_000))
    bins = column_bins(x[:, None], np.ones(2_000), 16)
    edges = bins.edges[0, : bins.n_edges[0]]
    assert edges[0] > 0.0
    assert edges[0] < x[x > 0].min()
    counts = np.histogram(x[x > 0], [1.0, *edges[1:], 2.0])[0]
    assert len(counts) >= 12
    assert counts.max() <= 1.5 * counts.mean()


def test_bins_of_weighted_rows_are_those_of_repeated_ones() -> None:
    rng = np.random.default_rng(0)
    X, weight = rng.standard_normal((300, 2)), rng.integers(1, 4, 300)
    weighted, repeated = (
        column_bins(X, weight.astype(float), 9),
        column_bins(X.repeat(weight, axis=0), np.ones(weight.sum()), 9),
    )
    for name in ("edges", "n_edges", "low", "high", "center", "scale"):
        np.testing.assert_allclose(getattr(weighted, name), getattr(repeated, name), rtol=1e-12)


def test_the_working_model_is_the_ridge_model_on_its_atoms() -> None:
    X, y = load_diabetes(return_X_y=True)
    y = y + 0.5
    learner = StepFeatures(n_features=40, dtype="float64", random_state=0).fit(X, y)
    learned = ~HeldOut(0.2, learner.seed_).mask(np.arange(len(y)))
    # amplitudes are those of atoms of one unit, divided by the root of their number
    phi = learner.transform(X) * np.sqrt(learner.feature_map_.n_features)
    best = min(learner.history_, key=lambda line: line["held_out_loss"])
    center, scale = y.mean(), y.std()
    ridge = Ridge(alpha=best["penalty"]).fit(phi[learned], (y[learned] - center) / scale)
    expected = (ridge.predict(phi)) * scale + center
    np.testing.assert_allclose(learner.machine_.predict(X), expected, rtol=1e-5, atol=1e-3)


def test_rounds_find_the_product_that_makes_the_target() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(3_000, 5))
    y = 2.0 * ((X[:, 1] > 0.5) & (X[:, 3] > 0.3)) + 0.1 * rng.standard_normal(3_000)
    pairs = StepFeatures(depth=2, random_state=0).fit(X[:2_000], y[:2_000]).machine_
    alone = StepFeatures(depth=1, random_state=0).fit(X[:2_000], y[:2_000]).machine_
    errors = [np.sqrt(np.mean((model.predict(X[2_000:]) - y[2_000:]) ** 2)) for model in (pairs, alone)]
    # a threshold lies within half a bin of a 64th of the rows of the true one
    assert errors[0] < 0.2
    assert errors[1] > 0.3


def test_depth_bounds_the_factors_and_atoms_are_sentences() -> None:
    X, y = make_friedman1(500, random_state=0)
    learner = StepFeatures(depth=2, n_features=30, random_state=0).fit(X, y)
    assert max(map(len, learner.feature_map_.projection.factors)) <= 2
    assert len(learner.atoms_) == learner.transform(X).shape[1] <= 30
    assert all("x[" in atom for atom in learner.atoms_)


@pytest.mark.parametrize("classes", [2, 3])
def test_rounds_by_passes_find_what_rounds_in_memory_find(classes: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 4))
    y = np.digitize(X[:, 0] * (X[:, 1] > 0), [0.2, 0.7]) % classes
    ds = as_dataset(X, y)
    inside = StepFeatures(n_features=30, random_state=0, dtype="float64").fit(ds)
    passes = StepFeatures(n_features=30, random_state=0, dtype="float64", search_rows=None).fit(ds)
    assert inside.atoms_ == passes.atoms_
    np.testing.assert_allclose(inside.coef_, passes.coef_, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("classes", [2, 3])
def test_parts_of_the_sample_that_cores_share_have_the_sums_of_all_rows(
    classes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1000, 4))
    y = np.digitize(X[:, 0] * (X[:, 1] > 0), [0.2, 0.7]) % classes
    learner = StepFeatures(n_features=30, random_state=0, dtype="float64")
    whole = clone(learner).fit(X, y)
    monkeypatch.setattr("dkl.methods.rounds.driver._PART_ROWS", 150)
    several = [clone(learner).fit(X, y)]
    # other threads than those of this machine
    monkeypatch.setattr("dkl.kernels.threads.usable_cores", lambda: 5)
    several.append(clone(learner).fit(X, y))
    for fitted in several:
        assert fitted.atoms_ == whole.atoms_
        np.testing.assert_allclose(fitted.coef_, whole.coef_, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(several[0].coef_, several[1].coef_)
    # seven parts, one of which takes what the whole takes
    held = plan(learner, as_dataset(X, y)).passes[0].held["sums of parts of the rows"]
    assert held >= 6 * 8 * 30 * 30


def test_cores_share_the_rows_of_a_trial() -> None:
    # of the at most 20,000 rows of a choice a fifth judges
    X = np.random.default_rng(0).standard_normal((16_000, 4))
    held = plan(StepFeatures(n_features=30, random_state=0), as_dataset(X, X[:, 0] > 0)).passes[0].held
    assert held["sums of parts of the rows"] > 0


def test_a_store_in_other_blocks_gives_the_same_atoms(tmp_path: Path) -> None:
    X, y = make_friedman1(700, random_state=0)
    stores = [create_dataset(tmp_path / f"{rows}.zarr", X, y, rows_a_block=rows) for rows in (128, 700)]
    fitted = [StepFeatures(n_features=25, random_state=0).fit(store) for store in stores]
    assert fitted[0].atoms_ == fitted[1].atoms_


def test_steps_keep_the_promises_of_learners() -> None:
    check_learner(StepFeatures(n_features=20, depth=2))


def test_weight_two_is_the_row_twice() -> None:
    X, y = make_friedman1(400, random_state=0)
    weight = np.random.default_rng(0).integers(0, 3, 400)
    learner = StepFeatures(n_features=20, random_state=0)
    store = as_dataset(X, y, weight.astype(float))
    weighted = learner.fit(store).machine_
    assert np.isfinite(weighted.predict(X)).all()
    assert weighted.score(X, y) > 0.8


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    X, y = make_friedman1(400, random_state=0)
    model = dkl.KernelRegressor(StepFeatures(n_features=20), solver="newton", alpha="auto", random_state=0).fit(X, y)
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.features_.atoms_ == model.features_.atoms_


def test_a_plan_says_what_the_fit_will_read_and_hold() -> None:
    X, y = make_friedman1(400, random_state=0)
    inside, passes = (plan(StepFeatures(n_features=20, search_rows=rows), as_dataset(X, y)) for rows in (400, None))
    assert inside.n_passes == 2
    assert passes.n_passes > 4
    assert passes.held["histograms"] > 0


def test_the_rule_that_ends_rounds_is_patience() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((600, 3)), rng.standard_normal(600)
    learner = StepFeatures(patience=3, random_state=0).fit(X, y)
    assert "no lower loss on held-out rows in 3 rounds" in learner.message_
    losses = [line["held_out_loss"] for line in learner.history_]
    best = int(np.argmin(losses))
    assert len(losses) - 1 - best >= 3 or losses[best] > losses[-4] * (1 - 1e-3)


def test_a_column_of_one_value_is_no_step_and_none_at_all_is_refused() -> None:
    X, y = make_friedman1(300, random_state=0)
    X[:, 2] = 7.0
    learner = StepFeatures(n_features=20, random_state=0).fit(X, y)
    assert 2 not in learner.feature_map_.projection.columns
    with pytest.raises(ValueError, match="no column takes two values"):
        StepFeatures(random_state=0).fit(np.ones((50, 2)), np.arange(50.0))


def test_losses_are_for_classes_or_for_numbers() -> None:
    X, y = make_friedman1(100, random_state=0)
    with pytest.raises(ValueError, match=r"log_loss' is not one of .* which rounds have for numbers"):
        StepFeatures(loss="log_loss").fit(X, y)
    with pytest.raises(ValueError, match=r"poisson' is not one of .* which rounds have for 3 classes"):
        StepFeatures(loss="poisson")._problem(as_dataset(X, np.arange(100) % 3, task="classification"), None, 0)


def test_rounds_by_passes_that_are_stopped_keep_the_best_of_those_so_far() -> None:
    X, y = make_friedman1(400, random_state=0)
    seen = []

    def enough(event: dkl.Event) -> None:
        if event.name == "rounds" and event.kind == "advanced" and event.done == 7:
            seen.append(event.model())
            raise dkl.StopRequested("seven passes are enough")

    learner = StepFeatures(n_features=40, search_rows=None, dtype="float64", random_state=0)
    stopped = clone(learner).set_params(progress=enough).fit(X, y)
    assert stopped.message_.startswith("seven passes are enough: ")
    assert len(stopped.history_) == 3
    assert stopped.transform(X).shape[1] < 40
    np.testing.assert_array_equal(seen[0].transform(X), stopped.transform(X))
    assert 0.5 < stopped.machine_.score(X, y) < learner.fit(X, y).machine_.score(X, y)


def test_a_driver_needs_no_rows_to_say_its_memory() -> None:
    problem = StepFeatures(n_features=20)._problem(as_dataset(*make_friedman1(100, random_state=0)), None, 0)
    assert RoundsDriver().memory(problem, 100, 40)["histograms"] > 0


def rises(model: Any, X: np.ndarray, column: int) -> np.ndarray:
    """The changes of decision values along a grid of one column, at some rows."""
    grid = np.linspace(X[:, column].min() - 1.0, X[:, column].max() + 1.0, 60)
    changed = np.repeat(X[:15], len(grid), axis=0)
    changed[:, column] = np.tile(grid, 15)
    scores = model.decision_function(changed) if hasattr(model, "classes_") else model.predict(changed)
    return np.diff(scores.reshape(15, -1), axis=1)


@pytest.mark.parametrize("search_rows", [200_000, None])
@pytest.mark.parametrize("is_classified", [False, True])
def test_a_monotone_column_never_turns_back(is_classified: bool, search_rows: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(800, 3))
    f = (
        np.sin(3.0 * X[:, 0])
        + X[:, 0] * (X[:, 2] > 0)
        - X[:, 1]
        + np.cos(4.0 * X[:, 1])
        + 0.2 * rng.standard_normal(800)
    )
    y = np.where(f > 0.0, "b", "a") if is_classified else f
    plain = StepFeatures(n_features=60, dtype="float64", search_rows=search_rows, random_state=0)
    free = plain.fit(X, y).machine_
    assert rises(free, X, 0).min() < -0.05
    assert rises(free, X, 1).max() > 0.05
    model = clone(plain).set_params(monotone={0: 1, 1: -1}).fit(X, y).machine_
    assert rises(model, X, 0).min() >= -1e-9
    assert rises(model, X, 1).max() <= 1e-9
    # both still move, and the third column is free
    assert rises(model, X, 0).max() > 0.05
    assert rises(model, X, 1).min() < -0.05
    columns = model.feature_map_.projection.columns
    assert not ((columns == 0).any(axis=1) & (columns == 1).any(axis=1)).any()
    assert 0.5 < model.score(X, y) < free.score(X, y)
    model.save(tmp_path / "model.zarr")
    assert dkl.load_model(tmp_path / "model.zarr").features_.monotone == {0: 1, 1: -1}


def test_monotone_columns_are_named_and_what_they_cannot_be_is_refused() -> None:
    X, y = make_friedman1(300, random_state=0)
    frame = pd.DataFrame(X[:, :4], columns=list("abcd"))
    named = StepFeatures(n_features=20, monotone={"d": 1, "a": 1}, random_state=0).fit(frame, y)
    numbered = StepFeatures(n_features=20, monotone={3: 1, 0: 1}, random_state=0).fit(X[:, :4], y)
    assert named.atoms_ == [re.sub(r"x\[(\d)\]", lambda found: "abcd"[int(found[1])], atom) for atom in numbered.atoms_]
    assert (named.coef_[0][(np.isin(named.feature_map_.projection.columns, [0, 3])).any(axis=1)] >= 0.0).all()
    for monotone, rows, message in (
        ({"age": 1}, frame, "no column 'age' of numbers; they are"),
        ({"a": 1}, X, "they have no names: give their numbers"),
        ({12: 1}, X, "no column 12; there are 10, counted from 0"),
        ({0: 2}, X, r"monotone\[0\] is 2; it must be 1"),
    ):
        with pytest.raises(ValueError, match=message):
            StepFeatures(monotone=monotone).fit(rows, y)
    with pytest.raises(ValueError, match="the targets are 3 classes"):
        StepFeatures(monotone={0: 1}).fit(X, np.arange(300) % 3)
    with pytest.raises(ValueError, match=r"StepFeatures\(monotone=...\) would not keep its word; .* machine_"):
        dkl.KernelRegressor(StepFeatures(monotone={0: 1})).fit(X, y)


def test_the_model_of_bags_is_the_mean_of_rounds_that_others_judge() -> None:
    X, y = make_friedman1(400, random_state=0)
    bagged = StepFeatures(2, n_features=25, bags=6, dtype="float64", random_state=3).fit(X, y)
    each = bagged.transform(X) @ np.moveaxis(bagged.bag_coef_, 2, 1)
    columns = bagged.feature_map_.projection.factors
    assert len(set(columns)) == len(columns) <= 6 * 25
    np.testing.assert_allclose(bagged.machine_.predict(X), (each.mean(axis=0) + bagged.intercept_)[:, 0], rtol=1e-9)
    # the first bag is the fit without bags; the sixth judges by another seed, since five shares are all rows
    alone = StepFeatures(2, n_features=25, dtype="float64", random_state=3).fit(X, y)
    first = alone.transform(X) @ alone.coef_.T
    np.testing.assert_allclose(each[0] - each[0].mean(), first - first.mean(), rtol=1e-6, atol=1e-6)
    rows, seed = np.arange(400), bagged.seed_
    targets = [bagged._bag_targets(NUMBERS, bag, seed) for bag in range(6)]
    judges = np.array([own.held(rows) for own in targets])
    assert (judges[:5].sum(axis=0) == 1).all()
    assert 0 < (judges[5] & judges[0]).sum() < judges[5].sum()
    assert not any(own.left_out(rows).any() for own in targets)


def test_bags_whose_judges_are_given_leave_out_rows_of_their_own() -> None:
    X, y = make_friedman1(300, random_state=0)
    learner = StepFeatures(bags=3, random_state=0)
    learner._context = FitContext(withheld=HeldOut(0.25, 7))
    rows = np.arange(300)
    targets = [learner._bag_targets(NUMBERS, bag, 0) for bag in range(3)]
    block = next(iter(blocks_of(X, y, rows=300)))
    seen = []
    for own in targets:
        _, learned, held = HeldTargets(NUMBERS, own.held, own.left_out)(block)
        np.testing.assert_array_equal(held > 0, HeldOut(0.25, 7).mask(rows))
        assert not (learned[held > 0] > 0).any()
        seen.append(learned > 0)
    assert all(0.5 < own.sum() / 225 < 0.95 for own in seen)
    assert (seen[0] != seen[1]).any()
    # of rows with times the newest judge every bag
    times = of_times(rows, 300)
    learner._context = FitContext()
    newest = [learner._bag_targets(NUMBERS, bag, 0).held(times) for bag in range(3)]
    np.testing.assert_array_equal(newest[0], newest[2])
    assert newest[0][:50].all()
    assert not newest[0][100:].any()
