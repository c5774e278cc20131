"""Numbers that float32 cannot hold stay in float64, wherever tables come from; what float64 cannot hold is refused."""

from __future__ import annotations

import json
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dkl
from dkl.data.differences import Differences
from dkl.data.ingest.encoding import TableEncoding, learn_encoding
from dkl.data.ingest.precision import CLOSE, SAMPLE_ROWS, WHOLE, NumberSample

N = 1_000
RNG = np.random.default_rng(0)
STEPS = np.arange(N)
SECONDS = 1_700_000_000 + STEPS


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (SECONDS, WHOLE),
        (1000 * SECONDS, WHOLE),
        (RNG.integers(10**9, 10**10, N), WHOLE),
        (np.append(RNG.integers(10**9, 10**10, N - 1).astype(float), np.nan), WHOLE),
        (np.where(STEPS % 50, SECONDS, 0), WHOLE),
        (-SECONDS, WHOLE),
        ([Decimal(2**24 + i) for i in range(N)], WHOLE),
        (SECONDS + 0.25, CLOSE),
        (np.where(STEPS % 50, SECONDS + 0.25, 0.0), CLOSE),
        (1e9 + STEPS / 100, CLOSE),
        ([Decimal(10**11 + i) / 100 for i in range(N)], CLOSE),
        (RNG.uniform(1e-50, 1e-48, N), CLOSE),
    ],
    ids=[
        "Unix seconds", "Unix milliseconds", "ten digits", "ten digits or none", "seconds or 0", "negative",
        "whole decimals", "seconds with fractions", "seconds with fractions or 0", "prices with cents at 1e9",
        "decimals", "below float32",
    ],
)  # fmt: skip
def test_a_column_that_float32_would_merge_stays_double(values: Any, why: str) -> None:
    frame = pd.DataFrame({"v": values, "plain": RNG.normal(size=N)})
    encoding = learn_encoding([frame])
    assert encoding.dtype == np.float64
    assert [rule.double for rule in encoding.rules] == [why, ""]
    assert f"kept in double precision because {why}" in encoding.describe()
    X = encoding.transform(frame)
    assert X.dtype == np.float64
    there = frame["v"].notna().to_numpy()
    np.testing.assert_allclose(X[there, 0], frame["v"].to_numpy()[there].astype(float), rtol=3e-16)
    np.testing.assert_array_equal(X[:, -1], frame["plain"])
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


@pytest.mark.parametrize(
    "values",
    [
        np.full(N, 1_700_000_001),
        RNG.normal(size=N),
        280 + 10 * RNG.normal(size=N),
        52.5 + 0.05 * RNG.normal(size=N),
        np.round(RNG.uniform(0, 1e5, N), 2),
        RNG.integers(-(2**24), 2**24, N),
        RNG.uniform(1e20, 1e25, N),
        np.where(STEPS % 2, 0.3, 0.1 + 0.2),
        RNG.random(N) < 0.5,
    ],
    ids=["one large number", "normal", "kelvin", "degrees", "prices", "counts", "large", "rounding alone", "booleans"],
)
def test_ordinary_columns_keep_the_bits_of_float32(values: Any) -> None:
    frame = pd.DataFrame({"v": values})
    encoding = learn_encoding([frame])
    X = encoding.transform(frame)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X[:, 0], np.asarray(values).astype(np.float32))
    assert "double" not in json.dumps(encoding.to_json())


@settings(deadline=None, max_examples=20)
@given(st.lists(st.integers(1, N - 1), max_size=6))
def test_the_decision_does_not_depend_on_the_cuts(cuts: list[int]) -> None:
    frame = pd.DataFrame({"a": 1e9 + STEPS / 100, "b": np.where(STEPS < 900, 0.5, STEPS), "c": SECONDS})
    bounds = [0, *sorted(cuts), N]
    pieces = [frame[start:stop] for start, stop in pairwise(bounds)]
    assert learn_encoding(pieces) == learn_encoding([frame])


def test_samples_merge_to_the_rows_of_smallest_hash_in_any_order() -> None:
    def sample(first: int, stop: int) -> NumberSample:
        keys, rows = NumberSample.rows_of(first, stop - first)
        return NumberSample(keys, (first + rows)[:, None].astype(float))

    whole = sample(0, 5000)
    assert len(whole.keys) == SAMPLE_ROWS
    for merged in (
        sample(0, 100).merge(sample(100, 3000)).merge(sample(3000, 5000)),
        sample(3000, 5000).merge(sample(0, 100).merge(sample(100, 3000))),
    ):
        np.testing.assert_array_equal(merged.values, whole.values)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (np.array([1, 2**53 + 1], np.int64), "9007199254740993 in row 1"),
        (np.array([1, -(2**53) - 1], np.int64), "-9007199254740993 in row 1"),
        (np.array([1, 2**63 + 1], np.uint64), "9223372036854775809 in row 1"),
        ([Decimal(1), Decimal(2**53 + 1)], "9007199254740993 in row 1"),
        ([1, 2**53 + 1], "9007199254740993 in row 1"),
        (pd.array([None, 2**53 + 1], dtype="Int64"), "9007199254740993 in row 1"),
        ([1, 2**70 + 1], "1180591620717411303425 in row 1"),
    ],
    ids=["int64", "negative", "uint64", "Decimal", "objects", "nullable", "beyond 64 bits"],
)
def test_whole_numbers_that_float64_does_not_hold_are_refused_by_name(values: Any, named: str) -> None:
    bad = pd.DataFrame({"id": pd.Series(values, dtype=object if isinstance(values, list) else None), "x": [1.0, 2.0]})
    with pytest.raises(ValueError, match=rf"column 'id' is {named}.*float64.*drop=\['id'\]"):
        learn_encoding([bad])
    encoding = learn_encoding([pd.DataFrame({"id": [1, 2], "x": [1.0, 2.0]})], missing="mean")
    with pytest.raises(ValueError, match=f"column 'id' is {named}"):
        encoding.transform(bad)


def test_large_whole_numbers_that_float64_holds_are_taken() -> None:
    frame = pd.DataFrame({"id": np.array([2**60, 2**60 + 2**20], np.int64)})
    np.testing.assert_array_equal(learn_encoding([frame]).transform(frame)[:, 0], frame["id"].astype(float))


def write(frame: pd.DataFrame, folder: Path, suffix: str) -> str:
    path = folder / f"rows{suffix}"
    frame.to_csv(path, index=False) if suffix == ".csv" else frame.to_parquet(path)
    return str(path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_files_are_refused_where_a_whole_number_is_not_held(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame({"id": [10**17 + 1, 10**17 + 2, 10**17], "label": ["a", "b", "a"]})
    with pytest.raises(ValueError, match=r"column 'id' is 100000000000000001 in row .*float64") as caught:
        dkl.ingest(write(frame, tmp_path, suffix), str(tmp_path / "s.zarr"), target="label")
    assert f"rows{suffix}" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    ds = dkl.ingest(str(tmp_path / f"rows{suffix}"), str(tmp_path / "t.zarr"), target="label", categorical=["id"])
    assert ds.n_columns == 3


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_ingest_keeps_double_precision_and_says_so(tmp_path: Path, suffix: str, caplog: Any) -> None:
    frame = pd.DataFrame({"when": SECONDS, "x": RNG.normal(size=N), "label": np.where(STEPS % 7 < 3, "a", "b")})
    with caplog.at_level("INFO", logger="dkl"):
        ds = dkl.ingest(write(frame, tmp_path, suffix), str(tmp_path / "s.zarr"), target="label", seed=1)
    assert f"when: number, kept in double precision because {WHOLE}" in caplog.text
    ds = dkl.open_dataset(str(tmp_path / "s.zarr"))
    assert ds.schema.dtype == np.float64
    assert "double precision" in ds.encoding.describe()
    assert not ds.verify()
    rows = ds.row_id.compute()
    np.testing.assert_array_equal(ds.X.compute(), frame[["when", "x"]].to_numpy()[rows])


def rows_and_labels() -> tuple[pd.DataFrame, np.ndarray]:
    return pd.DataFrame({"when": SECONDS[:200]}), np.where(STEPS[:200] < 100, "early", "late")


def classifier() -> dkl.KernelClassifier:
    learner = dkl.RandomFeatures(n_features=50, scaling="standard", random_state=0)
    return dkl.KernelClassifier(learner, random_state=0)


def test_a_frame_is_fitted_like_the_array_of_its_numbers(tmp_path: Path) -> None:
    frame, y = rows_and_labels()
    X = frame.to_numpy().astype(float)
    model, of_array = classifier().fit(frame, y), classifier().fit(X, y)
    assert model.score(frame, y) == of_array.score(X, y) > 0.99
    np.testing.assert_array_equal(model.decision_function(frame), of_array.decision_function(X))
    of_dask = classifier().fit(dd.from_pandas(frame, npartitions=3), y)
    np.testing.assert_array_equal(of_dask.encoding_.dtype, np.float64)
    assert of_dask.score(frame, y) > 0.99
    ds = dkl.create_dataset(str(tmp_path / "rows.zarr"), frame, y)
    assert ds.schema.dtype == np.float64
    np.testing.assert_array_equal(classifier().fit(ds).decision_function(frame), of_array.decision_function(X))
    model.save(str(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(dkl.load_model(str(tmp_path / "model.zarr")).predict(frame), model.predict(frame))


def test_exported_models_take_double_precision() -> None:
    ort = pytest.importorskip("onnxruntime")
    frame, y = rows_and_labels()
    frame["colour"] = np.where(STEPS[:200] % 3, "red", "blue")
    model = classifier().fit(frame, y)
    expected = model.predict(frame)
    predictor = model.predictor()
    assert [predictor.predict(row) for row in frame.to_dict("records")] == expected.tolist()
    np.testing.assert_array_equal(model.to_sklearn().predict(frame), expected)
    session = ort.InferenceSession(model.to_onnx().SerializeToString())
    inputs = {"when": frame[["when"]].to_numpy().astype(float), "colour": frame[["colour"]].to_numpy().astype(object)}
    np.testing.assert_array_equal(session.run(None, inputs)[0], expected)
    numbers = classifier().fit(frame[["when"]], y)
    session = ort.InferenceSession(numbers.to_onnx().SerializeToString())
    np.testing.assert_array_equal(session.run(None, {"X": inputs["when"]})[0], numbers.predict(frame[["when"]]))


def test_sparse_encoded_rows_are_double_too() -> None:
    names = np.array([f"n{i}" for i in range(32)])
    frame = pd.DataFrame({"when": SECONDS, **{f"name {c}": names[(STEPS + c) % 32] for c in range(8)}})
    X = learn_encoding([frame]).transform(frame)
    assert X.format == "csr"
    assert X.dtype == np.float64
    np.testing.assert_array_equal(X[:, [0]].toarray()[:, 0], SECONDS)


def test_the_plan_counts_double_precision(tmp_path: Path) -> None:
    frame, y = rows_and_labels()
    single = dkl.create_dataset(str(tmp_path / "single.zarr"), frame - 1_700_000_000, y)
    double = dkl.create_dataset(str(tmp_path / "double.zarr"), frame, y)
    assert double.source.block_nbytes - single.source.block_nbytes == 4 * len(frame)
    learner = dkl.RandomFeatures(n_features=10, scaling="standard", random_state=0)
    assert dkl.plan(learner, double).passes[0].memory.total > dkl.plan(learner, single).passes[0].memory.total


@pytest.mark.parametrize(
    ("stored", "further", "message"),
    [
        (
            pd.DataFrame({"when": STEPS[:200]}),
            pd.DataFrame({"when": SECONDS[:3]}),
            r"X\[1, 0\] \(column 'when'\) is 17",
        ),
        (
            pd.DataFrame({"v": RNG.normal(size=200)}),
            pd.DataFrame({"v": 1e9 + STEPS[:30] / 64 + 1 / 128}),
            r"X\[0, 0\] \(column 'v'\) is 1000000000.00",
        ),
        (
            RNG.normal(size=(200, 1)).astype("f4"),
            SECONDS[:3, None],
            r"X\[1, 0\] is 1700000001, and the rows .* float32",
        ),
        (RNG.integers(0, 200, (200, 1)).astype("u1"), np.array([[3], [300]]), r"X\[1, 0\] is 300, .* are uint8"),
        (RNG.integers(0, 200, (200, 1)).astype("u1"), np.array([[3.5]]), r"X\[0, 0\] is 3.5, .* are uint8"),
    ],
    ids=["whole in a frame", "close in a frame", "whole in an array", "beyond uint8", "a fraction in uint8"],
)
def test_appended_rows_that_the_store_would_change_are_refused(
    tmp_path: Path, stored: Any, further: Any, message: str
) -> None:
    store = str(tmp_path / "rows.zarr")
    ds = dkl.create_dataset(store, stored, STEPS[:200] % 2)
    with pytest.raises(ValueError, match=message):
        ds.append(further, STEPS[: len(further)] % 2)
    assert dkl.open_dataset(store).n_rows == 200
    assert ds.append(stored[:3], STEPS[:3] % 2).n_rows == 203


def test_rows_join_a_store_of_double_precision_whole(tmp_path: Path) -> None:
    frame, y = rows_and_labels()
    later = dkl.create_dataset(str(tmp_path / "rows.zarr"), frame, y).append(frame + 10**6, y)
    np.testing.assert_array_equal(later.X.compute()[200:, 0], SECONDS[:200] + 10**6)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"member": 5}, ValueError, "column 'member' is 5 in row 0, and held booleans before"),
        ({"member": [True, "no"]}, TypeError, "column 'member'"),
        ({"member": "yes"}, ValueError, "column 'member' is 'yes' in row 0, and held booleans before"),
        ({"age": [31, "old"]}, TypeError, "column 'age'"),
        ({"age": ["31", "old"]}, ValueError, "column 'age' is 'old' in row 1, and held numbers before"),
        ({"town": [1, 2]}, ValueError, "column 'town' is '1' in row 0, a number, and held texts before"),
        ({"town": True}, ValueError, "column 'town' is 'true' in row 0, a boolean, and held texts before"),
        ({"age": pd.Timestamp("2026-11-21")}, TypeError, "column 'age' holds dates"),
        (
            {"town": pd.Timestamp("2026-11-21")},
            ValueError,
            # pandas 3 keeps dates to the microsecond
            r"column 'town' is '2026-11-21 00:00:00(\.000000)?' in row 0, a date, and held texts before",
        ),
        ({"member": pd.Timestamp("2026-11-21")}, TypeError, "column 'member' holds dates"),
    ],
)
def test_a_column_of_another_kind_at_predict_is_refused(change: dict[str, Any], kind: type, message: str) -> None:
    people = pd.DataFrame({"age": [31.0, 45.0], "member": [True, False], "town": ["A", "B"]})
    encoding = learn_encoding([people])
    with pytest.raises(kind, match=message):
        encoding.transform(people.assign(**change))


def test_values_that_mean_the_same_are_taken_in_another_type() -> None:
    people = pd.DataFrame({"age": [31.0, 45.0], "member": [True, False], "town": ["A", "B"], "code": ["1", "2"]})
    encoding = learn_encoding([people])
    alike = people.assign(age=["31", "45"], member=[1.0, 0.0], code=[1, 7], town=pd.Categorical(["A", "C"]))
    told = Differences()
    expected = encoding.transform(people.assign(code=["1", "7"], town=["A", "C"]), differences=told)
    np.testing.assert_array_equal(encoding.transform(alike, differences=told), expected)
    assert len(told.lines()) == 2
    np.testing.assert_array_equal(encoding.transform(people.assign(age=pd.Categorical([31.0, 45.0])))[:, 0], [31, 45])
    np.testing.assert_array_equal(encoding.transform(pa.Table.from_pandas(people)), encoding.transform(people))
