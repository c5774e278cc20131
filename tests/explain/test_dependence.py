"""Partial dependence: the mean prediction with columns set, whatever formula it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl.explain import contributions, effects, partial_dependence
from dkl.explain.column_groups import patterns_of
from dkl.plots import DependenceDisplay
from tests.explain.cases import NAMES, decision_values, machine, mixed_machine, rows

X, _ = rows()


def mean_prediction(model: Any, members: list[int], pattern: np.ndarray, weights: np.ndarray) -> np.ndarray:
    changed = X.copy()
    changed[:, members] = pattern
    return weights @ decision_values(model, changed) / weights.sum()


@pytest.mark.parametrize("name", NAMES)
def test_dependence_is_the_mean_prediction_with_the_column_set(name: str) -> None:
    model, weights = machine(name), np.arange(len(X)) % 3
    columns: list[Any] = [1, ("column 0", 3), 3]
    found = partial_dependence(model, X, columns, resolution=7, sample_weight=weights)
    assert [one.values.shape[:-1] for one in found] == [(7,), (7, 2), (2,)]
    first, second = (axis.patterns for axis in found[1].axes)
    joint = [[mean_prediction(model, [0, 3], np.append(a, b), weights) for b in second] for a in first]
    single = [mean_prediction(model, [1], pattern, weights) for pattern in found[0].axes[0].patterns]
    np.testing.assert_allclose(found[0].values, single, atol=1e-8)
    np.testing.assert_allclose(found[1].values, joint, atol=1e-8)
    np.testing.assert_allclose(found[0].mean, mean_prediction(model, [], np.empty(0), weights), atol=1e-8)
    alone = [[mean_prediction(model, [c], p, weights) for p in axis] for c, axis in ((0, first), (3, second))]
    expected = np.array(joint) - np.array(alone[0])[:, None] - np.array(alone[1])[None] + found[0].mean
    np.testing.assert_allclose(found[1].interaction, expected, atol=1e-8)
    of_sparse = partial_dependence(model, sparse.csr_array(X), 1, resolution=7, sample_weight=weights)
    np.testing.assert_allclose(of_sparse.values, found[0].values, atol=1e-8)


def test_a_model_of_single_columns_has_no_interaction() -> None:
    model = machine("linear")
    found = partial_dependence(model, X, (0, 1))
    assert found.strength < 1e-12
    assert partial_dependence(model, X, 1).strength == pytest.approx(
        abs(decision_slope(model)) * X[:, 1].std(), rel=0.05
    )
    assert partial_dependence(machine("waves"), X, (1, 2)).strength > 0.1


def decision_slope(model: Any) -> float:
    ends = decision_values(model, np.stack([X[0], X[0] + [0.0, 1.0, 0.0, 0.0]]))
    return float((ends[1] - ends[0])[0])


def test_a_category_takes_its_values_and_a_number_with_gaps_those_that_are_there() -> None:
    model, frame = mixed_machine()
    colour, age, both = partial_dependence(model, frame, ["colour", "age", ("age", "colour")], resolution=5)
    assert colour.axes[0].labels == ("b", "g", "r")
    for label, value in zip(colour.axes[0].labels, colour.values, strict=True):
        assert value == pytest.approx(model.predict(frame.assign(colour=label)).mean(), abs=1e-6)
    assert colour.strength == pytest.approx(np.std(colour.values[colour.axes[0].nearest()]))
    assert age.axes[0].numbers is not None
    for number, value in zip(age.axes[0].numbers, age.values, strict=True):
        assert value == pytest.approx(model.predict(frame.assign(age=np.float32(number))).mean(), abs=1e-5)
    assert both.names == ("age", "colour")
    assert "5 x 3 values, interaction strength" in repr(both)
    drawn = DependenceDisplay([colour, age, both]).plot()
    assert [text.get_text() for text in drawn.axes_[0].get_xticklabels()] == ["b", "g", "r"]
    np.testing.assert_allclose(drawn.axes_[2].get_lines()[2].get_ydata(), both.values[:, 2, 0] - both.mean)


def test_a_group_that_is_never_without_its_flags_has_an_axis_too() -> None:
    always = np.column_stack([X[:, 0], np.ones(len(X))])
    np.testing.assert_array_equal(patterns_of(always, 3, "a")[:, 1], 0.0)
    assert np.ptp(patterns_of(always, 3, "a")[:, 0]) > 1.0


def test_bad_input_is_one_clear_error() -> None:
    model = machine("waves")
    for columns, message in (
        ("age", "no column 'age'"),
        ((1, 1), "no pair"),
        ((0, 1, 2), "no pair"),
        (4, "there are 4"),
    ):
        with pytest.raises(ValueError, match=message):
            partial_dependence(model, X, columns)
    with pytest.raises(ValueError, match="several numbers"):
        partial_dependence(model, X, "both", groups={"both": [0, 1]})
    with pytest.raises(ValueError, match="at least 2"):
        partial_dependence(model, X, 0, resolution=1)


def test_rows_of_unit_length_are_explained_by_predictions_alone() -> None:
    """A scaled count depends on the other columns of its row: no formula for single columns holds."""
    counts, y = np.abs(X), np.sin(X[:, 0])
    for family in (dkl.Gaussian(1.0), dkl.Coordinates()):
        features = dkl.RandomFeatures(family, 20, scaling="counts", dtype="float64", random_state=0)
        model = dkl.KernelRegressor(features, solver="newton", alpha=1e-3, progress=False).fit(counts, y)
        found = partial_dependence(model, counts, 1, resolution=5)
        for value, pattern in zip(found.values, found.axes[0].patterns, strict=True):
            changed = counts.copy()
            changed[:, 1] = pattern
            np.testing.assert_allclose(value, model.predict(changed).mean(), atol=1e-8)
        parts = contributions(model, counts[:3], counts)
        np.testing.assert_allclose(parts.predictions[:, 0], model.predict(counts[:3]), atol=1e-8)
        with pytest.raises(TypeError, match="rows scaled as 'counts', whose columns depend on each other"):
            effects(model, counts)
