"""What a release is made of agrees with itself: versions, dependencies, workflows, the pages about them."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from dkl.version import __version__

ROOT = Path(__file__).parents[1]
HIDDEN = ROOT / ".github"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((HIDDEN / "workflows").glob("*.yml"))
RECIPE = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text(encoding="utf-8"))


def bounds(requirements: list[str]) -> dict[str, str]:
    """Lower bounds by the names of packages; extras are left out."""
    found = {}
    for requirement in requirements:
        match = re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?\s*(?:>=([\d.]+))?", requirement)
        assert match is not None, requirement
        found[match[1]] = match[2] or ""
    return found


DECLARED = bounds(PROJECT["dependencies"])


def test_the_version_is_the_same_everywhere() -> None:
    assert yaml.safe_load((HIDDEN / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    assert RECIPE["context"]["version"] == __version__
    top = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert top is not None
    assert top[1] == __version__


def test_every_dependency_is_justified_and_no_other() -> None:
    text = (HIDDEN / "DEPENDENCIES.md").read_text(encoding="utf-8")
    rows = text.split("## Considered")[0]
    assert set(re.findall(r"^\| `([\w-]+)`", rows, re.M)) == set(DECLARED)
    extras = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]+)\|", text.split("## Extras")[1], re.M))))
    assert extras == set(PROJECT["optional-dependencies"])


def test_the_recipe_has_the_dependencies_of_the_package() -> None:
    ours = [requirement.replace(" ", "") for requirement in RECIPE["requirements"]["run"][1:]]
    assert bounds(ours) == DECLARED
    assert RECIPE["requirements"]["run"][0].endswith(PROJECT["requires-python"].split(",")[1])
    assert RECIPE["context"]["python_min"] in PROJECT["requires-python"]


def test_the_recipe_installs_what_the_package_declares() -> None:
    """The checksum of the sdist is known after the upload alone: zeros until then; the checklist says how they go."""
    assert {"schema_version", "context", "package", "source", "build", "requirements", "tests", "about"} <= set(RECIPE)
    assert RECIPE["source"]["url"].endswith("dkl-${{ version }}.tar.gz")
    assert re.fullmatch(r"[0-9a-f]{64}", RECIPE["source"]["sha256"])
    assert "sha256sum" in (HIDDEN / "RELEASING.md").read_text(encoding="utf-8")
    assert RECIPE["build"]["python"]["entry_points"] == [f"{name} = {at}" for name, at in PROJECT["scripts"].items()]
    assert RECIPE["about"]["license"] == PROJECT["license"]
    assert [RECIPE["about"]["license_file"]] == PROJECT["license-files"]
    assert RECIPE["about"]["summary"] == PROJECT["description"]
    # the bare interpreter is in the host, and so is what builds the wheel
    backend = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert {text.replace(" ", "") for text in RECIPE["requirements"]["host"][1:]} == {*backend, "pip"}
    for step in RECIPE["tests"]:
        for line in step.get("script", ()):
            if line.startswith("python -c "):
                compile(line.removeprefix("python -c ").strip('"'), "recipe.yaml", "exec")


def test_the_oldest_dependencies_are_the_lower_bounds() -> None:
    lines = (HIDDEN / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert set(pinned) == {name for name, bound in DECLARED.items() if bound}
    for name, version in pinned.items():
        numbers, bound = ([int(part) for part in text.split(".")] for text in (version, DECLARED[name]))
        assert numbers[: len(bound)] == bound, name
        assert not any(numbers[len(bound) :]), f"{name}: {version} is above the bound {DECLARED[name]}"


def test_declared_pythons_are_those_that_are_tested() -> None:
    declared = {text.split(" :: ")[-1] for text in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", text)}
    jobs = yaml.safe_load((HIDDEN / "workflows" / "tests.yml").read_text(encoding="utf-8"))["jobs"]
    assert set(jobs["newest"]["strategy"]["matrix"]["python"]) == declared


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_what_its_schema_accepts(path: Path) -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def steps(path: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values()
    return [step for job in jobs for step in job.get("steps", ())]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_do_little_and_ends(path: Path) -> None:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert found["permissions"] == {"contents": "read"}
    assert all("timeout-minutes" in job or "uses" in job for job in found["jobs"].values())
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_only_the_job_that_publishes_has_an_identity() -> None:
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            allowed = {"id-token": "write"} if name == "publish" else None
            assert job.get("permissions") == allowed
    release = yaml.safe_load((HIDDEN / "workflows" / "release.yml").read_text(encoding="utf-8"))["jobs"]
    assert set(release["publish"]["needs"]) == {"tests", "build", "quickstart"}


def test_files_that_the_workflows_name_are_there() -> None:
    for path in WORKFLOWS:
        for place in re.findall(r"(?:\.github|tests|examples)/[\w./-]*\w", path.read_text(encoding="utf-8")):
            assert (ROOT / place).exists(), f"{path.name}: {place}"


@pytest.mark.parametrize("path", sorted((HIDDEN / "ISSUE_TEMPLATE").glob("[!c]*.yml")), ids=lambda path: path.stem)
def test_an_issue_form_asks_by_name(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_the_script_of_the_release_runs_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("```python\nx = 1\n```\n\n```python\nassert x == 1\n```\n")
    command = [sys.executable, str(HIDDEN / "quickstart.py"), str(tmp_path / "page.md")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2 blocks ran\n"
