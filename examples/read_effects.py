"""Read what a model on tabular rows has learned: main effects as curves, interactions as maps.

    python examples/read_effects.py                      # rows whose effects are known, and scikit-learn's diabetes
    python examples/read_effects.py --output FOLDER      # writes effects.png and diabetes.png there

MarginFeatures(sparse_share=1.0) searches frequencies on one to three columns only. A model on them is a sum of
functions of few columns, and `dkl.explain.effects` takes it apart exactly, without a fit or a sample of predictions.
The first rows are ``y = sin(2 x_0) + x_1^2 / 2 + 1.5 sin(x_2) sin(x_3)`` and noise, beside eight columns of no meaning.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

import dkl
from dkl.explain import Effect, effects
from dkl.plots import EffectsDisplay
from dkl.testing.synthetic import ADDITIVE_EFFECTS, additive


def fit(rows: pd.DataFrame, y: np.ndarray, n_features: int) -> dkl.KernelRegressor:
    """A ridge, its penalty by validation, on frequencies of one to three columns."""
    features = dkl.MarginFeatures(n_features=n_features, sparse_share=1.0, scaling="standard", random_state=0)
    return dkl.KernelRegressor(features, solver="newton", alpha="auto", random_state=0, progress=False).fit(rows, y)


def show(found: list[Effect], most: int = 6) -> None:
    """The strongest effects as a list."""
    for effect in found[:most]:
        print(f"  {' x '.join(effect.names):<24} strength {effect.strength:7.3f}, {len(effect.means)} frequencies")


def known_effects(output: Path, n_rows: int = 3_000, n_features: int = 200) -> tuple[float, list[Effect]]:
    """Rows whose effects are known: how well the model predicts, and what is read off it."""
    X, y = additive(n_rows, seed=0)
    rows = pd.DataFrame(X, columns=[f"x{column}" for column in range(X.shape[1])])
    model = fit(rows, y, n_features)
    X_test, y_test = additive(n_rows, seed=1)
    score = model.score(pd.DataFrame(X_test, columns=rows.columns), y_test)
    found = effects(model, rows)
    EffectsDisplay.from_estimator(model, rows, n_effects=4).save(output / "effects.png")
    return score, found


def diabetes(output: Path, n_features: int = 40) -> tuple[float, list[Effect]]:
    """442 patients: progression of diabetes after a year from ten measurements."""
    data = load_diabetes(as_frame=True, scaled=False)
    rows, test, y, y_test = train_test_split(data.data, data.target.to_numpy(), random_state=0)
    model = fit(rows, y, n_features)
    EffectsDisplay.from_estimator(model, rows, n_effects=8).save(output / "diabetes.png")
    return model.score(test, y_test), effects(model, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path())
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    score, found = known_effects(output)
    print(f"known effects {sorted(ADDITIVE_EFFECTS)}: R^2 {score:.3f} on other rows; the model says")
    show(found)
    score, found = diabetes(output)
    print(f"diabetes: R^2 {score:.3f} on other rows; the model says")
    show(found)
    print(f"pictures: {output / 'effects.png'}, {output / 'diabetes.png'}")


if __name__ == "__main__":
    main()
