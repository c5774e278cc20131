"""The gallery shows every script, notebook and display, and its own pictures are made by scripts that run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dkl.plots

pyplot = pytest.importorskip("matplotlib.pyplot")
EXAMPLES = Path(__file__).parents[1] / "examples"
GALLERY = (EXAMPLES / "gallery.md").read_text(encoding="utf-8")
# the displays of the others are drawn in tests/test_plots.py, on smaller models
QUICK_PICTURES = {"coverage", "kernel", "row", "sphere"}
# what scripts import from each other, and the suite of tables whose entry is suite.py
PARTS = {"cells", "sets", "splits", "hinge", "squared_hinge", "baselines", "conf", "displays"}
PARTS |= {"alignment_figures", "alignment_race", "alignment_sets", "figure_4_machines", "few_rows"}
PARTS |= {"table_arms", "table_fits", "table_page", "table_sets"}


def script(name: str) -> dict[str, Any]:
    pyplot.switch_backend("agg")
    return runpy.run_path(str(EXAMPLES / name), run_name="example")


def test_every_script_and_notebook_has_its_entry() -> None:
    scripts = [path for path in EXAMPLES.rglob("*.py") if path.stem not in PARTS]
    for path in (*scripts, *EXAMPLES.glob("*.ipynb")):
        assert f"]({path.relative_to(EXAMPLES)})" in GALLERY, f"the gallery has no entry of {path.name}"
    assert GALLERY.count("\n### ") >= 15


def test_every_display_has_its_picture() -> None:
    functions = script("displays.py")["DISPLAYS"]
    for name in dkl.plots.__all__:
        entry = GALLERY.split(f"### {name}\n")[1].split("\n###")[0]
        (picture,) = re.findall(r"\]\(pictures/(\w+)\.png\)", entry)
        (function,) = re.findall(r"pyobject: (\w+)", entry)
        assert functions[picture].__name__ == function


def test_pictures_are_there_and_small() -> None:
    pages = [EXAMPLES / "gallery.md", *EXAMPLES.glob("guide/*.md")]
    shown = {name for page in pages for name in re.findall(r"pictures/(\w+\.png)\)", page.read_text(encoding="utf-8"))}
    there = {path.name for path in (EXAMPLES / "pictures").glob("*.png")}
    assert shown <= there
    assert there - shown == {"choose_explain_ship.png"}, "a picture that no page shows"
    assert sum(path.stat().st_size for path in (EXAMPLES / "pictures").iterdir()) < 1_000_000


def test_every_entry_has_a_picture() -> None:
    for entry in GALLERY.split("\n### ")[1:]:
        assert "](pictures/" in entry, f"the entry {entry.splitlines()[0]!r} shows nothing"


def test_pictures_of_tables_say_what_their_pages_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is drawn from the page, without a measurement; a page that lost its table would be noticed here."""
    monkeypatch.syspath_prepend(EXAMPLES)
    names = script("gallery_pictures.py")
    for draw in names["PICTURES"].values():
        draw()
        assert all(axes.has_data() for axes in pyplot.gcf().axes)
        pyplot.close("all")
    rows, found = names["columns"]("replace_svc.md", "rows", 2, ("LightGBM",))
    assert rows[0] == "10,000"
    assert found["LightGBM"][0] == 0.1


DRAWN = (
    "answers",
    "coverage",
    "drift",
    "decision",
    "weighted_rows",
    "landscape",
    "history",
    "kernel",
    "effects",
    "importance",
    "dependence",
    "row",
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK_PICTURES else pytest.mark.slow)
        for name in (*DRAWN, "sphere", "comparison", "trials")
    ],
)
def test_a_display_of_the_gallery_is_drawn(name: str) -> None:
    display = script("displays.py")["DISPLAYS"][name]().plot()
    assert display.figure_.axes
    pyplot.close("all")


@pytest.mark.slow
def test_the_picture_of_the_readme_is_measured_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.syspath_prepend(EXAMPLES / "papers")
    names = script("error_against_time.py")
    for dial, value in (("FEATURES", (10,)), ("TREES", (5,)), ("SHARES", (1.0,))):
        monkeypatch.setitem(names["run"].__globals__, dial, value)
    figures = tmp_path / "figures.json"
    names["run"](("wine",), None, 1, figures)
    found = json.loads(figures.read_text())
    points = found["sets"]["wine"]["points"]
    assert [point["machine"] for point in points] == ["dkl", "dkl", "LightGBM", "RBF-SVM"]
    assert all(point["error"] < 0.3 and point["seconds"] > 0 for point in points)
    names["draw"](found, tmp_path / "picture.png", ("wine", "not measured"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_rows_of_images_and_tables_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightgbm")
    monkeypatch.syspath_prepend(EXAMPLES / "papers")
    rows_of = script("error_against_time.py")["rows_of"]
    with pytest.raises(ValueError, match="give its folder as --data"):
        rows_of("satimage", None)
    pd = pytest.importorskip("pandas")
    (tmp_path / "tabular").mkdir()
    told = {"satimage": {"target": "kind", "task": "classification", "split": None}}
    (tmp_path / "tabular" / "sets.json").write_text(json.dumps(told))
    pd.DataFrame({"a": [1, 2, 3], "kind": ["x", "y", "x"]}).to_parquet(tmp_path / "tabular" / "satimage.parquet")
    X, y = rows_of("satimage", tmp_path)
    np.testing.assert_array_equal(X, [[1.0], [2.0], [3.0]])
    np.testing.assert_array_equal(y, [0, 1, 0])
