"""The same rows as a data frame, as a store, and from a file by the shell give the same model, in all of its forms."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.errors import TableDifferenceWarning
from tests.export.models import assert_agree

N = 300
RNG = np.random.default_rng(0)
CODE = RNG.integers(0, 5, N)
LACKS = CODE == 0
START = pd.Timestamp("2024-01-01")
COLUMNS: dict[str, Any] = {
    "whole numbers as names": pd.Categorical(10 * CODE),
    "names with gaps": pd.Categorical([None if code == 0 else 10 * code for code in CODE.tolist()]),
    "fractions as names": pd.Categorical(CODE / 2),
    "truths as names": pd.Categorical(CODE > 2),
    "days as names": pd.Categorical(START + pd.to_timedelta(CODE, "D")),
    "names in an order": pd.Categorical(np.array(list("abcde"))[CODE], categories=list("zedcba"), ordered=True),
    "many names": pd.Categorical([f"v{number}" for number in RNG.integers(0, 60, N)]),
    "truths with gaps": [None if code == 0 else code > 2 for code in CODE.tolist()],
    "nullable truths": pd.array([None if code == 0 else code > 2 for code in CODE.tolist()], "boolean"),
    "nullable whole numbers": pd.array([None if code == 0 else code for code in CODE.tolist()], "Int64"),
    "whole numbers with gaps": pd.Series([None if code == 0 else code for code in CODE.tolist()], dtype=object),
    "texts with gaps": [None if code == 0 else "abcde"[code] for code in CODE.tolist()],
    "texts of numbers": [str(code) for code in CODE],
    "half precision": RNG.normal(size=N).astype(np.float16),
    "days": [day.date() for day in START + pd.to_timedelta(RNG.integers(0, 900, N), "D")],
    "times": pd.Series(START + pd.to_timedelta(RNG.integers(0, 10**8, N), "s")).mask(LACKS),
    "times of a zone": (START + pd.to_timedelta(RNG.integers(0, 10**8, N), "s")).tz_localize("UTC"),
    "months": pd.Series(pd.period_range("2000-01", periods=N, freq="M")).mask(LACKS),
    "durations": pd.to_timedelta(RNG.integers(0, 10**6, N), "s"),
    "5": RNG.normal(size=N),
}
FRAME = pd.DataFrame(COLUMNS)
TARGET = CODE + RNG.normal(size=N)
SETTINGS: dict[str, Any] = {"features": "random", "n_features": 20, "random_state": 0}


def from_parquet(folder: Path, frame: pd.DataFrame, **options: Any) -> dkl.Dataset:
    frame.assign(target=TARGET).to_parquet(folder / "rows.parquet")
    told: dict[str, Any] = {"target": "target", "shuffle": False, "progress": False, **options}
    return dkl.ingest(folder / "rows.parquet", folder / "rows.zarr", **told)


def test_columns_mean_the_same_in_a_frame_and_in_its_parquet_file(tmp_path: Path) -> None:
    machine = dkl.KernelRegressor(**SETTINGS).fit(FRAME, TARGET)
    stored = dkl.KernelRegressor(**SETTINGS).fit(from_parquet(tmp_path, FRAME))
    for of_file, of_frame in zip(stored.encoding_.rules, machine.encoding_.rules, strict=True):
        assert of_file == of_frame
    np.testing.assert_array_equal(stored.predict(FRAME), machine.predict(FRAME))


def test_months_are_dates_whether_or_not_pandas_has_told_arrow_of_its_type(tmp_path: Path) -> None:
    frame = FRAME[["months"]]
    known = from_parquet(tmp_path, frame)
    kind = pq.read_schema(tmp_path / "rows.parquet").field("months").type
    pa.unregister_extension_type(kind.extension_name)
    try:
        ds = from_parquet(tmp_path, frame, overwrite=True)
    finally:
        pa.register_extension_type(kind)
    assert ds.encoding.rules == known.encoding.rules
    np.testing.assert_array_equal(ds.X.compute(), known.X.compute())


def test_the_shell_gives_the_predictions_of_the_frame(tmp_path: Path) -> None:
    frame = FRAME.iloc[::-1]
    machine = dkl.KernelRegressor(**SETTINGS).fit(frame, TARGET)
    frame.assign(target=TARGET).to_parquet(tmp_path / "rows.parquet")
    frame.iloc[:40].to_parquet(tmp_path / "new.parquet")
    for command in (
        "ingest {}/rows.parquet {}/rows.zarr --target target --no-shuffle --split=",
        "fit {}/rows.zarr {}/model.zarr --set features=random --features 20",
        "predict {}/model.zarr {}/new.parquet {}/answers.parquet --strict",
    ):
        said = CliRunner().invoke(app, [*command.replace("{}", str(tmp_path)).split(), "--quiet"])
        assert said.exit_code == 0, said.output
    answers = pd.read_parquet(tmp_path / "answers.parquet")["prediction"]
    np.testing.assert_array_equal(answers, machine.predict(frame.iloc[:40]))


def test_an_index_without_a_name_is_no_column(tmp_path: Path) -> None:
    """pandas writes the index of rows that were sorted or picked as a column; in the frame it is none."""
    frame = FRAME[["half precision", "5"]].sort_values("5")
    (tmp_path / "plain").mkdir()
    plain = from_parquet(tmp_path / "plain", frame.reset_index(drop=True))
    ds = from_parquet(tmp_path, frame, overwrite=True)
    assert ds.encoding.rules == plain.encoding.rules
    # who has left it out by its name may go on doing so
    ds = from_parquet(tmp_path, frame, overwrite=True, drop=["__index_level_0__"])
    assert ds.encoding.rules == plain.encoding.rules


def test_files_with_and_without_an_index_go_together(tmp_path: Path) -> None:
    frame = FRAME[["half precision", "5"]]
    frame.iloc[:200].to_parquet(tmp_path / "a.parquet")
    frame.iloc[200:].to_parquet(tmp_path / "b.parquet")
    ds = dkl.ingest(tmp_path / "*.parquet", tmp_path / "both.zarr", shuffle=False, progress=False)
    np.testing.assert_array_equal(ds.X.compute()[:, 1], frame["5"].to_numpy(np.float32))


# Dask 2026.8 sets an index in a way that pandas 3.1 gives up
@pytest.mark.filterwarnings("ignore:The inplace keyword")
def test_an_index_that_dask_makes_up_is_no_column(tmp_path: Path) -> None:
    dd.from_pandas(FRAME[["5", "texts of numbers"]], npartitions=2).to_parquet(tmp_path / "rows")
    ds = dkl.ingest(tmp_path / "rows", tmp_path / "rows.zarr", progress=False)
    assert [rule.name for rule in ds.encoding.rules] == ["5", "texts of numbers"]


def test_an_index_with_a_name_stays_a_column(tmp_path: Path) -> None:
    """Who reads the file without pandas sees an ordinary column, and may need it to split by time."""
    frame = FRAME[["5"]].set_index(pd.Index(np.arange(N) % 7, name="weekday"))
    assert [rule.name for rule in from_parquet(tmp_path, frame).encoding.rules] == ["5", "weekday"]


# Values of each kind of column by a generator; how a column is given (a dtype, a zone) is a part of its kind.
NUMBERS = ["int64", "int8", "uint16", "float64", "float32", "bool"]
NULLABLE = ["Int64", "boolean", "Float64", "UInt8"]
TEXTS = ["object", "string", "category", "ordered", "unused"]
INSTANTS = ["days", "times", "UTC", "gaps as None"]
# A CSV file holds no names of zones, takes whole numbers for numbers whatever they were, and pandas writes nullable
# float32 there as the shortest text, which is another number in double precision.
OF_PARQUET_ALONE = [
    "Float32",
    "Asia/Tokyo",
    "America/New_York",
    "+05:30",
    "numbers as names",
    "dates of Python",
    "arrow",
]
NAMES = ["x", "$\\frac$", "=SUM(A1)", " blank ", "naïve ü", "a,b", 'quo"te', "5", "two\nlines", "a=b", "<missing>", "@"]


@dataclass(frozen=True)
class Column:
    """How to make a column: its kind, the share of rows without a value, how many values differ, the draw."""

    kind: str
    gaps: float
    n_values: int
    seed: int

    def of(self, n_rows: int) -> Any:
        generator = np.random.default_rng(self.seed)
        code = generator.integers(0, self.n_values, n_rows)
        missing = generator.random(n_rows) < self.gaps
        missing[generator.integers(n_rows)] = False
        kind = self.kind
        if kind in [*NUMBERS, *NULLABLE, "Float32"]:
            of = kind.lower()
            values = code > 0 if of.startswith("bool") else self._noise(code) if of.startswith("float") else code
            column = pd.Series(values).astype(kind)
            return column if kind in NUMBERS and not of.startswith("float") else column.mask(missing)
        if kind in ("object", "string", "arrow", "category", "ordered", "unused"):
            words = [f"{'aäz '[k % 4]}w{k}" for k in range(self.n_values)]
            texts = pd.Series(np.array(words, object)[code]).mask(missing, None)
            if kind in ("category", "ordered", "unused"):
                known = words[::-1] + (["never"] if kind == "unused" else [])
                return pd.Categorical(texts, categories=known, ordered=kind == "ordered")
            return texts.astype({"object": object, "string": "string", "arrow": "string[pyarrow]"}[kind])
        if kind == "numbers as names":
            return pd.Categorical(pd.Series(code).mask(missing))
        if kind == "gaps as None":
            return pd.Series([None if gone else bool(k) for k, gone in zip(code, missing, strict=True)], dtype=object)
        if kind in ("days", "dates of Python"):
            days = pd.Series(START + pd.to_timedelta(generator.integers(0, 900, n_rows), "D")).mask(missing)
            return days if kind == "days" else days.dt.date.where(~missing, None)
        times = pd.Series(START + pd.to_timedelta(generator.integers(0, 10**8, n_rows), "s")).mask(missing)
        return times if kind == "times" else times.dt.tz_localize("UTC").dt.tz_convert(kind)

    def _noise(self, code: np.ndarray) -> np.ndarray:
        return code - self.n_values / 2 + np.random.default_rng(self.seed + 1).normal(size=len(code))


@dataclass(frozen=True)
class Table:
    """Rows with a target and weights, the file that holds them, and a draw of orders."""

    suffix: str
    columns: dict[str, Column]
    n_rows: int
    target: str
    weights: str
    seed: int

    @property
    def frame(self) -> pd.DataFrame:
        """The rows, whose index is in no order."""
        frame = pd.DataFrame({name: column.of(self.n_rows) for name, column in self.columns.items()})
        return frame.set_index(np.random.default_rng(self.seed).permutation(self.n_rows))

    @property
    def y(self) -> np.ndarray:
        generator = np.random.default_rng(self.seed + 1)
        score = generator.normal(size=self.n_rows) + np.arange(self.n_rows) % 3
        if self.target == "numbers":
            return score
        codes = np.arange(self.n_rows) % (2 if self.target == "booleans" else 3)
        return {"booleans": codes > 0, "whole": codes, "names": np.array(["no", "perhaps", "yes"], object)[codes]}[
            self.target
        ]

    @property
    def weight(self) -> np.ndarray | None:
        generator = np.random.default_rng(self.seed + 2)
        if self.weights == "none":
            return None
        if self.weights == "whole":
            # rows of weight 0 are left out, which tests of weights compare
            return generator.integers(1, 4, self.n_rows)
        return generator.random(self.n_rows) + 0.5

    def from_the_shell(self, folder: Path) -> dkl.Dataset:
        """The store that `dkl ingest` makes of a file of the rows."""
        table = self.frame.assign(**{"the target": self.y})
        more = ["--target", "the target"]
        if self.weight is not None:
            table, more = table.assign(**{"the weight": self.weight}), [*more, "--weight", "the weight"]
        path = folder / f"rows.{self.suffix}"
        if self.suffix == "csv":
            table.to_csv(path, index=False, float_format="%.17g")
        else:
            table.to_parquet(path)
        command = ["ingest", str(path), str(folder / "shell.zarr"), *more, "--no-shuffle", "--split=", "--quiet"]
        said = CliRunner().invoke(app, command)
        assert said.exit_code == 0, said.output
        return dkl.open_dataset(folder / "shell.zarr")

    def machine(self) -> Any:
        told: dict[str, Any] = {**SETTINGS, "solver": "newton", "alpha": 1e-3}
        if self.target == "numbers":
            return dkl.KernelRegressor(**told)
        return dkl.KernelClassifier(**told, loss="log_loss")


@st.composite
def tables(draw: st.DrawFn) -> Table:
    suffix = draw(st.sampled_from(["csv", "parquet"]))
    kinds = NUMBERS + NULLABLE + TEXTS + INSTANTS + (OF_PARQUET_ALONE if suffix == "parquet" else [])
    n_rows = draw(st.integers(30, 120))
    column = st.builds(
        Column,
        st.sampled_from(kinds),
        st.sampled_from([0.0, 0.0, 0.05, 0.5, 0.95]),
        st.sampled_from([2, 3, n_rows // 4]),
        st.integers(0, 2**16),
    )
    columns = draw(st.dictionaries(st.sampled_from(NAMES), column, min_size=1, max_size=6))
    target = draw(st.sampled_from(["numbers", "booleans", "whole", "names"]))
    return Table(
        suffix, columns, n_rows, target, draw(st.sampled_from(["none", "whole", "fractions"])), draw(st.integers(0, 99))
    )


def assert_one_truth(table: Table, folder: Path) -> None:
    """Three ways in have equal columns and answers, and so have the forms in which the model goes on."""
    frame, y, weight = table.frame, table.y, table.weight
    ways = [dkl.create_dataset(folder / "memory.zarr", frame, y, sample_weight=weight), table.from_the_shell(folder)]
    # Whole weights of rows in memory are copies of the rows, and weights of a store are weights: the guide says so.
    model = table.machine().fit(ways[0]) if table.weights == "whole" else table.machine().fit(frame, y, weight)
    expected = model.predict(frame)
    for stored in ways:
        assert stored.encoding.rules == model.encoding_.rules
        np.testing.assert_array_equal(rows_of(stored.X), rows_of(model.encoding_.transform(frame)))
        np.testing.assert_array_equal(stored.y.compute(), y)
        np.testing.assert_array_equal(table.machine().fit(stored).predict(frame), expected)

    model.save(folder / "model.zarr")
    loaded = dkl.load_model(folder / "model.zarr")
    predictor = model.predictor()
    names = [name for name in ("predict", "decision_function", "predict_proba") if hasattr(model, name)]
    order = np.random.default_rng(table.seed).permutation(table.n_rows)
    for name in names:
        answers = getattr(model, name)(frame)
        np.testing.assert_array_equal(getattr(loaded, name)(frame), answers)
        np.testing.assert_array_equal(getattr(model, name)(frame.iloc[order]), answers[order])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableDifferenceWarning)  # says that the order differs
            np.testing.assert_array_equal(getattr(model, name)(frame[frame.columns[::-1]]), answers)
        agree = assert_agree if answers.dtype.kind == "f" else np.testing.assert_array_equal
        agree(getattr(predictor, name)(frame), answers)
        for place, row in zip(order[:3], frame.iloc[order[:3]].to_dict("records"), strict=True):
            agree(np.asarray(getattr(predictor, name)(row)), answers[place])
    assert_the_graph_agrees(model, frame)


def rows_of(X: Any) -> np.ndarray:
    X = X.compute() if hasattr(X, "compute") else X
    return X.toarray() if hasattr(X, "toarray") else np.asarray(X)


def assert_the_graph_agrees(model: Any, frame: pd.DataFrame) -> None:
    """In onnxruntime, to which dates go as days."""
    onnxruntime = pytest.importorskip("onnxruntime")
    graph, rules = model.to_onnx(), {rule.name: rule for rule in model.encoding_.rules}
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    inputs = session.get_inputs()
    # A table of plain numbers goes in as one matrix, any other a column at a time.
    given = {"X": rows_of(model.encoding_.transform(frame))} if inputs[0].name == "X" else {}
    for one in inputs if not given else ():
        column = frame[one.name]
        dtype, rule = (np.float64 if "double" in one.type else np.float32), rules[one.name]
        if rule.kind == "date":
            # days by the clock of the column's zone
            times = pd.to_datetime(column, utc=bool(rule.zone))
            times = times.dt.tz_convert(rule.zone).dt.tz_localize(None) if rule.zone else times
            given[one.name] = ((times - pd.Timestamp(0)) / pd.Timedelta(days=1)).to_numpy(dtype)[:, None]
        elif "string" in one.type:
            # a number that is a name is written as the shortest text of it
            texts = [
                "" if pd.isna(value) else f"{value:g}" if isinstance(value, float) else str(value) for value in column
            ]
            given[one.name] = np.array(texts, object)[:, None]
        else:
            given[one.name] = column.astype(object).where(column.notna(), np.nan).to_numpy(dtype)[:, None]
    found = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    if "prediction" in found:
        assert_agree(found["prediction"].reshape(len(frame), -1)[:, 0], model.predict(frame))
        return
    np.testing.assert_array_equal(found["label"], model.predict(frame))
    assert_agree(found["probabilities"], model.predict_proba(frame))


# to make a failing table smaller would take minutes
@settings(deadline=None, max_examples=3, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tables())
def test_any_table_is_one_model_by_each_way_in_and_in_each_form(table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_one_truth(table, Path(folder))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(deadline=None, max_examples=60, phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(tables())
def test_sixty_tables_are_one_model_by_each_way_in_and_in_each_form(table: Table) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert_one_truth(table, Path(folder))


@pytest.mark.parametrize(
    ("columns", "further"), [("a", {"groups": "shop"}), ("abc", {"sample_weight": "weight"}), ("abcdef", {})]
)
def test_a_choice_of_columns_of_parquet_files_is_fitted_as_the_same_frame_in_memory(
    tmp_path: Path, columns: str, further: dict[str, str]
) -> None:
    frame = pd.DataFrame(RNG.normal(size=(400, 6)), columns=list("abcdef"))
    frame = frame.assign(y=(frame["a"] > 0).astype(int), weight=1.0 + np.arange(400) % 3, shop=np.arange(400) // 9)
    dd.from_pandas(frame, npartitions=4).to_parquet(tmp_path)
    # Dask joins small partitions of files when it optimises a graph, the more of them the fewer columns are read
    read, names = dd.read_parquet(tmp_path), list(columns)
    machine = dkl.KernelClassifier("random", n_features=30, solver="newton", random_state=0, progress=False)
    of_files, in_memory = (
        clone(machine).fit(rows[names], rows["y"], **{role: rows[name] for role, name in further.items()})
        for rows in (read, dd.from_pandas(frame, npartitions=4))
    )
    expected = in_memory.decision_function(frame[names])
    np.testing.assert_array_equal(of_files.decision_function(frame[names]), expected)
    np.testing.assert_array_equal(of_files.decision_function(read[names]).compute(), expected)
    assert of_files.score(read[names], read["y"]) == in_memory.score(frame[names], frame["y"])
