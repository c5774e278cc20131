"""Test error against the time of the fit: dkl beside an RBF-SVM and LightGBM, on four real sets.

    python examples/error_against_time.py                      # four sets that come with scikit-learn
    python examples/error_against_time.py --data DIR           # two sets of images and two tables of the folder

Each machine has a dial that buys accuracy for time, and the script turns it: the number of features of dkl, the number
of trees of LightGBM, the share of the rows that the SVM gets. The automatic machine of dkl has no dial and is one more
point. All columns are numbers; the SVM gets them standardised, and its C (1, 10 or 100) is chosen by three folds. Times
are processor seconds of the whole fit on one thread, after imports and compilation. Errors are the share of test rows
that are wrong, or the root mean squared error in standard deviations of the training targets, as means over splits.

The images are scikit-learn's digits and CIFAR automobile v truck (HOG columns, `cifar_auto_truck.npz`), and "mnist49"
(pixels of MNIST 4 v 9, `mnist.npz`) if `--sets` names it. The tables are concrete and satimage (Parquet files and a
`sets.json`, in the folder or in `tabular` below it). Of a set with more rows 5,000 are drawn for the fit, and 5,000
others judge it. The figures go to `error_against_time.json`, the picture to `error_against_time.png`, both in
`--output`; sets that were measured before stay in the file.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent / "papers"))

import dask
import lightgbm
import numpy as np
import pandas as pd
import sklearn
from sets import rows_of as arrays_of
from sklearn import datasets
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR
from threadpoolctl import threadpool_limits

import dkl

OF_SCIKIT_LEARN = {
    "digits": datasets.load_digits,
    "breast_cancer": datasets.load_breast_cancer,
    "wine": datasets.load_wine,
    "diabetes": datasets.load_diabetes,
}
OF_A_FOLDER = ("digits", "auto_truck", "concrete", "satimage")
MOST_ROWS = 5_000
OF_IMAGES = {"mnist49": "MNIST 4 v 9", "auto_truck": "CIFAR car v truck"}
FEATURES, TREES, SHARES = (50, 150, 500), (10, 30, 100, 300), (0.1, 0.3, 1.0)
COLOURS = {"dkl": "C0", "LightGBM": "C2", "RBF-SVM": "C3"}


def rows_of(name: str, data: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The columns of a set as numbers, and its targets."""
    if name in OF_SCIKIT_LEARN:
        return OF_SCIKIT_LEARN[name](return_X_y=True)
    if data is None:
        raise ValueError(f"set {name!r} does not come with scikit-learn: give its folder as --data")
    if name in OF_IMAGES:
        rows = arrays_of(name, data)
        return np.concatenate([rows.X, rows.X_test]), np.unique(np.append(rows.y, rows.y_test), return_inverse=True)[1]
    folder = data if (data / "sets.json").exists() else data / "tabular"
    told = json.loads((folder / "sets.json").read_text())[name]
    frame = pd.read_parquet(folder / f"{name}.parquet")
    targets = frame.pop(told["target"])
    numbers = told["task"] != "classification"
    return frame.to_numpy(float), targets.to_numpy(float) if numbers else np.unique(targets, return_inverse=True)[1]


def machines(numbers: bool, seed: int) -> Iterator[tuple[str, str, Callable[[Any, Any], Any]]]:
    """What is fitted: the machine, the place of its dial, and the fit."""
    ours = dkl.KernelRegressor if numbers else dkl.KernelClassifier
    trees = lightgbm.LGBMRegressor if numbers else lightgbm.LGBMClassifier
    svm = SVR if numbers else SVC
    for size in FEATURES:
        searched = ours(dkl.MarginFeatures(n_features=size), solver="newton", alpha="auto", random_state=seed)
        yield "dkl", f"{size} features", searched.fit
    yield "dkl", "automatic", ours(random_state=seed).fit
    for count in TREES:
        yield "LightGBM", f"{count} trees", trees(n_estimators=count, n_jobs=1, random_state=seed, verbose=-1).fit
    for share in SHARES:
        search = GridSearchCV(
            make_pipeline(StandardScaler(), svm(cache_size=500)), {f"{svm.__name__.lower()}__C": [1, 10, 100]}, cv=3
        )

        def fit(X: np.ndarray, y: np.ndarray, search: Any = search, share: float = share) -> Any:
            kept = np.random.default_rng(seed).permutation(len(y))[: int(share * len(y))]
            return search.fit(X[kept], y[kept])

        yield "RBF-SVM", f"{share:.0%} of the rows", fit


def measured(X: np.ndarray, y: np.ndarray, seed: int) -> Iterator[dict[str, Any]]:
    """One point a machine and place of its dial, on the split of this seed."""
    numbers = np.issubdtype(y.dtype, np.floating)
    train, test = (min(MOST_ROWS, int(share * len(y))) for share in (0.75, 0.25))
    classes = None if numbers else y
    X, X_test, y, y_test = train_test_split(X, y, train_size=train, test_size=test, random_state=seed, stratify=classes)
    if numbers:
        centre, scale = y.mean(), y.std()
        y, y_test = (y - centre) / scale, (y_test - centre) / scale
    for machine, dial, fit in machines(numbers, seed):
        start = time.process_time()
        model = fit(X, y)
        seconds = time.process_time() - start
        predicted = model.predict(X_test)
        error = np.sqrt(np.mean((predicted - y_test) ** 2)) if numbers else np.mean(predicted != y_test)
        yield {"machine": machine, "dial": dial, "seconds": seconds, "error": float(error)}


def warm_up() -> None:
    """Import and compile what the fits use, so that no clock counts it."""
    X, y = datasets.load_iris(return_X_y=True)
    for targets in (y, X[:, 0]):
        for machine, _, fit in machines(targets is not y, 0):
            if machine == "dkl":
                fit(X, targets)


def run(names: tuple[str, ...], data: Path | None, seeds: int, figures: Path) -> None:
    """Write the means over the splits of all points of the sets, and what they were measured with.

    The file is written after each set; sets that it had before stay in it.
    """
    found = json.loads(figures.read_text())["sets"] if figures.exists() else {}
    for name in names:
        X, y = rows_of(name, data)
        points = pd.DataFrame([point for seed in range(seeds) for point in measured(X, y, seed)])
        means = points.groupby(["machine", "dial"], sort=False).mean().reset_index()
        numbers = bool(np.issubdtype(y.dtype, np.floating))
        found[name] = {"rows": len(y), "columns": X.shape[1], "numbers": numbers, "points": means.to_dict("records")}
        print(f"{name}, {len(y):,} rows\n{means.to_string(index=False)}\n", flush=True)
        versions = {module.__name__: module.__version__ for module in (dkl, lightgbm, sklearn, np)}
        noted = {"seeds": seeds, "date": time.strftime("%Y-%m-%d"), "versions": versions, "sets": found}
        figures.write_text(json.dumps(noted, indent=1) + "\n")


def draw(found: dict[str, Any], path: Path, names: tuple[str, ...]) -> None:
    """A panel a set, of those that were measured; the automatic machine is a star."""
    from matplotlib import pyplot

    sets = {name: found["sets"][name] for name in names if name in found["sets"]}
    figure, panels = pyplot.subplots(1, len(sets), figsize=(11, 2.9), layout="constrained", squeeze=False)
    for panel, (name, told) in zip(panels[0], sets.items(), strict=True):
        factor = 1 if told["numbers"] else 100
        for machine, colour in COLOURS.items():
            points = [point for point in told["points"] if point["machine"] == machine]
            dialled = [point for point in points if point["dial"] != "automatic"]
            # a larger dial may take less time: the line goes on in time all the same
            dialled.sort(key=lambda point: point["seconds"])
            seconds, errors = ([point[key] for point in dialled] for key in ("seconds", "error"))
            panel.plot(seconds, np.multiply(factor, errors), "o-", color=colour, label=machine, markersize=4)
            for point in points:
                if point["dial"] == "automatic":
                    label = "dkl, no settings"
                    panel.plot(point["seconds"], factor * point["error"], "*", color=colour, label=label, markersize=13)
        panel.set(
            xscale="log", title=f"{OF_IMAGES.get(name, name)}, {told['columns']} columns", xlabel="seconds of the fit"
        )
        panel.set_ylabel("error in deviations" if told["numbers"] else "test error, %")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].legend(fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz, cifar_auto_truck.npz and tables")
    parser.add_argument("--sets", help="names, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "pictures")
    parser.add_argument("--redraw", action="store_true", help="draw what was measured before")
    options = parser.parse_args()
    figures = options.output / "error_against_time.json"
    usual = OF_A_FOLDER if options.data or options.redraw else tuple(OF_SCIKIT_LEARN)
    chosen = tuple(options.sets.split(",")) if options.sets else usual
    if not options.redraw:
        options.output.mkdir(parents=True, exist_ok=True)
        with dask.config.set(scheduler="synchronous"), threadpool_limits(1):
            warm_up()
            run(chosen, options.data, options.seeds, figures)
    draw(json.loads(figures.read_text()), options.output / "error_against_time.png", chosen)


if __name__ == "__main__":
    main()
