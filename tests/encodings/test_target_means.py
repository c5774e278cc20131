"""Target means of categories: against their definition, without leakage, and on whatever the rows come in."""

from __future__ import annotations

import tracemalloc
import warnings
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import SGDClassifier
from sklearn.metrics import roc_auc_score

import dkl
from dkl.data.coerce import as_dataset
from dkl.data.together.rows import GroupsAndTimes
from dkl.encodings import categories
from dkl.encodings.categories import rows_like_fit, with_categories
from dkl.encodings.fitted import FittedEncoding
from dkl.encodings.source import CategoryNumbers
from dkl.encodings.target_means import PRIORS, CategoryFolds
from dkl.linear.fitting import Run
from dkl.linear.minibatches import HeldOut
from dkl.methods.steps.learner import StepFeatures
from dkl.passes.loop import run_pass
from dkl.protocols.records import RowSample

HELD_OUT = HeldOut(0.2, 3)


def encoded_by_definition(dataset, code, y, weight, is_time=False):
    """The numbers of each row, and priors; `code` is -1 where a value is missing, `y` has a column a target."""
    block = next(iter(dataset.source.blocks_without_x()))
    fold = CategoryFolds(HELD_OUT)(block.held_with)
    kept = fold > 0
    m = (weight[kept, None] * y[kept]).sum(axis=0) / weight[kept].sum()
    known = code >= 0
    N, S, ratio = np.zeros(len(code)), np.zeros(y.shape), np.ones(len(code))
    for i in range(len(code)):
        others = kept & (fold > fold[i] if is_time else fold != fold[i])
        same = others & (code == code[i]) & known[i]
        N[i], S[i] = weight[same].sum(), (weight[same, None] * y[same]).sum(axis=0)
        ratio[i] = weight.sum() / weight[others].sum() if others.any() else 1.0

    def means(t, prior):
        return (S[:, t] + prior * m[t]) / (N + prior)

    def error(t, prior):
        return (weight * (y[:, t] - np.where(known, means(t, prior), m[t])) ** 2)[kept].sum()

    priors = [min(PRIORS, key=lambda prior: error(t, prior)) for t in range(y.shape[1])]
    columns = [means(t, prior) - m[t] for t, prior in enumerate(priors)]
    return np.where(known[:, None], np.stack([*columns, np.log1p(N * ratio)], axis=1), 0.0), priors


def table(n: int = 600, values: int = 40, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    c = rng.integers(0, values, n)
    frame = pd.DataFrame({"x": rng.normal(size=n), "c": [f"v{k:03d}" for k in c], "b": rng.random(n) < 0.5})
    frame.loc[rng.random(n) < 0.05, "c"] = None
    return frame


def targets(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return {
        "two": rng.integers(0, 2, n),
        "three": rng.integers(0, 3, n),
        "number": 5.0 + rng.normal(size=n),
        "numbers": rng.normal(size=(n, 2)),
    }[kind]


def codes_of(frame: pd.DataFrame) -> np.ndarray:
    return np.asarray(pd.Categorical(frame["c"], sorted(frame["c"].dropna().unique())).codes, np.int64)


@pytest.mark.parametrize("held_by", [None, "group", "time"])
@pytest.mark.parametrize("kind", ["two", "three", "number", "numbers"])
def test_rows_get_the_target_means_of_the_other_folds_as_defined(kind, held_by):
    frame, y = table(), targets(kind, 600)
    weight = np.random.default_rng(2).integers(1, 4, 600).astype(float)
    given = {} if held_by is None else {held_by + "s": np.arange(600) % 50}
    beside = GroupsAndTimes(frame, **given)
    dataset = beside.with_rule(as_dataset(frame, y, weight), weight)
    numbered = with_categories(dataset, HELD_OUT, Run())
    columns = np.eye(3)[y][:, 1:] if kind == "three" else y.reshape(600, -1).astype(float)
    expected, priors = encoded_by_definition(dataset, codes_of(frame), columns, weight, held_by == "time")
    np.testing.assert_array_equal(numbered.encoding.priors[0], priors)
    X = numbered.X.compute()
    np.testing.assert_allclose(X[:, 1:-1], expected, atol=2e-6)
    np.testing.assert_array_equal(X[:, [0, -1]], frame[["x", "b"]].to_numpy(np.float32))
    assert numbered.column_names[0] == "x"
    assert len(numbered.column_names) == X.shape[1] == numbered.n_columns


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_new_rows_get_the_means_of_all_rows_and_unseen_values_nothing():
    frame, y = table(), targets("number", 600)
    dataset = as_dataset(frame, y)
    encoding = with_categories(dataset, HELD_OUT, Run()).encoding
    assert isinstance(encoding, FittedEncoding)
    rows = encoding.transform(frame.assign(c=["v007", "unseen", None] * 200))
    own, prior = y[(frame["c"] == "v007").to_numpy()], encoding.priors[0][0]
    mean = (own.sum() + prior * y.mean()) / (len(own) + prior) - y.mean()
    np.testing.assert_allclose(rows[:3, 1:3], [[mean, np.log1p(len(own))], [0, 0], [0, 0]], rtol=1e-5, atol=1e-7)


def test_targets_of_held_out_rows_enter_no_other_row():
    frame, y = table(), targets("number", 600)
    held = HELD_OUT.mask(np.arange(600))
    rows = [
        with_categories(as_dataset(frame, other), HELD_OUT, Run()).X.compute()
        for other in (y, np.where(held, 100.0 * y, y))
    ]
    np.testing.assert_array_equal(*rows)


def test_sparse_rows_and_blocks_and_a_store_give_the_same_rows(tmp_path):
    frame, y = table(3000), targets("two", 3000)
    wide = frame.assign(**{f"w{j}": [f"k{(i + j) % 30}" for i in range(3000)] for j in range(20)})
    wide = wide.drop(columns=["x", "b"])
    dense = with_categories(as_dataset(frame, y), HELD_OUT, Run()).X.compute()
    sparse = with_categories(as_dataset(wide, y), HELD_OUT, Run())
    assert sparse.source.is_sparse
    np.testing.assert_array_equal(sparse.X.compute().toarray()[:, :2], dense[:, 1:3])
    store = dkl.create_dataset(tmp_path / "rows.zarr", frame, y, rows_a_block=700)
    np.testing.assert_array_equal(with_categories(store, HELD_OUT, Run()).X.compute(), dense)


def test_numbers_of_rows_in_memory_are_computed_in_one_pass_and_kept_for_the_next():
    frame, record = table(), RowSample("all rows", 600, 0)
    dataset = as_dataset(frame, targets("two", 600))
    numbered = with_categories(dataset, HELD_OUT, Run())
    for source, kept in ((dataset.source, 0), (numbered.source, numbered.source.n_blocks)):
        first, second = (run_pass(source, [record]) for _ in range(2))
        assert (first.stats.cache_hits, second.stats.cache_hits) == (0, kept)
        np.testing.assert_array_equal(second.results[0].X, first.results[0].X)


def test_numbers_of_a_sample_are_computed_for_its_rows_alone(monkeypatch):
    numbered = with_categories(as_dataset(table(), targets("two", 600)), HELD_OUT, Run())
    every, seen = numbered.source.reader().load(numbered.source.ticket(0)), []
    numbers_of = CategoryNumbers.new_columns

    def counted(step, block):
        seen.append(block.n_rows)
        return numbers_of(step, block)

    monkeypatch.setattr(CategoryNumbers, "new_columns", counted)
    sample = numbered.thin(50, 0).source
    drawn = sample.reader().load(sample.ticket(0))
    assert seen == [50]
    np.testing.assert_array_equal(drawn.X, every.X[np.isin(every.row_id, drawn.row_id)])


def machine(**given):
    options = {"loss": "squared_hinge", "solver": "newton", "alpha": "auto", "random_state": 0}
    return dkl.KernelClassifier(given.pop("features", dkl.RandomFeatures(n_features=50)), **(options | given))


def test_a_saved_model_answers_as_before_frames_and_stores_of_other_codes(tmp_path):
    frame, y = table(1500), targets("three", 1500)
    store = dkl.create_dataset(tmp_path / "rows.zarr", frame, y)
    model = machine().fit(store)
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    answers = model.decision_function(frame)
    np.testing.assert_array_equal(loaded.decision_function(frame), answers)
    np.testing.assert_array_equal(loaded.decision_function(store).compute(), answers)
    np.testing.assert_array_equal(machine().fit(frame, y).decision_function(frame), answers)
    # rows that know other values have other codes for the same texts
    few = frame[frame["c"].isna() | (frame["c"] > "v005")]
    other = dkl.create_dataset(tmp_path / "few.zarr", few, y[few.index])
    np.testing.assert_array_equal(loaded.decision_function(other).compute(), model.decision_function(few))
    assert np.isfinite(model.predictor().decision_function(frame.iloc[0])).all()


def test_weights_are_repetitions_where_copies_share_a_group():
    frame, y = table(400), targets("two", 400)
    weight = np.random.default_rng(5).integers(1, 4, 400)
    index = np.repeat(np.arange(400), weight)
    groups = np.arange(400) // 2
    weighted = GroupsAndTimes(frame, groups).with_rule(as_dataset(frame, y, weight.astype(float)), weight)
    copies = frame.iloc[index].reset_index(drop=True)
    repeated = GroupsAndTimes(copies, groups[index]).with_rule(as_dataset(copies, y[index]))
    ours, theirs = (with_categories(rows, HELD_OUT, Run()).X.compute() for rows in (weighted, repeated))
    np.testing.assert_allclose(ours[index], theirs, rtol=1e-6)


def test_workers_give_the_bits_of_one_thread():
    import dask

    frame, y = table(4000), targets("number", 4000)
    answers = []
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            model = dkl.KernelRegressor(dkl.RandomFeatures(n_features=30), solver="newton", random_state=0)
            answers.append(model.fit(frame, y).predict(frame))
    np.testing.assert_array_equal(*answers)


def test_a_random_target_is_not_learned_from_an_id_of_10_000_values():
    """Test (a) of ALGORITHMS 9: in-sample target means would make the held-out score far too good."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"id": rng.integers(0, 10_000, 30_000), "x": rng.normal(size=30_000)})
    y = rng.integers(0, 2, 30_000)
    model = machine(features=StepFeatures(n_features=60, validation_fraction=0.2), categorical=["id"]).fit(X, y)
    # what fit judges by: the held-out rows, by their own codes, under the working model of the other rows
    dataset = with_categories(as_dataset(X, y, categorical=["id"]), HeldOut(0.2, model.seed_), Run())
    held = HeldOut(0.1, model.seed_).mask(np.arange(len(y)))
    rows = dataset.X.compute()[held]
    scores = model.features_.transform(rows) @ model.features_.coef_[0]
    assert abs(roc_auc_score(y[held], scores) - 0.5) < 0.02
    assert abs(model.validation_scores_.max()) < 0.005


@pytest.mark.filterwarnings("ignore::dkl.errors.TableDifferenceWarning")
def test_an_id_beside_a_useful_column_costs_nothing_on_new_rows():
    """Test (b) of ALGORITHMS 9."""
    rng = np.random.default_rng(1)
    n = 30_000
    X = pd.DataFrame({"id": rng.integers(0, 10_000, 2 * n), "x": rng.normal(size=2 * n)})
    y = (rng.random(2 * n) < 1.0 / (1.0 + np.exp(-1.1 * X["x"].to_numpy()))).astype(int)
    new, aucs = slice(n, None), []
    for columns, categorical in ((["x"], None), (["id", "x"], ["id"])):
        model = machine(features=StepFeatures(n_features=60), categorical=categorical).fit(X[columns][:n], y[:n])
        aucs.append(roc_auc_score(y[new], model.decision_function(X[columns][new])))
    assert aucs[0] > 0.7
    assert aucs[1] > aucs[0] - 0.005


def test_what_is_not_there_yet_is_one_clear_error(tmp_path):
    frame, y = table(), targets("two", 600)
    model = machine().fit(frame, y)
    store = dkl.create_dataset(tmp_path / "codes.zarr", frame, y)
    learner = dkl.AlignedFeatures(n_candidates=20, sums=str(tmp_path / "sums"), progress=False).fit(store)
    with pytest.raises(
        ValueError, match=r"\['c'\].*update makes no numbers; fit all rows again: target means are of all"
    ):
        learner.update(store)
    with pytest.raises(ValueError, match=r"not those that feature_map was learned on; leave feature_map out, or fit"):
        dkl.BlockIncremental(SGDClassifier(random_state=0), feature_map=learner.feature_map_).fit(store)
    with pytest.raises(
        ValueError, match=r"\['c'\].*agree makes no numbers; .*which no site knows when it sums its own"
    ):
        dkl.agree(learner, store, {"north": 1})
    with pytest.raises(ValueError, match=r"categorical names \['x'\], which .* does not hold as categories"):
        machine(categorical=["x"]).fit(dkl.create_dataset(tmp_path / "rows.zarr", frame, y))
    with pytest.raises(ValueError, match=r"categorical=\['x'\] names columns, and X has none by name"):
        machine(categorical=["x"]).fit(np.ones((4, 2)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="the table lacks the columns"):
        model.predict(frame.drop(columns="c"))
    numbers = dkl.create_dataset(tmp_path / "numbers.zarr", frame[["x", "b"]], y)
    with pytest.raises(ValueError, match="features"):
        model.predict(numbers)
    with pytest.raises(ValueError, match=r"\['c'\] .*hold codes of categories, and the rows of fit had none"):
        rows_like_fit(None, as_dataset(frame, y))


def test_a_plan_counts_the_sums_of_200_000_values():
    n = 200_000
    codes = pd.DataFrame({"id": np.arange(n) % 199_999, "x": np.zeros(n, np.float32)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        planned = dkl.plan(machine(categorical=["id"], memory_limit="8 GiB"), codes, np.arange(n) % 2)
    assert planned.passes[0].name == "sums of categories"
    # weights and one target in 6 folds, in float64
    assert planned.passes[0].memory.total > 2 * 6 * 8 * 199_999
    assert planned.held["tables of categories"] > 6 * 2 * 4 * 199_999


def test_after_an_append_a_fit_equals_a_fresh_one(tmp_path):
    frame, y = table(1500), targets("two", 1500)
    store = dkl.create_dataset(tmp_path / "rows.zarr", frame[:1000], y[:1000], rows_a_block=500)
    appended = store.append(frame[1000:], y[1000:])
    fresh = dkl.create_dataset(tmp_path / "fresh.zarr", appended, rows_a_block=500)
    ours, theirs = (machine().fit(rows).decision_function(frame) for rows in (appended, fresh))
    np.testing.assert_array_equal(ours, theirs)


def test_stores_of_codes_are_of_format_2_and_all_others_stay_of_the_first(tmp_path):
    frame, y = table(), targets("two", 600)
    codes = dkl.create_dataset(tmp_path / "codes.zarr", frame, y)
    plain = dkl.create_dataset(tmp_path / "plain.zarr", frame[["x", "b"]], y)
    assert (codes.source.storage_facts["format"], plain.source.storage_facts["format"]) == (2, 1)


def test_sums_in_several_passes_are_those_of_one(monkeypatch):
    dataset = as_dataset(table(), targets("three", 600))
    whole = with_categories(dataset, HELD_OUT, Run())
    monkeypatch.setattr("dkl.encodings.categories._MOST_BYTES", 4_000)
    fit = categories.CategoryFit(dataset, CategoryFolds(HELD_OUT), True, 1 << 30, Run())
    assert len(fit.records(fit.own_sums)) == 2
    parts = with_categories(dataset, HELD_OUT, Run())
    np.testing.assert_array_equal(parts.X.compute(), whole.X.compute())


def test_reading_rows_with_numbers_of_codes_holds_no_more_than_is_counted(tmp_path: Path) -> None:
    """Temporaries were counted as 32 MiB of blocks of 60,000 rows, of which at most 17 exist at once."""
    draw, n = np.random.default_rng(0), 30_000
    for number in range(2):
        rows = pd.DataFrame(draw.normal(size=(n, 16)), columns=[f"c{place}" for place in range(16)])
        names = np.char.add("name ", np.arange(60).astype(str))
        rows = rows.assign(a=draw.choice(names, n), b=draw.choice(names, n))
        rows.to_parquet(tmp_path / f"rows-{number}.parquet")
    # texts of Arrow, which no trace of Python counts, are a few MB
    frame = dd.read_parquet(tmp_path)
    with dask.config.set(scheduler="synchronous"):
        dataset = as_dataset(frame, (frame["c0"] > 0).astype(int))
        source = with_categories(dataset, HELD_OUT, Run()).source
        assert source.n_columns > dataset.n_columns
        reader, held = source.reader(), []
        for _ in range(2):
            (ticket,) = dask.compute(source.ticket(0))
            tracemalloc.start()
            try:
                block = reader.load(ticket)
                held.append(tracemalloc.get_traced_memory()[1] - block.nbytes)
            finally:
                tracemalloc.stop()
    before = dataset.source
    assert max(held) <= source.read_nbytes
    assert source.read_nbytes < before.read_nbytes + before.block_nbytes
