"""The machine without settings: it takes the kind of features that does best on held-out rows, and says so."""

from __future__ import annotations

import re
import traceback
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from dask_ml.wrappers import Incremental
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_wine, make_friedman1, make_gaussian_quantiles
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

import dkl
from dkl.data.coerce import as_dataset
from dkl.errors import without_hints
from dkl.events import Event
from dkl.kernels.threads import threads_at_work
from dkl.linear.incremental import BlockIncremental
from dkl.linear.judge import PENALTIES
from dkl.machines import effort as counting
from dkl.machines.choice import LogLoss
from dkl.machines.columns import ColumnChoice, Columns
from dkl.machines.contest import FEWEST_ROWS
from dkl.machines.effort import EFFORTS, Clock, Shape
from dkl.machines.settings import OpenParameters, Settings, settled
from dkl.planning import plan

OPEN = {"loss": None, "alpha": None, "solver": None, "calibrate": None, "chooses": True, "stops_early": False}


def thresholds(n: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """What steps are made for: a product of two thresholds, which no wave and no line has."""
    X = np.random.default_rng(0).uniform(size=(n, 6))
    return X, 3.0 * ((X[:, 0] > 0.4) & (X[:, 1] > 0.3)) + 0.05 * np.random.default_rng(1).standard_normal(n)


def lines(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, 8))
    return X, X @ np.arange(8.0) + 3.0 * np.random.default_rng(1).standard_normal(n)


@pytest.mark.usefixtures("little_work")
def test_more_features_than_are_made_are_said() -> None:
    X, y = lines(120)
    model = dkl.KernelRegressor(n_features=10**9, effort="fast", random_state=0).fit(X, y)
    made = model.features_.feature_map_.n_features
    assert f"Features: {made:,}, of the 1,000,000,000 that n_features allows at most." in model.reasons_


@pytest.mark.parametrize(
    ("rows", "kind"), [(thresholds, "steps of columns and their products"), (lines, "the columns themselves")]
)
def test_the_kind_of_features_is_the_one_that_made_the_rows(rows: Any, kind: str) -> None:
    X, y = rows()
    model = dkl.KernelRegressor(random_state=0, effort="fast").fit(X, y)
    assert model.reasons_[0].startswith(f"Features: {kind}")
    assert "which have the best score on held-out rows" in model.reasons_[0]
    assert "(R^2, of the same linear model, on " in model.reasons_[0]
    assert model.score(X, y) > 0.9


def test_without_settings_a_classifier_scores_as_users_expect_and_has_probabilities() -> None:
    X, y = load_wine(return_X_y=True)
    train = np.random.default_rng(0).random(len(y)) < 0.7
    model = dkl.KernelClassifier(random_state=0)
    assert hasattr(model, "predict_proba")
    model.fit(X[train], y[train])
    assert model.score(X[~train], y[~train]) > 0.95
    shares = model.predict_proba(X[~train])
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert np.array_equal(model.classes_[shares.argmax(axis=1)], model.predict(X[~train]))


@pytest.mark.usefixtures("little_work")
def test_probabilities_are_calibrated_on_rows_that_the_features_did_not_see() -> None:
    generator = np.random.default_rng(0)
    X = generator.standard_normal((1_500, 5))
    # classes that nothing tells apart in more than 80 % of the rows: whoever says 99 % is wrong
    y = np.where(generator.random(1_500) < 0.8, X[:, 0] > 0.0, X[:, 0] < 0.0).astype(int)
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(X[:750], y[:750])
    scores = model.decision_function(X[750:]) * np.where(y[750:] == 1, 1.0, -1.0)
    losses = [
        np.mean(np.log1p(np.exp(-scores / t))) for t in model.temperature_ * np.array([1.0, *np.geomspace(0.3, 3)])
    ]
    assert losses[0] < min(losses) + 0.01


@pytest.mark.usefixtures("little_work")
def test_the_same_rows_give_the_same_bits_and_a_file_keeps_them(tmp_path: Path) -> None:
    X, y = thresholds(300)
    one, two = (dkl.KernelRegressor(random_state=0, effort="fast").fit(X, y) for _ in range(2))
    np.testing.assert_array_equal(one.predict(X), two.predict(X))
    assert one.reasons_ == two.reasons_
    one.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(again.predict(X), one.predict(X))
    assert (again.solver_, again.loss_) == ("newton", "squared_error")


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "given",
    [
        {"loss": "log_loss"},
        {"alpha": "auto"},
        {"early_stopping": True},
        {"n_features": 300, "scaling": "standard", "sigma": 2.0},
        {"n_features": 50, "solver": "sgd"},
        {"scaling": None, "alpha": 1e-3},
        {"sigma": "median", "calibrate": False},
    ],
)
def test_what_is_pinned_stays_and_the_rest_adapts(given: dict[str, Any]) -> None:
    X, y = thresholds(300)
    labels = (y > 1.0).astype(int)
    model = dkl.KernelClassifier(random_state=0, effort="fast", **given).fit(X, labels)
    assert {name: model.get_params(deep=False)[name] for name in given} == given
    assert model.score(X, labels) > 0.9
    # the penalty is chosen on held-out rows by exact steps alone
    assert (model.solver_ == "newton") == (given.get("solver") != "sgd" and set(given) - {"early_stopping"} != set())
    learner = model.features_
    if "n_features" in given:
        assert learner.feature_map_.n_features <= given["n_features"]
    if "sigma" in given:
        # features of two kinds have it each
        parts = [part.get_params() for part in getattr(learner, "learners_", [learner])]
        assert {part.get("family__sigma", part.get("kernel__sigma")) for part in parts} == {given["sigma"]}
    if "scaling" in given:
        assert learner.get_params().get("scaling", given["scaling"]) == given["scaling"]


def test_the_common_knobs_reach_features_that_are_given_and_nothing_is_left_out_silently() -> None:
    X, y = lines(200)
    model = dkl.KernelRegressor("random", n_features=30, scaling="standard", sigma=3.0, random_state=0).fit(X, y)
    assert (model.features_.n_features, model.features_.scaling, model.features_.family_.sigma) == (30, "standard", 3.0)
    own = dkl.RandomFeatures(n_features=40)
    assert dkl.KernelRegressor(own, n_features=20, random_state=0).fit(X, y).feature_map_.n_features == 20
    assert own.n_features == 40
    with pytest.raises(ValueError, match=r"sigma=3\.0 is pinned, and StepFeatures has no such parameter"):
        dkl.KernelRegressor("steps", sigma=3.0).fit(X, y)


@pytest.mark.usefixtures("little_work")
def test_chosen_features_tell_no_hints_of_other_settings(caplog: pytest.LogCaptureFixture) -> None:
    X, y = make_friedman1(300, random_state=0)
    X[:, 0] = np.exp(8.0 * X[:, 0]) ** 2
    dkl.KernelRegressor(random_state=0, effort="fast").fit(X, y)
    assert "heavy tails" not in caplog.text


@pytest.mark.usefixtures("little_work")
def test_groups_are_kept_together_where_kinds_are_judged() -> None:
    X, y = thresholds(400)
    model = dkl.KernelRegressor(random_state=0, effort="fast").fit(X, y, groups=np.arange(400) // 8)
    assert model.score(X, y) > 0.9


# what may be wrong with rows: the right thing, as the least score, or one clear error
GENERATOR = np.random.default_rng(0)
NUMBERS = GENERATOR.standard_normal((300, 4))
TARGET = NUMBERS[:, 0] + np.sin(NUMBERS[:, 1])
LABELS = (TARGET > 0.0).astype(int)
EDGES: dict[str, tuple[Any, Any, float | str]] = {
    "few of one class": (NUMBERS, (NUMBERS[:, 0] > 2.0).astype(int), 0.98),
    "one row of a third class": (NUMBERS, np.where(np.arange(300) < 1, 2, LABELS), 0.9),
    "59 rows": (NUMBERS[:59], TARGET[:59], 0.9),
    "20 rows of classes": (NUMBERS[:20], LABELS[:20], 0.7),
    "5 rows": (NUMBERS[:5], TARGET[:5], 0.5),
    "3 rows": (NUMBERS[:3], TARGET[:3], "n_samples = 3: .* needs at least 5 rows"),
    "one column": (NUMBERS[:, :1], np.sin(2.0 * NUMBERS[:, 0]), 0.95),
    "one column of two values": ((NUMBERS[:, :1] > 0.0).astype(float), LABELS, 0.7),
    "a constant target": (NUMBERS, np.full(300, 3.0), 1.0),
    "one class": (NUMBERS, np.ones(300, int), "y has one class, 1; at least two are needed"),
    "a column of gaps": (np.where(np.arange(4) == 2, np.nan, NUMBERS), TARGET, "column 'column 2' holds no value"),
    "duplicate rows": (np.repeat(NUMBERS[:30], 10, axis=0), np.repeat(TARGET[:30], 10), 0.95),
    "equal rows": (np.ones((300, 2)), TARGET, -0.01),
    "equal rows of two classes": (np.ones((300, 2)), LABELS, 0.45),
}


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("case", EDGES)
def test_odd_rows_are_taken_or_refused_in_one_sentence(case: str) -> None:
    X, y, expected = EDGES[case]
    machine = dkl.KernelClassifier if y.dtype.kind == "i" else dkl.KernelRegressor
    model = machine(random_state=0, effort="fast")
    if isinstance(expected, str):
        with pytest.raises(ValueError, match=expected):
            model.fit(X, y)
        return
    assert model.fit(X, y).score(X, y) >= expected
    if machine is dkl.KernelClassifier:
        assert np.array_equal(model.classes_[model.predict_proba(X).argmax(axis=1)], model.predict(X))


def test_few_rows_are_not_chosen_by() -> None:
    X, y = thresholds(FEWEST_ROWS - 1)
    model = dkl.KernelRegressor(random_state=0).fit(X, y)
    assert "too few to choose by" in model.reasons_[0]
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.usefixtures("little_work")
def test_above_the_size_of_newton_the_default_runs_on_a_store_in_passes_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkl.machines.settings._MOST_ROWS", 0)
    X, y = thresholds(800)
    labels = np.where(y > 1.0, "yes", "no")
    dataset = dkl.create_dataset(tmp_path / "rows.zarr", X[:600], labels[:600])
    epochs: list[str] = []
    fit_epochs = BlockIncremental.fit_epochs

    def told(runner: BlockIncremental, *given: Any, **named: Any) -> Any:
        epochs.append(given[1].place)
        return fit_epochs(runner, *given, **named)

    monkeypatch.setattr(BlockIncremental, "fit_epochs", told)
    # of other losses: the squared error needs one pass, however many rows there are
    assert dkl.KernelClassifier(random_state=0, effort="fast").fit(dataset).solver_ == "newton"
    model = dkl.KernelClassifier(random_state=0, effort="fast", loss="log_loss").fit(dataset)
    assert (model.solver_, model.loss_) == ("sgd", "log_loss")
    # through dask-ml's interface, block by block from the store
    assert issubclass(BlockIncremental, Incremental)
    assert [Path(place.strip("'")).name for place in epochs] == ["rows.zarr"]
    assert type(model.linear_).__name__ == "SGDClassifier"
    model.partial_fit(X[600:], labels[600:])
    assert model.n_epochs_ > 1
    assert model.score(X, labels) > 0.9


@pytest.mark.parametrize("n_classes", [2, 4])
def test_the_squared_error_of_classes_is_ridge_regression_on_their_signs(n_classes: int) -> None:
    X, codes = NUMBERS, np.digitize(TARGET, np.quantile(TARGET, np.arange(1, n_classes) / n_classes))
    model = dkl.KernelClassifier(
        dkl.RandomFeatures(n_features=30, dtype="float64", random_state=0), loss="squared_error", alpha=1e-2
    ).fit(X, codes)
    assert model.solver_ == "newton"
    phi = model.features_.transform(X)
    signs = np.where(codes[:, None] == ([1] if n_classes == 2 else np.arange(n_classes)), 1.0, -1.0)
    ridge = Ridge(1e-2 * len(X)).fit(phi, signs)
    np.testing.assert_allclose(
        model.decision_function(X).reshape(len(X), -1), ridge.predict(phi).reshape(len(X), -1), rtol=1e-4, atol=1e-5
    )
    with pytest.raises(ValueError, match="loss='squared_error' of classes has exact steps only"):
        dkl.KernelClassifier("random", loss="squared_error", solver="sgd").fit(X, codes)


def interrupting(model: Any, n_trials: int, again: bool = False) -> Any:
    """A model whose fit gets a Ctrl-C in a pass after so many trials, and another one in a pass after the choice."""
    done, pressed = [0], [0]

    def hear(event: Event) -> None:
        if event.name == "choice":
            done[0] = max(done[0], event.done)
        is_next = done[0] >= n_trials if not pressed[0] else again and done[0] == -1
        done[0] = -1 if event.name == "choice" and event.kind == "finished" else done[0]
        if event.name != "choice" and event.kind == "advanced" and is_next:
            pressed[0] += 1
            raise KeyboardInterrupt

    return model.set_params(progress=hear)


@pytest.fixture
def looked_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person looks on in a terminal."""
    monkeypatch.setattr("dkl.machines.choice._in_terminal", lambda: True)


@pytest.mark.parametrize("n_trials", [4, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6))])
def test_ctrl_c_in_the_choice_fits_the_best_so_far_and_trials_pins_the_same_bits(
    n_trials: int, looked_on: None
) -> None:
    X, y = thresholds(400)
    settings = {"random_state": 0, "effort": "fast"}
    short = interrupting(dkl.KernelRegressor(**settings), n_trials).fit(X, y)
    assert f"; since Ctrl-C ended the trials after {n_trials})" in short.summary_
    trials = [int(number) for number in short.reasons_[1].partition("trials=[")[2].partition("]")[0].split(",")]
    assert len(trials) == n_trials
    pinned = dkl.KernelRegressor(**settings, trials=trials).fit(X, y)
    np.testing.assert_array_equal(pinned.predict(X), short.predict(X))


def test_ctrl_c_while_losses_are_compared_ends_the_trials_as_well(
    looked_on: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = load_breast_cancer(return_X_y=True)
    settings = {"random_state": 0, "effort": "fast"}

    def interrupted(*given: Any) -> float:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(LogLoss, "ask", interrupted)
        short = dkl.KernelClassifier(**settings).fit(X, y)
    assert "Ctrl-C ended the trials" in short.summary_
    trials = [int(number) for number in short.reasons_[1].partition("trials=[")[2].partition("]")[0].split(",")]
    pinned = dkl.KernelClassifier(**settings, trials=trials).fit(X, y)
    np.testing.assert_array_equal(pinned.predict_proba(X), short.predict_proba(X))


def test_ctrl_c_again_or_before_the_first_score_or_elsewhere_stops_the_fit_and_leaves_the_old_model(
    looked_on: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = thresholds(400)
    model = dkl.KernelRegressor(random_state=0, effort="fast", progress=False).fit(X[:100], y[:100])
    before = model.predict(X)

    def stops(n_trials: int, again: bool = False) -> bool:
        try:
            interrupting(model, n_trials, again).fit(X, y)
        except KeyboardInterrupt as stopped:
            frames = [frame.name for frame in traceback.extract_tb(stopped.__traceback__)]
            assert len(frames) < 8
            np.testing.assert_array_equal(model.predict(X), before)
            return True
        return False

    assert stops(0)
    assert stops(2, again=True)
    with without_hints():  # as every search has it
        assert stops(2)
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(stops, 2).result()
    with pytest.raises(KeyboardInterrupt):
        GridSearchCV(interrupting(model, 2), {"effort": ["fast"]}, cv=2).fit(X, y)
    with dask.config.set({"dkl.interrupt-keeps-best": False}), pytest.raises(KeyboardInterrupt) as whole:
        interrupting(model, 2).fit(X, y)
    assert len(whole.traceback) > 12
    monkeypatch.undo()
    assert stops(2)


def test_a_subscriber_that_asks_for_the_end_of_trials_gets_the_best_so_far() -> None:
    X, y = thresholds(400)

    def enough(event: Event) -> None:
        if event.name == "choice" and event.done >= 3:
            raise dkl.StopRequested("three are enough")

    model = dkl.KernelRegressor(random_state=0, effort="fast", progress=enough).fit(X, y)
    assert "since three are enough: trials=[0, " in model.reasons_[1]


@pytest.mark.usefixtures("little_work")
def test_no_number_of_passes_is_promised_where_trials_decide_it(tmp_path: Path) -> None:
    X, y = thresholds(400)
    ds = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, y, task="regression")

    def expected(features: str) -> list[int]:
        heard: list[Event] = []
        dkl.KernelRegressor(features, random_state=0, effort="fast", trials=None, progress=heard.append).fit(ds)
        return [event.detail["expected_passes"] for event in heard if "expected_passes" in event.detail]

    # the features that were chosen are fitted by passes of their own
    assert expected("auto")[0] == 0
    assert expected("random")[0] > 0


@pytest.mark.usefixtures("little_work")
def test_one_sentence_says_what_was_chosen_and_how_it_does() -> None:
    X, y = thresholds(400)
    compared = r"(next best( by its loss)?|level( by its loss)? with) [.\d]+ of \d+ tried"
    said = r"Chose [a-zA-Z ,]+: {} [.\d]+ on held-out rows \(" + compared + r"\)\."
    numbers = dkl.KernelRegressor(random_state=0, effort="fast").fit(X, y)
    assert re.fullmatch(said.format(r"R\^2"), numbers.summary_)
    assert all(reason.endswith(".") for reason in numbers.reasons_)
    classes = dkl.KernelClassifier(random_state=0, effort="fast").fit(X, y > np.median(y))
    assert re.fullmatch(said.format("accuracy"), classes.summary_)
    assert repr(classes) == "KernelClassifier(effort='fast', random_state=0)"
    assert dkl.KernelClassifier(random_state=0).fit(X[:40], y[:40] > 0).summary_.endswith("too few to choose by.")


def test_a_time_limit_ends_the_trials_and_trials_pins_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    X, y = thresholds(400)
    settings = {"random_state": 0, "effort": "fast"}
    free = dkl.KernelRegressor(**settings).fit(X, y)
    # a clock on which every look takes two seconds
    ticks = count(0.0, 2.0)
    monkeypatch.setattr(counting.time, "monotonic", lambda: next(ticks))
    short = dkl.KernelRegressor(**settings, time_limit=12, checkpoint=str(tmp_path / "run")).fit(X, y)
    monkeypatch.undo()
    trials = [int(number) for number in short.reasons_[1].partition("trials=[")[2].partition("]")[0].split(",")]
    assert 1 <= len(trials) < int(free.reasons_[1].split()[3])
    pinned = dkl.KernelRegressor(**settings, trials=trials).fit(X, y)
    np.testing.assert_array_equal(pinned.predict(X), short.predict(X))
    # where it ended is in the checkpoint: what resumes ends there, too
    again = dkl.KernelRegressor(**settings, time_limit=12, checkpoint=str(tmp_path / "run")).fit(X, y)
    np.testing.assert_array_equal(again.predict(X), short.predict(X))


def test_a_short_time_limit_leaves_the_first_trial() -> None:
    model = dkl.KernelRegressor(random_state=0, effort="fast", time_limit=1e-3).fit(*thresholds(200))
    assert "since time_limit=0.001 left no time for others: trials=[0]" in model.reasons_[1]


def test_without_a_limit_no_clock_ends_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting.time, "monotonic", lambda: 1e9)
    assert Clock(None).allows(1e30)
    clock = Clock(10.0)
    clock.count(1e9)
    assert clock.allows(1e9)


def test_a_plan_counts_all_that_may_be_tried() -> None:
    X, y = thresholds(120)
    ds = as_dataset(X, y)
    whole, pinned = plan(dkl.KernelRegressor(), ds), plan(dkl.KernelRegressor("steps", solver="newton"), ds)
    assert whole.n_passes > 5 * pinned.n_passes
    fast = plan(dkl.KernelRegressor(effort="fast"), ds)
    assert fast.n_passes < whole.n_passes
    begun: list[Event] = []
    dkl.KernelRegressor(random_state=0, effort="fast", progress=lambda event: begun.append(event)).fit(X, y)
    assert 10 < sum(event.kind == "started" for event in begun) <= fast.n_passes


def test_many_rows_are_fitted_by_one_pass_or_stochastically_and_judged_on_a_sample() -> None:
    given = OpenParameters(**OPEN)
    for n_rows in (10_000, 10_000_000):
        assert settled(given, "classification", n_rows) == Settings("squared_error", "auto", "newton", True)
    # each step of the log loss has a Hessian of its own
    log_loss = OpenParameters(**{**OPEN, "loss": "log_loss"})
    assert settled(log_loss, "classification", 10_000) == Settings("log_loss", "auto", "newton", True)
    assert settled(log_loss, "classification", 10_000_000) == Settings("log_loss", 1e-5, "sgd", True)
    # all classes share the Hessian of the squared error
    assert settled(given, "classification", 10_000, n_models=100) == Settings("squared_error", "auto", "newton", True)
    assert settled(given, "regression", 10_000) == Settings("squared_error", "auto", "newton", True)
    assert max(effort.least_judged for effort in EFFORTS.values()) <= 20_000


def test_features_of_the_user_keep_the_defaults_that_they_had() -> None:
    own = OpenParameters(**{**OPEN, "chooses": False})
    assert settled(own, "classification", 100) == Settings("hinge", 1e-5, "sgd", False)
    assert settled(own, "regression", 100) == Settings("squared_error", 1e-5, "sgd", False)
    exact = OpenParameters(**{**OPEN, "chooses": False, "alpha": "auto"})
    assert settled(exact, "classification", 100) == Settings("squared_hinge", "auto", "newton", False)
    assert settled(exact, "classification", 100, n_models=7).loss == "squared_hinge"


@pytest.mark.usefixtures("little_work")
def test_frames_with_texts_and_gaps_are_fitted_as_they_come() -> None:
    frame = pd.DataFrame(NUMBERS, columns=list("abcd"))
    frame.loc[::7, "c"] = np.nan
    frame["text"] = np.where(LABELS == 1, "red", "green")
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(frame, LABELS)
    assert model.score(frame, LABELS) > 0.95


def noisy_classes(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes whose log odds are linear, one of them rare: what the log loss is made for."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n_rows, 4))
    chances = 1.0 / (1.0 + np.exp(3.5 - 3.0 * X[:, 0] - X[:, 1]))
    return X, np.where(generator.random(n_rows) < chances, "rare", "frequent")


def test_two_classes_are_fitted_by_the_log_loss_where_held_out_probabilities_are_better_then() -> None:
    X, y = noisy_classes(1_000)
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(X, y)
    (told,) = [reason for reason in model.reasons_ if reason.startswith("Loss: ")]
    assert model.loss_ == "log_loss"
    assert told.startswith("Loss: log loss; the log loss of probabilities on held-out rows is ")
    given = LogisticRegression(C=1e4).fit(X, y)
    new_X, new_y = noisy_classes(4_000)
    assert log_loss(new_y, model.predict_proba(new_X)) < 1.05 * log_loss(new_y, given.predict_proba(new_X))


def by_squares(model: dkl.KernelClassifier) -> dkl.KernelClassifier:
    """A machine on the same features, by the squared error."""
    return dkl.KernelClassifier(clone(model.features_), loss="squared_error", solver="newton", alpha="auto")


@pytest.mark.slow
def test_several_classes_are_fitted_by_the_loss_whose_held_out_probabilities_are_best() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(3_000, 3))
    # one class in four is rare, and none is told apart for certain: squares leave chances between 0 and 1
    scores = X @ np.array([[2.0, 0.0, -1.0, 0.5], [0.0, 2.0, 1.0, -0.5], [0.0, 0.0, 1.0, 1.0]]) - [0.0, 0.0, 0.0, 3.0]
    y = (scores + generator.gumbel(size=scores.shape)).argmax(axis=1)
    X, y, new_X, new_y = X[:600], y[:600], X[600:], y[600:]
    model = dkl.KernelClassifier(random_state=0).fit(X, y)
    (told,) = [reason for reason in model.reasons_ if reason.startswith("Loss: ")]
    least, squared = (float(figure) for figure in re.findall(r"\d\.\d+", told))
    assert model.loss_ == "log_loss"
    assert least < squared
    squares = by_squares(model).fit(X, y)
    losses = [log_loss(new_y, each.predict_proba(new_X)) for each in (model, squares, LogisticRegression().fit(X, y))]
    assert losses[0] < losses[1]
    assert losses[0] < 1.05 * losses[2]


@pytest.mark.slow
def test_classes_that_lie_between_others_are_fitted_by_another_loss() -> None:
    X, y = make_gaussian_quantiles(n_samples=2_600, n_features=6, n_classes=3, random_state=0)
    X, y, new_X, new_y = X[:600], y[:600], X[600:], y[600:]
    model = dkl.KernelClassifier(random_state=0).fit(X, y)
    squares = by_squares(model).fit(X, y)
    # the shell in the middle is hardly ever ahead of both others by the squared error
    assert model.loss_ == "log_loss"
    # candidates are compared by the squared hinge, whatever the loss of the last fit is
    assert "(1 less the mean squared hinge loss, not the share of right rows, of " in model.reasons_[0]
    assert model.score(new_X, new_y) > SVC().fit(X, y).score(new_X, new_y) - 0.03
    assert model.score(new_X, new_y) > squares.score(new_X, new_y) + 0.05


def test_a_loss_that_does_no_better_is_not_taken() -> None:
    generator = np.random.default_rng(0)
    angles, side = 4.0 * np.pi * np.sqrt(generator.random(500)), generator.integers(0, 2, 500)
    X = angles[:, None] * np.stack([np.cos(angles + np.pi * side), np.sin(angles + np.pi * side)], axis=1)
    # two spirals without noise: scores are far from 0 where squares are small
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(X, side)
    assert model.loss_ == "squared_error"
    assert model.score(X, side) > 0.99


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize(
    "settings",
    [{"loss": "squared_error"}, {"alpha": 0.1}, {"calibrate": False}, {"loss": "squared_hinge"}],
)
def test_a_loss_that_is_given_or_judged_by_a_given_penalty_stays(settings: dict[str, Any]) -> None:
    X, y = noisy_classes(160)
    model = dkl.KernelClassifier(random_state=0, effort="fast", **settings).fit(X, y)
    assert model.loss_ == settings.get("loss", "squared_error")
    assert not [reason for reason in model.reasons_ if reason.startswith("Loss: ")]


def test_many_rows_are_judged_on_more_of_them_where_that_is_cheap() -> None:
    def judged(n_rows: int, n_columns: int, effort: str) -> int:
        generator = np.random.default_rng(0)
        X = generator.normal(size=(n_rows, n_columns))
        machine = dkl.KernelRegressor(effort=effort, random_state=0)._unfitted_copy()
        dataset = as_dataset(X, X[:, 0])
        return machine._terms(machine._settled_for(dataset)).sample(dataset).rows.n_rows

    usual = EFFORTS["balanced"].least_judged
    assert judged(usual, 5, "balanced") == usual
    assert usual < judged(30_000, 5, "balanced") <= 20_000
    # on so many columns all kinds on more rows would take more than is left
    assert judged(30_000, 300, "fast") == EFFORTS["fast"].least_judged


@pytest.mark.slow
def test_trials_of_categories_stand_in_the_plan_and_count_as_work_but_their_columns_allow_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"person": generator.integers(0, 400, 4_000), "x": generator.normal(size=4_000)})
    y = generator.normal(size=400)[frame["person"]] + 0.1 * generator.normal(size=4_000)
    machine = dkl.KernelRegressor(n_features=60, random_state=0)
    names = [one.name for one in plan(machine, frame, y).passes]
    declared = [one.name for one in plan(machine.set_params(categorical=[]), frame, y).passes]
    assert "rows to look for names in" in names
    assert "rows to look for names in" not in declared
    machine.set_params(categorical=None)
    columns = list[Columns]()
    chosen = ColumnChoice.chosen
    monkeypatch.setattr(ColumnChoice, "chosen", lambda *given: columns.append(chosen(*given)) or columns[0])
    machine.fit(frame, y)
    assert "mean targets of the values of ['person'] are columns beside the numbers" in " ".join(machine.reasons_)
    assert machine.score(frame, y) > 0.9
    assert columns[0].spent > 0.0
    wide = as_dataset(generator.normal(size=(4_000, 30)), y)
    terms = machine._terms(machine._settled_for(wide))
    assert terms.allowed(wide, columns[0].own_columns) == EFFORTS["balanced"].allowed(
        Shape(4_000, 2, 1, "squared_error")
    )
    quick = dkl.KernelRegressor(effort="fast", random_state=0)
    assert "rows to look for names in" not in [one.name for one in plan(quick, frame, y).passes]


@pytest.mark.slow
def test_the_penalty_falls_as_the_last_fit_has_more_landmarks() -> None:
    """Cells of four columns with a level each, which no other kind finds: every further landmark helps."""
    generator = np.random.default_rng(0)
    X, centres = generator.normal(size=(1_500, 4)), generator.normal(size=(400, 4))
    y = generator.normal(size=400)[np.argmin(((X[:, None] - centres) ** 2).sum(axis=2), axis=1)]
    model = dkl.KernelRegressor(random_state=0).fit(X, y)
    assert model.features_.n_features == 1_500
    assert "(up to 1,000), which have the best score" in model.reasons_[0]
    # a whitened landmark has length 1, so that C is one of the penalties that were compared, times 1,500 / 1,000
    strength = 1_000 / 1_500 / (1_500 * model.alpha_)
    assert min(np.abs(np.log(PENALTIES["squared_error"]) - np.log(strength))) < 1e-3


@pytest.mark.slow
def test_trials_share_what_they_find_of_the_same_rows_and_keep_blas_to_one_thread() -> None:
    """Targets are summed once, rows scaled once a scaling, and features that see no target drawn once for all folds."""
    passes: list[str] = []
    kernels: list[str] = []

    def hear(event: Event) -> None:
        if event.kind == "started":
            passes.append(event.name)
        if event.kind == "advanced" and event.name == "choice":
            # the threads of BLAS would spin between small products
            assert threads_at_work() == 1
            kernels.extend([event.detail["kind"]] if "at landmarks" in event.detail["kind"] else [])

    generator = np.random.default_rng(0)
    X = generator.uniform(size=(100, 2))
    y = np.sin(6 * X[:, 0]) + np.cos(6 * X[:, 1]) + 0.5 * generator.normal(size=100)
    dkl.KernelRegressor(random_state=0, progress=hear).fit(X, y)
    assert len(kernels) > 2 * len(set(kernels))
    # and once more in the last fit, to all rows
    assert passes.count("rows to choose landmarks from") <= len(set(kernels)) + 1
    # once for all trials and in the last fit; waves that are refined sum those of the rows that they learn from, a fold
    # at a time
    assert passes.count("targets") <= 2 + 5 + 1
    # in two scalings, for waves and two kernels, and in the last fit
    assert passes.count("row sample") + passes.count("row sample + moments") <= 2 * 3 + 1
