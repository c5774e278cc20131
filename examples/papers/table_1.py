"""Table 1 of "Not-so-random features": accuracy against the number of features, with the defaults of `MarginFeatures`.

    python examples/papers/table_1.py                             # scikit-learn's digits, 4 to 6 against the rest
    python examples/papers/table_1.py --data DIR --seeds 5        # MNIST, CIFAR-10 as HOG, adult from DIR/*.npz

One set of defaults for all rows: squared hinge, C chosen on held-out training rows. Prints the mean and deviation over
seeds of the test accuracy in percent, the median seconds of a fit, and the paper's figure where it has one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from sets import rows_of
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import dkl

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
PAPER = {
    ("MNIST 4 v 9", 500): 96.31,
    ("MNIST 4 v 9", 100): 93.02,
    ("MNIST 4 v 9", 1000): 97.68,
    ("MNIST 4 v 9", 5000): 99.01,
    ("MNIST 1 v 7", 100): 99.05,
    ("MNIST 1 v 7", 500): 99.28,
    ("MNIST 1 v 7", 1000): 99.45,
    ("MNIST 1 v 7", 5000): 99.65,
    ("automobile v truck", 100): 84.80,
    ("automobile v truck", 500): 85.90,
    ("automobile v truck", 1000): 86.00,
    ("automobile v truck", 5000): 88.80,
}


def digits(folder: Path | None) -> Arrays:
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X / 16, np.isin(y, (4, 5, 6)), random_state=0, stratify=y)
    return X, y, X_test, y_test


def stored(name: str) -> Callable[[Path], Arrays]:
    """A set of the folder that has test rows of its own."""

    def read(folder: Path) -> Arrays:
        rows = rows_of(name, folder)
        return rows.X, rows.y, rows.X_test, rows.y_test

    return read


SETS: dict[str, tuple[Callable[[Path], Arrays], tuple[int, ...]]] = {
    "MNIST 4 v 9": (stored("mnist49"), (100, 500, 1000, 5000)),
    "MNIST 1 v 7": (stored("mnist17"), (100, 500, 1000, 5000)),
    "automobile v truck": (stored("auto_truck"), (100, 500, 1000, 5000)),
    "adult": (stored("adult"), (100, 200, 500)),
    "MNIST, ten classes": (stored("mnist"), (1000, 4000)),
}


def measure(rows: Arrays, n_features: int, seeds: int) -> tuple[np.ndarray, float]:
    """Test accuracy in percent of each seed, and the median seconds of a fit."""
    X, y, X_test, y_test = rows
    scores, seconds = [], []
    for seed in range(seeds):
        started = time.perf_counter()
        features = dkl.MarginFeatures(n_features=n_features)
        model = dkl.KernelClassifier(
            features, loss="squared_hinge", solver="newton", alpha="auto", random_state=seed
        ).fit(X, y)
        seconds.append(time.perf_counter() - started)
        scores.append(100.0 * model.score(X_test, y_test))
    return np.array(scores), float(np.median(seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz, cifar_auto_truck.npz and adult.npz")
    parser.add_argument("--only", help="one of the sets, by its name or a part of it")
    parser.add_argument("--sizes", help="numbers of features, such as 100,500")
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    sets = {"digits": (digits, (50, 100))} if options.data is None else SETS
    table = Table("rows", "features", "test %", "seconds", "paper %")
    for name, (read, sizes) in sets.items():
        if options.only and options.only not in name:
            continue
        rows = read(options.data)
        for size in map(int, options.sizes.split(",")) if options.sizes else sizes:
            scores, seconds = measure(rows, size, options.seeds)
            paper = PAPER.get((name, size))
            shown = f"{scores.mean():.2f} +- {scores.std():.2f}"
            table.add_row(name, str(size), shown, f"{seconds:.1f}", "" if paper is None else f"{paper:.2f}")
            print(f"{name}, {size}: {shown}, {seconds:.1f} s", flush=True)
    Console().print(table)


if __name__ == "__main__":
    main()
