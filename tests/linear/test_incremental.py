"""BlockIncremental keeps dask-ml's interface and fits any estimator with `partial_fit`, to the bits of a plain loop."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr
from dask_ml.wrappers import Incremental
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier, is_regressor
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import IncrementalPCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neural_network import MLPRegressor

import dkl
from dkl.data.coerce import as_dataset
from dkl.encodings.categories import with_categories
from dkl.linear.fitting import Run
from dkl.linear.incremental import BlockIncremental, EstimatorState, estimator_step
from dkl.linear.minibatches import HeldOut, Minibatch
from tests.linear.problems import feature_map, rows


@pytest.fixture
def data() -> tuple[da.Array, da.Array, np.ndarray, np.ndarray]:
    X, codes = rows(600, 3)
    labels = np.array(["a", "b", "c"])[codes]
    return da.from_array(X, chunks=(100, 4)), da.from_array(labels, chunks=100), X, labels


def test_it_is_dask_mls_incremental(data: Any) -> None:
    X, y, _, labels = data
    model = BlockIncremental(SGDClassifier(random_state=0), random_state=0)
    assert isinstance(model, Incremental)
    assert set(Incremental().get_params(deep=False)) < set(clone(model).get_params(deep=False))
    model.fit(X, y, classes=["a", "b", "c"])
    assert isinstance(model.predict(X), da.Array)
    assert np.mean(model.predict(X).compute() == labels) > 0.6
    np.testing.assert_array_equal(model.classes_, ["a", "b", "c"])
    assert model.decision_function(X).compute().shape == (600, 3)


def test_classes_are_found_where_none_are_given(data: Any) -> None:
    X, y, _, _ = data
    assert BlockIncremental(GaussianNB(), random_state=0).fit(X, y).estimator_.classes_.tolist() == ["a", "b", "c"]


def test_epochs_go_through_all_rows_once_each(data: Any) -> None:
    X, y, _, labels = data
    model = BlockIncremental(GaussianNB(), epochs=3, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.estimator_.class_count_, 3 * np.unique(labels, return_counts=True)[1])


def test_partial_fit_goes_on(data: Any) -> None:
    X, y, _, _ = data
    model = BlockIncremental(GaussianNB(), random_state=0)
    model.partial_fit(X[:300], y[:300], classes=["a", "b", "c"]).partial_fit(X[300:], y[300:])
    assert model.estimator_.class_count_.sum() == 600


def test_the_schedulers_give_the_same_bits(data: Any) -> None:
    X, y, _, _ = data
    coefs = []
    for scheduler in ("sync", "threads"):
        with dask.config.set(scheduler=scheduler):
            model = BlockIncremental(SGDClassifier(random_state=0), random_state=3, epochs=2).fit(X, y)
        coefs.append(model.coef_)
    np.testing.assert_array_equal(*coefs)


def test_a_feature_map_goes_before_fit_and_predict(data: Any) -> None:
    X, _, plain, _ = data
    far = np.sum(plain**2, axis=1) > np.median(np.sum(plain**2, axis=1))
    bent = BlockIncremental(
        SGDClassifier(random_state=0), feature_map=feature_map(4, 200), epochs=10, random_state=0
    ).fit(X, far)
    straight = BlockIncremental(SGDClassifier(random_state=0), epochs=10, random_state=0).fit(X, far)
    assert np.mean(bent.predict(X).compute() == far) > np.mean(straight.predict(X).compute() == far) + 0.1
    np.testing.assert_array_equal(bent.predict(X).compute(), bent.predict(plain))
    np.testing.assert_array_equal(bent.decision_function(X).compute() > 0, bent.predict(plain))


def test_regressors_and_weights(data: Any) -> None:
    X, _, plain, _ = data
    y = plain @ np.arange(4.0)
    model = BlockIncremental(SGDRegressor(random_state=0), epochs=20, random_state=0)
    model.fit(X, y, sample_weight=np.where(np.arange(600) < 300, 0.0, 1.0))
    assert np.corrcoef(model.predict(plain), y)[0, 1] > 0.999


def test_a_step_works_on_a_copy() -> None:
    X, codes = rows(50, 2)
    state = EstimatorState(GaussianNB())
    operands = {"fit_options": {"classes": [0, 1]}}
    first = estimator_step(state, Minibatch(X, codes, None), operands)
    second = estimator_step(first, Minibatch(X, codes, None), operands)
    assert not hasattr(state.estimator, "class_count_")
    assert first.estimator.class_count_.sum() == 50
    assert second.estimator.class_count_.sum() == 100


def test_a_label_that_is_not_among_the_classes_is_refused(data: Any) -> None:
    X, y, _, _ = data
    with pytest.raises(ValueError, match=r"'c'.*classes"):
        BlockIncremental(GaussianNB()).fit(X, y, classes=["a", "b"])


def plain_loop(estimator: Any, X: np.ndarray, y: Any, *, chunk: int, epochs: int, seed: int, **options: Any) -> Any:
    """The definition: blocks in the order of each epoch, of each 4,096 drawn rows a call, in an order of the epoch."""
    fitted, n_blocks = clone(estimator), -(-len(X) // chunk)
    seed = int(np.random.RandomState(seed).randint(np.iinfo(np.int32).max))
    for epoch in range(epochs):
        for block in np.random.default_rng([seed, epoch]).permutation(n_blocks):
            rows = np.arange(block * chunk, min((block + 1) * chunk, len(X)))
            rows = np.random.default_rng([seed, int(block)]).permutation(rows)
            for number, start in enumerate(range(0, len(rows), 4096)):
                part = rows[start : start + 4096]
                part = np.random.default_rng([seed, epoch, int(block), number]).permutation(part)
                fitted.partial_fit(X[part], None if y is None else y[part], **options)
    return fitted


def counts(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Counts of words, more of the first for one class and more of the last for the other."""
    generator = np.random.default_rng(0)
    labels = np.array(["ham", "spam"])[generator.integers(0, 2, n)]
    rates = np.where((labels == "ham")[:, None], [4.0, 2.0, 1.0], [1.0, 2.0, 4.0])
    return generator.poisson(rates).astype(float), labels


SLOPES = np.array([0.25, -0.1, 0.7])
CLASSES = {"classes": np.array(["ham", "spam"])}
ESTIMATORS: list[tuple[Any, dict[str, Any], str]] = [
    (SGDClassifier(random_state=0), CLASSES, "coef_"),
    (Perceptron(random_state=0), CLASSES, "coef_"),
    (MultinomialNB(), CLASSES, "feature_log_prob_"),
    (GaussianNB(), CLASSES, "theta_"),
    (SGDRegressor(random_state=0, eta0=1e-3), {}, "coef_"),
    (MLPRegressor(hidden_layer_sizes=(4,), random_state=0), {}, "loss_"),
    (MiniBatchKMeans(3, n_init=1, random_state=0), {}, "cluster_centers_"),
    (IncrementalPCA(2), {}, "components_"),
]


@pytest.mark.parametrize(
    ("estimator", "options", "learned", "given_as"),
    [(*one, ("zarr", "dataset")[place % 2]) for place, one in enumerate(ESTIMATORS)],
    ids=lambda one: type(one).__name__,
)
def test_any_estimator_has_the_bits_of_a_plain_loop(
    estimator: Any, options: dict[str, Any], learned: str, given_as: str, tmp_path: Path
) -> None:
    X, labels = counts(6_000)
    y: Any = labels if options else X @ SLOPES if is_regressor(estimator) else None
    model = dkl.BlockIncremental(estimator, epochs=2, random_state=5)
    if given_as == "dataset":
        model.fit(dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=1_000))
    else:
        stored = zarr.create_array(str(tmp_path / "X.zarr"), data=X, chunks=(1_000, 3))
        # so small a Dask array is one block, whatever its chunks are
        model.fit(da.from_zarr(stored), y)
    chunk = 1_000 if given_as == "dataset" else 6_000
    expected = plain_loop(estimator, X, y, chunk=chunk, epochs=2, seed=5, **options)
    np.testing.assert_array_equal(getattr(model, learned), getattr(expected, learned))
    assert len(model.stats_) == 2
    assert is_classifier(model) == is_classifier(estimator)
    assert is_regressor(model) == is_regressor(estimator)


@pytest.mark.parametrize(("estimator", "options", "learned"), ESTIMATORS, ids=lambda one: type(one).__name__)
def test_lazy_answers_are_those_of_the_estimator(
    estimator: Any, options: dict[str, Any], learned: str, tmp_path: Path
) -> None:
    X, labels = counts(300)
    y: Any = labels if options else X @ SLOPES if is_regressor(estimator) else None
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, y, rows_a_block=100)
    model = dkl.BlockIncremental(estimator, random_state=0).fit(stored)
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function", "transform"):
        assert hasattr(model, method) == hasattr(model.estimator_, method)
        if hasattr(model, method):
            expected, lazy = getattr(model.estimator_, method)(X), getattr(model, method)(stored)
            assert isinstance(lazy, da.Array)
            assert lazy.dtype == expected.dtype
            # products of other shapes may differ in the last bit
            np.testing.assert_array_equal(lazy.compute(), expected) if expected.dtype.kind in "UOi" else (
                np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-12, atol=1e-12)
            )
            np.testing.assert_array_equal(getattr(model, method)(X), expected)


def test_scores_of_stores_and_of_rows_in_memory_agree(tmp_path: Path) -> None:
    X, labels = counts(300)
    stored = dkl.create_dataset(tmp_path / "rows.zarr", X, labels, rows_a_block=100)
    model = dkl.BlockIncremental(MultinomialNB(), random_state=0).fit(stored)
    assert model.score(stored) == pytest.approx(model.score(X, labels))
    assert model.score(stored) == pytest.approx(model.estimator_.score(X, labels))
    named = dkl.BlockIncremental(MultinomialNB(), scoring="accuracy", random_state=0).fit(stored)
    assert named.score(stored) == pytest.approx(model.score(stored))
    y = X @ SLOPES
    numbers = dkl.create_dataset(tmp_path / "numbers.zarr", X, y, rows_a_block=100)
    line = dkl.BlockIncremental(SGDRegressor(random_state=0), epochs=5, random_state=0).fit(numbers)
    assert line.score(numbers) == pytest.approx(line.estimator_.score(X, y))
    clusters = dkl.BlockIncremental(MiniBatchKMeans(3, random_state=0), random_state=0).fit(X)
    assert clusters.score(X) == clusters.estimator_.score(X)
    with pytest.raises(TypeError, match="MiniBatchKMeans has a score of its own"):
        clusters.score(stored)
    with pytest.raises(ValueError, match="y was given beside a Dataset"):
        model.score(stored, labels)
    with pytest.raises(ValueError, match="y, which is None"):
        model.score(X)


def test_data_frames_are_encoded_as_in_fit() -> None:
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"colour": generator.choice(["red", "green"], 200), "size": generator.normal(size=200)})
    model = dkl.BlockIncremental(SGDClassifier(random_state=0), epochs=5, random_state=0)
    model.fit(frame, (frame["colour"] == "red").to_numpy())
    assert model.score(frame, (frame["colour"] == "red").to_numpy()) == 1.0


def test_sparse_rows_of_many_columns_stay_sparse() -> None:
    X = sparse.random_array((500, 20_000), density=1e-3, rng=np.random.default_rng(0), format="csr")
    y = np.asarray(X.sum(axis=1)).ravel() > 10.0
    model = dkl.BlockIncremental(SGDClassifier(random_state=0), epochs=3, random_state=0).fit(X, y)
    assert model.score(X, y) > 0.8


def test_wide_rows_come_in_fewer_at_a_time() -> None:
    X = np.zeros((300, 40_000), np.float64)
    X[:, 0] = np.arange(300) % 2

    class Sizes(BaseEstimator):
        """Notes how many rows come at once."""

        def partial_fit(self, X: np.ndarray, y: Any = None) -> Any:
            self.sizes_ = [*getattr(self, "sizes_", []), len(X)]
            return self

    sizes = dkl.BlockIncremental(Sizes()).fit(X).sizes_
    assert sum(sizes) == 300
    assert max(sizes) * 40_000 * 8 <= 64 << 20


ROWS = np.random.default_rng(0).normal(size=(40, 3))
SIGNS = np.arange(40) % 2
MISTAKES: list[tuple[Any, tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    (dkl.BlockIncremental(), (ROWS, SIGNS), {}, TypeError, "'estimator' parameter .* partial_fit"),
    (dkl.BlockIncremental(RandomForestClassifier()), (ROWS, SIGNS), {}, TypeError, "RandomForestClassifier"),
    (dkl.BlockIncremental(SGDClassifier), (ROWS, SIGNS), {}, TypeError, "'estimator' parameter"),
    (dkl.BlockIncremental(SGDClassifier(), epochs=0), (ROWS, SIGNS), {}, ValueError, "'epochs' .* int >= 1"),
    (dkl.BlockIncremental(SGDClassifier(), epochs=1.5), (ROWS, SIGNS), {}, ValueError, "'epochs' .* int >= 1"),
    (dkl.BlockIncremental(SGDClassifier(), epochs=True), (ROWS, SIGNS), {}, ValueError, "'epochs' .* int >= 1"),
    (dkl.BlockIncremental(SGDClassifier(), feature_map="a"), (ROWS, SIGNS), {}, TypeError, "must be a FeatureMap"),
    (
        dkl.BlockIncremental(SGDClassifier(), feature_map=feature_map(5)),
        (ROWS, SIGNS),
        {},
        ValueError,
        "X has 3 features, but BlockIncremental is expecting 5",
    ),
    (
        dkl.BlockIncremental(SGDClassifier()),
        (ROWS,),
        {},
        ValueError,
        "learns from targets, and y is None",
    ),
    (dkl.BlockIncremental(SGDClassifier()), (ROWS, SIGNS[:9]), {}, ValueError, "as many"),
    (dkl.BlockIncremental(SGDClassifier()), (ROWS[:, 0], SIGNS), {}, ValueError, "2D"),
    (dkl.BlockIncremental(SGDClassifier()), (np.where(ROWS > 2, np.inf, ROWS), SIGNS), {}, ValueError, "inf"),
    (dkl.BlockIncremental(SGDClassifier(), memory_limit="1 kB"), (ROWS, SIGNS), {}, MemoryError, "memory"),
    (dkl.BlockIncremental(SGDClassifier(), progress="no"), (ROWS, SIGNS), {}, TypeError, "progress"),
    (dkl.BlockIncremental(SGDClassifier(), random_state="x"), (ROWS, SIGNS), {}, ValueError, "seed"),
    (dkl.BlockIncremental(SGDClassifier()), (ROWS, SIGNS), {"colour": 1}, TypeError, "takes no 'colour'"),
    (
        dkl.BlockIncremental(IncrementalPCA(2)),
        (ROWS,),
        {"sample_weight": np.ones(40)},
        ValueError,
        "IncrementalPCA.partial_fit takes no sample_weight",
    ),
]


@pytest.mark.parametrize(("model", "given", "options", "error", "message"), MISTAKES)
def test_mistakes_are_named_before_any_step(
    model: Any, given: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        model.fit(*given, **options)
    assert not hasattr(model, "estimator_")


def test_a_dataset_of_other_targets_or_labels_is_refused(tmp_path: Path) -> None:
    stored = dkl.create_dataset(tmp_path / "rows.zarr", ROWS, np.array(["a", "b"])[SIGNS])
    with pytest.raises(ValueError, match=r"labels such as .*, not numbers"):
        dkl.BlockIncremental(SGDRegressor()).fit(stored)
    begun = dkl.BlockIncremental(SGDClassifier()).fit(ROWS, np.array(["b", "c"])[SIGNS])
    with pytest.raises(ValueError, match="the label 'a', which is not among the classes"):
        begun.partial_fit(stored)
    with pytest.raises(ValueError, match="X has 2 features, but BlockIncremental is expecting 3"):
        begun.partial_fit(ROWS[:, :2], np.array(["b", "c"])[SIGNS])
    with pytest.raises(ValueError, match="X has 2 features, but BlockIncremental is expecting 3"):
        begun.predict(da.from_array(ROWS[:, :2]))


def test_no_private_module_of_dask_ml_is_imported() -> None:
    for path in (Path(dkl.__file__).parent).rglob("*.py"):
        imported = re.findall(r"^\s*(?:from|import) (dask_ml\S*)", path.read_text(encoding="utf-8"), re.M)
        assert not [module for module in imported if "._" in module], path


def visited(n: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows of 60 shops, some of which only the second seed knows, and labels that go with the shop."""
    rng = np.random.default_rng(seed)
    shop = rng.integers(5 * seed, 60 + 5 * seed, n)
    frame = pd.DataFrame({"shop": [f"s{number:02d}" for number in shop], "x": rng.normal(size=n)})
    return frame, np.where(rng.random(n) < 0.2 + 0.6 * (shop % 2), "b", "a")


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
@pytest.mark.parametrize("stored", [False, True], ids=["frames", "stores"])
def test_categories_of_many_values_become_the_numbers_of_the_first_fit(stored: bool, tmp_path: Path) -> None:
    (frame, labels), (further, more) = visited(900, 0), visited(400, 1)
    given: list[Any] = [(frame, labels), (further, more)]
    if stored:
        names = ["first", "second"]
        given = [(dkl.create_dataset(tmp_path / name, *rows),) for name, rows in zip(names, given, strict=True)]
    model = BlockIncremental(GaussianNB(var_smoothing=0.0), random_state=0).fit(*given[0])
    # the folds of its target means are drawn as the order of the rows is
    seed = np.random.RandomState(0).randint(np.iinfo(np.int32).max)
    numbered = with_categories(as_dataset(frame, labels), HeldOut(0.0, seed), Run())
    expected = GaussianNB(var_smoothing=0.0).fit(numbered.X.compute(), labels)
    np.testing.assert_allclose(model.theta_, expected.theta_, rtol=1e-5, atol=1e-6)
    # further rows get the numbers that new rows get, and leave these as they are
    before = model.predict_proba(frame)
    encoding = model.encoding_
    model.partial_fit(*given[1])
    assert model.encoding_ is encoding
    expected.partial_fit(encoding.transform(further), more)
    np.testing.assert_allclose(model.theta_, expected.theta_, rtol=1e-5, atol=1e-6)
    assert not np.allclose(model.predict_proba(frame), before)
    np.testing.assert_array_equal(np.asarray(model.predict(given[1][0])), model.predict(further))
    assert model.score(*given[1]) == pytest.approx(np.mean(model.predict(further) == more))
    assert model.score(*given[1]) > 0.7


def test_fit_and_partial_fit_go_on_behind_a_feature_map(data: Any) -> None:
    X, y, rows_, labels = data
    learner = feature_map(4)
    model = BlockIncremental(SGDClassifier(random_state=0), feature_map=learner, random_state=0)
    model.fit(X, y).partial_fit(X, y)
    assert (model.n_features_in_, model.estimator_.n_features_in_) == (4, learner.n_features)
    assert model.estimator_.t_ == 1_201
    assert model.score(rows_, labels) > 0.5


def test_an_error_in_a_step_leaves_the_state_whole(data: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, rows_, _ = data
    model = BlockIncremental(SGDClassifier(random_state=0), feature_map=feature_map(4), random_state=0).fit(X, y)
    before, state = model.predict(rows_), dict(vars(model))
    with monkeypatch.context() as patch:
        patch.setattr(SGDClassifier, "partial_fit", lambda *_, **__: (_ for _ in ()).throw(OSError("disk")))
        with pytest.raises(OSError, match="disk"):
            model.partial_fit(X, y)
    assert vars(model) == state
    np.testing.assert_array_equal(model.predict(rows_), before)
    assert model.partial_fit(X, y).estimator_.t_ == 1_201
