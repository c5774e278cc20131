"""Rows of any kind become one Dataset, unchanged and uncopied, or one clear error names what is wrong and where."""

from __future__ import annotations

import warnings
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse

from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset, from_zarr
from dkl.data.labels import guess_task
from dkl.data.sources.lazy import DaskSource
from dkl.errors import DklHint
from dkl.testing.sources import check_source

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 4))
Y = np.array(["b", "a", "c"])[np.arange(300) % 3]


def computed_blocks(ds: Dataset) -> list:
    """Every block as a pass would get it."""
    import dask

    source, blocks = ds.source, []
    for index in range(source.n_blocks):
        ticket = source.ticket(index)
        blocks.append(source.reader().load(dask.compute(ticket)[0]))
    return blocks


def test_blocks_of_arrays_in_memory_are_views() -> None:
    for dtype in (np.float32, np.float64, np.uint8):
        rows = np.ones((70_000, 3), dtype)
        y = np.arange(70_000.0) + 0.5
        ds = as_dataset(rows, y)
        assert ds.source.n_blocks == 2
        for index in range(2):
            block = ds.source.reader().load(ds.source.ticket(index))
            assert np.shares_memory(block.X, rows)
            assert np.shares_memory(block.y, y)
        check_source(ds.source)


def test_entries_of_sparse_rows_in_memory_are_not_copied_on_the_way_in() -> None:
    rows = sparse.random_array((100, 20), density=0.2, format="csr", rng=RNG)
    ds = as_dataset(rows)
    assert np.shares_memory(ds.source._X.data, rows.data)


@pytest.mark.parametrize("kind", ["csc_array", "coo_matrix", "csr_matrix", "lil_array", "dok_array", "bsr_array"])
def test_any_sparse_format_becomes_csr_with_sorted_rows(kind: str) -> None:
    rows = sparse.random_array((50, 20), density=0.2, format="coo", rng=RNG)
    ds = as_dataset(getattr(sparse, kind)(rows))
    found = ds.X.compute()
    assert isinstance(found, sparse.csr_array)
    assert found.has_sorted_indices
    assert np.array_equal(found.toarray(), rows.toarray())
    assert found.indices.dtype == np.int32


def test_duplicate_and_unsorted_entries_are_summed_and_the_given_matrix_is_left_alone() -> None:
    given = sparse.csr_array((np.array([1.0, 2.0, 4.0]), np.array([2, 0, 2]), np.array([0, 3])), shape=(1, 3))
    assert as_dataset(given).X.compute().toarray().tolist() == [[2.0, 0.0, 5.0]]
    assert given.data.tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        (np.ones((3, 2), bool), "uint8"),
        (np.ones((3, 2), ">f8"), "float64"),
        (np.ones((3, 2), "f2"), "float16"),
        (np.ones((3, 2), np.longdouble), "float64"),
        (np.ones((3, 2), object), "float64"),
        ([[1, 2], [3, 4], [5, 6]], "int64"),
    ],
)
def test_dtypes_are_kept_or_become_the_nearest_that_a_store_can_hold(given: object, dtype: str) -> None:
    assert as_dataset(given).X.compute().dtype == np.dtype(dtype)


def test_a_fortran_ordered_array_becomes_rows() -> None:
    assert as_dataset(np.asfortranarray(X)).source.ticket(0).X.flags.c_contiguous


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([0, 1, 2], "classification"),
        (["a", "b", "a"], "classification"),
        ([True, False, True], "classification"),
        ([1.0, 2.0, 1.0], "classification"),
        ([1.5, 2.0, 1.0], "regression"),
        ([[1.0, 2.0], [1.0, 2.0], [0.0, 1.0]], "regression"),
    ],
)
def test_the_task_is_guessed_as_scikit_learn_guesses_it(y: list, task: str) -> None:
    from sklearn.utils.multiclass import type_of_target

    assert guess_task(np.array(y)) == task
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = type_of_target(np.array(y))
    assert ("continuous" in kind or "multioutput" in kind) == (task == "regression")
    assert as_dataset(X[:3], y).task == task


def test_many_whole_numbers_that_are_taken_for_labels_are_hinted_at_where_nobody_has_said_what_they_are() -> None:
    counts = np.arange(300) // 5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_dataset(X, counts, task="regression")
        as_dataset(X, counts, task="classification")
        as_dataset(X, counts, classes=np.unique(counts))
        as_dataset(X, counts % 40)
        as_dataset(X, np.array([f"t{count}" for count in counts]))
    # last, since it is given once a process
    with pytest.warns(DklHint, match=r"60 different whole numbers.*KernelRegressor\(StepFeatures\(\)\)"):
        assert as_dataset(X, counts).task == "classification"


def test_the_task_and_the_classes_can_be_given() -> None:
    ds = as_dataset(X, np.arange(300) % 3, task="regression")
    assert ds.classes is None
    assert ds.y.compute().dtype == np.float64
    ds = as_dataset(X, Y, classes=["z", "a", "b", "c"])
    assert ds.classes.tolist() == ["a", "b", "c", "z"]
    assert ds.class_weights.tolist() == [100, 100, 100, 0]
    assert as_dataset(X[:5], ["a"] * 5, classes=["a", "b"]).class_weights.tolist() == [5, 0]


@pytest.mark.parametrize("form", ["arrays", "dask", "in place"])
def test_a_class_whose_rows_all_have_weight_zero_is_no_class(form: str, tmp_path: Path) -> None:
    labels = np.array(["a", "b", "c"])[np.arange(300) % 3]
    weight = np.where(labels == "b", 0.0, 1.0)
    if form == "in place":
        group = zarr.open_group(str(tmp_path / "given.zarr"), mode="w")
        group.create_array("X", data=X, chunks=(100, X.shape[1]))
        dataset = from_zarr(group["X"], labels, sample_weight=weight)
    elif form == "dask":
        given = da.from_array(X, chunks=(90, X.shape[1])), da.from_array(labels, 70), da.from_array(weight, 110)
        dataset = as_dataset(*given)
    else:
        dataset = as_dataset(X, labels, weight)
    assert dataset.classes.tolist() == ["a", "c"]
    assert dataset.class_weights.tolist() == [100.0, 100.0]
    assert dataset.y.compute().tolist() == labels[weight > 0].tolist()
    with pytest.raises(ValueError, match="one class"):
        as_dataset(X, labels, (labels == "a").astype(float))


def test_one_class_left_by_the_weights_is_told_from_one_class() -> None:
    X, y = np.ones((6, 2)), np.arange(6) % 2
    with pytest.raises(ValueError, match=r"one class, 0, in the rows that count \(3 others have the weight 0\)"):
        as_dataset(X, y, (y == 0).astype(float))
    with pytest.raises(ValueError, match="one class, 0; at least two"):
        as_dataset(X, 0 * y, np.ones(6))


def test_pandas_targets_beside_dask_rows_are_told_of() -> None:
    dd = pytest.importorskip("dask.dataframe")
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(TypeError, match=r"y is one of pandas.*y = dask\.dataframe\.from_pandas\(y"):
        as_dataset(dd.from_pandas(frame, npartitions=2), pd.Series([0, 1, 0, 1]))


def test_rows_of_weight_zero_are_left_out() -> None:
    weight = np.arange(300) % 3.0
    ds = as_dataset(X, Y, weight)
    kept = weight > 0
    assert ds.n_rows == 200
    assert ds.total_weight == weight.sum()
    assert np.array_equal(ds.X.compute(), X[kept])
    assert np.array_equal(ds.y.compute(), Y[kept])
    assert np.array_equal(ds.row_id.compute(), np.flatnonzero(kept))
    check_source(ds.source)


def lazy_variants() -> list[tuple]:
    unknown = da.from_array(X, chunks=50)
    unknown = unknown[unknown[:, 0] > -np.inf]
    return [
        (da.from_array(X, chunks=(40, 2)), da.from_array(Y, chunks=77), "columns and rows cut differently"),
        (unknown, da.from_array(Y, chunks=300), "unknown chunk sizes"),
        (da.from_array(X, chunks=60), Y, "y in memory"),
        (da.from_array(X, chunks=60), pd.Series(Y), "y a series"),
        (X, da.from_array(Y, chunks=20), "X in memory"),
        (da.from_array(X, chunks=60), da.from_array(Y[:, None], chunks=31), "y a column"),
    ]


@pytest.mark.parametrize("variant", lazy_variants(), ids=lambda variant: variant[2])
def test_dask_arrays_however_they_are_cut_hold_the_same_rows(variant: tuple) -> None:
    given, y, _ = variant
    ds = as_dataset(given, y, da.from_array(np.arange(300) % 2.0 + 1, chunks=13))
    assert isinstance(ds.source, DaskSource)
    assert np.array_equal(ds.X.compute(), X)
    assert np.array_equal(ds.y.compute(), Y)
    plain = as_dataset(X, Y, np.arange(300) % 2.0 + 1)
    assert ds.class_weights.tolist() == plain.class_weights.tolist()
    (block,), (other,) = computed_blocks(ds), computed_blocks(plain)
    assert np.array_equal(block.X, other.X)
    assert np.array_equal(block.y, other.y)
    assert np.array_equal(block.row_id, other.row_id)


def test_dask_rows_are_cut_by_the_rule_of_blocks_and_computed_one_block_at_a_time() -> None:
    seen = []

    def rows(block_info: dict | None = None) -> np.ndarray:
        start, stop = block_info[None]["array-location"][0]
        seen.append(start)
        return np.full((stop - start, 3), float(start))

    lazy = da.map_blocks(rows, chunks=((70_000,) * 3, (3,)), dtype=float, meta=np.empty((0, 0)))
    ds = as_dataset(lazy, da.arange(210_000, chunks=9_000) % 2)
    assert ds.source.block_rows.tolist() == [52_500] * 4
    assert ds.class_weights.tolist() == [105_000, 105_000]
    assert not seen, "X was computed to find classes and counts"
    block = ds.source.reader().load(ds.source.ticket(0).compute(scheduler="synchronous"))
    assert seen == [0]
    assert block.n_rows == 52_500


def test_chunks_with_other_columns_than_their_array_announces_are_refused() -> None:
    lazy = da.ones((20, 5), chunks=(10, 5)).map_blocks(lambda chunk: chunk[:, :3], dtype=float)
    with pytest.raises(ValueError, match="computed rows have 3 columns, and the array announced 5; correct") as caught:
        computed_blocks(as_dataset(lazy, np.arange(20) % 2))
    assert caught.value.__notes__ == ["at block 0 of a Dask array"]


def test_sparse_dask_chunks_stay_sparse() -> None:
    rows = sparse.random_array((100, 30), density=0.1, format="csr", rng=RNG)
    lazy = da.from_array(rows.toarray(), chunks=(25, 30)).map_blocks(sparse.csr_array)
    ds = as_dataset(lazy, np.arange(100) % 2)
    assert ds.source.is_sparse
    (block,) = computed_blocks(ds)
    assert isinstance(block.X, sparse.csr_array)
    assert abs(block.X - rows).max() == 0


FRAME = pd.DataFrame({"age": [31.0, None, 45.0, 50.0] * 5, "colour": ["red", "blue", "red", "red"] * 5})


def test_data_frames_are_encoded_and_remember_how() -> None:
    target = np.arange(20) % 2
    ds = as_dataset(FRAME, target)
    lazy = as_dataset(dd.from_pandas(FRAME, npartitions=3), dd.from_pandas(pd.Series(target), npartitions=2))
    assert ds.column_names == ["age", "age=<missing>", "colour=blue", "colour=red"]
    assert ds.passthrough.tolist() == [False, True, True, True]
    assert np.array_equal(ds.X.compute(), ds.encoding.transform(FRAME))
    assert np.array_equal(lazy.X.compute(), ds.X.compute())
    assert np.array_equal(lazy.y.compute(), target)
    assert lazy.encoding == ds.encoding


def test_texts_and_categories_of_a_dask_series_are_labels_without_a_warning_of_dask() -> None:
    labels = pd.Series(["yes", "no"] * 10)
    for column in (labels, labels.astype("category")):
        lazy = as_dataset(dd.from_pandas(FRAME, npartitions=2), dd.from_pandas(column, npartitions=2))
        assert lazy.classes.tolist() == ["no", "yes"]
        assert np.array_equal(lazy.y.compute(), labels)


def test_a_store_of_a_data_frame_keeps_the_encoding(tmp_path: object) -> None:
    ds = create_dataset(f"{tmp_path}/rows.zarr", FRAME, np.arange(20) % 2)
    assert ds.encoding == as_dataset(FRAME).encoding
    assert np.array_equal(ds.X.compute(), ds.encoding.transform(FRAME))
    assert "colour=red" in str(ds.describe())


def test_a_dataset_passes_through_and_warns_when_it_has_splits() -> None:
    ds = as_dataset(X, Y)
    assert as_dataset(ds) is ds
    split = ds.split({"train": 0.5, "test": 0.5})
    with pytest.warns(UserWarning, match=r"used whole.*ds\['train'\]"):
        assert as_dataset(split) is split
    assert as_dataset(split["train"]).n_rows == 150


def with_value(value: float, row: int, column: int) -> np.ndarray:
    rows = X.copy()
    rows[row, column] = value
    return rows


HUGE = np.full((300, 2), 2**53 + 1)
BAD = [
    ((sparse.csr_array(with_value(np.nan, 217, 3)),), ValueError, r"X\[217, 3\] is NaN"),
    ((with_value(-np.inf, 0, 0),), ValueError, r"X\[0, 0\] is -inf"),
    ((sparse.csr_array(with_value(np.inf, 299, 1)),), ValueError, r"X\[299, 1\] is inf"),
    ((X[:, 0],), ValueError, "Reshape your data"),
    ((X[:0],), ValueError, r"0 sample\(s\).*X has no rows"),
    ((X[:, :0],), ValueError, r"0 feature\(s\)"),
    ((X + 1j,), ValueError, "Complex data not supported"),
    ((sparse.csr_array(X + 1j),), ValueError, "Complex data not supported"),
    ((np.array([["a", "b"]]),), TypeError, "Encode strings"),
    ((np.array([[1.0, "x"]], object),), ValueError, "could not convert"),
    ((np.array([["2026-01-01"]], "datetime64[D]"),), TypeError, "Encode strings and dates"),
    ((HUGE,), ValueError, r"X\[0, 0\] is 9007199254740993; integers beyond 2\*\*53"),
    ((-HUGE.astype("i8"),), ValueError, r"X\[0, 0\] is -9007199254740993"),
    ((X, Y[:299]), ValueError, "y has 299 rows and X has 300"),
    ((X, np.where(np.arange(300) == 44, np.nan, 0.5)), ValueError, r"y\[44\] is NaN"),
    ((X, np.where(np.arange(300) == 44, np.inf, 0.0)), ValueError, r"y\[44\] is inf"),
    ((X, np.full(300, "same")), ValueError, "one class, 'same'"),
    ((X, np.zeros(300) + 1j), ValueError, "Complex data not supported: y"),
    ((X, np.array(["a", None] * 150, object)), ValueError, r"y\[1\] is None, so its target is missing"),
    ((X, np.zeros((300, 2, 2))), ValueError, r"y has shape \(300, 2, 2\)"),
    ((X, Y, np.ones(4)), ValueError, "sample_weight has"),
    ((X, Y, np.zeros(300)), ValueError, "sample_weight is zero for all rows"),
    ((X, Y, np.where(np.arange(300) == 7, -1.0, 1.0)), ValueError, r"sample_weight\[7\] is -1.0"),
    ((X, Y, np.where(np.arange(300) == 7, np.nan, 1.0)), ValueError, r"sample_weight\[7\] is NaN"),
]


@pytest.mark.parametrize("lazily", [False, True])
@pytest.mark.parametrize(("arguments", "kind", "message"), BAD)
def test_bad_rows_are_refused_with_the_place_from_memory_and_from_dask(
    arguments: tuple, kind: type[Exception], message: str, lazily: bool
) -> None:
    if lazily and (sparse.issparse(arguments[0]) or arguments[0].dtype == object):
        pytest.skip("Dask arrays of these do not exist")
    if lazily:
        arguments = tuple(da.from_array(given, chunks=-1) for given in arguments)
    with pytest.raises(kind, match=message):
        computed_blocks(as_dataset(*arguments))


def test_a_bad_value_of_a_dask_array_is_named_by_its_row_in_the_whole_array() -> None:
    rows = np.ones((70_000, 20), np.float32)
    rows[66_000, 7] = np.nan
    ds = as_dataset(da.from_array(rows, chunks=10_000))
    with pytest.raises(ValueError, match=r"X\[66000, 7\] is NaN"):
        ds.X.compute()
    assert len(ds.verify()) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ds: as_dataset(ds, Y), "y was given beside a Dataset, which has its own y"),
        (lambda ds: as_dataset(ds, None, np.ones(300)), "sample_weight was given beside a Dataset"),
        (lambda ds: as_dataset(ds, task="regression"), "labels such as .*, not numbers; take KernelClassifier"),
        (lambda ds: as_dataset(X, Y, task="ranking"), "task is 'ranking'"),
        (lambda ds: as_dataset(X, Y, classes=["a", "b"]), r"y\[2\] is 'c', which is not one of the 2 known classes"),
        (lambda ds: as_dataset(X, Y, classes=[1, 2]), "labels have dtype"),
        (lambda ds: as_dataset(X, Y, task="regression"), "regression needs numbers"),
        (lambda ds: as_dataset(X, X, task="classification"), "one class a row"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(as_dataset(X, Y))


def test_values_at_the_edge_of_a_dtype_are_finite_and_accepted() -> None:
    for value in (1e30, 5e-324, np.finfo(np.float32).max):
        rows = np.full((1000, 3), value, np.float32 if value != 5e-324 else np.float64)
        assert np.array_equal(as_dataset(rows).X.compute(), rows)
    assert as_dataset(np.full((3, 2), 2**53)).n_rows == 3
    assert as_dataset(np.full((3, 2), 65504, np.float16)).n_rows == 3


def test_names_and_dicts_in_place_of_rows_are_refused_with_what_to_do(tmp_path: Path) -> None:
    X, y = pd.DataFrame({"a": np.arange(9.0), "y": np.arange(9.0)}), np.arange(9.0)
    for rows in ("rows.zarr", tmp_path / "rows.csv"):
        with pytest.raises(ValueError, match=r"X is .*rows.* dkl.open_dataset, read files with dkl.ingest"):
            as_dataset(rows, y)
    with pytest.raises(ValueError, match=r"y is 'y', .* as in X\['y'\], and leave the column out of X"):
        as_dataset(X, "y")
    with pytest.raises(ValueError, match=r"X is of type dict; make a data frame of it, pandas.DataFrame\(\[X\]\)"):
        as_dataset({"a": 1.0}, y[:1])
