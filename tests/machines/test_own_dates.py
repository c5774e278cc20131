"""A machine that chooses everything holds out the newest rows where a table has one column of dates."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.choosing import held_by_own_dates

pytestmark = pytest.mark.usefixtures("little_work")

N = 500
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame({"x": RNG.normal(size=N), "when": pd.date_range("2024-01-01", periods=N)}).sample(
    frac=1.0, random_state=1, ignore_index=True
)
Y = FRAME["x"] + RNG.normal(size=N)


def held(frame: pd.DataFrame) -> str | None:
    dataset = as_dataset(frame, Y)
    return held_by_own_dates(dataset.source, dataset.schema)[1].held_by


def machine(**given: object) -> dkl.KernelRegressor:
    return dkl.KernelRegressor(random_state=0, progress=False, effort="fast", **given)


def test_a_choice_by_itself_is_that_by_the_dates(tmp_path):
    own, named = machine().fit(FRAME, Y), machine(by_time="when").fit(FRAME, Y)
    np.testing.assert_allclose(own.predict(FRAME), named.predict(FRAME), rtol=1e-6)
    assert any("the newest rows by 'when'" in reason for reason in own.reasons_)
    assert re.search(r"R\^2 -?\.\d+ on the newest rows \(", own.summary_)
    # a store has the same column
    dkl.create_dataset(tmp_path / "rows.zarr", FRAME, Y)
    stored = machine().fit(dkl.open_dataset(tmp_path / "rows.zarr"))
    np.testing.assert_array_equal(stored.linear_.coef_, own.linear_.coef_)
    drawn = machine(by_time=False).fit(FRAME, Y)
    assert not any("the newest rows" in reason for reason in drawn.reasons_)


def test_the_score_of_the_newest_rows_is_their_own_r_squared():
    # nothing predicts these targets; the newest third of them varies a hundredth as much as the others
    is_new = FRAME["when"] >= FRAME["when"].quantile(2 / 3)
    noise = np.where(is_new, 0.01, 1.0) * np.random.default_rng(1).normal(size=N)
    model = machine().fit(FRAME, noise)
    found = re.search(r"R\^2 (-?[.\d]+) on the newest rows", model.summary_)
    assert found is not None
    assert float(found[1]) < 0.1


def test_features_that_are_given_keep_rows_drawn_at_random():
    own, drawn = (machine(features="aligned", by_time=by_time).fit(FRAME, Y) for by_time in (None, False))
    np.testing.assert_array_equal(own.linear_.coef_, drawn.linear_.coef_)


@pytest.mark.parametrize(
    ("name", "frame", "expected"),
    [
        ("dates", FRAME, "time"),
        ("texts", FRAME.assign(when=FRAME["when"].dt.strftime("%m/%d/%Y")), "time"),
        ("two columns of dates", FRAME.assign(other=FRAME["when"][::-1].to_numpy()), None),
        ("a date is missing", FRAME.assign(when=FRAME["when"].where(FRAME.index != 3)), None),
        ("few dates", FRAME.assign(when=FRAME["when"].dt.to_period("Q").dt.to_timestamp()), None),
        ("one date of many rows", FRAME.assign(when=FRAME["when"].clip(upper=pd.Timestamp("2025-01-01"))), None),
        ("no date", FRAME[["x"]], None),
    ],
)
def test_only_dates_that_put_rows_in_order_decide(name, frame, expected):
    assert held(frame) == expected


def test_groups_that_are_given_come_first():
    model = machine().fit(FRAME, Y, groups=np.arange(N) % 50)
    assert any("whole groups" in reason for reason in model.reasons_)
