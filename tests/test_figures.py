"""Figures of the README and of the pages say which command makes them, and these commands are there and start.

A figure is a number with a unit of time, memory or error (12.5 s, 3 MB, 4 %, 2 points, 1.3 times as fast), or a mean
with its deviation (98.9 +- 0.1), outside of code. A section that holds one has a paragraph "Made by: `command`", with
one or several commands; a paragraph of the title's own section, before the first further heading, is for the whole
page. A section of settings and promises says ``<!-- not measured: why -->``.
"""

from __future__ import annotations

import ast
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dkl.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("examples/**/*.md")), *sorted(ROOT.glob("deploy/*.md"))]
UNITS = r"%|s|ms|us|min|minutes|hours|seconds|processor seconds|KB|MB|GB|TB|KiB|MiB|GiB|points|times as fast"
FIGURE = re.compile(rf"\d[\d,.]*\s?(?:{UNITS})(?![\w*])|\d \+- ?\d")
CODE = re.compile(r"^```.*?^```$|^(?: {4}.*\n)+", re.DOTALL | re.MULTILINE)
MADE_BY = re.compile(r"^Made by:(.*?)(?:\n\n|\Z)", re.DOTALL | re.MULTILINE)
NOT_MEASURED = re.compile(r"<!-- not measured: .+? -->")


def sections(text: str) -> Iterator[tuple[str, str]]:
    """The heading of each section, and its text up to the next heading; code is left out."""
    for section in re.split(r"(?m)^(?=#+ )", CODE.sub("", text)):
        heading, _, body = section.partition("\n")
        yield heading, body


def commands(body: str) -> list[str]:
    """The commands of the paragraphs "Made by"."""
    return [
        " ".join(one.split())
        for paragraph in MADE_BY.findall(body)
        for one in re.findall(r"`([^`]+)`", paragraph)
        if " " in one and not one.startswith("-")
    ]


def without_command(text: str) -> list[str]:
    """The sections of a page that hold figures and name no command."""
    parts = list(sections(text))
    whole = any(commands(body) for heading, body in parts if not heading.startswith("##"))
    return [
        f"{heading}: {found[0]}"
        for heading, body in parts
        if (found := FIGURE.findall(body)) and not (whole or commands(body) or NOT_MEASURED.search(body))
    ]


COMMANDS = sorted({one for page in PAGES for _, body in sections(page.read_text()) for one in commands(body)})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_figure_has_its_command(page: Path) -> None:
    missing = without_command(page.read_text(encoding="utf-8"))
    assert not missing, f"name the command that makes it, as a paragraph 'Made by: `command`': {missing}"


@pytest.mark.parametrize("page", sorted(ROOT.glob("examples/guide/*.md")), ids=lambda page: page.stem)
def test_the_guide_leaves_figures_to_the_pages_of_measurements(page: Path) -> None:
    """What holds in general stays true; a figure does not. The page of the papers is one of measurements."""
    if page.stem == "papers":
        pytest.skip("its tables are what a reader compares with the papers")
    found = [
        f"{heading}: {figures[0]}"
        for heading, body in sections(page.read_text(encoding="utf-8"))
        if (figures := FIGURE.findall(body)) and not NOT_MEASURED.search(body)
    ]
    assert not found, f"put it into examples/benchmarks/guide.md and link to it: {found}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A\n\nIt took 12.5 s.\n", ["# A: 12.5 s"]),
        ("# A\n\n| rows | 98.90 +- 0.10 |\n", ["# A: 0 +- 0"]),
        ("# A\n\nIt took 12 s.\n\nMade by: `python a.py`.\n", []),
        ("# A\n\nMade by: `python a.py`.\n\n## B\n\nIt errs on 3 %.\n", []),
        ("# A\n\n## B\n\nMade by: `python a.py`.\n\n## C\n\nIt errs on 3 %.\n", ["## C: 3 %"]),
        ("# A\n\n<!-- not measured: a setting -->\n\nAfter 30 s.\n", []),
        ("# A\n\nMade by hand.\n\n```text\n3 s\n```\n", []),
        ("# A\n\nIt has 3 columns in 5 sets, s is a sum, and 4 seeds.\n", []),
    ],
)
def test_a_figure_without_a_command_is_found(text: str, expected: list[str]) -> None:
    assert without_command(text) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_figure_is_there_and_starts(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says what it takes, and knows each option that the page gives it."""
    program, *words = shlex.split(command)
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    if program == "dkl":
        names = [word for word in words if not word.startswith("-")][:1]
        result = CliRunner().invoke(app, [*names, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
        assert result.exit_code == 0
        said = result.output
    elif program == "python":
        said = help_of(words, monkeypatch, capsys)
    else:
        assert (program, words[0]) == ("jupyter", "execute"), "a command of another program: say here how it starts"
        assert (ROOT / words[1]).is_file()
        said = ""
    assert [one for one in options if one not in said] == []


# what each script says, which stands in several commands with other options
SAID: dict[str, str] = {}


def help_of(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a script, or a module behind -m, says to --help."""
    is_module = words[0] == "-m"
    name = words[1] if is_module else words[0]
    if name not in SAID:
        SAID[name] = said_by(name, is_module, monkeypatch, capsys)
    return SAID[name]


def said_by(name: str, is_module: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What a program says to --help, which is run here."""
    script = ROOT / (name.replace(".", "/") + "/__main__.py" if is_module else name)
    imported = {
        name.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert "argparse" in imported, f"{script} takes no --help"
    # what scripts compare with is installed by an extra of its own
    if "lightgbm" in imported:
        pytest.importorskip("lightgbm")
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(str(script.parent))
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__") if is_module else runpy.run_path(str(script), run_name="__main__")
    assert ended.value.code == 0
    return capsys.readouterr().out
