"""Learners with rounds judge on the rows whose targets enter no code, whether or not a machine withholds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.linear.minibatches import HeldOut
from dkl.methods.fit_context import FitContext

LEARNERS = {
    "metric": dkl.NystromFeatures(n_features=10, metric="diagonal", random_state=3),
    "families": dkl.MarginFeatures([dkl.Gaussian(), dkl.Steps()], n_features=20, random_state=3),
    "steps": dkl.StepFeatures(n_features=10, random_state=3),
}


@pytest.mark.parametrize("withheld", [None, HeldOut(0.0, 5), HeldOut(0.3, 5)])
@pytest.mark.parametrize("kind", LEARNERS)
def test_rounds_are_judged_on_rows_that_enter_no_code(
    kind: str, withheld: HeldOut | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that the machine withholds, else a share of the seed that the machine holds rows out with."""
    X = np.random.default_rng(0).normal(size=(600, 3))
    dataset, judged = as_dataset(X, X[:, 0] > 0.3 * X[:, 1], None), []
    mask = HeldOut.mask

    def noted(self: HeldOut, held_with: np.ndarray) -> np.ndarray:
        judged.append(self)
        return mask(self, held_with)

    monkeypatch.setattr(HeldOut, "mask", noted)
    learner: Any = LEARNERS[kind]
    learner.fit_within(dataset, FitContext(withheld, for_machine=True, judging_seed=77))
    assert judged
    given = withheld is not None and withheld.share > 0.0
    assert {held_out.seed for held_out in judged} == ({5} if given else {77})
