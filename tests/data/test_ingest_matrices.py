"""ingest of libsvm text and npz archives against scikit-learn's reader and the arrays themselves."""

from __future__ import annotations

import gzip
import io
import re
import zipfile
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import dump_svmlight_file, load_breast_cancer, load_svmlight_file

import dkl
from dkl.data.ingest.ingest import plan_ingest
from dkl.data.ingest.libsvm_files import MAX_WIDTH, LibsvmFormat, libsvm_rows
from dkl.data.ingest.npz_files import NpzFormat


def rows_in_order(ds: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """X and y by the number of the row in the input."""
    order = np.argsort(ds.row_id.compute())
    X = ds.X.compute()
    X = X.toarray() if sparse.issparse(X) else X
    return X[order], None if ds.y is None else ds.y.compute()[order]


def wide(n_rows: int = 500, n_columns: int = 900) -> sparse.csr_array:
    return sparse.random_array(
        (n_rows, n_columns), density=0.01, format="csr", dtype=np.float32, rng=np.random.default_rng(0)
    )


def write_libsvm(path: Path, X: Any, y: np.ndarray, *, zero_based: bool = False) -> Path:
    dump_svmlight_file(X, y, str(path), zero_based=zero_based)
    return path


@pytest.mark.parametrize("zero_based", [False, True])
def test_libsvm_text_is_read_as_scikit_learn_reads_it(tmp_path, zero_based):
    X, y = load_breast_cancer(return_X_y=True)
    path = write_libsvm(tmp_path / "rows.svm", X, np.where(y, 1, -1), zero_based=zero_based)
    expected, labels = load_svmlight_file(path, dtype=np.float32, zero_based=zero_based)
    found, targets = rows_in_order(dkl.ingest(path, tmp_path / "rows.zarr"))
    np.testing.assert_array_equal(found, expected.toarray())
    np.testing.assert_array_equal(targets, labels)


@pytest.mark.parametrize("end", [b"\r", b"\r\n"])
def test_libsvm_lines_may_end_as_on_other_systems(tmp_path, end):
    X, y = wide(), np.arange(500) % 3
    path = write_libsvm(tmp_path / "rows.svm", X, y)
    path.write_bytes(path.read_bytes().replace(b"\n", end))
    # several chunks, some of which end within a line end
    for chunk_bytes in (977, 2**20):
        format = LibsvmFormat(n_columns=900, zero_based=False, chunk_bytes=chunk_bytes)
        ds = dkl.ingest(path, tmp_path / "rows.zarr", format=format, overwrite=True, progress=False)
        rows, labels = rows_in_order(ds)
        np.testing.assert_array_equal(rows, X.toarray())
        np.testing.assert_array_equal(labels, y)
    path.write_bytes(b"1 1:2" + end + b"1 1:x" + end)
    with pytest.raises(ValueError, match=r"line 2: .*'1:x'"):
        dkl.ingest(path, tmp_path / "rows.zarr", overwrite=True, progress=False)


def test_any_way_to_write_libsvm_text_is_understood():
    text = b"# a comment\n+1 1:0.5\t3:1e+2  7:-2.5e-3 # note 9:9\r\n\n -1 qid:3 2:+4\n3\n0.5 10:1"
    expected, labels = load_svmlight_file(
        io.BytesIO(text.replace(b"\t", b" ").replace(b"+4", b"4")), n_features=11, zero_based=True
    )
    X, y, _ = libsvm_rows(text)
    assert X.shape == (4, MAX_WIDTH)
    found = sparse.csr_array((X.data, X.indices, X.indptr), shape=(4, 11)).toarray()
    np.testing.assert_array_equal(found, expected.toarray().astype(np.float32))
    np.testing.assert_array_equal(y, labels)


def test_small_chunks_give_the_same_rows(tmp_path):
    path = write_libsvm(tmp_path / "rows.svm", wide(), np.arange(500) % 3)
    large, small = (
        dkl.ingest(path, tmp_path / f"{size}.zarr", format=LibsvmFormat(chunk_bytes=size)) for size in (2**20, 300)
    )
    assert (large.X.compute() != small.X.compute()).nnz == 0
    np.testing.assert_array_equal(large.row_id.compute(), small.row_id.compute())


def test_width_and_base_are_those_of_all_files(tmp_path):
    X = np.zeros((4, 6), np.float32)
    X[0, 1] = X[1, 2] = X[2, 0] = X[3, 5] = 1
    y = np.array([0, 1, 0, 1])
    write_libsvm(tmp_path / "a.svm", X[:2], y[:2], zero_based=True)
    packed = write_libsvm(tmp_path / "b", X[2:], y[2:], zero_based=True)
    with gzip.open(tmp_path / "b.svm.gz", "wb") as stream:
        stream.write(packed.read_bytes())
    found, targets = rows_in_order(dkl.ingest(tmp_path / "*.svm*", tmp_path / "rows.zarr"))
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(targets, y)
    # index 0 does not occur in the first file: alone it is taken to start at 1, and that is said
    alone = dkl.ingest(tmp_path / "a.svm", tmp_path / "alone.zarr")
    assert (alone.n_columns, alone.schema.first_index) == (2, 1)
    assert alone.describe().facts["first index"] == 1
    assert "counts columns from 1" in plan_ingest(tmp_path / "a.svm").describe()
    assert "counts columns from 0" in plan_ingest(tmp_path / "*.svm*").describe()
    with pytest.raises(ValueError, match=r"from 1 to 2 and n_columns=6, .* 0 or 1; .*zero_based=.*--zero-based"):
        dkl.ingest(tmp_path / "a.svm", tmp_path / "open.zarr", format=LibsvmFormat(n_columns=6))
    # only one base leaves room for the highest index
    assert dkl.ingest(tmp_path / "a.svm", tmp_path / "two.zarr", format=LibsvmFormat(n_columns=2)).n_columns == 2
    chosen = LibsvmFormat(n_columns=6, zero_based=True)
    found, _ = rows_in_order(dkl.ingest(tmp_path / "a.svm", tmp_path / "chosen.zarr", format=chosen))
    np.testing.assert_array_equal(found, X[:2])


def columns_apart(folder: Path) -> tuple[Path, Path]:
    """Training rows with all columns from 0 on, test rows without a value in the first, and these test rows."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (300, 8)).astype(np.float64)
    y = X[:, 3].astype(int)
    test = X[200:].copy()
    test[:, 0] = 0
    train_path = write_libsvm(folder / "train.svm", X[:200], y[:200], zero_based=True)
    return train_path, write_libsvm(folder / "test.svm", test, y[200:], zero_based=True)


def test_rows_whose_columns_are_shifted_are_refused_by_the_model(tmp_path):
    train_path, test_path = columns_apart(tmp_path)
    train = dkl.ingest(train_path, tmp_path / "train.zarr")
    model = dkl.KernelClassifier(features=dkl.RandomFeatures(n_features=100), random_state=0).fit(train)
    assert (train.schema.first_index, model.first_index_) == (0, 0)
    guessed = dkl.ingest(test_path, tmp_path / "guessed.zarr")
    assert guessed.schema.first_index == 1
    with pytest.raises(ValueError, match=r"features, but|shifted by one"):
        model.score(guessed)
    shifted = dkl.ingest(test_path, tmp_path / "shifted.zarr", format=LibsvmFormat(n_columns=8, zero_based=False))
    with pytest.raises(ValueError, match=r"counting columns from 1, .* fitted on rows read as counting from 0"):
        model.score(shifted)
    with pytest.raises(ValueError, match=r"counting columns from 1, .*LibsvmFormat\(zero_based=True\)"):
        train.append(shifted)
    right = dkl.ingest(test_path, tmp_path / "right.zarr", format=LibsvmFormat(n_columns=8, zero_based=True))
    assert model.score(right) > 0.9
    assert train.append(right).schema.first_index == 0
    model.save(tmp_path / "model")
    assert dkl.load_model(tmp_path / "model").first_index_ == 0
    model.fit(train.X.compute(), train.y.compute())
    assert not hasattr(model, "first_index_")


def test_libsvm_rows_are_sparse_when_that_pays(tmp_path):
    narrow = dkl.ingest(write_libsvm(tmp_path / "n.svm", np.eye(20), np.arange(20) % 2), tmp_path / "n.zarr")
    broad = dkl.ingest(write_libsvm(tmp_path / "w.svm", wide(), np.arange(500) % 2), tmp_path / "w.zarr")
    assert (narrow.source.is_sparse, broad.source.is_sparse) == (False, True)
    np.testing.assert_array_equal(rows_in_order(broad)[0], wide().toarray())
    dense = dkl.ingest(tmp_path / "w.svm", tmp_path / "d.zarr", layout="dense")
    assert not dense.source.is_sparse


MALFORMED = ["1e5e", "0x10", "1_000", "--1", "2:3", "", "1-2", "1+2", "++1", "1.2.3", "1e", "e5", "one", ".", "1f"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:2 1:3\n", "line 1: indices must ascend within a line .*'1 1:2 1:3'"),
        ("0 1:2\n1 5:1 2:1\n", "line 2: indices must ascend within a line .*'1 5:1 2:1'"),
        ("1 -2:3\n", "must ascend"),
        ("1 -1:3 2:1\n", "must ascend"),
        ("1 2147483647:3\n", "at most 2147483646; found 2147483647"),
        ("1 99999999999:3\n", "at most 2147483646; found 99999999999"),
        ("1 1:2\nyes 1:3\n", "rows.svm', line 2: expected lines of numbers, .* found 'yes' in the place of the label"),
        ("1 1:2 3\n", "expected lines of numbers.*found '3' in the place of an index:value pair"),
        ("1,2 1:3\n", "found '1,2' in the place of the label"),
        ("# note\n\n0 1:1\n1 1:2+3\n", "line 4: .*found '1:2\\+3'"),
        *((f"0 1:1\n1 1:{value}\n", f"line 2: .*found '1:{re.escape(value)}'") for value in MALFORMED),
        *((f"0 1:1\n{value} 1:1\n", f"line 2: .*found '{re.escape(value)}'") for value in MALFORMED if value),
        ("1 :2\n", "found ':2'"),
        ("1 0x10:2\n", "found '0x10:2'"),
        ("1 1: 2\n", "found '1:'"),
        ("1 1 :2\n", "found '1' in the place of an index:value pair"),
        ("1:2 3:4\n", "found '1:2' in the place of the label"),
        ("1 1:1e39\n0 1:1\n", r"X\[0, 1\] is inf"),
        ("1e999 1:1\n0 1:1\n", "target 'y' is inf in row 0"),
        ("1 1:nan\n0 1:1\n", r"X\[0, 1\] is NaN"),
        ("nan 1:1\n0 1:1\n", r"target 'y' is missing \(NaN\) in row 0"),
        ("1\n0\n", "no index:value pair"),
        ("# nothing\n", "the input has no rows"),
    ],
)
def test_malformed_libsvm_text_is_an_error(tmp_path, text, message):
    (tmp_path / "rows.svm").write_text(text)
    with pytest.raises(ValueError, match=message):
        dkl.ingest(tmp_path / "rows.svm", tmp_path / "rows.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.svm"]


@pytest.mark.parametrize(
    ("save", "dtype"),
    list(zip(cycle([np.savez, np.savez_compressed]), ["float32", "float64", "uint8", ">f4", "int16"])),
)
def test_dense_archives_keep_their_values_and_dtype(tmp_path, save, dtype):
    rng = np.random.default_rng(0)
    X = (100 * rng.random((700, 9))).astype(dtype)
    y = np.array(["no", "maybe"])[rng.integers(2, size=700)]
    weight = rng.integers(1, 5, 700)
    save(tmp_path / "a.npz", X=X[:300], y=y[:300].reshape(-1, 1), sample_weight=weight[:300])
    save(tmp_path / "b.npz", X=X[300:], y=y[300:], sample_weight=weight[300:])
    ds = dkl.ingest([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "rows.zarr")
    found, targets = rows_in_order(ds)
    assert found.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(found, X)
    np.testing.assert_array_equal(targets, y)
    np.testing.assert_array_equal(ds.sample_weight.compute(), weight[ds.row_id.compute()])


def test_arrays_of_an_archive_can_be_named(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    np.savez(tmp_path / "rows.npz", X_train=X, y_train=y, X_test=X[:3], y_test=y[:3])
    with pytest.raises(ValueError, match=r"has no array 'X'; it has .*'X_train'.*: pass format=dkl.NpzFormat\(rows="):
        dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr")
    ds = dkl.ingest(tmp_path / "rows.npz", tmp_path / "r.zarr", target="y_train", format=NpzFormat(rows="X_train"))
    np.testing.assert_array_equal(rows_in_order(ds)[0], X)
    np.testing.assert_array_equal(rows_in_order(ds)[1], y)


def test_sparse_archives_of_scipy_are_rows_without_or_with_a_target(tmp_path):
    X = wide()
    sparse.save_npz(tmp_path / "plain.npz", X)
    plain = dkl.ingest(tmp_path / "plain.npz", tmp_path / "plain.zarr")
    assert plain.source.is_sparse
    assert plain.task is None
    np.testing.assert_array_equal(rows_in_order(plain)[0], X.toarray())
    y = np.arange(500) * 0.5
    np.savez(tmp_path / "y.npz", data=X.data, indices=X.indices, indptr=X.indptr, shape=X.shape, y=y)
    ds = dkl.ingest(tmp_path / "y.npz", tmp_path / "y.zarr", shuffle=False)
    np.testing.assert_array_equal(ds.X.compute().toarray(), X.toarray())
    np.testing.assert_array_equal(ds.y.compute(), y)


BASE = {"X": np.eye(4), "y": np.array([0, 1, 0, 1])}


@pytest.mark.parametrize(
    ("arrays", "kind", "message"),
    [
        ({"y": [0, 1]}, ValueError, "'y' of .*|2 values of the target"),
        ({"X": np.array([[1.0, np.inf]] * 4)}, ValueError, r"X\[0, 1\] is inf"),
        ({"X": np.ones(4)}, ValueError, r"array 'X' of .* has shape \(4,\); expected \(rows, columns\)"),
        ({"X": np.asfortranarray(np.ones((4, 2)))}, ValueError, "stored by columns"),
        ({"X": np.array([[{}]] * 4)}, TypeError, "array 'X' of .* holds Python objects"),
        ({"X": np.ones((4, 2), complex)}, ValueError, "Complex data not supported"),
        ({"y": np.zeros(4)}, ValueError, "target 'y' has one class only"),
        ({"y": np.ones((4, 2))}, ValueError, r"array 'y' of .* has shape \(4, 2\); expected one value a row"),
        ({"sample_weight": -np.ones(4)}, ValueError, "weight 'sample_weight' is -1 in row 0"),
        ({"sample_weight": np.zeros(4)}, ValueError, "weight 'sample_weight' is 0 in all 4 rows"),
        ({"y": [2**60, 2**60 + 1] * 2}, ValueError, "beyond 2\\*\\*53"),
    ],
)
def test_archives_that_cannot_be_rows_say_why(tmp_path, arrays, kind, message):
    np.savez(tmp_path / "rows.npz", **(BASE | arrays))
    with pytest.raises(kind, match=message):
        dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.npz"]


def test_archives_that_differ_name_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", **BASE)
    np.savez(tmp_path / "b.npz", X=np.ones((2, 5)), y=[0, 1])
    np.savez(tmp_path / "c.npz", X=np.ones((2, 4)))
    with pytest.raises(ValueError, match="X has 5 columns of float64, and the first file 4") as caught:
        dkl.ingest([tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "rows.zarr")
    assert "b.npz" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="in every file or in none"):
        dkl.ingest([tmp_path / "a.npz", tmp_path / "c.npz"], tmp_path / "rows.zarr")


def test_a_damaged_archive_is_an_error(tmp_path):
    np.savez(tmp_path / "rows.npz", **BASE)
    whole = (tmp_path / "rows.npz").read_bytes()
    (tmp_path / "rows.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"rows.npz' is damaged: File is not a zip file"):
        dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr")


def test_choices_for_tables_are_refused_for_matrices(tmp_path):
    np.savez(tmp_path / "rows.npz", **BASE)
    write_libsvm(tmp_path / "rows.svm", np.eye(2), np.array([0, 1]))
    with pytest.raises(ValueError, match=r"drop=\['x'\] names columns of tables"):
        dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr", drop=["x"])
    with pytest.raises(ValueError, match=r"libsvm text carries its target and no other columns; leave out \['y'\]"):
        dkl.ingest(tmp_path / "rows.svm", tmp_path / "rows.zarr", target="y")


def with_header(path: Path, shape: object) -> Path:
    """An archive whose header says that X is of a shape."""
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    np.savez(path, y=[0, 1, 0, 1])
    with zipfile.ZipFile(path, "a") as archive:
        array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + bytes(96)
        archive.writestr("X.npy", array)
    return path


@pytest.mark.parametrize(
    "shape", [(-1, 3), (4, -3), (True, 3), (4, 2**62), (4, 2**40, 2**40), (4, 0), (1.5, 3), (), (2**64, 3)], ids=str
)
def test_odd_shapes_in_a_header_are_refused_by_the_name_of_the_array(tmp_path: Path, shape: object) -> None:
    with pytest.raises((ValueError, TypeError), match=r"array 'X' of '.*odd\.npz' has (no readable header|shape)"):
        dkl.ingest(with_header(tmp_path / "odd.npz", shape), tmp_path / "rows.zarr")


def test_a_row_above_the_limit_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "wide.npz", X=np.zeros((2, 16_000_000), dtype=np.float32), y=[0, 1])
    monkeypatch.setattr(NpzFormat, "read", lambda *given: pytest.fail("rows were read"))
    with pytest.raises(dkl.errors.MemoryLimitError, match=r"a row of '.*wide\.npz' has 61\.04 MiB"):
        dkl.ingest(tmp_path / "wide.npz", tmp_path / "rows.zarr", memory_limit="300MiB")


def test_a_row_above_the_free_memory_is_refused_where_no_limit_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = with_header(tmp_path / "wide.npz", (2, 2**50))
    monkeypatch.setattr(NpzFormat, "read", lambda *given: pytest.fail("rows were read"))
    with pytest.raises(dkl.errors.MemoryLimitError, match=r"a row of '.*wide\.npz' has .* of memory are free"):
        dkl.ingest(path, tmp_path / "rows.zarr")


@pytest.mark.parametrize("what", ["the array 'indptr'", "a row"])
def test_sparse_rows_above_the_limit_are_refused_before_they_are_read(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_rows, n_entries = (6_000_000, 0) if what != "a row" else (1, 6_000_000)
    bounds = np.linspace(0, n_entries, n_rows + 1).astype(np.int64)
    X = sparse.csr_array((np.ones(n_entries, np.float32), np.arange(n_entries), bounds), shape=(n_rows, 6_000_000))
    sparse.save_npz(tmp_path / "long.npz", X, compressed=False)
    monkeypatch.setattr(NpzFormat, "read", lambda *given: pytest.fail("rows were read"))
    with pytest.raises(dkl.errors.MemoryLimitError, match=rf"{what} of '.*long\.npz' has [\d.]+ MiB"):
        dkl.ingest(tmp_path / "long.npz", tmp_path / "rows.zarr", memory_limit="300MiB")


@pytest.mark.parametrize("form", ["csc", "bsr", "coo", "dia"])
def test_a_sparse_matrix_that_is_not_stored_by_rows_is_refused_and_not_taken_for_its_transpose(
    tmp_path: Path, form: str
) -> None:
    """The parts of a square CSC matrix are those of the CSR matrix with rows and columns exchanged."""
    X = sparse.random_array((40, 40), density=0.1, format="csr", rng=np.random.default_rng(0))
    sparse.save_npz(tmp_path / "rows.npz", X.asformat(form))
    with pytest.raises(ValueError, match=rf"rows.npz.*'{form}'.*X.tocsr"):
        dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr", progress=False)
    assert not (tmp_path / "rows.zarr").exists()
    sparse.save_npz(tmp_path / "rows.npz", X)
    found, _ = rows_in_order(dkl.ingest(tmp_path / "rows.npz", tmp_path / "rows.zarr", progress=False))
    np.testing.assert_array_equal(found, X.toarray())
