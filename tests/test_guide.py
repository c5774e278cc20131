"""README.md and the pages of the guide run as they stand, print what they say, and stay as short as they promise."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import dask
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.methods.parameters import check_parameters

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "examples" / "guide"
PAGES = sorted(GUIDE.glob("*.md"))
RUN_ELSEWHERE = {"serving"}  # by tests/export/test_serving.py, which hides dkl where the page says that NumPy is enough
TERMS = {
    "Fourier feature",
    "bandwidth",
    "candidate",
    "alignment",
    "pass",
    "block",
    "penalty",
    "margin",
    "atom",
}
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.S | re.M)
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?:e-?\d+)?")


def programs(page: Path) -> list[tuple[str, str]]:
    """The blocks of a page in their order, each with what the page says that it prints."""
    return [(code, expected or "") for code, expected in BLOCK.findall(page.read_text(encoding="utf-8"))]


def run(code: str, names: dict[str, Any], place: str) -> str:
    """What a block prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), names)
    return printed.getvalue()


def numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in NUMBER.findall(text)]


def assert_as_printed(printed: str, expected: str, place: str) -> None:
    """The words are those of the page, where `...` stands for any; figures may differ as they do between machines."""
    got, wanted = printed.strip().splitlines(), expected.strip().splitlines()
    assert len(got) == len(wanted), f"{place} prints\n{printed}"
    for ours, theirs in zip(got, wanted, strict=True):
        shape = ".*".join(re.escape(" ".join(NUMBER.sub("0", part).split())) for part in theirs.split("..."))
        assert re.fullmatch(shape, " ".join(NUMBER.sub("0", ours).split())), f"{place} prints\n{printed}"
        if "..." not in theirs:
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=0.1, abs=0.05), f"{place} prints\n{printed}"


def assert_runs_as_it_stands(page: Path) -> dict[str, Any]:
    """The names that a page defines, whose blocks are run one after the other."""
    names: dict[str, Any] = {"__name__": page.stem}
    for number, (code, expected) in enumerate(programs(page)):
        place = f"{page.name}, block {number + 1}"
        printed = run(code, names, place)
        if expected:
            assert_as_printed(printed, expected, place)
    return names


def test_each_system_of_the_papers_is_one_line_that_is_accepted() -> None:
    text = (GUIDE / "papers.md").read_text(encoding="utf-8")
    section = text.split("## Each system of the papers in one line")[1].split("\n## ")[0]
    lines = [line.split(" | ") for line in section.splitlines() if line.startswith("| ") and "`" in line]
    names = {name: getattr(dkl, name) for name in dir(dkl)} | {"D": 50, "N": 5, "S": [[1, 0], [0, 1]]}
    assert len(lines) > 12
    for line in lines:
        code = line[1].strip("`")
        if code != "learner.bounds_":
            eval(code, names)._check_rest()
            check_parameters(eval(code, names))


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("matplotlib.pyplot").switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# fits without settings: the README, which the quick run runs, has some, too
LONG = {"automatic"}


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else (), id=page.stem)
        for page in PAGES
        if page.stem not in RUN_ELSEWHERE
    ],
)
def test_a_page_of_the_guide_runs_as_it_stands(page: Path, empty_folder: Path) -> None:
    with dask.config.set(scheduler="threads"):
        assert_runs_as_it_stands(page)


def test_the_readme_runs_as_it_stands(empty_folder: Path) -> None:
    page = ROOT / "README.md"
    assert_runs_as_it_stands(page)
    (commands,) = [block for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.S) if "ingest" in block]
    assert len(commands.splitlines()) == 4
    for command in commands.splitlines():
        # in the folder of the block above, whose stores are not replaced; fewer features take less time
        words = command.replace("'", "").replace("--features 100", "--features 20").split()
        assert words[0] == "dkl"
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, done.output
    assert (empty_folder / "predictions.parquet").exists()


def test_the_readme_is_short_and_has_two_pictures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1_000
    pictures = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text)
    assert len(pictures) == 2
    for place in (*pictures, *re.findall(r"(?<!!)\[[^\]]+\]\((?!https?:)([^)#]+)", text)):
        assert (ROOT / place).exists(), place


def test_the_guide_says_where_each_term_first_stands() -> None:
    """A term is set in italics and explained on one page, the glossary of which links there."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    for term in TERMS:
        assert f"*{term}*" in text, f"no page explains {term!r}"


def test_every_page_of_the_guide_is_in_its_table() -> None:
    contents = (ROOT / "examples" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^guide/(\w+)$", contents, re.M)) == {page.stem for page in PAGES}


def test_no_page_of_the_site_has_the_title_of_another() -> None:
    """In the list beside every page two of one title could not be told apart."""
    contents = (ROOT / "examples" / "index.md").read_text(encoding="utf-8")
    titles = re.findall(r"^:caption: (.+)$", contents, re.M)
    for name in re.findall(r"^((?:\w+/)*\w+)$", contents, re.M):
        page = ROOT / "examples" / f"{name}.md"
        if page.exists():
            titles.append(page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# "))
        else:
            first = json.loads(page.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"][0]["source"]
            titles.append("".join(first).partition("\n")[0].removeprefix("# "))
    assert len(titles) > 40
    assert sorted(set(titles)) == sorted(titles)


def test_the_first_page_has_the_installation_an_example_and_four_cards(empty_folder: Path) -> None:
    text = (ROOT / "examples" / "index.md").read_text(encoding="utf-8")
    assert "pip install" in text
    assert text.count("{container} card\n") == 4
    (code,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert len(code.strip().splitlines()) <= 11
    # the fit is that of the README, which runs as it stands
    (fit,) = [line for line in code.splitlines() if ".fit(" in line]
    assert fit in programs(ROOT / "README.md")[0][0]
    run(code.replace("KernelClassifier(", "KernelClassifier(effort='fast', trials=[0], "), {}, "index.md")
    assert (empty_folder / "digits.zarr").exists()
    for place in re.findall(r"(?<!!)\[[^\]]+\]\((?!https?:)([^)#]+)", text):
        assert (ROOT / "examples" / place).exists(), place
