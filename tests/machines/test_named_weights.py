"""Weights that are named by a column of a data frame do what the same weights do as values, wherever rows have some."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import cross_val_score

import dkl

RNG = np.random.default_rng(0)
N = 120
FEATURES = pd.DataFrame(RNG.normal(size=(N, 2)), columns=["a", "b"])
Y = np.where(FEATURES.a + 0.5 * RNG.normal(size=N) > 0, "yes", "no")
COUNTS = RNG.poisson(np.exp(0.5 * FEATURES.a))
WEIGHT = pd.Series(RNG.integers(0, 3, N), name="times")
FRAME = FEATURES.assign(times=WEIGHT)


def machine(**parameters: Any) -> Any:
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    return dkl.KernelClassifier(features, **{"solver": "newton", "random_state": 0, **parameters})


def fitted() -> Any:
    return machine().fit(FEATURES, Y, WEIGHT)


def counting() -> Any:
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    return dkl.KernelRegressor(features, loss="poisson", solver="newton", alpha=1e-3, random_state=0)


def partly(X: Any, weight: Any) -> Any:
    """The coefficients after a first call of `partial_fit`, and after a second one."""
    model = machine(solver="sgd", loss="hinge").partial_fit(X, Y, ["no", "yes"], weight)
    return np.stack([model.linear_.coef_.copy(), model.partial_fit(X, Y, sample_weight=weight).linear_.coef_])


def stored(X: Any, weight: Any, folder: Path) -> Any:
    dataset = dkl.create_dataset(folder / "rows.zarr", X, Y, sample_weight=weight, overwrite=True)
    dataset = dataset.append(X, Y, sample_weight=weight)
    assert dataset.column_names == ["a", "b"]
    return np.column_stack([dataset.X.compute(), dataset.sample_weight.compute()])


# what is computed of rows and their weights, as numbers
USES: dict[str, Callable[[Any, Any, Path], Any]] = {
    "fit": lambda X, weight, _: machine().fit(X, Y, weight).linear_.coef_,
    "fit of a machine without settings": lambda X, weight, _: (
        dkl.KernelClassifier(effort="fast", random_state=0).fit(X, Y, weight).decision_function(X)
    ),
    "fit of features": lambda X, weight, _: (
        dkl.AlignedFeatures(n_candidates=40, random_state=0).fit(X, Y, weight).alignment_
    ),
    "fit of a density": lambda X, weight, _: dkl.TunedClassifier(n_features=10, random_state=0).fit(X, Y, weight).coef_,
    "partial_fit": lambda X, weight, _: partly(X, weight),
    "score of classes": lambda X, weight, _: fitted().score(X, Y, weight),
    "score of numbers": lambda X, weight, _: (
        dkl.KernelRegressor("random", random_state=0).fit(FEATURES, COUNTS).score(X, COUNTS, weight)
    ),
    "score of counts": lambda X, weight, _: counting().fit(FEATURES, COUNTS).score(X, COUNTS, weight),
    "deviance": lambda X, weight, _: counting().fit(X, COUNTS, weight).deviance(X, COUNTS, weight),
    "conformalize": lambda X, weight, _: (
        counting().fit(FEATURES, COUNTS).conformalize(X, COUNTS, weight).predict_interval(X)
    ),
    "importance": lambda X, weight, _: dkl.explain.importance(fitted(), X, sample_weight=weight).values,
    "compare": lambda X, weight, _: (
        dkl.compare(X, Y, learners=["random"], n_features=[20], sample_weight=weight, random_state=0).best.score
    ),
    "tune": lambda X, weight, _: (
        (
            dkl.tune(machine(), X, Y, space={"alpha": [1e-2, 1.0]}, n_trials=2, sample_weight=weight, random_state=0)
        ).best_score_
    ),
    "sweep": lambda X, weight, _: (
        (
            dkl.sweep(dkl.AlignedFeatures(), X, Y, values={"rho": [1.0, 2.0]}, sample_weight=weight, random_state=0)
        ).best_score_
    ),
    "create_dataset and append": stored,
}


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("use", USES)
@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_a_column_of_weights_is_the_weights_and_no_feature(use: str, tmp_path: Path) -> None:
    by_value = USES[use](FEATURES, WEIGHT, tmp_path)
    np.testing.assert_array_equal(USES[use](FRAME, "times", tmp_path), by_value)


def test_later_rows_may_have_the_column_of_weights_and_need_not() -> None:
    model = machine().fit(FRAME, Y, "times")
    np.testing.assert_array_equal(model.predict(FRAME), model.predict(FEATURES))


def test_dask_frames_and_folds_of_scikit_learn_name_weights() -> None:
    lazy = [dd.from_pandas(part, npartitions=2) for part in (FRAME, pd.Series(Y))]
    by_value = machine().fit(dd.from_pandas(FEATURES, npartitions=2), lazy[1], lazy[0]["times"])
    np.testing.assert_array_equal(machine().fit(*lazy, "times").linear_.coef_, by_value.linear_.coef_)
    by_value = cross_val_score(machine(), FEATURES, Y, params={"sample_weight": WEIGHT})
    np.testing.assert_array_equal(cross_val_score(machine(), FRAME, Y, params={"sample_weight": "times"}), by_value)
