"""The report on a fitted model: what it says is so, and its hash is that of what was learned."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import psutil
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from typer.testing import CliRunner
from typer.testing import Result as Run

import dkl
from dkl.cli.app import app
from dkl.data.dataset import Dataset
from dkl.errors import StoreError
from dkl.events import Event
from dkl.model_io import content_hash

MODEL = dkl.KernelClassifier(
    dkl.MarginFeatures(n_features=8, random_state=0, scaling="standard"),
    loss="squared_hinge",
    solver="newton",
    random_state=0,
)


def rows(seed: int = 0, n: int = 240) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, 3))
    return X, np.where(X[:, 0] * X[:, 1] > 0.0, "yes", "no")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Dataset, Any, list[Event]]:
    """A folder with a store and a saved model, the rows, the model, and the events of its fit."""
    folder = tmp_path_factory.mktemp("report")
    stored = dkl.create_dataset(folder / "rows.zarr", *rows(), rows_a_block=60).split({"train": 0.75, "test": 0.25})
    events: list[Event] = []
    model = clone(MODEL).set_params(progress=events.append, features__progress=events.append).fit(stored["train"])
    model.save(folder / "model.zarr")
    return folder, stored, model, events


def test_names_of_columns_and_labels_control_no_terminal(tmp_path: Path) -> None:
    """The page, what explains a model, what describes its rows, and the shell write them as Python does in source."""
    names = ["\x1b[31mred", "turned \u202e", "\x9b31m", "two\nlines \U0001f469\u200d\U0001f52c"]
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(120, 4)), columns=names)
    y = np.where(X[names[0]] > 0.0, "\x1b]0;owned\x07", "no")
    ds = dkl.create_dataset(tmp_path / "rows.zarr", X, y)
    model = dkl.KernelClassifier("steps", n_features=8, random_state=0).fit(ds)
    model.save(tmp_path / "model.zarr")
    said = [
        dkl.report(model, ds).text(verbose=True),
        *map(repr, dkl.explain.effects(model, ds)),
        repr(dkl.explain.importance(model, ds)),
        repr(dkl.explain.contributions(model, X.iloc[:1], ds)),
        repr(dkl.explain.partial_dependence(model, ds, names[0])),
        str(ds.describe()),
        repr(dkl.drift(ds, ds)),
        *(
            CliRunner().invoke(app, [*command, str(tmp_path / "rows.zarr")]).output
            for command in (["info"], ["score", str(tmp_path / "model.zarr")], ["report", str(tmp_path / "model.zarr")])
        ),
    ]
    assert not [text for text in said if {"\x1b", "\x9b", "\x07", "\u202e"} & set(text)]
    assert all(any(name in text for text in said) for name in (r"\x1b[31mred", r"turned \u202e", names[3]))


def test_the_page_says_what_the_fit_read_and_what_the_model_scores(fitted: Any) -> None:
    folder, stored, model, events = fitted
    facts = dkl.report(str(folder / "model.zarr"), stored).facts
    ended = [event.detail for event in events if event.kind == "finished" and "cache_hits" in event.detail]
    assert facts["work"]["passes"] == len(ended) > 3
    assert facts["work"]["bytes read"] == sum(detail["bytes"] for detail in ended) > 0
    assert [name for name in facts["work"] if "memory" in name] == [
        "memory that this process grew by (bytes, with compiled code)"
    ]
    assert facts["data"]["fingerprint"] == stored["train"].fingerprint
    assert (facts["data"]["rows"], facts["data"]["columns"]) == stored["train"].shape
    assert facts["data"]["classes"] == dict(zip(["no", "yes"], stored["train"].class_weights, strict=True))
    assert {name: one["accuracy"] for name, one in facts["scores"].items()} == pytest.approx(
        {name: model.score(stored[name]) for name in ("train", "test")}
    )
    test = stored["test"]
    truth, answered = test.y.compute(), np.asarray(model.predict(test))
    for label in ("no", "yes"):
        for other in ("no", "yes"):
            count = np.sum((truth == label) & (answered == other))
            assert facts["errors"]["confusion"][label][other] == count
    assert facts["scores"]["test"]["baseline"]["accuracy"] < 0.7 < facts["scores"]["test"]["accuracy"]
    assert set(facts["importance"]) == {"column 0", "column 1", "column 2"}
    assert facts["curve"]["n_features"][-1] == 8
    assert (facts["model"]["ended"], facts["model"]["linear model ended"]) == (model.features_.message_, model.message_)
    assert facts["bounds"]["none"] == model.features_.bounds_.why_none


def test_a_split_whose_rows_were_all_dropped_has_no_score(tmp_path: Path) -> None:
    stored = dkl.create_dataset(tmp_path / "rows.zarr", *rows(), rows_a_block=60).split({"train": 0.75, "test": 0.25})
    emptied = stored.drop(np.flatnonzero(~np.isin(np.arange(240), stored["train"].row_id.compute())))
    model = dkl.KernelClassifier("random", epochs=1, random_state=0).fit(emptied["train"])
    assert dkl.report(model, emptied).facts["scores"]["test"] == {"rows": 0}
    with pytest.raises(ValueError, match="has no rows to score"):
        model.score(emptied["test"])


def test_bounds_are_those_of_the_features() -> None:
    learner = dkl.AlignedFeatures(n_candidates=40, n_features=8, random_state=0).fit(*rows())
    bounds = dkl.report(learner).facts["bounds"]
    assert [one["says"] for one in bounds.values()] == [repr(one) for one in learner.bounds_]


@pytest.mark.parametrize("features", [dkl.StepFeatures(n_features=8), dkl.NystromFeatures(n_features=8)], ids=repr)
def test_features_of_every_kind_have_a_page(features: Any) -> None:
    model = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", random_state=0).fit(*rows())
    facts = dkl.report(model).facts["model"]
    assert facts["features"] == type(features).__name__
    assert facts.get("family", "none").startswith(("none", "Matern(nu=0.5"))


def test_two_people_get_one_hash_for_one_fit_and_another_for_any_change(fitted: Any) -> None:
    folder, stored, model, _ = fitted
    page = dkl.report(model)
    assert dkl.report(folder / "model.zarr").hash == page.hash
    with dask.config.set(scheduler="synchronous"):
        again = dkl.report(clone(MODEL).fit(stored["train"]))
    assert again.facts["hash"] == page.facts["hash"]
    other = dkl.report(clone(MODEL).set_params(random_state=1).fit(stored["train"])).facts["hash"]
    assert other["rows"] == page.facts["hash"]["rows"]
    assert other["settings and version"] != page.facts["hash"]["settings and version"]
    assert other["fit"] != page.hash


def test_one_changed_bit_of_what_was_learned_changes_the_hash(fitted: Any) -> None:
    model = dkl.load_model(fitted[0] / "model.zarr")
    before = content_hash(model)
    model.linear_.coef_[0, 0] = np.nextafter(model.linear_.coef_[0, 0], np.inf)
    assert content_hash(model) != before


class Tags(HTMLParser):
    """Which tags are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_text_html_and_json_say_the_same(fitted: Any, tmp_path: Path) -> None:
    _, stored, model, _ = fitted
    page = dkl.report(model, stored)
    for suffix in (".txt", ".html", ".json"):
        page.write(tmp_path / f"page{suffix}")
    assert json.loads((tmp_path / "page.json").read_text()) == page.facts
    html, text = (tmp_path / "page.html").read_text(), (tmp_path / "page.txt").read_text()
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    for said in (page.hash, str(stored["train"].n_rows), "duality_gap", "scikit-learn"):
        assert said in html
        assert said in text
    assert len(text.splitlines()) < 120


@pytest.mark.usefixtures("little_work")
def test_a_page_shows_scores_errors_and_importance_first_in_one_file(fitted: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    _, stored, model, _ = fitted
    html = dkl.report(model, stored).to_html()
    # two pictures, inline: no network is asked
    assert html.count("<img alt=") == html.count("src='data:image/png;base64,") == 2
    assert "http" not in html
    order = ["How good it is", "What its errors look like", "What it goes by", "<details>", "<h2>hash</h2>"]
    assert [html.index(part) for part in order] == sorted(html.index(part) for part in order)
    score = dkl.report(model, stored).facts["scores"]["test"]
    low, high = score["intervals"]["accuracy"]
    assert f"<td>{low:.4g} to {high:.4g}</td><td>{score['baseline']['accuracy']:.4g}</td>" in html
    chosen = dkl.KernelClassifier(effort="fast", random_state=0).fit(*rows())
    page = dkl.report(chosen)
    assert page.facts["chosen"]["Features"] in chosen.reasons_[0]
    short = page.facts["chosen"]["in short"]
    assert short.startswith(chosen.summary_.removesuffix(")."))
    assert short in repr(page)
    assert chosen.reasons_[0].partition(": ")[2] not in repr(page)
    assert chosen.reasons_[0].partition(": ")[2] in page.text(verbose=True)
    assert "What was chosen, and why" in page.to_html()
    numbers = dkl.create_dataset(tmp_path / "numbers.zarr", rows()[0], rows()[0][:, 0])
    regressor = dkl.KernelRegressor("random", random_state=0).fit(numbers)
    facts = dkl.report(regressor, numbers).facts
    errors = np.abs(rows()[0][:, 0] - np.asarray(regressor.predict(numbers)))
    assert facts["errors"]["90% of the errors are below"] == pytest.approx(np.quantile(errors, 0.9))


def test_rows_that_changed_since_the_fit_are_refused(tmp_path: Path) -> None:
    model = clone(MODEL).fit(dkl.create_dataset(tmp_path / "rows.zarr", *rows()))
    other = dkl.create_dataset(tmp_path / "rows.zarr", *rows(seed=1), overwrite=True)
    with pytest.raises(StoreError, match=r"rows\.zarr' has changed since the fit: its fingerprint is .*fit the model"):
        dkl.report(model, other)


def test_what_cannot_be_reported_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        dkl.report(clone(MODEL))
    learner = dkl.RandomFeatures(n_features=4, random_state=0).fit(rows()[0])
    with pytest.raises(ValueError, match="RandomFeatures maps rows and predicts nothing"):
        dkl.report(learner, dkl.create_dataset(tmp_path / "rows.zarr", *rows()))
    with pytest.raises(ValueError, match=r"page\.pdf'; its name must end in \.html, \.json or \.txt"):
        dkl.report(learner).write("page.pdf")


def dkl_report(*arguments: object) -> Run:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_command_prints_the_page_and_writes_it(fitted: Any, tmp_path: Path) -> None:
    folder, stored, model, _ = fitted
    page = tmp_path / "page.html"
    run = dkl_report(folder / "model.zarr", folder / "rows.zarr", "--output", page, "--json")
    assert run.exit_code == 0, run.output
    assert json.loads(run.stdout) == dkl.report(model, stored).facts
    assert page.read_text().startswith("<!doctype html>")
    assert "exists" in dkl_report(folder / "model.zarr", "--output", page).stderr
    assert dkl_report(folder / "model.zarr").stdout.startswith("model\n  estimator")


def test_the_memory_of_a_fit_is_its_own_and_within_what_was_promised(tmp_path: Path) -> None:
    """What the process held before does not count, and a fit whose code has been compiled keeps the promise."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(100_000, 20)).astype(np.float32)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, X[:, 0] > 0)
    features, limit = dkl.RandomFeatures(n_features=100), psutil.Process().memory_info().rss + (512 << 20)
    model = dkl.KernelClassifier(features, epochs=1, random_state=0, memory_limit=limit)
    model.fit(stored)
    ballast = np.ones(40 << 20)
    del ballast
    origin = model.fit(stored).provenance_
    assert 0 < origin.promised_bytes <= 512 << 20
    assert origin.used_bytes <= origin.promised_bytes
    work = dkl.report(model).facts["work"]
    assert [value for name, value in work.items() if name.startswith("memory")] == [origin.used_bytes]


def test_long_names_of_columns_are_shortened_wherever_results_are_printed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"n" * 10_000 + " end": rng.normal(size=120), "other": rng.normal(size=120)})
    name, y = rows.columns[0], rows.iloc[:, 0] ** 2
    store = dkl.create_dataset(tmp_path / "rows.zarr", rows, y)
    model = dkl.KernelRegressor("random", n_features=20, random_state=0).fit(rows, y)
    stepped = dkl.KernelRegressor("steps", n_features=20, random_state=0).fit(rows, y)
    shown = {
        "drift": repr(dkl.drift(rows, rows)),
        "drift in a notebook": dkl.drift(rows, rows)._repr_html_(),
        "importance": repr(dkl.explain.importance(model, rows)),
        "contributions": repr(dkl.explain.contributions(model, rows[:1], rows)),
        "dependence": repr(dkl.explain.partial_dependence(model, rows, [name])),
        "effects": "\n".join(map(repr, dkl.explain.effects(stepped, rows))),
        "report": repr(dkl.report(model, store)),
    }
    for what, text in shown.items():
        assert "n" * 39 + "…" in text, what
        assert "nnnn end" in text, what
        assert "n" * 60 not in text, what
    assert name in [column.name for column in dkl.drift(rows, rows).columns]
