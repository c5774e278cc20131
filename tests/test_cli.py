"""The command line: what each command prints, writes and leaves with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import zarr
from dask.utils import parse_timedelta
from distributed import Client, LocalCluster
from hypothesis import example, given
from hypothesis import strategies as st
from rich.text import Text
from scipy import sparse
from sklearn.datasets import dump_svmlight_file

import dkl
from dkl.cli.cluster import Compute
from dkl.cli.command import Result, Running, _report
from dkl.cli.model_options import FeatureOptions, MachineOptions, estimator_from
from dkl.cli.predictions import harmless
from dkl.data.dataset import open_dataset
from dkl.errors import TableDifferenceWarning
from dkl.model_io import load_model
from dkl.plain_text import plain_text
from dkl.registry import PENALTY_RULES
from tests.commands import dkl_command, facts_of

SMALL = ("--features", "40", "--candidates", "200")
pytestmark = pytest.mark.usefixtures("little_work")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw rows as files, ingested into stores, and a model of each task."""
    folder = tmp_path_factory.mktemp("cli")
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.normal(size=(900, 2)), columns=["a", "b"])
    rows["colour"] = generator.choice(["red", "blue", "green"], len(rows))
    rows.to_csv(folder / "new.csv", index=False)
    rows.to_parquet(folder / "new.parquet")
    labels = np.where(rows.a * rows.b + (rows.colour == "red") > 0.3, "yes", "no")
    rows.assign(label=labels).to_csv(folder / "labels.csv", index=False)
    rows.assign(number=2.0 * rows.a + rows.b).to_csv(folder / "numbers.csv", index=False)
    assert dkl_command("ingest", folder / "labels.csv", folder / "labels.zarr", "--target", "label").exit_code == 0
    assert dkl_command("ingest", folder / "numbers.csv", folder / "numbers.zarr", "--target", "number").exit_code == 0
    rows.replace("red", "purple").to_csv(folder / "other.csv", index=False)
    assert dkl_command("ingest", folder / "other.csv", folder / "wide.zarr", "--split", "").exit_code == 0
    fit = dkl_command("fit", folder / "labels.zarr", folder / "labels.model", *SMALL, "--calibrate")
    assert fit.exit_code == 0, fit.output
    fit = dkl_command("fit", folder / "numbers.zarr", folder / "numbers.model", *SMALL)
    assert fit.exit_code == 0, fit.output
    return folder


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ingest",
        "info",
        "verify",
        "suggest",
        "drift",
        "sums",
        "sums agree",
        "sums export",
        "sums fit",
        "plan",
        "fit",
        "score",
        "predict",
        "report",
        "explain",
        "export",
        "tune",
        "compare",
        "demo",
        "bench",
        "warmup",
    ],
)
def test_help_teaches_by_an_example(name: str) -> None:
    run = dkl_command(*name.split(), "--help")
    assert run.exit_code == 0
    assert f"dkl {name}".strip() in run.stdout
    assert "xample" in run.stdout or not name


def test_ingest_makes_the_splits_that_are_asked_for(folder: Path) -> None:
    assert open_dataset(str(folder / "labels.zarr")).splits == ("train", "test")
    target = folder / "thirds.zarr"
    facts = facts_of("ingest", folder / "labels.csv", target, "--target", "label", "--split", "a=0.5,b=0.25")
    assert facts["splits (split)"] == pytest.approx({"a": 450, "b": 225}, abs=2)


def test_ingest_shows_its_rules_and_writes_nothing_with_plan(folder: Path) -> None:
    run = dkl_command("ingest", folder / "labels.csv", folder / "unwritten.zarr", "--target", "label", "--plan")
    assert run.exit_code == 0
    assert "colour: one-hot, 3 categories" in run.stdout
    assert not (folder / "unwritten.zarr").exists()


def test_groups_and_times_go_from_the_files_to_the_fit(tmp_path: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(300, 2)), columns=["a", "b"])
    rows = rows.assign(patient=np.arange(300) // 10, year=1990 + np.arange(300) % 30, label=rows.a > 0)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    store, model = tmp_path / "rows.zarr", tmp_path / "model.zarr"
    columns = ("--target", "label", "--time", "year")
    planned = dkl_command("ingest", tmp_path / "rows.csv", store, *columns, "--group", "patient", "--plan")
    assert planned.exit_code == 0, planned.output
    facts = facts_of("ingest", tmp_path / "rows.csv", store, *columns, "--by-group", "patient")
    assert facts["group column"] == "patient (rows are held out by it)"
    ds = open_dataset(store)
    assert ds.column_names == ["a", "b", "year"]
    groups = [set(np.asarray(ds[name].row_id) // 10) for name in ("train", "test")]
    assert not groups[0] & groups[1]
    small = ("--learner", "random", "--features", "10")
    exact = ("--solver", "newton", "--loss", "squared_hinge", "--alpha", "auto")
    alphas = []
    for by in ((), ("--by-time", "year")):
        facts_of("fit", store, model, *small, *exact, *by, "--overwrite")
        alphas.append(load_model(str(model)).validation_scores_)
    assert not np.array_equal(*alphas)
    wrong = dkl_command("fit", store, tmp_path / "other.zarr", *small, "--by-group", "user")
    assert wrong.exit_code == 1
    assert "'user'" in wrong.output
    line = facts_of("suggest", store, "--by-time", "year")["command"]
    assert "--by-time year" in line
    found = facts_of(
        "compare",
        tmp_path / "rows.csv",
        "--target",
        "label",
        "--by-group",
        "patient",
        *small,
        "--output",
        tmp_path / "c",
        "--no-rivals",
    )
    assert found["held_out"] == "the split test: whole groups by 'patient'"
    unsplit = dkl_command("ingest", tmp_path / "rows.csv", tmp_path / "n.zarr", "--by-group", "patient", "--split", "")
    assert "--group" in unsplit.output


def test_info_is_the_description_as_json(folder: Path) -> None:
    facts = facts_of("info", folder / "labels.zarr")
    assert (facts["rows"], facts["columns"], facts["task"]) == (900, 5, "classification")


def test_info_says_the_target_the_classes_and_the_columns_first(folder: Path) -> None:
    facts = facts_of("info", folder / "labels.zarr")
    assert facts["target"] == "label"
    shown = dkl_command("info", folder / "labels.zarr").stdout
    for text in ("label: classes", "no 4", "3 (5 encoded)", "colour: one-hot, 3 categories", "train: 721"):
        assert text in shown
    assert "counts" not in shown
    assert "crc32c" not in shown
    assert "crc32c" in dkl_command("info", folder / "labels.zarr", "--verbose").stdout


def test_whole_numbers_that_may_be_counts_are_said_to_be_classes_for_now(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "visits": rng.poisson(1.0, 200)})
    frame.to_csv(tmp_path / "visits.csv", index=False)
    files = ("ingest", tmp_path / "visits.csv", tmp_path / "visits.zarr", "--target", "visits")
    assert "task='regression' (in the shell --task)" in dkl_command(*files, "--plan").stdout.replace("\n", " ")
    for command in (files, ("info", tmp_path / "visits.zarr")):
        shown = " ".join(dkl_command(*command).stdout.replace("│", " ").split())
        assert (
            "visits: classes (if they are numbers: dkl fit --task regression; if they are counts: dkl fit --loss"
            in shown
        )
    numbers = dkl_command(*files, "--task", "regression", "--overwrite").stdout
    assert "visits: numbers" in numbers
    assert "counts" not in numbers
    steps = ("--learner", "random", "--features", "10", "--loss", "poisson", "--solver", "sgd", "--epochs", "2")
    facts_of("fit", tmp_path / "visits.zarr", tmp_path / "visits.model", *steps)
    fitted = load_model(str(tmp_path / "visits.model"))
    assert (fitted.solver_, fitted.loss_, fitted.n_epochs_) == ("sgd", "poisson", 2)


def test_explain_says_what_matters(folder: Path, tmp_path: Path) -> None:
    options = (folder / "labels.model", folder / "labels.zarr", "--output", tmp_path / "out")
    facts = facts_of("explain", *options)
    assert set(facts["importance"]) == {"a", "b", "colour"}
    for picture in ("importance.png", "dependence.png"):
        assert (tmp_path / "out" / picture).read_bytes().startswith(b"\x89PNG")
    assert "█" in dkl_command("explain", *options).stdout


def test_score_explain_and_report_take_files_by_the_rules_of_the_fit(folder: Path, tmp_path: Path) -> None:
    model = load_model(str(folder / "labels.model"))
    rows = pd.read_csv(folder / "labels.csv").replace("red", "purple")[::-1]
    rows.to_csv(tmp_path / "new.csv", index=False)
    given = (folder / "labels.model", tmp_path / "new.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        expected = np.mean(model.predict(rows.drop(columns="label")) == rows.label)
    before = sorted(path.name for path in folder.iterdir())
    rows.rename(columns={"label": "told"}).to_csv(tmp_path / "told.csv", index=False)
    told = (folder / "labels.model", tmp_path / "told.csv")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TableDifferenceWarning)
        scores = facts_of("score", *given)
        assert (scores["rows"], scores["accuracy"]) == (900, pytest.approx(expected))
        assert facts_of("score", *told, "--target", "told")["accuracy"] == pytest.approx(expected)
        assert facts_of("report", *given)["scores"]["all"]["accuracy"] == pytest.approx(expected)
        assert set(facts_of("explain", *given)["importance"]) == {"a", "b", "colour"}
        lacking = dkl_command("score", *told)
        said = " ".join(lacking.stderr.replace("│", " ").split())
        assert (lacking.exit_code, "has no column 'label', the target of the fit" in said) == (2, True)
        written = dkl_command("ingest", tmp_path / "new.csv", tmp_path / "new.zarr", "--like", folder / "labels.model")
        assert written.exit_code == 0, written.output
    # nothing stays beside the model
    assert sorted(path.name for path in folder.iterdir()) == before
    assert facts_of("score", given[0], tmp_path / "new.zarr", "--split", "")["accuracy"] == pytest.approx(expected)
    beside = dkl_command("score", folder / "labels.model", folder / "labels.zarr", "--target", "label")
    assert (beside.exit_code, "--target says how files are read" in beside.stderr) == (2, True)


def test_score_knows_the_name_that_a_fit_in_python_had_for_its_target(folder: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(folder / "labels.csv")
    X, y = rows.drop(columns="label"), rows["label"]
    model = dkl.KernelClassifier("random", random_state=0).fit(X, y)
    assert model.provenance_.target == "label"
    model.save(tmp_path / "named.model")
    dkl.KernelClassifier("random", random_state=0).fit(X, y.to_list()).save(tmp_path / "plain.model")
    facts = facts_of("score", tmp_path / "named.model", folder / "labels.csv")
    asked = facts_of("score", tmp_path / "plain.model", folder / "labels.csv", "--target", "label")
    assert facts == asked | {"model": facts["model"]}
    # a feature of the same name is in later files, where the target then has no name
    assert dkl.KernelClassifier("random", random_state=0).fit(rows, y).provenance_.target == ""


def test_predict_reads_numbers_by_the_decimal_mark_that_is_named(folder: Path, tmp_path: Path) -> None:
    rows = pd.read_csv(folder / "new.csv")
    rows["a"] = (1_000.0 * rows["a"]).round() / 1_000.0
    rows.to_csv(tmp_path / "points.csv", index=False)
    rows.to_csv(tmp_path / "commas.csv", index=False, decimal=",")
    rows.to_csv(tmp_path / "semicolons.csv", index=False, sep=";", decimal=",")
    model = folder / "numbers.model"
    refused = dkl_command("predict", model, tmp_path / "commas.csv", tmp_path / "p.csv")
    assert (refused.exit_code, "say so, --decimal , (" in refused.stderr) == (1, True)
    for name, options in (("points", ()), ("commas", ("--decimal", ",")), ("semicolons", ())):
        facts_of("predict", model, tmp_path / f"{name}.csv", tmp_path / f"{name}.parquet", *options)
    expected, *found = (pd.read_parquet(tmp_path / f"{name}.parquet") for name in ("points", "commas", "semicolons"))
    for predictions in found:
        pd.testing.assert_frame_equal(predictions, expected)


def test_errors_about_files_that_are_read_like_the_fit_name_the_files(folder: Path) -> None:
    given = (folder / "labels.model", folder / "labels.csv")
    for arguments, code, says in (
        (("score", *given, "--split", "test"), 2, "--split test is of a store"),
        (("explain", *given, "--split", "test"), 2, "--split test is of a store"),
    ):
        run = dkl_command(*arguments)
        said = " ".join(run.stderr.replace("│", " ").split())
        assert (run.exit_code, says in said, "scratch" in said) == (code, True, False), said


def test_a_fit_to_files_with_too_few_rows_for_splits_says_so_each_time(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,y\n1,u\n2,v\n3,u\n4,v\n5,u\n")
    for _ in range(2):
        run = dkl_command("fit", tmp_path / "rows.csv", tmp_path / "m.zarr", "--target", "y")
        assert run.exit_code == 1, run.output
        assert "split 'test' would have no rows" in run.stderr
        assert "m.rows.zarr', without splits, which a fit takes whole" in run.stderr
    assert not (tmp_path / "m.zarr").exists()


def test_export_writes_files_that_answer_without_dkl_and_replaces_its_own_alone(folder: Path, tmp_path: Path) -> None:
    graph, pipeline = tmp_path / "m.onnx", tmp_path / "m.joblib"
    assert facts_of("export", folder / "labels.model", graph)["bytes"] == graph.stat().st_size
    facts_of("export", folder / "labels.model", graph, "--overwrite")
    facts_of("export", folder / "labels.model", pipeline)
    model, rows = load_model(str(folder / "labels.model")), pd.read_csv(folder / "new.csv")
    np.testing.assert_array_equal(joblib.load(pipeline).predict(rows), model.predict(rows))
    (tmp_path / "own.onnx").write_bytes(b"mine")
    refused = dkl_command("export", folder / "labels.model", tmp_path / "own.onnx", "--overwrite")
    assert (refused.exit_code, (tmp_path / "own.onnx").read_bytes()) == (1, b"mine")
    assert ".onnx or .joblib" in dkl_command("export", folder / "labels.model", tmp_path / "m.txt").stderr


def test_predictions_carry_ids_as_they_stand_in_the_files(folder: Path, tmp_path: Path) -> None:
    new = pd.read_csv(folder / "new.csv").head(5)
    ids = ["0012345678901234567890", "007", "", "1.10", "x"]
    new.assign(id=ids).to_csv(tmp_path / "new.csv", index=False)
    command = ("predict", folder / "labels.model", tmp_path / "new.csv")
    for output in ("p.csv", "p.parquet"):
        run = dkl_command(*command, tmp_path / output, "--id", "id", "--id", "a")
        assert (run.exit_code, run.stderr) == (0, "")
    table = pd.read_csv(tmp_path / "p.csv", dtype=str, keep_default_na=False)
    assert list(table) == ["row_id", "id", "a", "prediction"]
    assert table.id.tolist() == ids
    assert pd.read_parquet(tmp_path / "p.parquet").a.astype(float).tolist() == new.a.tolist()
    assert dkl_command(*command, tmp_path / "p.csv", "--id", "id", "--overwrite").exit_code == 0
    whole = pd.DataFrame({**new, "key": pd.array([2**62 + 1, None, 3, 4, 5], dtype="Int64")})
    whole.to_parquet(tmp_path / "new.parquet")
    facts_of("predict", folder / "labels.model", tmp_path / "new.parquet", tmp_path / "q.parquet", "--id", "key")
    assert pd.read_parquet(tmp_path / "q.parquet").key[0] == str(2**62 + 1)
    facts_of("predict", folder / "labels.model", tmp_path / "new.parquet", tmp_path / "q.zarr", "--id", "key")
    group = zarr.open_group(str(tmp_path / "q.zarr"), mode="r")
    assert group.attrs["key_labels"][group["key"][0]] == str(2**62 + 1)
    missing = dkl_command(*command, tmp_path / "z.csv", "--id", "nothing")
    assert (missing.exit_code, "has no column 'nothing'" in " ".join(missing.stderr.split())) == (1, True)
    assert dkl_command("predict", folder / "labels.model", folder / "labels.zarr", "z.csv", "--id", "a").exit_code == 2


def test_numbers_in_csv_have_the_digits_of_single_precision(folder: Path, tmp_path: Path) -> None:
    """Relative to what predictions of a model vary by: 1e9 keeps its last digits where targets differ by one."""
    new = pd.read_csv(folder / "new.csv")
    facts_of("predict", folder / "labels.model", folder / "new.csv", tmp_path / "labels.csv", "--proba")
    table = pd.read_csv(tmp_path / "labels.csv", dtype=str)
    shares = table.filter(like="probability_")
    digits = shares.apply(lambda column: column.str.replace(r"e.*|[.]", "", regex=True).str.lstrip("0").str.len())
    assert digits.max().max() <= 9
    expected = load_model(str(folder / "labels.model")).predict_proba(new)
    # half a unit of single precision for the number, and as much for its shortest text
    np.testing.assert_allclose(shares.astype(float), expected, rtol=2.0**-23)
    X = np.random.default_rng(0).normal(size=(200, 2))
    pd.DataFrame(X, columns=["a", "b"]).to_csv(tmp_path / "rows.csv", index=False)
    for target, decimals in ((X[:, 0], 8), (1e9 + X[:, 0], 8), (1e-9 * X[:, 0], 17)):
        machine = dkl.KernelRegressor(dkl.RandomFeatures(n_features=20, random_state=0), solver="newton", alpha=1.0)
        machine.fit(X, target).save(tmp_path / "numbers.zarr", overwrite=True)
        arguments = (tmp_path / "numbers.zarr", tmp_path / "rows.csv", tmp_path / "numbers.csv", "--overwrite")
        facts_of("predict", *arguments)
        written = pd.read_csv(tmp_path / "numbers.csv", dtype=str).prediction
        np.testing.assert_array_equal(written.astype(float), np.round(written.astype(float), decimals))
        answers = machine.predict(pd.read_csv(tmp_path / "rows.csv").to_numpy())
        # a double of 1e9 is itself rounded to 1e-7
        rounding = 2.0**-24 * np.std(target) + np.spacing(np.abs(answers).max())
        assert np.abs(written.astype(float) - answers).max() <= rounding


@pytest.mark.parametrize(
    ("data", "option", "said"),
    [
        ("new.csv", ("--split", "train"), "--split train is of a store"),
        ("new.csv", ("--zero-based",), "--zero-based is for libsvm text"),
        ("new.csv", ("--one-based",), "--one-based is for libsvm text"),
        ("labels.zarr", ("--one-based",), "--one-based says how files are read"),
        ("labels.zarr", ("--delimiter", ";"), "--delimiter says how files are read"),
    ],
)
def test_options_of_predict_that_act_on_nothing_are_refused(
    folder: Path, tmp_path: Path, data: str, option: tuple[str, ...], said: str
) -> None:
    refused = dkl_command("predict", folder / "labels.model", folder / data, tmp_path / "p.csv", *option)
    assert refused.exit_code in (1, 2)
    assert said in " ".join(refused.stderr.replace("│", " ").split())
    assert not (tmp_path / "p.csv").exists()


HARMFUL = ["=HYPERLINK(1)", "@SUM(A1)", "-a", "\x1b]0;owned\x07", "\t=1+1", "-1.5", "plain, red"]


def test_texts_of_predictions_in_csv_do_no_harm_in_a_spreadsheet_or_a_terminal(folder: Path, tmp_path: Path) -> None:
    labels = ["=cmd|' /C calc'!A0", "\x1b[2Jred"]
    rows = pd.read_csv(folder / "new.csv").head(7)
    rows.assign(label=np.resize(labels, 7)).to_csv(tmp_path / "rows.csv", index=False)
    facts_of("ingest", tmp_path / "rows.csv", tmp_path / "rows.zarr", "--target", "label", "--split", "")
    options = ("--learner", "random", "--features", "50", "--loss", "log_loss")
    facts_of("fit", tmp_path / "rows.zarr", tmp_path / "m.zarr", *options)
    rows.assign(id=HARMFUL).to_csv(tmp_path / "new.csv", index=False)
    command = ("predict", tmp_path / "m.zarr", tmp_path / "new.csv")
    facts_of(*command, tmp_path / "p.csv", "--id", "id", "--proba")
    text = (tmp_path / "p.csv").read_text()
    assert not [char for char in text if not char.isprintable() and char not in "\n\t"]
    table = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert table.id.tolist() == ["'=HYPERLINK(1)", "'@SUM(A1)", "'-a", "\\x1b]0;owned\\x07", "'\t=1+1", *HARMFUL[5:]]
    assert set(table.prediction) <= {f"'{labels[0]}", "\\x1b[2Jred"}
    # its own file is known again, and other formats, which no spreadsheet opens, hold the texts as they are
    facts_of(*command, tmp_path / "p.csv", "--id", "id", "--exact-text", "--overwrite")
    facts_of(*command, tmp_path / "p.parquet", "--id", "id")
    for found in (pd.read_csv(tmp_path / "p.csv", dtype=str), pd.read_parquet(tmp_path / "p.parquet")):
        assert found.id.tolist() == HARMFUL
        assert set(found.prediction) <= set(labels)


def test_texts_that_only_look_like_others_do_no_harm_either_and_stay_apart(tmp_path: Path) -> None:
    """Full-width signs, hidden characters before a sign, turned writing; names that would be written alike."""
    assert [harmless(text) for text in ("＝1+1", "\u200b=1", "\ufeff@a", "\xa0-x", "−5", "-5", "👩\u200d🔬")] == [
        "'＝1+1", "'\u200b=1", "'\ufeff@a", "'\xa0-x", "−5", "-5", "👩\u200d🔬"
    ]  # fmt: skip
    assert harmless("a\u202eb\u2066c\u2028=d\ud800") == r"a\u202eb\u2066c\u2028=d\ud800"
    labels = ["a\x1b", r"a\x1b", "two\nlines"]
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["x", "z"])
    machine = dkl.KernelClassifier(dkl.RandomFeatures(n_features=20, random_state=0), loss="log_loss", solver="newton")
    machine.fit(rows, np.resize(labels, 60)).save(tmp_path / "m.zarr")
    rows.assign(**{"=id": "first", "'=id": "second"}).to_parquet(tmp_path / "new.parquet")
    command = ("predict", tmp_path / "m.zarr", tmp_path / "new.parquet")
    facts_of(*command, tmp_path / "p.csv", "--proba", "--id", "=id", "--id", "'=id")
    table = pd.read_csv(tmp_path / "p.csv", dtype=str)
    assert set(table["'=id"]) == {"first"}
    assert set(table["''=id"]) == {"second"}
    assert [name for name in table if name.startswith("probability")] == [
        r"probability_a\x1b", r"probability_a\\x1b", "probability_two\nlines"
    ]  # fmt: skip
    told_apart = dict(zip(labels, (r"a\x1b", r"a\\x1b", "two\nlines"), strict=True))
    assert table.prediction.tolist() == [told_apart[label] for label in machine.predict(rows)]
    assert len(set(table.prediction)) == 3
    # a name of two lines is no reason to take its own file for another's
    facts_of(*command, tmp_path / "p.csv", "--proba", "--id", "=id", "--id", "'=id", "--overwrite")


@given(st.lists(st.text("'=-+@\\x1bU0a\x1b\r\n\t\x85\u202e\u200b ;,\"＝"), min_size=2, max_size=2, unique=True))
@example(["=1", "'=1"])
@example(["\x1b", r"\x1b"])
@example(["\\\x1b", r"\x1b"])
@example(["\r", r"\x0d"])
def test_harmless_texts_differ_where_the_labels_differ(labels: list[str]) -> None:
    shown = [harmless(label) for label in labels]
    assert shown[0] != shown[1]
    assert all(plain_text(text) == text for text in shown)
    assert harmless(r"C:\reports\x") == r"C:\reports\x"


def test_a_column_that_predictions_have_of_their_own_is_not_written_over_one_of_the_files(
    folder: Path, tmp_path: Path
) -> None:
    pd.read_csv(folder / "new.csv").assign(probability_yes=1.0).to_csv(tmp_path / "new.csv", index=False)
    command = ("predict", folder / "labels.model", tmp_path / "new.csv", tmp_path / "p.csv", "--proba")
    refused = dkl_command(*command, "--id", "probability_yes")
    assert refused.exit_code == 1
    assert "probability_yes" in refused.stderr
    assert not (tmp_path / "p.csv").exists()


def test_labels_with_slashes_are_predictions_that_may_be_replaced_and_impossible_ones_are_refused_by_name(
    tmp_path: Path,
) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["x", "z"])
    rows.to_parquet(tmp_path / "new.parquet")
    machine = dkl.KernelClassifier(dkl.RandomFeatures(n_features=20, random_state=0), loss="log_loss", solver="newton")
    for labels, works in (
        (["a/b", "a/c"], True),
        (["nul\0x", "a"], False),
        (["a/../b", "b"], False),
        (["x" * 300, "y"], False),
    ):
        machine.fit(rows, np.resize(labels, 60)).save(tmp_path / "m.zarr", overwrite=True)
        for more in ([], ["--overwrite"]):
            output = tmp_path / f"{len(labels[0])}.zarr"
            run = dkl_command("predict", tmp_path / "m.zarr", tmp_path / "new.parquet", output, "--proba", *more)
            assert ((run.exit_code == 0), output.exists()) == (works, works), labels
            assert works or ("probability_" in run.stderr and "write Parquet or CSV" in run.stderr)


def test_labels_that_are_no_unicode_text_go_to_csv_and_zarr_and_are_refused_by_parquet_in_words(tmp_path: Path) -> None:
    rows = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["x", "z"])
    rows.to_parquet(tmp_path / "new.parquet")
    machine = dkl.KernelClassifier(dkl.RandomFeatures(n_features=20, random_state=0), random_state=0)
    machine.fit(rows, np.resize(np.array(["a\ud800", "b"], object), 60)).save(tmp_path / "m.zarr")
    for name, works in (("p.csv", True), ("p.zarr", True), ("p.parquet", False)):
        run = dkl_command("predict", tmp_path / "m.zarr", tmp_path / "new.parquet", tmp_path / name)
        assert ((run.exit_code == 0), (tmp_path / name).exists()) == (works, works), run.stderr
    assert "no Unicode text" in run.stderr
    assert "write a .csv file" in run.stderr


def test_verify_names_the_damaged_chunk_and_fails(folder: Path, tmp_path: Path) -> None:
    dkl_command("ingest", folder / "labels.csv", tmp_path / "rows.zarr", "--target", "label")
    assert facts_of("verify", tmp_path / "rows.zarr")["faults"] == 0
    chunk = max((tmp_path / "rows.zarr" / "X").rglob("c/*/*"), key=lambda path: path.stat().st_size)
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(bytes(content))
    run = dkl_command("verify", tmp_path / "rows.zarr")
    assert run.exit_code == 1
    assert "block 0" in run.stderr


def test_suggest_shows_the_race_of_the_fit_that_its_command_starts(folder: Path, tmp_path: Path) -> None:
    store = str(folder / "labels.zarr")
    facts = facts_of("suggest", store, "--effort", "fast", "--seed", "3")
    assert facts["tried"][0]["outcome"] == "chosen"
    assert facts["tried"][0]["name"] in facts["reasons"][0]
    command = shlex.split(facts["command"])
    assert command == ["dkl", "fit", store, "model.zarr", "--effort", "fast", "--seed", "3"]
    fitted = facts_of("fit", store, tmp_path / "model.zarr", *command[4:])
    assert fitted["reasons"] == facts["reasons"]


@pytest.fixture
def chosen(folder: Path, little_work: None) -> None:
    """A model whose features the machine has chosen; fitted for the first test that asks for it."""
    if not (folder / "chosen.model").exists():
        fit = dkl_command("fit", folder / "labels.zarr", folder / "chosen.model", "--effort", "fast")
        assert fit.exit_code == 0, fit.output


@pytest.mark.parametrize(
    "line",
    [
        "ingest {0}/labels.csv {1}/rows.zarr --target label",
        "info {0}/labels.zarr",
        "plan {0}/labels.zarr --effort fast",
        "score {0}/chosen.model {0}/labels.zarr",
        "predict {0}/chosen.model {0}/new.csv {1}/predictions.csv",
        "report {0}/chosen.model {0}/labels.zarr",
        "explain {0}/chosen.model {0}/labels.zarr",
        *(
            pytest.param(line, marks=pytest.mark.slow)
            for line in (
                "verify {0}/labels.zarr",
                "export {0}/chosen.model {1}/model.joblib",
                "drift {0}/labels.zarr {0}/labels.zarr",
                "tune {0}/labels.zarr {1}/m.zarr --learner random --features 9 --space alpha=1e-6:1e-1:log --trials 2",
                "compare {0}/labels.zarr --output {1}/compared --learner random --features 50 --no-rivals",
                "bench --quick",
            )
        ),
    ],
)
def test_no_command_prints_a_message_of_300_characters(
    line: str, folder: Path, chosen: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is longer is read by nobody, and comes with --verbose."""
    monkeypatch.setenv("COLUMNS", "10000")
    run = dkl_command(*line.format(folder, tmp_path).split())
    assert run.exit_code == 0, run.output
    assert longest_message(run.output) < 300


def longest_message(output: str) -> int:
    """Borders of boxes, and what stands between columns, are no message."""
    return max(map(len, re.split(r"[│┃─━╭╮╰╯]+|\s{2,}|\n", output)))


def test_a_fit_and_a_suggestion_say_what_was_chosen_in_one_sentence_and_why_on_request(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "10000")
    fit = ("fit", folder / "labels.zarr", tmp_path / "model.zarr", "--effort", "fast", "--overwrite")
    suggest = ("suggest", folder / "labels.zarr", "--effort", "fast")
    brief, whole = dkl_command(*fit).stdout, dkl_command(*suggest, "--verbose").stdout
    for text in (brief, whole):
        assert re.search(r"Chose .+: accuracy \.\d+ on held-out rows \(", " ".join(text.split()))
    assert longest_message(brief) < 300
    assert "also tried" not in brief
    assert "also tried" in " ".join(whole.split())


def test_a_hint_speaks_the_language_of_where_it_appears(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Once a process, in the shell with its options, in Python at the line of the caller."""
    frame = pd.DataFrame({"patient": np.arange(400) // 4 % 50, "x": np.arange(400.0) % 7})
    dataset = dkl.create_dataset("memory://hinted.zarr", frame, np.arange(400.0) % 5)

    def suggested() -> Result:
        warnings.simplefilter("always", dkl.DklHint)
        dkl.suggest(dataset, effort="fast", progress=False)
        return Result({})

    _report(suggested, Running(), ())
    told = capsys.readouterr().err
    assert "--by-group patient" in told
    assert "groups=" not in told
    _report(suggested, Running(), ())
    assert "Hint" not in capsys.readouterr().err
    dkl.errors._HINTED.clear()
    with pytest.warns(dkl.DklHint, match="Pass groups='patient'") as hints:
        dkl.suggest(dataset, effort="fast", progress=False)
    assert [hint.filename for hint in hints] == [__file__]


def test_no_hint_contradicts_what_a_machine_does_with_dates(recwarn: pytest.WarningsRecorder) -> None:
    frame = pd.DataFrame({"x": np.arange(300.0) % 7, "when": pd.date_range("2024-01-01", periods=300)})
    found = dkl.suggest(frame, np.arange(300.0) % 5, effort="fast", progress=False)
    assert any("the newest rows by 'when'" in reason for reason in found.reasons)
    assert not [warning for warning in recwarn if issubclass(warning.category, dkl.DklHint)]


def test_a_line_that_is_to_be_copied_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = "dkl fit " + 30 * "--option value "
    _report(lambda: Result({}, Text(line)), Running())
    assert capsys.readouterr().out == f"{line}\n"


def settings_of(estimator: Any) -> dict[str, str]:
    """Its parameters as text, but for those that say how and not what."""
    parameters = estimator.get_params().items()
    return {name: repr(value) for name, value in parameters if name.split("__")[-1] not in ("progress", "features")}


def test_plan_tells_memory_and_passes_before_anything_runs(folder: Path) -> None:
    facts = facts_of("plan", folder / "labels.zarr", *SMALL)
    assert facts["peak_bytes"] > 0
    assert facts["n_passes"] >= 2
    assert "peak" in dkl_command("plan", folder / "labels.zarr", *SMALL).stdout


def test_plan_takes_the_files_that_fit_takes(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    facts = facts_of("plan", folder / "labels.csv", "--target", "label", *SMALL)
    assert facts["store"] == "model.rows.zarr"
    assert facts["n_passes"] == facts_of("plan", "model.rows.zarr", *SMALL)["n_passes"]


def test_names_of_files_in_place_of_a_pattern_are_refused_with_the_remedy(folder: Path, tmp_path: Path) -> None:
    files = folder / "labels.csv", folder / "numbers.csv"
    run = dkl_command("fit", *files, tmp_path / "model.zarr", "--target", "label")
    said = " ".join(run.stderr.replace("│", " ").split())
    assert (run.exit_code, "goes in quotes, 'part-*.csv'" in said) == (2, True), said


def test_plan_refuses_a_limit_that_cannot_be_kept(folder: Path) -> None:
    run = dkl_command("plan", folder / "labels.zarr", *SMALL, "--memory-limit", "1 kiB")
    assert run.exit_code == 1
    assert "may take" in run.stderr


def test_fit_takes_the_target_for_what_task_says(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.normal(size=(600, 2)), columns=["a", "b"])
    rows["count"] = np.clip(np.round(3.0 + rows.a + rows.b), 0, 6).astype(int)
    rows.to_csv(tmp_path / "counts.csv", index=False)
    store = str(tmp_path / "counts.zarr")
    assert dkl_command("ingest", tmp_path / "counts.csv", store, "--target", "count").exit_code == 0
    assert open_dataset(store).task == "classification"
    models = {}
    for task, machine in (("classification", dkl.KernelClassifier), ("regression", dkl.KernelRegressor)):
        fit = ("fit", store, tmp_path / f"{task}.model", *SMALL, "--task", task)
        facts = facts_of(*fit)
        models[task] = load_model(tmp_path / f"{task}.model")
        assert isinstance(models[task], machine)
        assert ("r2" in facts["held_out"]) == (task == "regression")
        scored = facts_of("score", tmp_path / f"{task}.model", store)
        assert ("r2" in scored) == (task == "regression")
        assert facts_of("plan", store, *SMALL, "--task", task)["n_passes"] > 0
    X, y = rows[["a", "b"]], rows["count"]
    assert models["regression"].score(X, y) > 0.9
    run = dkl_command("fit", store, tmp_path / "no.model", "--task", "both")
    assert run.exit_code == 2
    # texts are labels, whatever is asked
    rows.assign(count=np.where(rows.a > 0, "yes", "no")).to_csv(tmp_path / "texts.csv", index=False)
    texts = str(tmp_path / "texts.zarr")
    assert dkl_command("ingest", tmp_path / "texts.csv", texts, "--target", "count").exit_code == 0
    run = dkl_command("fit", texts, tmp_path / "no.model", "--task", "regression")
    assert run.exit_code == 1
    assert "labels such as" in run.stderr


def test_fit_uses_train_and_score_uses_test(folder: Path) -> None:
    facts = facts_of("score", folder / "labels.model", folder / "labels.zarr")
    assert (facts["split"], facts["rows"]) == ("test", pytest.approx(180, abs=2))
    assert facts["accuracy"] > 0.85
    facts = facts_of("score", folder / "numbers.model", folder / "numbers.zarr")
    assert facts["r2"] > 0.95


@pytest.mark.parametrize(
    ("learner", "at_least"), [("margin", 0.85), pytest.param("peaks", 0.75, marks=pytest.mark.slow)]
)
def test_features_that_are_searched_for_take_exact_steps_unless_told_otherwise(
    folder: Path, tmp_path: Path, learner: str, at_least: float
) -> None:
    rows, options = folder / "labels.zarr", ("--learner", learner, "--features", "40", "--set", "features__steps=5")
    facts = facts_of("fit", rows, tmp_path / "exact.model", *options)
    assert facts["features"] <= 40
    assert facts_of("score", tmp_path / "exact.model", rows)["accuracy"] > at_least
    exact = load_model(str(tmp_path / "exact.model"))
    assert (exact.solver, exact.loss, exact.alpha) == ("newton", "squared_hinge", "auto")
    facts_of("fit", rows, tmp_path / "sgd.model", *options, "--epochs", "2")
    stochastic = load_model(str(tmp_path / "sgd.model"))
    assert (stochastic.solver_, stochastic.loss_) == ("sgd", "hinge")


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_without_options_the_shell_has_the_machine_of_python(task: str) -> None:
    given = {"task": task, "compute": Compute(), "running": Running()}
    machine = dkl.KernelClassifier if task == "classification" else dkl.KernelRegressor
    plain = estimator_from(FeatureOptions(), MachineOptions(), **given)
    assert settings_of(plain) == settings_of(machine(random_state=0))
    assert (plain.features, plain.loss, plain.alpha, plain.solver) == ("auto", None, None, None)
    pinned = FeatureOptions(features=300, scaling="none", sigma="2"), MachineOptions(effort="fast", time_limit=60.0)
    wanted = machine(n_features=300, scaling=None, sigma=2.0, effort="fast", time_limit=60.0, random_state=0)
    assert settings_of(estimator_from(*pinned, **given)) == settings_of(wanted)
    described = estimator_from(FeatureOptions(candidates=50), MachineOptions(), **given)
    assert (type(described.features).__name__, described.features.n_candidates) == ("AlignedFeatures", 50)


@pytest.mark.parametrize("name", ["random", "nystrom"])
def test_features_by_name_are_scaled_alike_in_python_and_in_the_shell(name: str) -> None:
    """Columns of other lengths, which count for nothing unless they are scaled."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3)) * [1.0, 1e-3, 1e3]
    y = (X[:, 0] + 1e3 * X[:, 1] > 0).astype(int)
    options = MachineOptions(solver="newton", alpha="0.001")
    given = {"task": "classification", "compute": Compute(device="cpu"), "running": Running()}
    ours = estimator_from(FeatureOptions(learner=name, features=40), options, **given).fit(X, y)
    pinned = {"solver": "newton", "loss": ours.loss, "alpha": 1e-3, "random_state": 0}
    python = dkl.KernelClassifier(name, n_features=40, **pinned).fit(X, y)
    np.testing.assert_allclose(python.decision_function(X), ours.decision_function(X), rtol=1e-6)
    assert (python.features_.scaling, python.feature_map_.scaler.kind) == ("auto", "standard")
    sparse_rows = sparse.csr_array(np.where(rng.random(X.shape) < 0.3, X, 0.0))
    assert dkl.KernelClassifier(name, n_features=40, random_state=0).fit(sparse_rows, y).feature_map_.scaler is None
    # a learner of one's own has the scaling that it says
    own = dkl.KernelClassifier(dkl.RandomFeatures(n_features=40), random_state=0).fit(X, y)
    assert own.feature_map_.scaler is None


def test_a_fit_ends_with_metrics_on_held_out_rows_beside_a_baseline(folder: Path, tmp_path: Path) -> None:
    options = ("--learner", "random", "--features", "40", "--calibrate")
    run = dkl_command("fit", folder / "labels.zarr", tmp_path / "m.zarr", *options)
    assert "rows of test, which the fit has not seen" in run.stdout
    assert "without the columns" in run.stdout
    scores = facts_of("score", tmp_path / "m.zarr", folder / "labels.zarr")
    held_out = facts_of("fit", folder / "labels.zarr", tmp_path / "n.zarr", *options)["held_out"]
    assert {name: scores[name] for name in held_out} == held_out
    assert scores["baseline"]["accuracy"] < 0.6 < scores["accuracy"]
    assert scores["standard_errors"]["accuracy"] == pytest.approx(
        np.sqrt(scores["accuracy"] * (1 - scores["accuracy"]) / scores["rows"])
    )
    one = facts_of("score", tmp_path / "m.zarr", folder / "labels.zarr", "--scoring", "roc_auc")
    assert (one["roc_auc"], "accuracy" in one) == (scores["roc_auc"], False)
    refused = dkl_command("score", tmp_path / "m.zarr", folder / "labels.zarr", "--scoring", "rmse")
    assert (refused.exit_code, "expected one of accuracy" in " ".join(refused.stderr.split())) == (1, True)
    dkl_command("ingest", folder / "labels.csv", tmp_path / "whole.zarr", "--target", "label", "--split", "")
    run = dkl_command("fit", tmp_path / "whole.zarr", tmp_path / "w.zarr", *options)
    assert "No rows are held out" in run.stdout


def test_a_plan_is_ten_lines_and_more_on_request(folder: Path) -> None:
    plan = ("plan", folder / "labels.zarr", "--effort", "fast")
    assert len(dkl_command(*plan).stdout.splitlines()) <= 12
    assert len(dkl_command(*plan, "--verbose").stdout.splitlines()) > 30


def test_a_column_of_landmark_features_is_a_landmark(folder: Path, tmp_path: Path) -> None:
    options = ("--learner", "landmarks", "--features", "30", "--candidates", "16", "--beta", "0.5", "--epochs", "2")
    assert facts_of("fit", folder / "labels.zarr", tmp_path / "m.model", *options)["features"] == 30
    features = load_model(str(tmp_path / "m.model")).features_
    assert (features.n_landmarks, features.n_candidates, features.beta) == (30, 16, 0.5)


@pytest.mark.parametrize(("rows", "kind"), [("labels", "TunedClassifier"), ("numbers", "TunedRegressor")])
def test_tuned_features_are_machines_of_their_own(folder: Path, tmp_path: Path, rows: str, kind: str) -> None:
    options = ("--learner", "tuned", "--features", "40", "--loss", "squared_error", "--alpha", "1e-3")
    facts = facts_of("fit", folder / f"{rows}.zarr", tmp_path / "m.model", *options, "--set", "Lam=0.1")
    assert (facts["learner"], facts["features"]) == (kind, 40)
    model = load_model(str(tmp_path / "m.model"))
    assert (type(model).__name__, model.lam, model.Lam) == (kind, 1e-3, 0.1)
    facts = facts_of("score", tmp_path / "m.model", folder / f"{rows}.zarr")
    assert facts.get("accuracy", facts.get("r2")) > 0.75
    assert facts_of("plan", folder / f"{rows}.zarr", *options)["learner"].startswith(kind)


def test_the_same_seed_gives_the_same_model(folder: Path) -> None:
    facts = facts_of("fit", folder / "labels.zarr", folder / "again.model", *SMALL, "--calibrate")
    assert (facts["split"], facts["rows"]) == ("train", pytest.approx(720, abs=2))
    first, again = (load_model(str(folder / name)) for name in ("labels.model", "again.model"))
    assert first.linear_.coef_.tobytes() == again.linear_.coef_.tobytes()


def test_predictions_of_files_and_stores_agree_row_by_row(folder: Path) -> None:
    tables = []
    for data, output in (
        ("new.csv", "of_csv.csv"),
        ("new.parquet", "of_parquet.parquet"),
        ("labels.zarr", "of_store.parquet"),
    ):
        assert facts_of("predict", folder / "labels.model", folder / data, folder / output)["rows"] == 900
        read = pd.read_csv if output.endswith(".csv") else pd.read_parquet
        tables.append(read(folder / output).set_index("row_id").sort_index())
    assert set(tables[0].prediction) == {"yes", "no"}
    assert all(table.equals(tables[0].astype(table.dtypes)) for table in tables[1:])


def test_probabilities_are_written_beside_the_prediction_they_agree_with(folder: Path) -> None:
    output = folder / "shares.parquet"
    facts_of("predict", folder / "labels.model", folder / "labels.zarr", output, "--proba", "--split", "test")
    table = pd.read_parquet(output)
    shares = table[["probability_no", "probability_yes"]].to_numpy()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0, rtol=1e-12)
    assert (np.array(["no", "yes"])[shares.argmax(axis=1)] == table.prediction).all()


def test_predictions_as_zarr_keep_numbers_and_label_codes(folder: Path) -> None:
    facts_of("predict", folder / "labels.model", folder / "new.csv", folder / "labels_out.zarr")
    group = zarr.open_group(str(folder / "labels_out.zarr"), mode="r")
    known = group.attrs["prediction_labels"]
    of_csv = pd.read_csv(folder / "of_csv.csv") if (folder / "of_csv.csv").exists() else None
    assert sorted(known) == ["no", "yes"]
    assert group["row_id"].shape == group["prediction"].shape == (900,)
    if of_csv is not None:
        assert [known[code] for code in group["prediction"][:]] == of_csv.prediction.tolist()


def test_a_cluster_that_is_there_gives_the_predictions_of_threads(folder: Path, cluster: LocalCluster) -> None:
    arguments = ("predict", folder / "numbers.model", folder / "numbers.zarr")
    facts_of(*arguments, folder / "threads.parquet")
    facts_of(*arguments, folder / "cluster.parquet", "--scheduler", cluster.scheduler_address)
    pd.testing.assert_frame_equal(
        pd.read_parquet(folder / "threads.parquet"), pd.read_parquet(folder / "cluster.parquet"), check_exact=True
    )


def test_a_scheduler_that_is_not_there_is_told_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_a_tenth(address: str, timeout: str) -> Client:
        assert parse_timedelta(timeout) <= 5.0
        return Client(address, timeout=parse_timedelta(timeout) / 10)

    monkeypatch.setattr("distributed.Client", in_a_tenth)
    run = dkl_command("score", folder / "labels.model", folder / "labels.zarr", "--scheduler", "tcp://127.0.0.1:1")
    assert run.exit_code == 1
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:1'" in run.stderr
    assert "--workers" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["fit", "none.zarr", "m.zarr"], "none.zarr"),
        (["info", "none.zarr"], "none.zarr"),
        (["info", "{labels.model}"], "is a model, not a dataset"),
        (["fit", "{labels.model}", "m.zarr"], "is a model, not a dataset"),
        (["score", "{labels.model}", "none.zarr"], "none.zarr"),
        (["score", "none.model", "{labels.zarr}"], "none.model"),
        (["predict", "{labels.model}", "{new.csv}", "out.txt"], ".parquet, .csv or .zarr"),
        (["predict", "{labels.model}", "{new.csv}", "no/such/out.csv"], "no/such/out.csv"),
        (["predict", "{labels.model}", "{wide.zarr}", "out.csv"], "colour=purple"),
        (["predict", "{numbers.model}", "{new.csv}", "out.csv", "--proba"], "no probabilities"),
        (["fit", "{labels.zarr}", "{labels.model}"], "--overwrite"),
        (["fit", "{labels.zarr}", "m.zarr", "--sigma", "-1"], "sigma"),
        (["fit", "{labels.zarr}", "m.zarr", "--split", "nowhere"], "nowhere"),
    ],
)
def test_a_failure_is_one_message_and_exit_code_1(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [str(folder / text[1:-1]) if text.startswith("{") else text for text in arguments]
    run = dkl_command(*arguments)
    assert run.exit_code == 1, run.output
    assert says in run.stderr
    assert run.stderr.startswith("Error: ")
    assert "Traceback" not in run.output
    assert list(tmp_path.iterdir()) == []


def test_a_failure_is_an_object_of_json_or_a_traceback_on_request(folder: Path, tmp_path: Path) -> None:
    arguments = ("predict", folder / "labels.model", folder / "wide.zarr", tmp_path / "out.csv")
    failure = json.loads(dkl_command(*arguments, "--json").stdout)["error"]
    assert set(failure) == {"type", "message", "notes"}
    assert "colour=purple" in failure["message"]
    assert "Traceback" in dkl_command(*arguments, "--debug").stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["ingest", "rows.csv"], "the store to write"),
        (["ingest", "a.csv", "b.zarr", "--split", "train:0.8"], "train=0.8"),
        (["ingest", "a.csv", "b.zarr", "--split", "=0.5,b=0.5"], "'' cannot name a split"),
        (["ingest", "a.csv", "b.zarr", "--split", "a=0.5,a=0.5"], "two splits are named 'a'"),
        (["ingest", "a.csv", "b.zarr", "--split", "a/b=0.5"], "'a/b' cannot name a split"),
        (["ingest", "a.csv", "b.zarr", "--split", "a=0,b=0.5"], "fraction 0 of split 'a'"),
        (["ingest", "a.csv", "b.zarr", "--split", "a=-1"], "fraction -1 of split 'a'"),
        (["ingest", "a.csv", "b.zarr", "--split", "a=nan"], "fraction nan of split 'a'"),
        (["ingest", "a.csv", "b.zarr", "--split", "a=0.9,b=0.2"], "sum to 1.1"),
        (["ingest", "a.csv", "b.zarr", "--split", "a="], "train=0.8"),
        (["ingest", "a.csv", "b.zarr", "--memory-limit", "much"], "500000000 or '2 GiB'"),
        (["fit", "rows.zarr"], "Missing argument"),
        (["fit", "a.zarr", "b.zarr", "--learner", "peak"], "margin"),
        (["fit", "{labels.zarr}", "m.zarr", "--learner", "random", "--rho", "1"], "--rho has no meaning"),
        (["fit", "{labels.zarr}", "m.zarr", "--set", "colour=red"], "no parameter 'colour'"),
        (["fit", "{labels.zarr}", "m.zarr", "--set", "loss=hinge", "--set", "loss=log_loss"], "more than once"),
        *(
            (["fit", "{labels.zarr}", "m.zarr", *text.split()], f"{text.split()[0]} and --set {name}=...")
            for text, name in [
                ("--features 8 --set n_features=10", "n_features"),
                ("--features 8 --learner random --set n_features=10", "n_features"),
                ("--features 8 --learner random --set features__n_features=10", "features__n_features"),
                ("--loss hinge --set loss=log_loss", "loss"),
                ("--alpha 1 --learner tuned --set lam=2", "lam"),
                ("--seed 1 --set random_state=2", "random_state"),
                ("--sigma 1 --set sigma=2", "sigma"),
                ("--memory-limit 1GB --set memory_limit=2GB", "memory_limit"),
            ]
        ),
        (["fit", "{labels.zarr}", "m.zarr", "--sigma", "wide"], "median"),
        (
            ["fit", "{labels.zarr}", "m.zarr", "--alpha", "strong"],
            f"number, {', '.join(map(repr, PENALTY_RULES))} or 'evidence'",
        ),
        (["fit", "{labels.zarr}", "m.zarr", "--learner", "margin", "--candidates", "9"], "--candidates has no meaning"),
        (
            ["compare", "{labels.zarr}", "--features", "20,50"],
            "Invalid value for '--features': Input should be",
        ),
        (
            ["fit", "{labels.zarr}", "m.zarr", "--epsilon", "x"],
            "Invalid value for '--epsilon': Input should be",
        ),
        (["fit", "{labels.zarr}", "m.zarr", "--learner", "foo"], "'foo' is not one of"),
        (["fit", "{labels.zarr}", "m.zarr", "--loss", "foo"], "'foo' is not one of"),
        (["info", "rows.zarr", "--frobnicate"], "No such option"),
        (["score", "{labels.model}", "{labels.zarr}", "--workers", "1", "--scheduler", "x"], "give one"),
        (["demo", "--target", "label"], "--data"),
        (["bench", "--gigabytes", "1"], "--memory"),
        (["frobnicate"], "No such command"),
    ],
)
def test_what_is_not_understood_leaves_with_exit_code_2(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    run = dkl_command(*(str(folder / text[1:-1]) if text.startswith("{") else text for text in arguments))
    assert run.exit_code == 2, run.output
    assert says in run.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "where", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)], ids=["threads", "workers"]
)
def test_ctrl_c_ends_a_fit_within_seconds_without_a_traceback(
    folder: Path, tmp_path: Path, where: tuple[str, ...]
) -> None:
    rounds = tmp_path / "rounds"
    fit = ["fit", str(folder / "labels.zarr"), "m.zarr", *SMALL, "--epochs", "1000000", "--checkpoint", "rounds"]
    run = subprocess.Popen(
        [sys.executable, "-m", "dkl", *fit, *where],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    while not (rounds.exists() and any(rounds.iterdir())) and run.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    os.killpg(run.pid, signal.SIGINT)  # a terminal sends it to the workers too
    started = time.monotonic()
    try:
        output = run.communicate(timeout=30)[0]
    except subprocess.TimeoutExpired:
        os.killpg(run.pid, signal.SIGKILL)
        raise
    assert time.monotonic() - started < 5.0
    assert run.returncode == 130, output
    assert "interrupted" in output
    assert "it goes on after the last finished pass" in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == [rounds]


@pytest.mark.parametrize("checkpoint", [(), ("--checkpoint", "done")])
@pytest.mark.parametrize(
    ("command", "stopped", "nothing"),
    [
        ("tune", "dkl.model_selection.tuning.tune", "model"),
        ("compare", "dkl.model_selection.comparison.compare", "scores"),
    ],
)
def test_ctrl_c_says_how_a_search_and_a_comparison_go_on(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checkpoint: tuple[str, ...],
    command: str,
    stopped: str,
    nothing: str,
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stopped, interrupted)
    monkeypatch.chdir(tmp_path)
    places = ["m.zarr"] if command == "tune" else []
    run = dkl_command(command, folder / "labels.zarr", *places, *checkpoint)
    assert run.exit_code == 130, run.output
    said = "run again with the same checkpoint" if checkpoint else "with --checkpoint FOLDER"
    assert f"no {nothing} w" in run.stderr
    assert said in run.stderr


def test_a_fit_says_what_it_read_and_goes_on_from_the_folder_beside_the_model(folder: Path, tmp_path: Path) -> None:
    fit = ("fit", folder / "labels.zarr", tmp_path / "m.zarr", *SMALL, "--resume")
    first = facts_of(*fit)
    again = facts_of(*fit, "--overwrite")
    assert (tmp_path / "m.zarr.checkpoint").exists()
    assert first["passes"] > again["passes"]
    assert first["bytes_read"] + first["cache_hits"] > again["bytes_read"] + again["cache_hits"]


def test_a_format_can_be_said_where_the_suffix_does_not_tell(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_bytes((folder / "labels.csv").read_bytes())
    options = ("--target", "label", "--format", "csv")
    assert facts_of("ingest", tmp_path / "rows.txt", tmp_path / "rows.zarr", *options)["rows"] == 900


@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm_text_is_predicted_by_the_base_that_the_model_knows(tmp_path: Path, zero_based: bool) -> None:
    generator = np.random.default_rng(0)
    X = generator.integers(0, 2, (300, 8)).astype(float)
    y = X[:, 3].astype(int)
    X[200:, [0, 7]] = 0
    for name, rows in (("train.svm", slice(200)), ("new.svm", slice(200, None))):
        dump_svmlight_file(X[rows], y[rows], str(tmp_path / name), zero_based=zero_based)
    new, store, model = tmp_path / "new.svm", tmp_path / "train.zarr", tmp_path / "train.model"
    run = dkl_command("ingest", tmp_path / "train.svm", store)
    assert f"first index {int(not zero_based)}" in " ".join(run.stdout.replace("│", " ").split()), run.stdout
    assert dkl_command("fit", store, model, *SMALL).exit_code == 0
    assert facts_of("predict", model, new, tmp_path / "p.parquet")["rows"] == 100
    assert (pd.read_parquet(tmp_path / "p.parquet")["prediction"] == y[200:]).mean() > 0.95
    base = "--zero-based" if zero_based else "--one-based"
    other = "--one-based" if zero_based else "--zero-based"
    refused = dkl_command("predict", model, new, tmp_path / "q.parquet", other)
    assert refused.exit_code == 1
    assert "shifted by one" in refused.output
    # a test file without the first and the last column leaves its base open
    refused = dkl_command("ingest", new, tmp_path / "new.zarr", "--n-columns", 8)
    assert refused.exit_code == 1
    assert "--zero-based or --one-based" in " ".join(refused.output.split())
    assert facts_of("ingest", new, tmp_path / "new.zarr", "--n-columns", 8, base, "--split", "")["columns"] == 8
    assert facts_of("score", model, tmp_path / "new.zarr")["accuracy"] > 0.95
    # a model of rows from elsewhere does not know
    other_model = dkl.KernelClassifier(features=dkl.RandomFeatures(n_features=20), random_state=0).fit(X, y)
    other_model.save(tmp_path / "other.model")
    refused = dkl_command("predict", tmp_path / "other.model", new, tmp_path / "q.parquet")
    assert "say --zero-based or --one-based" in " ".join(refused.output.split())
    assert dkl_command("predict", tmp_path / "other.model", new, tmp_path / "q.parquet", base).exit_code == 0
    # nor is it guessed for a score
    refused = dkl_command("score", tmp_path / "other.model", new)
    assert "say --zero-based or --one-based" in " ".join(refused.output.split())
    assert facts_of("score", tmp_path / "other.model", new, base)["rows"] == 100
    assert facts_of("score", model, new)["accuracy"] > 0.95
    refused = dkl_command("score", model, new, other)
    assert "shifted by one" in " ".join(refused.output.split())
    refused = dkl_command("score", model, tmp_path / "new.zarr", base)
    assert f"{base} says how files are read" in " ".join(refused.output.split())
    assert dkl_command("ingest", tmp_path / "p.parquet", tmp_path / "p.zarr", base).exit_code == 2


def test_a_prediction_that_fails_half_way_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    good = (folder / "new.csv").read_text()
    (tmp_path / "spoiled.csv").write_text(good + "1.0,inf,red\n")
    run = dkl_command("predict", folder / "labels.model", tmp_path / "spoiled.csv", tmp_path / "out.csv")
    assert run.exit_code == 1
    assert "b" in run.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["spoiled.csv"]


def test_the_bench_measures_every_promise_once() -> None:
    facts = facts_of("bench", "--quick")
    assert len(facts["measures"]) >= 8
    assert all(measure["value"] > 0 or "grows" in measure["name"] for measure in facts["measures"])


def test_tune_searches_and_saves_the_best_model(folder: Path, tmp_path: Path) -> None:
    options = ("--learner", "random", "--features", "40", "--solver", "newton", "--loss", "squared_hinge")
    spaces = ("--space", "alpha=1e-6:1e-1:log", "--space", "features__n_features=[10, 40]")
    budget = ("--trials", "3", "--folds", "2", "--table", tmp_path / "trials.csv")
    facts = facts_of("tune", folder / "labels.zarr", tmp_path / "best.model", *options, *spaces, *budget)
    trials = pd.read_csv(tmp_path / "trials.csv")
    assert facts["trials"] == len(trials) == 3
    assert facts["best_score"] == pytest.approx(trials["score"].max())
    model = load_model(str(tmp_path / "best.model"))
    assert model.alpha == facts["best_params"]["alpha"]
    assert model.features_.n_features == facts["best_params"]["features__n_features"]


def test_tune_has_a_space_of_its_own(folder: Path, tmp_path: Path) -> None:
    budget = ("--trials", "2", "--folds", "0.3")
    facts = facts_of("tune", folder / "numbers.zarr", tmp_path / "a.model", *budget)
    assert set(facts["best_params"]) == {
        "alpha",
        "features__n_features",
        "features__scaling",
        "features__sigma_factor",
    }
    facts = facts_of("tune", folder / "numbers.zarr", tmp_path / "b.model", *budget, "--learner", "random", *SMALL[:2])
    assert set(facts["best_params"]) == {"alpha", "features__n_features", "features__scaling", "features__family"}
    assert 20 <= facts["best_params"]["features__n_features"] <= 80


@pytest.mark.parametrize("space", ["alpha", "alpha=1", "alpha=a:b", "alpha=[1,"])
def test_tune_says_how_a_space_is_written(folder: Path, tmp_path: Path, space: str) -> None:
    run = dkl_command("tune", folder / "labels.zarr", tmp_path / "best.model", "--space", space)
    assert run.exit_code == 2
    assert "--space takes NAME=LOW:HIGH" in " ".join(run.output.replace("│", " ").split())
