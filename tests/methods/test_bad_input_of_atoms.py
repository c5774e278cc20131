"""Bad input of steps, landmarks and lists of dictionaries: a clear error, or the right answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

import dkl

KINDS = {
    "steps": dkl.StepFeatures(n_features=10, random_state=0),
    # more landmarks than rows
    "landmarks": dkl.NystromFeatures(n_features=500, scaling="standard", random_state=0),
    "list": dkl.MarginFeatures(
        [dkl.Gaussian(), dkl.Steps(), dkl.Landmarks()], n_features=10, scaling="standard", random_state=0
    ),
}


def table(n: int = 120) -> tuple[pd.DataFrame, np.ndarray]:
    """Two numbers, and the labels of a threshold."""
    values = np.random.default_rng(0).normal(size=(n, 2))
    return pd.DataFrame(values, columns=["a", "b"]), np.where(values[:, 0] > 0.2, "yes", "no")


def score(features: Any, X: pd.DataFrame, y: np.ndarray) -> float:
    """Of a machine on the features, at its own rows."""
    model = dkl.KernelClassifier(clone(features), solver="newton", alpha=1e-3, random_state=0, progress=False)
    return float(model.fit(X, y).score(X, y))


@pytest.mark.parametrize("name", ["steps", "landmarks", pytest.param("list", marks=pytest.mark.slow)])
def test_columns_and_rows_that_say_nothing_do_no_harm(name: str) -> None:
    (X, y), features = table(), KINDS[name]
    plain = score(features, X, y)
    assert plain > 0.9
    assert score(features, X.assign(c=7.0), y) > 0.9
    assert score(features, pd.concat([X, X, X], ignore_index=True), np.tile(y, 3)) > 0.9
    with pytest.warns(UserWarning, match=r"\['c'\] left out: no row has a value there"):
        assert score(features, X.assign(c=np.nan), y) == plain


@pytest.mark.parametrize("features", KINDS.values(), ids=KINDS)
def test_a_class_of_one_row_and_a_column_that_is_not_there(features: Any) -> None:
    X, y = table()
    y[5] = "one"
    fitted = clone(features).fit(X, y)
    assert np.isfinite(fitted.transform(X)).all()
    assert list(fitted.classes_ if hasattr(fitted, "classes_") else np.unique(y)) == ["no", "one", "yes"]
    with pytest.raises(ValueError, match="'b'"):
        fitted.transform(X[["a"]])


def test_landmarks_are_no_more_than_the_different_rows() -> None:
    X, y = table(30)
    fitted = clone(KINDS["landmarks"]).fit(pd.concat([X, X], ignore_index=True), np.tile(y, 2))
    assert len(fitted.landmarks_) == 30


@pytest.mark.parametrize("depth", [0, 4])
def test_a_depth_that_no_product_has_is_refused(depth: int) -> None:
    X, y = table(30)
    for features in (dkl.StepFeatures(depth), dkl.MarginFeatures([dkl.Steps(depth)])):
        with pytest.raises(ValueError, match="depth"):
            features.fit(X, y)
    with pytest.raises(ValueError, match="bags"):
        dkl.StepFeatures(bags=0).fit(X, y)


def test_a_column_that_is_empty_in_a_fold_is_left_out_of_its_fit(tmp_path: Path) -> None:
    X, y = table()
    # only the first rows have a value, which the fit of the first fold does not see
    late = X.assign(c=np.where(np.arange(len(X)) < 3, 1.0, np.nan))
    model = dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False)
    with pytest.warns(UserWarning, match=r"\['c'\] left out: no row has a value there"):
        scores = cross_val_score(model, late, y, cv=KFold(4), error_score="raise")
    assert np.isfinite(scores).all()
    with pytest.warns(UserWarning, match=r"X\.drop\(columns=\['c'\]\), to hear no more of it"):
        model.fit(late[30:], y[30:])
    plain = clone(model).fit(X[30:], y[30:])
    # its values are ignored, and it may be absent
    for rows in (late, X):
        np.testing.assert_array_equal(model.decision_function(rows), plain.decision_function(X))
    assert list(model.feature_names_in_) == list(late.columns)
    assert "c: left out, since no row has a value there" in model.encoding_.describe()
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict(late), plain.predict(X))
    # a store of the frame has the same columns
    with pytest.warns(UserWarning, match=r"\['c'\] left out"):
        ds = dkl.create_dataset(tmp_path / "rows.zarr", late[30:], y[30:])
    np.testing.assert_array_equal(clone(model).fit(ds).predict(X), plain.predict(X))
    with pytest.raises(ValueError, match="column 'c' holds no value in 90 rows; leave it out"):
        model.fit(late[["c"]][30:], y[30:])
