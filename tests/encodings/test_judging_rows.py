"""Whatever judges in a fit: its rows enter no code of a category, share no group with others, and are newer by time."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.rows import GroupsAndTimes
from dkl.data.together.rules import second_share
from dkl.encodings import categories
from dkl.encodings.target_means import CategoryFolds
from dkl.linear.minibatches import HeldOut
from dkl.methods import refining
from dkl.methods.fit_context import FitContext

N = 600
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"x": RNG.normal(size=N), "c": [f"v{k:02d}" for k in RNG.integers(0, 50, N)]})
Y = np.where(FRAME["x"] + RNG.normal(size=N) > 0, "a", "b")
GIVEN = {None: {}, "group": {"groups": RNG.integers(0, 40, N)}, "time": {"times": RNG.permutation(N)}}


def learners():
    newton = {"random_state": 7, "progress": False}
    return {
        "rounds": dkl.MarginFeatures(n_features=20, patience=1, **newton),
        "refined": dkl.MarginFeatures(n_features=20, refine=1, **newton),
        "steps": dkl.StepFeatures(n_features=20, **newton),
        "combined": dkl.CombinedFeatures([dkl.MarginFeatures(n_features=20, refine=1), "random"], **newton),
    }


@pytest.mark.parametrize(
    ("name", "held_by"),
    [
        *(("rounds", None), ("refined", "group"), ("steps", "time"), ("combined", "group")),
    ],
)
def test_rows_that_judge_anywhere_in_a_fit_enter_no_code(monkeypatch, name, held_by):
    """Also where the learner has another seed than its machine."""
    judging: list[tuple[HeldOut, np.ndarray]] = []
    folds: list[CategoryFolds] = []
    fraction = HeldOut.fraction

    def watched(self: HeldOut, held_with: np.ndarray) -> np.ndarray:
        if 0 < self.share < 1 and not any(self == known for known, _ in judging):
            judging.append((self, held_with))
        return fraction(self, held_with)

    def noted(held_out: HeldOut) -> CategoryFolds:
        folds.append(CategoryFolds(held_out))
        return folds[-1]

    monkeypatch.setattr(HeldOut, "fraction", watched)
    monkeypatch.setattr(categories, "CategoryFolds", noted)
    machine = dkl.KernelClassifier(learners()[name], solver="newton", alpha="auto", random_state=3, progress=False)
    machine.fit(FRAME, Y, **GIVEN[held_by])
    (fold,) = folds
    assert len(judging) > 1 or name != "refined"
    for held_out, held_with in judging:
        assert not fold(held_with)[fraction(held_out, held_with) < held_out.share].any(), held_out


def blocks_of(held_by: str | None, groups: int = 40) -> tuple[object, np.ndarray]:
    given = {"groups": np.arange(N) % groups} if held_by == "group" else GIVEN[held_by]
    dataset = GroupsAndTimes(FRAME[["x"]], **given).with_rule(as_dataset(FRAME[["x"]], Y))
    reader = dataset.source.reader()
    return dataset, np.concatenate(
        [reader.load(dataset.source.ticket(i)).held_with for i in range(dataset.source.n_blocks)]
    )


@pytest.mark.parametrize("held_by", GIVEN)
def test_a_refinement_chooses_its_penalty_and_its_epoch_on_different_rows(held_by):
    dataset, held_with = blocks_of(held_by)
    learner = learners()["refined"]
    learner.seed_, learner._context = 5, FitContext()
    learner.feature_map_ = dkl.Gaussian(1.0).draw(10, 1, 0)
    problem = refining._problem(learner, dataset)
    epoch, penalty = problem.held_out.mask(held_with), problem.validation.mask(held_with)
    assert epoch.any()
    assert penalty.any()
    assert not (epoch & penalty).any()
    if held_by == "group":
        groups = np.arange(N) % 40
        assert not set(groups[epoch]) & set(groups[penalty])
        assert not set(groups[epoch | penalty]) & set(groups[~(epoch | penalty)])
    if held_by == "time":
        times = GIVEN["time"]["times"]
        assert times[epoch].min() > times[penalty].max()
        assert times[penalty].min() > times[~(epoch | penalty)].max()


@pytest.mark.parametrize("groups", [3, 4, 5, 9, 15, 40])
def test_few_groups_make_two_shares_of_rows_that_are_not_empty(groups):
    dataset, held_with = blocks_of("group", groups)
    first = HeldOut(0.1, 3)
    second = HeldOut(0.1, 3, second_share(dataset.source, 0.1))
    assert first.mask(held_with).any()
    assert second.mask(held_with).any()
    assert not (first.mask(held_with) & second.mask(held_with)).any()


def test_two_groups_have_one_share_for_both():
    dataset, _ = blocks_of("group", 2)
    assert second_share(dataset.source, 0.1) == 0.0
    assert second_share(dataset.source, 0.6) == 0.0


@pytest.mark.parametrize(("n_times", "has_two"), [(2, False), (3, True), (5, True), (40, True), (N, True)])
def test_few_times_make_two_shares_that_are_not_empty(n_times, has_two):
    """The newest rows, and rows that are older than all of these; some are left to learn from."""
    times = np.arange(N) * n_times // N
    dataset = GroupsAndTimes(FRAME[["x"]], times=times).with_rule(as_dataset(FRAME[["x"]], Y))
    held_with = next(iter(dataset.source.blocks_without_x())).held_with
    begin = second_share(dataset.source, 0.1)
    assert (begin > 0.0) == has_two
    if has_two:
        first, second = HeldOut(0.1).mask(held_with), HeldOut(0.1, first=begin).mask(held_with)
        rest = ~(first | second)
        assert times[first].min() > times[second].max() >= times[second].min() > times[rest].max()
