"""The estimator says the task: a Dataset whose whole numbers were taken for the other one is fitted all the same."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dkl

OPTIONS = {"solver": "newton", "alpha": 1e-3, "random_state": 0, "progress": False}


def rows(n: int = 400) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.normal(size=n), "b": rng.choice(["p", "q"], n)})
    return X, np.round(2.0 * X["a"].to_numpy() + rng.normal(size=n)).astype(int)


def test_whole_numbers_of_a_store_are_numbers_for_a_regressor_and_labels_for_a_classifier(tmp_path):
    X, y = rows()
    labels = dkl.create_dataset(tmp_path / "labels.zarr", X, y, rows_a_block=150)
    numbers = dkl.create_dataset(tmp_path / "numbers.zarr", X, y, rows_a_block=150, task="regression")
    assert (labels.task, numbers.task) == ("classification", "regression")
    regressors = [dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), **OPTIONS) for _ in range(3)]
    given = [(labels,), (numbers,), (X, y)]
    answers = [model.fit(*rows).predict(X) for model, rows in zip(regressors, given, strict=True)]
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_allclose(answers[0], answers[2], atol=1e-3)
    assert regressors[0].score(labels) == pytest.approx(regressors[1].score(numbers))
    features = dkl.RandomFeatures(n_features=20)
    classifiers = [dkl.KernelClassifier(features, **OPTIONS).fit(ds) for ds in (labels, numbers)]
    np.testing.assert_array_equal(classifiers[0].classes_, classifiers[1].classes_)
    assert classifiers[1].classes_.dtype == np.int64
    np.testing.assert_array_equal(*(model.predict(X) for model in classifiers))


@pytest.mark.filterwarnings("ignore:.*splits")
def test_what_can_be_no_target_of_the_task_is_one_clear_error(tmp_path):
    X, y = rows()
    texts = dkl.create_dataset(tmp_path / "texts.zarr", X, np.where(y > 0, "yes", "no"))
    with pytest.raises(ValueError, match=r"labels such as 'no', not numbers; take KernelClassifier"):
        dkl.KernelRegressor("random", **OPTIONS).fit(texts)
    parts = dkl.create_dataset(tmp_path / "parts.zarr", X, y + 0.5)
    with pytest.raises(ValueError, match=r"labels are whole numbers; create it .* or take KernelRegressor"):
        dkl.KernelClassifier("random", **OPTIONS).fit(parts)
    two = dkl.create_dataset(tmp_path / "two.zarr", X, np.column_stack([y, y]).astype(float))
    with pytest.raises(ValueError, match="2 targets a row"):
        dkl.KernelClassifier("random", **OPTIONS).fit(two)
