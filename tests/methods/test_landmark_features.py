"""What LandmarkFeatures promises: the same similarities of the same rows in any form, and what its parameters mean."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.utils.estimator_checks import check_estimator

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.events import Event
from dkl.explain.model import model_of
from dkl.features.families import ArcCosine, Gaussian
from dkl.features.feature_map import FeatureMap
from dkl.kernels.maps import map_rows
from dkl.kernels.scale import scale_rows
from dkl.methods.landmarks.driver import similarity_map
from dkl.methods.landmarks.learner import LandmarkFeatures
from dkl.testing.learners import check_learner
from tests.definitions import selection as definition

PLACEMENTS = ["kmeans", "kmeans-joint", "random"]
every_placement = pytest.mark.parametrize("landmarks", PLACEMENTS)
POOLS = ["own", "shared"]
SCALINGS = [None, "standard", "quantile"]
# All pairs of a pool, a placement and a scaling, in half of their products.
PAIRS = [
    (POOLS[(i + j) % 2], placement, scaling)
    for i, placement in enumerate(PLACEMENTS)
    for j, scaling in enumerate(SCALINGS)
]


def learner(**given: Any) -> LandmarkFeatures:
    options = {"n_landmarks": 12, "n_candidates": 8, "beta": 1.0, "random_state": 0, "progress": False, **given}
    return LandmarkFeatures(**options)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X[:600] / 16.0, np.array(list("abcdefghij"))[y[:600]]


def bits_of(fitted: LandmarkFeatures) -> list[bytes]:
    arrays = [fitted.landmarks_, fitted.losses_, fitted.weights_, fitted.frequencies_]
    return [array.tobytes() for array in arrays]


@every_placement
def test_it_keeps_what_models_rely_on(landmarks: Any) -> None:
    check_learner(learner(landmarks=landmarks))


def test_it_keeps_what_models_rely_on_with_shared_candidates() -> None:
    check_learner(learner(pool="shared"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn_pass() -> None:
    reason = "landmarks are drawn from a sample of the rows: weights are repetitions in expectation"
    checks = [f"check_sample_weight_equivalence_on_{storage}_data" for storage in ("dense", "sparse")]
    results = check_estimator(learner(), on_fail=None, expected_failed_checks=dict.fromkeys(checks, reason))
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert len(results) > 45


@pytest.mark.parametrize(("pool", "landmarks", "scaling"), PAIRS)
def test_features_are_means_of_cosines_by_the_losses_of_the_rows(
    pool: Any, landmarks: Any, scaling: Any, digits: Any
) -> None:
    X, y = digits[0][:80], digits[1][:80]
    fitted = learner(pool=pool, landmarks=landmarks, scaling=scaling, n_landmarks=10, dtype="float64").fit(X, y)
    scaled = scale_rows(X, fitted.scaler_, "float64")
    codes = np.searchsorted(fitted.classes_, y)
    for one in (0, 7):
        point, label = fitted.landmarks_[one], np.searchsorted(fitted.classes_, fitted.landmark_classes_[one])
        (own,) = np.flatnonzero(np.abs(scaled - point).max(axis=1) < 1e-12)[:1] if landmarks == "random" else (None,)
        expected = definition.landmark_losses(scaled, codes, point, int(label), fitted.candidates_[one], own)
        np.testing.assert_allclose(fitted.losses_[one], expected, rtol=1e-9)
        weights = definition.pseudo_posterior(expected, 1.0, 80.0)
        np.testing.assert_allclose(fitted.weights_[one], weights, rtol=1e-8)
    similar = definition.similarities(scaled, fitted.landmarks_, fitted.candidates_, fitted.weights_)
    np.testing.assert_allclose(fitted.transform(X), similar, atol=1e-10)


@every_placement
def test_arrays_dask_arrays_and_stores_give_the_same_bits(landmarks: Any, digits: Any, tmp_path: Path) -> None:
    X, y = digits[0].astype(np.float32), digits[1]
    fitted = learner(landmarks=landmarks, scaling="standard").fit(X, y)
    stored = create_dataset(str(tmp_path / "rows.zarr"), X, y)
    chunked = da.from_array(X, chunks=(len(X), 7)), da.from_array(y, chunks=200)
    for other in (clone(fitted).fit(stored), clone(fitted).fit(*chunked)):
        assert bits_of(other) == bits_of(fitted)
        np.testing.assert_array_equal(other.transform(X), fitted.transform(X))
    lazy = fitted.transform(stored)
    assert isinstance(lazy, da.Array)
    np.testing.assert_array_equal(lazy, fitted.transform(X))


@every_placement
def test_sparse_rows_are_the_dense_ones(landmarks: Any, digits: Any) -> None:
    X, y = digits
    for family in (Gaussian(2.0), Gaussian(2.0, sampling="structured")):
        dense = learner(family=family, landmarks=landmarks, scaling="unit").fit(X, y)
        thin = clone(dense).fit(sparse.csr_matrix(X), y)
        np.testing.assert_allclose(thin.landmarks_, dense.landmarks_, atol=1e-12)
        np.testing.assert_allclose(thin.transform(sparse.csr_array(X)), dense.transform(X), atol=2e-6)


@pytest.fixture
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 rows of digits, so that k-means goes on over all rows."""
    monkeypatch.setattr("dkl.methods.landmarks.learner.SAMPLE_BYTES", 200 * 64 * 8)


@pytest.mark.usefixtures("small_samples")
@every_placement
def test_the_bits_do_not_depend_on_threads_or_processes(
    landmarks: Any, digits: Any, tmp_path: Path, client: Any
) -> None:
    weight = np.random.default_rng(0).integers(0, 3, 600)
    data = create_dataset(str(tmp_path / "rows.zarr"), *digits, sample_weight=weight, rows_a_block=64)
    asked = learner(landmarks=landmarks, scaling="standard", rounds=2)
    on_workers = clone(asked).fit(data)
    assert (len(on_workers.stats_) == 5) == (landmarks != "random"), "k-means needs passes over all rows here"
    with dask.config.set(scheduler="synchronous"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("dkl.passes.backends.current_client", lambda: None)
        alone = clone(asked).fit(data)
    assert bits_of(alone) == bits_of(on_workers)
    counts = np.unique(alone.landmark_classes_, return_counts=True)[1]
    assert landmarks == "kmeans-joint" or sorted(counts.tolist()) == [1] * 8 + [2] * 2, "evenly many of each class"


class Stop:
    """Breaks a fit off after so many passes."""

    def __init__(self, passes: int) -> None:
        self.left = passes

    def __call__(self, event: Event) -> None:
        if event.name == "rounds" and event.kind == "advanced":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize("passes", [1, 2, 3, 4, 5])
def test_a_fit_that_was_broken_off_resumes_to_the_same_bits(passes: int, digits: Any, tmp_path: Path) -> None:
    asked = learner(scaling="standard", rounds=2)
    whole = clone(asked).fit(*digits)
    assert len(whole.stats_) == 5
    broken = clone(asked).set_params(checkpoint=str(tmp_path / "run"), progress=Stop(passes))
    with pytest.raises(KeyboardInterrupt):
        broken.fit(*digits)
    resumed = clone(asked).set_params(checkpoint=str(tmp_path / "run")).fit(*digits)
    assert len(resumed.stats_) == 5 - passes
    assert bits_of(resumed) == bits_of(whole)


def test_a_new_beta_takes_no_pass_and_is_a_fit_from_scratch(digits: Any) -> None:
    fitted = learner().fit(*digits)
    changed, fresh = fitted.with_beta(7.0), learner(beta=7.0).fit(*digits)
    assert changed.get_params() == fresh.get_params()
    np.testing.assert_array_equal(changed.weights_, fresh.weights_)
    np.testing.assert_array_equal(changed.transform(digits[0]), fresh.transform(digits[0]))
    assert fitted.beta == 1.0
    assert (changed.effective_features_ < fitted.effective_features_).all()
    with pytest.raises(ValueError, match="'beta' parameter of LandmarkFeatures"):
        fitted.with_beta(-1.0)


def test_without_beta_the_features_are_the_kernel_of_the_prior(digits: Any) -> None:
    X, y = digits
    family = Gaussian(2.0)
    fitted = learner(family=family, n_landmarks=10, n_candidates=5_000, beta=0.0, landmarks="random").fit(X, y)
    np.testing.assert_allclose(fitted.transform(X), family.kernel(X, fitted.landmarks_), atol=0.07)


def test_bandwidths_are_spread_over_the_candidates_of_each_landmark(digits: Any) -> None:
    fitted = learner(family=Gaussian(2.0), n_candidates=300, sigma_factors=(0.1, 10.0)).fit(*digits)
    lengths = np.linalg.norm(fitted.candidates_, axis=2)
    assert fitted.candidates_.shape == (12, 300, 64)
    assert (np.sum(lengths > np.sqrt(64) / 2.0, axis=1) == 150).all()


@every_placement
def test_a_class_of_weight_zero_has_no_landmarks_and_factors_are_weights_of_rows(landmarks: Any, digits: Any) -> None:
    X, codes = digits[0], np.searchsorted(np.unique(digits[1]), digits[1]) % 3
    asked = learner(landmarks=landmarks, family=Gaussian(2.0), dtype="float64")
    without = clone(asked).set_params(class_weight={1: 0}).fit(X, codes)
    assert set(without.landmark_classes_.tolist()) == {0, 2}
    by_class = clone(asked).set_params(class_weight={0: 2.0}).fit(X, codes)
    assert by_class.total_weight_ == len(X) + np.sum(codes == 0)


@pytest.mark.parametrize("sampling", ["iid", "structured"])
def test_shared_candidates_are_the_same_ones_of_every_landmark(sampling: Any, digits: Any) -> None:
    pool = Gaussian(2.0, sampling=sampling).draw(30, 64, 0)
    rng = np.random.default_rng(0)
    angles, weights = rng.uniform(0.0, 60.0, (7, 30)), rng.dirichlet(np.full(30, 0.01), 7)
    shared = similarity_map(pool, angles, weights, "float64", shared=True)
    own = similarity_map(pool.take(np.tile(np.arange(30), 7)), angles, weights, "float64")
    assert shared.n_angles < 30, "weights near 0 are left out"
    X = digits[0]
    mapped = map_rows(X, shared, "float64")
    np.testing.assert_allclose(mapped, map_rows(X, own, "float64"), atol=1e-12)
    np.testing.assert_array_equal(np.concatenate([map_rows(X[:1], shared, "float64"), mapped[1:]]), mapped)
    both = shared.joined(shared.take(np.array([4, 1])))
    np.testing.assert_allclose(map_rows(X, both, "float64"), mapped[:, [*range(7), 4, 1]], atol=1e-12)
    with pytest.raises(ValueError, match="others of their kind only"):
        shared.joined(own)


def test_every_class_has_as_many_landmarks_and_a_small_class_gives_all_its_rows() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 3)), np.repeat([0, 1, 2], [4, 100, 196])
    for landmarks in ("random", "kmeans"):
        fitted = learner(n_landmarks=30, landmarks=landmarks).fit(X, y)
        assert np.bincount(fitted.landmark_classes_).tolist() == [4, 10, 10]
        assert fitted.transform(X).shape == (300, 24)


def test_random_landmarks_carry_a_bound_and_centroids_say_why_they_do_not(digits: Any) -> None:
    X, y = digits[0], np.isin(digits[1], ["a", "b", "c"])
    fitted = learner(landmarks="random", n_candidates=64).fit(X, y)
    (bound,) = fitted.bounds_
    assert bound.value.shape == (12,)
    np.testing.assert_allclose(bound.terms["loss"], (fitted.weights_ * fitted.losses_).sum(axis=1))
    assert bound.terms["t"] == pytest.approx(np.sqrt(600.0))
    assert (fitted.bounds(eps=0.2)[0].value < bound.value).all()
    assert fitted.with_beta(0.0).bounds_[0].terms["KL"].max() < 1e-9
    centroids = clone(fitted).set_params(landmarks="kmeans").fit(X, y)
    assert not centroids.bounds_
    assert "use landmarks='random'" in repr(centroids.bounds_)


def test_similarities_are_mapped_without_an_array_of_all_cosines() -> None:
    rng = np.random.default_rng(0)
    n, n_landmarks, n_candidates, d = 2_048, 500, 64, 20
    pool = Gaussian(2.0).draw(n_landmarks * n_candidates, d, 0)
    weights = rng.dirichlet(np.ones(n_candidates), n_landmarks)
    similar = similarity_map(pool, rng.uniform(0, 6, weights.shape), weights, "float32")
    X = rng.standard_normal((n, d)).astype(np.float32)
    map_rows(X[:8], similar)
    tracemalloc.start()
    mapped = map_rows(X, similar)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # all cosines would be 262 MB; a tile of them is 1.6, and the frequencies are brought into form once
    assert peak < mapped.nbytes + 2 * pool.projection.nbytes + (8 << 20) < n * n_landmarks * n_candidates * 4 / 10


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"n_candidates": 32}, id="own", marks=pytest.mark.slow),
        pytest.param({"n_candidates": 256, "beta": 0.1, "pool": "shared"}, id="shared"),
    ],
)
def test_a_machine_on_similarities_learns_and_is_planned_saved_and_loaded(
    given: Any, digits: Any, tmp_path: Path
) -> None:
    X, y = digits
    features = learner(n_landmarks=100, dtype="float64", **given)
    machine = dkl.KernelClassifier(features, loss="squared_hinge", solver="newton", alpha="auto", random_state=0)
    plan = dkl.plan(machine, X, y)
    assert plan.n_passes >= 3
    assert plan.peak_bytes > 0
    machine.fit(X[:450], y[:450])
    assert machine.score(X[450:], y[450:]) > 0.87
    machine.save(tmp_path / "model.zarr")
    loaded = dkl.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.decision_function(X), machine.decision_function(X))
    assert repr(loaded.features_.with_beta(2.0).feature_map_.n_features) == "100"
    apart = model_of(machine)
    waves = map_rows(X, apart.feature_map, "float64") @ apart.coef.T + apart.intercept
    np.testing.assert_allclose(waves, machine.decision_function(X), atol=1e-10)
    # the decision values of a logistic regression are those of its probabilities
    scaled = waves / machine.temperature_
    np.testing.assert_allclose(machine.to_sklearn().decision_function(X), scaled, atol=1e-8)


def test_landmarks_are_named_and_learned_by_epochs(digits: Any) -> None:
    X, y = digits
    # pixels have one unit, and lose by being scaled
    by_epochs = dkl.KernelClassifier("landmarks", scaling=None, random_state=0).fit(X[:450], y[:450])
    assert by_epochs.score(X[450:], y[450:]) > 0.87


@pytest.mark.usefixtures("small_samples")
@pytest.mark.parametrize(
    "given", [{"landmarks": "random"}, {"rounds": 1}, {"rounds": 0}, {"scaling": None, "family": Gaussian(3.0)}]
)
def test_a_plan_counts_the_passes_that_a_fit_takes(given: dict[str, Any], digits: Any) -> None:
    asked = learner(**{"scaling": "standard", "rounds": 3, **given})
    planned = asked.planned_passes(as_dataset(*digits))
    fitted = asked.fit(*digits)
    assert len(fitted.stats_) <= sum(calls for _, calls in planned)
    assert {one.name for one in fitted.stats_} == {" + ".join(r.name for r in records) for records, _ in planned}


@pytest.mark.parametrize(("pool", "landmarks"), [("own", "kmeans"), ("shared", "random")])
def test_a_plan_counts_what_the_driver_holds(pool: Any, landmarks: Any, digits: Any) -> None:
    X, y = digits
    size = 2_000 if pool == "shared" else 64
    asked = learner(n_landmarks=400, n_candidates=size, pool=pool, landmarks=landmarks, family=Gaussian(2.0))
    planned = dkl.plan(asked, X, y).peak_bytes
    asked.fit(X, y)
    tracemalloc.start()
    asked.fit(X, y)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < planned
    assert sum(dkl.plan(asked, X, y).held.values()) < 3 * peak


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_landmarks": 0}, "'n_landmarks' parameter of LandmarkFeatures"),
        ({"n_candidates": 0}, "'n_candidates' parameter of LandmarkFeatures"),
        ({"beta": -1.0}, "'beta' parameter of LandmarkFeatures"),
        ({"landmarks": "corners"}, "'landmarks' parameter of LandmarkFeatures"),
        ({"pool": "other"}, "'pool' parameter of LandmarkFeatures"),
        ({"rounds": -1}, "'rounds' parameter of LandmarkFeatures"),
        ({"family": ArcCosine(1)}, "LandmarkFeatures needs a family of Fourier features"),
        ({"sigma_factors": (1.0, -1.0)}, "'sigma_factors' parameter of LandmarkFeatures"),
    ],
)
def test_what_has_no_meaning_is_refused_before_any_pass(given: dict[str, Any], message: str, digits: Any) -> None:
    asked = learner(**given)
    with pytest.raises(ValueError, match=message):
        asked.fit(*digits)
    assert not getattr(asked, "stats_", [])


def test_targets_that_are_numbers_are_refused(digits: Any) -> None:
    with pytest.raises(ValueError, match=r"LandmarkFeatures learns from class labels.*use AlignedFeatures"):
        learner().fit(digits[0], digits[0][:, 20] + 0.5)


def test_maps_of_another_kind_are_not_joined_with_similarities(digits: Any) -> None:
    fitted = learner().fit(*digits)
    plain = Gaussian(1.0).draw(3, 64, 0)
    with pytest.raises(ValueError, match="cannot be joined"):
        fitted.feature_map_.joined(plain)
    with pytest.raises(ValueError, match="joined with similarities"):
        fitted.feature_map_.projection.joined(plain.projection)
    with pytest.raises(TypeError, match="needs a LandmarkProjection"):
        map_rows(digits[0], FeatureMap("landmarks", plain.projection, np.ones(3)))
