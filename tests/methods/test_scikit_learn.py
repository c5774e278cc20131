"""Feature learners are citizens of scikit-learn and compose with dask-ml."""

from __future__ import annotations

import pickle
from typing import Any

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

from dkl.features.families import Coordinates, Gaussian, Laplacian
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.combined.learner import CombinedFeatures
from dkl.methods.leverage.learner import LeverageFeatures
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.peaks.learner import PeakFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.methods.steps.learner import StepFeatures
from tests.kernels.cases import blas_treats_rows_alike

LEARNERS = [
    RandomFeatures(n_features=40, random_state=0),
    AlignedFeatures(n_candidates=200, n_features=40, random_state=0),
    PosteriorFeatures(n_candidates=200, n_features=40, random_state=0),
    LeverageFeatures(n_candidates=200, n_features=40, random_state=0),
    PeakFeatures(n_features=40, chains=60, steps=5, random_state=0),
    MarginFeatures(n_features=40, random_state=0),
]
_CLIMBING = "a climb on rows with weights and on repeated rows ends at one peak, to rounding times its steps"
_CHECKS = [f"check_sample_weight_equivalence_on_{storage}_data" for storage in ("dense", "sparse")]
SAMPLED = {one: dict.fromkeys(_CHECKS, _CLIMBING) for one in (PeakFeatures, MarginFeatures)}
if not blas_treats_rows_alike():
    SAMPLED[LeverageFeatures] = dict.fromkeys(_CHECKS, "features are float32, and rows are rounded by their place")
every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=lambda learner: type(learner).__name__)
# Each of the checks of scikit-learn fits several times: a learner without targets, and one with them.
IN_EVERY_RUN = (RandomFeatures, MarginFeatures)
CHECKED = [pytest.param(one, marks=() if type(one) in IN_EVERY_RUN else pytest.mark.slow) for one in LEARNERS]


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return np.log1p(X[::2]).astype(np.float32), np.array(["benign", "malignant"])[1 - y[::2]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("learner", CHECKED, ids=lambda learner: type(learner).__name__)
def test_the_checks_of_scikit_learn_pass(learner: Any) -> None:
    # searches are as short as they are few: each check fits several times
    short = {"chains": 5, "steps": 2, "rounds": 1, "search_rows": 50}
    few = clone(learner).set_params(n_features=10)
    if "chains" in few.get_params():
        few.set_params(n_features=4)
    few.set_params(**{name: value for name, value in short.items() if name in few.get_params()})
    results = check_estimator(few, on_fail=None, expected_failed_checks=SAMPLED.get(type(learner), {}))
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


@every_learner
def test_a_pipeline_with_a_linear_model_learns(learner: Any, rows: Any) -> None:
    pipeline = make_pipeline(clone(learner).set_params(scaling="standard"), LogisticRegression(C=100.0, max_iter=1_000))
    assert pipeline.fit(*rows).score(*rows) > 0.95


def test_parameters_are_searched_as_of_any_estimator(rows: Any) -> None:
    pipeline = make_pipeline(LEARNERS[1], LogisticRegression())
    grid = {"alignedfeatures__rho": [0.0, 5.0], "alignedfeatures__family": [Gaussian(1.0), Laplacian(5.0)]}
    search = GridSearchCV(pipeline, grid, cv=2).fit(*rows)
    assert set(search.best_params_) == set(grid)


@every_learner
def test_a_clone_has_the_parameters_and_not_the_fit(learner: Any, rows: Any) -> None:
    fitted = clone(learner).set_params(family=Gaussian(2.0), scaling="minmax").fit(*rows)
    other = clone(fitted)
    assert other.get_params() == fitted.get_params()
    assert not hasattr(other, "feature_map_")
    assert not hasattr(other, "frequencies_")


@every_learner
def test_outputs_have_names_and_become_frames(learner: Any, rows: Any) -> None:
    fitted = clone(learner).set_output(transform="pandas").fit(*rows)
    frame = fitted.transform(rows[0])
    assert list(frame.columns) == list(fitted.get_feature_names_out())
    assert frame.columns.is_unique
    assert frame.shape[1] == fitted.feature_map_.n_features


def test_features_of_few_columns_are_named_after_them() -> None:
    table = load_breast_cancer(as_frame=True)
    X, y = table.data.iloc[:, :2].set_axis(["age", "bmi"], axis=1), table.target
    drawn = RandomFeatures(n_features=4, random_state=0).fit(X)
    pairs = ["cos(age, bmi)", "cos(age, bmi) 2", "sin(age, bmi)", "sin(age, bmi) 2"]
    assert drawn.get_feature_names_out().tolist() == pairs
    with pytest.raises(ValueError, match="feature_names_in_"):
        drawn.get_feature_names_out(["other", "names"])
    steps = StepFeatures(n_features=8, random_state=0).fit(X, y)
    assert steps.get_feature_names_out().tolist() == steps.atoms_
    both = CombinedFeatures([drawn, steps]).fit(X, y)
    assert both.get_feature_names_out().tolist()[:4] == pairs
    assert len(set(both.get_feature_names_out())) == both.feature_map_.n_features
    itself = RandomFeatures(Coordinates(), n_features=2, random_state=0).fit(X.to_numpy())
    assert itself.get_feature_names_out(["u", "v"])[0] in {"u", "v"}
    assert RandomFeatures(n_features=4, random_state=0).fit(table.data).get_feature_names_out()[3] == "randomfeatures3"
    with_gaps = X.to_numpy().copy()
    with_gaps[3, 1] = np.nan
    names = RandomFeatures(n_features=4, random_state=0).fit(with_gaps).get_feature_names_out()
    assert names[0].startswith("cos(")


@every_learner
def test_reprs_show_what_was_set_and_notebooks_get_html(learner: Any) -> None:
    shown = clone(learner).set_params(family=Laplacian(3.0))
    assert "Laplacian(sigma=3.0" in repr(shown)
    assert "n_features=40" in repr(shown)
    assert type(learner).__name__ in shown._repr_html_()


@every_learner
def test_a_pickled_learner_maps_to_the_same_bits(learner: Any, rows: Any) -> None:
    fitted = clone(learner).fit(*rows)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(rows[0]), fitted.transform(rows[0]))


@every_learner
def test_dask_ml_maps_in_parallel_and_fits_block_by_block(learner: Any, rows: Any) -> None:
    from dask_ml.wrappers import Incremental, ParallelPostFit

    X, y = da.from_array(rows[0], chunks=(100, -1)), da.from_array(rows[1], chunks=100)
    mapped = ParallelPostFit(clone(learner)).fit(*rows).transform(X)
    assert isinstance(mapped, da.Array)
    fitted = clone(learner).fit(X, y)
    np.testing.assert_allclose(mapped, fitted.transform(rows[0]), atol=1e-6 if blas_treats_rows_alike() else 5e-6)
    linear = Incremental(SGDClassifier(random_state=0), shuffle_blocks=False)
    linear.fit(fitted.transform(X), da.from_array((rows[1] == "benign").astype(int), chunks=100), classes=[0, 1])
    assert linear.estimator_.coef_.shape == (1, fitted.feature_map_.n_features)


def test_the_wrapper_for_streams_of_dask_ml_steps_a_machine_through_the_chunks(rows: Any) -> None:
    from dask_ml.wrappers import Incremental

    X, y = da.from_array(rows[0], chunks=(100, -1)), da.from_array(rows[1], chunks=100)
    machine = KernelClassifier("random", epochs=1, random_state=0)
    stepped = Incremental(machine, shuffle_blocks=False).fit(X, y, classes=["benign", "malignant"])
    assert stepped.estimator_.classes_.tolist() == ["benign", "malignant"]
    assert stepped.score(X, y) > 0.9
    # fit takes Dask arrays itself, too
    assert machine.fit(X, y).classes_.tolist() == ["benign", "malignant"]


@every_learner
def test_an_unfitted_learner_says_so(learner: Any, rows: Any) -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError, match="fit"):
        clone(learner).transform(rows[0])
