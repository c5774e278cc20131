"""Masked entries, sparse matrices that point nowhere and damaged files are refused wherever rows enter."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import zarr
from dask import delayed
from scipy import sparse

import dkl
from dkl.data import checks
from dkl.data.soundness import check_structure
from dkl.data.store import writer as store

RNG = np.random.default_rng(0)
ROWS, COLUMNS = 40, 6
DENSE = np.where(RNG.random((ROWS, COLUMNS)) < 0.5, RNG.normal(size=(ROWS, COLUMNS)), 0.0)
Y = np.arange(ROWS) % 2


def classifier() -> dkl.KernelClassifier:
    return dkl.KernelClassifier(dkl.RandomFeatures(n_features=10, random_state=0), random_state=0)


def spoiled(**parts: Callable[[np.ndarray], None]) -> sparse.csr_array:
    """CSR rows of which some array was changed after they were made, as SciPy lets one."""
    X = sparse.csr_array(DENSE)
    for name, change in parts.items():
        values = getattr(X, name).copy()
        found = change(values)
        setattr(X, name, values if found is None else found)
    return X


def put(place: int, value: int) -> Callable[[np.ndarray], None]:
    return lambda values: values.__setitem__(place, value)


DAMAGE = {
    "an index too large": (lambda: spoiled(indices=put(7, COLUMNS)), r"X\.indices\[7\] is 6, and X has 6 columns"),
    "an index far off": (lambda: spoiled(indices=put(7, 2**31 - 1)), r"X\.indices\[7\] is 2147483647"),
    "a negative index": (lambda: spoiled(indices=put(0, -1)), r"X\.indices\[0\] is -1, and X has 6 columns"),
    "falling bounds": (lambda: spoiled(indptr=put(5, 2**30)), r"X\.indptr falls from 1073741824 to \d+ at row 5"),
    "a negative bound": (lambda: spoiled(indptr=put(1, -5)), r"X\.indptr falls from 0 to -5 at row 0"),
    "a start after 0": (lambda: spoiled(indptr=put(0, 1)), r"X\.indptr starts at 1; expected 0"),
    "an end beyond the entries": (lambda: spoiled(indptr=put(-1, 10**6)), r"X\.indptr ends at 1000000, and X has"),
    "fewer values than indices": (
        lambda: spoiled(data=lambda v: v[:-3]),
        r"X\.ind\w+ .* \d+,? (entries and X\.data|and X has 106 entries)",
    ),
    "fewer bounds than rows": (lambda: spoiled(indptr=lambda v: v[:-1]), r"X\.indptr has 40 entries; expected 41"),
}


@pytest.fixture(params=DAMAGE, scope="module")
def damage(request: Any) -> tuple[Callable[[], sparse.csr_array], str]:
    return DAMAGE[request.param]


def test_damaged_rows_are_refused_by_fit_predict_and_stores(damage: Any, tmp_path: Path) -> None:
    make, message = damage
    fitted = classifier().fit(sparse.csr_array(DENSE), Y)
    attempts: list[Callable[[], Any]] = [
        lambda: classifier().fit(make(), Y),
        lambda: fitted.predict(make()),
        lambda: fitted.decision_function(lazy(make())).compute(),
        lambda: classifier().fit(lazy(make()), Y),
        lambda: fitted.predictor().predict(make()),
        lambda: dkl.RandomFeatures(n_features=10, random_state=0).fit(make()),
        lambda: dkl.create_dataset(str(tmp_path / "rows.zarr"), make(), Y),
    ]
    # each damage meets every second way in, and each way in about half of the damages
    for attempt in attempts[[*DAMAGE.values()].index(damage) % 2 :: 2]:
        with pytest.raises(ValueError, match=message):
            attempt()
    assert not (tmp_path / "rows.zarr").exists()


def lazy(X: sparse.csr_array) -> da.Array:
    return da.from_delayed(delayed(lambda: X)(), X.shape, meta=sparse.csr_array((0, COLUMNS)))


def group_of(path: Path, X: sparse.csr_array) -> str:
    group = zarr.open_group(path, mode="w")
    group.attrs.put({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": list(DENSE.shape)})
    for name in ("data", "indices", "indptr"):
        group.create_array(name, data=getattr(X, name))
    return str(path)


def test_damaged_rows_of_a_zarr_group_are_refused_and_verified(damage: Any, tmp_path: Path) -> None:
    make, message = damage
    for attempt in (lambda ds: classifier().fit(ds), lambda ds: ds.X.compute()):
        with pytest.raises(ValueError, match=message):
            attempt(dkl.from_zarr(X=group_of(tmp_path / "group.zarr", make()), y=Y))
    faults = dkl.from_zarr(X=group_of(tmp_path / "group.zarr", make()), y=Y).verify()
    assert faults


def test_whole_rows_of_a_zarr_group_have_no_faults(tmp_path: Path) -> None:
    assert dkl.from_zarr(X=group_of(tmp_path / "good.zarr", sparse.csr_array(DENSE)), y=Y).verify() == []


def test_damaged_rows_of_an_archive_are_refused_with_its_name(damage: Any, tmp_path: Path) -> None:
    make, _ = damage
    X = make()
    parts = {name: getattr(X, name) for name in ("data", "indices", "indptr")}
    np.savez(tmp_path / "rows.npz", y=Y, shape=DENSE.shape, format=b"csr", **parts)
    with pytest.raises(ValueError, match=r"X\.ind|CSR") as caught:
        dkl.ingest(str(tmp_path / "rows.npz"), str(tmp_path / "rows.zarr"))
    assert "rows.npz" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_a_store_that_was_written_unchecked_is_refused_by_its_readers(tmp_path: Path, monkeypatch: Any) -> None:
    def as_they_come(X: Any) -> Any:
        return X

    with monkeypatch.context() as patch:
        patch.setattr(store, "as_rows", as_they_come)
        patch.setattr(checks, "check_structure", as_they_come)
        with store.DatasetWriter(str(tmp_path / "rows.zarr"), dkl.open_dataset(whole(tmp_path)).schema) as writer:
            writer.write(spoiled(indices=put(7, 50)), Y)
    ds = dkl.open_dataset(str(tmp_path / "rows.zarr"))
    for attempt in (lambda: classifier().fit(ds), lambda: ds.X.compute()):
        with pytest.raises(ValueError, match=r"block 0 of 'X'.*X\.indices\[7\] is 50, and X has 6 columns"):
            attempt()
    faults = list(ds.verify())
    assert any("X.indices[7] is 50" in fault for fault in faults), faults


def whole(folder: Path) -> str:
    dkl.create_dataset(str(folder / "whole.zarr"), sparse.csr_array(DENSE), Y)
    return str(folder / "whole.zarr")


@pytest.mark.parametrize("form", ["csc", "bsr", "coo", "lil"])
def test_other_formats_are_looked_at_before_they_are_converted(form: str) -> None:
    X = sparse.csr_array(DENSE).asformat(form)
    if form == "coo":
        X.coords = (X.row.copy(), np.where(np.arange(X.nnz) == 3, 2**30, X.col))
    elif form == "lil":
        X.rows[3] = [2**30]
        X.data[3] = [1.0]
    else:
        X.indices = np.where(np.arange(len(X.indices)) == 3, 2**30, X.indices)
    with pytest.raises(ValueError, match=r"X\.(indices|col)\[\d+\] is 1073741824, and X has"):
        classifier().fit(X, Y)


@pytest.mark.parametrize("form", ["csr", "csc", "bsr", "coo", "lil", "dok", "dia"])
def test_sound_matrices_pass(form: str) -> None:
    for X in (sparse.csr_array(DENSE), sparse.csr_array((0, 3)), sparse.csr_array((3, 5))):
        check_structure(X.asformat(form))
    np.testing.assert_array_equal(checks.as_rows(sparse.csr_array(DENSE).asformat(form)).toarray(), DENSE)


def test_entries_behind_the_last_bound_count_for_nothing() -> None:
    X = sparse.csr_array(DENSE)
    X.data, X.indices = np.append(X.data, np.nan), np.append(X.indices, 10**6).astype(X.indices.dtype)
    rows = checks.as_rows(X)
    checks.check_rows(rows)
    np.testing.assert_array_equal(rows.toarray(), DENSE)
    assert len(rows.data) == rows.nnz


def masked(values: np.ndarray, *place: int) -> np.ma.MaskedArray:
    found = np.ma.array(values, mask=False)
    found[place] = np.ma.masked
    return found


def test_masked_entries_are_refused_everywhere(tmp_path: Path) -> None:
    X, weight = DENSE + 1.0, np.ones(ROWS)
    model = classifier().fit(X, Y)
    bad, bad_y, bad_weight = masked(X, 3, 2), masked(Y, 4), masked(weight, 5)
    path = str(tmp_path / "rows.zarr")
    for attempt, place in (
        (lambda: classifier().fit(bad, Y), r"X\[3, 2\]"),
        (lambda: classifier().fit(X, bad_y), r"y\[4\]"),
        (lambda: classifier().fit(X, Y, sample_weight=bad_weight), r"sample_weight\[5\]"),
        (lambda: dkl.KernelRegressor(random_state=0).fit(X, masked(X[:, 0], 4)), r"y\[4\]"),
        (lambda: classifier().fit(da.from_array(X, chunks=20), bad_y), r"y\[4\]"),
        (lambda: classifier().fit(da.from_array(bad, chunks=20), Y), r"X\[3, 2\]"),
        (lambda: dkl.RandomFeatures(n_features=10, random_state=0).fit(bad), r"X\[3, 2\]"),
        (lambda: dkl.create_dataset(path, bad, Y), r"X\[3, 2\]"),
        (lambda: dkl.create_dataset(path, X, bad_y), r"y\[4\]"),
        (lambda: dkl.create_dataset(path, X, Y, sample_weight=bad_weight), r"sample_weight\[5\]"),
        (lambda: model.predict(bad), r"X\[3, 2\]"),
        (lambda: model.predict(da.from_array(bad, chunks=20)).compute(), r"X\[3, 2\]"),
        (lambda: model.predictor().predict(bad), r"X\[3, 2\]"),
        (lambda: model.score(X, bad_y), r"y\[4\]"),
        (lambda: model.score(X, Y, bad_weight), r"sample_weight\[5\]"),
        (lambda: dkl.from_zarr(X=zarr.array(X), y=bad_y), r"y\[4\]"),
    ):
        with pytest.raises(ValueError, match=rf"{place} is masked"):
            attempt()
    assert not (tmp_path / "rows.zarr").exists()


def test_masked_arrays_without_masked_entries_are_plain_ones() -> None:
    X = DENSE + 1.0
    model, of_masked = classifier().fit(X, Y), classifier().fit(np.ma.array(X, mask=False), np.ma.array(Y))
    np.testing.assert_array_equal(of_masked.decision_function(np.ma.array(X)), model.decision_function(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.score(np.ma.array(X), np.ma.array(Y)) == model.score(X, Y)


def parquet_bytes() -> bytes:
    import pandas as pd

    out = io.BytesIO()
    pd.DataFrame({"x": RNG.normal(size=5000), "label": np.arange(5000) % 2}).to_parquet(out)
    return out.getvalue()


def npz_bytes(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **(arrays or {"X": RNG.normal(size=(500, 3)), "y": np.arange(500) % 2}))
    return out.getvalue()


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.parquet", lambda: parquet_bytes()[:-100]),
        ("a.parquet", lambda: parquet_bytes()[:50]),
        ("a.parquet", lambda: b"x,label\n1,0\n2,1\n"),
        ("a.parquet", lambda: b"PAR1" + bytes(100) + b"PAR1"),
        ("a.parquet", lambda: parquet_bytes()[:4] + bytes(3000) + parquet_bytes()[3004:]),
        ("a.npz", lambda: npz_bytes()[:-30]),
        ("a.npz", lambda: npz_bytes()[:20]),
        ("a.npz", lambda: b"\x93NUMPY" + bytes(100)),
        ("a.npz", lambda: b"x,y\n1,2\n"),
        ("a.npz", lambda: flipped(npz_bytes(), 300)),
        ("a.npz", lambda: npz_bytes()[:100] + bytes(300) + npz_bytes()[400:]),
        ("a.npz", lambda: npz_bytes(X=np.array([[1, "a"], [None, 2]], dtype=object), y=[0, 1])),
        ("a.npz", lambda: npz_bytes(X=np.ones((4, 2)), y=np.array([0, "a", 1, 1], dtype=object))),
        ("a.npz", lambda: npz_bytes(X=np.float64(3.0))),
        ("a.npz", lambda: npz_bytes(X=np.ones((4, 2)), y=np.array(0))),
        ("a.npz", lambda: npz_bytes(X=np.ones((4, 2), complex), y=[0, 1, 0, 1])),
    ],
)
def test_files_that_are_damaged_or_something_else_are_one_error_with_their_name(
    tmp_path: Path, name: str, make: Callable[[], bytes]
) -> None:
    (tmp_path / name).write_bytes(make())
    target = {"target": "label"} if name == "a.parquet" else {}
    with pytest.raises((ValueError, TypeError)) as caught:
        dkl.ingest(str(tmp_path / name), str(tmp_path / "rows.zarr"), **target)
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert name in message
    assert len(str(caught.value)) > 40, "it says what to do"
    assert not (tmp_path / "rows.zarr").exists()


def test_more_columns_than_can_be_numbered_are_refused_at_once() -> None:
    X = sparse.csr_array((np.ones(4), (np.arange(4), np.arange(4) * 2**31)), shape=(4, 2**33))
    with pytest.raises(ValueError, match=r"X has 8,589,934,592 columns; at most 2,147,483,647"):
        dkl.KernelClassifier("random", n_features=10).fit(X, [0, 1, 0, 1])
