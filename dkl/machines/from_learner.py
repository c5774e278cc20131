"""Makes a fitted kernel machine of a learner that has fitted a linear model while it learned its features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from dkl.linear.newton import with_coefficients
from dkl.machines.given_linear import with_sgd_coefficients
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.solvers.losses import LOG_LINK


def fitted_machine(learner: Any) -> KernelClassifier | KernelRegressor:
    """A machine that predicts with a learner's `coef_` and `intercept_`, on its features.

    Parameters
    ----------
    learner : fitted FeatureLearner
        With `coef_` of shape (K, n_features), `intercept_`, and `classes_` for labels.
    """
    coef, intercept = learner.coef_, learner.intercept_
    classes: np.ndarray | None = getattr(learner, "classes_", None)
    machine: KernelClassifier | KernelRegressor
    if classes is None:
        linked = learner.loss if learner.loss in (*LOG_LINK, "pinball") else None
        machine = KernelRegressor(learner, loss=linked, solver="newton")
        if linked == "pinball":
            machine.set_params(quantiles=learner.quantiles)
        linear = with_coefficients(Ridge(), coef, intercept, None)
    elif getattr(learner, "loss_", learner.loss) == "softmax":
        machine = KernelClassifier(learner, loss="log_loss", solver="newton")
        linear = with_coefficients(LogisticRegression(), coef, intercept, classes)
    elif getattr(learner, "loss_", learner.loss) == "log_loss":
        machine = KernelClassifier(learner, loss="log_loss")
        linear = with_sgd_coefficients("log_loss", coef, intercept, classes)
    else:
        machine = KernelClassifier(learner, loss="squared_hinge", solver="newton")
        linear = with_coefficients(LinearSVC(), coef, intercept, classes)
    machine.features_, machine.seed_, machine.encoding_ = learner, learner.seed_, learner.encoding_
    machine.n_features_in_, machine.linear_ = learner.n_features_in_, linear
    if classes is not None:
        machine.classes_ = classes
    if hasattr(learner, "feature_names_in_"):
        machine.feature_names_in_ = learner.feature_names_in_
    machine.n_epochs_, machine.validation_losses_, machine.message_ = len(learner.history_), (), learner.message_
    # the coefficients are in the units of the targets, so that no scale is needed
    n_targets = 1 if classes is not None else len(coef)
    machine.target_center_, machine.target_scale_ = np.zeros(n_targets), np.ones(n_targets)
    return machine
