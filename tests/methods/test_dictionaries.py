"""Several dictionaries in the rounds of MarginFeatures: one score, verified on all rows, and one linear model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_iris, make_friedman1

import dkl
from dkl.data.coerce import as_dataset
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.methods.dictionaries.landmarks import LandmarkDictionary
from dkl.methods.frequency_search.frequency_space import FourierSpace
from dkl.methods.frequency_search.harmonic_search import HarmonicSpace
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.rounds import loop
from dkl.methods.rounds.dictionary import SCORE_PENALTY, CandidatePoints, SampleSlopes, greedy_points
from dkl.methods.rounds.driver import RoundsDriver, verified_candidates
from dkl.methods.rounds.loop import HeldTargets, best_round
from dkl.methods.rounds.problem import RoundsProblem, are_old_columns, candidate_map, model_map
from dkl.planning import plan
from dkl.solvers.losses import loss_of
from dkl.solvers.round_losses import round_loss
from dkl.testing import check_dictionary, check_learner
from tests.methods.play import Table, blocks_of, joined, play

ALL = (dkl.Gaussian(), dkl.Steps(), dkl.Landmarks(dkl.Matern(0.5)))


def learner(families: Any = ALL, **parameters: Any) -> dkl.MarginFeatures:
    given = {"n_features": 60, "scaling": "standard", "random_state": 0, **parameters}
    return dkl.MarginFeatures(list(families), **given)


def friedman(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    return make_friedman1(n, noise=0.5, random_state=0)


def some_columns(n: int = 80, m: int = 4, c: int = 6) -> tuple[np.ndarray, ...]:
    """Columns of a model, candidates, weights h and slopes s of two models, s without what the model explains."""
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((n, m)),
        rng.standard_normal((n, c)),
        rng.uniform(0.5, 2.0, n),
        rng.standard_normal((n, 2)),
    )


def test_a_score_is_the_decrease_by_a_newton_step_on_the_point_alone() -> None:
    _, Q, h, s = some_columns()
    system, slopes, pairs = (Q * h[:, None]).T @ Q, Q.T @ s, np.array([[0, 3], [1, 4], [2, 5]])
    scores = CandidatePoints(system, slopes, [pairs]).scores()
    for score, B in zip(scores, pairs, strict=True):
        expected = 0.0
        for k in range(2):
            # the minimum of w'(N + nu) w / 2 - s'w, twice, a column
            w = np.linalg.solve(system[np.ix_(B, B)] + SCORE_PENALTY * np.eye(2), slopes[B, k])
            expected += slopes[B, k] @ w / 2
        assert score == pytest.approx(expected, rel=1e-5)


def test_taking_a_point_leaves_the_others_what_it_does_not_explain() -> None:
    _, Q, h, s = some_columns()
    candidates = CandidatePoints((Q * h[:, None]).T @ Q, Q.T @ s, [np.arange(6)[:, None]])
    candidates.take(2)
    # the other columns less their projections on column 2 in the inner product of h, with the ridge nu
    q = Q[:, 2]
    shares = (q * h) @ Q / ((q * h) @ q + SCORE_PENALTY)
    for j in (0, 1, 3, 4, 5):
        left = (Q[:, j] * h) @ Q[:, j] - shares[j] * ((q * h) @ Q[:, j])
        slope = Q[:, j] @ s - shares[j] * (q @ s)
        assert candidates.scores()[j] == pytest.approx(slope @ slope / (left + SCORE_PENALTY), rel=1e-5)
    assert candidates.scores()[2] == 0.0


def test_of_two_equal_columns_one_is_taken() -> None:
    _, Q, h, s = some_columns(n=4_000)
    Q[:, 1] = Q[:, 0]
    s = s + 5.0 * Q[:, :1] + 0.5 * Q[:, 2:3]
    chosen = greedy_points((Q * h[:, None]).T @ Q, Q.T @ s, [np.arange(6)[:, None]], 2)
    assert set(chosen) in ({0, 2}, {1, 2})


def test_landmarks_are_proposed_among_the_rows_where_the_model_errs() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2_000, 2))
    bump = np.exp(-np.linalg.norm(X - [1.0, -1.0], axis=1) / 0.3)
    source = LandmarkDictionary(dkl.Matern(0.5, 0.3), None)
    found = source.propose(SampleSlopes(X, bump[:, None], np.ones(2_000)), 3, 0)
    assert np.linalg.norm(found - [1.0, -1.0], axis=1).min() < 0.4
    assert all((found[i] == X).all(axis=1).any() for i in range(len(found)))


def test_landmarks_satisfy_the_checks_of_dictionaries() -> None:
    check_dictionary(dkl.Landmarks())


def test_harmonics_compete_in_a_list_as_waves_do(tmp_path: Path) -> None:
    """A product of three columns, among all harmonics up to a degree."""
    X = np.random.default_rng(0).standard_normal((900, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] * X[:, 1] * X[:, 2] > 0.0).astype(int)
    families = [dkl.SphericalHarmonics(4), dkl.Steps(depth=1)]
    learner = dkl.MarginFeatures(families, n_features=40, scaling=None, random_state=0).fit(X[:700], y[:700])
    activations = {part.activation for part, _ in learner.feature_map_.split(learner.coef_)}
    assert "harmonics" in activations
    assert learner.machine_.score(X[700:], y[700:]) > 0.8
    learner.save(tmp_path / "learner.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "learner.zarr").transform(X), learner.transform(X))
    with pytest.raises(ValueError, match=r"each feature of SphericalHarmonics.* depends on all columns"):
        dkl.MarginFeatures(families, monotone={0: 1}).fit(X, y)


def test_harmonics_that_chains_search_are_proposed_as_points_of_a_dictionary() -> None:
    X = np.random.default_rng(0).standard_normal((300, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    space = HarmonicSpace(dkl.SphericalHarmonics(3).pool(4), 3, chains=50, steps=20)
    s = np.sign(X[:, :1] * X[:, 1:2])
    points = space.propose(SampleSlopes(X, s, np.ones(300)), 3, 0)
    found, _ = space.search(X, s / np.abs(s).sum(), 3, 0)
    assert points.shape == (3, 4)
    # rounds keep the points of all dictionaries in one array of floats
    phi = map_rows(X, space.feature_map(points.astype(np.float64)), "float64")
    np.testing.assert_array_equal(phi, map_rows(X, space.feature_map(found), "float64"))


def rounds(*, in_memory: bool, labels: bool = False) -> tuple[RoundsProblem, Table]:
    """Rounds over steps, waves and landmarks on 300 rows, of which a fifth judges."""
    X, y = friedman(300)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    if labels:
        targets = NewtonTargets(np.array([1]), 2)
        y = (y > np.median(y)).astype(np.int64)
    else:
        targets = NewtonTargets(np.array([0]), None, None, np.array([y.mean()]), np.array([y.std()]))
    space = FourierSpace(dkl.Gaussian(3.0).draw(1, 10, 0), dkl.Gaussian(3.0), SearchOptions(chains=10, steps=3))
    problem = RoundsProblem(
        targets=HeldTargets(targets, lambda ids: np.asarray(ids) % 5 == 0),
        n_models=1,
        n_rows=300,
        n_columns=10,
        n_features=40,
        loss=loss_of("log_loss" if labels else "squared_error"),
        search_rows=300,
        in_memory=in_memory,
        features_per_round=7,
        dtype="float64",
        dictionaries=(space, LandmarkDictionary(dkl.Matern(0.5, 2.0), None)),
        has_columns=True,
        growth=0.1,
    )
    return problem, Table(blocks_of(X, y, rows=64))


@pytest.mark.parametrize("labels", [False, True], ids=["numbers", "labels"])
def test_candidates_are_scored_by_what_the_model_does_not_explain_on_all_rows(labels: bool) -> None:
    problem, table = rounds(in_memory=False, labels=labels)
    driver = RoundsDriver()
    state = driver.init(problem)
    while not (state.phase == "search" and len(state.points) > 1):
        state = driver.step(problem, state, table.run(driver.request(problem, state)))
    (sums,) = table.run(driver.request(problem, state))
    state = replace(state, penalties=np.array([0.5]))
    found = verified_candidates(problem, state, sums)
    block = joined(table.blocks)
    y, weight, _ = problem.targets(block)
    Phi = map_rows(block.X, model_map(problem, state), "float64")
    Q = map_rows(block.X, candidate_map(problem, state), "float64")
    # the curvatures are those of the model that the step to the trial began at, the slopes those of the trial
    scores, loss, start = Phi @ state.trials[-1].T, problem.loss, Phi @ state.coefficients.T if labels else 0.0 * y
    h, s = weight * loss.curvature(y, start)[:, 0], -weight[:, None] * loss.slope(y, scores)
    np.testing.assert_allclose(sums["cross"][: Phi.shape[1]], (Phi * h[:, None]).T @ Q, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(state.gram, (Phi * h[:, None]).T @ Phi, rtol=1e-9, atol=1e-9)
    D = np.diag([1e-6, *np.full(Phi.shape[1] - 1, 0.5)])
    # literally: each candidate less its ridge regression on the model's columns
    shares = np.linalg.solve((Phi * h[:, None]).T @ Phi + D, (Phi * h[:, None]).T @ Q)
    residual = Q - Phi @ shares
    np.testing.assert_allclose(found.system, (Q * h[:, None]).T @ residual, rtol=1e-6, atol=1e-6)
    expected = residual.T @ s + shares.T @ D @ state.trials[-1].T
    np.testing.assert_allclose(found.slopes, expected, rtol=1e-6, atol=1e-6)
    assert np.linalg.eigvalsh(found.system).min() > -1e-9


def learned_twice(loss: str) -> tuple[RoundsProblem, Table]:
    """Weighted rows with several targets of a loss where it takes them; the rows that judge are those that teach."""
    rng = np.random.default_rng(0)
    X, f = friedman(200)
    X, f = (X - X.mean(axis=0)) / X.std(axis=0), (f - f.mean()) / f.std()
    options = {"quantiles": (0.2, 0.6)} if loss == "pinball" else {"epsilon": 0.5} if loss == "huber" else {}
    n_models, n_classes = 2, None
    if loss in ("squared_hinge", "log_loss", "softmax"):
        y: np.ndarray = np.digitize(f + 0.5 * rng.standard_normal(200), [-0.4, 0.4])
        n_models = n_classes = 3
    elif loss == "pinball":
        y = f + 0.3 * rng.standard_normal(200)
    else:
        mean = np.exp(np.column_stack([f, 0.5 * f + 1.0]))
        y = rng.poisson(mean) / 1.0 if loss == "poisson" else mean * rng.gamma(3.0, 1.0 / 3.0, mean.shape)
    scale = None if n_classes else np.array([1.0] if loss == "pinball" else [1.0, 2.0])
    models = np.zeros(2, int) if loss == "pinball" else np.arange(n_models)
    targets = NewtonTargets(models, n_classes, None, None if scale is None else np.zeros(len(scale)), scale)
    problem, _ = rounds(in_memory=False)
    problem = replace(
        problem,
        targets=HeldTargets(targets, lambda ids: np.asarray(ids) >= 200),
        n_models=n_models,
        loss=round_loss(loss, **options),
        n_rows=400,
        search_rows=400,
        n_features=20,
        patience=500,
        settling=500,
    )
    weight = rng.integers(1, 4, 200).astype(np.float64)
    blocks = blocks_of(*(np.concatenate([part, part]) for part in (X, y, weight)))
    return problem, Table(blocks)


@pytest.mark.parametrize(
    "loss",
    [
        *("poisson", "pinball", "softmax"),
        *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("gamma", "huber", "log_loss", "squared_hinge")),
    ],
)
def test_rounds_of_every_loss_end_at_the_best_model_on_their_columns(loss: str, monkeypatch: Any) -> None:
    """With rows that judge as they teach, penalties fall to nothing and the model goes on to the optimum."""
    monkeypatch.setattr(loop, "LEAST_GAIN", 1e-6)
    problem, table = learned_twice(loss)
    state = play(RoundsDriver(), problem, table)
    losses = state.series("held_out_loss")
    assert best_round(losses) < len(losses) - 1 or len(losses) > 500
    block = joined(table.blocks)
    y, weight, _ = problem.targets(block)
    Phi = map_rows(block.X, model_map(problem, state), "float64")
    kinds, K = {0, 1} | set(state.source), problem.n_models
    assert kinds == {0, 1}
    assert Phi.shape[1] == state.best.shape[1] > 15

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        f = Phi @ flat.reshape(K, -1).T
        value = weight @ problem.loss.value(y, f).sum(axis=1) / weight.sum()
        return value, ((weight[:, None] * problem.loss.slope(y, f)).T @ Phi).ravel() / weight.sum()

    ours = objective(state.best.ravel())[0]
    best = minimize(
        objective, np.zeros(state.best.size), jac=True, method="L-BFGS-B", options={"maxiter": 20_000, "ftol": 1e-14}
    )
    assert ours == pytest.approx(losses[best_round(losses)], rel=1e-9)
    assert best.fun - 1e-9 <= ours <= best.fun * 1.01
    assert ours < 0.8 * objective(np.zeros(state.best.size))[0]


def test_a_round_takes_the_largest_scores_whatever_dictionary_they_are_of() -> None:
    problem, table = rounds(in_memory=False)
    driver = RoundsDriver()
    state = driver.init(problem)
    while not state.message:
        before = state
        state = driver.step(problem, state, table.run(driver.request(problem, state)))
        added = len(are_old_columns(problem, state, 0, 0)) - len(are_old_columns(problem, before, 0, 0))
        assert added <= max(7, 10)
    assert set(state.source) == {0, 1}
    assert state.n_atoms > 11


def test_rounds_in_memory_are_those_of_passes_over_all_rows() -> None:
    ends = []
    for in_memory in (True, False):
        problem, table = rounds(in_memory=in_memory)
        driver = RoundsDriver()
        state = driver.init(problem)
        while records := driver.request(problem, state):
            state = driver.step(problem, state, table.run(records))
        ends.append((state, len(table.passes)))
    (one, n_one), (other, n_other) = ends
    assert n_one == 1 < n_other
    np.testing.assert_allclose(one.history[:3], other.history[:3], rtol=1e-6)
    assert one.n_atoms == other.n_atoms


def test_a_run_that_was_broken_off_draws_its_sample_again_and_ends_with_the_same_bits() -> None:
    problem, table = rounds(in_memory=False)
    whole, broken = RoundsDriver(), RoundsDriver()
    state = other = whole.init(problem)
    while records := whole.request(problem, state):
        state = whole.step(problem, state, table.run(records))
        # another process after every pass
        broken = RoundsDriver()
        other = broken.step(problem, other, table.run(broken.request(problem, other)))
    for name in ("best", "points", "thresholds", "history"):
        np.testing.assert_array_equal(getattr(other, name), getattr(state, name))


@pytest.mark.slow
def test_dictionaries_that_compete_do_better_than_each_alone() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2_000, 4))
    y = np.sin(4.0 * (X[:, 0] + X[:, 1]) / np.sqrt(2.0)) + 2.0 * (X[:, 2] > 0.3) + 0.1 * rng.standard_normal(2_000)
    scores = [
        learner(families, n_features=100).fit(X[:1_400], y[:1_400]).machine_.score(X[1_400:], y[1_400:])
        for families in (ALL, *([family] for family in ALL))
    ]
    assert scores[0] > 0.97
    assert scores[0] > max(scores[1:]) + 0.03


@pytest.mark.parametrize("families", [ALL, [dkl.Steps(depth=1)], [dkl.Gaussian()], [dkl.Landmarks()]], ids=str)
def test_the_map_and_the_coefficients_are_the_working_model(families: Any) -> None:
    X, y = friedman(300)
    fitted = learner(families, dtype="float64").fit(X, y)
    values = fitted.transform(X) @ fitted.coef_.T + fitted.intercept_
    np.testing.assert_allclose(values[:, 0], fitted.machine_.predict(X), rtol=1e-6, atol=1e-6)
    assert fitted.machine_.score(X, y) > 0.6
    assert fitted.transform(X).shape[1] <= 60
    last = min(line["held_out_loss"] for line in fitted.history_)
    assert last < fitted.history_[0]["held_out_loss"]


@pytest.mark.parametrize("search_rows", [None, 300], ids=["more than all", "all"])
@pytest.mark.parametrize("features", [learner(n_features=20), dkl.StepFeatures(n_features=20)], ids=["list", "steps"])
def test_rows_in_memory_count_by_their_weights(features: Any, search_rows: int | None) -> None:
    X = np.tile(friedman(150)[0], (2, 1))
    y, weight = np.repeat([1.0, -1.0], 150) + 3.0 * X[:, 0], np.repeat([9.0, 1.0], 150)
    given = {"random_state": 0} if search_rows is None else {"random_state": 0, "search_rows": search_rows}
    fitted = clone(features).set_params(**given).fit(as_dataset(X, y, weight))
    # each row is there with a target of 1 nine times and with one of -1 once
    assert np.mean(fitted.machine_.predict(X)) == pytest.approx(0.8 + 3.0 * X[:, 0].mean(), abs=0.15)


@pytest.mark.parametrize("scaling", [None, "standard"])
def test_sparse_rows_give_the_model_of_dense_ones(scaling: Any) -> None:
    X, y = friedman(300)
    X[X < 0.4] = 0.0
    features = learner([dkl.Steps(), dkl.Landmarks()], scaling=scaling)
    dense, thin = (clone(features).fit(rows, y) for rows in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(thin.machine_.predict(X), dense.machine_.predict(X), rtol=0.05, atol=0.5)


def test_several_classes_share_one_set_of_columns(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    model = dkl.KernelClassifier(learner(), solver="newton", alpha="auto", random_state=0).fit(X, y)
    assert model.score(X, y) > 0.95
    model.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.features_.family == list(ALL)


def test_a_list_of_dictionaries_keeps_the_promises_of_learners() -> None:
    check_learner(learner(n_features=20))
    assert clone(learner()).family == list(ALL)


def test_a_plan_counts_the_passes_and_what_is_held() -> None:
    X, y = friedman(300)
    small = plan(learner(), X, y)
    passes = plan(learner(search_rows=100), X, y)
    assert small.n_passes < passes.n_passes
    assert passes.held["rows to search on"] > 0
    fitted = learner(search_rows=100).fit(X, y)
    assert 5 < len(fitted.stats_) <= passes.n_passes


@pytest.mark.parametrize(
    ("families", "parameters", "message"),
    [
        ([], {}, "empty list"),
        ([dkl.Steps(), dkl.Steps(depth=1)], {}, "Steps more than once"),
        ([dkl.Steps(depth=0)], {}, "depth is 0"),
        ([dkl.Steps(bins=1)], {}, "bins is 1"),
        ([dkl.Landmarks(sigma_factor=0.0)], {}, "sigma_factor"),
        ([dkl.ArcCosine(1)], {}, "neither cosine-sine pairs nor finitely many"),
        (["steps"], {}, "which is no dictionary"),
        (ALL, {"C": 1.0}, "C=1.0 has no meaning with a list"),
        (ALL, {"solver": "game"}, "for a single family"),
        (ALL, {"warm_start": True}, "for a single family"),
        (ALL, {"loss": "log_loss"}, "'log_loss' is not one of"),
        (ALL, {"loss": "huber", "epsilon": 0.0}, "'epsilon' parameter of MarginFeatures"),
        (ALL, {"loss": "pinball", "quantiles": (0.5, 1.5)}, r"quantiles is \(0.5, 1.5\)"),
    ],
)
def test_what_has_no_meaning_is_refused_by_name(families: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learner(families, **parameters).fit(*friedman(100))


@pytest.mark.parametrize("kind", [dkl.MarginFeatures, dkl.RandomFeatures, dkl.NystromFeatures])
@pytest.mark.parametrize("dictionary", [dkl.Landmarks(), dkl.Steps()])
def test_a_dictionary_outside_a_list_is_refused_with_the_list(kind: Any, dictionary: Any) -> None:
    listed = rf"outside a list: take MarginFeatures\(family=\[{type(dictionary).__name__}\(...\)\]\)"
    with pytest.raises(ValueError, match=listed):
        kind(dictionary).fit(*friedman(50))


def test_a_constant_table_says_that_there_is_nothing_to_learn() -> None:
    with pytest.raises(ValueError, match="no column"):
        learner([dkl.Steps()], scaling=None).fit(np.ones((100, 2)), np.arange(100.0))


@pytest.mark.parametrize("search_rows", [None, 300], ids=["in memory", "by passes"])
def test_a_monotone_column_never_turns_back_whatever_takes_part(search_rows: int | None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(700, 4))
    f = X[:, 0] + np.cos(4.0 * X[:, 0]) - X[:, 1] * (X[:, 2] > 0) + np.sin(3.0 * (X[:, 2] + X[:, 3]))
    y = f + 0.1 * rng.standard_normal(700)
    features = learner(dtype="float64", search_rows=search_rows, monotone={0: 1, 1: -1}).fit(X, y)
    model = features.machine_
    kinds = {part.activation for part, _ in features.feature_map_.split(features.coef_)}
    assert kinds == {"steps", "cos-sin", "nystrom"}
    free = clone(features).set_params(monotone=None).fit(X, y).machine_
    for fitted, is_kept in ((model, True), (free, False)):
        for column, sign in ((0, 1.0), (1, -1.0)):
            grid = np.repeat(X[:15], 60, axis=0)
            grid[:, column] = np.tile(np.linspace(-3.0, 3.0, 60), 15)
            changes = sign * np.diff(fitted.predict(grid).reshape(15, 60), axis=1)
            assert (changes.min() >= -1e-9) == is_kept
            assert changes.max() > 0.1
    assert model.score(X, y) > 0.7
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("families", "monotone", "message"),
    [
        ([dkl.Gaussian(), dkl.Landmarks()], {0: 1}, "monotone is a promise that steps and columns can keep"),
        (ALL, dict.fromkeys(range(10), 1), "names all 10 columns, so that none is left for Gaussian"),
        (ALL, {"age": 1}, "monotone: there is no column 'age' of numbers"),
        (ALL, {0: 3}, r"monotone\[0\] is 3; it must be 1"),
        (None, {0: 1}, "monotone is for a list of dictionaries with steps or columns, since waves rise and fall"),
    ],
)
def test_a_promise_that_no_dictionary_keeps_is_refused(families: Any, monotone: dict[Any, int], message: str) -> None:
    features = dkl.MarginFeatures(families and list(families), n_features=20, monotone=monotone)
    with pytest.raises(ValueError, match=message):
        features.fit(*friedman(100))
    with pytest.raises(ValueError, match=r"MarginFeatures\(monotone=...\) would not keep its word"):
        dkl.KernelRegressor(features).fit(*friedman(100))
