"""When does choosing features pay? Aligned and posterior features against plain ones, out of core, on real rows.

    python examples/when_selection_pays.py                    # scikit-learn's digits, 4 to 6 against the rest
    python examples/when_selection_pays.py --data DIR         # MNIST 4 v 9 and adult from DIR/mnist.npz, DIR/adult.npz

The rows are written to files, ingested into zarr stores and read by two worker processes. Candidates, bandwidth and
rows are the same for the three learners; rho, beta (at C = 1) and then the C of the linear machine are chosen on a
validation split (a new rho or beta needs no pass). The linear machine is liblinear's SVM on the features, in the end
fitted on all training rows. Prints the test accuracy at 100, 300 and 1,000 columns with the median bandwidth and with
one three times too narrow.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from distributed import Client, LocalCluster
from rich.console import Console
from rich.table import Table
from sklearn.datasets import dump_svmlight_file, load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.svm import LinearSVC

import dkl

SIZES = (100, 300, 1000)
COSTS = (0.1, 1.0, 10.0)
RHOS = (0.0, 1.0, 5.0, 20.0, 60.0, 200.0, 600.0, 2000.0)
BETAS = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def digits() -> Arrays:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, np.isin(y, (4, 5, 6)).astype(int), random_state=0, stratify=y)
    return X, y, X_test, y_test


def mnist_pair(folder: Path) -> Arrays:
    stored = np.load(folder / "mnist.npz")

    def part(name: str) -> tuple[np.ndarray, np.ndarray]:
        chosen = np.isin(stored[f"y_{name}"], (4, 9))
        return stored[f"X_{name}"][chosen] / np.float32(255), (stored[f"y_{name}"][chosen] == 4).astype(int)

    return (*part("train"), *part("test"))


def adult(folder: Path) -> Arrays:
    stored = np.load(folder / "adult.npz")
    return tuple(stored[name].astype(np.float32) for name in ("X_train", "y_train", "X_test", "y_test"))  # type: ignore[return-value]


def read_sets(folder: Path | None, only: str | None) -> Iterator[tuple[str, Arrays]]:
    if folder is None:
        yield "digits", digits()
        return
    for name, read in {"mnist-4-9": mnist_pair, "adult": adult}.items():
        if only in (None, name):
            yield name, read(folder)


def write_files(rows: Arrays, name: str, folder: Path) -> tuple[Path, Path]:
    """Training and test rows as files: npz for images, the svmlight text format for adult."""
    X, y, X_test, y_test = rows
    if name == "adult":
        paths = folder / "adult-train.libsvm", folder / "adult-test.libsvm"
        dump_svmlight_file(X, y, str(paths[0]), zero_based=True)
        dump_svmlight_file(X_test, y_test, str(paths[1]), zero_based=True)
    else:
        paths = folder / f"{name}-train.npz", folder / f"{name}-test.npz"
        np.savez(paths[0], X=X.astype(np.float32), y=y)
        np.savez(paths[1], X=X_test.astype(np.float32), y=y_test)
    return paths


def ingest(path: Path, store: str, n_columns: int, splits: dict[str, float] | None = None) -> dkl.Dataset:
    if path.suffix == ".libsvm":  # the text names its target, and not how many columns there are
        text = dkl.LibsvmFormat(n_columns=n_columns, zero_based=True)
        return dkl.ingest(path, store, format=text, splits=splits, progress=False)
    return dkl.ingest(path, store, target="y", splits=splits, progress=False)


def candidates(learners: dict[str, object], name: str, size: int) -> Iterator[object]:
    """The fitted learners that validation chooses from."""
    learner = learners[name]
    if name == "aligned":
        yield from (learner.with_rho(rho, n_features=size) for rho in RHOS)  # type: ignore[attr-defined]
        yield learner.with_rho(60.0, n_features=size, estimator="support")  # type: ignore[attr-defined]
    elif name == "posterior":
        yield from (learner.with_beta(beta, n_features=size) for beta in BETAS)  # type: ignore[attr-defined]
        yield learner.with_beta(1.0, n_features=size, estimator="support")  # type: ignore[attr-defined]
    else:
        yield learner.with_rho(0.0, n_features=size)  # type: ignore[attr-defined]


def mapped(learner: object, *parts: dkl.Dataset) -> tuple[np.ndarray, np.ndarray]:
    features = [learner.transform(part).compute() for part in parts]  # type: ignore[attr-defined]
    return np.vstack(features), np.concatenate([part.y.compute() for part in parts])


def accuracy(learner: object, cost: float, test: dkl.Dataset, *train: dkl.Dataset) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine = LinearSVC(C=cost, dual=False, max_iter=300).fit(*mapped(learner, *train))
    return 100 * machine.score(*mapped(learner, test))


def chosen(learners: dict[str, object], name: str, size: int, rows: dkl.Dataset) -> tuple[object, float]:
    """The learner that does best on the validation split at C = 1, and the cost that does best with it."""
    learn, validate = rows["learn"], rows["validate"]
    learner = max(candidates(learners, name, size), key=lambda one: accuracy(one, 1.0, validate, learn))
    return learner, max(COSTS, key=lambda cost: accuracy(learner, cost, validate, learn))


def compare(rows: dkl.Dataset, test: dkl.Dataset, factor: float, n_candidates: int, console: Console) -> Table:
    """One table: test accuracy of the three learners at each size, for the median bandwidth times `factor`."""
    plain = dkl.RandomFeatures(n_features=2, random_state=0).fit(rows["learn"])
    family = dkl.Gaussian(sigma=plain.family_.sigma * factor)
    given = {"family": family, "n_candidates": n_candidates, "random_state": 0}
    learners: dict[str, object] = {
        "aligned": dkl.AlignedFeatures(**given).fit(rows["learn"]),
        "posterior": dkl.PosteriorFeatures(**given).fit(rows["learn"]),
    }
    learners["plain"] = learners["aligned"]  # rho = 0: uniform draws from the same candidates
    table = Table("features", *(f"{size} columns" for size in SIZES), title=f"bandwidth {family.sigma:.3g}")
    for name in ("plain", "aligned", "posterior"):
        cells = []
        for size in SIZES:
            learner, cost = chosen(learners, name, size, rows)
            setting = getattr(learner, "rho" if name == "aligned" else "beta", None)
            symbol = "rho" if name == "aligned" else "beta"
            label = "" if name == "plain" else f", {symbol} {setting:g}, {learner.estimator}"  # type: ignore[attr-defined]
            reached = accuracy(learner, cost, test, rows["learn"], rows["validate"])
            cells.append(f"{reached:.2f}  (C {cost:g}{label})")
        table.add_row(name, *cells)
        console.print(f"  {name}: {', '.join(cells)}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz and adult.npz")
    parser.add_argument("--candidates", type=int, default=20_000)
    parser.add_argument("--only", choices=["mnist-4-9", "adult"], help="one of the two sets of --data")
    options = parser.parse_args()
    sets = dict(read_sets(options.data, options.only))
    console = Console()
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        for name, arrays in sets.items():
            paths = write_files(arrays, name, Path(folder))
            rows = ingest(paths[0], f"{folder}/{name}.zarr", arrays[0].shape[1], splits={"learn": 0.8, "validate": 0.2})
            test = ingest(paths[1], f"{folder}/{name}-test.zarr", arrays[0].shape[1])
            for factor in (1.0, 1 / 3):
                console.print(f"{name}, median bandwidth x {factor:.2g}")
                console.print(compare(rows, test, factor, options.candidates, console))


if __name__ == "__main__":
    main()
