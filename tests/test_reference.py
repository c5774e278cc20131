"""The reference has every public name, its examples give what they say, and it builds without a warning."""

from __future__ import annotations

import doctest
import functools
import importlib
import inspect
import re
import shutil
import subprocess
import sys
from email.message import Message
from pathlib import Path

import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.utils import estimator_html_repr

import dkl
from dkl import documented
from dkl.registry import DICTIONARIES

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "examples" / "reference"
# examples of half a second or more, on a quiet core, and one that a test in tests/methods runs as well
LONG = {
    "dkl.export.predictor",
    "dkl.machines.kernel_machines",
    "dkl.methods.leverage.learner",
    "dkl.methods.refining",
    "dkl.testing.dictionaries",
    "dkl.reporting",
    "dkl.model_selection.comparison",
    "dkl.model_selection.tuning",
    "dkl.suggestions",
}


def described() -> list[str]:
    """The names that pages describe, each as a user imports it."""
    # the page of families lists the dictionaries of the registry
    found = [f"dkl.{name}" for name in DICTIONARIES]
    for path in sorted(PAGES.glob("*.md")):
        module = ""
        # the names of an autosummary stand below it, indented
        for current, name in re.findall(r"^\.\. currentmodule:: (\S+)$|^   (\w+)$", path.read_text(), re.M):
            module = current or module
            if name:
                found.append(f"{module}.{name}")
    return sorted(found)


def test_every_public_name_is_in_the_reference_once() -> None:
    public = [f"dkl.{name}" for name in dkl.__all__ if name != "__version__"]
    public += [f"dkl.{module}.{name}" for module in dkl._MODULES for name in getattr(dkl, module).__all__]
    assert described() == sorted(public)


@pytest.mark.parametrize("name", described())
def test_every_public_name_has_an_example(name: str) -> None:
    described_object = functools.reduce(getattr, name.split(".")[1:], dkl)
    assert ">>> " in (inspect.getdoc(described_object) or ""), "its page shows how it is used"


ESTIMATORS = [name for name in dkl.__all__ if hasattr(getattr(dkl, name), "get_params")]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_html_of_an_estimator_links_to_its_page(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`test_the_reference_builds_without_a_warning` sees that the pages are there under these names."""
    monkeypatch.setenv("DKL_SITE", "file:///site/")
    kind = getattr(dkl, name)
    estimator = kind(SGDClassifier()) if name == "BlockIncremental" else kind()
    page = f"file:///site/reference/api/dkl.{name}.html"
    assert f"dkl.{name}" in described()
    assert f'href="{page}"' in estimator_html_repr(estimator)
    # a class of a user has no page of ours, and without a site nothing has
    theirs = type("Theirs", (kind,), {"__module__": "theirs"})
    assert "/reference/api/" not in estimator_html_repr(theirs(**estimator.get_params(deep=False)))
    monkeypatch.delenv("DKL_SITE")
    monkeypatch.setattr(documented, "_released", lambda: "")
    assert "/reference/api/" not in estimator_html_repr(estimator)


def test_the_site_is_that_of_the_installed_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DKL_SITE", raising=False)
    metadata = Message()
    metadata["Project-URL"] = "Source, https://example.org/source"
    assert released(metadata, monkeypatch) == ""
    metadata["Project-URL"] = "Documentation, https://example.org/dkl/"
    assert released(metadata, monkeypatch) == "https://example.org/dkl"


def released(metadata: Message, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address that a distribution of this metadata names."""
    monkeypatch.setattr(documented, "metadata", lambda name: metadata)
    documented._released.cache_clear()
    try:
        return documented.documentation()
    finally:
        documented._released.cache_clear()


def with_examples() -> list[object]:
    paths = sorted(path for path in (ROOT / "dkl").rglob("*.py") if ">>> " in path.read_text(encoding="utf-8"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in names]


@pytest.mark.parametrize("name", with_examples())
def test_examples_of_docstrings_give_what_they_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib.pyplot").switch_backend("agg")
    monkeypatch.chdir(tmp_path)
    done = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert done.attempted
    assert not done.failed


@pytest.mark.slow
def test_the_reference_builds_without_a_warning(tmp_path: Path) -> None:
    for package in ("sphinx", "furo", "myst_nb"):
        pytest.importorskip(package)
    sources = shutil.copytree(ROOT / "examples", tmp_path / "examples")
    # Pages link to sources, which the site offers as files.
    for beside in ("dkl", "tests", "deploy", "CONTRIBUTING.md", "CHANGELOG.md", ".github"):
        (tmp_path / beside).symlink_to(ROOT / beside)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", sources / "reference", sources]
    done = subprocess.run([*command, tmp_path / "site"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = tmp_path / "site" / "reference" / "api"
    assert sorted(path.stem for path in pages.glob("*.html")) == described()
    page = (pages / "dkl.AlignedFeatures.html").read_text()
    assert 'id="dkl.AlignedFeatures.transform"' in page
    assert "plot_set_output" not in page
