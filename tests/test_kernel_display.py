"""The picture of a learned kernel shows what the definitions say."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import dkl
from dkl.plots import KernelDisplay
from tests.definitions import density as definitions

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


class Tuned(BaseEstimator):
    """What the display needs of a fitted model."""

    def __init__(self, density: Any = None, classes: Any = ()) -> None:
        self.density, self.classes = density, classes

    def fit(self) -> Tuned:
        self.frequencies_ = np.random.default_rng(0).standard_normal((40, 3)) * np.array([1.0, 3.0, 1.0])
        self.density_, self.classes_, self.family_ = self.density, np.array(self.classes), dkl.Gaussian(0.5)
        return self


def test_the_kernel_is_drawn_along_the_direction_where_it_falls_fastest() -> None:
    model = Tuned(1.0 + np.random.default_rng(1).random(40)).fit()
    display = KernelDisplay.from_estimator(model)
    assert np.argmax(np.abs(display.direction)) == 1
    shifts = display.distances[:, None] * display.direction
    expected = definitions.shift_kernel(shifts, model.frequencies_, model.density_)
    np.testing.assert_allclose(display.learned[0], expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(display.reference, np.exp(-0.5 * (display.distances / 0.5) ** 2), rtol=0, atol=1e-12)
    np.testing.assert_allclose(display.lengths, np.linalg.norm(model.frequencies_, axis=1))


def test_without_a_family_the_reference_is_the_same_frequencies_unweighted() -> None:
    W = np.random.default_rng(0).standard_normal((30, 2))
    display = KernelDisplay.from_density(W, np.full(30, 3.0))
    np.testing.assert_allclose(display.learned[0], 3.0 * display.reference, rtol=0, atol=1e-13)


def test_each_class_with_a_density_of_its_own_has_its_curves() -> None:
    density = 1.0 + 200.0 * np.random.default_rng(1).random((2, 40)) ** 4
    display = KernelDisplay.from_estimator(Tuned(density, ("cat", "dog")).fit(), title="two").plot()
    kernels, densities = display.axes_
    labels = [text.get_text() for text in kernels.get_legend().get_texts()]
    assert labels[0] == "reference"
    assert [label.split(" (")[0] for label in labels[1:]] == ["learned, cat", "learned, dog"]
    assert densities.get_yscale() == "log"
    drawn = np.concatenate([points.get_offsets() for points in densities.collections])
    np.testing.assert_allclose(drawn[:, 1], density.ravel())


def test_it_draws_into_given_axes_and_saves(tmp_path: Any) -> None:
    display = KernelDisplay.from_density(np.eye(2), np.ones(2))
    _, axes = pyplot.subplots(1, 2)
    assert display.plot(axes).axes_ == list(axes)
    with pytest.raises(ValueError, match="2 panels"):
        display.plot(axes[0])
    assert display.save(tmp_path / "kernel.png").stat().st_size > 1_000


def test_a_model_without_a_density_is_refused() -> None:
    rows = SimpleNamespace(X=np.random.default_rng(0).standard_normal((20, 2)))
    features = dkl.RandomFeatures(dkl.Gaussian(1.0), n_features=4, progress=False).fit(rows.X)
    with pytest.raises(TypeError, match="no spectral density"):
        KernelDisplay.from_estimator(features)
