"""Pictures: what is drawn is what the definitions say, and every picture draws into its own or a given place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl
from dkl.data.coerce import as_dataset
from dkl.plots import (
    AnswersDisplay,
    ComparisonDisplay,
    DecisionDisplay,
    DependenceDisplay,
    DriftDisplay,
    EffectsDisplay,
    HistoryDisplay,
    ImportanceDisplay,
    LandscapeDisplay,
    SphereDisplay,
    WeightedRowsDisplay,
)
from dkl.plots.fitted_rows import in_memory_rows, working_dual
from dkl.testing.synthetic import sphere_checkerboard, windmill

pyplot = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    pyplot.switch_backend("agg")
    yield
    pyplot.close("all")


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    return windmill(300)


@pytest.fixture(scope="module")
def machine(rows: tuple[np.ndarray, np.ndarray]) -> dkl.KernelClassifier:
    features = dkl.RandomFeatures(dkl.Gaussian(0.3), n_features=60, scaling="standard", random_state=0)
    return dkl.KernelClassifier(
        features, loss="squared_hinge", solver="newton", alpha=1e-3, random_state=0, progress=False
    ).fit(*rows)


def potential(X: np.ndarray, S: np.ndarray, w: np.ndarray) -> float:
    """v(w) by its definition, over (sum |s|)^2."""
    total = 0.0
    for s in S.T:
        wave = sum(weight * np.exp(1j * (x @ w)) for weight, x in zip(s, X, strict=True))
        total += abs(wave) ** 2
    return total / np.abs(S).sum() ** 2


@pytest.mark.parametrize("resolution", [8, 9])
def test_the_landscape_is_the_potential_on_a_grid(resolution: int) -> None:
    generator = np.random.default_rng(0)
    X, S = generator.normal(size=(30, 4)), generator.normal(size=(30, 2))
    drawn = LandscapeDisplay.from_rows(X, S, columns=(3, 1), limit=2.0, resolution=resolution)
    for row, vertical in enumerate(drawn.vertical):
        for column, horizontal in enumerate(drawn.horizontal):
            expected = potential(X, S, np.array([0.0, vertical, 0.0, horizontal]))
            assert drawn.potential[row, column] == pytest.approx(expected, abs=1e-6)


def test_a_landscape_is_of_scaled_rows_and_of_the_dual(
    rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier
) -> None:
    X, y = rows
    drawn = LandscapeDisplay.from_estimator(machine, X, y, limit=6.0, resolution=7)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0, ddof=1)
    f = machine.decision_function(X)
    dual = np.array([label * max(0.0, 1.0 - label * value) for label, value in zip(y, f, strict=True)])
    assert drawn.potential[5, 1] == pytest.approx(potential(scaled, dual[:, None], np.array([-4.0, 4.0])), rel=1e-2)
    plain = LandscapeDisplay.from_estimator(machine, X, y, reweighted=False, limit=6.0, resolution=7)
    labels = np.asarray(y, float)[:, None]
    assert plain.potential[5, 1] == pytest.approx(potential(scaled, labels, np.array([-4.0, 4.0])), rel=1e-2)


@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_frequencies_on_other_columns_are_not_drawn(kind: Any) -> None:
    W = kind(np.array([[1.0, 0.0, 2.0], [1.0, 5.0, 0.0], [0.0, 0.0, 3.0], [0.0, 4.0, 0.0]]))
    drawn = LandscapeDisplay.from_rows(np.eye(3), np.ones(3), frequencies=W, newest=3, columns=(0, 2), resolution=5)
    np.testing.assert_array_equal(drawn.frequencies, [[1.0, 2.0], [0.0, 3.0]])
    assert drawn.newest == 1
    assert drawn.horizontal[-1] > 2.9


def test_the_newest_features_are_those_of_the_last_round_that_added(
    rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LandscapeDisplay.from_estimator(machine, *rows, resolution=5).newest == 0
    history = [{"n_features": size} for size in (40, 52, 60, 60)]
    monkeypatch.setattr(machine.features_, "history_", history, raising=False)
    assert LandscapeDisplay.from_estimator(machine, *rows, resolution=5).newest == 4


def test_what_cannot_be_a_landscape_is_a_clear_error(rows: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = rows
    with pytest.raises(ValueError, match="two different columns of the 2"):
        LandscapeDisplay.from_rows(X, y, columns=(0, 2), limit=1.0)
    with pytest.raises(ValueError, match="give limit="):
        LandscapeDisplay.from_rows(X, y)
    with pytest.raises(TypeError, match="needs Fourier features"):
        LandscapeDisplay.from_estimator(dkl.RandomFeatures(dkl.ArcCosine(), 10, random_state=0).fit(X), X, y)


def test_the_dual_of_several_classes_and_of_numbers_is_that_of_their_losses() -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 2))
    labels = np.array(["a", "b", "c"])[generator.integers(3, size=60)]
    given: dict[str, Any] = {"solver": "newton", "alpha": 1e-2, "random_state": 0, "progress": False}
    features = dkl.RandomFeatures(n_features=20, random_state=0)
    machine = dkl.KernelClassifier(features, loss="squared_hinge", **given).fit(X, labels)
    values, dual = machine.decision_function(X), working_dual(machine, X, labels)
    for i, label in enumerate(labels):
        for k, name in enumerate("abc"):
            sign = 1.0 if label == name else -1.0
            assert dual[i, k] == pytest.approx(sign * max(0.0, 1.0 - sign * values[i, k]))
    y = X[:, 0] ** 2
    regressor = dkl.KernelRegressor(features, **given).fit(X, y)
    np.testing.assert_allclose(working_dual(regressor, X, y)[:, 0], y - regressor.predict(X))
    np.testing.assert_allclose(working_dual(regressor, X, y, reweighted=False)[:, 0], y - y.mean())


def test_rows_of_any_kind_come_as_arrays_and_not_too_many(machine: dkl.KernelClassifier, tmp_path: Any) -> None:
    X, y = windmill(21_000)
    dataset = dkl.create_dataset(str(tmp_path / "rows.zarr"), X, y)
    taken, targets = in_memory_rows(machine, dataset, None)
    assert taken.shape == (20_000, 2)
    assert set(targets) == {-1, 1}
    dense, none = in_memory_rows(machine, sparse.csr_array(X[:50]))
    np.testing.assert_array_equal(dense, X[:50])
    assert none.size == 0


def test_heavy_rows_are_drawn_last_and_largest(rows: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = rows
    weights = np.linspace(1.0, 0.0, len(X))
    drawn = WeightedRowsDisplay(X, (y > 0).astype(int), weights).plot()
    (points,) = drawn.axes_[0].collections
    np.testing.assert_array_equal(np.asarray(points.get_offsets())[-1], X[0])
    sizes = points.get_sizes()
    assert (np.diff(sizes) >= 0.0).all()
    assert sizes[-1] > 5 * sizes[0]


def test_a_decision_is_that_of_the_model_and_fades_away_from_the_rows(
    rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier
) -> None:
    drawn = DecisionDisplay.from_estimator(machine, *rows, resolution=21)
    point = np.array([[drawn.horizontal[4], drawn.vertical[9]]])
    assert drawn.decision[9, 4] == pytest.approx(machine.decision_function(point)[0], abs=1e-9)
    assert drawn.near[10, 10] == 1.0
    assert drawn.near[0, 0] == 0.0
    with pytest.raises(ValueError, match="rows of two columns"):
        DecisionDisplay.from_estimator(machine, np.zeros((4, 3)), np.array([0, 0, 1, 1]))


def test_the_front_of_a_globe_shows_the_function() -> None:
    seen = []

    def height(X: np.ndarray) -> np.ndarray:
        seen.append(X)
        return X[:, 2]

    drawn = SphereDisplay.from_functions({"height": height}, view=(90.0, 0.0), resolution=41)
    np.testing.assert_allclose(np.linalg.norm(seen[0], axis=1), 1.0)
    image = drawn.values[0]
    assert image[20, 20] == pytest.approx(1.0)
    assert np.isnan(image[0, 0])
    # seen from above, height falls with the distance from the centre
    assert image[20, 30] == pytest.approx(np.sqrt(1.0 - 0.5**2))


def test_a_history_has_a_panel_for_what_it_says() -> None:
    history: list[dict[str, Any]] = [
        {"round": 1, "sample_rows": 10, "potential": 0.4, "loss": 1.0, "held_out_loss": float("nan"), "note": "first"},
        {"round": 2, "sample_rows": 10, "potential": 0.1, "loss": 0.5, "held_out_loss": None},
    ]
    drawn = HistoryDisplay(history).plot()
    assert [ax.get_title() for ax in drawn.axes_] == ["loss", "potential"]
    np.testing.assert_array_equal(drawn.axes_[1].get_lines()[0].get_ydata(), [0.4, 0.1])
    with pytest.raises(ValueError, match="no number of those that are drawn"):
        HistoryDisplay([{"round": 1}]).plot()


def test_a_learner_of_one_pass_has_no_history(machine: dkl.KernelClassifier) -> None:
    with pytest.raises(TypeError, match="keeps no history_"):
        HistoryDisplay.from_estimator(machine)


def test_a_comparison_has_bands_and_lines_of_reference() -> None:
    drawn = ComparisonDisplay(
        [10, 20],
        {"one": {"a": [0.8, 0.9]}},
        spread={"one": {"a": [0.01, 0.02]}},
        references={"one": {"svm": 0.85}},
    ).plot()
    (ax,) = drawn.axes_
    np.testing.assert_array_equal(ax.get_lines()[1].get_ydata(), [0.85, 0.85])
    band = ax.collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == (pytest.approx(0.79), pytest.approx(0.92))


def test_no_two_of_many_learners_have_the_same_line() -> None:
    scores = {f"learner {number}": [0.1 * number, 0.9 - 0.1 * number] for number in range(12)}
    (panel,) = ComparisonDisplay([10, 20], {"one": scores}).plot().axes_
    assert len({(line.get_color(), line.get_linestyle()) for line in panel.get_lines()}) == 12


@pytest.mark.parametrize(("learners", "beside"), [(3, False), (8, True)])
def test_the_names_of_many_learners_stand_beside_their_lines(learners: int, beside: bool) -> None:
    scores = {f"learner {number}": [0.1 * number, 0.9 - 0.1 * number] for number in range(learners)}
    drawn = ComparisonDisplay([10, 20], {"one": scores, "two": scores}).plot()
    drawn.figure_.canvas.draw()
    names, panel = drawn.axes_[-1].get_legend().get_window_extent(), drawn.axes_[-1].get_window_extent()
    assert (names.x0 >= panel.x1) == beside
    assert names.x1 <= drawn.figure_.bbox.x1


def test_one_size_is_a_bar_chart_with_scores_errors_and_seconds() -> None:
    drawn = ComparisonDisplay(
        [100],
        {"one": {"plain": [0.8], "found": [0.9]}},
        measure="accuracy",
        baseline="plain",
        spread={"one": {"plain": [0.02], "found": [0.01]}},
        references={"one": {"svm": 0.85}},
        seconds={"one": {"plain": [0.1], "found": [3.0]}},
        reference_seconds={"one": {"svm": 30.0}},
    ).plot()
    scores, times = drawn.axes_
    assert [label.get_text() for label in scores.get_yticklabels()] == ["plain", "svm", "found"]
    ends = [bar.get_x() + bar.get_width() for bar in scores.patches]
    np.testing.assert_allclose(ends, [0.8, 0.85, 0.9])
    assert scores.get_title() == "one, 100 features"
    assert "the axis begins at 0.7" in scores.get_xlabel()
    np.testing.assert_allclose(times.collections[0].get_offsets()[:, 0], [0.1, 30.0, 3.0])
    assert times.get_xscale() == "log"


def test_points_in_time_have_their_sizes_and_outside_baselines_beside() -> None:
    drawn = ComparisonDisplay(
        [50, 200],
        {"one": {"found": [0.8, 0.9]}},
        references={"one": {"svm": 0.85}},
        seconds={"one": {"found": [0.1, 0.4]}},
        reference_seconds={"one": {"svm": 0.2}},
    ).plot()
    time = drawn.axes_[1]
    assert [text.get_text() for text in time.texts] == ["50", "200"]
    assert [line.get_label() for line in time.get_lines()] == ["found", "svm"]
    assert time.get_xlabel() == "seconds to learn and fit"
    assert [text.get_text() for text in time.get_legend().get_texts()] == ["found", "svm"]


def test_a_line_of_scores_against_time_never_goes_back() -> None:
    """A larger fit may take less time than a smaller one."""
    scores, seconds = {"one": {"found": [0.7, 0.8, 0.9]}}, {"one": {"found": [0.1, 0.4, 0.2]}}
    (line,) = ComparisonDisplay([50, 200, 400], scores, seconds=seconds).plot().axes_[1].get_lines()
    np.testing.assert_array_equal(line.get_xdata(), [0.1, 0.2, 0.4])
    np.testing.assert_array_equal(line.get_ydata(), [0.7, 0.9, 0.8])


def test_a_history_is_three_panels_at_most() -> None:
    names = ("objective", "loss", "held_out_loss", "score", "duality_gap", "residual", "margin", "support")
    history = [{"round": 1, **dict.fromkeys(names, 1.0)}, {"round": 2, **dict.fromkeys(names, 0.5)}]
    panels = HistoryDisplay(history).panels
    assert [panel[0] for panel in panels] == ["loss", "score", "duality gap"]
    assert panels[0][2] == ("held_out_loss", "loss")


def displays(rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier) -> dict[str, Any]:
    sphere, labels = sphere_checkerboard(50)
    return {
        "landscape": LandscapeDisplay.from_estimator(machine, *rows, newest=2, resolution=21),
        "weights": WeightedRowsDisplay.from_estimator(machine, *rows),
        "decision": DecisionDisplay.from_estimator(machine, *rows, resolution=21),
        "globe": SphereDisplay.from_functions({"x": lambda X: X[:, 0]}, rows=sphere, y=labels, resolution=21),
        "history": HistoryDisplay([{"round": i, "gap": 1.0 / i, "upper": 2.0, "lower": 1.0} for i in (1, 2, 3)]),
        "effects": EffectsDisplay.from_estimator(machine, rows[0], n_effects=3),
        "importance": dkl.plots.ImportanceDisplay.from_estimator(machine, rows[0]),
        "dependence": dkl.plots.DependenceDisplay.from_estimator(machine, rows[0], [0, (0, 1)], resolution=9),
        "contributions": dkl.plots.ContributionsDisplay.from_estimator(machine, rows[0][:3], rows[0], row=2),
        "bars": ComparisonDisplay([1], {"one": {"a": [0.1], "b": [-0.2]}}, seconds={"one": {"a": [1.0], "b": [2.0]}}),
        "drift": dkl.plots.DriftDisplay(["a", "b"], np.array([0.2, 0.1]), np.array([True, False]), "a picture"),
        "comparison": ComparisonDisplay([1, 2], {"one": {"a": [0.1, 0.2]}, "two": {"a": [0.1, 0.2]}}),
    }


def test_every_picture_draws_into_a_figure_of_its_own_and_into_given_axes(
    rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier, tmp_path: Any
) -> None:
    for name, display in displays(rows, machine).items():
        written = display.save(tmp_path / f"{name}.png")
        assert written.read_bytes().startswith(b"\x89PNG")
        number = len(display.axes_)
        _, axes = pyplot.subplots(1, number)
        assert display.plot(axes).axes_ == list(np.ravel(axes))
        _, axes = pyplot.subplots(1, number + 1)
        with pytest.raises(ValueError, match=f"ax holds {number + 1} Axes"):
            display.plot(axes)
        pyplot.close("all")


@pytest.mark.parametrize("kind", [dkl.StepFeatures, dkl.NystromFeatures])
def test_steps_and_kernels_at_landmarks_are_drawn_or_refused_by_name(kind: Any, rows: Any) -> None:
    features = kind(n_features=20, random_state=0)
    model = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", alpha=1e-3, progress=False).fit(*rows)
    assert DecisionDisplay.from_estimator(model, *rows, resolution=21).plot().axes_
    assert WeightedRowsDisplay.from_estimator(model, *rows).plot().axes_
    for call in (LandscapeDisplay.from_estimator, dkl.plots.KernelDisplay.from_estimator):
        with pytest.raises(TypeError, match=f"{model.feature_map_.activation!r}; a landscape|no spectral density"):
            call(model, *(rows if call == LandscapeDisplay.from_estimator else ()))
    if kind is dkl.StepFeatures:
        assert EffectsDisplay.from_estimator(model, rows[0], n_effects=3).plot().axes_
        assert HistoryDisplay.from_estimator(model).plot().axes_
    else:
        with pytest.raises(TypeError, match="NystromFeatures learns in one pass and keeps no history_"):
            HistoryDisplay.from_estimator(model)


def test_three_classes_have_a_decision_too(tmp_path: Any) -> None:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(90, 2))
    model = dkl.KernelClassifier(
        dkl.RandomFeatures(n_features=20, random_state=0), random_state=0, epochs=3, progress=False
    )
    y = np.digitize(X[:, 0], [-0.5, 0.5])
    drawn = DecisionDisplay.from_estimator(model.fit(X, y), X, y, resolution=21)
    assert drawn.decision.shape == (21, 21, 3)
    drawn.save(tmp_path / "three.png")


def test_pictures_need_matplotlib_only_when_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    display = HistoryDisplay([{"round": 1, "gap": 1.0}])
    with pytest.raises(ImportError, match=r"pip install 'dkl\[plots\]'"):
        display.plot()


STRANGE = [r"$\frac$", "$a_1$", "100 % of $", "a long name of a column " * 20 + "that ends so", "_x", "{", "^"]


def test_names_are_drawn_as_they_are_and_long_ones_shortened() -> None:
    X = np.random.default_rng(0).normal(size=(80, len(STRANGE)))
    labels = np.where(X[:, 0] > 0, r"$\frac$", "^_^")
    machine = dkl.KernelClassifier("random", n_features=20, epochs=1, random_state=0, progress=False)
    frame = pd.DataFrame(X, columns=STRANGE)
    machine.fit(frame, labels)
    pictures: list[Any] = [
        DriftDisplay(STRANGE, np.linspace(0, 1, len(STRANGE)), np.arange(len(STRANGE)) > 2, title=STRANGE[0]),
        ImportanceDisplay.from_estimator(machine, frame),
        DependenceDisplay.from_estimator(machine, frame, STRANGE[0]),
        AnswersDisplay.from_estimator(machine, frame, labels, title=STRANGE[0]),
        LandscapeDisplay.from_rows(X[:, :2], np.sign(X[:, 0]), limit=1.0, resolution=4, names=(STRANGE[0], STRANGE[1])),
    ]
    for picture in pictures:
        picture.plot().figure_.canvas.draw()
        shown = [text.get_text() for text in picture.figure_.findobj(pyplot.Text)]
        assert any(name in text for text in shown for name in STRANGE[:2]), type(picture)
        assert max(map(len, shown)) <= 60
    ticks = [label.get_text() for label in pictures[0].plot().axes_[0].get_yticklabels()]
    assert ticks[:3] == STRANGE[:3]
    assert ticks[3].startswith("a long name of")
    assert ticks[3].endswith("ends so")


def test_a_report_with_a_picture_that_cannot_be_drawn_holds_its_facts(
    rows: tuple[np.ndarray, np.ndarray], machine: dkl.KernelClassifier
) -> None:
    class Broken(AnswersDisplay):
        def plot(self, ax: Any = None) -> Any:
            raise FloatingPointError("a <number>")

    page = dkl.report(machine, as_dataset(*rows))
    assert "data:image/png" in page.to_html()
    page = replace(page, displays=dict.fromkeys(page.displays, Broken(page.displays["errors"].answers)))
    drawn = page.to_html()
    assert page.hash in drawn
    assert "could not be drawn: FloatingPointError: a &lt;number&gt;" in drawn
