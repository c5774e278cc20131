"""The suite of tables: splits and figures are what their definitions say, a run goes on where it was broken off."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import runpy
import sys
from dataclasses import replace
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.forks import FORKS

FOLDERS = [Path(__file__).parents[1] / "examples" / part for part in ("papers", "benchmarks", "benchmarks/tables")]


@pytest.fixture(autouse=True)
def siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(folder)


@pytest.fixture
def forked_fits(forked_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of fits are forked from one that has imported what they need, which each would import for seconds."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: FORKS)


@pytest.fixture
def suite() -> dict[str, Any]:
    return runpy.run_path(str(FOLDERS[-1] / "suite.py"), run_name="example")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three small sets with texts and gaps: numbers, labels, and a single class by time."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.normal(size=(200, 3)), columns=["a", "b", "target"]).astype({"b": np.float32})
    frame["text"] = generator.choice(["x", "y", "z"], 200)
    frame["target"] += 3 * frame["a"] + (frame["text"] == "x")
    frame.loc[::9, "a"], frame.loc[::7, "text"] = np.nan, None
    labels = frame.assign(target=np.where(frame["target"] > 0, "yes", "no"))
    when = pd.Timestamp("2020-01-01") + pd.to_timedelta(generator.integers(0, 20, 200), unit="D")
    tables = {"numbers": frame, "labels": labels, "timed": frame.assign(when=when, target="same")}
    info = {name: {"target": "target", "task": "classification", "split": None, "rows": 200} for name in tables}
    info["numbers"]["task"], info["timed"]["split"] = "regression", "time:when"
    data = tmp_path / "data"
    data.mkdir()
    for name, table in tables.items():
        table.to_parquet(data / f"{name}.parquet")
    (data / "sets.json").write_text(json.dumps(info))
    return data


def test_splits_are_those_that_the_rows_define(suite: dict[str, Any], folder: Path) -> None:
    """A quarter drawn by the seed; by time the last quarter, equal times in the order of the file."""
    sets = suite["read_sets"](folder)
    frame = pd.read_parquet(folder / "numbers.parquet")
    for seed in range(3):
        rows = sets["numbers"].split(seed)
        test = set(np.random.default_rng(seed).permutation(200)[:50].tolist())
        assert rows.y_test.tolist() == [frame["target"][i] for i in range(200) if i in test]
        assert rows.y.tolist() == [frame["target"][i] for i in range(200) if i not in test]
        assert list(rows.X) == ["a", "b", "text"]
    frame = pd.read_parquet(folder / "timed.parquet")
    order = sorted(range(200), key=lambda i: (frame["when"][i], i))
    rows = sets["timed"].split(0)
    pd.testing.assert_frame_equal(rows.X_test, frame.drop(columns="target").iloc[order[150:]].reset_index(drop=True))
    assert list(sets["timed"].seeds(5)) == [0]
    assert list(sets["labels"].seeds(5)) == [0, 1, 2, 3, 4]


def test_standard_errors_and_signs_are_those_of_their_definitions() -> None:
    from table_page import jackknife_error, sign_test, standard_error

    values = [0.3, -0.1, 0.25, 0.0, 0.4]
    mean = sum(values) / 5
    assert standard_error(values) == pytest.approx(math.sqrt(sum((v - mean) ** 2 for v in values) / 4) / math.sqrt(5))
    assert math.isnan(standard_error([1.0]))
    # of a mean of blocks, the jackknife is the standard error of that mean
    assert jackknife_error([(sum(values) - v) / 4 for v in values]) == pytest.approx(standard_error(values))
    for ahead, behind in product(range(8), repeat=2):
        n = ahead + behind
        tail = sum(math.comb(n, k) for k in range(min(ahead, behind) + 1)) / 2**n
        assert sign_test(ahead, behind) == pytest.approx(min(1.0, 2 * tail))


def test_figures_are_those_of_their_definitions() -> None:
    from table_fits import BLOCKS, Predicted

    generator = np.random.default_rng(0)
    y, shares = generator.integers(0, 2, 60), generator.uniform(0.01, 1, 60)
    ranking = np.round(generator.normal(size=60) + y, 1)
    found = Predicted(y, (ranking > 0.5).astype(int), ranking=ranking, shares=shares).figures()
    pairs = [(a > b) + 0.5 * (a == b) for a in ranking[y == 1] for b in ranking[y == 0]]
    assert found["auc"] == pytest.approx(sum(pairs) / len(pairs))
    assert found["log_loss"] == pytest.approx(-sum(math.log(share) for share in shares) / 60)
    assert found["accuracy"] == pytest.approx(
        sum(int(r > 0.5) == label for r, label in zip(ranking, y, strict=True)) / 60
    )
    numbers = Predicted(shares, ranking, deviation=2.0)
    errors = [(f - g) / 2.0 for f, g in zip(ranking, shares, strict=True)]
    expected = {"rmse": math.sqrt(sum(e * e for e in errors) / 60), "mae": sum(map(abs, errors)) / 60}
    assert numbers.figures() == pytest.approx(expected)
    left = numbers.without_blocks()["mae"]
    assert len(left) == BLOCKS
    assert left[1] == pytest.approx(sum(abs(e) for i, e in enumerate(errors) if i not in (3, 4, 5)) / 57)


def test_a_class_that_no_training_row_had_is_given_nothing() -> None:
    from table_fits import predicted
    from table_sets import Rows

    class Certain:
        classes_ = np.array(["a", "b"], object)

        def predict(self, X: Any) -> np.ndarray:
            return np.full(len(X), "a", object)

        def predict_proba(self, X: Any) -> np.ndarray:
            return np.tile([0.75, 0.25], (len(X), 1))

    rows = Rows(pd.DataFrame(), np.array(["a", "b"]), pd.DataFrame({"x": [1, 2, 3]}), np.array(["a", "b", "c"]))
    found = predicted(Certain(), rows, has_numbers=False)
    assert found.shares is not None
    assert found.shares.tolist() == [0.75, 0.25, 0.0]
    assert found.figures()["accuracy"] == pytest.approx(1 / 3)


def line(
    name: str, seed: int, arm: str, accuracy: float | None, status: str = "refused", **more: Any
) -> dict[str, Any]:
    """A line of results by hand."""
    known = {"set": name, "seed": seed, "arm": arm, "n_rows": 150, "n_columns": 3, "version": "1", "digest": ""}
    if accuracy is None:
        return {**known, "status": status, "message": "no such rows,\nplease"}
    return {**known, "status": "ok", "figures": {"accuracy": accuracy}, "seconds": 2.0, "megabytes": 10.0, **more}


def paged(lines: list[dict[str, Any]], names: list[str], n_seeds: int, arms: list[str], by_time: str = "") -> str:
    from table_page import page
    from table_sets import TableSet

    tables = [TableSet(name, Path(name), "y", "classification", "when" if name == by_time else None) for name in names]
    return page({(one["set"], one["seed"], one["arm"]): one for one in lines}, tables, arms, n_seeds)


def test_the_page_has_differences_on_the_same_splits_ranks_and_signs() -> None:
    scores = {
        "one": {"lightgbm": [0.8, 0.7], "dkl": [0.85, 0.72], "linear": [0.6, 0.6]},
        "two": {"lightgbm": [0.9, 0.9], "dkl": [0.9, 0.9], "linear": [0.95, 0.91]},
        "three": {"lightgbm": [0.9, 0.8], "dkl": [None, 0.9], "linear": [0.5, 0.5]},
    }
    lines = [line(n, s, a, score) for n, of in scores.items() for a, both in of.items() for s, score in enumerate(both)]
    text = paged(lines, list(scores), 2, ["lightgbm", "linear", "dkl"])
    gains = [0.05, 0.02]
    error = abs(gains[0] - gains[1]) / 2
    assert f"| 0.7850 (+0.0350 ± {error:.4f}), 2.00 s, 10 MB |" in text
    # the split that dkl refused is out of its mean, its difference, and its ranks
    assert "| 0.9000 (+0.1000), 2.00 s, 10 MB, 1 of 2 splits |" in text
    assert "- dkl on three, refused: no such rows, please" in text
    # ranks: one dkl, lightgbm, linear; two linear, then a tie; three lightgbm, linear, dkl without a score
    assert "| lightgbm | 1.83 | 2 |  |" in text
    assert "| dkl | 2.17 | 2.5 | three (-2 of -1 ranks); +0.50 without it |" in text
    assert "| linear | 2.00 | 2 | two (+1.5 of -0.5 ranks); -1.00 without it |" not in text
    # signs: dkl ahead on one and on three, where there is one split only, level on two
    assert "| dkl | 3 of 3 | 2 : 0 | 0.500 | 1, 1, 0 |" in text
    assert "| linear | 3 of 3 | 1 : 2 | 1.000 | 1, 0, 2 |" in text


def test_an_arm_that_is_left_out_of_a_set_is_ranked_on_the_others() -> None:
    arms = ["lightgbm", "rbf-svm"]
    lines = [line(name, 0, "lightgbm", 0.8) for name in ("small", "large")]
    lines += [line("small", 0, "rbf-svm", 0.9), line("large", 0, "rbf-svm", None, "left out")]
    text = paged(lines, ["small", "large"], 1, arms)
    assert "| lightgbm | 1.00 | 1 |  |" in text
    assert "| rbf-svm | 1.00 | 1 | small (+1 of +1 ranks); +0.00 without it |" in text
    assert "mean rank on 1 of 1 sets" in text


def test_a_single_split_by_time_has_the_error_of_its_blocks() -> None:
    from table_page import jackknife_error

    left = {"lightgbm": [0.8, 0.7, 0.9], "dkl": [0.9, 0.75, 0.9]}
    lines = [line("t", 0, arm, np.mean(of), without_block={"accuracy": of}) for arm, of in left.items()]
    error = jackknife_error([0.1, 0.05, 0.0])
    assert f"(+0.0500 ± {error:.4f})" in paged(lines, ["t"], 5, ["lightgbm", "dkl"], by_time="t")


@pytest.mark.filterwarnings("ignore::UserWarning")  # interpret's pictures do not show missing values
@pytest.mark.parametrize(
    "arm",
    [
        "lightgbm",
        "linear",
        *(
            pytest.param(arm, marks=pytest.mark.slow)
            for arm in ("lightgbm-tuned", "hist-boosting", "rbf-svm", "ebm", "dkl", "catboost")
        ),
    ],
)
def test_every_arm_takes_texts_gaps_and_labels(arm: str) -> None:
    from table_arms import ARMS, Fit
    from table_fits import predicted, small_tables

    pytest.importorskip(ARMS[arm].module)
    # those with texts and gaps
    for rows, has_numbers in islice(small_tables(), 3):
        fit = Fit(has_numbers, budget=0.2, is_warming=arm == "ebm")
        found = predicted(ARMS[arm].make(fit).fit(rows.X, rows.y), rows, has_numbers).figures()
        if arm != "ebm":
            assert found["rmse"] < 0.8 if has_numbers else found["accuracy"] > 0.6
        assert ("auc" in found) == (not has_numbers and len(set(rows.y)) == 2)


def test_columns_are_days_categories_up_to_a_limit_and_numbers() -> None:
    from table_arms import OTHER, Columns

    days = pd.to_datetime(["1970-01-02", None, "1970-01-11", "1970-01-01"])
    frame = pd.DataFrame({"day": days, "text": ["a", "b", "a", None], "flag": [True, False, True, True]})
    found = Columns().fit(frame).transform(frame)
    np.testing.assert_array_equal(found["c0"], [1.0, np.nan, 10.0, 0.0])
    assert list(found["c1"].cat.categories) == ["a", "b"]
    assert found["c1"].isna().tolist() == [False, False, False, True]
    assert found["c2"].tolist() == [1.0, 0.0, 1.0, 1.0]
    texts = pd.DataFrame({"text": ["a", "b", "a", "c", "a", None]})
    limited = Columns(most_categories=2).fit(texts)
    assert limited.transform(texts)["c0"].tolist()[:5] == ["a", OTHER, "a", OTHER, "a"]
    new = limited.transform(pd.DataFrame({"text": ["new", None]}))
    assert new["c0"].tolist()[0] == OTHER
    assert new["c0"].isna().tolist() == [False, True]


@pytest.mark.usefixtures("forked_fits")
def test_a_run_goes_on_where_it_was_broken_off(suite: dict[str, Any], folder: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "results.jsonl", tmp_path / "results.md"
    given = ["--data", str(folder), "--arms", "linear", "--seeds", "2", "--out", str(out), "--page", str(page)]
    suite["main"](given)
    lines = [json.loads(one) for one in out.read_text().splitlines()]
    keys = {(one["set"], one["seed"]): one["status"] for one in lines}
    # one class is what a logistic regression refuses
    fitted = dict.fromkeys(product(("numbers", "labels"), (0, 1)), "ok")
    assert keys == {**fitted, ("timed", 0): "refused"}
    assert all(one["seconds"] > 0 and one["n_test"] == 50 for one in lines if one["status"] == "ok")
    text = page.read_text()
    assert "| numbers, 150 x 3 | RMSE |" in text
    assert "| labels, 150 x 3 | AUC |" in text
    assert "- linear on timed, refused: ValueError: " in text
    # a line that was only half written is fitted again, and nothing else
    written = out.read_text().splitlines(keepends=True)
    out.write_text("".join(written[:-2]) + written[-2][:40])
    assert len(suite["Results"](out).lines) == len(lines) - 2
    out.write_text("".join(written))
    worker = suite["Suite"].run.__globals__["Worker"]
    asked: list[Any] = []

    def measure(self: Any, job: Any) -> dict[str, Any]:
        asked.append((job.table.name, job.seed))
        return of_job(lines, job)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "measure", measure)
        suite["main"](given)
        assert asked == []
        assert page.read_text() == text
        suite["main"]([*given, "--retry"])
        assert asked == [("timed", 0)]
        out.write_text("".join(written[:1]) + written[1][:30])
        suite["main"](given)
        assert len(asked) == len(lines)
    (folder / "labels.parquet").write_bytes((folder / "numbers.parquet").read_bytes())
    with pytest.raises(SystemExit):
        suite["main"](given)


def of_job(lines: list[dict[str, Any]], job: Any) -> dict[str, Any]:
    return next(one for one in lines if (one["set"], one["seed"]) == (job.table.name, job.seed))


@pytest.mark.usefixtures("forked_fits")
def test_a_fit_that_takes_too_long_fails_alone(folder: Path) -> None:
    from table_fits import Job, Worker
    from table_sets import read_sets

    job = Job(read_sets(folder)["numbers"], 0, "linear")
    with Worker("linear", 0.0) as worker:
        late = worker.measure(job)
        assert (late["status"], late["message"]) == ("failed", "not within 0 s")
        worker.timeout = 120.0
        assert worker.measure(job)["status"] == "ok"
        process = worker.process
        process.kill()
        process.join()
        assert worker.measure(replace(job, seed=1))["message"].startswith("the process ended")


def test_what_is_tuned_has_the_seconds_that_ours_took(suite: dict[str, Any], tmp_path: Path) -> None:
    results = suite["Results"](tmp_path / "results.jsonl")
    assert suite["budget"]("one", 0, results) == 5.0
    results.add({**line("one", 0, "lightgbm", 0.8), "seconds": 2.0})
    assert suite["budget"]("one", 0, results) == 15.0
    results.add({**line("one", 0, "dkl", 0.8), "seconds": 7.0})
    assert suite["budget"]("one", 0, results) == 7.0


def changed(folder: Path, name: str, **info: Any) -> None:
    known = json.loads((folder / "sets.json").read_text())
    known[name].update(info)
    (folder / "sets.json").write_text(json.dumps(known))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda data: (data / "sets.json").unlink(), "there is no .*sets.json"),
        (lambda data: (data / "sets.json").write_text("{"), "is not JSON"),
        (lambda data: (data / "sets.json").write_text("[]"), "must hold an object"),
        (
            lambda data: (data / "sets.json").write_text('{"a": {"task": 1}}'),
            "set 'a': 'target', 'split' must be given",
        ),
        (lambda data: changed(data, "labels", task="ranking"), "task is 'ranking'; it must be one of classification"),
        (lambda data: changed(data, "labels", split="group:a"), "split is 'group:a'; it must be null or 'time:COLUMN'"),
        (lambda data: changed(data, "labels", score="rmse"), "score is 'rmse'; for classification there are accuracy"),
        (lambda data: (data / "labels.parquet").unlink(), "there is no .*labels.parquet"),
    ],
)
def test_a_folder_that_is_none_is_refused(
    suite: dict[str, Any], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Any, told: str
) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=told):
        suite["read_sets"](folder)
    with pytest.raises(SystemExit):
        suite["main"](["--data", str(folder), "--out", str(tmp_path / "out"), "--page", str(tmp_path / "page")])
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "page").exists()


def test_a_target_that_is_not_there_is_refused(suite: dict[str, Any], folder: Path) -> None:
    changed(folder, "labels", target="nothing")
    with pytest.raises(ValueError, match=r"has no column 'nothing', which sets.json names for set 'labels'"):
        suite["read_sets"](folder)["labels"].split(0)
    changed(folder, "labels", target="text")
    with pytest.raises(ValueError, match="the target 'text' is missing in row 0"):
        suite["read_sets"](folder)["labels"].split(0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--arms", "dkl,forest"], "--arms has 'forest'; there are lightgbm, "),
        (["--sets", "nobody"], "--sets has 'nobody'; there are numbers, labels, timed"),
        (["--seeds", "0"], "--seeds is 0; it must be at least 1"),
        (["--score", "speed"], "invalid choice"),
        (["--out", "{folder}/sets.json"], "line 1 of .*sets.json is not one of this suite's"),
    ],
)
def test_options_that_are_none_are_refused(
    suite: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    (folder / "sets.json").write_text((folder / "sets.json").read_text() + "\n")
    with pytest.raises(SystemExit):
        suite["main"](["--data", str(folder), *(option.format(folder=folder) for option in options)])
    assert re.search(told, capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("tables/interval_coverage", ("--data", "{folder}", "--sets", "{numbers}", "--splits", "2", "--rows", "120")),
        ("tables/order_of_kinds", ("--data", "{folder}", "--out", "{folder}/kinds.jsonl")),
        ("tables/counts", ("--data", "{folder}", "--sets", "{numbers}", "--ids", "")),
        ("drift_power", ("--rows", "60", "--repetitions", "2", "--hyppo", "0", "--cases", "one of")),
    ],
)
def test_measurements_of_their_own_make_a_table(
    script: str, options: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    if script.endswith("counts"):
        pytest.importorskip("lightgbm")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200), "b": rng.choice(["x", "y"], 200)})
    frame["n"] = rng.poisson(np.exp(0.5 * frame.a)).astype(float)
    frame.to_parquet(tmp_path / "counted.parquet")
    told = {"counted": {"target": "n", "task": "count", "split": None}}
    (tmp_path / "sets.json").write_text(json.dumps(told))
    filled = [option.format(folder=tmp_path, numbers="counted") for option in options]
    monkeypatch.setattr(sys, "argv", [script, *filled])
    path = Path(__file__).parents[1] / "examples" / "benchmarks" / f"{script}.py"
    runpy.run_path(str(path), run_name="__main__")
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) > 2
    assert all(line.count("|") == table[0].count("|") for line in table)
