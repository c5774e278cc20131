"""WorkingModelMixin, for learners that fit a linear model together with their features."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted


class WorkingModelMixin:
    """The methods of learners that fit a working model, with `coef_` and `intercept_`, on their features."""

    coef_: np.ndarray
    intercept_: np.ndarray

    @property
    def machine_(self) -> Any:
        """The working model as a fitted `KernelClassifier` or `KernelRegressor`, which predicts."""
        # machines import the learners, so they are imported on call
        from dkl.machines.kernel_machines import fitted_machine

        check_is_fitted(self)
        learner: Any = self
        return fitted_machine(learner)

    @property
    def working_model_(self) -> tuple[np.ndarray, np.ndarray]:
        """(coef, intercept), from which another linear model on these features may start."""
        return self.coef_, self.intercept_
