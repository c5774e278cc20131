"""Intervals and sets of classes cover by the definition, by group and by weight, and held-out rows stay unseen."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_friedman1

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.codes import group_codes
from dkl.linear.minibatches import HeldOut
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.random_features import RandomFeatures
from dkl.uncertainty import conformal
from dkl.uncertainty.conformal_groups import with_stored_groups
from tests.definitions import uncertainty as definitions
from tests.kernels.cases import assert_same_rows
from tests.linear.problems import rows as clouds

FEATURES = RandomFeatures(n_features=30, dtype="float64", random_state=1)


def rows(n: int = 150, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(n, 5, noise=1.0, random_state=seed)
    return X, y


def regressor(**parameters: Any) -> KernelRegressor:
    fixed = {"features": FEATURES, "alpha": 1e-3, "solver": "newton", "random_state": 0}
    return KernelRegressor(**{**fixed, **parameters})


def classifier(**parameters: Any) -> KernelClassifier:
    fixed = {"features": FEATURES, "alpha": 1e-3, "solver": "newton", "loss": "squared_hinge", "calibrate": True}
    return KernelClassifier(**{**fixed, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def model() -> KernelRegressor:
    """A regressor with the scores of 99 rows."""
    return regressor().fit(*rows()).conformalize(*rows(99, seed=1))


@pytest.mark.parametrize(
    "parameters",
    [{}, {"solver": "sgd", "epochs": 3}, {"solver": "sgd", "epochs": 3, "loss": "huber"}],
    ids=["scaled", "sgd", "huber"],
)
def test_intervals_are_those_that_sorting_finds(parameters: dict[str, Any]) -> None:
    fitted, (held_X, held_y), (new, _) = regressor(**parameters).fit(*rows()), rows(99, 1), rows(40, 2)
    if parameters:
        spread, new_spread = np.ones(99), np.ones(40)
    else:
        spread, new_spread = (fitted.predict(X, return_std=True)[1] for X in (held_X, new))
    scores = np.abs(held_y - fitted.predict(held_X)) / spread
    fitted.conformalize(held_X, held_y)
    mean = fitted.predict(new)
    for coverage in (0.5, 0.9, 0.55, 0.01):
        width = definitions.order_statistic(scores, str(coverage)) * new_spread
        found = fitted.predict_interval(new, coverage)
        np.testing.assert_allclose(found, np.column_stack([mean - width, mean + width]), rtol=1e-9)


@pytest.mark.parametrize("coverage", [0.5, 0.9, 0.95])
def test_intervals_are_within_one_order_statistic_of_those_of_mapie(coverage: float) -> None:
    regression = pytest.importorskip("mapie.regression")
    fitted, (held_X, held_y), (new, _) = regressor(solver="sgd", epochs=3).fit(*rows()), rows(99, 1), rows(40, 2)
    theirs = regression.SplitConformalRegressor(fitted, confidence_level=coverage, prefit=True)
    _, ends = theirs.conformalize(held_X, held_y).predict_interval(new)
    widths = np.unique(np.round((ends[:, 1, 0] - ends[:, 0, 0]) / 2.0, 9))
    assert len(widths) == 1
    scores = np.sort(np.abs(held_y - fitted.predict(held_X)))
    found = fitted.conformalize(held_X, held_y).predict_interval(new, coverage)
    ours, places = (found[:, 1] - found[:, 0]) / 2.0, np.searchsorted(scores, [widths[0] - 1e-6, widths[0] + 1e-6])
    low, high = scores[max(places[0] - 1, 0)], scores[min(places[1], 98)]
    assert ((low - 1e-9 <= ours) & (ours <= high + 1e-9)).all()


def test_several_targets_have_intervals_each() -> None:
    y, held_y = (np.column_stack([y, 50.0 - y**2]) for y in (rows()[1], rows(99, 1)[1]))
    fitted = regressor().fit(rows()[0], y).conformalize(rows(99, 1)[0], held_y)
    found = fitted.predict_interval(rows(40, 2)[0])
    assert found.shape == (40, 2, 2)
    mean, std = fitted.predict(rows(40, 2)[0], return_std=True)
    held_mean, held_std = fitted.predict(rows(99, 1)[0], return_std=True)
    for target in range(2):
        scores = np.abs(held_y - held_mean)[:, target] / held_std[:, target]
        width = definitions.order_statistic(scores, "0.9") * std[:, target]
        np.testing.assert_allclose(found[:, target, 0], mean[:, target] - width, rtol=1e-9)
        np.testing.assert_allclose(found[:, target, 1], mean[:, target] + width, rtol=1e-9)


def test_coverage_is_that_of_exchangeable_rows() -> None:
    # of 19 held-out rows the 18th of 20 places: .9 exactly, over draws of the held-out rows and the new one
    X, y = rows(3_000, 3)
    fitted = regressor(alpha=10.0).fit(*rows())
    shares = []
    for draw in range(60):
        chosen = np.random.default_rng(draw).permutation(3_000)[:519]
        interval = fitted.conformalize(X[chosen[:19]], y[chosen[:19]]).predict_interval(X[chosen[19:]], 0.9)
        shares.append(np.mean((interval[:, 0] <= y[chosen[19:]]) & (y[chosen[19:]] <= interval[:, 1])))
    assert np.mean(shares) == pytest.approx(0.9, abs=3.0 * np.std(shares) / np.sqrt(60))


def test_rows_held_out_of_a_fit_are_those_of_a_fit_without_them() -> None:
    X, y = rows(400)
    fitted = regressor(alpha="auto", conformal_fraction=0.25).fit(X, y)
    out = HeldOut(0.25, fitted.seed_ ^ conformal._SALT).mask(np.arange(400))
    assert 70 < out.sum() < 130
    assert fitted.conformal_.scores.shape == (out.sum(), 1)
    # whatever the held-out targets are, the fit is the same, and so are scaling, features and penalty
    other = regressor(alpha="auto", conformal_fraction=0.25).fit(X, np.where(out, 1e3, y))
    np.testing.assert_array_equal(other.linear_.coef_, fitted.linear_.coef_)
    # rows by the same numbers, without those that are held out
    apart = regressor(alpha="auto").fit(as_dataset(X, y, np.where(out, 0.0, 1.0)))
    np.testing.assert_allclose(apart.predict(X), fitted.predict(X), rtol=1e-9)
    by_hand = apart.conformalize(X[out], y[out])
    np.testing.assert_allclose(by_hand.predict_interval(X), fitted.predict_interval(X), rtol=1e-8)


def test_chosen_features_and_codes_of_categories_do_not_see_held_out_rows() -> None:
    X, y = rows(600)
    place = pd.Series(np.random.default_rng(0).integers(0, 60, 600)).map("place {}".format)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(place=place)
    fitted = regressor(conformal_fraction=0.3).fit(frame, y)
    out = HeldOut(0.3, fitted.seed_ ^ conformal._SALT).mask(np.arange(600))
    other = regressor(conformal_fraction=0.3).fit(frame, np.where(out, 1e3, y))
    assert_same_rows(other.predict(frame), fitted.predict(frame), atol=1e-9)
    assert fitted.predict_interval(frame[:5]).shape == (5, 2)


def test_groups_are_held_out_whole_and_of_times_the_newest() -> None:
    X, y = rows(400)
    groups = np.arange(400) // 20
    seen = regressor(conformal_fraction=0.25).fit(X, y, groups=groups)
    assert len(seen.conformal_.scores) == 100
    times = np.random.default_rng(0).permutation(400)
    newest = regressor(alpha="auto", conformal_fraction=0.25).fit(X, y, times=times)
    other = regressor(alpha="auto", conformal_fraction=0.25).fit(X, np.where(times >= 300, 1e3, y), times=times)
    assert len(newest.conformal_.scores) == 100
    np.testing.assert_array_equal(other.linear_.coef_, newest.linear_.coef_)


def test_each_group_has_the_quantile_of_its_own_rows(model: KernelRegressor) -> None:
    held_X, held_y = rows(120, 5)
    new, kind = rows(40, 2)[0], np.array(["near", "far"])
    groups, own = kind[np.arange(120) % 2], kind[np.arange(40) // 20]
    held_y = held_y + np.where(groups == "far", 20.0, 0.0)
    fitted = regressor().fit(*rows()).conformalize(held_X, held_y, groups=groups)
    mean, std = fitted.predict(new, return_std=True)
    held_mean, held_std = fitted.predict(held_X, return_std=True)
    scores = np.abs(held_y - held_mean) / held_std
    expected = np.array([definitions.order_statistic(scores[groups == one], "0.9") for one in own]) * std
    found = fitted.predict_interval(new, 0.9, groups=own)
    np.testing.assert_allclose(found[:, 1] - mean, expected, rtol=1e-9)
    # as a column of a frame, which stays a feature
    frame, names = pd.DataFrame(held_X).set_axis(list("abcde"), axis=1), list("abcde")
    by_name = regressor().fit(frame.assign(kind=groups), held_y)
    by_name.conformalize(frame.assign(kind=groups), held_y, groups="kind")
    rows_of = pd.DataFrame(new, columns=names).assign(kind=own)
    assert_same_rows(
        by_name.predict_interval(rows_of, groups="kind"), by_name.predict_interval(rows_of, groups=own), atol=1e-12
    )


def test_groups_of_a_dataset_are_those_of_its_column(tmp_path: Path) -> None:
    X, y = rows(200)
    groups = np.arange(200) % 4
    held = dkl.create_dataset(tmp_path / "rows", X, y, groups=groups, shuffle=True)
    fitted = regressor().fit(*rows()).conformalize(held, groups="group")
    given = regressor().fit(*rows()).conformalize(X, y, groups=groups)
    np.testing.assert_allclose(given.conformal_.scores, fitted.conformal_.scores, rtol=1e-9)
    found = fitted.predict_interval(held, groups="group").compute().sort_index()
    expected = given.predict_interval(X, groups=groups)
    np.testing.assert_allclose(found[["lower", "upper"]].to_numpy(), expected, rtol=1e-9)


def test_weights_count_as_repeated_rows() -> None:
    held_X, held_y = rows(99, 1)
    weight = np.arange(99) % 3
    fitted = regressor().fit(*rows())
    weighted = fitted.conformalize(held_X, held_y, weight).predict_interval(held_X)
    repeated = fitted.conformalize(np.repeat(held_X, weight, 0), np.repeat(held_y, weight)).predict_interval(held_X)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-9)


def test_ratios_of_densities_keep_the_promise_where_rows_are_drawn_otherwise() -> None:
    # noise grows with x, and new rows lie where it is large: exp(2 x) is the ratio of the two densities
    rng = np.random.default_rng(0)

    def draw(n: int, mean: float) -> tuple[np.ndarray, np.ndarray]:
        x = rng.normal(mean, 1.0, (n, 1))
        return x, x[:, 0] + np.exp(0.5 * x[:, 0]) * rng.normal(size=n)

    fitted = regressor(solver="sgd", epochs=5).fit(*draw(500, 0.0))
    shares = []
    for _ in range(30):
        (held_X, held_y), (new, y) = draw(1_000, 0.0), draw(1_000, 1.0)
        fitted.conformalize(held_X, held_y, np.exp(held_X[:, 0] - 0.5))
        interval = fitted.predict_interval(new, 0.8, sample_weight=np.exp(new[:, 0] - 0.5))
        blind = fitted.conformalize(held_X, held_y).predict_interval(new, 0.8)
        shares.append([np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) for ends in (interval, blind)])
    weighted, unweighted = np.mean(shares, axis=0)
    assert weighted == pytest.approx(0.8, abs=0.03)
    assert unweighted < 0.7


def test_ratios_of_densities_may_be_a_column_of_the_frame() -> None:
    X, y = rows(300)
    frame = pd.DataFrame(X).rename(columns="x{}".format)
    ratio = np.linspace(0.5, 2.0, 300)
    fitted = regressor().fit(frame, y).conformalize(frame, y)
    expected = fitted.predict_interval(frame, sample_weight=ratio)
    # it is no feature, which a strict prediction would refuse
    named = fitted.predict_interval(frame.assign(ratio=ratio), sample_weight="ratio", strict=True)
    assert np.array_equal(named, expected)
    with pytest.raises(ValueError, match="sample_weight='ration' names no column of X"):
        fitted.predict_interval(frame, sample_weight="ration")


@pytest.mark.parametrize("targets", [1, 2])
def test_intervals_are_the_same_for_rows_of_every_form(targets: int) -> None:
    X, y = rows(700)
    y = y if targets == 1 else np.column_stack([y, -(y**2)])
    fitted = regressor().fit(X, y).conformalize(X, y)
    expected = fitted.predict_interval(X)
    groups = np.arange(700) % 3
    by_group = regressor().fit(X, y).conformalize(da.from_array(X, chunks=(200, -1)), y, groups=groups)
    expected_by_group = by_group.predict_interval(X, groups=groups)
    for form in (da.from_array(X, chunks=(300, -1)), as_dataset(X, y)):
        for lazy, wanted in (
            (fitted.predict_interval(form), expected),
            (by_group.predict_interval(form, groups=groups), expected_by_group),
        ):
            assert dask.is_dask_collection(lazy)
            computed = np.asarray(lazy.compute())
            assert_same_rows(computed.reshape(wanted.shape), wanted, atol=1e-9)
    assert_same_rows(fitted.predict_interval(X[:1]), expected[:1], atol=1e-9)


@pytest.mark.parametrize("n_classes", [2, 4])
def test_sets_hold_the_classes_that_sorting_finds(n_classes: int) -> None:
    X, codes = clouds(500, n_classes)
    labels = np.array(["ash", "birch", "cedar", "dogwood"])[codes]
    fitted = classifier().fit(X[:200], labels[:200]).conformalize(X[200:300], labels[200:300])
    shares = fitted.predict_proba(X[200:300])
    places = [list(fitted.classes_).index(label) for label in labels[200:300]]
    scores = np.array([1.0 - share[place] for share, place in zip(shares, places, strict=True)])
    bound = definitions.order_statistic(scores, "0.8")
    expected = 1.0 - fitted.predict_proba(X[300:]) <= bound
    found = fitted.predict_set(X[300:], 0.8)
    assert found.dtype == bool
    np.testing.assert_array_equal(found, expected)
    held = found[np.arange(200), codes[300:]].mean()
    assert held == pytest.approx(0.8, abs=4.0 * math.sqrt(0.16 / 200 + 0.16 / 100))
    # what covers less is within what covers more
    assert not (fitted.predict_set(X[300:], 0.5) & ~found).any()


def test_sets_of_a_dataset_and_of_held_out_rows_have_the_names_of_the_classes() -> None:
    X, codes = clouds(400, 3)
    labels = np.array(["ash", "birch", "cedar"])[codes]
    fitted = classifier(conformal_fraction=0.3).fit(X, labels)
    lazy = fitted.predict_set(as_dataset(X, labels))
    assert lazy.columns.tolist() == ["ash", "birch", "cedar"]
    np.testing.assert_array_equal(lazy.compute().to_numpy(), fitted.predict_set(X))


def test_a_classifier_without_probabilities_has_no_sets() -> None:
    X, codes = clouds(100, 2)
    fitted = classifier(calibrate=False).fit(X, codes)
    assert not hasattr(fitted, "predict_set")
    with pytest.raises(ValueError, match=r"sets of classes come from probabilities.*calibrate=True"):
        fitted.conformalize(X, codes)


@pytest.mark.parametrize("targets", [1, 2])
def test_a_loaded_model_has_the_bits_of_the_intervals(targets: int, tmp_path: Path) -> None:
    X, y = rows()
    y = y if targets == 1 else np.column_stack([y, -y])
    groups = np.arange(150) % 3
    fitted = regressor().fit(X, y).conformalize(X, y, np.arange(150) % 4 + 1.0, groups=groups)
    fitted.save(tmp_path / "model")
    found = dkl.load_model(tmp_path / "model").predict_interval(X, 0.8, groups=groups)
    np.testing.assert_array_equal(found, fitted.predict_interval(X, 0.8, groups=groups))


@pytest.mark.parametrize("coverage", [0.0, 1.0, 1.5, -0.1, math.nan, True, "0.9", None])
def test_a_coverage_outside_of_zero_and_one_is_refused(coverage: Any, model: KernelRegressor) -> None:
    with pytest.raises(ValueError, match=r"coverage is .*expected a share between 0 and 1, both excluded"):
        model.predict_interval(rows(3)[0], coverage)


def test_too_few_held_out_rows_promise_everything_and_say_so() -> None:
    fitted = regressor().fit(*rows()).conformalize(*rows(8, 1))
    with pytest.warns(UserWarning, match=r"8 in the smallest group, cannot promise .* at least 9 rows"):
        interval = fitted.predict_interval(rows(3)[0], 0.9)
    np.testing.assert_array_equal(interval, np.tile([-np.inf, np.inf], (3, 1)))
    with pytest.warns(
        UserWarning, match=r"the weights of some rows are large compared with those of all held-out rows"
    ):
        interval = fitted.predict_interval(rows(3)[0], 0.5, sample_weight=[1.0, 1e3, 1.0])
    assert np.isinf(interval).all(axis=1).tolist() == [False, True, False]


def test_class_weights_and_rare_classes_do_not_see_held_out_rows() -> None:
    X, codes = clouds(300, 2)
    fitted = classifier(conformal_fraction=0.3, class_weight="balanced").fit(X, codes)
    out = HeldOut(0.3, fitted.seed_ ^ conformal._SALT).mask(np.arange(300))
    other = classifier(conformal_fraction=0.3, class_weight="balanced").fit(X, np.where(out, 1 - codes, codes))
    np.testing.assert_array_equal(other.linear_.coef_, fitted.linear_.coef_)
    # a class that is in held-out rows alone is one that no set is likely to hold
    rare = np.where(np.arange(300) == np.flatnonzero(out)[0], 2, codes)
    assert classifier(conformal_fraction=0.3).fit(X, rare).predict_set(X).shape == (300, 3)


def test_groups_that_promise_nothing_are_refused() -> None:
    (X, y), fitted = rows(), regressor().fit(*rows())
    alone = np.where(np.arange(150) == 7, "alone", "others")
    with pytest.raises(ValueError, match=r"the group of row 7 of .* has one row.*merge small groups"):
        fitted.conformalize(X, y, groups=alone)
    fitted.conformalize(X, y, groups=np.arange(150) % 2)
    with pytest.raises(ValueError, match="the group, 5, of row 1 is none of those of conformalize"):
        fitted.predict_interval(X[:3], groups=[0, 5, 1])
    with pytest.raises(ValueError, match="groups are missing: one value a row"):
        fitted.predict_interval(X[:3])
    with pytest.raises(ValueError, match=r"groups or sample_weight have 2 values, and X has 3 rows"):
        fitted.predict_interval(X[:3], groups=[0, 1])
    with pytest.raises(ValueError, match="groups were given, and conformalize had none"):
        fitted.conformalize(X, y).predict_interval(X[:3], groups=[0, 1, 0])
    with pytest.raises(ValueError, match="groups='kind' names no column of X"):
        fitted.conformalize(X, y, groups="kind")


def test_a_model_that_saw_no_held_out_rows_says_how_to_get_some() -> None:
    fitted = regressor().fit(*rows())
    with pytest.raises(ValueError, match=r"no scores of held-out rows.*conformalize.*conformal_fraction=0.1"):
        fitted.predict_interval(rows()[0])


def test_scores_of_another_fit_are_forgotten() -> None:
    fitted = regressor(solver="sgd", epochs=2).fit(*rows()).conformalize(*rows(99, 1))
    fitted.partial_fit(*rows(50, 2))
    with pytest.raises(ValueError, match="no scores of held-out rows"):
        fitted.predict_interval(rows()[0])


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_a_share_that_holds_out_nothing_or_everything_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match=rf"conformal_fraction={fraction:g} of 20 rows holds out \d+, and leaves"):
        regressor(conformal_fraction=fraction).fit(*rows(20))


def test_a_plan_counts_the_pass_over_held_out_rows() -> None:
    dataset = as_dataset(*rows(500))
    without, planned = (regressor(conformal_fraction=share).planned_passes(dataset) for share in (None, 0.2))
    assert len(planned) == len(without) + 1
    assert planned[-1][0][0].name == "conformal scores"
    assert dkl.plan(regressor(conformal_fraction=0.2), dataset)


def test_more_rows_than_are_kept_are_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformal, "_MOST_SCORES", 64)
    X, y = rows(300, 1)
    groups = np.arange(300) % 2
    fitted = regressor().fit(*rows()).conformalize(X, y, groups=groups)
    assert fitted.conformal_.scores.shape == (64, 1)
    mean, std = fitted.predict(X, return_std=True)
    scores = np.abs(y - mean) / std
    for group in range(2):
        rows_of = slice(*fitted.conformal_.starts[group : group + 2])
        distance = np.abs(fitted.conformal_.scores[rows_of, 0, None] - scores[None]).min(axis=1)
        assert distance.max() < 1e-9


def test_updated_machines_hold_the_same_rows_out_and_score_them_anew(tmp_path: Path) -> None:
    X, y = rows(400)
    stored = dkl.create_dataset(tmp_path / "rows", X[:300], y[:300])
    learner = dkl.AlignedFeatures(n_candidates=40, n_features=20, random_state=0, sums=str(tmp_path / "sums"))
    fitted = regressor(features=learner, conformal_fraction=0.25).fit(stored)
    more = stored.append(X[300:], y[300:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updated = fitted.update(more)
    fresh = regressor(features=learner.set_params(sums=None), conformal_fraction=0.25).fit(more)
    assert len(updated.conformal_.scores) == len(fresh.conformal_.scores) > 75


def test_two_workers_give_the_bits_of_threads(client: Any, tmp_path: Path) -> None:
    X, y = rows(900)
    stored = dkl.create_dataset(tmp_path / "rows", X, y, rows_a_block=128)
    made = []
    for scheduler in ("threads", client):
        with dask.config.set(scheduler=scheduler):
            fitted = regressor(alpha="evidence", conformal_fraction=0.3).fit(stored)
            interval = fitted.predict_interval(stored).compute()
            std = fitted.predict(stored, return_std=True)[1].compute()
        made.append((fitted.posterior_.factor, fitted.conformal_.scores, interval.to_numpy(), std.to_numpy()))
    for one, other in zip(*made, strict=True):
        np.testing.assert_array_equal(one, other)


def test_dask_frames_have_intervals_and_no_rows_to_tell_groups_by() -> None:
    X, y = rows(200)
    frame = pd.DataFrame(X, columns=list("abcde"))
    parts = dd.from_pandas(frame, npartitions=3)
    fitted = regressor().fit(frame, y).conformalize(frame, y)
    assert_same_rows(fitted.predict_interval(parts).compute(), fitted.predict_interval(frame), atol=1e-9)
    fitted.conformalize(frame, y, groups=np.arange(200) % 2)
    with pytest.raises(ValueError, match="the partitions of this Dask frame have unknown numbers of rows"):
        fitted.predict_interval(parts, groups=np.arange(200) % 2)


@pytest.mark.parametrize("kind", ["names", "many names", "numbers", "booleans"])
def test_groups_of_a_stored_feature_are_those_of_its_values(tmp_path: Path, kind: str) -> None:
    place = np.arange(300) % {"names": 3, "many names": 100, "numbers": 3, "booleans": 2}[kind]
    values = place == 1 if kind == "booleans" else place if kind == "numbers" else np.char.add("g", place.astype(str))
    frame = pd.DataFrame({"a": np.linspace(0.0, 1.0, 300), "kind": values})
    stored = dkl.create_dataset(tmp_path / "rows.zarr", frame, frame.a.to_numpy(), task="regression", rows_a_block=100)
    noted, column = with_stored_groups(stored, "kind")
    assert stored.schema.has_codes == (kind == "many names")
    found = np.concatenate([block.columns[column] for block in noted.source.blocks_without_x((column,))])
    np.testing.assert_array_equal(found, group_codes(frame["kind"], 300, "kind"))
    with pytest.raises(ValueError, match="groups='a' is no whole number in row 1"):
        list(with_stored_groups(stored, "a")[0].source.blocks_without_x((column,)))
    with pytest.raises(ValueError, match=r"groups='other' names no column of .*; the columns are"):
        with_stored_groups(stored, "other")


def test_rows_that_fit_has_held_out_are_scored_anew_by_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=600), "kind": np.arange(600) % 2})
    y = np.sin(frame.a.to_numpy()) + np.where(frame.kind == 1, 2.0, 0.1) * rng.normal(size=600)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", frame, y, task="regression", rows_a_block=200)
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", alpha=1e-3, conformal_fraction=0.3, random_state=0)
    together = model.fit(stored).conformal_
    np.testing.assert_array_equal(model.conformalize_held_out(stored).conformal_.scores, together.scores)
    by_group = model.conformalize_held_out(stored, groups="kind").conformal_
    assert len(by_group.groups) == 2
    np.testing.assert_allclose(np.sort(by_group.scores, axis=0), np.sort(together.scores, axis=0))
    one = dkl.KernelRegressor(features, solver="newton", alpha=1e-3, random_state=0).fit(stored)
    with pytest.raises(ValueError, match="a fit with conformal_fraction"):
        one.conformalize_held_out(stored)
