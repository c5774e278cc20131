"""Bad input of every kind: one clear error that names the argument and the remedy, at once, and nothing is written.

Each case is a line of the table: what is attempted in an empty folder, the type of the error, and what its message
(with its notes) has to say.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from scipy import sparse

import dkl
from dkl.errors import StoreError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4))
Y = np.array(["no", "yes"] * 30)
TARGETS = X @ np.arange(4.0)


@dataclass(frozen=True)
class Case:
    """One attempt that must fail with one clear error."""

    name: str
    attempt: Callable[[Path], Any]
    error: type[Exception]
    says: tuple[str, ...]


def with_value(value: Any, row: int, column: int | None = None) -> np.ndarray:
    """X, or the targets where there is no column, with one value spoiled."""
    spoiled = TARGETS.copy() if column is None else X.copy()
    spoiled[row if column is None else (row, column)] = value
    return spoiled


def csv(folder: Path, text: str) -> str:
    path = folder / "input.csv"
    path.write_text(text)
    return str(path)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], **columns})


def create(folder: Path, *arguments: Any, **options: Any) -> Any:
    return dkl.create_dataset(str(folder / "rows.zarr"), *arguments, **options)


def ingest(folder: Path, text: str, **options: Any) -> Any:
    return dkl.ingest(csv(folder, text), str(folder / "rows.zarr"), **options)


def fit_aligned(*, rows: Any = X, labels: Any = Y, **parameters: Any) -> Any:
    return dkl.AlignedFeatures(**{"n_candidates": 40, "n_features": 10, "random_state": 0, **parameters}).fit(
        rows, labels
    )


def fit_random(*, rows: Any = X, **parameters: Any) -> Any:
    return dkl.RandomFeatures(**{"n_features": 10, "random_state": 0, **parameters}).fit(rows)


def fit_posterior(*, rows: Any = X, labels: Any = Y, **parameters: Any) -> Any:
    return dkl.PosteriorFeatures(**{"n_candidates": 40, "n_features": 10, "random_state": 0, **parameters}).fit(
        rows, labels
    )


def classifier(**parameters: Any) -> Any:
    return dkl.KernelClassifier(**{"features": dkl.RandomFeatures(n_features=10), "random_state": 0, **parameters})


def regressor(**parameters: Any) -> Any:
    return dkl.KernelRegressor(**{"features": dkl.RandomFeatures(n_features=10), "random_state": 0, **parameters})


def stored(folder: Path) -> Any:
    """A good store beside the attempt; the check that nothing is written knows of it."""
    return dkl.create_dataset(str(folder / "good.zarr"), X, Y)


TABLE = "a,b,y\n1,2,no\n2,3,yes\n3,4,no\n"
MANY_NAMES = "name,y\n" + "".join(f"person {i},{'yes' if i % 2 else 'no'}\n" for i in range(3_000))
INPUTS = {"input.csv", "rows.what"}


def named(folder: Path, name: str, columns: str) -> Any:
    return dkl.create_dataset(str(folder / name), X, Y, column_names=list(columns), overwrite=True)


def without_target(folder: Path) -> Any:
    return dkl.create_dataset(str(folder / "good.zarr"), X)


def open_newer(folder: Path) -> Any:
    """A good store whose marker claims a later version of the format."""
    store = stored(folder).store
    group = zarr.open_group(store, mode="r+")
    marker = dict(group.attrs["dkl"])
    (version,) = [name for name in marker if "version" in name or name == "format"]
    group.attrs["dkl"] = {**marker, version: 1_000}
    return dkl.open_dataset(store)


def create_where_forbidden(folder: Path) -> Any:
    """Write into a folder of another user; root, whom nothing is forbidden, does so as "nobody"."""
    with tempfile.TemporaryDirectory(prefix="locked-") as locked:
        os.chmod(locked, 0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65_534)
        try:
            return dkl.create_dataset(f"{locked}/rows.zarr", X, Y)
        finally:
            os.seteuid(user)
            assert listing(Path(locked)) == set()


def create_below_a_file(folder: Path) -> Any:
    return dkl.create_dataset(csv(folder, TABLE) + "/rows.zarr", X, Y)


def ingest_renamed(folder: Path, name: str) -> Any:
    (folder / name).write_text(TABLE)
    return dkl.ingest(str(folder / name), str(folder / "rows.zarr"), target="y")


ROWS = [
    Case("NaN in X", lambda f: create(f, with_value(np.nan, 17, 2), Y), ValueError, ("X[17, 2]", "NaN")),
    Case("infinity in X", lambda f: create(f, with_value(np.inf, 17, 2), Y), ValueError, ("X[17, 2]", "inf")),
    Case(
        "NaN in sparse X",
        lambda f: create(f, sparse.csr_array(with_value(np.nan, 17, 2)), Y),
        ValueError,
        ("X[17, 2]",),
    ),
    Case("NaN in y", lambda f: create(f, X, with_value(np.nan, 21)), ValueError, ("y[21]", "NaN")),
    Case("infinity in y", lambda f: create(f, X, with_value(-np.inf, 21)), ValueError, ("y[21]", "inf")),
    Case("complex X", lambda f: create(f, X + 1j, Y), ValueError, ("X", "complex")),
    Case("complex y", lambda f: create(f, X, TARGETS + 1j), ValueError, ("y", "complex")),
    Case("text in X", lambda f: create(f, np.full((60, 2), "a"), Y), TypeError, ("X", "number")),
    Case("one row too few in y", lambda f: create(f, X, Y[:-1]), ValueError, ("60", "59")),
    Case("X of one dimension", lambda f: create(f, X[:, 0], Y), ValueError, ("X", "(60,)")),
    Case("X of three dimensions", lambda f: create(f, X[None], Y), ValueError, ("X", "(1, 60, 4)")),
    Case("no rows", lambda f: create(f, X[:0], Y[:0]), ValueError, ("row", "0")),
    Case("no columns", lambda f: create(f, X[:, :0], Y), ValueError, ("column", "0")),
    Case("one class", lambda f: create(f, X, np.full(60, "yes")), ValueError, ("class", "yes")),
    Case(
        "a label that classes lack",
        lambda f: create(f, X, Y, classes=["maybe", "yes"]),
        ValueError,
        ("y[0]", "no", "classes"),
    ),
    Case(
        "a negative weight",
        lambda f: create(f, X, Y, sample_weight=np.r_[np.ones(59), -1.0]),
        ValueError,
        ("sample_weight[59]", "-1"),
    ),
    Case(
        "a NaN weight",
        lambda f: create(f, X, Y, sample_weight=np.r_[np.ones(59), np.nan]),
        ValueError,
        ("sample_weight[59]",),
    ),
    Case(
        "weights that are all 0",
        lambda f: create(f, X, Y, sample_weight=np.zeros(60)),
        ValueError,
        ("sample_weight", "zero"),
    ),
    Case(
        "weights of another length",
        lambda f: create(f, X, Y, sample_weight=np.ones(3)),
        ValueError,
        ("sample_weight", "60"),
    ),
]

STORES = [
    Case(
        "a store that is not there", lambda f: dkl.open_dataset(str(f / "none.zarr")), FileNotFoundError, ("none.zarr",)
    ),
    Case("a folder that is no store", lambda f: dkl.open_dataset(str(f)), ValueError, ("dkl",)),
    Case("a store of a newer format", lambda f: open_newer(f), StoreError, ("newer", "dkl")),
    Case("a store that is there", lambda f: (stored(f), stored(f)), FileExistsError, ("good.zarr", "overwrite=True")),
    Case("a split that is not there", lambda f: stored(f)["validation"], KeyError, ("validation", "split")),
    Case(
        "a split without rows",
        lambda f: stored(f).split({"train": 0.9999, "test": 0.0001}, write=False),
        ValueError,
        ("test", "no rows"),
    ),
    Case(
        "shares above 1",
        lambda f: stored(f).split({"train": 0.9, "test": 0.2}, write=False),
        ValueError,
        ("train", "test", "1.1"),
    ),
    Case(
        "y beside a store's own",
        lambda f: classifier().fit(stored(f), Y),
        ValueError,
        ("y", "Dataset"),
    ),
    Case(
        "no target in the store",
        lambda f: fit_aligned(rows=without_target(f), labels=None),
        ValueError,
        ("target", "y"),
    ),
    Case("no permission", lambda f: create_where_forbidden(f), PermissionError, ("locked",)),
    Case("a file in the way of the folder", lambda f: create_below_a_file(f), OSError, ("input.csv",)),
    Case(
        "a model that is not there", lambda f: dkl.load_model(str(f / "none.zarr")), FileNotFoundError, ("none.zarr",)
    ),
    Case("a dataset taken for a model", lambda f: dkl.load_model(stored(f).store), StoreError, ("good.zarr", "model")),
]

FILES = [
    Case(
        "a file that is not there",
        lambda f: dkl.ingest(str(f / "x.csv"), str(f / "r.zarr")),
        FileNotFoundError,
        ("x.csv",),
    ),
    Case("a glob of nothing", lambda f: dkl.ingest(str(f / "*.csv"), str(f / "r.zarr")), FileNotFoundError, ("*.csv",)),
    Case("an empty file", lambda f: ingest(f, "", target="y"), ValueError, ("input.csv", "empty")),
    Case("a header without rows", lambda f: ingest(f, "a,b,y\n", target="y"), ValueError, ("input.csv", "no rows")),
    Case(
        "a target column that is not there", lambda f: ingest(f, TABLE, target="z"), ValueError, ("z", "'a', 'b', 'y'")
    ),
    Case(
        "a weight column that is not there",
        lambda f: ingest(f, TABLE, target="y", weight="z"),
        ValueError,
        ("z", "weight"),
    ),
    Case(
        "a dropped column that is not there",
        lambda f: ingest(f, TABLE, target="y", drop=["z"]),
        ValueError,
        ("drop", "z"),
    ),
    Case("one class in the file", lambda f: ingest(f, "a,y\n1,no\n2,no\n", target="y"), ValueError, ("class", "no")),
    Case(
        "a target that is missing",
        lambda f: ingest(f, "a,y\n1,no\n2,\n3,yes\n", target="y"),
        ValueError,
        ("y", "missing"),
    ),
    Case(
        "infinity in a column", lambda f: ingest(f, "a,y\n1,no\ninf,yes\n3,no\n", target="y"), ValueError, ("a", "inf")
    ),
    Case(
        "a row with a field too many",
        lambda f: ingest(f, "a,y\n1,no\n2,yes,7\n", target="y"),
        ValueError,
        ("input.csv",),
    ),
    Case("names in too many kinds", lambda f: ingest(f, MANY_NAMES, target="y"), ValueError, ("name", "drop")),
    Case("a suffix that tells nothing", lambda f: ingest_renamed(f, "rows.what"), ValueError, ("rows.what", "format")),
]

PARAMETERS = [
    Case("rho below 0", lambda f: fit_aligned(rho=-0.1), ValueError, ("rho", "-0.1")),
    Case("k below 2", lambda f: fit_aligned(k=1.5), ValueError, ("k", "1.5")),
    Case("beta below 0", lambda f: fit_posterior(beta=-1.0), ValueError, ("beta", "-1")),
    Case("no candidates", lambda f: fit_aligned(n_candidates=0), ValueError, ("n_candidates", "0")),
    Case("no features", lambda f: fit_random(n_features=0), ValueError, ("n_features", "0")),
    Case("one column for a pair", lambda f: fit_random(n_features=1), ValueError, ("n_features", "two")),
    Case("half a feature", lambda f: fit_random(n_features=2.5), ValueError, ("n_features", "2.5")),
    Case("sigma of 0", lambda f: fit_random(family=dkl.Gaussian(0.0)), ValueError, ("sigma", "0.0")),
    Case("sigma below 0", lambda f: fit_random(family=dkl.Laplacian(-2.0)), ValueError, ("sigma", "-2.0")),
    Case("sigma by a word", lambda f: fit_random(family=dkl.Gaussian("mean")), ValueError, ("sigma", "median")),
    Case("nu of 0", lambda f: fit_random(family=dkl.Matern(0.0)), ValueError, ("nu", "0.0")),
    Case(
        "an order that is not there", lambda f: fit_random(family=dkl.ArcCosine(3)), ValueError, ("order", "0, 1 or 2")
    ),
    Case(
        "a sampling that is not there",
        lambda f: fit_random(family=dkl.Gaussian(1.0, sampling="sobol")),
        ValueError,
        ("sampling", "orthogonal"),
    ),
    Case(
        "orthogonal rows that are not isotropic",
        lambda f: fit_random(family=dkl.Cauchy(1.0, sampling="orthogonal")),
        ValueError,
        ("Cauchy", "sampling='iid'"),
    ),
    Case("a scaling that is not there", lambda f: fit_random(scaling="robust"), ValueError, ("scaling", "quantile")),
    Case("an unknown parameter", lambda f: dkl.RandomFeatures(bandwidth=1.0), TypeError, ("bandwidth",)),
    Case("a family that is none", lambda f: fit_random(family="gaussian"), ValueError, ("family", "gaussian")),
    Case("half precision", lambda f: fit_random(dtype="float16"), ValueError, ("dtype", "float32")),
    Case("a device that is not there", lambda f: fit_random(device="tpu"), ValueError, ("device", "cpu")),
    Case("a loss that is not there", lambda f: classifier(loss="absolute").fit(X, Y), ValueError, ("loss", "hinge")),
    Case("alpha below 0", lambda f: classifier(alpha=-1.0).fit(X, Y), ValueError, ("alpha", "-1")),
    Case("no epochs", lambda f: classifier(epochs=0).fit(X, Y), ValueError, ("epochs", "0")),
    Case(
        "a class weight for an unknown label",
        lambda f: fit_aligned(class_weight={"maybe": 2.0}),
        ValueError,
        ("class_weight", "maybe"),
    ),
]

FITS = [
    Case("NaN in X at fit", lambda f: fit_random(rows=with_value(np.nan, 5, 1)), ValueError, ("X[5, 1]",)),
    Case("no y for a supervised learner", lambda f: fit_aligned(labels=None), ValueError, ("y",)),
    Case(
        "numbers for a learner of classes",
        lambda f: fit_posterior(labels=TARGETS),
        ValueError,
        ("class", "AlignedFeatures"),
    ),
    Case("one class at fit", lambda f: classifier().fit(X, np.full(60, "yes")), ValueError, ("class", "yes")),
    Case("labels for a regressor", lambda f: regressor().fit(X, Y), ValueError, ("KernelClassifier",)),
    Case(
        "all weights 0 at fit",
        lambda f: classifier().fit(X, Y, sample_weight=np.zeros(60)),
        ValueError,
        ("sample_weight",),
    ),
    Case("predict before fit", lambda f: classifier().predict(X), ValueError, ("fit",)),
    Case("partial_fit before fit", lambda f: classifier().partial_fit(X, Y), ValueError, ("fit",)),
    Case("columns missing at predict", lambda f: classifier().fit(X, Y).predict(X[:, :3]), ValueError, ("3", "4")),
    Case(
        "NaN at predict",
        lambda f: classifier().fit(X, Y).predict(with_value(np.nan, 5, 1)),
        ValueError,
        ("NaN",),
    ),
    Case(
        "a column missing in a frame at predict",
        lambda f: classifier().fit(frame(), Y).predict(frame()[["a"]]),
        ValueError,
        ("b",),
    ),
    Case(
        "a column too many in a frame at predict",
        lambda f: classifier().fit(frame(), Y).predict(frame(c=1.0)),
        ValueError,
        ("c",),
    ),
    Case(
        "columns in another order at predict",
        lambda f: classifier().fit(named(f, "good.zarr", "pqrs")).predict(named(f, "good.zarr", "pqsr")),
        ValueError,
        ("column 2 of", "'s'", "'r'"),
    ),
    Case(
        "a label at partial_fit that fit did not know",
        lambda f: classifier().fit(X, Y).partial_fit(X[:1], ["maybe"]),
        ValueError,
        ("maybe",),
    ),
    Case(
        "a memory limit that cannot be kept",
        lambda f: classifier(memory_limit=1000).fit(X, Y),
        MemoryError,
        ("may take 0.98 kiB", "Allow more"),
    ),
    # numbers too large to be computed with
    Case("a target whose square overflows", lambda f: regressor().fit(X, with_value(1e200, 7)), ValueError, ("y[7]",)),
    Case(
        "a negative target whose square overflows",
        lambda f: regressor().fit(X, with_value(-1e155, 9)),
        ValueError,
        ("y[9] is -1e+155", "1e+150", "Divide"),
    ),
    Case(
        "one of several targets too large",
        lambda f: regressor().fit(X, np.column_stack([TARGETS, with_value(1e151, 3)])),
        ValueError,
        ("y[3, 1] is 1e+151",),
    ),
    Case(
        "a target too large in a Dask array",
        lambda f: regressor().fit(da.from_array(X, chunks=20), da.from_array(with_value(1e200, 47), chunks=20)),
        ValueError,
        ("y[47] is 1e+200",),
    ),
    Case("a stored target too large", lambda f: create(f, X, with_value(1e200, 7)), ValueError, ("y[7] is 1e+200",)),
    Case(
        "an ingested target too large",
        lambda f: ingest(f, "a,y\n1,0.5\n2,1e200\n3,1.5\n", target="y"),
        ValueError,
        ("is 1e+200", "1e+150"),
    ),
    Case(
        "rows whose squares overflow, standardised",
        lambda f: fit_random(rows=X * 1e200, scaling="standard"),
        ValueError,
        ("scale", "'standard' for column 0 is inf", "Divide"),
    ),
    Case(
        "rows whose squares overflow, by their median distance",
        lambda f: fit_random(rows=X * 1e200, scaling=None),
        ValueError,
        ("median distance", "sigma", "scaling='standard'"),
    ),
    Case(
        "rows beyond float32, as they are",
        lambda f: classifier(features=dkl.RandomFeatures(dkl.Gaussian(1.0), n_features=4, scaling=None)).fit(
            X * 1e200, Y
        ),
        ValueError,
        ("row 0, column 0", "float32", "scaling='standard'"),
    ),
    Case(
        "a row beyond float32 at predict",
        lambda f: classifier().fit(X, Y).predict(with_value(1e200, 5, 1)),
        ValueError,
        ("row 5, column 1", "float32"),
    ),
    Case(
        "a row beyond float32 at transform, lazily",
        lambda f: fit_random().transform(da.from_array(with_value(-1e200, 25, 1), chunks=20)).compute(),
        ValueError,
        ("row 5, column 1", "float32", "a chunk of X"),
    ),
]

CASES = [*ROWS, *STORES, *FILES, *PARAMETERS, *FITS]


def listing(folder: Path) -> set[str]:
    """Everything under a folder, hidden or not, but for the inputs that a case puts there."""
    return {p.relative_to(folder).as_posix() for p in folder.rglob("*") if not p.is_relative_to(folder / "good.zarr")}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_gets_one_clear_error_and_nothing_is_written(case: Case, tmp_path: Path) -> None:
    with pytest.raises(case.error) as caught:
        case.attempt(tmp_path)
    message = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert all(part in message for part in case.says), message
    assert len(message) > 30, "a message says what to do"
    assert listing(tmp_path) <= INPUTS


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
