"""Importance: the slopes and replacements that it says it is, for every kind of features, rows and columns."""

from __future__ import annotations

from typing import Any

import dask
import dask.array
import dask.dataframe
import numpy as np
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError

import dkl
from dkl.errors import MemoryLimitError
from dkl.explain import background_of, importance
from dkl.plots import ImportanceDisplay
from tests.explain.cases import NAMES, WAVES, decision_values, machine, mixed_machine, rows

X, _ = rows()


def slopes(model: Any, weights: np.ndarray) -> np.ndarray:
    """By central differences of what the model predicts, times the deviation of the column: both unscaled."""
    found = []
    shares = weights / weights.sum()
    for c in range(X.shape[1]):
        step = np.eye(X.shape[1])[c] * 1e-6
        differences = (decision_values(model, X + step) - decision_values(model, X - step)) / 2e-6
        deviation = np.sqrt(shares @ np.square(X[:, c] - shares @ X[:, c]))
        found.append(np.sqrt(shares @ np.square(differences)) * deviation)
    return np.array(found)


@pytest.mark.parametrize("name", ["waves", "structured", "ramps", "linear", "landmarks", "tuned"])
def test_slopes_are_those_of_predictions_in_deviations_of_the_columns(name: str) -> None:
    model, weights = machine(name), np.arange(len(X)) % 3
    found = importance(model, X, sample_weight=weights)
    assert found.measure == "slope"
    np.testing.assert_allclose(found.values, slopes(model, weights), rtol=1e-5)
    np.testing.assert_allclose(importance(model, sparse.csr_array(X), sample_weight=weights).values, found.values)
    again = importance(model, np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(again.values, found.values, rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_a_replaced_column_is_that_of_another_row(name: str) -> None:
    """The change over all pairs of rows is what a permutation samples."""
    model = machine(name)
    found = importance(model, X, measure="replacement", groups={"last two": [2, 3]})
    assert found.names == ("column 0", "column 1", "last two")
    own, expected = decision_values(model, X), []
    for members in ([0], [1], [2, 3]):
        changes = []
        for other in X:
            changed = X.copy()
            changed[:, members] = other[members]
            changes.append(np.square(decision_values(model, changed) - own))
        expected.append(np.sqrt(np.mean(changes, axis=(0, 1)) / 2.0))
    np.testing.assert_allclose(found.values, expected, rtol=0.35, atol=0.05)


def test_slopes_and_replacements_agree_where_the_model_is_linear() -> None:
    model = machine("linear")
    many = np.random.default_rng(1).normal(size=(4_000, 4))
    found, other = importance(model, many), importance(model, many, measure="replacement")
    np.testing.assert_allclose(found.values, other.values, rtol=0.03)
    assert found.energy is None


@pytest.mark.parametrize("name", ["half-spaces", "harmonics", "steps", "nystrom"])
def test_features_without_slopes_are_measured_by_replacing(name: str) -> None:
    model = machine(name)
    assert importance(model, X).measure == "replacement"
    activation = repr(model.feature_map_.activation)
    with pytest.raises(ValueError, match=f"which {activation} features .*have not; use measure='replacement'"):
        importance(model, X, measure="slope")


@pytest.mark.parametrize("name", WAVES)
def test_energy_is_the_slope_of_waves_that_come_in_every_phase(name: str) -> None:
    """Rows spread over many periods of every wave."""
    model = machine(name)
    feature_map = model.feature_map_
    if feature_map.scaler is None:
        wide = np.random.default_rng(0).uniform(-400.0, 400.0, (20_000, 4))
        found = importance(model, wide)
        np.testing.assert_allclose(found.energy, found.strengths, rtol=0.1)
    assert importance(model, X).energy.shape == (4,)


def test_columns_of_a_frame_fold_back_and_have_names() -> None:
    model, frame = mixed_machine()
    found = importance(model, frame)
    assert found.names == ("age", "colour")
    assert found.to_frame()["column"].tolist() == ["colour", "age"]
    single = importance(model, frame, groups={})
    assert single.names == ("age", "age=<missing>", "colour=b", "colour=g", "colour=r")
    np.testing.assert_allclose(np.square(found.values[1]), np.square(single.values[2:]).sum(axis=0))
    by_name = importance(model, frame, groups={"warm": ["colour=r", "colour=g"]})
    assert by_name.names == ("age", "age=<missing>", "colour=b", "warm")
    assert "colour" in repr(found)
    assert "colour" in found._repr_html_()
    assert ImportanceDisplay(found, most=1).shown == ["colour"]


def test_classes_have_a_column_of_values_each() -> None:
    found = importance(machine("waves", classes=3), X)
    assert found.outputs == ("0", "1", "2")
    np.testing.assert_allclose(found.strengths, np.linalg.norm(found.values, axis=1))
    assert list(found.to_frame().columns) == ["column", "strength", "energy", "0", "1", "2"]


def test_threads_give_the_bits_of_one(tmp_path: Any) -> None:
    model, rng = machine("waves"), np.random.default_rng(0)
    weights = rng.integers(0, 3, 3_000)
    dataset = dkl.create_dataset(
        tmp_path / "rows.zarr", rng.normal(size=(3_000, 4)), sample_weight=weights, rows_a_block=256
    )
    for measure in ("slope", "replacement"):
        with dask.config.set(scheduler="synchronous"):
            alone = importance(model, dataset, measure=measure)
        assert importance(model, dataset, measure=measure).values.tobytes() == alone.values.tobytes()


def test_rows_of_every_kind_and_saved_models_say_the_same(tmp_path: Any) -> None:
    model, frame = mixed_machine()
    model.save(tmp_path / "model.zarr")
    expected = importance(model, frame)
    given = {
        "frame of Dask": (model, dask.dataframe.from_pandas(frame, npartitions=2)),
        "encoded": (model, model.encoding_.transform(frame)),
        "Dataset": (model, dkl.create_dataset(tmp_path / "rows.zarr", frame)),
        "array of Dask": (model, dask.array.from_array(model.encoding_.transform(frame), chunks=(70, 5))),
        "loaded": (dkl.load_model(tmp_path / "model.zarr"), frame),
    }
    for kind, (one, X_) in given.items():
        found = importance(one, X_)
        assert found.names == expected.names, kind
        np.testing.assert_allclose(found.values, expected.values, rtol=1e-9, err_msg=kind)


def test_a_pass_tells_of_itself_and_keeps_to_its_memory() -> None:
    model, seen = machine("waves"), []
    importance(model, X, progress=seen.append)
    assert [event.kind for event in seen] == ["started", "advanced", "finished"]
    wide = np.zeros((2, 4_000))
    many = dkl.KernelRegressor(
        dkl.RandomFeatures(dkl.Gaussian(1.0), 20, random_state=0), solver="newton", alpha=0.1, progress=False
    )
    many.fit(wide, [0.0, 1.0])
    with pytest.raises(MemoryLimitError):
        background_of(many, wide, memory_limit="1 MiB")


def test_bad_input_is_one_clear_error() -> None:
    model = machine("waves")
    with pytest.raises(NotFittedError):
        importance(dkl.KernelRegressor(), X)
    with pytest.raises(TypeError, match=r"KernelClassifier\(RandomFeatures\(\)\)"):
        importance(dkl.RandomFeatures(), X)
    with pytest.raises(ValueError, match="expecting 4"):
        importance(model, X[:, :3])
    with pytest.raises(ValueError, match="expected 'auto'"):
        importance(model, X, measure="gain")
    with pytest.raises(ValueError, match="2 entries for 4 columns"):
        importance(model, X, names=["a", "b"])
    for groups, message in (
        ({"a": [0, 1], "b": [1]}, "'column 1' is in two groups"),
        ({"a": [7]}, "no column 7; there are 4"),
        ({"a": ["b"]}, "no column 'b'"),
        ({"a": []}, "give their numbers or names"),
    ):
        with pytest.raises(ValueError, match=message):
            importance(model, X, groups=groups)
