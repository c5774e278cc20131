"""Models and stores whose tables were encoded separately: stores answer as their frames do, or are refused by name."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.ingest.encoding import learn_encoding
from dkl.encodings.categories import rows_like_fit
from dkl.errors import TableDifferenceWarning

N = 300


def table(seed: int, names: str = "abc", unit: str = "kg", **changed: Any) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with gaps in a number and a date, whose means differ by seed; and their labels."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": rng.normal(size=N) + seed, "job": rng.choice(list(names), N)})
    frame["when"] = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, N) + 300 * seed, "D")
    frame["weight"] = [f"{value:.1f} {unit}" for value in rng.uniform(1, 99, N)]
    labels = np.where(frame["x"] + (frame["job"] == "a") > seed, "u", "v")
    frame.loc[::7, "x"] = np.nan
    frame.loc[::5, "when"] = pd.NaT
    return frame.assign(**changed), labels


def model_on(folder: Path) -> dkl.KernelClassifier:
    ds = dkl.create_dataset(folder / "fit.zarr", *table(0))
    return dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False).fit(ds)


def test_a_store_with_means_of_its_own_answers_as_its_frame(tmp_path: Path) -> None:
    model, (frame, labels) = model_on(tmp_path), table(2)
    store = dkl.create_dataset(tmp_path / "other.zarr", frame, labels)
    # missing values of the store are filled with its own means
    assert store.encoding != model.encoding_
    expected = model.decision_function(frame)
    np.testing.assert_array_equal(model.decision_function(store).compute(), expected)
    assert model.score(store) == model.score(frame, labels)
    strengths = [dkl.explain.importance(model, rows).strengths for rows in (store, frame)]
    np.testing.assert_array_equal(*strengths)


def test_sparse_rows_are_filled_as_dense_ones_are() -> None:
    (ours, _), (theirs, labels) = table(0), table(2, x=np.where(np.arange(N) % 3, 0.0, np.nan))
    fitted = learn_encoding([ours], layout="dense")
    dense = fitted.transform(theirs)
    own = learn_encoding([theirs], layout="sparse")
    rows = as_dataset(own.transform(theirs), labels)
    rows = rows.with_rows(rows.source, rows.schema.encoded_by(own))
    filled = rows_like_fit(fitted, rows).X.compute()
    assert filled.has_sorted_indices
    np.testing.assert_array_equal(filled.toarray(), dense)
    assert filled.dtype == dense.dtype


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"names": "abd"},
            r"the encoding of 'job' \(has job=d, lacks job=c\) differs: each store learns rules of its own",
        ),
        ({"names": "ab"}, r"X has 11 features, but .* expecting 12 .*'job' \(lacks job=c\)"),
        ({"x": 1.0}, r"'x' \(lacks x=<missing>\)"),
        # the same names of encoded columns, which mean something else
        ({"unit": "g"}, r"'weight' \(number written as 1234.56 g; .* in the fit number written as 1234.56 kg"),
    ],
)
def test_stores_with_other_columns_are_refused_by_name_with_the_remedy(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    model, (frame, labels) = model_on(tmp_path), table(1, **changed)
    store = dkl.create_dataset(tmp_path / "other.zarr", frame, labels)
    for asked in (model.predict, model.score, lambda rows: dkl.explain.importance(model, rows)):
        with pytest.raises(ValueError, match=message) as raised:
            asked(store)
        assert "dataset.append(frame, y), which encodes them by its rules" in str(raised.value)
    if "unit" in changed:
        return
    # both remedies give the same answers
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        appended = dkl.open_dataset(tmp_path / "fit.zarr").append(frame, labels)
        np.testing.assert_array_equal(model.predict(appended).compute()[N:], model.predict(frame))


def files_of(folder: Path, name: str, frame: pd.DataFrame, labels: np.ndarray) -> str:
    """A CSV of raw rows with their labels in the middle, in a column `y`."""
    frame = frame.copy()
    frame.insert(2, "y", labels)
    frame.to_csv(folder / f"{name}.csv", index=False)
    return str(folder / f"{name}.csv")


def test_stores_of_files_and_frames_made_by_the_rules_of_others_answer_as_the_frames_do(tmp_path: Path) -> None:
    """Other categories, numbers without gaps, further columns and another order of rows and columns."""
    fitted, (frame, labels) = table(0), table(1, names="ab")
    frame = frame.assign(x=frame["x"].fillna(0.5), job=frame["job"].replace("b", "z"), zip=1)[::-1]
    ds = dkl.ingest(files_of(tmp_path, "fit", *fitted), tmp_path / "fit.zarr", target="y")
    model = dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False).fit(ds)
    new = files_of(tmp_path, "new", frame, labels)
    frame.assign(y=labels).to_parquet(tmp_path / "new.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        expected = model.decision_function(frame)
    for number, like in enumerate((ds, ds.store, model)):
        for rows in (new, tmp_path / "new.parquet"):
            place = tmp_path / f"{number}.zarr"
            said = "further columns are left out: .'zip'.|holds categories that were not there, such as 'z'"
            with pytest.warns(TableDifferenceWarning, match=said):
                store = dkl.ingest(rows, place, like=like, overwrite=True)
            assert store.classes is not None
            assert store.classes.tolist() == ["u", "v"]
            np.testing.assert_array_equal(model.decision_function(store).compute().sort_index(), expected)
        with pytest.warns(TableDifferenceWarning):
            store = dkl.create_dataset(place, frame, labels, like=like, overwrite=True)
        np.testing.assert_array_equal(model.decision_function(store).compute(), expected)
        assert model.score(store) == np.mean(model.predict(frame) == labels)
        assert dkl.open_dataset(ds.store).append(store).n_rows == (2 + number) * N


def test_a_store_of_free_text_made_by_the_rules_of_a_model_answers_as_its_frame(tmp_path: Path) -> None:
    """A fit replaces the directions of the texts by fewer columns, and by scores of its target."""
    rng = np.random.default_rng(0)
    words = np.array(["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda"])
    frame = pd.DataFrame({"x": rng.normal(size=N), "text": [" ".join(rng.choice(words, 6)) for _ in range(N)]})
    labels = np.where(frame["text"].str.contains("alpha"), "u", "v")
    model = dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False)
    model.fit(frame[:200], labels[:200])
    rows, expected = frame[200:], model.decision_function(frame[200:])
    for made in (
        dkl.create_dataset(tmp_path / "new.zarr", rows, labels[200:], like=model),
        dkl.ingest(files_of(tmp_path, "new", rows, labels[200:]), tmp_path / "files.zarr", target="y", like=model),
    ):
        # a store holds the directions in single precision
        np.testing.assert_allclose(model.decision_function(made).compute().sort_index(), expected, rtol=0, atol=2e-6)


def test_rows_without_targets_and_of_a_single_class_are_written_by_the_rules_of_others(tmp_path: Path) -> None:
    frame, labels = table(0)
    ds = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "fit.zarr", target="y", group="job")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        frame.to_csv(tmp_path / "new.csv", index=False)
        assert dkl.ingest(tmp_path / "new.csv", tmp_path / "a.zarr", like=ds).task is None
        few = dkl.ingest(
            files_of(tmp_path, "new", frame[labels == "u"], labels[labels == "u"]), tmp_path / "b.zarr", like=ds
        )
        assert few.describe().facts["group column"] == "job (rows are held out by it)"
        np.testing.assert_array_equal(few.y.compute(), "u")
        assert dkl.create_dataset(tmp_path / "c.zarr", frame, like=ds).task is None


@pytest.mark.parametrize(
    ("changed", "options", "message"),
    [
        ({}, {"categorical": ["job"]}, r"categorical=\['job'\] says how rows are encoded, and with like="),
        ({}, {"missing": 0.0}, "missing=0.0 says how rows are encoded"),
        ({"x": "tall"}, {}, r"column 'x' is 'tall' in row 0, and held numbers before"),
        (
            {"weight": "3 g"},
            {},
            r"column 'weight' is '3 g' in row 0, and held numbers before \(written as 1234.56 kg\)",
        ),
        ({"y": None}, {}, r"target 'y' is missing \(NaN\) in row 0"),
        ({"job": None}, {"like": "fit.csv"}, "fit.csv"),
    ],
)
def test_what_the_rules_of_others_cannot_read_is_refused_by_name_and_nothing_is_written(
    tmp_path: Path, changed: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    frame, labels = table(0)
    ds = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "fit.zarr", target="y")
    frame.assign(y=labels).assign(**changed).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises((ValueError, OSError), match=message):
        dkl.ingest(tmp_path / "new.csv", tmp_path / "new.zarr", **{"like": ds, **options})
    assert not (tmp_path / "new.zarr").exists()


def test_rules_are_those_of_tables(tmp_path: Path) -> None:
    frame, labels = table(0)
    frame.assign(y=labels).to_csv(tmp_path / "new.csv", index=False)
    rows = np.random.default_rng(0).normal(size=(50, 2))
    arrays = dkl.create_dataset(tmp_path / "arrays.zarr", rows, rows[:, 0] > 0.0)
    with pytest.raises(ValueError, match="has rows of arrays, and so no rules for the columns of tables"):
        dkl.ingest(tmp_path / "new.csv", tmp_path / "new.zarr", like=arrays)
    with pytest.raises(
        TypeError, match="like is DataFrame; expected a Dataset, the path of a store, or a fitted model"
    ):
        dkl.create_dataset(tmp_path / "new.zarr", frame, like=frame)
    with pytest.raises(ValueError, match=r"X has 3 columns; .* has 2"):
        dkl.create_dataset(tmp_path / "new.zarr", np.ones((5, 3)), like=arrays)
    assert dkl.create_dataset(tmp_path / "new.zarr", np.ones((5, 2)), like=arrays).n_columns == 2


def test_labels_that_others_do_not_have_are_further_classes_and_errors_of_the_model(tmp_path: Path) -> None:
    frame, labels = table(0)
    ds = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "fit.zarr", target="y")
    model = dkl.KernelClassifier("random", n_features=50, solver="newton", random_state=0, progress=False).fit(ds)
    strange = np.where(np.arange(N) % 3, labels, "w")
    with pytest.warns(UserWarning, match="target 'y' holds 'w', and the classes of like= are 'u', 'v'; they are taken"):
        store = dkl.ingest(files_of(tmp_path, "new", frame, strange), tmp_path / "new.zarr", like=model)
    assert store.classes is not None
    assert store.classes.tolist() == ["u", "v", "w"]
    assert model.score(store) == pytest.approx(np.mean(model.predict(frame) == strange))


def test_of_two_decimal_marks_a_column_has_the_one_that_reads_all_of_its_numbers(tmp_path: Path) -> None:
    """12.35 would be a number of points beside 6.287, which was read as 6287."""
    frame = pd.DataFrame({"x": np.round(np.random.default_rng(0).normal(size=N) * 50.0, 3), "z": np.arange(N)})
    labels = np.where(frame["x"] > 0.0, "u", "v")
    ds = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "fit.zarr", target="y")
    named = dkl.CsvFormat(decimal=",")
    again = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "again.zarr", like=ds, format=named)
    np.testing.assert_array_equal(again.X.compute(), ds.X.compute())
    thousands = frame.assign(x=[f"{k}.{100 + k}" for k in range(1, N + 1)])
    read = dkl.ingest(files_of(tmp_path, "new", thousands, labels), tmp_path / "new.zarr", like=ds, format=named)
    assert sorted(read.X.compute()[:, 0].tolist())[:2] == [1_101.0, 2_102.0]


def test_rules_of_features_and_of_rows_without_targets_take_targets(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(N) / 7.0, "job": np.array(["a", "b", "c"])[np.arange(N) % 3]})
    labels = np.where(np.arange(N) % 2, "u", "v")
    learner = dkl.StepFeatures(n_features=10, random_state=0, progress=False).fit(frame, labels)
    plain = dkl.create_dataset(tmp_path / "plain.zarr", frame)
    for number, like in enumerate((learner, plain)):
        few = frame["job"] != "c"
        ds = dkl.create_dataset(tmp_path / f"{number}.zarr", frame[few], labels[few], like=like)
        assert ds.column_names == plain.column_names
        assert ds.classes is not None
        assert ds.classes.tolist() == ["u", "v"]
    # rows that join a store have what its rows have
    with pytest.raises(ValueError, match=r"y was given, and .* was created without targets; leave it out"):
        plain.append(frame, labels)


def test_a_role_is_no_feature_of_the_rules(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(N) / 7.0, "z": np.arange(N) % 5})
    labels = np.where(np.arange(N) % 2, "u", "v")
    ds = dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "fit.zarr", target="y")
    for role in ("target", "weight", "group"):
        with pytest.raises(ValueError, match=rf"{role}='z' names a column that is a feature by the rules of like="):
            dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "n.zarr", like=ds, **{role: "z"})
    with pytest.raises(ValueError, match=r"drop=\['z'\] says how rows are encoded"):
        dkl.ingest(files_of(tmp_path, "fit", frame, labels), tmp_path / "n.zarr", like=ds, drop=("z",))


def test_a_decimal_mark_that_the_user_names_is_read_by_the_rules_of_others(tmp_path: Path) -> None:
    """A point between thousands would be read as a decimal mark: 1.234 for 1234."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"x": draw.normal(size=N) * 3_000.0, "z": [f"{value:.2f} kg" for value in draw.uniform(size=N)]}
    )
    labels = np.where(frame["x"] > 0.0, "u", "v")
    frame.assign(y=labels).to_csv(tmp_path / "fit.csv", index=False)
    ds = dkl.ingest(tmp_path / "fit.csv", tmp_path / "fit.zarr", target="y")
    frame["x"] = [f"{value:,.3f}".translate(str.maketrans(",.", ".,")) for value in frame["x"]]
    frame["z"] = frame["z"].str.replace(".", ",")
    frame.assign(y=labels).to_csv(tmp_path / "new.csv", index=False, sep=";")
    expected = ds.X.compute()[np.argsort(ds.row_id.compute())]
    # decimal commas between semicolons are found
    for number, options in enumerate(({}, {"format": dkl.CsvFormat(decimal=",")})):
        german = dkl.ingest(tmp_path / "new.csv", tmp_path / f"{number}.zarr", like=ds, **options)
        np.testing.assert_allclose(german.X.compute()[np.argsort(german.row_id.compute())], expected, atol=6e-4)
    frame.assign(y=labels).to_csv(tmp_path / "new.csv", index=False)
    with pytest.raises(ValueError, match=r"where ',' is its decimal mark, say so, decimal=','"):
        dkl.ingest(tmp_path / "new.csv", tmp_path / "other.zarr", like=ds)
