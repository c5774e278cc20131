"""Rows of weight 0 are not there, whatever they hold and however they come; the others keep their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import dkl

N = 40
I = np.arange(N)  # noqa: E741
ROWS = pd.DataFrame(
    {
        "size": I * 7 % 11 / 4,
        "colour": np.array(["red", "blue", "green"])[I % 3],
        "label": np.array(["no", "yes"])[I * 3 % 7 % 2],
        "part": np.array(["train", "test"])[I % 5 // 4],
        "who": I % 8,
        "weight": 1.0 + I % 2,
    }
)
# each would change what is learned of the columns: a gap, a category, an infinity, a class, a split
NOT_THERE = pd.DataFrame(
    {
        "size": [np.nan, 1e9, np.inf, 1.0],
        "colour": ["red", "violet", "blue", None],
        "label": ["no", "perhaps", "yes", "no"],
        "part": ["train", "validation", "test", "train"],
        "who": [1, 99, 2, 3],
        "weight": 0.0,
    }
)
PLACES = [0, 13, 14, N]  # of the rows among the others
COLUMNS = {"target": "label", "weight": "weight", "group": "who", "splits": "part"}


def with_rows_of_no_weight() -> tuple[pd.DataFrame, np.ndarray]:
    """The table with both, and the numbers in it of the rows that count."""
    order = np.insert(np.arange(N), PLACES, N + np.arange(len(PLACES)))
    return pd.concat([ROWS, NOT_THERE], ignore_index=True).iloc[order], np.flatnonzero(order < N)


@pytest.mark.parametrize(("form", "shuffle"), [("csv", False), ("parquet", True), ("frame", True)])
def test_rows_of_weight_0_are_not_there(form: str, shuffle: bool, tmp_path: Path) -> None:
    mixed, numbers = with_rows_of_no_weight()
    given: dict[str, object] = {"alone": ROWS, "mixed": mixed}
    for name, table in list(given.items()):
        if form != "frame":
            given[name] = tmp_path / f"{name}.{form}"
            table.to_csv(given[name], index=False) if form == "csv" else table.to_parquet(given[name])
    alone, found = (
        dkl.ingest(rows, tmp_path / f"{name}.zarr", shuffle=shuffle, **COLUMNS) for name, rows in given.items()
    )
    assert found.column_names == alone.column_names
    assert found.encoding.to_json() == alone.encoding.to_json()
    assert found.classes.tolist() == alone.classes.tolist() == ["no", "yes"]
    ids = found.row_id.compute()
    assert sorted(ids) == numbers.tolist()
    # a shuffle orders rows by their numbers, which are others here
    place = np.argsort(ids) if shuffle else np.arange(N)
    place_alone = np.argsort(alone.row_id.compute()) if shuffle else np.arange(N)
    for part in ("X", "y", "sample_weight"):
        values, expected = (getattr(ds, part).compute() for ds in (found, alone))
        np.testing.assert_array_equal(values[place], expected[place_alone])
    assert {name: len(found[name]) for name in found.splits} == {name: len(alone[name]) for name in alone.splits}
    assert sorted(found["test"].row_id.compute()) == numbers[ROWS["part"] == "test"].tolist()
    assert found.verify() == []


def test_a_file_whose_rows_all_have_weight_0_says_so(tmp_path: Path) -> None:
    NOT_THERE.to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(ValueError, match="weight 'weight' is 0 in all 4 rows"):
        dkl.ingest(tmp_path / "rows.csv", tmp_path / "rows.zarr", target="label", weight="weight")
    assert not (tmp_path / "rows.zarr").exists()


def test_an_error_of_a_row_says_which_rows_are_not_counted(tmp_path: Path) -> None:
    mixed, _ = with_rows_of_no_weight()
    mixed.assign(size=mixed["size"].where(mixed["who"] != 4, np.inf)).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="'size' is inf in row 4") as caught:
        dkl.ingest(tmp_path / "rows.parquet", tmp_path / "rows.zarr", target="label", weight="weight")
    assert "rows are counted without the 4 that have a weight of 0" in "".join(caught.value.__notes__)


# the same rows with a date, a zone and free text; what would be learned of each is in the rows that are not there
RICH = ROWS[["size", "colour"]].assign(
    day=pd.date_range("2020-01-01", periods=N, tz="Europe/Berlin"),
    text=[f"a {('big', 'small')[i % 2]} {('cat', 'dog', 'cow')[i % 3]} runs {i} times over there" for i in range(N)],
    n=I % 7,
)
NOT_RICH = NOT_THERE[["size", "colour"]].assign(
    day=pd.to_datetime(["1700-01-01", "2020-01-01", None, "2261-01-01"], utc=True).tz_convert("Europe/Berlin"),
    text=["a big purple cat runs over there", None, "purple", "1"],
    n=[2**60 + 1, 1, 2, 3],
)
ORDER = np.insert(np.arange(N), PLACES, N + np.arange(len(PLACES)))
COUNTED = np.flatnonzero(ORDER < N)
WEIGHT = np.where(ORDER < N, 1.0 + ORDER % 2, 0.0)
LABELS = np.where(I * 3 % 7 % 2, "yes", "no")
TARGETS: dict[str, tuple[Any, Any]] = {
    "labels": (LABELS, np.array([*LABELS, None, np.nan, "1.5", "2020-01-01"], dtype=object)[ORDER]),
    "numbers": (I % 11 / 4, np.array([*(I % 11 / 4), np.nan, np.inf, 1e300, -1.0])[ORDER]),
    "whole": (I * 3 % 7 % 2.0, np.array([*(I * 3 % 7 % 2), 0.5, np.nan, 7.0, -np.inf])[ORDER]),
}


def mixed_frame() -> pd.DataFrame:
    return pd.concat([RICH, NOT_RICH], ignore_index=True).iloc[ORDER].reset_index(drop=True)


def arrays(wrong: list[float], gap: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers, and the same with rows that are not there; with `gap` a value is missing in one that counts."""
    alone = np.column_stack([I * 7 % 11 / 4, I % 5]).astype(float)
    alone[3, 1] = np.nan if gap else 0.0
    return alone, np.concatenate([alone, np.column_stack([wrong, wrong])])[ORDER]


def in_partitions(frame: pd.DataFrame) -> Any:
    return dd.from_pandas(frame, npartitions=4, sort=False)


def in_chunks(values: np.ndarray) -> da.Array:
    return da.from_array(values, chunks=(9, *values.shape[1:]))


WAYS: dict[str, Callable[[], Iterator[Any]]] = {
    "frame": lambda: iter((RICH, mixed_frame())),
    "Dask frame": lambda: map(in_partitions, (RICH, mixed_frame())),
    "array": lambda: iter(arrays([np.inf, -np.inf, np.inf, 1.0])),
    "array with gaps elsewhere": lambda: iter(arrays([np.nan, np.inf, np.nan, 1.0])),
    "array with gaps": lambda: iter(arrays([np.nan, np.inf, np.nan, 1e300], gap=True)),
    "Dask array": lambda: map(in_chunks, arrays([np.inf, -np.inf, np.inf, 1.0])),
    "Dask array with gaps elsewhere": lambda: map(in_chunks, arrays([np.nan, np.inf, np.nan, 1.0])),
    "Dask array with gaps": lambda: map(in_chunks, arrays([np.nan, np.inf, np.nan, 1e300], gap=True)),
    "sparse": lambda: map(sparse.csr_array, arrays([np.nan, np.inf, -np.inf, 1.0])),
}


def as_given(beside: str) -> Callable[[np.ndarray], Any]:
    return (lambda values: values) if beside == "in memory" else (lambda values: da.from_array(values, chunks=7))


# Every way meets a target, and a frame all of them; targets and weights beside the rows are in memory and lazy in turn.
PAIRS = [(way, list(TARGETS)[row % 3], ("in memory", "lazy")[row % 2]) for row, way in enumerate(WAYS)]
PAIRS += [("frame", "numbers", "lazy"), ("frame", "whole", "lazy")]


@pytest.mark.parametrize(("way", "target", "beside"), PAIRS)
def test_rows_of_weight_0_teach_nothing_however_they_come(way: str, target: str, beside: str, tmp_path: Path) -> None:
    """Nor do those that are appended."""
    (alone, mixed), (y, y_mixed), given = WAYS[way](), TARGETS[target], as_given(beside)
    weight = WEIGHT[COUNTED]
    expected = dkl.create_dataset(tmp_path / "alone.zarr", alone, given(y), sample_weight=given(weight))
    found = dkl.create_dataset(tmp_path / "mixed.zarr", mixed, given(y_mixed), sample_weight=given(WEIGHT))
    assert (found.encoding is None) == (expected.encoding is None)
    if found.encoding is not None:
        assert found.encoding.to_json() == expected.encoding.to_json()
        assert found.encoding.directions == expected.encoding.directions
    assert str(found.classes) == str(expected.classes)
    assert found.row_id.compute().tolist() == COUNTED.tolist()

    def compare(one: dkl.Dataset, other: dkl.Dataset) -> None:
        for part in ("X", "y", "sample_weight"):
            values, wanted = dask.compute(getattr(one, part), getattr(other, part))
            if sparse.issparse(values):
                values, wanted = values.toarray(), wanted.toarray()
            np.testing.assert_array_equal(values, wanted)

    compare(found, expected)
    more = expected.append(alone, given(y), sample_weight=given(weight))
    compare(found.append(mixed, given(y_mixed), sample_weight=given(WEIGHT)), more)


def test_a_partition_whose_rows_all_have_weight_0_says_nothing_of_types(tmp_path: Path) -> None:
    frame = pd.concat([RICH, RICH.assign(colour=None, size=np.nan)], ignore_index=True)
    weight, y = np.repeat([1.0, 0.0], N), np.concatenate([LABELS.astype(object), np.full(N, None)])
    lazy = dd.from_pandas(frame, npartitions=4, sort=False)
    found = dkl.create_dataset(tmp_path / "a.zarr", lazy, da.from_array(y, chunks=20), sample_weight=weight)
    expected = dkl.create_dataset(tmp_path / "b.zarr", in_partitions(RICH)[list(RICH)], LABELS)
    assert found.encoding.column_names == expected.encoding.column_names
    np.testing.assert_array_equal(found.y.compute(), expected.y.compute())
    with pytest.raises(ValueError, match="sample_weight is zero for all rows"):
        dkl.create_dataset(tmp_path / "c.zarr", lazy, da.from_array(y, chunks=20), sample_weight=np.zeros(2 * N))


def test_a_machine_on_a_dask_frame_has_no_column_of_rows_of_weight_0() -> None:
    machine = dkl.KernelClassifier("random", n_features=20, alpha=1e-2, solver="newton", random_state=0)
    model = machine.fit(in_partitions(mixed_frame()), LABELS[np.minimum(ORDER, N - 1)], sample_weight=WEIGHT)
    assert not [name for name in model.encoding_.column_names if "violet" in name or "missing" in name]
    assert model.predict(RICH).shape == (N,)


def test_a_row_that_counts_is_named_by_its_number_where_others_do_not_count(tmp_path: Path) -> None:
    frame = mixed_frame()
    frame.loc[4, "size"] = np.inf
    place = COUNTED.tolist().index(4)
    with pytest.raises(ValueError, match="'size' is inf in row 4;"):
        dkl.create_dataset(tmp_path / "a.zarr", frame, sample_weight=WEIGHT)
    with pytest.raises(ValueError, match=f"'size' is inf in row {place};") as caught:
        dkl.create_dataset(tmp_path / "a.zarr", in_partitions(frame), sample_weight=WEIGHT)
    assert "rows are counted without the 4 that have a weight of 0" in "".join(caught.value.__notes__)
    rows = arrays([np.inf] * 4)[1]
    rows[20, 1] = -np.inf
    for given in (rows, in_chunks(rows), sparse.csr_array(rows)):
        with pytest.raises(ValueError, match=r"X\[20, 1\] is -inf"):
            dkl.create_dataset(tmp_path / "a.zarr", given, sample_weight=WEIGHT)


def fitted(target: str, rows: Any, y: Any, weight: Any, **parameters: Any) -> Any:
    machine = dkl.KernelRegressor if target == "numbers" else dkl.KernelClassifier
    given = {"n_features": 20, "alpha": 1e-2, "solver": "newton", "random_state": 0, **parameters}
    return machine("random", **given).fit(rows, y, sample_weight=weight)


@pytest.mark.parametrize(("way", "target", "beside"), PAIRS)
def test_rows_of_weight_0_are_not_scored_however_they_come(way: str, target: str, beside: str) -> None:
    (alone, mixed), (y, y_mixed), given = WAYS[way](), TARGETS[target], as_given(beside)
    weight = WEIGHT[COUNTED]
    model = fitted(target, alone, y, weight)
    expected = model.score(alone, y, weight)
    assert expected > 0.0
    assert model.score(mixed, given(y_mixed), given(WEIGHT)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("way", ["frame", "Dask array", "sparse"])
def test_rows_of_weight_0_have_no_part_in_what_follows_a_fit(way: str) -> None:
    (alone, mixed), (y, y_mixed), weight = WAYS[way](), TARGETS["numbers"], WEIGHT[COUNTED]
    expected, found = (fitted("numbers", alone, y, weight) for _ in range(2))
    expected.conformalize(alone, y, sample_weight=weight)
    found.conformalize(mixed, y_mixed, sample_weight=WEIGHT)
    for one, other in zip(expected.conformal_.scores, found.conformal_.scores, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    shares = dkl.explain.importance(found, mixed, sample_weight=WEIGHT).strengths
    wanted = dkl.explain.importance(expected, alone, sample_weight=weight).strengths
    np.testing.assert_allclose(shares, wanted, rtol=1e-5)
    going_on = {"solver": "sgd", "alpha": 1e-4, "epochs": 2}
    expected, found = (fitted("numbers", alone, y, weight, **going_on) for _ in range(2))
    expected.partial_fit(alone, y, sample_weight=weight)
    found.partial_fit(mixed, y_mixed, sample_weight=WEIGHT)
    np.testing.assert_allclose(dask.compute(found.predict(alone)), dask.compute(expected.predict(alone)), rtol=1e-5)


def test_a_chunk_whose_rows_all_have_weight_0_is_not_scored() -> None:
    rows, y = arrays([0.0] * 4)[0], 1.0 + TARGETS["numbers"][0]
    model = fitted("numbers", rows, y, None, loss="gamma")
    expected, deviance = model.score(rows, y), model.deviance(rows, y)
    bad, weight = np.full((9, 2), np.inf), np.repeat([1.0, 0.0], [N, 9])
    given = da.from_array(np.concatenate([rows, bad]), chunks=(10, 2)), np.concatenate([y, np.full(9, -1.0)]), weight
    assert model.score(*given) == pytest.approx(expected, rel=1e-9)
    assert model.deviance(given[0], da.from_array(given[1], chunks=10), weight) == pytest.approx(deviance, rel=1e-9)
    labels = np.where(y > 2.0, "yes", "no")
    classes = fitted("labels", rows, labels, None)
    mixed = da.from_array(np.array([*labels, *[None] * 9], dtype=object), chunks=10)
    assert classes.score(given[0], mixed, weight) == pytest.approx(classes.score(rows, labels), rel=1e-9)


@pytest.mark.parametrize("form", [np.asarray, in_chunks])
def test_exposures_of_rows_of_weight_0_may_be_anything(form: Any) -> None:
    alone, mixed = arrays([np.inf] * 4)
    counts, weight = I % 4, WEIGHT[COUNTED]
    exposure = 1.0 + I % 3
    wrong = np.concatenate([exposure, [np.nan, -1.0, 0.0, np.inf]])[ORDER]
    y = np.concatenate([counts, [np.nan, -1.0, 0.5, np.inf]])[ORDER]
    parameters = {"n_features": 20, "alpha": 1e-2, "solver": "newton", "loss": "poisson", "random_state": 0}
    model, other = (dkl.KernelRegressor("random", **parameters) for _ in range(2))
    model.fit(alone, counts, sample_weight=weight, exposure=exposure)
    other.fit(form(mixed), y, sample_weight=WEIGHT, exposure=wrong)
    np.testing.assert_allclose(other.predict(alone), model.predict(alone), rtol=1e-4)
    expected = model.score(alone, counts, weight, exposure=exposure)
    assert model.score(form(mixed), y, WEIGHT, exposure=wrong) == pytest.approx(expected, rel=1e-9)


def test_an_error_of_a_score_names_the_row_that_counts() -> None:
    alone, mixed = arrays([np.inf] * 4)
    model = fitted("numbers", alone, TARGETS["numbers"][0], None)
    mixed[20, 1] = np.inf
    for rows in (mixed, sparse.csr_array(mixed), mixed.tolist()):
        with pytest.raises(ValueError, match=r"X\[20, 1\] is inf"):
            model.score(rows, TARGETS["numbers"][1], WEIGHT)
    with pytest.raises(ValueError, match=r"sample_weight has shape \(3,\); expected \(44,\)"):
        model.score(mixed, TARGETS["numbers"][1], np.ones(3))
    with pytest.raises(ValueError, match=r"sample_weight\[1\] is -1"):
        model.score(alone, TARGETS["numbers"][0], np.where(I == 1, -1.0, 1.0))
