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
@pytest.mark.parametrize("machine", [dkl.KernelClassifier, pytest.param(dkl.KernelRegressor, marks=pytest.mark.slow)])
def test_the_checks_of_scikit_learn_pass_without_settings(machine: Any) -> None:
    results = check_estimator(machine(effort="fast", random_state=0), on_fail=None, expected_failed_checks=DECLARED)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45
