"""CombinedFeatures: the columns of several learners, each as it is by itself, as one linear model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_friedman1

import dkl
from dkl.explain import effects
from dkl.features.feature_map import CombinedProjection, FeatureMap, combined_map
from dkl.kernels.generic import mapped
from dkl.kernels.maps import map_rows, mapping_flops
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.planning import plan
from dkl.testing import check_learner
from tests.export.models import MAPS, TWO, X


def learners() -> list[Any]:
    return [dkl.StepFeatures(n_features=30), dkl.NystromFeatures(n_features=20, scaling="standard")]


def friedman(n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    rows, y = make_friedman1(n, noise=0.5, random_state=0)
    return rows.astype(np.float32), y


def test_columns_are_those_of_the_learners_by_themselves() -> None:
    rows, y = friedman()
    both = dkl.CombinedFeatures(learners(), random_state=3).fit(rows, y)
    seeds = [learner.seed_ for learner in both.learners_]
    assert seeds[0] == 3 != seeds[1]
    alone = [learner.set_params(random_state=seed) for learner, seed in zip(learners(), seeds, strict=True)]
    expected = [learner.fit(rows, y).transform(rows) for learner in alone]
    np.testing.assert_allclose(both.transform(rows), np.hstack(expected) / np.sqrt(2.0), rtol=1e-6)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_sums_are_those_of_the_mapped_rows(form: Any) -> None:
    feature_map = MAPS["combined"]().fit(X, TWO).feature_map_
    feature_map = FeatureMap("combined", feature_map.projection, np.linspace(0.5, 2.0, feature_map.n_features))
    rows, S = form(X), np.random.default_rng(1).standard_normal((len(X), 2))
    phi = map_rows(rows, feature_map, "float64")
    parts = [map_rows(rows, part, "float64") for part in feature_map.projection.maps]
    np.testing.assert_allclose(phi, np.hstack(parts) * feature_map.amplitudes, rtol=1e-12)
    np.testing.assert_allclose(feature_sums(rows, S, feature_map, "float64")[0], phi.T @ S, atol=1e-9)
    np.testing.assert_allclose(
        feature_squares(rows, S[:, 0], feature_map, "float64")[0], (phi**2).T @ S[:, 0], atol=1e-9
    )
    np.testing.assert_allclose(mapped(np, X, feature_map, np.float64)[0], phi, rtol=1e-9, atol=1e-12)
    assert mapping_flops(4, feature_map) == sum(mapping_flops(4, part) for part in feature_map.projection.maps)


def test_one_linear_model_on_all_columns_beats_each_kind_where_both_are_in_the_target() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((1_500, 3)).astype(np.float32)
    y = (
        np.sin(3.0 * rows[:, 0]) * np.cos(2.0 * rows[:, 1])
        + 2.0 * (rows[:, 2] > 0.3)
        + 0.1 * rng.standard_normal(1_500)
    )
    kinds: list[Any] = [
        dkl.StepFeatures(n_features=60),
        dkl.RandomFeatures(dkl.Gaussian(0.7), n_features=300, scaling="standard"),
    ]
    scores = [
        dkl.KernelRegressor(features, solver="newton", alpha="auto", random_state=0)
        .fit(rows[:1_000], y[:1_000])
        .score(rows[1_000:], y[1_000:])
        for features in (dkl.CombinedFeatures(kinds), *kinds)
    ]
    assert scores[0] > max(scores[1:]) + 0.02


def test_searches_have_seeds_of_their_own_and_share_one_coefficient_vector() -> None:
    rows, y = friedman()
    features = dkl.CombinedFeatures([dkl.StepFeatures(n_features=20, random_state=7)], searches=3)
    model = dkl.KernelRegressor(features, solver="newton", alpha="auto", random_state=0).fit(rows, y)
    found = model.features_.learners_
    assert len({learner.seed_ for learner in found}) == 3
    assert len({tuple(learner.atoms_) for learner in found}) == 3
    assert model.linear_.coef_.shape[-1] == sum(len(learner.atoms_) for learner in found)


def test_all_columns_together_stay_below_the_bound() -> None:
    rows, y = friedman()
    both = dkl.CombinedFeatures(learners(), n_features=25, random_state=0).fit(rows, y)
    assert [learner.n_features for learner in both.learners_] == [15, 10]
    assert both.transform(rows).shape[1] <= 25


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    rows, y = friedman()
    model = dkl.KernelRegressor(dkl.CombinedFeatures(learners()), solver="newton", random_state=0).fit(rows, y)
    model.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(rows), model.predict(rows))
    assert loaded.features_.learners_[0].atoms_ == model.features_.learners_[0].atoms_


def test_a_checkpoint_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    rows, y = friedman()
    features = dkl.CombinedFeatures(learners(), random_state=0, checkpoint=str(tmp_path / "run"))
    first = clone(features).fit(rows, y).transform(rows)
    np.testing.assert_array_equal(clone(features).fit(rows, y).transform(rows), first)


def test_effects_of_several_kinds_add_up_to_the_model() -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((300, 3))
    y = np.sin(rows[:, 0]) + (rows[:, 1] > 0.2) * rows[:, 2]
    kinds = [dkl.StepFeatures(n_features=30), dkl.RandomFeatures(dkl.Gaussian(1.5), 40)]
    features = dkl.CombinedFeatures(kinds, dtype="float64", random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", alpha=1e-3).fit(rows, y)
    found = effects(model, rows)
    total = sum(effect(*rows[:, effect.columns].T)[:, 0] for effect in found)
    assert len({effect.columns for effect in found}) == len(found) == 7
    # what is left of each prediction is the mean under independent columns
    np.testing.assert_allclose(np.ptp(model.predict(rows) - total), 0.0, atol=1e-4)
    for effect in found:
        values = effect(*rows[:, effect.columns].T)
        assert effect.strength == pytest.approx(values.std(), rel=1e-6)


def test_effects_of_a_kernel_among_them_are_refused_by_its_name() -> None:
    rows, y = friedman(200)
    model = dkl.KernelRegressor(dkl.CombinedFeatures(learners()), solver="newton", random_state=0).fit(rows, y)
    with pytest.raises(TypeError, match="'nystrom'"):
        effects(model, rows)


def test_a_plan_counts_every_learner() -> None:
    rows, y = friedman()
    both, alone = plan(dkl.CombinedFeatures(learners()), rows, y), [plan(learner, rows, y) for learner in learners()]
    assert both.n_passes == sum(planned.n_passes for planned in alone)


def test_combined_features_keep_the_promises_of_learners() -> None:
    check_learner(dkl.CombinedFeatures(learners()))


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([dkl.StepFeatures(), 3], "must hold feature learners"),
        ([dkl.StepFeatures(monotone={0: 1})], "without signs"),
        ([], "must hold feature learners"),
        (["stepz"], "stepz"),
    ],
)
def test_bad_lists_are_refused_by_name(features: list[Any], message: str) -> None:
    with pytest.raises((ValueError, KeyError), match=message):
        dkl.CombinedFeatures(features).fit(*friedman(100))


def test_maps_of_other_columns_are_refused_and_combinations_taken_apart() -> None:
    one, other = (dkl.Gaussian(1.0).draw(3, d, 0) for d in (2, 3))
    with pytest.raises(ValueError, match=r"same columns; these take \[2, 3\]"):
        combined_map([one, other])
    nested = combined_map([combined_map([one, one], np.array([2.0, 3.0])), one], np.array([5.0, 1.0]))
    assert isinstance(nested.projection, CombinedProjection)
    assert len(nested.projection.maps) == 3
    np.testing.assert_array_equal(nested.amplitudes, np.repeat([10.0, 15.0, 1.0], 6))
    with pytest.raises(ValueError, match="single columns"):
        nested.take(np.array([0]))
    assert nested.joined(nested).n_features == 36


def test_learners_that_are_fitted_already_are_put_together_as_they_are() -> None:
    X, y = make_friedman1(120, n_features=6, random_state=0)
    one, two, three = (dkl.RandomFeatures(n_features=10 * n, random_state=n).fit(X, y) for n in (1, 2, 3))
    both = dkl.CombinedFeatures().put_together([one, two])
    every = dkl.CombinedFeatures().put_together([both, three])
    expected = np.hstack([learner.transform(X) for learner in (one, two, three)]) / np.sqrt(3.0)
    np.testing.assert_allclose(every.transform(X), expected, rtol=1e-6)


def test_a_list_of_features_is_their_combination(tmp_path: Path) -> None:
    rows, y = load_breast_cancer(return_X_y=True)
    parts: list[Any] = [dkl.StepFeatures(n_features=20), "random"]
    model = dkl.KernelClassifier(parts, solver="newton", random_state=0).fit(rows, y)
    combined = dkl.KernelClassifier(dkl.CombinedFeatures(parts), solver="newton", random_state=0).fit(rows, y)
    np.testing.assert_array_equal(model.decision_function(rows), combined.decision_function(rows))
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.decision_function(rows), model.decision_function(rows))
    for wrong in ([], [3], [None]):
        with pytest.raises(ValueError, match="or a list of these"):
            dkl.KernelClassifier(wrong).fit(rows, y)
