"""scikit-learn's own checks of the machines without settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator

import dkl

IN_EXPECTATION = "samples and folds see a weight of 2 as two rows in expectation only"
DECLARED = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"), IN_EXPECTATION
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("machine", [dkl.KernelClassifier, dkl.KernelRegressor])
def test_the_checks_of_scikit_learn_pass_without_settings(machine: Any) -> None:
    results = check_estimator(machine(effort="fast", random_state=0), on_fail=None, expected_failed_checks=DECLARED)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


ROWS = np.random.default_rng(0).normal(size=(300, 3))
LABELS = (np.sin(2.0 * ROWS[:, 0]) + ROWS[:, 1] > 0.0).astype(int)


@pytest.mark.usefixtures("little_work")
@pytest.mark.parametrize("n_features", [1, 2, 3])
def test_few_features_are_enough_for_a_choice(n_features: int) -> None:
    model = dkl.KernelClassifier(n_features=n_features, effort="fast", random_state=0, progress=False)
    model.fit(ROWS, LABELS)
    assert model.features_.transform(ROWS).shape[1] <= n_features
    assert model.score(ROWS, LABELS) > 0.6


@pytest.mark.parametrize("trials", [[], [99], (99, 0)])
def test_trials_without_a_candidate_are_named(trials: Any) -> None:
    with pytest.raises(ValueError, match=r"trials=\[.*\] begins with no candidate of these rows: .* from 0 to \d+ and"):
        dkl.KernelClassifier(effort="fast", trials=trials, random_state=0, progress=False).fit(ROWS, LABELS)


@pytest.mark.parametrize("machine", [dkl.KernelClassifier, dkl.KernelRegressor])
def test_few_rows_of_any_weight_are_judged(machine: Any) -> None:
    """The bound on judging rows counts rows: of a few heavy ones it left none."""
    weights = np.full(len(ROWS), 1e8)
    model = machine(effort="fast", trials=[0, 1], random_state=0, progress=False).fit(ROWS, LABELS, weights)
    assert model.score(ROWS, LABELS) > 0.4
    searched = machine(dkl.MarginFeatures(n_features=8), solver="newton", alpha="auto", random_state=0, progress=False)
    assert searched.fit(ROWS, LABELS, weights).score(ROWS, LABELS) > 0.4
