"""The picture of coverage counts what intervals and sets of classes cover."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import dkl
from dkl.plots import CoverageDisplay
from tests.linear.problems import rows as clouds
from tests.uncertainty.test_conformal import classifier, regressor, rows

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def drawn_nowhere() -> None:
    pyplot.switch_backend("agg")
    pyplot.close("all")


def test_shares_are_those_of_the_intervals(tmp_path: Path) -> None:
    model = regressor().fit(*rows()).conformalize(*rows(99, seed=1))
    X, y = rows(80, seed=2)
    drawn = CoverageDisplay.from_estimator(model, X, y, coverages=[0.8, 0.5])
    np.testing.assert_array_equal(drawn.coverages, [0.5, 0.8])
    mean, std = model.predict(X, return_std=True)
    for place, coverage in enumerate([0.5, 0.8]):
        lower, upper = model.predict_interval(X, coverage).T
        assert drawn.kept["conformal"][place] == np.mean((lower <= y) & (y <= upper))
        inside = np.abs(y - mean) <= norm.ppf(0.5 + coverage / 2) * std
        assert drawn.kept["Gaussian"][place] == np.mean(inside)
    (panel,) = drawn.plot().axes_
    assert [line.get_label() for line in panel.get_lines()] == ["as promised", "conformal", "Gaussian"]
    np.testing.assert_array_equal(panel.get_lines()[1].get_ydata(), drawn.kept["conformal"])
    assert drawn.save(tmp_path / "coverage.png").stat().st_size > 0


def test_sets_of_classes_have_their_shares() -> None:
    X, codes = clouds(500, 4)
    labels = np.array(["ash", "birch", "cedar", "dogwood"])[codes]
    model = classifier().fit(X[:200], labels[:200]).conformalize(X[200:300], labels[200:300])
    drawn = CoverageDisplay.from_estimator(model, X[300:], labels[300:], coverages=[0.6, 0.9]).plot()
    assert list(drawn.kept) == ["conformal"]
    found = model.predict_set(X[300:], 0.9)
    assert drawn.kept["conformal"][1] == found[np.arange(200), codes[300:]].mean()


def test_several_targets_are_not_drawn_over_each_other() -> None:
    X, y = rows()
    y = np.column_stack([y, y])
    model = dkl.KernelRegressor("random", solver="newton", random_state=0).fit(X, y).conformalize(X, y)
    with pytest.raises(ValueError, match="y has 2 targets, and a picture shows one"):
        CoverageDisplay.from_estimator(model, X, y)
