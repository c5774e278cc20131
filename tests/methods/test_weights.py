"""Weight 2 is the row twice, weight 0 a row that is not there: for every learner and machine, to the bit."""

from __future__ import annotations

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone

import dkl
from dkl.data.coerce import as_dataset
from dkl.registry import LEARNERS
from dkl.testing.sources import check_source

pytestmark = pytest.mark.usefixtures("little_work")

RNG = np.random.default_rng(0)
N = 240
X = RNG.normal(size=(N, 3))
Y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * RNG.normal(size=N)
LABELS = np.array(["a", "b", "c"])[np.digitize(Y, [-0.5, 0.5])]
COPIES = RNG.integers(0, 3, N)
# rows that are there once, among others that are not there at all
THERE = (RNG.random(N) < 0.7).astype(float)

FEW: dict[str, dict[str, Any]] = {
    "random": {"n_features": 20},
    "aligned": {"n_candidates": 40, "n_features": 20},
    "posterior": {"n_candidates": 40, "n_features": 20},
    "landmarks": {"n_landmarks": 4, "n_candidates": 20},
    "leverage": {"n_candidates": 40, "n_features": 20, "n_rows": 60},
    "peaks": {"n_features": 8, "chains": 10, "steps": 4, "search_rows": 60},
    "margin": {"n_features": 8, "features_per_round": 4, "chains": 10, "steps": 4, "search_rows": 60},
    "nystrom": {"n_features": 20},
    "steps": {"n_features": 12, "search_rows": 60},
    "joint": {"n_candidates": 12},
}


def answers(model: Any, rows: Any = X) -> np.ndarray:
    for name in ("predict_proba", "decision_function", "predict", "transform"):
        if hasattr(model, name):
            return np.asarray(getattr(model, name)(rows))
    raise AssertionError("the model answers nothing")


def check_copies(model: Any, y: np.ndarray, **beside: np.ndarray) -> None:
    for weight in (COPIES, THERE):
        copies = np.repeat(np.arange(N), weight.astype(int))
        weighted = clone(model).fit(X, y, weight, **beside)
        repeated = clone(model).fit(X[copies], y[copies], **{name: values[copies] for name, values in beside.items()})
        np.testing.assert_array_equal(answers(weighted), answers(repeated))


@pytest.mark.parametrize("entry", LEARNERS, ids=lambda entry: entry.key)
def test_a_learner_takes_weights_for_copies(entry: Any) -> None:
    check_copies(entry.learner_class(**FEW[entry.key], random_state=0), LABELS)


MACHINES: dict[str, tuple[Any, np.ndarray]] = {
    "stochastic": (dkl.KernelClassifier(dkl.RandomFeatures(n_features=20), epochs=2, random_state=0), LABELS),
    "stopped early": (
        dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), early_stopping=True, epochs=4, random_state=0),
        Y,
    ),
    "exact": (dkl.KernelRegressor(dkl.StepFeatures(n_features=12), solver="newton", random_state=0), Y),
    "calibrated": (
        dkl.KernelClassifier(dkl.RandomFeatures(n_features=20), solver="newton", calibrate=True, random_state=0),
        LABELS,
    ),
    "searched": (dkl.KernelClassifier(dkl.MarginFeatures(**FEW["margin"]), solver="newton", random_state=0), LABELS),
    "conformal": (
        dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), conformal_fraction=0.2, random_state=0),
        Y,
    ),
    "tuned": (dkl.TunedClassifier(n_features=20, max_passes=5, tol=1.0, random_state=0), LABELS == "a"),
    "tuned by sums": (dkl.TunedRegressor(n_features=20, random_state=0), Y),
    "combined": (dkl.CombinedFeatures(["random", dkl.StepFeatures(n_features=4)], random_state=0), LABELS),
}


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_machine_takes_weights_for_copies(name: str) -> None:
    check_copies(*MACHINES[name])


@pytest.mark.parametrize(
    ("machine", "y", "weight"),
    [(dkl.KernelClassifier, LABELS, COPIES), (dkl.KernelRegressor, Y, THERE)],
    ids=["classes", "numbers"],
)
def test_the_machine_without_settings_takes_weights_for_copies(machine: Any, y: np.ndarray, weight: np.ndarray) -> None:
    copies = np.repeat(np.arange(N), weight.astype(int))
    weighted = machine(effort="fast", random_state=0).fit(X, y, weight)
    repeated = machine(effort="fast", random_state=0).fit(X[copies], y[copies])
    np.testing.assert_array_equal(answers(weighted), answers(repeated))
    assert weighted.reasons_ == repeated.reasons_


def test_groups_times_and_exposures_go_with_their_rows() -> None:
    groups, times = np.arange(N) // 4, np.arange(N, dtype=float)[::-1].copy()
    check_copies(dkl.StepFeatures(n_features=6, random_state=0), LABELS, groups=groups)
    check_copies(dkl.StepFeatures(n_features=6, random_state=0), LABELS, times=times)
    exposure, counts = 0.5 + RNG.random(N), RNG.poisson(3.0, N).astype(float)
    check_copies(
        dkl.KernelRegressor(dkl.RandomFeatures(n_features=20), loss="poisson", random_state=0),
        counts,
        exposure=exposure,
    )


def test_rows_of_weight_0_have_no_say_in_what_columns_mean() -> None:
    frame = pd.DataFrame({"x": X[:, 0], "name": RNG.choice(["red", "blue"], N)})
    frame.loc[::7, "x"] = np.nan
    frame.loc[THERE == 0.0, "name"] = "nobody"
    frame.loc[THERE == 0.0, "x"] = 1e6
    kept = THERE > 0.0
    for rows, y in ((frame, Y), (frame[["x"]].to_numpy(), Y)):
        weighted = dkl.KernelRegressor(dkl.StepFeatures(n_features=6), random_state=0).fit(rows, y, THERE)
        without = dkl.KernelRegressor(dkl.StepFeatures(n_features=6), random_state=0).fit(rows[kept], y[kept])
        assert weighted.encoding_.column_names == without.encoding_.column_names
        np.testing.assert_array_equal(weighted.predict(rows[kept]), without.predict(rows[kept]))
    halves = dkl.RandomFeatures(n_features=20, random_state=0).fit(frame, sample_weight=0.5 * THERE)
    assert "name=nobody" not in halves.encoding_.column_names


def test_a_message_names_the_row_as_it_was_given() -> None:
    frame = pd.DataFrame({"x": X[:, 0], "name": "red"})
    frame.loc[200, "x"] = np.inf
    weight = np.where(np.arange(N) < 100, 0.0, 2.0)
    with pytest.raises(ValueError, match="column 'x' is inf in row 200"):
        dkl.RandomFeatures(n_features=20).fit(frame, sample_weight=weight)
    y = Y.copy()
    y[200] = np.nan
    with pytest.raises(ValueError, match=r"y\[200\] is NaN"):
        dkl.KernelRegressor(dkl.RandomFeatures(n_features=20)).fit(X, y, weight)


def test_sparse_rows_and_fractions_of_weight_0_are_not_there_either() -> None:
    thin = sparse.random_array((N, 30), density=0.2, rng=RNG, format="csr")
    weight = 0.25 * THERE
    kept = THERE > 0.0
    for rows in (thin, X, da.from_array(X, chunks=(N, 3))):
        learner = dkl.NystromFeatures(n_features=10, random_state=0)
        weighted = clone(learner).fit(rows, LABELS, weight)
        without = clone(learner).fit(rows[kept], LABELS[kept], weight[kept])
        few = X[:9] if rows is not thin else thin[:9]
        np.testing.assert_allclose(answers(weighted, few), answers(without, few), rtol=1e-12)


def test_many_copies_stay_weights() -> None:
    heavy = as_dataset(X, Y, np.full(N, 5.0), repeats=True)
    assert heavy.n_rows == N
    assert heavy.source.has_weight
    assert heavy.total_weight == 5.0 * N
    for weight in (COPIES, THERE, 0.5 * THERE):
        for repeats in (False, True):
            dataset = as_dataset(X, Y, weight, repeats=repeats)
            check_source(dataset.source)
            assert dataset.total_weight == pytest.approx(weight.sum())
    # a store keeps the numbers that rows were given
    numbers = dkl.create_dataset("memory://weights-of-rows.zarr", X, Y, sample_weight=COPIES).row_id.compute()
    np.testing.assert_array_equal(numbers, np.flatnonzero(COPIES))


@pytest.mark.parametrize("total", [1.0, 1e-5])
@pytest.mark.parametrize("task", ["classes", "numbers"])
def test_a_search_takes_weights_of_any_sum(task: str, total: float) -> None:
    """Weights that sum to 1, as boosting gives them, leave no pairs of rows: nothing may overflow."""
    X = np.random.default_rng(0).normal(size=(400, 3))
    y = np.sin(2.0 * X[:, 0]) + X[:, 1]
    learner = dkl.MarginFeatures(n_features=12, random_state=0, progress=False)
    learner.fit(X, y if task == "numbers" else y > 0.0, np.full(len(X), total / len(X)))
    assert np.isfinite([[line["potential"], line["sampled_potential"]] for line in learner.history_]).all()
    assert learner.machine_.score(X, y if task == "numbers" else y > 0.0) > 0.3
