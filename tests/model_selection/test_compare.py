"""dkl.compare: every learner on the same rows, scored as its own fit scores, kept when it is broken off."""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from distributed import Client
from scipy import sparse
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.data.coerce import as_dataset
from dkl.errors import StoreError
from dkl.linear.judge import Folds
from dkl.model_selection.comparison import Compared, Comparison, entries_of, exact_machine, learners_for
from dkl.model_selection.folds import fold_views
from dkl.model_selection.rivals import LINEAR, SVM, TREES, rivals
from dkl.registry import learner_classes
from tests.test_notebooks import run_here

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUGH = dkl.KernelClassifier(epochs=2)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    return load_iris(return_X_y=True)


def small(rows: tuple[np.ndarray, np.ndarray], **changed: Any) -> Comparison:
    """Two learners at two sizes, drawn from small pools."""
    features = {
        "random": dkl.RandomFeatures(scaling="standard"),
        "aligned": dkl.AlignedFeatures(n_candidates=100, scaling="standard"),
    }
    given = {"learners": features, "n_features": (10, 30), "machine": ROUGH, "random_state": 0, **changed}
    return dkl.compare(*rows, **given)


def scored(comparison: Comparison) -> list[tuple[Any, ...]]:
    return [(one.learner, one.n_features, one.score, one.deviation, one.error) for one in comparison.results]


def test_every_learner_that_has_a_meaning_takes_part() -> None:
    assert list(learners_for("classification")) == [*learner_classes(), "tuned"]
    left_out = set(learner_classes()) - set(learners_for("regression"))
    assert left_out == {"posterior", "landmarks"}
    numbers = as_dataset(np.arange(20.0).reshape(10, 2), np.arange(10.0) + 0.5)
    for name in left_out:
        with pytest.raises(ValueError, match="class labels"):
            learner_classes()[name]().fit(numbers)


@pytest.mark.usefixtures("little_work")
def test_all_of_them_are_compared_on_numbers() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 2))
    found = dkl.compare(X, X[:, 0] * X[:, 1], n_features=[10], machine=dkl.KernelRegressor(epochs=2), random_state=0)
    assert set(found.learners) == {"auto", *learners_for("regression"), LINEAR, SVM, TREES}
    assert {one.learner for one in found.results if one.n_features is None} == {"auto", LINEAR, SVM, TREES}
    assert found.errors == []
    assert found.measure == "R^2"


def test_rivals_are_those_that_end_in_time_and_take_such_rows() -> None:
    X = np.zeros((10_001, 2))
    assert list(rivals(as_dataset(X, np.arange(10_001) % 2))) == [LINEAR, TREES]
    assert list(rivals(as_dataset(sparse.csr_array(np.eye(20)), np.arange(20) % 2))) == [LINEAR, SVM]
    assert list(rivals(as_dataset(np.eye(20), np.eye(20)[:, :2]))) == [LINEAR]
    stub = SimpleNamespace(task="regression", source=SimpleNamespace(is_sparse=False), n_rows=2**22, n_columns=64)
    assert rivals(stub) == {}


def test_scores_are_those_of_each_fit_by_itself(rows: tuple[np.ndarray, np.ndarray]) -> None:
    found = small(rows, folds=2, machine=None)
    folds = fold_views(as_dataset(*rows), Folds.of(2, 0))
    weights = [fold.test.total_weight for fold in folds]
    for one in found.results:
        features = dkl.RandomFeatures(n_features=one.n_features, scaling="standard", random_state=0)
        if one.learner == "aligned":
            given = {"n_candidates": 100, "n_features": one.n_features, "scaling": "standard", "random_state": 0}
            features = dkl.AlignedFeatures(**given)
        machine = exact_machine("classification").set_params(features=features, random_state=0)
        scores = [machine.fit(fold.train).score(fold.test) for fold in folds]
        assert one.score == pytest.approx(np.average(scores, weights=weights), abs=1e-12)
        assert one.deviation == pytest.approx(np.std(scores), abs=1e-12)
        assert one.seconds > 0.0


def test_rows_to_score_can_be_given(rows: tuple[np.ndarray, np.ndarray]) -> None:
    dataset = as_dataset(*rows).split({"train": 0.7, "test": 0.3})
    found = small((dataset["train"],), test=dataset["test"])
    assert found.n_test == dataset["test"].n_rows
    features = dkl.RandomFeatures(n_features=10, scaling="standard", random_state=0)
    machine = dkl.KernelClassifier(features, epochs=2, random_state=0).fit(dataset["train"])
    assert found.results[0].score == machine.score(dataset["test"])


def test_two_workers_give_the_scores_of_none(rows: tuple[np.ndarray, np.ndarray], cluster: object) -> None:
    alone = small(rows, n_features=10)
    with Client(cluster):
        assert scored(small(rows, n_features=10)) == scored(alone)


def test_a_comparison_that_was_broken_off_goes_on(rows: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    class Stop(BaseException):
        pass

    def stop(event: Any) -> None:
        if event.done == 3:
            raise Stop

    place = str(tmp_path / "scores")
    with pytest.raises(Stop):
        small(rows, checkpoint=place, progress=stop)
    fits = []
    whole = small(rows, checkpoint=place, progress=lambda event: fits.append(event.kind))
    assert fits == ["started", "advanced", "finished"]
    assert scored(whole) == scored(small(rows))
    assert small(rows, checkpoint=place) == whole
    with pytest.raises(StoreError, match="belongs to another run"):
        small(rows, checkpoint=place, n_features=(10, 40))


def test_a_comparison_ends_on_request_with_the_fits_so_far(rows: tuple[np.ndarray, np.ndarray]) -> None:
    def stop(event: Any) -> None:
        if event.done >= 2:
            raise dkl.StopRequested("no time left")

    ended = small(rows, progress=stop)
    assert scored(ended) == scored(small(rows))[:2]
    assert ended.message == "no time left after 2 of 4 fits"
    assert ended.message in repr(ended)


def test_the_categories_of_a_machine_are_those_of_the_compared_rows() -> None:
    rng = np.random.default_rng(0)
    code = rng.integers(0, 12, 600)
    table = pd.DataFrame({"code": code, "x": rng.normal(size=600)})
    machine = exact_machine("classification").set_params(categorical=["code"])
    columns = {"columns": dkl.AlignedFeatures(dkl.Coordinates(), n_candidates=None, n_features=None)}
    found = dkl.compare(table, np.isin(code, [1, 4, 7, 8]), learners=columns, machine=machine, n_features=[40])
    assert found.best.score > 0.95, "a linear model of the code as a number has no better score than its mean"


def test_a_memory_limit_holds_for_every_fit(rows: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(RuntimeError, match="MemoryLimitError"):
        small(rows, n_features=(10,), memory_limit=1_000, rivals=False)


def test_estimators_of_others_are_fitted_once_to_the_same_rows(rows: tuple[np.ndarray, np.ndarray]) -> None:
    logistic = LogisticRegression(C=0.1, max_iter=500)
    found = small(rows, learners={"random": dkl.RandomFeatures(), "logistic": logistic})
    (fold,) = fold_views(as_dataset(*rows), Folds.of(0.2, 0))
    by_hand = logistic.fit(fold.train.X.compute(), fold.train.y.compute())
    (one,) = (one for one in found.results if one.learner == "logistic")
    assert (one.n_features, one.score) == (None, by_hand.score(fold.test.X.compute(), fold.test.y.compute()))
    assert found.display().references["score"] == {"logistic": one.score}
    assert found.cells()[0][-2] == "as it is"


def test_a_learner_that_fails_says_why_and_leaves_the_others(rows: tuple[np.ndarray, np.ndarray]) -> None:
    found = small(rows, learners={"random": dkl.RandomFeatures(), "odd": dkl.RandomFeatures(max_rows=-1)})
    assert found.best.learner == "random"
    assert "max_rows" in found.errors[0]
    assert "max_rows" in repr(found)
    assert list(found.display().scores["score"]) == ["random"]
    with pytest.raises(RuntimeError, match="max_rows"):
        small(rows, learners={"odd": dkl.RandomFeatures(max_rows=-1)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learners": ["nonsense"]}, "expected some of"),
        ({"learners": "random"}, "expected some of"),
        ({"learners": []}, "expected some of"),
        ({"learners": {"random": "random"}}, "no estimator at ['random']"),
        ({"n_features": []}, "whole numbers of at least 1"),
        ({"n_features": [0, 10]}, "whole numbers of at least 1"),
        ({"n_features": 0.5}, "whole numbers of at least 1"),
        ({"folds": 1}, "folds is 1"),
        ({"test": (1, 2)}, "test is a tuple"),
        ({"machine": LogisticRegression()}, "machine is"),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_fit(
    rows: tuple[np.ndarray, np.ndarray], given: dict[str, Any], message: str
) -> None:
    events: list[Any] = []
    with pytest.raises(ValueError) as refusal:
        small(rows, progress=events.append, **given)
    assert message in str(refusal.value)
    assert events == []


def test_pools_grow_with_the_largest_size_and_families_are_shared() -> None:
    entries = entries_of(["aligned", "leverage"], 40, "classification", dkl.Laplacian(2.0), "quantile")
    assert entries["aligned"].n_candidates == 20 * 40
    assert all(entry.family == dkl.Laplacian(2.0) and entry.scaling == "quantile" for entry in entries.values())


def test_as_good_as_the_best_is_within_its_standard_error() -> None:
    """Both formulas against draws of the test rows: the deviation of the score over draws is the standard error."""
    rng = np.random.default_rng(0)
    n = 400
    right = rng.random((4_000, n)) < 0.85
    accuracy = Comparison("", "accuracy", n, (Compared("one", 10, 0.85, 0.0, 1.0),))
    assert accuracy.standard_error == pytest.approx(right.mean(axis=1).std(), rel=0.05)
    signal, noise = rng.normal(size=(2, 4_000, n)) * np.sqrt([[[0.7]], [[0.3]]])
    y = signal + noise
    determined = 1.0 - (noise**2).sum(axis=1) / ((y - y.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    numbers = Comparison("", "R^2", n, (Compared("one", 10, 0.7, 0.0, 1.0),))
    assert numbers.standard_error == pytest.approx(determined.std(), rel=0.05)


def test_advice_names_the_smallest_and_the_fastest_of_those_that_are_as_good() -> None:
    results = (
        Compared("random", 400, 0.9, 0.0, 1.0),
        Compared("aligned", 200, 0.89, 0.0, 3.0),
        Compared("margin", 100, 0.895, 0.0, 9.0),
        Compared("tiny", 10, 0.5, 0.0, 0.1),
    )
    found = Comparison("500 rows", "accuracy", 500.0, results)
    assert found.level == pytest.approx(0.9 - np.sqrt(0.09 / 500))
    assert (found.fewest_features.learner, found.fastest.learner) == ("margin", "random")
    assert (found.seconds_to("aligned"), found.seconds_to("tiny")) == (3.0, np.inf)
    assert found.seconds_to("tiny", 0.4) == 0.1
    assert "margin with 100 features (0.8950 in 9 s)" in repr(found)
    assert "<table" in found._repr_html_()


def test_the_picture_shows_scores_against_size_and_time(rows: tuple[np.ndarray, np.ndarray]) -> None:
    pytest.importorskip("matplotlib")
    found = small(rows)
    by_size, by_time = found.plot().axes_
    assert [line.get_label() for line in by_time.get_lines()] == ["random", "aligned"]
    np.testing.assert_array_equal(by_size.get_lines()[0].get_ydata(), found.scores("random"))
    times = [one.seconds for one in found.results if one.learner == "random"]
    # lines against time never go back
    np.testing.assert_array_equal(by_time.get_lines()[0].get_xdata(), np.sort(times))
    importlib.import_module("matplotlib.pyplot").close("all")


def test_the_command_compares_files_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    arguments = ["compare", tmp_path / "rows.npz", "--target", "y", "--output", tmp_path / "out", "--learner", "random"]
    arguments += ["--features", 10, "--features", 20, "--checkpoint", tmp_path / "scores", "--json"]
    runs = [CliRunner().invoke(app, [str(argument) for argument in arguments]) for _ in range(2)]
    assert [run.exit_code for run in runs] == [0, 0], runs[0].output
    first, second = (json.loads(run.stdout) for run in runs)
    assert first["scores"] == second["scores"]
    assert [one["n_features"] for one in first["scores"]] == [None, None, None, 10, 20]
    assert {one["learner"] for one in first["scores"]} == {LINEAR, SVM, TREES, "random"}
    assert Path(first["picture"]).read_bytes().startswith(b"\x89PNG")
    assert Path(first["table"]).read_text().count("\n") == 6
    shown = CliRunner().invoke(app, [str(argument) for argument in arguments[:-1]])
    assert "fewest features" in " ".join(shown.stdout.split())


def test_the_notebook_runs_in_small() -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    names = run_here("which_learner")
    assert {"dkl chooses", "searched waves", "RBF-SVM", "boosted trees"} <= set(names["found"].learners)
    assert len(pyplot.get_fignums()) == 1
    pyplot.close("all")


def test_the_notebook_shows_what_it_found() -> None:
    """Outputs are of the cells as they stand, in order, without an error, and small."""
    path = EXAMPLES / "which_learner.ipynb"
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert "error" not in kinds
    assert path.stat().st_size < 400_000


@pytest.mark.slow
def test_the_benchmark_measures_each_machine_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = runpy.run_path(str(EXAMPLES / "benchmarks" / "against_others.py"), run_name="example")
    plan = names["Plan"](None, 200, 120.0, True, ("RBF-SVM",))
    text = names["run"](plan, ["breast"], tmp_path)
    cell = json.loads(next(tmp_path.glob("cells*/*.json")).read_text())
    assert 0.0 <= cell["wrong"] < 15.0
    assert cell["processor"] > 0.0
    assert f"**{cell['wrong']:.2f}**" in text
    monkeypatch.setattr("subprocess.run", lambda *given, **options: pytest.fail("a finished cell is measured again"))
    assert names["run"](plan, ["breast"], tmp_path) == text


@pytest.mark.parametrize("machine", ["LightGBM", "RBF-SVM", "xRFM", "dkl margin 500"])
def test_every_machine_of_the_benchmark_learns(machine: str) -> None:
    pytest.importorskip({"LightGBM": "lightgbm", "xRFM": "xrfm"}.get(machine, "sklearn"))
    names = runpy.run_path(str(EXAMPLES / "benchmarks" / "against_others.py"), run_name="example")
    rows = names["tiny"]()
    predicted = names["MACHINES"][machine](rows, True).predict(rows.X_test)
    assert np.mean(predicted == rows.y_test) > 0.8
