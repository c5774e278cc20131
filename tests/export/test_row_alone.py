"""A row alone gets the bits of the row among others, on every processor; a predictor is as near as its page says."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl
from dkl.kernels import products
from tests.export.models import MAPS, THREE, TWO, X, classifier, random_features

SIZES = (1, 2, 3, 7, 19, 64, 255)


@pytest.fixture(params=["single precision", "double precision"])
def blas(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as they are made where BLAS rounds rows of single precision alike, and where it does not."""
    if request.param == "double precision":
        monkeypatch.setattr(products, "single_rows_are_alike", lambda: False)
    elif not products.single_rows_are_alike():
        pytest.skip("BLAS rounds a row of single precision by its place")


def check_alone(answer: Any, rows: Any) -> None:
    together = np.asarray(answer(rows))
    n = together.shape[0]
    for size in SIZES:
        parts = [np.asarray(answer(rows[first : first + size])) for first in range(0, min(n, 8 * size), size)]
        apart = np.concatenate(parts)
        np.testing.assert_array_equal(apart, together[: len(apart)], err_msg=f"{size} rows at a time")


IN_DOUBLE = ("laplacian", "structured", "nystrom", "combined", "shared landmarks")  # each its own way of products


@pytest.mark.parametrize(
    ("name", "blas"),
    [
        *((name, "single precision") for name in MAPS),
        *((name, "double precision") for name in IN_DOUBLE),
    ],
    indirect=["blas"],
)
@pytest.mark.usefixtures("blas")
def test_a_row_alone_is_the_row_among_others(name: str) -> None:
    model = classifier(MAPS[name]()).fit(X, THREE if name == "phases" else TWO)
    check_alone(model.decision_function, X)
    check_alone(model.features_.transform, X)


@pytest.mark.usefixtures("blas")
def test_so_are_its_probabilities_and_deviations_and_rows_of_other_kinds() -> None:
    calibrated = dkl.KernelClassifier(random_features(), solver="newton", calibrate=True, random_state=0).fit(X, THREE)
    check_alone(calibrated.predict_proba, X)
    exact = dkl.KernelRegressor(random_features(), solver="newton", random_state=0).fit(X, X[:, 2])
    check_alone(lambda rows: np.column_stack(exact.predict(rows, return_std=True)), X)
    check_alone(dkl.TunedRegressor(20, random_state=0).fit(X, X[:, :2]).predict, X)
    thin = sparse.csr_array(X * (X > 2.0))
    check_alone(dkl.KernelRegressor(random_features(scaling=None), random_state=0).fit(thin, X[:, 2]).predict, thin)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(town=np.array(["York", "Bath", "Rome"])[np.arange(300) % 3])
    of_frame = dkl.KernelClassifier(dkl.StepFeatures(n_features=8), random_state=0).fit(frame, TWO)
    check_alone(of_frame.decision_function, frame)


@pytest.mark.parametrize(
    ("name", "dtype", "bound"),
    [
        ("laplacian", "float32", 1e-5),
        ("nystrom", "float64", 1e-12),
        ("combined", "float32", 1e-5),
        ("combined", "float64", 1e-12),
        ("steps", "float64", 1e-12),
        ("landmarks", "float32", 1e-5),
    ],
)
def test_a_predictor_is_as_near_as_its_page_says(name: str, dtype: str, bound: float) -> None:
    learner = MAPS[name]().set_params(dtype=dtype)
    model = dkl.KernelRegressor(learner, random_state=0) if name != "landmarks" else classifier(learner)
    model.fit(X, TWO if name == "landmarks" else X[:, 2] + 5.0)
    method = "decision_function" if name == "landmarks" else "predict"
    expected, predictor = getattr(model, method)(X), getattr(model.predictor(), method)
    largest = np.abs(expected).max()
    for size in (1, 5, 63):
        found = np.concatenate([np.atleast_1d(predictor(X[first : first + size])) for first in range(0, 300, size)])
        np.testing.assert_allclose(found, expected, rtol=0, atol=bound * largest)
    # from 64 rows on they are the model's own
    np.testing.assert_array_equal(predictor(X), expected)
    np.testing.assert_array_equal(predictor(X[:64]), expected[:64])


HASWELL = """
import numpy as np, dkl
from dkl.kernels.products import single_rows_are_alike
from tests.export.models import X, TWO, MAPS, classifier
assert not single_rows_are_alike(), "this BLAS has no kernel for AVX2"
for name in ("laplacian", "structured", "nystrom", "combined", "shared landmarks"):
    model = classifier(MAPS[name]()).fit(X, TWO)
    together = model.decision_function(X)
    for size in (1, 3, 64):
        parts = [model.decision_function(X[i : i + size]) for i in range(0, 192, size)]
        assert np.array_equal(np.concatenate(parts), together[:192]), (name, size)
"""


@pytest.mark.slow
def test_it_is_so_on_processors_without_avx_512() -> None:
    features = getattr(np._core._multiarray_umath, "__cpu_features__", {})
    config = np.show_config(mode="dicts")
    if not features.get("AVX2") or "openblas" not in str(config["Build Dependencies"]["blas"]["name"]):
        pytest.skip("needs OpenBLAS on a processor with AVX2")
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell"}
    run = subprocess.run([sys.executable, "-c", HASWELL], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
