"""The skeletons of CONTRIBUTING.md run, and the checks that it names accept them and refuse broken ones."""

from __future__ import annotations

import importlib
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize
from sklearn.base import clone

from dkl.data.coerce import as_dataset
from dkl.data.sources.in_memory import ArraySource
from dkl.events import Event
from dkl.explain import contributions
from dkl.features.dictionaries import Steps
from dkl.features.families import Gaussian
from dkl.kernels.maps import map_rows
from dkl.kernels.normal_equations import NewtonTargets
from dkl.linear.head import NewtonDriver, NewtonProblem
from dkl.machines.kernel_machines import KernelClassifier, KernelRegressor
from dkl.methods.dictionaries.landmarks import LandmarkDictionary, Landmarks
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.planning import plan
from dkl.registry import LOSSES, PENALTY_RULES, LossEntry, PenaltyRule
from dkl.testing import check_dictionary, check_family, check_learner, check_source
from tests.linear import problems

ROOT = Path(__file__).parents[1]


@pytest.fixture
def skeleton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A skeleton of the page as a module, as its reader would save it."""

    def imported(name: str) -> ModuleType:
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        found = re.search(rf"<!-- skeleton: {name} -->\n```python\n(.*?)```", text, re.S)
        assert found is not None
        (tmp_path / f"skeleton_{name}.py").write_text(found[1], encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, f"skeleton_{name}", raising=False)
        return importlib.import_module(f"skeleton_{name}")

    return imported


def test_the_skeletons_of_the_page_are_as_ruff_has_modules_of_the_library() -> None:
    pytest.importorskip("ruff")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    skeletons = re.findall(r"<!-- skeleton: (\w+) -->\n```python\n(.*?)```", text, re.S)
    assert len(skeletons) > 5
    for name, code in skeletons:
        for arguments in (["check"], ["format", "--check"]):
            command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", f"dkl/methods/{name}.py", "-"]
            found = subprocess.run(command, input=code, capture_output=True, text=True, cwd=ROOT)
            assert found.returncode == 0, f"{name}: {found.stdout}{found.stderr}"


def test_the_family_of_the_page_satisfies_the_checks(skeleton: Callable[[str], ModuleType]) -> None:
    check_family(skeleton("family").TwoScales(sigma=1.0))


def test_the_learner_of_the_page_satisfies_the_checks(skeleton: Callable[[str], ModuleType]) -> None:
    check_learner(skeleton("learner").VaryingFeatures(n_features=20))


def test_the_learner_of_the_page_keeps_what_varies_most(skeleton: Callable[[str], ModuleType]) -> None:
    X = np.random.default_rng(0).normal(size=(200, 3))
    learner = skeleton("learner").VaryingFeatures(Gaussian(1.0), n_features=10, random_state=0).fit(X)
    phi = learner.transform(X).astype(np.float64)
    plain = RandomFeatures(Gaussian(1.0), n_features=10, random_state=0).fit_transform(X).astype(np.float64)
    assert phi.var(axis=0).sum() > plain.var(axis=0).sum()


def test_the_learner_with_rounds_satisfies_the_checks(skeleton: Callable[[str], ModuleType]) -> None:
    check_learner(skeleton("rounds").PursuedFeatures(n_features=6))


def test_every_round_of_the_page_lowers_the_loss_and_a_plan_names_them(skeleton: Callable[[str], ModuleType]) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = np.cos(2 * X[:, 0]) + np.sin(X[:, 1])
    learner = skeleton("rounds").PursuedFeatures(Gaussian(1.0), n_features=12, random_state=0)
    fitted = clone(learner).fit(X, y)
    assert len(fitted.losses_) == 6
    assert np.all(np.diff(fitted.losses_) < 0)
    assert plan(learner, as_dataset(X, y)).n_passes >= 6


def test_subscribers_of_the_learner_with_rounds_hear_the_loss_of_each(skeleton: Callable[[str], ModuleType]) -> None:
    heard: list[Event] = []
    X = np.random.default_rng(0).normal(size=(300, 3))
    learner = skeleton("rounds").PursuedFeatures(Gaussian(1.0), n_features=12, random_state=0, progress=heard.append)
    fitted = learner.fit(X, np.cos(2 * X[:, 0]))
    rounds = [event.detail for event in heard if event.name == "rounds" and event.kind == "advanced"]
    assert rounds == [{"loss": loss} for loss in fitted.losses_]


def test_a_learner_with_rounds_goes_on_from_its_checkpoint(
    skeleton: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = np.cos(2 * X[:, 0])

    class Interrupted(Exception):
        pass

    def interrupt(event: Event) -> None:
        if event.name == "rounds" and event.kind == "advanced" and event.done == 3:
            raise Interrupted

    learner = skeleton("rounds").PursuedFeatures(Gaussian(1.0), n_features=12, random_state=0)
    expected = clone(learner).fit(X, y).losses_
    learner.set_params(checkpoint=str(tmp_path / "checkpoint"))
    with pytest.raises(Interrupted):
        clone(learner).set_params(progress=interrupt).fit(X, y)
    resumed = clone(learner).fit(X, y)
    assert len(resumed.stats_) < len(expected)
    np.testing.assert_array_equal(resumed.losses_, expected)


def test_the_dictionary_of_the_page_satisfies_the_checks(skeleton: Callable[[str], ModuleType]) -> None:
    check_dictionary(skeleton("dictionary").TriangularWaves())


def test_the_dictionary_of_the_page_has_its_features_wherever_a_model_is_computed(
    skeleton: Callable[[str], ModuleType],
) -> None:
    """And in scikit-learn's pipeline, by functions of NumPy alone; explanations are computed from draws of rows."""
    waves = skeleton("dictionary").TriangularWaves(1.0)
    X, points = np.random.default_rng(0).normal(size=(200, 2)), np.array([[1.5, 0.0], [0.5, -2.0]])
    expected = np.concatenate([np.arcsin(np.sin(X @ points.T + b)) for b in (0.0, np.pi / 2.0)], axis=1)
    phi = map_rows(X, waves.searched(None, None).feature_map(points), "float64")
    np.testing.assert_allclose(phi, expected, atol=1e-12)
    features = MarginFeatures([waves], n_features=20, random_state=0)
    model = KernelRegressor(features, random_state=0).fit(X, expected @ [1.0, 0.3, 0.0, -0.5])
    assert [part.activation for part in model.feature_map_.projection.maps] == [waves]
    pipeline = pickle.dumps(model.to_sklearn())
    assert b"dkl" not in pipeline
    np.testing.assert_allclose(pickle.loads(pipeline).predict(X), model.predict(X), rtol=1e-4, atol=1e-4)
    shares = contributions(model, X[:5], X)
    explained = shares.base + shares.values.sum(axis=1)[:, 0]
    np.testing.assert_allclose(explained, model.predict(X[:5]), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_dictionary_whose_functions_for_scikit_learn_differ_is_refused(
    skeleton: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    triangular = skeleton("dictionary").TriangularWaves
    monkeypatch.setattr(triangular, "numpy_functions", (np.sin,))
    with pytest.raises(AssertionError, match=r"TriangularWaves: to_sklearn\(\) predicts as the model does"):
        check_dictionary(triangular())


def test_a_dictionary_that_multiplies_a_metric_from_the_other_side_is_refused(
    skeleton: Callable[[str], ModuleType],
) -> None:
    triangular: Any = skeleton("dictionary").TriangularWaves

    class FromTheOtherSide(triangular):
        def searched(self, scaler: Any, metric: Any) -> Any:
            return super().searched(scaler, None if metric is None else metric.T)

    with pytest.raises(
        AssertionError, match=r"in a metric of shape \(4, 4\), with which the dictionary sees X @ metric"
    ):
        check_dictionary(FromTheOtherSide())


@pytest.mark.slow
def test_the_dictionary_of_the_page_competes_with_others(skeleton: Callable[[str], ModuleType]) -> None:
    X = np.random.default_rng(0).uniform(-4.0, 4.0, (1_000, 2))
    y = np.arcsin(np.sin(X @ [1.0, 1.5])) + 4.0 * (X[:, 1] > 0.5)
    both = [skeleton("dictionary").TriangularWaves(1.0), Steps(depth=1)]
    scores = [
        MarginFeatures(families, n_features=40, random_state=0).fit(X[:800], y[:800]).machine_.score(X[800:], y[800:])
        for families in (both, both[:1], both[1:])
    ]
    assert scores[0] > 0.96
    assert scores[0] > max(scores[1:]) + 0.02


def test_a_dictionary_that_follows_no_slopes_is_refused() -> None:
    class AtRandom(LandmarkDictionary):
        def propose(self, rows: Any, count: int, seed: int) -> np.ndarray:
            return np.random.default_rng(1).permutation(rows.X)[:count]

    class RandomLandmarks(Landmarks):
        def searched(self, scaler: Any, metric: Any) -> LandmarkDictionary:
            return AtRandom(self.kernel, scaler, metric)

    with pytest.raises(AssertionError, match="explain more of the slopes"):
        check_dictionary(RandomLandmarks())


@dataclass(frozen=True)
class Misnamed(Gaussian):
    """Claims the kernel of another bandwidth."""

    def kernel(self, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
        return Gaussian(1.3 * float(self.sigma)).kernel(X, Y)


def test_a_family_with_another_kernel_is_refused() -> None:
    with pytest.raises(AssertionError, match="standard errors off"):
        check_family(Misnamed(1.0))


class Forgetful(RandomFeatures):
    """Draws without its seed."""

    def _learn(self, dataset: Any) -> None:
        self.seed_ = int(np.random.default_rng().integers(1 << 30))
        super()._learn(dataset)


def test_a_learner_that_does_not_repeat_itself_is_refused() -> None:
    with pytest.raises(AssertionError, match="same bits"):
        check_learner(Forgetful(n_features=20))


def test_arrays_in_memory_are_a_good_source() -> None:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, 100)
    weight = generator.integers(0, 3, 100).astype(float)
    check_source(ArraySource(generator.normal(size=(100, 4)), y, weight, n_classes=3, rows_a_block=30))


def test_a_source_that_miscounts_is_refused() -> None:
    class Miscounting(ArraySource):
        @property
        def block_rows(self) -> np.ndarray:
            return super().block_rows + 1

    with pytest.raises(AssertionError, match="rows, not"):
        check_source(Miscounting(np.eye(10), rows_a_block=5))


def test_the_examples_of_the_architecture_page_print_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "examples" / "reference" / "architecture.md").read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.S)
    exec(compile("\n".join(programs), "architecture.md", "exec"), {"__name__": "architecture"})
    expected = re.findall(r"^print\(.*\)  # (.*)$", text, re.M)
    assert len(expected) == len(programs) == 2
    assert capsys.readouterr().out.splitlines() == expected


def test_the_loss_of_the_page_is_fitted_by_its_line_in_the_table(
    skeleton: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = skeleton("loss").LogCoshLoss()
    y, f = np.random.default_rng(0).normal(size=(2, 200)) * 3.0
    ahead, behind, s = f + 1e-4, f - 1e-4, loss.slope(y, f)
    np.testing.assert_allclose(loss.value(y, f), np.log(np.cosh(y - f)), rtol=1e-12)
    np.testing.assert_allclose(s, (loss.value(y, ahead) - loss.value(y, behind)) / 2e-4, atol=1e-7)
    np.testing.assert_allclose(loss.curvature(y, f), (loss.slope(y, ahead) - loss.slope(y, behind)) / 2e-4, atol=1e-7)
    np.testing.assert_allclose(loss.conjugate(y, s), s * f - loss.value(y, f), atol=1e-7)
    entry = LossEntry("LogCoshLoss", "log cosh(y - f)", {"regression": ("newton",)}, module="skeleton_loss")
    monkeypatch.setitem(LOSSES, "log_cosh", entry)
    X, y = np.random.default_rng(1).normal(size=(300, 3)), np.random.default_rng(2).standard_t(3, size=300)
    targets = NewtonTargets(np.array([0]), None)
    problem = NewtonProblem(problems.feature_map(3), targets, 300.0, 1e-2, "log_cosh", tol=1e-8, dtype="float64")
    state, _ = problems.play(NewtonDriver(), problem, problems.blocks_of(X, y, 100))
    phi = np.column_stack([map_rows(X, problem.feature_map, "float64"), np.ones(300)])

    def objective(w: np.ndarray) -> float:
        return float(loss.value(y, phi @ w).mean() + 0.5e-2 * w[:-1] @ w[:-1])

    found = minimize(objective, np.zeros(phi.shape[1]), tol=1e-10)
    assert objective(state.solution(problem)[0]) <= found.fun + 1e-9


def test_the_penalty_rule_of_the_page_is_a_value_of_alpha(
    skeleton: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The strongest penalty within the error is chosen among the same ones, for numbers, two and three classes."""
    skeleton("rule")
    rule = PenaltyRule("one_standard_error", "", "skeleton_rule")
    monkeypatch.setitem(PENALTY_RULES, "one_standard_error", rule)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = np.sin(2.0 * X[:, 0]) + rng.normal(size=300)
    features = RandomFeatures(n_features=60, random_state=0)
    targets: list[tuple[Any, Any, dict[str, Any]]] = [
        (KernelRegressor, y, {}),
        (KernelClassifier, y > 0.0, {"loss": "squared_hinge"}),
        (KernelClassifier, np.digitize(y, [-0.5, 0.5]), {"loss": "log_loss"}),
    ]
    stronger = 0
    for kind, target, given in targets:
        machine = kind(features, solver="newton", random_state=0, **given)
        best, careful = (
            clone(machine).set_params(alpha=rule).fit(X, target) for rule in ("auto", "one_standard_error")
        )
        np.testing.assert_allclose(careful.validation_scores_, best.validation_scores_)
        assert best.validation_scores_[np.flatnonzero(best.alphas_ == best.alpha_)] == best.validation_scores_.max()
        assert careful.alpha_ >= best.alpha_
        stronger += careful.alpha_ > best.alpha_
    assert stronger
