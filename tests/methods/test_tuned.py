"""Tuned learners: the promises of every estimator, the learned kernel, and plain features as their limit."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import psutil
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import Ridge
from sklearn.utils.estimator_checks import check_estimator

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.families import ArcCosine, Gaussian, Laplacian
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.density.meta_kernels import MaternMetaKernel, RBFMetaKernel
from dkl.testing.learners import check_learner


def classifier(**parameters: Any) -> TunedClassifier:
    return TunedClassifier(**{"n_features": 60, "lam": 1e-3, "scaling": "standard", "random_state": 0, **parameters})


def regressor(**parameters: Any) -> TunedRegressor:
    return TunedRegressor(**{"n_features": 60, "lam": 1e-3, "random_state": 0, **parameters})


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_diabetes(return_X_y=True)
    return X[:200], y[:200]


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    return X, np.array(["setosa", "versicolor", "virginica"])[y]


IN_EXPECTATION = "stochastic steps see a weight of 2 as two rows in expectation only"
SAMPLED = {
    "check_sample_weight_equivalence_on_dense_data": IN_EXPECTATION,
    "check_sample_weight_equivalence_on_sparse_data": IN_EXPECTATION,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (TunedClassifier(40, family=Gaussian(4.0), loss="squared_error", random_state=0), {}),
        pytest.param(
            TunedRegressor(40, family=Gaussian(4.0), random_state=0), {}, marks=pytest.mark.slow, id="squared error"
        ),
        pytest.param(
            TunedRegressor(40, family=Gaussian(4.0), solver="adam", epochs=20, random_state=0),
            SAMPLED,
            marks=pytest.mark.slow,
            id="adam",
        ),
        pytest.param(
            TunedClassifier(40, family=Gaussian(4.0), loss="squared_hinge", random_state=0),
            {},
            marks=pytest.mark.slow,
            id="squared hinge",
        ),
        pytest.param(TunedClassifier(40, family=Gaussian(4.0), random_state=0), {}, marks=pytest.mark.slow, id="hinge"),
        pytest.param(
            TunedClassifier(40, family=Gaussian(4.0), solver="adam", epochs=20, random_state=0),
            SAMPLED,
            marks=pytest.mark.slow,
            id="adam hinge",
        ),
    ],
)
def test_the_checks_of_scikit_learn_pass(machine: Any, expected: dict[str, str]) -> None:
    results = check_estimator(machine, on_fail=None, expected_failed_checks=expected)
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


@pytest.mark.parametrize("solver", ["full", "adam"])
def test_a_tuned_learner_keeps_what_models_rely_on(solver: Any) -> None:
    check_learner(classifier(n_features=20, solver=solver, loss="squared_error", epochs=3), n_rows=200)


def test_a_large_penalty_on_the_density_gives_ridge_on_plain_features(diabetes: Any) -> None:
    X, y = diabetes
    n, lam = len(y), 1e-2
    plain = regressor(lam=lam, Lam=np.inf).fit(X, y)
    np.testing.assert_array_equal(plain.density_, 1.0)
    phi = plain.transform(X)
    np.testing.assert_allclose(np.sum(phi**2, axis=1), 1.0)
    ridge = Ridge(alpha=n * lam).fit(phi, y)
    np.testing.assert_allclose(plain.predict(X), ridge.predict(phi), rtol=1e-9)
    np.testing.assert_allclose(regressor(lam=lam, Lam=1e8).fit(X, y).predict(X), ridge.predict(phi), rtol=1e-6)


def test_the_features_are_those_of_the_learned_kernel(diabetes: Any) -> None:
    """k(x - y) = mean_j u_j cos(w_j.(x - y)), pair by pair."""
    X, y = diabetes
    model = regressor(lam=1e-2, Lam=1e-3, scaling="standard").fit(X, y)
    u, W = model.density_, model.frequencies_
    assert u.min() >= 1.0
    assert u.max() > 1.5
    scaled = (X[:4] - X.mean(axis=0)) / X.std(axis=0)
    expected = [[np.mean(u * np.cos(W @ (a - b))) for b in scaled] for a in scaled]
    np.testing.assert_allclose(model.kernel(X[:4]), expected, atol=1e-12)
    np.testing.assert_allclose(model.kernel(X[:4], X[2:3]), np.array(expected)[:, 2:3], atol=1e-12)
    np.testing.assert_allclose(model.transform(X) @ model.coef_.T + model.intercept_, model.predict(X)[:, None])


def test_a_learned_density_fits_better_at_the_same_penalty(diabetes: Any) -> None:
    X, y = diabetes
    errors = [np.mean((regressor(lam=1e-4, Lam=Lam).fit(X, y).predict(X) - y) ** 2) for Lam in (np.inf, 1.0, 1e-2)]
    assert errors[2] < errors[1] < errors[0]


def objective_of(model: Any, X: np.ndarray, signs: np.ndarray) -> float:
    """The data term and the ridge, from the fitted attributes; without the density's own penalty."""
    f, lam = model.transform(X) @ model.coef_.T + model.intercept_, model.lam
    slack = np.maximum(0.0, 1.0 - signs * f)
    losses = {"hinge": slack, "squared_hinge": slack**2, "squared_error": 0.5 * (signs - f) ** 2}[model.loss]
    # |w_j|^2 / u_j of the reference's features is |coef_j|^2 of the learned ones
    return float(losses.sum(axis=1).mean() + 0.5 * lam * np.sum(model.coef_**2))


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "squared_error"])
def test_adam_comes_near_the_full_solver(loss: Any, iris: Any) -> None:
    X, y = iris
    models = [
        classifier(loss=loss, lam=1e-2, Lam=1e3, solver=solver, epochs=60).fit(X, y) for solver in ("full", "adam")
    ]
    signs = np.where(y[:, None] == models[0].classes_, 1.0, -1.0)
    full, adam = (objective_of(model, X, signs) for model in models)
    assert models[0].duality_gap_ < 1e-4 * models[0].objective_
    np.testing.assert_allclose(models[0].objective_, full, rtol=2e-2)
    np.testing.assert_allclose(adam, full, rtol=2e-2)
    np.testing.assert_allclose(models[1].objective_, models[0].objective_, rtol=2e-2)


def test_a_solver_that_runs_out_of_passes_says_so(iris: Any) -> None:
    with pytest.warns(
        UserWarning, match=r"TunedClassifier ended above tol: max_passes is reached; a larger lam or tol"
    ):
        model = classifier(max_passes=2).fit(*iris)
    assert model.duality_gap_ > 1e-4 * model.objective_
    assert "max_passes" in model.message_


def test_classes_may_have_a_density_each(iris: Any) -> None:
    X, y = iris
    model = classifier(loss="squared_error", shared_density=False, Lam=0.1, lam=1e-4).fit(X, y)
    assert model.density_.shape == (3, 30)
    assert np.ptp(model.density_, axis=0).max() > 0.1
    np.testing.assert_allclose(np.diag(model.kernel(X[:3])), model.density_.mean())
    alone = classifier(loss="squared_error", Lam=0.1, lam=1e-4).fit(X, y == "setosa")
    np.testing.assert_allclose(alone.density_, model.density_[0], rtol=1e-6)
    np.testing.assert_allclose(model.decision_function(X)[:, 0], alone.decision_function(X), rtol=1e-6, atol=1e-8)


def test_fourier_kernel_learning_drops_frequencies_without_weight(iris: Any) -> None:
    X, y = iris
    for solver in ("full", "adam"):
        model = classifier(
            meta_kernel="delta", center=0.0, density_floor=0.0, Lam=1e-2, loss="squared_error", solver=solver, epochs=50
        ).fit(X, y)
        h = 1.0 / (1.0 + model.gamma * 30) ** 2
        weights = np.sum((model.coef_ * np.tile(np.sqrt(model.density_), 2)).reshape(3, 2, 30) ** 2, axis=(0, 1))
        expected = np.cbrt(model.lam * weights / (2.0 * model.Lam * h))
        np.testing.assert_allclose(model.density_, expected, rtol=1e-4, atol=1e-6)
        assert model.score(X, y) > 0.9


@pytest.mark.parametrize("solver", ["full", "adam"])
def test_targets_answer_in_their_own_units_and_several_at_once(solver: Any, diabetes: Any) -> None:
    X, y = diabetes
    plain = regressor(solver=solver, epochs=30).fit(X, y)
    moved = regressor(solver=solver, epochs=30).fit(X, 1e4 - 100.0 * y)
    np.testing.assert_allclose(moved.predict(X), 1e4 - 100.0 * plain.predict(X), rtol=1e-6)
    assert plain.predict(X).shape == (len(y),)
    both = regressor(solver=solver, epochs=30).fit(X, np.stack([y, 5.0 * X[:, 0]], axis=1))
    assert both.predict(X).shape == (len(y), 2)
    assert both.score(X, np.stack([y, 5.0 * X[:, 0]], axis=1)) > 0.6


@pytest.mark.parametrize("machine", [classifier(loss="squared_hinge"), classifier(), regressor()], ids=repr)
def test_weights_are_repeated_rows(machine: Any, iris: Any) -> None:
    X, y = iris
    y = X[:, 3] if isinstance(machine, TunedRegressor) else y
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    X = X[:, :3]
    machine = clone(machine).set_params(family=Gaussian(2.0), scaling=None, lam=1e-2, tol=1e-7)
    weighted = machine.fit(X, y, sample_weight=weight)._scores(X)
    repeated = clone(machine).fit(np.repeat(X, weight, axis=0), np.repeat(y, weight))._scores(X)
    np.testing.assert_allclose(weighted, repeated, atol=1e-4 * np.abs(repeated).max())


def test_class_weights_are_repeated_rows(iris: Any) -> None:
    X, y = iris
    machine = classifier(loss="squared_error", family=Gaussian(2.0), scaling=None)
    weighted = clone(machine).set_params(class_weight={"setosa": 3.0}).fit(X, y).decision_function(X)
    repeats = np.where(y == "setosa", 3, 1)
    repeated = machine.fit(np.repeat(X, repeats, axis=0), np.repeat(y, repeats)).decision_function(X)
    np.testing.assert_allclose(weighted, repeated, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("form", ["sparse", "dask array", "dataset"])
def test_rows_of_every_form_are_fitted_and_predicted_alike(form: str) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300] / 16.0, y[:300]
    array = TunedClassifier(60, loss="squared_error", random_state=0).fit(X, y)
    given = {
        "sparse": (sparse.csr_array(X), y),
        "dask array": (da.from_array(X, chunks=(100, -1)), da.from_array(y, chunks=100)),
        "dataset": (as_dataset(X, y), None),
    }[form]
    model = clone(array).fit(*given)
    predicted = model.predict(given[0])
    assert isinstance(predicted, {"sparse": np.ndarray, "dask array": da.Array, "dataset": dd.Series}[form])
    np.testing.assert_allclose(model.decision_function(X), array.decision_function(X), atol=0.02)
    np.testing.assert_array_equal(np.asarray(predicted), model.predict(X))
    assert model.score(*given) == pytest.approx(np.mean(model.predict(X) == y))
    np.testing.assert_allclose(np.asarray(model.kernel(given[0])[:3, :3]), model.kernel(X[:3]), atol=1e-6)


def bits_of(model: Any) -> bytes:
    parts = (model.coef_, model.intercept_, model.density_, model.frequencies_, model.feature_map_.amplitudes)
    return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Weighted rows of three classes in a store of many blocks."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2_000, 5))
    y = np.array(["a", "b", "c"])[(X[:, 0] * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)]
    store = str(tmp_path_factory.mktemp("store") / "rows.zarr")
    return dkl.create_dataset(store, X, y, sample_weight=rng.integers(0, 3, 2_000), rows_a_block=128)


EVERYWHERE = [classifier(loss="squared_error"), classifier(max_passes=6), classifier(solver="adam", epochs=2)]


@pytest.fixture(scope="module")
def on_one_thread(blocks: Any) -> list[bytes]:
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [bits_of(clone(machine).fit(blocks)) for machine in EVERYWHERE]


@pytest.mark.filterwarnings("ignore:.*max_passes")
@pytest.mark.parametrize("place", range(len(EVERYWHERE)))
def test_threads_and_broken_off_fits_end_with_the_same_bits(
    place: int, on_one_thread: Any, blocks: Any, tmp_path: Path
) -> None:
    machine, expected = EVERYWHERE[place], on_one_thread[place]
    with dask.config.set(num_workers=3):
        assert bits_of(clone(machine).fit(blocks)) == expected

    def break_off(event: Any) -> None:
        if event.kind == "advanced" and event.name == "rounds":
            raise KeyboardInterrupt

    model, tries = clone(machine).set_params(checkpoint=str(tmp_path / "run"), progress=break_off), 0
    while tries < 40:
        tries += 1
        try:
            model.fit(blocks)
        except KeyboardInterrupt:
            continue
        break
    assert tries > 1
    assert bits_of(model) == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*max_passes")
@pytest.mark.parametrize("place", range(len(EVERYWHERE)))
def test_worker_processes_give_the_bits_of_one_thread(place: int, on_one_thread: Any, blocks: Any, client: Any) -> None:
    assert bits_of(clone(EVERYWHERE[place]).fit(blocks)) == on_one_thread[place]


@pytest.mark.parametrize(
    "machine",
    [
        classifier(loss="squared_hinge", meta_kernel=MaternMetaKernel(0.5)),
        regressor(shared_density=False, scaling="unit"),
    ],
    ids=repr,
)
def test_a_saved_model_answers_with_the_same_bits(machine: Any, diabetes: Any, tmp_path: Path) -> None:
    X, y = diabetes
    y = np.stack([y, X[:, 0]], axis=1) if isinstance(machine, TunedRegressor) else y > 140.0
    model = clone(machine).fit(X, y)
    model.save(tmp_path / "model")
    again = dkl.load_model(tmp_path / "model")
    assert repr(again) == repr(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    np.testing.assert_array_equal(again.kernel(X[:5]), model.kernel(X[:5]))
    assert again.history_ == model.history_
    assert (again.objective_, again.duality_gap_) == (model.objective_, model.duality_gap_)


def test_early_stopping_stops(blocks: Any) -> None:
    model = classifier(solver="adam", epochs=60, early_stopping=True, patience=2, lam=1e-8, learning_rate=0.5).fit(
        blocks
    )
    losses = [line["held_out_loss"] for line in model.history_]
    assert len(losses) < 60
    assert np.argmin(losses) == len(losses) - 3


@pytest.mark.parametrize("machine", [*EVERYWHERE, classifier(solver="adam", epochs=2, early_stopping=True)], ids=repr)
def test_a_plan_names_the_passes(machine: Any, blocks: Any) -> None:
    planned = dkl.plan(machine, blocks)
    fitted = clone(machine).set_params(max_passes=6).fit(blocks) if machine.solver == "adam" else None
    assert planned.n_passes >= 2
    assert planned.flops > 2_000 * 30
    if fitted is not None:
        assert planned.n_passes >= len(fitted.stats_)


def test_parts_are_parameters() -> None:
    model = regressor(meta_kernel=RBFMetaKernel(2.0), family=Laplacian(3.0))
    assert model.get_params()["meta_kernel__length_scale"] == 2.0
    model.set_params(meta_kernel__even=True, family__sigma=4.0)
    assert model.meta_kernel == RBFMetaKernel(2.0, even=True)
    assert model.family == Laplacian(4.0)
    assert clone(model).meta_kernel == model.meta_kernel
    assert "meta_kernel__length_scale" not in regressor().get_params()


def test_the_reference_scale_is_the_bandwidth_of_the_family(diabetes: Any) -> None:
    X, y = diabetes
    scaled = regressor(reference_scale=0.3).fit(X, y)
    given = regressor(family=Gaussian(0.3)).fit(X, y)
    assert scaled.family_ == Gaussian(0.3)
    assert bits_of(scaled) == bits_of(given)
    assert regressor(family=Laplacian(2.0), reference_scale=0.3).fit(X, y).family_ == Laplacian(0.3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_features": 1}, r"at least 2 for this family. Got 1"),
        ({"n_features": 0}, "n_features"),
        ({"lam": 0.0}, "lam"),
        ({"lam": np.inf}, r"lam.*\(0.0, 1e\+100\]. Got inf"),
        ({"Lam": -1.0}, "Lam"),
        ({"gamma": 0.0}, "gamma"),
        ({"gamma": np.inf}, r"gamma.*\(0.0, 1e\+100\]. Got inf"),
        ({"density_floor": -0.1}, "density_floor"),
        ({"center": 0.0, "Lam": np.inf}, r"Lam=inf fixes the density at center=0"),
        ({"length_scale": 0.0}, "length_scale"),
        ({"meta_kernel": "cubic"}, r"meta_kernel is 'cubic'; it must be one of"),
        ({"meta_kernel": MaternMetaKernel(nu=-1.0)}, "nu is -1.0"),
        ({"family": ArcCosine()}, "learns the density of cosine-sine pairs, and ArcCosine"),
        ({"family": Gaussian(pairing="phase")}, "pairing='cos-sin'"),
        ({"reference_scale": -1.0}, "reference_scale"),
        ({"loss": "log_loss"}, "loss"),
        ({"solver": "sgd"}, "solver"),
        ({"early_stopping": True}, r"solver='full' goes to the optimum.*solver='adam'"),
        ({"solver": "adam", "learning_rate": 0.0}, "learning_rate"),
        ({"solver": "adam", "early_stopping": True, "validation_fraction": 1e-9}, "no row is held out"),
    ],
)
def test_parameters_without_a_meaning_are_named(parameters: dict[str, Any], message: str, iris: Any) -> None:
    with pytest.raises(ValueError, match=message):
        classifier(**parameters).fit(*iris)


def test_too_many_frequencies_for_the_meta_kernel_are_refused_before_any_row_is_read(iris: Any) -> None:
    told: list[Any] = []
    with pytest.raises(MemoryError, match=r"100,000 frequencies needs .* GiB.*meta_kernel='delta'"):
        classifier(n_features=200_000, progress=told.append).fit(*iris)
    # the limit is one of the whole process, whose imports count
    limit = psutil.Process().memory_info().rss + (1_200 << 20)
    with pytest.raises(MemoryError, match=r"10,000 frequencies needs .* above the limit of 1\.\d GiB; take at most"):
        classifier(n_features=20_000, memory_limit=limit, progress=told.append).fit(*iris)
    assert not told


def test_targets_that_are_no_numbers_or_no_labels_are_named(diabetes: Any) -> None:
    X, y = diabetes
    y = y.copy()
    y[17] = np.nan
    with pytest.raises(ValueError, match=r"y\[17\] is NaN|17"):
        regressor().fit(X, y)
    with pytest.raises(ValueError, match="fit numbers with TunedRegressor"):
        classifier().fit(X, X[:, 0])
    with pytest.raises(ValueError, match=r"class"):
        classifier().fit(X, np.zeros(len(X)))
    with pytest.raises(NotFittedError):
        classifier().predict(X)
    with pytest.raises(NotFittedError):
        regressor().kernel(X)
