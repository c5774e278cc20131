"""What the feature learners promise: the same features of the same rows in any form, and what their parameters mean."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.tokenize import tokenize
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.create import create_dataset
from dkl.errors import StoreError, TableDifferenceWarning
from dkl.features.families import ArcCosine, Cauchy, Coordinates, Gaussian, Laplacian, Matern
from dkl.machines.kernel_machines import KernelClassifier
from dkl.methods.aligned.learner import AlignedFeatures
from dkl.methods.posterior.learner import PosteriorFeatures
from dkl.methods.random_features import RandomFeatures
from dkl.solvers.kernel_alignment import maximise_alignment
from tests.definitions import selection as definition

LEARNERS = [
    RandomFeatures(n_features=40, random_state=0, progress=False),
    AlignedFeatures(n_candidates=200, n_features=40, random_state=0, progress=False),
    PosteriorFeatures(n_candidates=200, n_features=40, random_state=0, progress=False),
]
SELECTING = LEARNERS[1:]


def name_of(learner: Any) -> str:
    return type(learner).__name__


every_learner = pytest.mark.parametrize("learner", LEARNERS, ids=name_of)
selecting_learner = pytest.mark.parametrize("learner", SELECTING, ids=name_of)


@pytest.fixture(scope="module")
def rows() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_breast_cancer(return_X_y=True)
    return np.log1p(X).astype(np.float32), np.array(["benign", "malignant"])[1 - y]


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16.0, y


def values_of(learner: Any) -> np.ndarray:
    return learner.alignment_ if hasattr(learner, "alignment_") else learner.losses_


@pytest.mark.parametrize(("learner", "scaling"), list(zip(LEARNERS, [None, "standard", "quantile"], strict=True)))
def test_arrays_dask_arrays_and_stores_give_the_same_bits(
    learner: Any, scaling: Any, rows: Any, tmp_path: Path
) -> None:
    X, y = rows
    fitted = clone(learner).set_params(scaling=scaling).fit(X, y)
    stored = create_dataset(str(tmp_path / "rows.zarr"), X, y)
    columns_split = da.from_array(X, chunks=(len(X), 7))
    for other in (
        clone(fitted).fit(stored),
        clone(fitted).fit(columns_split, da.from_array(y, chunks=200)),
        clone(fitted).fit(as_dataset(X, y)),
    ):
        np.testing.assert_array_equal(other.frequencies_, fitted.frequencies_)
        np.testing.assert_array_equal(other.feature_map_.amplitudes, fitted.feature_map_.amplitudes)
        np.testing.assert_array_equal(other.transform(X), fitted.transform(X))
    lazy = fitted.transform(stored)
    assert isinstance(lazy, da.Array)
    assert lazy.dtype == np.float32
    np.testing.assert_array_equal(lazy, fitted.transform(X))
    np.testing.assert_allclose(fitted.transform(columns_split), fitted.transform(X), atol=1e-6)


@every_learner
def test_sparse_rows_are_the_dense_ones(learner: Any, digits: Any) -> None:
    X, y = digits
    dense = clone(learner).set_params(family=Gaussian(2.0)).fit(X, y)
    thin = clone(dense).fit(sparse.csr_matrix(X), y)
    np.testing.assert_array_equal(thin.frequencies_, dense.frequencies_)
    np.testing.assert_allclose(thin.transform(sparse.csr_array(X)), dense.transform(X), atol=1e-6)
    lazy = da.from_array(X, chunks=(500, -1)).map_blocks(sparse.csr_array)
    np.testing.assert_allclose(thin.transform(lazy), dense.transform(X), atol=1e-6)


@every_learner
def test_frames_are_encoded_at_fit_and_at_transform(learner: Any, rows: Any) -> None:
    X, y = rows
    frame = pd.DataFrame(X[:, :3], columns=["a", "b", "c"])
    frame["kind"] = np.where(X[:, 4] > 0.09, "u", np.where(X[:, 4] > 0.08, "v", "w"))
    fitted = clone(learner).fit(frame, y)
    assert fitted.n_features_in_ == len(fitted.feature_names_in_) == 4
    mapped = fitted.transform(frame)
    lazy = fitted.transform(dd.from_pandas(frame, npartitions=3))
    np.testing.assert_allclose(lazy.compute(), mapped, atol=1e-6)
    with pytest.warns(TableDifferenceWarning, match="columns come in another order"):
        np.testing.assert_array_equal(fitted.transform(frame[["kind", "c", "b", "a"]]), mapped)
    encoded = np.column_stack([X[:, :3], np.stack([frame["kind"] == kind for kind in "uvw"], axis=1)])
    np.testing.assert_allclose(fitted.transform(encoded.astype(np.float32)), mapped, atol=1e-6)
    with pytest.raises(ValueError, match="lacks the columns"):
        fitted.transform(frame[["a", "b", "c"]])


@selecting_learner
def test_a_weight_of_two_is_the_row_twice_and_of_zero_a_row_that_is_not_there(learner: Any, digits: Any) -> None:
    X, y = digits[0][:300], digits[1][:300]
    weights = np.random.default_rng(0).integers(0, 3, 300)
    for scaling in (None, "standard"):
        weighted = clone(learner).set_params(scaling=scaling, dtype="float64").fit(X, y, weights)
        repeated = clone(weighted).fit(np.repeat(X, weights, axis=0), np.repeat(y, weights))
        assert weighted.family_.sigma == pytest.approx(repeated.family_.sigma, rel=1e-12)
        np.testing.assert_allclose(values_of(weighted), values_of(repeated), rtol=1e-9)
        np.testing.assert_allclose(weighted.weights_, repeated.weights_, rtol=1e-8, atol=1e-15)
        np.testing.assert_allclose(weighted.frequencies_, repeated.frequencies_, rtol=1e-12)


@selecting_learner
def test_class_weights_are_weights_of_rows(learner: Any, digits: Any) -> None:
    X, y = digits[0][:300], digits[1][:300] % 3
    learner = clone(learner).set_params(family=Gaussian(2.0), dtype="float64")
    by_class = clone(learner).set_params(class_weight={0: 2, 2: 0}).fit(X, y)
    by_row = clone(learner).fit(X, y, np.array([2.0, 1.0, 1e-300])[y])
    np.testing.assert_allclose(values_of(by_class), values_of(by_row), rtol=1e-9)
    balanced = clone(learner).set_params(class_weight="balanced").fit(X, y)
    counts = np.bincount(y)
    again = clone(learner).fit(X, y, (300 / (3 * counts))[y])
    np.testing.assert_allclose(values_of(balanced), values_of(again), rtol=1e-9)


@pytest.mark.parametrize("offset", [1e5, 1e8])
def test_an_offset_of_the_targets_changes_no_alignment(offset: float) -> None:
    X, y = load_diabetes(return_X_y=True)
    learner = AlignedFeatures(n_candidates=200, n_features=40, random_state=0, progress=False)
    plain, moved = (clone(learner).fit(X, targets).alignment_ for targets in (y + 0.5, y + 0.5 + offset))
    np.testing.assert_allclose(moved, plain, rtol=1e-4, atol=1e-6 * plain.max())


def test_regression_targets_are_aligned_with() -> None:
    X, y = load_diabetes(return_X_y=True)
    y = y + 0.5
    learner = AlignedFeatures(n_candidates=100, n_features=20, dtype="float64", random_state=0).fit(X, y + 1e4)
    angles = X @ learner.candidates_.T
    features = np.stack([np.cos(angles), np.sin(angles)])
    residuals = y - y.mean()
    expected = np.square(np.einsum("pnm,n->pm", features, residuals)).sum(axis=0)
    np.testing.assert_allclose(learner.alignment_, expected, rtol=1e-6)
    assert not hasattr(learner, "classes_")


def test_weights_are_the_solution_on_the_alignments_of_the_candidates(digits: Any) -> None:
    X, y = digits
    learner = AlignedFeatures(n_candidates=300, n_features=None, rho=4.0, dtype="float64", random_state=0).fit(X, y)
    angles = X @ learner.candidates_.T
    features = np.stack([np.cos(angles), np.sin(angles)])
    sums = np.einsum("pnm,nk->pmk", features, definition.indicators(y, 10))
    expected = 2 * np.square(sums).sum(axis=(0, 2)) - np.square(sums.sum(axis=2)).sum(axis=0)
    np.testing.assert_allclose(learner.alignment_, expected, rtol=1e-8)
    np.testing.assert_array_equal(learner.weights_, maximise_alignment(learner.alignment_, 4.0))
    assert learner.divergence_ == pytest.approx(4.0, rel=1e-8)
    assert learner.effective_features_ == pytest.approx(300 / 5.0)
    kernel = learner.transform(X[:20]) @ learner.transform(X[:20]).T
    weighted = np.einsum("pim,pjm,m->ij", features[:, :20], features[:, :20], learner.weights_)
    np.testing.assert_allclose(kernel, weighted, atol=1e-10)


def test_losses_are_those_of_all_pairs_whatever_the_pairing(digits: Any) -> None:
    X, y = digits[0][:40], digits[1][:40] % 3
    for pairing in ("cos-sin", "phase"):
        family = Gaussian(3.0, pairing=pairing)
        learner = PosteriorFeatures(family, n_candidates=6, n_features=4, dtype="float64", random_state=0).fit(X, y)
        np.testing.assert_allclose(learner.losses_, definition.pair_losses(X, learner.candidates_, y), rtol=1e-9)


def test_a_similarity_of_labels_is_a_matrix_over_classes_or_a_function_of_two(rows: Any, tmp_path: Path) -> None:
    X, y = rows[0], np.array(["high", "low", "mid"])[np.arange(len(rows[0])) % 3]
    grade = {"low": 0.0, "mid": 1.0, "high": 2.0}
    by_function = AlignedFeatures(n_candidates=40, random_state=0, similarity=lambda a, b: 1 - abs(grade[a] - grade[b]))
    S = np.array([[1, -1, 0], [-1, 1, 0], [0, 0, 1]])
    learner, same = by_function.fit(X, y), clone(by_function).set_params(similarity=S).fit(X, y)
    np.testing.assert_array_equal(learner.similarity_, S)
    np.testing.assert_array_equal(learner.transform(X), same.transform(X))
    # the loss of a pair is (1 - S k) / 2, and theorem 4 is about its mean over pairs of different rows
    codes = np.unique(y, return_inverse=True)[1]
    kernel = np.cos((X[:, None] - X[None]).astype(float) @ learner.candidates_.T) @ learner.weights_
    losses = (1.0 - S[np.ix_(codes, codes)] * kernel) / 2.0
    np.fill_diagonal(losses, 0.0)
    assert learner.bounds_[0].terms["loss"] == pytest.approx(losses.sum() / (len(X) * (len(X) - 1)), rel=1e-5)
    plain = clone(by_function).set_params(similarity=2 * np.eye(3) - 1).fit(X, y)
    np.testing.assert_allclose(plain.alignment_, clone(plain).set_params(similarity=None).fit(X, y).alignment_)
    learner.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.similarity, S)
    assert repr(loaded.bounds_) == repr(learner.bounds_)


@pytest.mark.parametrize(
    ("similarity", "said"),
    [
        (np.eye(3), r"shape \(3, 3\); 2 classes"),
        ([[1, 2], [2, 1]], r"similarity of False and True is .*2.0.*must lie in \[-1, 1\]"),
        (lambda a, b: np.nan, "must lie in"),
        ([[1, 0.5], [0, 1]], r"of False and True is .*0.5.*must equal that of the two swapped"),
        ("near", "'similarity' parameter of AlignedFeatures"),
    ],
)
def test_a_similarity_that_is_none_is_refused(similarity: Any, said: str) -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    with pytest.raises(ValueError, match=said):
        AlignedFeatures(n_candidates=10, similarity=similarity).fit(X, X[:, 0] > 0)
    with pytest.raises(ValueError, match="targets are numbers"):
        AlignedFeatures(n_candidates=10, similarity=np.eye(2)).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="give the matrix of its values"):
        AlignedFeatures(n_candidates=10, similarity=lambda a, b: 1.0, checkpoint="kept").fit(X, X[:, 0] > 0)


def test_the_default_radius_is_a_two_hundredth_of_the_candidates(rows: Any) -> None:
    assert AlignedFeatures(n_candidates=400, random_state=0).fit(*rows).rho_ == 2.0


def test_a_new_radius_or_beta_takes_no_pass_and_is_a_fit_from_scratch(rows: Any) -> None:
    aligned, posterior = (clone(learner).fit(*rows) for learner in SELECTING)
    for changed, fresh in (
        (aligned.with_rho(20.0, n_features=16), clone(aligned).set_params(rho=20.0, n_features=16)),
        (aligned.with_rho(1.0, k=3, estimator="support"), clone(aligned).set_params(rho=1.0, k=3, estimator="support")),
        (posterior.with_beta(7.0), clone(posterior).set_params(beta=7.0)),
        (
            posterior.with_beta(7.0, n_features=10, estimator="support"),
            clone(posterior).set_params(beta=7.0, n_features=10, estimator="support"),
        ),
    ):
        fresh.fit(*rows)
        assert changed.get_params() == fresh.get_params()
        np.testing.assert_array_equal(changed.weights_, fresh.weights_)
        np.testing.assert_array_equal(changed.transform(rows[0]), fresh.transform(rows[0]))
    assert aligned.rho is None
    assert aligned.rho_ == 1.0
    with pytest.raises(ValueError, match="'rho' parameter of AlignedFeatures"):
        aligned.with_rho(-1.0)


@every_learner
def test_the_number_of_columns_is_an_upper_bound_and_pairs_take_two(learner: Any, rows: Any) -> None:
    for n_features in (2, 3, 41):
        fitted = clone(learner).set_params(n_features=n_features).fit(*rows)
        assert fitted.transform(rows[0]).shape[1] == fitted.feature_map_.n_features <= n_features
        assert fitted.feature_map_.n_features % 2 == 0
    with pytest.raises(ValueError, match=r"'n_features' parameter of .* must be at least 2 .* Got 1 instead"):
        clone(learner).set_params(n_features=1).fit(*rows)
    phase = clone(learner).set_params(family=Gaussian(pairing="phase"), n_features=1).fit(*rows)
    assert phase.transform(rows[0]).shape[1] == 1


@pytest.mark.parametrize(
    "family",
    [
        Gaussian(2.0),
        Gaussian(2.0, pairing="phase"),
        Gaussian(2.0, sampling="orthogonal"),
        Gaussian(2.0, sampling="structured"),
        Laplacian(10.0),
        Cauchy(3.0),
        Matern(1.5, 3.0),
        ArcCosine(1),
    ],
    ids=repr,
)
def test_plain_and_unselective_features_approximate_the_kernel(family: Any, digits: Any) -> None:
    X, y = digits[0][:30], digits[1][:30]
    kernel = family.kernel(X)
    errors = []
    for learner in (RandomFeatures(family, 8_000), AlignedFeatures(family, 4_000, None, rho=0.0)):
        Z = learner.set_params(random_state=0, dtype="float64").fit(X, y).transform(X)
        errors.append(np.sqrt(np.mean((Z @ Z.T - kernel) ** 2)) / kernel.max())
    assert max(errors) < 0.03


def test_coordinates_take_each_column_once_on_sparse_rows_too() -> None:
    rng = np.random.default_rng(0)
    X = sparse.random_array((400, 50), density=0.2, rng=rng, format="csr")
    y = (X[:, [7]].toarray().ravel() > 0.0).astype(int)
    learner = AlignedFeatures(Coordinates(), n_candidates=None, n_features=5, rho=10.0, center=True, random_state=0)
    fitted = learner.fit(X, y)
    assert fitted.alignment_.shape == (50,)
    assert fitted.alignment_.argmax() == 7
    assert fitted.transform(X).shape[1] <= 5
    assert 7 in fitted.feature_map_.projection.columns
    everything = fitted.with_rho(10.0, n_features=50)
    assert everything.transform(X).shape == (400, np.count_nonzero(fitted.weights_))


def test_one_candidate_for_each_of_many_columns_is_no_square_matrix() -> None:
    d = 200_000
    X = sparse.random_array((60, d), density=1e-4, rng=np.random.default_rng(0), format="csr")
    model = KernelClassifier(AlignedFeatures(Coordinates(), None, 20), random_state=0, progress=False)
    fitted = model.fit(X, np.arange(60) % 2).features_
    assert (fitted.candidates_ != sparse.eye_array(d, format="csr")).nnz == 0
    assert (fitted.frequencies_ != fitted.candidates_[fitted.feature_map_.projection.columns]).nnz == 0
    np.testing.assert_allclose(
        model.predictor().decision_function(X[:2].toarray()), model.decision_function(X[:2]), rtol=1e-4, atol=1e-6
    )


def test_structured_candidates_are_formed_only_when_looked_at(digits: Any) -> None:
    learner = AlignedFeatures(Gaussian(2.0, sampling="structured"), 500, 40, random_state=0).fit(*digits)
    assert learner.pool_.projection.nbytes < 500 * 64
    assert learner.candidates_.shape == (500, 64)
    kept = np.array([np.flatnonzero((learner.candidates_ == w).all(axis=1))[0] for w in learner.frequencies_])
    assert np.all(learner.weights_[kept] > 0.0)


def test_phases_stand_row_for_row_with_the_candidates(digits: Any) -> None:
    learner = AlignedFeatures(Gaussian(2.0, pairing="phase"), 50, 10, random_state=0).fit(*digits)
    assert learner.phases_.shape == learner.alignment_.shape == (50,)
    assert not hasattr(SELECTING[0], "phases_")
    assert not hasattr(AlignedFeatures(n_candidates=10, random_state=0).fit(*digits), "phases_")


def test_candidates_spread_over_several_bandwidths(digits: Any) -> None:
    learner = AlignedFeatures(Gaussian(2.0), 900, 40, sigma_factors=(0.5, 1.0, 4.0), random_state=0).fit(*digits)
    lengths = np.linalg.norm(learner.candidates_, axis=1).reshape(3, 300).mean(axis=1)
    np.testing.assert_allclose(lengths, np.sqrt(64) / (2.0 * np.array([0.5, 1.0, 4.0])), rtol=0.02)
    np.testing.assert_array_equal(
        AlignedFeatures(Gaussian(2.0), 50, 4, random_state=0).fit(*digits).candidates_,
        AlignedFeatures(Gaussian(2.0), 50, 4, sigma_factors=[1], random_state=0).fit(*digits).candidates_,
    )
    with pytest.raises(ValueError, match="sigma_factors spreads candidates"):
        AlignedFeatures(ArcCosine(1), 90, 4, sigma_factors=(1.0, 2.0)).fit(*digits)


@pytest.mark.parametrize("scaling", [None, "standard", "minmax", "unit", "quantile"])
def test_the_median_bandwidth_is_that_of_scaled_rows(scaling: Any, rows: Any) -> None:
    from dkl.kernels.scale import scale_rows

    learner = RandomFeatures(n_features=4, scaling=scaling, random_state=0).fit(rows[0])
    scaled = scale_rows(rows[0], learner.scaler_, "float64")
    assert learner.family_.sigma == pytest.approx(definition.median_distance(scaled[:150]), rel=0.05)
    assert learner.family is None
    assert RandomFeatures(Laplacian(), 4, random_state=0).fit(rows[0]).family_.sigma == pytest.approx(
        definition.median_distance(rows[0][:150].astype(float), metric="cityblock"), rel=0.1
    )


def test_kept_columns_are_not_scaled(rows: Any) -> None:
    frame = pd.DataFrame({"x": 100.0 * rows[0][:, 0], "kind": np.where(rows[1] == "benign", "b", "m")})
    learner = RandomFeatures(n_features=4, scaling="standard", random_state=0).fit(frame)
    assert learner.scaler_.passthrough.tolist() == [False, True, True]
    assert learner.scaler_.scale[1:].tolist() == [1.0, 1.0]


def test_nothing_is_read_where_nothing_is_asked(rows: Any) -> None:
    assert RandomFeatures(Gaussian(1.0), random_state=0).fit(rows[0]).stats_ == []
    assert len(RandomFeatures(scaling="standard", random_state=0).fit(rows[0]).stats_) == 1
    assert len(AlignedFeatures(Gaussian(1.0), 50, random_state=0).fit(*rows).stats_) == 1
    assert len(AlignedFeatures(None, 50, scaling="minmax", random_state=0).fit(*rows).stats_) == 2


def heavy_columns(rows: Any) -> np.ndarray:
    """Five columns of which the fourth has heavy tails."""
    X = rows[0][:, :5].copy()
    X[:, 3] = np.random.default_rng(0).standard_t(1.5, len(X))
    return X


def test_fit_hints_once_at_columns_with_heavy_tails(rows: Any) -> None:
    X = heavy_columns(rows)
    with pytest.warns(dkl.DklHint, match=r"1 of 5 columns have heavy tails \(column 3\).*scaling='quantile'") as told:
        RandomFeatures(n_features=4, random_state=0).fit(X)
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RandomFeatures(n_features=4, scaling="standard", random_state=0).fit(pd.DataFrame(X, columns=list("abcde")))


@pytest.mark.usefixtures("little_work")
def test_no_hint_is_given_where_it_was_heeded_or_inside_folds(rows: Any) -> None:
    X, y = heavy_columns(rows), rows[1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RandomFeatures(n_features=4, scaling="quantile", random_state=0).fit(X)
        machine = dkl.KernelClassifier(RandomFeatures(n_features=4), solver="newton", loss="squared_hinge")
        dkl.tune(machine, X, y, space={"alpha": [1e-3, 1e-2]}, n_trials=2, folds=2, refit=False, random_state=0)
        dkl.compare(X, y, learners=["random"], n_features=[4], random_state=0)
        dkl.KernelClassifier(effort="fast", random_state=0).fit(X, y)


@every_learner
def test_a_seed_gives_the_same_features_and_a_drawn_one_is_kept(learner: Any, rows: Any) -> None:
    drawn = clone(learner).set_params(random_state=None).fit(*rows)
    again = clone(learner).set_params(random_state=drawn.seed_).fit(*rows)
    np.testing.assert_array_equal(again.transform(rows[0]), drawn.transform(rows[0]))
    other = clone(learner).set_params(random_state=drawn.seed_ + 1).fit(*rows)
    assert not np.array_equal(other.frequencies_[:1], drawn.frequencies_[:1])
    states = [clone(learner).set_params(random_state=np.random.RandomState(3)).fit(*rows) for _ in range(2)]
    assert states[0].seed_ == states[1].seed_


@selecting_learner
def test_at_most_max_rows_are_learned_from(learner: Any, digits: Any) -> None:
    fitted = clone(learner).set_params(max_rows=200).fit(*digits)
    assert fitted.total_weight_ == 200.0
    assert all(stats.rows == 200 for stats in fitted.stats_)
    assert clone(learner).set_params(max_rows=10_000).fit(*digits).total_weight_ == len(digits[0])


def test_the_diagonal_moves_nothing_for_pairs_and_something_for_phases(digits: Any) -> None:
    for pairing in ("cos-sin", "phase"):
        family = Gaussian(2.0, pairing=pairing)
        with_it, without = (
            AlignedFeatures(family, 60, None, rho=1.0, diagonal=diagonal, random_state=0).fit(*digits)
            for diagonal in (True, False)
        )
        same = np.allclose(with_it.weights_, without.weights_, rtol=1e-9)
        assert same == (pairing == "cos-sin")


@selecting_learner
def test_a_checkpoint_returns_a_finished_fit_and_refuses_another(learner: Any, rows: Any, tmp_path: Path) -> None:
    store = str(tmp_path / "run")
    learner = clone(learner).set_params(checkpoint=store, random_state=None, scaling="standard")
    first = clone(learner).fit(*rows)
    again = clone(learner).fit(*rows)
    assert again.stats_ == []
    assert again.seed_ == first.seed_
    np.testing.assert_array_equal(again.transform(rows[0]), first.transform(rows[0]))
    with pytest.raises(StoreError, match="another run"):
        clone(learner).set_params(n_candidates=100).fit(*rows)
    with pytest.raises(StoreError, match="another run"):
        clone(learner).fit(rows[0][:-1], rows[1][:-1])


@selecting_learner
def test_a_fit_that_was_broken_off_goes_on_from_its_last_pass(
    learner: Any, rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = clone(learner).set_params(scaling="minmax").fit(*rows)
    broken = clone(whole).set_params(checkpoint=str(tmp_path / "run"))
    with monkeypatch.context() as patch:
        patch.setattr(type(broken._driver), "step", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            broken.fit(*rows)
    resumed = clone(broken).fit(*rows)
    assert [stats.name for stats in resumed.stats_] == ["potentials"]
    np.testing.assert_array_equal(resumed.transform(rows[0]), whole.transform(rows[0]))


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (AlignedFeatures(rho=-1.0), r"'rho' parameter of AlignedFeatures .*\[0.0, 1e\+100\].* Got -1.0 instead"),
        (AlignedFeatures(k=1.0), r"'k' parameter of AlignedFeatures .*Got 1.0"),
        (AlignedFeatures(n_candidates=0), r"'n_candidates' parameter of AlignedFeatures .*Got 0 instead"),
        (AlignedFeatures(n_candidates=None), "'n_candidates' parameter of AlignedFeatures is None"),
        (AlignedFeatures(estimator="all"), r"'estimator' parameter .*'auto'.*Got 'all'"),
        (AlignedFeatures(sigma_factors=(1.0, -2.0)), r"'sigma_factors' parameter .*positive"),
        (AlignedFeatures(Gaussian(sigma=0.0)), "Gaussian: sigma is 0.0"),
        (AlignedFeatures(Gaussian(sampling="grid")), "sampling is 'grid'"),
        (AlignedFeatures("rbf"), "'family' parameter of AlignedFeatures"),
        (AlignedFeatures(class_weight={"unknown": 2.0}), "class_weight names the class 'unknown'.*benign"),
        (AlignedFeatures(class_weight={"benign": -2.0}), "class_weight.'benign'. must be a finite number >= 0"),
        (AlignedFeatures(class_weight={"benign": 0, "malignant": 0}), "class_weight is 0 for every class"),
        (PosteriorFeatures(beta=-0.1), r"'beta' parameter of PosteriorFeatures .*Got -0.1"),
        (PosteriorFeatures(Coordinates()), "PosteriorFeatures needs a family of Fourier features"),
        (PosteriorFeatures(n_features=None), "'n_features' parameter of PosteriorFeatures"),
        (RandomFeatures(n_features=0), "'n_features' parameter of RandomFeatures .*Got 0"),
        (RandomFeatures(scaling="log"), r"'scaling' parameter of RandomFeatures .*'quantile'.*Got 'log'"),
        (RandomFeatures(dtype="float16"), "'dtype' parameter of RandomFeatures"),
        (RandomFeatures(max_rows=0), "'max_rows' parameter of RandomFeatures"),
        (RandomFeatures(device="tpu"), "'device' parameter of RandomFeatures"),
        (RandomFeatures(progress="yes"), "'progress' parameter of RandomFeatures"),
        (RandomFeatures(memory_limit=0), "'memory_limit' parameter of RandomFeatures"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_parameters_without_a_meaning_are_refused_by_name(learner: Any, message: str, rows: Any) -> None:
    with pytest.raises(ValueError, match=message):
        learner.fit(*rows)


def test_targets_of_the_wrong_kind_are_refused(rows: Any) -> None:
    X = rows[0]
    with pytest.raises(ValueError, match=r"AlignedFeatures requires y to be passed"):
        AlignedFeatures().fit(X)
    with pytest.raises(ValueError, match=r"PosteriorFeatures learns from class labels.*AlignedFeatures for regression"):
        PosteriorFeatures().fit(X, X[:, 0] + 0.5)
    with pytest.raises(ValueError, match="class_weight has a meaning for class labels only"):
        AlignedFeatures(class_weight="balanced").fit(X, X[:, 0] + 0.5)
    with pytest.raises(ValueError, match=r"30 features|30 columns"):
        RandomFeatures(n_features=4, random_state=0).fit(X).transform(da.from_array(X[:, :5]))


def test_what_was_learned_counts_where_models_are_told_apart(rows: Any) -> None:
    """Parameters are declared as those of dataclasses, which Dask and others know by their parameters alone."""
    fitted, others = (RandomFeatures(n_features=4, random_state=0).fit(X) for X in (rows[0], 2.0 * rows[0]))
    assert fitted.get_params() == others.get_params()
    assert tokenize(fitted) != tokenize(others)
    assert fitted != others
