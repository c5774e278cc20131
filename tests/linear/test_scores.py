"""Decision values are those of the whole feature matrix."""

from __future__ import annotations

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.kernels.maps import map_rows
from dkl.linear.minibatches import minibatch_rows
from dkl.linear.scores import cached_rows, decision_values
from tests.kernels.cases import assert_same_rows


@pytest.mark.parametrize("n_frequencies", [10, 3_001])
def test_rows_of_several_minibatches_have_the_scores_of_the_whole_matrix(n_frequencies: int) -> None:
    rng = np.random.default_rng(0)
    feature_map = Gaussian(1.0).draw(n_frequencies, 2, 0)
    # minibatches of wide maps are no multiple of the tiles in them
    X = rng.normal(size=(minibatch_rows(feature_map, "float32") + 100, 2))
    coef, intercept = rng.normal(size=(2, feature_map.n_features)), rng.normal(size=2)
    expected = map_rows(X, feature_map, "float64") @ coef.T + intercept
    found = decision_values(X, feature_map, coef, intercept)
    np.testing.assert_allclose(found, expected, atol=2e-3)
    span = cached_rows(feature_map, "float32")
    assert_same_rows(decision_values(X, feature_map, coef, intercept, span=span), found, atol=1e-3)
