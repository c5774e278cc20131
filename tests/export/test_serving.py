"""The page on serving runs as it stands, and where it says that NumPy is enough, dkl and scikit-learn are hidden."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
PAGE = Path(__file__).parents[2] / "examples" / "guide" / "serving.md"
HIDDEN = "import sys\nfor name in ('dkl', 'sklearn', 'scipy', 'numba'):\n    sys.modules[name] = None\n"
ANSWER = "\nnp.save('labels.npy', predict(np.load('rows.npy')))\n"


def labels_without_dkl(program: str) -> np.ndarray:
    """What the blocks of the page predict in a process that has no dkl, in this folder."""
    subprocess.run([sys.executable, "-c", HIDDEN + program + ANSWER], check=True)
    return np.load("labels.npy")


def test_the_page_on_serving_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    fit, light, open_store, store_predict, export, numpy_alone, onnx, pipeline = blocks
    monkeypatch.chdir(tmp_path)
    names: dict = {"np": np}
    for block in (fit, light, export, onnx, pipeline):
        exec(block, names)
    X, _ = load_breast_cancer(return_X_y=True)
    np.save("rows.npy", X)
    expected = names["model"].predict(X)
    np.testing.assert_array_equal(labels_without_dkl(open_store + store_predict), expected)
    np.testing.assert_array_equal(labels_without_dkl(numpy_alone), expected)
    np.testing.assert_array_equal(names["labels"], expected)
    np.testing.assert_array_equal(names["pipeline"].predict(X), expected)
    # opening a saved model takes ten lines
    assert len([line for line in open_store.splitlines() if line.strip()]) <= 10
