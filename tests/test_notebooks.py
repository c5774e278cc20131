"""The notebooks run from their first cell to their last, here in small; in a real kernel in the slow set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL: dict[str, dict[str, Any]] = {
    "quickstart": {"EFFORT": "fast"},
    # the limit is one of the whole process, here that of many tests
    "out_of_core": {"GIGABYTES": 0.001, "FEATURES": 40, "MEMORY_LIMIT": "8 GiB"},
    "cluster": {"ROWS": 1_600, "FEATURES": 20},
    "which_learner": {"SIZES": (10,), "ROWS": 120, "TREES": 2, "EFFORT": "fast"},
}


def cells(name: str, **overrides: Any) -> list[str]:
    """The code of a notebook, its parameters replaced by those of `SMALL` and `overrides`."""
    found = [
        cell for cell in json.loads((EXAMPLES / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"
    ]
    marked = [cell["metadata"].get("tags") == ["parameters"] for cell in found]
    place = marked.index(True)
    sources = ["".join(cell["source"]) for cell in found]
    changed = "\n".join(f"{key} = {value!r}" for key, value in {**SMALL[name], **overrides}.items())
    return [*sources[: place + 1], changed, *sources[place + 1 :]]


def run_here(name: str, **overrides: Any) -> dict[str, Any]:
    """The names that the notebook defines, run in this process."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(cells(name, **overrides)):
        exec(compile(source, f"{name}, cell {number}", "exec"), names)
    return names


def test_the_quickstart_learns(tmp_path: Path) -> None:
    names = run_here("quickstart", FOLDER=str(tmp_path))
    assert names["model"].score(names["ds"]["test"]) > 0.9
    assert np.mean(names["predicted"] == names["table"].diagnosis) > 0.9


@pytest.mark.slow
def test_rows_beyond_memory_are_made_and_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_here("out_of_core", FOLDER=str(tmp_path))
    assert names["ds"].n_rows == 2 * 8_192
    assert names["score"] > 0.5
    assert "the process grew by" in capsys.readouterr().out


@pytest.mark.slow
def test_the_cluster_notebook_resumes_to_the_same_bits(
    tmp_path: Path, client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the death of a worker, which the slow set sees: the cluster is that of other tests."""
    sources = cells("cluster", FOLDER=str(tmp_path), ADDRESS=client.scheduler.address)
    names: dict[str, Any] = {"__name__": "__main__"}
    for source in sources:
        if "def die" not in source:
            exec(source, names)
    expected = names["model"].decision_function(names["X"])
    assert np.array_equal(names["resumed"].decision_function(names["X"]), expected)
    assert "tasks left on the workers: []" in capsys.readouterr().out
    assert "task-stream" in (tmp_path / "report.html").read_text().lower()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_parameters(path: Path) -> None:
    assert path.stem in SMALL
    assert path.stat().st_size < 400_000
    assert len(cells(path.stem)) > 3
    shown = [out for cell in json.loads(path.read_text())["cells"] for out in cell.get("outputs", ())]
    assert len(shown) > 3, "a reader of the site sees what was run: execute the notebook and keep its outputs"
    assert not any(out["output_type"] == "error" for out in shown)
    for cell in json.loads(path.read_text())["cells"]:
        widgets = sum(
            "Output()" in str(out.get("data", {})) or out["output_type"] == "display_data"
            for out in cell.get("outputs", ())
        )
        assert widgets <= 1 + str(cell["source"]).count(".fit("), "a fit shows one line, which is rewritten"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_in_a_kernel(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells(name)])
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {output["output_type"] for cell in notebook.cells for output in cell.get("outputs", ())}
    assert "error" not in kinds
    assert any("text/html" in output.get("data", ()) for cell in notebook.cells for output in cell.get("outputs", ()))
