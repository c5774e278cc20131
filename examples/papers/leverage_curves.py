"""Section 4 of Sun, Gilbert & Tewari 2018: features drawn by leverage beside plain ones, figures 1 to 4.

    python examples/papers/leverage_curves.py                        # the disc and its annulus, in 2 and 10 columns
    python examples/papers/leverage_curves.py --data DIR             # also MNIST 4 v 9 from DIR/mnist.npz
    python examples/papers/leverage_curves.py --quick --only curves

Nystrom features of as many columns, their landmarks drawn uniformly or by leverage, stand beside them: the paper names
that comparison as future work.

Finished cells are kept in OUTPUT/cells, and a run that was broken off goes on from there. OUTPUT/curves.md holds
the tables, beside the pictures; it is written after each seed. From 30,000 rows on features are learned from a store,
block by block; the linear machine (hinge.py) has the mapped rows in memory, 4 bytes a number (300,000 x 320: 0.4 GB).
All arms draw the same number N of frequencies at the same bandwidth (the mean distance
between training rows) and train a linear SVM (hinge, no intercept) for the same number of epochs with the lambda that
is best on held-out rows. The reweighted arms have M = 100 N candidates and L = 0.3 n rows (4,000 at most), mu = 1e-4.

The authors' protocol differs: they chose lambda on the test rows, their arms differ in epochs and by sqrt 2 in the
bandwidth, and their reweighted features have no importance weights ("as printed" here).
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from cells import Cell, Cells, markdown, report
from hinge import hinge_weights
from scipy.spatial.distance import pdist
from sets import rows_of
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import SVC

import dkl
from dkl.plots import ComparisonDisplay
from dkl.testing.synthetic import disc_and_annulus

Rows = tuple[np.ndarray, np.ndarray]

LAMBDAS = tuple(float(lam) for lam in 10.0 ** np.arange(-7, 2))
SIZES = (1, 3, 5, 10, 20)
MUS = (1e-2, 1e-4, 1e-6)
MU, CANDIDATES, SHARE, MOST_ROWS = 1e-4, 100, 0.3, 4_000
SVM, PLAIN, LEVERAGE, PRINTED = "SVM", "plain", "leverage", "leverage, as printed"
NYSTROM = {"uniform": "Nystrom, uniform", "leverage": "Nystrom, leverage"}
# From so many rows on, the rows lie in a store and features are learned from it, block by block.
STORED_ROWS = 30_000
NOISE = 0.1
VALIDATION_SEED, TEST_SEED = 10_000, 20_000


@dataclass(frozen=True)
class Scale:
    """How large the experiment is."""

    rows: dict[str, tuple[int, ...]]
    curve_seeds: int
    lambda_seeds: int
    n_test: int
    n_curve_test: int
    epochs: int

    def up_to(self, most: int) -> Scale:
        """With no curve beyond so many rows."""
        return replace(self, rows={name: tuple(n for n in sizes if n <= most) for name, sizes in self.rows.items()})


FULL = Scale(
    {
        "disc, 2 columns": (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000),
        "disc, 10 columns": (100, 300, 1_000, 3_000, 10_000, 30_000),
        "MNIST 4 v 9": (100, 300, 1_000, 3_000, 9_000),
    },
    curve_seeds=5,
    lambda_seeds=10,
    n_test=100_000,
    n_curve_test=25_000,
    epochs=50,
)
QUICK = Scale({"disc, 2 columns": (100, 300), "disc, 10 columns": (100, 300)}, 2, 2, 4_000, 4_000, 10)


def drawn(n_columns: int, n_rows: int, seed: int, n_test: int) -> tuple[Rows, Rows, Rows]:
    """Training and validation rows, and test rows whose labels are those of the Bayes rule."""
    part = {"n_columns": n_columns}
    train = disc_and_annulus(n_rows, seed=seed, **part)
    validation = disc_and_annulus(min(n_rows, 10_000), seed=VALIDATION_SEED + seed, **part)
    return train, validation, disc_and_annulus(n_test, noise=0.0, seed=TEST_SEED, **part)


@cache
def digits(folder: Path) -> tuple[Rows, Rows]:
    """The fours and nines of MNIST, train and test, as -1 and +1."""
    rows = rows_of("mnist49", folder)
    return (rows.X, np.where(rows.y == 9, 1, -1)), (rows.X_test, np.where(rows.y_test == 9, 1, -1))


def taken(folder: Path, n_rows: int, seed: int) -> tuple[Rows, Rows, Rows]:
    """Training rows of MNIST, up to 2,500 others for validation, and its own test rows."""
    (X, y), test = digits(folder)
    order = np.random.default_rng(seed).permutation(len(X))
    train, rest = order[:n_rows], order[n_rows : n_rows + min(n_rows, 2_500)]
    return (X[train], y[train]), (X[rest], y[rest]), test


def arms_of(n_draws: int, X: np.ndarray, seed: int, mu: float = MU, rows: Any = None) -> dict[str, Any]:
    """Fitted features of every arm, learned from X or from the store `rows` that holds it; without labels."""
    rows = X if rows is None else rows
    family = dkl.Gaussian(float(pdist(X[:1_000]).mean()))
    plain = dkl.RandomFeatures(family, 2 * n_draws, random_state=seed, progress=False).fit(rows)
    n_rows = min(int(np.ceil(SHARE * len(X))), MOST_ROWS)
    drawn = dkl.LeverageFeatures(
        family, CANDIDATES * n_draws, 2 * n_draws, mu, n_rows, random_state=seed, progress=False
    ).fit(rows)
    return {PLAIN: plain, LEVERAGE: drawn, PRINTED: drawn.with_mu(weighted=False)}


def landmarks_of(n_draws: int, X: np.ndarray, seed: int, rows: Any) -> dict[str, Any]:
    """Fitted Nystrom features of as many columns, which the paper names as future work: one landmark a column."""
    kernel = dkl.Gaussian(float(pdist(X[:1_000]).mean()))
    n_landmarks = min(2 * n_draws, len(X))
    return {
        arm: dkl.NystromFeatures(kernel, n_landmarks, way, random_state=seed, progress=False).fit(rows)
        for way, arm in NYSTROM.items()
    }


def accuracies(features: Any, parts: Sequence[Rows], epochs: int) -> np.ndarray:
    """Of a linear SVM for each lambda (rows) on validation and test rows (columns)."""
    mapped, *others = [features.transform(X) for X, _ in parts]
    y, *labels = [y for _, y in parts]
    found = []
    for lam in LAMBDAS:
        # epochs are given, whether that is the optimum or not
        w = hinge_weights(mapped, y, 1.0 / (lam * len(y)), epochs)
        found.append([np.mean((other @ w > 0.0) == (label > 0)) for other, label in zip(others, labels, strict=True)])
    return np.array(found)


def excess(accuracy: np.ndarray) -> np.ndarray:
    """Percent of risk above the Bayes risk, of rows whose labels are the Bayes rule's."""
    return 100.0 * (1.0 - 2.0 * NOISE) * (1.0 - accuracy)


def curve_cell(parts: Sequence[Rows], is_synthetic: bool, seed: int, epochs: int) -> dict[str, float]:
    """The risk of each arm at ln^2 n draws, at the lambda that is best on validation rows."""
    n_draws = int(np.ceil(np.log(len(parts[0][0])) ** 2))
    cell: dict[str, float] = {"N": n_draws}
    X = parts[0][0]
    with TemporaryDirectory() as folder:
        rows = X if len(X) < STORED_ROWS else dkl.create_dataset(f"{folder}/rows.zarr", X)
        arms = arms_of(n_draws, X, seed, rows=rows) | landmarks_of(n_draws, X, seed, rows)
    for arm, features in arms.items():
        found = accuracies(features, parts, epochs)
        best = found[np.argmax(found[:, 0]), 1]
        cell[arm] = float(excess(best) if is_synthetic else 100.0 * (1.0 - best))
    return cell


def lambda_cell(n_draws: int, seed: int, scale: Scale) -> dict[str, list[float]]:
    """Accuracies on noisy test rows for every lambda, n = 1,000, in percent (figures 1 and 2)."""
    parts = drawn(2, 1_000, seed, scale.n_test)
    arms = arms_of(n_draws, parts[0][0], seed)
    found = {arm: accuracies(features, parts, 10 * scale.epochs)[:, 1] for arm, features in arms.items()}
    return {arm: (90.0 - excess(values)).tolist() for arm, values in found.items()}


def mu_cell(mu: float, seed: int, scale: Scale) -> dict[str, float]:
    """Accuracy at N = 5, n = 1,000 and a mu, lambda by validation."""
    parts = drawn(2, 1_000, seed, scale.n_test)
    arms = arms_of(5, parts[0][0], seed, mu)
    found = {arm: accuracies(arms[arm], parts, scale.epochs) for arm in (PLAIN, LEVERAGE)}
    return {arm: float(90.0 - excess(values[np.argmax(values[:, 0]), 1])) for arm, values in found.items()}


def svm_cell(seed: int, scale: Scale) -> dict[str, list[float]]:
    """Accuracies of an SVM with the Gaussian kernel (scikit-learn's, which has an intercept) for every lambda."""
    (X, y), _, (X_test, y_test) = drawn(2, 1_000, seed, min(scale.n_test, 20_000))
    gamma = 0.5 / pdist(X).mean() ** 2
    machines = [SVC(C=1.0 / (lam * len(y)), gamma=gamma, max_iter=100_000) for lam in LAMBDAS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        scores = [machine.fit(X, y).score(X_test, y_test) for machine in machines]
    return {SVM: (90.0 - excess(np.array(scores))).tolist()}


def over_seeds(cells: Cells, name: str, seeds: int) -> list[Cell]:
    return [cells[f"{name}, seed {seed}"] for seed in range(seeds)]


def curve_key(scale: Scale, name: str, n_rows: int) -> str:
    """What the cells of the curves are called, but for the seed; those of runs without Nystrom are other ones."""
    return f"{scale.n_curve_test} {name}, n = {n_rows}, Nystrom beside"


def wanted_cells(scale: Scale, folder: Path | None, only: str | None) -> dict[str, Callable[[], Any]]:
    """What the experiment consists of, by key, cheapest curves first."""
    cells: dict[str, Callable[[], Any]] = {}
    if only in (None, "lambda"):
        for seed in range(scale.lambda_seeds):
            cells[f"{scale.n_test} svm, seed {seed}"] = lambda seed=seed: svm_cell(seed, scale)
            for size in SIZES:
                key = f"{scale.n_test} lambda, N = {size}, seed {seed}"
                cells[key] = lambda size=size, seed=seed: lambda_cell(size, seed, scale)
            for mu in MUS:
                cells[f"{scale.n_test} mu = {mu:g}, seed {seed}"] = lambda mu=mu, seed=seed: mu_cell(mu, seed, scale)
    if only in (None, "curves"):
        for n, name in sorted((n, name) for name, sizes in sets_of(scale, folder).items() for n in sizes):
            for seed in range(scale.curve_seeds):
                cells[f"{curve_key(scale, name, n)}, seed {seed}"] = lambda name=name, n=n, seed=seed: one_curve_cell(
                    name, n, seed, scale, folder
                )
    return cells


def sets_of(scale: Scale, folder: Path | None) -> dict[str, tuple[int, ...]]:
    """The sets at hand."""
    return {name: sizes for name, sizes in scale.rows.items() if folder is not None or "MNIST" not in name}


def one_curve_cell(name: str, n_rows: int, seed: int, scale: Scale, folder: Path | None) -> dict[str, float]:
    is_synthetic = folder is None or "MNIST" not in name
    if is_synthetic:
        parts = drawn(int(name.split()[1]), n_rows, seed, scale.n_curve_test)
    else:
        parts = taken(folder, n_rows, seed)  # type: ignore[arg-type]
    return curve_cell(parts, is_synthetic, seed, scale.epochs)


def curve_table(name: str, cells: Cells, scale: Scale) -> list[str]:
    """Risk against n, the paired difference with its standard error, and in words what it comes to."""
    what = "test error" if "MNIST" in name else "excess risk"
    lines: list[list[str]] = []
    ahead, behind = [], []
    for n in scale.rows[name]:
        runs = over_seeds(cells, curve_key(scale, name, n), scale.curve_seeds)
        values = {arm: np.array([run[arm] for run in runs]) for arm in (PLAIN, LEVERAGE, PRINTED, *NYSTROM.values())}
        difference = values[LEVERAGE] - values[PLAIN]
        error = deviation(difference) / np.sqrt(len(difference))
        (ahead if difference.mean() < -2 * error else behind if difference.mean() > 2 * error else []).append(n)
        shown = [mean_and_deviation(arm) for arm in values.values()]
        lines.append([f"{n:,}", str(runs[0]["N"]), *shown, f"{difference.mean():+.2f} ({error:.2f})"])
    heads = ["n", "N", PLAIN, LEVERAGE, PRINTED, *NYSTROM.values(), f"{LEVERAGE} less {PLAIN} (se)"]
    head = f"### {name}: {what}, percent, against n"
    return [head, "", markdown(heads, lines), "", _said(ahead, behind), ""]


def mean_and_deviation(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ({deviation(values):.2f})"


def deviation(values: np.ndarray) -> float:
    """The standard deviation of the seeds, which a single one does not tell: NaN."""
    return float(values.std(ddof=1)) if len(values) > 1 else np.nan


def _said(ahead: list[int], behind: list[int]) -> str:
    parts = [
        f"Leverage is {word} by more than two standard errors at n = {', '.join(f'{n:,}' for n in those)}."
        for word, those in (("ahead", ahead), ("behind", behind))
        if those
    ]
    return " ".join(parts) or "No difference of more than two standard errors at any n."


def lambda_table(cells: Cells, scale: Scale) -> list[str]:
    """The best accuracy over lambda, as the paper's figures 1 and 2 show it, and at three mu by validation."""
    n = scale.n_test
    svm = np.array([run[SVM] for run in over_seeds(cells, f"{n} svm", scale.lambda_seeds)]).max(axis=1)
    sizes, ridges = [], []
    for size in SIZES:
        runs = over_seeds(cells, f"{n} lambda, N = {size}", scale.lambda_seeds)
        best = [np.array([run[arm] for run in runs]).max(axis=1) for arm in (PLAIN, LEVERAGE, PRINTED)]
        sizes.append([str(size), *map(mean_and_deviation, best)])
    for mu in MUS:
        runs = over_seeds(cells, f"{n} mu = {mu:g}", scale.lambda_seeds)
        scores = [np.array([run[arm] for run in runs]) for arm in (PLAIN, LEVERAGE)]
        ridges.append([f"{mu:g}", *map(mean_and_deviation, scores)])
    return [
        "### n = 1,000: accuracy at the best lambda, percent (90 is the Bayes rule's)",
        "",
        f"SVM with the kernel: {mean_and_deviation(svm)}",
        "",
        markdown(["N", PLAIN, LEVERAGE, PRINTED], sizes),
        "",
        markdown(["mu, N = 5", PLAIN, LEVERAGE], ridges),
        "",
    ]


def lambda_picture(cells: Cells, scale: Scale, output: Path) -> Path:
    """Figures 1 and 2, and the sizes between them."""
    scores, spread = {}, {}
    svm = np.array([run[SVM] for run in over_seeds(cells, f"{scale.n_test} svm", scale.lambda_seeds)])
    for size in SIZES:
        runs = over_seeds(cells, f"{scale.n_test} lambda, N = {size}", scale.lambda_seeds)
        values = {SVM: svm, **{arm: np.array([run[arm] for run in runs]) for arm in (PLAIN, LEVERAGE)}}
        scores[f"N = {size}"] = {arm: list(found.mean(axis=0)) for arm, found in values.items()}
        spread[f"N = {size}"] = {arm: list(found.std(axis=0)) for arm, found in values.items()}
    display = ComparisonDisplay(
        LAMBDAS, scores, measure="test accuracy, percent", baseline=PLAIN, spread=spread, along="lambda"
    )
    return display.save(output / "lambda.png")


def curve_picture(cells: Cells, scale: Scale, folder: Path | None, output: Path) -> Path:
    """Figure 4 for every set."""
    sets = sets_of(scale, folder)
    rows = sorted({n for sizes in sets.values() for n in sizes})
    scores: dict[str, dict[str, list[float]]] = {}
    spread: dict[str, dict[str, list[float]]] = {}
    for name, sizes in sets.items():
        runs = {n: over_seeds(cells, curve_key(scale, name, n), scale.curve_seeds) for n in sizes}
        values = {
            arm: np.array([[run[arm] for run in runs[n]] if n in runs else [np.nan] * scale.curve_seeds for n in rows])
            for arm in (PLAIN, LEVERAGE, *NYSTROM.values())
        }
        scores[name] = {arm: list(found.mean(axis=1)) for arm, found in values.items()}
        spread[name] = {arm: list(found.std(axis=1)) for arm, found in values.items()}
    display = ComparisonDisplay(
        rows, scores, measure="excess risk (test error), percent", baseline=PLAIN, spread=spread, along="rows"
    )
    return display.save(output / "curves.png")


def sample_picture(output: Path) -> Path:
    """Figure 3: fifty training rows."""
    from dkl.plots import WeightedRowsDisplay

    X, y = disc_and_annulus(50, seed=0)
    return WeightedRowsDisplay(X, (y > 0).astype(int), np.ones(50), title="50 training rows").save(output / "rows.png")


def run(output: Path, scale: Scale, *, folder: Path | None = None, only: str | None = None) -> list[str]:
    """Fill the cells, write curves.md after each seed of the curves, and the pictures; the lines of the tables."""
    cells = Cells(output / "cells")
    lines: list[str] = []
    for seeds in [scale.curve_seeds] if only == "lambda" else range(1, scale.curve_seeds + 1):
        so_far = replace(scale, curve_seeds=seeds)
        cells.fill(wanted_cells(so_far, folder, only))
        lines = tables(cells, so_far, folder, only)
        drawn = pictures(cells, scale, folder, only, output) if seeds == scale.curve_seeds else []
        report("\n".join(lines), output / "curves.md", *drawn)
    return lines


def tables(cells: Cells, scale: Scale, folder: Path | None, only: str | None) -> list[str]:
    """The lines of the tables, of cells that are all there."""
    lines = lambda_table(cells, scale) if only in (None, "lambda") else []
    if only in (None, "curves"):
        for name in sets_of(scale, folder):
            lines += curve_table(name, cells, scale)
    return lines


def pictures(
    cells: Cells, scale: Scale, folder: Path | None, only: str | None, output: Path
) -> list[Callable[[], Path]]:
    """What draws the figures of these cells."""
    drawn: list[Callable[[], Path]] = [partial(sample_picture, output)]
    if only in (None, "lambda"):
        drawn.append(partial(lambda_picture, cells, scale, output))
    if only in (None, "curves"):
        drawn.append(partial(curve_picture, cells, scale, folder, output))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with mnist.npz")
    parser.add_argument("--output", type=Path, default=Path("leverage_curves"))
    parser.add_argument("--quick", action="store_true", help="few rows and seeds: minutes become seconds")
    parser.add_argument("--only", choices=("lambda", "curves"))
    parser.add_argument("--most-rows", type=int, default=300_000, help="where the curves end, as in the paper")
    options = parser.parse_args()
    scale = (QUICK if options.quick else FULL).up_to(options.most_rows)
    run(options.output, scale, folder=options.data, only=options.only)


if __name__ == "__main__":
    main()
