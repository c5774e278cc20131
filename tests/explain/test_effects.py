"""Effects: a model on sparse frequencies taken apart exactly, into parts of mean zero that a person can read."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl
from dkl.explain import effects, supports
from dkl.features.feature_map import FeatureMap
from dkl.features.projections import DenseProjection
from dkl.methods.random_features import RandomFeatures
from dkl.methods.validation import encoded_rows
from dkl.plots import EffectsDisplay
from dkl.testing.synthetic import ADDITIVE_EFFECTS, additive


class SparseRandom(RandomFeatures):
    """Random frequencies on one to `entries` columns."""

    def _learn(self, dataset: Any) -> None:
        scaler = self._prepare(dataset)
        generator = np.random.default_rng(self.seed_)
        W = np.zeros((self.n_features // 2, dataset.n_columns), np.float32)
        for row in W:
            entries = generator.integers(1, min(3, dataset.n_columns) + 1)
            row[generator.choice(dataset.n_columns, entries, replace=False)] = 1.2 * generator.normal(size=entries)
        amplitudes = generator.uniform(0.5, 1.5, len(W))
        phases = None if self.family.pairing == "cos-sin" else generator.uniform(0.0, 6.0, len(W))
        activation = "cos-sin" if phases is None else "cos"
        self.feature_map_ = FeatureMap(activation, DenseProjection(W), amplitudes, phases, scaler=scaler)


def fitted(X: np.ndarray, y: np.ndarray, *, pairing: str = "cos-sin", n_features: int = 60, **parameters: Any) -> Any:
    features = SparseRandom(dkl.Gaussian(1.0, pairing=pairing), n_features, random_state=0, **parameters)
    return dkl.KernelRegressor(features, solver="newton", alpha=1e-4, random_state=0, progress=False).fit(X, y)


@pytest.mark.parametrize("pairing", ["cos-sin", "phase"])
@pytest.mark.parametrize("scaling", [None, "standard", "quantile"])
def test_effects_add_up_to_the_model(pairing: str, scaling: Any) -> None:
    X, y = additive(200, n_columns=5)
    model = fitted(X, y, pairing=pairing, scaling=scaling, dtype="float64")
    total = sum(effect(*X[:, list(effect.columns)].T)[:, 0] for effect in effects(model, X))
    difference = model.predict(X) - total
    # what is left is the mean, a constant
    np.testing.assert_allclose(difference, difference[0], atol=1e-9 * np.abs(y).max() + 1e-9)


def test_an_effect_has_mean_zero_in_each_of_its_columns() -> None:
    """Under the product of the columns' own distributions, by adding up."""
    X, y = additive(25, n_columns=4)
    for effect in effects(fitted(X, y), X):
        for column in effect.columns:
            others = [X[:3, c] for c in effect.columns if c != column]
            for fixed in product(*others):
                rest = iter(fixed)
                values = [X[:, c] if c == column else np.full(len(X), next(rest)) for c in effect.columns]
                assert abs(effect(*values).mean()) < 1e-5


def test_a_strength_is_the_deviation_over_the_rows() -> None:
    X, y = additive(100, n_columns=4)
    found = effects(fitted(X, y), X)
    for effect in found:
        assert effect.strength == pytest.approx(np.std(effect(*X[:, list(effect.columns)].T)), rel=1e-5)
    assert [e.strength for e in found] == sorted((e.strength for e in found), reverse=True)


def test_the_effects_behind_the_targets_are_found_and_read() -> None:
    X, y = additive(2_000, n_columns=6)
    model = fitted(X, y, n_features=600, scaling="standard")
    found = {effect.columns: effect for effect in effects(model, X)}
    strongest = sorted(found, key=lambda columns: -found[columns].strength)[:3]
    assert set(strongest) == set(ADDITIVE_EFFECTS)
    for columns, true in ADDITIVE_EFFECTS.items():
        inner = X[(np.abs(X) < 1.5).all(axis=1)]
        expected = true(inner) - true(X).mean()
        read = found[columns](*inner[:, list(columns)].T)[:, 0]
        assert np.std(read - expected) < 0.1 * np.std(expected)


def test_wide_frequencies_belong_to_no_effect() -> None:
    X, y = additive(100, n_columns=5)
    model = fitted(X, y)
    assert max(len(effect.columns) for effect in effects(model, X)) == 3
    assert max(len(effect.columns) for effect in effects(model, X, most_columns=1)) == 1
    dense = dkl.KernelRegressor(RandomFeatures(n_features=20, random_state=0), solver="newton", progress=False)
    assert effects(dense.fit(X, y), X) == []
    with pytest.raises(ValueError, match="sparse_share"):
        EffectsDisplay.from_estimator(dense, X)


def test_supports_ignore_stored_zeros_and_the_order_of_entries() -> None:
    matrix = sparse.csr_array(
        (np.array([0.0, 2.0, 1.0, 3.0, 4.0]), np.array([1, 0, 2, 0, 2]), np.array([0, 2, 4, 5, 5])), shape=(4, 3)
    )
    found = supports(matrix)
    assert {columns: index.tolist() for columns, index in found.items()} == {(0,): [0], (0, 2): [1], (2,): [2], (): [3]}


def test_classes_have_a_curve_each_and_frames_give_names() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(120, 3)), columns=["age", "size", "noise"])
    y = np.digitize(frame["age"], [-0.5, 0.5])
    features = SparseRandom(dkl.Gaussian(1.0), 60, random_state=0)
    model = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", alpha=1e-2, progress=False)
    drawn = EffectsDisplay.from_estimator(model.fit(frame, y), frame, n_effects=4)
    assert drawn.names[0] == ("age",)
    assert drawn.values[0].shape == (120, 3)
    assert EffectsDisplay.from_estimator(model, frame, output=1).values[0].shape[-1] == 1
    assert drawn.labels == ("0", "1", "2")


def mixed() -> tuple[pd.DataFrame, np.ndarray]:
    """A category, a number with gaps, and a number."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"colour": rng.choice(list("rgb"), 90), "age": rng.normal(size=90), "size": rng.normal(size=90)}
    )
    frame.loc[::9, "age"] = np.nan
    return frame, (frame["colour"] == "r") * frame["size"] + frame["age"].fillna(2.0)


@pytest.mark.parametrize("scaling", [None, "quantile"])
def test_a_category_is_one_column_of_effects_that_add_up_to_the_model(scaling: Any) -> None:
    frame, y = mixed()
    model = fitted(frame, y, scaling=scaling, n_features=120, dtype="float64")
    found = {effect.names: effect for effect in effects(model, frame)}
    assert {name for names in found for name in names} == {"colour", "age", "size"}
    encoded = encoded_rows(model, frame)
    own = {"colour": encoded[:, :3], "age": encoded[:, 3:5], "size": encoded[:, 5]}
    assert own["age"][0, 1] == 1.0
    total = sum(effect(*(own[name] for name in names))[:, 0] for names, effect in found.items())
    difference = model.predict(frame) - total
    np.testing.assert_allclose(difference, difference[0], atol=1e-7)
    # of mean zero over the rows' colours, whatever the size is
    both = found["colour", "size"]
    assert np.abs(both(own["colour"], np.full(90, 0.7)).mean(axis=0)) < 1e-6
    assert found["colour",].strength == pytest.approx(np.std(found["colour",](own["colour"])), rel=1e-5)
    apart = {effect.names for effect in effects(model, frame, groups={})}
    assert {("colour=r",), ("age",), ("size",)} <= apart
    with pytest.raises(ValueError, match=r"'colour' is encoded as 3 columns; .* \(..., 3\), not \(2,\)"):
        both([0.0, 1.0], [0.0, 1.0])


def test_a_category_is_drawn_as_dots_at_its_values() -> None:
    frame, y = mixed()
    drawn = EffectsDisplay.from_estimator(fitted(frame, y, n_features=120), frame, n_effects=4).plot()
    for names, grid, values, ax in zip(drawn.names, drawn.grids, drawn.values, drawn.axes_, strict=True):
        assert values.shape[:-1] == tuple(len(axis.labels) for axis in grid)
        if names == ("colour",):
            assert [text.get_text() for text in ax.get_xticklabels()] == ["b", "g", "r"]
            np.testing.assert_array_equal(ax.get_lines()[1].get_ydata(), values[:, 0])
            assert sum(bar.get_height() for bar in ax.patches) > 0.0
        elif "colour" in names:
            assert len(ax.get_legend().get_texts()) == 3


def test_what_has_no_effects_is_a_clear_error() -> None:
    X, y = additive(50)
    model = dkl.KernelRegressor(RandomFeatures(dkl.ArcCosine(), 20, random_state=0), solver="newton", progress=False)
    with pytest.raises(TypeError, match="read off Fourier features"):
        effects(model.fit(X, y), X)
    sparse_model = fitted(X, y)
    with pytest.raises(ValueError, match="2 entries for 12 columns"):
        effects(sparse_model, X, names=["a", "b"])
    with pytest.raises(ValueError, match="expecting 12"):
        effects(sparse_model, X[:, :3])
