"""Numbers that may be names, and crosses of few values: what is suspected, what gains, and who answers alike."""

from __future__ import annotations

import pickle
import tracemalloc
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dkl
from dkl.data.coerce import as_dataset
from dkl.encodings.suspects import (
    NumberTrial,
    more_categories,
    plan_suspects,
    value_gains,
    whole_numbers,
)
from dkl.encodings.target_means import FoldTotals
from dkl.linear.minibatches import HeldOut
from dkl.passes.loop import PlannedRun, Run
from dkl.process import usable_cores
from tests.passes.sources import project

pytestmark = pytest.mark.usefixtures("little_work")

HELD_OUT = HeldOut(0.2, 0)


@pytest.fixture(autouse=True)
def asked_by_any_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least effort, which these fits are made with, asks for no categories by itself."""
    monkeypatch.setattr("dkl.machines.columns.SIDE_SHARE", np.inf)


def visits(n: int = 6_000, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Visits of persons, several rows each, whose numbers say who they are; an age that says a smooth thing; noise."""
    rng = np.random.default_rng(seed)
    person = rng.permutation(np.arange(100_000, 200_000))[: n // 10]
    which = rng.integers(0, len(person), n)
    frame = pd.DataFrame({"person": person[which], "age": rng.integers(18, 90, n), "x": rng.normal(size=n)})
    y = rng.normal(size=len(person))[which] + 0.03 * frame["age"] + 0.5 * frame["x"] + 0.3 * rng.normal(size=n)
    return frame, y.to_numpy()


def parity(n: int = 6_000, seed: int = 0, others: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Three columns of few values of which two, and of others all three, only say something together."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": rng.integers(0, 4, n), "b": rng.choice(["p", "q", "r"], n), "c": rng.integers(0, 4, n)})
    pairs, triples = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 4))
    b = frame["b"].map({"p": 0, "q": 1, "r": 2}).to_numpy()
    y = 2.0 * pairs[frame["a"], b] + triples[frame["a"], b, frame["c"]] + 0.2 * rng.normal(size=n)
    for other in range(others):
        frame[f"z{other}"] = rng.choice(["s", "t", "u", "v"], n)
    return frame, y


def among_others() -> tuple[pd.DataFrame, np.ndarray]:
    """Crosses that few rows share, so that a kernel does not find them."""
    return parity(n=4_000, others=10)


def machine(**given: Any) -> dkl.KernelRegressor:
    return dkl.KernelRegressor(random_state=0, progress=False, effort="fast", **given)


def test_ids_gain_and_quantities_do_not() -> None:
    frame, y = visits()
    found = more_categories(as_dataset(frame, y), HELD_OUT, Run(), 0)
    assert found.suspected == ("person", "age")
    assert (found.made.taken, found.made.crosses) == (("person",), ())
    # of noise nothing is taken
    noise = more_categories(as_dataset(frame, np.random.default_rng(5).normal(size=len(y))), HELD_OUT, Run(), 0)
    assert (noise.suspected, noise.made.taken) == (("person", "age"), ())
    # of few rows nothing is suspected
    assert more_categories(as_dataset(frame[:3_000], y[:3_000]), HELD_OUT, Run(), 0).suspected == ()


def test_what_is_suspected() -> None:
    n = 4_000
    rng = np.random.default_rng(0)
    columns = {
        "id": rng.integers(0, 500, n),
        "sorted id": np.sort(7 * rng.integers(0, 500, n)),
        "counter": np.arange(n) // 4,
        "few": rng.integers(0, 32, n),
        "in every row": rng.permutation(n),
        "parts": rng.integers(0, 500, n) / 2,
        "large": rng.integers(0, 500, n) + 2**24,
        "id with gaps": np.where(rng.random(n) < 0.2, np.nan, rng.integers(0, 500, n)),
        "flag": rng.random(n) < 0.5,
    }
    dataset = as_dataset(pd.DataFrame(columns), rng.normal(size=n))
    rows = dataset.X.compute()
    suspects, few = whole_numbers(rows, dataset.encoding)
    assert [name for name, _ in suspects] == ["id", "sorted id", "id with gaps"]
    assert [name for name, _ in few] == ["few", "flag"]
    assert suspects[1][1] == tuple(np.unique(columns["sorted id"]).tolist())


def test_gains_of_values_are_those_of_least_squares_on_rows_one_by_one() -> None:
    rng = np.random.default_rng(1)
    n, V, F, prior = 600, 12, 4, 3.0
    code, fold, effect = rng.integers(0, V, n), rng.integers(0, F, n), rng.normal(size=V)
    values = tuple((3 * np.arange(V)).tolist())
    y = effect[code] + rng.normal(size=n)
    weight, target = np.zeros((F, V + 1)), np.zeros((F, V + 1))
    np.add.at(weight, (fold, code + 1), 1.0)
    np.add.at(target, (fold, code + 1), y)
    of_folds = [np.bincount(fold, values_of, F) for values_of in (np.ones(n), y, y**2)]
    totals = FoldTotals(of_folds[0], of_folds[1][None], of_folds[2][None])
    gains = value_gains(weight, target, totals, prior, values)
    mean = y[fold > 0].mean()

    def columns(row: int) -> list[float]:
        made, others = [1.0, float(values[code[row]])], (fold > 0) & (fold != fold[row])
        # widths of 1, for an eighth of twelve values is one and a half; then the value itself
        for near in ((np.abs(code - code[row]) <= 1) & (code != code[row]), code == code[row]):
            alike = others & near
            made.append((y[alike] - mean).sum() / (alike.sum() + prior))
        return made

    u = np.array([columns(row) for row in range(n)])
    for place, judged in enumerate(range(1, F)):
        learned = (fold > 0) & (fold != judged)
        errors = []
        for k in (3, 4):
            w = np.linalg.lstsq(u[learned, :k], y[learned], rcond=None)[0]
            errors.append(np.sum((y[fold == judged] - u[fold == judged, :k] @ w) ** 2))
        assert gains[place] == pytest.approx((errors[0] - errors[1]) / errors[0], rel=1e-6, abs=1e-9)


def test_pairs_and_triples_gain_where_they_alone_say_it() -> None:
    frame, y = parity()
    made = more_categories(as_dataset(frame, y), HELD_OUT, Run(), 0).made
    assert {("a", "b"), ("a", "b", "c")} <= set(made.crosses)
    assert dict(made.numbers) == {"a": (0, 1, 2, 3), "c": (0, 1, 2, 3)}
    added = np.random.default_rng(2).normal(size=(3, 4))
    b = frame["b"].map({"p": 0, "q": 1, "r": 2}).to_numpy()
    apart = added[0][frame["a"]] + added[1][b] + added[2][frame["c"]]
    apart = apart + np.random.default_rng(3).normal(size=len(y))
    assert more_categories(as_dataset(frame, apart), HELD_OUT, Run(), 0).made.crosses == ()


def test_of_many_columns_so_many_crosses_of_the_fewest_values_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    frame, y = parity(others=4)
    tried = list[tuple[str, ...]]()

    def counted(trial: NumberTrial, crosses: list[tuple[str, ...]], crossed: Any) -> dict[tuple[str, ...], float]:
        tried.extend(crosses)
        return dict.fromkeys(crosses, 1.0)

    monkeypatch.setattr(NumberTrial, "_cross_gains", counted)
    for most, columns in ((50, 200), (50, 3), (8, 3), (2, 200)):
        monkeypatch.setattr("dkl.encodings.suspects._MOST_TRIED", most)
        monkeypatch.setattr("dkl.encodings.suspects._MOST_CROSSED", columns)
        tried.clear()
        more_categories(as_dataset(frame, y), HELD_OUT, Run(), 0)
        names = list(frame)[: min(columns, 7)]
        # "b" has three values, all others four
        pairs = sorted(combinations(names, 2), key=lambda pair: "b" not in pair)[:most]
        triples = [triple for triple in combinations(names, 3) if set(combinations(triple, 2)) <= set(pairs)]
        triples = sorted(triples, key=lambda triple: "b" not in triple)[: most - len(pairs)]
        assert tried == [*pairs, *triples]


def test_a_machine_takes_ids_and_says_so_and_a_list_pins_it() -> None:
    frame, y = visits()
    model = machine().fit(frame[:5_000], y[:5_000])
    (told,) = (reason for reason in model.reasons_ if reason.startswith("Suspects"))
    assert "['person', 'age'] may be names" in told
    assert "categorical=['person'] takes the values for names alone" in told
    assert model.encoding_.taken == ("person",)
    assert model.n_features_in_ == 3
    pinned = machine(categorical=[]).fit(frame[:5_000], y[:5_000])
    assert not any(reason.startswith("Suspects") for reason in pinned.reasons_)
    assert model.score(frame[5_000:], y[5_000:]) > pinned.score(frame[5_000:], y[5_000:]) + 0.2


def test_ids_that_say_nothing_change_nothing_but_what_is_said() -> None:
    frame, y = visits()
    y = np.asarray(0.5 * frame["x"] + np.random.default_rng(1).normal(size=len(y)))
    model, pinned = (machine(categorical=given).fit(frame, y) for given in (None, []))
    np.testing.assert_array_equal(model.predict(frame), pinned.predict(frame))
    assert any("taken as quantities" in reason for reason in model.reasons_)


@pytest.mark.parametrize(
    "rows",
    # crosses in all forms of a model are in every run in tests/encodings/test_gains.py
    [pytest.param(visits, id="numbers"), pytest.param(among_others, id="crosses", marks=pytest.mark.slow)],
)
def test_models_answer_alike_from_files_stores_graphs_and_row_by_row(rows: Any, tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    frame, y = rows()
    # on the features that are tried first
    first = machine(trials=[0])
    model = clone(first).fit(frame, y)
    assert model.encoding_.taken or model.encoding_.crosses
    few = frame.iloc[:50].copy()
    # values that no row of the fit had, and no whole ones
    numbers = [name for name in few if pd.api.types.is_numeric_dtype(few[name])]
    few = few.astype(dict.fromkeys(numbers, float))
    few.loc[few.index[0], numbers], few.loc[few.index[1], numbers] = 77.0, 2.5
    answers = model.predict(few)
    model.save(tmp_path / "model")
    loaded = dkl.load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(few), answers)
    assert loaded.encoding_.describe() == model.encoding_.describe()
    store = dkl.create_dataset(tmp_path / "rows.zarr", frame[1_000:], y[1_000:])
    np.testing.assert_allclose(loaded.predict(store).compute(), model.predict(frame[1_000:]), rtol=1e-5, atol=1e-5)
    predictor = model.predictor()
    one_by_one = [predictor.predict(row) for row in few.iloc[:10].to_dict("records")]
    np.testing.assert_allclose(np.ravel(one_by_one), answers[:10], rtol=1e-4, atol=1e-4)
    session = onnxruntime.InferenceSession(model.to_onnx().SerializeToString())
    given = {name: few[name].to_numpy("f4" if name in numbers else object)[:, None] for name in few}
    np.testing.assert_allclose(session.run(["prediction"], given)[0], answers, rtol=2e-4, atol=2e-4)
    # texts that are unheard of, and missing values where none were
    for name in few.columns.difference(numbers):
        few.loc[few.index[2:4], name] = ["unheard of", None]
    few.loc[few.index[4], numbers] = np.nan
    pipeline = model.to_sklearn()
    with pytest.warns(dkl.errors.TableDifferenceWarning, match="missing"):
        answers = model.predict(few)
    np.testing.assert_allclose(pipeline.predict(few), answers, rtol=2e-5, atol=2e-5)
    assert b"dkl" not in pickle.dumps(pipeline)
    # stores give what frames give
    stored = first.fit(dkl.create_dataset(tmp_path / "all.zarr", frame, y))
    np.testing.assert_allclose(stored.predict(frame), model.predict(frame), rtol=1e-4, atol=1e-4)


def test_codes_of_triples_are_places_in_their_product() -> None:
    from dkl.encodings.keys import CategoryKey, category_parts

    frame, y = parity(4_000)
    dataset = as_dataset(frame, y)
    numbers = [("a", (0, 1, 2, 3)), ("c", (0, 1, 3))]
    parts = category_parts(dataset.encoding, numbers)
    key = CategoryKey(tuple(parts[name] for name in ("a", "b", "c")))
    cells = {cell: 1 + place for place, cell in enumerate(product((0, 1, 2, 3), "pqr", (0, 1, 3)))}
    expected = [cells.get(row, 0) for row in frame.itertuples(index=False, name=None)]
    np.testing.assert_array_equal(key.codes(dataset.X.compute()), expected)
    assert key.size == 1 + len(cells)


@pytest.mark.parametrize("rows", [visits, lambda: visits(40_000), parity], ids=["few", "many", "crosses"])
def test_the_plan_counts_the_sums_of_suspects_by_their_size(rows: Any) -> None:
    frame, y = rows()
    dataset = as_dataset(frame, y)
    tracemalloc.start()
    try:
        more_categories(dataset, HELD_OUT, Run(), 0)
        measured = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    plan = PlannedRun(n_rows=dataset.n_rows)
    assert plan_suspects(dataset, plan, 0)
    passes = [project(dataset.source, records, usable_cores(), allowed=8 << 30).total for records, _ in plan.passes]
    (held,) = plan.held[0].values()
    assert measured <= max(passes) + held <= 3 * measured + (300 << 20)
    # the largest pass has the sums of all values that there may be, not those of the folds alone
    assert max(passes) > 8 * 6 * 2 * (len(frame) // 20)
