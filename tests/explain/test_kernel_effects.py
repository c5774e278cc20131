"""Effects of models on kernels of few columns at landmarks: the analysis of variance by its definition."""

from __future__ import annotations

from itertools import chain, combinations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.explain import effects
from dkl.explain.column_groups import columns_of
from dkl.methods.validation import encoded_rows
from dkl.plots import EffectsDisplay
from tests.explain.cases import decision_values

KERNELS = {
    "pairs": dkl.SparseFrequencies(dkl.Laplacian(1.5), 0.4, most_columns=2),
    "triples": dkl.SparseFrequencies(dkl.Gaussian(1.0), 0.5, most_columns=3),
    "single columns": dkl.SparseFrequencies(dkl.Cauchy(1.0), 0.4, most_columns=1),
}


def mixed() -> tuple[pd.DataFrame, np.ndarray]:
    """A category of three values, a number with gaps, and two numbers, of which one acts with the category."""
    rng = np.random.default_rng(1)
    n = 300
    frame = pd.DataFrame({"colour": rng.choice(list("rgb"), n), "age": rng.normal(size=n), "size": rng.normal(size=n)})
    frame["height"] = rng.normal(size=n)
    y = frame["age"] ** 2 + np.where(frame["colour"] == "r", 2.0 * frame["size"], 0.0)
    frame.loc[::9, "age"] = np.nan
    return frame, y.to_numpy()


def fitted(name: str, scaling: str = "quantile", **settings: Any) -> tuple[Any, pd.DataFrame]:
    frame, y = mixed()
    features = dkl.NystromFeatures(KERNELS[name], 60, scaling=scaling, dtype="float64", random_state=0, **settings)
    return dkl.KernelRegressor(features, solver="newton", alpha=1e-4, random_state=0).fit(frame, y), frame


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("scaling", ["standard", "quantile"])
def test_an_effect_is_what_sets_of_columns_do_beyond_their_subsets(name: str, scaling: str) -> None:
    model, frame = fitted(name, scaling)
    few = encoded_rows(model, frame.iloc[:4])
    every = np.asarray(few, dtype=float)
    found = effects(model, frame.iloc[:4], most_columns=3)
    assert max(len(effect.columns) for effect in found) == KERNELS[name].most_columns
    members = columns_of(model).members
    point = np.asarray(encoded_rows(model, frame.iloc[[9]]), dtype=float)[0]

    def mean_with(columns: tuple[int, ...]) -> np.ndarray:
        rows = []
        for choice in product(*([0] if c in columns else range(len(every)) for c in range(4))):
            row = point.copy()
            for c, i in enumerate(choice):
                if c not in columns:
                    row[members[c]] = every[i, members[c]]
            rows.append(row)
        return decision_values(model, np.array(rows)).mean(axis=0)

    for effect in found:
        subsets = list(chain.from_iterable(combinations(effect.columns, k) for k in range(len(effect.columns) + 1)))
        expected = sum((-1) ** (len(effect.columns) - len(inside)) * mean_with(inside) for inside in subsets)
        own = [point[members[c]] if len(members[c]) > 1 else point[members[c][0]] for c in effect.columns]
        np.testing.assert_allclose(np.ravel(effect(*own)), expected, atol=1e-9)


def test_effects_add_up_to_the_model() -> None:
    model, frame = fitted("pairs")
    rows = np.asarray(encoded_rows(model, frame), dtype=float)
    found = effects(model, frame)
    total = np.zeros(len(rows))
    for effect in found:
        own = [rows[:, factor.columns] for factor in effect.factors]
        values = effect(*(one if one.shape[1] > 1 else one[:, 0] for one in own))[:, 0]
        assert effect.strength == pytest.approx(values.std(), rel=1e-6, abs=1e-9)
        total += values
    left = model.predict(frame) - total
    np.testing.assert_allclose(left, left[0], atol=1e-8)
    assert {effect.names for effect in found[:3]} >= {("age",), ("colour", "size")}
    drawn = EffectsDisplay.from_estimator(model, frame, n_effects=4).plot()
    assert ("colour", "size") in drawn.names


def test_products_of_more_columns_belong_to_no_effect() -> None:
    model, frame = fitted("pairs")
    alone, pairs = effects(model, frame, most_columns=1), effects(model, frame, most_columns=2)
    assert {len(effect.columns) for effect in alone} == {1}
    # a product with another column has a main effect, too, which is not told where its pair is not
    of_pairs = {effect.columns: effect for effect in pairs}
    differences = [abs(effect.strength - of_pairs[effect.columns].strength) for effect in alone]
    assert max(differences) > 1e-3


def test_combined_with_steps_their_effects_add_up() -> None:
    frame, y = mixed()
    parts = [
        dkl.StepFeatures(2, n_features=30, random_state=0),
        dkl.NystromFeatures(KERNELS["pairs"], 40, random_state=0),
    ]
    features = dkl.CombinedFeatures(parts)
    model = dkl.KernelRegressor(features, solver="newton", alpha=1e-4, random_state=0).fit(frame, y)
    rows = np.asarray(encoded_rows(model, frame), dtype=float)
    total = np.zeros(len(rows))
    for effect in effects(model, frame):
        own = [rows[:, factor.columns] for factor in effect.factors]
        total += effect(*(one if one.shape[1] > 1 else one[:, 0] for one in own))[:, 0]
    left = model.predict(frame) - total
    np.testing.assert_allclose(left, left[0], atol=1e-4)


def test_kernels_of_all_columns_have_no_effects() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    for kernel in (dkl.Laplacian(1.0), dkl.SparseFrequencies(dkl.Laplacian(1.0))):
        features = dkl.NystromFeatures(kernel, 20, random_state=0)
        model = dkl.KernelRegressor(features, solver="newton", alpha=1e-3).fit(X, X[:, 0])
        with pytest.raises(TypeError, match=r"most_columns=2.*partial_dependence"):
            effects(model, X)
