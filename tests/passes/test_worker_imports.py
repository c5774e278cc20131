"""A worker loads what its blocks need and nothing else: each package below takes 10 to 100 MB of its memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dkl
from dkl.data.coerce import as_dataset
from dkl.explain.importance import importance_records
from dkl.explain.model import model_of
from dkl.explain.wave_pass import column_record, left_out_record, part_of, wave_record
from dkl.linear.judge import Folds
from dkl.model_selection.folds import fold_views
from dkl.uncertainty.interval_scores import conformal_scores

HEAVY = ("pandas", "pyarrow", "sklearn", "dask.array", "dask.dataframe", "dask_ml", "scipy.stats", "scipy.optimize")
# one process loads one after the other, and tells after each which of the packages it has
CODE = """
import importlib, json, pickle, sys
told = json.load(open(sys.argv[1]))
for kind, values in told["loads"]:
    for value in values:
        importlib.import_module(value) if kind == "modules" else pickle.load(open(value, "rb"))
    print(json.dumps([name for name in told["heavy"] if name in sys.modules]))
"""
LEARNERS = [
    dkl.AlignedFeatures(n_candidates=50, n_features=10),
    dkl.PosteriorFeatures(n_candidates=50, n_features=10),
    dkl.LandmarkFeatures(n_landmarks=5, n_candidates=20),
    dkl.LeverageFeatures(n_candidates=50, n_features=10),
    dkl.JointFeatures(n_candidates=50),
    dkl.PeakFeatures(n_features=10),
    dkl.MarginFeatures(n_features=10),
    dkl.MarginFeatures(n_features=10, solver="game"),
    dkl.StepFeatures(n_features=10),
    dkl.NystromFeatures(n_features=10),
]


def modules_of(records: Any) -> set[str]:
    """The modules that unpickling some records loads."""
    functions = [
        getattr(record, name, None) for record in records for name in ("function", "step", "prepare", "arrange")
    ]
    values = [value for record in records for value in getattr(record, "operands", {}).values()]
    classes = [type(value) for value in values if type(value).__module__.startswith("dkl.")]
    return {each.__module__ for each in [*functions, *classes] if each is not None}


def modules_that_explain() -> set[str]:
    """Those of the passes of explanations."""
    X = np.random.default_rng(0).standard_normal((60, 3))
    model = dkl.KernelClassifier("random", n_features=10, random_state=0).fit(X, (X[:, 0] > 0.0).astype(int))
    scorer, d = model_of(model), X.shape[1]
    columns = [np.array([j]) for j in range(d)]
    records = [
        *importance_records(scorer, d),
        wave_record([part_of(scorer.feature_map, one) for one in columns], "float32"),
        left_out_record(scorer.feature_map, columns, "float32"),
        column_record(scorer.feature_map.scaler, d),
    ]
    return modules_of(records)


def modules_that_score() -> set[str]:
    """Those that score rows for sets and intervals."""
    X = np.random.default_rng(0).standard_normal((60, 3))
    classifier = dkl.KernelClassifier("random", n_features=10, calibrate=True, random_state=0).fit(X, X[:, 0] > 0.0)
    regressor = dkl.KernelRegressor("random", n_features=10, random_state=0).fit(X, X[:, 0])
    answering = [part for model in (classifier, regressor) for part in model._answering()]
    return {conformal_scores.__module__, *(type(part).__module__ for part in answering)}


def modules_that_fit(folder: Path) -> set[str]:
    """Those of the passes of fits, of rows of a store and of arrays in place."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 4)).astype(np.float32)
    rows = dkl.create_dataset(folder / "rows.zarr", X, (X[:, 0] > 0.0).astype(int))
    in_place = dkl.from_zarr(folder / "rows.zarr" / "X", np.asarray(rows.y))
    # the head that follows asks of all features the same
    machines = [dkl.KernelClassifier(one, solver=("newton", "sgd")[place % 2]) for place, one in enumerate(LEARNERS)]
    modules = {"dkl.passes.loop", *(type(each.source.reader()).__module__ for each in (rows, in_place))}
    for machine in (*machines, dkl.KernelClassifier(), dkl.TunedClassifier(n_features=10)):
        modules |= {name for records, _ in machine.planned_passes(rows) for name in modules_of(records)}
    return modules | {name for records, _ in machines[0].planned_passes(in_place) for name in modules_of(records)}


def written(value: Any, path: Path) -> str:
    path.write_bytes(cloudpickle.dumps(value))
    return str(path)


def readers_of_parts(folder: Path) -> str:
    """The readers of rows without those that are held out, and of a fold."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    rows = as_dataset(X, X[:, 0])
    machine: Any = dkl.KernelRegressor(conformal_fraction=0.5)
    machine.seed_ = 0
    parts = [*machine._without_conformal_rows(rows), fold_views(rows, Folds.of(2, 0))[0].train]
    return written([part.source.reader() for part in parts], folder / "readers")


def tasks_of_predictions(folder: Path) -> list[str]:
    """The tasks that predict raw rows of Dask: an array with gaps, and a frame with texts."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    X[::7, 1] = np.nan
    y = (X[:, 0] > 0.0).astype(int)
    frame = pd.DataFrame({"size": X[:, 0], "colour": np.where(X[:, 0] > 0.5, "red", "blue")})
    files = []
    for raw, lazy in ((X, da.from_array(X, chunks=(20, 2))), (frame, dd.from_pandas(frame, 3))):
        model = dkl.KernelClassifier("random", n_features=10, random_state=0, progress=False).fit(raw, y)
        predicted = model.predict(lazy)
        assert np.array_equal(predicted.compute(), model.predict(raw))
        files.append(written(dict(predicted.__dask_graph__()), folder / f"tasks of {type(raw).__name__}"))
    return files


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """The packages that a process has when it has loaded modules of passes, then readers of parts, then tasks."""
    folder = tmp_path_factory.mktemp("loads")
    modules = modules_that_fit(folder) | modules_that_explain() | modules_that_score()
    loads = [
        ("modules", sorted(modules)),
        ("files", [readers_of_parts(folder)]),
        ("files", tasks_of_predictions(folder)),
    ]
    (folder / "told").write_text(json.dumps({"heavy": HEAVY, "loads": loads}))
    run = subprocess.run([sys.executable, "-c", CODE, folder / "told"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_a_worker_loads_no_package_that_its_blocks_do_not_need(loaded: list[list[str]]) -> None:
    """In fits, and where it explains or scores rows: a process that loads the modules of all of them has none."""
    assert loaded[0] == []


def test_a_worker_that_reads_the_rows_of_a_part_loads_no_package_for_it(loaded: list[list[str]]) -> None:
    assert loaded[1] == []


def test_predicting_raw_rows_of_dask_loads_no_scikit_learn(loaded: list[list[str]]) -> None:
    """The tasks hold the encoding of the fit, and not the model, whose class loads 60 MiB."""
    assert "sklearn" not in loaded[2]
