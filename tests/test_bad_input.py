"""Bad input of every kind: one clear error that names the argument and the remedy, at once, and nothing is written.

Each case is a line of the table: what is attempted in an empty folder, the type of the error, and what its message
(with its notes) has to say.
"""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag
import dask.dataframe as dd
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
DAYS = pd.date_range("2020-01-01", periods=60)


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
    return pd.DataFrame({"a": X[:, 0], "b": X[:, 1]}).assign(**columns)


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


def stored_single(folder: Path) -> Any:
    return dkl.create_dataset(str(folder / "good.zarr"), X.astype(np.float32), Y)


def masked(values: np.ndarray, *place: int) -> Any:
    mask = np.zeros(values.shape, bool)
    mask[place] = True
    return np.ma.array(values, mask=mask)


def pointing(**changed: int) -> Any:
    """X as CSR rows, whose indices or bounds hold another number at place 7."""
    rows = sparse.csr_array(X)
    for name, value in changed.items():
        getattr(rows, name)[7] = value
    return rows


TABLE = "a,b,y\n1,2,no\n2,3,yes\n3,4,no\n"
MANY_NAMES = "name,y\n" + "".join(f"person {i},{'yes' if i % 2 else 'no'}\n" for i in range(3_000))
INPUTS = {"input.csv", "rows.what"}


def ingest_bytes(folder: Path, data: bytes) -> Any:
    (folder / "input.csv").write_bytes(data)
    return dkl.ingest(folder / "input.csv", folder / "rows.zarr", target="y")


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
    Case(
        "infinity in X of Dask",
        lambda f: create(f, da.from_array(with_value(np.inf, 17, 2)), Y),
        ValueError,
        ("X[17, 2]", "inf"),
    ),
    Case(
        "NaN and infinity in X",
        lambda f: create(f, np.where(X[0, 0] == X, np.nan, with_value(np.inf, 17, 2)), Y),
        ValueError,
        ("X[17, 2]", "inf"),
    ),
    Case(
        "a column of NaN",
        lambda f: create(f, np.where(np.arange(4) == 2, np.nan, X), Y),
        ValueError,
        ("'column 2' holds no value in 60 rows", "np.delete(X, 2, axis=1)"),
    ),
    Case(
        "a column of NaN in Dask",
        lambda f: create(f, da.from_array(np.where(np.arange(4) == 2, np.nan, X)), Y),
        ValueError,
        ("'column 2' holds no value in 60 rows", "np.delete(X, 2, axis=1)"),
    ),
    Case(
        "NaN in rows for a store without",
        lambda f: stored(f).append(with_value(np.nan, 17, 2), Y),
        ValueError,
        ("X[17, 2]", "NaN"),
    ),
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
    Case(
        "a model over a dataset",
        lambda f: fit_random().save(stored(f).store, overwrite=True),
        FileExistsError,
        ("good.zarr", "is a dataset", "choose another path"),
    ),
    Case(
        "a model inside a dataset",
        lambda f: fit_random().save(f"{stored(f).store}/model"),
        ValueError,
        ("lies inside", "good.zarr", "outside"),
    ),
    Case("a model with a NUL in its name", lambda f: fit_random().save(f / "a\0b"), ValueError, ("NUL", "no path can")),
    Case(
        "a model under a file",
        lambda f: fit_random().save(f"{csv(f, 'a')}/model"),
        NotADirectoryError,
        ("input.csv", "is a file"),
    ),
    Case(
        "a checkpoint that is a file",
        lambda f: fit_random(checkpoint=csv(f, "a,b")),
        NotADirectoryError,
        ("checkpoint", "input.csv", "is a file", "choose another path"),
    ),
    Case(
        "a checkpoint that is a dataset",
        lambda f: fit_random(checkpoint=stored(f).store),
        StoreError,
        ("checkpoint", "good.zarr", "is a dataset", "choose another path"),
    ),
    Case(
        "a checkpoint with a NUL in its name",
        lambda f: fit_random(checkpoint="a\0b"),
        ValueError,
        ("NUL", "take it out"),
    ),
    Case(
        "a plan of what no memory holds",
        lambda f: dkl.plan(dkl.AlignedFeatures(n_candidates=10**10, n_features=10), X, Y),
        MemoryError,
        ("10,000,000,000 frequencies", "GiB", "fewer"),
    ),
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
    Case("names in too many kinds", lambda f: ingest(f, MANY_NAMES, target="y"), ValueError, ("name", "categorical")),
    Case("a suffix that tells nothing", lambda f: ingest_renamed(f, "rows.what"), ValueError, ("rows.what", "format")),
    Case(
        "a quote that is never closed",
        lambda f: ingest(f, TABLE + '4,5,"no\n5,6,yes\n', target="y"),
        ValueError,
        ("input.csv", "line 5", "never closed"),
    ),
    Case(
        "two quotes that take the rows between for one value",
        lambda f: ingest(f, TABLE + '4,5,"no\n5,6,yes\n6,7,"no\n', target="y"),
        ValueError,
        ("input.csv", "line 5", "closing quote"),
    ),
    Case(
        "a quoted value of many lines",
        lambda f: ingest(f, TABLE + '4,5,"' + "a line\n" * 10_000 + '"\n', target="y"),
        ValueError,
        ("input.csv", "line 5", "65536 bytes", "longest_text"),
    ),
    Case("a NUL byte in the text", lambda f: ingest(f, TABLE + "4,\0,no\n", target="y"), ValueError, ("line 5", "NUL")),
    Case("a NUL byte in a column name", lambda f: ingest(f, "a\0" + TABLE[1:], target="y"), ValueError, ("NUL",)),
    Case(
        "a NUL byte in a name of a frame",
        lambda f: create(f, frame(**{"c\0": 1.0}), Y),
        ValueError,
        ("NUL", "'c\\x00'", "rename"),
    ),
    Case(
        "half of a pair of surrogates in a name of a frame",
        lambda f: create(f, frame(c=1.0).set_axis(pd.Index([*frame(), "c\ud800"], dtype=object), axis=1), Y),
        ValueError,
        ("no Unicode text", "'c\\ud800'", "rename"),
    ),
    Case("blank lines alone", lambda f: ingest(f, "\n\n\n", target="y"), ValueError, ("input.csv", "blank")),
    Case(
        "gzip data under another name",
        lambda f: ingest_bytes(f, gzip.compress(TABLE.encode())),
        ValueError,
        ("input.csv", "gzip", ".gz"),
    ),
    Case("Latin-1 in the header", lambda f: ingest_bytes(f, b"\xe4" + TABLE.encode()), ValueError, ("0xe4", "UTF-8")),
    Case(
        "a number beyond float64",
        lambda f: ingest(f, TABLE + "1e999,5,no\n", target="y"),
        ValueError,
        ("column 'a'", "inf", "row 3"),
    ),
    Case(
        "a target beyond float64",
        lambda f: ingest(f, "a,y\n1,0.5\n2,1e999\n", target="y"),
        ValueError,
        ("target 'y'", "inf", "row 1"),
    ),
    Case(
        "several things that are wrong with a table",
        lambda f: ingest(f, TABLE + "inf,,\n", target="y", drop=["z"]),
        ValueError,
        ("drop", "'z'", "column 'a' is inf in row 3", "target 'y' is missing"),
    ),
    Case(
        "several things that are wrong with a frame",
        lambda f: create(f, frame(c=np.inf, d=[[1]] * 60), np.r_[np.nan, np.ones(59)]),
        ValueError,
        ("'c' is inf in row 0", "'d' holds list", "y[0]"),
    ),
    Case(
        "two numbers in one of libsvm text",
        lambda f: ingest(f, "0 1:1\n1 1:2+3\n", format="libsvm"),
        ValueError,
        ("input.csv", "line 2", "1:2+3"),
    ),
    Case(
        "libsvm text that may count from 0 or from 1",
        lambda f: ingest(f, "0 1:1\n1 2:1\n", format=dkl.LibsvmFormat(n_columns=9)),
        ValueError,
        ("n_columns=9", "zero_based", "--one-based"),
    ),
    Case("a delimiter of two characters", lambda f: dkl.CsvFormat(delimiter="||"), ValueError, ("delimiter", "'||'")),
    Case(
        "a whole number that float64 does not hold in a file",
        lambda f: ingest(f, f"id,y\n{2**53 + 1},no\n7,yes\n", target="y"),
        ValueError,
        ("input.csv", "'id'", "9007199254740993", "row 1", "categorical=['id']"),
    ),
    Case(
        "a whole number that float64 does not hold in a frame",
        lambda f: classifier().fit(frame(id=np.arange(60) + 2**53), Y),
        ValueError,
        ("'id'", "9007199254740993", "drop"),
    ),
    Case(
        "a whole number of more than 64 bits in a frame",
        lambda f: create(f, frame(id=pd.Series([2**70 + i for i in range(60)], dtype=object)), Y),
        ValueError,
        ("'id'", str(2**70 + 1), "drop"),
    ),
    Case(
        "appended whole numbers that the store would round",
        lambda f: stored_single(f).append(np.full((1, 4), 2**24 + 1), Y[:1]),
        ValueError,
        ("X[0, 0]", "16777217", "float32"),
    ),
    Case("a mixed column in a frame", lambda f: create(f, frame(c=[1, "a"] * 30), Y), TypeError, ("'c'", "int, str")),
    Case("complex numbers in a frame", lambda f: create(f, frame(c=1j), Y), TypeError, ("'c'", "complex128")),
    Case("lists in a frame", lambda f: create(f, frame(c=[[1]] * 60), Y), TypeError, ("'c'", "list")),
    Case(
        "texts where dates were",
        lambda f: classifier().fit(frame(c=DAYS), Y).predict(frame(c="soon")),
        ValueError,
        ("'c'", "'soon' in row 0", "held dates", "2026-11-22"),
    ),
    Case(
        "numbers where dates were",
        lambda f: classifier().fit(frame(c=DAYS), Y).predict(frame(c=20200101)),
        TypeError,
        ("'c'", "int64", "held dates"),
    ),
    Case(
        "dates for a target",
        lambda f: ingest(f, "a,y\n1,2026-11-21\n2,2026-11-22\n", target="y"),
        TypeError,
        ("target 'y'", "dates", "categorical=['y']"),
    ),
    Case(
        "5 where booleans were",
        lambda f: classifier().fit(frame(c=X[:, 2] > 0), Y).predict(frame(c=5)),
        ValueError,
        ("'c'", "is 5 in row 0", "true or false"),
    ),
    Case(
        "texts where numbers were",
        lambda f: classifier().fit(frame(c=X[:, 2]), Y).predict(frame(c="much")),
        ValueError,
        ("'c'", "'much'", "held numbers"),
    ),
    Case(
        "numbers where texts were",
        lambda f: classifier().fit(frame(c=Y), Y).predict(frame(c=7)),
        ValueError,
        ("'c'", "'7'", "held texts"),
    ),
    Case(
        "a date where numbers were",
        lambda f: classifier().fit(frame(c=X[:, 2]), Y).predict(frame(c=pd.Timestamp("2026-11-22"))),
        TypeError,
        ("'c'", "dates"),
    ),
    Case("a masked entry of X", lambda f: fit_random(rows=masked(X, 5, 1)), ValueError, ("X[5, 1]", "masked")),
    Case("a masked label", lambda f: classifier().fit(X, masked(TARGETS > 0, 5)), ValueError, ("y[5]", "masked")),
    Case(
        "a masked weight",
        lambda f: create(f, X, Y, sample_weight=masked(np.ones(60), 5)),
        ValueError,
        ("sample_weight[5]", "masked"),
    ),
    Case(
        "a masked entry at predict",
        lambda f: classifier().fit(X, Y).predict(masked(X, 5, 1)),
        ValueError,
        ("X[5, 1]", "masked"),
    ),
    Case(
        "a sparse index beyond the columns",
        lambda f: classifier().fit(pointing(indices=9), Y),
        ValueError,
        ("X.indices[7] is 9", "4 columns"),
    ),
    Case(
        "a negative sparse index at predict",
        lambda f: classifier().fit(X, Y).predict(pointing(indices=-1)),
        ValueError,
        ("X.indices[7] is -1", "4 columns"),
    ),
    Case(
        "bounds of sparse rows that fall",
        lambda f: create(f, pointing(indptr=200), Y),
        ValueError,
        ("X.indptr falls from 200", "row 7"),
    ),
]

PARAMETERS = [
    Case("rho below 0", lambda f: fit_aligned(rho=-0.1), ValueError, ("rho", "-0.1")),
    Case("k of 1", lambda f: fit_aligned(k=1.0), ValueError, ("k", "1.0")),
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
    Case(
        "infinity in X of Dask at fit",
        lambda f: fit_random(rows=da.from_array(with_value(np.inf, 5, 1))),
        ValueError,
        ("X[5, 1]",),
    ),
    Case(
        "NaN at partial_fit where fit had none",
        lambda f: classifier(solver="sgd").fit(X, Y).partial_fit(with_value(np.nan, 5, 1), Y),
        ValueError,
        ("X[5, 1]", "NaN"),
    ),
    Case(
        "NaN in another column, strictly",
        lambda f: classifier().fit(with_value(np.nan, 5, 1), Y).predict(with_value(np.nan, 5, 2), strict=True),
        ValueError,
        ("'column 2' is missing", "row 5", "strict=True"),
    ),
    Case(
        "gaps and new categories, strictly",
        lambda f: classifier().fit(frame(c=Y), Y).predict(frame(c="maybe", a=None), strict=True),
        ValueError,
        ("'a' is missing", "'c' holds categories", "'maybe'", "60 of 60 rows", "strict=True"),
    ),
    Case(
        "a text among numbers at predict",
        lambda f: classifier().fit(frame(), Y).predict(frame(a=[*X[:7, 0], "forty", *X[8:, 0]])),
        TypeError,
        ("column 'a'", "(float64, str)", "row 7 is the first", "'forty'"),
    ),
    Case(
        "values of one unknown type",
        lambda f: classifier().fit(frame(c=pd.Series([1j] * 60, dtype=object)), Y),
        TypeError,
        ("column 'c' holds complex values", "leave it out"),
    ),
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
    Case(
        "partial_fit of an exact machine",
        lambda f: classifier(solver="newton", loss="squared_hinge").partial_fit(X, Y),
        AttributeError,
        ("partial_fit",),
    ),
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
        "an array for a model of a frame",
        lambda f: classifier().fit(frame(c=Y), Y).predict(X[:, :2]),
        ValueError,
        (
            "X has 2 features",
            "expecting 4",
            "['a', 'b', 'c=no', 'c=yes']",
            "data frame with the columns ['a', 'b', 'c']",
        ),
    ),
    Case(
        "a negative count in a frame",
        lambda f: fit_random(rows=np.abs(frame()).assign(c=Y, d=-1.0), scaling="counts"),
        ValueError,
        ("column 'd' holds -1",),
    ),
    Case(
        "a negative count in a frame at predict",
        lambda f: classifier(scaling="counts").fit(np.abs(frame()), Y).predict(np.abs(frame()) * [1.0, -1.0]),
        ValueError,
        ("column 'b' holds -",),
    ),
    Case(
        "differences in a frame whose squares underflow",
        lambda f: fit_random(rows=frame(c=1e-200 * X[:, 2]), scaling="standard"),
        ValueError,
        ("column 'c' reaches from", "power of ten"),
    ),
    Case(
        "a weight that names no column",
        lambda f: classifier().fit(frame(weight=1.0), Y, sample_weight="wieght"),
        ValueError,
        ("sample_weight='wieght' names no column of X", "did you mean 'weight'?"),
    ),
    Case(
        "a weight that names a column of a store",
        lambda f: classifier().fit(named(f, "good.zarr", "pqrs"), sample_weight="p"),
        ValueError,
        ("created without sample_weight", "create it with sample_weight="),
    ),
    Case(
        "a column too many in a frame at predict",
        lambda f: classifier().fit(frame(), Y).predict(frame(c=1.0), strict=True),
        ValueError,
        ("further columns", "['c']", "strict=True"),
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
        ("may use 0.98 kiB in all (memory_limit)", "Enough is memory_limit="),
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


def split_by(given: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: stored(folder).split(given, **options)


SPLITS = [
    Case("a split without a name", split_by({"": 0.5, "b": 0.5}), ValueError, ("''", "name a split", "'train'")),
    Case("a split named by a blank", split_by({" ": 0.5}), ValueError, ("' '", "name a split")),
    Case("a split with a slash", split_by({"a/b": 0.5}), ValueError, ("'a/b'", "no '/'")),
    Case("a split with a NUL", split_by({"a\0b": 0.5}), ValueError, ("x00", "NUL")),
    Case("a split named by a tuple", split_by({("a", 1): 0.5}), TypeError, ("('a', 1)", "name a split")),
    Case("a split named by None", split_by({None: 0.5}), TypeError, ("None", "name a split")),
    Case("two splits of one name", split_by({"1": 0.5, 1: 0.5}), ValueError, ("two splits", "'1'")),
    Case("a split of fraction 0", split_by({"a": 0.0}), ValueError, ("fraction 0", "'a'", "above 0")),
    Case("a split of a fraction below 0", split_by({"a": -0.5}), ValueError, ("-0.5", "'a'", "above 0")),
    Case("a split of fraction NaN", split_by({"a": float("nan")}), ValueError, ("nan", "'a'", "above 0")),
    Case("a split of an infinite fraction", split_by({"a": float("inf")}), ValueError, ("inf", "'a'")),
    Case("a split of a fraction by a word", split_by({"a": "half"}), TypeError, ("'half'", "'a'", "number")),
    Case("a split of no fraction", split_by({"a": None}), TypeError, ("None", "'a'", "number")),
    Case("a split of a truth value", split_by({"a": True}), TypeError, ("True", "'a'", "number")),
    Case("no split at all", split_by({}), ValueError, ("no split", "'train': 0.8")),
    Case("too many splits", split_by({f"s{i}": 0.001 for i in range(300)}), ValueError, ("300", "254")),
    Case("a set of splits with a slash", split_by({"a": 0.5}, name="x/y"), ValueError, ("'x/y'", "set of splits")),
    Case("a set of splits with a NUL", split_by({"a": 0.5}, name="x\0"), ValueError, ("x00", "set of splits")),
    Case("a set of splits named by a number", split_by({"a": 0.5}, name=3), ValueError, ("3", "set of splits")),
    Case(
        "a split without a name at ingest",
        lambda f: ingest(f, TABLE, target="y", splits={"": 0.5, "b": 0.5}),
        ValueError,
        ("''", "name a split"),
    ),
    Case("a store with a NUL", lambda f: dkl.create_dataset(f"{f}/a\0b", X, Y), ValueError, ("x00", "NUL")),
    Case("an open of a NUL", lambda f: dkl.open_dataset(f"{f}/a\0b"), ValueError, ("x00", "NUL")),
    Case("a store without a name", lambda f: dkl.create_dataset("", X, Y), ValueError, ("''", "empty")),
    Case(
        "targets in place that are one number",
        lambda f: dkl.from_zarr(zarr.array(X), y=3.0),
        ValueError,
        ("y has shape ()", "(n_rows,)"),
    ),
    Case(
        "options of a store that are none",
        lambda f: dkl.create_dataset(str(f / "rows.zarr"), X, Y, storage_options=1),
        TypeError,
        ("storage_options is 1", "dict"),
    ),
    Case("a store of bytes", lambda f: dkl.create_dataset(b"rows.zarr", X, Y), TypeError, ("bytes", "path or a URL")),
]


def with_label(value: Any, row: int) -> np.ndarray:
    """The labels with one of them spoiled, as objects."""
    labels = Y.astype(object)
    labels[row] = value
    return labels


def weighing(value: Any, row: int = 7) -> np.ndarray:
    """Weights of 1 with one of them spoiled."""
    weights = np.ones(60, object if isinstance(value, str) else float)
    weights[row] = value
    return weights


def lazy(values: Any, rows: int = 25) -> Any:
    """A Dask array in chunks of some rows."""
    values = np.asarray(values)
    return da.from_array(values, chunks=(rows, *values.shape[1:]))


def fit_weighted(weights: Any, X: Any = X) -> Any:
    return classifier().fit(X, Y, weights)


def fitted() -> Any:
    return classifier(epochs=1).fit(X, Y)


def number_fitted() -> Any:
    return regressor(epochs=1).fit(X, TARGETS)


WEIGHTS = [
    Case("a weight of text", lambda f: fit_weighted(weighing("x")), ValueError, ("sample_weight[7]", "'x'")),
    Case("weights of text", lambda f: fit_weighted(np.full(60, "1")), TypeError, ("sample_weight", "real numbers")),
    Case("complex weights", lambda f: fit_weighted(np.ones(60) + 1j), TypeError, ("sample_weight", "complex128")),
    Case("weights by a word", lambda f: fit_weighted("balanced"), ValueError, ("sample_weight", "str")),
    Case("a row as a Series", lambda f: fit_random(rows=frame().iloc[0]), ValueError, ("Series", "X.to_frame().T")),
    Case("rows as dicts", lambda f: fit_random(rows=[{"a": 1.0}]), ValueError, ("list of dict", "pandas.DataFrame(X)")),
    Case("weights by a dict", lambda f: fit_weighted({"no": 1.0}), ValueError, ("sample_weight", "dict")),
    Case("sparse weights", lambda f: fit_weighted(sparse.eye_array(60)), TypeError, ("sample_weight", "sparse")),
    Case("two columns of weights", lambda f: fit_weighted(np.ones((60, 2))), ValueError, ("sample_weight", "(60, 2)")),
    Case("an infinite weight", lambda f: fit_weighted(weighing(np.inf)), ValueError, ("sample_weight[7]", "inf")),
    Case(
        "no weight that float64 holds",
        lambda f: fit_weighted(np.full(60, 1e-320)),
        ValueError,
        ("sample_weight", "sums to"),
    ),
    Case(
        "weights that overflow",
        lambda f: fit_weighted(np.full(60, 1e308)),
        ValueError,
        ("sample_weight", "sums to inf"),
    ),
    Case(
        "weights whose products with rows overflow",
        lambda f: fit_weighted(np.full(60, 1e100)),
        ValueError,
        ("sample_weight sums to 6e+101", "single precision"),
    ),
    Case(
        "weights whose products with rows underflow",
        lambda f: fit_weighted(np.full(60, 1e-100)),
        ValueError,
        ("sample_weight sums to 6e-99", "single precision"),
    ),
    Case(
        "weights of a learner that overflow",
        lambda f: dkl.AlignedFeatures(n_features=4).fit(X, Y, np.full(60, 1e100)),
        ValueError,
        ("sample_weight sums to 6e+101",),
    ),
    Case(
        "weights of a store that overflow",
        lambda f: classifier().fit(dkl.create_dataset(f / "good.zarr", X, Y, sample_weight=np.full(60, 1e100))),
        ValueError,
        ("sample_weight sums to 6e+101",),
    ),
    Case("ragged weights", lambda f: fit_weighted([[1.0, 2.0]] + [1.0] * 59), ValueError, ("sample_weight", "ragged")),
    Case("a negative number for all weights", lambda f: fit_weighted(-1.0), ValueError, ("sample_weight[0]", "-1")),
    Case(
        "two columns of weights beside Dask",
        lambda f: fit_weighted(np.ones((60, 2)), lazy(X)),
        ValueError,
        ("sample_weight", "(60, 2)"),
    ),
    Case(
        "weights by a word beside Dask",
        lambda f: fit_weighted("balanced", lazy(X)),
        ValueError,
        ("sample_weight", "str"),
    ),
    Case(
        "a NaN weight of Dask",
        lambda f: fit_weighted(lazy(weighing(np.nan, 33)), lazy(X)),
        ValueError,
        ("sample_weight[33]",),
    ),
    Case(
        "a NaN weight at score",
        lambda f: fitted().score(X, Y, weighing(np.nan)),
        ValueError,
        ("sample_weight[7]", "NaN"),
    ),
    Case(
        "a negative weight at score",
        lambda f: fitted().score(X, Y, weighing(-2.0)),
        ValueError,
        ("sample_weight[7]", "-2"),
    ),
    Case(
        "a weight of text at score",
        lambda f: fitted().score(X, Y, weighing("x")),
        ValueError,
        ("sample_weight[7]", "'x'"),
    ),
    Case(
        "a NaN weight at score of Dask",
        lambda f: number_fitted().score(lazy(X), lazy(TARGETS), lazy(weighing(np.nan, 33))),
        ValueError,
        ("sample_weight[33]", "NaN"),
    ),
    Case(
        "all weights 0 at score of Dask",
        lambda f: fitted().score(lazy(X), Y, np.zeros(60)),
        ValueError,
        ("sample_weight", "zero"),
    ),
]

LABELS = [
    Case(
        "a label that is None",
        lambda f: classifier().fit(X, with_label(None, 33)),
        ValueError,
        ("y[33]", "None", "missing"),
    ),
    Case(
        "a label that is NaN",
        lambda f: classifier().fit(X, with_label(np.nan, 33)),
        ValueError,
        ("y[33]", "nan", "missing"),
    ),
    Case(
        "a label that is NA",
        lambda f: create(f, X, pd.Series(with_label(pd.NA, 33))),
        ValueError,
        # pandas 3 makes texts of the labels, and NaN of the one that is missing
        ("y[33]", "missing"),
    ),
    Case(
        "a label that is missing in Dask",
        lambda f: create(f, lazy(X), lazy(with_label(None, 33))),
        ValueError,
        ("y[33]", "None"),
    ),
    Case(
        "a missing boolean",
        lambda f: create(f, X, np.array([True, False] * 29 + [None, True])),
        ValueError,
        ("y[58]", "None"),
    ),
    Case(
        "texts and numbers for labels",
        lambda f: create(f, X, with_label(1, 33)),
        ValueError,
        ("y[0]", "y[33] is 1", "mixes"),
    ),
    Case(
        "1 and '1' for labels",
        lambda f: create(f, X, np.array([1, "1"] * 30, object)),
        ValueError,
        ("y[0] is 1", "y[1] is '1'"),
    ),
    Case(
        "intervals for labels",
        lambda f: create(f, X, pd.cut(pd.Series(TARGETS), 3)),
        ValueError,
        ("y[0]", "Interval", "astype(str)"),
    ),
    Case("bytes for labels", lambda f: create(f, X, Y.astype("S3")), TypeError, ("y", "b'no'", "decode")),
    Case(
        "dates for labels",
        lambda f: create(f, X, np.full(60, np.datetime64("2026-01-01"))),
        TypeError,
        ("y", "datetime64"),
    ),
    Case("a label beyond 64 bits", lambda f: create(f, X, np.array([2**70, 1] * 30)), ValueError, ("y[0]", "64 bits")),
    Case(
        "sparse labels",
        lambda f: create(f, X, sparse.csr_array(np.ones((60, 1)))),
        TypeError,
        ("y", "sparse", "toarray()"),
    ),
    Case(
        "sparse labels beside Dask",
        lambda f: create(f, lazy(X), sparse.csr_array(np.ones((60, 1)))),
        TypeError,
        ("y", "sparse"),
    ),
    Case("no column of targets", lambda f: regressor().fit(X, np.ones((60, 0))), ValueError, ("y", "(60, 0)")),
    Case("no column of targets in a store", lambda f: create(f, X, np.ones((60, 0))), ValueError, ("y", "(60, 0)")),
    Case("one label for all rows", lambda f: classifier().fit(X, "yes"), ValueError, ("y", "str")),
    Case(
        "two columns of labels",
        lambda f: classifier().fit(X, pd.DataFrame({"a": Y, "b": Y})),
        ValueError,
        ("y", "(60, 2)"),
    ),
    Case("ragged labels", lambda f: create(f, X, [[1, 2]] + [1] * 59), ValueError, ("y", "ragged")),
    Case("one label too many", lambda f: create(f, X, np.r_[Y, ["no"]]), ValueError, ("60", "61")),
    Case(
        "targets that float64 does not hold",
        lambda f: regressor().fit(X, np.arange(60) + 2**60),
        ValueError,
        ("y[1]", str(2**60 + 1), "float64"),
    ),
    Case("labels in a Bag", lambda f: classifier().fit(X, dask.bag.from_sequence(Y)), TypeError, ("y", "Bag")),
    Case(
        "a label that is None at score",
        lambda f: fitted().score(X, with_label(None, 33)),
        ValueError,
        ("y[33]", "None"),
    ),
    Case(
        "numbers at score of texts",
        lambda f: fitted().score(X, np.arange(60)),
        ValueError,
        ("y[0]", "numbers", "texts"),
    ),
    Case(
        "numbers at score of texts in Dask",
        lambda f: fitted().score(lazy(X), np.arange(60)),
        ValueError,
        ("y[", "numbers", "texts"),
    ),
    Case(
        "numbers in the store that is scored",
        lambda f: fitted().score(create(f / "good.zarr", X, TARGETS)),
        ValueError,
        ("numbers", "texts"),
    ),
    Case(
        "a target that is NaN at score of Dask",
        lambda f: number_fitted().score(lazy(X), lazy(with_value(np.nan, 33))),
        ValueError,
        ("y[33]", "NaN"),
    ),
    Case(
        "two targets at score of one",
        lambda f: number_fitted().score(X, np.ones((60, 2))),
        ValueError,
        ("y", "(60, 2)", "one value"),
    ),
    Case(
        "a row too few at score of Dask",
        lambda f: number_fitted().score(lazy(X), TARGETS[:-1]),
        ValueError,
        ("59", "60"),
    ),
]

EMPTY = [
    Case("an empty frame at fit", lambda f: fit_random(rows=frame()[:0]), ValueError, ("0 sample(s)", "X has no rows")),
    Case(
        "an empty sparse matrix at fit",
        lambda f: fit_random(rows=sparse.csr_array((0, 4))),
        ValueError,
        ("0 sample(s)", "X has no rows"),
    ),
    Case("an empty array at fit", lambda f: fit_random(rows=X[:0]), ValueError, ("0 sample(s)", "X has no rows")),
    Case(
        "an empty Dask array at fit",
        lambda f: fit_random(rows=lazy(X)[:0]),
        ValueError,
        ("0 sample(s)", "X has no rows"),
    ),
    Case(
        "an empty Dask array beside labels", lambda f: classifier().fit(lazy(X)[:0], Y), ValueError, ("X has no rows",)
    ),
    Case(
        "a frame without columns",
        lambda f: fit_random(rows=frame()[[]]),
        ValueError,
        ("0 feature(s)", "X has no columns"),
    ),
    Case("no rows at score", lambda f: fitted().score(X[:0], Y[:0]), ValueError, ("no rows to score",)),
    Case(
        "no rows at score of Dask",
        lambda f: number_fitted().score(lazy(X)[:0], TARGETS[:0]),
        ValueError,
        ("no rows to score",),
    ),
]

VALUES = [
    Case(
        "a complex number among objects",
        lambda f: fit_random(rows=np.array([[1.0, 1j]] * 9, object)),
        TypeError,
        ("X[0, 1]", "real numbers"),
    ),
    Case(
        "a text among objects at predict",
        lambda f: fitted().predict(np.where(X > 2.0, "x", X.astype(object))),
        ValueError,
        ("X[", "'x'"),
    ),
    Case(
        "an integer that float64 does not hold",
        lambda f: fit_random(rows=np.array([[1.0, 2**60 + 1]] * 9, object)),
        ValueError,
        ("X[0, 1]", "2**53"),
    ),
    Case(
        "an integer beyond all floats",
        lambda f: fit_random(rows=np.array([[1.0, 2**2000]] * 9, object)),
        ValueError,
        ("X[0, 1]", "real numbers"),
    ),
    Case(
        "a large integer at predict",
        lambda f: fitted().predict(np.full((2, 4), 2**60 + 1)),
        ValueError,
        ("X[0, 0]", "2**53"),
    ),
    Case("infinity at predict", lambda f: fitted().predict(with_value(np.inf, 5, 1)), ValueError, ("X[5, 1]", "inf")),
    Case(
        "a structured array",
        lambda f: fit_random(rows=np.zeros(9, [("a", float), ("b", float)])),
        TypeError,
        ("X", "fields", "'a'"),
    ),
    Case("a name for rows", lambda f: classifier().fit("rows.csv", Y), ValueError, ("X", "str", "no rows")),
    Case("nothing for rows", lambda f: fitted().predict(None), ValueError, ("X", "NoneType")),
    Case("ragged rows", lambda f: fit_random(rows=[[1.0, 2.0], [3.0]] * 9), ValueError, ("X", "ragged")),
    Case(
        "dates in an array",
        lambda f: fit_random(rows=np.full((9, 2), np.datetime64("2026-01-01"))),
        TypeError,
        ("X", "datetime64"),
    ),
    Case("a sparse vector", lambda f: fit_random(rows=sparse.coo_array(X[:, 0])), ValueError, ("X", "(60,)")),
    Case(
        "text in a Dask array at predict",
        lambda f: fitted().predict(lazy(X.astype(str))).compute(),
        TypeError,
        ("X", "real numbers"),
    ),
    Case(
        "complex Dask rows at predict",
        lambda f: fitted().predict(lazy(X + 1j)).compute(),
        ValueError,
        ("Complex", "complex128"),
    ),
    Case("a Bag at predict", lambda f: fitted().predict(dask.bag.from_sequence(X)), TypeError, ("X", "Bag")),
    Case("a Delayed at fit", lambda f: fit_random(rows=dask.delayed(X)), TypeError, ("X", "Delayed")),
    Case(
        "two columns of one name",
        lambda f: fit_random(rows=pd.concat([frame(), frame()], axis=1)),
        ValueError,
        ("'a'", "more than once"),
    ),
    Case(
        "two columns of one name at predict",
        lambda f: fitted().predict(pd.concat([frame(), frame()], axis=1)),
        ValueError,
        ("'a'", "more than once"),
    ),
    Case(
        "a column too few in a Dask frame at predict",
        lambda f: fitted().predict(dd.from_pandas(frame(), npartitions=2)),
        ValueError,
        ("2 features", "4 features"),
    ),
]

PARAMETERS_TOO = [
    Case("a family's class", lambda f: fit_random(family=dkl.Gaussian), ValueError, ("family", "Gaussian()")),
    Case(
        "a learner's class",
        lambda f: classifier(features=dkl.RandomFeatures).fit(X, Y),
        ValueError,
        ("features", "RandomFeatures()"),
    ),
    Case("a truth value for a number", lambda f: fit_random(max_rows=True), ValueError, ("max_rows", "True")),
    Case(
        "more features than there are numbers",
        lambda f: fit_random(n_features=2**70),
        ValueError,
        ("n_features", "64 bits"),
    ),
    Case(
        "more epochs than a life has",
        lambda f: classifier(epochs=2**40).fit(X, Y),
        ValueError,
        ("epochs", "1000000000000"),
    ),
    Case("an empty checkpoint", lambda f: fit_random(checkpoint=""), ValueError, ("checkpoint", "empty")),
    Case("an infinite rho", lambda f: fit_aligned(rho=np.inf), ValueError, ("rho", "inf")),
    Case("factors by a dict", lambda f: fit_aligned(sigma_factors={}), ValueError, ("sigma_factors", "positive")),
    Case("sigma by an array", lambda f: fit_random(family=dkl.Gaussian(np.ones(2))), ValueError, ("sigma", "positive")),
    Case(
        "a nested family",
        lambda f: fit_random(family=dkl.SparseFrequencies(dkl.SparseFrequencies(dkl.Gaussian()))),
        TypeError,
        ("SparseFrequencies", "Laplacian"),
    ),
    Case(
        "a share by a word",
        lambda f: fit_random(family=dkl.SparseFrequencies(dkl.Gaussian(), "x")),
        ValueError,
        ("share", "(0, 1]"),
    ),
    Case(
        "degrees without end",
        lambda f: fit_random(family=dkl.SphericalHarmonics(10**9)),
        ValueError,
        ("max_degree", "10,000"),
    ),
    Case(
        "a huge class weight",
        lambda f: fit_aligned(class_weight={"no": 1e300}),
        ValueError,
        ("class_weight['no']", "1e+15"),
    ),
    Case("memory by a word", lambda f: fit_random(memory_limit="plenty"), ValueError, ("memory_limit", "2 GiB")),
]


FUNCTIONS = [
    Case("half a row a block", lambda f: create(f, X, Y, rows_a_block=1.5), TypeError, ("rows_a_block", "1.5")),
    Case(
        "a row less than none a block", lambda f: create(f, X, Y, rows_a_block=-1), ValueError, ("rows_a_block", "-1")
    ),
    Case("a seed by a word", lambda f: create(f, X, Y, shuffle=True, seed="x"), TypeError, ("seed", "'x'")),
    Case("names by a number", lambda f: create(f, X, Y, column_names=4), TypeError, ("column_names", "4")),
    Case("names in one text", lambda f: create(f, X, Y, column_names="abcd"), TypeError, ("column_names", "'abcd'")),
    Case("no classes at all", lambda f: create(f, X, Y, classes=[]), ValueError, ("classes", "[]")),
    Case("classes by a word", lambda f: create(f, X, Y, classes="no"), ValueError, ("classes", "'no'")),
    Case("events for nobody", lambda f: create(f, X, Y, publish=3), TypeError, ("publish", "3")),
    Case("a version by a word", lambda f: dkl.open_dataset(stored(f).store, "last"), TypeError, ("version", "'last'")),
    Case("a version before the first", lambda f: dkl.open_dataset(stored(f).store, -1), ValueError, ("version", "-1")),
    Case(
        "a suggestion without a seed",
        lambda f: dkl.suggest(X, Y, random_state=None),
        TypeError,
        ("random_state", "None"),
    ),
    Case(
        "a suggestion in no memory", lambda f: dkl.suggest(X, Y, memory_limit=[]), ValueError, ("memory_limit", "2 GiB")
    ),
    Case("a report on a number", lambda f: dkl.report(fitted(), 3), TypeError, ("data", "int", "Dataset")),
]

TIMES = np.arange(60)
GROUPS = np.array(["a", "b", "c"] * 20)
MIXED = [*GROUPS[:7].tolist(), None, *GROUPS[8:].tolist()]
PATIENTS = "a,y,patient,day\n" + "".join(f"{i}.5,{i % 2},p{i // 4},2026-01-{i + 1:02d}\n" for i in range(20))


def together(**options: Any) -> Callable[[Path], Any]:
    return lambda folder: create(folder, X, Y, **options)


def split_together(**options: Any) -> Callable[[Path], Any]:
    return lambda folder: stored(folder).split(**options)


def appended(**options: Any) -> Callable[[Path], Any]:
    return lambda folder: stored(folder).append(X, Y, **options)


TOGETHER = [
    Case("groups of another length", together(groups=GROUPS[:-1]), ValueError, ("groups", "(59,)", "(60,)")),
    Case("groups in two columns", together(groups=X[:, :2]), ValueError, ("groups", "(60, 2)", "one value a row")),
    Case("a missing group", together(groups=MIXED), ValueError, ("groups is missing in row 7", "remove rows")),
    Case("a group column of an array", together(groups="patient"), ValueError, ("'patient'", "one value a row")),
    Case("times of another length", together(times=TIMES[:5]), ValueError, ("times", "(5,)", "(60,)")),
    Case("a missing time", together(times=with_value(np.nan, 9)), ValueError, ("times is missing in row 9", "fill")),
    Case("an infinite time", together(times=with_value(np.inf, 9)), ValueError, ("times is inf in row 9", "finite")),
    Case("a date that is missing", together(times=np.array(["NaT"] * 60, "M8[D]")), ValueError, ("missing in row 0",)),
    Case("times that are booleans", together(times=TIMES > 3), ValueError, ("booleans", "numbers or dates")),
    Case("times that are no dates", together(times=GROUPS), ValueError, ("'a' in row 0", "pandas.to_datetime")),
    Case("one group", split_together(by_group=np.ones(60)), ValueError, ("'group'", "same value in all rows")),
    Case("one time", split_together(by_time=np.ones(60)), ValueError, ("'time'", "of one time")),
    Case(
        "a split by both",
        split_together(by_group=GROUPS, by_time=TIMES),
        ValueError,
        ("by_group and by_time", "one of"),
    ),
    Case("a split by no column", split_together(by_group="patient"), ValueError, ("'patient'", "names no column")),
    Case("a split by a time that is none", split_together(by_time="day"), ValueError, ("'day'", "no time column")),
    Case(
        "fewer groups than splits",
        split_together(given={"a": 0.4, "b": 0.2, "c": 0.2, "d": 0.2}, by_group=GROUPS),
        ValueError,
        ("3 groups", "too few"),
    ),
    Case(
        "rows by name and by group", split_together(given=GROUPS, by_group=GROUPS), ValueError, ("shares", "by_group=")
    ),
    Case(
        "a group that is a feature",
        lambda f: dkl.create_dataset("memory://g.zarr", frame(), Y).split(by_group="a"),
        ValueError,
        ("'a' is a feature", "groups=values"),
    ),
    Case("a split without shares", split_together(), ValueError, ("no split", "'train': 0.8")),
    Case("groups for rows without", appended(groups=GROUPS), ValueError, ("groups was given", "create_dataset")),
    Case(
        "rows without their groups",
        lambda f: dkl.create_dataset("memory://h.zarr", X, Y, groups=GROUPS).append(X, Y),
        ValueError,
        ("groups is missing", "pass groups="),
    ),
    Case(
        "dates after numbers",
        lambda f: dkl.create_dataset("memory://t.zarr", X, Y, times=TIMES).append(X, Y, times=TIMES.astype("M8[D]")),
        ValueError,
        ("times are dates", "are numbers"),
    ),
    Case("groups of a fit by name", lambda f: classifier().fit(X, Y, groups="p"), ValueError, ("'p'", "data frame")),
    Case(
        "groups that no frame has",
        lambda f: classifier().fit(frame(), Y, groups="patient"),
        ValueError,
        ("'patient'", "names no column", "'a'"),
    ),
    Case(
        "a machine by group on an array", lambda f: classifier(by_group="p").fit(X, Y), ValueError, ("'p'", "groups=")
    ),
    Case(
        "a machine by both",
        lambda f: classifier(by_group="p", by_time="t").fit(frame(p=GROUPS, t=TIMES), Y),
        ValueError,
        ("by_group and by_time", "one of"),
    ),
    Case(
        "a machine by no column",
        lambda f: classifier(by_group="pp").fit(frame(p=GROUPS), Y),
        ValueError,
        ("by_group='pp' names no column of X",),
    ),
    Case("a machine by a number", lambda f: classifier(by_group=3).fit(X, Y), ValueError, ("'by_group'", "3")),
    Case(
        "a fit of one group", lambda f: classifier().fit(X, Y, groups=["a"] * 60), ValueError, ("one group", "held out")
    ),
    Case(
        "groups of two",
        lambda f: dkl.tune(classifier(), X, Y, groups=GROUPS[:2], space={"alpha": [1e-3]}),
        ValueError,
        ("groups has shape (2,)",),
    ),
    Case(
        "more folds than groups",
        lambda f: dkl.compare(X, Y, groups=GROUPS, folds=5, learners=["random"]),
        ValueError,
        ("of 5 has no rows", "fewer folds"),
    ),
    Case(
        "a group column that no table has",
        lambda f: ingest(f, PATIENTS, target="y", group="user", drop=["day"]),
        ValueError,
        ("group='user'", "no column"),
    ),
    Case(
        "a group that is the target",
        lambda f: ingest(f, PATIENTS, target="y", group="y", drop=["day"]),
        ValueError,
        ("different columns", "group"),
    ),
    Case(
        "a time of a table that is missing",
        lambda f: ingest(f, PATIENTS.replace("2026-01-05", ""), target="y", time="day"),
        ValueError,
        ("'day' is missing in row 4",),
    ),
    Case(
        "a time of a table that is none",
        lambda f: ingest(f, PATIENTS, target="y", time="patient", drop=["day"]),
        ValueError,
        ("'patient' is 'p0' in row 0", "no date"),
    ),
    Case(
        "two group columns",
        lambda f: ingest(f, PATIENTS, target="y", group="a", by_group="patient"),
        ValueError,
        ("'a'", "'patient'", "one group"),
    ),
    Case(
        "splits by name and by group",
        lambda f: ingest(f, PATIENTS, target="y", by_group="patient", splits="day"),
        ValueError,
        ("splits='day'", "by_group draws them"),
    ),
]

CASES = [
    *ROWS,
    *STORES,
    *FILES,
    *PARAMETERS,
    *FITS,
    *SPLITS,
    *TOGETHER,
    *WEIGHTS,
    *LABELS,
    *EMPTY,
    *VALUES,
    *PARAMETERS_TOO,
    *FUNCTIONS,
]


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


def test_an_infinite_target_is_not_called_a_missing_one() -> None:
    with pytest.raises(ValueError, match=r"^Input y: y\[7\] is inf; targets must be finite$"):
        regressor(drop_missing_target=True).fit(X, with_value(np.inf, 7))


def test_a_frame_without_rows_is_not_blamed_for_its_weights() -> None:
    with pytest.raises(ValueError, match=r"^Found array with 0 sample\(s\).*X has no rows$"):
        classifier().fit(frame()[:0], Y[:0])


def test_labels_are_not_blamed_for_weights_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"^sample_weight\[1\] is -0\.5\d+; weights must be finite and not neg"):
        classifier().fit(frame(), Y, sample_weight="a")


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 140
    assert len({case.name for case in CASES}) == len(CASES)
