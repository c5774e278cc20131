"""Seconds of searches, told before a fit from a search on a few rows, by a clock that a test sets."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import sparse

import dkl
from dkl import planning
from dkl.data.coerce import as_dataset
from dkl.features.families import Gaussian
from dkl.methods.frequency_search import frequency_space
from dkl.methods.frequency_search.frequency_space import FourierSpace, FrequencyPool, forming_seconds, search_seconds
from dkl.methods.frequency_search.peak_search import SearchOptions
from dkl.methods.margin import driver

FAMILY = Gaussian(3.0)
SPACE = FourierSpace(FAMILY.draw(4, 12, 0), FAMILY, SearchOptions(chains=8, steps=3))


class Clock:
    """Processor seconds that pass when somebody says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(frequency_space, "time", SimpleNamespace(process_time=lambda: self.now))


def test_a_row_takes_its_share_of_the_shortest_search_after_the_first(monkeypatch):
    clock, taken, heard = Clock(monkeypatch), iter([100.0, 3.0, 2.0]), []

    class Space:
        def search(self, X, S, count, seed):
            heard.append((X.shape, S.shape, count))
            assert np.abs(S).sum() == pytest.approx(1.0)
            clock.now += next(taken)

    assert search_seconds(Space(), np.ones((400, 5), np.float32), 3, 7) == 2.0 / 400
    assert heard == [((400, 5), (400, 3), 7)] * 3


@pytest.mark.parametrize("space", [SPACE, FrequencyPool(FAMILY.draw(20, 12, 0))], ids=["all frequencies", "a pool"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_all_spaces_and_rows_are_searched(space, is_sparse):
    X = np.random.default_rng(0).standard_normal((64, 12), dtype=np.float32)
    X[X < 0.5] = 0.0
    few = sparse.csr_array(X) if is_sparse else X
    assert search_seconds(space, few, 2, 4) >= 0.0
    assert forming_seconds(space.feature_map(space.start(4, 0)), few) >= 0.0


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize("solver", ["corrective", "game"])
@pytest.mark.parametrize("family", [None, dkl.SphericalHarmonics()], ids=["frequencies", "harmonics"])
def test_plans_of_searches_count_the_driver(family, solver, is_sparse):
    X = np.random.default_rng(0).standard_normal((300, 4)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    rows = sparse.csr_array(X) if is_sparse else X
    learner = dkl.MarginFeatures(family=family, n_features=10, solver=solver, progress=False)
    planned = dkl.plan(learner, rows, X[:, 0] > 0.0)
    # a game on finitely many features weighs all of them in its passes
    assert (planned.driver_seconds > planning._BEGINS_S) == (family is None or solver != "game")


@pytest.mark.parametrize("rows", [10_000, 10_000_000])
def test_corrective_rounds_search_once_a_round_and_form_features_with_each_sample(monkeypatch, rows):
    X = np.random.default_rng(0).standard_normal((500, 4))
    few = X.astype(np.float32)
    planned = []
    monkeypatch.setattr(driver, "search_seconds", lambda space, few, K, count: planned.append(count) or 3e-6)
    monkeypatch.setattr(driver, "forming_seconds", lambda features, few: 8e-6)
    monkeypatch.setattr(driver, "usable_cores", lambda: 2)
    learner = dkl.MarginFeatures(n_features=40, progress=False)
    dataset = as_dataset(X, X[:, 0] > 0.0)
    problem = replace(learner.replayed(dataset).problems[-1], most_rows=400_000, sample_rows=50_000)
    told = driver.CorrectiveDriver().driving(problem, rows, few, 1e9)
    sizes = driver.planned_sizes(problem)
    searched = min(rows, 180_000)
    forming = 8e-6 * np.mean(sizes) / problem.n_points / driver._SAMPLE_PASSES
    assert told == pytest.approx((len(sizes) - 1) * searched * (3e-6 + forming) / 2)
    # half of the points of a round are random draws; for each other one there is half a candidate to spare
    assert (problem.schedule.plain_share, problem.schedule.candidates, sizes) == (
        0.5,
        1.5,
        [0, 3, 6, 9, 12, 15, 18, 20],
    )
    assert planned == [int(np.ceil(1.5 * (6 * 2 + 1) / 7))]
