"""What `deploy/` hands to Kubernetes and Docker is what their schemas, linters and our own commands accept."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
OPERATOR = "kubernetes.dask.org/v1"
DOCKERFILES = {"dkl:latest": "Dockerfile", "dkl-cuda:latest": "Dockerfile.cuda"}


def load(path: Path) -> Any:
    with open(path) as file:
        return yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))


@cache
def schemas() -> Any:
    return load(Path(__file__).with_name("operator_kinds.yaml"))


@cache
def full_schema(kind: str) -> Mapping[str, Any]:
    """What the operator's own custom resource definition says of a kind, with unknown fields refused."""
    try:
        places = [Path(str(path.locate())) for path in files("dask-kubernetes") or ()]
    except PackageNotFoundError:
        pytest.skip("the operator's own schemas come with dask-kubernetes")
    place = next(path for path in places if path.parent.name == "crds" and path.stem == kind.lower())
    found = load(place)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return closed(found["properties"]["spec"])


def closed(schema: Any) -> Any:
    """The schema with every field that it does not name an error."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    fields = isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields")
    if fields and schema.get("type") == "object":
        made.setdefault("additionalProperties", False)
    if schema.get("x-kubernetes-int-or-string"):
        made["type"] = ["integer", "string"]
    return made


def found(tree: Any, key: str) -> Iterator[Any]:
    """All values under `key` in nested mappings and lists."""
    if isinstance(tree, Mapping):
        yield from (value for name, value in tree.items() if name == key)
    if isinstance(tree, Mapping | list):
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from found(item, key)


def containers(manifest: Any) -> list[Any]:
    return [container for group in found(manifest, "containers") for container in group]


def check(manifest: Any) -> None:
    """Refuses what the schema of a kind of Kubernetes refuses, and fields that it does not know."""
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(manifest, desired_version="1.31", strict=True)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_schema_of_its_kind_accepts_a_manifest(path: Path) -> None:
    manifest = load(path)
    if manifest["apiVersion"] != OPERATOR:
        check(manifest)
        return
    pytest.importorskip("jsonschema").validate(manifest["spec"], schemas()[manifest["kind"]])
    head = {"apiVersion": "v1", "metadata": {"name": "one"}}
    for spec in (spec for spec in found(manifest, "spec") if "containers" in spec):
        check({**head, "kind": "Pod", "spec": spec})
    for spec in found(manifest, "service"):
        check({**head, "kind": "Service", "spec": spec})


@pytest.mark.slow
@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_operators_own_schema_accepts_a_manifest(path: Path) -> None:
    manifest = load(path)
    if manifest["apiVersion"] == OPERATOR:
        pytest.importorskip("jsonschema").validate(manifest["spec"], full_schema(manifest["kind"]))


@pytest.mark.parametrize(("place", "wrong"), [("worker", "replica"), ("scheduler", "services")])
def test_a_misspelt_field_is_found(place: str, wrong: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    spec = load(DEPLOY / "kubernetes" / "cluster.yaml")["spec"]
    spec[place][wrong] = 1
    with pytest.raises(jsonschema.ValidationError, match=wrong):
        jsonschema.validate(spec, schemas()["DaskCluster"])


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_uses_images_and_secrets_that_are_there(path: Path) -> None:
    manifest = load(path)
    made = {load(DEPLOY / "kubernetes" / "object-store-secret.yaml")["metadata"]["name"]}
    assert {container["image"] for container in containers(manifest)} <= set(DOCKERFILES)
    assert {reference["name"] for reference in found(manifest, "secretRef")} <= made
    assert {secret["secretName"] for secret in found(manifest, "secret")} <= {"dkl-tls"}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_the_commands_of_a_manifest_are_understood(path: Path) -> None:
    from distributed.cli import dask_scheduler, dask_worker

    from dkl.cli.app import app

    dask = {"scheduler": dask_scheduler.main, "worker": dask_worker.main}
    for container in containers(load(path)):
        program, name, *arguments = container["args"]
        if program == "dkl":
            command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
        elif name in dask:
            command = dask[name]
        else:
            command, arguments = cuda_worker(), arguments[1:]
        command.make_context(name, list(arguments))


def cuda_worker() -> Any:
    return pytest.importorskip("dask_cuda.cli", reason="the options of 'dask cuda worker' come with dask-cuda").worker


def test_a_job_brings_the_cluster_that_stands_alone_otherwise() -> None:
    """The operator wants the whole cluster inside a DaskJob; it must not drift from cluster.yaml."""
    alone = (DEPLOY / "kubernetes" / "cluster.yaml").read_text().partition("spec:\n")[2]
    own = load(DEPLOY / "kubernetes" / "dask-job.yaml")["spec"]["cluster"]["spec"]
    renamed = alone.replace("cluster-name: dkl\n", "cluster-name: dkl-fit\n").replace("tls://dkl-", "tls://dkl-fit-")
    assert yaml.safe_load(f"spec:\n{renamed}")["spec"] == own


@pytest.mark.parametrize("name", DOCKERFILES.values())
def test_an_image_is_built_from_files_that_are_there(name: str) -> None:
    lines = (DEPLOY / "docker" / name).read_text().splitlines()
    sources = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    allowed = {line.removeprefix("!") for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines()}
    assert set(sources) <= allowed
    assert all((DEPLOY.parent / source).exists() for source in sources)


@pytest.mark.parametrize(
    ("linter", "paths"),
    [
        ("shellcheck", [*DEPLOY.rglob("*.sh"), *DEPLOY.rglob("*.sbatch"), DEPLOY.parent / ".ci" / "run"]),
        ("hadolint", [DEPLOY / "docker" / name for name in DOCKERFILES.values()]),
    ],
)
def test_a_linter_finds_nothing(linter: str, paths: list[Path], program: Any) -> None:
    done = subprocess.run([program(linter), *map(str, paths)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
