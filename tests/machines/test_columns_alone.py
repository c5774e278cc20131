"""Columns that tell the target by themselves are asked about, and a race with nothing left to gain ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.linear.fitting import Run
from dkl.machines.columns import perfect_columns

pytestmark = pytest.mark.usefixtures("little_work")

N = 400
RNG = np.random.default_rng(0)
CHURNED = RNG.random(N) < 0.4
FRAME = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, N),
        "plan": RNG.choice(list("abc"), N),
        "refund_paid": CHURNED * RNG.integers(5, 50, N),
    }
)


def found(frame: Any, y: Any) -> dict[Any, float]:
    """The columns that tell `y` alone, and the pairs that do, of a frame that is stored."""
    stored = dkl.create_dataset("memory://alone.zarr", frame, y, overwrite=True)
    shares = perfect_columns(stored, Run(), 0)
    return {names[0] if len(names) == 1 else names: share for names, share in shares}


def test_the_reasons_of_a_fit_ask_about_a_column_that_tells_the_target_alone() -> None:
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(FRAME, CHURNED)
    assert any("'refund_paid' alone gives 1.000" in r and "known when you predict?" in r for r in model.reasons_)
    assert any("as there is no loss left" in reason for reason in model.reasons_)
    without = dkl.KernelClassifier(random_state=0, effort="fast").fit(FRAME.drop(columns="refund_paid"), CHURNED)
    assert not any("alone gives" in reason for reason in without.reasons_)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05, 0.3])
def test_a_column_is_nearly_perfect_where_hardly_a_row_is_told_wrong(noise: float) -> None:
    wrong = np.arange(N) < noise * N
    assert list(found(FRAME, CHURNED ^ wrong)) == (["refund_paid"] if noise == 0.0 else [])


def test_names_and_numbers_are_asked_about_too() -> None:
    names = FRAME.assign(state=np.where(CHURNED, "closed", "open"))
    assert set(found(names, CHURNED)) == {"refund_paid", "state=closed", "state=open"}
    twice = FRAME.assign(double=2.0 * FRAME.age + 1.0)
    assert set(found(twice, FRAME.age.astype(float) + 0.5)) == {"age", "double"}
    assert not found(FRAME[["age"]], FRAME.age.astype(float))


def test_columns_of_noise_are_never_perfect_however_few_the_rows() -> None:
    for n in (60, 200):
        X = pd.DataFrame(RNG.normal(size=(n, 300))).rename(columns="x{}".format)
        assert not found(X, RNG.integers(0, 2, n))
        assert not found(X, RNG.normal(size=n))


PAIRS = pd.DataFrame(
    {
        "a": RNG.random(N) < 0.5,
        "b": RNG.random(N) < 0.5,
        "level": RNG.integers(0, 4, N),
        "opened": RNG.normal(size=N),
        "closed": RNG.normal(size=N),
    }
)
RULES = {
    "exclusive or": (PAIRS.a ^ PAIRS.b, ("a", "b")),
    "both": (PAIRS.a & PAIRS.b, ("a", "b")),
    "larger": (PAIRS.opened > PAIRS.closed, ("opened", "closed")),
    "a table of two": (PAIRS.a * 10.0 + PAIRS.level, ("a", "level")),
}


@pytest.mark.parametrize("rule", RULES)
def test_pairs_of_columns_that_tell_the_target_together_are_asked_about(rule: str) -> None:
    y, names = RULES[rule]
    assert list(found(PAIRS, y)) == [names]
    assert not found(PAIRS, RNG.permutation(y))
    # a column that tells the target alone is named alone
    assert list(found(PAIRS.assign(copy=1.0 * y), y)) == ["copy"]


def test_a_fit_asks_about_a_pair_and_ends_where_no_loss_is_left() -> None:
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(PAIRS, PAIRS.a ^ PAIRS.b)
    assert any("'a' and 'b' together give 1.000" in reason and "known when you" in reason for reason in model.reasons_)
    assert any("as there is no loss left" in reason for reason in model.reasons_)


def test_pairs_of_noise_are_never_perfect_however_rare_a_class_is() -> None:
    for n, share in ((60, 0.5), (200, 0.04), (2_000, 0.01)):
        X = pd.DataFrame(RNG.integers(0, 3, size=(n, 40))).rename(columns="x{}".format)
        assert not found(X, (RNG.random(n) < share).astype(int))
