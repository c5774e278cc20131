"""Tables of other libraries give the model of the same pandas frame, in fit, predict and stores."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.base import clone

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.other_frames import as_pandas_rows

pl = pytest.importorskip("polars")

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "x": np.where(np.arange(80) == 3, np.nan, RNG.normal(size=80)),
        "kind": ["a", "b", None, "c"] * 20,
        "day": pd.date_range("2026-01-01", periods=80),
        "member": [True, False] * 40,
    }
)
Y = RNG.normal(size=80)


class Capsule:
    """Nothing but Arrow's own protocol."""

    def __init__(self, table: object) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)  # type: ignore[attr-defined]


FORMS = {
    "polars": lambda frame: frame,
    "categorical": lambda frame: frame.with_columns(kind=pl.col("kind").cast(pl.Categorical)),
    "lazy": lambda frame: frame.lazy(),
    "arrow": lambda frame: frame.to_arrow(),
    "batches": lambda frame: frame.to_arrow().to_reader(),
    "batch": lambda frame: frame.to_arrow().combine_chunks().to_batches()[0],
    "stream": lambda frame: Capsule(frame.to_arrow()),
}


@pytest.fixture(scope="module")
def of_pandas() -> dkl.KernelRegressor:
    return dkl.KernelRegressor(dkl.RandomFeatures(n_features=20, random_state=0), random_state=0).fit(FRAME, Y)


@pytest.mark.parametrize("form", FORMS)
def test_a_table_of_another_library_gives_the_same_model(form: str, of_pandas: dkl.KernelRegressor) -> None:
    def given() -> object:
        return FORMS[form](pl.from_pandas(FRAME))

    expected = of_pandas.predict(FRAME)
    np.testing.assert_array_equal(of_pandas.predict(given()), expected)
    machine = clone(of_pandas).fit(given(), pl.Series(Y))
    np.testing.assert_array_equal(machine.predict(FRAME), expected)
    assert machine.n_features_in_ == len(machine.feature_names_in_) == 4
    stored = dkl.create_dataset("memory://other.zarr", given(), Y, overwrite=True)
    np.testing.assert_array_equal(machine.predict(stored).compute().to_numpy(), expected)


def test_what_is_no_table_stays_what_it_is() -> None:
    for given in (Y, [1, 2], "text", None, pl.Series(Y), FRAME, 3):
        assert as_pandas_rows(given) is given


def test_names_of_several_levels_are_joined_and_names_that_come_twice_refused():
    frame = pd.DataFrame([[1.0, "a"], [2.0, "b"]], columns=pd.MultiIndex.from_tuples([("x", "n"), ("x", "t")]))
    rows = as_dataset(frame)
    assert [rule.name for rule in rows.encoding.rules] == ["('x', 'n')", "('x', 't')"]
    np.testing.assert_array_equal(rows.encoding.transform(frame), [[1.0, 1.0, 0.0], [2.0, 0.0, 1.0]])
    table = pa.table([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    with pytest.raises(ValueError, match=r"column names must differ; found more than once: \['a'\]"):
        as_dataset(table)
