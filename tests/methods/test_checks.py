"""The checks that other people's learners are held to hold for the learners that search."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dkl.features.families import Gaussian
from dkl.features.harmonics import SphericalHarmonics
from dkl.methods.margin.learner import MarginFeatures
from dkl.testing.learners import check_learner
from dkl.testing.synthetic import sphere_checkerboard, windmill


@pytest.mark.parametrize(
    "learner",
    [
        MarginFeatures(n_features=20),
        MarginFeatures(Gaussian(30.0), n_features=20, loss="log_loss", sparse_share=1.0, scaling="standard"),
        MarginFeatures(SphericalHarmonics(1, project=True), n_features=20, patience=2),
        MarginFeatures(n_features=20, solver="game", rounds=2, chains=20, steps=5),
    ],
    ids=["corrective", "sparse", "harmonics", "game"],
)
def test_a_margin_learner_keeps_what_models_rely_on(learner: Any) -> None:
    check_learner(learner, n_rows=200)


def test_ten_harmonics_tell_the_checkerboard_apart() -> None:
    """Figure 1's second set: the paper needs 29 harmonics for 99.1 %, an arc-cosine SVM saturates at 95.1."""
    rows, (X, y) = sphere_checkerboard(2_000, seed=0), sphere_checkerboard(5_000, seed=99)
    learner = MarginFeatures(SphericalHarmonics(max_degree=31), n_features=30, random_state=0).fit(*rows)
    assert learner.transform(X).shape[1] <= 30
    assert learner.machine_.score(X, y) > 0.965


def test_features_found_for_the_windmill_beat_as_many_plain_ones() -> None:
    rows, (X, y) = windmill(2_000, seed=0), windmill(5_000, seed=99)
    learner = MarginFeatures(n_features=60, random_state=0).fit(*rows)
    assert learner.machine_.score(X, y) > 0.94
    lengths = np.linalg.norm(learner.feature_map_.projection.dense(), axis=1)
    assert np.median(lengths) > 2.0
