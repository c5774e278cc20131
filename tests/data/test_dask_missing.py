"""Dask arrays with missing values are filled as arrays in memory are; rows stay lazy, and are looked at once."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from scipy import sparse

import dkl

RNG = np.random.default_rng(0)
X = RNG.normal(size=(300, 4)).astype(np.float32)
X[RNG.random(300) < 0.2, 1] = np.nan
X[250, 3] = np.nan
Y = np.where(np.nan_to_num(X[:, 0]) + np.nan_to_num(X[:, 1]) > 0, "a", "b")
CHUNKS = {"rows": (100, 4), "columns": (60, 2), "one": (300, 4)}


def machine() -> dkl.KernelClassifier:
    return dkl.KernelClassifier("aligned", solver="newton", alpha=1e-3, loss="squared_hinge", random_state=0)


@pytest.mark.parametrize("chunks", CHUNKS)
def test_a_fit_on_a_dask_array_with_gaps_is_that_on_the_array(chunks):
    lazy = da.from_array(X, chunks=CHUNKS[chunks])
    model, other = machine().fit(lazy, da.from_array(Y, chunks=100)), machine().fit(X, Y)
    assert model.encoding_.column_names == other.encoding_.column_names
    assert model.n_features_in_ == 4
    for rows in (lazy, lazy.persist()):
        answers = model.decision_function(rows)
        assert isinstance(answers, da.Array)
        # means are summed chunk by chunk
        np.testing.assert_allclose(answers.compute(), other.decision_function(X), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(model.predict(lazy).compute(), model.predict(X))


def test_a_store_of_a_dask_array_with_gaps_is_that_of_the_array(tmp_path):
    rows = X.astype(np.float64)
    lazy = da.from_array(rows, chunks=(70, 4))
    ds = dkl.create_dataset(tmp_path / "a.zarr", lazy, Y)
    other = dkl.create_dataset(tmp_path / "b.zarr", rows, Y)
    assert [rule.missing for rule in ds.encoding.rules] == [rule.missing for rule in other.encoding.rules]
    np.testing.assert_allclose(ds.X.compute(), other.X.compute(), rtol=1e-12)
    more = ds.append(lazy[:30], Y[:30])
    np.testing.assert_allclose(more.X.compute()[-30:], other.X.compute()[:30], rtol=1e-12)


def test_chunks_of_unknown_size_are_counted():
    lazy = da.from_array(X, chunks=(70, 4))
    unknown = lazy[da.from_array(np.arange(300) % 2 == 0, chunks=70)]
    model, other = machine().fit(unknown, Y[::2]), machine().fit(X[::2], Y[::2])
    np.testing.assert_allclose(
        model.decision_function(unknown).compute(), other.decision_function(X[::2]), rtol=1e-4, atol=1e-5
    )


def test_an_array_without_gaps_keeps_its_bits_and_has_no_rules():
    rows = np.nan_to_num(X)
    model, other = machine().fit(da.from_array(rows, chunks=(70, 4)), Y), machine().fit(rows, Y)
    assert model.encoding_ is None
    np.testing.assert_array_equal(model.linear_.coef_, other.linear_.coef_)


def test_infinity_and_gaps_of_sparse_rows_stay_errors(tmp_path):
    wrong = X.copy()
    wrong[123, 2] = np.inf
    with pytest.raises(ValueError, match=r"'column 2' is inf in row 123"):
        machine().fit(da.from_array(wrong, chunks=(70, 4)), Y)
    parts = da.from_array(X, chunks=(70, 4)).map_blocks(sparse.csr_array)
    with pytest.raises(ValueError, match=r"X\[\d+, 1\] is NaN"):
        dkl.create_dataset(tmp_path / "a.zarr", parts, Y)


def test_a_gap_where_fit_saw_none_is_told_of_and_refused_on_demand():
    lazy = da.from_array(X, chunks=(300, 4))
    model = machine().fit(lazy, Y)
    gap = np.nan_to_num(X[:3])
    gap[1, 0] = np.nan
    with pytest.warns(dkl.errors.TableDifferenceWarning, match="column 0"):
        model.predict(da.from_array(gap)).compute()
    with pytest.raises(ValueError, match="strict=True refuses"):
        model.predict(da.from_array(gap), strict=True).compute()
