"""The reference: pages from the docstrings and the examples. From the repository's root, without a network:

sphinx-build -W -c examples/reference examples build/reference
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.autosummary.generate import generate_autosummary_docs
from typer.main import get_command

from dkl.cli.app import app as program
from dkl.registry import DICTIONARIES, LOSSES
from dkl.version import __version__

project, author, release = "dkl", "the dkl developers", __version__
extensions = ["sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_nb"]
root_doc = "index"
include_patterns = [
    "*.md",
    "*.ipynb",
    "guide/*.md",
    "reference/*.md",
    "reference/api/*.rst",
    "benchmarks/*.md",
    "benchmarks/tables/*.md",
    "papers/*.md",
]
html_theme = "furo"
html_title = f"dkl {release}"
html_static_path = ["static"]
html_css_files = ["dkl.css"]

# a name in backquotes links to where it is described, wherever that is
default_role = "py:obj"
python_use_unqualified_type_names = True
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types and shapes
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
}
# every public name gets a page of its own, reference/api/dkl.NAME.rst, which is written anew by each build
autosummary_generate = True
templates_path = ["templates"]
napoleon_use_ivar = True
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/test_notebooks.py runs them
nb_ipywidgets_js: dict[str, Any] = {}  # scripts of other hosts


def plain_text(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are read in terminals first, where |w| is a norm and dual_ a name: no substitution and no link."""
    code = False
    for number, line in enumerate(lines):
        code = line.lstrip().startswith(">>>") or (code and bool(line.strip()))
        if not code:
            parts = line.split("``")
            parts[::2] = [part.replace("|", "\\|") for part in parts[::2]]
            lines[number] = re.sub(r"^(:(?:ivar|vartype) .*)_:", r"\1\\_:", "``".join(parts))


def of_scikit_learn(app: Sphinx, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what scikit-learn adds to every estimator and describes itself."""
    home = getattr(thing, "__module__", None) or ""
    return True if home.startswith("sklearn.") else None


# The summary of the registry's dictionaries on the page of families.
DICTIONARY_SUMMARY = "\n   ".join([".. currentmodule:: dkl\n\n.. autosummary::", ":toctree: api\n", *DICTIONARIES])


def pages_of_dictionaries(app: Sphinx) -> None:
    """The page of each dictionary: autosummary itself makes those of names that files list."""
    with TemporaryDirectory() as folder:
        (listed := Path(folder, "listed.rst")).write_text(DICTIONARY_SUMMARY, encoding="utf-8")
        generate_autosummary_docs([str(listed)], app.srcdir / "reference" / "api", app=app)


def tables_on_pages(app: Sphinx, docname: str, source: list[str]) -> None:
    """The help of every command, and the registry's tables, in their places on pages."""
    if docname == "reference/commands":
        source[0] += "".join(map(command_as_text, get_command(program).commands.values()))
    elif docname == "reference/families":
        source[0] = source[0].replace("<!-- dictionaries -->", f"```{{eval-rst}}\n{DICTIONARY_SUMMARY}\n```")
    elif docname == "reference/machines":
        heads = ("`loss`", "of a row", "labels", "numbers", "scikit-learn")
        rows = (
            (
                f'`"{name}"`',
                loss.formula,
                *(", ".join(loss.solvers.get(task, ())) for task in ("classification", "regression")),
                loss.equals,
            )
            for name, loss in LOSSES.items()
        )
        lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
        source[0] = source[0].replace("<!-- losses -->", "\n".join(lines))


def command_as_text(command: Any, above: str = "dkl") -> str:
    """What a command does, and what it takes; of a group of commands, all of them."""
    if hasattr(command, "commands"):
        return "".join(command_as_text(each, f"{above} {command.name}") for each in command.commands.values())
    taken = "\n\n".join(f"`{spelling(option)}`\n: {option.help or ''}" for option in command.params)
    return f"\n## {above} {command.name}\n\n{inspect.cleandoc(command.help)}\n\n{taken}\n"


def spelling(option: Any) -> str:
    """How an option or argument is written."""
    return ", ".join(option.opts) if option.opts[0].startswith("-") else option.name.upper()


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", plain_text)
    app.connect("autodoc-skip-member", of_scikit_learn)
    app.connect("builder-inited", pages_of_dictionaries)
    app.connect("source-read", tables_on_pages)
