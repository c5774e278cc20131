"""LeverageFeatures: scores of the rows alone, by whichever route; models, plans, stores and clusters take it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from dkl.data.create import create_dataset
from dkl.data.dataset import Dataset
from dkl.features.families import ArcCosine, Coordinates, Gaussian, Laplacian
from dkl.features.harmonics import SphericalHarmonics
from dkl.kernels.maps import map_rows
from dkl.methods.leverage import learner as leverage
from dkl.methods.leverage.dictionary_driver import DictionaryDriver
from dkl.methods.leverage.driver import GramDriver, RowsDriver
from dkl.methods.leverage.learner import LeverageFeatures
from dkl.model_io import load_model
from dkl.planning import plan
from dkl.testing.learners import check_learner
from dkl.testing.synthetic import disc_and_annulus

FAMILIES = [Gaussian(1.5), Gaussian(1.5, pairing="phase"), Gaussian(1.5, sampling="structured"), Laplacian(2.0)]
FAMILIES += [ArcCosine(1), Coordinates()]


def dense_scores(learner: LeverageFeatures, X: Any, weight: np.ndarray | None = None) -> np.ndarray:
    """The printed formula with whole matrices."""
    pool = learner.pool_
    scale = learner.family_.feature_scale(pool.n_columns) / np.sqrt(pool.n_frequencies)
    weight = np.ones(X.shape[0]) if weight is None else weight
    features = map_rows(X, pool, "float64") * scale
    gram = (features.T * weight) @ features / weight.sum()
    whole = gram @ np.linalg.inv(gram + learner.mu * np.eye(len(gram)))
    return np.diag(whole).reshape(pool.columns_a_frequency, -1).sum(axis=0)


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((300, 6)).astype(np.float32)


def learner(**parameters: Any) -> LeverageFeatures:
    return LeverageFeatures(**{"n_candidates": 60, "n_features": 12, "random_state": 0, **parameters})


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
@pytest.mark.parametrize("storage", ["dense", "sparse"])
def test_scores_are_those_of_the_dense_formula_for_any_family(family: Any, storage: str, rows: np.ndarray) -> None:
    size = None if isinstance(family, Coordinates) else 60
    X = rows * (rows > 0)
    fitted = learner(family=family, n_candidates=size, scaling="standard").fit(
        sparse.csr_array(X) if storage == "sparse" else X
    )
    expected = dense_scores(fitted, X)
    np.testing.assert_allclose(fitted.scores_, expected, rtol=1e-4)
    np.testing.assert_allclose(fitted.weights_, expected / expected.sum(), rtol=1e-4)
    assert fitted.degrees_of_freedom_ == pytest.approx(expected.sum(), rel=1e-4)
    assert fitted.coherence_ == pytest.approx(len(expected) * expected.max() / expected.sum(), rel=1e-4)
    assert fitted.score_error_ == 0.0
    assert fitted.candidates_.shape[0] == len(fitted.scores_)


def test_the_smaller_dimension_is_solved_and_both_agree(rows: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    through_features = learner(n_candidates=40).fit(rows)
    through_rows = learner(n_candidates=400).fit(rows)
    assert isinstance(through_features._pass_results[0], GramDriver)
    assert isinstance(through_rows._pass_results[0], RowsDriver)
    for fitted in (through_features, through_rows):
        np.testing.assert_allclose(fitted.scores_, dense_scores(fitted, rows), rtol=1e-4)
    monkeypatch.setattr(leverage, "EXACT_SIZE", 50)
    approximated = learner(n_candidates=400).fit(rows)
    assert isinstance(approximated._pass_results[0], DictionaryDriver)
    np.testing.assert_allclose(approximated.scores_, through_rows.scores_, rtol=1e-3)
    assert 0.0 <= approximated.score_error_ < 1e-3


def test_both_sides_large_are_approximated_below_the_exact_scores(
    rows: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = learner(n_candidates=400, family=Gaussian(1.0)).fit(rows)
    monkeypatch.setattr(leverage, "EXACT_SIZE", 50)
    monkeypatch.setattr("dkl.methods.leverage.dictionary_driver.DICTIONARY_COLUMNS", 200)
    found = learner(n_candidates=400, family=Gaussian(1.0)).fit(rows)
    assert (found.scores_ <= exact.scores_ * (1.0 + 1e-4)).all()
    assert 0.5 * np.abs(found.weights_ - exact.weights_).sum() <= found.score_error_ < 1.0
    with pytest.raises(ValueError, match="approximated at mu"):
        found.with_mu(1e-2)
    assert found.with_mu(n_features=4).transform(rows).shape[1] <= 4


def test_targets_do_not_matter(rows: np.ndarray) -> None:
    alone = learner().fit(rows)
    with_labels = learner().fit(rows, np.arange(300) % 3)
    np.testing.assert_array_equal(alone.transform(rows), with_labels.transform(rows))


def test_weights_are_repetitions(rows: np.ndarray) -> None:
    weight = np.random.default_rng(1).integers(0, 4, len(rows))
    for size in (40, 400):
        weighted = learner(n_candidates=size, family=Gaussian(2.0)).fit(rows, sample_weight=weight)
        repeated = learner(n_candidates=size, family=Gaussian(2.0)).fit(np.repeat(rows, weight, axis=0))
        np.testing.assert_allclose(weighted.scores_, repeated.scores_, rtol=1e-5)
        np.testing.assert_allclose(weighted.scores_, dense_scores(weighted, rows, weight), rtol=1e-4)
        np.testing.assert_allclose(weighted.transform(rows), repeated.transform(rows), rtol=1e-5)


def test_a_share_of_the_rows_or_a_number_of_them_is_used(rows: np.ndarray) -> None:
    share = learner(n_rows=0.3, n_candidates=400).fit(rows)
    number = learner(n_rows=90, n_candidates=400).fit(rows)
    assert share.n_rows_ == number.n_rows_ == 90
    np.testing.assert_array_equal(share.scores_, number.scores_)
    assert not np.allclose(share.scores_, learner(n_candidates=400).fit(rows).scores_, rtol=1e-3)
    assert learner(n_rows=10_000).fit(rows).n_rows_ == 300
    few_columns = learner(n_rows=90, n_candidates=20).fit(rows)
    assert isinstance(few_columns._pass_results[0], GramDriver)
    assert few_columns.scores_.sum() == pytest.approx(learner(n_candidates=20).fit(rows).scores_.sum(), rel=0.1)


def test_another_mu_number_or_weighting_reads_no_rows(rows: np.ndarray) -> None:
    fitted = learner(mu=1e-2).fit(rows)
    n_passes = len(fitted.stats_)
    other = fitted.with_mu(1e-4, n_features=20, weighted=False)
    assert len(fitted.stats_) == n_passes
    again = learner(mu=1e-4, n_features=20, weighted=False).fit(rows)
    np.testing.assert_array_equal(other.scores_, again.scores_)
    np.testing.assert_array_equal(other.transform(rows), again.transform(rows))
    assert fitted.mu_ == 1e-2
    np.testing.assert_array_equal(learner(mu=1e-2).fit(rows).scores_, fitted.scores_)
    assert fitted.with_mu(n_features=4).transform(rows).shape[1] <= 4


def test_amplitudes_undo_the_draw_or_are_alike(rows: np.ndarray) -> None:
    weighted = learner(n_features=2, family=Gaussian(1.0)).fit(rows)
    (place,) = np.flatnonzero((weighted.candidates_ == weighted.frequencies_[0]).all(axis=1))
    expected = 1.0 / np.sqrt(60 * weighted.weights_[place])
    assert weighted.feature_map_.amplitudes == pytest.approx([expected])
    assert weighted.with_mu(weighted=False).feature_map_.amplitudes == pytest.approx([1.0])


def test_the_pool_has_100_candidates_a_feature_unless_told() -> None:
    X, _ = disc_and_annulus(100, seed=0)
    assert len(LeverageFeatures(n_features=10, random_state=0).fit(X).scores_) == 500
    assert LeverageFeatures(n_features=1_000)._pool_size(Gaussian()) == 10_000
    sphere = X / np.linalg.norm(X, axis=1, keepdims=True)
    harmonics = LeverageFeatures(SphericalHarmonics(3), n_features=7, random_state=0).fit(
        np.c_[sphere, 0 * sphere[:, 0]]
    )
    assert len(harmonics.scores_) == SphericalHarmonics(3).size(3)
    assert harmonics.transform(np.c_[sphere, 0 * sphere[:, 0]]).shape[1] <= 7


def test_what_models_rely_on_holds() -> None:
    check_learner(LeverageFeatures(n_candidates=50, n_features=20), n_rows=120)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"mu": 0.0}, r"'mu' parameter of LeverageFeatures .*Got 0.0"),
        ({"n_rows": 0}, "'n_rows' parameter of LeverageFeatures"),
        ({"n_rows": 1.5}, "'n_rows' parameter of LeverageFeatures"),
        ({"n_features": 1}, "n_features.*at least 2"),
        ({"n_candidates": 0}, "'n_candidates' parameter of LeverageFeatures"),
        ({"weighted": "yes"}, "'weighted' parameter of LeverageFeatures"),
    ],
)
def test_parameters_without_a_meaning_are_refused(parameters: dict[str, Any], message: str, rows: np.ndarray) -> None:
    with pytest.raises(ValueError, match=message):
        learner(**parameters).fit(rows)


def test_rows_of_zeros_have_no_leverage() -> None:
    with pytest.raises(ValueError, match="all candidate features are 0 on the rows"):
        learner(family=Coordinates(), n_candidates=None).fit(np.zeros((20, 3)))


def test_a_saved_learner_maps_alike_and_says_why_it_has_no_other_mu(rows: np.ndarray, tmp_path: Path) -> None:
    fitted = learner().fit(rows)
    fitted.save(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(rows), fitted.transform(rows))
    np.testing.assert_array_equal(loaded.scores_, fitted.scores_)
    smaller = loaded.with_mu(n_features=4)
    np.testing.assert_array_equal(smaller.transform(rows), fitted.with_mu(n_features=4).transform(rows))
    with pytest.raises(ValueError, match=r"fit it again with mu=0\.01"):
        loaded.with_mu(0.01)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3_000, 8)).astype(np.float32)
    folder = tmp_path_factory.mktemp("store")
    return create_dataset(str(folder / "rows.zarr"), X, sample_weight=rng.integers(0, 3, 3_000), rows_a_block=256)


def bits_of(fitted: LeverageFeatures) -> list[bytes]:
    return [array.tobytes() for array in (fitted.scores_, fitted.frequencies_, fitted.feature_map_.amplitudes)]


@pytest.mark.parametrize("size", [60, 300], ids=["features", "rows"])
def test_processes_threads_and_one_thread_give_the_same_bits(size: int, dataset: Dataset, client: Any) -> None:
    unfitted = learner(n_candidates=size, n_rows=400 if size == 300 else None, scaling="standard", progress=False)
    on_processes = bits_of(clone(unfitted).fit(dataset))
    with dask.config.set(scheduler="synchronous"):
        assert bits_of(clone(unfitted).fit(dataset)) == on_processes
    with dask.config.set(scheduler="threads", num_workers=3):
        assert bits_of(clone(unfitted).fit(dataset)) == on_processes


@pytest.mark.parametrize("stopped_after", [1, 2])
def test_a_fit_that_was_broken_off_ends_with_the_same_bits(
    stopped_after: int, dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a dictionary, whose two sweeps are the only search here of many passes."""
    monkeypatch.setattr(leverage, "EXACT_SIZE", 100)
    monkeypatch.setattr("dkl.methods.leverage.dictionary_driver.LARGEST_ACCUMULATOR", 8 * 400 * 100)
    unfitted = learner(n_candidates=200, n_rows=1_000, family=Gaussian(3.0))
    whole = bits_of(clone(unfitted).fit(dataset))
    step, calls = DictionaryDriver.step, []

    def broken(self: Any, *arguments: Any) -> Any:
        if len(calls) == stopped_after:
            raise KeyboardInterrupt
        calls.append(1)
        return step(self, *arguments)

    monkeypatch.setattr(DictionaryDriver, "step", broken)
    kept = clone(unfitted).set_params(checkpoint=str(tmp_path / "run"))
    with pytest.raises(KeyboardInterrupt):
        clone(kept).fit(dataset)
    monkeypatch.setattr(DictionaryDriver, "step", step)
    assert bits_of(clone(kept).fit(dataset)) == whole


@pytest.mark.parametrize("size", [60, 300, 301])
def test_a_plan_counts_the_passes_that_run(size: int, dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leverage, "EXACT_SIZE", 200 if size == 301 else 8_000)
    monkeypatch.setattr("dkl.methods.leverage.dictionary_driver.DICTIONARY_COLUMNS", 100)
    unfitted = learner(n_candidates=size, n_rows=400, n_features=20, scaling="standard")
    fitted = clone(unfitted).fit(dataset)
    found = plan(unfitted, dataset)
    assert found.n_passes == len(fitted.stats_)
    kinds = {GramDriver: "Gram matrix", RowsDriver: "row sample", DictionaryDriver: "products with the dictionary"}
    assert kinds[type(fitted._pass_results[0])] in repr(found)
