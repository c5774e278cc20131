"""A fit that kept its sums takes appended and dropped blocks by reading these alone, with the bits of a new fit."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dask.distributed import Client, LocalCluster
from sklearn.base import clone

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset
from dkl.features.families import Gaussian
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.density.joint_learner import JointFeatures
from dkl.methods.density.learner import TunedClassifier, TunedRegressor
from dkl.methods.landmarks.learner import LandmarkFeatures
from dkl.methods.leverage.learner import LeverageFeatures
from dkl.methods.margin.learner import MarginFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.model_io import load_model
from dkl.passes.kept_sums import KeptSums
from dkl.planning import plan

RNG = np.random.default_rng(0)
X = RNG.normal(size=(210, 3)).astype(np.float32)
LABELS = np.where(np.sin(2.0 * X[:, 0]) + 0.1 * RNG.normal(size=210) > 0, "up", "down")
NUMBERS = 1e4 + np.sin(2.0 * X[:, 0]).astype(np.float64)

CASES: dict[str, tuple[Any, np.ndarray]] = {
    "aligned": (AlignedFeatures, LABELS),
    "posterior": (PosteriorFeatures, LABELS),
    "numbers": (AlignedFeatures, NUMBERS),
}


def learner(case: str, **changes: Any) -> Any:
    given = {"family": Gaussian(sigma=1.0), "n_candidates": 64, "n_features": 20, "random_state": 0, "progress": False}
    return CASES[case][0](**{**given, **changes})


def store(folder: Path, y: np.ndarray, **options: Any) -> Dataset:
    return create_dataset(folder / "rows.zarr", X[:150], y[:150], rows_a_block=20, **options)


def values_of(fitted: Any) -> np.ndarray:
    return fitted.alignment_ if hasattr(fitted, "alignment_") else fitted.losses_


def assert_same(updated: Any, fitted: Any) -> None:
    assert np.array_equal(values_of(updated), values_of(fitted))
    assert np.array_equal(updated.weights_, fitted.weights_)
    assert np.array_equal(updated.feature_map_.amplitudes, fitted.feature_map_.amplitudes)
    assert np.array_equal(updated.frequencies_, fitted.frequencies_)
    assert updated.total_weight_ == fitted.total_weight_


@pytest.fixture
def blocks_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The identities of blocks whose sums were computed and kept, which takes their rows."""
    written: list[str] = []
    write = KeptSums.write

    def counted(self: KeptSums, identity: str, sums: Any) -> None:
        written.append(identity)
        write(self, identity, sums)

    monkeypatch.setattr(KeptSums, "write", counted)
    return written


@pytest.mark.parametrize("case", CASES)
def test_an_update_reads_the_blocks_that_changed_and_has_the_bits_of_a_new_fit(
    tmp_path: Path, case: str, blocks_read: list[str]
) -> None:
    y = CASES[case][1]
    ds = store(tmp_path, y)
    fitted = learner(case, sums=tmp_path / "sums").fit(ds)
    assert_same(fitted, learner(case).fit(ds))
    assert len(blocks_read) == ds.source.n_blocks == 8
    for change, changed in (
        (lambda ds: ds.append(X[150:], y[150:]), 3),
        (lambda ds: ds.drop(blocks=[2, 9]), 0),
        (lambda ds: ds.drop([25, 26, 45, 60]), 3),
    ):
        ds = change(ds)
        blocks_read.clear()
        assert_same(fitted.update(ds), learner(case).fit(ds))
        assert len(blocks_read) == changed
    assert sum(one.rows for one in fitted.stats_) < 100


def test_an_update_of_a_split_reads_only_what_joined_it(tmp_path: Path, blocks_read: list[str]) -> None:
    ds = store(tmp_path, LABELS, sample_weight=RNG.integers(0, 3, 150)).split({"train": 0.8, "test": 0.2})
    fitted = learner("aligned", sums=str(tmp_path / "sums")).fit(ds["train"])
    blocks_read.clear()
    ds = ds.append(X[150:], LABELS[150:], split="train")
    assert_same(fitted.update(ds["train"]), learner("aligned").fit(ds["train"]))
    assert len(blocks_read) == 3


def test_losses_around_landmarks_are_updated_and_the_landmarks_stay(tmp_path: Path, blocks_read: list[str]) -> None:
    ds = store(tmp_path, LABELS)
    options = {"family": Gaussian(sigma=1.0), "n_landmarks": 6, "n_candidates": 8, "random_state": 0, "progress": False}
    fitted = LandmarkFeatures(**options, sums=tmp_path / "sums").fit(ds)
    more = ds.append(X[150:], LABELS[150:])
    anew = LandmarkFeatures(**options, sums=tmp_path / "other").fit(ds)
    anew.set_params(sums=str(tmp_path / "empty")).update(more)
    blocks_read.clear()
    fitted.update(more)
    assert len(blocks_read) == 3
    assert np.array_equal(fitted.losses_, anew.losses_)
    mapped = anew.transform(X)
    assert np.array_equal(fitted.transform(X), mapped)


def test_scaler_bandwidth_and_candidates_stay_those_of_the_fit(tmp_path: Path) -> None:
    ds = store(tmp_path, LABELS)
    fitted = learner("aligned", family=None, scaling="standard", sums=tmp_path / "sums").fit(ds)
    before = fitted.family_, fitted.scaler_, fitted.candidates_
    fitted.update(ds.append(X[150:], LABELS[150:]))
    assert (fitted.family_, fitted.scaler_) == before[:2]
    assert np.array_equal(fitted.candidates_, before[2])


def test_balanced_weights_change_with_the_classes_and_all_blocks_are_read(
    tmp_path: Path, blocks_read: list[str]
) -> None:
    ds = store(tmp_path, LABELS)
    fitted = learner("aligned", class_weight="balanced", sums=tmp_path / "sums").fit(ds)
    ds = ds.append(X[150:], LABELS[150:])
    assert_same(fitted.update(ds), learner("aligned", class_weight="balanced").fit(ds))
    assert len(blocks_read) == 8 + 11


def test_sums_that_were_cut_short_are_computed_again(tmp_path: Path) -> None:
    ds = store(tmp_path, LABELS)
    fitted = learner("aligned", sums=tmp_path / "sums").fit(ds)
    for file in sorted((tmp_path / "sums").rglob("*.dkl"))[:3]:
        file.write_bytes(file.read_bytes()[:-7])
    assert_same(clone(fitted).fit(ds), fitted)


def test_a_loaded_model_and_workers_update_to_the_same_bits(tmp_path: Path) -> None:
    ds = store(tmp_path, LABELS)
    learner("aligned", sums=tmp_path / "sums").fit(ds).save(tmp_path / "model.zarr")
    more = ds.append(X[150:], LABELS[150:])
    loaded = load_model(tmp_path / "model.zarr")
    with pytest.raises(ValueError, match=r"set_params\(sums='folder'\)"):
        loaded.update(more)
    loaded.set_params(sums=str(tmp_path / "sums"), progress=False)
    with LocalCluster(n_workers=2, processes=False, dashboard_address=None) as cluster, Client(cluster):
        loaded.update(more)
    assert_same(loaded, learner("aligned").fit(more))


def test_a_machine_is_updated_with_its_features(tmp_path: Path) -> None:
    ds = store(tmp_path, LABELS)
    features = learner("aligned", sums=tmp_path / "sums")
    options = {"loss": "squared_hinge", "solver": "newton", "random_state": 0, "progress": False}
    machine = KernelClassifier(features, **options).fit(ds)
    more = ds.append(X[150:], LABELS[150:])
    assert machine.update(more) is machine
    assert machine.provenance_.fingerprint == more.fingerprint
    KernelClassifier(features, **options).fit(ds).save(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr").set_params(features__sums=str(tmp_path / "sums")).update(more)
    assert np.array_equal(loaded.linear_.coef_, machine.linear_.coef_)
    whole = KernelClassifier(learner("aligned"), **options).fit(more)
    assert_same(machine.features_, whole.features_)
    assert np.array_equal(machine.linear_.coef_, whole.linear_.coef_)


def test_leverage_is_updated_by_the_matrices_of_the_blocks_that_changed(tmp_path: Path, blocks_read: list[str]) -> None:
    ds = store(tmp_path, LABELS, sample_weight=RNG.integers(0, 3, 150))
    options = {
        "family": Gaussian(sigma=1.0),
        "n_candidates": 30,
        "n_features": 20,
        "random_state": 0,
        "progress": False,
    }
    learner = LeverageFeatures(**options, sums=tmp_path / "sums")
    promised = plan(learner, ds).passes[-1].memory.total
    fitted = learner.fit(ds)
    assert promised == fitted.stats_[-1].projected_bytes
    assert np.array_equal(fitted.scores_, LeverageFeatures(**options, n_rows=150).fit(ds).scores_)
    # no label has a say, so that new ones do not matter
    ds = ds.append(X[150:], LABELS[150:]).drop([25, 26, 45, 60])
    blocks_read.clear()
    fitted.update(ds)
    assert len(blocks_read) == 3 + 3
    anew = LeverageFeatures(**options, sums=tmp_path / "other").fit(ds)
    assert np.array_equal(fitted.scores_, anew.scores_)
    assert np.array_equal(fitted.with_mu(1e-2).scores_, anew.with_mu(1e-2).scores_)
    assert np.array_equal(fitted.transform(X), anew.transform(X))


@pytest.mark.parametrize("targets", [LABELS, np.stack([NUMBERS - 1e4, X[:, 1]], axis=1)], ids=["labels", "two numbers"])
def test_a_tuned_density_is_updated_from_sums_and_nothing_else(
    tmp_path: Path, targets: np.ndarray, blocks_read: list[str]
) -> None:
    machine = TunedClassifier if targets is LABELS else TunedRegressor
    options = {"n_features": 24, "family": Gaussian(sigma=1.0), "loss": "squared_error", "random_state": 0}
    ds = store(tmp_path, targets)
    fitted = machine(**options, progress=False, sums=tmp_path / "sums").fit(ds)
    later = targets[150:] if targets is LABELS else targets[150:] + 1
    more = ds.append(X[150:], later).drop(blocks=[2])
    blocks_read.clear()
    fitted.update(more)
    assert len(blocks_read) == 3
    anew = machine(**options, progress=False).fit(more)
    # numbers are summed in the units of the first fit
    equal = np.testing.assert_array_equal if targets is LABELS else partial(np.testing.assert_allclose, rtol=1e-9)
    for name in ("coef_", "density_", "intercept_", "objective_"):
        equal(getattr(fitted, name), getattr(anew, name))


SMALL = {"family": Gaussian(sigma=1.0), "random_state": 0, "progress": False}
BEGUN = {
    "hinge": TunedClassifier(24, **SMALL),
    "squared hinge": TunedClassifier(24, loss="squared_hinge", **SMALL),
    "joint": JointFeatures(n_candidates=60, n_features=None, rho=10, **SMALL),
    "joint, squared hinge": JointFeatures(n_candidates=60, n_features=None, rho=10, loss="squared_hinge", **SMALL),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if "squared" in case else pytest.mark.slow) for case in BEGUN]
)
def test_a_warm_start_comes_to_the_same_optimum_in_fewer_passes(case: str) -> None:
    anew = clone(BEGUN[case]).fit(X, LABELS)
    warm = clone(BEGUN[case]).set_params(warm_start=True).fit(X[:190], LABELS[:190]).fit(X, LABELS)
    assert np.isin(warm.frequencies_, getattr(anew, "candidates_", anew.frequencies_)).all()
    assert abs(warm.objective_ - anew.objective_) <= warm.duality_gap_ + anew.duality_gap_ + 1e-15 * anew.objective_
    assert len(warm.stats_) < len(anew.stats_)
    with pytest.raises(ValueError, match="since then these have changed: family, scaling"):
        clone(warm).fit(X, LABELS).set_params(family__sigma=2.0, scaling="unit").fit(X, LABELS)
    with pytest.raises(ValueError, match="has the classes"):
        warm.fit(X, NUMBERS > 1e4)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("kept")
    return learner("aligned", sums=folder / "sums").fit(store(folder, LABELS))


SEARCHED = MarginFeatures(n_features=4, features_per_round=2, plain_share=0.0, warm_start=True, **SMALL)


@pytest.mark.parametrize("alpha", [1e-4, pytest.param("auto", marks=pytest.mark.slow)])
def test_features_inside_a_machine_go_on_from_its_last_fit(alpha: Any, tmp_path: Path) -> None:
    alone = clone(SEARCHED).fit(X[:190], LABELS[:190]).set_params(n_features=8).fit(X, LABELS)
    options = {"loss": "squared_hinge", "solver": "newton", "alpha": alpha, "progress": False}
    machine = KernelClassifier(SEARCHED, **options, checkpoint=str(tmp_path / "run")).fit(X[:190], LABELS[:190])
    more = machine.set_params(features__n_features=8, checkpoint=None).fit(X, LABELS)
    assert np.array_equal(more.features_.points_, alone.points_)
    assert more.linear_.coef_.shape == (1, 8)
    before, seed = more.features_.points_, more.seed_
    same = more.set_params(random_state=None).fit(X, LABELS)
    assert np.array_equal(same.features_.points_, before)
    assert same.seed_ == seed


def test_features_that_were_drawn_are_none_to_go_on_from() -> None:
    options = {"loss": "squared_hinge", "solver": "newton", "alpha": 1e-4, "random_state": 0, "progress": False}
    drawn = MarginFeatures(n_features=8, plain_share=1.0, warm_start=True, **SMALL)
    machine = KernelClassifier(drawn, **options).fit(X, LABELS).set_params(features__plain_share=0.0).fit(X, LABELS)
    anew = KernelClassifier(clone(drawn).set_params(plain_share=0.0), **options).fit(X, LABELS)
    assert np.array_equal(machine.features_.points_, anew.features_.points_)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fitted, ds: fitted.set_params(sums=None).update(ds), "no sums of its blocks: fit with sums='folder'"),
        (lambda fitted, ds: fitted.update(X), "Dataset in a store"),
        (lambda fitted, ds: clone(fitted).fit(X, LABELS), "write them with dkl.create_dataset first"),
        (lambda fitted, ds: fitted.update(ds("cols", X[:, :2], LABELS)), "has 2 features"),
        (lambda fitted, ds: fitted.update(ds("other", X, NUMBERS > 1e4)), "fit all rows again"),
        (lambda fitted, ds: LeverageFeatures(sums="sums").fit(ds("wide", X, LABELS)), "at most 4,094"),
        (lambda fitted, ds: TunedClassifier(sums="sums").fit(ds("tuned", X, LABELS)), "loss='squared_error'"),
        (lambda fitted, ds: KernelClassifier("random", epochs=1).fit(X, LABELS).update(X), "Features keeps no sums"),
        (lambda fitted, ds: KernelClassifier(SEARCHED, epochs=1).fit(X, LABELS).update(X), "features__warm_start=True"),
        (lambda fitted, ds: TunedClassifier(9, epochs=1, solver="adam").fit(X, LABELS).update(X), "fit all rows again"),
        (lambda fitted, ds: TunedClassifier(9, tol=0.5).fit(X, LABELS).update(X), "more than sums.*warm_start=True"),
    ],
)  # fmt: skip
def test_an_update_that_makes_no_sense_is_refused(tmp_path: Path, kept: Any, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(copy.copy(kept), lambda name, rows, y: create_dataset(tmp_path / name, rows, y))
