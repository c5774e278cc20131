"""ONNX graphs answer what the models answer, in onnxruntime, for every kind of model, scaling and family."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import dkl
from dkl.export import onnx_graph
from dkl.kernels.generic import quantile_scores
from dkl.kernels.scale import scale_rows
from dkl.methods.preparation.scalers import quantile_scaler
from tests.export.models import MAPS, THREE, TWO, X, assert_agree, classifier, random_features

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def answers(model: Any, given: dict[str, np.ndarray], **parameters: Any) -> dict[str, np.ndarray]:
    """What onnxruntime says of rows."""
    made = model.to_onnx(**parameters)
    onnx.checker.check_model(made, full_check=True)
    session = onnxruntime.InferenceSession(made.SerializeToString())
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))


def assert_same_answers(model: Any, rows: Any, given: dict[str, np.ndarray]) -> None:
    found = answers(model, given)
    decision = model.decision_function(rows)
    assert_agree(found["scores"].reshape(decision.shape), decision)
    np.testing.assert_array_equal(found["label"], model.predict(rows))
    assert ("probabilities" in found) == hasattr(model, "predict_proba")
    if "probabilities" in found:
        assert_agree(found["probabilities"], model.predict_proba(rows))


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit", "quantile", "counts"])
def test_every_scaling_is_in_the_graph(scaling: Any) -> None:
    rows = np.abs(X) if scaling == "counts" else X
    for family in (None, dkl.Coordinates()):
        assert_same_answers(classifier(random_features(family, scaling)).fit(rows, TWO), rows, {"X": rows})


@pytest.mark.parametrize("labels", [TWO, THREE, TWO.astype(bool), TWO + 0.0], ids=lambda y: str(y.dtype))
@pytest.mark.parametrize("parameters", [{"loss": "log_loss"}, {"calibrate": True}], ids=str)
def test_classes_and_probabilities_agree(parameters: dict[str, Any], labels: np.ndarray) -> None:
    assert_same_answers(classifier(**parameters).fit(X, labels), X, {"X": X})


def test_tuned_classes_agree() -> None:
    model = dkl.TunedClassifier(20, scaling="standard", tol=1e-2, random_state=0).fit(X, THREE)
    assert_same_answers(model, X, {"X": X.astype(np.float64)})


@pytest.mark.parametrize("n_targets", [1, 2])
def test_numbers_agree_in_their_own_units(n_targets: int) -> None:
    y = 5_000 + 100 * X[:, 2] if n_targets == 1 else np.stack([X[:, 2], 1e3 * X[:, 1]], axis=1)
    model = dkl.KernelRegressor(random_features(), solver="newton").fit(X, y)
    assert_agree(answers(model, {"X": X})["prediction"], model.predict(X))


@pytest.mark.parametrize("name", MAPS)
def test_every_feature_map_can_be_written(name: str) -> None:
    learner = MAPS[name]().fit(X, TWO)
    assert_agree(answers(learner, {"X": X})["features"], learner.transform(X))


@pytest.mark.parametrize("name", ["steps", "nystrom", "nystrom, laplacian", "nystrom, matern", "nystrom, smooth"])
def test_machines_on_steps_and_on_kernels_at_landmarks_agree(name: str) -> None:
    assert_same_answers(classifier(MAPS[name]()).fit(X, THREE), X, {"X": X})


def test_steps_are_comparisons_and_products() -> None:
    y = X[:, 2] * (X[:, 0] > 10.0)
    model = dkl.StepFeatures(n_features=20, random_state=0).fit(X, y).machine_
    assert_agree(answers(model, {"X": X})["prediction"], model.predict(X))
    operators = {node.op_type for node in model.to_onnx().graph.node}
    assert {"Greater", "Where", "Mul"} <= operators
    assert not operators & {"Cos", "Sin", "Exp"}


def test_the_working_model_of_two_classes_has_probabilities() -> None:
    model = dkl.StepFeatures(n_features=20, random_state=0).fit(X, TWO).machine_
    shares = model.predict_proba(X)
    # log odds, the log loss being what the rounds have minimised
    np.testing.assert_allclose(np.log(shares[:, 1] / shares[:, 0]), model.decision_function(X), rtol=1e-4, atol=1e-5)
    assert_same_answers(model, X, {"X": X})


def test_a_kernel_without_an_operator_is_named() -> None:
    model = classifier(dkl.NystromFeatures(dkl.Matern(1.2), 10, random_state=0)).fit(X, TWO)
    with pytest.raises(TypeError, match=r"no operator for 'nystrom' features of Matern\(nu=1.2.*model.predictor"):
        model.to_onnx()


def test_double_precision_takes_rows_far_from_zero() -> None:
    far = X.astype(np.float64) + 1e7
    model = classifier().fit(far, TWO)
    found = answers(model, {"X": far}, dtype="float64")
    assert_agree(found["scores"][:, 0], model.decision_function(far))


def raw_table() -> pd.DataFrame:
    frame = pd.DataFrame({"age": X[:, 0], "colour": THREE, "has owner": TWO.astype(bool), "code": THREE})
    frame.loc[::7, "age"] = np.nan
    frame.loc[::5, "colour"] = None
    return frame


def given_table(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """A column of texts, the missing ones empty, or of numbers, an input."""
    return {
        name: (column.fillna("").astype(str) if column.dtype.kind not in "bf" else column.astype(np.float32))
        .to_numpy()
        .astype(object if column.dtype.kind not in "bf" else np.float32)[:, None]
        for name, column in frame.items()
    }


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_raw_columns_go_in_by_name() -> None:
    frame = raw_table()
    model = classifier(loss="log_loss").fit(frame, TWO)
    changed = frame.assign(code=np.where(TWO, "unheard of", frame["code"]))
    assert_same_answers(model, frame, given_table(frame))
    assert_same_answers(model, changed, given_table(changed))


def test_a_column_with_the_name_of_an_output_is_an_error() -> None:
    model = classifier().fit(raw_table().rename(columns={"colour": "label"}), TWO)
    with pytest.raises(ValueError, match="column 'label' has the name of an output"):
        model.to_onnx()


def test_texts_that_a_graph_cannot_tell_apart_are_an_error() -> None:
    frame = raw_table()
    frame.loc[1, "colour"] = ""
    with pytest.raises(TypeError, match="column 'colour' has both missing texts and empty ones"):
        classifier().fit(frame, TWO).to_onnx()


def test_a_graph_is_written_to_a_file(tmp_path: Path) -> None:
    model = classifier().fit(X, TWO)
    made = model.to_onnx(tmp_path / "model.onnx", opset=15)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    np.testing.assert_array_equal(session.run(["label"], {"X": X})[0], model.predict(X))
    assert made.opset_import[0].version == 15


@pytest.mark.parametrize("opset", [9, 10_000, "18"])
def test_an_opset_that_does_not_fit_is_an_error(opset: Any) -> None:
    with pytest.raises(ValueError, match=f"opset is {opset!r}; the graph needs operations of opset 15 or newer"):
        classifier().fit(X, TWO).to_onnx(opset=opset)


def test_a_model_that_is_not_fitted_is_an_error() -> None:
    with pytest.raises(NotFittedError):
        classifier().to_onnx()


def test_without_onnx_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "onnx":
            raise ImportError(name)
        return found(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'dkl\[onnx\]'"):
        random_features().fit(X).to_onnx()


def test_scores_of_quantiles_are_those_of_the_blocks() -> None:
    rows = np.random.default_rng(1).integers(-3, 4, (500, 3)) / 2.0 + [0.0, 1e-3, 0.0]
    scaler = quantile_scaler(rows[::2], np.array([False, False, True]))
    found = quantile_scores(np, rows, scaler)
    np.testing.assert_allclose(found, scale_rows(rows, scaler, "float64"), rtol=0, atol=1e-14)


def test_a_function_that_no_graph_has_is_named_with_those_that_there_are() -> None:
    rows = onnx_graph.Symbol("", [], (onnx_graph.ROWS, 2), np.dtype("float64"))
    with pytest.raises(AttributeError, match=r"no function 'tanh'.*SymbolNamespace"):
        _ = onnx_graph.SymbolNamespace(rows).tanh
