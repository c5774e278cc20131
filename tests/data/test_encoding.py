"""Table columns: the rules that are decided, what they make of rows, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dkl.data.differences import Differences
from dkl.data.ingest.encoding import TableEncoding, learn_encoding, worth_sparse
from dkl.errors import TableDifferenceWarning


def encoded_by_definition(frame: pd.DataFrame, encoding: TableEncoding) -> np.ndarray:
    """The encoded rows, value by value."""
    rows = []
    for _, raw in frame.iterrows():
        row = []
        for rule in encoding.rules:
            value = raw[rule.name]
            missing = value is None or value is pd.NA or value != value
            if rule.kind == "category":
                row += [0.0 if missing else float(str(value) == text) for text in rule.categories]
            else:
                row.append(rule.fill if missing else float(value))
            if rule.flags_missing:
                row.append(float(missing))
        rows.append(row)
    return np.array(rows, np.float32).reshape(len(frame), encoding.n_columns)


@pytest.fixture
def people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "age": [31.0, np.nan, 45.0, 50.0],
            "colour": ["red", "blue", None, "red"],
            "town": pd.Categorical(["B", "A", "B", "B"], categories=["B", "A", "never"]),
            "member": [True, False, True, True],
            "postcode": [1234, 99, 1234, 7],
        }
    )


def test_each_kind_of_column_has_its_rule(people):
    encoding = learn_encoding([people], categorical=["postcode"])
    assert encoding.column_names == [
        "age", "age=<missing>", "colour=blue", "colour=red", "colour=<missing>", "town=A", "town=B", "member",
        "postcode=1234", "postcode=7", "postcode=99",
    ]  # fmt: skip
    assert encoding.passthrough.tolist() == [False] + [True] * 10
    assert encoding.rules[0].fill == 42.0
    np.testing.assert_array_equal(encoding.transform(people), encoded_by_definition(people, encoding))


def test_the_rules_are_told_in_words(people):
    text = learn_encoding([people]).describe()
    assert "age: number; 1 missing, filled with 42 and flagged in 'age=<missing>'" in text
    assert "colour: one-hot, 2 categories; 1 missing, all zeros and flagged" in text
    assert "5 columns become 9 encoded ones, dense, float32" in text


@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), st.floats(-1e6, 1e6, width=32)),
            st.one_of(st.none(), st.sampled_from(["a", "b", "", "ä,\n"])),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 7),
)
@settings(deadline=None, max_examples=30)
def test_rows_are_encoded_as_defined_dense_and_sparse_whatever_the_pieces(rows, step):
    frame = pd.DataFrame(rows, columns=["x", "c", "b"]).astype({"x": "float64", "c": object, "b": bool})
    frame["constant"] = 1.5
    kept = frame.dropna(axis="columns", how="all")
    pieces = [kept[start : start + step] for start in range(0, len(kept), step)]
    encoding = learn_encoding(pieces, ignored=["x", "c"] if kept.shape[1] < 4 else ())
    if kept.shape[1] < 4:
        return
    dense = encoding.transform(frame)
    np.testing.assert_array_equal(dense, encoded_by_definition(frame, encoding))
    csr = replace(encoding, is_sparse=True).transform(frame)
    np.testing.assert_array_equal(csr.toarray(), dense)
    assert csr.has_canonical_format
    assert np.all(csr.data != 0)
    assert encoding.rules[0].fill is None or encoding.rules[0].fill == pytest.approx(np.nanmean(frame["x"]), abs=1e-9)


def test_encoding_takes_little_memory_beside_the_encoded_rows():
    """The float64 values of all columns, and a selection of all columns of the frame, took four times as much."""
    columns = np.random.default_rng(0).standard_normal((20, 20_000))
    frame = pd.DataFrame({f"column {place}": column for place, column in enumerate(columns)})
    encoding = learn_encoding([frame])
    encoding.transform(frame[:10])
    tracemalloc.start()
    try:
        rows = encoding.transform(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.6 * rows.nbytes


def test_json_keeps_every_bit(people):
    people["third"] = [1 / 3, np.nan, 2 / 7, 1e-300]
    encoding = learn_encoding([people], unknown="error", ignored=["label"])
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding


def test_columns_are_found_by_name_in_pandas_and_arrow(people):
    encoding = learn_encoding([people], ignored=["label"])
    expected = encoding.transform(people)
    turned = people[people.columns[::-1]].assign(label="x")
    for table in (turned, pa.Table.from_pandas(turned)):
        with pytest.warns(TableDifferenceWarning, match="columns come in another order, and are taken by their names"):
            np.testing.assert_array_equal(encoding.transform(table), expected)


def test_whole_numbers_keep_their_name_in_any_type():
    encoding = learn_encoding([pd.DataFrame({"code": [3, 1, 2]})], categorical=["code"])
    expected = np.eye(3, dtype=np.float32)[[2, 0, 1]]
    for values in ([3.0, 1.0, 2.0], ["3", "1", "2"], np.array([3, 1, 2], np.uint8)):
        np.testing.assert_array_equal(encoding.transform(pd.DataFrame({"code": values})), expected)


def test_wide_one_hot_rows_are_sparse_and_narrow_ones_dense():
    def frame(n_columns: int) -> pd.DataFrame:
        return pd.DataFrame({f"c{j}": [f"v{i % 30}" for i in range(900)] for j in range(n_columns)})

    assert learn_encoding([frame(10)]).is_sparse
    assert not learn_encoding([frame(8)]).is_sparse
    assert (worth_sparse(256, 0.05), worth_sparse(255, 0.01), worth_sparse(256, 0.051)) == (True, False, False)


@pytest.mark.parametrize(
    ("missing", "fill", "later"), [("mean", 2.0, 2.0), (-1.0, -1.0, -1.0), ("auto", None, 2.0), ("error", None, None)]
)
def test_missing_values_where_none_was_follow_the_choice(missing, fill, later):
    encoding = learn_encoding([pd.DataFrame({"x": [1.0, 3.0]})], missing=missing)
    assert encoding.rules[0].fill == fill
    rows = pd.DataFrame({"x": [5.0, np.nan]})
    if later is None:
        with pytest.raises(ValueError, match=r"column 'x' is missing \(NaN\) in row 11, and no value"):
            encoding.transform(rows, first_row=10)
        return
    told = Differences()
    assert encoding.transform(rows, first_row=10, differences=told).tolist() == [[5.0], [later]]
    said = ["column 'x' is missing, and never was (filled with 2): 1 of 2 rows, the first is row 11"]
    assert told.lines() == (said if missing == "auto" else [])


def test_an_unknown_category_sets_nothing_or_is_an_error():
    frame, later = pd.DataFrame({"c": ["a", "b"]}), pd.DataFrame({"c": ["b", "z"]})
    with pytest.warns(TableDifferenceWarning, match="categories that were not there, such as .z.: 1 of 2 rows"):
        assert learn_encoding([frame]).transform(later).tolist() == [[0, 1], [0, 0]]
    with pytest.raises(ValueError, match="column 'c' is 'z' in row 1, a category that was not there before"):
        learn_encoding([frame], unknown="error").transform(later)


def test_a_column_may_be_empty_in_some_pieces():
    pieces = [pd.DataFrame({"c": [None, None]}), pd.DataFrame({"c": ["a", "b"]}), pd.DataFrame({"c": [None]})]
    encoding = learn_encoding(pieces)
    assert encoding.column_names == ["c=a", "c=b", "c=<missing>"]
    assert encoding.rules[0].missing == 3


TODAY = pd.Timestamp("2026-11-21")


@pytest.mark.parametrize(
    ("frame", "options", "kind", "message"),
    [
        (
            {"v": [[1], [2]], "w": [[1], [2]]},
            {},
            TypeError,
            r"column 'v' holds list<.*neither numbers nor texts.*drop=\['v'\].*'w' holds list",
        ),
        ({"v": [b"\xff", b"a"]}, {}, TypeError, "column 'v' holds bytes that are not UTF-8"),
        ({"v": [1, "a"]}, {}, TypeError, "column 'v' holds values of several types \\(int, str\\); make"),
        ({"v": [1.0, np.inf]}, {}, ValueError, "column 'v' is inf in row 1; numbers must be finite"),
        ({"v": [1e39, 0.0]}, {}, ValueError, "column 'v' reaches from 0 to 1e\\+39, beyond what float32 holds"),
        ({"v": [None, None]}, {}, ValueError, r"column 'v' holds no value in 2 rows; leave it out: drop=\['v'\]"),
        ({"v": [np.nan, 1.0]}, {"missing": "error"}, ValueError, "column 'v' has 1 missing values in 2 rows"),
        ({"v": [1, 2]}, {"categorical": ["w"]}, ValueError, r"categorical=\['w'\]"),
        ({"v": [1, 2]}, {"ignored": ["v"]}, ValueError, "no column is left"),
        ({"v": []}, {}, ValueError, "X has no rows"),
        ({"v": [str(i) for i in range(50)]}, {}, ValueError, "the texts of \\['v'\\] differ in \\(almost\\) every row"),
    ],
)
def test_columns_that_cannot_be_encoded_say_what_to_do(frame, options, kind, message):
    with pytest.raises(kind, match=message):
        learn_encoding([pd.DataFrame(frame)], **options)


def test_all_unfit_columns_come_in_one_message():
    frame = pd.DataFrame({"id": [f"n{i}" for i in range(60)], "empty": None, "big": 1e300, "fine": 1.0})
    with pytest.raises(ValueError, match=r"(?s)'empty' holds no value.*'big' reaches"):
        learn_encoding([frame])


def test_many_values_become_one_column_of_codes():
    frame = pd.DataFrame({"c": [f"v{i}" for i in range(1500)] * 2, "few": ["a", "b"] * 1500, "n": range(3000)})
    frame.loc[7, "c"] = None
    encoding = learn_encoding([frame[:2000], frame[2000:]], categorical=["n"])
    assert encoding.column_names == ["c", "few=a", "few=b", "n"]
    assert encoding.has_codes
    assert encoding.passthrough.tolist() == [False, True, True, False]
    assert TableEncoding.from_json(json.loads(json.dumps(encoding.to_json()))) == encoding
    rows = encoding.transform(frame)
    places = {text: 1 + place for place, text in enumerate(sorted(f"v{i}" for i in range(1500)))}
    assert rows[:, 0].tolist() == [
        0 if text is None else places[text] for text in frame["c"].astype(object).where(frame["c"].notna(), None)
    ]
    with pytest.warns(TableDifferenceWarning, match="categories that were not there"):
        assert encoding.transform(frame.assign(c="unseen"))[:, 0].max() == 0
    sparse = replace(encoding, is_sparse=True).transform(frame)
    np.testing.assert_array_equal(sparse.toarray(), rows)


@pytest.mark.parametrize(("n_values", "kind"), [(32, "category"), (33, "code")])
def test_up_to_32_values_are_one_hot_declared_or_not(n_values, kind):
    frame = pd.DataFrame({"c": [f"v{i}" for i in range(n_values)] * 3, "n": list(range(n_values)) * 3})
    assert [rule.kind for rule in learn_encoding([frame], categorical=["n"]).rules] == [kind, kind]


def test_texts_that_differ_in_every_row_are_set_aside_aloud():
    frame = pd.DataFrame({"id": [f"r{i}" for i in range(100)], "x": range(100)})
    with pytest.warns(UserWarning, match=r"\['id'\] set aside: texts that differ in \(almost\) every row"):
        encoding = learn_encoding([frame])
    assert encoding.column_names == ["x"]
    np.testing.assert_array_equal(encoding.transform(frame), encoding.transform(frame.drop(columns="id")))
    assert learn_encoding([frame], categorical=["id"]).column_names == ["id", "x"]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (lambda f: f.drop(columns="age"), ValueError, r"the table lacks the columns \['age'\]"),
        (lambda f: f.assign(age="old"), ValueError, "column 'age' is 'old' in row 0, and held numbers before"),
        (lambda f: f.assign(age=TODAY), TypeError, "column 'age' holds dates"),
        (lambda f: f.assign(age=-np.inf), ValueError, "column 'age' is -inf in row 0; numbers must be finite"),
        (lambda f: pd.concat([f, f["age"]], axis=1), ValueError, r"found more than once: \['age'\]"),
        (lambda f: f.to_numpy(), TypeError, "expected a pandas DataFrame or an Arrow table"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(people, change, kind, message):
    encoding = learn_encoding([people])
    with pytest.raises(kind, match=message):
        encoding.transform(change(people))


def test_rows_unlike_those_of_fit_are_counted_over_all_tables_and_said_once(people):
    encoding = learn_encoding([people.drop(columns=["colour"])])
    odd = people.assign(member=None, town=["A", "C", "D", "B"], odd=[[1]] * 4).drop(columns="colour")
    told = Differences()
    rows = encoding.transform(people.drop(columns="colour"), differences=told)
    np.testing.assert_array_equal(encoding.transform(odd, first_row=4, differences=told)[:, 0], rows[:, 0])
    said = [
        "column 'town' holds categories that were not there, such as 'C': 2 of 8 rows, the first is row 5",
        "column 'member' is missing, and never was (filled with 0.75): 4 of 8 rows, the first is row 4",
        "further columns are left out: ['odd']",
    ]
    assert told.lines() == said
    with pytest.warns(TableDifferenceWarning, match=r"taken all the same \(strict=True refuses them\):") as caught:
        told.say()
    assert len(caught) == 1
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match=r"(?s)which --strict refuses:.*'town'.*'member'.*\['odd'\]"):
        encoding.transform(odd, differences=Differences(True, "--strict"))


def test_a_column_that_changes_its_kind_between_pieces_is_refused():
    with pytest.raises(TypeError, match="column 'x' holds number values in some rows and category values in others"):
        learn_encoding([pd.DataFrame({"x": [1, 2]}), pd.DataFrame({"x": ["a", "b"]})])


def test_texts_of_numbers_are_numbers_and_whole_ones_alone_are_names():
    texts = [f"{k / 8:.3f}" for k in range(80)] * 2
    frame = pd.DataFrame({"f": [*texts[:-1], "?"]})
    (rule,) = learn_encoding([frame]).rules
    assert (rule.kind, rule.missing, rule.unread) == ("number", 1, 0)
    assert learn_encoding([frame], categorical=["f"]).rules[0].kind == "code"
    # whole numbers are ids as often as not
    assert learn_encoding([pd.DataFrame({"zip": [f"{10_000 + k}" for k in range(80)] * 2})]).rules[0].kind == "code"
