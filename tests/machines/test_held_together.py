"""What fits hold out where rows belong together: whole groups, or the newest rows, with the same bits everywhere."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from distributed import Client, LocalCluster
from sklearn.base import clone

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.rows import GroupsAndTimes, held_rows
from dkl.linear.judge import Folds, judging_folds
from dkl.linear.minibatches import HeldOut
from dkl.model_selection.folds import fold_views

RNG = np.random.default_rng(0)
N = 360
X = RNG.normal(size=(N, 3))
GROUPS = np.repeat(np.arange(18), 20)
Y = np.where(X[:, 0] + 0.3 * RNG.normal(size=N) > 0, "yes", "no")
DAYS = RNG.integers(0, 90, N)
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "patient": GROUPS.astype(str), "day": DAYS})


def machine(**parameters: Any) -> Any:
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    exact = {"solver": "newton", "loss": "squared_hinge", "alpha": "auto", "random_state": 0}
    return dkl.KernelClassifier(**{"features": features, **exact, **parameters})


def together(**given: Any) -> Any:
    return GroupsAndTimes(X, **given).with_rule(as_dataset(X, Y))


def numbers(dataset: Any) -> np.ndarray:
    return np.asarray(dataset.row_id)


def same(first: Any, second: Any) -> bool:
    return np.array_equal(first.linear_.coef_, second.linear_.coef_) and first.alpha_ == second.alpha_


@pytest.mark.parametrize("count", [2, 3, 5])
def test_no_group_is_in_two_folds(count: int) -> None:
    folds = fold_views(together(groups=GROUPS), Folds.of(count, 3))
    found = [set(GROUPS[numbers(fold.test)]) for fold in folds]
    assert sum(map(len, found)) == 18
    assert set.union(*found) == set(GROUPS)
    for fold, own in zip(folds, found, strict=True):
        assert not own & set(GROUPS[numbers(fold.train)])


def test_no_row_is_judged_by_a_model_of_newer_rows() -> None:
    folds = fold_views(together(times=DAYS), Folds.of(4, 3))
    parts = [(DAYS[numbers(fold.train)], DAYS[numbers(fold.test)]) for fold in folds]
    assert all(train.max() < test.min() for train, test in parts)
    assert all(newer.min() > older.max() for (_, newer), (_, older) in itertools.pairwise(parts))
    assert parts[0][1].max() == DAYS.max()


def test_a_share_by_time_is_the_newest_rows() -> None:
    (fold,) = fold_views(together(times=DAYS), Folds.of(0.25, 3))
    assert DAYS[numbers(fold.train)].max() < DAYS[numbers(fold.test)].min()
    assert fold.test.n_rows == pytest.approx(N / 4, rel=0.1)


@pytest.mark.parametrize(
    ("given", "most"), [({"groups": GROUPS % 3}, 3), ({"groups": GROUPS}, 5), ({"times": DAYS}, 1)]
)
def test_penalties_are_judged_on_folds_that_each_have_a_group_and_on_one_in_time(given: Any, most: int) -> None:
    dataset = together(**given)
    folds = judging_folds(HeldOut(0.1, 7), N, dataset.source.most_folds)
    assert len(folds) == most
    reader, source = dataset.source.reader(), dataset.source
    held = np.concatenate([reader.load(source.ticket(i)).held_with for i in range(source.n_blocks)])
    masks = np.array([fold.mask(held) for fold in folds])
    assert masks.any(axis=1).all()
    if "groups" in given:
        np.testing.assert_array_equal(masks.sum(axis=0), 1)
    else:
        assert DAYS[masks[0]].min() > DAYS[~masks[0]].max()


@pytest.mark.parametrize("share", [0.05, 0.1, 0.5])
def test_few_groups_have_one_held_out_and_one_to_learn_from(share: float) -> None:
    source = together(groups=GROUPS % 2).source
    held = source.reader().load(source.ticket(0)).held_with
    assert 0 < HeldOut(share, 1).mask(held).mean() < 1


def test_models_that_know_the_group_of_a_row_are_not_taken_for_good() -> None:
    groups = np.repeat(np.arange(60), 6)
    centres = RNG.normal(size=(60, 2))
    rows, labels = centres[groups] + 0.01 * RNG.normal(size=(N, 2)), RNG.integers(0, 2, 60)[groups]
    features = {"random": machine(features=dkl.RandomFeatures(dkl.Gaussian(0.1), 100, random_state=0))}
    options: dict[str, Any] = {"learners": features, "n_features": (100,), "folds": 0.3, "random_state": 0}
    assert dkl.compare(rows, labels, **options).best.score > 0.9
    found = dkl.compare(rows, labels, groups=groups, **options)
    assert found.best.score < 0.7
    assert "whole groups" in str(found)


def test_arrays_frames_and_stores_give_the_same_model(tmp_path: Path) -> None:
    labels, frame = Y, FRAME.drop(columns="day")
    plain = machine().fit(FRAME[["a", "b"]], labels, groups=FRAME["patient"])
    assert same(plain, machine(by_group="patient").fit(frame, labels))
    assert same(plain, machine().fit(frame, labels, groups="patient"))
    ds = dkl.create_dataset(str(tmp_path / "rows.zarr"), frame, labels, groups="patient", rows_a_block=N)
    assert same(plain, machine().fit(ds))
    assert same(plain, machine(by_group="patient").fit(ds))
    assert not same(plain, machine().fit(FRAME[["a", "b"]], labels))


def test_the_group_is_no_feature_and_may_come_with_predictions() -> None:
    frame = FRAME.drop(columns="day")
    model = machine(by_group="patient").fit(frame, Y)
    assert list(model.feature_names_in_) == ["a", "b"]
    np.testing.assert_array_equal(model.predict(frame), model.predict(frame[["a", "b"]]))


def test_a_time_is_a_feature_whether_it_is_a_number_or_a_date() -> None:
    frame = FRAME[["a", "b", "day"]]
    assert list(machine(by_time="day").fit(frame, Y).feature_names_in_) == ["a", "b", "day"]
    dated = frame.assign(day=pd.Timestamp("2026-01-01") + pd.to_timedelta(DAYS, unit="D"))
    assert list(machine(by_time="day").fit(dated, Y).feature_names_in_) == ["a", "b", "day"]


@pytest.mark.parametrize("given", [{"groups": GROUPS}, {"times": DAYS}], ids=["group", "time"])
def test_every_machine_that_holds_rows_out_fits(given: Any) -> None:
    margin = {"n_features": 10, "random_state": 0}
    models = [
        machine(calibrate=True),
        machine(solver="sgd", alpha=1e-4, early_stopping=True, epochs=3, loss="log_loss"),
        machine(features=dkl.MarginFeatures(**margin, patience=2)),
        machine(features=dkl.MarginFeatures(**margin, refine=1)),
        dkl.TunedClassifier(n_features=20, solver="adam", early_stopping=True, epochs=3, random_state=0),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for model in models:
            assert model.fit(X, Y, **given).score(X, Y) > 0.6


def test_workers_and_resumed_fits_give_the_bits_of_one_thread(tmp_path: Path) -> None:
    ds = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, Y, groups=GROUPS, rows_a_block=50)
    with dask.config.set(scheduler="synchronous"):
        alone = machine(checkpoint=str(tmp_path / "state")).fit(ds)
    assert same(alone, machine(checkpoint=str(tmp_path / "state")).fit(ds))
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        assert same(alone, machine().fit(ds))


def test_a_fit_after_append_and_drop_is_that_of_a_fresh_store(tmp_path: Path) -> None:
    first = dkl.create_dataset(str(tmp_path / "a.zarr"), X[:300], Y[:300], groups=GROUPS[:300], rows_a_block=60)
    grown = first.append(X[300:], Y[300:], groups=GROUPS[300:]).drop(np.arange(10))
    fresh = dkl.create_dataset(str(tmp_path / "b.zarr"), X, Y, groups=GROUPS, rows_a_block=60).drop(np.arange(10))
    assert same(machine().fit(grown), machine().fit(fresh))


def test_updates_hold_rows_out_as_fits_do(tmp_path: Path) -> None:
    aligned = dkl.AlignedFeatures(n_candidates=40, n_features=20, sums=str(tmp_path / "sums"), random_state=0)
    first = dkl.create_dataset(str(tmp_path / "a.zarr"), X[:300], Y[:300], groups=GROUPS[:300], rows_a_block=60)
    grown = first.append(X[300:], Y[300:], groups=GROUPS[300:])
    updated = machine(features=aligned).fit(first).update(grown)
    assert len(held_rows(grown).source.steps) == 1
    assert updated.score(X, Y) > 0.8


@pytest.mark.usefixtures("little_work")
def test_tune_and_suggest_say_how_rows_are_held_out() -> None:
    space = {"alpha": (1e-5, 1e-2, "log")}
    given: dict[str, Any] = {"n_trials": 2, "n_initial": 2, "folds": 3, "random_state": 0, "refit": False}
    found = dkl.tune(machine(alpha=1e-3), X, Y, times=DAYS, space=space, **given)
    assert found.message == "2 trials of 3 folds of the newest rows"
    suggestion = dkl.suggest(FRAME.drop(columns="day"), Y, groups="patient", effort="fast")
    assert any("whole groups by 'patient'" in reason for reason in suggestion.reasons)
    assert suggestion.estimator.by_group == "patient"


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"patient_id": GROUPS}, "groups='patient_id'"),
        ({"UserId": [f"u{g}" for g in GROUPS]}, "groups='UserId'"),
        ({"year": 1990 + GROUPS}, "times='year'"),
        ({"timestamp": 1.7e9 + np.arange(N)}, "times='timestamp'"),
    ],
)
def test_a_column_that_looks_like_a_time_or_an_id_is_named_where_folds_are_random(columns: Any, says: str) -> None:
    frame = FRAME[["a", "b"]].assign(**columns)
    options: dict[str, Any] = {"learners": ["random"], "n_features": [4], "random_state": 0}
    with pytest.warns(UserWarning, match="looks like") as told:
        dkl.compare(frame, Y, **options)
    assert says in str(told[0].message)
    role = "groups" if "groups" in says else "times"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dkl.compare(frame, Y, **{role: next(iter(columns))}, **options)


@pytest.mark.parametrize("columns", [{"identity": X[:, 2]}, {"row_id": np.arange(N)}, {"time_spent": X[:, 2]}])
def test_other_columns_are_no_suspects(columns: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dkl.compare(FRAME[["a", "b"]].assign(**columns), Y, learners=["random"], n_features=[4], random_state=0)


BY_TIME: dict[str, Any] = {"times": np.arange(N)}
NUMBERS: dict[str, Any] = {
    "exact": dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), alpha="auto", solver="newton", random_state=0),
    "stochastic": dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), epochs=3, early_stopping=True, random_state=0),
    "refined": dkl.MarginFeatures(n_features=20, refine=2, random_state=0),
    "automatic": dkl.KernelRegressor(effort="fast", trials=[0, 1], random_state=0),
}


@pytest.mark.parametrize(
    ("kind", "together"),
    [
        ("exact", {"groups": GROUPS}),
        ("stochastic", BY_TIME),
        ("refined", {"groups": GROUPS}),
        pytest.param("automatic", BY_TIME, marks=pytest.mark.slow),
    ],
)
def test_numbers_are_fitted_though_most_blocks_hold_no_judging_row(tmp_path: Path, kind: str, together: Any) -> None:
    """The rows of a store are sorted by what holds them together, so that few of its blocks have any held-out row."""
    target = np.sin(X[:, 0]) + X[:, 1]
    for name, size in (("whole", N), ("parts", 20)):
        dkl.create_dataset(tmp_path / name, X, target, rows_a_block=size)
    answers = []
    for name in ("whole", "parts"):
        model = clone(NUMBERS[kind]).set_params(progress=False).fit(dkl.open_dataset(tmp_path / name), **together)
        answers.append(getattr(model, "machine_", model).predict(X))
    if kind in ("exact", "automatic"):
        np.testing.assert_allclose(*answers, atol=1e-3)
    # stochastic steps take the rows in another order
    assert all(np.mean((answer - target) ** 2) < 0.2 * np.var(target) for answer in answers)
