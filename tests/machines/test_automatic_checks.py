"""scikit-learn's own checks of the machines without settings."""

from __future__ import annotations

from typing import Any

import pytest
from sklearn.utils.estimator_checks import check_estimator

import dkl

IN_EXPECTATION = "samples and folds see a weight of 2 as two rows in expectation only"
DECLARED = dict.fromkeys(
    ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"), IN_EXPECTATION
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("machine", "trials"),
    [
        (dkl.KernelClassifier, [0]),
        pytest.param(dkl.KernelClassifier, None, marks=pytest.mark.slow),
        pytest.param(dkl.KernelRegressor, None, marks=pytest.mark.slow),
    ],
)
def test_the_checks_of_scikit_learn_pass_without_settings(machine: Any, trials: list[int] | None) -> None:
    automatic = machine(effort="fast", trials=trials, random_state=0)
    results = check_estimator(automatic, on_fail=None, expected_failed_checks=DECLARED)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45
