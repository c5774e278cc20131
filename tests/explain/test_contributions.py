"""Contributions: Shapley values against independent columns, which sum to the prediction less its mean."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl
from dkl.data.ingest.dates import written_time
from dkl.data.ingest.encoding import learn_encoding
from dkl.explain import background_of, contributions
from dkl.explain.wave_pass import part_of, wave_means
from dkl.kernels.explanations import wave_sums
from dkl.plots import ContributionsDisplay
from dkl.protocols.block import Block
from tests.definitions.explain import shapley_values
from tests.explain.cases import NAMES, WAVES, decision_values, machine, rows

X, _ = rows()
FEW = X[:4]


def by_definition(model: Any, row: np.ndarray, background: np.ndarray, members: list[list[int]]) -> np.ndarray:
    """Over all sets of columns and all rows that combine the background's columns: Shapley 1953."""
    grids = [background[:, own] for own in members]
    every = np.array([np.concatenate(one) for one in product(*grids)])
    mixed = np.empty_like(every)
    mixed[:, np.concatenate(members)] = every

    def value(inside: tuple[int, ...]) -> np.ndarray:
        changed = mixed.copy()
        for g in inside:
            changed[:, members[g]] = row[members[g]]
        return decision_values(model, changed).mean(axis=0)

    return shapley_values(value, len(members))


@pytest.mark.parametrize("name", [*WAVES, "linear", "steps"])
def test_contributions_are_shapley_values_of_the_predictions(name: str) -> None:
    model = machine(name)
    found = contributions(model, X[10:12], FEW)
    for i in (0, 1):
        expected = by_definition(model, X[10 + i], FEW, [[0], [1], [2], [3]])
        np.testing.assert_allclose(found.values[i], expected, atol=1e-8)
    grouped = contributions(model, X[10:11], FEW, groups={"both": [0, 2]})
    assert grouped.names == ("both", "column 1", "column 3")
    np.testing.assert_allclose(grouped.values[0], by_definition(model, X[10], FEW, [[0, 2], [1], [3]]), atol=1e-8)


@pytest.mark.parametrize("name", NAMES)
def test_contributions_sum_to_the_prediction_less_its_mean(name: str) -> None:
    model = machine(name)
    found = contributions(model, X[:7], X)
    assert found.values.shape[:2] == (7, 4)
    np.testing.assert_allclose(found.predictions, decision_values(model, X[:7]), atol=1e-8)
    of_sparse = contributions(model, sparse.csr_array(X[:7]), sparse.csr_array(X))
    np.testing.assert_allclose(of_sparse.values, found.values, atol=1e-8)
    weights = np.arange(len(X)) % 3
    if name in (*WAVES, "linear", "steps"):
        assert found.standard_errors is None
        weighted = contributions(model, X[:2], X, sample_weight=weights)
        repeated = contributions(model, X[:2], np.repeat(X, weights, axis=0))
        np.testing.assert_allclose(weighted.values, repeated.values, atol=1e-8)


@pytest.mark.parametrize("name", ["ramps", "half-spaces", "harmonics", "nystrom"])
def test_draws_come_near_to_shapley_values_by_their_standard_errors(name: str) -> None:
    model = machine(name)
    found = contributions(model, X[10:11], FEW)
    expected = by_definition(model, X[10], FEW, [[0], [1], [2], [3]])
    spread = np.ptp(decision_values(model, X))
    # deviations of a mean of 200 changes, each within the spread of the predictions
    np.testing.assert_allclose(found.values[0], expected, atol=4.0 * spread / np.sqrt(200))
    again = contributions(model, X[10:11], FEW)
    np.testing.assert_array_equal(again.values, found.values)
    assert found.standard_errors is not None
    assert f"(standard error {found.standard_errors[0, 0, 0]:.1g})" in repr(found)
    # over seeds, values deviate from the exact ones by as much as they say of themselves
    background = [contributions(model, X[10:11], FEW, random_state=seed) for seed in range(20)]
    away = np.mean([np.square(one.values[0] - expected) for one in background], axis=0)
    said = np.mean([np.square(one.standard_errors[0]) for one in background], axis=0)
    np.testing.assert_allclose(np.sqrt(away.sum()), np.sqrt(said.sum()), rtol=0.4)


def test_many_columns_need_few_nodes_for_what_all_sets_say() -> None:
    """Ten columns: all 1,024 sets, each by its own product of means."""
    rng = np.random.default_rng(0)
    many = rng.normal(size=(200, 10))
    features = dkl.RandomFeatures(dkl.Gaussian(3.0), 20, dtype="float64", random_state=0)
    y = np.sin(many[:, 0] + many[:, 1] * many[:, 2])
    model = dkl.KernelRegressor(features, solver="newton", alpha=1e-4, progress=False).fit(many, y)
    feature_map, coef = model.feature_map_, model.linear_.coef_ * np.tile(model.feature_map_.amplitudes, 2)
    W = feature_map.projection.dense()
    psi = np.stack([np.exp(1j * many[:, c, None] * W[:, c]).mean(axis=0) for c in range(10)])

    def value(inside: tuple[int, ...]) -> np.ndarray:
        factors = psi.copy()
        for c in inside:
            factors[c] = np.exp(1j * many[0, c] * W[:, c])
        wave = factors.prod(axis=0)
        return np.array([wave.real @ coef[:10] + wave.imag @ coef[10:]])

    found = contributions(model, many[:1], many)
    np.testing.assert_allclose(found.values[0], shapley_values(value, 10), atol=1e-9)


@pytest.mark.slow
def test_contributions_are_those_of_the_shap_package() -> None:
    """On a background whose rows are all combinations of a few values, its columns are independent there too."""
    shap = pytest.importorskip("shap")
    model = machine("waves")
    grid = np.array(list(product(*(X[:3, c] for c in range(4)))))
    masker = shap.maskers.Independent(grid, max_samples=len(grid))
    theirs = shap.explainers.Exact(model.predict, masker)(X[10:14])
    ours = contributions(model, X[10:14], X[:3])
    np.testing.assert_allclose(ours.values[:, :, 0], theirs.values, atol=1e-7)
    np.testing.assert_allclose(ours.base, theirs.base_values[0], atol=1e-7)


def test_classes_and_frames_are_explained_by_name() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(40, 9, 200), "colour": rng.choice(list("rgb"), 200)})
    y = np.where(frame["colour"] == "r", "hot", np.where(frame["age"] > 40, "old", "young"))
    features = dkl.RandomFeatures(dkl.Gaussian(2.0), 60, scaling="standard", random_state=0)
    model = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", alpha=1e-3, progress=False).fit(
        frame, y
    )
    background = background_of(model, frame)
    row = frame[frame["colour"] == "r"].iloc[:1]
    found = contributions(model, row, background)
    assert found.outputs == ("hot", "old", "young")
    assert found.label(0, 1) == "colour = r"
    assert found.values[0, 1, 0] > abs(found.values[0, 0, 0])
    assert "colour = r" in repr(found)
    assert list(found.to_frame(1).columns) == ["age", "colour"]
    for wrong in ({"row": 700}, {"output": -9}):
        with pytest.raises(
            IndexError, match=r"is (700|-9), and there are contributions to \d+ (row|output)s, from 0 on"
        ):
            ContributionsDisplay(found, **wrong)
    drawn = ContributionsDisplay(found, most=1)
    assert [label for label, _ in drawn.steps] == ["colour = r", "1 others"]
    total = sum(value for _, value in drawn.steps)
    assert total == pytest.approx(model.decision_function(row)[0, 0] - found.base[0], abs=1e-5)
    with pytest.raises(ValueError, match="belong to background_of"):
        contributions(model, row, background, names=["a", "b", "c", "d"])


def test_a_date_without_its_days_and_a_name_of_many_are_shown_in_words() -> None:
    n, generator = 600, np.random.default_rng(0)
    since = pd.Timestamp("2021-01-01") + pd.to_timedelta(generator.integers(0, 1_500, n), unit="D")
    frame = pd.DataFrame({"since": since, "town": generator.choice([f"t{k}" for k in range(40)], n)})
    y = generator.normal(size=n)
    encoding = learn_encoding([frame[["since"]]])
    assert encoding.rules[0].parts == ("days", "weekday", "yearday")
    days = replace(encoding.rules[0], parts=("weekday", "yearday"))
    rows = replace(encoding, rules=(days,)).transform(frame[["since"]])
    for row, time in enumerate(since[:50]):
        assert written_time(rows[row], days.parts) == f"{time.day_name()}, day {time.day_of_year}"
    model = dkl.KernelRegressor(dkl.RandomFeatures(n_features=10, random_state=0), random_state=0, progress=False)
    found = contributions(model.fit(frame, y), frame[:1], frame)
    count = int((frame["town"] == frame["town"][0]).sum())
    assert re.fullmatch(rf"town = mean target [+-][\d.e-]+, {count} rows", found.label(0, 1)), found.label(0, 1)


def test_a_date_is_shown_as_a_date_and_a_picture_says_the_class(tmp_path: Any) -> None:
    rng, n = np.random.default_rng(0), 200
    first = pd.Timestamp("2021-01-01")
    frame = pd.DataFrame(
        {
            "since": first + pd.to_timedelta(rng.integers(0, 1_500, n), unit="D"),
            "at": first + pd.to_timedelta(rng.integers(0, 1_500 * 1_440, n), unit="min"),
            "clock": pd.to_timedelta(rng.integers(0, 1_440, n), unit="min") + first,
        }
    )
    frame["clock"] = frame["clock"].dt.time
    y = np.where(rng.random(n) < 0.5, "bad", "good")
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    model = dkl.KernelClassifier(features, by_time=False, random_state=0, progress=False).fit(frame, y)
    found = contributions(model, frame[:3], frame)
    for row, (since, at, clock) in enumerate(frame[:3].itertuples(index=False)):
        assert found.label(row, 0) == f"since = {since:%Y-%m-%d}"
        assert found.label(row, 1) == f"at = {at:%Y-%m-%d %H:%M}"
        assert found.label(row, 2) == f"clock = {clock:%H:%M}"
    assert found.unit == "decision value of good"
    pytest.importorskip("matplotlib.pyplot").switch_backend("agg")
    (panel,) = found.plot(row=1).axes_
    assert " ".join(panel.get_xlabel().split()).startswith("decision value of good: mean ")
    with pytest.raises(ValueError, match=r"by itself with groups=\{\}: \['since\.days'"):
        dkl.explain.partial_dependence(model, frame, "since")
    with pytest.raises(ValueError, match=r"no column 'since\.days'.*groups=\{\} has encoded columns"):
        dkl.explain.partial_dependence(model, frame, "since.days")
    days = dkl.explain.partial_dependence(model, frame, "since.days", groups={})
    axes = days.plot().axes_[0]
    assert axes.get_ylabel().split("\n") == ["decision value of good, mean over", "the rows"]
    axes.figure.canvas.draw()
    assert axes.yaxis.label.get_window_extent().height < axes.figure.bbox.height


def test_zeros_of_sparse_columns_are_counted_and_not_looked_at() -> None:
    model = machine("waves")
    counts = np.random.default_rng(0).poisson(0.2, (500, 4)).astype(float)
    parts = [part_of(model.feature_map_, np.array([c])) for c in range(4)]
    found = []
    for rows_ in (counts, sparse.csr_array(counts)):
        block = Block(0, rows_, None, np.arange(500.0), np.arange(500))
        found.append(wave_means(wave_sums(block, {"parts": parts, "dtype": "float64"})))
    np.testing.assert_allclose(found[1], found[0], atol=1e-12)


def test_threads_give_the_bits_of_one(tmp_path: Any) -> None:
    model, rng = machine("waves"), np.random.default_rng(0)
    dataset = dkl.create_dataset(tmp_path / "rows.zarr", rng.normal(size=(3_000, 4)), rows_a_block=256)
    with dask.config.set(scheduler="synchronous"):
        alone = contributions(model, dataset, dataset)
    again = contributions(model, dataset, dataset)
    assert again.values.tobytes() == alone.values.tobytes()
    assert again.base.tobytes() == alone.base.tobytes()


def test_a_column_that_changes_nothing_in_a_row_adds_exactly_nothing() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(600, 4)), columns=list("abcd"))
    y = np.sin(frame.a) + frame.b * frame.c + frame.d * frame.a + 0.3 * generator.normal(size=600)
    model = dkl.KernelRegressor(dkl.StepFeatures(n_features=100, random_state=0), random_state=0, progress=False)
    model.fit(frame, y)
    beyond = frame[:50].assign(d=100.0)
    found = contributions(model, beyond, beyond)
    assert np.array_equal(found.values[:, 3], np.zeros((50, 1)))
    assert np.abs(found.values[:, 0]).min() > 1e-3
    np.testing.assert_allclose(found.predictions[:, 0], model.predict(beyond), atol=1e-5)
