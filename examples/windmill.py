"""From rows to pictures: the windmill of Bullins, Zhang & Zhang 2018, figure 1, learned and drawn.

    python examples/windmill.py                   # writes windmill.png, potential.png and history.png here
    python examples/windmill.py --output FOLDER --frequencies 10 100 300 1000
    python examples/windmill.py --solver game     # by the paper's Algorithm 2: its panels 1a and 1b

2,000 rows in the unit disc have to be told apart along twisted sails. An RBF-SVM at the paper's settings (C = 1, the
median distance for a bandwidth) is right on 92.1 % of 50,000 others. MarginFeatures adds frequencies round by round,
where the machine on those found so far still errs; the linear machine's C is chosen by cross-validation. A column of
windmill.png shows the weight of each row, the features on the potential, and the decision; potential.png is the
potential after the last round, the first column's the one before any.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from scipy.spatial.distance import pdist
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.svm import SVC, LinearSVC

import dkl
from dkl.plots import DecisionDisplay, HistoryDisplay, LandscapeDisplay, WeightedRowsDisplay
from dkl.testing.synthetic import windmill

COSTS = (0.1, 1.0, 10.0, 100.0, 1000.0)
LIMIT = 14.0

Rows = tuple[np.ndarray, np.ndarray]


def baseline(rows: Rows) -> SVC:
    """The RBF-SVM of the paper's rules of thumb."""
    return SVC(C=1.0, gamma=0.5 / np.median(pdist(rows[0])) ** 2).fit(*rows)


def machine_on(learner: dkl.MarginFeatures, rows: Rows) -> Pipeline:
    """The learned features and a linear machine on them, its C by cross-validation."""
    machine = GridSearchCV(LinearSVC(dual=False), {"C": COSTS}).fit(learner.transform(rows[0]), rows[1])
    return make_pipeline(learner, machine.best_estimator_)


def draw_stage(axes: Any, learner: dkl.MarginFeatures, machine: Pipeline, rows: Rows, title: str) -> None:
    """One column of the figure: the weight of each row, the features on the potential, the decision."""
    WeightedRowsDisplay.from_estimator(learner, *rows, title=title).plot(axes[0])
    LandscapeDisplay.from_estimator(learner, *rows, limit=LIMIT).plot(axes[1])
    DecisionDisplay.from_estimator(machine, *rows).plot(axes[2])


def draw_baseline(axes: Any, svm: SVC, rows: Rows, title: str) -> None:
    """The first column: rows before any learning, their potential, and what the RBF-SVM makes of them."""
    X, y = rows
    WeightedRowsDisplay(X, (y > 0).astype(int), np.ones(len(y)), title).plot(axes[0])
    LandscapeDisplay.from_rows(X, y, limit=LIMIT).plot(axes[1])
    DecisionDisplay.from_estimator(svm, X, y).plot(axes[2])


def run(
    output: Path, frequencies: list[int], n_rows: int = 2_000, n_test: int = 50_000, solver: str = "corrective"
) -> dict[str, float]:
    """Learn, score and draw; returns the test accuracies in percent."""
    rows, test = windmill(n_rows, seed=0), windmill(n_test, seed=1)
    figure, axes = plt.subplots(
        3, 1 + len(frequencies), figsize=(2.9 * (1 + len(frequencies)), 8.6), squeeze=False, layout="constrained"
    )
    svm = baseline(rows)
    scores = {"RBF-SVM": 100.0 * svm.score(*test)}
    draw_baseline(axes[:, 0], svm, rows, f"RBF-SVM: {scores['RBF-SVM']:.1f} %")
    learner = dkl.MarginFeatures(solver=solver, warm_start=True, random_state=0, progress=False)
    for column, size in enumerate(frequencies, 1):
        learner.set_params(n_features=2 * size).fit(*rows)
        machine = machine_on(learner, rows)
        scores[f"T = {size}"] = 100.0 * machine.score(*test)
        draw_stage(axes[:, column], learner, machine, rows, f"{size} frequencies: {scores[f'T = {size}']:.1f} %")
    figure.savefig(output / "windmill.png", dpi=130)
    plt.close(figure)
    HistoryDisplay.from_estimator(learner, title="MarginFeatures on the windmill").save(output / "history.png")
    LandscapeDisplay.from_estimator(learner, *rows, limit=3 * LIMIT, resolution=401).save(output / "potential.png")
    return scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path())
    parser.add_argument("--frequencies", type=int, nargs="+", default=[10, 100, 300])
    parser.add_argument("--solver", choices=("corrective", "game"), default="corrective")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name, score in run(options.output, sorted(options.frequencies), solver=options.solver).items():
        print(f"{name:>10}: {score:.2f} % of 50,000 test rows")
    print(f"pictures: {options.output / 'windmill.png'}, potential.png, history.png")


if __name__ == "__main__":
    main()
