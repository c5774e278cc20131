"""Pipelines of scikit-learn's own objects answer what the models answer, and need no dkl."""

from __future__ import annotations

import datetime
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError

import dkl
from dkl.features.feature_map import FeatureMap
from dkl.features.step_projection import HINGE, StepProjection
from tests.export.models import MAPS, THREE, TWO, X, assert_agree, classifier, random_features

# Maps that scikit-learn has no objects for.
WITHOUT = ("harmonics",)


def assert_same_answers(model: Any, rows: Any) -> None:
    pipeline = model.to_sklearn()
    np.testing.assert_array_equal(pipeline.predict(rows), model.predict(rows))
    assert hasattr(pipeline, "predict_proba") == hasattr(model, "predict_proba")
    if hasattr(model, "predict_proba"):
        assert_agree(pipeline.predict_proba(rows), model.predict_proba(rows))
    temperature = getattr(model, "temperature_", 1.0)
    assert_agree(pipeline.decision_function(rows) * temperature, model.decision_function(rows))


def scaled_by(scaling: Any, kernel: Any) -> list[Any]:
    """Learners with a scaling that no frequencies take up, as parameters of a test."""
    two = [random_features(scaling=scaling), random_features(dkl.Coordinates(), "standard")]
    return [
        pytest.param(random_features(scaling=scaling), id="waves"),
        pytest.param(random_features(dkl.Coordinates(), scaling=scaling), id="columns"),
        pytest.param(dkl.NystromFeatures(kernel, 20, scaling=scaling, random_state=0), id="kernel"),
        pytest.param(dkl.CombinedFeatures(two), id="two scalings"),
    ]


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit"])
def test_scaling_is_part_of_the_frequencies(scaling: Any) -> None:
    assert_same_answers(classifier(random_features(scaling=scaling)).fit(X, THREE), X)


@pytest.mark.parametrize("features", scaled_by("counts", dkl.Gaussian()))
def test_logarithms_of_counts_are_steps_of_the_pipeline(features: Any) -> None:
    rows = np.abs(X)
    assert_same_answers(classifier(features).fit(rows, THREE), rows)
    steps = [type(step).__name__ for _, step in features.fit(rows, THREE).to_sklearn().steps]
    assert "Normalizer" in steps or "FeatureUnion" in steps


@pytest.mark.parametrize("features", scaled_by("quantile", dkl.Laplacian()))
def test_scores_of_quantiles_are_interpolated_by_the_pipeline(features: Any) -> None:
    """At tied knots, between numbers of double precision beside them, and beyond the knots, from arrays and frames."""
    rows = np.column_stack([X[:, :2].astype(np.float64), np.round(X[:, 2], 1), X[:, 3] > 0.5, np.zeros(len(X))])
    rows[::3, 2] = 0.0
    beside = [np.nextafter(rows, np.inf), np.nextafter(rows, -np.inf), rows + 100.0, rows - 100.0]
    model = classifier(features).fit(rows, THREE)
    assert_same_answers(model, np.concatenate([rows, *beside]))
    learner = features.fit(rows, THREE)
    assert_agree(learner.to_sklearn().transform(rows), learner.transform(rows))
    frame = pd.DataFrame(rows, columns=list("abcde"))
    assert_same_answers(classifier(features).fit(frame, THREE), frame)


@pytest.mark.parametrize("labels", [TWO, THREE], ids=["two", "three"])
@pytest.mark.parametrize("parameters", [{"loss": "log_loss"}, {"calibrate": True}], ids=str)
def test_classes_and_probabilities_agree(parameters: dict[str, Any], labels: np.ndarray) -> None:
    assert_same_answers(classifier(**parameters).fit(X, labels), X)


@pytest.mark.parametrize("targets", [X[:, 2] + 100, X[:, :2]], ids=["one", "two"])
def test_numbers_agree(targets: np.ndarray) -> None:
    model = dkl.TunedRegressor(20, scaling="standard", random_state=0).fit(X, targets)
    assert_agree(model.to_sklearn().predict(X), model.predict(X))


@pytest.mark.parametrize("name", [name for name in MAPS if "arc" not in name and name not in WITHOUT])
def test_features_and_machines_on_them_agree(name: str) -> None:
    learner = MAPS[name]().fit(X, TWO)
    assert_agree(learner.to_sklearn().transform(X), learner.transform(X))
    assert_same_answers(classifier(MAPS[name]()).fit(X, TWO), X)


def test_a_value_at_a_threshold_is_below_it_and_one_past_the_last_bin_is_at_its_end() -> None:
    learner = MAPS["steps"]().fit(X, TWO)
    steps = learner.feature_map_.projection
    rows = np.repeat(X[:1].astype(np.float64), 3 * steps.n_frequencies, axis=0)
    for a, ((j, t, _), *_) in enumerate(steps.factors):
        rows[3 * a : 3 * a + 3, j] = [t, np.nextafter(t, np.inf), steps.high[j] + 100.0]
    np.testing.assert_allclose(learner.to_sklearn().transform(rows), learner.transform(rows), rtol=1e-6, atol=1e-9)
    two = StepProjection.of_factors([((0, 1.0, HINGE), (1, 1.0, HINGE))], steps.high)
    learner.feature_map_ = FeatureMap("steps", two, np.ones(1))
    with pytest.raises(TypeError, match="'steps' features with a product of two hinges"):
        learner.to_sklearn()


def test_an_amplitude_of_zero_gives_features_of_zero() -> None:
    learner = random_features().fit(X)
    learner.feature_map_.amplitudes[0] = 0.0
    found = learner.to_sklearn().transform(X)
    assert_agree(found, learner.transform(X))
    assert not found[:, [0, 20]].any()


def raw_table() -> pd.DataFrame:
    frame = pd.DataFrame({"age": X[:, 0], "colour": THREE, "has owner": TWO.astype(bool)})
    frame.loc[::7, "age"] = np.nan
    return frame


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_raw_columns_are_encoded_by_the_pipeline() -> None:
    frame = raw_table()
    model = classifier(loss="log_loss").fit(frame, TWO)
    assert_same_answers(model, frame)
    assert_same_answers(model, frame.assign(colour=np.where(TWO, "unheard of", frame["colour"])))


def test_names_of_columns_are_kept() -> None:
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = classifier().fit(frame, TWO)
    assert_same_answers(model, frame)
    with pytest.raises(ValueError, match="feature names should match"):
        model.to_sklearn().predict(frame.rename(columns={"a": "e"}))


@pytest.mark.parametrize("name", ["laplacian", "steps", "nystrom", "nystrom, smooth"])
def test_a_pickled_pipeline_names_nothing_of_dkl(name: str) -> None:
    model = classifier(MAPS[name](), loss="log_loss").fit(raw_table(), THREE)
    assert_same_answers(model, raw_table())
    assert b"dkl" not in pickle.dumps(model.to_sklearn())


@pytest.mark.parametrize("nu", [0.5, 1.5])
@pytest.mark.parametrize("metric", [None, "diagonal"])
def test_matern_kernels_at_landmarks_are_those_of_gaussian_processes(nu: float, metric: Any) -> None:
    features = dkl.NystromFeatures(dkl.Matern(nu), 20, scaling="standard", metric=metric, random_state=0)
    assert_same_answers(classifier(features).fit(X, TWO), X)
    both = [dkl.StepFeatures(n_features=10), dkl.NystromFeatures(n_features=10, scaling="standard")]
    assert_same_answers(classifier(dkl.CombinedFeatures(both, random_state=0)).fit(X, TWO), X)


@pytest.mark.parametrize(
    ("features", "part"),
    [
        (random_features(dkl.ArcCosine(1)), "arc-cosine features"),
        (MAPS["harmonics"](), "harmonics features"),
        (dkl.NystromFeatures(dkl.Cauchy(), n_features=20, random_state=0), "'nystrom' features of Cauchy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_scikit_learn_lacks_is_named(features: Any, part: str) -> None:
    with pytest.raises(TypeError, match=f"no (transformer|pairwise kernel) that computes {part}.* model.predictor"):
        classifier(features).fit(X, TWO).to_sklearn()


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
@pytest.mark.parametrize("name", ["laplacian", "steps", "nystrom"])
def test_missing_texts_are_flagged_and_rows_of_texts_are_dense(name: str) -> None:
    texts = np.array(list("abcdefgh"))[(X[:, 0] * 7).astype(int) % 8]
    frame = pd.DataFrame({"x": X[:, 1], "known": texts, "may lack": np.where(X[:, 2] > 1.0, None, texts)})
    model = classifier(MAPS[name](), loss="log_loss").fit(frame, THREE)
    assert "may lack=<missing>" in model.encoding_.column_names
    assert_same_answers(model, frame)
    missing = frame.assign(**{"may lack": np.nan, "known": None}).astype({"may lack": object})
    missing.loc[:3, "x"] = np.nan
    assert_same_answers(model, missing)


def test_categories_that_encoders_would_take_otherwise_are_an_error() -> None:
    model = classifier().fit(raw_table().assign(colour=np.array(["1", "2", "x"])[X[:, 3].astype(int)]), TWO)
    with pytest.raises(TypeError, match="categories of column 'colour' look like numbers"):
        model.to_sklearn()


def test_a_model_that_is_not_fitted_is_an_error() -> None:
    with pytest.raises(NotFittedError):
        classifier().to_sklearn()


@pytest.mark.parametrize(("form", "gaps"), [("times", False), ("Arrow", True), ("texts", True)])
def test_times_of_day_are_exported_however_they_are_written(form: str, gaps: bool) -> None:
    microseconds = np.random.default_rng(0).integers(0, 86_400_000_000, 60)
    times: list[Any] = [(datetime.datetime.min + datetime.timedelta(microseconds=int(m))).time() for m in microseconds]
    times[0], times[1] = datetime.time(0), datetime.time(8, 30)
    if gaps:
        times[5:60:9] = [None] * len(times[5:60:9])
    column = {
        "times": times,
        "Arrow": pd.Series(times, dtype=pd.ArrowDtype(pa.time64("us"))),
        "texts": [None if time is None else time.isoformat() for time in times],
    }[form]
    frame = pd.DataFrame({"at": column, "x": np.linspace(-1.0, 1.0, 60)})
    machine = dkl.KernelRegressor("random", n_features=20, random_state=0)
    model = machine.fit(frame, np.cos(microseconds / 86_400e6 * 2.0 * np.pi) + frame.x)
    assert_agree(model.to_sklearn().predict(frame), model.predict(frame))
    alone = frame.iloc[[1]]
    assert_agree(model.to_sklearn().predict(alone), model.predict(alone))
