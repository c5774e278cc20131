"""Rows that are held out by time: columns that run ahead of all older rows, and classes that become rarer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

import dkl
from dkl.machines import columns
from dkl.machines.kernel_machines import KernelClassifier

pytestmark = pytest.mark.usefixtures("little_work")

N = 3_000


def seasons(n: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of ten months in order: what rises over the first six is back at its mean in all later ones."""
    generator = np.random.default_rng(seed)
    when = pd.date_range("2023-01-01", periods=n, freq="145min")
    frame = pd.DataFrame({"x": generator.normal(size=n), "month": when.month, "when": when})
    of_month = np.array([-1.5, -0.9, -0.3, 0.3, 0.9, 1.5, 0.0, 0.0, 0.0, 0.0])[frame["month"] - 1]
    chance = 1.0 / (1.0 + np.exp(-(1.5 * frame["x"] + of_month)))
    return frame, np.where(generator.random(n) < chance, "late", "early")


def rarer(n: int = N, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows in order, of the last third of which few are of the second class; nothing but their time says so."""
    generator = np.random.default_rng(seed)
    frame = pd.DataFrame({"x": generator.normal(size=n), "z": generator.normal(size=n)})
    base = np.where(np.arange(n) < 0.6 * n, 0.5, -1.7)
    chance = 1.0 / (1.0 + np.exp(-(1.5 * frame["x"] + base)))
    return frame, np.where(generator.random(n) < chance, "b", "a")


def machine(**given: object) -> KernelClassifier:
    return dkl.KernelClassifier(random_state=0, progress=False, effort="fast", **given)


def test_columns_that_no_older_row_knows_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame, labels = seasons()
    older, newer = frame[:2_400], frame[2_400:]
    model = machine().fit(older, labels[:2_400])
    assert any("['month', 'when.days'] left out" in reason for reason in model.reasons_)
    # the columns of the rows, as scikit-learn counts them; the encoding knows which of them the fit left out
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.n_features_in_ == len(frame.columns)
    assert [rule.name for rule in model.encoding_.rules] == ["x", "when"]
    assert "month: left out, since most of the newest rows lie beyond all older ones" in model.encoding_.describe()
    with monkeypatch.context() as patched:
        patched.setattr(columns, "columns_ahead", lambda *rows: [])
        kept = machine().fit(older, labels[:2_400])
    assert not any("left out" in reason for reason in kept.reasons_)
    ours, theirs = (log_loss(labels[2_400:], each.predict_proba(newer)) for each in (model, kept))
    assert ours < theirs - 0.02
    # rows with the columns are answered, and so are those without the month
    shares = model.predict_proba(newer)
    np.testing.assert_array_equal(model.predict_proba(newer.drop(columns="month")), shares)
    # a store has them, too; so does the saved model
    dkl.create_dataset(tmp_path / "rows.zarr", older, labels[:2_400])
    dkl.create_dataset(tmp_path / "newer.zarr", newer, labels[2_400:])
    stored = machine().fit(dkl.open_dataset(tmp_path / "rows.zarr"))
    stored.save(tmp_path / "model.zarr")
    again = dkl.load_model(tmp_path / "model.zarr")
    answers = again.predict_proba(dkl.open_dataset(tmp_path / "newer.zarr")).compute().sort_index()
    np.testing.assert_allclose(answers.to_numpy(), shares, atol=1e-6)


@pytest.mark.parametrize("names", [0, 50])
def test_rows_with_times_may_hold_free_text_and_names(names: int) -> None:
    generator, n = np.random.default_rng(0), 240
    words = generator.choice(["red", "blue", "green", "door", "cat"], (n, 4))
    frame = pd.DataFrame({"x": generator.normal(size=n), "when": pd.date_range("2020-01-01", periods=n, freq="h")})
    frame["text"] = [" ".join(row) for row in words]
    if names:
        frame["name"] = [f"n{number % names}" for number in range(n)]
    labels = np.where(frame["x"] + (words == "red").sum(axis=1) > 1.0, "late", "early")
    model = machine().fit(frame, labels)
    assert any("'text' is free text" in reason for reason in model.reasons_)
    assert model.score(frame, labels) > 0.8


def test_a_pipeline_of_scikit_learn_takes_rows_with_the_columns_that_were_left_out() -> None:
    frame, labels = seasons()
    model = machine().fit(frame[["x", "month"]], labels, times=np.arange(N))
    assert list(model.feature_names_in_) == ["x", "month"]
    assert [rule.name for rule in model.encoding_.rules] == ["x"]
    pipeline, rows = model.to_sklearn(), frame[["month", "x"]].tail(50)
    shares = model.predict_proba(rows)
    for given in (rows, rows[["x"]], rows[["x"]].to_numpy()):
        # features are float32 there and here
        np.testing.assert_allclose(pipeline.predict_proba(given), shares, atol=2e-6)


def test_a_trend_that_goes_on_stays() -> None:
    frame, _ = seasons()
    days = np.arange(N) / N
    y = 5.0 * days + frame["x"] + 0.1 * np.random.default_rng(1).normal(size=N)
    model = dkl.KernelRegressor(random_state=0, progress=False, effort="fast").fit(frame.drop(columns="month"), y)
    assert not any("left out" in reason for reason in model.reasons_)


def test_where_classes_become_rarer_the_newest_rows_move_the_intercept() -> None:
    frame, labels = rarer()
    older, newer, times = frame[:2_400], frame[2_400:], np.arange(2_400)
    model = machine().fit(older, labels[:2_400], times=times)
    plain = machine().fit(older, labels[:2_400])
    ours, theirs = (log_loss(labels[2_400:], each.predict_proba(newer)) for each in (model, plain))
    assert ours < theirs - 0.03
    # the decision goes with the probabilities, everywhere
    shares, named = model.predict_proba(newer), model.predict(newer)
    np.testing.assert_array_equal(model.classes_[shares.argmax(axis=1)], named)
    np.testing.assert_array_equal(model.decision_function(newer) > 0, named == "b")
    assert model.score(newer, labels[2_400:]) > plain.score(newer, labels[2_400:])
    pipeline, rows = model.to_sklearn(), newer.head(50)
    np.testing.assert_allclose(pipeline.predict_proba(rows), shares[:50], atol=1e-5)
    row = model.encoding_.transform(rows)
    np.testing.assert_allclose(model.predictor().predict_proba(row), shares[:50], atol=1e-5)


def test_onnx_and_files_answer_with_the_moved_intercept(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    frame, labels = rarer()
    model = machine().fit(frame, labels, times=np.arange(N))
    rows = frame.head(40)
    shares = model.predict_proba(rows)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict_proba(rows), shares)
    model.to_onnx(tmp_path / "model.onnx")
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"))
    answers = session.run(["probabilities", "label"], {"X": rows.to_numpy(np.float32)})
    np.testing.assert_allclose(answers[0], shares, atol=1e-5)
    np.testing.assert_array_equal(answers[1], model.predict(rows))


def test_rows_in_no_order_have_the_bits_of_before() -> None:
    frame, labels = rarer()
    drawn = np.random.default_rng(0).permutation(N)
    model = machine().fit(frame.iloc[drawn], labels[drawn])
    # the intercept is that of the linear model: nothing was added to it
    assert model._calibration[1] is None
