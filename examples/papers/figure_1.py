"""The experiments of Bullins, Zhang & Zhang 2018, figure 1: windmill and checkerboard beside their baselines.

    python examples/papers/figure_1.py                    # five seeds: means and deviations of test accuracy
    python examples/papers/figure_1.py --seeds 1 --output FOLDER     # also globes.png and accuracy.png

2,000 rows train, 50,000 test. The paper publishes no generators; these are calibrated on its baselines: an
RBF-SVM with C = 1 and the median distance for a bandwidth on the windmill (the paper 92.1), an arc-cosine SVM of order
0 with C = 1,000 on the checkerboard (the paper 95.1). The linear machine's C is chosen by cross-validation among
0.1 to 1,000 on the training rows. T frequencies are 2T columns.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
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


def windmill_scores(seed: int) -> dict[str, float]:
    rows, test = windmill(N_ROWS, seed=seed), windmill(N_TEST, seed=TEST_SEED)
    scores = {"RBF-SVM": rbf_accuracy(rows, test)}
    for size in FREQUENCIES:
        learner = dkl.MarginFeatures(n_features=2 * size, random_state=seed, progress=False)
        scores[f"T = {size}"] = learned_accuracy(learner, rows, test)
    return scores


def checkerboard_scores(seed: int) -> dict[str, float]:
    rows, test = sphere_checkerboard(N_ROWS, seed=seed), sphere_checkerboard(N_TEST, seed=TEST_SEED)
    scores = {"arc-cosine SVM": arc_cosine_accuracy(rows, test)}
    for size in HARMONICS:
        learner = dkl.MarginFeatures(dkl.SphericalHarmonics(), n_features=size, random_state=seed, progress=False)
        scores[f"{size} harmonics"] = learned_accuracy(learner, rows, test)
    return scores


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
    sizes = {"windmill": [2 * size for size in FREQUENCIES], "checkerboard": list(HARMONICS)}
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {}
    for name, of_seed in (("checkerboard", checkerboard_scores), ("windmill", windmill_scores)):
        found[name] = [of_seed(seed) for seed in range(options.seeds)]
        for what in found[name][0]:
            values = [run[what] for run in found[name]]
            print(f"{name:>14} {what:>15}: {np.mean(values):.2f} +- {np.std(values):.2f}", flush=True)
    if options.output is not None:
        options.output.mkdir(parents=True, exist_ok=True)
        print(f"pictures: {globes(options.output)}, {accuracies(found, options.output)}")


if __name__ == "__main__":
    main()
