"""A predictor answers what its model answers, a row or many, and one row in a moment."""

from __future__ import annotations

import pickle
import re
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import dkl
from dkl.errors import TableDifferenceWarning
from tests.export.models import MAPS, THREE, TWO, X, assert_agree, classifier, random_features


def assert_same_answers(model: Any, rows: np.ndarray = X) -> None:
    """Of all rows at once, and of one by itself."""
    predictor = model.predictor()
    for name in ("predict", "decision_function", "predict_proba"):
        if hasattr(model, name):
            expected, answer = getattr(model, name)(rows), getattr(predictor, name)
            agree = np.testing.assert_array_equal
            if expected.dtype.kind not in "Uib":
                # many rows are answered in single precision, whose error is that of the largest terms
                agree = partial(assert_agree, largest=max(1.0, np.abs(expected).max()))
            agree(answer(rows), expected)
            agree(answer(rows[5]), expected[5])
            agree(answer(rows[:20]), expected[:20])


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit", "quantile", "counts"])
def test_every_scaling_is_part_of_the_predictor(scaling: Any) -> None:
    rows = np.abs(X) if scaling == "counts" else X
    for family in (None, dkl.Coordinates()):
        assert_same_answers(classifier(random_features(family, scaling)).fit(rows, TWO), rows)


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("parameters", [{"loss": "log_loss"}, {"calibrate": True}], ids=str)
def test_classes_and_probabilities_agree(parameters: dict[str, Any], labels: np.ndarray) -> None:
    assert_same_answers(classifier(**parameters).fit(X, labels))


@pytest.mark.parametrize("name", MAPS)
def test_every_feature_map_has_a_predictor(name: str) -> None:
    assert_same_answers(classifier(MAPS[name]()).fit(X, THREE if name == "phases" else TWO))


@pytest.mark.parametrize("targets", [X[:, 2] + 100, X[:, :2]], ids=["one", "two"])
def test_numbers_agree(targets: np.ndarray) -> None:
    assert_same_answers(dkl.TunedRegressor(20, scaling="standard", random_state=0).fit(X, targets))


def raw_rows(**odd: Any) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "age": np.where(np.arange(300) % 7, X[:, 0], np.nan),
            "weight": X[:, 1],
            "smokes": X[:, 2] > 0,
            "colour": np.array(["red", "blue", None], dtype=object)[X[:, 3].astype(int)],
            "town": np.array(["York", "Bath"])[np.arange(300) % 2],
        }
    )
    return frame.assign(**odd)


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_raw_rows_are_answered_by_the_names_of_their_columns() -> None:
    model = classifier().fit(raw_rows(), TWO)
    predictor = model.predictor()
    frame = raw_rows(town=["York", "Rome", "Bath"] * 100)
    expected = model.decision_function(frame)
    assert_agree(predictor.decision_function(frame), expected)
    assert_agree(predictor.decision_function(frame[:9]), expected[:9])
    for place, row in enumerate(frame[:40].to_dict("records")):
        assert_agree(predictor.decision_function(row), expected[place])
        assert predictor.raw._row(row) is not None
        np.testing.assert_array_equal(predictor.raw(row), model.encoding_.transform(frame[place : place + 1])[0])
    assert predictor.predict(frame.iloc[7]) == predictor.predict(frame[7:8])[0]
    # what is not plain is left to the table: a number of another type, a boolean that is one
    odd = {**row, "weight": Decimal("1.5"), "smokes": 1}
    assert_agree(predictor.decision_function(odd), model.decision_function(pd.DataFrame([odd]))[0])


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"weight": 1e300}, "column 'weight' is 1e.300 in row 0"),
        ({"weight": "heavy"}, "column 'weight' is 'heavy' in row 0, and held numbers before"),
        ({"smokes": 5}, "column 'smokes' is 5 in row 0, and held booleans before; expected true or false"),
        ({"smokes": "no"}, "column 'smokes' is 'no' in row 0, and held booleans before"),
        ({"town": 3}, "column 'town' is '3' in row 0, a number, and held texts before"),
        ({"weight": 2**53 + 1}, "column 'weight' is 9007199254740993 in row 0"),
    ],
    ids=["too large", "text", "no boolean", "text for a boolean", "number for a text", "inexact"],
)
def test_a_raw_row_that_cannot_be_answered_is_the_error_of_a_table(odd: dict[str, Any], message: str) -> None:
    predictor = classifier().fit(raw_rows(), TWO).predictor()
    with pytest.raises(ValueError, match=message):
        predictor.predict({**raw_rows().to_dict("records")[0], **odd})
    with pytest.raises(ValueError, match=r"lacks the columns \['age', 'colour'"):
        predictor.predict({"weight": 1.0})


@pytest.mark.parametrize("odd", [{"weight": None}, {"height": 2.0}], ids=["missing", "further"])
def test_a_raw_row_unlike_those_of_fit_is_answered_with_a_warning(odd: dict[str, Any]) -> None:
    model = classifier().fit(raw_rows(), TWO)
    row = {**raw_rows().to_dict("records")[0], **odd}
    with pytest.warns(TableDifferenceWarning, match=next(iter(odd))):
        answer = model.predictor().decision_function(row)
    with pytest.warns(TableDifferenceWarning, match=next(iter(odd))):
        assert_agree(answer, model.decision_function(pd.DataFrame([row]))[0])


def test_a_model_warns_of_the_same_rows_once() -> None:
    model, other = (classifier(loss="log_loss").fit(raw_rows(), TWO) for _ in range(2))
    odd = raw_rows(weight=None)
    with pytest.warns(TableDifferenceWarning, match="'weight'"):
        model.predict(odd)
    # a further warning would be an error
    model.score(odd, TWO)
    model.predict_proba(odd)
    with pytest.warns(TableDifferenceWarning, match=r"5 of 5 rows"):
        model.predict(odd[:5])
    with pytest.warns(TableDifferenceWarning, match="'weight'"):
        other.predict(odd)
    with pytest.raises(ValueError, match="strict=True refuses"):
        model.predict(odd, strict=True)


def test_many_rows_have_the_bits_of_the_model_and_one_that_is_not_finite_is_named() -> None:
    model = classifier().fit(X, THREE)
    np.testing.assert_array_equal(model.predictor().decision_function(X), model.decision_function(X))
    with pytest.raises(ValueError, match=r"X\[7, 2\]"):
        model.predictor().predict(np.where(np.arange(1200).reshape(300, 4) == 30, np.inf, X))


def test_a_row_whose_features_overflow_is_an_error() -> None:
    learner = dkl.RandomFeatures(dkl.ArcCosine(2), n_features=20, random_state=0)
    predictor = classifier(learner).fit(X, TWO).predictor()
    with pytest.raises(ValueError, match="too large for the model"), np.errstate(all="ignore"):
        predictor.decision_function(1e200 * X[0].astype(np.float64))


def test_sparse_rows_are_answered_as_the_model_answers_them() -> None:
    model = classifier(random_features(scaling="unit")).fit(X, TWO)
    rows = sparse.csr_array(X[:9])
    np.testing.assert_array_equal(model.predictor().decision_function(rows), model.decision_function(rows))


def test_a_predictor_is_shown_in_one_line() -> None:
    shown = repr(classifier(random_features(None, None)).fit(X, THREE).predictor())
    assert re.fullmatch(rf"<Predictor of 3 classes: {X.shape[1]} encoded columns, \d+ features>", shown)


def test_a_predictor_can_be_sent_to_another_process() -> None:
    predictor = classifier().fit(X, TWO).predictor()
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(predictor)).predict(X), predictor.predict(X))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (X[0, :3], r"rows have shape \(3,\); the model takes 4 encoded columns"),
        (X[0] * np.nan, "holds NaN or infinity"),
    ],
    ids=["too few", "NaN"],
)
def test_a_row_that_cannot_be_answered_is_an_error(row: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        classifier().fit(X, TWO).predictor().predict(row)


@pytest.mark.parametrize(
    "family", [dkl.ArcCosine(0), dkl.SphericalHarmonics(3, project=True)], ids=["steps", "harmonics"]
)
@pytest.mark.parametrize("scaling", [None, "quantile"])
def test_nan_is_an_error_where_features_would_make_a_number_of_it(family: Any, scaling: Any) -> None:
    predictor = classifier(random_features(family, scaling)).fit(X, TWO).predictor()
    with pytest.raises(ValueError, match="holds NaN or infinity"):
        predictor.predict(np.where(np.arange(4) == 1, np.nan, X[0]))


def test_probabilities_that_the_model_has_not_are_an_error() -> None:
    predictor = classifier().fit(X, TWO).predictor()
    assert not hasattr(predictor, "predict_proba")
    with pytest.raises(AttributeError, match="calibrate=True"):
        predictor.predict_proba(X)


def test_a_model_that_is_not_fitted_has_no_predictor() -> None:
    with pytest.raises(NotFittedError):
        classifier().predictor()
