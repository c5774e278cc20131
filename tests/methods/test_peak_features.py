"""PeakFeatures: what it finds, what it promises as a learner, and that a broken fit goes on where it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import RidgeClassifier

import dkl
from dkl.data.create import create_dataset
from dkl.features.families import ArcCosine, Gaussian
from dkl.features.harmonics import SphericalHarmonics
from dkl.methods.peaks.learner import PeakFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.testing.learners import check_learner

QUICK = {"chains": 40, "steps": 10, "random_state": 0, "progress": False, "plain_share": 0.0}


def rows(n: int = 3_000, d: int = 6) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).standard_normal((n, d)).astype(np.float32)
    return X, np.where(np.sin(2.5 * X[:, 1]) + np.sin(2.0 * (X[:, 3] - X[:, 4])) > 0, "yes", "no")


def formed_rows(frequencies: Any) -> np.ndarray:
    return frequencies.toarray() if sparse.issparse(frequencies) else frequencies


def bits_of(learner: PeakFeatures) -> list[bytes]:
    parts = (learner.candidate_potentials_, learner.weights_, learner.feature_map_.projection.dense())
    return [np.ascontiguousarray(part).tobytes() for part in parts]


def test_it_is_a_feature_learner() -> None:
    check_learner(PeakFeatures(n_features=10, chains=20, steps=5))


def test_main_effects_and_interactions_are_read_off_the_sparse_frequencies() -> None:
    X, y = rows()
    learner = PeakFeatures(n_features=8, random_state=0, chains=300, plain_share=0.0).fit(X, y)
    frequencies = learner.frequencies_
    assert sparse.issparse(frequencies)
    dense = np.asarray(frequencies.toarray())
    effect = dense[np.argmax(np.abs(dense[:, 1]))]
    np.testing.assert_allclose(np.abs(effect[1]), 2.5, atol=0.3)
    interaction = dense[np.argmax(np.abs(dense[:, 3]))]
    np.testing.assert_allclose(np.abs(interaction[[3, 4]]), 2.0, atol=0.4)
    assert interaction[3] * interaction[4] < 0


def test_its_attributes_fit_together() -> None:
    X, y = rows()
    learner = PeakFeatures(n_features=12, **QUICK).fit(X, y)
    m = learner.feature_map_.n_frequencies
    assert learner.transform(X).shape == (len(X), 2 * m)
    kept = np.flatnonzero(learner.weights_)
    assert len(kept) == m <= 6
    assert learner.candidates_.shape == (len(learner.candidate_potentials_), 6)
    np.testing.assert_array_equal(np.sort(learner.candidate_potentials_[kept])[::-1], learner.potentials_)
    assert np.all(np.diff(learner.potentials_) <= 0)
    assert learner.potentials_.max() <= 1.0
    np.testing.assert_allclose(learner.feature_map_.amplitudes**2, 1.0 / m)
    assert learner.sample_rows_ == 3_000
    assert learner.message_.startswith(f"{m} peaks, searched on 3000 rows in 2 passes")
    assert [stats.name for stats in learner.stats_][-2:] == ["rows to search on", "verification"]


def test_potentials_are_those_of_all_rows() -> None:
    X, y = rows(800)
    learner = PeakFeatures(Gaussian(2.0), n_features=6, search_rows=200, dtype="float64", **QUICK).fit(X, y)
    s = (y == "yes") - np.mean(y == "yes")
    v = np.abs(s @ np.exp(1j * X @ learner.feature_map_.projection.dense().T)) ** 2
    pairs = np.sum(np.abs(s)) ** 2 - np.sum(s**2)
    np.testing.assert_allclose(learner.potentials_, (v - np.sum(s**2)) / pairs, rtol=1e-5)


def test_fewer_distinct_peaks_than_asked_for_are_said_so() -> None:
    X, y = rows(500)
    learner = PeakFeatures(n_features=400, **QUICK).fit(X, y)
    assert learner.feature_map_.n_features < 400
    assert "200 were asked for: more chains" in learner.message_


def test_plain_draws_fill_up_what_peaks_leave() -> None:
    X, y = rows(500)
    learner = PeakFeatures(n_features=60, **{**QUICK, "plain_share": 0.5}).fit(X, y)
    assert learner.feature_map_.n_features == 60
    assert 1 <= learner.n_peaks_ <= 15
    W = learner.feature_map_.projection.dense()
    plain = learner.family_.draw(30, 6, learner.seed_).projection.dense()
    assert {row.tobytes() for row in W[learner.n_peaks_ :]} <= {row.tobytes() for row in plain}
    assert learner.potentials_[0] > 2 * learner.potentials_[learner.n_peaks_ :].max()


@pytest.mark.parametrize("method", ["langevin", "quasi-newton"])
def test_fewer_features_are_needed_than_of_plain_ones(method: Any) -> None:
    X, y = rows(4_000, 12)
    train, test = slice(0, 3_000), slice(3_000, None)

    def accuracy(learner: Any) -> float:
        Z = learner.fit(X[train], y[train]).transform(X)
        return RidgeClassifier(alpha=0.1).fit(Z[train], y[train]).score(Z[test], y[test])

    ours = accuracy(PeakFeatures(n_features=20, method=method, chains=100, random_state=0))
    plain = accuracy(RandomFeatures(n_features=200, random_state=0))
    assert ours > plain + 0.05


def test_several_classes_and_numbers_have_peaks_too() -> None:
    X, digit = load_digits(return_X_y=True)
    classes = PeakFeatures(n_features=20, **QUICK).fit(X / 16.0, digit)
    assert len(classes.classes_) == 10
    assert classes.potentials_.max() > 0.1
    X, target = load_diabetes(return_X_y=True)
    numbers = PeakFeatures(n_features=6, scaling="standard", **QUICK).fit(X.astype(np.float32), target + 0.5)
    scaled = clone(numbers).fit(X.astype(np.float32), 1234.5678 * (target + 0.5))
    np.testing.assert_allclose(scaled.potentials_, numbers.potentials_, rtol=1e-5)
    assert numbers.potentials_[0] > 0.1


def test_sparse_rows_are_searched_as_they_are() -> None:
    X, y = rows(1_500)
    X = np.where(X > 0, X, 0.0).astype(np.float32)
    dense, stored = (PeakFeatures(Gaussian(2.0), n_features=6, **QUICK).fit(A, y) for A in (X, sparse.csr_array(X)))
    np.testing.assert_allclose(stored.potentials_, dense.potentials_, rtol=0.05)


def test_harmonics_are_chosen_on_the_sphere() -> None:
    X = np.random.default_rng(0).standard_normal((2_000, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    family = SphericalHarmonics(max_degree=6)
    learner = PeakFeatures(family, n_features=5, progress=False).fit(X, X[:, 2] * X[:, 0] > 0)
    assert learner.feature_map_.n_features == 5
    np.testing.assert_array_equal(learner.frequencies_[0], [1, 2])
    assert len(learner.stats_) == 1
    whole = PeakFeatures(SphericalHarmonics(max_degree=6, blocks="degree"), n_features=6, progress=False)
    degrees = whole.fit(X, X[:, 2] * X[:, 0] > 0).frequencies_[:, 1]
    assert list(degrees) == [2] * 5


@pytest.mark.parametrize("n_threads", [1, 3])
def test_threads_give_the_bits_of_one(n_threads: int, tmp_path: Path) -> None:
    X, y = rows(6_000)
    stored = create_dataset(str(tmp_path / "rows.zarr"), X, y, rows_a_block=512)
    learner = PeakFeatures(n_features=8, search_rows=1_000, scaling="standard", **QUICK)
    with dask.config.set(scheduler="synchronous"):
        expected = bits_of(clone(learner).fit(stored))
    with dask.config.set(num_workers=n_threads):
        assert bits_of(clone(learner).fit(stored)) == expected


def test_a_fit_that_was_broken_off_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    X, y = rows()
    learner = PeakFeatures(n_features=8, search_rows=500, **QUICK)
    whole = clone(learner).fit(X, y)
    expected, names = bits_of(whole), [stats.name for stats in whole.stats_]
    seen = []

    def stop(event: Any) -> None:
        if event.name.startswith("verification") and event.kind == "started" and not seen:
            seen.append(event)
            raise KeyboardInterrupt

    broken = clone(learner).set_params(checkpoint=str(tmp_path / "run"), progress=stop)
    with pytest.raises(KeyboardInterrupt):
        broken.fit(X, y)
    resumed = clone(broken).set_params(progress=False).fit(X, y)
    assert bits_of(resumed) == expected
    # preparation and the first sample are not read again
    assert [stats.name for stats in resumed.stats_] == names[2:]
    again = clone(resumed).fit(X, y)
    assert again.stats_ == []
    assert bits_of(again) == expected


def test_a_saved_learner_maps_to_the_same_bits(tmp_path: Path) -> None:
    X, y = rows(600)
    learner = PeakFeatures(n_features=8, scaling="quantile", **QUICK).fit(X, y)
    learner.save(str(tmp_path / "model"))
    loaded = dkl.load_model(str(tmp_path / "model"))
    np.testing.assert_array_equal(loaded.transform(X), learner.transform(X))
    assert loaded.message_ == learner.message_
    np.testing.assert_array_equal(loaded.potentials_, learner.potentials_)


def test_the_plan_has_every_pass_of_the_fit() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    learner = PeakFeatures(n_features=10, scaling="standard", **QUICK)
    planned = dkl.plan(learner, X, y)
    assert planned.n_passes >= len(clone(learner).fit(X, y).stats_) == 3
    assert planned.peak_bytes > 0
    target = np.random.default_rng(0).standard_normal(len(X))
    assert dkl.plan(learner, X, target).n_passes == planned.n_passes + 1


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"family": ArcCosine(1)}, "PeakFeatures looks for cosine-sine pairs"),
        ({"family": Gaussian(1.0, pairing="phase")}, "PeakFeatures looks for cosine-sine pairs"),
        ({"n_features": 1}, "a cosine-sine pair takes two"),
        ({"held_out": 1.0}, "held_out"),
        ({"method": "annealing"}, "method"),
        ({"stride": 0.0}, "stride"),
        ({"plain_share": 1.0}, "plain_share"),
        ({"class_weight": {"maybe": 2.0}}, "class_weight names the class 'maybe'"),
    ],
)
def test_parameters_without_meaning_are_refused(parameters: dict[str, Any], message: str) -> None:
    X, y = rows(100)
    with pytest.raises(ValueError, match=message):
        PeakFeatures(**{**QUICK, **parameters}).fit(X, y)


def test_a_warm_start_keeps_the_peaks_that_a_poorer_search_would_miss() -> None:
    X = np.random.default_rng(0).standard_normal((2_000, 6))
    y = np.sin(3.0 * X[:, 2]) > 0
    # a round of one step from few starts finds little by itself
    poor = {"chains": 2, "steps": 1, "polish": 0, "sparse_share": 0.0, "progress": False}
    learner = PeakFeatures(n_features=2, plain_share=0.0, random_state=0, progress=False).fit(X[:1_800], y[:1_800])
    begun = learner.frequencies_
    learner.set_params(warm_start=True, **poor).fit(X, y)
    assert np.array_equal(formed_rows(learner.frequencies_), formed_rows(begun))
    alone = PeakFeatures(n_features=2, plain_share=0.0, random_state=0, **poor).fit(X, y)
    assert alone.potentials_[0] < 0.5 * learner.potentials_[0]
    with pytest.raises(ValueError, match="has the classes"):
        learner.fit(X, X[:, 0].round())
