"""Free text: directions by scikit-learn's own steps, scores that see no row's own target, and models of both."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

import dkl
from dkl.data.columns import free_text
from dkl.data.columns.free_text import BUCKETS, TextDirections, TextSample, WordDirections
from dkl.data.ingest.encoding import TableEncoding, learn_encoding
from dkl.encodings import sums as sums_module
from dkl.encodings import texts as texts_module
from dkl.encodings.target_means import CategoryFolds, FoldTotals
from dkl.encodings.texts import KEPT, score_weights, with_texts
from dkl.errors import StoreError
from dkl.events import Event
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import run_pass
from dkl.passes.reading import LOADER
from dkl.protocols.records import RowSample

pytestmark = pytest.mark.usefixtures("little_work")

RNG = np.random.default_rng(0)
N = 500


def comments(n: int, vocabulary: int = 40, seed: int = 0) -> tuple[list[str], np.ndarray]:
    """Made comments of 8 to 15 words, two of which shift the log odds by 3; the log odds."""
    rng = np.random.default_rng(seed)
    words = [f"word{number}" for number in range(vocabulary)]
    drawn = [rng.choice(vocabulary, rng.integers(8, 16)) for _ in range(n)]
    texts = [" ".join(words[place] for place in places) for places in drawn]
    return texts, np.array([3.0 * (1 in places) - 3.0 * (2 in places) for places in drawn])


TEXTS, ODDS = comments(N)
FRAME = pd.DataFrame({"x": RNG.normal(size=N), "comment": TEXTS, "kind": RNG.choice(list("abc"), N)})
TARGET = ODDS + FRAME["x"].to_numpy()
SETTINGS: dict[str, Any] = {"features": "random", "n_features": 50, "random_state": 0}


def directions_by_sklearn(texts: list[str], n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers along the directions of words, or pairs, of two texts or more, by scikit-learn's own steps; these."""
    hashing = HashingVectorizer(
        n_features=BUCKETS, ngram_range=(n, n), binary=True, norm=None, alternate_sign=False
    ).transform(texts)
    known = np.flatnonzero(np.bincount(hashing.indices, minlength=BUCKETS) >= 2)
    weights = TfidfTransformer().fit_transform(hashing[:, known])
    reduced = TruncatedSVD(size, random_state=0).fit(weights)
    return reduced.transform(weights), reduced.components_.T


def test_directions_are_those_of_sklearn() -> None:
    encoding = learn_encoding([FRAME])
    (rule,) = [rule for rule in encoding.rules if rule.kind == "text"]
    (made,) = encoding.directions
    texts, start = [TEXTS[i] for i in order_of_sample()], encoding.column_names.index("comment: direction 1")
    for part, size in zip(made.parts, made.sizes, strict=True):
        expected, components = directions_by_sklearn(texts, part.n, size)
        found = encoding.transform(FRAME)[order_of_sample(), start : start + size]
        np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=2e-4)
        np.testing.assert_allclose(np.abs(part.components), np.abs(components), atol=2e-4)
        start += size
    assert rule.output_names == [f"comment: direction {number}" for number in range(1, made.n_raw + 1)]


def order_of_sample() -> np.ndarray:
    """Rows by their hashes: the order of a sample that has all of them."""
    keys = TextSample.of(pa.chunked_array([[str(i) for i in range(N)]]), 0)
    return np.array([int(text) for text in keys.texts.to_pylist()])


@pytest.mark.parametrize("cuts", [[N], [100, 400], [1, 7, 250, 251]])
def test_directions_do_not_depend_on_the_pieces(cuts: list[int]) -> None:
    whole = learn_encoding([FRAME])
    bounds = [0, *cuts, N]
    pieces = [FRAME[first:last] for first, last in pairwise(bounds) if first < last]
    assert learn_encoding(pieces).directions == whole.directions


def test_a_large_column_is_sampled_by_the_hashes_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_text, "SAMPLE_TEXTS", 60)
    whole = TextSample.of(pa.chunked_array([TEXTS]), 0)
    parts = [TextSample.of(pa.chunked_array([TEXTS[first : first + 90]]), first) for first in range(0, N, 90)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert merged.texts.to_pylist() == whole.texts.to_pylist()
    assert len(whole.keys) == 60
    monkeypatch.setattr(free_text, "_SAMPLE_BYTES", 300)
    assert sum(map(len, TextSample.of(pa.chunked_array([TEXTS]), 0).texts.to_pylist())) <= 300


def test_scores_are_ridge_regressions_on_the_other_folds() -> None:
    ds = dkl.create_dataset("memory://texts-scores.zarr", FRAME, TARGET)
    held_out = HeldOut(0.2, 0)
    made = with_texts(ds, held_out, Run())
    folds = CategoryFolds(held_out)(np.arange(N))
    raw = ds.X.compute()
    names = ds.column_names or []
    start = names.index("comment: direction 1")
    z = raw[:, start : start + ds.encoding.directions[0].n_raw].astype(float)
    scores = made.X.compute()[:, made.column_names.index("comment: score")]
    losses = {}
    for factor in (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3):
        found, loss = np.empty(N), 0.0
        for fold in range(6):
            rows = np.isin(folds, [other for other in range(1, 6) if other != fold])
            alpha = factor * (z[rows] ** 2).sum() / z.shape[1]
            model = Ridge(alpha=alpha).fit(z[rows], TARGET[rows])
            of_fold = folds == fold
            found[of_fold] = z[of_fold] @ model.coef_
            if fold:
                loss += ((TARGET[of_fold] - model.predict(z[of_fold])) ** 2).sum()
        losses[factor] = loss, found
    best = min(losses, key=lambda factor: losses[factor][0])
    np.testing.assert_allclose(scores, losses[best][1], atol=2e-4)


def test_no_row_has_its_own_target_in_its_score() -> None:
    held_out, one = HeldOut(0.2, 0), 17

    def scores(y: np.ndarray) -> np.ndarray:
        ds = dkl.create_dataset("memory://texts-own.zarr", FRAME, y, overwrite=True)
        made = with_texts(ds, held_out, Run())
        return made.X.compute()[:, made.column_names.index("comment: score")]

    changed = TARGET.copy()
    changed[one] += 1e-3
    before, after = scores(TARGET), scores(changed)
    folds = CategoryFolds(held_out)(np.arange(N))
    assert before[one] == after[one]
    # rows that judge have no part in the scores of others
    judge = int(np.flatnonzero(folds == 0)[0])
    changed = TARGET.copy()
    changed[judge] += 100.0
    np.testing.assert_array_equal(scores(changed)[folds > 0], before[folds > 0])


def test_no_rows_or_constant_texts_give_scores_of_nothing() -> None:
    totals = FoldTotals(np.zeros(6), np.zeros((1, 6)), np.zeros((1, 6)))
    assert not score_weights(np.zeros((6, 4, 4)), np.zeros((6, 4, 1)), totals).any()


@pytest.mark.parametrize("n_classes", [2, 3, 40])
def test_classes_have_a_score_each_but_the_first_unless_they_are_many(n_classes: int) -> None:
    y = np.arange(N) % n_classes
    made = with_texts(dkl.create_dataset("memory://texts-k.zarr", FRAME, y, overwrite=True), HeldOut(0.1), Run())
    scores = [name for name in made.column_names or [] if name.startswith("comment: score")]
    assert scores == ([f"comment: score of {k}" for k in range(1, n_classes)] if n_classes < 34 else [])
    assert sum(name.startswith("comment: direction") for name in made.column_names or []) == sum(KEPT)


@pytest.mark.parametrize("gaps", [False, True])
def test_models_on_free_text_are_saved_answer_rows_and_leave_dkl_behind(tmp_path: Path, gaps: bool) -> None:
    frame = FRAME.copy()
    if gaps:
        frame.loc[[3, 77], "comment"] = None
    model = dkl.KernelRegressor(**SETTINGS).fit(frame, TARGET)
    expected = model.predict(frame)
    assert "comment: free text as score and 32 directions of its words" in model.encoding_.describe()
    model.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(frame), expected)
    assert loaded.encoding_ == model.encoding_
    for row in (3, 10):
        np.testing.assert_allclose(loaded.predictor().predict(frame.iloc[row].to_dict()), expected[row], rtol=1e-3)
    joblib.dump(model.to_sklearn(), tmp_path / "model.joblib")
    pipeline = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_allclose(pipeline.predict(frame), expected, atol=2e-4)
    assert b"dkl" not in pickle.dumps(pipeline)
    with pytest.raises(TypeError, match=r"the columns \['comment'\] hold free text, whose words ONNX"):
        model.to_onnx()


def test_stores_keep_directions_as_arrays_through_versions(tmp_path: Path) -> None:
    ds = dkl.create_dataset(tmp_path / "rows.zarr", FRAME[:400], TARGET[:400])
    opened = dkl.open_dataset(tmp_path / "rows.zarr")
    assert opened.encoding == ds.encoding
    assert opened.verify() == []
    assert (tmp_path / "rows.zarr" / "texts" / "0-1-components").is_dir()
    model = dkl.KernelRegressor(**SETTINGS).fit(opened)
    np.testing.assert_allclose(model.predict(opened).compute(), model.predict(FRAME[:400]), atol=1e-5)
    longer = opened.append(FRAME[400:], TARGET[400:])
    np.testing.assert_array_equal(longer.X.compute(), ds.encoding.transform(FRAME))
    assert longer.verify() == []
    other = dkl.create_dataset(tmp_path / "other.zarr", FRAME[100:], TARGET[100:])
    with pytest.raises(
        ValueError, match=r"column 'comment' holds free text, whose directions in .* are not those of the"
    ):
        model.predict(other)


def test_damaged_directions_are_refused(tmp_path: Path) -> None:
    dkl.create_dataset(tmp_path / "rows.zarr", FRAME, TARGET)
    chunk = next(path for path in (tmp_path / "rows.zarr" / "texts" / "0-2-idf").rglob("*") if path.name == "0")
    chunk.write_bytes(chunk.read_bytes()[:-3])
    with pytest.raises(StoreError, match=r"texts|metadata"):
        dkl.open_dataset(tmp_path / "rows.zarr")
    made = learn_encoding([FRAME]).directions[0]
    words = made.parts[0]
    for wrong in (
        WordDirections(1, words.buckets[::-1].copy(), words.idf, words.components),
        WordDirections(1, words.buckets, words.idf[1:], words.components),
        WordDirections(3, words.buckets, words.idf, words.components),
        TextDirections(made.name, made.parts, np.zeros((3, 3))),
    ):
        with pytest.raises(ValueError, match="are damaged"):
            wrong.validate()


@pytest.mark.parametrize("way", ["csv", "parquet", "frame"])
def test_three_ways_give_the_same_text_columns(tmp_path: Path, way: str) -> None:
    expected = learn_encoding([FRAME])
    if way == "frame":
        encoding = dkl.create_dataset(tmp_path / "rows.zarr", FRAME, TARGET).encoding
    else:
        path = tmp_path / f"rows.{way}"
        frame = FRAME.assign(y=TARGET)
        frame.to_csv(path, index=False) if way == "csv" else frame.to_parquet(path)
        encoding = dkl.ingest(path, tmp_path / "rows.zarr", target="y", shuffle=False).encoding
    assert encoding.rules == expected.rules
    assert encoding.directions == expected.directions


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (TEXTS, "text"),
        (TEXTS[:250] * 2, "code"),
        ([f"r{number}" for number in range(N)], None),
        ([f"Mr {number} Smith" for number in range(N)], "text"),
        ([f"{a} {b} {c} {d}" for a in "abcd" for b in "abcdefgh" for c in "abcd" for d in "abcd"][:N], None),
        (["New York", "San Francisco", "St. Louis"] * 170, "category"),
        (["thank you very much", "no thanks at all"] * 250, "category"),
    ],
)
def test_text_is_free_where_it_holds_words_and_rarely_repeats(texts: list[str], kind: str | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rules = learn_encoding([pd.DataFrame({"text": texts, "x": range(len(texts))})]).rules
    assert {rule.name: rule.kind for rule in rules}.get("text") == kind
    chosen = learn_encoding([pd.DataFrame({"text": texts, "x": range(len(texts))})], categorical=["text"]).rules[0]
    assert chosen.kind in ("category", "code")


@pytest.mark.parametrize("rows", [100, 300, N])
def test_parts_of_the_rows_have_free_text_too(rows: int) -> None:
    assert [rule.kind for rule in learn_encoding([FRAME[:rows]]).rules] == ["number", "text", "category"]


def test_text_that_more_rows_may_make_names_of_is_hinted_at() -> None:
    with pytest.warns(dkl.DklHint, match=r"column 't' holds several words, and 60 % of its values occur once"):
        assert learn_encoding([pd.DataFrame({"t": [*TEXTS[:400], *TEXTS[:100]]})]).rules[0].kind == "text"


def test_held_out_gain_decides_whether_text_stays(tmp_path: Path) -> None:
    y = (ODDS + FRAME["x"] + RNG.logistic(size=N)) > 0
    told = dkl.KernelClassifier(random_state=0, effort="fast").fit(FRAME, y)
    assert any(
        "'comment' is free text; a score by its words and their directions are columns" in r for r in told.reasons_
    )
    noise = FRAME.assign(comment=comments(N, seed=9)[0])
    left = dkl.KernelClassifier(random_state=0, effort="fast").fit(noise, FRAME["x"] > 0)
    assert any("'comment' is free text; it is left out, since it gains nothing" in reason for reason in left.reasons_)
    # frames still have the column, and nothing is said of it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        left.predict(noise)
    assert "comment" not in {rule.name for rule in left.encoding_.rules}
    # a saved model forgets the words of a text that it does not use, and loads
    left.save(tmp_path / "left.zarr")
    again = dkl.load_model(tmp_path / "left.zarr")
    assert again.encoding_ == left.encoding_
    for rows in (noise, noise.drop(columns="comment")):
        np.testing.assert_array_equal(again.decision_function(rows), left.decision_function(rows))
    np.testing.assert_array_equal(left.to_sklearn().predict(noise), left.predict(noise))
    # what a user asks about columns names it, too
    assert list(again.feature_names_in_) == list(noise.columns)
    assert again.n_features_in_ == noise.shape[1]
    assert "comment: free text, left out, since it gains nothing (score of a linear model" in left.encoding_.describe()
    strengths = dict(zip((found := dkl.explain.importance(again, noise)).names, found.strengths, strict=True))
    assert set(strengths) == set(noise.columns)
    assert strengths["comment"] == 0.0 < strengths["x"]
    with pytest.raises(ValueError, match="column 'comment' was left out by the fit, so that no prediction depends"):
        dkl.explain.partial_dependence(again, noise, ["comment"])


def test_models_load_that_were_saved_with_the_words_of_a_text_that_the_fit_left_out() -> None:
    encoding = learn_encoding([FRAME])
    kept = tuple(rule for rule in encoding.rules if rule.kind != "text")
    saved = replace(encoding, rules=kept, ignored=("comment",))
    loaded = TableEncoding.from_json(saved.to_json()).with_directions(saved.directions)
    assert loaded == replace(saved, directions=())


def test_two_topics_are_told_apart_as_by_tfidf_and_logistic_regression() -> None:
    """3,000 texts whose words overlap: half of the vocabulary of each topic is that of the other."""
    rng = np.random.default_rng(0)
    topics = [np.arange(0, 200), np.arange(100, 300)]
    label = rng.integers(0, 2, 3_000)
    texts = [" ".join(f"w{word}" for word in rng.choice(topics[k], rng.integers(8, 16))) for k in label]
    train, test = slice(0, 2_000), slice(2_000, None)
    words = TfidfVectorizer().fit(texts[train])
    plain = LogisticRegression().fit(words.transform(texts[train]), label[train])
    expected = plain.score(words.transform(texts[test]), label[test])
    frame = pd.DataFrame({"text": texts})
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(frame[train], label[train])
    assert model.score(frame[test], label[test]) >= expected - 0.005


@pytest.mark.slow
def test_two_words_that_matter_are_found_among_forty() -> None:
    texts, odds = comments(6_000, seed=3)
    y = RNG.random(6_000) < 1.0 / (1.0 + np.exp(-odds))
    frame, train, test = pd.DataFrame({"comment": texts}), slice(0, 3_000), slice(3_000, None)
    model = dkl.KernelClassifier(random_state=0, effort="fast").fit(frame[train], y[train])
    found = roc_auc_score(y[test], model.predict_proba(frame[test])[:, 1])
    assert found >= roc_auc_score(y[test], odds[test]) - 0.01


@pytest.mark.parametrize("settings", [SETTINGS, {"effort": "fast", "random_state": 0}], ids=["random", "auto"])
def test_plans_count_the_passes_that_free_text_takes(settings: dict[str, Any]) -> None:
    ds = dkl.create_dataset("memory://texts-plan.zarr", FRAME[:200], TARGET[:200], overwrite=True)
    planned = Counter[str]()
    for one in dkl.plan(dkl.KernelRegressor(**settings), ds).passes:
        planned[one.name] += one.calls
    seen: list[Event] = []
    dkl.KernelRegressor(**settings, progress=seen.append).fit(ds)
    run = Counter(event.name for event in seen if event.kind == "started")
    for name in ("words of texts", "rows to look at columns alone"):
        assert run[name] == planned[name]
    assert run["words of texts"] == 1


def test_texts_of_the_same_words_are_stored_without_a_warning() -> None:
    alike = [f"line one\nline two, {number % 10}" for number in range(60)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = TextDirections.fitted("note", TextSample.of(pa.chunked_array([alike]), 0))
    assert np.isfinite(found.numbers(pa.array(alike))).all()


def test_rows_that_no_later_pass_reads_are_not_kept(tmp_path: Path) -> None:
    """Directions of texts are four times as wide as what a fit makes of them, and are read once."""
    ds = dkl.create_dataset(tmp_path / "rows.zarr", FRAME, TARGET)
    LOADER.clear()
    made = with_texts(ds, HeldOut(0.2, 0), Run())
    assert LOADER.nbytes == 0
    run_pass(made.source, [RowSample("some rows", 10, 0)])
    assert LOADER.nbytes > 0


def test_texts_are_worked_on_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = dkl.create_dataset("memory://texts-rows.zarr", FRAME, TARGET, overwrite=True)
    whole = with_texts(ds, HeldOut(0.2, 0), Run())
    expected, read = whole.X.compute(), whole.source.read_nbytes
    monkeypatch.setattr(texts_module, "TEXT_ROWS", 17)
    monkeypatch.setattr(sums_module, "TEXT_ROWS", 17)
    parts = with_texts(ds, HeldOut(0.2, 0), Run())
    assert parts.source.read_nbytes < read
    np.testing.assert_allclose(parts.X.compute(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_store_of_a_million_texts_takes_no_gigabyte_of_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(3_000)])
    with (tmp_path / "texts.csv").open("w") as file:
        file.write("comment,x,y\n")
        for _ in range(100):
            drawn, x = words[rng.integers(0, len(words), (10_000, 10))], rng.normal(size=10_000)
            file.writelines(
                f"{' '.join(row)},{value:.3f},{int(value > 0)}\n" for row, value in zip(drawn, x, strict=True)
            )
    program = (
        "import resource, dkl\n"
        f"stored = dkl.ingest({str(tmp_path / 'texts.csv')!r}, {str(tmp_path / 'texts.zarr')!r}, target='y')\n"
        "print(stored.n_rows, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    n_rows, peak = map(int, done.stdout.split()[-2:])
    assert n_rows == 1_000_000
    assert peak < 1e9
    # a machine without settings is not refused within 1 GB, and keeps to it
    program = (
        "import resource, dkl\n"
        f"stored = dkl.open_dataset({str(tmp_path / 'texts.zarr')!r})\n"
        "model = dkl.KernelClassifier(memory_limit='1 GB', random_state=0).fit(stored)\n"
        "print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) < 1e9
