"""BlockIncremental keeps dask-ml's interface and fits in the order, and to the bits, of a plain loop."""

from __future__ import annotations

from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from dask_ml.wrappers import Incremental
from sklearn.base import clone
from sklearn.linear_model import SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB

from dkl.linear.incremental import BlockIncremental, EstimatorState, estimator_step
from dkl.linear.minibatches import Minibatch
from tests.linear.problems import feature_map, rows


@pytest.fixture
def data() -> tuple[da.Array, da.Array, np.ndarray, np.ndarray]:
    X, codes = rows(600, 3)
    labels = np.array(["a", "b", "c"])[codes]
    return da.from_array(X, chunks=(100, 4)), da.from_array(labels, chunks=100), X, labels


def test_it_is_dask_mls_incremental(data: Any) -> None:
    X, y, _, labels = data
    model = BlockIncremental(SGDClassifier(random_state=0), random_state=0)
    assert isinstance(model, Incremental)
    assert set(Incremental().get_params(deep=False)) < set(clone(model).get_params(deep=False))
    model.fit(X, y, classes=["a", "b", "c"])
    assert isinstance(model.predict(X), da.Array)
    assert np.mean(model.predict(X).compute() == labels) > 0.6
    np.testing.assert_array_equal(model.classes_, ["a", "b", "c"])
    assert model.decision_function(X).compute().shape == (600, 3)


def test_classes_are_found_where_none_are_given(data: Any) -> None:
    X, y, _, _ = data
    assert BlockIncremental(GaussianNB(), random_state=0).fit(X, y).estimator_.classes_.tolist() == ["a", "b", "c"]


def test_epochs_go_through_all_rows_once_each(data: Any) -> None:
    X, y, _, labels = data
    model = BlockIncremental(GaussianNB(), epochs=3, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.estimator_.class_count_, 3 * np.unique(labels, return_counts=True)[1])


def test_partial_fit_goes_on(data: Any) -> None:
    X, y, _, _ = data
    model = BlockIncremental(GaussianNB(), random_state=0)
    model.partial_fit(X[:300], y[:300], classes=["a", "b", "c"]).partial_fit(X[300:], y[300:])
    assert model.estimator_.class_count_.sum() == 600


def test_the_schedulers_give_the_same_bits(data: Any) -> None:
    X, y, _, _ = data
    coefs = []
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            model = BlockIncremental(SGDClassifier(random_state=0), random_state=3, epochs=2).fit(X, y)
        coefs.append(model.coef_)
    np.testing.assert_array_equal(*coefs)


def test_a_feature_map_goes_before_fit_and_predict(data: Any) -> None:
    X, _, plain, _ = data
    far = np.sum(plain**2, axis=1) > np.median(np.sum(plain**2, axis=1))
    bent = BlockIncremental(
        SGDClassifier(random_state=0), feature_map=feature_map(4, 200), epochs=10, random_state=0
    ).fit(X, far)
    straight = BlockIncremental(SGDClassifier(random_state=0), epochs=10, random_state=0).fit(X, far)
    assert np.mean(bent.predict(X).compute() == far) > np.mean(straight.predict(X).compute() == far) + 0.1
    np.testing.assert_array_equal(bent.predict(X).compute(), bent.predict(plain))
    np.testing.assert_array_equal(bent.decision_function(X).compute() > 0, bent.predict(plain))


def test_regressors_and_weights(data: Any) -> None:
    X, _, plain, _ = data
    y = plain @ np.arange(4.0)
    model = BlockIncremental(SGDRegressor(random_state=0), epochs=20, random_state=0)
    model.fit(X, y, sample_weight=np.where(np.arange(600) < 300, 0.0, 1.0))
    assert np.corrcoef(model.predict(plain), y)[0, 1] > 0.999


def test_a_step_works_on_a_copy() -> None:
    X, codes = rows(50, 2)
    state = EstimatorState(GaussianNB())
    operands = {"fit_options": {"classes": [0, 1]}}
    first = estimator_step(state, Minibatch(X, codes, None), operands)
    second = estimator_step(first, Minibatch(X, codes, None), operands)
    assert not hasattr(state.estimator, "class_count_")
    assert first.estimator.class_count_.sum() == 50
    assert second.estimator.class_count_.sum() == 100


def test_a_label_that_is_not_among_the_classes_is_refused(data: Any) -> None:
    X, y, _, _ = data
    with pytest.raises(ValueError, match=r"'c'.*classes"):
        BlockIncremental(GaussianNB()).fit(X, y, classes=["a", "b"])
