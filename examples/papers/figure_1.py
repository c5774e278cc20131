"""The experiments of Bullins, Zhang & Zhang 2018, figure 1: windmill and checkerboard beside their baselines.

    python examples/papers/figure_1.py                    # five seeds: means and deviations of test accuracy
    python examples/papers/figure_1.py --quick            # one seed, few rows and features: seconds

FOLDER holds figure_1.md, the finished cells, and the pictures globes.png and accuracy.png. "game" is the paper's
Algorithm 2 (`MarginFeatures(solver="game")`, hinge, C = 1) with its duality gap, at the smallest size; the others are
searched in fully corrective rounds.

2,000 rows train, 50,000 test. The paper publishes no generators; these are calibrated on its baselines: an
RBF-SVM with C = 1 and the median distance for a bandwidth on the windmill (the paper 92.1), an arc-cosine SVM of order
0 with C = 1,000 on the checkerboard (the paper 95.1). The linear machine's C is chosen by cross-validation among
0.1 to 1,000 on the training rows. T frequencies are 2T columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from cells import Cell, Cells, markdown, report
from scipy.spatial.distance import pdist
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC, LinearSVC

import dkl
from dkl.plots import ComparisonDisplay, SphereDisplay
from dkl.testing.synthetic import sphere_checkerboard, windmill

COSTS = (0.1, 1.0, 10.0, 100.0, 1000.0)
FREQUENCIES = (100, 300, 1000)
HARMONICS = (10, 20, 30)
N_ROWS, N_TEST, TEST_SEED = 2_000, 50_000, 99
# of the paper, by the name of the cell
PAPER = {
    "RBF-SVM": 92.1,
    "T = 100": 98.6,
    "T = 300": 99.1,
    "T = 1000": 99.3,
    "game, T = 100": 98.6,
    "arc-cosine SVM": 95.1,
    "30 harmonics": 99.1,
    "game, 30 harmonics": 99.1,
}

Rows = tuple[np.ndarray, np.ndarray]


def rbf_accuracy(rows: Rows, test: Rows) -> float:
    return 100.0 * SVC(C=1.0, gamma=0.5 / np.median(pdist(rows[0])) ** 2).fit(*rows).score(*test)


def arc_cosine_accuracy(rows: Rows, test: Rows) -> float:
    kernel = dkl.ArcCosine(order=0).kernel
    svm = SVC(C=1_000.0, kernel="precomputed").fit(kernel(rows[0], rows[0]), rows[1])
    parts = [svm.predict(kernel(part, rows[0])) for part in np.array_split(test[0], 25)]
    return 100.0 * float(np.mean(np.concatenate(parts) == test[1]))


def learned_accuracy(learner: Any, rows: Rows, test: Rows) -> float:
    """Of a linear machine on the learned features, its C by cross-validation."""
    learner.fit(*rows)
    machine = GridSearchCV(LinearSVC(dual=False), {"C": COSTS}).fit(learner.transform(rows[0]), rows[1])
    return 100.0 * machine.score(learner.transform(test[0]), test[1])


def windmill_scores(
    seed: int, sizes: Sequence[int] = FREQUENCIES, n_rows: int = N_ROWS, n_test: int = N_TEST
) -> dict[str, float]:
    rows, test = windmill(n_rows, seed=seed), windmill(n_test, seed=TEST_SEED)
    scores = {"RBF-SVM": rbf_accuracy(rows, test)}
    for size in sizes:
        learner = dkl.MarginFeatures(n_features=2 * size, random_state=seed, progress=False)
        scores[f"T = {size}"] = learned_accuracy(learner, rows, test)
    return scores


def checkerboard_scores(
    seed: int, sizes: Sequence[int] = HARMONICS, n_rows: int = N_ROWS, n_test: int = N_TEST
) -> dict[str, float]:
    rows, test = sphere_checkerboard(n_rows, seed=seed), sphere_checkerboard(n_test, seed=TEST_SEED)
    scores = {"arc-cosine SVM": arc_cosine_accuracy(rows, test)}
    for size in sizes:
        learner = dkl.MarginFeatures(dkl.SphericalHarmonics(), n_features=size, random_state=seed, progress=False)
        scores[f"{size} harmonics"] = learned_accuracy(learner, rows, test)
    return scores


def game_scores(name: str, seed: int, size: int, n_rows: int = N_ROWS, n_test: int = N_TEST) -> dict[str, float]:
    """Test accuracy of the paper's Algorithm 2, its duality gap in percent of the objective, and its seconds."""
    made, family, columns = {
        "windmill": (windmill, None, 2 * size),
        "checkerboard": (sphere_checkerboard, dkl.SphericalHarmonics(), size),
    }[name]
    learner = dkl.MarginFeatures(family, columns, "game", loss="hinge", C=1.0, random_state=seed, progress=False)
    started = time.process_time()
    accuracy = learned_accuracy(learner, made(n_rows, seed=seed), made(n_test, seed=TEST_SEED))
    return {"accuracy": accuracy, "gap": 100.0 * learner.duality_gap_, "processor": time.process_time() - started}


def globes(output: Path) -> Path:
    """The rows, the machine and the three strongest harmonics, as in panel 1c."""
    rows = sphere_checkerboard(N_ROWS, seed=0)
    learner = dkl.MarginFeatures(dkl.SphericalHarmonics(), n_features=30, random_state=0, progress=False).fit(*rows)
    strongest = np.argsort(-learner.weights_)[:3]
    index = learner.feature_map_.projection.index[strongest]

    def harmonic(place: int) -> Any:
        return lambda X: learner.transform(X)[:, strongest[place]]

    functions = {f"l = {degree}, m = {order}": harmonic(place) for place, (order, degree) in enumerate(index)}
    decision = {"decision": lambda X: np.clip(learner.machine_.decision_function(X), -1.0, 1.0)}
    display = SphereDisplay.from_functions({**decision, **functions}, rows=rows[0], y=rows[1])
    return display.save(output / "globes.png")


def accuracies(found: dict[str, list[dict[str, float]]], output: Path) -> Path:
    """Accuracy against the number of features, the baselines as lines."""
    columns = {
        name: [int(what.split()[-1 if "=" in what else 0]) for what in list(runs[0])[1:]]
        for name, runs in found.items()
    }
    sizes = {name: [2 * size if name == "windmill" else size for size in own] for name, own in columns.items()}
    features = sorted({size for own in sizes.values() for size in own})
    scores, references, spread = {}, {}, {}
    for name, runs in found.items():
        values = np.array([list(run.values()) for run in runs])
        mean, deviation = (dict(zip(sizes[name], of(values[:, 1:], 0), strict=True)) for of in (np.mean, np.std))
        scores[name] = {"MarginFeatures": [mean.get(size, np.nan) for size in features]}
        spread[name] = {"MarginFeatures": [deviation.get(size, np.nan) for size in features]}
        references[name] = {next(iter(runs[0])): float(values[:, 0].mean())}
    display = ComparisonDisplay(
        features, scores, measure="test accuracy, percent", spread=spread, references=references
    )
    return display.save(output / "accuracy.png")


def table(found: dict[str, list[dict[str, float]]], games: dict[str, tuple[str, list[Cell]]]) -> str:
    """Mean and deviation of the test accuracy over seeds, percent, the paper's beside it."""
    lines = []
    for name, runs in found.items():
        for what in runs[0]:
            values = [run[what] for run in runs]
            lines.append([name, what, f"{np.mean(values):.2f} +- {np.std(values):.2f}", f"{PAPER.get(what, '')}", ""])
        what, cells = games[name]
        values, gap, seconds = ([cell[of] for cell in cells] for of in ("accuracy", "gap", "processor"))
        beside = f"gap {np.median(gap):.0f} %, {np.median(seconds):.1f} s"
        lines.append([name, what, f"{np.mean(values):.2f} +- {np.std(values):.2f}", f"{PAPER.get(what, '')}", beside])
    heads = ["rows", "features", "test accuracy, percent", "the paper", "of the game"]
    return f"## Figure 1 of Bullins, Zhang & Zhang 2018\n\n{markdown(heads, lines)}\n"


def main(arguments: list[str] | None = None) -> str:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("figure_1"), help="folder of cells, table and pictures")
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and features: seconds")
    options = parser.parse_args(arguments)
    cells, seeds = Cells(options.output / "cells"), range(1 if options.quick else options.seeds)
    n_rows, n_test = (300, 1_000) if options.quick else (N_ROWS, N_TEST)
    plays = {
        "checkerboard": (
            checkerboard_scores,
            HARMONICS[-1:] if options.quick else HARMONICS,
            HARMONICS[-1],
            "{} harmonics",
        ),
        "windmill": (windmill_scores, (10,) if options.quick else FREQUENCIES, 10 if options.quick else 100, "T = {}"),
    }
    found: dict[str, list[dict[str, float]]] = {}
    games: dict[str, tuple[str, list[Cell]]] = {}
    for name, (scores, sizes, size, called) in plays.items():
        start = f"{name}, n = {n_rows}, sizes {' '.join(map(str, sizes))}"
        of_seed = [
            cells(
                f"{start}, seed {seed}",
                partial(lambda of, *given: {"scores": of(*given)}, scores, seed, sizes, n_rows, n_test),
            )
            for seed in seeds
        ]
        found[name] = [cell["scores"] for cell in of_seed]
        played = partial(game_scores, name, size=size, n_rows=n_rows, n_test=n_test)
        what = f"game, {called.format(size)}"
        games[name] = what, [cells(f"{start}, {what}, seed {seed}", partial(played, seed)) for seed in seeds]
    pictures = [] if options.quick else [lambda: globes(options.output)]
    return report(
        table(found, games), options.output / "figure_1.md", *pictures, lambda: accuracies(found, options.output)
    )


if __name__ == "__main__":
    main()
