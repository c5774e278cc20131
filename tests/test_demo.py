"""The demo: every learner against plain features of the same size, as a table, as JSON and as a picture."""

from __future__ import annotations

import importlib
import json
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.dataset import open_dataset
from dkl.demo import MADE_ROWS, WAVES, Grown, compare, digits_dataset, extrapolated_seconds, verdict
from dkl.methods.base import FeatureLearner
from dkl.model_selection.comparison import Compared, Comparison
from dkl.model_selection.rivals import LINEAR, SVM, TREES
from dkl.plots import ComparisonDisplay
from dkl.registry import learner_classes, learner_keys


def test_every_learner_has_a_name_by_which_it_takes_part() -> None:
    things = [getattr(dkl, name) for name in dkl.__all__]
    known = {thing for thing in things if isinstance(thing, type) and issubclass(thing, FeatureLearner)}
    # Machines predict by themselves, and a combination is made of learners that take part.
    machines = {dkl.TunedClassifier, dkl.TunedRegressor, dkl.CombinedFeatures}
    assert set(learner_classes().values()) == known - machines


def test_the_digits_are_stored_with_splits(tmp_path: Path) -> None:
    dataset = digits_dataset(tmp_path / "digits.zarr")
    assert (dataset.n_rows, dataset.n_columns, len(dataset.classes)) == (1_797, 64, 10)
    assert dataset["train"].n_rows + dataset["test"].n_rows == 1_797
    assert open_dataset(str(tmp_path / "digits.zarr")).splits == dataset.splits


def test_the_demo_on_own_rows_in_worker_processes(
    tmp_path: Path, cluster: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dkl.demo.learner_keys", lambda: learner_keys()[:3])
    generator = np.random.default_rng(0)
    rows = pd.DataFrame(generator.normal(size=(300, 3)), columns=list("abc"))
    rows["kind"] = np.where(rows.a * rows.b > 0, "like", "unlike")
    rows.to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["demo", "--all", "--data", tmp_path / "rows.csv", "--target", "kind", "--output", tmp_path / "out"]
    arguments += ["--features", 10, "--scheduler", cluster.scheduler_address]  # type: ignore[attr-defined]
    run = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert {score["n_features"] for score in facts["scores"]} == {10}
    assert [score["learner"] for score in facts["scores"]] == learner_keys()[:3]
    picture = Path(facts["picture"])
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert open_dataset(facts["store"]).n_rows == 300


def test_the_demo_speaks_at_once(tmp_path: Path) -> None:
    """The cores are shared with other tests: what comes before the first line is counted in processor time."""
    before, command = resource.getrusage(resource.RUSAGE_CHILDREN), [sys.executable, "-m", "dkl", "demo"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        first = run.stdout.readline() if run.stdout else ""
        run.kill()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "handwritten digits" in first
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3.0


def check_told(lines: list[str], made_rows: tuple[int, ...]) -> None:
    """Real rows with a sentence on them, made rows with another, the picture, and the next command."""
    many = lines.index("")
    real = [line for line in lines[:many] if line.startswith("  ")]
    scores = {line[:18].strip(): float(line[18:].split()[0]) for line in real}
    assert list(scores) == [LINEAR, SVM, TREES, "KernelClassifier"]
    assert scores["KernelClassifier"] > max(scores[LINEAR] + 0.01, scores[TREES] - 0.01)
    assert any(line.startswith("Take ") for line in lines[:many])
    made = [line[20:].split() for line in lines[many:] if line.startswith((f"  {WAVES}", f"  {TREES}"))]
    assert [words[0] for words in made] == [f"{rows:,}" for rows in (*made_rows, *made_rows)]
    # of a smooth law waves err on fewer rows than steps do, however many rows there are
    assert float(made[-1][-1]) < float(made[len(made_rows) - 1][-1])
    assert lines[-4].startswith(f"On {made_rows[-1]:,} rows of this law {WAVES} err on")
    held = re.match(r"Their process held (\d+) MB at most", lines[-3])
    assert held is not None
    assert 100.0 < float(held[1]) <= 400.0
    assert lines[-2].startswith("picture: ")


@pytest.mark.slow
@pytest.mark.usefixtures("little_work")
def test_the_demo_ends_with_what_to_take_and_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dkl.demo.MADE_ROWS", (1_000, 2_000))
    monkeypatch.setattr("dkl.demo.SVM_ROWS", (200, 400, 800))
    monkeypatch.setattr("dkl.demo.TESTED", 5_000)
    half = [values[::2] for values in load_digits(return_X_y=True)]
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda **options: half)
    run = CliRunner().invoke(app, ["demo"])
    assert run.exit_code == 0, run.output
    lines = [line.rstrip() for line in run.stdout.splitlines()]
    check_told(lines, (1_000, 2_000))
    assert (tmp_path / "dkl-demo" / "dkl-demo.png").read_bytes().startswith(b"\x89PNG")
    following = shlex.split(lines[-1].removeprefix("Next: "))
    assert following[:2] == ["dkl", "report"]
    assert CliRunner().invoke(app, following[1:]).exit_code == 0
    assert (tmp_path / following[-1]).exists()


@pytest.mark.slow
def test_the_demo_of_300_000_rows_takes_40_seconds_of_a_core(tmp_path: Path) -> None:
    """Through a pipe, as a person who has just installed it would run it; kernels are compiled."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = subprocess.run(
        [sys.executable, "-m", "dkl", "demo"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 40.0
    check_told([line.rstrip() for line in run.stdout.splitlines()], MADE_ROWS)


def test_a_verdict_takes_the_machine_where_nothing_else_does_as_well() -> None:
    def said(**scores: tuple[float, float]) -> str:
        named = {"linear": LINEAR, "own": "K", "trees": TREES}
        results = [Compared(named[name], None, score, 0.0, seconds) for name, (score, seconds) in scores.items()]
        return verdict(Comparison("rows", "accuracy", 400.0, tuple(results)), "K")

    assert said(linear=(0.8, 1.0), own=(0.95, 2.0), trees=(0.9, 1.0)).startswith("Take K: it is ahead")
    assert said(linear=(0.8, 1.0), own=(0.9, 2.0), trees=(0.95, 1.0)).startswith(f"Take the {TREES}: on these rows K")
    assert said(linear=(0.95, 1.0), own=(0.95, 2.0), trees=(0.9, 1.0)).startswith(f"Take the {LINEAR}: nothing gains")
    assert f"{TREES} takes the least time" in said(linear=(0.8, 1.0), own=(0.95, 2.0), trees=(0.95, 1.0))
    assert said(linear=(0.8, 1.0), own=(0.95, 1.0), trees=(0.95, 2.0)).startswith("Take K: it takes the least time")


def test_seconds_of_more_rows_follow_the_power_law_of_few() -> None:
    fits = [Grown(SVM, n_rows, 0.1, 1e-7 * n_rows**2) for n_rows in (1_000, 2_000, 4_000)]
    assert extrapolated_seconds(fits, 300_000) == pytest.approx(9_000.0)


def test_the_quick_demo_runs_on_own_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(200, 3))
    rows = pd.DataFrame(X, columns=list("abc")).assign(y=X[:, 0] * X[:, 1])
    rows.to_csv(tmp_path / "rows.csv", index=False)
    arguments = ["demo", "--data", "rows.csv", "--target", "y", "--output", "out", "--json"]
    run = CliRunner().invoke(app, arguments)
    assert run.exit_code == 0, run.output
    facts = json.loads(run.stdout)
    assert (facts["measure"], facts["scores"][-1]["learner"]) == ("R^2", "KernelRegressor")
    assert facts["reasons"][0].startswith("Features")
    assert dkl.load_model(facts["model"]).score(open_dataset(facts["store"])) > 0.5
    # the next command names all files as the user does, relative to the folder
    assert facts["next"] == "dkl report out/model.zarr out/rows.zarr --output out/report.html"
    refused = CliRunner().invoke(app, ["demo", "--features", "10"])
    assert (refused.exit_code, "--all" in refused.output) == (2, True)


@pytest.mark.parametrize("task", ["regression", pytest.param("classification", marks=pytest.mark.slow)])
def test_every_learner_is_compared_and_those_of_classes_are_left_out_where_targets_are_numbers(
    tmp_path: Path, task: str
) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    numbers = X[:, 0] + X[:, 1] ** 2
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, numbers if task == "regression" else numbers > 1.0)
    found = compare(dataset.split({"train": 0.8, "test": 0.2}), n_features=(10,))
    assert found.measure == ("R^2" if task == "regression" else "accuracy")
    of_classes = {"posterior", "landmarks"} if task == "regression" else set()
    assert set(found.learners) == set(learner_keys()) - of_classes


def test_rows_without_a_target_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n3,4\n")
    run = CliRunner().invoke(app, ["demo", "--data", str(tmp_path / "rows.csv"), "--output", str(tmp_path)])
    assert run.exit_code == 1
    assert "--target NAME" in run.stderr


def test_a_picture_without_matplotlib_is_a_clear_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    display = ComparisonDisplay([10], {"one": {"random": [0.5]}})
    with pytest.raises(ImportError, match=r"pip install 'dkl\[plots\]'"):
        display.save(tmp_path / "picture.png")


def test_the_picture_has_a_panel_a_setting_and_a_line_a_learner() -> None:
    pytest.importorskip("matplotlib")
    lines = {"RandomFeatures": [0.8, 0.9], "AlignedFeatures": [0.85, 0.95]}
    display = ComparisonDisplay([10, 20], {"one": lines, "other": lines}, measure="accuracy", baseline="RandomFeatures")
    axes = display.plot().axes_
    assert [len(panel.get_lines()) for panel in axes] == [2, 2]
    np.testing.assert_array_equal(axes[1].get_lines()[1].get_ydata(), [0.85, 0.95])
    importlib.import_module("matplotlib.pyplot").close("all")


@pytest.mark.slow
def test_the_quickstart_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[1] / "examples" / "quickstart.py"
    namespace: dict[str, object] = {"__name__": "quickstart"}
    exec(compile(example.read_text(encoding="utf-8"), str(example), "exec"), namespace)
    namespace["main"]()  # type: ignore[operator]
    printed = capsys.readouterr().out
    assert float(printed.partition("test accuracy ")[2][:5]) > 0.9
