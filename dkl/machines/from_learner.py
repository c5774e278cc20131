"""The working model of a learner, which its features were found with, as a fitted kernel machine."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import Ridge
from sklearn.svm import LinearSVC

from dkl.linear.sgd import default_estimator, fitted_estimator, step_schedule
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor


def fitted_machine(learner: Any) -> KernelClassifier | KernelRegressor:
    """A machine that predicts with a learner's `coef_` and `intercept_`, on its features.

    Parameters
    ----------
    learner : fitted FeatureLearner
        With `coef_` of shape (K, n_features), `intercept_`, and `classes_` for labels.
    """
    is_classifier = hasattr(learner, "classes_")
    machine = _classifier(learner) if is_classifier else KernelRegressor(learner, solver="newton")
    machine.features_, machine.seed_, machine.encoding_ = learner, learner.seed_, learner.encoding_
    machine.n_features_in_ = learner.n_features_in_
    if hasattr(learner, "feature_names_in_"):
        machine.feature_names_in_ = learner.feature_names_in_
    machine.n_epochs_, machine.validation_losses_, machine.message_ = len(learner.history_), (), learner.message_
    targets = 1 if is_classifier else len(learner.coef_)
    machine.target_center_, machine.target_scale_ = np.zeros(targets), np.ones(targets)
    machine.linear_ = _linear(learner)
    return machine


def _classifier(learner: Any) -> KernelClassifier:
    if learner.loss == "log_loss":
        machine = KernelClassifier(learner, loss="log_loss")
    else:
        machine = KernelClassifier(learner, loss="squared_hinge", solver="newton")
    machine.classes_ = learner.classes_
    return machine


def _linear(learner: Any) -> Any:
    """The estimator that the coefficients are those of."""
    coef, intercept = learner.coef_, learner.intercept_
    if learner.loss == "log_loss":
        schedule = step_schedule("log_loss", alpha=1e-5, square_length=1.0, largest=2.0)
        estimator = default_estimator("log_loss", schedule, alpha=1e-5)
        return fitted_estimator(estimator, coef, intercept, classes=learner.classes_)
    model: Any = LinearSVC() if hasattr(learner, "classes_") else Ridge()
    one_target = isinstance(model, Ridge) and len(coef) == 1
    model.coef_, model.intercept_ = (coef[0], intercept[0]) if one_target else (coef, intercept)
    model.n_features_in_ = coef.shape[1]
    if hasattr(learner, "classes_"):
        model.classes_ = learner.classes_
    return model
