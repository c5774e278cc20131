"""alpha="auto": candidates are fitted without the rows that judge them, the best one is taken, all rows are fitted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from sklearn.svm import LinearSVC

from dkl.data.coerce import as_dataset
from dkl.kernels.gram import packed_size
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.kernels.threads import usable_cores
from dkl.linear import head
from dkl.linear.fitting import subsample_problem
from dkl.linear.head import _FACTORS, NewtonDriver, NewtonProblem, NewtonState
from dkl.linear.judge import (
    PENALTIES,
    Candidates,
    Folds,
    PenaltyChoice,
    clear_gain,
    mean_over_folds,
    penalty_candidates,
)
from dkl.linear.minibatches import HeldOut
from dkl.linear.sums import candidate_losses, candidate_scores, held_out_block
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.planning import plan
from dkl.solvers import systems
from tests.definitions import linear as definition
from tests.linear.problems import blocks_of, feature_map, play, rows, summed

HELD_OUT = HeldOut(0.2, 3)
ENOUGH = 900
A_HINGE = len(PENALTIES["squared_hinge"])


def base_problem(loss: str, K: int, n: float) -> NewtonProblem:
    classes = loss == "squared_hinge"
    models = np.array([1]) if classes and K == 2 else np.arange(K)
    return NewtonProblem(feature_map(4), NewtonTargets(models, K if classes else None), n, 1.0, loss, dtype="float64")  # type: ignore[arg-type]


def targets_of(loss: str, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return codes if loss == "squared_hinge" else np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]])


def exact(candidates: Candidates) -> Candidates:
    return replace(candidates, problem=replace(candidates.problem, decrement=0.0, tol=1e-9, max_steps=50))


def played(candidates: Candidates, blocks: Any) -> NewtonState:
    return play(NewtonDriver(), candidates.problem, blocks)[0]


def judgement(candidates: Candidates, state: NewtonState, blocks: Any) -> dict[str, np.ndarray]:
    record = candidates.judged(state)
    parts = [record.function(block, record.operands) for block in blocks]
    total = {name: np.sum([part[name] for part in parts], axis=0) for name in parts[0]}
    assert {name: value.shape for name, value in total.items()} == {
        name: accumulator.shape for name, accumulator in record.accumulators.items()
    }
    return total


def test_folds_are_disjoint_shares_and_the_first_is_what_is_held_out() -> None:
    row_id = np.arange(20_000)
    folds = Folds(HELD_OUT, 4)(row_id)
    np.testing.assert_array_equal(folds == 0, HELD_OUT.mask(row_id))
    counts = np.array([(folds == fold).sum() for fold in range(-1, 4)])
    np.testing.assert_allclose(counts, 4_000, atol=4 * np.sqrt(20_000 * 0.2 * 0.8))
    np.testing.assert_array_equal(Folds(HELD_OUT, 4)(row_id[7:30]), folds[7:30])


def test_candidates_of_many_rows_see_a_share_of_them_and_are_judged_by_others() -> None:
    base, n = base_problem("squared_hinge", 2, 1e6), 1_000_000
    made = penalty_candidates(base, HeldOut(0.1, 0), n_rows=n, square_length=1.0, start=None)
    folds = made.folds(np.arange(n))
    np.testing.assert_allclose([(folds == 0).sum(), (folds == -1).sum()], [50_000, 20_000], rtol=0.05)
    assert set(folds) == {0, -1, -2}
    seen = made.problem.targets.seen(np.arange(n))
    assert seen is not None
    np.testing.assert_array_equal(seen, np.repeat(folds[:, None] == -1, A_HINGE, axis=1))


def test_the_penalty_of_many_classes_is_told_apart_on_features_whose_hessians_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = base_problem("squared_hinge", 3, 80.0)
    X, kept, start = rows(80, 3)[0], 5, np.ones((3, base.width))
    monkeypatch.setattr("dkl.linear.head._HESSIAN_BYTES", 3 * 8 * packed_size(0, 2 * kept + 2))
    made = penalty_candidates(base, HELD_OUT, n_rows=1e4, square_length=1.0, start=start)
    assert made.problem.start is None
    phi, first = (map_rows(X, of.feature_map, "float64") for of in (base, made.problem))
    np.testing.assert_allclose(np.sum(first**2, axis=1), np.sum(phi**2, axis=1))
    same = [*range(kept), *range(8, 8 + kept)]
    np.testing.assert_allclose(first, phi[:, same] * np.sqrt(8 / kept), rtol=1e-12)


def test_rows_that_no_model_sees_are_as_if_they_were_not_there() -> None:
    X, codes = rows(80, 2)
    problem = replace(base_problem("squared_hinge", 2, 80.0), alpha=1e-2)
    thin = replace(problem.targets, folds=Folds(HELD_OUT, 1, 0.4), fold=np.array([0]))
    seen = Folds(HELD_OUT, 1, 0.4)(np.arange(80)) == -1
    state, _ = play(NewtonDriver(), replace(problem, targets=thin), blocks_of(X, codes, 30))
    alone, _ = play(NewtonDriver(), problem, blocks_of(X[seen], codes[seen], 30))
    np.testing.assert_allclose(state.coefficients, alone.coefficients, atol=1e-9)


@pytest.mark.parametrize("n_rows", [10, 400, 900, 6_000, 1_000_000])
def test_few_rows_are_judged_in_more_folds(n_rows: int) -> None:
    base = base_problem("squared_hinge", 2, n_rows)
    made = penalty_candidates(base, HeldOut(0.1, 0), n_rows=n_rows, square_length=1.0, start=None)
    judged = made.folds.count * 0.1 * n_rows
    assert 1 <= made.folds.count <= 5
    assert judged >= ENOUGH or made.folds.count == 5
    assert (made.folds.count - 1) * 0.1 * n_rows < ENOUGH


@pytest.mark.parametrize("preferred", [0.01, 1.0, 1e4])
def test_near_a_penalty_that_is_known_only_its_neighbours_are_tried(preferred: float) -> None:
    base = base_problem("squared_error", 2, 400)
    every = penalty_candidates(base, HELD_OUT, n_rows=400, square_length=2.0, start=None)
    # the same strengths of features of another length, of which one did best
    near = PenaltyChoice(7.0 * every.alphas, -np.abs(np.log(every.strengths / preferred)), np.zeros(1), every.strengths)
    few = penalty_candidates(base, HELD_OUT, n_rows=400, square_length=2.0, start=None, near=near)
    best = int(np.argmin(np.abs(np.log(every.strengths / preferred))))
    first = min(max(best - 1, 0), len(every.alphas) - 3)
    np.testing.assert_allclose(few.alphas, every.alphas[first : first + 3])
    np.testing.assert_array_equal(few.strengths, every.strengths[first : first + 3])


@pytest.mark.parametrize(("loss", "K"), [("squared_hinge", 2), ("squared_hinge", 3), ("squared_error", 2)])
def test_a_candidate_is_the_optimum_of_the_rows_that_it_sees(loss: str, K: int) -> None:
    X, codes = rows(120, K)
    y, base = targets_of(loss, X, codes), base_problem(loss, K, 120.0)
    candidates = exact(penalty_candidates(base, HELD_OUT, n_rows=120, square_length=1.0, start=None))
    state = played(candidates, blocks_of(X, y, 50))
    K, A, F = candidates.n_outputs, len(candidates.alphas), candidates.folds.count
    assert F == 5
    found, folds = state.coefficients.reshape(K, A, F, -1), candidates.folds(np.arange(120))
    for f in (0, 3):
        seen = folds != f
        alone = replace(base, alpha=candidates.alphas[A - 1], tol=1e-9)
        expected, _ = play(NewtonDriver(), alone, blocks_of(X[seen], y[seen], 50))
        np.testing.assert_allclose(
            found[:, A - 1, f], expected.coefficients, atol=1e-5 * np.abs(expected.coefficients).max()
        )


@pytest.mark.parametrize(("loss", "K"), [("squared_hinge", 2), ("squared_hinge", 3), ("squared_error", 2)])
def test_scores_are_counted_row_by_row(loss: str, K: int) -> None:
    X, codes = rows(90, K)
    weight = np.random.default_rng(1).integers(1, 4, 90).astype(float)
    y, base = targets_of(loss, X, codes), base_problem(loss, K, weight.sum())
    candidates = penalty_candidates(base, HELD_OUT, n_rows=90, square_length=1.0, start=None)
    blocks = blocks_of(X, y, 40, weight)
    state = played(candidates, blocks)
    sums = judgement(candidates, state, blocks)
    phi = np.hstack([map_rows(X, base.feature_map, "float64"), np.ones((90, 1))])
    expected = definition.held_out_scores(phi, y, weight, candidates, state)
    # one step leads to the optimum of squared errors: where it starts is no candidate's
    expected["loss"] = expected["loss"][1 if loss == "squared_error" else 0 :]
    np.testing.assert_allclose(sums["loss"], expected["loss"], rtol=1e-10)
    np.testing.assert_allclose(sums["weight"], expected["weight"])
    choice = candidates.choose(state, sums)
    losses = expected["loss"].reshape(len(expected["loss"]), len(candidates.alphas), -1).sum(axis=2)
    losses = losses / expected["weight"].reshape(len(candidates.alphas), -1).sum(axis=1)
    scores = np.max(1.0 - losses, axis=0)
    np.testing.assert_allclose(choice.scores, scores, rtol=1e-10)
    assert choice.alpha == candidates.alphas[np.argmax(scores)]


def test_of_equal_scores_the_strongest_penalty_is_taken() -> None:
    base = base_problem("squared_hinge", 2, 60.0)
    candidates = penalty_candidates(base, HELD_OUT, n_rows=60, square_length=2.0, start=None)
    np.testing.assert_allclose(candidates.alphas, 2.0 / (60.0 * np.array(PENALTIES["squared_hinge"])))
    state, F = NewtonDriver().init(candidates.problem), candidates.folds.count
    losses = np.full(A_HINGE, 0.2)
    losses[0] = 0.4
    total = np.repeat([losses, np.full(A_HINGE, 0.8)], F, axis=1) * 5.0
    choice = candidates.choose(state, {"loss": total, "weight": np.full(A_HINGE * F, 5.0)})
    assert choice.alpha == candidates.alphas[1]
    np.testing.assert_allclose(choice.scores, 1.0 - losses)


def test_without_a_held_out_row_there_is_nothing_to_choose_by() -> None:
    candidates = penalty_candidates(
        base_problem("squared_hinge", 2, 3.0), HELD_OUT, n_rows=3, square_length=1.0, start=None
    )
    nothing = {"loss": np.zeros((2, 5 * A_HINGE)), "weight": np.zeros(5 * A_HINGE)}
    with pytest.raises(ValueError, match=r"validation_fraction=0\.2 of so few rows holds out none"):
        candidates.choose(NewtonDriver().init(candidates.problem), nothing)


def test_a_start_near_the_optimum_saves_passes_and_ends_at_the_same_optimum() -> None:
    X, codes = rows(300, 3)
    blocks, base = blocks_of(X, codes, 100), replace(base_problem("squared_hinge", 3, 300.0), alpha=1e-3)
    from_zero, cold = play(NewtonDriver(), base, blocks)
    nearby = replace(base, start=from_zero.coefficients * 1.001, decrement=1e-9)
    warm_state, warm = play(NewtonDriver(), nearby, blocks)
    assert warm <= 3 < cold
    np.testing.assert_allclose(warm_state.solution(nearby), from_zero.coefficients, atol=1e-5)


def test_a_step_that_promises_little_is_the_last_and_is_taken() -> None:
    X, codes = rows(300, 2)
    blocks, base = blocks_of(X, codes, 100), replace(base_problem("squared_hinge", 2, 300.0), alpha=1e-3)
    best, passes = play(NewtonDriver(), base, blocks)
    loose = replace(base, decrement=1e-2)
    state, fewer = play(NewtonDriver(), loose, blocks)
    assert fewer < passes
    start = np.linalg.norm(state.coefficients - best.coefficients)
    assert np.linalg.norm(state.solution(loose) - best.coefficients) < 0.3 * start


def test_fixed_hessians_are_summed_once_and_lead_to_the_same_optimum() -> None:
    X, codes = rows(300, 3)
    blocks, base = blocks_of(X, codes, 100), replace(base_problem("squared_hinge", 3, 300.0), alpha=1e-2)
    best, _ = play(NewtonDriver(), base, blocks)
    start = np.zeros((3, base.width)) + 0.1
    fixed = replace(base, start=start, fixed=True, max_steps=400, tol=1e-9)
    driver, state, hessians = NewtonDriver(), NewtonDriver().init(fixed), []
    while records := driver.request(fixed, state):
        hessians.append(sum("hessian" in record.accumulators for record in records))
        state = driver.step(fixed, state, [summed(record, blocks) for record in records])
    assert hessians[0] == 1
    assert not any(hessians[1:])
    np.testing.assert_allclose(state.coefficients, best.coefficients, atol=1e-6)
    # three Hessians of 64 MiB are not held at once
    assert not replace(fixed, feature_map=feature_map(4, 2_000)).keeps_hessians


def test_candidates_of_several_outputs_end_below_where_they_start() -> None:
    X, codes = rows(9_000, 3)
    base = base_problem("squared_hinge", 3, 9_000.0)
    start, _ = play(NewtonDriver(), replace(base, alpha=1e-1), blocks_of(X, codes, 3_000))
    made = penalty_candidates(base, HeldOut(0.1), n_rows=9_000, square_length=1.0, start=start.coefficients)
    assert made.problem.keeps_hessians
    driver, blocks = NewtonDriver(), blocks_of(X, codes, 3_000)
    first = driver.step(made.problem, driver.init(made.problem), _passed(driver, made.problem, blocks))
    state = played(made, blocks)
    assert np.all(state.objective <= first.objective)
    exact_state = played(replace(made, problem=replace(made.problem, fixed=False, max_steps=60, decrement=0.0)), blocks)
    gained = (first.objective - state.objective) / (first.objective - exact_state.objective)
    assert np.median(gained) > 0.9


def test_a_gain_is_clear_where_chance_hardly_makes_it() -> None:
    def choices(scores: np.ndarray) -> list[PenaltyChoice]:
        return [PenaltyChoice(np.ones(2), one, np.zeros((1, 1))) for one in scores]

    generator = np.random.default_rng(0)
    theirs = generator.normal(size=(5, 2))
    # the second penalty is the better one of either in the mean
    ours = theirs + np.array([[-1.0, 0.3]]) + generator.normal(scale=0.1, size=(5, 2))
    theirs[:, 0] -= 10.0
    assert clear_gain(choices(ours), choices(theirs))
    assert not clear_gain(choices(theirs), choices(ours))
    by_chance = 0
    for _ in range(2_000):
        noise = generator.normal(size=(2, 5, 1)) + generator.normal(size=(1, 5, 1))
        by_chance += clear_gain(choices(noise[0]), choices(noise[1]))
    assert by_chance / 2_000 == pytest.approx(0.025, abs=4 * np.sqrt(0.025 / 2_000))


def _passed(driver: NewtonDriver, problem: NewtonProblem, blocks: Any) -> list[Any]:
    return [summed(record, blocks) for record in driver.request(problem, driver.init(problem)) or ()]


def test_float32_scores_end_where_float64_ones_do() -> None:
    X, codes = rows(400, 2)
    problem = replace(base_problem("squared_hinge", 2, 400.0), alpha=1e-4, dtype="float32", decrement=1e-10)
    state, _ = play(NewtonDriver(), problem, blocks_of(X, codes, 150))
    svm = LinearSVC(C=1 / (1e-4 * 400), tol=1e-10, max_iter=100_000, intercept_scaling=1e3)
    svm.fit(map_rows(X, problem.feature_map, "float64"), codes)
    np.testing.assert_allclose(state.solution(problem)[0, :-1], svm.coef_[0], rtol=1e-3)


@pytest.mark.parametrize(("K", "width"), [(10, 1001), (10, 4001), (3, 6001)])
@pytest.mark.parametrize("warm", [False, True])
def test_wide_heads_of_many_classes_ask_for_small_sums_only(K: int, width: int, warm: bool) -> None:
    """4,000 features x 10 classes: never more than 64 MiB an accumulator, nor more Hessians than fill one of them."""
    base = replace(base_problem("squared_hinge", K, 60_000.0), feature_map=feature_map(4, (width - 1) // 2))
    start = np.ones((K, width)) if warm else None
    candidates = penalty_candidates(base, HeldOut(0.1), n_rows=60_000, square_length=1.0, start=start).problem
    driver, final = NewtonDriver(), replace(base, start=start)
    for problem, is_begun in product((candidates, final), (False, True)):
        ones, state = np.ones(problem.n_models), driver.init(problem)
        if is_begun:
            state = replace(state, first_gradient=ones, gradient=ones, objective=ones, slope=-ones)
        records = driver.request(problem, state)
        assert records is not None
        sizes = [accumulator.nbytes for record in records for accumulator in record.accumulators.values()]
        assert max(sizes) <= 64 << 20
        hessians = [record.accumulators["hessian"] for record in records]
        assert sum(one.nbytes for one in hessians) <= max(64 << 20, 8 * packed_size(0, problem.width))
        assert sum(one.shape[1] for one in hessians) == packed_size(0, problem.width)


def test_losses_of_candidates_are_means_over_outputs() -> None:
    models = np.zeros((1, 3, 1, 3))
    models[0, 0, 0] = [0.0, 0.0, 3.0]
    targets = np.array([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]])
    found = candidate_losses(candidate_scores(np.ones((2, 2)), models), targets, name="squared_hinge")
    np.testing.assert_allclose(found[0, :, 0], [(0.0 + 1.0 + 1.0) / 3.0, (16.0 + 1.0 + 1.0) / 3.0])


def test_a_start_on_a_share_of_the_rows_leads_a_given_penalty_to_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fewer full passes, and as near as from zero: the gradient shrinks relative to that at zero."""
    X, codes = rows(2_000, 2)
    starts = []

    def noted(*given: Any) -> Any:
        starts.append(subsample_problem(*given))
        return starts[-1]

    monkeypatch.setattr("dkl.linear.fitting.subsample_problem", noted)
    options: dict[str, Any] = {"loss": "squared_hinge", "solver": "newton", "alpha": 1e-3, "random_state": 0}
    features = RandomFeatures(n_features=16, random_state=0)
    plain = KernelClassifier(features, **options).fit(X, codes)
    monkeypatch.setattr("dkl.linear.fitting._LEAST_SUBSAMPLED", 400)
    monkeypatch.setattr("dkl.linear.fitting._MOST_SUBSAMPLED", 0.3)
    begun = KernelClassifier(features, **options).fit(X, codes)
    assert [start is None for start in starts] == [True, False]
    svm = LinearSVC(C=1 / (1e-3 * 2_000), tol=1e-10, max_iter=100_000, intercept_scaling=1e3)
    svm.fit(plain.features_.transform(X), codes)
    for model in (plain, begun):
        np.testing.assert_allclose(model.linear_.coef_, svm.coef_, atol=1e-4)
        assert "converged" in model.message_


def test_a_start_is_found_on_rows_that_are_fitted_and_not_on_those_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share is smaller than the one held out for calibration by the same seed, and so would lie within it."""
    X, codes = rows(2_000, 2)
    monkeypatch.setattr("dkl.linear.fitting._LEAST_SUBSAMPLED", 100)
    options: dict[str, Any] = {"loss": "squared_hinge", "solver": "newton", "alpha": 1e-3, "random_state": 0}
    features = RandomFeatures(n_features=4, random_state=0)
    begun = KernelClassifier(features, calibrate=True, **options).fit(X, codes)
    monkeypatch.setattr("dkl.linear.fitting._MOST_SUBSAMPLED", 0.0)
    plain = KernelClassifier(features, calibrate=True, **options).fit(X, codes)
    for model in (plain, begun):
        assert "converged" in model.message_
    np.testing.assert_allclose(begun.linear_.coef_, plain.linear_.coef_, atol=1e-4)


def test_blocks_without_held_out_rows_add_nothing() -> None:
    X, codes = rows(5, 2)
    candidates = penalty_candidates(
        base_problem("squared_hinge", 2, 5.0), HeldOut(1e-9), n_rows=5, square_length=1.0, start=None
    )
    record = candidates.judged(NewtonDriver().init(candidates.problem))
    (block,) = blocks_of(X, codes, 5)
    sums = held_out_block(block, record.operands)
    assert not sums["loss"].any()
    assert not sums["weight"].any()


def test_steps_on_a_share_of_the_rows_lead_near_the_optimum_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dkl.linear.fitting._LEAST_SUBSAMPLED", 400)
    monkeypatch.setattr("dkl.linear.fitting._MOST_SUBSAMPLED", 0.3)
    X, codes = rows(2_000, 3)
    blocks, base = blocks_of(X, codes, 500), replace(base_problem("squared_hinge", 3, 2_000.0), alpha=1e-3)
    subsample = subsample_problem(base, 2_000, 7, HeldOut())
    assert subsample is not None
    np.testing.assert_allclose(Folds(HeldOut(0.2, 7), 0, 0.2)(np.arange(2_000)).mean(), -1.8, atol=0.05)
    start = play(NewtonDriver(), subsample, blocks)[0].solution(subsample)
    best, _ = play(NewtonDriver(), base, blocks)
    fine = replace(base, start=start, decrement=1e-3)
    state, passes = play(NewtonDriver(), fine, blocks)
    _, from_zero = play(NewtonDriver(), replace(fine, start=None), blocks)
    assert passes <= 3 < from_zero
    np.testing.assert_allclose(state.solution(fine), best.coefficients, atol=0.02 * np.abs(best.coefficients).max())
    assert subsample_problem(base, 1_300, 7, HeldOut()) is None
    assert subsample_problem(replace(base, loss="squared_error"), 1e6, 7, HeldOut()) is None


@pytest.mark.parametrize("started", [False, True])
def test_sums_of_folds_judge_as_a_pass_over_their_rows_does(started: bool) -> None:
    """Several targets, weights, any start: one pass of sums by fold gives the out-of-fold losses of every penalty."""
    X, _ = rows(150, 2)
    weight = np.random.default_rng(1).integers(1, 4, 150).astype(float)
    y, base = targets_of("squared_error", X, np.zeros(150)), base_problem("squared_error", 2, weight.sum())
    start = np.random.default_rng(2).normal(size=(2, base.width)) if started else None
    # folds of a part of the rows: the others are seen by all models
    candidates = penalty_candidates(base, HeldOut(0.15, 3), n_rows=150, square_length=1.0, start=start)
    blocks = blocks_of(X, y, 40, weight)
    state, passes = play(NewtonDriver(), candidates.problem, blocks)
    assert passes == 1
    ours, expected = candidates.judged_by_sums(state), judgement(candidates, state, blocks)
    assert ours is not None
    np.testing.assert_allclose(ours["loss"], expected["loss"], rtol=1e-8)
    np.testing.assert_allclose(ours["weight"], expected["weight"])


@pytest.mark.parametrize("noise", [0.0, 1e-3, 0.3])
def test_where_float32_products_lose_the_digits_a_pass_judges(noise: float) -> None:
    generator, smooth = np.random.default_rng(0), feature_map(4, 30)
    X = generator.normal(size=(400, 4))
    y = map_rows(X, smooth, "float64") @ generator.normal(size=(60, 1)) + noise * generator.normal(size=(400, 1))
    base = replace(base_problem("squared_error", 1, 400.0), feature_map=smooth, dtype="float32")
    candidates = penalty_candidates(base, HeldOut(0.2, 3), n_rows=400, square_length=1.0, start=None)
    blocks = blocks_of(X, y, 100)
    state, _ = play(NewtonDriver(), candidates.problem, blocks)
    sums, by_pass = candidates.judged_by_sums(state), judgement(candidates, state, blocks)
    assert (sums is None) == (noise < 0.1)
    if sums is not None:
        np.testing.assert_allclose(sums["loss"], by_pass["loss"], rtol=1e-3)
        assert candidates.choose(state, sums).best == candidates.choose(state, by_pass).best


@pytest.mark.parametrize(
    ("loss", "alpha", "nbytes"),
    [("squared_error", "auto", 50_000), ("squared_hinge", 1e-3, 5_000)],
)
def test_gradients_of_more_models_than_one_sum_holds_are_summed_in_parts(
    loss: str, alpha: Any, nbytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many classes each penalty and fold has a model a class: the same models, whether or not one sum holds all.

    Gradients of 30 classes take 10 kB, those of all penalties and folds 600 kB.
    """
    generator = np.random.default_rng(0)
    y = np.repeat(np.arange(30), 20)
    X = generator.normal(size=(30, 5))[y] + 0.3 * generator.normal(size=(len(y), 5))
    features = RandomFeatures(n_features=40, random_state=0)
    given = {"loss": loss, "solver": "newton", "alpha": alpha, "calibrate": False, "random_state": 0}
    whole = KernelClassifier(features, **given).fit(X, y)
    for name in ("_HESSIAN_BYTES", "_GRADIENT_BYTES"):
        monkeypatch.setattr(f"dkl.linear.head.{name}", nbytes)
    monkeypatch.setattr("dkl.passes.memory.LARGEST_ACCUMULATOR", nbytes)
    parts = KernelClassifier(features, **given)
    assert plan(parts, X, y).n_passes >= 1
    parts.fit(X, y)
    assert parts.alpha_ == whole.alpha_
    # steps end when the next one promises little
    np.testing.assert_allclose(parts.linear_.coef_, whole.linear_.coef_, atol=1e-4)


def test_the_log_loss_of_too_many_classes_and_features_says_how_many_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """All classes are one model, whose gradient is one sum."""
    monkeypatch.setattr("dkl.linear.head._GRADIENT_BYTES", 8 * 5 * 21)
    X, y = np.random.default_rng(0).normal(size=(100, 2)), np.arange(100) % 5
    for n_features, fits in ((20, True), (22, False)):
        features = RandomFeatures(n_features=n_features, random_state=0)
        machine = KernelClassifier(features, loss="log_loss", solver="newton", alpha=1e-2, calibrate=False)
        if fits:
            machine.fit(X, y)
            continue
        for asked in (machine.fit, partial(plan, machine)):
            with pytest.raises(ValueError, match="log_loss' of 5 classes is fitted to at most 20 features, and these"):
                asked(X, y)


@pytest.mark.parametrize(("loss", "alpha"), [("squared_error", "auto"), ("squared_hinge", 1e-2), ("log_loss", "auto")])
def test_the_planned_seconds_of_the_driver_are_those_of_its_factors(
    loss: str, alpha: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cholesky factors of w unknowns take w^3 / 3 operations each; a plan expects about as many as a fit makes."""
    factorise, made = systems.factorise, []

    def counted(matrix: np.ndarray) -> bool:
        made.append(len(matrix))
        return factorise(matrix)

    X, codes = rows(600, 3)
    features = RandomFeatures(n_features=40, random_state=0)
    given = {"loss": loss, "solver": "newton", "alpha": alpha, "calibrate": False, "random_state": 0}
    machine = KernelClassifier(features, **given)
    monkeypatch.setattr(head, "_TRIAL_NUMBER_S", 0.0)
    seconds = sum(driving(X[:2], 1e9) for driving in machine.replayed(as_dataset(X, codes)).driving)
    planned = seconds * _FACTORS * usable_cores() * 1e9
    monkeypatch.setattr(systems, "factorise", counted)
    machine.fit(X, codes)
    found = sum(width**3 / 3.0 for width in made)
    assert 0.33 * found < planned < 3.0 * found


def test_penalties_that_every_fold_has_tried_are_compared_for_searched_features_of_several_classes() -> None:
    """Jointly fitted classes end, in each fold, after the first penalty that gains nothing."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    codes = np.digitize(np.sin(2.0 * X[:, 0]) + rng.normal(size=300), [-0.5, 0.5])
    features = MarginFeatures(n_features=30, random_state=0)
    machine = KernelClassifier(features, alpha="auto", solver="newton", loss="log_loss", random_state=0)
    assert machine.fit(X, codes).alpha_ in machine.alphas_
    short, long = (
        PenaltyChoice(np.arange(n, 0.0, -1.0), np.arange(float(n)), np.zeros((1, 2)), fold_scores=np.ones((n, 1)))
        for n in (2, 4)
    )
    assert mean_over_folds([long, short]).alpha == 3.0
