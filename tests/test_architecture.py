"""The shape of the code, read from its syntax trees: where imports point, what is documented."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse import csgraph

import dkl
from dkl.registry import losses_for

ROOT = Path(__file__).parents[1]
LIBRARY = sorted((ROOT / "dkl").rglob("*.py"))

# Each layer with the layers that it may import beside itself. Those of `FOUNDATION` import no other. Methods, heads and
# uncertainty have two layers each: what is pure (block functions, drivers, problems, their mathematics: no Dask, no
# rows) and what knows datasets and passes (learners).
FOUNDATION = {"atomic", "documented", "errors", "events", "plain_files", "plain_text", "process", "registry", "version"}
ARROW: dict[str, set[str]] = {
    "atomic": set(),
    "documented": set(),
    "errors": set(),
    "events": set(),
    "plain_files": set(),
    "plain_text": set(),
    "process": set(),
    "version": set(),
    "registry": set(),
    "progress": {"events"},
    "": {"version", "registry"},
    "protocols": FOUNDATION,
    "features": FOUNDATION,
    "kernels": FOUNDATION | {"protocols", "features"},
    "solvers": FOUNDATION | {"kernels"},
    "data": FOUNDATION | {"progress", "protocols"},
}
ARROW["uncertainty, pure"] = FOUNDATION | {"protocols", "features", "kernels", "solvers"}
ARROW["linear, pure"] = ARROW["uncertainty, pure"] | {"uncertainty, pure"}
ARROW["methods, pure"] = ARROW["linear, pure"] | {"linear, pure"}
ARROW["bounds"] = FOUNDATION | {"solvers"}
ARROW["passes"] = FOUNDATION | {"progress", "protocols", "kernels", "data"}
ARROW["linear"] = ARROW["linear, pure"] | ARROW["passes"] | {"passes", "linear, pure"}
ARROW["encodings"] = ARROW["linear"] | {"linear"}
ARROW["methods"] = ARROW["linear"] | {"linear", "encodings", "methods, pure", "bounds"}
ARROW["uncertainty"] = ARROW["methods"] | {"methods"}
ARROW["machines"] = ARROW["uncertainty"] | {"uncertainty"}
ARROW["testing"] = ARROW["machines"] | {"machines", "model_io"}
TOP = {
    "cli",
    "model_selection",
    "planning",
    "reporting",
    "suggestions",
    "figure",
    "plots",
    "explain",
    "export",
    "model_io",
    "demo",
    "bench",
    "drift",
    "federated",
}
ARROW.update(dict.fromkeys(TOP, ARROW["testing"] | TOP))
ARROW["__main__"] = {"cli"}
# Losses import nothing of dkl but their table in the registry, so that every layer may read them: the steps of a
# kernel, too.
LEAVES = {"dkl.solvers.losses"}
# Imports against the arrow, each inside the function that needs it: a method that users call on a model.
INVERTED = {
    ("dkl.methods.saving", "dkl.model_io"),
    ("dkl.methods.saving", "dkl.export.onnx_graph"),
    ("dkl.methods.saving", "dkl.export.pipeline"),
    ("dkl.methods.predicting", "dkl.export.predictor"),
    ("dkl.methods.modelled", "dkl.machines.kernel_machines"),
    ("dkl.linear.incremental", "dkl.encodings.categories"),
}
# One method imports another only by a row of this table; `preparation`, `frequency_search`, `metric` and
# `rounds` are kits.
BETWEEN_METHODS = {
    ("margin", "game"): "the solver of Algorithm 2 is a parameter of MarginFeatures",
    ("density", "aligned"): "JointFeatures has the default bound on the divergence that AlignedFeatures has",
    ("rounds", "steps"): "steps are one of the dictionaries, and their histograms the sums of a round",
    ("margin", "nystrom"): "landmarks that rounds have chosen are whitened as those of NystromFeatures",
    ("landmarks", "posterior"): "the weights of a landmark's candidates are a pseudo-posterior",
}
KITS = {"preparation", "frequency_search", "metric", "rounds"}
# Modules of methods and heads that know datasets and passes; every other one there loads neither Dask nor zarr.
LEARNER_ROLES = {"learner", "fit"}
PURE_AT_THE_ROOT = {"choice", "potential_sums"}
IMPURE_UNCERTAINTY = {"conformal", "conformal_groups"}
# Drift compares two samples of rows and draws what it finds, so that it stands beside plots, above the machines.
DRIFT = {"drifting", "drift_samples"}
IMPURE_HEADS = {
    "answers",
    "fitting",
    "incremental",
    "summary",
    "target_statistics",
}
# Packages whose front door hands out what users import.
OPEN_DOORS = {ROOT / "dkl" / name / "__init__.py" for name in ("", "bounds", "explain", "plots", "testing")}

DRAWERS = {"utils", "util", "common", "helpers", "helper", "core", "misc", "tools", "base_utils"}
MOST_ARGUMENTS = 7


def module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(autouse=True, scope="module")
def trees_are_let_go() -> Iterator[None]:
    """Those of the whole library are large: tests of memory come later, and none of them is garbage before."""
    gc.disable()
    yield
    gc.enable()
    tree_of.cache_clear()
    nodes_of.cache_clear()
    imports_between_modules.cache_clear()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def imports_of(path: Path) -> Iterator[tuple[str, tuple[str, ...], int]]:
    """Each import as (module, names taken from it, line); a relative one begins with dots."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, (), node.lineno
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or ""), tuple(a.name for a in node.names), node.lineno


def is_package(name: str) -> bool:
    return (ROOT.joinpath(*name.split(".")) / "__init__.py").exists()


def is_module(name: str) -> bool:
    return ROOT.joinpath(*name.split(".")).with_suffix(".py").exists() or is_package(name)


def modules_of_dkl(path: Path) -> Iterator[tuple[str, int]]:
    """The modules of dkl that a file imports."""
    for module, names, line in imports_of(path):
        if module.partition(".")[0] != "dkl":
            continue
        inner = [f"{module}.{name}" for name in names if is_module(f"{module}.{name}")]
        yield from ((name, line) for name in inner or [module])


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def places(found: list[tuple[Path, int, str]]) -> str:
    return "\n".join(f"{path.relative_to(ROOT)}:{line}: {what}" for path, line, what in found)


def layer_of(module: str) -> str:
    """The layer of a module: its folder, and for methods and heads whether it is pure."""
    parts = module.split(".")[1:]
    if parts[0] == "methods" and len(parts) > 1:
        at_the_root = len(parts) == 2
        role = parts[-1].rpartition("_")[2]
        pure = parts[-1] in PURE_AT_THE_ROOT if at_the_root else role not in LEARNER_ROLES
        return "methods, pure" if pure else "methods"
    if parts[0] == "linear" and len(parts) > 1:
        return "linear" if parts[-1] in IMPURE_HEADS else "linear, pure"
    if parts[0] == "uncertainty" and len(parts) > 1:
        if parts[-1] in DRIFT:
            return "drift"
        return "uncertainty" if parts[-1] in IMPURE_UNCERTAINTY else "uncertainty, pure"
    return parts[0]


@cache
def imports_between_modules() -> list[tuple[Path, str, str, int]]:
    """Each import of one module of dkl by another, inside functions too: file, importer, imported, line."""
    importers = [(path, module_name(path)) for path in LIBRARY if module_name(path) != "dkl"]
    return [(path, importer, *found) for path, importer in importers for found in modules_of_dkl(path)]


def test_the_names_that_dkl_lists_are_its_public_ones() -> None:
    listed = dir(dkl)
    assert set(listed) == {*dkl.__all__, "bounds", "explain", "plots", "testing"}
    assert "Any" not in listed


def test_imports_point_one_way() -> None:
    wrong = []
    for path, importer, imported, line in imports_between_modules():
        layer, other = layer_of(importer), layer_of(imported)
        if imported in LEAVES or (importer, imported) in INVERTED:
            continue
        if other not in ARROW[layer] | {layer}:
            wrong.append((path, line, f"{layer} imports {other}: {imported}"))
    assert not wrong, places(wrong)


def test_leaves_import_nothing_of_dkl_but_the_registry() -> None:
    imported = {imported for _, importer, imported, _ in imports_between_modules() if importer in LEAVES}
    assert imported == {"dkl.registry"}


def test_methods_import_each_other_by_the_table_alone() -> None:
    used = set()
    for _, importer, imported, _ in imports_between_modules():
        ours, theirs = importer.split("."), imported.split(".")
        if ours[1] == theirs[1] == "methods" and len(ours) > 3 and len(theirs) > 3 and ours[2] != theirs[2]:
            used.add((ours[2], theirs[2]))
    assert {pair for pair in used if pair[1] not in KITS} == set(BETWEEN_METHODS)


def test_no_modules_import_each_other() -> None:
    """By imports inside functions neither."""
    graph: dict[str, set[str]] = {}
    for _, importer, imported, _ in imports_between_modules():
        if imported != importer and imported != "dkl":
            graph.setdefault(importer, set()).add(imported)
    names = sorted(set(graph).union(*graph.values()))
    number = {name: i for i, name in enumerate(names)}
    edges = [(number[a], number[b]) for a, others in graph.items() for b in others]
    matrix = sparse.coo_array((np.ones(len(edges)), tuple(zip(*edges, strict=True))), shape=(len(names),) * 2)
    _, labels = csgraph.connected_components(matrix, connection="strong")
    parts = [[names[i] for i in np.flatnonzero(labels == label)] for label in np.unique(labels)]
    assert not [part for part in parts if len(part) > 1]


def test_no_module_imports_through_a_front_door() -> None:
    wrong = []
    for path in LIBRARY:
        if path in OPEN_DOORS:
            continue
        for module, names, line in imports_of(path):
            if module.startswith("."):
                wrong.append((path, line, "a relative import"))
            elif module.partition(".")[0] == "dkl" and is_package(module):
                doors = [name for name in names if not is_module(f"{module}.{name}")]
                if doors or not names:
                    wrong.append((path, line, f"from {module} import {', '.join(doors)}"))
    assert not wrong, places(wrong)


def test_front_doors_hold_no_code() -> None:
    wrong = [
        (path, 1, "code in a package's __init__")
        for path in LIBRARY
        if path.name == "__init__.py" and path not in OPEN_DOORS
        for node in tree_of(path).body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert not wrong, places(wrong)


def test_the_library_does_not_print() -> None:
    wrong = [
        (path, node.lineno, "print")
        for path in LIBRARY
        if "cli" not in path.parts
        for node in nodes_of(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not wrong, places(wrong)


def test_nothing_is_asserted_or_caught_blindly() -> None:
    wrong = []
    for path in LIBRARY:
        for node in nodes_of(path):
            if isinstance(node, ast.ExceptHandler) and node.type is None:
                wrong.append((path, node.lineno, "bare except"))
            elif isinstance(node, ast.Assert) and "testing" not in path.parts:
                wrong.append((path, node.lineno, "assert: raise an error that says what to do"))
            elif isinstance(node, ast.Name) and node.id == "NotImplementedError":
                wrong.append((path, node.lineno, "NotImplementedError"))
    assert not wrong, places(wrong)


def test_functions_take_few_positional_arguments() -> None:
    wrong = []
    for path in LIBRARY:
        for function in functions_of(path):
            names = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg not in ("self", "cls")]
            if len(names) > MOST_ARGUMENTS:
                wrong.append((path, function.lineno, f"{function.name} takes {len(names)} positional arguments"))
    assert not wrong, places(wrong)


def test_no_drawers() -> None:
    wrong = [
        (path, 1, "a drawer: which responsibility lacks a home?")
        for path in LIBRARY
        if path.stem.strip("_") in DRAWERS or path.parent.name in DRAWERS
    ]
    assert not wrong, places(wrong)


def test_every_module_says_what_it_is_responsible_for() -> None:
    wrong = []
    for path in LIBRARY:
        text = ast.get_docstring(tree_of(path))
        if path.name != "__init__.py" and (not text or not text.split("\n\n")[0].rstrip().endswith((".", ".)"))):
            wrong.append((path, 1, "no first sentence"))
    assert not wrong, places(wrong)


def test_nothing_is_left_to_do() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|^\s*#\s*[-=#*]{4,}")
    wrong = [
        (path, number, line.strip())
        for path in (*LIBRARY, *sorted((ROOT / "tests").rglob("*.py")))
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marker.search(line)
    ]
    assert not wrong, places(wrong)


@pytest.mark.parametrize(
    ("package", "home"),
    [
        ("cupy", "dkl.kernels.device"),
        ("cupyx", "dkl.kernels.device"),
        ("sklearn.utils._param_validation", "dkl.methods.parameters"),
    ],
)
def test_one_module_alone_knows(package: str, home: str) -> None:
    importers = {
        module_name(path)
        for path in LIBRARY
        for module, _, _ in imports_of(path)
        if module == package or module.startswith(f"{package}.")
    }
    assert importers <= {home}


PURE = ("protocols", "features", "kernels", "solvers", "methods, pure", "linear, pure", "uncertainty, pure")


def test_arithmetic_drivers_and_problems_load_neither_dask_nor_zarr() -> None:
    modules = [module_name(path) for path in LIBRARY if module_name(path) != "dkl"]
    modules = [module for module in modules if layer_of(module) in PURE]
    assert len(modules) > 100
    program = (
        f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}]; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'dask', 'distributed', 'zarr', 'cupy'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def documented_parameters(text: str) -> list[str] | None:
    """The names in the Parameters section of a numpydoc docstring; None when there is no such section."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}$|\Z)", inspect.cleandoc(text), re.M | re.S)
    if section is None:
        return None
    heads = [line for line in section[1].splitlines() if line and not line[0].isspace()]
    return [name.strip().lstrip("*") for head in heads for name in head.partition(" : ")[0].split(",")]


def signature_parameters(thing: object) -> list[str]:
    return [name for name in inspect.signature(thing).parameters if name not in ("self", "cls")]  # type: ignore[arg-type]


def public_things() -> Iterator[tuple[str, object]]:
    """Public functions and classes of the library with the place where they are defined."""
    for path in LIBRARY:
        if "cli" in path.parts or path.name in ("__init__.py", "__main__.py"):
            continue
        module = importlib.import_module(module_name(path))
        for name, thing in vars(module).items():
            public = not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
            if public and (inspect.isfunction(thing) or inspect.isclass(thing)):
                yield f"{module.__name__}.{name}", thing


def test_every_public_name_says_what_it_is() -> None:
    lacking = [place for place, thing in public_things() if not inspect.getdoc(thing)]
    assert not lacking, lacking


def test_documented_parameters_exist() -> None:
    wrong = []
    for place, thing in public_things():
        documented = documented_parameters(inspect.getdoc(thing) or "")
        unknown = set(documented or ()) - set(signature_parameters(thing)) if documented else set()
        if unknown and not getattr(thing, "_is_protocol", False):
            wrong.append(f"{place} documents {sorted(unknown)}, which its signature lacks")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in dkl.__all__ if name != "__version__"])
def test_what_users_import_documents_every_parameter(name: str) -> None:
    thing = getattr(dkl, name)
    text = inspect.getdoc(thing) or ""
    expected = signature_parameters(thing)
    assert re.match(r"\S.*[.:]", text), f"{name} has no one-line summary"
    if expected:
        assert documented_parameters(text) == expected


@pytest.mark.parametrize(
    ("start", "most"),
    [
        ("machines.kernel_machines", 10),
        ("methods.aligned.learner", 6),
        ("methods.margin.learner", 7),
        ("methods.peaks.learner", 6),
    ],
)
def test_the_way_from_fit_to_a_sine_names_functions_that_exist(start: str, most: int) -> None:
    text = importlib.import_module(f"dkl.{start}").__doc__ or ""
    steps = re.findall(r"^    (\S+)\.py: (.+)$", text, flags=re.MULTILINE)
    assert 3 < len(steps) <= most
    for path, names in steps:
        module = importlib.import_module("dkl." + path.replace("/", "."))
        for name in names.split(", "):
            function = attrgetter(name)(module)
            assert inspect.getmodule(function) is module, (path, name)


@pytest.mark.parametrize(("name", "task"), [("KernelClassifier", "classification"), ("KernelRegressor", "regression")])
def test_machines_refer_to_the_tables_of_losses_and_penalty_rules(name: str, task: str) -> None:
    text = inspect.getdoc(getattr(dkl, name)) or ""
    (loss,) = re.findall(r"^loss : str or None\n(.*?)^\S", text, re.M | re.S)
    (alpha,) = re.findall(r"^alpha : float, str or None\n(.*?)^\S", text, re.M | re.S)
    assert "`LOSSES` of `dkl.registry`" in loss
    assert set(re.findall(r'"(\w+)"', loss)) <= set(losses_for(task))
    assert "`PENALTY_RULES`" in alpha


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "deploy/README.md", "examples/guide/guarantees.md"])
def test_pages_name_files_and_tests_that_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for place in re.findall(r"`((?:tests|dkl|examples)/[^`\s]*)`", text):
        path, _, name = place.partition("::")
        assert (ROOT / path).exists(), place
        assert not name or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), place
