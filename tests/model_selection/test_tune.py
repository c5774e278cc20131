"""dkl.tune: trials are judged as the definition says, follow from the seed alone, and survive what breaks them off."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.errors import StoreError
from dkl.linear.judge import Folds
from dkl.model_selection.folds import fold_views
from dkl.model_selection.proposals import Proposer
from dkl.model_selection.running import Trial, TrialFit, on_workers
from dkl.model_selection.space import space_of
from dkl.model_selection.tuning import ladder_of

RANGE = {"alpha": (1e-4, 1e2, "log")}


@pytest.fixture(scope="module")
def numbers() -> tuple[np.ndarray, np.ndarray]:
    """Rows whose target is linear in few of many columns: a ridge that is neither weak nor strong is best."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((90, 40))
    return X, X[:, :5].sum(axis=1) + 2.0 * rng.standard_normal(90)


@pytest.fixture(scope="module")
def labels() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return X[:160], y[:160]


def machine(**changed: Any) -> dkl.KernelClassifier:
    features = dkl.RandomFeatures(n_features=60, scaling="standard")
    given = {"solver": "newton", "loss": "squared_hinge", "progress": False, **changed}
    return dkl.KernelClassifier(features, **given)


MACHINE_SPACE = {
    "alpha": (1e-6, 1e-1, "log"),
    "features__n_features": (10, 80, "log-int"),
    "features__family": [dkl.Gaussian(5.0), dkl.Laplacian(5.0)],
}


def same(first: Any, second: Any) -> bool:
    left, right = (tuning.trials.drop(columns="seconds") for tuning in (first, second))
    return left.equals(right) and bool(np.array_equal(first.fold_scores_, second.fold_scores_, equal_nan=True))


# the space


def test_ranges_hold_both_ends_and_nothing_else() -> None:
    space = space_of({"a": (1, 3), "b": (1e-3, 1e3, "log"), "c": (-1.0, 1.0), "d": (5, 500, "log-int"), "e": ["x", 7]})
    points = np.random.default_rng(0).random((400, space.width))
    points[0], points[1] = 0.0, 1.0
    found = [space.decode(point) for point in points]
    assert {one["a"] for one in found} == {1, 2, 3}
    assert (found[0]["b"], found[1]["b"]) == pytest.approx((1e-3, 1e3))
    assert (found[0]["c"], found[1]["c"]) == (-1.0, 1.0)
    assert (found[0]["d"], found[1]["d"]) == (5, 500)
    assert all(type(one["d"]) is int for one in found)
    assert {one["e"] for one in found} == {"x", 7}
    logs = np.log([one["b"] for one in found[2:]])
    assert abs(logs.mean()) < 1.0, "half of a logarithmic range lies below its geometric mean"


def test_points_that_mean_the_same_values_become_one() -> None:
    space = space_of({"a": (1, 30, "log-int"), "b": ["x", "y", "z"], "c": (0.0, 1.0)})
    points = np.random.default_rng(1).random((200, space.width))
    rounded = space.rounded(points)
    for before, after in zip(points, rounded, strict=True):
        assert space.decode(before) == space.decode(after)
    np.testing.assert_array_equal(space.rounded(rounded), rounded)
    assert len(np.unique(rounded[:, :4], axis=0)) <= 90


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "a dict of ranges"),
        ({"alpha": (1.0, 0.1)}, "the lower first"),
        ({"alpha": (0.0, 1.0, "log")}, "needs positive numbers"),
        ({"alpha": (0.0, np.inf)}, "finite"),
        ({"alpha": (0.5, 2.0, "int")}, "whole numbers"),
        ({"alpha": (0.1, 1.0, "cubic")}, "the scale 'cubic'"),
        ({"alpha": []}, "empty list"),
        ({"alpha": 0.1}, "a range (low, high)"),
        ({"alfa": (0.1, 1.0)}, "no such parameter. It has alpha"),
    ],
)
def test_a_space_without_meaning_is_refused_by_name(
    numbers: tuple[np.ndarray, np.ndarray], given: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        dkl.tune(Ridge(), *numbers, space=given)


# what is proposed


def bowl(values: dict[str, float]) -> float:
    return -((values["x"] - 0.3) ** 2) - 2.0 * (values["y"] - 0.7) ** 2 - (values["z"] - 0.5) ** 2


def best_after(n_trials: int, seed: int, batch: int = 1) -> float:
    space = space_of({"x": (0.0, 1.0), "y": (0.0, 1.0), "z": (0.0, 1.0)})
    proposer = Proposer(space, seed, kappa=1.0)
    points, scores = np.empty((0, 3)), np.empty(0)
    while len(points) < n_trials:
        new = proposer.propose(points, scores, batch)
        points = np.concatenate([points, new])
        scores = np.append(scores, [bowl(space.decode(point)) for point in new])
    return float(scores.max())


def test_the_upper_confidence_bound_comes_closer_than_random_points() -> None:
    batch = 4
    bound = best_after(16 + batch, 0, batch)
    assert bound > -0.01
    for seed in range(5):
        points = np.random.default_rng(seed).random((16 + batch, 3))
        assert bound > max(bowl(dict(zip("xyz", point, strict=True))) for point in points)


def test_the_process_is_not_led_astray_by_failures_and_abysses() -> None:
    proposer = Proposer(space_of({"x": (0.0, 1.0)}), seed=0)
    points = np.linspace(0.0, 1.0, 9)[:, None]
    scores = -((points[:, 0] - 0.3) ** 2)
    level = proposer.propose(points, scores, 1)
    scores[7:] = [-1e9, np.nan]
    assert abs(proposer.propose(points, scores, 1)[0, 0] - level[0, 0]) < 0.15


def test_a_batch_holds_different_trials_and_none_that_was_tried() -> None:
    space = space_of({"x": (1, 4), "y": ["a", "b", "c"]})
    proposer = Proposer(space, seed=3)
    points, scores = np.empty((0, space.width)), np.empty(0)
    for expected in (5, 5, 2, 0):
        new = proposer.propose(points, scores, 5)
        assert len(new) == expected
        points = np.concatenate([points, new])
        scores = np.arange(len(points), dtype=float)
    assert len(np.unique(points, axis=0)) == 12


# how a trial is judged


def test_a_trial_scores_the_mean_over_the_rows_of_its_folds(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = numbers
    weight = np.arange(90) % 4
    alphas = [0.01, 1.0, 30.0]
    tuning = dkl.tune(Ridge(), X, y, space={"alpha": alphas}, sample_weight=weight, folds=4, random_state=5)
    fold = Folds.of(4, 5)(np.arange(90))
    expected = {}
    for alpha in alphas:
        total = 0.0
        for number in range(4):
            inside = (fold == number) & (weight > 0)
            outside = (fold != number) & (weight > 0)
            model = Ridge(alpha).fit(X[outside], y[outside], sample_weight=weight[outside])
            total += weight[inside].sum() * model.score(X[inside], y[inside], sample_weight=weight[inside])
        expected[alpha] = total / weight.sum()
    found = dict(zip(tuning.trials["alpha"], tuning.trials["score"], strict=True))
    assert found == pytest.approx(expected, rel=1e-12)
    assert tuning.best_params_ == {"alpha": max(alphas, key=expected.__getitem__)}
    whole = Ridge(tuning.best_params_["alpha"]).fit(X[weight > 0], y[weight > 0], sample_weight=weight[weight > 0])
    np.testing.assert_allclose(tuning.best_model_.coef_, whole.coef_, rtol=1e-12)


def test_every_row_is_in_one_fold_whatever_the_blocks_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 3)), rng.integers(0, 3, 500)
    weight = rng.integers(0, 3, 500)
    stored = create_dataset(str(tmp_path / "rows.zarr"), X, y, sample_weight=weight, rows_a_block=64)
    ids = []
    for dataset in (as_dataset(X, y, weight), stored):
        views = fold_views(dataset, Folds.of(5, 1))
        for view in views:
            inside, outside = set(np.asarray(view.test.row_id)), set(np.asarray(view.train.row_id))
            assert inside | outside == set(np.flatnonzero(weight))
            assert not inside & outside
            assert view.test.n_rows == len(inside)
            np.testing.assert_array_equal(view.test.class_weights + view.train.class_weights, dataset.class_weights)
        ids.append([sorted(np.asarray(view.test.row_id)) for view in views])
        assert sum(len(one) for one in ids[-1]) == np.count_nonzero(weight)
    assert ids[0] == ids[1]


def test_a_share_holds_out_so_much_once() -> None:
    (view,) = fold_views(as_dataset(np.zeros((4_000, 1)), np.arange(4_000) % 2), Folds.of(0.2, 0))
    assert abs(view.test.n_rows - 800) < 100
    assert view.test.n_rows + view.train.n_rows == 4_000


def test_scorers_of_scikit_learn_see_all_predictions(labels: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = labels
    tuning = dkl.tune(machine(alpha=1e-3), X, y, space={"alpha": [1e-3]}, folds=0.5, scoring="roc_auc", random_state=0)
    (view,) = fold_views(as_dataset(X, y), Folds.of(0.5, 0))
    model = machine(alpha=1e-3, random_state=0).set_params(features__random_state=0).fit(view.train)
    expected = roc_auc_score(np.asarray(view.test.y), np.asarray(model.decision_function(view.test)))
    assert tuning.best_score_ == pytest.approx(expected, rel=1e-12)

    mean = dkl.tune(
        machine(), X, y, space={"alpha": [1e-3]}, folds=2, scoring=lambda model, ds: float(ds.n_rows), random_state=0
    )
    assert mean.fold_scores_.sum() == 160


def test_the_search_finds_a_better_ridge_than_the_ends_of_its_range(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    tuning = dkl.tune(Ridge(), *numbers, space=RANGE, n_trials=9, random_state=0)
    ends = dkl.tune(Ridge(), *numbers, space={"alpha": [1e-4, 1e2]}, random_state=0)
    assert tuning.best_score_ > ends.best_score_
    assert tuning.best_score_ == tuning.trials["score"].max()
    assert 1.0 < tuning.best_params_["alpha"] < 100.0


def test_rows_go_through_pipelines_of_scikit_learn(labels: tuple[np.ndarray, np.ndarray]) -> None:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    tuning = dkl.tune(
        pipeline, *labels, space={"logisticregression__C": (1e-3, 1e2, "log")}, n_trials=6, random_state=0
    )
    assert tuning.best_score_ > 0.93
    assert tuning.best_model_.score(*labels) > 0.95


# the same trials, wherever and however often


def test_workers_and_threads_judge_the_same_trials(labels: tuple[np.ndarray, np.ndarray], client: Any) -> None:
    def tuned() -> Any:
        return dkl.tune(
            machine(), *labels, space=MACHINE_SPACE, n_trials=4, n_initial=2, folds=2, parallel=2, random_state=0
        )

    on_workers = tuned()
    with dask.config.set(scheduler="threads"):
        in_threads = tuned()
    assert same(on_workers, in_threads)
    np.testing.assert_array_equal(on_workers.best_model_.linear_.coef_, in_threads.best_model_.linear_.coef_)


class Interrupted:
    """A scoring that a user breaks off after so many fits."""

    def __init__(self, after: int | None) -> None:
        self.left, self.calls = after, 0

    def __call__(self, model: Any, dataset: Any) -> float:
        if self.left is not None and self.calls == self.left:
            raise KeyboardInterrupt
        self.calls += 1
        return float(model.score(np.asarray(dataset.X), np.asarray(dataset.y)))


@pytest.mark.parametrize("killed_after", [1, 9])
def test_a_search_that_was_killed_goes_on_to_the_same_trials(
    numbers: tuple[np.ndarray, np.ndarray], tmp_path: Path, killed_after: int
) -> None:
    def tuned(scoring: Interrupted, **given: Any) -> Any:
        budget = {"n_trials": 6, "n_initial": 2, "folds": 3, "parallel": 2}
        return dkl.tune(Ridge(), *numbers, space=RANGE, **budget, scoring=scoring, random_state=0, **given)

    with dask.config.set(scheduler="synchronous"):
        whole = tuned(Interrupted(None))
        with pytest.raises(KeyboardInterrupt):
            tuned(Interrupted(killed_after), checkpoint=str(tmp_path))
        rest = Interrupted(None)
        resumed = tuned(rest, checkpoint=str(tmp_path))
    assert same(whole, resumed)
    assert 18 - killed_after <= rest.calls <= 19 - killed_after, "at most what was in flight is lost"


def test_a_finished_search_goes_on_where_more_trials_are_asked_for(
    numbers: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    first = dkl.tune(Ridge(), *numbers, space=RANGE, n_trials=3, n_initial=2, checkpoint=str(tmp_path))
    more = dkl.tune(Ridge(), *numbers, space=RANGE, n_trials=5, n_initial=2, checkpoint=str(tmp_path))
    assert more.trials[:3].equals(first.trials), "the seed that was drawn is kept too"
    assert len(more.trials) == 5
    with pytest.raises(StoreError, match="belongs to another run"):
        dkl.tune(Ridge(), *numbers, space={"alpha": (1e-4, 1e3, "log")}, checkpoint=str(tmp_path))


def test_the_model_that_was_given_stays_as_it_was(labels: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    model = machine(checkpoint=str(tmp_path / "own"))
    before = repr(model)
    tuning = dkl.tune(model, *labels, space=MACHINE_SPACE, n_trials=2, folds=2, refit=False)
    assert repr(model) == before
    assert not (tmp_path / "own").exists(), "trials would share a checkpoint that belongs to one fit"
    assert tuning.best_model_ is None


# what goes wrong


class Moody(Ridge):
    """A ridge that refuses some penalties."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        if self.alpha > 1.0:
            raise ValueError(f"alpha={self.alpha:g} is beneath me")
        return super().fit(X, y, sample_weight)


def test_a_trial_that_fails_is_recorded_and_ends_nothing(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    tuning = dkl.tune(Moody(), *numbers, space=RANGE, n_trials=7, n_initial=6, random_state=0)
    failed = tuning.trials[tuning.trials["alpha"] > 1.0]
    assert len(tuning.trials) == 7
    assert len(failed) > 0
    assert failed["error"].str.contains("ValueError: alpha=.* is beneath me").all()
    assert failed["score"].isna().all()
    assert tuning.best_params_["alpha"] <= 1.0
    assert f"{len(failed)} failed" in repr(tuning)


def test_a_search_whose_first_trials_all_fail_is_given_up(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(RuntimeError, match=r"the first 5 trials all failed.*is beneath me"):
        dkl.tune(Moody(), *numbers, space={"alpha": (2.0, 9.0)}, n_trials=50)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_trials": 0}, "n_trials is 0; expected a whole number of at least 1"),
        ({"timeout": 0}, "timeout is 0; expected a number of seconds above 0"),
        ({"n_trials": None}, "the search has no end"),
        ({"parallel": 0}, "parallel is 0"),
        ({"n_initial": 0}, "n_initial is 0"),
        ({"folds": 1}, "folds is 1; expected a whole number of at least 2"),
        ({"folds": 1.5}, "folds is 1.5"),
        ({"folds": 90}, "has no rows"),
        ({"kappa": -1.0}, "kappa is -1.0"),
        ({"halving": ("epochs", 3, 3)}, "the lower first"),
        ({"halving": ("epochs", 1, 9)}, "no such parameter"),
        ({"halving": ("alpha", 1, 9)}, "take it out of the space"),
    ],
)
def test_a_budget_of_zero_and_other_nonsense_is_refused_before_any_fit(
    numbers: tuple[np.ndarray, np.ndarray], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        dkl.tune(Moody(alpha=2.0), *numbers, space=RANGE, **given)


def test_what_cannot_be_searched_says_what_can(labels: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(ValueError, match="put it into a machine, KernelClassifier"):
        dkl.tune(dkl.AlignedFeatures(), *labels, space={"rho": (0.1, 1.0)})
    with pytest.raises(ValueError, match="features is 'aligned', a name: give the estimator itself"):
        dkl.tune(dkl.KernelClassifier("aligned"), *labels, space={"features__rho": (0.1, 1.0)})
    with pytest.raises(ValueError, match="requires y to be passed"):
        dkl.tune(machine(), labels[0], space={"alpha": (0.1, 1.0)})


def test_time_that_is_up_ends_the_search(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    started = time.monotonic()
    tuning = dkl.tune(Ridge(), *numbers, space=RANGE, n_trials=None, timeout=1.0, random_state=0)
    assert time.monotonic() - started < 10.0
    assert len(tuning.trials) >= 1
    assert np.isfinite(tuning.trials["score"]).all()


@pytest.mark.parametrize("parallel", [1, 3])
def test_a_search_ends_on_request_with_the_trials_so_far_and_goes_on_later(
    numbers: tuple[np.ndarray, np.ndarray], tmp_path: Path, parallel: int
) -> None:
    def tuned(**given: Any) -> Any:
        budget = {"n_trials": 6, "n_initial": 3, "folds": 3, "parallel": parallel, "random_state": 0}
        return dkl.tune(Ridge(), *numbers, space=RANGE, **budget, **given)

    def stop(event: Any) -> None:
        if event.done >= 2:
            raise dkl.StopRequested("two are enough")

    with dask.config.set(scheduler="synchronous"):
        ended, whole = tuned(progress=stop, checkpoint=str(tmp_path)), tuned()
        assert same(whole, tuned(checkpoint=str(tmp_path)))
    assert ended.message == "two are enough after 2 trials of 3 folds of single rows, drawn at random"
    kept = whole.trials.loc[ended.trials.index]
    assert ended.trials.drop(columns="seconds").equals(kept.drop(columns="seconds"))
    assert ended.best_model_.alpha == ended.best_params_["alpha"]


def test_a_request_at_every_event_waits_for_a_score(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    def always(event: Any) -> None:
        raise dkl.StopRequested

    moody = dkl.tune(Moody(), *numbers, space=RANGE, n_trials=9, folds=2, random_state=0, progress=always)
    assert moody.message.startswith("a subscriber ended the trials after")
    assert np.isfinite(moody.trials["score"]).sum() == 1
    given = {"n_trials": 9, "folds": 2, "halving": ("max_iter", 1, 9)}
    halved = dkl.tune(Ridge(), *numbers, space=RANGE, **given, random_state=0, progress=always)
    assert halved.trials["max_iter"].tolist() == [1]


# halving


def test_the_best_third_of_each_rung_climbs(labels: tuple[np.ndarray, np.ndarray]) -> None:
    def tuned(**given: Any) -> Any:
        model = machine(solver="sgd", loss="hinge")
        space = {"alpha": (1e-7, 1e1, "log")}
        return dkl.tune(model, *labels, space=space, n_trials=9, folds=2, halving=("epochs", 1, 9), **given)

    tuning = tuned(random_state=0)
    trials = tuning.trials
    assert trials.groupby("epochs").size().to_dict() == {1: 9, 3: 3, 9: 1}
    for epochs in (1, 3):
        rung, above = trials[trials["epochs"] == epochs], trials[trials["epochs"] == 3 * epochs]
        best = rung.sort_values("score", ascending=False, kind="stable")["alpha"][: len(rung) // 3]
        assert above["alpha"].tolist() == best.tolist()
    assert tuning.best_params_["epochs"] == 9
    plain = dkl.tune(
        machine(solver="sgd", loss="hinge", epochs=9),
        *labels,
        space={"alpha": [tuning.best_params_["alpha"]]},
        folds=2,
        random_state=0,
    )
    assert plain.best_score_ == tuning.best_score_
    assert same(tuning, tuned(random_state=0, parallel=2))


def test_rungs_reach_from_the_least_to_the_most() -> None:
    assert ladder_of(("epochs", 1, 27)).amounts == (1, 3, 9, 27)
    assert ladder_of(("epochs", 2, 20)).amounts == (2, 6, 18, 20)
    assert ladder_of(("epochs", 1, 2, 1.5)).amounts == (1, 2)


# what a person sees


def test_a_tuning_prints_and_draws_itself(numbers: tuple[np.ndarray, np.ndarray]) -> None:
    events: list[Any] = []
    tuning = dkl.tune(Moody(), *numbers, space=RANGE, n_trials=7, n_initial=6, random_state=0, progress=events.append)
    text, html = repr(tuning), tuning._repr_html_()
    assert text.startswith("Tuning: 7 trials of 5 folds")
    assert f"alpha={tuning.best_params_['alpha']:.6g}" in text
    assert html.count("<tr") >= 8
    assert [event.kind for event in events] == ["started", *["advanced"] * 7, "finished"]
    assert [event.done for event in events] == [0, *range(1, 8), 7]
    assert events[-1].detail["best"] == tuning.best_score_
    display = tuning.plot()
    np.testing.assert_array_equal(display.best[-1], tuning.best_score_)
    assert len(display.axes_) == 2
    assert display.axes_[1].get_xscale() == "log"


# without a pass


def test_one_pass_judges_every_trial_of_a_tuned_regressor(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (120, 2))
    y = np.sin(3.0 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(120)
    weight = 1.0 + np.arange(120) % 2
    model = dkl.TunedRegressor(n_features=24, family=dkl.Gaussian(0.7), random_state=3, progress=False)
    space = {"lam": (1e-6, 1e-2, "log"), "Lam": (1e-2, 1e2, "log"), "gamma": [0.1, 1.0], "length_scale": [0.5, 2.0]}
    given = {"space": space, "n_trials": 5, "folds": 3, "sample_weight": weight, "random_state": 7}
    tuning = dkl.tune(model, X, y, **given, refit=False)

    # with a fixed bandwidth and no scaling, only the scale of the targets differs from fits without each fold
    fold = Folds.of(3, 7)(np.arange(120))
    scale = np.sqrt(np.cov(y, aweights=weight, bias=True))
    for trial, chosen in enumerate(tuning.trials[list(space)].to_dict("records")):
        for number in range(3):
            inside, outside = fold == number, fold != number
            ratio = np.cov(y[outside], aweights=weight[outside], bias=True) / scale**2
            # in units of their own deviation, the targets' penalties are those of all rows over the ratio
            adapted = {**chosen, "Lam": chosen["Lam"] / ratio}
            fitted = dkl.TunedRegressor(**{**model.get_params(deep=False), **adapted})
            fitted.fit(X[outside], y[outside], sample_weight=weight[outside])
            expected = fitted.score(X[inside], y[inside], sample_weight=weight[inside])
            assert tuning.fold_scores_[trial, number] == pytest.approx(expected, abs=1e-5)


def test_fold_sums_give_the_errors_in_the_units_of_the_targets() -> None:
    rng = np.random.default_rng(1)
    X, noise = rng.uniform(-1.0, 1.0, (80, 2)), rng.standard_normal((80, 2))
    Y = np.stack([10.0 * X[:, 0] + 5.0, 0.1 * X[:, 1]], axis=1) + noise * [1.0, 0.01]
    model = dkl.TunedRegressor(n_features=16, family=dkl.Gaussian(1.0), random_state=0, progress=False)
    given = {"space": {"lam": [1e-4]}, "folds": 2, "random_state": 0, "refit": False}
    of_sums = dkl.tune(model, X, Y, scoring="neg_mean_squared_error", **given).best_score_
    of_fits = dkl.tune(
        model,
        X,
        Y,
        scoring=lambda fitted, ds: -np.mean((np.asarray(fitted.predict(ds)) - np.asarray(ds.y)) ** 2),
        **given,
    ).best_score_
    assert of_sums == pytest.approx(of_fits, rel=0.02)


def test_fits_whose_rows_are_lost_with_all_workers_are_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dask cancels the tasks that need scattered rows once the last worker that holds them is gone."""
    folds: Any = ["a fold"]
    jobs = [TrialFit(number, 0, Trial(Ridge(), {})) for number in range(2)]
    lost: list[int] = []

    class Fit(Future):
        number = 0

        def result(self, timeout: float | None = None) -> str:
            if self.number == 1 and not lost:
                lost.append(self.number)
                raise CancelledError("lost dependencies")
            return f"outcome {self.number}"

    class Cluster:
        def scatter(self, rows: Any, **options: bool) -> Any:
            return rows

        def submit(self, function: Any, rows: Any, job: Any, scoring: Any, **options: bool) -> Fit:
            fit = Fit()
            fit.number = job.number
            return fit

        def cancel(self, fits: Any, force: bool) -> None:
            pass

    monkeypatch.setattr("distributed.as_completed", lambda fits, timeout: iter(fits))
    client: Any = Cluster()
    found = [(job, outcome) for job, outcome in on_workers(folds, None, client, jobs, float("inf"))]
    assert found == [(jobs[0], "outcome 0"), (jobs[1], "outcome 1")]


class Deadly:
    """A scoring that kills the worker it runs on, once."""

    def __init__(self, mark: Path | None) -> None:
        self.mark = mark

    def __call__(self, model: Any, dataset: Any) -> float:
        if self.mark is not None and dataset.n_rows % 2 == 0 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return float(model.score(np.asarray(dataset.X), np.asarray(dataset.y)))


@pytest.mark.slow
def test_a_worker_that_dies_changes_no_trial(numbers: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    from distributed import Client, LocalCluster

    def tuned(mark: Path | None) -> Any:
        given = {"n_trials": 6, "n_initial": 2, "folds": 3, "parallel": 3, "random_state": 0}
        return dkl.tune(Ridge(), *numbers, space=RANGE, scoring=Deadly(mark), **given)

    with dask.config.set(scheduler="threads"):
        expected = tuned(None)
    cluster = LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None)
    with cluster, Client(cluster):
        found = tuned(tmp_path / "killed")
    assert (tmp_path / "killed").exists()
    assert same(expected, found)
