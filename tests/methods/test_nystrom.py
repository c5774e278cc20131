"""NystromFeatures: kernels at landmarks are the kernel itself there, and the kernel machine where every row is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.spatial import distance
from sklearn.datasets import make_friedman1
from threadpoolctl import threadpool_limits

import dkl
from dkl.data.coerce import as_dataset
from dkl.features.feature_map import FeatureMap
from dkl.features.nystrom_projection import NystromProjection
from dkl.kernels.generic import mapped
from dkl.kernels.landmark_tiles import KernelValues, NystromProduct
from dkl.kernels.maps import map_rows
from dkl.kernels.scale import scale_rows
from dkl.kernels.sums import feature_squares, feature_sums
from dkl.methods.nystrom.driver import (
    Landmarks,
    NystromDriver,
    NystromProblem,
    NystromState,
    choose_landmarks,
    leverage_scores,
    pivots,
    whitening_of,
)
from dkl.methods.nystrom.learner import NystromFeatures, unwritten_zeros
from dkl.methods.nystrom.ordered import text_order
from dkl.planning import plan
from dkl.protocols.block import Block
from dkl.testing import check_learner

KERNELS = [dkl.Matern(0.5, 1.3), dkl.Gaussian(1.5), dkl.Laplacian(3.0), dkl.ArcCosine(1)]
HOWS = ["uniform", "kmeans", "leverage", "rpcholesky"]


def rows(n: int = 60, d: int = 3) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((n, d))


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: type(kernel).__name__)
def test_inner_products_of_features_are_the_kernel_by_way_of_the_landmarks(kernel: Any) -> None:
    X = rows()
    learner = NystromFeatures(kernel, n_features=15, dtype="float64", random_state=0).fit(X)
    phi, Z = learner.transform(X), learner.landmarks_
    K = np.array([[kernel.kernel(x[None], z[None])[0, 0] for z in Z] for x in X])
    expected = K @ np.linalg.solve(kernel.kernel(Z) + 1e-8 * np.mean(np.diag(kernel.kernel(Z))) * np.eye(15), K.T)
    np.testing.assert_allclose(phi @ phi.T, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(learner.transform(Z) @ phi.T, kernel.kernel(Z, X), rtol=1e-5, atol=1e-5)


def test_a_landmark_at_every_row_is_the_kernel_machine_itself() -> None:
    X, y = make_friedman1(120, n_features=5, random_state=0)
    kernel = dkl.Matern(0.5, 2.0)
    model = dkl.KernelRegressor(
        NystromFeatures(kernel, n_features=120, dtype="float64"), solver="newton", alpha=0.1 / 120, random_state=0
    ).fit(X, y)
    center, scale = float(y.mean()), float(y.std())
    K = kernel.kernel(X)
    H = np.eye(120) - 1.0 / 120
    # with a free intercept: ridge on kernel columns around their mean
    dual = np.linalg.solve(H @ K @ H + 0.1 * np.eye(120), (y - center) / scale)
    expected = H @ K @ H @ dual * scale + center
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-3, atol=1e-3 * scale)


@pytest.mark.parametrize("how", HOWS)
def test_every_choice_of_landmarks_finds_different_rows_the_same_ones_each_time(how: Any) -> None:
    X = np.repeat(rows(40), 3, axis=0)
    one, two = (NystromFeatures(n_features=12, landmarks=how, random_state=0).fit(X) for _ in range(2))
    # rows drawn uniformly may be equal, and count once
    assert len(np.unique(one.landmarks_, axis=0)) == len(one.landmarks_) <= 12
    assert len(one.landmarks_) == 12 or how == "uniform"
    np.testing.assert_array_equal(one.landmarks_, two.landmarks_)
    every = NystromFeatures(n_features=120, landmarks=how, random_state=0).fit(X)
    assert len(every.landmarks_) == 40


def test_leverage_scores_are_those_of_ridge_regression() -> None:
    X, kernel = rows(80), dkl.Gaussian(1.0)
    scores = leverage_scores(X, np.ones(80), kernel, 80)
    # of whitened columns at all rows, phi phi' is the kernel matrix, so the scores are those of K (K + nu I)^-1
    K = kernel.kernel(X)
    low, high = 1e-9, 1e6
    for _ in range(200):
        nu = np.sqrt(low * high)
        low, high = (nu, high) if np.trace(K @ np.linalg.inv(K + nu * np.eye(80))) > 40 else (low, nu)
    np.testing.assert_allclose(scores, np.diag(K @ np.linalg.inv(K + nu * np.eye(80))), rtol=1e-3)


def test_pivots_are_drawn_by_what_is_left_of_the_kernel() -> None:
    X, kernel = rows(50), dkl.Gaussian(0.7)
    chosen = pivots(X, kernel, 20, np.random.default_rng(0))
    assert len(set(chosen.tolist())) == 20
    # by definition: the Schur complement of the chosen rows says what each draw was made from
    rng, K = np.random.default_rng(0), kernel.kernel(X)
    for i in range(20):
        before = chosen[:i]
        left = np.diag(K - K[:, before] @ np.linalg.pinv(K[np.ix_(before, before)]) @ K[before]) if i else np.diag(K)
        left = np.where(np.isin(np.arange(50), before), 0.0, np.maximum(left, 0.0))
        assert int(rng.choice(50, p=left / left.sum())) == chosen[i]


def test_duplicates_of_landmarks_are_no_singular_matrix() -> None:
    Z = np.vstack([rows(5), rows(5) + 1e-12])
    whitening = whitening_of(Z, dkl.Gaussian(1.0))
    assert np.isfinite(whitening).all()


@pytest.mark.parametrize("how", HOWS)
def test_landmarks_and_their_whitening_have_the_same_bits_on_one_thread_and_two(how: Landmarks) -> None:
    X, kernel, bits = rows(3_000, 6), dkl.Gaussian(2.0), set()
    for n_threads in (1, 2):
        # of BLAS and of OpenMP
        with threadpool_limits(n_threads):
            landmarks = choose_landmarks(X, np.ones(len(X)), 400, kernel, how, seed=0)
            bits.add(landmarks.tobytes() + whitening_of(landmarks, kernel).tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize("n_rows", [60, 90])
def test_a_sample_of_all_rows_has_their_weights_and_a_smaller_one_was_drawn_by_them(n_rows: int) -> None:
    X, weight = rows(), np.random.default_rng(1).integers(1, 20, 60).astype(float)
    problem = NystromProblem(dkl.Gaussian(1.5), None, 10, n_rows, 60, "kmeans", seed=0)
    sample = Block(0, X, None, weight, np.arange(60))
    found = NystromDriver().step(problem, NystromState(), [sample]).landmarks
    counted = weight if n_rows == 60 else np.ones(60)
    np.testing.assert_array_equal(found, choose_landmarks(X, counted, 10, problem.kernel, "kmeans", 0))


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
def test_sums_are_those_of_the_features(form: Any) -> None:
    X, S = form(rows().astype(np.float32)), np.random.default_rng(1).standard_normal((60, 2))
    fm = NystromFeatures(n_features=10, scaling=None, random_state=0).fit(rows().astype(np.float32)).feature_map_
    phi = map_rows(X, fm, "float64")
    np.testing.assert_allclose(feature_sums(X, S, fm, "float64")[0], phi.T @ S, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(feature_squares(X, S[:, 0], fm, "float64")[0], (phi**2).T @ S[:, 0], atol=1e-10)
    np.testing.assert_allclose(mapped(np, rows().astype(np.float32), fm, np.float64)[0], phi, rtol=1e-10, atol=1e-12)


def test_features_are_whitened_in_single_precision_only_where_its_noise_is_small() -> None:
    X, Z = rows(300, 5), rows(700, 5)[::-1]
    for kernel, precision in ((dkl.Matern(0.5, 2.0), np.float32), (dkl.Gaussian(6.0), np.float64)):
        projection = NystromProjection(kernel, Z, whitening_of(Z, kernel))
        fm = FeatureMap("nystrom", projection, np.linspace(0.5, 1.5, 700))
        product = NystromProduct(fm, np.dtype(np.float32))
        assert product.precision == precision
        expected = kernel.kernel(X, Z) @ projection.whitening * fm.amplitudes
        error = np.linalg.norm(map_rows(X, fm) - expected, axis=1) / np.linalg.norm(expected, axis=1)
        # the noise is a bound on the length of the error, of features of length 1
        assert error.max() < 5e-4
        np.testing.assert_allclose(map_rows(X, fm, "float64"), expected, rtol=1e-6, atol=1e-8)
        # panels end where the zeros of the triangle begin
        assert [last for _, last, _ in product.panels] == [128, 256, 384, 512, 640, 700]


@pytest.mark.parametrize("d", [1, 4, 7, 26])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", [*KERNELS, dkl.Matern(2.5, 2.0), dkl.Cauchy(2.0)], ids=str)
def test_values_of_a_kernel_are_its_definition(kernel: Any, dtype: str, d: int) -> None:
    """Also where all rows are far from zero, which single precision alone would not see."""
    X, Z = rows(50, d), rows(600, d)[::-1]
    for shift in (0.0, 1e5):
        # kernels of directions and lengths see where zero is
        if shift and getattr(kernel, "norm", None) is None:
            continue
        found = KernelValues(kernel, Z + shift, np.dtype(dtype))(X + shift)
        assert found.dtype == dtype
        expected = [[kernel.kernel(x[None], z[None])[0, 0] for z in Z[:40]] for x in X[::5]]
        rounded = 2e-6 if dtype == "float32" else 1e-13 if shift == 0.0 else 1e-9
        np.testing.assert_allclose(found[::5, :40], expected, atol=rounded)


def test_texts_have_an_order_where_they_are_letters_or_hold_numbers() -> None:
    assert text_order(("b", "a", "d")).tolist() == [1, 0, 2]
    assert text_order(("5-17", "18-24", "65 or more")).tolist() == [0, 1, 2]
    assert text_order(("v1.5", "v1.25", "v10")).tolist() == [1, 0, 2]
    for texts in (("yes", "no"), ("a", "B", "c"), ("a", "b", "7"), ("x1", "y1", "z2"), ("red", "green", "blue")):
        assert text_order(texts) is None


def test_ordered_categories_are_columns_of_ranks(tmp_path: Path) -> None:
    """The features are those of a table that holds the ranks as numbers, of mean 0 and variance 1 over the values."""
    generator = np.random.default_rng(0)
    codes = generator.integers(0, 4, 200)
    frame = pd.DataFrame(
        {
            "x": generator.normal(size=200),
            "size": np.array(["5-17", "18-24", "25-64", "65 or more"])[codes],
            "kind": "a",
        }
    )
    frame.loc[codes == 1, "kind"] = "b"
    y = np.sin(2.0 * codes) + frame.x
    learner = NystromFeatures(
        dkl.Laplacian(), n_features=50, scaling="standard", categories="ordered", sigma_factor=2.0, random_state=0
    )
    model = dkl.KernelRegressor(learner, solver="newton", alpha=1e-3, random_state=0).fit(frame, y)
    fitted = model.features_
    assert fitted.ordered_ == ("size",)
    ranks = (np.arange(4) - 1.5) / np.std(np.arange(4))
    x = (frame.x - frame.x.mean()) / frame.x.std(ddof=0)
    seen = np.column_stack([frame.kind == "a", frame.kind == "b", ranks[codes], x]).astype(float)
    projection = fitted.feature_map_.projection
    moved = projection.moved(scale_rows(model.encoding_.transform(frame), fitted.scaler_, "float64"))
    # the columns of a row lie in the order of the table: which one is which does not matter for distances
    np.testing.assert_allclose(distance.pdist(moved, "cityblock"), distance.pdist(seen, "cityblock"), atol=1e-5)
    np.testing.assert_allclose(fitted.family_.sigma, 2.0 * np.median(distance.pdist(seen, "cityblock")), rtol=1e-5)
    # one-hot columns know of no order
    one_hot = dkl.KernelRegressor(learner.set_params(categories="one-hot"), solver="newton", alpha=1e-3)
    assert not np.allclose(one_hot.fit(frame, y).predict(frame), model.predict(frame), atol=1e-3)
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict(frame), model.predict(frame))
    np.testing.assert_allclose(model.to_sklearn().predict(frame), model.predict(frame), atol=2e-5)
    with pytest.warns(dkl.errors.TableDifferenceWarning, match="is missing"):
        assert np.isfinite(model.predict(frame.assign(size=None))).all()
    with pytest.raises(ValueError, match="both move the rows"):
        NystromFeatures(categories="ordered", metric="diagonal").fit(frame, y)


def test_nystrom_keeps_the_promises_of_learners() -> None:
    check_learner(NystromFeatures(n_features=20, scaling="standard"))


def test_a_model_comes_back_from_its_file(tmp_path: Path) -> None:
    X, y = make_friedman1(300, random_state=0)
    model = dkl.KernelRegressor(
        NystromFeatures(dkl.Matern(1.5), n_features=40, scaling="standard"),
        solver="newton",
        alpha="auto",
        random_state=0,
    ).fit(X, y)
    assert model.score(X, y) > 0.75
    model.save(tmp_path / "model.zarr")
    np.testing.assert_array_equal(dkl.load_model(tmp_path / "model.zarr").predict(X), model.predict(X))


def test_the_bandwidth_is_the_median_times_the_factor() -> None:
    X = rows(200)
    one, half = (NystromFeatures(n_features=5, sigma_factor=f, random_state=0).fit(X).family_.sigma for f in (1.0, 0.5))
    assert half == pytest.approx(one / 2)
    changed = NystromFeatures().set_params(kernel__nu=1.5)
    assert changed.kernel.nu == 1.5


def test_a_plan_counts_the_sample_and_the_matrices() -> None:
    X, y = make_friedman1(300, random_state=0)
    planned = plan(NystromFeatures(n_features=40, landmarks="leverage"), as_dataset(X, y))
    assert planned.held["matrices of the landmarks"] == 4 * 8 * 40**2
    assert planned.held["similarities of sampled rows"] > 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kernel": dkl.Matern(0.5, -1.0)}, "sigma"),
        ({"landmarks": "best"}, "landmarks"),
        ({"n_features": 0}, "n_features"),
        ({"sigma_factor": 0.0}, "sigma_factor"),
    ],
)
def test_bad_parameters_are_refused_by_name(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NystromFeatures(**wrong).fit(rows())


def test_a_plans_matrix_is_one_of_zeros_or_an_error_with_its_size() -> None:
    zeros = unwritten_zeros(3)
    assert (zeros.dtype, zeros.tolist()) == (np.float64, np.zeros((3, 3)).tolist())
    for size in (10**8, 10**12):
        with pytest.raises(MemoryError, match=r"numbers takes .* GiB"):
            unwritten_zeros(size)


@pytest.mark.parametrize("how", ["kmeans", "leverage", "rpcholesky"])
def test_landmarks_of_rows_that_occur_twice_are_those_of_rows_that_weigh_two(how: Landmarks) -> None:
    X = np.random.default_rng(0).normal(size=(200, 2))
    weight = np.where(np.arange(len(X)) < 20, 30.0, 1.0)
    repeated = np.concatenate([X, np.repeat(X[:20], 29, axis=0)])
    kernel = dkl.Gaussian(sigma=1.0)
    found = [
        choose_landmarks(rows, own, 30, kernel, how, seed=0)
        for rows, own in ((X, weight), (repeated, np.ones(len(repeated))))
    ]
    np.testing.assert_allclose(*found, rtol=1e-6)
