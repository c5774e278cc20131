"""Rows of the papers' sets, by name: from a folder of .npz files, from scikit-learn or from OpenML.

A file holds X and y, or X_train, y_train, X_test and y_test; sparse rows as the parts of a CSR matrix (data, indices,
indptr, shape). Digits are "mnist", or "mnist49" for the pair 4 and 9.
"delays" are the flights with the minutes of their delay, cut to -30 and 120. "windmill" (two classes in the plane) and
"friedman" (numbers) are drawn: 1.2 million rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn import datasets

from dkl.testing.synthetic import windmill

# names of a set's file, and of the set on OpenML with its version, where they are not its own
_FILES = {"farm": "farm_ads", "census": "kdd_census_income"}
_FILES |= {pair: f"cifar_{pair}" for pair in ("auto_truck", "plane_bird", "dog_frog", "auto_ship", "auto_deer")}
_FILES |= dict.fromkeys(("flights", "delays"), "flights_3m")
_OPENML = {"mnist": ("mnist_784", 1), "adult": ("adult", 2), "farm": ("farm-ads", 1)}
_SHORT = {"breast": "breast_cancer"}
_DRAWN = 1_200_000
# minutes of delay from which a flight is late
_LATE = 15


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows, and test rows where the set has its own (else none)."""

    X: Any
    y: np.ndarray
    X_test: Any
    y_test: np.ndarray

    @property
    def has_test(self) -> bool:
        return len(self.y_test) > 0

    def of_labels(self, labels: list[int]) -> Rows:
        """The rows of these classes."""
        kept, kept_test = np.isin(self.y, labels), np.isin(self.y_test, labels)
        return Rows(self.X[kept], self.y[kept], self.X_test[kept_test], self.y_test[kept_test])

    def pooled(self) -> tuple[Any, np.ndarray]:
        """All rows together."""
        if not self.has_test:
            return self.X, self.y
        stack = sparse.vstack if sparse.issparse(self.X) else np.concatenate
        return stack([self.X, self.X_test]), np.concatenate([self.y, self.y_test])


def at_hand(name: str, folder: Path | None) -> bool:
    """Whether a set need not be asked for elsewhere: the folder has its file."""
    short = "mnist" if name.startswith("mnist") else name
    return folder is not None and (folder / f"{_FILES.get(short, short)}.npz").exists()


def rows_of(name: str, folder: Path | None = None) -> Rows:
    """The rows of a set; floating-point targets are numbers to be found, all others labels.

    Parameters
    ----------
    name : str
    folder : Path or None
        Where files are looked for first.
    """
    if name.startswith("mnist") and name != "mnist":
        return rows_of("mnist", folder).of_labels([int(digit) for digit in name[5:]])
    path = None if folder is None else folder / f"{_FILES.get(name, name)}.npz"
    if path is not None and path.exists():
        return _of_file(path, name)
    if name == "windmill":
        return _without_test(*windmill(_DRAWN))
    if name == "friedman":
        return _without_test(*datasets.make_friedman1(_DRAWN, noise=1.0, random_state=0))
    shipped = f"load_{_SHORT.get(name, name)}"
    if hasattr(datasets, shipped):
        return _without_test(*getattr(datasets, shipped)(return_X_y=True))
    return _of_openml(name)


def _without_test(X: Any, y: np.ndarray) -> Rows:
    return Rows(X, y, X[:0], y[:0])


def _of_file(path: Path, name: str) -> Rows:
    with np.load(path) as stored:
        if "X_train" in stored:
            train, test = (_numbers(stored[f"X_{part}"]) for part in ("train", "test"))
            return Rows(train, stored["y_train"], test, stored["y_test"])
        if "minute_diff" in stored:
            columns, delay = _flights(stored)
            y = np.clip(delay, -30.0, 120.0) if name == "delays" else (delay >= _LATE).astype(int)
            return _without_test(columns, y)
        if "indptr" in stored:
            parts = (_numbers(stored["data"]), stored["indices"], stored["indptr"])
            X: Any = sparse.csr_array(parts, shape=tuple(stored["shape"]))
        else:
            X = _numbers(stored["X"])
        y = stored["y"]
        if "n_train" in stored:
            n_train = int(stored["n_train"])
            return Rows(X[:n_train], y[:n_train], X[n_train:], y[n_train:])
        if "test" in stored:
            test = stored["test"].astype(bool)
            return Rows(X[~test], y[~test], X[test], y[test])
    return _without_test(X, y)


def _flights(stored: Any) -> tuple[Any, np.ndarray]:
    """Distance, and one column each hour, weekday, month, origin and destination; the minutes of delay."""
    minute = np.cumsum(stored["minute_diff"], dtype=np.int64)
    day = (np.datetime64(str(stored["start"]), "m") + minute.astype("timedelta64[m]")).astype("datetime64[D]")
    parts = [minute // 60 % 24, (day.astype(int) + 3) % 7, day.astype("datetime64[M]").astype(int) % 12]
    parts += [stored["origin"].astype(np.int64), stored["destination"].astype(np.int64)]
    widths = [24, 7, 12, len(stored["origin_names"]), len(stored["destination_names"])]
    starts = 1 + np.cumsum([0, *widths])
    columns = np.stack(
        [np.zeros(len(minute), int), *(part + start for part, start in zip(parts, starts, strict=False))], 1
    )
    values = np.ones(columns.shape, np.float32)
    values[:, 0] = stored["distance"] / 1_000.0
    rows = np.arange(0, values.size + 1, columns.shape[1])
    X = sparse.csr_matrix(
        (values.ravel(), columns.ravel().astype(np.int32), rows), shape=(len(minute), int(starts[-1]))
    )
    return X, stored["delay"]


def _numbers(X: np.ndarray) -> np.ndarray:
    """Pixels become numbers from 0 to 1, short types single precision."""
    if X.dtype == np.uint8 and X.max() > 1:
        return X / np.float32(255)
    return X if X.dtype == np.float64 else X.astype(np.float32)


def _of_openml(name: str) -> Rows:
    import pandas as pd

    known, version = _OPENML.get(name, (name, "active"))
    found = datasets.fetch_openml(known, version=version, as_frame="auto")
    if sparse.issparse(found.data):
        return _without_test(sparse.csr_array(found.data), pd.factorize(found.target, sort=True)[0])
    X = pd.get_dummies(found.data).to_numpy(np.float64)
    numbers = pd.api.types.is_numeric_dtype(found.target)
    y = found.target.to_numpy(np.float64) if numbers else pd.factorize(found.target, sort=True)[0]
    whole = np.isfinite(X).all(axis=1)
    if known == "mnist_784":
        X = (X / 255.0).astype(np.float32)
    return _without_test(X[whole], y[whole])
