"""Crosses, centred numbers and slopes: where they gain on held-out rows, what they are, and that models keep them."""

from __future__ import annotations

import gc
import pickle

import dask
import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.rows import GroupsAndTimes
from dkl.encodings import row_matrices
from dkl.encodings.categories import CategoryFit, with_categories
from dkl.encodings.fitted import FittedEncoding
from dkl.encodings.gains import clear_gain, clear_mean_gain
from dkl.encodings.row_matrices import RowsInFile
from dkl.encodings.target_means import PRIORS, CategoryFolds, slope_deviations, within_sums
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut

HELD_OUT = HeldOut(0.2, 3)


def crossed_table(n: int = 4_000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Targets that follow from pairs of values, and from the mean of x in a category."""
    rng = np.random.default_rng(seed)
    c, k = rng.integers(0, 40, n), rng.integers(0, 3, n)
    of_pair, of_c = np.random.default_rng(1).normal(size=(40, 3)), np.random.default_rng(2).normal(size=40)
    x, z = of_c[c] + rng.normal(size=n), rng.normal(size=n)
    frame = pd.DataFrame({"x": x, "c": [f"v{one:02d}" for one in c], "z": z, "k": np.array(["p", "q", "r"])[k]})
    frame.loc[rng.random(n) < 0.05, "c"] = None
    frame.loc[rng.random(n) < 0.05, "k"] = None
    return frame, of_pair[c, k] + 2.0 * (x - of_c[c]) + 0.3 * rng.normal(size=n)


def triple_table(n: int = 4_000) -> tuple[pd.DataFrame, np.ndarray]:
    """Targets that follow from triples of values, beside what follows from pairs."""
    frame, y = crossed_table(n)
    j = np.random.default_rng(7).integers(0, 2, n)
    place = (pd.Categorical(frame["c"]).codes + 1) * 4 + pd.Categorical(frame["k"]).codes + 1
    frame["j"] = np.array(["even", "odd"])[j]
    return frame, y + np.random.default_rng(8).normal(size=200)[place] * (2 * j - 1)


def sloped_table(n: int = 4_000, seed: int = 0, *, values: int = 200) -> tuple[pd.DataFrame, np.ndarray]:
    """Targets whose slope in x is another one in each of the 200 categories, whose means differ little."""
    rng = np.random.default_rng(seed)
    c, x = rng.integers(0, values, n), rng.normal(size=n)
    of_c, slope = np.random.default_rng(1).normal(size=(2, values))
    frame = pd.DataFrame({"x": x, "c": [f"v{one:03d}" for one in c], "z": rng.normal(size=n)})
    frame.loc[rng.random(n) < 0.05, "c"] = None
    return frame, 0.3 * of_c[c] + (0.5 + slope[c]) * x + 0.5 * rng.normal(size=n)


def fit_of(frame, y, weight=None, times=None) -> CategoryFit:
    given = {} if times is None else {"times": times}
    dataset = GroupsAndTimes(frame, **given).with_rule(as_dataset(frame, y, weight), weight)
    return CategoryFit(dataset, CategoryFolds(HELD_OUT), True, 1 << 34, Run())


def sloped_and_centred_table() -> tuple[pd.DataFrame, np.ndarray]:
    """Targets that follow from slopes by category, and from the mean of z in a category."""
    frame, y = sloped_table(values=60)
    of_c = np.random.default_rng(2).normal(size=61)[pd.Categorical(frame["c"]).codes]
    frame["z"] += of_c
    return frame, 10.0 + y + 2.0 * (frame["z"].to_numpy() - of_c)


class Definition:
    """Deviations and held-out gains, from rows."""

    def __init__(self, fit: CategoryFit, weight: np.ndarray, is_time: bool) -> None:
        self.fold = fit.folds(next(iter(fit.dataset.source.blocks_without_x())).held_with)
        self.weight, self.is_time, self.kept = weight, is_time, self.fold > 0

    def others(self, fold: int) -> np.ndarray:
        return self.kept & (self.fold > fold if self.is_time else self.fold != fold)

    def deviations(self, code: np.ndarray, y: np.ndarray, prior: float | None = None) -> np.ndarray:
        """Of each row; the prior of the least error where none is given."""
        m = np.average(y[self.kept], weights=self.weight[self.kept])

        def of_prior(a: float) -> np.ndarray:
            made = np.zeros(len(y))
            for f in range(6):
                for c in np.unique(code[code >= 0]):
                    same = self.others(f) & (code == c)
                    surplus = (self.weight[same] * (y[same] - m)).sum()
                    made[(self.fold == f) & (code == c)] = surplus / (self.weight[same].sum() + a)
            return made

        def error(d: np.ndarray) -> float:
            return (self.weight * (y - m - d) ** 2)[self.kept].sum()

        return of_prior(prior) if prior else min(map(of_prior, PRIORS), key=error)

    def slopes(self, code: np.ndarray, x: np.ndarray, y: np.ndarray, prior: float) -> np.ndarray:
        """Of each row: the least-squares slope in its category less that in all, the latter with `prior` more rows."""
        made = np.zeros(len(y))
        for f in range(6):
            on = self.others(f) & (code >= 0)
            if not on.any():
                continue
            squares, products = {}, {}
            for c in np.unique(code[on]):
                same = on & (code == c)
                w, own = self.weight[same], [column[same] for column in (x, y)]
                dx, dy = (column - np.average(column, weights=w) for column in own)
                squares[c], products[c] = (w * dx**2).sum(), (w * dx * dy).sum()
            of_all = sum(products.values()) / sum(squares.values())
            variance = sum(squares.values()) / self.weight[on].sum()
            for c in squares:
                slope = (products[c] + prior * variance * of_all) / (squares[c] + prior * variance)
                made[(self.fold == f) & (code == c)] = slope - of_all
        return made

    def gains(self, base: np.ndarray, further: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """By least squares on other folds; the rows that do not count add y^2 to the error of each fold."""
        gains = []
        for f in range(1, 6):
            on, of = self.others(f) & counts, (self.fold == f) & counts
            if not on.any():
                continue
            errors = []
            for columns in (base, np.column_stack([base, further])):
                root = np.sqrt(self.weight)
                w = np.linalg.lstsq(columns[on] * root[on, None], y[on] * root[on], rcond=None)[0]
                errors.append((self.weight[of] * (y[of] - columns[of] @ w) ** 2).sum())
            left_out = (self.fold == f) & ~counts
            rest = (self.weight[left_out] * y[left_out] ** 2).sum()
            gains.append((errors[0] - errors[1]) / (errors[0] + rest))
        return np.array(gains)


@pytest.mark.parametrize("held_by", [None, "time"])
def test_gains_from_sums_are_those_of_least_squares_on_rows(held_by, monkeypatch):
    frame, y = crossed_table(1_500)
    frame["z"] += 100.0 + y
    weight = np.random.default_rng(2).integers(1, 4, 1_500).astype(float)
    fit = fit_of(frame, y, weight, np.arange(1_500) if held_by else None)
    found: list[np.ndarray] = []
    monkeypatch.setattr("dkl.encodings.categories.clear_mean_gain", lambda gains: found.append(gains[0]) or 0.0)
    fit.numbered()
    X = next(iter([fit.dataset.X.compute()]))
    definition = Definition(fit, weight, held_by == "time")
    code = {name: np.asarray(pd.Categorical(frame[name]).codes, np.int64) for name in ("c", "k")}
    both = (code["c"] >= 0) & (code["k"] >= 0)
    pair = np.where(both, code["c"] * 3 + code["k"], -1)
    one = np.ones(len(y))
    # the means of a one-hot column are those of the rows that have both
    own = definition.deviations(code["c"], y)
    of_k = definition.deviations(np.where(both, code["k"], -1), y, 1.0)
    crossed = definition.gains(np.column_stack([one, own, of_k]), definition.deviations(pair, y), y, both)
    expected = [crossed]
    for column in ("x", "z"):
        x = X[:, fit.dataset.column_names.index(column)].astype(np.float64)
        mean = definition.deviations(code["c"], x)
        expected.append(definition.gains(np.column_stack([one, x, own]), mean, y, np.ones(len(y), bool)))
    for column in ("x", "z"):
        x = X[:, fit.dataset.column_names.index(column)].astype(np.float64)
        mean = definition.deviations(code["c"], x)
        base, centre = (
            np.column_stack([one, x, own, mean]),
            np.average(x[definition.kept], weights=weight[definition.kept]),
        )
        of_priors = [
            definition.gains(
                base, definition.slopes(code["c"], x, y, prior) * (x - centre - mean), y, np.ones(len(y), bool)
            )
            for prior in PRIORS
        ]
        expected.append(max(of_priors, key=np.mean))
    assert len(found) == 5
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


def test_a_gain_is_clear_above_two_standard_errors():
    assert clear_gain(np.array([0.02, 0.021, 0.019, 0.02, 0.02])) == pytest.approx(0.02)
    assert clear_gain(np.array([0.02, -0.03, 0.05, 0.02, 0.0])) == 0.0
    assert clear_gain(np.full(5, 5e-4)) == 0.0
    assert clear_gain(np.array([0.5])) == 0.0


def test_crosses_and_centred_numbers_that_gain_become_columns():
    frame, y = crossed_table()
    numbered = with_categories(as_dataset(frame, y), HELD_OUT, Run())
    encoding = numbered.encoding
    assert isinstance(encoding, FittedEncoding)
    assert (encoding.crosses, encoding.centred) == ((("c", "k"),), (("c", "x"),))
    assert "crosses that gain on held-out rows: c x k" in encoding.describe()
    assert "x by c" in encoding.describe()
    assert numbered.column_names == encoding.column_names
    names = ["c: mean target", "c: log count", "x less its mean by c", "c x k: mean target", "c x k: log count"]
    assert encoding.column_names[1:6] == names
    fit = fit_of(frame, y)
    definition = Definition(fit, np.ones(len(y)), is_time=False)
    c, k = (np.asarray(pd.Categorical(frame[name]).codes, np.int64) for name in ("c", "k"))
    X = numbered.X.compute()
    x = frame["x"].to_numpy()
    mean = x[definition.kept].mean() + definition.deviations(c, x)
    np.testing.assert_allclose(X[:, 3], x - mean, atol=2e-6)
    crossed = definition.deviations(np.where((c >= 0) & (k >= 0), c * 3 + k, -1), y)
    np.testing.assert_allclose(X[:, 4], crossed, atol=2e-6)
    # new rows get what all rows say
    new = encoding.transform(frame.iloc[:200])
    (own_prior, x_prior), (pair_prior,) = encoding.priors
    same = (c == c[0]) & (k == k[0])
    pair_mean = (y[same] - y.mean()).sum() / (same.sum() + pair_prior)
    x_mean = x.mean() + (x[c == c[0]] - x.mean()).sum() / ((c == c[0]).sum() + x_prior)
    np.testing.assert_allclose(new[0, 3:5], [x[0] - x_mean, pair_mean], atol=1e-5)
    assert own_prior in PRIORS


@pytest.mark.parametrize("held_by", [None, "time"])
def test_slopes_of_the_target_that_differ_by_category_become_columns(held_by):
    frame, y = sloped_table(2_500, values=60)
    weight = np.random.default_rng(2).integers(1, 4, len(y)).astype(float)
    fit = fit_of(frame, y, weight, np.arange(len(y)) if held_by else None)
    numbered = fit.numbered()
    encoding = numbered.encoding
    assert (encoding.sloped, encoding.centred) == ((("c", "x"),), ())
    assert "slopes of the target in a number, which differ by category: x by c" in encoding.describe()
    assert encoding.column_names == ["x", "c: mean target", "c: log count", "c: slope of mean target in x", "z"]
    definition = Definition(fit, weight, held_by == "time")
    c = np.asarray(pd.Categorical(frame["c"]).codes, np.int64)
    x = fit.dataset.X.compute()[:, 0].astype(np.float64)
    _, prior = encoding.priors[0]
    np.testing.assert_allclose(numbered.X.compute()[:, 3], definition.slopes(c, x, y, prior), rtol=1e-4, atol=1e-5)
    # new rows get what all rows say, and those of a value that no row had are told from nothing
    definition.kept[:], definition.fold[:], definition.is_time = True, 0, False
    definition.others = lambda fold: definition.kept
    rows = frame.iloc[:200].copy()
    expected = definition.slopes(c, x, y, prior)[:200]
    rows.loc[:9, "c"], expected[:10] = "unheard of", 0.0
    with pytest.warns(dkl.errors.TableDifferenceWarning):
        new = encoding.transform(rows)
    np.testing.assert_allclose(new[:, 3], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_slopes_halve_the_error_where_they_differ_and_are_no_columns_where_they_do_not():
    frame, y = sloped_table(8_000, values=400)
    others, theirs = sloped_table(2_000, seed=5, values=400)
    machine = dkl.KernelRegressor(effort="fast", random_state=0, progress=False)
    error = np.mean((machine.fit(frame, y).predict(others) - theirs) ** 2)
    assert machine.encoding_.sloped == (("c", "x"),)
    # of a variance of 2.3, means by category leave 1.4, and the noise .25
    assert error < 0.6
    of_means = y - np.random.default_rng(1).normal(size=(2, 400))[1][pd.Categorical(frame["c"]).codes] * frame["x"]
    labels = np.where(frame["c"].isna(), 0.0, of_means)
    assert with_categories(as_dataset(frame, labels), HELD_OUT, Run()).encoding.sloped == ()
    few = with_categories(as_dataset(*sloped_table(600)), HELD_OUT, Run()).encoding
    assert few.sloped == ()


def test_a_number_that_is_the_same_in_all_rows_of_a_category_has_no_slopes():
    frame, y = sloped_table(2_000, values=60)
    of_c = np.random.default_rng(4).normal(1e4, 1.0, size=61)
    frame["x"] = of_c[pd.Categorical(frame["c"]).codes]
    encoding = with_categories(as_dataset(frame, y), HELD_OUT, Run()).encoding
    assert encoding.sloped == ()
    N, x, targets = np.array([3.0, 7.0, 0.0]), np.array([0.1, 1e6 / 3, 0.0]), np.array([[1.0, 2.0, 0.0]])
    squares, products = within_sums(N, N * targets, N * x, N * x**2, N * x * targets)
    np.testing.assert_array_equal(squares, 0.0)
    np.testing.assert_array_equal(slope_deviations(squares, products, N, np.ones(1)), 0.0)


def test_each_class_but_the_first_has_a_slope():
    frame, y = sloped_table(3_000, values=60)
    labels = np.array(["a", "b", "c"])[np.digitize(y, [-0.7, 0.7])]
    numbered = with_categories(as_dataset(frame, labels), HELD_OUT, Run())
    assert numbered.encoding.sloped == (("c", "x"),)
    assert numbered.column_names[4:6] == ["c: slope of share of b in x", "c: slope of share of c in x"]
    definition = Definition(fit_of(frame, labels), np.ones(len(y)), is_time=False)
    c = np.asarray(pd.Categorical(frame["c"]).codes, np.int64)
    x, X = numbered.X.compute()[:, 0].astype(np.float64), numbered.X.compute()
    for place, label in ((4, "b"), (5, "c")):
        prior = numbered.encoding.priors[0][place - 2]
        expected = definition.slopes(c, x, (labels == label).astype(float), prior)
        np.testing.assert_allclose(X[:, place], expected, rtol=1e-4, atol=1e-5)


def test_crosses_of_three_columns_that_gain_beside_their_pair_become_columns(monkeypatch):
    frame, y = triple_table()
    fit = fit_of(frame, y)
    gains: list[np.ndarray] = []
    clear = clear_mean_gain
    monkeypatch.setattr("dkl.encodings.categories.clear_mean_gain", lambda each: gains.append(each[0]) or clear(each))
    monkeypatch.setattr(CategoryFit, "_at_once", 50)
    numbered = fit.numbered()
    encoding = numbered.encoding
    # a triple is tried beside the pair of more values
    assert encoding.crosses == (("c", "j"), ("c", "k"), ("c", "k", "j"))
    definition = Definition(fit, np.ones(len(y)), is_time=False)
    c, k, j = (np.asarray(pd.Categorical(frame[name]).codes, np.int64) for name in ("c", "k", "j"))
    both = (c >= 0) & (k >= 0)
    pair, triple = np.where(both, c * 3 + k, -1), np.where(both, (c * 3 + k) * 2 + j, -1)
    X, place = numbered.X.compute(), encoding.column_names.index("c x k x j: mean target")
    crossed = definition.deviations(triple, y)
    np.testing.assert_allclose(X[:, place], crossed, atol=2e-6)
    # the means of a one-hot column are those of the rows that have all
    of_j = definition.deviations(np.where(both, j, -1), y, 1.0)
    base = np.column_stack([np.ones(len(y)), definition.deviations(pair, y), of_j])
    np.testing.assert_allclose(gains[-1], definition.gains(base, crossed, y, both), rtol=1e-5, atol=1e-7)


def test_triples_are_tried_once_within_values_and_bytes(monkeypatch):
    fit = fit_of(*triple_table())
    every = fit.tried_triples([("c", "j"), ("c", "k")])
    assert list(every) == [("c", "k", "j")]
    assert every["c", "k", "j"].size == 1 + 40 * 3 * 2
    assert fit.tried_triples([]) == {}
    monkeypatch.setattr("dkl.encodings.categories._MOST_TRIPLES", 240)
    assert fit.tried_triples([("c", "k")]) == {}
    monkeypatch.setattr("dkl.encodings.categories._MOST_TRIPLES", 241)
    monkeypatch.setattr("dkl.encodings.categories._TRIPLE_BYTES", 8 * 6 * 241 * 2)
    assert list(fit.tried_triples([("c", "k")])) == [("c", "k", "j")]
    monkeypatch.setattr("dkl.encodings.categories._TRIPLE_BYTES", 8 * 6 * 241 * 2 - 1)
    assert fit.tried_triples([("c", "k")]) == {}


def test_models_of_before_there_were_priors_say_what_they_hold():
    frame, y = crossed_table()
    new = with_categories(as_dataset(frame, y), HELD_OUT, Run()).encoding
    before = FittedEncoding(new.table, new.outputs, (new.tables[0][:, :2],))
    assert before.summary == "of codes the fit made 'mean target', 'log count'"
    np.testing.assert_array_equal(before.transform(frame)[:, 1:3], new.transform(frame)[:, 1:3])
    with pytest.raises(ValueError, match="tables of categories have the shapes"):
        FittedEncoding(new.table, new.outputs, new.tables)


def test_what_does_not_gain_is_no_column():
    rng = np.random.default_rng(3)
    frame, _ = crossed_table(2_000)
    y = frame["x"].to_numpy() + rng.normal(size=2_000)
    encoding = with_categories(as_dataset(frame, y), HELD_OUT, Run()).encoding
    assert not encoding.made
    few = with_categories(as_dataset(*crossed_table(600)), HELD_OUT, Run()).encoding
    assert not few.made


def test_a_monotone_model_has_no_centred_numbers_and_slopes():
    frame, y = crossed_table()
    model = dkl.StepFeatures(n_features=20, monotone={"x": 1}, random_state=0, progress=False).fit(frame, y)
    assert (model.encoding_.crosses, model.encoding_.centred) == ((("c", "k"),), ())
    sloped = dkl.StepFeatures(n_features=20, monotone={"z": 1}, random_state=0, progress=False).fit(*sloped_table())
    assert sloped.encoding_.sloped == ()


def regressor() -> dkl.KernelRegressor:
    features = dkl.RandomFeatures(n_features=60)
    return dkl.KernelRegressor(features, solver="newton", alpha=1e-3, random_state=0, progress=False)


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
@pytest.mark.parametrize(
    ("table", "crosses"),
    [
        pytest.param(crossed_table, "c x k", marks=pytest.mark.slow),
        (triple_table, "c x j, c x k, c x k x j"),
        (sloped_and_centred_table, ""),
    ],
)
def test_models_with_crosses_answer_alike_saved_as_graphs_and_row_by_row(table, crosses, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    frame, y = table()
    model = regressor().fit(frame, y)
    assert ", ".join(" x ".join(cross) for cross in model.encoding_.crosses) == crosses
    of_slopes = table is sloped_and_centred_table
    assert (model.encoding_.sloped, model.encoding_.centred) == (
        ((("c", "x"),), (("c", "z"),)) if of_slopes else ((), (("c", "x"),))
    )
    rows = frame.iloc[:60].copy()
    rows.loc[:3, "c"] = "unheard of"
    if "k" in rows:
        rows.loc[2:6, "k"] = "unheard of"
    answers = model.predict(rows)
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(rows), answers)
    assert loaded.encoding_.describe() == model.encoding_.describe()
    store = dkl.create_dataset(tmp_path / "rows.zarr", frame[frame["c"] != "v07"], y[frame["c"] != "v07"])
    expected = model.predict(frame[frame["c"] != "v07"])
    np.testing.assert_array_equal(loaded.predict(store).compute(), expected)
    predictor = model.predictor()
    one_by_one = [predictor.predict(row) for row in rows.iloc[:10].to_dict("records")]
    np.testing.assert_allclose(np.ravel(one_by_one), answers[:10], rtol=1e-5)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    given = {
        name: rows[name].to_numpy("f4")[:, None]
        if pd.api.types.is_numeric_dtype(rows[name])
        else rows[name].fillna("").to_numpy(object)[:, None]
        for name in rows
    }
    np.testing.assert_allclose(session.run(["prediction"], given)[0], answers, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(model.to_sklearn().predict(rows), answers, rtol=2e-5, atol=2e-5)


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_a_pipeline_of_scikit_learn_has_target_means_and_centred_numbers():
    frame, y = crossed_table()
    frame = frame.drop(columns="k")
    labels = np.array(["a", "b", "c"])[np.digitize(y, [-1.0, 1.0])]
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=60), random_state=0, progress=False).fit(frame, labels)
    assert model.encoding_.centred == (("c", "x"),)
    rows = frame.iloc[:60].copy()
    rows.loc[:3, "c"] = "unheard of"
    np.testing.assert_allclose(
        model.to_sklearn().decision_function(rows), model.decision_function(rows), rtol=1e-4, atol=1e-4
    )


def test_sums_that_do_not_fit_go_to_files_with_the_same_bits(tmp_path, monkeypatch):
    """And are read in parts; the files go with the rows."""
    frame, y = crossed_table()
    dataset = as_dataset(frame, y)
    whole = with_categories(dataset, HELD_OUT, Run())
    made: list[RowsInFile] = []

    def noted(shape, dtype) -> RowsInFile:
        made.append(RowsInFile(shape, dtype))
        return made[-1]

    monkeypatch.setattr("dkl.encodings.categories.RowsInFile", noted)
    monkeypatch.setattr(row_matrices, "AT_ONCE", 50)
    with dask.config.set(temporary_directory=str(tmp_path)):
        # of this a quarter is allowed in memory
        small = CategoryFit(dataset, CategoryFolds(HELD_OUT), True, 50_000, Run())
        assert small.in_files
        assert len(small.records(small.own_sums)) > 1
        parts = small.numbered()
        planned = small.planned()
    assert made
    assert all(rows.path.startswith(str(tmp_path)) for rows in made)
    np.testing.assert_array_equal(parts.X.compute(), whole.X.compute())
    assert parts.fingerprint == whole.fingerprint
    for ours, theirs in zip(parts.encoding.tables, whole.encoding.tables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    used = sum(rows.row_bytes * rows.shape[0] for rows in made)
    assert used <= planned[3]
    made.clear()
    del parts, small, planned
    gc.collect()
    assert not list(tmp_path.iterdir())


def test_rows_in_a_file_are_those_in_memory(monkeypatch):
    monkeypatch.setattr(row_matrices, "AT_ONCE", 7)
    values = np.random.default_rng(0).normal(size=(100, 3))
    in_file = RowsInFile((100, 3), np.dtype("f8"))
    in_file[:60] = values[:60]
    in_file[60:100] = values[60:]
    places = np.random.default_rng(1).integers(0, 100, 400)
    for rows in (in_file, pickle.loads(pickle.dumps(in_file))):
        np.testing.assert_array_equal(rows[places], values[places])
        np.testing.assert_array_equal(rows[3:40], values[3:40])
        np.testing.assert_array_equal(rows[90:200], values[90:])
        assert rows[np.zeros(0, np.int64)].shape == (0, 3)
    gone = RowsInFile((1, 1), np.dtype("f8"))
    gone.path += ".elsewhere"
    with pytest.raises(FileNotFoundError, match="temporary_directory"):
        _ = gone[0:1]
