"""Leaving each row out in closed form is fitting again without it."""

from __future__ import annotations

import numpy as np

from dkl.solvers.leave_one_out import left_out_ridge
from tests.definitions import selection as definition


def test_each_row_is_predicted_by_the_machine_that_is_fitted_to_the_others() -> None:
    generator = np.random.default_rng(0)
    X, Y = generator.normal(size=(12, 3)), generator.normal(size=(12, 2))
    kernel, penalties = np.exp(-((X[:, None] - X) ** 2).sum(axis=2)), np.array([1e-2, 3.0])
    found = left_out_ridge(kernel, Y, penalties)
    for penalty, predictions, freedom in zip(penalties, found.predictions, found.degrees_of_freedom, strict=True):
        expected, trace = definition.left_out_ridge(kernel, Y, penalty)
        np.testing.assert_allclose(predictions, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(freedom, trace, rtol=1e-12)
