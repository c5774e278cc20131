"""`dkl predict --std` and `--interval` write what the model says in Python, and refuse what it cannot say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from sklearn.metrics import mean_pinball_loss

import dkl
from dkl.cli.predictions import is_predictions
from tests.commands import dkl_command, facts_of

FIT = ("--learner", "random", "--features", "20", "--solver", "newton", "--set", "features__random_state=0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows as files and stores, and models of numbers and of labels that know what their predictions are worth."""
    folder = tmp_path_factory.mktemp("worth")
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(400, 2)), columns=["a", "b"])
    rows.to_csv(folder / "new.csv", index=False)
    number = np.sin(rows.a) + 0.1 * rng.normal(size=400)
    for name, target in (("numbers", number), ("labels", np.where(number > 0, "yes", "no, never"))):
        rows.assign(target=target).to_csv(folder / f"{name}.csv", index=False)
        facts_of("ingest", folder / f"{name}.csv", folder / f"{name}.zarr", "--target", "target")
        choice = ("--alpha", "evidence") if name == "numbers" else ("--loss", "squared_hinge", "--calibrate")
        facts_of("fit", folder / f"{name}.zarr", folder / name, *FIT, *choice, "--conformal-fraction", 0.3)
    facts_of("fit", folder / "numbers.zarr", folder / "plain", "--features", 20, "--epochs", 2)
    return folder


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".zarr"])
def test_deviations_and_intervals_are_written_beside_the_prediction(folder: Path, suffix: str) -> None:
    output = folder / f"numbers_out{suffix}"
    arguments = ("predict", folder / "numbers", folder / "new.csv", output, "--std", "--interval", 0.8)
    assert facts_of(*arguments)["rows"] == 400
    model, X = dkl.load_model(folder / "numbers"), pd.read_csv(folder / "new.csv")
    mean, std = model.predict(X, return_std=True)
    expected = np.column_stack([mean, std, model.predict_interval(X, 0.8)])
    if suffix == ".zarr":
        names = ("prediction", "std", "lower", "upper")
        found = np.column_stack([np.asarray(zarr.load(str(output), path=name)) for name in names])
    else:
        table = pd.read_csv(output) if suffix == ".csv" else pd.read_parquet(output)
        assert table.columns.tolist() == ["row_id", "prediction", "std", "lower", "upper"]
        found = table.drop(columns="row_id").to_numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    # what is recognised as predictions may be replaced
    assert is_predictions(output)
    facts_of(*arguments, "--overwrite")


def test_sets_of_a_store_are_a_column_a_class(folder: Path) -> None:
    output = folder / "labels_out.csv"
    arguments = ("predict", folder / "labels", folder / "labels.zarr", output, "--interval", 0.9)
    facts_of(*arguments)
    table = pd.read_csv(output).set_index("row_id").sort_index()
    assert table.columns.tolist() == ["prediction", "set_no, never", "set_yes"]
    model = dkl.load_model(folder / "labels")
    expected = model.predict_set(dkl.open_dataset(folder / "labels.zarr")).compute().sort_index()
    np.testing.assert_array_equal(table.iloc[:, 1:].to_numpy(), expected.to_numpy())
    assert is_predictions(output)


def test_a_report_says_what_predictions_are_worth(folder: Path) -> None:
    facts = facts_of("report", folder / "numbers")["model"]
    assert "deviation of y that no feature explains" in facts["noise"]
    assert "split conformal on" in facts["coverage"]
    assert "deviations" in facts["coverage"]
    assert "of the score" in facts_of("report", folder / "labels")["model"]["coverage"]
    assert not {"noise", "coverage"} & set(facts_of("report", folder / "plain")["model"])


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("plain", ("--std",), "has no deviations; fit numbers with --solver newton"),
        ("labels", ("--std",), "has no deviations"),
        ("plain", ("--interval", "0.9"), "fit it with --conformal-fraction 0.1"),
        ("numbers", ("--interval", "1.5"), "--interval is 1.5; expected a share between 0 and 1"),
    ],
)
def test_what_a_model_does_not_say_is_refused_before_the_first_row(
    folder: Path, tmp_path: Path, model: str, options: tuple[str, ...], says: str
) -> None:
    run = dkl_command("predict", folder / model, folder / "new.csv", tmp_path / "out.csv", *options)
    assert run.exit_code == 1
    assert says in " ".join(run.stderr.split())
    assert list(tmp_path.iterdir()) == []


def test_intervals_by_group_are_those_of_python(folder: Path, tmp_path: Path) -> None:
    model, X = dkl.load_model(folder / "numbers"), pd.read_csv(folder / "new.csv")
    kind = np.array(["near", "far"])[np.arange(400) % 2]
    y = np.sin(X.a) + np.where(kind == "far", 3.0, 0.1) * np.random.default_rng(0).normal(size=400)
    model.conformalize(X, y, groups=kind).save(tmp_path / "grouped")
    X.assign(kind=kind).to_csv(tmp_path / "new.csv", index=False)
    arguments = ("predict", tmp_path / "grouped", tmp_path / "new.csv", tmp_path / "out.csv", "--interval", "0.9")
    facts_of(*arguments, "--interval-group", "kind")
    table = pd.read_csv(tmp_path / "out.csv")
    expected = model.predict_interval(X, 0.9, groups=kind)
    np.testing.assert_allclose(table[["lower", "upper"]], expected, rtol=1e-6, atol=1e-6)
    assert "kind" not in table
    for options, says in (
        (arguments[4:], "by group; name their column: --interval-group COLUMN"),
        (("--interval-group", "kind"), "--interval-group is of intervals: give their coverage too"),
        ((*arguments[4:], "--interval-group", "shape"), "has no column 'shape'"),
    ):
        run = dkl_command(*arguments[:3], tmp_path / "none.csv", *options)
        assert run.exit_code == 1
        assert says in " ".join(run.stderr.split())
    run = dkl_command("predict", folder / "numbers", *arguments[2:], "--overwrite", "--interval-group", "kind")
    assert "promises its coverage for all rows together" in " ".join(run.stderr.split())
    run = dkl_command(
        "predict", arguments[1], folder / "numbers.zarr", *arguments[3:], "--interval-group", "kind", "--overwrite"
    )
    assert run.exit_code != 0
    assert "groups='kind' names no column of" in " ".join(run.stderr.replace("│", " ").split())


def test_a_fit_of_the_shell_promises_coverage_by_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=900), "kind": np.array(["near", "far", "odd"])[np.arange(900) % 3]})
    rows["y"] = np.sin(rows.a) + np.where(rows.kind == "far", 3.0, 0.1) * rng.normal(size=900)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    facts_of("ingest", tmp_path / "rows.csv", tmp_path / "rows.zarr", "--target", "y")
    fit = ("fit", tmp_path / "rows.zarr", tmp_path / "model", *FIT, "--interval-group", "kind")
    run = dkl_command(*fit)
    assert run.exit_code == 1
    assert "--conformal-fraction 0.1" in run.stderr
    facts_of(*fit, "--conformal-fraction", 0.4)
    model = dkl.load_model(tmp_path / "model")
    assert len(model.conformal_.groups) == 3
    widths = []
    for data in (tmp_path / "rows.zarr", tmp_path / "rows.csv"):
        predict = ("predict", tmp_path / "model", data, tmp_path / "out.csv", "--overwrite", "--interval", 0.9)
        facts_of(*predict, "--interval-group", "kind")
        table = pd.read_csv(tmp_path / "out.csv").sort_values("row_id")
        widths.append((table["upper"] - table["lower"]).to_numpy())
    expected = model.predict_interval(rows, 0.9, groups="kind")
    np.testing.assert_allclose(widths[1], expected[:, 1] - expected[:, 0], rtol=1e-5)
    np.testing.assert_allclose(widths[0], widths[1], rtol=1e-5)
    assert widths[0][rows.kind == "far"].min() > 5.0 * widths[0][rows.kind != "far"].max()


@pytest.mark.parametrize("stored_as", ["regression", "classification"])
def test_counts_are_fitted_scored_and_predicted_with_their_exposure(stored_as: str, tmp_path: Path) -> None:
    """Whole numbers that were taken for labels are counts all the same, for a loss of counts."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=600), "years": rng.integers(1, 9, 600).astype(float)})
    mean = rows.years * np.exp(1.0 + np.sin(rows.a))
    rows.assign(visits=rng.poisson(mean)).to_csv(tmp_path / "rows.csv", index=False)
    facts_of("ingest", tmp_path / "rows.csv", tmp_path / "rows.zarr", "--target", "visits", "--task", stored_as)
    fit = ("fit", tmp_path / "rows.zarr", tmp_path / "model", *FIT, "--loss", "poisson", "--alpha", "1e-3")
    facts = facts_of(*fit, "--exposure", "years", "--conformal-fraction", 0.3)
    stored = dkl.open_dataset(tmp_path / "rows.zarr")
    assert stored.task == stored_as
    assert facts_of("plan", *fit[1:2], *fit[3:], "--exposure", "years")["passes"][0]["name"] == "exposures"
    model = dkl.load_model(tmp_path / "model")
    predicted = model.predict(stored["test"], exposure="years").compute().to_numpy()
    counts = stored["test"].y.compute()
    counts = counts if stored.classes is None else np.asarray(stored.classes)[counts]
    rmse = np.sqrt(np.mean((counts - predicted) ** 2))
    assert facts["held_out"]["rmse"] == pytest.approx(rmse, rel=1e-6)
    # the column is known from the fit, and no feature
    assert list(model.feature_names_in_) == ["a"]
    for options in ((), ("--exposure", "years")):
        scored = facts_of("score", tmp_path / "model", tmp_path / "rows.zarr", *options)
        assert scored["rmse"] == pytest.approx(rmse, rel=1e-6)
        if stored_as == "regression":
            assert scored["d2"] == pytest.approx(model.score(stored["test"]), rel=1e-6)
            assert scored["deviance"] == pytest.approx(model.deviance(stored["test"]), rel=1e-6)
    page = facts_of("report", tmp_path / "model", tmp_path / "rows.zarr")
    assert (page["data"]["task"], "classes" in page["data"]) == ("regression", False)
    assert "deviance residual" in page["model"]["coverage"]
    assert page["scores"]["test"]["deviance"] == scored["deviance"]
    predict = ("predict", tmp_path / "model", tmp_path / "rows.csv", tmp_path / "files.csv", "--interval", 0.9)
    facts_of(*predict)
    facts_of(*predict[:2], tmp_path / "rows.zarr", tmp_path / "store.csv", *predict[4:], "--exposure", "years")
    facts_of(*predict[:3], tmp_path / "unit.csv", "--exposure", "")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "unit.csv")["prediction"], model.predict(rows), rtol=1e-5)
    rows[["a"]].to_csv(tmp_path / "lacks.csv", index=False)
    lacks = dkl_command("predict", tmp_path / "model", tmp_path / "lacks.csv", tmp_path / "out.csv")
    assert lacks.exit_code == 1
    assert "the fit counted targets over 'years'" in " ".join(lacks.stderr.split())
    rows.assign(visits=1)[["a", "visits"]].to_csv(tmp_path / "lacks.csv", index=False)
    lacks = dkl_command("score", tmp_path / "model", tmp_path / "lacks.csv")
    assert lacks.exit_code == 1
    assert "the fit counted targets over 'years', the exposure of each row: add" in " ".join(lacks.stderr.split())
    files, store = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("files", "store"))
    ends = model.predict_interval(rows, 0.9, exposure=rows.years)
    expected = np.column_stack([model.predict(rows, exposure=rows.years), ends])
    np.testing.assert_allclose(files[["prediction", "lower", "upper"]], expected, rtol=1e-5)
    np.testing.assert_allclose(
        np.sort(store["prediction"]), np.sort(model.predict(stored, exposure="years").compute()), rtol=1e-5
    )
    bad = rows.assign(years=np.where(np.arange(600) == 7, 0.0, rows.years))
    bad.to_csv(tmp_path / "bad.csv", index=False)
    for arguments, says in (
        (("predict", tmp_path / "model", tmp_path / "bad.csv", tmp_path / "out.csv"), "exposure[7] is 0.0"),
        (("score", tmp_path / "model", tmp_path / "rows.zarr"), "--exposure months names no column of X"),
    ):
        run = dkl_command(*arguments, "--exposure", "months" if arguments[0] == "score" else "years")
        assert run.exit_code == 1
        assert says in " ".join(run.stderr.split())


def test_quantiles_are_fitted_and_scored_by_their_own_loss(folder: Path, tmp_path: Path) -> None:
    fit = ("fit", folder / "numbers.zarr", tmp_path / "model", *FIT, "--loss", "pinball", "--alpha", "1e-3")
    facts = facts_of(*fit, "--quantiles", "0.7,0.2")
    model, test = dkl.load_model(tmp_path / "model"), dkl.open_dataset(folder / "numbers.zarr")["test"]
    assert model.quantiles == (0.7, 0.2)
    y, found = test.y.compute(), model.predict(test).compute().to_numpy()
    losses = [mean_pinball_loss(y, found[:, k], alpha=q) for k, q in enumerate((0.2, 0.7))]
    assert facts["held_out"]["pinball"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert facts["held_out"]["d2"] == pytest.approx(model.score(test), abs=0.02)
    page = facts_of("report", tmp_path / "model", folder / "numbers.zarr")
    assert page["errors"]["share of targets at most quantile 0.2"] == pytest.approx(np.mean(y <= found[:, 0]))
    assert "rmse" not in page["scores"]["test"]
    assert "AnswersDisplay" in type(dkl.report(model, test).displays["errors"]).__name__


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--quantiles", "0.1,x", "--loss", "pinball"), "--quantiles is '0.1,x'; it must be numbers"),
        (("--quantiles", "0.1,0.9"), "--quantiles is of --loss pinball"),
        (("--epsilon", "1", "--loss", "squared_error"), "--epsilon is of --loss huber and epsilon_insensitive"),
        (("--epsilon", "0", "--loss", "huber"), "leaves nothing of --loss huber"),
    ],
)
def test_options_of_another_loss_are_refused(folder: Path, tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    run = dkl_command("fit", folder / "numbers.zarr", tmp_path / "model", *FIT, *options)
    assert run.exit_code != 0
    assert says in " ".join(run.stderr.replace("│", " ").split())


def test_a_threshold_and_a_task_reach_the_machine(folder: Path, tmp_path: Path) -> None:
    fit = ("fit", folder / "numbers.zarr", tmp_path / "model", *FIT)
    facts_of(*fit, "--loss", "huber", "--epsilon", "1.5", "--alpha", "1e-3")
    assert dkl.load_model(tmp_path / "model").epsilon == 1.5
    run = dkl_command(*fit, "--task", "classification", "--overwrite")
    assert run.exit_code == 1
    assert "labels are whole numbers" in run.stderr


def test_another_exposure_than_that_of_the_fit_is_the_one_that_counts(tmp_path: Path) -> None:
    """Where the rows have both columns, that of the fit took the place of the one that was named."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"a": rng.normal(size=400), "years": rng.uniform(1.0, 9.0, 400)})
    rows = rows.assign(halves=2.0 * rows.years, visits=rng.poisson(rows.years * np.exp(np.sin(rows.a))))
    rows.to_csv(tmp_path / "rows.csv", index=False)
    fit = ("fit", tmp_path / "rows.csv", tmp_path / "model", "--target", "visits", "--drop", "halves", *FIT)
    run = dkl_command(*fit, "--loss", "poisson", "--exposure", "years", "--alpha", "1e-3")
    assert run.exit_code == 0, run.output
    # a loss of counts has said what the whole numbers are
    assert "taken for classes" not in run.stdout
    model = dkl.load_model(tmp_path / "model")
    dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="visits", task="regression", progress=False)
    for name in ("years", "halves"):
        expected = model.score(rows[["a"]], rows.visits, exposure=rows[name])
        scored = facts_of("score", tmp_path / "model", tmp_path / "rows.zarr", "--exposure", name)
        assert scored["d2"] == pytest.approx(expected, rel=1e-5)
        predict = ("predict", tmp_path / "model", tmp_path / "rows.zarr", tmp_path / f"{name}.parquet")
        facts_of(*predict, "--exposure", name)
        found = pd.read_parquet(tmp_path / f"{name}.parquet").sort_values("row_id")["prediction"]
        np.testing.assert_allclose(found, model.predict(rows[["a"]], exposure=rows[name]), rtol=1e-5)


def test_an_exposure_of_a_loss_without_one_is_refused(folder: Path, tmp_path: Path) -> None:
    for arguments in (
        ("fit", folder / "numbers.zarr", tmp_path / "model", *FIT),
        ("score", folder / "numbers", folder / "numbers.zarr"),
        ("predict", folder / "numbers", folder / "new.csv", tmp_path / "out.csv"),
    ):
        run = dkl_command(*arguments, "--exposure", "a")
        assert run.exit_code == 1
        # a command that has the option names it as the shell does
        assert re.search(r"exposure was given, and (--loss |loss=')squared_error'? has none", run.stderr)
    assert list(tmp_path.iterdir()) == []
