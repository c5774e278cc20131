"""Ask a model what it has learned: which columns matter, how, and why it says what it says of one row.

    python examples/explain_predictions.py                      # scikit-learn's diabetes
    python examples/explain_predictions.py --output FOLDER      # writes importance.png, dependence.png, row.png there

Each answer takes one pass over the rows, of any number. For Fourier features none of them is sampled: importance is the
mean squared slope, dependence the mean prediction with a column set, contributions are Shapley values against
independent columns, and sum to the prediction less its mean.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import dkl
from dkl.explain import Contributions, Importance, contributions, importance, partial_dependence
from dkl.plots import ContributionsDisplay, DependenceDisplay, ImportanceDisplay


def patients() -> tuple[pd.DataFrame, np.ndarray]:
    """442 patients: progression of diabetes after a year; sex is a category here."""
    data = load_diabetes(as_frame=True, scaled=False)
    sex = data.data["sex"].map({1.0: "first", 2.0: "second"})
    return data.data.assign(sex=sex), data.target.to_numpy()


def explain(output: Path, n_features: int = 200) -> tuple[float, Importance, Contributions]:
    """Fit to three quarters of the patients, draw, and explain the prediction of one of the others."""
    rows, y = patients()
    rows, test, y, y_test = train_test_split(rows, y, random_state=0)
    features = dkl.RandomFeatures(n_features=n_features, scaling="standard", random_state=0)
    model = dkl.KernelRegressor(features, solver="newton", alpha="auto", random_state=0, progress=False).fit(rows, y)
    found = importance(model, rows)
    first, second = (found.names[g] for g in found.order[:2])
    dependences = partial_dependence(model, rows, [first, second, "sex", (first, second)])
    patient = contributions(model, test.iloc[:1], rows)
    ImportanceDisplay(found).save(output / "importance.png")
    DependenceDisplay(dependences).save(output / "dependence.png")
    ContributionsDisplay(patient).save(output / "row.png")
    return model.score(test, y_test), found, patient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path())
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    score, found, patient = explain(output)
    print(f"R^2 {score:.3f} on other rows; in units of the target")
    print(found)
    print(patient)
    print(f"pictures: {', '.join(str(output / f'{name}.png') for name in ('importance', 'dependence', 'row'))}")


if __name__ == "__main__":
    main()
