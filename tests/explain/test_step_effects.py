"""Effects and contributions of models on steps: exact, pure, and those of the same model wherever it comes from."""

from __future__ import annotations

from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.explain import contributions, effects
from dkl.methods.validation import encoded_rows
from dkl.plots import ContributionsDisplay, EffectsDisplay
from tests.explain.cases import decision_values, machine, rows

X, _ = rows()
FEW = X[:5]


def learned(depth: int = 3, n: int = 600) -> tuple[Any, np.ndarray]:
    """The working model on a number that is a product of two thresholds, a slope, and noise."""
    rng = np.random.default_rng(0)
    many = rng.uniform(size=(n, 4))
    y = 2.0 * ((many[:, 1] > 0.5) & (many[:, 3] > 0.3)) + many[:, 0] + 0.1 * rng.standard_normal(n)
    features = dkl.StepFeatures(depth, n_features=60, dtype="float64", random_state=0)
    return features.fit(many, y).machine_, many


def mean_with(model: Any, values: dict[int, float], background: np.ndarray) -> np.ndarray:
    """The mean decision value with some columns set, the others independent: over all combinations of their values."""
    every = np.array(list(product(*([values[c]] if c in values else background[:, c] for c in range(4)))))
    return decision_values(model, every).mean(axis=0)


def test_an_effect_is_what_sets_of_columns_do_beyond_their_subsets() -> None:
    model = machine("steps", classes=3)
    found = effects(model, FEW)
    assert max(len(effect.columns) for effect in found) == 3
    for effect in found:
        subsets = list(chain.from_iterable(combinations(effect.columns, k) for k in range(len(effect.columns) + 1)))
        for row in X[20:23]:
            # the sum over subsets S of T of (-1)^(|T| - |S|) times the mean with the columns S set
            expected = sum(
                (-1) ** (len(effect.columns) - len(inside)) * mean_with(model, {c: row[c] for c in inside}, FEW)
                for inside in subsets
            )
            np.testing.assert_allclose(effect(*row[list(effect.columns)]), expected, atol=1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_effects_add_up_to_the_model_and_are_of_mean_zero_in_each_column(depth: int) -> None:
    model, many = learned(depth)
    found = effects(model, many)
    total = sum(effect(*many[:, list(effect.columns)].T)[:, 0] for effect in found)
    left = model.predict(many) - total
    np.testing.assert_allclose(left, left[0], atol=1e-8)
    assert max(len(effect.columns) for effect in found) <= depth
    strengths = [effect.strength for effect in found]
    assert strengths == sorted(strengths, reverse=True)
    for effect in found:
        own = effect(*many[:, list(effect.columns)].T)
        assert effect.strength == pytest.approx(np.std(own), rel=1e-6)
        for position in range(len(effect.columns)):
            values = [np.full(len(many), 0.7)] * len(effect.columns)
            values[position] = many[:, effect.columns[position]]
            assert abs(effect(*values).mean()) < 1e-9


def test_the_pair_behind_the_targets_is_found_and_drawn_as_a_map() -> None:
    model, many = learned(2, 2_000)
    found = {effect.columns: effect for effect in effects(model, many)}
    pairs = [columns for columns in found if len(columns) == 2]
    assert pairs[0] == (1, 3)
    above, below = found[1, 3](0.8, 0.8), found[1, 3](0.8, 0.1)
    # 2 (1[a > .5] - .5) (1[b > .3] - .7)
    np.testing.assert_allclose([above[0], below[0]], [0.3, -0.7], atol=0.15)
    drawn = EffectsDisplay.from_estimator(model, many, n_effects=4).plot()
    assert ("column 1", "column 3") in drawn.names
    assert drawn.values[drawn.names.index(("column 1", "column 3"))].shape == (60, 60, 1)


def mixed() -> tuple[pd.DataFrame, np.ndarray]:
    """A category, a number with gaps, and a number."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"colour": rng.choice(list("rgb"), 400), "age": rng.normal(size=400), "size": rng.normal(size=400)}
    )
    frame.loc[::9, "age"] = np.nan
    return frame, (frame["colour"] == "r") * (frame["size"] > 0) + frame["age"].fillna(2.0)


def test_a_category_is_one_column_and_a_loaded_model_says_the_same(tmp_path: Path) -> None:
    frame, y = mixed()
    features = dkl.StepFeatures(n_features=40, dtype="float64", random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", alpha=1e-4, random_state=0, progress=False).fit(frame, y)
    found = {effect.names: effect for effect in effects(model, frame)}
    assert {name for names in found for name in names} == {"colour", "age", "size"}
    encoded = encoded_rows(model, frame)
    own = {"colour": encoded[:, :3], "age": encoded[:, 3:5], "size": encoded[:, 5]}
    total = sum(effect(*(own[name] for name in names))[:, 0] for names, effect in found.items())
    left = model.predict(frame) - total
    np.testing.assert_allclose(left, left[0], atol=1e-7)
    of_rows = contributions(model, frame[:4], frame)
    assert of_rows.names == ("colour", "age", "size")
    np.testing.assert_allclose(of_rows.predictions[:, 0], model.predict(frame[:4]), atol=1e-7)
    assert ContributionsDisplay(of_rows).steps[0][0].startswith(of_rows.names)
    model.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(contributions(again, frame[:4], frame).values, of_rows.values)
    assert [effect.names for effect in effects(again, frame)] == list(found)


def test_kernels_at_landmarks_have_no_effects() -> None:
    with pytest.raises(TypeError, match=r"the features are 'nystrom'; effects are .*partial_dependence takes"):
        effects(machine("nystrom"), X)


def test_effects_of_a_mean_over_bags_say_how_far_the_bags_differ(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    many = rng.uniform(size=(500, 3))
    y = 2.0 * (many[:, 1] > 0.5) * (many[:, 2] > 0.3) + many[:, 0] + 0.3 * rng.standard_normal(500)
    learner = dkl.StepFeatures(2, n_features=30, bags=3, dtype="float64", random_state=0).fit(many, y)
    learner.save(tmp_path / "bags.zarr")
    model = dkl.load_model(tmp_path / "bags.zarr").machine_
    # literally: the model with the coefficients of one bag alone
    one_by_one = []
    for own in learner.bag_coef_:
        alone = dkl.load_model(tmp_path / "bags.zarr")
        alone.coef_ = own
        one_by_one.append({effect.columns: effect for effect in effects(alone.machine_, many)})
    found = effects(model, many)
    assert {len(effect.columns) for effect in found} == {1, 2}
    for effect in found:
        values = many[:40, list(effect.columns)].T
        each = np.stack([bag[effect.columns](*values) for bag in one_by_one])
        np.testing.assert_allclose(effect(*values), each.mean(axis=0), atol=1e-9)
        np.testing.assert_allclose(effect.deviations(*values), each.std(axis=0, ddof=1), atol=1e-9)
        assert effect.deviations(*values).max() > 0.0
    drawn = EffectsDisplay.from_estimator(model, many, n_effects=3).plot()
    assert [spread.shape for spread in drawn.deviations] == [value.shape for value in drawn.values]
    of_one = effects(dkl.KernelRegressor(learner, solver="newton", alpha=1e-3, progress=False).fit(many, y), many)[0]
    assert of_one.bag_coefficients is None
    with pytest.raises(ValueError, match=r"fit dkl.StepFeatures\(bags=8\) and explain its machine_"):
        of_one.deviations(0.5)
